//! Where requests go: the deployment as the generator's threads see it, and the scout that looks again when told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use unslow_client::{Connection, Deployment, Options, Target, address_target, discover_as_client};
use unslow_reactor::Waker;
use unslow_topology::{ClusterNode, ClusterView, DeploymentKind, Role, SLOTS, Topology};

/// No node owns it.
pub const NOBODY: u16 = u16::MAX;

/// Masters, replicas and who owns which slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    /// How the servers belong together.
    pub kind: DeploymentKind,
    /// Addresses to dial, masters first.
    pub nodes: Vec<String>,
    /// How many of them are masters.
    pub masters: usize,
    /// Replicas of each master, as indices into `nodes`.
    pub replicas: Vec<Vec<u16>>,
    /// Owner of each slot, as an index into `nodes`; all the same outside a cluster.
    pub slots: Vec<u16>,
}

impl Map {
    /// From what discovery found; `dial` gives the address to dial for a member.
    fn of_group(found: &Deployment) -> Option<Map> {
        let dial = |m: &unslow_topology::Member| found.target_of(m).address();
        let master = match found.kind {
            // The server asked for, whatever it is: somebody may want to measure a replica.
            DeploymentKind::Standalone | DeploymentKind::MasterReplica => {
                found.members.iter().find(|m| m.role == Role::Master).or(found.members.first())?
            }
            _ => found.members.iter().find(|m| m.role == Role::Master)?,
        };
        let mut nodes = vec![dial(master)];
        let replicas: Vec<String> =
            found.members.iter().filter(|m| m.role == Role::Replica && m.service == master.service).map(dial).collect();
        let indices = (1..=replicas.len() as u16).collect();
        nodes.extend(replicas);
        Some(Map { kind: found.kind, nodes, masters: 1, replicas: vec![indices], slots: vec![0; usize::from(SLOTS)] })
    }

    /// Replicas that the cluster, or the node that was asked, takes for down are left out.
    fn of_cluster(view: &ClusterView, tls: bool) -> Map {
        let topology = Topology::of_cluster(view, tls);
        let masters: Vec<_> = topology.masters().collect();
        let mut map = Map {
            kind: DeploymentKind::Cluster,
            nodes: masters.iter().map(|m| m.address.clone()).collect(),
            masters: masters.len(),
            replicas: vec![Vec::new(); masters.len()],
            slots: vec![NOBODY; usize::from(SLOTS)],
        };
        for (i, master) in masters.iter().enumerate() {
            for &(a, b) in master.slots.ranges() {
                map.slots[usize::from(a)..=usize::from(b)].fill(i as u16);
            }
            let down = |id: &str| view.by_id(id).is_some_and(ClusterNode::is_down);
            for replica in topology.replicas_of(&master.id).filter(|r| !down(&r.id)) {
                map.replicas[i].push(map.nodes.len() as u16);
                map.nodes.push(replica.address.clone());
            }
        }
        map
    }

    /// What changed, as sentences for the time line.
    pub fn differences(&self, newer: &Map) -> Vec<String> {
        let mut moved: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        let owner = |map: &Map, slot: usize| -> String {
            match map.slots[slot] {
                NOBODY => "nobody".to_string(),
                i => map.nodes[usize::from(i)].clone(),
            }
        };
        let owners: Vec<(String, String)> =
            (0..usize::from(SLOTS)).map(|s| (owner(self, s), owner(newer, s))).collect();
        for (a, b) in owners.iter().filter(|(a, b)| a != b) {
            *moved.entry((a, b)).or_insert(0) += 1;
        }
        moved
            .into_iter()
            .map(|((a, b), n)| match n {
                n if n == usize::from(SLOTS) => format!("{b} took over from {a}"),
                1 => format!("a slot moved from {a} to {b}"),
                n => format!("{n} slots moved from {a} to {b}"),
            })
            .collect()
    }
}

