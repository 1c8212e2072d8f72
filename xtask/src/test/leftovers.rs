//! What a test leaves behind: processes with its mark in their environment. Servers are bound to the test and end with
//! it; a lab has a holder of its own, which takes the lab down when it is told to end.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::run::NOTES;

/// How long what was bound to the test may take to end by itself.
const BY_ITSELF: Duration = Duration::from_secs(2);
/// How long a holder may take to undo a lab.
const IN_ORDER: Duration = Duration::from_secs(20);

/// Ends every process with the mark of this test, in order if it can; returns the names of those that had to be ended.
pub fn end(notes: &Path) -> Vec<String> {
    let mark = format!("{NOTES}={}", notes.display());
    let gone = |patience: Duration| {
        let begun = Instant::now();
        while begun.elapsed() < patience && !marked(&mark).is_empty() {
            std::thread::sleep(Duration::from_millis(20));
        }
        marked(&mark)
    };
    let left = gone(BY_ITSELF);
    if left.is_empty() {
        return Vec::new();
    }
    let names = left.iter().map(|pid| name(*pid)).collect();
    signal("-TERM", &left);
    signal("-KILL", &gone(IN_ORDER));
    gone(BY_ITSELF);
    names
}

fn signal(signal: &str, pids: &[u32]) {
    if !pids.is_empty() {
        let pids = pids.iter().map(u32::to_string);
        let _ = Command::new("kill").arg(signal).args(pids).stderr(Stdio::null()).status();
    }
}

/// Processes that were started with this in their environment and have not ended.
fn marked(mark: &str) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let has = |pid: &u32| {
        // Empty for a process that has ended and was not yet waited for.
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|variable| variable == mark.as_bytes())
    };
    pids.filter(has).collect()
}

fn name(pid: u32) -> String {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<String> =
        command.split(|b| *b == 0).take(6).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
    format!("{pid} ({})", words.join(" ").trim())
}
