//! Rules about memory: what holds it, what bounds it, what will fill it. Facts by hand, each with its look-alikes.

mod common;
#[path = "common/hand.rs"]
mod hand;

use common::{answer, finding, node, seen};
use hand::{HERE, alone, before, command, commands, machine, server, text};
use unslow_doctor::{Answered, Confidence, Currency, Severity, diagnose};
use unslow_facts::{ClientRow, Clients, Facts, Host, MemoryGroup, Node, Process};
use unslow_topology::{Info, Role};

use Answered::{Absent, NotHere, Unknown};

/// Every rule of this file.
const ALL: &[&str] = &[
    "fragmentation",
    "defrag_running",
    "swap",
    "container_memory",
    "memory_pressure",
    "no_memory_limit",
    "growth_without_ttl",
    "client_memory",
    "copy_on_write",
    "script_cache",
    "tracking_table",
    "rehash",
];

/// Adds to what a node said at the beginning, at the end, or both.
fn say(node: &mut Node, at_first: &str, at_last: &str) {
    for (sample, more) in [(&mut node.first, at_first), (&mut node.last, at_last)] {
        sample.as_mut().unwrap().info.0.extend(Info::parse(more).0);
    }
}

/// A server that an application uses, which said this at both ends of the window.
fn used(more: &str) -> Node {
    let mut node = server("7.0.15", &command("set", 1000, 1000, 0, 0));
    say(&mut node, more, more);
    node
}

fn configure(node: &mut Node, all: &[(&str, &str)]) {
    node.config = seen(all.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
}

/// The machine of a server, 16 GB with half of it free.
fn on(node: Node, process: Process, change: impl Fn(&mut Host)) -> Facts {
    let mut host = Host {
        memory_bytes: Some(16_000_000_000),
        memory_available_bytes: Some(8_000_000_000),
        swap_in_pages: Some(0),
        pressure: [("memory.some".to_string(), 0.0), ("memory.full".to_string(), 0.0)].into(),
        ..machine(process)
    };
    change(&mut host);
    Facts { hosts: vec![host], ..alone(node) }
}

#[test]
fn a_small_used_server_has_none_of_it() {
    let facts = on(used("used_memory_startup:1000000\r\nmaxmemory_policy:noeviction\r\n"), Process::default(), |_| {});
    let report = diagnose(&facts, &ALL.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(report.findings.is_empty(), "{:?}", report.findings.iter().map(|f| &f.title).collect::<Vec<_>>());
}

const GAPS: &str = "mem_allocator:jemalloc-5.3.0\r\nallocator_frag_ratio:1.60\r\nallocator_frag_bytes:40000000\r\n\
                    allocator_allocated:66000000\r\nallocator_active:106000000\r\nmaxmemory:200000000\r\n\
                    used_memory_peak:85000000\r\n";

#[test]
fn gaps_count_by_their_bytes_and_not_after_a_peak() {
    let gaps = |more: &str| used(&format!("{GAPS}{more}"));
    let mut fragmented = gaps("");
    configure(&mut fragmented, &[("activedefrag", "no"), ("save", "3600 1"), ("appendonly", "no")]);
    let found = finding(&alone(fragmented.clone()), "fragmentation");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Capacity, Confidence::Proven));
    assert!((found.impact.value - 0.2).abs() < 1e-9, "{:?}", found.impact);
    let ways = commands(&found);
    assert!(
        ways.contains("CONFIG SET activedefrag yes") && ways.contains("active-defrag-ignore-bytes 10000000"),
        "{ways}"
    );
    assert!(ways.contains("SHUTDOWN SAVE"), "{ways}");
    // It is on already.
    configure(&mut fragmented, &[("activedefrag", "yes"), ("save", ""), ("appendonly", "no")]);
    let ways = commands(&finding(&alone(fragmented), "fragmentation"));
    assert!(
        !ways.contains("activedefrag") && !ways.contains("SHUTDOWN") && ways.contains("REPLICAOF 10.0.0.1 6379"),
        "{ways}"
    );
    let answer = |node: Node| answer(&alone(node), "fragmentation");
    assert_eq!(answer(gaps("maxmemory:4000000000\r\n")), Absent, "40 MB of 4 GB");
    assert_eq!(answer(gaps("allocator_frag_ratio:1.20\r\n")), Absent);
    let after_peak = gaps("used_memory_peak:800000000\r\n");
    assert!(text(&alone(after_peak.clone()), "fragmentation").contains("after a peak"));
    assert_eq!(answer(after_peak), Absent);
    let mut burst = gaps("");
    say(&mut burst, "allocator_frag_ratio:1.01\r\nallocator_frag_bytes:900000\r\n", "");
    assert_eq!(answer(burst), Absent, "not at the beginning of the window");
    // The C library's allocator says 1.00 whatever is so.
    let libc = gaps("mem_allocator:libc\r\nallocator_frag_ratio:1.00\r\nallocator_frag_bytes:0\r\n");
    assert!(text(&alone(libc.clone()), "fragmentation").contains("libc"));
    assert_eq!((answer(libc), answer(server("7.0.15", ""))), (Unknown, Unknown));
}

