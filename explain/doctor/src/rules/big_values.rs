//! Values of tens of kilobytes and more keep the main thread busy: it spends its time moving bytes through its sockets.
//!
//! The time of a command does not include reading its arguments and writing its reply. For a GET of 100 kB the command
//! takes a microsecond, and copying the reply into the socket takes fifty. The slow log is empty, commandstats look
//! harmless, and yet the server is busy in the kernel.
//!
//! Seen when: the main thread uses over 70 % of a core, commands move 16 kB each on average, requests and replies
//! together, and at least half of its CPU time goes into moving these bytes. That is the time outside commands which
//! reads, turns of the event loop and new connections do not explain, and never more than 3 ns a byte. A cache of
//! 100 kB objects with time to spare is fine.
//!
//! Not to be taken for: one command that takes long on its own or returns megabytes (`slow_command`, `big_key`); a path
//! that is full while the server has time to spare (`bandwidth`); system calls for small values (`kernel_bound`), where
//! batches help; large replies to monitoring (`monitoring_storm`, `topology_storm`); messages for many subscribers;
//! MONITOR. Where io-threads write the replies, the main thread's clock does not show the cost, and nothing is
//! reported.
//!
//! How to confirm: run `INFO stats` twice: total_net_output_bytes and total_net_input_bytes divided by
//! total_commands_processed; Valkey 8.1+: `COMMANDLOG GET 10 large-reply` and `large-request`; Redis 8+:
//! `INFO keysizes`.
//!
//! What to do: compress values in the client, ask only for the fields that are needed, keep the most-read values in the
//! client.
//! Sources: INFO stats, cpu, commandstats, COMMANDLOG (Valkey 8.1+); measured on Valkey 9.1: 0.4 to 0.6 ns for each
//! byte of a reply over loopback.

use unslow_facts::Side;

use super::callers;
use super::kernel_bound::BUSY;
use super::large;
use super::prelude::*;
use super::slow_command::from_replica;

pub const TITLE: &str = "Big values";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Bytes that a command moves from which they cost more than the command: what a reply buffer of a client holds.
const LARGE: f64 = 16_384.0;
/// Of the CPU time.
const PART: f64 = 0.5;
/// Of all calls, where messages to subscribers may be what is sent; and of a core, where monitoring may be.
const SOME: f64 = 0.01;

/// What one server moved in the window.
struct Moved<'a> {
    node: &'a Node,
    /// Share of a core that it used.
    cpu: f64,
    /// Of that, for moving bytes.
    moving: f64,
    sent: f64,
    received: f64,
    commands: f64,
}

impl Moved<'_> {
    fn of(node: &Node) -> Option<Moved<'_>> {
        let (user, sys) = node.cpu()?;
        let (sent, received) = (sent_bytes(node)?, received_bytes(node)?);
        let commands = node.foreign_commands().values().map(|stat| stat.calls as f64).sum();
        let moving = moving_us(node, sent + received)? / 1e6 / node.window_s.max(0.001);
        Some(Moved { node, cpu: user + sys, moving, sent, received, commands })
    }

    /// Bytes for each command, both ways.
    fn each(&self) -> f64 {
        (self.sent + self.received) / self.commands.max(1.0)
    }

    fn hurts(&self) -> bool {
        let large = self.commands >= 1.0 && self.each() >= LARGE && self.moving >= PART * self.cpu;
        self.cpu > BUSY && large && is_used(self.node) && !is_of_others(self.node)
    }
}

/// Whether the bytes may be those of monitoring, of subscribers or of MONITOR, or another rule names the command.
fn is_of_others(node: &Node) -> bool {
    let watched = spent(node, super::monitoring_storm::COMMANDS).share + spent(node, &["cluster"]).share;
    let all = spent(node, &["publish", "spublish"]).calls as f64;
    let commands: f64 = node.foreign_commands().values().map(|stat| stat.calls as f64).sum();
    let monitored = node.clients.value().is_some_and(|c| c.notable.iter().any(|row| row.flags.contains('O')));
    let threaded = node.delta("io_threaded_writes_processed").is_some_and(|n| n > 0.0);
    let others = watched > SOME || all > SOME * commands || monitored || threaded;
    others || super::slow_command::speaks(node) || super::big_key::speaks(node)
}

