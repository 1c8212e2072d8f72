//! Faults that clients make: expensive commands, connections, monitoring, clients that do not read.

use std::time::{Duration, Instant};

use unslow_client::{Connection, Value};
use unslow_engine::{Server, info};
use unslow_testkit::until;

use crate::Ill;
use crate::means::{asleep, loose_cluster, output_bytes};
use crate::stage::{Client, Made, Stage, at_work, fill, ms, open, target, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "keys_in_a_script",
        how: "EVAL of a script that calls KEYS on 100,000 keys, four times a second",
        first: "keys_command",
        make: keys_in_a_script,
    },
    Ill {
        name: "keys_by_redis_py",
        how: "redis-py r.keys() on 150,000 keys, three times a second",
        first: "keys_command",
        make: keys_by_redis_py,
    },
    Ill {
        name: "cache_emptied_by_pattern",
        how: "KEYS cache:page:* and DEL of what it finds, fifteen times a second",
        first: "keys_command",
        make: cache_emptied_by_pattern,
    },
    Ill {
        name: "smembers_by_redis_py",
        how: "redis-py r.smembers() of 250,000 members",
        first: "big_key",
        make: smembers_by_redis_py,
    },
    Ill {
        name: "whole_list_read",
        how: "LRANGE 0 -1 of 500,000 elements by a raw client",
        first: "big_key",
        make: whole_list_read,
    },
    Ill {
        name: "whole_board_read",
        how: "ZRANGE 0 -1 WITHSCORES of 150,000 members",
        first: "big_key",
        make: whole_board_read,
    },
    Ill { name: "list_sorted", how: "SORT ids LIMIT 0 10 of 200,000 numbers", first: "big_key", make: list_sorted },
    Ill {
        name: "mget_of_ten_thousand",
        how: "MGET of 10,000 keys, over and over, and a slow log from 0.4 ms on",
        first: "giant_commands",
        make: mget_of_ten_thousand,
    },
    Ill {
        name: "pfcount_of_a_thousand",
        how: "PFCOUNT over 1,000 HyperLogLogs",
        first: "slow_command",
        make: pfcount_of_a_thousand,
    },
    Ill {
        name: "scan_with_count_100000",
        how: "SCAN with COUNT 100000 of 200,000 keys",
        first: "slow_command",
        make: scan_with_count_100000,
    },
    Ill {
        name: "script_by_redis_py",
        how: "redis-py register_script: 40,000 GETs in one EVALSHA (120,000 before 7.0)",
        first: "long_script",
        make: script_by_redis_py,
    },
    Ill {
        name: "function_in_a_loop",
        how: "FCALL of a function with two million turns, five times a second",
        first: "long_script",
        make: function_in_a_loop,
    },
    Ill {
        name: "scripts_of_milliseconds",
        how: "EVAL of 300,000 turns, seventy times a second",
        first: "long_script",
        make: scripts_of_milliseconds,
    },
    Ill {
        name: "connection_auth_select",
        how: "a connection with AUTH and SELECT for each command",
        first: "connection_churn",
        make: connection_auth_select,
    },
    Ill {
        name: "redis_py_per_request",
        how: "redis.Redis() for each request, CLIENT SETINFO included",
        first: "connection_churn",
        make: redis_py_per_request,
    },
    Ill {
        name: "benchmark_without_keepalive",
        how: "redis-benchmark -k 0 -c 4",
        first: "connection_churn",
        make: benchmark_without_keepalive,
    },
    Ill {
        name: "types_asked_one_by_one",
        how: "SCAN, then TYPE of each key in a round trip each",
        first: "no_pipelining",
        make: types_asked_one_by_one,
    },
    Ill {
        name: "cli_in_a_loop",
        how: "redis-cli -r INCR without an interval",
        first: "no_pipelining",
        make: cli_in_a_loop,
    },
    Ill {
        name: "benchmark_of_twenty",
        how: "redis-benchmark -c 20 -P 1 -t get",
        first: "kernel_bound",
        make: benchmark_of_twenty,
    },
    Ill {
        name: "small_scripts_in_pipelines",
        how: "redis-benchmark -P 32 with a script of a few microseconds",
        first: "main_thread_saturated",
        make: small_scripts_in_pipelines,
    },
    Ill {
        name: "info_storm",
        how: "four raw clients with INFO everything, 240 a second in all (1,900 before 7.0)",
        first: "monitoring_storm",
        make: info_storm,
    },
    Ill {
        name: "client_list_of_two_thousand",
        how: "CLIENT LIST of 2,000 connections, fifteen times a second",
        first: "monitoring_storm",
        make: client_list_of_two_thousand,
    },
    Ill {
        name: "config_get_all",
        how: "CONFIG GET * 250 times a second (1,000 before 7.0)",
        first: "monitoring_storm",
        make: config_get_all,
    },
    Ill {
        name: "monitor_by_redis_cli",
        how: "redis-cli monitor > /dev/null, left running",
        first: "monitor_attached",
        make: monitor_by_redis_cli,
    },
    Ill {
        name: "keyspace_events_unread",
        how: "PSUBSCRIBE __key*__:* by a client that sleeps, long key names",
        first: "slow_subscriber",
        make: keyspace_events_unread,
    },
    Ill {
        name: "replies_unread",
        how: "3,000 GETs of 10 kB in one write, and nothing is read",
        first: "not_your_redis",
        make: replies_unread,
    },
    Ill { name: "pool_leak", how: "110 connections left open of 120", first: "too_many_connections", make: pool_leak },
    Ill {
        name: "fragmented_map_polled",
        how: "CLUSTER NODES of a cluster whose slots alternate, 120 times a second",
        first: "topology_storm",
        make: fragmented_map_polled,
    },
];

