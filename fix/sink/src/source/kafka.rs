//! Kafka, through librdkafka: a member of a consumer group. Before a partition goes to another member everything read
//! from it is written and committed, and what was read and not yet handed on is forgotten.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer as _, ProducerContext};
use rdkafka::statistics::Statistics;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use crate::ledger::{Ledger, Letter};
use crate::record::{Batch, Offset, Origin, Record};
use crate::source::{Clock, Limit, Read, Source};
use crate::stats::Stats;

const START_PATIENCE: Duration = Duration::from_secs(10);
/// Offsets are committed so often at most.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// For what is under way when partitions are taken away; less than the group waits for us.
const REVOKE_PATIENCE: Duration = Duration::from_secs(20);

/// Which brokers, what of them, and as whom.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// `host:port,host:port`.
    pub brokers: String,
    /// Names, or patterns that begin with `^`.
    pub topics: Vec<String>,
    /// Consumer group.
    pub group: String,
    /// librdkafka's own settings.
    pub properties: BTreeMap<String, String>,
    /// Ends when every partition has been read to its end.
    pub until_end: bool,
    /// Whether a mapping looks at headers.
    pub headers: bool,
}

/// See the module.
pub struct Kafka {
    consumer: BaseConsumer<Context>,
    until_end: bool,
    headers: bool,
    origins: HashMap<String, HashMap<i32, Arc<Origin>>>,
    ends: BTreeSet<(String, i32)>,
    pending: HashMap<Arc<Origin>, Offset>,
    committed: Instant,
    paused: bool,
}

type Note = Arc<dyn Fn(&str) + Send + Sync>;

/// What librdkafka calls.
pub struct Context {
    ledger: Arc<Mutex<Ledger>>,
    stats: Arc<dyn AsRef<Stats> + Send + Sync>,
    note: Note,
    /// Partitions taken away since the source looked.
    revoked: Mutex<BTreeSet<(String, i32)>>,
    any_revoked: AtomicBool,
    topics: Vec<String>,
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, text: &str) {
        if matches!(level, RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical) {
            (self.note)(&format!("Kafka: {text}"));
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        let what = match code {
            Some(RDKafkaErrorCode::AllBrokersDown) => "no broker answers; waiting for one".to_string(),
            Some(RDKafkaErrorCode::BrokerTransportFailure | RDKafkaErrorCode::Resolve) => {
                format!("a broker is away: {reason}")
            }
            _ => format!("{error}: {reason}"),
        };
        (self.note)(&format!("Kafka: {what}"));
    }

    fn stats(&self, statistics: Statistics) {
        for (name, topic) in statistics.topics {
            for partition in topic.partitions.into_values().filter(|p| p.partition >= 0 && p.consumer_lag >= 0) {
                (*self.stats).as_ref().set_lag(&name, partition.partition, partition.consumer_lag);
            }
        }
    }
}

impl ConsumerContext for Context {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(list) = rebalance else { return };
        let mut ledger = self.ledger.lock().expect("no thread panicked");
        let deadline = Instant::now() + REVOKE_PATIENCE;
        while ledger.in_flight() > 0 && Instant::now() < deadline && !ledger.ended() {
            if ledger.listen(Duration::from_millis(20)).is_err() {
                break; // told again when the source's own thread listens
            }
        }
        let commits = ledger.take_commits();
        if ledger.in_flight() > 0 {
            (self.note)(
                "Kafka: partitions are taken away while writes to them wait; whoever has them next repeats these",
            );
        }
        drop(ledger);
        if let Some(list) = list_of(&commits)
            && let Err(e) = consumer.commit(&list, CommitMode::Sync)
        {
            (self.note)(&format!("Kafka: {e}; what is not committed is read again by whoever has it next"));
        }
        let names = list.elements().iter().map(|e| (e.topic().to_string(), e.partition())).collect::<Vec<_>>();
        self.revoked.lock().expect("no thread panicked").extend(names);
        self.any_revoked.store(true, Ordering::Release);
        (*self.stats).as_ref().forget_lag();
    }

    fn commit_callback(&self, result: Result<(), KafkaError>, _offsets: &TopicPartitionList) {
        match result {
            Ok(()) => drop((*self.stats).as_ref().commits.fetch_add(1, Ordering::Relaxed)),
            Err(e) => (self.note)(&format!("Kafka: offsets are not committed: {e}; they are sent again with the next")),
        }
    }

    fn main_queue_min_poll_interval(&self) -> rdkafka::util::Timeout {
        rdkafka::util::Timeout::After(Duration::from_millis(100))
    }
}

