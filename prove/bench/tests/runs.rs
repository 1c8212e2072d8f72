//! Runs against real servers: what is measured is what happened.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use unslow_bench::{Arrivals, Model, Progress, ReadFrom, Run, Session, Settings, Spec};
use unslow_client::{Endpoint, Options, Target};
use unslow_engine::{Deployment, Server, ServerSpec, Shape, find};

/// One run at a time: they all want the processors.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Light and short, so that what differs is what a test is about.
fn settings(target: Target) -> Settings {
    let timeout = Duration::from_secs(3);
    Settings {
        target,
        options: Options { connect_timeout: timeout, command_timeout: timeout, protocol: 3, ..Options::default() },
        spec: Spec { keys: 1000, ..Spec::default() },
        model: Model::Own,
        connections: 8,
        pipeline: 1,
        callers: None,
        threads: 1,
        rate: None,
        arrivals: Arrivals::Constant,
        speed: None,
        length: Duration::from_secs(1),
        requests: None,
        timeout,
        read_from: ReadFrom::Primary,
        // The machine's other work must not fail a test.
        lateness_max: Duration::from_secs(1),
        subscribers: 0,
        rings: false,
    }
}

fn mix(names: &[&str]) -> BTreeMap<String, f64> {
    names.iter().map(|n| (n.to_string(), 1.0)).collect()
}

fn run(settings: Settings) -> Run {
    Session::prepare(settings, &mut |_| {}).unwrap().run(&mut |_| {}).unwrap().0
}

fn standalone(name: &str) -> Server {
    Server::start(&find(name).unwrap(), &ServerSpec::default()).unwrap()
}

/// Runs, and calls `act` when second `at_s` is over.
fn run_and(settings: Settings, at_s: u32, act: impl Fn()) -> Run {
    let mut session = Session::prepare(settings, &mut |_| {}).unwrap();
    let observer = &mut |progress: Progress| {
        if let Progress::Second(second, _) = progress
            && second.at_s == at_s
        {
            act();
        }
    };
    session.run(observer).unwrap().0
}

/// Nothing lost, nothing twice, nothing wrong.
fn assert_clean(run: &Run, what: &str) {
    assert!(run.errors.is_empty() && run.unanswered == 0 && run.refused == 0, "{what}: {:?}", run.errors);
    assert_eq!(run.answered, run.requests, "{what}");
    assert_eq!(run.latency.count, run.requests, "{what}");
    assert_eq!(run.wrong_values, 0, "{what}");
    assert_eq!(run.timeline.iter().map(|s| s.answered).sum::<u64>(), run.answered, "{what}");
}

#[test]
fn a_server_that_freezes_is_charged_for_every_request_it_kept_waiting() {
    let _alone = alone();
    const RATE: f64 = 20_000.0;
    const LENGTH: f64 = 10.0;
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    settings.connections = 50;
    settings.spec.mix = mix(&["get"]);
    // How fast the backlog can be worked off.
    let closed = settings.clone();
    let before = run(closed.clone()).throughput_per_s;
    settings.rate = Some(vec![RATE]);
    settings.length = Duration::from_secs_f64(LENGTH);
    let mut session = Session::prepare(settings, &mut |_| {}).unwrap();
    let (tell, told) = std::sync::mpsc::channel::<()>();
    let (run, frozen) = std::thread::scope(|scope| {
        let server = &server;
        let freezer = scope.spawn(move || {
            told.recv().unwrap();
            let begun = Instant::now();
            server.signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_secs(2));
            server.signal(libc::SIGCONT);
            begun.elapsed().as_secs_f64()
        });
        let observer = &mut |progress: Progress| {
            if let Progress::Second(second, _) = progress
                && second.at_s == 3
            {
                tell.send(()).unwrap();
            }
        };
        let run = session.run(observer).unwrap().0;
        (run, freezer.join().unwrap())
    });
    assert_clean(&run, "frozen");
    let after = self::run(closed).throughput_per_s;
    // A request due x seconds into the freeze waits for its end, and then for the x * RATE ones before it. How fast those are
    // worked off is known as well as the machine is steady.
    let truth = |q: f64, catching_up: f64| {
        let x = (1.0 - q) * LENGTH;
        frozen - x + x * RATE / catching_up
    };
    for (name, seen_us, q) in [("p90", run.latency.us_p90, 0.90), ("p99", run.latency.us_p99, 0.99)] {
        let (least, most) = (truth(q, before.max(after)), truth(q, before.min(after)));
        let seen = seen_us / 1e6;
        println!("{name}: {seen:.3} s, the truth {least:.3} to {most:.3} s");
        assert!(
            seen > least * 0.95 && seen < most * 1.05,
            "{name} is {seen:.3} s, the truth {least:.3} to {most:.3} s"
        );
    }
    assert!(run.latency.us_p50 < 10_000.0, "most requests had no part in it: p50 {} us", run.latency.us_p50);
    assert!(run.timeline.iter().any(|s| s.answered < 1000), "the outage is a second of its own");
}

