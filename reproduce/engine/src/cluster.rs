//! Servers that belong together: master and replicas, Sentinels, clusters. Ready means ready: every link up, every
//! slot covered, every Sentinel aware of the others.

use std::time::{Duration, Instant};

use unslow_client::{Connection, Value};
use unslow_topology::{ClusterView, Info, SLOTS};

use crate::server::Error;
use crate::{Engine, Server, ServerSpec};

/// What to start.
#[derive(Clone, Debug)]
pub enum Shape {
    /// One server.
    Standalone,
    /// A master and this many replicas.
    MasterReplica { replicas: usize },
    /// The same with Sentinels.
    Sentinel { replicas: usize, sentinels: usize, quorum: usize },
    /// Masters, each with this many replicas. Servers go round `hosts`, replicas never beside their master when
    /// there are several hosts.
    Cluster { masters: usize, replicas: usize, hosts: Vec<String> },
}

impl Shape {
    /// Three masters with a replica each, on three loopback addresses that stand for hosts.
    pub fn six_nodes() -> Shape {
        Shape::Cluster { masters: 3, replicas: 1, hosts: (1..=3).map(|i| format!("127.0.0.{i}")).collect() }
    }
}

/// Running servers that belong together.
pub struct Deployment {
    /// Data nodes: masters first, then replicas in the same order.
    pub nodes: Vec<Server>,
    /// Sentinels.
    pub sentinels: Vec<Server>,
    /// How many of `nodes` started as masters.
    pub masters: usize,
}

impl Deployment {
    /// Starts it and waits until it is ready. `spec` holds for every data node.
    pub fn start(engine: &Engine, shape: &Shape, spec: &ServerSpec) -> Result<Deployment, Error> {
        match shape {
            Shape::Standalone => {
                Ok(Deployment { nodes: vec![Server::start(engine, spec)?], sentinels: Vec::new(), masters: 1 })
            }
            Shape::MasterReplica { replicas } => replicated(engine, *replicas, spec),
            Shape::Sentinel { replicas, sentinels, quorum } => {
                let mut deployment = replicated(engine, *replicas, spec)?;
                deployment.watch(engine, *sentinels, *quorum)?;
                Ok(deployment)
            }
            Shape::Cluster { masters, replicas, hosts } => cluster(engine, *masters, *replicas, hosts, spec),
        }
    }

    /// A URL that leads to all of it.
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    fn watch(&mut self, engine: &Engine, sentinels: usize, quorum: usize) -> Result<(), Error> {
        let master = &self.nodes[0];
        let settings = vec![
            ("sentinel monitor".into(), format!("mymaster {} {} {quorum}", master.ip, master.port)),
            ("sentinel down-after-milliseconds".into(), "mymaster 5000".into()),
        ];
        for _ in 0..sentinels {
            let spec = ServerSpec { sentinel: true, settings: settings.clone(), ..ServerSpec::default() };
            self.sentinels.push(Server::start(engine, &spec)?);
        }
        let replicas = self.nodes.len() as i64 - 1;
        for sentinel in &self.sentinels {
            let mut connection = sentinel.connect()?;
            wait_for("every Sentinel to know the replicas and the others", Duration::from_secs(30), || {
                let masters = connection.call(&["SENTINEL", "MASTERS"])?;
                let number = |field: &str| masters.items().first()?.get(field)?.integer();
                Ok(number("num-slaves") == Some(replicas)
                    && number("num-other-sentinels") == Some(sentinels as i64 - 1))
            })?;
        }
        Ok(())
    }
}

