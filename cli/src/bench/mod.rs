//! `unslow bench`: load, honest tails.

mod compare;
mod csv;
mod limits;
mod mix;
mod page;
mod text;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use unslow_bench::{
    Arrivals, Comparison, Error as BenchError, Held, Histogram, Logged, Model, Progress, ReadFrom, Removed, Report,
    Run, Second, Session, Settings, Spec, built_in_names, percentile_table, with_log,
};
use unslow_client::{ErrorKind, Target};
use unslow_units::{count, did_you_mean, parse_count, parse_rate, time_us};

use crate::output::{Output, writable};
use crate::reach::Reach;
use crate::server::Server;
use crate::typed::{seconds, short_time, whole_seconds};

use limits::Limit;

pub use compare::Compare;
pub use limits::apart as limits_apart;

/// How requests arrive in an open loop. (Documented at the flag: documented values make all of the help twice as long.)
#[derive(Clone, Copy, ValueEnum)]
enum ArrivalsFlag {
    Constant,
    Poisson,
}

/// Which servers answer reads.
#[derive(Clone, Copy, ValueEnum)]
enum ReadFromFlag {
    Primary,
    Replica,
    Any,
}

#[derive(Args)]
#[command(
    args_override_self = true,
    disable_help_flag = true,
    after_help = "Placeholders in commands: {key} {value} {seq} {now} {sha}; {{ and }} are plain braces.\n\n\
                  Examples:\n  unslow bench redis://10.0.0.1:6379 --rate 20000 --seconds 30\n  unslow bench \
                  localhost:7000 --connections 50 --pipeline 16 --mix get=0.9,set=0.1 --value-size 16-1024\n  unslow \
                  bench localhost --model shared --callers 32 --command \"HSET user:{key} f {value}\"\n  unslow bench \
                  localhost --replay monitor.txt --speed 2\n  unslow bench redis://a --against redis://b --repeat 5 \
                  --save a.json --save-against b.json"
)]
pub struct Bench {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Open loop: requests per second in all; several rates (10000,20k) are steps of equal length
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',', value_parser = parse_rate)]
    rate: Vec<f64>,
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        requires = "rate",
        help = "How requests arrive at --rate: evenly spaced, or independent of each other as many users are [default: \
                constant]"
    )]
    arrivals: Option<ArrivalsFlag>,
    /// Length of a run, as 30s or 2m [default: 10s; with --requests, or a --replay without --loop, as long as it takes]
    #[arg(long, visible_alias = "for", value_parser = seconds, value_name = "TIME")]
    seconds: Option<f64>,
    /// End after this many requests
    #[arg(short = 'n', long, value_parser = parse_count, value_name = "N")]
    requests: Option<u64>,
    /// Connections to each server, for --model own [default: 50]
    #[arg(short, long, value_name = "N")]
    connections: Option<usize>,
    /// Requests in flight on a connection; a closed loop sends them in one write
    #[arg(short = 'P', long, default_value_t = 1, value_name = "N")]
    pipeline: usize,
    /// Threads of the generator; one makes some 200,000 requests/s unpipelined
    #[arg(long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Run built-in commands one after another, such as set,get, each in a separate run (--mix sends them together)
    #[arg(
        short = 't',
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        value_parser = mix::test,
        conflicts_with_all = ["mix", "command", "workload", "replay", "against", "save", "html", "hgrm", "hlog"]
    )]
    tests: Vec<String>,
    /// Print CSV instead of the report: a line for each command of each run
    #[arg(long, conflicts_with = "against")]
    csv: bool,
    /// How application threads share connections: own, pool:N (Jedis), shared (Lettuce), multiplex:N
    #[arg(long, default_value = "own", value_parser = Model::parse, value_name = "MODEL")]
    model: Model,
    /// Application threads of pool, shared and multiplex [default: 32; with --rate as many as it takes]
    #[arg(long, value_name = "N")]
    callers: Option<usize>,
    /// Which servers answer reads
    #[arg(long, value_enum, default_value = "primary", value_name = "WHICH")]
    read_from: ReadFromFlag,
    /// The run is invalid if a thousandth of the requests were picked up later than this
    #[arg(long, default_value = "5ms", value_parser = short_time, value_name = "TIME")]
    lateness_max: Duration,

    /// End with exit status 1 when a run breaks one of these: 'p99 > 5ms' 'errors > 0.1%' 'throughput < 10k'
    #[arg(long, value_name = "LIMIT...", value_parser = limits::limit)]
    fail_if: Vec<Limit>,
    /// Runs
    #[arg(long, default_value_t = 1, value_name = "N")]
    repeat: usize,
    /// A second deployment, measured in turn with the first (A B B A ...), and the two compared
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    /// Write the report (JSON), for `unslow compare`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Write the report of --against
    #[arg(long, value_name = "FILE", requires = "against")]
    save_against: Option<PathBuf>,
    /// Write a self-contained page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the percentile table of HdrHistogram's plotters (milliseconds)
    #[arg(long, value_name = "FILE")]
    hgrm: Option<PathBuf>,
    /// Write HdrHistogram's interval log, a histogram a second (nanoseconds)
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Connections that listen to the channels of the built-in `publish`: measures delivery
    #[arg(long, default_value_t = 0, value_name = "N")]
    subscribers: usize,
    /// Leave the keys that it wrote; otherwise they are removed at the end
    #[arg(long)]
    keep_keys: bool,
    /// Send only the workload, to one address: for proxies that close the connection on HELLO, INFO or COMMAND
    #[arg(long)]
    plain: bool,
    /// Run even if the servers hold keys that no benchmark wrote
    #[arg(long)]
    yes: bool,

    /// A person has said that load may be sent: one word is enough for all tests.
    #[arg(skip)]
    is_agreed: Cell<bool>,
    #[command(flatten)]
    workload: WorkloadFlags,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

