//! The thread without servers: what is charged, given up, begun and told.

use std::sync::mpsc::channel;

use super::*;
use crate::arrivals::Arrivals;
use crate::workload::Spec;

/// When the load of these tests began.
const START: u64 = 100 * SECOND;
const MILLISECOND: u64 = SECOND / 1000;

/// A thread that was asked for 1,000 requests/s for a second, with a timeout of a second, in a cluster where nobody
/// owns a slot: all of them wait.
fn worker() -> (Worker, Receiver<Said>) {
    worker_of(|_| ())
}

fn worker_of(change: impl FnOnce(&mut Shape)) -> (Worker, Receiver<Said>) {
    let topology = Topology::new(DeploymentKind::Cluster, Vec::new());
    let mut shape = Shape {
        threads: 1,
        connections: 1,
        own: false,
        rings: false,
        window: Some(1),
        callers: None,
        steps: Some(vec![1000.0]),
        arrivals: Arrivals::Constant,
        replay_speed: None,
        length_ns: SECOND,
        requests: None,
        timeout_ns: SECOND,
        read_from: ReadFrom::Primary,
        target: unslow_client::Target::parse("10.0.0.1:6379").unwrap(),
        resp3: false,
        subscribers: 0,
        channels: String::new(),
        tls: None,
    };
    change(&mut shape);
    let shared = Arc::new(Shared {
        workload: Arc::new(Workload::compile(&Spec::default(), None).unwrap()),
        routes: Routes::new(topology),
        shape,
        start: AtomicU64::new(START),
        ready: AtomicUsize::new(0),
        stop: AtomicBool::new(false),
    });
    let (said, heard) = channel();
    let (_, spares) = channel();
    let mut worker = Worker::new(shared, 0, said, spares);
    worker.phase = Phase::Running;
    (worker.clock.start, worker.clock.end, worker.clock.next_second) = (START, START + SECOND, START + SECOND);
    worker.demand.next_due = worker.demand.schedule.as_mut().and_then(Schedule::next).map(|due| START + due);
    (worker, heard)
}

fn interval(heard: &Receiver<Said>) -> Box<Interval> {
    match heard.try_recv() {
        Ok(Said::Interval(interval)) => interval,
        _ => panic!("no interval was sent"),
    }
}

/// Within the three digits of a histogram.
fn near(seen: u64, truth: u64) -> bool {
    seen.abs_diff(truth) <= truth / 500
}

#[test]
fn requests_are_charged_from_when_they_were_due_however_late_they_are_looked_at() {
    let (mut worker, heard) = worker();
    let mut reactor = Reactor::new().unwrap();
    // The generator itself was not run for the whole second.
    worker.arrive(START + SECOND, reactor.io());
    assert_eq!((worker.demand.outstanding, worker.route.homeless.len(), worker.demand.next_due), (1000, 1000, None));
    // Nothing of it is ever answered.
    worker.over(START + 3 * SECOND, reactor.io());
    let interval = interval(&heard);
    assert_eq!((interval.counts.begun, interval.counts.unanswered, interval.counts.answered), (1000, 1000, 0));
    assert_eq!((interval.errors[0].name.as_str(), interval.errors[0].count), ("unfinished", 1000));
    // The first was due at 0 s, the last at 0.999 s.
    let (late, all) = (&interval.lateness, interval.all());
    assert!(late.len() == 1000 && near(late.max(), SECOND) && near(late.min(), MILLISECOND));
    assert!(all.len() == 1000 && near(all.max(), 3 * SECOND) && near(all.min(), 2001 * MILLISECOND));
    assert!(near(all.value_at_quantile(0.5), 2500 * MILLISECOND), "{}", all.value_at_quantile(0.5));
}

