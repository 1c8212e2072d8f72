//! What a server's main thread does while an answer is owed: its state, where in the kernel it waits, and its time on a
//! processor. A look is a few small files and takes no lock that the server may hold.

use std::time::{Duration, Instant};

use unslow_facts::{Doing, Node, Standing, ThreadState};
use unslow_process::{Schedstat, Stat, kernel_stack, schedstat, seconds, thread_stat, wait_channel};

use super::addresses::{port_of, resolve};
use super::processes::{Listener, listeners};
use crate::{now_ms, sockets};

/// Different things that are told apart; a thread waits in few places.
const PLACES_MAX: usize = 16;
/// Functions of a stack that are kept: below them is how a system call begins.
const STACK_MAX: usize = 12;
/// Looks at a server that says nothing, and the time between them.
const LOOKS: usize = 5;
const BETWEEN: Duration = Duration::from_millis(50);

/// One process, looked at from time to time.
#[derive(Clone)]
pub struct Looks {
    pid: u32,
    /// In ticks since the machine was booted: tells the process from a later one of its number.
    started: u64,
    first: Option<Moment>,
    last: Option<Moment>,
    looks: u32,
    seen: Vec<Doing>,
}

/// Counters of the main thread at one look.
#[derive(Clone, Copy)]
struct Moment {
    at: Instant,
    at_ms: u64,
    user_ticks: u64,
    system_ticks: u64,
    waited_ns: Option<u64>,
}

impl Looks {
    /// Of a process that is there.
    pub fn at(pid: u32) -> Option<Looks> {
        let started = thread_stat(pid, pid)?.starttime;
        Some(Looks { pid, started, first: None, last: None, looks: 0, seen: Vec::new() })
    }

    /// Looks once. False if the process is not there any more.
    pub fn look(&mut self) -> bool {
        let Some(stat) = thread_stat(self.pid, self.pid).filter(|stat| stat.starttime == self.started) else {
            return false;
        };
        let state = state_of(&stat);
        let (wait_channel, mut stack) = match state {
            // Where a running thread is changes while it is read.
            ThreadState::Runnable => (None, Vec::new()),
            _ => (wait_channel(self.pid, self.pid), kernel_stack(self.pid, self.pid)),
        };
        stack.truncate(STACK_MAX);
        let moment = Moment {
            at: Instant::now(),
            at_ms: now_ms(),
            user_ticks: stat.utime,
            system_ticks: stat.stime,
            waited_ns: schedstat(self.pid, self.pid).map(|Schedstat { run_delay, .. }| run_delay),
        };
        self.add(moment, Doing { state, wait_channel, stack, looks: 1 });
        true
    }

    fn add(&mut self, moment: Moment, doing: Doing) {
        self.first.get_or_insert(moment);
        self.last = Some(moment);
        self.looks += 1;
        let place = |doing: &Doing| (doing.state, doing.wait_channel.clone(), doing.stack.clone());
        let same = |known: &Doing| place(known) == place(&doing);
        match self.seen.iter().position(same) {
            Some(place) => self.seen[place].looks += 1,
            None if self.seen.len() < PLACES_MAX => self.seen.push(doing),
            None => {}
        }
    }

    /// How often it was looked at.
    pub fn count(&self) -> u32 {
        self.looks
    }

    /// What was seen; `None` before the first look.
    pub fn standing(&self) -> Option<Standing> {
        let (first, last) = (self.first?, self.last?);
        let ms = |before: u64, after: u64| (seconds(after.saturating_sub(before)) * 1000.0) as u64;
        let mut seen = self.seen.clone();
        seen.sort_by_key(|doing| std::cmp::Reverse(doing.looks));
        Some(Standing {
            pid: self.pid,
            at_ms: last.at_ms,
            looks: self.looks,
            span_ms: last.at.duration_since(first.at).as_millis() as u64,
            user_ms: ms(first.user_ticks, last.user_ticks),
            system_ms: ms(first.system_ticks, last.system_ticks),
            waited_ms: first.waited_ns.zip(last.waited_ns).map(|(a, b)| b.saturating_sub(a) / 1_000_000),
            seen,
        })
    }
}

