//! A network card's queue keeps quiet while a process polls it: IRQ suspension, as Linux 6.13 and newer have it.
//!
//! Interrupts of a queue that is polled disturb whom they are to serve. With `irq-suspend-timeout` the kernel raises
//! none for as long as polling finds packets; the other two settings say for how long it waits when polling pauses.
//! They are per queue (by NAPI id), take CAP_NET_ADMIN, and are put back as they were in the end.
//! Sources: Documentation/networking/napi.rst; Documentation/netlink/specs/netdev.yaml.

use std::io;
use std::num::NonZeroU32;

use netlink_sys::protocols::NETLINK_GENERIC;
use netlink_sys::{Socket, SocketAddr};

/// From the last poll that found something to the next interrupt, in ns: longer than a busy server takes for a batch.
const SUSPEND_NS: u32 = 20_000_000;
/// An interrupt comes so much later when polling found nothing, in ns,
const FLUSH_NS: u32 = 20_000;
/// that many times in a row.
const DEFER: u32 = 100;

const REQUEST: u16 = 1;
const ACK: u16 = 4;
const CONTROLLER: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const NAPI_GET: u8 = 11;
const NAPI_SET: u8 = 14;
const INTERFACE: u16 = 1;
const ID: u16 = 2;
const DEFER_HARD_IRQS: u16 = 5;
const GRO_FLUSH_TIMEOUT: u16 = 6;
const IRQ_SUSPEND_TIMEOUT: u16 = 7;
/// Lengths of `struct nlmsghdr` and of both headers.
const HEAD: usize = 16;
const HEADS: usize = 20;
const ERROR: u16 = 2;

/// Settings of one queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Queue {
    interface: u32,
    defer: u32,
    flush_ns: u32,
    suspend_ns: u32,
}

/// Queues that keep quiet, until it is dropped.
#[derive(Default)]
pub struct Suspended(Vec<(NonZeroU32, Queue)>);

impl Suspended {
    /// From now on this queue keeps quiet while it is polled. Returns its interface's name.
    pub fn add(&mut self, id: NonZeroU32) -> io::Result<String> {
        let mut kernel = Kernel::connect()?;
        let before = kernel.get(id)?;
        let quiet = Queue { defer: DEFER, flush_ns: FLUSH_NS, suspend_ns: SUSPEND_NS, ..before };
        kernel.set(id, quiet)?;
        // What a stack left behind that was killed is not put back.
        let loud = Queue { defer: 0, flush_ns: 0, suspend_ns: 0, ..before };
        self.0.push((id, if before == quiet { loud } else { before }));
        Ok(name_of(before.interface))
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        for (id, before) in self.0.drain(..) {
            // A queue that is gone needs nothing.
            let _ = Kernel::connect().and_then(|mut kernel| kernel.set(id, before));
        }
    }
}

/// Of an interface of this network namespace: /sys may show another one's.
fn name_of(interface: u32) -> String {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None);
    let name = socket.and_then(|socket| netdevice::index_to_name(socket, interface));
    name.unwrap_or_else(|_| format!("interface {interface}"))
}

/// The kernel's netlink family `netdev`.
struct Kernel {
    socket: Socket,
    family: u16,
}

impl Kernel {
    fn connect() -> io::Result<Kernel> {
        let mut socket = Socket::new(NETLINK_GENERIC)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        let mut kernel = Kernel { socket, family: CONTROLLER };
        let reply = kernel.ask(GET_FAMILY, &[attribute(FAMILY_NAME, b"netdev\0")])?;
        let found = attributes(&reply).find(|(kind, _)| *kind == FAMILY_ID);
        let id = found.and_then(|(_, bytes)| Some(u16::from_ne_bytes(*bytes.first_chunk()?)));
        kernel.family = id.ok_or_else(unsupported)?;
        Ok(kernel)
    }

    fn get(&mut self, id: NonZeroU32) -> io::Result<Queue> {
        let reply = self.ask(NAPI_GET, &[attribute(ID, &id.get().to_ne_bytes())])?;
        Queue::of(&reply).ok_or_else(unsupported)
    }

    fn set(&mut self, id: NonZeroU32, queue: Queue) -> io::Result<()> {
        let numbers = [
            (ID, id.get()),
            (DEFER_HARD_IRQS, queue.defer),
            (GRO_FLUSH_TIMEOUT, queue.flush_ns),
            (IRQ_SUSPEND_TIMEOUT, queue.suspend_ns),
        ];
        self.ask(NAPI_SET, &numbers.map(|(kind, n)| attribute(kind, &n.to_ne_bytes()))).map(drop)
    }

    /// The attributes of the answer; none where it is only that it was done.
    fn ask(&mut self, command: u8, attributes: &[Vec<u8>]) -> io::Result<Vec<u8>> {
        self.socket.send(&message(self.family, command, attributes), 0)?;
        let (reply, _) = self.socket.recv_from_full()?;
        answer(&reply)
    }
}

