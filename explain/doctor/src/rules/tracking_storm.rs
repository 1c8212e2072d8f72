//! Invalidations for caching clients cost the server more than the commands do.
//!
//! With CLIENT TRACKING a server notifies each client that may have cached a key when that key changes. A broadcasting
//! client (BCAST) is notified of every change under its prefixes, whether it has read the key or not: without a prefix,
//! of every change there is. A write then costs one message for each such client, and the cache that was meant to save
//! the server's time takes it up.
//!
//! Seen when: clients use tracking, over 1,000 messages a second were written that no read asked for, more than there
//! were commands, and the CPU time that commands, reads and event loop iterations do not explain, counted at no more
//! than 10 us a message, is over 1 % of a core. Replicas' streams are subtracted.
//!
//! Not to be taken for: `tracking_table`, where keys are forgotten for lack of room; invalidations at a modest rate,
//! which are the feature doing its job; pub/sub, keyspace notifications and MONITOR, which push messages as well: where
//! these are in use, the rule makes no claim.
//!
//! How to confirm: `INFO stats` twice: total_writes_processed compared with total_reads_processed,
//! tracking_total_prefixes; `INFO clients`: tracking_clients; `CLIENT LIST`: flags t and B.
//!
//! What to do: use prefixes that cover only what is cached and rarely written; the default mode if each client caches
//! few keys; no tracking for keys that change all the time.
//! Sources: INFO stats, clients and cpu; tracking.c (trackingBroadcastInvalidationMessages); redis/redis#13681; Redis
//! documentation on client-side caching.

use super::callers;
use super::prelude::*;

pub const TITLE: &str = "Tracking storm";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Messages a second; for each command; of a core.
const LEAST: f64 = 1000.0;
const FOR_EACH: f64 = 1.0;
const CORE: f64 = 0.01;
/// No more than this is put down to a message, whatever else the server did outside commands, in us.
const MOST_US: f64 = 10.0;
/// Replies that are larger on average are written in several parts, in bytes.
const LARGE_BYTES: f64 = 4096.0;
/// Commands that push what they are given.
const PUBLISHES: &[&str] = &["publish", "spublish"];

/// What one server pushes.
struct Pushed<'a> {
    node: &'a Node,
    /// Clients that track now, and prefixes that are broadcast.
    clients: f64,
    prefixes: f64,
    /// Messages in the window that no read asked for, at least.
    messages: f64,
    commands: f64,
    writes: f64,
    reads: f64,
    /// Of a core.
    core: f64,
}

impl Pushed<'_> {
    /// `None` where clients do not track, the counters do not say, or something else may push.
    fn of(node: &Node) -> Option<Pushed<'_>> {
        let clients = node.number("tracking_clients").filter(|n| *n > 0.0)?;
        let (writes, reads) = (node.delta("total_writes_processed")?, node.delta("total_reads_processed")?);
        let commands = node.processed()?;
        if others_push(node) || node.delta("total_net_output_bytes")? > LARGE_BYTES * writes {
            return None;
        }
        // One write for each replica and turn of the event loop, at most.
        let turns = node.delta("eventloop_cycles").unwrap_or(reads);
        let to_replicas = node.number("connected_slaves").unwrap_or(0.0) * turns;
        let messages = (writes - reads - to_replicas).max(0.0);
        let window = node.window_s.max(0.001);
        let left = outside_us(node).map_or(0.0, |us| us - traffic_us(node));
        let core = left.clamp(0.0, messages * MOST_US) / 1e6 / window;
        let prefixes = node.number("tracking_total_prefixes").unwrap_or(0.0);
        Some(Pushed { node, clients, prefixes, messages, commands, writes, reads, core })
    }

    fn rate(&self) -> f64 {
        self.messages / self.node.window_s.max(0.001)
    }

    fn hurts(&self) -> bool {
        self.rate() > LEAST && self.messages > FOR_EACH * self.commands && self.core > CORE
    }
}

