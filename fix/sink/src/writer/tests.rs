//! The writer on an event loop that does not run; the tests play the servers.

use std::sync::mpsc::{Receiver, channel};

use unslow_reactor::Reactor;
use unslow_topology::{DeploymentKind, SlotSet};

use super::*;
use crate::encode::tests::{batch, commands};
use crate::mapping::tests::mapping;

const A: &str = "127.0.0.1:1";
const B: &str = "127.0.0.1:2";
/// A key of the first node, and its slot.
const KEY: (&str, u16) = ("k", 7629);
/// A key of the second node.
const OTHER: &str = "foo";

/// Masters, and their slots.
fn route(masters: &[(&str, &[(u16, u16)])]) -> Order {
    let node = |(address, slots): &(&str, &[(u16, u16)])| {
        unslow_topology::Node::master(*address, SlotSet::from_ranges(slots.iter().copied()))
    };
    let topology = Topology::new(DeploymentKind::Cluster, masters.iter().map(node).collect());
    let reach = |n: &unslow_topology::Node| Reach { peer: Some(Peer::Tcp(n.address.parse().unwrap())), tls: None };
    Order::Route(Route { reach: topology.nodes.iter().map(reach).collect(), topology })
}

/// A writer on an event loop that does not run: its output stays in the buffers of its connections, and the test plays
/// the two servers, each with half of the slots. Nothing listens at their addresses.
struct Rig {
    reactor: Reactor,
    writer: Writer,
    hear: Receiver<WriterEvent>,
    shared: Arc<WriterShared>,
    batches: u64,
}

impl Rig {
    fn new(wait: Option<(u32, u64)>) -> Rig {
        let map = "[[map]]\nformat = \"raw\"\ncommands = [\"SET {$key} {$value}\"]";
        Rig::with(wait, map, true)
    }

    /// With this mapping, in a cluster or without one.
    fn with(wait: Option<(u32, u64)>, map: &str, cluster: bool) -> Rig {
        let route = route(&[(A, &[(0, SLOTS / 2 - 1)]), (B, &[(SLOTS / 2, SLOTS - 1)])]);
        let shared = Arc::new(WriterShared {
            orders: Mutex::new([route].into()),
            window: Window::default(),
            stats: Stats::default(),
            fatal: Mutex::default(),
        });
        let (said, hear) = channel();
        let hour = 3600 * 1000 * MILLISECOND;
        let target = Target::parse(A).unwrap();
        let settings = WriterSettings { target, wait, silence_ns: hour, connect_ns: hour };
        let encoder = Encoder::new(mapping(map, cluster, false).unwrap_or_else(|e| panic!("{e}")), cluster, None);
        let writer = Writer::new(settings, shared.clone(), encoder, said, Box::new(|| {}));
        Rig { reactor: Reactor::new().unwrap(), writer, hear, shared, batches: 0 }
    }

    /// With both nodes connected.
    fn connected(wait: Option<(u32, u64)>) -> Rig {
        Rig::new(wait).up()
    }

    fn up(mut self) -> Rig {
        self.turn();
        self.open(0, 11, "run");
        self.open(1, 12, "run");
        self
    }

    /// Each message is a call of a script, and a SET in the same slot.
    fn scripted() -> Rig {
        let map = "[[map]]\nformat = \"raw\"\ncommands = [\"EVAL s 1 {$key} {$value}\", \"SET {$key} {$value}\"]";
        Rig::with(None, map, true).up()
    }

    /// The server closes a connection and takes another one, as another server, so that there is nothing to kill.
    fn breaks(&mut self, node: usize, client_id: u64) {
        let id = self.connection(node);
        self.reactor.io().close(id);
        self.writer.closed(self.reactor.io(), id, Closed::Peer);
        self.writer.nodes[node as u16].dial_at = 0; // the backoff is over
        self.turn();
        self.open(node, client_id, &format!("run{client_id}"));
    }

    /// What the operator was told.
    fn notes(&mut self) -> Vec<String> {
        let notes = self.hear.try_iter().filter_map(|said| match said {
            WriterEvent::Note(text) => Some(text),
            WriterEvent::Ack(_) => None,
        });
        notes.collect()
    }

    fn batch(&mut self, messages: &[(&str, &str)]) {
        let messages: Vec<(&str, Option<&str>)> = messages.iter().map(|&(key, value)| (key, Some(value))).collect();
        let batch = Batch { number: self.batches, ..batch(&messages) };
        self.batches += 1;
        self.shared.window.took(batch.weight());
        self.shared.orders.lock().unwrap().push_back(Order::Batch(batch));
    }

