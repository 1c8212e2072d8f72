//! Remedies applied: what a finding says a fault costs, compared with what its end gives back, by the server's CPU
//! clock or by the mean wait of a bystander.
//!
//! The ratio is measured live, so it goes into a table and is not asserted. The test asserts that the finding has
//! disappeared.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Endpoint, Target, TlsOptions};
use unslow_doctor::{Report, Severity};
use unslow_engine::{Server, ServerSpec, info};
use unslow_testkit::engine;
use unslow_testkit::servers::settings;

use crate::common::tls_settings;
use crate::stage::{Client, Made, Make, Stage, WINDOW_TIME, at_work, fill, ms, open, target, words};
use crate::{ill_clients, ill_habits, ill_server};

/// A fault whose price is a number, and whose clients change their ways when the stage is mended.
pub struct Remedy {
    pub name: &'static str,
    /// The rule that names it, and whose number is compared.
    pub rule: &'static str,
    pub make: Make,
}

pub const CASES: &[Remedy] = &[
    Remedy { name: "keys_on_200_000", rule: "keys_command", make: keys_on_200_000 },
    Remedy { name: "keys_often", rule: "keys_command", make: ill_clients::cache_emptied_by_pattern },
    Remedy { name: "keys_on_50_000", rule: "keys_command", make: keys_on_50_000 },
    Remedy { name: "keys_in_a_script", rule: "keys_command", make: ill_clients::keys_in_a_script },
    Remedy { name: "smembers", rule: "big_key", make: ill_clients::smembers },
    Remedy { name: "lrange_of_all", rule: "big_key", make: ill_clients::whole_list_read },
    Remedy { name: "zrange_of_all", rule: "big_key", make: ill_clients::whole_board_read },
    Remedy { name: "sort", rule: "big_key", make: ill_clients::list_sorted },
    Remedy { name: "mget_of_ten_thousand", rule: "giant_commands", make: ill_clients::mget_of_ten_thousand },
    Remedy { name: "pfcount_of_a_thousand", rule: "slow_command", make: ill_clients::pfcount_of_a_thousand },
    Remedy { name: "sets_intersected", rule: "big_key", make: sets_intersected },
    Remedy { name: "scan_with_count_100000", rule: "slow_command", make: ill_clients::scan_with_count_100000 },
    Remedy { name: "script_of_30_ms", rule: "long_script", make: script_of_30_ms },
    Remedy { name: "script_of_20_ms", rule: "long_script", make: script_of_20_ms },
    Remedy { name: "script_of_milliseconds", rule: "long_script", make: ill_clients::scripts_of_milliseconds },
    Remedy { name: "script_once_a_second", rule: "long_script", make: script_once_a_second },
    Remedy { name: "function", rule: "long_script", make: ill_clients::function_in_a_loop },
    Remedy { name: "info_storm", rule: "monitoring_storm", make: ill_clients::info_storm },
    Remedy { name: "client_list", rule: "monitoring_storm", make: ill_clients::client_list_of_two_thousand },
    Remedy { name: "client_list_of_500", rule: "monitoring_storm", make: client_list_of_500 },
    Remedy { name: "config_get_all", rule: "monitoring_storm", make: ill_clients::config_get_all },
    Remedy { name: "command_tables", rule: "monitoring_storm", make: command_tables },
    Remedy { name: "cluster_nodes", rule: "topology_storm", make: ill_clients::fragmented_map_polled },
    Remedy { name: "cluster_slots", rule: "topology_storm", make: ill_clients::fragmented_slots_polled },
    Remedy { name: "cluster_shards", rule: "topology_storm", make: ill_clients::fragmented_shards_polled },
    Remedy { name: "connections", rule: "connection_churn", make: connections },
    Remedy { name: "connections_auth_select", rule: "connection_churn", make: ill_clients::connection_auth_select },
    Remedy { name: "connections_resp3", rule: "connection_churn", make: connections_resp3 },
    Remedy { name: "connections_tls", rule: "connection_churn", make: connections_tls },
    Remedy { name: "delayed_jobs_polled", rule: "busy_polling", make: ill_habits::delayed_jobs_polled },
    Remedy { name: "broadcast_of_a_hot_prefix", rule: "tracking_storm", make: ill_habits::broadcast_of_a_hot_prefix },
    Remedy { name: "eval_of_8_kb", rule: "eval_bodies", make: eval_of_8_kb },
    Remedy { name: "bgsave_by_cron", rule: "save_too_often", make: ill_server::bgsave_by_cron },
];

fn keys_on_200_000(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 200_000, |i| words(&["SET", &format!("session:{i}"), "x"]));
    stage.application(&server, 500);
    stage.repeat(&server, ms(300), &["KEYS", "session:*777"]);
    Ok(())
}

fn keys_on_50_000(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 50_000, |i| words(&["SET", &format!("basket:{i}"), "x"]));
    stage.application(&server, 500);
    stage.repeat(&server, ms(60), &["KEYS", "basket:*77"]);
    Ok(())
}

