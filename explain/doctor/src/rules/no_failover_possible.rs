//! A master has replicas that answer, but none of them may take over.
//!
//! A cluster replica never stands for election with cluster-replica-no-failover yes (its flag is `nofailover`), nor
//! when it has not heard from its master for longer than cluster-node-timeout x (cluster-replica-validity-factor + 1)
//! plus repl-ping-replica-period. Sentinel never promotes one with replica-priority 0, nor one whose link has been down
//! for down-after-milliseconds x 10.
//!
//! Seen when: all the replicas that answer, of a master with slots or of a Sentinel group, are barred or too stale in
//! this way.
//!
//! Not to be taken for: no replica at all (`master_without_replica`), too few masters for a vote (`no_majority`), too
//! few Sentinels (`sentinel_quorum`), or a new replica whose first copy is still being made.
//!
//! How to confirm: `CLUSTER NODES` (flags), `INFO replication` on each replica (slave_priority,
//! master_link_down_since_seconds).
//!
//! What to do: allow one of them to take over; fix the link of one that is too stale. If they are only meant for
//! backups or for another region, add a replica that may take over.
//! Sources: CLUSTER NODES; clusterHandleSlaveFailover() and sentinelSelectSlave() of the servers; redis.conf.

use super::peers;
use super::prelude::*;
use super::takeover::{self, Hindrance};
use std::fmt;
use unslow_topology::ClusterView;

pub const TITLE: &str = "No failover possible";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// A master whose replicas cannot replace it.
struct Stuck<'a> {
    master: String,
    replicas: Vec<&'a Node>,
    why: Bar,
    /// The master does not answer now.
    away: bool,
}

/// What keeps a replica from taking over.
enum Bar {
    Known(Hindrance),
    /// Sentinel passes it over: its link has been down for this long.
    Old {
        replica: String,
        age_s: f64,
        limit_s: f64,
    },
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bar::Known(why) => write!(f, "{why}"),
            Bar::Old { replica, age_s, limit_s } => write!(
                f,
                "the link of its replica {replica} has been down for {age_s:.0} s, and Sentinel does not promote a \
                 replica after {limit_s:.0} s"
            ),
        }
    }
}

/// What was judged.
#[derive(Default)]
struct Judged<'a> {
    stuck: Vec<Stuck<'a>>,
    /// Masters with replicas of which one may take over.
    safe: usize,
    /// Masters whose replicas do not let us look.
    unseen: usize,
}

pub fn check(facts: &Facts) -> Verdict {
    let judged = match facts.kind {
        DeploymentKind::Cluster => match peers::cluster(facts) {
            Some((_, view)) => in_cluster(facts, &view),
            None => {
                let gap = facts.nodes.iter().find_map(|n| n.cluster.refused()).cloned();
                let gap = gap.unwrap_or_else(|| Gap::new(Lack::Answer, "no node described the cluster", ""));
                return Verdict::Unknown(gap.of("replicas that may take over"));
            }
        },
        DeploymentKind::Sentinel => of_sentinel(facts),
        DeploymentKind::Standalone | DeploymentKind::MasterReplica => return Verdict::NotHere,
    };
    let Judged { stuck, safe, unseen } = judged;
    if let Some(worst) = stuck.iter().max_by_key(|s| s.away) {
        return found(facts, worst, &stuck).into();
    }
    match (safe, unseen) {
        (0, 0) => Verdict::NotHere,
        (_, 1..) => Verdict::unknown(
            Lack::Rights,
            "replicas that may take over: those of one master do not show their state",
            "ACL SETUSER <user> +info",
        ),
        (n, 0) => Verdict::Absent(format!("replicas that may take over: {n} of {n} masters with replicas have one")),
    }
}

/// Whether it is being given its first copy: it will be fit when that is done.
fn is_new(replica: &Node) -> bool {
    ["master_sync_in_progress", "loading"].iter().any(|f| replica.number(f).is_some_and(|n| n > 0.0))
}

/// Why it would not stand for election.
fn hindrance(view: &ClusterView, replica: &Node) -> Option<Hindrance> {
    if is_new(replica) { None } else { takeover::unfit(Some(view), replica) }
}

fn in_cluster<'a>(facts: &'a Facts, view: &ClusterView) -> Judged<'a> {
    let mut judged = Judged::default();
    for row in view.masters().filter(|m| m.has_address()) {
        let copies: Vec<_> = view.replicas_of(&row.id).filter(|r| r.has_address() && !r.is_down()).collect();
        let nodes: Vec<&Node> = copies.iter().filter_map(|r| peers::node_of(facts, r)).collect();
        let shows = |n: &&Node| n.info().is_some_and(|i| i.role().is_some());
        let seen: Vec<&Node> = nodes.iter().copied().filter(shows).collect();
        let unfit: Vec<Hindrance> = seen.iter().filter_map(|n| hindrance(view, n)).collect();
        if unfit.len() < seen.len() {
            judged.safe += 1;
            continue;
        }
        // One that is there and shows nothing may be fit; one that does not answer takes nothing over.
        let hidden = |n: &&Node| !shows(n) && (peers::answers(n) || peers::refuses(n));
        if nodes.len() < copies.len() || nodes.iter().any(hidden) {
            judged.unseen += 1;
            continue;
        }
        // Without a replica that answers it is another rule's.
        let Some(why) = unfit.into_iter().next() else { continue };
        let away = peers::node_of(facts, row).is_some_and(|n| !peers::answers(n) && !peers::refuses(n));
        judged.stuck.push(Stuck { master: row.address.clone(), replicas: seen, why: Bar::Known(why), away });
    }
    judged
}

