//! What is made of the texts of /proc, /sys and cgroups. Nothing here reads a file.
//!
//! The crate procfs reads the files it knows; one that it cannot read counts as missing, and takes no other with it.
//! Texts that it does not know are taken apart here, and so are /proc/meminfo, /proc/net/snmp and /proc/pressure:
//! procfs refuses the whole file where one field is missing, as in gVisor and on older kernels.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use procfs::net::{TcpNetEntries, TcpState};
use procfs::process::{LimitValue, Limits};
use procfs::{CpuTime, FromBufReadSI, MountEntry, ProcessCGroup};
use unslow_process::Status;

#[derive(Clone, Copy)]
pub struct CpuTimes {
    pub all: u64,
    pub idle: u64,
    pub steal: u64,
}

#[derive(Clone, Copy, Default)]
pub struct Throttled {
    pub periods: u64,
    pub throttled: u64,
    pub us: u64,
}

/// A socket in a table of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub local: (IpAddr, u16),
    pub peer: (IpAddr, u16),
    pub listening: bool,
    pub inode: u32,
}

/// The sockets in the text of `net/tcp` or `net/tcp6`, without the thousands of closed connections that linger and
/// belong to no process any more.
pub fn rows(table: &str) -> Vec<Row> {
    let all = TcpNetEntries::from_buf_read(table.as_bytes(), procfs::current_system_info());
    let end = |at: SocketAddr| (at.ip().to_canonical(), at.port());
    let live = all.map_or(Vec::new(), |table| table.0).into_iter().filter(|e| e.state != TcpState::TimeWait);
    live.map(|e| Row {
        local: end(e.local_address),
        peer: end(e.remote_address),
        listening: e.state == TcpState::Listen,
        inode: e.inode as u32,
    })
    .collect()
}

/// The addresses of a network namespace, from the text of its fib_trie: a leaf, and on a line below it that it is
/// local.
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

/// A process's number as it knows it: the last of those that NSpid lists. `None` before Linux 4.1.
pub fn own_pid(status: &Status) -> Option<u32> {
    status.nspid.as_ref()?.last().map(|pid| *pid as u32)
}

/// The bytes of a `Name:   123 kB` line.
pub fn kib(text: &str, field: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(field))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|k| k * 1024)
}

/// The soft limit; `None` without one.
pub fn open_files_max(limits: &Limits) -> Option<u64> {
    match limits.max_open_files.soft_limit {
        LimitValue::Value(files) => Some(files),
        LimitValue::Unlimited => None,
    }
}

/// How many processors it may use.
pub fn cpus_allowed(status: &Status) -> Option<u32> {
    status.cpus_allowed.as_ref().map(|masks| masks.iter().map(|mask| mask.count_ones()).sum())
}

/// Numbers of the processors it may use. Empty where the kernel does not tell.
pub fn processors(status: &Status) -> Vec<u32> {
    status.cpus_allowed_list.iter().flatten().flat_map(|(first, last)| *first..=*last).collect()
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

/// Stolen and busy shares between two samples.
pub fn shares(a: CpuTimes, b: CpuTimes) -> (f64, f64) {
    let all = b.all.saturating_sub(a.all).max(1) as f64;
    (b.steal.saturating_sub(a.steal) as f64 / all, 1.0 - b.idle.saturating_sub(a.idle) as f64 / all)
}

/// Guest time is inside that of users. Kernels before 2.6.11 do not count stolen time.
pub fn cpu_times_of(total: &CpuTime) -> Option<CpuTimes> {
    let idle = total.idle + total.iowait?;
    let busy = total.user + total.nice + total.system + total.irq? + total.softirq?;
    let steal = total.steal?;
    Some(CpuTimes { all: busy + idle + steal, idle, steal })
}

/// `some` and `full` of a resource, in us, from the text of its file. Line by line: before Linux 5.13 there is no
/// `full` of processors, and without it procfs reads nothing.
pub fn stalled(resource: &str, text: &str) -> Vec<(String, u64)> {
    let kind = |line: &str| format!("{resource}.{}", line.split(' ').next().unwrap_or_default());
    text.lines().filter_map(|line| Some((kind(line), procfs::parse_pressure_record(line).ok()?.total))).collect()
}

/// Pairs of lines: names, then numbers. procfs does not know TcpExt.
pub fn counter(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|l| l.starts_with(group));
    let at = lines.next()?.split_whitespace().position(|w| w == name)?;
    lines.next()?.split_whitespace().nth(at)?.parse().ok()
}

