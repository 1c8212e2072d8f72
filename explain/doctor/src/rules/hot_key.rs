//! One key takes so much of a server that it alone decides when that server is full.
//!
//! A key lives in one slot, a slot on one master, and a master has one main thread for commands. If every client wants
//! the same key (a counter, a lock, the configuration, what is popular today), neither more masters nor other slots
//! relieve it.
//!
//! Seen when: `unslow keys --hot` had the server count (HOTKEYS) within the last hour and under a load like this one,
//! one key took a tenth of what the main thread does or more (by its part of the time in commands, and of the bytes for
//! the rest), and the main thread is over 60 % busy. Between 40 and 60 % it is a risk.
//!
//! Not to be taken for: a slot with many keys (`hash_tag_skew`); a master that is hot by many keys or by its slots
//! (`shard_imbalance`); a command that is slow because its key is large (`big_key`): few calls, each of them long.
//!
//! How to confirm: `unslow keys URL --hot --format json > keys.json`, then `unslow doctor URL --keys keys.json`. By
//! hand: `HOTKEYS START METRICS 2 CPU NET DURATION 10`, then `HOTKEYS GET` (Redis 8.6+). Never use MONITOR: it costs
//! the very server that has nothing left.
//!
//! What to do: for a key that is read, a cache in the clients; for one that is written, several keys that are added up
//! when they are read.
//! Sources: HOTKEYS GET; INFO cpu; redis.io, client-side caching.

use unslow_facts::{HotKey, HotKeys, LongKey};

use super::prelude::*;
use super::shard_imbalance;

pub const TITLE: &str = "Hot key";
pub const LEADS_TO: &[&str] = &["shard_imbalance", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::No(
    "it is read from a document of `unslow keys --hot`, which a diagnosis does not run; the two are tested together on \
     a real server",
);

/// Of what the main thread does.
const MUCH: f64 = 0.1;
/// Busy shares of the main thread, as of a hot shard.
const HURTS: f64 = 0.6;
const RISK: f64 = 0.4;
/// A count that ended longer ago says little of now.
const OLD_S: f64 = 3600.0;
/// The load has changed if the time in commands differs by more than this factor and this share of a core.
const CHANGED: f64 = 2.0;
const CHANGED_BY: f64 = 0.05;
const AGAIN: &str = "unslow keys URL --hot --format json, under the load that is to be explained";

/// What one server has counted, and what it does in this window.
struct Hot<'a> {
    node: &'a Node,
    counted: &'a HotKeys,
    /// The one that takes most.
    key: Option<&'a HotKey>,
    /// Shares of a core in this window: of the main thread, and of it in commands.
    busy: f64,
    inside: f64,
}

impl<'a> Hot<'a> {
    /// What a key takes of the main thread: its part of the time in commands, and by its bytes of the rest, which is
    /// reading requests and writing replies.
    fn of(&self, key: &HotKey) -> f64 {
        key.cpu_share.unwrap_or(0.0) * self.inside + key.net_share.unwrap_or(0.0) * (self.busy - self.inside)
    }

    fn core(&self) -> f64 {
        self.key.map_or(0.0, |key| self.of(key))
    }

    fn is_found(&self) -> bool {
        self.core() >= MUCH * self.busy && self.busy >= RISK
    }

