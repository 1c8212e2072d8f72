//! One row, one test: a state, a command, and what is to be done.

use unslow_commands::Table;
use unslow_resp::Value;

use super::*;
use crate::ids::{LaneId, SetId};
use crate::request;
use crate::session::{Doing, OWN};
use unslow_reactor::Id;

const LANE: LaneId = LaneId::at(0);
const CLUSTER: World = World { cluster: true, shared: true, trusted: true };
const ALONE: World = World { cluster: false, shared: true, trusted: true };
const STRANGER: World = World { trusted: false, ..CLUSTER };
/// Its connections are its own.
const OWNER: World = World { shared: false, ..CLUSTER };

/// Name, arity, flag, first key, and subcommands.
type Row = (&'static str, i64, &'static str, i64, &'static [&'static str]);

/// Rows of COMMAND as 7.0 has them.
fn table() -> Table {
    let text = |t: &str| Value::Text(t.as_bytes().to_vec());
    let basic = |name: &str, arity: i64, flag: &str, key: i64| {
        let keys = [key, key, i64::from(key > 0)].map(Value::Integer);
        [vec![text(name), Value::Integer(arity), Value::Array(vec![text(flag)])], keys.to_vec()].concat()
    };
    let none = || Value::Array(Vec::new());
    let row = |(name, arity, flag, key, subcommands): Row| {
        let children = subcommands.iter().map(|s| {
            let full = [basic(&format!("{name}|{s}"), -2, flag, 0), vec![none(), none(), none(), none()]];
            Value::Array(full.concat())
        });
        let rest = vec![none(), none(), none(), Value::Array(children.collect())];
        Value::Array([basic(name, arity, flag, key), rest].concat())
    };
    let rows: [Row; 34] = [
        ("get", 2, "readonly", 1, &[]),
        ("set", -3, "write", 1, &[]),
        ("del", -2, "write", 1, &[]),
        ("time", 1, "fast", 0, &[]),
        ("blpop", -3, "blocking", 1, &[]),
        ("bgsave", -1, "admin", 0, &[]),
        ("shutdown", -1, "admin", 0, &[]),
        ("config", -2, "admin", 0, &["get", "set"]),
        // As servers before 7.0 have it.
        ("slowlog", -2, "admin", 0, &[]),
        ("debug", -2, "admin", 0, &[]),
        ("script", -2, "noscript", 0, &["debug", "load", "flush"]),
        ("migrate", -6, "write", 3, &[]),
        ("object", -2, "readonly", 0, &["freq", "help"]),
        ("flushall", -1, "write", 0, &[]),
        ("multi", 1, "fast", 0, &[]),
        ("exec", 1, "fast", 0, &[]),
        ("discard", 1, "fast", 0, &[]),
        ("watch", -2, "fast", 1, &[]),
        ("unwatch", 1, "fast", 0, &[]),
        ("auth", -2, "fast", 0, &[]),
        ("hello", -1, "fast", 0, &[]),
        ("select", 2, "fast", 0, &[]),
        ("reset", 1, "fast", 0, &[]),
        ("quit", -1, "fast", 0, &[]),
        ("ping", -1, "fast", 0, &[]),
        ("subscribe", -2, "pubsub", 0, &[]),
        ("unsubscribe", -1, "pubsub", 0, &[]),
        ("ssubscribe", -2, "pubsub", 0, &[]),
        ("monitor", 1, "admin", 0, &[]),
        ("wait", 3, "fast", 0, &[]),
        ("scan", -2, "readonly", 0, &[]),
        ("client", -2, "admin", 0, &[]),
        ("cluster", -2, "admin", 0, &[]),
        ("psync", -3, "admin", 0, &[]),
    ];
    Table::parse(&Value::Array(rows.map(row).into()), &[]).expect("a table of commands")
}

fn plain() -> Client {
    let mut client = Client::new(Id::NOBODY, 1, 0);
    (client.set, client.identity) = (Some(SetId::at(0)), Some(OWN));
    client
}

fn anonymous() -> Client {
    Client::new(Id::NOBODY, 1, 0)
}

/// Answers are owed to it.
fn busy() -> Client {
    owed(plain())
}

fn owed(mut client: Client) -> Client {
    client.begin();
    client
}

