//! Which processes belong to a lab: those in its namespaces, and those that carry its mark.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// In the environment of servers, of what `lab exec` starts, and of their children.
pub const MARK: &str = "UNSLOW_LAB";

fn pids() -> impl Iterator<Item = u32> {
    unslow_process::pids().filter(|pid| *pid != std::process::id())
}

/// The mark of a lab's processes: its directory, which no other lab has at the same time.
pub fn mark(dir: &Path) -> String {
    dir.display().to_string()
}

fn is_marked(pid: u32, mark: &str) -> bool {
    let variable = format!("{MARK}={mark}");
    let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    environment.split(|b| *b == 0).any(|v| v == variable.as_bytes())
}

/// Processes in one of these network namespaces, given as what `/proc/PID/ns/net` reads, or with the mark. Only while
/// somebody holds them: numbers are used again.
pub fn inside(namespaces: &BTreeSet<PathBuf>, mark: &str) -> Vec<u32> {
    let within = |pid: &u32| fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|n| namespaces.contains(&n));
    pids().filter(|pid| within(pid) || is_marked(*pid, mark)).collect()
}

/// Processes of a lab whose holder is gone, by cookies of its namespaces (as root) or by the mark.
pub fn of_lab(mark: &str, cookies: &[u64]) -> Vec<u32> {
    let own = fs::read_link("/proc/self/ns/net").ok();
    pids()
        .filter(|pid| {
            if is_marked(*pid, mark) {
                return true;
            }
            let path = format!("/proc/{pid}/ns/net");
            let elsewhere = !cookies.is_empty() && fs::read_link(&path).is_ok_and(|n| Some(n) != own);
            elsewhere && cookie_of(&path).is_ok_and(|c| cookies.contains(&c))
        })
        .collect()
}

/// The cookie of a namespace: a number that the kernel gives no other until the next boot.
fn cookie_of(path: &str) -> io::Result<u64> {
    let file = fs::File::open(path)?;
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                // SAFETY: an open descriptor; it changes this thread alone, which ends here.
                if unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } != 0 {
                    return Err(io::Error::last_os_error());
                }
                cookie()
            })
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread died")))
    })
}

/// The cookie of the calling thread's network namespace.
pub fn cookie() -> io::Result<u64> {
    const SO_NETNS_COOKIE: i32 = 71;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let mut value = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the pointer and the length describe `value`.
    let done = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            std::ptr::from_mut(&mut value).cast(),
            &mut length,
        )
    };
    if done == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
