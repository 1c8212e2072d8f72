//! A recorded stream of commands, to be sent again: MONITOR's output, or one command a line as typed in redis-cli.
//!
//! A MONITOR line is `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`; its time is kept, so that the stream can be
//! replayed at its own pace. Commands that would change what the connection is (MULTI, SUBSCRIBE, MONITOR, SELECT, AUTH
//! ...) are left out and counted: in a recording many connections are one stream. So are the commands that scripts have
//! called (`[0 lua]`), which follow from the calls of these scripts.

use std::collections::HashSet;
use std::io::{BufRead, BufReader};
use std::path::Path;

use unslow_resp::{Frame, split_words, write_command};
use unslow_topology::slot_of;

use crate::danger::dangerous;
use crate::error::{BadRecording, RecordingError};

/// Commands that make no sense out of their connection.
pub const LEFT_OUT: &[&str] = &[
    "AUTH",
    "ASKING",
    "CLIENT",
    "DISCARD",
    "EXEC",
    "HELLO",
    "MONITOR",
    "MULTI",
    "PSUBSCRIBE",
    "PSYNC",
    "PUNSUBSCRIBE",
    "QUIT",
    "READONLY",
    "READWRITE",
    "REPLCONF",
    "RESET",
    "SELECT",
    "SHUTDOWN",
    "SSUBSCRIBE",
    "SUBSCRIBE",
    "SUNSUBSCRIBE",
    "SYNC",
    "UNSUBSCRIBE",
    "UNWATCH",
    "WATCH",
];

/// A recording in memory, encoded.
#[derive(Debug)]
pub struct Recording {
    bytes: Vec<u8>,
    recorded: Vec<Recorded>,
    names: Vec<String>,
    /// Commands left out.
    pub left_out: u64,
    /// Whether every command has its time.
    pub timed: bool,
    /// The line of the first command that does more than read and write keys, and which it is.
    pub dangerous: Option<(usize, String)>,
}

#[derive(Debug)]
struct Recorded {
    at: usize,
    len: u32,
    slot: Option<u16>,
    kind: u16,
    /// Since the first command.
    due_ns: u64,
}

impl Recording {
    /// Reads a file. Refuses lines that are no commands, with their number.
    pub fn load(path: &Path) -> Result<Recording, RecordingError> {
        let opened = std::fs::File::open(path).map_err(BadRecording::Unopened);
        let read = opened.and_then(|file| Recording::read(BufReader::new(file)));
        read.map_err(|why| RecordingError { path: path.into(), why })
    }

