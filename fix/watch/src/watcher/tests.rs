//! The watcher without links: views are put in, news come out.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Condvar, Mutex};

use unslow_client::Options;
use unslow_reactor::{Peer, Reactor};

use super::suspicion::overdue;
use super::*;

pub(super) const A: &str = "127.0.0.1:1";
pub(super) const B: &str = "127.0.0.1:2";
const C: &str = "127.0.0.1:3";
/// Some time after the clock's origin.
const NOW: u64 = 100_000 * MS;

/// A watcher without links, and its news.
pub(super) fn watcher(kind: DeploymentKind) -> (Watcher, Receiver<News>) {
    let (send, news) = mpsc::channel();
    let shared = Shared {
        topology: Mutex::new(None),
        first: Condvar::new(),
        doubt: AtomicBool::new(false),
        ended: AtomicBool::new(false),
        waker: Mutex::new(None),
        failure: Mutex::new(None),
    };
    let watcher = Watcher {
        settings: Settings::new(Target::parse(A).unwrap(), Options::default()),
        tls: None,
        kind,
        service: None,
        links: Vec::new(),
        by_connection: HashMap::new(),
        views: BTreeMap::new(),
        merged: ClusterView::default(),
        unowned_since: None,
        zones: BTreeMap::new(),
        names: BTreeMap::new(),
        master: None,
        master_epoch: 0,
        hold: None,
        topology: None,
        sequence: 0,
        left_at: vec![0; usize::from(SLOTS)],
        sign: None,
        turn: 0,
        poll_at: 0,
        epochs_at: 0,
        epochs: String::new(),
        fresh_at: 0,
        rebuild_at: 0,
        rebuild_due: None,
        tick_at: 0,
        ticked_at: 0,
        publisher: None,
        shared: Arc::new(shared),
        tell: Box::new(move |news| drop(send.send(news))),
    };
    (watcher, news)
}

/// A link that is ready.
pub(super) fn link(address: &str, kind: Kind) -> Link {
    Link { ready: true, ..Link::new(address.into(), kind, Target::parse(address).unwrap()) }
}

pub(super) fn master(offset: u64) -> Option<RoleReply> {
    Some(RoleReply::Master { offset, replicas: Vec::new() })
}

pub(super) fn replica(master: &str, connected: bool, offset: u64) -> Option<RoleReply> {
    Some(RoleReply::Replica { master: master.into(), connected, offset })
}

/// A connection that leads nowhere.
fn connection(reactor: &mut Reactor) -> Option<Id> {
    Some(reactor.io().connect(&Peer::Tcp(A.parse().unwrap()), None, u64::MAX).unwrap())
}

/// A line of CLUSTER NODES: node `a`, `b` or `c`, flags, master, epoch, slots.
type Row = (&'static str, &'static str, &'static str, u64, &'static str);

fn view(rows: &[Row]) -> ClusterView {
    let line = |(name, flags, master, epoch, slots): &Row| {
        let (id, port) = (name.repeat(40), name.as_bytes()[0] - b'a' + 1);
        let master = if master.is_empty() { "-".to_string() } else { master.repeat(40) };
        format!("{id} 127.0.0.1:{port}@1 {flags} {master} 0 0 {epoch} connected {slots}\n")
    };
    ClusterView::parse(&rows.iter().map(line).collect::<String>()).unwrap()
}

const THREE: [Row; 3] =
    [("a", "master", "", 1, "0-8191"), ("b", "master", "", 2, "8192-16383"), ("c", "slave", "a", 1, "")];

/// The view of `a` or `b`, without `c`.
fn without_c(myself: &str) -> ClusterView {
    let mut view = view(&THREE[..2]);
    let own = view.nodes.iter_mut().find(|n| n.id == myself.repeat(40)).unwrap();
    own.flags.push("myself".into());
    view
}

#[test]
fn a_node_is_removed_when_two_views_or_the_only_available_one_lack_it() {
    // Whether the others answer, whether there is a second view, and whether `c` stays.
    for (answers, both, there) in [(true, false, true), (true, true, false), (false, false, false)] {
        let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
        watcher.links = [A, B, C].map(|address| link(address, Kind::Node)).into();
        watcher.links[1].suspected = !answers;
        watcher.links[2].suspected = !answers;
        watcher.merged = view(&THREE);
        watcher.views.insert(A.into(), (NOW, without_c("a")));
        if both {
            watcher.views.insert(B.into(), (NOW, without_c("b")));
        }
        let topology = watcher.cluster(NOW).unwrap();
        assert_eq!(topology.at(C).is_some(), there, "{answers} {both}");
        assert_eq!(topology.owner(0).map(|n| n.address.as_str()), Some(A));
    }
}

