//! Single servers that are odd but healthy.

use std::io::{Read, Write};
use std::net::TcpStream;

use unslow_client::{Connection, Endpoint, Target, TlsOptions};
use unslow_engine::{Server, ServerSpec, info};
use unslow_testkit::servers::settings;
use unslow_testkit::{engine, stdout, unslow, until};

use crate::Healthy;
use crate::common::tls_settings;
use crate::stage::{Client, Made, Stage, at_work, fill, ms, open, target, words};

pub const CASES: &[Healthy] = &[
    Healthy::at_rest("at_rest", "a server without clients", at_rest),
    Healthy::at_work("pipelines", "5,000 commands a second, ten at a time", pipelines),
    Healthy::at_work("two_thousand_idle", "2,000 connections that say nothing, one that works", two_thousand_idle),
    Healthy::at_work("subscribers", "ten subscribers that read, 200 messages a second", subscribers),
    Healthy::at_work("streams", "XADD, three consumers of a group, XACK", streams),
    Healthy::at_work("blocked_workers", "fifty clients in BLPOP of an empty list, five of a busy one", blocked_workers),
    Healthy::at_work("megabyte_values", "a value of 1 MB written and read five times a second", megabyte_values),
    Healthy::at_work("short_scripts", "EVALSHA of some 50 us, 500 a second", short_scripts),
    Healthy::at_work("transactions_with_watch", "four clients with WATCH, MULTI, EXEC", transactions_with_watch),
    Healthy::at_work(
        "keyspace_events_read",
        "notify-keyspace-events KEA and a subscriber that reads",
        keyspace_events_read,
    ),
    Healthy::at_work("everysec", "appendonly everysec under 2,000 commands a second", everysec),
    Healthy::at_work("tls", "Redis 7.0 over TLS, with a password", tls),
    Healthy::at_work("unix_socket", "doctor and application over a unix socket", unix_socket),
    Healthy::at_work("password", "requirepass", password),
    Healthy::at_work("acl_users", "the application's user, and the doctor's by --print-acl", acl_users),
    Healthy::at_work(
        "cache_at_its_limit",
        "20 MB, allkeys-lru, 98 of 100 reads hit, 60 new keys a second",
        cache_at_its_limit,
    ),
    Healthy::at_work(
        "noscript_then_eval",
        "EVALSHA of unknown scripts, then EVAL, ten times a second",
        noscript_then_eval,
    ),
    Healthy::at_work("busygroup", "XGROUP CREATE of a group that is there, twenty times a second", busygroup),
    Healthy::at_work("a_few_wrong_types", "two WRONGTYPE a second among 2,000 commands", a_few_wrong_types),
    Healthy::at_work("redis_py_jobs", "six redis-py jobs a second, each with a new client", redis_py_jobs),
    Healthy::at_work(
        "redis_py_jobs_on_7_0",
        "the same on Redis 7.0, which refuses CLIENT SETINFO",
        redis_py_jobs_on_7_0,
    ),
    Healthy::at_work(
        "maint_notifications",
        "six new connections a second that ask for CLIENT MAINT_NOTIFICATIONS",
        maint_notifications,
    ),
    Healthy::at_work("many_databases", "sixteen clients in sixteen databases", many_databases),
    Healthy::at_work("low_hz", "hz 1", low_hz),
    Healthy::at_work("lazyfree", "lazy freeing on, sets of 5,000 members unlinked", lazyfree),
    Healthy::at_work("two_io_threads", "io-threads 2 under 5,000 commands a second", two_io_threads),
    Healthy::at_work(
        "one_deep_connection",
        "one connection with 200 commands in flight, as a proxy has it",
        one_deep_connection,
    ),
    Healthy::at_work("reconnects_each_second", "a client that connects again each second", reconnects_each_second),
    Healthy::at_work("huge_keys_untouched", "a hash of 200,000 fields that is never read", huge_keys_untouched),
    Healthy::at_work(
        "unknown_commands",
        "DEBUG JMAP and COMMAND NOSUCH once a second among 1,000 commands",
        unknown_commands,
    ),
    Healthy::at_work("young_and_busy", "restarted a second ago, under load already", young_and_busy),
    Healthy::at_work("saved_once", "save 3600 1, one BGSAVE behind it", saved_once),
    Healthy::at_work("bigkeys_gently", "redis-cli --bigkeys -i 0.1 over 100,000 keys", bigkeys_gently),
    Healthy::at_work("scan_in_steps", "SCAN COUNT 100 through 100,000 keys, 100 steps a second", scan_in_steps),
    Healthy::at_work(
        "client_side_caching",
        "RESP3 with CLIENT TRACKING, and writes that invalidate",
        client_side_caching,
    ),
    Healthy::at_work("steady_expiry", "300 keys a second that live for two seconds", steady_expiry),
    Healthy::at_work("exporter", "INFO, CLIENT LIST and SLOWLOG GET once a second", exporter),
    Healthy::at_work("pool_pings", "a hundred PINGs a second from a pool", pool_pings),
    Healthy::at_work("leaderboard", "ZADD and ZRANGE of the first ten, in pipelines", leaderboard),
    Healthy::at_work(
        "transactions_of_a_hundred",
        "MULTI with 100 SETs, twenty times a second",
        transactions_of_a_hundred,
    ),
];

