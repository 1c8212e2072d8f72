//! The server's container is nearly full: the kernel has to reclaim memory before each new page, and the OOM killer is
//! next.
//!
//! A container's limit counts everything: data, buffers, fragmentation, the copies made by a save, and page cache as
//! well. Page cache is dropped when memory is needed. The rest is held, and when it reaches the limit the kernel kills
//! a process: the server, or the child that saves. maxmemory does not prevent it, because it counts only used memory.
//!
//! Seen when: the memory that is held, without page cache, is nine tenths of the limit or more. Of all cgroups above
//! the server, the one with the tightest limit is used, and what other processes in it hold counts too. It costs
//! something now if the group reached its limit in the window (`max` of memory.events, or memory.failcnt) and its tasks
//! waited (memory.pressure), or if the OOM killer struck. It is a risk if maxmemory is above nine tenths of the limit,
//! or above four fifths for a server that forks.
//!
//! Not to be taken for: a group that is full of page cache, as most groups that write files are; a machine that is
//! short of memory as a whole (`memory_pressure`); a server that refuses writes at maxmemory (`out_of_memory`).
//!
//! How to confirm: run `cat memory.events memory.pressure` twice in the server's cgroup (`/proc/PID/cgroup` names it),
//! and compare `anon` with `file` in memory.stat; v1: memory.failcnt, memory.stat.
//!
//! What to do: raise the container's limit, or lower maxmemory to about three quarters of it, which leaves room for
//! buffers, fragmentation and a save's copies.
//! Sources: memory.current, memory.events, memory.stat (v2), memory.usage_in_bytes, memory.failcnt (v1); the kernel's
//! cgroup documentation.

use unslow_facts::{MemoryGroup, Process};

use super::key_patterns::{self, By};
use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Container memory";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Of the limit: what is held, and what maxmemory may be.
const NEAR: f64 = 0.9;
/// maxmemory beside forks, whose copies need room.
const NEAR_WITH_FORKS: f64 = 0.8;
/// maxmemory as it should be: the rest is for buffers, gaps and copies.
const WANTED: f64 = 0.75;
/// Share of the window in which its tasks waited: from here on requests notice.
const NOTICED: f64 = 0.01;

/// One server in its container.
struct Contained<'a> {
    node: &'a Node,
    process: &'a Process,
    group: &'a MemoryGroup,
    limit: f64,
    held: f64,
}

/// What is the matter, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// The OOM killer ended a process in the window.
    Killed,
    /// It stood at its limit in the window.
    AtLimit,
    /// What is held is near it.
    Near,
    /// maxmemory lets it get there.
    Allowed,
}

impl Contained<'_> {
    fn share(&self) -> f64 {
        self.held / self.limit.max(1.0)
    }

    fn state(&self) -> Option<State> {
        let hits = self.group.limit_hits.unwrap_or(0);
        if self.group.oom_kills.unwrap_or(0) > 0 {
            Some(State::Killed)
        } else if self.share() >= NEAR {
            Some(if hits > 0 { State::AtLimit } else { State::Near })
        } else {
            let near = if forks(self.node) { NEAR_WITH_FORKS } else { NEAR };
            memory::maxmemory(self.node).is_some_and(|max| max > near * self.limit).then_some(State::Allowed)
        }
    }
}

/// Whether it saves, rewrites an append-only file, or has replicas that may want a copy.
fn forks(node: &Node) -> bool {
    node.setting("save").is_some_and(|s| !s.is_empty())
        || node.number("aof_enabled") == Some(1.0)
        || node.number("connected_slaves").is_some_and(|n| n > 0.0)
}

pub fn check(facts: &Facts) -> Verdict {
    let look = |node| {
        let (process, group, limit) = memory::group(facts, node)?;
        Some(Contained { node, process, group, limit, held: group.held_bytes() as f64 })
    };
    let all: Vec<Contained> = facts.live().filter_map(look).collect();
    let mut rows: Vec<(State, &Contained)> = all.iter().filter_map(|c| Some((c.state()?, c))).collect();
    rows.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.share().total_cmp(&a.1.share())));
    if let Some((state, worst)) = rows.first() {
        let finding = found(facts, worst, *state).on(rows.iter().map(|(_, c)| c.node.address.as_str()));
        return key_patterns::told(finding, facts, By::Memory).into();
    }
    match all.iter().max_by(|a, b| a.share().total_cmp(&b.share())) {
        Some(most) => Verdict::Absent(format!(
            "container memory: at most {} of its limit of {} is held, {} including page cache",
            percent(most.share()),
            bytes(most.limit),
            bytes(most.group.used_bytes as f64)
        )),
        None if facts.live().any(|n| memory::container(facts, n).is_some()) => Verdict::unknown(
            Lack::Host,
            "container memory: the limit was seen, but not the memory that is charged to it",
            "run again",
        ),
        None if facts.live().any(|n| facts.process(n).is_some()) => Verdict::NotHere,
        None => memory::unseen_machine("container memory"),
    }
}

