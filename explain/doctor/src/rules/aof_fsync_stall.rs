//! The append-only file waits for the disk, and the main thread waits with it.
//!
//! With `appendfsync everysec` a background thread syncs once a second; when a sync takes longer than two seconds, the
//! main thread can no longer write, and every client waits. With `always` every write waits for the disk.
//!
//! Seen when: aof_delayed_fsync grew in the window (it is counted under `everysec` only); or the latency monitor, if it
//! is on, recorded an AOF event of over 50 ms. An event from the last hour but not from the window is over, and is
//! reported as a risk.
//!
//! Not to be taken for: a fork (it has a different event name). The host's I/O pressure shows whether other processes
//! use the same disk. Under `always` nothing is counted, so only the latency monitor can show a stall. The overall cost
//! of `always` is `fsync_always`; a single long sync is then a consequence of it.
//!
//! What to do: a faster or separate disk; no-appendfsync-on-rewrite, if rewrites are what keeps the disk busy; everysec
//! instead of always.
//! Sources: INFO aof_delayed_fsync; LATENCY aof-write-pending-fsync, aof-fsync-always; redis #10287.

use super::prelude::*;
use super::standing::stood_waiting;

pub const TITLE: &str = "AOF fsync stall";
pub const LEADS_TO: &[&str] = &["node_timeout_margin", "replica_lag"];
pub const INJECTED: Injected = Injected::Yes;

/// An event that is worth a word, in ms.
const LONG_MS: u64 = 50;
const HOUR_S: u64 = 3600;

/// What one node with an AOF shows.
struct Waits<'a> {
    node: &'a Node,
    /// Delayed syncs in the window.
    delayed: f64,
    /// The longest AOF event of the window.
    now: Option<Event<'a>>,
    /// The longest of the last hour before it.
    past: Option<Event<'a>>,
}

/// An AOF event of the latency monitor.
#[derive(Clone, Copy)]
struct Event<'a> {
    name: &'a str,
    at_s: u64,
    ms: u64,
}

impl Waits<'_> {
    fn costs_now(&self) -> bool {
        self.delayed > 0.0 || self.now.is_some()
    }

    /// What a write waited, in ms: by the event, or by the PING that was answered last. None where neither shows it.
    fn wait_ms(&self) -> Option<f64> {
        let ping = self.node.pings.iter().map(|p| p.1).max().map(|us| f64::from(us) / 1000.0);
        self.now.map(|e| e.ms as f64).or(ping.filter(|ms| *ms >= LONG_MS as f64))
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let enabled = |n: &&Node| n.number("aof_enabled") == Some(1.0);
    if facts.live().all(|n| n.number("aof_enabled").is_none()) {
        return Verdict::Unknown(unseen_info(facts, "AOF"));
    }
    let with: Vec<&Node> = facts.live().filter(enabled).collect();
    if with.is_empty() {
        return Verdict::NotHere;
    }
    let rows: Vec<Waits> = with.iter().map(|n| look(n)).filter(|w| w.costs_now() || w.past.is_some()).collect();
    let rows = by_worst(rows, |w| match w.costs_now() {
        true => 1.0 + w.delayed * 1e6 + w.now.map_or(0.0, |e| e.ms as f64),
        false => w.past.map_or(0.0, |e| e.ms as f64 / 1e12),
    });
    let subjects =
        |now: bool| rows.iter().filter(|w| w.costs_now() == now).map(|w| w.node.address.clone()).collect::<Vec<_>>();
    match rows.first() {
        Some(w) if w.costs_now() => stood_waiting(now(facts, w), w.node).on(subjects(true)).into(),
        Some(w) => past(facts, w).on(subjects(false)).into(),
        None => nothing(&with),
    }
}

