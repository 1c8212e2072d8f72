//! Somebody left MONITOR running.
//!
//! Every command of every client is written to each MONITOR connection too: by the servers' documentation one of them
//! can halve the throughput, and two weeks later nobody remembers the terminal.
//!
//! Seen when: a connection shows flag O (or last command `monitor`) in CLIENT LIST.
//!
//! Not to be taken for: keyspace notifications, which are subscriptions.
//!
//! What to do: kill that one connection; use SLOWLOG, commandstats or a sampling probe in place of it.
//! Sources: Redis documentation of MONITOR; CLIENT LIST flags.

use super::prelude::*;

pub const TITLE: &str = "MONITOR attached";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let mut whole = 0;
    for node in facts.live() {
        let Some(clients) = node.clients.value() else { continue };
        whole += usize::from(!clients.sampled);
        let all: Vec<_> = clients.notable.iter().filter(|c| c.flags.contains('O') || c.command == "monitor").collect();
        let Some(first) = all.first() else { continue };
        let ops = node.ops().unwrap_or(0.0);
        let cpu = node.cpu().map_or(0.0, |(u, s)| u + s);
        let share = cpu * 0.5 * ops.min(1000.0) / 1000.0;
        let ids: Vec<String> = all.iter().map(|c| format!("CLIENT KILL ID {}", c.id)).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        return Finding::new(format!(
            "{} MONITOR {} attached to {}, since {} s: each of {} commands/s is written to it too",
            all.len(), if all.len() == 1 { "connection is" } else { "connections are" }, node.address, first.age_s, count(ops)
        ))
        .on([node.address.as_str()])
        .core(share.max(0.001), format!("up to half of what the server does now ({} of a core)", percent(cpu)))
        .gain(format!("up to {} of a core", percent(share)), format!("MONITOR's documented cost of up to 50 % x {} of a core", percent(cpu)))
        .likely("the connection was seen; how much it takes depends on what it reads")
        .saw(node, "CLIENT LIST", format!("id={} addr={} name={} flags={} age={} omem={}", first.id, first.address, first.name, first.flags, first.age_s, first.output_bytes))
        .fix("End that connection", &ids, "whoever reads it loses the stream", "start MONITOR again")
        .into();
    }
    if whole > 0 && whole == facts.live().count() {
        return Verdict::Absent(Some("MONITOR: no connection has it".into()));
    }
    match facts.live().next() {
        Some(_) => Verdict::Unknown { why: "no whole CLIENT LIST, so a MONITOR connection could hide".into(), grant: "ACL SETUSER <user> +client|list; on a server with many clients: CLIENT LIST at a quiet hour".into() },
        None => Verdict::Absent(None),
    }
}
