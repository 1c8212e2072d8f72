//! The sink behind Kafka: a real broker that is killed and comes back, groups whose members come and go, letters to a
//! topic; and librdkafka's own mock cluster for what needs no Java.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::{BaseProducer, BaseRecord, DefaultProducerContext, Producer, ThreadedProducer};
use unslow_client::{Connection, Target, Value};
use unslow_engine::{Error, Kafka, Server};
use unslow_sink::{BrokerError, Config, Sink, Snapshot, SourceError, Start};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, options, standalone, until};

/// Where messages go to.
#[track_caller]
fn server() -> Server {
    standalone("valkey-9.1")
}

#[track_caller]
fn connect(server: &Server) -> Connection {
    server.connect_with(&options(2)).unwrap()
}

type Notes = Arc<Mutex<Vec<String>>>;
/// Why a sink does not start, or has ended.
type Failure = unslow_sink::Error;

fn start(
    map: &str,
    brokers: &str,
    topic: &str,
    to: &Server,
    change: impl FnOnce(&mut Config),
) -> Result<(Sink, Notes), Failure> {
    let mut config = Config::parse(map)?;
    config.from = format!("kafka://{brokers}");
    config.topics = vec![topic.to_string()];
    change(&mut config);
    let notes = Notes::default();
    let heard = notes.clone();
    let note = Arc::new(move |text: &str| heard.lock().unwrap().push(text.to_string()));
    let target = Target::parse(&to.url()).unwrap();
    let start = Start { config, target, options: options(2), stream: None, note };
    Ok((Sink::start(start)?, notes))
}

fn run(
    map: &str,
    brokers: &str,
    topic: &str,
    to: &Server,
    change: impl FnOnce(&mut Config),
) -> Result<Snapshot, Failure> {
    start(map, brokers, topic, to, |c| {
        c.until_end = true;
        change(c);
    })?
    .0
    .join()
}

fn producer(brokers: &str) -> ThreadedProducer<DefaultProducerContext> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers).set("linger.ms", "5").set("enable.idempotence", "true");
    config.set("queue.buffering.max.messages", "2000000").set("compression.type", "zstd");
    config.create().unwrap()
}

