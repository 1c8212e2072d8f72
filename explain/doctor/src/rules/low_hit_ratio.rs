//! A cache misses too often: much of what it is asked for is not there, and is fetched or computed again.
//!
//! Each miss costs the application a round trip for nothing, then the query that the cache was meant to save, then a
//! write to store the result. Keys that live too briefly, answers that are never cached because there is nothing to
//! cache ("no such user"), or keys that are written under one name and read under another cause this permanently.
//!
//! Seen when: under 80 % of the reads in the window hit, at over 100 reads and 50 misses a second, and the server is a
//! cache: it may evict any key (maxmemory with an allkeys policy), or over 80 % of its keys have a TTL, its clients
//! write about as often as they miss, and at least every tenth read hits.
//!
//! Not to be taken for: `eviction_pressure`, which evicts what is about to be read: then that is the cause, and this
//! appears beneath it; a cache that is filling (after a restart or a flush its keys grow with its misses); existence
//! checks (EXISTS, TYPE, TTL) and reads of queues (`busy_polling`): as many misses as those may have caused are
//! subtracted. A store that is not a cache is asked for missing keys in its daily work.
//!
//! How to confirm: run `INFO stats` twice: keyspace_hits, keyspace_misses, expired_keys, evicted_keys; `INFO keyspace`:
//! expires and avg_ttl.
//!
//! What to do: longer TTLs if keys expire before they are read again; cache the empty answer too; let one caller fetch
//! while the others wait.
//! Sources: INFO stats and keyspace, CONFIG GET maxmemory-policy; db.c (lookupKeyRead counts, lookupKeyWrite does not).

use super::prelude::*;
use super::{busy_polling, callers, no_pipelining};

pub const TITLE: &str = "Low hit ratio";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Of the reads; and reads and misses a second.
const RATIO: f64 = 0.8;
const READS: f64 = 100.0;
const MISSES: f64 = 50.0;
/// Of the keys, for a server that may not evict any key: then nearly all of them have a TTL if it is a cache.
const EXPIRING: f64 = 0.8;
/// Of such a server's reads that hit: below it, keys are asked for because they should not be there.
const LEAST_HITS: f64 = 0.1;
/// Writes to each miss: a cache is filled by those who miss.
const REFILL: f64 = 0.3;
/// New keys to each miss: from here on it is filling.
const FILLING: f64 = 0.5;
/// Expired keys to each miss: from here on its keys live too briefly.
const EXPIRED: f64 = 0.3;

/// Commands that ask whether a key is there.
const CHECKS: &[&str] = &["exists", "type", "ttl", "pttl", "expiretime", "pexpiretime", "object", "dump", "strlen"];
/// Commands by which caches are filled.
const FILLS: &[&str] = &["set", "setex", "psetex", "setnx", "mset", "hset", "hmset", "getset", "restore", "json.set"];

/// How one server is read.
struct Reads<'a> {
    node: &'a Node,
    hits: f64,
    /// Without those that existence checks and queues may have caused.
    misses: f64,
    /// As counted.
    counted: f64,
    writes: f64,
    expired: f64,
    /// Keys more at the end than at the start.
    grown: f64,
    kind: Kind,
}

/// What a server is, as far as its settings and keys say.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// It may evict any key.
    Evicting,
    /// Nearly all of its keys have a TTL.
    Expiring,
    /// No cache.
    Store,
}

