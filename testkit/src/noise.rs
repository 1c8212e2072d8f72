//! What the rest of the machine did while something was measured, read from the kernel and not from the tool under
//! test.
//!
//! A test that judges a live diagnosis or a live verdict may be tried again, and only while this clock shows that the
//! machine itself was taken away: by its hypervisor (steal), or by other processes while ours stood in the run queue.
//! Every such try is printed. A failure on a quiet machine is a failure at once.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use procfs::{CurrentSI, KernelStats};
use unslow_process::{pids, schedstat, seconds, stat, threads};

/// More than this much of the processors' time, taken by the hypervisor, counts as busy.
const STOLEN_SHARE: f64 = 0.03;
/// More than this many cores used by others, while ours waited for a processor, counts as busy.
const OTHERS_CORES: f64 = 0.2;
/// How long ours may wait, of the time they want to run.
const WAITING_SHARE: f64 = 0.03;

/// Begins to watch.
pub struct Noise(Instant, Snapshot);

/// Counters at one moment.
#[derive(Clone, Default)]
struct Snapshot {
    /// Ticks of all processors: running anything, stolen, and in all.
    busy: u64,
    stolen: u64,
    total: u64,
    /// Ticks that this process and all below it have run.
    own: u64,
    /// The same of all that the runner of the tests has started, this process included.
    suite: u64,
    /// Nanoseconds that their threads have run and have waited for a processor, by thread.
    threads: HashMap<u32, (u64, u64)>,
}

/// What the machine did in between.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load {
    /// Of all processors' time, what the hypervisor took.
    pub stolen_share: f64,
    /// Cores that processes other than this test's used.
    pub others_cores: f64,
    /// Of these, what was not another test's.
    pub strangers_cores: f64,
    /// Of the time this test's threads wanted to run, what they waited for a processor.
    pub waiting_share: f64,
}

impl Noise {
    pub fn watch() -> Noise {
        // A child of a process that is killed stays in the family: what it ran is not another program's.
        // SAFETY: numbers only.
        unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        Noise(Instant::now(), Snapshot::take())
    }

    /// Since the beginning.
    pub fn so_far(&self) -> Load {
        Load::between(&self.1, &Snapshot::take(), self.0.elapsed().as_secs_f64())
    }
}

impl Snapshot {
    fn take() -> Snapshot {
        let mut taken = Snapshot::default();
        if let Ok(KernelStats { total: ticks, .. }) = KernelStats::current() {
            let later = [ticks.iowait, ticks.irq, ticks.softirq, ticks.steal];
            let [waiting, irq, softirq, stolen] = later.map(Option::unwrap_or_default);
            let busy = ticks.user + ticks.nice + ticks.system + irq + softirq;
            taken = Snapshot { busy, stolen, total: busy + stolen + ticks.idle + waiting, ..taken };
        }
        let parents = parents();
        let runner = std::env::var("UNSLOW_TEST_RUNNER").ok().and_then(|pid| pid.parse().ok());
        taken.suite = runner.map_or(0, |pid| below(pid, &parents).into_iter().map(ran).sum());
        for pid in below(std::process::id(), &parents) {
            taken.own += ran(pid);
            let all = threads(pid).filter_map(|thread| Some((thread, schedstat(pid, thread)?)));
            taken.threads.extend(all.map(|(thread, s)| (thread, (s.sum_exec_runtime, s.run_delay))));
        }
        taken
    }
}

/// Ticks a process has run, those of its children that have ended too.
fn ran(pid: u32) -> u64 {
    stat(pid).map_or(0, |s| s.utime + s.stime + (s.cutime + s.cstime) as u64)
}

/// Every process and its parent.
fn parents() -> Vec<(u32, u32)> {
    pids().filter_map(|pid| Some((pid, stat(pid)?.ppid as u32))).collect()
}

/// A process and all below it.
fn below(root: u32, parents: &[(u32, u32)]) -> Vec<u32> {
    let mut family = vec![root];
    let mut next = 0;
    while let Some(&of) = family.get(next) {
        family.extend(parents.iter().filter(|(_, parent)| *parent == of).map(|(pid, _)| *pid));
        next += 1;
    }
    family
}

impl Load {
    fn between(from: &Snapshot, to: &Snapshot, elapsed_s: f64) -> Load {
        let cores = |from: u64, to: u64| seconds(to.saturating_sub(from)) / elapsed_s.max(0.001);
        let busy_cores = cores(from.busy, to.busy);
        let own_cores = cores(from.own, to.own);
        // Without a runner there are no other tests.
        let suite_cores = cores(from.suite, to.suite).max(own_cores);
        let (mut ran, mut waited) = (0, 0);
        for (thread, now) in &to.threads {
            let before = from.threads.get(thread).copied().unwrap_or_default();
            ran += now.0.saturating_sub(before.0);
            waited += now.1.saturating_sub(before.1);
        }
        Load {
            stolen_share: to.stolen.saturating_sub(from.stolen) as f64
                / to.total.saturating_sub(from.total).max(1) as f64,
            others_cores: (busy_cores - own_cores).max(0.0),
            strangers_cores: (busy_cores - suite_cores).max(0.0),
            waiting_share: waited as f64 / (ran + waited).max(1) as f64,
        }
    }

    /// Whether others held the machine, tests beside this one among them: a neighbour is there to be named.
    pub fn busy(&self) -> bool {
        self.taken(self.others_cores)
    }

