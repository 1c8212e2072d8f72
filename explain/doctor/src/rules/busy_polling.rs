//! Workers keep asking for work when there is none.
//!
//! LPOP, RPOP, ZPOPMIN, XREADGROUP or ZRANGEBYSCORE in a loop takes a round trip, a read and a wake-up of the server
//! each time it finds nothing. More workers make it worse, and an empty queue costs more than a full one. The blocking
//! forms (BLPOP, BZPOPMIN, XREADGROUP BLOCK) wait at the server, cost nothing while they wait, and get the job sooner.
//!
//! Seen when: at least 70 % of such calls found nothing, at more than 100 a second, and these take over 1 % of a core.
//! The server does not count the calls that found nothing, but there is a lower bound: a pop or XREADGROUP that finds
//! something is a change (rdb_changes_since_last_save), a read that finds a key is a hit (keyspace_hits), and a reply
//! with an element in it has at least eleven bytes (total_net_output_bytes). Calls that these do not account for found
//! nothing.
//!
//! Not to be taken for: GETs of keys that do not exist, which are what a cache's misses look like (`low_hit_ratio`),
//! while pops never count as misses; blocking calls that time out after seconds. Where other commands change or send so
//! much that the bounds say nothing, it is not called polling. `no_pipelining` says nothing where most commands are
//! such polls.
//!
//! How to confirm: run `INFO commandstats` twice, together with rdb_changes_since_last_save of `INFO persistence`;
//! `CLIENT LIST`: connections with cmd=lpop, rpop, zpopmin, xreadgroup; `LLEN` of their queue.
//!
//! What to do: first add a pause after an empty reply; then use the blocking form.
//! Sources: INFO commandstats, persistence and stats; t_list.c, t_stream.c and db.c (what counts as a change, a hit or
//! a miss); the price of a read and a turn of the event loop in `measure/between.rs`.

use unslow_facts::Sample;

use super::callers;
use super::prelude::*;

pub const TITLE: &str = "Busy polling";
pub const LEADS_TO: &[&str] = &["kernel_bound", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// What changes the data set whenever it finds something, with its blocking form.
const TAKES: &[(&str, &str)] = &[
    ("lmove", "BLMOVE source destination LEFT RIGHT 5"),
    ("lmpop", "BLMPOP 5 1 key LEFT"),
    ("lpop", "BLPOP key 5"),
    ("rpop", "BRPOP key 5"),
    ("rpoplpush", "BRPOPLPUSH source destination 5"),
    ("xreadgroup", "XREADGROUP GROUP group consumer BLOCK 5000 STREAMS key >"),
    ("zmpop", "BZMPOP 5 1 key MIN"),
    ("zpopmax", "BZPOPMAX key 5"),
    ("zpopmin", "BZPOPMIN key 5"),
];
/// What only reads.
const READS: &[(&str, &str)] = &[
    ("xread", "XREAD BLOCK 5000 STREAMS key id"),
    (
        "zrangebyscore",
        "ZRANGE key 0 0 WITHSCORES   (sleep until that score, a second at most; a new job wakes the \
                       worker)",
    ),
];
/// The shortest reply to a read that found nothing (RESP3's null), and what one with an element has more, in bytes.
const EMPTY_BYTES: f64 = 3.0;
const ELEMENT_BYTES: f64 = 8.0;
/// Of the polls; a second; of a core.
const SHARE: f64 = 0.7;
const LEAST: f64 = 100.0;
const CORE: f64 = 0.01;
/// Of all commands: from here on the rest of the traffic is judged once the polls are gone.
const MOST: f64 = 0.4;

/// What the workers of one server ask for.
struct Polls<'a> {
    node: &'a Node,
    /// Calls of such commands.
    calls: f64,
    /// How many of them found nothing, at least.
    empty: f64,
    /// Share of a core that those take.
    core: f64,
    /// The bounds, in words.
    bounds: Vec<String>,
}