fn look(node: &Node) -> Waits<'_> {
    let started = node.first.as_ref().map_or(u64::MAX, |f| f.at_ms);
    let ended_s = node.at_ms() / 1000;
    let events = node.latency.value().into_iter().flatten().filter(|e| e.name.starts_with("aof-"));
    // The history holds one spike a second, the longest; without it there is the last.
    let all: Vec<Event> = events
        .flat_map(|e| {
            let last = [(e.last_at_s, e.last_ms)].into_iter().filter(move |l| !e.history.contains(l));
            e.history.iter().copied().chain(last).map(move |(at_s, ms)| Event { name: &e.name, at_s, ms })
        })
        .filter(|e| e.ms >= LONG_MS)
        .collect();
    let longest = |from: u64, to: u64| {
        let of = |e: &&Event| (from..to).contains(&logged_ms(node, e.at_s));
        all.iter().filter(of).max_by_key(|e| e.ms).copied()
    };
    Waits {
        node,
        delayed: node.delta("aof_delayed_fsync").unwrap_or(0.0),
        now: longest(started, u64::MAX),
        past: longest(ended_s.saturating_sub(HOUR_S) * 1000, started),
    }
}

/// Nothing was seen: of servers that count or time what they wait for, that is an answer.
fn nothing(with: &[&Node]) -> Verdict {
    let monitored =
        |n: &Node| n.latency.value().is_some() && n.setting_number("latency-monitor-threshold").unwrap_or(0.0) > 0.0;
    for node in with {
        match node.setting("appendfsync") {
            None => {
                let gap = node.config.missing().map(|g| g.of(&format!("AOF of {}: its policy", node.address)));
                return Verdict::Unknown(
                    gap.unwrap_or_else(|| Gap::new(Lack::Version, "AOF: appendfsync was not seen", "")),
                );
            }
            Some("always") if !monitored(node) => {
                return Verdict::unknown(
                    Lack::Other,
                    format!(
                        "AOF of {}: under appendfsync always only the latency monitor times the waits, and it is off",
                        node.address
                    ),
                    "CONFIG SET latency-monitor-threshold 10",
                );
            }
            Some(_) => {}
        }
    }
    let all_monitored = with.iter().all(|n| monitored(n));
    let events = if all_monitored { format!("; no AOF event of {LONG_MS} ms in the last hour") } else { String::new() };
    match with.iter().filter_map(|n| n.delta("aof_delayed_fsync")).reduce(|a, b| a + b) {
        Some(_) => Verdict::Absent(format!("AOF: aof_delayed_fsync +0 in the window{events}")),
        None if all_monitored => Verdict::Absent(format!("AOF{}", events.replacen(';', ":", 1))),
        None => Verdict::unknown(
            Lack::Version,
            "AOF: aof_delayed_fsync was not seen, or was reset in the window",
            "run again",
        ),
    }
}

fn now(facts: &Facts, w: &Waits) -> Finding {
    let node = w.node;
    let counted = match (w.delayed > 0.0, w.now) {
        (true, Some(e)) => {
            format!("{} delayed fsyncs in {:.0} s, {} of up to {} ms", count(w.delayed), node.window_s, e.name, e.ms)
        }
        (true, None) => format!("{} delayed fsyncs in {:.0} s", count(w.delayed), node.window_s),
        (false, e) => e.map_or(String::new(), |e| format!("{} of up to {} ms in {:.0} s", e.name, e.ms, node.window_s)),
    };
    let finding = Finding::new(format!("{} waits for its disk: {counted}", node.address));
    let times = w.delayed.max(1.0);
    let finding = match w.wait_ms() {
        Some(ms) => {
            let share = (times * ms / 1000.0 / node.window_s.max(0.001)).min(1.0);
            let text = format!(
                "{} of all requests arrive while it waits, and wait {} on average",
                percent(share),
                time_us(ms * 500.0)
            );
            finding
                .latency((share * ms / 2.0).max(0.01), text)
                .gain(
                    format!("with a disk that syncs in time, no request has to wait up to {}", time_us(ms * 1000.0)),
                    format!("{times:.0} x {ms:.0} ms / {:.1} s = {share:.3} of the window", node.window_s),
                )
                .proven("the server counted or timed what it waited for its disk, in this window")
        }
        // Counted, and PINGs went through meanwhile: a write may be put off for two seconds before anyone waits.
        None => finding
            .latency(
                0.01,
                format!("writes were postponed for up to 2 s; no wait of over {LONG_MS} ms was seen in the window"),
            )
            .likely(
                "the server counted the late syncs; how long requests waited was not timed (that takes the latency \
                 monitor)",
            ),
    };
    let finding = if w.delayed > 0.0 {
        finding.saw(node, "INFO persistence", format!("aof_delayed_fsync +{:.0}", w.delayed))
    } else {
        finding
    };
    seen(finding, facts, w, w.now)
}

