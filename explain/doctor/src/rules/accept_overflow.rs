//! The kernel drops new connections because the server does not accept them as fast as they arrive.
//!
//! The kernel completes the handshake on its own and keeps the connection in a queue until the server accepts it. The
//! queue holds `tcp-backlog` connections, or `somaxconn` if that is smaller. When it is full, the kernel silently drops
//! new attempts: the client retries after one second, then after two, then after four. The server never sees them, and
//! none of its own counters moves.
//!
//! Seen when: during the window the kernel dropped connections at the server's own listening socket, and it also
//! counted accept-queue overflows or the queue was seen full. Before Linux 4.6 drops are not counted per socket; there
//! the queue must have been seen full. A queue that is shorter than the server asked for is a risk if more clients are
//! connected than it holds.
//!
//! Not to be taken for: `too_many_connections`, where the server itself answers with an error; `packet_loss`, which
//! also hits established connections; overflows of another program's queue on the same machine, which the kernel adds
//! to the same counter.
//!
//! How to confirm: run `ss -ltnm 'sport = :6379'` twice on the server's machine: Recv-Q is the number of waiting
//! connections, Send-Q is the limit, and the `d` figure of skmem grows with every drop;
//! `nstat -az TcpExtListenOverflows TcpExtListenDrops`.
//!
//! What to do: make clients reconnect one after the other (backoff with jitter) and find out what kept the server from
//! accepting; then make the queue longer: raise somaxconn and tcp-backlog together. Both take effect at the next start.
//! Sources: sock_diag (sk_drops, sk_ack_backlog), TcpExt ListenOverflows; listen(2); redis.conf tcp-backlog.

use unslow_facts::{AcceptQueue, Host};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "Accept queue overflow";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Connections in a window that make a price: one or two are a moment.
const PRICED: f64 = 3.0;
/// What servers ask for by default.
const DEFAULT_BACKLOG: f64 = 511.0;
/// What newer kernels allow, and a length that a burst of reconnects seldom fills.
const ROOMY: f64 = 4096.0;

/// One server's fullest queue.
struct Queue<'a> {
    node: &'a Node,
    host: &'a Host,
    queue: &'a AcceptQueue,
    /// Of all programs of that machine or container.
    overflows: Option<u64>,
}

impl Queue<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Queue<'a>> {
        let (host, process) = facts.process(node)?;
        let queue = process.accept_queues.iter().max_by_key(|q| (q.dropped, q.waiting))?;
        Some(Queue { node, host, queue, overflows: host.tcp.map(|tcp| tcp.listen_overflows) })
    }

    fn was_full(&self) -> bool {
        self.queue.limit > 0 && self.queue.waiting >= self.queue.limit
    }

    /// Packets are dropped at a listening socket for other reasons too: a packet of an old connection, for one. So it
    /// must have been seen full, or most of the overflows that the kernel counted must be its own.
    fn overflowed(&self) -> bool {
        match self.queue.dropped {
            Some(dropped) => {
                dropped > 0 && (self.was_full() || self.overflows.is_some_and(|n| n > 0 && 2 * dropped >= n))
            }
            None => self.was_full() && self.overflows.is_some_and(|n| n > 0),
        }
    }

    fn dropped(&self) -> f64 {
        self.queue.dropped.or(self.overflows).unwrap_or(0) as f64
    }

    /// Whether overflows may have been its own that cannot be told from those of others.
    fn is_open(&self) -> bool {
        match self.queue.dropped {
            Some(dropped) => dropped > 0 && self.overflows != Some(0),
            None => self.overflows != Some(0),
        }
    }

    fn asked_for(&self) -> f64 {
        self.node.setting_number("tcp-backlog").unwrap_or(DEFAULT_BACKLOG)
    }

    /// Shorter than the server asked for, and than the clients that come back at once after a restart.
    fn is_short(&self) -> bool {
        let limit = f64::from(self.queue.limit);
        limit > 0.0
            && limit < self.asked_for().min(DEFAULT_BACKLOG)
            && self.node.number("connected_clients").is_some_and(|n| n > limit)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Queue<'_>> = facts.live().filter_map(|node| Queue::of(facts, node)).collect();
    let rows = by_worst(all.iter().filter(|q| q.overflowed()).collect(), |q| q.dropped());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|q| q.node.address.as_str())).into();
    }
    let short: Vec<&Queue<'_>> = all.iter().filter(|q| q.is_short()).collect();
    if let Some(first) = short.first() {
        return too_short(first).on(short.iter().map(|q| q.node.address.as_str())).into();
    }
    let Some(fullest) = all.iter().max_by_key(|q| q.queue.waiting) else {
        let why = "accept queues: the sockets on the server's machine could not be read";
        return Verdict::unknown(Lack::Host, why, SEE_HOST);
    };
    if all.iter().any(Queue::is_open) {
        let why =
            "accept queues: it is not known whether the kernel dropped connections because a server's queue was full";
        return Verdict::unknown(
            Lack::Host,
            why,
            "nstat -az TcpExtListenOverflows, and ss -ltn, on the server's machine",
        );
    }
    Verdict::Absent(format!(
        "accept queues: at most {} of {} places were taken, and no connection was dropped because a queue was full",
        fullest.queue.waiting, fullest.queue.limit
    ))
}

