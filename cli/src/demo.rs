//! `unslow demo`: a real six-node cluster gets a fault that the doctor is not told of; then the diagnosis, the remedy,
//! and the same application measured before and after.

use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use rand::SeedableRng;
use rand::seq::IndexedRandom;
use serde::Serialize;
use serde_json::json;
use unslow_client::{Connection, Options, Target, discover};
use unslow_doctor::{Report, Severity, diagnose};
use unslow_drill::stage::{self, Answered, Hosts, Stage, Variation, Workload};
use unslow_engine::{Deployment, find};
use unslow_lab::faults::{self, Fault};
use unslow_probe::Settings;
use unslow_topology::slot_of;
use unslow_units::{count, percent, time, time_us};

use crate::doctor::{page, text};
use crate::files;
use crate::output::{Output, style};
use crate::table::table;

#[derive(Args)]
pub struct Demo {
    /// Fault to inject; random if omitted (see --list)
    #[arg(long, value_name = "NAME")]
    fault: Option<String>,
    /// Seed for the random choice
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Engine to run: valkey-9.1, redis-8.10, redis-7.0, redis-6.2, redis-5.0, path
    #[arg(long, default_value = "valkey-9.1", value_name = "NAME")]
    engine: String,
    /// Your own server executable
    #[arg(long, value_name = "PATH", conflicts_with = "engine")]
    server: Option<PathBuf>,
    /// Length of the doctor's window
    #[arg(long, default_value = "5s", value_parser = crate::typed::lasting, value_name = "TIME")]
    window: Duration,
    /// Write the diagnosis as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// List the faults
    #[arg(long)]
    list: bool,
    /// The same as --list
    #[arg(value_parser = ["ls"], value_name = "ls")]
    ls: Option<String>,
}

/// What the application saw: four callers, a command every 2 ms each.
#[derive(Clone, Serialize)]
struct Seen {
    requests: usize,
    errors: usize,
    latency_us_p50: u32,
    latency_us_p99: u32,
    latency_us_max: u32,
    /// Of the node that the fault hits.
    server_cpu_share: f64,
}

#[derive(Serialize)]
struct Outcome {
    schema: &'static str,
    engine: String,
    fault: String,
    seed: u64,
    named_first: Option<String>,
    right: bool,
    gone_after_the_remedy: bool,
    remedy: String,
    before: Seen,
    after: Seen,
    seconds: f64,
    report: Report,
}

