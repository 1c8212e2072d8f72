//! A run: sessions that compare the two sides at the same time, their counts and findings, and the page about them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::generator::Generator;
use super::pair::{Finding, Outcome, Pair, Sent};
use super::session::Step;
use super::shrink::{Repro, print, shrink};
use super::stage::Stage;
use crate::wait::PATIENCE;

/// Clients of a session. Their pipelines are in flight together, interleaved by the session's seed.
const CLIENTS: usize = 6;
/// A run ends early once it has this many different findings.
const FINDINGS_MAX: usize = 10;
/// How often a run says how far it is.
const PROGRESS: Duration = Duration::from_secs(60);

/// What to run.
#[derive(Clone, Debug)]
pub struct Order {
    /// What is compared, for the reader of the result.
    pub what: String,
    /// At least so many, of all sessions together.
    pub commands: u64,
    pub seed: u64,
    /// Threads with clients of their own, on the same two sides.
    pub sessions: usize,
    /// The page that gets the result.
    pub result: Option<PathBuf>,
}

impl Order {
    /// For each run of the tests: few commands, one session. `UNSLOW_SEED=N` takes the place of the seed.
    pub fn short(what: &str, seed: u64) -> Order {
        let seed = number_from("UNSLOW_SEED").unwrap_or(seed);
        Order { what: what.into(), commands: 5_000, seed, sessions: 1, result: None }
    }

    /// For the long tests: four sessions, 200,000 commands or `UNSLOW_DIFFERENTIAL=N`, any seed or `UNSLOW_SEED=N`, and
    /// the page that `UNSLOW_DIFFERENTIAL_RESULT` names.
    pub fn long(what: &str) -> Order {
        Order {
            what: what.into(),
            commands: number_from("UNSLOW_DIFFERENTIAL").unwrap_or(200_000),
            seed: number_from("UNSLOW_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000)),
            sessions: 4,
            result: std::env::var_os("UNSLOW_DIFFERENTIAL_RESULT").map(PathBuf::from),
        }
    }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
}

/// Counts and findings.
#[derive(Default)]
struct Tally {
    commands: u64,
    pipelines: u64,
    known: BTreeMap<&'static str, u64>,
    /// What was found, by title.
    findings: BTreeMap<String, String>,
}

struct Run<'a> {
    stage: &'a Stage,
    order: &'a Order,
    tally: Mutex<Tally>,
    /// A session has panicked.
    broken: AtomicBool,
}

/// Tells the other sessions when one panics.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Sends random commands to both sides; fails the test if the replies differ in a way that is not documented.
pub fn compare(stage: &Stage, order: &Order) {
    let (what, seed) = (&order.what, order.seed);
    println!("{what}: seed {seed} (UNSLOW_SEED={seed} repeats this run)");
    let begun = Instant::now();
    let run = Run { stage, order, tally: Mutex::default(), broken: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let (ends, ended) = mpsc::channel::<()>();
        for number in 0..order.sessions {
            let (run, ends) = (&run, ends.clone());
            scope.spawn(move || {
                session(run, number);
                drop(ends);
            });
        }
        drop(ends);
        while ended.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
            println!("{what}: {}", run.tally().told(begun.elapsed()));
        }
    });
    let tally = run.tally.into_inner().expect("no session panicked");
    let text = section(stage, order, &tally, begun.elapsed());
    println!("{text}");
    if let Some(path) = &order.result {
        append(path, &text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
    let findings: Vec<String> = tally.findings.into_values().collect();
    assert!(
        findings.is_empty(),
        "{what}: {} undocumented differences, seed {seed}:\n\n{}",
        findings.len(),
        findings.join("\n")
    );
}

impl Run<'_> {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("no session panicked")
    }

    fn is_over(&self) -> bool {
        let tally = self.tally();
        let enough = tally.commands >= self.order.commands || tally.findings.len() >= FINDINGS_MAX;
        enough || self.broken.load(Ordering::Relaxed)
    }
}

impl Tally {
    fn told(&self, elapsed: Duration) -> String {
        let Tally { commands, pipelines, findings, .. } = self;
        let (seconds, found) = (elapsed.as_secs(), findings.len());
        format!("{commands} commands in {pipelines} pipelines, {seconds} s, {found} undocumented differences")
    }
}

/// A client and its current pair of connections.
struct Client {
    number: usize,
    generator: Generator,
    pair: Option<Pair>,
    steps_left: usize,
}

impl Client {
    fn new(seed: u64, number: usize, stage: &Stage) -> Client {
        let generator = Generator::new(seed, number, stage.cluster);
        stage.set_users(&generator.users);
        Client { number, generator, pair: None, steps_left: 0 }
    }

    /// The next step and the connections for it: new ones if the last step ended the old ones, or every few dozen
    /// steps.
    fn next_step(&mut self, stage: &Stage) -> (Step, &mut Pair) {
        if self.steps_left == 0 || self.pair.is_none() {
            self.steps_left = self.generator.steps();
            self.leave(); // before the new ones are opened
        }
        self.steps_left -= 1;
        let pair = self.pair.get_or_insert_with(|| stage.open(self.number, PATIENCE));
        (self.generator.step(pair.tag, &pair.state), pair)
    }

    fn leave(&mut self) {
        if let Some(pair) = self.pair.take() {
            pair.close();
        }
    }
}

/// Clients that no other session has: their keys and users bear their numbers.
fn session(run: &Run<'_>, number: usize) {
    let _alarm = Alarm(&run.broken);
    let seed = run.order.seed;
    let numbers = number * CLIENTS..(number + 1) * CLIENTS;
    let mut clients: Vec<Client> = numbers.map(|number| Client::new(seed, number, run.stage)).collect();
    let mut rng = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
    while !run.is_over() {
        round(run, &mut clients, &mut rng);
    }
    clients.iter_mut().for_each(Client::leave);
}

