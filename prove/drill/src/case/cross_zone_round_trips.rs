//! I2: a consumer that asks once a round trip is capped by the distance, and everything else looks healthy.

use std::time::{Duration, Instant};

use unslow_client::{Connection, Options};
use unslow_lab::faults;
use unslow_lab::lab::{Host, Lab};
use unslow_units::{rate, time_us};

use super::{Context, Played, Row};
use crate::error::{CaseError, Error};
use crate::stage::Hosts;

/// A day and a half, as in the account.
const TTL_S: &str = "129600";

fn message(n: u64) -> [Vec<String>; 2] {
    let key = format!("order:{}", n % 10_000);
    let words = |all: &[&str]| all.iter().map(|w| w.to_string()).collect();
    [words(&["HSET", &key, "state", "paid", "sum", &n.to_string()]), words(&["EXPIRE", &key, TTL_S])]
}

/// Batches of messages from a host: how long each took.
fn batches(lab: &Lab, from: &Host, messages: u64, count: u64, whole: bool) -> Result<Vec<Duration>, Error> {
    let patient = Options { command_timeout: Duration::from_secs(30), ..Options::default() };
    let mut connection: Connection = lab.connect(from, &lab.deployment.nodes[0], &patient)?;
    let mut times = Vec::new();
    for batch in 0..count {
        let commands: Vec<Vec<String>> = (0..messages).flat_map(|m| message(batch * messages + m)).collect();
        let begun = Instant::now();
        if whole {
            for reply in connection.pipeline(&commands)? {
                reply?;
            }
        } else {
            for command in &commands {
                connection.call(command)?;
            }
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

pub fn play(cx: &mut Context<'_>) -> Result<Played, Error> {
    let (messages, count) = (cx.story.number("messages")?, cx.story.number("batches")?);
    let fault = faults::named("unpipelined")?;
    cx.say("two zones a millisecond apart, and a client in the far one");
    let stage = cx.raise(fault.topology("valkey-9.1"), Hosts::Wired)?;
    let lab = &stage.lab;
    if lab.zones.len() < 2 || lab.wire().is_err() {
        return Err(CaseError::NoZones.into());
    }
    let struck = cx.strike(&stage, fault.name, None, None)?;
    let diagnosis = cx.diagnose(lab, 0)?;
    if cx.diagnosis_only {
        return Ok(Played::diagnosed(diagnosis));
    }
    cx.heal(&stage, fault.name, struck)?;
    let home = lab.hosts[lab.places[0]].zone;
    let clients = |far: bool| lab.hosts.iter().find(|h| h.client && (h.zone != home) == far);
    let (Some(far), Some(near)) = (clients(true), clients(false)) else {
        return Err(CaseError::NoClients.into());
    };
    let mut played = Played {
        columns: vec!["how", "batch, median", "batch, longest", "messages"],
        diagnosis: Some(diagnosis),
        ..Played::default()
    };
    let mut medians = Vec::new();
    let ways = [
        ("other zone, one command per round trip", far, false),
        ("same zone, one command per round trip", near, false),
        ("other zone, the whole batch pipelined", far, true),
        ("same zone, the whole batch pipelined", near, true),
    ];
    for (name, from, whole) in ways {
        cx.say(name);
        let times = batches(lab, from, messages, count, whole)?;
        let us = |at: usize| times[at].as_secs_f64() * 1e6;
        let (middle, longest) = (us(times.len() / 2), us(times.len() - 1));
        medians.push(middle);
        let cells = vec![time_us(middle), time_us(longest), rate(messages as f64 / (middle / 1e6))];
        played.rows.push(Row { name: name.into(), cells });
    }
    cx.say("unslow sink, from the other zone");
    let lines: String =
        (0..messages * count).map(|n| format!("{{\"id\":{},\"state\":\"paid\",\"sum\":{n}}}\n", n % 10_000)).collect();
    cx.folder.keep("orders.ndjson", &lines)?;
    let map = "[[map]]\ncommands = [{ run = \"HSET order:{id} state {state} sum {sum}\", ttl = \"36h\" }]\n";
    cx.folder.keep("orders.toml", map)?;
    let path = |name: &str| {
        let path = cx.folder.path().join(name);
        std::path::absolute(&path).unwrap_or(path).display().to_string()
    };
    let (map, from) = (path("orders.toml"), path("orders.ndjson"));
    let begun = Instant::now();
    cx.text(
        Some((lab, far)),
        &["sink", "--map", &map, "--from", &from, "--to", &lab.url(), "--until-end", "--quiet"],
        &[],
    )?;
    let took = begun.elapsed().as_secs_f64();
    played.rows.push(Row {
        name: "other zone, unslow sink (including its start and connecting)".into(),
        cells: vec!["-".into(), "-".into(), rate((messages * count) as f64 / took)],
    });
    played
        .held
        .push((medians[2] * 5.0 < medians[0], "pipelining was not five times as fast from the other zone".into()));
    played.closing = format!(
        "A batch of {messages} messages from the other zone takes {} in one go instead of {} one command at a time, \
         {:.0} times as fast. With the consumer moved into the master's zone it takes {}.",
        time_us(medians[2]),
        time_us(medians[0]),
        medians[0] / medians[2],
        time_us(medians[1])
    );
    Ok(played)
}
