//! I3: at one command a round trip a server spends its time in the kernel's TCP path. Then the same server without it,
//! for clients beside it and for clients elsewhere.

mod remote;

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value as Json;
use unslow_client::{Connection, Target};
use unslow_engine::{Engine, Server, ServerSpec, WorkDir, free_port, spawn_bound, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::{Host, Lab};
use unslow_units::{percent, rate, time_us};

use super::busy::{self, Busy};
use super::{AMONG_OTHERS, Background, Context, Diagnosis, Played, Row, believed, flames, median, number};
use crate::error::Error;
use crate::stage::{self, Answered, Hosts, PATIENCE};
use remote::Remote;

/// Connections of each run of the load generator; and as they are typed.
const CONNECTIONS: usize = 50;
const CONNECTIONS_TEXT: &str = "50";

/// What is measured with a way to the server.
struct Way<'a> {
    name: &'a str,
    url: String,
    /// The same server over TCP.
    tcp: Target,
    more: &'a [&'a str],
    pid: u32,
    /// The host of a lab that the load comes from, if it is not this machine itself.
    from: Option<(&'a Lab, &'a Host)>,
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

impl Context<'_> {
    /// Number of the load's connections that `bypass ls` lists, after waiting for all. The generator has others beside
    /// them, so that the last may still be on their way.
    fn listed(&self, environment: &[(&str, &str)], of: impl Fn(&Json) -> usize) -> Result<usize, Error> {
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            let text = self.text(None, &["bypass", "ls", "--format", "json", "--quiet"], environment)?;
            let found = of(&serde_json::from_str(&text).map_err(Error::Json)?);
            if found >= CONNECTIONS || Instant::now() > until {
                return Ok(found);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
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
    carried_target: Target,
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
        let carried_target = Target::parse(&format!("127.0.0.1:{port}"))?;
        wait_for("the server under the bypass", Duration::from_secs(20), || {
            let connection = Connection::open(&carried_target, &Default::default());
            Ok(connection.is_ok_and(|mut c| c.call(&["PING"]).is_ok()))
        })?;
        // And once more for the eBPF variant: it works on a port.
        let below = Server::start(engine, &ServerSpec::default())?;
        let sockmap = attached(cx, &below.port.to_string())?;
        Ok(Servers { sockmap, below, carried, carried_port: port, carried_target, meeting, plain })
    }

    /// The ways that can be measured here. TCP comes first and shared memory second.
    fn ways<'a>(&self) -> Vec<Way<'a>> {
        let over_tcp = |name, server: &Server, more| {
            let (url, tcp) = (server.url(), server.target());
            Way { name, url, tcp, more, pid: server.pid(), from: None }
        };
        let mut ways = vec![
            over_tcp("TCP", &self.plain, &[][..]),
            Way {
                name: "shared memory (unslow bypass)",
                url: format!("shm:{}", self.carried_port),
                tcp: self.carried_target.clone(),
                more: &[],
                pid: self.carried.0.id(),
                from: None,
            },
            over_tcp("TCP, pipelines of 16", &self.plain, &["--pipeline", "16"]),
        ];
        if self.sockmap.is_some() {
            ways.push(over_tcp("eBPF (unslow bypass --sockmap)", &self.below, &[]));
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
        ["--connections", CONNECTIONS_TEXT, "--seconds", &self.seconds, "--mix", "get=1", "--keys", "1000", "--verify"]
    }

    fn environment(&self) -> [(&str, &str); 1] {
        [("UNSLOW_BYPASS_DIR", &self.directory)]
    }
}

impl Load {
    /// The same beside something that is looked at, for longer than that takes.
    fn beside(&self, cx: &Context<'_>, way: &Way<'_>, environment: &[(&str, &str)]) -> Result<Busy, Error> {
        let arguments = [&self.arguments()[..], &["--seconds", "10"], way.more].concat();
        let Way { from, ref url, ref tcp, .. } = *way;
        let connections = CONNECTIONS;
        Busy::begin(cx, &busy::Load { from, url, server: tcp, connections, arguments: &arguments, environment })
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
                let text = self.cx.text(way.from, &arguments, &self.load.environment())?;
                let report: Json = serde_json::from_str(&text).map_err(Error::Json)?;
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
        let environment = self.load.environment();
        let scene = |_: &mut Busy, answered: Answered| -> Result<f64, Error> {
            answered.enough(PATIENCE)?;
            if count_rings {
                let of = |listed: &Json| listed["servers"][0]["connections"].as_array().map_or(0, Vec::len);
                self.over_rings = self.cx.listed(&environment, of)?;
            }
            let title = format!("redis-server, {}", way.name);
            let (share, picture) = flames::of_process(way.pid, &title, self.cx.folder.path(), picture)
                .map_err(|why| Error::Program { command: "perf".into(), why: why.to_string() })?;
            self.played.pictures.push(picture);
            Ok(share)
        };
        let busy = self.load.beside(self.cx, way, &environment)?;
        match stage::play(busy, PATIENCE, scene).0 {
            Err(Error::Interrupted) => Err(Error::Interrupted),
            Err(why) => {
                self.played.notes.push(format!("no flame graph of {}: {why}", way.name));
                Ok(f64::NAN)
            }
            Ok(share) => Ok(share),
        }
    }

    /// Adds a row for each way; their medians.
    fn rows(&mut self, ways: &[Way<'_>], all: Vec<Seen>) -> Result<Vec<Medians>, Error> {
        let mut found = Vec::new();
        for (i, (way, seen)) in ways.iter().zip(all).enumerate() {
            let medians =
                Medians { per_s: median(seen.per_s), p50: median(seen.p50), server_us: median(seen.server_us) };
            let kernel = match i {
                0 => self.sample(way, "before", false)?,
                1 => self.sample(way, "after", true)?,
                _ => f64::NAN,
            };
            let cells = vec![
                rate(medians.per_s),
                time_us(medians.p50),
                time_us(median(seen.p99)),
                time_us(medians.server_us),
                time_us(median(seen.client_us)),
                percent(kernel),
            ];
            self.played.rows.push(Row { name: way.name.into(), cells });
            found.push(medians);
        }
        Ok(found)
    }

    /// What must hold, and the sentence to repeat.
    fn judge(&mut self, before: Medians, after: Medians) {
        let (over_rings, played) = (self.over_rings, &mut self.played);
        played.held.push((
            over_rings >= CONNECTIONS,
            format!("{over_rings} connections were carried by shared memory, not {CONNECTIONS}"),
        ));
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
    let stage = cx.raise(fault.topology("redis-7.0"), Hosts::Flat)?;
    let struck = cx.strike(&stage, fault.name, None, None)?;
    let diagnosis = cx.diagnose(&stage.lab, 0)?;
    cx.heal(&stage, fault.name, struck)?;
    Ok((stage.lab.deployment.nodes[0].engine().clone(), diagnosis))
}

pub fn play(cx: &mut Context<'_>) -> Result<Played, Error> {
    let (pairs, seconds) = (cx.story.number("pairs")?, cx.story.number("seconds")?.to_string());
    let (engine, diagnosis) = diagnose(cx)?;
    if cx.diagnosis_only {
        return Ok(Played::diagnosed(diagnosis));
    }
    let mut servers = Servers::start(cx, &engine)?;
    let remote = Remote::start(cx, &engine)?;
    let mut ways = servers.ways();
    let local = ways.len();
    ways.extend(remote.iter().flat_map(Remote::ways));
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
    let found = steps.rows(&ways, seen)?;
    if servers.sockmap.as_mut().is_some_and(|s| s.has_ended()) {
        steps.played.notes.push("the eBPF variant ended during the run, so its row may show plain TCP".into());
    }
    steps.judge(found[0], found[1]);
    match &remote {
        Some(remote) => steps.judge_remote(remote, &ways[local..], &found[local..])?,
        None => {
            let left_out = "clients on another host were left out: this user may not make network namespaces";
            steps.played.notes.push(left_out.into());
        }
    }
    drop((servers.carried, servers.sockmap));
    steps.played.diagnosis = Some(diagnosis);
    Ok(steps.played)
}
