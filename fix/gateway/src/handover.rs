//! Hand-over: the listening sockets of a gateway go to the one that takes its place, over a unix socket.
//!
//! Whoever has these sockets gets every new client, and whoever gives them decides who is served. So both sides ask the
//! kernel for the other's user (`SO_PEERCRED`), and speak only to their own user or root. A socket or file that another
//! user has put at the path is refused before anything is said to it.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sockopt,
};
use unslow_reactor::{End, Listening, Waited};

/// What goes with the sockets, and what the heir says when it serves.
const SOCKETS: &[u8] = b"sockets\n";
const READY: &[u8] = b"ready\n";
/// More sockets than this are not handed over.
const SOCKETS_MAX: usize = 64;
/// The predecessor answers within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The heir is ready within this time, or the predecessor goes on.
const HEIR_PATIENCE: Duration = Duration::from_secs(60);
/// Between attempts to accept where that failed.
const RETRY: Duration = Duration::from_millis(100);

/// The sockets of a predecessor, and the connection on which to tell it that we serve.
pub struct Inheritance {
    pub sockets: Vec<OwnedFd>,
    predecessor: UnixStream,
}

impl Inheritance {
    /// From now on we serve: the predecessor lets its clients finish and ends.
    pub fn ready(mut self) {
        let _ = self.predecessor.write_all(READY); // it has ended by itself
    }
}

/// Why sockets are not taken or not given.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandoverError {
    /// Something else than a socket is at the path.
    #[error("the file exists and is not a socket; give --handover another path")]
    NotASocket,
    /// Another user has put a socket there.
    #[error(
        "the socket there is of user {uid}, not of ours ({}) or root; remove it, or give --handover a path in a \
         directory that only this user may write",
        own_uid()
    )]
    SocketOfAnother { uid: u32 },
    /// Another user's process listens there.
    #[error("a process of user {uid} listens there, not of ours ({}) or root: its sockets are not taken", own_uid())]
    ListenerOfAnother { uid: u32 },
    /// Another user's process came for ours.
    #[error("a process of user {uid} asked for the sockets, not of ours ({}) or root", own_uid())]
    AskedByAnother { uid: u32 },
    /// What listens there does not speak as a gateway does.
    #[error("what listens there is no gateway; give --handover another path")]
    NoGateway,
    /// The gateway there broke off.
    #[error("the gateway there did not give its sockets: {0}")]
    Broken(std::io::Error),
    /// The kernel does not say who is at the other end.
    #[error("whose process it is: {0}")]
    PeerUnknown(std::io::Error),
    /// No directory can be made beside the path.
    #[error("a directory beside it: {0}")]
    NoDirectory(std::io::Error),
    /// The path cannot be used.
    #[error(transparent)]
    Path(#[from] std::io::Error),
}

/// Whether a process may be given our sockets, or may give us its own.
fn may_hand_over(uid: u32) -> bool {
    may_hand_over_to(uid, own_uid())
}

fn may_hand_over_to(uid: u32, own: u32) -> bool {
    uid == own || uid == 0
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The user of the process at the other end; for a listener of the one that listens.
fn user_of(stream: &UnixStream) -> Result<u32, HandoverError> {
    sockopt::socket_peercred(stream).map(|peer| peer.uid.as_raw()).map_err(|e| HandoverError::PeerUnknown(e.into()))
}

/// Whether there is a socket at a path. What we may not use is an error.
fn has_socket(path: &Path) -> Result<bool, HandoverError> {
    let there = match std::fs::symlink_metadata(path) {
        Ok(there) => there,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        Err(e) => return Err(e.into()),
    };
    if !there.file_type().is_socket() {
        return Err(HandoverError::NotASocket);
    }
    if !may_hand_over(there.uid()) {
        return Err(HandoverError::SocketOfAnother { uid: there.uid() });
    }
    Ok(true)
}

/// The sockets of the gateway that offers them at `path`; none when there is none.
pub fn take_over(path: &str) -> Result<Option<Inheritance>, HandoverError> {
    if !has_socket(Path::new(path))? {
        return Ok(None);
    }
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        // Left behind by one that has ended.
        Err(e) if matches!(e.kind(), std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound) => {
            return Ok(None);
        }
        Err(e) => return Err(e.into()),
    };
    let uid = user_of(&stream)?;
    if !may_hand_over(uid) {
        return Err(HandoverError::ListenerOfAnother { uid });
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut word = [0u8; SOCKETS.len()];
    let got = rustix::net::recvmsg(&stream, &mut [IoSliceMut::new(&mut word)], &mut control, RecvFlags::CMSG_CLOEXEC);
    let mut sockets = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(more) = message {
            sockets.extend(more);
        }
    }
    match got {
        // It ends at this moment, or has nothing to give.
        Ok(got) if got.bytes == 0 || word == *SOCKETS && sockets.is_empty() => Ok(None),
        Ok(_) if word == *SOCKETS && sockets.iter().all(|fd| sockopt::socket_acceptconn(fd).unwrap_or(false)) => {
            Ok(Some(Inheritance { sockets, predecessor: stream }))
        }
        Ok(_) => Err(HandoverError::NoGateway),
        Err(e) => Err(HandoverError::Broken(e.into())),
    }
}