#[test]
fn packing_costs_its_effort_for_the_time_that_it_runs() {
    let packs = |time_ms: u64, moved: u64| {
        let mut node = used("active_defrag_running:25\r\n");
        let zero = "active_defrag_hits:0\r\nactive_defrag_misses:0\r\ntotal_active_defrag_time:0\r\n";
        let end = format!(
            "active_defrag_hits:{moved}\r\nactive_defrag_misses:5000\r\ntotal_active_defrag_time:{time_ms}\r\n\
             used_cpu_user_main_thread:5\r\n"
        );
        say(&mut node, zero, &end);
        configure(&mut node, &[("active-defrag-cycle-max", "25")]);
        node
    };
    let found = finding(&alone(packs(8000, 5000)), "defrag_running");
    assert!((found.impact.value - 0.2).abs() < 1e-9 && found.confidence == Confidence::Likely, "{:?}", found.impact);
    let back = "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET active-defrag-cycle-max 25";
    assert!(found.remedies[0].exact && found.remedies[0].rollback == back, "{:?}", found.remedies[0]);
    // It cannot have taken more than the main thread used.
    let mut little = packs(8000, 5000);
    say(&mut little, "", "used_cpu_user_main_thread:0.5\r\n");
    assert_eq!(answer(&alone(little), "defrag_running"), Absent);
    // Nothing to move: a lower ceiling would only draw it out.
    let idle = finding(&alone(packs(8000, 3)), "defrag_running");
    assert!(idle.title.contains("moved 3") && !commands(&idle).contains("cycle-max"), "{}", idle.title);
    assert_eq!(answer(&alone(packs(800, 5000)), "defrag_running"), Absent, "for a tenth of the window");
    let mut ended = packs(8000, 5000);
    say(&mut ended, "", "active_defrag_running:0\r\n");
    assert_eq!(answer(&alone(ended), "defrag_running"), Absent);
    assert_eq!(answer(&alone(server("7.0.15", "")), "defrag_running"), Unknown);
}

#[test]
fn swapped_pages_count_when_the_server_waits_for_them() {
    let swapped = |faults: Option<u64>, read: u64| {
        let process = Process { swap_bytes: Some(40_000_000), major_faults: faults, ..Process::default() };
        on(used(""), process, |host| host.swap_in_pages = Some(read))
    };
    let found = finding(&swapped(Some(5000), 6000), "swap");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Capacity, Confidence::Likely));
    assert!((found.impact.value - 0.05).abs() < 1e-9, "500 a second x 0.1 ms: {:?}", found.impact);
    assert_eq!(answer(&swapped(Some(0), 0), "swap"), Absent, "cold pages");
    assert_eq!(answer(&swapped(Some(3), 6000), "swap"), Absent, "another's pages");
    assert_eq!(finding(&swapped(None, 6000), "swap").severity, Severity::Risk, "facts of before they were counted");
    let none = on(used(""), Process { swap_bytes: Some(0), ..Process::default() }, |host| host.swap_in_pages = Some(9));
    assert_eq!((answer(&none, "swap"), answer(&alone(used("")), "swap")), (Absent, Unknown));
}

