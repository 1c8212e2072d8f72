//! Connections whose other end has left stay open, because the server does not check on them.
//!
//! A client's machine that dies, or a firewall that forgets a connection, does not say goodbye. The server learns of it
//! from keepalive probes, which `tcp-keepalive` sets (300 s by default; 0 turns them off), or, if it has sent
//! something, when the kernel gives up on that after a quarter of an hour. Until then such a connection takes one of
//! maxclients, keeps its buffers, and receives messages and list items that will never be read.
//!
//! Seen when: `tcp-keepalive` is 0 or over 300, and clients on other machines have been idle for over an hour, or the
//! kernel has sent the same data or probe to a peer three times and heard nothing for seconds. It is a risk: live
//! connections pay nothing for the dead ones.
//!
//! Not to be taken for: clients that are idle and answer the kernel (a pool at rest), with keepalive on; `packet_loss`,
//! where peers answer in the end; `connection_leak`, where the client is alive and has forgotten the connection.
//!
//! How to confirm: `ss -tino state established 'sport = :6379'`: timer:(on,..), backoff and lastack; `CLIENT LIST`:
//! connections with an idle time of hours from hosts that no longer exist.
//!
//! What to do: turn keepalive on; it applies to connections made from then on, so close the dead ones by hand.
//! Sources: CONFIG GET tcp-keepalive; tcp_info (tcpi_retransmits, tcpi_probes, tcpi_last_ack_recv); tcp(7)
//! tcp_retries2.

use super::far_client::is_local;
use super::prelude::*;

pub const TITLE: &str = "Dead peers";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// The servers' own default, in seconds.
const DEFAULT_S: f64 = 300.0;
/// What is set instead: shorter than what firewalls and load balancers forget after.
const WANTED_S: f64 = 60.0;

/// One server that does not look after its connections.
struct Unwatched<'a> {
    node: &'a Node,
    keepalive_s: f64,
    /// Connections whose peers answer nothing, and for how long the quietest of them, in ms.
    unanswered: u32,
    quiet_ms: u64,
    /// Rows of CLIENT LIST from other machines, idle for over an hour.
    idle: u64,
    hosts: Vec<String>,
}

impl Unwatched<'_> {
    fn of(node: &Node) -> Option<Unwatched<'_>> {
        let keepalive_s = node.setting_number("tcp-keepalive").filter(|s| *s <= 0.0 || *s > DEFAULT_S)?;
        let silent: Vec<_> = peers(node).filter(|p| p.unanswered > 0).collect();
        let groups = || node.clients.value().into_iter().flat_map(|c| &c.groups);
        let idle = groups().filter(|g| !is_local(node, &g.host)).map(|g| g.idle_hour).sum();
        let row = Unwatched {
            node,
            keepalive_s,
            unanswered: silent.iter().map(|p| p.unanswered).sum(),
            quiet_ms: silent.iter().map(|p| p.unanswered_ms).max().unwrap_or(0),
            idle,
            hosts: silent.iter().map(|p| p.host.clone()).collect(),
        };
        (row.unanswered > 0 || row.idle > 0).then_some(row)
    }

    fn setting(&self) -> String {
        format!("tcp-keepalive {:.0}", self.keepalive_s)
    }
}

/// Sockets to other machines.
fn peers(node: &Node) -> impl Iterator<Item = &unslow_facts::PeerSockets> {
    node.sockets.value().into_iter().flatten().filter(move |p| !is_local(node, &p.host))
}

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<Unwatched<'_>> = facts.live().filter_map(Unwatched::of).collect();
    let rows = by_worst(rows, |r| f64::from(r.unanswered) * 1e6 + r.idle as f64);
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|r| r.node.address.as_str())).into();
    }
    if let Some(gap) = facts.live().find_map(|n| n.config.missing()) {
        return Verdict::Unknown(gap.of("keepalive"));
    }
    let set: Vec<&str> = facts.live().filter_map(|n| n.setting("tcp-keepalive")).collect();
    let off = |n: &&Node| n.setting_number("tcp-keepalive").is_some_and(|s| s <= 0.0 || s > DEFAULT_S);
    if let Some(gap) = facts.live().filter(off).find_map(|n| n.clients.missing()) {
        return Verdict::Unknown(gap.of("idle connections without keepalive"));
    }
    let Some(first) = set.first() else {
        return Verdict::unknown(Lack::Version, "keepalive: CONFIG GET does not show it", "");
    };
    let silent: u32 = facts.live().flat_map(peers).map(|p| p.unanswered).sum();
    Verdict::Absent(format!(
        "keepalive: set to {first} s; {silent} of the connections seen have a peer that does not answer"
    ))
}

fn found(worst: &Unwatched<'_>) -> Finding {
    let node = worst.node;
    let title = if worst.unanswered > 0 {
        format!(
            "{} connections of {} lead to peers that no longer answer, and no keepalive closes them ({})",
            worst.unanswered,
            node.address,
            worst.setting()
        )
    } else if worst.keepalive_s > 0.0 {
        // The first probe after that time, and three more in as much again.
        let minutes = 2.0 * worst.keepalive_s / 60.0;
        format!(
            "{} takes about {minutes:.0} min to notice that a client's machine is gone \
                 ({})",
            node.address,
            worst.setting()
        )
    } else {
        format!("{} does not check whether a client's machine is still there ({})", node.address, worst.setting())
    };
    let finding = Finding::new(title);
    let text = "a dead connection takes one of maxclients, and what is sent to it is lost";
    let finding = if worst.unanswered > 0 {
        finding
            .risk(format!("{text}; the quietest has been silent for {}", time_us(worst.quiet_ms as f64 * 1000.0)))
            .likely("the kernel retransmits and hears nothing; a path that is cut for a while looks the same")
            .saw(
                node,
                "ss -tino",
                format!(
                    "{} sockets to {} without an answer to three tries or more",
                    worst.unanswered,
                    names(&worst.hosts)
                ),
            )
    } else {
        finding
            .risk(format!(
                "{text}; {} connections from other machines have been idle for over an hour, dead or not",
                worst.idle
            ))
            .possible(
                "judged by the setting; without a probe there is no telling whether the idle connections are alive",
            )
    };
    let finding = finding.saw(node, "CONFIG GET tcp-keepalive", format!("{:.0}", worst.keepalive_s));
    let finding = match node.clients.value() {
        Some(_) => finding.saw(
            node,
            "CLIENT LIST",
            format!("{} of the rows seen, from other machines, are idle for over an hour", worst.idle),
        ),
        None => finding,
    };
    let set = format!("CONFIG SET tcp-keepalive {WANTED_S:.0}");
    let back = format!("CONFIG SET tcp-keepalive {:.0}", worst.keepalive_s);
    let finding = finding.fix_at(
        &node.address,
        "Let the kernel probe idle connections; this applies to connections made from now on",
        &[&set],
        "one small packet a minute per idle connection",
        &back,
    );
    let finding = finding.fix(
        "Close the connections that are already dead, and no others: by their address in CLIENT LIST",
        &[&cli(&node.address, "CLIENT KILL ADDR IP:PORT")],
        "a client that turns out to be alive has to reconnect",
        "",
    );
    finding.fix(
        "In the clients: notice a dead server just as quickly",
        &[
            "Lettuce: SocketOptions.builder().keepAlive(KeepAliveOptions...).tcpUserTimeout(TcpUserTimeoutOptions...)",
            "redis-py: Redis(socket_keepalive=True, health_check_interval=30)",
        ],
        "",
        "",
    )
}
