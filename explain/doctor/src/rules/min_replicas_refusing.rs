//! A master refuses writes because too few replicas keep up: NOREPLICAS.
//!
//! With min-replicas-to-write N, a master accepts writes only while N replicas have acknowledged within
//! min-replicas-max-lag seconds (10 by default). That limits what a failover can lose; the price is that a missing
//! replica stops writes.
//!
//! Seen when: the master answered NOREPLICAS at least once a second in the window (6.2+ counts them). Or there were no
//! such errors, but too few replicas kept up at both ends of the window: the next write will be refused.
//!
//! The reason is in the master's own list of replicas: fewer are connected than required, one is still being copied
//! (its state is not online), or its lag is over the limit.
//!
//! Not to be taken for: READONLY (the write went to a replica), MISCONF (saving fails), or OOM. The errors that clients
//! see are a consequence (`error_flood`).
//!
//! How to confirm: `INFO replication`: connected_slaves, min_slaves_good_slaves, state and lag of each slaveN;
//! `INFO errorstats` twice.
//!
//! What to do: accept writes with the replicas you have, if losing some writes in a failover is the lesser harm; then
//! bring the missing replica back, or require no more replicas than the deployment has.
//! Sources: INFO replication; redis.conf (min-replicas-to-write, min-replicas-max-lag).

use super::peers;
use super::prelude::*;
use super::refusal;
use super::replica_link::replicas_of;

pub const TITLE: &str = "Too few replicas to write";
pub const LEADS_TO: &[&str] = &["error_flood"];
pub const INJECTED: Injected = Injected::Yes;

/// `min-replicas-max-lag`, by default.
const MAX_LAG_S: f64 = 10.0;

/// A master with too few replicas.
struct Refusing<'a> {
    node: &'a Node,
    /// How many are required; none where the setting was not seen.
    need: Option<f64>,
    good: f64,
    /// NOREPLICAS in the window, and their share of all that was asked for.
    refused: f64,
    share: f64,
}

pub fn check(facts: &Facts) -> Verdict {
    let masters: Vec<&Node> =
        facts.live().filter(|n| n.is_master() && n.number("connected_slaves").is_some()).collect();
    if masters.is_empty() {
        // A replica says how many follow it too: INFO was seen, and the master was not.
        return match facts.live().any(|n| n.number("connected_slaves").is_some()) {
            true => Verdict::unknown(Lack::Answer, "replicas that must keep up: no master answered", ""),
            false => Verdict::Unknown(unseen_info(facts, "replicas that must keep up")),
        };
    }
    let rows = by_worst(masters.iter().filter_map(|n| refusing(n)).collect(), |r: &Refusing| r.share);
    if let Some(worst) = rows.first() {
        return found(facts, worst, &rows).into();
    }
    // INFO has the figure only where the setting is on.
    let set: Vec<&&Node> = masters.iter().filter(|n| n.number("min_slaves_good_slaves").is_some()).collect();
    let Some(good) = set.iter().filter_map(|n| n.number("min_slaves_good_slaves")).reduce(f64::min) else {
        return Verdict::NotHere;
    };
    if let Some(node) = set.iter().find(|n| n.setting_number("min-replicas-to-write").is_none()) {
        let what = format!("replicas that must keep up: at least {good:.0} do; the required number");
        return match node.config.missing() {
            Some(gap) => Verdict::Unknown(gap.of(&what)),
            None => Verdict::unknown(Lack::Version, format!("{what} is not among the settings"), ""),
        };
    }
    let counted: Vec<Outcomes> = set.iter().filter_map(|n| Outcomes::of(n)).collect();
    let refused: u64 = counted.iter().map(|o| o.count(&["NOREPLICAS"])).sum();
    let refusals = if counted.is_empty() { String::new() } else { format!(", and {refused} writes were refused") };
    Verdict::Absent(format!("replicas that must keep up: at least {good:.0} do{refusals}"))
}

