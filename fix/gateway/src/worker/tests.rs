//! Without servers: the tests play both sides.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

use unslow_client::Target;
use unslow_reactor::{Peer, Reactor};
use unslow_resp::{Frame, Scan, Scanner, Value, quote_words};
use unslow_testkit::until;
use unslow_topology::{DeploymentKind, Node, Topology, slot_of};

use super::*;
use crate::map::tests::{node, topology};
use crate::request;
use crate::shared::Mailbox;
use crate::step::Command;

/// Node addresses, in the order of their numbers. Nothing listens there, and nothing is ever sent.
pub(crate) const A: &str = "127.0.0.1:1";
pub(crate) const B: &str = "127.0.0.1:2";
pub(crate) const C: &str = "127.0.0.1:3";

/// What a command of one line is to the code that judges it.
pub(crate) fn with_command<T>(line: &str, judge: impl FnOnce(&Command) -> T) -> T {
    let (mut whole, mut args) = (Vec::new(), Vec::new());
    unslow_resp::write_command(&mut whole, &line.split(' ').collect::<Vec<_>>());
    request::parse_whole(&whole, &mut args);
    let table = table();
    judge(&Command { bytes: &whole, args: &args, plan: table.plan(&whole, &args) })
}

/// A worker on an event loop that does not run: its output stays in the buffers of its connections, and the test plays
/// the clients and the servers.
pub(crate) struct Rig {
    reactor: Reactor,
    pub(crate) worker: Worker,
}

/// Rows of COMMAND: name, arity, flag, first key, last key, step. The gateway adds those it handles itself.
pub(crate) fn table() -> Table {
    let text = |t: &str| Value::Text(t.as_bytes().to_vec());
    let row = |(name, arity, flag, first, last, step): (&str, i64, &str, i64, i64, i64)| {
        let flags = Value::Array(vec![text(flag)]);
        let [arity, first, last, step] = [arity, first, last, step].map(Value::Integer);
        Value::Array(vec![text(name), arity, flags, first, last, step])
    };
    let rows = [
        ("get", 2, "readonly", 1, 1, 1),
        ("set", -3, "write", 1, 1, 1),
        ("incr", 2, "write", 1, 1, 1),
        ("mget", -2, "readonly", 1, -1, 1),
        ("mset", -3, "write", 1, -1, 2),
        ("del", -2, "write", 1, -1, 1),
        ("watch", -2, "noscript", 1, -1, 1),
        ("exists", -2, "readonly", 1, -1, 1),
        ("setrange", 4, "write", 1, 1, 1),
        ("eval", -3, "movablekeys", 0, 0, 0),
        ("mod.run", -2, "write", 1, 1, 1),
        ("publish", 3, "pubsub", 0, 0, 0),
        ("spublish", 3, "pubsub", 1, 1, 1),
        ("flushall", -1, "write", 0, 0, 0),
        ("bgsave", -1, "admin", 0, 0, 0),
        ("blpop", -3, "blocking", 1, -2, 1),
        ("eval_ro", -3, "readonly", 0, 0, 0),
        ("evalsha_ro", -3, "readonly", 0, 0, 0),
        ("script", -2, "noscript", 0, 0, 0),
    ];
    Table::parse(&Value::Array(rows.map(row).into()), &[]).expect("a table of commands")
}

/// Commands as lines.
fn lines(bytes: &[u8]) -> Vec<String> {
    let (mut lines, mut rest) = (Vec::new(), bytes);
    while let Ok(Scan::Complete(len)) = Scanner::default().scan(rest) {
        lines.push(quote_words(Frame::new(&rest[..len]).items().map(|f| f.text())));
        rest = &rest[len..];
    }
    assert!(rest.is_empty(), "no whole command: {}", rest.escape_ascii());
    lines
}

fn shared(config: Config, topology: Arc<Topology>) -> Arc<Shared> {
    let target = Target::parse(A).expect("an address");
    let map = Map::next(None, topology, &config, &target, None, None);
    Arc::new(Shared {
        control: std::sync::mpsc::channel().0,
        target,
        tls: None,
        server_name: None,
        config: Mutex::new(Arc::new(config)),
        table: Mutex::new(Arc::new(table())),
        settings_version: AtomicU64::new(1),
        map_version: AtomicU64::new(map.version),
        map: Mutex::new(Arc::new(map)),
        server: Mutex::new(("valkey".into(), "9.0.0".into(), true)),
        limits: Mutex::default(),
        workers: vec![Mailbox::default()],
        clients: AtomicU64::new(0),
        numbers: AtomicU64::new(0),
        broken: AtomicBool::new(false),
        doubter: OnceLock::new(),
        reload: Mutex::default(),
        end: AtomicBool::new(false),
        drained: AtomicUsize::new(0),
        started: Instant::now(),
        facade_ports: Mutex::default(),
    })
}