    /// Whether the machine was taken away from the tests as a whole: a reason to try again, which tests that run side
    /// by side are not to each other.
    pub fn taken_away(&self) -> bool {
        self.taken(self.strangers_cores)
    }

    fn taken(&self, cores: f64) -> bool {
        self.stolen_share > STOLEN_SHARE || (cores > OTHERS_CORES && self.waiting_share > WAITING_SHARE)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} % of the machine stolen, {:.2} cores used by others ({:.2} not by tests), ours waited {:.0} % of \
             the time they wanted to run",
            self.stolen_share * 100.0,
            self.others_cores,
            self.strangers_cores,
            self.waiting_share * 100.0
        )
    }
}

/// Tries up to `tries` times. A failure is tried again only if the machine was busy during that very try, and is noted;
/// on a quiet machine the first failure is the test's.
#[track_caller]
pub fn tried_while_busy<T>(tries: u32, mut body: impl FnMut(u32) -> Result<T, String>) -> T {
    for attempt in 1.. {
        let noise = Noise::watch();
        let why = match body(attempt) {
            Ok(value) => return value,
            Err(why) => why,
        };
        let load = noise.so_far();
        if !again(attempt, tries, &load) {
            panic!("{why}\n(try {attempt} of at most {tries}; the machine: {load})");
        }
        crate::notes::busy(&format!("tried again, {load}: {}", why.lines().next().unwrap_or_default()));
    }
    unreachable!("the last try returns or panics")
}

/// Puts this test and all that it starts before other programs, for what cannot be shown on half a processor: a server
/// whose main thread is full. Without the right to do so (CAP_SYS_NICE) nothing changes.
///
/// Real time, of the lowest kind: with a better nice value alone a server and its clients still wait for the slices of
/// others each time they wake each other, and neither is ever full.
pub fn shield() {
    // SAFETY: the struct outlives the call; 0 is the calling process.
    let real = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &libc::sched_param { sched_priority: 1 }) == 0 };
    if !real && !shield_by_nice() {
        println!("without CAP_SYS_NICE: other programs may keep the processors from this test");
    }
}

/// Where there is no real time for us (a control group may have none).
fn shield_by_nice() -> bool {
    const NICE: i32 = -15;
    // SAFETY: numbers only; 0 is the calling process.
    let (set, session) = unsafe { (libc::setpriority(libc::PRIO_PROCESS, 0, NICE) == 0, libc::getsid(0)) };
    // Where Linux groups processes by their session, priorities count within a session, and that of the session counts
    // outside. Only one that is this test's own is touched.
    let own = session == std::process::id() as i32;
    set && (!own || std::fs::write("/proc/self/autogroup", NICE.to_string()).is_ok())
}

/// Whether a try that failed under this load may be followed by another.
fn again(attempt: u32, tries: u32, load: &Load) -> bool {
    load.taken_away() && attempt < tries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(busy: u64, stolen: u64, total: u64, own: u64, threads: &[(u32, u64, u64)]) -> Snapshot {
        Snapshot {
            busy,
            stolen,
            total,
            own,
            suite: own + 20,
            threads: threads.iter().map(|t| (t.0, (t.1, t.2))).collect(),
        }
    }

    #[test]
    fn work_of_ones_own_is_no_noise_and_that_of_others_is() {
        let before = snapshot(100, 0, 1000, 50, &[(1, 0, 0)]);
        // A second on two cores, all of it ours: we waited for ourselves.
        let ours = Load::between(&before, &snapshot(300, 0, 1200, 250, &[(1, 1_000_000, 1_000_000)]), 1.0);
        assert_eq!((ours.others_cores, ours.waiting_share), (0.0, 0.5));
        assert!(!ours.busy());
        let others = Load::between(&before, &snapshot(300, 0, 1200, 100, &[(1, 9_000_000, 1_000_000)]), 1.0);
        assert_eq!((others.others_cores, others.strangers_cores), (1.5, 1.5));
        assert!(others.busy());
        // Others run, and leave us our processor.
        let beside = Load::between(&before, &snapshot(300, 0, 1200, 100, &[(1, 9_000_000, 1_000)]), 1.0);
        assert!(!beside.busy());
        let stolen = Load::between(&before, &snapshot(100, 10, 1200, 50, &[]), 1.0);
        assert_eq!(stolen.stolen_share, 0.05);
        assert!(stolen.busy());
    }

    #[test]
    fn only_a_busy_machine_is_a_reason_to_try_again_and_not_for_ever() {
        let quiet = Load { stolen_share: 0.0, others_cores: 0.1, strangers_cores: 0.1, waiting_share: 0.5 };
        let beside = Load { others_cores: 1.0, ..quiet };
        let busy = Load { strangers_cores: 1.0, ..beside };
        assert!(!again(1, 3, &quiet) && !again(1, 3, &beside) && beside.busy());
        assert!(again(1, 3, &busy) && again(2, 3, &busy) && !again(3, 3, &busy));
    }

    #[test]
    fn the_counters_of_this_machine_can_be_read() {
        let noise = Noise::watch();
        let load = noise.so_far();
        assert!(load.stolen_share.is_finite() && load.others_cores >= 0.0 && load.waiting_share <= 1.0);
        assert!(below(std::process::id(), &parents()).contains(&std::process::id()));
    }
}
