//! A server of the deployment cannot be reached: it is dead, or the path to it is cut.
//!
//! A dead master takes its slots with it until a replica is elected; with cluster-require-full-coverage (the default)
//! the whole cluster refuses commands from the moment the others mark it as failed. A cluster elects a replica about
//! cluster-node-timeout (or up to half as long again) plus 1 to 2 s after the loss, if a majority of masters is left
//! and the replica's copy is recent enough (cluster-replica-validity-factor). Sentinel does so after
//! down-after-milliseconds, if the quorum agrees and a majority of Sentinels is left. A standalone server, or a master
//! with replicas that nothing watches, stays down until it is started again.
//!
//! A server that answers with a refusal (maxclients, a script that does not end, loading) is up: at maxclients, clients
//! that are already connected are served, and new ones are not.
//!
//! Seen when: no connection to a member can be made (refused, no route, no answer to the attempt), or the connection is
//! closed right after, or the server answers with a refusal. Its peers show whether they have lost it too: CLUSTER
//! NODES, the replication links, the Sentinels.
//!
//! Not to be taken for: a server that accepts connections and says nothing (`node_hangs`), or a path that is cut only
//! between here and there, while its peers are connected to it: the report then says so. A server that refuses unslow's
//! login is not down: it could not be inspected, and the report says so.
//!
//! What to do: start it again, with its data; or promote its replica. If only this machine cannot reach it, check the
//! route, the firewall and the address it announces. If it refuses: raise maxclients or close connections, run SCRIPT
//! KILL, or wait until it has finished loading.
//! Sources: unslow's own connection attempts; CLUSTER NODES (flags, link state, ping-sent, pong-received); INFO
//! replication (master_link_status); SENTINEL MASTERS; Redis cluster specification (failure detection, replica
//! election).

use super::peers::{self, Says, Stake, Standing};
use super::prelude::*;
use super::refusal::{self, Refusal};
use super::takeover;
use unslow_topology::{ClusterView, Role};

pub const TITLE: &str = "Node unreachable";
pub const LEADS_TO: &[&str] = &[
    "slots_uncovered",
    "sentinel_master_down",
    "master_without_replica",
    "failover_flapping",
    "min_replicas_refusing",
    "error_flood",
];
pub const INJECTED: Injected = Injected::Yes;

/// How bad one loss is, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grade {
    /// A copy, or a master that serves nothing any more.
    Copy,
    /// What a master alone serves, for those who come from here.
    FromHere,
    /// What a master alone serves, which answers and refuses.
    Refused,
    /// What a master alone serves.
    Outage,
}

struct Lost<'a> {
    node: &'a Node,
    why: &'a str,
    /// What it answers, where it does.
    refusal: Option<Refusal>,
    standing: Standing,
    stake: Stake,
}