fn subscriber() -> Client {
    let mut client = plain();
    client.subscriber.lanes = vec![LANE];
    client
}

fn subscriber3() -> Client {
    Client { proto: 3, ..subscriber() }
}

/// A confirmation of UNSUBSCRIBE is to come.
fn unsubscribing() -> Client {
    let mut client = subscriber();
    client.subscriber.unsubscribing = 1;
    client
}

/// A confirmation of SUBSCRIBE is to come.
fn subscribing() -> Client {
    let mut client = subscriber();
    client.subscriber.subscribing = 1;
    client
}

fn subscribing3() -> Client {
    Client { proto: 3, ..subscribing() }
}

/// Its node is not there.
fn subscribing_nowhere() -> Client {
    let mut client = subscribing();
    client.subscriber.lanes = Vec::new();
    client
}

fn monitor() -> Client {
    let mut client = Client { pin: Some(LANE), ..plain() };
    client.rare.doing = Doing::Monitor;
    client
}

fn within(at: Txn) -> Client {
    let mut client = plain();
    client.rare.doing = Doing::Transaction(Box::new(Transaction::new(at)));
    client
}

fn said() -> Client {
    within(Txn::Said)
}

/// MULTI and a command without a key.
fn queued() -> Client {
    let mut client = said();
    client.transaction_mut().expect("a transaction").queued.push(b"*1\r\n$4\r\nTIME\r\n".to_vec());
    client
}

fn poisoned() -> Client {
    let mut client = said();
    client.transaction_mut().expect("a transaction").poisoned = true;
    client
}

/// As much as may wait has been said.
fn full() -> Client {
    let mut client = said();
    client.transaction_mut().expect("a transaction").queued = vec![vec![0; 1024]; 64];
    client
}

fn open() -> Client {
    Client { pin: Some(LANE), ..within(Txn::Open) }
}

fn open_poisoned() -> Client {
    let mut client = open();
    client.transaction_mut().expect("a transaction").poisoned = true;
    client
}

fn lost() -> Client {
    within(Txn::Lost)
}

fn watching() -> Client {
    Client { watch: Watch::Keys, pin: Some(LANE), ..plain() }
}

fn watch_lost() -> Client {
    Client { watch: Watch::Lost, ..plain() }
}

fn blocked() -> Client {
    owed(Client { pin: Some(LANE), ..plain() })
}

fn streaming() -> Client {
    let passing = crate::request::Passing::new(crate::request::Allowed::All);
    let stream = crate::session::Stream { lane: Some(LANE), passing };
    let mut client = plain();
    client.rare.stream = Some(Box::new(stream));
    client
}

fn step(client: &Client, world: World, line: &str) -> Step {
    let bytes = line.split(' ').collect::<Vec<_>>();
    let mut whole = Vec::new();
    unslow_resp::write_command(&mut whole, &bytes);
    let mut args = Vec::new();
    request::parse_whole(&whole, &mut args);
    let table = table();
    let plan = table.plan(&whole, &args);
    client.on_command(&Command { bytes: &whole, args: &args, plan }, table.get(plan.number), world)
}

/// Whether this is the answer, with or without an end to it.
fn says(step: &Step, text: &str) -> bool {
    match step {
        Step::Say(answer) | Step::SayAndClose(answer) | Step::Abort(answer) => answer.starts_with(text.as_bytes()),
        Step::Poison(answer) => answer.starts_with(text.as_bytes()),
        _ => false,
    }
}

macro_rules! rows {
    ($($name:ident: $state:ident, $world:ident, $line:literal => $expected:pat $(= $text:literal)?,)*) => {
        $(#[test]
        fn $name() {
            let step = step(&$state(), $world, $line);
            assert!(matches!(step, $expected), "{}: {step:?}", $line);
            $(assert!(says(&step, $text), "{}: {step:?}", $line);)?
        })*
    };
}

