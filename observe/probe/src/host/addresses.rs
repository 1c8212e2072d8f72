//! Which addresses a server is reached at on this machine, and its clients' sockets there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, ToSocketAddrs};

use unslow_facts::{Gap, Lack, Node, PeerSockets};

use super::processes::Listener;
use crate::sockets::TcpSocket;

/// An address and a port that a server listens on; an unspecified address is all of them.
pub type Listened = (IpAddr, u16);

pub fn resolve(address: &str) -> Option<Vec<IpAddr>> {
    if address.starts_with("unix:") {
        return None;
    }
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    if let Ok(ip) = host.parse() {
        return Some(vec![ip]);
    }
    let all = (host, port.parse().ok()?).to_socket_addrs().ok()?;
    Some(all.map(|a| a.ip()).collect())
}

pub fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').and_then(|(_, p)| p.parse().ok()).unwrap_or(0)
}

pub fn local_ips() -> BTreeSet<IpAddr> {
    let mut found = BTreeSet::new();
    let mut list: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs fills `list` or returns non-zero; every pointer is read only before freeifaddrs, and each
    // sockaddr is cast by the family it names.
    unsafe {
        if libc::getifaddrs(&mut list) != 0 {
            return found;
        }
        let mut at = list;
        while !at.is_null() {
            let address = (*at).ifa_addr;
            if !address.is_null() {
                match i32::from((*address).sa_family) {
                    libc::AF_INET => {
                        let v4 = &*address.cast::<libc::sockaddr_in>();
                        found.insert(IpAddr::V4(u32::from_be(v4.sin_addr.s_addr).into()));
                    }
                    libc::AF_INET6 => {
                        let v6 = &*address.cast::<libc::sockaddr_in6>();
                        found.insert(IpAddr::V6(v6.sin6_addr.s6_addr.into()));
                    }
                    _ => {}
                }
            }
            at = (*at).ifa_next;
        }
        libc::freeifaddrs(list);
    }
    found
}

/// Where clients reach the process that serves `node`: all that it listens on, whichever address was asked. The cluster
/// bus is left out: its peers are no clients.
pub fn of_process(listeners: &[Listener], pid: u32, node: &Node) -> Vec<Listened> {
    let own: Vec<Listened> = listeners.iter().filter(|l| l.pid == pid).map(|l| (l.ip, l.port)).collect();
    without_bus(&own, node)
}

fn without_bus(own: &[Listened], node: &Node) -> Vec<Listened> {
    let asked = port_of(&node.address);
    let set = node.setting_number("cluster-port").map(|p| p as u16).filter(|p| *p != 0);
    let cluster = node.info().and_then(|i| i.get("cluster_enabled")) == Some("1");
    // 10000 above the port unless it is set.
    let is_bus = |port: u16| cluster && set.map_or_else(|| is_bus_of(own, port), |set| port == set);
    let mut left: Vec<Listened> = own.iter().copied().filter(|(_, port)| *port == asked || !is_bus(*port)).collect();
    left.sort_unstable();
    left.dedup();
    left
}

/// Whether one of these is 10000 below this port.
pub fn is_bus_of(own: &[Listened], port: u16) -> bool {
    port > 10_000 && own.iter().any(|(_, p)| *p == port - 10_000)
}

/// The same where the kernel does not say whose sockets are whose: by the server's settings, or else by the port, if
/// only the asked addresses have it.
pub fn of_settings(sockets: &[TcpSocket], node: &Node, asked: &[IpAddr]) -> Result<Vec<Listened>, Gap> {
    if let Some(listened) = by_settings(node) {
        return Ok(listened);
    }
    let port = port_of(&node.address);
    let at: Vec<Listened> = sockets.iter().filter(|s| s.listening && s.local.1 == port).map(|s| s.local).collect();
    if !at.is_empty() && at.iter().all(|(ip, _)| ip.is_unspecified() || asked.contains(ip)) {
        return Ok(at);
    }
    Err(Gap::new(Lack::Host, "which addresses the server listens on is not shown to this user", "run it as root"))
}

fn by_settings(node: &Node) -> Option<Vec<Listened>> {
    const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    node.setting("port")?;
    // 0 is none: a server may have TLS alone, or a socket file.
    let port = |name: &str| node.setting(name)?.parse::<u16>().ok().filter(|p| *p != 0);
    let ports: Vec<u16> = ["port", "tls-port"].into_iter().filter_map(port).collect();
    let mut ips = Vec::new();
    for word in node.setting("bind")?.split_whitespace() {
        // A minus is an address that may be absent; `*` and `::*` are all of a family.
        match word.trim_start_matches('-') {
            "*" | "::*" => ips.push(ANY),
            ip => ips.push(ip.parse().ok()?),
        }
    }
    if ips.is_empty() {
        ips.push(ANY);
    }
    ips.sort_unstable();
    ips.dedup();
    Some(ips.iter().flat_map(|ip| ports.iter().map(move |port| (*ip, *port))).collect())
}

