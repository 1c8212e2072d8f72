//! Where a server's memory went, and how much there is. Not a rule: several rules need this, and each reports only one
//! part.
//!
//! Used memory, resident memory and what the kernel charges to the container are three different figures. INFO breaks
//! down the first by its own parts; what the second holds beyond the first is fragmentation, a fork's copies, or pages
//! that were returned late; what is in the first but not in the second is swapped out. DESIGN.md has the table.

use unslow_facts::{Facts, Host, Lack, MemoryGroup, Node, Process};
use unslow_topology::Info;
use unslow_units::bytes;

use crate::Verdict;

/// Which limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The server's own.
    Maxmemory,
    /// The cgroup's.
    Container,
    /// What the machine has.
    Machine,
}

/// A limit of a server's memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub bound: Bound,
    pub bytes: f64,
}

impl Limit {
    /// `the container's limit of 2 GB`.
    pub fn words(self) -> String {
        let size = bytes(self.bytes);
        match self.bound {
            Bound::Maxmemory => format!("maxmemory of {size}"),
            Bound::Container => format!("the container's limit of {size}"),
            Bound::Machine => format!("the machine's {size}"),
        }
    }
}

/// What holds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Keys, values and the tables that find them.
    Data,
    /// Buffers of ordinary clients.
    Clients,
    /// The backlog and what replicas have not read.
    Replicas,
    /// Cached scripts and functions.
    Scripts,
    /// Gaps in the allocator's pages.
    Fragmentation,
    /// Pages that a running save has copied.
    Copies,
    /// Pages that are not in memory at all.
    Swap,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Data => "data",
            Part::Clients => "clients",
            Part::Replicas => "replicas' buffers",
            Part::Scripts => "scripts",
            Part::Fragmentation => "fragmentation",
            Part::Copies => "a save's copies",
            Part::Swap => "swapped out",
        }
    }
}

/// `maxmemory`, if one is set.
pub fn maxmemory(node: &Node) -> Option<f64> {
    node.number("maxmemory").filter(|bytes| *bytes > 0.0)
}

/// The limit of the server's cgroup, where its machine could be looked into. A limit above what the machine has is
/// none.
pub fn container(facts: &Facts, node: &Node) -> Option<f64> {
    let (_, process) = facts.process(node)?;
    let limit = process.memory_limit_bytes? as f64;
    machine(facts, node).is_none_or(|machine| limit < machine).then_some(limit)
}

fn machine(facts: &Facts, node: &Node) -> Option<f64> {
    let seen = facts.process(node).and_then(|(host, _)| host.memory_bytes).map(|b| b as f64);
    seen.or_else(|| node.number("total_system_memory")).filter(|b| *b > 0.0)
}

/// What its resident memory may come to: the container's limit, else the machine's memory.
pub fn physical(facts: &Facts, node: &Node) -> Option<Limit> {
    let limit = |bound: Bound| move |bytes: f64| Limit { bound, bytes };
    container(facts, node).map(limit(Bound::Container)).or_else(|| machine(facts, node).map(limit(Bound::Machine)))
}

/// The limit that is met first.
pub fn room(facts: &Facts, node: &Node) -> Option<Limit> {
    let own = maxmemory(node).map(|bytes| Limit { bound: Bound::Maxmemory, bytes });
    let all = [own, physical(facts, node)];
    all.into_iter().flatten().min_by(|a, b| a.bytes.total_cmp(&b.bytes))
}

/// The cgroup whose limit is the tightest of the server's own and those above, and that limit.
pub fn group<'a>(facts: &'a Facts, node: &Node) -> Option<(&'a Process, &'a MemoryGroup, f64)> {
    let (_, process) = facts.process(node)?;
    Some((process, process.memory_group.as_ref()?, container(facts, node)?))
}

/// Of the machine's memory: with less available the kernel looks for pages all the time, which `memory_pressure` tells.
/// With more, tasks that have to look for it themselves are `reclaim`'s.
pub const SHORT: f64 = 0.1;

/// Share of the machine's memory that is available.
pub fn available(host: &Host) -> Option<f64> {
    Some(host.memory_available_bytes? as f64 / (host.memory_bytes? as f64).max(1.0))
}

/// Servers of the deployment that run there.
pub fn servers_on<'a>(facts: &'a Facts, host: &'a Host) -> impl Iterator<Item = &'a Node> {
    facts.live().filter(move |n| facts.process(n).is_some_and(|(h, _)| std::ptr::eq(h, host)))
}

/// Whether it stood at its limit in the window: what its tasks waited for then is `container_memory`'s.
pub fn is_at_limit(group: &MemoryGroup) -> bool {
    group.limit_hits.is_some_and(|n| n > 0)
}

/// `memory cgroup of pid 7`, or how far above it that is: what its neighbours in it hold counts as well.
pub fn group_words(process: &Process, group: &MemoryGroup) -> String {
    match group.above {
        0 => format!("memory cgroup of pid {}", process.pid),
        1 => format!("memory cgroup above that of pid {} (its pod's or slice's)", process.pid),
        n => format!("memory cgroup {n} levels above that of pid {}", process.pid),
    }
}

/// What its ordinary clients hold. Replies that share a value's memory are counted by their full length (Valkey 8), so
/// it is never more than what is used at all.
pub fn clients_bytes(node: &Node) -> Option<f64> {
    let used = node.number("used_memory")? - node.number("used_memory_startup").unwrap_or(0.0);
    Some(node.number("mem_clients_normal")?.min(used.max(0.0)))
}

