//! The steps of a client, and a model of its connection: which commands have a reply, and how to know that all replies
//! have arrived.

use std::collections::BTreeSet;

use crate::wire::{Until, command};

/// A command's name and arguments.
pub type Words = Vec<Vec<u8>>;

/// A word of a command in capitals: its name at 0, the name of its subcommand at 1. Empty if there is none.
pub fn word(words: &[Vec<u8>], at: usize) -> String {
    words.get(at).map(|word| String::from_utf8_lossy(word).to_ascii_uppercase()).unwrap_or_default()
}

/// The hash tag of a client's keys. It is new with each pair of connections, so that no keys exist yet. There are two,
/// in different slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    pub client: usize,
    pub generation: u32,
}

impl Tag {
    pub fn own(self) -> String {
        format!("{{c{:02}-{:06}}}", self.client, self.generation)
    }

    /// The tag of keys in the other slot.
    pub fn other(self) -> String {
        format!("{{d{:02}-{:06}}}", self.client, self.generation)
    }

    /// The bytes with another tag, which has the same length.
    pub fn replaced(self, bytes: &[u8], by: Tag) -> Vec<u8> {
        let mut out = bytes.to_vec();
        for (old, new) in [(self.own(), by.own()), (self.other(), by.other())] {
            let mut at = 0;
            while let Some(found) = out[at..].windows(old.len()).position(|window| window == old.as_bytes()) {
                let end = at + found + new.len();
                out[at + found..end].copy_from_slice(new.as_bytes());
                at = end;
            }
        }
        out
    }
}

/// How a server treats some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Command,
    /// An empty line or array, without a reply.
    Nothing,
    /// The server closes the connection.
    Closing,
}

/// Some bytes of a client, usually a command.
#[derive(Clone, Debug)]
pub struct Said {
    pub bytes: Vec<u8>,
    /// Empty if the bytes are not a command.
    pub words: Words,
    pub form: Form,
}

impl Said {
    /// Whether servers treat it as HTTP, and so close the connection without a reply.
    pub fn looks_like_http(&self) -> bool {
        matches!(word(&self.words, 0).as_str(), "POST" | "HOST:")
    }

    pub fn retagged(&self, from: Tag, to: Tag) -> Said {
        let words = self.words.iter().map(|word| from.replaced(word, to)).collect();
        Said { bytes: from.replaced(&self.bytes, to), words, form: self.form }
    }
}

/// Commands that are sent before any reply is read.
#[derive(Clone, Debug)]
pub struct Pipeline {
    pub said: Vec<Said>,
    /// Seed for the places where it is cut; `None` for one piece.
    pub cuts: Option<u64>,
}

/// One step of a client.
#[derive(Clone, Debug)]
pub enum Step {
    Pipeline(Pipeline),
    /// Another connection publishes to one of the client's channels.
    Publish(Words),
}

impl Step {
    pub fn retagged(&self, from: Tag, to: Tag) -> Step {
        match self {
            Step::Pipeline(Pipeline { said, cuts }) => {
                let said = said.iter().map(|said| said.retagged(from, to)).collect();
                Step::Pipeline(Pipeline { said, cuts: *cuts })
            }
            Step::Publish(words) => Step::Publish(words.iter().map(|word| from.replaced(word, to)).collect()),
        }
    }
}

/// Whether a transaction is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Multi {
    No,
    Yes,
    /// Only the replies tell, because the user may lack the rights.
    Unsure,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Muted {
    No,
    Off,
    Next,
}

/// The model of a connection.
#[derive(Clone, Debug)]
pub struct State {
    pub multi: Multi,
    /// The commands that EXEC will run.
    pub queued: Vec<Words>,
    /// Keys may be watched: nothing is sure to have ended it.
    pub watching: bool,
    /// The user, the protocol or the database has changed since keys were watched.
    pub watch_left: bool,
    /// 2 or 3.
    pub protocol: u8,
    /// Kind (`c`, `p`, `s`) and name of each subscription.
    pub channels: BTreeSet<(u8, Vec<u8>)>,
    /// Logged in as a user that may not run every command.
    pub restricted: bool,
    /// Digests of scripts that were loaded.
    pub scripts: Vec<Vec<u8>>,
    /// A library of functions was loaded.
    pub has_functions: bool,
    pub muted: Muted,
}

impl Default for State {
    /// Of a connection on which nothing was said.
    fn default() -> State {
        State {
            multi: Multi::No,
            queued: Vec::new(),
            watching: false,
            watch_left: false,
            protocol: 2,
            channels: BTreeSet::new(),
            restricted: false,
            scripts: Vec::new(),
            has_functions: false,
            muted: Muted::No,
        }
    }
}

impl State {
    fn reset(&mut self) {
        let (scripts, has_functions) = (std::mem::take(&mut self.scripts), self.has_functions);
        *self = State { scripts, has_functions, ..State::default() };
    }

