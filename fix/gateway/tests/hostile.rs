//! Hostile clients beside well-behaved ones. Whatever one client sends through the gateway, the others get the right
//! replies, keep their connections, and see no error that says a command "may or may not have run".
//!
//! No test judges a time. They fail on wrong replies, on connections that were closed or should have been, on commands
//! that ran twice, on connections to addresses without a server, and on memory above the configured limits. The soak
//! also prints latencies.

#[path = "hostile/bystanders.rs"]
mod bystanders;
mod common;
#[path = "hostile/scripts.rs"]
mod scripts;
#[path = "hostile/shares.rs"]
mod shares;
#[path = "hostile/soak.rs"]
mod soak;
#[path = "hostile/subscribers.rs"]
mod subscribers;
#[path = "hostile/users.rs"]
mod users;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use unslow_client::{Secret, Target};
use unslow_engine::{Deployment, Error, Server, Shape};
use unslow_gateway::{ClientAuth, Gateway};
use unslow_testkit::servers::{deployment, server};
use unslow_testkit::until;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, options, standalone};

use bystanders::Bystanders;
use common::wire::{End, Until, Wire, command, elements, shown};
use common::{gate, resident_mb};

const ENGINE: &str = "valkey-9.1";
const OTHERS: &str = "other";

/// A connection to the gateway.
#[track_caller]
fn wire(gateway: &Gateway) -> Wire {
    Wire::open(&gateway.addresses[0], PATIENCE)
}

#[track_caller]
fn target(gateway: &Gateway) -> Target {
    Target::parse(&gateway.addresses[0]).expect("an address")
}

/// Runs an attack beside well-behaved clients, which must not be affected during or after it.
#[track_caller]
fn beside(others: &Target, attack: impl FnOnce(&Bystanders)) {
    let others = Bystanders::start(others, 4, OTHERS);
    others.do_more(20);
    attack(&others);
    others.do_more(60);
    let wrong = others.end().wrong;
    assert!(wrong.is_empty(), "other clients were affected: {}", wrong.join("\n"));
}

fn three_masters() -> Deployment {
    let shape = Shape::Cluster { masters: 3, replicas: 0, hosts: Vec::new() };
    deployment(ENGINE, shape, &[("cluster-node-timeout", "15000")])
}

// Protocol errors.

#[test]
fn lengths_that_servers_refuse_close_only_the_connection_they_came_on() {
    const LENGTHS: [&[u8]; 10] = [
        b"*02\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$03\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$3\r\nGET\r\n$0001\r\nk\r\n",
        b"*+2\r\n$3\r\nGET\r\n$1\r\nk\r\n",
        b"*2\r\n$+3\r\nGET\r\n$1\r\nk\r\n",
        b"*1\r\n$-0\r\n\r\n",
        b"*2\r\n$3\r\nGET\r\n$-0\r\n\r\n",
        b"*-0\r\n",
        b"* 1\r\n$4\r\nPING\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$05\r\nvalue\r\n",
    ];
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    beside(&target(&gateway), |others| {
        for round in 0..10 {
            for bytes in LENGTHS {
                let mut attacker = wire(&gateway);
                // After valid commands, some of which are still in flight.
                let before = command(&["GET", "k"]).repeat(round);
                attacker.write(&[&before[..], bytes].concat());
                let reply = attacker.until_closed();
                let expected = [b"$-1\r\n".repeat(round), b"-ERR Protocol error".to_vec()].concat();
                assert!(reply.starts_with(&expected), "{}: {}", shown(bytes), shown(&reply));
            }
            others.do_more(4);
        }
    });
}

#[test]
fn http_requests_close_only_the_connection_they_came_on() {
    const REQUESTS: [&[u8]; 10] = [
        b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"post /\r\n",
        b"\"POST\" /\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"hOsT: x\r\n",
        b"Host:\r\n",
        b"*2\r\n$4\r\nPoSt\r\n$1\r\n/\r\n",
        b"*1\r\n$5\r\nhost:\r\n",
        b"MULTI\r\nSET k v\r\nPOST /\r\n",
        b"SUBSCRIBE c\r\nPOST /\r\n",
    ];
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    beside(&target(&gateway), |others| {
        for _ in 0..10 {
            for bytes in REQUESTS {
                let mut attacker = wire(&gateway);
                attacker.write(bytes);
                attacker.until_closed();
            }
            others.do_more(4);
        }
    });
}

// Unknown commands.

