//! MONITOR is running on a connection.
//!
//! Every command of every client is also written to each MONITOR connection: according to the servers' documentation a
//! single one can halve the throughput, and two weeks later the terminal has been forgotten.
//!
//! Seen when: a connection shows flag O (or last command `monitor`) in CLIENT LIST.
//!
//! Not to be taken for: keyspace notifications, which are subscriptions.
//!
//! What to do: end that one connection; use SLOWLOG, commandstats or a sampling probe instead.
//! Sources: Redis documentation of MONITOR; CLIENT LIST flags.

use unslow_facts::ClientRow;

use super::prelude::*;

pub const TITLE: &str = "MONITOR attached";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Below this there is nothing to write to it.
const IDLE_OPS: f64 = 10.0;

pub fn check(facts: &Facts) -> Verdict {
    let rows = facts.live().map(|n| (n, monitors(n))).filter(|(_, all)| !all.is_empty());
    let rows = by_worst(rows.collect(), |(n, all)| all.len() as f64 * n.ops().unwrap_or(0.0));
    if let Some((node, all)) = rows.first() {
        return found(node, all).on(rows.iter().map(|(n, _)| n.address.as_str())).into();
    }
    if facts.live().next().is_none() {
        return Verdict::Unknown(unseen_info(facts, "MONITOR"));
    }
    match facts.live().find_map(unseen) {
        Some(gap) => Verdict::Unknown(gap),
        None => Verdict::Absent(format!("MONITOR: none of {} connections uses it", count(connections(facts)))),
    }
}

fn monitors(node: &Node) -> Vec<&ClientRow> {
    let rows = node.clients.value().map_or(&[][..], |c| &c.notable);
    rows.iter().filter(|c| c.flags.contains('O') || c.command == "monitor").collect()
}

fn connections(facts: &Facts) -> f64 {
    facts.live().filter_map(|n| n.clients.value()).map(|c| c.listed as f64).sum()
}

/// A MONITOR connection can hide where the list is not whole.
fn unseen(node: &Node) -> Option<Gap> {
    if let Some(gap) = node.clients.missing() {
        return Some(gap.of(&format!("MONITOR on {}", node.address)));
    }
    let clients = node.clients.value().filter(|c| c.sampled)?;
    let why = format!("MONITOR on {}: {} of {} connections were checked", node.address, clients.listed, clients.total);
    Some(Gap::new(Lack::Other, why, "run CLIENT LIST by hand at a quiet hour and look for flags=O"))
}

fn found(node: &Node, all: &[&ClientRow]) -> Finding {
    let n = all.len() as f64;
    let ops = node.ops().unwrap_or(0.0);
    let since = node.at_ms().saturating_sub(all.iter().map(|c| c.age_s).max().unwrap_or(0) * 1000);
    let who = if all.len() == 1 {
        "A MONITOR connection was".to_string()
    } else {
        format!("The oldest of {} MONITOR connections was", all.len())
    };
    let finding = Finding::new(format!(
        "{who} attached to {} {} and is still there: it gets a copy of {} commands/s",
        node.address,
        ago(node.at_ms(), since),
        count(ops)
    ))
    .since(since);
    // What it costs to take commands in and to write answers, less the commands themselves; a MONITOR connection is one
    // more to write to.
    let outside = node.cpu().map(|(user, sys)| (user + sys - inside_share(node)).max(0.0));
    let finding = match outside.filter(|_| ops > IDLE_OPS) {
        Some(outside) => {
            let share = outside * n / (n + 1.0);
            finding
                .core(share, format!("up to {} of a core", percent(share)))
                .gain(
                    format!("frees up to {} of a core", percent(share)),
                    format!(
                        "{outside:.4} of a core outside commands x {n:.0} / ({n:.0} + 1): a copy costs no more \
                             than a reply"
                    ),
                )
                .likely("the connection was seen; its share of the work outside commands is an estimate")
        }
        None if ops > IDLE_OPS => finding
            .core(0.001, "up to half of the server's throughput, according to its documentation")
            .likely("the connection was seen; what it costs was not measured"),
        None => finding
            .risk(
                "nothing while hardly any commands come in; up to half of the throughput under load, according to the \
                 documentation",
            )
            .likely("the connection was seen"),
    };
    let first = all[0];
    let line = format!(
        "id={} addr={} name={} flags={} age={} omem={}",
        first.id, first.address, first.name, first.flags, first.age_s, first.output_bytes
    );
    let kill: Vec<String> = all.iter().map(|c| format!("CLIENT KILL ID {}", c.id)).collect();
    let kill: Vec<&str> = kill.iter().map(String::as_str).collect();
    finding.saw(node, "CLIENT LIST", line).fix_at(
        &node.address,
        "End that connection",
        &kill,
        "its reader loses the stream",
        "",
    )
}
