//! What a deployment does on its own about a lost master, when, and how to have it done immediately. Not a rule:
//! several rules use it.

use std::fmt;

use unslow_facts::{Facts, Node};
use unslow_topology::{ClusterView, DeploymentKind};

use super::peers::{self, Standing, answers, row};
use crate::Finding;
use crate::measure::{ago, cli, failure_timeout_ms, names};

/// From the end of the failure detector's patience to a new master: the replica's own delay of 0.5 to 1 s, a vote, and
/// the word of it.
const ELECTION_MS: f64 = 2000.0;
/// By how much an election may be late before it counts as one that does not come.
const GRACE_MS: f64 = 10_000.0;
/// `cluster-replica-validity-factor`, by default.
const VALIDITY_FACTOR: f64 = 10.0;
/// `repl-ping-replica-period`, by default: part of how old a replica's copy may be.
const PING_PERIOD_S: f64 = 10.0;

/// Why it is not known whether a replica is promoted.
const REFUSING: &str = "one of its replicas is up but refuses our questions";

/// What happens by itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Outlook {
    /// It has happened.
    Done {
        /// The new master.
        by: String,
    },
    /// A replica is elected.
    Election {
        /// One that may be elected.
        candidate: String,
        /// Who notices, with the setting: `cluster-node-timeout 15000`. None where it could not be read.
        patience: Option<(f64, String)>,
    },
    /// A replica should have been elected at this moment (unix time in ms), and was not.
    Overdue {
        /// One that may be elected.
        candidate: String,
        /// When it was due.
        due_ms: u64,
    },
    /// Nothing.
    Nothing(Hindrance),
    /// It cannot be told, and why.
    Unknown(&'static str),
}

/// Why nothing happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Hindrance {
    /// Too few masters to elect anything.
    NoMajority { alive: usize, of: usize },
    /// No replica that answers, of this many.
    NoReplica { known: usize },
    /// Its replica is set so that it never takes over.
    Barred { replica: String, setting: &'static str },
    /// Its replica has not heard from it for too long.
    Stale { replica: String, age_s: Option<f64>, limit_s: f64 },
    /// Too few Sentinels answer.
    FewSentinels { alive: usize, of: usize, need: usize },
    /// Neither a cluster nor Sentinels.
    Unwatched,
}

impl fmt::Display for Hindrance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hindrance::NoMajority { alive, of } => {
                write!(f, "{alive} of {of} masters can be reached, and an election needs {}", of / 2 + 1)
            }
            Hindrance::NoReplica { known: 0 } => write!(f, "it has no replica"),
            Hindrance::NoReplica { known: 1 } => write!(f, "its only replica does not answer either"),
            Hindrance::NoReplica { known } => write!(f, "none of its {known} replicas answers"),
            Hindrance::Barred { replica, setting } => write!(f, "its replica {replica} never takes over ({setting})"),
            Hindrance::Stale { replica, age_s: Some(age), limit_s } => write!(
                f,
                "its replica {replica} has heard nothing from it for {age:.0} s, and cluster-replica-validity-factor \
                 allows {limit_s:.0} s"
            ),
            Hindrance::Stale { replica, age_s: None, .. } => {
                write!(f, "its replica {replica} has never had a whole copy of its data")
            }
            Hindrance::FewSentinels { alive, of, need } => {
                write!(f, "{alive} of {of} Sentinels can be reached, and a failover needs {need}")
            }
            Hindrance::Unwatched => write!(f, "no Sentinel and no cluster watches it"),
        }
    }
}

impl Outlook {
    /// As a sentence without a full stop; `now_ms` is when it is said.
    pub fn text(&self, now_ms: u64) -> String {
        match self {
            Outlook::Done { by } => format!("{by} has taken over"),
            Outlook::Election { candidate, patience: Some((ms, setting)) } => format!(
                "automatically: {candidate} is promoted about {:.0} s after the loss ({setting}, then 1 to 2 s for the \
                 election), unless it is back before then",
                ((ms + ELECTION_MS) / 1000.0).ceil()
            ),
            Outlook::Election { candidate, patience: None } => {
                format!(
                    "automatically: {candidate} is promoted 1 to 2 s after the failure detector's timeout, which could \
                     not be read"
                )
            }
            Outlook::Overdue { candidate, due_ms } => format!(
                "an election was due {} and has not happened: the log of {candidate} says why",
                ago(now_ms, *due_ms)
            ),
            Outlook::Nothing(why) => format!("nothing replaces it by itself: {why}"),
            Outlook::Unknown(why) => format!("whether anything replaces it automatically is not known: {why}"),
        }
    }
}

