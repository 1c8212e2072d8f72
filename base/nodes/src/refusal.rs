//! What an error reply says about the command it answers: whether the command can have run, and where to send it next.
//!
//! A client may resend a write only if the first one certainly did not run. Servers refuse many commands before running
//! them (`processCommand()` in server.c of Redis and Valkey) and give the reason in the first word of the error. But a
//! script can write to the data set and then return any error, `redis.error_reply("MOVED 1 host:1")` included. So the
//! text proves something only if no script could have written it. The caller knows that from the command, and says so:
//! [`Author`].

use crate::{address, decimal};

/// Hash slots of a cluster, by the specification.
const SLOTS: u16 = 16384;

/// Who could have written the text of an error reply. This follows from the command; the reply itself does not show it.
///
/// For a transaction this is about EXEC itself: an error inside its array belongs to the queued command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// Only the server: the command is built in and runs no user code.
    Server,
    /// A script or a module, or the server: EVAL, EVALSHA, FCALL and their `_RO` variants, commands of modules, and
    /// commands that the table of commands does not list. `DEBUG ERROR` belongs here too, it returns whatever it is
    /// given.
    Script,
}

/// The first word of an error reply, as far as clients act on it. Words are matched exactly: BUSYKEY and BUSYGROUP are
/// not BUSY.
///
/// Unless noted otherwise the server sends these from `processCommand()`, before it runs the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind<'a> {
    /// MOVED: another node owns the slot (`getNodeByQuery()`). EXEC has discarded its transaction. A blocked command
    /// gets it if the slot leaves while it waits (`clusterRedirectBlockedClientIfNeeded()`); it has not popped
    /// anything.
    Moved(Redirect<'a>),
    /// ASK: the slot is being migrated and the keys are no longer on this node (`getNodeByQuery()`). Send ASKING first,
    /// to the other node; the owner has not changed.
    Ask(Redirect<'a>),
    /// TRYAGAIN: the keys are on both sides of a slot migration, or leftovers of one are being trimmed
    /// (`getNodeByQuery()`).
    TryAgain,
    /// LOADING: the server is reading its data set.
    Loading,
    /// READONLY: a write was sent to a replica, possibly a primary until a moment ago.
    ReadOnly,
    /// CLUSTERDOWN: the slot has no owner, or too few nodes are reachable (`getNodeByQuery()`). Blocked commands get it
    /// too, as with MOVED.
    ClusterDown,
    /// MASTERDOWN: a replica without its primary, and `replica-serve-stale-data no`.
    MasterDown,
    /// NOSCRIPT: EVALSHA found no script with this digest and ran nothing (`evalGenericCommand()`). EVALSHA's author is
    /// [`Author::Script`], because a script can return the same words after a write: do not expect `not_run` for it.
    NoScript,
    /// NOPERM: the ACL forbids the command, a key or a channel (`ACLCheckAllPerm()`).
    Denied,
    /// NOAUTH: a password is required first. WRONGPASS, and `ERR invalid password` before Redis 6: AUTH or HELLO
    /// failed, and the connection has the user it had before.
    Auth,
    /// BUSY: a script or a module has been running for longer than `busy-reply-threshold`.
    Busy,
    /// UNBLOCKED: a blocked command ended without an element, because of a demotion or CLIENT UNBLOCK. The latter is
    /// what someone asked for, so only the caller knows whether the command should be sent again.
    Unblocked,
    /// EXECABORT: EXEC discarded its transaction. Sending EXEC again would be an error; the caller must start from
    /// MULTI.
    ExecAbort,
    /// Any other error, and a redirect that cannot be read. The command may have run.
    Other,
}

/// Where MOVED or ASK points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect<'a> {
    /// Below 16384.
    pub slot: u16,
    /// As the server wrote it: the host may be empty or `?`. [`Address::named`](crate::Address::named) reads it.
    pub address: &'a str,
}

/// An error reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal<'a> {
    /// What the text says.
    pub kind: Kind<'a>,
    /// Who may have written it.
    pub author: Author,
}

