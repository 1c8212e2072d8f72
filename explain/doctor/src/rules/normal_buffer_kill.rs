//! The server disconnects ordinary clients because their buffers exceed a limit.
//!
//! Replies that a client has not read wait in its output buffer, incomplete commands in its query buffer. Beyond
//! `client-output-buffer-limit normal` (none by default) or `client-query-buffer-limit` (1 GB) the server closes the
//! connection. The client sees a reset in the middle of a reply, tries again, and asks for the same large reply again.
//!
//! Seen when: the server closed connections at a buffer limit in the window, ordinary clients have a limit, and it
//! cannot have been a replica or a subscriber: there are none, or they have no limit. Connections closed at the query
//! buffer's limit are always those of ordinary clients.
//!
//! Not to be taken for: `slow_subscriber` and `full_resync_loop`, where connections are closed at the limits of other
//! classes; an application that closes its own connections; `maxmemory-clients`, which is counted in evicted_clients.
//!
//! How to confirm: `INFO stats` twice: client_output_buffer_limit_disconnections,
//! client_query_buffer_limit_disconnections; the server's log: "closed for overcoming of output buffer limits" names
//! the client and its last command.
//!
//! What to do: request less at a time, and read replies as they arrive; until then, set a limit that is larger than the
//! largest reply.
//! Sources: INFO client_*_buffer_limit_disconnections; CONFIG GET client-output-buffer-limit; CLIENT LIST omem;
//! COMMANDLOG large-reply (Valkey 8.1+).

use unslow_facts::Side;

use super::large;
use super::prelude::*;
use super::slow_subscriber::{Limit, output_limit};

pub const TITLE: &str = "Clients closed at a buffer limit";
pub const LEADS_TO: &[&str] = &["connection_churn"];
pub const INJECTED: Injected = Injected::Yes;

/// INFO counts closed connections (Redis 7.4, Valkey 8.0).
const OUTPUT: &str = "client_output_buffer_limit_disconnections";
const QUERY: &str = "client_query_buffer_limit_disconnections";

/// What one server closed in the window.
struct Closed<'a> {
    node: &'a Node,
    /// At the output limit of ordinary clients, as far as it cannot have been another class.
    output: f64,
    /// At the query limit.
    query: f64,
    limit: Option<Limit>,
}

/// Of which class a connection was that the server closed at an output limit.
enum Class {
    Normal,
    Another,
    /// Several have a limit and clients.
    Open,
}

fn class(node: &Node) -> Class {
    let limited = |classes: &[&str]| output_limit(node, classes).map(|l| l.hard > 0.0 || l.soft > 0.0);
    let Some(normal) = limited(&["normal"]) else { return Class::Open };
    if !normal {
        return Class::Another;
    }
    // One that was closed may be gone by the end of the window.
    let then = |field: &str| node.first.as_ref().and_then(|s| s.info.number(field)).is_some_and(|n| n > 0.0);
    let there = |field: &str| node.number(field).is_none_or(|n| n > 0.0) || then(field);
    let sharded = node.number("pubsubshard_channels").is_some_and(|n| n > 0.0) || then("pubsubshard_channels");
    let subscribed = there("pubsub_channels") || there("pubsub_patterns") || sharded;
    let subscribers = subscribed && limited(&["pubsub"]).unwrap_or(true);
    // A replica that was cut off is gone, and its copies are counted.
    let synced =
        node.delta("sync_full").is_none_or(|n| n > 0.0) || node.delta("sync_partial_err").is_none_or(|n| n > 0.0);
    let replicas = (there("connected_slaves") || synced) && limited(&["slave", "replica"]).unwrap_or(true);
    if subscribers || (replicas && synced) { Class::Open } else { Class::Normal }
}

impl Closed<'_> {
    fn of(node: &Node) -> Option<Closed<'_>> {
        let output = node.delta(OUTPUT)?;
        let output = if matches!(class(node), Class::Normal) { output } else { 0.0 };
        let query = node.delta(QUERY).unwrap_or(0.0);
        Some(Closed { node, output, query, limit: output_limit(node, &["normal"]) })
    }

    fn all(&self) -> f64 {
        self.output + self.query
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Closed<'_>> = facts.live().filter_map(Closed::of).collect();
    let rows = by_worst(all.iter().filter(|c| c.all() > 0.0).collect(), |c| c.all());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|c| c.node.address.as_str())).into();
    }
    // Closed, and nothing says whose they were.
    let open = |n: &&Node| n.delta(OUTPUT).is_some_and(|n| n > 0.0) && matches!(class(n), Class::Open);
    if let Some(node) = facts.live().find(open) {
        let why = format!(
            "closed clients: {} closed connections at an output limit, and several classes of clients have one",
            node.address
        );
        return Verdict::unknown(
            Lack::Other,
            why,
            "the server's log names each client that it closes for overcoming its limits",
        );
    }
    let text =
        (!all.is_empty()).then(|| "closed clients: no ordinary connection was closed at a buffer limit".to_string());
    Verdict::absent(facts, "closed clients", text)
}

