//! Where commands go: the watcher's topology with every node as a small number that never changes, made once for all
//! threads.

use std::net::IpAddr;
use std::sync::Arc;

use unslow_client::{Endpoint, Target, address_target};
use unslow_nodes::{NodeTable, Unowned};
use unslow_reactor::{Peer, Tls, peer_of};
use unslow_topology::{DeploymentKind, Health, Node, Role, Topology};

use crate::config::{Config, Read};
use crate::own::Own;

/// What is kept of a node, beside its names.
#[derive(Clone)]
pub struct Server {
    /// Where to dial; `None` while its name does not resolve.
    pub peer: Option<Peer>,
    /// By a name, not an address.
    pub named: bool,
    pub tls: Option<Tls>,
    pub role: Role,
    pub health: Health,
    /// It owns slots.
    pub owns: bool,
    pub zone: Option<String>,
    pub rtt_us: Option<u64>,
    /// It answers, holds its master's data, and is not behind by more than is allowed.
    pub follows_closely: bool,
    /// How many connections clients have here alone: one count for all maps and threads.
    pub own: Arc<Own>,
}

/// Nodes and the owner of each slot, as of one version of the topology.
#[derive(Clone)]
pub struct Map {
    pub version: u64,
    pub kind: DeploymentKind,
    pub servers: NodeTable<Server>,
    /// For each node the ones that may answer reads in its place, the best first; empty for "itself".
    pub readers: Vec<Vec<u16>>,
    pub topology: Arc<Topology>,
}

impl Map {
    /// The next map. Numbers of `last` are kept.
    pub fn next(
        last: Option<&Map>,
        topology: Arc<Topology>,
        config: &Config,
        target: &Target,
        tls: Option<&Arc<rustls::ClientConfig>>,
        server_name: Option<&str>,
    ) -> Map {
        let mut servers = last.map(|m| m.servers.clone()).unwrap_or_default();
        for server in servers.iter_mut() {
            (server.owns, server.health, server.role) = (false, Health::Failed, Role::Unknown);
        }
        let new = |node: &Node| Server::new(&node.address, target, tls, server_name);
        let numbers = servers.apply(&topology, Unowned::Nobody, new);
        for (node, &number) in topology.nodes.iter().zip(&numbers) {
            let server = &mut servers[number];
            // A name may stand for another address by now, if nobody answers at the old one.
            if server.peer.is_none() || node.health != Health::Up && server.named {
                server.peer = peer(&node.address, target);
            }
            server.role = node.role;
            server.health = node.health;
            server.owns = node.owns_slots();
            server.zone = config.zones.get(&node.address).cloned().or_else(|| node.zone.clone());
            server.rtt_us = node.rtt_us;
            server.follows_closely = node.health == Health::Up
                && node.in_sync
                && config.max_lag_bytes.is_none_or(|most| node.lag_bytes.is_some_and(|lag| lag <= most));
        }
        let mut readers = vec![Vec::new(); servers.len()];
        if config.read != Read::Primary {
            for &master in servers.masters() {
                readers[usize::from(master)] = readers_of(master, &servers, config);
            }
        }
        let version = last.map_or(1, |m| m.version + 1);
        Map { version, kind: topology.kind, servers, readers, topology }
    }

    /// Whether routing by slot is needed at all.
    pub fn is_cluster(&self) -> bool {
        self.kind == DeploymentKind::Cluster
    }
}

/// Who may answer reads in a master's place, the best first.
fn readers_of(master: u16, servers: &NodeTable<Server>, config: &Config) -> Vec<u16> {
    let replicas = servers.replicas(master).iter().copied();
    let mut all: Vec<u16> = replicas.filter(|n| servers[*n].follows_closely).collect();
    if config.read != Read::Replica && servers[master].health == Health::Up {
        all.push(master);
    }
    let rtt = |n: &u16| servers[*n].rtt_us.unwrap_or(u64::MAX);
    match config.read {
        Read::Primary | Read::Replica => {}
        Read::Nearest => {
            // As near as makes no difference: within a tenth of a millisecond, or twice as far.
            all.sort_by_key(rtt);
            let best = all.first().map_or(0, rtt);
            all.retain(|n| rtt(n) <= best.saturating_mul(2).max(best.saturating_add(100)));
        }
        Read::Zone => {
            let here = |n: &&u16| servers[**n].zone.as_deref() == config.zone.as_deref();
            if config.zone.is_some() && all.iter().any(|n| here(&n)) {
                all.retain(|n| here(&n));
            } else {
                all.sort_by_key(rtt);
                all.truncate(1);
            }
        }
    }
    all
}

impl Server {
    /// A node nobody has described yet.
    fn new(
        address: &str,
        target: &Target,
        tls: Option<&Arc<rustls::ClientConfig>>,
        server_name: Option<&str>,
    ) -> Server {
        let name = server_name.map(str::to_string).or_else(|| host(address));
        let tls = tls.and_then(|config| Some(Tls { config: config.clone(), name: name?.try_into().ok()? }));
        // A name is resolved by the thread that makes maps, never by one that serves.
        let named = host(address).is_some_and(|h| h.parse::<IpAddr>().is_err());
        Server {
            peer: if named { None } else { peer(address, target) },
            named,
            tls,
            role: Role::Unknown,
            health: Health::Up,
            owns: false,
            zone: None,
            rtt_us: None,
            follows_closely: false,
            own: Arc::default(),
        }
    }
}

