//! Lines of a file or of standard input: a message each, its place the number of the line.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read as _, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::private;
use crate::record::{Batch, Offset, Origin, Record};
use crate::source::{Clock, Limit, Read, Source, SourceError};

/// A longer line is no message: room for an argument of the servers' own limit, and some.
const LINE_BYTES_MAX: usize = 600 << 20;
const CHUNK: usize = 256 << 10;

/// A file or standard input, a message a line.
pub struct Lines {
    note: Arc<dyn Fn(&str) + Send + Sync>,
    input: File,
    origin: Arc<Origin>,
    /// Lines are `{"key": .., "value": .., "topic": ..}`.
    envelope: bool,
    /// Topics and partitions that envelopes named.
    named: BTreeMap<(String, i32), Arc<Origin>>,
    buffer: Vec<u8>,
    at: usize,
    /// Looked at from `at` on without a line's end.
    seen: usize,
    line: u64,
    /// Bytes in front of `buffer[at]` in the file.
    position: u64,
    /// The rest of a line that was too long is thrown away.
    skipping: bool,
    ended: bool,
    checkpoint: Option<Checkpoint>,
}

struct Checkpoint {
    path: PathBuf,
    /// At the ends of batches: the last message's line, the line and the byte where the next one begins.
    ends: VecDeque<(u64, u64, u64)>,
    done: Option<(u64, u64)>,
    /// Which file it is.
    id: Arc<str>,
    written: Instant,
}

/// A line of `--envelope`.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow, default)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    value: Option<&'a RawValue>,
    #[serde(borrow, default)]
    topic: Option<Cow<'a, str>>,
    #[serde(default)]
    partition: i32,
    #[serde(default)]
    time_ms: i64,
    #[serde(borrow, default)]
    headers: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

impl Lines {
    /// `-` is standard input. With `checkpoint` the place is kept there, and taken up again.
    pub fn open(
        path: &str,
        envelope: bool,
        checkpoint: Option<&Path>,
        note: Arc<dyn Fn(&str) + Send + Sync>,
    ) -> Result<Lines, SourceError> {
        let failed = |cause| SourceError::Input { path: path.to_string(), cause };
        let mut input = match path {
            "-" => {
                let fd = rustix::io::dup(std::io::stdin());
                File::from(fd.map_err(|e| SourceError::Input { path: "standard input".into(), cause: e.into() })?)
            }
            path => File::open(path).map_err(failed)?,
        };
        if input.metadata().is_ok_and(|m| m.is_dir()) {
            return Err(SourceError::Directory { path: path.to_string() });
        }
        let id = identity(&input, path);
        let (mut line, mut position) = (0, 0);
        if let Some(checkpoint) = checkpoint {
            if path == "-" {
                return Err(SourceError::CheckpointOfStandardInput);
            }
            let place = || checkpoint.to_path_buf();
            let text = match std::fs::read_to_string(checkpoint) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => String::new(),
                text => text.map_err(|cause| SourceError::Checkpoint { path: place(), cause })?,
            };
            if !text.is_empty() {
                let mut words = text.split_whitespace();
                let mut number = || words.next().and_then(|w| w.parse().ok());
                let (Some(l), Some(p)) = (number(), number()) else {
                    return Err(SourceError::NoCheckpoint { path: place() });
                };
                let size = input.metadata().map_or(u64::MAX, |m| m.len());
                if words.next() != Some(&*id) || p > size {
                    return Err(SourceError::OtherFile { path: place(), input: path.to_string() });
                }
                (line, position) = (l, p);
                input.seek(SeekFrom::Start(position)).map_err(failed)?;
            }
        }
        let id_of_checkpoint = id.clone();
        Ok(Lines {
            note,
            input,
            origin: Arc::new(Origin { topic: path.to_string(), partition: 0, id }),
            envelope,
            named: BTreeMap::new(),
            buffer: Vec::new(),
            at: 0,
            seen: 0,
            line,
            position,
            skipping: false,
            ended: false,
            checkpoint: checkpoint.map(|path| Checkpoint {
                id: id_of_checkpoint,
                path: path.to_path_buf(),
                ends: VecDeque::new(),
                done: None,
                written: Instant::now(),
            }),
        })
    }

    /// Whether there are bytes to read, within that time.
    fn readable(&self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(&self.input, PollFlags::IN)];
        let time = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
        // An interrupted poll is asked again by who waits.
        poll(&mut fds, Some(&time)).is_ok_and(|n| n > 0)
    }

    /// Appends what is there to the buffer.
    fn fetch(&mut self) -> Result<(), SourceError> {
        if self.at > 0 {
            self.buffer.drain(..self.at);
            self.at = 0;
        }
        let from = self.buffer.len();
        self.buffer.resize(from + CHUNK, 0);
        let read = self.input.read(&mut self.buffer[from..]);
        let n = match read {
            Ok(n) => n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {
                self.buffer.truncate(from);
                return Ok(());
            }
            Err(cause) => return Err(SourceError::Input { path: self.origin.topic.clone(), cause }),
        };
        self.buffer.truncate(from + n);
        self.ended = n == 0;
        Ok(())
    }

    fn add(&mut self, batch: &mut Batch, from: usize, to: usize) {
        self.line += 1;
        let text = &self.buffer[from..to];
        let text = text.strip_suffix(b"\r").unwrap_or(text);
        if text.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let mut record = Record {
            origin: 0,
            offset: Offset(0, self.line),
            time_ms: 0,
            key: None,
            value: None,
            headers: (0, 0),
            broken: false,
        };
        if !self.envelope {
            (record.origin, record.value) = (batch.origin(&self.origin), Some(batch.keep(text)));
            batch.records.push(record);
            return;
        }
        match serde_json::from_slice::<Envelope<'_>>(text) {
            Err(_) => {
                record.broken = true;
                (record.origin, record.value) = (batch.origin(&self.origin), Some(batch.keep(text)));
            }
            Ok(envelope) => {
                let origin = match &envelope.topic {
                    None => self.origin.clone(),
                    // All topics of a file are in the one order of its lines.
                    Some(topic) => {
                        let name = (topic.to_string(), envelope.partition);
                        let id = self.origin.id.clone();
                        let new = || Arc::new(Origin { topic: name.0.clone(), partition: name.1, id });
                        self.named.entry(name.clone()).or_insert_with(new).clone()
                    }
                };
                record.origin = batch.origin(&origin);
                record.time_ms = envelope.time_ms;
                record.key = envelope.key.as_ref().map(|k| batch.keep(k.as_bytes()));
                record.value = envelope.value.filter(|v| v.get() != "null").map(|v| {
                    // A string is its text, anything else the JSON that it is.
                    match serde_json::from_str::<String>(v.get()) {
                        Ok(text) => batch.keep(text.as_bytes()),
                        Err(_) => batch.keep(v.get().as_bytes()),
                    }
                });
                let first = batch.headers.len() as u32;
                for (name, value) in &envelope.headers {
                    let pair = (batch.keep(name.as_bytes()), batch.keep(value.as_bytes()));
                    batch.headers.push(pair);
                }
                record.headers = (first, envelope.headers.len() as u32);
            }
        }
        batch.records.push(record);
    }
}

