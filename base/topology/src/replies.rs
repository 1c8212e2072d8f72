//! CLUSTER SLOTS and CLUSTER SHARDS, which tell no epochs but are granted where CLUSTER NODES is not, and tell zones;
//! ROLE; and what Sentinels answer and say.
//!
//! Shapes: SLOTS `[first, last, [ip, port, id, [key, value...]], replica...]` (id since 4.0, the last since 7.0);
//! SHARDS `[{slots: [first, last...], nodes: [{id, port, ip, endpoint, hostname, role, health, ...}]}]` (7.0; Valkey
//! 8.1 adds `availability-zone`). (Command references of Redis and Valkey)

use std::collections::BTreeMap;

use unslow_resp::Value;

use crate::{ClusterNode, ClusterView, SlotSet};

impl ClusterView {
    /// From CLUSTER SLOTS. Epochs are 0, and masters without slots are missing. `None` when it is something else.
    pub fn from_slots(reply: &Value) -> Option<ClusterView> {
        let Value::Array(rows) = reply else { return None };
        let mut nodes: BTreeMap<String, ClusterNode> = BTreeMap::new();
        for row in rows {
            let [first, last, master, replicas @ ..] = row.items() else { return None };
            let range = (slot(first)?, slot(last)?);
            let owner = member(master)?;
            let id = owner.id.clone();
            let owner = nodes.entry(id.clone()).or_insert(owner);
            owner.slots = SlotSet::from_ranges(owner.slots.ranges().iter().copied().chain([range]));
            for replica in replicas {
                let mut replica = member(replica)?;
                replica.flags = vec!["slave".into()];
                replica.master_id = Some(id.clone());
                nodes.entry(replica.id.clone()).or_insert(replica);
            }
        }
        Some(ClusterView { nodes: nodes.into_values().collect() })
    }

    /// From CLUSTER SHARDS. Epochs are 0. `None` when it is something else.
    pub fn from_shards(reply: &Value) -> Option<ClusterView> {
        let Value::Array(shards) = reply else { return None };
        let mut nodes = Vec::new();
        for shard in shards {
            let bounds: Vec<u16> = shard.get("slots")?.items().iter().map(slot).collect::<Option<_>>()?;
            let slots = SlotSet::from_ranges(bounds.chunks_exact(2).map(|p| (p[0], p[1])));
            let members = shard.get("nodes")?.items();
            let text = |m: &Value, field: &str| m.get(field).and_then(Value::text);
            let master = members.iter().find(|m| text(m, "role").as_deref() == Some("master"));
            let master = master.and_then(|m| text(m, "id"));
            for m in members {
                let id = text(m, "id")?;
                let port = m.get("port").or_else(|| m.get("tls-port"))?.integer()?;
                let is_master = text(m, "role").as_deref() == Some("master");
                let mut flags = vec![if is_master { "master" } else { "slave" }.to_string()];
                if text(m, "health").as_deref() == Some("fail") {
                    flags.push("fail".into());
                }
                nodes.push(ClusterNode {
                    address: format!("{}:{port}", text(m, "ip").unwrap_or_default()),
                    hostname: text(m, "hostname").filter(|h| !h.is_empty()),
                    flags,
                    master_id: master.clone().filter(|_| !is_master),
                    slots: if is_master { slots.clone() } else { SlotSet::default() },
                    ..bare(id)
                });
            }
        }
        Some(ClusterView { nodes })
    }
}

/// Node id to availability zone, from CLUSTER SHARDS of servers that tell it (Valkey 8.1).
pub fn zones_of_shards(reply: &Value) -> BTreeMap<String, String> {
    let members = reply.items().iter().filter_map(|s| s.get("nodes")).flat_map(Value::items);
    let zone = |m: &Value| Some((m.get("id")?.text()?, m.get("availability-zone")?.text().filter(|z| !z.is_empty())?));
    members.filter_map(zone).collect()
}

