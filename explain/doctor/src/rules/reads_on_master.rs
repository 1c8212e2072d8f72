//! A master is busy with reads that its idle replicas could serve.
//!
//! Clients read from masters unless they are configured otherwise. A replica has the same keys, and a core that does
//! little more than apply the writes. This is a suggestion, not a defect: it is worthwhile if the master is running out
//! of its one core, and if the application can tolerate slightly stale answers.
//!
//! Seen when: a master's main thread uses over 70 % of a core, over 80 % of its commands are reads, and one of its
//! replicas is up to date and uses under 30 % of a core, with less than a tenth of the master's reads.
//!
//! Not to be taken for: one expensive read (KEYS, a big key): above 0.5 ms of CPU per command, the rules for those
//! report it. One command at a time (`kernel_bound`): then batching gives more, and this is reported as a risk next to
//! it. A hot shard of a cluster (`shard_imbalance`), for which this is reported as a consequence.
//!
//! How to confirm: `INFO cpu` and `INFO commandstats` of the master and its replicas, twice; `INFO replication` for the
//! lag.
//!
//! What to do: let clients read from replicas where a stale answer does no harm (lists, profiles, caches); keep on the
//! master whatever is read right after it was written, locks, and whatever decides about money.
//! Sources: INFO of masters and replicas; the clients' read preferences.

use std::collections::BTreeSet;

use super::peers;
use super::prelude::*;
use super::{kernel_bound, shard_imbalance};
use unslow_topology::ClusterView;

pub const TITLE: &str = "Reads on the master";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Share of the master's core from which on the reads are worth moving; share of its commands that are reads.
const BUSY: f64 = 0.7;
const READS: f64 = 0.8;
/// A replica below these has room: share of its core, and its reads as a share of the master's.
const IDLE_CPU: f64 = 0.3;
const IDLE_READS: f64 = 0.1;
/// It heard from its master this recently: masters ping every ten seconds.
const HEARD_S: f64 = 11.0;

/// Commands that a replica may answer.
const READ_COMMANDS: &[&str] = &[
    "bitcount",
    "bitfield_ro",
    "bitpos",
    "dbsize",
    "dump",
    "eval_ro",
    "evalsha_ro",
    "exists",
    "expiretime",
    "fcall_ro",
    "geodist",
    "geohash",
    "geopos",
    "georadius_ro",
    "georadiusbymember_ro",
    "geosearch",
    "get",
    "getbit",
    "getrange",
    "hexists",
    "hget",
    "hgetall",
    "hkeys",
    "hlen",
    "hmget",
    "hrandfield",
    "hscan",
    "hstrlen",
    "hvals",
    "keys",
    "lcs",
    "lindex",
    "llen",
    "lpos",
    "lrange",
    "mget",
    "object",
    "pexpiretime",
    "pfcount",
    "pttl",
    "randomkey",
    "scan",
    "scard",
    "sdiff",
    "sinter",
    "sintercard",
    "sismember",
    "smembers",
    "smismember",
    "sort_ro",
    "srandmember",
    "sscan",
    "strlen",
    "substr",
    "sunion",
    "touch",
    "ttl",
    "type",
    "xinfo",
    "xlen",
    "xpending",
    "xrange",
    "xread",
    "xrevrange",
    "zcard",
    "zcount",
    "zdiff",
    "zinter",
    "zintercard",
    "zlexcount",
    "zmscore",
    "zrandmember",
    "zrange",
    "zrangebylex",
    "zrangebyscore",
    "zrank",
    "zrevrange",
    "zrevrangebylex",
    "zrevrangebyscore",
    "zrevrank",
    "zscan",
    "zscore",
    "zunion",
];

/// A master that is busy with reads, and its replicas that have room.
struct Row<'a> {
    master: &'a Node,
    cpu: f64,
    reads: f64,
    replicas: Vec<&'a Node>,
}