/// Members that only the first set has, so that the answer is short and the work is not.
fn sets_intersected(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    for set in ["followers", "members"] {
        fill(&server, 200_000, |i| words(&["SADD", &format!("{{t}}{set}"), &format!("{set}:{i}")]));
    }
    stage.application(&server, 500);
    stage.repeat(&server, ms(100), &["SINTER", "{t}followers", "{t}members"]);
    Ok(())
}

fn client_list_of_500(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let idle: Vec<Connection> = (0..500).map(|_| open(&server)).collect();
    stage.keep(idle);
    stage.application(&server, 500);
    stage.repeat(&server, ms(20), &["CLIENT", "LIST"]);
    Ok(())
}

fn script_of_20_ms(stage: &mut Stage) -> Made {
    ill_clients::script_loop(stage, "2000000", 100)
}

fn script_of_30_ms(stage: &mut Stage) -> Made {
    ill_clients::script_loop(stage, "2500000", 150)
}

fn script_once_a_second(stage: &mut Stage) -> Made {
    ill_clients::script_loop(stage, "10000000", 900)
}

fn command_tables(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 500);
    for _ in 0..2 {
        stage.repeat(&server, ms(4), &["COMMAND"]);
    }
    at_work(&server, "command");
    Ok(())
}

/// Clients that send the text of a script, until they are mended: then its digest.
fn eval_of_8_kb(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let script = format!("-- {}\nreturn redis.call('INCR', KEYS[1])", "what the library says of itself ".repeat(256));
    let digest = open(&server).call(&["SCRIPT", "LOAD", &script]).expect("it compiles");
    let digest = digest.text().expect("a digest");
    for _ in 0..4 {
        let (mut c, script, digest) = (Client::of(&server), script.clone(), digest.clone());
        stage.work(move |on| {
            let _ = match on.mended() {
                false => c.call(&["EVAL", &script, "1", "{t2}requests"]),
                true => c.call(&["EVALSHA", &digest, "1", "{t2}requests"]),
            };
            on.pause(ms(1));
        });
    }
    at_work(&server, "eval");
    Ok(())
}

fn connections(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    ill_clients::churn(stage, ms(2), || Client::of(&server));
    Ok(())
}

fn connections_resp3(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there is no HELLO before 6.0");
    }
    let server = stage.server(&[]);
    open(&server).call(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]).expect("a user");
    let app = target(&server, Some(("app", "pw")), 1);
    ill_clients::churn(stage, ms(3), || Client::at(app.clone()).with_resp3());
    Ok(())
}

fn connections_tls(stage: &mut Stage) -> Made {
    let dir = tempfile::tempdir().expect("a directory");
    let (of, port) = tls_settings(dir.path());
    let mut of: Vec<(&str, &str)> = of.iter().map(|(k, v)| (*k, v.as_str())).collect();
    of.push(("tls-auth-clients", "no"));
    let spec = ServerSpec { settings: settings(&of), ..ServerSpec::default() };
    let server = stage.server_on(&engine("redis-7.0"), spec);
    let encrypted = Target { endpoints: vec![Endpoint::Tcp("127.0.0.1".into(), port)], ..server.target() };
    let trust = TlsOptions { ca: Some(dir.path().join("ca.crt")), ..TlsOptions::default() };
    stage.keep(dir);
    ill_clients::churn(stage, ms(20), || Client::at(encrypted.clone()).with_tls(trust.clone()));
    Ok(())
}

/// What became of one remedy.
pub struct Given {
    /// In which unit.
    pub unit: String,
    /// The finding's number.
    pub predicted: f64,
    /// What the end of the fault gave back.
    pub measured: f64,
    /// The rule's finding is still there, above risk.
    pub stays: bool,
}

/// Looks and measures, mends, measures and looks again. An error in words where the finding is not there to begin with.
///
/// What is predicted is measured in the same seconds: a machine that is slower for a while would otherwise be taken for
/// a wrong price, and waits grow with the square of a call's length.
pub fn apply(case: &Remedy, stage: &mut Stage) -> Result<Given, String> {
    let server = stage.first().ok_or("no server")?;
    let clock = Clock::of(case.rule);
    let ((ill, _), before) = clock.during(&server, || stage.diagnose(case.name, &[]));
    let found = ill.findings.iter().find(|f| f.id == case.rule && f.severity > Severity::Risk);
    let found = found.ok_or_else(|| format!("{} is not found", case.rule))?;
    // A cause shows the highest impact of its chain; here cause and consequence are the same time, counted twice.
    let (unit, predicted) = (found.impact.unit.clone(), found.impact.value);
    if unit != clock.unit() {
        return Err(format!("{unit} is not what {} is priced in here", case.rule));
    }
    stage.mend();
    std::thread::sleep(ms(1000)); // what was in flight ends
    let ((), after) = clock.during(&server, || std::thread::sleep(MEASURED));
    let (well, _) = stage.diagnose(&format!("{}_mended", case.name), &["--only", case.rule]);
    // The doctor looked during the first measurement only.
    let before = if let Clock::Server = clock { before - ill.cost.server_cpu_share } else { before };
    Ok(Given { unit, predicted, measured: before - after, stays: still(&well, case.rule) })
}

