//! `unslow sink` as a person starts it: the examples, signals, endpoints, and kill -9 of everything in turn.

mod common;

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Running, command, engine, schema, stderr, stdout, unslow};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use unslow_client::Value;
use unslow_engine::{Deployment, Kafka, Server, ServerSpec, Shape, free_port, info, wait_for};

impl Running {
    fn start(arguments: &[&str]) -> Running {
        Running(command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// Its status and what it said on stderr.
    fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

fn server() -> Server {
    Server::start(&engine("valkey-9.1"), &ServerSpec::default()).unwrap()
}

fn root(path: &str) -> String {
    format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
}

fn integer(server: &Server, words: &[&str]) -> i64 {
    server.connect().unwrap().call(words).unwrap().integer().unwrap()
}

#[test]
fn the_examples_do_what_they_say() {
    let server = server();
    let (map, from, to) = (root("examples/users.toml"), root("examples/users.ndjson"), server.url());
    let basics = ["sink", "--map", &map, "--from", &from, "--to", &to];
    let dry = unslow(&[&basics[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(0), "{}", stderr(&dry));
    assert!(
        stdout(&dry)
            .contains("HSET user:1001 name Ada city London score 97.5 active true\nPEXPIRE user:1001 129600000\n")
    );
    assert_eq!(integer(&server, &["DBSIZE"]), 0, "a dry run writes nothing");
    let run = unslow(&basics);
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
    assert!(stderr(&run).contains("3 messages in"), "{}", stderr(&run));
    assert_eq!(integer(&server, &["DBSIZE"]), 4);
    let json = unslow(&[&basics[..], &["--format", "json", "--exactly-once"]].concat());
    let report: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
    schema("sink").validate(&report).unwrap();
    assert_eq!((report["messages_done"].as_u64(), report["dead_letters"].as_u64()), (Some(3), Some(0)));
}

#[test]
fn what_is_wrong_is_said_in_a_line() {
    let server = server();
    let (map, to) = (root("examples/users.toml"), server.url());
    for (arguments, word) in [
        (&["--map", "/no/map"][..], "/no/map"),
        (&["--map", &map, "--from", "ftp://x"], "unknown source ftp://"),
        (&["--map", &map, "--from", "redis://127.0.0.1:1"], "which stream"),
        (&["--map", &map, "--kafka", "sasl.password"], "NAME=VALUE"),
        (&["--map", &map, "--from", "kafka://127.0.0.1:1", "--topic", "t", "--dry-run"], "--dry-run reads files"),
        (&["--map", &map, "--from", "/dev/null", "--dead-letter", "topic:dead"], "only when messages come from Kafka"),
        (&["--map", &map, "--from", "/dev/null", "--metrics", "127.0.0.1:x"], "metrics at"),
    ] {
        let output = unslow(&[&["sink", "--to", &to, "--timeout", "2"], arguments].concat());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let said = stderr(&output);
        assert!(
            said.contains(word) && said.starts_with("unslow: ") && said.lines().count() == 1,
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn ends_politely_when_told_and_answers_a_scraper_until_then() {
    use std::io::Write;
    let server = server();
    let (port, to) = (free_port("127.0.0.1").unwrap(), server.url());
    let metrics = format!("127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map.toml");
    std::fs::write(&map, "[[map]]\ncommands = [\"RPUSH l {n}\"]").unwrap();
    let map = map.display().to_string();
    let mut sink = Running::start(&["sink", "--map", &map, "--to", &to, "--metrics", &metrics]);
    let mut input = sink.0.stdin.take().unwrap();
    for n in 0..10_000 {
        writeln!(input, "{{\"n\": {n}}}").unwrap();
    }
    input.flush().unwrap();
    let get = |path: &str| -> String {
        let Ok(mut stream) = std::net::TcpStream::connect(&metrics) else { return String::new() };
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    };
    wait_for("the metrics", Duration::from_secs(20), || {
        Ok(get("/metrics").contains("unslow_sink_messages_done_total 10000"))
    })
    .unwrap();
    let text = get("/metrics");
    for line in [
        "unslow_sink_batch_seconds_bucket{le=\"+Inf\"}",
        "unslow_sink_commands_total 10000",
        "unslow_sink_dead_letters_total 0",
    ] {
        assert!(text.contains(line), "{text}");
    }
    assert!(get("/healthz").contains("200 OK") && get("/readyz").contains("200 OK") && get("/x").contains("404"));
    // In the middle of a line: what is whole is written, the rest was never a message.
    write!(input, "{{\"n\": 10000}}\n{{\"n\": 100").unwrap();
    input.flush().unwrap();
    wait_for("the last", Duration::from_secs(20), || Ok(integer(&server, &["LLEN", "l"]) == 10_001)).unwrap();
    sink.signal(libc::SIGINT);
    let (status, said) = sink.end();
    drop(input);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("10001 messages in"), "{said}");
    assert_eq!(integer(&server, &["LLEN", "l"]), 10_001);

    // A server that hangs: asked to end, it says what is not committed, and ends.
    server.signal(libc::SIGSTOP);
    let hung = Running::start(&["sink", "--map", &map, "--to", &to, "--timeout", "1"]);
    let (status, said) = hung.end();
    server.signal(libc::SIGCONT);
    assert_eq!(status, Some(2), "{said}");
    assert!(said.contains("no answer"), "{said}");
}

/// Counts messages that did not reach the broker.
struct Lost(Arc<AtomicU64>);

impl ClientContext for Lost {}

impl ProducerContext for Lost {
    type DeliveryOpaque = ();
    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        self.0.fetch_add(u64::from(result.is_err()), Ordering::Relaxed);
    }
}

/// UNSLOW_KILLS, UNSLOW_MESSAGES and UNSLOW_SEED make it longer, or the same again.
#[test]
fn kill_9_of_everything_in_turn_loses_nothing_and_counts_nothing_twice() {
    const KEYS: u64 = 1000;
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |n| n.parse().unwrap());
    let (kills, messages) = (number("UNSLOW_KILLS", 6), number("UNSLOW_MESSAGES", 200_000));
    let seed = number("UNSLOW_SEED", rand::random());
    println!("seed {seed}");
    let mut rand = StdRng::seed_from_u64(seed);
    let kafka = Kafka::start(&["num.partitions=4"]).unwrap();
    let settings = [("cluster-node-timeout", "1000"), ("appendonly", "yes"), ("cluster-allow-replica-migration", "no")];
    let settings = settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let spec = ServerSpec { settings, ..ServerSpec::default() };
    let deployment = Deployment::start(&engine("valkey-9.1"), &Shape::six_nodes(), &spec).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map.toml");
    std::fs::write(&map, "[[map]]\ncommands = [\"HINCRBY c:{k} n 1\", \"HSET c:{k} last {n}\"]").unwrap();
    let (map, brokers, to) = (map.display().to_string(), format!("kafka://{}", kafka.address()), deployment.url());
    let arguments = [
        "sink",
        "--map",
        &map,
        "--from",
        &brokers,
        "--topic",
        "numbers",
        "--to",
        &to,
        "--exactly-once",
        "--wait",
        "1",
        "--quiet",
        "--kafka",
        "session.timeout.ms=6000",
    ];
    let lost = Arc::new(AtomicU64::new(0));
    let producer: ThreadedProducer<Lost> = ClientConfig::new()
        .set("bootstrap.servers", kafka.address())
        .set("enable.idempotence", "true")
        .set("queue.buffering.max.messages", "1000000")
        .create_with_context(Lost(lost.clone()))
        .unwrap();
    let (done, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (ended, count) = (done.clone(), sent.clone());
    let feeder = std::thread::spawn(move || {
        let mut n = 0;
        // As many as were asked for, and on until the last kill is over.
        while n < messages || !ended.load(Ordering::Acquire) {
            let (key, value) = ((n % KEYS).to_string(), format!("{{\"k\": {}, \"n\": {}}}", n % KEYS, n / KEYS));
            match producer.send(BaseRecord::to("numbers").key(&key).payload(&value)) {
                Ok(()) => n += 1,
                Err(_) => std::thread::sleep(Duration::from_millis(20)), // its queue is full while the broker is away
            }
            if n >= messages || n % 200 == 0 {
                std::thread::sleep(Duration::from_millis(2)); // the pace of the load, nothing is waited for
            }
            count.store(n, Ordering::Release);
        }
        producer.flush(Duration::from_secs(120)).unwrap();
        n
    });
    wait_for("a first message", Duration::from_secs(30), || Ok(sent.load(Ordering::Acquire) > 1000)).unwrap();
    std::thread::sleep(Duration::from_millis(500)); // the topic is made by its first message
    let mut sink = Running::start(&arguments);
    let begun = Instant::now();
    let mut killed = [0; 3];
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(rand.random_range(200..1500)));
        let what = rand.random_range(0..3);
        killed[what] += 1;
        match what {
            0 => {
                sink.signal(libc::SIGKILL);
                sink = Running::start(&arguments);
            }
            1 => {
                let node = rand.random_range(0..deployment.nodes.len());
                deployment.nodes[node].kill();
                wait_for("another master", Duration::from_secs(60), || {
                    let beside = &deployment.nodes[(node + 1) % deployment.nodes.len()];
                    let mut c = beside.connect()?;
                    Ok(info(&mut c, "cluster").is_ok()
                        && c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_slots_ok:16384"))
                })
                .unwrap();
                deployment.nodes[node].restart().unwrap();
                // The promise needs a replica in step at every kill: both roles are told by ROLE.
                wait_for("its replication", Duration::from_secs(60), || {
                    let role = deployment.nodes[node].connect()?.call(&["ROLE"])?;
                    let words: Vec<String> = role.items().iter().filter_map(Value::text).collect();
                    Ok(match words[0].as_str() {
                        "master" => role.items()[2].items().len() == 1,
                        _ => words.iter().any(|w| w == "connected"),
                    })
                })
                .unwrap_or_else(|e| panic!("kill {kill} of node {node}: {e}"));
            }
            _ => {
                kafka.kill();
                kafka.restart().unwrap();
            }
        }
        // One that has ended by itself is a failure, not something to be started again.
        if let Ok(Some(status)) = sink.0.try_wait() {
            panic!("the sink ended by itself: {status}, {}", sink.end().1);
        }
    }
    done.store(true, Ordering::Release);
    let sent = feeder.join().unwrap();
    assert_eq!(lost.load(Ordering::Relaxed), 0, "the producer lost some itself");
    let counted = || -> Result<(u64, u64, u64), unslow_engine::Error> {
        let (mut sum, mut low, mut high) = (0, u64::MAX, 0);
        for node in &deployment.nodes {
            let mut c = node.connect()?;
            if c.call(&["ROLE"])?.items()[0].text().as_deref() != Some("master") {
                continue;
            }
            let keys = c.call(&["KEYS", "c:*"])?;
            let ask: Vec<Vec<String>> =
                keys.items().iter().filter_map(Value::text).map(|k| vec!["HGET".into(), k, "n".into()]).collect();
            for n in c.pipeline(&ask)?.into_iter().filter_map(|r| r.ok()?.integer()) {
                (sum, low, high) = (sum + n as u64, low.min(n as u64), high.max(n as u64));
            }
        }
        Ok((sum, low, high))
    };
    let reached = wait_for("every message to be counted", Duration::from_secs(180), || Ok(counted()?.0 >= sent));
    let (sum, low, high) = counted().unwrap();
    println!(
        "seed {seed}: {sent} messages, kill -9 of the sink {}, of a node {}, of the broker {} times in {:.0} s: counted {sum}, {low} to {high} a key",
        killed[0],
        killed[1],
        killed[2],
        begun.elapsed().as_secs_f64()
    );
    assert!(reached.is_ok() && sum == sent, "seed {seed}: {sum} counted, {sent} sent");
    assert_eq!((low, high), (sent / KEYS, sent.div_ceil(KEYS)), "seed {seed}");
    sink.signal(libc::SIGTERM);
    let (status, said) = sink.end();
    assert_eq!(status, Some(0), "{said}");
}
