//! What the machine and its servers have counted up to one moment, as named numbers: a recorder keeps one set a second,
//! and what a window was like is the difference of two.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::net::SocketAddr;
use std::ops::Bound;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use procfs::net::DeviceStatus;
use procfs::{CurrentSI, DiskStat, KernelStats};
use unslow_facts::{Disk, Host, Link, Process, Reclaims, Tcp};
use unslow_process::{cpu_ticks, schedstat, seconds, stat};

use super::cgroups::{self, Bounding, Groups, Mounts};
use super::machine::line;
use super::memory_group;
use super::others::Crowd;
use super::parse::{CpuTimes, counter, cpu_times_of, kib, shares, stalled};
use crate::sockets;

/// Before the address of a server, in the names of its numbers.
const SERVER: &str = "server/";
/// Before the address of a listening socket.
const QUEUE: &str = "queue/";
/// Tells one boot of one machine from others: no difference of counters is formed across it.
const BOOT: &str = "machine/boot";
const DISK: &str = "disk/";
const LINK: &str = "link/";
const PRESSURE: &str = "pressure/";
/// Devices that pass: a pair of a container's, and what is mounted from a file.
const PASSING: &[&str] = &["link/veth", "disk/loop", "disk/ram"];
const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;
/// The kernel's TCP counters, in the order of [`Tcp`].
const TCP: [&str; 5] =
    ["tcp/retransmits", "tcp/segments_out", "tcp/listen_overflows", "tcp/listen_drops", "tcp/timeouts"];

/// A server's process and where its cgroups are.
pub struct Counted {
    pid: u32,
    address: String,
    /// /proc/PID/cgroup, as it was when the groups were looked up.
    places: String,
    groups: Groups,
    bounding: Option<Bounding>,
    /// Addresses of its accept queues.
    queues: Vec<String>,
}

impl Counted {
    /// Those that a look at the machine has found. They are looked up once.
    pub fn of(host: &Host) -> Vec<Counted> {
        let mounts = Mounts::read();
        let of = |process: &Process| {
            let (pid, places) = (process.pid, places(process.pid));
            let groups = Groups::of(pid, &mounts);
            let bounding = cgroups::bounding(&groups.memory);
            let queues = process.accept_queues.iter().map(|queue| queue.address.clone()).collect();
            Some(Counted { pid, address: process.addresses.first()?.clone(), places, groups, bounding, queues })
        };
        host.processes.iter().filter_map(of).collect()
    }

    /// Whether it is in other cgroups than those that the look has found, whose limits are known: another look is due.
    pub fn has_moved(&self) -> bool {
        let places = places(self.pid);
        !places.is_empty() && places != self.places
    }
}

fn places(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default()
}

/// Tells a cgroup from others that have its place.
fn group_id(dir: &Path) -> u64 {
    fs::metadata(dir).map_or(0, |of| of.ino())
}

/// Counters since the machine or a process was started, and what is used now, by name.
///
/// Names: `cpu/all`, `cpu/idle`, `cpu/steal` (ticks of all processors), `cpu/runnable` (tasks), `pressure/cpu.some` and
/// so on (ms), `tcp/*`, `memory/available` and `memory/swap_used` (MiB), `memory/swap_in` (pages), `memory/reclaims`
/// and `memory/compactions`, `disk/NAME/*` (writes, ms), `link/NAME/*` (KiB), `machine/boot` (some digits of the boot
/// id); of other processes that are busy, behind `other/PLACE/`: `pid`, `parent`, `client`, `name`, `name_end` and `ms`
/// since the counts before ([`super::Others`]); of a listening socket, behind `queue/ADDRESS/`: `dropped` and `waiting`
/// (connections); of a server, behind `server/ADDRESS/`: `ticks`, `major_faults`, `main_ms` and `waited_ms` of its main
/// thread, `periods/LEVEL/*` of its cgroups (ms, periods), and `group/*` of the one that bounds its memory, both with
/// the `id` of the cgroup. Units are as coarse as a share of some seconds allows: what is finer is noise, and noise
/// cannot be compressed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts(BTreeMap<String, i64>);