    fn turn(&mut self) {
        self.writer.turn(self.reactor.io());
    }

    fn connection(&self, node: usize) -> Id {
        self.writer.nodes[node as u16].connection.expect("it was dialled")
    }

    /// Establishes a connection; the server answers its greeting with this.
    fn greeted(&mut self, node: usize, replies: &str) {
        let id = self.connection(node);
        self.writer.opened(self.reactor.io(), id);
        self.reactor.io().output(id).clear();
        self.answers(node, replies);
    }

    /// Why the writer has ended.
    fn fatal(&self) -> WriteError {
        self.shared.fatal.lock().unwrap().take().expect("it has ended")
    }

    /// Establishes a connection; the server greets with this CLIENT ID and run id.
    fn open(&mut self, node: usize, client_id: u64, run_id: &str) {
        let info = format!("run_id:{run_id}");
        self.greeted(node, &format!("+OK\r\n:{client_id}\r\n${}\r\n{info}\r\n", info.len()));
    }

    fn answers(&mut self, node: usize, text: &str) {
        let id = self.connection(node);
        let used = self.writer.data(self.reactor.io(), id, text.as_bytes());
        assert_eq!(used, text.len(), "consumed of {text:?}");
    }

    /// Runs a turn and takes the commands for a node.
    fn sent(&mut self, node: usize) -> Vec<String> {
        self.turn();
        let id = self.connection(node);
        commands(&std::mem::take(self.reactor.io().output(id)))
    }

    /// Takes the acknowledged batches, each with offsets and reasons of its dead letters.
    fn done(&mut self) -> Vec<(u64, Vec<(String, String)>)> {
        let acks = self.hear.try_iter().filter_map(|said| match said {
            WriterEvent::Ack(ack) => Some(ack),
            WriterEvent::Note(_) => None,
        });
        let letters = |ack: &Ack| -> Vec<(String, String)> {
            ack.dead.iter().map(|l| (l.offset.to_string(), l.reason.clone())).collect()
        };
        acks.map(|ack| (ack.number, letters(&ack))).collect()
    }
}

#[test]
fn calls_of_a_moved_slot_are_resent_in_order_after_in_flight_ones_return() {
    let mut rig = Rig::connected(None);
    rig.batch(&[(KEY.0, "1"), (KEY.0, "2"), (OTHER, "x"), (KEY.0, "3")]);
    assert_eq!(rig.sent(0), ["SET k 1", "SET k 2", "SET k 3"]);
    assert_eq!(rig.sent(1), ["SET foo x"]);
    rig.answers(1, "+OK\r\n");
    rig.answers(0, &format!("-MOVED {} {B}\r\n+OK\r\n", KEY.1));
    assert!(rig.sent(1).is_empty(), "in-flight calls are waited for");
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.sent(1), ["SET k 1", "SET k 2", "SET k 3"]);
    assert!(rig.done().is_empty());
    rig.answers(1, "+OK\r\n+OK\r\n+OK\r\n");
    assert_eq!(rig.done(), [(0, vec![])]);
    let now = rig.shared.stats.snapshot();
    assert_eq!((now.retries.get("moved"), now.done, now.round_trips), (Some(&1), 4, 2));
    assert_eq!(rig.shared.window.bytes(), 0);
}

#[test]
fn calls_of_a_migrating_slot_are_sent_one_at_a_time() {
    let mut rig = Rig::connected(None);
    rig.batch(&[(KEY.0, "1"), (KEY.0, "2"), (KEY.0, "3")]);
    assert_eq!(rig.sent(0).len(), 3);
    rig.answers(0, &format!("-ASK {} {B}\r\n+OK\r\n+OK\r\n", KEY.1));
    assert_eq!((rig.sent(1), rig.sent(0)), (vec!["ASKING".to_string(), "SET k 1".to_string()], vec![]));
    rig.answers(1, "+OK\r\n+OK\r\n");
    // The owner has not changed.
    for value in [2, 3] {
        assert_eq!((rig.sent(0), rig.sent(1)), (vec![format!("SET k {value}")], vec![]));
        assert!(rig.done().is_empty());
        rig.answers(0, "+OK\r\n");
    }
    assert_eq!(rig.done(), [(0, vec![])]);
}

