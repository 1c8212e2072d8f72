//! `unslow sink` as a person starts it: the examples, signals, endpoints, and kill -9 of everything in turn.

mod common;

use std::io::Read;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use common::{Running, command, schema, stderr, stdout, unslow};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rdkafka::ClientConfig;
use rdkafka::client::ClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseRecord, DeliveryResult, Producer, ProducerContext, ThreadedProducer};
use unslow_client::Value;
use unslow_engine::{Deployment, Error, Kafka, Server, Shape, free_port, view};
use unslow_testkit::servers::deployment;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, options, standalone, until};

/// The binary with pipes on both sides.
fn start(arguments: &[&str]) -> Running {
    Running(command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Its status and what it said on stderr.
#[track_caller]
fn end(mut running: Running) -> (Option<i32>, String) {
    let mut said = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (running.ended(), said)
}

fn root(path: &str) -> String {
    format!("{}/../{path}", env!("CARGO_MANIFEST_DIR"))
}

fn integer(server: &Server, words: &[&str]) -> i64 {
    server.connect_with(&options(2)).unwrap().call(words).unwrap().integer().unwrap()
}

#[test]
fn the_examples_do_what_they_say() {
    let server = standalone("valkey-9.1");
    let (map, from, to) = (root("examples/users.toml"), root("examples/users.ndjson"), server.url());
    let basics = ["sink", "--map", &map, "--from", &from, "--to", &to, "--timeout", "60"];
    let dry = unslow(&[&basics[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(0), "{}", stderr(&dry));
    assert!(
        stdout(&dry)
            .contains("HSET user:1001 name Ada city London score 97.5 active true\nPEXPIRE user:1001 129600000\n")
    );
    assert_eq!(integer(&server, &["DBSIZE"]), 0, "a dry run writes nothing");
    // What it would send does not depend on a server that nobody named.
    let alone = unslow(&["sink", "--map", &map, "--from", &from, "--dry-run"]);
    assert_eq!((alone.status.code(), stdout(&alone)), (Some(0), stdout(&dry)), "{}", stderr(&alone));
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
    let server = standalone("valkey-9.1");
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
        let output = unslow(&[&["sink", "--to", &to, "--timeout", "60"], arguments].concat());
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
    let server = standalone("valkey-9.1");
    let (port, to) = (free_port("127.0.0.1").unwrap(), server.url());
    let metrics = format!("127.0.0.1:{port}");
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map.toml");
    std::fs::write(&map, "[[map]]\ncommands = [\"RPUSH l {n}\"]").unwrap();
    let map = map.display().to_string();
    let mut sink = start(&["sink", "--map", &map, "--to", &to, "--metrics", &metrics, "--timeout", "60"]);
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
    until("the metrics to count them", || get("/metrics").contains("unslow_sink_messages_done_total 10000"));
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
    until("the last", || integer(&server, &["LLEN", "l"]) == 10_001);
    sink.signal(libc::SIGINT);
    let (status, said) = end(sink);
    drop(input);
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("10001 messages in"), "{said}");
    assert_eq!(integer(&server, &["LLEN", "l"]), 10_001);

    // A server that hangs at the start: it says so, and ends.
    server.signal(libc::SIGSTOP);
    let (status, said) = end(start(&["sink", "--map", &map, "--to", &to, "--timeout", "1"]));
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

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Sink,
    Node,
    Broker,
}

const VICTIMS: [Victim; 3] = [Victim::Sink, Victim::Node, Victim::Broker];

/// UNSLOW_SEED makes it the same again.
fn seed() -> u64 {
    let seed = number("UNSLOW_SEED", rand::random());
    println!("UNSLOW_SEED={seed}");
    seed
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |n| n.parse().expect(name))
}

#[test]
fn kill_9_of_everything_in_turn_loses_nothing_and_counts_nothing_twice() {
    let mut rand = StdRng::seed_from_u64(seed());
    let mut victims = VICTIMS;
    victims.shuffle(&mut rand);
    kill_9(&victims, 30_000, rand);
}

/// UNSLOW_KILLS and UNSLOW_MESSAGES make it longer still.
#[test]
#[ignore = "long: twenty kills, a million messages"]
fn kill_9_of_everything_again_and_again_loses_nothing_and_counts_nothing_twice() {
    let mut rand = StdRng::seed_from_u64(seed());
    let victims: Vec<Victim> =
        (0..number("UNSLOW_KILLS", 20)).map(|_| VICTIMS[rand.random_range(0..VICTIMS.len())]).collect();
    kill_9(&victims, number("UNSLOW_MESSAGES", 1_000_000), rand);
}

/// Whether its replication stands: a master with its replica, a replica with its master; both are told by ROLE.
fn in_step(node: &Server) -> Result<bool, Error> {
    let role = node.connect_with(&options(2))?.call(&["ROLE"])?;
    let words: Vec<String> = role.items().iter().filter_map(Value::text).collect();
    Ok(match words[0].as_str() {
        "master" => role.items()[2].items().len() == 1,
        _ => words.iter().any(|w| w == "connected"),
    })
}

const KEYS: u64 = 1000;

/// Sends messages to the broker, from a thread.
struct Feeder {
    lost: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
    thread: JoinHandle<u64>,
}

impl Feeder {
    fn start(kafka: &Kafka, messages: u64) -> Feeder {
        let lost = Arc::new(AtomicU64::new(0));
        let producer: ThreadedProducer<Lost> = ClientConfig::new()
            .set("bootstrap.servers", kafka.address())
            .set("enable.idempotence", "true")
            .set("queue.buffering.max.messages", "1000000")
            .create_with_context(Lost(lost.clone()))
            .unwrap();
        let done = Arc::new(AtomicBool::new(false));
        let ended = done.clone();
        let thread = std::thread::spawn(move || {
            let mut n = 0;
            // As many as were asked for, and more until the last kill is over.
            while n < messages || !ended.load(Ordering::Acquire) {
                let (key, value) = ((n % KEYS).to_string(), format!("{{\"k\": {}, \"n\": {}}}", n % KEYS, n / KEYS));
                match producer.send(BaseRecord::to("numbers").key(&key).payload(&value)) {
                    Ok(()) => n += 1,
                    // Its queue is full while the broker is away.
                    Err(_) => std::thread::sleep(Duration::from_millis(20)),
                }
                if n >= messages || n % 200 == 0 {
                    std::thread::sleep(Duration::from_millis(2)); // the pace of the load, nothing is waited for
                }
            }
            producer.flush(PATIENCE).unwrap();
            n
        });
        Feeder { lost, done, thread }
    }

    /// Ends it; the number of messages sent.
    fn finish(self) -> u64 {
        self.done.store(true, Ordering::Release);
        let sent = self.thread.join().unwrap();
        assert_eq!(self.lost.load(Ordering::Relaxed), 0, "the producer lost some itself");
        sent
    }
}

/// Whether the topic, which is made by its first message, has its leaders. After a kill this says that the broker
/// works, not only that its port is open.
fn topic_is_there(asker: &BaseConsumer) -> bool {
    let Ok(metadata) = asker.fetch_metadata(None, Duration::from_secs(10)) else { return false };
    let topic = metadata.topics().iter().find(|t| t.name() == "numbers" && t.error().is_none());
    topic.is_some_and(|t| t.partitions().len() == 4 && t.partitions().iter().all(|p| p.leader() >= 0))
}

/// A sink between a broker and a cluster, all of which are killed. They end in the order of the fields.
struct Pipeline {
    sink: Running,
    asker: BaseConsumer,
    arguments: Vec<String>,
    _dir: tempfile::TempDir,
    deployment: Deployment,
    kafka: Kafka,
    rand: StdRng,
    /// Messages that were counted when last looked at.
    at: u64,
}

impl Pipeline {
    /// Starts the sink once the feeder has made the topic.
    fn start(kafka: Kafka, deployment: Deployment, rand: StdRng) -> Pipeline {
        let dir = tempfile::tempdir().unwrap();
        let map = dir.path().join("map.toml");
        std::fs::write(&map, "[[map]]\ncommands = [\"HINCRBY c:{k} n 1\", \"HSET c:{k} last {n}\"]").unwrap();
        let (map, brokers, to) = (map.display().to_string(), format!("kafka://{}", kafka.address()), deployment.url());
        let ends = ["sink", "--map", &map, "--from", &brokers, "--topic", "numbers", "--to", &to];
        let promises = ["--exactly-once", "--wait", "1", "--quiet", "--timeout", "60"];
        let arguments = [&ends[..], &promises, &["--kafka", "session.timeout.ms=6000"]].concat();
        let asker: BaseConsumer =
            ClientConfig::new().set("bootstrap.servers", kafka.address()).set("group.id", "asker").create().unwrap();
        until("the topic", || topic_is_there(&asker));
        let sink = start(&arguments);
        let arguments = arguments.into_iter().map(String::from).collect();
        Pipeline { sink, asker, arguments, _dir: dir, deployment, kafka, rand, at: 0 }
    }

    /// The sum of what was counted, and the least and the most of a key.
    fn counted(&self) -> Result<(u64, u64, u64), Error> {
        let (mut sum, mut low, mut high) = (0, u64::MAX, 0);
        for node in &self.deployment.nodes {
            let mut c = node.connect_with(&options(2))?;
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
    }

    /// Whether this many were counted. A sink that has ended by itself is a failure, not something to be started again.
    fn counts(&mut self, least: u64) -> Result<bool, Error> {
        if let Some(status) = self.sink.0.try_wait().unwrap() {
            let mut said = String::new();
            self.sink.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
            panic!("the sink ended by itself: {status}, {said}");
        }
        Ok(self.counted()?.0 >= least)
    }

    /// Waits until the sink is in the middle of its work: some messages after the last kill.
    fn advance(&mut self) {
        self.at += self.rand.random_range(200..2000u64);
        until_ok("the sink to go on", || self.counts(self.at));
        self.at = self.counted().map_or(self.at, |(sum, ..)| self.at.max(sum));
    }

    fn kill(&mut self, victim: Victim) {
        match victim {
            Victim::Sink => self.kill_sink(),
            Victim::Node => self.kill_node(),
            Victim::Broker => self.kill_broker(),
        }
    }

    fn kill_sink(&mut self) {
        println!("kill -9 of the sink at {} messages", self.at);
        self.sink.signal(libc::SIGKILL);
        self.sink.ended();
        // What it had sent may still be counted; what is counted after that was sent by the next one, which has started
        // then.
        until_ok("what the killed one had sent", || {
            let before = self.at;
            self.at = self.counted()?.0;
            Ok::<_, Error>(self.at == before)
        });
        let arguments: Vec<&str> = self.arguments.iter().map(String::as_str).collect();
        self.sink = start(&arguments);
    }

    fn kill_node(&mut self) {
        let nodes = &self.deployment.nodes;
        // The promise needs a replica in step at every kill.
        for node in nodes {
            until_ok("every node's replication", || in_step(node));
        }
        let number = self.rand.random_range(0..nodes.len());
        let node = &nodes[number];
        println!("kill -9 of node {number} at {} messages", self.at);
        node.kill();
        let beside = &nodes[(number + 1) % nodes.len()];
        until_ok("another node to own its slots", || {
            let view = view(&mut beside.connect_with(&options(2))?)?;
            Ok::<_, Error>(view.masters().all(|n| n.address != node.address()))
        });
        node.restart().unwrap();
        until_ok("its replication", || in_step(node));
    }

    fn kill_broker(&mut self) {
        println!("kill -9 of the broker at {} messages", self.at);
        self.kafka.kill();
        self.kafka.restart().unwrap();
        until("the broker to know the topic", || topic_is_there(&self.asker));
    }
}

fn kill_9(victims: &[Victim], messages: u64, rand: StdRng) {
    let kafka = Kafka::start(&["num.partitions=4"]).unwrap();
    let settings = [("cluster-node-timeout", "2000"), ("appendonly", "yes"), ("cluster-allow-replica-migration", "no")];
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &settings);
    let feeder = Feeder::start(&kafka, messages);
    let mut pipeline = Pipeline::start(kafka, deployment, rand);
    for victim in victims {
        pipeline.advance();
        pipeline.kill(*victim);
    }
    pipeline.advance();
    let sent = feeder.finish();
    until_ok("every message to be counted", || pipeline.counts(sent));
    let (sum, low, high) = pipeline.counted().unwrap();
    println!("{sent} messages, killed {victims:?}: counted {sum}, {low} to {high} a key");
    assert_eq!(sum, sent, "messages counted and sent");
    assert_eq!((low, high), (sent / KEYS, sent.div_ceil(KEYS)), "the least and the most counted of a key");
    pipeline.sink.signal(libc::SIGTERM);
    let (status, said) = end(pipeline.sink);
    assert_eq!(status, Some(0), "{said}");
}