fn at_rest(stage: &mut Stage) -> Made {
    stage.server(&[]);
    Ok(())
}

/// A server with these settings under an ordinary load.
fn busy(stage: &mut Stage, of: &[(&str, &str)], per_s: u64) -> std::sync::Arc<Server> {
    let server = stage.server(of);
    stage.application(&server, per_s);
    server
}

fn pipelines(stage: &mut Stage) -> Made {
    busy(stage, &[], 5000);
    Ok(())
}

fn two_thousand_idle(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 500);
    let idle: Vec<Connection> = (0..2000).map(|_| open(&server)).collect();
    stage.keep(idle);
    Ok(())
}

/// A connection that has sent this and reads whatever comes.
pub fn reader(stage: &mut Stage, server: &Server, sent: &[u8]) {
    let mut stream = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
    stream.write_all(sent).expect("the server takes it");
    stream.set_read_timeout(Some(ms(100))).expect("a limit");
    let mut buffer = vec![0u8; 64 * 1024];
    stage.work(move |on| match stream.read(&mut buffer) {
        Ok(0) => on.pause(ms(100)),
        _ => on.pause(ms(1)),
    });
}

fn subscribers(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    for _ in 0..10 {
        reader(stage, &server, b"SUBSCRIBE news\r\n");
    }
    let mut c = Client::of(&server);
    stage.work(move |on| {
        let _ = c.pipeline(&vec![words(&["PUBLISH", "news", "it has begun"]); 10]);
        on.pause(ms(50));
    });
    Ok(())
}

fn streams(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    open(&server).call(&["XGROUP", "CREATE", "orders", "g", "$", "MKSTREAM"]).expect("a group");
    for name in ["one", "two", "three"] {
        let mut c = Client::of(&server);
        stage.work(move |_| {
            let read = ["XREADGROUP", "GROUP", "g", name, "COUNT", "10", "BLOCK", "200", "STREAMS", "orders", ">"];
            let Some(reply) = c.call(&read) else { return };
            let entries = reply.items().first().and_then(|stream| stream.items().get(1)).map_or(&[][..], |e| e.items());
            let mut done = words(&["XACK", "orders", "g"]);
            done.extend(entries.iter().filter_map(|entry| entry.items().first()?.text()));
            if done.len() > 3 {
                let _ = c.call(&done);
            }
        });
    }
    let mut c = Client::of(&server);
    let batch = vec![words(&["XADD", "orders", "MAXLEN", "~", "1000", "*", "id", "42"]); 10];
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(50));
    });
    Ok(())
}

fn blocked_workers(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let waiting: Vec<TcpStream> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
            stream.write_all(b"BLPOP nothing 0\r\n").expect("the server takes it");
            stream
        })
        .collect();
    stage.keep(waiting);
    for _ in 0..5 {
        let mut c = Client::of(&server);
        stage.work(move |_| drop(c.call(&["BLPOP", "jobs", "1"])));
    }
    stage.repeat(&server, ms(10), &["RPUSH", "jobs", "job"]);
    Ok(())
}

