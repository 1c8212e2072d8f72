//! The machine under the servers: /proc, /sys, cgroups, and the kernel's socket table. Reads only.
//!
//! [`Watch::start`] takes the first sample, [`Watch::finish`] the second. Everything is optional: a container hides
//! half of these files, and a field that was not there is `None`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use unslow_facts::{Disk, Host, Neighbour, Node, PeerSockets, Process, Rtt, Seen, Tcp};

use crate::now_ms;
use crate::sockets::{self, TcpSocket};

/// The first of two samples.
pub struct Watch {
    begun: Instant,
    cpu: Option<CpuTimes>,
    pressure: BTreeMap<String, u64>,
    tcp: Option<Tcp>,
    swap_in: Option<u64>,
    disks: BTreeMap<String, DiskTimes>,
    tasks: BTreeMap<u32, Task>,
    /// Segments sent again, and sent, on each socket.
    sockets: BTreeMap<Ends, (u32, u32)>,
}

/// Local and peer address of a socket.
type Ends = ((IpAddr, u16), (IpAddr, u16));

#[derive(Clone, Copy)]
struct CpuTimes {
    all: u64,
    idle: u64,
    steal: u64,
}

#[derive(Clone, Copy)]
struct DiskTimes {
    writes: u64,
    write_ms: u64,
    busy_ms: u64,
}

/// One process at one moment.
#[derive(Clone, Default)]
struct Task {
    name: String,
    ticks: u64,
    run_delay_ns: Option<u64>,
    throttled: Option<Throttled>,
}

#[derive(Clone, Copy, Default)]
struct Throttled {
    periods: u64,
    throttled: u64,
    us: u64,
}

impl Watch {
    /// Takes the first sample.
    pub fn start() -> Watch {
        Watch {
            begun: Instant::now(),
            cpu: cpu_times(),
            pressure: pressure(),
            tcp: tcp(),
            swap_in: vmstat("pswpin"),
            disks: disks(),
            tasks: tasks(),
            sockets: sockets::all()
                .unwrap_or_default()
                .into_iter()
                .map(|s| ((s.local, s.peer), (s.retransmits, s.segments_out)))
                .collect(),
        }
    }

    /// Takes the second sample, finds the servers among `nodes` that run here, and gives those their sockets.
    pub fn finish(self, nodes: &mut [Node]) -> Host {
        let mut host = self.second();
        let (sockets, refused) = match sockets::all() {
            Ok(mut sockets) => {
                // What was counted before the window is history.
                for socket in &mut sockets {
                    if let Some((again, out)) = self.sockets.get(&(socket.local, socket.peer)) {
                        socket.retransmits = socket.retransmits.saturating_sub(*again);
                        socket.segments_out = socket.segments_out.saturating_sub(*out);
                    }
                }
                (sockets, None)
            }
            Err(e) => (Vec::new(), Some(e)),
        };
        let local = local_ips();
        let owners = listeners(&sockets);
        for node in nodes.iter_mut().filter(|n| n.first.is_some()) {
            let Some(ips) = resolve(&node.address) else { continue };
            let port = port_of(&node.address);
            if !ips.iter().any(|ip| ip.is_loopback() || local.contains(ip)) {
                continue;
            }
            let owner = owners.iter().find(|(_, ip, p)| *p == port && (ip.is_unspecified() || ips.contains(ip)));
            let Some(pid) = owner.map(|(pid, ..)| *pid).or_else(|| process_id(node)) else { continue };
            // A server bound to every address has clients on all of them.
            let any = owner.is_some_and(|(_, ip, _)| ip.is_unspecified());
            if let Some(e) = &refused {
                node.sockets = Seen::No {
                    why: format!("the kernel does not show its sockets ({e})"),
                    grant: Some("run it as root, outside a sandbox".into()),
                };
            } else {
                node.sockets = Seen::Yes {
                    value: by_peer(&sockets, if any { &[] } else { &ips }, port),
                    source: format!("ss -tin sport = :{port}"),
                    at_ms: now_ms(),
                };
            }
            match host.processes.iter_mut().find(|p| p.pid == pid) {
                Some(process) => process.addresses.push(node.address.clone()),
                None => host.processes.push(self.process(pid, &node.address, host.window_s)),
            }
        }
        self.neighbours(&mut host, &sockets);
        host
    }

    /// Takes the second sample for `unslow host`: every Redis or Valkey process here, with `*:port` as address until a
    /// diagnosis gives it its own.
    pub fn finish_alone(self) -> Host {
        let mut host = self.second();
        let sockets = sockets::all().unwrap_or_default();
        for (pid, ip, port) in listeners(&sockets) {
            let name = comm(pid);
            // The cluster bus is the same process 10000 higher.
            let bus = port > 10_000 && listeners(&sockets).iter().any(|(p, _, q)| *p == pid && *q == port - 10_000);
            if !is_server(&name) || bus {
                continue;
            }
            let ip = if ip.is_unspecified() { "*".to_string() } else { ip.to_string() };
            let address = format!("{ip}:{port}");
            match host.processes.iter_mut().find(|p| p.pid == pid) {
                Some(process) if process.addresses.contains(&address) => {} // IPv4 and IPv6
                Some(process) => process.addresses.push(address),
                None => host.processes.push(self.process(pid, &address, host.window_s)),
            }
        }
        self.neighbours(&mut host, &sockets);
        host
    }

