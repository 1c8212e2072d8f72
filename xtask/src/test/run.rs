//! Runs tests side by side.
//!
//! What a test wants said beside its outcome (a skip, a busy machine) it writes into the file that `UNSLOW_TEST_NOTES`
//! names; its output is kept, and shown where it failed.
//!
//! Tests on real servers have a session each. Pure tests of one binary run in one process: starting a process takes a
//! hundred times as long as most of them. Unless all pass without a note, each runs again in a separate process, with a
//! separate log; what failed the first time has failed.

use std::collections::VecDeque;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::find::{Kind, Test};
use super::plan::{Need, Plan};
use super::{leftovers, report};

/// Names the file for a test's notes, and marks every process that the test starts.
pub const NOTES: &str = "UNSLOW_TEST_NOTES";

/// Short-lived JVMs, those of clients and of Maven, end before the second compiler pays for itself.
const SHORT_JVM: &str = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC";

/// How a test ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    Passed,
    /// It looked, and this machine cannot show it.
    Skipped(String),
    /// Why, as the list at the end prints it.
    Failed(String),
    /// Ctrl-C came first.
    Interrupted,
}

/// One test that has ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub id: String,
    pub end: End,
    pub took: Duration,
    /// CPU time of its process and of the children that it waited for; zero if it was killed at the limit.
    pub cpu: Duration,
    /// What it noted: tries on a busy machine.
    pub notes: Vec<String>,
    /// Its output.
    pub log: PathBuf,
    pub kind: Kind,
}

impl Outcome {
    pub fn failed(&self) -> bool {
        matches!(self.end, End::Failed(_))
    }

    pub fn interrupted(&self) -> bool {
        self.end == End::Interrupted
    }
}

/// Process groups that run now, so that Ctrl-C can end them.
type Groups = Arc<Mutex<Vec<u32>>>;

/// What runs at the moment, by need.
#[derive(Default)]
struct Running {
    preparations: usize,
    pure: usize,
    servers: usize,
    waits: usize,
    quiet: usize,
    alone: usize,
}

/// How many that need a machine at rest run at a time.
const QUIET: usize = 3;

impl Running {
    fn of(&mut self, need: Need) -> &mut usize {
        match need {
            Need::Preparation => &mut self.preparations,
            Need::Pure => &mut self.pure,
            Need::Servers => &mut self.servers,
            Need::Waits => &mut self.waits,
            Need::Quiet => &mut self.quiet,
            Need::Alone => &mut self.alone,
        }
    }

    fn total(&self) -> usize {
        self.preparations + self.pure + self.servers + self.waits + self.quiet + self.alone
    }

    /// Whether one more may begin.
    fn room(&self, need: Need, plan: &Plan, processors: usize) -> bool {
        let on_servers = self.servers + self.waits;
        // Pure ones begin first: once they leave a processor free, none is left to begin, and the others need not wait
        // for the last of them.
        let is_shared = self.alone + self.quiet == 0 && self.pure < processors;
        let is_prepared = self.preparations == 0;
        match need {
            Need::Preparation => true,
            Need::Pure => is_shared,
            Need::Servers => is_prepared && is_shared && self.servers < plan.slots,
            // Where no others are left, these have the slots of all.
            Need::Waits => is_prepared && is_shared && (self.waits < plan.waiting || on_servers < plan.slots),
            Need::Quiet => self.total() == self.quiet && self.quiet < QUIET,
            Need::Alone => self.total() == 0,
        }
    }
}

/// Runs all of them; returns when the last has ended. Where a preparation fails, it is among the outcomes, and tests on
/// servers are not.
pub fn all(plan: &Plan, preparations: Vec<Test>, tests: Vec<Test>, logs: &Path) -> anyhow::Result<Vec<Outcome>> {
    let (groups, stop) = (Groups::default(), Arc::new(AtomicBool::new(false)));
    end_on_signals(&groups, &stop)?;
    until(plan, preparations, tests, logs, &groups, &stop)
}