fn host(address: &str) -> Option<String> {
    match Endpoint::parse(address)? {
        Endpoint::Tcp(host, _) => Some(host),
        Endpoint::Unix(_) => None,
    }
}

/// Names are looked up here, on the thread that makes maps, never on one that serves.
fn peer(address: &str, target: &Target) -> Option<Peer> {
    match address.strip_prefix("unix:") {
        Some(path) => Some(Peer::Unix(path.into())),
        None => peer_of(&address_target(target, address)?),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use unslow_topology::{SLOTS, SlotSet};

    use super::*;

    /// A master with these slots, or a replica of the one at `master`. Its id is its port, padded with zeros.
    pub(crate) fn node(address: &str, master: Option<&str>, slots: &[(u16, u16)]) -> Node {
        let id = |address: &str| format!("{:0>40}", address.rsplit_once(':').map_or(address, |(_, port)| port));
        let slots = SlotSet::from_ranges(slots.iter().copied());
        match master {
            Some(master) => Node { id: id(address), slots, ..Node::replica(address, id(master)) },
            None => Node { id: id(address), ..Node::master(address, slots) },
        }
    }

    pub(crate) fn topology(nodes: Vec<Node>) -> Arc<Topology> {
        Arc::new(Topology::new(DeploymentKind::Cluster, nodes))
    }

    fn next(last: Option<&Map>, nodes: Vec<Node>, config: &Config) -> Map {
        let target = Target::parse("127.0.0.1:1").expect("an address");
        Map::next(last, topology(nodes), config, &target, None, None)
    }

    const ALL: &[(u16, u16)] = &[(0, SLOTS - 1)];

    #[test]
    fn a_removed_node_keeps_its_number_and_is_failed() {
        let config = Config::default();
        let first = next(None, vec![node("10.0.0.5:5", None, ALL)], &config);
        let second = next(Some(&first), vec![node("10.0.0.1:1", None, ALL)], &config);
        let gone = &second.servers[0];
        assert_eq!((gone.health, gone.owns, gone.role), (Health::Failed, false, Role::Unknown));
        assert_eq!((second.version, second.servers.address(1), second.servers.owner(5)), (2, "10.0.0.1:1", 1));
        assert_eq!(second.servers[1].peer, Some(Peer::Tcp("10.0.0.1:1".parse().expect("an address"))));
    }

    #[test]
    fn reads_go_only_to_replicas_that_are_up_in_sync_and_near_enough() {
        let master = "10.0.0.1:1";
        let replica = |address: &str, rtt_us: u64, zone: &str, lag: Option<u64>| Node {
            rtt_us: Some(rtt_us),
            zone: Some(zone.into()),
            lag_bytes: lag,
            ..node(address, Some(master), &[])
        };
        let nodes = vec![
            Node { rtt_us: Some(1000), zone: Some("a".into()), ..node(master, None, ALL) },
            replica("10.0.0.2:2", 100, "b", Some(10)),
            replica("10.0.0.3:3", 190, "a", Some(5000)),
            Node { in_sync: false, ..replica("10.0.0.4:4", 50, "a", Some(0)) },
            Node { health: Health::Suspected, ..replica("10.0.0.5:5", 50, "a", Some(0)) },
            replica("10.0.0.6:6", 201, "b", None),
        ];
        let config = |read: Read, zone: &str, lag: Option<u64>| Config {
            read,
            zone: Some(zone.into()),
            max_lag_bytes: lag,
            ..Config::default()
        };
        for (config, expected) in [
            (config(Read::Primary, "a", None), &[][..]),
            (config(Read::Replica, "a", None), &[1, 2, 5][..]),
            (config(Read::Replica, "a", Some(10)), &[1][..]),
            (config(Read::Replica, "a", Some(9)), &[][..]),
            (config(Read::Nearest, "a", None), &[1, 2][..]),
            (config(Read::Zone, "a", None), &[2, 0][..]),
            (config(Read::Zone, "elsewhere", None), &[1][..]),
            (
                Config {
                    zones: [("10.0.0.6:6".to_string(), "elsewhere".to_string())].into(),
                    ..config(Read::Zone, "elsewhere", None)
                },
                &[5][..],
            ),
        ] {
            let map = next(None, nodes.clone(), &config);
            assert_eq!(map.readers[0], expected, "{:?} {:?} {:?}", config.read, config.zone, config.max_lag_bytes);
        }
        // A suspected master takes no reads.
        let mut ill = nodes;
        ill[0].health = Health::Suspected;
        assert_eq!(next(None, ill, &config(Read::Zone, "a", None)).readers[0], [2]);
    }
}
