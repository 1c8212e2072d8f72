//! Files cut anywhere and bytes turned anywhere: what is whole is read, what is not is reported, and no value is wrong.

use unslow_series::{DamageKind, Item, Memory, Reader, Settings, Stamp, Value, Writer};

const NODE: &str = "node";

/// Three chunks in one segment with its index, and three rows in the log.
fn recorded() -> Memory {
    let mut disk = Memory::default();
    for rows in [0..9u64, 9..12] {
        let mut writer = Writer::with_disk(disk, Settings::default()).unwrap();
        let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
        for n in rows {
            let at = Stamp { wall_ms: n as i64 * 1000, mono_ms: n * 1000 };
            writer.sample(node, at, &[(field, Value::Counter(expected(n + 1)))]).unwrap();
            if n == 2 || n == 5 {
                writer.flush().unwrap();
            }
            if n == 11 {
                return writer.disk().clone();
            }
        }
        disk = writer.close().unwrap();
    }
    disk
}

fn expected(seq: u64) -> u64 {
    seq * 1_000_003
}

/// The rows that are read, all of them right; and whether anything was missed.
fn read(disk: &Memory) -> Result<(Vec<u64>, usize), unslow_series::Error> {
    let reader = Reader::with_disk(disk.clone())?;
    let mut seqs = Vec::new();
    for series in reader.series() {
        for item in reader.range(&series, i64::MIN..i64::MAX) {
            if let Item::Row(row) = item {
                assert_eq!(row.get("ops"), Some(Value::Counter(expected(row.seq))), "row {}", row.seq);
                seqs.push(row.seq);
            }
        }
        let _ = (reader.texts(&series, 0..i64::MAX), reader.events(Some(&series), 0..i64::MAX));
    }
    Ok((seqs, reader.verify().len()))
}

fn names(disk: &Memory) -> Vec<String> {
    disk.files.keys().cloned().collect()
}

#[test]
fn a_file_cut_at_any_byte_gives_all_that_stands_before() {
    let whole = recorded();
    assert_eq!(read(&whole).unwrap(), ((1..=12).collect(), 0));
    for name in names(&whole) {
        let length = whole.files[&name].len();
        let mut most = 0;
        for cut in 0..length {
            let mut disk = whole.clone();
            disk.files.get_mut(&name).unwrap().truncate(cut);
            let (seqs, _) = read(&disk).unwrap();
            assert!(seqs.is_sorted_by(|a, b| a < b), "{name} cut at {cut}: {seqs:?}");
            assert!(seqs.len() >= most, "{name} cut at {cut}: a longer file gives no fewer rows");
            most = seqs.len();
            // The next writer takes it up.
            Writer::with_disk(disk, Settings::default()).unwrap();
        }
        assert!(most >= 11, "{name}: {most} rows without its last byte");
    }
}

#[test]
fn any_byte_turned_is_reported_or_harmless_and_never_gives_a_wrong_value() {
    let whole = recorded();
    for name in names(&whole) {
        for at in 0..whole.files[&name].len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut disk = whole.clone();
                disk.files.get_mut(&name).unwrap()[at] ^= mask;
                let Ok((seqs, damaged)) = read(&disk) else { continue };
                assert!(damaged > 0 || seqs.len() == 12, "{name}, byte {at}: {seqs:?} and no damage");
                assert!(seqs.len() >= 9, "{name}, byte {at}: one frame is lost, not {seqs:?}");
            }
        }
    }
}

#[test]
fn the_chunks_around_a_damaged_one_are_read() {
    let mut disk = recorded();
    let name = names(&disk).into_iter().find(|name| name.ends_with(".seg")).unwrap();
    let file = disk.files.get_mut(&name).unwrap();
    let heads: Vec<usize> = (0..file.len()).filter(|at| file[*at..].starts_with(&[0xf5, 0x8c, b'S', 0x0a])).collect();
    let middle = heads[1] + 20;
    file[middle] ^= 1;
    assert_eq!(read(&disk).unwrap().0, [1, 2, 3, 7, 8, 9, 10, 11, 12]);
    let reader = Reader::with_disk(disk).unwrap();
    assert!(
        reader
            .range(NODE, 0..100_000)
            .any(|item| matches!(item, Item::Gap(gap) if gap.after_seq == 3 && gap.before_seq == 7))
    );
    assert!(reader.verify().iter().any(|d| d.kind == DamageKind::Checksum));
}

/// A chunk of one column that is told by the column at this place.
fn told_by(place: u8) -> Vec<u8> {
    // One row: sequence number 1, both clocks 0; one column "c", a counter in one run, coded in one byte.
    let head = [1, 0, 2, 0, 0, 0, 0, 0, 0];
    [&head[..], &[1, 1, b'c', 2, 1, 0, 0, 0x82, place, 1], &[0, 0], &[0, 0, 0]].concat()
}

/// So many rows that say nothing, and as many columns, each with all of them or one, told by the clock.
fn huge(rows: u64, columns: u64, all: bool, by_clock: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let varint = |out: &mut Vec<u8>, mut n: u64| {
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
    };
    varint(&mut out, rows);
    // Sequence numbers and both clocks: all zero.
    for _ in 0..3 {
        out.extend([0, 0]);
        varint(&mut out, rows - 1);
    }
    varint(&mut out, columns);
    for _ in 0..columns {
        out.extend([0, 2, 1, 0]);
        varint(&mut out, if all { rows - 1 } else { 0 });
        match by_clock {
            true => out.extend([0x82, 0, 0]),
            false => {
                out.extend([0, 0]);
                varint(&mut out, if all { rows - 1 } else { 0 });
            }
        }
    }
    out.extend([0, 0, 0, 0, 0]);
    out
}

#[test]
fn few_bytes_that_stand_for_much_work_are_refused_in_time() {
    assert_eq!(unslow_series::read_chunk(&huge(10, 3, true, false), &[]), Some(30), "that is how they look");
    let many = huge(1_300_000, 60_000, true, false);
    assert_eq!(unslow_series::read_chunk(&many, &[]), None);
    assert!(!unslow_series::passes_chunk(&many, &[]), "and where only texts are wanted");
    let by_clock = huge(1_300_000, 60_000, false, true);
    assert_eq!(unslow_series::read_chunk(&by_clock, &[]), None, "one value of each, told by a million");
}

#[test]
fn a_column_told_by_itself_or_by_none_is_damage() {
    let by_clock = unslow_series::read_chunk(&told_by(0), &[0xff]);
    assert_eq!(by_clock, Some(1), "the clock is there always");
    for place in [1, 2, 200] {
        assert_eq!(unslow_series::read_chunk(&told_by(place), &[0xff]), None, "{place}");
    }
}