/// Runs them until `stop` is set.
fn until(
    plan: &Plan,
    preparations: Vec<Test>,
    tests: Vec<Test>,
    logs: &Path,
    groups: &Groups,
    stop: &Arc<AtomicBool>,
) -> anyhow::Result<Vec<Outcome>> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let total = tests.len();
    let mut queue: Vec<(Need, Test)> = preparations.into_iter().chain(tests).map(|t| (plan.need(&t), t)).collect();
    // Pure ones tell at once what is broken; what runs alone comes last, when nothing is left to wait for it.
    // Of those on servers the programs come first, since they take longest, and then those that the plan names.
    let place = |need: Need, test: &Test| match need {
        Need::Servers | Need::Waits => plan.place(test),
        _ => 0,
    };
    let key = |(need, test): &(Need, Test)| (*need as u8, test.kind != Kind::Program, place(*need, test));
    queue.sort_by_key(key);
    let done = AtomicUsize::new(0);
    let mut queue = jobs(queue);
    let (send, ended): (Sender<(Need, Vec<Outcome>)>, Receiver<_>) = channel();
    let (mut running, mut outcomes) = (Running::default(), Vec::new());
    while !queue.is_empty() || running.total() > 0 {
        while let Some(at) = queue.iter().position(|(need, _)| running.room(*need, plan, processors))
            && !stop.load(Ordering::Relaxed)
        {
            let Some((need, tests)) = queue.remove(at) else { break };
            *running.of(need) += 1;
            let (send, logs, groups) = (send.clone(), logs.to_path_buf(), groups.clone());
            let (limit, stop) = (Duration::from_secs(plan.limit_s), Arc::clone(stop));
            std::thread::spawn(move || {
                let outcomes = match &tests[..] {
                    [test] => vec![one(test, &logs, limit, &groups, &stop)],
                    tests => together(tests, &logs, limit, &groups, &stop),
                };
                let _ = send.send((need, outcomes));
            });
        }
        if running.total() == 0 {
            break; // told to stop
        }
        let (need, some) = ended.recv().context("every job sends its outcomes")?;
        *running.of(need) -= 1;
        for outcome in some {
            if need == Need::Preparation {
                if outcome.end != End::Passed {
                    queue.retain(|(need, _)| *need == Need::Pure);
                    println!("FAIL {}: tests on servers are left out", outcome.id);
                    outcomes.push(outcome);
                }
                continue;
            }
            report::line(&outcome, done.fetch_add(1, Ordering::Relaxed) + 1, total);
            outcomes.push(outcome);
        }
    }
    Ok(outcomes)
}

/// What runs as one process: all pure tests of one binary, or one test.
fn jobs(tests: Vec<(Need, Test)>) -> VecDeque<(Need, Vec<Test>)> {
    let mut jobs: VecDeque<(Need, Vec<Test>)> = VecDeque::new();
    for (need, test) in tests {
        let is_of_many = need == Need::Pure && test.kind != Kind::Program;
        let same = |(of, others): &&mut (Need, Vec<Test>)| *of == Need::Pure && others[0].program == test.program;
        match jobs.iter_mut().find(same).filter(|_| is_of_many) {
            Some((_, others)) => others.push(test),
            None => jobs.push_back((need, vec![test])),
        }
    }
    jobs
}

