//! Rules about what a machine allows a server: facts by hand, the case and what looks like it.

#![allow(clippy::disallowed_methods)] // rules may not read files; their tests must

mod common;
#[path = "common/hand.rs"]
mod hand;

use common::{answer, finding, seen};
use hand::{HERE, alone, command, commands, lines, machine, peer, server, stranger, text};
use unslow_doctor::{Answered, Confidence, Currency, Severity, diagnose};
use unslow_facts::{
    AcceptQueue, ClientGroup, Clients, Core, Facts, Gap, Host, Lack, LargeEntry, MemoryGroup, MemoryNode, Neighbour,
    PeerSockets, Process, Reclaims, Seen, Side, Speed, Tcp,
};

/// A server that an application uses, and that came to say this, on this machine.
fn on(more: &str, host: Host) -> Facts {
    let used = lines(&[("used_cpu_user_main_thread", 4.0), ("total_connections_received", 300.0)]);
    let node = server("7.2.4", &(used + &command("get", 10_000, 20_000, 0, 0) + more));
    Facts { hosts: vec![host], ..alone(node) }
}

fn configure(facts: &mut Facts, settings: &[(&str, &str)]) {
    facts.nodes[0].config = seen(settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect());
}

// The accept queue.

fn queue(waiting: u32, limit: u32, dropped: Option<u64>) -> AcceptQueue {
    AcceptQueue { address: HERE.into(), waiting, limit, dropped }
}

/// With this queue, and these overflows of all programs on the machine.
fn queued(queue: AcceptQueue, listen_overflows: Option<u64>) -> Facts {
    let tcp = listen_overflows.map(|n| Tcp { listen_overflows: n, listen_drops: n, ..Tcp::default() });
    on("", Host { tcp, somaxconn: Some(4096), ..machine(Process { accept_queues: vec![queue], ..Process::default() }) })
}

#[test]
fn connections_that_the_kernel_dropped_are_those_of_the_servers_own_queue() {
    let found = finding(&queued(queue(130, 128, Some(100)), Some(140)), "accept_overflow");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Availability, Confidence::Proven));
    assert!((found.impact.value - 21_600.0).abs() < 1.0, "100 of 400 attempts: {:?}", found.impact);
    assert!(commands(&found).contains("tcp-backlog 4096"), "{}", commands(&found));
    assert!(!commands(&found).contains("sysctl"), "the kernel allows that many: {}", commands(&found));
    // Not enough to matter.
    assert_eq!(finding(&queued(queue(0, 128, Some(2)), Some(2)), "accept_overflow").severity, Severity::Risk);
    // Of another program on the same machine, and of no accept queue.
    assert_eq!(answer(&queued(queue(0, 511, Some(0)), Some(140)), "accept_overflow"), Answered::Absent);
    assert_eq!(answer(&queued(queue(0, 511, Some(9)), Some(0)), "accept_overflow"), Answered::Absent);
    // Overflows are not shown, or are mostly another program's.
    assert_eq!(answer(&queued(queue(0, 511, Some(3)), None), "accept_overflow"), Answered::Unknown);
    assert_eq!(answer(&queued(queue(0, 511, Some(9)), Some(100)), "accept_overflow"), Answered::Unknown);
    // Overflows of before the window.
    assert_eq!(answer(&queued(queue(3, 511, Some(0)), Some(0)), "accept_overflow"), Answered::Absent);
}

#[test]
fn a_kernel_that_does_not_count_drops_by_socket_leaves_it_open() {
    let found = finding(&queued(queue(129, 128, None), Some(50)), "accept_overflow");
    assert_eq!(found.confidence, Confidence::Likely);
    assert_eq!(answer(&queued(queue(4, 128, None), Some(50)), "accept_overflow"), Answered::Unknown);
    assert_eq!(answer(&queued(queue(4, 511, None), Some(0)), "accept_overflow"), Answered::Absent);
    let unseen = on("", machine(Process::default()));
    assert_eq!(answer(&unseen, "accept_overflow"), Answered::Unknown);
}

#[test]
fn a_queue_shorter_than_asked_for_is_a_risk_where_more_clients_are_connected() {
    let with = |clients: f64| {
        let mut facts = queued(queue(0, 128, Some(0)), Some(0));
        let last = facts.nodes[0].last.as_mut().unwrap();
        last.info.0.insert("connected_clients".into(), clients.to_string());
        configure(&mut facts, &[("tcp-backlog", "511")]);
        facts.hosts[0].somaxconn = Some(128);
        facts
    };
    let found = finding(&with(900.0), "accept_overflow");
    assert_eq!((found.severity, found.confidence), (Severity::Risk, Confidence::Possible));
    assert!(commands(&found).contains("net.core.somaxconn=4096"), "{}", commands(&found));
    assert_eq!(answer(&with(51.0), "accept_overflow"), Answered::Absent);
    // It asked for no more.
    let mut asked = with(900.0);
    configure(&mut asked, &[("tcp-backlog", "128")]);
    assert_eq!(answer(&asked, "accept_overflow"), Answered::Absent);
}

