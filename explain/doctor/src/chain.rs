//! Causes with their consequences beneath them.
//!
//! A finding that another finding explains is not ranked by itself: it becomes a link of its cause. The cause is then
//! worth the dearest of them all.

use std::collections::BTreeMap;

use crate::{Finding, Link, Rule};

/// Folds consequences into their causes and ranks what is left, dearest first.
pub fn fold(findings: Vec<Finding>, rules: &[Rule]) -> Vec<Finding> {
    let leads_to: BTreeMap<&str, &[&str]> = rules.iter().map(|r| (r.id, r.leads_to)).collect();
    let mut order: Vec<usize> = (0..findings.len()).collect();
    order.sort_by(|&a, &b| worth(&findings[b]).partial_cmp(&worth(&findings[a])).unwrap_or(std::cmp::Ordering::Equal));

    // Every finding's cause among the others: the dearest one that names it and shares a subject with it.
    let cause_of: Vec<Option<usize>> = (0..findings.len())
        .map(|effect| {
            order.iter().copied().find(|&cause| {
                cause != effect
                    && leads_to
                        .get(findings[cause].id.as_str())
                        .is_some_and(|l| l.contains(&findings[effect].id.as_str()))
                    && linked(&findings[cause], &findings[effect])
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
            for i in members {
                let effect = &findings[i];
                if worth(effect) > best {
                    best = worth(effect);
                    finding.impact = effect.impact.clone();
                    finding.severity = finding.severity.max(effect.severity);
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
                if effect.impact.currency != finding.impact.currency {
                    finding.remedies.extend(effect.remedies.iter().take(1).cloned());
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

/// Currency first, then amount.
fn worth(finding: &Finding) -> (f64, f64) {
    (finding.impact.currency as u8 as f64, finding.impact.value)
}

fn linked(cause: &Finding, effect: &Finding) -> bool {
    cause.subjects.is_empty()
        || effect.subjects.is_empty()
        || cause.subjects.iter().any(|s| effect.subjects.contains(s))
}
