//! The writer: chunks grow in memory and in the log, end in a segment, and are deleted when old.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::chunk::{
    CELLS_DUE_OF_ALL, Chunk, MAX_FIELDS, MAX_NAME, MAX_PAYLOAD, MAX_TEXT, MAX_TEXTS, Meta, Note, Saying,
};
use crate::error::Text;
use crate::frame::{self, FileKind};
use crate::held::{Held, Texts};
use crate::log::{self, Replay};
use crate::segment::{self, CHUNK, Entry, MAX_FILE};
use crate::{Directory, Disk, Error, Stamp, Value};

/// The series in which the store reports what it did by itself.
const OWN: &str = "";
/// The kind of the event that reports segments deleted because the disk was full.
const DISK_FULL: &str = "store.disk_full";
/// After the clock was set, nothing is deleted by age for this long: a wrong year must not empty the store.
const AGE_HELD_MS: u64 = 3_600_000;
/// While the disk is full and nothing can be deleted.
const RETRY_MS: u64 = 10_000;
const SHARED_DUE: usize = 65_536;
/// All chunks end when their log has this size: readers take files of twice that.
const LOG_DUE: u64 = MAX_FILE / 2;

#[derive(Clone, Debug)]
pub struct Settings {
    /// What a loss of power may cost. A killed process loses nothing.
    pub sync_every: Duration,
    /// Longer chunks are smaller on disk, and larger in memory: 400 fields a second, of which 100 change, take some 0.5
    /// MB in an hour, and 3 MB where they are read.
    pub chunk_age: Duration,
    /// All chunks end when their rows take this much memory together.
    pub open_bytes_max: usize,
    pub segment_bytes: u64,
    /// Segments whose newest sample is older are deleted.
    pub retain_for: Option<Duration>,
    /// The oldest segments are deleted while all of them take more.
    pub retain_bytes: Option<u64>,
    /// zstd's.
    pub level: i32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sync_every: Duration::from_secs(10),
            chunk_age: Duration::from_secs(3600),
            open_bytes_max: 64 << 20,
            segment_bytes: 16 << 20,
            retain_for: None,
            retain_bytes: None,
            level: 19,
        }
    }
}

/// A series of this writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesId(usize);

/// A field name of this writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldId(usize);

/// What a full disk has cost since the writer was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    pub segments: u64,
    pub bytes: u64,
    /// Rows that were given up because not even memory could hold them.
    pub rows: u64,
}

struct Track {
    name: Arc<str>,
    chunk: Chunk,
    texts: Texts,
    last: log::Last,
    /// Of the log's file.
    differ: log::Differ,
}

impl Track {
    fn new(name: Arc<str>) -> Track {
        let (chunk, texts) = (Chunk::new(name.clone(), Texts::default()), Texts::default());
        Track { chunk, name, texts, last: log::Last::default(), differ: log::Differ::default() }
    }

    fn fresh(&mut self) {
        self.chunk = Chunk::new(self.name.clone(), self.texts.clone());
    }
}

#[derive(Default)]
struct Log {
    number: u64,
    bytes: u64,
    /// What it had at its beginning.
    base: u64,
    /// Series and fields up to these ids have a number in this file.
    series: usize,
    fields: usize,
    synced_ms: Option<u64>,
    dirty: bool,
    /// The disk was full: memory has more than the file.
    behind: bool,
}

/// A segment that ended.
struct Kept {
    name: String,
    bytes: u64,
    newest_ms: i64,
}

#[derive(Default)]
struct Current {
    name: String,
    bytes: u64,
    entries: Vec<Entry>,
}