/// Names that no command finds by accident.
fn numbered(prefix: &'static str, value: &'static str) -> impl Fn(usize) -> Vec<String> {
    move |i| words(&["SET", &format!("{prefix}:{i}"), value])
}

pub fn keys_in_a_script(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 100_000, numbered("cart", "x"));
    stage.application(&server, 500);
    stage.repeat(&server, ms(250), &["EVAL", "return #redis.call('KEYS', ARGV[1])", "0", "cart:*99"]);
    Ok(())
}

fn keys_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 150_000, numbered("session", "x"));
    stage.application(&server, 500);
    stage.python(&server, "keys", &["session:*77", "0.3"]);
    at_work(&server, "keys");
    Ok(())
}

pub fn cache_emptied_by_pattern(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 60_000, numbered("user", "x"));
    stage.application(&server, 500);
    let mut c = Client::of(&server);
    stage.work(move |on| {
        if !on.mended() {
            for i in 0..5 {
                let _ = c.call(&["SET", &format!("cache:page:{i}"), "x"]);
            }
            let found = c.call(&["KEYS", "cache:page:*"]);
            let mut delete = vec!["DEL".to_string()];
            delete.extend(found.iter().flat_map(Value::items).filter_map(Value::text));
            if delete.len() > 1 {
                let _ = c.call(&delete);
            }
        }
        on.pause(ms(66));
    });
    Ok(())
}

/// A slow log that begins earlier than the default of 10 ms, as busy deployments have it.
const FIVE_MS: [(&str, &str); 1] = [("slowlog-log-slower-than", "5000")];

/// Makes a collection of `n` elements, a hundred a command.
fn collection(server: &Server, verb: &'static str, key: &'static str, n: usize, of: fn(usize) -> Vec<String>) {
    fill(server, n / 100, |i| {
        let mut command = words(&[verb, key]);
        command.extend((i * 100..(i + 1) * 100).flat_map(of));
        command
    });
    open(server).call(&["SLOWLOG", "RESET"]).expect("making it is no finding");
}

fn smembers_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&FIVE_MS);
    collection(&server, "SADD", "followers", 250_000, |i| vec![format!("user:{i}")]);
    stage.application(&server, 500);
    stage.python(&server, "smembers", &["followers", "0.2"]);
    at_work(&server, "smembers");
    std::thread::sleep(ms(1500)); // three entries in the slow log make a habit
    Ok(())
}

pub fn smembers(stage: &mut Stage) -> Made {
    let server = stage.server(&FIVE_MS);
    collection(&server, "SADD", "followers", 250_000, |i| vec![format!("user:{i}")]);
    whole_reads(stage, &server, 200, &["SMEMBERS", "followers"]);
    Ok(())
}

/// Reads at this interval, three of them before the doctor comes.
fn whole_reads(stage: &mut Stage, server: &Server, every_ms: u64, command: &[&str]) {
    stage.application(server, 500);
    stage.repeat(server, ms(every_ms), command);
    std::thread::sleep(ms(every_ms * 4));
}

pub fn whole_list_read(stage: &mut Stage) -> Made {
    let server = stage.server(&FIVE_MS);
    collection(&server, "RPUSH", "jobs", 500_000, |i| vec![format!("payload-{i}")]);
    whole_reads(stage, &server, 200, &["LRANGE", "jobs", "0", "-1"]);
    Ok(())
}

pub fn whole_board_read(stage: &mut Stage) -> Made {
    let server = stage.server(&FIVE_MS);
    collection(&server, "ZADD", "board", 150_000, |i| vec![format!("{}.5", i * 7 % 150_000), format!("player:{i}")]);
    whole_reads(stage, &server, 200, &["ZRANGE", "board", "0", "-1", "WITHSCORES"]);
    Ok(())
}