fn refusing(node: &Node) -> Option<Refusing<'_>> {
    let need = node.setting_number("min-replicas-to-write").filter(|n| *n > 0.0);
    let good = node.number("min_slaves_good_slaves");
    let outcomes = Outcomes::of(node);
    let refused = outcomes.as_ref().map_or(0.0, |o| o.count(&["NOREPLICAS"]) as f64);
    if refused >= node.window_s.max(1.0) {
        let share = outcomes.map_or(0.0, |o| o.share(refused));
        let good = good.or_else(|| node.number("connected_slaves")).unwrap_or(0.0);
        return Some(Refusing { node, need, good, refused, share });
    }
    let before = node.first.as_ref()?.info.number("min_slaves_good_slaves")?;
    // INFO has the figure only where at least one is required.
    let (need_now, good) = (need.unwrap_or(1.0), good?);
    (before < need_now && good < need_now).then_some(Refusing { node, need, good, refused, share: 0.0 })
}

/// What keeps the replicas from being enough, by the master's list.
fn because(r: &Refusing) -> String {
    let list = r.node.info().map_or(Vec::new(), |i| i.replicas());
    let limit = r.node.setting_number("min-replicas-max-lag").unwrap_or(MAX_LAG_S);
    if let Some(row) = list.iter().find(|row| row.2 == "online" && row.3 as f64 > limit) {
        return format!(
            "{} last acknowledged {} s ago, and {limit:.0} are allowed",
            join_host_port(&row.0, row.1),
            row.3
        );
    }
    if let Some(row) = list.iter().find(|row| row.2 != "online") {
        return format!("{} is still being copied ({})", join_host_port(&row.0, row.1), row.2);
    }
    match list.len() {
        0 => "no replica is connected".into(),
        1 => "only 1 replica is connected".into(),
        n => format!("{n} replicas are connected"),
    }
}

fn found(facts: &Facts, worst: &Refusing, rows: &[Refusing]) -> Finding {
    let (node, why) = (worst.node, because(worst));
    let need = worst
        .need
        .map_or("replicas".to_string(), |n| format!("{n:.0} {}", if n == 1.0 { "replica" } else { "replicas" }));
    let verb = if worst.refused > 0.0 { "refuses writes" } else { "would refuse the next write" };
    let finding = Finding::new(format!(
        "{} {verb}: {need} must keep up (min-replicas-to-write), but {:.0} do: {why}",
        node.address, worst.good
    ))
    .on(rows.iter().map(|r| r.node.address.as_str()))
    .on(rows.iter().flat_map(|r| replicas_of(facts, r.node)).map(|n| n.address.as_str()));
    let finding = if worst.refused > 0.0 {
        finding
            .availability(
                86400.0 * worst.share,
                format!("{} of its commands are refused with NOREPLICAS; reads are served", percent(worst.share)),
            )
            .gain(
                format!("{} of the commands succeed again", percent(worst.share)),
                format!(
                    "{:.0} NOREPLICAS in {:.0} s = {} of all commands",
                    worst.refused,
                    node.window_s,
                    percent(worst.share)
                ),
            )
            .proven("the refusals and the replicas that keep up were both counted by the master in this window")
            .saw(node, "INFO errorstats", format!("errorstat_NOREPLICAS +{:.0}", worst.refused))
    } else {
        finding
            .risk("no write was refused in this window; the next one will be")
            .severity(Severity::Medium)
            .proven("the replicas that keep up were counted by the master at both ends of the window")
    };
    let states = node.info().map_or(Vec::new(), |i| i.replicas());
    let states: Vec<String> =
        states.iter().map(|r| format!("{} {} lag={}", join_host_port(&r.0, r.1), r.2, r.3)).collect();
    let finding = finding.saw(
        node,
        "INFO replication",
        format!(
            "min_slaves_good_slaves:{:.0}; {}",
            worst.good,
            if states.is_empty() { "no replica connected".to_string() } else { states.join(", ") }
        ),
    );
    mend(finding, facts, worst)
}

