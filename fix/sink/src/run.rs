//! Starting and ending: the source's thread, the writer's thread, the watcher, and what a batch may hold.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Target, address_target};
use unslow_commands::Table;
use unslow_reactor::{Reactor, Waker};
use unslow_status::{NotReady, Serving, Status};
use unslow_topology::{DeploymentKind, Topology};
use unslow_watch::{Settings, Watch};

use crate::broker::{KafkaSettings, Producer};
use crate::config::{Config, ConfigError};
use crate::dead::{DeadLetterError, DeadLetters};
use crate::encode::{Encoder, GUARD};
use crate::error::Error;
use crate::ledger::Ledger;
use crate::mapping::Mapping;
use crate::record::Batch;
use crate::routes::{Router, Routes, Stop};
use crate::source::kafka::Kafka;
use crate::source::lines::Lines;
use crate::source::stream::{Stream, StreamSettings};
use crate::source::{Limit, Read, Source, SourceError};
use crate::stats::{Snapshot, Stats};
use crate::trouble::{Trouble, Voice, classify};
use crate::writer::{Order, WriteError, Writer, WriterSettings, WriterShared};

/// Hears what an operator should.
pub type Note = Arc<dyn Fn(&str) + Send + Sync>;

/// What a sink is started with.
pub struct Start {
    /// Its settings.
    pub config: Config,
    /// The deployment to write to, with passwords that stand elsewhere.
    pub target: Target,
    /// How to reach it.
    pub options: Options,
    /// The server of the stream to read, likewise, and how to reach it.
    pub stream: Option<(Target, Options)>,
    /// Hears what an operator should.
    pub note: Note,
}

/// A running sink. Dropping it ends it at once; [`Sink::stop`] ends it when what is under way is done.
pub struct Sink {
    shared: Arc<WriterShared>,
    stop: Arc<Stop>,
    pump: Option<JoinHandle<Result<(), Error>>>,
    writer: Option<JoinHandle<()>>,
    _watch: Arc<Watch>,
    _status: Option<Serving>,
    waker: Waker,
    /// Where metrics are served.
    pub metrics: Option<std::net::SocketAddr>,
}

impl AsRef<Stats> for WriterShared {
    fn as_ref(&self) -> &Stats {
        &self.stats
    }
}

struct Seen {
    shared: Arc<WriterShared>,
    stop: Arc<Stop>,
}

impl Status for Seen {
    fn metrics(&self) -> String {
        self.shared.stats.metrics(self.shared.window.bytes())
    }

    fn ready(&self) -> Result<(), NotReady> {
        if self.stop.asked.load(Ordering::Acquire) {
            return Err(NotReady::Ending);
        }
        if self.stop.silent.load(Ordering::Acquire) {
            return Err(NotReady::SlotsWithoutMaster);
        }
        Ok(())
    }
}

