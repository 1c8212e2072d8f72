//! Client buffers take a substantial share of the server's memory.
//!
//! What a client has begun to send waits in its query buffer; what it has not read waits in its output buffer. Both
//! count against maxmemory: keys are evicted to make room for them, or writes are refused. By default ordinary clients
//! have no limit on replies, and a query buffer may grow to 1 GB.
//!
//! Seen when: ordinary clients held a tenth or more of what the server may use (maxmemory, the container's limit or the
//! machine's memory, whichever is least) at both ends of the window.
//!
//! Not to be taken for: subscribers that do not read (`slow_subscriber`), if they hold most of it; a client that leaves
//! its replies unread at a server with memory to spare (`not_your_redis`); many idle connections of a few kilobytes
//! each (`too_many_connections`); replicas' buffers, which are counted separately.
//!
//! How to confirm: `INFO memory` mem_clients_normal; `CLIENT LIST`: qbuf, argv-mem, omem, tot-mem of each client;
//! `MEMORY STATS` clients.normal.
//!
//! What to do: disconnect the largest client, then set limits: `maxmemory-clients` (7.0+) disconnects the largest
//! first, `client-query-buffer-limit` and `client-output-buffer-limit normal` limit each client. Smaller batches remove
//! the cause.
//! Sources: INFO mem_clients_normal, evicted_clients; CLIENT LIST; COMMANDLOG (Valkey 8.1+); Redis
//! documentation on client eviction.

use unslow_facts::{ClientRow, Side};

use super::large;
use super::memory::{self, Limit};
use super::prelude::*;

pub const TITLE: &str = "Client memory";
pub const LEADS_TO: &[&str] = &["eviction_pressure", "out_of_memory"];
pub const INJECTED: Injected = Injected::Yes;

/// Of what the server may use.
const SHARE: f64 = 0.1;
/// What clients together may hold, as the remedy sets it.
const BOUND: &str = "10%";

/// The clients of one server.
struct Held<'a> {
    node: &'a Node,
    limit: Limit,
    /// Bytes, at the end where it holds less than it did at the beginning.
    bytes: f64,
    /// Rows that stand out, the largest first.
    rows: Vec<&'a ClientRow>,
}

impl Held<'_> {
    fn share(&self) -> f64 {
        self.bytes / self.limit.bytes.max(1.0)
    }

    fn sum(&self, of: fn(&ClientRow) -> u64, subscribers: bool) -> f64 {
        self.rows.iter().filter(|r| r.flags.contains('P') == subscribers).map(|r| of(r) as f64).sum()
    }

    /// Where subscribers hold most of it another rule speaks.
    fn is_of_subscribers(&self) -> bool {
        self.sum(|r| r.output_bytes, true) > 0.5 * self.bytes
    }

    fn hurts(&self) -> bool {
        self.share() >= SHARE && !self.is_of_subscribers()
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Held> = facts.live().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, Held::share);
    let rows: Vec<&Held> = all.iter().filter(|h| h.hurts()).collect();
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|h| h.node.address.as_str())).into();
    }
    let text = all.first().map(|most| {
        let who = if most.is_of_subscribers() { ", most of it held by subscribers" } else { "" };
        format!(
            "client memory: at most {}{who}, {} of {}",
            bytes(most.bytes),
            percent(most.share()),
            most.limit.words()
        )
    });
    Verdict::absent(facts, "client memory", text)
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Option<Held<'a>> {
    // A reply on its way is gone at the window's end.
    let before = node.first.as_ref()?.info.number("mem_clients_normal")?;
    let bytes = memory::clients_bytes(node)?.min(before);
    let mut rows: Vec<&ClientRow> = node.clients.value().map_or(&[][..], |c| &c.notable).iter().collect();
    rows.sort_by_key(|r| std::cmp::Reverse(r.output_bytes.max(r.query_bytes)));
    Some(Held { node, limit: memory::room(facts, node)?, bytes, rows })
}