/// Flags win over the workload file.
#[derive(Args)]
#[command(next_help_heading = "Workload")]
struct WorkloadFlags {
    /// TOML file with these settings (mix = {get = 0.9}, commands = [...], keys = ..., value_size = ...)
    #[arg(long, value_name = "FILE")]
    workload: Option<PathBuf>,
    /// Commands and their shares, as get=0.9,set=0.1; built-in ones or those of --command
    #[arg(long, value_name = "NAME=SHARE,...", value_parser = mix::mix)]
    mix: Option<BTreeMap<String, f64>>,
    /// A command template, as "HSET user:{key} f {value}", or NAME=TEMPLATE for --mix
    #[arg(long, value_name = "TEMPLATE")]
    command: Vec<String>,
    /// Size of the key space [default: 100000]
    #[arg(short = 'r', long, value_parser = parse_count, value_name = "N")]
    keys: Option<u64>,
    /// What built-in commands put in front of a key's number [default: unslow:]
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// uniform, zipf[:EXPONENT], hot[:KEYS:REQUESTS] (shares) or sequential [default: uniform]
    #[arg(long, value_name = "HOW")]
    key_distribution: Option<String>,
    /// Bytes of a value: 64, 10kb, 16-1024, or sizes with weights 64:0.7,1kb:0.3 [default: 64]
    #[arg(short = 'd', long, value_name = "SIZE")]
    value_size: Option<String>,
    /// Time until a key that `set` writes expires, in whole seconds
    #[arg(long, value_parser = whole_seconds, value_name = "TIME")]
    expire: Option<u64>,
    /// Send this many commands in a MULTI/EXEC block, on one key
    #[arg(long, value_name = "N")]
    multi: Option<u32>,
    /// Lua script to load; {sha} in a template is its digest
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Send recorded commands once: MONITOR's output, or a command a line
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Begin the --replay again when it ends, until the run is over
    #[arg(long = "loop")]
    replay_loop: bool,
    /// Also send commands that do more than read and write keys: FLUSHALL, CONFIG SET, DEBUG, SHUTDOWN and the like
    #[arg(long)]
    dangerous: bool,
    /// With --replay of MONITOR's output: at its own pace, this many times as fast
    #[arg(long, value_name = "X")]
    speed: Option<f64>,
    /// Check that `get` returns what `set` wrote
    #[arg(long)]
    verify: bool,
    /// Write every key once before the run [default: where the mix has `get`]
    #[arg(long, overrides_with = "no_preload")]
    preload: bool,
    /// Write no keys before the run
    #[arg(long)]
    no_preload: bool,
    /// Random seed [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// Seconds that a run may take.
const LONGEST_S: f64 = 604_800.0;

impl WorkloadFlags {
    fn spec(&self) -> anyhow::Result<Spec> {
        let mut spec = match &self.workload {
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                toml::from_str(&text).map_err(|e| anyhow!("{}: {e}", path.display()))?
            }
            None => Spec::default(),
        };
        if let Some(mix) = &self.mix {
            spec.mix = mix.clone();
        }
        if !self.command.is_empty() {
            spec.commands = self.command.clone();
        }
        let text = |flag: &Option<String>, field: &mut String| {
            if let Some(value) = flag {
                *field = value.clone();
            }
        };
        text(&self.key_prefix, &mut spec.key_prefix);
        text(&self.key_distribution, &mut spec.key_distribution);
        text(&self.value_size, &mut spec.value_size);
        spec.keys = self.keys.unwrap_or(spec.keys);
        spec.expire_s = self.expire.or(spec.expire_s);
        spec.multi = self.multi.unwrap_or(spec.multi);
        spec.script = self.script.clone().or(spec.script);
        spec.replay = self.replay.clone().or(spec.replay);
        spec.replay_loop |= self.replay_loop;
        spec.verify |= self.verify;
        spec.seed = self.seed.unwrap_or(spec.seed);
        spec.preload = match (self.preload, self.no_preload) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => spec.preload,
        };
        Ok(spec)
    }
}

