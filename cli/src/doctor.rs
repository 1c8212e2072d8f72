//! `unslow doctor`: discover, look, judge, report.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use clap::{Args, ValueEnum};
use unslow_client::{Options, Secret, Target, TlsOptions, acl_rule, discover};
use unslow_doctor::{Change, Report, Severity, diagnose, diff};
use unslow_facts::{Facts, Host};
use unslow_probe::Settings;
use unslow_topology::Info;

use crate::output::{Output, style};
use crate::{html, text};

/// What makes the exit status 1.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    Risk,
    Low,
    Medium,
    High,
    Critical,
    Never,
}

/// How to reach the servers; shared by every verb that talks to them.
#[derive(Args, Clone)]
pub struct Reach {
    /// ACL user [also in the URL]
    #[arg(long)]
    pub user: Option<String>,
    /// File that holds the password; UNSLOW_PASSWORD works too
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// CA certificate of the servers (PEM)
    #[arg(long, value_name = "FILE")]
    pub cacert: Option<PathBuf>,
    /// Client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of the client certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Accept any certificate
    #[arg(long)]
    pub insecure: bool,
    /// Name expected in the certificate
    #[arg(long, value_name = "NAME")]
    pub server_name: Option<String>,
    /// Seconds to wait for a connection or an answer
    #[arg(long, default_value_t = 3.0, value_name = "S")]
    pub timeout: f64,
    /// RESP version to speak
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(2..=3), value_name = "2|3")]
    pub resp: u8,
}

impl Reach {
    pub fn options(&self) -> anyhow::Result<Options> {
        if !(self.timeout > 0.0 && self.timeout <= 3600.0) {
            bail!("--timeout takes seconds, more than 0 and at most 3600");
        }
        Ok(Options {
            connect_timeout: Duration::from_secs_f64(self.timeout),
            command_timeout: Duration::from_secs_f64(self.timeout),
            tls: TlsOptions {
                ca: self.cacert.clone(),
                cert_and_key: self.cert.clone().zip(self.key.clone()),
                insecure: self.insecure,
                server_name: self.server_name.clone(),
            },
            name: Some("unslow"),
            protocol: self.resp,
        })
    }

    /// The URL, completed by flags and environment. The URL's own words win.
    pub fn target(&self, url: &str) -> anyhow::Result<Target> {
        let shared_memory = unslow_bypass::reactor::url(url);
        let mut target = Target::parse(shared_memory.as_deref().unwrap_or(url))?;
        if shared_memory.is_some()
            && let Some(unslow_client::Endpoint::Tcp(_, port)) = target.endpoints.first()
            && !unslow_bypass::reactor::is_served(*port)
        {
            bail!(
                "no server at port {port} runs with `unslow bypass` (unslow bypass ls); start it so: unslow bypass -- redis-server --port {port}"
            );
        }
        target.user = target.user.or_else(|| self.user.clone());
        if target.password.is_none() {
            target.password = match &self.password_file {
                Some(path) => {
                    let text =
                        fs::read_to_string(path).with_context(|| format!("{}: no password file", path.display()))?;
                    Some(Secret::new(text.trim_end_matches(['\r', '\n'])))
                }
                None => std::env::var("UNSLOW_PASSWORD").ok().filter(|p| !p.is_empty()).map(Secret::new),
            };
        }
        Ok(target)
    }
}

