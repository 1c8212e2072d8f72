//! The servers are fine: look at the client, or the network path to it.
//!
//! Timeouts in an application are blamed on Redis first. When the servers answer in time, are not busy, have not
//! stalled and lose nothing, that is a verdict too, with its evidence; and when a client leaves its replies unread, the
//! finding names it.
//!
//! Seen when: replies have waited for two seconds or more for an ordinary client to read them, while the server answers
//! every PING within a tenth of that time and its main thread is at most 90 % busy. The time that client loses is not a
//! cost of the server, so it ranks below what the server itself costs.
//!
//! Or, as information, when an application uses the servers and everything that was checked is in order: PING stays
//! near its own minimum (median within 0.5 ms, p99 within 2 ms), no main thread is over 70 % busy, hardly any command
//! fails, no slow command or latency event falls into the window, replicas are linked and up to date, no pause is
//! active, memory is below its limits and neither fragmented nor swapped, nothing is evicted, saving and the
//! append-only file work and do not make writes wait (`appendfsync always` does), all members of a cluster are up,
//! Sentinels agree and could authorise a failover, and no client is far away. The finding names what was not checked.
//! If any of this does not hold, or a main source (settings, slow log, clients, counters) was not seen or records
//! nothing, the servers are not cleared: the diagnosis then does not claim that the problem is elsewhere.
//!
//! Not to be taken for: a slow subscriber (`slow_subscriber`), whose buffer is the server's problem too, as are buffers
//! of ordinary clients once they take a tenth of the memory (`client_memory`).
//!
//! How to confirm: `redis-cli --latency` from the application's machine; `CLIENT LIST`: omem and idle of its
//! connections.
//!
//! What to do: look at the client's GC pauses, thread pool, connection pool wait, and the network to it.
//! Sources: tcp_info, CLIENT LIST omem, PING throughout the window; StackExchange.Redis #2186, lettuce #1028.

use unslow_facts::{ClientRow, Host, Process, Rtt};

use super::error_flood::Failing;
use super::far_client::{Distances, FAR_US};
use super::prelude::*;

pub const TITLE: &str = "Not your Redis";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// A main thread that is busier than this makes requests queue.
const BUSY: f64 = 0.7;
/// An event of the latency monitor, and a command, that takes this long holds up others.
const STALL_MS: u64 = 10;
const SLOW_US: u64 = 10_000;

pub fn check(facts: &Facts) -> Verdict {
    if let Some(finding) = facts.live().find_map(unread) {
        return finding.into();
    }
    cleared(facts).map_or(Verdict::NotHere, Verdict::from)
}

