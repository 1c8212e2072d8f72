//! What the kernel says of a TCP socket: its addresses, and the network namespace in which they mean something.
//!
//! 127.0.0.1:6379 is a different server in every network namespace, so addresses are never compared without it.
//!
//! Everything here goes through `syscall`: in a preloaded program the C library's names are hooks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Linux 5.14; the constant is missing from older libc crates.
const SO_NETNS_COOKIE: libc::c_int = 71;

/// Printed where the kernel has no such cookie: without it nothing can be carried safely.
pub const NO_NETNS: &str = "this kernel does not report the network namespace of a socket (Linux 5.14 does)";

/// The addresses of a connection: the client's, the server's.
pub type Ends = (SocketAddr, SocketAddr);

/// Where a server listens: a port of one network namespace. Containers that share a meeting directory may have
/// addresses, ports and even process ids in common, but never the cookie of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The TCP port.
    pub port: u16,
    /// The kernel's cookie of the network namespace; not used again before the next boot.
    pub netns: u64,
}

/// Reads an option of a socket at the level SOL_SOCKET.
///
/// # Safety
/// `value` points to `size` writable bytes, and whatever the kernel writes there is a valid value of their type.
pub(crate) unsafe fn read_option(socket: RawFd, name: libc::c_int, value: *mut u8, size: usize) -> io::Result<()> {
    let mut len = size as libc::socklen_t;
    // SAFETY: the caller's `size` bytes, and the kernel writes no more than `len` says.
    let done = unsafe { libc::syscall(libc::SYS_getsockopt, socket, libc::SOL_SOCKET, name, value, &raw mut len) };
    match done {
        0 if len as usize == size => Ok(()),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The cookie of the network namespace a socket is in; `None` before Linux 5.14.
pub fn netns(socket: RawFd) -> Option<u64> {
    let mut cookie = 0u64;
    // SAFETY: the eight bytes of a number.
    unsafe { read_option(socket, SO_NETNS_COOKIE, (&raw mut cookie).cast(), size_of::<u64>()) }.ok()?;
    Some(cookie)
}

/// The cookie of the namespace in which this thread opens its sockets.
pub fn own_netns() -> Option<u64> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: just opened, and owned by nothing else.
    let socket = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd as RawFd) })?;
    netns(socket.as_raw_fd())
}

/// Whether it is a TCP socket that listens, and whose `accept` never waits.
pub fn takes_at_once(socket: RawFd) -> bool {
    let mut listens: libc::c_int = 0;
    let (at, size) = ((&raw mut listens).cast(), size_of::<libc::c_int>());
    // SAFETY: the four bytes of a number.
    let known = unsafe { read_option(socket, libc::SO_ACCEPTCONN, at, size) };
    // SAFETY: no pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, socket, libc::F_GETFL, 0) } as libc::c_int;
    known.is_ok() && listens == 1 && is_tcp(socket) && flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// Whether it is a TCP socket. Sockets of UDP, SCTP and MPTCP can have the addresses of a TCP connection without being
/// it.
pub fn is_tcp(socket: RawFd) -> bool {
    let number = |name: libc::c_int| {
        let mut value: libc::c_int = 0;
        // SAFETY: the four bytes of a number.
        let known = unsafe { read_option(socket, name, (&raw mut value).cast(), size_of::<libc::c_int>()) };
        known.is_ok().then_some(value)
    };
    number(libc::SO_TYPE) == Some(libc::SOCK_STREAM) && number(libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

/// The address of one end of an internet socket, IPv4 as IPv4 however it came.
pub fn name(socket: RawFd, of_peer: bool) -> Option<SocketAddr> {
    let mut bytes = [0u8; 28];
    let mut len = bytes.len() as libc::socklen_t;
    let call = if of_peer { libc::SYS_getpeername } else { libc::SYS_getsockname };
    // SAFETY: room for 28 bytes and their count.
    if unsafe { libc::syscall(call, socket, bytes.as_mut_ptr(), &raw mut len) } != 0 {
        return None;
    }
    let port = u16::from_be_bytes([bytes[2], bytes[3]]);
    let ip: IpAddr = match i32::from(u16::from_ne_bytes([bytes[0], bytes[1]])) {
        libc::AF_INET => Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]).into(),
        libc::AF_INET6 => Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).ok()?).to_canonical(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The addresses of a connection, seen from the client's socket; `None` while it is not connected.
pub fn ends_of_client(socket: RawFd) -> Option<Ends> {
    Some((name(socket, false)?, name(socket, true)?))
}

/// The same, seen from the socket a server accepted.
pub fn ends_of_server(socket: RawFd) -> Option<Ends> {
    Some((name(socket, true)?, name(socket, false)?))
}

/// Both ends have one address, or are loopback: within one network namespace the peer is on this machine.
pub fn same_host((client, server): &Ends) -> bool {
    client.ip() == server.ip() || client.ip().is_loopback() && server.ip().is_loopback()
}

/// Whether these two sockets are the two ends of one TCP connection. Within a network namespace the kernel keeps at
/// most one connected TCP socket for a pair of addresses, so two sockets that are connected now, with each other's
/// addresses, are.
pub fn are_one_connection(client: RawFd, accepted: RawFd) -> bool {
    let namespace = netns(client);
    namespace.is_some()
        && namespace == netns(accepted)
        && is_tcp(client)
        && is_tcp(accepted)
        && ends_of_client(client).is_some_and(|ends| ends_of_server(accepted) == Some(ends))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    fn connection(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn only_the_clients_own_socket_is_the_other_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (client, accepted) = connection(&listener);
        let (other, _other_accepted) = connection(&listener);
        let is = |socket: RawFd| are_one_connection(socket, accepted.as_raw_fd());
        assert!(is(client.as_raw_fd()));
        assert!(!is(other.as_raw_fd()), "another connection to the same server");
        assert!(!is(listener.as_raw_fd()) && !is(accepted.as_raw_fd()));
        // The same addresses, but no TCP.
        let udp = UdpSocket::bind(client.local_addr().unwrap()).unwrap();
        udp.connect(client.peer_addr().unwrap()).unwrap();
        assert_eq!(ends_of_client(udp.as_raw_fd()), ends_of_client(client.as_raw_fd()));
        assert!(!is(udp.as_raw_fd()), "a UDP socket with the client's addresses");
        // After a reset the accepted socket has no peer any more.
        let linger = libc::linger { l_onoff: 1, l_linger: 0 };
        let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
        // SAFETY: a live `linger` of `len` bytes.
        let set = unsafe { libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
        assert_eq!(set, 0);
        drop(client);
        assert_eq!(ends_of_server(accepted.as_raw_fd()), None);
    }
}