impl<'a> Refusal<'a> {
    /// Reads one whole reply, with or without its final CR LF. `None` unless it is an error: `-`, or RESP3's `!`.
    pub fn parse(reply: &'a [u8], author: Author) -> Option<Refusal<'a>> {
        let kind = match reply {
            [b'-', line @ ..] => Kind::of(line.strip_suffix(b"\r\n").unwrap_or(line)),
            [b'!', rest @ ..] => blob(rest).map_or(Kind::Other, Kind::of),
            _ => return None,
        };
        Some(Refusal { kind, author })
    }

    /// Whether the command certainly had no effect and may be sent again, even a write. [`Kind`] names the source for
    /// each.
    pub fn not_run(&self) -> bool {
        use Kind::*;
        let redirected = matches!(self.kind, Moved(_) | Ask(_) | TryAgain);
        let unfit = matches!(self.kind, Loading | ReadOnly | ClusterDown | MasterDown | NoScript | Busy);
        let forbidden = matches!(self.kind, Denied | Auth);
        self.author == Author::Server && (redirected || unfit || forbidden)
    }

    /// Whether the condition ends by itself, so that waiting helps. Whether the command has already run is another
    /// question: [`Refusal::not_run`].
    pub fn passes(&self) -> bool {
        use Kind::*;
        matches!(self.kind, TryAgain | Loading | ClusterDown | MasterDown | Busy)
    }
}

impl<'a> Kind<'a> {
    fn of(text: &'a [u8]) -> Kind<'a> {
        // Servers replace line breaks in their errors with spaces, so no server wrote this one.
        if text.iter().any(|b| matches!(b, b'\r' | b'\n')) {
            return Kind::Other;
        }
        let (word, rest) = match text.iter().position(|&b| b == b' ') {
            Some(space) => (&text[..space], &text[space + 1..]),
            None => (text, &text[text.len()..]),
        };
        match word {
            b"MOVED" => Redirect::parse(rest).map_or(Kind::Other, Kind::Moved),
            b"ASK" => Redirect::parse(rest).map_or(Kind::Other, Kind::Ask),
            b"TRYAGAIN" => Kind::TryAgain,
            b"LOADING" => Kind::Loading,
            b"READONLY" => Kind::ReadOnly,
            b"CLUSTERDOWN" => Kind::ClusterDown,
            b"MASTERDOWN" => Kind::MasterDown,
            b"NOSCRIPT" => Kind::NoScript,
            b"NOPERM" => Kind::Denied,
            b"NOAUTH" | b"WRONGPASS" => Kind::Auth,
            b"ERR" if rest == b"invalid password" => Kind::Auth,
            b"BUSY" => Kind::Busy,
            b"UNBLOCKED" => Kind::Unblocked,
            b"EXECABORT" => Kind::ExecAbort,
            _ => Kind::Other,
        }
    }
}

impl<'a> Redirect<'a> {
    /// The slot, one space, the address, nothing else.
    fn parse(text: &'a [u8]) -> Option<Redirect<'a>> {
        let (slot, address) = std::str::from_utf8(text).ok()?.split_once(' ')?;
        let slot = decimal::<u16>(slot).filter(|slot| *slot < SLOTS)?;
        address::split(address)?;
        Some(Redirect { slot, address })
    }
}

/// The text of a blob error after its `!`. `None` if it is not as long as it says.
fn blob(rest: &[u8]) -> Option<&[u8]> {
    let header = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let length = decimal::<usize>(std::str::from_utf8(&rest[..header]).ok()?)?;
    let (text, end) = rest[header + 2..].split_at_checked(length)?;
    (end.is_empty() || end == b"\r\n").then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirect(slot: u16, address: &str) -> Redirect<'_> {
        Redirect { slot, address }
    }