/// The command that shows these sockets.
pub fn ss(listened: &[Listened]) -> String {
    let ports: BTreeSet<u16> = listened.iter().map(|(_, port)| *port).collect();
    let each: Vec<String> = ports.iter().map(|port| format!("sport = :{port}")).collect();
    format!("ss -tin {}", each.join(" or "))
}

/// Whether its peer answers nothing any more. One loss in a row happens; three tries and seconds without a word are no
/// loss. A peer whose window is closed answers probes, which ends the count.
fn is_unanswered(socket: &TcpSocket) -> bool {
    socket.tries >= 3 && socket.quiet_ms >= 3000
}

/// On how many of these sockets something waited, on average over the window. Those that were closed in it took their
/// time with them, so nothing is said where most of what waits is on sockets that were opened in it.
fn busy(group: &[&TcpSocket], window_s: f64) -> Option<f64> {
    let queued = |begun: bool| group.iter().filter(|s| s.begun == begun).map(|s| u64::from(s.send_queue)).sum::<u64>();
    let us = group.iter().map(|s| s.busy_us).sum::<Option<u64>>()?;
    (queued(true) <= queued(false)).then(|| us as f64 / 1e6 / window_s.max(0.001))
}

/// The socket table as a window of `window_s` seconds began, and as it ended, with what its counters grew by.
pub struct InWindow<'a> {
    pub before: &'a [TcpSocket],
    pub sockets: &'a [TcpSocket],
    pub window_s: f64,
}

/// The sockets of one server by peer address.
pub fn by_peer(seen: &InWindow<'_>, listened: &[Listened]) -> Vec<PeerSockets> {
    let InWindow { before, sockets, window_s } = *seen;
    let own = |s: &TcpSocket| {
        let here = |(ip, port): &Listened| *port == s.local.1 && (ip.is_unspecified() || *ip == s.local.0);
        !s.listening && listened.iter().any(here)
    };
    let mut peers: BTreeMap<IpAddr, Vec<&TcpSocket>> = BTreeMap::new();
    for socket in sockets.iter().filter(|s| own(s)) {
        peers.entry(socket.peer.0).or_default().push(socket);
    }
    let mut waited: BTreeMap<IpAddr, u64> = BTreeMap::new();
    for socket in before.iter().filter(|s| own(s)) {
        *waited.entry(socket.peer.0).or_default() += u64::from(socket.send_queue);
    }
    let median = |mut values: Vec<u32>| {
        values.sort_unstable();
        values.get(values.len() / 2).copied().unwrap_or(0)
    };
    let mut all: Vec<PeerSockets> = peers
        .into_iter()
        .map(|(ip, group)| {
            let send_queue_bytes: u64 = group.iter().map(|s| u64::from(s.send_queue)).sum();
            let minima: Vec<u32> = group.iter().filter_map(|s| s.min_rtt_us).collect();
            PeerSockets {
                host: ip.to_string(),
                sockets: group.len() as u32,
                min_rtt_us: minima.iter().copied().min().unwrap_or(0),
                min_rtt_us_p50: median(minima),
                rtt_us_p50: median(group.iter().map(|s| s.rtt_us).filter(|us| *us > 0).collect()),
                retransmits: group.iter().map(|s| u64::from(s.retransmits)).sum(),
                segments_out: group.iter().map(|s| u64::from(s.segments_out)).sum(),
                send_queue_bytes,
                standing_bytes: Some(send_queue_bytes.min(waited.get(&ip).copied().unwrap_or(0))),
                in_flight_bytes: Some(group.iter().map(|s| s.in_flight).sum()),
                busy: busy(&group, window_s),
                receive_queue_bytes: group.iter().map(|s| u64::from(s.receive_queue)).sum(),
                window_closed: group.iter().filter(|s| s.send_queue > 0 && s.peer_window == Some(0)).count() as u32,
                unanswered: group.iter().filter(|s| is_unanswered(s)).count() as u32,
                unanswered_ms: group
                    .iter()
                    .filter(|s| is_unanswered(s))
                    .map(|s| u64::from(s.quiet_ms))
                    .max()
                    .unwrap_or(0),
            }
        })
        .collect();
    all.sort_by_key(|p| std::cmp::Reverse(p.sockets));
    all.truncate(500);
    all
}

#[cfg(test)]
pub mod tests {
    use unslow_facts::{Sample, Seen};
    use unslow_topology::{Info, Role};

