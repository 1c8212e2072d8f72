//! Faults that the habits of clients make: checks before each command, polls of empty queues, caches that miss, denied
//! rights, scripts sent whole, transactions that collide, locks that are spun on, clients that come back at once.

use std::io::{Read, Write};
use std::net::TcpStream;

use unslow_engine::{Shape, info};
use unslow_testkit::until;

use crate::Ill;
use crate::healthy_alone::reader;
use crate::stage::{Client, Made, Stage, at_work, fill, ms, open, target, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "ping_on_borrow",
        how: "eight raw clients that PING before each INCR",
        first: "chatter",
        make: ping_on_borrow,
    },
    Ill {
        name: "select_before_each",
        how: "redis-py: SELECT before each INCR, six threads",
        first: "chatter",
        make: select_before_each,
    },
    Ill {
        name: "auth_before_each",
        how: "a connection that is kept, and AUTH before each GET on it",
        first: "chatter",
        make: auth_before_each,
    },
    Ill {
        name: "list_polled",
        how: "redis-benchmark: LPOP of a list that is empty, four connections",
        first: "busy_polling",
        make: list_polled,
    },
    Ill {
        name: "stream_polled",
        how: "redis-py: XREADGROUP without BLOCK, eight threads",
        first: "busy_polling",
        make: stream_polled,
    },
    Ill {
        name: "delayed_jobs_polled",
        how: "ZRANGEBYSCORE from -inf to now where every job is due later, without a pause",
        first: "busy_polling",
        make: delayed_jobs_polled,
    },
    Ill {
        name: "ttl_too_short",
        how: "redis-py: cache-aside over 1,000 pages that live for 150 ms",
        first: "low_hit_ratio",
        make: ttl_too_short,
    },
    Ill {
        name: "absent_records_not_cached",
        how: "64 MB and allkeys-lru, half of the GETs are for records that no one has, and none is written",
        first: "low_hit_ratio",
        make: absent_records_not_cached,
    },
    Ill {
        name: "key_prefix_denied",
        how: "an ACL user for ~app:* whose release writes to a new prefix",
        first: "acl_denials",
        make: key_prefix_denied,
    },
    Ill {
        name: "eval_by_redis_py",
        how: "redis-py: r.eval() of 4 kB, eight threads",
        first: "eval_bodies",
        make: eval_by_redis_py,
    },
    Ill {
        name: "transactions_by_redis_py",
        how: "redis-py: r.transaction() on one key, eight threads",
        first: "watch_conflicts",
        make: transactions_by_redis_py,
    },
    Ill {
        name: "import_by_redis_py",
        how: "redis-py: r.pipeline() as it is by default, 50,000 SETs in each",
        first: "giant_transactions",
        make: import_by_redis_py,
    },
    Ill {
        name: "prices_in_one_mset",
        how: "redis-py: r.mset() of 100,000 small keys, over and over",
        first: "giant_commands",
        make: prices_in_one_mset,
    },
    Ill {
        name: "pages_of_100_kb",
        how: "redis-benchmark: GET of 100 kB, fifty connections",
        first: "big_values",
        make: pages_of_100_kb,
    },
    Ill {
        name: "publish_by_redis_py",
        how: "redis-py: pipelines of PUBLISH to one node of a cluster of six, two processes",
        first: "publish_in_cluster",
        make: publish_by_redis_py,
    },
    Ill {
        name: "user_killed_every_few_seconds",
        how: "CLIENT KILL USER of an application's 120 connections, every 2.5 s, by an operator's job",
        first: "reconnect_stampede",
        make: user_killed_every_few_seconds,
    },
    Ill {
        name: "timeout_of_two_seconds",
        how: "timeout 2, and sixty clients that send a command every five seconds",
        first: "idle_reaper",
        make: timeout_of_two_seconds,
    },
    Ill {
        name: "lock_by_redis_py",
        how: "redis-py: r.lock() with a sleep of 1 ms, eight threads",
        first: "lock_spinning",
        make: lock_by_redis_py,
    },
    Ill {
        name: "broadcast_of_a_hot_prefix",
        how: "twenty clients in RESP3 with CLIENT TRACKING BCAST for the prefix that is written",
        first: "tracking_storm",
        make: broadcast_of_a_hot_prefix,
    },
    Ill {
        name: "xread_on_the_shared_connection",
        how: "XREAD BLOCK 0 of a quiet stream, and INCR after INCR behind it on the same connection",
        first: "blocking_on_shared_connection",
        make: xread_on_the_shared_connection,
    },
];

