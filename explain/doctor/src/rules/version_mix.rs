//! Nodes of one deployment run different versions: an upgrade was started and not finished.
//!
//! During an upgrade, servers of two versions work together in one direction: a newer replica can read the copies of an
//! older master. The other way round does not work: a snapshot has the format of the version that wrote it, and an
//! older server refuses a newer format. Such a replica follows as long as its link holds, and never again after that. A
//! failover in the middle of an upgrade is enough to swap the two roles.
//!
//! Seen when: a replica's version cannot read the format that its master sends, its link was down at both ends of the
//! window, and the master started a copy in between: that replica is lost until it is upgraded. Or, as a risk: versions
//! differ (in the first two numbers), and every process has been up for over a day, so nothing is being upgraded now.
//!
//! Not to be taken for: an upgrade in progress: some process is then young. Versions that differ only in the last
//! number. A newer replica of an older master, which is how upgrades are done: it is only a risk if it stays that way.
//!
//! How to confirm: `INFO server` of each node: redis_version, valkey_version, uptime_in_seconds. The replica's log
//! shows "Can't handle RDB format version".
//!
//! What to do: upgrade the replicas first, fail over, then upgrade the old master; finish it within the day.
//! Sources: INFO server and replication; RDB_VERSION in rdb.h of the servers; replicaRdbVersion() of Valkey 9.

use std::collections::BTreeMap;

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Mixed versions";
pub const LEADS_TO: &[&str] =
    &["full_resync_loop", "replica_link_down", "no_failover_possible", "min_replicas_refusing"];
pub const INJECTED: Injected = Injected::Yes;

/// An upgrade restarts processes: where none is younger than this, it stands still.
const STILL_S: f64 = 86_400.0;
/// The last format that Redis and Valkey share (7.2), and the first of Valkey's own. Valkey refuses those in between.
const SHARED: u32 = 11;
const VALKEYS: u32 = 80;

/// A product with the first two numbers of its version. In order: the newest last.
type Version = (&'static str, u32, u32);

fn version(node: &Node) -> Option<Version> {
    let info = node.info()?;
    let (major, minor, _) = info.version()?;
    Some((info.product(), major, minor))
}

fn words((product, major, minor): Version) -> String {
    format!("{product} {major}.{minor}")
}

/// The newest snapshot format it reads; none where that is not known here.
fn reads(version: Version) -> Option<u32> {
    match version {
        ("Redis", 5..=6, _) => Some(9),
        ("Redis", 7, 0..=1) => Some(10),
        ("Redis", 7, 2..=3) => Some(SHARED),
        ("Redis", 7, _) | ("Redis", 8, 0..=1) => Some(12),
        ("Valkey", 7..=8, _) => Some(SHARED),
        ("Valkey", 9.., _) => Some(VALKEYS),
        _ => None,
    }
}

/// The format in which a master sends its data to this replica. Valkey 9 falls back to the shared one for servers
/// before it.
fn sends(master: Version, replica: Version) -> Option<u32> {
    match reads(master)? {
        VALKEYS if reads(replica) != Some(VALKEYS) => Some(SHARED),
        own => Some(own),
    }
}

/// Whether the replica refuses the copies of this master.
fn is_refused(master: Version, replica: Version) -> bool {
    let (Some(sent), Some(read)) = (sends(master, replica), reads(replica)) else { return false };
    sent > read || (read == VALKEYS && (SHARED + 1..VALKEYS).contains(&sent))
}

/// A replica that cannot read what its master sends.
struct Pair<'a> {
    master: &'a Node,
    replica: &'a Node,
    of: Version,
    own: Version,
}

impl Pair<'_> {
    /// Its link was down all the time, although the master sent a copy.
    fn is_lost(&self) -> bool {
        let is_down = |s: &Option<unslow_facts::Sample>| {
            s.as_ref().is_some_and(|s| s.info.get("master_link_status") == Some("down"))
        };
        let tried = self.master.delta("sync_full").is_some_and(|n| n >= 1.0);
        tried && is_down(&self.replica.first) && is_down(&self.replica.last)
    }
}

