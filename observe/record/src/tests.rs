//! From what was seen to the facts of a window, over a real directory and without a server.

use std::sync::Arc;
use unslow_facts::{Lack, LargeEntry, Own, Seen, Side, SlowEntry};
use unslow_probe::Round;
use unslow_series::{Stamp, Writer};
use unslow_topology::{DeploymentKind, Info, Role};

use crate::jumps::Jump;
use crate::keeper::{Keeper, Take, Told};
use crate::notes::{Note, Questions, Saw};
use crate::pings::Pings;
use crate::scheme::{Away, Listed, Listing, Stall};
use crate::{Store, Tape};

const URL: &str = "redis://10.0.0.1:6379";
const ADDRESS: &str = "10.0.0.1:6379";
/// A whole minute.
const BEGAN_MS: i64 = 1_800_000_000_000;

struct Rig {
    dir: tempfile::TempDir,
    keeper: Keeper<unslow_series::Directory>,
}

fn at(second: i64) -> Stamp {
    Stamp { wall_ms: BEGAN_MS + second * 1000, mono_ms: (second * 1000) as u64 }
}

impl Rig {
    fn new() -> Rig {
        let dir = tempfile::tempdir().unwrap();
        let writer = Writer::open(dir.path(), Store::default()).unwrap();
        let mut rig = Rig { dir, keeper: Keeper::new(writer, at(0)).unwrap() };
        let listed = Listed { address: ADDRESS.into(), role: Role::Unknown, master: None, node_id: None };
        let listing =
            Listing { kind: DeploymentKind::Standalone, nodes: vec![listed], notes: Vec::new(), through: None };
        rig.take(Note::Listing { url: URL.into(), at: at(0), listing });
        rig.take(Note::Node { number: 0, url: URL.into(), address: ADDRESS.into() });
        rig
    }

    fn take(&mut self, note: Note) -> Told {
        self.keeper.take(&note).unwrap()
    }

    fn second(&mut self, second: i64, info: &str) -> Told {
        let mut pings = Pings::default();
        (0..10).for_each(|_| pings.add(80));
        self.take(Note::Saw(0, at(second), Saw::Second { info: info.into(), pings, sent: sent(second as u64) }))
    }

    /// The recorder ends, and another one begins.
    fn restarted(self, second: i64) -> Rig {
        let Rig { dir, keeper } = self;
        keeper.close().unwrap();
        let writer = Writer::open(dir.path(), Store::default()).unwrap();
        let mut rig = Rig { dir, keeper: Keeper::new(writer, at(second)).unwrap() };
        rig.take(Note::Node { number: 0, url: URL.into(), address: ADDRESS.into() });
        rig
    }

    fn ticks(&mut self, seconds: std::ops::Range<i64>) {
        seconds.for_each(|second| self.keeper.tick(at(second), 0).unwrap());
    }

    fn healthy(&mut self, seconds: std::ops::Range<i64>) {
        for second in seconds {
            self.second(second, &info(second, "master", ""));
        }
    }

    fn saw(&mut self, second: i64, saw: Saw) {
        self.take(Note::Saw(0, at(second), saw));
    }

    fn facts(&self, from: i64, to: i64) -> Option<unslow_facts::Facts> {
        let tape = Tape::open(self.dir.path()).unwrap();
        tape.facts(URL, at(from).wall_ms..at(to).wall_ms).ok()
    }

    fn node(&self, from: i64, to: i64) -> unslow_facts::Node {
        self.facts(from, to).expect("something was recorded").nodes.remove(0)
    }
}

/// What was sent after so many seconds.
fn sent(seconds: u64) -> Own {
    let mut own = Own { total: seconds * 11, reads: seconds * 10, ..Own::default() };
    own.commands = [("ping".to_string(), seconds * 10), ("info".to_string(), seconds)].into();
    own
}

fn away(lack: Lack, second: i64) -> Saw {
    let (why, since_ms) = ("nothing is said".to_string(), at(second).wall_ms as u64);
    Saw::Away(Some(Away { why, lack, silent: lack == Lack::Answer, since_ms }))
}

fn info(second: i64, role: &str, more: &str) -> String {
    format!(
        "# Server\r\nredis_version:7.2.4\r\nrun_id:abc\r\nrole:{role}\r\ntotal_commands_processed:{}\r\n\
         used_cpu_user:{second}.250000\r\nused_cpu_sys:0.000000\r\nused_memory_human:1.05M\r\n\
         cmdstat_get:calls={},usec=41,usec_per_call=13.67\r\n{more}",
        second * 500,
        second * 489
    )
}

