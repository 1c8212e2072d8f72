//! Causes with their consequences beneath them.
//!
//! A finding that another finding explains is not ranked by itself: it becomes a link of its cause. The cause is then
//! worth the dearest of them all.

use std::collections::BTreeMap;

use crate::{Currency, Finding, Link, Remedy, Rule, Severity, When, setting_of};

/// Folds consequences into their causes and ranks what is left, dearest first. `holds` says of a cause and an effect
/// that an arrow joins whether the facts bear it out: about which servers they are, and what was counted there.
pub fn fold(findings: Vec<Finding>, rules: &[Rule], holds: impl Fn(&Finding, &Finding) -> bool) -> Vec<Finding> {
    let leads_to: BTreeMap<&str, &[&str]> = rules.iter().map(|r| (r.id, r.leads_to)).collect();
    let mut order: Vec<usize> = (0..findings.len()).collect();
    order.sort_by(|&a, &b| worth(&findings[b]).partial_cmp(&worth(&findings[a])).unwrap_or(std::cmp::Ordering::Equal));

    // Every finding's cause among the others: the costliest one that can lead to it and did.
    let cause_of: Vec<Option<usize>> = (0..findings.len())
        .map(|effect| {
            order.iter().copied().find(|&cause| {
                cause != effect
                    && leads_to
                        .get(findings[cause].id.as_str())
                        .is_some_and(|l| l.contains(&findings[effect].id.as_str()))
                    && in_time(&findings[cause], &findings[effect])
                    && holds(&findings[cause], &findings[effect])
            })
        })
        .collect();
    let root_of = |mut i: usize| {
        // The rules' arrows form no circle (a test sees to it), so this ends.
        while let Some(cause) = cause_of[i] {
            i = cause;
        }
        i
    };
    let depth_of = |mut i: usize| {
        let mut depth = 0;
        while let Some(cause) = cause_of[i] {
            i = cause;
            depth += 1;
        }
        depth
    };
    let mut roots: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for i in 0..findings.len() {
        let members = roots.entry(root_of(i)).or_default();
        if root_of(i) != i {
            members.push(i);
        }
    }
    // Equals, risks above all, in the order of the catalogue: what breaks a deployment before what blinds it.
    let rank = |f: &Finding| rules.iter().position(|r| r.id == f.id);
    let mut ranked: Vec<((f64, f64), Finding)> = roots
        .into_iter()
        .map(|(root, mut members)| {
            members.sort_by_key(|&i| depth_of(i));
            let mut finding = findings[root].clone();
            let mut best = worth(&finding);
            let currency = finding.impact.currency;
            for i in members {
                let effect = &findings[i];
                if worth(effect) > best {
                    best = worth(effect);
                    finding.impact = effect.impact.clone();
                    finding.severity = finding.severity.max(effect.severity);
                    finding.when = effect.when;
                    finding.affected = effect.affected;
                }
                finding.chain.push(Link {
                    id: effect.id.clone(),
                    subject: effect.subjects.first().cloned().unwrap_or_default(),
                    at_ms: effect.evidence.first().map_or(0, |e| e.at_ms),
                    text: effect.title.clone(),
                });
                // What the consequence saw proves the chain; a line of each is enough.
                let seen = effect.evidence.iter().find(|e| !finding.evidence.contains(e));
                finding.evidence.extend(seen.cloned());
                // A cost of the same kind goes with its cause; what is paid in another currency stays and needs its own
                // remedy: the cause of a failover can be mended, and two masters still share a host.
                let set: Vec<&str> =
                    finding.remedies.iter().flat_map(|r| &r.commands).filter_map(|c| setting_of(c)).collect();
                // What the cause's remedies set already has its value.
                let is_new = |r: &&Remedy| !r.commands.iter().all(|c| setting_of(c).is_some_and(|s| set.contains(&s)));
                if effect.impact.currency != currency {
                    let more: Vec<Remedy> = effect.remedies.iter().take(1).filter(is_new).cloned().collect();
                    finding.remedies.extend(more);
                }
            }
            (best, finding)
        })
        .collect();
    ranked.sort_by(|a, b| {
        b.0.partial_cmp(&a.0).unwrap_or(std::cmp::Ordering::Equal).then_with(|| rank(&a.1).cmp(&rank(&b.1)))
    });
    ranked.into_iter().map(|(_, f)| f).collect()
}

