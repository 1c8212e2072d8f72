//! `unslow drill`: is it safe, is it up? Faults on a time line against a lab of one's own, and checkers instead of eyes.

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde::Serialize;
use serde_json::json;
use unslow_client::Target;
use unslow_doctor::measure::count;
use unslow_drill::check::Verdict;
use unslow_drill::run::{self, Document, How, Outcome};
use unslow_drill::shootout;
use unslow_drill::spec::{self, Drill};

use crate::doctor::Reach;
use crate::drill_html;
use crate::output::{Output, style, table, writable};

#[derive(Args)]
#[command(
    after_help = "Exit status: 0 every check passed, 1 a check failed (whatever else is unknown), 2 a run is unknown or could not begin.\n\nExamples:\n  unslow drill cluster_failover --fault hang\n  unslow drill split_brain --variant default --repeat 3\n  unslow drill my-drill.toml --html drill.html\n  unslow drill cluster_failover --fault failover --i-own-this redis://staging:6379"
)]
pub struct DrillArguments {
    /// A drill that comes with unslow (see --list), or a file of your own
    name: Option<String>,
    #[arg(hide = true)]
    url: Option<String>,
    /// Only this fault of those the drill has
    #[arg(long, value_name = "NAME")]
    fault: Option<String>,
    /// Only this variant; may be given again
    #[arg(long, value_name = "NAME")]
    variant: Vec<String>,
    /// Of client_recovery: only this client; may be given again
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(shootout::names()))]
    client: Vec<String>,
    /// So many times each
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    repeat: u32,
    /// Seed of the lab's jitter and loss
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Another engine than the drill's: valkey-9.1, redis-7.0, redis-6.2, path, or a server executable
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,
    /// Where the evidence of each run is kept
    #[arg(long, default_value = "store", value_name = "DIRECTORY")]
    store: PathBuf,
    /// Keep the report as a page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Against this deployment instead of a lab: it gets the load, and faults by its own commands (failover, hang, or none)
    #[arg(long, value_name = "URL")]
    i_own_this: Option<String>,
    /// List the drills, their faults and variants
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    reach: Reach,
}

