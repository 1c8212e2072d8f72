//! The unix socket between two processes: how they meet, and how descriptors pass.
//!
//! A server listens at `DIRECTORY/PORT.NETNS.PID`. A client that has just connected to that port, in that network
//! namespace, says hello there with its memory, then offers the connection by its addresses. Once the server has
//! accepted a connection with these addresses and waits for it, it asks (in the slot, see [`crate::pair::ASKED`]), and
//! the client shows its TCP socket: the proof that the connection is its own. Both sides ask the kernel for the user of
//! the other (SO_PEERCRED) and keep using TCP unless their rule allows that user.
//!
//! A client's TCP socket never lies in a queue that is not being read: a socket in an unread message stays open after
//! its program has closed it, and after the program has ended.
//!
//! Everything here goes through `syscall`: in a preloaded program the C library's names are hooks.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::endpoint::{Endpoint, Ends, read_option};

/// Goes up whenever the memory's layout or the meaning of a message changes so that an older end would be wrong: ends
/// of different versions stay with TCP.
pub const VERSION: u32 = 5;
const MAGIC: u32 = 0x756e_736c;
/// Descriptors a message may carry.
const FDS: usize = 2;

/// What a message means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Client: `a` is its pid; with its memory and its board.
    Hello = 1,
    /// Server: the client is accepted; with the server's board.
    Welcome = 2,
    /// Either side refuses the other; `a` is [`REFUSED_USER`] or [`REFUSED_VERSION`].
    Refused = 3,
    /// `a` is the number of a waiter; with its doorbell.
    Waiter = 4,
    /// Client: the connection in slot `a` with generation `b` may be carried; with its addresses, but without its
    /// socket.
    Offer = 5,
    /// `unslow bypass ls`: a request for the list of connections.
    List = 6,
    /// Server: `a` bytes of JSON lines in a memfd; `b` connections of this machine are over TCP.
    Listing = 7,
    /// Client: the TCP socket of slot `a` with generation `b`, after the server has asked for it.
    Proof = 8,
    /// A stack: asks for the listening sockets of port `a`; where `b` is [`TAKE_OVER`], also for those that another
    /// stack holds.
    Lend = 9,
    /// Server: what it lends. `b` is [`LENT`], with the listening socket, from which the stack accepts until the
    /// channel closes or it is told otherwise; [`NOT_NOW`], also when it takes back all it has lent; [`NEVER`]; or
    /// [`SUPERSEDED`].
    Listener = 10,
    /// A stack: a connection that it has accepted, with its socket. Its bytes come in slot `a` with generation `b`;
    /// where `b` is 0 they come over TCP.
    Accepted = 11,
}

/// The user of the other side is not allowed.
pub const REFUSED_USER: u32 = 1;
/// The other side speaks another version.
pub const REFUSED_VERSION: u32 = 2;

/// Nothing is lent now.
pub const NOT_NOW: u32 = 0;
/// This server lends nothing to this stack.
pub const NEVER: u32 = 1;
/// A listening socket comes with the message.
pub const LENT: u32 = 2;
/// Another stack holds the loan now. Older stacks read it as [`NOT_NOW`].
pub const SUPERSEDED: u32 = 3;

/// The stack also asks for what another stack holds. Older servers lend only what is free.
pub const TAKE_OVER: u32 = 1;

/// A message, all of it in one packet.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Message {
    magic: u32,
    version: u32,
    kind: u32,
    /// See [`Kind`].
    pub a: u32,
    /// See [`Kind`].
    pub b: u32,
    /// Of an offer; zeros in other messages.
    client: Address,
    server: Address,
}

/// An address without padding; IPv4 as ::ffff:1.2.3.4.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Address {
    ip: [u8; 16],
    port: [u8; 2],
}

impl Address {
    fn new(address: &SocketAddr) -> Address {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Address { ip: ip.octets(), port: address.port().to_be_bytes() }
    }

    fn get(&self) -> SocketAddr {
        SocketAddr::new(Ipv6Addr::from(self.ip).to_canonical(), u16::from_be_bytes(self.port))
    }
}

impl Message {
    fn new(kind: Kind, a: u32, b: u32) -> Message {
        Message { magic: MAGIC, version: VERSION, kind: kind as u32, a, b, ..Message::default() }
    }

