//! Where requests go: the deployment as the generator's threads see it, and the scout that looks again when told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use unslow_client::{Connection, Deployment, Options, Target, address_target, discover_as_client};
use unslow_reactor::Waker;
use unslow_topology::{ClusterNode, ClusterView, DeploymentKind, Node, Role, SLOTS, SlotSet, Topology};

/// From what discovery found of a group without slots.
fn of_group(found: &Deployment) -> Option<Topology> {
    let dial = |m: &unslow_topology::Member| found.target_of(m).address();
    let master = match found.kind {
        // The server asked for, whatever it is: somebody may want to measure a replica.
        DeploymentKind::Standalone | DeploymentKind::MasterReplica => {
            found.members.iter().find(|m| m.role == Role::Master).or(found.members.first())?
        }
        _ => found.members.iter().find(|m| m.role == Role::Master)?,
    };
    let replicas = found.members.iter().filter(|m| m.role == Role::Replica && m.service == master.service).map(dial);
    Some(group(found.kind, dial(master), replicas.collect()))
}

/// A master with all slots, and its replicas.
pub fn group(kind: DeploymentKind, master: String, replicas: Vec<String>) -> Topology {
    let mut nodes: Vec<Node> = replicas.into_iter().map(|address| Node::replica(address, &master)).collect();
    nodes.push(Node::master(master, SlotSet::all()));
    Topology::new(kind, nodes)
}

/// Masters with slots, and replicas of theirs that neither the cluster nor the node that was asked takes for down.
fn of_cluster(view: &ClusterView, tls: bool) -> Topology {
    let mut topology = Topology::of_cluster(view, tls);
    let masters: Vec<String> = topology.masters().map(|m| m.id.clone()).collect();
    let down = |id: &str| view.by_id(id).is_some_and(ClusterNode::is_down);
    let reads = |n: &Node| masters.iter().any(|id| n.follows(id)) && !down(&n.id);
    topology.nodes.retain(|n| n.owns_slots() || reads(n));
    topology
}