    fn second(&self) -> Host {
        let window_s = self.begun.elapsed().as_secs_f64();
        let cpu = self.cpu.zip(cpu_times()).map(|(a, b)| shares(a, b));
        let after = pressure();
        let pressure = self
            .pressure
            .iter()
            .filter_map(|(k, before)| Some((k.clone(), after.get(k)?.saturating_sub(*before) as f64 / 1e6 / window_s)))
            .collect();
        let tcp = self.tcp.zip(self::tcp()).map(|(a, b)| Tcp {
            retransmits: b.retransmits.saturating_sub(a.retransmits),
            segments_out: b.segments_out.saturating_sub(a.segments_out),
            listen_overflows: b.listen_overflows.saturating_sub(a.listen_overflows),
            listen_drops: b.listen_drops.saturating_sub(a.listen_drops),
            timeouts: b.timeouts.saturating_sub(a.timeouts),
        });
        let disks = disks()
            .into_iter()
            .filter_map(|(name, after)| written(*self.disks.get(&name)?, after, name, window_s))
            .collect();
        Host {
            hostname: line("/proc/sys/kernel/hostname").unwrap_or_default(),
            boot_id: line("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            at_ms: now_ms(),
            window_s,
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_default(),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            thp: line("/sys/kernel/mm/transparent_hugepage/enabled")
                .and_then(|t| Some(t.split_once('[')?.1.split_once(']')?.0.to_string())),
            overcommit: line("/proc/sys/vm/overcommit_memory").and_then(|t| t.parse().ok()),
            somaxconn: line("/proc/sys/net/core/somaxconn").and_then(|t| t.parse().ok()),
            memory_bytes: meminfo("MemTotal"),
            memory_available_bytes: meminfo("MemAvailable"),
            swap_used_bytes: meminfo("SwapTotal").zip(meminfo("SwapFree")).map(|(t, f)| t.saturating_sub(f)),
            swap_in_pages: self.swap_in.zip(vmstat("pswpin")).map(|(a, b)| b.saturating_sub(a)),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
            hypervisor: hypervisor(),
            steal_share: cpu.map(|(steal, _)| steal),
            busy_share: cpu.map(|(_, busy)| busy),
            pressure,
            tcp,
            disks,
            fsync: None,
            processes: Vec::new(),
            neighbours: Vec::new(),
        }
    }

    fn process(&self, pid: u32, address: &str, window_s: f64) -> Process {
        let after = task(pid).unwrap_or_default();
        let before = self.tasks.get(&pid);
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
        let throttled = before.and_then(|b| b.throttled).zip(after.throttled);
        Process {
            pid,
            name: after.name.clone(),
            addresses: vec![address.to_string()],
            cpu_share: before.map(|b| ticks_to_s(after.ticks.saturating_sub(b.ticks)) / window_s),
            run_delay_share: before
                .and_then(|b| Some(after.run_delay_ns?.saturating_sub(b.run_delay_ns?) as f64 / 1e9 / window_s)),
            swap_bytes: kib(&status, "VmSwap:"),
            anon_huge_bytes: kib(&rollup, "AnonHugePages:"),
            open_files_max: open_files_max(&limits),
            cpus_allowed: cpus_allowed(&status),
            quota_cores: cgroup(pid, "cpu").and_then(|dir| quota(&dir)),
            throttled_share: throttled.map(|(a, b)| b.us.saturating_sub(a.us) as f64 / 1e6 / window_s),
            throttled_periods: throttled
                .map(|(a, b)| (b.throttled.saturating_sub(a.throttled), b.periods.saturating_sub(a.periods))),
            memory_limit_bytes: cgroup(pid, "memory").and_then(|dir| memory_limit(&dir)),
        }
    }

    /// The busiest other processes, and whether they are clients of the servers here.
    fn neighbours(&self, host: &mut Host, sockets: &[TcpSocket]) {
        const MOST: usize = 5;
        /// Connections that last shorter than a look are met by looking again; not for longer than this. On a machine that is
        /// short of processors one look takes a tenth of a second, as long as such a connection.
        const LOOK: Duration = Duration::from_secs(1);
        const PAUSE: Duration = Duration::from_millis(5);
        let servers: BTreeSet<u32> = host.processes.iter().map(|p| p.pid).collect();
        let mut all: Vec<Neighbour> = tasks()
            .into_iter()
            .filter(|(pid, _)| !servers.contains(pid) && *pid != std::process::id())
            .map(|(pid, after)| {
                let before = self.tasks.get(&pid).map_or(0, |t| t.ticks);
                let cpu_share = ticks_to_s(after.ticks.saturating_sub(before)) / host.window_s;
                Neighbour { pid, name: after.name, cpu_share, client: false }
            })
            .filter(|n| n.cpu_share > 0.02)
            .collect();
        all.sort_by(|a, b| b.cpu_share.total_cmp(&a.cpu_share));
        all.truncate(MOST);
        let ports = host.processes.iter().flat_map(|p| &p.addresses).map(|a| port_of(a)).collect();
        let ours = Ours { ports, local: local_ips() };
        let here = ours.connections(sockets);
        // What was open and what led to a server are read one after the other and compared over all looks: tables are long
        // under short connections, and one may begin and end between two readings. Inodes are not used again so soon.
        let tables: Vec<Vec<PathBuf>> = all.iter().map(|n| tables_elsewhere(n.pid)).collect();
        let mut open: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); all.len()];
        let mut led: Vec<BTreeSet<u32>> = vec![here; all.len()];
        let until = Instant::now() + LOOK;
        let waited = host.processes.iter().any(|p| p.run_delay_share.is_some_and(|d| d > 0.01));
        loop {
            for (i, neighbour) in all.iter_mut().enumerate().filter(|(_, n)| !n.client) {
                // As close together as can be: what is read is taken apart later.
                open[i].extend(socket_inodes(neighbour.pid));
                let read = |table: &PathBuf| {
                    let text = fs::read_to_string(table).unwrap_or_default();
                    open[i].extend(socket_inodes(neighbour.pid));
                    text
                };
                let texts: Vec<String> = tables[i].iter().map(read).collect();
                led[i].extend(ours.connections_in(&texts));
                neighbour.client = !open[i].is_disjoint(&led[i]);
            }
            // It matters only where a server had to wait for them.
            if !waited || all.iter().all(|n| n.client) || Instant::now() > until {
                break;
            }
            std::thread::sleep(PAUSE);
            let here = ours.connections(&sockets::all().unwrap_or_default());
            led.iter_mut().for_each(|l| l.extend(&here));
        }
        host.neighbours = all;
    }
}