impl Bench {
    fn settings(&self, target: Target, is_over_rings: bool, test: Option<&str>) -> anyhow::Result<Settings> {
        if self.seconds.is_some_and(|s| !(s.is_finite() && s > 0.0 && s <= LONGEST_S)) {
            bail!("--seconds takes more than 0 and at most a week (7d)");
        }
        if self.workload.speed.is_some_and(|s| !(s > 0.0 && s <= 1e6)) {
            bail!("--speed takes a factor above 0");
        }
        if self.model != Model::Own && self.connections.is_some() {
            bail!("--connections belongs to --model own; {} says by itself how many there are", self.model);
        }
        let (options, mut spec) = (self.reach.options()?, self.workload.spec()?);
        if let Some(test) = test {
            spec.mix = BTreeMap::from([(test.to_string(), 1.0)]);
        }
        if spec.replay_loop && spec.replay.is_none() {
            bail!("--loop repeats a recording: name one with --replay FILE");
        }
        // Steps are of equal length, so they need one.
        let has_end = self.rate.len() < 2 && (self.requests.is_some() || (spec.replay.is_some() && !spec.replay_loop));
        let length_s = self.seconds.unwrap_or(if has_end { LONGEST_S } else { 10.0 });
        Ok(Settings {
            target,
            rings: is_over_rings,
            plain: self.plain,
            timeout: options.command_timeout,
            options,
            spec,
            dangerous: self.workload.dangerous,
            model: self.model,
            connections: self.connections.unwrap_or(50),
            pipeline: self.pipeline,
            callers: self.callers,
            threads: self.threads,
            rate: (!self.rate.is_empty()).then(|| self.rate.clone()),
            arrivals: match self.arrivals {
                Some(ArrivalsFlag::Poisson) => Arrivals::Poisson,
                _ => Arrivals::Constant,
            },
            speed: self.workload.speed,
            length: Duration::from_secs_f64(length_s),
            requests: self.requests,
            read_from: match self.read_from {
                ReadFromFlag::Primary => ReadFrom::Primary,
                ReadFromFlag::Replica => ReadFrom::Replica,
                ReadFromFlag::Any => ReadFrom::Any,
            },
            lateness_max: self.lateness_max,
            subscribers: self.subscribers,
        })
    }

    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        if self.repeat == 0 || self.repeat > 1000 {
            bail!("--repeat takes 1 to 1000");
        }
        self.check_files()?;
        if output.json() && (self.csv || self.tests.len() > 1) {
            bail!("--format json prints one report; for several tests, or as a table, use --csv without it");
        }
        if self.tests.is_empty() {
            return self.run_test(None, output);
        }
        if let Some(twice) = (1..self.tests.len()).find(|at| self.tests[..*at].contains(&self.tests[*at])) {
            bail!("-t: {} stands there twice; --repeat measures a command several times", self.tests[twice]);
        }
        if let Some(number) = self.tests.iter().find(|test| test.parse::<u32>().is_ok()) {
            bail!("-t takes names of commands, such as set,get; for threads: --threads {number}");
        }
        if let Some((test, instead)) = self.tests.iter().find_map(|test| Some((test, mix::elsewhere(test)?))) {
            bail!("-t: {test} of redis-benchmark is not built in; {instead}");
        }
        let names: Vec<&str> = built_in_names().collect();
        if let Some(unknown) = self.tests.iter().find(|test| !names.contains(&test.as_str())) {
            bail!("-t: no built-in command is called {unknown}{}", did_you_mean(unknown, &names));
        }
        let mut status = 0;
        for (number, test) in self.tests.iter().enumerate() {
            if unslow_interrupt::asked() {
                output.note(&format!("interrupted; not run: {}", self.tests[number..].join(", ")));
                return Ok(2);
            }
            if !self.csv && self.tests.len() > 1 {
                output.print(&format!("-- {test}\n"))?;
            }
            status = status.max(self.run_test(Some(test), output)?);
        }
        Ok(status)
    }

    /// One deployment, or two in turn, with one workload.
    fn run_test(&self, test: Option<&str>, output: &Output) -> anyhow::Result<u8> {
        let is_over_rings = |url: Option<&str>| url.is_some_and(|url| unslow_bypass::reactor::url(url).is_some());
        let (url, against) = (self.url.as_deref(), self.against.as_deref());
        let mut settings = vec![self.settings(self.server.target(url, &self.reach)?, is_over_rings(url), test)?];
        if let Some(other) = against {
            settings.push(self.settings(self.reach.target(other)?, is_over_rings(against), test)?);
        }
        settings.iter().try_for_each(Session::check)?;
        let held = settings.iter().map(|settings| self.held(settings)).collect::<anyhow::Result<Vec<Held>>>()?;
        let mut sessions = Vec::new();
        // Where an earlier benchmark left keys, ours are left as well.
        let keeps = self.keep_keys || held.iter().any(|held| matches!(held, Held::Ours));
        let ran = self.measure(settings, &mut sessions, keeps, test, output);
        if !self.keep_keys {
            let spinner = output.spinner();
            spinner.update("removing the keys that it wrote");
            let removed = sessions.iter().zip(&held).map(|(session, held)| session.remove_keys(held));
            let removed: Vec<Removed> = removed.collect();
            drop(spinner);
            removed.iter().for_each(|removed| tell_removed(removed, output));
        }
        ran
    }

    /// Whose keys are there. Those of others need a person's word, or `--yes`.
    fn held(&self, settings: &Settings) -> anyhow::Result<Held> {
        let held = Held::by(settings).map_err(suggest_plain)?;
        let sentence = match &held {
            _ if self.yes || self.is_agreed.get() => return Ok(held),
            Held::Nothing | Held::Ours => return Ok(held),
            Held::Others { address, keys } => {
                let keys = count(*keys as f64);
                format!("{address} holds keys that no benchmark wrote ({keys} in all); load slows their users")
            }
            Held::Away { masters } => {
                format!(
                    "whether servers hold keys that no benchmark wrote is not known: {masters} masters do not answer"
                )
            }
            Held::Unasked => {
                let address = settings.target.address();
                format!("--plain does not ask whether {address} holds keys that no benchmark wrote")
            }
            Held::Unknown { why, .. } if why.kind == ErrorKind::Closed => {
                return Err(suggest_plain(why.clone().into()));
            }
            Held::Unknown { address, why } => {
                format!("{address} does not tell whether it holds keys that no benchmark wrote: {why}")
            }
        };
        if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
            bail!("{sentence}; no load was sent: add --yes to run anyway");
        }
        anstream::eprint!("{sentence}\nGo on? [y/N] ");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            bail!("stopped; no load was sent");
        }
        self.is_agreed.set(true);
        Ok(held)
    }

    /// Runs, and tells what they brought. Sessions that were prepared are left in `sessions`, whatever fails.
    fn measure(
        &self,
        settings: Vec<Settings>,
        sessions: &mut Vec<Session>,
        keeps: bool,
        test: Option<&str>,
        output: &Output,
    ) -> anyhow::Result<u8> {
        let prefix = settings[0].spec.key_prefix.clone();
        let seen = RefCell::default();
        let live = Live { output, prefix, keeps, seen, spinner: output.spinner() };
        for settings in settings {
            sessions.push(Session::prepare(settings, &mut |p| live.tell(p)).map_err(suggest_plain)?);
        }
        if sessions.len() > 1 {
            // The first to run would pay for what is cold.
            sessions.iter_mut().try_for_each(Session::warm_up)?;
        }
        let mut measured = Measured { runs: vec![Vec::new(); sessions.len()], latency: None };
        let (ran, logged) = with_log(self.hlog.as_deref(), |log| measured.in_turn(self.repeat, sessions, &live, log));
        drop(live);
        let Measured { mut runs, latency } = measured;
        // A deployment that vanishes between two runs does not take the first ones' results with it.
        let failed = match ran {
            Err(e) if runs[0].is_empty() => return Err(e),
            ran => ran.err(),
        };
        if runs[0].is_empty() {
            bail!("interrupted before the first run; nothing was measured");
        }
        // What was not measured on both sides is on neither.
        let whole = |r: &Vec<Run>| r.iter().take_while(|run| !run.interrupted).count();
        let rounds = runs.iter().map(whole).min().unwrap_or(0);
        if runs.len() > 1 && rounds > 0 {
            runs.iter_mut().for_each(|r| r.truncate(rounds));
        }
        let mut reports: Vec<Report> = sessions.iter().zip(runs).map(|(session, runs)| session.report(runs)).collect();
        if reports.len() > 1 {
            let pair = format!("{}-{}", reports[0].at_ms, std::process::id());
            reports.iter_mut().for_each(|r| r.pair = Some(pair.clone()));
        }
        let comparison = match &reports[..] {
            [a, b] if rounds > 0 => Some(Comparison { reports: reports.clone(), ..unslow_bench::compare(a, b) }),
            _ => None,
        };
        let mut trouble: Vec<anyhow::Error> = failed.into_iter().collect();
        trouble.extend(self.write_files(&reports, comparison.as_ref(), latency.as_ref()));
        trouble.extend(logged.err().map(anyhow::Error::from));
        match (output.json(), &comparison) {
            (true, Some(comparison)) => output.print_json(comparison)?,
            (true, None) => output.print_json(&reports[0])?,
            (false, _) if self.csv => {
                let is_first = test.is_none_or(|test| self.tests.first().is_some_and(|first| first == test));
                let head = if is_first { csv::head() } else { String::new() };
                output.print(&(head + &csv::rows(&reports[0])))?;
            }
            // A line for each, as redis-benchmark -q prints it.
            (false, None) if output.quiet && test.is_some() => {
                let name = test.unwrap_or_default();
                output.print(&format!("{name}: {}\n", text::closing(&reports[0])))?;
            }
            (false, _) => {
                for report in &reports {
                    output.print(&(text::report(report, output.verbose) + "\n"))?;
                }
                if let Some(comparison) = &comparison {
                    output.print(&text::comparison(comparison))?;
                }
            }
        }
        let broken: Vec<String> =
            reports.iter().flat_map(|report| limits::broken(&self.fail_if, &report.runs)).collect();
        for line in &broken {
            anstream::eprintln!("{line}");
        }
        if trouble.is_empty() {
            let is_doubted = reports.iter().flat_map(|r| &r.runs).any(|r| !r.valid);
            return Ok(u8::from(is_doubted || !broken.is_empty()));
        }
        let sentences: Vec<String> = trouble.iter().map(|e| format!("{e:#}")).collect();
        bail!("{}", sentences.join("; "));
    }

    /// Files that cannot be written are reported before an hour of load, not after. What stands in them stays until
    /// then.
    fn check_files(&self) -> anyhow::Result<()> {
        let mut files: Vec<&PathBuf> =
            [&self.save, &self.save_against, &self.html, &self.hgrm, &self.hlog].into_iter().flatten().collect();
        files.iter().try_for_each(|path| writable(path))?;
        files.sort();
        if let Some(pair) = files.windows(2).find(|pair| pair[0] == pair[1] && !pair[0].starts_with("/dev")) {
            bail!("{} is given for two results; give each its own file", pair[0].display());
        }
        Ok(())
    }

    /// Writes what was asked for, and returns what could not be written.
    fn write_files(
        &self,
        reports: &[Report],
        comparison: Option<&Comparison>,
        latency: Option<&Histogram<u64>>,
    ) -> Vec<anyhow::Error> {
        let mut trouble = Vec::new();
        let mut keep = |path: &Option<PathBuf>, make: &dyn Fn() -> anyhow::Result<String>| {
            let Some(path) = path else { return };
            let written = make().and_then(|text| replace(path, &text));
            trouble.extend(written.err().map(|e| e.context(format!("{}: could not be written", path.display()))));
        };
        keep(&self.save, &|| Ok(serde_json::to_string_pretty(&reports[0])? + "\n"));
        keep(&self.save_against, &|| {
            Ok(reports.get(1).map(serde_json::to_string_pretty).transpose()?.unwrap_or_default() + "\n")
        });
        keep(&self.html, &|| page::render(reports, comparison));
        keep(&self.hgrm, &|| Ok(latency.map(percentile_table).unwrap_or_default()));
        trouble
    }
}