fn megabyte_values(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 500);
    let value = "x".repeat(1_000_000);
    stage.repeat(&server, ms(200), &["SET", "image", &value]);
    stage.repeat(&server, ms(200), &["GET", "image"]);
    Ok(())
}

fn short_scripts(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let script = "local n = 0 for i = 1, 3000 do n = n + i % 7 end return redis.call('INCRBY', KEYS[1], 1)";
    let sha = open(&server).call(&["SCRIPT", "LOAD", script]).expect("it compiles").text().expect("a digest");
    let mut c = Client::of(&server);
    stage.work(move |on| {
        let _ = c.pipeline(&vec![words(&["EVALSHA", &sha, "1", "counter"]); 10]);
        on.pause(ms(20));
    });
    Ok(())
}

fn transactions_with_watch(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    for i in 0..4 {
        // Another item each time: two clients of one pace and one key would conflict in every second transaction.
        let (mut c, mut n) = (Client::of(&server), i * 25);
        stage.work(move |on| {
            n += 1;
            let key = format!("stock:{}", n % 100);
            let _ = c.call(&["WATCH", &key]);
            let _ = c.call(&["GET", &key]);
            let _ = c.pipeline(&[words(&["MULTI"]), words(&["SET", &key, "9"]), words(&["EXEC"])]);
            on.pause(ms(10));
        });
    }
    Ok(())
}

fn keyspace_events_read(stage: &mut Stage) -> Made {
    let server = busy(stage, &[("notify-keyspace-events", "KEA")], 500);
    reader(stage, &server, b"PSUBSCRIBE __key*__:*\r\n");
    Ok(())
}

fn everysec(stage: &mut Stage) -> Made {
    busy(stage, &[("appendonly", "yes"), ("appendfsync", "everysec")], 2000);
    Ok(())
}

fn tls(stage: &mut Stage) -> Made {
    let dir = tempfile::tempdir().expect("a directory");
    let (of, port) = tls_settings(dir.path());
    let mut of: Vec<(&str, &str)> = of.iter().map(|(k, v)| (*k, v.as_str())).collect();
    of.extend([("requirepass", "s3cret"), ("tls-auth-clients", "no")]);
    let spec = ServerSpec { settings: settings(&of), ..ServerSpec::default() };
    let server = stage.server_on(&engine("redis-7.0"), spec);
    let ca = dir.path().join("ca.crt");
    stage.url = format!("rediss://127.0.0.1:{port}");
    stage.arguments = vec!["--cacert".into(), ca.display().to_string()];
    stage.keep(dir);
    let encrypted = Target { endpoints: vec![Endpoint::Tcp("127.0.0.1".into(), port)], ..server.target() };
    let trust = TlsOptions { ca: Some(ca), ..TlsOptions::default() };
    stage.application_at(|| Client::at(encrypted.clone()).with_tls(trust.clone()), 500);
    Ok(())
}

fn unix_socket(stage: &mut Stage) -> Made {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("redis.sock").display().to_string();
    let server = stage.server(&[("unixsocket", &path)]);
    stage.url = format!("unix:{path}");
    let local = Target { endpoints: vec![Endpoint::Unix(path)], ..server.target() };
    stage.keep(dir);
    stage.application_at(|| Client::at(local.clone()), 500);
    Ok(())
}

fn password(stage: &mut Stage) -> Made {
    busy(stage, &[("requirepass", "s3cret")], 500);
    Ok(())
}

fn acl_users(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there are no ACLs before 6.0");
    }
    let server = stage.server(&[]);
    let rule = stdout(&unslow(&["doctor", &stage.url, "--print-acl"])).trim().replace("CHANGE-ME", "pw");
    let mut c = open(&server);
    c.call(&rule.split(' ').collect::<Vec<_>>()).expect("the rule is one");
    c.call(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "-@all", "+get", "+set"]).expect("a user");
    stage.as_user("unslow", "pw");
    let app = target(&server, Some(("app", "pw")), 0);
    stage.application_at(|| Client::at(app.clone()), 500);
    Ok(())
}

