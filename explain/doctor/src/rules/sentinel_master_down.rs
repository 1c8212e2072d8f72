//! Sentinels take a master for down (`s_down`), or have agreed on it (`o_down`).
//!
//! A Sentinel marks a master `s_down` when no valid answer to its PINGs came for down-after-milliseconds, and `o_down` when the
//! quorum of Sentinels says so. Then one of them, elected by a majority, promotes a replica, mostly within 1 to 3 s. Where the
//! mark stays, that does not happen: there is no replica that may be promoted, too few Sentinels are left, or the failover
//! failed and is tried again after twice the failover-timeout (180 s by default).
//!
//! A master may be well and taken for down all the same: Sentinel's password or user was refused after a change (NOAUTH and
//! NOPERM are no valid answers to a PING), or the path from the Sentinels is cut while the path of the clients is not. There is no
//! failover while that lasts, and some clients (redis-py among them) refuse a master with that mark.
//!
//! Seen when: a Sentinel that answered shows `s_down` or `o_down` in the flags of a group's master.
//!
//! Not to be taken for: a replica with that mark, or a failover that has ended: the group has another master then.
//!
//! What to do: if the master is dead, start it again, or have a replica promoted. If it answers: Sentinel's user and password
//! (auth-user, auth-pass), then the path from the Sentinels to it.
//! Sources: SENTINEL MASTERS (flags, quorum, num-other-sentinels), SENTINEL CKQUORUM, INFO replication (slave_priority); Sentinel
//! documentation (subjectively and objectively down).

use super::peers::{self, Says};
use super::prelude::*;
use super::takeover;
use unslow_facts::{SentinelGroup, SentinelNode};

pub const TITLE: &str = "Sentinel's master down";
pub const LEADS_TO: &[&str] = &["error_flood"];
pub const INJECTED: Injected = Injected::Yes;

/// One group by all Sentinels that answered.
struct Group<'a> {
    master: &'a str,
    words: Vec<(&'a SentinelNode, &'a SentinelGroup, Says)>,
}

impl Group<'_> {
    fn of_word(&self, least: Says) -> usize {
        self.words.iter().filter(|(_, _, says)| *says >= least).count()
    }
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel || facts.sentinels.is_empty() {
        return Verdict::NotHere;
    }
    let mut groups: Vec<Group> = Vec::new();
    for (sentinel, group) in
        facts.sentinels.iter().filter(|s| s.unreachable.is_none()).flat_map(|s| s.groups.iter().map(move |g| (s, g)))
    {
        let word = (sentinel, group, peers::of_flags(&group.flags));
        match groups
            .iter_mut()
            .find(|g| g.master == group.master && g.words.iter().all(|(_, o, _)| o.service == group.service))
        {
            Some(known) => known.words.push(word),
            None => groups.push(Group { master: &group.master, words: vec![word] }),
        }
    }
    if groups.is_empty() {
        return Verdict::unknown(
            Lack::Answer,
            "no Sentinel said how its masters are",
            "reach one Sentinel, as a user that may call SENTINEL MASTERS",
        );
    }
    groups.sort_by_key(|g| std::cmp::Reverse((g.of_word(Says::Failed), g.of_word(Says::Suspected))));
    let down: Vec<&Group> = groups.iter().filter(|g| g.of_word(Says::Suspected) > 0).collect();
    // One that does not answer us either outranks one that does.
    let Some(worst) = down
        .iter()
        .copied()
        .find(|g| facts.node(g.master).is_none_or(|n| !peers::answers(n)))
        .or(down.first().copied())
    else {
        let sentinels = facts.sentinels.iter().filter(|s| s.unreachable.is_none()).count();
        return Verdict::Absent(format!(
            "Sentinel's word: no master marked s_down or o_down by {sentinels} of {} Sentinels",
            facts.sentinels.len()
        ));
    };
    of_group(facts, worst, &down)
}