impl DrillArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        if self.list {
            return list(output);
        }
        if self.seed.is_some_and(|s| s.checked_add(u64::from(self.repeat)).is_none()) {
            bail!("--seed with --repeat goes beyond the largest number there is");
        }
        let name = self.name.as_deref().context("a drill's name was expected; try: unslow drill --list")?;
        if let Some(url) = &self.url {
            // Without its password.
            let url = Target::parse(url).map_or("it".into(), |t| t.url());
            bail!(
                "a drill breaks what it is pointed at: {url} needs your word for it; try: unslow drill {name} --fault failover --i-own-this {url}"
            );
        }
        let drill = spec::find(name)?;
        if name == spec::CLIENT_RECOVERY {
            return self.clients(&drill, output);
        }
        if !self.client.is_empty() {
            bail!("--client is for unslow drill {}", spec::CLIENT_RECOVERY);
        }
        let runs = self.chosen(&drill)?;
        let own = match &self.i_own_this {
            Some(url) => Some((self.reach.target(url)?, self.reach.options()?.tls)),
            None => None,
        };
        self.engine.as_deref().map_or(Ok(()), |name| unslow_engine::find(name).map(drop))?;
        self.store_is_there()?;
        self.html.as_deref().map_or(Ok(()), writable)?;
        let seed = self.seed.unwrap_or_else(|| rand::random::<u32>().into());
        let mut outcomes: Vec<Outcome> = Vec::new();
        let many = runs.len() * self.repeat as usize;
        for repeat in 0..self.repeat {
            for (fault, label) in &runs {
                if run::interrupted() {
                    break;
                }
                let plan = drill.variants.iter().find(|(l, _)| l == label).map(|(_, p)| p);
                let plan = plan.or(drill.base.as_ref()).context("a variant")?;
                let how = How {
                    engine: self.engine.clone(),
                    seed: seed + u64::from(repeat),
                    store: self.store.clone(),
                    own: own.clone(),
                    facts: true,
                };
                let at = outcomes.len() + 1;
                let head = format!("{at}/{many} {}: {fault}, {label}", drill.name);
                let spinner = output.spinner();
                let outcome = run::run(&drill, label, plan, fault, &how, &mut |what| {
                    spinner.update(&format!("{head}: {what}"));
                });
                drop(spinner);
                let outcome = match outcome {
                    // One that ended badly takes nothing from those that did not.
                    Err(e) if many > 1 => Outcome::crashed(&drill, label, fault, how.seed, "", &e),
                    other => other.with_context(|| format!("drill {}, {fault}, {label}", drill.name))?,
                };
                output.note(&line(&head, &outcome));
                outcomes.push(outcome);
            }
        }
        let page = self.html.as_ref().map(|path| Ok::<_, anyhow::Error>((path, drill_html::page(&drill, &outcomes)?)));
        let page = page.transpose()?;
        let status = match outcomes.iter().map(|o| o.verdict).max() {
            Some(Verdict::Failed) => 1,
            Some(Verdict::Passed) if !run::interrupted() => 0,
            _ => 2,
        };
        if output.json() {
            output.print_json(&Document { schema: run::SCHEMA, runs: outcomes })?;
        } else {
            output.print(&text(&drill, &outcomes, output.verbose))?;
        }
        if let Some((path, page)) = page {
            std::fs::write(path, page).with_context(|| path.display().to_string())?;
        }
        Ok(status)
    }

    /// Before anything is started for it.
    fn store_is_there(&self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.store)
            .with_context(|| format!("{}: another place: --store DIRECTORY", self.store.display()))
    }

    /// The clients that applications use, side by side.
    fn clients(&self, drill: &Drill, output: &Output) -> anyhow::Result<u8> {
        let wrong = [
            ("--i-own-this", self.i_own_this.is_some()),
            ("--repeat", self.repeat > 1),
            ("--variant", !self.variant.is_empty()),
        ];
        if let Some((option, _)) = wrong.iter().find(|(_, given)| *given) {
            bail!(
                "client_recovery takes no {option}; it takes --fault, --client, --engine, --seed, --store, --html and --format"
            );
        }
        let how = How {
            engine: self.engine.clone(),
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
            store: self.store.clone(),
            own: None,
            facts: false,
        };
        self.store_is_there()?;
        self.html.as_deref().map_or(Ok(()), writable)?;
        let binary = std::env::current_exe().context("the path of this program")?;
        let spinner = output.spinner();
        let say = &mut |what: &str| spinner.update(what);
        let document = shootout::run(drill, &self.client, self.fault.as_deref(), &how, &binary, say)?;
        drop(spinner);
        if document.clients.is_empty() && !output.json() {
            bail!("nothing was run: {}", document.unknown.join("; "));
        }
        let table = clients_table(&document);
        if let Some(path) = &self.html {
            std::fs::write(path, drill_html::clients_page(drill, &document, &table)?)
                .with_context(|| path.display().to_string())?;
        }
        if output.json() {
            output.print_json(&document)?;
        } else {
            output.print(&table.text())?;
        }
        // A client that was asked for and could not run leaves its row open.
        let ran = !document.clients.is_empty() && document.clients.iter().all(|s| s.missing.is_none());
        Ok(if document.unknown.is_empty() && ran && !run::interrupted() { 0 } else { 2 })
    }

    /// Fault and variant of each run.
    fn chosen(&self, drill: &Drill) -> anyhow::Result<Vec<(String, String)>> {
        let labels: Vec<&str> = drill.variants.iter().map(|(l, _)| l.as_str()).collect();
        if let Some(unknown) = self.variant.iter().find(|v| !labels.contains(&v.as_str())) {
            let labels: Vec<String> = labels.iter().map(|l| format!("{l:?}")).collect();
            bail!("drill {} has no variant {unknown:?}; its variants: {}", drill.name, labels.join(", "));
        }
        let foreign = self.i_own_this.is_some();
        if let Some(fault) = self.fault.as_deref().filter(|f| foreign && !run::FOREIGN.contains(f)) {
            bail!(
                "{fault} cannot be done to a deployment of your own from here; there are {} (with none you cause it yourself while the drill measures)",
                run::FOREIGN.join(", ")
            );
        }
        if foreign && self.fault.is_none() {
            bail!("a deployment of your own: say which fault, --fault failover, or --fault none and cause it yourself");
        }
        let mut runs = Vec::new();
        for (label, plan) in &drill.variants {
            if !self.variant.is_empty() && !self.variant.contains(label) {
                continue;
            }
            // Other settings of the servers: those of a deployment of one's own are what they are.
            if foreign && self.variant.is_empty() {
                continue;
            }
            if foreign && plan.changes_servers {
                bail!(
                    "variant {label:?} changes settings of the servers; yours run as they are: leave --variant out, or set them yourself"
                );
            }
            let mut faults: Vec<&str> = plan.alternatives();
            if faults.is_empty() {
                faults.push("none");
            }
            match &self.fault {
                Some(fault) if foreign => runs.push((fault.clone(), label.clone())),
                Some(fault) => {
                    runs.extend(faults.iter().filter(|f| *f == fault).map(|f| (f.to_string(), label.clone())))
                }
                None => runs.extend(faults.iter().map(|f| (f.to_string(), label.clone()))),
            }
        }
        if let (true, true, Some(fault)) = (foreign, self.variant.is_empty(), &self.fault) {
            runs.push((fault.clone(), "as it is".into()));
        }
        if let Some(fault) = self.fault.as_deref().filter(|f| runs.is_empty() && run::FOREIGN.contains(f)) {
            bail!(
                "{fault} is no fault of {} in a lab, there are {}; for a deployment of your own: --i-own-this URL",
                drill.name,
                drill.alternatives().join(", ")
            );
        }
        if runs.is_empty() && drill.alternatives().is_empty() {
            bail!("drill {} has no faults: leave --fault out", drill.name);
        }
        if runs.is_empty() {
            let fault = self.fault.as_deref().unwrap_or_default();
            bail!("drill {} has no fault {fault:?}; there are {}", drill.name, drill.alternatives().join(", "));
        }
        // A fault's variants beside each other.
        let order = drill.alternatives();
        runs.sort_by_key(|(fault, _)| order.iter().position(|o| o == fault));
        Ok(runs)
    }
}