/// Random unknown commands: each gets the server's error and leaves its connection open.
fn unknown_commands(url: &str) {
    let gateway = gate(url, |_| {});
    let mut rng = StdRng::seed_from_u64(1);
    beside(&target(&gateway), |others| {
        let mut attacker = wire(&gateway);
        for round in 0..300 {
            let name: Vec<u8> = match round % 4 {
                0 => format!("NOSUCH{round}").into_bytes(),
                1 => (0..rng.random_range(1..40)).map(|_| rng.random_range(128..=255)).collect(),
                2 => b"client|reply".to_vec(),
                _ => b"get\0\r\n".to_vec(),
            };
            let mut words = vec![name];
            words.resize(rng.random_range(1..300), b"an argument".to_vec());
            let reply = attacker.call(&words);
            assert!(reply.starts_with(b"-ERR "), "{}: {}", shown(&words[0]), shown(&reply));
            assert_eq!(attacker.call(&["ECHO", "still here"]), b"$10\r\nstill here\r\n");
            if round % 30 == 0 {
                others.do_more(4);
            }
        }
    });
}

#[test]
fn unknown_commands_leave_other_clients_of_a_server_alone() {
    unknown_commands(&standalone(ENGINE).url());
}

#[test]
fn unknown_commands_leave_other_clients_of_a_cluster_alone() {
    unknown_commands(&three_masters().url());
}

#[test]
fn a_renamed_command_does_not_act_on_connections_of_other_clients() {
    // The server's table of commands keeps the old name, so the gateway does not know the new one.
    const RENAMED: [(&str, &[&[&str]]); 6] = [
        ("QUIT leave-now", &[&["leave-now"]]),
        ("CLIENT callers", &[&["callers", "REPLY", "OFF"], &["callers", "REPLY", "SKIP"]]),
        ("SELECT database", &[&["database", "3"]]),
        ("RESET again", &[&["again"]]),
        ("MONITOR look", &[&["look"]]),
        ("HELLO greet", &[&["greet", "3"]]),
    ];
    for (renamed, attacks) in RENAMED {
        println!("{renamed}");
        let server = server(ENGINE, &[("rename-command", renamed)]);
        let gateway = gate(&server.url(), |_| {});
        beside(&target(&gateway), |others| {
            for attack in attacks {
                for _ in 0..5 {
                    // The reply is not read: some of these commands have none.
                    let mut attacker = wire(&gateway);
                    attacker.write(&command(attack));
                    others.do_more(8);
                }
            }
        });
    }
}

// Long values.

#[test]
fn clients_that_leave_in_the_middle_of_a_long_value_leave_no_server_connections() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let half = [&b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$10000000\r\n"[..], &b"x".repeat(1 << 20)].concat();
    beside(&target(&gateway), |others| {
        for round in 0..40 {
            wire(&gateway).write(&half);
            if round % 10 == 0 {
                others.do_more(4);
            }
        }
    });
    until_few_connections(&server);
}

#[track_caller]
fn until_few_connections(server: &Server) {
    until_ok("the server to have few connections again", || {
        let list = server.connect_with(&options(2))?.call(&["CLIENT", "LIST"])?.text().unwrap_or_default();
        Ok::<_, Error>(list.lines().count() < 20)
    });
}

// Users.

const USER: &str = "application";
const WORD: &str = "its-word";

/// Creates a user who may run all commands but one; returns how that user reaches the gateway.
#[track_caller]
fn user_without(denied: &str, server: &Server, gateway: &Gateway) -> Target {
    let mut admin = server.connect_with(&options(2)).expect("the server answers");
    let (word, denied) = (format!(">{WORD}"), format!("-{denied}"));
    admin.call(&["ACL", "SETUSER", USER, "on", &word, "~*", "&*", "+@all", &denied]).expect("the rules are valid");
    Target { user: Some(USER.into()), password: Some(Secret::new(WORD)), ..target(gateway) }
}

#[track_caller]
fn logged_in(gateway: &Gateway) -> Wire {
    let mut attacker = wire(gateway);
    assert_eq!(attacker.call(&["AUTH", USER, WORD]), b"+OK\r\n");
    attacker
}

#[test]
fn a_transaction_that_may_not_be_discarded_leaves_other_clients_alone() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    beside(&user_without("discard", &server, &gateway), |others| {
        for round in 0..30 {
            let mut attacker = logged_in(&gateway);
            assert_eq!(attacker.call(&["MULTI"]), b"+OK\r\n");
            assert_eq!(attacker.call(&["INCR", "attacked"]), b"+QUEUED\r\n");
            let reply = attacker.call(&["DISCARD"]);
            assert!(reply.starts_with(b"-NOPERM"), "{}", shown(&reply));
            // The transaction is still open, and EXEC will fail.
            assert_eq!(attacker.call(&["INCR", "attacked"]), b"+QUEUED\r\n");
            if round % 2 == 0 {
                let reply = attacker.call(&["EXEC"]);
                assert!(reply.starts_with(b"-EXECABORT"), "{}", shown(&reply));
            }
            others.do_more(4);
            drop(attacker);
            others.do_more(4);
        }
    });
    let attacked = Wire::open(&server.address(), PATIENCE).call(&["GET", "attacked"]);
    assert_eq!(shown(&attacked), "$-1\\r\\n", "a command of a transaction that never ran has run");
}

