//! What is asked: commands, keys, values, all drawn from a seed.
//!
//! Every request has a number, and all that is random about it follows from the seed and that number: a run can be
//! repeated request by request, and a redirected request is rendered again without having been kept.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rand::RngCore;
use rand_distr::{Distribution, Zipf};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use unslow_topology::slot_of;
use unslow_units::{did_you_mean, parse_bytes, parse_share};

use crate::built_in::{BUILT_IN, READS};
use crate::command::Command;
use crate::error::WorkloadError;
use crate::replay::{LEFT_OUT, Recording};
use crate::template::{Fill, Template};

/// A workload as a person writes it: flags, or a TOML file with these names.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Spec {
    /// Commands and their shares, as `{get = 0.9, set = 0.1}`. Names of built-in commands, or of those in `commands`.
    pub mix: BTreeMap<String, f64>,
    /// Command templates, each as `TEMPLATE` or `NAME=TEMPLATE`.
    pub commands: Vec<String>,
    /// Size of the key space.
    pub keys: u64,
    /// What built-in commands put in front of a key's number.
    pub key_prefix: String,
    /// `uniform`, `zipf:EXPONENT`, `hot:SHARE_OF_KEYS:SHARE_OF_REQUESTS`, `sequential`.
    pub key_distribution: String,
    /// Bytes: `64`, `16-1024` (uniform), `64:0.7,1024:0.2,65536:0.1` (weights).
    pub value_size: String,
    /// Seconds until keys written by the built-in `set` expire.
    pub expire_s: Option<u64>,
    /// Commands in a MULTI/EXEC block, all on one key; 0 is no block.
    pub multi: u32,
    /// Lua script, loaded into every master; `{sha}` in a template is its digest.
    pub script: Option<PathBuf>,
    /// Recorded commands to send in place of drawn ones: MONITOR's output, or one command a line.
    pub replay: Option<PathBuf>,
    /// Begin the recording again when it ends, until the run is over; otherwise a run sends it once.
    pub replay_loop: bool,
    /// Compare what `get` brings with what was written.
    pub verify: bool,
    /// Write every key once before the run; by default where the mix reads with `get`.
    pub preload: Option<bool>,
    /// Seed of all that is drawn.
    pub seed: u64,
}

impl Default for Spec {
    fn default() -> Spec {
        Spec {
            mix: BTreeMap::new(),
            commands: Vec::new(),
            keys: 100_000,
            key_prefix: "unslow:".into(),
            key_distribution: "uniform".into(),
            value_size: "64".into(),
            expire_s: None,
            multi: 0,
            script: None,
            replay: None,
            replay_loop: false,
            verify: false,
            preload: None,
            seed: 1,
        }
    }
}

/// A compiled workload.
#[derive(Debug)]
pub struct Workload {
    /// Kinds of requests.
    pub commands: Vec<Command>,
    /// Recorded commands, in place of `commands`' templates.
    pub recording: Option<Recording>,
    /// Compare replies of `get`.
    pub verify: bool,
    keys: u64,
    distribution: Keys,
    sizes: Sizes,
    /// Values are slices of it, at a place that follows from the key.
    bytes: Vec<u8>,
    multi: u32,
    seed: u64,
}

#[derive(Debug)]
enum Keys {
    Uniform,
    Zipf(Zipf<f64>),
    /// The first `keys` of them get `share` of the requests.
    Hot {
        keys: u64,
        share: f64,
    },
    Sequential,
}

#[derive(Debug)]
enum Sizes {
    Fixed(usize),
    Range(usize, usize),
    /// Size, and share of requests up to and with it.
    Weighted(Vec<(usize, f64)>),
}

/// What was drawn for one request.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Index into [`Workload::commands`].
    pub command: u16,
    /// The key's number.
    pub key: u64,
    size: u32,
}