/// Behind what is done with.
fn list_of(ends: &[(Arc<Origin>, Offset)]) -> Option<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for (origin, end) in ends {
        let next = KafkaOffset::Offset(end.1 as i64 + 1);
        list.add_partition_offset(&origin.topic, origin.partition, next).ok()?;
    }
    (!ends.is_empty()).then_some(list)
}

fn config(settings: &KafkaSettings) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &settings.brokers);
    config.set("client.id", "unslow-sink");
    config.set("log_level", "3");
    config
}

impl Kafka {
    /// Joins the group. Fails when no broker answers, or a topic is unknown.
    pub fn open(
        settings: &KafkaSettings,
        ledger: Arc<Mutex<Ledger>>,
        stats: Arc<dyn AsRef<Stats> + Send + Sync>,
        note: Note,
    ) -> Result<Kafka, String> {
        let mut config = config(settings);
        config.set("group.id", &settings.group);
        // Where nothing is committed yet: from the beginning, since what is left out is lost.
        config.set("auto.offset.reset", "earliest");
        config.set("statistics.interval.ms", "1000");
        config.set("partition.assignment.strategy", "cooperative-sticky");
        config.set("enable.partition.eof", if settings.until_end { "true" } else { "false" });
        for (name, value) in &settings.properties {
            config.set(name, value);
        }
        // Ours alone: an offset is committed when the servers have acknowledged.
        config.set("enable.auto.commit", "false").set("enable.auto.offset.store", "false");
        let context = Context {
            ledger,
            stats,
            note,
            revoked: Mutex::default(),
            any_revoked: AtomicBool::new(false),
            topics: settings.topics.clone(),
        };
        let consumer: BaseConsumer<Context> = config.create_with_context(context).map_err(|e| match e {
            // The value may be a password.
            KafkaError::ClientConfig(_, why, name, _) => format!("Kafka setting {name}: {why}"),
            e => e.to_string(),
        })?;
        let known = consumer.fetch_metadata(None, START_PATIENCE).map_err(|e| {
            format!(
                "{}: no Kafka broker answers within {} s ({e}); is the address right, and TLS or SASL wanted?",
                settings.brokers,
                START_PATIENCE.as_secs()
            )
        })?;
        for topic in settings.topics.iter().filter(|t| !t.starts_with('^')) {
            if !known.topics().iter().any(|t| t.name() == topic && t.error().is_none()) {
                let names: Vec<&str> =
                    known.topics().iter().map(|t| t.name()).filter(|n| !n.starts_with("__")).take(20).collect();
                let names = if names.is_empty() { "none at all".to_string() } else { names.join(", ") };
                return Err(format!("{}: no topic {topic:?}; there are {names}", settings.brokers));
            }
        }
        let topics: Vec<&str> = consumer.context().topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(|e| format!("topics {}: {e}", topics.join(", ")))?;
        Ok(Kafka {
            consumer,
            until_end: settings.until_end,
            headers: settings.headers,
            origins: HashMap::new(),
            ends: BTreeSet::new(),
            pending: HashMap::new(),
            committed: Instant::now(),
            paused: false,
        })
    }

    /// Forgets what was read and not handed on of partitions that are somebody else's now.
    fn forget(&mut self, batch: &mut Batch) {
        if !self.consumer.context().any_revoked.swap(false, Ordering::AcqRel) {
            return;
        }
        let revoked = std::mem::take(&mut *self.consumer.context().revoked.lock().expect("no thread panicked"));
        let gone: Vec<bool> = batch.origins.iter().map(|o| revoked.contains(&(o.topic.clone(), o.partition))).collect();
        batch.records.retain(|r| !gone[r.origin as usize]);
        self.ends.retain(|end| !revoked.contains(end));
        self.pending.retain(|o, _| !revoked.contains(&(o.topic.clone(), o.partition)));
    }

