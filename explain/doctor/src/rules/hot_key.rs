//! One key takes so much of a server that it alone decides when that server is full.
//!
//! A key lives in one slot, a slot on one master, and a master has one main thread for commands. If every client wants
//! the same key (a counter, a lock, the configuration, what is popular today), neither more masters nor other slots
//! relieve it.
//!
//! Seen when: `unslow keys --hot` had the server count (HOTKEYS), one key took a tenth of what the main thread does or
//! more (by its part of the time in commands, and of the bytes for the rest), and the main thread is over 60 % busy.
//! Between 40 and 60 % it is a risk.
//!
//! Not to be taken for: a slot with many keys (`hash_tag_skew`); a master that is hot by many keys or by its slots
//! (`shard_imbalance`); a command that is slow because its key is large (`big_key`): few calls, each of them long.
//!
//! How to confirm: `unslow keys URL --hot --format json > keys.json`, then `unslow doctor URL --keys keys.json`. By hand:
//! `HOTKEYS START METRICS 2 CPU NET DURATION 10`, then `HOTKEYS GET` (Redis 8.6+). Never use MONITOR: it costs the very
//! server that has nothing left.
//!
//! What to do: for a key that is read, a cache in the clients; for one that is written, several keys that are added up
//! when they are read.
//! Sources: HOTKEYS GET; INFO cpu; redis.io, client-side caching.

use unslow_facts::{HotKey, HotKeys, KeysSeen};

use super::prelude::*;
use super::shard_imbalance;

pub const TITLE: &str = "Hot key";
pub const LEADS_TO: &[&str] = &["shard_imbalance", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::No(
    "it is read from a document of `unslow keys --hot`, which a diagnosis does not run; the two are tested together on a \
     real server",
);

/// Of what the main thread does.
const MUCH: f64 = 0.1;
/// Busy shares of the main thread, as of a hot shard.
const HURTS: f64 = 0.6;
const RISK: f64 = 0.4;

/// The hottest key of a server.
struct Hot<'a> {
    node: &'a Node,
    counted: &'a HotKeys,
    key: &'a HotKey,
    share: f64,
    /// Of the main thread, in this window.
    busy: f64,
}

impl Hot<'_> {
    /// What the key takes of the main thread: its part of the time in commands, and by its bytes of the rest, which is
    /// reading requests and writing replies.
    fn core(&self) -> f64 {
        let inside = self.counted.core_share.min(self.busy);
        self.share * inside + self.key.net_share.unwrap_or(0.0) * (self.busy - inside)
    }

    fn is_found(&self) -> bool {
        self.core() >= MUCH * self.busy && self.busy >= RISK
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let Some(seen) = facts.keys_seen.as_ref().filter(|seen| !seen.hot.is_empty()) else { return Verdict::NotHere };
    let all = by_worst(seen.hot.iter().filter_map(|counted| look(facts, counted)).collect(), Hot::core);
    let found_at: Vec<&Hot> = all.iter().filter(|hot| hot.is_found()).collect();
    if let Some(worst) = found_at.first() {
        return found(facts, seen, worst).on(found_at.iter().map(|hot| hot.node.address.as_str())).into();
    }
    match all.first() {
        Some(hot) => Verdict::Absent(format!(
            "a hot key: the first takes about {} of a core on {}, whose main thread is {} busy",
            percent(hot.core()),
            hot.node.address,
            percent(hot.busy)
        )),
        None if facts.live().next().is_some() => {
            Verdict::Absent("a hot key: no key was used while the servers counted, or their load is not known".into())
        }
        None => Verdict::absent(facts, "a hot key", None),
    }
}

fn look<'a>(facts: &'a Facts, counted: &'a HotKeys) -> Option<Hot<'a>> {
    let node = facts.live().find(|node| node.address == counted.server)?;
    let (user, sys) = node.cpu()?;
    let key = counted.keys.iter().max_by(|a, b| a.cpu_share.unwrap_or(0.0).total_cmp(&b.cpu_share.unwrap_or(0.0)))?;
    Some(Hot { node, counted, key, share: key.cpu_share?, busy: (user + sys).min(1.0) })
}

fn found(facts: &Facts, seen: &KeysSeen, hot: &Hot) -> Finding {
    let (address, share) = (hot.node.address.as_str(), percent(hot.share));
    let of_thread = percent(hot.core() / hot.busy);
    let what = format!("One key takes about {of_thread} of what the main thread of {address} does");
    let finding = Finding::new(format!("{what}, which is {} busy", percent(hot.busy)));
    let finding = if hot.busy >= HURTS {
        finding.core(hot.core(), format!("about {} of a core on {address}, for one key", percent(hot.core())))
    } else {
        finding.risk("nothing waits for it yet; when the load grows, this server is full first, and resharding does not help")
    };
    let network = hot.key.net_share.map_or(String::new(), |share| format!(", and {} of the bytes", percent(share)));
    let rest: Vec<String> = hot.counted.keys.iter().skip(1).filter_map(|key| key.cpu_share).map(percent).collect();
    let others = if rest.is_empty() { String::new() } else { format!("; the next ones took {}", rest.join(" and ")) };
    let finding = finding
        .gain(
            format!("without it, {} of the main thread is freed", percent(hot.core())),
            format!(
                "{:.3} x {:.3} of a core in commands + {:.3} of the bytes x {:.3} of a core for the rest = {:.3}",
                hot.share,
                hot.counted.core_share.min(hot.busy),
                hot.key.net_share.unwrap_or(0.0),
                hot.busy - hot.counted.core_share.min(hot.busy),
                hot.core()
            ),
        )
        .likely("the server counted what it did for each key, but at another time than this window")
        .saw_at(
            "HOTKEYS GET",
            format!(
                "{} ({}): {share} of the time of commands in {}{network}{others}",
                hot.key.key,
                hot.key.pattern,
                time_rough_s(hot.counted.seconds)
            ),
            seen.at_ms,
        )
        .saw(hot.node, "INFO cpu", format!("main thread {} busy", percent(hot.busy)));
    let is_large = facts.keys_seen.iter().flat_map(|seen| &seen.longest).find(|key| key.key == hot.key.key);
    let finding = match is_large {
        Some(key) => finding.saw_at("unslow keys", format!("it is a {} of {}", key.kind, key_length(key)), seen.at_ms),
        None => finding,
    };
    shard_imbalance::less_of_a_key(finding, hot.node)
}

fn key_length(key: &unslow_facts::LongKey) -> String {
    if key.kind == "string" { bytes(key.length as f64) } else { format!("{} elements", count(key.length as f64)) }
}
