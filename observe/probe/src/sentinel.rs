//! What a Sentinel knows and how it is set.

use std::time::Duration;

use unslow_client::{Error, Options, Target, Value};
use unslow_facts::{Listed, SentinelGroup, SentinelNode, Tilt};
use unslow_topology::{Info, join_host_port};

use crate::ask::Ask;
use crate::clock::Clock;
use crate::node::patience;
use crate::now_ms;

pub fn look(address: &str, target: &Target, options: &Options, service: Option<&str>, clock: &Clock) -> SentinelNode {
    let mut node = SentinelNode {
        address: address.into(),
        unreachable: None,
        version: String::new(),
        tilt: None,
        groups: Vec::new(),
    };
    if let Err(e) = fill(&mut node, target, options, service, clock) {
        node.unreachable = Some(e.message);
    }
    node
}

fn fill(
    node: &mut SentinelNode,
    target: &Target,
    options: &Options,
    service: Option<&str>,
    clock: &Clock,
) -> Result<(), Error> {
    let mut ask = Ask::open(target, &patience(options, clock.left()))?;
    // What an answer takes.
    let mut wait = Duration::ZERO;
    if clock.over(wait).is_none() {
        // A Sentinel's INFO is short: all of it is a page.
        let info = match ask.call(&["INFO"]) {
            Ok(value) => Info::parse(&value.text().unwrap_or_default()),
            Err(e) if e.is_fatal() => return Err(e),
            // Denied to this user: what it watches may not be.
            Err(_) => Info::default(),
        };
        node.tilt = tilt(&info);
        node.version = info.version().map_or(String::new(), |(a, b, c)| format!("{} {a}.{b}.{c}", info.product()));
        wait = ask.waited();
    }
    // The one question that is worth an answer whatever the time; one more for each group is not.
    for master in ask.call(&["SENTINEL", "MASTERS"])?.items() {
        let text = |field: &str| master.get(field).and_then(Value::text).unwrap_or_default();
        let number = |field: &str| master.get(field).and_then(Value::integer).unwrap_or(0).max(0) as u64;
        let answered_ago = master.get("last-ok-ping-reply").and_then(Value::integer);
        let name = text("name");
        if service.is_some_and(|s| s != name) {
            continue;
        }
        let ckquorum = match clock.over(wait) {
            Some(_) => String::new(),
            None => {
                let answer = ask.call(&["SENTINEL", "CKQUORUM", &name]);
                wait = wait.max(ask.waited());
                match answer {
                    Ok(value) => value.text().unwrap_or_default(),
                    Err(e) if e.is_fatal() => return Err(e),
                    // Its own words, without the command that we put before them.
                    Err(e) => e.message.trim_start_matches("SENTINEL CKQUORUM: ").to_string(),
                }
            }
        };
        let mut list = |sub: &str| -> Result<Option<Vec<Listed>>, Error> {
            if clock.over(wait).is_some() {
                return Ok(None);
            }
            let answer = ask.call(&["SENTINEL", sub, &name]);
            wait = wait.max(ask.waited());
            match answer {
                Ok(value) => Ok(Some(value.items().iter().map(listed).collect())),
                Err(e) if e.is_fatal() => Err(e),
                Err(_) => Ok(None),
            }
        };
        let (others, replicas) = (list("SENTINELS")?, list("REPLICAS")?);
        node.groups.push(SentinelGroup {
            others,
            replicas,
            master: join_host_port(&text("ip"), text("port")),
            flags: text("flags"),
            quorum: number("quorum"),
            other_sentinels: number("num-other-sentinels"),
            down_after_ms: number("down-after-milliseconds"),
            failover_timeout_ms: number("failover-timeout"),
            epoch: number("config-epoch"),
            ckquorum,
            answered_at_ms: answered_ago.map(|ms| now_ms().saturating_sub(ms.max(0) as u64)),
            service: name,
        });
    }
    Ok(())
}

fn tilt(info: &Info) -> Option<Tilt> {
    match info.number("sentinel_tilt")? {
        on if on > 0.0 => {
            let since_s = info.number("sentinel_tilt_since_seconds").filter(|s| *s >= 0.0).map(|s| s as u64);
            Some(Tilt::On { since_s })
        }
        _ => Some(Tilt::Off),
    }
}

