//! io_uring: one call a turn, which hands over what is to be sent and waits for what arrives. Accepts and receives
//! are submitted once and stay armed (multishot), what is received lies in buffers that the kernel takes from a ring,
//! and it is sent from there.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::squeue::Entry;
use io_uring::{IoUring, cqueue, opcode, types};

const BUFFERS: u16 = 1024;
const SIZE: usize = 16 << 10;
const ENTRIES: u32 = 1024;
const LISTENER: u64 = u64::MAX;
/// In the user data of a completed send; the rest is the end it was sent to.
const SENT: u64 = 1 << 63;

/// The buffers, and the ring by which the kernel gets those that are free. Never given back: it lives as long as the
/// process.
struct Buffers {
    ring: *mut types::BufRingEntry,
    memory: *mut u8,
}

impl Buffers {
    fn register(uring: &IoUring) -> io::Result<Buffers> {
        let entries = usize::from(BUFFERS);
        let of = |size: usize| Layout::from_size_align(size, 4096).expect("a layout");
        let zeroed = |layout: Layout| {
            // SAFETY: the layout is not empty.
            let at = unsafe { alloc_zeroed(layout) };
            if at.is_null() { handle_alloc_error(layout) } else { at }
        };
        let (ring, memory) =
            (zeroed(of(entries * size_of::<types::BufRingEntry>())).cast(), zeroed(of(entries * SIZE)));
        let buffers = Buffers { ring, memory };
        // SAFETY: `ring` starts on a page, has room for BUFFERS entries and is never freed.
        unsafe { uring.submitter().register_buf_ring_with_flags(ring as u64, BUFFERS, 0, 0)? };
        (0..BUFFERS).for_each(|id| buffers.give(id));
        Ok(buffers)
    }

    fn at(&self, id: u16) -> *mut u8 {
        // SAFETY: `memory` has BUFFERS of these, and ids are below that.
        unsafe { self.memory.add(usize::from(id) * SIZE) }
    }

    /// Back to the kernel.
    fn give(&self, id: u16) {
        // The tail lies within the first entry, so nothing else refers to the ring while one of these two does.
        let tail = || {
            // SAFETY: it is aligned and lives as long as the ring; only this thread writes it, the kernel only reads
            // it.
            unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(self.ring) as *mut u16) }
        };
        let at = tail().load(Ordering::Relaxed);
        {
            // SAFETY: the index is below BUFFERS, and the kernel reads the entry only once the tail is beyond it.
            let entry = unsafe { &mut *self.ring.add(usize::from(at % BUFFERS)) };
            entry.set_addr(self.at(id) as u64);
            entry.set_len(SIZE as u32);
            entry.set_bid(id);
        }
        tail().store(at.wrapping_add(1), Ordering::Release);
    }
}

/// What waits in a buffer to be sent.
struct Piece {
    id: u16,
    from: u32,
    length: u32,
}

/// One end of a connection. Its first piece is being sent.
struct End {
    socket: OwnedFd,
    pieces: std::collections::VecDeque<Piece>,
    /// Requests of this end whose last completion has not arrived.
    open: u32,
    is_over: bool,
}

/// Both ends of a connection are neighbours: `n` and `n ^ 1`.
struct Relay {
    buffers: Buffers,
    ends: Vec<Option<End>>,
    free: Vec<usize>,
    todo: Vec<Entry>,
}

impl Relay {
    fn begin(&mut self, client: OwnedFd, server: OwnedFd) {
        let at = self.free.pop().unwrap_or(self.ends.len());
        if at == self.ends.len() {
            self.ends.extend([None, None]);
        }
        for (n, socket) in [(at, client), (at + 1, server)] {
            self.ends[n] = Some(End { socket, pieces: Default::default(), open: 0, is_over: false });
            self.receive(n);
        }
    }

    fn receive(&mut self, n: usize) {
        let Some(end) = &mut self.ends[n] else { return };
        end.open += 1;
        let fd = types::Fd(end.socket.as_raw_fd());
        self.todo.push(opcode::RecvMulti::new(fd, 0).build().user_data(n as u64));
    }