/// A client that does not read, at a server that is well.
fn unread(node: &Node) -> Option<Finding> {
    // A closed window alone may be a large reply on its way: the buffer must have been waiting for seconds.
    let ordinary = |c: &&ClientRow| c.output_bytes > 0 && c.idle_s >= 2 && !c.flags.contains(['P', 'S', 'O', 'M']);
    let client = node.clients.value()?.notable.iter().filter(ordinary).max_by_key(|c| c.output_bytes)?;
    // Nor is it the client where the server is slow itself, or nothing says that it is not. Slow beside what the client
    // lets wait: on a busy machine single PINGs take milliseconds, and it has been seconds.
    let rtt = node.rtt.value().filter(|r| r.count >= 20 && f64::from(r.us_max) <= client.idle_s as f64 * 1e6 / 10.0)?;
    let busy = node.cpu().map(|(u, s)| u + s).filter(|busy| *busy <= 0.9)?;
    let closed = node.sockets.value().into_iter().flatten().filter(|p| p.window_closed > 0);
    let stuck = closed.max_by_key(|p| p.window_closed);
    let waiting = bytes(client.output_bytes as f64 + stuck.map_or(0.0, |p| p.send_queue_bytes as f64));
    let connections = stuck.map_or(1, |p| p.window_closed.max(1));
    let total = node.number("connected_clients").unwrap_or(1.0).max(1.0);
    let who = format!("{} {}", client.address, client.name);
    let row = format!("cmd={} idle={} omem={}", client.command, client.idle_s, client.output_bytes);
    let (p50, p99) = (time_us(rtt.us_p50.into()), time_us(rtt.us_p99.into()));
    let mut finding = Finding::new(format!(
        "Not your Redis: {} does not read its replies, {waiting} wait for it; {} itself answers in {p50}",
        who.trim(),
        node.address
    ))
    .on([node.address.as_str()])
    .risk(format!("{connections} of {} connections are stalled, for {} s so far", count(total), client.idle_s))
    .severity(Severity::Medium)
    .gain("its requests have already been answered; it only has to read the replies", format!("{waiting} unread"))
    .proven("its replies wait in the server's buffer, and the server answers others immediately")
    .saw(node, "INFO cpu", format!("main thread {} busy", percent(busy)))
    .saw(node, "CLIENT LIST", format!("id={} addr={} name={} {row}", client.id, client.address, client.name))
    .saw(node, "PING", format!("p99 {p99}, {} at most through the window", time_us(rtt.us_max.into())))
    .not(format!("a slow server: PING p99 {p99}"));
    if let Some(p) = stuck {
        let unsent = bytes(p.send_queue_bytes as f64);
        finding = finding.saw(
            node,
            "ss -tin",
            format!("{}: {} sockets with a closed window, {unsent} unsent", p.host, p.window_closed),
        );
    }
    Some(finding.fix(
        "Look into that client: GC pauses, a blocked reader thread, CPU limit of its container, a debugger",
        &[
            "jstack PID; jstat -gcutil PID 1000",
            "py-spy dump --pid PID",
            "cat /sys/fs/cgroup/cpu.stat   (in its container)",
        ],
        "",
        "",
    ))
}

/// The servers, where everything that was looked at is in order.
fn cleared(facts: &Facts) -> Option<Finding> {
    let whole = !facts.cut_short
        && facts.through.is_none()
        && facts.nodes.iter().all(|n| n.unreachable.is_none() && n.last.is_some());
    let well = whole
        && facts.live().all(|n| was_seen(facts, n) && is_at_ease(facts, n) && is_saved(n) && is_in_step(n))
        && facts.hosts.iter().all(has_room)
        && cluster_is_whole(facts)
        && sentinels_agree(facts)
        && facts.live().all(|n| clients_are_near(facts, n));
    let operations = application_ops(facts)?;
    if !well || operations < 1.0 {
        return None;
    }
    let slowest = facts.live().max_by_key(|n| n.rtt.value().map_or(0, |r| r.us_p99))?;
    let p99 = time_us(slowest.rtt.value()?.us_p99.into());
    let busiest = most(facts, |n| n.cpu().map(|(u, s)| u + s))?;
    let all = match facts.live().count() {
        1 => slowest.address.clone(),
        n => format!("all {n} nodes"),
    };
    let unseen = not_looked_at(facts);
    let but = if unseen.is_empty() { String::new() } else { format!("; not looked at: {}", unseen.join(", ")) };
    let finding = Finding::new(format!(
        "Not your Redis: {all} answered every PING within {p99} (p99) while serving {} commands/s, busy {} at \
         most{but}",
        count(operations),
        percent(busiest)
    ))
    .on([slowest.address.as_str()])
    .risk(
        "nothing measured in this window speaks against the servers; if the application is slow now, the time is lost \
         elsewhere",
    )
    .likely(
        "everything named in the evidence was in order; a problem that comes and goes needs a window in which it \
         occurs",
    );
    let finding = evidence(finding, facts, slowest, busiest);
    let longer = format!("unslow doctor {} --window 60s", facts.url);
    let finding = finding.fix("If it is slow at other times: run the doctor then, for longer", &[&longer], "", "").fix(
        "Otherwise look at the client: pool wait, GC, thread pool, DNS, TLS, the network to it",
        &["run unslow doctor on the client's machine: it measures the way from there"],
        "",
        "",
    );
    Some(finding.severity(Severity::Info))
}

