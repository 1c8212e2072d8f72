//! Without servers: the tests play both sides.

use unslow_topology::Health;

use crate::clock::MS;
use crate::config::Config;
use crate::config::Read;
use crate::lanes::breaks::LATE;
use crate::map::tests::node;
use crate::session::{Leaving, State};
use crate::worker::tests::{A, B, C, Rig};
use unslow_testkit::until;

const ALL: &[(u16, u16)] = &[(0, 16383)];

#[test]
fn reconnect_backoff_doubles_with_jitter_up_to_one_second() {
    let mut rig = Rig::halves(Config::default());
    let set = rig.worker.set_of(crate::session::OWN, 0, 2);
    let lane = rig.worker.lane_of(set, 0);
    for (failures, pause) in (0..12).zip([10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000, 1000, 1000]) {
        rig.worker.lane_failed(lane);
        let State::Closed(at) = rig.worker.lanes[lane].state else { panic!("{failures}") };
        let waits = at - rig.worker.now;
        assert!((pause * MS / 2..pause * MS).contains(&waits), "after {failures} failures: {waits} ns");
    }
}

#[test]
fn moved_is_followed_and_remembered() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (get, slot) = (format!("GET {key}"), unslow_topology::slot_of(key.as_bytes()));
    let client = rig.client(None);
    // An empty host means the node that replied.
    for (to, moved) in [(1, format!("-MOVED {slot} {B}\r\n")), (0, format!("-MOVED {slot} :1\r\n"))] {
        rig.says(client, &(get.clone() + "\r\n"));
        assert_eq!(rig.asked(1 - to), std::slice::from_ref(&get));
        rig.answers(1 - to, &moved);
        assert_eq!((rig.told(client).as_str(), rig.asked(to)), ("", vec![get.clone()]));
        rig.answers(to, "$1\r\nv\r\n");
        assert_eq!(rig.told(client), "$1\r\nv\r\n");
    }
    assert_eq!(rig.worker.stats.moved, 2);
    // A redirect for a slot that does not exist is passed to the client.
    rig.says(client, &(get.clone() + "\r\n"));
    rig.asked(0);
    rig.answers(0, &format!("-MOVED 16384 {B}\r\n"));
    assert_eq!(rig.told(client), format!("-MOVED 16384 {B}\r\n"));
}

#[test]
fn a_node_that_no_topology_names_gets_nothing_until_one_does() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let get = format!("GET {key}");
    let slot = unslow_topology::slot_of(key.as_bytes());
    let client = rig.client(None);
    rig.says(client, &(get.clone() + "\r\n"));
    rig.asked(0);
    rig.answers(0, &format!("-MOVED {slot} {C}\r\n"));
    rig.turn();
    assert_eq!((rig.worker.map.servers.len(), rig.worker.lanes.len(), rig.worker.again.len()), (2, 1, 1));
    // Known from then on.
    rig.remap(vec![node(A, None, &[(0, 8191)]), node(B, None, &[(8192, 16383)]), node(C, None, &[])]);
    rig.send_again();
    assert_eq!(rig.asked(2), [get]);
}

#[test]
fn a_redirect_to_a_node_that_is_never_named_ends_with_an_error() {
    let mut rig = Rig::halves(Config { hold_ms: 20, ..Config::default() });
    let [key, ..] = rig.keys(0);
    let slot = unslow_topology::slot_of(key.as_bytes());
    let client = rig.client(None);
    rig.says(client, &format!("GET {key}\r\n"));
    rig.asked(0);
    rig.answers(0, &format!("-MOVED {slot} {C}\r\n"));
    rig.send_again();
    let told = rig.told(client);
    assert!(told.starts_with("-CLUSTERDOWN unslow: ") && told.contains(C), "{told}");
    assert_eq!(rig.worker.map.servers.len(), 2);
}