    /// The same from any reader.
    pub fn read(reader: impl BufRead) -> Result<Recording, BadRecording> {
        let mut out = Recording {
            bytes: Vec::new(),
            recorded: Vec::new(),
            names: Vec::new(),
            left_out: 0,
            timed: true,
            dangerous: None,
        };
        for (i, line) in reader.lines().enumerate() {
            let text = line.map_err(|why| BadRecording::Unreadable { line: i + 1, why })?;
            let line = text.trim();
            if line.is_empty() || line.starts_with('#') || line == "OK" {
                continue;
            }
            let monitored = monitored(line);
            let (time, command) = monitored.map_or((None, line), |m| (Some(m.us), m.command));
            let bad = |why: String| BadRecording::Words { line: i + 1, why };
            let words = split_words(command).map_err(|e| bad(e.to_string()))?;
            let Some(name) = words.first().map(|w| String::from_utf8_lossy(w).to_uppercase()) else { continue };
            if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
                return Err(BadRecording::Name { line: i + 1, name: name.chars().take(40).collect() });
            }
            if LEFT_OUT.contains(&name.as_str()) || monitored.is_some_and(|m| m.is_inside_script) {
                out.left_out += 1;
                continue;
            }
            if out.dangerous.is_none() {
                out.dangerous = dangerous(&words).map(|what| (i + 1, what));
            }
            let kind = match out.names.iter().position(|n| *n == name) {
                Some(kind) => kind,
                None if out.names.len() == 200 => return Err(BadRecording::TooManyKinds(i + 1)),
                None => {
                    out.names.push(name.clone());
                    out.names.len() - 1
                }
            };
            out.timed &= time.is_some();
            let due_ns = time.map_or(0, |us| us.saturating_mul(1000));
            let (at, slot) = (out.bytes.len(), key_of(&name, &words).map(slot_of));
            write_command(&mut out.bytes, &words);
            let len = (out.bytes.len() - at) as u32;
            out.recorded.push(Recorded { at, len, slot, kind: kind as u16, due_ns });
        }
        if out.recorded.is_empty() {
            return Err(BadRecording::Empty);
        }
        // Recordings of several nodes may be joined: they become one stream in the order of their times.
        if out.timed {
            out.recorded.sort_by_key(|c| c.due_ns);
        }
        let first = out.recorded[0].due_ns;
        out.recorded.iter_mut().for_each(|c| c.due_ns -= first.min(c.due_ns));
        Ok(out)
    }

    /// Number of commands.
    pub fn commands(&self) -> u64 {
        self.recorded.len() as u64
    }

    /// Names of its commands, in upper case.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// When command `seq` is due, at the recorded pace; the stream begins anew behind its end.
    pub fn due_ns(&self, seq: u64) -> u64 {
        let rounds = seq / self.commands();
        let length = self.recorded.last().map_or(0, |c| c.due_ns).saturating_add(1_000_000);
        rounds.saturating_mul(length).saturating_add(self.get(seq).due_ns)
    }

    pub(crate) fn bytes(&self, seq: u64) -> &[u8] {
        let command = self.get(seq);
        &self.bytes[command.at..command.at + command.len as usize]
    }

    pub(crate) fn slot(&self, seq: u64) -> Option<u16> {
        self.get(seq).slot
    }

    pub(crate) fn kind(&self, seq: u64) -> u16 {
        self.get(seq).kind
    }

    /// The words of command `seq`.
    fn words(&self, seq: u64) -> Vec<&[u8]> {
        Frame::new(self.bytes(seq)).items().map(|word| word.text()).collect()
    }

    /// What removes keys of the first `sent` commands, each once: those that `keys_of` finds, given a command's kind
    /// and words. `None` where there are none.
    pub(crate) fn unlinks(&self, sent: u64, keys_of: impl Fn(u16, &[&[u8]]) -> Vec<usize>) -> Option<Recording> {
        let mut known: HashSet<&[u8]> = HashSet::new();
        for seq in 0..sent.min(self.commands()) {
            let words = self.words(seq);
            known.extend(keys_of(self.kind(seq), &words).into_iter().filter_map(|at| words.get(at)));
        }
        let (mut bytes, mut recorded) = (Vec::new(), Vec::new());
        for key in known {
            let at = bytes.len();
            write_command(&mut bytes, &[b"UNLINK", key]);
            let len = (bytes.len() - at) as u32;
            recorded.push(Recorded { at, len, slot: Some(slot_of(key)), kind: 0, due_ns: 0 });
        }
        let names = vec!["UNLINK".to_string()];
        (!recorded.is_empty()).then_some(Recording {
            bytes,
            recorded,
            names,
            left_out: 0,
            timed: false,
            dangerous: None,
        })
    }

    fn get(&self, seq: u64) -> &Recorded {
        &self.recorded[(seq % self.commands()) as usize]
    }
}

/// A line of MONITOR.
#[derive(Clone, Copy)]
struct Monitored<'a> {
    us: u64,
    is_inside_script: bool,
    command: &'a str,
}

fn monitored(line: &str) -> Option<Monitored<'_>> {
    let (time, rest) = line.split_once(' ')?;
    let (seconds, micros) = time.trim_start_matches('+').split_once('.')?;
    let rest = rest.strip_prefix('[')?;
    let (database_and_client, command) = rest.split_once("] ")?;
    let client = database_and_client.split_once(' ')?.1;
    // MONITOR writes six digits; `.5` would be five microseconds or half a second.
    let micros: u64 = micros.parse().ok().filter(|_| micros.len() == 6)?;
    let us = seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros)?;
    Some(Monitored { us, is_inside_script: client == "lua", command })
}

