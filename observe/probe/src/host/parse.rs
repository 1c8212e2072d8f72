//! The texts of /proc, /sys and cgroups taken apart. Nothing here reads a file.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;

use unslow_facts::Disk;

#[derive(Clone, Copy)]
pub struct CpuTimes {
    pub all: u64,
    pub idle: u64,
    pub steal: u64,
}

#[derive(Clone, Copy)]
pub struct DiskTimes {
    pub writes: u64,
    pub write_ms: u64,
    pub busy_ms: u64,
}

/// Bytes that a network device has carried since it is there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    pub received: u64,
    pub sent: u64,
}

#[derive(Clone, Copy, Default)]
pub struct Throttled {
    pub periods: u64,
    pub throttled: u64,
    pub us: u64,
}

/// What /proc/PID/stat says of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stat {
    pub name: String,
    /// The process that started it.
    pub parent: u32,
    /// In user mode and in the kernel.
    pub ticks: u64,
    /// When it was started, since boot.
    pub started_ticks: u64,
    /// Pages it had to wait for a disk for.
    pub major_faults: u64,
    /// The processor that its main thread ran on last.
    pub processor: Option<u32>,
}

/// A line of /proc/net/tcp or tcp6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub local: (IpAddr, u16),
    pub peer: (IpAddr, u16),
    pub listening: bool,
    pub inode: u32,
}

/// A line of /proc/net/tcp or tcp6: addresses are words of 32 bits in the machine's order.
pub fn row(line: &str) -> Option<Row> {
    // Thousands of closed connections linger, and have no process any more.
    const TIME_WAIT: &str = "06";
    const LISTEN: &str = "0A";
    let mut words = line.split_whitespace();
    let (local, peer, state) = (words.nth(1)?, words.next()?, words.next()?);
    if state == TIME_WAIT {
        return None;
    }
    let inode = words.nth(5)?.parse().ok()?;
    Some(Row { local: end(local)?, peer: end(peer)?, listening: state == LISTEN, inode })
}

/// An address and a port in hexadecimal.
fn end(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let bytes: Vec<u8> = (0..ip.len() / 8)
        .filter_map(|i| u32::from_str_radix(ip.get(i * 8..i * 8 + 8)?, 16).ok())
        .flat_map(u32::to_ne_bytes)
        .collect();
    let ip = match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical(),
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

/// The addresses of a network namespace, from the text of its fib_trie: a leaf, and on a line below it that it is local.
pub fn local_v4(fib_trie: &str) -> BTreeSet<IpAddr> {
    let mut leaf = None;
    let mut found = BTreeSet::new();
    for line in fib_trie.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            leaf = address.parse::<IpAddr>().ok();
        } else if line == "/32 host LOCAL" {
            found.extend(leaf);
        }
    }
    found
}

/// The same of IPv6, from the text of its if_inet6.
pub fn local_v6(if_inet6: &str) -> BTreeSet<IpAddr> {
    let words = if_inet6.lines().filter_map(|l| l.split_whitespace().next());
    let address = |hex: &str| (hex.len() == 32).then(|| u128::from_str_radix(hex, 16).ok()).flatten();
    words.filter_map(address).map(|bits| IpAddr::from(bits.to_be_bytes())).collect()
}

/// A process's number as it knows it, from the text of its status: the last of those that NSpid lists. `None` before Linux 4.1.
pub fn own_pid(status: &str) -> Option<u32> {
    status.lines().find_map(|l| l.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

/// The bytes of a `Name:   123 kB` line.
pub fn kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|k| k * 1024)
}

/// The soft limit in the text of `limits`.
pub fn open_files_max(limits: &str) -> Option<u64> {
    limits.lines().find(|l| l.starts_with("Max open files"))?.split_whitespace().nth(3)?.parse().ok()
}

/// How many bits the mask in the text of `status` has.
pub fn cpus_allowed(status: &str) -> Option<u32> {
    let mask = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed:"))?;
    Some(mask.chars().filter_map(|c| c.to_digit(16)).map(u32::count_ones).sum())
}