rows! {
    // Who has not said who it is may say so, and go.
    anonymous_reads_nothing: anonymous, CLUSTER, "GET k" => Step::Say(_) = "-NOAUTH ",
    anonymous_begins_nothing: anonymous, CLUSTER, "MULTI" => Step::Say(_) = "-NOAUTH ",
    anonymous_hears_nothing: anonymous, CLUSTER, "SUBSCRIBE c" => Step::Say(_) = "-NOAUTH ",
    anonymous_asks_the_gateway_nothing: anonymous, CLUSTER, "UNSLOW SHOW STATS" => Step::Say(_) = "-NOAUTH ",
    anonymous_says_who_it_is: anonymous, CLUSTER, "AUTH word" => Step::Auth,
    anonymous_greets: anonymous, CLUSTER, "HELLO 3" => Step::Hello,
    anonymous_goes: anonymous, CLUSTER, "QUIT" => Step::SayAndClose(_) = "+OK",
    anonymous_resets: anonymous, CLUSTER, "RESET" => Step::Reset,
    anonymous_browser: anonymous, CLUSTER, "POST / HTTP/1.1" => Step::Close,

    // Nothing special about the client.
    http_post: plain, CLUSTER, "POST / HTTP/1.1" => Step::Close,
    http_host: plain, CLUSTER, "host: example.org" => Step::Close,
    ping: plain, CLUSTER, "PING" => Step::Say(_) = "+PONG",
    ping_with_a_word: plain, CLUSTER, "PING word" => Step::Say(_) = "$4\r\nword",
    ping_with_two: plain, CLUSTER, "PING a b" => Step::Say(_) = "-ERR wrong number",
    ping_while_answers_are_owed: busy, CLUSTER, "PING" => Step::Say(_) = "+PONG",
    multi: plain, CLUSTER, "MULTI" => Step::Begin,
    multi_with_a_word: plain, CLUSTER, "MULTI now" => Step::Say(_) = "-ERR wrong number",
    multi_while_answers_are_owed: busy, CLUSTER, "MULTI" => Step::Wait(Stall::Answers),
    exec_alone: plain, CLUSTER, "EXEC" => Step::Anywhere,
    discard_alone: plain, CLUSTER, "DISCARD" => Step::Anywhere,
    unwatch_alone: plain, CLUSTER, "UNWATCH" => Step::Anywhere,
    watch: plain, CLUSTER, "WATCH k" => Step::Watch,
    watch_nothing: plain, CLUSTER, "WATCH" => Step::Say(_) = "-ERR wrong number",
    watch_while_answers_are_owed: busy, CLUSTER, "WATCH k" => Step::Wait(Stall::Answers),
    block: plain, CLUSTER, "BLPOP k 0" => Step::Block,
    block_while_answers_are_owed: busy, CLUSTER, "BLPOP k 0" => Step::Wait(Stall::Answers),
    subscribe: plain, CLUSTER, "SUBSCRIBE c" => Step::Subscribe,
    subscribe_to_nothing: plain, CLUSTER, "SUBSCRIBE" => Step::Say(_) = "-ERR wrong number",
    subscribe_sharded: plain, CLUSTER, "SSUBSCRIBE c" => Step::SubscribeSharded,
    begin_monitor: plain, CLUSTER, "MONITOR" => Step::Monitor,
    select: plain, CLUSTER, "SELECT 1" => Step::Select,
    auth_while_answers_are_owed: busy, CLUSTER, "AUTH word" => Step::Wait(Stall::Answers),
    wait: plain, CLUSTER, "WAIT 1 0" => Step::Replicas,
    client: plain, CLUSTER, "CLIENT ID" => Step::Client,
    scan_of_all: plain, CLUSTER, "SCAN 0" => Step::Scan,
    scan_of_one: plain, ALONE, "SCAN 0" => Step::Anywhere,
    cluster: plain, CLUSTER, "CLUSTER SLOTS" => Step::Cluster,
    cluster_of_a_server_without_one: plain, ALONE, "CLUSTER SLOTS" => Step::Anywhere,
    asking: plain, CLUSTER, "ASKING" => Step::Say(_) = "+OK",
    asking_a_server_alone: plain, ALONE, "ASKING" => Step::Anywhere,
    psync: plain, CLUSTER, "PSYNC ? -1" => Step::Say(_) = "-ERR unslow: replication",
    unslow_of_the_operator: plain, CLUSTER, "UNSLOW SHOW STATS" => Step::Unslow,
    unslow_of_a_stranger: plain, STRANGER, "UNSLOW SHOW STATS" => Step::Say(_) = "-NOPERM ",
    harmless_admin: plain, CLUSTER, "CONFIG GET maxmemory" => Step::Ordinary,

    // What may make a server close the connection goes on the client's own.
    unknown_shares_nothing: plain, CLUSTER, "RENAMED-QUIT" => Step::OwnConnections,
    unknown_waits_for_its_turn: busy, CLUSTER, "RENAMED-QUIT" => Step::Wait(Stall::Answers),
    unknown_on_its_own: plain, OWNER, "RENAMED-QUIT" => Step::Ordinary,
    shutdown_shares_nothing: plain, CLUSTER, "SHUTDOWN" => Step::OwnConnections,
    config_set_shares_nothing: plain, CLUSTER, "CONFIG SET maxmemory 1" => Step::OwnConnections,
    slowlog_get_shares: plain, CLUSTER, "SLOWLOG GET" => Step::Ordinary,
    slowlog_reset_shares_nothing: plain, CLUSTER, "SLOWLOG RESET" => Step::OwnConnections,
    script_debug_shares_nothing: plain, ALONE, "SCRIPT DEBUG YES" => Step::OwnConnections,

    // Subscribers.
    subscriber_pings: subscriber, CLUSTER, "PING" => Step::Say(_) = "*2\r\n$4\r\npong",
    subscriber_subscribes: subscriber, CLUSTER, "SUBSCRIBE c" => Step::Subscribe,
    subscriber_reads_nothing: subscriber, CLUSTER, "GET k" => Step::Say(_) = "-ERR Can't execute 'get'",
    subscriber_begins_nothing: subscriber, CLUSTER, "MULTI" => Step::Say(_) = "-ERR Can't execute 'multi'",
    subscriber_goes: subscriber, CLUSTER, "QUIT" => Step::SayAndClose(_) = "+OK",
    subscriber_resets: subscriber, CLUSTER, "RESET" => Step::Reset,
    subscriber_of_resp3_begins: subscriber3, CLUSTER, "MULTI" => Step::Begin,
    unsubscribing_waits_to_subscribe: unsubscribing, CLUSTER, "SUBSCRIBE c" => Step::Wait(Stall::Confirmations),
    unsubscribing_waits_to_read: unsubscribing, CLUSTER, "GET k" => Step::Wait(Stall::Confirmations),
    // Replies stand behind the confirmations, as on one connection.
    subscribing_waits_to_ping: subscribing, CLUSTER, "PING" => Step::Wait(Stall::Confirmations),
    subscribing_waits_to_read: subscribing, CLUSTER, "GET k" => Step::Wait(Stall::Confirmations),
    subscribing_waits_to_reset: subscribing, CLUSTER, "RESET" => Step::Wait(Stall::Confirmations),
    subscribing_waits_to_leave_all: subscribing, CLUSTER, "UNSUBSCRIBE" => Step::Wait(Stall::Confirmations),
    subscribing_more: subscribing, CLUSTER, "SUBSCRIBE d" => Step::Subscribe,
    subscribing_leaves_one: subscribing, CLUSTER, "UNSUBSCRIBE c" => Step::Subscribe,
    subscribing3_waits_to_read: subscribing3, CLUSTER, "GET k" => Step::Wait(Stall::Confirmations),
    // A subscription that waits for a node is not waited for.
    subscribing_nowhere_reads: subscribing_nowhere, CLUSTER, "GET k" => Step::Ordinary,

    // MONITOR ends with RESET or QUIT.
    monitor_reads_nothing: monitor, CLUSTER, "GET k" => Step::Say(_) = "-ERR unslow: only QUIT",
    monitor_begins_nothing: monitor, CLUSTER, "MULTI" => Step::Say(_) = "-ERR unslow: only QUIT",
    monitor_resets: monitor, CLUSTER, "RESET" => Step::Reset,
    monitor_goes: monitor, CLUSTER, "QUIT" => Step::SayAndClose(_),

    // MULTI, of which no server has heard.
    said_keeps_what_names_no_node: said, CLUSTER, "TIME" => Step::Queue,
    said_keeps_a_ping: said, CLUSTER, "PING" => Step::Queue,
    said_asks_a_server_about_subcommands_it_does_not_know: said, CLUSTER, "OBJECT NOSUCH" => Step::Open,
    said_asks_a_server_about_arguments: said, CLUSTER, "TIME now" => Step::Open,
    said_asks_a_server_about_unknown_commands: said, CLUSTER, "NOSUCH" => Step::Open,
    said_opens_with_a_key: said, CLUSTER, "GET k" => Step::Open,
    said_opens_at_once_on_a_server_alone: said, ALONE, "TIME" => Step::Open,
    said_and_watches: said, CLUSTER, "WATCH k" => Step::Open,
    said_again: said, CLUSTER, "MULTI" => Step::Open,
    said_and_done: said, CLUSTER, "EXEC" => Step::EndUnsaid,
    said_and_discarded: said, CLUSTER, "DISCARD" => Step::EndUnsaid,
    said_and_done_with_a_word: said, CLUSTER, "EXEC now" => Step::EndUnsaid,
    said_and_discarded_with_a_word: said, CLUSTER, "DISCARD it" => Step::Poison(_) = "-ERR wrong number",
    queued_is_said_before_it_is_done: queued, CLUSTER, "EXEC" => Step::Open,
    queued_and_discarded: queued, CLUSTER, "DISCARD" => Step::EndUnsaid,
    full_is_said: full, CLUSTER, "TIME" => Step::Open,
    said_and_gone: said, CLUSTER, "QUIT" => Step::SayAndClose(_),
    said_and_reset: said, CLUSTER, "RESET" => Step::Reset,
    said_takes_no_auth: said, CLUSTER, "AUTH word" => Step::Poison(_) = "-ERR unslow: AUTH is about the connection",
    said_takes_no_subscription: said, CLUSTER, "SUBSCRIBE c" => Step::Poison(_) = "-ERR unslow: SUBSCRIBE is about",
    said_takes_no_scan: said, CLUSTER, "SCAN 0" => Step::Poison(_) = "-ERR unslow: SCAN is answered for all nodes",
    said_takes_a_scan_of_one: said, ALONE, "SCAN 0" => Step::Open,
    said_flushes_not_all: said, CLUSTER, "FLUSHALL" => Step::Poison(_) = "-ERR unslow: FLUSHALL goes to several",
    said_saves_not_any: said, CLUSTER, "BGSAVE" => Step::Poison(_) = "-ERR unslow: BGSAVE is for one node",
    said_ends_not_any: said, CLUSTER, "SHUTDOWN NOSAVE" => Step::Poison(_) = "-ERR unslow: SHUTDOWN|NOSAVE is for one",
    said_sets_not_any: said, CLUSTER, "CONFIG SET maxmemory 1" => Step::Poison(_) = "-ERR unslow: CONFIG|SET is for",
    said_asks_for_settings: said, CLUSTER, "CONFIG GET maxmemory" => Step::Queue,
    said_debugs_not_any: said, CLUSTER, "DEBUG SLEEP 1" => Step::Poison(_) = "-ERR unslow: DEBUG|SLEEP is for one node",
    said_resets_no_log_of_old_servers: said, CLUSTER, "SLOWLOG RESET" => Step::Poison(_) = "-ERR unslow: SLOWLOG|RESET",
    said_reads_a_log_of_old_servers: said, CLUSTER, "SLOWLOG GET" => Step::Queue,
    said_loads_no_script: said, CLUSTER, "SCRIPT LOAD text" => Step::Poison(_) = "-ERR unslow: SCRIPT|LOAD goes to",
    said_flushes_no_scripts: said, CLUSTER, "SCRIPT FLUSH" => Step::Poison(_) = "-ERR unslow: SCRIPT|FLUSH goes to",
    said_takes_no_debugger: said, CLUSTER, "SCRIPT DEBUG YES" => Step::Poison(_) = "-ERR unslow: the script debugger",
    said_takes_no_debugger_alone: said, ALONE, "SCRIPT DEBUG YES" => Step::Poison(_) = "-ERR unslow: the script \
        debugger",
    said_resets_no_cluster: said, CLUSTER, "CLUSTER RESET HARD" => Step::Poison(_) = "-ERR unslow: CLUSTER|RESET is \
        answered",
    said_fails_nothing_over: said, CLUSTER, "CLUSTER FAILOVER" => Step::Poison(_) = "-ERR unslow: CLUSTER|FAILOVER is",
    said_takes_no_client_id: said, CLUSTER, "CLIENT ID" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    said_takes_no_client_id_alone: said, ALONE, "CLIENT ID" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    said_kills_no_client: said, ALONE, "CLIENT KILL ID 1" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    said_pauses_no_client: said, CLUSTER, "CLIENT PAUSE 100" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    poisoned_runs_nothing: poisoned, CLUSTER, "EXEC" =>
        Step::Abort(_) = "-EXECABORT Transaction discarded because of previous",
    poisoned_is_done_with_a_word: poisoned, CLUSTER, "EXEC now" =>
        Step::Abort(_) = "-EXECABORT Transaction discarded because of: wrong",
    poisoned_is_discarded: poisoned, CLUSTER, "DISCARD" => Step::EndUnsaid,

    // MULTI, on a connection.
    open_takes_what_has_a_key: open, CLUSTER, "GET k" => Step::Within,
    open_takes_what_has_none: open, CLUSTER, "TIME" => Step::Within,
    open_is_done: open, CLUSTER, "EXEC" => Step::Within,
    open_takes_unknown_commands: open, CLUSTER, "NOSUCH" => Step::Within,
    open_takes_no_client_reply: open, CLUSTER, "CLIENT REPLY OFF" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    open_takes_no_client_id: open, ALONE, "CLIENT ID" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    open_takes_no_name: open, ALONE, "CLIENT SETNAME me" => Step::Poison(_) = "-ERR unslow: CLIENT is about",
    open_takes_no_debugger: open, ALONE, "SCRIPT DEBUG YES" => Step::Poison(_) = "-ERR unslow: the script debugger",
    open_asks_for_settings: open, CLUSTER, "CONFIG GET maxmemory" => Step::Within,
    open_reads_a_log_of_old_servers: open, CLUSTER, "SLOWLOG GET" => Step::Within,
    open_resets_no_log_of_old_servers: open, CLUSTER, "SLOWLOG RESET" => Step::Poison(_) = "-ERR unslow: SLOWLOG|RESET",
    open_flushes_not_all: open, CLUSTER, "FLUSHALL" => Step::Poison(_) = "-ERR unslow: FLUSHALL goes to several",
    open_saves_not_any: open, CLUSTER, "BGSAVE" => Step::Poison(_) = "-ERR unslow: BGSAVE is for one node",
    open_saves_the_only_one: open, ALONE, "BGSAVE" => Step::Within,
    open_poisoned_runs_nothing: open_poisoned, CLUSTER, "EXEC" =>
        Step::Abort(_) = "-EXECABORT Transaction discarded because of previous",
    open_poisoned_is_done_with_a_word: open_poisoned, ALONE, "EXEC now" =>
        Step::Abort(_) = "-EXECABORT Transaction discarded because of: wrong",
    open_poisoned_is_discarded: open_poisoned, CLUSTER, "DISCARD" => Step::Within,
    open_and_gone: open, CLUSTER, "QUIT" => Step::SayAndClose(_),

    // A transaction that will not run.
    lost_takes_all: lost, CLUSTER, "GET k" => Step::InLost,
    lost_is_done: lost, CLUSTER, "EXEC" => Step::InLost,
    lost_takes_auth: lost, CLUSTER, "AUTH word" => Step::InLost,
    lost_and_reset: lost, CLUSTER, "RESET" => Step::Reset,

    // WATCH.
    watching_reads_elsewhere: watching, CLUSTER, "GET k" => Step::Ordinary,
    watching_blocks: watching, CLUSTER, "BLPOP k 0" => Step::Block,
    watching_watches_more: watching, CLUSTER, "WATCH l" => Step::Watch,
    watching_ends: watching, CLUSTER, "UNWATCH" => Step::EndWatch,
    watching_ends_with_a_wrong_exec: watching, CLUSTER, "EXEC now" => Step::EndWatch,
    watching_asks_for_a_refused_discard: watching, CLUSTER, "DISCARD" => Step::EndWatch,
    watch_lost_ends: watch_lost, CLUSTER, "UNWATCH" => Step::EndWatch,

    // Whoever waits, waits.
    blocked_waits: blocked, CLUSTER, "GET k" => Step::Wait(Stall::Answers),
    blocked_goes: blocked, CLUSTER, "QUIT" => Step::SayAndClose(_),
    streaming_waits: streaming, CLUSTER, "GET k" => Step::Wait(Stall::Answers),
}

