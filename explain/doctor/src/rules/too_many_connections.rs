//! The server is at, or near, its limit of connections, and refuses new ones.
//!
//! Beyond `maxclients` (10,000 by default; lower where the file limit is) every new connection gets an error and is
//! closed. Pools that grow, pods that scale and leaks arrive there together, mostly at the worst moment.
//!
//! Seen when: connections were rejected in the window, or over 80 % of `maxclients` are in use.
//!
//! Not to be taken for: accept-queue overflows (the kernel's ListenOverflows), which refuse before the server sees them.
//!
//! What to do: raise maxclients and the file limit together; size pools by load; multiplex; reap idle connections.
//! Sources: INFO rejected_connections, maxclients; CONFIG GET maxclients.

use super::prelude::*;

pub const TITLE: &str = "Too many connections";
pub const LEADS_TO: &[&str] = &["connection_churn"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let limit = |n: &Node| n.number("maxclients").or_else(|| n.setting_number("maxclients"));
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let used = node.number("connected_clients")?;
            let limit = limit(node)?;
            let refused = node.delta("rejected_connections").unwrap_or(0.0);
            (refused > 0.0 || used / limit > 0.8).then_some((node, used, limit, refused))
        })
        .collect();
    let rows = by_worst(rows, |r| r.3 * 1e6 + r.1 / r.2);
    let Some((node, used, max, refused)) = rows.first() else {
        let most = facts.live().filter_map(|n| Some(n.number("connected_clients")? / limit(n)?)).reduce(f64::max);
        return match most {
            Some(most) => Verdict::Absent(Some(format!("connections: {} of maxclients at most", percent(most)))),
            None => Verdict::Unknown { why: "maxclients could not be read (INFO shows it since 6.2)".into(), grant: "ACL SETUSER <user> +config|get".into() },
        };
    };
    let idle: u64 = node.clients.value().map_or(0, |c| c.groups.iter().map(|g| g.idle_hour).sum());
    let received = node.delta("total_connections_received").unwrap_or(0.0);
    let share = refused / (received + refused).max(1.0);
    let title = if *refused > 0.0 {
        format!("{} refused {} connections in {:.0} s: {} of {} are in use", node.address, count(*refused), node.window_s, count(*used), count(*max))
    } else {
        format!("{} of {} connections of {} are in use", count(*used), count(*max), node.address)
    };
    let finding = Finding::new(title).on(rows.iter().map(|r| r.0.address.as_str()));
    let finding = if *refused > 0.0 {
        finding.availability(86400.0 * share, format!("{} of new connections are refused", percent(share))).proven("the server counted the refusals in this window")
    } else {
        finding.risk("the next burst of reconnects is refused").proven("counted by the server")
    };
    let mut finding = finding
        .gain(format!("room for {} more", count(*max)), format!("maxclients {max:.0} -> {:.0}", max * 2.0))
        .saw(node, "INFO clients", format!("connected_clients:{used:.0}, maxclients {max:.0}"))
        .saw(node, "INFO stats", format!("rejected_connections +{refused:.0} in {:.1} s", node.window_s));
    for group in node.clients.value().into_iter().flat_map(|c| &c.groups).take(2) {
        finding = finding.saw(node, "CLIENT LIST", format!("{} from {} {}{}; {} of them idle for over an hour", group.count, group.host, group.name, group.library, group.idle_hour));
    }
    if let Some(tcp) = facts.process(node).and_then(|(h, _)| h.tcp) {
        finding = finding.not(format!("the kernel's accept queue: {} overflows on that machine in the window", tcp.listen_overflows));
    }
    finding
        .not(format!("a leak shows as idle connections: {idle} idle for over an hour among those seen"))
        .fix("Raise the limit now (the file limit must allow it)", &[&format!("CONFIG SET maxclients {:.0}", max * 2.0), "LimitNOFILE=65536   (systemd unit)"], "each connection takes some 20 kB and CLIENT LIST grows", &format!("CONFIG SET maxclients {max:.0}"))
        .fix("Then need fewer: smaller pools (connections = commands/s x seconds per command x 1.5), or a multiplexing proxy; close idle ones", &["CONFIG SET timeout 300"], "clients must cope with closed idle connections", "CONFIG SET timeout 0")
        .into()
}
