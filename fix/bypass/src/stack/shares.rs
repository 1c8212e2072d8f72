//! Which thread has which server, and what each server's clients did: what the threads of a stack share.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::ServerSocket;
use crate::pair::TALLIED;
use crate::sockets::world::Want;

/// Counted by the thread that has the server, read by any.
#[derive(Debug, Default)]
pub struct Figures {
    /// Open now.
    pub connections: Count,
    /// Accepted, and carried from then on.
    pub accepted: Count,
    /// Accepted, and handed over to stay with TCP: of this machine, or one too many.
    pub passed: Count,
    /// Bytes from clients, and to them.
    pub bytes_up: Count,
    pub bytes_down: Count,
    /// How often a reader was slower than its writer, so that bytes had to wait here.
    pub waits: Count,
}

impl Figures {
    /// In the order in which `bypass ls` reads them.
    pub fn tally(&self) -> [u64; TALLIED] {
        [&self.connections, &self.accepted, &self.passed, &self.bytes_up, &self.bytes_down, &self.waits].map(Count::get)
    }
}

/// A number that one thread changes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, n: u64) {
        self.0.store(self.get().wrapping_add(n), Ordering::Relaxed);
    }

    pub(super) fn subtract(&self, n: u64) {
        self.0.store(self.get().saturating_sub(n), Ordering::Relaxed);
    }
}

/// A server whose TCP connections this stack has.
#[derive(Clone, Debug)]
pub struct Served {
    pub port: u16,
    /// The kernel's cookie of its network namespace.
    pub netns: u64,
    /// Its process, as its pid namespace numbers it.
    pub pid: i32,
    /// From 0 on.
    pub thread: usize,
    pub figures: Arc<Figures>,
}

/// By what connections came, since the stack began; known only where it polls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// NAPI ids.
    pub queues: BTreeSet<NonZeroU32>,
    /// Connections by interfaces without one.
    pub without: u64,
}

/// No machine has as many.
const QUEUES: usize = 1024;

/// What is in the meeting directories.
#[derive(Default)]
pub struct There {
    pub servers: Vec<ServerSocket>,
    paths: HashSet<PathBuf>,
}

impl There {
    pub fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }
}

/// Every server there is has one thread, the one with the fewest. The kernel's scheduler shares the processors out
/// among threads, so a server that is flooded costs those of other threads no turn.
pub struct Shares {
    /// What another stack has is asked for as well.
    takes_over: AtomicBool,
    /// Servers of this one that another stack has taken over, and that are still there.
    superseded: Mutex<HashSet<PathBuf>>,
    /// Connections of each thread that are to be passed on, and could not be yet.
    waiting: Vec<AtomicUsize>,
    /// Queues that connections came by, where the sets poll.
    polled: Mutex<Polled>,
    /// Connections of each thread, those of servers that have ended included.
    open: Vec<Count>,
    /// What was found in the meeting directories.
    there: Mutex<Arc<There>>,
    servers: Mutex<Servers>,
}

#[derive(Default)]
struct Servers {
    by_path: HashMap<PathBuf, Share>,
    /// How many each thread has that did not refuse: anybody may put sockets into a meeting directory, so they are not
    /// counted again for every one.
    loads: Vec<usize>,
}

struct Share {
    thread: usize,
    /// It never lends anything, so it is no work.
    refuses: bool,
    /// None while it lends nothing.
    served: Option<Served>,
}

impl Shares {
    pub fn new(threads: usize) -> Shares {
        let open = (0..threads).map(|_| Count::default()).collect();
        Shares {
            takes_over: AtomicBool::new(false),
            superseded: Mutex::default(),
            waiting: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            polled: Mutex::default(),
            open,
            there: Mutex::default(),
            servers: Mutex::new(Servers { loads: vec![0; threads], ..Servers::default() }),
        }
    }

    /// From now on, what another stack has is asked for as well, or is not.
    pub fn take_over(&self, takes_over: bool) {
        self.takes_over.store(takes_over, Ordering::Relaxed);
    }

    /// Which listeners servers are asked for.
    pub fn want(&self) -> Want {
        if self.takes_over.load(Ordering::Relaxed) { Want::All } else { Want::Free }
    }

    /// Another stack has a server of this one from now on, or no more.
    pub fn supersede(&self, path: &Path, is_superseded: bool) {
        let mut all = self.superseded.lock().unwrap_or_else(PoisonError::into_inner);
        if is_superseded {
            all.insert(path.to_path_buf());
        } else {
            all.remove(path);
        }
    }