/// Numbers of the processors in the list in the text of `status`: `0-1,32-39`. Empty where it is not there, or cannot be one.
pub fn processors(status: &str) -> Vec<u32> {
    cpu_list(status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).unwrap_or_default())
}

/// Numbers of the processors of a list as the kernel writes it: `0-1,32-39`.
pub fn cpu_list(list: &str) -> Vec<u32> {
    /// No machine has more.
    const MOST: u32 = 100_000;
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u32>().ok()?..=last.parse::<u32>().ok().filter(|n| *n < MOST)?)
    };
    list.trim().split(',').filter_map(range).flatten().collect()
}

/// On a processor and waiting for one, in ns: the text of a thread's `schedstat`.
pub fn scheduled(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Stolen and busy shares between two samples.
pub fn shares(a: CpuTimes, b: CpuTimes) -> (f64, f64) {
    let all = b.all.saturating_sub(a.all).max(1) as f64;
    (b.steal.saturating_sub(a.steal) as f64 / all, 1.0 - b.idle.saturating_sub(a.idle) as f64 / all)
}

/// A device between two samples; `None` when nothing was written.
pub fn written(a: DiskTimes, b: DiskTimes, name: String, window_s: f64) -> Option<Disk> {
    let writes = b.writes.saturating_sub(a.writes);
    (writes > 0).then(|| Disk {
        name,
        write_await_ms: b.write_ms.saturating_sub(a.write_ms) as f64 / writes as f64,
        busy_share: b.busy_ms.saturating_sub(a.busy_ms) as f64 / 1000.0 / window_s,
    })
}

pub fn cpu_times_of(text: &str) -> Option<CpuTimes> {
    let ticks: Vec<u64> = text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guest is inside user.
    Some(CpuTimes { all: ticks.iter().take(8).sum(), idle: ticks.get(3)? + ticks.get(4)?, steal: *ticks.get(7)? })
}

/// The same of one resource, from the text of its file.
pub fn stalled(resource: &str, text: &str) -> Vec<(String, u64)> {
    let total = |line: &str| -> Option<u64> { line.split("total=").nth(1)?.trim().parse().ok() };
    let kind = |line: &str| format!("{resource}.{}", line.split(' ').next().unwrap_or_default());
    text.lines().filter_map(|line| Some((kind(line), total(line)?))).collect()
}

/// Pairs of lines: names, then numbers.
pub fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|l| l.starts_with(group));
    let at = lines.next()?.split_whitespace().position(|w| w == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// A line of /proc/diskstats.
pub fn disk_times(line: &str) -> Option<(String, DiskTimes)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |i: usize| words.get(i)?.parse().ok();
    let times = DiskTimes { writes: number(7)?, write_ms: number(10)?, busy_ms: number(12)? };
    Some((words.get(2)?.to_string(), times))
}

/// A line of /proc/net/dev; none of its two lines of titles.
pub fn carried(line: &str) -> Option<(String, Carried)> {
    let (name, figures) = line.split_once(':')?;
    let words: Vec<&str> = figures.split_whitespace().collect();
    let number = |i: usize| words.get(i)?.parse().ok();
    Some((name.trim().to_string(), Carried { received: number(0)?, sent: number(8)? }))
}

/// From the text of /proc/PID/stat.
pub fn stat(text: &str) -> Option<Stat> {
    // The name may hold spaces and brackets; what follows the last one is fixed.
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_string();
    let words: Vec<&str> = tail.split_whitespace().collect();
    let number = |i: usize| words.get(i)?.parse::<u64>().ok();
    let parent = words.get(1)?.parse().ok()?;
    let (ticks, started_ticks, major_faults) = (number(11)? + number(12)?, number(19)?, number(9)?);
    let processor = words.get(36).and_then(|w| w.parse().ok());
    Some(Stat { name, parent, ticks, started_ticks, major_faults, processor })
}

/// By the names the servers and their forks give themselves; a server renamed with `exec -a` keeps its comm.
pub fn is_server(name: &str) -> bool {
    ["redis", "valkey", "keydb"].iter().any(|n| name.starts_with(n))
        && !name.contains("-cli")
        && !name.contains("benchm")
}