impl Workload {
    /// Compiles a workload; `sha` is the loaded script's digest.
    pub fn compile(spec: &Spec, sha: Option<&str>) -> Result<Workload, WorkloadError> {
        if spec.keys == 0 || spec.keys > 999_999_999_999 {
            return Err(WorkloadError::Keys(spec.keys));
        }
        let recording = spec.replay.as_deref().map(Recording::load).transpose()?;
        if recording.is_some()
            && let Some(what) = drawn(spec)
        {
            return Err(WorkloadError::DrawnInReplay(what));
        }
        if spec.script.is_some() && !spec.commands.iter().any(|c| c.contains("{sha}")) {
            return Err(WorkloadError::ScriptUnused);
        }
        let own = own_templates(spec, sha)?;
        let commands = match &recording {
            Some(recording) => recorded_commands(recording),
            None => drawn_commands(spec, &own)?,
        };
        if commands.len() > 200 {
            return Err(WorkloadError::TooManyKinds(commands.len()));
        }
        if spec.multi > 1000 {
            return Err(WorkloadError::LongBlock);
        }
        if spec.verify && (spec.multi > 0 || !commands.iter().any(|c| c.is_get)) {
            return Err(WorkloadError::NothingToVerify);
        }
        let sizes = Sizes::parse(&spec.value_size)?;
        let mut dice = Dice(spec.seed ^ 0x5eed);
        let mut bytes = vec![0u8; sizes.max() + 4096];
        for byte in &mut bytes {
            *byte = b'a' + (dice.next_u64() % 26) as u8;
        }
        Ok(Workload {
            commands,
            recording,
            verify: spec.verify,
            keys: spec.keys,
            distribution: Keys::parse(&spec.key_distribution, spec.keys)?,
            sizes,
            bytes,
            multi: spec.multi,
            seed: spec.seed,
        })
    }

    /// Every key once, with its value: what comes before a run that reads.
    pub fn preload(spec: &Spec) -> Result<Workload, WorkloadError> {
        let mut workload = Workload::compile(
            &Spec {
                mix: BTreeMap::from([("set".to_string(), 1.0)]),
                commands: Vec::new(),
                key_distribution: "sequential".into(),
                script: None,
                replay: None,
                verify: false,
                preload: None,
                ..spec.clone()
            },
            None,
        )?;
        workload.multi = 0; // the keys of the blocks, one by one
        Ok(workload)
    }

    /// Recorded commands, each once.
    pub fn of_recording(recording: Recording, spec: &Spec) -> Result<Workload, WorkloadError> {
        let commands = recorded_commands(&recording);
        Ok(Workload { commands, recording: Some(recording), ..Workload::preload(spec)? })
    }

    /// Seed of all that is drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Whether a preload serves it: it reads what the built-in `set` writes.
    pub fn wants_preload(&self) -> bool {
        self.recording.is_none() && self.commands.iter().any(|c| c.is_get)
    }

    /// What request number `seq` is.
    #[inline]
    pub fn draw(&self, seq: u64) -> Draw {
        if let Some(recording) = &self.recording {
            return Draw { command: recording.kind(seq), key: 0, size: 0 };
        }
        let mut dice = self.dice(seq);
        let command = if self.commands.len() == 1 { 0 } else { self.pick(&mut dice) };
        let key = match &self.distribution {
            Keys::Uniform => dice.below(self.keys),
            Keys::Sequential => seq % self.keys,
            // Ranks are scattered over the key space, as popular keys are.
            Keys::Zipf(zipf) => {
                // shares no factor with a smaller key space: no two ranks meet
                const PRIME: u128 = 11_400_714_819_323_198_549;
                ((zipf.sample(&mut dice) as u128 - 1) * PRIME % u128::from(self.keys)) as u64
            }
            Keys::Hot { keys, share } => {
                if dice.unit() < *share {
                    dice.below(*keys)
                } else {
                    keys + dice.below((self.keys - keys).max(1))
                }
            }
        };
        let size = match &self.sizes {
            Sizes::Fixed(size) => *size,
            Sizes::Range(a, b) => a + dice.below((b - a + 1) as u64) as usize,
            Sizes::Weighted(sizes) => {
                let x = dice.unit();
                sizes.iter().find(|(_, upto)| x < *upto).or(sizes.last()).map_or(0, |(size, _)| *size)
            }
        };
        Draw { command, key, size: size as u32 }
    }

