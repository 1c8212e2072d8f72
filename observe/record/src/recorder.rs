//! The threads of a recorder, and their beginning and end.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use unslow_client::{Deployment, Error, ErrorKind, Options, Target, discover};
use unslow_probe::host::{Counted, Counts, Others};
use unslow_probe::{Salt, SaltError, host};
use unslow_reactor::{Reactor, Waker};
use unslow_series::Writer;

use crate::eye::{Eye, INPUT_MAX, Order, Pace, stamp};
use crate::inquirers::{Inquirers, ROUNDS_PER_WHOLE, Why};
use crate::jumps::Jump;
use crate::keeper::{Keeper, Take, Told};
use crate::live::Watching;
use crate::notes::{Note, Owing, Saw, Waiting};
use crate::scheme::{LookedFor, STALLS_FROM};
use crate::standing::{self, Processes};

/// Threads for what takes longer.
const INQUIRERS: usize = 4;
/// So many servers are looked at less often, where nothing is recorded of them.
const MANY: usize = 100;
/// Notes that may wait for the disk: some seconds of a thousand nodes.
const WAITING: usize = 16_384;
/// From one reading of the machine's counters to the next.
const COUNT: Duration = Duration::from_secs(1);
/// Servers whose counters are read in that time.
const COUNTED_A_SECOND: usize = 50;
/// Which servers run on this machine is known after this time.
const FIRST_LOOK: Duration = Duration::from_secs(5);
/// A look at the machine that is in progress ends early where something begins at a server of it, and a short one
/// follows; not again within this.
const LOOK_CALM: Duration = Duration::from_secs(30);
/// The store's own clock: it syncs and ends chunks when it is told the time.
const STORE_TICK: Duration = Duration::from_secs(1);

/// What to record.
pub struct Settings {
    /// One deployment each.
    pub targets: Vec<Target>,
    /// How to connect.
    pub options: Options,
    /// From one reading of the slow log to the next; clients, settings and the machine are looked at every sixth time.
    pub every: Duration,
    pub keys: Keys,
    /// Look into this machine when a server runs on it.
    pub host: bool,
    /// An answer that takes at least as long is kept with its time and looked at closely; [`Settings::STALL`] by
    /// default, two seconds at most: after three a connection is given up.
    pub stall: Duration,
}

impl Settings {
    pub const STALL: Duration = STALLS_FROM;
}

/// What is kept of key names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keys {
    /// All of them, as they are.
    Shown,
    /// Hashes that mean something until it ends.
    Hashed,
    /// Hashes under the salt in this file, which is made if there is none: the same key has the same hash in all
    /// recordings whose recorders share it.
    HashedBy(PathBuf),
}

