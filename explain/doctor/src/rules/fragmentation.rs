//! A large part of the server's memory is empty gaps between its keys.
//!
//! The allocator keeps objects of one size together in pages. When values change their size, or half of the keys of one
//! size expire, pages stay half full: they are resident, they count against the container, and neither a DEL nor
//! maxmemory gets them back.
//!
//! Seen when: the allocator's own gaps (`allocator_frag_bytes`) were 40 % of the live bytes or more at both ends of the
//! window, and a tenth or more of what the server may use (maxmemory, the container's limit or the machine's memory,
//! whichever is least).
//!
//! Not to be taken for: a small data set, where the same ratio is only a few megabytes; memory freed after a peak,
//! which new keys will fill again (`used_memory_peak` over 1.5 times what is used); `mem_fragmentation_ratio`, which
//! also counts a fork's copies, swapped-out pages and the process itself; client buffers (`client_memory`).
//!
//! How to confirm: `INFO memory`: allocator_frag_ratio, allocator_frag_bytes; `MEMORY DOCTOR`; `MEMORY MALLOC-STATS`.
//!
//! What to do: let the server defragment while it works (activedefrag), or hand its role to a replica and restart it:
//! loading packs everything. Values of few sizes, and TTLs that end together per size, keep it from coming back.
//! Sources: INFO allocator_allocated, allocator_active; redis.conf on active defragmentation; Redis INFO documentation.

use super::memory::{self, Gaps, Limit};
use super::prelude::*;

pub const TITLE: &str = "Fragmentation";
pub const LEADS_TO: &[&str] = &["container_memory"];
pub const INJECTED: Injected = Injected::Yes;

/// Active pages over live bytes: MEMORY DOCTOR's threshold.
const RATIO: f64 = 1.4;
/// Of what the server may use.
const SHARE: f64 = 0.1;
/// A peak of this many times what is used leaves pages behind that will be filled again.
const AFTER_PEAK: f64 = 1.5;
/// `active-defrag-ignore-bytes` as servers come with it: below it activedefrag does nothing.
const IGNORED_BYTES: f64 = 104_857_600.0;

/// The gaps of one server.
struct Fragmented<'a> {
    node: &'a Node,
    gaps: Gaps,
    limit: Limit,
    after_peak: bool,
}

impl Fragmented<'_> {
    fn share(&self) -> f64 {
        self.gaps.bytes / self.limit.bytes.max(1.0)
    }

    fn hurts(&self) -> bool {
        self.gaps.ratio >= RATIO && self.share() >= SHARE && !self.after_peak && self.was_so_before()
    }

    /// A burst of deletions is not yet a state: it was so when the window began.
    fn was_so_before(&self) -> bool {
        let then = |field: &str| self.node.first.as_ref().and_then(|s| s.info.number(field));
        then("allocator_frag_ratio").is_some_and(|r| r >= RATIO)
            && then("allocator_frag_bytes").is_some_and(|b| b >= SHARE * self.limit.bytes)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Fragmented> = facts.live().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, Fragmented::share);
    let rows: Vec<&Fragmented> = all.iter().filter(|f| f.hurts()).collect();
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|f| f.node.address.as_str())).into();
    }
    match all.first() {
        Some(most) => Verdict::Absent(format!(
            "fragmentation: at most {} between live keys, {:.2} times the live bytes, {} of {}{}",
            bytes(most.gaps.bytes),
            most.gaps.ratio,
            percent(most.share()),
            most.limit.words(),
            if most.after_peak { "; freed after a peak, and new keys will fill it again" } else { "" }
        )),
        None => unseen(facts),
    }
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Option<Fragmented<'a>> {
    let (gaps, limit) = (memory::gaps(node)?, memory::room(facts, node)?);
    let peak = node.number("used_memory_peak").zip(node.number("used_memory"));
    let after_peak = peak.is_some_and(|(peak, used)| peak > AFTER_PEAK * used);
    Some(Fragmented { node, gaps, limit, after_peak })
}

fn unseen(facts: &Facts) -> Verdict {
    let allocator = |n: &Node| Some((n.version_text(), n.info()?.get("mem_allocator")?.to_string()));
    match facts.live().find_map(allocator) {
        Some((version, allocator)) if !allocator.starts_with("jemalloc") => Verdict::unknown(
            Lack::Version,
            format!("fragmentation: this {version} is built with {allocator}, which does not count its gaps"),
            "use a build with jemalloc",
        ),
        _ => Verdict::absent(facts, "fragmentation", None),
    }
}

