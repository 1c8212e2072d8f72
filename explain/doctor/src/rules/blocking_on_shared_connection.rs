//! A blocking command holds up a connection that other callers share.
//!
//! BLPOP, XREAD BLOCK or WAIT occupies its connection until there is something to return. Until then the server does
//! not even look at the commands that other threads send over the same connection (Lettuce's and StackExchange.Redis'
//! shared connection, a multiplexing proxy). They wait for as long as the queue stays empty, then all run at once, and
//! no counter of the server shows it.
//!
//! Seen when: CLIENT LIST has a connection that waits in a blocking command (flag b), and 256 bytes or more of further
//! commands have been read from it and wait behind that command (qbuf).
//!
//! Not to be taken for: workers that block on their own connection (nothing waits behind them); a keepalive PING on
//! such a connection, which is only a few bytes; clients that are held up by CLIENT PAUSE (`paused`): their last
//! command is not a blocking one.
//!
//! How to confirm: run `CLIENT LIST` a few times: the same `id` with flags=b, cmd=blpop (or another) and qbuf above
//! zero.
//!
//! What to do: give each caller that blocks its own connection.
//! Sources: CLIENT LIST flags, cmd, qbuf; networking.c (processInputBuffer stops at a blocked client);
//! StackExchange/StackExchange.Redis#1609; Lettuce documentation on shared connections.

use unslow_facts::ClientRow;

use super::callers;
use super::prelude::*;

pub const TITLE: &str = "Blocking on a shared connection";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Commands that wait at the server, as CLIENT LIST names them.
const BLOCKS: &[&str] = &[
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "wait",
    "waitaof",
    "xread",
    "xreadgroup",
];
/// What must wait behind it: keepalives are shorter.
const LEAST_BYTES: u64 = 256;
/// How long most commands are, about.
const COMMAND_BYTES: f64 = 40.0;

/// Connections on which commands wait behind a blocking one, those with most bytes first.
fn held_up(node: &Node) -> Vec<&ClientRow> {
    let rows = node.clients.value().map_or(&[][..], |c| &c.notable).iter();
    let is_held =
        |r: &&ClientRow| r.flags.contains('b') && is_one_of(BLOCKS, &r.command) && r.unparsed_bytes >= LEAST_BYTES;
    by_worst(rows.filter(is_held).collect(), |r| r.unparsed_bytes as f64)
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "commands behind a blocking one";
    let all: Vec<(&Node, Vec<&ClientRow>)> =
        facts.live().map(|n| (n, held_up(n))).filter(|(_, h)| !h.is_empty()).collect();
    let all = by_worst(all, |(_, held)| held.iter().map(|r| r.unparsed_bytes as f64).sum());
    if let Some((node, held)) = all.first() {
        return found(node, held).on(all.iter().map(|(n, _)| n.address.as_str())).into();
    }
    if let Some(gap) = facts.live().find_map(|n| n.clients.missing()) {
        return Verdict::Unknown(gap.of(WHAT));
    }
    let blocked: Option<u64> = facts.live().map(|n| n.clients.value()?.blocked).sum();
    match blocked {
        Some(n) if facts.live().next().is_some() => Verdict::Absent(format!(
            "{WHAT}: none; {n} of the connections seen wait in a blocking command, each holding up only itself"
        )),
        Some(_) => Verdict::absent(facts, WHAT, None),
        None => Verdict::unknown(
            Lack::Other,
            format!("{WHAT}: not in these facts, which an older unslow saved"),
            "run again",
        ),
    }
}

fn found(node: &Node, held: &[&ClientRow]) -> Finding {
    let all: f64 = held.iter().map(|r| r.unparsed_bytes as f64).sum();
    let about = count((all / COMMAND_BYTES).ceil());
    let which = if held.len() == 1 { "a connection".to_string() } else { format!("{} connections", held.len()) };
    let mut finding = Finding::new(format!(
        "Commands wait behind a blocking one on {which} to {}: {} of them, about {about} commands, have not been \
         looked at",
        node.address,
        bytes(all)
    ))
    .risk("each waits until the blocking command returns: for as long as its key stays empty, or until its timeout")
    // Requests do hang; for how long, the server does not count.
    .severity(Severity::High)
    .proven(
        "the server itself shows the blocked connection, its command, and the bytes that it has read but not processed",
    );
    for row in held.iter().take(3) {
        let name = if row.name.is_empty() { String::new() } else { format!(" ({})", row.name) };
        let told = format!(
            "id={}{name} {}: cmd={} flags={} qbuf={}, connected for {} s",
            row.id, row.address, row.command, row.flags, row.unparsed_bytes, row.age_s
        );
        finding = finding.saw(node, "CLIENT LIST", told);
    }
    finding
        .not("a slow server: commands on other connections are being answered")
        .fix(
            "Give each caller that blocks its own connection",
            &callers::advice(
                node,
                &[
                    (
                        "lettuce",
                        "Lettuce: client.connect() for each thread that blocks; Spring: \
                                 setShareNativeConnection(false)",
                    ),
                    ("se.redis", "StackExchange.Redis: no blocking commands at all; pub/sub, or a poll with a pause"),
                    ("ioredis", "ioredis: redis.duplicate() for the worker"),
                    ("node-redis", "node-redis: client.duplicate() or the isolation pool for the worker"),
                ],
            ),
            "one more connection for each worker",
            "",
        )
        .fix(
            "Until then, use a short timeout for the blocking command",
            &["BLPOP key 0.1   instead of BLPOP key 0; XREAD BLOCK 100 instead of BLOCK 0"],
            "each worker polls an empty queue ten times a second",
            "set the old timeout again",
        )
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Clients, Seen};

    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    fn facts(flags: &str, command: &str, unparsed_bytes: u64) -> Facts {
        let mut node = node_at("10.0.0.1:6379", "redis_version:7.2.4\r\nrole:master\r\n", "");
        let row = ClientRow {
            id: 7,
            address: "10.0.0.9:5000".into(),
            flags: flags.into(),
            command: command.into(),
            query_bytes: unparsed_bytes + 20_000,
            unparsed_bytes,
            ..ClientRow::default()
        };
        let value = Clients { total: 9, listed: 9, blocked: Some(1), notable: vec![row], ..Clients::default() };
        node.clients = Seen::yes(value, "CLIENT LIST", 0);
        replicated(vec![node])
    }

    #[test]
    fn what_waits_behind_a_blocking_command_is_named() {
        for command in ["blpop", "xread", "wait"] {
            let found = said(check(&facts("b", command, 8000)));
            assert!(found.title.contains("about 200 commands"), "{}", found.title);
            assert_eq!(found.severity, Severity::High);
        }
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("a worker by itself", facts("b", "blpop", 0)),
            ("a keepalive on a worker's connection", facts("b", "blpop", 70)),
            ("CLIENT PAUSE", facts("b", "set", 8000)),
            ("a pipeline that is being read", facts("N", "xread", 8000)),
        ] {
            assert_eq!(answer(&check(&facts)), "absent", "{what}");
        }
    }

    #[test]
    fn without_the_rows_nothing_is_claimed() {
        let mut old = facts("b", "blpop", 0);
        old.nodes[0].clients.value_mut().expect("the clients were seen").blocked = None;
        assert_eq!(answer(&check(&old)), "unknown");
        let mut denied = facts("b", "blpop", 8000);
        denied.nodes[0].clients = Seen::default();
        assert_eq!(answer(&check(&denied)), "unknown");
        assert_eq!(answer(&check(&Facts::of_nothing("redis://10.0.0.1:6379"))), "unknown");
    }
}
