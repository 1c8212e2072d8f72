//! Real replies of four server versions, views that disagree, and bytes that are no reply.

use proptest::prelude::*;
use unslow_topology::{ClusterView, Info, SLOTS, SlotSet};

const A: &str = "a000000000000000000000000000000000000000";
const B: &str = "b000000000000000000000000000000000000000";

#[test]
fn reads_the_address_forms_of_every_version() {
    for (address, expected, hostname) in [
        ("127.0.0.1:7000", "127.0.0.1:7000", None),
        ("127.0.0.1:7000@17000", "127.0.0.1:7000", None),
        ("127.0.0.1:7000@17000,", "127.0.0.1:7000", None),
        ("127.0.0.1:7000@17000,cache-1", "127.0.0.1:7000", Some("cache-1")),
        ("127.0.0.1:7000@17000,,shard-id=ff", "127.0.0.1:7000", None),
        ("::1:7000@17000", "::1:7000", None),
        (":0@0", ":0", None),
    ] {
        let view = ClusterView::parse(&format!("{A} {address} myself,master - 0 0 1 connected 0-5 7\n")).unwrap();
        assert_eq!(view.nodes[0].address, expected);
        assert_eq!(view.nodes[0].hostname.as_deref(), hostname);
        assert_eq!(view.nodes[0].slots.to_string(), "0-5 7");
    }
}

#[test]
fn an_entry_without_an_address_is_told_from_a_node() {
    for (address, flags, dialable) in [
        ("10.0.0.1:7000@17000", "master", true),
        ("10.0.0.1:7000@17000", "master,fail", true),
        ("fe80::1:7000@17000", "slave", true),
        // It has not heard its own address yet; the others have it.
        (":7000@17000", "myself,master", true),
        (":7000@17000", "master", false),
        (":0@0", "slave,noaddr", false),
        (":0@0", "slave", false),
        (":0@0,,tls-port=0", "master,fail,noaddr", false),
        ("10.0.0.1:0@0", "master", false),
        ("10.0.0.1:7000@17000", "handshake", false),
    ] {
        let view = ClusterView::parse(&format!("{A} {address} {flags} - 0 0 1 connected\n")).unwrap();
        assert_eq!(view.nodes[0].has_address(), dialable, "{address} {flags}");
    }
}

#[test]
fn suspected_and_failed_owners_are_told_apart() {
    let view = ClusterView::parse(&format!(
        "{A} h:1@2 master,fail? - 5 0 1 disconnected 0-99\n{B} h:2@3 master,fail - 5 0 2 disconnected 100-299\n"
    ))
    .unwrap();
    assert_eq!((view.suspected().to_string(), view.failed().to_string()), ("0-99".into(), "100-299".into()));
}

#[test]
fn reads_open_slots_of_the_node_itself() {
    let view =
        ClusterView::parse(&format!("{A} h:1@2 myself,master - 0 0 1 connected 0-9 [3->-{B}] [77-<-{B}]")).unwrap();
    let me = view.myself().unwrap();
    assert_eq!(me.migrating, [(3, B.to_string())]);
    assert_eq!(me.importing, [(77, B.to_string())]);
}

#[test]
fn names_the_line_that_is_not_one() {
    let error = ClusterView::parse(&format!("{A} h:1@2 master - 0 0 1 connected\nnonsense\n")).unwrap_err();
    assert_eq!(error.to_string(), "CLUSTER NODES, line 2: expected a node id of 40 hex digits");
    assert!(ClusterView::parse(&format!("{A} h:1@2 master - 0 0 1 connected 99999")).is_err());
}

#[test]
fn gives_a_slot_claimed_twice_to_the_higher_epoch() {
    let stale = ClusterView::parse(&format!(
        "{A} h:1@2 myself,master - 0 0 1 connected 0-16383\n{B} h:2@3 slave {A} 0 0 1 connected"
    ))
    .unwrap();
    let fresh = ClusterView::parse(&format!(
        "{A} h:1@2 slave {B} 0 0 2 connected\n{B} h:2@3 myself,master - 0 0 2 connected 0-16383"
    ))
    .unwrap();
    for order in [[stale.clone(), fresh.clone()], [fresh, stale]] {
        let merged = ClusterView::merge(&order);
        let owners: Vec<&str> = merged.masters().map(|n| n.id.as_str()).collect();
        assert_eq!(owners, [B]);
        assert_eq!(ClusterView::disagreements(&order, 5).len(), 5);
    }
}

#[test]
fn knows_valkey_from_the_redis_it_claims_to_be() {
    let info = Info::parse("# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n");
    assert_eq!((info.product(), info.version(), info.redis_level()), ("Valkey", Some((9, 1, 2)), (7, 2)));
}

#[test]
fn reads_command_error_and_replica_lines() {
    let info = Info::parse(
        "cmdstat_cluster|nodes:calls=3,usec=1500,usec_per_call=500.00,rejected_calls=0,failed_calls=0\r\n\
         errorstat_MOVED:count=9\r\nslave0:ip=10.0.0.2,port=6379,state=online,offset=42,lag=1\r\nslave_priority:100\r\n\
         db0:keys=5,expires=0\r\n",
    );
    assert_eq!((info.command_stats()["cluster|nodes"].calls, info.command_stats()["cluster|nodes"].usec), (3, 1500));
    assert_eq!(info.error_stats()["MOVED"], 9);
    assert_eq!(info.replicas(), [("10.0.0.2".to_string(), 6379, "online".to_string(), 1, 42)]);
    assert_eq!(info.keys(), 5);
}

proptest! {
    #[test]
    fn a_set_and_its_complement_are_all_slots_once(ranges in prop::collection::vec((0..SLOTS, 0..SLOTS), 0..20)) {
        let set = SlotSet::from_ranges(ranges.iter().map(|&(a, b)| (a.min(b), a.max(b))));
        let rest = set.complement();
        prop_assert_eq!(set.len() + rest.len(), usize::from(SLOTS));
        let both = SlotSet::from_ranges(set.ranges().iter().chain(rest.ranges()).copied());
        prop_assert_eq!(both, SlotSet::all());
    }

    #[test]
    fn any_text_at_all_does_not_panic(text in "\\PC*") {
        let _ = ClusterView::parse(&text);
        let _ = Info::parse(&text).replicas();
    }
}

#[test]
fn a_node_that_was_never_told_its_own_address_is_the_one_that_was_asked() {
    let placed = |line: &str, asked: &str| {
        let id = "a".repeat(40);
        let mut view = ClusterView::parse(&format!("{id} {line} - 0 0 1 connected 0-16383")).unwrap();
        view.place_myself(asked);
        view.nodes[0].address.clone()
    };
    // A forwarded port, TLS alone on servers that then show the other port, and a socket of this machine.
    assert_eq!(placed(":7001@17001 myself,master", "localhost:9001"), "localhost:9001");
    assert_eq!(placed(":0@17001 myself,master", "[fe80::1]:6379"), "[fe80::1]:6379");
    assert_eq!(placed(":7001@17001 myself,master", "unix:/run/valkey.sock"), "unix:/run/valkey.sock");
    // What has an address keeps it, and of another node nothing is known.
    assert_eq!(placed("10.0.0.9:7001@17001 myself,master", "10.0.0.1:6379"), "10.0.0.9:7001");
    assert_eq!(placed(":0@0 master,noaddr", "10.0.0.1:6379"), ":0");
}