impl Counts {
    /// The machine's, and those of these servers.
    pub fn take(servers: &[Counted]) -> Counts {
        let mut counts = Counts::of_machine();
        // Containers come and go with their devices, and a recording keeps each name.
        counts.0.retain(|name, _| !PASSING.iter().any(|device| name.starts_with(device)));
        let boot = line("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).take(12).collect();
        counts.put(BOOT, u64::from_str_radix(&digits, 16).unwrap_or(0));
        servers.iter().for_each(|server| counts.server(server));
        counts.queues(servers);
        counts
    }

    /// The machine's alone.
    pub fn of_machine() -> Counts {
        let mut counts = Counts::default();
        counts.processors();
        for resource in ["cpu", "io", "memory"] {
            let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
            for (name, us) in stalled(resource, &text) {
                counts.put(format!("{PRESSURE}{name}"), us / 1000);
            }
        }
        for (name, n) in TCP.into_iter().zip(tcp().into_iter().flatten()) {
            counts.put(name, n);
        }
        counts.memory();
        for disk in disks() {
            let of = |what: &str| format!("{DISK}{}/{what}", disk.name);
            counts.put(of("writes"), disk.writes);
            counts.put(of("write_ms"), disk.time_writing);
            counts.put(of("busy_ms"), disk.time_in_progress);
        }
        for (name, device) in links() {
            counts.put(format!("{LINK}{name}/received"), device.recv_bytes / KIB);
            counts.put(format!("{LINK}{name}/sent"), device.sent_bytes / KIB);
        }
        counts
    }

    /// As they were recorded.
    pub fn of_numbers(numbers: impl IntoIterator<Item = (String, i64)>) -> Counts {
        Counts(numbers.into_iter().collect())
    }

    /// The machine's first: where there is no room for all, servers are left out.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, i64)> {
        let is_of_server = |name: &str| name.starts_with(SERVER) || name.starts_with(QUEUE);
        let all = || self.0.iter().map(|(name, n)| (name.as_str(), *n));
        all().filter(move |(name, _)| !is_of_server(name)).chain(all().filter(move |(name, _)| is_of_server(name)))
    }

    /// Whether differences of the two mean anything: they are of one boot of one machine.
    pub fn is_same_boot(&self, other: &Counts) -> bool {
        self.get(BOOT) == other.get(BOOT)
    }

    fn put(&mut self, name: impl Into<String>, n: u64) {
        self.put_number(name.into(), i64::try_from(n).unwrap_or(i64::MAX));
    }

    pub(super) fn put_number(&mut self, name: String, n: i64) {
        self.0.insert(name, n);
    }

    /// What processors did that was no server's, since they were started. It steps when a server ends or is found.
    pub(super) fn ticks_of_others(&self) -> Option<i64> {
        let of = |name: &str| self.0.get(name).copied();
        let servers = self.names(SERVER, "/ticks").filter_map(|address| of(&format!("{SERVER}{address}/ticks")));
        Some(of("cpu/all")? - of("cpu/idle")? - of("cpu/steal")? - servers.sum::<i64>())
    }

    fn processors(&mut self) {
        let Ok(stat) = KernelStats::current() else { return };
        let Some(times) = cpu_times_of(&stat.total) else { return };
        self.put("cpu/all", times.all);
        self.put("cpu/idle", times.idle);
        self.put("cpu/steal", times.steal);
        if let Some(runnable) = stat.procs_running {
            self.put("cpu/runnable", u64::from(runnable));
        }
    }

    fn memory(&mut self) {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let of = |field: &str| kib(&meminfo, &format!("{field}:")).map(|bytes| bytes / MIB);
        if let Some(available) = of("MemAvailable") {
            self.put("memory/available", available);
        }
        if let Some((total, free)) = of("SwapTotal").zip(of("SwapFree")) {
            self.put("memory/swap_used", total.saturating_sub(free));
        }
        let vmstat = procfs::vmstat().unwrap_or_default();
        if let Some(pages) = vmstat.get("pswpin") {
            self.put("memory/swap_in", *pages as u64);
        }
        if let Some(Reclaims { direct, compactions }) = reclaims(&vmstat) {
            self.put("memory/reclaims", direct);
            self.put("memory/compactions", compactions);
        }
    }

