//! A drill's report as a page: what was asked, the figures side by side, and each run's time line.

use anyhow::Context;
use minijinja::{Environment, context};
use serde::Serialize;
use unslow_drill::check::Verdict;
use unslow_drill::run::Outcome;
use unslow_drill::shootout::{Document, During};
use unslow_drill::spec::Drill;

use crate::drill::{ClientsTable, closing, rows, time};

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

/// Where a time is in the drawing.
struct Scale {
    end_us: u64,
}

impl Scale {
    const WIDTH: f64 = 760.0;
    const LEFT: f64 = 170.0;
    const RIGHT: f64 = 90.0;

    fn x(&self, us: u64) -> f64 {
        Scale::LEFT + (Scale::WIDTH - Scale::LEFT - Scale::RIGHT) * us as f64 / self.end_us.max(1) as f64
    }

    /// From `from` to `until`; never too thin to be seen.
    fn width(&self, from: u64, until: u64) -> f64 {
        (self.x(until.max(from)) - self.x(from)).max(1.0)
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        let seconds = self.end_us / 1_000_000;
        let step = (seconds / 8).max(1);
        (0..=seconds).step_by(step as usize).map(|s| (self.x(s * 1_000_000), format!("{s} s"))).collect()
    }
}

fn run_page(outcome: &Outcome) -> RunPage<'_> {
    let f = &outcome.figures;
    let end = outcome.events.iter().map(|e| e.at_us).max().unwrap_or(1).max(f.fault_until_us + 1_000_000);
    let scale = Scale { end_us: end };
    let mut bars = Vec::new();
    for (i, w) in f.windows.iter().enumerate() {
        let model = serde_json::to_value(w.model).ok().and_then(|v| v.as_str().map(String::from)).unwrap_or_default();
        bars.push(Bar {
            y: 24 + i * 16,
            x: scale.x(w.from_us),
            width: scale.width(w.from_us, w.from_us + w.length_us),
            label: format!("client {}, {}, shard {}", w.client, model.replace('_', " "), w.shard + 1),
            length: if w.closed { time(w.length_us) } else { format!("{} to the end", time(w.length_us)) },
            follows: model == "follows",
        });
    }
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
        fault_from: scale.x(f.fault_from_us),
        fault_width: scale.width(f.fault_from_us, f.fault_until_us),
        height: 40 + bars.len() * 16,
        bars,
        ticks: scale.ticks(),
        events: outcome.events.iter().map(|e| (time(e.at_us), e.who.as_str(), e.text.as_str())).collect(),
    }
}

/// One fault, and what each client did in it.
#[derive(Serialize)]
struct FaultPage<'a> {
    fault: &'a str,
    fault_from: f64,
    fault_width: f64,
    height: usize,
    ticks: Vec<(f64, String)>,
    clients: Vec<ClientRow<'a>>,
    head: [&'static str; 8],
    rows: Vec<Vec<String>>,
}

#[derive(Serialize)]
struct ClientRow<'a> {
    y: usize,
    name: &'a str,
    /// Silences: those of threads of the shard that was hit above, of another below.
    bars: Vec<(f64, f64, bool)>,
}

fn fault_page<'a>(during: &'a During, document: &'a Document) -> FaultPage<'a> {
    let scale = Scale { end_us: during.watched_us };
    let here: Vec<_> = document.clients.iter().filter(|s| s.fault == during.fault && s.missing.is_none()).collect();
    // Models of `unslow bench` tell their longest latency, not when it was.
    let drawn = here.iter().filter(|s| s.other_shard_us.is_some());
    let clients: Vec<ClientRow> = drawn
        .enumerate()
        .map(|(i, seen)| ClientRow {
            y: 24 + i * 16,
            name: &seen.client,
            bars: seen
                .silences
                .iter()
                .map(|s| (scale.x(s.from_us), scale.width(s.from_us, s.until_us), s.hit))
                .collect(),
        })
        .collect();
    let maybe = |us: Option<u64>, never: bool| match us {
        Some(us) if never => format!("> {}", time(us)),
        Some(us) => time(us),
        None => "-".into(),
    };
    FaultPage {
        fault: &during.fault,
        fault_from: scale.x(0),
        fault_width: scale.width(0, during.lasted_us),
        height: 40 + clients.len() * 16,
        ticks: scale.ticks(),
        clients,
        head: ["client", "commands", "p50", "p99", "over 30 ms", "longest silence", "of another shard", "errors"],
        rows: here
            .iter()
            .map(|s| {
                vec![
                    s.client.clone(),
                    s.commands.to_string(),
                    time(s.latency_us_p50),
                    time(s.latency_us_p99),
                    format!("{:.1} %", s.slow_share * 100.0),
                    maybe(s.recovery_us, s.never),
                    maybe(s.other_shard_us, false),
                    if s.errors == 0 { "0".into() } else { s.error_kinds.join(", ") },
                ]
            })
            .collect(),
    }
}

/// What a page is made with.
pub fn environment(name: &'static str, template: &'static str) -> anyhow::Result<Environment<'static>> {
    let mut environment = Environment::new();
    environment.add_template("page.html", include_str!("../templates/page.html")).context("the pages' frame")?;
    environment.add_template(name, template).context("the page's template")?;
    Ok(environment)
}

/// The page of `client_recovery`.
pub fn clients_page(drill: &Drill, document: &Document, table: &ClientsTable) -> anyhow::Result<String> {
    let faults: Vec<FaultPage> = document.faults.iter().map(|during| fault_page(during, document)).collect();
    environment("clients.html", include_str!("../templates/clients.html"))?
        .get_template("clients.html")?
        .render(context! { drill => drill.name, about => drill.about, table, faults, folders => document.folders, text => drill.text })
        .context("the page could not be rendered")
}

/// The whole page: nothing in it is fetched from elsewhere.
pub fn page(drill: &Drill, outcomes: &[Outcome]) -> anyhow::Result<String> {
    let all = rows(outcomes);
    let runs: Vec<RunPage> = outcomes.iter().map(run_page).collect();
    environment("drill.html", include_str!("../templates/drill.html"))?
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