fn evidence(finding: Finding, facts: &Facts, slowest: &Node, busiest: f64) -> Finding {
    let rtt = slowest.rtt.value().copied().unwrap_or_default();
    let ping = [rtt.us_min, rtt.us_p50, rtt.us_p99].map(|us| time_us(us.into()));
    let mut finding = finding
        .saw(
            slowest,
            "PING",
            format!("min {}, median {}, p99 {} over {:.0} s", ping[0], ping[1], ping[2], slowest.window_s),
        )
        .saw(slowest, "INFO cpu", format!("main thread {} busy at most", percent(busiest)));
    let failing: Vec<Failing<'_>> = facts.live().filter_map(Failing::of).collect();
    if let Some(worst) = failing.iter().max_by(|a, b| a.share.total_cmp(&b.share)) {
        let failed = format!("{} of {} commands failed", worst.total, count(worst.outcomes.asked));
        finding = finding.saw(slowest, "INFO errorstats", failed);
    }
    let replicas: usize = facts.live().filter_map(|n| n.info()).map(|i| i.replicas().len()).sum();
    if replicas > 0 {
        finding = finding.saw(slowest, "INFO replication", format!("{replicas} replicas, all online and in step"));
    }
    if !facts.sentinels.is_empty() {
        let text = format!("{} Sentinels, no flag down, quorum reachable", facts.sentinels.len());
        finding = finding.saw_at("SENTINEL CKQUORUM", text, slowest.at_ms());
    }
    finding
}

/// Commands of an application per second: the greetings of Sentinels are none.
fn application_ops(facts: &Facts) -> Option<f64> {
    let of = |node: &Node| Some((node.application_ops()? - sentinel_greetings(facts, node)).max(0.0));
    facts.live().map(of).sum()
}

/// What could not be looked at, for the reader to know how far the verdict goes.
fn not_looked_at(facts: &Facts) -> Vec<&'static str> {
    let any = |is_so: &dyn Fn(&Node) -> bool| facts.live().any(is_so);
    let threshold = |n: &Node| n.setting_number("latency-monitor-threshold");
    let gaps: [(bool, &'static str); 10] = [
        (any(&|n| facts.process(n).is_none()), "the servers' machines (steal, swap, disks, neighbours)"),
        (any(&|n| n.sockets.value().is_none()), "the clients' distances"),
        (any(&|n| n.level() < (6, 2)), "errors (not counted before 6.2)"),
        (any(&|n| n.level() < (7, 0)), "CLIENT PAUSE (not shown before 7.0)"),
        (any(&|n| threshold(n) == Some(0.0)), "stalls (the latency monitor is off)"),
        (any(&|n| n.latency.value().is_none() || threshold(n).is_none()), "stalls (the latency monitor was not seen)"),
        (any(&|n| threshold(n).is_some_and(|ms| ms > STALL_MS as f64)), "stalls below latency-monitor-threshold"),
        (any(&|n| log_from_us(n).is_some_and(|us| us > SLOW_US as f64)), "commands below slowlog-log-slower-than"),
        (any(&|n| n.clients.value().is_some_and(|c| c.sampled)), "some of the clients (too many to list)"),
        (
            facts.sentinels.iter().any(|s| s.groups.iter().any(|g| g.ckquorum.is_empty())),
            "whether Sentinels reach their quorum",
        ),
    ];
    gaps.into_iter().filter(|(missing, _)| *missing).map(|(_, what)| what).collect()
}

/// Whether the main sources of a node were seen, in whole.
fn was_seen(facts: &Facts, node: &Node) -> bool {
    let clustered = facts.kind != DeploymentKind::Cluster || node.cluster.value().is_some();
    let log = log_from_us(node).is_none_or(|us| us >= 0.0)
        && node.setting_number("slowlog-max-len").is_none_or(|entries| entries > 0.0);
    let asked = node.config.value().is_some() && node.slowlog.value().is_some() && node.clients.value().is_some();
    asked && log && clustered && !node.own.stopped_early && !node.commands().is_empty() && node.cpu().is_some()
}