impl Rig {
    /// A cluster of these nodes.
    pub(crate) fn new(config: Config, nodes: Vec<Node>) -> Rig {
        let reactor = Reactor::new().expect("descriptors are free");
        Rig { reactor, worker: Worker::new(0, shared(config, topology(nodes))) }
    }

    /// A standalone server.
    pub(crate) fn alone() -> Rig {
        let nodes = vec![node(A, None, &[(0, 16383)])];
        let reactor = Reactor::new().expect("descriptors are free");
        let topology = Arc::new(Topology::new(DeploymentKind::Standalone, nodes));
        Rig { reactor, worker: Worker::new(0, shared(Config::default(), topology)) }
    }

    /// A group without slots, under Sentinels.
    pub(crate) fn group(nodes: Vec<Node>) -> Rig {
        let reactor = Reactor::new().expect("descriptors are free");
        let topology = Arc::new(Topology::new(DeploymentKind::Sentinel, nodes));
        Rig { reactor, worker: Worker::new(0, shared(Config::default(), topology)) }
    }

    /// A cluster of two masters with half of the slots each.
    pub(crate) fn halves(config: Config) -> Rig {
        Rig::new(config, vec![node(A, None, &[(0, 8191)]), node(B, None, &[(8192, 16383)])])
    }

    /// Keys of this node, in three different slots.
    pub(crate) fn keys(&self, node: u16) -> [String; 3] {
        let (mut keys, mut slots) = (Vec::new(), Vec::new());
        for key in (0u32..).map(|n| format!("k{n}")) {
            let slot = slot_of(key.as_bytes());
            if self.worker.map.servers.owner(slot) == node && !slots.contains(&slot) {
                slots.push(slot);
                keys.push(key);
            }
            if keys.len() == 3 {
                break;
            }
        }
        keys.try_into().expect("three keys")
    }

    /// A client connects; `to` is the gateway address it dialled.
    pub(crate) fn client(&mut self, to: Option<SocketAddr>) -> Id {
        let somewhere = Peer::Tcp(A.parse().expect("an address"));
        let id = self.reactor.io().connect(&somewhere, None, u64::MAX).expect("descriptors are free");
        self.worker.accepted(self.reactor.io(), id, Visitor { listener: 0, from: None, to });
        id
    }

    /// A client sends this, and all of it is consumed.
    pub(crate) fn says(&mut self, client: Id, text: &str) {
        let used = self.worker.data(self.reactor.io(), client, text.as_bytes());
        assert_eq!(used, text.len(), "consumed of {text:?}");
    }

    /// A client sends this, and none of it is consumed for now.
    pub(crate) fn waits(&mut self, client: Id, text: &str) {
        let used = self.worker.data(self.reactor.io(), client, text.as_bytes());
        assert_eq!(used, 0, "consumed of {text:?}");
    }

    /// What is said first on the connection that is being dialled to a node.
    pub(crate) fn greeting(&mut self, node: u16) -> Vec<String> {
        let lanes = &self.worker.lanes;
        let lane = lanes.iter().find(|l| !l.free && l.node == node && l.state == State::Opening);
        let id = lane.and_then(|l| l.connection).expect("a connection is being dialled");
        self.worker.opened(self.reactor.io(), id);
        let bytes = std::mem::take(self.reactor.io().output(id));
        // The rest of its greeting is played by `open`.
        let Some(Party::Lane(lane)) = self.worker.parties.get(id.index()).copied() else { panic!("it is a lane") };
        self.worker.lanes[lane].state = State::Opening;
        lines(&bytes)
    }

    /// A client sends this; how much of it is consumed.
    pub(crate) fn offers(&mut self, client: Id, text: &str) -> usize {
        self.worker.data(self.reactor.io(), client, text.as_bytes())
    }

    /// Takes the output for a client.
    pub(crate) fn told(&mut self, client: Id) -> String {
        String::from_utf8(std::mem::take(self.reactor.io().output(client))).expect("text")
    }