fn of_sentinel(facts: &Facts) -> Judged<'_> {
    let mut judged = Judged::default();
    for master in facts.nodes.iter().filter(|n| n.is_master()) {
        let replicas = peers::replicas(facts, None, master);
        let hidden = !peers::refusing_replicas(facts, None, master).is_empty();
        if replicas.iter().any(|r| r.is_master()) || (replicas.is_empty() && !hidden) {
            continue; // it was replaced, or has none
        }
        let priorities: Vec<Option<f64>> = replicas.iter().map(|r| r.number("slave_priority")).collect();
        let allowed: Vec<&Node> =
            replicas.iter().copied().filter(|r| r.number("slave_priority").is_some_and(|p| p > 0.0)).collect();
        let old: Vec<Bar> = allowed.iter().filter_map(|r| too_old(facts, master, r)).collect();
        if old.len() < allowed.len() {
            judged.safe += 1;
        } else if let Some(why) = old.into_iter().next() {
            // One that shows nothing may be fit.
            if hidden || priorities.iter().any(Option::is_none) {
                judged.unseen += 1;
            } else {
                judged.stuck.push(Stuck { master: master.address.clone(), replicas, why, away: false });
            }
        } else if hidden || priorities.iter().any(Option::is_none) {
            judged.unseen += 1;
        } else if let Some(first) = replicas.first() {
            let why = Bar::Known(Hindrance::Barred { replica: first.address.clone(), setting: "replica-priority 0" });
            let away = !peers::answers(master) && !peers::refuses(master);
            judged.stuck.push(Stuck { master: master.address.clone(), replicas, why, away });
        }
    }
    judged
}

/// As Sentinel reckons while the master is well; where it is away, the time since then is allowed besides.
fn too_old(facts: &Facts, master: &Node, replica: &Node) -> Option<Bar> {
    if !peers::answers(master) || is_new(replica) {
        return None;
    }
    let watchers = peers::watchers(facts, &master.address);
    let limit_s = watchers.iter().map(|(_, g)| g.down_after_ms as f64 * 10.0 / 1000.0).reduce(f64::max)?;
    let age_s = replica.number("master_link_down_since_seconds").filter(|s| (0.0..1e8).contains(s))?;
    (age_s > limit_s).then(|| Bar::Old { replica: replica.address.clone(), age_s, limit_s })
}

fn found(facts: &Facts, worst: &Stuck, all: &[Stuck]) -> Finding {
    let more = if all.len() > 1 {
        format!("; {} more masters are in the same situation", all.len() - 1)
    } else {
        String::new()
    };
    let of = match worst.replicas.len() {
        1 => String::new(),
        n => format!(" (nor may the other {} that answer)", n - 1),
    };
    let now = if worst.away { ", and it does not answer now" } else { "" };
    let mut finding =
        Finding::new(format!("No replica may take over from {}{now}: {}{of}{more}", worst.master, worst.why))
            .on(all.iter().map(|s| s.master.as_str()))
            .on(all.iter().flat_map(|s| &s.replicas).map(|n| n.address.as_str()))
            .risk(if worst.away {
                "its data is unavailable until it is back"
            } else {
                "if it dies, its data is unavailable until it is back, although there are copies"
            })
            .proven("flags, settings and links were read from the servers");
    if worst.away {
        finding = finding.severity(Severity::High);
    }
    for replica in worst.replicas.iter().take(3) {
        let field = |name: &str| replica.info().and_then(|i| i.get(name)).unwrap_or("not said").to_string();
        finding = finding.saw(
            replica,
            "INFO replication",
            format!(
                "slave_priority:{}, master_link_status:{}, master_link_down_since_seconds:{}",
                field("slave_priority"),
                field("master_link_status"),
                field("master_link_down_since_seconds")
            ),
        );
    }
    if let Some((asked, view)) = peers::cluster(facts).filter(|_| facts.kind == DeploymentKind::Cluster) {
        let flags = worst.replicas.iter().filter_map(|n| Some((n, peers::row(&view, n)?)));
        let flags: Vec<String> = flags.map(|(n, row)| format!("{}: {}", n.address, row.flags.join(","))).collect();
        if !flags.is_empty() {
            finding = finding.saw(asked, "CLUSTER NODES", flags.join("; "));
        }
    }
    mend(finding, worst)
}

fn mend(finding: Finding, worst: &Stuck) -> Finding {
    // Whether a replica is meant to take over is known to people only: no exact line.
    let risk = "it may become the master, so its machine and location must be suitable for that";
    match &worst.why {
        Bar::Known(Hindrance::Barred { replica, setting }) if setting.starts_with("replica-priority") => finding.fix(
            "Let Sentinel promote it (and set it in the configuration file too)",
            &[&cli(replica, "CONFIG SET replica-priority 100")],
            risk,
            &cli(replica, "CONFIG SET replica-priority 0"),
        ),
        Bar::Known(Hindrance::Barred { replica, .. }) => finding.fix(
            "Let it stand for election (and set it in the configuration file too)",
            &[&cli(replica, "CONFIG SET cluster-replica-no-failover no")],
            risk,
            &cli(replica, "CONFIG SET cluster-replica-no-failover yes"),
        ),
        Bar::Known(Hindrance::Stale { replica, .. }) | Bar::Old { replica, .. } => finding.fix(
            "Fix its link: once it is up again, it may take over (unslow explain replica_link_down)",
            &[
                &cli(replica, "INFO replication   (master_host, master_port, master_link_down_since_seconds)"),
                &cli(replica, "CONFIG GET logfile"),
            ],
            "",
            "",
        ),
        _ => finding.fix(
            "See what keeps its replicas from taking over",
            &[&cli(&worst.master, "INFO replication")],
            "",
            "",
        ),
    }
}
