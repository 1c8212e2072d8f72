//! Shortens the history before a difference by replaying parts of it on new connections.

use std::time::Duration;

use unslow_resp::quote_words;

use super::pair::{Finding, Pair};
use super::session::{Form, Pipeline, Said, Step, Tag, word};
use super::stage::Stage;
use crate::wire::shown;

/// A part of a history may leave the model wrong, so that it waits for replies that never arrive; it is given up after
/// this long.
const PATIENCE: Duration = Duration::from_secs(3);
/// Replays per finding.
const REPLAYS_MAX: u32 = 100;

/// A history that reproduces a difference.
pub struct Repro {
    pub steps: Vec<Step>,
    /// It does so without the other clients.
    pub alone: bool,
}

pub fn shrink(stage: &Stage, tag: Tag, steps: &[Step], finding: &Finding) -> Repro {
    let mut replays = Replays { stage, tag, finding, left: REPLAYS_MAX };
    if !replays.show(steps) {
        return Repro { steps: steps.to_vec(), alone: false };
    }
    let steps = fewer(steps.to_vec(), |steps| replays.show(steps));
    // The same for single commands, all steps as one list.
    let commands: Vec<(usize, Said)> = steps.iter().enumerate().flat_map(|(at, step)| said(at, step)).collect();
    let commands = fewer(commands, |commands| replays.show(&with(&steps, commands)));
    let mut steps = with(&steps, &commands);
    let whole: Vec<Step> = steps.iter().map(in_one_piece).collect();
    if replays.show(&whole) {
        steps = whole;
    }
    Repro { steps, alone: true }
}

struct Replays<'a> {
    stage: &'a Stage,
    tag: Tag,
    finding: &'a Finding,
    left: u32,
}

impl Replays<'_> {
    /// Whether these steps show the difference.
    fn show(&mut self, steps: &[Step]) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let mut pair = self.stage.open(self.tag.client, PATIENCE);
        let shown = self.shows(&mut pair, steps);
        pair.close();
        shown
    }

    fn shows(&self, pair: &mut Pair, steps: &[Step]) -> bool {
        for step in steps {
            let step = step.retagged(self.tag, pair.tag);
            let outcome = pair.run(&step);
            if let Some(found) = outcome.found {
                return found.title == self.finding.title;
            }
            if outcome.over {
                return false;
            }
        }
        false
    }
}

/// Leaves out as many elements as possible, halves first and single ones last, while the rest passes.
fn fewer<T: Clone>(mut all: Vec<T>, mut passes: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut size = all.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < all.len() {
            let rest = [&all[..at], &all[all.len().min(at + size)..]].concat();
            if !rest.is_empty() && passes(&rest) {
                all = rest;
            } else {
                at += size;
            }
        }
        size /= 2;
    }
    all
}

/// The commands of a step, each with the index of the step.
fn said(at: usize, step: &Step) -> Vec<(usize, Said)> {
    match step {
        Step::Pipeline(pipeline) => pipeline.said.iter().map(|said| (at, said.clone())).collect(),
        Step::Publish(_) => Vec::new(),
    }
}

/// The steps with only these commands.
fn with(steps: &[Step], commands: &[(usize, Said)]) -> Vec<Step> {
    let of =
        |at: usize| commands.iter().filter(|(step, _)| *step == at).map(|(_, said)| said.clone()).collect::<Vec<_>>();
    let kept = steps.iter().enumerate().map(|(at, step)| match step {
        Step::Pipeline(Pipeline { cuts, .. }) => Step::Pipeline(Pipeline { said: of(at), cuts: *cuts }),
        publish => publish.clone(),
    });
    kept.filter(|step| !matches!(step, Step::Pipeline(pipeline) if pipeline.said.is_empty())).collect()
}

fn in_one_piece(step: &Step) -> Step {
    match step {
        Step::Pipeline(pipeline) => Step::Pipeline(Pipeline { cuts: None, ..pipeline.clone() }),
        publish => publish.clone(),
    }
}

/// A history as text, one line per command.
pub fn print(steps: &[Step]) -> String {
    let mut text = String::new();
    for (at, step) in steps.iter().enumerate() {
        match step {
            Step::Publish(words) => text += &format!("  {}. from another connection: {}\n", at + 1, line(words)),
            Step::Pipeline(pipeline) => {
                let cut = if pipeline.cuts.is_some() { ", cut into pieces" } else { "" };
                text += &format!("  {}. a pipeline{cut}:\n", at + 1);
                for said in &pipeline.said {
                    text += &format!("     {}\n", described(said));
                }
            }
        }
    }
    text
}

fn described(said: &Said) -> String {
    let as_array = said.bytes.starts_with(b"*");
    match said.form {
        _ if said.words.is_empty() => format!("bytes {}", shown(&said.bytes)),
        Form::Command if as_array => line(&said.words),
        _ if as_array => format!("{} (closes the connection)", line(&said.words)),
        _ => format!("{} (inline)", line(&said.words)),
    }
}

/// A command with its password hidden.
fn line(words: &[Vec<u8>]) -> String {
    let last = words.len() - 1;
    let secret =
        matches!(word(words, 0).as_str(), "AUTH" | "HELLO") && last > 0 && word(words, last).starts_with("WORD-OF-");
    let shown: Vec<Vec<u8>> = words
        .iter()
        .enumerate()
        .map(|(at, word)| match word.len() {
            _ if secret && at == last => b"(its password)".to_vec(),
            0..200 => word.clone(),
            len => [&word[..40], format!("... {len} bytes").as_bytes()].concat(),
        })
        .collect();
    quote_words(shown.iter().map(Vec::as_slice))
}