/// The map that all threads share, and the wish for a newer one.
pub struct Routes {
    version: AtomicU64,
    map: Mutex<Arc<Map>>,
    wanted: Mutex<bool>,
    bell: Condvar,
    ended: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Routes {
    /// Shares `map`.
    pub fn new(map: Map) -> Routes {
        Routes {
            version: AtomicU64::new(1),
            map: Mutex::new(Arc::new(map)),
            wanted: Mutex::new(false),
            bell: Condvar::new(),
            ended: AtomicBool::new(false),
            wakers: Mutex::new(Vec::new()),
        }
    }

    /// Changes when there is a newer map.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The newest.
    pub fn get(&self) -> Arc<Map> {
        self.map.lock().expect("no thread panicked").clone()
    }

    /// Something does not fit the map: look again soon.
    pub fn want(&self) {
        let mut wanted = self.wanted.lock().expect("no thread panicked");
        if !*wanted {
            *wanted = true;
            self.bell.notify_all();
        }
    }

    /// A loop to be woken by a newer map.
    pub fn wakes(&self, waker: Waker) {
        self.wakers.lock().expect("no thread panicked").push(waker);
    }

    /// Wakes every loop.
    pub fn wake_all(&self) {
        self.wakers.lock().expect("no thread panicked").iter().for_each(Waker::wake);
    }

    /// Ends [`Routes::scout`].
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.bell.notify_all();
        self.wake_all();
    }

