//! `unslow top`: what a deployment does now, or did at some time of a recording.

mod app;
mod draw;
mod plain;
mod screen;
mod source;

use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use ratatui::crossterm::event::{Event, KeyEventKind};
use unslow_doctor::diagnose;
use unslow_facts::Facts;
use unslow_record::{Keys, Recorder, Settings, Store, Tape};
use unslow_units::did_you_mean;
use unslow_views::View;

use self::app::{App, Frame, Mood, Popup, Wish};
use self::draw::{Look, draw};
use self::screen::Screen;
use self::source::{Live, Recorded, Source};
use crate::output::Output;
use crate::reach::Reach;
use crate::server::Server;
use crate::typed::lasting;
use crate::web::{Http, Scratch, Web};
use crate::{doctor, files, web};

/// A key is answered within this time, whatever the interval.
const KEYS: Duration = Duration::from_millis(100);
/// For the page of a live deployment the slow log is read this often; clients and settings every sixth time.
const ASK: Duration = Duration::from_secs(5);
/// What is kept for it, in a temporary directory that may lie in memory.
const KEPT: Duration = Duration::from_secs(86_400);
const KEPT_BYTES: u64 = 256 << 20;
/// What the page's incidents are made of.
const PAGE_WINDOW: Duration = Duration::from_secs(60);
/// Before there are figures, frames come at least this often,
const EARLY: Duration = Duration::from_millis(500);
/// and line mode waits for the first ones, or for a word of why there are none, for so long.
const FIRST_FIGURES: Duration = Duration::from_secs(10);

#[derive(Args)]
#[command(
    disable_help_flag = true,
    after_help = "Press ? for the list of keys. unslow top never changes anything on a server.\n\nExamples:\n  \
                  unslow top redis://10.0.0.1:7000\n  \
                  unslow top --recording /var/lib/unslow --at \"yesterday 01:00\"\n  \
                  unslow top redis://10.0.0.1:7000 --plain --view commands --count 10"
)]
pub struct TopArguments {
    /// redis://, rediss://, valkey://, valkeys://, unix:/path, redis+sentinel://host/service, or host:port; with
    /// --recording: selects one of several deployments
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// Show a recording made by `unslow record`, or a file exported from one
    #[arg(long, value_name = "DIR")]
    recording: Option<PathBuf>,
    /// With --recording: start at this time, such as "yesterday 01:00" or "3h ago" [default: the end]
    #[arg(long, requires = "recording", conflicts_with = "http", value_name = "TIME", allow_hyphen_values = true)]
    at: Option<String>,
    /// Time that the figures cover [default: 5s; 10s for a recording]
    #[arg(long, value_parser = lasting, conflicts_with = "http", value_name = "TIME")]
    window: Option<Duration>,
    /// Refresh interval
    #[arg(long, default_value = "1s", value_parser = lasting, conflicts_with = "http", value_name = "TIME")]
    interval: Duration,
    /// View to open first: nodes, commands, clients, slow, topology or host
    #[arg(long, default_value = "nodes", value_parser = view, conflicts_with = "http", value_name = "VIEW")]
    view: View,
    /// Print one table per interval, like vmstat, instead of drawing [default when there is no terminal]
    #[arg(long, conflicts_with = "http")]
    plain: bool,
    /// With --plain: stop after this many tables
    #[arg(long, value_name = "N", conflicts_with = "http", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Show key names in the slow log as they are, instead of hashed
    #[arg(long)]
    show_keys: bool,
    #[command(flatten)]
    http: Http,
    #[command(flatten)]
    server: Server,
    #[command(flatten)]
    reach: Reach,
}

fn view(name: &str) -> Result<View, String> {
    let names = View::ALL.map(View::name);
    let known = View::ALL.into_iter().find(|view| view.name() == name);
    known.ok_or_else(|| format!("there is no such view{}", did_you_mean(name, &names)))
}

impl TopArguments {
    pub fn run(self, output: &Output) -> anyhow::Result<u8> {
        if output.json() {
            bail!("unslow top shows tables; for JSON: unslow doctor --save FILE, or unslow record export --csv");
        }
        if let Some(address) = self.http.http.clone() {
            return self.serve(&address, output);
        }
        let (source, app) = self.begin()?;
        let top = Top { arguments: self, source, app };
        if top.arguments.plain || !screen::can_draw() { top.print(output) } else { top.draw() }
    }

