//! I3: at one command a round trip a server spends its time in the kernel's TCP path. Then the same server without it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use unslow_engine::{Engine, Server, ServerSpec, WorkDir, free_port, spawn_bound, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_units::{percent, rate, time_us};

use super::{AMONG_OTHERS, Background, Context, Diagnosis, Played, Row, believed, flames, median, number};
use crate::error::Error;

/// What is measured with a way to the server.
struct Way<'a> {
    name: &'a str,
    url: String,
    more: &'a [&'a str],
    pid: u32,
}

/// A directory of ours that goes whatever happens.
fn meeting() -> Result<WorkDir, unslow_engine::Error> {
    WorkDir::make(|| {
        tempfile::tempdir().map_err(|why| unslow_engine::Error::new(format!("a directory for sockets: {why}")))
    })
}

/// The eBPF variant on a port, once it says that it is at work; `None` where it cannot be had.
fn attached(cx: &Context<'_>, port: &str) -> Result<Option<Background>, Error> {
    let mut command = cx.command(None, &["bypass", "--sockmap", "--port", port])?;
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = Background(spawn_bound(command).map_err(|e| Error::unslow(&["bypass", "--sockmap"], e))?);
    let (sender, receiver) = std::sync::mpsc::channel();
    if let Some(said) = child.0.stderr.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
    }
    let said = receiver.recv_timeout(Duration::from_secs(10)).unwrap_or_default();
    Ok(said.contains("bypass TCP from now on").then_some(child))
}

#[derive(Default)]
struct Seen {
    per_s: Vec<f64>,
    p50: Vec<f64>,
    p99: Vec<f64>,
    server_us: Vec<f64>,
    client_us: Vec<f64>,
}

/// Medians of a way's windows.
#[derive(Clone, Copy)]
struct Medians {
    per_s: f64,
    p50: f64,
    server_us: f64,
}

/// One engine, started once for each way to reach it.
struct Servers {
    /// The eBPF variant on the port of `below`, where it can be had.
    sockmap: Option<Background>,
    below: Server,
    /// Under the bypass, where it serves TCP and shared memory at once.
    carried: Background,
    carried_port: u16,
    /// Where clients and the carried server meet. Not in the case's folder: a unix socket's path is short.
    meeting: WorkDir,
    /// As it is.
    plain: Server,
}

impl Servers {
    fn start(cx: &Context<'_>, engine: &Engine) -> Result<Servers, Error> {
        let plain = Server::start(engine, &ServerSpec::default())?;
        let dir = cx.folder.path().join("bypass");
        std::fs::create_dir_all(&dir).map_err(|why| Error::File { path: dir.clone(), why })?;
        let meeting = meeting()?;
        let environment = meeting.path().display().to_string();
        let environment = [("UNSLOW_BYPASS_DIR", environment.as_str())];
        let port = free_port("127.0.0.1")?;
        let (port_text, dir_text) = (port.to_string(), dir.display().to_string());
        let program = engine.server.display().to_string();
        let arguments = ["bypass", "--", &program, "--port", &port_text, "--save", "", "--dir", &dir_text];
        let libraries = engine.libraries.as_ref().map(|dir| dir.display().to_string());
        let with_libraries: Vec<_> =
            environment.into_iter().chain(libraries.as_deref().map(|dir| ("LD_LIBRARY_PATH", dir))).collect();
        let carried = cx.background(None, &arguments, &with_libraries)?;
        let target = unslow_client::Target::parse(&format!("127.0.0.1:{port}"))?;
        wait_for("the server under the bypass", Duration::from_secs(20), || {
            let connection = unslow_client::Connection::open(&target, &Default::default());
            Ok(connection.is_ok_and(|mut c| c.call(&["PING"]).is_ok()))
        })?;
        // And once more for the eBPF variant: it works on a port.
        let below = Server::start(engine, &ServerSpec::default())?;
        let sockmap = attached(cx, &below.port.to_string())?;
        Ok(Servers { sockmap, below, carried, carried_port: port, meeting, plain })
    }

