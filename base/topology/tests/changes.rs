//! What is said to have changed is what is different, and replies of all shapes say the same of the same cluster.

use proptest::prelude::*;
use unslow_resp::Value;
use unslow_topology::messages::{Heartbeat, messages};
use unslow_topology::{
    Change, ClusterView, DeploymentKind, Health, Node, Role, RoleReply, SLOTS, SentinelWord, SlotSet, Topology,
    zones_of_shards,
};

/// Owners of eight pieces of the slots among up to five nodes; who owns nothing follows somebody.
fn topology() -> impl Strategy<Value = Topology> {
    let pieces = proptest::collection::vec(proptest::option::weighted(0.95, 0usize..5), 8);
    let health = proptest::collection::vec(0u8..4, 5);
    (pieces, health, 0usize..5, 1usize..6).prop_map(|(pieces, health, follows, count)| {
        let pieces: Vec<Option<usize>> = pieces.into_iter().map(|p| p.map(|p| p % count)).collect();
        let owner = pieces.iter().flatten().next().copied();
        let nodes = (0..count).map(|i| {
            let ranges = pieces.iter().enumerate().filter(|(_, p)| **p == Some(i));
            let ranges = ranges.map(|(piece, _)| (piece as u16 * 2048, piece as u16 * 2048 + 2047));
            let slots = SlotSet::from_ranges(ranges);
            let master = slots
                .is_empty()
                .then_some(owner)
                .flatten()
                .map(|o| format!("id{}", if pieces.contains(&Some(follows)) { follows } else { o }));
            Node {
                id: format!("id{i}"),
                role: if master.is_some() { Role::Replica } else { Role::Master },
                master,
                config_epoch: 1,
                health: if health[i] == 0 { Health::Suspected } else { Health::Up },
                ..Node::master(format!("10.0.0.{i}:6379"), slots)
            }
        });
        Topology::new(DeploymentKind::Cluster, nodes.collect())
    })
}

proptest! {
    #[test]
    fn nothing_changed_exactly_when_digest_and_health_are_the_same(a in topology(), b in topology()) {
        prop_assert!(a.changes(&a).is_empty());
        let health = |t: &Topology| t.nodes.iter().map(|n| n.health).collect::<Vec<_>>();
        let same = a.digest() == b.digest() && health(&a) == health(&b);
        prop_assert_eq!(a.changes(&b).is_empty(), same, "{:?}", a.changes(&b));
    }

    #[test]
    fn every_slot_with_another_owner_is_told_with_that_owner(a in topology(), b in topology()) {
        let changes = a.changes(&b);
        for slot in (0..SLOTS).step_by(512) {
            let (from, to) = (a.owner(slot).map(|n| &n.address), b.owner(slot).map(|n| &n.address));
            let told = changes.iter().any(|c| match c {
                Change::Moved { slots, from: f, to: t } => {
                    slots.contains(slot) && f.as_ref() == from && t.as_ref() == to
                }
                Change::Promoted { node, slots, .. } => slots.contains(slot) && Some(node) == to,
                _ => false,
            });
            prop_assert!(from == to || told, "slot {slot} from {from:?} to {to:?}: {changes:?}");
        }
        // And clients hear of each in words they can read.
        for (channel, text) in changes.iter().flat_map(messages) {
            let (ranges, address) = text.split_once(' ').unwrap();
            prop_assert!(channel.starts_with("__cluster__:") && address.contains(':'), "{text}");
            for range in ranges.split(',') {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                prop_assert!(first.parse::<u16>().unwrap() <= last.parse::<u16>().unwrap());
            }
        }
    }

    #[test]
    fn slots_and_shards_say_what_nodes_says(t in topology()) {
        let text = |s: &str| Value::Text(s.as_bytes().to_vec());
        let node = |n: &Node| {
            let port = n.id[2..].parse::<i64>().unwrap() + 1;
            Value::Array(vec![text("10.0.0.1"), Value::Integer(port), text(&n.id), Value::Array(vec![])])
        };
        let mut rows = Vec::new();
        for master in t.masters() {
            for &(a, b) in master.slots.ranges() {
                let mut row = vec![Value::Integer(a.into()), Value::Integer(b.into()), node(master)];
                row.extend(t.replicas_of(&master.id).map(node));
                rows.push(Value::Array(row));
            }
        }
        let view = ClusterView::from_slots(&Value::Array(rows)).unwrap();
        for slot in (0..SLOTS).step_by(512) {
            let owner = view.masters().find(|n| n.slots.contains(slot)).map(|n| n.id.clone());
            prop_assert_eq!(owner, t.owner(slot).map(|n| n.id.clone()));
        }
        let shards = t.masters().map(|master| {
            let bounds = master.slots.ranges().iter().flat_map(|&(a, b)| [a, b]);
            let bounds = bounds.map(|slot| Value::Integer(slot.into()));
            let member = |n: &Node| Value::Array(vec![
                text("id"), text(&n.id), text("port"), Value::Integer(1), text("ip"), text("10.0.0.1"),
                text("role"), text(n.role.word()), text("health"), text("online"),
                text("availability-zone"), text("eu-1"),
            ]);
            let members = [member(master)].into_iter().chain(t.replicas_of(&master.id).map(member)).collect();
            Value::Array(vec![text("slots"), Value::Array(bounds.collect()), text("nodes"), Value::Array(members)])
        });
        let reply = Value::Array(shards.collect());
        let view = ClusterView::from_shards(&reply).unwrap();
        for slot in (0..SLOTS).step_by(512) {
            let owner = view.masters().find(|n| n.slots.contains(slot)).map(|n| n.id.clone());
            prop_assert_eq!(owner, t.owner(slot).map(|n| n.id.clone()));
        }
        prop_assert_eq!(zones_of_shards(&reply).len(), view.nodes.len());
    }

    #[test]
    fn what_is_no_reply_is_none_and_no_panic(words in proptest::collection::vec(".{0,12}", 0..8), n in any::<i64>()) {
        let texts = words.iter().map(|w| Value::Text(w.clone().into_bytes()));
        let items: Vec<Value> = texts.chain([Value::Integer(n)]).collect();
        let row = vec![Value::Integer(n), Value::Integer(n), Value::Array(items.clone())];
        let nested = Value::Array(vec![Value::Array(items.clone()), Value::Array(row)]);
        for value in [Value::Array(items), nested, Value::Null, Value::Integer(n)] {
            let _ = (ClusterView::from_slots(&value), ClusterView::from_shards(&value));
            let _ = (RoleReply::parse(&value), zones_of_shards(&value));
        }
        let line = words.join(" ");
        let _ = (SentinelWord::parse("+switch-master", &line), SentinelWord::parse("+sdown", &line));
        let _ = Heartbeat::parse(&line);
    }
}

