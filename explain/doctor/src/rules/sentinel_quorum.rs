//! The Sentinels that are left could not agree on a failover: if the master dies now, nothing takes over.
//!
//! Two numbers are needed: `quorum` Sentinels that consider the master down, and more than half of all known Sentinels,
//! dead ones counted, to elect the one that performs the failover. The quorum alone authorises nothing.
//!
//! Seen when: most of the Sentinels that answer return NOQUORUM to SENTINEL CKQUORUM, or have a quorum that is larger
//! than the number of Sentinels they know.
//!
//! Not to be taken for: one Sentinel that has lost sight of the others while they have a quorum; a master that is
//! already down (`sentinel_master_down`).
//!
//! How to confirm: `SENTINEL CKQUORUM NAME` on each Sentinel; `SENTINEL SENTINELS NAME` lists the others with their
//! flags.
//!
//! What to do: start the Sentinels that are missing, or set a quorum that can be reached; remove entries of Sentinels
//! that are gone for good (`sentinel_reset_needed`).
//! Sources: SENTINEL CKQUORUM, SENTINEL MASTERS (quorum, num-other-sentinels); Sentinel documentation (quorum); redis
//! #10621.

use super::prelude::*;
use unslow_facts::{SentinelGroup, SentinelNode};

pub const TITLE: &str = "Sentinels without a quorum";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// One group by all Sentinels that answered and said whether a failover could be authorised.
struct Group<'a> {
    words: Vec<(&'a SentinelNode, &'a SentinelGroup)>,
}

impl Group<'_> {
    /// How many say that it could not.
    fn against(&self) -> usize {
        self.words.iter().filter(|(_, g)| is_against(g)).count()
    }

    /// One that was reset, or has just lost sight of the others, says so alone.
    fn is_short(&self) -> bool {
        2 * self.against() > self.words.len()
    }
}

fn is_against(group: &SentinelGroup) -> bool {
    group.ckquorum.starts_with("NOQUORUM") || group.quorum > group.other_sentinels.saturating_add(1)
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel || facts.sentinels.is_empty() {
        return Verdict::NotHere;
    }
    let mut groups: Vec<Group> = Vec::new();
    for sentinel in facts.sentinels.iter().filter(|s| s.unreachable.is_none()) {
        let told = |g: &&SentinelGroup| g.ckquorum.starts_with("OK") || g.ckquorum.starts_with("NOQUORUM");
        for group in sentinel.groups.iter().filter(told) {
            match groups.iter_mut().find(|known| known.words.iter().all(|(_, g)| g.service == group.service)) {
                Some(known) => known.words.push((sentinel, group)),
                None => groups.push(Group { words: vec![(sentinel, group)] }),
            }
        }
    }
    if groups.is_empty() {
        return Verdict::unknown(
            Lack::Rights,
            "a quorum of Sentinels: none of those that answer reported whether it could authorise a failover",
            "ACL SETUSER <user> +sentinel|ckquorum   (on the Sentinels)",
        );
    }
    let short: Vec<&Group> = groups.iter().filter(|g| g.is_short()).collect();
    if let Some(worst) = short.iter().max_by_key(|g| g.against()) {
        return found(facts, worst, &short).into();
    }
    let answered = facts.sentinels.iter().filter(|s| s.unreachable.is_none()).count();
    Verdict::Absent(format!("a quorum of Sentinels: {answered} answer, and most say that a failover can be authorised"))
}

fn found(facts: &Facts, worst: &Group, short: &[&Group]) -> Finding {
    let Some((sentinel, group)) = worst.words.iter().find(|(_, g)| is_against(g)).or(worst.words.first()) else {
        return Finding::new("Sentinels without a quorum");
    };
    let known = group.other_sentinels.saturating_add(1);
    let lost: Vec<String> =
        facts.sentinels.iter().filter(|s| s.unreachable.is_some()).map(|s| s.address.clone()).collect();
    let why = if group.quorum > known {
        format!("its quorum is {}, but {known} Sentinels are known", group.quorum)
    } else {
        let away = match lost.len() {
            0 => String::new(),
            1 => format!("; {} does not answer here", names(&lost)),
            _ => format!("; {} do not answer here", names(&lost)),
        };
        format!("{} of {} that answer say NOQUORUM{away}", worst.against(), worst.words.len())
    };
    let more = if short.len() > 1 { format!("; {} more groups", short.len() - 1) } else { String::new() };
    let mut finding = Finding::new(format!("No failover of {} could be authorised: {why}{more}", group.service))
        .on(short.iter().flat_map(|g| &g.words).map(|(_, g)| g.master.as_str()))
        .on(short.iter().flat_map(|g| &g.words).map(|(s, _)| s.address.as_str()))
        .risk("no request is lost now; if the master dies, nothing takes over until enough Sentinels are back")
        .severity(Severity::High)
        .proven("the Sentinels' own answers to CKQUORUM, and their configured quorum");
    for (sentinel, group) in worst.words.iter().take(3) {
        finding = finding.saw_at(
            cli(&sentinel.address, &format!("SENTINEL CKQUORUM {}", group.service)),
            group.ckquorum.clone(),
            facts.at_ms,
        );
    }
    finding = finding.saw_at(
        cli(&sentinel.address, "SENTINEL MASTERS"),
        format!("{}: quorum {}, num-other-sentinels {}", group.service, group.quorum, group.other_sentinels),
        facts.at_ms,
    );
    if group.quorum > known {
        let all: Vec<&(&SentinelNode, &SentinelGroup)> = worst.words.iter().collect();
        let set = |to: Option<u64>| -> Vec<String> {
            let line = |(s, g): &&(&SentinelNode, &SentinelGroup)| {
                cli(&s.address, &format!("SENTINEL SET {} quorum {}", g.service, to.unwrap_or(g.quorum)))
            };
            all.iter().map(line).collect()
        };
        let (lines, undo) = (set(Some(known / 2 + 1)), set(None).join("; "));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        return finding.fix("Set the quorum to a majority and no more, on every Sentinel", &lines, "", &undo);
    }
    let listing = cli(&sentinel.address, &format!("SENTINEL SENTINELS {}   (flags: s_down)", group.service));
    let mut lines = vec![listing.as_str()];
    let start = "systemctl start redis-sentinel   (or valkey-sentinel: as it was installed; on the machine of each \
                 that is down)";
    lines.push(start);
    finding.fix("Start the Sentinels that are missing", &lines, "", "")
}
