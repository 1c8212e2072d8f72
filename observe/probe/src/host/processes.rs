//! Processes: what they used, their cgroups, what they listen on, and which of them sent an INFO.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use procfs::process::{Limits, SmapsRollup};
use procfs::{Current, FromRead, Uptime};
use unslow_facts::{MemoryGroup, Node, Process};
use unslow_process::{Schedstat, cpu_ticks, pids, schedstat, seconds, stat, status};

use super::cgroups::{self, Bounding, Groups, Mounts, Periods};
use super::machine::line;
use super::memory_group;
use super::parse::{anon_by_node, cpus_allowed, is_server, open_files_max, own_pid, processors};
use super::storage;
use crate::now_ms;
use crate::sockets::TcpSocket;

/// How far apart a process's start and the start that its INFO claims may be: a server looks at the clock after it has
/// read its settings, and both figures are rounded.
pub const START_MS: f64 = 10_000.0;

/// One process at one moment.
#[derive(Clone, Default)]
pub struct Task {
    pub name: String,
    pub parent: u32,
    pub ticks: u64,
    major_faults: u64,
    /// Where the main thread was seen last.
    processor: Option<u32>,
    /// For servers only.
    server: Option<Server>,
}

/// What only a server's process is asked for.
#[derive(Clone, Default)]
struct Server {
    /// Of the main thread.
    scheduled: Option<Schedstat>,
    groups: Groups,
    /// Of its cgroup and those above.
    periods: Vec<Periods>,
    /// The group that bounds its memory, and what that holds.
    memory: Option<(Bounding, memory_group::Sample)>,
}

/// All processes; servers with their groups.
pub fn tasks() -> BTreeMap<u32, Task> {
    let mounts = Mounts::read();
    pids().filter_map(|pid| Some((pid, task(pid, Some(&mounts))?))).collect()
}

/// All processes, with what each has used.
pub fn used() -> impl Iterator<Item = (u32, Task)> {
    pids().filter_map(|pid| Some((pid, task(pid, None)?)))
}

/// One process, with what it has used.
pub fn task_of(pid: u32) -> Option<Task> {
    task(pid, None)
}

/// Without `mounts` a server is looked at as any process.
fn task(pid: u32, mounts: Option<&Mounts>) -> Option<Task> {
    let stat = stat(pid)?;
    Some(Task {
        parent: stat.ppid as u32,
        ticks: cpu_ticks(&stat),
        major_faults: stat.majflt,
        processor: stat.processor.map(|number| number as u32),
        server: mounts.filter(|_| is_server(&stat.comm)).map(|mounts| server(pid, mounts)),
        name: stat.comm,
    })
}

fn server(pid: u32, mounts: &Mounts) -> Server {
    let groups = Groups::of(pid, mounts);
    let bounding = cgroups::bounding(&groups.memory);
    Server {
        scheduled: schedstat(pid, pid),
        periods: cgroups::periods(&groups.cpu),
        memory: bounding.and_then(|group| memory_group::sample(&group.dir).map(|sample| (group, sample))),
        groups,
    }
}

/// What became of the memory of its group in the window; a group that was not the same at the start has no past.
fn memory_in_window(before: Option<&Server>, after: &Server, window_s: f64) -> Option<MemoryGroup> {
    let (group, end) = after.memory.as_ref()?;
    let same = before.and_then(|b| b.memory.as_ref()).filter(|(then, _)| then.dir == group.dir);
    Some(MemoryGroup { above: group.above, ..memory_group::in_window(same.map(|(_, sample)| *sample), *end, window_s) })
}

/// What its own group holds on each memory node. The process's own map would say more, and walks all of its pages under
/// a lock.
fn held_by_node(groups: &Groups) -> Vec<(u32, u64)> {
    let text = groups.memory.first().and_then(|dir| fs::read_to_string(dir.join("memory.numa_stat")).ok());
    anon_by_node(&text.unwrap_or_default(), procfs::page_size())
}

/// What it holds in huge pages, in bytes.
fn anon_huge(pid: u32) -> Option<u64> {
    let rollup = SmapsRollup::from_file(format!("/proc/{pid}/smaps_rollup")).ok()?;
    rollup.memory_map_rollup.iter().find_map(|map| map.extension.map.get("AnonHugePages").copied())
}