#[test]
fn what_a_server_said_comes_back_at_both_ends_of_a_window() {
    let mut rig = Rig::new();
    for second in 0..60 {
        let text = match second {
            0..30 => info(second, "slave", "master_host:10.0.0.9\r\nmaster_port:6379\r\n"),
            _ => info(second, "master", "connected_slaves:0\r\n"),
        };
        let told = rig.second(second, &text);
        assert_eq!(told == Told::Changed(0), second == 30, "{second}: {told:?}");
    }
    for (from, to, first, last) in [(10, 20, 9, 19), (25, 40, 24, 39), (0, 60, 0, 59)] {
        let node = rig.node(from, to);
        let parsed = |second: i64| match second {
            0..30 => Info::parse(&info(second, "slave", "master_host:10.0.0.9\r\nmaster_port:6379\r\n")),
            _ => Info::parse(&info(second, "master", "connected_slaves:0\r\n")),
        };
        assert_eq!(node.first.as_ref().unwrap().info, parsed(first), "{from}..{to}");
        assert_eq!(node.last.as_ref().unwrap().info, parsed(last), "{from}..{to}");
        assert_eq!(node.window_s, (last - first) as f64);
        let seconds = (last - first) as u64;
        assert_eq!((node.own.commands["ping"], node.own.total), (seconds * 10, seconds * 11));
        assert_eq!(
            (node.role, node.master.is_some()),
            if last < 30 { (Role::Replica, true) } else { (Role::Master, false) }
        );
        assert_eq!(node.pings.len() as u64, seconds * 10);
        let points: Vec<f64> = node.series.iter().map(|p| p.commands_per_s).collect();
        assert!(points.iter().all(|ops| *ops == 489.0) && points.len() as u64 == seconds, "{points:?}");
    }
}

#[test]
fn a_silence_within_a_window_is_told_with_its_length() {
    let mut rig = Rig::new();
    rig.healthy(0..20);
    let since_ms = at(20).wall_ms as u64;
    rig.saw(26, away(Lack::Answer, 20));
    rig.saw(50, Saw::Stall(Stall { sent_ms: since_ms, us: 30_000_000 }));
    rig.saw(50, Saw::Away(None));
    rig.healthy(50..90);
    let before = rig.node(5, 20);
    assert_eq!((before.unreachable, before.silent_ms), (None, None));
    let during = rig.node(30, 40);
    assert!(during.unreachable.is_some_and(|why| why.contains("nothing is said")) && during.first.is_none());
    assert_eq!(during.silent_ms, Some(20_000), "from its last word to the window's end");
    let began = rig.node(15, 25);
    assert_eq!((began.silent_ms, began.first.is_some()), (Some(5_000), true), "told six seconds after it began");
    let whole = rig.node(0, 90);
    assert_eq!((whole.silent_ms, whole.away), (Some(30_000), Some(Lack::Answer)));
    assert!(whole.pings.contains(&(20_000, 30_000_000)), "the answer that came late");
    let after = rig.node(60, 90);
    assert_eq!((after.unreachable, after.silent_ms), (None, None));
}

#[test]
fn what_a_process_did_is_told_of_the_time_it_was_seen_in() {
    let mut rig = Rig::new();
    let standing = |looks, span_ms| {
        Saw::Standing(Box::new(unslow_facts::Standing { looks, span_ms, ..unslow_facts::Standing::default() }))
    };
    rig.healthy(0..20);
    rig.saw(10, standing(3, 200));
    rig.saw(26, away(Lack::Answer, 20));
    rig.saw(31, standing(50, 5_000));
    rig.saw(50, Saw::Away(None));
    rig.healthy(50..90);
    let looks = |from, to| rig.node(from, to).standing.map(|standing| standing.looks);
    assert_eq!(looks(5, 20), Some(3));
    assert_eq!(looks(15, 25), None, "of the hang nothing was seen by then, and the stall is another matter");
    assert_eq!(looks(0, 90), Some(50));
    assert_eq!(looks(60, 90), None);
}

