//! The gateway's settings, as its TOML file has them. `docs/gateway.toml` lists every one at its default, with its
//! cost.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::clock::US;

/// Which servers answer reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Read {
    /// The master: reads see all writes.
    #[default]
    Primary,
    /// A replica of the shard; the master where none is in sync.
    Replica,
    /// Whoever is nearest by round trip.
    Nearest,
    /// Somebody in the gateway's own zone, else the nearest.
    Zone,
}

/// Least time between two turns of a thread: commands and answers that come meanwhile are taken and written together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Decided every 50 ms: 0.1 ms or less from when the thread is busy half of the time and has many clients, 0 from
    /// when it is busy a quarter of the time.
    Auto,
    /// In microseconds; 0 for no limit.
    Us(u64),
}

impl Batch {
    /// In nanoseconds, where it is not left to the gateway.
    pub fn fixed_ns(self) -> u64 {
        match self {
            Batch::Auto => 0,
            Batch::Us(us) => us.saturating_mul(US),
        }
    }
}

/// As in the file of settings: UNSLOW SHOW CONFIG says it to people.
impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Batch::Auto => std::fmt::Debug::fmt("auto", f),
            Batch::Us(us) => std::fmt::Debug::fmt(us, f),
        }
    }
}

impl<'de> Deserialize<'de> for Batch {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Batch, D::Error> {
        struct Either;
        impl serde::de::Visitor<'_> for Either {
            type Value = Batch;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("\"auto\" or a whole number of microseconds")
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<Batch, E> {
                match word {
                    "auto" => Ok(Batch::Auto),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_i64<E: serde::de::Error>(self, us: i64) -> Result<Batch, E> {
                let wrong = || E::invalid_value(serde::de::Unexpected::Signed(us), &self);
                u64::try_from(us).map(Batch::Us).map_err(|_| wrong())
            }
        }
        source.deserialize_any(Either)
    }
}

/// What cluster-aware clients see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Facade {
    /// One node that owns every slot.
    #[default]
    Node,
    /// The cluster, each node as a port of the gateway.
    Cluster,
}

/// Who logs in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientAuth {
    /// Whoever connects is the user of the target's URL until AUTH says otherwise.
    #[default]
    Gateway,
    /// Nobody is anybody until AUTH, whose user and password the server judges.
    Server,
}

/// Everything that can be set. Times in milliseconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Addresses to listen on: `host:port` or `unix:/path`.
    pub listen: Vec<String>,
    /// The deployment: any URL the other verbs take.
    pub target: String,
    /// Threads, each with its own connections to every node.
    pub threads: usize,
    /// Where `/metrics`, `/healthz` and `/readyz` are served over HTTP; nowhere when empty.
    pub metrics: String,
    /// Socket through which a newer gateway takes over; none when empty.
    pub handover: String,
    /// See [`Read`].
    pub read: Read,
    /// Our own availability zone.
    pub zone: Option<String>,
    /// Zones of nodes that do not tell it themselves: address to zone.
    pub zones: BTreeMap<String, String>,
    /// Replicas further behind than this get no reads.
    pub max_lag_bytes: Option<u64>,
    /// See [`Facade`].
    pub facade: Facade,
    /// See [`ClientAuth`].
    pub client_auth: ClientAuth,
    /// Refuse MSET over several slots too.
    pub strict: bool,
    /// Commands that may be sent twice when a connection broke and nobody knows whether they ran.
    pub idempotent: Vec<String>,
    /// A node that owes the watcher an answer this long is suspected to hang.
    pub suspect_ms: u64,
    /// See [`Batch`].
    pub batch_us: Batch,
    /// Commands wait this long for a node that can take them.
    pub hold_ms: u64,
    /// Bytes that wait for one node, per thread; more and its clients are not read.
    pub hold_bytes: usize,
    /// Commands of one client that wait for answers; more and it is not read.
    pub client_pending: usize,
    /// Bytes that wait for a client that does not read; more and it is closed.
    pub client_output_bytes: usize,
    /// The same for all clients together; those that hold most are closed.
    pub output_bytes: usize,
    /// Bytes of a request that one client may keep waiting for its end; more and it is closed.
    pub client_input_bytes: usize,
    /// The same for all clients together.
    pub input_bytes: usize,
    /// Clients, all threads together; more are refused.
    pub max_clients: usize,
    /// A client silent this long is closed; 0 for never.
    pub client_idle_ms: u64,
    /// Connections to one node that single clients have alone, all threads together; more have to wait. 0: half of the
    /// server's `maxclients`, 1,000 where that is not known.
    pub own_connections: usize,
    /// Dedicated server connections kept for the next who needs one, per node and thread.
    pub pool: usize,
    /// How long a connection to a server may take to open.
    pub connect_ms: u64,
    /// How long clients may take to finish when the gateway is told to end.
    pub drain_ms: u64,
    /// One in so many keys is counted for the list of hottest keys; 0 for none.
    pub key_sample: u32,
    /// Show key names in that list; else their slot and a digest.
    pub show_keys: bool,
    /// Certificate and key (PEM) for clients that come with TLS, and the CA that signs theirs.
    pub tls_cert: Option<PathBuf>,
    /// See `tls_cert`.
    pub tls_key: Option<PathBuf>,
    /// See `tls_cert`; clients need no certificate when it is missing.
    pub tls_client_ca: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            listen: vec!["127.0.0.1:6400".into()],
            target: "redis://127.0.0.1:6379".into(),
            threads: 1,
            metrics: String::new(),
            handover: String::new(),
            read: Read::Primary,
            zone: None,
            zones: BTreeMap::new(),
            max_lag_bytes: None,
            facade: Facade::Node,
            client_auth: ClientAuth::Gateway,
            strict: false,
            idempotent: Vec::new(),
            suspect_ms: 250,
            batch_us: Batch::Us(0),
            hold_ms: 10_000,
            hold_bytes: 16 << 20,
            client_pending: 8192,
            client_output_bytes: 64 << 20,
            output_bytes: 1 << 30,
            client_input_bytes: 64 << 20,
            input_bytes: 256 << 20,
            max_clients: 50_000,
            client_idle_ms: 0,
            own_connections: 0,
            pool: 16,
            connect_ms: 2000,
            drain_ms: 10_000,
            key_sample: 32,
            show_keys: false,
            tls_cert: None,
            tls_key: None,
            tls_client_ca: None,
        }
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The text is not TOML, or has a setting that is none. The line is counted from 1 and never repeated: it may hold
    /// a password.
    #[error("near line {line}: {why}")]
    Text { line: usize, why: String },
    /// A number is outside of what makes sense, both ends included.
    #[error("{name} = {value}: between {least} and {most} was expected")]
    Outside { name: &'static str, value: u64, least: u64, most: u64 },
    /// No address to listen on.
    #[error("listen is empty: nobody could connect; write listen = [\"127.0.0.1:6400\"]")]
    ListensNowhere,
    /// Ports of a facade cannot be handed over.
    #[error("facade = \"cluster\" has ports that cannot be handed over; leave handover empty")]
    FacadeHandedOver,
    /// A certificate without its key, or the other way round.
    #[error("tls_cert and tls_key belong together: give both or neither")]
    HalfOfTls,
    /// Reads of the own zone without one.
    #[error("read = \"zone\" needs to know our own zone: write zone = \"...\"")]
    ZoneUnknown,
}