/// The facts of a server's process, `before` being what it had used when the window began.
pub fn process(pid: u32, before: Option<&Task>, mounts: &Mounts, address: &str, window_s: f64) -> Process {
    let after = task(pid, None).unwrap_or_default();
    let (earlier, now) = (before.and_then(|b| b.server.as_ref()), server(pid, mounts));
    let status = status(pid);
    let limits = Limits::from_file(format!("/proc/{pid}/limits")).ok();
    let cpu = &now.groups.cpu;
    let stopped = earlier.and_then(|b| cgroups::stopped(cpu, &b.periods, &now.periods));
    let seen_on = before.and_then(|b| b.processor).zip(after.processor);
    let ran_on = seen_on.map_or(Vec::new(), |(first, last)| if first == last { vec![last] } else { vec![first, last] });
    let main_thread = earlier.and_then(|b| b.scheduled.as_ref()).zip(now.scheduled.as_ref());
    let share = |before_ns: u64, after_ns: u64| after_ns.saturating_sub(before_ns) as f64 / 1e9 / window_s;
    Process {
        pid,
        own_pid: status.as_ref().and_then(own_pid),
        started_ms: started_ms(pid).map(|at_ms| at_ms.max(0.0) as u64),
        name: after.name.clone(),
        addresses: vec![address.to_string()],
        cpu_share: before.map(|b| seconds(after.ticks.saturating_sub(b.ticks)) / window_s),
        run_delay_share: main_thread.map(|(before, after)| share(before.run_delay, after.run_delay)),
        swap_bytes: status.as_ref().and_then(|s| s.vmswap).map(|kib| kib * 1024),
        major_faults: before.map(|b| after.major_faults.saturating_sub(b.major_faults)),
        anon_huge_bytes: anon_huge(pid),
        open_files_max: limits.as_ref().and_then(open_files_max),
        cpus_allowed: status.as_ref().and_then(cpus_allowed),
        quota_cores: cgroups::quota(cpu),
        throttled_share: stopped.map(|s| s.us as f64 / 1e6 / window_s),
        throttled_periods: stopped.map(|s| (s.throttled, s.periods)),
        throttled_above: stopped.map_or(0, |s| s.above),
        memory_limit_bytes: cgroups::bounding(&now.groups.memory).and_then(|group| group.limit),
        memory_group: memory_in_window(earlier, &now, window_s),
        // Counted here: procfs adds two before Linux 6.2.
        open_files: fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|all| all.count() as u64),
        main_cpu_share: main_thread.map(|(before, after)| share(before.sum_exec_runtime, after.sum_exec_runtime)),
        ran_on,
        anon_by_node: held_by_node(&now.groups),
        processors: status.as_ref().map_or(Vec::new(), processors),
        accept_queues: Vec::new(),
        storage: storage::of(pid),
    }
}

pub fn comm(pid: u32) -> String {
    line(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// Numbers of the processes that are servers, or forks of one.
pub fn servers() -> impl Iterator<Item = u32> {
    pids().filter(|pid| is_server(&comm(*pid)))
}

/// Numbers of the processes that look as we do: this one, and recorders of this machine.
pub fn observers() -> impl Iterator<Item = u32> {
    let records = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut words = words.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"unslow")) && words.any(|word| word == b"record")
    };
    let me = std::process::id();
    pids().filter(move |pid| *pid == me || records(pid))
}

/// A link read for each descriptor; procfs would open each, and a server has tens of thousands.
pub fn socket_inodes(pid: u32) -> Vec<u32> {
    let dir = fs::read_dir(format!("/proc/{pid}/fd"));
    dir.into_iter()
        .flatten()
        .flatten()
        .filter_map(|fd| {
            let link = fs::read_link(fd.path()).ok()?;
            link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        })
        .collect()
}

/// What a process listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    pub pid: u32,
    pub ip: IpAddr,
    pub port: u16,
}

