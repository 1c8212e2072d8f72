//! `appendfsync always`: every write waits until the disk has it, and every other request waits with it.
//!
//! The main thread syncs the append-only file itself, once in each turn of its event loop that wrote something. Writes
//! of one turn share a sync, and a read that arrives during the sync waits until it ends. On a disk that syncs in
//! 0.1 ms this is hardly noticeable; on network storage a sync takes 1 to 20 ms, and the server completes no more turns
//! a second than the disk completes syncs.
//!
//! Seen when: appendfsync is `always`, keys change in the window, a sync takes 1 ms or more on average, and the main
//! thread spends 5 % of the window or more waiting. The wait is the time inside the event loop (eventloop_duration_sum,
//! 7.2+) during which the main thread used no CPU, minus the time that it waited for a processor, a quota or the
//! hypervisor. Before 7.2 it is seen when half of the PINGs take 1 ms longer than the fastest (on this machine: than
//! opening a connection) while the main thread is less than half busy.
//!
//! Not to be taken for: a late sync under `everysec` (`aof_fsync_stall`): there a background thread syncs, and writes
//! wait only when it is two seconds late. Nor for a slow command or a saturated main thread: those use CPU. LATENCY
//! HISTOGRAM shows nothing of this wait, because a command's clock stops before the sync begins. If the disk itself is
//! slow, that is `disk_slow`, and this is its consequence.
//!
//! How to confirm: `CONFIG GET appendfsync`; run `INFO stats` twice: eventloop_duration_sum grows by nearly the whole
//! window while used_cpu_user_main_thread and used_cpu_sys_main_thread hardly grow;
//! `CONFIG SET latency-monitor-threshold 10`, and later `LATENCY HISTORY aof-fsync-always`.
//!
//! What to do: everysec, if a second of writes may be lost with the machine; otherwise a disk that syncs fast enough
//! (local NVMe, a controller with a battery), and independent writes sent together, so that they share a sync.
//! Sources: CONFIG appendfsync; INFO eventloop_duration_sum, used_cpu_*_main_thread; LATENCY aof-fsync-always; Redis
//! persistence documentation.

use super::prelude::*;
use super::standing::stood_waiting;

pub const TITLE: &str = "Every write waits for the disk";
pub const LEADS_TO: &[&str] = &["aof_fsync_stall", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

/// A local SSD syncs in a tenth of this: below it `always` costs what it promises.
const SYNC_MS: f64 = 1.0;
/// Share of the window that the main thread waits.
const WAIT_SHARE: f64 = 0.05;
/// A main thread that is busier than this makes PINGs wait by itself.
const BUSY: f64 = 0.5;
/// Fewer PINGs tell nothing.
const PINGS: usize = 20;
/// Unless they took most of the window.
const PINGS_LONG: usize = 5;

/// What one node under `always` waits for its disk.
struct Waits<'a> {
    node: &'a Node,
    /// Share of the window; none before 7.2.
    share: Option<f64>,
    /// Mean length of a sync; at least this, where it is known by PINGs alone.
    sync_ms: f64,
    /// Keys changed a second.
    writes: f64,
    /// On the mean request.
    cost_ms: f64,
}

impl Waits<'_> {
    fn hurts(&self) -> bool {
        self.sync_ms >= SYNC_MS && self.share.is_none_or(|share| share >= WAIT_SHARE)
    }
}