    /// The addresses of an offered connection, as the client says.
    pub fn ends(&self) -> Ends {
        (self.client.get(), self.server.get())
    }
}

/// What a peer said.
#[derive(Debug)]
pub enum Heard {
    /// This.
    Message(Kind, Message, Vec<OwnedFd>),
    /// Nothing now.
    Nothing,
    /// It is gone.
    Gone,
    /// It speaks another version, or nonsense.
    Strange(u32),
}

/// Who may be at the other end.
#[derive(Clone, Debug, Default)]
pub struct Rule {
    any: bool,
    uids: Vec<u32>,
    gids: Vec<u32>,
}

/// Why a rule cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleError {
    /// Behind `uid:` or `gid:` stands no number.
    NoNumber { number: String, word: String },
    /// It is neither of them, nor `any`.
    Unknown(String),
}

impl std::fmt::Display for RuleError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RuleError::NoNumber { number, word } => write!(f, "invalid number '{number}' in '{word}'"),
            RuleError::Unknown(word) => write!(f, "'{word}': expected uid:NUMBER, gid:NUMBER or any"),
        }
    }
}

impl std::error::Error for RuleError {}

impl Rule {
    /// Only ourselves and root.
    pub const fn none() -> Rule {
        Rule { any: false, uids: Vec::new(), gids: Vec::new() }
    }

    /// `uid:1000,gid:33`, or `any`. Ourselves and root are always allowed.
    pub fn parse(text: &str) -> Result<Rule, RuleError> {
        let mut rule = Rule::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let number = |n: &str| {
                let wrong = || RuleError::NoNumber { number: n.into(), word: word.into() };
                n.parse::<u32>().map_err(|_| wrong())
            };
            match word.split_once(':') {
                Some(("uid", n)) => rule.uids.push(number(n)?),
                Some(("gid", n)) => rule.gids.push(number(n)?),
                None if word == "any" => rule.any = true,
                _ => return Err(RuleError::Unknown(word.into())),
            }
        }
        Ok(rule)
    }

    /// Whether it allows this peer.
    pub fn allows(&self, who: &libc::ucred) -> bool {
        // SAFETY: no arguments.
        let own = unsafe { libc::geteuid() };
        self.any || who.uid == 0 || who.uid == own || self.uids.contains(&who.uid) || self.gids.contains(&who.gid)
    }
}

/// Who chose a meeting directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nobody: whoever came first has made it, and it has to be root or this user.
    Default,
    /// The operator, who has looked at whose it is.
    Named,
}

/// As they were when first asked for: nginx empties the environment of its workers.
fn chosen() -> &'static (Choice, Vec<PathBuf>) {
    static CHOSEN: OnceLock<(Choice, Vec<PathBuf>)> = OnceLock::new();
    CHOSEN.get_or_init(|| match std::env::var_os("UNSLOW_BYPASS_DIR").filter(|d| !d.is_empty()) {
        Some(dir) => (Choice::Named, vec![dir.into()]),
        None => (Choice::Default, vec!["/run/unslow-bypass".into(), "/tmp/unslow-bypass".into()]),
    })
}

/// Where servers can be met: `UNSLOW_BYPASS_DIR`, else /run/unslow-bypass and /tmp/unslow-bypass.
pub fn directories() -> &'static [PathBuf] {
    &chosen().1
}

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = check(unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) })?;
    // SAFETY: just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

fn address(path: &Path) -> io::Result<(libc::sockaddr_un, usize)> {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::other(format!("{}: longer than a unix socket's address may be", path.display())));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    Ok((address, size_of::<libc::sa_family_t>() + bytes.len() + 1))
}

/// Makes a directory for servers to be met in, unless it is there. As in /tmp, every user may add a socket, and none
/// may remove another user's. One that is there is refused if a third user has it, who could remove every socket in it,
/// unless it was named on purpose.
pub fn make_directory(directory: &Path, choice: Choice) -> io::Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    match std::fs::create_dir(directory) {
        Ok(()) => return std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o1777)),
        Err(e) if !directory.is_dir() => return Err(e),
        Err(_) => {}
    }
    // Of a link to it and of itself.
    let owners = [std::fs::symlink_metadata(directory)?.uid(), std::fs::metadata(directory)?.uid()];
    // SAFETY: no arguments.
    let own = unsafe { libc::geteuid() };
    match owners.into_iter().find(|owner| choice == Choice::Default && !is_trusted(*owner, own)) {
        Some(stranger) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it is of user {stranger}, who can remove the sockets in it; use --dir to meet there all the same"),
        )),
        None => Ok(()),
    }
}