impl Sink {
    /// Looks at the deployment and the source, checks the mapping, and begins.
    pub fn start(start: Start) -> Result<Sink, Error> {
        let Start { config, target, stream, options, note } = start;
        config.check()?;
        let (send, news) = channel();
        let watch = Watch::start(Settings::new(target.clone(), options.clone()), move |n| {
            let _ = send.send(n); // nobody listens only while it ends
        })?;
        let watch = Arc::new(watch);
        let topology = watch.topology();
        let tls = if target.tls { Some(options.tls.client_config()?) } else { None };
        let router = Router { target: target.clone(), tls, server_name: options.tls.server_name.clone() };
        let encoder = encoder(&config, &target, &options, &topology)?;
        if encoder.asks_exists() {
            may_ask_exists(&target, &options, &topology)?;
        }
        let headers = !config.dead_letter.is_empty() || encoder.needs_headers();
        let shared = Arc::new(WriterShared {
            orders: Mutex::new(VecDeque::from([Order::Route(router.route(&topology))])),
            window: Default::default(),
            stats: Stats::default(),
            fatal: Mutex::default(),
        });
        let (said, hear) = channel();
        let dead = match config.dead_letter.as_str() {
            "" => DeadLetters::Refuse,
            other => match other.strip_prefix("topic:") {
                Some(topic) => {
                    let producer = Producer::open(&kafka(&config, headers)?, topic);
                    DeadLetters::Topic(Box::new(producer.map_err(DeadLetterError::from)?))
                }
                None => DeadLetters::file(Path::new(other))?,
            },
        };
        let ledger = Arc::new(Mutex::new(Ledger::new(hear, dead, shared.clone(), note.clone())));
        let source = open_source(&config, headers, stream, &ledger, &shared, &note)?;
        let stop = Arc::new(Stop::default());
        // The writer's loop is made on its own thread; its waker comes back.
        let (ready, waker) = channel();
        let settings = WriterSettings {
            target,
            wait: (config.wait_replicas > 0).then_some((config.wait_replicas, config.wait_ms)),
            silence_ns: config.silence_ms * 1_000_000,
            connect_ns: options.connect_timeout.as_nanos() as u64,
        };
        let doubter = watch.doubter();
        let mut writer = Writer::new(settings, shared.clone(), encoder, said, Box::new(move || doubter.doubt()));
        let theirs = shared.clone();
        let writer = std::thread::Builder::new().name("sink-writer".into()).spawn(move || {
            let ran = Reactor::new().and_then(|mut reactor| {
                let _ = ready.send(reactor.io().waker());
                reactor.run(&mut writer)
            });
            if let Err(e) = ran {
                theirs.fatal.lock().expect("no thread panicked").get_or_insert(WriteError::EventLoop(e));
            }
        });
        let writer = writer.map_err(Error::Thread)?;
        let waker: Waker = waker.recv().map_err(|_| Error::NoEventLoop)?;
        let status = match config.metrics.as_str() {
            "" => None,
            address => {
                let seen = Arc::new(Seen { shared: shared.clone(), stop: stop.clone() });
                let serving = unslow_status::serve(address, false, seen);
                Some(serving.map_err(|cause| Error::Metrics { address: address.to_string(), cause })?)
            }
        };
        let metrics = status.as_ref().and_then(|s| s.address);
        let routes = Routes { shared: shared.clone(), waker: waker.clone(), stop: stop.clone(), note, router };
        let thread = std::thread::Builder::new().name("sink-routes".into());
        drop(thread.spawn(move || routes.follow(news)).map_err(Error::Thread)?);
        let pump = Pump {
            limit: Limiter::new(&config),
            config,
            source,
            ledger,
            shared: shared.clone(),
            waker: waker.clone(),
            stop: stop.clone(),
        };
        let pump = std::thread::Builder::new().name("sink-source".into()).spawn(move || pump.run());
        let pump = Some(pump.map_err(Error::Thread)?);
        Ok(Sink { shared, stop, pump, writer: Some(writer), _watch: watch, _status: status, waker, metrics })
    }

    /// Reads no more, and ends when what is under way is done or `drain_ms` are over.
    pub fn stop(&self) {
        self.stop.asked.store(true, Ordering::Release);
    }

    /// Whether it has ended, by itself or asked to.
    pub fn ended(&self) -> bool {
        self.pump.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// The counters.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.stats.snapshot()
    }

    /// Waits for the end. Fails when it ended by itself before the source did.
    pub fn join(mut self) -> Result<Snapshot, Error> {
        let ended = self.pump.take().map_or(Ok(()), |pump| pump.join().unwrap_or(Err(Error::NoReader)));
        self.end();
        let snapshot = self.snapshot();
        ended.map(|()| snapshot)
    }