// Open files.

/// So many clients of so many, so many refused, under this file limit.
fn files(clients: f64, max: f64, refused: f64, limit: u64) -> Facts {
    let says = lines(&[("connected_clients", clients), ("maxclients", max), ("rejected_connections", refused)]);
    on(
        &says,
        machine(Process { open_files_max: Some(limit), open_files: Some(clients as u64 + 12), ..Process::default() }),
    )
}

#[test]
fn a_maxclients_that_the_file_limit_made_is_told_from_one_that_was_set() {
    let facts = files(992.0, 992.0, 100.0, 1024);
    let found = finding(&facts, "fd_limit");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Availability, Confidence::Likely));
    let all = commands(&found);
    assert!(
        all.contains("prlimit --pid 7 --nofile=131072:131072") && all.contains("CONFIG SET maxclients 10000"),
        "{all}"
    );
    // One trouble, told once.
    let report = diagnose(&facts, &[]);
    let ids: Vec<&str> = report.findings.iter().map(|f| f.id.as_str()).collect();
    assert!(!ids.contains(&"too_many_connections"), "{ids:?}");
    assert!(report.findings.iter().any(|f| f.chain.iter().any(|l| l.id == "too_many_connections")));
    // No one was refused yet.
    assert_eq!(finding(&files(900.0, 992.0, 0.0, 1024), "fd_limit").severity, Severity::Risk);
    // Set by hand under a larger limit, and a limit that the server raised for its maxclients.
    for (max, limit) in [(992.0, 4096), (10_000.0, 10_032), (5000.0, 5032), (4096.0, 4128), (10_000.0, 65_536)] {
        let facts = files(max - 1.0, max, 100.0, limit);
        assert_eq!(answer(&facts, "fd_limit"), Answered::Absent, "{max} under {limit}");
        assert_eq!(answer(&facts, "too_many_connections"), Answered::Present, "{max} under {limit}");
    }
    // Lowered, and few clients.
    let enough = files(51.0, 4064.0, 0.0, 4096);
    assert_eq!(answer(&enough, "fd_limit"), Answered::Absent);
    assert!(text(&enough, "fd_limit").contains("was lowered"), "{}", text(&enough, "fd_limit"));
}

#[test]
fn a_process_that_can_open_no_more_files_keeps_connections_waiting() {
    let mut facts = files(500.0, 10_000.0, 0.0, 512);
    let found = finding(&facts, "fd_limit");
    assert_eq!(found.severity, Severity::Risk, "no one was seen to wait");
    assert!(!commands(&found).contains("maxclients"), "{}", commands(&found));
    facts.hosts[0].processes[0].accept_queues = vec![queue(20, 511, Some(0))];
    let found = finding(&facts, "fd_limit");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Availability, Confidence::Likely));
    // The limit was not seen.
    facts.hosts[0].processes[0].open_files_max = None;
    assert_eq!(answer(&facts, "fd_limit"), Answered::Unknown);
}

// Processors.

/// A server on one processor of four whose main thread waited this share; all its threads used this much.
fn bound(delay: f64, cpu_share: f64, busy_share: f64, neighbours: Vec<Neighbour>) -> Facts {
    let process = Process {
        cpus_allowed: Some(1),
        processors: vec![2],
        run_delay_share: Some(delay),
        main_cpu_share: Some(0.4),
        cpu_share: Some(cpu_share),
        ..Process::default()
    };
    on("", Host { busy_share: Some(busy_share), neighbours, ..machine(process) })
}

#[test]
fn threads_and_children_on_the_only_processor_are_no_neighbours() {
    let found = finding(&bound(0.3, 0.65, 0.3, Vec::new()), "pinned");
    assert_eq!((found.impact.value, found.confidence), (0.3, Confidence::Likely));
    assert!(commands(&found).contains("taskset -acp 0-3 7"), "{}", commands(&found));
    assert_eq!(found.remedies[0].rollback, "taskset -acp 2 7");
    // A child that saves on the same processor: its own, though it is another process.
    let child = Neighbour { name: "redis-server".into(), parent: Some(7), ..stranger(0.55) };
    let saving = bound(0.4, 0.41, 0.3, vec![child]);
    assert_eq!(answer(&saving, "pinned"), Answered::Present);
    assert_eq!(answer(&saving, "noisy_neighbour"), Answered::Absent);
    // Strangers hold it.
    let held = bound(0.4, 0.41, 0.5, vec![stranger(0.9)]);
    assert_eq!((answer(&held, "pinned"), answer(&held, "noisy_neighbour")), (Answered::Absent, Answered::Present));
    // Its threads used too little to explain the waiting; the machine has nothing to spare; it does not wait.
    assert_eq!(answer(&bound(0.3, 0.45, 0.3, Vec::new()), "pinned"), Answered::Absent);
    assert_eq!(answer(&bound(0.3, 0.65, 0.95, Vec::new()), "pinned"), Answered::Absent);
    assert_eq!(answer(&bound(0.01, 0.65, 0.3, Vec::new()), "pinned"), Answered::Absent);
    // More processors, and a machine that has one.
    let mut free = bound(0.3, 0.65, 0.3, Vec::new());
    free.hosts[0].processes[0].cpus_allowed = Some(4);
    assert_eq!(answer(&free, "pinned"), Answered::Absent);
    let mut one = bound(0.3, 0.65, 0.3, Vec::new());
    one.hosts[0].cpus = 1;
    assert_eq!(answer(&one, "pinned"), Answered::Absent);
}