/// What happens by itself about this master.
pub fn outlook(facts: &Facts, view: Option<&ClusterView>, master: &Node) -> Outlook {
    let replicas = peers::replicas(facts, view, master);
    if let Some(by) = replicas.iter().find(|r| r.last.as_ref().and_then(|s| s.info.role()) == Some("master")) {
        return Outlook::Done { by: by.address.clone() };
    }
    match facts.kind {
        DeploymentKind::Cluster => of_cluster(facts, view, master, &replicas),
        DeploymentKind::Sentinel => of_sentinel(facts, master, &replicas),
        _ => Outlook::Nothing(Hindrance::Unwatched),
    }
}

/// Whether it can vote: it answers us, refuses us, or is cut off from here alone. One that takes connections and says
/// nothing stands still or is busy, and votes for nobody, though the others stay connected to it until the node timeout
/// is over.
pub fn can_vote(facts: &Facts, node: &Node) -> bool {
    let from_here = || matches!(peers::standing(facts, node), Standing::FromHere { .. });
    answers(node) || peers::refuses(node) || (node.silent_ms.is_none() && from_here())
}

/// Masters that can vote, and all of them. None where no server could say.
pub fn majority(facts: &Facts, view: Option<&ClusterView>) -> Option<(usize, usize)> {
    let reached = |n: &Node| can_vote(facts, n);
    let (alive, of) = match view {
        Some(view) => {
            let masters: Vec<_> = view.masters().collect();
            let alive = masters.iter().filter(|m| peers::node_of(facts, m).map_or(!m.is_down(), reached)).count();
            (alive, masters.len())
        }
        // Old servers of large clusters are not asked for their view: who is a master is known from discovery and from
        // INFO.
        None => {
            let masters: Vec<&Node> = facts.nodes.iter().filter(|n| n.is_master()).collect();
            (masters.iter().filter(|n| reached(n)).count(), masters.len())
        }
    };
    (of > 0 && facts.nodes.iter().any(answers)).then_some((alive, of))
}

fn of_cluster(facts: &Facts, view: Option<&ClusterView>, master: &Node, replicas: &[&Node]) -> Outlook {
    let Some((alive, of)) = majority(facts, view) else {
        return Outlook::Unknown("no server could say how many masters are left");
    };
    if alive <= of / 2 {
        return Outlook::Nothing(Hindrance::NoMajority { alive, of });
    }
    let row = view.and_then(|v| Some((v, row(v, master)?)));
    let known = match row {
        Some((view, row)) => view.replicas_of(&row.id).filter(|r| r.has_address()).count(),
        None => facts.nodes.iter().filter(|n| n.master.as_deref() == Some(&master.address)).count(),
    };
    let judged: Vec<(&Node, Option<Hindrance>)> = replicas.iter().map(|r| (*r, unfit(view, r))).collect();
    let Some((candidate, _)) = judged.iter().find(|(_, why)| why.is_none()) else {
        let first = judged.into_iter().find_map(|(_, why)| why);
        // One that is there and does not let us look may stand for election all the same.
        if !peers::refusing_replicas(facts, view, master).is_empty() {
            return Outlook::Unknown(REFUSING);
        }
        return Outlook::Nothing(first.unwrap_or(Hindrance::NoReplica { known }));
    };
    let patience = failure_timeout_ms(facts, candidate);
    let name = candidate.address.clone();
    // The detector's patience begins at the next ping, which may be half of it away.
    let due = patience.as_ref().zip(peers::last_heard_ms(facts, master));
    let due_ms = due.map(|((ms, _), heard)| heard + (1.5 * ms + ELECTION_MS) as u64);
    match due_ms.filter(|due| peers::asked_at_ms(candidate) > due + GRACE_MS as u64) {
        Some(due_ms) => Outlook::Overdue { candidate: name, due_ms },
        None => Outlook::Election { candidate: name, patience },
    }
}

/// Why a replica of a cluster would not stand for election.
pub fn unfit(view: Option<&ClusterView>, replica: &Node) -> Option<Hindrance> {
    if view.and_then(|v| row(v, replica)).is_some_and(|r| r.is("nofailover")) {
        return Some(Hindrance::Barred {
            replica: replica.address.clone(),
            setting: "cluster-replica-no-failover yes",
        });
    }
    let factor = replica.setting_number("cluster-replica-validity-factor").unwrap_or(VALIDITY_FACTOR);
    let down_s = replica.number("master_link_down_since_seconds")?;
    let age_s = linked(down_s).then_some(down_s);
    // As the server reckons (clusterHandleSlaveFailover): what the timeout takes is not the replica's fault.
    let limit_s = replica.setting_number("cluster-node-timeout").map(|ms| ms / 1000.0 * (factor + 1.0) + PING_PERIOD_S);
    let stale = factor > 0.0 && age_s.is_none_or(|age| limit_s.is_some_and(|limit| age > limit));
    stale.then(|| Hindrance::Stale { replica: replica.address.clone(), age_s, limit_s: limit_s.unwrap_or(0.0) })
}

