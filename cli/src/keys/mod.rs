//! `unslow keys`: what the keys of a deployment are.

mod text;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use unslow_client::{acl_rule_of_keys, discover};
use unslow_keys::{Hot, Questions, Report, Scan, Settings, Walked, track, walk};
use unslow_probe::Salt;
use unslow_units::count;

use crate::output::Output;
use crate::reach::Reach;
use crate::server::Server;
use crate::typed::end_after;
use crate::when::local_time;
use crate::{acl, files};

/// Keys a second.
const RATES: std::ops::RangeInclusive<f64> = 1.0..=1e6;

#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Exit status: 0 done, also after Ctrl-C; 2 could not look, or not at every shard to the \
                  end.\n\nExamples:\n  unslow keys redis://10.0.0.1:7000 --memory        # which keys take the \
                  memory\n  unslow keys -p 6379 --all --resume walk.json      # all of them; Ctrl-C, and resume \
                  later\n  unslow keys 10.0.0.1:7000 --hot --show-keys       # the most used, by name"
)]
pub struct KeysArguments {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port of any node
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Walk for this long; what was seen by then stands for all keys, with error bounds
    #[arg(long, default_value = "10s", value_parser = end_after, value_name = "TIME", conflicts_with = "all")]
    r#for: Duration,
    /// Walk until all keys are seen
    #[arg(long)]
    all: bool,
    /// Keys a second of each server, such as 500 or 20k; never in more than a fifth of its time
    #[arg(long, default_value = "5k", value_parser = rate, value_name = "N")]
    rate: f64,
    /// Ask for the memory of each key (MEMORY USAGE)
    #[arg(long)]
    memory: bool,
    /// Find the most used keys: the servers count for the time of --for first (HOTKEYS, Redis 8.6 and later; it costs
    /// their main threads a little), or are asked how often each key is accessed (OBJECT FREQ, where maxmemory-policy
    /// is LFU); walks masters
    #[arg(long)]
    hot: bool,
    /// Walk masters, even where there are replicas
    #[arg(long)]
    on_masters: bool,
    /// Rows of each list
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=200), value_name = "N")]
    top: u16,
    /// Save the walk there at its end, and resume from there if the file exists; it holds parts of key names
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Show key names instead of hashes
    #[arg(long)]
    show_keys: bool,
    /// Print the minimal ACL user for this walk, for the server at URL or the version given here (7.0, valkey-8.1), and
    /// exit
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = acl::ASK)]
    print_acl: Option<String>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = unslow_units::parse_rate(text).map_err(|e| e.to_string())?;
    if RATES.contains(&rate) { Ok(rate) } else { Err("expected 1 to 1,000,000 keys a second".into()) }
}

impl KeysArguments {
    pub fn run(self, output: &Output) -> anyhow::Result<u8> {
        if let Some(version) = &self.print_acl {
            return self.print_acl(version, output);
        }
        let questions = Questions { memory: self.memory, heat: self.hot, names: self.show_keys };
        let target = self.server.target(self.url.as_deref(), &self.reach)?;
        let mut scan = self.scan(questions, self.server.server_db.or((target.db > 0).then_some(target.db)))?;
        let options = self.reach.options()?;
        let deployment = discover(&target, &options)?;
        if let Some(through) = &deployment.through {
            bail!("{through} answered, and keys are counted at servers; give the URL of one of them");
        }
        let guard = unslow_interrupt::guard("ending the walk; what was seen so far follows (Ctrl-C again: at once)");
        let salt = Salt::new(self.show_keys);
        let begun = Instant::now();
        let spinner = output.spinner();
        let hot = if self.hot {
            spinner.update("the servers count which keys they work for");
            track(&deployment, &options, self.r#for, &salt, &|| guard.asked())
        } else {
            Hot::default()
        };
        let settings = Settings {
            options,
            rate: self.rate,
            until: (!self.all).then(|| Instant::now() + self.r#for),
            on_masters: self.on_masters,
            tracked: hot.servers.iter().map(|tracked| tracked.run_id.clone()).collect(),
            salt,
        };
        let mut progress = |seen: u64, all: u64| {
            spinner.update(&format!("{} of {} keys", count(seen as f64), count(all as f64)));
        };
        // A count that was interrupted is a result as well.
        let is_cut = guard.asked() && !hot.servers.is_empty();
        let mut walked = if is_cut {
            let why = "interrupted before the walk began: no keys were looked at".to_string();
            Walked { missed: 1, notes: vec![why], ..Walked::default() }
        } else {
            walk(&deployment, &settings, &mut scan, &|| guard.asked(), &mut progress)
        };
        drop(spinner);
        walked.notes.extend(hot.notes);
        walked.hot = hot.servers;
        let here = scan.parts.iter().filter(|part| part.is_here);
        let is_seen = here.clone().any(|part| part.scanned > 0 || part.is_done);
        let is_there = walked.missed > 0 || here.clone().any(|part| part.keys > 0);
        if !is_seen && is_there && walked.hot.is_empty() && !walked.notes.is_empty() {
            // The file keeps what an earlier walk has seen.
            bail!("no keys could be looked at: {}", walked.notes.join("; "));
        }
        if walked.done_before > 0 && walked.done_before == here.count() {
            walked.notes.push(format!(
                "all keys had been seen when the last walk ended, {}; delete the file to walk again",
                local_time(scan.at_ms)
            ));
        }
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        scan.at_ms = at_ms;
        let is_whole = is_cut || (walked.missed == 0 && walked.broken == 0);
        let report = Report::of(&scan, walked, at_ms);
        if output.json() {
            output.print_json(&report)?;
        } else {
            let head = text::Head { url: target.url(), kind: deployment.kind, took: begun.elapsed() };
            output.print(&text::report(&report, &head, usize::from(self.top)))?;
        }
        // A full disk is no reason to lose the report.
        self.resume.as_deref().map_or(Ok(()), |path| save(path, &scan))?;
        Ok(if is_whole { 0 } else { 2 })
    }

    /// A new one, or the one that was saved.
    fn scan(&self, questions: Questions, database: Option<u32>) -> anyhow::Result<Scan> {
        let Some(path) = &self.resume else { return Ok(Scan::new(questions, database)) };
        // Whatever can be wrong with the file is wrong before the walk.
        files::check(path)?;
        match std::fs::read_to_string(path) {
            Ok(text) => Scan::read(&text, questions, database).with_context(|| path.display().to_string()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Scan::new(questions, database)),
            Err(e) => Err(e).with_context(|| path.display().to_string()),
        }
    }

    fn print_acl(&self, version: &str, output: &Output) -> anyhow::Result<u8> {
        let is_named = self.url.is_some() || self.server.is_named();
        let named = is_named.then(|| self.server.target(self.url.as_deref(), &self.reach)).transpose()?;
        let (server, _) = acl::server(version, named, &self.reach)?;
        let rule = acl_rule_of_keys(server, self.hot);
        if output.json() {
            output.print_json(&acl::document(rule.as_deref()))?;
        }
        acl::print(rule.as_deref(), output)
    }
}

/// For its owner to read alone, also if it was there before: parts of names are in it.
fn save(path: &Path, scan: &Scan) -> anyhow::Result<()> {
    use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
    let what = || path.display().to_string();
    let opened = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path).with_context(what)?;
    if opened.metadata().with_context(what)?.is_file() {
        // Of another user's file that cannot be done, and is theirs to decide.
        let _ = opened.set_permissions(std::fs::Permissions::from_mode(0o600));
    }
    drop(opened);
    files::write(path, &scan.text())
}
