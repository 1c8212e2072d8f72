//! `client_recovery`: the clients that applications use, side by side through the same fault.
//!
//! All of them run at once, so they share the fault and the machine. Half of each client's threads use a key of the
//! shard that is hit (slot 42), half a key of another.

mod drivers;
mod trial;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::Serialize;
use unslow_engine::spawn_bound;
use unslow_lab::lab::Lab;
use unslow_topology::slot_of;

use crate::error::{Error, Unfit};
use crate::run::{How, interrupted, while_running};
use crate::spec::Drill;
use crate::store::Folder;
use trial::Trial;

pub use drivers::names;

/// Schema of a [`Document`].
pub const SCHEMA: &str = "unslow.drill.clients/1";

/// A client has so long for its first answer: the virtual machines of several start at once, on whatever else the
/// machine does.
const FIRST_ANSWER: Duration = Duration::from_secs(120);
/// So many starts of clients, those that ended before their first answer included.
const STARTS: u32 = 10;
/// A command that took longer is slow, as in the account.
const SLOW_US: u64 = 30_000;
/// So many silences of a client are kept of each fault.
const SILENCES: usize = 200;
/// The slot that is hit: of the first master, and among those that move.
const SLOT: u16 = 42;

/// One client through one fault.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub struct Seen {
    /// The client, as asked for.
    pub client: String,
    /// What it says of itself.
    pub version: String,
    /// The fault.
    pub fault: String,
    /// Why it did not run.
    pub missing: Option<String>,
    /// Commands, from the fault on.
    pub commands: u64,
    /// Of those, failed.
    pub errors: u64,
    /// By the library's own name, most first.
    pub error_kinds: Vec<String>,
    /// Share of commands, failed ones included, that took longer than 30 ms.
    pub slow_share: f64,
    /// Median of answered commands, in microseconds.
    pub latency_us_p50: u64,
    /// 99th percentile.
    pub latency_us_p99: u64,
    /// Longest time a thread of the shard that was hit was without an answer, from the fault on.
    pub recovery_us: Option<u64>,
    /// Whether it never recovered before the run ended.
    pub never: bool,
    /// The same of threads of another shard.
    pub other_shard_us: Option<u64>,
    /// When its threads had no answer for over 30 ms, the longest ones. None of models of `unslow bench`.
    pub silences: Vec<Silence>,
}

/// A time in which a thread had no answer.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Silence {
    /// Which thread of the client.
    pub thread: u32,
    /// Whether its key is of the shard that was hit.
    pub hit: bool,
    /// From the fault's beginning; before it is 0.
    pub from_us: u64,
    /// Until the next answer, or the end.
    pub until_us: u64,
}

/// When a fault was at work.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct During {
    /// The fault.
    pub fault: String,
    /// From its beginning until it was healed.
    pub lasted_us: u64,
    /// From its beginning until the last answer that was looked at.
    pub watched_us: u64,
}

/// What it prints as JSON.
#[derive(Serialize, JsonSchema)]
pub struct Document {
    /// `unslow.drill.clients/1`.
    pub schema: &'static str,
    /// Which server.
    pub engine: String,
    /// Each fault that was run.
    pub faults: Vec<During>,
    /// Each client through each fault.
    pub clients: Vec<Seen>,
    /// Faults that could not be shown to have been at work: their figures mean nothing.
    pub unknown: Vec<String>,
    /// Where the evidence is.
    pub folders: Vec<String>,
}

/// An operation, as a driver told it.
struct Told {
    ended_us: u64,
    latency_us: u64,
    thread: u32,
    hit: bool,
    outcome: Option<String>,
}

/// A driver at work.
struct Driver {
    name: String,
    process: Group,
    version: Arc<Mutex<String>>,
    told: Arc<Mutex<Vec<Told>>>,
}

/// A process and all it starts, which end with this.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: a process group we started.
        unsafe { libc::kill(-(self.0.id() as i32), libc::SIGKILL) };
        let _ = self.0.wait();
    }
}

impl Group {
    fn running(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|ended| ended.is_none())
    }
}

fn unix_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

/// A key of the slot that is hit, and one of another master.
fn keys() -> (String, String) {
    let with = |want: &dyn Fn(u16) -> bool| {
        let tag = (0u32..).map(|i| format!("{{c{i}}}")).find(|t| want(slot_of(t.as_bytes())));
        format!("drill:{}", tag.unwrap_or_default())
    };
    (with(&|s| s == SLOT), with(&|s| s > 12_000))
}

