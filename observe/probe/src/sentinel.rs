//! What a Sentinel knows and how it is set.

use unslow_client::{Error, Options, Target, Value};
use unslow_facts::{SentinelGroup, SentinelNode};
use unslow_topology::Info;

use crate::ask::Ask;

pub fn look(address: &str, target: &Target, options: &Options, service: Option<&str>) -> SentinelNode {
    let mut node =
        SentinelNode { address: address.into(), unreachable: None, version: String::new(), groups: Vec::new() };
    if let Err(e) = fill(&mut node, target, options, service) {
        node.unreachable = Some(e.message);
    }
    node
}

fn fill(node: &mut SentinelNode, target: &Target, options: &Options, service: Option<&str>) -> Result<(), Error> {
    let mut ask = Ask::open(target, options)?;
    let info = Info::parse(&ask.call(&["INFO", "server"])?.text().unwrap_or_default());
    node.version = info.version().map_or(String::new(), |(a, b, c)| format!("{} {a}.{b}.{c}", info.product()));
    for master in ask.call(&["SENTINEL", "MASTERS"])?.items() {
        let text = |field: &str| master.get(field).and_then(Value::text).unwrap_or_default();
        let number = |field: &str| master.get(field).and_then(Value::integer).unwrap_or(0).max(0) as u64;
        let name = text("name");
        if service.is_some_and(|s| s != name) {
            continue;
        }
        let ckquorum = match ask.call(&["SENTINEL", "CKQUORUM", &name]) {
            Ok(value) => value.text().unwrap_or_default(),
            Err(e) if e.is_fatal() => return Err(e),
            Err(e) => e.message,
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
            service: name,
        });
    }
    Ok(())
}