/// What the runs brought so far: it is there also when a later run fails.
struct Measured {
    /// By session.
    runs: Vec<Vec<Run>>,
    /// Of the first session, all runs together.
    latency: Option<Histogram<u64>>,
}

impl Measured {
    /// Runs the sessions in turn, A B, B A, A B, so that neither is always the first. `log` takes each second of the
    /// first.
    fn in_turn(
        &mut self,
        repeat: usize,
        sessions: &mut [Session],
        live: &Live<'_>,
        log: &mut Logged<'_>,
    ) -> anyhow::Result<()> {
        let mut begun = 0;
        for round in 0..repeat {
            let mut order: Vec<usize> = (0..sessions.len()).collect();
            order.rotate_left(round % sessions.len());
            for side in order {
                if sessions[side].asked_to_end() {
                    return Ok(());
                }
                let (run, histogram) = sessions[side].run(&mut |p| {
                    if let (Progress::Second(second, latency), 0) = (&p, side) {
                        log(begun + second.at_s, latency);
                    }
                    live.tell(p);
                })?;
                if side == 0 {
                    begun += run.timeline.last().map_or(0, |s| s.at_s + 1);
                    match &mut self.latency {
                        Some(total) => total.add(&histogram)?,
                        None => self.latency = Some(histogram),
                    }
                }
                self.runs[side].push(run);
            }
        }
        Ok(())
    }
}