fn begin(lab: &Lab, name: &str, mut command: Command, folder: &Folder) -> Result<Driver, Error> {
    // In another zone than the master's: that is where most clients are.
    let zone = (lab.hosts[lab.places[0]].zone + 1) % lab.zones.len();
    let host = lab.client_in(zone).ok_or(Unfit::NoHost)?;
    lab.place(host, &mut command)?;
    let created = |file: String| {
        let path = folder.path().join(file);
        std::fs::File::create(&path).map_err(|why| Error::File { path, why })
    };
    let log = created(format!("{name}.stderr"))?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
    if name.starts_with("bench") {
        // It reports at its end.
        command.stdout(created(format!("{name}.json"))?);
    }
    let mut child = spawn_bound(command).map_err(|e| Error::Program { command: name.into(), why: e.to_string() })?;
    let (version, told) = (Arc::<Mutex<String>>::default(), Arc::<Mutex<Vec<Told>>>::default());
    if let Some(out) = child.stdout.take() {
        let (version, told) = (version.clone(), told.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                let words: Vec<&str> = line.split(' ').collect();
                if let ["ready", rest @ ..] = &words[..] {
                    *version.lock().unwrap_or_else(|e| e.into_inner()) = rest.join(" ");
                } else if let [ended, latency, thread, outcome] = &words[..]
                    && let (Ok(ended_us), Ok(latency_us), Ok(thread)) =
                        (ended.parse(), latency.parse(), thread.parse::<u32>())
                {
                    let outcome = (*outcome != "ok").then(|| outcome.to_string());
                    // Threads take the two keys in turn.
                    let op = Told { ended_us, latency_us, thread, hit: thread.is_multiple_of(2), outcome };
                    told.lock().unwrap_or_else(|e| e.into_inner()).push(op);
                }
            }
        });
    }
    Ok(Driver { name: name.into(), process: Group(child), version, told })
}

/// The last line a driver wrote on standard error that says something: not one of a stack's.
fn last_words(folder: &Folder, name: &str) -> String {
    let text = std::fs::read(folder.path().join(format!("{name}.stderr"))).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let says = |l: &&str| !l.is_empty() && !l.starts_with([' ', '\t']);
    text.lines().rfind(says).unwrap_or("it printed nothing").to_string()
}

/// A client that did not run, and why.
fn missing(client: &str, fault: &str, why: String) -> Seen {
    Seen { client: client.into(), fault: fault.into(), missing: Some(why), ..Seen::default() }
}

/// Silences of a thread, from the one that `from` is in on; the last is open, up to `until`. None of one that never had
/// an answer.
fn silences(ops: &[&Told], from: u64, until: u64) -> Option<Vec<(u64, u64)>> {
    let answered = ops.iter().filter(|o| o.outcome.is_none() && o.ended_us <= until);
    let mut times: Vec<u64> = answered.map(|o| o.ended_us).collect();
    times.sort_unstable();
    let first = times.partition_point(|t| *t <= from).checked_sub(1)?;
    times.push(until);
    Some(times[first..].windows(2).map(|w| (w[0], w[1])).collect())
}

/// The longest of a thread's silences, and whether it had not ended: then it is longer than those that had, and than
/// what the end of a run looks like.
fn longest(silences: &[(u64, u64)]) -> (Option<u64>, bool) {
    let Some(((last, end), closed)) = silences.split_last() else { return (None, true) };
    let most = closed.iter().map(|(a, b)| b - a).max().unwrap_or(0);
    let open = end - last;
    if open > most.max(2_000_000) { (Some(open), true) } else { (Some(most), false) }
}

/// The longest that any of these threads was without an answer: one that is stuck behind others that are not is what
/// users of a pool notice.
fn longest_of_all(threads: &[&Quiet]) -> (Option<u64>, bool) {
    let all: Vec<_> = threads.iter().map(|q| longest(&q.silences)).collect();
    (all.iter().filter_map(|(us, _)| *us).max(), all.is_empty() || all.iter().any(|(_, never)| *never))
}

/// When a thread had no answers.
struct Quiet {
    thread: u32,
    hit: bool,
    silences: Vec<(u64, u64)>,
}