impl Demo {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        let choices: Vec<&Fault> = faults::ALL.iter().filter(|f| f.demo).collect();
        // By the names of the rules that must find them: the diagnosis is what this is about.
        let is_list = self.list || self.ls.is_some();
        if is_list && output.json() {
            let faults = choices.iter().map(|fault| json!({ "name": rule(fault), "about": fault.about }));
            let document = json!({ "schema": "unslow.demo_faults/1", "faults": faults.collect::<Vec<_>>() });
            output.print_json(&document)?;
            return Ok(0);
        }
        if is_list {
            let mut rows = vec![["fault", "what happens"].map(String::from).to_vec()];
            rows.extend(choices.iter().map(|fault| vec![rule(fault).to_string(), fault.about.to_string()]));
            output.print(&table(&rows))?;
            return Ok(0);
        }
        let seed = self.seed.unwrap_or_else(rand::random);
        let fault = match &self.fault {
            Some(name) => *choices.iter().find(|f| f.name == name || rule(f) == name).with_context(|| {
                format!(
                    "no fault {name:?} in the demo; there are {}",
                    choices.iter().map(|f| rule(f)).collect::<Vec<_>>().join(", ")
                )
            })?,
            None => choices.choose(&mut rand::rngs::StdRng::seed_from_u64(seed)).context("no faults")?,
        };
        self.html.as_deref().map_or(Ok(()), files::check)?;
        let begun = Instant::now();
        let name = self.server.as_ref().map_or(self.engine.clone(), |p| p.display().to_string());
        output.note(&format!("1  starting a six-node cluster of {name}"));
        let engine = find(&name)?;
        // On loopback addresses: the tour needs no rights. `unslow lab up` has the zones.
        let variation = Variation { seed, engine: None };
        let stage = Stage::raise(fault.topology_of_six(&name), Hosts::Flat, variation, &[])?;
        output.note(&format!("   {}, ready after {}", engine.version, time(begun.elapsed())));
        output.note(&format!("2  hiding a fault in it (seed {seed}) and running an application against it"));
        let struck = stage.strike(fault.name, None, None)?;
        // Its clients connect first. Faults that are not what clients do are at work when they are done.
        let until = Instant::now() + Duration::from_millis(500);
        while struck.answers() == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }

        output.note("3  diagnosing; the doctor gets one address and nothing else");
        let (report, before) = self.diagnose_under_load(&stage.lab.deployment, output)?;
        if output.json() {
            // The report is part of the outcome below.
        } else {
            output.print("\n")?;
            output.print(&text::report(&report, output.verbose))?;
        }
        let first = report.findings.iter().find(|f| f.severity > Severity::Info).map(|f| f.id.clone());
        let right = first.as_deref() == Some(rule(fault));

        output.note(&format!("\n4  applying the remedy: {}", struck.remedy()));
        struck.fix();
        // Commands in flight finish first.
        std::thread::sleep(Duration::from_millis(500));
        output.note("5  measuring again");
        let (again, after) = self.diagnose_under_load(&stage.lab.deployment, output)?;
        let gone = again.findings.iter().all(|f| f.id != rule(fault) || f.severity_now() <= Severity::Risk);
        let remedy = struck.remedy();
        drop(struck);
        drop(stage);

        let outcome = Outcome {
            schema: "unslow.demo/1",
            engine: engine.version.clone(),
            fault: rule(fault).into(),
            seed,
            named_first: first.clone(),
            right,
            gone_after_the_remedy: gone,
            remedy: remedy.into(),
            before: before.clone(),
            after: after.clone(),
            seconds: begun.elapsed().as_secs_f64(),
            report,
        };
        if output.json() {
            output.print_json(&outcome)?;
        } else {
            output.print(&closing(fault, &first, right, gone, &before, &after, outcome.seconds))?;
        }
        Ok(u8::from(!(right && gone)))
    }

    /// The application runs for as long as the doctor looks.
    fn diagnose_under_load(&self, deployment: &Deployment, output: &Output) -> anyhow::Result<(Report, Seen)> {
        let target = deployment.nodes[0].target();
        // The doctor looks even if the fault holds some callers up.
        let (looked, seen) = stage::play(Application::begin(&target), Duration::from_secs(2), |_, _| {
            let options = Options { name: Some("unslow"), protocol: 3, ..Options::default() };
            discover(&target, &options).map(|found| {
                let _bar = output.countdown("   looking", self.window);
                let settings = Settings {
                    window: self.window,
                    options,
                    show_keys: false,
                    host: true,
                    hosts: Vec::new(),
                    url: target.url(),
                    stop: None,
                };
                unslow_probe::run(&found, &settings)
            })
        });
        let (mut times, errors) = seen.context("a client thread of the demo's application died")?;
        let facts = looked?;
        let report = diagnose(&facts, &[]);
        if let Some(path) = &self.html
            && report.findings.iter().any(|f| f.severity_now() > Severity::Risk)
        {
            files::write(path, &page::render(&report, &facts)?)?;
        }
        times.sort_unstable();
        let at = |q: f64| {
            times.get(((times.len() as f64 * q) as usize).min(times.len().saturating_sub(1))).copied().unwrap_or(0)
        };
        let cpu =
            facts.nodes.iter().find(|n| n.address == deployment.nodes[0].address()).and_then(unslow_facts::Node::cpu);
        let seen = Seen {
            requests: times.len(),
            errors,
            latency_us_p50: at(0.5),
            latency_us_p99: at(0.99),
            latency_us_max: at(1.0),
            server_cpu_share: cpu.map_or(0.0, |(u, s)| u + s),
        };
        Ok((report, seen))
    }
}

fn rule(fault: &Fault) -> &'static str {
    fault.rule.unwrap_or(fault.name)
}

/// Four callers at work.
struct Application {
    stop: Arc<AtomicBool>,
    /// Answers that each has had.
    answers: Vec<Arc<AtomicU64>>,
    callers: Vec<JoinHandle<(Vec<u32>, usize)>>,
}

impl Application {
    const CALLERS: u32 = 4;

    fn begin(target: &Target) -> Application {
        let mut all = Application { stop: Arc::default(), answers: Vec::new(), callers: Vec::new() };
        for caller in 0..Self::CALLERS {
            let (target, stop, answers) = (target.clone(), all.stop.clone(), Arc::<AtomicU64>::default());
            all.answers.push(answers.clone());
            all.callers.push(std::thread::spawn(move || call(&target, caller, &stop, &answers)));
        }
        all
    }

    /// Ends every caller; what each saw, unless it died.
    fn stop(&mut self) -> Vec<Option<(Vec<u32>, usize)>> {
        self.stop.store(true, Ordering::SeqCst);
        self.callers.drain(..).map(|caller| caller.join().ok()).collect()
    }
}

impl Workload for Application {
    /// How long each request took, in microseconds, and how many failed; `None` if a caller died.
    type Seen = Option<(Vec<u32>, usize)>;

    fn answered(&mut self) -> Answered {
        let had = self.answers.iter().filter(|answers| answers.load(Ordering::Relaxed) > 0).count();
        Answered::each(had, self.answers.len())
    }

    fn end(mut self) -> Self::Seen {
        let (mut times, mut errors) = (Vec::new(), 0);
        for seen in self.stop() {
            let (more, failed) = seen?;
            times.extend(more);
            errors += failed;
        }
        Some((times, errors))
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.stop();
    }
}