/// Tests of one binary in one process, one after another; each by itself unless all of them pass without a note.
fn together(tests: &[Test], logs: &Path, limit: Duration, groups: &Groups, stop: &AtomicBool) -> Vec<Outcome> {
    let begun = Instant::now();
    let all = all_of(tests);
    let (log, notes) = (logs.join(format!("{}.log", all.id)), logs.join(format!("{}.notes", all.id)));
    let _ = std::fs::remove_file(&notes);
    let ended = run(&all, &log, &notes, limit, groups, stop);
    let is_left = !leftovers::end(&notes).is_empty();
    let is_told = std::fs::read(&notes).is_ok_and(|notes| !notes.is_empty());
    let counted = format!("test result: ok. {} passed; 0 failed; 0 ignored", tests.len());
    let text = std::fs::read(&log).map_or_else(|_| String::new(), |log| String::from_utf8_lossy(&log).into_owned());
    let cpu = ended.as_ref().map_or(Duration::ZERO, |ended| ended.cpu);
    let is_success = ended.is_ok_and(|ended| ended.status.is_some_and(|status| status.success()));
    let has_passed = is_success && text.contains(&counted);
    if is_left || is_told || !has_passed {
        let failed = if has_passed { Vec::new() } else { failed_of(&text) };
        let again = |test: &Test| {
            let mut outcome = one(test, logs, limit, groups, stop);
            if !outcome.interrupted() && !outcome.failed() && failed.contains(&name_of(test)) {
                outcome.end = End::Failed("failed with others in one process, and not by itself".into());
                outcome.log.clone_from(&log);
            }
            outcome
        };
        return tests.iter().map(again).collect();
    }
    // What each of them took is not known.
    let (took, cpu) = (begun.elapsed() / tests.len() as u32, cpu / tests.len() as u32);
    let passed = |test: &Test| Outcome {
        id: test.id.clone(),
        end: End::Passed,
        took,
        cpu,
        notes: Vec::new(),
        log: log.clone(),
        kind: test.kind,
    };
    tests.iter().map(passed).collect()
}

/// Those that libtest lists as failed; where it lists none (a crash, a test without an end), the last that began.
fn failed_of(text: &str) -> Vec<&str> {
    let listed = text.rsplit_once("\nfailures:\n").map_or("", |(_, listed)| listed);
    let listed: Vec<&str> = listed.lines().map_while(|line| line.strip_prefix("    ")).collect();
    if !listed.is_empty() {
        return listed;
    }
    let begun = text.lines().rev().find_map(|line| line.strip_prefix("test ")?.split_once(" ... "));
    begun.map(|(name, _)| name).into_iter().collect()
}

fn name_of(test: &Test) -> &str {
    test.arguments.iter().find(|word| !word.starts_with('-')).map_or("", String::as_str)
}

/// One call of the binary for all of them. `--exact` takes several names.
fn all_of(tests: &[Test]) -> Test {
    let mut arguments: Vec<String> = tests.iter().map(|test| name_of(test).to_string()).collect();
    arguments.extend(["--exact", "--include-ignored", "--test-threads=1"].map(String::from));
    let name = tests[0].program.file_name().unwrap_or_default().to_string_lossy();
    Test { id: format!("together.{name}"), arguments, ..tests[0].clone() }
}

/// Ctrl-C, SIGTERM and a closed terminal end what runs, and with it what it started.
fn end_on_signals(groups: &Groups, stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    let (groups, stop) = (groups.clone(), stop.clone());
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            stop.store(true, Ordering::Relaxed);
            // What installs an engine removes what it has half made.
            for (signal, patience) in [("-TERM", Duration::from_secs(1)), ("-KILL", Duration::ZERO)] {
                for group in groups.lock().unwrap_or_else(|e| e.into_inner()).iter() {
                    signal_group(*group, signal);
                }
                std::thread::sleep(patience);
            }
        }
    });
    Ok(())
}

/// Servers are bound to the test that started them and end with it.
fn signal_group(group: u32, signal: &str) {
    let _ = Command::new("kill").args([signal, "--", &format!("-{group}")]).stderr(Stdio::null()).status();
}

