//! Where commands go: the watcher's topology with every node as a small number that never changes, made once for all
//! threads.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use unslow_client::{Endpoint, Target, address_target};
use unslow_nodes::Address;
use unslow_reactor::{Peer, Tls, peer_of};
use unslow_topology::{DeploymentKind, Health, Role, SLOTS, Topology};

use crate::config::{Config, Read};
use crate::own::Own;

/// No node.
pub const NOBODY: u16 = u16::MAX;

/// A node, by its number.
#[derive(Clone)]
pub struct Server {
    /// `host:port`.
    pub address: String,
    /// The address it has beside its name; redirects may use either.
    pub alias: Option<String>,
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
    pub lag_bytes: Option<u64>,
    /// How many connections clients have here alone: one count for all maps and threads.
    pub own: Arc<Own>,
}

/// Nodes and the owner of each slot, as of one version of the topology.
#[derive(Clone)]
pub struct Map {
    pub version: u64,
    pub kind: DeploymentKind,
    /// All nodes ever seen; numbers are not given twice.
    pub servers: Vec<Server>,
    /// Owner of each slot.
    pub slots: Vec<u16>,
    /// Masters that own slots.
    pub masters: Vec<u16>,
    /// For each node the ones that may answer reads in its place, the best first; empty for "itself".
    pub readers: Vec<Vec<u16>>,
    /// For each node the one that does its work now: itself, or its master.
    pub heir: Vec<u16>,
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
        let mut servers: Vec<Server> = last.map(|m| m.servers.clone()).unwrap_or_default();
        for server in &mut servers {
            (server.owns, server.health, server.role) = (false, Health::Failed, Role::Unknown);
        }
        let mut number_of: BTreeMap<&str, u16> = BTreeMap::new();
        for node in &topology.nodes {
            let number = match servers.iter().position(|s| s.address == node.address) {
                Some(number) => number,
                None if let Some(known) =
                    node.alias.as_ref().and_then(|a| servers.iter().position(|s| s.address == *a)) =>
                {
                    // A redirect named it first, by the other of its two names.
                    servers[known].address = node.address.clone();
                    known
                }
                None => {
                    servers.push(server(&node.address, target, tls, server_name));
                    servers.len() - 1
                }
            };
            let server = &mut servers[number];
            server.alias.clone_from(&node.alias);
            // A name may stand for another address by now, if nobody answers at the old one.
            if server.peer.is_none() || node.health != Health::Up && server.named {
                server.peer = peer(&node.address, target);
            }
            server.role = node.role;
            server.health = node.health;
            server.owns = node.role == Role::Master && !node.slots.is_empty();
            server.zone = config.zones.get(&node.address).cloned().or_else(|| node.zone.clone());
            server.rtt_us = node.rtt_us;
            server.lag_bytes = node.lag_bytes;
            number_of.insert(&node.id, number as u16);
        }
        let mut slots = vec![NOBODY; usize::from(SLOTS)];
        let mut readers = vec![Vec::new(); servers.len()];
        let mut heir: Vec<u16> = last.map(|m| m.heir.clone()).unwrap_or_default();
        heir.extend(heir.len() as u16..servers.len() as u16);
        let mut masters = Vec::new();
        for node in topology.masters() {
            let number = number_of[node.id.as_str()];
            masters.push(number);
            heir[usize::from(number)] = number;
            for &(a, b) in node.slots.ranges() {
                slots[usize::from(a)..=usize::from(b)].fill(number);
            }
            for replica in topology.replicas_of(&node.id) {
                heir[usize::from(number_of[replica.id.as_str()])] = number;
            }
            if config.read == Read::Primary {
                continue;
            }
            let fresh = |n: &&unslow_topology::Node| {
                n.health == Health::Up
                    && n.in_sync
                    && config.max_lag_bytes.is_none_or(|most| n.lag_bytes.is_some_and(|lag| lag <= most))
            };
            let replicas = topology.replicas_of(&node.id).filter(fresh).map(|n| number_of[n.id.as_str()]);
            let mut all: Vec<u16> = replicas.collect();
            if config.read != Read::Replica && node.health == Health::Up {
                all.push(number);
            }
            let rtt = |n: &u16| servers[usize::from(*n)].rtt_us.unwrap_or(u64::MAX);
            match config.read {
                Read::Primary | Read::Replica => {}
                Read::Nearest => {
                    // As near as makes no difference: within a tenth of a millisecond, or twice as far.
                    all.sort_by_key(rtt);
                    let best = all.first().map_or(0, rtt);
                    all.retain(|n| rtt(n) <= best.saturating_mul(2).max(best.saturating_add(100)));
                }
                Read::Zone => {
                    let here = |n: &&u16| servers[usize::from(**n)].zone.as_deref() == config.zone.as_deref();
                    if config.zone.is_some() && all.iter().any(|n| here(&n)) {
                        all.retain(|n| here(&n));
                    } else {
                        all.sort_by_key(rtt);
                        all.truncate(1);
                    }
                }
            }
            readers[usize::from(number)] = all;
        }
        let version = last.map_or(1, |m| m.version + 1);
        Map { version, kind: topology.kind, servers, slots, masters, readers, heir, topology }
    }

    /// The number of the node at an address, if the servers' own topology has it; NOBODY else. Hosts that are addresses
    /// are compared as such.
    pub fn find(&self, address: &Address) -> u16 {
        let ip = |a: &Address| a.host().parse::<IpAddr>().ok();
        let wanted = ip(address);
        let is = |text: &str| {
            Address::parse(text).is_some_and(|a| {
                a.port() == address.port() && (a.host() == address.host() || wanted.is_some() && ip(&a) == wanted)
            })
        };
        let known = |s: &Server| s.role != Role::Unknown && (is(&s.address) || s.alias.as_deref().is_some_and(is));
        self.servers.iter().position(known).map_or(NOBODY, |at| at as u16)
    }

    /// Whether routing by slot is needed at all.
    pub fn is_cluster(&self) -> bool {
        self.kind == DeploymentKind::Cluster
    }
}