impl Reads<'_> {
    /// `None` where hits were not counted, or the counters were reset.
    fn of(node: &Node) -> Option<Reads<'_>> {
        let (hits, counted) = (node.delta("keyspace_hits")?, node.delta("keyspace_misses")?);
        let keys = |sample: &Option<unslow_facts::Sample>| sample.as_ref().map_or(0.0, |s| s.info.keys() as f64);
        let elsewhere = spent(node, CHECKS).calls as f64 + busy_polling::looks(node);
        Some(Reads {
            node,
            hits,
            misses: (counted - elsewhere).max(0.0),
            counted,
            writes: spent(node, FILLS).calls as f64,
            expired: node.delta("expired_keys").unwrap_or(0.0),
            grown: keys(&node.last) - keys(&node.first),
            kind: kind(node),
        })
    }

    fn ratio(&self) -> f64 {
        self.hits / (self.hits + self.misses).max(1.0)
    }

    fn per_s(&self, n: f64) -> f64 {
        n / self.node.window_s.max(0.001)
    }

    fn is_filling(&self) -> bool {
        self.grown >= FILLING * self.misses
    }

    fn is_cache(&self) -> bool {
        match self.kind {
            Kind::Evicting => true,
            Kind::Expiring => self.ratio() >= LEAST_HITS && self.writes >= REFILL * self.misses,
            Kind::Store => false,
        }
    }

    fn misses_much(&self) -> bool {
        let busy = self.per_s(self.hits + self.misses) > READS && self.per_s(self.misses) > MISSES;
        busy && self.ratio() < RATIO
    }

    fn hurts(&self) -> bool {
        self.misses_much() && self.is_cache() && !self.is_filling()
    }
}

fn kind(node: &Node) -> Kind {
    let Some(info) = node.info() else { return Kind::Store };
    let policy = node.setting("maxmemory-policy").or_else(|| info.get("maxmemory_policy")).unwrap_or("");
    let (keys, expiring) = (info.keys() as f64, info.expiring_keys() as f64);
    if policy.starts_with("allkeys-") && node.number("maxmemory").is_some_and(|max| max > 0.0) {
        Kind::Evicting
    } else if keys > 0.0 && expiring >= EXPIRING * keys {
        Kind::Expiring
    } else {
        Kind::Store
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Reads<'_>> = facts.live().filter_map(Reads::of).collect();
    let rows = by_worst(all.iter().filter(|r| r.hurts()).collect(), |r| r.misses);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|r| r.node.address.as_str())).into();
    }
    let text = by_worst(all.iter().collect(), |r| r.misses).first().map(|r| absent_text(r));
    Verdict::absent(facts, "hits and misses", text)
}

fn absent_text(r: &Reads<'_>) -> String {
    let figures = format!(
        "hits and misses: {} and {} a second, {} of the reads hit",
        count(r.per_s(r.hits)),
        count(r.per_s(r.counted)),
        percent(r.hits / (r.hits + r.counted).max(1.0))
    );
    if r.hits + r.counted < 1.0 {
        return "hits and misses: no key was read in the window".into();
    }
    if !r.misses_much() {
        return figures;
    }
    if r.is_filling() {
        return format!("{figures}; it is filling: {} more keys in the window", count(r.grown));
    }
    format!("{figures}; by its settings, keys and writes it is not a cache")
}

fn found(r: &Reads<'_>) -> Finding {
    let node = r.node;
    let missed = 1.0 - r.ratio();
    let finding = Finding::new(format!(
        "The cache on {} misses {} times a second: {} of the reads hit",
        node.address,
        count(r.per_s(r.misses)),
        percent(r.ratio())
    ));
    let mut finding = price(finding, r, missed)
        .saw(
            node,
            "INFO stats",
            format!(
                "keyspace_hits +{:.0}, keyspace_misses +{:.0}, expired_keys +{:.0} in {:.1} s",
                r.hits, r.counted, r.expired, node.window_s
            ),
        )
        .saw(node, "INFO commandstats", format!("{} calls of SET and the like: the clients fill it", count(r.writes)));
    if let Some(before) = earlier_ratio(node) {
        finding = finding.saw(
            node,
            "INFO stats",
            format!(
                "{} of the reads hit from its start to the \
            window",
                percent(before)
            ),
        );
    }
    finding = finding.saw(node, "INFO keyspace", kind_text(r));
    finding = callers::shown(finding, node, &["get", "mget", "hget", "hmget", "hgetall", "json.get"])
        .not(format!("evictions: {} keys a second", count(node.rate("evicted_keys").unwrap_or(0.0))))
        .not(format!("a cache that is filling: {} keys at the end of the window than at its start", signed(r.grown)));
    if r.counted > r.misses {
        finding = finding.not(format!(
            "existence checks and reads of queues: they may have caused {} more misses, which are left out",
            count(r.counted - r.misses)
        ));
    }
    mend(finding, r)
}

