//! The catalogue: one file per rule, complete in itself. Its head is its documentation page.

use crate::Rule;

// What several rules ask; none is a rule.
mod peers;
mod refusal;
mod takeover;

/// What every rule file needs.
mod prelude {
    pub use crate::measure::*;
    pub use crate::{Finding, Injected, Severity, Verdict};
    pub use unslow_facts::{Facts, Gap, Lack, Node};
    pub use unslow_topology::DeploymentKind;
}

macro_rules! rules {
    ($($name:ident),* $(,)?) => {
        $(mod $name;)*
        /// Every rule, in the order of the catalogue.
        pub const ALL: &[Rule] = &[$(Rule {
            id: stringify!($name),
            title: $name::TITLE,
            leads_to: $name::LEADS_TO,
            injected: $name::INJECTED,
            check: $name::check,
            source: include_str!(concat!(stringify!($name), ".rs")),
        }),*];
    };
}

rules![
    // a server is away
    node_hangs,
    node_unreachable,
    sentinel_master_down,
    // clients
    topology_storm,
    monitoring_storm,
    far_client,
    no_pipelining,
    kernel_bound,
    connection_churn,
    too_many_connections,
    keys_command,
    monitor_attached,
    big_key,
    long_script,
    slow_command,
    error_flood,
    redirect_storm,
    slow_subscriber,
    // server
    save_too_often,
    fork_stall,
    aof_fsync_stall,
    eviction_pressure,
    out_of_memory,
    expire_storm,
    backlog_too_small,
    full_resync_loop,
    main_thread_saturated,
    // deployment
    node_timeout_margin,
    sentinel_down_after,
    failover_flapping,
    masters_share_host,
    replica_shares_host,
    master_without_replica,
    slots_uncovered,
    open_slots,
    config_drift,
    // host and network
    packet_loss,
    cpu_throttled,
    noisy_neighbour,
    hypervisor_steal,
    // verdict and risks
    not_your_redis,
    no_auth,
    overcommit,
    transparent_huge_pages,
    blind_instruments,
];

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn every_consequence_is_a_rule_and_no_chain_is_a_circle() {
        let find = |id: &str| ALL.iter().find(|r| r.id == id).unwrap_or_else(|| panic!("{id} is no rule"));
        for rule in ALL {
            let (mut open, mut seen) = (vec![rule.id], Vec::new());
            while let Some(id) = open.pop() {
                for next in find(id).leads_to {
                    assert_ne!(*next, rule.id, "{} leads to itself", rule.id);
                    if !seen.contains(next) {
                        seen.push(next);
                        open.push(next);
                    }
                }
            }
        }
    }

    #[test]
    fn every_rule_has_a_page() {
        for rule in ALL {
            let page = rule.page();
            assert!(
                page.lines().count() >= 5 && page.contains("What to do"),
                "{} needs a head that explains it",
                rule.id
            );
        }
    }
}