    fn server(&mut self, server: &Counted) {
        let Counted { pid, address, groups, bounding, .. } = server;
        let of = |what: &str| format!("{SERVER}{address}/{what}");
        let Some(stat) = stat(*pid) else { return };
        self.put(of("ticks"), cpu_ticks(&stat));
        self.put(of("major_faults"), stat.majflt);
        if let Some(main) = schedstat(*pid, *pid) {
            self.put(of("main_ms"), main.sum_exec_runtime / 1_000_000);
            self.put(of("waited_ms"), main.run_delay / 1_000_000);
        }
        for (dir, stopped) in cgroups::periods(&groups.cpu).into_iter().filter(|(_, p)| p.periods > 0) {
            let Some(level) = groups.cpu.iter().position(|at| *at == dir) else { continue };
            self.put(of(&format!("periods/{level}/ms")), stopped.us / 1000);
            self.put(of(&format!("periods/{level}/throttled")), stopped.throttled);
            self.put(of(&format!("periods/{level}/all")), stopped.periods);
            self.put(of(&format!("periods/{level}/id")), group_id(&dir));
        }
        if let Some((group, sample)) = bounding.as_ref().and_then(|g| Some((g, memory_group::sample(&g.dir)?))) {
            self.put(of("group/id"), group_id(&group.dir));
            sample.counters().into_iter().for_each(|(what, n)| self.put(of(&format!("group/{what}")), n));
        }
    }

    fn queues(&mut self, servers: &[Counted]) {
        let all: BTreeSet<&String> = servers.iter().flat_map(|server| &server.queues).collect();
        for socket in sockets::listening() {
            let address = SocketAddr::from(socket.local).to_string();
            if all.contains(&address) {
                self.put(format!("{QUEUE}{address}/waiting"), u64::from(socket.receive_queue));
                if let Some(drops) = socket.drops {
                    self.put(format!("{QUEUE}{address}/dropped"), u64::from(drops));
                }
            }
        }
    }

    fn get(&self, name: &str) -> Option<u64> {
        self.0.get(name).and_then(|n| u64::try_from(*n).ok())
    }

    /// By how much a counter of the machine grew; drivers let some step back.
    fn grown(&self, after: &Counts, name: &str) -> Option<u64> {
        Some(after.get(name)?.saturating_sub(self.get(name)?))
    }

    /// The same of a process or a socket: what is smaller than before began again.
    fn grown_anew(&self, after: &Counts, name: &str) -> Option<u64> {
        let (before, now) = (self.get(name)?, after.get(name)?);
        Some(now.checked_sub(before).unwrap_or(now))
    }

