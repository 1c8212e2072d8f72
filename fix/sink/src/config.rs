//! Settings as they are written in TOML. docs/sink.toml has every one with its default and its cost.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::mapping::MapSettings;

/// Why settings cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not TOML, or a setting that is not known, or a value that it does not take. Without values.
    #[error("{}{why}", .line.map_or(String::new(), |n| format!("line {n}: ")))]
    Toml { line: Option<usize>, why: String },
    /// A number that cannot work.
    #[error("{name} = {value}: it takes {least} to {most}")]
    Range { name: &'static str, value: u64, least: u64, most: u64 },
    /// Kafka without `topics`.
    #[error("which topics? --topic NAME, once for each")]
    NoTopics,
    /// The server of a stream without `stream`.
    #[error("which stream? --stream KEY")]
    NoStream,
    /// `exactly_once` with standard input.
    #[error(
        "exactly_once knows a message again by its place, and standard input has none; use a file, Kafka or a stream"
    )]
    NoPlace,
    /// A server would count as silent while it waits for its replicas.
    #[error("silence_ms = {silence_ms} must be more than wait_ms = {wait_ms}")]
    ShortSilence { silence_ms: u64, wait_ms: u64 },
    /// `dead_letter = "topic:NAME"` without Kafka.
    #[error("dead letters can go to a topic only when messages come from Kafka")]
    LetterTopic,
}

/// See docs/sink.toml.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// A file, `-`, `kafka://host:port,host:port`, or the URL of a Redis or Valkey server with a stream.
    pub from: String,
    /// The deployment to write to.
    pub to: String,
    /// Kafka topics.
    pub topics: Vec<String>,
    /// Consumer group, of Kafka or of the stream.
    pub group: String,
    /// Key of the stream.
    pub stream: String,
    /// Our name in the stream's group.
    pub consumer: String,
    /// Lines are `{"key": .., "value": .., "topic": ..}`.
    pub envelope: bool,
    /// Where the place in a file is kept.
    pub checkpoint: String,
    /// End when there is nothing more to read.
    pub until_end: bool,
    /// librdkafka's own settings.
    pub kafka: BTreeMap<String, String>,
    /// Messages of a batch at most.
    pub batch_messages_max: usize,
    /// Bytes of a batch, about.
    pub batch_bytes_max: usize,
    /// A batch that is not full waits so long for more.
    pub linger_ms: u64,
    /// Batches get smaller while they take longer; 0: never.
    pub batch_latency_ms: u64,
    /// Batches under way at once.
    pub in_flight_max: usize,
    /// Bytes of them.
    pub memory_bytes_max: usize,
    /// WAIT for so many replicas.
    pub wait_replicas: u32,
    /// For so long before it is asked again.
    pub wait_ms: u64,
    /// Marks in the servers keep repeated messages from changing anything.
    pub exactly_once: bool,
    /// Name of the marks; the group's where it is empty.
    pub marks: String,
    /// Where messages go that cannot be written: a file, `topic:NAME`, or nowhere.
    pub dead_letter: String,
    /// A server that owes answers and says nothing for so long is dialled anew.
    pub silence_ms: u64,
    /// What is under way may take so long when the sink ends.
    pub drain_ms: u64,
    /// Where `/metrics`, `/healthz` and `/readyz` are served; nowhere when empty.
    pub metrics: String,
    /// What becomes of messages.
    pub map: Vec<MapSettings>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            from: "-".into(),
            to: "redis://127.0.0.1:6379".into(),
            topics: Vec::new(),
            group: "unslow-sink".into(),
            stream: String::new(),
            consumer: "unslow-sink".into(),
            envelope: false,
            checkpoint: String::new(),
            until_end: false,
            kafka: BTreeMap::new(),
            batch_messages_max: 5000,
            batch_bytes_max: 8 << 20,
            linger_ms: 5,
            batch_latency_ms: 100,
            in_flight_max: 3,
            memory_bytes_max: 256 << 20,
            wait_replicas: 0,
            wait_ms: 1000,
            exactly_once: false,
            marks: String::new(),
            dead_letter: String::new(),
            silence_ms: 10_000,
            drain_ms: 30_000,
            metrics: String::new(),
            map: Vec::new(),
        }
    }
}

