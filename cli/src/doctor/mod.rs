//! `unslow doctor`: discover, look, judge, report.
//!
//! Whatever happens, every format but text prints one document: a report, or one that says what failed.

mod given;
mod inventory;
mod keys_seen;
pub mod page;
pub mod text;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use unslow_client::{Error, ErrorKind, Options, Target, discover};
use unslow_doctor::{Change, Conclusion, Finding, Report, Severity, Silence, When, diagnose, diagnose_but, diff};
use unslow_facts::{Facts, Host};
use unslow_interrupt::Guard;
use unslow_probe::Settings;
use unslow_record::Tape;

use crate::fail_on::FailOn;
use crate::output::{Format, Output, invalid, style};
use crate::reach::Reach;
use crate::server::Server;
use crate::{acl, deployments, exchange, explain, files, fix_plan, incidents, silences, typed};

/// The length of a window in a recording.
const RECORDED: Duration = Duration::from_secs(60);

#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Exit status: 0 nothing found (or less than --fail-on), 1 findings (a server that does not answer \
                  is one), 2 could not look: this user lacks rights, or nothing could be \
                  concluded.\n\nExamples:\n  unslow doctor redis://10.0.0.1:7000\n  \
                  UNSLOW_PASSWORD=... unslow doctor rediss://ops@cache.example.com --html report.html\n  unslow doctor \
                  redis+sentinel://10.0.0.1,10.0.0.2/mymaster --format json\n  unslow doctor 10.0.0.1:7000 --only \
                  keys_command     # is it still there?\n  unslow doctor --from incident.json\n  unslow doctor \
                  10.0.0.1:7000 --client-error timeout.txt\n  kubectl logs app | unslow doctor --client-error -   # \
                  without a server"
)]
pub struct Doctor {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port; the first
    /// that answers is used
    #[arg(value_name = "URL")]
    urls: Vec<String>,
    /// Length of the window between the two samples, such as 10s, 500ms or 2m; Ctrl-C ends it early, and the diagnosis
    /// still follows
    #[arg(long, default_value = "10s", value_parser = typed::lasting, value_name = "TIME")]
    window: Duration,
    /// Write the facts to a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Diagnose saved facts, without contacting anything
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["urls", "save", "host", "for", "server_host", "server_port", "server_uri"]
    )]
    from: Option<PathBuf>,
    /// Diagnose a recording made by `unslow record`, without contacting anything; where it has several deployments, URL
    /// says which
    #[arg(long, value_name = "DIR", conflicts_with_all = ["from", "host"])]
    recording: Option<PathBuf>,
    /// With --recording: from this time on, such as "yesterday 01:00", "3h ago", 05:45 or 2026-11-20T01:00Z [default:
    /// the last that was recorded]
    #[arg(long, value_name = "TIME", requires = "recording", allow_hyphen_values = true)]
    at: Option<String>,
    /// With --recording: for this long [default: 1m]; otherwise the same as --window
    #[arg(long, value_parser = typed::lasting, value_name = "TIME", conflicts_with = "window")]
    r#for: Option<Duration>,
    /// With --recording: when the incident of this number was worst (`unslow incidents` lists them)
    #[arg(long, value_name = "N", requires = "recording", conflicts_with = "at")]
    incident: Option<u32>,
    /// Facts about a server's machine, collected there by `unslow host --save FILE`
    #[arg(long, value_name = "FILE")]
    host: Vec<PathBuf>,
    /// Error messages from a client library, as evidence; works without a URL too. `-` is standard input; may be
    /// repeated
    #[arg(long, value_name = "FILE")]
    client_error: Vec<PathBuf>,
    /// A server's log, as evidence; works without a URL too. `-` is standard input; may be repeated
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
    /// What `unslow keys URL --format json` has printed, as evidence: which keys take the memory, have no
    /// TTL or are hot
    #[arg(long, value_name = "FILE", conflicts_with = "inventory")]
    keys: Option<PathBuf>,
    /// Do not collect facts about this machine
    #[arg(long)]
    no_host: bool,
    /// Check only these rules, one line each: still there, not there now, or could not look (`unslow explain` lists
    /// them)
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = rule_name)]
    only: Vec<String>,
    /// Write the report as a self-contained HTML page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Lowest severity that makes the exit status 1 [default: low; with --only, whatever is there now]
    #[arg(long, value_enum, value_name = "SEVERITY")]
    fail_on: Option<FailOn>,
    /// File of known findings (docs/record.md): they are listed separately and do not count for the exit status
    #[arg(long, value_name = "FILE", conflicts_with = "only")]
    silences: Option<PathBuf>,
    /// --silences is an unslow.toml, and this the deployment that is looked at
    #[arg(long, hide = true, requires = "silences")]
    silences_of: Option<String>,
    /// Compare with an earlier report (made with --format json)
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// Print the remedies as a script (nothing is run): steps that need no decision are commands, the rest are comments
    #[arg(long, conflicts_with = "diff")]
    fix_plan: bool,
    /// Diagnose all deployments of a file (docs/fleet.md), in one table [default: unslow.toml in ~/.config/unslow or
    /// /etc/unslow]
    #[arg(
        long,
        value_name = "FILE",
        num_args = 0..=1,
        conflicts_with_all = [
            "urls", "server_host", "server_port", "server_uri", "server_pass", "server_tls", "server_db",
            "from", "recording", "host", "save", "html", "diff",
            "fix_plan", "client_error", "log", "silences", "print_acl"
        ]
    )]
    inventory: Option<Option<PathBuf>>,
    /// With --inventory: how many deployments at a time
    #[arg(
        long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64), value_name = "N",
        requires = "inventory"
    )]
    parallel: u8,
    /// With --inventory: write each report there, as NAME.json and NAME.html
    #[arg(long, value_name = "DIR", requires = "inventory")]
    reports: Option<PathBuf>,
    /// Show key names instead of hashes
    #[arg(long)]
    show_keys: bool,
    /// Print the minimal ACL user for a diagnosis, for the server at URL or the version given here (7.0, valkey-8.1),
    /// and exit
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = acl::ASK)]
    print_acl: Option<String>,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