fn list(output: &Output) -> anyhow::Result<u8> {
    let drills = spec::BUILT_IN.iter().map(|(name, text)| Drill::parse(name, text)).collect::<Result<Vec<_>, _>>()?;
    if output.json() {
        let one = |d: &Drill| {
            let variants: Vec<&str> = d.variants.iter().map(|(l, _)| l.as_str()).collect();
            json!({"name": d.name, "about": d.about, "faults": d.alternatives(), "variants": variants})
        };
        output.print_json(&json!({"drills": drills.iter().map(one).collect::<Vec<_>>()}))?;
        return Ok(0);
    }
    for drill in &drills {
        let name = &drill.name;
        let variants: Vec<&str> = drill.variants.iter().map(|(l, _)| l.as_str()).collect();
        output.print(&format!(
            "{name:<20} {}\n{:<20} faults: {}; variants: {}\n",
            drill.about,
            "",
            drill.alternatives().join(", "),
            variants.join("; ")
        ))?;
    }
    Ok(0)
}

/// `2.31 s`, `45 ms`.
pub fn time(us: u64) -> String {
    match us {
        0..10_000 => format!("{:.1} ms", us as f64 / 1e3),
        10_000..1_000_000 => format!("{} ms", us / 1000),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Unknown => "unknown",
        Verdict::Failed => "failed",
    }
}

fn line(head: &str, outcome: &Outcome) -> String {
    let colour = match outcome.verdict {
        Verdict::Passed => style::GOOD,
        Verdict::Unknown => style::WARN,
        Verdict::Failed => style::BAD,
    };
    format!("{head}: {colour}{}{colour:#} ({:.0} s)", word(outcome.verdict), outcome.seconds)
}