/// Suggests --plain where the peer closed the connection.
fn suggest_plain(e: BenchError) -> anyhow::Error {
    match &e {
        BenchError::Client(why) if why.kind == ErrorKind::Closed => {
            anyhow!("{e}. A proxy without HELLO, INFO or COMMAND closes as well: try --plain")
        }
        _ => e.into(),
    }
}

fn tell_removed(removed: &Removed, output: &Output) {
    if !removed.stay.is_empty() {
        output.note(&format!("keys that {} may have written stay there", removed.stay.join(", ")));
    }
    if let Some(why) = &removed.failed {
        anstream::eprintln!("keys of this benchmark are left there: {}", unslow_views::plain(why));
    }
}

/// What is shown while it runs.
struct Live<'a> {
    output: &'a Output,
    prefix: String,
    /// Whether keys that it wrote are to stay.
    keeps: bool,
    /// Answers of each second so far.
    seen: RefCell<Vec<u64>>,
    spinner: crate::output::Spinner,
}

impl Live<'_> {
    fn tell(&self, progress: Progress) {
        match progress {
            Progress::Preload { done: 0, total } => self.spinner.note(
                self.output,
                &format!(
                    "writing {} keys first, {}...; they {} (--no-preload leaves it out)",
                    count(total as f64),
                    self.prefix,
                    if self.keeps { "stay there" } else { "are removed at the end" }
                ),
            ),
            Progress::Preload { done, total } if done < total => {
                self.spinner.update(&format!(
                    "writing the keys first: {} of {}",
                    count(done as f64),
                    count(total as f64)
                ));
            }
            Progress::Preload { .. } => {}
            Progress::Second(second, _) => {
                let mut seen = self.seen.borrow_mut();
                if second.at_s == 0 {
                    seen.clear();
                }
                seen.push(second.answered);
                self.spinner.update(&format!("{}  {}", line(second), bars(&seen)));
            }
            Progress::Event(event) => self.spinner.keep(&format!("{:>6.2} s  {}", event.at_s, event.text)),
        }
    }
}

