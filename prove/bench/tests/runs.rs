//! Runs against real servers: what is measured is what happened.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use unslow_bench::{Arrivals, Model, Progress, ReadFrom, Run, Second, Session, Settings, Spec};
use unslow_client::{Connection, Endpoint, Target};
use unslow_engine::{Deployment, Server, Shape, info, view};
use unslow_testkit::servers::{deployment, sentinels};
use unslow_testkit::slots::id;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, cluster, options, standalone, tried_while_busy, until};

/// Light and patient, so that what differs is what a test is about, and the machine's other work fails none. A run ends
/// with its number of requests, or when its test has seen enough.
fn settings(target: Target) -> Settings {
    Settings {
        target,
        options: options(3),
        spec: Spec { keys: 1000, ..Spec::default() },
        model: Model::Own,
        connections: 8,
        pipeline: 1,
        callers: None,
        threads: 1,
        rate: None,
        arrivals: Arrivals::Constant,
        speed: None,
        length: PATIENCE,
        dangerous: false,
        requests: None,
        timeout: Duration::from_secs(60),
        read_from: ReadFrom::Primary,
        lateness_max: Duration::from_secs(3600),
        subscribers: 0,
        rings: false,
        plain: false,
    }
}

/// The same for all of a deployment.
fn settings_of(deployment: &Deployment) -> Settings {
    settings(Target::parse(&deployment.url()).unwrap())
}

fn mix(names: &[&str]) -> BTreeMap<String, f64> {
    names.iter().map(|n| (n.to_string(), 1.0)).collect()
}

fn prepare(settings: Settings) -> Session {
    Session::prepare(settings, &mut |_| {}).unwrap()
}

/// To its end.
fn run(settings: Settings) -> Run {
    prepare(settings).run(&mut |_| {}).unwrap().0
}

/// Until `met` has heard enough. What is in flight then stays unfinished.
#[track_caller]
fn run_until(session: &mut Session, mut met: impl FnMut(Progress) -> bool) -> Run {
    let stop = session.stop_flag();
    let observer = &mut |progress: Progress| {
        if !stop.load(Ordering::SeqCst) && met(progress) {
            stop.store(true, Ordering::SeqCst);
        }
    };
    let run = session.run(observer).unwrap().0;
    assert!(run.interrupted, "what the test waited for did not come: {:?} {:?}", run.timeline, run.events);
    run
}

/// When the first second is over, `act` happens. The run ends with a second that began after it, in which requests were
/// answered and none went wrong, and of which `calm` thinks so too.
#[track_caller]
fn run_through(settings: Settings, mut act: impl FnMut(), calm: impl Fn(&Second) -> bool) -> Run {
    let mut session = prepare(settings);
    let begun = Instant::now();
    let mut acted: Option<Instant> = None;
    run_until(&mut session, |progress| {
        let Progress::Second(second, _) = progress else { return false };
        let Some(acted) = acted else {
            act();
            acted = Some(Instant::now());
            return false;
        };
        // The run began after `begun`, and so did each of its seconds.
        let after = begun + Duration::from_secs(second.at_s.into()) >= acted;
        after && second.errors == 0 && second.answered > 0 && calm(second)
    })
}

/// How often a server has executed a command. In a failover it may close a connection instead of answering: Sentinel
/// ends the clients of a replica that it promotes.
fn calls(server: &Server, command: &str) -> Result<u64, unslow_engine::Error> {
    let mut c = server.connect_with(&options(2))?;
    let stats = info(&mut c, "commandstats")?;
    Ok(stats.command_stats().get(command).map_or(0, |s| s.calls))
}

fn gets(server: &Server) -> Result<u64, unslow_engine::Error> {
    calls(server, "get")
}

fn is_master(server: &Server) -> Result<bool, unslow_engine::Error> {
    let mut c = server.connect_with(&options(2))?;
    Ok(info(&mut c, "replication")?.role() == Some("master"))
}