fn pair<'a>(facts: &'a Facts, replica: &'a Node) -> Option<Pair<'a>> {
    if replica.is_master() {
        return None;
    }
    let by_info = peers::master_by_info(replica).and_then(|address| facts.node(&address));
    let master = by_info.or_else(|| facts.node(replica.master.as_deref()?))?;
    let (of, own) = (version(master)?, version(replica)?);
    is_refused(of, own).then_some(Pair { master, replica, of, own })
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.nodes.len() < 2 || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let mut versions: BTreeMap<Version, Vec<&Node>> = BTreeMap::new();
    for node in facts.live() {
        if let Some(version) = version(node) {
            versions.entry(version).or_default().push(node);
        }
    }
    let known: usize = versions.values().map(Vec::len).sum();
    match known {
        0 => return Verdict::Unknown(unseen_info(facts, "versions")),
        1 => return Verdict::unknown(Lack::Answer, "versions: only one server showed its own", ""),
        _ => {}
    }
    let pairs: Vec<Pair> = facts.live().filter_map(|n| pair(facts, n)).collect();
    if let Some(lost) = pairs.iter().find(|p| p.is_lost()) {
        let subjects: Vec<&str> = pairs.iter().filter(|p| p.is_lost()).map(|p| p.replica.address.as_str()).collect();
        return refused(lost).on(subjects).on([lost.master.address.as_str()]).into();
    }
    let all: Vec<String> = versions.keys().map(|v| words(*v)).collect();
    if versions.len() < 2 {
        return Verdict::Absent(format!("versions: {} on {known} of {} servers", all[0], facts.nodes.len()));
    }
    let ages: Option<Vec<f64>> = versions.values().flatten().map(|n| n.number("uptime_in_seconds")).collect();
    let Some(youngest_s) = ages.and_then(|ages| ages.into_iter().reduce(f64::min)) else {
        return Verdict::unknown(
            Lack::Version,
            format!("versions: {}; INFO does not show since when", names(&all)),
            "",
        );
    };
    if youngest_s < STILL_S {
        return Verdict::Absent(format!(
            "versions: {} side by side, but a process is only {} old: an upgrade may be in progress",
            names(&all),
            age(youngest_s)
        ));
    }
    half_done(&versions, &pairs, youngest_s).into()
}

fn age(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * STILL_S => format!("{:.0} days", (s / STILL_S).floor()),
        s if s >= 7200.0 => format!("{:.0} h", (s / 3600.0).floor()),
        s => format!("{:.0} min", (s / 60.0).floor()),
    }
}

fn refused(p: &Pair) -> Finding {
    let (master, replica) = (p.master, p.replica);
    Finding::new(format!(
        "Replica {} runs {} and cannot read the copies of its master {}, which runs {}: its link stays down",
        replica.address,
        words(p.own),
        master.address,
        words(p.of)
    ))
    .risk("its data is as old as its last copy, or gone: it cannot take over, and each attempt costs its master a copy")
    .severity(Severity::High)
    .likely(
        "versions, link and attempts were read; that the format is what ends the copies follows from the two versions",
    )
    .saw(replica, "INFO server", replica.version_text())
    .saw(master, "INFO server", master.version_text())
    .saw(replica, "INFO replication", "master_link_status:down at both ends of the window")
    .saw(master, "INFO stats", format!("sync_full +{:.0} in the window", master.delta("sync_full").unwrap_or(0.0)))
    .fix(
        &format!("Finish the upgrade: start {} with {}", replica.address, words(p.of)),
        &[
            &format!("install {} on {}, and restart the server there", words(p.of), peers::host_of(&replica.address)),
            &cli(&replica.address, "INFO replication   (master_link_status:up)"),
        ],
        "an older version may be unable to read the files that the newer one writes: keep a copy of the data directory",
        "",
    )
}

fn half_done(versions: &BTreeMap<Version, Vec<&Node>>, pairs: &[Pair], youngest_s: f64) -> Finding {
    let listed: Vec<String> = versions
        .iter()
        .map(|(version, nodes)| {
            let on: Vec<String> = nodes.iter().map(|n| n.address.clone()).collect();
            format!("{} on {}", words(*version), names(&on))
        })
        .collect();
    let newest = versions.keys().next_back().map_or(String::new(), |v| words(*v));
    let older: Vec<&Node> = versions.values().rev().skip(1).flatten().copied().collect();
    let risk = match pairs.first() {
        Some(p) => format!(
            "{} cannot read a full copy of {}: if its link breaks for longer than the backlog lasts, it is lost",
            p.replica.address, p.master.address
        ),
        None => "commands, defaults and formats differ between the nodes: what works now may not work after a failover"
            .into(),
    };
    let mut finding = Finding::new(format!(
        "An upgrade was left half done: {} have run side by side for at least {}",
        listed.join(", "),
        age(youngest_s)
    ))
    .on(older.iter().map(|n| n.address.as_str()))
    .risk(risk)
    .proven("every server reported its version and uptime");
    for nodes in versions.values() {
        if let Some(node) = nodes.iter().min_by(|a, b| up_s(a).total_cmp(&up_s(b))) {
            let value = format!("{}, uptime_in_seconds:{:.0}", node.version_text(), up_s(node));
            finding = finding.saw(node, "INFO server", value);
        }
    }
    let replicas_first: Vec<String> = [false, true]
        .into_iter()
        .flat_map(|master| older.iter().filter(move |n| n.is_master() == master))
        .map(|n| {
            let failover = if n.is_master() { "   (after a failover to a replica that has it)" } else { "" };
            format!("install {newest} for {} and restart it{failover}", n.address)
        })
        .collect();
    let lines: Vec<&str> = replicas_first.iter().map(String::as_str).collect();
    finding.fix(
        "Finish the upgrade, replicas first",
        &lines,
        "each restart makes a server unavailable while it loads",
        "",
    )
}

