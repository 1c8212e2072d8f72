//! The servers are fine: look at the client, or the way to it.
//!
//! Time-outs in an application are blamed on Redis first. When the servers answer in time, are not busy, have not stalled
//! and lose nothing, that is a verdict too, with its evidence; and when a client leaves its replies unread, it is named.
//!
//! Seen when: replies have waited for two seconds or more for an ordinary client to read them, while the server is well; or, as information, when nothing at all was measured against the servers.
//!
//! Not to be taken for: a slow subscriber (`slow_subscriber`), whose buffer is the server's problem too.
//!
//! What to do: look at the client's GC pauses, thread pool, connection pool wait, and the network to it.
//! Sources: tcp_info, CLIENT LIST omem, PING through the window; StackExchange.Redis #2186, lettuce #1028.

use super::prelude::*;
use crate::Severity;

pub const TITLE: &str = "Not your Redis";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let mut worst_ping: f64 = 0.0;
    let mut busiest: f64 = 0.0;
    for node in facts.live() {
        worst_ping = worst_ping.max(node.rtt.value().map_or(0.0, |r| f64::from(r.us_p99)));
        busiest = busiest.max(node.cpu().map_or(0.0, |(u, s)| u + s));
    }
    for node in facts.live() {
        let stuck = node.sockets.value().into_iter().flatten().filter(|p| p.window_closed > 0).max_by_key(|p| p.window_closed);
        let unread = node.clients.value().and_then(|c| c.notable.iter().filter(|c| c.output_bytes > 0 && c.idle_s >= 2 && !c.flags.contains(['P', 'S', 'O', 'M'])).max_by_key(|c| c.output_bytes));
        // A closed window alone may be a large reply on its way: the buffer must have been waiting for seconds.
        if unread.is_none() {
            continue;
        }
        let busy = node.cpu().map_or(0.0, |(u, s)| u + s);
        if busy > 0.9 {
            continue;
        }
        let who = unread.map(|c| format!("{} {}", c.address, c.name)).or_else(|| stuck.map(|p| p.host.clone())).unwrap_or_default();
        let waiting = unread.map_or(0, |c| c.output_bytes) + stuck.map_or(0, |p| p.send_queue_bytes);
        let connections = stuck.map_or(1, |p| p.window_closed.max(1));
        let total = node.number("connected_clients").unwrap_or(1.0).max(1.0);
        let share = f64::from(connections) / total;
        let waited_s = unread.map_or(0.0, |c| c.idle_s as f64);
        let mut finding = Finding::new(format!("Not your Redis: {} does not read its replies, {} wait for it; {} itself answers in {}", who.trim(), bytes(waiting as f64), node.address, time_us(node.rtt.value().map_or(0.0, |r| r.us_p50.into()))))
            .on([node.address.as_str()])
            .latency(share * waited_s * 1000.0, format!("{connections} of {} connections stand still, for {waited_s:.0} s so far", count(total)))
            .gain("its requests are answered already; it only has to read", format!("{} unread", bytes(waiting as f64)))
            .proven("its replies wait in the server's buffer, and the server answers others at once")
            .saw(node, "PING", format!("p99 {} through the window", time_us(node.rtt.value().map_or(0.0, |r| r.us_p99.into()))))
            .saw(node, "INFO cpu", format!("main thread {} busy", percent(busy)));
        if let Some(c) = unread {
            finding = finding.saw(node, "CLIENT LIST", format!("id={} addr={} name={} cmd={} idle={} omem={}", c.id, c.address, c.name, c.command, c.idle_s, c.output_bytes));
        }
        if let Some(p) = stuck {
            finding = finding.saw(node, "ss -tin", format!("{}: {} sockets with a closed window, {} unsent", p.host, p.window_closed, bytes(p.send_queue_bytes as f64)));
        }
        return finding
            .not(format!("a slow server: PING p99 {} through the window", time_us(worst_ping)))
            .fix("Look into that client: GC pauses, a blocked reader thread, CPU limit of its container, a debugger", &["jstack PID; jstat -gcutil PID 1000", "py-spy dump --pid PID", "cat /sys/fs/cgroup/cpu.stat   (in its container)"], "none", "none needed")
            .into();
    }
    let nodes = facts.live().count();
    let Some(node) = facts.live().max_by(|a, b| a.rtt.value().map_or(0, |r| r.us_p99).cmp(&b.rtt.value().map_or(0, |r| r.us_p99))) else { return Verdict::Absent(None) };
    if nodes < facts.nodes.len() || node.pings.is_empty() || worst_ping > 50_000.0 || busiest > 0.9 {
        return Verdict::Absent(None);
    }
    let traffic: f64 = facts.live().filter_map(Node::ops).sum();
    let mut finding = Finding::new(format!(
        "Not your Redis: {} answered every PING within {} (p99) while serving {} commands/s, busy {} at most",
        if nodes == 1 { node.address.clone() } else { format!("all {nodes} nodes") },
        time_us(worst_ping), count(traffic), percent(busiest)
    ))
    .on([node.address.as_str()])
    .risk("nothing measured against the servers in this window; if the application is slow now, the time is lost elsewhere")
    .gain("none here", "no cause was found")
    .likely("every rule looked; a problem that comes and goes needs a window in which it is there")
    .saw(node, "PING", format!("p99 {} over {:.0} s", time_us(worst_ping), node.window_s))
    .saw(node, "INFO cpu", format!("main thread {} busy at most", percent(busiest)))
    .fix("If it is slow at other times: look then, for longer", &[&format!("unslow doctor {} --window 60s", facts.url)], "none", "none needed")
    .fix("Else look at the client: pool wait, GC, thread pool, DNS, TLS, the network to it", &["run unslow doctor on the client's machine: it measures the way from there"], "none", "none needed");
    finding.severity = Severity::Info;
    finding.into()
}