/// The same for the same file in another run, and another for another file under its name: its device, its inode, and
/// what its first line is.
fn identity(input: &File, path: &str) -> Arc<str> {
    let Ok(metadata) = input.metadata() else { return "stdin".into() };
    if path == "-" {
        return "stdin".into();
    }
    let mut head = [0; 4096];
    // A pipe cannot be read twice.
    let n = if metadata.is_file() { input.read_at(&mut head, 0).unwrap_or(0) } else { 0 };
    let line = head[..n].split(|b| *b == b'\n').next().unwrap_or_default();
    let digest: String = Sha256::digest(line).iter().take(6).map(|b| format!("{b:02x}")).collect();
    format!("file:{:x}:{:x}:{digest}", metadata.dev(), metadata.ino()).into()
}

impl Source for Lines {
    fn read(&mut self, batch: &mut Batch, limit: Limit) -> Result<Read, SourceError> {
        let mut clock = Clock::new(limit);
        while !limit.full(batch) {
            let rest = &self.buffer[self.at..];
            let end = memchr::memchr(b'\n', &rest[self.seen..]).map(|n| self.seen + n);
            let (len, taken) = match end {
                Some(end) => (end, end + 1),
                // With a checkpoint somebody may be about to write the rest of it: the next run reads it.
                None if self.ended && self.checkpoint.is_some() => break,
                None if self.ended && !rest.is_empty() => (rest.len(), rest.len()),
                None if self.ended => break,
                None if rest.len() > LINE_BYTES_MAX => {
                    // Enough of it to be recognized; the rest is thrown away up to its end.
                    if !self.skipping {
                        let value = batch.keep(&rest[..1024]);
                        let origin = batch.origin(&self.origin);
                        let offset = Offset(0, self.line + 1);
                        let (key, value, headers) = (None, Some(value), (0, 0));
                        batch.records.push(Record { origin, offset, time_ms: 0, key, value, headers, broken: true });
                    }
                    self.skipping = true;
                    self.position += rest.len() as u64;
                    (self.at, self.seen) = (self.buffer.len(), 0);
                    continue;
                }
                None => {
                    self.seen = rest.len();
                    let Some(left) = clock.left(batch) else { break };
                    if self.readable(left) {
                        self.fetch()?;
                    }
                    continue;
                }
            };
            let from = self.at;
            (self.at, self.seen) = (from + taken, 0);
            self.position += taken as u64;
            if std::mem::take(&mut self.skipping) {
                self.line += 1;
            } else {
                self.add(batch, from, from + len);
            }
        }
        if let (Some(checkpoint), Some(last)) = (&mut self.checkpoint, batch.records.last()) {
            checkpoint.ends.push_back((last.offset.1, self.line, self.position));
        }
        let rest = &self.buffer[self.at..];
        if !self.ended || rest.contains(&b'\n') || !rest.is_empty() && self.checkpoint.is_none() {
            return Ok(Read::Open);
        }
        if !rest.is_empty() {
            (self.note)(&format!("{}: the last line has no end yet; the next run reads it", self.origin.topic));
        }
        Ok(Read::End)
    }