#[test]
fn a_time_in_which_nobody_recorded_is_not_a_healthy_one() {
    let mut rig = Rig::new();
    rig.healthy(0..10);
    rig.healthy(300..310);
    assert_eq!(rig.facts(100, 160), None);
    let tape = Tape::open(rig.dir.path()).unwrap();
    let windows = tape.windows(URL, at(0).wall_ms..at(360).wall_ms, 60_000);
    let seen: Vec<bool> = windows.map(|facts| !facts.nodes.is_empty()).collect();
    assert_eq!(seen, [true, false, false, false, false, true]);
}

#[test]
fn what_a_server_did_while_it_stood_is_in_the_window_in_which_it_spoke_again() {
    let mut rig = Rig::new();
    let forks = |second: i64, forks: u32| info(second, "master", &format!("total_forks:{forks}\r\n"));
    for second in 0..=10 {
        rig.second(second, &forks(second, 3));
    }
    rig.saw(18, Saw::Stall(Stall { sent_ms: at(11).wall_ms as u64, us: 7_000_000 }));
    for second in 18..30 {
        rig.second(second, &forks(second, 4));
    }
    // Windows of three seconds: nothing in two of them, and then the fork, which took longer than a row is fresh.
    let node = rig.node(18, 21);
    assert_eq!((node.delta("total_forks"), node.window_s), (Some(1.0), 10.0));
    assert_eq!(rig.node(21, 24).delta("total_forks"), Some(0.0));

    // A recorder that was not there saw no fork.
    let mut rig = Rig::new();
    for second in 0..=10 {
        rig.second(second, &forks(second, 3));
    }
    for second in 18..30 {
        rig.second(second, &forks(second, 4));
    }
    assert_eq!(rig.node(18, 21).delta("total_forks"), Some(0.0));
}

#[test]
fn a_clock_that_is_set_back_makes_no_time_of_its_own() {
    let mut rig = Rig::new();
    rig.healthy(3600..3630);
    for second in 3630..3660 {
        let stamp = Stamp { wall_ms: at(second - 3600).wall_ms, mono_ms: at(second).mono_ms };
        let seen =
            Saw::Second { info: info(second, "master", "").into(), pings: Pings::default(), sent: Own::default() };
        rig.take(Note::Saw(0, stamp, seen));
    }
    let (first, again) = (rig.node(3605, 3625), rig.node(35, 55));
    assert_eq!((first.window_s, again.window_s), (20.0, 20.0));
    assert_eq!(again.ops().map(f64::round), Some(500.0));
}

#[test]
fn of_a_time_that_came_twice_the_later_is_told() {
    let mut rig = Rig::new();
    rig.healthy(0..60);
    for second in 60..100 {
        let stamp = Stamp { wall_ms: at(second - 40).wall_ms, mono_ms: at(second).mono_ms };
        let (info, pings, sent) = (info(second, "master", "").into(), Pings::default(), Own::default());
        rig.take(Note::Saw(0, stamp, Saw::Second { info, pings, sent }));
    }
    let node = rig.node(30, 50);
    assert_eq!((node.window_s, node.delta("total_commands_processed")), (20.0, Some(10_000.0)));
}

#[test]
fn slow_commands_are_kept_once_and_a_log_that_begins_anew_too() {
    let mut rig = Rig::new();
    let entry = |id: u64, second: i64| SlowEntry {
        id,
        at_s: (at(second).wall_ms / 1000) as u64,
        us: 20_000,
        command: "KEYS".into(),
        args: 2,
        key: None,
        client: "10.0.0.7:5".into(),
        client_name: String::new(),
    };
    let mut asked = |second: i64, entries: Vec<SlowEntry>| {
        let mut node = unslow_facts::Node::new(ADDRESS, Role::Master);
        node.slowlog = Seen::yes(entries, "SLOWLOG GET 128", 0);
        rig.take(Note::Asked(0, at(second), Round::Whole.into(), Arc::new(node)));
        rig.second(second, &info(second, "master", ""));
    };
    asked(10, vec![entry(7, 9), entry(6, 8)]);
    asked(20, vec![entry(8, 15), entry(7, 9), entry(6, 8)]);
    asked(30, vec![entry(0, 25)]);
    let node = rig.node(0, 40);
    let ids: Vec<u64> = node.slowlog.value().unwrap().iter().map(|e| e.id).collect();
    assert_eq!(ids, [0, 8, 7, 6], "the newest first");
}

