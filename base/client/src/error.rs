//! What can go wrong between here and a server, told so that a person knows what to type next.

use std::fmt;

use unslow_nodes::{Address, Author, Kind, Named, Refusal, password_is_needless};

/// A failed connection or command.
#[derive(Clone, Debug)]
pub struct Error {
    /// What went wrong.
    pub kind: ErrorKind,
    /// The whole sentence: what was found, what was expected, what to do.
    pub message: String,
    /// The first word of an error reply, such as `NOPERM`.
    code: Option<String>,
    /// Where an error reply sends the command instead.
    redirect: Option<Redirect>,
    /// Whether a command was refused in Envoy's words; see [`in_envoys_words`].
    pub(crate) envoy: bool,
}

/// MOVED or ASK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Which of the two.
    pub way: Way,
    /// Below 16384.
    pub slot: u16,
    /// As the server wrote it.
    address: String,
}

/// How long a redirect holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The slot has another owner.
    Moved,
    /// For this command alone, after ASKING.
    Ask,
}

impl Redirect {
    fn of(text: &str) -> Option<Redirect> {
        let reply = format!("-{}", text.strip_prefix('-').unwrap_or(text));
        let (way, to) = match Refusal::parse(reply.as_bytes(), Author::Script)?.kind {
            Kind::Moved(to) => (Way::Moved, to),
            Kind::Ask(to) => (Way::Ask, to),
            _ => return None,
        };
        Some(Redirect { way, slot: to.slot, address: to.address.into() })
    }

    /// The node it names, as the one at `sender` means it: the host may be missing.
    pub fn to(&self, sender: &Address) -> Named {
        Address::named(&self.address, sender)
    }
}

/// The kinds a caller acts on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The address could not be read.
    BadUrl,
    /// The name did not resolve.
    Resolve,
    /// Nobody listens there, no route, or no answer to the connection attempt.
    Unreachable,
    /// The peer was reached, and nothing, or half of it, came in time.
    Timeout,
    /// The peer closed the connection.
    Closed,
    /// Something listens, but not a Redis or Valkey server.
    NotRedis,
    /// TLS failed, or one side spoke it and the other did not.
    Tls,
    /// A password is wanted.
    AuthRequired,
    /// The password or user was refused.
    WrongPassword,
    /// AUTH was sent to a server that has no password.
    NeedlessPassword,
    /// This user may not run this command (NOPERM), or the service has removed it.
    Denied,
    /// The server has no such command or argument; mostly an older version.
    Unknown,
    /// The server is at `maxclients`.
    MaxClients,
    /// The server is in protected mode: it takes connections from its own machine only, and closed this one.
    Protected,
    /// The reply is larger than a question of ours can have; the connection is closed.
    TooLarge,
    /// The server reads its data set and answers nothing else yet.
    Loading,
    /// Any other error reply.
    Reply,
    /// The command is not on the read-only list; a defect in unslow.
    NotAllowed,
}

impl Error {
    /// A new error.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), code: None, redirect: None, envoy: false }
    }

    /// The code word an error reply began with: `ERR`, `NOPERM`, `NOREPLICAS`. `None` where there was no error reply,
    /// or where it began with something else (proxies answer in plain sentences).
    ///
    /// Only capitals, digits and `_`, so that it never repeats what was sent.
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// Where a cluster node sends the command instead of running it.
    pub fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_ref()
    }

    /// Another sentence for the same error reply.
    pub(crate) fn told(self, message: String) -> Error {
        Error { message, ..self }
    }

    /// Whether the connection is of no more use.
    pub fn is_fatal(&self) -> bool {
        use ErrorKind::*;
        matches!(
            self.kind,
            Resolve | Unreachable | Timeout | Closed | NotRedis | Tls | MaxClients | Protected | TooLarge
        )
    }

    /// Sorts an error reply by its code word.
    pub(crate) fn reply(text: &str, command: &str) -> Error {
        let lower = text.to_ascii_lowercase();
        let kind = if text.starts_with("NOPERM") || lower.contains("this user has no permissions") {
            ErrorKind::Denied
        } else if text.starts_with("NOAUTH") || text.starts_with("-NOAUTH") {
            ErrorKind::AuthRequired
        } else if text.starts_with("WRONGPASS") || lower.contains("invalid password") {
            ErrorKind::WrongPassword
        } else if command == "AUTH" && password_is_needless(text.as_bytes()) {
            ErrorKind::NeedlessPassword
        } else if text.starts_with("LOADING") {
            ErrorKind::Loading
        } else if lower.contains("max number of clients") {
            ErrorKind::MaxClients
        } else if text.starts_with("DENIED") && lower.contains("protected mode") {
            ErrorKind::Protected
        } else if lower.contains("unknown command")
            || lower.contains("unknown subcommand")
            || lower.contains("unknown or disabled")
            || lower.contains("unsupported command")
        {
            ErrorKind::Unknown
        } else {
            ErrorKind::Reply
        };
        Error {
            kind,
            message: format!("{command}: {text}"),
            code: code_of(text),
            redirect: Redirect::of(text),
            envoy: in_envoys_words(text),
        }
    }
}

