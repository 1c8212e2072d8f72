//! What to record and whom to tell, from the command line or a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::Deserialize;
use unslow_client::Target;
use unslow_record::Keys;
use unslow_units::parse_bytes;

use super::RecordArguments;
use super::notify::Listeners;
use crate::fail_on::FailOn;
use crate::reach::Reach;
use crate::toml_text;
use crate::typed::{lasting, retention, stall};
use crate::web::Http;

/// All of it.
pub struct Plan {
    pub targets: Vec<Target>,
    pub dir: PathBuf,
    pub keep: Duration,
    pub max_size: Option<u64>,
    pub every: Duration,
    pub stall: Duration,
    pub window: Duration,
    pub metrics: Option<String>,
    pub http: Http,
    pub silences: Option<PathBuf>,
    pub listeners: Listeners,
    pub notify_from: FailOn,
    pub keys: Keys,
    pub host: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    dir: Option<PathBuf>,
    keep: Option<String>,
    max_size: Option<String>,
    every: Option<String>,
    stall: Option<String>,
    window: Option<String>,
    metrics: Option<String>,
    http: Option<String>,
    http_token: Option<PathBuf>,
    http_cert: Option<PathBuf>,
    http_key: Option<PathBuf>,
    silences: Option<PathBuf>,
    on_incident: Option<String>,
    webhook: Option<String>,
    notify_from: Option<String>,
    show_keys: Option<bool>,
    salt_file: Option<PathBuf>,
    host: Option<bool>,
    #[serde(default)]
    deployment: Vec<Watched>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "[[deployment]] with url = \"...\"")]
struct Watched {
    url: String,
    user: Option<String>,
    password_file: Option<PathBuf>,
}

impl Plan {
    /// Of the command line, which may name a file.
    pub fn of(arguments: &RecordArguments) -> anyhow::Result<Plan> {
        let given = Plan {
            targets: targets(arguments)?,
            dir: arguments.dir.clone(),
            keep: arguments.keep,
            max_size: arguments.max_size,
            every: arguments.every,
            stall: arguments.stall,
            window: arguments.window,
            metrics: arguments.metrics.clone(),
            http: arguments.http.clone(),
            silences: arguments.silences.clone(),
            listeners: Listeners { command: arguments.on_incident.clone(), webhook: arguments.webhook.clone() },
            notify_from: arguments.notify_from,
            keys: keys(arguments.show_keys, arguments.salt_file.clone(), &arguments.dir),
            host: !arguments.no_host,
        };
        match &arguments.config {
            Some(path) => {
                let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
                given.with(&text, path, &arguments.reach).with_context(|| path.display().to_string())
            }
            None => Ok(given),
        }
    }

    /// What a file says; the rest is as without one. Paths in it are relative to where it lies.
    fn with(mut self, text: &str, path: &Path, reach: &Reach) -> anyhow::Result<Plan> {
        let file: File = toml_text::parse(text)?;
        let beside = path.parent().unwrap_or(Path::new(""));
        if file.deployment.is_empty() {
            bail!("no deployment: add [[deployment]] with url = \"redis://...\"");
        }
        for (number, watched) in (1..).zip(&file.deployment) {
            let password_file = watched.password_file.as_ref().map(|path| beside.join(path));
            let reach = Reach {
                user: watched.user.clone().or_else(|| reach.user.clone()),
                password_file: password_file.or_else(|| reach.password_file.clone()),
                ..reach.clone()
            };
            self.targets.push(reach.target(&watched.url).with_context(|| format!("deployment {number}"))?);
        }
        self.dir = file.dir.map_or(self.dir, |dir| beside.join(dir));
        self.keep = typed(file.keep, "keep", retention)?.unwrap_or(self.keep);
        self.max_size = typed(file.max_size, "max_size", parse_bytes)?;
        self.every = typed(file.every, "every", lasting)?.unwrap_or(self.every);
        self.stall = typed(file.stall, "stall", stall)?.unwrap_or(self.stall);
        self.window = typed(file.window, "window", lasting)?.unwrap_or(self.window);
        let severity = |text: &str| FailOn::from_str(text, false);
        self.notify_from = typed(file.notify_from, "notify_from", severity)?.unwrap_or(self.notify_from);
        self.silences = file.silences.map(|silences| beside.join(silences));
        self.listeners = Listeners { command: file.on_incident, webhook: file.webhook };
        self.metrics = file.metrics;
        let at = |path: Option<PathBuf>| path.map(|path| beside.join(path));
        self.http = Http {
            http: self.http.http.or(file.http),
            http_token: self.http.http_token.or(at(file.http_token)),
            http_cert: self.http.http_cert.or(at(file.http_cert)),
            http_key: self.http.http_key.or(at(file.http_key)),
        };
        if self.http.http_cert.is_some() != self.http.http_key.is_some() {
            bail!("http_cert and http_key belong together");
        }
        if file.show_keys == Some(true) && file.salt_file.is_some() {
            bail!("show_keys and salt_file: keys are shown or hashed; remove one of them");
        }
        let salt_file = file.salt_file.map(|salt| beside.join(salt));
        self.keys = keys(file.show_keys.unwrap_or(false), salt_file, &self.dir);
        self.host = file.host.unwrap_or(true);
        Ok(self)
    }
}

/// Those of the command line; none beside a file.
fn targets(arguments: &RecordArguments) -> anyhow::Result<Vec<Target>> {
    match &arguments.urls[..] {
        [] if arguments.config.is_some() => Ok(Vec::new()),
        [] => Ok(vec![arguments.server.target(None, &arguments.reach)?]),
        urls => urls.iter().map(|url| arguments.server.target(Some(url), &arguments.reach)).collect(),
    }
}

/// Without a file for all recorders each recording has its own.
fn keys(shown: bool, salt_file: Option<PathBuf>, dir: &Path) -> Keys {
    if shown { Keys::Shown } else { Keys::HashedBy(salt_file.unwrap_or_else(|| dir.join("salt"))) }
}

/// A value that is typed as on the command line.
fn typed<T, E: std::fmt::Display>(
    text: Option<String>,
    name: &str,
    parse: impl Fn(&str) -> Result<T, E>,
) -> anyhow::Result<Option<T>> {
    text.map(|text| parse(&text).map_err(|e| anyhow::anyhow!("{name}: {e}"))).transpose()
}