/// Waits until it has answered so many reads more than now.
#[track_caller]
fn until_it_answers(what: &str, server: &Server, reads: u64) {
    let mut before = None;
    until_ok(what, || {
        let now = gets(server)?;
        Ok::<_, unslow_engine::Error>(now > *before.get_or_insert(now) + reads)
    });
}

fn number(c: &mut Connection, section: &str, field: &str) -> u64 {
    info(c, section).unwrap().number(field).unwrap() as u64
}

/// Returns when the server stands still: it executes nothing more until SIGCONT.
fn freeze(server: &Server) {
    server.signal(libc::SIGSTOP);
    until("the server to stand still", || unslow_process::stat(server.pid()).is_some_and(|stat| stat.state == 'T'));
}

/// Nothing lost, nothing twice, nothing wrong. A run that was ended leaves unfinished what was in flight.
#[track_caller]
fn assert_clean(run: &Run, what: &str) {
    assert_errors(run, &[], what);
    assert_eq!((run.refused, run.wrong_values), (0, 0), "{what}");
    assert!(run.interrupted || run.unanswered == 0, "{what}: {} unanswered", run.unanswered);
    assert_eq!(run.latency.count, run.requests, "{what}");
    assert_eq!(run.timeline.iter().map(|s| s.answered).sum::<u64>(), run.answered, "{what}");
}

/// No errors but of these kinds.
#[track_caller]
fn assert_errors(run: &Run, kinds: &[&str], what: &str) {
    let expected = |kind: &str| kinds.contains(&kind) || run.interrupted && kind == "unfinished";
    assert!(run.errors.iter().all(|e| expected(&e.kind)), "{what}: {:?}", run.errors);
}

/// Every request that was due has one outcome. The report's times are rounded to milliseconds.
#[track_caller]
fn assert_all_due(run: &Run, rate: f64, what: &str) {
    let due = (run.seconds - run.drain_s) * rate;
    let off = (run.requests as f64 - due).abs();
    assert!(off <= rate / 1000.0 + 2.0, "{what}: {} requests have an outcome, {due:.0} were due", run.requests);
    assert_eq!(run.latency.count, run.answered + run.unanswered, "{what}");
}

#[test]
fn a_server_that_freezes_is_charged_for_every_request_it_kept_waiting() {
    const RATE: f64 = 5000.0;
    const CONNECTIONS: usize = 50;
    /// The simulated outage. Wherever it begins, it holds a whole second of the time line.
    const FREEZE: Duration = Duration::from_secs(2);
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    settings.connections = CONNECTIONS;
    settings.spec.mix = mix(&["get"]);
    settings.rate = Some(vec![RATE]);
    let mut session = prepare(settings);
    let stop = session.stop_flag();
    let before = gets(&server).unwrap();
    let begun = Instant::now();
    let ((run, latency), frozen) = std::thread::scope(|scope| {
        let freezer = scope.spawn(|| {
            until("the load to begin", || gets(&server).unwrap() >= before + 500);
            freeze(&server);
            let stopped = Instant::now();
            std::thread::sleep(FREEZE);
            let frozen = stopped.elapsed();
            server.signal(libc::SIGCONT);
            // Requests are sent in the order they are due: once so many were executed, all that were due in the freeze
            // were.
            let due = (begun.elapsed().as_secs_f64() * RATE) as u64 + 1;
            until("the backlog to be worked off", || gets(&server).unwrap() >= before + due);
            stop.store(true, Ordering::SeqCst);
            frozen.as_secs_f64()
        });
        (session.run(&mut |_| {}).unwrap(), freezer.join().unwrap())
    });
    assert_clean(&run, "frozen");
    assert_all_due(&run, RATE, "frozen");
    // Whoever was due x s before the end of the freeze has waited for x s at least, and requests were due all the time.
    for waited in [0.01, 0.5, 1.0, 1.5, 1.9] {
        let least = ((frozen - waited) * RATE) as u64 - 1;
        let seen = latency.count_between((waited * 1e9) as u64, latency.max());
        assert!(
            seen >= least,
            "{seen} requests waited for {waited} s, of at least {least} that had to: {:?}",
            run.latency
        );
    }
    for (name, seen_us, q) in
        [("p90", run.latency.us_p90, 0.9), ("p99", run.latency.us_p99, 0.99), ("max", run.latency.us_max, 1.0)]
    {
        let least = frozen - ((1.0 - q) * run.requests as f64 + 3.0) / RATE;
        assert!(seen_us / 1e6 >= least, "{name} is {seen_us} us, and cannot be less than {least} s");
    }
    // Of a second inside the freeze there are at most the answers that were on their way, and one more on each
    // connection for a generator that is late. The last one is not whole.
    let (_, whole) = run.timeline.split_last().unwrap();
    let empty = whole.iter().any(|s| s.answered <= 2 * CONNECTIONS as u64);
    assert!(empty, "the outage is no second of its own: {:?}", run.timeline);
}

