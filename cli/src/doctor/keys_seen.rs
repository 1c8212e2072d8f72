//! `--keys FILE`: what `unslow keys` has seen, as evidence.

use std::path::Path;

use anyhow::{Context, bail};
use serde::Deserialize;
use unslow_facts::{Facts, HotKeys, KeyPattern, KeysSeen, LongKey};

/// Patterns that a diagnosis keeps.
const PATTERNS: usize = 20;
/// Of the longest keys, of each type; and of the hot ones, of each server, by CPU time and by bytes.
const OF_EACH: usize = 3;
const SCHEMA: &str = "unslow.keys/1";

/// What of the document is read.
#[derive(Deserialize)]
struct Document {
    schema: String,
    at_ms: u64,
    keys: u64,
    scanned: u64,
    servers: Vec<Server>,
    patterns: Vec<Pattern>,
    longest: Vec<Long>,
    /// Not in documents of an unslow that did not know HOTKEYS.
    #[serde(default)]
    hot: Vec<HotKeys>,
}

#[derive(Deserialize)]
struct Long {
    server: String,
    key: String,
    pattern: String,
    kind: String,
    length: Option<u64>,
}

#[derive(Deserialize)]
struct Server {
    server: String,
    shard: String,
}

#[derive(Deserialize)]
struct Pattern {
    pattern: String,
    keys: Estimate,
    lasting_share: Option<f64>,
    memory: Option<Estimate>,
}

#[derive(Deserialize)]
struct Estimate {
    value: f64,
}

/// A walk that was kept, and the servers it was at.
pub struct Walk {
    seen: KeysSeen,
    servers: Vec<String>,
    name: String,
}

/// Reads a file; before the window, as all files.
pub fn read(path: &Path) -> anyhow::Result<Walk> {
    let name = path.display().to_string();
    let text = super::read(path)?;
    let document: Document = serde_json::from_str(&text)
        .with_context(|| format!("{name}: not a document written by unslow keys --format json"))?;
    if document.schema != SCHEMA {
        bail!("{name}: its schema is {:.40}; expected {SCHEMA}", document.schema);
    }
    let pattern = |p: Pattern| KeyPattern {
        pattern: p.pattern,
        keys: p.keys.value,
        lasting_share: p.lasting_share,
        memory: p.memory.map(|memory| memory.value),
    };
    let patterns = document.patterns.into_iter().take(PATTERNS).map(pattern).collect();
    let servers = document.servers.into_iter().flat_map(|of| [of.server, of.shard]);
    let servers = servers.chain(document.hot.iter().map(|of| of.server.clone())).collect();
    let mut hot = document.hot;
    // They are in the order of their CPU time; those with the most bytes may be behind.
    for of in &mut hot {
        let mut by_bytes = of.keys.split_off(OF_EACH.min(of.keys.len()));
        by_bytes.sort_by(|a, b| b.net_share.unwrap_or(0.0).total_cmp(&a.net_share.unwrap_or(0.0)));
        of.keys.extend(by_bytes.into_iter().take(OF_EACH));
    }
    let seen = KeysSeen {
        at_ms: document.at_ms,
        keys: document.keys,
        scanned: document.scanned,
        patterns,
        longest: longest(document.longest),
        hot,
    };
    // Its numbers are checked as those of a facts file are.
    let facts = Facts { keys_seen: Some(seen.clone()), window_s: 1.0, ..Facts::of_nothing("") };
    facts.check().with_context(|| name.clone())?;
    Ok(Walk { seen, servers, name })
}

/// The first of each type.
fn longest(keys: Vec<Long>) -> Vec<LongKey> {
    let mut all: Vec<LongKey> = Vec::new();
    for Long { server, key, pattern, kind, length } in keys {
        if let Some(length) = length
            && all.iter().filter(|other| other.kind == kind).count() < OF_EACH
        {
            all.push(LongKey { server, key, pattern, kind, length });
        }
    }
    all
}

impl Walk {
    /// Adds it to what was seen of the same servers. A walk of others is no reason to lose the diagnosis.
    pub fn add_to(self, facts: &mut Facts) {
        if self.servers.iter().any(|address| facts.node(address).is_some()) {
            facts.keys_seen = Some(self.seen);
        } else {
            let of = self.servers.first().map_or("none", String::as_str);
            facts.notes.push(format!("--keys: {} is of other servers ({of}); it was left out", self.name));
        }
    }
}