/// Whether this rule names the node.
pub(super) fn speaks(node: &Node) -> bool {
    Moved::of(node).is_some_and(|m| m.hurts())
}

pub fn check(facts: &Facts) -> Verdict {
    let all = by_worst(facts.live().filter_map(Moved::of).collect(), |m: &Moved| m.moving);
    let rows: Vec<&Moved> = all.iter().filter(|m| m.hurts()).collect();
    if let Some(worst) = rows.first() {
        return found(facts, worst).on(rows.iter().map(|m| m.node.address.as_str())).into();
    }
    let text = all.first().map(|m| {
        format!("big values: {} per command, at most {} of a core to move them", bytes(m.each()), percent(m.moving))
    });
    Verdict::absent(facts, "big values", text)
}

fn found(facts: &Facts, m: &Moved) -> Finding {
    let node = m.node;
    let window = node.window_s.max(0.001);
    let (which, most) = if m.sent >= m.received { ("replies", m.sent) } else { ("requests", m.received) };
    let each = most / m.commands.max(1.0);
    let command = busiest(node);
    let finding = Finding::new(format!(
        "{} spends {} of a core moving bytes: {which} of {} on average, {} a second",
        node.address,
        percent(m.moving),
        bytes(each),
        bytes(most / window)
    ))
    .core(
        m.moving,
        format!("{} out of {} of a core goes into reading and writing values", percent(m.moving), percent(m.cpu)),
    )
    .gain(
        format!("values of half the size would free {} of a core", percent(m.moving / 2.0)),
        format!(
            "{:.3} of a core for {:.0} bytes/s = {:.2} ns a byte; half the bytes = {:.3}",
            m.moving,
            (m.sent + m.received) / window,
            m.moving * window * 1e9 / (m.sent + m.received).max(1.0),
            m.moving / 2.0
        ),
    )
    .likely(
        "bytes, commands and CPU time were counted; the time that went into the bytes is the part that nothing else \
         explains",
    )
    .saw(
        node,
        "INFO stats",
        format!(
            "total_net_output_bytes +{:.0}, total_net_input_bytes +{:.0} in {window:.1} s, {} commands",
            m.sent,
            m.received,
            count(m.commands)
        ),
    )
    .saw(
        node,
        "INFO cpu",
        format!(
            "main thread {} of a core, {} inside \
                                    commands",
            percent(m.cpu),
            percent(inside_share(node))
        ),
    );
    let side = if m.sent >= m.received { Side::Reply } else { Side::Request };
    let finding = callers::shown(large::shown(finding, node, side), node, &[&format!("={command}")])
        .not("a slow command: none took long by the server's own clock, even with the writing of its replies included")
        .not(format!("small values, one at a time: {} per command", bytes(m.each())))
        .fix(
            "Compress values of more than a few kilobytes in the client, or use a more compact format than JSON",
            &callers::advice(
                node,
                &[
                    ("lettuce", "Lettuce: CompressionCodec.valueCompressor(codec, CompressionType.GZIP)"),
                    ("redis-py", "redis-py: r.set(key, zlib.compress(value)), zlib.decompress(r.get(key))"),
                    ("jedis", "Jedis: set(byte[], byte[]) with compressed values"),
                    ("go-redis", "go-redis: values through s2.Encode and s2.Decode"),
                    ("ioredis", "ioredis: zlib.deflate before set, getBuffer and zlib.inflate"),
                ],
            ),
            "costs CPU time in the clients; readers must understand the new format before writers use it",
            "",
        )
        .fix(
            "Ask only for the part that is needed, and keep the most-read values in the client",
            &[
                "HMGET key field1 field2   instead of one value with everything",
                "CLIENT TRACKING on   (6.0+: the server says when a copy is stale)",
            ],
            "requires a change to the data model; copies in clients use their memory",
            "",
        );
    from_replica(finding, facts, node, &command.to_uppercase())
}

