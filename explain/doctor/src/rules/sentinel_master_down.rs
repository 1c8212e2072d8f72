//! Sentinels consider a master down (`s_down`), or have agreed that it is (`o_down`).
//!
//! A Sentinel marks a master `s_down` when it has had no valid answer to its PINGs for down-after-milliseconds, and
//! `o_down` when the quorum of Sentinels agrees. Then one of them, elected by a majority, promotes a replica, usually
//! within 1 to 3 s. If the mark stays, that is not happening: there is no replica that may be promoted, too few
//! Sentinels are left, or the failover failed and is tried again after twice the failover-timeout (180 s by default).
//!
//! A master may be up and still be considered down: Sentinel's password or user was refused after a change (NOAUTH and
//! NOPERM are not valid answers to a PING), or the path from the Sentinels is cut while the clients' path is not. There
//! is no failover while that lasts, and some clients (redis-py among them) refuse a master with that mark.
//!
//! Seen when: a Sentinel that answered shows `s_down` or `o_down` in the flags of a group's master.
//!
//! Not to be taken for: a replica with that mark, or a failover that has ended: the group then has another master.
//!
//! What to do: if the master is dead, start it again, or have a replica promoted. If it answers with a refusal, provide
//! what that asks for: a login, a higher maxclients, SCRIPT KILL. If it answers, check Sentinel's user and password
//! (auth-user, auth-pass), then the path from the Sentinels to it.
//! Sources: SENTINEL MASTERS (flags, quorum, num-other-sentinels), SENTINEL CKQUORUM, INFO replication
//! (slave_priority); Sentinel documentation (subjectively and objectively down).

use super::peers::{self, Says};
use super::prelude::*;
use super::refusal::{self, Refusal};
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