pub fn list_sorted(stage: &mut Stage) -> Made {
    let server = stage.server(&FIVE_MS);
    collection(&server, "RPUSH", "ids", 200_000, |i| vec![(i * 7919 % 200_000).to_string()]);
    whole_reads(stage, &server, 250, &["SORT", "ids", "LIMIT", "0", "10"]);
    Ok(())
}

pub fn mget_of_ten_thousand(stage: &mut Stage) -> Made {
    let server = stage.server(&[("slowlog-log-slower-than", "400")]);
    fill(&server, 10_000, numbered("price", "1234567890"));
    stage.application(&server, 500);
    let names: Vec<String> = (0..10_000).map(|i| format!("price:{i}")).collect();
    let command: Vec<&str> = std::iter::once("MGET").chain(names.iter().map(String::as_str)).collect();
    stage.repeat(&server, ms(4), &command);
    Ok(())
}

pub fn pfcount_of_a_thousand(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    // One that is dense, and copies of it.
    collection(&server, "PFADD", "visits:0", 5_000, |i| vec![format!("visitor:{i}")]);
    fill(&server, 1000, |i| words(&["PFMERGE", &format!("visits:{i}"), "visits:0"]));
    stage.application(&server, 500);
    let names: Vec<String> = (0..1000).map(|i| format!("visits:{i}")).collect();
    let command: Vec<&str> = std::iter::once("PFCOUNT").chain(names.iter().map(String::as_str)).collect();
    stage.repeat(&server, ms(5), &command);
    Ok(())
}

pub fn scan_with_count_100000(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 200_000, numbered("order", "x"));
    stage.application(&server, 500);
    stage.repeat(&server, ms(25), &["SCAN", "0", "MATCH", "order:*7777", "COUNT", "100000"]);
    Ok(())
}

fn script_by_redis_py(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    open(&server).call(&["SET", "{t2}script", "value"]).expect("written");
    stage.application(&server, 500);
    // Before 7.0 a GET in a script takes half as long.
    let gets = if stage.since((7, 0)) { "40000" } else { "120000" };
    stage.python(&server, "script", &[gets, "0.1"]);
    at_work(&server, "evalsha");
    Ok(())
}

/// A loop; its argument is the number of turns.
const LOOP: &str = "local n = 0 for i = 1, tonumber(ARGV[1]) do n = n + i % 7 end return n";

pub fn script_loop(stage: &mut Stage, turns: &str, every_ms: u64) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 500);
    stage.repeat(&server, ms(every_ms), &["EVAL", LOOP, "0", turns]);
    Ok(())
}

pub fn scripts_of_milliseconds(stage: &mut Stage) -> Made {
    script_loop(stage, "300000", 10)
}

pub fn function_in_a_loop(stage: &mut Stage) -> Made {
    if !stage.since((7, 0)) {
        return Err("there are no functions before 7.0");
    }
    let server = stage.server(&[]);
    let body = "local n = 0 for i = 1, tonumber(args[1]) do n = n + i % 7 end return n";
    let library = format!("#!lua name=odd\nredis.register_function('walk', function(keys, args) {body} end)");
    open(&server).call(&["FUNCTION", "LOAD", &library]).expect("it compiles");
    stage.application(&server, 500);
    stage.repeat(&server, ms(180), &["FCALL", "walk", "0", "2000000"]);
    Ok(())
}

/// Two clients that send one INCR per connection, opened by `connect`, until they are mended: then over the connection
/// they have.
pub fn churn(stage: &mut Stage, every: Duration, client: impl Fn() -> Client) {
    for _ in 0..2 {
        let mut c = client();
        stage.work(move |on| {
            let begun = Instant::now();
            if !on.mended() {
                c.hang_up();
            }
            let _ = c.call(&["INCR", "{t2}requests"]);
            on.pause(every.saturating_sub(begun.elapsed()));
        });
    }
}

pub fn connection_auth_select(stage: &mut Stage) -> Made {
    let server = stage.server(&[("requirepass", "s3cret")]);
    let database = target(&server, None, 3);
    churn(stage, ms(2), || Client::at(database.clone()));
    Ok(())
}

fn redis_py_per_request(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "per_request", &["0.001"]);
    at_work(&server, "incrby"); // what redis-py's incr() sends
    Ok(())
}

fn benchmark_without_keepalive(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.tool("redis-benchmark", &server, &["-k", "0", "-c", "4", "-n", "100000000", "-t", "set", "-q"]);
    at_work(&server, "set");
    Ok(())
}