impl Polls<'_> {
    /// `None` where the counters do not say.
    fn of(node: &Node) -> Option<Polls<'_>> {
        node.application_ops()?;
        let (takes, reads) = (spent(node, &names_of(TAKES)), spent(node, &names_of(READS)));
        let (pops, looks) = (takes.calls as f64, reads.calls as f64);
        let mut bounds = Vec::new();
        let (mut empty_pops, mut empty_looks) = (0.0, 0.0);
        if let Some(changes) = changes(node).filter(|_| pops > 0.0) {
            empty_pops = (pops - changes).max(0.0);
            bounds.push(format!("{pops:.0} pops and group reads, rdb_changes_since_last_save +{changes:.0}"));
        }
        let counted = node.delta("keyspace_hits").zip(node.delta("total_net_output_bytes"));
        if let Some((hits, sent)) = counted.filter(|_| looks > 0.0) {
            let answered = ((sent - EMPTY_BYTES * looks) / ELEMENT_BYTES).max(0.0);
            empty_looks = (looks - hits.min(answered)).max(0.0);
            bounds.push(format!("{looks:.0} reads, keyspace_hits +{hits:.0}, {} sent in all", bytes(sent)));
        }
        let outside_us = call_us(node) / node.depth().unwrap_or(1.0).max(1.0);
        let us = empty_pops * (takes.mean_us + outside_us) + empty_looks * (reads.mean_us + outside_us);
        let core = us / 1e6 / node.window_s.max(0.001);
        Some(Polls { node, calls: pops + looks, empty: empty_pops + empty_looks, core, bounds })
    }

    fn rate(&self) -> f64 {
        self.empty / self.node.window_s.max(0.001)
    }

    fn hurts(&self) -> bool {
        // A replica replays what its master's clients popped.
        let in_vain = self.empty >= SHARE * self.calls && self.rate() > LEAST;
        in_vain && self.core > CORE && self.node.is_master()
    }

    /// The commands, the most frequent first, with their blocking forms.
    fn commands(&self) -> Vec<(&'static str, &'static str, f64)> {
        let all = TAKES.iter().chain(READS).map(|&(name, better)| {
            let calls = spent(self.node, &[name]).calls as f64;
            (name, better, calls)
        });
        by_worst(all.filter(|(_, _, calls)| *calls > 0.0).collect(), |(_, _, calls)| *calls)
    }
}

fn names_of(table: &[(&'static str, &'static str)]) -> Vec<&'static str> {
    table.iter().map(|(name, _)| *name).collect()
}

/// Changes of the data set in the window; `None` where a save set the count back, or it is not there.
pub(super) fn changes(node: &Node) -> Option<f64> {
    let saved = |sample: &Sample| sample.info.get("rdb_last_save_time").map(String::from);
    let (before, after) = (saved(node.first.as_ref()?)?, saved(node.last.as_ref()?)?);
    if before == after { node.delta("rdb_changes_since_last_save") } else { None }
}

/// Whether polls that found nothing are so many that the rest of the traffic can only be judged without them.
pub(super) fn is_most(node: &Node) -> bool {
    Polls::of(node).is_some_and(|p| p.hurts() && p.empty >= MOST * node.processed().unwrap_or(f64::INFINITY))
}

/// Reads that may look for keys which are not there by design.
pub(super) fn looks(node: &Node) -> f64 {
    spent(node, &names_of(READS)).calls as f64
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Polls<'_>> = facts.live().filter_map(Polls::of).collect();
    let rows = by_worst(all.iter().filter(|p| p.hurts()).collect(), |p| p.core);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|p| p.node.address.as_str())).into();
    }
    const WHAT: &str = "polling";
    // Many calls, and a save in the window: how many of them found something is not known.
    let hidden = |n: &&Node| spent(n, &names_of(TAKES)).rate > LEAST && changes(n).is_none();
    if let Some(node) = facts.live().filter(|n| n.is_master()).find(hidden) {
        let why = format!("{WHAT}: {} saved in the window, which resets its count of changes", node.address);
        return Verdict::unknown(Lack::Time, why, "run again");
    }
    match by_worst(all.iter().collect(), |p| p.empty).first() {
        None => Verdict::absent(facts, WHAT, None),
        Some(p) if p.calls < 1.0 => absent_by_commandstats(
            facts,
            WHAT,
            format!("{WHAT}: no LPOP, ZPOPMIN, XREADGROUP or the like in the window"),
        ),
        Some(p) => {
            let (calls, empty) = (count(p.calls), count(p.empty));
            let text = format!("{WHAT}: of {calls} pops and reads of queues, {empty} are known to have found nothing");
            absent_by_commandstats(facts, WHAT, text)
        }
    }
}

