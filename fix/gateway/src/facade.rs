//! CLUSTER as clients are to see it: by default one node that has every slot, with the facade each node as a port of
//! ours.

use std::fmt::Write;
use std::net::SocketAddr;

use unslow_reactor::Io;
use unslow_resp::write_header;
use unslow_topology::{SLOTS, SlotSet};

use crate::config::Facade;
use crate::reply::{bulk, error};
use crate::session::*;
use crate::shared::Shared;
use crate::step::Command;
use crate::worker::Worker;

impl Worker {
    /// CLUSTER. False when it has to wait.
    pub fn cluster_command(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let sub = command.word(1);
        let slot = || command.number::<u16>(2).filter(|s| *s < SLOTS);
        let Some(client) = self.client(whom) else { return true };
        let (to, proto) = (client.ends.to(), client.proto);
        let mut out = Vec::new();
        match sub.as_slice() {
            b"COUNTKEYSINSLOT" | b"GETKEYSINSLOT" if let Some(slot) = slot() => {
                return self.send(io, whom, command, slot, Kind::Reply);
            }
            // The same on each node: one of them says whether this user may ask.
            b"KEYSLOT" => return self.send(io, whom, command, NO_SLOT, Kind::Reply),
            b"MYID" => bulk(&mut out, shown(&self.shared, to).first().map_or("", |n| &n.id).as_bytes()),
            b"INFO" => {
                let map = &self.map;
                let covered = map.servers.slots().iter().filter(|n| **n != unslow_nodes::NOBODY).count();
                let nodes = shown(&self.shared, to);
                let text = format!(
                    "cluster_enabled:1\r\ncluster_state:{}\r\ncluster_slots_assigned:{covered}\r\n\
                     cluster_slots_ok:{covered}\r\ncluster_slots_pfail:0\r\ncluster_slots_fail:0\r\n\
                     cluster_known_nodes:{}\r\ncluster_size:{}\r\ncluster_current_epoch:{}\r\ncluster_my_epoch:{}\r\n",
                    if covered == usize::from(SLOTS) { "ok" } else { "fail" },
                    nodes.len(),
                    nodes.iter().filter(|n| n.master.is_none()).count(),
                    map.version,
                    map.version
                );
                bulk(&mut out, text.as_bytes());
            }
            b"NODES" => {
                let mut text = String::new();
                for (i, node) in shown(&self.shared, to).iter().enumerate() {
                    let role = if node.master.is_none() { "master" } else { "slave" };
                    let myself = if i == 0 { "myself," } else { "" };
                    let master = node.master.as_deref().unwrap_or("-");
                    let (host, port) = (&node.host, node.port);
                    let bus = port.saturating_add(10000);
                    let _ = write!(
                        text,
                        "{} {host}:{port}@{bus} {myself}{role} {master} 0 0 {} connected",
                        node.id, self.map.version
                    );
                    text += &if node.slots.is_empty() { "\n".to_string() } else { format!(" {}\n", node.slots) };
                }
                bulk(&mut out, text.as_bytes());
            }
            b"SLOTS" => {
                let nodes = shown(&self.shared, to);
                let mut ranges: Vec<(u16, u16, &Shown)> =
                    nodes.iter().flat_map(|n| n.slots.ranges().iter().map(move |&(a, b)| (a, b, n))).collect();
                ranges.sort_by_key(|r| r.0);
                write_header(&mut out, b'*', ranges.len());
                for (a, b, master) in ranges {
                    let replicas: Vec<&Shown> =
                        nodes.iter().filter(|n| n.master.as_ref() == Some(&master.id)).collect();
                    write_header(&mut out, b'*', 3 + replicas.len());
                    write_header(&mut out, b':', usize::from(a));
                    write_header(&mut out, b':', usize::from(b));
                    for node in [master].into_iter().chain(replicas) {
                        write_header(&mut out, b'*', 4);
                        bulk(&mut out, node.host.as_bytes());
                        write_header(&mut out, b':', usize::from(node.port));
                        bulk(&mut out, node.id.as_bytes());
                        out.extend_from_slice(b"*0\r\n");
                    }
                }
            }
            b"SHARDS" => {
                let nodes = shown(&self.shared, to);
                let masters: Vec<&Shown> = nodes.iter().filter(|n| n.master.is_none()).collect();
                let map_header = |out: &mut Vec<u8>, n: usize| match proto {
                    3 => write_header(out, b'%', n),
                    _ => write_header(out, b'*', 2 * n),
                };
                write_header(&mut out, b'*', masters.len());
                for master in masters {
                    map_header(&mut out, 2);
                    bulk(&mut out, b"slots");
                    write_header(&mut out, b'*', master.slots.ranges().len() * 2);
                    for &(a, b) in master.slots.ranges() {
                        write_header(&mut out, b':', usize::from(a));
                        write_header(&mut out, b':', usize::from(b));
                    }
                    bulk(&mut out, b"nodes");
                    let members: Vec<&Shown> =
                        nodes.iter().filter(|n| n.id == master.id || n.master.as_ref() == Some(&master.id)).collect();
                    write_header(&mut out, b'*', members.len());
                    for node in members {
                        map_header(&mut out, 7);
                        let role = if node.master.is_none() { "master" } else { "replica" };
                        for (key, value) in [
                            ("id", node.id.as_str()),
                            ("ip", &node.host),
                            ("endpoint", &node.host),
                            ("role", role),
                            ("health", "online"),
                        ] {
                            bulk(&mut out, key.as_bytes());
                            bulk(&mut out, value.as_bytes());
                        }
                        bulk(&mut out, b"port");
                        write_header(&mut out, b':', usize::from(node.port));
                        bulk(&mut out, b"replication-offset");
                        write_header(&mut out, b':', 0);
                    }
                }
            }
            _ => {
                let what = String::from_utf8_lossy(&sub).chars().filter(|c| !c.is_control()).collect::<String>();
                out = error("ERR", &format!("unslow: CLUSTER {what} is for one node; connect to the node itself"));
            }
        }
        self.say(io, whom, &out);
        true
    }
}