impl Config {
    /// Reads a file's text; the error says the line.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        // The offending line is not repeated: it may hold a password.
        let place = |e: &toml::de::Error| {
            let at = e.span().map_or(0, |s| s.start);
            text.get(..at).map_or(1, |t| 1 + t.matches('\n').count())
        };
        let config: Config =
            toml::from_str(text).map_err(|e| ConfigError::Text { line: place(&e), why: e.message().to_string() })?;
        config.check()?;
        Ok(config)
    }

    /// Whether it makes sense.
    pub fn check(&self) -> Result<(), ConfigError> {
        let within = |name, value, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(ConfigError::Outside { name, value, least, most }),
        };
        within("threads", self.threads as u64, 1, 64)?;
        within("suspect_ms", self.suspect_ms, 50, 60_000)?;
        within("batch_us", self.batch_us.fixed_ns() / US, 0, 10_000)?;
        within("hold_ms", self.hold_ms, 10, 600_000)?;
        within("hold_bytes", self.hold_bytes as u64, 1 << 20, 4 << 30)?;
        within("client_pending", self.client_pending as u64, 1, 1 << 20)?;
        within("client_output_bytes", self.client_output_bytes as u64, 1 << 20, 4 << 30)?;
        within("client_input_bytes", self.client_input_bytes as u64, 1 << 10, 4 << 30)?;
        within("input_bytes", self.input_bytes as u64, 1 << 20, 1 << 40)?;
        within("output_bytes", self.output_bytes as u64, 1 << 20, 1 << 40)?;
        within("max_clients", self.max_clients as u64, 1, 1 << 20)?;
        within("own_connections", self.own_connections as u64, 0, 1 << 20)?;
        within("connect_ms", self.connect_ms, 10, 600_000)?;
        if self.listen.is_empty() {
            return Err(ConfigError::ListensNowhere);
        }
        if self.facade == Facade::Cluster && !self.handover.is_empty() {
            return Err(ConfigError::FacadeHandedOver);
        }
        if self.tls_cert.is_some() != self.tls_key.is_some() {
            return Err(ConfigError::HalfOfTls);
        }
        if self.read == Read::Zone && self.zone.is_none() {
            return Err(ConfigError::ZoneUnknown);
        }
        Ok(())
    }

    /// Keeps of `running` what a running gateway cannot change.
    pub fn keep_fixed(&mut self, running: &Config) {
        let old = running.clone();
        (self.listen, self.target, self.threads, self.facade) = (old.listen, old.target, old.threads, old.facade);
        (self.suspect_ms, self.metrics, self.handover) = (old.suspect_ms, old.metrics, old.handover);
        (self.tls_cert, self.tls_key, self.tls_client_ca) = (old.tls_cert, old.tls_key, old.tls_client_ca);
    }

    /// Settings that a running gateway cannot change, where they differ.
    pub fn fixed_differences(&self, other: &Config) -> Vec<&'static str> {
        let pairs = [
            ("listen", self.listen == other.listen),
            ("target", self.target == other.target),
            ("threads", self.threads == other.threads),
            ("metrics", self.metrics == other.metrics),
            ("handover", self.handover == other.handover),
            ("facade", self.facade == other.facade),
            ("suspect_ms", self.suspect_ms == other.suspect_ms),
            ("tls_cert", self.tls_cert == other.tls_cert),
            ("tls_key", self.tls_key == other.tls_key),
            ("tls_client_ca", self.tls_client_ca == other.tls_client_ca),
        ];
        pairs.iter().filter(|(_, same)| !same).map(|(name, _)| *name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_has_every_setting_at_its_default() {
        let sample = include_str!("../../../docs/gateway.toml");
        let settings = sample.lines().filter_map(|l| l.strip_prefix("# ")).filter(|l| {
            l.split_once(" = ").is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        });
        // Examples, since their default is "none".
        let examples = ["zone", "max_lag_bytes", "tls_cert", "tls_key", "tls_client_ca"];
        let (shown, set): (Vec<&str>, Vec<&str>) =
            settings.partition(|l| examples.contains(&l.split(' ').next().unwrap_or("")));
        assert_eq!(shown.len(), examples.len(), "{shown:?}");
        assert_eq!(Config::parse(&set.join("\n")).unwrap(), Config::default());
        let debug = format!("{:#?}", Config::default());
        let fields = debug.lines().filter_map(|l| l.strip_prefix("    ")?.split_once(": ")).map(|(name, _)| name);
        for field in fields.filter(|f| !f.starts_with(' ')) {
            assert!(
                sample.contains(&format!("# {field} = ")) || sample.contains(&format!("[{field}]")),
                "{field} is missing"
            );
        }
    }

    #[test]
    fn a_mistake_is_named_and_no_password_repeated() {
        for (text, expected) in [
            ("threads = 0", "between 1 and 64"),
            ("tls_cert = \"a\"", "belong together"),
            ("read = \"zone\"", "zone ="),
            ("listen = []", "nobody could connect"),
            ("facade = \"cluster\"\nhandover = \"/x\"", "cannot be handed over"),
            ("target = \"redis://:hunter2@h\"\nthreads = \"two\"", "near line 2"),
            ("target = redis://:hunter2@h", "near line 1"),
            ("threads = 1\nthread = 2", "near line 2: "),
            ("threads = 1\n\nthread = 2\nhold_ms = 20", "near line 3: "),
            ("own_connections = 2000000", "between 0 and 1048576"),
        ] {
            let why = Config::parse(text).unwrap_err().to_string();
            assert!(why.contains(expected) && !why.contains("hunter2"), "{text}: {why}");
        }
    }

    #[test]
    fn limits_are_inclusive_and_anything_beyond_is_refused() {
        for (text, allowed) in [
            ("threads = 64", true),
            ("threads = 65", false),
            ("suspect_ms = 50", true),
            ("suspect_ms = 49", false),
            ("batch_us = 10000", true),
            ("batch_us = 10001", false),
            ("batch_us = -1", false),
            ("batch_us = \"auto\"", true),
            ("batch_us = \"always\"", false),
            ("hold_ms = 600000", true),
            ("hold_ms = 600001", false),
            ("hold_bytes = 1048576", true),
            ("hold_bytes = 1048575", false),
            ("output_bytes = 1048576", true),
            ("output_bytes = 1048575", false),
            ("input_bytes = 0", false),
            ("client_pending = 0", false),
            ("connect_ms = 9", false),
            ("facade = \"cluster\"", true),
            ("tls_cert = \"a\"\ntls_key = \"b\"", true),
            ("read = \"zone\"\nzone = \"a\"", true),
        ] {
            assert_eq!(Config::parse(text).is_ok(), allowed, "{text}: {:?}", Config::parse(text));
        }
    }

    #[test]
    fn only_settings_that_need_a_restart_are_named() {
        let old = Config::default();
        for (new, expected) in [
            (Config { listen: vec!["127.0.0.1:1".into()], ..old.clone() }, &["listen"][..]),
            (Config { tls_key: Some("k.pem".into()), ..old.clone() }, &["tls_key"][..]),
            (Config { tls_client_ca: Some("ca.pem".into()), ..old.clone() }, &["tls_client_ca"][..]),
            (Config { threads: 2, facade: Facade::Cluster, ..old.clone() }, &["threads", "facade"][..]),
            (
                Config {
                    hold_ms: 1,
                    batch_us: Batch::Us(1),
                    pool: 0,
                    read: Read::Replica,
                    strict: true,
                    ..old.clone()
                },
                &[][..],
            ),
        ] {
            assert_eq!(new.fixed_differences(&old), expected);
            // What stays as it was differs at the next reload too.
            let mut kept = new.clone();
            kept.keep_fixed(&old);
            assert!(kept.fixed_differences(&old).is_empty());
            assert_eq!(new.fixed_differences(&kept), expected);
        }
    }
}