fn found(p: &Polls<'_>) -> Finding {
    let (node, rate, core) = (p.node, p.rate(), p.core);
    let commands = p.commands();
    let told: Vec<String> = commands.iter().take(3).map(|(name, _, _)| name.to_uppercase()).collect();
    let each_us = core / rate.max(0.001) * 1e6;
    let mut finding = Finding::new(format!(
        "Workers ask {} for work that is not there: {} found nothing {} times a second, at least {} of their calls",
        node.address,
        names(&told),
        count(rate),
        percent(p.empty / p.calls.max(1.0))
    ))
    .core(core, format!("about {} of a core on {} goes into empty replies", percent(core), node.address))
    .gain(
        format!("with calls that wait at the server, {} of a core is free again", percent(core)),
        format!("{rate:.0} calls/s x {each_us:.1} us = {core:.4} cores"),
    )
    .likely(
        "the server counted the calls and their time, and its other counters show how many found nothing; the cost of \
         reading and waking up for each call is an estimate",
    );
    for (name, _, calls) in commands.iter().take(3) {
        let told = format!(
            "{}: {} calls, {} \
                            each",
            name.to_uppercase(),
            count(*calls),
            time_us(spent(node, &[*name]).mean_us)
        );
        finding = finding.saw(node, "INFO commandstats", told);
    }
    for bound in &p.bounds {
        finding = finding.saw(node, "INFO", bound.clone());
    }
    let asked: Vec<&str> = commands.iter().map(|(name, _, _)| *name).collect();
    finding = callers::shown(finding, node, &asked);
    if let Some(misses) = node.delta("keyspace_misses") {
        finding = finding.not(format!("cache misses: {} in the window, and pops are not among them", count(misses)));
    }
    finding = finding.fix(
        "Right away: pause after an empty reply, and longer after each further one",
        &["pause = min(2 x pause, 1 s) after an empty answer; no pause after a job"],
        "a job may wait for up to that pause",
        "",
    );
    let better: Vec<&str> = commands.iter().filter(|c| c.2 >= 0.1 * p.calls).map(|c| c.1).collect();
    finding.fix(
        "Let the server wake the worker: use the blocking form of the command",
        &better,
        "a waiting worker needs its own connection, not one that others share (Lettuce, multiplexers)",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;
    use unslow_topology::{Info, Role};

    /// Ten seconds with these calls, of 2 us each, and these counters at the end.
    fn facts(calls: &[(&str, u64)], after: &str) -> Facts {
        let counters = "redis_version:7.2.4\r\nrole:master\r\nconnected_clients:5\r\ntotal_commands_processed:0\r\n\
                        total_reads_processed:0\r\nkeyspace_hits:0\r\nkeyspace_misses:0\r\ntotal_net_output_bytes:0\r\n\
                        rdb_changes_since_last_save:0\r\nrdb_last_save_time:100\r\n";
        let all: u64 = calls.iter().map(|(_, n)| *n).sum();
        let lines: String = calls
            .iter()
            .map(|(name, n)| format!("cmdstat_{name}:calls={n},usec={},usec_per_call=2.00\r\n", 2 * n))
            .collect();
        let sums = format!("total_commands_processed:{all}\r\ntotal_reads_processed:{all}\r\n");
        let first = Info::parse(counters);
        let mut last = first.clone();
        last.0.extend(Info::parse(&(lines + &sums + after)).0);
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        node.first = Some(Sample { at_ms: 0, info: first });
        node.last = Some(Sample { at_ms: 10_000, info: last });
        node.window_s = 10.0;
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    #[test]
    fn pops_that_change_nothing_found_nothing() {
        let polls = facts(&[("rpop", 50_000), ("lpush", 1000)], "rdb_changes_since_last_save:2000\r\n");
        let Verdict::Present(found) = check(&polls) else { panic!("not found") };
        assert_eq!(found.impact.currency, Currency::Capacity);
        assert!(found.title.contains("RPOP found nothing 4,800 times a second, at least 96 %"), "{}", found.title);
        assert!(found.remedies.iter().any(|r| r.commands == ["BRPOP key 5"]), "{:?}", found.remedies);
        assert!(is_most(&polls.nodes[0]));
    }

    #[test]
    fn reads_without_hits_or_without_bytes_found_nothing() {
        let polls = |after: &str| facts(&[("zrangebyscore", 50_000)], after);
        // The key is not there.
        let absent = polls("keyspace_misses:50000\r\ntotal_net_output_bytes:9000000\r\n");
        assert!(matches!(check(&absent), Verdict::Present(_)));
        // It is, and its first job is due later.
        let early = polls("keyspace_hits:50000\r\ntotal_net_output_bytes:200000\r\n");
        assert!(matches!(check(&early), Verdict::Present(_)));
        let full = polls("keyspace_hits:50000\r\ntotal_net_output_bytes:9000000\r\n");
        assert!(matches!(check(&full), Verdict::Absent(_)));
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            (
                "a queue with \
              work",
                facts(&[("rpop", 50_000), ("lpush", 50_000)], "rdb_changes_since_last_save:100000\r\n"),
            ),
            ("other writes that may hide it", facts(&[("rpop", 50_000)], "rdb_changes_since_last_save:50000\r\n")),
            ("a worker that sleeps", facts(&[("rpop", 500)], "")),
            ("misses of a cache", facts(&[("get", 50_000)], "keyspace_misses:50000\r\n")),
            ("waiting at the server", facts(&[("blpop", 500), ("lpush", 500)], "rdb_changes_since_last_save:1000\r\n")),
        ] {
            assert!(matches!(check(&facts), Verdict::Absent(_)), "{what}");
        }
    }

    #[test]
    fn a_save_in_the_window_hides_the_changes() {
        let saved = facts(&[("rpop", 50_000)], "rdb_last_save_time:105\r\n");
        assert!(matches!(check(&saved), Verdict::Unknown(_)));
        assert!(matches!(check(&Facts::of_nothing("redis://10.0.0.1:6379")), Verdict::Unknown(_)));
    }
}
