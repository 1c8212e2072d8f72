//! The page: a recording in the browser. What it draws is asked for piece by piece, so it is there at once however long
//! the recording is; `/charts` is the same without script.

mod access;
mod figures;
mod library;
mod plain;

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use minijinja::context;
use serde_json::json;
use unslow_doctor::{Incident, Severity, diagnose_but};
use unslow_record::{Tape, TapeError};
use unslow_status::{Answer, Listen, Pages, Request, Serving, serve_pages};
use unslow_views::{Scope, Tone, View};

pub use access::Http;
use access::{Access, Refusal};
use library::Library;

use crate::{doctor, frame};

/// Version of the JSON of the page's incidents.
const INCIDENTS_SCHEMA: &str = "unslow.page/1";
/// Buckets of the curves, at most: a wide screen has no more places.
const BUCKETS_MAX: u32 = 2_000;
/// One diagnosis is of this long at most: what a longer one would say is what the incidents say.
const DIAGNOSED_MAX_MS: i64 = 86_400_000;
/// The table of servers is of this window at the end of what is shown.
const NODES_MS: i64 = 10_000;
/// How often those who look live are told how far it is recorded, and that we are still here.
const TELL: Duration = Duration::from_secs(2);
const STILL_HERE: Duration = Duration::from_secs(15);
/// A live stream ends after this time; a browser that still shows the page reconnects.
const LIVE: Duration = Duration::from_secs(600);
/// Only what comes from here may run, be shown or be asked for.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; \
                      frame-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Serves the page as long as it lives.
pub struct Web {
    library: Arc<Library>,
    serving: Serving,
}

impl Drop for Web {
    fn drop(&mut self) {
        self.library.end();
    }
}

impl Web {
    /// Of the recording in a directory, which need not have anything in it yet. `window` is what incidents are made of.
    pub fn serve(
        http: &Http,
        address: &str,
        dir: &Path,
        window: Duration,
        silences: Option<PathBuf>,
    ) -> anyhow::Result<Web> {
        http.check(address)?;
        let access = Access::new(http.http_token.as_deref())?;
        let library = Arc::new(Library::new(dir, window, silences));
        let site = Site { access, library: library.clone() };
        let listen = Listen { address, patient: false, tls: http.tls()? };
        let serving = serve_pages(listen, Arc::new(site)).with_context(|| format!("--http {address}"))?;
        let worker = library.clone();
        std::thread::Builder::new().name("page".into()).spawn(move || worker.work())?;
        Ok(Web { library, serving })
    }

    /// What to type into the browser.
    pub fn url(&self, http: &Http) -> String {
        let scheme = if http.http_cert.is_some() { "https" } else { "http" };
        self.serving.address.map_or_else(String::new, |at| format!("{scheme}://{at}/"))
    }
}

/// For the address of the page: which deployment it shows.
pub fn query(url: &str) -> String {
    format!("?url={}", plain::encoded(url))
}

struct Site {
    access: Access,
    library: Arc<Library>,
}

/// Why there is no answer, in words for who asked.
enum Problem {
    /// The request is wrong.
    Asked(String),
    /// Nothing is recorded there.
    Nothing(String),
    Failed(anyhow::Error),
}

impl From<anyhow::Error> for Problem {
    fn from(e: anyhow::Error) -> Problem {
        Problem::Failed(e)
    }
}

impl From<TapeError> for Problem {
    fn from(e: TapeError) -> Problem {
        match e {
            TapeError::Empty { .. } | TapeError::Nothing { .. } => Problem::Nothing(e.to_string()),
            TapeError::Several { .. } | TapeError::Unknown { .. } => Problem::Asked(e.to_string()),
            e => Problem::Failed(e.into()),
        }
    }
}

impl Pages for Site {
    fn answer(&self, request: &Request) -> Answer {
        let answer = match self.access.check(request) {
            Ok(()) => self.page(request).unwrap_or_else(|problem| told(request, &problem)),
            Err(refusal) => refused(refusal),
        };
        answer
            .with("Content-Security-Policy", POLICY)
            .with("X-Content-Type-Options", "nosniff")
            .with("Referrer-Policy", "no-referrer")
            .with("Cache-Control", "no-store")
    }
}

fn refused(refusal: Refusal) -> Answer {
    let plain = "text/plain";
    match refusal {
        Refusal::OtherName => {
            let why = "this page is for the machine it runs on: open it as http://127.0.0.1:PORT/, or start it with \
                       --http-token\n";
            Answer::new("421 Misdirected Request", plain, why)
        }
        Refusal::OtherSite => Answer::new("403 Forbidden", plain, "asked for by another site\n"),
        Refusal::NoToken => {
            // Guessing is slow.
            std::thread::sleep(Duration::from_millis(200));
            let answer =
                Answer::new("401 Unauthorized", plain, "the token of --http-token is needed as the password\n");
            answer.with("WWW-Authenticate", "Basic realm=\"unslow: any user, the token as password\"")
        }
    }
}