/// Every listening socket of a Redis or Valkey process in this network namespace.
pub fn listeners(sockets: &[TcpSocket]) -> Vec<Listener> {
    let by_inode: BTreeMap<u32, &TcpSocket> = sockets.iter().filter(|s| s.listening).map(|s| (s.inode, s)).collect();
    let of = |pid: u32| {
        let own = socket_inodes(pid).into_iter().filter_map(|i| by_inode.get(&i));
        own.map(|s| Listener { pid, ip: s.local.0, port: s.local.1 }).collect::<Vec<_>>()
    };
    servers().flat_map(of).collect()
}

/// Whether the node's INFO names another process than this one: what listens here may pass connections on.
pub fn is_another(pid: u32, node: &Node) -> bool {
    let own = status(pid).as_ref().and_then(own_pid);
    own.zip(node.number("process_id")).is_some_and(|(own, said)| f64::from(own) != said)
}

/// Whether this process can have sent the node's INFO: it has the number that INFO names, as its own namespace of
/// processes counts, and it was started when INFO says. One number alone is that of thousands of first processes of
/// containers.
pub fn sent_info(pid: u32, node: &Node) -> bool {
    let own = status(pid).as_ref().and_then(own_pid).unwrap_or(pid);
    node.number("process_id") == Some(f64::from(own)) && started_ms(pid).is_some_and(|at_ms| started_at(node, at_ms))
}

/// When a process was started, unix time in ms by this machine's clock.
fn started_ms(pid: u32) -> Option<f64> {
    let since_boot_s = Uptime::current().ok()?.uptime;
    Some(now_ms() as f64 - (since_boot_s - seconds(stat(pid)?.starttime)) * 1000.0)
}

/// Whether INFO claims this start. Its own clock may be off, or jump: then its time and its uptime are off alike.
fn started_at(node: &Node, at_ms: f64) -> bool {
    let Some(uptime_s) = node.number("uptime_in_seconds") else { return false };
    let by_its_clock = node.number("server_time_usec").map(|us| us / 1000.0);
    let claimed = [Some(node.at_ms() as f64), by_its_clock].into_iter().flatten().map(|now| now - uptime_s * 1000.0);
    claimed.into_iter().any(|ms| (ms - at_ms).abs() < START_MS)
}

#[cfg(test)]
mod tests {
    use unslow_facts::Sample;
    use unslow_topology::{Info, Role};

    use super::*;

    fn node(info: &str) -> Node {
        let last = Some(Sample { at_ms: 1_000_000_000, info: Info::parse(info) });
        Node { last, ..Node::new("198.18.1.1:6379", Role::Master) }
    }

    #[test]
    fn a_process_is_the_server_only_if_it_was_started_when_info_says() {
        for (info, started_ms, same) in [
            ("uptime_in_seconds:60", 999_940_000.0, true),
            ("uptime_in_seconds:60", 999_931_000.0, true),
            // The same number in another container, or of a server that has ended.
            ("uptime_in_seconds:60", 999_900_000.0, false),
            ("uptime_in_seconds:60", 1_000_000_000.0, false),
            // Its clock jumped by an hour; both of its figures did.
            ("uptime_in_seconds:3660\r\nserver_time_usec:1003600000000", 999_940_000.0, true),
            ("uptime_in_seconds:3660", 999_940_000.0, false),
            ("", 999_940_000.0, false),
        ] {
            assert_eq!(started_at(&node(info), started_ms), same, "{info} {started_ms}");
        }
    }

    #[test]
    fn a_process_with_another_number_did_not_send_the_info() {
        // This test's own process, as it would describe itself.
        let pid = std::process::id();
        let own = |pid: u32, uptime_s: u64| {
            let mut node = node(&format!("process_id:{pid}\r\nuptime_in_seconds:{uptime_s}"));
            node.last.as_mut().unwrap().at_ms = now_ms();
            node
        };
        let age_s = (Uptime::current().unwrap().uptime - seconds(stat(pid).unwrap().starttime)) as u64;
        assert!(sent_info(pid, &own(pid, age_s)));
        assert!(!sent_info(pid, &own(pid + 1, age_s)));
        assert!(!sent_info(pid, &own(pid, age_s + 3600)));
        assert!(!sent_info(pid, &node("")), "INFO is denied");
        assert!(is_another(pid, &own(pid + 1, age_s)));
        assert!(!is_another(pid, &own(pid, age_s + 3600)) && !is_another(pid, &node("")));
    }
}
