//! A replica accepts writes from clients: they exist only there, and the next full copy removes them silently.
//!
//! With replica-read-only no, a replica executes what clients write and passes it on to no other server. Its data no
//! longer matches its master's: reads differ by server, keys with a TTL that were created there may never expire
//! (before 4.0), and a failover to it makes the difference permanent.
//!
//! Seen when: a replica reports slave_read_only:0, linked or not. Its own writes are those it executed in the window
//! beyond what its master did: replicated writes are counted at both.
//!
//! Not to be taken for: clients that write to a read-only replica and are refused (READONLY, `error_flood`), or a
//! replica that is catching up: it executes more than its master does, so a replica that was behind in the window is
//! not judged.
//!
//! How to confirm: `INFO commandstats` on both, twice; `DBSIZE` on both; `CONFIG GET replica-read-only`.
//!
//! In a cluster, replicas redirect writes whatever the setting is, so nothing is judged there.
//!
//! What to do: send those clients to the master (or to a separate server, if they only need a place to compute), then
//! set replica-read-only yes. To make the replica match its master again, have it do one full copy.
//! Sources: INFO replication (slave_read_only); redis.conf (replica-read-only).

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Writable replica";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Commands that write, and that replicas get as they are or as another one of these. DEL, UNLINK, HDEL and those that
/// set a TTL are not among them: a master sends them by itself for keys and fields that expire or are evicted.
const WRITES: &[&str] = &[
    "append",
    "decr",
    "decrby",
    "getset",
    "hincrby",
    "hmset",
    "hset",
    "hsetnx",
    "incr",
    "incrby",
    "incrbyfloat",
    "hincrbyfloat",
    "linsert",
    "lmove",
    "lpop",
    "lpush",
    "lpushx",
    "lrem",
    "lset",
    "ltrim",
    "mset",
    "msetnx",
    "psetex",
    "rename",
    "restore",
    "rpop",
    "rpoplpush",
    "rpush",
    "rpushx",
    "sadd",
    "sdiffstore",
    "set",
    "setbit",
    "setex",
    "setnx",
    "setrange",
    "sinterstore",
    "smove",
    "spop",
    "srem",
    "sunionstore",
    "xadd",
    "zadd",
    "zincrby",
    "zrem",
    "zunionstore",
];
/// Commands that replicas get as one of [`WRITES`]: BLPOP as LPOP, GEOADD as ZADD.
const BECOME_WRITES: &[&str] = &[
    "blmove",
    "blmpop",
    "blpop",
    "brpop",
    "brpoplpush",
    "bzmpop",
    "bzpopmax",
    "bzpopmin",
    "geoadd",
    "hsetex",
    "lmpop",
    "msetex",
    "restore-asking",
    "zmpop",
    "zpopmax",
    "zpopmin",
];
/// Writes of its own a second from which on they are not a matter of two samples that were not taken at one moment.
const LEAST: f64 = 1.0;
/// And their share of what its master executed.
const SHARE: f64 = 0.1;

/// A replica that takes writes.
struct Writable<'a> {
    replica: &'a Node,
    master: Option<&'a Node>,
    /// Writes a second beyond its master's; none where they cannot be told apart.
    own: Option<f64>,
}

pub fn check(facts: &Facts) -> Verdict {
    let says =
        |n: &&Node| !n.is_master() && n.number("cluster_enabled") != Some(1.0) && n.number("slave_read_only").is_some();
    let replicas: Vec<&Node> = facts.live().filter(says).collect();
    if replicas.is_empty() {
        return match facts.live().any(|n| n.info().and_then(|i| i.role()).is_some()) {
            true => Verdict::NotHere,
            false => Verdict::Unknown(unseen_info(facts, "writable replicas")),
        };
    }
    let open = |n: &&Node| n.number("slave_read_only") == Some(0.0);
    let rows: Vec<Writable> = replicas.iter().copied().filter(open).map(|n| writable(facts, n)).collect();
    let rows = by_worst(rows, |w| w.own.unwrap_or(0.0));
    match rows.first() {
        Some(worst) => found(worst, &rows).into(),
        None => Verdict::Absent(format!("writable replicas: none of {} (slave_read_only:1)", replicas.len())),
    }
}