#[test]
fn views_older_than_a_second_are_ignored() {
    for (age, counts) in [(FRESH, true), (FRESH + 1, false)] {
        let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
        watcher.links = vec![link(B, Kind::Node)];
        watcher.views.insert(A.into(), (NOW - age, view(&THREE)));
        watcher.views.insert(B.into(), (NOW, without_c("b")));
        assert_eq!(watcher.cluster(NOW).unwrap().at(C).is_some(), counts, "{age} ns");
        // A view is as large as its cluster: what is not looked at again is not kept.
        assert_eq!(watcher.views.contains_key(A), counts);
    }
}

#[test]
fn a_rebuild_that_has_to_wait_is_made_up_for_by_the_next_tick_and_never_waits_outside_a_cluster() {
    let mut reactor = Reactor::new().unwrap();
    let (mut cluster, _news) = watcher(DeploymentKind::Cluster);
    cluster.views.insert(A.into(), (now_ns(), view(&THREE)));
    cluster.rebuild_at = u64::MAX;
    cluster.rebuild(reactor.io(), Sign::Role);
    cluster.tick(reactor.io());
    assert_eq!((cluster.topology.is_some(), cluster.rebuild_due), (false, Some(Sign::Role)));
    cluster.rebuild_at = 0;
    cluster.tick(reactor.io());
    assert_eq!((cluster.topology.map(|t| t.nodes.len()), cluster.rebuild_due), (Some(3), None));
    let (mut group, _news) = watcher(DeploymentKind::MasterReplica);
    group.links = vec![Link { role: master(0), ..link(A, Kind::Node) }];
    group.rebuild_at = u64::MAX;
    group.rebuild(reactor.io(), Sign::Role);
    assert!(group.topology.is_some());
}

#[test]
fn a_node_counts_once_among_those_with_a_recent_or_a_pending_view() {
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    let (now, old) = (now_ns(), now_ns().saturating_sub(FRESH + 1000 * MS));
    let asked = |address: &str, at: u64| Link { asks: [Ask::Nodes(at)].into(), ..link(address, Kind::Node) };
    watcher.links = vec![asked(A, now), link(B, Kind::Node), asked(C, old)];
    assert_eq!(watcher.views_at_hand(), 1, "one that has not answered for seconds does not count");
    for address in [A, B] {
        watcher.views.insert(address.into(), (now, view(&THREE)));
    }
    assert_eq!(watcher.views_at_hand(), 2);
}

#[test]
fn an_unowned_slot_keeps_its_last_owner_for_a_second() {
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    watcher.links = vec![link(A, Kind::Node), link(B, Kind::Node)];
    watcher.merged = view(&THREE);
    let rows = [("a", "myself,master", "", 1, "0-8190"), THREE[1], THREE[2]];
    watcher.poll_at = u64::MAX;
    for (now, owner) in [(NOW, Some(A)), (NOW + UNOWNED - 1, Some(A)), (NOW + UNOWNED, None)] {
        watcher.views.insert(A.into(), (now, view(&rows)));
        let topology = watcher.cluster(now).unwrap();
        assert_eq!(topology.owner(8191).map(|n| n.address.as_str()), owner, "{} ms later", (now - NOW) / MS);
        assert_eq!(topology.owner(8190).map(|n| n.address.as_str()), Some(A));
    }
    assert!(watcher.poll_at <= NOW + UNOWNED, "the next poll is soon");
}

#[test]
fn a_stale_view_does_not_undo_an_election() {
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    watcher.links = vec![link(A, Kind::Node), link(B, Kind::Node)];
    watcher.merged = view(&[("a", "slave", "b", 1, ""), ("b", "master", "", 9, "0-16383")]);
    let behind = view(&[("a", "myself,master", "", 1, "0-16383"), ("b", "slave", "a", 1, "")]);
    watcher.views.insert(A.into(), (NOW, behind));
    assert_eq!(watcher.cluster(NOW).unwrap().owner(0).map(|n| n.address.as_str()), Some(B));
}