    /// The ways that can be measured here. TCP comes first and shared memory second.
    fn ways(&self) -> Vec<Way<'static>> {
        let (plain, carried, below) = (&self.plain, &self.carried, &self.below);
        let shared_memory = format!("shm:{}", self.carried_port);
        let mut ways = vec![
            Way { name: "TCP", url: plain.url(), more: &[], pid: plain.pid() },
            Way { name: "shared memory (unslow bypass)", url: shared_memory, more: &[], pid: carried.0.id() },
            Way { name: "TCP, pipelines of 16", url: plain.url(), more: &["--pipeline", "16"], pid: plain.pid() },
        ];
        if self.sockmap.is_some() {
            let url = below.url();
            ways.push(Way { name: "eBPF (unslow bypass --sockmap)", url, more: &[], pid: below.pid() });
        }
        ways
    }
}

/// What every run of the load generator is given.
struct Load {
    seconds: String,
    /// Of the sockets of the carried server.
    directory: String,
}

impl Load {
    fn arguments(&self) -> [&str; 9] {
        ["--connections", "50", "--seconds", &self.seconds, "--mix", "get=1", "--keys", "1000", "--verify"]
    }

    fn environment(&self) -> [(&str, &str); 1] {
        [("UNSLOW_BYPASS_DIR", &self.directory)]
    }
}

/// What the steps of this case share.
struct Steps<'c, 'a> {
    cx: &'c mut Context<'a>,
    load: Load,
    /// Connections that the bypass reported as carried, while shared memory was sampled.
    over_rings: usize,
    played: Played,
}

