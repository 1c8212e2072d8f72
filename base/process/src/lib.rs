//! Processes and threads as /proc shows them: state, parent, start, CPU time.
//!
//! Every answer is optional. A process may have ended, belong to another user, or be hidden by `hidepid`, and a kernel
//! may lack the file: all of that is `None`, never an error.
#![forbid(unsafe_code)]

use std::fs;

use procfs::FromRead;
pub use procfs::process::{Schedstat, Stat, Status};

/// Every process that /proc lists.
pub fn pids() -> impl Iterator<Item = u32> {
    numbers("/proc")
}

/// The threads of a process.
pub fn threads(pid: u32) -> impl Iterator<Item = u32> {
    numbers(&format!("/proc/{pid}/task"))
}

/// Names only: procfs would open a descriptor for each.
fn numbers(dir: &str) -> impl Iterator<Item = u32> + use<> {
    fs::read_dir(dir).into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Name, state, parent, CPU time and start. Any user may read it, unless /proc hides other users' processes.
pub fn stat(pid: u32) -> Option<Stat> {
    Stat::from_file(format!("/proc/{pid}/stat")).ok()
}

/// Memory, allowed processors, and the number in the process's own namespace. Sizes are in KiB.
pub fn status(pid: u32) -> Option<Status> {
    Status::from_file(format!("/proc/{pid}/status")).ok()
}

/// How long a thread has run and has waited for a processor, in ns. Kernels without scheduler statistics do not tell.
pub fn schedstat(pid: u32, thread: u32) -> Option<Schedstat> {
    Schedstat::from_file(format!("/proc/{pid}/task/{thread}/schedstat")).ok()
}

/// Name, state and CPU time of one thread.
pub fn thread_stat(pid: u32, thread: u32) -> Option<Stat> {
    Stat::from_file(format!("/proc/{pid}/task/{thread}/stat")).ok()
}

/// The function of the kernel that a thread waits in. It takes the right to trace the process; without it, and of a
/// thread that runs, there is none.
pub fn wait_channel(pid: u32, thread: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{pid}/task/{thread}/wchan")).ok()?;
    (!name.is_empty() && name != "0").then_some(name)
}

/// Functions of the kernel that a thread is in, the innermost first; root sees them.
pub fn kernel_stack(pid: u32, thread: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stack")).unwrap_or_default();
    functions(&text)
}

/// `[<0>] do_signal_stop+0x16f/0x210` is do_signal_stop.
fn functions(stack: &str) -> Vec<String> {
    fn function(line: &str) -> Option<&str> {
        line.split_once("] ")?.1.split(['+', ' ']).next()
    }
    stack.lines().filter_map(function).filter(|name| !name.is_empty()).map(String::from).collect()
}

/// User and kernel time of all threads, those that have ended included, in ticks. Children are not in it.
pub fn cpu_ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

/// Ticks, the unit of times in `stat`, as seconds.
pub fn seconds(ticks: u64) -> f64 {
    ticks as f64 / procfs::ticks_per_second() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_finds_itself_and_its_threads() {
        let own = std::process::id();
        assert!(pids().any(|pid| pid == own) && threads(own).any(|thread| thread == own));
        let stat = stat(own).unwrap();
        assert_eq!((stat.pid as u32, stat.ppid as u32), (own, std::os::unix::process::parent_id()));
        let status = status(own).unwrap();
        assert_eq!((status.tgid as u32, status.ppid), (own, stat.ppid));
    }

    #[test]
    fn cpu_time_is_user_and_kernel_time_without_that_of_children() {
        // utime, stime, cutime and cstime are the 14th to 17th field; the name may hold anything.
        let head = "77 (x) S 1 (y) S 1 1 1 0 -1 0 0 0 6 0 250 50 4000 8000 20 0 4 0 100";
        let line = format!("{head}{} 17 3 0 0", " 0".repeat(15));
        let stat = Stat::from_read(line.as_bytes()).unwrap();
        assert_eq!((stat.comm.as_str(), stat.state, stat.starttime), ("x) S 1 (y", 'S', 100));
        assert_eq!(cpu_ticks(&stat), 300);
        assert_eq!(seconds(procfs::ticks_per_second() * 3), 3.0);
    }

    #[test]
    fn a_stack_is_its_functions() {
        let text = "[<0>] jbd2_log_wait_commit+0xb5/0x110 [jbd2]\n[<ffffffff810>] do_fsync+0x38/0x60\n[<0>] \nnoise\n";
        assert_eq!(functions(text), ["jbd2_log_wait_commit", "do_fsync"]);
    }

    #[test]
    fn a_process_that_is_not_there_is_none() {
        let nobody = u32::MAX;
        assert!(thread_stat(nobody, nobody).is_none() && wait_channel(nobody, nobody).is_none());
        assert_eq!(kernel_stack(nobody, nobody).len(), 0);
        assert!(stat(nobody).is_none() && status(nobody).is_none() && schedstat(nobody, nobody).is_none());
        assert_eq!(threads(nobody).count(), 0);
    }
}
