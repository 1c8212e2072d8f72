//! The other processes: meeting them, offering connections, taking offers.
//!
//! ```text
//!   client                          slot        server
//!   connected: Offer with addresses OFFERED ->  accepted, and in an epoll set?
//!   resolve: Proof with the socket  <-  ASKED   yes: asks
//!                                               are_one_connection? takes it
//!   resolve: a Link                 <-  TAKEN
//! ```
//!
//! Either side may end an offer at any time before it is taken (DECLINED).

mod claims;
mod client;
mod hearing;
mod lending;
mod meeting;

use std::collections::{HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use crate::channel::{Rendezvous, Rule};
use crate::endpoint::{Endpoint, Ends};
use crate::local::Local;
use crate::signals::Quiet;

use super::fds::{Place, SetId, Stream};
use super::refusals::Refusals;

pub use claims::{accepted, no_candidate, watched};
#[cfg(feature = "reactor")]
pub use client::{Lent, Want, ask_again, borrow, forget_server, give, has_news, lent};
pub use client::{connected, entry_of, is_open, is_still, resolve, withdraw};
#[cfg(feature = "reactor")]
pub use hearing::said;
pub use hearing::{introduce, ring};
pub use lending::{Arrived, accept_lent, ctl_lent, registered, take_home};
pub use meeting::{
    attend, attend_parked, before_fork, close_rendezvous, leave, listening, no_watch, open_rendezvous, was_met,
};

/// Messages of one peer, and guests, that are dealt with in one go.
const AT_ONCE: usize = 64;

/// How long a new connection waits for its server to take the offer before it keeps using TCP; counted again from when
/// the server has asked for its socket. A server that is busy for longer would not have answered over TCP either; one
/// that cannot take it costs its clients this once.
const PATIENCE: Duration = Duration::from_millis(150);

/// What the environment says.
#[derive(Debug)]
pub struct Settings {
    pub server: bool,
    pub client: bool,
    /// A server that lends what it listens at to a stack.
    pub lends: bool,
    pub rule: Rule,
    /// How long a new connection of ours waits for its server to take it.
    pub patience: Duration,
}

impl Settings {
    /// With whom connections are shared (UNSLOW_BYPASS_ALLOW), and how long a new one waits (UNSLOW_BYPASS_WAIT_MS).
    ///
    /// # Errors
    ///
    /// The variable, and what is wrong with it.
    pub fn from_environment(server: bool, client: bool) -> Result<Settings, String> {
        let rule = Rule::parse(&std::env::var("UNSLOW_BYPASS_ALLOW").unwrap_or_default())
            .map_err(|why| format!("UNSLOW_BYPASS_ALLOW: {why}"))?;
        let patience = match std::env::var("UNSLOW_BYPASS_WAIT_MS") {
            Ok(text) => match text.parse() {
                Ok(ms) => Duration::from_millis(ms),
                Err(_) => {
                    return Err(format!("UNSLOW_BYPASS_WAIT_MS: expected milliseconds such as 150, not {text:?}"));
                }
            },
            Err(_) => PATIENCE,
        };
        let lends = server && std::env::var_os("UNSLOW_BYPASS_OFFLOAD").is_some();
        Ok(Settings { server, client, lends, rule, patience })
    }
}

pub static SETTINGS: OnceLock<Settings> = OnceLock::new();

pub fn settings() -> &'static Settings {
    static NONE: Settings =
        Settings { server: false, client: false, lends: false, rule: Rule::none(), patience: PATIENCE };
    SETTINGS.get().unwrap_or(&NONE)
}

/// Where clients of an endpoint meet us, and the set whose waits attend to them.
struct Meeting {
    endpoint: Endpoint,
    rendezvous: Rendezvous,
    watch: SetId,
}

/// A visitor that has not said hello yet.
struct Guest {
    channel: OwnedFd,
    who: libc::ucred,
    endpoint: Endpoint,
    watch: SetId,
}