fn one(test: &Test, logs: &Path, limit: Duration, groups: &Groups, stop: &AtomicBool) -> Outcome {
    let begun = Instant::now();
    let stem = test.id.replace("::", ".");
    let (log, notes) = (logs.join(format!("{stem}.log")), logs.join(format!("{stem}.notes")));
    let _ = std::fs::remove_file(&notes);
    if stop.load(Ordering::Relaxed) {
        let (id, took, cpu, notes) = (test.id.clone(), Duration::ZERO, Duration::ZERO, Vec::new());
        return Outcome { id, end: End::Interrupted, took, cpu, notes, log, kind: test.kind };
    }
    let ended = run(test, &log, &notes, limit, groups, stop);
    let left = leftovers::end(&notes);
    let mut notes: Vec<String> =
        std::fs::read_to_string(&notes).unwrap_or_default().lines().map(String::from).collect();
    let skipped = notes.iter().find_map(|n| n.strip_prefix("skip: ")).map(String::from);
    let cpu = ended.as_ref().map_or(Duration::ZERO, |ended| ended.cpu);
    let end = match ended.map(|ended| ended.status) {
        _ if stop.load(Ordering::Relaxed) => End::Interrupted,
        Err(why) => End::Failed(format!("{why:#}")),
        Ok(None) => End::Failed(format!("not over after {} s, the limit of tests.toml", limit.as_secs())),
        Ok(Some(status)) if !status.success() => End::Failed(in_words(status, &log)),
        Ok(Some(_)) if test.kind != Kind::Program && !has_run(&log) => End::Failed("its binary did not run it".into()),
        Ok(Some(_)) => skipped.map_or(End::Passed, End::Skipped),
    };
    notes.retain(|n| !n.starts_with("skip: "));
    notes.extend(left.into_iter().map(|process| format!("left: {process} was still running and has been ended")));
    Outcome { id: test.id.clone(), end, took: begun.elapsed(), cpu, notes, log, kind: test.kind }
}

/// Whether libtest counted one test in this log.
fn has_run(log: &Path) -> bool {
    const COUNTED: &[u8] = b"test result: ok. 1 passed;";
    std::fs::read(log).is_ok_and(|text| text.windows(COUNTED.len()).any(|there| there == COUNTED))
}

fn in_words(status: ExitStatus, log: &Path) -> String {
    match status.signal() {
        Some(signal) => format!("ended by signal {signal}"),
        None => std::fs::read(log)
            .ok()
            .and_then(|text| report::reason(&String::from_utf8_lossy(&text)))
            .unwrap_or_else(|| "failed".into()),
    }
}

/// In a separate session: a group that can be ended as a whole, and that Linux schedules as one (sched_autogroup), so
/// that a test may put itself before other programs without the terminal it was started from. It ends with the thread
/// that starts it, so also where the runner is ended by `kill -9`; its servers end with it.
fn command(test: &Test, notes: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "setsid"]).arg(&test.program).args(&test.arguments).current_dir(&test.dir);
    command
        .env("UNSLOW_TEST_RUNNER", std::process::id().to_string())
        .env(NOTES, notes)
        .env("JDK_JAVA_OPTIONS", java_options(std::env::var("JDK_JAVA_OPTIONS").ok().as_deref()));
    if test.kind != Kind::Program {
        command.env("CARGO_MANIFEST_DIR", &test.dir);
    }
    command
}

/// What the user has set comes last, and so wins.
fn java_options(of_user: Option<&str>) -> String {
    format!("{SHORT_JVM} {}", of_user.unwrap_or_default()).trim().to_string()
}

/// How a process ended.
struct Ended {
    /// None if it was killed at the limit.
    status: Option<ExitStatus>,
    cpu: Duration,
}

/// None while the process runs; once it has exited, its CPU time, including the children that it waited for.
fn cpu_if_exited(pid: u32) -> anyhow::Result<Option<Duration>> {
    let stat = procfs::process::Process::new(pid.cast_signed())?.stat()?;
    let ticks = stat.utime + stat.stime + u64::try_from(stat.cutime + stat.cstime)?;
    let cpu = Duration::from_millis(ticks * 1000 / procfs::ticks_per_second());
    Ok(matches!(stat.state()?, procfs::process::ProcState::Zombie).then_some(cpu))
}