/// Where successors ask for our sockets.
pub struct Offer {
    listener: UnixListener,
}

impl Offer {
    /// Listens at `path`, in place of the predecessor that may do so. The socket is made where only this user can reach
    /// it, and comes to its place with its mode.
    pub fn open(path: &str) -> Result<Offer, HandoverError> {
        let path = Path::new(path);
        has_socket(path)?;
        let private = private_directory(path).map_err(HandoverError::NoDirectory)?;
        let made = private.join("s");
        let opened = UnixListener::bind(&made).and_then(|listener| {
            std::fs::set_permissions(&made, std::fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            std::fs::rename(&made, path)?;
            Ok(listener)
        });
        if opened.is_err() {
            let _ = std::fs::remove_file(&made);
        }
        let _ = std::fs::remove_dir(&private);
        Ok(Offer { listener: opened? })
    }

    /// Waits for a process that comes for the sockets; None at the end. Those of other users are sent away, and the
    /// reason is the error.
    pub fn visitor(&self, end: &End) -> Result<Option<UnixStream>, HandoverError> {
        let heir = loop {
            if end.wait(&self.listener, None) == Waited::Ended {
                return Ok(None);
            }
            match self.listener.accept() {
                Ok((heir, _)) => break heir,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {} // it has left again
                // Out of descriptors, and the heir is still there: some come back.
                Err(_) if end.sleep(RETRY) => return Ok(None),
                Err(_) => {}
            }
        };
        let uid = user_of(&heir)?;
        match may_hand_over(uid) {
            true => Ok(Some(heir)),
            false => Err(HandoverError::AskedByAnother { uid }),
        }
    }
}

/// A new directory beside `path` for this user alone. Its name is short: the address of a socket has 108 bytes.
fn private_directory(path: &Path) -> std::io::Result<PathBuf> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut last = std::io::Error::other("no name is free");
    for number in 0..16 {
        let directory = parent.join(format!(".{}-{number}", std::process::id()));
        match std::fs::DirBuilder::new().mode(0o700).create(&directory) {
            Ok(()) => return Ok(directory),
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// Gives the sockets to an heir. True when it serves: what it is not ready for stays ours.
pub fn give(heir: &mut UnixStream, sockets: &[Arc<Listening>]) -> bool {
    let _ = heir.set_nonblocking(false);
    let _ = heir.set_read_timeout(Some(HEIR_PATIENCE));
    let fds: Vec<_> = sockets.iter().map(|s| s.fd.as_fd()).collect();
    let mut space = vec![std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let given = fds.len() <= SOCKETS_MAX && control.push(SendAncillaryMessage::ScmRights(&fds));
    let sent = rustix::net::sendmsg(&*heir, &[IoSlice::new(SOCKETS)], &mut control, SendFlags::empty());
    let mut word = [0u8; READY.len()];
    given && sent.is_ok() && heir.read_exact(&mut word).is_ok() && word == *READY
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A directory of this test, and a path in it.
    fn place(name: &str) -> (PathBuf, String) {
        let directory = std::env::temp_dir().join(format!("unslow-handover-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = directory.join("socket").to_str().expect("a path in UTF-8").to_string();
        (directory, path)
    }

    fn listening() -> Vec<Arc<Listening>> {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        vec![Arc::new(Listening { fd: listener.into(), tls: None })]
    }

    #[test]
    fn only_the_same_user_and_root_are_trusted() {
        for (uid, own, trusted) in [(7, 7, true), (0, 7, true), (0, 0, true), (7, 0, false), (8, 7, false)] {
            assert_eq!(may_hand_over_to(uid, own), trusted, "{uid} by {own}");
        }
    }

    #[test]
    fn the_socket_is_for_its_user_alone_and_nothing_is_left_beside_it() {
        let (directory, path) = place("mode");
        for _ in 0..2 {
            // The second takes the place of the first.
            let _offer = Offer::open(&path).expect("it listens");
            let there = std::fs::symlink_metadata(&path).expect("it is there");
            assert!(there.file_type().is_socket());
            assert_eq!(there.permissions().mode() & 0o777, 0o600);
            assert_eq!(std::fs::read_dir(&directory).expect("a directory").count(), 1);
        }
        std::fs::remove_dir_all(directory).expect("it is there");
    }

    #[test]
    fn files_links_and_sockets_of_others_are_refused() {
        let (directory, path) = place("hostile");
        let refused = |expected: &str| {
            let taken = take_over(&path).map(|_| ());
            let offered = Offer::open(&path).map(|_| ());
            for why in [taken, offered].map(|r| r.expect_err("refused").to_string()) {
                assert!(why.contains(expected), "{why}");
            }
        };
        std::fs::write(&path, "x").expect("a file");
        refused("is not a socket");
        std::fs::remove_file(&path).expect("it is there");
        let elsewhere = directory.join("elsewhere");
        let listener = UnixListener::bind(&elsewhere).expect("it listens");
        std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
        refused("is not a socket");
        std::fs::remove_file(&path).expect("it is there");
        if own_uid() == 0 {
            std::fs::rename(&elsewhere, &path).expect("it is there");
            std::os::unix::fs::chown(&path, Some(65534), None).expect("root may");
            refused("of user 65534");
        }
        drop(listener);
        std::fs::remove_dir_all(directory).expect("it is there");
    }

    #[test]
    fn what_is_no_gateway_is_refused_and_what_has_ended_is_passed_over() {
        let (directory, path) = place("stranger");
        assert!(take_over(&path).expect("nothing is there").is_none());
        let listener = UnixListener::bind(&path).expect("it listens");
        let stranger = std::thread::spawn(move || {
            let (mut visitor, _) = listener.accept().expect("a visitor");
            visitor.write_all(b"HTTP/1.1 400 Bad Request\r\n").expect("it listens");
        });
        let why = take_over(&path).map(|_| ()).expect_err("no gateway");
        assert!(matches!(why, HandoverError::NoGateway), "{why}");
        stranger.join().expect("it does not panic");
        assert!(take_over(&path).expect("nobody listens any more").is_none());
        std::fs::remove_dir_all(directory).expect("it is there");
    }

    #[test]
    fn an_offer_that_nobody_takes_waits_for_its_end() {
        let (directory, path) = place("alone");
        let offer = Offer::open(&path).expect("it listens");
        let end = End::new().expect("a descriptor");
        let theirs = end.clone();
        let waits = std::thread::spawn(move || offer.visitor(&theirs).map(|heir| heir.is_some()));
        end.end();
        assert!(matches!(waits.join().expect("it does not panic"), Ok(false)));
        std::fs::remove_dir_all(directory).expect("it is there");
    }

    #[test]
    fn sockets_go_to_an_heir_that_says_when_it_is_ready() {
        let (directory, path) = place("heir");
        let offer = Offer::open(&path).expect("it listens");
        let given = std::thread::spawn(move || {
            let end = End::new().expect("a descriptor");
            // One call waits until it comes.
            let mut heir = offer.visitor(&end).expect("our own user").expect("a visitor");
            give(&mut heir, &listening())
        });
        let inherited = take_over(&path).expect("a gateway").expect("its sockets");
        assert_eq!(inherited.sockets.len(), 1);
        inherited.ready();
        assert!(given.join().expect("it does not panic"));
        std::fs::remove_dir_all(directory).expect("it is there");
    }
}