/// What could be said of one node.
enum Look<'a> {
    Timed(Waits<'a>),
    /// Nothing was written: no sync.
    Quiet,
    Unseen(Gap),
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.live().all(|n| n.number("aof_enabled").is_none()) {
        return Verdict::Unknown(unseen_info(facts, "appendfsync"));
    }
    let with: Vec<&Node> = facts.live().filter(|n| n.number("aof_enabled") == Some(1.0)).collect();
    if with.is_empty() {
        return Verdict::NotHere;
    }
    let always: Vec<&Node> = with.iter().copied().filter(|n| n.setting("appendfsync") == Some("always")).collect();
    let looks: Vec<Look<'_>> = always.iter().map(|n| look(facts, n)).collect();
    let timed = looks.iter().filter_map(|l| match l {
        Look::Timed(waits) => Some(waits),
        _ => None,
    });
    let timed = by_worst(timed.collect(), |w: &&Waits<'_>| w.cost_ms);
    let rows: Vec<&&Waits<'_>> = timed.iter().filter(|w| w.hurts()).collect();
    if let Some(worst) = rows.first() {
        return stood_waiting(found(facts, worst), worst.node).on(rows.iter().map(|w| w.node.address.as_str())).into();
    }
    if let Some(node) = with.iter().find(|n| n.setting("appendfsync").is_none()) {
        let gap = node.config.missing().map(|g| g.of(&format!("appendfsync of {}", node.address)));
        return Verdict::Unknown(gap.unwrap_or_else(|| Gap::new(Lack::Version, "appendfsync was not seen", "")));
    }
    if let Some(Look::Unseen(gap)) = looks.iter().find(|l| matches!(l, Look::Unseen(_))) {
        return Verdict::Unknown(gap.clone());
    }
    Verdict::Absent(match (always.is_empty(), timed.first()) {
        (true, _) => "appendfsync always: not set on any server with an AOF".into(),
        (false, None) => "appendfsync always: no key changed in the window".into(),
        (false, Some(w)) => format!(
            "appendfsync always: at most {} a sync, {}",
            time_us(w.sync_ms * 1000.0),
            w.share.map_or("by the median PING".into(), |s| format!("{} of the window", percent(s)))
        ),
    })
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Look<'a> {
    let window_s = node.window_s.max(0.001);
    // A save in the window starts the count of changes again; then the file's growth tells whether anything was
    // written.
    let changes = node.delta("rdb_changes_since_last_save");
    if changes == Some(0.0) && node.delta("aof_current_size").unwrap_or(0.0) == 0.0 {
        return Look::Quiet;
    }
    let turns = node.delta("eventloop_cycles");
    let Some(share) = waiting_share(facts, node) else {
        return by_pings(facts, node, changes.unwrap_or(0.0) / window_s);
    };
    let Some(syncs) = [changes.filter(|n| *n > 0.0), turns].into_iter().flatten().reduce(f64::min) else {
        return unseen(node, "how often it synced was not seen");
    };
    let sync_ms = share * window_s * 1000.0 / syncs.max(1.0);
    let writes = changes.unwrap_or(syncs) / window_s;
    let asked = node.application_ops().unwrap_or(0.0);
    let written = (writes / asked.max(writes).max(1.0)).min(1.0);
    // Whoever comes during a sync waits for half of one; a write waits for its own as well. A replica's writes are its
    // master's: only reads wait there, and what is left of its commands beside the writes is no more than these.
    let cost_ms = match (node.is_master(), asked - writes >= USED_OPS) {
        (true, _) => share * sync_ms / 2.0 + written * sync_ms,
        (false, true) => share * sync_ms / 2.0,
        (false, false) => 0.0,
    };
    Look::Timed(Waits { node, share: Some(share), sync_ms, writes, cost_ms })
}

/// Share of the window in which the main thread was in its event loop and used no CPU, for which nothing else is to
/// blame.
fn waiting_share(facts: &Facts, node: &Node) -> Option<f64> {
    let inside = node.rate("eventloop_duration_sum")? / 1e6;
    let (user, sys) = node.cpu()?;
    let kept_off = facts.process(node).map_or(0.0, |(host, p)| {
        let stolen = host.steal_share.unwrap_or(0.0) * f64::from(host.cpus);
        p.run_delay_share.unwrap_or(0.0).max(p.throttled_share.unwrap_or(0.0)) + stolen
    });
    Some((inside - user - sys - kept_off).clamp(0.0, 1.0))
}

/// Before 7.2: at least half of the PINGs met a sync, and waited for a part of it.
fn by_pings<'a>(facts: &Facts, node: &'a Node, writes: f64) -> Look<'a> {
    let mut times: Vec<u32> = node.pings.iter().map(|p| p.1).collect();
    times.sort_unstable();
    let busy = node.cpu().map(|(user, sys)| user + sys);
    // On this machine the kernel's handshake has no other end than the server's, and what kept it off is known.
    let runs = |(_, p): (_, &unslow_facts::Process)| {
        let is_small = |share: f64| share < WAIT_SHARE;
        p.run_delay_share.is_some_and(is_small) && p.throttled_share.is_none_or(is_small)
    };
    let runs_here = facts.process(node).is_some_and(runs);
    // A few do where each waits long, and for nothing else.
    let waited: f64 = times.iter().map(|us| f64::from(*us) / 1e6).sum();
    let long = times.len() >= PINGS_LONG && waited > node.window_s / 2.0 && (runs_here || event_ms(node).is_some());
    let enough = times.len() >= PINGS || long;
    let (Some(busy), true) = (busy, enough) else {
        return unseen(node, "neither its event loop (7.2+) nor enough PINGs were timed");
    };
    if busy > BUSY {
        return unseen(node, "its main thread is busy, and before 7.2 that cannot be told apart from waiting");
    }
    // On a disk so slow that every PING meets a sync, only the kernel's handshake shows the distance.
    let handshake = node.connect_us.filter(|_| runs_here).map(|us| u32::try_from(us).unwrap_or(u32::MAX));
    let distance = handshake.map_or(times[0], |us| times[0].min(us));
    let over = |us: u32| f64::from(us - distance) / 1000.0;
    let mean = times.iter().map(|us| over(*us)).sum::<f64>() / times.len() as f64;
    Look::Timed(Waits { node, share: None, sync_ms: over(times[times.len() / 2]), writes, cost_ms: mean })
}

