//! Whether this machine has room for all the connections: it is said before the first of them is opened.

use std::fs;
use std::ops::RangeInclusive;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::error::GeneratorError;

/// Files beside connections: a report that is written, a page.
const BESIDE: usize = 4;
/// Of each thread: an event loop, its clock and its wake-up.
const PER_THREAD: usize = 3;

/// What a run needs.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    pub servers: usize,
    /// To each of them.
    pub connections: usize,
    /// In all, spread over the servers.
    pub subscribers: usize,
    pub threads: usize,
    /// Whether they are TCP's, each with a port of this machine.
    pub ports: bool,
}

/// Raises the limit of open files to what this user may have, and looks whether that is enough.
pub fn make_room(needs: Needs) -> Result<(), GeneratorError> {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    }
    let files = getrlimit(Resource::Nofile).current;
    let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let ports = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok();
    needs.fit(files, open, ports.as_deref().and_then(ports_of))
}

/// Two numbers with a tab between them.
fn ports_of(text: &str) -> Option<RangeInclusive<usize>> {
    let (from, to) = text.trim().split_once(char::is_whitespace)?;
    Some(from.parse().ok()?..=to.trim().parse().ok()?)
}

impl Needs {
    fn fit(self, files: Option<u64>, open: usize, ports: Option<RangeInclusive<usize>>) -> Result<(), GeneratorError> {
        let Needs { servers, connections, subscribers, threads, .. } = self;
        let beside = threads * PER_THREAD + BESIDE + open;
        let needed = servers.saturating_mul(connections).saturating_add(subscribers).saturating_add(beside) as u64;
        if let Some(limit) = files.filter(|limit| *limit < needed) {
            return Err(GeneratorError::TooFewFiles { needed, limit, servers, connections });
        }
        let ports = ports.filter(|_| self.ports).map(|ports| ports.end().saturating_sub(*ports.start()) + 1);
        let connections = connections.saturating_add(subscribers / servers.max(1));
        match ports {
            Some(ports) if connections > ports => Err(GeneratorError::TooFewPorts { connections, ports }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs = Needs { servers: 3, connections: 1000, subscribers: 30, threads: 2, ports: true };

    #[test]
    fn what_does_not_fit_is_said_with_its_numbers() {
        let says = |needs: Needs, files: u64, ports| needs.fit(Some(files), 10, ports).map_err(|e| e.to_string());
        assert_eq!(says(NEEDS, 3050, Some(32768..=60999)), Ok(()));
        let files = says(NEEDS, 3049, None).unwrap_err();
        assert!(files.contains("3 servers") && files.contains("3050") && files.contains("3049"), "{files}");
        let many = Needs { connections: 28_223, ..NEEDS };
        let ports = says(many, 1 << 20, Some(32768..=60999)).unwrap_err();
        assert!(ports.contains("28233") && ports.contains("28232"), "{ports}");
        assert_eq!(
            says(Needs { ports: false, ..many }, 1 << 20, Some(32768..=60999)),
            Ok(()),
            "a unix socket has none"
        );
        assert_eq!(says(many, 1 << 20, None), Ok(()), "no /proc");
        assert!(NEEDS.fit(None, 10, None).is_ok(), "no limit");
    }

    #[test]
    fn the_range_is_read_as_the_kernel_writes_it() {
        assert_eq!(ports_of("32768\t60999\n"), Some(32768..=60999));
        assert_eq!(ports_of("32768"), None);
    }
}