    fn commit(&mut self, ends: Vec<(Arc<Origin>, Offset)>) -> Result<(), SourceError> {
        let Some(checkpoint) = &mut self.checkpoint else { return Ok(()) };
        let last = ends.iter().map(|(_, end)| end.1).max().unwrap_or(0);
        while let Some((_, line, byte)) = checkpoint.ends.front().copied().filter(|(end, ..)| *end <= last) {
            checkpoint.done = Some((line, byte));
            checkpoint.ends.pop_front();
        }
        if checkpoint.written.elapsed() >= Duration::from_millis(100) {
            checkpoint.write()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), SourceError> {
        self.checkpoint.as_mut().map_or(Ok(()), Checkpoint::write)
    }
}

impl Checkpoint {
    /// Whole or not at all.
    fn write(&mut self) -> Result<(), SourceError> {
        let Some((line, position)) = self.done.take() else { return Ok(()) };
        let text = format!("{line} {position} {}\n", self.id);
        let written = private::replace(&self.path, &text);
        written.map_err(|cause| SourceError::Checkpoint { path: self.path.clone(), cause })?;
        self.written = Instant::now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;

    use super::*;

    fn open(path: &Path, envelope: bool, checkpoint: Option<&Path>) -> Result<Lines, SourceError> {
        Lines::open(&path.display().to_string(), envelope, checkpoint, Arc::new(|_: &str| {}))
    }

    /// Reads batches of two messages to the end.
    fn read_all(lines: &mut Lines) -> Vec<Batch> {
        let second = Duration::from_secs(1); // never elapses: a file is always readable
        let limit = Limit { messages: 2, bytes: 1 << 20, patience: second, linger: second };
        let mut batches = Vec::new();
        loop {
            let mut batch = Batch::default();
            let read = lines.read(&mut batch, limit).unwrap();
            batches.push(batch);
            if read == Read::End {
                batches.retain(|b| !b.records.is_empty());
                return batches;
            }
        }
    }

    /// Line number and value of each message.
    fn values(batches: &[Batch]) -> Vec<(u64, String)> {
        let value =
            |b: &Batch, r: &Record| String::from_utf8_lossy(b.message(r).value.unwrap_or(b"(none)")).into_owned();
        batches.iter().flat_map(|b| b.records.iter().map(move |r| (r.offset.1, value(b, r)))).collect()
    }

    #[test]
    fn blank_lines_count_but_are_not_messages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        std::fs::write(&path, "a\r\n\n \t\nb\nc").unwrap();
        let found = values(&read_all(&mut open(&path, false, None).unwrap()));
        assert_eq!(found, [(1, "a".to_string()), (4, "b".to_string()), (5, "c".to_string())]);
    }

