//! The writer: chunks grow in memory and in the log, end in a segment, and are deleted when old.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::chunk::{CELLS_DUE_OF_ALL, Chunk, MAX_FIELDS, MAX_NAME, MAX_PAYLOAD, MAX_TEXT, MAX_TEXTS, Note, Saying};
use crate::error::Text;
use crate::files::{Dropped, Files};
use crate::frame::{self, FileKind};
use crate::held::{Held, Texts};
use crate::log::{self, Replay};
use crate::segment::{self, MAX_FILE};
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
/// Packing a thousand chunks takes longer than the caller can wait, so more than these end one by one,
const AT_ONCE: usize = 32;
/// one after this many rows, whatever their series: at one row a second per series, all have ended after that many
/// seconds.
const ROWS_PER_END: usize = 64;

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

/// Totals over all open chunks.
#[derive(Default)]
struct Open {
    bytes: usize,
    cells: usize,
}

impl Open {
    fn add(&mut self, chunk: &Chunk) {
        self.bytes += chunk.bytes();
        self.cells += chunk.cells();
    }

    fn take(&mut self, chunk: &Chunk) {
        self.bytes -= chunk.bytes();
        self.cells -= chunk.cells();
    }
}

/// All chunks end, one by one. Their rows stay in the older logs until all have; what came since is in the newest.
struct Round {
    /// When it began, by the monotonic clock.
    began_ms: u64,
    /// The logs to be removed.
    old: Vec<u64>,
    /// The next track whose chunk ends.
    next: usize,
    /// How many tracks there were.
    count: usize,
    /// Rows since the last chunk ended.
    rows: usize,
}

