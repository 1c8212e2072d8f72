//! From messages to calls: the commands of a message that go to one slot, as bytes for the wire.
//!
//! With `exactly_once` a call is one EVALSHA of `guard.lua`, which keeps a mark beside the data: in each slot a hash
//! with, for each origin, the offset of the last message that ran there. Order within a slot is the sink's own promise,
//! so one mark a slot is enough for all of its keys, however many there are.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use unslow_resp::write_header;
use unslow_topology::{SLOTS, slot_of};

use crate::document::Document;
use crate::mapping::{Command, Map, Mapping};
use crate::poison::Poison;
use crate::record::{Batch, Message, Offset, Origin, Record};
use crate::template::Scratch;
use crate::trouble::Voice;

/// The script.
pub const GUARD: &str = include_str!("guard.lua");
/// Lua's `unpack` takes less than 8,000.
const GUARDED_WORDS_MAX: usize = 7000;

/// Commands of one message for one slot.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// First byte in [`Encoded::bytes`].
    pub from: usize,
    /// Behind its last byte.
    pub to: usize,
    /// Of [`Batch::records`].
    pub record: u32,
    /// Where it goes.
    pub slot: u16,
    /// How many replies it brings.
    pub replies: u16,
    /// Where in its bytes the offset of its predecessor stands; 0 without a guard.
    pub before_at: u32,
    /// Whose words its errors are.
    pub voice: Voice,
    /// In [`Encoded::checks`]: what asks the server about its keys. Empty where nothing is asked.
    pub check: (u32, u32),
}

/// Calls of a batch.
#[derive(Debug, Default)]
pub struct Encoded {
    pub bytes: Vec<u8>,
    pub calls: Vec<Call>,
    /// An EXISTS with the keys of each call of a script, function or module.
    pub checks: Vec<u8>,
    /// Records and maps that a later record makes needless.
    folded: HashSet<(u32, usize)>,
    /// For each of the batch's origins the maps that take it.
    takers: Vec<Arc<[usize]>>,
}

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub enum Became {
    /// So many calls, at the end of [`Encoded::calls`].
    Calls(usize),
    /// No map wants it, or a later one of its batch says all that it says.
    Nothing,
    /// It cannot be written, for this reason.
    Poison(Poison),
}

/// Turns messages into calls.
pub struct Encoder {
    mapping: Mapping,
    cluster: bool,
    guard: Option<Guard>,
    scratch: Scratch,
    /// Maps that take an origin.
    takers: HashMap<Arc<Origin>, Arc<[usize]>>,
}

struct Guard {
    sha: String,
    /// For each slot the hash with the marks.
    keys: Vec<Vec<u8>>,
    /// The offset that was sent last, by slot and origin.
    sent: HashMap<(u16, Arc<str>), Offset>,
    /// Calls of the message at work: slot, keys, number of words, commands.
    parts: Vec<Part>,
    plain: Vec<u8>,
}

struct Part {
    slot: u16,
    keys: Vec<Vec<u8>>,
    words: usize,
    commands: Vec<u8>,
}

impl Encoder {
    /// `guard` is the script's digest and the name under which marks are kept.
    pub fn new(mapping: Mapping, cluster: bool, guard: Option<(String, &str)>) -> Encoder {
        let guard = guard.map(|(sha, name)| Guard {
            sha,
            keys: mark_keys(&format!("unslow:sink:{name}")),
            sent: HashMap::new(),
            parts: Vec::new(),
            plain: Vec::new(),
        });
        let (scratch, takers) = Default::default();
        Encoder { mapping, cluster, guard, scratch, takers }
    }

    /// Looks at a whole batch first: which maps take its origins, and what is folded.
    #[must_use]
    pub fn begin(&mut self, batch: &Batch) -> Encoded {
        let takers = batch.origins.iter().map(|origin| self.takers(origin)).collect();
        let mut encoded = Encoded { takers, ..Encoded::default() };
        if !self.mapping.folds() {
            return encoded;
        }
        let mut later: HashSet<(usize, Vec<u8>)> = HashSet::new();
        for (number, record) in batch.records.iter().enumerate().rev() {
            // Only a message that can be written itself, all of it, makes others needless.
            let Ok(keys) = self.first_keys(batch, record, &encoded.takers) else { continue };
            for (map, key) in keys {
                if self.mapping.maps[map].fold && !later.insert((map, key)) {
                    encoded.folded.insert((number as u32, map));
                }
            }
        }
        encoded
    }