/// As a page where a person looks, else in JSON.
fn told(request: &Request, problem: &Problem) -> Answer {
    let (code, words) = match problem {
        Problem::Asked(words) => ("400 Bad Request", words.clone()),
        Problem::Nothing(words) => ("404 Not Found", words.clone()),
        Problem::Failed(e) => ("500 Internal Server Error", format!("{e:#}")),
    };
    if !["/diagnosis", "/charts"].contains(&request.path.as_str()) {
        return Answer::new(code, JSON, json!({ "error": words }).to_string());
    }
    let page = frame::render("problem.html", include_str!("../../templates/problem.html"), context! { words });
    Answer::new(code, HTML, page.unwrap_or_else(|e| format!("{e:#}")))
}

impl Site {
    fn page(&self, request: &Request) -> Result<Answer, Problem> {
        Ok(match request.path.as_str() {
            "/" => {
                let page = frame::render("page.html", include_str!("../../templates/page.html"), context! {})?;
                Answer::ok(HTML, page)
            }
            "/page.js" => Answer::ok(SCRIPT, include_str!("../../assets/page.js")),
            "/uplot.js" => Answer::ok(SCRIPT, include_str!("../../assets/uplot/uPlot.iife.min.js")),
            "/uplot.css" => Answer::ok("text/css", include_str!("../../assets/uplot/uPlot.min.css")),
            "/recording" => self.recording()?,
            "/curves" => self.curves(request)?,
            "/incidents" => self.incidents(request)?,
            "/diagnosis" => self.diagnosis(request)?,
            "/nodes" => self.nodes(request)?,
            "/charts" => self.charts(request)?,
            "/live" => self.live(),
            _ => return Err(Problem::Nothing(format!("there is no {}; the page is at /", request.path))),
        })
    }

    fn recording(&self) -> Result<Answer, Problem> {
        Ok(Answer::ok(JSON, recorded(&*self.library.tape()?).to_string()))
    }

    /// The deployment and the range that are asked for, within what is recorded.
    fn asked(&self, request: &Request) -> Result<Asked, Problem> {
        let tape = self.library.tape()?;
        if tape.deployments().is_empty() {
            return Err(Problem::Nothing("nothing is recorded yet".into()));
        }
        let first = tape.deployments()[0].to_string();
        let url = tape.deployment(Some(&request.parameter("url").unwrap_or(first)))?;
        let span = tape.span();
        let number = |name: &str, otherwise: i64| match request.parameter(name) {
            Some(text) => text
                .parse::<i64>()
                .map_err(|_| Problem::Asked(format!("invalid {name} {text:?}; expected unix time in ms"))),
            None => Ok(otherwise),
        };
        let to_ms = number("to", span.to_ms + 1)?;
        let from_ms = number("from", to_ms.saturating_sub(3_600_000))?;
        if to_ms <= from_ms {
            return Err(Problem::Asked("`to` is not after `from`".into()));
        }
        let range_ms = self.library.within(&tape, from_ms..to_ms);
        let range_ms = range_ms.ok_or_else(|| {
            let [from, to] = [span.from_ms, span.to_ms].map(|ms| crate::when::local_time(ms.max(0) as u64));
            Problem::Nothing(format!("nothing was recorded then: this recording is from {from} to {to}"))
        })?;
        Ok(Asked { tape, url, range_ms })
    }

