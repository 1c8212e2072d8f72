//! A part of a recording as one file, for a colleague: a segment of the store like any other.

use std::fs::OpenOptions;
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use unslow_series::{Directory, Item, Memory, Reader, Stamp, Writer};

use crate::around::{HOST_MS, LOOK_BACK_MS};
use crate::scheme::SECONDS;
use crate::seconds::SECONDS_MS;
use crate::tape::{FRESH_MS, Tape, TapeError};

/// Rows between two looks at whether a chunk is full.
const BETWEEN_TICKS: u64 = 1_000;

impl Tape {
    /// Writes what a diagnosis of this range needs to one file, created or replaced, which [`Tape::open`] reads.
    /// Returns its size in bytes.
    pub fn export(&self, range_ms: Range<i64>, file: &Path) -> Result<u64, TapeError> {
        if range_ms.end <= self.span().from_ms || range_ms.start > self.span().to_ms {
            return Err(TapeError::NothingToExport);
        }
        export(&self.reader, range_ms, file)
    }
}

fn export(reader: &Reader<Directory>, range_ms: Range<i64>, file: &Path) -> Result<u64, TapeError> {
    let settings = unslow_series::Settings {
        chunk_age: Duration::from_secs(365 * 86_400),
        segment_bytes: u64::MAX,
        ..unslow_series::Settings::default()
    };
    let mut writer = Writer::with_disk(Memory::default(), settings)?;
    let mut ticks = 0;
    for name in reader.series() {
        if name.is_empty() {
            continue;
        }
        let series = writer.series(&name)?;
        let before_ms = if *name == *SECONDS { SECONDS_MS } else { FRESH_MS };
        let rows_ms = range_ms.start - before_ms..range_ms.end;
        let mut texts = reader.texts(&name, rows_ms.clone()).items;
        texts.sort_by_key(|held| held.since_ms);
        for held in texts {
            // Only rows need the other clock.
            writer.text(series, Stamp { wall_ms: held.since_ms, mono_ms: 0 }, &held.name, &held.value)?;
        }
        for event in reader.events(Some(&name), range_ms.start - LOOK_BACK_MS..range_ms.end + HOST_MS).items {
            writer.event(series, event.at, &event.kind, &event.payload)?;
        }
        for item in reader.range(&name, rows_ms) {
            let Item::Row(row) = item else { continue };
            let values = row.values().map(|(name, value)| Ok((writer.field(name)?, value)));
            let values = values.collect::<Result<Vec<_>, unslow_series::Error>>()?;
            writer.sample(series, row.at, &values)?;
            ticks += 1;
            if ticks % BETWEEN_TICKS == 0 {
                writer.tick(Stamp { wall_ms: row.at.wall_ms, mono_ms: ticks })?;
            }
        }
    }
    let disk = writer.close()?;
    let mut segments = disk.files.iter().filter(|(name, _)| Directory::is_segment(name));
    let bytes = match (segments.next(), segments.next()) {
        (Some((_, bytes)), None) => bytes,
        (None, _) => return Err(TapeError::NothingToExport),
        (Some(_), Some(_)) => return Err(TapeError::TooLong),
    };
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o640).open(file);
    let written = opened.and_then(|mut opened| opened.write_all(bytes));
    written.map_err(|source| TapeError::File { file: file.display().to_string(), source })?;
    Ok(bytes.len() as u64)
}