/// Why a recorder did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The directory cannot be written, or another process writes it.
    #[error(transparent)]
    Store(#[from] unslow_series::Error),
    /// The password is wrong, a certificate, a name: waiting will not help.
    #[error(transparent)]
    Target(#[from] Error),
    /// The file that key names are hashed by.
    #[error(transparent)]
    Salt(#[from] SaltError),
    /// No event loop, or no thread.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Why it ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    #[error("the recording ended: {0}")]
    Store(unslow_series::Error),
    /// An event loop failed, or a defect in unslow.
    #[error("the recording ended: one of its threads ended unexpectedly")]
    Thread,
}

/// What it has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rows written: one a second for each node that answers.
    pub rows: u64,
    /// Notes that the disk was too slow for.
    pub lost: u64,
    /// Notes that are larger than the store takes: a server may say anything.
    pub too_large: u64,
}

#[derive(Default)]
struct Shared {
    ended: AtomicBool,
    rows: AtomicU64,
    too_large: AtomicU64,
    waiting: Arc<Waiting>,
    /// Whether something has begun at a server of this machine.
    has_begun: AtomicBool,
    failure: Mutex<Option<unslow_series::Error>>,
}

/// Records until it is dropped or [`Recorder::end`] is called.
pub struct Recorder {
    shared: Arc<Shared>,
    inquirers: Arc<Inquirers>,
    notes: SyncSender<Note>,
    eyes: Vec<(Sender<Order>, Waker)>,
    threads: Vec<JoinHandle<()>>,
    keeper: Option<JoinHandle<()>>,
    /// Deployments that do not answer yet, and why.
    pub silent: Vec<(String, Error)>,
    /// Servers found at the start.
    pub servers: usize,
}

impl Recorder {
    /// Starts recording into a directory, which is created if need be; `store` has its limits. Servers that do not
    /// answer yet are waited for; what no waiting helps is an error.
    pub fn start(settings: Settings, dir: &Path, store: unslow_series::Settings) -> Result<Recorder, StartError> {
        Recorder::begin(settings, |_| Pace::RECORDED, || Keeper::new(Writer::open(dir, store)?, stamp()))
    }

    /// Starts looking at one deployment, without a recording. Of more than a hundred servers PING is asked for twice
    /// a second and INFO every 2.5 s: it is for people to read.
    pub fn watch(settings: Settings, watching: Watching) -> Result<Recorder, StartError> {
        let pace = |servers| if servers > MANY { Pace::OF_MANY } else { Pace::RECORDED };
        Recorder::begin(settings, pace, || Ok(watching))
    }

    fn begin<T: Take>(
        settings: Settings,
        pace: impl FnOnce(usize) -> Pace,
        taker: impl FnOnce() -> Result<T, unslow_series::Error>,
    ) -> Result<Recorder, StartError> {
        let Settings { targets, options, every, keys, host, stall } = settings;
        // A file that is no salt is told before anyone is asked.
        if let Keys::HashedBy(file) = &keys
            && file.exists()
        {
            Salt::of_file(file)?;
        }
        let mut found: Vec<(Target, Result<Deployment, Error>)> = Vec::new();
        for target in targets {
            if found.iter().any(|(known, _)| known.url() == target.url()) {
                continue; // typed twice
            }
            let deployment = discover(&target, &options);
            found.push((target, deployment));
        }
        // One whose password has changed must not keep the others from being recorded.
        let hopeless = |(_, found): &(Target, Result<Deployment, Error>)| found.as_ref().is_err_and(|e| !may_pass(e));
        if found.iter().all(hopeless)
            && let Some((_, Err(e))) = found.first()
        {
            return Err(e.clone().into());
        }
        let keeper = taker()?;
        let salt = match &keys {
            Keys::Shown => Salt::new(true),
            Keys::Hashed => Salt::new(false),
            Keys::HashedBy(file) => Salt::of_file(file)?,
        };
        let tls = match found.iter().any(|(target, _)| target.tls) {
            true => Some(options.tls.client_config()?),
            false => None,
        };
        let servers = found.iter().map(|(_, found)| found.as_ref().map_or(0, |d| d.members.len())).sum();
        let pace = pace(servers);
        let (notes, taken) = sync_channel(WAITING);
        let (owing, words) = sync_channel(standing::WORDS);
        let owing = host.then_some(owing);
        let shared = Arc::new(Shared::default());
        let mut threads = Vec::new();
        let eyes = std::thread::available_parallelism().map_or(1, usize::from);
        let pace = pace.among(eyes).stalls_from(stall);
        let eyes = (0..eyes)
            .map(|_| {
                let (orders, taken) = channel();
                let (waiting, owing) = (shared.waiting.clone(), owing.clone());
                let eye = Eye::new(pace, options.clone(), tls.clone(), taken, notes.clone(), waiting, owing);
                let (waker, thread) = start_eye(eye)?;
                threads.push(thread);
                Ok((orders, waker))
            })
            .collect::<std::io::Result<Vec<_>>>()?;
        let inquirers = Arc::new(Inquirers::new(every, options, salt, notes.clone(), eyes.clone(), host));
        // From here on whatever fails ends all of it.
        let mut recorder =
            Recorder { shared, inquirers, notes, eyes, threads, keeper: None, silent: Vec::new(), servers };
        // From here on the event loops alone hold it: when they end, those who look at processes end.
        drop(owing);
        recorder.start_threads(keeper, taken, host.then_some((every * ROUNDS_PER_WHOLE, words)))?;
        for (target, deployment) in found {
            let url = target.url();
            recorder.inquirers.watch(target, deployment.as_ref().ok());
            recorder.silent.extend(deployment.err().map(|e| (url, e)));
        }
        Ok(recorder)
    }

    fn start_threads<T: Take>(
        &mut self,
        keeper: T,
        notes: Receiver<Note>,
        host: Option<(Duration, Receiver<Owing>)>,
    ) -> std::io::Result<()> {
        let (shared, inquirers) = (self.shared.clone(), self.inquirers.clone());
        let processes = Processes::default();
        let known = processes.clone();
        let keep = move || keep(keeper, &notes, &shared, &inquirers, &known);
        self.keeper = Some(Builder::new().name("record-keeper".into()).spawn(keep)?);
        for _ in 0..INQUIRERS {
            let inquirers = self.inquirers.clone();
            self.threads.push(Builder::new().name("record-ask".into()).spawn(move || inquirers.run())?);
        }
        if let Some((window, words)) = host {
            let (shared, inquirers, notes) = (self.shared.clone(), self.inquirers.clone(), self.notes.clone());
            let known = processes.clone();
            let look = move || watch_machine(&shared, &inquirers, window, &known, &|note| drop(notes.send(note)));
            self.threads.push(Builder::new().name("record-host".into()).spawn(look)?);
            let (notes, waiting) = (self.notes.clone(), self.shared.waiting.clone());
            let stand = move || standing::watch(&words, &processes, &notes, &waiting);
            self.threads.push(Builder::new().name("record-stand".into()).spawn(stand)?);
        }
        Ok(())
    }

    pub fn progress(&self) -> Progress {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Shared { rows, too_large, waiting, .. } = &*self.shared;
        Progress { rows: count(rows), lost: waiting.lost(), too_large: count(too_large) }
    }

    /// Looks closely at a server, unless it was looked at a moment ago: INFO ten times a second for 30 s, and all other
    /// questions at once. `address` as the deployment lists it; others are passed over.
    pub fn look_closer(&self, url: &str, address: &str) {
        if let Some(number) = self.inquirers.number(url, address) {
            self.inquirers.look_closer(number, LookedFor::Finding);
        }
    }

    /// Whether it, or a part of it, has ended by itself.
    pub fn has_failed(&self) -> bool {
        self.keeper.iter().chain(&self.threads).any(JoinHandle::is_finished)
    }

    /// Ends it: what was seen is on disk then.
    pub fn end(mut self) -> Result<Progress, Ended> {
        let is_cut = self.has_failed();
        self.stop();
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        match failure {
            Some(e) => Err(Ended::Store(e)),
            None if is_cut => Err(Ended::Thread),
            None => Ok(self.progress()),
        }
    }

    fn stop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        self.inquirers.end();
        for (orders, waker) in &self.eyes {
            let _ = orders.send(Order::Stop);
            waker.wake();
        }
        self.threads.iter().for_each(|thread| thread.thread().unpark());
        let _ = self.notes.send(Note::Wake);
        for thread in self.threads.drain(..).chain(self.keeper.take()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs an event loop on a thread of its own: it stays on the one that made it.
pub fn start_eye(mut eye: Eye) -> std::io::Result<(Waker, JoinHandle<()>)> {
    let (tell, told) = channel();
    let run = move || match Reactor::new() {
        Ok(mut reactor) => {
            reactor.io().limit_input(INPUT_MAX);
            let _ = tell.send(Ok(reactor.io().waker()));
            // It fails when epoll does; then nothing is recorded any more, and the reader says so.
            let _ = reactor.run(&mut eye);
        }
        Err(e) => drop(tell.send(Err(e))),
    };
    let thread = Builder::new().name("record-eye".into()).spawn(run)?;
    let waker = told.recv().map_err(|_| std::io::Error::other("the event loop did not start"))??;
    Ok((waker, thread))
}

/// Whether a deployment that was not found may be found later.
fn may_pass(e: &Error) -> bool {
    use ErrorKind::*;
    matches!(e.kind, Unreachable | Timeout | Closed | MaxClients | Protected | Loading) || e.code() == Some("BUSY")
}

/// Has everybody look where there is something to see.
fn heed(told: Told, shared: &Shared, inquirers: &Inquirers, processes: &Processes) {
    let number = match told {
        Told::Nothing => return,
        Told::Changed(number) | Told::AskSoon(number) | Told::Jumped(number, _) => number,
    };
    match told {
        Told::Nothing => {}
        Told::Changed(_) => {
            inquirers.discover_soon(number);
            inquirers.look_closer(number, LookedFor::Topology);
        }
        Told::AskSoon(_) => inquirers.ask_soon(number, Why::Stood, false),
        Told::Jumped(_, Jump::Load) => inquirers.ask_soon(number, Why::Jumped, true),
        Told::Jumped(_, Jump::Errors) => inquirers.look_closer(number, LookedFor::Errors),
    }
    if processes.has(number) {
        shared.has_begun.store(true, Ordering::Relaxed);
    }
}

/// Writes notes until it is told to end, and then what was told before.
fn keep<T: Take>(mut keeper: T, notes: &Receiver<Note>, shared: &Shared, inquirers: &Inquirers, processes: &Processes) {
    use unslow_series::Error;
    let mut kept = || -> Result<(), Error> {
        let mut next_tick = Instant::now() + STORE_TICK;
        loop {
            let ended = shared.ended.load(Ordering::Acquire);
            match notes.recv_timeout(next_tick.saturating_duration_since(Instant::now())) {
                Ok(Note::Wake) => {}
                Ok(note) => {
                    shared.waiting.taken(&note);
                    match keeper.take(&note) {
                        Ok(told) => heed(told, shared, inquirers, processes),
                        // What one server says must not end the recording of all.
                        Err(Error::TooLong { .. } | Error::TooManyFields { .. }) => {
                            shared.too_large.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(e) => return Err(e),
                    }
                    let is_row = matches!(note, Note::Saw(_, _, Saw::Second { .. }));
                    shared.rows.fetch_add(u64::from(is_row), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) if !ended => {}
                Err(_) => return Ok(()),
            }
            if Instant::now() >= next_tick {
                keeper.tick(stamp(), shared.waiting.lost())?;
                next_tick = Instant::now() + STORE_TICK;
            }
        }
    };
    let ended = kept().and_then(|()| keeper.close());
    if let Err(e) = ended {
        *shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
    }
}

/// One window after the other, as long as a server of ours runs on this machine; between them its counters. The first
/// window is short, because the servers' processes are unknown until it ends; so is one that begins with an incident.
fn watch_machine(shared: &Shared, inquirers: &Inquirers, window: Duration, processes: &Processes, tell: &dyn Fn(Note)) {
    let (mut servers, mut others) = (Vec::new(), Others::default());
    let (mut lasts, mut hurried) = (window.min(FIRST_LOOK), None::<Instant>);
    while !shared.ended.load(Ordering::Acquire) {
        let watch = host::Watch::start();
        let begun = Instant::now();
        // Of many servers less often: a look at each costs some tens of microseconds.
        let pause = COUNT * u32::try_from(1 + servers.len() / COUNTED_A_SECOND).unwrap_or(u32::MAX);
        let (mut next, mut is_cut) = (begun, false);
        while begun.elapsed() < lasts && !is_cut {
            if !servers.is_empty() && Instant::now() >= next {
                let mut counts = Counts::take(&servers);
                others.add_to(&mut counts);
                tell(Note::Counts(stamp(), counts));
                // After a time in which it was stopped there is one reading, not one for each second.
                next = (next + pause).max(Instant::now());
            }
            let wait = if servers.is_empty() { lasts } else { next.saturating_duration_since(Instant::now()) };
            // The end unparks it.
            std::thread::park_timeout(wait.min(lasts.saturating_sub(begun.elapsed())));
            if shared.ended.load(Ordering::Acquire) {
                return;
            }
            let has_begun = shared.has_begun.swap(false, Ordering::Relaxed) || servers.iter().any(Counted::has_moved);
            is_cut = has_begun && hurried.is_none_or(|at| at.elapsed() > LOOK_CALM);
        }
        lasts = if is_cut { window.min(FIRST_LOOK) } else { window };
        hurried = if is_cut { Some(Instant::now()) } else { hurried };
        let (numbers, mut nodes): (Vec<_>, Vec<_>) = inquirers.nodes().into_iter().unzip();
        let host = watch.finish(&mut nodes);
        servers = Counted::of(&host);
        others.found(&host);
        processes.found(numbers.iter().copied().zip(nodes.iter().map(|node| node.address.clone())), &host);
        if host.processes.is_empty() {
            continue;
        }
        let at = stamp();
        let all = numbers.into_iter().zip(nodes).map(|(number, node)| (number, node.sockets));
        for (number, sockets) in all.filter(|(_, s)| s.refused().is_some() || s.value().is_some()) {
            tell(Note::Sockets(number, at, Box::new(sockets)));
        }
        tell(Note::Host(at, Box::new(host)));
    }
}