/// By the names the servers and their forks give themselves; a server renamed with `exec -a` keeps its comm.
pub fn is_server(name: &str) -> bool {
    ["redis", "valkey", "keydb"].iter().any(|n| name.starts_with(n))
        && !name.contains("-cli")
        && !name.contains("benchm")
}

/// Where a controller of a process's groups is mounted, and the group's directory there.
pub fn cgroup_places(groups: &[ProcessCGroup], mounts: &[MountEntry], controller: &str) -> Vec<(PathBuf, PathBuf)> {
    let mount = |kind: &str, option: Option<&str>| {
        let fits = |m: &&MountEntry| m.fs_vfstype == kind && option.is_none_or(|o| m.fs_mntops.contains_key(o));
        mounts.iter().find(fits).map(|m| PathBuf::from(&m.fs_file))
    };
    let place = |group: &ProcessCGroup| {
        let base = match &group.controllers[..] {
            [] => mount("cgroup2", None)?,
            all if all.iter().any(|c| c == controller) => mount("cgroup", Some(controller))?,
            _ => return None,
        };
        let dir = base.join(group.pathname.trim_start_matches('/'));
        Some((base, dir))
    };
    groups.iter().filter_map(place).collect()
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

/// What a group holds on each memory node, page cache left out, from the text of memory.numa_stat: v2 says bytes, v1
/// pages of this size (`anon=374 N0=374`).
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
    use procfs::{FromRead, KernelStats, ProcessCGroups};

    use super::*;

    #[test]
    fn sockets_are_read_from_the_tables_of_both_families() {
        let word = |octets: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(octets));
        let rest = "00000000:00000000 00:00000000 00000000     0        0 15201 1 0 20 4 30 10 -1";
        let table = |rows: &[&str]| format!("  sl  local_address rem_address   st\n{}\n", rows.join("\n"));
        let expected = Row {
            local: ([10, 0, 0, 2].into(), 58068),
            peer: ([10, 0, 0, 1].into(), 6379),
            listening: false,
            inode: 15201,
        };
        let v4 = format!("   1: {}:E2D4 {}:18EB 01 {rest}", word([10, 0, 0, 2]), word([10, 0, 0, 1]));
        let lingering = v4.replace(" 01 0", " 06 0");
        assert_eq!(rows(&table(&[lingering.as_str(), v4.as_str()])), [expected]);
        let mapped = |last: [u8; 4]| format!("{0}{0}{1}{2}", word([0; 4]), word([0, 0, 255, 255]), word(last));
        let v6 = format!("   1: {}:E2D4 {}:18EB 01 {rest}", mapped([10, 0, 0, 2]), mapped([10, 0, 0, 1]));
        assert_eq!(rows(&table(&[v6.as_str()])), [expected]);
        let listening = format!("   0: {}:18EB {}:0000 0A {rest}", word([0; 4]), word([0; 4]));
        let any: IpAddr = [0, 0, 0, 0].into();
        assert_eq!(
            rows(&table(&[listening.as_str()])),
            [Row { local: (any, 6379), peer: (any, 0), listening: true, inode: 15201 }]
        );
        assert!(rows("").is_empty() && rows(&table(&["1: 0:1 0:1 2"])).is_empty());
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
        let v6 = "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000002 04 40 00 82 \
                  eth0\n";
        let expected = ["::1", "fd00::2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        assert_eq!(local_v6(v6), BTreeSet::from(expected));
        assert!(local_v4("").is_empty() && local_v6("x\n\u{e9}\n").is_empty());
    }

    /// What every kernel says, and these lines.
    fn status(more: &str) -> Status {
        let always = "Name:\tredis-server\nState:\tS (sleeping)\nTgid:\t4711\nPid:\t4711\nPPid:\t1\nTracerPid:\t0\n\
                      Uid:\t1\t1\t1\t1\nGid:\t1\t1\t1\t1\nFDSize:\t64\nGroups:\t \nThreads:\t4\nSigQ:\t0/9\n\
                      SigPnd:\t0\nShdPnd:\t0\nSigBlk:\t0\nSigIgn:\t0\nSigCgt:\t0\nCapInh:\t0\nCapPrm:\t0\nCapEff:\t0\n";
        Status::from_read(format!("{always}{more}").as_bytes()).unwrap()
    }

    #[test]
    fn a_process_in_a_container_has_a_number_of_its_own() {
        let own = |more: &str| own_pid(&status(more));
        assert_eq!([own("NSpid:\t4711\t1\n"), own("NSpid:\t4711\n"), own("")], [Some(1), Some(4711), None]);
    }

    #[test]
    fn cpu_shares_are_computed_between_two_samples() {
        let times = |total: &str| {
            let text = format!("cpu  {total}\ncpu0 1 1 1 1 1 1 1 1 1 1\nctxt 1\nbtime 1\nprocesses 1\n");
            cpu_times_of(&KernelStats::from_buf_read(text.as_bytes(), procfs::current_system_info()).unwrap().total)
        };
        let before = times("100 0 50 800 40 0 0 10 7 0").unwrap();
        assert_eq!((before.all, before.idle, before.steal), (1000, 840, 10));
        let after = times("160 0 60 890 60 0 0 30 90 0").unwrap();
        let (steal, busy) = shares(before, after);
        assert!((steal - 0.1).abs() < 1e-9 && (busy - 0.45).abs() < 1e-9, "{steal} {busy}");
        // Counters may go backwards when processors come and go; shares stay between 0 and 1.
        let (steal, busy) = shares(after, before);
        assert_eq!((steal, busy), (0.0, 1.0));
        assert!(times("1 2 3 4").is_none());
    }

    #[test]
    fn servers_are_known_by_their_names() {
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
    fn an_unlimited_number_of_files_is_none() {
        let mut limits = Limits::from_file("/proc/self/limits").unwrap();
        for (soft_limit, expected) in [(LimitValue::Value(1024), Some(1024)), (LimitValue::Unlimited, None)] {
            limits.max_open_files.soft_limit = soft_limit;
            assert_eq!(open_files_max(&limits), expected);
        }
    }

    #[test]
    fn processors_are_counted_and_numbered() {
        let some = status("Cpus_allowed:\tff,00000003\nCpus_allowed_list:\t0-1,32-39\n");
        assert_eq!(cpus_allowed(&some), Some(10));
        assert_eq!(processors(&some), (0..=1).chain(32..=39).collect::<Vec<u32>>());
        assert_eq!(processors(&status("Cpus_allowed_list:\t3\n")), [3]);
        assert_eq!((cpus_allowed(&status("")), processors(&status(""))), (None, Vec::new()));
    }

    #[test]
    fn quotas_and_limits_of_both_cgroup_versions_may_be_missing() {
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
            let groups = ProcessCGroups::from_read(text.as_bytes()).unwrap();
            let mounts = Vec::<MountEntry>::from_read(mounts.as_bytes()).unwrap();
            assert_eq!(cgroup_places(&groups.0, &mounts, controller), expected, "{controller} of {text:?}");
        }
    }

    #[test]
    fn pressure_and_tcp_counters_are_found_by_name() {
        let text =
            "some avg10=0.00 avg60=1.50 avg300=0.50 total=12345\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=678\n";
        assert_eq!(stalled("io", text), [("io.some".to_string(), 12_345), ("io.full".to_string(), 678)]);
        // Before Linux 5.13.
        let some = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\n";
        assert_eq!(stalled("cpu", some), [("cpu.some".to_string(), 9)]);
        assert!(stalled("cpu", "some avg10=0.00\n").is_empty());
        let snmp = "Ip: Forwarding OutSegs\nIp: 1 99\nTcp: RtoMin OutSegs RetransSegs\nTcp: 200 5000 -7\n";
        assert_eq!(counter(snmp, "Tcp:", "OutSegs"), Some(5000));
        assert_eq!([counter(snmp, "Tcp:", "RetransSegs"), counter(snmp, "Udp:", "OutSegs")], [None, None]);
    }
}