/// Numbers from..to, each key's in order; key k is n % 100.
fn produce(brokers: &str, topic: &str, from: u64, to: u64) {
    let producer = producer(brokers);
    for n in from..to {
        let (key, value) = ((n % 100).to_string(), format!("{{\"k\": {}, \"n\": {}}}", n % 100, n / 100));
        producer.send(BaseRecord::to(topic).key(&key).payload(&value)).map_err(|(e, _)| e).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
}

fn texts(value: &Value) -> Vec<String> {
    value.items().iter().filter_map(Value::text).collect()
}

fn exact(c: &mut Connection, sent: u64) {
    for key in 0..100 {
        let list = texts(&c.call(&["LRANGE", &format!("log:{key}"), "0", "-1"]).unwrap());
        let expected: Vec<String> = (0..sent / 100).map(|n| n.to_string()).collect();
        assert!(list == expected, "log:{key} has {} entries, {} were sent", list.len(), expected.len());
    }
}

const LISTS: &str = "exactly_once = true\n[[map]]\ncommands = [\"RPUSH log:{k} {n}\"]";

#[test]
fn topics_are_written_once_and_offsets_committed() {
    let kafka = Kafka::start(&["num.partitions=4"]).unwrap();
    let (brokers, to) = (kafka.address(), server());
    produce(&brokers, "numbers", 0, 50_000);
    let done = run("[[map]]\ncommands = [\"RPUSH log:{k} {n}\"]", &brokers, "numbers", &to, |_| {}).unwrap();
    assert_eq!((done.done, done.dead), (50_000, 0));
    let mut c = connect(&to);
    exact(&mut c, 50_000);
    assert_eq!(run(LISTS, &brokers, "numbers", &to, |_| {}).unwrap().read, 0, "it was committed");
    // Another group reads it all again, and the marks of the first run are not its marks.
    c.call(&["FLUSHALL"]).unwrap();
    for _ in 0..2 {
        run(LISTS, &brokers, "numbers", &to, |c| c.group = "second".into()).unwrap();
    }
    exact(&mut c, 50_000);
    // The same marks under another group: read again, and nothing changes.
    let again = run(LISTS, &brokers, "numbers", &to, |c| {
        c.group = "third".into();
        c.marks = "second".into();
    });
    assert_eq!(again.unwrap().read, 50_000);
    exact(&mut c, 50_000);

    // Tombstones, headers, and letters to a topic.
    let sender = producer(&brokers);
    sender
        .send(BaseRecord::<str, str>::to("users").key("1").payload("{\"name\": \"Ada\"}"))
        .map_err(|(e, _)| e)
        .unwrap();
    sender.send(BaseRecord::<str, str>::to("users").key("1")).map_err(|(e, _)| e).unwrap();
    sender.send(BaseRecord::<str, str>::to("users").key("2").payload("no json")).map_err(|(e, _)| e).unwrap();
    sender
        .send(BaseRecord::<str, [u8]>::to("users").key("3").payload(b"\x81\xa4name\xa3Bob"))
        .map_err(|(e, _)| e)
        .unwrap();
    sender.flush(PATIENCE).unwrap();
    let map =
        "[[map]]\ncommands = [\"HSET user:{$key} {fields...}\"]\ntombstone = [\"HSET user:{$key} gone {$partition}\"]";
    let done = run(map, &brokers, "users", &to, |c| c.dead_letter = "topic:users-dead".into()).unwrap();
    assert_eq!((done.done, done.dead), (4, 2));
    assert_eq!(c.call(&["HEXISTS", "user:1", "gone"]).unwrap().integer(), Some(1));
    let dead: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", &brokers)
        .set("group.id", "reader")
        .set("auto.offset.reset", "earliest")
        .create()
        .unwrap();
    dead.subscribe(&["users-dead"]).unwrap();
    let mut letters = Vec::new();
    until("the letters", || {
        if let Some(Ok(message)) = dead.poll(Duration::from_millis(100)) {
            let reason = message.headers().unwrap().iter().find(|h| h.key == "unslow-reason").unwrap().value.unwrap();
            letters.push((String::from_utf8_lossy(reason).into_owned(), message.key().unwrap().to_vec()));
        }
        letters.len() == 2
    });
    assert!(letters.iter().all(|(reason, _)| reason.contains("no JSON object")), "{letters:?}");
    // The third was MessagePack all along.
    let msgpack = map.replace("[[map]]", "[[map]]\nformat = \"msgpack\"");
    let done = run(&msgpack, &brokers, "users", &to, |c| {
        c.group = "packed".into();
        c.dead_letter = "topic:users-dead".into();
    });
    assert_eq!(done.unwrap().dead, 2);
    assert_eq!(c.call(&["HGET", "user:3", "name"]).unwrap().text().as_deref(), Some("Bob"));
    let error = run(map, &brokers, "userz", &to, |_| {}).unwrap_err();
    let Failure::Source(SourceError::Broker(BrokerError::NoTopic { topic, there, .. })) = &error else {
        panic!("{error:?}")
    };
    assert!(topic == "userz" && there.contains(&"users".to_string()), "{topic}: {there:?}");
}

#[test]
fn members_of_a_group_come_and_go_and_the_broker_dies_and_lists_stay_exact() {
    let kafka = Kafka::start(&["num.partitions=6"]).unwrap();
    let (brokers, to) = (kafka.address(), server());
    produce(&brokers, "numbers", 0, 10_000);
    let (first, notes) = start(LISTS, &brokers, "numbers", &to, |_| {}).unwrap();
    let read = |sinks: &[&Sink]| sinks.iter().map(|s| s.snapshot().done).sum::<u64>();
    until("the first to read", || read(&[&first]) >= 10_000);
    let (second, told) = start(LISTS, &brokers, "numbers", &to, |_| {}).unwrap();
    produce(&brokers, "numbers", 10_000, 100_000);
    until("the second to have its share", || told.lock().unwrap().iter().any(|n| n.contains("given to us")));
    until("both to read all", || read(&[&first, &second]) >= 100_000);
    produce(&brokers, "numbers", 100_000, 110_000);
    until("the second to write", || second.snapshot().done > 0);
    let before = notes.lock().unwrap().len();
    kafka.kill();
    // Partitions are what it spoke of before.
    let of_the_broker = |n: &String| n.starts_with("Kafka: ") && !n.contains("partitions");
    until("a note of the broker's death", || notes.lock().unwrap()[before..].iter().any(of_the_broker));
    kafka.restart().unwrap();
    produce(&brokers, "numbers", 110_000, 150_000);
    // One leaves while there is work.
    second.stop();
    second.join().unwrap();
    until_ok("the rest", || {
        let mut c = to.connect_with(&options(2))?;
        Ok::<_, Error>(
            (0..100).all(|k| c.call(&["LLEN", &format!("log:{k}")]).is_ok_and(|n| n.integer() == Some(1500))),
        )
    });
    first.stop();
    first.join().unwrap();
    exact(&mut connect(&to), 150_000);
    let left = run(LISTS, &brokers, "numbers", &to, |_| {}).unwrap();
    println!("{} messages were not committed when the last one left", left.read);
    exact(&mut connect(&to), 150_000);
}

#[test]
fn a_broker_behind_tls_that_wants_a_password_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (key, certificate, both) = (file("key.pem"), file("certificate.pem"), file("both.pem"));
    let made = std::process::Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=kafka"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &certificate])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let pem = |path: &str| std::fs::read_to_string(path).unwrap();
    std::fs::write(&both, pem(&key) + &pem(&certificate)).unwrap();
    let jaas = "listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule \
                required username=\"broker\" password=\"b\" user_broker=\"b\" user_ann=\"hush\";";
    let kafka = Kafka::start(&[
        "listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENT:SASL_SSL",
        "listener.name.client.sasl.enabled.mechanisms=PLAIN",
        "sasl.mechanism.inter.broker.protocol=PLAIN",
        "sasl.enabled.mechanisms=PLAIN",
        "ssl.keystore.type=PEM",
        &format!("ssl.keystore.location={both}"),
        "ssl.truststore.type=PEM",
        &format!("ssl.truststore.location={certificate}"),
        jaas,
    ])
    .unwrap();
    let (brokers, to) = (kafka.address(), server());
    let login = |password: &str| {
        [
            ("security.protocol", "SASL_SSL"),
            ("ssl.ca.location", &certificate),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "ann"),
            ("sasl.password", password),
        ]
        .map(|(name, value)| (name.to_string(), value.to_string()))
    };
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &brokers);
    for (name, value) in login("hush") {
        config.set(name, value);
    }
    let producer: BaseProducer = config.create().unwrap();
    for text in ["{\"k\": 1}", "no json"] {
        producer.send(BaseRecord::<str, str>::to("t").payload(text)).map_err(|(e, _)| e).unwrap();
    }
    producer.flush(PATIENCE).unwrap();
    let map = "dead_letter = \"topic:dead\"\n[[map]]\ncommands = [\"SET {k} v\"]";
    let done = run(map, &brokers, "t", &to, |c| c.kafka.extend(login("hush"))).unwrap();
    assert_eq!((done.done, done.dead), (2, 1));
    let error = run(map, &brokers, "t", &to, |c| c.kafka.extend(login("wrong"))).unwrap_err();
    assert!(matches!(error, Failure::Source(SourceError::Broker(BrokerError::NoBroker { .. }))), "{error:?}");
    assert!(!error.to_string().contains("wrong"), "{error}");
    // In the clear to a port that speaks TLS.
    let error = run(map, &brokers, "t", &to, |_| {}).unwrap_err();
    assert!(matches!(error, Failure::Source(SourceError::Broker(BrokerError::NoBroker { .. }))), "{error:?}");
    assert!(error.to_string().contains("TLS or SASL wanted"), "{error}");
}

#[test]
fn a_mock_cluster_is_read_like_a_real_one() {
    let mock = MockCluster::new(2).unwrap();
    mock.create_topic("numbers", 4, 1).unwrap();
    let (brokers, to) = (mock.bootstrap_servers(), server());
    produce(&brokers, "numbers", 0, 20_000);
    let done = run(LISTS, &brokers, "numbers", &to, |_| {}).unwrap();
    assert_eq!((done.done, done.dead), (20_000, 0));
    exact(&mut connect(&to), 20_000);
}
