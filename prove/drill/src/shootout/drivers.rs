//! The drivers: carried as sources, given their libraries in the cache directory by each language's own tools.

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value as Json;
use unslow_engine::{cache_dir, spawn_bound};

use super::{Group, SLOW_US, Seen};
use crate::run::interrupted;
use crate::store::Folder;

/// A language: files, and what gives them their libraries.
struct Language {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    /// What makes it ready, a command after the other.
    make: &'static [&'static [&'static str]],
}

/// A source of our extension of Lettuce, compiled with its driver: it is in no registry yet.
macro_rules! extension {
    ($name:literal) => {
        (
            concat!("src/main/java/io/github/unslow/lettuce/", $name),
            include_str!(concat!("../../../../fix/lettuce/core/src/main/java/io/github/unslow/lettuce/", $name)),
        )
    };
}

const JAVA: Language = Language {
    name: "java",
    files: &[
        ("pom.xml", include_str!("../../drivers/java/pom.xml")),
        ("src/main/java/Driver.java", include_str!("../../drivers/java/src/main/java/Driver.java")),
        extension!("Announcement.java"),
        extension!("ClusterNodesReply.java"),
        extension!("Failures.java"),
        extension!("HungNodes.java"),
        extension!("NetAddresses.java"),
        extension!("NodeLinks.java"),
        extension!("PushChannels.java"),
        extension!("ShardChannels.java"),
        extension!("SilenceWatch.java"),
        extension!("Topology.java"),
        extension!("TopologyAgent.java"),
        extension!("TopologyOptions.java"),
        extension!("TopologyStatus.java"),
        extension!("UnslowRedisClusterClient.java"),
        extension!("ViewMerge.java"),
    ],
    make: &[&["mvn", "-q", "-B", "compile", "dependency:copy-dependencies"]],
};
const PYTHON: Language = Language {
    name: "python",
    files: &[("driver.py", include_str!("../../drivers/python/driver.py"))],
    make: &[&["python3", "-m", "pip", "install", "--quiet", "--target", "library", "redis==8.1.0"]],
};
const NODE: Language = Language {
    name: "node",
    files: &[
        ("package.json", include_str!("../../drivers/node/package.json")),
        ("driver.mjs", include_str!("../../drivers/node/driver.mjs")),
    ],
    make: &[&["npm", "install", "--silent", "--no-audit", "--no-fund"]],
};
const GO: Language = Language {
    name: "go",
    files: &[
        ("go.mod", include_str!("../../drivers/go/go.mod")),
        ("main.go", include_str!("../../drivers/go/main.go")),
    ],
    make: &[&["go", "mod", "tidy"], &["go", "build", "-o", "driver", "."]],
};

/// Every client, and the language of its driver; `None` for models of `unslow bench`.
const ALL: &[(&str, Option<&Language>)] = &[
    ("jedis", Some(&JAVA)),
    ("lettuce", Some(&JAVA)),
    ("lettuce-refreshing", Some(&JAVA)),
    ("lettuce-unslow", Some(&JAVA)),
    ("redis-py", Some(&PYTHON)),
    ("go-redis", Some(&GO)),
    ("node-redis", Some(&NODE)),
    ("bench-pool", None),
    ("bench-shared", None),
];

/// What can be asked for.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// A client that can be started.
#[derive(Clone)]
pub struct Prepared {
    name: &'static str,
    dir: PathBuf,
    binary: PathBuf,
}

/// What a driver is told.
pub struct Facts {
    /// A node of the cluster.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// Threads.
    pub threads: usize,
    /// Commands of each.
    pub rate_per_s: f64,
    /// Of a command.
    pub timeout: Duration,
    /// A key of the shard that is hit, and one of another.
    pub keys: [String; 2],
    /// How long `bench` runs; drivers run until their input ends.
    pub length: Duration,
}

/// Why a client cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum DriverError {
    /// No client has this name.
    #[error("no client {0:?}")]
    Unknown(String),
    /// Its sources, or the file of what its tools say, could not be written.
    #[error("{file}: {why}")]
    File { file: String, why: std::io::Error },
    /// A tool of its language is not installed.
    #[error("{tool} could not be started ({why}); it is needed once, to prepare the client")]
    NoTool { tool: String, why: std::io::Error },
    /// A tool that started could not be waited for.
    #[error("{tool}: {why}")]
    Unwaited { tool: String, why: std::io::Error },
    /// A tool failed: its last line.
    #[error("{command}: {said}")]
    Failed { command: String, said: String },
    /// A signal came meanwhile.
    #[error("interrupted")]
    Interrupted,
}