#[test]
fn requests_that_find_nobody_are_given_up_when_their_timeout_is_over_and_not_before() {
    let (mut worker, _heard) = worker();
    let mut reactor = Reactor::new().unwrap();
    worker.arrive(START + SECOND, reactor.io());
    worker.housekeeping(START + SECOND, reactor.io());
    assert_eq!((worker.route.homeless.len(), worker.report.interval.counts.unanswered), (1000, 0));
    worker.housekeeping(START + SECOND + SECOND / 2, reactor.io());
    // Those that were due in the first half second.
    assert_eq!(
        (worker.route.homeless.len(), worker.report.interval.counts.unanswered, worker.demand.outstanding),
        (500, 500, 500)
    );
    let kinds: Vec<_> = worker.report.interval.errors.iter().map(|k| (k.name.as_str(), k.count)).collect();
    assert_eq!(kinds, [("no_owner", 500)]);
    let ages = worker.report.interval.all();
    assert!(near(ages.min(), SECOND) && near(ages.max(), SECOND + SECOND / 2), "{} to {}", ages.min(), ages.max());
}

#[test]
fn the_load_ends_with_its_schedule_and_asks_for_no_more_than_its_number_of_requests() {
    let (mut worker, _heard) = worker();
    let mut reactor = Reactor::new().unwrap();
    worker.arrive(START + SECOND / 4, reactor.io());
    assert_eq!(worker.demand.outstanding, 251, "due at 0, 1, ... 250 ms");
    worker.demand.budget = 9;
    worker.arrive(START + 60 * SECOND, reactor.io());
    assert_eq!((worker.demand.outstanding, worker.demand.next_due), (260, None));
}

#[test]
fn connections_that_were_lost_together_do_not_return_together() {
    let (mut worker, _heard) = worker();
    worker.net.lanes.extend((0..64).map(|_| Lane::new(0, false)));
    let mut pauses: Vec<u64> = Vec::new();
    for lane in 0..64 {
        let before = now_ns();
        worker.put_off(lane);
        match worker.net.lanes[lane as usize].state {
            State::Waiting(at) => pauses.push(at - before),
            _ => panic!("lane {lane} does not wait"),
        }
    }
    let (least, most) = (pauses.iter().min().unwrap(), pauses.iter().max().unwrap());
    assert!(*least >= BACKOFF.0 / 2 && *least < BACKOFF.0 && most - least > MILLISECOND, "{least} to {most} ns");
}

#[test]
fn seconds_in_which_the_generator_was_not_run_are_told_as_empty() {
    let (mut worker, heard) = worker();
    let mut reactor = Reactor::new().unwrap();
    worker.arrive(START + SECOND / 2, reactor.io());
    worker.tick(START + 3 * SECOND + SECOND / 2);
    let told: Vec<_> = (0..3).map(|_| interval(&heard)).map(|i| (i.second, i.counts.begun, i.counts.waiting)).collect();
    assert_eq!(told, [(0, 501, 501), (1, 0, 0), (2, 0, 0)]);
    assert!(heard.try_recv().is_err() && worker.report.interval.second == 3);
    assert_eq!(worker.clock.next_second, START + 4 * SECOND);
}

#[test]
fn redirects_are_told_from_other_errors_and_lead_somewhere() {
    let (mut worker, _heard) = worker();
    let reply = |text: &str| Trouble::of(Frame::new(format!("-{text}\r\n").as_bytes()));
    let mut reactor = Reactor::new().unwrap();
    let from = worker.net.nodes.add("10.0.0.1:6379", Node::default());
    worker.net.lanes.push(Lane::new(from, false));
    let lane = worker.net.lanes.len() as u32 - 1;
    for (text, expected) in [
        ("MOVED 3999 10.0.0.2:6381", "10.0.0.2:6381"),
        ("MOVED 3999 :6381", "10.0.0.1:6381"),
        ("MOVED 3999 ::1:6381", "[::1]:6381"),
    ] {
        let Trouble::Moved { slot: 3999, to } = reply(text) else { panic!("{text}") };
        let led = worker.led_to(&to, lane, reactor.io());
        assert_eq!(worker.net.nodes.address(led), expected, "{text}");
        assert_eq!(worker.led_to(&to, lane, reactor.io()), led, "{text}: one node, however often");
    }
    assert_eq!(worker.led_to("", lane, reactor.io()), from, "where it was, until the topology tells");
    assert!(matches!(reply("ASK 5 10.0.0.2:6381"), Trouble::Ask { to } if to == "10.0.0.2:6381"));
    for (text, expected) in [
        ("MOVED 3999 ?:6381", "MOVED"),
        ("MOVED there", "MOVED"),
        ("NOREPLICAS Not enough good replicas to write.", "NOREPLICAS"),
        ("no upstream host", "ERR"),
    ] {
        assert!(matches!(reply(text), Trouble::Error { name, .. } if name == expected), "{text}");
    }
}