/// Whether a user may have the directory in which `own` is met.
fn is_trusted(owner: u32, own: u32) -> bool {
    owner == 0 || owner == own
}

/// Lets everybody connect to a socket of ours. By the socket's own inode: the directory may belong to another user, who
/// may have put anything else in its place by now.
fn open_to_all(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    let socket = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = socket.metadata()?;
    // SAFETY: no preconditions.
    if !found.file_type().is_socket() || found.uid() != unsafe { libc::geteuid() } {
        return Err(io::Error::other(format!("{}: exists and is not a socket of this user", path.display())));
    }
    let inode = format!("/proc/self/fd/{}", socket.as_raw_fd());
    std::fs::set_permissions(inode, std::fs::Permissions::from_mode(0o666))
}

/// A server's socket in a meeting directory: removed on drop by the process that made it.
#[derive(Debug)]
pub struct Rendezvous {
    /// Listens.
    pub fd: OwnedFd,
    /// Where it is.
    pub path: PathBuf,
    pid: u32,
}

impl Rendezvous {
    /// Opens one for an endpoint. What dead servers left behind is removed.
    pub fn open(endpoint: Endpoint) -> io::Result<Rendezvous> {
        let mut last = io::Error::other("no directory");
        for directory in directories() {
            match Rendezvous::open_in(directory, endpoint) {
                Ok(rendezvous) => return Ok(rendezvous),
                Err(e) => last = io::Error::new(e.kind(), format!("{}: {e}", directory.display())),
            }
        }
        Err(last)
    }

    fn open_in(directory: &Path, endpoint: Endpoint) -> io::Result<Rendezvous> {
        make_directory(directory, chosen().0)?;
        for ServerSocket { path, pid, .. } in servers_in(directory) {
            // SAFETY: signal 0 only asks whether the process exists.
            let dead =
                unsafe { libc::kill(pid, 0) } != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            // In another pid namespace the number may mean no process of ours: what counts is that nothing listens. A
            // server whose queue is full answers otherwise (EAGAIN).
            if dead && meet(&path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused) {
                let _ = std::fs::remove_file(&path);
            }
        }
        let pid = std::process::id();
        let path = directory.join(format!("{}.{}.{pid}", endpoint.port, endpoint.netns));
        let _ = std::fs::remove_file(&path);
        let fd = socket()?;
        let (address, len) = address(&path)?;
        // SAFETY: an address of `len` bytes.
        check(unsafe { libc::syscall(libc::SYS_bind, fd.as_raw_fd(), &raw const address, len) })?;
        open_to_all(&path)?;
        // SAFETY: no pointers.
        check(unsafe { libc::syscall(libc::SYS_listen, fd.as_raw_fd(), 128) })?;
        Ok(Rendezvous { fd, path, pid })
    }