    /// The first piece of this end.
    fn send(&mut self, n: usize) {
        let Some(end) = &mut self.ends[n] else { return };
        let Some(piece) = end.pieces.front() else { return };
        end.open += 1;
        // SAFETY: the kernel never put more into a buffer than it has room for.
        let from = unsafe { self.buffers.at(piece.id).add(piece.from as usize) };
        let send = opcode::Send::new(types::Fd(end.socket.as_raw_fd()), from, piece.length - piece.from);
        self.todo.push(send.flags(libc::MSG_NOSIGNAL).build().user_data(SENT | n as u64));
    }

    /// Ends both; what the kernel still holds of them is answered before they are dropped.
    fn end(&mut self, n: usize) {
        for n in [n, n ^ 1] {
            if let Some(end) = self.ends[n].as_mut().filter(|end| !end.is_over) {
                end.is_over = true;
                let _ = rustix::net::shutdown(&end.socket, rustix::net::Shutdown::Both);
            }
        }
        if [n, n ^ 1].iter().all(|n| self.ends[*n].as_ref().is_none_or(|end| end.open == 0)) {
            for n in [n, n ^ 1] {
                let pieces = self.ends[n].take().map_or_else(Default::default, |end| end.pieces);
                pieces.into_iter().for_each(|piece| self.buffers.give(piece.id));
            }
            self.free.push(n & !1);
        }
    }

    fn sent(&mut self, n: usize, result: i32) {
        let Some(end) = &mut self.ends[n] else { return };
        end.open -= 1;
        if result <= 0 || end.is_over {
            return self.end(n);
        }
        let Some(piece) = end.pieces.front_mut() else { return };
        piece.from += result as u32;
        if piece.from == piece.length {
            let id = piece.id;
            end.pieces.pop_front();
            self.buffers.give(id);
        }
        self.send(n);
    }

    fn received(&mut self, n: usize, done: &cqueue::Entry) {
        let is_last = !cqueue::more(done.flags());
        let Some(end) = &mut self.ends[n] else { return };
        end.open -= u32::from(is_last);
        let is_over = end.is_over;
        let id = cqueue::buffer_select(done.flags());
        if let (true, false, Some(id), Some(peer)) = (done.result() > 0, is_over, id, &mut self.ends[n ^ 1]) {
            peer.pieces.push_back(Piece { id, from: 0, length: done.result() as u32 });
            if peer.pieces.len() == 1 {
                self.send(n ^ 1);
            }
        } else if let Some(id) = id {
            self.buffers.give(id);
        }
        let is_out_of_buffers = done.result() == -libc::ENOBUFS;
        match () {
            () if is_over || (done.result() <= 0 && !is_out_of_buffers) => self.end(n),
            () if is_last => self.receive(n),
            () => {}
        }
    }
}

/// Until it is killed.
pub fn run(listener: &TcpListener, file: &str) -> io::Result<()> {
    let mut uring: IoUring =
        IoUring::builder().setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun().build(ENTRIES)?;
    let buffers = Buffers::register(&uring)?;
    let accept = || opcode::AcceptMulti::new(types::Fd(listener.as_raw_fd())).build().user_data(LISTENER);
    let mut relay = Relay { buffers, ends: Vec::new(), free: Vec::new(), todo: vec![accept()] };
    let mut turn: Vec<cqueue::Entry> = Vec::new();
    loop {
        for entry in relay.todo.drain(..) {
            // SAFETY: sockets and buffers are kept until the kernel has answered.
            while unsafe { uring.submission().push(&entry) }.is_err() {
                uring.submit()?;
            }
        }
        uring.submit_and_wait(1)?;
        turn.extend(uring.completion());
        for done in turn.drain(..) {
            let of = done.user_data();
            if of == LISTENER {
                if done.result() >= 0 {
                    // SAFETY: the kernel has just opened it for us.
                    let client = std::net::TcpStream::from(unsafe { OwnedFd::from_raw_fd(done.result()) });
                    client.set_nodelay(true)?;
                    relay.begin(client.into(), UnixStream::connect(file)?.into());
                }
                if !cqueue::more(done.flags()) {
                    relay.todo.push(accept());
                }
            } else if of & SENT != 0 {
                relay.sent((of & !SENT) as usize, done.result());
            } else {
                relay.received(of as usize, &done);
            }
        }
    }
}