/// What changed, as sentences for the time line.
fn differences(older: &Topology, newer: &Topology) -> Vec<String> {
    let owners = |topology: &Topology| -> Vec<String> {
        let name =
            |owner: Option<u16>| owner.map_or("nobody".into(), |n| topology.nodes[usize::from(n)].address.clone());
        topology.owners().into_iter().map(name).collect()
    };
    let (before, after) = (owners(older), owners(newer));
    let mut moved: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (a, b) in before.iter().zip(&after).filter(|(a, b)| a != b) {
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

/// The topology that all threads share, and the wish for a newer one.
pub struct Routes {
    version: AtomicU64,
    topology: Mutex<Arc<Topology>>,
    wanted: Mutex<bool>,
    bell: Condvar,
    ended: AtomicBool,
    wakers: Mutex<Vec<Waker>>,
}

impl Routes {
    /// Shares `topology`.
    pub fn new(topology: Topology) -> Routes {
        Routes {
            version: AtomicU64::new(1),
            topology: Mutex::new(Arc::new(topology)),
            wanted: Mutex::new(false),
            bell: Condvar::new(),
            ended: AtomicBool::new(false),
            wakers: Mutex::new(Vec::new()),
        }
    }

    /// Changes when there is a newer topology.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// The newest.
    pub fn get(&self) -> Arc<Topology> {
        self.topology.lock().expect("no thread panicked").clone()
    }

    /// Something does not fit the topology: look again soon.
    pub fn want(&self) {
        let mut wanted = self.wanted.lock().expect("no thread panicked");
        if !*wanted {
            *wanted = true;
            self.bell.notify_all();
        }
    }

    /// A loop to be woken by a newer topology.
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
                && newer.digest() != old.digest()
            {
                tell(differences(&old, &newer));
                *self.topology.lock().expect("no thread panicked") = Arc::new(newer);
                self.version.fetch_add(1, Ordering::AcqRel);
                self.wake_all();
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The deployment behind `target`, for a generator.
pub fn look(target: &Target, options: &Options) -> Result<Topology, unslow_client::Error> {
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
            let topology = of_cluster(&view, target.tls);
            if topology.masters().next().is_none() {
                return Err(unslow_client::Error::new(
                    unslow_client::ErrorKind::Reply,
                    format!("{}: no slot of this cluster has an owner; see `CLUSTER NODES`", target.address()),
                ));
            }
            Ok(topology)
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
            let topology = of_group(&found).ok_or_else(nobody)?;
            let named = target.endpoints[0].to_string();
            let by_sentinel = target.service.is_some()
                || found.members.iter().any(|m| m.role == Role::Sentinel && m.address == named);
            if by_sentinel {
                return Ok(topology);
            }
            // Measured is what was named, be it a replica; and who was only heard of is not followed.
            if topology.at(&named).is_some_and(|n| n.role == Role::Replica) {
                return Ok(group(DeploymentKind::Standalone, named, Vec::new()));
            }
            let alone = topology.nodes.len() == 1;
            let kind = if alone { DeploymentKind::Standalone } else { DeploymentKind::MasterReplica };
            Ok(Topology { kind, ..topology })
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
fn look_again(old: &Topology, target: &Target, options: &Options, ended: &AtomicBool) -> Option<Topology> {
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
    let mut order: Vec<&Node> = old.nodes.iter().collect();
    order.sort_by_key(|n| n.role == Role::Master);
    for some in order.chunks(8) {
        if views.len() >= ENOUGH || ended.load(Ordering::Acquire) {
            break;
        }
        let asked = std::thread::scope(|scope| {
            let ask = |node: &Node| {
                let target = address_target(&plain, &node.address)?;
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
    let topology = of_cluster(&ClusterView::merge(&views), target.tls);
    let known = topology.masters().next().is_some();
    known.then_some(topology)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_are_down_or_without_an_address_and_masters_without_slots_are_left_out() {
        let id = |c: &str| c.repeat(40);
        let row = |c: &str, address: &str, flags: &str, master: &str, slots: &str| {
            let master = if master == "-" { "-".to_string() } else { id(master) };
            format!("{} {address} {flags} {master} 0 0 1 connected {slots}\n", id(c))
        };
        let text = row("a", ":7001@17001", "myself,master", "-", "0-100")
            + &row("b", "::1:7002@17002,b.example", "master", "-", "101-16383")
            + &row("c", "10.0.0.3:7003@17003", "slave", "a", "")
            + &row("d", "10.0.0.4:7004@17004", "slave,fail?", "a", "")
            + &row("e", ":0@0", "slave,noaddr", "b", "")
            + &row("f", "10.0.0.6:7006@17006", "master", "-", "")
            + &row("9", "10.0.0.7:7007@17007", "slave", "f", "");
        let mut view = ClusterView::parse(&text).unwrap();
        view.place_myself("10.0.0.1:9");
        let topology = of_cluster(&view, false);
        let nodes: Vec<_> = topology.nodes.iter().map(|n| (n.address.as_str(), n.role)).collect();
        let expected = [("10.0.0.1:9", Role::Master), ("10.0.0.3:7003", Role::Replica), ("::1:7002", Role::Master)];
        assert_eq!(nodes, expected);
        assert_eq!((topology.owners()[100], topology.owners()[101]), (Some(0), Some(2)));
        // Certificates are made for names.
        assert!(of_cluster(&view, true).at("b.example:7002").is_some());
    }

    #[test]
    fn a_failover_and_moved_slots_are_told_by_the_owners_addresses() {
        let sentinel = |master: &str, replica: &str| {
            group(DeploymentKind::Sentinel, master.to_string(), vec![replica.to_string()])
        };
        let (before, after) = (sentinel("a:1", "b:1"), sentinel("b:1", "a:1"));
        assert_eq!(differences(&before, &after), ["b:1 took over from a:1"]);
        let (mut two, mut later) = (after.clone(), after);
        two.nodes[0] = Node { role: Role::Master, slots: SlotSet::from_ranges([(0, 9)]), ..two.nodes[0].clone() };
        two.nodes[1].slots = SlotSet::from_ranges([(10, 16383)]);
        later.nodes[0] = Node { slots: SlotSet::from_ranges([(0, 8)]), ..two.nodes[0].clone() };
        later.nodes[1].slots = SlotSet::from_ranges([(10, 16383)]);
        assert_eq!(differences(&two, &later), ["a slot moved from a:1 to nobody"]);
        assert!(differences(&later, &later).is_empty());
    }
}