/// Whether an unknown command was refused as Envoy does it: `unsupported command 'INFO'`
/// (<https://github.com/envoyproxy/envoy/issues/17571>), in newer versions
/// `ERR unknown command 'INFO', with args beginning with: server` (command_splitter_impl.cc, rejectUnknownCommand).
/// Redis and Valkey put each argument in quotes, or name none.
fn in_envoys_words(text: &str) -> bool {
    if text.starts_with("unsupported command '") {
        return true;
    }
    let arguments =
        text.strip_prefix("ERR unknown command '").and_then(|t| t.split_once("', with args beginning with: "));
    arguments.is_some_and(|(_, first)| first.starts_with(|c: char| !c.is_whitespace() && !matches!(c, '\'' | '`')))
}

/// Longer than any code word of a server or of a module known here.
const LONGEST_CODE: usize = 40;

fn code_of(text: &str) -> Option<String> {
    let text = text.strip_prefix('-').unwrap_or(text);
    let word = text.split([' ', '\r', '\n']).next().unwrap_or("");
    let begins = word.starts_with(|c: char| c.is_ascii_uppercase());
    let plain = word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_');
    (begins && plain && word.len() <= LONGEST_CODE).then(|| word.to_string())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_reply_keeps_its_code_word() {
        for (text, kind, code) in [
            ("NOPERM this user has no permissions to run the 'get' command", ErrorKind::Denied, Some("NOPERM")),
            ("ERR unknown command 'FOO'", ErrorKind::Unknown, Some("ERR")),
            ("NOREPLICAS Not enough good replicas to write.", ErrorKind::Reply, Some("NOREPLICAS")),
            ("-NOAUTH Authentication required.", ErrorKind::AuthRequired, Some("NOAUTH")),
            ("CLUSTERDOWN", ErrorKind::Reply, Some("CLUSTERDOWN")),
            ("DENIED Redis is running in protected mode because ...", ErrorKind::Protected, Some("DENIED")),
            ("DENIED by a module", ErrorKind::Reply, Some("DENIED")),
            // Proxies answer without a code word; what looks like none is none.
            ("no upstream host", ErrorKind::Reply, None),
            ("unsupported command 'INFO'", ErrorKind::Unknown, None),
            ("user:1234 is no number", ErrorKind::Reply, None),
            ("", ErrorKind::Reply, None),
        ] {
            let error = Error::reply(text, "GET");
            assert_eq!((error.kind, error.code()), (kind, code), "{text}");
        }
        assert_eq!(Error::reply(&"A".repeat(1000), "GET").code(), None);
        assert_eq!(Error::new(ErrorKind::Timeout, "ERR").code(), None);
    }

    #[test]
    fn only_auth_can_be_told_that_there_is_no_password() {
        for text in [
            "ERR Client sent AUTH, but no password is set",
            "ERR AUTH <password> called without any password configured for the default user. Are you sure?",
        ] {
            assert_eq!(Error::reply(text, "AUTH").kind, ErrorKind::NeedlessPassword, "{text}");
            assert_eq!(Error::reply(text, "GET").kind, ErrorKind::Reply, "{text}");
        }
        assert_eq!(Error::reply("ERR invalid password", "AUTH").kind, ErrorKind::WrongPassword);
    }

    #[test]
    fn a_redirect_names_a_node_also_without_a_host() {
        let sender = Address::parse("10.0.0.1:6379").unwrap();
        let node = |text: &str| Error::reply(text, "GET").redirect().map(|r| (r.way, r.slot, r.to(&sender)));
        let at = |text: &str| Named::Is(Address::parse(text).unwrap());
        for (text, expected) in [
            ("MOVED 3999 10.0.0.2:6381", Some((Way::Moved, 3999, at("10.0.0.2:6381")))),
            ("MOVED 3999 :6381", Some((Way::Moved, 3999, at("10.0.0.1:6381")))),
            ("ASK 5 ::1:7", Some((Way::Ask, 5, at("[::1]:7")))),
            ("MOVED 3999 ?:6381", Some((Way::Moved, 3999, Named::Unknown))),
            ("MOVED there", None),
            ("MOVED 16384 10.0.0.2:6381", None),
            ("ERR MOVED 1 10.0.0.2:1", None),
        ] {
            assert_eq!(node(text), expected, "{text}");
        }
    }

    #[test]
    fn envoys_refusals_differ_from_a_servers() {
        for (text, envoy) in [
            ("unsupported command 'INFO'", true),
            ("ERR unknown command 'INFO', with args beginning with: server", true),
            ("ERR unknown command 'latency', with args beginning with: LATEST", true),
            // Redis 7.0 and Valkey, with and without arguments; Redis 5.0 and 6.x; Redis before 5.0; predixy.
            ("ERR unknown command 'INFO', with args beginning with: 'server' ", false),
            ("ERR unknown command 'ROLE', with args beginning with: ", false),
            ("ERR unknown command `INFO`, with args beginning with: `server`, ", false),
            ("ERR unknown command 'INFO'", false),
            ("ERR unknown command", false),
            ("NOPERM this user has no permissions to run the 'info' command", false),
        ] {
            assert_eq!(Error::reply(text, "INFO").envoy, envoy, "{text}");
        }
    }
}