fn cache_at_its_limit(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxmemory", "20mb"), ("maxmemory-policy", "allkeys-lru")]);
    fill(&server, 30_000, |i| words(&["SET", &format!("page:{}", 30_000 - i), &"x".repeat(800)]));
    let (mut c, mut i) = (Client::of(&server), 0);
    stage.work(move |on| {
        i += 1;
        let mut batch: Vec<Vec<String>> =
            (0..49).map(|n| words(&["GET", &format!("page:{}", 1 + (i * 49 + n) % 500)])).collect();
        batch.push(words(&["SET", &format!("new:{i}"), &"x".repeat(800)]));
        let _ = c.pipeline(&batch);
        on.pause(ms(16));
    });
    Ok(())
}

fn noscript_then_eval(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 1000);
    let (mut c, mut i) = (Client::of(&server), 0);
    stage.work(move |on| {
        i += 1;
        let _ = c.call(&["EVALSHA", &format!("{i:040x}"), "0"]);
        let _ = c.call(&["EVAL", &format!("return {i}"), "0"]);
        on.pause(ms(100));
    });
    Ok(())
}

fn busygroup(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 500);
    stage.repeat(&server, ms(50), &["XGROUP", "CREATE", "orders", "g", "$", "MKSTREAM"]);
    Ok(())
}

fn a_few_wrong_types(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 2000);
    stage.repeat(&server, ms(500), &["LLEN", "{t2}"]);
    Ok(())
}

fn redis_py_jobs(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.python(&server, "jobs", &["6"]);
    at_work(&server, "set");
    Ok(())
}

fn redis_py_jobs_on_7_0(stage: &mut Stage) -> Made {
    stage.engine = engine("redis-7.0");
    redis_py_jobs(stage)
}

fn maint_notifications(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut c = Client::of(&server);
    stage.work(move |on| {
        c.hang_up();
        let _ = c.call(&["CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"]);
        let _ = c.pipeline(&vec![words(&["INCR", "jobs"]); 50]);
        on.pause(ms(160));
    });
    Ok(())
}

fn many_databases(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    for database in 0..16 {
        let mut c = Client::at(target(&server, None, database));
        let batch = vec![words(&["INCR", "counter"]); 10];
        stage.work(move |on| {
            let _ = c.pipeline(&batch);
            on.pause(ms(100));
        });
    }
    Ok(())
}

fn low_hz(stage: &mut Stage) -> Made {
    busy(stage, &[("hz", "1")], 1000);
    Ok(())
}

fn lazyfree(stage: &mut Stage) -> Made {
    let on = ["lazyfree-lazy-eviction", "lazyfree-lazy-expire", "lazyfree-lazy-server-del"].map(|name| (name, "yes"));
    let server = busy(stage, &on, 500);
    let mut c = Client::of(&server);
    let mut add = words(&["SADD", "tags"]);
    add.extend((0..5000).map(|i| format!("tag:{i}")));
    stage.work(move |on| {
        let _ = c.call(&add);
        let _ = c.call(&["UNLINK", "tags"]);
        on.pause(ms(250));
    });
    Ok(())
}

fn two_io_threads(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there are no io-threads before 6.0");
    }
    busy(stage, &[("io-threads", "2")], 5000);
    Ok(())
}

fn one_deep_connection(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut c = Client::of(&server);
    let batch: Vec<Vec<String>> = (0..200).map(|i| words(&["GET", &format!("user:{i}")])).collect();
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(20));
    });
    Ok(())
}

fn reconnects_each_second(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut c = Client::of(&server);
    stage.work(move |on| {
        c.hang_up();
        let _ = c.pipeline(&vec![words(&["INCR", "beats"]); 20]);
        on.pause(ms(1000));
    });
    Ok(())
}

fn huge_keys_untouched(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 2000, |i| {
        let mut command = words(&["HSET", "archive"]);
        command.extend((0..100).flat_map(|j| [format!("field:{}", i * 100 + j), "value".into()]));
        command
    });
    open(&server).call(&["SLOWLOG", "RESET"]).expect("the past is past");
    stage.application(&server, 500);
    Ok(())
}