    /// Takes the commands for a node, without the greetings of new connections.
    pub(crate) fn asked(&mut self, node: u16) -> Vec<String> {
        self.open();
        let lanes = self.worker.lanes.iter().filter(|l| !l.free && l.node == node);
        let ids: Vec<Id> = lanes.filter_map(|l| l.connection).collect();
        let mut lines = Vec::new();
        for id in ids {
            let bytes = std::mem::take(self.reactor.io().output(id));
            lines.extend(self::lines(&bytes));
        }
        lines
    }

    /// Establishes and greets all dialled connections.
    pub(crate) fn open(&mut self) {
        for lane in self.worker.lanes.places() {
            let l = &self.worker.lanes[lane];
            let (State::Opening, Some(id)) = (l.state, l.connection) else { continue };
            self.worker.opened(self.reactor.io(), id);
            let said = lines(&std::mem::take(self.reactor.io().output(id)));
            for command in said {
                let reply: &[u8] = if command == "CLIENT ID" { b":7\r\n" } else { b"+OK\r\n" };
                self.worker.data(self.reactor.io(), id, reply);
            }
            assert!(self.worker.lanes[lane].state == State::Ready, "greeted");
        }
    }

    /// A node replies on the connection that has commands in flight.
    pub(crate) fn answers(&mut self, node: u16, text: &str) {
        let lane = self.worker.lanes.iter().find(|l| !l.free && l.node == node && l.sent > 0);
        let id = lane.and_then(|l| l.connection).expect("a connection that owes answers");
        self.worker.data(self.reactor.io(), id, text.as_bytes());
    }

    /// The same, as the reactor hands on what arrives in pieces: bytes that are not consumed come again with the next.
    pub(crate) fn answers_in_pieces(&mut self, node: u16, text: &str, size: usize) {
        let lane = self.worker.lanes.iter().find(|l| !l.free && l.node == node && l.sent > 0);
        let id = lane.and_then(|l| l.connection).expect("a connection that owes answers");
        let mut kept = Vec::new();
        for piece in text.as_bytes().chunks(size) {
            kept.extend_from_slice(piece);
            let used = self.worker.data(self.reactor.io(), id, &kept);
            kept.drain(..used);
            assert!(kept.len() <= 64 << 10, "{} bytes wait for more", kept.len());
        }
        assert!(kept.is_empty(), "{} bytes are left", kept.len());
    }

    /// Commands under way were sent long ago, and it is time to look after lanes.
    pub(crate) fn stands_still(&mut self) {
        for lane in self.worker.lanes.iter_mut() {
            let sent = lane.sent;
            lane.flights.iter_mut().take(sent).for_each(|flight| flight.at = 0);
        }
        self.worker.tick_at = 0;
        self.turn();
    }

    /// A node replies to the question whether it is busy.
    pub(crate) fn answers_probe(&mut self, node: u16, text: &str) {
        let asks = |l: &&Lane| !l.free && l.node == node && l.flights.front().is_some_and(|f| f.kind == Kind::Probe);
        let id = self.worker.lanes.iter().find(asks).and_then(|l| l.connection).expect("a question");
        self.worker.data(self.reactor.io(), id, text.as_bytes());
    }

    /// A node says this on the connection of a client's subscriptions.
    pub(crate) fn confirms(&mut self, client: Id, text: &str) {
        let id = self.subscriber_lane(client).and_then(|l| l.connection).expect("a connection with subscriptions");
        self.worker.data(self.reactor.io(), id, text.as_bytes());
    }

    /// The first connection with subscriptions of this client.
    pub(crate) fn subscriber_lane(&self, client: Id) -> Option<&Lane> {
        let own = |l: &&Lane| !l.free && l.raw && l.owner.is_some_and(|owner| owner.place() == client.index());
        self.worker.lanes.iter().find(own)
    }

    /// The connection of a client's subscriptions breaks.
    pub(crate) fn loses(&mut self, client: Id) {
        let id = self.subscriber_lane(client).and_then(|l| l.connection).expect("a connection with subscriptions");
        self.reactor.io().close(id);
        self.worker.closed(self.reactor.io(), id, Closed::Peer);
    }

    /// A client closes its connection.
    pub(crate) fn leaves(&mut self, client: Id) {
        self.reactor.io().close(client);
        self.worker.closed(self.reactor.io(), client, Closed::Peer);
    }