fn found(worst: &Queue<'_>) -> Finding {
    let (node, queue, dropped) = (worst.node, worst.queue, worst.dropped());
    let received = node.delta("total_connections_received").unwrap_or(0.0);
    let share = dropped / (received + dropped).max(1.0);
    let finding = Finding::new(format!(
        "The kernel dropped {} connection attempts to {} in {:.0} s: its accept queue of {} was full",
        count(dropped),
        node.address,
        worst.host.window_s,
        queue.limit
    ));
    let text =
        format!("{} of the connection attempts are dropped; each of them waits a second or more", percent(share));
    let finding = if dropped >= PRICED {
        finding.availability(86400.0 * share, text).gain(
            "no attempt is dropped",
            format!("{dropped:.0} / ({received:.0} + {dropped:.0}) attempts = {}", percent(share)),
        )
    } else {
        finding.risk(format!("{text}: too few to matter yet"))
    };
    let finding = match queue.dropped {
        Some(own) if worst.was_full() || worst.overflows.is_some_and(|all| own >= all) => {
            finding.proven("the kernel counted the drops at this server's own listening socket in this window")
        }
        Some(_) => finding.likely(
            "the kernel counted drops at this server's own listening socket; it is inferred that they are most of the \
             machine's overflows",
        ),
        None => finding.likely(
            "its queue was seen full, and the kernel counted overflows on its machine; this kernel does not count them \
             per socket",
        ),
    };
    let finding = evidence(finding, worst);
    let finding = match node.rate("rejected_connections") {
        Some(refused) => finding.not(format!("refusals by the server itself (maxclients): {}/s", count(refused))),
        None => finding,
    };
    let finding = match worst_stall(node) {
        Some((us, what)) if us >= 10_000.0 => finding
            .fix(
                "Find out what keeps the server from accepting: while its main thread is held up, every new connection \
                 waits in the queue",
                &[&cli(&node.address, "SLOWLOG GET 10"), &cli(&node.address, "LATENCY LATEST")],
                "",
                "",
            )
            .saw(node, "LATENCY LATEST", format!("the longest stall on record: {}, {what}", time_us(us))),
        _ => finding,
    };
    let finding = finding.fix(
        "Make clients reconnect one after the other: backoff with jitter",
        &[
            "Lettuce: ClientResources.builder().reconnectDelay(Delay.fullJitter(Duration.ofMillis(100), \
             Duration.ofSeconds(5), 100, TimeUnit.MILLISECONDS))",
            "redis-py: Retry(ExponentialWithJitterBackoff(base=0.1, cap=5), 5)",
            "go-redis: MinRetryBackoff: 100 * time.Millisecond, MaxRetryBackoff: 5 * time.Second",
        ],
        "",
        "",
    );
    longer(finding, worst)
}

fn evidence(finding: Finding, worst: &Queue<'_>) -> Finding {
    let (node, host, queue) = (worst.node, worst.host, worst.queue);
    let dropped = queue.dropped.map_or("not counted by socket".to_string(), |n| format!("{n} dropped in the window"));
    let finding = finding.saw(
        node,
        "ss -ltnm",
        format!("{}: {} of {} in the accept queue, {dropped}", queue.address, queue.waiting, queue.limit),
    );
    let finding = match host.tcp {
        Some(tcp) => finding.saw_at(
            format!("nstat -az TcpExtListenOverflows TcpExtListenDrops ({})", host.hostname),
            format!(
                "overflows +{}, drops +{} in the window, of all programs there",
                tcp.listen_overflows, tcp.listen_drops
            ),
            host.at_ms,
        ),
        None => finding,
    };
    match node.delta("total_connections_received") {
        Some(n) => finding.saw(node, "INFO stats", format!("total_connections_received +{n:.0}")),
        None => finding,
    }
}

/// A longer queue: both settings, and a restart.
fn longer(finding: Finding, worst: &Queue<'_>) -> Finding {
    let (host, asked) = (worst.host, worst.asked_for());
    let wanted = (2.0 * f64::from(worst.queue.limit)).max(ROOMY);
    let somaxconn = host.somaxconn.map(f64::from);
    let mut commands = Vec::new();
    let mut back = Vec::new();
    if somaxconn.is_none_or(|n| n < wanted) {
        commands
            .push(format!("sysctl -w net.core.somaxconn={wanted:.0}   (on {}; and in /etc/sysctl.d)", host.hostname));
        back.extend(somaxconn.map(|n| format!("sysctl -w net.core.somaxconn={n:.0}")));
    }
    if asked < wanted {
        commands.push(format!("tcp-backlog {wanted:.0}   (redis.conf or valkey.conf of {})", worst.node.address));
        back.push(format!("tcp-backlog {asked:.0}"));
    }
    commands.push(
        "restart the server: the length of a queue is set when it begins to listen   (replicas first, then a failover)"
            .into(),
    );
    let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
    let text = format!("Make the accept queue longer: it holds {} now", worst.queue.limit);
    finding.fix(
        &text,
        &commands,
        "in a longer queue connections wait longer, so a client may have given up by the time it is accepted",
        &back.join("; "),
    )
}

fn too_short(short: &Queue<'_>) -> Finding {
    let (node, limit) = (short.node, short.queue.limit);
    let clients = node.number("connected_clients").unwrap_or(0.0);
    let finding = Finding::new(format!(
        "The accept queue of {} holds {limit} connections, but the server asked for {:.0}",
        node.address,
        short.asked_for()
    ))
    .risk(format!(
        "{} clients are connected; when they all reconnect at once, after a restart or a failover, the kernel drops \
         those that find the queue full",
        count(clients)
    ))
    .possible("the length of the queue is the kernel's own figure; nothing was dropped in this window");
    let finding = match short.host.somaxconn {
        Some(n) => finding.saw_at("/proc/sys/net/core/somaxconn", n.to_string(), short.host.at_ms),
        None => finding,
    };
    longer(evidence(finding, short), short)
}
