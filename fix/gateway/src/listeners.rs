//! The sockets that clients connect to: one a thread, opened here or taken over from an earlier gateway.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use unslow_reactor::{Listening, Peer, bind};

use crate::config::Config;
use crate::error::ListenError;

type Tls<'a> = Option<&'a Arc<rustls::ServerConfig>>;

/// What a gateway listens on.
pub struct Listeners {
    /// With the ports that the system chose.
    pub addresses: Vec<String>,
    /// For each worker its own sockets.
    pub by_worker: Vec<Vec<Arc<Listening>>>,
}

impl Listeners {
    /// Opens what the settings name.
    pub fn open(config: &Config, tls: Tls<'_>) -> Result<Listeners, ListenError> {
        let mut all = Listeners::none(config.threads);
        for text in &config.listen {
            let fds = listen(text, config.threads)?;
            all.addresses.push(name_of(&fds[0], text));
            all.share_out(fds, tls);
        }
        Ok(all)
    }

    /// The sockets of an earlier gateway, which may have had another number of threads.
    pub fn inherited(fds: Vec<OwnedFd>, threads: usize, tls: Tls<'_>) -> Listeners {
        let mut all = Listeners::none(threads);
        for fd in &fds {
            if let Ok(address) = rustix::net::getsockname(fd).map(SocketAddr::try_from) {
                let address = address.map_or_else(|_| "unix".to_string(), |a| a.to_string());
                if !all.addresses.contains(&address) {
                    all.addresses.push(address);
                }
            }
        }
        all.share_out(fds, tls);
        all
    }

    fn none(threads: usize) -> Listeners {
        Listeners { addresses: Vec::new(), by_worker: vec![Vec::new(); threads] }
    }

    fn share_out(&mut self, fds: Vec<OwnedFd>, tls: Tls<'_>) {
        let threads = self.by_worker.len();
        for (i, fd) in fds.into_iter().enumerate() {
            self.by_worker[i % threads].push(Arc::new(Listening { fd, tls: tls.cloned() }));
        }
    }
}

fn listen(text: &str, threads: usize) -> Result<Vec<OwnedFd>, ListenError> {
    let peer = match text.strip_prefix("unix:") {
        Some(path) => Peer::Unix(path.into()),
        None => {
            let mut all = text.to_socket_addrs().map_err(|why| ListenError::Address { text: text.to_string(), why })?;
            Peer::Tcp(all.next().ok_or_else(|| ListenError::NoSuchHost(text.to_string()))?)
        }
    };
    sockets(&peer, threads).map_err(|why| match why.kind() {
        std::io::ErrorKind::AddrInUse => ListenError::InUse(text.to_string()),
        _ => ListenError::Refused { text: text.to_string(), why },
    })
}

/// One socket a thread.
pub fn sockets(peer: &Peer, threads: usize) -> std::io::Result<Vec<OwnedFd>> {
    // Alone first: with SO_REUSEPORT a second gateway would silently take half of the clients.
    let first = bind(peer, false)?;
    if threads == 1 {
        return Ok(vec![first]);
    }
    let Peer::Tcp(address) = peer else { return (0..threads).map(|_| first.try_clone()).collect() };
    let port = TcpListener::from(first.try_clone()?).local_addr()?.port();
    drop(first);
    let peer = Peer::Tcp(SocketAddr::new(address.ip(), port));
    (0..threads).map(|_| bind(&peer, true)).collect()
}

fn name_of(fd: &OwnedFd, text: &str) -> String {
    let address = rustix::net::getsockname(fd).ok().and_then(|a| SocketAddr::try_from(a).ok());
    address.map_or(text.to_string(), |a| a.to_string())
}
