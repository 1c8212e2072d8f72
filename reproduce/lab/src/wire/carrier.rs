//! The loop that carries every packet of a lab: takes frames from the ring, keeps each for as long as its path says,
//! and sends what is due in batches.
//!
//! One thread, no allocation per packet: frames lie in slots that are used again, and a heap of (due, order, slot) says
//! which is next. The loop sleeps until the next is due; how late the kernel wakes it is measured all the time, and it
//! asks to be woken that much earlier.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, StandardNormal};

use super::ring::{Batch, LONGEST, Ring};
use super::rules::Table;

/// How long a packet may queue for a rate before the newest is dropped.
const QUEUE_NS: u64 = 200_000_000;
/// Frames on the way at most, 100 MB; more are dropped and counted.
const SLOTS: usize = 65_536;
const CHUNK: usize = 256;

/// What the carrier did, readable at any time.
#[derive(Default)]
pub struct Counters {
    pub carried: AtomicU64,
    pub bytes: AtomicU64,
    /// By a path's loss.
    pub lost: AtomicU64,
    /// By a cut.
    pub cut: AtomicU64,
    /// By a full queue before a rate, or too many frames on the way.
    pub overflowed: AtomicU64,
    /// Sent to nobody in the lab, or too long.
    pub strays: AtomicU64,
    /// By the kernel: no room in the ring, or refused on the way out.
    pub refused: AtomicU64,
    /// Thread id, for its CPU time.
    pub thread: AtomicU32,
}

/// What the carrier and its owner share.
pub struct Shared {
    pub counters: Counters,
    pub table: Mutex<Arc<Table>>,
    pub generation: AtomicU64,
    pub wake: OwnedFd,
    pub stop: std::sync::atomic::AtomicBool,
}

impl Shared {
    pub fn new(table: Table) -> io::Result<Shared> {
        // SAFETY: a plain system call; the new descriptor is owned at once.
        let wake = unsafe {
            let fd = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Shared {
            counters: Counters::default(),
            table: Mutex::new(Arc::new(table)),
            generation: AtomicU64::new(0),
            wake,
            stop: Default::default(),
        })
    }

    /// Has the loop look at `table`, `generation` and `stop`.
    pub fn nudge(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of a live integer.
        unsafe {
            libc::write(self.wake.as_raw_fd(), std::ptr::from_ref(&one).cast(), 8);
        }
    }
}

#[derive(Clone, Copy)]
struct Slot {
    length: u16,
    to: u16,
    bytes: [u8; LONGEST],
}

/// The state of the loop.
pub struct Carrier {
    ring: Ring,
    batch: Batch,
    shared: Arc<Shared>,
    table: Arc<Table>,
    generation: u64,
    /// Host by the last twelve bits of its address; `NOBODY` where there is none.
    by_address: Box<[u16; 4096]>,
    /// First twenty bits of the lab's addresses.
    network: u32,
    /// Interface number of host 0; the others follow.
    first_interface: u32,
    /// When the last packet of each path is due: later ones stay behind it.
    last_due: Vec<u64>,
    /// When each limiter is free again.
    free_at: Vec<f64>,
    heap: BinaryHeap<Reverse<(u64, u32, u32)>>,
    slots: Vec<Box<[Slot; CHUNK]>>,
    free: Vec<u32>,
    order: u32,
    random: SmallRng,
    /// How late the kernel wakes us, on average.
    lateness_ns: f64,
    /// When the kernel was last asked what it had no room for.
    asked_at: u64,
    /// Frames came since the ring was asked what it could not hold.
    unasked: bool,
}

pub const NOBODY: u16 = u16::MAX;

fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid pointer to a timespec.
    unsafe {
        libc::clock_gettime(id, &mut t);
    }
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Carrier {
    pub fn new(
        ring: Ring,
        batch: Batch,
        shared: Arc<Shared>,
        addresses: &[std::net::Ipv4Addr],
        first_interface: u32,
        seed: u64,
    ) -> Carrier {
        let mut by_address = Box::new([NOBODY; 4096]);
        for (i, address) in addresses.iter().enumerate() {
            by_address[(address.to_bits() & 0xfff) as usize] = i as u16;
        }
        let table = shared.table.lock().unwrap_or_else(|e| e.into_inner()).clone();
        Carrier {
            ring,
            batch,
            generation: 0,
            by_address,
            network: addresses.first().map_or(0, |a| a.to_bits() >> 12),
            first_interface,
            last_due: vec![0; table.paths.len()],
            free_at: vec![0.0; table.ns_per_byte.len()],
            heap: BinaryHeap::with_capacity(4096),
            slots: Vec::new(),
            free: Vec::new(),
            order: 0,
            random: SmallRng::seed_from_u64(seed),
            lateness_ns: 20_000.0,
            asked_at: 0,
            unasked: false,
            shared,
            table,
        }
    }

    /// Carries until told to stop.
    pub fn run(mut self) {
        // SAFETY: both calls take numbers only; where the priority may not be raised, it stays.
        unsafe {
            libc::prctl(libc::PR_SET_TIMERSLACK, 1);
            libc::setpriority(libc::PRIO_PROCESS, 0, -15);
            self.shared.counters.thread.store(libc::gettid() as u32, Ordering::Relaxed);
        }
        while !self.shared.stop.load(Ordering::Relaxed) {
            let generation = self.shared.generation.load(Ordering::Acquire);
            if generation != self.generation {
                self.reload(generation);
            }
            let taken = self.take(512);
            self.send_due();
            self.unasked |= taken > 0;
            let now = clock(libc::CLOCK_MONOTONIC);
            if self.unasked && now - self.asked_at > ASK_EVERY_NS {
                (self.asked_at, self.unasked) = (now, false);
                self.shared.counters.refused.fetch_add(self.ring.overflowed(), Ordering::Relaxed);
            }
            if taken < 512 {
                self.wait();
            }
        }
    }

    fn reload(&mut self, generation: u64) {
        self.generation = generation;
        let before =
            std::mem::replace(&mut self.table, self.shared.table.lock().unwrap_or_else(|e| e.into_inner()).clone());
        // A limiter that stays keeps its queue.
        let free_at = |id: &u64| before.limiter_ids.iter().position(|b| b == id).map_or(0.0, |i| self.free_at[i]);
        self.free_at = self.table.limiter_ids.iter().map(free_at).collect();
        // What comes from now on does not queue behind a delay that was healed.
        for (last, (new, old)) in self.last_due.iter_mut().zip(self.table.paths.iter().zip(&before.paths)) {
            if new.delay_ns != old.delay_ns || new.jitter_ns != old.jitter_ns {
                *last = 0;
            }
        }
    }

    /// Takes up to `most` frames from the ring.
    fn take(&mut self, most: usize) -> usize {
        // Arrival is told in wall-clock time, which may jump; only the difference to now is used.
        let (now, wall) = (clock(libc::CLOCK_MONOTONIC), clock(libc::CLOCK_REALTIME));
        let mut taken = 0;
        while taken < most {
            let Some(frame) = self.ring.next() else { break };
            // Looked at behind the frame: one that was sent after a change was made meets the new rules. It stays.
            if self.shared.generation.load(Ordering::Acquire) != self.generation {
                break;
            }
            let arrived = now - wall.saturating_sub(frame.at_ns).min(10_000_000);
            if let Some((to, path)) =
                route(&frame, &self.by_address, self.network, self.first_interface, self.table.hosts)
            {
                let fate = fate(
                    &self.table,
                    &mut self.last_due,
                    &mut self.free_at,
                    &mut self.random,
                    path,
                    arrived,
                    frame.bytes.len(),
                );
                match fate {
                    Ok(due) => match store(&mut self.slots, &mut self.free, frame.bytes, to) {
                        Some(slot) => {
                            self.order = self.order.wrapping_add(1);
                            self.heap.push(Reverse((due, self.order, slot)));
                        }
                        None => add(&self.shared.counters.overflowed),
                    },
                    Err(Dropped::Lost) => add(&self.shared.counters.lost),
                    Err(Dropped::Cut) => add(&self.shared.counters.cut),
                    Err(Dropped::Queue) => add(&self.shared.counters.overflowed),
                }
            } else {
                add(&self.shared.counters.strays);
            }
            self.ring.release();
            taken += 1;
        }
        taken
    }

    /// Sends what is due, to within a few microseconds: asking for the exact moment costs more than it is worth.
    fn send_due(&mut self) {
        const EARLY_NS: u64 = 5_000;
        let mut sending = [0u32; super::ring::BATCH];
        loop {
            let limit = clock(libc::CLOCK_MONOTONIC) + EARLY_NS;
            let (mut n, mut bytes) = (0, 0);
            while !self.batch.full() && self.heap.peek().is_some_and(|Reverse((due, ..))| *due <= limit) {
                let Some(Reverse((_, _, index))) = self.heap.pop() else { break };
                let slot = &self.slots[index as usize / CHUNK][index as usize % CHUNK];
                self.batch.push(&slot.bytes[..usize::from(slot.length)], self.first_interface + u32::from(slot.to));
                bytes += u64::from(slot.length);
                sending[n] = index;
                n += 1;
            }
            if n == 0 {
                return;
            }
            let refused = self.batch.flush();
            self.free.extend_from_slice(&sending[..n]);
            let counters = &self.shared.counters;
            counters.carried.fetch_add(n as u64 - refused, Ordering::Relaxed);
            counters.refused.fetch_add(refused, Ordering::Relaxed);
            counters.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Sleeps until a frame arrives, the next one is due, or somebody nudges.
    fn wait(&mut self) {
        let now = clock(libc::CLOCK_MONOTONIC);
        let wanted = self.heap.peek().map(|Reverse((due, ..))| due.saturating_sub(self.lateness_ns as u64));
        let ask = self.unasked.then_some(now + ASK_EVERY_NS);
        let wanted = wanted.into_iter().chain(ask).min();
        if wanted.is_some_and(|w| w <= now) {
            return;
        }
        let timeout = wanted.map(|w| libc::timespec {
            tv_sec: ((w - now) / 1_000_000_000) as i64,
            tv_nsec: ((w - now) % 1_000_000_000) as i64,
        });
        let event = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut events = [event(self.ring.as_raw_fd()), event(self.shared.wake.as_raw_fd())];
        // SAFETY: two live pollfd and a timespec that outlives the call, or none.
        let ready = unsafe {
            libc::ppoll(
                events.as_mut_ptr(),
                2,
                timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
                std::ptr::null(),
            )
        };
        if let (0, Some(wanted)) = (ready, wanted) {
            let late = clock(libc::CLOCK_MONOTONIC).saturating_sub(wanted) as f64;
            // A stall of the machine is no habit of the kernel's.
            if late < 300_000.0 {
                self.lateness_ns = (self.lateness_ns * 0.95 + late * 0.05).min(60_000.0);
            }
        }
        if events[1].revents != 0 {
            let mut count = 0u64;
            // SAFETY: eight bytes of a live integer.
            unsafe {
                libc::read(self.shared.wake.as_raw_fd(), std::ptr::from_mut(&mut count).cast(), 8);
            }
        }
    }
}

/// After traffic the ring is asked what it could not hold, at most this often.
const ASK_EVERY_NS: u64 = 1_000_000_000;

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

enum Dropped {
    Lost,
    Cut,
    Queue,
}

/// Receiver and path of a frame; `None` for a stray.
fn route(
    frame: &super::ring::Frame<'_>,
    by_address: &[u16; 4096],
    network: u32,
    first_interface: u32,
    hosts: usize,
) -> Option<(u16, usize)> {
    // Ethernet, then an IPv4 header whose destination stands 16 bytes in.
    let destination = u32::from_be_bytes(frame.bytes.get(30..34)?.try_into().ok()?);
    if destination >> 12 != network || frame.bytes.len() > LONGEST {
        return None;
    }
    let to = by_address[(destination & 0xfff) as usize];
    let from = frame.interface.checked_sub(first_interface)? as usize;
    (to != NOBODY && from < hosts).then(|| (to, from * hosts + usize::from(to)))
}

/// When a packet is due at the other end, or why it never is.
fn fate(
    table: &Table,
    last_due: &mut [u64],
    free_at: &mut [f64],
    random: &mut SmallRng,
    path_index: usize,
    arrived: u64,
    length: usize,
) -> Result<u64, Dropped> {
    let path = &table.paths[path_index];
    if path.cut {
        return Err(Dropped::Cut);
    }
    if path.loss > 0 && u64::from(random.random::<u32>()) < path.loss {
        return Err(Dropped::Lost);
    }
    let mut leaves = arrived as f64;
    for &limiter in path.limiters.iter().filter(|l| **l > 0) {
        let begins = free_at[usize::from(limiter)].max(leaves);
        if begins - arrived as f64 > QUEUE_NS as f64 {
            return Err(Dropped::Queue);
        }
        leaves = begins + length as f64 * table.ns_per_byte[usize::from(limiter)];
        free_at[usize::from(limiter)] = leaves;
    }
    let leaves = leaves as u64;
    if path.reorder > 0 && u64::from(random.random::<u32>()) < path.reorder {
        return Ok(leaves);
    }
    let mut delay = path.delay_ns;
    if path.jitter_ns > 0.0 {
        let deviation: f64 = StandardNormal.sample(random);
        delay = (delay as f64 + deviation * path.jitter_ns).max(0.0) as u64;
    }
    let due = (leaves + delay).max(last_due[path_index]);
    last_due[path_index] = due;
    Ok(due)
}

/// Copies a frame into a slot; `None` when too many are on the way.
fn store(slots: &mut Vec<Box<[Slot; CHUNK]>>, free: &mut Vec<u32>, bytes: &[u8], to: u16) -> Option<u32> {
    if free.is_empty() {
        if slots.len() * CHUNK >= SLOTS {
            return None;
        }
        let first = (slots.len() * CHUNK) as u32;
        slots.push(Box::new([Slot { length: 0, to: 0, bytes: [0; LONGEST] }; CHUNK]));
        free.reserve((first as usize) + CHUNK);
        free.extend((first..first + CHUNK as u32).rev());
    }
    let index = free.pop()?;
    let slot = &mut slots[index as usize / CHUNK][index as usize % CHUNK];
    slot.length = bytes.len() as u16;
    slot.to = to;
    slot.bytes[..bytes.len()].copy_from_slice(bytes);
    Some(index)
}

/// CPU time of a thread of this process.
pub fn thread_cpu(thread: u32) -> Duration {
    let stat = unslow_process::schedstat(std::process::id(), thread);
    Duration::from_nanos(stat.map_or(0, |s| s.sum_exec_runtime))
}
