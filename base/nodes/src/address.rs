//! Where a node listens, as users and servers write it.
//!
//! Servers do not put brackets around IPv6: `MOVED 5 ::1:6381` is `::1`, port 6381, so the last colon always splits. An
//! IPv6 address without a port therefore reads as a shorter one with a port; no parser can tell the two apart.

use std::fmt;
use std::net::Ipv6Addr;

use crate::decimal;

/// NET_HOST_STR_LEN in Redis and Valkey is 256, with the final zero.
const HOST_LENGTH_MAX: usize = 255;
/// A server's host for a node whose hostname it does not know.
const UNKNOWN: &str = "?";

/// A host name or IP address, and a port.
///
/// The host stays as it was written: two spellings of one host are two addresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    host: String,
    port: u16,
}

/// The node that a server's text names; see [`Address::named`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The node listens here.
    Is(Address),
    /// The text does not say where the node listens. Look in the topology, or ask another node.
    Unknown,
}

impl Address {
    /// Reads `host:port`, `[v6]:port` and the `v6:port` that servers write.
    pub fn parse(text: &str) -> Option<Address> {
        let (host, port) = split(text)?;
        (!host.is_empty() && host != UNKNOWN).then(|| Address { host: host.to_string(), port })
    }

    /// Reads the address in a redirect from the node at `sender`.
    ///
    /// The host depends on the server's `cluster-preferred-endpoint-type` (`clusterNodePreferredEndpoint()`). It is
    /// empty for `unknown-endpoint`: use the host you are connected to. It is `?` for `hostname` if the node announces
    /// none.
    pub fn named(text: &str, sender: &Address) -> Named {
        match split(text) {
            None | Some((UNKNOWN, _)) => Named::Unknown,
            Some(("", port)) => Named::Is(Address { host: sender.host.clone(), port }),
            Some((host, port)) => Named::Is(Address { host: host.to_string(), port }),
        }
    }

    /// Without the brackets of IPv6, ready for the resolver.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Never 0.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Host, which may be empty or `?`, and port.
pub(crate) fn split(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = decimal::<u16>(port).filter(|port| *port != 0)?;
    if host.len() > HOST_LENGTH_MAX {
        return None;
    }
    let host = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.strip_suffix(']').filter(|inside| is_ipv6(inside))?,
        None => host,
    };
    (host.is_empty() || host == UNKNOWN || is_name(host) || is_ipv6(host)).then_some((host, port))
}

/// Letters, digits, dots, hyphens, and the underscores of container names: nothing that could end a line or hide in a
/// log.
fn is_name(host: &str) -> bool {
    !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_'))
}

fn is_ipv6(host: &str) -> bool {
    // Link-local addresses may name their interface: fe80::1%eth0.
    let (address, zone) = host.split_once('%').map_or((host, None), |(address, zone)| (address, Some(zone)));
    address.parse::<Ipv6Addr>().is_ok() && zone.is_none_or(is_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16) -> Address {
        Address { host: host.to_string(), port }
    }

    #[test]
    fn addresses_are_read_in_every_form_and_written_in_one() {
        for (text, host, port, written) in [
            ("127.0.0.1:6379", "127.0.0.1", 6379, "127.0.0.1:6379"),
            ("redis-0.redis.svc.local:1", "redis-0.redis.svc.local", 1, "redis-0.redis.svc.local:1"),
            ("compose_cache_1:65535", "compose_cache_1", 65535, "compose_cache_1:65535"),
            ("[::1]:6381", "::1", 6381, "[::1]:6381"),
            ("::1:6381", "::1", 6381, "[::1]:6381"),
            (":::6381", "::", 6381, "[::]:6381"),
            ("2001:db8::7:8:6381", "2001:db8::7:8", 6381, "[2001:db8::7:8]:6381"),
            ("::ffff:10.0.0.1:6379", "::ffff:10.0.0.1", 6379, "[::ffff:10.0.0.1]:6379"),
            ("fe80::1%eth0:6379", "fe80::1%eth0", 6379, "[fe80::1%eth0]:6379"),
            ("[fe80::1%eth0]:6379", "fe80::1%eth0", 6379, "[fe80::1%eth0]:6379"),
            // Without a port the last group looks like one.
            ("2001:db8::1:6379", "2001:db8::1", 6379, "[2001:db8::1]:6379"),
        ] {
            let read = Address::parse(text).unwrap_or_else(|| panic!("{text} is an address"));
            assert_eq!((read.host(), read.port()), (host, port), "{text}");
            assert_eq!(read.to_string(), written, "{text}");
            assert_eq!(Address::parse(written), Some(read), "{written} does not read back");
        }
    }

    #[test]
    fn hosts_of_up_to_255_bytes_are_accepted() {
        let longest = "h".repeat(HOST_LENGTH_MAX);
        assert_eq!(Address::parse(&format!("{longest}:1")), Some(address(&longest, 1)));
        assert_eq!(Address::parse(&format!("{longest}h:1")), None);
        assert_eq!(Address::parse(&format!("{}:1", "h".repeat(1 << 20))), None);
        assert_eq!(Address::parse(&format!("fe80::1%{}:1", "z".repeat(HOST_LENGTH_MAX))), None);
    }

    #[test]
    fn text_that_is_not_an_address_is_refused() {
        for text in [
            "",
            ":",
            "h",
            "h:",
            "6379",
            "127.0.0.1",
            // Ports.
            "h:0",
            "h:00",
            "h:01",
            "h:+1",
            "h:-1",
            "h: 1",
            "h:1 ",
            "h:0x1",
            "h:1.0",
            "h:65536",
            "h:99999999999999999999",
            "h:\u{665}", // a digit in Arabic
            // The tails of CLUSTER NODES.
            "h:1@10001",
            "h:1@10001,name",
            "h:1,name",
            // Hosts.
            ":1",
            "?:1",
            "??:1",
            " h:1",
            "h x:1",
            "h\t:1",
            "h\r\n:1",
            "h\0:1",
            "h/x:1",
            "user@h:1",
            "\u{fc}ber:1",
            "%eth0:1",
            // Not IPv6.
            "::1",
            "::6381",
            "[::1]",
            "[::1:1",
            "::1]:1",
            "[]:1",
            "[h]:1",
            "[127.0.0.1]:1",
            "[[::1]]:1",
            "[::1] :1",
            "[::1]x:1",
            "h:1:2",
            "1::2::3:4",
            "12345::1:2",
            "fe80::1%:1",
            "fe80::1%a%b:1",
            "fe80::1%eth 0:1",
        ] {
            assert_eq!(Address::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_redirect_without_a_host_means_the_sender_and_one_without_a_name_means_nothing() {
        let (v4, v6) = (address("10.0.0.1", 6379), address("::1", 6379));
        for (text, sender, expected) in [
            ("10.0.0.2:6380", &v4, Named::Is(address("10.0.0.2", 6380))),
            ("::2:6380", &v4, Named::Is(address("::2", 6380))),
            (":6380", &v4, Named::Is(address("10.0.0.1", 6380))),
            (":6380", &v6, Named::Is(address("::1", 6380))),
            ("?:6380", &v4, Named::Unknown),
            ("?", &v4, Named::Unknown),
            ("", &v4, Named::Unknown),
            (":", &v4, Named::Unknown),
            (":0", &v4, Named::Unknown),
            ("h", &v4, Named::Unknown),
            ("h:0", &v4, Named::Unknown),
            ("h:1 x", &v4, Named::Unknown),
            ("h:1@2", &v4, Named::Unknown),
        ] {
            assert_eq!(Address::named(text, sender), expected, "{text:?} from {sender}");
        }
    }
}