fn unseen<'a>(node: &Node, why: &str) -> Look<'a> {
    Look::Unseen(Gap::new(
        Lack::Version,
        format!("the cost of appendfsync always on {}: {why}", node.address),
        "CONFIG SET latency-monitor-threshold 10, later LATENCY HISTORY aof-fsync-always",
    ))
}

/// The longest sync of the window that the latency monitor kept, in ms.
fn event_ms(node: &Node) -> Option<u64> {
    let since_ms = node.first.as_ref()?.at_ms;
    let events = node.latency.value()?.iter().filter(|e| e.name == "aof-fsync-always");
    let spikes = events.flat_map(|e| e.history.iter().copied().chain([(e.last_at_s, e.last_ms)]));
    spikes.filter(|(at_s, _)| logged_ms(node, *at_s) >= since_ms).map(|(_, ms)| ms).max()
}

fn found(facts: &Facts, w: &Waits<'_>) -> Finding {
    let (node, sync) = (w.node, time_us(w.sync_ms * 1000.0));
    let finding = match w.share {
        Some(share) => Finding::new(format!(
            "{} syncs its AOF with every write: {sync} a sync, {} of the time it does nothing else",
            node.address,
            percent(share)
        ))
        .latency(
            w.cost_ms,
            format!("{} on the mean request; a write waits for {sync} or more", time_us(w.cost_ms * 1000.0)),
        )
        .gain(
            format!(
                "under everysec no request waits for a sync unless it is late: {} less",
                time_us(w.cost_ms * 1000.0)
            ),
            format!(
                "{share:.3} of the time x {:.2} ms / 2 + {:.2} ms for each write, {} a second = {:.2} ms",
                w.sync_ms,
                w.sync_ms,
                count(w.writes),
                w.cost_ms
            ),
        ),
        None => Finding::new(format!(
            "{} syncs its AOF with every write: half of the PINGs wait for {sync} or more",
            node.address
        ))
        .latency(w.cost_ms, format!("{} on the mean request; writes wait longer", time_us(w.cost_ms * 1000.0))),
    };
    // A replica that no client reads from: no request waits.
    let finding = if w.cost_ms > 0.0 {
        finding
    } else {
        finding.risk("no client reads from this replica; it acknowledges its master's writes later").gain("", "")
    };
    let event = event_ms(node);
    let finding = match event {
        Some(_) => finding.proven("the server timed its syncs in this window, and the main thread's wait was measured"),
        None => {
            finding.likely("it waits without using CPU and syncs with every write; the syncs themselves were not timed")
        }
    };
    let mut finding = finding.saw(node, "CONFIG GET appendfsync", "always");
    if let (Some(inside), Some((user, sys))) = (node.rate("eventloop_duration_sum"), node.cpu()) {
        let text = format!(
            "event loop {} of the time, main thread on a processor {}; {} keys changed a second",
            percent(inside / 1e6),
            percent(user + sys),
            count(w.writes)
        );
        finding = finding.saw(node, "INFO all", text);
    }
    if let Some(rtt) = node.rtt.value() {
        let [least, median, p99] = [rtt.us_min, rtt.us_p50, rtt.us_p99].map(|us| time_us(us.into()));
        finding = finding.saw(node, "PING", format!("min {least}, median {median}, p99 {p99}"));
    }
    if let Some(ms) = event {
        finding = finding.saw(node, "LATENCY HISTORY aof-fsync-always", format!("{ms} ms at most in the window"));
    }
    if let Some((user, sys)) = node.cpu() {
        finding = finding.not(format!("a saturated main thread: {} on a processor", percent(user + sys)));
    }
    if let Some(delay) = facts.process(node).and_then(|(_, p)| p.run_delay_share) {
        finding = finding.not(format!("other processes: it waited for a processor {} of the time", percent(delay)));
    }
    mend(finding, node)
}

fn mend(finding: Finding, node: &Node) -> Finding {
    let here = |command: &str| cli(&node.address, command);
    let replicas = node.number("connected_slaves").unwrap_or(0.0) > 0.0;
    let risk = match replicas {
        true => {
            "up to a second of writes is lost if the machine dies; for the writes that matter, a client can wait until \
             a replica has them: WAIT 1 100"
        }
        false => "up to a second of writes is lost if the machine dies",
    };
    // Durability is given up by choice only: no exact lines.
    finding
        .fix(
            "Sync once a second, on a background thread",
            &[&here("CONFIG SET appendfsync everysec")],
            risk,
            &here("CONFIG SET appendfsync always"),
        )
        .fix(
            "If no write may be lost: use a disk that syncs in 0.1 ms (local NVMe, a controller with a battery), with \
             nothing else on it",
            &[&here("CONFIG GET dir"), "iostat -x 1   (w_await and f_await, on the server's machine)"],
            "moving the directory requires a restart",
            "",
        )
        .fix(
            "Send independent writes together: all writes of one turn of the event loop share a sync",
            &["in the client: a pipeline of the writes that do not wait for each other's replies"],
            "",
            "",
        )
}
