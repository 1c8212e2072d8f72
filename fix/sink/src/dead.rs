//! Messages that cannot be written, set aside with the reason: in a file as JSON lines, or in a topic.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::broker::{BrokerError, Producer};
use crate::events::Letter;
use crate::private;

/// A value of which this much is kept; longer ones are found again by their offset.
const KEPT_BYTES: usize = 1 << 20;

/// Why messages are not set aside. Nothing from the first of them on is committed.
#[derive(Debug, thiserror::Error)]
pub enum DeadLetterError {
    /// There is no place for them.
    #[error(
        "{topic} [{partition}] at {offset}: {reason}; nothing behind it is committed. With --dead-letter FILE such \
         messages are set aside and the rest goes on"
    )]
    Nowhere { topic: String, partition: i32, offset: String, reason: String },
    /// The file cannot be opened.
    #[error("{}: {cause}", .path.display())]
    Open { path: PathBuf, cause: io::Error },
    /// The file cannot be written: mostly a full disk.
    #[error("{}: {cause}; the messages that belong there are not committed and come again", .path.display())]
    Write { path: PathBuf, cause: io::Error },
    /// Their topic does not take them.
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// Where they go.
pub enum DeadLetters {
    /// Nowhere: the first one ends the sink.
    Refuse,
    /// A file.
    File(PathBuf, File),
    /// A topic of the source's brokers.
    Topic(Box<Producer>),
}

impl DeadLetters {
    /// Opens a file to append to.
    pub fn file(path: &Path) -> Result<DeadLetters, DeadLetterError> {
        let opened = private::append(path);
        let file = opened.map_err(|cause| DeadLetterError::Open { path: path.to_path_buf(), cause })?;
        Ok(DeadLetters::File(path.to_path_buf(), file))
    }

    /// Sets messages aside; they are there when this returns.
    pub fn write(&mut self, letters: &[Letter]) -> Result<(), DeadLetterError> {
        match self {
            DeadLetters::Refuse => {
                let letter = &letters[0];
                Err(DeadLetterError::Nowhere {
                    topic: letter.origin.topic.clone(),
                    partition: letter.origin.partition,
                    offset: letter.offset.to_string(),
                    reason: letter.reason.clone(),
                })
            }
            DeadLetters::File(path, file) => {
                let mut text = Vec::new();
                for letter in letters {
                    let written = serde_json::to_writer(&mut text, &line(letter));
                    written.map_err(|e| DeadLetterError::Write { path: path.clone(), cause: e.into() })?;
                    text.push(b'\n');
                }
                let length = file.metadata().map_or(0, |m| m.len());
                file.write_all(&text).and_then(|()| sync(file)).map_err(|cause| {
                    let _ = file.set_len(length); // so that the next line does not continue a torn one
                    DeadLetterError::Write { path: path.clone(), cause }
                })
            }
            DeadLetters::Topic(producer) => Ok(producer.send(letters)?),
        }
    }
}

/// Pipes and terminals (`/dev/stdout`) have no disk to sync to, and say that with EINVAL.
fn sync(file: &File) -> std::io::Result<()> {
    match file.sync_data() {
        Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
        other => other,
    }
}

fn line(letter: &Letter) -> serde_json::Value {
    let mut line = serde_json::json!({
        "topic": letter.origin.topic,
        "partition": letter.origin.partition,
        "offset": letter.offset.to_string(),
        "reason": letter.reason,
    });
    if letter.time_ms != 0 {
        line["time_ms"] = letter.time_ms.into();
    }
    for (name, bytes) in [("key", &letter.key), ("value", &letter.value)] {
        let Some(bytes) = bytes else { continue };
        put(&mut line, name, bytes);
    }
    if !letter.headers.is_empty() {
        let mut headers = serde_json::json!({});
        letter.headers.iter().for_each(|(name, value)| put(&mut headers, name, value));
        line["headers"] = headers;
    }
    line
}

