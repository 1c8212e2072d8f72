//! Most Sentinels run on one machine: when it dies, no failover can be authorised.
//!
//! A failover needs the votes of more than half of all Sentinels, dead ones counted. If the machine with most of them
//! also has the master, one power cut takes out the master and the means to replace it.
//!
//! Seen when: there are two or more Sentinels, and more than half of them have the same host address.
//!
//! Not to be taken for: a test deployment that is all on loopback, or Sentinels behind one NAT address (compare their
//! run ids and machines).
//!
//! How to confirm: `SENTINEL SENTINELS NAME` on one of them: the addresses of the others.
//!
//! What to do: run three Sentinels on three machines, at least one of which has neither the master nor its replica.
//! Sources: SENTINEL SENTINELS; Sentinel documentation ("at least three Sentinel instances ... placed into computers
//! that are believed to fail in an independent way").

use super::peers;
use super::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

pub const TITLE: &str = "Sentinels share a host";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Sentinel {
        return Verdict::NotHere;
    }
    let all = addresses(facts);
    if all.len() < 2 {
        // One alone has nothing to share; whether there are others no Sentinel said.
        return match facts.sentinels.iter().any(|s| s.unreachable.is_none() && !s.groups.is_empty()) {
            true => Verdict::NotHere,
            false => Verdict::unknown(Lack::Answer, "where the Sentinels run: none of them answered", ""),
        };
    }
    let mut hosts: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for address in &all {
        hosts.entry(peers::host_of(address)).or_default().push(address);
    }
    if hosts.len() == 1 && hosts.keys().all(|h| peers::is_loopback(h)) {
        return Verdict::NotHere;
    }
    let Some((host, there)) = hosts.iter().max_by_key(|(_, there)| there.len()) else { return Verdict::NotHere };
    if 2 * there.len() <= all.len() {
        return Verdict::Absent(format!("Sentinels' hosts: at most {} of {} on one", there.len(), all.len()));
    }
    let masters: BTreeSet<&str> = facts.sentinels.iter().flat_map(|s| &s.groups).map(|g| g.master.as_str()).collect();
    let beside: Vec<String> = masters.iter().filter(|m| peers::host_of(m) == *host).map(|m| m.to_string()).collect();
    let with = if beside.is_empty() { String::new() } else { format!(", beside the master {}", names(&beside)) };
    let witness = facts.sentinels.iter().find(|s| s.unreachable.is_none());
    let list = there.join(", ");
    let mut finding = Finding::new(format!(
        "{} of {} Sentinels run on {host}{with}: without that machine no failover can be authorised",
        there.len(),
        all.len()
    ))
    .on(there.iter().copied())
    .on(beside.iter().map(String::as_str))
    .risk("if that machine dies, a master that dies with it or later is not replaced")
    .proven("the Sentinels' own addresses");
    finding = match witness {
        Some(s) => finding.saw_at(cli(&s.address, "SENTINEL MASTERS; SENTINEL SENTINELS NAME"), list, facts.at_ms),
        None => finding.saw_at("discovery", list, facts.at_ms),
    };
    let service = facts.sentinels.iter().flat_map(|s| &s.groups).map(|g| g.service.as_str()).next().unwrap_or("NAME");
    let gone = there.get(1).or(there.first()).copied().unwrap_or_default();
    let start = "redis-sentinel /etc/redis/sentinel.conf   (on a machine without the master; its own copy of the file, \
                 without myid)";
    let end = cli(gone, "SHUTDOWN NOSAVE   (or systemctl stop on its machine, where systemd would start it again)");
    let others = all.iter().filter(|a| a.as_str() != gone);
    let forget = others.map(|a| cli(a, &format!("SENTINEL RESET {service}   (30 s after the one before)")));
    let lines: Vec<String> = [start.to_string(), end].into_iter().chain(forget).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    finding
        .fix(
            "Start one on another machine, stop one of these, and have the others forget it while the master is \
             healthy",
            &lines,
            "for some seconds after a RESET, that Sentinel knows neither replicas nor other Sentinels",
            "",
        )
        .into()
}

/// All Sentinels that are known, whether they answered or not, but for entries that are down.
fn addresses(facts: &Facts) -> BTreeSet<String> {
    let own = facts.sentinels.iter().map(|s| s.address.clone());
    let listed = facts.sentinels.iter().flat_map(|s| &s.groups).filter_map(|g| g.others.as_ref()).flatten();
    let up = |l: &&unslow_facts::Listed| !l.flags.split(',').any(|f| f == "s_down");
    let listed: BTreeSet<String> = listed.filter(up).map(|l| l.address.clone()).collect();
    let all: BTreeSet<String> = own.chain(listed.iter().cloned()).collect();
    // We may reach them by other names than they have for each other: those are counted by the names of their own.
    let known = facts.sentinels.iter().flat_map(|s| &s.groups).map(|g| g.other_sentinels.saturating_add(1)).max();
    let is_twice = known.is_some_and(|known| all.len() as u64 > known) && listed.len() > 1;
    if is_twice { listed } else { all }
}
