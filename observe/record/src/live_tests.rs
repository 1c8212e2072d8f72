//! What a live view says of what its threads saw.

use std::sync::Arc;
use unslow_facts::{Host, Node, Standing};
use unslow_probe::Round;
use unslow_probe::host::Counts;
use unslow_series::Stamp;
use unslow_topology::{DeploymentKind, Role};

use crate::keeper::Told;
use crate::live::Live;
use crate::notes::{Note, Saw};
use crate::pings::Pings;
use crate::scheme::{Away, Listed, Listing, Stall};

const URL: &str = "redis://a:1";
/// Of both clocks at the beginning, in ms.
const WALL: i64 = 1_700_000_000_000;
const MONO: u64 = 500_000;

fn at(ms: u64) -> Stamp {
    Stamp { wall_ms: WALL + ms as i64, mono_ms: MONO + ms }
}

/// A deployment with one node, whose questions were answered.
fn live(window_ms: i64) -> Live {
    let mut live = Live::new(URL, window_ms);
    live.take(&Note::Node { number: 0, url: URL.into(), address: "a:1".into() });
    let listed = Listed { address: "a:1".into(), role: Role::Replica, master: Some("b:1".into()), node_id: None };
    let listing = Listing { kind: DeploymentKind::Cluster, nodes: vec![listed], notes: Vec::new(), through: None };
    live.take(&Note::Listing { url: URL.into(), at: at(0), listing });
    live.take(&Note::Asked(0, at(0), Round::Whole.into(), Arc::new(Node::new("a:1", Role::Unknown))));
    live
}

fn second(live: &mut Live, stamp: Stamp, commands: u64) {
    let info = format!(
        "# Stats\r\nrole:slave\r\nmaster_host:10.0.0.2\r\nmaster_port:1\r\ntotal_commands_processed:{commands}\r\n"
    );
    let mut pings = Pings::default();
    pings.add(100);
    live.take(&Note::Saw(0, stamp, Saw::Second { info: info.into_bytes(), pings, sent: Default::default() }));
}

fn node(live: &mut Live, now: Stamp) -> Node {
    live.facts(now).nodes.remove(0)
}

#[test]
fn figures_are_of_the_window_and_a_master_goes_by_its_listed_name() {
    let mut live = live(5_000);
    (0..20).for_each(|s| second(&mut live, at(s * 1000), s * 100));
    let node = node(&mut live, at(19_100));
    assert_eq!((node.window_s, node.ops()), (5.0, Some(100.0)));
    assert_eq!((node.master.as_deref(), node.role), (Some("b:1"), Role::Replica));
}

#[test]
fn there_are_none_of_a_moment_nor_before_it_is_known_which_clients_are_ours() {
    let mut live = live(5_000);
    second(&mut live, at(0), 0);
    second(&mut live, at(100), 50);
    assert_eq!(node(&mut live, at(200)).ops(), None);
    second(&mut live, at(1_000), 500);
    assert_eq!(node(&mut live, at(1_100)).ops(), Some(500.0));
}

#[test]
fn before_a_gap_or_a_restart_is_another_window() {
    let mut live = live(5_000);
    (0..10).for_each(|s| second(&mut live, at(s * 1000), s * 100));
    // Ten minutes of silence.
    let later = 600_000;
    assert_eq!(node(&mut live, at(later)).ops(), None);
    second(&mut live, at(later), 1_000);
    assert_eq!(node(&mut live, at(later)).ops(), None, "not of ten minutes");
    second(&mut live, at(later + 1_000), 1_700);
    assert_eq!(node(&mut live, at(later + 1_000)).ops(), Some(700.0));
    // And a process that counts anew.
    second(&mut live, at(later + 2_000), 10);
    second(&mut live, at(later + 3_000), 30);
    assert_eq!(node(&mut live, at(later + 3_000)).ops(), Some(20.0));
}

#[test]
fn a_clock_that_is_set_changes_no_figure() {
    for step in [-3_600_000, 3_600_000] {
        let mut live = live(5_000);
        (0..10).for_each(|s| second(&mut live, at(s * 1000), s * 100));
        live.take(&Note::Saw(0, at(9_000), Saw::Stall(Stall { sent_ms: WALL as u64 + 8_700, us: 300_000 })));
        let set = |ms: u64| Stamp { wall_ms: WALL + ms as i64 + step, mono_ms: MONO + ms };
        (10..13).for_each(|s| second(&mut live, set(s * 1000), s * 100));
        let node = node(&mut live, set(12_100));
        assert_eq!((node.window_s, node.ops()), (5.0, Some(100.0)), "{step}");
        assert!(node.series.iter().all(|point| point.commands_per_s <= 101.0), "{step}: {:?}", node.series);
        assert_eq!(node.rtt.value().map(|rtt| rtt.us_max), Some(300_000), "{step}");
        assert!(node.check().is_ok());
        let later = live.facts(set(20_000)).nodes.remove(0);
        assert!(later.pings.iter().all(|(_, us)| *us != 300_000), "{step}: it is over");
    }
}