/// Appends to one directory; two of them cannot. Whatever happens between two calls, all rows given so far are read
/// back after a kill.
pub struct Writer<D: Disk = Directory> {
    disk: D,
    settings: Settings,
    tracks: Vec<Track>,
    series_ids: HashMap<Arc<str>, usize>,
    fields: Vec<Arc<str>>,
    field_ids: HashMap<Arc<str>, usize>,
    /// Texts, each once: servers have the same ones.
    shared: HashSet<Arc<str>>,
    /// When there are so many of them, those that are not used any more go.
    shared_due: usize,
    log: Log,
    kept: VecDeque<Kept>,
    current: Option<Current>,
    next_segment: u64,
    /// When the oldest chunk began, by the monotonic clock.
    began_ms: Option<u64>,
    now: Option<Stamp>,
    age_held_until_ms: u64,
    retry_at_ms: u64,
    dropped: Dropped,
    reported: Dropped,
}

impl Writer<Directory> {
    /// Creates the directory if need be and locks it.
    pub fn open(dir: impl AsRef<Path>, settings: Settings) -> Result<Writer<Directory>, Error> {
        Writer::with_disk(Directory::locked(dir)?, settings)
    }
}

impl<D: Disk> Writer<D> {
    /// Goes on where the last writer ended, or was ended. The caller sees to it that there is no other one.
    pub fn with_disk(disk: D, mut settings: Settings) -> Result<Writer<D>, Error> {
        settings.segment_bytes = settings.segment_bytes.clamp(1, MAX_FILE / 2);
        settings.open_bytes_max = settings.open_bytes_max.min(MAX_FILE as usize / 4);
        let mut writer = Writer {
            disk,
            settings,
            tracks: Vec::new(),
            series_ids: HashMap::new(),
            fields: Vec::new(),
            field_ids: HashMap::new(),
            shared: HashSet::new(),
            shared_due: SHARED_DUE,
            log: Log::default(),
            kept: VecDeque::new(),
            current: None,
            next_segment: 0,
            began_ms: None,
            now: None,
            age_held_until_ms: 0,
            retry_at_ms: 0,
            dropped: Dropped::default(),
            reported: Dropped::default(),
        };
        writer.recover()?;
        Ok(writer)
    }

    /// What stands in segments is counted, what stands in logs is taken up again.
    fn recover(&mut self) -> Result<(), Error> {
        // Damage is the readers' to report: here it only means fewer chunks.
        let (mut damage, mut entries) = (Vec::new(), Vec::new());
        for number in segment::numbers(&self.disk, FileKind::Segment)? {
            let name = FileKind::Segment.name(number);
            let found = segment::load(&self.disk, &name, &mut damage)?.unwrap_or_default();
            let bytes = self.disk.size(&name).map_err(|e| Error::io("look at", &name, e))?;
            let newest_ms = found.iter().map(|e| e.meta.wall_max).max().unwrap_or(i64::MIN);
            self.kept.push_back(Kept { name, bytes, newest_ms });
            entries.extend(found);
            self.next_segment = number.saturating_add(1);
        }
        let mut replay = Replay::new(log::last(&entries));
        for number in segment::numbers(&self.disk, FileKind::Log)? {
            let name = FileKind::Log.name(number);
            let bytes = self.disk.read(&name, 0, MAX_FILE).map_err(|e| Error::io("read", &name, e))?;
            replay.file(&name, &bytes, &mut damage)?;
            self.log.number = number.saturating_add(1);
        }
        for (name, last) in &replay.last {
            let id = self.series_id(name);
            self.tracks[id].last = *last;
        }
        for chunk in replay.chunks {
            let id = self.series_id(&chunk.series);
            let texts = &mut self.tracks[id].texts;
            *texts = chunk.state.clone();
            for note in &chunk.notes {
                if let Saying::Text { name, value } = &note.said {
                    texts.put(Held { name: name.clone(), value: value.clone(), since_ms: note.at.wall_ms });
                }
            }
            self.tracks[id].chunk = chunk;
        }
        self.rewrite_log()
    }

    pub fn disk(&self) -> &D {
        &self.disk
    }

    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    pub fn dropped(&self) -> Dropped {
        self.dropped
    }