    /// In RESP2 a subscriber may run few commands.
    pub fn is_subscriber(&self) -> bool {
        self.protocol == 2 && !self.channels.is_empty()
    }

    /// Updates the state before the reply is known; returns how many replies to expect, without pushes.
    pub fn expect(&mut self, said: &Said) -> usize {
        if said.form == Form::Nothing {
            return 0;
        }
        let (words, name) = (&said.words, word(&said.words, 0));
        let alone = words.len() == 1;
        if self.multi == Multi::No && name == "CLIENT" && word(words, 1) == "REPLY" && words.len() == 3 {
            match word(words, 2).as_str() {
                "ON" => self.muted = Muted::No,
                "OFF" => {
                    self.muted = Muted::Off;
                    return 0;
                }
                "SKIP" => {
                    self.muted = if self.muted == Muted::No { Muted::Next } else { self.muted };
                    return 0;
                }
                _ => {}
            }
        }
        let answered = usize::from(self.muted == Muted::No);
        if self.muted == Muted::Next {
            self.muted = Muted::No;
        }
        let kind = subscription(&name).filter(|_| self.multi == Multi::No);
        if let Some((kind, begins)) = kind {
            if alone && begins {
                return answered; // an error
            }
            for channel in &words[1..] {
                if begins {
                    self.channels.insert((kind, channel.clone()));
                } else {
                    self.channels.remove(&(kind, channel.clone()));
                }
            }
            if alone {
                self.channels.retain(|(held, _)| *held != kind);
            }
            return 0; // confirmations are pushes
        }
        if self.is_subscriber() && name != "RESET" {
            return answered;
        }
        match name.as_str() {
            "MULTI" if alone && self.multi == Multi::No => {
                self.multi = if self.restricted { Multi::Unsure } else { Multi::Yes };
            }
            "EXEC" | "DISCARD" if self.multi != Multi::No => {
                let taken = alone && !self.restricted;
                self.watching &= !taken;
                self.multi = if taken { Multi::No } else { Multi::Unsure };
            }
            "WATCH" if self.multi != Multi::Yes => self.watching = true,
            "UNWATCH" if alone && !self.restricted && self.multi == Multi::No => self.watching = false,
            "RESET" if alone => self.reset(),
            "HELLO" if words.len() == 2 => match word(words, 1).as_str() {
                "2" => self.protocol = 2,
                "3" => self.protocol = 3,
                _ => {}
            },
            _ => {}
        }
        self.restricted |= user(words).is_some_and(|user| user != b"default");
        answered
    }

    /// Updates the state from the reply.
    pub fn learn(&mut self, words: &[Vec<u8>], reply: &[u8]) {
        if self.multi != Multi::No && reply == b"+QUEUED\r\n" {
            return self.queued.push(words.to_vec());
        }
        let (ok, failed) = (reply == b"+OK\r\n", reply.first() == Some(&b'-'));
        let without =
            [&b"-ERR EXEC without MULTI"[..], b"-ERR DISCARD without MULTI"].iter().any(|e| reply.starts_with(e));
        let ends = match word(words, 0).as_str() {
            "MULTI" if ok => {
                self.multi = Multi::Yes;
                false
            }
            // Refused for its arguments or to this user, EXEC ends the transaction and the watching all the same;
            // DISCARD does not.
            "EXEC" => !without && !reply.starts_with(b"-NOPERM"),
            "DISCARD" => ok,
            "WATCH" if ok => {
                self.watching = true;
                false
            }
            "UNWATCH" if ok => {
                (self.watching, self.watch_left) = (false, false);
                false
            }
            "RESET" if !failed => {
                self.reset();
                false
            }
            "SELECT" if ok => {
                self.watch_left |= self.watching;
                false
            }
            "AUTH" if ok => {
                self.watch_left |= self.watching;
                self.restricted = user(words).is_some_and(|user| user != b"default");
                false
            }
            "HELLO" if !failed => {
                self.watch_left |= self.watching;
                self.protocol = if reply.first() == Some(&b'%') { 3 } else { 2 };
                self.restricted = user(words).map_or(self.restricted, |user| user != b"default");
                false
            }
            "SCRIPT" if word(words, 1) == "LOAD" => {
                self.scripts.extend(reply.strip_prefix(b"$40\r\n").and_then(|r| r.get(..40)).map(<[u8]>::to_vec));
                false
            }
            "FUNCTION" if word(words, 1) == "LOAD" && !failed => {
                self.has_functions = true;
                false
            }
            _ => false,
        };
        if ends {
            (self.watching, self.watch_left) = (false, false);
        }
        if ends || without {
            self.multi = Multi::No;
            self.queued.clear();
        }
    }
}

