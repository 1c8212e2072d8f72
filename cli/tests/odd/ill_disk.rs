//! Faults between a server and its disk, and around them: saves, syncs, pauses, restarts.

use std::process::Command;

use unslow_engine::{Server, info};
use unslow_testkit::until;

use crate::Ill;
use crate::means::slow_server;
use crate::stage::{Made, Stage, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "ledger_on_network_storage",
        how: "appendfsync always on a volume that syncs in 8 ms (a preload of ours), an application and a ledger",
        first: "fsync_always",
        make: ledger_on_network_storage,
    },
    Ill {
        name: "volume_that_stalls",
        how: "appendfsync everysec on a volume that syncs in 2.5 s (a preload of ours), and an application",
        first: "aof_fsync_stall",
        make: volume_that_stalls,
    },
    Ill {
        name: "small_volume",
        how: "30 MB in memory, snapshots on, and a volume of 8 MB (a tmpfs of ours)",
        first: "disk_full_soon",
        make: small_volume,
    },
    Ill {
        name: "rewrites_by_cron",
        how: "a job that calls BGREWRITEAOF twice a second",
        first: "aof_rewrite_storm",
        make: rewrites_by_cron,
    },
    Ill {
        name: "snapshots_at_midnight",
        how: "master and replica on one machine, 60,000 keys at 0.2 ms a key (rdb-key-save-delay), both asked to \
              BGSAVE",
        first: "saves_collide",
        make: snapshots_at_midnight,
    },
    Ill {
        name: "debug_left_on",
        how: "CONFIG SET loglevel debug at run time, and an application",
        first: "log_level",
        make: debug_left_on,
    },
    Ill {
        name: "listener_that_left",
        how: "notify-keyspace-events Kg$lshz for a subscriber that has unsubscribed, and an application",
        first: "notifications_for_nobody",
        make: listener_that_left,
    },
    Ill {
        name: "backup_that_freezes_writes",
        how: "a backup job that renews CLIENT PAUSE 2000 WRITE each second; clients write and read",
        first: "paused",
        make: backup_that_freezes_writes,
    },
];

fn ledger_on_network_storage(stage: &mut Stage) -> Made {
    let settings = [("appendonly", "yes"), ("appendfsync", "always")];
    let server = slow_server(stage, &settings, "ODD_FSYNC_MS", 8);
    stage.application(&server, 2000);
    stage.repeat(&server, ms(5), &["INCRBY", "ledger", "7"]);
    Ok(())
}

fn volume_that_stalls(stage: &mut Stage) -> Made {
    let settings = [("appendonly", "yes"), ("appendfsync", "everysec")];
    let server = slow_server(stage, &settings, "ODD_FSYNC_MS", 2500);
    stage.application(&server, 500);
    let mut c = open(&server);
    until("a sync that is late", || {
        info(&mut c, "persistence").is_ok_and(|i| i.number("aof_delayed_fsync") > Some(0.0))
    });
    Ok(())
}

fn backup_that_freezes_writes(stage: &mut Stage) -> Made {
    if !stage.since((6, 2)) {
        return Err("writes cannot be paused alone before 6.2");
    }
    let server = stage.server(&[]);
    for worker in 0..3 {
        stage.repeat(&server, ms(10), &["INCR", &format!("visits:{worker}")]);
    }
    stage.repeat(&server, ms(10), &["GET", "visits:0"]);
    stage.repeat(&server, ms(1000), &["CLIENT", "PAUSE", "2000", "WRITE"]);
    let mut c = open(&server);
    until("clients to wait", || info(&mut c, "clients").is_ok_and(|i| i.number("blocked_clients") > Some(0.0)));
    Ok(())
}

fn small_volume(stage: &mut Stage) -> Made {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().display().to_string();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8m", "unslow-odd", &path]).output();
    if !mounted.is_ok_and(|o| o.status.success()) {
        return Err("needs root, and the right to mount");
    }
    let place = path.clone();
    stage.at_end(move || {
        // Lazily: the server that has its files there ends after this.
        let _ = Command::new("umount").args(["-l", &place]).output();
        drop(dir);
    });
    let server = stage.server(&[("save", "3600 1"), ("dir", &path)]);
    fill(&server, 30_000, |i| words(&["SET", &format!("page:{i}"), &"x".repeat(1000)]));
    stage.application(&server, 500);
    Ok(())
}

fn rewrites_by_cron(stage: &mut Stage) -> Made {
    if !stage.since((7, 0)) {
        return Err("rewrites are not counted before 7.0");
    }
    let server = stage.server(&[("appendonly", "yes")]);
    stage.application(&server, 500);
    stage.repeat(&server, ms(500), &["BGREWRITEAOF"]);
    Ok(())
}

fn snapshots_at_midnight(stage: &mut Stage) -> Made {
    if !stage.since((6, 2)) {
        return Err("saves cannot be slowed down by a setting before 6.2");
    }
    let pair = stage.pair(&[("rdb-key-save-delay", "200")]);
    fill(&pair.nodes[0], 60_000, |i| words(&["SET", &format!("item:{i}"), "x"]));
    let saves = |node: &Server| {
        info(&mut open(node), "persistence").is_ok_and(|now| now.number("rdb_bgsave_in_progress") == Some(1.0))
    };
    for node in &pair.nodes {
        // A replica without the keys would have saved them at once, and a save for its sync may still be there.
        until("all keys on both", || open(node).call(&["DBSIZE"]).is_ok_and(|n| n.integer() >= Some(60_000)));
        until("no save", || !saves(node));
    }
    for node in &pair.nodes {
        open(node).call(&["BGSAVE"]).expect("a save");
        until("a save", || saves(node));
    }
    stage.application(&pair.nodes[0], 500);
    Ok(())
}

fn debug_left_on(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    open(&server).call(&["CONFIG", "SET", "loglevel", "debug"]).expect("a setting");
    stage.application(&server, 500);
    Ok(())
}

fn listener_that_left(stage: &mut Stage) -> Made {
    let server = stage.server(&[("notify-keyspace-events", "Kg$lshz")]);
    let mut listener = open(&server);
    listener.call(&["PSUBSCRIBE", "__keyspace@0__:*"]).expect("a subscription");
    drop(listener);
    stage.application(&server, 2000);
    Ok(())
}
