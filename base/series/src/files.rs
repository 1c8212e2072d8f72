//! The writer's files: appended to, synced, and the oldest of them deleted when they are old, too many, or in the way.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};

use crate::chunk::Meta;
use crate::frame::{self, FileKind};
use crate::segment::{self, CHUNK, Entry};
use crate::{Disk, Error};

/// What a full disk has cost since the writer was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    pub segments: u64,
    pub bytes: u64,
    /// Rows that were given up because not even memory could hold them.
    pub rows: u64,
}

/// A segment that ended.
struct Kept {
    name: String,
    bytes: u64,
    newest_ms: i64,
}

/// The segment being written.
struct Current {
    name: String,
    bytes: u64,
    entries: Vec<Entry>,
}

pub struct Files<D> {
    pub disk: D,
    pub dropped: Dropped,
    segment_bytes: u64,
    kept: VecDeque<Kept>,
    current: Option<Current>,
    next_segment: u64,
}

impl<D: Disk> Files<D> {
    pub fn new(disk: D, segment_bytes: u64) -> Files<D> {
        let dropped = Dropped::default();
        Files { disk, dropped, segment_bytes, kept: VecDeque::new(), current: None, next_segment: 0 }
    }

    /// Counts the segments that are there, and returns what chunks they have.
    pub fn load(&mut self) -> Result<Vec<Entry>, Error> {
        // Damage is the readers' to report: here it only means fewer chunks.
        let (mut damage, mut entries) = (Vec::new(), Vec::new());
        for number in segment::numbers(&self.disk, FileKind::Segment)? {
            let name = FileKind::Segment.name(number);
            let found = segment::load(&self.disk, &name, &mut damage)?.unwrap_or_default();
            let bytes = self.disk.size(&name).map_err(|e| Error::io("look at", &name, e))?;
            self.kept.push_back(Kept { name, bytes, newest_ms: newest_ms(&found) });
            entries.extend(found);
            self.next_segment = number.saturating_add(1);
        }
        Ok(entries)
    }

    /// Writes at the end of a file of this length. On a full disk the oldest segment makes room; `false` without one.
    pub fn append(&mut self, name: &str, length: u64, bytes: &[u8]) -> Result<bool, Error> {
        loop {
            let Err(error) = self.disk.append(name, bytes) else { return Ok(true) };
            // What cannot be cut off is skipped by readers: it is no whole frame.
            let _ = self.disk.truncate(name, length);
            if !is_full(&error) {
                return Err(Error::io("append to", name, error));
            }
            if !self.drop_oldest(name)? {
                return Ok(false);
            }
        }
    }

    pub fn sync(&mut self, name: &str) -> Result<(), Error> {
        loop {
            let Err(error) = self.disk.sync(name) else { return Ok(()) };
            if !is_full(&error) || !self.drop_oldest(name)? {
                return Err(Error::io("sync", name, error));
            }
        }
    }

    /// `false` when the disk is full and nothing is left to delete.
    pub fn append_chunk(&mut self, meta: Meta, body: &[u8]) -> Result<bool, Error> {
        if self.current.as_ref().is_some_and(|c| c.bytes >= self.segment_bytes) {
            self.end_segment()?;
        }
        if self.current.is_none() {
            let number = self.next_segment;
            let name = FileKind::Segment.name(number);
            let header = frame::header(FileKind::Segment, number);
            if !self.append(&name, 0, &header)? {
                let _ = self.disk.remove(&name);
                return Ok(false);
            }
            self.next_segment = number.saturating_add(1);
            self.current = Some(Current { name, bytes: header.len() as u64, entries: Vec::new() });
        }
        let Some((name, at)) = self.current.as_ref().map(|c| (c.name.clone(), c.bytes)) else { return Ok(false) };
        let mut frame = Vec::new();
        frame::put(&mut frame, CHUNK, body);
        if !self.append(&name, at, &frame)? {
            return Ok(false);
        }
        if let Some(current) = &mut self.current {
            let bytes = frame.len() as u64;
            current.entries.push(Entry { file: name.into(), at, bytes, meta });
            current.bytes += bytes;
        }
        Ok(true)
    }

    /// Returns when all chunks appended so far would survive a loss of power.
    pub fn sync_chunks(&mut self) -> Result<(), Error> {
        // Segments are synced as they end.
        let name = self.current.as_ref().map(|c| c.name.clone());
        name.map_or(Ok(()), |name| self.sync(&name))
    }

    pub fn end_segment(&mut self) -> Result<(), Error> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let footer = segment::footer(&current.entries, current.bytes);
        // Without room for its index it is read through instead.
        let written = self.append(&current.name, current.bytes, &footer);
        if matches!(written, Ok(true)) {
            current.bytes += footer.len() as u64;
        }
        let (name, newest_ms) = (current.name.clone(), newest_ms(&current.entries));
        self.kept.push_back(Kept { name: current.name, bytes: current.bytes, newest_ms });
        written?;
        self.sync(&name)
    }

    /// New seconds are worth more than old ones, so even the segment being written goes, unless it is `needed` now.
    fn drop_oldest(&mut self, needed: &str) -> Result<bool, Error> {
        let oldest = self.kept.pop_front().or_else(|| {
            let current = self.current.take_if(|c| c.name != needed)?;
            Some(Kept { name: current.name, bytes: current.bytes, newest_ms: 0 })
        });
        let Some(oldest) = oldest else { return Ok(false) };
        self.dropped.segments += 1;
        self.dropped.bytes += oldest.bytes;
        self.remove(&oldest.name)?;
        Ok(true)
    }

    /// One that is not there is as good as removed.
    pub fn remove(&mut self, name: &str) -> Result<(), Error> {
        match self.disk.remove(name) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", name, e)),
            _ => Ok(()),
        }
    }

    /// Deletes segments that ended: those with nothing newer than `oldest_ms`, and the oldest while all of them and the
    /// one being written take more than `bytes_max`. Returns how many bytes are gone.
    pub fn retain(&mut self, oldest_ms: Option<i64>, bytes_max: Option<u64>) -> Result<u64, Error> {
        let open = self.current.as_ref().map_or(0, |c| c.bytes);
        let mut gone = 0;
        while let Some(first) = self.kept.front() {
            let bytes = self.kept.iter().map(|k| k.bytes).sum::<u64>() + open;
            let is_old = oldest_ms.is_some_and(|ms| first.newest_ms < ms);
            if !is_old && bytes_max.is_none_or(|max| bytes <= max) {
                break;
            }
            let name = first.name.clone();
            gone += first.bytes;
            self.remove(&name)?;
            self.kept.pop_front();
        }
        Ok(gone)
    }
}

fn newest_ms(entries: &[Entry]) -> i64 {
    entries.iter().map(|e| e.meta.wall_max).max().unwrap_or(i64::MIN)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