    fn dice(&self, seq: u64) -> Dice {
        Dice(self.seed.wrapping_mul(0xd134_2543_de82_ef95) ^ seq.wrapping_mul(0xa076_1d64_78bd_642f))
    }

    #[inline]
    fn pick(&self, dice: &mut Dice) -> u16 {
        let x = dice.unit();
        self.commands.iter().position(|c| x < c.upto).unwrap_or(self.commands.len() - 1) as u16
    }

    /// Appends request number `seq`; returns how many replies it gets.
    #[inline]
    pub fn render(&self, out: &mut Vec<u8>, seq: u64, draw: Draw, now: u64) -> u16 {
        if let Some(recording) = &self.recording {
            out.extend_from_slice(recording.bytes(seq));
            return 1;
        }
        let fill = Fill { key: draw.key, value: self.value(draw.key, draw.size as usize), seq, now };
        if self.multi == 0 {
            self.commands[usize::from(draw.command)].template.render(out, &fill);
            return 1;
        }
        out.extend_from_slice(b"*1\r\n$5\r\nMULTI\r\n");
        let mut dice = Dice(self.dice(seq).next_u64());
        for i in 0..self.multi {
            let command = if i == 0 { draw.command } else { self.pick(&mut dice) };
            self.commands[usize::from(command)].template.render(out, &fill);
        }
        out.extend_from_slice(b"*1\r\n$4\r\nEXEC\r\n");
        self.multi as u16 + 2
    }

    /// The slot of that request, `None` where it has no key.
    pub fn slot(&self, seq: u64, draw: Draw, scratch: &mut Vec<u8>) -> Option<u16> {
        if let Some(recording) = &self.recording {
            return recording.slot(seq);
        }
        let command = &self.commands[usize::from(draw.command)];
        let key_at = command.key_at?;
        scratch.clear();
        let fill = Fill { key: draw.key, value: self.value(draw.key, draw.size as usize), seq, now: 0 };
        command.template.argument(key_at, scratch, &fill);
        Some(slot_of(scratch))
    }

    /// Whether the reply of a `get` is a value that this key can have; `None` for other commands.
    pub fn right(&self, draw: Draw, body: &[u8]) -> Option<bool> {
        self.commands[usize::from(draw.command)].is_get.then(|| self.value(draw.key, body.len()) == body)
    }

    /// Whether replicas may answer a request of this kind: a block is as much as its worst command.
    pub fn reads(&self, command: u16) -> bool {
        if self.multi > 0 { self.commands.iter().all(|c| c.reads) } else { self.commands[usize::from(command)].reads }
    }

    /// Longest value.
    pub fn value_max(&self) -> usize {
        self.sizes.max()
    }

    /// A value of this key. Another length begins with the same bytes.
    fn value(&self, key: u64, size: usize) -> &[u8] {
        let from = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 20 & 4095;
        &self.bytes[from..(from + size).min(self.bytes.len())]
    }
}

/// What of it is drawn, and so has no place beside a recording.
fn drawn(spec: &Spec) -> Option<&'static str> {
    let all = [
        (!spec.mix.is_empty(), "a mix"),
        (!spec.commands.is_empty(), "commands"),
        (spec.multi > 0, "multi"),
        (spec.script.is_some(), "a script"),
        (spec.verify, "verify"),
        (spec.preload == Some(true), "preload"),
    ];
    all.into_iter().find(|(given, _)| *given).map(|(_, what)| what)
}

/// The templates of `commands`, each with its name in the mix.
fn own_templates(spec: &Spec, sha: Option<&str>) -> Result<Vec<(String, Template)>, WorkloadError> {
    let mut own: Vec<(String, Template)> = Vec::new();
    for text in &spec.commands {
        let (name, template) = named(text);
        let template = Template::parse(template, sha)?;
        let name = name.map_or_else(|| template.name().to_lowercase(), str::to_string);
        if own.iter().any(|(n, _)| *n == name) {
            return Err(WorkloadError::SameName(name));
        }
        if !spec.mix.is_empty() && !spec.mix.contains_key(&name) {
            return Err(WorkloadError::NoShare(name));
        }
        if LEFT_OUT.contains(&template.name().as_str()) {
            return Err(WorkloadError::ChangesConnection(template.name()));
        }
        own.push((name, template));
    }
    Ok(own)
}