    /// To make an expensive answer, if it is still waited for when the others are made.
    fn turn(&self, request: &Request) -> Result<MutexGuard<'_, ()>, Problem> {
        let turn = self.library.turn();
        if request.is_abandoned() { Err(Problem::Nothing("the client has left".into())) } else { Ok(turn) }
    }

    fn curves(&self, request: &Request) -> Result<Answer, Problem> {
        let asked = self.asked(request)?;
        let buckets = request.parameter("buckets").and_then(|n| n.parse().ok()).unwrap_or(600).clamp(1, BUCKETS_MAX);
        let _turn = self.turn(request)?;
        let curves = asked.tape.curves(&asked.url, asked.range_ms, buckets);
        Ok(Answer::ok(JSON, figures::json(&curves).to_string()))
    }

    fn incidents(&self, request: &Request) -> Result<Answer, Problem> {
        let asked = self.asked(request)?;
        let told = self.library.incidents(&asked.tape, &asked.url, asked.range_ms);
        let document = json!({
            "schema": INCIDENTS_SCHEMA, "missing": told.missing, "unseen": told.unseen, "unsettled": told.unsettled,
            "windows": told.windows,
            "from_ms": told.from_ms, "window_ms": told.window_ms,
            "incidents": told.incidents.iter().map(row).collect::<Vec<_>>(),
        });
        Ok(Answer::ok(JSON, document.to_string()))
    }

    /// The doctor's report of the range, as a separate page.
    fn diagnosis(&self, request: &Request) -> Result<Answer, Problem> {
        let Asked { tape, url, range_ms } = self.asked(request)?;
        if range_ms.end - range_ms.start > DIAGNOSED_MAX_MS {
            let words = "a diagnosis is of a day at most: zoom in first, or read the incidents of the whole range";
            return Err(Problem::Asked(words.into()));
        }
        let _turn = self.turn(request)?;
        let facts = tape.facts(&url, range_ms)?;
        let report = diagnose_but(&facts, &self.library.silences());
        Ok(Answer::ok(HTML, doctor::page::render(&report, &facts)?))
    }

    /// The servers at the end of the range, as a table.
    fn nodes(&self, request: &Request) -> Result<Answer, Problem> {
        let Asked { tape, url, range_ms } = self.asked(request)?;
        let _turn = self.turn(request)?;
        let facts = tape.facts(&url, (range_ms.end - NODES_MS).max(tape.span().from_ms)..range_ms.end)?;
        let mut table = View::Nodes.of(&facts, &Scope::default());
        table.sort(table.by, false);
        let columns: Vec<_> =
            table.columns.iter().map(|c| context! { title => c.title, about => c.about, n => c.is_figure }).collect();
        let rows: Vec<_> = table
            .rows
            .iter()
            .map(|row| {
                let cells = row.cells.iter().zip(&table.columns);
                let cells: Vec<_> = cells.map(|(cell, c)| context! { text => cell.text, n => c.is_figure }).collect();
                context! { cells, bad => row.tone == Tone::Bad }
            })
            .collect();
        let mut environment = minijinja::Environment::new();
        environment.add_template("nodes.html", include_str!("../../templates/nodes.html")).context("the table")?;
        let html = environment
            .get_template("nodes.html")
            .and_then(|t| t.render(context! { columns, rows, note => table.note }));
        Ok(Answer::ok(HTML, html.context("the table could not be rendered")?))
    }

    fn charts(&self, request: &Request) -> Result<Answer, Problem> {
        let asked = self.asked(request)?;
        let _turn = self.turn(request)?;
        let curves = asked.tape.curves(&asked.url, asked.range_ms.clone(), 400);
        let told = self.library.incidents(&asked.tape, &asked.url, asked.range_ms.clone());
        Ok(Answer::ok(HTML, plain::render(&asked.tape, &asked.url, asked.range_ms, &curves, &told)?))
    }

    /// Streams what is recorded, as it grows.
    fn live(&self) -> Answer {
        let library = self.library.clone();
        let tell = move |to: &mut dyn Write| {
            let (begun, mut told, mut told_at) = (Instant::now(), String::new(), Instant::now());
            while begun.elapsed() < LIVE {
                // What cannot be read for a moment is as it was.
                let now = library.tape().map_or_else(|_| told.clone(), |tape| recorded(&tape).to_string());
                if now != told {
                    write!(to, "event: recorded\ndata: {now}\n\n")?;
                    to.flush()?;
                    (told, told_at) = (now, Instant::now());
                } else if told_at.elapsed() >= STILL_HERE {
                    to.write_all(b": still here\n\n")?;
                    to.flush()?;
                    told_at = Instant::now();
                }
                std::thread::sleep(TELL);
            }
            Ok(())
        };
        Answer::stream("text/event-stream", Box::new(tell))
    }
}

/// What is recorded, from when to when, and at what time the newest of it was.
fn recorded(tape: &Tape) -> serde_json::Value {
    let span = tape.span();
    let deployments: Vec<_> =
        tape.deployments().iter().map(|url| json!({ "url": &**url, "servers": tape.nodes(url).len() })).collect();
    json!({
        "schema": INCIDENTS_SCHEMA, "from_ms": span.from_ms, "to_ms": span.to_ms, "newest_ms": tape.newest_ms(),
        "deployments": deployments,
    })
}

/// What a request is about.
struct Asked {
    tape: Arc<Tape>,
    url: Arc<str>,
    range_ms: Range<i64>,
}

/// An incident as the page's script draws it.
fn row(incident: &Incident) -> serde_json::Value {
    json!({
        "rule": incident.rule, "title": incident.title,
        "severity": format!("{:?}", incident.severity).to_lowercase(), "is_bad": incident.severity >= Severity::High,
        "from_ms": incident.began_ms, "to_ms": incident.ended_ms, "worst_ms": incident.worst_ms,
        "lasts": incident.lasts, "subjects": incident.subjects, "impact": incident.impact.text,
        "chain": incident.chain.iter().map(|link| &link.text).collect::<Vec<_>>(),
    })
}

/// Where a live page keeps what it shows, until it is dropped.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> anyhow::Result<Scratch> {
        let name = format!("unslow-page-{}-{}", std::process::id(), rand::random::<u32>());
        let dir = std::env::temp_dir().join(name);
        std::fs::create_dir(&dir).with_context(|| dir.display().to_string())?;
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&dir, mode).map_err(|e| anyhow!(e).context(dir.display().to_string()))?;
        Ok(Scratch(dir))
    }

    pub fn dir(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
