//! Faults of a server's memory: what holds it, what bounds it, and what will fill it.

use std::process::Command;

use unslow_client::Connection;
use unslow_engine::info;
use unslow_testkit::{engine, until};

use crate::Ill;
use crate::means::Group;
use crate::stage::{Client, Made, Stage, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "half_of_the_sessions_expire",
        how: "Redis 7.0; half of 100,000 sessions of 400 bytes expire, profiles of 600 come",
        first: "fragmentation",
        make: half_of_the_sessions_expire,
    },
    Ill {
        name: "sidecar_in_the_container",
        how: "200 MB for a server and the process beside it, which takes 184",
        first: "container_memory",
        make: sidecar_in_the_container,
    },
    Ill {
        name: "stream_without_maxlen",
        how: "300 MB for a server without maxmemory, a stream that is never trimmed",
        first: "no_memory_limit",
        make: stream_without_maxlen,
    },
    Ill {
        name: "users_for_ever",
        how: "maxmemory 150 MB, noeviction; 1,000 hashes of 5 kB a second, one of twenty with a TTL",
        first: "growth_without_ttl",
        make: users_for_ever,
    },
    Ill {
        name: "transactions_left_open",
        how: "maxmemory 300 MB; twenty clients with three values of 1 MB after MULTI, and no EXEC",
        first: "client_memory",
        make: transactions_left_open,
    },
    Ill {
        name: "script_load_per_request",
        how: "SCRIPT LOAD of a text with the order's number in it, then EVALSHA, 1,000 a second",
        first: "script_cache",
        make: script_load_per_request,
    },
    Ill {
        name: "caching_client_reads_all",
        how: "RESP3 tracking without OPTIN over 20,000 keys, a table of 2,000",
        first: "tracking_table",
        make: caching_client_reads_all,
    },
];

/// The containers' megabyte.
const MB: u64 = 1 << 20;

fn half_of_the_sessions_expire(stage: &mut Stage) -> Made {
    stage.engine = engine("redis-7.0");
    let server = stage.server(&[("maxmemory", "100mb")]);
    fill(&server, 100_000, |i| words(&["SET", &format!("session:{i}"), &"x".repeat(400)]));
    fill(&server, 50_000, |i| words(&["PEXPIRE", &format!("session:{}", i * 2 + 1), "1"]));
    let mut c = open(&server);
    until("half of them to be gone", || {
        c.call(&["DBSIZE"]).is_ok_and(|v| v.integer().is_some_and(|keys| keys <= 50_000))
    });
    fill(&server, 25_000, |i| words(&["SET", &format!("profile:{i}"), &"x".repeat(600)]));
    stage.application(&server, 200);
    Ok(())
}

fn sidecar_in_the_container(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxmemory", "100mb")]);
    let group = Group::with_memory(server.pid(), 200 * MB)?;
    let mut sidecar = Command::new("sh");
    let take = "echo $$ > \"$0\" && exec python3 -c 'import time; x = b\"x\" * (184 << 20); time.sleep(600)'";
    sidecar.args(["-c", take]).arg(group.door());
    stage.program(sidecar);
    until("the process beside it to have its memory", || group.charged() > 184 * MB);
    // Kept, and not ended first: a group goes when its processes have.
    stage.keep(group);
    stage.application(&server, 200);
    Ok(())
}

fn stream_without_maxlen(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let group = Group::with_memory(server.pid(), 300 * MB)?;
    stage.keep(group);
    let entry = "x".repeat(5000);
    fill(&server, 18_000, |_| words(&["XADD", "audit", "*", "line", &entry]));
    let mut c = Client::of(&server);
    let batch = vec![words(&["XADD", "audit", "*", "line", &entry]); 10];
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(10));
    });
    Ok(())
}

fn users_for_ever(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxmemory", "150mb"), ("maxmemory-policy", "noeviction")]);
    let (mut c, mut i, page) = (Client::of(&server), 0u64, "x".repeat(5000));
    stage.work(move |on| {
        i += 1;
        let mut batch: Vec<Vec<String>> =
            (0..20).map(|n| words(&["HSET", &format!("user:{i}:{n}"), "page", &page])).collect();
        batch.push(words(&["EXPIRE", &format!("user:{i}:0"), "600"]));
        let _ = c.pipeline(&batch);
        on.pause(ms(20));
    });
    Ok(())
}

fn transactions_left_open(stage: &mut Stage) -> Made {
    if !stage.since((7, 0)) {
        return Err("queued commands are not counted among clients' memory before 7.0");
    }
    let server = stage.server(&[("maxmemory", "300mb"), ("maxmemory-policy", "noeviction")]);
    let image = "x".repeat(1_000_000);
    let half_done: Vec<Connection> = (0..20)
        .map(|i| {
            let mut c = open(&server);
            c.call(&["MULTI"]).expect("a transaction");
            for n in 0..3 {
                c.call(&["SET", &format!("image:{i}:{n}"), &image]).expect("queued");
            }
            c
        })
        .collect();
    stage.keep(half_done);
    let mut c = open(&server);
    until("the server to count what waits in them", || {
        info(&mut c, "memory").is_ok_and(|i| i.number("mem_clients_normal") > Some(50_000_000.0))
    });
    stage.application(&server, 200);
    Ok(())
}

fn script_load_per_request(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let text = |order: usize| format!("redis.call('INCR', KEYS[1]) return 'order {order}'");
    fill(&server, 1100, |i| words(&["SCRIPT", "LOAD", &text(i)]));
    let (mut c, mut order) = (Client::of(&server), 1100);
    stage.work(move |on| {
        let loads: Vec<Vec<String>> = (0..10)
            .map(|_| {
                order += 1;
                words(&["SCRIPT", "LOAD", &text(order)])
            })
            .collect();
        let digests = c.pipeline(&loads).unwrap_or_default();
        let calls: Vec<Vec<String>> =
            digests.into_iter().filter_map(|reply| Some(words(&["EVALSHA", &reply?.text()?, "1", "orders"]))).collect();
        if !calls.is_empty() {
            let _ = c.pipeline(&calls);
        }
        on.pause(ms(10));
    });
    Ok(())
}

fn caching_client_reads_all(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there is no client-side caching before 6.0");
    }
    let server = stage.server(&[("tracking-table-max-keys", "2000")]);
    fill(&server, 20_000, |i| words(&["SET", &format!("page:{i}"), "text"]));
    let (mut c, mut from) = (Client::of(&server).with_resp3(), 0);
    stage.work(move |on| {
        // Again each time: the connection may be another.
        let mut batch = vec![words(&["CLIENT", "TRACKING", "ON"])];
        batch.extend((from..from + 100).map(|i| words(&["GET", &format!("page:{}", i % 20_000)])));
        from = (from + 100) % 20_000;
        let _ = c.pipeline(&batch);
        on.pause(ms(10));
    });
    let mut c = open(&server);
    until("the table to be full", || {
        info(&mut c, "stats").is_ok_and(|i| i.number("tracking_total_keys") >= Some(1900.0))
    });
    Ok(())
}
