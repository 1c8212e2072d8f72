//! Messages as sources hand them on: many at once, their bytes in one piece of memory.

use std::sync::Arc;
use std::time::Instant;

/// First byte and length.
pub type Span = (u32, u32);

/// Where messages come from in one order: a partition of a topic, a file, a stream.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Topic, path of the file, key of the stream.
    pub topic: String,
    /// 0 outside Kafka.
    pub partition: i32,
    /// Under which marks of `exactly_once` are kept: the same for the same messages in another run, never for others.
    pub id: Arc<str>,
}

/// Grows with every message of one origin. Kafka: 0 and the offset; files: 0 and the number of the line; streams: both
/// parts of the id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offset(pub u64, pub u64);

impl std::fmt::Display for Offset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Offset(0, n) => write!(f, "{n}"),
            Offset(a, b) => write!(f, "{a}-{b}"),
        }
    }
}

/// One message of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Of [`Batch::origins`].
    pub origin: u32,
    /// Its place there.
    pub offset: Offset,
    /// When it was made, in milliseconds of Unix time; 0 where nobody says.
    pub time_ms: i64,
    /// Its key in [`Batch::bytes`].
    pub key: Option<Span>,
    /// Its value; `None` for a tombstone.
    pub value: Option<Span>,
    /// Its headers in [`Batch::headers`].
    pub headers: Span,
    /// The source could not read it; the value is what there was.
    pub broken: bool,
}

/// What was read in one go.
#[derive(Debug, Default)]
pub struct Batch {
    /// Counts from 0.
    pub number: u64,
    /// Keys, values, headers.
    pub bytes: Vec<u8>,
    /// In the order they were read.
    pub records: Vec<Record>,
    /// Names and values in `bytes`.
    pub headers: Vec<(Span, Span)>,
    /// Where they come from.
    pub origins: Vec<Arc<Origin>>,
    /// When it was handed on.
    pub ready: Option<Instant>,
}

/// A message as a mapping sees it.
pub struct Message<'a> {
    /// Topic, path or stream.
    pub topic: &'a str,
    /// 0 outside Kafka.
    pub partition: i32,
    /// Place in it.
    pub offset: Offset,
    /// Milliseconds of Unix time, or 0.
    pub time_ms: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// `None` for a tombstone.
    pub value: Option<&'a [u8]>,
    /// Names and values.
    pub headers: Vec<(&'a str, &'a [u8])>,
}

impl Batch {
    /// Appends bytes. A batch of 4 GB and more is refused by who fills it.
    pub fn keep(&mut self, bytes: &[u8]) -> Span {
        let from = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        (from, bytes.len() as u32)
    }

    /// The number of an origin, which is most often the last one's.
    pub fn origin(&mut self, origin: &Arc<Origin>) -> u32 {
        match self.origins.iter().rposition(|o| Arc::ptr_eq(o, origin)) {
            Some(number) => number as u32,
            None => {
                self.origins.push(origin.clone());
                self.origins.len() as u32 - 1
            }
        }
    }

    fn slice(&self, (from, len): Span) -> &[u8] {
        &self.bytes[from as usize..from as usize + len as usize]
    }

    /// One of its messages.
    pub fn message(&self, record: &Record) -> Message<'_> {
        let origin = &self.origins[record.origin as usize];
        let headers = &self.headers[record.headers.0 as usize..(record.headers.0 + record.headers.1) as usize];
        let text = |span| std::str::from_utf8(self.slice(span)).unwrap_or("");
        Message {
            topic: &origin.topic,
            partition: origin.partition,
            offset: record.offset,
            time_ms: record.time_ms,
            key: record.key.map(|s| self.slice(s)),
            value: record.value.map(|s| self.slice(s)),
            headers: headers.iter().map(|&(name, value)| (text(name), self.slice(value))).collect(),
        }
    }

    /// Bytes it keeps.
    pub fn weight(&self) -> usize {
        self.bytes.len() + self.records.len() * size_of::<Record>() + self.headers.len() * size_of::<(Span, Span)>()
    }

    /// Highest offset of each origin.
    pub fn ends(&self) -> Vec<(Arc<Origin>, Offset)> {
        let mut ends = vec![None; self.origins.len()];
        for record in &self.records {
            let end = &mut ends[record.origin as usize];
            *end = (*end).max(Some(record.offset));
        }
        self.origins.iter().zip(ends).filter_map(|(o, end)| Some((o.clone(), end?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_ends_at_the_highest_offset_of_each_origin() {
        let mut batch = Batch::default();
        let origins = [0, 1, 2].map(|p| Arc::new(Origin { topic: "t".into(), partition: p, id: "o".into() }));
        for (origin, offset) in [(0, Offset(0, 7)), (1, Offset(5, 1)), (0, Offset(0, 6)), (1, Offset(4, 9))] {
            let origin = batch.origin(&origins[origin]);
            let (key, value, headers) = (None, None, (0, 0));
            batch.records.push(Record { origin, offset, time_ms: 0, key, value, headers, broken: false });
        }
        // An origin without records, as after its partition was revoked, has no end.
        batch.origin(&origins[2]);
        let ends: Vec<(i32, String)> = batch.ends().iter().map(|(o, end)| (o.partition, end.to_string())).collect();
        assert_eq!(ends, [(0, "7".to_string()), (1, "5-1".to_string())]);
    }
}