#[test]
fn a_reconnect_kills_the_old_connection_before_anything_is_resent() {
    for (run_id, killed) in [("run", vec!["CLIENT KILL ID 11".to_string()]), ("another", vec![])] {
        let mut rig = Rig::connected(None);
        rig.batch(&[(KEY.0, "1"), (KEY.0, "2")]);
        assert_eq!(rig.sent(0).len(), 2);
        rig.answers(0, "+OK\r\n");
        let id = rig.connection(0);
        rig.reactor.io().close(id);
        rig.writer.closed(rig.reactor.io(), id, Closed::Peer);
        rig.writer.nodes[0].dial_at = 0; // the backoff is over
        rig.batch(&[(KEY.0, "3")]);
        rig.turn();
        rig.open(0, 13, run_id);
        if !killed.is_empty() {
            assert_eq!(rig.sent(0), killed);
            rig.answers(0, ":1\r\n");
        }
        assert_eq!(rig.sent(0), ["SET k 2", "SET k 3"], "{run_id}");
        rig.answers(0, "+OK\r\n+OK\r\n");
        assert_eq!(rig.done(), [(0, vec![]), (1, vec![])]);
    }
}

#[test]
fn with_wait_a_batch_is_done_only_after_replicas_acknowledge() {
    let mut rig = Rig::connected(Some((1, 100)));
    rig.batch(&[(KEY.0, "1")]);
    let sent = rig.sent(0);
    // WAIT counts from the connection's last write, so one that surely changes something is made.
    assert_eq!((sent.len(), sent[0].as_str(), sent[2].as_str()), (3, "SET k 1", "WAIT 1 100"));
    assert!(sent[1].starts_with("SET unslow:sink-wait:{"), "{sent:?}");
    // That write is refused, so the reply to WAIT means nothing.
    rig.answers(0, "+OK\r\n-READONLY not now\r\n:5\r\n");
    assert!(rig.done().is_empty());
    let again = rig.sent(0);
    assert_eq!((again.len(), again[0].starts_with("SET unslow:sink-wait:{")), (2, true), "{again:?}");
    rig.answers(0, "+OK\r\n:0\r\n");
    assert!(rig.done().is_empty());
    assert_eq!(rig.sent(0), ["WAIT 1 100"]);
    rig.answers(0, ":1\r\n");
    assert_eq!(rig.done(), [(0, vec![])]);
}

#[test]
fn a_redirect_is_followed_only_to_a_node_of_the_topology() {
    const C: &str = "127.0.0.1:3";
    for (to, owner) in [(B, Some(1)), (":2", Some(1)), (C, None), ("?:2", None), ("evil.example:2", None)] {
        let mut rig = Rig::connected(None);
        rig.batch(&[(KEY.0, "1")]);
        rig.sent(0);
        rig.answers(0, &format!("-MOVED {} {to}\r\n", KEY.1));
        assert_eq!(rig.writer.nodes.len(), 2, "{to} is not dialled");
        match owner {
            Some(owner) => assert_eq!(rig.sent(owner), ["SET k 1"], "{to}"),
            None => {
                // It waits before it goes to the owner again.
                assert!(rig.writer.held[&KEY.1].due > 0 && rig.writer.nodes.owner(KEY.1) == 0, "{to}");
                assert!(rig.notes().iter().any(|n| n.contains("is not followed")), "{to}");
                assert!(rig.sent(1).is_empty(), "{to}");
            }
        }
    }
    // It is followed once the topology has the node, whatever the backoff.
    let mut rig = Rig::connected(None);
    rig.batch(&[(KEY.0, "1")]);
    rig.sent(0);
    rig.answers(0, &format!("-MOVED {} {C}\r\n", KEY.1));
    rig.shared.orders.lock().unwrap().push_back(route(&[(A, &[]), (B, &[]), (C, &[(0, SLOTS - 1)])]));
    rig.turn();
    rig.open(2, 13, "run");
    assert_eq!(rig.sent(2), ["SET k 1"]);
}

#[test]
fn without_a_cluster_no_redirect_is_followed() {
    let map = "[[map]]\nformat = \"raw\"\ncommands = [\"SET {$key} {$value}\"]";
    for word in ["MOVED", "ASK"] {
        let mut rig = Rig::with(None, map, false).up();
        rig.batch(&[(KEY.0, "1")]);
        rig.sent(0);
        rig.answers(0, &format!("-{word} {} {B}\r\n", KEY.1));
        assert_eq!((rig.writer.nodes.len(), rig.writer.held[&KEY.1].asking), (2, None), "{word}");
        assert!(rig.sent(1).is_empty(), "{word}");
    }
}

