//! The floor: bare loops that send GET and only count the bytes of the answers, on epoll and on io_uring.
//!
//! What a load generator cannot go below on this machine, and whether io_uring (multishot receive into provided
//! buffers, sends submitted in one batch a turn) would lower it. Run against a server whose key `floor` holds 64 bytes:
//!
//! ```sh
//! taskset -c 1 cargo run --release -p unslow-reactor --example floor -- 127.0.0.1:6379 1 50 3
//! ```
//!
//! Arguments: address, depth, connections, seconds. Prints CPU per request of this process, user and kernel together.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, types};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{RecvFlags, SendFlags, recv, send};

const REPLY: usize = "$64\r\n\r\n".len() + 64;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, depth, connections, seconds] = &arguments[..] else {
        eprintln!("floor ADDRESS DEPTH CONNECTIONS SECONDS");
        return Ok(());
    };
    let number = |text: &String| text.parse::<usize>().expect("a number");
    let (depth, connections, length) =
        (number(depth), number(connections), Duration::from_secs(number(seconds) as u64));
    let mut first = TcpStream::connect(address)?;
    first.write_all(format!("SET floor {}\r\n", "x".repeat(64)).as_bytes())?;
    first.read_exact(&mut [0; 5])?;
    for (name, run) in
        [("epoll", on_epoll as fn(&[TcpStream], &[u8], Duration) -> std::io::Result<u64>), ("io_uring", on_uring)]
    {
        let sockets: Vec<TcpStream> = (0..connections)
            .map(|_| {
                let socket = TcpStream::connect(address)?;
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            })
            .collect::<std::io::Result<_>>()?;
        let batch = b"*2\r\n$3\r\nGET\r\n$5\r\nfloor\r\n".repeat(depth);
        let (cpu, begun) = (process_cpu(), Instant::now());
        match run(&sockets, &batch, length) {
            Ok(bytes) => {
                let requests = bytes / REPLY as u64;
                let spent = process_cpu() - cpu;
                println!(
                    "{name:<9} depth {depth:>3}: {:.3} us of CPU a request, {:.0} requests/s",
                    spent.as_secs_f64() * 1e6 / requests as f64,
                    requests as f64 / begun.elapsed().as_secs_f64()
                );
            }
            Err(e) => println!("{name:<9} not available: {e}"),
        }
    }
    Ok(())
}

fn process_cpu() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

fn on_epoll(sockets: &[TcpStream], batch: &[u8], length: Duration) -> std::io::Result<u64> {
    let whole = batch.len() / b"*2\r\n$3\r\nGET\r\n$5\r\nfloor\r\n".len() * REPLY;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut owed = vec![whole; sockets.len()];
    for (i, socket) in sockets.iter().enumerate() {
        epoll::add(&epoll, socket, EventData::new_u64(i as u64), EventFlags::IN)?;
        send(socket, batch, SendFlags::NOSIGNAL)?;
    }
    let (mut events, mut buffer, mut bytes) = (Vec::with_capacity(256), vec![0u8; 64 * 1024], 0u64);
    let begun = Instant::now();
    while begun.elapsed() < length {
        events.clear();
        epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in &events {
            let i = event.data.u64() as usize;
            let (got, _) = recv(&sockets[i], &mut buffer[..], RecvFlags::empty())?;
            bytes += got as u64;
            owed[i] -= got;
            if owed[i] == 0 {
                owed[i] = whole;
                send(&sockets[i], batch, SendFlags::NOSIGNAL)?;
            }
        }
    }
    Ok(bytes)
}

fn on_uring(sockets: &[TcpStream], batch: &[u8], length: Duration) -> std::io::Result<u64> {
    const BUFFERS: u16 = 256;
    const SIZE: usize = 16 * 1024;
    const SENT: u64 = u64::MAX;
    let whole = batch.len() / b"*2\r\n$3\r\nGET\r\n$5\r\nfloor\r\n".len() * REPLY;
    let mut ring: IoUring =
        IoUring::builder().setup_single_issuer().setup_coop_taskrun().setup_defer_taskrun().build(1024)?;
    // The ring of free buffers is shared with the kernel, and must start on a page.
    let entries = usize::from(BUFFERS);
    let layout =
        std::alloc::Layout::from_size_align(entries * size_of::<types::BufRingEntry>(), 4096).expect("a layout");
    // SAFETY: the layout is not empty.
    let free = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<types::BufRingEntry>();
    let mut memory = vec![0u8; entries * SIZE];
    let base = memory.as_mut_ptr();
    // SAFETY: `free` has room for BUFFERS entries and, like `memory`, is leaked below: the kernel may use both as long
    // as the process lives.
    unsafe { ring.submitter().register_buf_ring_with_flags(free as u64, BUFFERS, 0, 0)? };
    // SAFETY: the tail lies within the first entry, and the kernel reads it atomically.
    let tail = unsafe { AtomicU16::from_ptr(types::BufRingEntry::tail(free) as *mut u16) };
    let give = |id: u16| {
        let at = tail.load(Ordering::Relaxed);
        // SAFETY: the index is below BUFFERS, and the entry is ours until the tail says otherwise.
        let entry = unsafe { &mut *free.add(usize::from(at % BUFFERS)) };
        // SAFETY: the buffer lies within `memory`.
        entry.set_addr(unsafe { base.add(usize::from(id) * SIZE) } as u64);
        entry.set_len(SIZE as u32);
        entry.set_bid(id);
        tail.store(at.wrapping_add(1), Ordering::Release);
    };
    (0..BUFFERS).for_each(give);
    std::mem::forget(memory);
    let listen = |i: usize| opcode::RecvMulti::new(types::Fd(sockets[i].as_raw_fd()), 0).build().user_data(i as u64);
    let ask = |i: usize| {
        opcode::Send::new(types::Fd(sockets[i].as_raw_fd()), batch.as_ptr(), batch.len() as u32).build().user_data(SENT)
    };
    let mut owed = vec![whole; sockets.len()];
    let mut todo: Vec<io_uring::squeue::Entry> = (0..sockets.len()).flat_map(|i| [listen(i), ask(i)]).collect();
    let (mut bytes, begun) = (0u64, Instant::now());
    while begun.elapsed() < length {
        for entry in todo.drain(..) {
            // SAFETY: sockets and `batch` outlive the run; received bytes go to `memory`.
            while unsafe { ring.submission().push(&entry) }.is_err() {
                ring.submit()?;
            }
        }
        ring.submit_and_wait(1)?;
        for done in ring.completion() {
            if done.user_data() == SENT {
                continue;
            }
            let i = done.user_data() as usize;
            if done.result() > 0 {
                bytes += done.result() as u64;
                owed[i] -= done.result() as usize;
                if owed[i] == 0 {
                    owed[i] = whole;
                    todo.push(ask(i));
                }
            }
            if let Some(id) = cqueue::buffer_select(done.flags()) {
                give(id);
            }
            if !cqueue::more(done.flags()) {
                todo.push(listen(i));
            }
        }
    }
    Ok(bytes)
}