#[test]
fn a_connection_is_open_after_its_greeting_unless_the_server_refuses() {
    let setup = [b"*1\r\n$8\r\nREADONLY\r\n".to_vec()];
    let plan = Plan {
        password: Some(b"p"),
        resp3: true,
        tolerance: Tolerance::NoResp3,
        db: 1,
        setup: &setup,
        ..Plan::default()
    };
    for (replies, error) in [
        (vec!["+OK", "%0", "+OK", "+OK"], None),
        (vec!["-ERR Client sent AUTH, but no password is set", "-ERR unknown command 'HELLO'", "+OK", "+OK"], None),
        (vec!["-WRONGPASS no"], Some("WRONGPASS")),
        (vec!["-ERR max number of clients reached"], Some("ERR")),
        (vec!["+OK", "-NOAUTH no"], Some("NOAUTH")),
        (vec!["+OK", "%0", "-ERR SELECT is not allowed in cluster mode"], Some("ERR")),
        (vec!["+OK", "%0", "+OK", "-NOPERM no"], Some("NOPERM")),
    ] {
        let (mut worker, _heard) = worker();
        let mut reactor = Reactor::new().unwrap();
        worker.phase = Phase::Connecting;
        let node = worker.net.nodes.add("10.0.0.1:6379", Node::default());
        worker.net.lanes.push(Lane::new(node, false));
        worker.net.lanes[0].state = State::Connecting;
        worker.net.lanes[0].greeting = Greeting::begin(&plan, &mut Vec::new());
        for reply in &replies {
            assert!(matches!(worker.net.lanes[0].state, State::Connecting), "{replies:?}");
            worker.greeted(0, Frame::new(format!("{reply}\r\n").as_bytes()), START, reactor.io());
        }
        let lane = &worker.net.lanes[0];
        assert!(!lane.is_greeting(), "{replies:?}");
        assert_eq!(matches!(lane.state, State::Open), error.is_none(), "{replies:?}");
        let told = worker.report.interval.errors.first().map(|kind| kind.name.as_str());
        assert_eq!(told, error, "{replies:?}");
    }
}

#[test]
fn all_requests_of_a_group_go_to_its_master_and_a_clusters_to_the_owner_of_the_slot() {
    // The replica's address sorts first.
    let group = |master: &str, replica: &str| {
        Arc::new(crate::route::group(DeploymentKind::Sentinel, master.into(), vec![replica.into()]))
    };
    let (mut worker, _heard) = worker();
    let mut reactor = Reactor::new().unwrap();
    worker.adopt(&group("127.0.0.1:2", "127.0.0.1:1"), reactor.io());
    let master = worker.net.nodes.called("127.0.0.1:2").unwrap();
    assert_eq!((worker.net.only, worker.net.lanes.len()), (Some(master), 1), "replicas are not dialled");
    worker.adopt(&group("127.0.0.1:1", "127.0.0.1:2"), reactor.io());
    let promoted = worker.net.nodes.called("127.0.0.1:1").unwrap();
    assert_eq!((worker.net.only, worker.net.nodes.owner(9)), (None, promoted));
    let wanted: Vec<bool> = worker.net.nodes.numbers().map(|n| worker.net.nodes[n].wanted).collect();
    assert_eq!(wanted[usize::from(promoted)], !wanted[usize::from(master)], "{wanted:?}");
}

/// Two masters that nobody answers for: what would be sent waits for a connection.
fn halves() -> Arc<Topology> {
    let master =
        |address: &str, slots| unslow_topology::Node::master(address, unslow_topology::SlotSet::from_ranges([slots]));
    let nodes = vec![master("127.0.0.1:1", (0, 8191)), master("127.0.0.1:2", (8192, 16383))];
    Arc::new(Topology::new(DeploymentKind::Cluster, nodes))
}

