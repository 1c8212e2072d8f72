//! `unslow bench`: load, honest tails.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use unslow_bench::{
    Arrivals, Comparison, Histogram, Latency, Model, Progress, ReadFrom, Report, Run, Second, Session, Settings, Spec,
    compare, percentile_table, time, with_log,
};
use unslow_doctor::measure::{count, percent};

use crate::bench_html;
use crate::doctor::Reach;
use crate::output::{Output, style, table, writable};

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
    after_help = "Placeholders in commands: {key} {value} {seq} {now} {sha}; {{ and }} are plain braces.\n\nExamples:\n  unslow bench redis://10.0.0.1:6379 --rate 20000 --seconds 30\n  unslow bench localhost:7000 --connections 50 --pipeline 16 --mix get=0.9,set=0.1 --value-size 16-1024\n  unslow bench localhost --model shared --callers 32 --command \"HSET user:{key} f {value}\"\n  unslow bench localhost --replay monitor.txt --speed 2\n  unslow bench redis://a --against redis://b --repeat 5 --save a.json --save-against b.json"
)]
pub struct Bench {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port
    #[arg(value_name = "URL")]
    url: String,
    /// Open loop: requests per second in all; several rates (10000,20000) are steps of equal length
    #[arg(long, value_name = "N[,N...]", value_delimiter = ',')]
    rate: Vec<f64>,
    #[arg(
        long,
        value_enum,
        value_name = "HOW",
        requires = "rate",
        help = "How requests arrive at --rate: evenly spaced, or independent of each other as many users are [default: constant]"
    )]
    arrivals: Option<ArrivalsFlag>,
    /// Length of a run
    #[arg(long, default_value_t = 10.0, value_name = "S")]
    seconds: f64,
    /// End after so many requests
    #[arg(long, value_name = "N")]
    requests: Option<u64>,
    /// Connections to each server, for --model own [default: 50]
    #[arg(short, long, value_name = "N")]
    connections: Option<usize>,
    /// Requests a connection has under way; a closed loop sends them in one write
    #[arg(short = 'P', long, default_value_t = 1, value_name = "N")]
    pipeline: usize,
    /// Threads of the generator; one makes some 200,000 requests/s unpipelined
    #[arg(short, long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// How application threads share connections: own, pool:N (Jedis), shared (Lettuce), multiplex:N
    #[arg(long, default_value = "own", value_parser = Model::parse, value_name = "MODEL")]
    model: Model,
    /// Application threads of pool, shared and multiplex [default: 32; with --rate as many as it takes]
    #[arg(long, value_name = "N")]
    callers: Option<usize>,
    /// Which servers answer reads
    #[arg(long, value_enum, default_value = "primary", value_name = "WHICH")]
    read_from: ReadFromFlag,
    /// The run is invalid when the generator looked at a thousandth of the requests later than this
    #[arg(long, default_value = "5ms", value_parser = short_time, value_name = "TIME")]
    lateness_max: Duration,

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

    #[command(flatten)]
    workload: WorkloadFlags,
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
    #[arg(long, value_name = "NAME=SHARE,...", value_parser = mix)]
    mix: Option<BTreeMap<String, f64>>,
    /// A command template, as "HSET user:{key} f {value}", or NAME=TEMPLATE for --mix
    #[arg(long, value_name = "TEMPLATE")]
    command: Vec<String>,
    /// Size of the key space [default: 100000]
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// What built-in commands put in front of a key's number [default: unslow:]
    #[arg(long, value_name = "TEXT")]
    key_prefix: Option<String>,
    /// uniform, zipf[:EXPONENT], hot[:KEYS:REQUESTS] (shares) or sequential [default: uniform]
    #[arg(long, value_name = "HOW")]
    key_distribution: Option<String>,
    /// Bytes of a value: 64, 16-1024, or sizes with weights 64:0.7,1024:0.3 [default: 64]
    #[arg(long, value_name = "SIZE")]
    value_size: Option<String>,
    /// Seconds until a key that `set` writes expires
    #[arg(long, value_name = "S")]
    expire: Option<u64>,
    /// Send so many commands in a MULTI/EXEC block, on one key
    #[arg(long, value_name = "N")]
    multi: Option<u32>,
    /// Lua script to load; {sha} in a template is its digest
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// Send recorded commands: MONITOR's output, or a command a line
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// With --replay of MONITOR's output: at its own pace, so many times as fast
    #[arg(long, value_name = "X")]
    speed: Option<f64>,
    /// Compare what `get` brings with what `set` wrote
    #[arg(long)]
    verify: bool,
    /// Write every key once before the run [default: where the mix has `get`]
    #[arg(long, overrides_with = "no_preload")]
    preload: bool,
    /// Do not
    #[arg(long)]
    no_preload: bool,
    /// Seed of all that is drawn [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