#[test]
fn large_requests_and_replies_have_numbers_of_their_own() {
    let mut rig = Rig::new();
    let entry = |id: u64, second: i64, side: Side| LargeEntry {
        id,
        at_s: (at(second).wall_ms / 1000) as u64,
        side,
        bytes: 2_000_000,
        command: "MGET".into(),
        key: None,
        client: "10.0.0.7:5".into(),
        client_name: String::new(),
    };
    let mut asked = |second: i64, value: Vec<LargeEntry>| {
        let mut node = unslow_facts::Node::new(ADDRESS, Role::Master);
        node.large = Seen::yes(value, "COMMANDLOG GET", 0);
        rig.take(Note::Asked(0, at(second), Round::Often.into(), Arc::new(node)));
        rig.second(second, &info(second, "master", ""));
    };
    let (request, reply) = (Side::Request, Side::Reply);
    asked(10, vec![entry(3, 9, request), entry(0, 8, reply)]);
    asked(20, vec![entry(3, 9, request), entry(1, 15, reply), entry(0, 8, reply)]);
    let node = rig.node(0, 40);
    let told: Vec<(u64, Side)> = node.large.value().unwrap().iter().map(|e| (e.id, e.side)).collect();
    assert_eq!(told, [(1, reply), (3, request), (0, reply)], "the newest first, each once");
    assert!(rig.node(0, 40).slowlog.value().is_none(), "the other log was not read");
}

#[test]
fn a_server_that_makes_up_fields_is_kept_within_bounds() {
    let mut rig = Rig::new();
    for second in 0..5 {
        let made_up: String = (0..3000).map(|i| format!("field_{second}_{i}:{i}\r\n")).collect();
        let long = format!("long:{}\r\n{}:1\r\nno field\r\n:\r\n", "x".repeat(100_000), "y".repeat(100_000));
        rig.second(second, &info(second, "master", &(made_up + &long)));
    }
    let node = rig.node(0, 5);
    let last = node.last.unwrap().info;
    assert!(last.0.len() <= 1000 && last.get("role") == Some("master") && last.get("long").is_none());
}

#[test]
fn a_time_without_a_recorder_is_nobody_s_outage() {
    let mut rig = Rig::new();
    rig.ticks(0..60);
    rig.healthy(0..20);
    rig.saw(26, away(Lack::Answer, 20));
    let mut rig = rig.restarted(199);
    rig.ticks(200..320);
    rig.healthy(200..260);
    assert_eq!(rig.node(200, 260).unreachable, None, "it is back, though nobody saw how");
    assert_eq!((rig.facts(60, 100), rig.facts(100, 160)), (None, None), "nothing is known of it");
    assert_eq!(rig.node(0, 80).silent_ms, Some(39_000), "to the recorder's last sign of life");
}

#[test]
fn an_absence_of_which_nothing_more_is_heard_does_not_last() {
    let mut rig = Rig::new();
    rig.ticks(0..1200);
    rig.healthy(0..20);
    rig.saw(26, away(Lack::Answer, 20));
    assert!(rig.node(300, 360).unreachable.is_some());
    assert_eq!(rig.facts(420, 480), None, "it is told again every five minutes while it lasts");
    // The word that it is back was lost, and the disk took the rows.
    rig.healthy(40..100);
    let node = rig.node(0, 100);
    assert_eq!((node.silent_ms, node.away), (Some(20_000), Some(Lack::Answer)));
    assert_eq!(rig.node(60, 100).unreachable, None, "a row is an answer");
}

#[test]
fn a_server_that_loads_its_data_is_away_though_it_answers_info() {
    let mut rig = Rig::new();
    rig.ticks(0..60);
    rig.saw(2, away(Lack::Other, 2));
    rig.healthy(2..60);
    let node = rig.node(10, 50);
    assert_eq!((node.away, node.silent_ms), (Some(Lack::Other), None));
    rig.saw(61, Saw::Away(None));
    rig.healthy(61..120);
    assert_eq!(rig.node(70, 110).unreachable, None);
}