fn rule_name(text: &str) -> Result<String, explain::UnknownRule> {
    explain::rule(text).map(|rule| rule.id.to_string())
}

/// A document that a run has yet to print.
struct Owed {
    url: String,
    format: Format,
    fail_on: Option<FailOn>,
}

static OWED: Mutex<Option<Owed>> = Mutex::new(None);

fn locked<T>(what: &'static Mutex<T>) -> MutexGuard<'static, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints the document that is still owed, if any, saying what failed.
pub fn fail_document(why: &str) {
    let begun = Instant::now();
    let mut owed = loop {
        match OWED.try_lock() {
            Ok(owed) => break owed,
            Err(TryLockError::Poisoned(owed)) => break owed.into_inner(),
            // The document is being printed. Where its reader does not read, a signal still ends the run.
            Err(TryLockError::WouldBlock) if begun.elapsed() > Duration::from_secs(1) => return,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if let Some(owed) = owed.take() {
        print_failed(owed, why);
    }
}

/// The same for a command line that could not be read; clap has said on stderr what is wrong with it.
/// Whether it is printed.
pub fn refuse(error: &clap::Error, words: &[String]) -> bool {
    error.use_stderr() && refuse_because(words, &invalid(error))
}

/// The same for another reason.
pub fn refuse_because(words: &[String], why: &str) -> bool {
    let apart = words.windows(2).find(|w| w[0] == "--format").map(|w| w[1].as_str());
    let named = apart.or_else(|| words.iter().find_map(|w| w.strip_prefix("--format=")));
    let format = named.and_then(|name| Format::from_str(name, false).ok()).filter(|format| *format != Format::Text);
    let format = format.filter(|_| words.iter().any(|w| w == "doctor"));
    if let Some(format) = format {
        print_failed(Owed { url: String::new(), format, fail_on: None }, why);
    }
    format.is_some()
}

/// Prints the document that is owed. After a signal that printed one there is none: two documents would be as bad as
/// none.
fn print_owed(print: impl FnOnce(&Owed) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut owed = locked(&OWED);
    owed.take().map_or(Ok(()), |owed| print(&owed))
}

fn print_document(owed: &Owed, report: &Report) -> anyhow::Result<()> {
    let output = Output { format: owed.format, quiet: true, verbose: false };
    match output.exchange() {
        Some(format) => {
            output.print_document(&exchange::report(format, report, |finding| fails(report, finding, owed.fail_on))?)
        }
        None => output.print_json(report),
    }
}

fn print_failed(owed: Owed, why: &str) {
    let _ = print_document(&owed, &Report::failed(&owed.url, now_ms(), why));
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// Opens the window: while the guard lives, a signal ends the window, and the diagnosis of what was seen follows.
fn open_window() -> Guard {
    unslow_interrupt::guard("ending the window; the diagnosis of what was seen follows (Ctrl-C again: exit without it)")
}

impl Doctor {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        // A JSON inventory that fails has the document of every other verb.
        let is_owed = output.format != Format::Text && (self.inventory.is_none() || output.exchange().is_some());
        if is_owed {
            let url = match self.urls.first() {
                Some(url) => without_password(url),
                None if self.server.is_named() => self.first().map_or_else(|_| String::new(), |target| target.url()),
                None => String::new(),
            };
            *locked(&OWED) = Some(Owed { url, format: output.format, fail_on: self.fail_on });
        }
        let result = self.run_checked(output);
        if let Err(e) = &result {
            fail_document(&format!("{e:#}"));
        }
        result
    }

    fn run_checked(&self, output: &Output) -> anyhow::Result<u8> {
        if let Some(file) = &self.inventory {
            return inventory::run(self, file.as_deref(), output);
        }
        if let Some(version) = &self.print_acl {
            if output.exchange().is_some() {
                bail!("--print-acl prints text or json");
            }
            let named = (!self.urls.is_empty() || self.server.is_named()).then(|| self.first()).transpose()?;
            let (server, sentinel) = acl::server(version, named, &self.reach)?;
            let rule = unslow_client::acl_rule(server, sentinel);
            if output.json() {
                print_owed(|_| output.print_json(&acl::document(rule.as_deref())))?;
            }
            return acl::print(rule.as_deref(), output);
        }
        if self.fix_plan && output.format != Format::Text {
            bail!(
                "--fix-plan prints a script; for a document, omit it: all formats but prometheus have the remedies too"
            );
        }
        // Whatever can be wrong with files is wrong before the window, not after it.
        let before = self.diff.as_deref().map(earlier).transpose()?;
        let hosts = self.host.iter().map(|path| host(path)).collect::<anyhow::Result<Vec<Host>>>()?;
        self.check_paths()?;
        let (silences, over) = self.silences()?;
        over.iter().for_each(|over| output.note(over));
        let walk = self.keys.as_deref().map(keys_seen::read).transpose()?;
        let words = given::read(&self.client_error, &self.log, now_ms())?;
        // The window stays registered to the end: a signal after it does not lose what was seen.
        let (mut facts, _window) = match &self.from {
            Some(path) => (saved(path)?, None),
            None if self.recording.is_some() => (self.recorded()?, None),
            None if self.has_words_alone() && words.is_empty() => {
                bail!("--log: no event that the doctor recognises, and without a URL there is nothing else to look at")
            }
            None if self.has_words_alone() => (Facts { at_ms: now_ms(), hosts, ..Facts::of_nothing("") }, None),
            None => self.look(hosts, output).map(|(facts, window)| (facts, Some(window)))?,
        };
        words.add_to(&mut facts);
        if let Some(walk) = walk {
            walk.add_to(&mut facts);
        }
        let report = if self.only.is_empty() { diagnose_but(&facts, &silences) } else { diagnose(&facts, &self.only) };
        let printed = self.print(&report, output).and_then(|()| match &before {
            Some(before) => compare(before, &report, output),
            None => Ok(()),
        });
        let lost = self.keep(&facts, &report, output);
        for why in &lost {
            eprintln!("unslow: {}", text::clean_lines(&format!("{why:#}")));
        }
        printed?;
        Ok(if lost.is_empty() { exit_status(&report, self.fail_on) } else { 2 })
    }

    /// Known findings, and those that are over, as sentences.
    fn silences(&self) -> anyhow::Result<(Vec<Silence>, Vec<String>)> {
        match (&self.silences, &self.silences_of) {
            (None, _) => Ok((Vec::new(), Vec::new())),
            (Some(path), None) => silences::read(path),
            (Some(path), Some(name)) => {
                let file = deployments::read(path)?;
                Ok((file.silences_of(name), file.over))
            }
        }
    }

    fn check_paths(&self) -> anyhow::Result<()> {
        if self.save.is_some() && self.save == self.html {
            bail!("--save and --html name the same file");
        }
        self.save.iter().chain(&self.html).try_for_each(|path| files::check(path))
    }

    /// Writes the files that were asked for. What fails is no reason to lose the report.
    fn keep(&self, facts: &Facts, report: &Report, output: &Output) -> Vec<anyhow::Error> {
        let mut lost = Vec::new();
        if let Some(path) = &self.save {
            let saved = serde_json::to_string(facts).map_err(Into::into).and_then(|text| files::write(path, &text));
            lost.extend(saved.err().map(|e| e.context("the facts were not saved")));
        }
        if let Some(path) = &self.html {
            match page::render(report, facts).and_then(|page| files::write(path, &page)) {
                Ok(()) => output.note(&format!("page written to {}", path.display())),
                Err(e) => lost.push(e.context("the page was not written")),
            }
        }
        lost
    }

    fn print(&self, report: &Report, output: &Output) -> anyhow::Result<()> {
        if self.fix_plan {
            return output.print(&fix_plan::script(report));
        }
        if output.format != Format::Text {
            return print_owed(|owed| print_document(owed, report));
        }
        output.print(&text::report(report, output.verbose))
    }

    /// The first server that is named, or the one that is meant without a name.
    fn first(&self) -> anyhow::Result<Target> {
        self.server.target(self.urls.first().map(String::as_str), &self.reach)
    }

    /// Whether errors or logs were given, and no server.
    fn has_words_alone(&self) -> bool {
        let has_words = !self.client_error.is_empty() || !self.log.is_empty();
        has_words && self.urls.is_empty() && !self.server.is_named()
    }

    fn look(&self, hosts: Vec<Host>, output: &Output) -> anyhow::Result<(Facts, Guard)> {
        let options = self.reach.options()?;
        let mut targets = vec![self.first()?];
        for url in self.urls.iter().skip(1) {
            targets.push(self.server.target(Some(url), &self.reach)?);
        }
        let mut failed: Vec<(&Target, Error)> = Vec::new();
        for target in &targets {
            match discover(target, &options) {
                Ok(deployment) => {
                    let window = open_window();
                    let settings = self.settings(target, options, hosts, &window);
                    let what = format!("looking at {} servers", deployment.members.len());
                    let _bar = output.countdown(&what, self.window() + Duration::from_millis(300));
                    return Ok((unslow_probe::run(&deployment, &settings), window));
                }
                Err(e) => failed.push((target, e)),
            }
        }
        // A server that does not serve is what this is about. What is wrong with the question, or needs another one, is
        // an error.
        if let Some((_, of_the_question)) = failed.iter().find(|(_, e)| !is_of_the_server(e)) {
            return Err(of_the_question.clone().into());
        }
        let window = open_window();
        let each = failed.iter().map(|(target, error)| {
            unslow_probe::unreachable(target, error, &self.settings(target, options.clone(), hosts.clone(), &window))
        });
        let facts = each.reduce(with_nodes_of).ok_or_else(|| anyhow!("no URL given"))?;
        Ok((facts, window))
    }

    /// Of a live diagnosis.
    fn window(&self) -> Duration {
        self.r#for.unwrap_or(self.window)
    }

    /// The facts of a window of a recording.
    fn recorded(&self) -> anyhow::Result<Facts> {
        let Some(dir) = &self.recording else { bail!("--recording takes a directory") };
        let tape = Tape::open(dir)?;
        if let Some(number) = self.incident {
            let (incident, window) = incidents::numbered(dir, number)?;
            let from = i64::try_from(incident.worst_ms)?;
            return Ok(tape.facts(&incident.deployment, from..from + window.as_millis() as i64)?);
        }
        let named = (!self.urls.is_empty() || self.server.is_named()).then(|| self.first()).transpose()?;
        let named = named.map(|target| target.url());
        let url = tape.deployment(named.as_deref())?;
        let length = self.r#for.unwrap_or(RECORDED);
        let window = incidents::window(&tape, self.at.as_deref(), length)?;
        Ok(tape.facts(&url, window)?)
    }

    fn settings(&self, target: &Target, options: Options, hosts: Vec<Host>, window: &Guard) -> Settings {
        Settings {
            window: self.window(),
            options,
            show_keys: self.show_keys,
            host: !self.no_host,
            hosts,
            url: target.url(),
            stop: Some(window.flag()),
        }
    }
}

/// Of several URLs that do not answer, each is a subject of the report.
fn with_nodes_of(mut first: Facts, other: Facts) -> Facts {
    for node in other.nodes {
        if first.node(&node.address).is_none() {
            first.nodes.push(node);
        }
    }
    first.cost.seconds += other.cost.seconds;
    first
}

/// A URL for the report, also of one that cannot be read.
fn without_password(url: &str) -> String {
    match Target::parse(url) {
        Ok(target) => target.url(),
        Err(_) => {
            let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
            let host = rest.rsplit('@').next().and_then(|rest| rest.split('?').next()).unwrap_or("");
            // Without an @ what is behind a colon may be a password whose host was forgotten.
            let host = if rest.contains('@') { host } else { host.split(':').next().unwrap_or("") };
            if scheme.is_empty() || rest.contains('@') { host.to_string() } else { format!("{scheme}://{host}") }
        }
    }
}

/// Whether a failed discovery is a finding about the server at the address: it is down, hangs, is full, is in protected
/// mode, still loads or runs a script past its limit.
fn is_of_the_server(e: &Error) -> bool {
    use ErrorKind::*;
    matches!(e.kind, Unreachable | Timeout | Closed | MaxClients | Protected | Loading) || e.code() == Some("BUSY")
}

/// 2 where nothing could be concluded, 1 for findings from `fail_on` on, else 0.
fn exit_status(report: &Report, fail_on: Option<FailOn>) -> u8 {
    if matches!(report.verdict, Conclusion::Unreachable | Conclusion::Blind | Conclusion::NoServer) {
        return 2;
    }
    u8::from(report.findings.iter().any(|finding| fails(report, finding, fail_on)))
}

/// Whether this finding makes the exit status 1.
fn fails(report: &Report, finding: &Finding, fail_on: Option<FailOn>) -> bool {
    match fail_on {
        // The question was whether it is there now, however little it costs. What is only worth knowing is no fault.
        None if !report.only.is_empty() => finding.when != When::Past && finding.severity_now() > Severity::Info,
        asked => asked.unwrap_or(FailOn::Low).least().is_some_and(|least| finding.severity_now() >= least),
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn saved(path: &Path) -> anyhow::Result<Facts> {
    Facts::from_json(&read(path)?).with_context(|| path.display().to_string())
}

fn host(path: &Path) -> anyhow::Result<Host> {
    let host: Host = serde_json::from_str(&read(path)?)
        .with_context(|| format!("{}: not a file written by unslow host --save", path.display()))?;
    // Its numbers are checked as those of a facts file are.
    let facts = Facts { hosts: vec![host.clone()], ..Facts::of_nothing("") };
    Facts::from_json(&serde_json::to_string(&facts)?).with_context(|| path.display().to_string())?;
    Ok(host)
}

/// A report that was kept; those of earlier versions too.
fn earlier(path: &Path) -> anyhow::Result<Report> {
    serde_json::from_str(&read(path)?)
        .with_context(|| format!("{}: not a report written by unslow doctor --format json", path.display()))
}

fn compare(before: &Report, report: &Report, output: &Output) -> anyhow::Result<()> {
    for line in diff(before, report) {
        let (mark, how) = match line.change {
            Change::New => (style::BAD, "new"),
            Change::Gone => (style::GOOD, "gone"),
            Change::Stays => (style::FAINT, "stays"),
        };
        let clean = |text: String| text::clean_lines(&text).replace('\n', " ");
        let was = line.before.map(clean).unwrap_or_default();
        let now =
            line.after.map(clean).map(|a| if was.is_empty() { a } else { format!("{was}  ->  {a}") }).unwrap_or(was);
        // With a document on stdout, the comparison goes to stderr, for the person.
        let text = format!("{mark}{how:>5}{mark:#}  {}: {now}\n", clean(line.id));
        if output.format != Format::Text {
            output.note(text.trim_end());
        } else {
            output.print(&text)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(only: &[&str]) -> Report {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/doctor/tests/facts/keys_command.json");
        let only: Vec<String> = only.iter().map(ToString::to_string).collect();
        diagnose(&saved(Path::new(path)).unwrap(), &only)
    }

    #[test]
    fn the_exit_status_follows_the_verdict_and_fail_on() {
        let mut report = recorded(&[]);
        assert_eq!(report.verdict, Conclusion::Causes);
        assert_eq!((exit_status(&report, None), exit_status(&report, Some(FailOn::Never))), (1, 0));
        for could_not_look in [Conclusion::Blind, Conclusion::Unreachable, Conclusion::NoServer] {
            report.verdict = could_not_look;
            assert_eq!((exit_status(&report, None), exit_status(&report, Some(FailOn::Never))), (2, 2));
        }
        report.verdict = Conclusion::Risks;
        report.findings.truncate(1);
        report.findings[0].severity = Severity::Risk;
        let status = |report: &Report, fail_on| exit_status(report, Some(fail_on));
        assert_eq!((exit_status(&report, None), status(&report, FailOn::Low)), (0, 0));
        assert_eq!((status(&report, FailOn::Risk), status(&report, FailOn::Info)), (1, 1));
        // What is over is a risk at most, whatever it cost then.
        (report.findings[0].severity, report.findings[0].when) = (Severity::Critical, When::Past);
        assert_eq!((exit_status(&report, None), status(&report, FailOn::Risk)), (0, 1));
        for nothing in [Conclusion::NoneFound, Conclusion::Idle] {
            (report.verdict, report.findings) = (nothing, Vec::new());
            assert_eq!((exit_status(&report, None), status(&report, FailOn::Info)), (0, 0));
        }
    }

    #[test]
    fn a_rule_that_was_asked_for_and_is_there_now_fails_however_little_it_costs() {
        let mut report = recorded(&["keys_command"]);
        report.findings[0].severity = Severity::Risk;
        report.verdict = Conclusion::Risks;
        assert_eq!((exit_status(&report, None), exit_status(&report, Some(FailOn::Low))), (1, 0));
        report.findings[0].when = When::Past;
        assert_eq!(exit_status(&report, None), 0);
        // "It is not your Redis" is no fault.
        (report.findings[0].when, report.findings[0].severity) = (When::Now, Severity::Info);
        assert_eq!((exit_status(&report, None), exit_status(&report, Some(FailOn::Info))), (0, 1));
    }

    #[test]
    fn every_url_that_does_not_answer_is_a_subject() {
        use unslow_facts::Node;
        use unslow_topology::Role;
        let facts = |url: &str, addresses: &[&str]| {
            let mut facts = Facts::of_nothing(url);
            facts.nodes.extend(addresses.iter().map(|a| Node::new(a, Role::Unknown)));
            facts.cost.seconds = 1.0;
            facts
        };
        let all =
            [facts("redis://a:1", &["a:1"]), facts("redis://b:1", &["b:1", "a:1"]), facts("redis://c:1", &["c:1"])];
        let merged = all.into_iter().reduce(with_nodes_of).unwrap();
        let addresses: Vec<&str> = merged.nodes.iter().map(|n| n.address.as_str()).collect();
        assert_eq!(addresses, ["a:1", "b:1", "c:1"]);
        assert_eq!((merged.url.as_str(), merged.cost.seconds), ("redis://a:1", 3.0));
    }

    #[test]
    fn a_document_that_a_signal_has_printed_is_not_printed_again() {
        *locked(&OWED) = None;
        print_owed(|_| panic!("a second document")).unwrap();
    }

    #[test]
    fn no_password_is_repeated() {
        for url in
            ["redis://:s3cret@h:notaport", "redis://u:s3cret@h:1", "http://u:s3@s3cret@h?s3cret", "redis://:a/s3cret@h"]
        {
            assert!(!without_password(url).contains("s3cret"), "{url}: {}", without_password(url));
        }
    }
}