fn mend(finding: Finding, facts: &Facts, worst: &Refusing) -> Finding {
    let node = worst.node;
    let set = |n: f64| cli(&node.address, &format!("CONFIG SET min-replicas-to-write {n:.0}"));
    let mut finding = finding;
    if let Some(need) = worst.need.filter(|need| worst.good < *need) {
        // Durability is given up by choice only: no exact line.
        finding = finding.fix(
            "For the time being, accept writes with the replicas that keep up",
            &[&set(worst.good)],
            "writes that only this master has are lost if it dies",
            &set(need),
        );
    }
    let away: Vec<(&str, Option<&Node>)> =
        replicas_of(facts, node).filter(|n| !peers::answers(n)).map(|n| (n.address.as_str(), Some(n))).collect();
    if !away.is_empty() {
        return refusal::bring_back(finding, &away, "");
    }
    let links: Vec<String> = replicas_of(facts, node)
        .take(3)
        .map(|n| cli(&n.address, "INFO replication   (master_link_status, master_last_io_seconds_ago)"))
        .collect();
    let lines: Vec<String> = std::iter::once(cli(&node.address, "INFO replication   (state and lag of each replica)"))
        .chain(links)
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    finding.fix("Bring the missing replica back, or require no more replicas than the deployment has", &lines, "", "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{answer, node_at, replicated, said};
    use unslow_facts::Seen;

    fn master(before: &str, after: &str, need: &str) -> Facts {
        let common = "role:master\nredis_version:7.2.4\ntotal_commands_processed:0\n";
        let mut node = node_at("10.0.0.1:6379", &format!("{common}{before}"), after);
        let value = [("min-replicas-to-write".to_string(), need.to_string())].into();
        node.config = Seen::yes(value, "CONFIG GET", 1);
        replicated(vec![node])
    }

    const REFUSED: &str = "total_commands_processed:900\nerrorstat_NOREPLICAS:count=100\n\
                           cmdstat_set:calls=0,usec=0,usec_per_call=0.00,rejected_calls=100,failed_calls=0\n";

    #[test]
    fn refused_writes_are_counted_and_the_reason_is_told() {
        for (list, reason) in [
            ("connected_slaves:0\n", "no replica is connected"),
            (
                "connected_slaves:1\nslave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=30\n",
                "10.0.0.2:6379 last acknowledged 30 s ago, and 10 are allowed",
            ),
            (
                "connected_slaves:1\nslave0:ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0\n",
                "still being copied (wait_bgsave)",
            ),
        ] {
            let found = said(check(&master(&format!("{list}min_slaves_good_slaves:0\n"), REFUSED, "1")));
            assert!(found.title.contains(reason), "{}", found.title);
            assert!((found.impact.value / 86400.0 - 0.1).abs() < 0.001, "{}", found.impact.text);
            assert!(found.remedies[0].commands[0].ends_with("CONFIG SET min-replicas-to-write 0"), "{found:?}");
            assert!(found.remedies[0].rollback.ends_with("min-replicas-to-write 1"));
        }
    }

    #[test]
    fn what_the_next_write_meets_is_a_risk_and_only_if_it_lasts() {
        let few = "connected_slaves:0\nmin_slaves_good_slaves:0\n";
        let found = said(check(&master(few, "", "1")));
        assert_eq!((found.impact.currency, found.severity), (crate::Currency::Risk, Severity::Medium));
        assert_eq!(answer(&check(&master(few, "min_slaves_good_slaves:1\n", "1"))), "absent");
        let one =
            "connected_slaves:1\nmin_slaves_good_slaves:1\nslave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0\n";
        assert_eq!(answer(&check(&master(one, "", "1"))), "absent");
        assert_eq!(answer(&check(&master("connected_slaves:0\n", "", "0"))), "not here");
        assert_eq!(answer(&check(&master("", "", "0"))), "unknown");
        // Without the setting none is too few for any, and one may be.
        let hidden = |list: &str| {
            let mut facts = master(list, "", "1");
            facts.nodes[0].config = Seen::default();
            facts
        };
        assert_eq!(answer(&check(&hidden(few))), "present");
        assert_eq!(answer(&check(&hidden(one))), "unknown");
    }
}