#[test]
fn every_shape_of_deployment_and_both_protocols_answer_everything() {
    let _alone = alone();
    for name in ["valkey-9.1", "redis-7.0", "redis-6.2", "redis-5.0"] {
        let engine = find(name).unwrap();
        for (shape_name, shape) in [
            ("standalone", Shape::Standalone),
            ("cluster", Shape::six_nodes()),
            ("sentinel", Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 }),
        ] {
            let deployment = Deployment::start(&engine, &shape, &ServerSpec::default()).unwrap();
            let target = Target::parse(&deployment.url()).unwrap();
            for protocol in [2, 3] {
                let mut settings = settings(target.clone());
                settings.options.protocol = protocol;
                settings.spec.verify = true;
                settings.length = Duration::from_millis(400);
                settings.pipeline = if protocol == 2 { 1 } else { 16 };
                let run = run(settings);
                let what = format!("{name} {shape_name} RESP{protocol}");
                assert_clean(&run, &what);
                assert!(run.requests > 1000, "{what}: {} requests", run.requests);
                assert!(run.commands.iter().all(|c| c.null_share == 0.0), "{what}: every key was written before");
                assert!(run.verified_values > 1000, "{what}: {} values", run.verified_values);
                assert_eq!(run.moved, 0, "{what}: sent to the owner at once");
                let busy: Vec<_> = run.servers.iter().filter(|s| s.commands.unwrap_or(0) > 100).collect();
                assert_eq!(busy.len(), if shape_name == "cluster" { 3 } else { 1 }, "{what}: {:?}", run.servers);
                assert!(busy.iter().all(|s| s.cpu_s.unwrap() > 0.0) && run.generator.cpu_us_per_request > 0.0);
            }
        }
    }
}

#[test]
fn a_run_goes_on_through_the_death_of_a_cluster_master() {
    let _alone = alone();
    let spec = ServerSpec { settings: vec![("cluster-node-timeout".into(), "1000".into())], ..ServerSpec::default() };
    for (name, hang) in [("valkey-9.1", false), ("redis-7.0", true)] {
        let deployment = Deployment::start(&find(name).unwrap(), &Shape::six_nodes(), &spec).unwrap();
        let mut settings = settings(Target::parse(&deployment.url()).unwrap());
        settings.rate = Some(vec![3000.0]);
        settings.length = Duration::from_secs(12);
        settings.timeout = Duration::from_secs(2);
        let victim = &deployment.nodes[1];
        let run = run_and(settings, 1, || if hang { victim.signal(libc::SIGSTOP) } else { victim.kill() });
        let table: Vec<_> = run.timeline.iter().map(|s| (s.at_s, s.answered, &s.error_kinds, s.waiting)).collect();
        assert_eq!(run.requests, 36_000, "{name}: every request has an outcome: {table:?}");
        assert_eq!(run.latency.count, run.answered + run.unanswered, "{name}");
        assert!(run.answered > 24_000, "{name}: {table:?}");
        let first = &run.timeline[0];
        assert!(first.answered >= 2900 && first.errors == 0, "{name}: {table:?}");
        let during = &run.timeline[2];
        assert!(during.answered < 2700 && during.answered > 1000, "{name}: two thirds go on: {table:?}");
        let last = run.timeline.iter().rfind(|s| s.at_s < 12).unwrap();
        assert!(last.answered >= 2900 && last.errors == 0, "{name}: the promoted replica serves: {table:?}");
        let promoted = deployment.nodes[4].address();
        let moved = run.events.iter().any(|e| e.text.contains("slots moved from") && e.text.contains(&promoted));
        assert!(moved, "{name}: {:?}", run.events);
    }
}