fn writable<'a>(facts: &'a Facts, replica: &'a Node) -> Writable<'a> {
    let master = peers::master_by_info(replica).and_then(|address| facts.node(&address)).filter(|m| m.last.is_some());
    Writable { replica, master, own: own_writes(replica, master) }
}

/// What it executed beyond its master; none where it may have been behind, or either was not seen.
fn own_writes(replica: &Node, master: Option<&Node>) -> Option<f64> {
    let linked = |node: &Node| {
        let up = |s: &unslow_facts::Sample| s.info.get("master_link_status") == Some("up");
        node.first.as_ref().is_some_and(up) && node.last.as_ref().is_some_and(up)
    };
    let here = spent(replica, WRITES);
    // Without a link all of it is its own.
    if replica.info()?.get("master_link_status") == Some("down") {
        let down_before = replica.first.as_ref()?.info.get("master_link_status") == Some("down");
        return down_before.then_some(here.rate);
    }
    let master = master.filter(|_| linked(replica))?;
    let (first_there, first_here) = (
        master.first.as_ref()?.info.number("master_repl_offset")?,
        replica.first.as_ref()?.info.number("slave_repl_offset")?,
    );
    let written = master.delta("master_repl_offset")?;
    let behind = (first_there - first_here).max(0.0);
    // It applied more than was written: its window is another one, with a burst that the master's has not.
    let more = replica.delta("slave_repl_offset")? - written;
    if behind.max(more) > SHARE * written.max(1000.0) {
        return None;
    }
    let there = sent(master);
    let own = here.rate - there;
    Some(if own >= LEAST && own >= SHARE * there { own } else { 0.0 })
}

/// Writes a second that a master has its replicas execute, at most.
fn sent(master: &Node) -> f64 {
    spent(master, WRITES).rate + spent(master, BECOME_WRITES).rate
}

fn found(worst: &Writable, rows: &[Writable]) -> Finding {
    let (replica, own) = (worst.replica, worst.own.unwrap_or(0.0));
    let more = if rows.len() > 1 { format!("; so do {} more replicas", rows.len() - 1) } else { String::new() };
    let finding = if own > 0.0 {
        Finding::new(format!(
            "Replica {} executes {} writes a second that its master never sees{more}",
            replica.address,
            count(own)
        ))
        .risk(
            "these writes exist only on this server: its next full copy removes them, and a failover to it makes them \
             permanent",
        )
        .severity(Severity::Medium)
    } else {
        Finding::new(format!(
            "Replica {} accepts writes from clients (replica-read-only no){more}",
            replica.address
        ))
        .risk(
            "a client that writes there by mistake gets OK; the write exists only on this server, and its next full \
             copy removes it",
        )
    };
    let finding = finding.on(rows.iter().map(|w| w.replica.address.as_str())).saw(
        replica,
        "INFO replication",
        "role:slave, slave_read_only:0",
    );
    let finding = match worst.master {
        Some(master) if own > 0.0 => {
            let (here, there) = (spent(replica, WRITES), sent(master));
            finding.saw(replica, "INFO commandstats", format!("{} writes a second", count(here.rate))).saw(
                master,
                "INFO commandstats",
                format!("{} writes a second", count(there)),
            )
        }
        _ => finding,
    };
    let finding = match worst.own {
        Some(own) if own > 0.0 => finding
            .proven("both servers counted the writes that they executed in this window, and the replica executed more"),
        Some(_) => {
            finding.proven("the replica reports the setting; in this window it executed no more writes than its master")
        }
        None => finding.proven(
            "the replica reports the setting; whether it received writes of its own in this window could not be told",
        ),
    };
    mend(finding, replica)
}

