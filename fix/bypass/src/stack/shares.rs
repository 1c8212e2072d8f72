//! Which thread has which server, and which help it: what the threads of a stack share.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::figures::{Count, Figures};
use super::post::Post;
use super::teams::Spread;
use crate::channel::ServerSocket;
use crate::sockets::epoll::Epoll;
use crate::sockets::world::Want;

/// A server whose TCP connections this stack has.
#[derive(Clone, Debug)]
pub struct Served {
    pub port: u16,
    /// The kernel's cookie of its network namespace.
    pub netns: u64,
    /// Its process, as its pid namespace numbers it.
    pub pid: i32,
    /// From 0 on; others may help it.
    pub thread: usize,
    pub figures: Arc<Figures>,
}

/// What the connections of a server have in common, whichever threads they are on.
#[derive(Debug)]
pub struct Common {
    pub path: PathBuf,
    /// The thread that accepts for it.
    pub thread: usize,
    pub figures: Arc<Figures>,
    /// Connections that the server has not taken yet. They stay on its own thread.
    pub untaken: AtomicUsize,
    /// It has ended, or is not served any more: what it has written is sent yet.
    pub has_ended: AtomicBool,
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

/// Every server there is has one thread, the one with the fewest, and threads that have none may help it. The kernel's
/// scheduler shares the processors out among threads, so a server that is flooded costs those of other threads no turn.
pub struct Shares {
    /// What another stack has is asked for as well.
    takes_over: AtomicBool,
    /// Servers of this one that another stack has taken over, and that are still there.
    superseded: Mutex<HashSet<PathBuf>>,
    /// Connections of each thread that are to be passed on, and could not be yet.
    waiting: Vec<AtomicUsize>,
    /// Queues that connections came by, where the sets poll.
    polled: Mutex<Polled>,
    /// Connections, those of servers that have ended included.
    open: Count,
    pub spread: Spread,
    /// By thread.
    pub posts: Vec<Post>,
    pub sets: Vec<OnceLock<&'static Epoll>>,
    /// How busy each thread was at its last look, in thousandths of its time.
    busy: Vec<AtomicU32>,
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
    /// Which server each thread helps; only threads without a server help.
    helps: Vec<Option<PathBuf>>,
}

struct Share {
    thread: usize,
    /// It never lends anything, so it is no work.
    refuses: bool,
    /// None while it lends nothing.
    served: Option<Served>,
    /// As it was when it lent last: its connections may still be here.
    former: Option<Served>,
}

impl Shares {
    /// # Errors
    ///
    /// No descriptors.
    pub fn new(threads: usize, spread: Spread) -> io::Result<Shares> {
        Ok(Shares {
            takes_over: AtomicBool::new(false),
            superseded: Mutex::default(),
            waiting: (0..threads).map(|_| AtomicUsize::new(0)).collect(),
            polled: Mutex::default(),
            open: Count::default(),
            spread,
            posts: (0..threads).map(|_| Post::new()).collect::<io::Result<_>>()?,
            sets: (0..threads).map(|_| OnceLock::new()).collect(),
            busy: (0..threads).map(|_| AtomicU32::new(0)).collect(),
            there: Mutex::default(),
            servers: Mutex::new(Servers { loads: vec![0; threads], helps: vec![None; threads], ..Servers::default() }),
        })
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

    /// Those that are carried.
    pub fn open(&self) -> &Count {
        &self.open
    }

    /// Connections of all threads, those included that wait to be passed on.
    pub fn connections(&self) -> u64 {
        let waiting: usize = self.waiting.iter().map(|waiting| waiting.load(Ordering::Relaxed)).sum();
        self.open.get() + waiting as u64
    }

    /// Whether a server is this thread's from now on, or was before.
    pub fn claims(&self, path: &Path, thread: usize) -> bool {
        let mut all = self.all();
        if let Some(share) = all.by_path.get(path) {
            return share.thread == thread;
        }
        // A thread that helps another server is the second choice.
        let burden = |thread: usize| (all.loads[thread], all.helps[thread].is_some());
        let is_ours = (0..all.loads.len()).all(|other| burden(other) >= burden(thread));
        if is_ours {
            all.loads[thread] += 1;
            all.helps[thread] = None;
            let share = Share { thread, refuses: false, served: None, former: None };
            all.by_path.insert(path.to_path_buf(), share);
        }
        is_ours
    }

    /// How busy a thread is, in thousandths of its time.
    pub fn set_busy(&self, thread: usize, busy: u32) {
        self.busy[thread].store(busy, Ordering::Relaxed);
    }

    /// As it said last.
    pub fn busy(&self, thread: usize) -> u32 {
        self.busy[thread].load(Ordering::Relaxed)
    }

    /// The threads that have connections of a server, or may have: its own first.
    pub fn team(&self, server: &Common) -> Vec<usize> {
        let all = self.all();
        let helpers = all.helps.iter().enumerate().filter(|(_, helps)| helps.as_ref() == Some(&server.path));
        [server.thread].into_iter().chain(helpers.map(|(thread, _)| thread)).collect()
    }

    /// A thread that has nothing to do helps this server from now on; `None` where there is none.
    pub fn recruit(&self, server: &Common) -> Option<usize> {
        let mut all = self.all();
        let is_free = |thread: &usize| all.loads[*thread] == 0 && all.helps[*thread].is_none();
        let thread = (0..all.loads.len()).find(is_free)?;
        all.helps[thread] = Some(server.path.clone());
        Some(thread)
    }

    /// Whether a thread has connections of this server by right: it is its own, or it helps and has none.
    pub fn may_have(&self, thread: usize, server: &Common) -> bool {
        let all = self.all();
        server.thread == thread || all.helps[thread].as_ref() == Some(&server.path)
    }

    /// A thread helps nobody any more.
    pub fn release(&self, thread: usize) {
        self.all().helps[thread] = None;
    }

    /// It lends nothing, now and later.
    pub fn refuses(&self, path: &Path) {
        let mut all = self.all();
        let Servers { by_path, loads, .. } = &mut *all;
        if let Some(share) = by_path.get_mut(path).filter(|share| !share.refuses) {
            share.refuses = true;
            loads[share.thread] -= 1;
        }
    }

    /// It lends what it listens at, or (`None`) no more.
    pub fn serves(&self, path: &Path, served: Option<Served>) {
        if let Some(share) = self.all().by_path.get_mut(path) {
            let before = std::mem::replace(&mut share.served, served);
            share.former = before.or(share.former.take());
        }
    }

    /// Servers of this thread that are there no more are forgotten.
    pub fn keep(&self, thread: usize, is_there: impl Fn(&Path) -> bool) {
        let mut all = self.all();
        let Servers { by_path, loads, .. } = &mut *all;
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

    /// Those that lend, and those that have lent and have connections here.
    pub fn counted(&self) -> Vec<Served> {
        let former = |share: &Share| share.former.clone().filter(|former| former.figures.connections.get() > 0);
        self.all().by_path.values().filter_map(|share| share.served.clone().or_else(|| former(share))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn common(path: &str, thread: usize) -> Common {
        let figures = Arc::new(Figures::new(1));
        Common { path: path.into(), thread, figures, untaken: AtomicUsize::new(0), has_ended: AtomicBool::new(false) }
    }

    #[test]
    fn servers_are_spread_over_threads() {
        let shares = Shares::new(2, Spread::Never).unwrap();
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
    fn threads_without_a_server_help_one_that_has() {
        let shares = Shares::new(4, Spread::Busy).unwrap();
        assert!(shares.claims(Path::new("a"), 0) && shares.claims(Path::new("b"), 1));
        let (a, b) = (common("a", 0), common("b", 1));
        assert_eq!((shares.recruit(&a), shares.team(&a), shares.team(&b)), (Some(2), vec![0, 2], vec![1]));
        assert!(shares.may_have(2, &a) && !shares.may_have(2, &b) && !shares.may_have(1, &a));
        assert!(!shares.claims(Path::new("c"), 2) && shares.claims(Path::new("c"), 3), "a free one first");
        assert_eq!(shares.recruit(&b), None, "each helps one server, and those with servers help none");
        assert!(shares.claims(Path::new("d"), 2) && !shares.may_have(2, &a), "its own comes first");
        assert_eq!(shares.team(&a), [0]);
        shares.keep(3, |_| false);
        assert_eq!((shares.recruit(&a), shares.team(&a)), (Some(3), vec![0, 3]));
        shares.release(3);
        assert_eq!(shares.team(&a), [0]);
    }

    #[test]
    fn a_server_that_lends_is_kept_whatever_is_there() {
        let shares = Shares::new(1, Spread::Never).unwrap();
        let path = Path::new("a");
        assert!(shares.claims(path, 0));
        let figures = Arc::new(Figures::new(1));
        figures.connections.add(1);
        let served = Served { port: 1, netns: 4, pid: 2, thread: 0, figures: figures.clone() };
        shares.serves(path, Some(served));
        shares.keep(0, |_| false);
        assert_eq!(shares.served().len(), 1);
        shares.serves(path, None);
        assert!(shares.served().is_empty() && shares.counted().len() == 1, "its connection is still here");
        figures.connections.subtract(1);
        assert!(shares.counted().is_empty());
        shares.keep(0, |_| false);
        assert!(shares.all().by_path.is_empty());
    }
}