    /// The id of a series, such as a node's address; the same name has the same id.
    pub fn series(&mut self, name: &str) -> Result<SeriesId, Error> {
        within(Text::SeriesName, name.len(), MAX_NAME)?;
        Ok(SeriesId(self.series_id(name)))
    }

    fn series_id(&mut self, name: &str) -> usize {
        if let Some(id) = self.series_ids.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        self.tracks.push(Track::new(name.clone()));
        self.series_ids.insert(name, self.tracks.len() - 1);
        self.tracks.len() - 1
    }

    pub fn field(&mut self, name: &str) -> Result<FieldId, Error> {
        within(Text::FieldName, name.len(), MAX_NAME)?;
        Ok(FieldId(self.field_id(name)))
    }

    fn field_id(&mut self, name: &str) -> usize {
        if let Some(id) = self.field_ids.get(name) {
            return *id;
        }
        let name: Arc<str> = name.into();
        self.fields.push(name.clone());
        self.field_ids.insert(name, self.fields.len() - 1);
        self.fields.len() - 1
    }

    /// One row of a series; fields that are not in it are absent from this row only. Returns the row's number.
    pub fn sample(&mut self, series: SeriesId, at: Stamp, values: &[(FieldId, Value)]) -> Result<u64, Error> {
        if values.len() > MAX_FIELDS {
            return Err(Error::TooManyFields { count: values.len(), max: MAX_FIELDS });
        }
        if values.iter().any(|(field, _)| field.0 >= self.fields.len()) {
            return Err(Error::UnknownId);
        }
        let track = self.tracks.get_mut(series.0).ok_or(Error::UnknownId)?;
        if track.chunk.is_over() {
            self.dropped.rows += track.chunk.rows() as u64;
            track.fresh();
        }
        track.last.row = track.last.row.saturating_add(1);
        let seq = track.last.row;
        track.chunk.push(seq, at, values.iter().map(|(field, value)| (&self.fields[field.0], *value)));
        let values: Vec<(usize, Value)> = values.iter().map(|(field, value)| (field.0, *value)).collect();
        let (kind, body) = track.differ.row(series.0, seq, at, &values);
        self.record(at, kind, &body)?;
        Ok(seq)
    }

    /// A text such as a role or a setting. It is stored if it differs from the last one of this name: `true`.
    pub fn text(&mut self, series: SeriesId, at: Stamp, name: &str, value: &str) -> Result<bool, Error> {
        within(Text::TextName, name.len(), MAX_NAME)?;
        within(Text::TextValue, value.len(), MAX_TEXT)?;
        let track = self.tracks.get_mut(series.0).ok_or(Error::UnknownId)?;
        if track.texts.get(name).is_some_and(|held| *held.value == *value) {
            return Ok(false);
        }
        if track.texts.len() >= MAX_TEXTS && track.texts.get(name).is_none() {
            return Err(Error::TooManyFields { count: track.texts.len() + 1, max: MAX_TEXTS });
        }
        if self.shared.len() >= self.shared_due {
            // On a full disk no chunk ends, which would see to it.
            self.shared.retain(|text| Arc::strong_count(text) > 1);
            self.shared_due = (2 * self.shared.len()).max(SHARED_DUE);
        }
        let mut shared = |text: &str| match self.shared.get(text) {
            Some(known) => known.clone(),
            None => {
                let new: Arc<str> = text.into();
                self.shared.insert(new.clone());
                new
            }
        };
        let (name, value) = (shared(name), shared(value));
        track.texts.put(Held { name: name.clone(), value: value.clone(), since_ms: at.wall_ms });
        self.note(series, at, Saying::Text { name, value })?;
        Ok(true)
    }

    /// The texts that hold now, by name.
    pub fn texts(&self, series: SeriesId) -> impl Iterator<Item = (&str, &str)> {
        let held = self.tracks.get(series.0).into_iter().flat_map(|track| track.texts.iter());
        held.map(|held| (&*held.name, &*held.value))
    }

