#![no_main]
//! Any bytes as a recording, bare and in frames whose checksums hold: rows, gaps and damage, never a panic, and bounded
//! memory.

use libfuzzer_sys::fuzz_target;
use unslow_series::{Item, Memory, Reader, Settings, Writer};

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (segment, log) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    let mut disk = Memory::default();
    disk.files.insert(format!("{:020}.seg", 1), segment.to_vec());
    disk.files.insert(format!("{:020}.open", 1), log.to_vec());
    read(disk);

    // What stands in a chunk's frame, behind zstd.
    if unslow_series::read_chunk(segment, log).is_some() {
        assert!(unslow_series::passes_chunk(segment, log));
    }

    // With checksums that hold, so that the parsers behind them are reached.
    let mut disk = Memory::default();
    disk.files.insert(format!("{:020}.seg", 1), unslow_series::framed(b"UNSLOWsg", segment));
    disk.files.insert(format!("{:020}.open", 1), unslow_series::framed(b"UNSLOWop", log));
    read(disk.clone());
    let _ = Writer::with_disk(disk, Settings::default()).and_then(Writer::close);
});

fn read(disk: Memory) {
    let Ok(reader) = Reader::with_disk(disk) else { return };
    for series in reader.series() {
        let mut last = 0;
        for item in reader.range(&series, i64::MIN..i64::MAX) {
            if let Item::Row(row) = item {
                assert!(row.seq > last, "rows come once and in order");
                last = row.seq;
            }
        }
        let _ = reader.texts(&series, i64::MIN..i64::MAX);
    }
    let _ = (reader.events(None, i64::MIN..i64::MAX), reader.span(), reader.verify());
}