/// A script's own words, and the question that follows: its command, what the node replies to it, and where the script
/// goes then; nowhere means that the client gets the words.
fn asked_about(text: &str, reply: &str, again_at: Option<u16>) {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let slot = unslow_topology::slot_of(key.as_bytes());
    let (text, reply) = (text.replace("SLOT", &slot.to_string()), reply.replace("SLOT", &slot.to_string()));
    let client = rig.client(None);
    let script = format!("EVAL script 1 {key}");
    rig.says(client, &(script.clone() + "\r\n"));
    assert_eq!(rig.asked(0), std::slice::from_ref(&script));
    rig.answers(0, &format!("{text}\r\n"));
    assert_eq!(rig.asked(0), [format!("EXISTS {key}")], "{text}");
    assert_eq!(rig.told(client), "", "{text}: not before the node has said what it is");
    rig.answers(0, &format!("{reply}\r\n"));
    let Some(node) = again_at else {
        assert_eq!(rig.told(client), format!("{text}\r\n"), "{text}, {reply}");
        rig.turn();
        return assert!(rig.asked(0).is_empty() && rig.asked(1).is_empty() && rig.worker.again.is_empty());
    };
    rig.send_again();
    assert_eq!(rig.asked(node).last(), Some(&script), "{text}, {reply}");
    rig.answers(node, if reply.starts_with("-ASK") { "+OK\r\n:1\r\n" } else { ":1\r\n" });
    assert_eq!(rig.told(client), ":1\r\n");
}

#[test]
fn a_scripts_words_are_passed_on_unless_the_server_says_the_same() {
    let elsewhere = format!("-MOVED SLOT {B}");
    for (text, reply, again_at) in [
        ("-MOVED SLOT 10.9.9.9:6379", ":1", None),
        ("-MOVED SLOT 10.9.9.9:6379", "-NOPERM no right to EXISTS", None),
        ("-ASK SLOT 10.9.9.9:6379", ":0", None),
        ("-TRYAGAIN", ":1", None),
        ("-LOADING", ":1", None),
        ("-CLUSTERDOWN", ":1", None),
        ("-MASTERDOWN", ":1", None),
        // The server moves it, wherever the script would have it go.
        ("-MOVED SLOT 10.9.9.9:6379", elsewhere.as_str(), Some(1)),
        (elsewhere.as_str(), elsewhere.as_str(), Some(1)),
        ("-TRYAGAIN", "-TRYAGAIN", Some(0)),
        ("-ASK SLOT 10.9.9.9:6379", &format!("-ASK SLOT {B}"), Some(1)),
        ("-LOADING", "-LOADING", Some(0)),
    ] {
        asked_about(text, reply, again_at);
    }
}

#[test]
fn modules_and_unknown_commands_are_believed_no_more_than_scripts() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let slot = unslow_topology::slot_of(key.as_bytes());
    let client = rig.client(None);
    for command in [format!("MOD.RUN {key}"), format!("WHATEVER {key}")] {
        rig.says(client, &(command + "\r\n"));
        let node = (0..2).find(|n| !rig.asked(*n).is_empty()).expect("a node has it");
        rig.answers(node, &format!("-MOVED {slot} 10.9.9.9:6379\r\n"));
        let asked = rig.asked(node);
        assert!(asked.len() == 1 && asked[0].starts_with("EXISTS "), "{asked:?}");
        rig.answers(node, ":0\r\n");
        assert_eq!(rig.told(client), format!("-MOVED {slot} 10.9.9.9:6379\r\n"));
    }
    assert_eq!(rig.worker.map.servers.len(), 2);
}

#[test]
fn a_question_without_an_answer_passes_the_words_on() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("EVAL script 1 {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "-TRYAGAIN\r\n");
    assert_eq!(rig.asked(0).len(), 1);
    rig.breaks(0);
    rig.turn();
    assert_eq!((rig.told(client).as_str(), rig.worker.again.len()), ("-TRYAGAIN\r\n", 0));
}

#[test]
fn what_follows_a_script_that_moves_is_not_sent_before_it() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let slot = unslow_topology::slot_of(key.as_bytes());
    let client = rig.client(None);
    rig.says(client, &format!("EVAL script 1 {key}\r\nGET {key}\r\n"));
    assert_eq!(rig.asked(0).len(), 2);
    rig.answers(0, &format!("-MOVED {slot} {B}\r\n-MOVED {slot} {B}\r\n"));
    assert_eq!(rig.asked(0), [format!("EXISTS {key}")]);
    assert!(rig.asked(1).is_empty());
    rig.answers(0, &format!("-MOVED {slot} {B}\r\n"));
    rig.send_again();
    assert_eq!(rig.asked(1), [format!("EVAL script 1 {key}"), format!("GET {key}")]);
}

