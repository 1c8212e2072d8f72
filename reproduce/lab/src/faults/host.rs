//! Faults of the machine: CPU quotas, memory limits and neighbours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use unslow_engine::{Error, spawn_bound};

use super::{Active, At, with, words};
use crate::cgroups;

/// Steady work for the server, so that being stopped shows.
fn load(active: Active, at: &At<'_>) -> Result<Active, Error> {
    let (target, tag, mut slot) = (at.node()?.target(), at.tag()?, None);
    Ok(active.work(move |flags| {
        with(&mut slot, &target, flags, |c| c.pipeline(&vec![words(&["SET", &tag, "v"]); 50]).map(drop));
        flags.pause(Duration::from_micros(200));
    }))
}

pub fn cpu_throttle(at: &At<'_>) -> Result<Active, Error> {
    let share = at.share()?;
    if share < 0.01 {
        return Err(Error::new(format!("{:?}: expected at least 1% of a core", at.value())));
    }
    let quota = ((share * 100_000.0) as u64).max(1000);
    let group = Group::make(at, "cpu", |dir| {
        let v2 = dir.join("cpu.max");
        if v2.exists() {
            fs::write(v2, format!("{quota} 100000"))
        } else {
            fs::write(dir.join("cpu.cfs_period_us"), "100000")?;
            fs::write(dir.join("cpu.cfs_quota_us"), quota.to_string())
        }
    })?;
    let mut active = at.active("no CPU limit").on_end(move || drop(group));
    for node in at.nodes()? {
        at.claim(&mut active, &node, "CPU quota")?;
    }
    load(load(active, at)?, at)
}

pub fn memory_limit(at: &At<'_>) -> Result<Active, Error> {
    Ok(contain(at, "a higher limit")?.0)
}

/// Puts the servers into a memory cgroup of this fault's size. The directory of the group comes with it.
pub(super) fn contain(at: &At<'_>, remedy: &'static str) -> Result<(Active, PathBuf), Error> {
    let bytes = at.bytes()?;
    let group = Group::make(at, "memory", |dir| {
        let v2 = dir.join("memory.max");
        let file = if v2.exists() { v2 } else { dir.join("memory.limit_in_bytes") };
        fs::write(file, bytes.to_string())
    })?;
    let nodes = at.nodes()?;
    let mut active = at.active(remedy);
    for node in &nodes {
        at.claim(&mut active, node, "memory limit")?;
    }
    let dir = group.dir.clone();
    // Whoever was killed for it starts again afterwards.
    let active = active
        .on_end(move || drop(group))
        .undo_with(move || nodes.iter().filter(|n| !n.alive()).try_for_each(|n| n.restart()));
    Ok((active, dir))
}

/// What is charged to a memory cgroup now.
pub(super) fn charged(dir: &Path) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(dir.join(file)).ok()?.trim().parse().ok();
    read("memory.current").or_else(|| read("memory.usage_in_bytes"))
}

/// A cgroup that gives its processes back to where they were and goes.
struct Group {
    dir: PathBuf,
    before: Vec<(u32, PathBuf)>,
}

impl Group {
    /// Makes one under the controller's root, sets its limit, and moves the servers in.
    fn make(at: &At<'_>, controller: &str, limit: impl Fn(&Path) -> std::io::Result<()>) -> Result<Group, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let io = |e: std::io::Error| {
            Error::new(format!(
                "no {controller} cgroup can be made here ({e}); it takes root and a writable cgroup file system"
            ))
        };
        let name = format!(
            "{}{}-{}",
            cgroups::prefix(&at.lab.name),
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let dir = cgroups::root(controller).join(name);
        fs::create_dir(&dir).map_err(io)?;
        let mut group = Group { dir, before: Vec::new() };
        limit(&group.dir).map_err(io)?;
        for node in at.nodes()? {
            let pid = node.pid();
            if pid == 0 {
                return Err(Error::new(format!("{} does not run", node.name())));
            }
            group.before.extend(cgroups::of_process(controller, pid).map(|dir| (pid, dir)));
            fs::write(group.dir.join("cgroup.procs"), pid.to_string()).map_err(io)?;
        }
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for (pid, dir) in &self.before {
            let _ = fs::write(dir.join("cgroup.procs"), pid.to_string());
        }
        cgroups::remove(&self.dir);
    }
}

pub fn cpu_neighbour(at: &At<'_>) -> Result<Active, Error> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let count = cores * at.count(64)?;
    let mut children = Vec::new();
    for _ in 0..count {
        let mut command = Command::new("sh");
        // Ends with us, and after five minutes of CPU in any case.
        command.args(["-c", "ulimit -t 300; while :; do :; done"]).stdin(Stdio::null()).stdout(Stdio::null());
        children.push(spawn_bound(command).map_err(|e| Error::new(format!("sh: {e}")))?);
    }
    let active = at.active("the neighbours move").on_end(move || {
        for mut child in children {
            let _ = child.kill();
            let _ = child.wait();
        }
    });
    load(active, at)
}
