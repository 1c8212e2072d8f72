//! The kernel's own figures for every TCP socket of this machine, by netlink's inet_diag: what `ss -tin` prints.
//!
//! On the server's machine they tell each client's distance (min_rtt), loss and closed windows without asking any
//! client. `struct tcp_info` only ever grows at its end, so fields are read at their offsets and a short one is
//! simply not there.

use std::collections::BTreeMap;
use std::net::IpAddr;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::constants::{AF_INET, AF_INET6, IPPROTO_TCP};
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, SocketId, StateFlags};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

/// One socket.
pub struct TcpSocket {
    pub listening: bool,
    pub local: (IpAddr, u16),
    pub peer: (IpAddr, u16),
    pub inode: u32,
    pub receive_queue: u32,
    pub send_queue: u32,
    pub min_rtt_us: Option<u32>,
    pub rtt_us: u32,
    pub retransmits: u32,
    pub segments_out: u32,
    /// Bytes on their way: segments without an answer, each of the largest size, but no more than wait for an answer.
    pub in_flight: u64,
    /// For how long anything waited to be sent or acknowledged, in us. `None` before Linux 4.10.
    pub busy_us: Option<u64>,
    /// Whether it was opened after the first of two looks; only the second one tells.
    pub begun: bool,
    pub peer_window: Option<u32>,
    /// How often the oldest segment without an answer, or a probe, was sent again.
    pub tries: u8,
    /// Since the peer last acknowledged anything, in ms.
    pub quiet_ms: u32,
    /// Connections that were dropped at a listening socket since it was opened; only [`listen_drops`] asks for it.
    pub drops: Option<u32>,
}

/// Every established or listening TCP socket in this network namespace.
pub fn all() -> std::io::Result<Vec<TcpSocket>> {
    let mut found = Vec::new();
    let states = StateFlags::ESTABLISHED | StateFlags::LISTEN;
    dump(AF_INET, states, ExtensionFlags::INFO, &mut found)?;
    // A kernel without IPv6 refuses the second question; the first one's answer stands.
    let _ = dump(AF_INET6, states, ExtensionFlags::INFO, &mut found);
    Ok(found)
}

/// Connections that the kernel has dropped at each listening socket since it was opened, by the socket's inode.
pub fn listen_drops() -> BTreeMap<u32, u32> {
    listening().iter().filter_map(|s| Some((s.inode, s.drops?))).collect()
}

/// The listening sockets, with what was dropped there.
pub fn listening() -> Vec<TcpSocket> {
    let mut found = Vec::new();
    for family in [AF_INET, AF_INET6] {
        // Kernels before 4.6 do not count them, and their shorter answer cannot be read: then they stay unseen.
        let _ = dump(family, StateFlags::LISTEN, ExtensionFlags::SKMEMINFO, &mut found);
    }
    found
}

fn dump(family: u8, states: StateFlags, extensions: ExtensionFlags, found: &mut Vec<TcpSocket>) -> std::io::Result<()> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = InetRequest {
        family,
        protocol: IPPROTO_TCP,
        extensions,
        states,
        socket_id: if family == AF_INET { SocketId::new_v4() } else { SocketId::new_v6() },
    };
    let mut message = NetlinkMessage::new(header, SockDiagMessage::InetRequest(request).into());
    message.finalize();
    let mut out = vec![0; message.buffer_len()];
    message.serialize(&mut out);
    socket.send(&out, 0)?;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let message = <NetlinkMessage<SockDiagMessage>>::deserialize(rest).map_err(std::io::Error::other)?;
            let length = (message.header.length as usize).next_multiple_of(4);
            match message.payload {
                NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(response)) => {
                    let h = &response.header;
                    let tcp_info = response.nlas.iter().find_map(|nla| match nla {
                        Nla::TcpInfo(bytes) => Some(bytes.as_slice()),
                        _ => None,
                    });
                    let byte = |offset: usize| tcp_info.and_then(|bytes| bytes.get(offset).copied()).unwrap_or(0);
                    let field = |offset: usize| {
                        let bytes = tcp_info?.get(offset..offset + 4)?;
                        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
                    };
                    let long = |offset: usize| {
                        let bytes = tcp_info?.get(offset..offset + 8)?;
                        Some(u64::from_ne_bytes(bytes.try_into().ok()?))
                    };
                    found.push(TcpSocket {
                        listening: h.state == 10, // TCP_LISTEN
                        local: (plain(h.socket_id.source_address), h.socket_id.source_port),
                        peer: (plain(h.socket_id.destination_address), h.socket_id.destination_port),
                        inode: h.inode,
                        receive_queue: h.recv_queue,
                        send_queue: h.send_queue,
                        // All ones until the first measurement.
                        min_rtt_us: field(148).filter(|us| *us != u32::MAX && *us != 0),
                        rtt_us: field(68).unwrap_or(0),
                        retransmits: field(100).unwrap_or(0),
                        segments_out: field(136).unwrap_or(0),
                        in_flight: (u64::from(field(24).unwrap_or(0)) * u64::from(field(16).unwrap_or(0)))
                            .min(h.send_queue.into()),
                        busy_us: long(168),
                        begun: false,
                        peer_window: field(228),
                        // Since its last answer: segments sent again, and probes of a closed window or of a keepalive.
                        tries: byte(2).max(byte(3)),
                        quiet_ms: field(56).unwrap_or(0),
                        drops: response.nlas.iter().find_map(|nla| match nla {
                            Nla::MemInfo(memory) => Some(memory.drops),
                            _ => None,
                        }),
                    });
                }
                NetlinkPayload::Done(_) => return Ok(()),
                NetlinkPayload::Error(e) if e.code.is_some() => return Err(e.to_io()),
                _ => {}
            }
            rest = rest.get(length..).unwrap_or(&[]);
        }
    }
}

/// `::ffff:10.0.0.1` is 10.0.0.1.
fn plain(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_tells_how_long_a_socket_was_busy_and_what_is_on_its_way() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (_accepted, from) = listener.accept().unwrap();
        client.set_nonblocking(true).unwrap();
        let look = || {
            let all = all().expect("sock_diag answers");
            all.into_iter().find(|s| s.local == (from.ip(), from.port())).expect("the socket is there")
        };
        let idle = look();
        assert_eq!((idle.in_flight, idle.send_queue), (0, 0));
        // Nobody reads: what is written stays.
        while std::io::Write::write(&mut client, &[7; 65536]).is_ok() {}
        loop {
            let full = look();
            assert!(full.in_flight <= u64::from(full.send_queue) && full.send_queue > 0);
            // Before Linux 4.10 nothing is told.
            if full.busy_us.is_none_or(|us| us > idle.busy_us.unwrap_or(0) + 1000) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[test]
    fn mapped_ipv6_addresses_become_ipv4() {
        for (ip, expected) in
            [("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1"), ("::a00:1", "::a00:1")]
        {
            assert_eq!(plain(ip.parse().unwrap()), expected.parse::<IpAddr>().unwrap(), "{ip}");
        }
    }
}