#[test]
fn valkey_9_1_answers_everything_in_every_shape_and_protocol() {
    answers_everything("valkey-9.1");
}

#[test]
fn redis_7_0_answers_everything_in_every_shape_and_protocol() {
    answers_everything("redis-7.0");
}

#[test]
fn redis_6_2_answers_everything_in_every_shape_and_protocol() {
    answers_everything("redis-6.2");
}

#[test]
fn redis_5_0_answers_everything_in_every_shape_and_protocol() {
    answers_everything("redis-5.0");
}

fn answers_everything(name: &str) {
    const REQUESTS: u64 = 4000;
    for (shape_name, shape) in [
        ("standalone", Shape::Standalone),
        ("cluster", Shape::six_nodes()),
        ("sentinel", Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }),
    ] {
        let deployment = deployment(name, shape, &[]);
        for protocol in [2, 3] {
            let mut settings = settings_of(&deployment);
            settings.options.protocol = protocol;
            settings.spec.verify = true;
            settings.requests = Some(REQUESTS);
            settings.pipeline = if protocol == 2 { 1 } else { 16 };
            let run = run(settings);
            let what = format!("{name} {shape_name} RESP{protocol}");
            assert_clean(&run, &what);
            assert_eq!(run.requests, REQUESTS, "{what}");
            assert!(run.commands.iter().all(|c| c.null_share == 0.0), "{what}: every key was written before");
            // Nine of ten are GETs; a value that came in two pieces is not compared.
            assert!(run.verified_values > REQUESTS / 2, "{what}: {} values", run.verified_values);
            assert_eq!(run.moved, 0, "{what}: sent to the owner at once");
            let busy: Vec<_> = run.servers.iter().filter(|s| s.commands.unwrap_or(0) > 100).collect();
            assert_eq!(busy.len(), if shape_name == "cluster" { 3 } else { 1 }, "{what}: {:?}", run.servers);
            assert!(busy.iter().all(|s| s.cpu_s.unwrap() > 0.0) && run.generator.cpu_us_per_request > 0.0);
        }
    }
}

#[test]
fn a_run_goes_on_through_the_death_of_a_cluster_master() {
    goes_on_without_a_master("valkey-9.1", |victim| victim.kill());
}

#[test]
fn a_run_goes_on_through_the_hang_of_a_cluster_master() {
    goes_on_without_a_master("redis-7.0", freeze);
}

