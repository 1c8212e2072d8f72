//! Faults of a server and its settings: saving, memory, expiry, instruments, doors.

use std::sync::Arc;

use unslow_client::{Connection, Value};
use unslow_engine::{Server, info};
use unslow_testkit::until;

use crate::Ill;
use crate::means::slow_server;
use crate::stage::{Client, Made, Stage, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "cache_aside_too_small",
        how: "20 MB, allkeys-random; a cache-aside client of 60,000 keys, two reads of three miss",
        first: "eviction_pressure",
        make: cache_aside_too_small,
    },
    Ill {
        name: "midnight_in_four_databases",
        how: "600,000 sessions in four databases whose TTLs end in the same second",
        first: "expire_storm",
        make: midnight_in_four_databases,
    },
    Ill {
        name: "bgsave_by_cron",
        how: "a job that asks for BGSAVE three times a second",
        first: "save_too_often",
        make: bgsave_by_cron,
    },
    Ill {
        name: "save_1_1",
        how: "CONFIG SET save '1 1' from a developer's file, one counter that moves",
        first: "save_too_often",
        make: save_1_1,
    },
    Ill {
        name: "rewrite_forks_slowly",
        how: "a fork of 400 ms (a preload of ours), by BGREWRITEAOF",
        first: "fork_stall",
        make: rewrite_forks_slowly,
    },
    Ill {
        name: "always_on_a_slow_disk",
        how: "appendfsync always on a disk that syncs in 150 ms (a preload of ours)",
        first: "fsync_always",
        make: always_on_a_slow_disk,
    },
    Ill {
        name: "slow_log_off",
        how: "slowlog-log-slower-than -1, with the latency monitor on",
        first: "blind_instruments",
        make: slow_log_off,
    },
    Ill {
        name: "open_to_all",
        how: "bind * -::*, protected-mode no, no password",
        first: "no_auth",
        make: open_to_all,
    },
];

fn cache_aside_too_small(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxmemory", "20mb"), ("maxmemory-policy", "allkeys-random")]);
    let value = "x".repeat(1000);
    for seed in 1..3u64 {
        let (mut c, value, mut at) = (Client::of(&server), value.clone(), seed);
        stage.work(move |on| {
            let names: Vec<String> = (0..20)
                .map(|_| {
                    at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    format!("page:{}", (at >> 33) % 60_000)
                })
                .collect();
            let gets: Vec<Vec<String>> = names.iter().map(|n| words(&["GET", n])).collect();
            let Some(replies) = c.pipeline(&gets) else { return };
            let missing = names.iter().zip(&replies).filter(|(_, reply)| matches!(reply, Some(Value::Null)));
            let sets: Vec<Vec<String>> = missing.map(|(n, _)| words(&["SET", n, &value])).collect();
            if !sets.is_empty() {
                let _ = c.pipeline(&sets);
            }
            on.pause(ms(4));
        });
    }
    let mut c = open(&server);
    until("keys to be evicted", || info(&mut c, "stats").is_ok_and(|i| i.number("evicted_keys") > Some(5000.0)));
    Ok(())
}

fn midnight_in_four_databases(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut c = open(&server);
    let server_ms = |c: &mut Connection| {
        let time = c.call(&["TIME"]).expect("TIME");
        let number = |i: usize| time.items().get(i).and_then(Value::integer).unwrap_or(0);
        number(0) * 1000 + number(1) / 1000
    };
    let mut midnight = 0;
    for lead_s in [12, 24, 48] {
        midnight = server_ms(&mut c) + lead_s * 1000;
        for database in 0..4 {
            c.call(&["SELECT", &database.to_string()]).expect("a database");
            for begin in (0..150_000).step_by(2000) {
                let ttl = (midnight - server_ms(&mut c)).max(1).to_string();
                let batch: Vec<Vec<String>> =
                    (begin..begin + 2000).map(|i| words(&["PSETEX", &format!("session:{i}"), &ttl, "x"])).collect();
                c.pipeline(&batch).expect("the server takes it");
            }
        }
        // On a slow machine midnight may have come before all was written.
        if midnight - server_ms(&mut c) > 1500 {
            break;
        }
    }
    // The doctor needs a moment before its window begins.
    while midnight - server_ms(&mut c) > 1500 {
        std::thread::sleep(ms(20));
    }
    stage.application(&server, 500);
    Ok(())
}

/// Data that a save takes a moment for.
fn some_data(stage: &mut Stage, settings: &[(&str, &str)]) -> Arc<Server> {
    let server = stage.server(settings);
    fill(&server, 40_000, |i| words(&["SET", &format!("order:{i}"), &"x".repeat(300)]));
    server
}

pub fn bgsave_by_cron(stage: &mut Stage) -> Made {
    if !stage.since((6, 2)) {
        return Err("forks are not counted before 6.2");
    }
    let server = some_data(stage, &[]);
    stage.application(&server, 500);
    stage.repeat(&server, ms(330), &["BGSAVE"]);
    Ok(())
}

pub fn save_1_1(stage: &mut Stage) -> Made {
    let server = some_data(stage, &[]);
    open(&server).call(&["CONFIG", "SET", "save", "1 1"]).expect("a setting");
    stage.repeat(&server, ms(100), &["INCR", "visits"]);
    std::thread::sleep(ms(1000)); // the first save is not yet a habit
    Ok(())
}

fn rewrite_forks_slowly(stage: &mut Stage) -> Made {
    let server = slow_server(stage, &[("appendonly", "yes")], "ODD_FORK_MS", 400);
    stage.application(&server, 200);
    let mut c = open(&server);
    c.call(&["BGREWRITEAOF"]).expect("a rewrite");
    until("the rewrite to be over", || {
        info(&mut c, "all").is_ok_and(|i| {
            i.number("latest_fork_usec") > Some(300_000.0) && i.get("aof_rewrite_in_progress") == Some("0")
        })
    });
    Ok(())
}

fn always_on_a_slow_disk(stage: &mut Stage) -> Made {
    let settings = [("appendonly", "yes"), ("appendfsync", "always"), ("latency-monitor-threshold", "20")];
    let server = slow_server(stage, &settings, "ODD_FSYNC_MS", 150);
    stage.repeat(&server, ms(50), &["SET", "balance", "1"]);
    stage.repeat(&server, ms(50), &["GET", "balance"]);
    let mut c = open(&server);
    until("the latency monitor to have seen it", || {
        c.call(&["LATENCY", "LATEST"]).is_ok_and(|v| !v.items().is_empty())
    });
    Ok(())
}

fn slow_log_off(stage: &mut Stage) -> Made {
    let server = stage.server(&[("slowlog-log-slower-than", "-1"), ("latency-monitor-threshold", "100")]);
    stage.application(&server, 200);
    Ok(())
}

fn open_to_all(stage: &mut Stage) -> Made {
    let bind = if stage.since((6, 2)) { "* -::*" } else { "0.0.0.0" };
    let server = stage.server(&[("bind", bind), ("protected-mode", "no")]);
    stage.application(&server, 200);
    Ok(())
}
