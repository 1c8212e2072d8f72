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
        let cpu = self.cpu.zip(cpu_times()).map(|(a, b)| {
            let all = b.all.saturating_sub(a.all).max(1) as f64;
            (b.steal.saturating_sub(a.steal) as f64 / all, 1.0 - b.idle.saturating_sub(a.idle) as f64 / all)
        });
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
            .filter_map(|(name, b)| {
                let a = self.disks.get(&name)?;
                let writes = b.writes.saturating_sub(a.writes);
                (writes > 0).then(|| Disk {
                    name,
                    write_await_ms: b.write_ms.saturating_sub(a.write_ms) as f64 / writes as f64,
                    busy_share: b.busy_ms.saturating_sub(a.busy_ms) as f64 / 1000.0 / window_s,
                })
            })
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
            open_files_max: limits
                .lines()
                .find(|l| l.starts_with("Max open files"))
                .and_then(|l| l.split_whitespace().nth(3)?.parse().ok()),
            cpus_allowed: status
                .lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed:"))
                .map(|mask| mask.chars().filter_map(|c| c.to_digit(16)).map(u32::count_ones).sum()),
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
        /// Connections that last shorter than a look are met by looking again; not for longer than this.
        const LOOK: Duration = Duration::from_millis(200);
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
                open[i].extend(socket_inodes(neighbour.pid));
                led[i].extend(ours.connections_in(&tables[i]));
                open[i].extend(socket_inodes(neighbour.pid));
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
    fn connections_in(&self, tables: &[PathBuf]) -> Vec<u32> {
        let text = |table: &PathBuf| fs::read_to_string(table).unwrap_or_default();
        let lines: Vec<String> = tables.iter().map(text).collect();
        let all = lines.iter().flat_map(|t| t.lines()).filter_map(peer_and_inode);
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
    let bytes: Vec<u8> = (0..ip.len() / 8)
        .filter_map(|i| u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok())
        .flat_map(u32::to_ne_bytes)
        .collect();
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some(((ip, u16::from_str_radix(port, 16).ok()?), words.nth(6)?.parse().ok()?))
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

fn cpu_times() -> Option<CpuTimes> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest is inside user.
    Some(CpuTimes { all: ticks.iter().take(8).sum(), idle: ticks.get(3)? + ticks.get(4)?, steal: *ticks.get(7)? })
}

/// `cpu.some` and so on: total stalled us.
fn pressure() -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for resource in ["cpu", "io", "memory"] {
        let text = fs::read_to_string(format!("/proc/pressure/{resource}")).unwrap_or_default();
        for line in text.lines() {
            let total = line.split("total=").nth(1).and_then(|t| t.trim().parse().ok());
            if let (Some(kind), Some(total)) = (line.split(' ').next(), total) {
                all.insert(format!("{resource}.{kind}"), total);
            }
        }
    }
    all
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
    text.lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |i: usize| words.get(i)?.parse().ok();
            let name = words.get(2)?.to_string();
            Path::new("/sys/block").join(&name).exists().then_some(())?;
            Some((name, DiskTimes { writes: number(7)?, write_ms: number(10)?, busy_ms: number(12)? }))
        })
        .collect()
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
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold spaces and brackets; what follows the last one is fixed.
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_string();
    let words: Vec<&str> = tail.split_whitespace().collect();
    let ticks = words.get(11)?.parse::<u64>().ok()? + words.get(12)?.parse::<u64>().ok()?;
    let server = is_server(&name);
    let run_delay_ns = server
        .then(|| line(format!("/proc/{pid}/task/{pid}/schedstat")))
        .flatten()
        .and_then(|t| t.split_whitespace().nth(1)?.parse().ok());
    let throttled = server.then(|| cgroup(pid, "cpu")).flatten().and_then(|dir| throttled(&dir));
    Some(Task { name, ticks, run_delay_ns, throttled })
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
    let mount = |kind: &str, option: &str| {
        mounts.lines().find_map(|l| {
            let words: Vec<&str> = l.split_whitespace().collect();
            (words.get(2) == Some(&kind) && (option.is_empty() || words.get(3)?.split(',').any(|o| o == option)))
                .then(|| PathBuf::from(words[1]))
        })
    };
    for line in text.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let base = if controllers.is_empty() {
            mount("cgroup2", "")
        } else if controllers.split(',').any(|c| c == controller) {
            mount("cgroup", controller)
        } else {
            continue;
        };
        let Some(base) = base else { continue };
        let dir = base.join(path.trim_start_matches('/'));
        // Inside a container the path is the host's, and the mount shows our own group at its root.
        let dir = if dir.exists() { dir } else { base };
        let file = if controller == "cpu" { "cpu.stat" } else { "memory.max" };
        if dir.join(file).exists() || dir.join("memory.limit_in_bytes").exists() {
            return Some(dir);
        }
    }
    None
}

fn throttled(dir: &Path) -> Option<Throttled> {
    let text = fs::read_to_string(dir.join("cpu.stat")).ok()?;
    let field = |name: &str| -> Option<u64> { text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()) };
    Some(Throttled {
        periods: field("nr_periods ")?,
        throttled: field("nr_throttled ")?,
        us: field("throttled_usec ").or_else(|| field("throttled_time ").map(|ns| ns / 1000))?,
    })
}

fn quota(dir: &Path) -> Option<f64> {
    let (quota, period) = match line(dir.join("cpu.max")) {
        Some(text) => {
            let (q, p) = text.split_once(' ')?;
            (q.parse::<f64>().ok()?, p.parse::<f64>().ok()?)
        }
        None => (line(dir.join("cpu.cfs_quota_us"))?.parse().ok()?, line(dir.join("cpu.cfs_period_us"))?.parse().ok()?),
    };
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

fn memory_limit(dir: &Path) -> Option<u64> {
    let text = line(dir.join("memory.max")).or_else(|| line(dir.join("memory.limit_in_bytes")))?;
    // v1 says "no limit" with a number near 2^63.
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
}