/// A container of 1 GB.
fn contained(info: &str, group: MemoryGroup) -> Facts {
    let process = Process { memory_limit_bytes: Some(1_000_000_000), memory_group: Some(group), ..Process::default() };
    on(used(info), process, |_| {})
}

#[test]
fn a_container_is_full_of_what_is_held_and_not_of_page_cache() {
    let group = |used_bytes: u64, file_bytes: u64, hits: u64| MemoryGroup {
        used_bytes,
        file_bytes: Some(file_bytes),
        limit_hits: Some(hits),
        oom_kills: Some(0),
        stalled_share: None,
        ..MemoryGroup::default()
    };
    let limit = "maxmemory:700000000\r\nmaxmemory_policy:noeviction\r\n";
    let judge = |group: MemoryGroup| finding(&contained(limit, group), "container_memory");
    let near = judge(group(960_000_000, 10_000_000, 0));
    assert_eq!((near.severity, near.impact.currency), (Severity::Risk, Currency::Risk));
    assert!(commands(&near).contains("docker update --memory 1300000000"), "{}", commands(&near));
    assert!(!commands(&near).contains("CONFIG SET"), "maxmemory is low enough: {}", commands(&near));
    let at_limit = judge(group(999_000_000, 10_000_000, 40));
    assert_eq!((at_limit.severity, at_limit.impact.currency), (Severity::Medium, Currency::Risk));
    let stalled = judge(MemoryGroup { stalled_share: Some(0.2), ..group(999_000_000, 10_000_000, 40) });
    assert_eq!((stalled.impact.currency, stalled.confidence), (Currency::Capacity, Confidence::Proven));
    let killed = judge(MemoryGroup { oom_kills: Some(1), ..group(500_000_000, 0, 40) });
    assert_eq!(killed.severity, Severity::High);
    // The limit of a pod, which its other containers fill as well.
    let pod = judge(MemoryGroup { above: 1, ..group(960_000_000, 10_000_000, 0) });
    assert!(pod.evidence.iter().any(|e| e.source.contains("above that of pid 7")), "{:?}", pod.evidence);
    assert!(near.evidence.iter().all(|e| !e.source.contains("above")), "{:?}", near.evidence);
    // Most groups that write files stand at their limit all the time.
    let cache = contained(limit, group(1_000_000_000, 600_000_000, 9000));
    assert_eq!(answer(&cache, "container_memory"), Absent);
    assert!(text(&cache, "container_memory").contains("40 %"), "{}", text(&cache, "container_memory"));
    // maxmemory lets it get there; beside forks sooner.
    let loose = contained("maxmemory:950000000\r\n", group(300_000_000, 0, 0));
    let loose = finding(&loose, "container_memory");
    assert!(loose.severity == Severity::Risk && commands(&loose).contains("CONFIG SET maxmemory 750000000"));
    let tight = |more: &str| contained(&format!("maxmemory:850000000\r\n{more}"), group(300_000_000, 0, 0));
    assert_eq!(answer(&tight(""), "container_memory"), Absent);
    assert_eq!(answer(&tight("connected_slaves:1\r\n"), "container_memory"), Answered::Present);
    let free = on(used(""), Process::default(), |_| {});
    assert_eq!((answer(&free, "container_memory"), answer(&alone(used("")), "container_memory")), (NotHere, Unknown));
}