/// Where the servers of this host are reached.
struct Ours {
    ports: BTreeSet<u16>,
    local: BTreeSet<IpAddr>,
}

impl Ours {
    /// Inodes of the clients' ends, of sockets in this network namespace.
    fn connections(&self, sockets: &[TcpSocket]) -> BTreeSet<u32> {
        let here = |ip: &IpAddr| ip.is_loopback() || self.local.contains(ip);
        let clients = sockets.iter().filter(|s| !s.listening && self.ports.contains(&s.peer.1) && here(&s.peer.0));
        clients.map(|s| s.inode).collect()
    }

    /// The same from tables of other network namespaces: a client in a container is one too.
    fn connections_in(&self, tables: &[String]) -> Vec<u32> {
        let all = tables.iter().flat_map(|t| t.lines()).filter_map(peer_and_inode);
        // Its loopback is not ours.
        let ours = |ip: &IpAddr, port: &u16| self.ports.contains(port) && self.local.contains(ip) && !ip.is_loopback();
        all.filter(|((ip, port), _)| ours(ip, port)).map(|(_, inode)| inode).collect()
    }
}

/// Tables of sockets of the network namespaces that a process and its threads are in and we are not.
fn tables_elsewhere(pid: u32) -> Vec<PathBuf> {
    const MOST: usize = 200;
    let mut seen: BTreeSet<PathBuf> = fs::read_link("/proc/self/ns/net").into_iter().collect();
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads
        .take(MOST)
        .map(|t| t.path())
        .filter(|t| fs::read_link(t.join("ns/net")).is_ok_and(|ns| seen.insert(ns)))
        .flat_map(|t| [t.join("net/tcp"), t.join("net/tcp6")])
        .collect()
}

/// The peer and the inode of a line of /proc/net/tcp or tcp6: addresses are words of 32 bits in the machine's order.
fn peer_and_inode(line: &str) -> Option<((IpAddr, u16), u32)> {
    let mut words = line.split_whitespace();
    let (ip, port) = words.nth(2)?.split_once(':')?;
    // Thousands of connections that are over are nobody's socket any more.
    const TIME_WAIT: &str = "06";
    if words.next()? == TIME_WAIT {
        return None;
    }
    let bytes: Vec<u8> = (0..ip.len() / 8)
        .filter_map(|i| u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok())
        .flat_map(u32::to_ne_bytes)
        .collect();
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(((ip, u16::from_str_radix(port, 16).ok()?), words.nth(5)?.parse().ok()?))
}

/// Gives the processes of a `unslow host` file the addresses of the nodes they serve: same port, and an address the
/// machine listens on (`*` fits any), and INFO's process_id where the node tells it.
pub fn assign_by_port(host: &mut Host, nodes: &[Node]) {
    for process in &mut host.processes {
        let own: Vec<String> = nodes
            .iter()
            .filter(|node| {
                process.addresses.iter().any(|a| {
                    let any = a.starts_with("*:") || a.starts_with("127.");
                    port_of(a) == port_of(&node.address) && (any || *a == node.address)
                })
            })
            .filter(|node| node.info().and_then(|i| i.number("process_id")).is_none_or(|p| p as u32 == process.pid))
            .map(|node| node.address.clone())
            .collect();
        if !own.is_empty() {
            process.addresses = own;
        }
    }
}

/// Times `count` fsyncs of 4 KiB each in `dir`, in a file that is removed again.
pub fn fsync_times(dir: &Path, count: usize) -> std::io::Result<Rtt> {
    let path = dir.join(format!(".unslow-fsync-{}", std::process::id()));
    let mut file = fs::File::create(&path)?;
    let times: std::io::Result<Vec<u32>> = (0..count)
        .map(|_| {
            file.write_all(&[0u8; 4096])?;
            let begun = Instant::now();
            file.sync_data()?;
            Ok(begun.elapsed().as_micros() as u32)
        })
        .collect();
    fs::remove_file(&path)?;
    Rtt::of(&times?).ok_or_else(|| std::io::ErrorKind::InvalidInput.into())
}

