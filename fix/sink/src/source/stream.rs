//! A stream of a Redis or Valkey server, read as a consumer of a group: entries become JSON objects of their fields.
//! What this consumer was given and has not acknowledged comes first.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Error, Options, Target, Value};

use crate::record::{Batch, Offset, Origin, Record};
use crate::source::{Clock, Limit, Read, Source, SourceError};

/// Entries asked for at once: a reply has to fit into memory whole.
const ENTRIES_MAX: usize = 500;

/// Which stream, as whom.
#[derive(Clone, Debug)]
pub struct StreamSettings {
    /// The server it is on.
    pub target: Target,
    /// How to connect.
    pub options: Options,
    /// Its key.
    pub key: String,
    /// Made when it is missing, from the stream's beginning.
    pub group: String,
    /// Our name in it; the same in the next run.
    pub consumer: String,
    /// Ends when there is nothing new.
    pub until_end: bool,
}

/// A stream of a server, read as a member of a consumer group.
pub struct Stream {
    settings: StreamSettings,
    connection: Option<Connection>,
    origin: Arc<Origin>,
    /// What came last of the entries given to us before; `None` when these are done.
    old: Option<String>,
    given: VecDeque<Offset>,
    pending: Vec<Offset>,
    retry_at: Instant,
    note: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Stream {
    /// Connects, and makes the group where it is missing.
    pub fn open(settings: StreamSettings, note: Arc<dyn Fn(&str) + Send + Sync>) -> Result<Stream, SourceError> {
        // What one consumer is given comes in order; what two are given does not.
        let id = format!("stream:{}/{}/{}", settings.target.address(), settings.key, settings.consumer).into();
        let mut stream = Stream {
            origin: Arc::new(Origin { topic: settings.key.clone(), partition: 0, id }),
            settings,
            connection: None,
            old: Some("0".into()),
            given: VecDeque::new(),
            pending: Vec::new(),
            retry_at: Instant::now(),
            note,
        };
        stream.connect().map_err(SourceError::Server)?;
        Ok(stream)
    }

    fn connect(&mut self) -> Result<(), Error> {
        let mut connection = Connection::open(&self.settings.target, &self.settings.options)?;
        let (key, group) = (self.settings.key.as_str(), self.settings.group.as_str());
        match connection.call(&["XGROUP", "CREATE", key, group, "0", "MKSTREAM"]) {
            Ok(_) => {}
            Err(e) if e.code() == Some("BUSYGROUP") => {} // the group is there
            Err(e) => return Err(e),
        }
        self.connection = Some(connection);
        // What is given and not acknowledged, from the beginning; what is under way is passed over.
        self.old = Some("0".into());
        Ok(())
    }

    /// Entries, or `None` while the server cannot be asked.
    fn ask(&mut self, count: usize, block: Duration) -> Result<Option<Vec<(Offset, Value)>>, SourceError> {
        if self.connection.is_none() {
            if Instant::now() < self.retry_at {
                std::thread::sleep(block.min(Duration::from_millis(20)));
                return Ok(None);
            }
            if let Err(e) = self.connect() {
                self.retry_at = Instant::now() + Duration::from_millis(500);
                (self.note)(&format!("the stream's server: {e}; trying again"));
                return Ok(None);
            }
        }
        let connection = self.connection.as_mut().expect("just connected");
        let (count, block) = (count.min(ENTRIES_MAX).to_string(), block.as_millis().max(1).to_string());
        let from = self.old.clone().unwrap_or(">".into());
        let s = &self.settings;
        let reply = connection.call(&[
            "XREADGROUP",
            "GROUP",
            &s.group,
            &s.consumer,
            "COUNT",
            &count,
            "BLOCK",
            &block,
            "STREAMS",
            &s.key,
            &from,
        ]);
        match reply {
            Ok(value) => {
                let entries = entries(&value).ok_or(SourceError::NoEntries)?;
                if let Some(old) = &mut self.old {
                    match entries.last() {
                        Some((last, _)) => *old = last.pair(),
                        None => self.old = None,
                    }
                }
                Ok(Some(entries))
            }
            Err(e) if e.is_fatal() => {
                (self.note)(&format!("the stream's server: {e}"));
                self.connection = None;
                self.retry_at = Instant::now() + Duration::from_millis(100);
                Ok(None)
            }
            Err(e) if passes(e.code()) => {
                (self.note)(&format!("the stream's server: {e}; trying again"));
                self.connection = None;
                self.retry_at = Instant::now() + Duration::from_millis(500);
                Ok(None)
            }
            Err(cause) => Err(SourceError::Stream { key: s.key.clone(), cause }),
        }
    }

    fn acknowledge(&mut self) {
        while !self.pending.is_empty() {
            let Some(connection) = &mut self.connection else { return };
            let some: Vec<Offset> = self.pending.iter().take(1000).copied().collect();
            let mut command = vec!["XACK".to_string(), self.settings.key.clone(), self.settings.group.clone()];
            command.extend(some.iter().map(|id| id.pair()));
            match connection.call(&command) {
                Ok(_) => drop(self.pending.drain(..some.len())),
                Err(e) => {
                    (self.note)(&format!("the stream's server: {e}; acknowledged entries are told again"));
                    if e.is_fatal() {
                        self.connection = None;
                    }
                    return;
                }
            }
        }
    }
}

/// Whether to ask again after an error reply with this code word: another server may have the stream now, and the group
/// is made again where it is missing.
fn passes(code: Option<&str>) -> bool {
    matches!(code, Some("LOADING" | "NOGROUP" | "READONLY" | "MOVED" | "CLUSTERDOWN"))
}

impl Offset {
    fn pair(self) -> String {
        format!("{}-{}", self.0, self.1)
    }
}

/// `[[stream, [[id, [field, value, ..]], ..]]]`, in RESP3 without the second bracket, or null.
fn entries(value: &Value) -> Option<Vec<(Offset, Value)>> {
    let list = match value.items() {
        [] => return Some(Vec::new()),
        [one, ..] if !one.items().is_empty() => one.items().get(1)?,
        streams => streams.get(1)?,
    };
    list.items()
        .iter()
        .map(|entry| {
            let id = entry.items().first()?.text()?;
            let (ms, n) = id.split_once('-')?;
            let fields = entry.items().get(1).cloned().unwrap_or(Value::Null);
            Some((Offset(ms.parse().ok()?, n.parse().ok()?), fields))
        })
        .collect()
}

impl Source for Stream {
    fn read(&mut self, batch: &mut Batch, limit: Limit) -> Result<Read, SourceError> {
        let mut clock = Clock::new(limit);
        loop {
            let room = limit.messages.saturating_sub(batch.records.len());
            if limit.full(batch) || room == 0 {
                return Ok(Read::Open);
            }
            let Some(left) = clock.left(batch) else { return Ok(Read::Open) };
            let was_old = self.old.is_some();
            let Some(found) = self.ask(room, left)? else { continue };
            if found.is_empty() && !was_old && self.settings.until_end {
                return Ok(Read::End);
            }
            for (id, fields) in found {
                if was_old && (self.given.contains(&id) || self.pending.contains(&id)) {
                    continue; // it is under way
                }
                self.given.push_back(id);
                let mut object = serde_json::Map::new();
                let mut broken = false;
                for pair in fields.items().chunks(2) {
                    let [name, value] = pair else { break };
                    let text = |v: &Value| match v {
                        Value::Text(bytes) => String::from_utf8(bytes.clone()).ok(),
                        other => other.text(),
                    };
                    match (text(name), text(value)) {
                        (Some(name), Some(value)) => drop(object.insert(name, value.into())),
                        _ => broken = true,
                    }
                }
                // An entry deleted from the stream is still owed an acknowledgement; it has no fields, like a
                // tombstone.
                let value = (!object.is_empty() || broken)
                    .then(|| batch.keep(serde_json::Value::Object(object).to_string().as_bytes()));
                let key = Some(batch.keep(id.pair().as_bytes()));
                let origin = batch.origin(&self.origin);
                let time_ms = id.0 as i64;
                batch.records.push(Record { origin, offset: id, time_ms, key, value, headers: (0, 0), broken });
            }
        }
    }