fn past(facts: &Facts, w: &Waits) -> Finding {
    let (node, event) = (w.node, w.past);
    let (ms, at) = event.map_or((0, 0), |e| (e.ms, logged_ms(node, e.at_s)));
    let name = event.map_or("AOF event", |e| e.name);
    let finding =
        Finding::new(format!("{} waited {ms} ms for its disk {} ({name})", node.address, ago(node.at_ms(), at)))
            .risk(format!("none in the window; when it happens, every client waits up to {ms} ms"))
            .past(at)
            .likely("the server timed it; it did not happen in this window");
    seen(finding, facts, w, event)
}

/// Evidence and remedies, which are the same for what is over.
fn seen(mut finding: Finding, facts: &Facts, w: &Waits, event: Option<Event>) -> Finding {
    let node = w.node;
    finding = finding.saw(node, "CONFIG GET appendfsync", node.setting("appendfsync").unwrap_or("not seen"));
    if let Some(e) = event {
        finding = finding.saw_then(
            node,
            &format!("LATENCY HISTORY {}", e.name),
            format!("{} ms", e.ms),
            logged_ms(node, e.at_s),
        );
    }
    if let Some((host, _)) = facts.process(node) {
        let disks: Vec<String> = host
            .disks
            .iter()
            .map(|d| format!("{}: {:.1} ms a write, {} busy", d.name, d.write_await_ms, percent(d.busy_share)))
            .collect();
        let io = host.pressure.get("io.some").map(|io| format!("stalled on I/O {} of the time", percent(*io)));
        let all: Vec<String> = io.into_iter().chain(disks).collect();
        if !all.is_empty() {
            finding = finding.saw_at(
                format!("/proc/pressure/io, /proc/diskstats ({})", host.hostname),
                all.join("; "),
                host.at_ms,
            );
        }
    }
    if let Some(us) = node.number("latest_fork_usec").filter(|us| *us < 100_000.0) {
        finding = finding.not(format!("fork: the last one took {}", time_us(us)));
    }
    mend(finding, node)
}

/// Whether the disk was busy with a rewrite or a snapshot.
fn rewrites(node: &Node) -> bool {
    let now = ["aof_rewrite_in_progress", "rdb_bgsave_in_progress"];
    let at_work = |s: &unslow_facts::Sample| now.iter().any(|f| s.info.number(f) == Some(1.0));
    [&node.first, &node.last].into_iter().flatten().any(at_work)
        || ["aof_rewrites", "rdb_saves"].iter().any(|f| node.delta(f).is_some_and(|d| d > 0.0))
}

fn mend(finding: Finding, node: &Node) -> Finding {
    let mut finding = finding;
    let here = |command: &str| cli(&node.address, command);
    // Durability is given up by choice only: no exact lines.
    if node.setting("appendfsync") == Some("always") {
        finding = finding.fix(
            "Sync once a second instead of on every write",
            &[&here("CONFIG SET appendfsync everysec")],
            "up to a second of writes is lost if the machine dies",
            &here("CONFIG SET appendfsync always"),
        );
    }
    if node.setting("no-appendfsync-on-rewrite") == Some("no") && rewrites(node) {
        finding = finding.fix(
            "Do not sync while a rewrite or a snapshot runs, as one did in the window",
            &[&here("CONFIG SET no-appendfsync-on-rewrite yes")],
            "up to 30 s of writes are lost if the machine dies during a rewrite",
            &here("CONFIG SET no-appendfsync-on-rewrite no"),
        );
    }
    finding.fix(
        "Put the AOF on a local SSD that nothing else writes to: check where it is and what keeps the disk busy",
        &[
            &cli(&node.address, "CONFIG GET dir"),
            "iostat -x 1   on the server's machine",
            "pidstat -d 1   on the server's machine",
        ],
        "moving the directory requires a restart",
        "",
    )
}