    /// The page instead of the screen. What is live is recorded for as long as it is served.
    fn serve(&self, address: &str, output: &Output) -> anyhow::Result<u8> {
        let guard = unslow_interrupt::guard("ending the page (Ctrl-C again: at once)");
        let (scratch, recorder) = match &self.recording {
            Some(_) => (None, None),
            None => {
                let keys = if self.show_keys { Keys::Shown } else { Keys::Hashed };
                let targets = vec![self.server.target(self.url.as_deref(), &self.reach)?];
                let options = self.reach.options()?;
                let scratch = Scratch::new()?;
                let settings = Settings { targets, options, every: ASK, keys, host: true, stall: Settings::STALL };
                let store = Store { retain_for: Some(KEPT), retain_bytes: Some(KEPT_BYTES), ..Store::default() };
                let recorder = Recorder::start(settings, scratch.dir(), store)?;
                (Some(scratch), Some(recorder))
            }
        };
        let dir = scratch.as_ref().map(Scratch::dir).or(self.recording.as_deref());
        let dir = dir.context("a URL is needed, or --recording DIR")?;
        let query = match (&recorder, self.url.as_deref()) {
            // Named, where a recording has several.
            (None, Some(url)) => web::query(&Tape::open(dir)?.deployment(Some(&self.reach.target(url)?.url()))?),
            (None, None) => Tape::open(dir).map(|_| String::new())?,
            (Some(_), _) => String::new(),
        };
        let web = Web::serve(&self.http, address, dir, PAGE_WINDOW, None)?;
        output.note(&format!("page at {}{query}; Ctrl-C ends it", web.url(&self.http)));
        while !guard.asked() && recorder.as_ref().is_none_or(|recorder| !recorder.has_failed()) {
            std::thread::sleep(KEYS);
        }
        drop(web);
        recorder.map_or(Ok(()), |recorder| recorder.end().map(drop)).context("the recording for the page")?;
        Ok(0)
    }

    fn begin(&self) -> anyhow::Result<(Source, App)> {
        let view = self.view;
        if let Some(dir) = &self.recording {
            let window = self.window.unwrap_or(Duration::from_secs(10));
            let recorded = Recorded::open(dir, self.url.as_deref(), self.at.as_deref(), window)?;
            let mut app = App::new(recorded.url(), false, view);
            recorded.frames().into_iter().for_each(|frame| app.take(frame));
            return Ok((Source::Recorded(recorded), app));
        }
        let window = self.window.unwrap_or(Duration::from_secs(5));
        if window > Duration::from_secs(60) {
            bail!("a live --window is at most 60s; for a longer one, record first: unslow record");
        }
        let target = self.server.target(self.url.as_deref(), &self.reach)?;
        let app = App::new(&target.url(), true, view);
        Ok((Source::Live(Live::start(target, self.reach.options()?, window, self.show_keys)?), app))
    }
}

/// Whether there are figures, or words instead of them.
fn is_worth(frame: &Frame) -> bool {
    frame.facts.nodes.iter().any(|node| node.last.is_some()) || frame.verdict.0 == Mood::Bad
}