const A: &str = "a000000000000000000000000000000000000000";
const B: &str = "b000000000000000000000000000000000000000";

#[test]
fn a_node_that_says_it_gave_a_slot_away_is_believed_before_gossip_about_it() {
    // Seen on Redis 6.2 after SETSLOT NODE: the source knows, the destination's new epoch has not reached it, and a
    // third node still names the source.
    let source = ClusterView::parse(&format!(
        "{A} h:1@2 myself,master - 0 0 9 connected 0-9\n{B} h:2@3 master - 0 0 3 connected 10-16383"
    ));
    let third = ClusterView::parse(&format!(
        "{A} h:1@2 master - 0 0 9 connected 0-10\n{B} h:2@3 master - 0 0 3 connected 11-16383"
    ));
    let views = [third.unwrap(), source.unwrap()];
    for views in [[views[0].clone(), views[1].clone()], [views[1].clone(), views[0].clone()]] {
        let merged = ClusterView::merge(&views);
        assert_eq!(merged.masters().find(|n| n.slots.contains(10)).map(|n| n.id.as_str()), Some(B));
    }
}

#[test]
fn reads_what_sentinels_say_and_what_role_answers() {
    assert_eq!(
        SentinelWord::parse("+switch-master", "mymaster 10.0.0.1 6379 10.0.0.2 6380"),
        Some(SentinelWord::Switched {
            service: "mymaster".into(),
            from: "10.0.0.1:6379".into(),
            to: "10.0.0.2:6380".into()
        })
    );
    assert_eq!(
        SentinelWord::parse("+sdown", "slave 10.0.0.3:6379 10.0.0.3 6379 @ mymaster ::1 6379"),
        Some(SentinelWord::About { service: "mymaster".into(), event: "+sdown".into(), node: "10.0.0.3:6379".into() })
    );
    assert_eq!(SentinelWord::parse("+switch-master", "mymaster 10.0.0.1 port x y"), None);
    let text = |s: &str| Value::Text(s.into());
    let replica =
        Value::Array(vec![text("slave"), text("::1"), Value::Integer(6379), text("sync"), Value::Integer(-1)]);
    assert_eq!(
        RoleReply::parse(&replica),
        Some(RoleReply::Replica { master: "[::1]:6379".into(), connected: false, offset: 0 })
    );
    let one = Value::Array(vec![text("10.0.0.2"), text("6379"), text("90")]);
    let master = Value::Array(vec![text("master"), Value::Integer(100), Value::Array(vec![one])]);
    assert_eq!(
        RoleReply::parse(&master),
        Some(RoleReply::Master { offset: 100, replicas: vec![("10.0.0.2:6379".into(), 90)] })
    );
    let beat = Heartbeat { digest: "ff".into(), sequence: 3, watcher: "w".into() };
    assert_eq!(Heartbeat::parse(&beat.text()), Some(beat));
}