#[test]
fn a_run_goes_on_through_a_failover_by_sentinel() {
    let _alone = alone();
    let shape = Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 };
    let deployment = Deployment::start(&find("valkey-9.1").unwrap(), &shape, &ServerSpec::default()).unwrap();
    for sentinel in &deployment.sentinels {
        let mut c = sentinel.connect().unwrap();
        c.call(&["SENTINEL", "SET", "mymaster", "down-after-milliseconds", "1000"]).unwrap();
        c.call(&["SENTINEL", "SET", "mymaster", "failover-timeout", "3000"]).unwrap();
    }
    let sentinels: Vec<String> = deployment.sentinels.iter().map(|s| s.address()).collect();
    let mut settings = settings(Target::parse(&format!("redis+sentinel://{}/mymaster", sentinels.join(","))).unwrap());
    settings.rate = Some(vec![2000.0]);
    settings.length = Duration::from_secs(15);
    let run = run_and(settings, 1, || deployment.nodes[0].kill());
    let table: Vec<_> = run.timeline.iter().map(|s| (s.at_s, s.answered, &s.error_kinds)).collect();
    assert_eq!(run.requests, 30_000, "{table:?}");
    let last = run.timeline.iter().rfind(|s| s.at_s < 15).unwrap();
    assert!(last.answered >= 1900 && last.errors == 0, "the new master serves: {table:?}");
    let promoted = deployment.nodes[1].address();
    assert!(run.events.iter().any(|e| e.text.contains(&format!("{promoted} took over"))), "{:?}", run.events);
}

#[test]
fn slots_that_move_are_followed_without_an_error() {
    let _alone = alone();
    for name in ["valkey-9.1", "redis-5.0"] {
        let deployment = Deployment::start(&find(name).unwrap(), &Shape::six_nodes(), &ServerSpec::default()).unwrap();
        let mut settings = settings(Target::parse(&deployment.url()).unwrap());
        settings.spec.keys = 20; // so that every slot of them is asked all the time
        settings.spec.verify = true;
        settings.length = Duration::from_secs(3);
        let run = run_and(settings, 0, || move_slots(&deployment, 20));
        assert_clean(&run, name);
        assert!(run.moved > 0 && run.ask > 0, "{name}: {} MOVED, {} ASK", run.moved, run.ask);
    }
}

/// Moves the slots of the first keys from the first master to the second, key by key, as redis-cli does.
fn move_slots(deployment: &Deployment, keys: u64) {
    let (from, to) = (&deployment.nodes[0], &deployment.nodes[1]);
    let (mut a, mut b) = (from.connect().unwrap(), to.connect().unwrap());
    let id = |c: &mut unslow_client::Connection| c.call(&["CLUSTER", "MYID"]).unwrap().text().unwrap();
    let (a_id, b_id) = (id(&mut a), id(&mut b));
    let own = unslow_engine::view(&mut a).unwrap().myself().unwrap().slots.clone();
    for key in 0..keys {
        let key = format!("unslow:{key:012}");
        let slot = unslow_topology::slot_of(key.as_bytes());
        if !own.contains(slot) {
            continue;
        }
        let s = slot.to_string();
        b.call(&["CLUSTER", "SETSLOT", &s, "IMPORTING", &a_id]).unwrap();
        a.call(&["CLUSTER", "SETSLOT", &s, "MIGRATING", &b_id]).unwrap();
        let (host, port) = to.address().rsplit_once(':').map(|(h, p)| (h.to_string(), p.to_string())).unwrap();
        a.call(&["MIGRATE", &host, &port, &key, "0", "5000"]).unwrap();
        // Long enough to be asked for in between.
        std::thread::sleep(Duration::from_millis(30));
        // The new owner first, as redis-cli: otherwise both send clients to each other until the second one hears of it.
        for node in [to, from, &deployment.nodes[2]] {
            node.connect().unwrap().call(&["CLUSTER", "SETSLOT", &s, "NODE", &b_id]).unwrap();
        }
    }
}