/// Whether anything but tracking may have pushed messages: pub/sub, keyspace notifications, MONITOR.
fn others_push(node: &Node) -> bool {
    let subscribed = ["pubsub_channels", "pubsub_patterns", "pubsubshard_channels"]
        .iter()
        .any(|field| node.number(field).unwrap_or(0.0) > 0.0);
    let notifies = node.setting("notify-keyspace-events").is_none_or(|classes| !classes.is_empty());
    let published = spent(node, PUBLISHES).calls > 0;
    let monitors = node.clients.value().into_iter().flat_map(|c| &c.notable).any(|r| r.flags.contains('O'));
    (subscribed && (published || notifies)) || monitors
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "invalidations for caching clients";
    let tracking: Vec<f64> = facts.live().filter_map(|n| n.number("tracking_clients")).collect();
    if !tracking.is_empty() && tracking.iter().all(|n| *n < 1.0) {
        return Verdict::NotHere;
    }
    let old = |n: &Node| (1, 0) < n.level() && n.level() < (6, 0);
    if facts.live().next().is_some() && facts.live().all(old) {
        return Verdict::NotHere;
    }
    let all: Vec<Pushed<'_>> = facts.live().filter_map(Pushed::of).collect();
    let rows = by_worst(all.iter().filter(|p| p.hurts()).collect(), |p| p.core);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|p| p.node.address.as_str())).into();
    }
    if all.is_empty() && !tracking.is_empty() {
        let why = format!(
            "{WHAT}: pub/sub, notifications, MONITOR or large replies are written as well, and servers count them all \
             together"
        );
        return Verdict::unknown(Lack::Other, why, "");
    }
    let text = by_worst(all.iter().collect(), |p| p.messages).first().map(|p| {
        format!(
            "{WHAT}: at most {} messages a second, next to {} commands",
            count(p.rate()),
            count(p.commands / p.node.window_s.max(0.001))
        )
    });
    Verdict::absent(facts, WHAT, text)
}

fn found(p: &Pushed<'_>) -> Finding {
    let (node, rate, core) = (p.node, p.rate(), p.core);
    let each = p.messages / p.commands.max(1.0);
    let us = core / rate.max(0.001) * 1e6;
    let mode = if p.prefixes > 0.0 { ", broadcasting" } else { "" };
    let mut finding = Finding::new(format!(
        "{} invalidations a second are pushed from {} to {} caching clients: {} for each command{mode}",
        count(rate),
        node.address,
        count(p.clients),
        count(each)
    ))
    .core(core, format!("about {} of a core on {} for messages that no client asked for", percent(core), node.address))
    .gain(
        format!("tracking only what is rarely written frees up to {} of a core", percent(core)),
        format!("{rate:.0} messages/s x {us:.1} us = {core:.4} cores"),
    )
    .likely(
        "the messages are writes that no read asked for, both counted by the server; the CPU is what nothing else \
         explains, capped at the most that a message costs",
    )
    .saw(
        node,
        "INFO stats",
        format!(
            "total_writes_processed +{:.0}, total_reads_processed +{:.0} in {:.1} \
                 s",
            p.writes, p.reads, node.window_s
        ),
    )
    .saw(node, "INFO clients", format!("tracking_clients:{:.0}", p.clients))
    .saw(node, "INFO stats", format!("tracking_total_prefixes:{:.0}", p.prefixes))
    .not("pub/sub, keyspace notifications and MONITOR: none of them pushed in the window");
    if let Some(outside) = outside_us(node) {
        let told = format!(
            "{} outside commands, of which clients' traffic explains {}",
            time_us(outside),
            time_us(traffic_us(node))
        );
        finding = finding.saw(node, "INFO cpu", told);
    }
    mend(finding, p)
}

fn mend(finding: Finding, p: &Pushed<'_>) -> Finding {
    let finding = if p.prefixes > 0.0 {
        finding.fix(
            "Broadcast only what is cached and rarely written: use prefixes, and put keys that change all the time \
             under another one",
            &["CLIENT TRACKING ON BCAST PREFIX config: PREFIX product:   (instead of no prefix, which is every key)"],
            "keys outside the prefixes are no longer invalidated: they must not be cached",
            "CLIENT TRACKING OFF, and ON with the old prefixes",
        )
    } else {
        finding.fix(
            "Track only what is worth caching: use OPTIN, and send CLIENT CACHING YES before such a read",
            &[
                "CLIENT TRACKING ON OPTIN",
                "CLIENT CACHING YES   (right before the GET of a key that is rarely written)",
            ],
            "keys that are not opted in are not cached",
            "CLIENT TRACKING OFF, and ON without OPTIN",
        )
    };
    finding.fix(
        "In the libraries: use no client-side cache for keys that are written as often as they are read",
        &callers::advice(
            p.node,
            &[
                ("redis-py", "redis-py: cache_config=None for the client that reads such keys"),
                ("jedis", "Jedis: a second client without Cache for such keys"),
                ("lettuce", "Lettuce: TrackingArgs.Builder.enabled().bcast().prefixes(\"config:\") or .optin()"),
                ("redisson", "Redisson: RLocalCachedMap only for maps that are rarely written"),
            ],
        ),
        "these keys are read from the server each time",
        "",
    )
}