impl Lost<'_> {
    fn grade(&self) -> Grade {
        if self.stake.share() == 0.0 {
            return Grade::Copy;
        }
        if self.refusal.is_some() {
            return Grade::Refused;
        }
        match self.standing {
            Standing::FromHere { .. } => Grade::FromHere,
            Standing::Lost { .. } | Standing::Unheard => Grade::Outage,
        }
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.nodes.is_empty() {
        return Verdict::NotHere;
    }
    let cluster = peers::cluster(facts);
    let view = cluster.as_ref().map(|(_, view)| view);
    let mut lost: Vec<Lost> = facts
        .nodes
        .iter()
        .filter_map(|node| {
            let why = node.unreachable.as_deref().filter(|_| node.silent_ms.is_none())?;
            // It is there, and lets us in no further: nothing is known of how it does.
            if node.away == Some(Lack::Rights) {
                return None;
            }
            let (standing, stake) = (peers::standing(facts, node), peers::stake(facts, view, node));
            Some(Lost { node, why, refusal: Refusal::of(node), standing, stake })
        })
        .collect();
    // A dead copy before one that refuses.
    let weight = |l: &Lost| (l.grade(), l.refusal.is_none(), l.refusal, l.stake.share());
    lost.sort_by(|a, b| weight(b).partial_cmp(&weight(a)).unwrap_or(std::cmp::Ordering::Equal));
    let Some(worst) = lost.first() else {
        let locked: Vec<String> = facts
            .nodes
            .iter()
            .filter(|n| !peers::answers(n) && n.away == Some(Lack::Rights))
            .map(|n| n.address.clone())
            .collect();
        if !locked.is_empty() {
            return Verdict::unknown(
                Lack::Rights,
                format!(
                    "unreachable nodes: {} {} and {} this login, so nothing more is known about {}",
                    names(&locked),
                    if locked.len() == 1 { "answers" } else { "answer" },
                    if locked.len() == 1 { "refuses" } else { "refuse" },
                    if locked.len() == 1 { "it" } else { "them" }
                ),
                "the same user and password on every server: ACL SETUSER and ACL SAVE on each of them",
            );
        }
        return Verdict::Absent(format!(
            "unreachable nodes: none, a connection to each of {} was made",
            facts.nodes.len()
        ));
    };
    let grade = worst.grade();
    let same: Vec<&Lost> = lost.iter().filter(|l| l.grade() == grade && l.refusal == worst.refusal).collect();
    let mut finding = Finding::new(title(facts, &same, &lost)).on(lost.iter().map(|l| l.node.address.as_str()));
    finding = cost(finding, facts, view, &same);
    finding = sure(finding, worst);
    let is_lost = worst.refusal.is_none() && grade != Grade::FromHere;
    if let Some(at_ms) = peers::silent_since_ms(facts, worst.node).filter(|_| is_lost) {
        finding = finding.since(at_ms);
    }
    for one in lost.iter().take(3) {
        let why = one.why.strip_prefix(&format!("{}: ", one.node.address)).unwrap_or(one.why);
        finding = finding.saw_then(one.node, "PING", why, facts.at_ms);
    }
    if let Some((asked, row)) = cluster.as_ref().and_then(|(asked, view)| Some((asked, peers::row(view, worst.node)?)))
    {
        let link = if row.connected { "connected" } else { "disconnected" };
        finding = finding.saw(
            asked,
            "CLUSTER NODES",
            format!("{}: {}, {link}, {} slots", row.address, row.flags.join(","), row.slots.len()),
        );
    }
    for (sentinel, group) in peers::watchers(facts, &worst.node.address).into_iter().take(2) {
        finding = finding.saw_at(
            cli(&sentinel.address, "SENTINEL MASTERS"),
            format!("{}: {}", group.service, group.flags),
            facts.at_ms,
        );
    }
    remedies(finding, facts, view, worst).into()
}

fn title(facts: &Facts, same: &[&Lost], all: &[Lost]) -> String {
    let Some(worst) = same.first() else { return String::new() };
    let share: f64 = same.iter().map(|l| l.stake.share()).sum::<f64>().min(1.0);
    let who = names(&same.iter().map(|l| l.node.address.clone()).collect::<Vec<_>>());
    let with = |refuses: bool| all.iter().filter(|l| l.refusal.is_some() == refuses).count();
    let of_these = |refuses: bool| if worst.refusal.is_some() == refuses { same.len() } else { 0 };
    let more = |refuses: bool, one: &str, many: &str| match with(refuses) - of_these(refuses) {
        0 => String::new(),
        1 => format!("; another server {one}"),
        n => format!("; {n} other servers {many}"),
    };
    let others = more(false, "is unreachable too", "are unreachable too") + &more(true, "refuses", "refuse");
    if let Some(refusal) = worst.refusal {
        let one = same.len() == 1;
        let (is, it, its) = if one { ("is", "it", "its") } else { ("are", "they", "their") };
        let s = if one { "s" } else { "" };
        let what = match refusal {
            Refusal::Full => {
                format!("{is} at maxclients: {it} serve{s} those who are connected and refuse{s} new connections")
            }
            Refusal::Busy => format!(
                "answer{s} BUSY: a script holds {}, and every command is refused",
                if one { "it" } else { "them" }
            ),
            Refusal::Loading => format!("{is} loading {its} data set and refuse{s} commands until that is done"),
            Refusal::Protected => {
                format!("{is} in protected mode: {it} accept{s} connections from {its} own machine only")
            }
            Refusal::Login | Refusal::Words => {
                format!("answer{s} but refuse{s} what {it} {is} asked ({})", short(worst.why, worst.node))
            }
        };
        return format!("{who} {what}{others}");
    }
    // A connection that was made and then broke is no refusal.
    let away = match worst.node.connect_us {
        Some(_) => "stopped answering while it was being inspected".to_string(),
        None => format!("cannot be reached ({})", short(worst.why, worst.node)),
    };
    let masters = if same.len() == 1 { "master" } else { "masters" };
    match (worst.grade(), &worst.stake) {
        (Grade::Outage, Stake::All) if given(facts, worst.node) => {
            format!("{who} {away}: clients that connect to {} wait or fail{others}", these(facts))
        }
        (Grade::Outage, Stake::All) => format!("{who} {away}: every request waits or fails{others}"),
        (Grade::Outage, Stake::OneOf(_)) if facts.kind == DeploymentKind::Sentinel => {
            format!("{masters} {who} {away}: every request to {} waits or fails{others}", groups(facts, same))
        }
        (Grade::Outage, Stake::Slots(_)) => {
            let slots: usize = same.iter().map(|l| if let Stake::Slots(n) = l.stake { n } else { 0 }).sum();
            format!(
                "{masters} {who} {away}: {} slots, {} of the key space, are not served{others}",
                count(slots as f64),
                percent(share)
            )
        }
        (Grade::Outage | Grade::Refused, _) => {
            format!("{masters} {who} {away}: {} of the masters{others}", percent(share))
        }
        (Grade::FromHere, _) => {
            let (by, of) = match worst.standing {
                Standing::FromHere { by, of } => (by, of),
                _ => (0, 0),
            };
            let has = if same.len() == 1 { "it" } else { "them" };
            format!("from here {who} {away}, though {by} of {of} peers are connected to {has}{others}")
        }
        (Grade::Copy, Stake::Replaced { by, .. }) => {
            format!("{who} {away}; {by} has taken over what it served{others}")
        }
        (Grade::Copy, Stake::Nothing) => format!("{who} {away}; it owns no slots{others}"),
        (Grade::Copy, _) => format!("{} {who} {away}{others}", if same.len() == 1 { "replica" } else { "replicas" }),
    }
}