fn judge(driver: &Driver, fault: &str, from: u64, until: u64) -> Seen {
    let told = driver.told.lock().unwrap_or_else(|e| e.into_inner());
    let mut of: BTreeMap<u32, Vec<&Told>> = BTreeMap::new();
    told.iter().for_each(|o| of.entry(o.thread).or_default().push(o));
    let quiet: Vec<Quiet> = of
        .into_iter()
        .map(|(thread, ops)| {
            let silences = silences(&ops, from, until).unwrap_or_default();
            Quiet { thread, hit: ops.iter().any(|o| o.hit), silences }
        })
        .collect();
    let threads = |hit: bool| -> Vec<&Quiet> { quiet.iter().filter(|q| q.hit == hit).collect() };
    let (recovery_us, never) = longest_of_all(&threads(true));
    let (other_shard_us, _) = longest_of_all(&threads(false));
    let mut silences: Vec<Silence> = quiet
        .iter()
        .flat_map(|q| {
            q.silences.iter().filter(|(a, b)| b - a > SLOW_US).map(|(a, b)| Silence {
                thread: q.thread,
                hit: q.hit,
                from_us: a.saturating_sub(from),
                until_us: b.saturating_sub(from),
            })
        })
        .collect();
    silences.sort_by_key(|s| std::cmp::Reverse(s.until_us - s.from_us));
    silences.truncate(SILENCES);
    // What came before is there for the silences.
    let counted: Vec<&Told> = told.iter().filter(|o| o.ended_us > from && o.ended_us <= until).collect();
    let mut answered: Vec<u64> = counted.iter().filter(|o| o.outcome.is_none()).map(|o| o.latency_us).collect();
    answered.sort_unstable();
    let at = |share: f64| answered.get((answered.len() as f64 * share) as usize).copied().unwrap_or(0);
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for kind in counted.iter().filter_map(|o| o.outcome.as_deref()) {
        *kinds.entry(kind).or_default() += 1;
    }
    let mut kinds: Vec<(&str, u64)> = kinds.into_iter().collect();
    kinds.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    let slow = counted.iter().filter(|o| o.latency_us > SLOW_US).count();
    Seen {
        client: driver.name.clone(),
        version: driver.version.lock().unwrap_or_else(|e| e.into_inner()).clone(),
        fault: fault.into(),
        missing: None,
        commands: counted.len() as u64,
        errors: counted.iter().filter(|o| o.outcome.is_some()).count() as u64,
        error_kinds: kinds.iter().map(|(kind, n)| format!("{n} {kind}")).collect(),
        slow_share: slow as f64 / counted.len().max(1) as f64,
        latency_us_p50: at(0.5),
        latency_us_p99: at(0.99),
        recovery_us,
        never,
        other_shard_us,
        silences,
    }
}

/// Runs every client that can be had (or those named) through every fault (or the one named).
pub fn run(
    drill: &Drill,
    only: &[String],
    fault: Option<&str>,
    how: &How,
    binary: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<Document, Error> {
    let mut document = Document {
        schema: SCHEMA,
        engine: String::new(),
        faults: Vec::new(),
        clients: Vec::new(),
        unknown: Vec::new(),
        folders: Vec::new(),
    };
    let mut any = false;
    for (label, plan) in &drill.variants {
        for name in plan.alternatives() {
            if fault.is_some_and(|f| f != name) || interrupted() {
                continue;
            }
            any = true;
            let trial = Trial { drill, label, plan, fault: name, only, how, binary };
            let ran = while_running(|| trial.run(&mut document, progress));
            match ran {
                // One that ended badly takes nothing from those that did not.
                Err(e) if fault.is_none() => document.unknown.push(format!("{name}: {e}")),
                other => other?,
            }
        }
    }
    if !any {
        return Err(Error::unknown_fault(fault.unwrap_or_default(), &drill.alternatives()));
    }
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ended_us: u64, ok: bool) -> Told {
        Told { ended_us, latency_us: 1, thread: 0, hit: true, outcome: (!ok).then(|| "RedisException".into()) }
    }

    #[test]
    fn silences_begin_before_the_fault_and_may_not_end() {
        let ops = [told(100, true), told(900, true), told(1500, false), told(4000, true), told(4100, true)];
        let ops: Vec<&Told> = ops.iter().collect();
        let all = silences(&ops, 1000, 5000).expect("it had answers");
        assert_eq!(all, [(900, 4000), (4000, 4100), (4100, 5000)]);
        assert_eq!(longest(&all), (Some(3100), false));
        let open = silences(&ops, 1000, 9_000_000).expect("it had answers");
        assert_eq!(longest(&open), (Some(8_995_900), true));
        assert_eq!(silences(&ops, 50, 5000), None, "no answer before the fault");
        assert_eq!(longest(&[]), (None, true));
    }
}
