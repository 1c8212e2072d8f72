//! Kafka, through librdkafka: a member of a consumer group. Before a partition goes to another member everything read
//! from it is written and committed, and what was read and not yet handed on is forgotten.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{Headers, Message};
use rdkafka::statistics::Statistics;
use rdkafka::{Offset as KafkaOffset, TopicPartitionList};

use crate::broker::{BrokerError, KafkaSettings, config, config_error};
use crate::ledger::Ledger;
use crate::record::{Batch, Offset, Origin, Record};
use crate::source::{Clock, Limit, Note, Read, Source, SourceError};
use crate::stats::Stats;

const START_PATIENCE: Duration = Duration::from_secs(10);
/// Offsets are committed so often at most.
const COMMIT_EVERY: Duration = Duration::from_millis(200);
/// For what is under way when partitions are taken away; less than the group waits for us.
const REVOKE_PATIENCE: Duration = Duration::from_secs(20);

/// Topics of Kafka, read as a member of a consumer group.
pub struct Kafka {
    consumer: BaseConsumer<Context>,
    until_end: bool,
    headers: bool,
    origins: HashMap<String, HashMap<i32, Arc<Origin>>>,
    ends: BTreeSet<(String, i32)>,
    committed: Instant,
    /// The cluster's own name.
    cluster: String,
    paused: bool,
}

/// What librdkafka calls.
pub struct Context {
    ledger: Arc<Mutex<Ledger>>,
    stats: Arc<dyn AsRef<Stats> + Send + Sync>,
    note: Note,
    /// Done with, and not yet committed.
    pending: Mutex<HashMap<Arc<Origin>, Offset>>,
    /// Commits under way, or through.
    sent: Mutex<HashMap<Arc<Origin>, Offset>>,
    /// Ours just now.
    assigned: Mutex<BTreeSet<(String, i32)>>,
    /// Partitions taken away since the source looked.
    revoked: Mutex<BTreeSet<(String, i32)>>,
    any_revoked: AtomicBool,
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
        self.add(ledger.take_commits());
        if ledger.in_flight() > 0 {
            (self.note)(
                "Kafka: partitions are taken away while writes to them wait; their next consumer repeats these",
            );
        }
        drop(ledger);
        let commits: Vec<_> = self.pending.lock().expect("no thread panicked").drain().collect();
        if let Some(list) = list_of(&commits)
            && let Err(e) = consumer.commit(&list, CommitMode::Sync)
        {
            (self.note)(&format!("Kafka: {e}; what is not committed is read again by its next consumer"));
            self.add(commits);
        }
        let names = list.elements().iter().map(|e| (e.topic().to_string(), e.partition())).collect::<Vec<_>>();
        let gone =
            |o: &Arc<Origin>| names.iter().any(|(topic, partition)| *topic == o.topic && *partition == o.partition);
        self.pending.lock().expect("no thread panicked").retain(|o, _| !gone(o));
        self.sent.lock().expect("no thread panicked").retain(|o, _| !gone(o));
        self.assigned.lock().expect("no thread panicked").retain(|name| !names.contains(name));
        self.revoked.lock().expect("no thread panicked").extend(names);
        self.any_revoked.store(true, Ordering::Release);
        (*self.stats).as_ref().forget_lag();
    }

    fn post_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let (list, word) = match rebalance {
            Rebalance::Assign(list) => (list, "given to us"),
            Rebalance::Revoke(list) => (list, "taken away"),
            Rebalance::Error(e) => return (self.note)(&format!("Kafka: the group: {e}")),
        };
        if let Rebalance::Assign(list) = rebalance {
            let names = list.elements().iter().map(|e| (e.topic().to_string(), e.partition())).collect::<Vec<_>>();
            self.assigned.lock().expect("no thread panicked").extend(names);
        }
        if list.count() > 0 {
            (self.note)(&format!("Kafka: {} partitions {word}", list.count()));
        }
    }

    fn commit_callback(&self, result: Result<(), KafkaError>, offsets: &TopicPartitionList) {
        match result {
            Ok(()) => drop((*self.stats).as_ref().commits.fetch_add(1, Ordering::Relaxed)),
            Err(e) => {
                (self.note)(&format!("Kafka: offsets are not committed: {e}; they are sent again with the next"));
                let failed = |o: &Arc<Origin>| offsets.find_partition(&o.topic, o.partition).is_some();
                let sent = self.sent.lock().expect("no thread panicked").clone();
                self.add(sent.into_iter().filter(|(o, _)| failed(o)).collect());
            }
        }
    }

    fn main_queue_min_poll_interval(&self) -> rdkafka::util::Timeout {
        rdkafka::util::Timeout::After(Duration::from_millis(100))
    }
}

