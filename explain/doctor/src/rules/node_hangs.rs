//! A server accepts connections and then says nothing: its process is stopped, or has been busy with one thing for
//! seconds.
//!
//! The kernel keeps accepting connections for a stopped process until its backlog is full, so clients see neither a
//! refusal nor a reset, only silence. Clients without a command timeout wait forever; those with one wait that long for
//! each command. A cluster marks the node as failed after cluster-node-timeout and only then elects a replica; Sentinel
//! does so after down-after-milliseconds.
//!
//! Seen when: a connection is made and nothing comes back within the time limit (3 s unless --timeout says otherwise),
//! or the answers stop in the middle of the window; and a PING on a second connection gets no answer either.
//!
//! Not to be taken for: a dead process (the connection is refused), a dead machine or a cut path (no answer to the
//! connection attempt): `node_unreachable`. From outside, a single command or fork that takes many seconds looks the
//! same while it lasts, and so does CLIENT PAUSE without WRITE (`paused`); and if none of several nodes answers,
//! something in between that accepts every connection (a proxy, a load balancer) looks the same too.
//!
//! A process that was ready to run at every look and hardly ran is not stuck: other threads or processes hold the
//! processors. Where those are its own threads, that is `io_threads`; where they are strangers, `noisy_neighbour`.
//!
//! Proven when unslow, or a recorder, runs on the server's machine and the kernel says that the process was stopped by
//! a signal (T) at every look while it owed an answer, three at least. Any other state, and the kernel function that it
//! waits in, are evidence; a debugger (t) may have been attached to find out why it hangs.
//!
//! It began when the server was last heard from: by unslow in the window, by its peers (CLUSTER NODES, pong-received),
//! its replicas (master_last_io_seconds_ago) or its Sentinels (last-ok-ping-reply).
//!
//! What to do: find out what blocks the process (it is stopped or swapping, its disk does not respond, a debugger is
//! attached); have its replica take over. For next time, set a command timeout and TCP_USER_TIMEOUT in every client.
//! Sources: measured with SIGSTOP in the lab; lettuce #1976, #2082.

use super::peers::{self, Stake};
use super::prelude::*;
use super::standing;
use super::takeover;
use crate::Affected;
use unslow_facts::ThreadState;
use unslow_topology::ClusterView;

pub const TITLE: &str = "Node hangs";
pub const LEADS_TO: &[&str] = &[
    "slots_uncovered",
    "sentinel_master_down",
    "master_without_replica",
    "failover_flapping",
    "min_replicas_refusing",
    "error_flood",
];
pub const INJECTED: Injected = Injected::Yes;

/// A server that says nothing, how long we waited for it, and what is lost meanwhile.
type Silent<'a> = (&'a Node, u64, Stake);

pub fn check(facts: &Facts) -> Verdict {
    if facts.nodes.is_empty() {
        return Verdict::NotHere;
    }
    let cluster = peers::cluster(facts);
    let view = cluster.as_ref().map(|(_, view)| view);
    let silent: Vec<Silent> =
        facts.nodes.iter().filter_map(|n| Some((n, n.silent_ms?, peers::stake(facts, view, n)))).collect();
    let silent = by_worst(silent, |s| s.2.share());
    let Some((node, waited_ms, stake)) = silent.first() else {
        let answered = facts.nodes.iter().filter(|n| peers::answers(n)).count();
        return match answered {
            0 => Verdict::unknown(
                Lack::Answer,
                "whether a process hangs: no server accepted a connection",
                "run unslow on a server's machine",
            ),
            n => Verdict::Absent(format!("a hung process: all {n} nodes that accepted a connection answered")),
        };
    };
    let lost: f64 = silent.iter().map(|(_, _, stake)| stake.share()).sum::<f64>().min(1.0);
    let kind = match stake {
        Stake::Slots(_) | Stake::OneOf(_) => "master ",
        Stake::All if facts.nodes.len() > 1 && !peers::none_measured(facts) => "master ",
        Stake::Copy { .. } => "replica ",
        Stake::All | Stake::Replaced { .. } | Stake::Nothing => "",
    };
    let others = match silent.len() {
        1 => String::new(),
        2 => ", and so does 1 other".into(),
        n => format!(", and so do {} others", n - 1),
    };
    let mut finding = Finding::new(format!(
        "{kind}{} accepts connections and says nothing: its process is {}{others}",
        node.address,
        if is_stopped(node) {
            "stopped by a signal"
        } else if standing::is_starved(node) {
            "ready to run and gets no processor"
        } else {
            "stopped or busy with one thing"
        }
    ))
    .on(silent.iter().map(|(n, ..)| n.address.as_str()));
    finding = cost(finding, facts, view, &silent, lost);
    if let Some(at_ms) = peers::silent_since_ms(facts, node) {
        finding = finding.since(at_ms);
    }
    let witness = facts.live().find(|n| peers::answers(n));
    finding = sure(finding, facts, &silent, witness);
    finding = finding.saw_then(
        node,
        "PING",
        format!("connected, no reply within {:.1} s", *waited_ms as f64 / 1000.0),
        facts.at_ms,
    );
    finding = standing::with(finding, node, |_| true);
    if let Some((asked, row)) = cluster.as_ref().and_then(|(asked, view)| Some((asked, peers::row(view, node)?))) {
        finding = finding.saw(
            asked,
            "CLUSTER NODES",
            format!("{}: {}, {} slots", node.address, row.flags.join(","), row.slots.len()),
        );
    }
    finding = finding.not(format!("a dead machine or a refused connection: {} accepted two connections", node.address));
    if let Some(witness) = witness {
        finding = finding.not(format!("a problem on the path from here: {} answers", witness.address));
    }
    remedies(finding, facts, view, &silent[0])
}

