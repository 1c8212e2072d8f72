//! Frames in and out of the wire's namespace: a receive ring that the kernel fills without a system call, and a batch
//! that leaves in one.
//!
//! One packet socket hears every host's veth end, so one look at the ring sees all of them, in order of arrival and
//! with the kernel's time of arrival: a late wake-up of the carrier does not make the delay longer.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

/// Room for one frame, its header in front: an MTU of 1500 fits.
const FRAME: usize = 2048;
const BLOCK: usize = 1 << 20;
/// Longest Ethernet frame carried.
pub const LONGEST: usize = 1536;
/// What leaves in one system call at most.
pub const BATCH: usize = 64;

const PROTOCOL: u16 = (libc::ETH_P_IP as u16).to_be();

/// The receive ring (TPACKET_V2) of the namespace of the thread that opened it.
pub struct Ring {
    socket: OwnedFd,
    map: *mut u8,
    frames: usize,
    head: usize,
}

// SAFETY: the mapping belongs to this value alone, whichever thread holds it.
unsafe impl Send for Ring {}

/// A frame in the ring.
pub struct Frame<'a> {
    /// Ethernet header and all.
    pub bytes: &'a [u8],
    /// Whose veth end it came through.
    pub interface: u32,
    /// When the kernel saw it: CLOCK_REALTIME in ns.
    pub at_ns: u64,
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn set<T>(fd: RawFd, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`.
    check(unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_PACKET,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    })
    .map(drop)
}

fn packet_socket(protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: a plain system call; the new descriptor is owned at once.
    unsafe {
        let fd = check(libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, i32::from(protocol)))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

impl Ring {
    /// Hears every interface of this thread's namespace, with room for at least `frames` frames.
    pub fn open(frames: usize) -> io::Result<Ring> {
        let socket = packet_socket(PROTOCOL)?;
        let fd = socket.as_raw_fd();
        set(fd, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as i32))?;
        let blocks = (frames * FRAME).div_ceil(BLOCK);
        let frames = blocks * BLOCK / FRAME;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: blocks as u32,
            tp_frame_size: FRAME as u32,
            tp_frame_nr: frames as u32,
        };
        set(fd, libc::PACKET_RX_RING, &request)?;
        // SAFETY: maps the ring just made, of this size.
        let map = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                blocks * BLOCK,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ring { socket, map: map.cast(), frames, head: 0 })
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: head < frames, so this is a frame's first word, aligned, and shared with the kernel only atomically.
        unsafe { AtomicU32::from_ptr(self.map.add(self.head * FRAME).cast()) }
    }

    /// The next frame, if there is one. It stays until [`Ring::release`].
    pub fn next(&self) -> Option<Frame<'_>> {
        if self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: the kernel gave this frame to us; header and address lie inside it, and lengths are held to its size.
        unsafe {
            let base = self.map.add(self.head * FRAME);
            let header = &*base.cast::<libc::tpacket2_hdr>();
            let address = &*base.add(size_of::<libc::tpacket2_hdr>().next_multiple_of(16)).cast::<libc::sockaddr_ll>();
            let from = usize::from(header.tp_mac).min(FRAME);
            let length = (header.tp_snaplen as usize).min(FRAME - from);
            Some(Frame {
                bytes: std::slice::from_raw_parts(base.add(from), length),
                interface: address.sll_ifindex as u32,
                at_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
            })
        }
    }

    /// Gives the frame that [`Ring::next`] returned back to the kernel.
    pub fn release(&mut self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.head = (self.head + 1) % self.frames;
    }

    /// Frames the kernel could not put into the ring since the last call.
    pub fn overflowed(&self) -> u64 {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut length = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the pointer and the length describe `statistics`.
        let done = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                std::ptr::from_mut(&mut statistics).cast(),
                &mut length,
            )
        };
        if done == 0 { u64::from(statistics.tp_drops) } else { 0 }
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`, of the same size.
        unsafe {
            libc::munmap(self.map.cast(), self.frames * FRAME);
        }
    }
}

/// Frames on their way out.
pub struct Batch {
    socket: OwnedFd,
    addresses: Box<[libc::sockaddr_ll; BATCH]>,
    parts: Box<[libc::iovec; BATCH]>,
    headers: Box<[libc::mmsghdr; BATCH]>,
    n: usize,
}

// SAFETY: the pointers lead into the value's own boxes, and into buffers that the caller holds until `flush`.
unsafe impl Send for Batch {}

impl Batch {
    /// Sends from this thread's namespace.
    pub fn open() -> io::Result<Batch> {
        // Protocol 0 hears nothing.
        let socket = packet_socket(0)?;
        set(socket.as_raw_fd(), libc::PACKET_QDISC_BYPASS, &1i32)?;
        // SAFETY: all-zero is a valid value of these plain C structs.
        let (address, part, header): (libc::sockaddr_ll, libc::iovec, libc::mmsghdr) = unsafe { std::mem::zeroed() };
        let mut batch = Batch {
            socket,
            addresses: Box::new([address; BATCH]),
            parts: Box::new([part; BATCH]),
            headers: Box::new([header; BATCH]),
            n: 0,
        };
        for i in 0..BATCH {
            batch.addresses[i].sll_family = libc::AF_PACKET as u16;
            batch.addresses[i].sll_protocol = PROTOCOL;
            batch.addresses[i].sll_halen = 6;
            let header = &mut batch.headers[i].msg_hdr;
            header.msg_name = std::ptr::from_mut(&mut batch.addresses[i]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
            header.msg_iov = &mut batch.parts[i];
            header.msg_iovlen = 1;
        }
        Ok(batch)
    }

    /// Whether another frame fits.
    pub fn full(&self) -> bool {
        self.n == BATCH
    }

    /// Adds a frame; `frame` must stay where it is until [`Batch::flush`].
    pub fn push(&mut self, frame: &[u8], interface: u32) {
        self.addresses[self.n].sll_ifindex = interface as i32;
        self.parts[self.n] = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        self.n += 1;
    }

    /// Sends what was pushed. Returns how many the kernel refused, which are lost.
    pub fn flush(&mut self) -> u64 {
        let (mut done, mut refused) = (0, 0);
        while done < self.n {
            // SAFETY: headers done..n are filled and point to live memory.
            let sent = unsafe {
                libc::sendmmsg(
                    self.socket.as_raw_fd(),
                    &mut self.headers[done],
                    (self.n - done) as u32,
                    libc::MSG_DONTWAIT,
                )
            };
            if sent <= 0 {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                refused += 1;
                done += 1;
            } else {
                done += sent as usize;
            }
        }
        self.n = 0;
        refused
    }
}