#[test]
fn the_master_changes_only_when_it_is_demoted_or_suspected_and_another_claims_the_role() {
    let sentinel = DeploymentKind::Sentinel;
    let alone = DeploymentKind::MasterReplica;
    // ROLE of the known master and of another node, whether the known one is suspected, and the master that
    // results.
    for (kind, known, other, suspected, expected) in [
        (alone, master(0), master(0), false, A),
        (alone, replica(B, true, 0), master(0), false, B),
        (alone, replica(B, true, 0), replica(A, true, 0), false, A),
        (alone, None, master(0), false, A),
        (alone, master(0), master(0), true, B),
        (alone, master(0), replica(A, true, 0), true, A),
        (sentinel, replica(B, true, 0), master(0), false, B),
        (sentinel, replica(C, true, 0), master(0), false, A),
        (sentinel, master(0), master(0), true, A),
    ] {
        let (mut watcher, _news) = watcher(kind);
        let case = format!("{kind:?} {known:?} {other:?} {suspected}");
        watcher.links = vec![
            Link { role: known, suspected, ..link(A, Kind::Node) },
            Link { role: other, ..link(B, Kind::Node) },
            link(C, Kind::Sentinel),
        ];
        watcher.master = Some(A.into());
        watcher.elect();
        assert_eq!(watcher.master.as_deref(), Some(expected), "{case}");
    }
}

#[test]
fn a_sentinel_with_an_old_epoch_does_not_change_the_master() {
    let (mut watcher, news) = watcher(DeploymentKind::Sentinel);
    let mut reactor = Reactor::new().unwrap();
    watcher.links = [A, B].map(|address| link(address, Kind::Node)).into();
    watcher.links.extend(["127.0.0.1:8", "127.0.0.1:9"].map(|address| link(address, Kind::Sentinel)));
    // The word of each Sentinel, and the master that results. There is no link to 127.0.0.1:7.
    for (first, second, expected) in [
        (Some((1, A)), None, A),
        (Some((1, A)), Some((2, B)), B),
        (Some((1, A)), None, B),
        (Some((2, B)), Some((3, "127.0.0.1:7")), B),
        (Some((4, A)), Some((3, B)), A),
    ] {
        let word = |said: Option<(u64, &str)>| said.map(|(epoch, address)| (epoch, address.to_string()));
        (watcher.links[2].word, watcher.links[3].word) = (word(first), word(second));
        watcher.named_master(reactor.io());
        assert_eq!(watcher.master.as_deref(), Some(expected), "{first:?} {second:?}");
    }
    let told: Vec<Sign> = news
        .try_iter()
        .filter_map(|n| if let News::Delta(d, _) = n { Some(d) } else { None })
        .flat_map(|d| d.changes)
        .map(|known| known.sign)
        .collect();
    assert!(!told.is_empty() && told.iter().all(|sign| *sign == Sign::Sentinel), "{told:?}");
}

#[test]
fn a_replica_is_in_sync_only_when_linked_to_its_master_and_loaded() {
    let (mut watcher, _news) = watcher(DeploymentKind::MasterReplica);
    watcher.master = Some(A.into());
    for (role, loading, in_sync, lag) in [
        (replica(A, true, 90), false, true, Some(10)),
        (replica(A, true, 110), false, true, Some(0)),
        (replica(A, false, 90), false, false, Some(10)),
        (replica(A, true, 90), true, false, Some(10)),
        (None, false, false, None),
    ] {
        let case = format!("{role:?} {loading}");
        watcher.links = vec![
            Link { role: master(100), rtt_min: 7000, ..link(A, Kind::Node) },
            Link { role, loading, zone: Some("z".into()), ..link(B, Kind::Node) },
        ];
        let mut topology = watcher.group().unwrap();
        watcher.dress(&mut topology);
        let (leader, follower) = (topology.at(A).unwrap(), topology.at(B).unwrap());
        assert_eq!((leader.in_sync, leader.lag_bytes, leader.rtt_us), (true, None, Some(7)), "{case}");
        assert_eq!((follower.in_sync, follower.lag_bytes), (in_sync, lag), "{case}");
        assert_eq!((follower.master.as_deref(), follower.zone.as_deref()), (Some(A), Some("z")), "{case}");
        // It follows another master by now.
        watcher.links[1].role = replica(C, true, 90);
        watcher.dress(&mut topology);
        assert!(!topology.at(B).unwrap().in_sync, "{case}");
    }
}