fn unsupported() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "this kernel has no IRQ suspension (Linux 6.13 or newer)")
}

impl Queue {
    fn of(reply: &[u8]) -> Option<Queue> {
        let number = |wanted| {
            let (_, bytes) = attributes(reply).find(|(kind, _)| *kind == wanted)?;
            // Numbers beyond 32 bits come as 64; none of these is meant to be one.
            match bytes.len() {
                8 => u32::try_from(u64::from_ne_bytes(*bytes.first_chunk()?)).ok(),
                _ => Some(u32::from_ne_bytes(*bytes.first_chunk()?)),
            }
        };
        Some(Queue {
            interface: number(INTERFACE)?,
            defer: number(DEFER_HARD_IRQS).unwrap_or(0),
            flush_ns: number(GRO_FLUSH_TIMEOUT).unwrap_or(0),
            // A kernel that does not tell has none.
            suspend_ns: number(IRQ_SUSPEND_TIMEOUT)?,
        })
    }
}

fn message(family: u16, command: u8, attributes: &[Vec<u8>]) -> Vec<u8> {
    let attributes = attributes.concat();
    let mut out = Vec::with_capacity(HEADS + attributes.len());
    out.extend_from_slice(&((HEADS + attributes.len()) as u32).to_ne_bytes());
    out.extend_from_slice(&family.to_ne_bytes());
    let is_question = command == GET_FAMILY && family == CONTROLLER || command == NAPI_GET;
    out.extend_from_slice(&(if is_question { REQUEST } else { REQUEST | ACK }).to_ne_bytes());
    out.extend_from_slice(&[0; 8]); // sequence number and sender
    out.extend_from_slice(&[command, 1, 0, 0]);
    out.extend_from_slice(&attributes);
    out
}

fn attribute(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let mut out = ((4 + bytes.len()) as u16).to_ne_bytes().to_vec();
    out.extend_from_slice(&kind.to_ne_bytes());
    out.extend_from_slice(bytes);
    out.resize(out.len().next_multiple_of(4), 0);
    out
}

/// What stands behind both headers, or the error.
fn answer(reply: &[u8]) -> io::Result<Vec<u8>> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "netlink: an answer that is none");
    let kind = reply.get(4..6).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]])).ok_or_else(broken)?;
    if kind == ERROR {
        let code = reply.get(HEAD..HEAD + 4).and_then(|bytes| bytes.first_chunk::<4>()).ok_or_else(broken)?;
        return match i32::from_ne_bytes(*code).checked_neg().unwrap_or(libc::EINVAL) {
            0 => Ok(Vec::new()),
            code => Err(io::Error::from_raw_os_error(code)),
        };
    }
    reply.get(HEADS..).map(<[u8]>::to_vec).ok_or_else(broken)
}

/// Kind and bytes of each.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let bytes = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        // The two highest bits say how the bytes are to be read.
        Some((u16::from_ne_bytes([head[2], head[3]]) & 0x3fff, bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_come_back_and_torn_ones_end_the_list() {
        let all = [attribute(2, b"netdev\0"), attribute(0x8007, &7u32.to_ne_bytes())].concat();
        assert_eq!(all.len(), 12 + 8);
        let read: Vec<_> = attributes(&all).collect();
        assert_eq!(read, [(2, &b"netdev\0"[..]), (7, &7u32.to_ne_bytes()[..])]);
        for cut in 0..all.len() {
            assert!(attributes(&all[..cut]).count() < 2, "{cut}");
        }
        assert_eq!(attributes(&[3, 0, 1, 0, 9, 9]).count(), 0, "shorter than its own head");
    }

    #[test]
    fn a_queue_is_read_with_numbers_of_either_width() {
        let reply = [
            attribute(INTERFACE, &3u32.to_ne_bytes()),
            attribute(GRO_FLUSH_TIMEOUT, &200_000u64.to_ne_bytes()),
            attribute(IRQ_SUSPEND_TIMEOUT, &0u32.to_ne_bytes()),
        ]
        .concat();
        let queue = Queue { interface: 3, defer: 0, flush_ns: 200_000, suspend_ns: 0 };
        assert_eq!(Queue::of(&reply), Some(queue));
        assert_eq!(Queue::of(&reply[..20]), None, "a kernel before 6.13");
    }

    #[test]
    fn the_kernels_refusal_is_an_error() {
        let reply =
            |code: i32| [&36u32.to_ne_bytes()[..], &ERROR.to_ne_bytes(), &[0; 10], &code.to_ne_bytes()].concat();
        assert_eq!(answer(&reply(0)).unwrap(), Vec::<u8>::new());
        assert_eq!(answer(&reply(-1)).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(answer(&[]).is_err() && answer(&[0; 17]).is_err());
    }

    #[test]
    fn a_queue_that_is_not_there_is_told() {
        let mut none = Suspended::default();
        assert!(none.add(NonZeroU32::MAX).is_err() && none.0.is_empty());
    }
}