/// Where a controller of the groups in the text of /proc/PID/cgroup is mounted, and the group's directory there.
pub fn cgroup_places(text: &str, mounts: &str, controller: &str) -> Vec<(PathBuf, PathBuf)> {
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

pub fn throttled_of(text: &str) -> Option<Throttled> {
    let field = |name: &str| -> Option<u64> { text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()) };
    Some(Throttled {
        periods: field("nr_periods ")?,
        throttled: field("nr_throttled ")?,
        us: field("throttled_usec ").or_else(|| field("throttled_time ").map(|ns| ns / 1000))?,
    })
}

/// A quota in cores; v1 says "none" with -1, v2 with `max`.
pub fn cores(quota: &str, period: &str) -> Option<f64> {
    let (quota, period) = (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// v1 says "no limit" with a number near 2^63, v2 with `max`.
pub fn limit_of(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().filter(|n| *n < 1 << 60)
}

/// A `name number` line of memory.stat, memory.events or memory.oom_control.
pub fn group_field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// What a group holds on each memory node, page cache left out, from the text of memory.numa_stat: v2 says bytes, v1 pages of this
/// size (`anon=374 N0=374`).
pub fn anon_by_node(text: &str, page_bytes: u64) -> Vec<(u32, u64)> {
    let line = |prefix: &str| text.lines().find_map(|l| l.strip_prefix(prefix));
    let (rest, unit) = match (line("anon "), line("anon=")) {
        (Some(rest), _) => (rest, 1),
        (None, Some(rest)) => (rest, page_bytes),
        (None, None) => return Vec::new(),
    };
    let node = |word: &str| -> Option<(u32, u64)> {
        let (number, held) = word.strip_prefix('N')?.split_once('=')?;
        Some((number.parse().ok()?, held.parse::<u64>().ok()?.saturating_mul(unit)))
    };
    rest.split_whitespace().filter_map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_network_device_has_carried() {
        let line = "  eth0: 12345678  900    0    0    0     0          0         0 87654321  800    0    0    0     0       0          0";
        let expected = Carried { received: 12_345_678, sent: 87_654_321 };
        assert_eq!(carried(line), Some(("eth0".to_string(), expected)));
        for title in ["Inter-|   Receive                 |  Transmit", " face |bytes    packets errs|bytes packets", ""]
        {
            assert_eq!(carried(title), None, "{title}");
        }
    }

    #[test]
    fn reads_lines_of_the_tables_of_sockets() {
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let rest = "00000000:00000000 00:00000000 00000000     0        0 15201 1 0 20 4 30 10 -1";
        let expected = Row {
            local: ([10, 0, 0, 2].into(), 58068),
            peer: ([10, 0, 0, 1].into(), 6379),
            listening: false,
            inode: 15201,
        };
        let v4 = format!("   1: {}:E2D4 {}:18EB 01 {rest}", word([10, 0, 0, 2]), word([10, 0, 0, 1]));
        assert_eq!(row(&v4), Some(expected));
        let mapped = |last: [u8; 4]| format!("{0}{0}{1}{2}", word([0; 4]), word([0, 0, 255, 255]), word(last));
        let v6 = format!("   1: {}:E2D4 {}:18EB 01 {rest}", mapped([10, 0, 0, 2]), mapped([10, 0, 0, 1]));
        assert_eq!(row(&v6), Some(expected));
        let listening = format!("   0: {}:18EB {}:0000 0A {rest}", word([0; 4]), word([0; 4]));
        let any: IpAddr = [0, 0, 0, 0].into();
        assert_eq!(row(&listening), Some(Row { local: (any, 6379), peer: (any, 0), listening: true, inode: 15201 }));
        for odd in [
            "",
            "  sl  local_address rem_address   st tx_queue",
            "1: 0:1 0:1 2",
            "   1: \u{e9}:1 \u{e9}\u{e9}:18EB 01 0 0 0 0 0 7",
            v4.replace(" 01 0", " 06 0").as_str(),
        ] {
            assert_eq!(row(odd), None, "{odd}");
        }
    }

    #[test]
    fn the_addresses_of_a_network_namespace_are_those_it_calls_local() {
        let trie = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n\
                    \x20    +-- 127.0.0.0/8 2 0 2\n        |-- 127.0.0.0\n           /8 host LOCAL\n\
                    \x20       |-- 127.0.0.1\n           /32 host LOCAL\n     +-- 198.18.0.0/20 2 0 2\n\
                    \x20       |-- 198.18.0.0\n           /20 link UNICAST\n        |-- 198.18.1.1\n\
                    \x20          /32 host LOCAL\n        |-- 198.18.15.255\n           /32 link BROADCAST\n";
        let expected = ["127.0.0.1", "198.18.1.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(local_v4(trie), BTreeSet::from(expected));
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000002 04 40 00 82 eth0\n";
        let expected = ["::1", "fd00::2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(local_v6(v6), BTreeSet::from(expected));
        assert!(local_v4("").is_empty() && local_v6("x\n\u{e9}\n").is_empty());
    }

    #[test]
    fn a_process_in_a_container_has_a_number_of_its_own() {
        assert_eq!(own_pid("Name:\tredis-server\nNSpid:\t4711\t1\n"), Some(1));
        assert_eq!(own_pid("NSpid:\t4711\n"), Some(4711));
        assert_eq!(own_pid("Name:\tredis-server\n"), None);
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
    fn a_threads_time_on_a_processor_stands_before_its_waiting() {
        assert_eq!(scheduled("123 45 6\n"), Some((123, 45)));
        assert_eq!((scheduled("123"), scheduled("")), (None, None));
    }

    #[test]
    fn process_names_may_contain_blanks_and_brackets() {
        let rest = "S 1 1 1 0 -1 4194560 1 0 6 0 250 50 0 0 20 0 4 0 100 1000 10";
        for name in ["redis-server", "a b", "x) S 1 (y", ""] {
            let name_of = name.to_string();
            let of = |processor: Option<u32>| Stat {
                name: name_of.clone(),
                parent: 1,
                ticks: 300,
                started_ticks: 100,
                major_faults: 6,
                processor,
            };
            assert_eq!(stat(&format!("77 ({name}) {rest}")), Some(of(None)), "{name}");
            // The whole line: the processor is the 39th of its fields.
            let whole = format!("77 ({name}) {rest} 0 0 0 0 0 0 0 0 0 0 0 0 0 17 3 0 0");
            assert_eq!(stat(&whole), Some(of(Some(3))), "{name}");
        }
        assert_eq!(stat("77 (ended) Z 1 1"), None);
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
        assert_eq!(processors(status), (0..=1).chain(32..=39).collect::<Vec<u32>>());
        assert_eq!(processors("Cpus_allowed_list:\t3\n"), [3]);
        assert!(processors("").is_empty() && processors("Cpus_allowed_list:\t0-4294967295\n").is_empty());
        for (quota, period, expected) in
            [("150000", "100000", Some(1.5)), ("max", "100000", None), ("-1", "100000", None), ("100000", "0", None)]
        {
            assert_eq!(cores(quota, period), expected, "{quota} {period}");
        }
        assert_eq!(["1073741824", "max", "9223372036854771712"].map(limit_of), [Some(1 << 30), None, None]);
    }

    #[test]
    fn memory_of_a_group_is_told_by_node_in_both_versions() {
        let v2 = "anon N0=4096 N1=8192\nfile N0=1 N1=2\nanon_thp N0=0 N1=0\n";
        assert_eq!(anon_by_node(v2, 4096), [(0, 4096), (1, 8192)]);
        let v1 = "total=9 N0=9\nfile=1 N0=1\nanon=374 N0=370 N1=4\nhierarchical_anon=1 N0=1\n";
        assert_eq!(anon_by_node(v1, 4096), [(0, 370 * 4096), (1, 4 * 4096)]);
        assert!(anon_by_node("", 4096).is_empty() && anon_by_node("anon x N=1 N1\n", 4096).is_empty());
    }

    #[test]
    fn fields_of_a_cgroups_memory_are_found_by_their_whole_name() {
        let text = "oom 5\noom_kill 2\nmax 9\nbad x\n";
        let fields = ["oom", "oom_kill", "max", "ma", "bad", "low"].map(|name| group_field(text, name));
        assert_eq!(fields, [Some(5), Some(2), Some(9), None, None, None]);
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
}