fn cost(finding: Finding, facts: &Facts, view: Option<&ClusterView>, silent: &[Silent], lost: f64) -> Finding {
    let Some((node, _, stake)) = silent.first() else { return finding };
    let now_ms = facts.live().map(Node::at_ms).max().unwrap_or(facts.at_ms);
    if lost > 0.0 {
        let happens = takeover::outlook(facts, view, node).text(now_ms);
        // Whose requests wait is known only where someone was seen to make any.
        let affected = peers::affected(facts);
        let waits = match affected {
            Affected::Requests => {
                format!("requests for {} of the key space wait for as long as it hangs", percent(lost))
            }
            Affected::NextClient => format!(
                "{}; the next client to connect would wait for {} of the key space for as long as it hangs",
                peers::unseen_words(facts),
                percent(lost)
            ),
        };
        return finding
            .availability(86400.0 * lost, format!("{waits}; {happens}"))
            .affects(affected)
            .severity(Severity::Critical)
            .gain("its keys are served again", format!("{} x 86,400 s", percent(lost)));
    }
    match stake {
        Stake::Replaced { by, .. } => finding
            .risk(format!(
                "{by} has taken over what it served; a client that still holds a connection to it waits until its \
                 timeout"
            ))
            .severity(Severity::Medium),
        Stake::Nothing => finding
            .risk("it owns no slots: only a client that still holds a connection to it waits")
            .severity(Severity::Medium),
        Stake::Copy { .. } | Stake::All | Stake::Slots(_) | Stake::OneOf(_) => finding
            .risk("reads sent to it wait, and its master has one fewer replica to fall back on")
            .severity(Severity::Medium),
    }
}

/// Whether a signal stopped its process, at every look while it owed an answer. A debugger may have come to see why it
/// hangs, and so proves nothing.
fn is_stopped(node: &Node) -> bool {
    let seen = node.standing.as_ref().filter(|standing| standing.looks >= standing::LOOKS);
    seen.is_some_and(|standing| standing.only_state() == Some(ThreadState::Stopped))
}

fn sure(finding: Finding, facts: &Facts, silent: &[Silent], witness: Option<&Node>) -> Finding {
    let seen = "two connections were made, so its machine is up; no reply came on either";
    let first = silent.first().and_then(|(node, ..)| node.standing.as_ref());
    if let Some(standing) = first.filter(|_| silent.iter().all(|(node, ..)| is_stopped(node))) {
        let others = if silent.len() > 1 { ", and the same of the others" } else { "" };
        return finding.proven(format!(
            "the kernel of its machine says that process {} was stopped at each of {} looks within {} while it owed an \
             answer{others}",
            standing.pid,
            standing.looks,
            time_us(standing.span_ms as f64 * 1000.0)
        ));
    }
    match witness {
        Some(_) => finding.likely(format!("{seen}. What the process is doing can only be seen on its machine")),
        None if facts.nodes.len() == 1 => finding.likely(format!(
            "{seen}. Something on the way that accepts every connection (a proxy, a load balancer) would look the same"
        )),
        None => finding.possible(format!(
            "{seen}. But no other node answers, so something on the way may accept every connection and answer none: \
             check from a server's machine"
        )),
    }
}