/// What lies between the allocator's live bytes and its active pages. The C library's allocator does not tell, and no
/// more do others; `mem_fragmentation_ratio` would count swapped pages and a peak of the past as well.
pub fn gaps(node: &Node) -> Option<Gaps> {
    let jemalloc = node.info()?.get("mem_allocator")?.starts_with("jemalloc");
    let (ratio, bytes) = (node.number("allocator_frag_ratio")?, node.number("allocator_frag_bytes")?);
    (jemalloc && bytes >= 0.0).then_some(Gaps { ratio, bytes })
}

/// Fragmentation by the allocator's own count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gaps {
    pub ratio: f64,
    pub bytes: f64,
}

/// Bytes that the running save has copied so far (6.2+); nothing where none runs.
pub fn copied_now(node: &Node) -> Option<f64> {
    saves_now(node).then(|| node.number("current_cow_size")).flatten()
}

/// Whether a fork is at work: a save, a rewrite, or a copy for a replica.
pub fn saves_now(node: &Node) -> bool {
    ["rdb_bgsave_in_progress", "aof_rewrite_in_progress"].iter().any(|field| node.number(field) == Some(1.0))
}

/// The parts that could be seen, the largest first.
pub fn parts(facts: &Facts, node: &Node) -> Vec<(Part, f64)> {
    let number = |field: &str| node.number(field);
    let replicas = number("mem_total_replication_buffers").or_else(|| {
        Some(
            number("mem_clients_slaves").or_else(|| number("mem_clients_replicas"))?
                + number("mem_replication_backlog")?,
        )
    });
    let (clients, scripts) = (clients_bytes(node), number("used_memory_scripts"));
    let others: f64 = [clients, replicas, scripts, number("used_memory_startup")].into_iter().flatten().sum();
    let swapped = facts.process(node).and_then(|(_, p)| p.swap_bytes).map(|b| b as f64);
    let all = [
        (Part::Data, number("used_memory").map(|used| (used - others).max(0.0))),
        (Part::Clients, clients),
        (Part::Replicas, replicas),
        (Part::Scripts, scripts),
        (Part::Fragmentation, gaps(node).map(|g| g.bytes)),
        (Part::Copies, copied_now(node)),
        (Part::Swap, swapped),
    ];
    let seen = all.into_iter().filter_map(|(part, bytes)| Some((part, bytes?)));
    crate::measure::by_worst(seen.filter(|(_, bytes)| *bytes > 0.0).collect(), |(_, bytes)| *bytes)
}

/// `data 70 MB, clients 20 MB, fragmentation 8 MB`.
pub fn parts_text(facts: &Facts, node: &Node) -> String {
    let named = |(part, size): &(Part, f64)| format!("{} {}", part.name(), bytes(*size));
    parts(facts, node).iter().map(named).collect::<Vec<_>>().join(", ")
}

/// How fast used memory grows, in bytes a second, where it can be told from a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    pub per_s: f64,
    /// For how long it may be taken to go on, in s.
    pub holds_s: f64,
}

impl Growth {
    /// A window tells of this many more like it.
    const WINDOWS: f64 = 60.0;
    /// A server that has grown at this pace since it started, as it does now, will go on for a while.
    const LONG_S: f64 = 3600.0;

    /// `None` where it does not grow, or is being filled: loading, or copying from a master.
    pub fn of(node: &Node) -> Option<Growth> {
        let per_s = node.rate("used_memory").filter(|rate| *rate > 0.0)?;
        let number = |field: &str| node.number(field).unwrap_or(0.0);
        if !node.is_master() || number("loading") > 0.0 || number("async_loading") > 0.0 {
            return None;
        }
        let uptime_s = number("uptime_in_seconds");
        let average = (number("used_memory") - number("used_memory_startup")).max(0.0) / uptime_s.max(1.0);
        let steady = uptime_s > 600.0 && average > per_s / 3.0 && average < per_s * 3.0;
        let near_s = node.window_s * Self::WINDOWS;
        Some(Growth { per_s, holds_s: if steady { near_s.max(Self::LONG_S) } else { near_s } })
    }

    /// Seconds until this much more is used; `None` where the growth cannot be taken to last for so long.
    pub fn fills_s(self, left: f64) -> Option<f64> {
        let s = left.max(0.0) / self.per_s;
        (s <= self.holds_s).then_some(s)
    }
}

/// Keys of all databases at one moment, and how many of them have a TTL.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Keys {
    pub all: f64,
    pub with_ttl: f64,
}

impl Keys {
    /// Of the `db0:keys=..,expires=..` lines.
    pub fn of(info: &Info) -> Keys {
        let mut keys = Keys::default();
        for (name, line) in info.0.iter() {
            if name.strip_prefix("db").is_none_or(|n| n.parse::<u32>().is_err()) {
                continue;
            }
            for (field, value) in line.split(',').filter_map(|part| part.split_once('=')) {
                let number = value.parse::<f64>().ok().filter(|n| n.is_finite()).unwrap_or(0.0);
                match field {
                    "keys" => keys.all += number,
                    "expires" => keys.with_ttl += number,
                    _ => {}
                }
            }
        }
        keys
    }

    /// Those that stay until they are deleted.
    pub fn lasting(self) -> f64 {
        (self.all - self.with_ttl).max(0.0)
    }
}

/// A replica that could take a master's place while that one is restarted.
pub fn replica_of<'a>(facts: &'a Facts, node: &Node) -> Option<&'a Node> {
    facts.live().find(|n| !n.is_master() && super::peers::master_by_info(n).as_deref() == Some(&node.address))
}

/// What a rule says that needs the server's machine and did not see it.
pub fn unseen_machine(what: &str) -> Verdict {
    let why = format!("{what}: the server's machine could not be inspected");
    Verdict::unknown(Lack::Host, why, super::noisy_neighbour::SEE_HOST)
}