#[derive(Args)]
#[command(
    after_help = "Examples:\n  unslow doctor redis://10.0.0.1:7000\n  UNSLOW_PASSWORD=... unslow doctor rediss://ops@cache.example.com --html report.html\n  unslow doctor redis+sentinel://10.0.0.1,10.0.0.2/mymaster --format json\n  unslow doctor --from incident.json"
)]
pub struct Doctor {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port; the first that answers is used
    #[arg(value_name = "URL", required_unless_present_any = ["from", "print_acl"])]
    urls: Vec<String>,
    /// Length of the window between the two samples, as 10s, 500ms or 2m
    #[arg(long, default_value = "10s", value_parser = parse_duration, value_name = "TIME")]
    window: Duration,
    /// Write the facts to a file
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Diagnose saved facts, without looking at anything
    #[arg(long, value_name = "FILE", conflicts_with_all = ["urls", "save", "host"])]
    from: Option<PathBuf>,
    /// Facts of a server's machine, made there by `unslow host --save FILE`
    #[arg(long, value_name = "FILE")]
    host: Vec<PathBuf>,
    /// Do not look into this machine
    #[arg(long)]
    no_host: bool,
    /// Only these rules
    #[arg(long, value_name = "RULE", value_delimiter = ',', value_parser = rule_name)]
    only: Vec<String>,
    /// Write a self-contained page
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Least severity that makes the exit status 1
    #[arg(long, value_enum, default_value = "low", value_name = "SEVERITY")]
    fail_on: FailOn,
    /// Compare with an earlier report (--format json)
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// Print the remedies as a script: what needs no choice is run, the rest are comments
    #[arg(long, conflicts_with = "diff")]
    fix_plan: bool,
    /// Show key names in place of hashes
    #[arg(long)]
    show_keys: bool,
    /// Print the least ACL user a diagnosis needs, for the version at URL or given here (as 7.0), and exit
    #[arg(long, value_name = "VERSION", num_args = 0..=1, default_missing_value = "ask")]
    print_acl: Option<String>,
    #[command(flatten)]
    reach: Reach,
}

fn rule_name(text: &str) -> Result<String, String> {
    let known: Vec<&str> = unslow_doctor::ALL.iter().map(|r| r.id).collect();
    known
        .contains(&text)
        .then(|| text.to_string())
        .ok_or_else(|| format!("no such rule; there are {}", known.join(", ")))
}

/// `10s`, `500ms`, `2m`, or bare seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let (number, scale) = if let Some(n) = text.strip_suffix("ms") {
        (n, 0.001)
    } else if let Some(n) = text.strip_suffix('m') {
        (n, 60.0)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1.0)
    };
    match number.parse::<f64>() {
        Ok(n) if n * scale >= 0.5 && n * scale <= 86400.0 => Ok(Duration::from_secs_f64(n * scale)),
        Ok(_) => Err("between 500ms and a day".into()),
        Err(_) => Err("a time such as 10s, 500ms or 2m was expected".into()),
    }
}

