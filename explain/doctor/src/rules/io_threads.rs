//! There are more io-threads than processors: they poll for work, and take from the main thread the time they were
//! meant to save it.
//!
//! An io-thread that has just worked does not sleep but keeps looking for more work, and the main thread looks for its
//! results in the same way. With a processor for each, that is fast. If several share one, each waits for another's
//! turn to end, and a quota is used up by polling.
//!
//! Seen when: `io-threads` is larger than the number of processors that the process may use (its mask, its quota, the
//! machine), and in the window its other threads used over a fifth of a core while the main thread waited for a
//! processor for over 5 % of the time, or its quota stopped it in over 1 % of its periods. A server whose main
//! thread gets no processor answers no one (`node_hangs`). The setting alone is a risk, if an application uses the
//! server.
//!
//! Not to be taken for: a busy server. With io-threads a processor at 100 % says little: what counts is commands a
//! second, and the time that the server itself reports as active (used_active_time_main_thread, Valkey 9.1+), which
//! `main_thread_saturated` goes by. Processors that other processes hold are `noisy_neighbour`, a mask of one is
//! `pinned`.
//!
//! How to confirm: `CONFIG GET io-threads`; `top -H -p PID`: io_thd_ or io_thread_ threads near 100 %; `nproc`, and
//! cpu.max of its cgroup.
//!
//! What to do: fewer threads than processors, to leave one for the rest of the machine; none on two processors or
//! fewer.
//! Sources: CONFIG GET io-threads; INFO io_threads_active; /proc/PID/task/PID/schedstat; redis.conf THREADED I/O;
//! valkey #2065, #4001.

use unslow_facts::{Host, Process};

use super::prelude::*;
use super::standing;

pub const TITLE: &str = "Too many io-threads";
pub const LEADS_TO: &[&str] = &["cpu_throttled", "main_thread_saturated", "node_hangs"];
pub const INJECTED: Injected = Injected::Yes;

/// Cores that its other threads must have used.
const SPINS: f64 = 0.2;
/// Share of the window that the main thread must have waited.
const WAITED: f64 = 0.05;
/// Cores that strangers use: from here on the waiting may be for them (`noisy_neighbour`).
const STRANGERS: f64 = 0.5;
/// Share of the quota's periods that must have been cut short.
const PERIODS: f64 = 0.01;

/// One server with more threads than it has processors for.
struct Crowd<'a> {
    node: &'a Node,
    host: &'a Host,
    process: &'a Process,
    /// `None` where the setting was not read, and INFO says that there are some.
    threads: Option<f64>,
    cores: f64,
    /// Cores that all but the main thread used.
    others: f64,
    delay: f64,
    throttled: f64,
    strangers: f64,
}