/// Columns and a row for each run.
pub fn rows(outcomes: &[Outcome]) -> Vec<Vec<String>> {
    let locks = outcomes.iter().any(|o| o.figures.locks.is_some());
    let replicas = outcomes.iter().any(|o| o.figures.reads_replicas.answered > 0);
    let stays = outcomes.iter().any(|o| o.figures.writes_stays.acknowledged > 0);
    let mut head = vec!["fault", "variant", "verdict", "promoted", "window", "other shards", "redundant"];
    if locks {
        head.extend([
            "locks taken",
            "two holders",
            "for",
            "uses of two",
            "fenced",
            "late uses",
            "fenced",
            "tokens given twice",
        ]);
    } else {
        head.extend(["acknowledged", "lost", "unknown", "registers wrong"]);
        if stays {
            head.extend(["stays: acknowledged", "stays: lost"]);
        }
    }
    if replicas {
        head.extend(["stale reads", "by at most", "time travel"]);
    }
    let mut all = vec![head.into_iter().map(String::from).collect::<Vec<_>>()];
    let maybe = |us: Option<u64>| us.map_or("-".into(), time);
    for outcome in outcomes {
        let f = &outcome.figures;
        let shards = f.windows.iter().map(|w| w.shard).max().unwrap_or(0);
        let mut row = vec![
            outcome.fault.clone(),
            outcome.variant.clone(),
            word(outcome.verdict).into(),
            maybe(f.promoted_after_us),
            // Who fights for a lock waits for others, not for a master.
            match f.operations {
                0 => "-".into(),
                _ if locks => "-".into(),
                _ => format!("{}{}", if f.window_open { "> " } else { "" }, time(f.window_us_max)),
            },
            if shards > 0 && !locks { time(f.other_shards_window_us_max) } else { "-".into() },
            maybe(f.redundant_after_us),
        ];
        if locks {
            let l = f.locks.clone().unwrap_or_default();
            row.extend([
                count(l.taken as f64),
                count(l.double_holders as f64),
                time(l.double_us),
                count(l.contested_uses as f64),
                count(l.contested_uses_fenced as f64),
                count(l.late_uses as f64),
                count(l.late_uses_fenced as f64),
                count(l.tokens_not_rising as f64),
            ]);
        } else {
            let judged = |n: u64| if f.writes_judged { count(n as f64) } else { "-".into() };
            row.extend([
                judged(f.writes.acknowledged),
                judged(f.writes.lost),
                judged(f.writes.unknown),
                format!("{} of {}", f.registers.wrong, f.registers.checked),
            ]);
            if stays {
                row.extend([judged(f.writes_stays.acknowledged), judged(f.writes_stays.lost)]);
            }
        }
        if replicas {
            let r = &f.reads_replicas;
            let share = format!("{} of {}", count(r.stale as f64), count(r.answered as f64));
            row.extend([share, time(r.stale_us_max), count(r.time_travel as f64)]);
        }
        all.push(row);
    }
    all
}

fn text(drill: &Drill, outcomes: &[Outcome], verbose: bool) -> String {
    let mut out = format!("{}\n\n", drill.about);
    out += &table(&rows(outcomes));
    let (bad, faint) = (style::BAD, style::FAINT);
    for outcome in outcomes {
        let shown: Vec<_> = outcome.checks.iter().filter(|c| verbose || c.verdict != Verdict::Passed).collect();
        if shown.is_empty() {
            continue;
        }
        let _ = writeln!(out, "\n{}, {} (seed {}):", outcome.fault, outcome.variant, outcome.seed);
        for check in shown {
            let colour = if check.verdict == Verdict::Failed { bad } else { style::WARN };
            let _ = writeln!(out, "  {colour}{}{colour:#} {}: {}", word(check.verdict), check.name, check.text);
            for line in &check.evidence {
                let _ = writeln!(out, "    {faint}{line}{faint:#}");
            }
        }
        if !outcome.folder.is_empty() {
            let _ = writeln!(out, "  {faint}evidence: {}{faint:#}", outcome.folder);
        }
    }
    out + "\n" + &closing(drill, outcomes) + "\n"
}