/// At least the round trip of each read that brought nothing.
fn price(finding: Finding, r: &Reads<'_>, missed: f64) -> Finding {
    let least = "the cost of a miss at the source of the data cannot be seen from here";
    let misses = count(r.per_s(r.misses));
    // How far the clients are is known from their sockets alone: we may look from far away.
    let distance = no_pipelining::round_trip_us(r.node).filter(|(_, seen)| *seen);
    let Some((rtt_us, _)) = distance else {
        return finding
            .risk(format!("{misses} reads a second find nothing and are answered elsewhere"))
            .severity(Severity::Low)
            .likely(format!("the server counted hits and misses; {least}"));
    };
    // Keys that are asked for together, by MGET or in a pipeline, come back together.
    let commands = r.node.application_ops().unwrap_or(0.0) * r.node.window_s;
    let together = r.node.depth().unwrap_or(1.0).max(1.0) * ((r.hits + r.counted) / commands.max(1.0)).max(1.0);
    let lost_us = missed * rtt_us / together;
    finding
        .latency(
            lost_us / 1000.0,
            format!("at least {} on the mean read, for {misses} a second that find nothing; {least}", time_us(lost_us)),
        )
        .gain(
            format!("at 95 % hits, the mean read loses {}", time_us(0.05 * rtt_us / together)),
            format!(
                "now {missed:.2} x {rtt_us:.0} us / {together:.1} keys a round trip = {lost_us:.1} us; then 0.05 x \
                     {rtt_us:.0} us / {together:.1}"
            ),
        )
        .likely(format!("hits, misses and the round trip were measured; {least}"))
}

/// The ratio before the window, where it says something.
fn earlier_ratio(node: &Node) -> Option<f64> {
    let info = &node.first.as_ref()?.info;
    let (hits, misses) = (info.number("keyspace_hits")?, info.number("keyspace_misses")?);
    (hits + misses >= 1000.0).then(|| hits / (hits + misses))
}

fn kind_text(r: &Reads<'_>) -> String {
    let (keys, expiring) = r.node.info().map_or((0, 0), |i| (i.keys(), i.expiring_keys()));
    let evicts = if r.kind == Kind::Evicting { "; any key may be evicted" } else { "" };
    format!("{} keys, {} of them with a TTL{evicts}", count(keys as f64), count(expiring as f64))
}

fn signed(n: f64) -> String {
    if n < 0.0 { format!("{} fewer", count(-n)) } else { format!("{} more", count(n)) }
}