fn log_from_us(node: &Node) -> Option<f64> {
    node.setting_number("slowlog-log-slower-than")
}

/// The round trips of a node that stay near their own minimum, of which there are enough.
fn prompt(node: &Node) -> Option<&Rtt> {
    node.rtt.value().filter(|r| r.count >= 20 && is_near(r, r.us_p50, 500) && is_near(r, r.us_p99, 2000))
}

/// Waking up takes its time on an idle machine: near means near for a person.
fn is_near(rtt: &Rtt, us: u32, by_us: u32) -> bool {
    us <= rtt.us_min.saturating_add(by_us.max(rtt.us_min))
}

/// Whether a server answers at once, has time, refuses nothing and is not held up by its machine.
fn is_at_ease(facts: &Facts, node: &Node) -> bool {
    let prompt = prompt(node).is_some_and(|rtt| is_near(rtt, rtt.us_max, 100_000));
    let (user, sys) = node.cpu().unwrap_or((1.0, 1.0));
    let since_ms = node.first.as_ref().map_or(0, |f| f.at_ms);
    // The latency monitor's clock is the server's.
    let in_window = |at_s: u64| logged_ms(node, at_s) > since_ms;
    let stalled = node.latency.value().into_iter().flatten().any(|e| in_window(e.last_at_s) && e.last_ms >= STALL_MS);
    let slow = slow_entries(node, 0).iter().any(|e| e.us >= SLOW_US);
    let machine = facts.process(node).is_none_or(|(host, process)| is_left_alone(node, host, process));
    prompt
        && user + sys <= BUSY
        && !stalled
        && !slow
        && hardly_fails(node)
        && !is_paused(node)
        && memory_is_at_ease(node)
        && machine
}

fn hardly_fails(node: &Node) -> bool {
    let refused = node.delta("rejected_connections").unwrap_or(0.0) > 0.0;
    let loading = node.number("loading").unwrap_or(0.0) > 0.0 || node.number("async_loading").unwrap_or(0.0) > 0.0;
    let fails = match Failing::of(node) {
        // A tenth of unknown commands may be greetings, and may be an application's: that is no all-clear.
        Some(f) => f.grave || f.share > 0.001 || f.outcomes.share(f.outcomes.unknown as f64) > 0.1,
        None => node.level() >= (6, 2),
    };
    !refused && !loading && !fails
}

/// Whether clients are being made to wait on purpose: CLIENT PAUSE (in the window, or on now) or a FAILOVER.
fn is_paused(node: &Node) -> bool {
    let is = |field: &str, none: &str| node.info().and_then(|i| i.get(field)).is_some_and(|v| v != none);
    is("paused_actions", "none")
        || is("paused_reason", "none")
        || is("master_failover_state", "no-failover")
        || node.foreign_commands().contains_key("client|pause")
}

/// Below its limits, not fragmented, not swapped, nothing evicted.
fn memory_is_at_ease(node: &Node) -> bool {
    let number = |field: &str| node.number(field).unwrap_or(0.0);
    let (used, rss, limit) = (number("used_memory"), number("used_memory_rss"), number("maxmemory"));
    let full = limit > 0.0 && used > 0.95 * limit;
    let evicts = node.delta("evicted_keys").unwrap_or(0.0) > 0.0;
    let fragments = node.number("mem_fragmentation_bytes").unwrap_or(rss - used);
    let fragmented = fragments > 50e6 && rss > 1.5 * used;
    // What is used and not resident is swapped out, whatever the machine shows.
    let swapped = rss > 0.0 && used > 50e6 && rss < 0.8 * used;
    !full && !evicts && !fragmented && !swapped
}