    fn commit(&mut self, ends: Vec<(Arc<Origin>, Offset)>) -> Result<(), SourceError> {
        if let Some(end) = ends.into_iter().map(|(_, end)| end).max() {
            while let Some(id) = self.given.front().copied().filter(|id| *id <= end) {
                self.pending.push(id);
                self.given.pop_front();
            }
        }
        self.acknowledge();
        Ok(())
    }

    fn close(&mut self) -> Result<(), SourceError> {
        if self.connection.is_none() && !self.pending.is_empty() {
            let entries = self.pending.len();
            self.connect().map_err(|cause| SourceError::Unacknowledged { entries, cause })?;
        }
        self.acknowledge();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::Text(text.as_bytes().to_vec())
    }

    #[test]
    fn an_error_of_the_streams_server_passes_by_its_code_word_alone() {
        for (code, again) in [
            (Some("LOADING"), true),
            (Some("NOGROUP"), true),
            (Some("READONLY"), true),
            (Some("MOVED"), true),
            (Some("CLUSTERDOWN"), true),
            (Some("WRONGTYPE"), false),
            (Some("NOPERM"), false),
            (Some("ERR"), false),
            (None, false),
        ] {
            assert_eq!(passes(code), again, "{code:?}");
        }
    }

    #[test]
    fn a_stream_whose_server_is_away_at_the_end_says_how_much_comes_again() {
        use unslow_client::ErrorKind;
        let mut stream = Stream {
            settings: StreamSettings {
                target: Target::parse("redis://127.0.0.1:1").unwrap(),
                options: Options::default(),
                key: "events".into(),
                group: "g".into(),
                consumer: "c".into(),
                until_end: false,
            },
            connection: None,
            origin: Arc::new(Origin { topic: "events".into(), partition: 0, id: "o".into() }),
            old: None,
            given: VecDeque::new(),
            pending: vec![Offset(5, 1), Offset(5, 2)],
            retry_at: Instant::now(),
            note: Arc::new(|_: &str| {}),
        };
        let error = stream.close().unwrap_err();
        let SourceError::Unacknowledged { entries: 2, cause } = &error else { panic!("{error:?}") };
        assert_eq!(cause.kind, ErrorKind::Unreachable);
        assert!(error.to_string().ends_with("; 2 entries are not acknowledged and come again"), "{error}");
    }

    #[test]
    fn stream_entries_are_read_from_resp2_and_resp3_replies() {
        let entry = |id: &str, fields: Value| Value::Array(vec![text(id), fields]);
        let fields = Value::Array(vec![text("f"), text("v")]);
        let list = Value::Array(vec![entry("5-1", fields.clone()), entry("5-2", Value::Null)]);
        let expected = vec![(Offset(5, 1), fields), (Offset(5, 2), Value::Null)];
        let resp2 = Value::Array(vec![Value::Array(vec![text("s"), list.clone()])]);
        let resp3 = Value::Array(vec![text("s"), list]);
        assert_eq!(entries(&resp2), Some(expected.clone()));
        assert_eq!(entries(&resp3), Some(expected));
        assert_eq!(entries(&Value::Null), Some(Vec::new()));
        let odd = Value::Array(vec![text("s"), Value::Array(vec![entry("5", Value::Null)])]);
        assert_eq!(entries(&odd), None);
    }
}
