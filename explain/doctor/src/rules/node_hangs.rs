//! A server takes connections and then says nothing: its process stands still, or has been busy with one thing for seconds.
//!
//! The kernel goes on accepting for a stopped process until its backlog is full, so clients see neither a refusal nor a reset, only silence. Clients
//! without a command timeout wait for ever; those with one wait that long for each command. A cluster calls the node
//! failed after cluster-node-timeout and only then elects a replica; Sentinel after down-after-milliseconds.
//!
//! Seen when: a connection is made and nothing comes back within the time limit (3 s unless --timeout says otherwise), or
//! the answers stop in the middle of the window; and a PING on a second connection gets no answer either, while another node
//! of the deployment answers.
//!
//! Not to be taken for: a dead process (the connection is refused), a dead machine or a cut path (no answer to the
//! connection attempt). From outside, one command or fork of many seconds looks the same for as long as it lasts.
//!
//! What to do: find out what holds the process (stopped, swapping, a disk that does not return, a debugger); have its
//! replica take over. For next time: a command timeout and TCP_USER_TIMEOUT in every client.
//! Sources: our own measurement (SIGSTOP in the lab); lettuce #1976, #2082.

use super::prelude::*;

pub const TITLE: &str = "Node hangs";
pub const LEADS_TO: &[&str] = &["slots_uncovered", "failover_flapping"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let silent: Vec<(&Node, u64)> = facts.nodes.iter().filter_map(|n| Some((n, n.silent_ms?))).collect();
    let Some(witness) = facts.live().find(|n| n.silent_ms.is_none()) else {
        return match silent.first() {
            Some(_) => Verdict::Unknown { why: "no node answers, so that the way to them may be at fault as well".into(), grant: "run unslow on a server's machine".into() },
            None => Verdict::Absent(None),
        };
    };
    let Some((node, waited_ms)) = silent.first() else {
        return Verdict::Absent(Some(format!("a hung process: all {} nodes that took a connection answered", facts.live().count())));
    };
    let view = facts.live().filter_map(|n| n.cluster.value()).max_by_key(|v| v.epoch_max());
    let row = |n: &Node| view.and_then(|v| v.nodes.iter().find(|r| r.address == n.address));
    // A node found through its replica has no role of its own while it is silent.
    let is_master = |n: &Node| n.is_master() || facts.live().any(|r| r.master.as_deref() == Some(&n.address));
    // Slots that stay its own are not served; once its replica was elected they are somebody else's.
    let slots: usize = silent.iter().filter_map(|(n, _)| row(n)).map(|r| r.slots.len()).sum();
    let lost = match view {
        Some(_) => slots as f64 / 16384.0,
        None if silent.iter().any(|(n, _)| is_master(n)) => 1.0,
        None => 0.0,
    };
    let kind = if is_master(node) { "master " } else { "" };
    let mut finding = Finding::new(format!(
        "{kind}{} takes connections and says nothing: its process stands still or is busy with one thing{}",
        node.address,
        if silent.len() > 1 { format!(", and so do {} others", silent.len() - 1) } else { String::new() }
    ))
    .on(silent.iter().map(|(n, _)| n.address.as_str()));
    finding = if lost > 0.0 {
        finding.availability(86400.0 * lost, format!("{} of the key space waits, for as long as it hangs", percent(lost)))
    } else if is_master(node) {
        finding.risk("its slots are served by its replica now; clients that still hold a connection to it wait for their time-outs")
    } else {
        finding.risk("reads from it wait, and its master has one replica less to fall back on")
    };
    finding = finding
        .gain("the shard answers again", format!("{slots} of 16384 slots are on nodes that stand still"))
        .likely("two connections were made, so its machine and the path are there; no reply came on either. What the process does shows on its machine")
        .saw_then(node, "PING", format!("connected, no reply within {:.1} s", *waited_ms as f64 / 1000.0), facts.at_ms);
    if let Some(row) = row(node) {
        finding = finding.saw(witness, "CLUSTER NODES", format!("{}: {}, {} slots", node.address, row.flags.join(","), row.slots.len()));
    }
    let p = node.address.rsplit_once(':').map_or("", |(_, p)| p);
    let replica = facts.live().find(|n| n.master.as_deref() == Some(&node.address)).map(|n| n.address.rsplit_once(':').unwrap_or((&n.address, "6379")));
    let takeover = match (facts.kind, replica) {
        (DeploymentKind::Cluster, Some((h, p))) => format!("redis-cli -h {h} -p {p} CLUSTER FAILOVER FORCE"),
        (DeploymentKind::Cluster, None) => "CLUSTER FAILOVER FORCE   (on a replica of it)".into(),
        (DeploymentKind::Sentinel, _) => "SENTINEL FAILOVER <service>   (on any Sentinel)".into(),
        (_, Some((h, p))) => format!("redis-cli -h {h} -p {p} REPLICAOF NO ONE   (and point the clients there)"),
        (_, None) => "REPLICAOF NO ONE   (on a replica of it)".into(),
    };
    finding = finding
        .not(format!("a dead machine or a cut path: {} took the connection", node.address))
        .not(format!("the way from here: {} answers", witness.address))
        .fix(
            "On its machine, see what holds the process: T is stopped, D waits for a disk",
            &[&format!("ps -o pid,stat,wchan:30,cmd -C redis-server,valkey-server | grep {p}"), "kill -CONT PID   (where it is T and nobody debugs it)"],
            "a master that wakes up after its replica was elected answers with old data for a moment",
            "none needed",
        );
    if is_master(node) && lost > 0.0 {
        let (risk, back) = match facts.kind {
            DeploymentKind::Cluster => ("writes the replica had not received are lost", "CLUSTER FAILOVER on the old master once it is back"),
            DeploymentKind::Sentinel => ("writes the replica had not received are lost", "SENTINEL FAILOVER once more when the old master follows"),
            _ => ("writes the replica had not received are lost, and the old master wakes up as a second master: stop it first", "REPLICAOF on the one that shall follow"),
        };
        finding = finding.fix("Have its replica take over without waiting", &[&takeover], risk, back);
    }
    finding
        .fix(
            "For next time: clients that give up on silence",
            &["Lettuce: SocketOptions.tcpUserTimeout(...), TimeoutOptions.enabled(...)", "redis-py: socket_timeout=1, health_check_interval=10", "Jedis: socketTimeoutMillis(1000)"],
            "a limit below the longest honest command fails that command",
            "the old limits",
        )
        .into()
}
