//! Rules about the way to a server: facts by hand, the case and what looks like it.

mod common;
#[path = "common/hand.rs"]
mod hand;

use common::{answer, finding, node, seen};
use hand::{alone, before, commands, lines, machine, peer, rtt, server};
use unslow_doctor::{Answered, Confidence, Currency, Severity};
use unslow_facts::{Facts, Host, PeerSockets, Process, Rtt, Tcp};
use unslow_topology::Role;

/// A server with these sockets, whose machine counted these time-outs.
fn with_sockets(peers: Vec<PeerSockets>, timeouts: u64) -> Facts {
    let mut node =
        server("7.2.4", &lines(&[("total_commands_processed", 10_000.0), ("total_reads_processed", 10_000.0)]));
    node.rtt = rtt(40, 90, 400);
    node.sockets = seen(peers);
    let tcp = Some(Tcp { timeouts, ..Tcp::default() });
    Facts { hosts: vec![Host { tcp, ..machine(Process::default()) }], ..alone(node) }
}

#[test]
fn late_acks_within_the_machine_are_no_loss() {
    let lossy = |host: &str, retransmits| PeerSockets { retransmits, ..peer(host, 4, 100, 10_000) };
    for host in ["127.0.0.1", "::1", "10.0.0.1"] {
        assert_eq!(answer(&with_sockets(vec![lossy(host, 300)], 0), "packet_loss"), Answered::NotHere, "{host}");
    }
    // Probes that came too early, to a client that is short of CPU.
    assert_eq!(answer(&with_sockets(vec![lossy("10.0.0.9", 50)], 0), "packet_loss"), Answered::Absent);
    assert_eq!(answer(&with_sockets(vec![lossy("10.0.0.9", 50)], 3), "packet_loss"), Answered::Present);
    // At 3 % it is called loss without a time-out too, with less confidence.
    let found = finding(&with_sockets(vec![lossy("10.0.0.9", 300)], 0), "packet_loss");
    assert_eq!(found.confidence, Confidence::Possible);
    assert_eq!(answer(&alone(server("7.2.4", "")), "packet_loss"), Answered::Unknown);
}

/// TCP finds the speed of the path for a full copy by losing segments.
#[test]
fn what_a_full_copy_loses_is_no_packet_loss() {
    let lossy = |host: &str| PeerSockets { retransmits: 3000, ..peer(host, 1, 100, 10_000) };
    let copied = |first: &str, last: &str, copies: &str| {
        let mut facts = with_sockets(vec![lossy("10.0.0.9")], 3);
        let node = &mut facts.nodes[0];
        for (sample, state, copies) in [(&mut node.first, first, "0"), (&mut node.last, last, copies)] {
            let info = &mut sample.as_mut().expect("both").info.0;
            info.insert("slave0".into(), format!("ip=10.0.0.9,port=6379,state={state},offset=1,lag=0"));
            info.insert("sync_full".into(), copies.into());
        }
        facts
    };
    assert_eq!(answer(&copied("online", "online", "0"), "packet_loss"), Answered::Present);
    for (first, last, copies) in
        [("online", "send_bulk", "0"), ("wait_bgsave", "online", "0"), ("online", "online", "1")]
    {
        assert_eq!(answer(&copied(first, last, copies), "packet_loss"), Answered::NotHere, "{first} {last} {copies}");
    }
    // Clients elsewhere count as before.
    let mut facts = copied("online", "send_bulk", "1");
    facts.nodes[0].sockets = seen(vec![lossy("10.0.0.9"), lossy("10.0.0.8")]);
    assert_eq!(answer(&facts, "packet_loss"), Answered::Present);
}

#[test]
fn distance_is_the_smallest_of_many_round_trips() {
    let near = peer("10.0.0.8", 10, 60, 5000);
    let far = peer("10.1.0.9", 10, 1100, 5000);
    let found = finding(&with_sockets(vec![near.clone(), far], 0), "far_client");
    assert_eq!((found.confidence, found.impact.currency), (Confidence::Proven, Currency::Latency));
    // No replica here: none is offered.
    assert!(!commands(&found).contains("ReadFrom"), "{}", commands(&found));
    for (what, look_alike) in [
        ("one sample, with a delayed ACK in it", peer("10.1.0.9", 4, 41_000, 3)),
        (
            "one of its sockets is near, so its machine is",
            PeerSockets { min_rtt_us_p50: 40_000, ..peer("10.1.0.9", 4, 90, 5000) },
        ),
        ("the same machine", peer("127.0.0.1", 4, 52_000, 5000)),
        ("the same machine by its own address", peer("10.0.0.1", 4, 52_000, 5000)),
    ] {
        assert_eq!(answer(&with_sockets(vec![near.clone(), look_alike], 0), "far_client"), Answered::Absent, "{what}");
    }
}

#[test]
fn stalls_of_the_server_are_no_distance() {
    let from_here = |address: &str, us_min: u32, connect_us: Option<u64>| {
        let mut node = node(address, Role::Master, &before("7.2.4"), "");
        node.rtt = rtt(us_min, us_min * 2, us_min * 3);
        node.connect_us = connect_us;
        alone(node)
    };
    // A script runs for 52 ms at a time; the kernel takes connections meanwhile.
    for address in ["10.0.0.1:6379", "127.0.0.1:6379", "[::1]:6379", "localhost:6379", "unix:/run/redis.sock"] {
        assert_eq!(answer(&from_here(address, 51_900, Some(90)), "far_client"), Answered::Unknown, "{address}");
    }
    assert_eq!(answer(&from_here("127.0.0.1:6379", 51_900, None), "far_client"), Answered::Unknown);
    // A few PINGs, each in a stall, and no handshake seen.
    let mut few = from_here("10.0.0.1:6379", 51_900, None);
    few.nodes[0].rtt = seen(Rtt { count: 3, us_min: 51_900, us_p50: 60_000, us_p99: 70_000, us_max: 70_000 });
    assert_eq!(answer(&few, "far_client"), Answered::Unknown);
    // Really far, and still only a risk: the clients may be elsewhere.
    assert_eq!(finding(&from_here("10.0.0.1:6379", 30_000, Some(30_100)), "far_client").severity, Severity::Risk);
}