    /// Every error that is acted upon, in the servers' words: kind, whether it proves that nothing ran, whether it
    /// passes.
    fn replies() -> Vec<(&'static str, Kind<'static>, bool, bool)> {
        use Kind::*;
        vec![
            ("MOVED 3999 127.0.0.1:6381", Moved(redirect(3999, "127.0.0.1:6381")), true, false),
            ("MOVED 0 ::1:6381", Moved(redirect(0, "::1:6381")), true, false),
            ("MOVED 16383 node-3.example:6381", Moved(redirect(16383, "node-3.example:6381")), true, false),
            ("MOVED 3999 :6381", Moved(redirect(3999, ":6381")), true, false),
            ("MOVED 3999 ?:6381", Moved(redirect(3999, "?:6381")), true, false),
            ("ASK 3999 127.0.0.1:6381", Ask(redirect(3999, "127.0.0.1:6381")), true, false),
            ("TRYAGAIN Multiple keys request during rehashing of slot", TryAgain, true, true),
            ("TRYAGAIN Slot is being trimmed", TryAgain, true, true),
            ("LOADING Redis is loading the dataset in memory", Loading, true, true),
            ("LOADING", Loading, true, true),
            ("READONLY You can't write against a read only replica.", ReadOnly, true, false),
            ("CLUSTERDOWN Hash slot not served", ClusterDown, true, true),
            ("CLUSTERDOWN The cluster is down", ClusterDown, true, true),
            (
                "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
                MasterDown,
                true,
                true,
            ),
            ("NOSCRIPT No matching script. Please use EVAL.", NoScript, true, false),
            ("NOPERM User app has no permissions to run the 'set' command", Denied, true, false),
            ("NOAUTH Authentication required.", Auth, true, false),
            ("WRONGPASS invalid username-password pair or user is disabled.", Auth, true, false),
            ("ERR invalid password", Auth, true, false),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL.", Busy, true, true),
            (
                "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
                Unblocked,
                false,
                false,
            ),
            ("UNBLOCKED client unblocked via CLIENT UNBLOCK", Unblocked, false, false),
            ("EXECABORT Transaction discarded because of previous errors.", ExecAbort, false, false),
            ("ERR value is not an integer or out of range", Other, false, false),
            ("ERR invalid password provided for key", Other, false, false),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", Other, false, false),
            ("OOM command not allowed when used memory > 'maxmemory'.", Other, false, false),
            ("CROSSSLOT Keys in request don't hash to the same slot", Other, false, false),
            ("BUSYKEY Target key name already exists.", Other, false, false),
            ("BUSYGROUP Consumer Group name already exists", Other, false, false),
            ("NOTBUSY No scripts in execution right now.", Other, false, false),
            ("ASKING 3999 127.0.0.1:6381", Other, false, false),
            ("", Other, false, false),
        ]
    }

    #[test]
    fn errors_are_sorted_by_their_first_word_and_prove_something_only_if_the_server_wrote_them() {
        for (text, kind, not_run, passes) in replies() {
            let blob = format!("!{}\r\n{text}", text.len());
            for reply in [format!("-{text}"), format!("-{text}\r\n"), blob.clone(), blob + "\r\n"] {
                for (author, not_run) in [(Author::Server, not_run), (Author::Script, false)] {
                    let refusal = Refusal::parse(reply.as_bytes(), author);
                    assert_eq!(refusal, Some(Refusal { kind, author }), "{reply:?}");
                    assert_eq!(refusal.map(|r| (r.not_run(), r.passes())), Some((not_run, passes)), "{reply:?}");
                }
            }
        }
    }

    #[test]
    fn words_that_differ_from_the_servers_prove_nothing() {
        for (text, ..) in replies().into_iter().filter(|(_, kind, ..)| *kind != Kind::Other) {
            for altered in [
                text.to_ascii_lowercase(),
                format!(" {text}"),
                format!("-{text}"),
                format!("ERR {text}"),
                format!("X{text}"),
                text.replacen(' ', "X ", 1) + "X",
                text.replacen(' ', "\t", 1) + "\t",
                text.replacen(' ', ": ", 1) + ":",
                text.replacen(' ', "\0 ", 1) + "\0",
                text.replacen(' ', "\n", 1) + "\n",
                format!("{text}\r\n-{text}"),
                format!("{text}\n"),
                format!("{text}\r"),
                format!("{text}\r\n\r\n"),
            ] {
                for reply in [format!("-{altered}\r\n"), format!("!{}\r\n{altered}\r\n", altered.len())] {
                    let refusal = Refusal::parse(reply.as_bytes(), Author::Server).expect("it is an error");
                    assert!(refusal.kind == Kind::Other && !refusal.not_run(), "{reply:?}: {refusal:?}");
                }
            }
        }
    }

