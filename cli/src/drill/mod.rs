//! `unslow drill`: is it safe, is it up? Faults on a time line against a lab of one's own, and checkers instead of
//! eyes.

mod page;
mod text;

use std::path::PathBuf;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use unslow_client::{Target, TlsOptions};
use unslow_drill::check::Verdict;
use unslow_drill::run::{self, Document, How, Outcome};
use unslow_drill::shootout;
use unslow_drill::spec::{self, Drill};
use unslow_units::time_rough_s;

use crate::output::{Output, style, writable};
use crate::reach::Reach;
use crate::server::Server;
use crate::table::table;

#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Exit status: 0 every check passed, 1 a check failed (even if others are unknown), 2 a run is unknown \
                  or could not start.\n\nExamples:\n  unslow drill ls\n  unslow drill cluster_failover --fault \
                  hang\n  unslow drill split_brain --variant default --repeat 3\n  unslow drill my-drill.toml --html \
                  drill.html\n  unslow drill cluster_failover --fault failover --i-own-this redis://staging:6379"
)]
pub struct DrillArguments {
    /// A built-in drill (ls lists them), or your own file
    name: Option<String>,
    #[arg(hide = true)]
    url: Option<String>,
    /// Run only this one of the drill's faults
    #[arg(long, value_name = "NAME")]
    fault: Option<String>,
    /// Run only this variant; may be repeated
    #[arg(long, value_name = "NAME")]
    variant: Vec<String>,
    /// With client_recovery: run only this client; may be repeated
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(shootout::names()))]
    client: Vec<String>,
    /// Repeat each run N times
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000), value_name = "N")]
    repeat: u32,
    /// Seed for the lab's jitter and loss
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Engine to use instead of the drill's: valkey-9.1, redis-8.10, redis-7.0, redis-6.2, path, or a server executable
    #[arg(long, value_name = "NAME")]
    engine: Option<String>,
    /// Where the evidence of each run is kept [default: in the cache, see `unslow clean`]
    #[arg(long, value_name = "DIRECTORY")]
    store: Option<PathBuf>,
    /// Write the report as an HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Run against this deployment (a URL, @NAME of unslow.toml, or -h and -p) instead of a lab: it gets the load, and
    /// faults that its own commands can cause (failover, hang, or none)
    #[arg(long, value_name = "URL", num_args = 0..=1)]
    i_own_this: Option<Option<String>>,
    /// The same as `unslow drill ls`
    #[arg(long, hide = true)]
    list: bool,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