#[test]
fn a_server_on_one_processor_whose_waiting_is_not_shown_is_not_ruled_out() {
    let mut facts = bound(0.3, 0.65, 0.3, Vec::new());
    facts.hosts[0].processes[0].run_delay_share = None;
    assert_eq!(answer(&facts, "pinned"), Answered::Unknown);
    facts.hosts.clear();
    assert_eq!(answer(&facts, "pinned"), Answered::Unknown);
}

// Threads for sockets.

/// A server with so many io-threads on four processors; its other threads used this, and its main thread waited this
/// share.
fn threaded(threads: u32, others: f64, delay: f64) -> Facts {
    let process = Process {
        main_cpu_share: Some(0.7),
        cpu_share: Some(0.7 + others),
        run_delay_share: Some(delay),
        ..Process::default()
    };
    let mut facts = on("", machine(process));
    let threads = threads.to_string();
    configure(&mut facts, &[("io-threads", threads.as_str())]);
    facts
}

/// A server that is silent because its io-threads hold both processors, as it was recorded.
fn silent() -> Facts {
    let case = "twelve_threads_that_starve_it.json";
    let path = format!("{}/../../bench/diagnosis/facts/{case}", env!("CARGO_MANIFEST_DIR"));
    Facts::from_json(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_server_is_silent_for_its_threads_where_they_hold_the_machine() {
    let first = |facts: &Facts| diagnose(facts, &[]).findings[0].id.clone();
    let report = diagnose(&silent(), &[]);
    let found = &report.findings[0];
    let told = (found.id.as_str(), found.confidence, found.chain[0].id.as_str());
    assert_eq!(told, ("io_threads", Confidence::Likely, "node_hangs"));
    assert!(found.evidence.iter().all(|e| !e.value.contains("commands/s")), "{:?}", found.evidence);
    // Something else uses the processors: unlisted processes, clients, or a child process. The main thread's share is
    // unknown. The server ran, so it was busy itself.
    let spoils: [fn(&mut Facts); 5] = [
        |facts| facts.hosts[0].processes[0].cpu_share = Some(0.45),
        |facts| {
            facts.hosts[0].processes[0].cpu_share = Some(0.5);
            facts.hosts[0].neighbours = vec![Neighbour { client: true, ..stranger(1.35) }];
        },
        |facts| {
            let pid = facts.hosts[0].processes[0].pid;
            facts.hosts[0].processes[0].cpu_share = Some(1.0);
            facts.hosts[0].neighbours = vec![Neighbour { parent: Some(pid), ..stranger(0.9) }];
        },
        |facts| facts.hosts[0].processes[0].main_cpu_share = None,
        |facts| facts.nodes[0].standing.as_mut().unwrap().user_ms = 150,
    ];
    for (number, spoil) in spoils.into_iter().enumerate() {
        let mut facts = silent();
        spoil(&mut facts);
        assert_eq!(first(&facts), "node_hangs", "{number}");
        assert!(diagnose(&facts, &[]).findings.iter().all(|f| f.id != "io_threads"), "{number}");
    }
}

#[test]
fn a_server_is_silent_for_a_neighbour_that_holds_the_machine() {
    // Twenty processes of higher priority on its processor, as they were recorded: it never answered anything.
    let recorded = common::recorded("starved_by_neighbours");
    let beside = |neighbours: Vec<Neighbour>| {
        let mut facts = recorded.clone();
        facts.hosts[0].neighbours = neighbours;
        facts
    };
    for facts in [recorded.clone(), beside(vec![stranger(1.9)])] {
        let report = diagnose(&facts, &[]);
        let found = &report.findings[0];
        let told = (found.id.as_str(), found.confidence, found.chain[0].id.as_str());
        assert_eq!(told, ("noisy_neighbour", Confidence::Likely, "node_hangs"));
        assert!(found.evidence.iter().any(|e| e.value.contains("ready to run")), "{:?}", found.evidence);
    }
    assert!(
        finding(&recorded, "noisy_neighbour").title.contains("20 other processes use 1.0 cores, the largest is bash")
    );
    // Its clients, its own children, and what uses less than half of what is used.
    let pid = recorded.hosts[0].processes[0].pid;
    let (client, child) =
        (Neighbour { client: true, ..stranger(1.9) }, Neighbour { parent: Some(pid), ..stranger(1.9) });
    for neighbours in [vec![client], vec![child], vec![stranger(0.4)], Vec::new()] {
        let facts = beside(neighbours.clone());
        assert_eq!(answer(&facts, "noisy_neighbour"), Answered::Unknown, "{neighbours:?}");
        assert_eq!(diagnose(&facts, &[]).findings[0].id, "node_hangs", "{neighbours:?}");
    }
}

#[test]
fn more_threads_than_processors_cost_what_the_main_thread_waits() {
    let found = finding(&threaded(8, 2.5, 0.3), "io_threads");
    assert_eq!((found.impact.value, found.confidence), (0.3, Confidence::Likely));
    assert!(commands(&found).contains("io-threads 3"), "{}", commands(&found));
    // Strangers hold the processors.
    let mut held = threaded(8, 2.5, 0.3);
    held.hosts[0].neighbours = vec![stranger(3.0)];
    let found = finding(&held, "io_threads");
    assert_eq!(found.severity, Severity::Risk);
    assert!(found.ruled_out.iter().all(|what| !what.contains("neighbour")), "{:?}", found.ruled_out);
    // The setting without an effect, and threads that sleep.
    assert_eq!(finding(&threaded(8, 2.5, 0.01), "io_threads").severity, Severity::Risk);
    assert_eq!(finding(&threaded(8, 0.01, 0.3), "io_threads").severity, Severity::Risk);
    // A server too slow to be asked for the setting: INFO says that there are some, and what they do is seen.
    let unread = |others: f64, delay: f64, active: &str| {
        let mut facts = threaded(8, others, delay);
        facts.nodes[0].config = Seen::No(Gap::new(Lack::Time, "the window was over before it could be asked", ""));
        let info = &mut facts.nodes[0].last.as_mut().expect("one").info.0;
        info.insert("io_threads_active".into(), active.into());
        facts
    };
    let found = finding(&unread(1.6, 0.7, "1"), "io_threads");
    assert!(found.impact.value == 0.7 && found.title.contains("runs io-threads on"), "{found:?}");
    assert_eq!(answer(&unread(1.6, 0.01, "1"), "io_threads"), Answered::Unknown);
    assert_eq!(answer(&unread(1.6, 0.7, "0"), "io_threads"), Answered::Unknown);
    // As many as processors, and none.
    assert_eq!(answer(&threaded(4, 2.5, 0.3), "io_threads"), Answered::Absent);
    assert_eq!(answer(&threaded(1, 0.0, 0.3), "io_threads"), Answered::Absent);
    // A quota is fewer processors, and is used up by polling.
    let mut quota = threaded(4, 1.2, 0.0);
    let process = &mut quota.hosts[0].processes[0];
    (process.quota_cores, process.throttled_periods, process.throttled_share) = (Some(2.0), Some((60, 100)), Some(0.2));
    let found = finding(&quota, "io_threads");
    assert_eq!(found.impact.value, 0.2);
    let report = diagnose(&quota, &[]);
    assert!(report.findings.iter().all(|f| f.id != "cpu_throttled"), "told beneath its cause");
    // Neither the machine nor the setting was seen.
    let mut blind = threaded(8, 2.5, 0.3);
    blind.hosts.clear();
    assert_eq!(answer(&blind, "io_threads"), Answered::Unknown);
    assert_eq!(answer(&on("", machine(Process::default())), "io_threads"), Answered::Unknown);
}

#[test]
fn a_main_thread_that_polls_for_its_threads_is_not_saturated() {
    let polling = |more: &[(&str, f64)]| {
        let says = lines(&[("used_cpu_user_main_thread", 9.8)]) + &lines(more);
        let mut facts = on(&says, machine(Process::default()));
        let first = facts.nodes[0].first.as_mut().unwrap();
        first.info.0.extend(more.iter().map(|(name, _)| (name.to_string(), "0".to_string())));
        configure(&mut facts, &[("io-threads", "3")]);
        facts
    };
    assert_eq!(answer(&polling(&[("used_active_time_main_thread", 2.0)]), "main_thread_saturated"), Answered::Absent);
    assert_eq!(answer(&polling(&[]), "main_thread_saturated"), Answered::Absent, "no command explains the time");
    // It works through all of it, by the server's own clock.
    let full = polling(&[("used_active_time_main_thread", 9.7)]);
    assert_eq!(answer(&full, "main_thread_saturated"), Answered::Present);
    // The same CPU time without io-threads.
    let mut plain = polling(&[]);
    configure(&mut plain, &[("io-threads", "1")]);
    assert_eq!(answer(&plain, "main_thread_saturated"), Answered::Present);
}

// The clock.

/// A server with so many commands in ten seconds, on a machine with this clock.
fn clocked(source: &str, clock_read_ns: Option<f64>, commands: f64) -> Facts {
    let host = Host { clocksource: Some(source.into()), clock_read_ns, ..machine(Process::default()) };
    on(&lines(&[("total_commands_processed", commands)]), host)
}

#[test]
fn a_slow_clock_costs_its_readings() {
    // 50,000 commands a second, two readings each, 1 us more than they need take.
    let found = finding(&clocked("hpet", Some(1025.0), 500_000.0), "clocksource");
    assert!((found.impact.value - 0.1).abs() < 1e-9, "{:?}", found.impact);
    assert_eq!((found.impact.currency, found.confidence), (Currency::Capacity, Confidence::Likely));
    assert!(found.remedies[0].rollback.contains("echo hpet"), "{:?}", found.remedies[0]);
    // Hardly used, and not timed: a risk.
    assert_eq!(finding(&clocked("hpet", Some(1025.0), 500.0), "clocksource").severity, Severity::Risk);
    assert_eq!(finding(&clocked("xen", None, 500_000.0), "clocksource").severity, Severity::Risk);
    // A kernel that lets the C library read this one.
    assert_eq!(answer(&clocked("xen", Some(40.0), 500_000.0), "clocksource"), Answered::Absent);
    for quick in ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"] {
        assert_eq!(answer(&clocked(quick, Some(30.0), 500_000.0), "clocksource"), Answered::Absent, "{quick}");
    }
    assert_eq!(answer(&on("", machine(Process::default())), "clocksource"), Answered::Unknown);
}

// Soft interrupts.

/// A server whose main thread was on processor 2 all the time, which spent this in soft interrupts and took this many
/// of devices.
fn packets(softirq_share: f64, busy_share: f64, device_interrupts: u64) -> Facts {
    let process = Process { ran_on: vec![2], main_cpu_share: Some(0.5), ..Process::default() };
    let core = Core { number: 2, busy_share, softirq_share, device_interrupts: Some(device_interrupts), speed: None };
    let other = Core { number: 3, device_interrupts: Some(0), ..Core::default() };
    on("", Host { cores: vec![core, other], ..machine(process) })
}

#[test]
fn soft_interrupts_matter_on_the_servers_own_processor_and_of_a_card() {
    let found = finding(&packets(0.45, 0.99, 80_000), "softirq_on_core");
    assert_eq!((found.impact.value, found.confidence), (0.45, Confidence::Likely));
    assert!(commands(&found).contains("smp_affinity_list"), "{}", commands(&found));
    // There is time left; no application uses it.
    assert_eq!(finding(&packets(0.45, 0.7, 80_000), "softirq_on_core").severity, Severity::Risk);
    let mut idle = packets(0.45, 0.99, 80_000);
    idle.nodes[0].last.as_mut().unwrap().info = idle.nodes[0].first.as_ref().unwrap().info.clone();
    assert_eq!(finding(&idle, "softirq_on_core").severity, Severity::Risk);
    // Few; the machine's own traffic, which no card interrupts for.
    assert_eq!(answer(&packets(0.1, 0.99, 80_000), "softirq_on_core"), Answered::Absent);
    let own = packets(0.45, 0.99, 20);
    assert_eq!(answer(&own, "softirq_on_core"), Answered::Absent);
    assert!(text(&own, "softirq_on_core").contains("own traffic"), "{}", text(&own, "softirq_on_core"));
    // Another processor has them.
    let mut elsewhere = packets(0.45, 0.99, 80_000);
    elsewhere.hosts[0].processes[0].ran_on = vec![3];
    assert_eq!(answer(&elsewhere, "softirq_on_core"), Answered::Absent);
}

#[test]
fn a_server_that_moved_between_processors_is_judged_only_where_all_of_them_are_quiet() {
    let moved = |share: f64, may: &[u32]| {
        let mut facts = packets(share, 0.99, 80_000);
        (facts.hosts[0].processes[0].ran_on, facts.hosts[0].processes[0].processors) = (vec![2, 3], may.to_vec());
        answer(&facts, "softirq_on_core")
    };
    assert_eq!(moved(0.45, &[2, 3]), Answered::Unknown);
    assert_eq!(moved(0.1, &[2, 3]), Answered::Absent);
    // Bound to one, wherever it was seen.
    assert_eq!(moved(0.45, &[2]), Answered::Present);
    assert_eq!(moved(0.45, &[3]), Answered::Absent);
    assert_eq!(answer(&on("", machine(Process::default())), "softirq_on_core"), Answered::Unknown);
}

// Memory that is not at hand.

/// A machine of 16 GB with this share of it free, so many waits for memory in ten seconds, and stalls of any task.
fn short_of_pages(free: f64, direct: u64, compactions: u64, some: f64) -> Facts {
    let host = Host {
        memory_bytes: Some(16_000_000_000),
        memory_available_bytes: Some((16e9 * free) as u64),
        reclaims: Some(Reclaims { direct, compactions }),
        pressure: [("memory.some".to_string(), some)].into(),
        ..machine(Process::default())
    };
    on("", host)
}

#[test]
fn tasks_that_look_for_memory_themselves_are_told_where_the_machine_has_some() {
    let found = finding(&short_of_pages(0.5, 5000, 100, 0.2), "reclaim");
    assert_eq!((found.impact.value, found.confidence), (0.2, Confidence::Likely));
    assert!(commands(&found).contains("watermark_scale_factor=100") && !commands(&found).contains("hugepage"));
    assert!(commands(&finding(&short_of_pages(0.5, 10, 5000, 0.2), "reclaim")).contains("transparent_hugepage/defrag"));
    // No stall was counted.
    assert_eq!(finding(&short_of_pages(0.5, 5000, 100, 0.0), "reclaim").severity, Severity::Risk);
    // A machine that is short is another finding, and the only one.
    let short = short_of_pages(0.03, 5000, 100, 0.2);
    assert_eq!((answer(&short, "reclaim"), answer(&short, "memory_pressure")), (Answered::Absent, Answered::Present));
    assert_eq!(answer(&short_of_pages(0.5, 3, 2, 0.2), "reclaim"), Answered::Absent);
    // Not shown, and no machine.
    assert_eq!(answer(&on("", machine(Process::default())), "reclaim"), Answered::Unknown);
}

#[test]
fn stalls_of_a_container_at_its_limit_are_no_reclaim_of_the_machine() {
    let grouped = |limit_hits: u64| {
        let mut facts = short_of_pages(0.5, 5000, 100, 0.2);
        let group = MemoryGroup { limit_hits: Some(limit_hits), stalled_share: Some(0.15), ..MemoryGroup::default() };
        facts.hosts[0].processes[0].memory_group = Some(group);
        finding(&facts, "reclaim")
    };
    let own = grouped(0);
    assert_eq!((own.impact.value, own.confidence), (0.15, Confidence::Proven));
    assert_eq!(grouped(40).severity, Severity::Risk);
}

// Memory nodes.

/// A server on node 0 of two, with so much of its 90 MB there and on the other.
fn on_nodes(near: u64, far: u64) -> Facts {
    let process = Process { ran_on: vec![1], anon_by_node: vec![(0, near), (1, far)], ..Process::default() };
    let node = |number: u32, processors: Vec<u32>| MemoryNode { number, processors, memory_bytes: None };
    on("", Host { memory_nodes: vec![node(0, vec![0, 1]), node(1, vec![2, 3])], ..machine(process) })
}

#[test]
fn memory_of_another_node_is_a_risk_where_most_of_it_is_there() {
    let far = on_nodes(10_000_000, 80_000_000);
    let found = finding(&far, "numa");
    assert_eq!((found.severity, found.confidence), (Severity::Risk, Confidence::Likely));
    assert!(found.title.contains("runs on memory node 0, but 89 %"), "{}", found.title);
    assert!(commands(&found).contains("--membind=0"), "{}", commands(&found));
    assert_eq!(answer(&on_nodes(80_000_000, 10_000_000), "numa"), Answered::Absent);
    assert_eq!(answer(&on_nodes(45_000_000, 45_000_000), "numa"), Answered::Absent, "interleaved");
    // Other programs are in its cgroup; it ran on both nodes.
    assert_eq!(answer(&on_nodes(10_000_000, 900_000_000), "numa"), Answered::Unknown);
    let mut both = far.clone();
    both.hosts[0].processes[0].ran_on = vec![1, 2];
    assert_eq!(answer(&both, "numa"), Answered::Unknown);
    // Bound to the processors of one.
    both.hosts[0].processes[0].processors = vec![2, 3];
    assert_eq!(answer(&both, "numa"), Answered::Absent);
    // One node, and nodes that were not seen.
    let mut one = far;
    one.hosts[0].memory_nodes.truncate(1);
    assert_eq!(answer(&one, "numa"), Answered::NotHere);
    one.hosts[0].memory_nodes.clear();
    assert_eq!(answer(&one, "numa"), Answered::Unknown);
}

// Frequency.

/// A server on a processor that can do 3.5 GHz: its governor and driver, its speed at both ends, how busy it is.
fn at_speed(governor: &str, driver: &str, mhz: u64, allowed_mhz: u64, busy_share: f64) -> Facts {
    let speed = Speed {
        driver: driver.into(),
        governor: governor.into(),
        first_khz: Some(mhz * 1000),
        last_khz: Some(mhz * 1000),
        allowed_khz: allowed_mhz * 1000,
        max_khz: 3_500_000,
    };
    let core = Core { number: 2, busy_share, speed: Some(speed), ..Core::default() };
    let process = Process { ran_on: vec![2], main_cpu_share: Some(0.8), ..Process::default() };
    on("", Host { cores: vec![core], ..machine(process) })
}

#[test]
fn a_processor_is_kept_slow_only_where_it_is_busy_or_may_never_be_quick() {
    let found = finding(&at_speed("powersave", "acpi-cpufreq", 1400, 3500, 0.9), "frequency");
    assert!((found.impact.value - 0.8 * 0.6).abs() < 1e-9, "{:?}", found.impact);
    assert_eq!((found.impact.currency, found.confidence), (Currency::Capacity, Confidence::Likely));
    assert_eq!(found.remedies[0].rollback, "cpupower frequency-set -g powersave -u 3500000kHz");
    // It has little to do so far.
    assert_eq!(finding(&at_speed("powersave", "acpi-cpufreq", 1400, 3500, 0.1), "frequency").severity, Severity::Risk);
    let capped = finding(&at_speed("performance", "intel_pstate", 2000, 2000, 0.1), "frequency");
    assert!(capped.severity == Severity::Risk && capped.title.contains("2.0 GHz of 3.5 GHz"), "{}", capped.title);
    // An idle processor, the ordinary governor of this driver, and one whose turbo is for one core alone.
    for (governor, driver, mhz, busy) in [
        ("ondemand", "acpi-cpufreq", 800, 0.1),
        ("powersave", "intel_pstate", 800, 0.1),
        ("powersave", "intel_pstate", 3400, 0.9),
        ("performance", "acpi-cpufreq", 2800, 0.95),
    ] {
        assert_eq!(answer(&at_speed(governor, driver, mhz, 3500, busy), "frequency"), Answered::Absent, "{governor}");
    }
    // A guest does not see it; a machine that is none hides it.
    let mut guest = on("", machine(Process::default()));
    assert_eq!(answer(&guest, "frequency"), Answered::Unknown);
    guest.hosts[0].hypervisor = Some("kvm".into());
    assert_eq!(answer(&guest, "frequency"), Answered::NotHere);
}

// Peers that are gone.

/// A server with this keepalive, sockets to one machine of which some have no answer, and rows that are idle for over
/// an hour.
fn peers(keepalive: &str, from: &str, unanswered: u32, idle_hour: u64) -> Facts {
    let mut facts = on("", machine(Process::default()));
    configure(&mut facts, &[("tcp-keepalive", keepalive)]);
    let sockets = PeerSockets { unanswered, unanswered_ms: u64::from(unanswered) * 9000, ..peer(from, 6, 100, 40) };
    facts.nodes[0].sockets = seen(vec![sockets]);
    let group = ClientGroup { host: from.into(), count: 6, idle_hour, ..ClientGroup::default() };
    facts.nodes[0].clients = seen(Clients { total: 51, listed: 6, groups: vec![group], ..Clients::default() });
    facts
}

#[test]
fn peers_that_do_not_answer_matter_where_nothing_looks_after_them() {
    let found = finding(&peers("0", "10.0.0.9", 6, 0), "dead_peers");
    assert_eq!((found.severity, found.confidence), (Severity::Risk, Confidence::Likely));
    assert!(found.title.starts_with("6 connections"), "{}", found.title);
    assert_eq!(found.remedies[0].rollback, "redis-cli -h 10.0.0.1 -p 6379 CONFIG SET tcp-keepalive 0");
    let slow = finding(&peers("7200", "10.0.0.9", 0, 4), "dead_peers");
    assert_eq!(slow.confidence, Confidence::Possible);
    assert!(slow.title.contains("about 240 min"), "{}", slow.title);
    // The default notices them; no one is idle or silent; all are on this machine.
    assert_eq!(answer(&peers("300", "10.0.0.9", 6, 4), "dead_peers"), Answered::Absent);
    assert_eq!(answer(&peers("0", "10.0.0.9", 0, 0), "dead_peers"), Answered::Absent);
    assert_eq!(answer(&peers("0", "127.0.0.1", 0, 4), "dead_peers"), Answered::Absent);
    // Neither the setting nor who is connected was seen.
    let mut unseen = peers("0", "10.0.0.9", 0, 0);
    unseen.nodes[0].clients = Seen::default();
    assert_eq!(answer(&unseen, "dead_peers"), Answered::Unknown);
    assert_eq!(answer(&on("", machine(Process::default())), "dead_peers"), Answered::Unknown);
}

#[test]
fn a_machine_that_is_away_is_no_loss_on_the_way() {
    let mut facts = peers("300", "10.0.0.9", 6, 0);
    let sockets = PeerSockets { retransmits: 30, unanswered: 6, ..peer("10.0.0.9", 6, 100, 400) };
    facts.nodes[0].sockets = seen(vec![sockets.clone(), peer("10.0.0.8", 6, 100, 400)]);
    assert_eq!(answer(&facts, "packet_loss"), Answered::Absent);
    // It answers on one of them.
    facts.nodes[0].sockets = seen(vec![PeerSockets { unanswered: 5, ..sockets }]);
    assert_eq!(answer(&facts, "packet_loss"), Answered::Present);
}

// Connections that are forgotten.

/// A server to which clients came in the window, of which some stayed; of a hundred rows that were seen this many are
/// idle for an hour.
fn leaking(came: f64, stayed: f64, idle_hour: u64, young: u64) -> Facts {
    let says =
        lines(&[("total_connections_received", came), ("connected_clients", 51.0 + stayed), ("maxclients", 101.0)]);
    let mut facts = on(&says, machine(Process::default()));
    let group = ClientGroup {
        host: "10.0.0.9".into(),
        name: "shop-".into(),
        count: 100,
        idle_hour,
        young,
        ..ClientGroup::default()
    };
    facts.nodes[0].clients = seen(Clients { total: 71, listed: 100, groups: vec![group], ..Clients::default() });
    facts
}

#[test]
fn connections_that_stay_without_use_are_a_leak_only_where_more_come() {
    let found = finding(&leaking(20.0, 20.0, 80, 4), "connection_leak");
    assert_eq!((found.severity, found.confidence), (Severity::Risk, Confidence::Likely));
    assert!(found.impact.text.contains("in 15 s"), "30 places at 2 a second: {}", found.impact.text);
    assert!(commands(&found).contains("CONFIG SET timeout 3600"), "{}", commands(&found));
    // A pool that idles does not grow; churn comes and goes; a busy group grows; a new one has no hour behind it.
    for healthy in
        [leaking(0.0, 0.0, 80, 0), leaking(200.0, 20.0, 80, 4), leaking(20.0, 20.0, 20, 4), leaking(20.0, 20.0, 0, 20)]
    {
        assert_eq!(answer(&healthy, "connection_leak"), Answered::Absent);
    }
    // What idles is not who opens.
    assert_eq!(answer(&leaking(20.0, 20.0, 80, 0), "connection_leak"), Answered::Absent);
    let mut unseen = leaking(20.0, 20.0, 80, 4);
    unseen.nodes[0].clients = Seen::default();
    assert_eq!(answer(&unseen, "connection_leak"), Answered::Unknown);
}

// Clients closed at a limit.

/// A server of 10,000 commands that closed this many connections; its limits, subscribers and full syncs.
fn closed(limits: &str, output: f64, query: f64, channels: f64, synced: f64) -> Facts {
    let fields = [
        ("client_output_buffer_limit_disconnections", output),
        ("client_query_buffer_limit_disconnections", query),
        ("total_commands_processed", 10_000.0),
        ("pubsub_channels", channels),
        ("pubsub_patterns", 0.0),
        ("sync_full", synced),
        ("sync_partial_err", 0.0),
    ];
    let mut facts = on(&lines(&fields), machine(Process::default()));
    let first = facts.nodes[0].first.as_mut().unwrap();
    first.info.0.extend(fields.iter().map(|(name, _)| (name.to_string(), "0".to_string())));
    configure(&mut facts, &[("client-output-buffer-limit", limits)]);
    facts
}

const LIMITED: &str = "normal 1048576 524288 10 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
const DEFAULT: &str = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";

#[test]
fn closed_clients_are_ordinary_where_no_others_can_be_meant() {
    let found = finding(&closed(LIMITED, 100.0, 0.0, 0.0, 0.0), "normal_buffer_kill");
    assert_eq!((found.impact.currency, found.confidence), (Currency::Availability, Confidence::Proven));
    assert!((found.impact.value - 864.0).abs() < 1e-6, "1 % of the commands: {:?}", found.impact);
    assert_eq!(found.severity, Severity::Medium, "they cost these commands, and no others");
    assert!(commands(&found).contains("\"normal 2097152 1048576 10\""), "{}", commands(&found));
    // Where the server has logged how large replies were, the limit fits the largest.
    let mut logged = closed(LIMITED, 100.0, 0.0, 0.0, 0.0);
    let reply = LargeEntry {
        id: 1,
        at_s: logged.nodes[0].at_ms() / 1000,
        side: Side::Reply,
        bytes: 9_000_000,
        command: "HGETALL".into(),
        key: None,
        client: "10.0.0.7:5".into(),
        client_name: String::new(),
    };
    logged.nodes[0].large = seen(vec![reply]);
    let found = finding(&logged, "normal_buffer_kill");
    assert!(commands(&found).contains("\"normal 18000000 18000000 10\""), "{}", commands(&found));
    // The query buffer is of ordinary clients alone.
    let query = finding(&closed(DEFAULT, 0.0, 5.0, 3.0, 0.0), "normal_buffer_kill");
    assert!(query.title.contains("query buffers") && !commands(&query).contains("normal"), "{}", query.title);
    // Ordinary clients have no limit; nothing was closed.
    assert_eq!(answer(&closed(DEFAULT, 100.0, 0.0, 3.0, 0.0), "normal_buffer_kill"), Answered::Absent);
    assert_eq!(answer(&closed(LIMITED, 0.0, 0.0, 3.0, 0.0), "normal_buffer_kill"), Answered::Absent);
    // Subscribers or replicas may be meant, or the limits were not seen.
    assert_eq!(answer(&closed(LIMITED, 100.0, 0.0, 3.0, 0.0), "normal_buffer_kill"), Answered::Unknown);
    let mut cut = closed(LIMITED, 100.0, 0.0, 0.0, 2.0);
    cut.nodes[0].last.as_mut().unwrap().info.0.insert("connected_slaves".into(), "1".into());
    assert_eq!(answer(&cut, "normal_buffer_kill"), Answered::Unknown);
    // A subscriber that was closed is gone by the window's end.
    let mut gone = closed(LIMITED, 100.0, 0.0, 0.0, 0.0);
    gone.nodes[0].first.as_mut().unwrap().info.0.insert("pubsub_channels".into(), "1".into());
    assert_eq!(answer(&gone, "normal_buffer_kill"), Answered::Unknown);
    let mut denied = closed(LIMITED, 100.0, 0.0, 0.0, 0.0);
    denied.nodes[0].config = Seen::default();
    assert_eq!(answer(&denied, "normal_buffer_kill"), Answered::Unknown);
    // A version that does not count them.
    assert_eq!(answer(&on("", machine(Process::default())), "normal_buffer_kill"), Answered::Unknown);
}