/// Its sources in the cache directory, with their libraries; made anew when they have changed.
pub fn prepare(name: &str, binary: &Path) -> Result<Prepared, DriverError> {
    let known = ALL.iter().find(|(n, _)| *n == name);
    let (name, language) = known.ok_or_else(|| DriverError::Unknown(name.into()))?;
    let Some(language) = language else {
        return Ok(Prepared { name, dir: PathBuf::new(), binary: binary.to_path_buf() });
    };
    let dir = cache_dir().join("drivers").join(language.name);
    let all: String = language.files.iter().map(|(_, text)| *text).collect();
    let mark = dir.join("made");
    if std::fs::read_to_string(&mark).is_ok_and(|made| made == all) {
        return Ok(Prepared { name, dir, binary: binary.to_path_buf() });
    }
    let unwritten = |path: &Path, why| DriverError::File { file: path.display().to_string(), why };
    for (file, text) in language.files {
        let path = dir.join(file);
        let parent = path.parent().unwrap_or(&dir);
        std::fs::create_dir_all(parent)
            .and_then(|()| std::fs::write(&path, text))
            .map_err(|why| unwritten(&path, why))?;
    }
    for command in language.make {
        run_through(command, &dir)?;
    }
    std::fs::write(&mark, all).map_err(|why| unwritten(&mark, why))?;
    Ok(Prepared { name, dir, binary: binary.to_path_buf() })
}

