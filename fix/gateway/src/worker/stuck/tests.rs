//! What a busy server's words do to the clients of its shared connections, on a rig without servers.

use unslow_reactor::Id;
use unslow_topology::{Health, Node};

use super::*;
use crate::config::Config;
use crate::map::tests::node;
use crate::worker::tests::{A, B, Rig};

const BUSY: &str = "-BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n";

/// A client runs a script on the first node for longer than servers take it, and the node says so.
fn busy(rig: &mut Rig) -> Id {
    let [key, ..] = rig.keys(0);
    let runs = rig.client(None);
    rig.says(runs, &format!("EVAL script 1 {key}\r\n"));
    assert_eq!(rig.asked(0), [format!("EVAL script 1 {key}")]);
    rig.stands_still();
    assert_eq!(rig.asked(0), ["PING"]);
    rig.answers_probe(0, BUSY);
    runs
}

#[test]
fn a_busy_servers_clients_hear_so_at_once_until_the_script_ends() {
    let mut rig = Rig::halves(Config::default());
    let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
    let runs = busy(&mut rig);
    let other = rig.client(None);
    for line in [format!("GET {here}"), format!("SET {here} v"), format!("EVAL script 1 {here}")] {
        rig.says(other, &format!("{line}\r\n"));
        assert_eq!((rig.told(other).as_str(), rig.asked(0).len()), (BUSY, 0), "{line}");
    }
    // Nothing changes for the other node, nor for what the gateway answers itself.
    rig.says(other, &format!("GET {there}\r\nPING\r\n"));
    assert_eq!(rig.asked(1), [format!("GET {there}")]);
    rig.answers(1, "$-1\r\n");
    assert_eq!(rig.told(other), "$-1\r\n+PONG\r\n");
    // The script's own client is not read by a server either: what it says next comes next.
    rig.says(runs, &format!("GET {here}\r\n"));
    assert_eq!((rig.told(runs).as_str(), rig.asked(0)), ("", vec![format!("GET {here}")]));
    rig.answers(0, ":1\r\n$-1\r\n");
    assert_eq!(rig.told(runs), ":1\r\n$-1\r\n");
    rig.says(other, &format!("GET {here}\r\n"));
    assert_eq!(rig.asked(0), [format!("GET {here}")]);
    rig.answers(0, "$-1\r\n");
    assert_eq!(rig.told(other), "$-1\r\n");
    rig.stands_still();
    assert!(!rig.worker.stuck.some());
}

#[test]
fn a_connection_that_is_only_slow_refuses_nobody_and_is_asked_about_once_a_second() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (runs, other) = (rig.client(None), rig.client(None));
    rig.says(runs, &format!("EVAL script 1 {key}\r\n"));
    rig.asked(0);
    rig.stands_still();
    assert_eq!(rig.asked(0), ["PING"]);
    // It has not answered: one question at a time.
    rig.worker.stuck.nodes.get_mut(&0).expect("it was asked").asked_at = 0;
    rig.stands_still();
    assert!(rig.asked(0).is_empty());
    rig.answers_probe(0, "+PONG\r\n");
    rig.says(other, &format!("GET {key}\r\n"));
    assert_eq!((rig.told(other).as_str(), rig.asked(0)), ("", vec![format!("GET {key}")]));
    rig.stands_still();
    assert_eq!(rig.asked(0), ["PING"], "the second has passed");
    rig.answers_probe(0, "-NOPERM User app has no permissions to run the 'ping' command\r\n");
    rig.stands_still();
    assert!(rig.asked(0).is_empty(), "it was asked just now");
    assert!(!rig.worker.stuck.some());
}

#[test]
fn where_servers_never_say_that_they_are_busy_none_is_asked() {
    let mut stuck = Stuck::default();
    for (threshold, patience) in [(None, Some(5100 * MS)), (Some(200), Some(300 * MS)), (Some(0), None)] {
        stuck.obey(threshold);
        assert_eq!(stuck.patience, patience, "{threshold:?}");
    }
    let mut rig = Rig::halves(Config::default());
    rig.worker.shared.limits.lock().unwrap().busy_ms = Some(0);
    let [key, ..] = rig.keys(0);
    let runs = rig.client(None);
    rig.says(runs, &format!("EVAL script 1 {key}\r\n"));
    rig.asked(0);
    rig.stands_still();
    assert!(rig.asked(0).is_empty());
}

