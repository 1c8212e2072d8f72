//! `unslow sink`: messages into Redis and Valkey.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use unslow_client::{Options, Target};
use unslow_sink::{Config, Error, Sink, Snapshot, Start, dry_run};
use unslow_units::{rate, time_us};

use crate::output::Output;
use crate::reach::Reach;
use crate::server::{self, Reached, Server};
use crate::toml_text;
use crate::typed::{linger, short_time};

#[derive(Args)]
#[command(
    args_override_self = true,
    disable_help_flag = true,
    after_help = "SIGTERM and Ctrl-C finish what is in flight; a second one exits at once.\n\nExamples:\n  unslow sink \
                  --map examples/users.toml --from users.ndjson --to redis://10.0.0.1:7000\n  unslow sink --map \
                  users.toml --from users.ndjson --dry-run          # what would be sent\n  unslow sink --map \
                  users.toml --from kafka://10.0.0.2:9092 --topic users --group writer --to redis://10.0.0.1:7000 \
                  --dead-letter topic:users-dead\n  unslow sink --map users.toml --from redis://10.0.0.3 --stream \
                  events --to redis://10.0.0.1:7000 --exactly-once"
)]
pub struct SinkArguments {
    /// TOML file with the mapping and other settings; flags win over it. docs/sink.toml lists every setting
    #[arg(long, value_name = "FILE")]
    map: PathBuf,
    /// File, - for standard input, kafka://host:port,host:port, or redis://host:port with --stream [default: -]
    #[arg(long, value_name = "SOURCE")]
    from: Option<String>,
    /// The deployment: redis://, rediss://, valkey://, unix:/path, redis+sentinel://host/service, host:port, or @NAME
    /// of unslow.toml; -h, -p, -u, -a, -n and --tls are about it too
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Kafka topic, or a pattern that begins with ^; may be repeated
    #[arg(long, value_name = "NAME")]
    topic: Vec<String>,
    /// Consumer group, of Kafka or of the stream [default: unslow-sink]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// A librdkafka setting, such as security.protocol=SASL_SSL; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    kafka: Vec<String>,
    /// File with such settings, one per line; use it for passwords
    #[arg(long, value_name = "FILE")]
    kafka_config: Option<PathBuf>,
    /// Stream to read
    #[arg(long, value_name = "KEY")]
    stream: Option<String>,
    /// This consumer's name in the stream's group [default: unslow-sink]
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
    /// Lines are {"key": .., "value": .., "topic": .., "headers": {..}}; a value of null is a tombstone
    #[arg(long)]
    envelope: bool,
    /// Keep the position in the input file there, and resume from it
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<String>,
    /// Exit when there is nothing more to read
    #[arg(long)]
    until_end: bool,
    /// Messages that cannot be written go there with the reason: a file, or topic:NAME [default: the first one stops
    /// the sink]
    #[arg(long, value_name = "WHERE")]
    dead_letter: Option<String>,
    /// Keep marks in the servers, so that messages delivered again change nothing
    #[arg(long)]
    exactly_once: bool,
    /// Wait until this many replicas have a batch before its offsets are committed
    #[arg(long, value_name = "REPLICAS")]
    wait: Option<u32>,
    /// Maximum number of messages in a batch [default: 5000]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// How long a batch that is not full waits for more messages [default: 5ms]
    #[arg(long, value_parser = linger, value_name = "TIME")]
    linger: Option<Duration>,
    #[arg(long, hide = true, conflicts_with = "linger")]
    linger_ms: Option<u64>,
    /// Make batches smaller while they take longer than this; 0 for never [default: 100ms]
    #[arg(long, value_parser = short_time, value_name = "TIME")]
    batch_latency: Option<Duration>,
    #[arg(long, hide = true, conflicts_with = "batch_latency")]
    batch_latency_ms: Option<u64>,
    /// Maximum number of batches in flight [default: 3]
    #[arg(long, value_name = "N")]
    in_flight: Option<usize>,
    /// Serve /metrics, /healthz and /readyz at this address
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<String>,
    /// Print what would be sent, but send nothing; needs no server unless one is named
    #[arg(long)]
    dry_run: bool,
    /// Number of messages in a dry run
    #[arg(long, default_value_t = 20, value_name = "N", requires = "dry_run")]
    messages: usize,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

impl SinkArguments {
    fn settings(&self) -> anyhow::Result<Config> {
        let path = self.map.display();
        let text = std::fs::read_to_string(&self.map).with_context(|| path.to_string())?;
        let mut config = Config::parse(&text).map_err(|e| anyhow!("{path}: {e}"))?;
        let set = |to: &mut String, from: &Option<String>| {
            if let Some(from) = from {
                to.clone_from(from);
            }
        };
        set(&mut config.from, &self.from);
        if !toml_text::sets(&text, "to") {
            set(&mut config.to, &server::of_environment());
        }
        set(&mut config.to, &self.server.address(self.to.as_deref())?);
        set(&mut config.group, &self.group);
        set(&mut config.stream, &self.stream);
        set(&mut config.consumer, &self.consumer);
        set(&mut config.checkpoint, &self.checkpoint);
        set(&mut config.dead_letter, &self.dead_letter);
        set(&mut config.metrics, &self.metrics);
        if !self.topic.is_empty() {
            config.topics.clone_from(&self.topic);
        }
        let mut properties = self.kafka.clone();
        if let Some(file) = &self.kafka_config {
            let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
            let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
            properties.splice(0..0, lines.map(str::to_string));
        }
        for property in properties {
            // What stands there may be a password, so it is not repeated.
            let (name, value) = property.split_once('=').context("a Kafka setting is written NAME=VALUE")?;
            config.kafka.insert(name.trim().into(), value.trim().into());
        }
        config.envelope |= self.envelope;
        config.until_end |= self.until_end;
        config.exactly_once |= self.exactly_once;
        config.wait_replicas = self.wait.unwrap_or(config.wait_replicas);
        config.batch_messages_max = self.batch.unwrap_or(config.batch_messages_max);
        let ms =
            |time: Option<Duration>, ms: Option<u64>| time.map(|time| time.as_micros().div_ceil(1000) as u64).or(ms);
        config.linger_ms = ms(self.linger, self.linger_ms).unwrap_or(config.linger_ms);
        config.batch_latency_ms = ms(self.batch_latency, self.batch_latency_ms).unwrap_or(config.batch_latency_ms);
        config.in_flight_max = self.in_flight.unwrap_or(config.in_flight_max);
        config.check().map_err(|e| anyhow!("{path}: {e}"))?;
        Ok(config)
    }

