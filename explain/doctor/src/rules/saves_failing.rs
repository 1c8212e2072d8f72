//! The server cannot write its files: a snapshot, a rewrite or the append-only file itself fails.
//!
//! Whatever is not saved is lost with the process. And most servers are configured to refuse writes (MISCONF) once
//! saving fails: after a failed snapshot because of stop-writes-on-bgsave-error, if `save` has rules; after a failed
//! write of the append-only file, always. Reads still go through, so half of the application works.
//!
//! Seen when: rdb_last_bgsave_status, aof_last_bgrewrite_status or aof_last_write_status is not `ok`. The cost is the
//! commands refused with MISCONF in the window (6.2+); without refusals it is a risk. The reason is read on the
//! server's machine: the directory was removed, its file system is read-only or has less room than the data set, or a
//! fork of this size is not possible.
//!
//! Not to be taken for: a save that was stopped on purpose (a shutdown, FLUSHALL): the server does not count those as
//! failed. The refused commands alone are `error_flood`, which is reported beneath this finding.
//!
//! How to confirm: `INFO persistence`; the server's log says why ("No space left on device", "Can't save in background:
//! fork: Cannot allocate memory", "Failed opening the temp RDB file"); `BGSAVE`, then `INFO persistence` again.
//!
//! What to do: first make saving possible again (room, rights, memory for the fork), then save once: the refusals end
//! with the first save that succeeds. Never restart it before that: what is in memory exists nowhere else, unless a
//! replica has it.
//! Sources: INFO persistence, errorstat_MISCONF (6.2+); /proc/PID/cwd; redis.conf stop-writes-on-bgsave-error.

use unslow_facts::{Host, Storage, StorageState};

use super::prelude::*;

pub const TITLE: &str = "Saves fail";
pub const LEADS_TO: &[&str] = &["error_flood", "aof_rewrite_storm"];
pub const INJECTED: Injected = Injected::Yes;

/// The last outcome of each way to write files, and what it is in words.
const STATUS: &[(&str, &str)] = &[
    ("aof_last_write_status", "writing the append-only file fails"),
    ("rdb_last_bgsave_status", "the last snapshot failed"),
    ("aof_last_bgrewrite_status", "the last rewrite of the append-only file failed"),
];

/// With less room than this a write of the append-only file may fail.
const LINES_BYTES: f64 = 16e6;

/// A server that cannot write its files.
struct Failing<'a> {
    node: &'a Node,
    /// Fields of [`STATUS`] that are not `ok`, the gravest first.
    fields: Vec<(&'static str, &'static str)>,
    /// Commands refused with MISCONF in the window, and their share of all that was asked for.
    refused: Option<(f64, f64)>,
}

impl Failing<'_> {
    fn fails(&self, field: &str) -> bool {
        self.fields.iter().any(|f| f.0 == field)
    }

    /// Whether a write that comes now is refused, as far as settings tell.
    fn refuses(&self) -> bool {
        let snapshots = self.fails("rdb_last_bgsave_status")
            && self.node.setting("stop-writes-on-bgsave-error") == Some("yes")
            && self.node.setting("save").is_some_and(|rules| !rules.is_empty());
        self.node.is_master() && (snapshots || self.fails("aof_last_write_status"))
    }

    /// Whether anything is to be saved at all.
    fn is_kept(&self) -> bool {
        self.node.setting("save").is_none_or(|rules| !rules.is_empty()) || self.node.number("aof_enabled") == Some(1.0)
    }

    fn refused_share(&self) -> f64 {
        self.refused.map_or(0.0, |r| r.1)
    }
}

