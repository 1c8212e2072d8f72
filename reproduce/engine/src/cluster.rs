//! Servers that belong together: master and replicas, Sentinels, clusters. Ready means ready: every link up, every
//! slot covered, every Sentinel aware of the others.

use std::sync::Arc;
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

/// One server of a plan.
#[derive(Clone)]
pub struct Member {
    /// What runs.
    pub engine: Engine,
    /// And how; `port` and `ip` as it shall be found by the others.
    pub spec: ServerSpec,
}

/// Which servers to start where, and how they belong together.
#[derive(Clone, Default)]
pub struct Plan {
    /// Masters first, then replicas: replica i follows master i modulo masters.
    pub nodes: Vec<Member>,
    /// How many of them are masters.
    pub masters: usize,
    /// Whether they are a cluster; otherwise there is one master.
    pub cluster: bool,
    /// Sentinels that watch the master as `mymaster`.
    pub sentinels: Vec<Member>,
    /// How many of them must agree that it is down.
    pub quorum: usize,
}

/// Running servers that belong together.
pub struct Deployment {
    /// Data nodes: masters first, then replicas in the same order.
    pub nodes: Vec<Arc<Server>>,
    /// Sentinels.
    pub sentinels: Vec<Arc<Server>>,
    /// How many of `nodes` started as masters.
    pub masters: usize,
}

impl Deployment {
    /// Starts it on loopback addresses and waits until it is ready. `spec` holds for every data node.
    pub fn start(engine: &Engine, shape: &Shape, spec: &ServerSpec) -> Result<Deployment, Error> {
        let member = |spec: ServerSpec| Member { engine: engine.clone(), spec };
        let alone = |replicas: usize| -> Vec<Member> {
            let replica = ServerSpec { port: None, ..spec.clone() };
            std::iter::once(spec.clone()).chain((0..replicas).map(|_| replica.clone())).map(member).collect()
        };
        let plan = match shape {
            Shape::Standalone => Plan { nodes: alone(0), masters: 1, ..Plan::default() },
            Shape::MasterReplica { replicas } => Plan { nodes: alone(*replicas), masters: 1, ..Plan::default() },
            Shape::Sentinel { replicas, sentinels, quorum } => Plan {
                nodes: alone(*replicas),
                masters: 1,
                sentinels: vec![member(ServerSpec::default()); *sentinels],
                quorum: *quorum,
                ..Plan::default()
            },
            Shape::Cluster { masters, replicas, hosts } => {
                let hosts = if hosts.is_empty() { vec!["127.0.0.1".to_string()] } else { hosts.clone() };
                let node = |i: usize| {
                    // Replica r of master m goes r+1 hosts further, so that no host holds both.
                    let ip = hosts[(i % masters + i / masters) % hosts.len()].clone();
                    member(ServerSpec { ip, port: None, ..spec.clone() })
                };
                let nodes = (0..masters * (1 + replicas)).map(node).collect();
                Plan { nodes, masters: *masters, cluster: true, ..Plan::default() }
            }
        };
        let mut tries = 0;
        loop {
            tries += 1;
            match Deployment::build(&plan, &mut |_| {}) {
                // Somebody else was faster; ports of our own choosing are chosen again.
                Err(e) if tries < 3 && spec.port.is_none() && e.to_string().contains("Address already in use") => {}
                other => return other,
            }
        }
    }

