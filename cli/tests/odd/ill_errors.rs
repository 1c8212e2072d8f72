//! Commands that fail: refused rights, wrong types, replicas that are written to, disks that cannot be written, full
//! memory.

use std::io::{Read, Write};
use std::net::TcpStream;

use unslow_engine::info;
use unslow_testkit::until;

use crate::Ill;
use crate::stage::{Client, Made, Stage, at_work, fill, ms, open, target, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "wrong_type_by_redis_py",
        how: "redis-py: HINCRBY on a string, one command of three",
        first: "error_flood",
        make: wrong_type_by_redis_py,
    },
    Ill {
        name: "rights_withdrawn",
        how: "an ACL user that may only read keeps writing: NOPERM for 60 % of its commands",
        first: "acl_denials",
        make: rights_withdrawn,
    },
    Ill {
        name: "writes_to_a_replica",
        how: "a client that holds the replica's address and writes: READONLY",
        first: "error_flood",
        make: writes_to_a_replica,
    },
    Ill {
        name: "directory_removed",
        how: "the data directory is removed, a BGSAVE fails, writes are refused: MISCONF",
        first: "saves_failing",
        make: directory_removed,
    },
    Ill {
        name: "no_replica_to_write_with",
        how: "min-replicas-to-write 1 on a server without replicas: NOREPLICAS",
        first: "min_replicas_refusing",
        make: no_replica_to_write_with,
    },
    Ill {
        name: "module_absent",
        how: "FT.SEARCH where no module is loaded, one command of three",
        first: "error_flood",
        make: module_absent,
    },
    Ill {
        name: "old_password",
        how: "clients that keep an old password: WRONGPASS, then NOAUTH",
        first: "error_flood",
        make: old_password,
    },
    Ill {
        name: "volatile_lru_without_ttls",
        how: "maxmemory 8mb with volatile-lru, and no key has a TTL",
        first: "out_of_memory",
        make: volatile_lru_without_ttls,
    },
    Ill {
        name: "limit_lowered",
        how: "CONFIG SET maxmemory below what is used, noeviction, and more LPUSH",
        first: "out_of_memory",
        make: limit_lowered,
    },
];

fn wrong_type_by_redis_py(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[]);
    open(&server).call(&["SET", "profile", "a string"]).expect("written");
    stage.python(&server, "wrong_type", &["profile", "0.005"]);
    at_work(&server, "hincrby");
    Ok(())
}

fn rights_withdrawn(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[]);
    open(&server).call(&["ACL", "SETUSER", "app", "on", ">pw", "~*", "-@all", "+get", "+ping"]).expect("a user");
    let mut c = Client::at(target(&server, Some(("app", "pw")), 0));
    let batch: Vec<Vec<String>> =
        (0..5).map(|i| if i < 3 { words(&["SET", "a", "v"]) } else { words(&["GET", "a"]) }).collect();
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(10));
    });
    Ok(())
}

fn writes_to_a_replica(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let pair = stage.pair(&[]);
    stage.application(&pair.nodes[0], 200);
    stage.repeat(&pair.nodes[1], ms(5), &["SET", "a", "v"]);
    stage.repeat(&pair.nodes[1], ms(5), &["GET", "a"]);
    Ok(())
}

fn directory_removed(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    // A mode without write permission would not stop a server that runs as root.
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().display().to_string();
    let server = stage.server(&[("save", "3600 1"), ("dir", &path)]);
    dir.close().expect("the directory goes");
    let mut c = open(&server);
    c.call(&["SET", "a", "v"]).expect("written");
    until("a save that fails", || {
        let _ = c.call(&["BGSAVE"]);
        info(&mut c, "persistence").is_ok_and(|i| i.get("rdb_last_bgsave_status") == Some("err"))
    });
    stage.application(&server, 200);
    Ok(())
}

fn no_replica_to_write_with(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[("min-replicas-to-write", "1"), ("min-replicas-max-lag", "10")]);
    stage.application(&server, 200);
    Ok(())
}

fn module_absent(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[]);
    stage.repeat(&server, ms(8), &["FT.SEARCH", "idx", "*"]);
    for _ in 0..2 {
        stage.repeat(&server, ms(8), &["GET", "a"]);
    }
    Ok(())
}

fn old_password(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[("requirepass", "new")]);
    stage.application(&server, 200);
    let mut stream = TcpStream::connect((server.ip.as_str(), server.port)).expect("a connection");
    stream.set_read_timeout(Some(ms(1000))).expect("a limit");
    stage.work(move |on| {
        // Two errors come back, in one piece or two: what they are the server counts.
        let sent = stream.write_all(b"AUTH old\r\nGET a\r\n");
        let read = stream.read(&mut [0u8; 512]);
        on.pause(ms(if sent.is_ok() && read.is_ok() { 10 } else { 500 }));
    });
    Ok(())
}

fn volatile_lru_without_ttls(stage: &mut Stage) -> Made {
    stage.counts_errors()?;
    let server = stage.server(&[("maxmemory", "8mb"), ("maxmemory-policy", "volatile-lru")]);
    let (mut c, mut i, value) = (Client::of(&server), 0, "x".repeat(5000));
    stage.work(move |on| {
        i += 1;
        let _ = c.pipeline(&vec![words(&["SET", &format!("upload:{i}"), &value]); 5]);
        on.pause(ms(2));
    });
    let mut c = open(&server);
    until("the server to be full", || info(&mut c, "memory").is_ok_and(|i| i.number("used_memory") > Some(7.9e6)));
    Ok(())
}

fn limit_lowered(stage: &mut Stage) -> Made {
    let server = stage.server(&[("maxmemory", "100mb"), ("maxmemory-policy", "noeviction")]);
    fill(&server, 20_000, |i| words(&["SET", &format!("k:{i}"), &"x".repeat(1000)]));
    open(&server).call(&["CONFIG", "SET", "maxmemory", "10mb"]).expect("a setting");
    stage.repeat(&server, ms(5), &["LPUSH", "events", "event"]);
    stage.repeat(&server, ms(5), &["LRANGE", "events", "0", "9"]);
    Ok(())
}