/// Whether it is a given address that does not say what it is: a server, or a Sentinel of servers that may be well.
fn given(facts: &Facts, node: &Node) -> bool {
    let sentinels = facts.nodes.len() > 1 || facts.kind == DeploymentKind::Sentinel;
    sentinels && node.role == Role::Unknown && peers::none_measured(facts)
}

fn these(facts: &Facts) -> &'static str {
    if facts.nodes.len() == 1 { "the address that was given" } else { "the addresses that were given" }
}

/// The groups of these masters, as their Sentinels call them.
fn groups(facts: &Facts, lost: &[&Lost]) -> String {
    let mut all: Vec<String> =
        lost.iter().flat_map(|l| peers::watchers(facts, &l.node.address)).map(|(_, g)| g.service.clone()).collect();
    all.sort();
    all.dedup();
    names(&all)
}

/// The reason without the address and without advice, which stand elsewhere.
fn short<'a>(why: &'a str, node: &Node) -> &'a str {
    let why = why.strip_prefix(node.address.as_str()).map_or(why, |rest| rest.trim_start_matches(": "));
    why.split([';', '?']).next().unwrap_or(why).trim()
}

fn cost(finding: Finding, facts: &Facts, view: Option<&ClusterView>, same: &[&Lost]) -> Finding {
    let Some(worst) = same.first() else { return finding };
    let share: f64 = same.iter().map(|l| l.stake.share()).sum::<f64>().min(1.0);
    let now_ms = facts.live().map(Node::at_ms).max().unwrap_or(facts.at_ms);
    let outlook = || takeover::outlook(facts, view, worst.node).text(now_ms);
    let whole = format!("{} x 86,400 s", percent(share));
    match worst.grade() {
        Grade::Outage => {
            let heard = peers::last_heard_ms(facts, worst.node);
            let since =
                heard.map_or(String::new(), |ms| format!(" (its peers last heard from it {})", ago(now_ms, ms)));
            let what = match worst.stake {
                Stake::All if given(facts, worst.node) => format!("every request through {}", these(facts)),
                Stake::OneOf(of) if facts.kind == DeploymentKind::Sentinel => {
                    format!("every request to {} (of {of} groups)", groups(facts, same))
                }
                _ => format!("{} of the key space", percent(share)),
            };
            let unseen = peers::no_client_words(facts);
            let waits = format!("{what} fails or waits for as long as it is unreachable{since}{unseen}; {}", outlook());
            finding
                .availability(86400.0 * share, waits)
                .affects(peers::affected(facts))
                .severity(Severity::Critical)
                .gain("its keys are served again", whole)
        }
        Grade::Refused => {
            let Some(ends) = worst.refusal.and_then(Refusal::ends) else {
                return finding.risk(worst.refusal.unwrap_or(Refusal::Words).risk()).severity(Severity::High);
            };
            let unseen = peers::no_client_words(facts);
            finding
                .availability(86400.0 * share, format!("{} of the key space is refused {ends}{unseen}", percent(share)))
                .affects(peers::affected(facts))
                .severity(Severity::Critical)
                .gain("its keys are served again", whole)
        }
        Grade::FromHere => finding
            .availability(
                86400.0 * share,
                format!(
                    "{} of the key space cannot be reached from this machine, nor by clients on the same path",
                    percent(share)
                ),
            )
            .severity(Severity::High)
            .gain("its keys can be reached from here", whole),
        Grade::Copy if worst.refusal.is_some() => {
            finding.risk("no request is lost unless reads go to it").severity(Severity::Medium)
        }
        Grade::Copy => {
            let left = match &worst.stake {
                Stake::Copy { of: Some(master), left } => {
                    format!("{master} has {}", copies(*left, "other copy", "other copies"))
                }
                Stake::Replaced { by, left } => format!("{by} has {}", copies(*left, "copy", "copies")),
                Stake::Copy { of: None, .. } | Stake::Nothing | Stake::All | Stake::Slots(_) | Stake::OneOf(_) => {
                    "its shard has one fewer server to fall back on".into()
                }
            };
            finding.risk(format!("no request is lost unless reads go to it; {left}")).severity(Severity::Medium).gain(
                "one more copy to fall back on",
                format!("{} of {} servers are unreachable", same.len(), facts.nodes.len()),
            )
        }
    }
}