/// The first key, for the usual places of it.
fn key_of<'a>(name: &str, words: &'a [Vec<u8>]) -> Option<&'a [u8]> {
    let at = match name {
        "EVAL" | "EVALSHA" | "FCALL" | "EVAL_RO" | "EVALSHA_RO" | "FCALL_RO" => {
            return words.get(3).filter(|_| words[2] != b"0").map(Vec::as_slice);
        }
        "BITOP" | "OBJECT" | "MEMORY" | "XGROUP" | "XINFO" => 2,
        "XREAD" | "XREADGROUP" => words.iter().position(|w| w.eq_ignore_ascii_case(b"streams"))? + 1,
        "PING" | "ECHO" | "INFO" | "TIME" | "DBSIZE" | "PUBLISH" | "SCAN" | "KEYS" | "CONFIG" | "COMMAND"
        | "CLUSTER" | "SCRIPT" | "FLUSHALL" | "FLUSHDB" | "RANDOMKEY" | "LATENCY" | "SLOWLOG" | "ROLE" | "WAIT" => {
            return None;
        }
        _ => 1,
    };
    words.get(at).map(Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_monitor_writes() {
        let text = "OK\n1700000000.000100 [0 127.0.0.1:5] \"GET\" \"a b\"\n1700000001.000100 [0 x] \"set\" \"k\" \
                    \"\\x00\\\"\"\n1700000001.500000 [0 x] \"MULTI\"\n\
                    1700000001.600000 [0 lua] \"INCR\" \"once\"\n";
        let recording = Recording::read(text.as_bytes()).unwrap();
        assert_eq!((recording.commands(), recording.left_out, recording.timed), (2, 2, true));
        assert_eq!(recording.bytes(0), b"*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
        assert_eq!(recording.bytes(1), b"*3\r\n$3\r\nset\r\n$1\r\nk\r\n$2\r\n\0\"\r\n");
        assert_eq!(recording.due_ns(1), 1_000_000_000);
        assert!(recording.due_ns(2) > recording.due_ns(1), "the second round comes behind the first");
        assert_eq!(recording.slot(1), Some(slot_of(b"k")));
    }

    #[test]
    fn a_client_at_a_socket_called_lua_is_no_script() {
        let text = "1700000000.000100 [0 unix:/tmp/my lua] \"GET\" \"a\"\n";
        assert_eq!(Recording::read(text.as_bytes()).unwrap().left_out, 0);
    }

    #[test]
    fn what_removes_its_keys_has_each_of_them_once() {
        let recording = Recording::read(&b"SET a 1\nGET b\nSET a 2\nMSET c 1 'd e' 2\nSET\n"[..]).unwrap();
        let kinds = recording.names().to_vec();
        let written = |sent| {
            recording.unlinks(sent, |kind, _| match kinds[usize::from(kind)].as_str() {
                "SET" => vec![1],
                "MSET" => vec![1, 3],
                _ => Vec::new(),
            })
        };
        assert_eq!(written(3).unwrap().commands(), 1, "the others were not sent");
        let unlinks = written(u64::MAX).unwrap();
        let mut keys: Vec<&[u8]> = (0..unlinks.commands()).map(|seq| unlinks.words(seq)[1]).collect();
        keys.sort_unstable();
        assert_eq!((keys, unlinks.words(0)[0]), (vec![&b"a"[..], b"c", b"d e"], &b"UNLINK"[..]));
        assert_eq!(unlinks.slot(0), Some(slot_of(unlinks.words(0)[1])));
        assert!(recording.unlinks(5, |_, _| Vec::new()).is_none());
    }

    #[test]
    fn reads_plain_commands_and_names_the_line_that_is_none() {
        let recording = Recording::read(&b"# comment\nHSET h f 'v w'\nEVAL 'return 1' 0\n"[..]).unwrap();
        assert_eq!((recording.names(), recording.timed), (&["HSET".to_string(), "EVAL".to_string()][..], false));
        assert_eq!(recording.slot(1), None);
        let joined = "1700000002.000000 [0 x] \"GET\" \"b\"\n1700000001.000000 [0 x] \"GET\" \"a\"\n";
        let joined = Recording::read(joined.as_bytes()).unwrap();
        assert_eq!((joined.bytes(0), joined.due_ns(1)), (&b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"[..], 1_000_000_000));
        let refused = |text: &str| Recording::read(text.as_bytes()).unwrap_err();
        assert!(matches!(refused("GET a\nGET 'b\n"), BadRecording::Words { line: 2, .. }));
        assert_eq!(refused("\n<html>\n").to_string(), "line 2: invalid command name \"<HTML>\"");
        assert!(matches!(refused("\n"), BadRecording::Empty));
    }

    proptest::proptest! {
        #[test]
        fn any_text_at_all_is_read_or_refused(text in "(\\PC|\n\
            |\"|\\\\x|\\[|\\{|\n[0-9]{1,20}\\.[0-9]{6} \\[0 a\\] GET k\n){0,200}") {
            if let Ok(recording) = Recording::read(text.as_bytes()) {
                for seq in 0..recording.commands() * 2 {
                    let bytes = recording.bytes(seq);
                    let scanned = unslow_resp::Scanner::default().scan(bytes);
                    proptest::prop_assert_eq!(scanned, Ok(unslow_resp::Scan::Complete(bytes.len())));
                    let _ = (recording.slot(seq), recording.kind(seq), recording.due_ns(seq));
                }
            }
            let _ = crate::template::Template::parse(&text, None);
        }
    }
}