    /// Something that happened once: a slow command, a change of topology, an error.
    pub fn event(&mut self, series: SeriesId, at: Stamp, kind: &str, payload: &[u8]) -> Result<(), Error> {
        within(Text::EventKind, kind.len(), MAX_NAME)?;
        within(Text::EventPayload, payload.len(), MAX_PAYLOAD)?;
        self.note(series, at, Saying::Event { kind: kind.to_string(), payload: payload.to_vec() })
    }

    fn note(&mut self, series: SeriesId, at: Stamp, said: Saying) -> Result<(), Error> {
        let track = self.tracks.get_mut(series.0).ok_or(Error::UnknownId)?;
        if track.chunk.is_over() {
            self.dropped.rows += track.chunk.rows() as u64;
            track.fresh();
        }
        track.last.note = track.last.note.saturating_add(1);
        let note = Note { seq: track.last.note, at, said };
        let body = log::note(series.0, &note);
        track.chunk.note(note);
        self.record(at, log::NOTE, &body)
    }

    /// To be called every second or so: syncs, ends chunks that are due, deletes what is old.
    pub fn tick(&mut self, now: Stamp) -> Result<(), Error> {
        self.observe(now);
        if self.log.behind && now.mono_ms >= self.retry_at_ms {
            self.retry_at_ms = now.mono_ms.saturating_add(RETRY_MS);
            // Chunks take less room than a log of all that is in memory.
            self.flush()?;
        }
        let synced = *self.log.synced_ms.get_or_insert(now.mono_ms);
        if self.log.dirty && elapsed(synced, now.mono_ms) >= millis(self.settings.sync_every) {
            let name = FileKind::Log.name(self.log.number);
            self.sync(&name)?;
            self.log.dirty = false;
            self.log.synced_ms = Some(now.mono_ms);
        }
        self.flush_if_due(now)?;
        self.retain(now)?;
        if self.dropped != self.reported {
            let (all, told) = (self.dropped, std::mem::replace(&mut self.reported, self.dropped));
            let (segments, bytes) = (all.segments - told.segments, all.bytes - told.bytes);
            let text = format!("segments={segments} bytes={bytes} rows={}", all.rows - told.rows);
            let own = SeriesId(self.series_id(OWN));
            self.event(own, now, DISK_FULL, text.as_bytes())?;
        }
        Ok(())
    }

    fn observe(&mut self, now: Stamp) {
        if self.now.is_none_or(|before| now.step_since(before).is_some()) {
            self.age_held_until_ms = now.mono_ms.saturating_add(AGE_HELD_MS);
        }
        self.now = Some(now);
    }

    /// Into the log at once, with the names it needs first.
    fn record(&mut self, at: Stamp, kind: u8, body: &[u8]) -> Result<(), Error> {
        self.observe(at);
        self.began_ms.get_or_insert(at.mono_ms);
        if !self.log.behind {
            let mut bytes = Vec::new();
            self.put_names(&mut bytes);
            frame::put(&mut bytes, kind, body);
            let name = FileKind::Log.name(self.log.number);
            let appended = self.append(&name, self.log.bytes, &bytes);
            // Whatever went wrong, what comes next must not refer to it.
            self.log.behind |= appended.is_err();
            if appended? {
                self.log.bytes += bytes.len() as u64;
                (self.log.series, self.log.fields) = (self.tracks.len(), self.fields.len());
                self.log.dirty = true;
            } else {
                self.log.behind = true;
                self.retry_at_ms = at.mono_ms.saturating_add(RETRY_MS);
            }
        }
        self.flush_if_due(at)
    }

    fn put_names(&self, out: &mut Vec<u8>) {
        for (id, track) in self.tracks.iter().enumerate().skip(self.log.series) {
            frame::put(out, log::SERIES, &log::name(id, &track.name));
        }
        for (id, name) in self.fields.iter().enumerate().skip(self.log.fields) {
            frame::put(out, log::FIELD, &log::name(id, name));
        }
    }