fn remedies(finding: Finding, facts: &Facts, view: Option<&ClusterView>, silent: &Silent) -> Verdict {
    let (node, _, stake) = silent;
    let port = node.address.rsplit_once(':').map_or("", |(_, p)| p);
    let risk = match stake {
        Stake::Copy { .. } | Stake::Nothing => "",
        Stake::All if facts.nodes.len() == 1 => "",
        Stake::All | Stake::Slots(_) | Stake::OneOf(_) | Stake::Replaced { .. } => {
            "a master that wakes up after its replica was promoted serves stale data for a moment"
        }
    };
    let mut finding = match &node.standing {
        Some(standing) if is_stopped(node) => finding.fix(
            "On its machine, resume the process, once it is known what stopped it",
            &[&format!("kill -CONT {}", standing.pid)],
            risk,
            "",
        ),
        Some(standing) if standing.only_state() == Some(ThreadState::Traced) => finding.fix(
            "A debugger holds the process: detach it (TracerPid is its process)",
            &[&format!("grep TracerPid /proc/{}/status", standing.pid)],
            risk,
            "",
        ),
        Some(standing) if standing::is_starved(node) => finding.fix(
            "On its machine, see which threads hold the processors",
            &["ps -eLo pcpu,pid,comm --sort=-pcpu | head", &format!("top -H -p {}", standing.pid)],
            risk,
            "",
        ),
        _ => finding.fix(
            "On its machine, see what blocks the process: T means stopped, D means waiting for a disk",
            &[
                &format!("ps -o pid,stat,wchan:30,cmd -C redis-server,valkey-server | grep {port}"),
                "kill -CONT PID   (if the state is T and no debugger is attached)",
            ],
            risk,
            "",
        ),
    };
    if stake.share() > 0.0 {
        finding = takeover::force(finding, facts, view, node);
    }
    finding
        .fix(
            "For next time: make clients give up on a silent server",
            &[
                "Lettuce: SocketOptions.tcpUserTimeout(...), TimeoutOptions.enabled(...)",
                "redis-py: socket_timeout=1, health_check_interval=10",
                "Jedis: socketTimeoutMillis(1000)",
            ],
            "a limit below the longest legitimate command fails that command",
            "restore the old limits",
        )
        .into()
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Doing, Standing};
    use unslow_topology::Role;

    use super::super::made::said;
    use super::*;
    use crate::Confidence;

    /// A standalone server that says nothing, seen in these states, each so often.
    fn silent(seen: &[(ThreadState, u32)]) -> Facts {
        let doing = |(state, looks): &(ThreadState, u32)| Doing {
            state: *state,
            wait_channel: None,
            stack: Vec::new(),
            looks: *looks,
        };
        let standing = Standing {
            pid: 77,
            looks: seen.iter().map(|(_, looks)| looks).sum(),
            seen: seen.iter().map(doing).collect(),
            ..Standing::default()
        };
        let standing = (!seen.is_empty()).then_some(standing);
        let node = Node { silent_ms: Some(3000), standing, ..Node::new("10.0.0.1:6379", Role::Unknown) };
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1") }
    }

    #[test]
    fn a_process_that_waits_for_a_processor_is_not_stuck() {
        use ThreadState::{Runnable, Sleeping};
        let found = |waited_ms, user_ms, state| {
            let mut facts = silent(&[(state, 5)]);
            let standing = facts.nodes[0].standing.as_mut().unwrap();
            (standing.span_ms, standing.waited_ms, standing.user_ms) = (400, waited_ms, user_ms);
            said(check(&facts))
        };
        // A wait that is not over is not counted yet.
        for waited_ms in [Some(370), Some(0), None] {
            let starved = found(waited_ms, 20, Runnable);
            assert!(starved.title.ends_with("ready to run and gets no processor"), "{}", starved.title);
            assert!(starved.remedies[0].commands.iter().all(|command| !command.contains("kill")), "{starved:?}");
        }
        // One that ran for two fifths of the time is busy with something.
        for (waited_ms, user_ms, state) in [(Some(220), 160, Runnable), (Some(390), 0, Sleeping)] {
            let title = found(waited_ms, user_ms, state).title;
            assert!(title.ends_with("stopped or busy with one thing"), "{waited_ms:?} {user_ms}: {title}");
        }
    }

    #[test]
    fn only_a_process_that_a_signal_stopped_at_every_look_is_proven_to_be_stopped() {
        use ThreadState::{Runnable, Stopped, Traced, Uninterruptible};
        let stopped = said(check(&silent(&[(Stopped, 5)])));
        assert_eq!(stopped.confidence, Confidence::Proven);
        assert!(stopped.title.ends_with("stopped by a signal"), "{}", stopped.title);
        assert!(stopped.remedies[0].commands[0].contains("kill -CONT 77"), "{:?}", stopped.remedies);
        let others: [&[(ThreadState, u32)]; 6] = [
            &[],
            &[(Stopped, 2)],
            &[(Stopped, 9), (Runnable, 1)],
            &[(Traced, 5)],
            &[(Uninterruptible, 5)],
            &[(Runnable, 5)],
        ];
        for seen in others {
            let found = said(check(&silent(seen)));
            assert_ne!(found.confidence, Confidence::Proven, "{seen:?}");
            assert!(found.title.ends_with("stopped or busy with one thing"), "{seen:?}: {}", found.title);
            assert!(!found.remedies[0].commands[0].contains("kill"), "{seen:?}");
        }
        // What was seen of one proves nothing of another.
        let mut two = silent(&[(Stopped, 5)]);
        two.nodes.extend(silent(&[]).nodes.into_iter().map(|n| Node { address: "10.0.0.2:6379".into(), ..n }));
        assert_ne!(said(check(&two)).confidence, Confidence::Proven);
    }
}