fn copies(n: usize, one: &str, many: &str) -> String {
    match n {
        0 => format!("no {one} left"),
        1 => format!("1 {one} left"),
        n => format!("{n} {many} left"),
    }
}

fn sure(finding: Finding, worst: &Lost) -> Finding {
    if worst.refusal.is_some() {
        return finding.proven("the server's own answer in this window");
    }
    match worst.standing {
        Standing::Lost { by, of, worst } => {
            let word = match worst {
                Says::Failed => "; the deployment has marked it as failed",
                Says::Suspected => "; their failure detectors have timed out",
                Says::Lost | Says::Connected => "",
            };
            finding.proven(format!(
                "the connection failed in this window, and {by} of {of} peers have lost it \
                                    too{word}"
            ))
        }
        Standing::FromHere { by, of } => finding.proven(format!(
            "the connection failed in this window while {by} of {of} peers showed theirs; they may not have noticed \
             yet if the loss is seconds old"
        )),
        Standing::Unheard => finding.likely(
            "the connection failed in this window; no other server could say whether it is dead or the \
                            path is cut",
        ),
    }
}

fn remedies(finding: Finding, facts: &Facts, view: Option<&ClusterView>, worst: &Lost) -> Finding {
    let node = worst.node;
    if let Some(refusal) = worst.refusal {
        return refusal::admit(finding, node, refusal);
    }
    let (host, port) = (peers::host_of(&node.address), node.address.rsplit_once(':').map_or("6379", |(_, p)| p));
    if worst.grade() == Grade::FromHere {
        return finding.fix(
            "Find where the path to it breaks, from this machine",
            &[
                &format!("ip route get {host}"),
                &format!("nc -vz -w 3 {host} {port}"),
                &format!("ss -lnt 'sport = :{port}'   (on {host}: does it listen on that address?)"),
            ],
            "",
            "",
        );
    }
    let empty = match worst.stake {
        Stake::All | Stake::Slots(_) | Stake::OneOf(_) => {
            "a master that starts without its data comes back empty, and its replicas copy that: look for its dump.rdb \
             or AOF first"
        }
        Stake::Copy { .. } | Stake::Replaced { .. } | Stake::Nothing => "",
    };
    let finding = finding.fix(
        "On its machine: see whether it is running and why it stopped, then start it",
        &[
            &format!("ps -o pid,stat,etime,cmd -C redis-server,valkey-server | grep {port}"),
            "journalctl -k --since -1h | grep -i -e oom -e killed",
            "systemctl start valkey   (or redis, redis-server: as it was installed)",
        ],
        empty,
        "",
    );
    if worst.grade() == Grade::Outage { takeover::force(finding, facts, view, node) } else { finding }
}