    /// Starts what the plan says and waits until it is ready; `progress` hears what is waited for.
    pub fn build(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Deployment, Error> {
        progress(&format!("starting {} servers", plan.nodes.len() + plan.sentinels.len()));
        let mut nodes: Vec<Arc<Server>> = Vec::new();
        for (i, member) in plan.nodes.iter().enumerate() {
            let mut spec = member.spec.clone();
            if plan.cluster {
                let own = [
                    ("cluster-enabled", "yes"),
                    ("cluster-config-file", "nodes.conf"),
                    ("cluster-announce-ip", &spec.ip),
                ];
                let own: Vec<(String, String)> = own.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
                spec.settings.splice(0..0, own);
            } else if i >= plan.masters {
                spec.settings.push(("replicaof".into(), format!("{} {}", nodes[0].ip, nodes[0].port)));
            }
            // The first one too: it follows another after a failover.
            let password = spec.settings.iter().rfind(|(k, _)| k == "requirepass").map(|(_, v)| v.clone());
            spec.settings.extend(password.map(|p| ("masterauth".to_string(), p)));
            nodes.push(Arc::new(Server::launch(&member.engine, &spec)?));
        }
        for node in &nodes {
            node.wait_ready()?;
        }
        if plan.cluster {
            join(&nodes, plan.masters, progress)?;
        }
        if nodes.len() > plan.masters {
            progress("waiting for the replicas' links");
            wait_links(&nodes[plan.masters..])?;
        }
        let mut deployment = Deployment { nodes, sentinels: Vec::new(), masters: plan.masters };
        if !plan.sentinels.is_empty() {
            progress("waiting for the Sentinels to know each other");
            deployment.watch(plan)?;
        }
        Ok(deployment)
    }

    /// A URL that leads to all of it.
    pub fn url(&self) -> String {
        self.nodes[0].url()
    }

    fn watch(&mut self, plan: &Plan) -> Result<(), Error> {
        let master = &self.nodes[0];
        let password = plan.nodes[0].spec.settings.iter().find(|(k, _)| k == "requirepass").map(|(_, v)| v.clone());
        for member in &plan.sentinels {
            let mut spec = member.spec.clone();
            let monitor = format!("mymaster {} {} {}", master.ip, master.port, plan.quorum);
            spec.sentinel = true;
            spec.settings.splice(
                0..0,
                [
                    ("sentinel monitor".to_string(), monitor),
                    ("sentinel down-after-milliseconds".into(), "mymaster 5000".into()),
                ],
            );
            spec.settings.extend(password.clone().map(|p| ("sentinel auth-pass mymaster".to_string(), p)));
            self.sentinels.push(Arc::new(Server::launch(&member.engine, &spec)?));
        }
        for sentinel in &self.sentinels {
            sentinel.wait_ready()?;
        }
        let replicas = self.nodes.len() as i64 - 1;
        let others = self.sentinels.len() as i64 - 1;
        for sentinel in &self.sentinels {
            let mut connection = sentinel.connect()?;
            wait_for("every Sentinel to know the replicas and the others", Duration::from_secs(30), || {
                let masters = connection.call(&["SENTINEL", "MASTERS"])?;
                let number = |field: &str| masters.items().first()?.get(field)?.integer();
                Ok(number("num-slaves") == Some(replicas) && number("num-other-sentinels") == Some(others))
            })?;
        }
        Ok(())
    }
}

/// Waits for a condition; the error names it when it never comes.
pub fn wait_for(what: &str, patience: Duration, mut met: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
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

/// How often a migration the servers gave up is begun again.
const MIGRATIONS: usize = 10;

/// Moves slots at once (CLUSTER MIGRATESLOTS, Valkey 9.0) from the master at `source` to the master with this id, and waits
/// until they are there. Servers give migrations up (a failover, a fork that fails, a write in the wrong moment:
/// valkey-io/valkey#4545), say so in their list of migrations only, and leave it to who asked to begin again.
pub fn migrate_slots(source: &mut Connection, first: u16, last: u16, destination: &str) -> Result<(), Error> {
    let range = format!("{first}-{last}");
    let (first, last_slot) = (first.to_string(), last.to_string());
    let (mut begun, mut under_way, mut told) = (0, false, String::new());
    wait_for(&format!("slots {range} to arrive"), Duration::from_secs(120), || {
        if view(source)?.by_id(destination).is_some_and(|n| n.slots.contains(last)) {
            return Ok(true);
        }
        if !under_way {
            source.call(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last_slot, "NODE", destination])?;
            (begun, under_way) = (begun + 1, true);
            return Ok(false);
        }
        let migrations = source.call(&["CLUSTER", "GETSLOTMIGRATIONS"])?;
        let text = |job: &Value, field| job.get(field).and_then(Value::text).unwrap_or_default();
        let ours = |job: &&Value| text(job, "slot_ranges") == range && text(job, "target_node") == destination;
        // The newest comes first.
        let Some(job) = migrations.items().iter().find(ours) else { return Ok(false) };
        let state = text(job, "state");
        told = format!("{state} {}", text(job, "message")).trim_end().to_string();
        if state == "failed" || state == "cancelled" {
            if begun == MIGRATIONS {
                return Err(Error::new(format!("the migration of slots {range} was given up {begun} times")));
            }
            // The other side takes a moment to forget it, and slots may yet arrive: looked at before the next one.
            std::thread::sleep(Duration::from_millis(100));
            under_way = false;
        }
        Ok(false)
    })
    .map_err(|e| match told.is_empty() {
        true => e,
        false => Error::new(format!("{e}; CLUSTER GETSLOTMIGRATIONS says: {told}")),
    })
}

/// A section of INFO.
pub fn info(connection: &mut Connection, section: &str) -> Result<Info, Error> {
    Ok(Info::parse(&connection.call(&["INFO", section])?.text().unwrap_or_default()))
}

fn wait_links(replicas: &[Arc<Server>]) -> Result<(), Error> {
    for replica in replicas {
        let mut connection = replica.connect()?;
        wait_for("the replica's link to its master", Duration::from_secs(30), || {
            Ok(info(&mut connection, "replication")?.get("master_link_status") == Some("up"))
        })?;
    }
    Ok(())
}

/// Makes a cluster of servers that run.
fn join(nodes: &[Arc<Server>], masters: usize, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let mut connections = nodes.iter().map(|n| n.connect()).collect::<Result<Vec<_>, _>>()?;
    let timeouts = if nodes.len() <= QUICK_NODES { hurry(&mut connections) } else { Vec::new() };
    for (m, connection) in connections.iter_mut().take(masters).enumerate() {
        let slots = (0..SLOTS).filter(|s| usize::from(*s) * masters / usize::from(SLOTS) == m).map(|s| s.to_string());
        let mut command = vec!["CLUSTER".to_string(), "ADDSLOTS".to_string()];
        command.extend(slots);
        connection.call(&command)?;
    }
    for (i, connection) in connections.iter_mut().enumerate() {
        connection.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
    }
    // Everybody meets everybody: gossip alone takes Redis up to a minute for sixty nodes.
    for (i, connection) in connections.iter_mut().enumerate() {
        let meets: Vec<Vec<String>> = nodes[i + 1..]
            .iter()
            .map(|n| vec!["CLUSTER".into(), "MEET".into(), n.ip.clone(), n.port.to_string()])
            .collect();
        for reply in connection.pipeline(&meets)? {
            reply?;
        }
    }
    let ids = connections
        .iter_mut()
        .map(|c| Ok(c.call(&["CLUSTER", "MYID"])?.text().unwrap_or_default()))
        .collect::<Result<Vec<String>, Error>>()?;
    let all = nodes.len();
    progress("waiting for every node to know every other");
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
    progress("waiting for cluster_state:ok");
    for connection in &mut connections {
        wait_for("cluster_state:ok on every node", Duration::from_secs(40), || {
            let ok = connection.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:ok");
            let view = view(connection)?;
            let replicas_known = view.nodes.iter().filter(|n| n.is("slave")).count() == all - masters;
            Ok(ok && replicas_known && view.masters().count() == masters)
        })?;
    }
    for (connection, had) in connections.iter_mut().zip(&timeouts) {
        let Some([timeout, no_failover]) = had else { continue };
        connection.call(&["CONFIG", "SET", NODE_TIMEOUT, timeout])?;
        connection.call(&["CONFIG", "SET", NO_FAILOVER, no_failover])?;
    }
    Ok(())
}

/// Clusters of up to so many nodes are hurried: more of them, meeting all at once, may well be silent for longer.
const QUICK_NODES: usize = 12;
const NODE_TIMEOUT: &str = "cluster-node-timeout";
/// Its name in every version.
const NO_FAILOVER: &str = "cluster-slave-no-failover";

/// A node that has just met a majority says cluster_state:fail for cluster-node-timeout, at most 5 s, more (measured: 5 to 8 s
/// until all six of Valkey 9.1 say ok, 2.1 s with 1 s). While they meet it is 1 s, and nobody fails over for it; what each
/// had, the first thing and the second, is returned to be set again. A node without CONFIG takes its time.
fn hurry(connections: &mut [Connection]) -> Vec<Option<[String; 2]>> {
    let swap = |connection: &mut Connection, name: &str, value: &str| {
        let before = connection.call(&["CONFIG", "GET", name]).ok()?.get(name)?.text()?;
        connection.call(&["CONFIG", "SET", name, value]).ok()?;
        Some(before)
    };
    let both = |connection: &mut Connection| {
        let no_failover = swap(connection, NO_FAILOVER, "yes")?;
        Some([swap(connection, NODE_TIMEOUT, "1000")?, no_failover])
    };
    connections.iter_mut().map(both).collect()
}

/// What one node says of its cluster.
pub fn view(connection: &mut Connection) -> Result<ClusterView, Error> {
    let text = connection.call(&["CLUSTER", "NODES"]).map(|v: Value| v.text().unwrap_or_default())?;
    ClusterView::parse(&text).map_err(|e| Error::new(e.to_string()))
}