/// The last twenty seconds' throughput, drawn.
fn bars(seen: &[u64]) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let last = &seen[seen.len().saturating_sub(20)..];
    let top = last.iter().copied().max().unwrap_or(0).max(1);
    last.iter().map(|n| STEPS[(n * 7 / top) as usize]).collect()
}

fn line(second: &Second) -> String {
    let mut line = format!(
        "{:>4} s  {:>10}/s  p50 {:>8}  p99 {:>8}  p99.9 {:>8}  max {:>8}",
        second.at_s + 1,
        count(second.answered as f64),
        time_us(second.latency_us_p50),
        time_us(second.latency_us_p99),
        time_us(second.latency_us_p99_9),
        time_us(second.latency_us_max)
    );
    if second.waiting > 0 {
        let _ = write!(line, "  waiting {}", count(second.waiting as f64));
    }
    for k in &second.error_kinds {
        let _ = write!(line, "  {} {}", k.kind, count(k.count as f64));
    }
    line
}

/// Writes a file beside the old one and puts it in its place: a full disk costs nobody the earlier result.
fn replace(path: &std::path::Path, text: &str) -> anyhow::Result<()> {
    if path.exists() && !path.is_file() {
        return Ok(std::fs::write(path, text)?); // a pipe or a device
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(".part");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    match written {
        // The file may be written, but its directory may not.
        Err(e) if e.kind() != std::io::ErrorKind::StorageFull => Ok(std::fs::write(path, text)?),
        other => Ok(other?),
    }
}