    /// The maps that want a message, and the first key of each; an error when it cannot be written.
    fn first_keys(
        &mut self,
        batch: &Batch,
        record: &Record,
        takers: &[Arc<[usize]>],
    ) -> Result<Vec<(usize, Vec<u8>)>, Poison> {
        let (message, mut keys, mut words) = (batch.message(record), Vec::new(), 0);
        if record.broken {
            return Err(Poison::Broken);
        }
        for &i in &*takers[record.origin as usize] {
            let map = &self.mapping.maps[i];
            let document = open(map, &message)?;
            if !map.wants(&message, &document)? {
                continue;
            }
            let mut first = None;
            for command in if message.value.is_some() { &map.commands } else { &map.tombstone } {
                let mut out = Vec::new();
                let rendered = render(command, &message, &document, self.cluster, &mut out, &mut self.scratch)?;
                words += count(&out) + 5;
                first = first.or(rendered.key.map(|(a, b)| out[a..b].to_vec()));
            }
            keys.extend(first.map(|key| (i, key)));
        }
        let most = GUARDED_WORDS_MAX;
        if self.guard.is_some() && words > most { Err(Poison::Words { most }) } else { Ok(keys) }
    }

    /// Appends the calls of one message.
    pub fn encode(&mut self, batch: &Batch, number: u32, encoded: &mut Encoded) -> Became {
        let record = &batch.records[number as usize];
        let (bytes, calls, checks) = (encoded.bytes.len(), encoded.calls.len(), encoded.checks.len());
        let message = batch.message(record);
        let origin = &batch.origins[record.origin as usize];
        let mut outcome = Ok(());
        if record.broken {
            outcome = Err(Poison::Broken);
        }
        if let Some(guard) = &mut self.guard {
            guard.parts.clear();
        }
        for &i in &*encoded.takers[record.origin as usize].clone() {
            if outcome.is_err() || encoded.folded.contains(&(number, i)) {
                continue;
            }
            let map = &self.mapping.maps[i];
            outcome = open(map, &message).and_then(|document| {
                if !map.wants(&message, &document)? {
                    return Ok(());
                }
                let commands = if message.value.is_some() { &map.commands } else { &map.tombstone };
                for command in commands {
                    if !command.when.as_ref().map_or(Ok(true), |c| c.holds(&message, &document))? {
                        continue;
                    }
                    match &mut self.guard {
                        None => {
                            let scratch = &mut self.scratch;
                            plain(command, number, &message, &document, self.cluster, encoded, scratch)?
                        }
                        Some(guard) => guard.add(command, &message, &document, self.cluster, &mut self.scratch)?,
                    }
                }
                Ok(())
            });
        }
        if let (Ok(()), Some(guard)) = (&outcome, &mut self.guard) {
            guard.finish(number, origin, record.offset, encoded);
        }
        match outcome {
            Ok(()) if encoded.calls.len() == calls => Became::Nothing,
            Ok(()) => Became::Calls(encoded.calls.len() - calls),
            Err(why) => {
                encoded.bytes.truncate(bytes);
                encoded.calls.truncate(calls);
                encoded.checks.truncate(checks);
                Became::Poison(why)
            }
        }
    }

    fn takers(&mut self, origin: &Arc<Origin>) -> Arc<[usize]> {
        if let Some(list) = self.takers.get(origin) {
            return list.clone();
        }
        let all = self.mapping.maps.iter().enumerate();
        let list: Arc<[usize]> = all.filter(|(_, m)| m.takes(&origin.topic)).map(|(i, _)| i).collect();
        self.takers.insert(origin.clone(), list.clone());
        list
    }

    /// Writes an offset where a call names its predecessor.
    pub fn set_before(bytes: &mut [u8], call: &Call, before: Option<Offset>) {
        if call.before_at > 0 {
            let at = call.from + call.before_at as usize;
            let text = fixed(before.unwrap_or_default());
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
        }
    }

    /// Whether sources have to bring headers.
    pub fn needs_headers(&self) -> bool {
        self.mapping.needs_headers()
    }

    /// Whether EXISTS is asked to confirm refusals: of scripts, functions and modules, but not inside the guard.
    pub fn asks_exists(&self) -> bool {
        self.guard.is_none() && self.mapping.scripted()
    }

    /// Whether slots decide who answers.
    pub fn cluster(&self) -> bool {
        self.cluster
    }

    /// The SHA-1 of the script, as SCRIPT LOAD told it.
    pub fn script(&self) -> Option<&str> {
        self.guard.as_ref().map(|g| g.sha.as_str())
    }
}

