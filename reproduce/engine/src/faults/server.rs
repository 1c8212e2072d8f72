//! Faults inside the server: forks, disks, memory, expiry, replication.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Duration;

use super::{Active, connect, fill, with, words};
use crate::Deployment;
use crate::install::cache_dir;
use crate::server::Error;

const SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libunslow_slow.so"));

/// What a server must be started with, so that its fork and fsync can be made slow later.
pub fn shim_env() -> Result<Vec<(String, String)>, Error> {
    if SHIM.is_empty() {
        return Err(Error::new("the slow-fork shim could not be built for this machine"));
    }
    let dir = cache_dir();
    let path = dir.join(format!("libunslow_slow-{}.so", env!("CARGO_PKG_VERSION")));
    let io = |e: std::io::Error| Error::new(format!("{}: {e}", path.display()));
    if std::fs::read(&path).ok().as_deref() != Some(SHIM) {
        std::fs::create_dir_all(&dir).map_err(io)?;
        // Written aside and renamed: a server that starts this moment must not map half of it.
        let aside = dir.join(format!(".shim-{}", std::process::id()));
        let mut file =
            std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&aside).map_err(io)?;
        file.write_all(SHIM).map_err(io)?;
        std::fs::rename(&aside, &path).map_err(io)?;
    }
    // The server's own directory is its working directory; the file there holds its delays.
    Ok(vec![("LD_PRELOAD".into(), path.display().to_string()), ("UNSLOW_SLOW".into(), "slow".into())])
}

fn slow(dir: &std::path::Path, fork_us: u64, fsync_us: u64) -> Result<PathBuf, Error> {
    let path = dir.join("slow");
    std::fs::write(&path, format!("{fork_us} {fsync_us}\n"))
        .map_err(|e| Error::new(format!("{}: {e}", path.display())))?;
    Ok(path)
}

pub fn nothing(_: &mut Deployment) -> Result<Active, Error> {
    Ok(Active::new("the setting"))
}

/// A worker that writes `per_ms` values of `value_bytes` each millisecond, more or less, over `keys` keys in turn.
fn writes(active: Active, deployment: &Deployment, value_bytes: usize, per_ms: usize, keys: u64) -> Active {
    let (target, mut slot, mut i) = (deployment.nodes[0].target(), None, 0u64);
    let value = "x".repeat(value_bytes);
    active.work(move |flags| {
        let batch: Vec<Vec<String>> = (0..per_ms)
            .map(|_| {
                i += 1;
                words(&["SET", &format!("w:{}", i % keys), &value])
            })
            .collect();
        with(&mut slot, &target, flags, |c| c.pipeline(&batch).map(drop));
        flags.pause(Duration::from_millis(1));
    })
}

pub fn save_too_often(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut c = connect(&deployment.nodes[0].target())?;
    fill(&mut c, 50_000, |i| words(&["SET", &format!("k:{i}"), &"x".repeat(200)]))?;
    c.call(&["CONFIG", "SET", "save", "1 1"])?;
    Ok(writes(Active::new("save 3600 1"), deployment, 100, 2, 10_000))
}

pub fn fork_stall(deployment: &mut Deployment) -> Result<Active, Error> {
    let node = &deployment.nodes[0];
    let file = slow(node.dir(), 1_000_000, 0)?;
    let mut c = connect(&node.target())?;
    c.call(&["SET", "k", "v"])?;
    c.call(&["BGSAVE"])?;
    Ok(Active::new("saving moves to a machine where fork is fast").on_end(move || drop(std::fs::remove_file(file))))
}

pub fn aof_fsync_stall(deployment: &mut Deployment) -> Result<Active, Error> {
    let file = slow(deployment.nodes[0].dir(), 0, 3_000_000)?;
    let active = Active::new("a disk of its own").on_end(move || drop(std::fs::remove_file(file)));
    let active = writes(active, deployment, 100, 1, 1000);
    std::thread::sleep(Duration::from_secs(3)); // the first slow sync is under way
    Ok(active)
}

pub fn eviction_pressure(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut c = connect(&deployment.nodes[0].target())?;
    fill(&mut c, 30_000, |i| words(&["SET", &format!("old:{i}"), &"x".repeat(1000)]))?;
    Ok(writes(Active::new("memory for the working set"), deployment, 1000, 2, u64::MAX))
}

pub fn out_of_memory(deployment: &mut Deployment) -> Result<Active, Error> {
    Ok(writes(Active::new("a higher limit, or eviction"), deployment, 10_000, 10, u64::MAX))
}

pub fn expire_storm(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut c = connect(&deployment.nodes[0].target())?;
    fill(&mut c, 400_000, |i| words(&["SET", &format!("s:{i}"), "x"]))?;
    // All of them die at one moment, soon.
    let now = c.call(&["TIME"])?.items().first().and_then(|v| v.integer()).unwrap_or(0);
    let at = ((now + 4) * 1000).to_string();
    fill(&mut c, 400_000, |i| words(&["PEXPIREAT", &format!("s:{i}"), &at]))?;
    // Whoever looks for three seconds must be looking then.
    let begun = std::time::Instant::now();
    let left = |c: &mut unslow_client::Connection| -> Result<i64, Error> {
        Ok(now + 4 - c.call(&["TIME"])?.items().first().and_then(|v| v.integer()).unwrap_or(0))
    };
    while left(&mut c)? > 2 && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(Active::new("jitter on the TTLs"))
}

pub fn backlog_too_small(deployment: &mut Deployment) -> Result<Active, Error> {
    Ok(writes(Active::new("a backlog of five minutes"), deployment, 1000, 2, 1000))
}

pub fn full_resync_loop(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut c = connect(&deployment.nodes[0].target())?;
    fill(&mut c, 5_000, |i| words(&["SET", &format!("k:{i}"), &"x".repeat(1000)]))?;
    let (ip, port) = (deployment.nodes[0].ip.clone(), deployment.nodes[0].port.to_string());
    let (target, mut slot) = (deployment.nodes[1].target(), None);
    // A replica that comes back without its data and history, as a container without a volume does.
    Ok(Active::new("the replica keeps its data over a restart").work(move |flags| {
        with(&mut slot, &target, flags, |c| {
            c.call(&["REPLICAOF", "NO", "ONE"])?;
            c.call(&["FLUSHALL"])?;
            c.call(&["SET", "own", "history"])?;
            c.call(&["REPLICAOF", &ip, &port]).map(drop)
        });
        flags.pause(Duration::from_millis(800));
    }))
}