/// An offer whose connection we have not accepted yet.
struct Early {
    place: &'static Place,
    slot: u32,
    generation: u32,
    ends: Ends,
    since: u64,
}

#[derive(Default)]
pub struct World {
    meetings: Vec<Meeting>,
    guests: Vec<Guest>,
    /// The channels of the last visitors that were refused.
    refused: Vec<OwnedFd>,
    refusals: Refusals,
    /// Clients of ours, by channel.
    clients: Vec<&'static Place>,
    /// Servers of ours.
    servers: Vec<&'static Place>,
    /// Servers of users who are not allowed.
    strangers: HashSet<PathBuf>,
    /// Connections we accepted that may be offered.
    candidates: HashMap<Ends, &'static Stream>,
    early: Vec<Early>,
    /// What we listen at, in epoll sets, where it may be lent to a stack.
    listened: Vec<lending::Listened>,
}

impl World {
    /// Offers with these addresses that were waiting for the connection.
    fn take_early(&mut self, ends: &Ends) -> Vec<Early> {
        self.early.extract_if(.., |early| early.ends == *ends).collect()
    }
}

static WORLD: AtomicPtr<Mutex<World>> = AtomicPtr::new(std::ptr::null_mut());
static LOCAL: AtomicPtr<Local> = AtomicPtr::new(std::ptr::null_mut());

/// The world, locked; signal handlers wait until it is not.
pub struct Locked {
    world: MutexGuard<'static, World>,
    _quiet: Quiet,
}

impl Deref for Locked {
    type Target = World;
    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

pub fn world() -> Locked {
    let _quiet = Quiet::begin();
    let mut world = WORLD.load(Ordering::Acquire);
    if world.is_null() {
        let new = Box::into_raw(Box::new(Mutex::new(World::default())));
        match WORLD.compare_exchange(std::ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => world = new,
            Err(other) => world = other,
        }
    }
    // SAFETY: leaked, never freed.
    let world = unsafe { &*world }.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    Locked { world, _quiet }
}

/// What is asked of the world where nobody may wait for it: in signal handlers, at the end.
fn if_free<T>(ask: impl FnOnce(&mut World) -> T) -> Option<T> {
    let world = std::ptr::NonNull::new(WORLD.load(Ordering::Acquire))?;
    // SAFETY: leaked, never freed.
    let mut world = unsafe { world.as_ref() }.try_lock().ok()?;
    Some(ask(&mut world))
}

/// In the child of a fork: nothing of the parent's is ours.
pub fn forget() {
    // What a stack knows this process by ends with the parent, however long a child lives.
    let _ = if_free(lending::close_in_child);
    WORLD.store(std::ptr::null_mut(), Ordering::Release);
    LOCAL.store(std::ptr::null_mut(), Ordering::Release);
}

/// Our board; `None` where there can be none.
pub fn local() -> Option<&'static Local> {
    let known = LOCAL.load(Ordering::Acquire);
    if !known.is_null() {
        // SAFETY: leaked, never freed.
        return Some(unsafe { &*known });
    }
    let _guard = world();
    if LOCAL.load(Ordering::Acquire).is_null() {
        match Local::create() {
            Ok(local) => LOCAL.store(std::ptr::from_ref(local).cast_mut(), Ordering::Release),
            Err(e) => {
                super::step_aside(&format!("no shared memory ({e})"));
                return None;
            }
        }
    }
    // SAFETY: as above.
    Some(unsafe { &*LOCAL.load(Ordering::Acquire) })
}

/// Sleeps for so many nanoseconds.
pub fn pause(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: a live timespec.
    unsafe { libc::syscall(libc::SYS_nanosleep, &raw const time, 0) };
}

/// As [`local`], where the world is locked already.
fn local_in(_world: &World) -> Option<&'static Local> {
    // SAFETY: leaked, never freed.
    unsafe { LOCAL.load(Ordering::Acquire).as_ref() }
}