#[test]
fn a_standalone_server_redirects_nobody() {
    let mut rig = Rig::alone();
    let client = rig.client(None);
    for command in ["GET k", "SET k v", "MOD.RUN k"] {
        rig.says(client, &format!("{command}\r\n"));
        rig.asked(0);
        rig.answers(0, "-MOVED 0 10.9.9.9:6379\r\n");
        assert_eq!(rig.told(client), "-MOVED 0 10.9.9.9:6379\r\n", "{command}");
    }
    // A replica refuses what only writes nothing; then the script was refused too.
    rig.says(client, "EVAL script 1 k\r\n");
    rig.asked(0);
    rig.answers(0, "-READONLY You can't write\r\n");
    assert_eq!(rig.asked(0), ["SETRANGE k 0 \"\""]);
    rig.answers(0, ":3\r\n");
    assert_eq!(rig.told(client), "-READONLY You can't write\r\n");
    assert_eq!(rig.worker.map.servers.len(), 1);
}

#[test]
fn ask_is_followed_with_asking_for_one_command_only() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let get = format!("GET {key}");
    let client = rig.client(None);
    rig.says(client, &(get.clone() + "\r\n"));
    rig.asked(0);
    rig.answers(0, &format!("-ASK {} {B}\r\n", unslow_topology::slot_of(key.as_bytes())));
    assert_eq!(rig.asked(1), ["ASKING".to_string(), get.clone()]);
    rig.answers(1, "+OK\r\n$1\r\nv\r\n");
    assert_eq!(rig.told(client), "$1\r\nv\r\n");
    rig.says(client, &(get.clone() + "\r\n"));
    assert_eq!((rig.asked(0), rig.asked(1)), (vec![get], vec![]));
}

#[test]
fn a_broken_connection_resends_reads_and_only_writes_that_were_never_sent() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("SET {key} v\r\nGET {key}\r\n"));
    assert_eq!(rig.asked(0).len(), 2);
    rig.breaks(0);
    rig.send_again();
    assert_eq!(rig.asked(0), [format!("GET {key}")]);
    rig.answers(0, "$1\r\nv\r\n");
    let told = rig.told(client);
    assert!(told.starts_with(&format!("-ERR unslow: {A}: ")), "{told}");
    assert!(told.ends_with("it may or may not have run\r\n$1\r\nv\r\n"), "{told}");

    rig.says(client, &format!("SET {key} w\r\n"));
    rig.breaks(0);
    rig.send_again();
    assert_eq!(rig.asked(0), [format!("SET {key} w")]);
    assert_eq!(rig.told(client), "");
}

/// A client of this user, who may not see the topology.
fn stranger(rig: &mut Rig) -> unslow_reactor::Id {
    let client = rig.client(None);
    rig.says(client, "AUTH somebody secret\r\n");
    let node = (0..2).find(|n| !rig.asked(*n).is_empty()).expect("a node judges");
    rig.answers(node, "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    client
}

#[test]
fn errors_name_addresses_only_to_clients_that_may_see_the_topology() {
    let mut rig = Rig::halves(Config { hold_ms: 20, ..Config::default() });
    let [key, ..] = rig.keys(1);
    let slot = unslow_topology::slot_of(key.as_bytes());
    let (trusted, stranger) = (rig.client(None), stranger(&mut rig));
    for (client, name, to) in [(trusted, B, C), (stranger, "node 1", "an address")] {
        rig.says(client, &format!("SET {key} v\r\n"));
        assert_eq!(rig.asked(1).len(), 1);
        let lane = rig.worker.lanes.places().find(|at| rig.worker.lanes[*at].sent > 0).expect("it was sent");
        let io_of = rig.worker.lanes[lane].connection.expect("a connection");
        rig.close(io_of);
        let told = rig.told(client);
        assert!(told.starts_with(&format!("-ERR unslow: {name}: ")) && told.contains("may or may not"), "{told}");
        // A redirect to where no node is.
        rig.says(client, &format!("GET {key}\r\n"));
        until("a new connection", || {
            rig.turn();
            !rig.asked(1).is_empty()
        });
        rig.answers(1, &format!("-MOVED {slot} {C}\r\n"));
        rig.send_again();
        let told = rig.told(client);
        assert!(told.contains(&format!("is said to be at {to}, which")), "{told}");
    }
    // A node that takes nothing.
    let ill = unslow_topology::Node { health: Health::Suspected, ..node(B, None, &[(8192, 16383)]) };
    rig.remap(vec![node(A, None, &[(0, 8191)]), ill]);
    for (client, name) in [(trusted, B), (stranger, "node 1")] {
        rig.says(client, &format!("SET {key} v\r\n"));
        let told = rig.hears(client);
        assert!(told.starts_with(&format!("-ERR unslow: {name} took no commands")), "{told}");
    }
}

#[test]
fn a_command_sent_again_is_counted_once() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("GET {key}\r\n"));
    rig.asked(0);
    rig.breaks(0);
    rig.send_again();
    assert_eq!(rig.worker.stats.again, 1, "a broken connection");
    rig.asked(0);
    rig.answers(0, "-TRYAGAIN not now\r\n");
    rig.send_again();
    assert_eq!(rig.worker.stats.again, 2, "a refusal");
    rig.asked(0);
    let slot = unslow_topology::slot_of(key.as_bytes());
    rig.answers(0, &format!("-MOVED {slot} {B}\r\n"));
    assert_eq!((rig.worker.stats.again, rig.worker.stats.moved), (2, 1), "redirects have a count of their own");
}