#[test]
fn a_replica_that_answers_is_up_even_if_the_cluster_calls_it_failed() {
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    for (flags, suspected, health) in [
        ("slave", false, Health::Up),
        ("slave", true, Health::Suspected),
        ("slave,fail", false, Health::Up),
        ("slave,fail", true, Health::Failed),
        ("master,fail", false, Health::Failed),
        ("master", true, Health::Suspected),
    ] {
        watcher.links = vec![Link { suspected, ..link(A, Kind::Node) }];
        let mut topology = Topology::of_cluster(&view(&[("a", flags, "", 1, "")]), false);
        watcher.dress(&mut topology);
        assert_eq!(topology.nodes[0].health, health, "{flags} {suspected}");
    }
}

#[test]
fn a_move_is_timed_from_its_sunsubscribe_and_told_once() {
    let (mut watcher, news) = watcher(DeploymentKind::Cluster);
    let mut reactor = Reactor::new().unwrap();
    let before = Topology::of_cluster(&view(&THREE), false);
    let rows = [("a", "master", "", 1, "0-8190"), ("b", "master", "", 3, "8191-16383"), THREE[2]];
    let after = Topology::of_cluster(&view(&rows), false);
    watcher.topology = Some(Arc::new(before.clone()));
    watcher.left_at[8191] = NOW - 3 * MS;
    watcher.sign = Some((NOW - 50 * MS, Sign::Poll));
    // The second time there is no recent sunsubscribe.
    let later = NOW + 2000 * MS;
    for (topology, now, sequence, sign, known_us) in
        [(&after, NOW, 1, Sign::Sunsubscribe, 3_000), (&before, later, 2, Sign::Doubt, 20_000)]
    {
        watcher.publish_view(reactor.io(), topology.clone(), Sign::Role, now);
        let Ok(News::Delta(delta, told)) = news.try_recv() else { panic!("no delta") };
        assert_eq!((delta.sequence, delta.digest, delta.changes.len()), (sequence, topology.digest(), 1));
        assert_eq!(told.digest(), topology.digest());
        let known = &delta.changes[0];
        assert_eq!((known.sign, known.known_us, known.silent_ms), (sign, known_us, None));
        watcher.publish_view(reactor.io(), topology.clone(), Sign::Role, now);
        assert!(news.try_recv().is_err(), "nothing changed");
        watcher.sign = Some((later - 20 * MS, Sign::Doubt));
    }
}

#[test]
fn a_failover_reports_how_long_the_old_master_was_silent() {
    let (mut watcher, news) = watcher(DeploymentKind::Cluster);
    let mut reactor = Reactor::new().unwrap();
    let before = view(&[("a", "master", "", 1, "0-16383"), ("b", "slave", "a", 1, "")]);
    let after = view(&[("a", "slave,fail", "b", 1, ""), ("b", "master", "", 2, "0-16383")]);
    watcher.topology = Some(Arc::new(Topology::of_cluster(&before, false)));
    watcher.links = vec![Link { suspected: true, heard_at: NOW - 400 * MS, ..link(A, Kind::Node) }];
    watcher.sign = Some((NOW - 150 * MS, Sign::Silence));
    watcher.publish_view(reactor.io(), Topology::of_cluster(&after, false), Sign::Poll, NOW);
    let Ok(News::Delta(delta, _)) = news.try_recv() else { panic!("no delta") };
    let promoted = delta.changes.iter().find(|k| matches!(&k.what, Change::Promoted { .. })).unwrap();
    assert_eq!((promoted.sign, promoted.known_us, promoted.silent_ms), (Sign::Silence, 150_000, Some(400)));
    let failed = delta.changes.iter().find(|k| matches!(&k.what, Change::Failed { .. })).unwrap();
    assert_eq!((failed.sign, failed.silent_ms), (Sign::Silence, Some(400)));
    assert!(watcher.sign.is_none(), "the sign is used up");
}