/// What keeps it from writing, by what its machine shows.
enum Why<'a> {
    Removed(&'a Host),
    ReadOnly(&'a Host),
    Full(&'a Host, &'a Storage),
    Fork(&'a Host, u32),
    Unseen,
}

pub fn check(facts: &Facts) -> Verdict {
    let shown = |node: &&Node| STATUS.iter().any(|(field, _)| node.info().is_some_and(|i| i.get(field).is_some()));
    let with: Vec<&Node> = facts.live().filter(shown).collect();
    if with.is_empty() {
        return Verdict::Unknown(unseen_info(facts, "whether saves succeed"));
    }
    let rows = with.iter().filter_map(|n| look(n)).collect();
    let rows = by_worst(rows, |f: &Failing<'_>| f.refused_share() + if f.refuses() { 1e-6 } else { 0.0 });
    let Some(worst) = rows.first() else {
        return Verdict::Absent(format!("saves: the last one of each kind succeeded ({} nodes checked)", with.len()));
    };
    found(facts, worst).on(rows.iter().map(|f| f.node.address.as_str())).into()
}

/// Whether the last save of some kind failed.
pub(super) fn fails(node: &Node) -> bool {
    look(node).is_some()
}

fn look(node: &Node) -> Option<Failing<'_>> {
    let info = node.info()?;
    let fails = |(field, _): &&(&'static str, &'static str)| info.get(field).is_some_and(|status| status != "ok");
    let fields: Vec<_> = STATUS.iter().filter(fails).copied().collect();
    let refused = Outcomes::of(node).map(|o| {
        let n = o.count(&["MISCONF"]) as f64;
        (n, o.share(n))
    });
    (!fields.is_empty()).then_some(Failing { node, fields, refused: refused.filter(|r| r.0 > 0.0) })
}

/// What the machine shows; the server's own words stand in its log alone.
fn why<'a>(facts: &'a Facts, f: &Failing<'_>) -> Why<'a> {
    let node = f.node;
    let Some((host, process)) = facts.process(node) else { return Why::Unseen };
    let used = node.number("used_memory").unwrap_or(0.0);
    // A line of the append-only file takes neither a fork nor room for all the data.
    let forks = f.fails("rdb_last_bgsave_status") || f.fails("aof_last_bgrewrite_status");
    let needed = if forks { used } else { used.min(LINES_BYTES) };
    match &process.storage {
        Some(storage) if storage.state == StorageState::Removed => return Why::Removed(host),
        Some(storage) if storage.state == StorageState::ReadOnly => return Why::ReadOnly(host),
        Some(storage) if (storage.free_bytes as f64) < needed => return Why::Full(host, storage),
        _ => {}
    }
    if !forks {
        return Why::Unseen;
    }
    let short = host.memory_available_bytes.is_some_and(|free| (free as f64) < used);
    match host.overcommit {
        Some(mode) if mode != 1 && short => Why::Fork(host, mode),
        _ => Why::Unseen,
    }
}

fn found(facts: &Facts, f: &Failing<'_>) -> Finding {
    let node = f.node;
    let what = f.fields.first().map_or("saving fails", |f| f.1);
    let reason = why(facts, f);
    let because = match &reason {
        Why::Removed(_) => "; its directory was removed".to_string(),
        Why::ReadOnly(_) => "; its file system is read-only".into(),
        Why::Full(_, s) => format!("; {} are free where it saves", bytes(s.free_bytes as f64)),
        Why::Fork(..) => "; its machine may not grant a fork of this size".into(),
        Why::Unseen => String::new(),
    };
    let refused = match f.refused {
        Some((n, share)) => format!(", and {} of its commands are refused (MISCONF x {})", percent(share), count(n)),
        None => String::new(),
    };
    let finding = price(Finding::new(format!("{}: {what}{because}{refused}", node.address)), f);
    let mut finding = evidence(finding, f, &reason);
    finding = cure(finding, f, &reason);
    // Durability is given up by choice only: no exact line.
    if f.refuses() && !f.fails("aof_last_write_status") {
        finding = finding.fix(
            "Until it can save: accept writes without saving them",
            &[&cli(&node.address, "CONFIG SET stop-writes-on-bgsave-error no")],
            "everything written since the last successful save is lost if the server stops",
            &cli(&node.address, "CONFIG SET stop-writes-on-bgsave-error yes"),
        );
    }
    finding
}

fn price(finding: Finding, f: &Failing<'_>) -> Finding {
    let node = f.node;
    let unsaved = node.number("rdb_changes_since_last_save").filter(|n| *n > 0.0);
    let at_stake = unsaved.map_or(String::new(), |n| format!("; {} changes exist in memory only", count(n)));
    if let Some((n, share)) = f.refused {
        return finding
            .availability(
                86400.0 * share,
                format!("{} refused commands a second{at_stake}", count(n / node.window_s.max(0.001))),
            )
            .gain(
                format!("{} of the commands succeed again", percent(share)),
                format!("{n:.0} refused / {:.0} commands sent = {}", n / share.max(1e-12), percent(share)),
            )
            .proven(
                "the server reports that it could not save, and counted the commands it refused because of that in \
                 this window",
            );
    }
    let finding = if f.refuses() {
        let so_far = match node.level() < (6, 2) {
            true => "as it is configured, every write is refused; this version does not count them",
            false => "no write was refused in the window; the next one will be",
        };
        finding.risk(format!("{so_far}{at_stake}")).severity(Severity::High)
    } else if f.is_kept() {
        finding
            .risk(format!("everything written since the last successful save is lost if the process ends{at_stake}"))
            .severity(Severity::Medium)
    } else {
        finding.risk("manual saves fail; automatic saves are off")
    };
    finding.proven("the server reports that it could not save")
}

fn evidence(finding: Finding, f: &Failing<'_>, reason: &Why<'_>) -> Finding {
    let node = f.node;
    let mut finding = finding;
    for (field, _) in &f.fields {
        let status = node.info().and_then(|i| i.get(field)).unwrap_or("err");
        finding = finding.saw(node, "INFO persistence", format!("{field}:{status}"));
    }
    if let Some((n, _)) = f.refused {
        finding = finding.saw(node, "INFO errorstats", format!("errorstat_MISCONF +{n:.0}"));
    }
    if let Some(setting) = node.setting("stop-writes-on-bgsave-error") {
        finding = finding.saw(node, "CONFIG GET stop-writes-on-bgsave-error", setting);
    }
    let used = node.number("used_memory").unwrap_or(0.0);
    match reason {
        Why::Removed(host) => finding.saw_at(cwd(host), "the directory was removed while it runs", host.at_ms),
        Why::ReadOnly(host) => finding.saw_at(cwd(host), "mounted read-only", host.at_ms),
        Why::Full(host, s) => {
            let (free, size) = (bytes(s.free_bytes as f64), bytes(s.size_bytes as f64));
            finding.saw_at(cwd(host), format!("{free} of {size} free, {} in memory", bytes(used)), host.at_ms)
        }
        Why::Fork(host, mode) => finding.saw_at(
            format!("/proc/sys/vm/overcommit_memory, /proc/meminfo ({})", host.hostname),
            format!(
                "{mode}; {} available for a fork of {}",
                bytes(host.memory_available_bytes.unwrap_or(0) as f64),
                bytes(used)
            ),
            host.at_ms,
        ),
        Why::Unseen => finding,
    }
}

fn cwd(host: &Host) -> String {
    format!("/proc/PID/cwd ({})", host.hostname)
}

/// What lets it save again, then the save that ends the refusals.
fn cure(finding: Finding, f: &Failing<'_>, reason: &Why<'_>) -> Finding {
    let node = f.node;
    let here = |command: &str| cli(&node.address, command);
    let dir = here("CONFIG GET dir");
    let again = match f.fails("rdb_last_bgsave_status") {
        true => here("BGSAVE"),
        false if f.fails("aof_last_write_status") => here("INFO persistence   (it tries again each second by itself)"),
        false => here("BGREWRITEAOF"),
    };
    match reason {
        Why::Removed(_) => removed(finding, node, &again),
        Why::ReadOnly(host) => finding.fix(
            &format!(
                "See why {} mounted it read-only (usually because of a disk error), mount it for writing, then save \
                 once",
                host.hostname
            ),
            &[&dir, "dmesg | grep -i -e error -e remount   (on its machine)", "mount -o remount,rw MOUNTPOINT", &again],
            "a disk with errors may lose more: copy what is there first",
            "",
        ),
        Why::Full(..) => finding.fix(
            "Make room where it saves, then save once: the refusals end with the first save that succeeds",
            &[
                &dir,
                "df -h DIR; du -sh DIR/* | sort -h   (on its machine: old dumps, temp-*.rdb of saves that were killed)",
                &again,
            ],
            "",
            "",
        ),
        Why::Fork(host, mode) => finding.fix(
            &format!("Make the kernel of {} grant the fork, then save once", host.hostname),
            &["sysctl -w vm.overcommit_memory=1", &again],
            "if memory really runs out, the OOM killer decides instead of fork",
            &format!("sysctl -w vm.overcommit_memory={mode}"),
        ),
        Why::Unseen => finding.fix(
            "Read in its log why it fails (no space, no rights, no memory for the fork), fix that, then save once",
            &[
                &here("CONFIG GET logfile"),
                &dir,
                "ls -ld DIR; df -h DIR; sysctl vm.overcommit_memory; free -m   (on its machine)",
                &again,
            ],
            "",
            "",
        ),
    }
}

/// The process sits in a directory that no longer exists: one of the same name does not help it.
fn removed(finding: Finding, node: &Node, again: &str) -> Finding {
    let here = |command: &str| cli(&node.address, command);
    if node.level() < (7, 0) {
        return finding.fix(
            "Give it a directory that exists, then save once; do not restart it before that",
            &["mkdir -p DIR   (on its machine, owned by the server's user)", &here("CONFIG SET dir DIR"), again],
            "",
            "",
        );
    }
    let text = match node.number("connected_slaves").unwrap_or(0.0) > 0.0 {
        true => {
            "Recreate the directory, have a replica take over, then restart this one: it copies the data from there"
        }
        false => {
            "Recreate the directory, copy the data to a new server (REPLICAOF there), switch clients to that one, then \
             restart this one"
        }
    };
    finding.fix(
        text,
        &[
            &here("CONFIG GET dir"),
            "mkdir -p DIR   (on its machine, owned by the server's user)",
            &here("INFO replication"),
        ],
        "a restart before the data is elsewhere loses all of it: nothing can be saved in a directory that no longer \
         exists",
        "",
    )
}
