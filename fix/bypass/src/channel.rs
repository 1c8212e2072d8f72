//! The unix socket between two processes: how they meet, and how descriptors pass.
//!
//! A server listens at `DIRECTORY/PORT.PID`. A client that has just connected to that port over TCP says hello there with
//! its memory, then offers the connection with the TCP socket itself: whoever holds the socket is its owner, so nobody can
//! offer what is somebody else's. The server compares the socket's own address with its accepted ones and takes it or not.
//! Both ask the kernel who is at the other end (SO_PEERCRED) and stay with TCP unless their rule allows it.
//!
//! Everything here goes through `syscall`: in a preloaded program the C library's names are hooks.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Goes up whenever the memory's layout or the meaning of a message changes: ends of different versions stay with TCP.
pub const VERSION: u32 = 2;
const MAGIC: u32 = 0x756e_736c;
/// Descriptors a message may carry.
const FDS: usize = 2;

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Client: `a` is its pid; with its memory and its board.
    Hello = 1,
    /// Server: come in; with its board.
    Welcome = 2,
    /// Server: no; `a` says why.
    Refused = 3,
    /// `a` is the number of a waiter; with its doorbell.
    Waiter = 4,
    /// Client: the connection of slot `a` with generation `b`; with its TCP socket.
    Offer = 5,
    /// Anybody: what is there?
    List = 6,
    /// Server: with a memfd of JSON lines.
    Listing = 7,
}

/// A message, all of it in one packet.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Message {
    magic: u32,
    version: u32,
    kind: u32,
    /// See [`Kind`].
    pub a: u32,
    /// See [`Kind`].
    pub b: u32,
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

impl Rule {
    /// Only ourselves and root.
    pub const fn none() -> Rule {
        Rule { any: false, uids: Vec::new(), gids: Vec::new() }
    }

    /// `uid:1000,gid:33`, or `any`. Ourselves and root are always allowed.
    pub fn parse(text: &str) -> Result<Rule, String> {
        let mut rule = Rule::default();
        for word in text.split(',').map(str::trim).filter(|w| !w.is_empty()) {
            let number = |n: &str| n.parse::<u32>().map_err(|_| format!("'{n}' in '{word}' is no number"));
            match word.split_once(':') {
                Some(("uid", n)) => rule.uids.push(number(n)?),
                Some(("gid", n)) => rule.gids.push(number(n)?),
                None if word == "any" => rule.any = true,
                _ => return Err(format!("'{word}': expected uid:NUMBER, gid:NUMBER or any")),
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

/// Where servers can be met: `UNSLOW_BYPASS_DIR`, else /run/unslow-bypass and /tmp/unslow-bypass.
/// As it was when first asked: nginx empties the environment of its workers.
pub fn directories() -> &'static [PathBuf] {
    static DIRECTORIES: OnceLock<Vec<PathBuf>> = OnceLock::new();
    DIRECTORIES.get_or_init(|| match std::env::var_os("UNSLOW_BYPASS_DIR").filter(|d| !d.is_empty()) {
        Some(dir) => vec![dir.into()],
        None => vec!["/run/unslow-bypass".into(), "/tmp/unslow-bypass".into()],
    })
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

/// A place to be met at: removed on drop by the process that made it.
#[derive(Debug)]
pub struct Rendezvous {
    /// Listens.
    pub fd: OwnedFd,
    path: PathBuf,
    pid: u32,
}

impl Rendezvous {
    /// Opens one for a port. What dead servers left behind is removed.
    pub fn open(port: u16) -> io::Result<Rendezvous> {
        let mut last = io::Error::other("no directory");
        for directory in directories() {
            match Rendezvous::open_in(directory, port) {
                Ok(rendezvous) => return Ok(rendezvous),
                Err(e) => last = io::Error::new(e.kind(), format!("{}: {e}", directory.display())),
            }
        }
        Err(last)
    }

    fn open_in(directory: &Path, port: u16) -> io::Result<Rendezvous> {
        use std::os::unix::fs::PermissionsExt;
        if std::fs::create_dir(directory).is_ok() {
            // As /tmp: everybody may put something in, nobody takes away what is another's.
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o1777))?;
        }
        for (path, _, pid) in servers_in(directory) {
            // SAFETY: signal 0 only asks.
            let dead =
                unsafe { libc::kill(pid, 0) } != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            // In containers pids mean something else: nobody listening is what counts.
            if dead && meet(&path).is_err() {
                let _ = std::fs::remove_file(&path);
            }
        }
        let pid = std::process::id();
        let path = directory.join(format!("{port}.{pid}"));
        let _ = std::fs::remove_file(&path);
        let fd = socket()?;
        let (address, len) = address(&path)?;
        // SAFETY: an address of `len` bytes.
        check(unsafe { libc::syscall(libc::SYS_bind, fd.as_raw_fd(), &raw const address, len) })?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        // SAFETY: no pointers.
        check(unsafe { libc::syscall(libc::SYS_listen, fd.as_raw_fd(), 128) })?;
        Ok(Rendezvous { fd, path, pid })
    }

    /// The next who wants in.
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

/// Sockets of servers in a directory, with port and pid.
pub fn servers_in(directory: &Path) -> Vec<(PathBuf, u16, i32)> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let parse = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.to_string();
        let (port, pid) = name.split_once('.')?;
        Some((path, port.parse().ok()?, pid.parse().ok()?))
    };
    entries.filter_map(|e| parse(e.ok()?.path())).collect()
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
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for the answer and its length.
    check(unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            &raw mut who,
            &raw mut len,
        )
    })?;
    Ok(who)
}

#[repr(C, align(8))]
struct Control([u8; 64]);

/// Says something, with descriptors.
pub fn say(to: &OwnedFd, kind: Kind, a: u32, b: u32, fds: &[RawFd]) -> io::Result<()> {
    let message = Message { magic: MAGIC, version: VERSION, kind: kind as u32, a, b };
    let mut part = libc::iovec { iov_base: (&raw const message).cast_mut().cast(), iov_len: size_of::<Message>() };
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
    let mut message = Message { magic: 0, version: 0, kind: 0, a: 0, b: 0 };
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
        n if n as usize != size_of::<Message>() || message.magic != MAGIC || fds.len() > FDS => Heard::Strange(0),
        _ if message.version != VERSION => Heard::Strange(message.version),
        _ => match kind_of(message.kind) {
            Some(kind) => Heard::Message(kind, message, fds),
            None => Heard::Strange(message.version),
        },
    }
}

fn kind_of(number: u32) -> Option<Kind> {
    use Kind::*;
    [Hello, Welcome, Refused, Waiter, Offer, List, Listing].into_iter().find(|k| *k as u32 == number)
}
