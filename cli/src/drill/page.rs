//! A drill's report as a page: what was asked, the figures side by side, and each run's time line.

use minijinja::{Value, context};
use unslow_drill::check::availability::Window;
use unslow_drill::history::Model;
use unslow_drill::run::Outcome;
use unslow_drill::shootout::{Document, During, Seen, Silence};
use unslow_drill::spec::Drill;
use unslow_units::{percent, time_us};

use super::text::{ClientsTable, closing, rows};
use crate::chart::{Bar, Row, TimeLine, Weight};
use crate::frame;

fn run_view(outcome: &Outcome) -> Value {
    let f = &outcome.figures;
    let last = outcome.events.iter().map(|e| e.at_us).max().unwrap_or(1);
    // A client's longest time without an acknowledged operation.
    let row = |w: &Window| {
        let (model, weight) = match w.model {
            Model::Follows => ("follows", Weight::Main),
            Model::Stays => ("stays", Weight::Other),
            Model::ReadsReplicas => ("reads replicas", Weight::Other),
        };
        let open = if w.closed { "" } else { " to the end" };
        let label =
            format!("client {}, {model}, shard {}: {}{open}", w.client, w.shard + 1, time_us(w.length_us as f64));
        Row { label, bars: vec![Bar { from_us: w.from_us, until_us: w.from_us.saturating_add(w.length_us), weight }] }
    };
    let title = format!("time line of {}, {}", outcome.fault, outcome.variant);
    let chart = TimeLine {
        title: &title,
        fault: Some((outcome.fault.as_str(), f.fault_from_us, f.fault_until_us)),
        moments: None,
        end_us: last.max(f.fault_until_us + 1_000_000),
        rows: f.windows.iter().map(row).collect(),
        names: [
            (Weight::Main, "no acknowledged operation: a client that follows"),
            (Weight::Other, "no acknowledged operation: another client"),
        ],
    };
    let events: Vec<_> =
        outcome.events.iter().map(|e| (time_us(e.at_us as f64), e.who.to_string(), e.what.to_string())).collect();
    context! {
        fault => outcome.fault, variant => outcome.variant, verdict => outcome.verdict, folder => outcome.folder,
        checks => outcome.checks, events, chart => chart.html(),
    }
}

/// One fault, and what each client did in it.
fn fault_view(during: &During, document: &Document) -> Value {
    let here: Vec<_> = document.clients.iter().filter(|s| s.fault == during.fault && s.missing.is_none()).collect();
    // Models of `unslow bench` tell their longest latency, not when it was.
    let drawn = here.iter().filter(|s| s.other_shard_us.is_some());
    let bar = |s: &Silence| {
        let weight = if s.hit { Weight::Main } else { Weight::Other };
        Bar { from_us: s.from_us, until_us: s.until_us, weight }
    };
    let title = format!("time line of {}", during.fault);
    let chart = TimeLine {
        title: &title,
        fault: Some((during.fault.as_str(), 0, during.lasted_us)),
        moments: None,
        end_us: during.watched_us,
        rows: drawn
            .map(|seen| Row { label: seen.client.clone(), bars: seen.silences.iter().map(bar).collect() })
            .collect(),
        names: [(Weight::Main, "key on the affected shard"), (Weight::Other, "key on another shard")],
    };
    let maybe = |us: Option<u64>, never: bool| match us {
        Some(us) if never => format!("> {}", time_us(us as f64)),
        Some(us) => time_us(us as f64),
        None => "-".into(),
    };
    let row = |s: &&Seen| {
        vec![
            s.client.clone(),
            s.commands.to_string(),
            time_us(s.latency_us_p50 as f64),
            time_us(s.latency_us_p99 as f64),
            percent(s.slow_share),
            maybe(s.recovery_us, s.never),
            maybe(s.other_shard_us, false),
            if s.errors == 0 { "0".into() } else { s.error_kinds.join(", ") },
        ]
    };
    let head = ["client", "commands", "p50", "p99", "over 30 ms", "longest silence", "on another shard", "errors"];
    context! {
        fault => during.fault, chart => chart.html(), head,
        rows => here.iter().map(row).collect::<Vec<_>>(),
    }
}

/// The page of `client_recovery`.
pub fn render_clients(drill: &Drill, document: &Document, table: &ClientsTable) -> anyhow::Result<String> {
    let faults: Vec<Value> = document.faults.iter().map(|during| fault_view(during, document)).collect();
    let values = context! {
        drill => drill.name, about => drill.about, table, faults, folders => document.folders, text => drill.text,
    };
    frame::render("clients.html", include_str!("../../templates/clients.html"), values)
}