#[test]
fn a_refusal_in_a_scripts_words_is_checked_before_anything_is_sent_again() {
    // The script's answer, the server's answer about the key, and where the script goes then.
    for (words, about, again) in [
        (format!("MOVED {} {B}", KEY.1), ":1".to_string(), None),
        (format!("MOVED {} {B}", KEY.1), "-NOPERM User w has no permissions to run the 'exists' command".into(), None),
        (format!("MOVED {} {B}", KEY.1), format!("-MOVED {} {B}", KEY.1), Some(1)),
        (format!("MOVED {} {A}", KEY.1), format!("-MOVED {} {B}", KEY.1), Some(1)),
    ] {
        let mut rig = Rig::scripted();
        rig.batch(&[(KEY.0, "1")]);
        assert_eq!(rig.sent(0), ["EVAL s 1 k 1", "SET k 1"]);
        rig.answers(0, &format!("-{words}\r\n+OK\r\n"));
        assert_eq!((rig.sent(0), rig.sent(1)), (vec!["EXISTS k".to_string()], vec![]), "{words}");
        assert!(rig.done().is_empty(), "{words}");
        rig.answers(0, &format!("{about}\r\n"));
        match again {
            Some(node) => {
                assert_eq!(rig.sent(node), ["EVAL s 1 k 1", "SET k 1"], "{words}");
                rig.answers(node, ":1\r\n+OK\r\n");
                assert_eq!(rig.done(), [(0, vec![])]);
            }
            None => {
                assert!(rig.sent(0).is_empty() && rig.sent(1).is_empty(), "{words}");
                assert_eq!(rig.done(), [(0, vec![("1".to_string(), words.clone())])]);
            }
        }
    }
}

#[test]
fn what_may_have_ended_before_it_was_confirmed_is_sent_again_a_few_times() {
    for words in ["TRYAGAIN later", "LOADING not yet", "CLUSTERDOWN not served", "BUSY running"] {
        let mut rig = Rig::scripted();
        rig.batch(&[(KEY.0, "1")]);
        for n in 0..=UNREPEATED_MAX {
            assert_eq!(rig.sent(0), ["EVAL s 1 k 1", "SET k 1"], "{words}, {n}");
            rig.answers(0, &format!("-{words}\r\n+OK\r\n"));
            assert_eq!(rig.sent(0), ["EXISTS k"], "{words}, {n}");
            assert!(rig.done().is_empty());
            rig.answers(0, ":0\r\n");
            if let Some(held) = rig.writer.held.get_mut(&KEY.1) {
                (held.due, held.migrating) = (0, false); // the backoff is over
            }
        }
        assert_eq!(rig.done(), [(0, vec![("1".to_string(), words.to_string())])]);
        assert!(rig.sent(0).is_empty() && rig.writer.unrepeated.is_empty(), "{words}");
    }
}

#[test]
fn a_script_that_is_refused_by_a_replica_is_sent_again_and_by_a_master_set_aside() {
    const WORDS: &str = "READONLY You can't write against a read only replica.";
    for (role, again) in [
        ("*5\r\n$5\r\nslave\r\n$9\r\n127.0.0.1\r\n:1\r\n$9\r\nconnected\r\n:7\r\n", true),
        ("*3\r\n$6\r\nmaster\r\n:7\r\n*0\r\n", false),
        ("-NOPERM User w has no permissions to run the 'role' command\r\n", false),
    ] {
        let mut rig = Rig::scripted();
        rig.batch(&[(KEY.0, "1")]);
        rig.sent(0);
        rig.answers(0, &format!("-{WORDS}\r\n+OK\r\n"));
        assert_eq!(rig.sent(0), ["ROLE"]);
        assert!(rig.done().is_empty(), "{role:?}");
        // It may come in pieces.
        let id = rig.connection(0);
        assert_eq!(rig.writer.data(rig.reactor.io(), id, &role.as_bytes()[..role.len() / 2]), 0);
        rig.answers(0, role);
        if again {
            rig.writer.held.get_mut(&KEY.1).expect("it is held").due = 0; // the backoff is over
            assert_eq!(rig.sent(0), ["EVAL s 1 k 1", "SET k 1"]);
            rig.answers(0, ":1\r\n+OK\r\n");
            assert_eq!(rig.done(), [(0, vec![])]);
        } else {
            assert_eq!(rig.done(), [(0, vec![("1".to_string(), WORDS.to_string())])]);
            assert!(rig.sent(0).is_empty());
        }
        // What follows is answered as ever.
        rig.batch(&[(KEY.0, "2")]);
        assert_eq!(rig.sent(0).len(), 2);
        rig.answers(0, ":1\r\n+OK\r\n");
        assert_eq!(rig.done(), [(1, vec![])]);
    }
}