    /// The server of the stream, when messages come from one. What `unslow.toml` says of the destination is not for it.
    fn stream(&self, config: &Config) -> anyhow::Result<Option<(Target, Options)>> {
        let schemes = ["redis://", "rediss://", "valkey://", "valkeys://", "unix:", "redis+sentinel://"];
        if !schemes.iter().any(|s| config.from.starts_with(s)) {
            if let Some((scheme, _)) = config.from.split_once("://").filter(|(s, _)| *s != "kafka") {
                bail!(
                    "unknown source {scheme}://; expected a file, -, kafka://host:port, or redis://host:port with \
                     --stream"
                );
            }
            return Ok(None);
        }
        Ok(Some((self.reach.target(&config.from)?, self.reach.options()?)))
    }

    pub fn run(self, output: &Output) -> anyhow::Result<u8> {
        let config = self.settings()?;
        if self.dry_run && output.json() {
            bail!("--dry-run prints the commands as they would be sent; omit --format json");
        }
        let Reached { target, options, .. } = self.server.reached(&config.to, &self.reach)?;
        let stream = self.stream(&config)?;
        let bar = if output.quiet || self.dry_run { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        bar.set_style(ProgressStyle::with_template("{spinner} {msg}").expect("the template is fixed"));
        // Servers and brokers have a say in notes.
        let own = Output { format: output.format, quiet: output.quiet, verbose: output.verbose };
        let shown = bar.clone();
        let note = move |text: &str| shown.suspend(|| own.note(text));
        let from = stream.as_ref().map_or_else(|| config.from.clone(), |(target, _)| target.url());
        let reading = format!("{from} -> {}", target.url());
        if self.dry_run {
            if stream.is_some() {
                return Err(Error::DryRun.into());
            }
            let mut failed = None;
            // Where nothing says which server, none is needed.
            let is_named = self.to.is_some() || self.server.is_named();
            let server = (config.to != Config::default().to || is_named).then_some((&target, &options));
            let (_, bad) = dry_run(&config, server, Arc::new(note), self.messages, |text| {
                match output.print_while_read(&format!("{text}\n")) {
                    Ok(more) => more,
                    Err(e) => {
                        failed = Some(e);
                        false
                    }
                }
            })?;
            return failed.map_or(Ok(u8::from(bad > 0)), Err);
        }
        let sink = Sink::start(Start { config, target, options, stream, note: Arc::new(note) })?;
        let stop =
            unslow_interrupt::guard("finishing batches in flight (Ctrl-C again: stop now; they will be read again)");
        output.note(&reading);
        if let Some(address) = sink.metrics {
            output.note(&format!("metrics at http://{address}/metrics"));
        }
        let (mut last, mut told) = (sink.snapshot(), Instant::now());
        while !sink.ended() {
            std::thread::sleep(Duration::from_millis(20));
            if stop.asked() {
                sink.stop();
            }
            if told.elapsed() >= Duration::from_millis(500) {
                let now = sink.snapshot();
                bar.set_message(progress(&now, &last));
                (last, told) = (now, Instant::now());
                bar.tick();
            }
        }
        bar.finish_and_clear();
        let counted = sink.snapshot();
        let ended = sink.join();
        let snapshot = ended.as_ref().map_or(counted, Clone::clone);
        if output.json() {
            output.print_json(&snapshot.report())?;
        } else {
            output.note(&summary(&snapshot));
        }
        ended?;
        Ok(u8::from(snapshot.dead > 0))
    }
}

fn progress(now: &Snapshot, last: &Snapshot) -> String {
    let per_s = (now.done - last.done) as f64 / (now.seconds - last.seconds).max(0.001);
    let mut text = format!("{} messages, {}, batch p99 {}", now.done, rate(per_s), time_us(now.batch_us_p99 as f64));
    let lag: i64 = now.lag.values().sum();
    if !now.lag.is_empty() {
        text += &format!(", {lag} behind");
    }
    if now.dead > 0 {
        text += &format!(", {} set aside", now.dead);
    }
    let retries: u64 = now.retries.values().sum();
    if retries > 0 {
        text += &format!(", {retries} sent again");
    }
    text
}

fn summary(s: &Snapshot) -> String {
    let mut text = format!(
        "{} messages in {} ({}), {} commands, {} batches",
        s.done,
        time_us(s.seconds * 1e6),
        rate(s.done as f64 / s.seconds.max(0.001)),
        s.commands,
        s.batches
    );
    if s.batches > 0 {
        text += &format!(
            " in {} round trips, p50 {}, p99 {}",
            s.round_trips,
            time_us(s.batch_us_p50 as f64),
            time_us(s.batch_us_p99 as f64)
        );
    }
    if s.skipped > 0 {
        text += &format!("; {} left out", s.skipped);
    }
    if s.dead > 0 {
        text += &format!("; {} set aside", s.dead);
    }
    if s.repeated > 0 {
        text += &format!("; {} calls had already run", s.repeated);
    }
    if !s.retries.is_empty() {
        let each: Vec<String> = s.retries.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
        text += &format!("; sent again: {}", each.join(", "));
    }
    text
}