fn goes_on_without_a_master(name: &str, end: impl Fn(&Server)) {
    const RATE: f64 = 3000.0;
    let deployment = cluster(name);
    let (victim, promoted) = (&deployment.nodes[1], &deployment.nodes[4]);
    let others = [&deployment.nodes[0], &deployment.nodes[2]];
    let mut settings = settings_of(&deployment);
    settings.rate = Some(vec![RATE]);
    settings.timeout = Duration::from_secs(5);
    let in_flight = settings.connections as u64;
    let (mut at_first, mut without) = ([0; 2], [0; 2]);
    let act = || {
        end(victim);
        at_first = others.map(|o| gets(o).unwrap());
        until_ok("the replica to take over", || {
            // Counted before the look at who is master: all of it was answered while the shard had none.
            let seen = others.map(|o| gets(o).unwrap());
            let over = is_master(promoted)?;
            if !over {
                without = seen;
            }
            Ok::<_, unslow_engine::Error>(over)
        });
        until_it_answers("the promoted replica to answer", promoted, 1000);
        // One that hangs answers again, for the report asks each server for its INFO.
        victim.signal(libc::SIGCONT);
    };
    let run = run_through(settings, act, |_| true);
    let table: Vec<_> = run.timeline.iter().map(|s| (s.at_s, s.answered, &s.error_kinds, s.waiting)).collect();
    assert_all_due(&run, RATE, name);
    // While a shard has no master, the others may say that the cluster is down.
    assert_errors(&run, &["connection_lost", "no_connection", "timeout", "CLUSTERDOWN"], name);
    assert_eq!(run.timeline[0].errors, 0, "{name}: nothing had happened yet: {table:?}");
    for (from, to) in at_first.iter().zip(&without) {
        assert!(*to > from + in_flight, "{name}: the other shards go on: {at_first:?} to {without:?}, {table:?}");
    }
    let address = promoted.address();
    let moved = run.events.iter().any(|e| e.text.contains("slots moved from") && e.text.contains(&address));
    assert!(moved, "{name}: {:?}", run.events);
}

#[test]
fn a_run_goes_on_through_a_failover_by_sentinel() {
    const RATE: f64 = 2000.0;
    let deployment = sentinels("valkey-9.1", 1, 3000);
    let promoted = &deployment.nodes[1];
    let addresses: Vec<String> = deployment.sentinels.iter().map(|s| s.address()).collect();
    let mut settings = settings(Target::parse(&format!("redis+sentinel://{}/mymaster", addresses.join(","))).unwrap());
    settings.rate = Some(vec![RATE]);
    settings.timeout = Duration::from_secs(5);
    let act = || {
        deployment.nodes[0].kill();
        until_it_answers("the promoted replica to answer", promoted, 1000);
    };
    let run = run_through(settings, act, |_| true);
    assert_all_due(&run, RATE, "Sentinel");
    assert_errors(&run, &["connection_lost", "no_connection", "timeout"], "Sentinel");
    assert_eq!(run.timeline[0].errors, 0, "nothing had happened yet: {:?}", run.timeline);
    let over = format!("{} took over", promoted.address());
    assert!(run.events.iter().any(|e| e.text.contains(&over)), "{:?}", run.events);
}

#[test]
fn slots_that_move_are_followed_without_an_error() {
    for name in ["valkey-9.1", "redis-5.0"] {
        let deployment = deployment(name, Shape::six_nodes(), &[]);
        let mut settings = settings_of(&deployment);
        settings.spec.keys = 20; // so that every slot of them is asked all the time
        settings.spec.verify = true;
        let run = run_until(&mut prepare(settings), |progress| {
            let Progress::Second(second, _) = progress else { return false };
            if second.at_s == 0 {
                move_slots(&deployment, 20);
            }
            second.moved > 0
        });
        assert_clean(&run, name);
        assert!(run.moved > 0 && run.ask > 0, "{name}: {} MOVED, {} ASK", run.moved, run.ask);
    }
}

/// Moves the slots of the first keys from the first master to the second, key by key, as redis-cli does; each of them
/// waits half way until somebody was sent over by ASK.
fn move_slots(deployment: &Deployment, keys: u64) {
    let (from, to) = (&deployment.nodes[0], &deployment.nodes[1]);
    let (from_id, to_id) = (id(from), id(to));
    let (mut a, mut b) = (from.connect_with(&options(2)).unwrap(), to.connect_with(&options(2)).unwrap());
    let own = view(&mut a).unwrap().myself().unwrap().slots.clone();
    for key in 0..keys {
        let key = format!("unslow:{key:012}");
        let slot = unslow_topology::slot_of(key.as_bytes());
        if !own.contains(slot) {
            continue;
        }
        let s = slot.to_string();
        b.call(&["CLUSTER", "SETSLOT", &s, "IMPORTING", &from_id]).unwrap();
        a.call(&["CLUSTER", "SETSLOT", &s, "MIGRATING", &to_id]).unwrap();
        let sent_over = calls(to, "asking").unwrap();
        a.call(&["MIGRATE", &to.ip, &to.port.to_string(), &key, "0", "60000"]).unwrap();
        until("a client to be sent over by ASK", || calls(to, "asking").unwrap() > sent_over);
        // The new owner first, as redis-cli: otherwise both send clients to each other until the second one hears of
        // it.
        for node in [to, from, &deployment.nodes[2]] {
            node.connect_with(&options(2)).unwrap().call(&["CLUSTER", "SETSLOT", &s, "NODE", &to_id]).unwrap();
        }
    }
}