/// The kinds of commands in a recording. Their bytes are the recording's.
fn recorded_commands(recording: &Recording) -> Vec<Command> {
    let ping = Template::parse("PING", None).expect("a plain command");
    let of = |name: &String| Command {
        writes: !READS.contains(&name.as_str()),
        ..Command::new(name.to_lowercase(), ping.clone(), false, 1.0)
    };
    recording.names().iter().map(of).collect()
}

/// The commands of the mix, each with its share; without a mix the own ones, or `get` and `set`.
fn drawn_commands(spec: &Spec, own: &[(String, Template)]) -> Result<Vec<Command>, WorkloadError> {
    let mut mix = spec.mix.clone();
    if mix.is_empty() {
        let default: &[(&str, f64)] = &[("get", 0.9), ("set", 0.1)];
        match own {
            [] => mix.extend(default.iter().map(|(n, w)| (n.to_string(), *w))),
            own => mix.extend(own.iter().map(|(n, _)| (n.clone(), 1.0))),
        }
    }
    let total: f64 = mix.values().sum();
    if !total.is_finite() || total <= 0.0 || mix.values().any(|w| w.is_nan() || *w < 0.0) {
        return Err(WorkloadError::Shares);
    }
    let mut commands = Vec::new();
    let mut upto = 0.0;
    for (name, weight) in mix.iter().filter(|(_, w)| **w > 0.0) {
        upto += weight / total;
        let template = match own.iter().find(|(n, _)| n == name) {
            Some((_, template)) => template.clone(),
            None => built_in(name, spec, own)?,
        };
        let is_get = name == "get" && own.iter().all(|(n, _)| n != name);
        commands.push(Command::new(name.clone(), template, is_get, upto));
    }
    Ok(commands)
}

fn built_in(name: &str, spec: &Spec, own: &[(String, Template)]) -> Result<Template, WorkloadError> {
    let Some((_, template)) = BUILT_IN.iter().find(|(n, _)| *n == name) else {
        let names: Vec<&str> = BUILT_IN.iter().map(|(n, _)| *n).chain(own.iter().map(|(n, _)| n.as_str())).collect();
        return Err(WorkloadError::UnknownCommand { name: name.into(), hint: did_you_mean(name, &names) });
    };
    let prefix = spec.key_prefix.replace('{', "{{").replace('}', "}}");
    if prefix.contains(['\'', '"']) || prefix.contains(char::is_whitespace) {
        return Err(WorkloadError::KeyPrefix);
    }
    // The commands of a block have one key number, and so that they have one slot it is their hash tag.
    let template = if spec.multi > 0 { template.replacen("{key}", "{{{key}}}", 1) } else { template.to_string() };
    let mut template = template.replace("{p}", &prefix);
    if name == "set"
        && let Some(seconds) = spec.expire_s
    {
        template += &format!(" EX {seconds}");
    }
    Ok(Template::parse(&template, None)?)
}

/// `name=TEMPLATE` or `TEMPLATE`.
fn named(text: &str) -> (Option<&str>, &str) {
    match text.split_once('=') {
        Some((name, template))
            if !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_') =>
        {
            (Some(name), template)
        }
        _ => (None, text),
    }
}