impl Context {
    /// These are done with. Offsets only grow, and those of partitions that are somebody else's now are not ours to
    /// tell.
    fn add(&self, ends: Vec<(Arc<Origin>, Offset)>) {
        let assigned = self.assigned.lock().expect("no thread panicked").clone();
        let ours =
            |o: &Arc<Origin>| assigned.iter().any(|(topic, partition)| *topic == o.topic && *partition == o.partition);
        let ends = ends.into_iter().filter(|(o, _)| ours(o));
        let mut pending = self.pending.lock().expect("no thread panicked");
        for (origin, end) in ends {
            let known = pending.entry(origin).or_default();
            *known = (*known).max(end);
        }
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

impl Kafka {
    /// Joins the group. Fails when no broker answers, or a topic is unknown.
    pub fn open(
        settings: &KafkaSettings,
        ledger: Arc<Mutex<Ledger>>,
        stats: Arc<dyn AsRef<Stats> + Send + Sync>,
        note: Note,
    ) -> Result<Kafka, BrokerError> {
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
            pending: Mutex::default(),
            sent: Mutex::default(),
            assigned: Mutex::default(),
            revoked: Mutex::default(),
            any_revoked: AtomicBool::new(false),
        };
        let consumer: BaseConsumer<Context> = config.create_with_context(context).map_err(config_error)?;
        let brokers = || settings.brokers.clone();
        let known = consumer.fetch_metadata(None, START_PATIENCE).map_err(|e| {
            let (seconds, why) = (START_PATIENCE.as_secs(), e.to_string());
            BrokerError::NoBroker { brokers: brokers(), seconds, why }
        })?;
        for topic in settings.topics.iter().filter(|t| !t.starts_with('^')) {
            if !known.topics().iter().any(|t| t.name() == topic && t.error().is_none()) {
                let names = known.topics().iter().map(|t| t.name()).filter(|n| !n.starts_with("__"));
                let there = names.take(20).map(str::to_string).collect();
                return Err(BrokerError::NoTopic { brokers: brokers(), topic: topic.clone(), there });
            }
        }
        let cluster = consumer.client().fetch_cluster_id(START_PATIENCE);
        if settings.exactly_once && cluster.is_none() {
            return Err(BrokerError::NoClusterId { brokers: brokers() });
        }
        let cluster = cluster.unwrap_or_default();
        let topics: Vec<&str> = settings.topics.iter().map(String::as_str).collect();
        consumer
            .subscribe(&topics)
            .map_err(|e| BrokerError::Subscribe { topics: topics.join(", "), why: e.to_string() })?;
        Ok(Kafka {
            consumer,
            until_end: settings.until_end,
            headers: settings.headers,
            origins: HashMap::new(),
            ends: BTreeSet::new(),
            committed: Instant::now(),
            cluster,
            paused: false,
        })
    }

    /// Forgets what was read and not handed on of partitions that are somebody else's now.
    fn forget(context: &Context, ends: &mut BTreeSet<(String, i32)>, batch: &mut Batch) {
        if !context.any_revoked.swap(false, Ordering::AcqRel) {
            return;
        }
        let revoked = std::mem::take(&mut *context.revoked.lock().expect("no thread panicked"));
        let gone: Vec<bool> = batch.origins.iter().map(|o| revoked.contains(&(o.topic.clone(), o.partition))).collect();
        batch.records.retain(|r| !gone[r.origin as usize]);
        ends.retain(|end| !revoked.contains(end));
    }

    /// Some partition of this number has been read to its end; which topic's is not said.
    fn note_end(&mut self, partition: i32) -> Result<(), BrokerError> {
        let assigned = self.consumer.assignment().map_err(read_error)?;
        let elements = assigned.elements();
        let mut candidates = elements.iter().filter(|e| e.partition() == partition);
        if let (Some(only), None) = (candidates.next(), candidates.next()) {
            self.ends.insert((only.topic().to_string(), partition));
            return Ok(());
        }
        let position = self.consumer.position().map_err(read_error)?;
        let committed = self.consumer.committed(START_PATIENCE).map_err(read_error)?;
        for element in position.elements().iter().filter(|e| e.partition() == partition) {
            let topic = element.topic();
            let (low, high) = self.consumer.fetch_watermarks(topic, partition, START_PATIENCE).map_err(read_error)?;
            let at_end = match element.offset() {
                KafkaOffset::Offset(n) => n >= high,
                // Nothing read from it yet.
                _ => {
                    let committed = committed.find_partition(topic, partition).map(|e| e.offset());
                    low == high || committed == Some(KafkaOffset::Offset(high))
                }
            };
            if at_end {
                self.ends.insert((topic.to_string(), partition));
            }
        }
        Ok(())
    }

    fn pause(&mut self, paused: bool) -> Result<(), BrokerError> {
        if self.paused == paused {
            return Ok(());
        }
        let failed = |e: KafkaError| BrokerError::Pause { why: e.to_string() };
        let all = self.consumer.assignment().map_err(failed)?;
        let done = if paused { self.consumer.pause(&all) } else { self.consumer.resume(&all) };
        self.paused = paused;
        done.map_err(failed)
    }

    fn send_commits(&mut self, mode: CommitMode) {
        let context = self.consumer.context();
        let all: Vec<_> = context.pending.lock().expect("no thread panicked").drain().collect();
        self.committed = Instant::now();
        let Some(list) = list_of(&all) else { return };
        context.sent.lock().expect("no thread panicked").extend(all.iter().cloned());
        if let Err(e) = self.consumer.commit(&list, mode) {
            // Nothing is lost: what is not committed is read again.
            (context.note)(&format!("Kafka: offsets are not committed: {e}"));
            context.add(all);
        }
    }
}

impl Source for Kafka {
    fn read(&mut self, batch: &mut Batch, limit: Limit) -> Result<Read, SourceError> {
        self.pause(false)?;
        let mut clock = Clock::new(limit);
        let mut last: Option<(i32, u32)> = None;
        while !limit.full(batch) {
            // First what is there without waiting: looking at the clock for every message would cost more than the
            // message.
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
            // What this call brings is of partitions that are ours.
            if self.consumer.context().any_revoked.load(Ordering::Acquire) {
                Kafka::forget(self.consumer.context(), &mut self.ends, batch);
                last = None;
            }
            let message = match polled {
                None => continue,
                Some(Ok(message)) => message,
                Some(Err(KafkaError::PartitionEOF(partition))) => {
                    self.note_end(partition)?;
                    continue;
                }
                Some(Err(e @ KafkaError::MessageConsumptionFatal(_))) => return Err(read_error(e).into()),
                Some(Err(e)) => match e.rdkafka_error_code() {
                    Some(
                        RDKafkaErrorCode::UnknownTopicOrPartition
                        | RDKafkaErrorCode::TopicAuthorizationFailed
                        | RDKafkaErrorCode::GroupAuthorizationFailed,
                    ) => return Err(read_error(e).into()),
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
                            let id = format!("{}/{topic}/{partition}", self.cluster).into();
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

    fn idle(&mut self) -> Result<(), SourceError> {
        // Paused, so that polling keeps us in the group and brings no messages.
        self.pause(true)?;
        match self.consumer.poll(Duration::ZERO) {
            Some(Ok(message)) => {
                // It was on its way already: it is to come again.
                let (topic, partition, offset) = (message.topic().to_string(), message.partition(), message.offset());
                drop(message);
                let sought = self.consumer.seek(&topic, partition, KafkaOffset::Offset(offset), START_PATIENCE);
                sought.map_err(|e| BrokerError::Seek { topic, partition, why: e.to_string() }.into())
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => self.note_end(partition).map_err(SourceError::from),
            _ => Ok(()),
        }
    }

    fn commit(&mut self, ends: Vec<(Arc<Origin>, Offset)>) -> Result<(), SourceError> {
        let context = self.consumer.context();
        context.add(ends);
        if self.committed.elapsed() >= COMMIT_EVERY && !context.pending.lock().expect("no thread panicked").is_empty() {
            self.send_commits(CommitMode::Async);
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), SourceError> {
        self.send_commits(CommitMode::Sync);
        Ok(())
    }
}

fn read_error(e: KafkaError) -> BrokerError {
    BrokerError::Read { why: e.to_string() }
}