#[test]
fn a_pool_lets_callers_wait_and_a_shared_connection_does_not() {
    const CALLERS: u64 = 32;
    let server = standalone("valkey-9.1");
    let mut c = server.connect_with(&options(2)).unwrap();
    // A second of it, and how often the server has read in that.
    let mut with = |model: Model, connections: u64| {
        let mut settings = settings(server.target());
        settings.model = model;
        settings.callers = Some(CALLERS as usize);
        let mut session = prepare(settings);
        let before = number(&mut c, "stats", "total_reads_processed");
        let run = run_until(&mut session, |progress| {
            let over = matches!(progress, Progress::Second(..));
            if over {
                until(&format!("the server to have the {connections} connections of {model} and this one"), || {
                    number(&mut c, "clients", "connected_clients") == connections + 1
                });
            }
            over
        });
        assert_clean(&run, &model.to_string());
        assert_eq!(run.timeline[0].connections, connections, "{model}");
        // Of what was put on a connection, only what was in flight at the end has no answer.
        let put = run.pool_wait.as_ref().unwrap().count;
        assert!((run.answered..=run.requests).contains(&put), "{model}: {put} of {} waited", run.requests);
        let reads = number(&mut c, "stats", "total_reads_processed") - before;
        (run.timeline[0].waiting, run.answered, reads)
    };
    // All callers ask all the time: two are served, the others wait.
    let (waiting, answered, reads) = with(Model::Pool(2), 2);
    assert_eq!(waiting, CALLERS - 2);
    assert!(reads >= answered, "one request at a time on a connection: {answered} in {reads} reads");
    let (waiting, answered, reads) = with(Model::Shared, 1);
    assert_eq!(waiting, 0);
    assert!(reads < answered, "requests are packed: {answered} in {reads} reads");
    assert_eq!(with(Model::Multiplex(4), 4).0, 0);
    let mut two = settings(server.target());
    two.model = Model::Pool(4);
    two.callers = Some(8);
    two.threads = 2;
    two.requests = Some(4001);
    let two = run(two);
    assert_clean(&two, "two threads");
    assert_eq!((two.requests, two.generator.thread_busy_share.len()), (4001, 2));
    // A request's wait is a part of its latency.
    let (wait, whole) = (two.pool_wait.as_ref().unwrap(), &two.latency);
    assert_eq!(wait.count, 4001);
    assert!(wait.us_p50 <= whole.us_p50 && wait.us_p99 <= whole.us_p99 && wait.us_max <= whole.us_max, "{two:?}");
}

#[test]
fn a_number_of_requests_is_sent_exactly_and_the_same_seed_sends_the_same() {
    let server = standalone("valkey-9.1");
    let written = |seed: u64, threads: usize| {
        let mut c = server.connect_with(&options(2)).unwrap();
        c.call(&["FLUSHALL"]).unwrap();
        c.call(&["CONFIG", "RESETSTAT"]).unwrap();
        let mut settings = settings(server.target());
        settings.spec.mix = mix(&["set", "incr"]);
        settings.spec.seed = seed;
        settings.spec.keys = 50;
        settings.threads = threads;
        settings.requests = Some(10_001);
        let run = run(settings);
        assert_clean(&run, "counted");
        assert_eq!(run.requests, 10_001);
        let info = info(&mut c, "commandstats").unwrap();
        let calls: u64 = ["set", "incr"].iter().map(|n| info.command_stats()[n].calls).sum();
        assert_eq!(calls, 10_001, "no more and no less reached the server");
        let counters: Vec<_> =
            (0..50).map(|i| c.call(&["GET", &format!("unslow:count:{i:012}")]).unwrap().integer()).collect();
        counters
    };
    let once = written(7, 1);
    assert_eq!(once, written(7, 2), "whatever the number of threads");
    assert_ne!(once, written(8, 1));
}