fn bare(id: String) -> ClusterNode {
    ClusterNode {
        id,
        address: String::new(),
        hostname: None,
        flags: vec!["master".into()],
        master_id: None,
        ping_sent_ms: 0,
        pong_received_ms: 0,
        config_epoch: 0,
        connected: true,
        slots: SlotSet::default(),
        migrating: Vec::new(),
        importing: Vec::new(),
    }
}

fn member(value: &Value) -> Option<ClusterNode> {
    let [ip, port, rest @ ..] = value.items() else { return None };
    let address = format!("{}:{}", ip.text().unwrap_or_default(), port.integer().filter(|p| (0..=65535).contains(p))?);
    let id = rest.first().and_then(Value::text).unwrap_or_else(|| address.clone());
    let hostname = rest.get(1).and_then(|more| more.get("hostname")).and_then(Value::text).filter(|h| !h.is_empty());
    Some(ClusterNode { address, hostname, ..bare(id) })
}

fn slot(value: &Value) -> Option<u16> {
    value.integer().and_then(|n| u16::try_from(n).ok()).filter(|&n| n < crate::SLOTS)
}

/// ROLE of a data node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoleReply {
    /// It takes writes.
    Master {
        /// Bytes of its replication stream.
        offset: u64,
        /// Replicas as `host:port`, each with the offset it has acknowledged.
        replicas: Vec<(String, u64)>,
    },
    /// It follows.
    Replica {
        /// `host:port` of its master.
        master: String,
        /// Whether the link stands: `connected`, not `connect`, `connecting` or `sync`.
        connected: bool,
        /// Bytes it has received.
        offset: u64,
    },
}

impl RoleReply {
    /// `None` for a Sentinel, or when it is something else.
    pub fn parse(reply: &Value) -> Option<RoleReply> {
        let number = |v: &Value| v.integer().map(|n| n.max(0) as u64);
        let at = |host: &Value, port: &Value| {
            let (host, port) = (host.text()?, port.text()?);
            Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
        };
        match reply.items() {
            [Value::Text(word), offset, replicas] if word == b"master" => {
                let replica = |r: &Value| match r.items() {
                    [host, port, offset] => Some((at(host, port)?, number(offset)?)),
                    _ => None,
                };
                let replicas = replicas.items().iter().map(replica).collect::<Option<_>>()?;
                Some(RoleReply::Master { offset: number(offset)?, replicas })
            }
            [Value::Text(word), host, port, state, offset] if word == b"slave" => Some(RoleReply::Replica {
                master: at(host, port)?,
                connected: state.text()? == "connected",
                offset: number(offset)?,
            }),
            _ => None,
        }
    }
}

/// What a Sentinel publishes, as far as it concerns who is master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SentinelWord {
    /// `+switch-master`: the group has another master.
    Switched {
        /// Name of the group.
        service: String,
        /// Address of the old master.
        from: String,
        /// Address of the new one.
        to: String,
    },
    /// Something about an instance of the group: `+sdown`, `-sdown`, `+odown`, `+promoted-slave`, `+slave`, ...
    About {
        /// Name of the group.
        service: String,
        /// The event.
        event: String,
        /// Address of the instance.
        node: String,
    },
}

impl SentinelWord {
    /// Reads a message of a Sentinel's channel: `NAME OLD-IP OLD-PORT NEW-IP NEW-PORT` for `+switch-master`, else
    /// `TYPE NAME IP PORT[ @ MASTER-NAME MASTER-IP MASTER-PORT]`. `None` when it is neither.
    pub fn parse(channel: &str, text: &str) -> Option<SentinelWord> {
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let at = |host: &str, port: &str| {
            port.parse::<u16>().ok()?;
            Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
        };
        if channel == "+switch-master" {
            let [service, from, from_port, to, to_port] = words[..] else { return None };
            return Some(SentinelWord::Switched {
                service: service.into(),
                from: at(from, from_port)?,
                to: at(to, to_port)?,
            });
        }
        let (service, node) = match words[..] {
            ["master", name, ip, port, ..] => (name, at(ip, port)?),
            [_, _, ip, port, "@", name, ..] => (name, at(ip, port)?),
            _ => return None,
        };
        Some(SentinelWord::About { service: service.into(), event: channel.into(), node })
    }
}