    #[test]
    fn a_redirect_that_no_server_writes_is_any_other_error() {
        // The last digit is an Arabic five.
        let slots = "16384|65536|99999999999999999999|-1|-0|+5|05|00|0x5|5.0|5,|five|h:1||\u{665}";
        let addresses = "|h|h:|:|:0|h:0|h:+1|h:01|h:65536|h:1 g:2|h g:1|h:1@10001|h:1,name|a@h:1|\0h:1|h\u{f6}st:1";
        let others = "| |5| 5 h:1|5  h:1|5 h:1 |5\th:1|5 h:1\n|5 h:1\rx|5 h:1\r\n-MOVED 6 g:2|5\r\nh:1";
        let mut malformed: Vec<String> = others.split('|').map(String::from).collect();
        malformed.extend(slots.split('|').map(|slot| format!("{slot} h:1")));
        malformed.extend(addresses.split('|').map(|address| format!("5 {address}")));
        for rest in malformed {
            let blob = format!("!{}\r\nMOVED {rest}\r\n", rest.len() + 6);
            for reply in [format!("-MOVED {rest}\r\n"), format!("-ASK {rest}\r\n"), blob] {
                let refusal = Refusal::parse(reply.as_bytes(), Author::Server).expect("it is an error");
                assert!(refusal.kind == Kind::Other && !refusal.not_run(), "{reply:?}");
            }
        }
        let huge = format!("-MOVED 5 {}:1\r\n", "h".repeat(1 << 20));
        for reply in [huge.as_bytes(), b"-MOVED 5 h\xff:1\r\n", b"-MOVED 5\xff h:1\r\n", b"!10\r\nASK 5 h\xff:1\r\n"] {
            let refusal = Refusal::parse(reply, Author::Server);
            assert_eq!(refusal.map(|r| r.kind), Some(Kind::Other));
        }
    }

    #[test]
    fn a_user_name_that_is_not_text_does_not_hide_a_denial() {
        let refusal = Refusal::parse(b"-NOPERM User \xff\xfe has no permissions\r\n", Author::Server);
        assert_eq!(refusal.map(|r| (r.kind, r.not_run())), Some((Kind::Denied, true)));
    }

    #[test]
    fn a_blob_error_of_another_length_than_it_says_is_any_other_error() {
        for reply in [
            "!",
            "!4",
            "!4\r\n",
            "!4\nBUSY\n",
            "!4BUSY\r\n",
            "!\r\nBUSY\r\n",
            "!3\r\nBUSY\r\n",
            "!5\r\nBUSY\r\n",
            "!6\r\nBUSY\r\n", // the CR LF as part of the text
            "!04\r\nBUSY\r\n",
            "!+4\r\nBUSY\r\n",
            "!-1\r\n",
            "! 4\r\nBUSY\r\n",
            "!4\r\nBUSY\r\nBUSY",
            "!18446744073709551615\r\nBUSY\r\n",
            "!99999999999999999999\r\nBUSY\r\n",
        ] {
            let refusal = Refusal::parse(reply.as_bytes(), Author::Server);
            assert_eq!(refusal.map(|r| r.kind), Some(Kind::Other), "{reply:?}");
        }
    }

    #[test]
    fn replies_that_are_not_errors_are_not_refusals() {
        for reply in ["", "+OK\r\n", "+MOVED 5 h:1\r\n", "$4\r\nBUSY\r\n", ":-1\r\n", "*1\r\n-BUSY\r\n", " -BUSY\r\n"] {
            assert_eq!(Refusal::parse(reply.as_bytes(), Author::Server), None, "{reply:?}");
        }
    }
}