/// Runs the test to its end, or to the limit.
fn run(
    test: &Test,
    log: &Path,
    notes: &Path,
    limit: Duration,
    groups: &Groups,
    stop: &AtomicBool,
) -> anyhow::Result<Ended> {
    let output = std::fs::File::create(log).with_context(|| log.display().to_string())?;
    let mut command = command(test, notes);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut child = command.spawn().with_context(|| test.program.display().to_string())?;
    groups.lock().unwrap_or_else(|e| e.into_inner()).push(child.id());
    if stop.load(Ordering::Relaxed) {
        signal_group(child.id(), "-KILL"); // Ctrl-C came before it was in the list
    }
    let begun = Instant::now();
    let ended = loop {
        // Where it cannot be read, the time is lost and nothing else.
        let exited = cpu_if_exited(child.id()).unwrap_or(Some(Duration::ZERO));
        if let Some(cpu) = exited
            && let Some(status) = child.try_wait()?
        {
            break Ended { status: Some(status), cpu };
        }
        if begun.elapsed() > limit {
            signal_group(child.id(), "-KILL");
            child.wait()?;
            break Ended { status: None, cpu: Duration::ZERO };
        }
        std::thread::sleep(Duration::from_millis(if begun.elapsed() < Duration::from_secs(1) { 2 } else { 20 }));
    };
    groups.lock().unwrap_or_else(|e| e.into_inner()).retain(|g| *g != child.id());
    Ok(ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_alone_runs_alone_and_slots_are_kept() {
        let plan = Plan::of_slots(2, 1);
        let room = |running: &Running, need| running.room(need, &plan, 4);
        let mut running = Running::default();
        assert!(room(&running, Need::Alone));
        *running.of(Need::Servers) += 1;
        assert!(room(&running, Need::Servers) && !room(&running, Need::Alone));
        *running.of(Need::Servers) += 1;
        assert!(!room(&running, Need::Servers) && room(&running, Need::Pure));
        assert!(!room(&running, Need::Quiet) && room(&running, Need::Waits));
        *running.of(Need::Waits) += 1;
        assert!(!room(&running, Need::Waits) && !room(&running, Need::Alone));
        let running_out = Running { waits: 1, ..Running::default() };
        assert!(room(&running_out, Need::Waits) && room(&running_out, Need::Servers));
        let running = Running { quiet: QUIET - 1, ..Running::default() };
        assert!(room(&running, Need::Quiet) && !room(&running, Need::Alone) && !room(&running, Need::Servers));
        let running = Running { quiet: QUIET, ..Running::default() };
        assert!(!room(&running, Need::Quiet) && !room(&running, Need::Pure));
        let running = Running { alone: 1, ..Running::default() };
        assert!(!room(&running, Need::Pure) && !room(&running, Need::Servers));
        let last_of_pure = Running { pure: 3, ..Running::default() };
        assert!(room(&last_of_pure, Need::Servers) && room(&last_of_pure, Need::Waits));
        assert!(!room(&last_of_pure, Need::Quiet) && !room(&last_of_pure, Need::Alone));
        let more_are_pure = Running { pure: 4, ..Running::default() };
        assert!(!room(&more_are_pure, Need::Servers) && !room(&more_are_pure, Need::Pure));
    }

    fn shell(script: &str) -> (Outcome, tempfile::TempDir) {
        limited(script, Duration::from_secs(600))
    }

    fn limited(script: &str, limit: Duration) -> (Outcome, tempfile::TempDir) {
        let (test, dir) = scripted(script);
        let outcome = one(&test, dir.path(), limit, &Groups::default(), &AtomicBool::new(false));
        (outcome, dir)
    }

    fn scripted(script: &str) -> (Test, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("test.sh");
        std::fs::write(&binary, format!("#!/bin/sh\necho 'test result: ok. 1 passed; 0 failed'\n{script}\n")).unwrap();
        let mut mode = std::fs::metadata(&binary).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
        std::fs::set_permissions(&binary, mode).unwrap();
        let at = dir.path().to_path_buf();
        let (id, arguments) = ("a::b".into(), Vec::new());
        (Test { id, program: binary, arguments, dir: at, kind: Kind::Unit, long: false }, dir)
    }

    #[test]
    fn a_skip_a_failure_a_signal_and_a_test_without_end_are_told_apart() {
        assert_eq!(shell("exit 0").0.end, End::Passed);
        assert_eq!(shell("echo 'skip: no IPv6' > $UNSLOW_TEST_NOTES").0.end, End::Skipped("no IPv6".into()));
        assert_eq!(shell("echo 'skip: x' > $UNSLOW_TEST_NOTES; exit 101").0.end, End::Failed("failed".into()));
        let panics = "echo \"thread 'b' panicked at b.rs:1:2:\"; echo 'no master'; exit 101";
        assert_eq!(shell(panics).0.end, End::Failed("no master".into()));
        assert_eq!(shell("kill -9 $$").0.end, End::Failed("ended by signal 9".into()));
        let (hung, _dir) = limited("sleep 1000", Duration::from_millis(300));
        assert!(matches!(&hung.end, End::Failed(why) if why.contains("not over after")), "{hung:?}");
        let (noted, _dir) = shell("echo 'busy: tried again' > $UNSLOW_TEST_NOTES");
        assert_eq!((noted.end, noted.notes), (End::Passed, vec!["busy: tried again".to_string()]));
    }

    #[test]
    fn tests_on_servers_wait_for_the_preparation_and_pure_ones_do_not() {
        let dir = tempfile::tempdir().unwrap();
        let program = |name: &str, need: &str, script: &str| {
            format!(
                "[[program]]\nname = {name:?}\nneed = {need:?}\ndir = \".\"\ncommand = [\"sh\", \"-c\", {script:?}]\n"
            )
        };
        let ends_of = |preparation: &str| {
            let plan = [
                program("engine", "preparation", preparation),
                program("early", "pure", "touch early"),
                program("late", "servers", "test -e engine"),
            ];
            let plan = Plan::parse(&format!("slots = 2\nlimit_s = 60\ngroup = []\n{}", plan.concat()), None).unwrap();
            let (first, tests): (Vec<Test>, Vec<Test>) =
                plan.programs(dir.path()).unwrap().into_iter().partition(|t| t.id == "engine");
            let stop = Arc::new(AtomicBool::new(false));
            let mut ends: Vec<(String, End)> = until(&plan, first, tests, dir.path(), &Groups::default(), &stop)
                .unwrap()
                .into_iter()
                .map(|outcome| (outcome.id, outcome.end))
                .collect();
            ends.sort_by(|a, b| a.0.cmp(&b.0));
            ends
        };
        // It ends only once the pure one has run.
        let waits = "until test -e early; do sleep 0.01; done; touch engine";
        assert_eq!(ends_of(waits), [("early".into(), End::Passed), ("late".into(), End::Passed)]);
        let failed = End::Failed("failed".into());
        assert_eq!(ends_of("exit 1"), [("early".into(), End::Passed), ("engine".into(), failed)]);
    }

    #[test]
    fn cpu_time_of_a_child_that_was_waited_for_counts() {
        let (outcome, _dir) = shell("sh -c 'i=0; while [ $i -lt 1000000 ]; do i=$((i + 1)); done'; exit 0");
        // Many times what it takes to start a shell.
        assert!(outcome.end == End::Passed && outcome.cpu >= Duration::from_millis(100), "{outcome:?}");
    }

    /// As libtest does: it names its tests and counts them. `bad` is a test that fails beside others, or does not end
    /// there; what stands in `note` is a note.
    const LIBTEST: &str = r#"echo x >> runs; n=0; cat note > $UNSLOW_TEST_NOTES 2> /dev/null
for word; do case $word in -*) ;; *) n=$((n+1)); printf "test $word ... "
    if test $# -gt 4 && test "$(cat bad 2> /dev/null)" = $word; then bad=$word; echo FAILED; else echo ok; fi;; esac; done