    /// The next visitor.
    pub fn accept(&self) -> Option<(OwnedFd, libc::ucred)> {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let null = std::ptr::null_mut::<u8>();
        // SAFETY: no address is asked for.
        let fd = unsafe { libc::syscall(libc::SYS_accept4, self.fd.as_raw_fd(), null, null, flags) };
        if fd < 0 {
            return None;
        }
        // SAFETY: just opened.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
        let who = credentials(&fd).ok()?;
        Some((fd, who))
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        if std::process::id() == self.pid {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The socket of a server in a meeting directory, as its name describes it.
#[derive(Clone, Debug)]
pub struct ServerSocket {
    /// Where it is.
    pub path: PathBuf,
    /// What the server listens at over TCP.
    pub endpoint: Endpoint,
    /// The server's process, in its own pid namespace.
    pub pid: i32,
}

impl ServerSocket {
    fn parse(path: PathBuf) -> Option<ServerSocket> {
        let mut words = path.file_name()?.to_str()?.split('.');
        let (port, netns, pid) = (words.next()?, words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let endpoint = Endpoint { port: port.parse().ok()?, netns: netns.parse().ok()? };
        let pid = pid.parse().ok()?;
        Some(ServerSocket { path, endpoint, pid })
    }
}

/// The servers that can be met in a directory, and those that died without removing their sockets.
pub fn servers_in(directory: &Path) -> Vec<ServerSocket> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.filter_map(|e| ServerSocket::parse(e.ok()?.path())).collect()
}

/// Connects to a server's socket.
pub fn meet(path: &Path) -> io::Result<(OwnedFd, libc::ucred)> {
    let fd = socket()?;
    let (address, len) = address(path)?;
    // SAFETY: an address of `len` bytes.
    check(unsafe { libc::syscall(libc::SYS_connect, fd.as_raw_fd(), &raw const address, len) })?;
    let who = credentials(&fd)?;
    Ok((fd, who))
}

fn credentials(fd: &OwnedFd) -> io::Result<libc::ucred> {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    // SAFETY: the bytes of a `ucred`, three numbers.
    unsafe { read_option(fd.as_raw_fd(), libc::SO_PEERCRED, (&raw mut who).cast(), size_of::<libc::ucred>()) }?;
    Ok(who)
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Says something, with descriptors.
pub fn say(to: &OwnedFd, kind: Kind, a: u32, b: u32, fds: &[RawFd]) -> io::Result<()> {
    send(to, &Message::new(kind, a, b), fds)
}

/// Offers the connection with these addresses, in a slot and its generation.
pub fn offer(to: &OwnedFd, slot: u32, generation: u32, ends: &Ends) -> io::Result<()> {
    let (client, server) = (Address::new(&ends.0), Address::new(&ends.1));
    send(to, &Message { client, server, ..Message::new(Kind::Offer, slot, generation) }, &[])
}

/// Hands over a connection that was accepted for the server, and whose bytes come in a slot, or over TCP.
pub fn accepted(to: &OwnedFd, slot: Option<(u32, u32)>, socket: RawFd) -> io::Result<()> {
    let (slot, generation) = slot.unwrap_or((0, 0));
    say(to, Kind::Accepted, slot, generation, &[socket])
}

fn send(to: &OwnedFd, message: &Message, fds: &[RawFd]) -> io::Result<()> {
    let mut part =
        libc::iovec { iov_base: std::ptr::from_ref(message).cast_mut().cast(), iov_len: size_of::<Message>() };
    let mut control = Control([0; 64]);
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    if !fds.is_empty() {
        let bytes = size_of_val(fds) as u32;
        header.msg_control = control.0.as_mut_ptr().cast();
        // SAFETY: arithmetic only; two descriptors fit into 64 bytes, the pointers are into `control`.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let first = libc::CMSG_FIRSTHDR(&header);
            (*first).cmsg_level = libc::SOL_SOCKET;
            (*first).cmsg_type = libc::SCM_RIGHTS;
            (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), bytes as usize);
        }
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the header points to live parts.
    check(unsafe { libc::syscall(libc::SYS_sendmsg, to.as_raw_fd(), &raw const header, flags) })?;
    Ok(())
}

/// Hears the next message, if there is one.
pub fn hear(from: &OwnedFd) -> Heard {
    let mut message = Message::default();
    let mut part = libc::iovec { iov_base: (&raw mut message).cast(), iov_len: size_of::<Message>() };
    let mut control = Control([0; 64]);
    // SAFETY: all zeros is a valid header.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut part, 1);
    (header.msg_control, header.msg_controllen) = (control.0.as_mut_ptr().cast(), control.0.len() as _);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header points to room for what it says.
    let n = unsafe { libc::syscall(libc::SYS_recvmsg, from.as_raw_fd(), &raw mut header, flags) };
    let mut fds = Vec::new();
    // SAFETY: the kernel wrote the control messages; each SCM_RIGHTS holds descriptors that are now ours.
    unsafe {
        let mut at = if n >= 0 { libc::CMSG_FIRSTHDR(&header) } else { std::ptr::null_mut() };
        while !at.is_null() {
            if (*at).cmsg_level == libc::SOL_SOCKET && (*at).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for i in 0..bytes / size_of::<RawFd>() {
                    let fd = libc::CMSG_DATA(at).cast::<RawFd>().add(i).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            at = libc::CMSG_NXTHDR(&header, at);
        }
    }
    match n {
        0 => Heard::Gone,
        n if n < 0 => match io::Error::last_os_error().raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Heard::Nothing,
            _ => Heard::Gone,
        },
        // Messages of other versions have other sizes, but begin in the same way.
        _ if message.magic != MAGIC => Heard::Strange(0),
        _ if message.version != VERSION => Heard::Strange(message.version),
        n if n as usize != size_of::<Message>() || fds.len() > FDS => Heard::Strange(0),
        _ => match kind_of(message.kind) {
            Some(kind) => Heard::Message(kind, message, fds),
            None => Heard::Strange(message.version),
        },
    }
}

fn kind_of(number: u32) -> Option<Kind> {
    use Kind::*;
    [Hello, Welcome, Refused, Waiter, Offer, List, Listing, Proof, Lend, Listener, Accepted]
        .into_iter()
        .find(|k| *k as u32 == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        let mut fds = [0; 2];
        // SAFETY: room for two descriptors.
        assert_eq!(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0, fds.as_mut_ptr()) }, 0);
        // SAFETY: just opened, and owned by nothing else.
        let [a, b] = fds.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        (a, b)
    }

    #[test]
    fn an_offer_names_the_addresses_and_carries_no_descriptor() {
        let (to, from) = pair();
        for (client, server) in [("127.0.0.1:40000", "127.0.0.1:6379"), ("[::1]:40000", "[::1]:6379")] {
            let ends = (client.parse().unwrap(), server.parse().unwrap());
            offer(&to, 7, 9, &ends).unwrap();
            let Heard::Message(Kind::Offer, message, fds) = hear(&from) else { panic!("no offer") };
            assert_eq!((message.a, message.b, message.ends(), fds.len()), (7, 9, ends, 0));
        }
    }

    #[test]
    fn another_version_is_told_from_nonsense() {
        let (to, from) = pair();
        let say_bytes = |bytes: &[u8]| {
            // SAFETY: live bytes and their count.
            let n = unsafe { libc::send(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
            assert_eq!(n, bytes.len() as isize);
        };
        // The five words of a message of version 2.
        let old: Vec<u8> = [MAGIC, 2, Kind::Hello as u32, 0, 0].iter().flat_map(|w| w.to_ne_bytes()).collect();
        say_bytes(&old);
        assert!(matches!(hear(&from), Heard::Strange(2)));
        say_bytes(b"nonsense");
        assert!(matches!(hear(&from), Heard::Strange(0)));
    }

    #[test]
    fn a_strangers_directory_is_refused_unless_it_is_named() {
        assert!(is_trusted(0, 1000) && is_trusted(1000, 1000) && !is_trusted(1001, 1000) && !is_trusted(1000, 0));
        let directory = std::env::temp_dir().join(format!("unslow-channel-{}", std::process::id()));
        make_directory(&directory, Choice::Default).unwrap();
        make_directory(&directory, Choice::Default).expect("our own that is there already");
        // Only root can give it to somebody else.
        if std::os::unix::fs::chown(&directory, Some(65534), None).is_ok() {
            let refused = make_directory(&directory, Choice::Default).unwrap_err();
            assert!(refused.to_string().contains("of user 65534"), "{refused}");
            make_directory(&directory, Choice::Named).expect("it is named");
            // Behind a link of our own, too.
            let link = directory.with_extension("link");
            std::os::unix::fs::symlink(&directory, &link).unwrap();
            let refused = make_directory(&link, Choice::Default).unwrap_err();
            assert!(refused.to_string().contains("of user 65534"), "{refused}");
            std::fs::remove_file(link).unwrap();
        }
        std::fs::remove_dir(directory).unwrap();
    }

    #[test]
    fn the_name_of_a_servers_socket_says_where_it_listens() {
        let parse = |name: &str| ServerSocket::parse(PathBuf::from("/run/unslow-bypass").join(name));
        let socket = parse("6379.4026.12").unwrap();
        assert_eq!((socket.endpoint, socket.pid), (Endpoint { port: 6379, netns: 4026 }, 12));
        // The last is a name of version 2.
        for name in ["6379", "6379.x.12", "6379.1.2.3", "6379.12"] {
            assert!(parse(name).is_none(), "{name}");
        }
    }
}