fn mend(finding: Finding, replica: &Node) -> Finding {
    let class = if replica.level() >= (5, 0) { "replica" } else { "slave" };
    let set = |to: &str| format!("CONFIG SET {class}-read-only {to}");
    finding
        .fix(
            "Find the clients that write there, and send them to the master",
            &[&cli(&replica.address, "CLIENT LIST   (cmd= the last command of each)")],
            "",
            "",
        )
        .fix(
            "Then refuse writes there (and set it in the configuration file too)",
            &[&cli(&replica.address, &set("yes"))],
            "clients that still write there get READONLY",
            &cli(&replica.address, &set("no")),
        )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{answer, node_at, replicated, said};

    const MASTER: &str = "10.0.0.1:6379";

    fn sets(calls: u64) -> String {
        format!("cmdstat_set:calls={calls},usec={calls},usec_per_call=1.00,rejected_calls=0,failed_calls=0\n")
    }

    /// Both executed so many SETs in ten seconds.
    fn pair(there: u64, here: u64, replica: &str) -> Facts {
        let offset = |n: u64| format!("master_repl_offset:{n}\n");
        let before = format!("role:master\nredis_version:7.2.4\n{}{}", sets(0), offset(1000));
        let master = node_at(MASTER, &before, &(sets(there) + &offset(1000 + there * 100)));
        let before = format!(
            "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:up\nredis_version:7.2.4\n\
             slave_repl_offset:1000\n\
             {}{replica}",
            sets(0)
        );
        replicated(vec![master, node_at("10.0.0.2:6379", &before, &sets(here))])
    }

    #[test]
    fn writes_of_its_own_are_what_its_master_did_not_execute() {
        let open = "slave_read_only:0\n";
        for (what, there, here, severity) in [
            ("as many", 1000, 1000, Severity::Risk),
            ("a few more, by the moment of the samples", 1000, 1050, Severity::Risk),
            ("many more", 1000, 2000, Severity::Medium),
            ("none on the master", 0, 300, Severity::Medium),
        ] {
            let found = said(check(&pair(there, here, open)));
            assert_eq!(found.severity, severity, "{what}: {}", found.title);
        }
        assert!(said(check(&pair(0, 300, open))).title.contains("30 writes a second"));
    }

    #[test]
    fn what_arrives_as_another_command_is_no_write_of_its_own() {
        let mut facts = pair(0, 0, "slave_read_only:0\n");
        let counted = |name: &str| format!("cmdstat_{name}:calls=3000,usec=3000,usec_per_call=1.00\n");
        let offset = "master_repl_offset:101000\nslave_repl_offset:101000\n";
        for (i, name) in ["blpop", "lpop"].into_iter().enumerate() {
            let after = unslow_topology::Info::parse(&(counted(name) + offset)).0;
            facts.nodes[i].last.as_mut().unwrap().info.0.extend(after);
        }
        assert_eq!(said(check(&facts)).severity, Severity::Risk);
        let replica = &mut facts.nodes[1];
        for sample in [&mut replica.first, &mut replica.last].into_iter().flatten() {
            sample.info.0.insert("cluster_enabled".into(), "1".into());
        }
        assert_eq!(answer(&check(&facts)), "not here");
    }

    #[test]
    fn one_that_works_off_what_it_missed_is_a_setting_and_no_more() {
        let mut facts = pair(1000, 5000, "slave_read_only:0\n");
        facts.nodes[1].first.as_mut().unwrap().info.0.insert("slave_repl_offset".into(), "0".into());
        facts.nodes[0].first.as_mut().unwrap().info.0.insert("master_repl_offset".into(), "900000".into());
        facts.nodes[0].last.as_mut().unwrap().info.0.insert("master_repl_offset".into(), "1000000".into());
        let found = said(check(&facts));
        assert_eq!(found.severity, Severity::Risk);
        assert!(found.confidence_why.contains("could not be told"), "{}", found.confidence_why);
    }

    #[test]
    fn read_only_replicas_masters_and_the_unseen() {
        assert_eq!(answer(&check(&pair(1000, 5000, "slave_read_only:1\n"))), "absent");
        assert_eq!(answer(&check(&replicated(vec![node_at(MASTER, "role:master\n", "")]))), "not here");
        assert_eq!(answer(&check(&replicated(vec![node_at(MASTER, "", "")]))), "unknown");
    }
}
