//! What a server's process was seen doing while it owed an answer, as evidence.

use unslow_facts::{Doing, Standing, ThreadState};

use super::prelude::*;

/// Adds what was seen of the node's process while it owed an answer, if it was looked at and was not stopped.
pub fn stood(finding: Finding, node: &Node) -> Finding {
    with(finding, node, |state| !matches!(state, ThreadState::Stopped | ThreadState::Traced))
}

/// The same, if it was seen waiting for a disk, or for memory from one.
pub fn stood_waiting(finding: Finding, node: &Node) -> Finding {
    with(finding, node, |state| state == ThreadState::Uninterruptible)
}

/// The same, if it was seen in such a state.
pub fn with(finding: Finding, node: &Node, fits: impl Fn(ThreadState) -> bool) -> Finding {
    let Some(standing) = node.standing.as_ref().filter(|s| s.seen.iter().any(|doing| fits(doing.state))) else {
        return finding;
    };
    let pid = standing.pid;
    finding.saw_at(
        format!("ps -o stat,wchan:30 -p {pid}; cat /proc/{pid}/stack ({})", node.address),
        told(standing),
        standing.at_ms,
    )
}

/// Looks that show more than a moment, and how long they last at least, in ms: time on a processor is counted in tens
/// of them.
pub const LOOKS: u32 = 3;
const SPAN_MS: u64 = 100;
/// Share of it that it may have run meanwhile: one that ran longer was busy with something.
const RAN: f64 = 0.1;

/// Whether its process was ready to run at every look while it owed an answer, and hardly ran: nothing blocks it; other
/// threads or processes hold the processors, or a quota keeps it from them. How long it waited is no condition: the
/// kernel counts a wait when it is over, and one that lasts longer than the looks is counted in none of them.
pub fn is_starved(node: &Node) -> bool {
    let seen = node.standing.as_ref().filter(|standing| standing.looks >= LOOKS && standing.span_ms >= SPAN_MS);
    seen.is_some_and(|standing| {
        let span = standing.span_ms as f64;
        let ran = standing.user_ms.saturating_add(standing.system_ms) as f64;
        standing.only_state() == Some(ThreadState::Runnable) && ran < RAN * span
    })
}

fn told(standing: &Standing) -> String {
    let one = |doing: &Doing| {
        let at = doing.wait_channel.as_ref().map_or(String::new(), |name| format!(" in {name}"));
        // What it waits in is the innermost, and named already.
        let under: Vec<&str> = doing.stack.iter().skip(1).take(CALLERS).map(String::as_str).collect();
        let under = if under.is_empty() { String::new() } else { format!(" (under {})", under.join(" < ")) };
        let words = words(doing.state);
        match standing.looks {
            1 => format!("{words}{at}{under}"),
            all => format!("{} of {all} looks: {words}{at}{under}", doing.looks),
        }
    };
    let seen = standing.seen.iter().map(one).collect::<Vec<_>>().join("; ");
    if standing.looks == 1 {
        return format!("while it owed an answer, in one look: {seen}");
    }
    let mut text = format!(
        "while it owed an answer, over {}: {seen}; on a processor for {} of that, {} of it in the kernel",
        ms(standing.span_ms),
        ms(standing.user_ms.saturating_add(standing.system_ms)),
        ms(standing.system_ms)
    );
    if let Some(waited) = standing.waited_ms.filter(|waited| *waited >= 1) {
        text += &format!("; it waited {} for one", ms(waited));
    }
    text
}

/// Functions that are named as those that called the one it waits in.
const CALLERS: usize = 3;

fn ms(ms: u64) -> String {
    time_us(ms as f64 * 1000.0)
}

fn words(state: ThreadState) -> &'static str {
    match state {
        ThreadState::Runnable => "running or ready to run (R)",
        ThreadState::Sleeping => "asleep (S)",
        ThreadState::Uninterruptible => "waiting without a way to be interrupted (D)",
        ThreadState::Stopped => "stopped by a signal (T)",
        ThreadState::Traced => "stopped by a debugger (t)",
        ThreadState::Other => "in another state",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standing_process_reads_as_a_sentence() {
        let doing = |state, channel: Option<&str>, stack: &[&str], looks| Doing {
            state,
            wait_channel: channel.map(String::from),
            stack: stack.iter().map(|s| s.to_string()).collect(),
            looks,
        };
        let stack = ["jbd2_log_wait_commit", "ext4_sync_file", "do_fsync", "__x64_sys_fdatasync", "do_syscall_64"];
        let standing = Standing {
            pid: 77,
            looks: 9,
            span_ms: 820,
            user_ms: 10,
            system_ms: 20,
            waited_ms: Some(5),
            seen: vec![
                doing(ThreadState::Uninterruptible, Some("jbd2_log_wait_commit"), &stack, 8),
                doing(ThreadState::Runnable, None, &[], 1),
            ],
            ..Standing::default()
        };
        assert_eq!(
            told(&standing),
            "while it owed an answer, over 820 ms: 8 of 9 looks: waiting without a way to be interrupted (D) in \
             jbd2_log_wait_commit (under ext4_sync_file < do_fsync < __x64_sys_fdatasync); 1 of 9 looks: running or \
             ready to run (R); on a processor for 30 ms of that, 20 ms of it in the kernel; it waited 5 ms for one"
        );
        let seen = vec![doing(ThreadState::Stopped, None, &[], 1)];
        let one = Standing { looks: 1, seen, ..Standing::default() };
        assert_eq!(told(&one), "while it owed an answer, in one look: stopped by a signal (T)");
    }
}