#[test]
fn what_a_server_says_does_not_end_the_recording_of_others() {
    let mut rig = Rig::new();
    let many = format!("many:{}1\r\n", "1,".repeat(500));
    let forged = "~own/total:99999999\r\n~ping/80:4000000000\r\n";
    let wide: String = (0..900).map(|i| format!("wide_{i}:{}1\r\n", "1,".repeat(60))).collect();
    let named = format!("{}:1\r\n", "n".repeat(1020));
    for second in 0..5 {
        rig.second(second, &info(second, "master", &(many.clone() + forged + &named + &wide)));
    }
    let node = rig.node(0, 5);
    assert_eq!((node.own.total, node.pings.len()), (44, 40), "the recorder's own columns");
    let info = node.last.unwrap().info;
    assert_eq!(info.get("many").map(str::len), Some(1001), "one text instead of a column for each number");
    assert!(info.get("wide_0").is_some() && info.get("~own/total").is_none());
    for long in [2000, 2 << 20] {
        let note = Note::Node { number: 1, url: URL.into(), address: "x".repeat(long) };
        assert!(matches!(rig.keeper.take(&note), Err(unslow_series::Error::TooLong { .. })), "the recorder counts it");
    }
}

#[test]
fn a_recorder_that_reads_the_slow_log_again_keeps_each_entry_once() {
    let mut rig = Rig::new();
    let entry = |id: u64| SlowEntry {
        id,
        at_s: (at(5).wall_ms / 1000) as u64,
        us: 20_000,
        command: "KEYS".into(),
        args: 2,
        key: None,
        client: String::new(),
        client_name: String::new(),
    };
    let asked = |rig: &mut Rig, second: i64| {
        let mut node = unslow_facts::Node::new(ADDRESS, Role::Master);
        node.slowlog = Seen::yes(vec![entry(7), entry(6)], "SLOWLOG GET 128", 0);
        rig.take(Note::Asked(0, at(second), Round::Often.into(), Arc::new(node)));
        rig.second(second, &info(second, "master", ""));
    };
    asked(&mut rig, 10);
    let mut rig = rig.restarted(15);
    asked(&mut rig, 20);
    let ids: Vec<u64> = rig.node(0, 30).slowlog.value().unwrap().iter().map(|e| e.id).collect();
    assert_eq!(ids, [7, 6]);
}

#[test]
fn impossible_numbers_of_one_server_do_not_hide_the_others() {
    let mut rig = Rig::new();
    let other = "10.0.0.2:6379";
    let listed = |address: &str| Listed { address: address.into(), role: Role::Unknown, master: None, node_id: None };
    let nodes = vec![listed(ADDRESS), listed(other)];
    let listing = Listing { kind: DeploymentKind::MasterReplica, nodes, notes: Vec::new(), through: None };
    rig.take(Note::Listing { url: URL.into(), at: at(0), listing });
    rig.take(Note::Node { number: 1, url: URL.into(), address: other.into() });
    for second in 0..10 {
        rig.second(second, &info(second, "master", "cmdstat_set:calls=900000000000000000,usec=1\r\n"));
        let (info, pings) = (info(second, "master", "").into(), Pings::default());
        rig.take(Note::Saw(1, at(second), Saw::Second { info, pings, sent: Own::default() }));
    }
    let facts = rig.facts(0, 10).expect("the other one is there");
    let there: Vec<&str> = facts.nodes.iter().map(|n| n.address.as_str()).collect();
    assert_eq!(there, [other]);
    assert!(
        facts.notes.iter().any(|note| note.starts_with(ADDRESS) && note.contains("cannot be")),
        "{:?}",
        facts.notes
    );
}

#[test]
fn the_same_calls_are_not_counted_in_two_windows() {
    let mut rig = Rig::new();
    for second in 0..180 {
        rig.second(second, &info(second, "master", ""));
        if second % 60 == 30 {
            let mut node = unslow_facts::Node::new(ADDRESS, Role::Master);
            let ranges = vec![unslow_facts::TimeRange { up_to_us: 100, calls: 1000 + second as u64 }];
            let value = [("get".to_string(), ranges)].into();
            node.histograms = Seen::yes(value, "LATENCY HISTOGRAM", 0);
            rig.take(Note::Asked(0, at(second), Round::Whole.into(), Arc::new(node)));
        }
    }
    let calls = |from, to| rig.node(from, to).histograms.value().unwrap()["get"][0].calls;
    assert_eq!([calls(0, 60), calls(60, 120), calls(120, 180)], [1030, 1090, 1150]);
    assert_eq!(calls(70, 80), 1090, "a short window has the next one");
}

