//! Where a target is, and how TLS is spoken with it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use unslow_client::{Endpoint, Target};

use crate::{Peer, Tls};

/// Where a target is, names resolved. `None` when there is no such name.
pub fn peer_of(target: &Target) -> Option<Peer> {
    match target.endpoints.first()? {
        Endpoint::Unix(path) => Some(Peer::Unix(path.into())),
        Endpoint::Tcp(host, port) => {
            let all: Vec<SocketAddr> = (host.as_str(), *port).to_socket_addrs().ok()?.collect();
            all.iter().find(|a| a.is_ipv4()).or(all.first()).map(|a| Peer::Tcp(*a))
        }
    }
}

/// How TLS is spoken with a target.
pub fn tls_of(target: &Target, config: Option<&Arc<rustls::ClientConfig>>, name: Option<&str>) -> Option<Tls> {
    let host = match (name, target.endpoints.first()?) {
        (Some(name), _) => name,
        (None, Endpoint::Tcp(host, _)) => host,
        (None, Endpoint::Unix(_)) => return None,
    };
    Some(Tls { config: config?.clone(), name: host.to_string().try_into().ok()? })
}