    fn flush_if_due(&mut self, now: Stamp) -> Result<(), Error> {
        let old = self.began_ms.is_some_and(|ms| elapsed(ms, now.mono_ms) >= millis(self.settings.chunk_age));
        let bytes = || self.tracks.iter().map(|t| t.chunk.bytes()).sum::<usize>();
        let cells = || self.tracks.iter().map(|t| t.chunk.cells()).sum::<usize>();
        // Names alone may take much of it, and come again with each log.
        let long = self.log.bytes >= LOG_DUE && self.log.bytes - self.log.base >= LOG_DUE / 4;
        let due = old || long || self.tracks.iter().any(|t| t.chunk.is_due());
        let due = due || bytes() >= self.settings.open_bytes_max || cells() >= CELLS_DUE_OF_ALL;
        if !due || (self.log.behind && now.mono_ms < self.retry_at_ms) {
            return Ok(());
        }
        self.retry_at_ms = now.mono_ms.saturating_add(RETRY_MS);
        self.flush()
    }

    /// Ends all chunks: they are on disk for good afterwards, as far as there is room.
    pub fn flush(&mut self) -> Result<(), Error> {
        for id in 0..self.tracks.len() {
            if self.tracks[id].chunk.is_empty() {
                continue;
            }
            let chunk = &self.tracks[id].chunk;
            let (meta, body) = (chunk.meta(), chunk.pack(self.settings.level));
            let body = body.map_err(|e| Error::io("compress a chunk of", &meta.series, e))?;
            if !self.append_chunk(meta, &body)? {
                self.log.behind = true;
                return Ok(());
            }
            self.tracks[id].fresh();
        }
        if let Some(name) = self.current.as_ref().map(|c| c.name.clone()) {
            self.sync(&name)?;
        }
        self.shared.retain(|text| Arc::strong_count(text) > 1);
        self.began_ms = None;
        self.rewrite_log()
    }