fn found(h: &Held) -> Finding {
    let (node, share) = (h.node, h.share());
    let clients = node.number("connected_clients").unwrap_or(1.0).max(1.0);
    let (queries, replies) = (h.sum(|r| r.query_bytes, false), h.sum(|r| r.output_bytes, false));
    let what = match (queries, replies) {
        (q, r) if q + r <= 0.0 => String::new(),
        (q, r) if q >= r => format!(", {} of it in requests they have begun to send", bytes(q)),
        (_, r) => format!(", {} of it in replies they have not read", bytes(r)),
    };
    let finding = Finding::new(format!(
        "Clients of {} hold {} of its memory, {} of {}{what}",
        node.address,
        bytes(h.bytes),
        percent(share),
        h.limit.words()
    ))
    .memory(
        share.min(1.0),
        format!("{} of what the server may use, {} per client", percent(share), bytes(h.bytes / clients)),
    )
    .gain(
        format!("{} more for data", bytes((h.bytes - 0.1 * SHARE * h.limit.bytes).max(0.0))),
        format!(
            "mem_clients_normal {} of {} = {share:.2}; clients keep 1 % of the limit",
            bytes(h.bytes),
            bytes(h.limit.bytes)
        ),
    )
    .proven("the server's own figure, at both ends of the window")
    .saw(
        node,
        "INFO memory",
        format!(
            "mem_clients_normal:{:.0}, used_memory {}, {} connections",
            node.number("mem_clients_normal").unwrap_or(h.bytes),
            bytes(node.number("used_memory").unwrap_or(0.0)),
            count(clients)
        ),
    );
    let finding = large::shown(finding, node, if queries >= replies { Side::Request } else { Side::Reply });
    let finding = h.rows.iter().filter(|r| !r.flags.contains('P')).take(3).fold(finding, |finding, row| {
        finding.saw(
            node,
            "CLIENT LIST",
            format!(
                "id={} addr={} name={} cmd={} idle={}: {} begun, {} unread",
                row.id,
                row.address,
                row.name,
                row.command,
                row.idle_s,
                bytes(row.query_bytes as f64),
                bytes(row.output_bytes as f64)
            ),
        )
    });
    let replicas = node.number("mem_clients_slaves").or_else(|| node.number("mem_clients_replicas"));
    let finding = match replicas {
        Some(replicas) => finding.not(format!("replicas' buffers: {}", bytes(replicas))),
        None => finding,
    };
    ways_out(finding, h, queries, replies)
}

fn ways_out(finding: Finding, h: &Held, queries: f64, replies: f64) -> Finding {
    let (node, address) = (h.node, h.node.address.as_str());
    let largest = h.rows.iter().find(|r| !r.flags.contains(['P', 'S', 'M', 'O']) && r.id > 0);
    let finding = match largest {
        Some(row) => finding.fix(
            &format!("Now: disconnect the largest client ({}), and find out what it does", row.address),
            &[&cli(address, &format!("CLIENT KILL ID {}", row.id))],
            "its in-flight requests fail, and it may reconnect",
            "",
        ),
        None => {
            finding.fix("Now: find the largest client (tot-mem, qbuf, omem)", &[&cli(address, "CLIENT LIST")], "", "")
        }
    };
    // A percentage is one of maxmemory: without that it bounds nothing.
    let bound = match memory::maxmemory(node) {
        Some(_) => BOUND.to_string(),
        None => format!("{:.0}", SHARE * h.limit.bytes),
    };
    let finding = if node.level() >= (7, 0) && node.setting("maxmemory-clients") == Some("0") {
        finding.fix(
            "Limit all clients together: the largest are disconnected first, and their memory is never taken from keys",
            &[&cli(address, &format!("CONFIG SET maxmemory-clients {bound}"))],
            "clients that need more than that are disconnected while they work",
            &cli(address, "CONFIG SET maxmemory-clients 0"),
        )
    } else {
        finding
    };
    if queries >= replies && queries > 0.0 {
        return finding.fix(
            "Send smaller requests: batches of a few hundred keys, values below a megabyte",
            &[&cli(address, "CONFIG GET client-query-buffer-limit"), "MSET in parts   (in the application)"],
            "",
            "",
        );
    }
    let Some(limit) = super::slow_subscriber::output_limit(node, &["normal"]).filter(|l| l.hard == 0.0) else {
        return finding;
    };
    let most = (h.limit.bytes * SHARE / 2.0).max(1_048_576.0);
    finding.fix(
        "Limit how much each client may leave unread",
        &[&cli(address, &format!("CONFIG SET client-output-buffer-limit \"normal {most:.0} {:.0} 60\"", most / 2.0))],
        "a client with a reply larger than that is disconnected",
        &cli(address, &format!("CONFIG SET client-output-buffer-limit \"normal {limit}\"")),
    )
}