    /// The names in the middle of `PREFIX NAME/what`, once each.
    fn names<'a>(&'a self, prefix: &'a str, what: &'a str) -> impl Iterator<Item = &'a str> {
        let from = self.0.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        from.map_while(move |(name, _)| name.strip_prefix(prefix)).filter_map(move |rest| rest.strip_suffix(what))
    }

    /// Says of the machine what it did between these counts and those after them.
    pub fn tell_machine(&self, after: &Counts, window_s: f64, host: &mut Host) {
        let times = |c: &Counts| {
            Some(CpuTimes { all: c.get("cpu/all")?, idle: c.get("cpu/idle")?, steal: c.get("cpu/steal")? })
        };
        let cpu = times(self).zip(times(after)).filter(|(before, after)| after.all > before.all);
        let cpu = cpu.map(|(before, after)| shares(before, after));
        (host.steal_share, host.busy_share) = (cpu.map(|c| c.0), cpu.map(|c| c.1));
        let grown = |name: &str| self.grown(after, name);
        let stalled =
            |name: &str| Some((name.to_string(), grown(&format!("{PRESSURE}{name}"))? as f64 / 1e3 / window_s));
        host.pressure = after.names(PRESSURE, "").filter_map(stalled).collect();
        let [retransmits, segments_out, listen_overflows, listen_drops, timeouts] = TCP.map(grown);
        host.tcp = (|| {
            Some(Tcp {
                retransmits: retransmits?,
                segments_out: segments_out?,
                listen_overflows: listen_overflows?,
                listen_drops: listen_drops?,
                timeouts: timeouts?,
            })
        })();
        host.memory_available_bytes = after.get("memory/available").map(|mib| mib.saturating_mul(MIB));
        host.swap_used_bytes = after.get("memory/swap_used").map(|mib| mib.saturating_mul(MIB));
        host.swap_in_pages = grown("memory/swap_in");
        host.reclaims = grown("memory/reclaims")
            .map(|direct| Reclaims { direct, compactions: grown("memory/compactions").unwrap_or(0) });
        host.disks = after.names(DISK, "/writes").filter_map(|name| self.disk(after, name, window_s)).collect();
        let speeds: HashMap<String, Option<u64>> = host.links.drain(..).map(|l| (l.name, l.speed_mbit)).collect();
        let link = |name: &str| {
            let carried = |what: &str| grown(&format!("{LINK}{name}/{what}"));
            let speed_mbit = speeds.get(name).copied().flatten();
            let (received_bytes, sent_bytes) =
                (carried("received")?.saturating_mul(KIB), carried("sent")?.saturating_mul(KIB));
            let link = Link { name: name.to_string(), speed_mbit, received_bytes, sent_bytes };
            (received_bytes > 0 || sent_bytes > 0).then_some(link)
        };
        host.links = after.names(LINK, "/received").filter_map(link).collect();
        host.window_s = window_s;
    }

    /// A device; `None` when nothing was written.
    fn disk(&self, after: &Counts, name: &str, window_s: f64) -> Option<Disk> {
        let grown = |what: &str| self.grown(after, &format!("{DISK}{name}/{what}"));
        let writes = grown("writes").filter(|writes| *writes > 0)?;
        Some(Disk {
            name: name.to_string(),
            write_await_ms: grown("write_ms")? as f64 / writes as f64,
            busy_share: grown("busy_ms")? as f64 / 1000.0 / window_s,
        })
    }

    /// Replaces the figures of a look at the machine with those of this window, which ended at `at_ms`. Shares that are
    /// not counted every second stay as they were; counts that are not are removed.
    pub fn narrow(&self, after: &Counts, crowd: &Crowd, window_s: f64, at_ms: u64, host: &mut Host) {
        let (wide_s, sees_network) = (host.window_s, host.tcp.is_some());
        self.tell_machine(after, window_s, host);
        host.at_ms = at_ms;
        if !sees_network {
            // Its servers are in network namespaces of their own.
            host.tcp = None;
            host.links.clear();
        }
        // What a look of some seconds has counted stands for a window that is about as long.
        let is_short = wide_s <= 2.0 * window_s;
        for process in &mut host.processes {
            let looked = (process.throttled_share, process.throttled_periods, process.throttled_above);
            self.tell_process(after, window_s, process);
            if is_short && process.throttled_periods.is_none() {
                (process.throttled_share, process.throttled_periods, process.throttled_above) = looked;
            }
        }
        for core in &mut host.cores {
            let part = window_s / wide_s.max(0.001);
            core.device_interrupts = core.device_interrupts.map(|n| (n as f64 * part) as u64);
        }
        let servers: f64 = host.processes.iter().filter_map(|p| p.cpu_share).sum();
        let busy = host.busy_share.zip(host.steal_share).map(|(busy, steal)| busy - steal);
        let others = busy.map(|busy| (busy * f64::from(host.cpus) - servers).max(0.0));
        crowd.tell(window_s, others, host);
    }

    fn tell_process(&self, after: &Counts, window_s: f64, process: &mut Process) {
        for queue in &mut process.accept_queues {
            let of = |what: &str| format!("{QUEUE}{}/{what}", queue.address);
            queue.dropped = self.grown_anew(after, &of("dropped"));
            let waiting = self.get(&of("waiting")).max(after.get(&of("waiting")));
            queue.waiting = waiting.and_then(|n| u32::try_from(n).ok()).unwrap_or(queue.waiting);
        }
        let address = process.addresses.first().cloned().unwrap_or_default();
        let grown = |what: &str| self.grown_anew(after, &format!("{SERVER}{address}/{what}"));
        let share = |ms: u64| ms as f64 / 1e3 / window_s;
        process.major_faults = grown("major_faults");
        if let Some(ticks) = grown("ticks") {
            process.cpu_share = Some(seconds(ticks) / window_s);
            process.main_cpu_share = grown("main_ms").map(share);
            process.run_delay_share = grown("waited_ms").map(share);
        }
        let is_same = |group: &str| {
            let id = format!("{SERVER}{address}/{group}/id");
            self.get(&id) == after.get(&id)
        };
        let prefix = format!("{SERVER}{address}/periods/");
        let levels = after.names(&prefix, "/ms").filter(|level| is_same(&format!("periods/{level}")));
        let stopped = levels.filter_map(|level| {
            let of = |what: &str| grown(&format!("periods/{level}/{what}"));
            let above = level.parse().ok()?;
            let us = of("ms")?.saturating_mul(1000);
            Some(cgroups::Stopped { above, us, throttled: of("throttled")?, periods: of("all")? })
        });
        let stopped = stopped.reduce(cgroups::longest);
        process.throttled_share = stopped.map(|s| s.us as f64 / 1e6 / window_s);
        process.throttled_periods = stopped.map(|s| (s.throttled, s.periods));
        process.throttled_above = stopped.map_or(0, |s| s.above);
        if let Some(group) = &mut process.memory_group {
            let grown = |what: &str| grown(what).filter(|_| is_same("group"));
            group.limit_hits = grown("group/limit_hits");
            group.oom_kills = grown("group/oom_kills");
            group.stalled_share = grown("group/stalled_ms").map(share);
        }
    }
}