    /// `false` when the disk is full and nothing is left to delete.
    fn append_chunk(&mut self, meta: Meta, body: &[u8]) -> Result<bool, Error> {
        if self.current.as_ref().is_some_and(|c| c.bytes >= self.settings.segment_bytes) {
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

    fn end_segment(&mut self) -> Result<(), Error> {
        let Some(mut current) = self.current.take() else { return Ok(()) };
        let footer = segment::footer(&current.entries, current.bytes);
        // Without room for its index it is read through instead.
        let written = self.append(&current.name, current.bytes, &footer);
        if matches!(written, Ok(true)) {
            current.bytes += footer.len() as u64;
        }
        let newest_ms = current.entries.iter().map(|e| e.meta.wall_max).max().unwrap_or(i64::MIN);
        let name = current.name.clone();
        self.kept.push_back(Kept { name: current.name, bytes: current.bytes, newest_ms });
        written?;
        self.sync(&name)
    }

    /// A new log with what is in memory, instead of all older ones.
    fn rewrite_log(&mut self) -> Result<(), Error> {
        let old = segment::numbers(&self.disk, FileKind::Log)?;
        let number = old.last().map_or(self.log.number, |last| last.saturating_add(1));
        let mut bytes = frame::header(FileKind::Log, number);
        (self.log.series, self.log.fields) = (0, 0);
        for id in 0..self.tracks.len() {
            self.remember_fields(id);
        }
        self.put_names(&mut bytes);
        for (id, track) in self.tracks.iter().enumerate() {
            for held in track.chunk.state.iter() {
                frame::put(&mut bytes, log::STATE, &log::state(id, held));
            }
            let (mut chunk, mut differ) = (track.chunk.clone(), log::Differ::default());
            chunk.thaw();
            for row in 0..chunk.rows() {
                let Some((seq, at)) = chunk.stamp(row) else { continue };
                let known = |(name, value): (&Arc<str>, Value)| Some((*self.field_ids.get(name)?, value));
                let values: Vec<(usize, Value)> = chunk.values(row).filter_map(known).collect();
                let (kind, body) = differ.row(id, seq, at, &values);
                frame::put(&mut bytes, kind, &body);
            }
            for note in &track.chunk.notes {
                frame::put(&mut bytes, log::NOTE, &log::note(id, note));
            }
        }
        let name = FileKind::Log.name(number);
        if !self.append(&name, 0, &bytes)? {
            // The old log still has what it had.
            let _ = self.disk.remove(&name);
            self.log.behind = true;
            return Ok(());
        }
        self.sync(&name)?;
        let (series, fields) = (self.tracks.len(), self.fields.len());
        let synced_ms = self.now.map(|now| now.mono_ms);
        let length = bytes.len() as u64;
        self.tracks.iter_mut().for_each(|track| track.differ = log::Differ::default());
        self.log = Log { number, bytes: length, base: length, series, fields, synced_ms, dirty: false, behind: false };
        for number in old {
            let name = FileKind::Log.name(number);
            self.disk.remove(&name).map_err(|e| Error::io("remove", &name, e))?;
        }
        Ok(())
    }

    /// Names that came from a log get their ids.
    fn remember_fields(&mut self, id: usize) {
        let names: Vec<Arc<str>> = self.tracks[id].chunk.names().cloned().collect();
        for name in names {
            self.field_id(&name);
        }
    }

    /// Writes at the end of a file of this length. On a full disk the oldest segment makes room; `false` without one.
    fn append(&mut self, name: &str, length: u64, bytes: &[u8]) -> Result<bool, Error> {
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

    fn sync(&mut self, name: &str) -> Result<(), Error> {
        loop {
            let Err(error) = self.disk.sync(name) else { return Ok(()) };
            if !is_full(&error) || !self.drop_oldest(name)? {
                return Err(Error::io("sync", name, error));
            }
        }
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
        self.remove_segment(&oldest.name)?;
        Ok(true)
    }

    fn remove_segment(&mut self, name: &str) -> Result<(), Error> {
        match self.disk.remove(name) {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", name, e)),
            _ => Ok(()),
        }
    }

    fn retain(&mut self, now: Stamp) -> Result<(), Error> {
        let oldest_ms = self
            .settings
            .retain_for
            .map(|age| now.wall_ms.saturating_sub(i64::try_from(millis(age)).unwrap_or(i64::MAX)));
        let open = self.current.as_ref().map_or(0, |c| c.bytes);
        while let Some(first) = self.kept.front() {
            let bytes = self.kept.iter().map(|k| k.bytes).sum::<u64>() + open;
            let old = oldest_ms.is_some_and(|ms| first.newest_ms < ms) && now.mono_ms >= self.age_held_until_ms;
            if !old && self.settings.retain_bytes.is_none_or(|max| bytes <= max) {
                break;
            }
            let name = first.name.clone();
            self.remove_segment(&name)?;
            self.kept.pop_front();
        }
        Ok(())
    }

    /// Deletes what is too old or too much now, however recently the clock was set. Returns how many bytes are gone.
    pub fn prune(&mut self, now: Stamp) -> Result<u64, Error> {
        let bytes = |writer: &Writer<D>| writer.kept.iter().map(|k| k.bytes).sum::<u64>();
        let before = bytes(self);
        self.age_held_until_ms = 0;
        self.retain(now)?;
        Ok(before - bytes(self))
    }

    /// Ends chunks and segment, so that the next reader finds an index. Without it nothing is lost either.
    pub fn close(mut self) -> Result<D, Error> {
        self.flush()?;
        self.end_segment()?;
        Ok(self.disk)
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn within(text: Text, bytes: usize, max: usize) -> Result<(), Error> {
    if bytes > max { Err(Error::TooLong { text, bytes, max }) } else { Ok(()) }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// 0 across a restart of the monotonic clock.
fn elapsed(since: u64, now: u64) -> u64 {
    now.saturating_sub(since)
}