fn found(worst: &Closed<'_>) -> Finding {
    let (node, closed) = (worst.node, worst.all());
    let asked = node.processed().unwrap_or(0.0).max(closed);
    let share = closed / asked.max(1.0);
    let limit = worst.limit.map_or("not seen".to_string(), |l| format!("normal {l}"));
    let by = if worst.output >= worst.query { "output" } else { "query" };
    let finding = Finding::new(format!(
        "{} disconnected {} ordinary clients in {:.0} s, because their {by} buffers were over the limit",
        node.address,
        count(closed),
        node.window_s
    ))
    .availability(
        86400.0 * share,
        format!(
            "{} of the commands fail when their connection is closed, and the client has to reconnect",
            percent(share)
        ),
    )
    .gain(
        "no reply is cut off in the middle",
        format!("{closed:.0} connections, each with at least one command, of {asked:.0} commands = {}", percent(share)),
    )
    .proven(
        "the server counted the connections that it closed in this window; it cannot have been another class of \
         clients",
    )
    .saw(node, "INFO stats", format!("{OUTPUT} +{:.0}, {QUERY} +{:.0}", worst.output, worst.query))
    .saw(node, "CONFIG GET client-output-buffer-limit", limit);
    // They cost the commands that end with their connection, and no others.
    let finding = match share <= 0.1 {
        true => finding.severity(if share > 0.02 { Severity::High } else { Severity::Medium }),
        false => finding,
    };
    let waiting = node.clients.value().into_iter().flat_map(|c| &c.notable).filter(|c| !c.flags.contains(['P', 'S']));
    let finding = match waiting.max_by_key(|c| c.output_bytes) {
        Some(row) => finding.saw(
            node,
            "CLIENT LIST",
            format!(
                "{} waits for {} ({}), last command {}",
                bytes(row.output_bytes as f64),
                row.address,
                row.name,
                row.command
            ),
        ),
        None => finding,
    };
    let finding = large::shown(finding, worst.node, Side::Reply);
    let finding = if worst.output > 0.0 { larger(finding, worst) } else { finding };
    finding.fix(
        "Request less at a time, and read replies while further requests are being sent",
        &[
            &cli(&node.address, "SLOWLOG GET 10"),
            "SCAN, HSCAN, SSCAN, ZRANGE with LIMIT, LRANGE in pages instead of whole collections; pipelines of some \
             hundred commands at most",
        ],
        "",
        "",
    )
}

/// Room for twice as much, at most a tenth of the memory.
fn larger(finding: Finding, worst: &Closed<'_>) -> Finding {
    let Some(old) = worst.limit else { return finding };
    let node = worst.node;
    let memory =
        node.number("maxmemory").filter(|m| *m > 0.0).or_else(|| node.number("total_system_memory")).unwrap_or(10e9);
    let most = (memory / 10.0).floor();
    // Twice what was too small; where the server tells how large replies were, twice the largest.
    let reply = large::largest(node, Side::Reply).unwrap_or(0) as f64;
    let double = |n: f64| if n > 0.0 { (2.0 * n.max(reply)).min(most.max(n)) } else { n };
    let new = Limit { hard: double(old.hard), soft: double(old.soft), soft_s: old.soft_s };
    // A limit that is known to be too small is no remedy.
    if new == old || (new.hard > 0.0 && new.hard < reply) {
        return finding;
    }
    let set = |limit: Limit| format!("CONFIG SET client-output-buffer-limit \"normal {limit}\"");
    let risk = format!("up to {} of memory for each client that does not read", bytes(new.hard.max(new.soft)));
    let text = "Until then: set a limit that the largest reply fits into (in the configuration file too)";
    finding.fix_at(&node.address, text, &[&set(new)], &risk, &set(old))
}