impl DrillArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        // No drill is called that.
        if self.list || self.name.as_deref() == Some("ls") {
            return list(output);
        }
        if self.seed.is_some_and(|s| s.checked_add(u64::from(self.repeat)).is_none()) {
            bail!("--seed plus --repeat is more than the largest possible seed");
        }
        let name = self.name.as_deref().context("no drill given; try: unslow drill ls")?;
        if let Some(url) = &self.url {
            // Without its password. A name stands for another URL.
            let url = match url.starts_with('@') {
                true => url.clone(),
                false => Target::parse(url).map_or("it".into(), |t| t.url()),
            };
            bail!(
                "a drill breaks what it is pointed at: confirm that {url} is yours to break; try: unslow drill {name} \
                 --fault failover --i-own-this {url}"
            );
        }
        let own = self.own(name)?;
        let drill = spec::find(name)?;
        if name == spec::CLIENT_RECOVERY {
            return self.clients(&drill, output);
        }
        if !self.client.is_empty() {
            bail!("--client only works with unslow drill {}", spec::CLIENT_RECOVERY);
        }
        let runs = self.chosen(&drill)?;
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
                    store: self.store(),
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
        let page = self.html.as_ref().map(|path| Ok::<_, anyhow::Error>((path, page::render(&drill, &outcomes)?)));
        let page = page.transpose()?;
        let status = match outcomes.iter().map(|o| o.verdict).max() {
            Some(Verdict::Failed) => 1,
            Some(Verdict::Passed) if !run::interrupted() => 0,
            _ => 2,
        };
        if output.json() {
            output.print_json(&Document { schema: run::SCHEMA, runs: outcomes })?;
        } else {
            output.print(&text::report(&drill, &outcomes, output.verbose))?;
        }
        if let Some((path, page)) = page {
            std::fs::write(path, page).with_context(|| path.display().to_string())?;
        }
        Ok(status)
    }

    /// The deployment that the user has said is theirs; there is no default.
    fn own(&self, name: &str) -> anyhow::Result<Option<(Target, TlsOptions)>> {
        let Some(url) = &self.i_own_this else {
            if self.server.is_given() {
                bail!(
                    "a drill breaks what it is pointed at: add --i-own-this to confirm that the deployment is yours to \
                     break, and a fault; for example: unslow drill {name} --fault failover --i-own-this -h HOST -p PORT"
                );
            }
            return Ok(None);
        };
        // Not UNSLOW_URL: what a shell looks at is not what it may break.
        let url = self
            .server
            .address(url.as_deref())?
            .context("--i-own-this needs a server: --i-own-this redis://host:port, or -h and -p")?;
        let reached = self.server.reached(&url, &self.reach)?;
        Ok(Some((reached.target, reached.options.tls)))
    }

    /// Before anything is started for it.
    fn store_is_there(&self) -> anyhow::Result<()> {
        let store = self.store();
        std::fs::create_dir_all(&store).with_context(|| {
            format!("{}: cannot be created; choose another place with --store DIRECTORY", store.display())
        })
    }

    fn store(&self) -> PathBuf {
        self.store.clone().unwrap_or_else(unslow_engine::evidence_dir)
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
                "client_recovery takes no {option}; it takes --fault, --client, --engine, --seed, --store, --html and \
                 --format"
            );
        }
        let how = How {
            engine: self.engine.clone(),
            seed: self.seed.unwrap_or_else(|| rand::random::<u32>().into()),
            store: self.store(),
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
        let table = text::clients_table(&document);
        if let Some(path) = &self.html {
            std::fs::write(path, page::render_clients(drill, &document, &table)?)
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
                "{fault} cannot be injected into your own deployment from here; there are {} (with none, you cause it \
                 yourself while the drill measures)",
                run::FOREIGN.join(", ")
            );
        }
        if foreign && self.fault.is_none() {
            bail!("--i-own-this needs a fault: --fault failover, or --fault none if you cause it yourself");
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
                    "variant {label:?} changes server settings, and a drill leaves yours as they are: omit --variant, \
                     and change them yourself if you want that"
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
                "{} has no fault {fault} in a lab, there are {}; for your own deployment, add --i-own-this URL",
                drill.name,
                drill.alternatives().join(", ")
            );
        }
        if runs.is_empty() && drill.alternatives().is_empty() {
            bail!("drill {} has no faults: omit --fault", drill.name);
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
        let drills: Vec<_> = drills.iter().map(one).collect();
        output.print_json(&json!({"schema": "unslow.drills/1", "drills": drills}))?;
        return Ok(0);
    }
    let mut rows = vec![["drill", "what it does", "faults", "variants"].map(String::from).to_vec()];
    for drill in &drills {
        let variants: Vec<&str> = drill.variants.iter().map(|(l, _)| l.as_str()).collect();
        rows.push(vec![drill.name.clone(), drill.about.clone(), drill.alternatives().join(", "), variants.join("; ")]);
    }
    output.print(&table(&rows))?;
    Ok(0)
}

fn line(head: &str, outcome: &Outcome) -> String {
    let colour = match outcome.verdict {
        Verdict::Passed => style::GOOD,
        Verdict::Unknown => style::WARN,
        Verdict::Failed => style::BAD,
    };
    format!("{head}: {colour}{}{colour:#} ({})", text::word(outcome.verdict), time_rough_s(outcome.seconds))
}
