//! Faults of the machine: CPU quotas and neighbours.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Active, with, words};
use crate::Deployment;
use crate::server::Error;

/// Steady work for the server, so that being stopped shows.
fn load(active: Active, deployment: &Deployment) -> Active {
    let (target, mut slot) = (deployment.nodes[0].target(), None);
    active.work(move |flags| {
        with(&mut slot, &target, flags, |c| c.pipeline(&vec![words(&["SET", "k", "v"]); 50]).map(drop));
        flags.pause(Duration::from_micros(200));
    })
}

pub fn cpu_throttled(deployment: &mut Deployment) -> Result<Active, Error> {
    let name = format!("unslow-{}", std::process::id());
    let io = |e: std::io::Error| {
        Error::new(format!("no CPU cgroup can be made here ({e}); it needs root and a writable cgroup file system"))
    };
    let v1 = Path::new("/sys/fs/cgroup/cpu");
    let (dir, quota) = if v1.join("cpu.cfs_quota_us").exists() || v1.join("tasks").exists() {
        (v1.join(&name), "cpu.cfs_quota_us")
    } else {
        let root = mounted("cgroup", "cpu").unwrap_or_else(|| PathBuf::from("/sys/fs/cgroup"));
        let quota = if root.join("cgroup.controllers").exists() { "cpu.max" } else { "cpu.cfs_quota_us" };
        (root.join(&name), quota)
    };
    fs::create_dir_all(&dir).map_err(io)?;
    let group = Group(dir.clone());
    fs::write(dir.join(quota), if quota == "cpu.max" { "10000 100000" } else { "10000" }).map_err(io)?;
    fs::write(dir.join("cgroup.procs"), deployment.nodes[0].pid().to_string()).map_err(io)?;
    let active = Active::new("no CPU limit").on_end(move || drop(group));
    Ok(load(load(active, deployment), deployment))
}

fn mounted(kind: &str, option: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").ok()?;
    mounts.lines().find_map(|l| {
        let w: Vec<&str> = l.split_whitespace().collect();
        (w.get(2) == Some(&kind) && w.get(3)?.split(',').any(|o| o == option)).then(|| PathBuf::from(w[1]))
    })
}

/// A cgroup that gives its processes back to its parent and goes.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let parent = self.0.parent().map(|p| p.join("cgroup.procs"));
        for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(parent) = &parent {
                let _ = fs::write(parent, pid);
            }
        }
        let _ = fs::remove_dir(&self.0);
    }
}

pub fn noisy_neighbour(deployment: &mut Deployment) -> Result<Active, Error> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let children: Vec<Child> = (0..cores * 3)
        .map(|_| {
            // Ends by itself should we be killed: five minutes at most.
            Command::new("timeout")
                .args(["300", "sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()
        })
        .collect::<Result<_, _>>()
        .map_err(|e| Error::new(format!("timeout: {e}")))?;
    let active = Active::new("the neighbours move").on_end(move || {
        for mut child in children {
            // timeout hands SIGTERM on to its child.
            // SAFETY: the child was not reaped, so the pid is its own.
            unsafe {
                libc::kill(child.id() as i32, libc::SIGTERM);
            }
            let _ = child.wait();
        }
    });
    Ok(load(active, deployment))
}