fn up_s(node: &Node) -> f64 {
    node.number("uptime_in_seconds").unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::super::made::{answer, node_at, replicated, said};
    use super::*;

    const MASTER: &str = "10.0.0.1:6379";
    const DAYS: u64 = 5 * 86_400;

    /// `Valkey 9.1.2` or `Redis 7.0.15` as INFO has it, and for how long it has been up.
    fn server(version: &str, up_s: u64) -> String {
        let (product, number) = version.split_once(' ').unwrap();
        let own = if product == "Valkey" {
            format!("redis_version:7.2.4\nserver_name:valkey\nvalkey_version:{number}\n")
        } else {
            format!("redis_version:{number}\n")
        };
        format!("{own}uptime_in_seconds:{up_s}\n")
    }

    fn pair_of(master: &str, replica: &str, up_s: u64, link: &str) -> Facts {
        let of = format!("{}role:master\nsync_full:3\n", server(master, DAYS));
        let own = format!(
            "{}role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:{link}\n",
            server(replica, up_s)
        );
        replicated(vec![node_at(MASTER, &of, "sync_full:9\n"), node_at("10.0.0.2:6379", &own, "")])
    }

    #[test]
    fn an_older_replica_that_its_master_copies_in_vain_is_lost() {
        for (master, replica) in [
            ("Valkey 9.1.2", "Redis 7.0.15"),
            ("Redis 7.0.15", "Redis 6.2.14"),
            ("Redis 7.2.4", "Redis 7.0.15"),
            ("Redis 7.4.1", "Valkey 9.0.0"),
        ] {
            let found = said(check(&pair_of(master, replica, 60, "down")));
            assert_eq!(found.severity, Severity::High, "{master} {replica}");
            assert_eq!(found.subjects, ["10.0.0.2:6379", MASTER]);
        }
    }

    #[test]
    fn what_can_be_read_is_not_why_a_link_is_down() {
        for (master, replica) in [
            ("Redis 7.0.15", "Valkey 9.1.2"),
            ("Redis 6.2.14", "Redis 6.0.9"),
            ("Valkey 9.1.2", "Valkey 8.0.1"),
            ("Valkey 9.1.2", "Redis 7.2.4"),
            ("Redis 9.9.0", "Redis 6.2.14"),
        ] {
            assert_eq!(answer(&check(&pair_of(master, replica, 60, "down"))), "absent", "{master} {replica}");
        }
        // No copy was begun: something else keeps it from its master.
        let mut facts = pair_of("Valkey 9.1.2", "Redis 7.0.15", 60, "down");
        facts.nodes[0].last.as_mut().unwrap().info.0.insert("sync_full".into(), "3".into());
        assert_eq!(answer(&check(&facts)), "absent");
    }

    #[test]
    fn an_upgrade_that_runs_is_none_that_was_left() {
        let aged = |up_s| check(&pair_of("Redis 7.0.15", "Valkey 9.1.2", up_s, "up"));
        assert_eq!(answer(&aged(3600)), "absent");
        let found = said(aged(2 * 86_400));
        assert_eq!((found.severity, found.subjects.clone()), (Severity::Risk, vec![MASTER.to_string()]));
        assert!(found.title.contains("2 days"), "{}", found.title);
        // The other way round the next full copy would fail.
        let found = said(check(&pair_of("Valkey 9.1.2", "Redis 7.0.15", DAYS, "up")));
        assert!(found.impact.text.contains("cannot read a full copy"), "{}", found.impact.text);
    }

    #[test]
    fn the_last_number_of_a_version_is_no_mix() {
        assert_eq!(answer(&check(&pair_of("Redis 7.0.15", "Redis 7.0.4", DAYS, "up"))), "absent");
        let mut one = pair_of("Redis 7.0.15", "Valkey 9.1.2", DAYS, "up");
        one.nodes[1].last = None;
        assert_eq!(answer(&check(&one)), "unknown");
        one.nodes.truncate(1);
        assert_eq!(answer(&check(&one)), "not here");
    }
}