/// Creates a file for its owner alone. The name is not the user's choice, so an existing file is never overwritten.
fn new_file(name: &str) -> anyhow::Result<PathBuf> {
    let names = std::iter::once(String::new()).chain((2..100).map(|n| format!("-{n}")));
    let mut last = None;
    for suffix in names {
        let file = PathBuf::from(format!("{name}{suffix}.json"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file) {
            Ok(_) => return Ok(file),
            Err(e) if e.kind() == ErrorKind::AlreadyExists => last = Some(e),
            Err(e) => return Err(e).context(file.display().to_string()),
        }
    }
    Err(last.map_or_else(|| anyhow::anyhow!("no name is free"), Into::into)).context(format!("{name}.json"))
}

struct Top {
    arguments: TopArguments,
    source: Source,
    app: App,
}

impl Top {
    /// Line mode.
    fn print(mut self, output: &Output) -> anyhow::Result<u8> {
        let guard = unslow_interrupt::guard_quietly();
        let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
        let width = width.or_else(|| std::io::stdout().is_terminal().then(textwrap::termwidth));
        let patience = Instant::now() + FIRST_FIGURES;
        let mut left = self.arguments.count;
        while !guard.asked() && left != Some(0) {
            let began = Instant::now();
            if let Source::Live(live) = &mut self.source {
                match live.frame()?.filter(|frame| is_worth(frame) || Instant::now() > patience) {
                    Some(frame) => self.app.take(frame),
                    None => {
                        std::thread::sleep(KEYS);
                        continue;
                    }
                }
            }
            if !output.print_while_read(&plain::text(&self.app, width))? {
                break; // the reader has closed the pipe
            }
            left = left.map(|n| n - 1);
            if let Source::Recorded(recorded) = &mut self.source {
                let dir = self.arguments.recording.as_deref().unwrap_or(Path::new("."));
                let Some(frame) = recorded.step(dir, 1)? else { break };
                self.app.take(frame);
                // A recording has its own pace: as fast as it is read.
                continue;
            }
            while left != Some(0) && began.elapsed() < self.arguments.interval && !guard.asked() {
                std::thread::sleep(KEYS.min(self.arguments.interval));
            }
        }
        Ok(0)
    }

    /// The screen.
    fn draw(mut self) -> anyhow::Result<u8> {
        let guard = unslow_interrupt::guard_quietly();
        let look = Look { colours: std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty()) };
        let mut screen = Screen::take().context("cannot draw on this terminal; use --plain")?;
        let keys = screen::keys()?;
        let (mut next, mut is_due) = (Instant::now(), true);
        while !guard.asked() {
            if Instant::now() >= next {
                if let Source::Live(live) = &mut self.source
                    && let Some(frame) = live.frame()?
                {
                    self.app.take(frame);
                    is_due = true;
                }
                // The first figures are not kept waiting for.
                let is_early = self.app.frame().is_none_or(|frame| !is_worth(frame));
                let wait = if is_early { self.arguments.interval.min(EARLY) } else { self.arguments.interval };
                next = Instant::now() + wait;
            }
            if std::mem::take(&mut is_due) {
                screen.0.draw(|frame| draw(frame, &self.app, look))?;
            }
            // A signal is heard in between.
            match keys.recv_timeout(next.saturating_duration_since(Instant::now()).min(KEYS)) {
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Ok(first) => {
                    // All keys that wait are one drawing.
                    is_due = true;
                    for event in std::iter::once(first).chain(keys.try_iter()) {
                        if !self.hear(&event, &mut screen)? {
                            return Ok(0);
                        }
                    }
                }
            }
        }
        Ok(0)
    }

    /// Whether to go on.
    fn hear(&mut self, event: &Event, screen: &mut Screen) -> std::io::Result<bool> {
        match event {
            Event::Key(key) if key.kind == KeyEventKind::Press => match self.app.key(*key) {
                Wish::Quit => return Ok(false),
                Wish::Suspend => {
                    screen.suspend()?;
                    if let Source::Live(live) = &self.source {
                        live.begin_again();
                    }
                }
                wish => self.grant(wish),
            },
            _ => {} // another size: it is drawn again
        }
        Ok(true)
    }

    fn grant(&mut self, wish: Wish) {
        let done = match wish {
            Wish::Nothing | Wish::Quit | Wish::Suspend => Ok(None),
            Wish::Step(steps) => self.step(steps),
            Wish::Newest => self.jump(None),
            Wish::Jump(at) => self.jump(Some(&at)),
            Wish::Diagnose => self.diagnose(),
            Wish::Save => self.save(),
            Wish::Copy(row) => Screen::copy(&row).map(|()| Some("copied".into())).map_err(Into::into),
        };
        self.app.message = done.unwrap_or_else(|e| Some(format!("{e:#}")));
    }

    fn step(&mut self, steps: i64) -> anyhow::Result<Option<String>> {
        let dir = self.arguments.recording.as_deref().unwrap_or(Path::new("."));
        let moved = match &mut self.source {
            Source::Live(_) => self.app.step(steps),
            Source::Recorded(recorded) => match recorded.step(dir, steps)? {
                None => false,
                Some(frame) => {
                    match steps {
                        1 => self.app.take(frame),
                        -1 => self.app.take_back(frame),
                        // The curves are of the windows before this one.
                        _ => {
                            self.app.forget_points();
                            recorded.frames().into_iter().for_each(|frame| self.app.take(frame));
                        }
                    }
                    true
                }
            },
        };
        let end = if steps < 0 { "already at the oldest window" } else { "already at the newest window" };
        Ok((!moved).then(|| end.into()))
    }

    fn jump(&mut self, at: Option<&str>) -> anyhow::Result<Option<String>> {
        let Source::Recorded(recorded) = &mut self.source else {
            if at.is_some() {
                bail!("t works only with a recording: unslow top --recording DIR");
            }
            self.app.newest();
            return Ok(None);
        };
        let dir = self.arguments.recording.as_deref().unwrap_or(Path::new("."));
        recorded.jump(dir, at)?;
        self.app.forget_points();
        recorded.frames().into_iter().for_each(|frame| self.app.take(frame));
        Ok(None)
    }

    fn shown(&self) -> anyhow::Result<&Facts> {
        let frame = self.app.frame().context("no data yet")?;
        frame.facts.check().context("a server reported impossible numbers")?;
        Ok(&frame.facts)
    }

    fn diagnose(&mut self) -> anyhow::Result<Option<String>> {
        let report = diagnose(self.shown()?, &[]);
        let text = anstream::adapter::strip_str(&doctor::text::report(&report, true)).to_string();
        let lines = doctor::text::clean_lines(&text).lines().map(str::to_string).collect();
        self.app.popup = Some(Popup { title: "diagnosis".into(), lines, scroll: 0 });
        Ok(None)
    }

    fn save(&mut self) -> anyhow::Result<Option<String>> {
        let facts = self.shown()?;
        let file = new_file(&format!("unslow-facts-{}", facts.at_ms / 1000))?;
        if let Err(e) = files::write(&file, &serde_json::to_string(facts)?) {
            // A full disk leaves no empty file behind.
            let _ = std::fs::remove_file(&file);
            return Err(e);
        }
        Ok(Some(format!("saved; read it with: unslow doctor --from {}", file.display())))
    }
}
