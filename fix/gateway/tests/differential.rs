//! Differential fuzzing: random clients send the same bytes to a server directly and to an identical one through the gateway. Replies,
//! messages and closed connections must be the same.
//!
//! Six clients run at a time, each with its own keys, so the order in which a server sees their commands does not matter, although
//! they share the gateway's connections. The differences that are allowed are listed with reasons in `differences.rs`, and the test
//! prints how often it saw each. Any other difference fails the test and prints the shortest history found that shows it.
//!
//! `UNSLOW_SEED=N` repeats a run; `UNSLOW_DIFFERENTIAL=N` sets how many commands the long tests send.

mod common;
#[path = "differential/differences.rs"]
mod differences;
#[path = "differential/generator.rs"]
mod generator;
#[path = "differential/pair.rs"]
mod pair;
#[path = "differential/session.rs"]
mod session;
#[path = "differential/shrink.rs"]
mod shrink;
#[path = "differential/stage.rs"]
mod stage;
#[path = "differential/templates.rs"]
mod templates;

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use unslow_testkit::PATIENCE;

use differences::DIFFERENCES;
use generator::Generator;
use pair::{Outcome, Pair, Sent};
use session::Step;
use shrink::{Repro, print, shrink};
use stage::Stage;

const CLIENTS: usize = 6;
/// A run ends early once it has this many different findings.
const FINDINGS_MAX: usize = 10;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text:?} is not a number")))
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

    /// The next step and the connections for it: new ones if the last step ended the old ones, or every few dozen steps.
    fn next_step(&mut self, stage: &Stage) -> (Step, &mut Pair) {
        if self.steps_left == 0 || self.pair.is_none() {
            self.steps_left = self.generator.steps();
            self.pair = None; // before the new ones are opened
        }
        self.steps_left -= 1;
        let pair = self.pair.get_or_insert_with(|| stage.open(self.number, PATIENCE));
        (self.generator.step(pair.tag, &pair.state), pair)
    }
}

/// Counts and findings of a run.
#[derive(Default)]
struct Tally {
    commands: u64,
    known: BTreeMap<&'static str, u64>,
    findings: BTreeMap<String, String>,
}

/// Sends this many commands both ways and compares the replies.
fn compare(cluster: bool, commands: u64, seed: u64) {
    let shape = if cluster { "cluster" } else { "standalone" };
    println!("{shape}: seed {seed} (UNSLOW_SEED={seed} repeats this run)");
    let stage = Stage::start(cluster, 1 + (seed % 2) as usize);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(seed, number, &stage)).collect();
    let (mut tally, mut rng) = (Tally::default(), StdRng::seed_from_u64(seed));
    while tally.commands < commands && tally.findings.len() < FINDINGS_MAX {
        round(&stage, &mut clients, &mut tally, &mut rng);
    }
    println!("{shape}: {} commands, seed {seed}", tally.commands);
    for difference in DIFFERENCES {
        let seen = tally.known.get(difference.name).copied().unwrap_or(0);
        println!("{seen:>8}  {}: {}", difference.name, difference.reason);
    }
    let findings: Vec<String> = tally.findings.into_values().collect();
    assert!(
        findings.is_empty(),
        "{} undocumented differences, seed {seed}:\n\n{}",
        findings.len(),
        findings.join("\n")
    );
}

/// One step of each client. The pieces of their pipelines are interleaved.
fn round(stage: &Stage, clients: &mut [Client], tally: &mut Tally, rng: &mut StdRng) {
    let mut in_flight: Vec<(usize, Sent)> = Vec::new();
    for (at, client) in clients.iter_mut().enumerate() {
        let (step, pair) = client.next_step(stage);
        match step {
            Step::Pipeline(pipeline) => {
                tally.commands += pipeline.said.len() as u64;
                in_flight.push((at, pair.begin(&pipeline)));
            }
            Step::Publish(_) => {
                tally.commands += 1;
                let outcome = pair.run(&step);
                settle(stage, client, outcome, tally);
            }
        }
    }
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
        settle(stage, client, outcome, tally);
    }
}

/// Counts the documented differences; shrinks and reports the first finding of each title.
fn settle(stage: &Stage, client: &mut Client, outcome: Outcome, tally: &mut Tally) {
    for name in outcome.known {
        *tally.known.entry(name).or_default() += 1;
    }
    if !outcome.over {
        return;
    }
    let (Some(pair), Some(found)) = (client.pair.take(), outcome.found) else { return };
    if tally.findings.contains_key(&found.title) {
        return;
    }
    let Repro { steps, alone } = shrink(stage, pair.tag, &pair.steps, &found);
    let how = match alone {
        true => "to reproduce it, on new connections",
        false => "not reproduced without the other clients; all steps since the connections were opened",
    };
    let report = format!("client {} (tag {}): {found}\n  {how}:\n{}", client.number, pair.tag.own(), print(&steps));
    println!("{report}");
    tally.findings.insert(found.title, report);
}

/// Commands in each CI run.
const SHORT: u64 = 5_000;

#[test]
fn random_commands_get_the_replies_of_a_server() {
    compare(false, SHORT, number_from("UNSLOW_SEED").unwrap_or(1));
}

#[test]
fn random_commands_get_the_replies_of_a_cluster() {
    compare(true, SHORT, number_from("UNSLOW_SEED").unwrap_or(2));
}

fn many() -> u64 {
    number_from("UNSLOW_DIFFERENTIAL").unwrap_or(200_000)
}

fn any_seed() -> u64 {
    number_from("UNSLOW_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000))
}

#[test]
#[ignore = "long: 200,000 commands"]
fn many_random_commands_get_the_replies_of_a_server() {
    compare(false, many(), any_seed());
}

#[test]
#[ignore = "long: 200,000 commands"]
fn many_random_commands_get_the_replies_of_a_cluster() {
    compare(true, many(), any_seed());
}
