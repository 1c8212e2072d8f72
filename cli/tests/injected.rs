//! Every fault injected into a real server, alone: the released binary must name it first. Every healthy but odd
//! deployment: it must name nothing above risk.
//!
//! A test is named after the rule. `cargo xtask test injected::keys_command` runs one. UNSLOW_ENGINE chooses the
//! server, UNSLOW_RECORD=DIR keeps the facts of each run, UNSLOW_TABLE=FILE and UNSLOW_TABLE_HEALTHY=FILE get a line
//! for each test. With UNSLOW_TABLE_RECORDED=FILE each fault is recorded too, for a quarter of a minute, and the file
//! gets what is named of the recording.
//!
//! While the machine itself is taken away there are two causes, and the doctor rightly names both. Whether it was is
//! measured here, without the doctor; then what it says of the neighbour does not count as an answer, and a fault that
//! is not named may be tried again. Healthy deployments are never tried again.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use unslow_client::Connection;
use unslow_doctor::{Finding, Report, Severity};
use unslow_engine::{Deployment, Engine, Shape, info};
use unslow_facts::Facts;
use unslow_lab::faults::{self, Fault, Takes};
use unslow_lab::lab::Lab;
use unslow_testkit::{Load, Noise, skip, tried_while_busy, until};

/// A fault is tried again this often at most, and only if the machine was busy.
const TRIES: u32 = 3;

fn engine() -> Engine {
    unslow_testkit::engine(&std::env::var("UNSLOW_ENGINE").unwrap_or_else(|_| "valkey-9.1".into()))
}

/// Faults that use a processor from their first moment on. They run one after another, so each second counts.
const AT_ONCE: &[&str] = &[
    "big_values",
    "busy_polling",
    "chatter",
    "connection_churn",
    "giant_transactions",
    "io_threads",
    "kernel_bound",
    "lock_spinning",
    "long_script",
    "main_thread_saturated",
    "monitoring_storm",
    "no_pipelining",
    "noisy_neighbour",
    "pinned",
    "publish_in_cluster",
    "reads_on_master",
    "script_cache",
    "shard_imbalance",
    "slow_command",
    "topology_storm",
    "tracking_storm",
];

/// How long the doctor looks, which has ten seconds unless told otherwise: less is harder for it.
fn window(name: &str) -> &'static str {
    if AT_ONCE.contains(&name) { "2s" } else { "3s" }
}

/// Runs the binary. Returns its JSON, and what the rest of the machine did while it looked.
fn diagnose(mut command: Command, url: &str, name: &str) -> (Report, Load) {
    command.args(["doctor", url, "--window", window(name), "--format", "json", "--quiet"]);
    if let Some(dir) = std::env::var_os("UNSLOW_RECORD") {
        command.arg("--save").arg(PathBuf::from(dir).join(format!("{name}.json")));
    }
    let noise = Noise::watch();
    let output = command.output().expect("the binary runs");
    let load = noise.so_far();
    let report = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{name}: {e}; stderr: {}", String::from_utf8_lossy(&output.stderr)));
    (report, load)
}

/// The rules that are about the machine's other work, and so are right whenever there is any.
const NEIGHBOURS: &[&str] = &["noisy_neighbour", "hypervisor_steal"];

/// What it names above info, in order. A neighbour that is really there does not count; where it leads to the rule,
/// that is named.
fn all_named(report: &Report, load: &Load, rule: &str) -> Vec<String> {
    let mut all = Vec::new();
    for finding in report.findings.iter().filter(|f| f.severity > Severity::Info) {
        if !NEIGHBOURS.contains(&finding.id.as_str()) || NEIGHBOURS.contains(&rule) || !load.busy() {
            all.push(finding.id.clone());
        } else if finding.chain.iter().any(|link| link.id == rule) {
            all.push(rule.to_string());
        }
    }
    all
}

