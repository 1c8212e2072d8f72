//! What the main thread does between commands: it wakes up, reads, answers, goes to sleep, and keeps its clock.
//!
//! What a turn of the event loop costs was taken from the servers recorded in `tests/facts` (Valkey 9.1 on two cores),
//! and a test compares the sum with their CPU clocks.

use unslow_facts::Node;

use super::inside_share;

/// Reading a command and answering it briefly, in us: Redis 7.0.15, one command a read.
pub const READ_US: f64 = 2.4;
/// Accepting a connection and closing it, in us: Redis 7.0.15 without AUTH or TLS.
pub const CONNECTION_US: f64 = 17.5;
/// Sending or receiving a byte, in us.
const BYTE_US: f64 = 3e-4;
/// A turn of the event loop without its reads, waking up and going to sleep included, in us: 8 to 13 on the recorded
/// servers, from 300 turns a second to 44,000.
pub const TURN_US: f64 = 10.0;
/// Share of a core of a server that has no client but the doctor: 0.2 to 0.5 % on the recorded servers.
pub const IDLE_SHARE: f64 = 0.005;

/// CPU time of the main thread outside commands in the window, in us; `None` where the server does not show it.
pub fn outside_us(node: &Node) -> Option<f64> {
    node.cpu().map(|(user, sys)| (user + sys - inside_share(node)) * 1e6 * node.window_s)
}

/// What reads, brief replies, new connections and the server's own clock take of that, in us.
pub fn traffic_us(node: &Node) -> f64 {
    let (reads, connections) = (grown(node, "total_reads_processed"), grown(node, "total_connections_received"));
    reads * READ_US + connections * CONNECTION_US + turns(node) * TURN_US + IDLE_SHARE * 1e6 * node.window_s
}

/// Turns of the event loop that began with a read or a new connection; 0 before 7.2, where they are not counted. Turns
/// beyond that write what is left of large replies.
pub fn turns(node: &Node) -> f64 {
    grown(node, "eventloop_cycles").min(events(node))
}

/// What a call that is a read by itself costs outside the command, in us. On a busy server several reads share a turn.
/// Before 6.0, where reads are not counted, it is what a command costs there on average.
pub fn call_us(node: &Node) -> f64 {
    match counts_reads(node) {
        false => outside_per_command_us(node).unwrap_or(READ_US).max(READ_US),
        true => READ_US + TURN_US * turns(node) / events(node).max(1.0),
    }
}

/// Since 6.0.
fn counts_reads(node: &Node) -> bool {
    node.level() >= (6, 0) || node.delta("total_reads_processed").is_some()
}

/// CPU of the main thread outside commands for each command, in us, without what bytes, new connections, forks and the
/// server's own clock take.
fn outside_per_command_us(node: &Node) -> Option<f64> {
    let commands = node.processed().filter(|n| *n > 0.0)?;
    let connections = grown(node, "total_connections_received");
    let rest = outside_us(node)? - others_us(node) - connections * CONNECTION_US;
    Some(rest.max(0.0) / commands)
}

/// From so many commands per read on, clients send several at a time.
const ONE: f64 = 1.5;
/// Share of a core from which on a turn of the event loop serves several reads.
const BUSY: f64 = 0.3;

/// Commands per read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Depth {
    /// By the server (6.0+).
    Counted(f64),
    /// Before 6.0, by the CPU that a command costs outside: a read costs [`READ_US`] or more, so there are at least so
    /// many commands in it. On a server with little to do, whose turns of the event loop cost more, there may be more.
    AtLeast(f64),
}

impl Depth {
    /// `None` where neither reads nor CPU time were counted.
    pub fn of(node: &Node) -> Option<Depth> {
        if let Some(depth) = node.depth() {
            return Some(Depth::Counted(depth));
        }
        let outside = outside_per_command_us(node).filter(|us| *us > 0.0 && !counts_reads(node))?;
        Some(Depth::AtLeast((READ_US / outside).max(1.0)))
    }

    pub fn commands(self) -> f64 {
        match self {
            Depth::Counted(depth) | Depth::AtLeast(depth) => depth,
        }
    }

    /// Whether clients send one command at a time. Before 6.0 that is not known of a server with little to do, whose
    /// turns of the event loop cost more than their reads, nor of one whose commands cost something besides: replicas,
    /// an append-only file, a cluster's bus.
    pub fn is_one(self, node: &Node) -> bool {
        self.commands() < ONE && self.tells(node)
    }

    /// Whether it says that clients send one command at a time, or that they do not.
    pub fn tells(self, node: &Node) -> bool {
        let is_more = |field: &str| node.number(field).unwrap_or(0.0) > 0.0;
        let costs_besides = || ["connected_slaves", "aof_enabled", "cluster_enabled"].into_iter().any(is_more);
        let is_busy = || node.cpu().is_some_and(|(user, sys)| user + sys > BUSY);
        // Two commands that share a read and a turn cost less than this each.
        let alone_us = (READ_US + TURN_US) / ONE;
        let costs_a_turn = || outside_per_command_us(node).is_some_and(|us| us > alone_us);
        match self {
            Depth::Counted(_) => true,
            Depth::AtLeast(depth) => depth >= ONE || is_busy() && costs_a_turn() && !costs_besides(),
        }
    }

    /// `3.99 commands per read`, and how it is known.
    pub fn text(self) -> String {
        match self {
            Depth::Counted(depth) => format!("{depth:.2} commands per read"),
            Depth::AtLeast(depth) => {
                format!("{depth:.1} or more commands per read, by the CPU they take (not counted before 6.0)")
            }
        }
    }
}

/// How much more than the reference this server takes for reads with brief replies and for connections: what is left
/// of its CPU outside commands, over what they took there. At least 1, which it is where the server does not show it.
/// A machine whose processors sleep between requests took four times as much as one that was busy.
pub fn scale(node: &Node) -> f64 {
    // What a call costs before 6.0 is this server's own already.
    let Some(outside) = outside_us(node).filter(|_| node.delta("total_reads_processed").is_some()) else { return 1.0 };
    let others = others_us(node);
    let connections = grown(node, "total_connections_received");
    // The last read of a connection finds it closed.
    let reads = (grown(node, "total_reads_processed") - connections).max(0.0);
    let reference = reads * call_us(node) + connections * CONNECTION_US;
    if reference > 0.0 { ((outside - others) / reference).max(1.0) } else { 1.0 }
}

/// CPU outside commands that is no traffic's: bytes, forks, expiry, defragmentation and the server's own clock, in us.
fn others_us(node: &Node) -> f64 {
    let bytes = grown(node, "total_net_output_bytes") + grown(node, "total_net_input_bytes");
    let forks = grown(node, "total_forks") * node.number("latest_fork_usec").unwrap_or(0.0);
    let expiry = grown(node, "expire_cycle_cpu_milliseconds") * 1000.0;
    let defrag = node.number("active_defrag_running").unwrap_or(0.0) / 100.0 + IDLE_SHARE;
    bytes * BYTE_US + forks + expiry + defrag * 1e6 * node.window_s
}

fn events(node: &Node) -> f64 {
    grown(node, "total_reads_processed") + grown(node, "total_connections_received")
}

fn grown(node: &Node, field: &str) -> f64 {
    node.delta(field).unwrap_or(0.0)
}