#[test]
fn replicas_answer_reads_and_never_writes() {
    for shape in [Shape::six_nodes(), Shape::MasterReplica { replicas: 1 }] {
        let deployment = deployment("valkey-9.1", shape, &[]);
        for (read_from, share) in [(ReadFrom::Replica, 1.0), (ReadFrom::Any, 0.5)] {
            let mut settings = settings_of(&deployment);
            settings.read_from = read_from;
            settings.spec.mix = BTreeMap::from([("get".into(), 0.5), ("set".into(), 0.5)]);
            settings.requests = Some(8000);
            let mut session = prepare(settings);
            let before: Vec<u64> = deployment.nodes.iter().map(|n| gets(n).unwrap()).collect();
            let run = session.run(&mut |_| {}).unwrap().0;
            assert_clean(&run, "replicas");
            // A replica of a cluster that gets a write sends the client away.
            assert_eq!(run.moved, 0, "{read_from:?}");
            let new: Vec<u64> =
                deployment.nodes.iter().zip(before).map(|(n, before)| gets(n).unwrap() - before).collect();
            let (all, replicas): (u64, u64) = (new.iter().sum(), new[new.len() / 2..].iter().sum());
            let seen = replicas as f64 / all as f64;
            assert!((seen - share).abs() < 0.05, "{read_from:?}: {seen} of the reads went to replicas");
        }
    }
}

#[test]
fn reads_go_on_at_replicas_when_a_master_becomes_one() {
    const RATE: f64 = 3000.0;
    let deployment = cluster("valkey-9.1");
    let (old, new) = (&deployment.nodes[0], &deployment.nodes[3]);
    let mut settings = settings_of(&deployment);
    settings.read_from = ReadFrom::Any;
    settings.spec.mix = mix(&["get"]);
    settings.rate = Some(vec![RATE]);
    settings.connections = 4;
    let act = || {
        // By hand: everybody stays up, and the old master keeps its clients.
        new.connect_with(&options(2)).unwrap().call(&["CLUSTER", "FAILOVER"]).unwrap();
        until_ok("the two to have changed places", || {
            Ok::<_, unslow_engine::Error>(is_master(new)? && !is_master(old)?)
        });
        until_it_answers("the old master to answer reads as a replica", old, 500);
    };
    // Nobody is sent from one to the other any more, and nothing stays behind.
    let run = run_through(settings, act, |second| second.moved == 0 && second.waiting < 100);
    assert_clean(&run, "changed places");
    assert_all_due(&run, RATE, "changed places");
}

