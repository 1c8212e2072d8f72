//! Servers that belong together: master and replicas, Sentinels, clusters. Ready means ready: every link up, every
//! slot covered, every Sentinel aware of the others.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Value};
use unslow_topology::{ClusterView, Info, SLOTS};

use crate::error::{Error, ErrorKind};
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

impl Plan {
    /// What a shape is on loopback addresses; `spec` holds for every data node.
    fn of(engine: &Engine, shape: &Shape, spec: &ServerSpec) -> Plan {
        let member = |spec: ServerSpec| Member { engine: engine.clone(), spec };
        let alone = |replicas: usize| -> Vec<Member> {
            let replica = ServerSpec { port: None, ..spec.clone() };
            std::iter::once(spec.clone()).chain((0..replicas).map(|_| replica.clone())).map(member).collect()
        };
        match shape {
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
        }
    }

    /// How node `i` is started; `first` is where the first one runs.
    fn spec(&self, i: usize, first: Option<(&str, u16)>) -> ServerSpec {
        let mut spec = self.nodes[i].spec.clone();
        if self.cluster {
            let own =
                [("cluster-enabled", "yes"), ("cluster-config-file", "nodes.conf"), ("cluster-announce-ip", &spec.ip)];
            let own: Vec<(String, String)> = own.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
            spec.settings.splice(0..0, own);
        } else if self.nodes.len() > 1 && !spec.ip.is_empty() {
            // Where several addresses are of one machine the master would see another of them. The first one too: it
            // follows another after a failover.
            spec.settings.insert(0, ("replica-announce-ip".into(), spec.ip.clone()));
        }
        if !self.cluster
            && i >= self.masters
            && let Some((ip, port)) = first
        {
            spec.settings.push(("replicaof".into(), format!("{ip} {port}")));
        }
        // The first one too: it follows another after a failover.
        spec.settings.extend(password(&spec).map(|p| ("masterauth".to_string(), p)));
        spec
    }

    /// How a Sentinel is started that watches the master at this address.
    fn watcher(&self, spec: &ServerSpec, (ip, port): (&str, u16)) -> ServerSpec {
        let monitor = format!("mymaster {ip} {port} {}", self.quorum);
        let own = [
            ("sentinel monitor".to_string(), monitor),
            ("sentinel down-after-milliseconds".into(), "mymaster 5000".into()),
        ];
        let mut spec = ServerSpec { sentinel: true, ..spec.clone() };
        spec.settings.splice(0..0, own);
        spec.settings.extend(password(&self.nodes[0].spec).map(|p| ("sentinel auth-pass mymaster".to_string(), p)));
        spec
    }
}