#[test]
fn words_of_a_script_that_could_not_be_confirmed_before_the_connection_broke_are_sent_again() {
    let mut rig = Rig::scripted();
    rig.batch(&[(KEY.0, "1"), (KEY.0, "2")]);
    rig.sent(0);
    let moved = format!("-MOVED {} {B}\r\n+OK\r\n", KEY.1);
    rig.answers(0, &moved.repeat(2));
    assert_eq!(rig.sent(0), ["EXISTS k"]);
    rig.breaks(0, 13);
    assert!(rig.done().is_empty());
    assert_eq!(rig.sent(0), ["EVAL s 1 k 1", "SET k 1", "EVAL s 1 k 2", "SET k 2"]);
    rig.answers(0, &":1\r\n+OK\r\n".repeat(2));
    assert_eq!(rig.done(), [(0, vec![])]);
    assert!(rig.writer.checking.is_empty() && rig.writer.held.is_empty());
}

#[test]
fn what_comes_in_the_middle_of_a_script_proves_nothing_and_ends_nothing() {
    let mut rig = Rig::scripted();
    for words in ["OOM command not allowed", "NOPERM no", "UNSLOWGAP a message before this one has not run yet"] {
        rig.batch(&[(KEY.0, "2")]);
        rig.sent(0);
        rig.answers(0, &format!("-{words}\r\n+OK\r\n"));
        let done = rig.done();
        assert_eq!(done[0].1, [("1".to_string(), words.to_string())]);
        assert!(rig.sent(0).is_empty() && rig.shared.fatal.lock().unwrap().is_none(), "{words}");
    }
}

#[test]
fn a_message_on_which_the_server_closes_the_connection_again_and_again_is_set_aside() {
    let mut rig = Rig::connected(None);
    let long = "x".repeat(ALWAYS_TAKEN_BYTES + 1);
    // A key of the first node, in another slot.
    let beside =
        ('a'..='z').map(String::from).find(|k| *k != KEY.0 && unslow_topology::slot_of(k.as_bytes()) < SLOTS / 2);
    let beside = beside.expect("one of 25 keys");
    rig.batch(&[(KEY.0, "1"), (KEY.0, long.as_str()), (KEY.0, "3"), (beside.as_str(), "4")]);
    assert_eq!(rig.sent(0).len(), 4);
    rig.breaks(0, 13);
    // What may have been the cause goes alone from now on.
    let mut first = rig.sent(0);
    first.sort();
    let mut expected = vec![format!("SET {beside} 4"), "SET k 1".to_string()];
    expected.sort();
    assert_eq!(first, expected);
    rig.answers(0, "+OK\r\n+OK\r\n");
    for n in 0..BREAKS_MAX {
        let alone = rig.sent(0);
        assert!(alone.len() == 1 && alone[0].len() > ALWAYS_TAKEN_BYTES, "{} calls", alone.len());
        assert!(rig.done().is_empty());
        rig.breaks(0, 14 + u64::from(n));
    }
    assert_eq!(rig.sent(0), ["SET k 3"]);
    rig.answers(0, "+OK\r\n");
    let done = rig.done();
    assert_eq!((done.len(), done[0].1.len(), done[0].1[0].0.as_str()), (1, 1, "2"));
    assert!(done[0].1[0].1.contains("proto-max-bulk-len"), "{done:?}");
    assert!(rig.writer.suspects.is_empty() && rig.writer.held.is_empty());
}

#[test]
fn a_long_message_that_is_answered_is_not_set_aside_however_often_the_connection_breaks() {
    let mut rig = Rig::connected(None);
    let long = "x".repeat(ALWAYS_TAKEN_BYTES + 1);
    for n in 0..u64::from(BREAKS_MAX) * 2 {
        rig.batch(&[(KEY.0, long.as_str())]);
        rig.sent(0);
        rig.breaks(0, 13 + n);
        assert_eq!(rig.sent(0).len(), 1);
        rig.answers(0, "+OK\r\n");
        assert_eq!(rig.done(), [(n, vec![])]);
    }
    // A short one is never the cause.
    rig.batch(&[(KEY.0, "1")]);
    for n in 0..u64::from(BREAKS_MAX) * 2 {
        assert_eq!(rig.sent(0), ["SET k 1"]);
        rig.breaks(0, 33 + n);
    }
    assert_eq!(rig.sent(0), ["SET k 1"]);
}