/// `200us`, `1ms`, `0.5s`.
pub fn short_time(text: &str) -> Result<Duration, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        _ => return Err("write a time as 200us, 1ms or 0.5s".into()),
    };
    let number: f64 = text[..text.len() - unit.len()].parse().map_err(|_| "write a time as 200us, 1ms or 0.5s")?;
    Ok(Duration::from_secs_f64((number * scale).min(3600.0)))
}

fn mix(text: &str) -> Result<BTreeMap<String, f64>, String> {
    // Shares for all of them or for none: `get=0.9,set` would give set more than get.
    if text.contains('=') && text.split(',').any(|part| !part.contains('=')) {
        return Err("some have a share and some do not; write get=0.9,set=0.1".into());
    }
    let mut mix = BTreeMap::new();
    for part in text.split(',') {
        let (name, share) = part.split_once('=').unwrap_or((part, "1"));
        let number = share.trim().parse().map_err(|_| format!("{share:?} is no share; write get=0.9,set=0.1"))?;
        if mix.insert(name.trim().to_string(), number).is_some() {
            return Err(format!("{} stands there twice", name.trim()));
        }
    }
    Ok(mix)
}

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
    fn settings(&self, url: &str) -> anyhow::Result<Settings> {
        if !(self.seconds.is_finite() && self.seconds > 0.0 && self.seconds <= 604_800.0) {
            bail!("--seconds takes more than 0 and at most a week (604800)");
        }
        if self.workload.speed.is_some_and(|s| !(s > 0.0 && s <= 1e6)) {
            bail!("--speed takes a factor above 0");
        }
        if self.model != Model::Own && self.connections.is_some() {
            bail!("--connections belongs to --model own; {} says by itself how many there are", self.model);
        }
        let options = self.reach.options()?;
        Ok(Settings {
            target: self.reach.target(url)?,
            rings: unslow_bypass::reactor::url(url).is_some(),
            timeout: options.command_timeout,
            options,
            spec: self.workload.spec()?,
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
            length: Duration::from_secs_f64(self.seconds),
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
        // Files that cannot be written are said before an hour of load, not after; what stands in them stays until then.
        let mut files: Vec<&PathBuf> =
            [&self.save, &self.save_against, &self.html, &self.hgrm, &self.hlog].into_iter().flatten().collect();
        files.iter().try_for_each(|path| writable(path))?;
        files.sort();
        if let Some(pair) = files.windows(2).find(|pair| pair[0] == pair[1] && !pair[0].starts_with("/dev")) {
            bail!("{} is given for two results; give each a file of its own", pair[0].display());
        }
        let urls: Vec<&String> = [Some(&self.url), self.against.as_ref()].into_iter().flatten().collect();
        let settings = urls.iter().map(|url| self.settings(url)).collect::<anyhow::Result<Vec<_>>>()?;
        let prefix = settings[0].spec.key_prefix.clone();
        let live = Live { output, prefix, seen: RefCell::default(), spinner: output.spinner() };
        let mut sessions = settings
            .into_iter()
            .map(|settings| Session::prepare(settings, &mut |p| live.tell(p)))
            .collect::<Result<Vec<_>, _>>()?;
        if sessions.len() > 1 {
            // The first to run would pay for what is cold.
            sessions.iter_mut().try_for_each(Session::warm_up)?;
        }
        let mut runs: Vec<Vec<Run>> = vec![Vec::new(); sessions.len()];
        let mut total: Option<Histogram<u64>> = None;
        let (ran, logged) = with_log(self.hlog.as_deref(), |log| -> anyhow::Result<()> {
            let mut begun = 0;
            for round in 0..self.repeat {
                // A B, B A, A B: neither is always the first.
                let mut order: Vec<usize> = (0..sessions.len()).collect();
                order.rotate_left(round % sessions.len());
                for side in order {
                    if unslow_bench::interrupted() {
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
                        match &mut total {
                            Some(total) => total.add(&histogram)?,
                            None => total = Some(histogram),
                        }
                    }
                    runs[side].push(run);
                }
            }
            Ok(())
        });
        drop(live);
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
            [a, b] if rounds > 0 => Some(Comparison { reports: reports.clone(), ..compare(a, b) }),
            _ => None,
        };
        let mut trouble: Vec<anyhow::Error> = failed.into_iter().collect();
        let mut keep = |path: &Option<PathBuf>, make: &dyn Fn() -> anyhow::Result<String>| {
            let Some(path) = path else { return };
            let written = make().and_then(|text| replace(path, &text));
            trouble.extend(written.err().map(|e| e.context(format!("{}: could not be written", path.display()))));
        };
        keep(&self.save, &|| Ok(serde_json::to_string_pretty(&reports[0])? + "\n"));
        keep(&self.save_against, &|| {
            Ok(reports.get(1).map(serde_json::to_string_pretty).transpose()?.unwrap_or_default() + "\n")
        });
        keep(&self.html, &|| bench_html::page(&reports));
        keep(&self.hgrm, &|| Ok(total.as_ref().map(percentile_table).unwrap_or_default()));
        trouble.extend(logged.err().map(anyhow::Error::msg));
        match (output.json(), &comparison) {
            (true, Some(comparison)) => output.print_json(comparison)?,
            (true, None) => output.print_json(&reports[0])?,
            (false, _) => {
                for report in &reports {
                    output.print(&(text(report, output.verbose) + "\n"))?;
                }
                if let Some(comparison) = &comparison {
                    output.print(&comparison_text(comparison))?;
                }
            }
        }
        if trouble.is_empty() {
            return Ok(u8::from(reports.iter().flat_map(|r| &r.runs).any(|r| !r.valid)));
        }
        let sentences: Vec<String> = trouble.iter().map(|e| format!("{e:#}")).collect();
        bail!("{}", sentences.join("; "));
    }
}