fn types_asked_one_by_one(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 50_000, numbered("item", "x"));
    let (mut c, mut cursor) = (Client::of(&server), "0".to_string());
    stage.work(move |on| {
        let Some(page) = c.call(&["SCAN", &cursor, "COUNT", "500"]) else { return };
        cursor = page.items().first().and_then(Value::text).unwrap_or_else(|| "0".into());
        let names = page.items().get(1).map_or(&[][..], Value::items).iter().filter_map(Value::text);
        for name in names.take_while(|_| !on.stopped()) {
            let _ = c.call(&["TYPE", &name]);
        }
    });
    Ok(())
}

fn cli_in_a_loop(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.tool("redis-cli", &server, &["-r", "100000000", "INCR", "counter"]);
    at_work(&server, "incr");
    Ok(())
}

fn benchmark_of_twenty(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.tool("redis-benchmark", &server, &["-c", "20", "-P", "1", "-n", "100000000", "-t", "get", "-q"]);
    at_work(&server, "get");
    Ok(())
}

fn small_scripts_in_pipelines(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let script = "local n = 0 for i = 1, 400 do n = n + i end return n";
    stage.tool("redis-benchmark", &server, &["-c", "4", "-P", "32", "-n", "100000000", "-q", "EVAL", script, "0"]);
    at_work(&server, "eval");
    Ok(())
}

pub fn info_storm(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let all = if stage.since((7, 0)) { "everything" } else { "all" };
    stage.application(&server, 500);
    // Fewer than 300 a second in all: not what a client that waits for each reply could reach. Before 7.0 an INFO takes
    // a third of the time.
    let pause = if stage.since((7, 0)) { 16 } else { 2 };
    for _ in 0..4 {
        stage.repeat(&server, ms(pause), &["INFO", all]);
    }
    Ok(())
}

pub fn client_list_of_two_thousand(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let idle: Vec<Connection> = (0..2000).map(|_| open(&server)).collect();
    stage.keep(idle);
    stage.application(&server, 500);
    stage.repeat(&server, ms(60), &["CLIENT", "LIST"]);
    Ok(())
}

pub fn config_get_all(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 500);
    let pause = if stage.since((7, 0)) { 8 } else { 2 };
    for _ in 0..2 {
        stage.repeat(&server, ms(pause), &["CONFIG", "GET", "*"]);
    }
    Ok(())
}

fn monitor_by_redis_cli(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.application(&server, 2000);
    stage.tool("redis-cli", &server, &["monitor"]);
    at_work(&server, "monitor");
    Ok(())
}

fn keyspace_events_unread(stage: &mut Stage) -> Made {
    let events = [("notify-keyspace-events", "KEA"), ("client-output-buffer-limit", "pubsub 64mb 64mb 60")];
    let server = stage.server(&events);
    stage.keep(asleep(&server, b"PSUBSCRIBE __key*__:*\r\n"));
    let name = "k".repeat(2000);
    let written = Instant::now();
    while output_bytes(&server) < 8_000_000 {
        assert!(written.elapsed() < unslow_testkit::PATIENCE, "the subscriber's buffer does not grow");
        fill(&server, 500, |i| words(&["SET", &format!("{name}:{i}"), "v"]));
    }
    stage.application(&server, 200);
    Ok(())
}

fn replies_unread(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    open(&server).call(&["SET", "page", &"x".repeat(10_000)]).expect("written");
    stage.application(&server, 500);
    stage.keep(asleep(&server, "GET page\r\n".repeat(3000).as_bytes()));
    until("the replies to wait", || output_bytes(&server) > 1_000_000);
    std::thread::sleep(ms(2500)); // a moment would be a large reply on its way
    Ok(())
}

fn pool_leak(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxclients", "120")]);
    let leaked: Vec<Connection> = (0..110).map(|_| open(&server)).collect();
    stage.keep(leaked);
    stage.repeat(&server, ms(20), &["INCR", "hits"]);
    until("the connections to be there", || {
        info(&mut open(&server), "clients").is_ok_and(|i| i.number("connected_clients") >= Some(110.0))
    });
    Ok(())
}

pub fn fragmented_map_polled(stage: &mut Stage) -> Made {
    map_polled(stage, "NODES")
}

/// As clients of 7.0 and later ask.
pub fn fragmented_shards_polled(stage: &mut Stage) -> Made {
    if !stage.since((7, 0)) {
        return Err("CLUSTER SHARDS is not there before 7.0");
    }
    map_polled(stage, "SHARDS")
}

pub fn fragmented_slots_polled(stage: &mut Stage) -> Made {
    map_polled(stage, "SLOTS")
}

/// Every second slot is another node's, so that the answer is as long as it can be.
fn map_polled(stage: &mut Stage, what: &str) -> Made {
    let nodes = loose_cluster(stage, 2, &[], |slot| Some(usize::from(slot % 2)));
    for node in &nodes {
        for _ in 0..3 {
            stage.repeat(node, ms(24), &["CLUSTER", what]);
        }
    }
    Ok(())
}