fn put(line: &mut serde_json::Value, name: &str, bytes: &[u8]) {
    let kept = &bytes[..bytes.len().min(KEPT_BYTES)];
    if kept.len() < bytes.len() {
        line[format!("{name}_bytes")] = bytes.len().into();
    }
    match std::str::from_utf8(kept) {
        Ok(text) => line[name] = text.into(),
        Err(_) => line[format!("{name}_base64")] = BASE64_STANDARD.encode(kept).into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::record::{Offset, Origin};

    #[test]
    fn a_file_that_cannot_be_opened_is_told_from_one_that_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let (missing, here) = (dir.path().join("no/such/place"), dir.path().join("letters"));
        let error = DeadLetters::file(&missing).err().expect("a refusal");
        assert!(matches!(&error, DeadLetterError::Open { path, .. } if *path == missing), "{error:?}");
        assert!(!error.to_string().contains("not committed"), "{error}");
        std::fs::write(&here, "").unwrap();
        // Opened for reading, so that writing fails.
        let mut letters = DeadLetters::File(here.clone(), File::open(&here).unwrap());
        let letter = Letter {
            origin: Arc::new(Origin { topic: "t".into(), partition: 3, id: "o".into() }),
            offset: Offset(5, 7),
            time_ms: 9,
            key: None,
            value: None,
            headers: Vec::new(),
            reason: "bad".into(),
        };
        let error = letters.write(std::slice::from_ref(&letter)).unwrap_err();
        assert!(matches!(&error, DeadLetterError::Write { path, .. } if *path == here), "{error:?}");
        assert!(error.to_string().contains("; the messages that belong there are not committed"), "{error}");
        let error = DeadLetters::Refuse.write(&[letter]).unwrap_err();
        let DeadLetterError::Nowhere { topic, partition: 3, offset, reason } = &error else { panic!("{error:?}") };
        assert_eq!([topic.as_str(), offset.as_str(), reason.as_str()], ["t", "5-7", "bad"]);
    }

    #[test]
    fn letters_can_be_written_to_a_pipe() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let letter = Letter {
            origin: Arc::new(Origin { topic: "t".into(), partition: 3, id: "o".into() }),
            offset: Offset(5, 7),
            time_ms: 9,
            key: None,
            value: None,
            headers: Vec::new(),
            reason: "bad".into(),
        };
        let mut letters = DeadLetters::File("/dev/stdout".into(), file);
        letters.write(&[letter]).unwrap();
        drop(letters);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert!(text.contains("\"reason\":\"bad\"") && text.ends_with('\n'), "{text}");
    }

    #[test]
    fn a_dead_letter_encodes_binary_and_notes_the_length_of_a_cut_value() {
        let mut long = vec![b'x'; KEPT_BYTES];
        long.push(b'y');
        let letter = Letter {
            origin: Arc::new(Origin { topic: "t".into(), partition: 3, id: "o".into() }),
            offset: Offset(5, 7),
            time_ms: 9,
            key: Some(vec![0xff, 0]),
            value: Some(long),
            headers: vec![("h".into(), b"1".to_vec()), ("b".into(), vec![0xfe])],
            reason: "bad".into(),
        };
        let line = line(&letter);
        for (name, expected) in [
            ("topic", serde_json::json!("t")),
            ("partition", serde_json::json!(3)),
            ("offset", serde_json::json!("5-7")),
            ("time_ms", serde_json::json!(9)),
            ("key_base64", serde_json::json!("/wA=")),
            ("value_bytes", serde_json::json!(KEPT_BYTES + 1)),
            ("headers", serde_json::json!({ "h": "1", "b_base64": "/g==" })),
        ] {
            assert_eq!(line[name], expected, "{name}");
        }
        assert_eq!(line["value"].as_str().map(str::len), Some(KEPT_BYTES));
        assert!(line.get("key").is_none());
        // A tombstone has no value, which is not an empty one.
        let tombstone = super::line(&Letter { value: None, time_ms: 0, ..letter });
        assert!(tombstone.get("value").is_none() && tombstone.get("time_ms").is_none());
    }
}