fn line(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_string())
}

fn meminfo(field: &str) -> Option<u64> {
    kib(&fs::read_to_string("/proc/meminfo").ok()?, &format!("{field}:"))
}

/// The bytes of a `Name:   123 kB` line.
fn kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|k| k * 1024)
}

fn vmstat(field: &str) -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    text.lines().find_map(|l| l.strip_prefix(field)?.trim().parse().ok())
}

/// The soft limit in the text of `limits`.
fn open_files_max(limits: &str) -> Option<u64> {
    limits.lines().find(|l| l.starts_with("Max open files"))?.split_whitespace().nth(3)?.parse().ok()
}

/// How many bits the mask in the text of `status` has.
fn cpus_allowed(status: &str) -> Option<u32> {
    let mask = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed:"))?;
    Some(mask.chars().filter_map(|c| c.to_digit(16)).map(u32::count_ones).sum())
}

/// Stolen and busy shares between two samples.
fn shares(a: CpuTimes, b: CpuTimes) -> (f64, f64) {
    let all = b.all.saturating_sub(a.all).max(1) as f64;
    (b.steal.saturating_sub(a.steal) as f64 / all, 1.0 - b.idle.saturating_sub(a.idle) as f64 / all)
}

/// A device between two samples; `None` when nothing was written.
fn written(a: DiskTimes, b: DiskTimes, name: String, window_s: f64) -> Option<Disk> {
    let writes = b.writes.saturating_sub(a.writes);
    (writes > 0).then(|| Disk {
        name,
        write_await_ms: b.write_ms.saturating_sub(a.write_ms) as f64 / writes as f64,
        busy_share: b.busy_ms.saturating_sub(a.busy_ms) as f64 / 1000.0 / window_s,
    })
}

fn cpu_times() -> Option<CpuTimes> {
    cpu_times_of(&fs::read_to_string("/proc/stat").ok()?)
}

fn cpu_times_of(text: &str) -> Option<CpuTimes> {
    let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest is inside user.
    Some(CpuTimes { all: ticks.iter().take(8).sum(), idle: ticks.get(3)? + ticks.get(4)?, steal: *ticks.get(7)? })
}

/// `cpu.some` and so on: total stalled us.
fn pressure() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for resource in ["cpu", "io", "memory"] {
        let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
        all.extend(stalled(resource, &text));
    }
    all
}

/// The same of one resource, from the text of its file.
fn stalled(resource: &str, text: &str) -> Vec<(String, u64)> {
    let total = |line: &str| -> Option<u64> { line.split("total=").nth(1)?.trim().parse().ok() };
    let kind = |line: &str| format!("{resource}.{}", line.split(' ').next().unwrap_or_default());
    text.lines().filter_map(|line| Some((kind(line), total(line)?))).collect()
}

/// Pairs of lines: names, then numbers.
fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|l| l.starts_with(group));
    let at = lines.next()?.split_whitespace().position(|w| w == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

fn tcp() -> Option<Tcp> {
    let snmp = fs::read_to_string("/proc/net/snmp").ok()?;
    let netstat = fs::read_to_string("/proc/net/netstat").ok()?;
    Some(Tcp {
        retransmits: counter(&snmp, "Tcp:", "RetransSegs")?,
        segments_out: counter(&snmp, "Tcp:", "OutSegs")?,
        listen_overflows: counter(&netstat, "TcpExt:", "ListenOverflows")?,
        listen_drops: counter(&netstat, "TcpExt:", "ListenDrops")?,
        timeouts: counter(&netstat, "TcpExt:", "TCPTimeouts")?,
    })
}

fn disks() -> BTreeMap<String, DiskTimes> {
    let text = fs::read_to_string("/proc/diskstats").unwrap_or_default();
    let whole = |name: &String| Path::new("/sys/block").join(name).exists();
    text.lines().filter_map(disk_times).filter(|(name, _)| whole(name)).collect()
}

/// A line of /proc/diskstats.
fn disk_times(line: &str) -> Option<(String, DiskTimes)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| words.get(i)?.parse().ok();
    let times = DiskTimes { writes: number(7)?, write_ms: number(10)?, busy_ms: number(12)? };
    Some((words.get(2)?.to_string(), times))
}

