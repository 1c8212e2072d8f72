//! A subscriber does not read what it subscribed to, and the server keeps it all in memory.
//!
//! Messages that a client has not read wait in its output buffer. That memory counts towards `maxmemory`, until the
//! connection is closed at the limit (32 MB, or 8 MB for a minute, by default) and the messages are lost.
//!
//! Seen when: a pub/sub connection has over 1 MB waiting, and all such connections together have 5 % of the memory or
//! one of them has 4 MB.
//!
//! Not to be taken for: a replica that falls behind (flag S, another limit), or one large reply on its way; buffers of
//! ordinary clients (`client_memory`, which reports them if subscribers do not hold most of the memory).
//!
//! What to do: use a faster or a second consumer, a stream with a consumer group, or smaller messages.
//! Sources: CLIENT LIST omem; CONFIG GET client-output-buffer-limit.

use unslow_facts::ClientRow;

use super::prelude::*;

pub const TITLE: &str = "Slow subscriber";
pub const LEADS_TO: &[&str] = &["not_your_redis"];
pub const INJECTED: Injected = Injected::Yes;

/// What waits for one subscriber before it is called slow.
const WAITING_BYTES: u64 = 1_000_000;
/// The limit as servers come with it.
const DEFAULT_LIMIT: Limit = Limit { hard: 33_554_432.0, soft: 8_388_608.0, soft_s: 60.0 };

/// A class's part of `client-output-buffer-limit`, in bytes and seconds; 0 is no limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    pub hard: f64,
    pub soft: f64,
    pub soft_s: f64,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.0} {:.0} {:.0}", self.hard, self.soft, self.soft_s)
    }
}

/// The limit of a class of clients, as CONFIG GET has it:
/// `normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60`.
pub fn output_limit(node: &Node, classes: &[&str]) -> Option<Limit> {
    let words: Vec<&str> = node.setting("client-output-buffer-limit")?.split_whitespace().collect();
    let at = words.iter().position(|w| classes.contains(w))?;
    let number = |i: usize| words.get(at + i)?.parse::<f64>().ok();
    Some(Limit { hard: number(1)?, soft: number(2)?, soft_s: number(3)? })
}

pub fn check(facts: &Facts) -> Verdict {
    let rows = facts.live().map(|n| (n, slow(n))).filter(|(n, all)| matters(n, all));
    let rows = by_worst(rows.collect(), |(_, all)| total(all));
    if let Some((node, all)) = rows.first() {
        return found(node, all).on(rows.iter().map(|(n, _)| n.address.as_str())).into();
    }
    match facts.live().find_map(|n| n.clients.missing()) {
        Some(gap) => Verdict::Unknown(gap.of("subscribers' buffers")),
        None => Verdict::Absent(match facts.live().flat_map(subscribers).map(|c| c.output_bytes).max() {
            Some(most) => format!("slow subscribers: at most {} wait for one of them", bytes(most as f64)),
            None => "slow subscribers: less than 256 kB waits for any of them".into(),
        }),
    }
}

fn subscribers(node: &Node) -> impl Iterator<Item = &ClientRow> {
    node.clients.value().map_or(&[][..], |c| &c.notable).iter().filter(|c| c.flags.contains('P'))
}

fn slow(node: &Node) -> Vec<&ClientRow> {
    let mut all: Vec<&ClientRow> = subscribers(node).filter(|c| c.output_bytes > WAITING_BYTES).collect();
    all.sort_by_key(|c| std::cmp::Reverse(c.output_bytes));
    all
}

fn total(all: &[&ClientRow]) -> f64 {
    all.iter().map(|c| c.output_bytes as f64).sum()
}

/// What the server may use, or uses.
fn room(node: &Node) -> f64 {
    node.number("maxmemory").filter(|m| *m > 0.0).or_else(|| node.number("used_memory")).unwrap_or(0.0).max(1.0)
}

/// A little of much memory, and far from the limit, will be caught up with.
fn matters(node: &Node, all: &[&ClientRow]) -> bool {
    all.first().is_some_and(|worst| total(all) >= 0.05 * room(node) || worst.output_bytes >= 4_000_000)
}

fn found(node: &Node, all: &[&ClientRow]) -> Finding {
    let (worst, sum, room) = (all[0], total(all), room(node));
    let limit = output_limit(node, &["pubsub"]);
    let more = if all.len() > 1 { format!(", {} for {} of them", bytes(sum), all.len()) } else { String::new() };
    let finding = Finding::new(format!(
        "A subscriber of {} does not read: {} wait for it{more}",
        node.address,
        bytes(worst.output_bytes as f64)
    ))
    .memory(
        (sum / room).min(1.0),
        format!("{} of memory, {} of what the server may use", bytes(sum), percent(sum / room)),
    )
    .gain(format!("{} of memory freed", bytes(sum)), format!("sum of omem over {} connections = {sum:.0} B", all.len()))
    .proven("the server's own figure for bytes waiting")
    .saw(
        node,
        "CLIENT LIST TYPE pubsub",
        format!(
            "id={} addr={} name={} idle={} omem={}",
            worst.id, worst.address, worst.name, worst.idle_s, worst.output_bytes
        ),
    )
    .saw(
        node,
        "CONFIG GET client-output-buffer-limit",
        limit.map_or("not seen".into(), |l| format!("pubsub {l}")),
    );
    mend(finding, node, worst, limit)
}

fn mend(finding: Finding, node: &Node, worst: &ClientRow, limit: Option<Limit>) -> Finding {
    // CLIENT LIST ID is of 6.2.
    let find =
        if node.level() >= (6, 2) { format!("CLIENT LIST ID {}", worst.id) } else { "CLIENT LIST TYPE pubsub".into() };
    let finding = finding
        .fix(
            &format!(
                "Find that client ({}) and make it read, or have it work in another thread than the one that reads",
                worst.address
            ),
            &[&cli(&node.address, &find)],
            "",
            "",
        )
        .fix(
            "Close it before it hurts others",
            &[&cli(&node.address, &format!("CLIENT KILL ID {}", worst.id))],
            "its waiting messages are lost",
            "",
        );
    // A limit that is there and no larger than usual needs no other.
    let Some(old) = limit.filter(|l| l.hard == 0.0 || l.hard > DEFAULT_LIMIT.hard) else { return finding };
    finding.fix(
        "Let the server close such clients automatically, at its default limit",
        &[&cli(&node.address, &format!("CONFIG SET client-output-buffer-limit \"pubsub {DEFAULT_LIMIT}\""))],
        "subscribers with more waiting are closed immediately, and their messages are lost",
        &cli(&node.address, &format!("CONFIG SET client-output-buffer-limit \"pubsub {old}\"")),
    )
}
