//! Both ends of a pair in one process: what is written is what is read, whatever the sizes; lies end one connection
//! only.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use proptest::prelude::*;
use unslow_bypass::board::Board;
use unslow_bypass::link::{Link, Read, Written};
use unslow_bypass::local::Local;
use unslow_bypass::pair::{ASKED, Close, DECLINED, OFFERED, Pair, SLOTS, TAKEN};
use unslow_bypass::ring::{LARGER, Rings};

/// A socket pair in place of the meeting, and the memory seen from both sides.
fn pair() -> (Arc<Pair>, Arc<Pair>) {
    let mut fds = [0; 2];
    // SAFETY: room for two descriptors.
    assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) }, 0);
    // SAFETY: just opened, ours.
    let [a, b] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    let (client, memory) = Pair::create(a, (1, 2)).unwrap();
    let server = Pair::of_client(b, (3, 4), &memory).unwrap();
    // Each sees the other's board; one process has both here.
    for (mine, theirs) in [(&client, Local::create().unwrap()), (&server, Local::create().unwrap())] {
        mine.set_board(Board::of_peer(&theirs.board_fd).unwrap());
    }
    (Arc::new(client), Arc::new(server))
}

fn link(client: &Arc<Pair>, server: &Arc<Pair>) -> (Link, Link) {
    let (slot, generation) = client.take_slot().unwrap();
    assert!(server.slot(slot).unwrap().advance(generation, OFFERED, TAKEN));
    (Link::new(client.clone(), slot, generation), Link::new(server.clone(), slot, generation))
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Writes and reads of these sizes in turn; every byte is compared.
fn stream(from: &Link, to: &Link, sizes: &[(usize, usize)]) {
    let (mut written, mut read) = (0u64, 0u64);
    let mut room = vec![0; 3 << 20];
    for (write, take) in sizes {
        let bytes: Vec<u8> = (written..written + *write as u64).map(byte).collect();
        match from.write(&bytes).0 {
            Written::Bytes(n) => written += n as u64,
            Written::Full => assert!(written > read, "full and empty at once"),
            other => panic!("{other:?}"),
        }
        assert_eq!(to.waiting(), written - read);
        match to.read(&mut room[..*take], false).0 {
            Read::Bytes(n) => {
                assert!(room[..n].iter().zip(read..).all(|(b, at)| *b == byte(at)), "at {read}");
                read += n as u64;
            }
            Read::Empty => assert!(written == read || *take == 0),
            other => panic!("{other:?}"),
        }
    }
    while read < written {
        let Read::Bytes(n) = to.read(&mut room, false).0 else { panic!("{} bytes are missing", written - read) };
        assert!(room[..n].iter().zip(read..).all(|(b, at)| *b == byte(at)), "at {read}");
        read += n as u64;
    }
    assert_eq!(to.read(&mut room, false).0, Read::Empty);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read_in_order(
        there in prop::collection::vec(
            (
                prop_oneof![1..100usize, 4000..20_000usize, 100_000..3_000_000usize],
                prop_oneof![0..200usize, 1..3_000_000usize],
            ),
            1..60,
        ),
        back in prop::collection::vec((1..20_000usize, 0..20_000usize), 1..60),
    ) {
        let (client, server) = pair();
        let (c, s) = link(&client, &server);
        stream(&c, &s, &there);
        stream(&s, &c, &back);
    }
}

#[test]
fn a_ring_that_was_large_becomes_small_again_and_is_given_back() {
    let (client, server) = pair();
    let (c, s) = link(&client, &server);
    let (size, count) = LARGER[1];
    let large: Vec<u8> = (0..size as u64).map(byte).collect();
    let mut room = vec![0; 2 * size];
    // More often than there are rings of this size; with writes of every size that a small ring takes well.
    for (round, small) in (0..count + 50).zip([3, 60, 1000, 4000].into_iter().cycle()) {
        assert_eq!(c.write(&large).0, Written::Bytes(size), "round {round}");
        assert_eq!(s.read(&mut room, false).0, Read::Bytes(size), "round {round}");
        assert!(room[..size] == large, "round {round}");
        stream(&c, &s, &vec![(small, small); 3000]);
        // More than the small ring holds, and far less than the largest, which is taken back now.
        stream(&c, &s, &[(10_000, 10_000)]);
        let rings = client.outgoing(c.number);
        let free: Vec<_> = std::iter::from_fn(|| rings.take(1)).collect();
        free.iter().for_each(|ring| rings.give(*ring));
        assert_eq!(free.len(), count, "round {round}, writes of {small} bytes: rings of {size} bytes that are free");
    }
}

#[test]
fn a_ring_that_is_never_empty_becomes_small_again_when_a_small_one_would_do() {
    let (client, server) = pair();
    let (c, s) = link(&client, &server);
    let (size, count) = LARGER[1];
    let mut room = vec![0; size];
    assert_eq!(c.write(&vec![7; size]).0, Written::Bytes(size));
    // There are always 900 bytes left to read.
    assert_eq!(s.read(&mut room[..size - 900], false).0, Read::Bytes(size - 900));
    for _ in 0..3000 {
        assert_eq!(c.write(&[7; 300]).0, Written::Bytes(300));
        assert_eq!(s.read(&mut room[..300], false).0, Read::Bytes(300));
    }
    // More than the small ring holds: a ring of the next size is taken, and the largest given back.
    assert_eq!(c.write(&[7; 10_000]).0, Written::Bytes(10_000));
    assert_eq!(s.read(&mut room[..10_900], false).0, Read::Bytes(10_900));
    let rings = client.outgoing(c.number);
    assert_eq!(std::iter::from_fn(|| rings.take(1)).count(), count);
}

#[test]
fn a_ring_that_is_half_full_of_larger_writes_stays_as_it_is() {
    let (client, server) = pair();
    let (c, s) = link(&client, &server);
    let (size, count) = LARGER[1];
    let mut room = vec![0; size];
    assert_eq!(c.write(&vec![7; size]).0, Written::Bytes(size));
    assert_eq!(s.read(&mut room, false).0, Read::Bytes(size));
    for _ in 0..3000 {
        assert_eq!(c.write(&[7; 6000]).0, Written::Bytes(6000));
        assert_eq!(s.read(&mut room, false).0, Read::Bytes(6000));
    }
    let rings = client.outgoing(c.number);
    assert_eq!(std::iter::from_fn(|| rings.take(1)).count(), count - 1);
}

#[test]
fn writes_are_partial_when_all_larger_rings_are_taken() {
    let (client, server) = pair();
    let links: Vec<_> = (0..2000).map(|_| link(&client, &server)).collect();
    let big = vec![7; 3 << 20];
    let mut full = 0;
    for (c, _) in &links {
        let mut sent = 0;
        while let Written::Bytes(n) = c.write(&big).0 {
            sent += n;
        }
        assert!(sent >= 8 << 10);
        if !c.writable() {
            full += 1;
        }
    }
    assert_eq!(full, 2000, "what is full says so");
    for (c, s) in &links {
        let mut room = vec![0; 3 << 20];
        while let Read::Bytes(n) = s.read(&mut room, false).0 {
            assert!(room[..n].iter().all(|b| *b == 7));
        }
        assert!(c.writable());
    }
}

#[test]
fn ends_come_behind_the_bytes() {
    let (client, server) = pair();
    let mut room = [0; 100];
    // Half-close: the other direction goes on.
    let (c, s) = link(&client, &server);
    c.write(b"last");
    c.shut_write();
    assert_eq!(s.read(&mut room, true).0, Read::Bytes(4), "a peek");
    assert_eq!(s.read(&mut room, false).0, Read::Bytes(4));
    assert_eq!(s.read(&mut room, false).0, Read::End);
    assert_eq!(s.write(b"answer").0, Written::Bytes(6));
    assert_eq!(c.read(&mut room, false).0, Read::Bytes(6));
    assert_eq!(c.write(b"x").0, Written::Gone, "it said that it ends");
    // Close: one write goes nowhere, as with TCP, then it is told.
    c.close(Close::Clean);
    assert_eq!(s.write(b"x").0, Written::Bytes(1));
    assert_eq!(s.write(b"x").0, Written::Gone);
    // A close with something unread is a reset.
    let (c, s) = link(&client, &server);
    c.write(b"unread");
    s.close(Close::Clean);
    assert_eq!(c.read(&mut room, false).0, Read::Reset);
    assert_eq!(c.write(b"x").0, Written::Reset);
    // A crash: what TCP says counts, behind the bytes.
    let (c, s) = link(&client, &server);
    s.write(b"before");
    c.tcp_ended(false);
    assert_eq!(c.read(&mut room, false).0, Read::Bytes(6));
    assert_eq!(c.read(&mut room, false).0, Read::End);
    assert_eq!(c.write(b"x").0, Written::Gone);
}

#[test]
fn an_abort_is_a_reset_behind_the_bytes_and_is_told_once() {
    let (client, server) = pair();
    let mut room = [0; 100];
    for wrote in [true, false] {
        let (c, s) = link(&client, &server);
        if wrote {
            s.write(b"a part");
        }
        s.close(Close::Abort);
        assert!(c.readable() && c.writable() && c.ended() && c.over() && c.broken());
        if wrote {
            assert_eq!(c.read(&mut room, false).0, Read::Bytes(6), "what came before it");
        }
        // Until the program was told, by whichever call comes first.
        assert_eq!(c.read(&mut room, false).0, Read::Reset);
        assert_eq!(c.write(b"x").0, Written::Reset);
        c.set_told_reset(true);
        assert_eq!((c.read(&mut room, false).0, c.write(b"x").0), (Read::End, Written::Gone));
        assert!(c.over() && !c.broken());
    }
    // What was ended before is complete, as behind a FIN; nothing can be written.
    let (c, s) = link(&client, &server);
    s.write(b"all");
    s.shut_write();
    s.close(Close::Abort);
    assert_eq!(c.read(&mut room, false).0, Read::Bytes(3));
    assert_eq!((c.read(&mut room, false).0, c.write(b"x").0), (Read::End, Written::Gone));
    // Who dies without having read all resets the connection; who has read all ends it.
    for (read, end) in [(0, Read::Reset), (4, Read::End)] {
        let (c, s) = link(&client, &server);
        c.write(b"asks");
        s.read(&mut room[..read], false);
        s.write(b"a part");
        c.tcp_ended(false);
        assert_eq!(c.read(&mut room, false).0, Read::Bytes(6));
        assert_eq!(c.read(&mut room, false).0, end);
    }
}

#[test]
fn what_is_written_after_a_clean_close_makes_no_reset_of_it() {
    let (client, server) = pair();
    let (c, s) = link(&client, &server);
    s.close(Close::Clean);
    assert_eq!(c.write(b"too late").0, Written::Bytes(8), "as with TCP, which has yet to hear of it");
    assert_eq!(c.read(&mut [0; 100], false).0, Read::End);
}

#[test]
fn a_connection_says_when_it_told_of_news_where_there_is_more_than_one() {
    let (client, server) = pair();
    let only = link(&client, &server);
    only.0.write(b"x");
    assert_eq!(only.1.told_at(), 0, "one connection has no order");
    let mut links = vec![only];
    links.extend((0..20).map(|_| link(&client, &server)));
    let mut last = 0;
    // From the last to the first, unlike their numbers.
    for (c, s) in links.iter().rev() {
        c.write(b"x");
        assert!(s.told_at() >= last && s.told_at() > 0, "{} after {last}", s.told_at());
        last = s.told_at();
    }
    // It is the teller's own time: the other side's does not change it.
    let (c, s) = &links[0];
    s.write(b"y");
    assert_eq!(s.told_at(), last);
    assert!(c.told_at() >= last);
    // More news do not hide how long the first have waited, until the waiter has taken them.
    c.write(b"more");
    assert_eq!(s.told_at(), last);
    server.take_news(0, |_| {});
    std::thread::sleep(std::time::Duration::from_millis(1));
    c.write(b"news");
    assert!(s.told_at() > last);
}

#[test]
fn an_offer_is_taken_or_declined_but_never_both() {
    let (client, server) = pair();
    for asked in [false, true] {
        let (slot, generation) = client.take_slot().unwrap();
        let words = server.slot(slot).unwrap();
        assert!(!asked || words.advance(generation, OFFERED, ASKED));
        assert!(client.slot(slot).unwrap().decline(generation), "the client withdraws");
        assert!(!words.advance(generation, ASKED, TAKEN) && !words.decline(generation), "too late");
        assert_eq!(words.state(generation), DECLINED);
    }
    let (slot, generation) = client.take_slot().unwrap();
    let words = server.slot(slot).unwrap();
    assert!(words.advance(generation, OFFERED, ASKED) && words.advance(generation, ASKED, TAKEN));
    assert!(!client.slot(slot).unwrap().decline(generation), "too late");
    assert_eq!(words.state(generation), TAKEN);
}

#[test]
fn slots_are_used_again_when_both_are_done_and_old_offers_count_for_nothing() {
    let (client, server) = pair();
    let (slot, generation) = client.take_slot().unwrap();
    let words = server.slot(slot).unwrap();
    assert!(words.advance(generation, OFFERED, DECLINED));
    assert!(!words.advance(generation, OFFERED, TAKEN), "too late");
    client.retire(slot, generation, [None; 2]);
    let (again, newer) = client.take_slot().unwrap();
    assert_eq!(again, slot);
    assert!(!words.advance(generation, OFFERED, TAKEN), "an old offer");
    assert_eq!(words.state(generation), DECLINED);
    assert!(words.advance(newer, OFFERED, TAKEN));
    let (c, s) = (Link::new(client.clone(), again, newer), Link::new(server.clone(), again, newer));
    c.close(Close::Clean);
    assert_ne!(client.take_slot().unwrap().0, slot, "the server is not done");
    s.close(Close::Clean);
    let mut seen = false;
    for _ in 0..SLOTS {
        let Some((number, _)) = client.take_slot() else { break };
        seen |= number == slot;
    }
    assert!(seen);
    assert!(client.take_slot().is_none(), "no more than there are");
    assert!(server.slot(SLOTS as u32).is_none());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// A peer that writes anything anywhere hurts its own connection only: nothing panics, hangs, or reads outside.
    #[test]
    fn lies_end_one_connection_only(
        lies in prop::collection::vec((0..48usize, any::<u64>(), 0..6u8, 0..9000usize), 1..60),
    ) {
        let (client, server) = pair();
        let (c, s) = link(&client, &server);
        let (good_c, good_s) = link(&client, &server);
        let words = std::ptr::from_ref(client.slot(c.number).unwrap()).cast::<std::sync::atomic::AtomicU64>();
        let mut room = vec![0; 9000];
        for (word, value, what, n) in lies {
            let value = match what {
                0 => value,
                1 => value % 10_000,
                2 => value % (1 << 33),
                _ => u64::from(what) << (value % 60),
            };
            if what < 5 {
                // SAFETY: a slot is 320 bytes, 40 words; those behind belong to nobody's memory but this pair's.
                unsafe { (*words.add(word.min(39))).store(value, std::sync::atomic::Ordering::SeqCst) };
            }
            for link in [&s, &c] {
                let _ = link.write(&room[..n]);
                let _ = link.read(&mut room, n % 2 == 0);
                let _ = (link.readable(), link.writable(), link.ended(), link.over(), link.broken(), link.waiting());
            }
        }
        stream(&good_c, &good_s, &[(5000, 5000), (20_000, 100_000)]);
        c.close(Close::Clean);
        s.close(Close::Clean);
    }
}

#[test]
fn memory_that_is_not_sealed_is_refused() {
    // SAFETY: a terminated name.
    let fd = unsafe { libc::memfd_create(c"open".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: just opened.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: ours.
    unsafe { libc::ftruncate(fd.as_raw_fd(), unslow_bypass::pair::SIZE as i64) };
    let channel = fd.try_clone().unwrap();
    let why = Pair::of_client(channel, (0, 0), &fd).unwrap_err().to_string();
    assert!(why.contains("not sealed"), "{why}");
    assert!(Board::of_peer(&fd).unwrap_err().to_string().contains("not sealed"));
    let (_, sealed) = unslow_bypass::memory::Memory::create(c"small", 4096, false).unwrap();
    assert!(Board::of_peer(&sealed).unwrap_err().to_string().contains("not as large"));
}
