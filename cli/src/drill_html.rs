//! A drill's report as a page: what was asked, the figures side by side, and each run's time line.

use anyhow::Context;
use minijinja::{Environment, context};
use serde::Serialize;
use unslow_drill::check::Verdict;
use unslow_drill::run::Outcome;
use unslow_drill::spec::Drill;

use crate::drill::{closing, rows, time};

const TEMPLATE: &str = include_str!("../templates/drill.html");

#[derive(Serialize)]
struct RunPage<'a> {
    fault: &'a str,
    variant: &'a str,
    verdict: Verdict,
    folder: &'a str,
    checks: Vec<CheckPage<'a>>,
    bars: Vec<Bar>,
    fault_from: f64,
    fault_width: f64,
    height: usize,
    ticks: Vec<(f64, String)>,
    events: Vec<(String, &'a str, &'a str)>,
}

#[derive(Serialize)]
struct CheckPage<'a> {
    name: &'a str,
    verdict: Verdict,
    text: &'a str,
    evidence: &'a [String],
}

/// A client's longest time without an acknowledged operation.
#[derive(Serialize)]
struct Bar {
    y: usize,
    x: f64,
    width: f64,
    label: String,
    length: String,
    follows: bool,
}

/// Width of the drawing.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;

fn run_page(outcome: &Outcome) -> RunPage<'_> {
    let f = &outcome.figures;
    let end = outcome.events.iter().map(|e| e.at_us).max().unwrap_or(1).max(f.fault_until_us + 1_000_000);
    let x = |us: u64| LEFT + (WIDTH - LEFT - 90.0) * us as f64 / end as f64;
    let mut bars = Vec::new();
    for (i, w) in f.windows.iter().enumerate() {
        let model = serde_json::to_value(w.model).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default();
        bars.push(Bar {
            y: 24 + i * 16,
            x: x(w.from_us),
            width: (x(w.from_us + w.length_us) - x(w.from_us)).max(1.0),
            label: format!("client {}, {}, shard {}", w.client, model.replace('_', " "), w.shard + 1),
            length: if w.closed { time(w.length_us) } else { format!("{} to the end", time(w.length_us)) },
            follows: model == "follows",
        });
    }
    let seconds = end / 1_000_000;
    let step = (seconds / 8).max(1);
    RunPage {
        fault: &outcome.fault,
        variant: &outcome.variant,
        verdict: outcome.verdict,
        folder: &outcome.folder,
        checks: outcome
            .checks
            .iter()
            .map(|c| CheckPage { name: &c.name, verdict: c.verdict, text: &c.text, evidence: &c.evidence })
            .collect(),
        fault_from: x(f.fault_from_us),
        fault_width: (x(f.fault_until_us.max(f.fault_from_us)) - x(f.fault_from_us)).max(2.0),
        height: 40 + bars.len() * 16,
        bars,
        ticks: (0..=seconds).step_by(step as usize).map(|s| (x(s * 1_000_000), format!("{s} s"))).collect(),
        events: outcome.events.iter().map(|e| (time(e.at_us), e.who.as_str(), e.text.as_str())).collect(),
    }
}

/// The whole page: nothing in it is fetched from elsewhere.
pub fn page(drill: &Drill, outcomes: &[Outcome]) -> anyhow::Result<String> {
    let mut environment = Environment::new();
    environment.add_template("drill.html", TEMPLATE).context("the page's template")?;
    let all = rows(outcomes);
    let runs: Vec<RunPage> = outcomes.iter().map(run_page).collect();
    environment
        .get_template("drill.html")?
        .render(context! {
            drill => drill.name,
            about => drill.about,
            closing => closing(drill, outcomes),
            head => all.first(),
            rows => all.get(1..),
            runs,
            text => drill.text,
        })
        .context("the page could not be rendered")
}