#[test]
fn only_so_much_info_waits_for_a_disk_that_hangs() {
    let (notes, taken) = std::sync::mpsc::sync_channel(1000);
    let waiting = crate::notes::Waiting::default();
    let large = || {
        let (info, pings) = (vec![b'x'; 4 << 20], Pings::default());
        Note::Saw(0, at(0), Saw::Second { info, pings, sent: Own::default() })
    };
    assert_eq!((0..100).filter(|_| waiting.tell(&notes, large())).count(), 16);
    assert_eq!((taken.try_iter().inspect(|note| waiting.taken(note)).count(), waiting.lost()), (16, 84));
    assert!(waiting.tell(&notes, large()));
    assert_eq!((taken.try_iter().count(), waiting.lost()), (1, 84), "there is room again");
}

#[test]
fn a_window_has_the_answers_of_the_round_that_tells_most_of_it() {
    let mut rig = Rig::new();
    for second in 0..200 {
        rig.second(second, &info(second, "master", ""));
        if [20, 80, 140].contains(&second) {
            let mut node = unslow_facts::Node::new(ADDRESS, Role::Master);
            node.config = Seen::yes([("maxmemory".to_string(), second.to_string())].into(), "CONFIG GET", 0);
            // What began at the 138th second is why it was asked at the 140th.
            let because_ms = (second == 140).then(|| at(138).wall_ms);
            rig.take(Note::Asked(0, at(second), Questions { round: Round::Whole, because_ms }, Arc::new(node)));
        }
    }
    let asked = |from, to| rig.node(from, to).config.value().map(|config| config["maxmemory"].parse().unwrap());
    assert_eq!(asked(75, 85), Some(80), "the one in it");
    assert_eq!(asked(60, 145), Some(140), "the last one in it");
    assert_eq!(asked(85, 95), Some(80), "the nearest, before it");
    assert_eq!(asked(65, 75), Some(80), "the nearest, after it");
    assert_eq!(asked(125, 136), Some(80), "what began later is not told of it");
    assert_eq!(asked(125, 139), Some(140), "it began in it");
    assert_eq!(asked(0, 5), Some(20), "there was none before");
    assert_eq!(asked(180, 190), Some(140), "none after");
}

#[test]
fn what_begins_at_a_server_is_told_to_those_who_ask() {
    let mut rig = Rig::new();
    let errors = |second: i64| format!("total_error_replies:{}\r\n", 90 * (second - 30).max(0));
    let clients = |second: i64| if second < 50 { 4 } else { 900 };
    for second in 0..70 {
        let more = format!("{}connected_clients:{}\r\n", errors(second), clients(second));
        let told = rig.second(second, &info(second, "master", &more));
        let expected = match second {
            31 => Told::Jumped(0, Jump::Errors),
            50 => Told::Jumped(0, Jump::Load),
            _ => Told::Nothing,
        };
        assert_eq!(told, expected, "{second}");
    }
}

#[test]
fn the_cluster_is_as_the_round_of_the_window_saw_it() {
    let mut rig = Rig::new();
    for second in 0..400 {
        rig.second(second, &info(second, "master", ""));
        // Who owns what changes with each round; what began at the 312th second is why the last one was asked.
        if [20, 190, 200, 314].contains(&second) {
            let mut node = unslow_facts::Node::new(ADDRESS, Role::Master);
            let line = format!("{:040} 10.0.0.1:6379@16379 myself,master - 0 0 {second} connected 0-{second}\n", 1);
            let view = unslow_topology::ClusterView::parse(&line).unwrap();
            node.cluster = Seen::yes(view, "CLUSTER NODES", 0);
            let because_ms = (second == 314).then(|| at(312).wall_ms);
            rig.take(Note::Asked(0, at(second), Questions { round: Round::Whole, because_ms }, Arc::new(node)));
        }
    }
    // Slots tell the rounds.
    let slots = |view: &unslow_topology::ClusterView| view.nodes[0].slots.len() - 1;
    let views = |from, to| {
        let node = rig.node(from, to);
        let (first, last) = (node.cluster.value().map(slots), node.last_view().map(slots));
        (first, last)
    };
    assert_eq!(views(195, 205), (Some(190), Some(200)), "the round in it, and the one before");
    assert_eq!(views(210, 270), (Some(200), None), "not an older one than its own");
    assert_eq!(views(300, 310), (Some(200), None), "what began later is not told of it");
    assert_eq!(views(305, 313), (Some(314), None), "it began in it");
    assert_eq!(views(150, 300), (Some(20), Some(200)), "a long window has the round before it and the last in it");
}