fn state_of(stat: &Stat) -> ThreadState {
    match stat.state {
        'R' => ThreadState::Runnable,
        'S' => ThreadState::Sleeping,
        'D' => ThreadState::Uninterruptible,
        'T' => ThreadState::Stopped,
        't' => ThreadState::Traced,
        _ => ThreadState::Other,
    }
}

/// Looks at the processes of those nodes that took connections and say nothing, where they listen on this machine. It
/// takes a quarter of a second if there is one, no time otherwise.
pub fn look_at_silent(nodes: &mut [Node]) {
    let mut all: Vec<(&mut Node, Looks)> = Vec::new();
    if nodes.iter().any(|node| node.silent_ms.is_some()) {
        let listeners = listeners(&sockets::all().unwrap_or_default());
        let silent = nodes.iter_mut().filter(|node| node.silent_ms.is_some());
        all.extend(silent.filter_map(|node| {
            let looks = Looks::at(listening(&listeners, &node.address)?)?;
            Some((node, looks))
        }));
    }
    for turn in 0..if all.is_empty() { 0 } else { LOOKS } {
        if turn > 0 {
            std::thread::sleep(BETWEEN);
        }
        for (_, looks) in &mut all {
            looks.look();
        }
    }
    for (node, looks) in all {
        node.standing = looks.standing();
    }
}

/// The process that listens at an address of this machine. A child that was forked holds the same socket, and is
/// younger.
pub(super) fn listening(all: &[Listener], address: &str) -> Option<u32> {
    let (ips, port, local) = (resolve(address)?, port_of(address), super::local_ips());
    let is_here = |ip: &std::net::IpAddr| ip.is_loopback() || local.contains(ip);
    let at = |l: &&Listener| l.port == port && (l.ip.is_unspecified() || ips.contains(&l.ip));
    let pids = all.iter().filter(|_| ips.iter().all(is_here)).filter(at).map(|l| l.pid);
    pids.filter_map(|pid| Some((unslow_process::stat(pid)?.starttime, pid))).min().map(|(_, pid)| pid)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_stopped_process_is_seen_stopped_until_it_goes_on() {
        let sleeper = Sleeper(Command::new("sleep").arg("600").spawn().unwrap());
        let pid = sleeper.0.id();
        let state = || thread_stat(pid, pid).unwrap().state;
        // It takes a moment until it sleeps.
        while state() != 'S' {
            std::thread::yield_now();
        }
        let mut looks = Looks::at(pid).unwrap();
        assert!(looks.standing().is_none());
        assert!(looks.look());
        let signal =
            |name: &str| assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
        signal("-STOP");
        while state() != 'T' {
            std::thread::yield_now();
        }
        assert!(looks.look() && looks.look());
        let standing = looks.standing().unwrap();
        let states: Vec<_> = standing.seen.iter().map(|d| (d.state, d.looks)).collect();
        assert_eq!(states, [(ThreadState::Stopped, 2), (ThreadState::Sleeping, 1)]);
        assert_eq!((standing.pid, standing.looks, standing.only_state()), (pid, 3, None));
        drop(sleeper);
        assert!(!looks.look(), "it has ended");
    }

    #[test]
    fn the_process_at_an_address_is_the_oldest_that_listens_there() {
        let (own, parent) = (std::process::id(), std::os::unix::process::parent_id());
        let at = |pid, ip: &str, port| Listener { pid, ip: ip.parse().unwrap(), port };
        let all = [at(own, "127.0.0.1", 7000), at(parent, "0.0.0.0", 7000), at(own, "127.0.0.1", 7001)];
        assert_eq!(listening(&all, "127.0.0.1:7000"), Some(parent));
        assert_eq!(listening(&all, "127.0.0.1:7001"), Some(own));
        assert_eq!(listening(&all, "127.0.0.1:7002"), None);
        assert_eq!(listening(&all, "192.0.2.1:7000"), None, "another machine's");
    }
}