/// How the master of a group is towards us.
#[derive(Clone, Copy)]
enum Towards<'a> {
    /// It answers.
    Answers(&'a Node),
    /// It is there, and answers with this.
    Refuses(&'a Node, Refusal),
    /// It gives no answer.
    Silent(&'a Node),
    /// It was not asked.
    Unasked,
}

impl<'a> Towards<'a> {
    fn of(node: Option<&'a Node>) -> Towards<'a> {
        match node.map(|n| (n, Refusal::of(n))) {
            None => Towards::Unasked,
            Some((node, _)) if peers::answers(node) => Towards::Answers(node),
            Some((node, Some(refusal))) => Towards::Refuses(node, refusal),
            Some((node, None)) => Towards::Silent(node),
        }
    }

    /// The worse for its clients, the lower.
    fn rank(self) -> u8 {
        match self {
            Towards::Silent(_) | Towards::Unasked => 0,
            Towards::Refuses(..) => 1,
            Towards::Answers(_) => 2,
        }
    }
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
            "no Sentinel reported the state of its masters",
            "reach one Sentinel, as a user that may call SENTINEL MASTERS",
        );
    }
    groups.sort_by_key(|g| std::cmp::Reverse((g.of_word(Says::Failed), g.of_word(Says::Suspected))));
    let down: Vec<&Group> = groups.iter().filter(|g| g.of_word(Says::Suspected) > 0).collect();
    // One that does not answer us either outranks one that does; of equals, the first.
    let Some(worst) = down.iter().copied().min_by_key(|g| Towards::of(facts.node(g.master)).rank()) else {
        let sentinels = facts.sentinels.iter().filter(|s| s.unreachable.is_none()).count();
        return Verdict::Absent(format!(
            "Sentinel's flags: no master marked s_down or o_down by {sentinels} of {} Sentinels",
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
    let master = Towards::of(facts.node(worst.master));
    let flag = if agreed > 0 { "o_down" } else { "s_down" };
    let who = format!(
        "{suspect} of {of} Sentinels report {}, the master of {}, as down ({flag})",
        worst.master, group.service
    );
    let title = match master {
        Towards::Answers(_) => format!("{who}, but it answers here"),
        Towards::Refuses(_, refusal) => format!("{who}, but it is up: {}", refusal.said()),
        Towards::Silent(_) => format!("{who}, and it does not answer here either"),
        Towards::Unasked => who,
    };
    let groups = down.iter().filter_map(|g| g.words.first()).map(|(_, g, _)| g.service.clone()).collect::<Vec<_>>();
    let more =
        if groups.len() > 1 { format!("; {} groups in all: {}", groups.len(), names(&groups)) } else { String::new() };
    let mut finding = Finding::new(title + &more).on(down.iter().map(|g| g.master)).on([sentinel.address.as_str()]);
    finding = match master {
        Towards::Answers(_) => misjudged(finding, group, suspect),
        Towards::Refuses(node, refusal) => refused(finding, facts, group, node, refusal),
        Towards::Silent(_) | Towards::Unasked => lost(finding, facts, group, master),
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
    match master {
        Towards::Answers(node) => {
            finding = check_login(finding.saw(node, "PING", "it answers here"), sentinel, group, worst.master);
        }
        Towards::Refuses(node, refusal) => {
            let why = node.unreachable.as_deref().unwrap_or_default();
            finding = refusal::admit(finding.saw_then(node, "PING", why, facts.at_ms), node, refusal);
            // What it wants of us it wants of the Sentinels.
            if matches!(refusal, Refusal::Login | Refusal::Protected) {
                finding = check_login(finding, sentinel, group, worst.master);
            }
        }
        Towards::Silent(node) => finding = takeover::force(dead(finding, node), facts, None, node),
        Towards::Unasked => finding = check_login(finding, sentinel, group, worst.master),
    }
    finding.into()
}

/// What happens by itself about a master that serves no client, after a semicolon.
fn happens(facts: &Facts, node: &Node) -> String {
    let now_ms = facts.live().map(Node::at_ms).max().unwrap_or(facts.at_ms);
    format!("; {}", takeover::outlook(facts, None, node).text(now_ms))
}

/// A master that does not answer us either, or was not asked.
fn lost(finding: Finding, facts: &Facts, group: &SentinelGroup, master: Towards<'_>) -> Finding {
    let (happens, why) = match master {
        Towards::Silent(node) => (happens(facts, node), "the Sentinels' own flags, and no answer here"),
        _ => (String::new(), "the Sentinels' own flags"),
    };
    let unseen = peers::no_client_words(facts);
    finding
        .availability(
            86400.0,
            format!("every request to {} waits or fails until a replica is promoted{unseen}{happens}", group.service),
        )
        .affects(peers::affected(facts))
        .severity(Severity::Critical)
        .gain("the group has a master again", "100 % x 86,400 s")
        .proven(why)
}

/// A master that is there, and answers us with a refusal. The Sentinels may get another one, or the same.
fn refused(finding: Finding, facts: &Facts, group: &SentinelGroup, node: &Node, refusal: Refusal) -> Finding {
    let seen = "the Sentinels' flags and the master's own refusal were read in this window";
    let finding = match refusal.ends() {
        Some(ends) => {
            let unseen = peers::no_client_words(facts);
            finding
                .availability(
                    86400.0,
                    format!("every request to {} is refused {ends}{unseen}{}", group.service, happens(facts, node)),
                )
                .affects(peers::affected(facts))
                .severity(Severity::Critical)
                .gain("the group has a master that serves again", "100 % x 86,400 s")
                .proven(seen)
        }
        None => finding
            .risk(format!("{}; Sentinels that agree promote a replica although it is up", refusal.risk()))
            .severity(Severity::High)
            .likely(format!("{seen}; that the Sentinels are refused too is inferred")),
    };
    finding.not("a dead master: it answered here, with a refusal")
}

/// A master that is well, for Sentinels that think otherwise.
fn misjudged(finding: Finding, group: &SentinelGroup, suspect: usize) -> Finding {
    let agreed = suspect as u64 >= group.quorum.max(1);
    let (text, severity) = if agreed {
        (
            "no request is lost now; when it really fails, no replica replaces it, and clients that respect the mark \
             (redis-py) refuse to connect",
            Severity::High,
        )
    } else {
        (
            "no request is lost now; fewer Sentinels than the quorum report it, and those few cannot tell when it \
             really fails",
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
    if node.silent_ms.is_some() {
        return refusal::release(finding, &node.address);
    }
    let port = node.address.rsplit_once(':').map_or("6379", |(_, p)| p);
    finding.fix(
        "On its machine: see whether it is running, and start it with its data",
        &[
            &format!("ps -o pid,stat,etime,cmd -C redis-server,valkey-server | grep {port}"),
            "systemctl start valkey   (or redis, redis-server: as it was installed)",
        ],
        "a master that starts without its data comes back empty, and its replicas copy that: look for its dump.rdb or \
         AOF first",
        "",
    )
}

fn check_login(finding: Finding, sentinel: &SentinelNode, group: &SentinelGroup, master: &str) -> Finding {
    let host = peers::host_of(&sentinel.address);
    finding.fix(
        "See what the Sentinel gets when it asks: use its own user and password, from its own machine",
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