/// What is shown while it runs.
struct Live<'a> {
    output: &'a Output,
    prefix: String,
    /// Answers of each second so far.
    seen: RefCell<Vec<u64>>,
    spinner: crate::output::Spinner,
}

impl Live<'_> {
    fn tell(&self, progress: Progress) {
        match progress {
            Progress::Preload { done: 0, total } => self.output.note(&format!(
                "writing {} keys first, {}...; they stay there (--no-preload leaves it out)",
                count(total as f64),
                self.prefix
            )),
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
        time(second.latency_us_p50),
        time(second.latency_us_p99),
        time(second.latency_us_p99_9),
        time(second.latency_us_max)
    );
    if second.waiting > 0 {
        let _ = write!(line, "  waiting {}", count(second.waiting as f64));
    }
    for k in &second.error_kinds {
        let _ = write!(line, "  {} {}", k.kind, count(k.count as f64));
    }
    line
}

/// The report for people.
pub fn text(report: &Report, verbose: bool) -> String {
    let t = style::TITLE;
    let load = &report.load;
    let kind = serde_json::to_value(report.deployment.kind).ok().and_then(|v| v.as_str().map(|s| s.replace('_', "-")));
    let how = if load.open_loop {
        let rates = load.rate_per_s.iter().map(|r| count(*r)).collect::<Vec<_>>().join(", ");
        let arrivals = load.arrivals.map_or("", |a| match a {
            Arrivals::Constant => "evenly spaced",
            Arrivals::Poisson => "Poisson",
            Arrivals::Recorded => "as recorded",
        });
        if rates.is_empty() {
            format!("open loop, {arrivals}")
        } else {
            format!("open loop, {rates} requests/s {arrivals}")
        }
    } else {
        "closed loop".into()
    };
    let plural = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
    let mut parts = vec![format!("{} to each server", plural(load.connections, "connection"))];
    if let Some(n) = load.in_flight_max.filter(|n| *n > 1) {
        parts.push(format!("{n} requests under way on each"));
    }
    if load.model != "own" {
        parts.push(format!("model {}", load.model));
    }
    parts.extend(load.callers.filter(|_| load.model != "own" || load.open_loop).map(|n| plural(n, "caller")));
    if load.threads > 1 {
        parts.push(plural(load.threads, "generator thread"));
    }
    let mut out = format!(
        "{t}{} {} at {}{t:#}: {how}; {}\n{}\n",
        report.deployment.version,
        kind.unwrap_or_default(),
        report.target,
        parts.join(", "),
        asked(report)
    );
    for (i, run) in report.runs.iter().enumerate() {
        out.push('\n');
        if report.runs.len() > 1 {
            let _ = writeln!(out, "{t}run {} of {}{t:#}", i + 1, report.runs.len());
        }
        out += &run_text(run, verbose);
    }
    if report.runs.len() > 1 {
        let worst = |f: fn(&Run) -> f64| {
            let mut all: Vec<f64> = report.runs.iter().map(f).collect();
            all.sort_by(f64::total_cmp);
            (all[0], all[all.len() / 2], all[all.len() - 1])
        };
        let (low, mid, high) = worst(|r| r.latency.us_p99);
        let (slow, rate, fast) = worst(|r| r.throughput_per_s);
        let invalid = report.runs.iter().filter(|r| !r.valid).count();
        let failed: u64 = report.runs.iter().map(|r| r.refused + r.unanswered).sum();
        let trouble = match (invalid, failed) {
            (0, 0) => "no errors".to_string(),
            (0, n) => format!("{} requests failed", count(n as f64)),
            (i, n) => format!("{i} of the runs INVALID, {} requests failed", count(n as f64)),
        };
        let _ = writeln!(
            out,
            "\nOf {} runs: p99 {} (median; {} to {}), {} requests/s ({} to {}); {trouble}.",
            report.runs.len(),
            time(mid),
            time(low),
            time(high),
            count(rate),
            count(slow),
            count(fast)
        );
    } else if let Some(run) = report.runs.first() {
        let _ = writeln!(out, "\n{}", sentence(run));
    }
    out
}