fn unknown_commands(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 1000);
    stage.repeat(&server, ms(1000), &["DEBUG", "JMAP"]);
    stage.repeat(&server, ms(1000), &["COMMAND", "NOSUCH"]);
    Ok(())
}

fn young_and_busy(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    server.restart().expect("it starts again");
    stage.application(&server, 2000);
    Ok(())
}

fn saved_once(stage: &mut Stage) -> Made {
    let server = busy(stage, &[("save", "3600 1")], 500);
    open(&server).call(&["BGSAVE"]).expect("a save");
    until("the save to be over before the window", || {
        let now = info(&mut open(&server), "persistence");
        now.is_ok_and(|now| now.number("rdb_bgsave_in_progress") == Some(0.0))
    });
    Ok(())
}

/// A hundred thousand small keys.
fn many_keys(stage: &mut Stage) -> std::sync::Arc<Server> {
    let server = stage.server(&[]);
    fill(&server, 100_000, |i| words(&["SET", &format!("item:{i}"), "x"]));
    stage.application(&server, 500);
    server
}

fn bigkeys_gently(stage: &mut Stage) -> Made {
    let server = many_keys(stage);
    stage.tool("redis-cli", &server, &["--bigkeys", "-i", "0.1"]);
    at_work(&server, "scan");
    Ok(())
}

fn scan_in_steps(stage: &mut Stage) -> Made {
    let server = many_keys(stage);
    let (mut c, mut cursor) = (Client::of(&server), "0".to_string());
    stage.work(move |on| {
        let page = c.call(&["SCAN", &cursor, "COUNT", "100"]);
        cursor = page.and_then(|p| p.items().first()?.text()).unwrap_or_else(|| "0".into());
        on.pause(ms(10));
    });
    Ok(())
}

fn client_side_caching(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there is no client-side caching before 6.0");
    }
    let server = busy(stage, &[], 500);
    let mut c = Client::of(&server).with_resp3();
    let gets = vec![words(&["GET", "{t2}"]); 10];
    let _ = c.call(&["CLIENT", "TRACKING", "ON"]);
    stage.work(move |on| {
        let _ = c.pipeline(&gets);
        on.pause(ms(50));
    });
    Ok(())
}

fn steady_expiry(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let (mut c, mut i) = (Client::of(&server), 0);
    stage.work(move |on| {
        let batch: Vec<Vec<String>> = (i..i + 15).map(|n| words(&["PSETEX", &format!("s:{n}"), "2000", "x"])).collect();
        i += 15;
        let _ = c.pipeline(&batch);
        on.pause(ms(50));
    });
    std::thread::sleep(ms(2000)); // the first of them die
    Ok(())
}

fn exporter(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 500);
    for question in [&["INFO", "ALL"][..], &["CLIENT", "LIST"], &["SLOWLOG", "GET", "128"], &["CONFIG", "GET", "*"]] {
        stage.repeat(&server, ms(1000), question);
    }
    Ok(())
}

fn pool_pings(stage: &mut Stage) -> Made {
    let server = busy(stage, &[], 500);
    for _ in 0..5 {
        stage.repeat(&server, ms(50), &["PING"]);
    }
    Ok(())
}

fn leaderboard(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let (mut c, mut i) = (Client::of(&server), 0);
    stage.work(move |on| {
        i += 1;
        let mut batch: Vec<Vec<String>> = (0..20)
            .map(|n| {
                words(&["ZADD", "board", &(i * 31 % 1000).to_string(), &format!("player:{}", (i * 20 + n) % 5000)])
            })
            .collect();
        batch.push(words(&["ZRANGE", "board", "0", "9", "WITHSCORES"]));
        let _ = c.pipeline(&batch);
        on.pause(ms(20));
    });
    Ok(())
}

fn transactions_of_a_hundred(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut c = Client::of(&server);
    let mut batch = vec![words(&["MULTI"])];
    batch.extend((0..100).map(|i| words(&["SET", &format!("line:{i}"), "v"])));
    batch.push(words(&["EXEC"]));
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(50));
    });
    Ok(())
}