/// The answers in a transaction that will not run, and what is left of it.
#[test]
fn a_lost_transaction_answers_as_a_server_would() {
    let aborted = "-EXECABORT Transaction discarded because of previous errors.\r\n";
    for (proto, watch, lines, expected, still) in [
        (2, Watch::Nothing, &["GET k"][..], "-ERR unslow: the server's connection broke", true),
        (2, Watch::Nothing, &["EXEC"], "-EXECABORT unslow: the server's connection broke", false),
        (2, Watch::Nothing, &["DISCARD"], "+OK\r\n", false),
        (2, Watch::Lost, &["GET k"], "+QUEUED\r\n", true),
        (2, Watch::Lost, &["EXEC"], "*-1\r\n", false),
        (3, Watch::Lost, &["EXEC"], "_\r\n", false),
        (2, Watch::Lost, &["GET"], "-ERR wrong number of arguments for 'get' command\r\n", true),
        (2, Watch::Lost, &["GET", "EXEC"], aborted, false),
        (2, Watch::Lost, &["DISCARD it"], "-ERR wrong number", true),
        (2, Watch::Lost, &["EXEC now"], "-EXECABORT Transaction discarded because of: wrong number", false),
        (2, Watch::Lost, &["NOSUCH"], "+QUEUED\r\n", true),
    ] {
        let mut client = Client { proto, watch, ..lost() };
        let mut answer = Cow::Borrowed(&b""[..]);
        for line in lines {
            let (mut whole, mut args) = (Vec::new(), Vec::new());
            unslow_resp::write_command(&mut whole, &line.split(' ').collect::<Vec<_>>());
            request::parse_whole(&whole, &mut args);
            let table = table();
            let plan = table.plan(&whole, &args);
            let command = Command { bytes: &whole, args: &args, plan };
            answer = client.in_lost(&command, table.get(plan.number)).into_owned().into();
        }
        let told = String::from_utf8_lossy(&answer);
        assert!(told.starts_with(expected), "{lines:?}: {told}");
        assert_eq!((client.transaction().is_some(), client.watch != Watch::Nothing), (still, still && watch.lost()));
    }
}