    #[test]
    fn envelopes_are_opened_and_broken_ones_keep_their_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines");
        let text = [
            r#"{"key":"k","value":{"a": 1},"topic":"t","partition":2,"time_ms":5,"headers":{"h":"1"}}"#,
            r#"{"key":"k","value":null,"topic":"t","partition":2}"#,
            "{\"key\":",
            r#"{"value":"said \"so\""}"#,
        ];
        std::fs::write(&path, text.join("\n")).unwrap();
        let batches = read_all(&mut open(&path, true, None).unwrap());
        let expected = [(1, r#"{"a": 1}"#), (2, "(none)"), (3, text[2]), (4, r#"said "so""#)];
        assert_eq!(values(&batches), expected.map(|(n, value)| (n, value.to_string())));
        let records: Vec<(&Batch, &Record)> =
            batches.iter().flat_map(|b| b.records.iter().map(move |r| (b, r))).collect();
        assert_eq!(records.iter().map(|(_, r)| r.broken).collect::<Vec<_>>(), [false, false, true, false]);
        let first = records[0].0.message(records[0].1);
        assert_eq!((first.topic, first.partition, first.key, first.time_ms), ("t", 2, Some(&b"k"[..]), 5));
        assert_eq!(first.headers, [("h", &b"1"[..])]);
        // All topics in a file share the order of its lines, and so its marks.
        let ids = records.iter().map(|(b, r)| b.origins[r.origin as usize].id.clone());
        assert!(ids.collect::<Vec<_>>().windows(2).all(|w| w[0] == w[1]));
    }

    #[test]
    fn a_checkpoint_resumes_after_the_last_committed_batch() {
        let dir = tempfile::tempdir().unwrap();
        let (path, place) = (dir.path().join("lines"), dir.path().join("place"));
        std::fs::write(&path, "a\nb\nc\nd\ne").unwrap();
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = said.clone();
        let note = Arc::new(move |text: &str| heard.lock().unwrap().push(text.to_string()));
        let mut lines = Lines::open(&path.display().to_string(), false, Some(&place), note).unwrap();
        let batches = read_all(&mut lines);
        // The last line may still be in the making.
        assert_eq!(values(&batches).last(), Some(&(4, "d".to_string())));
        assert!(said.lock().unwrap()[0].contains("the last line has no end yet"));
        lines.commit(batches[0].ends()).unwrap();
        lines.close().unwrap();
        let text = std::fs::read_to_string(&place).unwrap();
        assert!(text.starts_with("2 4 file:") && text.ends_with('\n'), "{text}");

        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(b"!\n").unwrap();
        let mut again = open(&path, false, Some(&place)).unwrap();
        let batches = read_all(&mut again);
        assert_eq!(values(&batches), [(3, "c".to_string()), (4, "d".to_string()), (5, "e!".to_string())]);
        again.commit(batches.iter().flat_map(Batch::ends).collect()).unwrap();
        again.close().unwrap();
        assert!(read_all(&mut open(&path, false, Some(&place)).unwrap()).is_empty());

        // Another file under the same name.
        std::fs::write(&path, "other lines, more of them\n").unwrap();
        let why = open(&path, false, Some(&place)).err().expect("a refusal");
        assert!(matches!(&why, SourceError::OtherFile { path, .. } if *path == place), "{why:?}");
        assert!(why.to_string().contains("is the place in another file"), "{why}");
        std::fs::write(&place, "no numbers").unwrap();
        let why = open(&path, false, Some(&place)).err().expect("a refusal");
        assert!(matches!(&why, SourceError::NoCheckpoint { path } if *path == place), "{why:?}");
        assert!(why.to_string().contains("no checkpoint: "), "{why}");
    }

    #[test]
    fn inputs_and_checkpoints_that_cannot_be_read_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (lines, missing) = (dir.path().join("lines"), dir.path().join("missing"));
        std::fs::write(&lines, "a\n").unwrap();
        let failed = |path: &Path, checkpoint: Option<&Path>| open(path, false, checkpoint).err().expect("a refusal");
        let not_found = std::io::ErrorKind::NotFound;
        let why = failed(&missing, None);
        assert!(matches!(&why, SourceError::Input { cause, .. } if cause.kind() == not_found), "{why:?}");
        assert!(why.to_string().starts_with(&format!("{}: ", missing.display())), "{why}");
        let why = failed(dir.path(), None);
        assert!(matches!(why, SourceError::Directory { .. }), "{why:?}");
        let why = failed(&lines, Some(dir.path()));
        assert!(matches!(&why, SourceError::Checkpoint { path, .. } if path == dir.path()), "{why:?}");
        let why = failed(Path::new("-"), Some(missing.as_path()));
        assert!(matches!(why, SourceError::CheckpointOfStandardInput), "{why:?}");
        // A place that cannot be written is found when it is written.
        let mut input = open(&lines, false, Some(missing.join("place").as_path())).unwrap();
        let batches = read_all(&mut input);
        let committed = input.commit(batches.iter().flat_map(Batch::ends).collect());
        let why = committed.and_then(|()| input.close()).unwrap_err();
        assert!(matches!(&why, SourceError::Checkpoint { cause, .. } if cause.kind() == not_found), "{why:?}");
    }
}