#[test]
fn a_machine_is_short_only_where_little_is_available() {
    let stalls = |some: f64, available: u64, faults: u64| {
        let process = Process { major_faults: Some(faults), ..Process::default() };
        on(used(""), process, |host| {
            host.memory_available_bytes = Some(available);
            host.pressure.insert("memory.some".into(), some);
        })
    };
    let short = finding(&stalls(0.2, 500_000_000, 0), "memory_pressure");
    assert_eq!((short.impact.currency, short.confidence), (Currency::Capacity, Confidence::Likely));
    assert!(short.subjects == [HERE] && !short.remedies.is_empty());
    assert_eq!(finding(&stalls(0.2, 500_000_000, 80), "memory_pressure").confidence, Confidence::Proven);
    assert_eq!(answer(&stalls(0.2, 8_000_000_000, 0), "memory_pressure"), Absent, "another's container");
    assert_eq!(answer(&stalls(0.01, 500_000_000, 0), "memory_pressure"), Absent);
    assert_eq!(answer(&alone(used("")), "memory_pressure"), Unknown);
    // A machine without one of our servers says nothing of them.
    let mut elsewhere = stalls(0.2, 500_000_000, 0);
    elsewhere.hosts[0].processes.clear();
    assert_eq!(answer(&elsewhere, "memory_pressure"), Unknown);
}

#[test]
fn without_a_limit_the_machine_is_the_limit() {
    let grows = |resident: u64, per_window: u64, more: &str| {
        let mut node = used(&format!("total_system_memory:1000000000\r\nused_memory_rss:{resident}\r\n{more}"));
        say(&mut node, "used_memory:80000000\r\n", &format!("used_memory:{}\r\n", 80_000_000 + per_window));
        alone(node)
    };
    let large = finding(&grows(600_000_000, 0, "maxmemory_policy:noeviction\r\n"), "no_memory_limit");
    assert_eq!(large.severity, Severity::Risk);
    assert!(commands(&large).contains("CONFIG SET maxmemory 750000000") && commands(&large).contains("allkeys-lru"));
    // 700 MB left at 5 MB a second.
    let soon = finding(&grows(300_000_000, 50_000_000, ""), "no_memory_limit");
    assert!(soon.severity == Severity::Risk && soon.title.contains("full in 2 min"), "{}", soon.title);
    for (facts, why) in [
        (grows(300_000_000, 10_000, ""), "not for hours"),
        (grows(100_000_000, 50_000_000, ""), "small beside its machine"),
        (grows(300_000_000, 50_000_000, "loading:1\r\n"), "it is being filled"),
        (grows(600_000_000, 0, "maxmemory:500000000\r\n"), "it has a limit"),
    ] {
        assert_eq!(answer(&facts, "no_memory_limit"), Absent, "{why}");
    }
    assert_eq!(answer(&grows(600_000_000, 0, "role:slave\r\n"), "no_memory_limit"), NotHere);
    // In a container its limit counts.
    let group = MemoryGroup { used_bytes: 600_000_000, ..MemoryGroup::default() };
    let inside = contained("used_memory_rss:600000000\r\n", group);
    assert!(finding(&inside, "no_memory_limit").title.contains("the container's limit of 1 GB"));
}