    fn end(&mut self) {
        self.stop.asked.store(true, Ordering::Release);
        self.stop.over.store(true, Ordering::Release);
        self.shared.order(Order::Abort, &self.waker);
        if let Some(pump) = self.pump.take() {
            let _ = pump.join();
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl Drop for Sink {
    fn drop(&mut self) {
        self.end();
    }
}

impl WriterShared {
    pub(crate) fn order(&self, order: Order, waker: &Waker) {
        self.orders.lock().expect("no thread panicked").push_back(order);
        waker.wake();
    }
}

/// Compiles the mapping against what a master says of its commands.
pub(crate) fn encoder(
    config: &Config,
    target: &Target,
    options: &Options,
    topology: &Topology,
) -> Result<Encoder, Error> {
    let cluster = topology.kind == DeploymentKind::Cluster;
    let mut last = Error::NoMaster;
    for node in topology.masters() {
        let Some(own) = address_target(target, &node.address) else { continue };
        let own = if node.address.starts_with("unix:") { target.clone() } else { own };
        let marks = if config.marks.is_empty() { &config.group } else { &config.marks };
        let asked = Connection::open(&own, options).and_then(|mut connection| {
            let table = connection.call(&["COMMAND"])?;
            if !config.exactly_once {
                return Ok((table, None));
            }
            // Later a refused key counts as a message's own. No mark has this field, and servers look at rights before
            // they look at slots.
            let mark = format!("unslow:sink:{marks}:{{0}}");
            if let Err(e) = connection.call(&["HDEL", mark.as_str(), "-"])
                && e.code() == Some("NOPERM")
            {
                return Err(e);
            }
            Ok((table, connection.call(&["SCRIPT", "LOAD", GUARD])?.text()))
        });
        match asked {
            Ok((table, sha)) => {
                let table =
                    Table::parse(&table, &[]).ok_or_else(|| Error::NoCommands { address: node.address.clone() })?;
                let mapping = Mapping::compile(&config.map, &table, cluster, config.exactly_once)?;
                let guard = match (config.exactly_once, sha) {
                    (true, Some(sha)) => Some((sha, marks.as_str())),
                    _ => None,
                };
                return Ok(Encoder::new(mapping, cluster, guard));
            }
            Err(e) => last = Error::Server(e),
        }
    }
    Err(last)
}

/// Fails if the user may not run EXISTS: every redirect of a script, a function or a module would set a message aside.
fn may_ask_exists(target: &Target, options: &Options, topology: &Topology) -> Result<(), Error> {
    for node in topology.masters() {
        let Some(own) = address_target(target, &node.address) else { continue };
        let own = if node.address.starts_with("unix:") { target.clone() } else { own };
        // A master that is down now is asked by its first message.
        let Ok(mut connection) = Connection::open(&own, options) else { continue };
        if let Err(e) = connection.call(&["EXISTS", "-"])
            && e.code() == Some("NOPERM")
        {
            let reply = e.message.strip_prefix("EXISTS: ").unwrap_or(&e.message);
            exists_denied(&node.address, reply, target.user.as_deref())?;
        }
    }
    Ok(())
}

/// Judges a NOPERM that answers an EXISTS: fails if the command itself is denied. That our key is denied is no fault.
fn exists_denied(address: &str, reply: &str, user: Option<&str>) -> Result<(), Error> {
    match classify(reply, Voice::Server) {
        Trouble::Fatal(reply) => {
            let (address, user) = (address.to_string(), user.unwrap_or("default").to_string());
            Err(Error::ExistsDenied { address, reply, user })
        }
        _ => Ok(()),
    }
}

fn kafka(config: &Config, headers: bool) -> Result<KafkaSettings, ConfigError> {
    let Some(brokers) = config.from.strip_prefix("kafka://") else {
        return Err(ConfigError::LetterTopic);
    };
    Ok(KafkaSettings {
        brokers: brokers.trim_end_matches('/').to_string(),
        topics: config.topics.clone(),
        group: config.group.clone(),
        properties: config.kafka.clone(),
        until_end: config.until_end,
        exactly_once: config.exactly_once,
        headers,
    })
}

fn open_source(
    config: &Config,
    headers: bool,
    stream: Option<(Target, Options)>,
    ledger: &Arc<Mutex<Ledger>>,
    shared: &Arc<WriterShared>,
    note: &Arc<dyn Fn(&str) + Send + Sync>,
) -> Result<Box<dyn Source>, Error> {
    if config.from.starts_with("kafka://") {
        let source = Kafka::open(&kafka(config, headers)?, ledger.clone(), shared.clone(), note.clone());
        return Ok(Box::new(source.map_err(SourceError::from)?));
    }
    if let Some((target, options)) = stream {
        if config.stream.is_empty() {
            return Err(ConfigError::NoStream.into());
        }
        let settings = StreamSettings {
            target,
            options,
            key: config.stream.clone(),
            group: config.group.clone(),
            consumer: config.consumer.clone(),
            until_end: config.until_end,
        };
        return Ok(Box::new(Stream::open(settings, note.clone())?));
    }
    let checkpoint = (!config.checkpoint.is_empty()).then(|| Path::new(&config.checkpoint));
    Ok(Box::new(Lines::open(&config.from, config.envelope, checkpoint, note.clone())?))
}

/// How many messages the next batch may hold: fewer while batches take longer than they may, more while they are full.
struct Limiter {
    most: usize,
    now: usize,
    latency: Option<Duration>,
}

impl Limiter {
    const LEAST: usize = 64;

    fn new(config: &Config) -> Limiter {
        let latency = (config.batch_latency_ms > 0).then(|| Duration::from_millis(config.batch_latency_ms));
        Limiter { most: config.batch_messages_max, now: config.batch_messages_max, latency }
    }

    fn learn(&mut self, messages: usize, took: Duration) {
        let Some(latency) = self.latency else { return };
        if took > latency {
            self.now = (self.now * 7 / 10).max(Self::LEAST.min(self.most));
        } else if messages >= self.now {
            self.now = (self.now + self.now / 8 + 16).min(self.most);
        }
    }
}

/// Batches read and not yet settled, those included that are done behind one that is not.
const UNSETTLED_MAX: u64 = 2000;

/// The source's thread.
struct Pump {
    config: Config,
    source: Box<dyn Source>,
    ledger: Arc<Mutex<Ledger>>,
    shared: Arc<WriterShared>,
    waker: Waker,
    stop: Arc<Stop>,
    limit: Limiter,
}

impl Pump {
    fn run(mut self) -> Result<(), Error> {
        let ran = self.read_all();
        // Also after a failure: what is done is done.
        let closed = self.source.close();
        self.shared.order(Order::Abort, &self.waker);
        // Its reason comes first: without the writer the source only knows that it is gone.
        let fatal = self.shared.fatal.lock().expect("no thread panicked").take();
        ran.map_err(|e| fatal.map_or(e, Error::Write))?;
        Ok(closed?)
    }

    /// Hears the writer, and gives back what is done.
    fn settle(&mut self, patience: Duration) -> Result<(), Error> {
        let mut ledger = self.ledger.lock().expect("no thread panicked");
        let listened = ledger.listen(patience);
        let commits = ledger.take_commits();
        for (messages, took) in std::mem::take(&mut ledger.took) {
            self.limit.learn(messages, took);
        }
        let gone = ledger.ended();
        drop(ledger);
        self.source.commit(commits)?;
        listened?;
        if gone {
            return Err(Error::NoWriter);
        }
        Ok(())
    }

    fn read_all(&mut self) -> Result<(), Error> {
        let mut number = 0;
        let mut shut_since: Option<Instant> = None;
        let linger = Duration::from_millis(self.config.linger_ms);
        loop {
            self.settle(Duration::ZERO)?;
            if self.stop.asked.load(Ordering::Acquire) {
                break;
            }
            let shared = self.shared.clone();
            // Batches that are done wait for those before them; that must end somewhere too.
            let early = self.ledger.lock().expect("no thread panicked").in_flight() >= UNSETTLED_MAX;
            let (most, bytes) = (self.config.in_flight_max, self.config.memory_bytes_max);
            if !shared.window.open(if early { 0 } else { most }, bytes, Duration::from_millis(20)) {
                // A group waits minutes for us, and a pause makes a source fetch again what it had fetched: so not at
                // once.
                let since = *shut_since.get_or_insert_with(Instant::now);
                if since.elapsed() > Duration::from_secs(2) {
                    self.source.idle()?;
                }
                continue;
            }
            shut_since = None;
            self.shared.stats.batch_limit.store(self.limit.now as u64, Ordering::Relaxed);
            let mut batch = Batch { number, ..Batch::default() };
            let limit = Limit {
                messages: self.limit.now,
                bytes: self.config.batch_bytes_max,
                patience: Duration::from_millis(20),
                linger,
            };
            let read = self.source.read(&mut batch, limit)?;
            if !batch.records.is_empty() {
                number += 1;
                self.shared.stats.read.fetch_add(batch.records.len() as u64, Ordering::Relaxed);
                self.shared.window.took(batch.weight());
                self.ledger.lock().expect("no thread panicked").sent += 1;
                batch.ready = Some(Instant::now());
                self.shared.order(Order::Batch(batch), &self.waker);
            }
            if read == Read::End {
                return self.drain(None);
            }
        }
        self.drain(Some(Duration::from_millis(self.config.drain_ms)))?;
        self.stop.why()
    }

    /// Waits for what is under way; at the end of a source as long as it takes.
    fn drain(&mut self, patience: Option<Duration>) -> Result<(), Error> {
        let begun = Instant::now();
        let mut deadline = patience.map(|p| begun + p);
        while self.ledger.lock().expect("no thread panicked").in_flight() > 0 {
            self.settle(Duration::from_millis(20))?;
            if begun.elapsed() > Duration::from_secs(2) {
                self.source.idle()?; // we stay in the group however long it takes
            }
            if self.stop.asked.load(Ordering::Acquire) && deadline.is_none() {
                deadline = Some(Instant::now() + Duration::from_millis(self.config.drain_ms));
            }
            if deadline.is_some_and(|d| d <= Instant::now()) {
                let batches = self.ledger.lock().expect("no thread panicked").in_flight();
                return Err(Error::Undrained { batches });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_denied_command_and_not_a_denied_key_is_asked_to_be_granted() {
        for (words, denied) in [
            ("NOPERM User w has no permissions to run the 'exists' command", true),
            ("NOPERM this user has no permissions to run the 'exists' command or its subcommand", true),
            ("NOPERM No permissions to access a key", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
        ] {
            let why = exists_denied("h:1", words, Some("w")).err();
            let kind = matches!(&why, Some(Error::ExistsDenied { reply, user, .. }) if reply == words && user == "w");
            assert_eq!((kind, why.is_some()), (denied, denied), "{why:?}");
            assert!(why.is_none_or(|why| why.to_string().ends_with("ACL SETUSER w +exists")), "{words}");
        }
    }

    #[test]
    fn the_limiter_shrinks_slow_batches_and_grows_full_ones() {
        let (slow, fast) = (Duration::from_millis(101), Duration::from_millis(100));
        let mut limit = Limiter::new(&Config { batch_messages_max: 1000, batch_latency_ms: 100, ..Config::default() });
        for (messages, took, now) in [
            (1000, fast, 1000),
            (1000, slow, 700),
            (10, slow, 490),
            (489, fast, 490),
            (490, fast, 567),
            (567, fast, 653),
        ] {
            limit.learn(messages, took);
            assert_eq!(limit.now, now, "{messages} messages in {took:?}");
        }
        (0..50).for_each(|_| limit.learn(1, slow));
        assert_eq!(limit.now, Limiter::LEAST);
        (0..50).for_each(|_| limit.learn(usize::MAX, fast));
        assert_eq!(limit.now, 1000);
    }

    #[test]
    fn the_limiter_respects_small_maximums_and_can_be_disabled() {
        let slow = Duration::from_secs(9);
        for (most, latency_ms, now) in [(10, 100, 10), (1000, 0, 1000)] {
            let config = Config { batch_messages_max: most, batch_latency_ms: latency_ms, ..Config::default() };
            let mut limit = Limiter::new(&config);
            (0..50).for_each(|_| limit.learn(1, slow));
            assert_eq!(limit.now, now);
        }
    }
}