/// Waits for memory: `allocstall` had no zones before Linux 4.10. A kernel without compaction does not count it.
fn reclaims(vmstat: &HashMap<String, i64>) -> Option<Reclaims> {
    let stalls = || vmstat.iter().filter(|(name, _)| name.starts_with("allocstall")).map(|(_, n)| *n as u64);
    let compactions = vmstat.get("compact_stall").map_or(0, |n| *n as u64);
    stalls().next().map(|_| Reclaims { direct: stalls().sum(), compactions })
}

/// In the order of [`TCP`].
fn tcp() -> Option<[u64; 5]> {
    let snmp = fs::read_to_string("/proc/net/snmp").ok()?;
    let netstat = fs::read_to_string("/proc/net/netstat").ok()?;
    Some([
        counter(&snmp, "Tcp:", "RetransSegs")?,
        counter(&snmp, "Tcp:", "OutSegs")?,
        counter(&netstat, "TcpExt:", "ListenOverflows")?,
        counter(&netstat, "TcpExt:", "ListenDrops")?,
        counter(&netstat, "TcpExt:", "TCPTimeouts")?,
    ])
}

fn disks() -> impl Iterator<Item = DiskStat> {
    let whole = |disk: &DiskStat| Path::new("/sys/block").join(&disk.name).exists();
    procfs::diskstats().unwrap_or_default().into_iter().filter(whole)
}

/// Of this network namespace, by device; the loopback left out.
pub fn links() -> BTreeMap<String, DeviceStatus> {
    procfs::net::dev_status().unwrap_or_default().into_iter().filter(|(name, _)| name != "lo").collect()
}

#[cfg(test)]
mod tests {
    use procfs::{FromRead, VmStat};

    use super::*;

    #[test]
    fn waits_for_memory_are_summed_over_zones() {
        let reclaims_of = |text: &str| reclaims(&VmStat::from_read(text.as_bytes()).unwrap().0);
        let text = "pgfault 9\nallocstall_dma32 1\nallocstall_normal 20\nallocstall_movable 300\n\
                    compact_stall 7\ncompact_fail 5\n";
        assert_eq!(reclaims_of(text), Some(Reclaims { direct: 321, compactions: 7 }));
        assert_eq!(reclaims_of("allocstall 4\n"), Some(Reclaims { direct: 4, compactions: 0 }));
        assert_eq!(reclaims_of("pgfault 9\n"), None);
    }

    fn counts(numbers: &[(&str, i64)]) -> Counts {
        Counts::of_numbers(numbers.iter().map(|(name, n)| (name.to_string(), *n)))
    }