fn open<'a>(map: &Map, message: &Message<'a>) -> Result<Document<'a>, Poison> {
    match message.value {
        Some(value) if map.looks_inside() => Document::open(value, map.format),
        _ => Ok(Document::Closed),
    }
}

fn plain(
    command: &Command,
    number: u32,
    message: &Message<'_>,
    document: &Document<'_>,
    cluster: bool,
    encoded: &mut Encoded,
    scratch: &mut Scratch,
) -> Result<(), Poison> {
    let from = encoded.bytes.len();
    let Rendered { slot, key, expires_at } = render(command, message, document, cluster, &mut encoded.bytes, scratch)?;
    let end = encoded.bytes.len();
    let to = expires_at.unwrap_or(end);
    let (voice, check) = match key {
        _ if !command.known.scripted => (Voice::Server, (0, 0)),
        None => (Voice::Script, (0, 0)),
        Some(key) => (Voice::Script, question(command, key, from, encoded)),
    };
    let call = Call { from, to, record: number, slot, replies: 1, before_at: 0, voice, check };
    encoded.push(call);
    if to < end {
        encoded.push(Call { from: to, to: end, voice: Voice::Server, check: (0, 0), ..call });
    }
    Ok(())
}

/// Appends an EXISTS of the keys of the command that was just rendered from byte `from` on, and returns where it
/// stands.
fn question(command: &Command, key: (usize, usize), from: usize, encoded: &mut Encoded) -> (u32, u32) {
    let mut keys = vec![&encoded.bytes[key.0..key.1]];
    for key in keys_of(command, &encoded.bytes[from..]) {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    let begin = encoded.checks.len() as u32;
    write_header(&mut encoded.checks, b'*', 1 + keys.len());
    bulk(&mut encoded.checks, b"EXISTS");
    keys.iter().for_each(|key| bulk(&mut encoded.checks, key));
    (begin, encoded.checks.len() as u32)
}

impl Encoded {
    /// Appends a call, or adds it to the one before. What a script may answer is a call by itself, so that the errors
    /// of the commands beside it stay the server's words.
    fn push(&mut self, call: Call) {
        match self.calls.last_mut() {
            Some(last)
                if (last.slot, last.record, last.to) == (call.slot, call.record, call.from)
                    && [last.voice, call.voice] == [Voice::Server; 2] =>
            {
                (last.to, last.replies) = (call.to, last.replies + call.replies);
            }
            _ => self.calls.push(call),
        }
    }
}

struct Rendered {
    slot: u16,
    /// Where its key stands.
    key: Option<(usize, usize)>,
    /// Where the PEXPIRE behind it begins.
    expires_at: Option<usize>,
}

/// Appends a command, and its time to live.
fn render(
    command: &Command,
    message: &Message<'_>,
    document: &Document<'_>,
    cluster: bool,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Result<Rendered, Poison> {
    let from = out.len();
    let key = command.template.render(out, message, document, scratch)?;
    let slot = match key {
        Some((a, b)) => slot_of(&out[a..b]),
        // Without a key it follows its message's key, so that those of one key stay in order.
        None => message.key.map_or(0, slot_of),
    };
    if cluster && !keys_of(command, &out[from..]).all(|k| slot_of(k) == slot) {
        return Err(Poison::Slots);
    }
    let mut expires_at = None;
    if let (Some(ttl), Some((a, b))) = (&command.ttl_ms, key) {
        expires_at = Some(out.len());
        out.extend_from_slice(b"*3\r\n$7\r\nPEXPIRE\r\n");
        write_header(out, b'$', b - a);
        out.extend_from_within(a..b);
        out.extend_from_slice(b"\r\n");
        write_header(out, b'$', ttl.len());
        out.extend_from_slice(ttl.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    Ok(Rendered { slot, key, expires_at })
}

/// Keys of a rendered command, when there are several.
fn keys_of<'a>(command: &Command, bytes: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let arguments = count(bytes);
    // In the order of the arguments, as these are walked.
    let mut wanted: VecDeque<usize> = command.known.keys(arguments, command.counted).collect();
    let items = (wanted.len() > 1).then(|| unslow_resp::Frame::new(bytes).items().enumerate());
    items.into_iter().flatten().filter_map(move |(i, frame)| {
        let key = wanted.front() == Some(&i);
        key.then(|| wanted.pop_front()).map(|_| frame.text())
    })
}

/// N of `*N CR LF`.
fn count(bytes: &[u8]) -> usize {
    bytes[1..].iter().take_while(|b| b.is_ascii_digit()).fold(0, |n, b| n * 10 + usize::from(b - b'0'))
}

impl Guard {
    fn add(
        &mut self,
        command: &Command,
        message: &Message<'_>,
        document: &Document<'_>,
        cluster: bool,
        scratch: &mut Scratch,
    ) -> Result<(), Poison> {
        self.plain.clear();
        let Rendered { slot, key, expires_at } = render(command, message, document, cluster, &mut self.plain, scratch)?;
        let first = key.map_or(&b""[..], |(a, b)| &self.plain[a..b]);
        let keys: Vec<Vec<u8>> = [first].into_iter().chain(keys_of(command, &self.plain)).map(<[u8]>::to_vec).collect();
        let part = match self.parts.iter().position(|p| p.slot == slot) {
            Some(i) => &mut self.parts[i],
            None => {
                self.parts.push(Part { slot, keys: Vec::new(), words: 0, commands: Vec::new() });
                self.parts.last_mut().expect("just pushed")
            }
        };
        for key in keys {
            if !part.keys.contains(&key) {
                part.keys.push(key);
            }
        }
        // "*N CR LF words": the number becomes a word, the words stay as they are.
        let (first, second) = self.plain.split_at(expires_at.unwrap_or(self.plain.len()));
        // Below zero: any error may be a module's words.
        let sign = if command.known.scripted { "-" } else { "" };
        for (sign, command) in [(sign, first), ("", second)].into_iter().filter(|(_, c)| !c.is_empty()) {
            let (words, line) = (count(command), command.iter().position(|b| *b == b'\n').unwrap_or(0));
            bulk(&mut part.commands, format!("{sign}{words}").as_bytes());
            part.commands.extend_from_slice(&command[line + 1..]);
            part.words += words + 1;
        }
        if part.words > GUARDED_WORDS_MAX {
            return Err(Poison::Words { most: GUARDED_WORDS_MAX });
        }
        Ok(())
    }

    fn finish(&mut self, number: u32, origin: &Arc<Origin>, offset: Offset, encoded: &mut Encoded) {
        for part in &self.parts {
            let from = encoded.bytes.len();
            let out = &mut encoded.bytes;
            write_header(out, b'*', 3 + 1 + part.keys.len() + 3 + part.words);
            bulk(out, b"EVALSHA");
            bulk(out, self.sha.as_bytes());
            bulk(out, (1 + part.keys.len()).to_string().as_bytes());
            bulk(out, &self.keys[usize::from(part.slot)]);
            part.keys.iter().for_each(|key| bulk(out, key));
            bulk(out, origin.id.as_bytes());
            bulk(out, fixed(offset).as_bytes());
            let before = self.sent.insert((part.slot, origin.id.clone()), offset);
            let text = fixed(before.unwrap_or_default());
            bulk(out, text.as_bytes());
            let before_at = (out.len() - 2 - text.len() - from) as u32;
            out.extend_from_slice(&part.commands);
            let to = out.len();
            let (voice, check) = (Voice::Guard, (0, 0));
            encoded.calls.push(Call { from, to, record: number, slot: part.slot, replies: 1, before_at, voice, check });
        }
    }
}

fn bulk(out: &mut Vec<u8>, text: &[u8]) {
    write_header(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

/// Compared as texts by the script: both parts in twenty digits.
fn fixed(offset: Offset) -> String {
    format!("{:020}-{:020}", offset.0, offset.1)
}

/// For each slot a key in it: `PREFIX:{TAG}`.
pub fn mark_keys(prefix: &str) -> Vec<Vec<u8>> {
    let mut keys = vec![Vec::new(); usize::from(SLOTS)];
    let mut missing = keys.len();
    for n in 0u64.. {
        if missing == 0 {
            break;
        }
        let tag = format!("{n:x}");
        let key = &mut keys[usize::from(slot_of(tag.as_bytes()))];
        if key.is_empty() {
            *key = format!("{prefix}:{{{tag}}}").into_bytes();
            missing -= 1;
        }
    }
    keys
}

#[cfg(test)]
pub(crate) mod tests {
    use unslow_resp::{Frame, Scan, Scanner, quote_words};

    use super::*;
    use crate::mapping::tests::mapping;

    /// Messages of one partition as key and value, at offsets 1, 2, ...
    pub(crate) fn batch(messages: &[(&str, Option<&str>)]) -> Batch {
        let mut batch = Batch::default();
        let origin = Arc::new(Origin { topic: "t".into(), partition: 0, id: "o".into() });
        for (n, (key, value)) in messages.iter().enumerate() {
            let number = batch.origin(&origin);
            let (key, value) = (Some(batch.keep(key.as_bytes())), value.map(|v| batch.keep(v.as_bytes())));
            let (offset, headers) = (Offset(0, n as u64 + 1), (0, 0));
            batch.records.push(Record { origin: number, offset, time_ms: 0, key, value, headers, broken: false });
        }
        batch
    }

    /// Encoded commands, one per line.
    pub(crate) fn commands(mut bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        while let Ok(Scan::Complete(len)) = Scanner::default().scan(bytes) {
            lines.push(quote_words(Frame::new(&bytes[..len]).items().map(|f| f.text())));
            bytes = &bytes[len..];
        }
        assert!(bytes.is_empty(), "no whole command: {}", bytes.escape_ascii());
        lines
    }

    fn encoder(map: &str, cluster: bool, guarded: bool) -> Encoder {
        let guard = guarded.then(|| ("sha".to_string(), "name"));
        Encoder::new(
            mapping(&format!("[[map]]\n{map}"), cluster, guarded).unwrap_or_else(|e| panic!("{e}")),
            cluster,
            guard,
        )
    }

    /// Encodes a whole batch.
    fn encode(encoder: &mut Encoder, batch: &Batch) -> (Encoded, Vec<Became>) {
        let mut encoded = encoder.begin(batch);
        let became = (0..batch.records.len() as u32).map(|n| encoder.encode(batch, n, &mut encoded)).collect();
        (encoded, became)
    }

    #[test]
    fn commands_of_one_message_in_one_slot_form_one_call() {
        let map =
            "commands = [{ run = \"SET {$key} {v}\", ttl = \"2s\" }, \"DEL x{{{$key}}}\", \"ECHO {v}\", \"DEL other\"]";
        let (encoded, became) = encode(&mut encoder(map, true, false), &batch(&[("k", Some(r#"{"v": 1}"#))]));
        assert_eq!(became, [Became::Calls(2)]);
        let calls: Vec<_> =
            encoded.calls.iter().map(|c| (commands(&encoded.bytes[c.from..c.to]), c.slot, c.replies)).collect();
        let first = ["SET k 1", "PEXPIRE k 2000", "DEL x{k}", "ECHO 1"].map(str::to_string).to_vec();
        assert_eq!(calls, [(first, slot_of(b"k"), 4), (vec!["DEL other".into()], slot_of(b"other"), 1)]);
    }

    #[test]
    fn a_poison_message_leaves_no_partial_commands() {
        let mut encoder = encoder("commands = [\"SET a{$key} 1\", \"SET b {v}\"]", false, false);
        let batch =
            batch(&[("1", Some(r#"{"v": 1}"#)), ("2", Some("{}")), ("3", Some("no JSON")), ("4", Some(r#"{"v": 4}"#))]);
        let (encoded, became) = encode(&mut encoder, &batch);
        assert!(
            matches!(&became[..], [Became::Calls(2), Became::Poison(_), Became::Poison(_), Became::Calls(2)]),
            "{became:?}"
        );
        assert_eq!(became[1], Became::Poison(Poison::Missing { path: "\"v\"".into() }));
        assert!(matches!(became[2], Became::Poison(Poison::Json { .. })), "{became:?}");
        assert_eq!(commands(&encoded.bytes), ["SET a1 1", "SET b 1", "SET a4 1", "SET b 4"]);
        assert_eq!(encoded.calls.iter().map(|c| c.record).collect::<Vec<_>>(), [0, 0, 3, 3]);
    }

    #[test]
    fn keys_of_one_command_must_share_a_slot_only_in_a_cluster() {
        let batch = batch(&[("a", Some(r#"{"to": "b"}"#)), ("{t}a", Some(r#"{"to": "{t}b"}"#))]);
        for (cluster, expected) in [(false, [true, true]), (true, [false, true])] {
            let (_, became) = encode(&mut encoder("commands = [\"MSET {$key} 1 {to} 2\"]", cluster, false), &batch);
            assert_eq!([0, 1].map(|i| matches!(became[i], Became::Calls(1))), expected, "{became:?}");
        }
        let (_, became) = encode(&mut encoder("commands = [\"MSET {$key} 1 {to} 2\"]", true, false), &batch);
        assert_eq!(became[0], Became::Poison(Poison::Slots));
        // Values are not keys.
        let (_, became) = encode(&mut encoder("commands = [\"MSET {$key} {to}\"]", true, false), &batch);
        assert_eq!(became, [Became::Calls(1), Became::Calls(1)]);
    }

    #[test]
    fn folding_keeps_the_last_writable_message_of_a_key() {
        let map = "fold = \"last\"\ncommands = [\"SET {$key} {v}\"]\ntombstone = [\"DEL {$key}\"]";
        let messages = [
            ("a", Some(r#"{"v": 1}"#)),
            ("b", Some(r#"{"v": 1}"#)),
            ("a", Some(r#"{"v": 2}"#)),
            ("a", Some("{}")),
            ("c", Some(r#"{"v": 1}"#)),
            ("c", None),
        ];
        let (encoded, became) = encode(&mut encoder(map, false, false), &batch(&messages));
        assert_eq!(commands(&encoded.bytes), ["SET b 1", "SET a 2", "DEL c"]);
        assert!(matches!(became[3], Became::Poison(_)), "{became:?}");
        assert_eq!([&became[0], &became[4]], [&Became::Nothing, &Became::Nothing]);
    }

    #[test]
    fn a_guarded_call_carries_mark_keys_offset_and_predecessor() {
        let map = "commands = [{ run = \"SET {$key} {v}\", ttl = \"1s\" }, \"DEL {{{$key}}}x {$key}\"]";
        let mut encoder = encoder(map, true, true);
        let batch = batch(&[("k", Some(r#"{"v": 1}"#)), ("j", Some(r#"{"v": 1}"#)), ("k", Some(r#"{"v": 2}"#))]);
        let (mut encoded, became) = encode(&mut encoder, &batch);
        assert!(became.iter().all(|b| *b == Became::Calls(1)), "{became:?}");
        let mark = String::from_utf8(mark_keys("unslow:sink:name")[usize::from(slot_of(b"k"))].clone()).unwrap();
        let expected = |v: u64, offset: u64, before: u64| {
            format!(
                "EVALSHA sha 3 {mark} k {{k}}x o {:020}-{offset:020} {:020}-{before:020} 3 SET k {v} 3 PEXPIRE k 1000 \
                 3 DEL {{k}}x k",
                0, 0
            )
        };
        let third = encoded.calls[2];
        let line = |encoded: &Encoded, call: Call| commands(&encoded.bytes[call.from..call.to]).join("\n");
        assert_eq!(line(&encoded, encoded.calls[0]), expected(1, 1, 0));
        assert_eq!(line(&encoded, third), expected(2, 3, 1));
        // A resend may have no predecessor, or another one.
        for (before, told) in [(None, 0), (Some(Offset(0, 2)), 2)] {
            Encoder::set_before(&mut encoded.bytes, &third, before);
            assert_eq!(line(&encoded, third), expected(2, 3, told));
        }
    }

    #[test]
    fn a_message_that_cannot_be_read_or_has_too_many_words_for_the_guard_is_poison() {
        let long = format!(r#"{{"l": [{}1]}}"#, "1,".repeat(GUARDED_WORDS_MAX));
        let mut batch = batch(&[("k", Some(r#"{"l": [1]}"#)), ("k", Some(long.as_str()))]);
        batch.records[0].broken = true;
        for (guarded, second) in
            [(true, Became::Poison(Poison::Words { most: GUARDED_WORDS_MAX })), (false, Became::Calls(1))]
        {
            let (_, became) = encode(&mut encoder("commands = [\"DEL {$key} {l...}\"]", false, guarded), &batch);
            assert_eq!(became, [Became::Poison(Poison::Broken), second]);
        }
    }

    #[test]
    fn exists_is_asked_only_where_a_script_may_answer() {
        for (map, guarded, asks) in [
            ("commands = [\"SET {$key} 1\"]", false, false),
            ("commands = [\"SET {$key} 1\"]", true, false),
            ("commands = [\"EVAL s 1 {$key}\"]", false, true),
            ("commands = [\"SET {$key} 1\"]\ntombstone = [\"EVAL s 1 {$key}\"]", false, true),
        ] {
            assert_eq!(encoder(map, false, guarded).asks_exists(), asks, "{map}");
        }
    }

    #[test]
    fn every_slot_has_a_mark_key() {
        let keys = mark_keys("unslow:sink:g");
        assert!((0..SLOTS).all(|slot| slot_of(&keys[usize::from(slot)]) == slot));
        assert!(keys.iter().all(|key| key.starts_with(b"unslow:sink:g:{")));
    }
}
