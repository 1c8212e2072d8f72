//! The accept queues of listening sockets between two samples.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use unslow_facts::AcceptQueue;

use super::addresses::Listened;
use crate::sockets::TcpSocket;

/// The first of the two: each listening socket by its inode.
pub struct First(BTreeMap<u32, Before>);

struct Before {
    waiting: u32,
    dropped: Option<u32>,
}

impl First {
    /// `drops` are those counted up to now, by inode.
    pub fn take(sockets: &[TcpSocket], drops: &BTreeMap<u32, u32>) -> First {
        let before = |s: &TcpSocket| Before { waiting: s.receive_queue, dropped: drops.get(&s.inode).copied() };
        First(sockets.iter().filter(|s| s.listening).map(|s| (s.inode, before(s))).collect())
    }

    /// The queues at these addresses, and what happened to them since.
    pub fn second(&self, sockets: &[TcpSocket], drops: &BTreeMap<u32, u32>, listened: &[Listened]) -> Vec<AcceptQueue> {
        let own = sockets.iter().filter(|s| s.listening && listened.contains(&s.local));
        own.map(|socket| {
            let before = self.0.get(&socket.inode);
            // A socket that was opened in the window began with none.
            let then = before.map_or(Some(0), |b| b.dropped);
            let now = drops.get(&socket.inode).copied();
            AcceptQueue {
                address: SocketAddr::from(socket.local).to_string(),
                waiting: before.map_or(0, |b| b.waiting).max(socket.receive_queue),
                // The kernel shows the limit of a listening socket where others have their send queue.
                limit: socket.send_queue,
                dropped: now.zip(then).map(|(now, then)| u64::from(now.saturating_sub(then))),
            }
        })
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::addresses::tests::socket;
    use super::*;

    fn listening(at: &str, waiting: u32, limit: u32) -> TcpSocket {
        TcpSocket { listening: true, receive_queue: waiting, send_queue: limit, ..socket(at, "0.0.0.0:0") }
    }

    #[test]
    fn drops_are_those_of_the_window_and_of_the_servers_own_sockets() {
        // The helper numbers sockets by their ports.
        let before = [listening("0.0.0.0:6379", 7, 511), listening("0.0.0.0:6380", 0, 128)];
        let after = [listening("0.0.0.0:6379", 2, 511), listening("0.0.0.0:6380", 129, 128)];
        let first = First::take(&before, &BTreeMap::from([(6379, 100), (6380, 40)]));
        let drops = BTreeMap::from([(6379, 100), (6380, 65)]);
        let any = |port: u16| (std::net::IpAddr::from([0, 0, 0, 0]), port);
        let all = first.second(&after, &drops, &[any(6379)]);
        let expected = AcceptQueue { address: "0.0.0.0:6379".into(), waiting: 7, limit: 511, dropped: Some(0) };
        assert_eq!(all, [expected]);
        let both = first.second(&after, &drops, &[any(6379), any(6380)]);
        assert_eq!((both[1].waiting, both[1].limit, both[1].dropped), (129, 128, Some(25)));
        // A kernel that does not count them by socket, and a socket that is new.
        assert_eq!(first.second(&after, &BTreeMap::new(), &[any(6380)])[0].dropped, None);
        let none = First::take(&[], &BTreeMap::new());
        assert_eq!(none.second(&after, &drops, &[any(6380)])[0].dropped, Some(65));
    }
}