fn still(report: &Report, rule: &str) -> bool {
    report.findings.iter().any(|f| f.id == rule && f.severity > Severity::Risk)
}

/// How long the mended server is measured: as long as the doctor's window.
const MEASURED: Duration = WINDOW_TIME;

/// What an impact is compared with.
enum Clock {
    /// CPU time of the server, in cores.
    Server,
    /// CPU time of its children.
    Children,
    /// The mean wait of a client that has nothing to do with the fault, in ms.
    Bystander,
}

impl Clock {
    fn of(rule: &str) -> Clock {
        match rule {
            "save_too_often" => Clock::Children,
            "monitoring_storm" | "topology_storm" | "connection_churn" | "busy_polling" | "tracking_storm"
            | "eval_bodies" => Clock::Server,
            _ => Clock::Bystander,
        }
    }

    /// What the impacts are in that it can be compared with.
    fn unit(&self) -> &'static str {
        match self {
            Clock::Server | Clock::Children => "share_of_core",
            Clock::Bystander => "ms_per_request",
        }
    }

    /// Does something, and what was spent or waited meanwhile.
    fn during<T>(&self, server: &Server, something: impl FnOnce() -> T) -> (T, f64) {
        match self {
            Clock::Server => cores(server, &["used_cpu_user", "used_cpu_sys"], something),
            Clock::Children => cores(server, &["used_cpu_user_children", "used_cpu_sys_children"], something),
            Clock::Bystander => {
                let bystander = Bystander::start(server);
                let done = something();
                (done, bystander.mean_wait_ms())
            }
        }
    }
}

fn cores<T>(server: &Server, fields: &[&str], something: impl FnOnce() -> T) -> (T, f64) {
    let mut c = open(server);
    let spent = |c: &mut Connection| -> f64 {
        let cpu = info(c, "cpu").expect("INFO cpu");
        fields.iter().filter_map(|f| cpu.number(f)).sum()
    };
    let (begun, before) = (Instant::now(), spent(&mut c));
    let done = something();
    (done, (spent(&mut c) - before) / begun.elapsed().as_secs_f64())
}

/// A GET every millisecond on a schedule, whatever became of those before: each wait counts from the moment it was due.
struct Bystander {
    over: Arc<AtomicBool>,
    asking: JoinHandle<()>,
    /// What was waited in all, and for how many replies.
    reading: JoinHandle<(Duration, u32)>,
}

impl Bystander {
    fn start(server: &Server) -> Bystander {
        let mut writer = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
        writer.set_nodelay(true).expect("an option");
        let mut reader = writer.try_clone().expect("a second handle");
        reader.set_read_timeout(Some(ms(200))).expect("a limit");
        let due: Arc<Mutex<VecDeque<Instant>>> = Arc::default();
        let over = Arc::new(AtomicBool::new(false));
        let asking = std::thread::spawn({
            let (due, over) = (due.clone(), over.clone());
            move || {
                let begun = Instant::now();
                for n in 0.. {
                    let at = begun + ms(n);
                    std::thread::sleep(at.saturating_duration_since(Instant::now()));
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    due.lock().unwrap_or_else(PoisonError::into_inner).push_back(at);
                    writer.write_all(b"GET {t2}absent\r\n").expect("the server takes it");
                }
            }
        });
        let reading = std::thread::spawn({
            let over = over.clone();
            move || read_replies(&mut reader, &due, &over)
        });
        Bystander { over, asking, reading }
    }

    fn mean_wait_ms(self) -> f64 {
        self.over.store(true, Ordering::Relaxed);
        self.asking.join().expect("it asks to the end");
        let (waited, replies) = self.reading.join().expect("it counts to the end");
        waited.as_secs_f64() * 1000.0 / f64::from(replies.max(1))
    }
}

/// Until it is over and no more replies come.
fn read_replies(reader: &mut TcpStream, due: &Mutex<VecDeque<Instant>>, over: &AtomicBool) -> (Duration, u32) {
    const REPLY: usize = b"$-1\r\n".len();
    let (mut waited, mut replies, mut bytes) = (Duration::ZERO, 0u32, 0);
    let mut buffer = [0u8; 4096];
    loop {
        match reader.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => bytes += n,
            Err(_) if over.load(Ordering::Relaxed) => break,
            Err(_) => continue,
        }
        let now = Instant::now();
        let mut due = due.lock().unwrap_or_else(PoisonError::into_inner);
        while bytes >= REPLY {
            bytes -= REPLY;
            waited += due.pop_front().map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
            replies += 1;
        }
    }
    (waited, replies)
}