/// The process: not swapped out, not throttled, not waiting for a processor, not at its container's limit.
fn is_left_alone(node: &Node, host: &Host, process: &Process) -> bool {
    let rss = node.number("used_memory_rss").unwrap_or(0.0);
    let full = process.memory_limit_bytes.is_some_and(|limit| rss > 0.85 * limit as f64);
    let swapped = process.swap_bytes.unwrap_or(0) as f64;
    let swaps = swapped > 1e6 || (swapped > 0.0 && host.swap_in_pages.unwrap_or(0) > 0);
    let waits = process.run_delay_share.unwrap_or(0.0) > 0.05 || process.throttled_share.unwrap_or(0.0) > 0.001;
    !full && !swaps && !waits && host.steal_share.unwrap_or(0.0) <= 0.05
}

/// The machine: memory to spare, disks that answer.
fn has_room(host: &Host) -> bool {
    let memory =
        host.memory_bytes.zip(host.memory_available_bytes).is_none_or(|(all, free)| free as f64 > 0.05 * all as f64);
    let disks = host.disks.iter().all(|d| d.write_await_ms < 50.0);
    memory && disks && host.pressure.get("memory.some").is_none_or(|share| *share < 0.05)
}

/// Whether saving and the append-only file work, and no write waits for the disk.
fn is_saved(node: &Node) -> bool {
    let number = |field: &str| node.number(field).unwrap_or(0.0);
    let fine = |field: &str| node.info().and_then(|i| i.get(field)).is_none_or(|v| v == "ok");
    let statuses =
        ["rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status"].into_iter().all(fine);
    let aof = number("aof_enabled") > 0.0;
    let every_write_waits = aof && node.setting("appendfsync") == Some("always");
    let delayed = node.delta("aof_delayed_fsync").unwrap_or(0.0) > 0.0;
    let pending = number("aof_pending_bio_fsync") > 1.0 || number("aof_buffer_length") > 1e6;
    let waits = every_write_waits || delayed || aof && pending;
    statuses && !waits
}

/// Whether replication stands: as a master all replicas online and close, as a replica linked.
fn is_in_step(node: &Node) -> bool {
    let Some(info) = node.info() else { return false };
    if !node.is_master() {
        let linked = info.get("master_link_status") == Some("up");
        let syncing = node.number("master_sync_in_progress").unwrap_or(0.0) > 0.0;
        let silent = node.number("master_last_io_seconds_ago").is_some_and(|s| s > 15.0);
        return linked && !syncing && !silent;
    }
    // A replica acknowledges once a second: what the stream brings in that time is no lag.
    let offset = node.number("master_repl_offset").unwrap_or(0.0);
    let allowed = node.rate("master_repl_offset").unwrap_or(0.0).clamp(1e6, 10e6);
    info.replicas().iter().all(|(_, _, state, lag_s, acknowledged)| {
        state == "online" && *lag_s <= 2 && offset - *acknowledged as f64 <= allowed
    })
}

fn cluster_is_whole(facts: &Facts) -> bool {
    facts.live().all(|node| {
        let state = node.cluster_info.value().and_then(|i| i.get("cluster_state"));
        let members = node.cluster.value().map_or(&[][..], |view| view.nodes.as_slice());
        state.is_none_or(|s| s == "ok") && members.iter().all(|m| !m.is_down() && !m.is("handshake") && !m.is("noaddr"))
    })
}

/// Whether every Sentinel answers, sees its masters up, and could authorise a failover.
fn sentinels_agree(facts: &Facts) -> bool {
    facts.sentinels.iter().all(|s| {
        let up = |flags: &str| !["s_down", "o_down", "disconnected"].iter().any(|bad| flags.contains(bad));
        let authorised = |answer: &str| answer.is_empty() || answer.starts_with("OK");
        s.unreachable.is_none() && s.groups.iter().all(|g| up(&g.flags) && authorised(&g.ckquorum))
    })
}

/// By the server's own sockets where they were seen, else by the way from here.
fn clients_are_near(facts: &Facts, node: &Node) -> bool {
    match Distances::of(facts, node) {
        Some(distances) => distances.far.is_empty(),
        None => node.rtt.value().is_some_and(|r| f64::from(r.us_min) < FAR_US),
    }
}