    use super::*;

    pub fn socket(local: &str, peer: &str) -> TcpSocket {
        TcpSocket {
            listening: false,
            local: at(local),
            peer: at(peer),
            inode: u32::from(at(local).1),
            receive_queue: 0,
            send_queue: 0,
            min_rtt_us: None,
            rtt_us: 0,
            retransmits: 0,
            segments_out: 0,
            in_flight: 0,
            busy_us: None,
            begun: false,
            peer_window: None,
            tries: 0,
            quiet_ms: 0,
            drops: None,
        }
    }

    #[test]
    fn server_sockets_are_grouped_by_peer_with_medians() {
        let client = |local: &str, peer: &str, min_rtt_us: Option<u32>, rtt_us: u32| TcpSocket {
            min_rtt_us,
            rtt_us,
            retransmits: 1,
            segments_out: 10,
            in_flight: 1448,
            busy_us: Some(500_000),
            ..socket(local, peer)
        };
        let sockets = [
            client("10.0.0.1:6379", "10.0.0.7:1000", Some(300), 900),
            client("10.0.0.1:6379", "10.0.0.7:1001", Some(100), 700),
            client("10.0.0.2:6379", "10.0.0.7:1002", Some(200), 800),
            // Without a measured round trip.
            TcpSocket { send_queue: 5, peer_window: Some(0), ..client("10.0.0.1:6379", "10.0.0.7:1003", None, 0) },
            // Its window is closed, but no data waits. One segment was lost a moment ago.
            TcpSocket { peer_window: Some(0), tries: 1, ..client("10.0.0.1:6379", "10.0.0.8:1000", Some(50), 60) },
            // Nothing was heard of it, whatever was sent again.
            TcpSocket { tries: 5, quiet_ms: 9000, ..client("10.0.0.1:6379", "10.0.0.8:1001", Some(50), 60) },
            // It answered a moment ago.
            TcpSocket { tries: 5, quiet_ms: 20, ..client("10.0.0.1:6379", "10.0.0.8:1002", Some(50), 60) },
            client("10.0.0.1:6380", "10.0.0.7:1004", Some(1), 1),
            TcpSocket { listening: true, ..socket("0.0.0.0:6379", "0.0.0.0:0") },
        ];
        // Its queue was shorter as the window began; the other port is another server's.
        let before = [
            TcpSocket { send_queue: 3, ..client("10.0.0.1:6379", "10.0.0.7:1003", None, 0) },
            TcpSocket { send_queue: 9, ..client("10.0.0.1:6380", "10.0.0.7:1004", None, 0) },
        ];
        let seen = |before| InWindow { before, sockets: &sockets, window_s: 2.0 };
        let all = by_peer(&seen(&before), &[at("0.0.0.0:6379")]);
        let [near, far] = &all[..] else { panic!("{all:?}") };
        assert_eq!((near.host.as_str(), near.sockets, near.retransmits, near.segments_out), ("10.0.0.7", 4, 4, 40));
        assert_eq!((near.min_rtt_us, near.min_rtt_us_p50, near.rtt_us_p50), (100, 200, 800));
        assert_eq!((near.send_queue_bytes, near.window_closed, far.window_closed), (5, 1, 0));
        assert_eq!((near.standing_bytes, far.standing_bytes), (Some(3), Some(0)));
        assert_eq!((near.in_flight_bytes, near.busy), (Some(4 * 1448), Some(1.0)));
        let time = |change: &dyn Fn(&mut TcpSocket)| {
            let mut waiting = TcpSocket { send_queue: 5, ..client("10.0.0.1:6379", "10.0.0.7:1000", None, 0) };
            change(&mut waiting);
            let longer = TcpSocket {
                send_queue: 4,
                busy_us: Some(1_500_000),
                ..client("10.0.0.1:6379", "10.0.0.7:1001", None, 0)
            };
            busy(&[&waiting, &longer], 2.0)
        };
        assert_eq!(time(&|_| ()), Some(1.0));
        assert_eq!(time(&|s| s.begun = true), None, "the time of connections that have closed was not counted");
        assert_eq!(time(&|s| s.busy_us = None), None, "an old kernel");
        assert_eq!((near.unanswered, far.unanswered, far.unanswered_ms), (0, 1, 9000));
        let one_address = by_peer(&seen(&[]), &[at("10.0.0.2:6379")]);
        assert_eq!(one_address.iter().map(|p| (p.host.as_str(), p.sockets)).collect::<Vec<_>>(), [("10.0.0.7", 1)]);
    }

    fn at(text: &str) -> Listened {
        let address: std::net::SocketAddr = text.parse().unwrap();
        (address.ip(), address.port())
    }