/// By `/sys/hypervisor`, then DMI, then CPUID.
fn hypervisor() -> Option<String> {
    if let Some(kind) = line("/sys/hypervisor/type").filter(|t| !t.is_empty()) {
        return Some(kind);
    }
    let dmi = ["sys_vendor", "product_name", "bios_vendor"]
        .map(|f| line(format!("/sys/class/dmi/id/{f}")).unwrap_or_default().to_lowercase());
    for (word, name) in [
        ("xen", "xen"),
        ("vmware", "vmware"),
        ("virtualbox", "virtualbox"),
        ("microsoft", "hyper-v"),
        ("firecracker", "firecracker"),
    ] {
        if dmi.iter().any(|d| d.contains(word)) {
            return Some(name.into());
        }
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(info) = raw_cpuid::CpuId::new().get_hypervisor_info() {
        return Some(match info.identify() {
            raw_cpuid::Hypervisor::Xen => "xen".into(),
            raw_cpuid::Hypervisor::KVM => "kvm".into(),
            raw_cpuid::Hypervisor::VMware => "vmware".into(),
            raw_cpuid::Hypervisor::HyperV => "hyper-v".into(),
            _ => "unknown hypervisor".into(),
        });
    }
    None
}

fn ticks_to_s(ticks: u64) -> f64 {
    // SAFETY: sysconf has no preconditions.
    let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    ticks as f64 / per_s.max(1) as f64
}

fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

fn tasks() -> BTreeMap<u32, Task> {
    pids().filter_map(|pid| Some((pid, task(pid)?))).collect()
}

fn task(pid: u32) -> Option<Task> {
    let (name, ticks) = name_and_ticks(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let server = is_server(&name);
    let run_delay_ns = server
        .then(|| line(format!("/proc/{pid}/task/{pid}/schedstat")))
        .flatten()
        .and_then(|t| t.split_whitespace().nth(1)?.parse().ok());
    let throttled = server.then(|| cgroup(pid, "cpu")).flatten().and_then(|dir| throttled(&dir));
    Some(Task { name, ticks, run_delay_ns, throttled })
}

/// From the text of /proc/PID/stat; ticks in user mode and in the kernel.
fn name_and_ticks(stat: &str) -> Option<(String, u64)> {
    // The name may hold spaces and brackets; what follows the last one is fixed.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_string();
    let words: Vec<&str> = tail.split_whitespace().collect();
    Some((name, words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?))
}

fn comm(pid: u32) -> String {
    line(format!("/proc/{pid}/comm")).unwrap_or_default()
}

/// By the names the servers and their forks give themselves; a server renamed with `exec -a` keeps its comm.
fn is_server(name: &str) -> bool {
    ["redis", "valkey", "keydb"].iter().any(|n| name.starts_with(n))
        && !name.contains("-cli")
        && !name.contains("benchm")
}

/// The directory of the process's cgroup for a v1 controller, or its only one under v2.
fn cgroup(pid: u32, controller: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    for (base, dir) in cgroup_places(&text, &mounts, controller) {
        // Inside a container the path is the host's, and the mount shows our own group at its root.
        let dir = if dir.exists() { dir } else { base };
        let file = if controller == "cpu" { "cpu.stat" } else { "memory.max" };
        if dir.join(file).exists() || dir.join("memory.limit_in_bytes").exists() {
            return Some(dir);
        }
    }
    None
}

/// Where a controller of the groups in the text of /proc/PID/cgroup is mounted, and the group's directory there.
fn cgroup_places(text: &str, mounts: &str, controller: &str) -> Vec<(PathBuf, PathBuf)> {
    let mut places = Vec::new();
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            (words.get(2) == Some(&kind) && (option.is_empty() || words.get(3)?.split(',').any(|o| o == option)))
                .then(|| PathBuf::from(words[1]))
        })
    };
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else { break };
        let base = if controllers.is_empty() {
            mount("cgroup2", "")
        } else if controllers.split(',').any(|c| c == controller) {
            mount("cgroup", controller)
        } else {
            continue;
        };
        let Some(base) = base else { continue };
        let dir = base.join(path.trim_start_matches('/'));
        places.push((base, dir));
    }
    places
}

fn throttled(dir: &Path) -> Option<Throttled> {
    throttled_of(&fs::read_to_string(dir.join("cpu.stat")).ok()?)
}

fn throttled_of(text: &str) -> Option<Throttled> {
    let field = |name: &str| -> Option<u64> { text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()) };
    Some(Throttled {
        periods: field("nr_periods ")?,
        throttled: field("nr_throttled ")?,
        us: field("throttled_usec ").or_else(|| field("throttled_time ").map(|ns| ns / 1000))?,
    })
}

fn quota(dir: &Path) -> Option<f64> {
    match line(dir.join("cpu.max")) {
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            cores(quota, period)
        }
        None => cores(&line(dir.join("cpu.cfs_quota_us"))?, &line(dir.join("cpu.cfs_period_us"))?),
    }
}

