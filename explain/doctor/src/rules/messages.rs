//! What clients' error messages say, and which measurements on the servers explain them. Not a rule: several rules use
//! it.
//!
//! A message says what failed when it was written, and nothing about the window.

use unslow_facts::{ClientError, ClientErrorKind, Facts, Multiplexer, ThreadPool};
use unslow_units::{count, time_us};

use super::ALL;
use crate::{Finding, Severity, Verdict, When};

/// Bytes of replies that wait in the client's socket, from which on it is not reading: one small reply may have come
/// late.
pub const UNREAD_BYTES: u64 = 8192;
/// Bytes of a reply that has arrived in part: a large value.
pub const PARTIAL_BYTES: u64 = 65_536;

/// The counters of a message about a reply that did not come in time.
pub fn counters(error: &ClientError) -> Option<&Multiplexer> {
    error.multiplexer.as_ref().filter(|_| error.kind == ClientErrorKind::Timeout)
}

/// The thread pool in which work waited for a thread, and its name in the message.
pub fn starved(error: &ClientError) -> Option<(&'static str, ThreadPool)> {
    let counters = counters(error)?;
    // .NET starts threads up to the minimum at once, and one or two a second beyond it. With an empty queue no work
    // waits for one.
    let waits = counters.queued_items.is_none_or(|n| n > 0);
    let pools = [("WORKER", counters.worker), ("IOCP", counters.iocp)];
    let pools = pools.into_iter().filter_map(|(name, pool)| Some((name, pool?)));
    pools.filter(|(_, pool)| waits && pool.min > 0 && pool.busy > pool.min).max_by_key(|(_, pool)| pool.busy)
}

/// Bytes that waited in the client's socket, where it was not reading, or of a large reply that was on its way.
pub fn unread(error: &ClientError) -> Option<u64> {
    let counters = counters(error)?;
    let waiting = counters.unread_bytes.filter(|n| *n >= UNREAD_BYTES);
    waiting.or_else(|| counters.partial_bytes.filter(|n| *n >= PARTIAL_BYTES))
}

/// What failed, for a sentence: `StackExchange.Redis got no reply to GET within 5 s`.
pub fn said(error: &ClientError) -> String {
    use ClientErrorKind::*;
    let who = error.library.name();
    let command = error.command.as_ref().map_or(String::new(), |c| format!(" to {c}"));
    let within = error.timeout_ms.map_or("in time".into(), |ms| format!("within {}", time_us(ms as f64 * 1000.0)));
    match error.kind {
        Timeout => format!("{who} got no reply{command} {within}"),
        ConnectTimeout => format!("{who} could not connect {within}"),
        Refused => format!("{who} was refused a connection: nothing listens there"),
        Unresolved => format!("{who} could not resolve the server's name"),
        Closed => format!("{who} lost a connection that was in use"),
        PoolTimeout => format!("{who} got no connection from its pool {within}"),
        NoConnection => format!("{who} had no usable connection"),
        Loading => format!("{who} got LOADING: the server was loading its data set"),
        OutOfMemory => format!("{who} got OOM: a write at the memory limit"),
        SaveFailed => format!("{who} got MISCONF: saving failed, so writes were refused"),
        ReadOnly => format!("{who} got READONLY: a write reached a replica"),
        ClusterDown => format!("{who} got CLUSTERDOWN"),
        Moved => format!("{who} got MOVED and did not follow it"),
        MasterDown => format!("{who} got MASTERDOWN: a replica had lost its master"),
        NoReplicas => format!("{who} got NOREPLICAS: too few replicas kept up for a write"),
        NoAuth => format!("{who} got NOAUTH: it had not logged in"),
        WrongPassword => format!("{who} got WRONGPASS: wrong password or user"),
        NoPermission => format!("{who} got NOPERM: its user is not allowed to do that"),
        Busy => format!("{who} got BUSY: a script was blocking the server"),
        MaxClients => format!("{who} got an error: the server is at maxclients"),
        Unrecognised => "a message that was not recognised".into(),
    }
}

/// Where and how often, as evidence: `3 times at 10.0.0.1:6379`.
pub fn where_and_how_often(error: &ClientError) -> String {
    let times = if error.count == 1 { "once".into() } else { format!("{} times", count(error.count as f64)) };
    error.server.as_ref().map_or(times.clone(), |server| format!("{times} at {server}"))
}