fn ping_on_borrow(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    for _ in 0..8 {
        let mut c = Client::of(&server);
        stage.work(move |on| {
            if !on.mended() {
                let _ = c.call(&["PING"]);
            }
            let _ = c.call(&["INCR", "{t2}requests"]);
            on.pause(ms(2));
        });
    }
    Ok(())
}

fn select_before_each(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "selects", &["6"]);
    at_work(&server, "select");
    at_work(&server, "incrby"); // what redis-py's incr() sends
    Ok(())
}

fn auth_before_each(stage: &mut Stage) -> Made {
    let server = stage.server(&[("requirepass", "s3cret")]);
    for _ in 0..4 {
        let mut stream = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
        stream.set_read_timeout(Some(ms(1000))).expect("a limit");
        stream.set_nodelay(true).expect("a setting");
        stage.work(move |on| {
            for command in [&b"AUTH s3cret\r\n"[..], b"GET a\r\n"] {
                let sent = stream.write_all(command);
                let read = stream.read(&mut [0u8; 512]);
                if sent.is_err() || read.is_err() {
                    return on.pause(ms(500));
                }
            }
            on.pause(ms(1));
        });
    }
    Ok(())
}

fn list_polled(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.tool("redis-benchmark", &server, &["-c", "4", "-n", "100000000", "-q", "LPOP", "{t2}queue"]);
    at_work(&server, "lpop");
    Ok(())
}

fn stream_polled(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "poll", &["8"]);
    at_work(&server, "xreadgroup");
    Ok(())
}

pub fn delayed_jobs_polled(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 100, |i| {
        words(&["ZADD", "{t2}delayed", &(4_000_000_000u64 + i as u64).to_string(), &format!("job:{i}")])
    });
    for _ in 0..4 {
        let mut c = Client::of(&server);
        stage.work(move |on| {
            let _ = c.call(&["ZRANGEBYSCORE", "{t2}delayed", "-inf", "1800000000", "LIMIT", "0", "1"]);
            if on.mended() {
                on.pause(ms(1000));
            }
        });
    }
    Ok(())
}

fn ttl_too_short(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "cache", &["1000", "150"]);
    at_work(&server, "set");
    Ok(())
}

fn absent_records_not_cached(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxmemory", "64mb"), ("maxmemory-policy", "allkeys-lru")]);
    fill(&server, 1000, |i| words(&["SET", &format!("{{t2}}user:{i}"), "a record"]));
    let (mut c, mut i) = (Client::of(&server), 0u32);
    stage.work(move |on| {
        i = i.wrapping_add(20);
        let batch: Vec<Vec<String>> =
            (i..i + 20).map(|n| words(&["GET", &format!("{{t2}}user:{}", n % 2000)])).collect();
        let _ = c.pipeline(&batch);
        on.pause(ms(5));
    });
    Ok(())
}

fn key_prefix_denied(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[]);
    open(&server).call(&["ACL", "SETUSER", "app", "on", ">pw", "~app:*", "+@all"]).expect("a user");
    let mut c = Client::at(target(&server, Some(("app", "pw")), 0));
    let batch: Vec<Vec<String>> =
        ["app:1", "app:2", "app:v2:1", "new:1"].map(|key| words(&["SET", key, "v"])).into_iter().collect();
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(10));
    });
    Ok(())
}

fn eval_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "eval_each_time", &["8"]);
    at_work(&server, "eval");
    Ok(())
}

fn transactions_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "transaction", &["8"]);
    at_work(&server, "exec");
    Ok(())
}