#[test]
fn a_refused_command_spoils_its_transaction_and_a_watch_is_the_servers() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (watches, other) = (rig.client(None), rig.client(None));
    rig.says(watches, &format!("WATCH {key}\r\n"));
    assert_eq!(rig.asked(0), [format!("WATCH {key}")]);
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.told(watches), "+OK\r\n");
    busy(&mut rig);
    rig.says(other, &format!("MULTI\r\nSET {key} v\r\nSET {key} w\r\nEXEC\r\n"));
    let expected = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    assert_eq!(rig.told(other), format!("+OK\r\n{BUSY}{BUSY}{expected}"));
    assert!(rig.asked(0).is_empty());
    // What is on a connection of its own the server answers, whatever it says.
    rig.says(watches, &format!("GET {key}\r\nMULTI\r\n"));
    assert_eq!((rig.told(watches).as_str(), rig.asked(0)), (BUSY, vec!["MULTI".to_string()]));
    rig.answers(0, "+OK\r\n");
    rig.says(watches, &format!("SET {key} v\r\nEXEC\r\n"));
    assert_eq!(rig.asked(0), [format!("SET {key} v"), "EXEC".into()]);
    rig.answers(0, &format!("{BUSY}-EXECABORT Transaction discarded because of: BUSY\r\n"));
    let told = format!("+OK\r\n{BUSY}-EXECABORT Transaction discarded because of: BUSY\r\n");
    assert_eq!(rig.told(watches), told);
}

#[test]
fn of_a_command_over_several_nodes_nothing_is_sent_and_nothing_blocks() {
    let mut rig = Rig::halves(Config::default());
    let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
    busy(&mut rig);
    let other = rig.client(None);
    for line in [
        format!("MGET {there} {here}"),
        format!("MSET {there} 1 {here} 2"),
        format!("DEL {here} {there}"),
        "FLUSHALL".into(),
        format!("BLPOP {here} 0"),
    ] {
        rig.says(other, &format!("{line}\r\n"));
        assert_eq!(rig.told(other), BUSY, "{line}");
        assert!(rig.asked(0).is_empty() && rig.asked(1).is_empty(), "{line}");
    }
    assert_eq!(rig.worker.gathers.len(), 0);
}

#[test]
fn a_long_value_for_a_busy_server_goes_nowhere() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    busy(&mut rig);
    let other = rig.client(None);
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$300000\r\n", key.len());
    rig.says(other, &(head + &"x".repeat(1000)));
    assert_eq!(rig.told(other), BUSY);
    rig.says(other, &("x".repeat(299_000) + "\r\n"));
    rig.says(other, "PING\r\n");
    assert_eq!((rig.told(other).as_str(), rig.asked(0).len()), ("+PONG\r\n", 0));
}

#[test]
fn script_kill_reaches_a_busy_server() {
    let mut rig = Rig::halves(Config::default());
    let runs = busy(&mut rig);
    let operator = rig.client(None);
    rig.says(operator, "SCRIPT KILL\r\n");
    assert_eq!((rig.asked(0), rig.asked(1)), (vec!["SCRIPT KILL".into()], vec!["SCRIPT KILL".into()]));
    rig.answers(1, "-NOTBUSY No scripts in execution right now.\r\n");
    // The script's connection is the first.
    rig.answers(0, "-ERR Error running script: Script killed by user with SCRIPT KILL...\r\n");
    assert!(rig.told(runs).contains("killed"));
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.told(operator), "+OK\r\n");
}