/// What was asked, in a line.
fn asked(report: &Report) -> String {
    let spec = &report.workload;
    if let Some(recording) = &report.recording {
        let left = match recording.left_out {
            0 => String::new(),
            n => format!(", {} left out that would change their connection", count(n as f64)),
        };
        return format!("a recording of {} commands{left}", count(recording.commands as f64));
    }
    let mut names: Vec<String> = report.runs.first().map_or(Vec::new(), |run| {
        let all: u64 = run.commands.iter().map(|c| c.latency.count).sum();
        let share = |c: &unslow_bench::CommandRun| percent(c.latency.count as f64 / all.max(1) as f64);
        run.commands
            .iter()
            .map(|c| if run.commands.len() > 1 { format!("{} {}", c.name, share(c)) } else { c.name.clone() })
            .collect()
    });
    if spec.multi > 0 {
        names = vec![format!(
            "blocks of {} commands, each a request under the name of its first: {}",
            spec.multi,
            names.join(", ")
        )];
    }
    format!(
        "{}; {} keys {}, values of {} bytes, seed {}",
        names.join(", "),
        count(spec.keys as f64),
        spec.key_distribution,
        spec.value_size,
        spec.seed
    )
}

fn sentence(run: &Run) -> String {
    let errors = match run.refused + run.unanswered {
        0 => "no errors".to_string(),
        n => format!("{} of {} requests failed", count(n as f64), count(run.requests as f64)),
    };
    let what = if run.valid { "" } else { "INVALID: " };
    format!(
        "{what}{} requests/s with p50 {}, p99 {}, p99.9 {}; {errors}.",
        count(run.throughput_per_s),
        time(run.latency.us_p50),
        time(run.latency.us_p99),
        time(run.latency.us_p99_9)
    )
}