    fn node(info: &str, settings: &[(&str, &str)]) -> Node {
        let settings = settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Node {
            last: Some(Sample { at_ms: 0, info: Info::parse(info) }),
            config: Seen::yes(settings, "CONFIG GET", 0),
            ..Node::new("127.0.0.1:6379", Role::Master)
        }
    }

    #[test]
    fn clients_of_every_address_of_the_process_count() {
        let listener = |pid: u32, text: &str| Listener { pid, ip: at(text).0, port: at(text).1 };
        let listeners = [
            listener(7, "127.0.0.1:6379"),
            listener(7, "10.0.0.5:6379"),
            listener(7, "10.0.0.5:6380"), // its TLS port
            listener(7, "10.0.0.5:16379"),
            listener(8, "10.0.0.6:6379"),
        ];
        let listened = of_process(&listeners, 7, &node("cluster_enabled:1", &[]));
        assert_eq!(listened, ["10.0.0.5:6379", "10.0.0.5:6380", "127.0.0.1:6379"].map(at), "without the cluster bus");
        let sockets = [
            socket("127.0.0.1:6379", "127.0.0.1:1000"),
            socket("10.0.0.5:6379", "10.9.0.1:1000"),
            socket("10.0.0.5:6380", "10.9.0.2:1000"),
            socket("10.0.0.5:16379", "10.9.0.3:1000"),
            socket("10.0.0.6:6379", "10.9.0.4:1000"),
        ];
        let hosts: Vec<String> = by_peer(&InWindow { before: &[], sockets: &sockets, window_s: 2.0 }, &listened)
            .into_iter()
            .map(|p| p.host)
            .collect();
        assert_eq!(hosts, ["10.9.0.1", "10.9.0.2", "127.0.0.1"]);
        assert_eq!(ss(&listened), "ss -tin sport = :6379 or sport = :6380");
    }

    #[test]
    fn a_port_is_the_cluster_bus_only_where_there_is_one() {
        let own = ["10.0.0.5:6379", "10.0.0.5:16379", "10.0.0.5:7777"].map(at);
        let ports = |info: &str, settings: &[(&str, &str)]| -> Vec<u16> {
            without_bus(&own, &node(info, settings)).into_iter().map(|(_, port)| port).collect()
        };
        assert_eq!(ports("cluster_enabled:0", &[]), [6379, 7777, 16379]);
        assert_eq!(ports("cluster_enabled:1", &[]), [6379, 7777]);
        assert_eq!(ports("cluster_enabled:1", &[("cluster-port", "0")]), [6379, 7777]);
        assert_eq!(ports("cluster_enabled:1", &[("cluster-port", "7777")]), [6379, 16379]);
    }

    #[test]
    fn without_the_owner_of_sockets_the_settings_say_where_the_server_listens() {
        let asked = [at("127.0.0.1:6379").0];
        let of = |settings: &[(&str, &str)], sockets: &[TcpSocket]| of_settings(sockets, &node("", settings), &asked);
        let both = [("bind", "127.0.0.1 -10.0.0.5"), ("port", "6379"), ("tls-port", "0")];
        assert_eq!(of(&both, &[]).unwrap(), ["10.0.0.5:6379", "127.0.0.1:6379"].map(at));
        let any = [("bind", "* -::*"), ("port", "0"), ("tls-port", "6380")];
        assert_eq!(of(&any, &[]).unwrap(), [at("0.0.0.0:6380")]);
        assert_eq!(of(&[("bind", ""), ("port", "0")], &[]).unwrap(), []);
        // CONFIG is denied: another address with that port may be the same server's, or not.
        let listening = |text: &str| TcpSocket { listening: true, ..socket(text, "0.0.0.0:0") };
        assert_eq!(of(&[], &[listening("127.0.0.1:6379")]).unwrap(), [at("127.0.0.1:6379")]);
        let gap = of(&[], &[listening("127.0.0.1:6379"), listening("10.0.0.5:6379")]).unwrap_err();
        assert_eq!(gap.lack, Lack::Host);
        assert!(of(&[], &[]).is_err());
    }

    #[test]
    fn literal_addresses_are_parsed_without_a_lookup() {
        for (address, ip) in [("10.0.0.1:6379", "10.0.0.1"), ("[::1]:6379", "::1"), ("::1:6379", "::1")] {
            assert_eq!(resolve(address), Some(vec![ip.parse().unwrap()]), "{address}");
            assert_eq!(port_of(address), 6379);
        }
        assert_eq!(
            (resolve("unix:/run/redis.sock"), resolve("no port"), port_of("unix:/run/redis.sock")),
            (None, None, 0)
        );
    }
}