/// Appends to one directory; two of them cannot. Whatever happens between two calls, all rows given so far are read
/// back after a kill.
pub struct Writer<D: Disk = Directory> {
    files: Files<D>,
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
    open: Open,
    round: Option<Round>,
    /// When the oldest chunk began, by the monotonic clock.
    began_ms: Option<u64>,
    now: Option<Stamp>,
    age_held_until_ms: u64,
    retry_at_ms: u64,
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
            files: Files::new(disk, settings.segment_bytes),
            settings,
            tracks: Vec::new(),
            series_ids: HashMap::new(),
            fields: Vec::new(),
            field_ids: HashMap::new(),
            shared: HashSet::new(),
            shared_due: SHARED_DUE,
            log: Log::default(),
            open: Open::default(),
            round: None,
            began_ms: None,
            now: None,
            age_held_until_ms: 0,
            retry_at_ms: 0,
            reported: Dropped::default(),
        };
        writer.recover()?;
        Ok(writer)
    }

    /// What stands in segments is counted, what stands in logs is taken up again.
    fn recover(&mut self) -> Result<(), Error> {
        let entries = self.files.load()?;
        // Damage is the readers' to report: here it only means fewer rows.
        let mut damage = Vec::new();
        let mut replay = Replay::new(log::last(&entries));
        for number in segment::numbers(&self.files.disk, FileKind::Log)? {
            let name = FileKind::Log.name(number);
            let bytes = self.files.disk.read(&name, 0, MAX_FILE).map_err(|e| Error::io("read", &name, e))?;
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
            self.open.add(&chunk);
            self.tracks[id].chunk = chunk;
        }
        self.rewrite_log()
    }

    pub fn disk(&self) -> &D {
        &self.files.disk
    }

    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.files.disk
    }

    pub fn dropped(&self) -> Dropped {
        self.files.dropped
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
        self.make_room(series)?;
        let track = &mut self.tracks[series.0];
        self.open.take(&track.chunk);
        track.last.row = track.last.row.saturating_add(1);
        let seq = track.last.row;
        track.chunk.push(seq, at, values.iter().map(|(field, value)| (&self.fields[field.0], *value)));
        self.open.add(&track.chunk);
        let values: Vec<(usize, Value)> = values.iter().map(|(field, value)| (field.0, *value)).collect();
        let (kind, body) = track.differ.row(series.0, seq, at, &values);
        if let Some(round) = &mut self.round {
            round.rows += 1;
        }
        self.record(series, at, kind, &body)?;
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
        self.make_room(series)?;
        let track = &mut self.tracks[series.0];
        self.open.take(&track.chunk);
        track.last.note = track.last.note.saturating_add(1);
        let note = Note { seq: track.last.note, at, said };
        let body = log::note(series.0, &note);
        track.chunk.note(note);
        self.open.add(&track.chunk);
        self.record(series, at, log::NOTE, &body)
    }

    /// Makes sure that this series' chunk can take one more row or note.
    fn make_room(&mut self, series: SeriesId) -> Result<(), Error> {
        let track = self.tracks.get_mut(series.0).ok_or(Error::UnknownId)?;
        if track.chunk.is_over() {
            self.files.dropped.rows += track.chunk.rows() as u64;
            self.open.take(&track.chunk);
            track.fresh();
        }
        Ok(())
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
            self.sync_log()?;
            self.log.synced_ms = Some(now.mono_ms);
        }
        if let Some(round) = &mut self.round {
            // There may be no rows to set the pace.
            round.rows = ROWS_PER_END;
        }
        self.end_due(now, None)?;
        self.retain(now)?;
        let dropped = self.files.dropped;
        if dropped != self.reported {
            let told = std::mem::replace(&mut self.reported, dropped);
            let (segments, bytes) = (dropped.segments - told.segments, dropped.bytes - told.bytes);
            let text = format!("segments={segments} bytes={bytes} rows={}", dropped.rows - told.rows);
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
    fn record(&mut self, series: SeriesId, at: Stamp, kind: u8, body: &[u8]) -> Result<(), Error> {
        self.observe(at);
        self.began_ms.get_or_insert(at.mono_ms);
        if !self.log.behind {
            let mut bytes = Vec::new();
            self.put_names(&mut bytes);
            frame::put(&mut bytes, kind, body);
            let name = FileKind::Log.name(self.log.number);
            let appended = self.files.append(&name, self.log.bytes, &bytes);
            if matches!(appended, Ok(true)) {
                self.log.bytes += bytes.len() as u64;
                (self.log.series, self.log.fields) = (self.tracks.len(), self.fields.len());
                self.log.dirty = true;
            } else {
                // Whatever went wrong, what comes next must not refer to it.
                self.fall_behind(at);
            }
            appended?;
        }
        self.end_due(at, Some(series))
    }

    fn sync_log(&mut self) -> Result<(), Error> {
        self.files.sync(&FileKind::Log.name(self.log.number))?;
        self.log.dirty = false;
        Ok(())
    }

    /// What is given from now on is in memory only, until all chunks have ended.
    fn fall_behind(&mut self, now: Stamp) {
        self.log.behind = true;
        self.round = None;
        self.retry_at_ms = now.mono_ms.saturating_add(RETRY_MS);
    }

    fn put_names(&self, out: &mut Vec<u8>) {
        for (id, track) in self.tracks.iter().enumerate().skip(self.log.series) {
            frame::put(out, log::SERIES, &log::name(id, &track.name));
        }
        for (id, name) in self.fields.iter().enumerate().skip(self.log.fields) {
            frame::put(out, log::FIELD, &log::name(id, name));
        }
    }

    /// Whether all chunks are to end.
    fn is_due(&self, now: Stamp) -> bool {
        let is_old = self.began_ms.is_some_and(|ms| elapsed(ms, now.mono_ms) >= millis(self.settings.chunk_age));
        is_old || self.is_long() || self.is_much()
    }

    fn is_long(&self) -> bool {
        // Names alone may take much of it, and come again with each log.
        self.log.bytes >= LOG_DUE && self.log.bytes - self.log.base >= LOG_DUE / 4
    }

    fn is_much(&self) -> bool {
        self.open.bytes >= self.settings.open_bytes_max || self.open.cells >= CELLS_DUE_OF_ALL
    }

    /// Ends what is due, after this series has grown.
    fn end_due(&mut self, now: Stamp, grown: Option<SeriesId>) -> Result<(), Error> {
        let large = grown.filter(|series| self.tracks[series.0].chunk.is_due());
        if self.log.behind {
            if now.mono_ms < self.retry_at_ms || !(large.is_some() || self.is_due(now)) {
                return Ok(());
            }
            return self.flush();
        }
        if let Some(series) = large {
            // It cannot wait for its turn. It may come again in this round, and readers trust the newest of a series'
            // chunks to have all those before it on disk.
            if !self.end_chunk(series.0)? {
                self.fall_behind(now);
                return Ok(());
            }
            self.files.sync_chunks()?;
        }
        // Its rows must not pile up in one log: a log has no more of a series than a reader takes.
        if self.round.is_none() && (large.is_some() || self.is_due(now)) {
            self.begin_round(now)?;
        }
        self.go_on(now)
    }

    fn begin_round(&mut self, now: Stamp) -> Result<(), Error> {
        if self.tracks.iter().filter(|track| !track.chunk.is_empty()).count() <= AT_ONCE {
            return self.flush();
        }
        self.sync_log()?;
        let old = segment::numbers(&self.files.disk, FileKind::Log)?;
        let (number, mut bytes) = self.log_head(&old);
        for (id, track) in self.tracks.iter().enumerate() {
            put_states(&mut bytes, id, &track.texts);
        }
        if self.begin_log(number, &bytes)? {
            let count = self.tracks.len();
            self.round = Some(Round { began_ms: now.mono_ms, old, next: 0, count, rows: 0 });
        } else {
            self.fall_behind(now);
        }
        Ok(())
    }

    /// One more chunk of the round ends, if enough rows have come, or memory or the log is at its bound again.
    fn go_on(&mut self, now: Stamp) -> Result<(), Error> {
        let is_pressed = self.is_much() || self.is_long();
        let is_turn = |round: &&mut Round| is_pressed || round.rows >= ROWS_PER_END;
        let Some(round) = self.round.as_mut().filter(is_turn) else { return Ok(()) };
        let open = (round.next..round.count).find(|id| !self.tracks[*id].chunk.is_empty());
        (round.rows, round.next) = (0, open.map_or(round.count, |id| id + 1));
        let Some(id) = open else { return self.end_round() };
        let ended = self.end_chunk(id);
        if !matches!(ended, Ok(true)) {
            self.fall_behind(now);
        }
        ended.map(drop)
    }

    fn end_round(&mut self) -> Result<(), Error> {
        self.files.sync_chunks()?;
        let Some(round) = self.round.take() else { return Ok(()) };
        self.began_ms = Some(round.began_ms);
        self.shared.retain(|text| Arc::strong_count(text) > 1);
        self.remove_logs(&round.old)
    }

    /// `false` when there is no room for it, nor anything to delete.
    fn end_chunk(&mut self, id: usize) -> Result<bool, Error> {
        let chunk = &self.tracks[id].chunk;
        let (meta, body) = (chunk.meta(), chunk.pack(self.settings.level));
        let body = body.map_err(|e| Error::io("compress a chunk of", &meta.series, e))?;
        if !self.files.append_chunk(meta, &body)? {
            return Ok(false);
        }
        self.open.take(&self.tracks[id].chunk);
        self.tracks[id].fresh();
        Ok(true)
    }

    /// Ends all chunks at once: they are on disk for good afterwards, as far as there is room.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.round = None;
        for id in 0..self.tracks.len() {
            if !self.tracks[id].chunk.is_empty() && !self.end_chunk(id)? {
                self.fall_behind(self.now.unwrap_or_default());
                return Ok(());
            }
        }
        self.files.sync_chunks()?;
        self.shared.retain(|text| Arc::strong_count(text) > 1);
        self.began_ms = None;
        self.rewrite_log()
    }

    /// A new log with what is in memory, instead of all older ones.
    fn rewrite_log(&mut self) -> Result<(), Error> {
        for id in 0..self.tracks.len() {
            self.remember_fields(id);
        }
        let old = segment::numbers(&self.files.disk, FileKind::Log)?;
        let (number, mut bytes) = self.log_head(&old);
        for (id, track) in self.tracks.iter().enumerate() {
            put_states(&mut bytes, id, &track.chunk.state);
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
        if !self.begin_log(number, &bytes)? {
            // The old log still has what it had.
            self.fall_behind(self.now.unwrap_or_default());
            return Ok(());
        }
        self.remove_logs(&old)
    }

    /// The number of a log newer than these, and how it begins: what each number in it stands for.
    fn log_head(&mut self, old: &[u64]) -> (u64, Vec<u8>) {
        let number = old.last().map_or(self.log.number, |last| last.saturating_add(1));
        let mut bytes = frame::header(FileKind::Log, number);
        (self.log.series, self.log.fields) = (0, 0);
        self.put_names(&mut bytes);
        (number, bytes)
    }

    /// `false` when there is no room for it.
    fn begin_log(&mut self, number: u64, bytes: &[u8]) -> Result<bool, Error> {
        let name = FileKind::Log.name(number);
        let written = self.files.append(&name, 0, bytes).and_then(|written| {
            // One that was not synced counts for nothing.
            if written { self.files.sync(&name).map(|()| true) } else { Ok(false) }
        });
        if !matches!(written, Ok(true)) {
            // The older log stays in use, and readers would take this one for the newer of the two.
            let _ = self.files.disk.remove(&name);
            return written;
        }
        let (series, fields) = (self.tracks.len(), self.fields.len());
        let synced_ms = self.now.map(|now| now.mono_ms);
        let length = bytes.len() as u64;
        self.tracks.iter_mut().for_each(|track| track.differ = log::Differ::default());
        self.log = Log { number, bytes: length, base: length, series, fields, synced_ms, dirty: false, behind: false };
        Ok(true)
    }

    fn remove_logs(&mut self, numbers: &[u64]) -> Result<(), Error> {
        numbers.iter().try_for_each(|number| self.files.remove(&FileKind::Log.name(*number)))
    }

    /// Names that came from a log get their ids.
    fn remember_fields(&mut self, id: usize) {
        let names: Vec<Arc<str>> = self.tracks[id].chunk.names().cloned().collect();
        for name in names {
            self.field_id(&name);
        }
    }

    fn retain(&mut self, now: Stamp) -> Result<u64, Error> {
        let age = self.settings.retain_for.filter(|_| now.mono_ms >= self.age_held_until_ms);
        let oldest_ms = age.map(|age| now.wall_ms.saturating_sub(i64::try_from(millis(age)).unwrap_or(i64::MAX)));
        self.files.retain(oldest_ms, self.settings.retain_bytes)
    }

    /// Deletes what is too old or too much now, however recently the clock was set. Returns how many bytes are gone.
    pub fn prune(&mut self, now: Stamp) -> Result<u64, Error> {
        self.age_held_until_ms = 0;
        self.retain(now)
    }

    /// Ends chunks and segment, so that the next reader finds an index. Without it nothing is lost either.
    pub fn close(mut self) -> Result<D, Error> {
        self.flush()?;
        self.files.end_segment()?;
        Ok(self.files.disk)
    }
}

fn put_states(out: &mut Vec<u8>, id: usize, texts: &Texts) {
    for held in texts.iter() {
        frame::put(out, log::STATE, &log::state(id, held));
    }
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

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