test -n "$bad" && { printf "\\nfailures:\\n    $bad\\n"; exit 101; }; echo "test result: ok. $n passed; 0 failed; 0 ignored""#;

    #[test]
    fn pure_tests_of_one_binary_run_together_and_by_themselves_where_one_fails() {
        let (test, dir) = scripted(LIBTEST);
        let named = |name: &str| Test {
            id: format!("a::{name}"),
            arguments: ["--exact", name, "--nocapture", "--include-ignored"].map(String::from).to_vec(),
            ..test.clone()
        };
        let other = Test { program: "/other".into(), ..named("z") };
        let tests = [named("b"), named("c"), other, named("d")];
        let sizes =
            |need: Need| jobs(tests.clone().map(|test| (need, test)).to_vec()).iter().map(|j| j.1.len()).collect();
        let (pure, served): (Vec<usize>, Vec<usize>) = (sizes(Need::Pure), sizes(Need::Servers));
        assert_eq!((pure, served), (vec![3, 1], vec![1; 4]));
        let all = [named("b"), named("c"), named("d")];
        let at = dir.path().to_path_buf();
        let together = || {
            let _ = std::fs::remove_file(at.join("runs"));
            let (groups, stop) = (Groups::default(), AtomicBool::new(false));
            let outcomes = together(&all, &at, Duration::from_secs(600), &groups, &stop);
            let runs = std::fs::read_to_string(at.join("runs")).unwrap().lines().count();
            (runs, outcomes.into_iter().map(|o| o.end).collect::<Vec<_>>())
        };
        assert_eq!(together(), (1, vec![End::Passed; 3]));
        std::fs::write(at.join("note"), "skip: no IPv6").unwrap();
        assert_eq!(together(), (4, vec![End::Skipped("no IPv6".into()); 3]));
        std::fs::remove_file(at.join("note")).unwrap();
        // What failed beside the others has failed, though it passes by itself.
        std::fs::write(at.join("bad"), "c").unwrap();
        let (runs, ends) = together();
        assert_eq!((runs, &ends[0], &ends[2]), (4, &End::Passed, &End::Passed));
        assert!(matches!(&ends[1], End::Failed(why) if why.ends_with("not by itself")), "{ends:?}");
        // A binary that runs fewer than it was asked for has not passed all of them.
        let none = "#!/bin/sh\necho x >> runs\necho 'test result: ok. 0 passed; 0 failed; 0 ignored'\n";
        std::fs::write(&test.program, none).unwrap();
        let (runs, ends) = together();
        assert!(runs == 4 && ends.iter().all(|end| matches!(end, End::Failed(_))), "{ends:?}");
        let two =
            "test a ... FAILED\ntest b ... noise\nok\n\nfailures:\n\n---- a ----\n\nfailures:\n    a\n\ntest result: F";
        assert_eq!(failed_of(two), ["a"]);
        assert_eq!(failed_of("test a ... ok\ntest b ... "), ["b"]);
        assert_eq!(failed_of("test a ... ok\n\ntest result: ok. 1 passed"), ["a"], "it ended badly behind the last");
    }

    #[test]
    fn a_test_ends_with_the_runner_that_started_it() {
        let (test, dir) = scripted("touch begun; exec sleep 1000");
        let (notes, begun) = (dir.path().join("notes"), dir.path().join("begun"));
        // Linux ends it when the thread that started it ends, as each does in a process that is killed.
        let starts = move || {
            let child = command(&test, &notes).spawn().unwrap();
            while !begun.exists() {
                std::thread::sleep(Duration::from_millis(2));
            }
            child
        };
        let mut child = std::thread::spawn(starts).join().unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_process_that_a_test_leaves_behind_is_ended_and_told() {
        // Until it is the program it is looked for by: the shell's fork has the shell's name.
        let until = "until grep -q sleep /proc/$!/comm; do :; done";
        let (outcome, dir) = shell(&format!("setsid sleep 1000 > /dev/null & echo $! > pid; {until}"));
        let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
        assert_eq!(outcome.end, End::Passed);
        assert!(outcome.notes[0].contains("sleep"), "{outcome:?}");
        // It has its signal, and may be on its way out still.
        let stat = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        let gone = || stat().is_empty() || stat().contains(") Z");
        let deadline = Instant::now() + Duration::from_secs(120);
        while !gone() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(gone(), "{}", stat());
    }
}