fn mend(finding: Finding, r: &Reads<'_>) -> Finding {
    let node = r.node;
    let stats = cli(&node.address, "INFO stats   (expired_keys beside keyspace_misses)");
    let finding = if r.expired >= EXPIRED * r.misses {
        finding.fix(
            &format!(
                "Keys expire {} times a second, before they are read again: use a longer TTL, with jitter",
                count(r.per_s(r.expired))
            ),
            &["SET key value EX 3600   (ttl = base + random(0, base / 10))", &stats],
            "answers are older; more memory is used",
            "",
        )
    } else if r.writes < REFILL * r.misses {
        finding.fix(
            "Most misses are not followed by a write: cache the empty answer too, for a short time",
            &["SET key '' EX 60   where the source has no such record", &stats],
            "a record that is created in the meantime is seen later, by up to that time",
            "",
        )
    } else {
        finding.fix(
            "Keys are written as often as they are missed, and hardly expire: check whether they are read under the \
             name they are written to",
            &[&cli(&node.address, "--scan | head -50   (names with a session, a time or a version in them)"), &stats],
            "",
            "",
        )
    };
    finding.fix(
        "Let one caller fetch what is missing while the others wait for it",
        &["Caffeine or Guava: a LoadingCache in front; Go: singleflight.Group; Python: a lock by key"],
        "",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Currency;
    use unslow_facts::{PeerSockets, Rtt, Sample, Seen};
    use unslow_topology::{Info, Role};

    /// A server after ten seconds, with these fields at the end.
    fn facts(after: &str) -> Facts {
        let before = "redis_version:7.2.4\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
                      keyspace_hits:90000\r\n\
                      keyspace_misses:10000\r\nexpired_keys:0\r\nevicted_keys:0\r\ntotal_commands_processed:0\r\n\
                      total_reads_processed:0\r\ndb0:keys=1000,expires=1000,avg_ttl=500\r\n";
        let first = Info::parse(before);
        let mut last = first.clone();
        last.0.extend(
            Info::parse(
                &("total_commands_processed:30000\r\n\
                                     total_reads_processed:30000\r\n"
                    .to_string()
                    + after),
            )
            .0,
        );
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        node.first = Some(Sample { at_ms: 0, info: first });
        node.last = Some(Sample { at_ms: 10_000, info: last });
        node.window_s = 10.0;
        let rtt = Rtt { count: 100, us_min: 190, us_p50: 200, us_p99: 300, us_max: 300 };
        node.rtt = Seen::yes(rtt, "PING", 0);
        let host = "10.0.0.9".to_string();
        let peer = PeerSockets { host, sockets: 10, min_rtt_us: 200, min_rtt_us_p50: 200, ..PeerSockets::default() };
        node.sockets = Seen::yes(vec![peer], "ss", 0);
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    /// 10,000 reads of which half hit, as many writes as misses, and more.
    fn half(more: &str) -> Facts {
        let common = "keyspace_hits:95000\r\nkeyspace_misses:15000\r\n\
                      cmdstat_get:calls=10000,usec=10000,usec_per_call=1.00\r\n\
                      cmdstat_setex:calls=5000,usec=5000,usec_per_call=1.00\r\n";
        facts(&(common.to_string() + more))
    }

    #[test]
    fn keys_that_expire_before_they_are_read_again_are_misses() {
        let Verdict::Present(found) = check(&half("expired_keys:4900\r\n")) else { panic!("not found") };
        assert_eq!(found.impact.currency, Currency::Latency);
        assert!((found.impact.value - 0.1).abs() < 1e-9, "half of the reads lose 200 us: {}", found.impact.value);
        assert!(found.title.contains("500 times a second: 50 %"), "{}", found.title);
        assert!(found.remedies[0].text.contains("longer TTL"), "{}", found.remedies[0].text);
    }

    #[test]
    fn without_the_clients_distance_there_is_no_price() {
        let mut unseen = half("expired_keys:4900\r\n");
        unseen.nodes[0].sockets = Seen::default();
        let Verdict::Present(found) = check(&unseen) else { panic!("not found") };
        assert_eq!((found.impact.currency, found.severity), (Currency::Risk, Severity::Low));
    }

    #[test]
    fn without_writes_after_misses_empty_answers_are_not_cached() {
        let cache = "maxmemory:1000000\r\nmaxmemory_policy:allkeys-lru\r\n\
                     cmdstat_setex:calls=5,usec=5,usec_per_call=1.00\r\n";
        let Verdict::Present(found) = check(&half(cache)) else { panic!("not found") };
        assert!(found.remedies[0].text.contains("cache the empty answer"), "{}", found.remedies[0].text);
    }

    #[test]
    fn look_alikes_are_left_alone() {
        let nothing_hits = "keyspace_hits:90000\r\nkeyspace_misses:20000\r\n";
        for (what, facts) in [
            ("a cache that fills", half("db0:keys=5900,expires=5900,avg_ttl=500\r\n")),
            ("a store without TTLs", half("db0:keys=1000,expires=10,avg_ttl=500\r\n")),
            ("existence checks", half("cmdstat_exists:calls=5000,usec=5000,usec_per_call=1.00\r\n")),
            ("keys that should not be there", half(nothing_hits)),
            ("sessions that have ended", half("cmdstat_setex:calls=50,usec=50,usec_per_call=1.00\r\n")),
            ("few reads", facts("keyspace_hits:90100\r\nkeyspace_misses:10300\r\n")),
            ("98 of 100 hit", facts("keyspace_hits:99800\r\nkeyspace_misses:10200\r\n")),
        ] {
            assert!(matches!(check(&facts), Verdict::Absent(_)), "{what}");
        }
    }

    #[test]
    fn counters_that_were_reset_say_nothing() {
        assert!(matches!(check(&half("keyspace_hits:5\r\nkeyspace_misses:5\r\n")), Verdict::Unknown(_)));
    }
}