/// Adds a line to the table that this variable names, if it does.
fn table(variable: &str, line: &str) {
    println!("{line}");
    let Some(path) = std::env::var_os(variable) else { return };
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut f| writeln!(f, "{line}")).expect("the table can be written");
}

/// The binary, run on the host of this server, as a person who is logged in there.
fn beside(lab: &Lab, node: usize) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_unslow"));
    lab.place(&lab.hosts[lab.places[node]], &mut command).unwrap_or_else(|e| panic!("{e}"));
    command
}

fn sets(c: &mut Connection) -> u64 {
    info(c, "commandstats").expect("INFO").command_stats().get("set").map_or(0, |s| s.calls)
}

/// Eight connections from a client's host, ten commands at a time.
struct Application {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Application {
    fn start(lab: &Lab) -> Application {
        let stop = Arc::new(AtomicBool::new(false));
        let seat = lab.client_in(0).and_then(|h| h.seat.clone()).expect("a client's host");
        let options = unslow_client::Options { command_timeout: Duration::from_secs(10), ..Default::default() };
        let threads = (0..8)
            .map(|_| {
                let (stop, seat, options) = (stop.clone(), seat.clone(), options.clone());
                let target = lab.deployment.nodes[0].target();
                std::thread::spawn(move || {
                    // The thread stays there, as a client's does: the doctor tells it by its namespace.
                    seat.enter().expect("the client's host");
                    let mut c = unslow_client::Connection::open(&target, &options).expect("a connection");
                    let value = "x".repeat(100);
                    while !stop.load(Ordering::Relaxed) {
                        let _ = c.pipeline(&vec![vec!["SET", "{t2}", &value]; 10]);
                        std::thread::sleep(Duration::from_millis(2));
                    }
                })
            })
            .collect();
        // Counters of the kernel need some thousand segments: a pipeline is one each way.
        let mut c = lab.deployment.nodes[0].connect().expect("a connection");
        until("the application to be under way", || sets(&mut c) > 60_000);
        Application { stop, threads }
    }
}

impl Drop for Application {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Why the given server, or this machine, cannot show a fault.
fn cannot(fault: &Fault, engine: &Engine) -> Option<&'static str> {
    let old = !engine.is_valkey() && engine.level() < (6, 2);
    let root = std::fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    match fault.rule {
        _ if (fault.root || fault.wired) && !root => Some("needs root"),
        Some("acl_denials" | "error_flood" | "redirect_storm") if old => {
            Some("errors are not counted by kind before 6.2")
        }
        Some("sentinel_master_down") if old => Some("Sentinels have no user for a server before 6.2"),
        Some("ghost_nodes") if old => Some("before 6.2 a node that knows many is not asked for its list"),
        Some("io_threads") if !engine.is_valkey() && engine.level() < (6, 0) => {
            Some("there are no io-threads before 6.0")
        }
        Some("io_threads") if std::thread::available_parallelism().is_ok_and(|n| n.get() >= 16) => {
            Some("this machine has a processor for each of its io-threads")
        }
        Some("normal_buffer_kill") if !engine.is_valkey() && engine.level() < (7, 4) => {
            Some("connections closed at a buffer limit are not counted before 7.4")
        }
        Some("no_pipelining") if old => Some("reads are not counted before 6.0"),
        // memory
        Some("fragmentation") if engine.name != "redis-7.0" => Some("its allocator does not count gaps"),
        Some("tracking_storm" | "tracking_table") if !engine.is_valkey() && engine.level() < (6, 0) => {
            Some("there is no client-side caching before 6.0")
        }
        // The disk.
        Some("aof_rewrite_storm") if !engine.is_valkey() && engine.level() < (7, 0) => {
            Some("rewrites are not counted before 7.0")
        }
        Some("version_mix") if !engine.is_valkey() => Some("the older server of this fault is a Redis 7.0"),
        Some("clock_skew") if !engine.is_valkey() && engine.level() < (7, 0) => {
            Some("INFO does not tell the server's time before 7.0")
        }
        Some("hash_tag_skew") if !engine.is_valkey() && engine.level() < (8, 2) => {
            Some("keys of slots are not listed before Redis 8.2")
        }
        Some("paused") if old => Some("writes cannot be paused alone before 6.2"),
        Some("saves_failing") if old => Some("refusals are not counted by kind before 6.2"),
        _ => None,
    }
}

/// A recorder on the host of the first server. It asks for everything often, so a quarter of a minute is enough.
struct Recorder {
    process: Child,
    scratch: tempfile::TempDir,
    began: SystemTime,
}

impl Recorder {
    /// Records before the fault begins; `None` unless it was asked for.
    fn start(lab: &Lab) -> Option<Recorder> {
        std::env::var_os("UNSLOW_TABLE_RECORDED")?;
        let scratch = tempfile::tempdir().expect("a directory");
        let mut record = beside(lab, 0);
        record.args(["record", &lab.url(), "--quiet", "--every", "1s", "--for", "90s", "--dir"]);
        let process = record.arg(scratch.path().join("r")).spawn().expect("the binary runs");
        let recorder = Recorder { process, scratch, began: SystemTime::now() };
        // Once a machine's servers are known, what they use is counted every second.
        until("the recorder to have asked for everything", || {
            let path = recorder.scratch.path().join("ready.json");
            let save = ["--save".to_string(), path.display().to_string()];
            recorder.diagnose("2s", &save).is_some()
                && std::fs::read_to_string(&path)
                    .is_ok_and(|text| Facts::from_json(&text).is_ok_and(|f| f.hosts.iter().any(|h| h.window_s < 4.0)))
        });
        Some(Recorder { began: SystemTime::now(), ..recorder })
    }

