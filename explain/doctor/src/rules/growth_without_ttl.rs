//! Keys without a TTL are added and none are removed: the memory limit will be reached, and then writes fail.
//!
//! Seen when: a master with a maxmemory that may not evict such keys (noeviction, or a volatile policy) gained memory
//! in the window, nine of ten keys that it gained have no TTL, and at that pace the limit is reached within sixty
//! windows (within an hour, if it has grown at that pace since it started).
//!
//! Not to be taken for: a cache that fills up and then evicts (an allkeys policy); an import, which ends, and is known
//! to the people who run it; growth without a limit (`no_memory_limit`); client buffers (`client_memory`), which are
//! not keys; a server that is already full (`out_of_memory`).
//!
//! How to confirm: run `INFO keyspace` twice: keys and expires; `INFO memory` used_memory. `unslow keys URL --format
//! json` finds out which keys have no TTL; given to the doctor with `--keys`, it names them here.
//!
//! What to do: set a TTL where the key is written; delete what is never read; then add memory.
//! Sources: INFO keyspace, used_memory, maxmemory.

use super::key_patterns::{self, By};
use super::memory::{self, Growth, Keys};
use super::prelude::*;

pub const TITLE: &str = "Growth without TTL";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Of the keys that were added.
const WITHOUT_TTL: f64 = 0.9;
/// Of used memory: what was added in the window must be keys and no buffers.
const OF_DATA: f64 = 0.5;

/// Of the limit: from here on it is full, and nothing is added any more.
const FULL: f64 = 0.99;

/// One master that fills up.
struct Fills<'a> {
    node: &'a Node,
    max: f64,
    used: f64,
    per_s: f64,
    /// Keys added in the window, and how many of them without a TTL.
    added: f64,
    lasting: f64,
    full_s: f64,
}

pub fn check(facts: &Facts) -> Verdict {
    let masters = || facts.live().filter(|n| n.is_master() && n.number("maxmemory").is_some());
    if masters().next().is_none() {
        let replicas = facts.live().any(|n| n.number("maxmemory").is_some());
        return if replicas { Verdict::NotHere } else { Verdict::absent(facts, "growth of the data", None) };
    }
    let limited = || masters().filter(|n| memory::maxmemory(n).is_some());
    if limited().next().is_none() {
        return Verdict::NotHere;
    }
    let rows = by_worst(limited().filter_map(fills).collect(), |f: &Fills| -f.full_s);
    if let Some(worst) = rows.first() {
        let finding = found(facts, worst).on(rows.iter().map(|f| f.node.address.as_str()));
        return key_patterns::told(finding, facts, By::Lasting).into();
    }
    let rate = limited().filter_map(|n| n.rate("used_memory")).reduce(f64::max);
    let text = match rate {
        Some(rate) if rate > 0.0 => format!(
            "growth of the data: at most {} a second; keys without a TTL will not soon reach a limit without eviction",
            bytes(rate)
        ),
        _ => "growth of the data: used memory did not grow in the window".into(),
    };
    let counted = limited().any(|n| n.first.is_some() && n.number("used_memory").is_some());
    Verdict::absent(facts, "growth of the data", counted.then_some(text))
}

fn fills(node: &Node) -> Option<Fills<'_>> {
    let policy = node.info()?.get("maxmemory_policy")?;
    if policy.starts_with("allkeys") || !is_used(node) {
        return None;
    }
    let (max, used) = (memory::maxmemory(node)?, node.number("used_memory")?);
    if used >= FULL * max || node.errors().contains_key("OOM") {
        return None;
    }
    let before = Keys::of(&node.first.as_ref()?.info);
    let after = Keys::of(node.info()?);
    let (added, lasting) = (after.all - before.all, after.lasting() - before.lasting());
    let growth = Growth::of(node)?;
    let clients = node.delta("mem_clients_normal").unwrap_or(0.0);
    let by_keys = growth.per_s * node.window_s - clients >= OF_DATA * growth.per_s * node.window_s;
    if added < 1.0 || lasting < WITHOUT_TTL * added || !by_keys {
        return None;
    }
    let full_s = growth.fills_s(max - used)?;
    Some(Fills { node, max, used, per_s: growth.per_s, added, lasting, full_s })
}

fn found(facts: &Facts, f: &Fills) -> Finding {
    let node = f.node;
    let policy = node.info().and_then(|i| i.get("maxmemory_policy")).unwrap_or("unknown");
    let left = f.max - f.used;
    let finding = Finding::new(format!(
        "{} fills up with keys that have no TTL: at this pace maxmemory is reached in {}",
        node.address,
        time_rough_s(f.full_s)
    ))
    .risk(if policy.starts_with("volatile") {
        format!("then keys with a TTL are evicted, and when none is left writes fail: {policy} evicts no other key")
    } else {
        format!("then writes fail: {policy}")
    })
    .gain(
        format!("a TTL of less than {} keeps it below the limit", time_rough_s(f.full_s)),
        format!("{} left / {} a second = {}", bytes(left), bytes(f.per_s), time_rough_s(f.full_s)),
    )
    .likely("the pace is that of this window; that it continues is inferred")
    .saw(
        node,
        "INFO keyspace",
        format!("keys +{:.0}, without a TTL +{:.0} in {:.0} s", f.added, f.lasting, node.window_s),
    )
    .saw(
        node,
        "INFO memory",
        format!("used_memory {} of maxmemory {}, +{} a second", bytes(f.used), bytes(f.max), bytes(f.per_s)),
    )
    .fix(
        "Give keys a TTL where they are written",
        &["SET key value EX seconds   (in the application)", "EXPIRE key seconds   (for what is there)"],
        "keys disappear when their TTL ends",
        "PERSIST key",
    );
    let wide = cli(&node.address, &format!("CONFIG SET maxmemory {:.0}", f.max * 1.5));
    let machine = memory::physical(facts, node).map_or(0.0, |limit| limit.bytes);
    let finding = if f.max * 1.5 <= 0.75 * machine {
        finding.fix(
            "Until then, set a higher limit",
            &[&wide],
            "swapping or the OOM killer, if the machine or container does not have that much",
            &cli(&node.address, &format!("CONFIG SET maxmemory {:.0}", f.max)),
        )
    } else {
        finding
    };
    if policy.starts_with("volatile") {
        return finding;
    }
    finding.fix(
        "If it is a cache: let it evict",
        &[&cli(&node.address, "CONFIG SET maxmemory-policy allkeys-lru")],
        "keys disappear; not suitable for data of record",
        &cli(&node.address, &format!("CONFIG SET maxmemory-policy {policy}")),
    )
}
