//! Nothing limits the server's memory except its machine or container, and the data is approaching that limit.
//!
//! With `maxmemory 0` a server grows until the kernel kills it. A limit turns that into evictions or refused writes,
//! which an application can survive.
//!
//! Seen when: a master has no maxmemory, and its resident memory is half of the machine's or container's memory or
//! more; or it is a quarter or more, used memory grew in the window, and at that pace the rest fills up within sixty
//! windows (within an hour, if it has grown at that pace since it started).
//!
//! Not to be taken for: a server without a limit that is small compared with its machine and stays that way; a limit
//! that is too high for the container (`container_memory`); growth below a limit (`growth_without_ttl`).
//!
//! How to confirm: `CONFIG GET maxmemory`; `INFO memory`: used_memory twice, total_system_memory;
//! `CONFIG GET maxmemory-policy`.
//!
//! What to do: set maxmemory to three quarters of the memory there is, and choose a policy: eviction for a cache, no
//! eviction for data of record, whose writers then see errors before the kernel acts.
//! Sources: INFO memory; Redis administration documentation (a limit, and room beside it).

use super::key_patterns::{self, By};
use super::memory::{self, Bound, Growth, Limit};
use super::peers;
use super::prelude::*;

pub const TITLE: &str = "No memory limit";
pub const LEADS_TO: &[&str] = &["container_memory", "memory_pressure"];
pub const INJECTED: Injected = Injected::Yes;

/// Of what there is: resident.
const LARGE: f64 = 0.5;
/// The same of a server that grows.
const GROWING: f64 = 0.25;
/// Of what there is: maxmemory as it should be.
const WANTED: f64 = 0.75;

/// A server without a limit.
struct Unbounded<'a> {
    node: &'a Node,
    limit: Limit,
    resident: f64,
    growth: Option<Growth>,
    /// Seconds until it is full.
    full_s: Option<f64>,
}

impl Unbounded<'_> {
    fn share(&self) -> f64 {
        self.resident / self.limit.bytes.max(1.0)
    }

    fn is_a_risk(&self) -> bool {
        self.share() >= LARGE || (self.share() >= GROWING && self.full_s.is_some())
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let masters = || facts.live().filter(|n| n.is_master() && n.number("maxmemory").is_some());
    if masters().next().is_none() {
        let replicas = facts.live().any(|n| n.number("maxmemory").is_some());
        return if replicas { Verdict::NotHere } else { Verdict::absent(facts, "the memory limit", None) };
    }
    let all: Vec<Unbounded> = masters().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, |u| u.full_s.map_or(u.share(), |s| 2.0 + 1.0 / s.max(0.001)));
    let rows: Vec<&Unbounded> = all.iter().filter(|u| u.is_a_risk()).collect();
    if let Some(worst) = rows.first() {
        let finding = found(facts, worst).on(rows.iter().map(|u| u.node.address.as_str()));
        return key_patterns::told(finding, facts, By::Memory).into();
    }
    if masters().all(|n| memory::maxmemory(n).is_some()) {
        return Verdict::Absent("a memory limit: every master has one (maxmemory)".into());
    }
    match all.iter().max_by(|a, b| a.share().total_cmp(&b.share())) {
        Some(most) => Verdict::Absent(format!(
            "a memory limit: none, and at most {} is resident, {} of {}",
            bytes(most.resident),
            percent(most.share()),
            most.limit.words()
        )),
        None => Verdict::unknown(Lack::Version, "the memory limit: INFO does not show how much memory there is", ""),
    }
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Option<Unbounded<'a>> {
    if memory::maxmemory(node).is_some() {
        return None;
    }
    let (limit, resident) = (memory::physical(facts, node)?, node.number("used_memory_rss")?);
    // What else is on the machine, or in the container, is gone as well.
    let free = match limit.bound {
        Bound::Container => memory::group(facts, node).map(|(_, group, limit)| limit - group.held_bytes() as f64),
        _ => facts.process(node).and_then(|(host, _)| host.memory_available_bytes).map(|b| b as f64),
    };
    let growth = Growth::of(node);
    let full_s = growth.and_then(|g| g.fills_s(free.unwrap_or(limit.bytes - resident)));
    Some(Unbounded { node, limit, resident, growth, full_s })
}

fn found(facts: &Facts, u: &Unbounded) -> Finding {
    let (node, limit) = (u.node, u.limit);
    let policy = node.info().and_then(|i| i.get("maxmemory_policy")).unwrap_or("unknown");
    let finding = Finding::new(match u.full_s {
        Some(s) => format!(
            "{} has no maxmemory and grows: at this pace {} is full in {}",
            node.address,
            limit.words(),
            time_rough_s(s)
        ),
        None => format!("{} has no maxmemory, and holds {} of {}", node.address, percent(u.share()), limit.words()),
    })
    .risk("when the memory is used up, the kernel kills the server, and everything it had not saved is lost");
    let finding = match (u.full_s, u.growth) {
        (Some(_), Some(growth)) => {
            finding.likely("the pace was measured in this window; that it continues is inferred").saw(
                node,
                "INFO memory",
                format!("used_memory +{} a second over {:.0} s", bytes(growth.per_s), node.window_s),
            )
        }
        _ => finding.likely("the setting and the sizes were read; nothing has been lost so far"),
    };
    // Servers of one machine share it.
    let beside = match limit.bound {
        Bound::Machine => facts.live().filter(|n| peers::host_of(&n.address) == peers::host_of(&node.address)).count(),
        _ => 1,
    };
    let wanted = WANTED * limit.bytes / beside.max(1) as f64;
    let used = node.number("used_memory").unwrap_or(0.0);
    let finding = finding.saw(
        node,
        "INFO memory",
        format!(
            "maxmemory:0, resident {} of {}; where it went: {}",
            bytes(u.resident),
            bytes(limit.bytes),
            memory::parts_text(facts, node)
        ),
    );
    let risk = if policy == "noeviction" {
        "once it is reached, writes are refused (maxmemory-policy noeviction)"
    } else {
        "once it is reached, keys are evicted"
    };
    let set = format!("CONFIG SET maxmemory {wanted:.0}");
    let finding = if wanted > used {
        finding.fix(
            if beside > 1 {
                "Set a limit: its share of three quarters of the machine; the rest is for buffers, fragmentation and a \
                 save's copies"
            } else {
                "Set a limit: three quarters of the memory there is; the rest is for buffers, fragmentation and a \
                 save's copies"
            },
            &[&cli(&node.address, &set)],
            risk,
            &cli(&node.address, "CONFIG SET maxmemory 0"),
        )
    } else {
        finding.fix(
            &format!(
                "Provide more memory than {}, or another shard: {} is already in use",
                bytes(limit.bytes),
                bytes(used)
            ),
            &[&cli(&node.address, "INFO memory")],
            "",
            "",
        )
    };
    if policy != "noeviction" {
        return finding;
    }
    finding.fix(
        "If it is a cache: let it evict at that limit",
        &[&cli(&node.address, "CONFIG SET maxmemory-policy allkeys-lru")],
        "keys disappear; not for data of record",
        &cli(&node.address, "CONFIG SET maxmemory-policy noeviction"),
    )
}