#[test]
fn overdue_replies_raise_suspicion_first_and_drop_the_connection_later() {
    let mut reactor = Reactor::new().unwrap();
    let suspect = 250 * MS;
    let mut owing = Link { heard_at: 900 * MS, owes_since: 1000 * MS, ..link(A, Kind::Node) };
    owing.connection = connection(&mut reactor);
    owing.asks.push_back(Ask::Role);
    let at = |link: &Link, ms: u64, ns: u64| overdue(link, ms * MS + ns, suspect);
    assert_eq!([at(&owing, 1250, 0), at(&owing, 1250, 1)], [(false, false), (false, true)]);
    assert_eq!([at(&owing, 3000, 0), at(&owing, 3000, 1)], [(false, true), (true, true)]);
    // Slow round trips extend the patience, up to eight times.
    for (peak, patience) in [(62, 250), (100, 400), (499, 1996), (60_000, 2000)] {
        owing.rtt_peak = peak * MS;
        let ends = 1000 + patience;
        assert_eq!([at(&owing, ends, 0).1, at(&owing, ends, 1).1], [false, true], "{peak} ms");
    }
    // It spoke after it was asked.
    owing.rtt_peak = 0;
    owing.heard_at = 5000 * MS;
    assert_eq!([at(&owing, 5250, 0), at(&owing, 5250, 1)], [(false, false), (false, true)]);
    owing.asks.clear();
    assert_eq!(at(&owing, 60_000, 0), (false, false), "a link without questions owes nothing");

    // Before the greeting a connection's time counts from its dial, its node's from its last word.
    let mut dialled = Link { ready: false, heard_at: 1000 * MS, dialled_at: 5000 * MS, ..link(A, Kind::Node) };
    dialled.connection = connection(&mut reactor);
    assert_eq!(
        [at(&dialled, 1250, 1), at(&dialled, 7000, 0), at(&dialled, 7000, 1)],
        [(false, true), (false, true), (true, true)]
    );
    dialled.connection = None;
    assert_eq!(at(&dialled, 60_000, 0), (false, true));
    dialled.dial_at = u64::MAX;
    assert_eq!(at(&dialled, 60_000, 0), (false, false), "a forgotten node is not suspected");
}

#[test]
fn one_in_ten_of_what_a_node_is_asked_is_its_role() {
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    let mut reactor = Reactor::new().unwrap();
    let start = now_ns();
    watcher.links = vec![Link { connection: connection(&mut reactor), role_at: start, ..link(A, Kind::Node) }];
    let (mut pings, mut roles) = (0, Vec::new());
    for tick in 1..=60 {
        let now = start + tick * 50 * MS;
        watcher.keep_asking(reactor.io(), 0, now);
        match watcher.links[0].asks.make_contiguous() {
            [] => {}
            [Ask::Ping(_)] => pings += 1,
            [Ask::Role] => roles.push(tick),
            more => panic!("{more:?} at once"),
        }
        watcher.links[0].asks.clear();
    }
    // Three seconds: a question every 100 ms.
    assert_eq!((pings + roles.len(), roles.len()), (30, 3), "{roles:?}");
}

#[test]
fn a_view_is_asked_for_when_epochs_change_and_not_because_a_node_speaks_of_them_for_the_first_time() {
    let mut reactor = Reactor::new().unwrap();
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    watcher.links = [A, B, C].map(|address| link(address, Kind::Node)).into();
    let mut told = |at: usize, current: u64, own: u64| {
        let text = format!(
            "cluster_state:ok\r\ncluster_current_epoch:{current}\r\ncluster_my_epoch:{own}\r\n\
             cluster_stats_messages_sent:{at}\r\n"
        );
        watcher.links[at].connection = connection(&mut reactor);
        watcher.epochs_told(reactor.io(), at, &text, NOW);
        watcher.links[at].asks.drain(..).any(|a| matches!(a, Ask::Nodes(_)))
    };
    assert!(told(0, 3, 1), "nobody has spoken before");
    assert!(!told(1, 3, 2), "the same cluster");
    assert!(!told(0, 3, 1) && told(0, 3, 4), "its own epoch");
    assert!(told(2, 5, 5), "it knows more than the others");
    assert!(told(1, 5, 2) && !told(1, 5, 2), "now they know as well");
}

