//! The memory of a server's cgroup at one moment, and what became of it in the window.

use std::fs;
use std::path::Path;

use unslow_facts::MemoryGroup;

use super::machine::line;
use super::parse::{group_field, stalled};

/// What the group's files hold at one moment. A root group has none of them under cgroup v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    used_bytes: u64,
    file_bytes: Option<u64>,
    limit_hits: Option<u64>,
    oom_kills: Option<u64>,
    stalled_us: Option<u64>,
}

impl Sample {
    /// What it counts, by name.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        let stalled_ms = self.stalled_us.map(|us| us / 1000);
        let all = [("limit_hits", self.limit_hits), ("oom_kills", self.oom_kills), ("stalled_ms", stalled_ms)];
        all.into_iter().filter_map(|(name, n)| Some((name, n?))).collect()
    }
}

/// Reads a group's directory, of either version.
pub fn sample(dir: &Path) -> Option<Sample> {
    let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
    let number = |file: &str| -> Option<u64> { line(dir.join(file))?.parse().ok() };
    let stat = text("memory.stat");
    // v1 names what is in the group itself, and with `total_` before it what is in the groups below as well.
    let file = |kind: &str| group_field(&stat, &format!("total_{kind}")).or_else(|| group_field(&stat, kind));
    let file_bytes = file("active_file").zip(file("inactive_file")).map(|(active, inactive)| active + inactive);
    if let Some(used_bytes) = number("memory.current") {
        let events = text("memory.events");
        let pressure = stalled("memory", &text("memory.pressure"));
        return Some(Sample {
            used_bytes,
            file_bytes,
            limit_hits: group_field(&events, "max"),
            oom_kills: group_field(&events, "oom_kill"),
            stalled_us: pressure.into_iter().find(|(kind, _)| kind == "memory.some").map(|(_, us)| us),
        });
    }
    Some(Sample {
        used_bytes: number("memory.usage_in_bytes")?,
        file_bytes,
        limit_hits: number("memory.failcnt"),
        oom_kills: group_field(&text("memory.oom_control"), "oom_kill"),
        stalled_us: None,
    })
}

/// The group at the window's end, and by how much its counters grew. Without a first sample they are not known.
pub fn in_window(before: Option<Sample>, end: Sample, window_s: f64) -> MemoryGroup {
    let grown = |of: fn(&Sample) -> Option<u64>| Some(of(&end)?.saturating_sub(of(before.as_ref()?)?));
    MemoryGroup {
        above: 0,
        used_bytes: end.used_bytes,
        file_bytes: end.file_bytes,
        limit_hits: grown(|s| s.limit_hits),
        oom_kills: grown(|s| s.oom_kills),
        stalled_share: grown(|s| s.stalled_us).map(|us| us as f64 / 1e6 / window_s.max(0.001)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    /// A directory of this test's own.
    fn dir(name: &str) -> std::path::PathBuf {
        let dir = std::env::temp_dir().join(format!("unslow-group-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        dir
    }

    #[test]
    fn both_versions_are_read_and_counters_are_of_the_window() {
        let v2 = dir("v2");
        let files = [
            ("memory.current", "1000\n"),
            ("memory.stat", "anon 700\nfile 250\nactive_file 50\ninactive_file 150\n"),
            ("memory.events", "low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n"),
            ("memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=500000\nfull avg10=0.00 total=1\n"),
        ];
        write(&v2, &files);
        let before = sample(&v2);
        write(
            &v2,
            &[
                ("memory.events", "low 0\nhigh 0\nmax 27\noom 2\noom_kill 2\noom_group_kill 0\n"),
                ("memory.pressure", "some avg10=9.00 avg60=0.00 avg300=0.00 total=1500000\n"),
            ],
        );
        let group = in_window(before, sample(&v2).unwrap(), 10.0);
        let expected = MemoryGroup {
            above: 0,
            used_bytes: 1000,
            file_bytes: Some(200),
            limit_hits: Some(20),
            oom_kills: Some(1),
            stalled_share: Some(0.1),
        };
        assert_eq!((group.held_bytes(), group), (800, expected));
        let v1 = dir("v1");
        write(
            &v1,
            &[
                ("memory.usage_in_bytes", "1000\n"),
                ("memory.failcnt", "3\n"),
                ("memory.stat", "active_file 1\ninactive_file 1\ntotal_active_file 50\ntotal_inactive_file 150\n"),
                ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"),
            ],
        );
        let group = in_window(sample(&v1), sample(&v1).unwrap(), 10.0);
        assert_eq!((group.held_bytes(), group.limit_hits, group.oom_kills), (800, Some(0), Some(0)));
        // Its first sample is missing: counters of before the window are not the window's.
        let late = in_window(None, sample(&v1).unwrap(), 10.0);
        assert_eq!((late.used_bytes, late.limit_hits, late.stalled_share), (1000, None, None));
        assert_eq!(sample(Path::new("/nowhere")), None);
        for dir in [v1, v2] {
            fs::remove_dir_all(dir).unwrap();
        }
    }
}