impl Keys {
    fn parse(text: &str, keys: u64) -> Result<Keys, WorkloadError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        let number = |text: &str| text.parse::<f64>().ok().filter(|x| x.is_finite());
        match kind {
            "uniform" if rest.is_empty() => Ok(Keys::Uniform),
            "sequential" if rest.is_empty() => Ok(Keys::Sequential),
            "zipf" => {
                let exponent = if rest.is_empty() { Some(0.99) } else { number(rest).filter(|x| *x > 0.0) };
                let zipf = exponent.and_then(|s| Zipf::new(keys as f64, s).ok());
                zipf.map(Keys::Zipf).ok_or_else(|| WorkloadError::Zipf(text.into()))
            }
            "hot" => {
                let (a, b) = rest.split_once(':').unwrap_or(("0.2", "0.8"));
                match (parse_share(a), parse_share(b)) {
                    (Ok(a), Ok(b)) if a > 0.0 && a < 1.0 => {
                        Ok(Keys::Hot { keys: ((keys as f64 * a) as u64).clamp(1, keys), share: b })
                    }
                    _ => Err(WorkloadError::Hot),
                }
            }
            _ => Err(WorkloadError::Distribution(text.into())),
        }
    }
}

impl Sizes {
    fn parse(text: &str) -> Result<Sizes, WorkloadError> {
        const MOST: usize = 512 << 20; // the servers' own limit of a value
        // A comma separates sizes here: "64,128" must not become 64128.
        let size = |t: &str| {
            let bytes = (!t.contains(',')).then(|| parse_bytes(t).ok()).flatten();
            bytes.and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= MOST)
        };
        let parsed = if let Some(n) = size(text) {
            Some(Sizes::Fixed(n))
        } else if text.contains(':') {
            let pairs: Option<Vec<(usize, f64)>> = text
                .split(',')
                .map(|part| {
                    let (n, w) = part.split_once(':')?;
                    Some((size(n)?, w.trim().parse::<f64>().ok().filter(|w| *w >= 0.0 && w.is_finite())?))
                })
                .collect();
            pairs.and_then(|pairs| {
                let total: f64 = pairs.iter().map(|(_, w)| w).sum();
                let mut upto = 0.0;
                (total > 0.0).then(|| {
                    Sizes::Weighted(
                        pairs
                            .iter()
                            .map(|(n, w)| {
                                upto += w / total;
                                (*n, upto)
                            })
                            .collect(),
                    )
                })
            })
        } else {
            text.split_once('-')
                .and_then(|(a, b)| Some((size(a)?, size(b)?)))
                .filter(|(a, b)| a <= b)
                .map(|(a, b)| Sizes::Range(a, b))
        };
        parsed.ok_or_else(|| WorkloadError::ValueSize(text.into()))
    }

    fn max(&self) -> usize {
        match self {
            Sizes::Fixed(n) | Sizes::Range(_, n) => *n,
            Sizes::Weighted(sizes) => sizes.iter().map(|(n, _)| *n).max().unwrap_or(0),
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): a good stream from any seed in a few cycles.
struct Dice(u64);

impl Dice {
    #[inline]
    fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    #[inline]
    fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl RngCore for Dice {
    fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    #[inline]
    fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn fill_bytes(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compiled(change: impl Fn(&mut Spec)) -> Workload {
        let mut spec = Spec::default();
        change(&mut spec);
        Workload::compile(&spec, None).unwrap()
    }

    /// Share of requests on each of the ten most asked keys, most asked first.
    fn shares(workload: &Workload, requests: u64) -> Vec<f64> {
        let mut counts = std::collections::HashMap::new();
        for seq in 0..requests {
            *counts.entry(workload.draw(seq).key).or_insert(0u64) += 1;
        }
        let mut counts: Vec<u64> = counts.into_values().collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        counts.iter().take(10).map(|n| *n as f64 / requests as f64).collect()
    }

    #[test]
    fn draws_the_same_from_the_same_seed_and_other_things_from_another() {
        let draws = |seed| {
            let workload = compiled(|s| s.seed = seed);
            (0..1000)
                .map(|i| {
                    let d = workload.draw(i);
                    (d.command, d.key)
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }

    #[test]
    fn draws_commands_by_their_shares() {
        let workload = compiled(|s| s.mix = BTreeMap::from([("get".into(), 3.0), ("set".into(), 1.0)]));
        let gets =
            (0..100_000).filter(|i| workload.commands[usize::from(workload.draw(*i).command)].name == "get").count();
        assert!((74_000..76_000).contains(&gets), "{gets}");
    }

    #[test]
    fn draws_keys_as_each_distribution_says() {
        let flat = shares(&compiled(|s| s.keys = 1000), 200_000);
        assert!(flat[0] < 0.0015, "{flat:?}");
        // Zipf with exponent 1 over 1000 keys: the first has 1 / H(1000) = 0.1336, the second half of it.
        let zipf = shares(
            &compiled(|s| {
                s.keys = 1000;
                s.key_distribution = "zipf:1".into()
            }),
            200_000,
        );
        assert!((zipf[0] - 0.1336).abs() < 0.005 && (zipf[1] - 0.0668).abs() < 0.004, "{zipf:?}");
        let hot = shares(
            &compiled(|s| {
                s.keys = 1000;
                s.key_distribution = "hot:0.01:0.9".into()
            }),
            200_000,
        );
        assert!((hot.iter().sum::<f64>() - 0.9).abs() < 0.01, "{hot:?}");
        let each = compiled(|s| {
            s.keys = 10;
            s.key_distribution = "sequential".into()
        });
        assert_eq!((0..12).map(|i| each.draw(i).key).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
    }

    #[test]
    fn draws_sizes_within_what_was_asked() {
        let sizes = |text: &str| {
            let workload = compiled(|s| s.value_size = text.into());
            (0..10_000).map(|i| workload.draw(i).size).collect::<Vec<_>>()
        };
        assert!(sizes("100").iter().all(|n| *n == 100));
        let range = sizes("16-1024");
        assert_eq!((range.iter().min(), range.iter().max()), (Some(&16), Some(&1024)));
        let weighted = sizes("10:0.75,1000:0.25").iter().filter(|n| **n == 10).count();
        assert!((7300..7700).contains(&weighted), "{weighted}");
    }

    #[test]
    fn knows_a_right_value_from_a_wrong_one() {
        let workload = compiled(|s| s.mix = BTreeMap::from([("get".into(), 1.0)]));
        let draw = workload.draw(3);
        let value = workload.value(draw.key, 64).to_vec();
        assert_eq!(workload.right(draw, &value), Some(true));
        assert_eq!(workload.right(draw, workload.value(draw.key + 1, 64)), Some(false));
    }

    #[test]
    fn a_block_is_one_request_of_several_replies() {
        let workload = compiled(|s| s.multi = 3);
        let mut out = Vec::new();
        assert_eq!(workload.render(&mut out, 0, workload.draw(0), 0), 5);
        let text = String::from_utf8(out).unwrap();
        assert!(text.starts_with("*1\r\n$5\r\nMULTI\r\n") && text.ends_with("*1\r\n$4\r\nEXEC\r\n"), "{text}");
    }

    #[test]
    fn says_what_is_wrong_with_a_workload() {
        let refused = |change: &dyn Fn(&mut Spec)| {
            let mut spec = Spec::default();
            change(&mut spec);
            Workload::compile(&spec, None).unwrap_err()
        };
        let gett = refused(&|s| s.mix = BTreeMap::from([("gett".into(), 1.0)]));
        assert!(matches!(&gett, WorkloadError::UnknownCommand { name, .. } if name == "gett"), "{gett:?}");
        assert!(gett.to_string().contains("did you mean \"get\""), "{gett}");
        let negative = refused(&|s| s.mix = BTreeMap::from([("get".into(), -1.0)]));
        assert!(matches!(negative, WorkloadError::Shares), "{negative}");
        let normal = refused(&|s| s.key_distribution = "normal".into());
        assert!(matches!(normal, WorkloadError::Distribution(_)), "{normal}");
        for size in ["big", "1000000000000"] {
            let refused = refused(&|s| s.value_size = size.into());
            assert!(matches!(refused, WorkloadError::ValueSize(_)), "{refused}");
        }
        assert!(matches!(refused(&|s| s.keys = 0), WorkloadError::Keys(0)));
        let script = refused(&|s| s.script = Some("a.lua".into()));
        assert!(matches!(script, WorkloadError::ScriptUnused), "{script}");
    }
}