    /// A minute of a machine with one server.
    fn minute() -> Host {
        let process = Process {
            addresses: vec!["10.0.0.1:6379".into()],
            cpu_share: Some(0.02),
            major_faults: Some(900),
            throttled_periods: Some((500, 600)),
            swap_bytes: Some(7),
            memory_group: Some(unslow_facts::MemoryGroup {
                above: 1,
                used_bytes: 5,
                ..unslow_facts::MemoryGroup::default()
            }),
            accept_queues: vec![unslow_facts::AcceptQueue {
                address: "10.0.0.1:6379".into(),
                waiting: 9,
                limit: 8,
                dropped: Some(500),
            }],
            ..Process::default()
        };
        let link = Link { name: "eth0".into(), speed_mbit: Some(1000), received_bytes: 1, sent_bytes: 1 };
        Host {
            window_s: 60.0,
            tcp: Some(Tcp::default()),
            links: vec![link],
            processes: vec![process],
            cpus: 2,
            neighbours: vec![unslow_facts::Neighbour {
                pid: 9,
                name: "restic".into(),
                cpu_share: 0.9,
                client: false,
                parent: None,
            }],
            cores: vec![unslow_facts::Core { device_interrupts: Some(6000), ..unslow_facts::Core::default() }],
            ..Host::default()
        }
    }

    #[test]
    fn a_window_of_a_minute_has_its_own_figures() {
        let at = |n: i64| {
            counts(&[
                ("cpu/all", 1000 * n),
                ("cpu/idle", 500 * n),
                ("cpu/steal", 100 * n),
                ("pressure/io.some", 2_000 * n),
                ("tcp/retransmits", 3 * n),
                ("tcp/segments_out", 100 * n),
                ("tcp/listen_overflows", 20 * n),
                ("tcp/listen_drops", 20 * n),
                ("tcp/timeouts", 0),
                ("memory/available", 2),
                ("disk/sda/writes", 10 * n),
                ("disk/sda/write_ms", 400 * n),
                ("disk/sda/busy_ms", 1000 * n),
                ("disk/sdb/writes", 10),
                ("disk/sdb/write_ms", 400),
                ("disk/sdb/busy_ms", 1000 * n),
                ("link/eth0/received", 1_000 * n),
                ("link/eth0/sent", 0),
                ("queue/10.0.0.1:6379/dropped", 11 * n),
                ("queue/10.0.0.1:6379/waiting", 3 * n),
                ("server/10.0.0.1:6379/ticks", 300 * n),
                ("server/10.0.0.1:6379/waited_ms", 1_000 * n),
                ("server/10.0.0.1:6379/periods/0/ms", 0),
                ("server/10.0.0.1:6379/periods/0/throttled", 0),
                ("server/10.0.0.1:6379/periods/0/all", 40 * n),
                ("server/10.0.0.1:6379/periods/1/ms", 2_000 * n),
                ("server/10.0.0.1:6379/periods/1/throttled", 30 * n),
                ("server/10.0.0.1:6379/periods/1/all", 40 * n),
                ("server/10.0.0.1:6379/group/stalled_ms", 1_000 * n),
                ("server/10.0.0.1:6379/group/oom_kills", n),
            ])
        };
        let mut host = minute();
        at(1).narrow(&at(2), &Crowd::default(), 4.0, 7_000, &mut host);
        assert_eq!((host.at_ms, host.window_s), (7_000, 4.0));
        assert_eq!((host.steal_share, host.busy_share), (Some(0.1), Some(0.5)));
        assert_eq!(host.pressure["io.some"], 0.5);
        assert_eq!(host.tcp.unwrap().retransmits, 3);
        assert_eq!(host.memory_available_bytes, Some(2 << 20));
        assert_eq!(host.disks.len(), 1, "nothing was written to the other one");
        assert_eq!((host.disks[0].write_await_ms, host.disks[0].busy_share), (40.0, 0.25));
        let link = &host.links[0];
        assert_eq!((link.received_bytes, link.sent_bytes, link.speed_mbit), (1_024_000, 0, Some(1000)));
        let process = &host.processes[0];
        assert_eq!((process.cpu_share, process.run_delay_share), (Some(0.75), Some(0.25)));
        assert_eq!((process.throttled_share, process.throttled_periods), (Some(0.5), Some((30, 40))));
        assert_eq!((process.throttled_above, process.swap_bytes), (1, Some(7)), "swap is of the minute");
        let group = process.memory_group.as_ref().unwrap();
        assert_eq!((group.above, group.used_bytes, group.oom_kills, group.stalled_share), (1, 5, Some(1), Some(0.25)));
        let queue = &process.accept_queues[0];
        assert_eq!((queue.dropped, queue.waiting), (Some(11), 6), "the socket's own");
        // 2 cores, 40 % of them at work without what was stolen, 0.75 for the server: 0.05 for the others.
        assert!((host.neighbours[0].cpu_share - 0.05).abs() < 1e-9, "{:?}", host.neighbours);
        assert_eq!(host.cores[0].device_interrupts, Some(400));
    }

