//! What a Sentinel knows and how it is set.

use std::time::Duration;

use unslow_client::{Error, Options, Target, Value};
use unslow_facts::{SentinelGroup, SentinelNode};
use unslow_topology::Info;

use crate::ask::Ask;
use crate::clock::Clock;
use crate::node::patience;
use crate::now_ms;

pub fn look(address: &str, target: &Target, options: &Options, service: Option<&str>, clock: &Clock) -> SentinelNode {
    let mut node =
        SentinelNode { address: address.into(), unreachable: None, version: String::new(), groups: Vec::new() };
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
        let info = Info::parse(&ask.call(&["INFO", "server"])?.text().unwrap_or_default());
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
                    Err(e) => e.message,
                }
            }
        };
        node.groups.push(SentinelGroup {
            master: format!("{}:{}", text("ip"), text("port")),
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
}
