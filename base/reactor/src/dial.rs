//! Where a target is, and how TLS is spoken with it.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use unslow_client::{Endpoint, Target};

use crate::{Peer, Tls};

/// Everywhere an endpoint is: IPv4 first, else in the order of the system; nothing where there is no such name. Names
/// are resolved here, which may take its time.
pub fn peers_of(endpoint: &Endpoint) -> Vec<Peer> {
    match endpoint {
        Endpoint::Unix(path) => vec![Peer::Unix(path.into())],
        Endpoint::Tcp(host, port) => {
            let found = (host.as_str(), *port).to_socket_addrs();
            let mut all: Vec<SocketAddr> = found.map(Iterator::collect).unwrap_or_default();
            all.sort_by_key(|a| !a.is_ipv4());
            all.into_iter().map(Peer::Tcp).collect()
        }
    }
}

/// Where a target is: the first of [`peers_of`] its first endpoint.
pub fn peer_of(target: &Target) -> Option<Peer> {
    peers_of(target.endpoints.first()?).into_iter().next()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_a_number_and_a_name_each_have_their_places() {
        assert_eq!(peers_of(&Endpoint::Unix("/run/s".into())), [Peer::Unix("/run/s".into())]);
        let number = |text: &str| Peer::Tcp(text.parse().expect("an address"));
        assert_eq!(peers_of(&Endpoint::Tcp("::1".into(), 7)), [number("[::1]:7")]);
        assert_eq!(peers_of(&Endpoint::Tcp("no name at all".into(), 7)), []);
        // Whatever the system puts first: a server that listens on IPv4 alone is found at once.
        let local = peers_of(&Endpoint::Tcp("localhost".into(), 7));
        assert_eq!(local.first(), Some(&number("127.0.0.1:7")), "{local:?}");
    }
}