impl Crowd<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Crowd<'a>> {
        let (host, process) = facts.process(node)?;
        let (threads, cores) = (threads(node), cores(host, process));
        let is_active = node.info().and_then(|i| i.get("io_threads_active")) == Some("1");
        if threads.map_or(!is_active, |threads| threads <= 1.0 || threads <= cores) {
            return None;
        }
        let main = process.main_cpu_share.or_else(|| node.cpu().map(|(user, sys)| user + sys)).unwrap_or(0.0);
        let (cut, periods) = process.throttled_periods.unwrap_or((0, 0));
        let is_cut = cut as f64 / periods.max(1) as f64 > PERIODS;
        let strangers = host.neighbours.iter().filter(|n| !n.client && n.parent != Some(process.pid));
        let crowd = Crowd {
            node,
            host,
            process,
            threads,
            cores,
            others: (process.cpu_share.unwrap_or(0.0) - main).max(0.0),
            delay: process.run_delay_share.unwrap_or(0.0),
            throttled: if is_cut { process.throttled_share.unwrap_or(0.0) } else { 0.0 },
            strangers: strangers.map(|n| n.cpu_share).sum(),
        };
        // Without their number only what they do shows that they are too many.
        (threads.is_some() || crowd.costs() && crowd.waited() > WAITED).then_some(crowd)
    }

    /// `12 io-threads`
    fn text(&self) -> String {
        self.threads.map_or("io-threads".into(), |threads| format!("{threads:.0} io-threads"))
    }

    fn costs(&self) -> bool {
        if self.is_silent() {
            return self.holds_the_machine() && self.delay > WAITED;
        }
        is_used(self.node) && self.others > SPINS && (self.waited() > WAITED || self.throttled > 0.0)
    }

    /// Whether it answers no more, because its main thread gets no processor.
    fn is_silent(&self) -> bool {
        is_silent(self.node)
    }

    /// Whether its other threads used more of the machine in the window than all else together. What a main thread
    /// that ran alone used would be taken for theirs if it was not counted.
    fn holds_the_machine(&self) -> bool {
        let busy = self.host.busy_share.unwrap_or(1.0) * f64::from(self.host.cpus);
        self.process.main_cpu_share.is_some() && self.others > busy / 2.0
    }

    /// Share of the window that the main thread waited for a processor, where it was not for strangers.
    fn waited(&self) -> f64 {
        if self.strangers <= STRANGERS { self.delay } else { 0.0 }
    }

    /// Of the window: waiting in the run queue and standing still under a quota are counted apart by the kernel.
    fn lost(&self) -> f64 {
        (self.waited() + self.throttled).min(1.0)
    }

    /// One less than there are processors; none for two.
    fn wanted(&self) -> f64 {
        if self.cores < 3.0 { 1.0 } else { (self.cores - 1.0).floor() }
    }
}

/// Whether a server says nothing because its main thread gets no processor.
fn is_silent(node: &Node) -> bool {
    node.silent_ms.is_some() && standing::is_starved(node)
}

/// Processors that a process can use at a time.
pub(super) fn cores(host: &Host, process: &Process) -> f64 {
    let allowed = f64::from(process.cpus_allowed.unwrap_or(host.cpus).min(host.cpus));
    process.quota_cores.map_or(allowed, |quota| quota.min(allowed))
}

/// `io-threads`, the main thread among them; 1 before 6.0.
fn threads(node: &Node) -> Option<f64> {
    if node.level() < (6, 0) && node.info().is_some_and(|i| i.version().is_some()) {
        return Some(1.0);
    }
    node.setting_number("io-threads")
}

pub fn check(facts: &Facts) -> Verdict {
    // Also those that have told their settings and are silent since.
    let silent = facts.nodes.iter().filter(|node| is_silent(node)).filter_map(|node| Crowd::of(facts, node));
    let silent: Vec<Crowd<'_>> = silent.filter(Crowd::costs).collect();
    let all: Vec<Crowd<'_>> = facts.live().filter_map(|node| Crowd::of(facts, node)).collect();
    let rows = by_worst(all.iter().filter(|c| is_used(c.node)).chain(&silent).collect(), |c| {
        f64::from(u8::from(c.costs())) + c.lost()
    });
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|c| c.node.address.as_str())).into();
    }
    let set: Vec<f64> = facts.live().filter_map(threads).collect();
    if set.is_empty() {
        let gap = facts.live().find_map(|n| n.config.missing()).cloned();
        let gap = gap.unwrap_or_else(|| Gap::new(Lack::Version, "CONFIG GET does not show it", ""));
        return Verdict::Unknown(gap.of("io-threads"));
    }
    let most = set.into_iter().fold(1.0, f64::max);
    let hidden = |node: &Node| threads(node).is_some_and(|n| n > 1.0) && facts.process(node).is_none();
    if facts.live().any(hidden) {
        let why = format!(
            "io-threads: up to {most:.0} are set, and the processors of a server's machine could not be inspected"
        );
        return Verdict::unknown(Lack::Host, why, super::noisy_neighbour::SEE_HOST);
    }
    let text = match all.first() {
        Some(crowd) => {
            format!("io-threads: {} on {:.1} processors, and no application uses them", crowd.text(), crowd.cores)
        }
        None => format!("io-threads: at most {most:.0}, no more than there are processors"),
    };
    Verdict::Absent(text)
}