#[test]
fn the_end_of_a_long_value_is_no_error_whatever_it_begins_with() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    let tail = "-TRYAGAIN not now\r\n";
    rig.says(client, &format!("GET {key}\r\n"));
    rig.asked(0);
    rig.answers(0, &format!("${}\r\nvalue", 5 + tail.len() - 2));
    rig.answers(0, tail);
    rig.turn();
    assert_eq!((rig.worker.again.len(), rig.asked(0)), (0, vec![]));
    assert_eq!(rig.told(client), format!("${}\r\nvalue{tail}", 5 + tail.len() - 2));
}

// Connections that clients have alone.

#[test]
fn beyond_own_connections_clients_wait_until_one_is_given_back() {
    let mut rig = Rig::halves(Config { own_connections: 1, ..Config::default() });
    let [key, ..] = rig.keys(0);
    let (first, second, third) = (rig.client(None), rig.client(None), rig.client(None));
    let watch = format!("WATCH {key}");
    rig.says(first, &format!("{watch}\r\n"));
    assert_eq!(rig.asked(0), std::slice::from_ref(&watch));
    rig.answers(0, "+OK\r\n");
    rig.says(second, &format!("{watch}\r\n"));
    rig.turn();
    assert!(rig.asked(0).is_empty(), "there is none for the second");
    // Neither those who share connections nor those who log in have to wait.
    rig.says(third, &format!("GET {key}\r\n"));
    assert_eq!(rig.asked(0), [format!("GET {key}")]);
    rig.answers(0, "$-1\r\n");
    assert_eq!(rig.told(third), "$-1\r\n");
    stranger(&mut rig);
    rig.says(first, "UNWATCH\r\n");
    assert_eq!(rig.asked(0), ["UNWATCH"]);
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.told(first), "+OK\r\n+OK\r\n");
    let mut asked = Vec::new();
    until("the second to have its connection", || {
        rig.turn();
        asked.extend(rig.asked(0));
        !asked.is_empty()
    });
    assert_eq!((asked, rig.told(second)), (vec![watch], String::new()));
}

#[test]
fn who_waits_for_an_own_connection_in_vain_hears_what_to_do() {
    for (says, last) in [("WATCH", false), ("SUBSCRIBE", true), ("MONITOR", true)] {
        let mut rig = Rig::halves(Config { own_connections: 1, hold_ms: 20, ..Config::default() });
        let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
        let (holder, client) = (rig.client(None), rig.client(None));
        for key in [&here, &there] {
            // On both nodes: by its key, and in a transaction of somebody else.
            let one = if *key == here { holder } else { rig.client(None) };
            rig.says(one, &format!("WATCH {key}\r\n"));
        }
        assert_eq!((rig.asked(0).len(), rig.asked(1).len()), (1, 1));
        let says = if says == "MONITOR" { "MONITOR\r\n".to_string() } else { format!("{says} {here}\r\n") };
        rig.says(client, &says);
        let told = rig.hears(client);
        assert!(told.starts_with("-ERR unslow: ") && told.contains("own_connections = 1 "), "{says}: {told}");
        assert_eq!(rig.worker.stats.errors.get("own_connections"), Some(&1), "{says}");
        let leaves = rig.worker.everyone().any(|c| c.id == client && c.leaving == Leaving::WhenAnswered);
        assert_eq!(leaves, last, "{says}");
        let waiting = rig.worker.lanes.iter().filter(|l| !l.free && l.lacks_permit()).count();
        assert_eq!(waiting, 0, "{says}: nothing is left");
    }
}