/// One row of SENTINEL SENTINELS or SENTINEL REPLICAS.
fn listed(row: &Value) -> Listed {
    let text = |field: &str| row.get(field).and_then(Value::text).unwrap_or_default();
    let down_ms = row.get("s-down-time").and_then(Value::integer).unwrap_or(0).max(0) as u64;
    Listed { address: join_host_port(&text("ip"), text("port")), flags: text("flags"), down_ms }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;
    use crate::fake::{bulk, server};

    #[test]
    fn without_time_a_sentinel_is_asked_for_its_groups_alone() {
        let quorums = Arc::new(AtomicU64::new(0));
        let counted = quorums.clone();
        let target = server(move |words| match words {
            [command, sub, ..] if command == "SENTINEL" && sub == "MASTERS" => {
                let fields = ["name", "main", "ip", "10.0.0.1", "port", "6379", "flags", "master"].map(bulk).concat();
                format!("*1\r\n*8\r\n{fields}")
            }
            [command, ..] if command == "SENTINEL" => {
                counted.fetch_add(1, Ordering::Relaxed);
                "+OK 3 usable Sentinels\r\n".into()
            }
            [command, ..] if command == "INFO" => bulk("redis_version:7.0.0\r\n"),
            _ => "+PONG\r\n".into(),
        });
        let node = look("h:1", &target, &Options::default(), None, &Clock::of(Duration::ZERO));
        assert_eq!((node.unreachable, node.version.as_str(), quorums.load(Ordering::Relaxed)), (None, "", 0));
        let [group] = &node.groups[..] else { panic!("{:?}", node.groups) };
        assert_eq!(
            (group.service.as_str(), group.master.as_str(), group.ckquorum.as_str()),
            ("main", "10.0.0.1:6379", "")
        );
    }

    #[test]
    fn a_sentinel_that_denies_info_still_tells_its_groups() {
        let target = server(|words| match words {
            [command, sub, ..] if command == "SENTINEL" && sub == "MASTERS" => {
                let fields = ["name", "main", "ip", "10.0.0.1", "port", "6379", "flags", "master"].map(bulk).concat();
                format!("*1\r\n*8\r\n{fields}")
            }
            [command, ..] if command == "SENTINEL" => "*0\r\n".into(),
            [command, ..] if command == "INFO" => "-NOPERM no permissions\r\n".into(),
            _ => "+PONG\r\n".into(),
        });
        let node = look("h:1", &target, &Options::default(), None, &Clock::of(Duration::from_secs(60)));
        assert_eq!((node.unreachable, node.tilt, node.groups.len()), (None, None, 1));
    }

    #[test]
    fn a_sentinel_says_whether_it_trusts_its_clock_and_whom_it_knows() {
        let peer = ["name", "x", "ip", "10.0.0.9", "port", "26379", "flags", "sentinel,s_down", "s-down-time", "90000"];
        let row = format!("*1\r\n*10\r\n{}", peer.map(bulk).concat());
        let target = server(move |words| match words {
            [command, sub, ..] if command == "SENTINEL" && sub == "MASTERS" => {
                let fields = ["name", "main", "ip", "10.0.0.1", "port", "6379", "flags", "master"].map(bulk).concat();
                format!("*1\r\n*8\r\n{fields}")
            }
            [command, sub, ..] if command == "SENTINEL" && sub == "SENTINELS" => row.clone(),
            [command, sub, ..] if command == "SENTINEL" && sub == "REPLICAS" => "*0\r\n".into(),
            [command, ..] if command == "SENTINEL" => "+OK 3 usable Sentinels\r\n".into(),
            [command, ..] if command == "INFO" => {
                bulk("redis_version:7.0.0\r\nsentinel_tilt:1\r\nsentinel_tilt_since_seconds:4\r\n")
            }
            _ => "+PONG\r\n".into(),
        });
        let node = look("h:1", &target, &Options::default(), None, &Clock::of(Duration::from_secs(60)));
        assert_eq!((node.unreachable, node.tilt), (None, Some(Tilt::On { since_s: Some(4) })));
        let known = node.groups[0].others.as_ref().expect("asked");
        assert_eq!((known[0].address.as_str(), known[0].down_ms), ("10.0.0.9:26379", 90_000));
        assert!(node.groups[0].replicas.as_ref().is_some_and(Vec::is_empty));
    }
}
