//! The server's address where a message names it.

/// Words right before an address, each of one library or of the operating system's error beneath it.
const BEFORE: &[&str] = &[
    "serverEndpoint: ",    // StackExchange.Redis
    "UnableToConnect on ", // the same
    "ConnectTimeout on ",
    "SocketFailure on ",
    "SocketClosed on ",
    "InternalFailure on ",
    "AuthenticationFailure on ",
    "last-recv: 0) on ",      // SocketClosed (ReadEndOfStream, last-recv: 0) on
    "Unable to connect to [", // Lettuce
    "Unable to connect to ",
    "connection timed out: ", // Netty
    "Connection refused: ",
    "Timeout reading from ", // redis-py
    " connecting to ",       // Error 111 connecting to; Failed connecting to (Jedis)
    "dial tcp ",             // Go
    "->",                    // read tcp 10.0.0.9:51234->10.0.0.1:6379
    "ECONNREFUSED ",         // Node.js
    "ETIMEDOUT ",
    "ECONNRESET ",
    "for server ",
];
/// No name of a host is longer (RFC 1035).
const LONGEST: usize = 253;

/// The first address that stands behind one of these words.
pub fn find(text: &str) -> Option<String> {
    // Go's arrow joins two addresses; others stand before anything, a key as well.
    let fits = |at: usize, before: &str| before != "->" || text[..at].ends_with(|c: char| c.is_ascii_digit());
    BEFORE.iter().find_map(|before| {
        let places = text.match_indices(before).filter(|(at, _)| fits(*at, before));
        places.map(|(at, _)| at + before.len()).find_map(|from| read(&text[from..]))
    })
}

/// The address that `text` begins with, in any of the ways that libraries write one: `host:port`, `[::1]:6379`,
/// `Unspecified/host:port`, `host/10.0.0.1:6379`, `host/<unresolved>:6379`, `host:6379/Interactive`.
fn read(text: &str) -> Option<String> {
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | ')' | '"' | '\'');
    // A longer word is no address; without a bound a text of such words alone would be read to its end again and again.
    let word: String = text.chars().take(2 * LONGEST).take_while(|c| !ends(*c)).collect();
    let word = word.trim_start_matches('/').trim_end_matches(['.', ':']);
    let word = if word.starts_with('[') { word } else { word.trim_end_matches(']') };
    let (before, after) = word.split_once('/').unwrap_or((word, ""));
    if let Some(port) = after.strip_prefix("<unresolved>") {
        return checked(&format!("{before}{port}"));
    }
    checked(after).or_else(|| checked(before))
}

fn checked(word: &str) -> Option<String> {
    let (written, port) = word.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|p| *p > 0)?;
    let bare = written.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let letters = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let good = match bare {
        Some(ip) => ip.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !written.is_empty() && written.len() <= LONGEST && written.chars().all(letters),
    };
    good.then(|| format!("{written}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::find;

    #[test]
    fn addresses_as_libraries_write_them() {
        for (text, expected) in [
            ("serverEndpoint: localhost:6369, conn-sec: 1", "localhost:6369"),
            ("serverEndpoint: Unspecified/cache.example.com:6380, mgr: 1", "cache.example.com:6380"),
            ("UnableToConnect on cache.example.com:6380/Interactive, Initializing", "cache.example.com:6380"),
            ("SocketClosed (ReadEndOfStream, last-recv: 0) on 10.51.128.142:6379/Subscription", "10.51.128.142:6379"),
            ("Unable to connect to 10.0.0.1/<unresolved>:6379", "10.0.0.1:6379"),
            ("Unable to connect to [10.0.0.1/<unresolved>:6379]: x", "10.0.0.1:6379"),
            ("Unable to connect to [redis:6379]", "redis:6379"),
            ("connection timed out: /10.0.0.1:6379", "10.0.0.1:6379"),
            ("Connection refused: redis/10.0.0.1:6379", "10.0.0.1:6379"),
            ("Error 111 connecting to 127.0.0.1:6379. Connection refused.", "127.0.0.1:6379"),
            ("read tcp 10.0.0.9:51234->10.0.0.1:6379: i/o timeout", "10.0.0.1:6379"),
            ("dial tcp [::1]:6379: connect: connection refused", "[::1]:6379"),
            ("connect ECONNREFUSED 127.0.0.1:6379", "127.0.0.1:6379"),
        ] {
            assert_eq!(find(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "serverEndpoint: , mgr: 1",
            "dial tcp x:0: refused",
            "->",
            "connection timed out: <key>:1",
            "connecting to a:99999",
        ] {
            assert_eq!(find(text), None, "{text}");
        }
        // A key may look like an address.
        for text in ["read timed out: session:4711", "redis->session:4711", "connection refused: cart:17"] {
            assert_eq!(find(text), None, "{text}");
        }
    }
}
