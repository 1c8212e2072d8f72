//! The server is at, or near, its connection limit, and refuses new ones.
//!
//! Beyond `maxclients` (10,000 by default; lower if the file limit is) every new connection gets an error and is
//! closed. Growing pools, scaling pods and leaks reach it together, usually at the worst moment.
//!
//! Seen when: connections were rejected in the window, or over 80 % of `maxclients` are in use.
//!
//! Not to be taken for: accept-queue overflows (`accept_overflow`), which refuse connections before the server sees
//! them; a maxclients that was lowered by the file limit (`fd_limit`), which CONFIG SET cannot raise.
//!
//! What to do: raise maxclients and the file limit together; size pools by load; multiplex; reap idle connections.
//! Sources: INFO rejected_connections, maxclients; CONFIG GET maxclients.

use super::prelude::*;

pub const TITLE: &str = "Too many connections";
pub const LEADS_TO: &[&str] = &["connection_churn"];
pub const INJECTED: Injected = Injected::Yes;

/// A server near its limit, or at it.
struct Crowded<'a> {
    node: &'a Node,
    used: f64,
    max: f64,
    refused: f64,
}

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<Crowded> = facts.live().filter_map(crowded).collect();
    let rows = by_worst(rows, |r| r.refused * 1e6 + r.used / r.max);
    let Some(worst) = rows.first() else {
        return match most(facts, |n| Some(n.number("connected_clients")? / limit(n)?)) {
            Some(most) => {
                Verdict::Absent(format!("connections: at most {} of maxclients, and none refused", percent(most)))
            }
            None if facts.live().next().is_none() => Verdict::Unknown(unseen_info(facts, "connections")),
            None => Verdict::unknown(
                Lack::Rights,
                "maxclients could not be read (INFO shows it since 6.2)",
                "ACL SETUSER <user> +config|get",
            ),
        };
    };
    let (node, used, max, refused) = (worst.node, worst.used, worst.max, worst.refused);
    let received = node.delta("total_connections_received").unwrap_or(0.0);
    let share = refused / (received + refused).max(1.0);
    let title = if refused > 0.0 {
        format!(
            "{} refused {} connections in {:.0} s: {} of {} are in use",
            node.address,
            count(refused),
            node.window_s,
            count(used),
            count(max)
        )
    } else {
        format!("{} of {} connections of {} are in use", count(used), count(max), node.address)
    };
    let finding = Finding::new(title).on(rows.iter().map(|r| r.node.address.as_str()));
    let finding = if refused > 0.0 {
        finding
            .availability(86400.0 * share, format!("{} of new connections are refused", percent(share)))
            .proven("the server counted the refusals in this window")
    } else {
        finding.risk("the next burst of reconnects will be refused").proven("counted by the server")
    };
    let mut finding = finding
        .gain(format!("room for {} more", count(max)), format!("maxclients {max:.0} -> {:.0}", max * 2.0))
        .saw(node, "INFO clients", format!("connected_clients:{used:.0}, maxclients {max:.0}"))
        .saw(node, "INFO stats", format!("rejected_connections +{refused:.0} in {:.1} s", node.window_s));
    for group in node.clients.value().into_iter().flat_map(|c| &c.groups).take(2) {
        finding = finding.saw(
            node,
            "CLIENT LIST",
            format!(
                "{} from {} {}{}; {} of them idle for over an hour",
                group.count, group.host, group.name, group.library, group.idle_hour
            ),
        );
    }
    if let Some(tcp) = facts.process(node).and_then(|(h, _)| h.tcp) {
        finding = finding.not(format!(
            "the kernel's accept queue: {} overflows on that machine in the window",
            tcp.listen_overflows
        ));
    }
    remedies(finding, facts, worst).into()
}

fn limit(node: &Node) -> Option<f64> {
    node.number("maxclients").or_else(|| node.setting_number("maxclients"))
}

fn crowded(node: &Node) -> Option<Crowded<'_>> {
    let (used, max) = (node.number("connected_clients")?, limit(node)?.max(1.0));
    let refused = node.delta("rejected_connections").unwrap_or(0.0);
    (refused > 0.0 || used / max > 0.8).then_some(Crowded { node, used, max, refused })
}

/// What a server keeps of its file limit for itself (CONFIG_MIN_RESERVED_FDS).
const RESERVED_FILES: f64 = 32.0;

fn remedies(finding: Finding, facts: &Facts, crowded: &Crowded) -> Finding {
    let (node, max) = (crowded.node, crowded.max);
    let wanted = max * 2.0;
    let files = facts.process(node).and_then(|(_, p)| p.open_files_max).map(|n| n as f64);
    let set = format!("CONFIG SET maxclients {wanted:.0}");
    let risk = "each connection takes some 20 kB and CLIENT LIST grows";
    let back = format!("CONFIG SET maxclients {max:.0}");
    let finding = match files {
        Some(files) if files >= wanted + RESERVED_FILES => {
            finding.fix_at(&node.address, "Raise the limit now", &[&set], risk, &back)
        }
        _ => {
            let told =
                files.map_or("it must allow that many files".into(), |n| format!("its file limit is {n:.0} now"));
            let unit = format!("LimitNOFILE={:.0}   (systemd unit; {told})", (wanted + RESERVED_FILES).max(65536.0));
            finding.fix(
                "Raise the limit, and the file limit with it",
                &[&cli(&node.address, &set), &unit],
                risk,
                &cli(&node.address, &back),
            )
        }
    };
    let finding = finding.fix(
        "Then use fewer: smaller pools, or a multiplexing proxy",
        &["connections = commands/s x seconds per command x 1.5   (for each pool)"],
        "",
        "",
    );
    let idle: u64 = node.clients.value().map_or(0, |c| c.groups.iter().map(|g| g.idle_hour).sum());
    if idle == 0 {
        return finding.not("a leak of idle connections: none of those seen is idle for over an hour");
    }
    let before = node.setting("timeout").unwrap_or("0");
    finding.fix(
        &format!("Close idle connections ({idle} of those seen are idle for over an hour)"),
        &[&cli(&node.address, "CONFIG SET timeout 300")],
        "clients must cope with closed idle connections",
        &cli(&node.address, &format!("CONFIG SET timeout {before}")),
    )
}