impl Config {
    /// Reads TOML. The error has line and column, and no values.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        toml::from_str(text).map_err(|e| {
            let line = e.span().map(|s| text[..s.start.min(text.len())].matches('\n').count() + 1);
            ConfigError::Toml { line, why: e.message().to_string() }
        })
    }

    /// Whether the numbers can work.
    pub fn check(&self) -> Result<(), ConfigError> {
        let sane = [
            ("batch_messages_max", self.batch_messages_max as u64, 1, 1_000_000),
            ("batch_bytes_max", self.batch_bytes_max as u64, 1024, 1 << 30),
            ("in_flight_max", self.in_flight_max as u64, 1, 1000),
            ("memory_bytes_max", self.memory_bytes_max as u64, 1 << 20, 1 << 40),
            ("linger_ms", self.linger_ms, 0, 60_000),
            ("wait_ms", self.wait_ms, 1, 600_000),
            ("silence_ms", self.silence_ms, 100, 3_600_000),
        ];
        for (name, value, least, most) in sane {
            if !(least..=most).contains(&value) {
                return Err(ConfigError::Range { name, value, least, most });
            }
        }
        if self.from.starts_with("kafka://") && self.topics.is_empty() {
            return Err(ConfigError::NoTopics);
        }
        if self.from == "-" && self.exactly_once {
            return Err(ConfigError::NoPlace);
        }
        if self.wait_replicas > 0 && self.silence_ms <= self.wait_ms {
            return Err(ConfigError::ShortSilence { silence_ms: self.silence_ms, wait_ms: self.wait_ms });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_every_setting_at_its_default() {
        let sample = include_str!("../../../docs/sink.toml");
        let body = sample.split("# [kafka]").next().unwrap();
        let settings = body.lines().filter_map(|l| l.strip_prefix("# ")).filter(|l| {
            l.split_once(" = ").is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        });
        let settings: Vec<&str> = settings.collect();
        let parsed = Config::parse(&settings.join("\n")).unwrap();
        assert_eq!(format!("{parsed:?}"), format!("{:?}", Config::default()));
        let debug = format!("{:#?}", Config::default());
        let fields = debug.lines().filter_map(|l| l.strip_prefix("    ")?.split_once(": ")).map(|(name, _)| name);
        for field in fields.filter(|f| !f.starts_with(' ')) {
            let shown = settings.iter().any(|l| l.starts_with(&format!("{field} = ")))
                || sample.contains(&format!("[{field}]"));
            assert!(shown, "{field} is missing");
        }
        // The example at its end works as well.
        let example: Vec<&str> =
            sample[sample.find("# [[map]]").unwrap()..].lines().filter_map(|l| l.strip_prefix("# ")).collect();
        assert_eq!(Config::parse(&example.join("\n")).unwrap().map.len(), 1);
    }

    #[test]
    fn a_mistake_is_named_and_no_password_repeated() {
        let toml = |line| ConfigError::Toml { line: Some(line), why: String::new() };
        let range = |name, value, least, most| ConfigError::Range { name, value, least, most };
        for (text, kind, expected) in [
            ("batch_messages_max = 0", range("batch_messages_max", 0, 1, 1_000_000), "it takes 1 to"),
            ("wait_ms = 600001", range("wait_ms", 600_001, 1, 600_000), "wait_ms = 600001: it takes 1 to 600000"),
            ("batch_mesages_max = 7", toml(1), "unknown field"),
            ("\nto = redis://:hunter2@h", toml(2), "line 2"),
            (
                "wait_replicas = 1\nwait_ms = 20000",
                ConfigError::ShortSilence { silence_ms: 10_000, wait_ms: 20_000 },
                "silence_ms = 10000 must be more than wait_ms = 20000",
            ),
            ("[[map]]\nformat = \"xml\"", toml(2), "line 2"),
            ("[[map]]\ncommands = [{ run = \"SET a b\", tll = \"1s\" }]", toml(2), "line 2"),
            ("from = \"kafka://h:1\"", ConfigError::NoTopics, "--topic NAME"),
            ("exactly_once = true", ConfigError::NoPlace, "standard input"),
        ] {
            let why = Config::parse(text).and_then(|c| c.check()).unwrap_err();
            let words = why.to_string();
            assert!(words.contains(expected) && !words.contains("hunter2"), "{text}: {words}");
            match (&why, &kind) {
                (ConfigError::Toml { line, .. }, ConfigError::Toml { line: expected, .. }) => {
                    assert_eq!(line, expected, "{text}");
                }
                _ => assert_eq!(why, kind, "{text}"),
            }
        }
    }
}