#[test]
fn transactions_scripts_blocking_commands_and_messages_work() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("add.lua");
    std::fs::write(&script, "return redis.call('INCRBY', KEYS[1], ARGV[1])").unwrap();
    for shape in [Shape::Standalone, Shape::six_nodes()] {
        let deployment = deployment("valkey-9.1", shape, &[]);
        let with = |what: &str, requests: Option<u64>, change: &dyn Fn(&mut Settings)| {
            let mut settings = settings_of(&deployment);
            settings.requests = requests;
            change(&mut settings);
            let run = run(settings);
            assert_clean(&run, what);
            assert!(requests.is_none_or(|n| run.requests == n), "{what}: {} requests", run.requests);
            run
        };
        with("MULTI", Some(500), &|s| {
            s.spec.multi = 3;
            s.spec.mix = mix(&["incr", "set"]);
        });
        // A block with a command that fails is no answer, though EXEC's reply is an array and no error.
        let mut bad = settings_of(&deployment);
        bad.spec.multi = 2;
        bad.spec.mix = mix(&["set", "lpush"]);
        bad.spec.keys = 5;
        bad.spec.commands = vec!["lpush=LPUSH unslow:{{{key}}} x".into()];
        bad.requests = Some(200);
        let bad = run(bad);
        assert!(bad.refused > 100 && bad.errors[0].kind == "WRONGTYPE", "{:?}", bad.errors);
        assert_eq!(bad.answered + bad.refused, 200);
        with("EVALSHA", Some(500), &|s| {
            s.spec.script = Some(script.clone());
            s.spec.commands = vec!["EVALSHA {sha} 1 sum:{key} 2".into()];
        });
        let blocked = with("BLPOP", Some(16), &|s| s.spec.commands = vec!["BLPOP nothing:{key} 0.2".into()]);
        // A command that blocks for 200 ms on nothing cannot be answered earlier (but for the server's clock of
        // milliseconds).
        assert!(blocked.latency.us_p50 > 190_000.0 && blocked.commands[0].null_share == 1.0, "{:?}", blocked.latency);
        // What reaches a subscriber later than 200 ms after the last answer comes too late: on a busy machine that may
        // be.
        tried_while_busy(3, |_| {
            let mut heard = with("PUBLISH", None, &|s| {
                s.spec.mix = mix(&["publish"]);
                s.subscribers = 3;
                s.rate = Some(vec![2000.0]);
                s.length = Duration::from_millis(500);
            });
            let pubsub = heard.pubsub.take().unwrap();
            assert_eq!((heard.requests, pubsub.expected, pubsub.latency.count), (1000, 3000, pubsub.delivered));
            if pubsub.delivered == 3000 { Ok(()) } else { Err(format!("messages were lost: {pubsub:?}")) }
        });
    }
}

#[test]
fn a_recording_is_sent_again_at_its_own_pace() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("monitor.txt");
    // One write every 10 ms for half a second, then a pause of as long.
    let lines: String =
        (0..50).map(|i| format!("1700000000.{:06} [0 127.0.0.1:5] \"RPUSH\" \"log\" \"{i}\"\n", i * 10_000)).collect();
    std::fs::write(&path, lines + "1700000001.000000 [0 127.0.0.1:5] \"RPUSH\" \"log\" \"end\"\n").unwrap();
    let mut settings = settings(server.target());
    settings.connections = 1;
    settings.spec.replay = Some(path);
    settings.speed = Some(2.0);
    settings.length = Duration::from_secs(600);
    let run = run(settings);
    assert_clean(&run, "replay");
    assert_eq!(run.requests, 51);
    // The last one is due then, and not earlier.
    assert!(run.seconds >= 0.499, "twice as fast is half a second, not {}", run.seconds);
    let mut c = server.connect_with(&options(2)).unwrap();
    let list = c.call(&["LRANGE", "log", "0", "-1"]).unwrap();
    let sent: Vec<String> = list.items().iter().filter_map(|v| v.text()).collect();
    let expected: Vec<String> = (0..50).map(|i| i.to_string()).chain(["end".into()]).collect();
    assert_eq!(sent, expected, "in order, over one connection");
}

#[test]
fn a_recording_is_sent_once_unless_it_is_to_begin_again_and_nothing_dangerous_by_itself() {
    let server = standalone("valkey-9.1");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("commands.txt");
    let replay = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let mut settings = settings(server.target());
        (settings.length, settings.spec.replay) = (Duration::from_secs(600), Some(path.clone()));
        settings
    };
    let mut c = server.connect_with(&options(2)).unwrap();
    let mut counted = |settings: Settings| {
        let requests = run(settings).requests;
        let count = c.call(&["GETDEL", "count"]).unwrap().text().map_or(0, |n| n.parse().unwrap());
        assert_eq!(requests, count, "as many as the server counted");
        count
    };
    assert_eq!(counted(replay("INCR count\nINCR count\nINCR count\n")), 3, "once, over fifty connections");
    let mut more = replay("INCR count\n");
    more.requests = Some(7);
    assert_eq!(counted(more.clone()), 1, "more are not there");
    more.spec.replay_loop = true;
    assert_eq!(counted(more), 7);
    let refused = Session::prepare(replay("INCR count\n\nconfig set maxmemory 1\n"), &mut |_| {});
    let refused = refused.err().expect("a dangerous command").to_string();
    assert!(refused.contains("line 3: CONFIG SET") && refused.contains("--dangerous"), "{refused}");
    let mut template = settings(server.target());
    template.spec.commands = vec!["flushall".into()];
    let refused = Session::prepare(template.clone(), &mut |_| {}).err().expect("a dangerous command").to_string();
    assert!(refused.contains("FLUSHALL") && refused.contains("--dangerous"), "{refused}");
    (template.dangerous, template.requests) = (true, Some(2));
    assert_eq!(run(template).answered, 2);
}