    /// Looks again whenever wanted, at most ten times a second, until ended. Every change is told to `tell`.
    pub fn scout(&self, target: &Target, options: &Options, tell: &dyn Fn(Vec<String>)) {
        const PAUSE: Duration = Duration::from_millis(100);
        // Nodes that hang are passed over quickly: another one knows.
        let brief = Duration::from_millis(500);
        let options = Options {
            connect_timeout: options.connect_timeout.min(brief),
            command_timeout: options.command_timeout.min(brief),
            ..options.clone()
        };
        loop {
            {
                let mut wanted = self.wanted.lock().expect("no thread panicked");
                while !*wanted && !self.ended.load(Ordering::Acquire) {
                    (wanted, _) = self.bell.wait_timeout(wanted, PAUSE).expect("no thread panicked");
                }
                *wanted = false;
            }
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let old = self.get();
            if let Some(newer) = look_again(&old, target, &options, &self.ended)
                && newer != *old
            {
                tell(old.differences(&newer));
                *self.map.lock().expect("no thread panicked") = Arc::new(newer);
                self.version.fetch_add(1, Ordering::AcqRel);
                self.wake_all();
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The deployment behind `target`, for a generator.
pub fn look(target: &Target, options: &Options) -> Result<Map, unslow_client::Error> {
    let found = discover_as_client(target, options)?;
    let nobody = || {
        unslow_client::Error::new(
            unslow_client::ErrorKind::Unreachable,
            format!("{}: no master is known there; is it down, or not elected yet?", target.address()),
        )
    };
    match found.kind {
        DeploymentKind::Cluster => {
            let mut connection = Connection::open(target, options)?;
            let view = view_of(&mut connection)?;
            let map = Map::of_cluster(&view, target.tls);
            if map.masters == 0 {
                return Err(unslow_client::Error::new(
                    unslow_client::ErrorKind::Reply,
                    format!("{}: no slot of this cluster has an owner; see `CLUSTER NODES`", target.address()),
                ));
            }
            Ok(map)
        }
        _ => {
            let services: std::collections::BTreeSet<_> =
                found.members.iter().filter(|m| m.role == Role::Master).filter_map(|m| m.service.clone()).collect();
            if found.kind == DeploymentKind::Sentinel && target.service.is_none() && services.len() > 1 {
                return Err(unslow_client::Error::new(
                    unslow_client::ErrorKind::BadUrl,
                    format!(
                        "the Sentinels know several groups ({}); name one: redis+sentinel://{}/NAME",
                        services.into_iter().collect::<Vec<_>>().join(", "),
                        target.address()
                    ),
                ));
            }
            let mut map = Map::of_group(&found).ok_or_else(nobody)?;
            let named = target.endpoints[0].to_string();
            let by_sentinel = target.service.is_some()
                || found.members.iter().any(|m| m.role == Role::Sentinel && m.address == named);
            if !by_sentinel {
                // Measured is what was named, be it a replica; and who was only heard of is not followed.
                map.kind = if map.nodes.len() > 1 { DeploymentKind::MasterReplica } else { DeploymentKind::Standalone };
                if map.nodes.iter().skip(1).any(|n| *n == named) {
                    (map.nodes, map.replicas) = (vec![named], vec![Vec::new()]);
                }
            }
            Ok(map)
        }
    }
}

/// What a node says of its cluster. A node that does not know its own address is the one that was asked.
fn view_of(connection: &mut Connection) -> Result<ClusterView, unslow_client::Error> {
    let text = connection.call(&["CLUSTER", "NODES"])?.text().unwrap_or_default();
    let mut view = ClusterView::parse(&text)
        .map_err(|e| unslow_client::Error::new(unslow_client::ErrorKind::NotRedis, e.to_string()))?;
    view.place_myself(connection.peer());
    Ok(view)
}

/// Asks who still answers. `None` when nobody does, or nobody knows a master.
fn look_again(old: &Map, target: &Target, options: &Options, ended: &AtomicBool) -> Option<Map> {
    if old.kind != DeploymentKind::Cluster {
        return match old.kind {
            DeploymentKind::Sentinel => look(target, options).ok(),
            _ => None,
        };
    }
    let plain = Target { service: None, ..target.clone() };
    // A minority's view is outvoted by its epochs: several nodes are asked and their views merged. Eight at a time,
    // since each that hangs takes its timeout; replicas first, since they are the ones to be promoted, and have the
    // least to do.
    const ENOUGH: usize = 3;
    let mut views = Vec::new();
    let mut order: Vec<&String> = old.nodes.iter().collect();
    order.rotate_left(old.masters);
    for some in order.chunks(8) {
        if views.len() >= ENOUGH || ended.load(Ordering::Acquire) {
            break;
        }
        let asked = std::thread::scope(|scope| {
            let ask = |node: &String| {
                let target = address_target(&plain, node)?;
                Connection::open(&target, options).and_then(|mut c| view_of(&mut c)).ok()
            };
            let threads: Vec<_> = some.iter().map(|node| scope.spawn(move || ask(node))).collect();
            threads.into_iter().filter_map(|t| t.join().ok().flatten()).collect::<Vec<_>>()
        });
        views.extend(asked);
    }
    if views.is_empty() {
        return look(target, options).ok();
    }
    let map = Map::of_cluster(&ClusterView::merge(&views), target.tls);
    (map.masters > 0).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_come_first_and_nodes_that_are_down_or_without_an_address_are_left_out() {
        let id = |c: &str| c.repeat(40);
        let row = |c: &str, address: &str, flags: &str, master: &str, slots: &str| {
            let master = if master == "-" { "-".to_string() } else { id(master) };
            format!("{} {address} {flags} {master} 0 0 1 connected {slots}\n", id(c))
        };
        let text = row("a", ":7001@17001", "myself,master", "-", "0-100")
            + &row("b", "::1:7002@17002,b.example", "master", "-", "101-16383")
            + &row("c", "10.0.0.3:7003@17003", "slave", "a", "")
            + &row("d", "10.0.0.4:7004@17004", "slave,fail?", "a", "")
            + &row("e", ":0@0", "slave,noaddr", "b", "");
        let mut view = ClusterView::parse(&text).unwrap();
        view.place_myself("10.0.0.1:9");
        let map = Map::of_cluster(&view, false);
        assert_eq!(map.nodes[..2], ["10.0.0.1:9", "::1:7002"]);
        assert_eq!((map.masters, &map.nodes[2..]), (2, &["10.0.0.3:7003".to_string()][..]));
        assert_eq!((map.replicas[0].as_slice(), map.replicas[1].as_slice()), (&[2][..], &[][..]));
        assert_eq!((map.slots[100], map.slots[101]), (0, 1));
        // Certificates are made for names.
        assert_eq!(Map::of_cluster(&view, true).nodes[1], "b.example:7002");
    }
}