/// A sentence a person can repeat.
pub fn closing(drill: &Drill, outcomes: &[Outcome]) -> String {
    let with = |v| outcomes.iter().filter(|o| o.verdict == v).count();
    let (passed, failed, unknown) = (with(Verdict::Passed), with(Verdict::Failed), with(Verdict::Unknown));
    let mut out = format!("{}: {passed} passed, {failed} failed, {unknown} unknown", drill.name);
    let lost: u64 = outcomes.iter().map(|o| o.figures.writes.lost + o.figures.writes_stays.lost).sum();
    let window = outcomes.iter().map(|o| o.figures.window_us_max).max().unwrap_or(0);
    if outcomes.iter().any(|o| o.figures.locks.is_some()) {
        let double: u64 = outcomes.iter().filter_map(|o| o.figures.locks.as_ref()).map(|l| l.double_holders).sum();
        let _ = write!(out, "; two clients held the same lock {double} times");
    } else if outcomes.iter().any(|o| o.figures.writes_judged) {
        let _ = write!(out, "; {lost} acknowledged writes lost");
        if outcomes.iter().any(|o| o.figures.window_open) {
            let _ = write!(out, ", and a client that follows was still without an answer at the end of a run");
        } else {
            let _ = write!(out, ", nobody that follows waited longer than {}", time(window));
        }
    }
    out + "."
}

/// Clients down, faults across: how long until an answer, the share of slow commands, the errors.
#[derive(Serialize)]
pub struct ClientsTable {
    pub about: String,
    pub rows: Vec<Vec<String>>,
    pub notes: Vec<String>,
    pub closing: String,
}

impl ClientsTable {
    fn text(&self) -> String {
        let mut out = format!("{}\n\n{}", self.about, table(&self.rows));
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        if !self.closing.is_empty() {
            let _ = writeln!(out, "\n{}", self.closing);
        }
        out
    }
}

fn clients_table(document: &shootout::Document) -> ClientsTable {
    let mut faults: Vec<&str> = Vec::new();
    let mut clients: Vec<&str> = Vec::new();
    for seen in &document.clients {
        if !faults.contains(&seen.fault.as_str()) {
            faults.push(&seen.fault);
        }
        if !clients.contains(&seen.client.as_str()) {
            clients.push(&seen.client);
        }
    }
    let mut head = vec!["client".to_string()];
    head.extend(faults.iter().map(|f| f.to_string()));
    let mut all = vec![head];
    let mut notes = Vec::new();
    for client in clients {
        let mut row = vec![client.to_string()];
        for fault in &faults {
            let seen = document.clients.iter().find(|s| s.client == client && s.fault == *fault);
            let cell = match seen {
                None => "-".into(),
                Some(shootout::Seen { missing: Some(why), .. }) => {
                    notes.push(format!("{client} did not run ({fault}): {why}"));
                    "not run".into()
                }
                Some(seen) => {
                    let time = seen.recovery_us.map_or("-".into(), time);
                    let never = if seen.never { "never, " } else { "" };
                    let errors = count(seen.errors as f64);
                    format!("{never}{time}; {:.1} % slow, {errors} errors", seen.slow_share * 100.0)
                }
            };
            row.push(cell);
        }
        let version = document.clients.iter().find(|s| s.client == client && !s.version.is_empty()).map(|s| &s.version);
        if let Some(version) = version {
            row[0] = if version.starts_with(client) { version.clone() } else { format!("{client} ({version})") };
        }
        all.push(row);
    }
    notes.extend(document.unknown.iter().cloned());
    // Figures of a fault that was not at work, or that were cut off, are no record.
    let certain = document.unknown.is_empty();
    let answered = |s: &&shootout::Seen| certain && s.missing.is_none() && s.recovery_us.is_some();
    let best = document.clients.iter().filter(answered).min_by_key(|s| s.recovery_us);
    let worst = document.clients.iter().filter(answered).max_by_key(|s| (s.never, s.recovery_us));
    let closing = best.zip(worst).map_or(String::new(), |(best, worst)| {
        format!(
            "Shortest: {} after {}, {}; longest: {} after {}, {}{}.",
            best.client,
            best.fault,
            time(best.recovery_us.unwrap_or(0)),
            worst.client,
            worst.fault,
            time(worst.recovery_us.unwrap_or(0)),
            if worst.never { " and not over when the run ended" } else { "" }
        )
    });
    let models = document.clients.iter().any(|s| s.client.starts_with("bench") && s.missing.is_none());
    let about = format!(
        "{}; longest time without an answer from the fault on, commands over 30 ms, failed commands{}",
        document.engine,
        if models {
            "\nModels of unslow bench: silences to the second; every request that was due counts, not those they began"
        } else {
            ""
        }
    );
    ClientsTable { about, rows: all, notes, closing }
}
