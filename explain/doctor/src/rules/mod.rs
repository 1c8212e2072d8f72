//! The catalogue: one file per rule, complete in itself. Its head is its documentation page.

use crate::Rule;

// What several rules ask; none is a rule.
pub mod arrows;
mod callers;
mod key_patterns;
mod large;
mod memory;
mod messages;
mod peers;
mod refusal;
mod replica_link;
mod standing;
mod takeover;

#[cfg(test)]
mod made;

/// What every rule file needs.
mod prelude {
    pub use crate::measure::*;
    pub use crate::{Finding, Injected, Severity, Verdict};
    pub use unslow_facts::{Facts, Gap, Lack, Node};
    pub use unslow_topology::{DeploymentKind, join_host_port};
    pub use unslow_units::{bytes, count, percent, time_rough_s, time_us};
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
    no_majority,
    node_hangs,
    node_unreachable,
    sentinel_master_down,
    paused,
    loading_loop,
    // clients
    topology_storm,
    monitoring_storm,
    far_client,
    no_pipelining,
    kernel_bound,
    connection_churn,
    reconnect_stampede,
    idle_reaper,
    accept_overflow,
    fd_limit,
    too_many_connections,
    dead_peers,
    connection_leak,
    normal_buffer_kill,
    keys_command,
    monitor_attached,
    big_key,
    long_script,
    slow_command,
    acl_denials,
    error_flood,
    redirect_storm,
    slow_subscriber,
    // habits of clients
    chatter,
    busy_polling,
    lock_spinning,
    blocking_on_shared_connection,
    tracking_storm,
    watch_conflicts,
    giant_transactions,
    giant_commands,
    big_values,
    publish_in_cluster,
    eval_bodies,
    low_hit_ratio,
    // what a client's error message says
    client_thread_pool,
    client_pool_exhausted,
    client_unread_replies,
    client_error,
    // server
    saves_collide,
    save_too_often,
    fork_stall,
    saves_failing,
    disk_full_soon,
    disk_slow,
    aof_rewrite_storm,
    fsync_always,
    aof_fsync_stall,
    eviction_pressure,
    out_of_memory,
    expire_storm,
    expire_starved,
    backlog_too_small,
    full_resync_loop,
    resync_storm,
    // replication
    write_throttling,
    replica_buffer_kill,
    min_replicas_refusing,
    replica_link_down,
    replica_lag,
    writable_replica,
    // server, as a whole
    main_thread_saturated,
    // shards
    hot_key,
    shard_imbalance,
    hash_tag_skew,
    reads_on_master,
    slot_map_fragmented,
    ghost_nodes,
    views_disagree,
    // memory
    fragmentation,
    defrag_running,
    swap,
    container_memory,
    memory_pressure,
    reclaim,
    no_memory_limit,
    growth_without_ttl,
    client_memory,
    copy_on_write,
    script_cache,
    tracking_table,
    rehash,
    // deployment
    node_timeout_margin,
    sentinel_quorum,
    sentinel_tilt,
    sentinel_reset_needed,
    sentinels_share_host,
    sentinel_down_after,
    no_failover_possible,
    failover_flapping,
    masters_share_host,
    replica_shares_host,
    master_without_replica,
    slots_uncovered,
    open_slots,
    version_mix,
    clock_skew,
    config_drift,
    // host and network
    bandwidth,
    packet_loss,
    cpu_throttled,
    pinned,
    io_threads,
    noisy_neighbour,
    hypervisor_steal,
    softirq_on_core,
    frequency,
    numa,
    clocksource,
    // verdict and risks
    not_your_redis,
    no_auth,
    overcommit,
    transparent_huge_pages,
    log_level,
    notifications_for_nobody,
    blind_instruments,
];

/// Rules about messages that a person hands in. They need no server, and what they find is no word against one.
pub const OF_CLIENTS: &[&str] =
    &["client_thread_pool", "client_pool_exhausted", "client_unread_replies", "client_error"];

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