/// The command that an application sent most, as commandstats names it.
fn busiest(node: &Node) -> String {
    let all = node.application_commands();
    all.into_iter().max_by_key(|(_, stat)| stat.calls).map_or(String::new(), |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;
    use crate::rules::made::{answer, node_at, of, said};

    /// Ten seconds with this many GETs that moved this many bytes, at this share of a core.
    fn facts(calls: u64, sent: u64, cpu: f64, more: &str) -> Facts {
        let before = "redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\ntotal_reads_processed:0\r\n\
                      total_net_output_bytes:0\r\ntotal_net_input_bytes:0\r\ntotal_net_repl_output_bytes:0\r\n\
                      total_net_repl_input_bytes:0\r\nused_cpu_user_main_thread:0\r\nused_cpu_sys_main_thread:0\r\n\
                      eventloop_cycles:0\r\nio_threaded_writes_processed:0\r\n";
        let after = format!(
            "total_commands_processed:{calls}\r\ntotal_reads_processed:{calls}\r\ntotal_net_output_bytes:{sent}\r\n\
             total_net_input_bytes:{}\r\nused_cpu_user_main_thread:{}\r\nused_cpu_sys_main_thread:{}\r\n\
             eventloop_cycles:{}\r\ncmdstat_get:calls={calls},usec={calls},usec_per_call=1.00\r\n{more}",
            calls * 30,
            cpu,
            cpu * 9.0,
            calls / 10
        );
        of(DeploymentKind::Standalone, vec![node_at("10.0.0.1:6379", before, &after)])
    }

    #[test]
    fn a_main_thread_full_of_100_kb_replies_is_told_as_such_and_not_as_many_system_calls() {
        // 160,000 replies of 100 kB: 16 GB at 0.5 ns are 8 s of 10.
        let full = facts(160_000, 16_000_000_000, 0.95, "");
        let found = said(check(&full));
        assert_eq!(found.impact.currency, Currency::Capacity);
        assert!(found.impact.value > 0.7 && found.impact.value < 0.95, "{}", found.impact.value);
        assert!(found.title.contains("replies of 100 kB"), "{}", found.title);
        assert!(!super::super::kernel_bound::speaks(&full.nodes[0]), "batches would not help");
    }

    #[test]
    fn look_alikes_are_left_alone() {
        let published = "cmdstat_publish:calls=9000,usec=9000,usec_per_call=1.00\r\n";
        let storm = "cmdstat_client|list:calls=100,usec=900000,usec_per_call=9000.00\r\n";
        for (what, facts) in [
            ("a busy cache of 100 kB objects with time to spare", facts(80_000, 8_000_000_000, 0.5, "")),
            ("small values", facts(3_000_000, 300_000_000, 0.95, "")),
            ("the time goes elsewhere", facts(20_000, 400_000_000, 0.95, "")),
            ("messages to subscribers", facts(160_000, 16_000_000_000, 0.95, published)),
            ("lists of clients", facts(160_000, 16_000_000_000, 0.95, storm)),
            ("io-threads write", facts(160_000, 16_000_000_000, 0.95, "io_threaded_writes_processed:9000\r\n")),
            (
                "replicas are copied to",
                facts(160_000, 16_000_000_000, 0.95, "total_net_repl_output_bytes:15999000000\r\n"),
            ),
        ] {
            assert_eq!(answer(&check(&facts)), "absent", "{what}");
        }
        assert_eq!(answer(&check(&of(DeploymentKind::Standalone, vec![node_at("h:1", "", "")]))), "unknown");
    }
}