#[test]
fn a_node_that_is_suspected_is_asked_and_what_waits_for_it_is_refused() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (runs, other) = (rig.client(None), rig.client(None));
    rig.says(runs, &format!("EVAL script 1 {key}\r\n"));
    rig.asked(0);
    let silent = Node { health: Health::Suspected, ..node(A, None, &[(0, 8191)]) };
    rig.remap(vec![silent, node(B, None, &[(8192, 16383)])]);
    for client in [runs, other] {
        rig.says(client, &format!("GET {key}\r\n"));
    }
    assert!(rig.asked(0).is_empty());
    rig.stands_still();
    assert_eq!(rig.asked(0), ["PING"]);
    rig.answers_probe(0, BUSY);
    assert_eq!((rig.told(other).as_str(), rig.told(runs).as_str()), (BUSY, ""));
    rig.says(other, "SCRIPT KILL\r\n");
    assert_eq!(rig.asked(0), ["SCRIPT KILL"]);
}

#[test]
fn ping_is_refused_where_every_master_is_busy() {
    let mut rig = Rig::alone();
    let runs = busy(&mut rig);
    let other = rig.client(None);
    rig.says(other, "PING\r\nPING text\r\n");
    assert_eq!(rig.told(other), format!("{BUSY}{BUSY}"));
    // A server looks at the number of arguments first.
    rig.says(other, "PING one two\r\n");
    let told = rig.told(other);
    assert!(told.starts_with("-ERR wrong number of arguments"), "{told}");
    // In its order, behind the script.
    rig.says(runs, "PING\r\n");
    rig.answers(0, ":1\r\n");
    assert_eq!(rig.told(runs), ":1\r\n+PONG\r\n");
    rig.says(other, "PING\r\n");
    assert_eq!(rig.told(other), "+PONG\r\n");
}

#[test]
fn when_the_connection_breaks_nobody_is_refused_any_more() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let runs = busy(&mut rig);
    rig.breaks(0);
    assert!(rig.told(runs).contains("may or may not have run"));
    let other = rig.client(None);
    rig.says(other, &format!("GET {key}\r\n"));
    assert_eq!((rig.told(other).as_str(), rig.asked(0)), ("", vec![format!("GET {key}")]));
}

#[test]
fn the_scripts_client_is_known_behind_a_command_whose_reply_the_server_keeps() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (before, runs, other) = (rig.client(None), rig.client(None), rig.client(None));
    rig.says(before, &format!("GET {key}\r\n"));
    rig.says(runs, &format!("EVAL script 1 {key}\r\n"));
    assert_eq!(rig.asked(0), [format!("GET {key}"), format!("EVAL script 1 {key}")]);
    rig.stands_still();
    assert_eq!(rig.asked(0), ["PING"]);
    rig.answers_probe(0, BUSY);
    // What its own client says next comes next, and everybody else is refused.
    rig.says(runs, &format!("SET {key} v\r\n"));
    assert_eq!(rig.asked(0), [format!("SET {key} v")]);
    for client in [before, other] {
        rig.says(client, &format!("SET {key} w\r\n"));
    }
    assert!(rig.asked(0).is_empty());
    assert_eq!((rig.told(before).as_str(), rig.told(other).as_str()), ("", BUSY));
    rig.answers(0, "$-1\r\n:1\r\n+OK\r\n");
    assert_eq!(rig.told(before), format!("$-1\r\n{BUSY}"));
    assert_eq!(rig.told(runs), ":1\r\n+OK\r\n");
}

#[test]
fn a_server_that_was_busy_and_says_nothing_more_is_not_said_to_be_busy() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    busy(&mut rig);
    let other = rig.client(None);
    // The question was asked again, and nothing came.
    rig.worker.stuck.nodes.get_mut(&0).expect("it was asked").asked_at = 0;
    rig.stands_still();
    assert_eq!(rig.asked(0), ["PING"]);
    rig.says(other, &format!("GET {key}\r\n"));
    assert_eq!((rig.told(other).as_str(), rig.asked(0).len()), (BUSY, 0), "not for long");
    rig.worker.stuck.nodes.get_mut(&0).expect("it was asked").said_at = 0;
    rig.says(other, &format!("GET {key}\r\n"));
    assert_eq!((rig.told(other).as_str(), rig.asked(0)), ("", vec![format!("GET {key}")]));
    // It was only slow to answer.
    rig.answers_probe(0, BUSY);
    let third = rig.client(None);
    rig.says(third, &format!("GET {key}\r\n"));
    assert_eq!(rig.told(third), BUSY);
}
