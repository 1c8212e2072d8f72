//! A host's network device: a veth pair, one end in the host's namespace, the other in the wire's.
//!
//! No ARP: every host has the same hardware address, and the wire sends by IP address. No checksum or segmentation
//! offload: what the wire carries is whole packets of at most the MTU, as on a real path.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, RawFd};

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

const MTU: u32 = 1500;
/// Locally administered; the wire's ends have another, so that their kernel takes no frame for its own.
const HOSTS: [u8; 6] = [0x02, 0x75, 0x6e, 0x73, 0x6c, 0x01];
const WIRE: [u8; 6] = [0x02, 0x75, 0x6e, 0x73, 0x6c, 0x02];

/// Makes `name`, number `near`, in the calling thread's namespace with its other end, number `interface`, in the
/// wire's. Both are down; [`up`] takes this one up once the other one is.
pub fn attach(name: &str, near: u32, address: Ipv4Addr, wire: RawFd, interface: u32) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    let mut peer = LinkMessage::default();
    peer.header.index = interface;
    peer.attributes = vec![
        LinkAttribute::IfName(format!("host{interface}")),
        LinkAttribute::NetNsFd(wire),
        LinkAttribute::Address(WIRE.to_vec()),
        LinkAttribute::Mtu(MTU),
    ];
    let mut link = LinkMessage::default();
    // The kernel heeds the other end's number only where this one has one too.
    link.header.index = near;
    (link.header.flags, link.header.change_mask) = (LinkFlags::Noarp, LinkFlags::Noarp);
    link.attributes = vec![
        LinkAttribute::IfName(name.into()),
        LinkAttribute::Address(HOSTS.to_vec()),
        LinkAttribute::Mtu(MTU),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ];
    netlink.ask(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL).map_err(|e| {
        if e.kind() == io::ErrorKind::Unsupported {
            io::Error::new(e.kind(), "this kernel has no veth devices (module veth)")
        } else {
            e
        }
    })?;
    no_offload(name)?;
    netlink.address(index(name)?, address, super::PREFIX)
}

/// Makes a plain veth pair as a kernel makes it, with ARP and offloads, between the calling thread's namespace and
/// another. Neither end has an address yet: see [`address`].
pub fn pair(name: &str, other: RawFd) -> io::Result<()> {
    let mut peer = LinkMessage::default();
    peer.attributes = vec![LinkAttribute::IfName(name.into()), LinkAttribute::NetNsFd(other)];
    let mut link = LinkMessage::default();
    link.attributes = vec![
        LinkAttribute::IfName(name.into()),
        LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]),
    ];
    Netlink::open()?.ask(RouteNetlinkMessage::NewLink(link), NLM_F_CREATE | NLM_F_EXCL)
}

/// Gives a device of the calling thread's namespace an address in a network of `prefix` bits, and brings it up.
pub fn address(name: &str, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
    let mut netlink = Netlink::open()?;
    netlink.address(index(name)?, address, prefix)?;
    netlink.up(index(name)?)
}

/// Brings the loopback of the calling thread's namespace up.
pub fn loopback_up() -> io::Result<()> {
    up(1)
}

/// Brings a device of the calling thread's namespace up.
///
/// A veth end that comes up before its other end has no carrier. The kernel gives it a queue once the carrier comes,
/// but does so from a work queue that waits for the lock of all network devices: until then packets vanish, uncounted.
pub fn up(interface: u32) -> io::Result<()> {
    Netlink::open()?.up(interface)
}

/// Takes a device away, and its other end with it.
pub fn remove(name: &str) -> io::Result<()> {
    let mut link = LinkMessage::default();
    link.header.index = index(name)?;
    Netlink::open()?.ask(RouteNetlinkMessage::DelLink(link), 0)
}

/// Speaks of the namespace of the thread that opened it.
pub struct Netlink(Socket);

impl Netlink {
    /// Opens it.
    pub fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink(socket))
    }

    /// Brings a device up. A veth end refuses before its pair is made, so this cannot be part of making it.
    pub fn up(&mut self, interface: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = interface;
        (link.header.flags, link.header.change_mask) = (LinkFlags::Up, LinkFlags::Up);
        self.ask(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Gives a device an address.
    fn address(&mut self, interface: u32, address: Ipv4Addr, prefix: u8) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = prefix;
        message.header.index = interface;
        message.attributes =
            vec![AddressAttribute::Local(IpAddr::V4(address)), AddressAttribute::Address(IpAddr::V4(address))];
        self.ask(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends one message and waits for its acknowledgement.
    fn ask(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut message = NetlinkMessage::from(message);
        message.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        message.finalize();
        let mut buffer = vec![0u8; message.buffer_len()];
        message.serialize(&mut buffer);
        self.0.send(&buffer, 0)?;
        let (answer, _) = self.0.recv_from_full()?;
        let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
        match answer.payload {
            NetlinkPayload::Error(e) if e.code.is_some() => Err(e.to_io()),
            _ => Ok(()),
        }
    }
}

fn index(name: &str) -> io::Result<u32> {
    let c = std::ffi::CString::new(name)?;
    // SAFETY: a NUL-terminated string.
    match unsafe { libc::if_nametoindex(c.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        n => Ok(n),
    }
}

/// Turns transmit checksum offload off; segmentation offload needs it and goes too.
fn no_offload(name: &str) -> io::Result<()> {
    #[repr(C)]
    struct Value {
        command: u32,
        data: u32,
    }
    const ETHTOOL_STXCSUM: u32 = 0x17;
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    let mut value = Value { command: ETHTOOL_STXCSUM, data: 0 };
    // SAFETY: an all-zero ifreq is valid; the name is shorter than its array; `value` outlives the call.
    let done = unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().take(15).zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = std::ptr::from_mut(&mut value).cast();
        libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
