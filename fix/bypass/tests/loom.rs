//! Every order of loads and stores of the rings, of the wake-up rule and of a connection's end, as loom finds them:
//!
//!     RUSTFLAGS="--cfg loom" cargo test -p unslow-bypass --test loom --target-dir target/loom
//!
//! What is run is the code that ships, on loom's atomics. The bytes in the rings are plain memory to it: the tests
//! compare them.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use loom::thread;
use unslow_bypass::board::Word;
use unslow_bypass::life::{Life, state};
use unslow_bypass::pair::Bits;
use unslow_bypass::ring::{Consumer, In, LARGER, Out, Producer, Rings, SMALL, Which};

/// The rings of one direction: the small one, and one of the next size, or none.
struct Memory {
    small: Vec<u8>,
    larger: Vec<u8>,
    left: AtomicBool,
}

impl Memory {
    fn new(larger: bool) -> Memory {
        let bytes = if larger { LARGER[0].0 } else { 0 };
        Memory { small: vec![0; SMALL], larger: vec![0; bytes], left: AtomicBool::new(larger) }
    }
}

impl Rings for Memory {
    fn at(&self, which: Which) -> *mut u8 {
        let ring = if which == Which::SMALL { &self.small } else { &self.larger };
        ring.as_ptr().cast_mut()
    }
    fn take(&self, class: usize) -> Option<Which> {
        (class == 0 && self.left.swap(false, Ordering::Relaxed)).then(|| Which::larger(0, 0))
    }
    fn has(&self, class: usize) -> bool {
        class == 0 && self.left.load(Ordering::Relaxed)
    }
    fn give(&self, _which: Which) {}
}

#[test]
fn who_sleeps_is_woken() {
    loom::model(|| {
        let shared = Arc::new((Bits::default(), Word::default(), AtomicU64::new(0), AtomicBool::new(false)));
        shared.1.awake(0);
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (bits, word, data, rung) = &*shared;
                data.store(7, Ordering::Release);
                bits.set(3);
                if word.asleep() {
                    rung.store(true, Ordering::Release);
                }
            })
        };
        let (bits, word, data, rung) = &*shared;
        word.sleeps();
        if bits.any() {
            word.awake(0);
            let mut seen = Vec::new();
            bits.take(|number| seen.push(number));
            assert_eq!(seen, [3]);
            assert_eq!(data.load(Ordering::Acquire), 7);
            peer.join().unwrap();
        } else {
            peer.join().unwrap();
            assert!(rung.load(Ordering::Acquire), "it sleeps for ever");
        }
    });
}

fn pattern(from: usize, n: usize) -> Vec<u8> {
    (from..from + n).map(|i| (i * 31 >> 3) as u8).collect()
}

#[test]
fn bytes_come_in_order_through_a_change_of_the_ring() {
    const PART: usize = 6 << 10;
    loom::model(|| {
        let shared = Arc::new((Out::default(), In::default(), Memory::new(true)));
        let peer = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (out, to, rings) = &*shared;
                let mut producer = Producer::new(rings);
                // The second does not fit into what is left of the small ring unless the first was read.
                for part in 0..2 {
                    assert_eq!(producer.write(rings, out, to, &pattern(part * PART, PART)), Ok(PART));
                }
            })
        };
        let (out, to, rings) = &*shared;
        let mut consumer = Consumer::new(rings);
        let mut room = vec![0; 2 * PART];
        let mut got = 0;
        for _ in 0..2 {
            got += consumer.read(rings, out, to, &mut room[got..], false).unwrap();
        }
        peer.join().unwrap();
        while got < 2 * PART {
            let n = consumer.read(rings, out, to, &mut room[got..], false).unwrap();
            assert!(n > 0, "{got} bytes and no more");
            got += n;
        }
        assert!(room == pattern(0, 2 * PART));
    });
}