#[test]
fn what_is_watched_after_a_loss_does_not_make_up_for_it() {
    for (before, more, broken) in [
        (Watch::Nothing, Watch::Keys, Watch::Nothing),
        (Watch::Keys, Watch::Keys, Watch::Lost),
        (Watch::Lost, Watch::LostAndKeys, Watch::Lost),
        (Watch::LostAndKeys, Watch::LostAndKeys, Watch::Lost),
    ] {
        assert_eq!((before.more(), before.broken()), (more, broken), "{before:?}");
    }
}

#[test]
fn the_keys_of_migrate_name_the_slot() {
    let table = table();
    for (line, key) in [
        ("MIGRATE host 6379 k 0 100", Some("k")),
        ("MIGRATE host 6379 k 0 100 COPY", Some("k")),
        ("MIGRATE host 6379 \"\" 0 100 KEYS a b", Some("a")),
        ("MIGRATE host 6379 \"\" 0 100 COPY REPLACE keys a b", Some("a")),
        // The server says what is wrong with these.
        ("MIGRATE host 6379 \"\" 0 100", Some("")),
        ("MIGRATE host 6379 \"\" 0 100 KEYS", None),
    ] {
        let words: Vec<&str> = line.split(' ').map(|word| if word == "\"\"" { "" } else { word }).collect();
        let (mut whole, mut args) = (Vec::new(), Vec::new());
        unslow_resp::write_command(&mut whole, &words);
        request::parse_whole(&whole, &mut args);
        let command = Command { bytes: &whole, args: &args, plan: table.plan(&whole, &args) };
        assert_eq!(command.key(), key.map(str::as_bytes), "{line}");
    }
}
