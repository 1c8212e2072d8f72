//! While the server saves, every page it writes to is copied, and there is hardly room for the copies.
//!
//! The child that saves shares the server's pages until the server writes to them. With many writes, a long save, or
//! huge pages (2 MB for each write) the copies can add up to as much as the data. If the machine or container does not
//! have that much, the kernel swaps, or kills one of the two.
//!
//! Seen when: a save is running, its copies are a tenth of the resident memory or more, and both together are nine
//! tenths of what the machine or container has. It is a risk if the last save's copies would not fit in addition to
//! what is resident now.
//!
//! Not to be taken for: the resident memory of the child, which is shared with the server; a fork that takes long
//! (`fork_stall`); a fork that is refused (`overcommit`).
//!
//! How to confirm: `INFO persistence`: current_cow_size, current_cow_peak (7.0+), rdb_last_cow_size, aof_last_cow_size;
//! the log's "Fork CoW for RDB: current .. MB, peak .. MB".
//!
//! What to do: save on a replica, which needs room for the copies instead of the master, or at a quiet hour; turn huge
//! pages off; lower maxmemory or add memory.
//! Sources: INFO persistence; Redis administration documentation (up to twice the memory while saving).

use super::memory::{self, Limit};
use super::prelude::*;

pub const TITLE: &str = "Copy-on-write";
pub const LEADS_TO: &[&str] = &["container_memory", "memory_pressure"];
pub const INJECTED: Injected = Injected::No(
    "the copies have to come near the container's limit, where the kernel may kill the server at any moment; tested on \
     hand-written facts",
);

/// Copies, of the resident memory.
const LARGE: f64 = 0.1;
/// Resident memory and copies, of what there is, while they are made.
const NEAR: f64 = 0.9;
/// A smaller server has its copies anywhere.
const LEAST_SHARE: f64 = 0.25;

/// What one server's saves copy.
struct Copies<'a> {
    node: &'a Node,
    limit: Limit,
    resident: f64,
    /// Of the save that runs.
    now: Option<f64>,
    /// Of the last one, or the most of this one.
    last: f64,
}

impl Copies<'_> {
    fn is_near_now(&self) -> bool {
        self.now.is_some_and(|now| now >= LARGE * self.resident && self.resident + now >= NEAR * self.limit.bytes)
    }

    fn does_not_fit(&self) -> bool {
        self.last >= LARGE * self.resident
            && self.resident >= LEAST_SHARE * self.limit.bytes
            && self.resident + self.last > self.limit.bytes
    }

    fn share(&self) -> f64 {
        (self.resident + self.now.unwrap_or(0.0).max(self.last)) / self.limit.bytes.max(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Copies> = facts.live().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, |c| c.share() + f64::from(u8::from(c.is_near_now())) * 10.0);
    let rows: Vec<&Copies> = all.iter().filter(|c| c.is_near_now() || c.does_not_fit()).collect();
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|c| c.node.address.as_str())).into();
    }
    let text = all.iter().max_by(|a, b| a.last.total_cmp(&b.last)).map(|most| match most.last > 0.0 {
        true => format!(
            "copies of saves: at most {}; with resident memory, {} of {}",
            bytes(most.last),
            percent(most.share()),
            most.limit.words()
        ),
        false => "copies of saves: none were counted (rdb_last_cow_size:0)".into(),
    });
    Verdict::absent(facts, "copies of saves", text)
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Option<Copies<'a>> {
    let number = |field: &str| node.number(field);
    let last = number("rdb_last_cow_size")?.max(number("aof_last_cow_size").unwrap_or(0.0));
    let now = memory::copied_now(node);
    let peak = now.and(number("current_cow_peak")).unwrap_or(0.0);
    Some(Copies {
        node,
        limit: memory::physical(facts, node)?,
        resident: number("used_memory_rss")?,
        now,
        last: last.max(peak),
    })
}