fn import_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 500);
    stage.python(&server, "import_all", &["50000"]);
    at_work(&server, "exec");
    Ok(())
}

fn prices_in_one_mset(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 500);
    stage.python(&server, "mset_all", &["100000", "0.2"]);
    at_work(&server, "mset");
    Ok(())
}

fn pages_of_100_kb(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    open(&server).call(&["SET", "{t2}page", &"x".repeat(100_000)]).expect("a page");
    stage.tool("redis-benchmark", &server, &["-c", "50", "-n", "100000000", "-q", "GET", "{t2}page"]);
    at_work(&server, "get");
    Ok(())
}

fn publish_by_redis_py(stage: &mut Stage) -> Made {
    let cluster = stage.together(Shape::six_nodes(), &[]);
    for _ in 0..2 {
        stage.python(&cluster.nodes[0], "publish", &["20", "0.003"]);
    }
    at_work(&cluster.nodes[0], "publish");
    Ok(())
}

fn user_killed_every_few_seconds(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there are no users before 6.0");
    }
    let server = stage.server(&[]);
    open(&server).call(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "+@all"]).expect("a user");
    for _ in 0..120 {
        let mut c = Client::at(target(&server, Some(("app", "pw")), 0));
        stage.work(move |on| {
            let _ = c.call(&["INCR", "{t2}requests"]);
            on.pause(ms(50));
        });
    }
    stage.repeat(&server, ms(2500), &["CLIENT", "KILL", "USER", "app"]);
    at_work(&server, "incr");
    Ok(())
}

fn timeout_of_two_seconds(stage: &mut Stage) -> Made {
    let server = stage.server(&[("timeout", "2")]);
    let mut all: Vec<Client> = (0..60).map(|_| Client::of(&server)).collect();
    let mut turn = 0;
    stage.work(move |on| {
        turn = (turn + 1) % all.len();
        if all[turn].call(&["INCR", "{t2}requests"]).is_none() {
            let _ = all[turn].call(&["INCR", "{t2}requests"]);
        }
        on.pause(ms(80));
    });
    let mut c = open(&server);
    until("connections to be closed and opened again", || {
        info(&mut c, "stats").is_ok_and(|i| i.number("total_connections_received").is_some_and(|n| n >= 120.0))
    });
    Ok(())
}

fn lock_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "lock", &["8"]);
    at_work(&server, "evalsha");
    Ok(())
}

pub fn broadcast_of_a_hot_prefix(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there is no client-side caching before 6.0");
    }
    let server = stage.server(&[]);
    for _ in 0..20 {
        reader(stage, &server, b"HELLO 3\r\nCLIENT TRACKING ON BCAST PREFIX price:\r\n");
    }
    let (mut c, mut n) = (Client::of(&server), 0u32);
    stage.work(move |on| {
        n = n.wrapping_add(1);
        let key = if on.mended() { "stock" } else { "price" };
        let batch: Vec<Vec<String>> =
            (0..4).map(|i| words(&["SET", &format!("{key}:{}", n % 100 + i), "9.99"])).collect();
        let _ = c.pipeline(&batch);
        on.pause(ms(1));
    });
    let mut c = open(&server);
    until("twenty clients that track", || {
        info(&mut c, "clients").is_ok_and(|i| i.number("tracking_clients") == Some(20.0))
    });
    Ok(())
}

fn xread_on_the_shared_connection(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 200);
    open(&server).call(&["XADD", "{t2}events", "*", "kind", "first"]).expect("a stream");
    let mut stream = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
    stream.write_all(b"XREAD BLOCK 0 STREAMS {t2}events $\r\n").expect("the server takes it");
    stage.work(move |on| {
        let _ = stream.write_all(b"INCR {t2}requests\r\n");
        on.pause(ms(5));
    });
    let mut c = open(&server);
    until("a client that is blocked", || {
        info(&mut c, "clients").is_ok_and(|i| i.number("blocked_clients").is_some_and(|n| n >= 1.0))
    });
    Ok(())
}