#[test]
fn wrong_values_are_noticed() {
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    settings.spec.mix = mix(&["get"]);
    settings.spec.verify = true;
    settings.spec.keys = 10;
    settings.spec.key_distribution = "sequential".into();
    settings.requests = Some(1000);
    let mut session = prepare(settings);
    let mut c = server.connect_with(&options(2)).unwrap();
    c.call(&["SET", "unslow:000000000003", "somebody else's"]).unwrap();
    let (run, _) = session.run(&mut |_| {}).unwrap();
    assert_eq!(run.wrong_values, 100, "one of ten keys");
    assert!(!run.valid && run.doubts.iter().any(|d| d.contains("not the value")), "{:?}", run.doubts);
}

#[test]
fn a_rate_that_is_not_reached_is_said() {
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    // A command that takes 200 ms by itself, on one connection, 200 times a second.
    settings.spec.commands = vec!["BLPOP nothing 0.2".into()];
    settings.rate = Some(vec![200.0]);
    settings.length = Duration::from_millis(500);
    settings.timeout = Duration::from_secs(1);
    settings.connections = 1;
    let run = run(settings);
    assert_eq!(run.requests, 100);
    assert!(run.doubts.iter().any(|d| d.contains("200 requests/s were asked for")), "{:?}", run.doubts);
    // Most of them are given up a second after the end of the load, which is as long as they have waited at least.
    assert!(run.latency.us_p99 >= 0.999e6, "and the queue it makes is in the latency: {:?}", run.latency);
}

#[test]
fn errors_are_counted_by_their_kind_and_never_as_answers() {
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    settings.spec.mix = mix(&["set"]);
    settings.requests = Some(1000);
    let mut session = prepare(settings);
    server.connect_with(&options(2)).unwrap().call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let (run, _) = session.run(&mut |_| {}).unwrap();
    assert_eq!((run.answered, run.refused, run.latency.count), (0, 1000, 0));
    assert_eq!((run.errors[0].kind.as_str(), run.errors[0].count), ("OOM", 1000));
    assert!(!run.valid);
}

#[test]
fn what_the_server_will_not_do_is_said_before_the_run() {
    let deployment = deployment("valkey-9.1", Shape::MasterReplica { replicas: 1 }, &[]);
    let master = &deployment.nodes[0];
    master.connect_with(&options(2)).unwrap().call(&["RPUSH", "list", "a"]).unwrap();
    let refused = |target: Target, change: &dyn Fn(&mut Settings)| {
        let mut settings = settings(target);
        change(&mut settings);
        Session::prepare(settings, &mut |_| {}).err().expect("it is refused").to_string()
    };
    let command = |text: &'static str| move |s: &mut Settings| s.spec.commands = vec![text.into()];
    for (expected, change) in [
        ("knows no command FROBNICATE", command("FROBNICATE {key}")),
        ("GET takes 1 argument(s) and the command \"get\" gives it 2", command("GET {key} {key}")),
        ("changes what its connection is", command("SUBSCRIBE news")),
        ("keys of another type", command("GET list")),
    ] {
        let error = refused(master.target(), &change);
        assert!(error.contains(expected), "{error}");
    }
    let replica = deployment.nodes[1].target();
    let error = refused(replica, &|s| s.spec.mix = mix(&["set"]));
    assert!(error.contains("is a replica, and SET writes"), "{error}");
    let nobody = Target { endpoints: vec![Endpoint::Tcp("127.0.0.1".into(), 1)], ..master.target() };
    assert!(refused(nobody, &|_| {}).contains("refused"));
}