    #[test]
    fn a_server_that_was_started_again_has_counted_since_then() {
        let server = |ticks: i64| counts(&[("server/10.0.0.1:6379/ticks", ticks)]);
        let mut host = minute();
        server(90_000).narrow(&server(100), &Crowd::default(), 2.0, 0, &mut host);
        assert_eq!(host.processes[0].cpu_share, Some(0.5));
        // Of one that was not there at the start a share of the minute is kept, and no number of times.
        let mut host = minute();
        counts(&[]).narrow(&server(100), &Crowd::default(), 2.0, 0, &mut host);
        let process = &host.processes[0];
        assert_eq!((process.cpu_share, process.major_faults, process.throttled_periods), (Some(0.02), None, None));
        assert_eq!(process.accept_queues[0].dropped, None);
    }

    #[test]
    fn what_one_cgroup_has_counted_is_not_taken_from_what_another_has() {
        let stopped = |id: i64, n: i64| {
            let of = |what: &str, n: i64| (format!("server/10.0.0.1:6379/{what}"), n);
            let periods = [of("periods/0/ms", 500 * n), of("periods/0/throttled", 5 * n), of("periods/0/all", 10 * n)];
            let group = [of("group/oom_kills", n), of("periods/0/id", id), of("group/id", id)];
            Counts::of_numbers(periods.into_iter().chain(group))
        };
        let told = |before: Counts, after: Counts| {
            let mut host = minute();
            before.narrow(&after, &Crowd::default(), 1.0, 0, &mut host);
            let process = host.processes.remove(0);
            (process.throttled_periods, process.memory_group.unwrap().oom_kills)
        };
        assert_eq!(told(stopped(7, 1), stopped(7, 3)), (Some((10, 20)), Some(2)));
        assert_eq!(told(stopped(7, 1), stopped(8, 3)), (None, None), "it was moved");
        let mut host = Host { window_s: 5.0, ..minute() };
        stopped(7, 1).narrow(&stopped(8, 3), &Crowd::default(), 3.0, 0, &mut host);
        assert_eq!(host.processes[0].throttled_periods, Some((500, 600)), "a short look has counted in its new group");
    }

    #[test]
    fn counters_of_the_machine_that_step_back_have_not_grown() {
        let at = |bytes: i64| counts(&[("link/eth0/received", bytes), ("link/eth0/sent", 5), ("cpu/all", bytes)]);
        let mut host = minute();
        at(1_000_000).narrow(&at(10), &Crowd::default(), 2.0, 0, &mut host);
        assert!(host.links.is_empty() && host.busy_share.is_none(), "{host:?}");
        assert!(at(1).is_same_boot(&at(2)));
        let boot = |n: i64| counts(&[("machine/boot", n)]);
        assert!(!boot(1).is_same_boot(&boot(2)));
    }

    #[test]
    fn servers_in_namespaces_of_their_own_have_no_network_of_ours() {
        let at = |n: i64| {
            let tcp = TCP.map(|name| (name, n));
            let links = [("link/eth0/received", 1000 * n), ("link/eth0/sent", 0)];
            counts(&[&tcp[..], &links[..]].concat())
        };
        let mut host = minute();
        at(1).narrow(&at(2), &Crowd::default(), 1.0, 0, &mut host);
        assert!(host.tcp.is_some() && !host.links.is_empty());
        let mut host = Host { tcp: None, ..minute() };
        at(1).narrow(&at(2), &Crowd::default(), 1.0, 0, &mut host);
        assert!(host.tcp.is_none() && host.links.is_empty());
    }

    #[test]
    fn a_process_is_counted_as_a_look_at_it_finds_it() {
        let own = Process { pid: std::process::id(), addresses: vec!["a:1".into()], ..Process::default() };
        let servers = Counted::of(&Host { processes: vec![own], ..Host::default() });
        let counts = Counts::take(&servers);
        assert!(counts.get("server/a:1/ticks").is_some() && counts.get("cpu/all").is_some(), "{counts:?}");
        let recorded = Counts::of_numbers(counts.numbers().map(|(name, n)| (name.to_string(), n)));
        assert_eq!(recorded, counts);
    }
}