    /// Some partition of this number has been read to its end; which topic's is not said.
    fn note_end(&mut self, partition: i32) -> Result<(), String> {
        let failed = |e: KafkaError| format!("Kafka: {e}");
        let position = self.consumer.position().map_err(failed)?;
        let committed = self.consumer.committed(START_PATIENCE).map_err(failed)?;
        let one_topic = position.elements().iter().all(|e| e.topic() == position.elements()[0].topic());
        for element in position.elements().iter().filter(|e| e.partition() == partition) {
            let topic = element.topic();
            let (low, high) = self.consumer.fetch_watermarks(topic, partition, START_PATIENCE).map_err(failed)?;
            let at_end = match element.offset() {
                KafkaOffset::Offset(n) => n >= high,
                // Nothing read from it yet.
                _ => {
                    let committed = committed.find_partition(topic, partition).map(|e| e.offset());
                    one_topic || low == high || committed == Some(KafkaOffset::Offset(high))
                }
            };
            if at_end {
                self.ends.insert((topic.to_string(), partition));
            }
        }
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), String> {
        if self.paused == paused {
            return Ok(());
        }
        let all = self.consumer.assignment().map_err(|e| e.to_string())?;
        let done = if paused { self.consumer.pause(&all) } else { self.consumer.resume(&all) };
        self.paused = paused;
        done.map_err(|e| e.to_string())
    }

    fn send_commits(&mut self, mode: CommitMode) -> Result<(), String> {
        let all: Vec<_> = self.pending.drain().collect();
        self.committed = Instant::now();
        let Some(list) = list_of(&all) else { return Ok(()) };
        match self.consumer.commit(&list, mode) {
            Ok(()) => Ok(()),
            Err(e) => {
                // Nothing is lost: what is not committed is read again.
                (self.consumer.context().note)(&format!("Kafka: offsets are not committed: {e}"));
                for (origin, end) in all {
                    self.pending.entry(origin).or_insert(end);
                }
                Ok(())
            }
        }
    }
}

impl Source for Kafka {
    fn read(&mut self, batch: &mut Batch, limit: Limit) -> Result<Read, String> {
        self.pause(false)?;
        let mut clock = Clock::new(limit);
        let mut last: Option<(i32, u32)> = None;
        while !limit.full(batch) {
            // First what is there without waiting: looking at the clock for every message would cost more than the message.
            let mut polled = self.consumer.poll(Duration::ZERO);
            if polled.is_none() {
                if self.until_end
                    && let Ok(assigned) = self.consumer.assignment()
                    && assigned.count() > 0
                    && assigned.elements().iter().all(|e| self.ends.contains(&(e.topic().to_string(), e.partition())))
                {
                    return Ok(Read::End);
                }
                let Some(left) = clock.left(batch) else { break };
                polled = self.consumer.poll(left.min(Duration::from_millis(100)));
            }
            if self.consumer.context().any_revoked.load(Ordering::Acquire) {
                // The call that takes partitions away brings no message; should one come all the same, it comes again.
                let unread = polled.and_then(Result::ok).map(|m| (m.topic().to_string(), m.partition(), m.offset()));
                self.forget(batch);
                last = None;
                if let Some((topic, partition, offset)) = unread {
                    let _ = self.consumer.seek(&topic, partition, KafkaOffset::Offset(offset), START_PATIENCE);
                }
                continue;
            }
            let message = match polled {
                None => continue,
                Some(Ok(message)) => message,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    self.note_end(partition)?;
                    continue;
                }
                Some(Err(e)) => match e.rdkafka_error_code() {
                    Some(
                        RDKafkaErrorCode::UnknownTopicOrPartition
                        | RDKafkaErrorCode::TopicAuthorizationFailed
                        | RDKafkaErrorCode::GroupAuthorizationFailed,
                    ) => {
                        return Err(format!("Kafka: {e}"));
                    }
                    _ => {
                        (self.consumer.context().note)(&format!("Kafka: {e}"));
                        continue;
                    }
                },
            };
            let (topic, partition) = (message.topic(), message.partition());
            // Messages come in runs of one partition.
            let origin = match last {
                Some((p, number)) if p == partition && batch.origins[number as usize].topic == topic => number,
                _ => {
                    let known = self.origins.get(topic).and_then(|t| t.get(&partition));
                    let origin = match known {
                        Some(origin) => origin.clone(),
                        None => {
                            let id = format!("{topic}/{partition}");
                            let origin = Arc::new(Origin { topic: topic.into(), partition, id });
                            self.origins.entry(topic.into()).or_default().insert(partition, origin.clone());
                            origin
                        }
                    };
                    batch.origin(&origin)
                }
            };
            last = Some((partition, origin));
            if self.until_end && !self.ends.is_empty() {
                self.ends.remove(&(topic.to_string(), partition));
            }
            let key = message.key().map(|k| batch.keep(k));
            let value = message.payload().map(|v| batch.keep(v));
            let first = batch.headers.len() as u32;
            if self.headers
                && let Some(headers) = message.headers()
            {
                for header in headers.iter() {
                    let pair = (batch.keep(header.key.as_bytes()), batch.keep(header.value.unwrap_or_default()));
                    batch.headers.push(pair);
                }
            }
            batch.records.push(Record {
                origin,
                offset: Offset(0, message.offset().max(0) as u64),
                time_ms: message.timestamp().to_millis().unwrap_or(0),
                key,
                value,
                headers: (first, batch.headers.len() as u32 - first),
                broken: false,
            });
        }
        Ok(Read::Open)
    }

    fn idle(&mut self) -> Result<(), String> {
        // Paused, so that polling keeps us in the group and brings no messages.
        self.pause(true)?;
        match self.consumer.poll(Duration::ZERO) {
            Some(Ok(message)) => {
                // It was on its way already: it is to come again.
                let (topic, partition, offset) = (message.topic().to_string(), message.partition(), message.offset());
                drop(message);
                self.consumer
                    .seek(&topic, partition, KafkaOffset::Offset(offset), START_PATIENCE)
                    .map_err(|e| format!("{topic} [{partition}]: {e}"))
            }
            _ => Ok(()),
        }
    }

    fn commit(&mut self, ends: Vec<(Arc<Origin>, Offset)>) -> Result<(), String> {
        self.pending.extend(ends);
        if self.committed.elapsed() >= COMMIT_EVERY && !self.pending.is_empty() {
            self.send_commits(CommitMode::Async)?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), String> {
        self.send_commits(CommitMode::Sync)
    }
}

