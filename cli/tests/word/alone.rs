//! B9 and E25: tests that compare the doctor's figures with their own measurement. `tests.toml` runs them alone.

use std::time::{Duration, Instant};

use unslow_engine::Server;
use unslow_testkit::{Noise, skip, standalone, tried_while_busy};

use crate::run::doctor;

/// Time on a processor of all threads of a process, by the kernel's clock.
fn ran(pid: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let ns = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(ns.sum())
}

/// E25: the report prints at least half of what an idle server really pays for the doctor.
#[test]
fn the_printed_cost_is_at_least_half_of_the_measured_one() {
    let servers = ["valkey-9.1", "redis-6.2"].map(standalone);
    if servers.iter().any(|server| ran(server.pid()).is_zero()) {
        return skip("this kernel does not count the time of threads (schedstat)");
    }
    // A server's own time on a processor is counted, whatever runs beside it.
    std::thread::scope(|scope| {
        for server in &servers {
            scope.spawn(move || assert_printed_cost(server));
        }
    });
}

fn assert_printed_cost(server: &Server) {
    tried_while_busy(3, |_| {
        let (begun, before) = (Instant::now(), ran(server.pid()));
        let run = doctor(&server.url(), &["--window", "2s"]);
        let (took, after) = (begun.elapsed(), ran(server.pid()));
        // What an idle server uses in the same time.
        std::thread::sleep(took);
        let idle = ran(server.pid()) - after;
        let paid = (after - before).saturating_sub(idle).as_secs_f64();
        let number = |field: &str| run.json["cost"][field].as_f64().expect("a number");
        let printed = number("server_cpu_share") * number("seconds");
        let ratio = printed / paid.max(1e-9);
        let url = server.url();
        if ratio >= 0.5 {
            Ok(())
        } else {
            Err(format!("{url}: the printed cost is {ratio:.2} of the measured one: {run}"))
        }
    });
}

/// From here on the doctor would be tempted to name it.
const STOLEN: f64 = 0.05;

/// B9: on a machine with steal, as the doctor itself sees it.
#[test]
fn steal_is_no_cause_on_a_quiet_server() {
    // A look is enough to see whether time is stolen.
    let noise = Noise::watch();
    std::thread::sleep(Duration::from_millis(500));
    let load = noise.so_far();
    if load.stolen_share <= STOLEN {
        return skip(&format!("no time is stolen from this machine now: {load}"));
    }
    let server = standalone("valkey-9.1");
    let noise = Noise::watch();
    let run = doctor(&server.url(), &["--window", "5s"]);
    let load = noise.so_far();
    if load.stolen_share <= STOLEN {
        return skip(&format!("no time is stolen from this machine now: {load}"));
    }
    let named = |id: &&&str| id.contains("neighbour") || id.contains("steal") || id.contains("stolen");
    assert_eq!(run.above_risk().iter().find(named), None, "the machine: {load}; {run}");
}