/// A node nobody has described yet.
pub fn server(
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
        address: address.to_string(),
        alias: None,
        peer: if named { None } else { peer(address, target) },
        named,
        tls,
        role: Role::Unknown,
        health: Health::Up,
        owns: false,
        zone: None,
        rtt_us: None,
        lag_bytes: None,
        own: Arc::default(),
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
    use unslow_topology::{Node, SlotSet};

    use super::*;

    /// A master with these slots, or a replica of the one at `master`. Its id is its port, padded with zeros.
    pub(crate) fn node(address: &str, master: Option<&str>, slots: &[(u16, u16)]) -> Node {
        let id = |address: &str| format!("{:0>40}", address.rsplit_once(':').map_or(address, |(_, port)| port));
        Node {
            id: id(address),
            address: address.into(),
            alias: None,
            role: if master.is_some() { Role::Replica } else { Role::Master },
            master: master.map(id),
            slots: SlotSet::from_ranges(slots.iter().copied()),
            config_epoch: 1,
            health: Health::Up,
            zone: None,
            rtt_us: None,
            lag_bytes: None,
            in_sync: true,
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
    fn node_numbers_are_stable_and_a_removed_node_owns_nothing() {
        let config = Config::default();
        let first = next(None, vec![node("10.0.0.5:5", None, ALL)], &config);
        let halves = vec![node("10.0.0.1:1", None, &[(0, 8191)]), node("10.0.0.5:5", None, &[(8192, 16383)])];
        let second = next(Some(&first), halves, &config);
        let addresses: Vec<&str> = second.servers.iter().map(|s| s.address.as_str()).collect();
        assert_eq!(addresses, ["10.0.0.5:5", "10.0.0.1:1"]);
        assert_eq!((second.slots[8191], second.slots[8192], second.version), (1, 0, 2));

        let third = next(Some(&second), vec![node("10.0.0.1:1", None, &[(0, 16382)])], &config);
        let gone = &third.servers[0];
        assert_eq!((gone.health, gone.owns, gone.role), (Health::Failed, false, Role::Unknown));
        assert_eq!((&third.masters[..], third.slots[16382], third.slots[16383]), (&[1][..], 1, NOBODY));
    }

    #[test]
    fn a_node_first_seen_by_its_alias_is_not_added_twice() {
        let config = Config::default();
        let mut first = next(None, vec![node("10.0.0.1:1", None, ALL)], &config);
        let target = Target::parse("127.0.0.1:1").expect("an address");
        first.servers.push(server("10.0.0.2:2", &target, None, None));
        first.readers.push(Vec::new());
        first.heir.push(1);
        let named = Node { alias: Some("10.0.0.2:2".into()), ..node("two.example:2", None, &[(5, 5)]) };
        let second = next(Some(&first), vec![node("10.0.0.1:1", None, &[(0, 4)]), named], &config);
        assert_eq!(second.servers.len(), 2);
        assert_eq!((second.servers[1].address.as_str(), second.slots[5]), ("two.example:2", 1));
        assert_eq!(second.servers[1].peer, Some(Peer::Tcp("10.0.0.2:2".parse().expect("an address"))));
    }

    #[test]
    fn a_replaced_master_keeps_its_heir_after_it_is_removed() {
        let config = Config::default();
        let (a, b) = ("10.0.0.1:1", "10.0.0.2:2");
        let first = next(None, vec![node(a, None, ALL), node(b, Some(a), &[])], &config);
        assert_eq!(first.heir, [0, 0]);
        let second = next(Some(&first), vec![node(a, Some(b), &[]), node(b, None, ALL)], &config);
        assert_eq!(second.heir, [1, 1]);
        let third = next(Some(&second), vec![node(b, None, ALL)], &config);
        assert_eq!(third.heir, [1, 1]);
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