impl Steps<'_, '_> {
    /// Measures the ways in turn, `pairs` times.
    fn windows(&mut self, ways: &[Way<'_>], pairs: u64) -> Result<Vec<Seen>, Error> {
        let mut seen: Vec<Seen> = ways.iter().map(|_| Seen::default()).collect();
        for pair in 0..pairs {
            for (way, seen) in ways.iter().zip(&mut seen) {
                self.cx.say(&format!("{}: window {} of {pairs}", way.name, pair + 1));
                let load = self.load.arguments();
                let arguments =
                    [&["bench", way.url.as_str()], &load[..], way.more, &["--format", "json", "--quiet"], AMONG_OTHERS]
                        .concat();
                let text = self.cx.text(None, &arguments, &self.load.environment())?;
                let report: serde_json::Value = serde_json::from_str(&text).map_err(Error::Json)?;
                let run = &report["runs"][0];
                believed(run, &mut self.played.notes)?;
                seen.per_s.push(number(&run["throughput_per_s"]));
                seen.p50.push(number(&run["latency"]["us_p50"]));
                seen.p99.push(number(&run["latency"]["us_p99"]));
                seen.server_us.push(number(&run["server_cpu_us_per_request"]));
                seen.client_us.push(number(&run["generator"]["cpu_us_per_request"]));
            }
        }
        Ok(seen)
    }

    /// The share of a server's CPU time that is the kernel's, in a window of its own, because sampling costs. The
    /// flame graph is kept as `picture`.
    fn sample(&mut self, way: &Way<'_>, picture: &str, count_rings: bool) -> Result<f64, Error> {
        self.cx.say(&format!("{}: sampling", way.name));
        let (load, environment) = (self.load.arguments(), self.load.environment());
        let busy = [&["bench", way.url.as_str()], &load[..], &["--seconds", "3"], way.more, AMONG_OTHERS].concat();
        let _busy = self.cx.background(None, &busy, &environment)?;
        std::thread::sleep(Duration::from_millis(700)); // its own start
        if count_rings {
            let text = self.cx.text(None, &["bypass", "ls", "--format", "json", "--quiet"], &environment)?;
            let listed: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
            self.over_rings = listed["servers"][0]["connections"].as_array().map_or(0, Vec::len);
        }
        let title = format!("redis-server, {}", way.name);
        Ok(match flames::of_process(way.pid, &title, self.cx.folder.path(), picture) {
            Ok((share, picture)) => {
                self.played.pictures.push(picture);
                share
            }
            Err(why) => {
                self.played.notes.push(format!("no flame graph: {why}"));
                f64::NAN
            }
        })
    }

    /// Adds a row for each way; the medians of TCP and of shared memory.
    fn rows(&mut self, ways: &[Way<'_>], all: Vec<Seen>) -> Result<(Medians, Medians), Error> {
        let unknown = Medians { per_s: f64::NAN, p50: f64::NAN, server_us: f64::NAN };
        let (mut before, mut after) = (unknown, unknown);
        for (i, (way, seen)) in ways.iter().zip(all).enumerate() {
            let medians =
                Medians { per_s: median(seen.per_s), p50: median(seen.p50), server_us: median(seen.server_us) };
            let kernel = match i {
                0 => self.sample(way, "before", false)?,
                1 => self.sample(way, "after", true)?,
                _ => f64::NAN,
            };
            match i {
                0 => before = medians,
                1 => after = medians,
                _ => {}
            }
            let cells = vec![
                rate(medians.per_s),
                time_us(medians.p50),
                time_us(median(seen.p99)),
                time_us(medians.server_us),
                time_us(median(seen.client_us)),
                percent(kernel),
            ];
            self.played.rows.push(Row { name: way.name.into(), cells });
        }
        Ok((before, after))
    }

    /// What must hold, and the sentence to repeat.
    fn judge(&mut self, before: Medians, after: Medians) {
        let (over_rings, played) = (self.over_rings, &mut self.played);
        played.held.push((over_rings >= 50, format!("{over_rings} connections were carried by shared memory, not 50")));
        played.held.push((after.per_s > 1.5 * before.per_s, "shared memory was not half as fast again as TCP".into()));
        played.held.push((after.server_us < before.server_us, "shared memory cost the server more than TCP".into()));
        played.closing = format!(
            "Without the kernel's TCP path, the same redis-server answers {:.1} times as many requests: {} instead of \
             {}, with a p50 of {} instead of {} and {} of its CPU per request instead of {}.",
            after.per_s / before.per_s,
            rate(after.per_s),
            rate(before.per_s),
            time_us(after.p50),
            time_us(before.p50),
            time_us(after.server_us),
            time_us(before.server_us)
        );
    }
}

/// The engine under test, and what the doctor finds while the fault is active.
fn diagnose(cx: &mut Context<'_>) -> Result<(Engine, Diagnosis), Error> {
    let fault = faults::named("kernel_bound")?;
    cx.say("a server and fifty connections with one command in flight each");
    let mut topology = fault.topology("redis-7.0");
    topology.seed = cx.seed;
    let lab = Lab::start_flat(&topology)?;
    let _active = fault.inject(&lab, None, None)?;
    std::thread::sleep(Duration::from_millis(300));
    let diagnosis = cx.diagnose(&lab, 0)?;
    Ok((lab.deployment.nodes[0].engine().clone(), diagnosis))
}

pub fn play(cx: &mut Context<'_>) -> Result<Played, Error> {
    let (pairs, seconds) = (cx.story.number("pairs")?, cx.story.number("seconds")?.to_string());
    let (engine, diagnosis) = diagnose(cx)?;
    if cx.diagnosis_only {
        return Ok(Played::diagnosed(diagnosis));
    }
    let mut servers = Servers::start(cx, &engine)?;
    let ways = servers.ways();
    let played = Played {
        columns: vec!["way", "requests", "p50", "p99", "server CPU each", "client CPU each", "in the kernel"],
        ..Played::default()
    };
    let load = Load { seconds, directory: servers.meeting.path().display().to_string() };
    let mut steps = Steps { cx, load, over_rings: 0, played };
    if servers.sockmap.is_none() {
        let skipped = "the eBPF variant needs root and a kernel that supports it; it was skipped";
        steps.played.notes.push(skipped.into());
    }
    let seen = steps.windows(&ways, pairs)?;
    let (before, after) = steps.rows(&ways, seen)?;
    if servers.sockmap.as_mut().is_some_and(|s| s.0.try_wait().is_ok_and(|ended| ended.is_some())) {
        steps.played.notes.push("the eBPF variant ended during the run, so its row may show plain TCP".into());
    }
    drop((servers.carried, servers.sockmap));
    steps.judge(before, after);
    steps.played.diagnosis = Some(diagnosis);
    Ok(steps.played)
}