#[test]
fn keys_without_a_ttl_fill_what_may_not_be_evicted() {
    let fills = |policy: &str, lasting: u64, per_window: u64, more: &str| {
        let mut node = used(&format!("maxmemory:200000000\r\nmaxmemory_policy:{policy}\r\n{more}"));
        let end = format!(
            "used_memory:{}\r\ndb0:keys=11000,expires={},avg_ttl=0\r\n",
            80_000_000 + per_window,
            1000 - lasting
        );
        say(&mut node, "used_memory:80000000\r\ndb0:keys=10000,expires=0,avg_ttl=0\r\n", &end);
        alone(node)
    };
    let found = finding(&fills("noeviction", 1000, 10_000_000, ""), "growth_without_ttl");
    assert!(found.severity == Severity::Risk && found.title.contains("110 s"), "{}", found.title);
    assert!(commands(&found).contains("allkeys-lru"));
    let volatile = finding(&fills("volatile-lru", 1000, 10_000_000, ""), "growth_without_ttl");
    assert!(!commands(&volatile).contains("allkeys-lru"));
    for (facts, why) in [
        (fills("allkeys-lru", 1000, 10_000_000, ""), "a cache fills up and evicts"),
        (fills("noeviction", 100, 10_000_000, ""), "they have a TTL"),
        (fills("noeviction", 1000, 10_000, ""), "not for hours"),
        (fills("noeviction", 1000, 119_000_000, ""), "it is full already"),
    ] {
        assert_eq!(answer(&facts, "growth_without_ttl"), Absent, "{why}");
    }
    // Buffers and not keys.
    let mut buffers = fills("noeviction", 1000, 10_000_000, "");
    say(&mut buffers.nodes[0], "mem_clients_normal:0\r\n", "mem_clients_normal:9000000\r\n");
    assert_eq!(answer(&buffers, "growth_without_ttl"), Absent);
    assert_eq!(answer(&alone(used("")), "growth_without_ttl"), NotHere, "no limit");
    assert_eq!(answer(&fills("noeviction", 1000, 10_000_000, "role:slave\r\n"), "growth_without_ttl"), NotHere);
}

#[test]
fn a_server_that_has_always_grown_at_this_pace_is_believed_for_an_hour() {
    // 80 MB in 20,000 s is 4 kB a second, and so is the window's pace.
    let grown = |uptime_s: u64| {
        let mut node =
            used(&format!("maxmemory:86000000\r\nmaxmemory_policy:noeviction\r\nuptime_in_seconds:{uptime_s}\r\n"));
        say(
            &mut node,
            "used_memory:80000000\r\ndb0:keys=10000,expires=0\r\n",
            "used_memory:80040000\r\ndb0:keys=10010,expires=0\r\n",
        );
        alone(node)
    };
    assert!(finding(&grown(20_000), "growth_without_ttl").title.contains("25 min"));
    assert_eq!(answer(&grown(2_000_000), "growth_without_ttl"), Absent, "it has grown far slower so far");
}

#[test]
fn buffers_of_clients_count_as_a_share_of_what_there_is() {
    let row = |flags: &str, query_bytes: u64, output_bytes: u64| ClientRow {
        id: 7,
        address: "10.0.0.9:5".into(),
        flags: flags.into(),
        query_bytes,
        output_bytes,
        ..ClientRow::default()
    };
    let held = |more: &str, rows: Vec<ClientRow>| {
        let mut node = used(&format!("mem_clients_normal:40000000\r\nmaxmemory:200000000\r\n{more}"));
        node.clients = seen(Clients { total: 51, listed: 51, notable: rows, ..Clients::default() });
        configure(
            &mut node,
            &[("maxmemory-clients", "0"), ("client-output-buffer-limit", "normal 0 0 0 slave 1 1 1 pubsub 1 1 1")],
        );
        node
    };
    let queries = finding(&alone(held("", vec![row("N", 30_000_000, 0)])), "client_memory");
    assert!((queries.impact.value - 0.2).abs() < 1e-9 && queries.title.contains("begun to send"), "{}", queries.title);
    let ways = commands(&queries);
    assert!(ways.contains("CLIENT KILL ID 7") && ways.contains("CONFIG SET maxmemory-clients 10%"), "{ways}");
    let replies = commands(&finding(&alone(held("", vec![row("N", 0, 30_000_000)])), "client_memory"));
    assert!(replies.contains("normal 10000000 5000000 60"), "{replies}");
    let judge = |node: Node| answer(&alone(node), "client_memory");
    assert_eq!(judge(held("", vec![row("P", 0, 30_000_000)])), Absent, "subscribers are another rule's");
    assert_eq!(judge(held("maxmemory:4000000000\r\n", Vec::new())), Absent, "1 %");
    let mut sent = held("", Vec::new());
    say(&mut sent, "mem_clients_normal:50000\r\n", "");
    assert_eq!(judge(sent), Absent, "a reply on its way");
    // Replies that share a value's memory are counted in full, and cannot be more than what is used.
    let shared =
        held("mem_clients_normal:900000000\r\nused_memory:9000000\r\nused_memory_startup:1000000\r\n", Vec::new());
    assert_eq!(judge(shared), Absent);
    assert_eq!(judge(server("7.0.15", "")), Unknown);
}