/// Rules whose findings explain a failure of this kind.
fn explaining(kind: ClientErrorKind) -> &'static [&'static str] {
    use ClientErrorKind::*;
    match kind {
        Timeout | PoolTimeout => &[
            "node_hangs",
            "node_unreachable",
            "fork_stall",
            "aof_fsync_stall",
            "long_script",
            "keys_command",
            "slow_command",
            "big_key",
            "expire_storm",
            "main_thread_saturated",
            "topology_storm",
            "monitoring_storm",
            "failover_flapping",
            "packet_loss",
            "cpu_throttled",
            "noisy_neighbour",
            "hypervisor_steal",
            "paused",
            "swap",
            "memory_pressure",
            "container_memory",
            "fsync_always",
            "pinned",
        ],
        ConnectTimeout | Refused | Unresolved | NoConnection => &[
            "node_hangs",
            "node_unreachable",
            "sentinel_master_down",
            "too_many_connections",
            "accept_overflow",
            "fd_limit",
            "connection_churn",
            "main_thread_saturated",
            "failover_flapping",
            "packet_loss",
        ],
        Closed => &[
            "node_hangs",
            "node_unreachable",
            "too_many_connections",
            "slow_subscriber",
            "normal_buffer_kill",
            "failover_flapping",
        ],
        Loading => &["node_unreachable", "loading_loop", "full_resync_loop", "failover_flapping"],
        MasterDown => &["node_unreachable", "replica_link_down", "full_resync_loop", "failover_flapping"],
        OutOfMemory => &["out_of_memory"],
        SaveFailed => &["saves_failing", "overcommit", "error_flood"],
        ReadOnly => &["failover_flapping", "error_flood"],
        ClusterDown => &["slots_uncovered", "no_majority", "node_hangs", "node_unreachable", "failover_flapping"],
        Moved => &["redirect_storm", "open_slots", "views_disagree"],
        NoReplicas => {
            &["min_replicas_refusing", "replica_link_down", "full_resync_loop", "node_unreachable", "error_flood"]
        }
        NoAuth | WrongPassword => &["error_flood"],
        NoPermission => &["acl_denials", "error_flood"],
        Busy => &["long_script", "node_hangs", "node_unreachable"],
        MaxClients => &["too_many_connections", "fd_limit", "connection_leak"],
        Unrecognised => &[],
    }
}

/// What was measured on the servers and explains a failure of this kind: rule and finding. Risks explain nothing that
/// happened.
pub fn causes(facts: &Facts, kind: ClientErrorKind) -> Vec<(&'static str, Finding)> {
    if facts.nodes.is_empty() {
        return Vec::new();
    }
    let rules = ALL.iter().filter(|rule| explaining(kind).contains(&rule.id));
    let found = rules.filter_map(|rule| match (rule.check)(facts) {
        Verdict::Present(finding) if finding.severity > Severity::Risk => Some((rule.id, *finding)),
        _ => None,
    });
    found.collect()
}

/// These causes as evidence.
pub fn with_causes(mut finding: Finding, facts: &Facts, causes: &[(&'static str, Finding)]) -> Finding {
    for (rule, cause) in causes {
        let over = if cause.when == When::Past { ", before the window" } else { "" };
        finding = finding.saw_at(format!("{rule}, measured on the servers{over}"), cause.title.clone(), facts.at_ms);
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_explains_a_failure_is_a_rule() {
        use ClientErrorKind::*;
        for kind in [
            Timeout,
            ConnectTimeout,
            Refused,
            Unresolved,
            Closed,
            PoolTimeout,
            NoConnection,
            Loading,
            OutOfMemory,
            SaveFailed,
            ReadOnly,
            ClusterDown,
            Moved,
            MasterDown,
            NoReplicas,
            NoAuth,
            WrongPassword,
            NoPermission,
            Busy,
            MaxClients,
        ] {
            let named = explaining(kind);
            assert!(!named.is_empty(), "{kind:?}");
            let unknown: Vec<&&str> = named.iter().filter(|id| !ALL.iter().any(|rule| rule.id == **id)).collect();
            assert!(unknown.is_empty(), "{kind:?}: {unknown:?}");
        }
    }
}