    fn look(facts: &'a Facts, counted: &'a HotKeys) -> Result<Hot<'a>, Gap> {
        let gap = |why: String| Gap::new(Lack::Other, format!("hot keys of {}: {why}", counted.server), AGAIN);
        let is_it = |node: &&Node| {
            let id = node.info().and_then(|info| info.get("run_id"));
            id.map_or(node.address == counted.server, |id| id == counted.run_id)
        };
        let node = facts.live().find(is_it).ok_or_else(|| gap("its process is not among those looked at".into()))?;
        let (user, sys) = node.cpu().ok_or_else(|| gap("its CPU time in this window is not known".into()))?;
        let busy = (user + sys).min(1.0);
        if !(counted.is_whole && counted.counts_cpu && counted.counts_net) {
            return Err(gap("the session counted some slots only, or not both CPU time and bytes".into()));
        }
        let ended_ms = counted.started_ms as f64 + counted.seconds * 1000.0;
        let age_s = (node.at_ms() as f64 - ended_ms).abs() / 1000.0;
        if age_s > OLD_S {
            return Err(gap(format!("they were counted {} before this window", time_rough_s(age_s))));
        }
        let inside = inside_share(node).min(busy);
        let (less, more) = (inside.min(counted.core_share), inside.max(counted.core_share));
        if more > CHANGED * less + CHANGED_BY {
            return Err(gap(format!(
                "commands took {} of a core when they were counted, and take {} now: it is another load",
                percent(counted.core_share),
                percent(inside)
            )));
        }
        let mut hot = Hot { node, counted, key: None, busy, inside };
        hot.key = counted.keys.iter().max_by(|a, b| hot.of(a).total_cmp(&hot.of(b)));
        Ok(hot)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let Some(seen) = facts.keys_seen.as_ref().filter(|seen| !seen.hot.is_empty()) else { return Verdict::NotHere };
    let (mut all, mut gaps) = (Vec::new(), Vec::new());
    for counted in &seen.hot {
        match Hot::look(facts, counted) {
            Ok(hot) => all.push(hot),
            Err(gap) => gaps.push(gap),
        }
    }
    let all = by_worst(all, Hot::core);
    let hot = all.iter().filter(|hot| hot.is_found());
    let rows: Vec<(&Hot, &HotKey)> = hot.filter_map(|hot| Some((hot, hot.key?))).collect();
    if let Some((worst, key)) = rows.first() {
        return found(facts, worst, key).on(rows.iter().map(|(hot, _)| hot.node.address.as_str())).into();
    }
    if let Some(gap) = gaps.into_iter().next() {
        return Verdict::Unknown(gap);
    }
    match all.first() {
        Some(hot) => Verdict::Absent(format!(
            "a hot key: the first takes about {} of a core on {}, whose main thread is {} busy",
            percent(hot.core()),
            hot.node.address,
            percent(hot.busy)
        )),
        None => Verdict::absent(facts, "a hot key", None),
    }
}

fn found(facts: &Facts, hot: &Hot, key: &HotKey) -> Finding {
    let address = hot.node.address.as_str();
    let of_thread = percent(hot.core() / hot.busy);
    let what = format!("One key takes about {of_thread} of what the main thread of {address} does");
    let finding = Finding::new(format!("{what}, which is {} busy", percent(hot.busy)));
    let finding = if hot.busy >= HURTS {
        finding.core(hot.core(), format!("about {} of a core on {address}, for one key", percent(hot.core())))
    } else {
        finding.risk(
            "nothing waits for it yet; when the load grows, this server is full first, and resharding does not help",
        )
    };
    let (cpu, net) = (key.cpu_share.unwrap_or(0.0), key.net_share.unwrap_or(0.0));
    let rest = hot.busy - hot.inside;
    let finding = finding
        .gain(
            format!("without it, {} of the main thread is freed", percent(hot.core())),
            format!(
                "{cpu:.3} x {:.3} of a core in commands + {net:.3} of the bytes x {rest:.3} of a core for the rest = \
                 {:.3}",
                hot.inside,
                hot.core()
            ),
        )
        .likely("the server counted what it did for each key, under a load like this one but not in this window")
        .saw_at(
            "HOTKEYS GET",
            format!(
                "{} ({}): {} of the time of commands and {} of the bytes, over {}",
                key.key,
                key.pattern,
                percent(cpu),
                percent(net),
                time_rough_s(hot.counted.seconds)
            ),
            hot.counted.started_ms + (hot.counted.seconds * 1000.0) as u64,
        )
        .saw(
            hot.node,
            "INFO cpu, INFO commandstats",
            format!("main thread {} busy, {} of a core in commands", percent(hot.busy), percent(hot.inside)),
        );
    let seen = facts.keys_seen.as_ref();
    let finding = match seen.and_then(|seen| Some((seen.at_ms, seen.longest.iter().find(|k| k.key == key.key)?))) {
        Some((at_ms, key)) => {
            finding.saw_at("unslow keys", format!("it is a {} of {}", key.kind, length(key)), at_ms)
        }
        None => finding,
    };
    shard_imbalance::less_of_a_key(finding, hot.node)
}

fn length(key: &LongKey) -> String {
    if key.kind == "string" { bytes(key.length as f64) } else { format!("{} elements", count(key.length as f64)) }
}