#[test]
fn a_pool_lets_callers_wait_and_a_shared_connection_does_not() {
    let _alone = alone();
    let server = standalone("valkey-9.1");
    let with = |model: Model| {
        let mut settings = settings(server.target());
        settings.model = model;
        settings.callers = Some(32);
        let run = run(settings);
        assert_clean(&run, &model.to_string());
        run
    };
    let pool = with(Model::Pool(2));
    let wait = pool.pool_wait.clone().unwrap();
    // Of 32 callers 30 wait at any time: that is fifteen sixteenths of what they see.
    assert!(wait.us_p50 > pool.latency.us_p50 * 0.8, "{wait:?} of {:?}", pool.latency);
    assert_eq!(wait.count, pool.requests);
    let shared = with(Model::Shared);
    assert!(shared.pool_wait.as_ref().unwrap().us_p50 < shared.latency.us_p50 * 0.5);
    let cpu = |run: &Run| run.servers[0].cpu_us_per_command.unwrap();
    assert!(cpu(&shared) < cpu(&pool), "packed requests are cheaper");
    with(Model::Multiplex(4));
    let mut two = settings(server.target());
    two.model = Model::Pool(4);
    two.callers = Some(8);
    two.threads = 2;
    let two = run(two);
    assert_clean(&two, "two threads");
    assert_eq!(two.generator.thread_busy_share.len(), 2);
}