    /// Whether another stack has servers of this one.
    pub fn is_superseded(&self) -> bool {
        !self.superseded.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Sets how many connections of a thread wait to be passed on.
    pub fn waits(&self, thread: usize, connections: usize) {
        self.waiting[thread].store(connections, Ordering::Relaxed);
    }

    fn all(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is in the meeting directories now.
    pub fn see(&self, servers: Vec<ServerSocket>) {
        let paths = servers.iter().map(|server| server.path.clone()).collect();
        let there = There { servers, paths };
        *self.there.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(there);
    }

    /// What was there at the last look.
    pub fn there(&self) -> Arc<There> {
        self.there.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A connection came by this queue of a network card, or by an interface that has none.
    pub fn came_by(&self, napi: Option<NonZeroU32>) {
        let mut polled = self.polled.lock().unwrap_or_else(PoisonError::into_inner);
        match napi {
            None => polled.without += 1,
            Some(id) if polled.queues.len() < QUEUES => drop(polled.queues.insert(id)),
            Some(_) => {}
        }
    }

    /// By what connections came.
    pub fn polled(&self) -> Polled {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Counted by that thread.
    pub fn open(&self, thread: usize) -> &Count {
        &self.open[thread]
    }

    /// Connections of all threads, those included that wait to be passed on.
    pub fn connections(&self) -> u64 {
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.load(Ordering::Relaxed)).sum();
        self.open.iter().map(Count::get).sum::<u64>() + waiting as u64
    }

    /// Whether a server is this thread's from now on, or was before.
    pub fn claims(&self, path: &Path, thread: usize) -> bool {
        let mut all = self.all();
        if let Some(share) = all.by_path.get(path) {
            return share.thread == thread;
        }
        let is_ours = all.loads.iter().all(|other| *other >= all.loads[thread]);
        if is_ours {
            all.loads[thread] += 1;
            all.by_path.insert(path.to_path_buf(), Share { thread, refuses: false, served: None });
        }
        is_ours
    }

    /// It lends nothing, now and later.
    pub fn refuses(&self, path: &Path) {
        let mut all = self.all();
        let Servers { by_path, loads } = &mut *all;
        if let Some(share) = by_path.get_mut(path).filter(|share| !share.refuses) {
            share.refuses = true;
            loads[share.thread] -= 1;
        }
    }

    /// It lends what it listens at, or (`None`) no more.
    pub fn serves(&self, path: &Path, served: Option<Served>) {
        if let Some(share) = self.all().by_path.get_mut(path) {
            share.served = served;
        }
    }

    /// Servers of this thread that are there no more are forgotten.
    pub fn keep(&self, thread: usize, is_there: impl Fn(&Path) -> bool) {
        let mut all = self.all();
        let Servers { by_path, loads } = &mut *all;
        by_path.retain(|path, share| {
            let stays = share.thread != thread || share.served.is_some() || is_there(path);
            loads[share.thread] -= usize::from(!stays && !share.refuses);
            stays
        });
    }

    /// Those that lend.
    pub fn served(&self) -> Vec<Served> {
        self.all().by_path.values().filter_map(|share| share.served.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_spread_over_threads() {
        let shares = Shares::new(2);
        let claims = |path: &str, thread| shares.claims(Path::new(path), thread);
        assert!(claims("a", 1) && !claims("b", 1), "one each");
        assert!(claims("b", 0) && !claims("a", 0) && claims("a", 1), "each keeps its own");
        assert!(claims("c", 0) && claims("d", 1), "then the next");
        shares.keep(0, |path| path != Path::new("b"));
        assert!(!claims("e", 1) && claims("e", 0), "what has ended leaves room");
        shares.refuses(Path::new("d"));
        assert!(!claims("f", 0) && claims("f", 1), "and so does what lends nothing");
    }

    #[test]
    fn a_server_that_lends_is_kept_whatever_is_there() {
        let shares = Shares::new(1);
        let path = Path::new("a");
        assert!(shares.claims(path, 0));
        let served = Served { port: 1, netns: 4, pid: 2, thread: 0, figures: Arc::default() };
        shares.serves(path, Some(served));
        shares.keep(0, |_| false);
        assert_eq!(shares.served().len(), 1);
        shares.serves(path, None);
        shares.keep(0, |_| false);
        assert!(shares.served().is_empty() && shares.all().by_path.is_empty());
    }
}