fn found(facts: &Facts, c: &Copies) -> Finding {
    let node = c.node;
    let (resident, of) = (bytes(c.resident), c.limit.words());
    let finding = match c.now.filter(|_| c.is_near_now()) {
        Some(now) => Finding::new(format!(
            "{} is saving, and the copies fill the memory: {} copied and {resident} resident, out of {of}",
            node.address,
            bytes(now)
        ))
        .memory(
            (now / c.limit.bytes.max(1.0)).min(1.0),
            format!("{} of {of} is taken by copies for this save", bytes(now)),
        )
        .gain(
            "a save without concurrent writes copies next to nothing",
            format!(
                "({resident} + {}) / {} = {:.2}",
                bytes(now),
                bytes(c.limit.bytes),
                (c.resident + now) / c.limit.bytes.max(1.0)
            ),
        )
        .proven("the server counts the pages copied for the running save"),
        None => Finding::new(format!(
            "{} has no room for a save's copies: {} at the last save, and {resident} resident, out of {of}",
            node.address,
            bytes(c.last)
        ))
        .risk("at the next save the kernel swaps, or kills the server or its child")
        .likely("the last save's copies were counted; that the next one needs as much is inferred"),
    };
    let finding = finding
        .saw(
            node,
            "INFO persistence",
            format!(
                "current_cow_size:{:.0}, rdb_last_cow_size:{:.0}, aof_last_cow_size:{:.0}",
                node.number("current_cow_size").unwrap_or(0.0),
                node.number("rdb_last_cow_size").unwrap_or(0.0),
                node.number("aof_last_cow_size").unwrap_or(0.0)
            ),
        )
        .saw(node, "INFO memory", format!("where it went: {}", memory::parts_text(facts, node)));
    ways_out(huge_pages(finding, facts, node), facts, node)
}

/// A write to a huge page copies 2 MB where 4 kB would do.
fn huge_pages(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let Some((host, process)) = facts.process(node) else { return finding };
    let Some(huge) = process.anon_huge_bytes.filter(|b| *b > 0) else { return finding };
    let Some(thp) = host.thp.as_deref().filter(|word| *word != "never") else { return finding };
    finding
        .saw_at(
            format!("/proc/{}/smaps_rollup ({})", process.pid, host.hostname),
            format!("AnonHugePages {}", bytes(huge as f64)),
            host.at_ms,
        )
        .fix(
            &format!(
                "Turn huge pages off on {}, then restart the server: each write copies 4 kB instead of 2 MB",
                host.hostname
            ),
            &["echo never > /sys/kernel/mm/transparent_hugepage/enabled"],
            "other programs on that machine may need them",
            &format!("echo {thp} > /sys/kernel/mm/transparent_hugepage/enabled"),
        )
}

fn ways_out(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let save = node.setting("save").filter(|s| !s.is_empty());
    let finding = match (memory::replica_of(facts, node), save) {
        (Some(replica), Some(save)) => finding.fix(
            "Save on its replica, so that the master copies no pages",
            &[&cli(&replica.address, "CONFIG SET save \"3600 1\""), &cli(&node.address, "CONFIG SET save \"\"")],
            "the master's own disk then holds no backup, and a master that restarts empty empties its replicas too: do \
             not restart it automatically",
            &cli(&node.address, &format!("CONFIG SET save \"{save}\"")),
        ),
        (None, Some(save)) if save != "3600 1" => finding.fix(
            "Save less often",
            &[&cli(&node.address, "CONFIG SET save \"3600 1\"")],
            "up to an hour of writes is lost if the machine is lost",
            &cli(&node.address, &format!("CONFIG SET save \"{save}\"")),
        ),
        _ => finding,
    };
    finding.fix(
        "Give it more memory, or less data: while it saves under writes it needs up to twice what is resident",
        &[&cli(&node.address, "INFO persistence")],
        "",
        "",
    )
}
