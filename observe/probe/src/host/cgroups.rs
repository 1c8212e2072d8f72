//! A server's cgroup and those above it, up to the root of what is mounted here: each may have a limit, and the
//! tightest counts.
//!
//! A pod or a slice above the server's own group stops it just as its own quota would. What is above the mount (the
//! host's groups, seen from inside a container) stays unseen.

use std::fs;
use std::path::{Component, Path, PathBuf};

use procfs::{FromRead, MountEntry, ProcessCGroups};

use super::machine::line;
use super::parse::{Throttled, cgroup_places, cores, limit_of, throttled_of};

/// A group and its enforcement periods at one moment.
pub type Periods = (PathBuf, Throttled);

/// The group that bounds a server's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounding {
    pub dir: PathBuf,
    /// Levels above the server's own group.
    pub above: u32,
    /// None where neither it nor any group above it has a limit.
    pub limit: Option<u64>,
}

/// The most throttled group of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// Levels above the server's own group.
    pub above: u32,
    pub us: u64,
    pub throttled: u64,
    pub periods: u64,
}

/// What is mounted here, read once for all processes that are looked at together.
pub struct Mounts(Vec<MountEntry>);

impl Mounts {
    pub fn read() -> Mounts {
        Mounts(procfs::mounts().unwrap_or_default())
    }
}

/// Directories of a process's groups for a controller, its own first; empty where none can be seen.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    pub cpu: Vec<PathBuf>,
    pub memory: Vec<PathBuf>,
}

impl Groups {
    pub fn of(pid: u32, mounts: &Mounts) -> Groups {
        let groups = ProcessCGroups::from_file(format!("/proc/{pid}/cgroup")).map_or(Vec::new(), |all| all.0);
        let of = |controller: &str| {
            let places = cgroup_places(&groups, &mounts.0, controller);
            let mut all = places.into_iter().map(|(base, dir)| upwards(&base, &dir));
            all.find(|groups| groups.iter().any(|dir| has(dir, controller))).unwrap_or_default()
        };
        Groups { cpu: of("cpu"), memory: of("memory") }
    }
}

fn has(dir: &Path, controller: &str) -> bool {
    let files: &[&str] = if controller == "cpu" { &["cpu.stat"] } else { &["memory.max", "memory.limit_in_bytes"] };
    files.iter().any(|file| dir.join(file).exists())
}

/// From a group up to the root of its mount.
fn upwards(base: &Path, dir: &Path) -> Vec<PathBuf> {
    // Inside a container the path is the host's, and the mount shows our own group at its root.
    let dir = if dir.exists() { dir } else { base };
    // A group outside our namespace of cgroups: what stands there is another one.
    if dir.components().any(|part| part == Component::ParentDir) {
        return Vec::new();
    }
    dir.ancestors().take_while(|d| d.starts_with(base)).map(Path::to_path_buf).collect()
}

/// The tightest CPU quota, in cores.
pub fn quota(groups: &[PathBuf]) -> Option<f64> {
    groups.iter().filter_map(|dir| quota_of(dir)).reduce(f64::min)
}

fn quota_of(dir: &Path) -> Option<f64> {
    match line(dir.join("cpu.max")) {
        Some(text) => {
            let (quota, period) = text.split_once(' ')?;
            cores(quota, period)
        }
        None => cores(&line(dir.join("cpu.cfs_quota_us"))?, &line(dir.join("cpu.cfs_period_us"))?),
    }
}

/// The periods of each group that counts them, the server's own first.
pub fn periods(groups: &[PathBuf]) -> Vec<Periods> {
    let of = |dir: &PathBuf| Some((dir.clone(), throttled_of(&fs::read_to_string(dir.join("cpu.stat")).ok()?)?));
    groups.iter().filter_map(of).collect()
}

/// The group that was stopped longest between two moments: a server that two groups stop at once is stopped once.
/// `groups` are those of the second moment; a group that the server was moved into since has no first.
pub fn stopped(groups: &[PathBuf], before: &[Periods], after: &[Periods]) -> Option<Stopped> {
    let grown = |(dir, end): &Periods| {
        let (_, begin) = before.iter().find(|(at, _)| at == dir)?;
        Some(Stopped {
            above: groups.iter().position(|at| at == dir)? as u32,
            us: end.us.saturating_sub(begin.us),
            throttled: end.throttled.saturating_sub(begin.throttled),
            periods: end.periods.saturating_sub(begin.periods),
        })
    };
    after.iter().filter_map(grown).reduce(longest)
}

/// The one that stopped it longer; the first of equals, so the server's own.
pub fn longest(a: Stopped, b: Stopped) -> Stopped {
    if (b.us, b.throttled) > (a.us, a.throttled) { b } else { a }
}

/// The group whose memory limit is the tightest; the server's own where there is none.
pub fn bounding(groups: &[PathBuf]) -> Option<Bounding> {
    let own = groups.first()?;
    // v1: what a group uses is charged to the one above only where that one keeps a hierarchy (always, since Linux
    // 5.11).
    let apart = |dir: &PathBuf| line(dir.join("memory.use_hierarchy")).as_deref() == Some("0");
    let charged = groups.iter().skip(1).position(apart).map_or(groups.len(), |above| above + 1);
    let limits =
        groups.iter().take(charged).enumerate().filter_map(|(above, dir)| Some((above, dir, memory_limit(dir)?)));
    let tightest = limits.min_by_key(|(_, _, limit)| *limit);
    Some(tightest.map_or_else(
        || Bounding { dir: own.clone(), above: 0, limit: None },
        |(above, dir, limit)| Bounding { dir: dir.clone(), above: above as u32, limit: Some(limit) },
    ))
}