#[test]
fn a_number_of_requests_is_sent_exactly_and_the_same_seed_sends_the_same() {
    let _alone = alone();
    let server = standalone("valkey-9.1");
    let written = |seed: u64, threads: usize| {
        let mut c = server.connect().unwrap();
        c.call(&["FLUSHALL"]).unwrap();
        c.call(&["CONFIG", "RESETSTAT"]).unwrap();
        let mut settings = settings(server.target());
        settings.spec.mix = mix(&["set", "incr"]);
        settings.spec.seed = seed;
        settings.spec.keys = 50;
        settings.threads = threads;
        settings.requests = Some(10_001);
        settings.length = Duration::from_secs(60);
        let run = run(settings);
        assert_clean(&run, "counted");
        assert_eq!(run.requests, 10_001);
        let info = unslow_engine::info(&mut c, "commandstats").unwrap();
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
    let _alone = alone();
    for shape in [Shape::six_nodes(), Shape::MasterReplica { replicas: 1 }] {
        let deployment = Deployment::start(&find("valkey-9.1").unwrap(), &shape, &ServerSpec::default()).unwrap();
        for (read_from, share) in [(ReadFrom::Replica, 1.0), (ReadFrom::Any, 0.5)] {
            let mut settings = settings(Target::parse(&deployment.url()).unwrap());
            settings.read_from = read_from;
            settings.spec.mix = BTreeMap::from([("get".into(), 0.5), ("set".into(), 0.5)]);
            let mut session = Session::prepare(settings, &mut |_| {}).unwrap();
            let before = gets(&deployment);
            let run = session.run(&mut |_| {}).unwrap().0;
            assert_clean(&run, "replicas");
            let after = gets(&deployment);
            let new = |n: &std::sync::Arc<Server>| (after[&n.address()] - before[&n.address()]) as f64;
            let all: f64 = deployment.nodes.iter().map(new).sum();
            let seen = deployment.nodes[deployment.nodes.len() / 2..].iter().map(new).sum::<f64>() / all;
            assert!((seen - share).abs() < 0.05, "{read_from:?}: {seen} of the reads went to replicas");
        }
    }
}

#[test]
fn reads_go_on_at_replicas_when_a_master_becomes_one() {
    let _alone = alone();
    let deployment =
        Deployment::start(&find("valkey-9.1").unwrap(), &Shape::six_nodes(), &ServerSpec::default()).unwrap();
    let mut settings = settings(Target::parse(&deployment.url()).unwrap());
    settings.read_from = ReadFrom::Any;
    settings.spec.mix = mix(&["get"]);
    settings.rate = Some(vec![3000.0]);
    settings.connections = 4;
    settings.length = Duration::from_secs(6);
    // By hand: everybody stays up, and the old master keeps its clients.
    let run = run_and(settings, 1, || {
        deployment.nodes[3].connect().unwrap().call(&["CLUSTER", "FAILOVER"]).unwrap();
    });
    let table: Vec<_> = run.timeline.iter().map(|s| (s.at_s, s.answered, &s.error_kinds, s.moved)).collect();
    assert_eq!((run.requests, run.unanswered), (18_000, 0), "{table:?} {:?}", run.errors);
    let last = run.timeline.iter().rfind(|s| s.at_s < 6).unwrap();
    assert!(last.answered >= 2900 && last.moved == 0 && last.waiting < 100, "{table:?}");
}

fn gets(deployment: &Deployment) -> BTreeMap<String, u64> {
    let calls = |n: &Server| {
        let info = unslow_engine::info(&mut n.connect().unwrap(), "commandstats").unwrap();
        info.command_stats().get("get").map_or(0, |s| s.calls)
    };
    deployment.nodes.iter().map(|n| (n.address(), calls(n))).collect()
}

#[test]
fn transactions_scripts_blocking_commands_and_messages_work() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("add.lua");
    std::fs::write(&script, "return redis.call('INCRBY', KEYS[1], ARGV[1])").unwrap();
    for shape in [Shape::Standalone, Shape::six_nodes()] {
        let deployment = Deployment::start(&find("valkey-9.1").unwrap(), &shape, &ServerSpec::default()).unwrap();
        let with = |what: &str, change: &dyn Fn(&mut Settings)| {
            let mut settings = settings(Target::parse(&deployment.url()).unwrap());
            settings.length = Duration::from_millis(500);
            change(&mut settings);
            let run = run(settings);
            assert_clean(&run, what);
            run
        };
        let block = with("MULTI", &|s| {
            s.spec.multi = 3;
            s.spec.mix = mix(&["incr", "set"]);
        });
        assert!(block.requests > 100);
        // A block with a command that fails is no answer, though EXEC's reply is an array and no error.
        let mut bad = settings(Target::parse(&deployment.url()).unwrap());
        bad.spec.multi = 2;
        bad.spec.mix = mix(&["set", "lpush"]);
        bad.spec.keys = 5;
        bad.spec.commands = vec!["lpush=LPUSH unslow:{{{key}}} x".into()];
        bad.requests = Some(200);
        let bad = run(bad);
        assert!(bad.refused > 100 && bad.errors[0].kind == "WRONGTYPE", "{:?}", bad.errors);
        assert_eq!(bad.answered + bad.refused, 200);
        let scripted = with("EVALSHA", &|s| {
            s.spec.script = Some(script.clone());
            s.spec.commands = vec!["EVALSHA {sha} 1 sum:{key} 2".into()];
        });
        assert!(scripted.requests > 100);
        let blocked = with("BLPOP", &|s| {
            s.spec.commands = vec!["BLPOP nothing:{key} 0.2".into()];
            s.length = Duration::from_secs(1);
        });
        assert!(blocked.latency.us_p50 > 190_000.0 && blocked.commands[0].null_share == 1.0, "{:?}", blocked.latency);
        let mut heard = with("PUBLISH", &|s| {
            s.spec.mix = mix(&["publish"]);
            s.subscribers = 3;
            s.rate = Some(vec![2000.0]);
        });
        let pubsub = heard.pubsub.take().unwrap();
        assert_eq!((pubsub.delivered, pubsub.expected), (heard.requests * 3, heard.requests * 3), "{pubsub:?}");
        assert!(pubsub.latency.us_p50 > 1.0 && pubsub.latency.us_p50 < 1e6, "{pubsub:?}");
    }
}