/// One step of each client. The pieces of their pipelines are interleaved.
fn round(run: &Run<'_>, clients: &mut [Client], rng: &mut StdRng) {
    let mut in_flight: Vec<(usize, Sent)> = Vec::new();
    let mut commands = 0;
    for (at, client) in clients.iter_mut().enumerate() {
        let (step, pair) = client.next_step(run.stage);
        match step {
            Step::Pipeline(pipeline) => {
                commands += pipeline.said.len() as u64;
                in_flight.push((at, pair.begin(&pipeline)));
            }
            Step::Publish(_) => {
                commands += 1;
                let outcome = pair.run(&step);
                settle(run, client, outcome);
            }
        }
    }
    let pipelines = in_flight.len() as u64;
    in_flight.shuffle(rng);
    let mut writing: Vec<usize> = (0..in_flight.len()).collect();
    while !writing.is_empty() {
        let at = rng.random_range(0..writing.len());
        let (client, sent) = &mut in_flight[writing[at]];
        if !clients[*client].pair.as_mut().is_some_and(|pair| pair.write(sent)) {
            writing.swap_remove(at);
        }
    }
    for (at, sent) in in_flight {
        let client = &mut clients[at];
        let Some(pair) = &mut client.pair else { continue };
        let outcome = pair.finish(sent);
        settle(run, client, outcome);
    }
    let mut tally = run.tally();
    tally.commands += commands;
    tally.pipelines += pipelines;
}

/// Counts the documented differences and reports a finding; the connections are closed if nothing more can be compared
/// on them.
fn settle(run: &Run<'_>, client: &mut Client, outcome: Outcome) {
    if !outcome.known.is_empty() {
        let mut tally = run.tally();
        for name in outcome.known {
            *tally.known.entry(name).or_default() += 1;
        }
    }
    if !outcome.over {
        return;
    }
    let Some(pair) = client.pair.take() else { return };
    if let Some(found) = outcome.found {
        report(run, client.number, &pair, found);
    }
    pair.close();
}

/// Shrinks and reports the first finding of each title.
fn report(run: &Run<'_>, client: usize, pair: &Pair, found: Finding) {
    let told = format!("client {client} (tag {}): {}", pair.tag.own(), found.told(run.stage.sides));
    {
        let mut tally = run.tally();
        if tally.findings.contains_key(&found.title) {
            return;
        }
        // It is known before it is shrunk: another session may meet the same meanwhile.
        tally.findings.insert(found.title.clone(), told.clone());
    }
    let Repro { steps, alone } = shrink(run.stage, pair.tag, &pair.steps, &found);
    let how = match alone {
        true => "to reproduce it, on new connections",
        false => "not reproduced without the other clients; all steps since the connections were opened",
    };
    let report = format!("{told}\n  {how}:\n{}", print(&steps));
    println!("{report}");
    run.tally().findings.insert(found.title, report);
}

// The page.

const HEAD: &str = "\
# Random commands, both ways

The same bytes to two sides, cut at random places: replies, messages and closed connections must be the same, but for \
the differences
listed, each with its reason. What it can show: that no other difference was met in so many commands, by clients that \
pipeline, fail,
subscribe, block, watch and change who they are. What it cannot: that there is none, in commands that the generator \
does not make, or
while servers fail.
";

/// A run in Markdown.
fn section(stage: &Stage, order: &Order, tally: &Tally, elapsed: Duration) -> String {
    let mut text = format!("\n## {}\n\n{}.\n", order.what, tally.told(elapsed));
    let Order { seed, sessions, .. } = order;
    let _ = writeln!(text, "Seed {seed}; {sessions} sessions of {CLIENTS} clients each.\n");
    text += "| seen | difference | reason |\n|---:|---|---|\n";
    for difference in stage.differences {
        let seen = tally.known.get(difference.name).copied().unwrap_or(0);
        let _ = writeln!(text, "| {seen} | {} | {} |", difference.name, difference.reason);
    }
    for title in tally.findings.keys() {
        let _ = writeln!(text, "\nNot documented: {title}");
    }
    text
}

/// Adds a section; the head comes first in a new file. Several tests may write to one.
fn append(path: &Path, section: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    match options.append(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(format!("{HEAD}{section}").as_bytes()),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            options.create_new(false).open(path)?.write_all(section.as_bytes())
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Difference, Then, clock, difference};

    const ALLOWED: &[Difference] = &[difference("clock", Then::Continue, clock, "time passes")];

    #[test]
    fn the_page_has_counts_seeds_differences_and_findings() {
        let stage = Stage::new(false, ["one", "other"], ALLOWED, Vec::new(), Box::new(|_| Default::default()));
        let order = Order { what: "a server".into(), commands: 10, seed: 77, sessions: 4, result: None };
        let mut tally = Tally { commands: 12, pipelines: 3, ..Tally::default() };
        tally.known.insert("clock", 2);
        tally.findings.insert("GET: a null is not a string".into(), "client 1".into());
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("differential.md");
        for _ in 0..2 {
            append(&path, &section(&stage, &order, &tally, Duration::from_secs(9))).expect("it can be written");
        }
        let text = std::fs::read_to_string(path).expect("it was written");
        assert_eq!(text.matches("# Random commands, both ways\n").count(), 1);
        for line in [
            "12 commands in 3 pipelines, 9 s, 1 undocumented differences.",
            "Seed 77; 4 sessions of 6 clients each.",
            "| 2 | clock | time passes |",
            "Not documented: GET: a null is not a string",
        ] {
            assert_eq!(text.lines().filter(|l| *l == line).count(), 2, "{line} in:\n{text}");
        }
    }
}