/// The user in AUTH or HELLO AUTH.
fn user(words: &[Vec<u8>]) -> Option<&[u8]> {
    let at = match word(words, 0).as_str() {
        "AUTH" if words.len() == 3 => 1,
        "HELLO" => words.iter().position(|word| word.eq_ignore_ascii_case(b"AUTH"))? + 1,
        _ => return None,
    };
    words.get(at).map(Vec::as_slice)
}

/// The kind of a pub/sub command, and whether it subscribes.
pub fn subscription(name: &str) -> Option<(u8, bool)> {
    match name {
        "SUBSCRIBE" => Some((b'c', true)),
        "PSUBSCRIBE" => Some((b'p', true)),
        "SSUBSCRIBE" => Some((b's', true)),
        "UNSUBSCRIBE" => Some((b'c', false)),
        "PUNSUBSCRIBE" => Some((b'p', false)),
        "SUNSUBSCRIBE" => Some((b's', false)),
        _ => None,
    }
}

/// The bytes of a pipeline, and the replies to expect.
pub struct Planned {
    pub bytes: Vec<u8>,
    pub until: Until,
    /// For each reply, the index of its command.
    pub answers: Vec<usize>,
    /// The state afterwards, before the replies are known.
    pub after: State,
}

impl Planned {
    /// Appends a command whose reply contains the token, unless a transaction is open: then each command has exactly
    /// one reply, and the token would only arrive with EXEC.
    pub fn new(state: &State, said: &[Said], token: &str) -> Planned {
        let (mut after, mut bytes, mut answers) = (state.clone(), Vec::new(), Vec::new());
        for (at, said) in said.iter().enumerate() {
            bytes.extend_from_slice(&said.bytes);
            answers.extend(std::iter::repeat_n(at, after.expect(said)));
        }
        let until = if said.iter().any(|said| said.form == Form::Closing) {
            Until::Closed
        } else if after.multi == Multi::No {
            bytes.extend(command(&[if after.is_subscriber() { "PING" } else { "ECHO" }, token]));
            Until::Token(token.as_bytes().to_vec())
        } else {
            Until::Replies(answers.len())
        };
        Planned { bytes, until, answers, after }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Words {
        line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
    }

    fn said(line: &str) -> Said {
        let words = words(line);
        Said { bytes: command(&words), words, form: Form::Command }
    }

    #[test]
    fn what_is_watched_ends_only_with_replies_that_end_it() {
        for (last, reply, watching) in [
            ("EXEC", "-ERR EXEC without MULTI\r\n", true),
            ("DISCARD", "-ERR DISCARD without MULTI\r\n", true),
            ("DISCARD more", "-ERR wrong number of arguments for 'discard' command\r\n", true),
            ("UNWATCH", "-NOPERM User u has no permissions to run the 'unwatch' command\r\n", true),
            ("EXEC more", "-EXECABORT Transaction discarded because of: wrong number of arguments\r\n", false),
            ("EXEC", "*-1\r\n", false),
            ("DISCARD", "+OK\r\n", false),
            ("UNWATCH", "+OK\r\n", false),
            ("RESET", "+RESET\r\n", false),
        ] {
            let mut state = State::default();
            state.learn(&words("WATCH k"), b"+OK\r\n");
            state.learn(&words(last), reply.as_bytes());
            assert_eq!(state.watching, watching, "{last}: {reply}");
        }
    }

    #[test]
    fn before_the_replies_keys_count_as_watched_unless_it_is_sure_that_they_are_not() {
        for (restricted, lines, watching) in [
            (false, &["WATCH k", "MULTI", "EXEC"][..], false),
            (false, &["WATCH k", "MULTI", "DISCARD more"], true),
            (false, &["WATCH k", "EXEC"], true),
            (true, &["WATCH k", "MULTI", "EXEC"], true),
            (true, &["WATCH k", "UNWATCH"], true),
            (true, &["MULTI", "WATCH k"], true),
        ] {
            let mut state = State { restricted, ..State::default() };
            for line in lines {
                state.expect(&said(line));
            }
            assert_eq!(state.watching, watching, "restricted: {restricted}, {lines:?}");
        }
    }

    #[test]
    fn a_new_user_protocol_or_database_leaves_what_is_watched_until_it_ends() {
        for (line, reply) in [("AUTH u p", "+OK\r\n"), ("HELLO 3", "%0\r\n"), ("SELECT 1", "+OK\r\n")] {
            let mut state = State::default();
            state.learn(&words(line), reply.as_bytes());
            assert!(!state.watch_left, "{line}: nothing was watched");
            state.learn(&words("WATCH k"), b"+OK\r\n");
            state.learn(&words(line), reply.as_bytes());
            assert!(state.watch_left, "{line}");
            state.learn(&words("MULTI"), b"+OK\r\n");
            state.learn(&words("EXEC"), b"*0\r\n");
            assert!(!state.watch_left, "{line}, EXEC");
        }
    }
}