#[test]
fn connections_of_clients_that_have_gone_are_free_for_others() {
    let mut rig = Rig::halves(Config { own_connections: 1, ..Config::default() });
    let [key, ..] = rig.keys(0);
    for _ in 0..3 {
        let client = rig.client(None);
        rig.says(client, &format!("WATCH {key}\r\n"));
        let mut asked = Vec::new();
        until("a connection", || {
            rig.turn();
            asked.extend(rig.asked(0));
            !asked.is_empty()
        });
        rig.close(client);
    }
}

#[test]
fn a_client_with_half_a_reply_is_closed_when_the_server_connection_breaks() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("GET {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "$10\r\n01234");
    assert_eq!(rig.told(client), "$10\r\n01234");
    rig.breaks(0);
    assert_eq!((rig.worker.everyone().count(), rig.worker.again.len()), (0, 0));
}

#[test]
fn a_failover_resends_held_commands_and_reads_and_fails_sent_writes() {
    let mut rig = Rig::new(Config::default(), vec![node(A, None, ALL), node(B, Some(A), &[])]);
    let (first, second) = (rig.client(None), rig.client(None));
    rig.says(first, "SET a v\r\nGET a\r\n");
    assert_eq!(rig.asked(0).len(), 2);
    let ill = unslow_topology::Node { health: Health::Suspected, ..node(A, None, ALL) };
    rig.remap(vec![ill, node(B, Some(A), &[])]);
    rig.says(second, "INCR n\r\n");
    assert!(rig.asked(0).is_empty(), "commands for a suspected node are held");

    let gone = unslow_topology::Node { health: Health::Failed, ..node(A, Some(B), &[]) };
    rig.remap(vec![gone, node(B, None, ALL)]);
    rig.send_again();
    assert_eq!(rig.asked(1), ["GET a", "INCR n"]);
    let told = rig.told(first);
    assert!(told.starts_with("-ERR unslow: ") && told.contains("was replaced; it may or may not have run"), "{told}");
    rig.answers(1, "$1\r\nv\r\n:1\r\n");
    assert_eq!((rig.told(first).as_str(), rig.told(second).as_str()), ("$1\r\nv\r\n", ":1\r\n"));
}

/// `A` is written to, is held while a Sentinel replaces it, and is replaced by `B`; it answers all the time.
fn held() -> Vec<unslow_topology::Node> {
    vec![unslow_topology::Node { health: Health::Suspected, ..node(A, None, ALL) }, node(B, Some(A), &[])]
}

fn replaced() -> Vec<unslow_topology::Node> {
    vec![node(A, Some(B), &[]), node(B, None, ALL)]
}

#[test]
fn commands_held_for_a_master_that_is_replaced_go_to_its_successor_and_sent_ones_keep_their_answers() {
    let mut rig = Rig::group(vec![node(A, None, ALL), node(B, Some(A), &[])]);
    let client = rig.client(None);
    rig.says(client, "SET a v\r\n");
    assert_eq!(rig.asked(0), ["SET a v"]);
    rig.remap(held());
    rig.says(client, "INCR n\r\nGET a\r\n");
    assert!(rig.asked(0).is_empty() && rig.asked(1).is_empty());
    // What was written before is answered as ever.
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
    rig.remap(replaced());
    assert_eq!((rig.asked(0), rig.asked(1)), (vec![], vec!["INCR n".to_string(), "GET a".to_string()]));
    rig.answers(1, ":1\r\n$1\r\nv\r\n");
    assert_eq!(rig.told(client), ":1\r\n$1\r\nv\r\n");
}