/// Runs a command to its end, or to Ctrl-C.
fn run_through(words: &[&str], dir: &Path) -> Result<(), DriverError> {
    let no_log = |why| DriverError::File { file: "a temporary file".into(), why };
    let mut log = tempfile::tempfile().map_err(no_log)?;
    let out = || log.try_clone().map_err(no_log);
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(dir).stdin(Stdio::null()).stdout(out()?).stderr(out()?);
    let tool = || words[0].to_string();
    let child = spawn_bound(command).map_err(|why| DriverError::NoTool { tool: tool(), why })?;
    let mut group = Group(child);
    let status = loop {
        match group.0.try_wait().map_err(|why| DriverError::Unwaited { tool: tool(), why })? {
            Some(status) => break status,
            None if interrupted() => return Err(DriverError::Interrupted),
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut said = Vec::new();
    let _ = log.rewind().and_then(|()| log.read_to_end(&mut said));
    let said = String::from_utf8_lossy(&said);
    let said = said.trim().lines().next_back().unwrap_or("failed").to_string();
    Err(DriverError::Failed { command: words.join(" "), said })
}

impl Prepared {
    /// How it is started.
    pub fn command(&self, facts: &Facts) -> Command {
        let at = |file: &str| self.dir.join(file);
        let every_us = (1e6 / facts.rate_per_s) as u64;
        let (port, threads) = (facts.port.to_string(), facts.threads.to_string());
        let (every, timeout) = (every_us.to_string(), facts.timeout.as_millis().to_string());
        let keys = facts.keys.join(",");
        let words = [facts.host.as_str(), &port, &threads, &every, &timeout, &keys];
        let mut command = match self.name {
            "redis-py" => {
                let mut command = Command::new("python3");
                command.arg(at("driver.py")).env("PYTHONPATH", at("library"));
                command
            }
            "node-redis" => {
                let mut command = Command::new("node");
                command.arg(at("driver.mjs"));
                command
            }
            "go-redis" => Command::new(at("driver")),
            model if model.starts_with("bench") => {
                let mut command = Command::new(&self.binary);
                let model = if model == "bench-shared" { "shared" } else { "pool:8" };
                let rate = facts.rate_per_s * facts.threads as f64;
                command.args(["bench", &unslow_topology::join_host_port(&facts.host, facts.port), "--model", model]);
                command.args(["--callers", &threads, "--rate", &rate.to_string()]);
                command.args(["--timeout", &facts.timeout.as_secs_f64().to_string()]);
                command.args(["--seconds", &facts.length.as_secs().to_string(), "--format", "json", "--quiet"]);
                command.args(["--yes", "--keep-keys"]);
                command.args(["--command", &format!("SET {} {{value}}", braced(&facts.keys[0]))]);
                return command;
            }
            java => {
                let mut command = Command::new("java");
                let classes = format!("{}:{}/*", at("target/classes").display(), at("target/dependency").display());
                command.args(["-Xmx256m", "-cp", &classes, "Driver", java]);
                command
            }
        };
        command.args(words);
        command
    }
}

/// Braces of a hash tag in a template of `unslow bench`.
fn braced(key: &str) -> String {
    key.replace('{', "{{").replace('}', "}}")
}

/// What a run of `unslow bench` says of the fault, to the second: the longest time without an answer, or the longest
/// latency where that is shorter. Its schedule goes on during an outage: each request that was due then is a slow one.
pub fn bench_seen(name: &str, fault: &str, folder: &Folder) -> Seen {
    let text = std::fs::read_to_string(folder.path().join(format!("{name}.json"))).unwrap_or_default();
    let report: Json = serde_json::from_str(&text).unwrap_or_default();
    let run = &report["runs"][0];
    let number = |v: &Json| v.as_f64().unwrap_or(0.0);
    let Some(percentiles) = run["percentiles"].as_array() else {
        return Seen {
            client: name.into(),
            fault: fault.into(),
            missing: Some("it exited without a report".into()),
            ..Seen::default()
        };
    };
    // Between two points of the distribution it is taken for a line.
    let points: Vec<(f64, f64)> = percentiles.iter().map(|p| (number(&p["us"]), number(&p["share"]))).collect();
    let at = points.partition_point(|(us, _)| *us <= SLOW_US as f64);
    let fast = match (at.checked_sub(1).map(|i| points[i]), points.get(at)) {
        (Some((us, share)), Some((next_us, next))) => {
            share + (next - share) * (SLOW_US as f64 - us) / (next_us - us).max(1.0)
        }
        (Some((_, share)), None) => share,
        (None, _) => 0.0,
    };
    let (mut silent, mut longest) = (0, 0);
    for second in run["timeline"].as_array().map_or(&[][..], |t| t) {
        silent = if number(&second["answered"]) == 0.0 { silent + 1_000_000 } else { 0 };
        longest = longest.max(silent);
    }
    let kinds = run["errors"].as_array().map_or(&[][..], |e| e);
    Seen {
        client: name.into(),
        version: format!("unslow {}", env!("CARGO_PKG_VERSION")),
        fault: fault.into(),
        missing: None,
        commands: number(&run["requests"]) as u64,
        errors: kinds.iter().map(|k| number(&k["count"]) as u64).sum(),
        error_kinds: kinds
            .iter()
            .map(|k| format!("{} {}", k["count"], k["kind"].as_str().unwrap_or_default()))
            .collect(),
        slow_share: 1.0 - fast,
        latency_us_p50: number(&run["latency"]["us_p50"]) as u64,
        latency_us_p99: number(&run["latency"]["us_p99"]) as u64,
        recovery_us: Some(longest.max(number(&run["latency"]["us_max"]) as u64)),
        never: silent > 2_000_000,
        ..Seen::default()
    }
}