#[test]
fn one_that_owes_an_answer_does_not_look_well_and_one_that_is_away_has_no_clients() {
    let mut live = live(5_000);
    (0..10).for_each(|s| second(&mut live, at(s * 1000), s * 100));
    assert!(node(&mut live, at(9_500)).rtt.value().is_some_and(|rtt| rtt.us_max < 1_000));
    assert!(node(&mut live, at(13_000)).rtt.value().is_some_and(|rtt| rtt.us_max >= 3_000_000));
    let away = Away { why: "no answer".into(), lack: unslow_facts::Lack::Answer, silent: true, since_ms: WALL as u64 };
    live.take(&Note::Saw(0, at(14_000), Saw::Away(Some(away))));
    let node = node(&mut live, at(16_000));
    assert!(node.unreachable.is_some() && node.clients.value().is_none() && node.last.is_none());
}

#[test]
fn what_a_process_did_is_told_for_as_long_as_its_silence_lasts_and_an_earlier_stall_is_not() {
    let mut live = live(5_000);
    (0..10).for_each(|s| second(&mut live, at(s * 1000), s * 100));
    let standing = |live: &mut Live, ms: u64, looks: u32, span_ms: u64| {
        let seen = Standing { looks, span_ms, at_ms: WALL as u64 + ms, ..Standing::default() };
        live.take(&Note::Saw(0, at(ms), Saw::Standing(Box::new(seen))));
    };
    let looks = |live: &mut Live, ms: u64| node(live, at(ms)).standing.map(|seen| seen.looks);
    standing(&mut live, 8_000, 3, 300);
    assert_eq!(looks(&mut live, 9_500), Some(3), "a stall of this window");
    let since_ms = WALL as u64 + 9_500;
    let away = Away { why: "no answer".into(), lack: unslow_facts::Lack::Answer, silent: true, since_ms };
    live.take(&Note::Saw(0, at(12_000), Saw::Away(Some(away))));
    assert_eq!(looks(&mut live, 12_500), None, "of the silence nothing was seen yet");
    standing(&mut live, 14_600, 50, 5_000);
    assert_eq!((looks(&mut live, 15_000), looks(&mut live, 60_000)), (Some(50), Some(50)));
    live.take(&Note::Saw(0, at(61_000), Saw::Away(None)));
    assert_eq!(looks(&mut live, 62_000), None, "it is over");
}

#[test]
fn what_was_asked_before_we_were_held_up_is_not_the_servers_stall() {
    let mut live = live(5_000);
    (0..10).for_each(|s| second(&mut live, at(s * 1000), s * 100));
    live.begin_again(at(60_000));
    live.take(&Note::Saw(0, at(60_100), Saw::Stall(Stall { sent_ms: WALL as u64 + 9_100, us: 51_000_000 })));
    let node = node(&mut live, at(60_200));
    assert_eq!((node.rtt.value().map(|rtt| rtt.us_max), node.ops()), (None, None));
}

#[test]
fn numbers_that_cannot_be_are_said_where_the_server_stands() {
    let mut live = live(5_000);
    second(&mut live, at(0), 0);
    let info = b"used_cpu_user:1e300\r\ntotal_commands_processed:5\r\ncmdstat_get:calls=1,usec=99999999999999999\r\n";
    let saw = Saw::Second { info: info.to_vec(), pings: Pings::default(), sent: Default::default() };
    live.take(&Note::Saw(0, at(1_000), saw));
    let facts = live.facts(at(1_000));
    assert_eq!(facts.nodes.len(), 1);
    assert!(facts.check().is_ok());
}

#[test]
fn the_machine_is_that_of_the_window() {
    let mut live = live(5_000);
    let counts = |s: u64| {
        let steal = 200 * s.saturating_sub(10) as i64;
        let numbers = [("cpu/all", 200 * s as i64), ("cpu/idle", 0), ("cpu/steal", steal)];
        Counts::of_numbers(numbers.map(|(name, n)| (name.to_string(), n)))
    };
    let steal = |live: &mut Live, now: Stamp| {
        let host = live.facts(now).hosts.remove(0);
        (host.steal_share, host.window_s)
    };
    live.take(&Note::Host(at(0), Box::new(Host { window_s: 60.0, steal_share: Some(0.1), ..Host::default() })));
    assert_eq!(steal(&mut live, at(0)), (Some(0.1), 60.0));
    let counted = |live: &mut Live, s: u64| live.take(&Note::Counts(at(s * 1000), counts(s)));
    (0..=10).for_each(|s| assert_eq!(counted(&mut live, s), Told::Nothing));
    assert_eq!(steal(&mut live, at(10_100)), (Some(0.0), 5.0));
    (11..=15).for_each(|s| assert_eq!(counted(&mut live, s), Told::Nothing));
    assert_eq!(steal(&mut live, at(15_100)), (Some(1.0), 5.0));
}