#[test]
fn a_transaction_that_was_begun_on_a_replaced_master_is_not_ended_there() {
    let mut rig = Rig::group(vec![node(A, None, ALL), node(B, Some(A), &[])]);
    let (first, second, third) = (rig.client(None), rig.client(None), rig.client(None));
    rig.says(first, "MULTI\r\nSET a v\r\n");
    rig.asked(0);
    rig.answers(0, "+OK\r\n+QUEUED\r\n");
    rig.says(second, "WATCH a\r\n");
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    rig.told(first);
    rig.told(second);
    rig.remap(held());
    rig.says(first, "EXEC\r\n");
    // Nothing of it was written yet.
    rig.says(third, "MULTI\r\nSET b v\r\nEXEC\r\n");
    assert!(rig.asked(0).is_empty());
    rig.remap(replaced());
    let told = rig.told(first);
    assert!(told.starts_with("-ERR unslow: ") && told.ends_with("this one was not sent\r\n"), "{told}");
    // As if the watched key had changed.
    rig.says(second, "MULTI\r\nSET a w\r\nEXEC\r\n");
    assert_eq!(rig.told(second), "+OK\r\n+QUEUED\r\n*-1\r\n");
    assert!(rig.asked(0).is_empty());
    assert_eq!(rig.asked(1), ["MULTI", "SET b v", "EXEC"]);
}

#[test]
fn subscriptions_move_to_the_successor_of_a_replaced_master() {
    let mut rig = Rig::group(vec![node(A, None, ALL), node(B, Some(A), &[])]);
    let client = rig.client(None);
    rig.says(client, "SUBSCRIBE news\r\n");
    assert_eq!(rig.asked(0), ["SUBSCRIBE news"]);
    rig.remap(held());
    rig.remap(replaced());
    assert_eq!((rig.asked(0), rig.asked(1)), (vec![], vec!["SUBSCRIBE news".to_string()]));
}

#[test]
fn held_commands_are_sent_in_order_when_a_suspected_node_recovers() {
    let mut rig = Rig::new(Config::default(), vec![node(A, None, ALL)]);
    let client = rig.client(None);
    rig.says(client, "GET a\r\n");
    rig.asked(0);
    rig.answers(0, "$-1\r\n");
    rig.remap(vec![unslow_topology::Node { health: Health::Suspected, ..node(A, None, ALL) }]);
    rig.says(client, "SET a v\r\nGET a\r\n");
    assert!(rig.asked(0).is_empty());
    rig.remap(vec![node(A, None, ALL)]);
    assert_eq!(rig.asked(0), ["SET a v", "GET a"]);
}

#[test]
fn a_read_falls_back_to_the_master_while_the_replica_is_loading() {
    let config = Config { read: Read::Replica, ..Config::default() };
    let mut rig = Rig::new(config, vec![node(A, None, ALL), node(B, Some(A), &[])]);
    let client = rig.client(None);
    rig.says(client, "GET a\r\n");
    assert_eq!(rig.asked(1), ["READONLY", "GET a"]);
    rig.answers(1, "+OK\r\n-LOADING the data set\r\n");
    assert_eq!(rig.asked(0), ["GET a"]);
    rig.answers(0, "$1\r\nv\r\n");
    assert_eq!(rig.told(client), "$1\r\nv\r\n");
}

#[test]
fn a_script_that_a_replica_does_not_have_is_run_by_its_master() {
    let config = Config { read: Read::Replica, ..Config::default() };
    let mut rig = Rig::new(config, vec![node(A, None, ALL), node(B, Some(A), &[])]);
    let client = rig.client(None);
    // Loaded where it may be run, as far as a replica takes it.
    rig.says(client, "SCRIPT LOAD text\r\n");
    assert_eq!((rig.asked(0), rig.asked(1)), (vec!["SCRIPT LOAD text".into()], vec!["SCRIPT LOAD text".into()]));
    rig.answers(0, "$3\r\nabc\r\n");
    rig.answers(1, "-LOADING the data set\r\n");
    assert_eq!(rig.told(client), "$3\r\nabc\r\n");
    rig.says(client, "EVALSHA_RO abc 1 a\r\n");
    assert_eq!(rig.asked(1), ["READONLY", "EVALSHA_RO abc 1 a"]);
    rig.answers(1, "+OK\r\n-NOSCRIPT No matching script.\r\n");
    assert_eq!((rig.told(client).as_str(), rig.asked(0)), ("", vec!["EVALSHA_RO abc 1 a".to_string()]));
    // What the master says is the answer.
    rig.answers(0, "-NOSCRIPT No matching script.\r\n");
    assert_eq!(rig.told(client), "-NOSCRIPT No matching script.\r\n");
    assert!(rig.asked(0).is_empty() && rig.asked(1).is_empty());
}