/// A node as clients are to see it.
struct Shown {
    id: String,
    host: String,
    port: u16,
    master: Option<String>,
    slots: SlotSet,
}

fn shown(shared: &Shared, to: Option<SocketAddr>) -> Vec<Shown> {
    let (host, port) = to.map_or(("127.0.0.1".into(), 0), |a| (a.ip().to_string(), a.port()));
    let map = shared.map();
    if shared.config().facade == Facade::Node {
        let id = format!("{:040x}", u128::from(port) | 0x756e_736c_6f77u128 << 64);
        return vec![Shown { id, host, port, master: None, slots: SlotSet::all() }];
    }
    let ports = shared.facade_ports.lock().expect("no thread panicked");
    let mut nodes: Vec<Shown> = map
        .topology
        .nodes
        .iter()
        .filter_map(|n| {
            let port = *ports.get(&n.address)?;
            let master = n.master.clone().filter(|_| n.role == unslow_topology::Role::Replica);
            Some(Shown { id: n.id.clone(), host: host.clone(), port, master, slots: n.slots.clone() })
        })
        .collect();
    // The one that was asked stands first, as `myself`.
    nodes.sort_by_key(|n| n.port != port);
    nodes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use unslow_resp::{Frame, Value};
    use unslow_topology::ClusterView;

    use super::*;
    use crate::config::Config;
    use crate::map::tests::node;
    use crate::worker::tests::{A, B, C, Rig};

    /// Id, address, slots and master of each node.
    fn seen(view: &ClusterView) -> BTreeSet<(String, String, String, Option<String>)> {
        let line = |n: &unslow_topology::ClusterNode| {
            (n.id.clone(), n.address.clone(), n.slots.to_string(), n.master_id.clone())
        };
        view.nodes.iter().map(line).collect()
    }

    #[test]
    fn cluster_nodes_slots_and_shards_agree_about_the_facade() {
        let nodes = vec![node(A, None, &[(0, 8191)]), node(B, None, &[(8192, 16383)]), node(C, Some(B), &[])];
        let mut rig = Rig::new(Config { facade: Facade::Cluster, ..Config::default() }, nodes);
        let ports = [A, B, C].map(str::to_string).into_iter().zip(7001..);
        rig.worker.shared.facade_ports.lock().unwrap().extend(ports);
        let client = rig.client(Some("10.1.1.1:7002".parse().unwrap()));
        let mut ask = |what: &str| {
            rig.says(client, &format!("CLUSTER {what}\r\n"));
            Value::from(Frame::new(rig.told(client).as_bytes()))
        };
        let nodes = ClusterView::parse(&ask("NODES").text().unwrap()).unwrap();
        let myself = nodes.myself().unwrap();
        assert_eq!((myself.address.as_str(), myself.slots.to_string().as_str()), ("10.1.1.1:7002", "8192-16383"));
        assert_eq!(ask("MYID").text().as_deref(), Some(myself.id.as_str()));
        let told = seen(&nodes);
        assert_eq!(told.len(), 3);
        assert!(
            told.iter().any(|(_, address, _, master)| address == "10.1.1.1:7003" && *master == Some(myself.id.clone()))
        );
        assert_eq!(seen(&ClusterView::from_slots(&ask("SLOTS")).unwrap()), told);
        assert_eq!(seen(&ClusterView::from_shards(&ask("SHARDS")).unwrap()), told);
    }

    #[test]
    fn without_the_facade_one_node_owns_every_slot() {
        let mut rig = Rig::halves(Config::default());
        let client = rig.client(Some("10.1.1.1:6400".parse().unwrap()));
        rig.says(client, "CLUSTER SLOTS\r\n");
        let view = ClusterView::from_slots(&Value::from(Frame::new(rig.told(client).as_bytes()))).unwrap();
        assert_eq!((view.nodes[0].address.as_str(), view.nodes.len()), ("10.1.1.1:6400", 1));
        assert!(view.unassigned().is_empty());
    }
}
