//! Both addresses of a client's connection, in 16 bytes where they are IPv4.

use std::net::{SocketAddr, SocketAddrV4};

use unslow_reactor::Visitor;

/// Where a client's connection comes from, and the address of ours that it came to.
#[derive(Debug, Default)]
pub enum Ends {
    /// A unix socket.
    #[default]
    Unix,
    V4 {
        from: SocketAddrV4,
        to: SocketAddrV4,
    },
    Any(Box<(Option<SocketAddr>, Option<SocketAddr>)>),
}

impl Ends {
    pub fn of(visitor: &Visitor) -> Ends {
        match (visitor.from, visitor.to) {
            (None, None) => Ends::Unix,
            (Some(SocketAddr::V4(from)), Some(SocketAddr::V4(to))) => Ends::V4 { from, to },
            both => Ends::Any(Box::new(both)),
        }
    }

    pub fn from(&self) -> Option<SocketAddr> {
        match self {
            Ends::Unix => None,
            Ends::V4 { from, .. } => Some((*from).into()),
            Ends::Any(both) => both.0,
        }
    }

    pub fn to(&self) -> Option<SocketAddr> {
        match self {
            Ends::Unix => None,
            Ends::V4 { to, .. } => Some((*to).into()),
            Ends::Any(both) => both.1,
        }
    }
}