fn found(worst: &Crowd<'_>) -> Finding {
    let (node, host, process) = (worst.node, worst.host, worst.process);
    let (cores, lost) = (worst.cores, worst.lost());
    let finding = Finding::new(format!("{} runs {} on {} processors", node.address, worst.text(), count(cores)));
    let finding =
        if worst.costs() {
            finding
            .core(
                lost,
                format!(
                    "the main thread is ready but does not run for {} of the time, and the other threads use {} cores",
                    percent(lost),
                    count(worst.others)
                ),
            )
            .gain(
                "with no more threads than processors, it would run",
                format!(
                    "waiting {:.3} + stopped by its quota {:.3} of the window = {lost:.3}",
                    worst.waited(),
                    worst.throttled
                ),
            )
            .likely("the kernel counted the waiting and the time of the other threads in this window; that they are \
                     io-threads is inferred")
        } else {
            finding
                .risk("under more load they poll on processors that the main thread needs")
                .possible("judged by the setting and the processors; no waiting in this window is attributed to them")
        };
    let active = node.info().and_then(|i| i.get("io_threads_active")).unwrap_or("not shown");
    let finding = finding
        .saw(node, "CONFIG GET io-threads", worst.threads.map_or("not read".into(), |threads| format!("{threads:.0}")))
        .saw(node, "INFO stats", match node.ops() {
            Some(ops) => format!("io_threads_active:{active}, {} commands/s", count(ops)),
            None => format!("io_threads_active:{active}"),
        })
        .saw_at(
            format!("processors of pid {} ({})", process.pid, host.hostname),
            format!(
                "{} of the machine's {}{}",
                process.cpus_allowed.unwrap_or(host.cpus),
                host.cpus,
                process.quota_cores.map_or(String::new(), |quota| format!(", a quota of {quota:.2} cores"))
            ),
            host.at_ms,
        )
        .saw_at(
            format!("/proc/{}/task/{}/schedstat ({})", process.pid, process.pid, host.hostname),
            format!("waited {} of the window; other threads {} of a core", percent(worst.delay), percent(worst.others)),
            host.at_ms,
        );
    let finding = match worst.strangers <= STRANGERS {
        true => finding.not(format!("a neighbour: other processes use {} cores", count(worst.strangers))),
        false => finding,
    };
    let risk = "a server that needs them for its sockets loses throughput";
    let Some(threads) = worst.threads else {
        let ask = cli(&node.address, "CONFIG GET io-threads");
        let text = format!("See how many there are, and leave no more than {:.0}", worst.wanted());
        return finding.fix(&text, &[&ask], risk, "");
    };
    let text = format!("{:.0} instead of {threads:.0}", worst.wanted());
    // CONFIG SET would have no answer from one that is silent.
    if is_set_at_runtime(node) && !worst.is_silent() {
        let (set, back) =
            (format!("CONFIG SET io-threads {:.0}", worst.wanted()), format!("CONFIG SET io-threads {threads:.0}"));
        return finding.fix_at(&node.address, &format!("Use fewer io-threads: {text}"), &[&set], risk, &back);
    }
    finding.fix(
        &format!("Use fewer io-threads: {text}"),
        &[&format!(
            "io-threads {:.0}   (redis.conf or valkey.conf of {}, then restart: replicas first)",
            worst.wanted(),
            node.address
        )],
        risk,
        &format!("io-threads {threads:.0}"),
    )
}

/// Whether CONFIG SET takes it: Valkey 9.0 and later (valkey #2033).
pub(super) fn is_set_at_runtime(node: &Node) -> bool {
    node.info().is_some_and(|i| i.product() == "Valkey" && i.version().is_some_and(|v| v >= (9, 0, 0)))
}