fn found(facts: &Facts, c: &Contained, state: State) -> Finding {
    let (node, group) = (c.node, c.group);
    let (held, limit) = (bytes(c.held), bytes(c.limit));
    let finding = Finding::new(match state {
        State::Killed => {
            format!("The OOM killer killed a process in {}'s container: it holds {held} of {limit}", node.address)
        }
        State::AtLimit | State::Near => {
            format!("{}'s container is nearly full: it holds {held} of {limit}, not counting page cache", node.address)
        }
        State::Allowed => format!(
            "{} may use {} by its maxmemory, but its container's limit is {limit}",
            node.address,
            bytes(memory::maxmemory(node).unwrap_or(0.0))
        ),
    });
    let finding = cost(finding, c, state)
        .saw_at(
            memory::group_words(c.process, group),
            format!("limit {limit}, {} used, of which {held} without page cache", bytes(group.used_bytes as f64)),
            node.at_ms(),
        )
        .saw(
            node,
            "INFO memory",
            format!(
                "resident {}, where it went: {}",
                bytes(node.number("used_memory_rss").unwrap_or(0.0)),
                memory::parts_text(facts, node)
            ),
        );
    let finding = match group.file_bytes {
        Some(file) => finding.not(format!("page cache: {} of it was subtracted", bytes(file as f64))),
        None => finding,
    };
    ways_out(finding, c)
}

fn cost(finding: Finding, c: &Contained, state: State) -> Finding {
    let group = c.group;
    let counted = format!(
        "at the limit {} times, {} processes ended",
        group.limit_hits.map_or("?".into(), |n| n.to_string()),
        group.oom_kills.map_or("?".into(), |n| n.to_string())
    );
    let finding = match state {
        State::Killed | State::AtLimit => finding.saw_at(
            format!("memory.events or memory.failcnt, {}", memory::group_words(c.process, group)),
            counted.clone(),
            c.node.at_ms(),
        ),
        State::Near | State::Allowed => finding,
    };
    match (state, group.stalled_share.filter(|share| *share >= NOTICED && is_used(c.node))) {
        (State::Killed, _) => finding
            .risk(format!("{counted} in this window; the server may be next"))
            .severity(Severity::High)
            .proven("the kernel counted it for the cgroup with this limit in the window"),
        (State::AtLimit, Some(share)) => finding
            .core(share.min(1.0), format!("its tasks waited for memory {} of the time; {counted}", percent(share)))
            .gain("with enough memory, none of these waits", format!("memory.pressure some: {share:.3} of the window"))
            .proven("the kernel counted the waits of the cgroup with this limit in the window"),
        (State::AtLimit, None) => finding
            .risk(format!("{counted} in this window; how long its tasks waited was not counted"))
            .severity(Severity::Medium)
            .likely(
                "the group reached its limit in the window and has little page cache to give up; the waits are \
                 inferred",
            ),
        (State::Near, _) => finding
            .risk(format!(
                "{} left; after that the kernel kills the server, or the child that saves",
                bytes((c.limit - c.held).max(0.0))
            ))
            .likely("the limit and what is held were read at the window's end"),
        (State::Allowed, _) => finding
            .risk(
                "the container is full before maxmemory is reached: the server is killed, without one key evicted or \
                 write refused",
            )
            .likely("both limits were read; the memory held is below them"),
    }
}

fn ways_out(finding: Finding, c: &Contained) -> Finding {
    let (node, max) = (c.node, memory::maxmemory(c.node));
    let used = node.number("used_memory").unwrap_or(0.0);
    let wanted = WANTED * c.limit;
    let raised = (used.max(max.unwrap_or(0.0)) / WANTED).max(c.limit * 1.3);
    let raise = [
        "kubernetes: resources.limits.memory of the pod".to_string(),
        // Docker refuses a limit above the one for memory and swap together.
        format!("docker update --memory {raised:.0} --memory-swap {raised:.0} CONTAINER"),
        format!("systemctl set-property SERVICE MemoryMax={raised:.0}"),
    ];
    let raise: Vec<&str> = raise.iter().map(String::as_str).collect();
    let finding = finding.fix(
        &format!("Raise the container's limit to {}", bytes(raised)),
        &raise,
        "its machine must have that much; the docker line leaves the container without swap",
        &format!("docker update --memory {0:.0} --memory-swap {0:.0} CONTAINER", c.limit),
    );
    if !node.is_master() || max.is_some_and(|max| max <= wanted) {
        return finding;
    }
    let policy = node.info().and_then(|i| i.get("maxmemory_policy")).unwrap_or("unknown");
    let risk = match (used > wanted, policy) {
        (true, "noeviction" | "unknown") => "writes are refused immediately: more than that is already in use",
        (true, _) => "keys are evicted immediately: more than that is already in use",
        (false, "noeviction" | "unknown") => "writes are refused once it is reached",
        (false, _) => "keys are evicted once it is reached",
    };
    finding.fix(
        "Or set maxmemory to three quarters of it: the rest is for buffers, fragmentation and a save's copies",
        &[&cli(&node.address, &format!("CONFIG SET maxmemory {wanted:.0}"))],
        risk,
        &cli(&node.address, &format!("CONFIG SET maxmemory {:.0}", max.unwrap_or(0.0))),
    )
}
