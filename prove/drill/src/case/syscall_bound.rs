//! I3: at one command a round trip a server spends its time in the kernel's TCP path. Then the same server without it.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use unslow_engine::{Server, ServerSpec, free_port, spawn_bound, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_units::{percent, rate, time_us};

use super::{Background, Context, Played, Row, believed, flames, median, number};
use crate::error::Error;

/// What is measured with a way to the server.
struct Way<'a> {
    name: &'a str,
    url: String,
    more: &'a [&'a str],
    pid: u32,
}

/// A directory of ours that goes whatever happens.
fn meeting() -> Result<unslow_engine::WorkDir, unslow_engine::Error> {
    unslow_engine::WorkDir::make(|| {
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

pub fn play(cx: &mut Context<'_>) -> Result<Played, Error> {
    let (pairs, seconds) = (cx.story.number("pairs")?, cx.story.number("seconds")?.to_string());
    let fault = faults::named("kernel_bound")?;
    cx.say("a server and fifty connections with one command in flight each");
    let mut topology = fault.topology("redis-7.0");
    topology.seed = cx.seed;
    let lab = Lab::start_flat(&topology)?;
    let active = fault.inject(&lab, None, None)?;
    std::thread::sleep(Duration::from_millis(300));
    let diagnosis = cx.diagnose(&lab, 0)?;
    if cx.diagnosis_only {
        return Ok(Played::diagnosed(diagnosis));
    }
    drop(active);

    let engine = lab.deployment.nodes[0].engine().clone();
    drop(lab);
    // The same engine as it is; then under the bypass, where it serves TCP and shared memory at once.
    let plain = Server::start(&engine, &ServerSpec::default())?;
    let dir = cx.folder.path().join("bypass");
    std::fs::create_dir_all(&dir).map_err(|why| Error::File { path: dir.clone(), why })?;
    // Not in the folder: a unix socket's path is short.
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
        Ok(unslow_client::Connection::open(&target, &Default::default()).is_ok_and(|mut c| c.call(&["PING"]).is_ok()))
    })?;
    // And once more for the eBPF variant: it is about a port.
    let below: Server = Server::start(&engine, &ServerSpec::default())?;
    let below_port = below.port.to_string();
    let mut notes = Vec::new();
    let mut sockmap = attached(cx, &below_port)?;
    if sockmap.is_none() {
        notes.push("the eBPF variant needs root and a kernel that supports it; it was skipped".to_string());
    }

    let ways = [
        Way { name: "TCP", url: plain.url(), more: &[], pid: plain.pid() },
        Way { name: "shared memory (unslow bypass)", url: format!("shm:{port}"), more: &[], pid: carried.0.id() },
        Way { name: "TCP, pipelines of 16", url: plain.url(), more: &["--pipeline", "16"], pid: plain.pid() },
        Way { name: "eBPF (unslow bypass --sockmap)", url: below.url(), more: &[], pid: below.pid() },
    ];
    let ways = &ways[..if sockmap.is_some() { 4 } else { 3 }];
    let mut seen: Vec<Seen> = ways.iter().map(|_| Seen::default()).collect();
    let load = ["--connections", "50", "--seconds", &seconds, "--mix", "get=1", "--keys", "1000", "--verify"];
    for pair in 0..pairs {
        for (way, seen) in ways.iter().zip(&mut seen) {
            cx.say(&format!("{}: window {} of {pairs}", way.name, pair + 1));
            let arguments =
                [&["bench", way.url.as_str()], &load[..], way.more, &["--format", "json", "--quiet"]].concat();
            let text = cx.text(None, &arguments, &environment)?;
            let report: serde_json::Value = serde_json::from_str(&text).map_err(Error::Json)?;
            let run = &report["runs"][0];
            believed(run, &mut notes)?;
            seen.per_s.push(number(&run["throughput_per_s"]));
            seen.p50.push(number(&run["latency"]["us_p50"]));
            seen.p99.push(number(&run["latency"]["us_p99"]));
            seen.server_us.push(number(&run["server_cpu_us_per_request"]));
            seen.client_us.push(number(&run["generator"]["cpu_us_per_request"]));
        }
    }
    let mut played = Played {
        columns: vec!["way", "requests", "p50", "p99", "server CPU each", "client CPU each", "in the kernel"],
        ..Played::default()
    };
    let mut over_rings = 0;
    let (mut before, mut after) = ((f64::NAN, f64::NAN, f64::NAN), (f64::NAN, f64::NAN, f64::NAN));
    for (i, (way, seen)) in ways.iter().zip(seen).enumerate() {
        let (per_s, p50, server) = (median(seen.per_s), median(seen.p50), median(seen.server_us));
        // Where the time goes, in a window of its own: sampling costs.
        let kernel = if i < 2 {
            cx.say(&format!("{}: sampling", way.name));
            let busy = [&["bench", way.url.as_str()], &load[..], &["--seconds", "3"], way.more].concat();
            let _busy = cx.background(None, &busy, &environment)?;
            std::thread::sleep(Duration::from_millis(700)); // its own start
            if i == 1 {
                let text = cx.text(None, &["bypass", "ls", "--format", "json", "--quiet"], &environment)?;
                let listed: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
                over_rings = listed["servers"][0]["connections"].as_array().map_or(0, Vec::len);
            }
            match flames::of_process(
                way.pid,
                &format!("redis-server, {}", way.name),
                cx.folder.path(),
                if i == 0 { "before" } else { "after" },
            ) {
                Ok((share, picture)) => {
                    played.pictures.push(picture);
                    share
                }
                Err(why) => {
                    notes.push(format!("no flame graph: {why}"));
                    f64::NAN
                }
            }
        } else {
            f64::NAN
        };
        match i {
            0 => before = (per_s, p50, server),
            1 => after = (per_s, p50, server),
            _ => {}
        }
        let cells = vec![
            rate(per_s),
            time_us(p50),
            time_us(median(seen.p99)),
            time_us(server),
            time_us(median(seen.client_us)),
            percent(kernel),
        ];
        played.rows.push(Row { name: way.name.into(), cells });
    }
    if sockmap.as_mut().is_some_and(|s| s.0.try_wait().is_ok_and(|ended| ended.is_some())) {
        notes.push("the eBPF variant ended during the run, so its row may show plain TCP".into());
    }
    drop((carried, sockmap));
    played.held.push((over_rings >= 50, format!("{over_rings} connections were carried by shared memory, not 50")));
    played.held.push((after.0 > 1.5 * before.0, "shared memory was not half as fast again as TCP".into()));
    played.held.push((after.2 < before.2, "shared memory cost the server more than TCP".into()));
    played.closing = format!(
        "Without the kernel's TCP path, the same redis-server answers {:.1} times as many requests: {} instead of {}, \
         with a p50 of {} instead of {} and {} of its CPU per request instead of {}.",
        after.0 / before.0,
        rate(after.0),
        rate(before.0),
        time_us(after.1),
        time_us(before.1),
        time_us(after.2),
        time_us(before.2)
    );
    (played.diagnosis, played.notes) = (Some(diagnosis), notes);
    Ok(played)
}
