//! Many series: their chunks end one by one, and whatever comes between two calls costs nothing.

use super::*;
use crate::{Item, Memory, Reader};

const SERIES: u64 = 3 * AT_ONCE as u64;
const ALWAYS: std::ops::Range<i64> = i64::MIN..i64::MAX;

fn settings() -> Settings {
    Settings { open_bytes_max: 20_000, ..Settings::default() }
}

/// The clock is set back by an hour every ten seconds, and is right again after five.
fn at(second: u64) -> Stamp {
    let back_ms = if second % 10 < 5 { 0 } else { 3_600_000 };
    Stamp { wall_ms: 1_795_460_000_000 + second as i64 * 1000 - back_ms, mono_ms: second * 1000 }
}

fn name(series: u64) -> String {
    format!("10.0.0.{series}:6379")
}

fn value(series: u64, second: u64) -> u64 {
    series * 1_000_003 + second * second * 7_919 % 65_537
}

fn role(series: u64, second: u64) -> String {
    format!("role {}", (series + second) / 7)
}

/// One row of one series, and its text.
fn give(writer: &mut Writer<Memory>, series: u64, second: u64) {
    let (id, field) = (writer.series(&name(series)).unwrap(), writer.field("ops").unwrap());
    writer.text(id, at(second), "role", &role(series, second)).unwrap();
    writer.sample(id, at(second), &[(field, Value::Counter(value(series, second)))]).unwrap();
}

fn open(writer: &Writer<Memory>) -> usize {
    writer.tracks.iter().filter(|track| !track.chunk.is_empty()).count()
}

fn logs(disk: &Memory) -> usize {
    disk.files.keys().filter(|name| name.ends_with(".open")).count()
}

/// All rows of all series; the series before this one have one second more.
fn check(disk: &Memory, seconds: u64, before: u64) {
    let reader = Reader::with_disk(disk.clone()).unwrap();
    assert_eq!(reader.verify(), []);
    for series in 0..SERIES {
        let count = seconds + u64::from(series < before);
        let items = reader.range(&name(series), ALWAYS);
        let rows = items.filter_map(|item| match item {
            Item::Row(row) => Some((row.seq, row.get("ops"))),
            Item::Gap(gap) => panic!("{gap:?}"),
            Item::Step(_) => None,
        });
        let given = (0..count).map(|second| (second + 1, Some(Value::Counter(value(series, second)))));
        assert!(rows.eq(given), "series {series} after {seconds} s and {before} more");
    }
}

#[test]
fn many_chunks_end_one_by_one_and_rows_go_on() {
    let mut writer = Writer::with_disk(Memory::default(), settings()).unwrap();
    let (mut most_logs, mut ended, mut rounds) = (0, 0, 0);
    for second in 0..400 {
        for series in 0..SERIES {
            let (before, in_round) = (open(&writer), writer.round.is_some());
            give(&mut writer, series, second);
            let after = open(&writer);
            assert!(after + 1 >= before, "{} chunks ended at once", before - after);
            ended += before.saturating_sub(after);
            rounds += usize::from(in_round && writer.round.is_none());
            most_logs = most_logs.max(logs(writer.disk()));
        }
        writer.tick(at(second)).unwrap();
        let bytes: usize = writer.tracks.iter().map(|track| track.chunk.bytes()).sum();
        assert!(writer.open.bytes == bytes && bytes < settings().open_bytes_max + 1_000, "{bytes} bytes are open");
    }
    assert!(rounds > 2 && ended > 0 && most_logs == 2, "{rounds} rounds, {ended} chunks seen, {most_logs} logs");
    check(writer.disk(), 400, 0);
    let disk = writer.close().unwrap();
    check(&disk, 400, 0);
    assert_eq!(logs(&disk), 1);
}

