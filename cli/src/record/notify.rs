//! Tells incidents to a command and to a webhook, one after the other and apart from the recording: what hangs there
//! holds up nothing but the next notification.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::json;
use unslow_doctor::{Incident, Turn};

/// Version of what a program reads on its standard input.
const SCHEMA: &str = "unslow.incident/1";
/// Notifications that wait for those before.
const WAITING: usize = 100;
/// A command that takes longer is ended.
const COMMAND_PATIENCE: Duration = Duration::from_secs(60);
/// For each attempt to reach a webhook.
const POST_PATIENCE: Duration = Duration::from_secs(10);
/// Before another attempt.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// For the notification in progress when the recording ends.
const END_PATIENCE: Duration = Duration::from_secs(15);
const NAP: Duration = Duration::from_millis(50);

/// Where incidents are told.
#[derive(Clone, Default)]
pub struct Listeners {
    /// Run with `sh -c`.
    pub command: Option<String>,
    /// An http or https URL.
    pub webhook: Option<String>,
}

struct Letter {
    event: &'static str,
    document: String,
}

/// Sends incidents to the listeners from its own thread.
pub struct Notifier {
    /// Numbers of incidents count from then on, unix time in ms.
    started_ms: i64,
    letters: Option<SyncSender<Letter>>,
    thread: Option<JoinHandle<()>>,
}

impl Notifier {
    /// Fails where a webhook is none, or there is no thread.
    pub fn start(listeners: Listeners, started_ms: i64) -> anyhow::Result<Notifier> {
        let post = listeners.webhook.map(Webhook::new).transpose()?;
        if post.is_none() && listeners.command.is_none() {
            return Ok(Notifier { started_ms, letters: None, thread: None });
        }
        let (letters, taken) = sync_channel(WAITING);
        let run = move || deliver(&taken, listeners.command.as_deref(), post.as_ref());
        let thread = Builder::new().name("notify".into()).spawn(run)?;
        Ok(Notifier { started_ms, letters: Some(letters), thread: Some(thread) })
    }

    /// Whether there are any listeners.
    pub fn is_needed(&self) -> bool {
        self.letters.is_some()
    }

    pub fn tell(&self, turn: &Turn) {
        let Some(letters) = &self.letters else { return };
        let (event, incident) = parts(turn);
        let text = format!("{event}: {} ({}): {}", incident.rule, incident.deployment, incident.title);
        let document = json!({
            "schema": SCHEMA,
            "event": event,
            "text": text,
            "recorder_started_ms": self.started_ms,
            "incident": incident,
        });
        let document = document.to_string();
        if letters.try_send(Letter { event, document }).is_err() {
            eprintln!("unslow: an incident was not told: {WAITING} others wait");
        }
    }
}

pub fn parts(turn: &Turn) -> (&'static str, &Incident) {
    match turn {
        Turn::Began(incident) => ("began", incident),
        Turn::Worse(incident) => ("worse", incident),
        Turn::Over(incident) => ("over", incident),
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        drop(self.letters.take());
        let Some(thread) = self.thread.take() else { return };
        let end = Instant::now() + END_PATIENCE;
        while !thread.is_finished() && Instant::now() < end {
            std::thread::sleep(NAP);
        }
        if thread.is_finished() {
            let _ = thread.join();
        }
    }
}

fn deliver(letters: &Receiver<Letter>, command: Option<&str>, webhook: Option<&Webhook>) {
    for letter in letters {
        if let Some(command) = command
            && let Err(why) = run(command, &letter)
        {
            eprintln!("unslow: --on-incident: {why}");
        }
        if let Some(webhook) = webhook
            && let Err(why) = webhook.post(&letter.document)
        {
            eprintln!("unslow: --webhook: {why}");
        }
    }
}

fn run(command: &str, letter: &Letter) -> Result<(), String> {
    let mut shell = Command::new("sh");
    // In its own process group, so that a hung command is killed together with its children. It must not see passwords.
    shell.args(["-c", command]).env("UNSLOW_EVENT", letter.event).env_remove("UNSLOW_PASSWORD").process_group(0);
    let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    let writer = child.stdin.take().map(|mut stdin| {
        let document = letter.document.clone();
        // A program that does not read is none the worse.
        std::thread::spawn(move || drop(stdin.write_all(document.as_bytes())))
    });
    let status = wait(&mut child)?;
    drop(writer);
    if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) }
}

fn wait(child: &mut Child) -> Result<ExitStatus, String> {
    let end = Instant::now() + COMMAND_PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < end => std::thread::sleep(NAP),
            Ok(None) => {
                end_group(child);
                let _ = child.wait();
                return Err(format!("it was ended after {} s", COMMAND_PATIENCE.as_secs()));
            }
            Err(e) => return Err(e.to_string()),
        }
    }
}

fn end_group(child: &Child) {
    if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Takes the JSON of incidents by POST.
struct Webhook {
    url: String,
    agent: ureq::Agent,
}

impl Webhook {
    fn new(url: String) -> anyhow::Result<Webhook> {
        let is_https = url.starts_with("https://");
        let host = url.parse::<ureq::http::Uri>().ok().and_then(|uri| uri.host().map(str::to_string));
        if (!is_https && !url.starts_with("http://")) || host.is_none_or(|host| host.is_empty()) {
            anyhow::bail!("--webhook takes a URL with http:// or https:// and a host");
        }
        let mut config = ureq::Agent::config_builder()
            .timeout_global(Some(POST_PATIENCE))
            // One that answers with another place is set up wrongly, and a token would go there.
            .max_redirects(0)
            .user_agent("unslow");
        if is_https {
            config = config.tls_config(tls()?);
        }
        Ok(Webhook { url, agent: config.build().into() })
    }

    /// Three attempts, for what may pass.
    fn post(&self, document: &str) -> Result<(), String> {
        let mut pauses = PAUSES.iter();
        loop {
            let sent = self.agent.post(&self.url).content_type("application/json").send(document);
            let why = match sent {
                Ok(reply) if reply.status().is_success() => return Ok(()),
                Ok(reply) => format!("it answers {}", reply.status()),
                Err(ureq::Error::StatusCode(code)) if code < 500 && code != 429 => {
                    return Err(format!("it answers {code}"));
                }
                Err(ureq::Error::StatusCode(code)) => format!("it answers {code}"),
                Err(ureq::Error::TooManyRedirects) => return Err("it answers with another place".into()),
                // The URL may hold a token.
                Err(e) => e.to_string().replace(&self.url, "URL"),
            };
            match pauses.next() {
                Some(pause) => std::thread::sleep(*pause),
                None => return Err(why),
            }
        }
    }
}

/// The system's certificates.
fn tls() -> anyhow::Result<ureq::tls::TlsConfig> {
    let found = rustls_native_certs::load_native_certs();
    if found.certs.is_empty() {
        anyhow::bail!("--webhook: this machine has no CA certificates; install ca-certificates, or set SSL_CERT_FILE");
    }
    let roots = found.certs.iter().map(|der| ureq::tls::Certificate::from_der(der).to_owned());
    let tls = ureq::tls::TlsConfig::builder()
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .root_certs(roots.into())
        .build();
    Ok(tls)
}