#[test]
fn a_key_that_may_not_be_written_sets_its_message_aside() {
    let mut rig = Rig::connected(None);
    rig.batch(&[(KEY.0, "1"), (KEY.0, "2")]);
    rig.sent(0);
    rig.answers(0, "-NOPERM No permissions to access a key\r\n+OK\r\n");
    assert_eq!(rig.done(), [(0, vec![("1".to_string(), "NOPERM No permissions to access a key".to_string())])]);
    assert!(rig.shared.fatal.lock().unwrap().is_none());
}

#[test]
fn a_refused_message_is_set_aside_and_a_fatal_error_ends_the_sink() {
    let mut rig = Rig::connected(None);
    rig.batch(&[(KEY.0, "1"), (KEY.0, "2"), (KEY.0, "3")]);
    rig.sent(0);
    rig.answers(0, "+OK\r\n-WRONGTYPE no string\r\n+OK\r\n");
    assert_eq!(rig.done(), [(0, vec![("2".to_string(), "WRONGTYPE no string".to_string())])]);
    assert!(rig.sent(0).is_empty());
    // A retry would not help: the sink ends.
    rig.batch(&[(KEY.0, "4")]);
    rig.sent(0);
    rig.answers(0, "-NOPERM no permissions\r\n");
    let why = rig.fatal();
    assert!(matches!(&why, WriteError::Refused { reply, .. } if reply == "NOPERM no permissions"), "{why:?}");
    assert_eq!(why.to_string(), "NOPERM no permissions (t [0] at 1)");
    assert!(rig.done().is_empty());
}

#[test]
fn each_reason_to_end_has_its_kind() {
    let mut rig = Rig::connected(Some((1, 100)));
    rig.batch(&[(KEY.0, "1")]);
    rig.sent(0);
    rig.answers(0, "+OK\r\n+OK\r\n-NOPERM no permissions to run the 'wait' command\r\n");
    let why = rig.fatal();
    assert!(matches!(&why, WriteError::Wait { reply } if reply.starts_with("NOPERM")), "{why:?}");

    let address = |text: &String| text == A;
    let mut rig = Rig::new(None);
    rig.turn();
    rig.greeted(0, "-NOAUTH Authentication required.\r\n");
    let why = rig.fatal();
    assert!(matches!(&why, WriteError::PasswordWanted { address: a } if address(a)), "{why:?}");

    for (reply, refused) in [("-WRONGPASS s3cret is wrong\r\n", true), ("-LOADING soon\r\n", false)] {
        let mut rig = Rig::new(None);
        rig.writer.settings.target = Target::parse(&format!("redis://:s3cret@{A}")).unwrap();
        rig.turn();
        rig.greeted(0, reply);
        let why = rig.shared.fatal.lock().unwrap().take();
        let told = matches!(&why, Some(WriteError::PasswordRefused { address: a }) if address(a));
        assert_eq!((told, why.is_some()), (refused, refused), "{why:?}");
        assert!(why.is_none_or(|why| !why.to_string().contains("s3cret")), "the server's words are not repeated");
    }

    let mut rig = Rig::new(None);
    rig.writer.settings.target.db = 99;
    rig.turn();
    rig.greeted(0, "+OK\r\n:11\r\n-ERR DB index is out of range\r\n");
    let why = rig.fatal();
    assert_eq!(why.to_string(), format!("{A}: ERR DB index is out of range"));
    assert!(matches!(why, WriteError::Greeting { .. }), "{why:?}");
}

#[test]
fn batches_may_finish_out_of_order() {
    let mut rig = Rig::connected(None);
    rig.batch(&[(KEY.0, "1")]);
    rig.batch(&[(OTHER, "2")]);
    assert_eq!((rig.sent(0).len(), rig.sent(1).len()), (1, 1));
    rig.answers(1, "+OK\r\n");
    assert_eq!(rig.done(), [(1, vec![])]);
    rig.batch(&[(OTHER, "3"), (OTHER, "4")]);
    assert_eq!(rig.sent(1), ["SET foo 3", "SET foo 4"]);
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.done(), [(0, vec![])]);
    rig.answers(1, "+OK\r\n-ERR no\r\n");
    assert_eq!(rig.done(), [(2, vec![("2".to_string(), "ERR no".to_string())])]);
    assert_eq!(rig.shared.window.bytes(), 0);
    assert!(rig.writer.works.is_empty());
}