#[test]
fn copies_of_a_save_count_beside_what_is_resident() {
    let saves = |more: &str| {
        let info = "total_system_memory:1000000000\r\nused_memory_rss:600000000\r\nrdb_last_cow_size:0\r\n\
                    aof_last_cow_size:0\r\n";
        used(&format!("{info}{more}"))
    };
    let running = "rdb_bgsave_in_progress:1\r\ncurrent_cow_size:350000000\r\ncurrent_cow_peak:350000000\r\n";
    let now = finding(&alone(saves(running)), "copy_on_write");
    assert!(now.impact.currency == Currency::Capacity && (now.impact.value - 0.35).abs() < 1e-9, "{:?}", now.impact);
    let last = finding(&alone(saves("rdb_last_cow_size:500000000\r\n")), "copy_on_write");
    assert_eq!((last.severity, last.confidence), (Severity::Risk, Confidence::Likely));
    for more in [
        "rdb_last_cow_size:300000000\r\n",
        "rdb_bgsave_in_progress:1\r\ncurrent_cow_size:20000000\r\n",
        "used_memory_rss:100000000\r\nrdb_last_cow_size:950000000\r\n",
    ] {
        assert_eq!(answer(&alone(saves(more)), "copy_on_write"), Absent, "{more}");
    }
    assert_eq!(answer(&alone(server("7.0.15", "")), "copy_on_write"), Unknown);
}

#[test]
fn scripts_count_when_new_ones_come_all_the_time() {
    let scripts = |cached: u64, new: u64, dropped: u64, evals: u64, usec: u64| {
        let mut node =
            used("used_memory_scripts:500000\r\nused_memory_lua:500000\r\ntotal_system_memory:16000000000\r\n");
        let end = format!(
            "number_of_cached_scripts:{}\r\nevicted_scripts:{dropped}\r\n{}",
            cached + new,
            command("eval", evals, usec, 0, 0)
        );
        say(&mut node, &format!("number_of_cached_scripts:{cached}\r\nevicted_scripts:0\r\n"), &end);
        alone(node)
    };
    let kept = finding(&scripts(5000, 1000, 0, 1000, 100_000), "script_cache");
    assert_eq!((kept.severity, kept.impact.currency), (Severity::Risk, Currency::Risk));
    let dropped = finding(&scripts(500, 0, 20_000, 20_000, 1_500_000), "script_cache");
    assert!(dropped.impact.currency == Currency::Capacity && (dropped.impact.value - 0.15).abs() < 1e-6);
    for (facts, why) in [
        (scripts(30, 100, 0, 100, 5000), "a young server learns its scripts"),
        (scripts(5000, 20, 0, 50_000, 500_000), "few of many"),
        (scripts(5000, 0, 0, 50_000, 500_000), "the same bodies over and over"),
    ] {
        assert_eq!(answer(&facts, "script_cache"), Absent, "{why}");
    }
    assert_eq!(answer(&alone(server("7.0.15", "")), "script_cache"), Unknown);
}