fn found(facts: &Facts, f: &Fragmented) -> Finding {
    let (node, gaps, share) = (f.node, f.gaps, f.share());
    let number = |field: &str| node.number(field).unwrap_or(0.0);
    let (live, active) = (number("allocator_allocated"), number("allocator_active"));
    // From 7.4 and Valkey 8 on the figure is of pages with small objects alone, and no longer this difference.
    let is_difference = (active - live - gaps.bytes).abs() <= 0.01 * gaps.bytes;
    let formula = if is_difference {
        format!("{} in active pages minus {} of live objects = {}", bytes(active), bytes(live), bytes(gaps.bytes))
    } else {
        format!("allocator_frag_bytes = {}", bytes(gaps.bytes))
    };
    let finding = Finding::new(format!(
        "{} loses {} of memory to fragmentation: the gaps between its keys are {} of {}",
        node.address,
        bytes(gaps.bytes),
        percent(share),
        f.limit.words()
    ))
    .memory(
        share.min(1.0),
        format!("{} is resident and empty, {} of what the server may use", bytes(gaps.bytes), percent(share)),
    )
    .gain(format!("about {} of memory is freed", bytes(gaps.bytes)), formula)
    .proven("counted by the allocator, at both ends of the window")
    .saw(
        node,
        "INFO memory",
        format!(
            "allocator_frag_ratio:{:.2}, allocator_frag_bytes:{:.0}, used_memory {}, resident {}",
            gaps.ratio,
            gaps.bytes,
            bytes(number("used_memory")),
            bytes(number("used_memory_rss"))
        ),
    )
    .saw(node, "INFO memory", format!("where it went: {}", memory::parts_text(facts, node)))
    .not(format!(
        "a past peak: used_memory_peak is {}, and {} is used now",
        bytes(number("used_memory_peak")),
        bytes(number("used_memory"))
    ));
    restart(purge(defragment(finding, f), f), facts, node)
}

/// While it works. A build with the system's allocator refuses the setting.
fn defragment(finding: Finding, f: &Fragmented) -> Finding {
    if f.node.setting("activedefrag") != Some("no") {
        return finding;
    }
    let set = |line: &str| cli(&f.node.address, &format!("CONFIG SET {line}"));
    let mut commands = Vec::new();
    let ignored = f.node.setting_number("active-defrag-ignore-bytes").unwrap_or(IGNORED_BYTES);
    if f.gaps.bytes < ignored {
        commands.push(set(&format!("active-defrag-ignore-bytes {:.0}", f.gaps.bytes / 4.0)));
    }
    commands.push(set("activedefrag yes"));
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    // A quarter since 6.0, three quarters before.
    let usual = if f.node.level() >= (6, 0) { 25.0 } else { 75.0 };
    let most = f.node.setting_number("active-defrag-cycle-max").unwrap_or(usual);
    let risk =
        format!("it takes up to {most:.0} % of the main thread's core while it defragments (active-defrag-cycle-max)");
    let back = match commands.len() {
        1 => set("activedefrag no"),
        _ => format!("{}; {}", set("activedefrag no"), set(&format!("active-defrag-ignore-bytes {ignored:.0}"))),
    };
    finding.fix(
        "Let it defragment while it works; a build with the system's jemalloc answers with an error and changes \
         nothing",
        &commands,
        &risk,
        &back,
    )
}

/// Whole pages that are free and resident can go back at once.
fn purge(finding: Finding, f: &Fragmented) -> Finding {
    let free = f.node.number("allocator_rss_bytes").unwrap_or(0.0);
    if free < 0.05 * f.limit.bytes || f.node.level() < (4, 0) {
        return finding;
    }
    finding.fix(
        &format!("Return whole free pages to the machine: {}", bytes(free)),
        &[&cli(&f.node.address, "MEMORY PURGE")],
        "the main thread is blocked while it does",
        "",
    )
}

/// Loading packs everything. With a replica nobody waits for it.
fn restart(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let Some(replica) = memory::replica_of(facts, node) else { return alone(finding, node) };
    let after = format!("then restart {}: it loads, or copies, its data into packed pages", node.address);
    let sentinel = facts.sentinels.iter().find(|s| s.unreachable.is_none());
    let group = sentinel.and_then(|s| Some((s, s.groups.iter().find(|g| g.master == node.address)?)));
    let command = match (facts.kind, group) {
        (DeploymentKind::Cluster, _) => cli(&replica.address, "CLUSTER FAILOVER"),
        (_, Some((sentinel, group))) => cli(&sentinel.address, &format!("SENTINEL FAILOVER {}", group.service)),
        _ => return alone(finding, node),
    };
    finding.fix(
        &format!("Or hand its role to {}, and restart it as a replica", replica.address),
        &[&command, &after],
        "clients are redirected once; the replica's own memory may be as fragmented",
        "",
    )
}

/// Without one, a restart is an outage as long as loading takes, and only where there is something to load.
fn alone(finding: Finding, node: &Node) -> Finding {
    if !node.is_master() {
        return finding.fix(
            "Or restart this replica: it copies its data into packed pages",
            &[&format!("restart {}", node.address)],
            "reads from it fail while it is down, and its master forks for the copy",
            "",
        );
    }
    if node.setting("appendonly") != Some("yes") && node.setting("save").is_none_or(str::is_empty) {
        // A cluster refuses REPLICAOF.
        let copy = match (node.number("cluster_enabled") == Some(1.0), node.node_id.as_deref()) {
            (false, _) => format!("REPLICAOF {} {}   (on a new server)", node.host(), port(node)),
            (true, id) => format!(
                "{} --cluster add-node NEW:PORT {} --cluster-slave --cluster-master-id {}",
                super::peers::tool(node),
                node.address,
                id.unwrap_or("ID")
            ),
        };
        return finding.fix(
            "Or give it a replica, and let the replica take its place: copied data is packed",
            &[&copy],
            "the copy begins with a fork on this server",
            "",
        );
    }
    finding.fix(
        "Or restart it at a quiet hour: loading packs everything",
        &[&cli(&node.address, "SHUTDOWN SAVE"), "start it again"],
        "nothing is served until its data is loaded",
        "",
    )
}

fn port(node: &Node) -> &str {
    node.address.rsplit_once(':').map_or("6379", |(_, port)| port)
}