/// Reads per second of an application.
pub(super) fn reads_per_s(node: &Node) -> f64 {
    spent(node, READ_COMMANDS).rate
}

/// Share of an application's commands that are reads; none where it sent none, or they were not counted.
pub(super) fn read_share(node: &Node) -> Option<f64> {
    let ops = node.application_ops().filter(|ops| *ops >= USED_OPS)?;
    Some((reads_per_s(node) / ops).min(1.0))
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.through.is_some() || !facts.live().any(|n| !n.is_master()) {
        return Verdict::NotHere;
    }
    let view = peers::cluster(facts).map(|(_, view)| view);
    let masters: Vec<&Node> = facts.live().filter(|n| n.is_master()).collect();
    if masters.is_empty() {
        return Verdict::unknown(Lack::Answer, "reads: no master answered", "");
    }
    let Some(busiest) = most(facts, |n| n.cpu().map(|(u, s)| u + s).filter(|_| n.is_master())) else {
        return Verdict::Unknown(unseen_info(facts, "reads"));
    };
    let rows = masters.into_iter().filter_map(|master| row(facts, view.as_ref(), master)).collect();
    let rows = by_worst(rows, |row: &Row| row.cpu);
    match rows.first() {
        Some(worst) => found(&rows, worst, facts.kind).into(),
        None => {
            let text = format!(
                "reads on masters: the busiest uses {} of a core; none is over {} busy with reads that an idle replica \
                 could answer",
                percent(busiest),
                percent(BUSY)
            );
            absent_by_commandstats(facts, "reads on masters", text)
        }
    }
}

fn row<'a>(facts: &'a Facts, view: Option<&ClusterView>, master: &'a Node) -> Option<Row<'a>> {
    let (user, sys) = master.cpu()?;
    let (cpu, reads) = (user + sys, read_share(master)?);
    let us_of_a_command = cpu * 1e6 / master.application_ops()?.max(0.001);
    if cpu <= BUSY || reads <= READS || us_of_a_command >= shard_imbalance::EXPENSIVE_US {
        return None;
    }
    let has_room = |r: &&Node| is_in_step(r) && is_idle(r, reads_per_s(master));
    let replicas: Vec<&Node> = peers::replicas(facts, view, master).into_iter().filter(has_room).collect();
    (!replicas.is_empty()).then_some(Row { master, cpu, reads, replicas })
}

fn is_in_step(replica: &Node) -> bool {
    let says = |field: &str, value: &str| replica.info().and_then(|i| i.get(field)) == Some(value);
    !replica.is_master()
        && says("master_link_status", "up")
        && !says("loading", "1")
        && !says("master_sync_in_progress", "1")
        && replica.number("master_last_io_seconds_ago").is_some_and(|s| s <= HEARD_S)
}

fn is_idle(replica: &Node, reads_of_master: f64) -> bool {
    let cpu = replica.cpu().map(|(u, s)| u + s);
    cpu.is_some_and(|cpu| cpu < IDLE_CPU) && reads_per_s(replica) < IDLE_READS * reads_of_master
}

/// Bytes of the replication stream that a replica has not applied, by the two servers' own figures of the window's end.
fn behind_bytes(master: &Node, replica: &Node) -> Option<f64> {
    let applied = replica.number("slave_repl_offset")?;
    Some((master.number("master_repl_offset")? - applied).max(0.0))
}