/// Waits for a condition; the error names it when it never comes.
pub(crate) fn wait_for(
    what: &str,
    patience: Duration,
    mut met: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    loop {
        if met()? {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::new(format!("waited {} s for {what}", patience.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn info(connection: &mut Connection, section: &str) -> Result<Info, Error> {
    Ok(Info::parse(&connection.call(&["INFO", section])?.text().unwrap_or_default()))
}

fn replicated(engine: &Engine, replicas: usize, spec: &ServerSpec) -> Result<Deployment, Error> {
    let master = Server::start(engine, spec)?;
    let mut nodes = vec![master];
    for _ in 0..replicas {
        let mut spec = spec.clone();
        spec.port = None;
        spec.settings.push(("replicaof".into(), format!("{} {}", nodes[0].ip, nodes[0].port)));
        let password = spec.settings.iter().find(|(k, _)| k == "requirepass").map(|(_, v)| v.clone());
        spec.settings.extend(password.map(|p| ("masterauth".to_string(), p)));
        nodes.push(Server::start(engine, &spec)?);
    }
    wait_links(&nodes[1..])?;
    Ok(Deployment { nodes, sentinels: Vec::new(), masters: 1 })
}

fn wait_links(replicas: &[Server]) -> Result<(), Error> {
    for replica in replicas {
        let mut connection = replica.connect()?;
        wait_for("the replica's link to its master", Duration::from_secs(30), || {
            Ok(info(&mut connection, "replication")?.get("master_link_status") == Some("up"))
        })?;
    }
    Ok(())
}

fn cluster(
    engine: &Engine,
    masters: usize,
    replicas: usize,
    hosts: &[String],
    spec: &ServerSpec,
) -> Result<Deployment, Error> {
    let hosts = if hosts.is_empty() { vec!["127.0.0.1".to_string()] } else { hosts.to_vec() };
    let mut nodes = Vec::new();
    for i in 0..masters * (1 + replicas) {
        // Replica r of master m goes r+1 hosts further, so that no host holds both.
        let (m, r) = (i % masters, i / masters);
        let mut spec = spec.clone();
        spec.ip = hosts[(m + r) % hosts.len()].clone();
        spec.port = None;
        let own =
            [("cluster-enabled", "yes"), ("cluster-config-file", "nodes.conf"), ("cluster-announce-ip", &spec.ip)];
        let own: Vec<(String, String)> = own.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        spec.settings.splice(0..0, own);
        nodes.push(Server::start(engine, &spec)?);
    }
    let mut connections = nodes.iter().map(Server::connect).collect::<Result<Vec<_>, _>>()?;
    for (m, connection) in connections.iter_mut().take(masters).enumerate() {
        let slots = (0..SLOTS).filter(|s| usize::from(*s) * masters / usize::from(SLOTS) == m).map(|s| s.to_string());
        let mut command = vec!["CLUSTER".to_string(), "ADDSLOTS".to_string()];
        command.extend(slots);
        connection.call(&command)?;
    }
    for (i, connection) in connections.iter_mut().enumerate() {
        connection.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
    }
    let (first, rest) = connections.split_first_mut().ok_or_else(|| Error::new("a cluster needs a master"))?;
    for node in &nodes[1..] {
        first.call(&["CLUSTER", "MEET", &node.ip, &node.port.to_string()])?;
    }
    let ids = std::iter::once(&mut *first)
        .chain(rest.iter_mut())
        .map(|c| Ok(c.call(&["CLUSTER", "MYID"])?.text().unwrap_or_default()))
        .collect::<Result<Vec<String>, Error>>()?;
    let all = nodes.len();
    for connection in &mut connections {
        wait_for("every node to know every other", Duration::from_secs(30), || {
            let view = view(connection)?;
            Ok(view.nodes.len() == all
                && view.nodes.iter().all(|n| !n.is("handshake") && (n.connected || n.is("myself"))))
        })?;
    }
    for (i, connection) in connections.iter_mut().enumerate().skip(masters) {
        connection.call(&["CLUSTER", "REPLICATE", &ids[i % masters]])?;
    }
    for connection in &mut connections {
        wait_for("cluster_state:ok on every node", Duration::from_secs(40), || {
            let ok = connection.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:ok");
            let view = view(connection)?;
            let replicas_known = view.nodes.iter().filter(|n| n.is("slave")).count() == all - masters;
            Ok(ok && replicas_known && view.masters().count() == masters)
        })?;
    }
    wait_links(&nodes[masters..])?;
    Ok(Deployment { nodes, sentinels: Vec::new(), masters })
}

pub(crate) fn view(connection: &mut Connection) -> Result<ClusterView, Error> {
    let text = connection.call(&["CLUSTER", "NODES"]).map(|v: Value| v.text().unwrap_or_default())?;
    ClusterView::parse(&text).map_err(|e| Error::new(e.to_string()))
}