fn run_text(run: &Run, verbose: bool) -> String {
    let head = ["", "requests", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "p99.999", "max"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    let mut row = |name: &str, l: &Latency| {
        let times = [l.us_mean, l.us_p50, l.us_p90, l.us_p99, l.us_p99_9, l.us_p99_99, l.us_p99_999, l.us_max];
        let mut row = vec![name.to_string(), count(l.count as f64)];
        row.extend(times.map(|t| if l.count == 0 { "-".to_string() } else { time(t) }));
        rows.push(row);
    };
    row(if run.lateness.is_some() { "from due to answered" } else { "latency" }, &run.latency);
    if run.commands.len() > 1 {
        for command in run.commands.iter().take(if verbose { 200 } else { 12 }) {
            row(&format!("  {}", command.name), &command.latency);
        }
    }
    if let Some(wait) = &run.pool_wait {
        row("  of it until a connection was free", wait);
    }
    if let Some(late) = &run.lateness {
        row("generator's lateness", late);
    }
    if let Some(refused) = &run.refused_latency {
        row("error replies", refused);
    }
    let mut out = table(&rows);
    let busy = run.generator.thread_busy_share.iter().copied().fold(0.0, f64::max);
    let _ = write!(
        out,
        "\n{} answered/s over {:.1} s; the generator used {:.2} us of CPU a request ({} busy)",
        count(run.throughput_per_s),
        run.seconds,
        run.generator.cpu_us_per_request,
        percent(busy)
    );
    match run.server_cpu_us_per_request {
        Some(us) => {
            let _ = writeln!(out, ", the servers {us:.2} us");
        }
        None => {
            let _ = writeln!(out, "; the servers' CPU could not be read on all of them, or was too little to tell");
        }
    }
    if verbose {
        for server in &run.servers {
            let share = server.cpu_share.map_or("unknown".into(), percent);
            let each = server.cpu_us_per_command.map_or("?".into(), |c| format!("{c:.2} us"));
            let _ = writeln!(out, "  {} {}: {share} of a core, {each} a command", server.role, server.address);
        }
    }
    if run.moved + run.ask > 0 {
        let _ =
            writeln!(out, "redirections followed: {} MOVED, {} ASK", count(run.moved as f64), count(run.ask as f64));
    }
    for error in &run.errors {
        let b = style::BAD;
        let _ = writeln!(out, "{b}{}{b:#} {}: {}", count(error.count as f64), error.kind, error.example);
    }
    let seen = |us: f64| if us > 0.0 { time(us) } else { "-".to_string() };
    let troubled = !run.events.is_empty() || run.timeline.iter().any(|s| s.errors > 0 || s.waiting > 1000);
    if troubled && !verbose && run.timeline.len() > 120 {
        let _ = writeln!(
            out,
            "{} seconds and {} events: -v shows them, --html draws them",
            run.timeline.len(),
            run.events.len()
        );
    } else if verbose || troubled {
        out += "\n";
        let mut rows = vec![
            ["second", "answered", "errors", "waiting", "p50", "p99", "max", "connections"]
                .map(str::to_string)
                .to_vec(),
        ];
        for s in &run.timeline {
            let kinds: Vec<String> =
                s.error_kinds.iter().map(|k| format!("{} {}", k.kind, count(k.count as f64))).collect();
            rows.push(vec![
                s.at_s.to_string(),
                count(s.answered as f64),
                if kinds.is_empty() { "0".into() } else { kinds.join(", ") },
                count(s.waiting as f64),
                seen(s.latency_us_p50),
                seen(s.latency_us_p99),
                seen(s.latency_us_max),
                s.connections.to_string(),
            ]);
        }
        out += &table(&rows);
        for event in &run.events {
            let _ = writeln!(out, "{:>6.2} s  {}", event.at_s, event.text);
        }
    }
    if let Some(pubsub) = &run.pubsub {
        let l = &pubsub.latency;
        let _ = writeln!(
            out,
            "{} subscribers got {} of {} messages; from publication to delivery p50 {}, p99 {}, p99.9 {}, longest {}",
            pubsub.subscribers,
            count(pubsub.delivered as f64),
            count(pubsub.expected as f64),
            time(l.us_p50),
            time(l.us_p99),
            time(l.us_p99_9),
            time(l.us_max)
        );
    }
    for doubt in &run.doubts {
        let w = if run.valid { style::WARN } else { style::BAD };
        let _ = writeln!(out, "{w}!{w:#} {doubt}");
    }
    if run.interrupted {
        let _ = writeln!(out, "ended before its time: these are the results so far");
    }
    out
}

#[derive(Args)]
#[command(
    after_help = "Both files are made by `unslow bench --save FILE`, best with --repeat 5 and in turn (--against)."
)]
pub struct Compare {
    /// Report of the first
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// Report of the second
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

impl Compare {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        let (a, b) = (read(&self.a)?, read(&self.b)?);
        let comparison = compare(&a, &b);
        if output.json() {
            output.print_json(&comparison)?;
        } else {
            output.print(&comparison_text(&comparison))?;
        }
        Ok(0)
    }
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

fn read(path: &std::path::Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|e| anyhow!("{}: no report of `unslow bench --save`: {e}", path.display()))?;
    if report.schema != unslow_bench::SCHEMA {
        bail!("{}: its schema is {:?}, and {} was expected", path.display(), report.schema, unslow_bench::SCHEMA);
    }
    Ok(report)
}

fn comparison_text(comparison: &Comparison) -> String {
    let (t, w) = (style::TITLE, style::WARN);
    let side = |s: &unslow_bench::Side| format!("{} at {} ({} runs)", s.version, s.target, s.runs);
    let turn = if comparison.interleaved { ", in turn" } else { "" };
    let mut out = format!("{t}A{t:#} {}\n{t}B{t:#} {}{turn}\n\n", side(&comparison.a), side(&comparison.b));
    for d in &comparison.differences {
        let mark = match d.better {
            Some(true) => format!("{}+{:#}", style::GOOD, style::GOOD),
            Some(false) => format!("{}-{:#}", style::BAD, style::BAD),
            None => " ".to_string(),
        };
        let _ = writeln!(out, "{mark} {}", d.sentence);
    }
    for warning in &comparison.warnings {
        let _ = writeln!(out, "{w}!{w:#} {warning}");
    }
    let _ = writeln!(out, "\n{}", comparison.sentence);
    out
}
