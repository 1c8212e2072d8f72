#![no_main]
//! Any words in the shared memory of a connection, at any time: no panic, no hang, nothing outside.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use libfuzzer_sys::fuzz_target;
use unslow_bypass::link::Link;
use unslow_bypass::pair::{Close, DECLINED, OFFERED, Pair, TAKEN};

thread_local! {
    static PAIR: RefCell<Option<(Arc<Pair>, Arc<Pair>)>> = const { RefCell::new(None) };
}

fn pair() -> (Arc<Pair>, Arc<Pair>) {
    let null = || std::fs::File::open("/dev/null").expect("it is there").into();
    let (client, memory) = Pair::create(null(), (1, 1)).expect("memfd");
    let server = Pair::of_client(null(), (1, 1), &memory).expect("sealed");
    (Arc::new(client), Arc::new(server))
}

fuzz_target!(|bytes: &[u8]| {
    let (client, server) = PAIR.with(|p| p.borrow_mut().get_or_insert_with(pair).clone());
    let Some((slot, generation)) = client.take_slot() else { return };
    let words = server.slot(slot).expect("taken");
    words.advance(generation, OFFERED, TAKEN);
    let all = std::ptr::from_ref(words).cast::<AtomicU64>();
    let ends = [Link::new(client.clone(), slot, generation), Link::new(server.clone(), slot, generation)];
    let mut room = vec![0; 9000];
    for step in bytes.chunks_exact(12) {
        let value = u64::from_le_bytes(step[..8].try_into().expect("eight"));
        // SAFETY: a slot is 320 bytes of atomics.
        unsafe { (*all.add(usize::from(step[8]) % 40)).store(value >> (step[9] % 64), Ordering::SeqCst) };
        let n = usize::from(step[10]) * 35;
        for end in &ends {
            let _ = (
                end.write(&room[..n]),
                end.read(&mut room, step[11] & 1 == 0),
                end.readable(),
                end.writable(),
                end.over(),
            );
        }
    }
    let how = if bytes.len().is_multiple_of(2) { Close::Clean } else { Close::Abort };
    ends.iter().for_each(|end| _ = end.close(how));
    // Whatever was written there: it is another connection's now.
    let _ = words.state(generation) == DECLINED;
});
