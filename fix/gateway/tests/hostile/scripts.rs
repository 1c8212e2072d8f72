//! Scripts can reply anything: errors that look like redirections, and values nested to any depth.

use std::io::ErrorKind;
use std::net::TcpListener;

use unslow_engine::{Deployment, Shape};
use unslow_testkit::servers::deployment;
use unslow_testkit::slots::owner_of;
use unslow_testkit::{PATIENCE, standalone};
use unslow_topology::slot_of;

use crate::bystanders::tag;
use crate::common::gate;
use crate::common::wire::{End, Until, Wire, command, shown};
use crate::{ENGINE, OTHERS, beside, target, three_masters, wire};

/// Counts its runs and returns the error it is given.
const SCRIPT: &str = "redis.call('INCR', KEYS[1]) return redis.error_reply(ARGV[1])";
const LIBRARY: &str = "#!lua name=attack\nredis.register_function('attack', function(keys, args) \
     redis.call('INCR', keys[1]) return redis.error_reply(args[1]) end)";

/// Errors that a proxy acts on when they come from a server. Other clients use `slot`; `trap` is an address without a
/// server.
fn errors(slot: u16, trap: &str) -> Vec<String> {
    let fixed = [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "LOADING The server is loading the dataset in memory",
        "CLUSTERDOWN The cluster is down",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "READONLY You can't write against a read only replica.",
        "NOSCRIPT No matching script.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        "NOAUTH Authentication required.",
    ];
    let moved = [format!("MOVED {slot} {trap}"), format!("ASK {slot} {trap}"), format!("MOVED {slot} {trap} more")];
    moved.into_iter().chain(fixed.map(String::from)).collect()
}

/// Each script runs once, its error reaches the client unchanged, and the gateway does not follow it.
fn cannot_redirect(servers: &Deployment, cluster: bool) {
    let trap = TcpListener::bind("127.0.0.1:0").expect("a free port");
    trap.set_nonblocking(true).expect("it is a socket");
    let address = trap.local_addr().expect("it is bound").to_string();
    let owner = if cluster { owner_of(servers, slot_of(b"{attack}")) } else { 0 };
    let mut direct = Wire::open(&servers.nodes[owner].address(), PATIENCE);
    let gateway = gate(&servers.url(), |_| {});
    let mut attacker = wire(&gateway);
    // The gateway loads them on every master.
    let loaded = attacker.call(&["SCRIPT", "LOAD", SCRIPT]);
    let digest = String::from_utf8_lossy(&loaded[5..45]).into_owned();
    assert_eq!(attacker.call(&["FUNCTION", "LOAD", LIBRARY]), b"$6\r\nattack\r\n");
    let mut number = 0;
    beside(&target(&gateway), |others| {
        for slot in (0..4).map(|other| slot_of(tag(OTHERS, other).as_bytes())) {
            for error in errors(slot, &address) {
                for [how, what] in [["EVAL", SCRIPT], ["EVALSHA", &digest], ["FCALL", "attack"]] {
                    // Alone, and with later commands already in flight.
                    for more in [0, 3] {
                        number += 1;
                        let key = format!("{{attack}}{number}");
                        let expected = direct.call(&[how, what, "1", &format!("{key}-direct"), &error]);
                        let mut bytes = command(&[how, what, "1", &key, &error]);
                        bytes.extend(command(&["STRLEN", &key]).repeat(more));
                        attacker.write(&bytes);
                        let heard = attacker.hear(&Until::Replies(1 + more), 0);
                        assert_eq!(heard.end, End::Open, "{how} {error}");
                        assert_eq!(shown(&heard.replies[0]), shown(&expected), "{how} {error}");
                        assert!(heard.replies[1..].iter().all(|reply| reply == b":1\r\n"), "{how} {error}: {heard:?}");
                        let count = attacker.call(&["GET", &key]);
                        assert_eq!(shown(&count), "$1\\r\\n1\\r\\n", "{how} {error}: the number of runs");
                    }
                }
                others.do_more(1);
            }
        }
    });
    let backends = attacker.call(&["UNSLOW", "SHOW", "BACKENDS"]);
    let known = backends.windows(address.len()).any(|window| window == address.as_bytes());
    assert!(!known, "the gateway keeps a connection for an address that only a script named");
    match trap.accept() {
        Err(e) if e.kind() == ErrorKind::WouldBlock => {}
        visit => panic!("something connected to an address that only a script named: {visit:?}"),
    }
}

#[test]
fn a_script_cannot_redirect_other_clients_of_a_server() {
    cannot_redirect(&deployment(ENGINE, Shape::Standalone, &[]), false);
}

#[test]
fn a_script_cannot_redirect_other_clients_of_a_cluster() {
    cannot_redirect(&three_masters(), true);
}

#[test]
fn deeply_nested_replies_leave_other_clients_alone() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let mut direct = Wire::open(&server.address(), PATIENCE);
    beside(&target(&gateway), |others| {
        for depth in [10, 40, 1000] {
            let script = format!("local t = {{}} for i = 1, {depth} do t = {{t}} end return t");
            let nested = command(&["EVAL", &script, "0"]);
            let expected = direct.call(&["EVAL", &script, "0"]);
            for _ in 0..5 {
                let mut attacker = wire(&gateway);
                attacker.write(&nested);
                let heard = attacker.hear(&Until::Replies(1), 0);
                let same = heard.replies == [expected.clone()];
                // No command has such a reply, so the gateway may refuse it.
                let own = heard.replies.first().is_some_and(|reply| reply.starts_with(b"-ERR unslow"));
                let refused = own || heard.end == End::Closed;
                assert!(same || depth > 32 && refused, "{depth} deep: {}", shown(&heard.replies.concat()));
                others.do_more(2);
            }
        }
    });
}

#[test]
fn long_errors_and_simple_strings_of_scripts_leave_other_clients_alone() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let mut direct = Wire::open(&server.address(), PATIENCE);
    beside(&target(&gateway), |others| {
        for length in [1000, 65_535, 65_536, 65_537, 100_000, 3_000_000] {
            let text = format!("string.rep('x', {length})");
            for reply in
                ["redis.error_reply(T)", "redis.status_reply(T)", "{redis.status_reply(T), redis.error_reply(T), 1}"]
            {
                let script = format!("return {}", reply.replace('T', &text));
                let expected = direct.call(&["EVAL", &script, "0"]);
                let mut attacker = wire(&gateway);
                let same = attacker.call(&["EVAL", &script, "0"]) == expected;
                assert!(same && expected.len() > length, "{script}");
                others.do_more(1);
            }
        }
    });
}
