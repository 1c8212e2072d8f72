//! The server is allowed to open too few files, and every connection is a file.
//!
//! When it starts, a server asks for `maxclients` + 32 open files. If the system's limit is lower and cannot be raised,
//! it lowers `maxclients` to what fits, with a line in its log and no other sign: CONFIG GET shows the lowered number
//! as if it had been set. Raising `maxclients` then fails, or is undone at the next start.
//!
//! Seen when: `maxclients` is the process's file limit minus 32, that limit is a number that people and systems set
//! (1024, 4096, 65535) while `maxclients` is not, and connections were refused in the window, or over 80 % are in use;
//! or when the process has fewer than four files left, which happens when the limit is lowered under a running server
//! or when a large cluster's links use them up: then accept() fails, and new connections wait in the kernel without an
//! answer.
//!
//! Not to be taken for: `too_many_connections` with a `maxclients` that was set, which CONFIG SET can raise;
//! `accept_overflow`, where the server is able to accept but does not get to it.
//!
//! How to confirm: `grep -i 'open files' /proc/PID/limits`, `ls /proc/PID/fd | wc -l`, and the server's log:
//! "maxclients has been reduced".
//!
//! What to do: raise the limit of the running process (prlimit) and then maxclients; permanently, with LimitNOFILE in
//! its unit.
//! Sources: adjustOpenFilesLimit() of server.c; CONFIG_MIN_RESERVED_FDS; /proc/PID/limits; clients.md.

use unslow_facts::{Host, Process};

use super::noisy_neighbour::SEE_HOST;
use super::prelude::*;

pub const TITLE: &str = "File limit";
pub const LEADS_TO: &[&str] = &["too_many_connections"];
pub const INJECTED: Injected = Injected::No(
    "a server that runs as root raises its own limit, and a limit that is lowered while it runs shuts the doctor out \
     too; the rule is tested on recorded facts in which the limit is set by hand",
);

/// What a server keeps of its file limit for itself (CONFIG_MIN_RESERVED_FDS).
const RESERVED: f64 = 32.0;
/// Of maxclients, in use.
const CROWDED: f64 = 0.8;
/// Fewer files left than this are none: they come and go. At maxclients most of the reserve is left.
const LEFT: f64 = 4.0;
/// What a unit gets: 65535 clients, and some for the server.
const GENEROUS: f64 = 131_072.0;

/// One server and its files.
struct Files<'a> {
    node: &'a Node,
    host: &'a Host,
    process: &'a Process,
    /// How many it may open.
    limit: f64,
    open: Option<f64>,
    clients: f64,
    max: f64,
    refused: f64,
}

impl Files<'_> {
    fn of<'a>(facts: &'a Facts, node: &'a Node) -> Option<Files<'a>> {
        let (host, process) = facts.process(node)?;
        Some(Files {
            node,
            host,
            process,
            limit: process.open_files_max? as f64,
            open: process.open_files.map(|n| n as f64),
            clients: node.number("connected_clients")?,
            max: node.number("maxclients").or_else(|| node.setting_number("maxclients"))?,
            refused: node.delta("rejected_connections").unwrap_or(0.0),
        })
    }

    /// A server raises its own limit to maxclients + 32: the two fit each other then as well, but the limit is no
    /// number that anyone sets.
    fn was_lowered(&self) -> bool {
        self.max + RESERVED == self.limit && is_round(self.limit) && !is_round(self.max)
    }

    fn is_refusing(&self) -> bool {
        self.was_lowered() && (self.refused > 0.0 || self.clients / self.max.max(1.0) > CROWDED)
    }

    fn is_exhausted(&self) -> bool {
        self.open.is_some_and(|open| self.limit - open < LEFT)
    }

    /// Connections that wait for a file.
    fn waiting(&self) -> u32 {
        self.process.accept_queues.iter().map(|q| q.waiting).max().unwrap_or(0)
    }

    fn worth(&self) -> f64 {
        self.refused * 1e6 + f64::from(u8::from(self.is_exhausted())) * 1e3 + self.clients / self.max.max(1.0)
    }
}

/// Whether it is a number that people and systems set: hundreds, powers of two and their multiples, all ones.
fn is_round(n: f64) -> bool {
    n % 100.0 == 0.0 || n % 256.0 == 0.0 || n == 65_535.0
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Files<'_>> = facts.live().filter_map(|node| Files::of(facts, node)).collect();
    let rows = by_worst(all.iter().filter(|f| f.is_refusing() || f.is_exhausted()).collect(), |f| f.worth());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|f| f.node.address.as_str())).into();
    }
    let Some(fullest) = all.iter().max_by(|a, b| (a.clients / a.limit).total_cmp(&(b.clients / b.limit))) else {
        let why = "file limits: the processes of the servers could not be inspected, or they did not show how many \
                   clients they have";
        return Verdict::unknown(Lack::Host, why, SEE_HOST);
    };
    let open = fullest.open.map_or("an unknown number".to_string(), count);
    let lowered = if fullest.was_lowered() { "; maxclients was lowered to fit it, and is enough" } else { "" };
    Verdict::Absent(format!(
        "file limits: {open} of {} files open, {} clients of {}{lowered}",
        count(fullest.limit),
        count(fullest.clients),
        count(fullest.max)
    ))
}