/// One caller: SET and GET in turn every 2 ms, each timed from when it was due.
fn call(target: &Target, caller: u32, stop: &AtomicBool, answers: &AtomicU64) -> (Vec<u32>, usize) {
    const EVERY: Duration = Duration::from_millis(2);
    // A key of the first master's slots: one connection serves, no redirects.
    let key = (0..)
        .map(|i| format!("cart:{{{caller}-{i}}}"))
        .find(|k| slot_of(k.as_bytes()) < 5000)
        .expect("some key hashes low");
    let (mut times, mut errors) = (Vec::new(), 0);
    let mut connection = Connection::open(target, &Options::default()).ok();
    let begun = Instant::now();
    for n in 0u32.. {
        let due = begun + EVERY * n;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let Some(c) = connection.as_mut() else {
            errors += 1;
            connection = Connection::open(target, &Options::default()).ok();
            continue;
        };
        let answer = if n % 2 == 0 { c.call(&["SET", &key, "v"]) } else { c.call(&["GET", &key]) };
        times.push(due.elapsed().as_micros() as u32);
        match answer {
            Ok(_) => {
                answers.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => {
                errors += 1;
                if e.is_fatal() {
                    connection = None;
                }
            }
        }
    }
    (times, errors)
}

fn closing(
    fault: &Fault,
    first: &Option<String>,
    right: bool,
    gone: bool,
    before: &Seen,
    after: &Seen,
    seconds: f64,
) -> String {
    let mut out = String::from("\n");
    let (t, mark) = (style::TITLE, if right && gone { style::GOOD } else { style::BAD });
    let _ = writeln!(out, "{t}hidden{t:#}  {}: {}", rule(fault), fault.about);
    let _ = writeln!(
        out,
        "{t}named{t:#}   {mark}{}{mark:#}{}",
        first.as_deref().unwrap_or("nothing"),
        if gone { ", and gone after the fix" } else { ", and still there after the fix" }
    );
    let row = |out: &mut String, what: &str, b: String, a: String| {
        let _ = writeln!(out, "{what:<34} {b:>12} {a:>12}");
    };
    out.push('\n');
    row(&mut out, "the application", "before".into(), "after".into());
    row(&mut out, "  p50", time_us(before.latency_us_p50.into()), time_us(after.latency_us_p50.into()));
    row(&mut out, "  p99", time_us(before.latency_us_p99.into()), time_us(after.latency_us_p99.into()));
    row(&mut out, "  longest", time_us(before.latency_us_max.into()), time_us(after.latency_us_max.into()));
    row(&mut out, "  requests", count(before.requests as f64), count(after.requests as f64));
    row(&mut out, "  errors", count(before.errors as f64), count(after.errors as f64));
    row(
        &mut out,
        "CPU of that master's main thread",
        percent(before.server_cpu_share),
        percent(after.server_cpu_share),
    );
    let verb = if right { "found" } else { "missed" };
    let result = result(gone, before, after);
    let _ = writeln!(out, "\nThe doctor {verb} {}; {result}, in {}.", rule(fault), time_us(seconds * 1e6));
    out
}

/// What the fix brought, as far as the application's figures show it. Some faults cost it nothing: they hurt others.
fn result(gone: bool, before: &Seen, after: &Seen) -> String {
    // Less than a tenth is what two windows of the same load differ by.
    let has_fallen = |before: f64, after: f64| after < 0.9 * before;
    let p99 = |seen: &Seen| time_us(seen.latency_us_p99.into());
    let cpu = |seen: &Seen| percent(seen.server_cpu_share);
    let mut fallen = Vec::new();
    if has_fallen(before.latency_us_p99.into(), after.latency_us_p99.into()) {
        fallen.push(format!("p99 from {} to {}", p99(before), p99(after)));
    }
    if has_fallen(before.server_cpu_share, after.server_cpu_share) {
        fallen.push(format!("that master's CPU from {} to {} of a core", cpu(before), cpu(after)));
    }
    let unchanged = format!("the application's p99 was {} before and {} after", p99(before), p99(after));
    match (gone, fallen.is_empty()) {
        (true, false) => format!("the fix took {}", fallen.join(" and ")),
        (true, true) => format!("it was gone after the fix, and {unchanged}"),
        (false, _) => format!("it was still there after the fix, and {unchanged}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fix_that_took_nothing_from_the_application_is_not_said_to() {
        let seen = |p99, cpu| Seen {
            requests: 9861,
            errors: 0,
            latency_us_p50: 126,
            latency_us_p99: p99,
            latency_us_max: 4980,
            server_cpu_share: cpu,
        };
        let said = |gone, before: (u32, f64), after: (u32, f64)| {
            result(gone, &seen(before.0, before.1), &seen(after.0, after.1)).replace('\u{a0}', " ")
        };
        let same = said(true, (374, 0.071), (386, 0.075));
        assert_eq!(same, "it was gone after the fix, and the application's p99 was 374 us before and 386 us after");
        assert_eq!(said(true, (17_400, 0.14), (379, 0.14)), "the fix took p99 from 17.4 ms to 379 us");
        assert!(said(true, (374, 0.5), (374, 0.1)).starts_with("the fix took that master's CPU from 50 % to 10 %"));
        assert!(said(false, (17_400, 0.5), (379, 0.1)).starts_with("it was still there after the fix"));
    }
}