#[test]
fn a_tracking_table_is_full_by_its_own_limit() {
    let tracks = |keys: u64, items: u64, clients: u64, max: Option<&str>| {
        let mut node = used(&format!(
            "tracking_total_keys:{keys}\r\ntracking_total_items:{items}\r\ntracking_clients:{clients}\r\n\
             total_system_memory:16000000000\r\n"
        ));
        if let Some(max) = max {
            configure(&mut node, &[("tracking-table-max-keys", max)]);
        }
        alone(node)
    };
    let full = finding(&tracks(1000, 1000, 1, Some("1000")), "tracking_table");
    assert!(
        full.severity == Severity::Risk && commands(&full).contains("tracking-table-max-keys 1200"),
        "{}",
        commands(&full)
    );
    assert_eq!(answer(&tracks(990_000, 990_000, 9, None), "tracking_table"), Answered::Present, "the default");
    assert_eq!(answer(&tracks(990_000, 990_000, 9, Some("0")), "tracking_table"), Absent, "no limit");
    assert!(finding(&tracks(50_000, 20_000_000, 9, None), "tracking_table").title.contains("most of them gone"));
    // A thousand clients that all read the same keys are still there.
    assert_eq!(answer(&tracks(20_000, 20_000_000, 1000, None), "tracking_table"), Absent);
    assert!(finding(&tracks(920, 920, 1, Some("1000")), "tracking_table").title.contains("nearly full"));
    assert_eq!(answer(&tracks(500, 900, 9, Some("1000")), "tracking_table"), Absent);
    assert_eq!(answer(&tracks(0, 0, 0, Some("1000")), "tracking_table"), NotHere);
    assert_eq!(answer(&alone(server("5.0.14", "")), "tracking_table"), NotHere);
    assert_eq!(answer(&alone(server("7.0.15", "")), "tracking_table"), Unknown);
}

#[test]
fn a_table_on_the_move_counts_as_long_as_both_are_there() {
    let moves =
        |bytes: u64| alone(used(&format!("maxmemory:200000000\r\nmem_overhead_db_hashtable_rehashing:{bytes}\r\n")));
    let found = finding(&moves(40_000_000), "rehash");
    assert!((found.impact.value - 0.2).abs() < 1e-9 && found.confidence == Confidence::Proven, "{:?}", found.impact);
    assert_eq!((answer(&moves(4_000_000), "rehash"), answer(&moves(0), "rehash")), (Absent, Absent));
    // Not counted: the keys pass 2^20, and a table of 2^21 places of 8 bytes comes at once.
    let passes = |before_keys: u64, keys: u64, grown: u64| {
        let mut first = before("6.2.14");
        first += &format!("maxmemory:200000000\r\ndb0:keys={before_keys},expires=0\r\n");
        let end = format!("used_memory:{}\r\ndb0:keys={keys},expires=0\r\n", 80_000_000 + grown);
        alone(node(HERE, Role::Master, &first, &end))
    };
    assert_eq!(finding(&passes(1_048_000, 1_049_000, 17_000_000), "rehash").severity, Severity::Risk);
    assert_eq!(answer(&passes(1_048_000, 1_049_000, 1_000_000), "rehash"), Absent, "used memory did not rise");
    assert_eq!(answer(&passes(1_050_000, 1_060_000, 17_000_000), "rehash"), Absent, "no power of two was passed");
}

#[test]
fn a_cause_of_full_memory_stands_above_it() {
    let mut node = used("mem_clients_normal:60000000\r\nmaxmemory:100000000\r\nmaxmemory_policy:allkeys-lru\r\n");
    let zero = "evicted_keys:0\r\nkeyspace_hits:0\r\nkeyspace_misses:0\r\ntotal_commands_processed:0\r\n";
    let end = "evicted_keys:2000\r\nkeyspace_hits:300\r\nkeyspace_misses:700\r\ntotal_commands_processed:20000\r\n\
               db0:keys=100000\r\n";
    say(&mut node, zero, end);
    let report = diagnose(&alone(node), &[]);
    let root = report.findings.iter().find(|f| f.id == "client_memory").expect("the buffers are the cause");
    assert!(root.chain.iter().any(|l| l.id == "eviction_pressure"), "{:?}", root.chain);
}