/// By `master_link_down_since_seconds`: it is -1, or the age of the epoch on servers before 7.0, where there never was
/// a link.
fn linked(down_s: f64) -> bool {
    (0.0..1e8).contains(&down_s)
}

/// Whether it has a whole copy, as far as it says: not one that never had a link to its master, or that was still being
/// copied to.
fn has_copy(replica: &Node) -> bool {
    let is = |field: &str| replica.number(field).is_some_and(|n| n > 0.0);
    let never = replica.number("master_link_down_since_seconds").is_some_and(|s| !linked(s));
    !never && !is("master_sync_in_progress") && !is("loading")
}

fn of_sentinel(facts: &Facts, master: &Node, replicas: &[&Node]) -> Outlook {
    let watchers = peers::watchers(facts, &master.address);
    if facts.sentinels.is_empty() {
        return Outlook::Unknown("no Sentinel answered");
    }
    let Some((_, group)) = watchers.first() else {
        let of = facts.sentinels.len();
        return Outlook::Nothing(Hindrance::FewSentinels { alive: 0, of, need: of / 2 + 1 });
    };
    let of = group.other_sentinels as usize + 1;
    let need = (group.quorum as usize).max(of / 2 + 1);
    if watchers.len() < need {
        return Outlook::Nothing(Hindrance::FewSentinels { alive: watchers.len(), of, need });
    }
    let barred = |r: &Node| r.number("slave_priority") == Some(0.0);
    match (replicas.iter().find(|r| !barred(r)), replicas.first()) {
        (Some(candidate), _) => Outlook::Election {
            candidate: candidate.address.clone(),
            patience: Some((group.down_after_ms as f64, format!("down-after-milliseconds {}", group.down_after_ms))),
        },
        (None, Some(replica)) => {
            Outlook::Nothing(Hindrance::Barred { replica: replica.address.clone(), setting: "replica-priority 0" })
        }
        (None, None) if !peers::refusing_replicas(facts, None, master).is_empty() => Outlook::Unknown(REFUSING),
        (None, None) => {
            let follows = |n: &&Node| n.master.as_deref() == Some(&master.address);
            Outlook::Nothing(Hindrance::NoReplica { known: facts.nodes.iter().filter(follows).count() })
        }
    }
}

/// Adds how a replica that answers and has a copy is made master at once; nothing where there is none, or where the
/// master is there and refuses.
pub fn force(finding: Finding, facts: &Facts, view: Option<&ClusterView>, master: &Node) -> Finding {
    let replicas = peers::replicas(facts, view, master);
    let taken = replicas.iter().any(|r| r.last.as_ref().and_then(|s| s.info.role()) == Some("master"));
    if taken || peers::refuses(master) {
        return finding;
    }
    // The one whose copy is newest.
    let offset = |n: &&&Node| n.number("slave_repl_offset").unwrap_or(0.0) as u64;
    let Some(replica) = replicas.iter().filter(|r| has_copy(r)).max_by_key(offset) else { return finding };
    let lost = "writes that the replica had not received are lost";
    match facts.kind {
        DeploymentKind::Cluster => {
            let back = cli(&master.address, "CLUSTER FAILOVER") + "   (once it is back and up to date)";
            // Without a vote only where it was seen that there is none to be had.
            let (text, verb, risk) = if majority(facts, view).is_some_and(|(alive, of)| alive <= of / 2) {
                let split = format!("{lost}; if the other side of a partition promotes one too, the newer epoch wins");
                ("Promote its replica without a vote, because there is no majority", "TAKEOVER", split)
            } else {
                ("Promote its replica without waiting", "FORCE", lost.to_string())
            };
            finding.fix(text, &[&cli(&replica.address, &format!("CLUSTER FAILOVER {verb}"))], &risk, &back)
        }
        DeploymentKind::Sentinel => match peers::watchers(facts, &master.address).first() {
            Some((sentinel, group)) => {
                let command = cli(&sentinel.address, &format!("SENTINEL FAILOVER {}", group.service));
                finding.fix(
                    "Have Sentinel promote a replica without waiting for the others' agreement",
                    &[&command],
                    lost,
                    &format!("{command}   (once the old master follows)"),
                )
            }
            None => finding,
        },
        _ => {
            let command = cli(&replica.address, "REPLICAOF NO ONE");
            let (host, port) =
                (peers::host_of(&master.address), master.address.rsplit_once(':').map_or("6379", |(_, p)| p));
            finding.fix(
                "Promote its replica, and point the clients there",
                &[&command],
                &format!("{lost}; stop the old master first, or it comes back as a second master"),
                &cli(&replica.address, &format!("REPLICAOF {host} {port}")),
            )
        }
    }
}

/// `a and b`, of nodes.
pub fn names_of(nodes: &[&Node]) -> String {
    names(&nodes.iter().map(|n| n.address.clone()).collect::<Vec<_>>())
}