    /// Of the last part, so long, unless `more` says when.
    fn diagnose(&self, length: &str, more: &[String]) -> Option<Report> {
        let mut doctor = Command::new(env!("CARGO_BIN_EXE_unslow"));
        doctor.args(["doctor", "--format", "json", "--quiet", "--for", length, "--recording"]);
        doctor.arg(self.scratch.path().join("r")).args(more);
        let report: Report = serde_json::from_slice(&doctor.output().expect("the binary runs").stdout).ok()?;
        report.error.is_none().then_some(report)
    }

    /// The diagnosis of the window that the live one had, that of the time since the fault began, once that is long
    /// enough, and that of the last seconds.
    fn end(&mut self, live: &Report, rule: &str) -> [Report; 3] {
        const ENOUGH: Duration = Duration::from_secs(14);
        let since = self.began.elapsed().unwrap_or_default();
        std::thread::sleep(ENOUGH.saturating_sub(since));
        let length = self.began.elapsed().unwrap_or(ENOUGH);
        let _ = self.process.kill();
        let _ = self.process.wait();
        let saved = |which: &str| {
            let dir = std::env::var_os("UNSLOW_RECORD").map(PathBuf::from);
            let path = dir.map(|dir| dir.join(format!("{rule}-{which}.json")).display().to_string());
            path.map_or(Vec::new(), |path| vec!["--save".to_string(), path])
        };
        let since = format!("{}ms", length.as_millis());
        let began = Timestamp::from_millisecond(live.at_ms as i64).expect("a time of this century").to_string();
        let same = [vec!["--at".to_string(), began], saved("same")].concat();
        let live = format!("{}ms", (live.window_s * 1000.0) as u64);
        let windows = [(live, same), (since, saved("since")), ("7s".into(), saved("lately"))];
        windows.map(|(length, more)| self.diagnose(&length, &more).expect("a diagnosis of the recording"))
    }
}

/// Faults that fill a server's main thread, which cannot be while others hold its processor.
const FULL: &[&str] = &["big_values", "kernel_bound", "main_thread_saturated", "reads_on_master", "shard_imbalance"];

/// With so much of the machine taken by its hypervisor none of them is full: that is what the doctor says then.
const STOLEN_SHARE: f64 = 0.05;

/// Faults that are told by whose work holds the processors: with programs beside the tests that use more than this many
/// cores, theirs does.
const AMONG_STRANGERS: &[&str] = &["pinned"];
const STRANGERS_CORES: f64 = 0.5;

/// The fault of this rule, which must be named first.
fn is_named_first(rule: &str) {
    let engine = engine();
    let fault = faults::ALL.iter().find(|f| f.rule == Some(rule)).expect("a fault of this rule");
    if let Some(why) = cannot(fault, &engine) {
        table("UNSLOW_TABLE", &format!("{rule:<24} not on {}: {why}", engine.version));
        return skip(&format!("{}: {why}", engine.version));
    }
    if FULL.contains(&rule) {
        unslow_testkit::noise::shield();
    }
    tried_while_busy(TRIES, |attempt| {
        let start = if fault.near { Lab::start_flat } else { Lab::start };
        let lab = start(&fault.topology(&engine.name)).unwrap_or_else(|e| panic!("{rule}: {e}"));
        // The doctor is pointed at the first node; a hang or a death must be found from there.
        let target = match fault.takes {
            Takes::Path => Some("all"),
            Takes::Processes if ["hang", "kill"].contains(&fault.name) => Some("node-2"),
            _ => None,
        };
        let mut recorder = Recorder::start(&lab);
        let active = fault.inject(&lab, target, None).unwrap_or_else(|e| panic!("{rule}: {e}"));
        // A path shows what it does to packets only under packets.
        let application = (fault.takes == Takes::Path).then(|| Application::start(&lab));
        // Rates need a moment to be the fault's own, which it alone knows; a recording's are those of whole seconds.
        std::thread::sleep(Duration::from_millis(if recorder.is_some() { 1500 } else { 300 }));
        let (report, load) = diagnose(beside(&lab, 0), &lab.url(), rule);
        // The questions of a recorder beside it, which are many here, are a monitor's to the live diagnosis.
        let is_recorded = recorder.is_some();
        let is_ours = |id: &String| is_recorded && id == "monitoring_storm" && rule != "monitoring_storm";
        let named = |report: &Report| -> Vec<String> {
            all_named(report, &load, rule).into_iter().filter(|id| !is_ours(id)).collect()
        };
        let first_named = named(&report);
        if let Some(recorder) = &mut recorder {
            let recorded = recorder.end(&report, rule);
            // A recording knows its own questions from those of a monitor.
            let [same, since, lately] = recorded.each_ref().map(|report| all_named(report, &load, rule).join(" "));
            let live = first_named.join(" ");
            let line = format!("{rule:<28} live {live:<28} recorded {same:<28} since {since:<28} lately {lately}");
            table("UNSLOW_TABLE_RECORDED", &line);
        }
        drop((application, active));
        let chain: Vec<&str> =
            report.findings.first().map_or(Vec::new(), |f| f.chain.iter().map(|l| l.id.as_str()).collect());
        let others = report.findings.iter().filter(|f| f.severity > Severity::Risk).map(|f| f.id.as_str());
        let first = first_named.first().map_or("nothing", String::as_str);
        let others: Vec<&str> = others.filter(|id| *id != first).collect();
        let line = format!("{rule:<24} {first:<24} chain [{}] also [{}]", chain.join(" "), others.join(" "));
        table("UNSLOW_TABLE", &line);
        let title = report.findings.first().map_or("nothing found", |f| f.title.as_str());
        if first != rule && AMONG_STRANGERS.contains(&rule) && load.strangers_cores > STRANGERS_CORES {
            skip(&format!("{:.1} cores are used by programs that are no test's", load.strangers_cores));
            return Ok(());
        }
        let is_stolen = FULL.contains(&rule) && load.stolen_share > STOLEN_SHARE;
        if first != rule && is_stolen && attempt == TRIES && others.contains(&"hypervisor_steal") {
            skip(&format!(
                "the hypervisor takes {:.0} % of the machine, as the doctor says",
                100.0 * load.stolen_share
            ));
            return Ok(());
        }
        if first == rule { Ok(()) } else { Err(format!("{rule} is not named first: {line}\n  {title}")) }
    });
}

/// A test for each rule, and the list of them.
macro_rules! named_first {
    ($($rule:ident)*) => {
        $(#[test]
        fn $rule() {
            is_named_first(stringify!($rule));
        })*

        const TESTED: &[&str] = &[$(stringify!($rule)),*];
    };
}

named_first! {
    accept_overflow acl_denials aof_fsync_stall aof_rewrite_storm backlog_too_small bandwidth big_key big_values
    blind_instruments blocking_on_shared_connection busy_polling chatter client_memory clock_skew config_drift
    connection_churn container_memory cpu_throttled dead_peers disk_full_soon error_flood eval_bodies
    eviction_pressure expire_storm failover_flapping far_client fork_stall fragmentation fsync_always full_resync_loop
    ghost_nodes giant_commands giant_transactions growth_without_ttl hash_tag_skew idle_reaper io_threads kernel_bound
    keys_command lock_spinning log_level long_script low_hit_ratio main_thread_saturated master_without_replica
    masters_share_host min_replicas_refusing monitor_attached monitoring_storm no_auth no_failover_possible
    no_majority no_memory_limit no_pipelining node_hangs node_timeout_margin node_unreachable noisy_neighbour
    normal_buffer_kill not_your_redis notifications_for_nobody open_slots out_of_memory packet_loss paused pinned
    publish_in_cluster reads_on_master reconnect_stampede redirect_storm replica_buffer_kill replica_lag
    replica_link_down replica_shares_host resync_storm save_too_often saves_collide saves_failing script_cache
    sentinel_down_after sentinel_master_down sentinel_quorum sentinel_tilt sentinels_share_host shard_imbalance
    slot_map_fragmented slots_uncovered slow_command slow_subscriber too_many_connections topology_storm
    tracking_storm tracking_table version_mix views_disagree watch_conflicts writable_replica
}

#[test]
fn every_rule_that_has_a_fault_is_tested() {
    let mut rules: Vec<&str> = faults::ALL.iter().filter_map(|f| f.rule).collect();
    rules.sort_unstable();
    assert_eq!(rules, TESTED, "the list above is in the alphabet's order");
}

/// A deployment that is odd but well, and what keeps it busy meanwhile.
struct Healthy {
    shape: Shape,
    settings: &'static [(&'static str, &'static str)],
    /// Clients that stay connected without a word.
    idle: usize,
    /// Commands a second, from four clients in pipelines of ten.
    rate: u64,
    /// Done to it before the doctor looks.
    before: fn(&Deployment),
}

impl Default for Healthy {
    fn default() -> Healthy {
        Healthy { shape: Shape::Standalone, settings: &[], idle: 0, rate: 0, before: |_| {} }
    }
}

impl Healthy {
    /// Nothing above risk may be named; once, whatever the machine does.
    fn is_left_alone(&self, name: &str) {
        let engine = engine();
        let deployment = unslow_testkit::servers::deployment(&engine.name, self.shape.clone(), self.settings);
        (self.before)(&deployment);
        let idle: Vec<_> = (0..self.idle).map(|_| deployment.nodes[0].connect().expect("a connection")).collect();
        let stop = AtomicBool::new(false);
        let (report, load) = std::thread::scope(|scope| {
            for i in 0..4u64 {
                let (stop, target, rate) = (&stop, deployment.nodes[0].target(), self.rate);
                scope.spawn(move || {
                    let mut c = Connection::open(&target, &unslow_testkit::options(2)).expect("a connection");
                    while rate > 0 && !stop.load(Ordering::Relaxed) {
                        // A key of the first node's slots, so that a cluster needs no redirect.
                        let batch: Vec<Vec<&str>> = (0..10)
                            .map(|n| if n % 3 == 0 { vec!["SET", "{t2}", "v"] } else { vec!["GET", "{t2}"] })
                            .collect();
                        let _ = c.pipeline(&batch);
                        std::thread::sleep(Duration::from_micros(40_000_000 / rate + i)); // the pace of the load
                    }
                });
            }
            let plain = Command::new(env!("CARGO_BIN_EXE_unslow"));
            let seen = diagnose(plain, &deployment.url(), &format!("healthy_{name}"));
            stop.store(true, Ordering::Relaxed);
            seen
        });
        drop(idle);
        let bad = above_risk(&report, &load);
        let told = if bad.is_empty() { "nothing above risk".to_string() } else { bad.join("; ") };
        table("UNSLOW_TABLE_HEALTHY", &format!("{name:<28} {told}"));
        assert!(bad.is_empty(), "{name} is well, and {bad:?} is named; the machine: {load}");
    }
}

/// Findings above risk, but for the neighbour where there is one.
fn above_risk(report: &Report, load: &Load) -> Vec<String> {
    let real = |f: &&Finding| f.severity > Severity::Risk && !(NEIGHBOURS.contains(&f.id.as_str()) && load.busy());
    report.findings.iter().filter(real).map(|f| format!("{}: {}", f.id, f.title)).collect()
}

mod healthy {
    use super::*;