#[cfg(test)]
mod tests {
    use unslow_facts::{ClientRow, Clients, Seen};

    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    /// Ten seconds with 10,000 commands in 1,000 reads, this many writes and so many seconds of CPU; notifications are
    /// off.
    fn facts(writes: u64, cpu_s: f64, more: &str) -> Facts {
        let before = "redis_version:7.2.4\r\nrole:master\r\nconnected_slaves:0\r\ntracking_clients:20\r\n\
                      tracking_total_prefixes:20\r\n\
                      pubsub_channels:0\r\npubsub_patterns:0\r\ntotal_commands_processed:0\r\n\
                      total_reads_processed:0\r\n\
                      total_writes_processed:0\r\ntotal_net_output_bytes:0\r\neventloop_cycles:0\r\n\
                      used_cpu_user_main_thread:0\r\nused_cpu_sys_main_thread:0\r\n";
        let after = format!(
            "total_commands_processed:10000\r\ntotal_reads_processed:1000\r\ntotal_writes_processed:{writes}\r\n\
             total_net_output_bytes:9000000\r\neventloop_cycles:1000\r\nused_cpu_sys_main_thread:{cpu_s}\r\n\
             cmdstat_set:calls=10000,usec=10000,usec_per_call=1.00\r\n{more}"
        );
        let mut node = node_at("10.0.0.1:6379", before, &after);
        let value = [("notify-keyspace-events".to_string(), String::new())].into();
        node.config = Seen::yes(value, "CONFIG GET", 0);
        replicated(vec![node])
    }

    #[test]
    fn more_messages_than_commands_are_a_storm() {
        let found = said(check(&facts(101_000, 0.6, "")));
        assert!(found.title.starts_with("10,000 invalidations a second"), "{}", found.title);
        assert!(found.title.contains("10 for each command, broadcasting"), "{}", found.title);
        assert!(found.remedies[0].commands[0].contains("PREFIX"), "{:?}", found.remedies);
        // Half a second and more is what commands, reads and the clock leave of 0.6.
        assert!((0.04..0.06).contains(&found.impact.value), "{}", found.impact.value);
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("the feature at work", facts(6000, 0.6, "")),
            ("cheap messages", facts(101_000, 0.08, "")),
            ("a replica's stream", facts(21_000, 0.6, "connected_slaves:20\r\n")),
        ] {
            assert_eq!(answer(&check(&facts)), "absent", "{what}");
        }
        assert_eq!(answer(&check(&facts(101_000, 0.6, "tracking_clients:0\r\n"))), "not here");
    }

    #[test]
    fn beside_other_pushes_nothing_is_said() {
        let published = "pubsub_channels:1\r\ncmdstat_publish:calls=900,usec=900,usec_per_call=1.00\r\n";
        assert_eq!(answer(&check(&facts(101_000, 0.6, published))), "unknown");
        assert_eq!(
            answer(&check(&facts(101_000, 0.6, "total_net_output_bytes:900000000\r\n"))),
            "unknown",
            "large replies"
        );
        let mut watched = facts(101_000, 0.6, "");
        let monitor = ClientRow { flags: "O".into(), command: "monitor".into(), ..ClientRow::default() };
        let value = Clients { notable: vec![monitor], ..Clients::default() };
        watched.nodes[0].clients = Seen::yes(value, "CLIENT LIST", 0);
        assert_eq!(answer(&check(&watched)), "unknown");
        assert_eq!(answer(&check(&Facts::of_nothing("redis://10.0.0.1:6379"))), "unknown");
    }
}