/// The page of every other drill.
pub fn render(drill: &Drill, outcomes: &[Outcome]) -> anyhow::Result<String> {
    let all = rows(outcomes);
    let values = context! {
        drill => drill.name,
        about => drill.about,
        closing => closing(drill, outcomes),
        head => all.first(),
        rows => all.get(1..),
        runs => outcomes.iter().map(run_view).collect::<Vec<_>>(),
        text => drill.text,
    };
    frame::render("drill.html", include_str!("../../templates/drill.html"), values)
}

#[cfg(test)]
mod tests {
    use unslow_drill::check::CheckId;
    use unslow_drill::check::{Check, Verdict};
    use unslow_drill::observe::{Event, What, Who};
    use unslow_drill::run::{Figures, SCHEMA};
    use unslow_drill::shootout;
    use unslow_drill::spec;

    use super::*;
    use crate::drill::text::clients_table;
    use crate::frame::tests::assert_framed;

    fn outcome() -> Outcome {
        let window = |client, model, closed| Window {
            client,
            model,
            shard: 0,
            from_us: 3_000_000,
            length_us: 2_500_000,
            closed,
        };
        let mut figures = Figures {
            fault_from_us: 3_000_000,
            fault_until_us: 8_000_000,
            windows: vec![window(0, Model::Follows, true), window(1, Model::ReadsReplicas, false)],
            operations: 10,
            writes_judged: true,
            ..Figures::default()
        };
        figures.writes_stays.acknowledged = 100;
        figures.writes_stays.lost = 7;
        figures.reads_replicas.answered = 5;
        Outcome {
            schema: SCHEMA,
            drill: "cluster_failover".into(),
            variant: "default".into(),
            fault: "kill".into(),
            seed: 1,
            engine: "valkey 9.1.0".into(),
            verdict: Verdict::Failed,
            checks: vec![Check::of(CheckId::LostWrites, false, "7 were lost")],
            figures,
            events: vec![Event {
                at_us: 9_000_000,
                who: Who::Server("node-1".into()),
                what: What::Said("<master>".into()),
            }],
            folder: "store/x".into(),
            seconds: 12.0,
        }
    }

    #[test]
    fn a_drills_page_is_framed_and_every_column_can_be_seen() {
        let drill = spec::find("cluster_failover").expect("it comes with unslow");
        let page = render(&drill, &[outcome()]).expect("a page");
        assert_framed(&page);
        for column in ["stays: lost", "time travel"] {
            let header = format!("<th class=\"n\">{column}</th>");
            assert!(page.contains(&header), "{page}");
        }
        assert!(
            page.contains("class=\"failed\">failed</td>") && page.contains("aria-label=\"time line of kill, default\"")
        );
        assert!(page.contains("client 0, follows, shard 1: 2.5 s</span>"), "{page}");
        assert!(page.contains("client 1, reads replicas, shard 1: 2.5 s to the end</span>"), "{page}");
        assert!(!page.contains("<master>"), "what servers say is text, not markup");
    }

    #[test]
    fn a_run_that_crashed_has_a_page() {
        let drill = spec::find("cluster_failover").expect("it comes with unslow");
        let empty = Outcome { figures: Figures::default(), events: Vec::new(), ..outcome() };
        assert_framed(&render(&drill, &[empty]).expect("a page"));
        assert_framed(&render(&drill, &[]).expect("a page"));
    }

    #[test]
    fn the_page_of_clients_is_framed_and_draws_their_silences() {
        let drill = spec::find(spec::CLIENT_RECOVERY).expect("it comes with unslow");
        let silence = |hit| Silence { thread: 0, hit, from_us: 1_000_000, until_us: 3_000_000 };
        let seen = Seen {
            client: "lettuce".into(),
            fault: "partition".into(),
            commands: 1000,
            recovery_us: Some(2_000_000),
            other_shard_us: Some(40_000),
            silences: vec![silence(true), silence(false)],
            ..Seen::default()
        };
        let during = During { fault: "partition".into(), lasted_us: 5_000_000, watched_us: 10_000_000 };
        let document = Document {
            schema: shootout::SCHEMA,
            engine: "valkey 9.1.0".into(),
            faults: vec![during],
            clients: vec![seen],
            unknown: Vec::new(),
            folders: vec!["store/x".into()],
        };
        let page = render_clients(&drill, &document, &clients_table(&document)).expect("a page");
        assert_framed(&page);
        assert!(page.contains("aria-label=\"time line of partition\""), "{page}");
        assert!(page.contains("<rect class=\"main\"") && page.contains("<rect class=\"other\""), "{page}");
    }
}