#[test]
fn a_watch_that_may_not_be_ended_leaves_other_clients_alone() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let mut direct = Wire::open(&server.address(), PATIENCE);
    beside(&user_without("unwatch", &server, &gateway), |others| {
        for round in 0..30 {
            let mut attacker = logged_in(&gateway);
            assert_eq!(attacker.call(&["WATCH", "attacked"]), b"+OK\r\n");
            let reply = attacker.call(&["UNWATCH"]);
            assert!(reply.starts_with(b"-NOPERM"), "{}", shown(&reply));
            direct.call(&["SET", "attacked", &round.to_string()]);
            if round % 2 == 0 {
                assert_eq!(attacker.call(&["MULTI"]), b"+OK\r\n");
                assert_eq!(attacker.call(&["GET", "attacked"]), b"+QUEUED\r\n");
                assert_eq!(shown(&attacker.call(&["EXEC"])), "*-1\\r\\n", "it still watches, and the key has changed");
            }
            others.do_more(4);
            drop(attacker);
            others.do_more(4);
        }
    });
}

#[test]
fn three_hundred_passwords_for_one_user_leave_few_server_connections() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    beside(&target(&gateway), |others| {
        // One client per password, and one client that tries them all.
        let mut stays = wire(&gateway);
        for number in 0..300 {
            let word = format!("word-{number}");
            let mut visitor = wire(&gateway);
            for client in [&mut visitor, &mut stays] {
                assert_eq!(client.call(&["AUTH", "default", &word]), b"+OK\r\n");
                assert_eq!(client.call(&["SET", "attacked", &word]), b"+OK\r\n");
            }
            if number % 50 == 0 {
                others.do_more(4);
            }
        }
    });
    until_few_connections(&server);
}