/// Writes letters to a topic.
pub struct Producer {
    producer: BaseProducer<Deliveries>,
    topic: String,
}

#[derive(Default)]
struct Deliveries {
    failed: Mutex<Option<String>>,
}

impl ClientContext for Deliveries {
    fn log(&self, _level: RDKafkaLogLevel, _facility: &str, _text: &str) {}
    fn error(&self, _error: KafkaError, _reason: &str) {}
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if let Err((e, _)) = result {
            self.failed.lock().expect("no thread panicked").get_or_insert(e.to_string());
        }
    }
}

impl Producer {
    /// On the brokers of the source.
    pub fn open(settings: &KafkaSettings, topic: &str) -> Result<Producer, String> {
        let mut config = config(settings);
        config.set("enable.idempotence", "true").set("delivery.timeout.ms", "30000");
        let about_reaching = |name: &str| {
            ["security.", "sasl.", "ssl.", "enable.ssl.", "broker.address"].iter().any(|p| name.starts_with(p))
        };
        for (name, value) in settings.properties.iter().filter(|(name, _)| about_reaching(name)) {
            config.set(name, value);
        }
        let producer = config.create_with_context(Deliveries::default()).map_err(|e| e.to_string())?;
        Ok(Producer { producer, topic: topic.to_string() })
    }

    /// They are in the topic when this returns.
    pub fn send(&mut self, letters: &[Letter]) -> Result<(), String> {
        let failed = |e: String| format!("dead letters to topic {}: {e}", self.topic);
        for letter in letters {
            let place = format!("{} [{}] at {}", letter.origin.topic, letter.origin.partition, letter.offset);
            let mut headers = OwnedHeaders::new()
                .insert(Header { key: "unslow-reason", value: Some(&letter.reason) })
                .insert(Header { key: "unslow-from", value: Some(&place) });
            for (name, value) in &letter.headers {
                headers = headers.insert(Header { key: name, value: Some(value) });
            }
            let mut record: BaseRecord<'_, Vec<u8>, Vec<u8>> = BaseRecord::to(&self.topic).headers(headers);
            if let Some(key) = &letter.key {
                record = record.key(key);
            }
            if let Some(value) = &letter.value {
                record = record.payload(value);
            }
            loop {
                match self.producer.send(record) {
                    Ok(()) => break,
                    // Its queue is full: let some go first.
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), back)) => {
                        self.producer.poll(Duration::from_millis(50));
                        record = back;
                    }
                    Err((e, _)) => return Err(failed(e.to_string())),
                }
            }
        }
        self.producer.flush(Duration::from_secs(31)).map_err(|e| failed(e.to_string()))?;
        let lost = self.producer.context().failed.lock().expect("no thread panicked").take();
        lost.map_or(Ok(()), |e| Err(failed(e)))
    }
}