#[test]
fn a_recording_is_sent_again_at_its_own_pace() {
    let _alone = alone();
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
    settings.requests = Some(51);
    let run = run(settings);
    assert_clean(&run, "replay");
    assert_eq!(run.requests, 51);
    assert!(run.seconds >= 0.499, "twice as fast is half a second, not {}", run.seconds);
    let list = server.connect().unwrap().call(&["LRANGE", "log", "0", "-1"]).unwrap();
    let sent: Vec<String> = list.items().iter().filter_map(|v| v.text()).collect();
    let expected: Vec<String> = (0..50).map(|i| i.to_string()).chain(["end".into()]).collect();
    assert_eq!(sent, expected, "in order, over one connection");
}

#[test]
fn wrong_values_are_noticed() {
    let _alone = alone();
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    settings.spec.mix = mix(&["get"]);
    settings.spec.verify = true;
    settings.spec.keys = 10;
    settings.spec.key_distribution = "sequential".into();
    settings.requests = Some(1000);
    let mut session = Session::prepare(settings, &mut |_| {}).unwrap();
    server.connect().unwrap().call(&["SET", "unslow:000000000003", "somebody else's"]).unwrap();
    let (run, _) = session.run(&mut |_| {}).unwrap();
    assert_eq!(run.wrong_values, 100, "one of ten keys");
    assert!(!run.valid && run.doubts.iter().any(|d| d.contains("not the value")), "{:?}", run.doubts);
}

#[test]
fn a_rate_that_is_not_reached_is_said() {
    let _alone = alone();
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    // A command of some milliseconds, on one connection, far more often than that.
    let spin = "local x=0 for i=1,300000 do x=x+i end return x";
    settings.spec.commands = vec![format!("EVAL \"{spin}\" 0")];
    settings.rate = Some(vec![5000.0]);
    settings.length = Duration::from_secs(2);
    settings.connections = 1;
    let run = run(settings);
    assert!(run.doubts.iter().any(|d| d.contains("5000 requests/s were asked for")), "{:?}", run.doubts);
    assert!(run.latency.us_p99 > 1e6, "and the queue it makes is in the latency: {:?}", run.latency);
}

#[test]
fn errors_are_counted_by_their_kind_and_never_as_answers() {
    let _alone = alone();
    let server = standalone("valkey-9.1");
    let mut settings = settings(server.target());
    settings.spec.mix = mix(&["set"]);
    settings.requests = Some(1000);
    let mut session = Session::prepare(settings, &mut |_| {}).unwrap();
    server.connect().unwrap().call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let (run, _) = session.run(&mut |_| {}).unwrap();
    assert_eq!((run.answered, run.refused, run.latency.count), (0, 1000, 0));
    assert_eq!((run.errors[0].kind.as_str(), run.errors[0].count), ("OOM", 1000));
    assert!(!run.valid);
}

#[test]
fn what_the_server_will_not_do_is_said_before_the_run() {
    let _alone = alone();
    let shape = Shape::MasterReplica { replicas: 1 };
    let deployment = Deployment::start(&find("valkey-9.1").unwrap(), &shape, &ServerSpec::default()).unwrap();
    let master = &deployment.nodes[0];
    master.connect().unwrap().call(&["RPUSH", "list", "a"]).unwrap();
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