#[test]
fn clients_that_send_too_much_before_they_log_in_get_an_error_and_are_closed() {
    const SENT: usize = 1 << 20;
    let server = server(ENGINE, &[("requirepass", "owner")]);
    let gateway = gate(&server.url(), |config| {
        config.target = format!("redis://:owner@{}", server.address());
        config.client_auth = ClientAuth::Server;
    });
    let one_long = [&b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$9000000\r\n"[..], &b"x".repeat(SENT)].concat();
    let many_short = [&b"*100000\r\n$3\r\nDEL\r\n"[..], &b"$10\r\n0123456789\r\n".repeat(SENT / 17)].concat();
    let line = b"x".repeat(SENT);
    let others = Target { password: Some(Secret::new("owner")), ..target(&gateway) };
    beside(&others, |others| {
        let mut attackers: Vec<Wire> = (0..20).map(|_| wire(&gateway)).collect();
        for (number, attacker) in attackers.iter_mut().enumerate() {
            attacker.write([&one_long, &many_short, &line][number % 3]);
        }
        others.do_more(4);
        for attacker in &mut attackers {
            let reply = attacker.until_closed();
            assert!(reply.starts_with(b"-"), "closed without an error: {}", shown(&reply));
        }
    });
}

// Memory.

#[test]
fn unfinished_commands_of_many_small_arguments_leave_other_clients_alone() {
    const PIECES: usize = 200;
    const ARGUMENTS: usize = 100;
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let header = format!("*{}\r\n$6\r\nEXISTS\r\n", PIECES * ARGUMENTS + 1).into_bytes();
    let piece = b"$1\r\nk\r\n".repeat(ARGUMENTS);
    beside(&target(&gateway), |others| {
        let mut finished: Vec<Wire> = (0..10).map(|_| wire(&gateway)).collect();
        let mut unfinished: Vec<Wire> = (0..10).map(|_| wire(&gateway)).collect();
        finished.iter_mut().chain(&mut unfinished).for_each(|attacker| attacker.write(&header));
        for sent in 0..PIECES {
            let those = finished.iter_mut().chain(unfinished.iter_mut().filter(|_| sent + 1 < PIECES));
            those.for_each(|attacker| attacker.write(&piece));
            if sent % 20 == 0 {
                others.do_more(4);
            }
        }
        for attacker in &mut finished {
            let heard = attacker.hear(&Until::Replies(1), 0);
            assert_eq!((heard.end, heard.replies), (End::Open, vec![b":0\r\n".to_vec()]));
        }
    });
}

/// Each holds far less than one client may; together they hold more than all may.
#[test]
fn answers_that_nobody_reads_are_bounded_for_all_clients_together() {
    const ALL: usize = 4 << 20;
    let server = standalone(ENGINE);
    let mut direct = server.connect_with(&options(2)).expect("a server");
    direct.call(&["SET", "big", &"x".repeat(4 << 20)]).expect("room for it");
    let gateway = gate(&server.url(), |config| config.output_bytes = ALL);
    let mut asker = target_connection(&gateway);
    beside(&target(&gateway), |others| {
        let before = resident_mb(std::process::id());
        let mut attackers: Vec<Wire> = (0..16).map(|_| wire(&gateway)).collect();
        attackers.iter_mut().for_each(|attacker| attacker.write(&command(&["GET", "big"]).repeat(2)));
        // Sixteen of them ask for 8 MB each: some have to go, whatever the sockets take.
        until("clients that hold too much to be closed", || closed_slow(&mut asker) > 0);
        others.do_more(20);
        let grown = resident_mb(std::process::id()).saturating_sub(before);
        assert!(grown <= 2 * (ALL as u64 >> 20) + 64, "the gateway holds {grown} MB of answers");
    });
    // A client that reads gets all of it.
    let reply = asker.call(&["GET", "big"]).expect("an answer");
    assert_eq!(reply.text().map(|text| text.len()), Some(4 << 20));
}

fn target_connection(gateway: &Gateway) -> unslow_client::Connection {
    unslow_client::Connection::open(&target(gateway), &options(2)).expect("a connection")
}

fn closed_slow(asker: &mut unslow_client::Connection) -> u64 {
    let reply = asker.call(&["UNSLOW", "SHOW", "STATS"]).expect("statistics");
    let value = |row: String| row.strip_prefix("clients_closed_slow_total=")?.parse().ok();
    let mut rows = reply.items().iter().filter_map(unslow_client::Value::text);
    rows.find_map(value).expect("the counter")
}

#[test]
fn transactions_without_a_key_are_buffered_up_to_a_limit() {
    const COMMANDS: usize = 1000;
    // The default `hold_bytes` for each of three nodes, plus allocator overhead.
    const ALLOWED_MB: u64 = 3 * 16 + 32;
    let servers = three_masters();
    let gateway = gate(&servers.url(), |_| {});
    // 256 MB in total.
    let echo = command(&["ECHO", &"x".repeat(32 << 10)]);
    beside(&target(&gateway), |others| {
        let before = resident_mb(std::process::id());
        let mut attackers: Vec<Wire> = (0..8).map(|_| wire(&gateway)).collect();
        let mut queued = Vec::new();
        for attacker in &mut attackers {
            attacker.write(&command(&["MULTI"]));
            (0..COMMANDS).for_each(|_| attacker.write(&echo));
            let heard = attacker.hear(&Until::Replies(COMMANDS + 1), 0);
            assert_ne!(heard.end, End::Silent, "after {} replies", heard.replies.len());
            let fine = |reply: &&Vec<u8>| reply.as_slice() == b"+QUEUED\r\n";
            let count = heard.replies.iter().filter(fine).count();
            let refused = heard.replies.iter().skip(1).all(|reply| fine(&reply) || reply.starts_with(b"-ERR unslow"));
            assert!(refused, "neither queued nor refused: {}", shown(&heard.replies.concat()));
            queued.push(count);
            others.do_more(1);
        }
        let grown = resident_mb(std::process::id()).saturating_sub(before);
        assert!(grown <= ALLOWED_MB, "the gateway holds {grown} MB of transactions that no server has yet");
        // Either the whole transaction runs or none of it.
        for (attacker, queued) in attackers.iter_mut().zip(queued) {
            attacker.write(&command(&["EXEC"]));
            let heard = attacker.hear(&Until::Replies(1), 0);
            let well = match heard.replies.first() {
                None => heard.end == End::Closed,
                Some(reply) if reply.starts_with(b"-") => true,
                Some(reply) => queued == COMMANDS && elements(reply).is_some_and(|all| all.len() == COMMANDS),
            };
            assert!(well, "{queued} were queued, and EXEC: {:?} {}", heard.end, shown(&heard.replies.concat()));
        }
    });
}

#[test]
#[ignore = "long: all attacks, or UNSLOW_SOAK_ATTACKS, at once for two minutes, or UNSLOW_SOAK_S"]
fn all_attacks_at_once_leave_other_clients_unhurt() {
    let seconds = std::env::var("UNSLOW_SOAK_S").map_or(120, |text| text.parse().expect("UNSLOW_SOAK_S is a number"));
    soak::run(std::time::Duration::from_secs(seconds));
}
