//! I3: at one command a round trip a server spends its time in the kernel's TCP path. Then the same server without it.

use std::time::Duration;

use unslow_engine::{Error, Server, ServerSpec, free_port, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;

use super::{Context, Played, Row, flames, median, number, percent, rate, time};

/// What is measured with a way to the server.
struct Way<'a> {
    name: &'a str,
    url: String,
    more: &'a [&'a str],
    pid: u32,
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
    cx.say("a server and fifty connections with a command in flight each");
    let lab = Lab::start_flat(&fault.topology("redis-7.0"))?;
    let active = fault.inject(&lab, None, None)?;
    std::thread::sleep(Duration::from_millis(300));
    let diagnosis = cx.diagnose(&lab, 0)?;
    drop(active);

    // The same engine again, under the bypass: it serves TCP and shared memory at once.
    let plain = lab.deployment.nodes[0].clone();
    let dir = cx.folder.path().join("bypass");
    std::fs::create_dir_all(&dir).map_err(|e| Error::new(format!("{}: {e}", dir.display())))?;
    // A unix socket's path is short.
    let meeting = std::path::PathBuf::from(format!("/tmp/unslow-case-{}", std::process::id()));
    let environment = meeting.display().to_string();
    let environment = [("UNSLOW_BYPASS_DIR", environment.as_str())];
    let port = free_port("127.0.0.1")?;
    let (port_text, dir_text) = (port.to_string(), dir.display().to_string());
    let program = plain.engine().server.display().to_string();
    let arguments = ["bypass", "--", &program, "--port", &port_text, "--save", "", "--dir", &dir_text];
    let carried = cx.background(None, &arguments, &environment)?;
    let target = unslow_client::Target::parse(&format!("127.0.0.1:{port}"))?;
    wait_for("the server under the bypass", Duration::from_secs(20), || {
        Ok(unslow_client::Connection::open(&target, &Default::default()).is_ok_and(|mut c| c.call(&["PING"]).is_ok()))
    })?;
    // And once more for the eBPF variant: it is about a port.
    let below: Server = Server::start(plain.engine(), &ServerSpec::default())?;
    let below_port = below.port.to_string();
    let sockmap = cx.background(None, &["bypass", "--sockmap", "--port", &below_port], &[])?;
    std::thread::sleep(Duration::from_millis(500)); // it attaches, or says why not and ends
    let mut sockmap = Some(sockmap);
    let mut notes = Vec::new();
    if sockmap.as_mut().is_some_and(|s| s.0.try_wait().is_ok_and(|ended| ended.is_some())) {
        notes.push("the eBPF variant needs root and a kernel that takes it; it was left out".to_string());
        sockmap = None;
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
            let report: serde_json::Value = serde_json::from_str(&text).map_err(|e| Error::new(e.to_string()))?;
            let run = &report["runs"][0];
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
    let (mut before, mut after) = ((f64::NAN, f64::NAN, f64::NAN), (f64::NAN, f64::NAN, f64::NAN));
    for (i, (way, seen)) in ways.iter().zip(seen).enumerate() {
        let (per_s, p50, server) = (median(seen.per_s), median(seen.p50), median(seen.server_us));
        // Where the time goes, in a window of its own: sampling costs.
        let kernel = if i < 2 {
            cx.say(&format!("{}: sampling", way.name));
            let busy = [&["bench", way.url.as_str()], &load[..], &["--seconds", "3"], way.more].concat();
            let _busy = cx.background(None, &busy, &environment)?;
            std::thread::sleep(Duration::from_millis(700)); // its own start
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
            time(p50),
            time(median(seen.p99)),
            format!("{server:.2} us"),
            format!("{:.2} us", median(seen.client_us)),
            percent(kernel),
        ];
        played.rows.push(Row { name: way.name.into(), cells });
    }
    drop((carried, sockmap));
    let _ = std::fs::remove_dir_all(&meeting);
    played.held.push((after.0 > before.0, "shared memory was not faster than TCP".into()));
    played.held.push((after.2 < before.2, "shared memory cost the server more than TCP".into()));
    played.closing = format!(
        "The same redis-server answers {:.1} times the requests without the kernel's TCP path: {} in place of {}, p50 {} in place of {}, {:.2} us of its CPU each in place of {:.2}.",
        after.0 / before.0,
        rate(after.0),
        rate(before.0),
        time(after.1),
        time(before.1),
        after.2,
        before.2
    );
    (played.diagnosis, played.notes) = (Some(diagnosis), notes);
    Ok(played)
}