fn memory_limit(dir: &Path) -> Option<u64> {
    limit_of(&line(dir.join("memory.max")).or_else(|| line(dir.join("memory.limit_in_bytes")))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of groups below a mount, which is removed again.
    struct Tree(PathBuf);

    impl Tree {
        /// `files`: a path below the mount and its text.
        fn new(name: &str, files: &[(&str, &str)]) -> Tree {
            let base = std::env::temp_dir().join(format!("unslow-cgroups-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&base);
            fs::create_dir(&base).unwrap();
            let tree = Tree(base);
            files.iter().for_each(|(path, text)| tree.write(path, text));
            tree
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn groups(&self, own: &str) -> Vec<PathBuf> {
            upwards(&self.0, &self.0.join(own))
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_way_up_ends_at_the_root_of_the_mount() {
        let tree = Tree::new("way", &[("pods/redis/cpu.stat", "")]);
        let [pods, redis] = ["pods", "pods/redis"].map(|dir| tree.0.join(dir));
        assert_eq!(tree.groups("pods/redis"), [redis, pods, tree.0.clone()]);
        // The mount shows our own group at its root; the path is the host's.
        assert_eq!(tree.groups("docker/0123"), std::slice::from_ref(&tree.0));
        assert_eq!(tree.groups(""), std::slice::from_ref(&tree.0));
        // Outside our namespace of cgroups.
        assert!(tree.groups("pods/../../x").iter().all(|dir| *dir == tree.0));
        assert!(tree.groups("pods/..").is_empty());
    }

    #[test]
    fn the_tightest_quota_of_all_groups_counts_in_both_versions() {
        let v2 = Tree::new("quota-v2", &[("pods/cpu.max", "150000 100000\n"), ("pods/redis/cpu.max", "max 100000\n")]);
        assert_eq!(quota(&v2.groups("pods/redis")), Some(1.5));
        v2.write("pods/redis/cpu.max", "400000 100000\n");
        assert_eq!(quota(&v2.groups("pods/redis")), Some(1.5), "the one above is tighter");
        v2.write("pods/redis/cpu.max", "50000 100000\n");
        assert_eq!(quota(&v2.groups("pods/redis")), Some(0.5));
        let v1 = Tree::new(
            "quota-v1",
            &[
                ("cpu.cfs_quota_us", "-1\n"),
                ("cpu.cfs_period_us", "100000\n"),
                ("pods/cpu.cfs_quota_us", "20000\n"),
                ("pods/cpu.cfs_period_us", "100000\n"),
                ("pods/redis/cpu.cfs_quota_us", "-1\n"),
                ("pods/redis/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(quota(&v1.groups("pods/redis")), Some(0.2));
        assert_eq!(quota(&v1.groups("other")), None);
    }

    #[test]
    fn the_group_that_was_stopped_longest_is_told() {
        let stat = |periods: u64, throttled: u64, us: u64| {
            format!("usage_usec 9\nnr_periods {periods}\nnr_throttled {throttled}\nthrottled_usec {us}\n")
        };
        let tree = Tree::new("periods", &[("cpu.stat", "usage_usec 9\n")]);
        tree.write("pods/cpu.stat", &stat(100, 5, 1000));
        tree.write("pods/redis/cpu.stat", &stat(0, 0, 0));
        let groups = tree.groups("pods/redis");
        let before = periods(&groups);
        assert_eq!(before.len(), 2, "the root counts none");
        tree.write("pods/cpu.stat", &stat(130, 25, 901_000));
        let above = Stopped { above: 1, us: 900_000, throttled: 20, periods: 30 };
        assert_eq!(stopped(&groups, &before, &periods(&groups)), Some(above));
        // Its own, as soon as that is longer; none at all is its own too.
        tree.write("pods/redis/cpu.stat", &stat(30, 29, 2_000_000));
        assert_eq!(stopped(&groups, &before, &periods(&groups)).map(|s| (s.above, s.us)), Some((0, 2_000_000)));
        assert_eq!(stopped(&groups, &before, &before), Some(Stopped::default()));
        // Without a first sample nothing is known of the window.
        assert_eq!(stopped(&groups, &[], &periods(&groups)), None);
    }

    #[test]
    fn the_tightest_memory_limit_and_the_group_that_has_it_count_in_both_versions() {
        let v2 = Tree::new("memory-v2", &[("pods/memory.max", "2000\n"), ("pods/redis/memory.max", "max\n")]);
        let bound = |tree: &Tree| bounding(&tree.groups("pods/redis")).map(|b| (b.above, b.limit));
        assert_eq!(bound(&v2), Some((1, Some(2000))));
        v2.write("pods/redis/memory.max", "2000\n");
        assert_eq!(bound(&v2), Some((0, Some(2000))), "its own, of equals");
        v2.write("pods/redis/memory.max", "3000\n");
        assert_eq!(bound(&v2), Some((1, Some(2000))));
        let none = Tree::new("memory-none", &[("memory.limit_in_bytes", "9223372036854771712\n")]);
        none.write("pods/redis/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(bound(&none), Some((0, None)));
        none.write("pods/memory.limit_in_bytes", "5000\n");
        assert_eq!(bound(&none), Some((1, Some(5000))));
        // The one above does not count what is in groups below it.
        none.write("pods/memory.use_hierarchy", "0\n");
        assert_eq!(bound(&none), Some((0, None)));
        assert_eq!(bounding(&[]), None);
    }
}