/// The password that servers with these settings want: they use the last of several.
fn password(spec: &ServerSpec) -> Option<String> {
    spec.settings.iter().rfind(|(k, _)| k == "requirepass").map(|(_, v)| v.clone())
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
        let plan = Plan::of(engine, shape, spec);
        let mut tries = 0;
        loop {
            tries += 1;
            match Deployment::build(&plan, &mut |_| {}) {
                // Somebody else was faster; ports of our own choosing are chosen again.
                Err(e) if tries < 3 && spec.port.is_none() && e.kind == ErrorKind::PortTaken => {}
                other => return other,
            }
        }
    }

    /// Starts what the plan says and waits until it is ready; `progress` hears what is waited for.
    pub fn build(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Deployment, Error> {
        progress(&format!("starting {} servers", plan.nodes.len() + plan.sentinels.len()));
        let mut nodes: Vec<Arc<Server>> = Vec::new();
        for (i, member) in plan.nodes.iter().enumerate() {
            let spec = plan.spec(i, nodes.first().map(|n| (n.ip.as_str(), n.port)));
            nodes.push(Arc::new(Server::launch(&member.engine, &spec)?));
        }
        for node in &nodes {
            node.wait_ready()?;
        }
        if plan.cluster {
            join(&nodes, plan.masters, progress)?;
        }
        if nodes.len() > plan.masters {
            progress("waiting for the replicas to connect to their masters");
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
        for member in &plan.sentinels {
            let spec = plan.watcher(&member.spec, (&master.ip, master.port));
            self.sentinels.push(Arc::new(Server::launch(&member.engine, &spec)?));
        }
        for sentinel in &self.sentinels {
            sentinel.wait_ready()?;
        }
        let replicas = self.nodes.len() as i64 - 1;
        let others = self.sentinels.len() as i64 - 1;
        for sentinel in &self.sentinels {
            let mut connection = patient(sentinel)?;
            wait_for("every Sentinel to know the replicas and the others", READY, || {
                let masters = connection.call(&["SENTINEL", "MASTERS"])?;
                let number = |field: &str| masters.items().first()?.get(field)?.integer();
                Ok(number("num-slaves") == Some(replicas) && number("num-other-sentinels") == Some(others))
            })?;
        }
        Ok(())
    }
}

/// How long servers may take to find each other. A second on a quiet machine; on one whose disk is busy each of them
/// stands still for as long as it writes nodes.conf.
const READY: Duration = Duration::from_secs(120);

fn patient(server: &Server) -> Result<Connection, Error> {
    let (connect_timeout, command_timeout) = (Duration::from_secs(30), Duration::from_secs(60));
    Ok(server.connect_with(&Options { connect_timeout, command_timeout, ..Options::default() })?)
}

/// Waits for a condition; the error names it when it never comes.
pub fn wait_for(what: &str, patience: Duration, mut met: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    let deadline = Instant::now() + patience;
    loop {
        if met()? {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(Error::of(ErrorKind::TooLate, format!("waited {} s for {what}", patience.as_secs())));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How often a migration the servers gave up is begun again.
const MIGRATIONS: usize = 10;

/// Moves slots at once (CLUSTER MIGRATESLOTS, Valkey 9.0) from the master at `source` to the master with this id, and
/// waits until they are there. Servers give migrations up (a failover, a fork that fails, a write in the wrong moment:
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
        let Some((state, words)) = migration(&migrations, &range, destination) else { return Ok(false) };
        told = words;
        if state == "failed" || state == "cancelled" {
            if begun == MIGRATIONS {
                return Err(Error::new(format!("the servers gave up the migration of slots {range} {begun} times")));
            }
            // The other side takes a moment to forget it, and slots may yet arrive: looked at before the next one.
            std::thread::sleep(Duration::from_millis(100));
            under_way = false;
        }
        Ok(false)
    })
    .map_err(|e| match told.is_empty() {
        true => e,
        false => Error::new(format!("{e}; CLUSTER GETSLOTMIGRATIONS reports: {told}")),
    })
}

/// The state of the newest migration of these slots to that node, and the same with what is said of it.
fn migration(migrations: &Value, range: &str, destination: &str) -> Option<(String, String)> {
    let text = |job: &Value, field: &str| job.get(field).and_then(Value::text).unwrap_or_default();
    let ours = |job: &&Value| text(job, "slot_ranges") == range && text(job, "target_node") == destination;
    // The newest comes first.
    let job = migrations.items().iter().find(ours)?;
    let state = text(job, "state");
    let words = format!("{state} {}", text(job, "message")).trim_end().to_string();
    Some((state, words))
}

/// A section of INFO.
pub fn info(connection: &mut Connection, section: &str) -> Result<Info, Error> {
    Ok(Info::parse(&connection.call(&["INFO", section])?.text().unwrap_or_default()))
}

fn wait_links(replicas: &[Arc<Server>]) -> Result<(), Error> {
    for replica in replicas {
        let mut connection = patient(replica)?;
        wait_for("the replica's link to its master", READY, || {
            Ok(info(&mut connection, "replication")?.get("master_link_status") == Some("up"))
        })?;
    }
    Ok(())
}

/// The slots of master `m` of so many.
fn share(m: usize, masters: usize) -> impl Iterator<Item = u16> {
    (0..SLOTS).filter(move |s| usize::from(*s) * masters / usize::from(SLOTS) == m)
}

/// A server drops a handshake that is not over within its node timeout, as on a machine that is busy, and says nothing:
/// it is to be made again.
const MEET_AGAIN: Duration = Duration::from_secs(2);

/// Whether a view does not have the node at an address, not even in a handshake.
fn is_unknown(view: &ClusterView, address: &str) -> bool {
    !view.nodes.iter().any(|known| known.address == address)
}

/// Makes a cluster of servers that run.
fn join(nodes: &[Arc<Server>], masters: usize, progress: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let mut connections = nodes.iter().map(|n| patient(n)).collect::<Result<Vec<_>, _>>()?;
    let timeouts = if nodes.len() <= QUICK_NODES { hurry(&mut connections) } else { Vec::new() };
    for (m, connection) in connections.iter_mut().take(masters).enumerate() {
        let mut command = vec!["CLUSTER".to_string(), "ADDSLOTS".to_string()];
        command.extend(share(m, masters).map(|s| s.to_string()));
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
        let mut met = Instant::now();
        wait_for("every node to know every other", READY, || {
            let view = view(connection)?;
            if met.elapsed() > MEET_AGAIN {
                met = Instant::now();
                for node in nodes.iter().filter(|node| is_unknown(&view, &node.address())) {
                    connection.call(&["CLUSTER", "MEET", &node.ip, &node.port.to_string()])?;
                }
            }
            Ok(view.nodes.len() == all
                && view.nodes.iter().all(|n| !n.is("handshake") && (n.connected || n.is("myself"))))
        })?;
    }
    for (i, connection) in connections.iter_mut().enumerate().skip(masters) {
        connection.call(&["CLUSTER", "REPLICATE", &ids[i % masters]])?;
    }
    progress("waiting for cluster_state:ok");
    for connection in &mut connections {
        wait_for("cluster_state:ok on every node", READY, || {
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

/// A node that has just met a majority says cluster_state:fail for cluster-node-timeout, at most 5 s, more (measured: 5
/// to 8 s until all six of Valkey 9.1 say ok, 2.1 s with 1 s). While they meet it is 1 s, and nobody fails over for it;
/// what each had, the first thing and the second, is returned to be set again. A node without CONFIG takes its time.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn engine() -> Engine {
        let (name, version) = ("x".to_string(), "Valkey 9.1.2".to_string());
        Engine { name, server: "/nowhere".into(), cli: None, libraries: None, version }
    }

    fn settings(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn a_node_whose_handshake_was_dropped_is_met_again_and_one_in_a_handshake_is_not() {
        let line = |n: u16, flags: &str| {
            format!("{n:040x} 127.0.0.1:{}@{} {flags} - 0 0 {n} connected\n", 7000 + n, 17_000 + n)
        };
        let text = line(1, "myself,master") + &line(2, "handshake");
        let view = ClusterView::parse(&text).expect("a view");
        let unknown = |n: u16| is_unknown(&view, &format!("127.0.0.1:{}", 7000 + n));
        assert_eq!([1, 2, 3].map(unknown), [false, false, true]);
    }

    #[test]
    fn masters_share_all_slots_evenly_and_in_order() {
        for masters in [1, 2, 3, 5, 7, 100, 16_384] {
            let shares: Vec<Vec<u16>> = match masters {
                16_384 => [0, 1, 16_383].map(|m| share(m, masters).collect::<Vec<u16>>()).to_vec(), // all take seconds
                _ => (0..masters).map(|m| share(m, masters).collect()).collect(),
            };
            let (least, most) = (shares.iter().map(Vec::len).min(), shares.iter().map(Vec::len).max());
            assert!(least >= Some(1) && most <= least.map(|n| n + 1), "{masters}: {least:?} to {most:?}");
            if masters < 16_384 {
                assert!(shares.concat().into_iter().eq(0..SLOTS), "{masters}");
            }
        }
        let ends = |m: usize| share(m, 3).fold((u16::MAX, 0), |(a, b), s| (a.min(s), b.max(s)));
        assert_eq!([ends(0), ends(1), ends(2)], [(0, 5461), (5462, 10_922), (10_923, 16_383)]);
    }

    #[test]
    fn members_of_a_shard_are_on_different_hosts_if_there_are_enough() {
        for hosts in 1..=5usize {
            for masters in 1..=7usize {
                for replicas in 0..=3usize {
                    let names: Vec<String> = (1..=hosts).map(|n| format!("127.0.0.{n}")).collect();
                    let shape = Shape::Cluster { masters, replicas, hosts: names };
                    let plan = Plan::of(&engine(), &shape, &ServerSpec::default());
                    assert_eq!((plan.nodes.len(), plan.masters), (masters * (1 + replicas), masters));
                    let ip = |i: usize| plan.nodes[i].spec.ip.as_str();
                    for m in 0..masters {
                        let shard: Vec<&str> = (m..plan.nodes.len()).step_by(masters).map(ip).collect();
                        let mut apart = shard.clone();
                        apart.sort_unstable();
                        apart.dedup();
                        assert_eq!(apart.len(), shard.len().min(hosts), "{hosts} hosts, shard {m}: {shard:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_requested_port_goes_to_the_first_server_only() {
        let spec = ServerSpec { port: Some(7000), ip: "127.0.0.9".into(), ..ServerSpec::default() };
        for (shape, ports, sentinels) in [
            (Shape::Standalone, vec![Some(7000)], 0),
            (Shape::MasterReplica { replicas: 2 }, vec![Some(7000), None, None], 0),
            (Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }, vec![Some(7000), None], 3),
            (Shape::Cluster { masters: 2, replicas: 0, hosts: Vec::new() }, vec![None, None], 0),
        ] {
            let plan = Plan::of(&engine(), &shape, &spec);
            assert_eq!(plan.nodes.iter().map(|n| n.spec.port).collect::<Vec<_>>(), ports, "{shape:?}");
            assert_eq!(
                (plan.sentinels.len(), plan.masters),
                (sentinels, if plan.cluster { 2 } else { 1 }),
                "{shape:?}"
            );
            // The spec is for data nodes only.
            assert!(plan.sentinels.iter().all(|s| s.spec.port.is_none() && s.spec.ip.is_empty()));
        }
    }

    #[test]
    fn node_settings_follow_the_plan_and_explicit_ones_win() {
        let own = [("requirepass", "old"), ("requirepass", "new"), ("cluster-enabled", "no")];
        let spec = ServerSpec { settings: settings(&own), ..ServerSpec::default() };
        let plan = Plan::of(&engine(), &Shape::MasterReplica { replicas: 1 }, &spec);
        let first = Some(("10.0.0.1", 7000));
        let masterauth = ("masterauth", "new");
        assert_eq!(plan.spec(0, None).settings, settings(&[&own[..], &[masterauth]].concat()));
        let follows = ("replicaof", "10.0.0.1 7000");
        assert_eq!(plan.spec(1, first).settings, settings(&[&own[..], &[follows, masterauth]].concat()));
        // Bound to an address of its own, it says so to its master.
        let bound = ServerSpec { ip: "127.0.0.2".into(), ..spec.clone() };
        let plan = Plan::of(&engine(), &Shape::MasterReplica { replicas: 1 }, &bound);
        let announced = ("replica-announce-ip", "127.0.0.2");
        assert_eq!(plan.spec(1, first).settings, settings(&[&[announced], &own[..], &[follows, masterauth]].concat()));

        let shape = Shape::Cluster { masters: 1, replicas: 1, hosts: vec!["127.0.0.1".into(), "127.0.0.2".into()] };
        let plan = Plan::of(&engine(), &shape, &spec);
        // Servers use the last of several lines of the same name.
        let before =
            [("cluster-enabled", "yes"), ("cluster-config-file", "nodes.conf"), ("cluster-announce-ip", "127.0.0.2")];
        assert_eq!(plan.spec(1, first).settings, settings(&[&before[..], &own[..], &[masterauth]].concat()));
    }

    #[test]
    fn sentinels_are_given_the_password_that_the_servers_want() {
        for (own, auth) in
            [(&[("requirepass", "old"), ("requirepass", "new")][..], Some("mymaster new")), (&[][..], None)]
        {
            let spec = ServerSpec { settings: settings(own), ..ServerSpec::default() };
            let shape = Shape::Sentinel { replicas: 1, sentinels: 1, quorum: 1 };
            let plan = Plan::of(&engine(), &shape, &spec);
            let watcher = plan.watcher(&plan.sentinels[0].spec, ("10.0.0.1", 7000));
            let told = watcher.settings.iter().find(|(k, _)| k == "sentinel auth-pass mymaster");
            let told = told.map(|(_, password)| format!("mymaster {password}"));
            assert_eq!((watcher.sentinel, told.as_deref()), (true, auth));
            assert!(
                watcher.settings.contains(&("sentinel monitor".to_string(), "mymaster 10.0.0.1 7000 1".to_string()))
            );
        }
    }

    #[test]
    fn the_newest_matching_migration_counts() {
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        let job = |slots: &str, to: &str, state: &str, message: &str| {
            let pairs =
                [("name", "j"), ("slot_ranges", slots), ("target_node", to), ("state", state), ("message", message)];
            Value::Array(pairs.iter().flat_map(|(key, value)| [text(key), text(value)]).collect())
        };
        let all = Value::Array(vec![
            job("0-5", "b", "success", ""),
            job("0-9", "c", "success", ""),
            job("0-9", "b", "failed", "a fork failed"),
            job("0-9", "b", "cancelled", ""),
        ]);
        let said = |state: &str, words: &str| Some((state.to_string(), words.to_string()));
        assert_eq!(migration(&all, "0-9", "b"), said("failed", "failed a fork failed"));
        assert_eq!(migration(&all, "0-9", "c"), said("success", "success"));
        assert_eq!(migration(&all, "0-7", "b"), None);
        assert_eq!(migration(&Value::Array(Vec::new()), "0-9", "b"), None);
    }

    #[test]
    fn a_condition_is_checked_at_least_once_and_an_error_ends_the_wait() {
        assert!(wait_for("it", Duration::ZERO, || Ok(true)).is_ok());
        let why = wait_for("the moon", Duration::ZERO, || Ok(false)).unwrap_err();
        assert_eq!(why.to_string(), "waited 0 s for the moon");
        let mut looked = 0;
        let why = wait_for("it", Duration::from_secs(3600), || {
            looked += 1;
            if looked == 2 { Err(Error::new("gone")) } else { Ok(false) }
        });
        assert_eq!((why.unwrap_err().to_string().as_str(), looked), ("gone", 2));
    }
}