fn found(worst: &Files<'_>) -> Finding {
    let (node, host, process) = (worst.node, worst.host, worst.process);
    let open = worst.open.map_or("an unknown number".to_string(), count);
    let finding = if worst.is_refusing() { refusing(worst) } else { exhausted(worst, &open) };
    let finding = finding
        .saw_at(
            format!("/proc/{}/limits, /proc/{}/fd ({})", process.pid, process.pid, host.hostname),
            format!("Max open files {:.0}, {open} open", worst.limit),
            host.at_ms,
        )
        .saw(node, "INFO clients", format!("connected_clients:{:.0}, maxclients {:.0}", worst.clients, worst.max))
        .saw(node, "INFO stats", format!("rejected_connections +{:.0} in {:.1} s", worst.refused, node.window_s));
    ways_out(finding, worst)
}

fn refusing(worst: &Files<'_>) -> Finding {
    let (node, max, refused) = (worst.node, worst.max, worst.refused);
    let title = format!(
        "The file limit of {} ({} files) allows {} clients: {} are connected{}",
        node.address,
        count(worst.limit),
        count(max),
        count(worst.clients),
        if refused > 0.0 { format!(", {} were refused", count(refused)) } else { String::new() }
    );
    let finding = Finding::new(title);
    let why = "the server's maxclients is its file limit minus the 32 files it keeps, a number that is not set by \
               hand; its log says so at startup";
    if refused == 0.0 {
        return finding
            .risk("the next burst of reconnects is refused, and CONFIG SET maxclients cannot prevent it")
            .likely(why);
    }
    let received = node.delta("total_connections_received").unwrap_or(0.0);
    let share = refused / (received + refused).max(1.0);
    finding
        .availability(86400.0 * share, format!("{} of new connections are refused", percent(share)))
        .gain(
            "room for as many clients as a server allows by default",
            format!("{refused:.0} / ({received:.0} + {refused:.0}) attempts = {} refused", percent(share)),
        )
        .likely(format!("the refusals were counted in this window; {why}"))
}

fn exhausted(worst: &Files<'_>, open: &str) -> Finding {
    let (node, waiting) = (worst.node, worst.waiting());
    let finding = Finding::new(format!(
        "{} has {open} of its {} files open: it cannot accept any more connections",
        node.address,
        count(worst.limit)
    ));
    if waiting == 0 {
        return finding
            .risk("the next connections wait in the kernel without an answer")
            .likely("the files were counted on its machine; no connection was seen waiting for one");
    }
    // Nothing counts how many gave up: of the attempts, those that were seen to wait.
    let received = node.delta("total_connections_received").unwrap_or(0.0);
    let share = f64::from(waiting) / (received + f64::from(waiting));
    finding.availability(86400.0 * share, format!("{waiting} connections wait in the kernel without an answer")).likely(
        "the files were counted on its machine, and connections were seen waiting; that they wait for a file is \
         inferred",
    )
}

fn ways_out(finding: Finding, worst: &Files<'_>) -> Finding {
    let (node, pid) = (worst.node, worst.process.pid);
    let files = GENEROUS.max(2.0 * worst.limit);
    let clients = if worst.was_lowered() { (2.0 * worst.max).max(10_000.0) } else { worst.max };
    let prlimit = |n: f64| format!("prlimit --pid {pid} --nofile={n:.0}:{n:.0}   (as root on {})", worst.host.hostname);
    let mut commands = vec![prlimit(files)];
    let mut back = Vec::new();
    if worst.was_lowered() {
        commands.push(cli(&node.address, &format!("CONFIG SET maxclients {clients:.0}")));
        back.push(cli(&node.address, &format!("CONFIG SET maxclients {:.0}", worst.max)));
    }
    back.push(prlimit(worst.limit));
    let lines: Vec<&str> = commands.iter().map(String::as_str).collect();
    finding
        .fix(
            "Raise the limit of the running process, without a restart",
            &lines,
            "each connection takes about 20 kB of memory; the next start has the old limit again",
            &back.join("; "),
        )
        .fix(
            "Permanently: set it in its unit or container, so that the next start has it",
            &[
                &format!("LimitNOFILE={files:.0}   (systemd: systemctl edit SERVICE, then restart it)"),
                &format!("docker run --ulimit nofile={files:.0}:{files:.0} ..."),
            ],
            "takes effect with a restart: replicas first, then a failover",
            "",
        )
}