#[test]
fn a_sunsubscribe_marks_its_slot_and_asks_for_a_new_view() {
    let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
    let mut reactor = Reactor::new().unwrap();
    let id = connection(&mut reactor);
    watcher.links = vec![Link { connection: id, pushes: true, ..link(A, Kind::Node) }];
    watcher.links[0].held.set(5, true);
    let name = channel(5);
    let push = format!(">3\r\n$12\r\nsunsubscribe\r\n${}\r\n{name}\r\n:0\r\n", name.len());
    watcher.reply(reactor.io(), 0, Frame::new(push.as_bytes()));
    assert!(watcher.left_at[5] > 0 && watcher.left_at[4] == 0 && !watcher.links[0].held.has(5));
    assert_eq!(watcher.sign, Some((watcher.left_at[5], Sign::Sunsubscribe)));
    let mut expected = Vec::new();
    write_command(&mut expected, &["CLUSTER", "NODES"]);
    assert_eq!(*reactor.io().output(id.unwrap()), expected);
}

#[test]
fn denied_subscriptions_are_noted_once_and_replaced_by_polling() {
    let (mut watcher, news) = watcher(DeploymentKind::Cluster);
    let mut reactor = Reactor::new().unwrap();
    watcher.links = vec![Link { pushes: true, subscribing: 3, ..link(A, Kind::Node) }];
    watcher.links[0].asks.extend([Ask::Subscribe(5), Ask::Subscribe(6), Ask::Subscribe(7)]);
    // The first slot merely moved; the others are denied.
    for (reply, pushes) in [("-MOVED 5 127.0.0.1:2\r\n", true), ("-NOPERM no\r\n", false), ("-NOPERM no\r\n", false)] {
        watcher.reply(reactor.io(), 0, Frame::new(reply.as_bytes()));
        assert_eq!(watcher.links[0].pushes, pushes, "{reply}");
    }
    assert_eq!(watcher.links[0].subscribing, 0);
    let notes: Vec<News> = news.try_iter().collect();
    assert!(matches!(&notes[..], [News::Note(text)] if text.contains("grant +ssubscribe")), "{notes:?}");
}

#[test]
fn a_link_is_greeted_before_it_is_asked_and_a_refusal_is_noted_but_keeps_it() {
    const AUTH: [&str; 3] = ["AUTH", "ann", "s3cret"];
    const INFO: &str = "$13\r\nredis_version\r\n";
    let confirmed = "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n";
    let own = [&AUTH[..], &["HELLO", "3"], &["CLIENT", "SETNAME", "unslow-watch"], &["INFO", "server"]];
    let ear = [&AUTH[..], &["SUBSCRIBE", messages::DIGEST]];
    let hello = "%1\r\n$5\r\nproto\r\n:3\r\n";
    for (kind, commands, replies, resp3, note) in [
        (Kind::Node, &own[..], vec!["+OK\r\n", hello, "+OK\r\n", INFO], true, None),
        (Kind::Node, &own, vec!["+OK\r\n", "-ERR unknown command 'HELLO'\r\n", "+OK\r\n", INFO], false, None),
        (Kind::Node, &own, vec!["-WRONGPASS no\r\n", hello, "+OK\r\n", INFO], true, Some("WRONGPASS no")),
        (Kind::Node, &own, vec!["+OK\r\n", "-NOAUTH no\r\n", "-NOAUTH no\r\n", INFO], false, Some("NOAUTH no")),
        (Kind::Ear, &ear, vec!["+OK\r\n", confirmed], false, None),
        (Kind::Ear, &ear, vec!["-WRONGPASS no\r\n", confirmed], false, None),
    ] {
        let (mut watcher, news) = watcher(DeploymentKind::MasterReplica);
        let mut reactor = Reactor::new().unwrap();
        let id = connection(&mut reactor);
        let target = Target::parse("redis://ann:s3cret@127.0.0.1:1/3").unwrap();
        watcher.links = vec![Link { connection: id, ready: false, target, ..link(A, kind) }];
        watcher.greet(reactor.io(), 0);
        let mut expected = Vec::new();
        commands.iter().for_each(|command| write_command(&mut expected, command));
        assert_eq!(*reactor.io().output(id.unwrap()), expected, "{kind:?}");
        for reply in &replies {
            assert!(!watcher.links[0].ready, "{replies:?}");
            watcher.reply(reactor.io(), 0, Frame::new(reply.as_bytes()));
        }
        assert_eq!((watcher.links[0].ready, watcher.links[0].resp3), (true, resp3), "{replies:?}");
        let notes: Vec<News> = news.try_iter().collect();
        let noted = matches!((&notes[..], note), ([News::Note(text)], Some(note)) if text.ends_with(note));
        assert!(noted || notes.is_empty() && note.is_none(), "{replies:?}: {notes:?}");
    }
}