fn found(rows: &[Row], worst: &Row, kind: DeploymentKind) -> Finding {
    let Row { master, cpu, reads, replicas } = worst;
    let idle: Vec<String> = replicas.iter().map(|r| r.address.clone()).collect();
    let moved = cpu * reads;
    let title = format!(
        "{} is {} busy, {} of its commands are reads, and {} {} idle",
        master.address,
        percent(*cpu),
        percent(*reads),
        names(&idle),
        if idle.len() == 1 { "is" } else { "are" }
    );
    let finding = Finding::new(title).on(rows.iter().map(|r| r.master.address.as_str()));
    let finding = if kernel_bound::speaks(master) {
        finding.risk(
            "its core goes mostly to sockets: batching gains more than other servers would; the replicas are room for \
             growth",
        )
    } else {
        let text =
            format!("about {} of a core on {} that its replicas could take over", percent(moved), master.address);
        finding.core(moved, text).severity(Severity::Medium)
    };
    let mut finding = finding
        .gain(
            format!("the master's main thread drops to about {}", percent(cpu - moved)),
            format!(
                "{cpu:.2} of a core x {reads:.2} of the commands = {moved:.2}; {cpu:.2} - {moved:.2} = \
                     {:.2}",
                cpu - moved
            ),
        )
        .likely(
            "load and reads of the master and its replicas were measured in this window; it is assumed that reads cost \
             as much as writes",
        )
        .saw(
            master,
            "INFO commandstats",
            format!(
                "{} reads/s of {} \
                     commands/s",
                count(reads_per_s(master)),
                count(master.application_ops().unwrap_or(0.0))
            ),
        )
        .saw(master, "INFO cpu", format!("{} of a core", percent(*cpu)));
    for replica in replicas.iter().take(3) {
        let used = replica.cpu().map_or("an unknown share".into(), |(u, s)| percent(u + s));
        let behind = behind_bytes(master, replica).map_or(String::new(), |b| format!(", {} behind", bytes(b)));
        finding = finding.saw(
            replica,
            "INFO ALL",
            format!("{used} of a core, {} reads/s, link up{behind}", count(reads_per_s(replica))),
        );
    }
    remedy(finding, worst, kind)
}

/// Words of the clients' own libraries, those that are connected first where CLIENT LIST tells them.
fn remedy(finding: Finding, worst: &Row, kind: DeploymentKind) -> Finding {
    let behind = worst.replicas.iter().filter_map(|r| behind_bytes(worst.master, r)).reduce(f64::max);
    let risk = format!(
        "answers may be stale{}, and more so while a link is broken: keep on the master whatever is read right after \
         it was written, locks and counters",
        behind.map_or(String::new(), |b| format!(" (up to {} behind in this window)", bytes(b)))
    );
    let is_cluster = kind == DeploymentKind::Cluster;
    let all: &[(&str, &str)] = if is_cluster {
        &[
            ("lettuce", "Lettuce: connection.setReadFrom(ReadFrom.REPLICA_PREFERRED)"),
            ("jedis", "Jedis: a second client at the replicas that sends READONLY first"),
            (
                "redis-py",
                "redis-py: RedisCluster(..., load_balancing_strategy=LoadBalancingStrategy.ROUND_ROBIN_REPLICAS)",
            ),
            ("go-redis", "go-redis: redis.ClusterOptions{ReadOnly: true, RouteRandomly: true}"),
        ]
    } else {
        &[
            ("lettuce", "Lettuce: MasterReplica.connect(...) with setReadFrom(ReadFrom.REPLICA_PREFERRED)"),
            ("jedis", "Jedis: a second pool at the replica's address for reads"),
            ("redis-py", "redis-py: a second client at the replica; with Sentinel: sentinel.slave_for(\"mymaster\")"),
            ("go-redis", "go-redis: with Sentinel: redis.FailoverOptions{ReplicaOnly: true} for a second client"),
        ]
    };
    let groups = worst.master.clients.value().map_or(&[][..], |c| &c.groups);
    let libraries: String = groups.iter().map(|g| g.library.to_lowercase() + " ").collect();
    let used: BTreeSet<&str> = all.iter().map(|(l, _)| *l).filter(|l| libraries.contains(l)).collect();
    let lines: Vec<&str> =
        all.iter().filter(|(l, _)| used.is_empty() || used.contains(l)).map(|(_, line)| *line).collect();
    finding.fix(
        "Let replicas serve reads that may be slightly stale",
        &lines,
        &risk,
        "read from the master again, the clients' default",
    )
}