/// Currency first, then amount. What is over costs nothing now. What costs nothing that can be counted and is no mere
/// risk (a shard that nothing could take over, a copy that is gone) stands below what is counted in the currency of its
/// severity.
fn worth(finding: &Finding) -> (f64, f64) {
    if finding.when == When::Past {
        return (Currency::Risk as u8 as f64, 0.0);
    }
    let currency = match (finding.impact.currency, finding.severity) {
        (Currency::Risk, Severity::Critical | Severity::High) => Currency::Availability,
        (Currency::Risk, Severity::Medium | Severity::Low) => Currency::Capacity,
        (currency, _) => currency,
    };
    (currency as u8 as f64, finding.impact.value)
}

/// Causes that are settings: what was over before the window began had them too.
const SETTINGS: &[&str] =
    &["backlog_too_small", "fsync_always", "node_timeout_margin", "save_too_often", "sentinel_down_after"];

/// Whether a cause was there in time: what is known of the window alone explains nothing that was over before it, and
/// what is over explains no rate of the window. States that it left behind (two masters on one host, slots without an
/// owner) are its own.
fn in_time(cause: &Finding, effect: &Finding) -> bool {
    let is_rate = matches!(effect.impact.currency, Currency::Capacity | Currency::Latency);
    if cause.when == When::Past && effect.when == When::Now && is_rate {
        return false;
    }
    let earlier = matches!((cause.since, effect.since), (Some(cause), Some(effect)) if cause <= effect);
    effect.when == When::Now || cause.when != When::Now || earlier || SETTINGS.contains(&cause.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules;

    fn finding(id: &str) -> Finding {
        let mut finding = Finding::new(id.to_string()).on(["10.0.0.1:6379"]);
        finding.id = id.into();
        finding
    }

    /// The rules in the order of rank, each with those beneath it.
    fn folded(findings: Vec<Finding>) -> Vec<(String, Vec<String>)> {
        let told = |f: Finding| (f.id, f.chain.into_iter().map(|l| l.id).collect());
        fold(findings, rules::ALL, rules::arrows::share_a_server).into_iter().map(told).collect()
    }

    fn chain(root: &str, links: &[&str]) -> (String, Vec<String>) {
        (root.into(), links.iter().map(|l| l.to_string()).collect())
    }

    #[test]
    fn what_burns_now_is_no_cause_of_what_was_over_before() {
        let neighbour = || finding("noisy_neighbour").core(0.03, "");
        let fork = finding("fork_stall").availability(5.0, "").past(1000);
        let margin = || finding("node_timeout_margin").risk("").since_start(500);
        let election = || finding("failover_flapping").availability(3.0, "").past(2000);
        let apart = chain("noisy_neighbour", &[]);
        for (findings, expected) in [
            (
                vec![neighbour(), fork, margin(), election()],
                vec![apart.clone(), chain("fork_stall", &["node_timeout_margin", "failover_flapping"])],
            ),
            // Without another cause the margin stands by itself.
            (
                vec![neighbour(), margin(), election()],
                vec![apart, chain("node_timeout_margin", &["failover_flapping"])],
            ),
            // A stall of the window does lead to its own consequences.
            (
                vec![neighbour(), finding("node_timeout_margin").risk("")],
                vec![chain("noisy_neighbour", &["node_timeout_margin"])],
            ),
            // It is going on, but it began before the election.
            (
                vec![finding("node_hangs").availability(60.0, "").since(1500), election()],
                vec![chain("node_hangs", &["failover_flapping"])],
            ),
            (
                vec![finding("node_hangs").availability(60.0, "").since(2500), election()],
                vec![chain("node_hangs", &[]), chain("failover_flapping", &[])],
            ),
            // A script of a minute ago is not what fills the main thread now.
            (
                vec![finding("long_script").core(0.1, "").past(1000), finding("main_thread_saturated").core(0.97, "")],
                vec![chain("main_thread_saturated", &[]), chain("long_script", &[])],
            ),
            // Clients that a stall of the window has thrown off come back at once; one of last night has nothing to do
            // with it.
            (
                vec![finding("fork_stall").availability(5.0, ""), finding("reconnect_stampede").core(0.02, "")],
                vec![chain("fork_stall", &["reconnect_stampede"])],
            ),
            (
                vec![
                    finding("fork_stall").availability(5.0, "").past(1000),
                    finding("reconnect_stampede").core(0.02, ""),
                    finding("idle_reaper").latency(0.1, ""),
                    finding("connection_churn").core(0.01, ""),
                ],
                vec![
                    chain("idle_reaper", &["connection_churn"]),
                    chain("reconnect_stampede", &[]),
                    chain("fork_stall", &[]),
                ],
            ),
            // A setting was there then as well.
            (
                vec![finding("sentinel_down_after").risk(""), election()],
                vec![chain("sentinel_down_after", &["failover_flapping"])],
            ),
        ] {
            assert_eq!(folded(findings), expected);
        }
    }
}