#[test]
fn who_waits_for_space_is_told_of_it() {
    loom::model(|| {
        let shared = Arc::new((Out::default(), In::default(), Memory::new(false), AtomicBool::new(false)));
        let mut producer = Producer::new(&shared.2);
        assert_eq!(producer.write(&shared.2, &shared.0, &shared.1, &pattern(0, SMALL + 1)), Ok(SMALL));
        let reader = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (out, to, rings, told) = &*shared;
                let mut consumer = Consumer::new(rings);
                let mut room = vec![0; SMALL];
                assert_eq!(consumer.read(rings, out, to, &mut room, false), Ok(SMALL));
                if consumer.wanted(out) {
                    told.store(true, Ordering::Release);
                }
            })
        };
        let (out, to, rings, told) = &*shared;
        producer.wait(out);
        let sleeps = !producer.writable(rings, to).unwrap();
        reader.join().unwrap();
        assert!(!sleeps || told.load(Ordering::Acquire), "it waits for ever");
    });
}

/// What carries a connection: whoever uses it while it is dropped is found out by loom.
struct Carrier {
    bytes: UnsafeCell<u32>,
}

impl Carrier {
    fn new() -> Carrier {
        Carrier { bytes: UnsafeCell::new(7) }
    }

    fn read(&self) -> u32 {
        // SAFETY: nobody writes but `drop`.
        self.bytes.with(|bytes| unsafe { *bytes })
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // SAFETY: nobody else has it.
        self.bytes.with_mut(|bytes| unsafe { *bytes = 0 });
    }
}

/// The time in which a closed connection rests, as a rule of order: calls that can have begun before are over.
#[derive(Default)]
struct Rest {
    calls: AtomicU64,
}

impl Rest {
    fn call_begins(&self) {
        self.calls.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    fn call_ends(&self) {
        self.calls.fetch_sub(1, Ordering::AcqRel);
    }

    fn is_over(&self) {
        fence(Ordering::SeqCst);
        while self.calls.load(Ordering::Acquire) > 0 {
            thread::yield_now();
        }
    }
}

#[test]
fn what_carries_a_connection_is_there_for_calls_that_have_begun() {
    loom::model(|| {
        let shared = Arc::new((Life::<Carrier>::default(), Rest::default()));
        // SAFETY: no other thread yet.
        unsafe { shared.0.carry(Carrier::new()) };
        let call = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (life, rest) = &*shared;
                rest.call_begins();
                if let Some(carrier) = life.carrier() {
                    assert_eq!(carrier.read(), 7);
                }
                rest.call_ends();
            })
        };
        let (life, rest) = &*shared;
        assert!(life.retire());
        rest.is_over();
        // SAFETY: it has rested.
        assert!(unsafe { life.let_go() }, "nobody sleeps");
        call.join().unwrap();
        assert!(life.carrier().is_none());
    });
}

#[test]
fn what_carries_a_connection_is_there_for_a_call_that_sleeps_longer() {
    loom::model(|| {
        let shared = Arc::new((Life::<Carrier>::default(), Rest::default()));
        // SAFETY: no other thread yet.
        unsafe { shared.0.carry(Carrier::new()) };
        let call = {
            let shared = shared.clone();
            thread::spawn(move || {
                let (life, rest) = &*shared;
                rest.call_begins();
                let carrier = life.carrier();
                if carrier.is_some() {
                    life.sleeps();
                }
                // However long: the rest may be over by now.
                rest.call_ends();
                thread::yield_now();
                if let Some(carrier) = carrier {
                    assert_eq!(carrier.read(), 7);
                    life.wakes();
                }
            })
        };
        let (life, rest) = &*shared;
        life.retire();
        rest.is_over();
        // SAFETY: it has rested.
        while !unsafe { life.let_go() } {
            thread::yield_now();
        }
        call.join().unwrap();
    });
}

#[test]
fn two_who_retire_a_connection_are_told_apart() {
    loom::model(|| {
        let life = Arc::new(Life::<Carrier>::default());
        let other = {
            let life = life.clone();
            thread::spawn(move || life.retire())
        };
        let first = life.retire();
        assert!(first != other.join().unwrap(), "an entry that is queued twice is given to two descriptors");
    });
}

#[test]
fn who_sees_that_a_connection_is_carried_sees_what_carries_it() {
    loom::model(|| {
        let life = Arc::new(Life::<Carrier>::default());
        life.begin(state::SETTLING);
        let reader = {
            let life = life.clone();
            thread::spawn(move || life.carrier().map(Carrier::read))
        };
        // SAFETY: this thread settles it.
        unsafe { life.carry(Carrier::new()) };
        assert!(reader.join().unwrap().is_none_or(|bytes| bytes == 7));
    });
}