/// A quota in cores; v1 says "none" with -1, v2 with `max`.
fn cores(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

fn memory_limit(dir: &Path) -> Option<u64> {
    limit_of(&line(dir.join("memory.max")).or_else(|| line(dir.join("memory.limit_in_bytes")))?)
}

/// v1 says "no limit" with a number near 2^63, v2 with `max`.
fn limit_of(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().filter(|n| *n < 1 << 60)
}

fn socket_inodes(pid: u32) -> Vec<u32> {
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

/// (pid, address, port) of every listening socket of a Redis or Valkey process.
fn listeners(sockets: &[TcpSocket]) -> Vec<(u32, IpAddr, u16)> {
    let by_inode: BTreeMap<u32, &TcpSocket> = sockets.iter().filter(|s| s.listening).map(|s| (s.inode, s)).collect();
    pids()
        .filter(|pid| is_server(&comm(*pid)))
        .flat_map(|pid| {
            socket_inodes(pid)
                .into_iter()
                .filter_map(|i| by_inode.get(&i))
                .map(|s| (pid, s.local.0, s.local.1))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// INFO's `process_id`, if a server of that number runs here.
fn process_id(node: &Node) -> Option<u32> {
    let pid = node.number("process_id")? as u32;
    is_server(&comm(pid)).then_some(pid)
}

fn resolve(address: &str) -> Option<Vec<IpAddr>> {
    if address.starts_with("unix:") {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = host.parse() {
        return Some(vec![ip]);
    }
    let all = (host, port.parse().ok()?).to_socket_addrs().ok()?;
    Some(all.map(|a| a.ip()).collect())
}

fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').and_then(|(_, p)| p.parse().ok()).unwrap_or(0)
}

fn local_ips() -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list` or returns non-zero; every pointer is read only before freeifaddrs, and each
    // sockaddr is cast by the family it names.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return found;
        }
        let mut at = list;
        while !at.is_null() {
            let address = (*at).ifa_addr;
            if !address.is_null() {
                match i32::from((*address).sa_family) {
                    libc::AF_INET => {
                        let v4 = &*address.cast::<libc::sockaddr_in>();
                        found.insert(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()));
                    }
                    libc::AF_INET6 => {
                        let v6 = &*address.cast::<libc::sockaddr_in6>();
                        found.insert(IpAddr::V6(v6.sin6_addr.s6_addr.into()));
                    }
                    _ => {}
                }
            }
            at = (*at).ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found
}

/// The sockets of one server by peer address; no `ips` is any local address.
fn by_peer(sockets: &[TcpSocket], ips: &[IpAddr], port: u16) -> Vec<PeerSockets> {
    let mut peers: BTreeMap<IpAddr, Vec<&TcpSocket>> = BTreeMap::new();
    for socket in
        sockets.iter().filter(|s| !s.listening && s.local.1 == port && (ips.is_empty() || ips.contains(&s.local.0)))
    {
        peers.entry(socket.peer.0).or_default().push(socket);
    }
    let median = |mut values: Vec<u32>| {
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    let mut all: Vec<PeerSockets> = peers
        .into_iter()
        .map(|(ip, group)| {
            let minima: Vec<u32> = group.iter().filter_map(|s| s.min_rtt_us).collect();
            PeerSockets {
                host: ip.to_string(),
                sockets: group.len() as u32,
                min_rtt_us: minima.iter().copied().min().unwrap_or(0),
                min_rtt_us_p50: median(minima),
                rtt_us_p50: median(group.iter().map(|s| s.rtt_us).filter(|us| *us > 0).collect()),
                retransmits: group.iter().map(|s| u64::from(s.retransmits)).sum(),
                segments_out: group.iter().map(|s| u64::from(s.segments_out)).sum(),
                send_queue_bytes: group.iter().map(|s| u64::from(s.send_queue)).sum(),
                receive_queue_bytes: group.iter().map(|s| u64::from(s.receive_queue)).sum(),
                window_closed: group.iter().filter(|s| s.send_queue > 0 && s.peer_window == Some(0)).count() as u32,
            }
        })
        .collect();
    all.sort_by_key(|p| std::cmp::Reverse(p.sockets));
    all.truncate(500);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lines_of_the_tables_of_sockets() {
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let rest = "01 00000000:00000000 00:00000000 00000000     0        0 15201 1 0 20 4 30 10 -1";
        let v4 = format!("   1: {}:E2D4 {}:18EB {rest}", word([10, 0, 0, 2]), word([10, 0, 0, 1]));
        assert_eq!(peer_and_inode(&v4), Some((([10, 0, 0, 1].into(), 6379), 15201)));
        let ten = word([10, 0, 0, 1]);
        let mapped = format!("{0}{0}{1}{ten}", word([0; 4]), word([0, 0, 255, 255]));
        assert_eq!(
            peer_and_inode(&format!("   1: {mapped}:E2D4 {mapped}:18EB {rest}")),
            Some((([10, 0, 0, 1].into(), 6379), 15201))
        );
        for odd in ["", "  sl  local_address rem_address   st tx_queue", "1: 0:1 2", "   1: é:1 éé:18EB 01 0 0 0 0 0 7"]
        {
            assert_eq!(peer_and_inode(odd), None, "{odd}");
        }
    }

    #[test]
    fn cpu_shares_are_computed_between_two_samples() {
        let before = cpu_times_of("cpu  100 0 50 800 40 0 0 10 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n").unwrap();
        assert_eq!((before.all, before.idle, before.steal), (1000, 840, 10));
        let after = cpu_times_of("cpu  160 0 60 890 60 0 0 30 90 0\n").unwrap();
        let (steal, busy) = shares(before, after);
        assert!((steal - 0.1).abs() < 1e-9 && (busy - 0.45).abs() < 1e-9, "{steal} {busy}");
        // Counters may go backwards when processors come and go; shares stay between 0 and 1.
        let (steal, busy) = shares(after, before);
        assert_eq!((steal, busy), (0.0, 1.0));
        assert!(cpu_times_of("cpu  1 2 3\n").is_none() && cpu_times_of("").is_none());
    }

    #[test]
    fn disk_write_time_is_averaged_over_the_window() {
        let line = |text: &str| disk_times(text).unwrap();
        let (name, before) = line(" 259       0 nvme0n1 100 1 2 3 1000 5 6 7000 0 500 0 0 0 0 0");
        assert_eq!((name.as_str(), before.writes, before.write_ms, before.busy_ms), ("nvme0n1", 1000, 7000, 500));
        let (_, after) = line(" 259       0 nvme0n1 900 1 2 3 1010 5 6 7040 0 1500 0 0 0 0 0");
        let disk = written(before, after, name.clone(), 4.0).unwrap();
        assert_eq!((disk.name.as_str(), disk.write_await_ms, disk.busy_share), ("nvme0n1", 4.0, 0.25));
        assert!(written(before, before, name, 4.0).is_none(), "no writes in the window");
        assert!(disk_times("259 0 nvme0n1 100").is_none());
    }

    #[test]
    fn process_names_may_contain_blanks_and_brackets() {
        let rest = "S 1 1 1 0 -1 4194560 1 0 0 0 250 50 0 0 20 0 4 0 100 1000 10";
        for name in ["redis-server", "a b", "x) S 1 (y", ""] {
            assert_eq!(name_and_ticks(&format!("77 ({name}) {rest}")), Some((name.to_string(), 300)), "{name}");
        }
        assert_eq!(name_and_ticks("77 (gone) Z 1 1"), None);
        for (name, server) in [
            ("redis-server", true),
            ("valkey-server", true),
            ("redis-rdb-bgsav", true),
            ("keydb-server", true),
            ("redis-cli", false),
            ("valkey-benchmar", false),
            ("my-redis", false),
        ] {
            assert_eq!(is_server(name), server, "{name}");
        }
    }

    #[test]
    fn process_limits_are_read_and_unlimited_is_none() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max cpu time              unlimited            unlimited            seconds\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(open_files_max(limits), Some(1024));
        assert_eq!(open_files_max("Max open files            unlimited            unlimited            files"), None);
        let status = "VmSwap:\t      12 kB\nCpus_allowed:\tff,00000003\nCpus_allowed_list:\t0-1,32-39\n";
        assert_eq!(
            (cpus_allowed(status), kib(status, "VmSwap:"), kib(status, "VmRSS:")),
            (Some(10), Some(12_288), None)
        );
        for (quota, period, expected) in
            [("150000", "100000", Some(1.5)), ("max", "100000", None), ("-1", "100000", None), ("100000", "0", None)]
        {
            assert_eq!(cores(quota, period), expected, "{quota} {period}");
        }
        assert_eq!(["1073741824", "max", "9223372036854771712"].map(limit_of), [Some(1 << 30), None, None]);
    }

    #[test]
    fn throttling_is_read_from_both_cgroup_versions() {
        let v2 = "usage_usec 9\nnr_periods 100\nnr_throttled 7\nthrottled_usec 5000\n";
        let v1 = "nr_periods 100\nnr_throttled 7\nthrottled_time 5000000\n";
        for text in [v2, v1] {
            let t = throttled_of(text).unwrap();
            assert_eq!((t.periods, t.throttled, t.us), (100, 7, 5000), "{text}");
        }
        // Without a quota v2 omits these lines.
        assert!(throttled_of("usage_usec 9\nuser_usec 4\n").is_none());
    }

    #[test]
    fn cgroup_directories_follow_the_mounts_of_their_controllers() {
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n";
        let v1 = "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n\
                  cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n\
                  cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let groups = "9:memory:/m\n3:cpu,cpuacct:/c/d\n0::/u\n";
        for (text, mounts, controller, expected) in [
            ("0::/a/b\n", v2, "cpu", vec![("/sys/fs/cgroup", "/sys/fs/cgroup/a/b")]),
            ("0::/\n", v2, "memory", vec![("/sys/fs/cgroup", "/sys/fs/cgroup/")]),
            (
                groups,
                v1,
                "cpu",
                vec![
                    ("/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/c/d"),
                    ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/u"),
                ],
            ),
            (
                groups,
                v1,
                "memory",
                vec![
                    ("/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/m"),
                    ("/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/u"),
                ],
            ),
            (groups, "", "cpu", vec![]),
        ] {
            let expected: Vec<(PathBuf, PathBuf)> = expected.into_iter().map(|(a, b)| (a.into(), b.into())).collect();
            assert_eq!(cgroup_places(text, mounts, controller), expected, "{controller} of {text:?}");
        }
    }

    #[test]
    fn pressure_and_tcp_counters_are_found_by_name() {
        let text =
            "some avg10=0.00 avg60=1.50 avg300=0.50 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=678\n";
        assert_eq!(stalled("io", text), [("io.some".to_string(), 12_345), ("io.full".to_string(), 678)]);
        assert!(stalled("cpu", "some avg10=0.00\n").is_empty());
        let snmp = "Ip: Forwarding OutSegs\nIp: 1 99\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 5000 -7\n";
        assert_eq!(counter(snmp, "Tcp:", "OutSegs"), Some(5000));
        assert_eq!([counter(snmp, "Tcp:", "RetransSegs"), counter(snmp, "Udp:", "OutSegs")], [None, None]);
    }

    fn socket(local: &str, peer: &str) -> TcpSocket {
        let address = |text: &str| {
            let address: std::net::SocketAddr = text.parse().unwrap();
            (address.ip(), address.port())
        };
        TcpSocket {
            listening: false,
            local: address(local),
            peer: address(peer),
            inode: u32::from(address(local).1),
            receive_queue: 0,
            send_queue: 0,
            min_rtt_us: None,
            rtt_us: 0,
            retransmits: 0,
            segments_out: 0,
            peer_window: None,
        }
    }

    #[test]
    fn server_sockets_are_grouped_by_peer_with_medians() {
        let client = |local: &str, peer: &str, min_rtt_us: Option<u32>, rtt_us: u32| TcpSocket {
            min_rtt_us,
            rtt_us,
            retransmits: 1,
            segments_out: 10,
            ..socket(local, peer)
        };
        let sockets = [
            client("10.0.0.1:6379", "10.0.0.7:1000", Some(300), 900),
            client("10.0.0.1:6379", "10.0.0.7:1001", Some(100), 700),
            client("10.0.0.2:6379", "10.0.0.7:1002", Some(200), 800),
            // Without a measured round trip.
            TcpSocket { send_queue: 5, peer_window: Some(0), ..client("10.0.0.1:6379", "10.0.0.7:1003", None, 0) },
            // Its window is closed, but no data waits.
            TcpSocket { peer_window: Some(0), ..client("10.0.0.1:6379", "10.0.0.8:1000", Some(50), 60) },
            client("10.0.0.1:6380", "10.0.0.7:1004", Some(1), 1),
            TcpSocket { listening: true, ..socket("0.0.0.0:6379", "0.0.0.0:0") },
        ];
        let all = by_peer(&sockets, &[], 6379);
        let [near, far] = &all[..] else { panic!("{all:?}") };
        assert_eq!((near.host.as_str(), near.sockets, near.retransmits, near.segments_out), ("10.0.0.7", 4, 4, 40));
        assert_eq!((near.min_rtt_us, near.min_rtt_us_p50, near.rtt_us_p50), (100, 200, 800));
        assert_eq!((near.send_queue_bytes, near.window_closed, far.window_closed), (5, 1, 0));
        let one_address = by_peer(&sockets, &["10.0.0.2".parse().unwrap()], 6379);
        assert_eq!(one_address.iter().map(|p| (p.host.as_str(), p.sockets)).collect::<Vec<_>>(), [("10.0.0.7", 1)]);
    }

    #[test]
    fn local_clients_are_recognized_by_their_end_of_the_connection() {
        let here: IpAddr = "10.0.0.1".parse().unwrap();
        let ours = Ours { ports: BTreeSet::from([6379]), local: BTreeSet::from([here]) };
        let sockets = [
            socket("10.0.0.1:1001", "10.0.0.1:6379"),
            socket("127.0.0.1:1002", "127.0.0.1:6379"),
            socket("10.0.0.1:1003", "10.0.0.9:6379"), // a server elsewhere
            socket("10.0.0.1:1004", "10.0.0.1:6380"), // no server
            socket("10.0.0.1:6379", "10.0.0.1:1001"), // the server's end
        ];
        assert_eq!(ours.connections(&sockets), BTreeSet::from([1001, 1002]));
    }

    #[test]
    fn processes_are_matched_to_nodes_by_port_address_and_pid() {
        use unslow_facts::Sample;
        use unslow_topology::{Info, Role};
        let node = |address: &str, pid: Option<u32>| {
            let info = Info::parse(&pid.map_or(String::new(), |pid| format!("process_id:{pid}\r\n")));
            Node { last: Some(Sample { at_ms: 0, info }), ..Node::new(address, Role::Master) }
        };
        let process = |pid: u32, address: &str| Process { pid, addresses: vec![address.into()], ..Process::default() };
        let mut host = Host {
            processes: vec![
                process(1, "*:6379"),
                process(2, "10.0.0.5:6380"),
                process(3, "127.0.0.1:6381"),
                process(4, "*:6382"),
                process(5, "*:7000"),
            ],
            ..Host::default()
        };
        let nodes = [
            node("10.0.0.5:6379", Some(1)),
            node("10.0.0.5:6380", None),
            node("10.0.0.6:6380", None),
            node("10.0.0.5:6381", Some(3)),
            // The same port on another machine, by its pid.
            node("10.0.0.9:6382", Some(99)),
        ];
        assign_by_port(&mut host, &nodes);
        let addresses: Vec<&[String]> = host.processes.iter().map(|p| &p.addresses[..]).collect();
        assert_eq!(addresses, [["10.0.0.5:6379"], ["10.0.0.5:6380"], ["10.0.0.5:6381"], ["*:6382"], ["*:7000"]]);
    }

    #[test]
    fn literal_addresses_are_parsed_without_a_lookup() {
        for (address, ip) in [("10.0.0.1:6379", "10.0.0.1"), ("[::1]:6379", "::1"), ("::1:6379", "::1")] {
            assert_eq!(resolve(address), Some(vec![ip.parse().unwrap()]), "{address}");
            assert_eq!(port_of(address), 6379);
        }
        assert_eq!(
            (resolve("unix:/run/redis.sock"), resolve("no port"), port_of("unix:/run/redis.sock")),
            (None, None, 0)
        );
    }
}