#[test]
fn long_errors_and_simple_strings_pass_in_pieces_and_leave_the_connection_alone() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let slot = unslow_topology::slot_of(key.as_bytes());
    let (one, other) = (rig.client(None), rig.client(None));
    let long = "x".repeat(199_998);
    // The last piece of the first reads like a redirect.
    for reply in [format!("-{long}-MOVED {slot} {B}\r\n"), format!("+{long}\r\n"), format!("*2\r\n-{long}\r\n:1\r\n")] {
        rig.says(one, &format!("EVAL script 1 {key}\r\n"));
        rig.says(other, &format!("GET {key}\r\n"));
        assert_eq!(rig.asked(0).len(), 2);
        rig.answers_in_pieces(0, &reply, 40_000);
        rig.answers(0, "$1\r\nv\r\n");
        assert!(rig.told(one) == reply, "{} ...", &reply[..5]);
        assert_eq!(rig.told(other), "$1\r\nv\r\n");
        assert!(rig.asked(0).is_empty(), "nothing is asked about it");
    }
    assert_eq!(rig.worker.stats.lanes_opened, 1);
}

#[test]
fn a_value_that_ends_like_a_redirect_is_no_redirect() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("GET {key}\r\n"));
    rig.asked(0);
    let end = format!("-MOVED {} {B}", unslow_topology::slot_of(key.as_bytes()));
    let head = format!("${}\r\n{}", 1000 + end.len(), "x".repeat(1000));
    rig.answers(0, &head);
    rig.answers(0, &format!("{end}\r\n"));
    assert_eq!(rig.told(client), format!("{head}{end}\r\n"));
    assert!(rig.asked(1).is_empty() && rig.worker.stats.moved == 0);
}

#[test]
fn a_reply_that_is_used_whole_holds_no_more_than_its_client_may() {
    let mut rig = Rig::halves(Config { client_output_bytes: 100_000, ..Config::default() });
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("MULTI\r\nGET {key}\r\nEXEC\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n+QUEUED\r\n");
    let begun = format!("*1\r\n$900000\r\n{}", "x".repeat(200_000));
    rig.answers_in_pieces(0, &begun, 20_000);
    assert_eq!(rig.worker.everyone().count(), 0, "it is closed before the end of the reply");
}

/// A server that waits for a processor during a planned failover owes answers for a while, and then gives them.
#[test]
fn a_replaced_node_of_a_cluster_that_is_only_late_keeps_what_was_sent_to_it_for_a_second() {
    for (comes, told) in [(true, "+OK\r\n"), (false, "was replaced; it may or may not have run")] {
        let mut rig = Rig::new(Config::default(), vec![node(A, None, ALL), node(B, Some(A), &[])]);
        let (first, second) = (rig.client(None), rig.client(None));
        rig.says(first, "SET a v\r\n");
        assert_eq!(rig.asked(0).len(), 1);
        rig.remap(held());
        rig.says(second, "INCR n\r\n");
        let late = unslow_topology::Node { health: Health::Suspected, ..node(A, Some(B), &[]) };
        rig.remap(vec![late, node(B, None, ALL)]);
        rig.send_again();
        assert_eq!((rig.asked(1), rig.told(first)), (vec!["INCR n".to_string()], String::new()));
        if comes {
            rig.answers(0, "+OK\r\n");
            rig.remap(replaced());
        }
        let now = rig.worker.now;
        rig.worker.lanes.iter_mut().filter_map(|l| l.replaced_at.as_mut()).for_each(|at| *at = now - LATE - MS);
        rig.makes_room();
        let heard = rig.told(first);
        assert!(heard.contains(told), "{heard:?}");
        assert!(rig.worker.lanes.iter().all(|l| l.replaced_at.is_none()));
    }
}