#[test]
fn a_round_goes_on_without_rows() {
    let mut writer = Writer::with_disk(Memory::default(), settings()).unwrap();
    let mut second = 0;
    while writer.round.is_none() {
        (0..SERIES).for_each(|series| give(&mut writer, series, second));
        second += 1;
    }
    for later in 0..=SERIES {
        writer.tick(at(second + later)).unwrap();
    }
    assert!(writer.round.is_none() && logs(writer.disk()) == 1);
    check(writer.disk(), second, 0);
}

#[test]
fn a_kill_at_any_time_of_a_round_loses_nothing() {
    let mut writer = Writer::with_disk(Memory::default(), settings()).unwrap();
    let (mut calls, mut kills_in_rounds) = (0u64, 0);
    for second in 0..120 {
        for series in 0..SERIES {
            give(&mut writer, series, second);
            calls += 1;
            if calls.is_multiple_of(331) {
                kills_in_rounds += usize::from(writer.round.is_some());
                check(writer.disk(), second, series + 1);
                writer = Writer::with_disk(writer.disk().clone(), settings()).unwrap();
                check(writer.disk(), second, series + 1);
                for other in 0..SERIES {
                    let id = writer.series(&name(other)).unwrap();
                    let last = if other <= series { Some(second) } else { second.checked_sub(1) };
                    let role = last.map(|last| role(other, last));
                    assert_eq!(writer.texts(id).next().map(|(_, text)| text.to_string()), role);
                }
            }
        }
    }
    assert!(kills_in_rounds > 3, "{kills_in_rounds} kills were in a round");
}

#[test]
fn a_disk_that_is_full_in_a_round_costs_no_row_that_memory_holds() {
    let mut writer = Writer::with_disk(Memory::default(), settings()).unwrap();
    let mut second = 0;
    while writer.round.is_none() {
        (0..SERIES).for_each(|series| give(&mut writer, series, second));
        second += 1;
    }
    // A segment that is being written is not given up for itself.
    writer.disk_mut().limit = Some(0);
    for _ in 0..5 {
        (0..SERIES).for_each(|series| give(&mut writer, series, second));
        writer.tick(at(second)).unwrap();
        second += 1;
    }
    assert!(writer.round.is_none() && writer.log.behind);
    let lost = writer.dropped();
    writer.disk_mut().limit = None;
    writer.tick(at(second + 60)).unwrap();
    assert!(!writer.log.behind);
    let reader = Reader::with_disk(writer.disk().clone()).unwrap();
    for series in 0..SERIES {
        let last = reader.column(&name(series), "ops", ALWAYS).items.last().map(|(_, value)| *value);
        assert_eq!(last, Some(Value::Counter(value(series, second - 1))));
    }
    if lost.segments == 0 {
        check(writer.disk(), second, 0);
    }
}

#[test]
fn a_chunk_that_is_too_large_ends_at_once_and_all_others_in_a_round() {
    let mut writer = Writer::with_disk(Memory::default(), Settings::default()).unwrap();
    for second in 0..2 {
        (0..SERIES).for_each(|series| give(&mut writer, series, second));
    }
    let fields: Vec<FieldId> = (0..MAX_FIELDS - 1).map(|i| writer.field(&format!("f{i}")).unwrap()).collect();
    let (large, mut rows) = (writer.series("large").unwrap(), 0);
    while writer.round.is_none() {
        let values: Vec<(FieldId, Value)> = fields.iter().map(|field| (*field, Value::Int(rows))).collect();
        writer.sample(large, at(rows as u64), &values).unwrap();
        rows += 1;
    }
    assert_eq!(open(&writer), SERIES as usize, "the large one has ended, and no other yet");
    // Whatever comes now, the older log with its rows goes.
    for second in 2..4 {
        (0..SERIES).for_each(|series| give(&mut writer, series, second));
    }
    for later in 0..=SERIES {
        writer.tick(at(1_000 + later)).unwrap();
    }
    assert!(writer.round.is_none() && logs(writer.disk()) == 1);
    check(writer.disk(), 4, 0);
    let reader = Reader::with_disk(writer.disk().clone()).unwrap();
    assert_eq!(reader.column("large", "f0", ALWAYS).items.len() as i64, rows);
}