    /// A connection that is being opened to a node is refused.
    pub(crate) fn refuses(&mut self, node: u16) {
        let lane = self.worker.lanes.iter().find(|l| !l.free && l.node == node && l.state == State::Opening);
        let id = lane.and_then(|l| l.connection).expect("a connection that is being opened");
        self.reactor.io().close(id);
        self.worker.closed(self.reactor.io(), id, Closed::Peer);
    }

    /// A node's connection breaks; output not taken with [`Rig::asked`] was never sent.
    pub(crate) fn breaks(&mut self, node: u16) {
        let lane = self.worker.lanes.iter().find(|l| !l.free && l.node == node && l.state == State::Ready);
        let id = lane.and_then(|l| l.connection).expect("a connection");
        self.reactor.io().close(id);
        self.worker.closed(self.reactor.io(), id, Closed::Peer);
    }

    /// A client sends no more; it is closed unless the gateway still has something for it.
    pub(crate) fn ends(&mut self, client: Id) {
        if !Handler::ended(&mut self.worker, self.reactor.io(), client) {
            self.leaves(client);
        }
    }

    /// Whether a client is closed with its last answer.
    pub(crate) fn goes(&self, client: Id) -> bool {
        self.worker.everyone().any(|c| c.id == client && c.leaving == Leaving::WhenAnswered)
    }

    /// The next turn looks after the clients that wait for room.
    pub(crate) fn makes_room(&mut self) {
        self.worker.tick_at = 0;
        self.turn();
    }

    /// A connection is closed by its peer, whoever that is.
    pub(crate) fn close(&mut self, id: Id) {
        self.reactor.io().close(id);
        self.worker.closed(self.reactor.io(), id, Closed::Peer);
    }

    /// Runs turns until a client is told something.
    pub(crate) fn hears(&mut self, client: Id) -> String {
        let mut told = String::new();
        until("the client to hear something", || {
            self.turn();
            told += &self.told(client);
            !told.is_empty()
        });
        told
    }

    /// One turn of the event loop.
    pub(crate) fn turn(&mut self) {
        self.worker.turn(self.reactor.io());
    }

    /// Runs turns until no retry is pending.
    pub(crate) fn send_again(&mut self) {
        until("no retry is pending", || {
            self.turn();
            self.worker.again.is_empty()
        });
    }

    /// The watcher reports another topology.
    pub(crate) fn remap(&mut self, nodes: Vec<Node>) {
        let shared = self.worker.shared.clone();
        let topology = Arc::new(Topology::new(self.worker.map.kind, nodes));
        let map = Map::next(Some(&shared.map()), topology, &shared.config(), &shared.target, None, None);
        shared.map_version.store(map.version, Ordering::Release);
        *shared.map.lock().expect("no thread panicked") = Arc::new(map);
        shared.call_all();
        self.turn();
    }
}

#[test]
fn replies_keep_the_command_order_when_a_later_node_answers_first() {
    let mut rig = Rig::halves(Config::default());
    let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
    let client = rig.client(None);
    rig.says(client, &format!("GET {here}\r\nGET {there}\r\nPING\r\n"));
    assert_eq!(rig.asked(0), [format!("GET {here}")]);
    assert_eq!(rig.asked(1), [format!("GET {there}")]);
    rig.answers(1, "$3\r\ntwo\r\n");
    assert_eq!(rig.told(client), "");
    rig.answers(0, "$3\r\none\r\n");
    assert_eq!(rig.told(client), "$3\r\none\r\n$3\r\ntwo\r\n+PONG\r\n");
}

#[test]
fn client_reply_skip_and_off_suppress_exactly_the_right_replies() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("CLIENT REPLY SKIP\r\nGET {key}\r\nGET {key}\r\n"));
    assert_eq!(rig.asked(0).len(), 2);
    rig.answers(0, "$1\r\na\r\n$1\r\nb\r\n");
    assert_eq!(rig.told(client), "$1\r\nb\r\n");
    rig.says(client, &format!("CLIENT REPLY OFF\r\nGET {key}\r\nPING\r\n"));
    rig.asked(0);
    rig.answers(0, "$1\r\nc\r\n");
    assert_eq!(rig.told(client), "");
    rig.says(client, "CLIENT REPLY ON\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
}