impl Doctor {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        if let Some(version) = &self.print_acl {
            return self.acl(version, output);
        }
        if self.fix_plan && output.json() {
            bail!("--fix-plan prints a script; the remedies stand in --format json as well, without it");
        }
        let facts = match &self.from {
            Some(path) => {
                let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
                Facts::from_json(&text).with_context(|| path.display().to_string())?
            }
            None => self.look(output)?,
        };
        if let Some(path) = &self.save {
            let text = serde_json::to_string(&facts)?;
            fs::write(path, text).with_context(|| format!("{}: the facts could not be saved", path.display()))?;
        }
        let report = diagnose(&facts, &self.only);
        // Nobody answered with figures: that is no clean bill of health. What is known without them may still be told.
        if facts.live().next().is_none() && report.findings.is_empty() {
            let denied = "INFO is denied to this user; unslow doctor --print-acl shows the rights it needs";
            let why = facts.nodes.iter().find_map(|n| n.unreachable.clone()).unwrap_or_else(|| denied.into());
            bail!("nothing could be measured: {why}");
        }
        if let Some(path) = &self.html {
            let page = html::page(&report, &facts)?;
            fs::write(path, page).with_context(|| format!("{}: the page could not be written", path.display()))?;
            output.note(&format!("page written to {}", path.display()));
        }
        if self.fix_plan {
            output.print(&text::fix_plan(&report))?;
        } else if output.json() {
            output.print_json(&report)?;
        } else {
            output.print(&text::report(&report, output.verbose))?;
        }
        if let Some(path) = &self.diff {
            self.compare(path, &report, output)?;
        }
        Ok(self.exit_code(&report))
    }

    fn exit_code(&self, report: &Report) -> u8 {
        let least = match self.fail_on {
            FailOn::Risk => Severity::Risk,
            FailOn::Low => Severity::Low,
            FailOn::Medium => Severity::Medium,
            FailOn::High => Severity::High,
            FailOn::Critical => Severity::Critical,
            FailOn::Never => return 0,
        };
        u8::from(report.findings.iter().any(|f| f.severity >= least))
    }

    fn look(&self, output: &Output) -> anyhow::Result<Facts> {
        let options = self.reach.options()?;
        let hosts = self.host.iter().map(|path| {
            let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
            serde_json::from_str::<Host>(&text)
                .with_context(|| format!("{}: not a file of unslow host --save", path.display()))
        });
        let hosts = hosts.collect::<anyhow::Result<Vec<Host>>>()?;
        let mut last = anyhow!("no URL given");
        for url in &self.urls {
            let target = self.reach.target(url)?;
            let deployment = match discover(&target, &options) {
                Ok(deployment) => deployment,
                Err(e) => {
                    last = e.into();
                    continue;
                }
            };
            let settings = Settings {
                window: self.window,
                options,
                show_keys: self.show_keys,
                host: !self.no_host,
                hosts,
                url: target.url(),
            };
            let what = format!("looking at {} servers", deployment.members.len());
            let _bar = output.countdown(&what, self.window + Duration::from_millis(300));
            return Ok(unslow_probe::run(&deployment, &settings));
        }
        Err(last)
    }

    fn compare(&self, path: &PathBuf, report: &Report, output: &Output) -> anyhow::Result<()> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let before: Report = serde_json::from_str(&text)
            .with_context(|| format!("{}: not a report of unslow doctor --format json", path.display()))?;
        for line in diff(&before, report) {
            let (mark, how) = match line.change {
                Change::New => (style::BAD, "new"),
                Change::Gone => (style::GOOD, "gone"),
                Change::Stays => (style::FAINT, "stays"),
            };
            let was = line.before.unwrap_or_default();
            let now = line.after.map(|a| if was.is_empty() { a } else { format!("{was}  ->  {a}") }).unwrap_or(was);
            // With JSON on stdout the comparison is for the person.
            let text = format!("{mark}{how:>5}{mark:#}  {}: {now}\n", line.id);
            if output.json() {
                output.note(text.trim_end());
            } else {
                output.print(&text)?;
            }
        }
        Ok(())
    }

    fn acl(&self, version: &str, output: &Output) -> anyhow::Result<u8> {
        // `--print-acl URL` reads as naturally as `URL --print-acl`.
        let is_version = version.starts_with(|c: char| c.is_ascii_digit())
            && version.split('.').all(|p| p.parse::<u32>().is_ok())
            && version.split('.').count() < 4;
        let (level, sentinel) = if !is_version {
            let url = self.urls.first().map(String::as_str).or(Some(version).filter(|v| *v != "ask"));
            let url = url.context("give a URL to ask, or a version: unslow doctor --print-acl 7.0")?;
            let mut connection = unslow_client::ReadOnly::open(&self.reach.target(url)?, &self.reach.options()?)?;
            let info = Info::parse(&connection.call(&["INFO", "server"])?.text().unwrap_or_default());
            (info.redis_level(), info.mode() == Some("sentinel"))
        } else {
            let mut parts = version.split('.').map(str::parse);
            let (Some(Ok(major)), minor) = (parts.next(), parts.next()) else {
                bail!("{version:?} is no version; 7.0 or 6.2 was expected")
            };
            ((major, minor.and_then(Result::ok).unwrap_or(0)), false)
        };
        match acl_rule(level, sentinel) {
            Some(rule) => output.print(&format!("{rule}\n"))?,
            None => {
                output.note("before 6.0 there are no ACLs: whoever has the password may do everything; unslow sends nothing but reads");
                return Ok(1);
            }
        }
        Ok(0)
    }
}
