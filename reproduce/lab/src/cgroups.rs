//! Control groups: where they are, and how a lab's own are found again and removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The group a process is in.
pub fn of_process(controller: &str, pid: u32) -> Option<PathBuf> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let fits = controllers.is_empty() && root(controller).join("cgroup.controllers").exists()
            || controllers.split(',').any(|c| c == controller);
        fits.then(|| root(controller).join(path.trim_start_matches('/')))
    })
}

/// Gives a cgroup's processes to its parent and removes it.
pub fn remove(dir: &Path) {
    let parent = dir.parent().map(|p| p.join("cgroup.procs"));
    for _ in 0..20 {
        for pid in fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(parent) = &parent {
                let _ = fs::write(parent, pid);
            }
        }
        if fs::remove_dir(dir).is_ok() || !dir.exists() {
            return;
        }
        // A process that has just ended leaves a moment later.
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// How the names of a lab's cgroups begin; the number of the process that holds it follows.
pub fn prefix(lab: &str) -> String {
    format!("unslow-{lab}-")
}

/// Where cgroups of a controller live: version 1 has a tree for each, version 2 one for all.
pub fn root(controller: &str) -> PathBuf {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let of = |kind: &str, option: Option<&str>| {
        mounts.lines().find_map(|l| {
            let w: Vec<&str> = l.split_whitespace().collect();
            let fits = w.get(2) == Some(&kind)
                && option.is_none_or(|o| w.get(3).is_some_and(|m| m.split(',').any(|x| x == o)));
            fits.then(|| PathBuf::from(w[1]))
        })
    };
    of("cgroup", Some(controller)).or_else(|| of("cgroup2", None)).unwrap_or_else(|| "/sys/fs/cgroup".into())
}

/// Removes what a lab left behind whose holder, of this number, was killed.
pub fn remove_leftovers(lab: &str, holder: u32) {
    let prefix = format!("{}{holder}-", prefix(lab));
    let is_ours = |name: &str| name.strip_prefix(&prefix).is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_digit()));
    for controller in ["cpu", "memory"] {
        let Ok(entries) = fs::read_dir(root(controller)) else { continue };
        for entry in entries.flatten() {
            if is_ours(&entry.file_name().to_string_lossy()) {
                remove(&entry.path());
            }
        }
    }
}