    /// A test for each deployment.
    macro_rules! left_alone {
        ($($name:ident: $healthy:expr;)*) => {
            $(#[test]
            fn $name() {
                $healthy.is_left_alone(stringify!($name));
            })*
        };
    }

    left_alone! {
        idle: Healthy::default();
        idle_pair: Healthy { shape: Shape::MasterReplica { replicas: 1 }, ..Healthy::default() };
        idle_sentinel: Healthy {
            shape: Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 2 },
            ..Healthy::default()
        };
        freshly_restarted_cluster: Healthy {
            shape: Shape::six_nodes(),
            before: |d| d.nodes[4].restart().expect("it starts again"),
            ..Healthy::default()
        };
        busy_but_fine: Healthy { rate: 5000, ..Healthy::default() };
        busy_cluster: Healthy { shape: Shape::six_nodes(), rate: 5000, ..Healthy::default() };
        many_idle_clients: Healthy { idle: 1500, ..Healthy::default() };
        no_persistence: Healthy {
            settings: &[("save", "\"\""), ("appendonly", "no")],
            rate: 1000,
            ..Healthy::default()
        };
        persistent: Healthy {
            settings: &[("appendonly", "yes"), ("save", "3600 1")],
            rate: 2000,
            ..Healthy::default()
        };
        huge_peak_memory: Healthy { before: fill_and_empty, ..Healthy::default() };
    }