#[test]
fn in_a_cluster_a_caller_sends_its_pipeline_to_one_node_and_every_request_to_its_owner() {
    const CALLERS: u32 = 12;
    let (mut worker, _heard) = worker_of(|shape| {
        (shape.own, shape.window, shape.callers, shape.steps) = (true, Some(16), Some(CALLERS as usize), None);
        shape.requests = Some(150);
    });
    let mut reactor = Reactor::new().unwrap();
    worker.adopt(&halves(), reactor.io());
    let mut sent: Vec<Vec<u64>> = vec![Vec::new(); 2];
    for caller in 0..CALLERS {
        worker.go_on(caller, START, reactor.io());
        let mut told = Vec::new();
        for (node, all) in sent.iter_mut().enumerate() {
            let waiting = &worker.net.nodes[node as u16].waiting;
            let new: Vec<u64> = waiting.iter().filter(|p| p.caller == caller).map(|p| p.seq).collect();
            all.extend(&new);
            told.push(new.len());
        }
        told.sort_unstable();
        let (count, all) = (told[1], sent.concat().len());
        assert_eq!((told[0], worker.demand.in_flight[caller as usize] as usize), (0, count), "{told:?}");
        assert!(count == 16 || all > 150 - 2 * 16, "less than a pipeline only at the end: {count}, {all}");
        assert_eq!(worker.demand.budget, 150 - all as u64);
        if caller == 3 {
            // Half of what was drawn belongs to the other node from now on.
            let mut moved = (*halves()).clone();
            let slots: Vec<_> = moved.nodes.iter().map(|node| node.slots.clone()).collect();
            (moved.nodes[0].slots, moved.nodes[1].slots) = (slots[1].clone(), slots[0].clone());
            worker.net.nodes.iter_mut().for_each(|node| node.waiting.clear());
            worker.adopt(&Arc::new(moved), reactor.io());
            sent.swap(0, 1);
        }
    }
    assert_eq!((worker.demand.budget, worker.demand.drawn, worker.demand.again.len()), (0, 0, 0));
    assert!(sent.iter().all(|seqs| seqs.is_sorted()), "in the order in which they were drawn: {sent:?}");
    let mut all = sent.concat();
    all.sort_unstable();
    assert_eq!(all, (0..150).collect::<Vec<u64>>(), "each request once");
    let halves = halves();
    for (number, seqs) in sent.iter().enumerate() {
        for &seq in seqs {
            let draw = worker.shared.workload.draw(seq);
            let slot = worker.shared.workload.slot(seq, draw, &mut Vec::new()).unwrap();
            // After the move everything was swapped, what had been sent before included.
            assert!(halves.nodes[1 - number].slots.contains(slot), "{seq}");
        }
    }
}

#[test]
fn requests_whose_slot_nobody_owns_wait_and_the_rest_of_the_pipeline_goes_on() {
    let (mut worker, _heard) = worker_of(|shape| {
        (shape.own, shape.window, shape.callers, shape.steps) = (true, Some(16), Some(2), None);
        shape.requests = Some(40);
    });
    let mut reactor = Reactor::new().unwrap();
    let mut half = (*halves()).clone();
    half.nodes.truncate(1);
    worker.adopt(&Arc::new(half), reactor.io());
    worker.go_on(0, START, reactor.io());
    let (homeless, waiting) = (worker.route.homeless.len(), worker.net.nodes[0].waiting.len());
    assert!(homeless > 0 && waiting > 0 && homeless + waiting == 16, "{homeless} and {waiting}");
    assert_eq!((worker.demand.budget, worker.demand.outstanding, worker.demand.in_flight[0]), (24, 16, 16));
    // The other half has an owner again: what is kept is drawn again, what waits finds its node.
    worker.adopt(&halves(), reactor.io());
    assert_eq!((worker.route.homeless.len(), worker.demand.drawn), (0, 0));
    worker.go_on(1, START, reactor.io());
    worker.go_on(1, START, reactor.io());
    worker.go_on(1, START, reactor.io());
    let mut all: Vec<u64> = (0..2).flat_map(|n| worker.net.nodes[n].waiting.iter().map(|p| p.seq)).collect();
    all.sort_unstable();
    assert_eq!((all, worker.demand.budget), ((0..40).collect(), 0));
}