#[test]
fn a_refused_command_is_retried_only_if_no_later_command_ran() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let both = [format!("SET {key} v"), format!("GET {key}")];
    let client = rig.client(None);
    // The GET saw the old value: resending the SET would reorder the two.
    rig.says(client, &(both.join("\r\n") + "\r\n"));
    assert_eq!(rig.asked(0), both);
    rig.answers(0, "-TRYAGAIN not now\r\n$-1\r\n");
    rig.turn();
    assert_eq!(rig.told(client), "-TRYAGAIN not now\r\n$-1\r\n");
    assert!(rig.asked(0).is_empty());
    // Neither ran: both are resent in order.
    rig.says(client, &(both.join("\r\n") + "\r\n"));
    assert_eq!(rig.asked(0), both);
    rig.answers(0, "-TRYAGAIN not now\r\n-TRYAGAIN not now\r\n");
    rig.send_again();
    assert_eq!((rig.told(client).as_str(), rig.asked(0)), ("", both.to_vec()));
    rig.answers(0, "+OK\r\n$1\r\nv\r\n");
    assert_eq!(rig.told(client), "+OK\r\n$1\r\nv\r\n");
}

#[test]
fn arguments_longer_than_the_server_takes_are_refused_in_its_words() {
    let mut rig = Rig::halves(Config::default());
    *rig.worker.shared.limits.lock().unwrap() =
        crate::shared::ServerLimits { argument_bytes: Some(1 << 20), maxclients: Some(50), busy_ms: None };
    rig.worker.shared.settings_version.fetch_add(1, Ordering::AcqRel);
    rig.worker.shared.call_all();
    rig.turn();
    assert_eq!(rig.worker.own_most, crate::own::Most { clients: 25 });
    let client = rig.client(None);
    rig.says(client, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048577\r\n");
    assert_eq!(rig.told(client), "-ERR Protocol error: invalid bulk length\r\n");
    assert!(rig.asked(0).is_empty() && rig.asked(1).is_empty());
}

#[test]
fn later_arguments_of_a_long_request_are_held_against_the_servers_limit_too() {
    let mut rig = Rig::halves(Config::default());
    rig.worker.shared.limits.lock().unwrap().argument_bytes = Some(1 << 20);
    rig.turn();
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    let head = format!("*4\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$300000\r\n", key.len());
    // It needs a connection of its own first.
    rig.waits(client, &head);
    rig.asked(0);
    rig.says(client, &(head + &"x".repeat(1000)));
    rig.says(client, &("x".repeat(299_000) + "\r\n$1048577\r\n"));
    assert_eq!(rig.told(client), "-ERR Protocol error: invalid bulk length\r\n");
    assert!(rig.worker.lanes.iter().all(|l| l.free), "nobody goes on with half a command");
}

/// The beginning of a SET of a long value.
const LONG_SET: &str = "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$300000\r\n";

/// A client that waits for the connection on which its long value is to pass.
fn with_a_long_value() -> (Rig, Id) {
    let mut rig = Rig::alone();
    let client = rig.client(None);
    rig.waits(client, LONG_SET);
    (rig, client)
}

fn assert_nothing_is_left(rig: &Rig) {
    assert_eq!((rig.worker.everyone().count(), rig.worker.unread), (0, 0));
    assert!(rig.worker.lanes.iter().all(|l| l.free), "a server connection with half a command stays open");
    assert!(rig.worker.sets.iter().all(|s| s.owner.is_none()), "a set belongs to a client that has left");
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_long_value_leaves_nothing_behind() {
    // Within the value, and within the line after it.
    for sent in ["x".repeat(1000), "x".repeat(300_000) + "\r"] {
        let (mut rig, client) = with_a_long_value();
        rig.open();
        rig.makes_room();
        rig.says(client, &(LONG_SET.to_string() + &sent));
        rig.ends(client);
        assert_nothing_is_left(&rig);
    }
}

#[test]
fn a_client_that_left_before_its_long_value_could_pass_is_closed_after_all_of_it_was_read() {
    for (rest, whole) in [("x".repeat(1000), false), ("x".repeat(300_000) + "\r\n", true)] {
        let (mut rig, client) = with_a_long_value();
        rig.ends(client);
        assert_eq!(rig.worker.everyone().count(), 1, "what it has sent may be whole");
        rig.open();
        rig.makes_room();
        rig.says(client, &(LONG_SET.to_string() + &rest));
        if whole {
            rig.answers(0, "+OK\r\n");
            assert_eq!(rig.told(client), "+OK\r\n");
            assert!(rig.goes(client));
        } else {
            assert_nothing_is_left(&rig);
        }
    }
}

#[test]
fn a_client_that_left_after_a_value_its_server_takes_slowly_is_closed_with_its_answer() {
    let (mut rig, client) = with_a_long_value();
    rig.open();
    rig.makes_room();
    rig.says(client, &(LONG_SET.to_string() + &"x".repeat(300_000) + "\r\n"));
    // So much is ahead of the server that the client is not read until the server has caught up.
    let whom = rig.worker.everyone().find(|c| c.id == client).map(|c| c.whom()).expect("it is there");
    rig.worker.stall(rig.reactor.io(), whom, Stall::Room);
    rig.ends(client);
    assert!(!rig.goes(client));
    rig.makes_room();
    assert!(rig.goes(client), "nothing of it is left to be read");
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n");
}

#[test]
fn a_draining_gateway_lets_each_client_go_behind_an_answer_and_never_before_one() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let [busy, begins, queues, watches, listens] = [(); 5].map(|()| rig.client(None));
    rig.says(queues, "MULTI\r\n");
    rig.says(watches, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    rig.says(listens, "SUBSCRIBE c\r\n");
    // Nobody is ever silent for long, however slow the machine is.
    let awake = |rig: &mut Rig| rig.worker.clients.iter_mut().flatten().for_each(|c| c.seen = u64::MAX >> 1);
    rig.worker.draining = Some(u64::MAX);
    rig.says(busy, &format!("GET {key}\r\nGET {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "$1\r\na\r\n");
    awake(&mut rig);
    rig.turn();
    assert!(!rig.goes(busy), "an answer is owed");
    // The beginning of another command has come.
    let half = rig.worker.data(rig.reactor.io(), busy, b"*2\r\n$3\r\nGET");
    assert_eq!(half, 0);
    rig.answers(0, "$1\r\nb\r\n");
    awake(&mut rig);
    rig.turn();
    assert!(!rig.goes(busy), "in the middle of a command");
    rig.says(busy, &format!("GET {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "$1\r\nc\r\n");
    awake(&mut rig);
    rig.turn();
    assert!(rig.goes(busy), "between two commands, although it was never silent");
    assert_eq!(rig.told(busy), "$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n");
    // Who has only just come says what it came for.
    rig.says(begins, "PING\r\n");
    awake(&mut rig);
    rig.turn();
    assert!(!rig.goes(begins));
    rig.says(begins, &format!("GET {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "$-1\r\n");
    awake(&mut rig);
    rig.turn();
    assert!(rig.goes(begins));
    for (client, why) in [(queues, "a transaction"), (watches, "a WATCH"), (listens, "a subscription")] {
        assert!(!rig.goes(client), "{why}");
    }
    assert_eq!(rig.worker.everyone().count(), 5, "nobody was cut off");
}

#[test]
fn clients_beyond_max_clients_are_refused_and_a_freed_place_is_reused() {
    let mut rig = Rig::halves(Config { max_clients: 1, ..Config::default() });
    let first = rig.client(None);
    let second = rig.client(None);
    assert_eq!(rig.told(second), "-ERR max number of clients reached\r\n");
    assert_eq!((rig.worker.stats.clients_refused, rig.worker.everyone().count()), (1, 1));
    rig.worker.closed(rig.reactor.io(), first, Closed::Peer);
    let third = rig.client(None);
    rig.says(third, "PING\r\n");
    assert_eq!(rig.told(third), "+PONG\r\n");
}

#[test]
fn new_settings_leave_a_decided_wait_unless_they_say_another() {
    use crate::config::Batch::{Auto, Us};
    let mut rig = Rig::halves(Config { batch_us: Auto, ..Config::default() });
    rig.turn();
    let mut reload = |batch_us, decided| {
        rig.worker.pace.ns = decided;
        *rig.worker.shared.config.lock().unwrap() = Arc::new(Config { batch_us, ..Config::default() });
        rig.worker.shared.settings_version.fetch_add(1, Ordering::AcqRel);
        rig.worker.catch_up(rig.reactor.io());
        rig.worker.pace.ns
    };
    assert_eq!(reload(Auto, 70_000), 70_000, "as decided");
    assert_eq!(reload(Us(30), 70_000), 30_000);
    assert_eq!(reload(Auto, 30_000), 0, "the next period decides");
}