    /// Leaves a peak behind: 50 MB that are gone again.
    fn fill_and_empty(deployment: &Deployment) {
        let mut c = deployment.nodes[0].connect().expect("a connection");
        let value = "x".repeat(100_000);
        for i in 0..500 {
            c.call(&["SET", &format!("k:{i}"), &value]).expect("written");
        }
        c.call(&["FLUSHALL"]).expect("emptied");
        c.call(&["SLOWLOG", "RESET"]).expect("the past is past");
    }

    /// Zones are no fault: some node is far from any place.
    #[test]
    fn busy_cluster_over_three_zones() {
        let mut topology = unslow_lab::topology::Topology::standard();
        topology.deployment.server = engine().name;
        let lab = Lab::start(&topology).unwrap_or_else(|e| panic!("{e}"));
        let application = Application::start(&lab);
        // Beside a server, and from where the clients are.
        let client = lab.client_in(1).expect("a client's host");
        for from in [&lab.hosts[lab.places[0]], client] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_unslow"));
            lab.place(from, &mut command).unwrap_or_else(|e| panic!("{e}"));
            let (report, load) = diagnose(command, &lab.url(), "healthy_zones");
            let bad = above_risk(&report, &load);
            assert!(bad.is_empty(), "from {}: {bad:?}; the machine: {load}", from.name);
        }
        drop(application);
    }
}