fn of_group(facts: &Facts, worst: &Group, down: &[&Group]) -> Verdict {
    let Some((sentinel, group, _)) = worst.words.iter().max_by_key(|(_, _, says)| *says) else {
        return Verdict::NotHere;
    };
    let (suspect, agreed, of) = (worst.of_word(Says::Suspected), worst.of_word(Says::Failed), worst.words.len());
    let node = facts.node(worst.master);
    let alive = node.is_some_and(peers::answers);
    let flag = if agreed > 0 { "o_down" } else { "s_down" };
    let who = format!(
        "{suspect} of {of} Sentinels take {}, the master of {}, for down ({flag})",
        worst.master, group.service
    );
    let title = match (alive, node) {
        (true, _) => format!("{who}, and it answers here"),
        (false, Some(_)) => format!("{who}, and it does not answer here either"),
        (false, None) => who,
    };
    let groups = down.iter().filter_map(|g| g.words.first()).map(|(_, g, _)| g.service.clone()).collect::<Vec<_>>();
    let more =
        if groups.len() > 1 { format!("; {} groups in all: {}", groups.len(), names(&groups)) } else { String::new() };
    let mut finding = Finding::new(title + &more).on(down.iter().map(|g| g.master)).on([sentinel.address.as_str()]);
    let now_ms = facts.live().map(Node::at_ms).max().unwrap_or(facts.at_ms);
    finding = match (alive, node) {
        (true, _) => misjudged(finding, group, suspect),
        (false, node) => {
            let happens =
                node.map_or(String::new(), |n| format!("; {}", takeover::outlook(facts, None, n).text(now_ms)));
            finding
                .availability(
                    86400.0,
                    format!("every request to {} waits or fails until a replica is promoted{happens}", group.service),
                )
                .severity(Severity::Critical)
                .gain("the group has a master again", "100 % x 86,400 s")
                .proven(if node.is_some() {
                    "the Sentinels' own word, and no answer here"
                } else {
                    "the Sentinels' own word"
                })
        }
    };
    for (sentinel, group, says) in worst.words.iter().filter(|(_, _, says)| *says > Says::Connected).take(3) {
        let quorum = if *says == Says::Failed { format!(", quorum {}", group.quorum) } else { String::new() };
        finding = finding.saw_at(
            cli(&sentinel.address, "SENTINEL MASTERS"),
            format!("{}: {}{quorum}", group.service, group.flags),
            facts.at_ms,
        );
    }
    if !group.ckquorum.is_empty() {
        finding = finding.saw_at(
            cli(&sentinel.address, &format!("SENTINEL CKQUORUM {}", group.service)),
            group.ckquorum.clone(),
            facts.at_ms,
        );
    }
    match node {
        Some(node) if alive => {
            finding = check_login(finding.saw(node, "PING", "it answers here"), sentinel, group, worst.master)
        }
        Some(node) => finding = takeover::force(dead(finding, node), facts, None, node),
        None => finding = check_login(finding, sentinel, group, worst.master),
    }
    finding.into()
}

/// A master that is well, for Sentinels that think otherwise.
fn misjudged(finding: Finding, group: &SentinelGroup, suspect: usize) -> Finding {
    let agreed = suspect as u64 >= group.quorum.max(1);
    let (text, severity) = if agreed {
        (
            "no request is lost now; when it really fails no replica replaces it, and clients that heed the mark (redis-py) refuse \
             to connect",
            Severity::High,
        )
    } else {
        (
            "no request is lost now; fewer Sentinels than the quorum say so, and those few cannot tell when it really fails",
            Severity::Medium,
        )
    };
    finding
        .risk(text)
        .severity(severity)
        .gain("failovers work again", format!("{suspect} Sentinels, quorum {}", group.quorum))
        .proven("the Sentinels' flags and the master's own answer were read in this window")
        .not("a dead master: it answered here")
}

fn dead(finding: Finding, node: &Node) -> Finding {
    let port = node.address.rsplit_once(':').map_or("6379", |(_, p)| p);
    finding.fix(
        "On its machine: see whether it runs, and start it with its data",
        &[
            &format!("ps -o pid,stat,etime,cmd -C redis-server,valkey-server | grep {port}"),
            "systemctl start valkey   (or redis, redis-server: as it was installed)",
        ],
        "a master that starts without its data comes back empty, and its replicas copy that: look for its dump.rdb or AOF first",
        "",
    )
}

fn check_login(finding: Finding, sentinel: &SentinelNode, group: &SentinelGroup, master: &str) -> Finding {
    let host = peers::host_of(&sentinel.address);
    finding.fix(
        "See what the Sentinel gets when it asks: its own user and password, from its own machine",
        &[
            &format!("grep -E 'auth-(user|pass)' sentinel.conf   (on {host})"),
            &cli(
                master,
                &format!("--user USER -a PASSWORD PING   (from {host}: PONG is expected, not NOAUTH or NOPERM)"),
            ),
            &cli(
                &sentinel.address,
                &format!(
                    "SENTINEL SET {} auth-pass PASSWORD   (on every Sentinel, where it has changed)",
                    group.service
                ),
            ),
        ],
        "",
        "",
    )
}
