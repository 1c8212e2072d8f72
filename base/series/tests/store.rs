//! What is written comes back: any values in any order, after kills, restarts, retention and on full disks.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use unslow_series::{
    Damage, DamageKind, Directory, Error, Gap, Item, Memory, Reader, Row, Settings, Stamp, Value, Writer,
};

const NODE: &str = "10.0.0.1:6379";
const ALWAYS: std::ops::Range<i64> = i64::MIN..i64::MAX;

fn at(second: u64) -> Stamp {
    Stamp { wall_ms: 1_795_460_000_000 + second as i64 * 1000, mono_ms: second * 1000 }
}

fn rows(disk: &Memory) -> Vec<Row> {
    let reader = Reader::with_disk(disk.clone()).unwrap();
    let row = |item| match item {
        Item::Row(row) => Some(row),
        Item::Gap(_) | Item::Step(_) => None,
    };
    reader.range(NODE, ALWAYS).filter_map(row).collect()
}

/// Bits, so that NaN is itself.
fn bits(value: Value) -> (u8, u64) {
    match value {
        Value::Int(n) => (0, n as u64),
        Value::Float(n) => (1, n.to_bits()),
        Value::Counter(n) => (2, n),
    }
}

fn value() -> impl Strategy<Value = Value> {
    let float = prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        (-1_000_000i32..1_000_000).prop_map(|n| f64::from(n) / 100.0),
        Just(f64::NAN),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(-0.0),
    ];
    prop_oneof![
        prop_oneof![any::<i64>(), -9i64..9, Just(i64::MIN), Just(i64::MAX)].prop_map(Value::Int),
        float.prop_map(Value::Float),
        prop_oneof![any::<u64>(), 0u64..9, Just(u64::MAX)].prop_map(Value::Counter),
    ]
}

/// A call, or the end of a writer.
#[derive(Clone, Debug)]
enum Act {
    Sample { step_ms: i64, values: BTreeMap<u8, Value> },
    Text(u8, String),
    Flush,
    Kill,
}

fn act() -> impl Strategy<Value = Act> {
    let step = prop_oneof![8 => Just(1000i64), 1 => -100_000_000i64..100_000_000];
    let values = proptest::collection::btree_map(0u8..6, value(), 0..6);
    prop_oneof![
        12 => (step, values).prop_map(|(step_ms, values)| Act::Sample { step_ms, values }),
        2 => (0u8..3, "[a-c]{0,2}").prop_map(|(name, text)| Act::Text(name, text)),
        1 => Just(Act::Flush),
        1 => Just(Act::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn everything_given_comes_back_after_kills_and_restarts(acts in proptest::collection::vec(act(), 1..60)) {
        let settings = || Settings { segment_bytes: 500, ..Settings::default() };
        let mut writer = Writer::with_disk(Memory::default(), settings()).unwrap();
        let (mut wall_ms, mut mono_ms, mut given, mut texts) = (1_795_460_000_000i64, 0, Vec::new(), BTreeMap::new());
        for act in acts {
            let node = writer.series(NODE).unwrap();
            mono_ms += 1000;
            match act {
                Act::Sample { step_ms, values } => {
                    wall_ms += step_ms;
                    let mut named = Vec::new();
                    for (field, value) in &values {
                        named.push((writer.field(&format!("field{field}")).unwrap(), *value));
                    }
                    writer.sample(node, Stamp { wall_ms, mono_ms }, &named).unwrap();
                    given.push((wall_ms, values));
                }
                Act::Text(name, text) => {
                    let stored = writer.text(node, Stamp { wall_ms, mono_ms }, &format!("text{name}"), &text).unwrap();
                    let before = texts.insert(name, text.clone());
                    prop_assert_eq!(stored, before != Some(text), "stored on change only");
                }
                Act::Flush => writer.flush().unwrap(),
                Act::Kill => writer = Writer::with_disk(writer.disk().clone(), settings()).unwrap(),
            }
        }
        let found = rows(writer.disk());
        prop_assert_eq!(found.len(), given.len());
        for (i, (row, (wall_ms, values))) in found.iter().zip(&given).enumerate() {
            prop_assert_eq!((row.seq, row.at.wall_ms), (i as u64 + 1, *wall_ms));
            let got: BTreeMap<String, (u8, u64)> =
                row.values().map(|(name, value)| (name.to_string(), bits(value))).collect();
            let expected: BTreeMap<String, (u8, u64)> =
                values.iter().map(|(field, value)| (format!("field{field}"), bits(*value))).collect();
            prop_assert_eq!(got, expected);
        }
        let reader = Reader::with_disk(writer.disk().clone()).unwrap();
        prop_assert_eq!(reader.verify(), Vec::<Damage>::new());
        // A part of it is the same part of it.
        let (from, to) = (1_795_460_003_000, 1_795_460_020_000);
        let part = reader.range(NODE, from..to).filter(|item| matches!(item, Item::Row(_))).count();
        prop_assert_eq!(part, given.iter().filter(|(wall, _)| (from..to).contains(wall)).count());
    }
}

/// Some rows, a text and an event, partly in a segment and partly in the log.
fn small() -> Writer<Memory> {
    let mut writer = Writer::with_disk(Memory::default(), Settings::default()).unwrap();
    let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
    for second in 0..6 {
        writer.sample(node, at(second), &[(field, Value::Counter(second * 7))]).unwrap();
        if second == 2 {
            writer.text(node, at(second), "role", "master").unwrap();
            writer.flush().unwrap();
        }
    }
    writer.event(node, at(5), "slowlog", b"KEYS *").unwrap();
    writer
}

#[test]
fn clock_steps_are_kept_and_reported() {
    let mut writer = Writer::with_disk(Memory::default(), Settings::default()).unwrap();
    let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
    for (second, wall_ms) in [10_000, 11_000, 3_611_000 + 1000, 5_000].into_iter().enumerate() {
        let at = Stamp { wall_ms, mono_ms: second as u64 * 1000 };
        writer.sample(node, at, &[(field, Value::Int(second as i64))]).unwrap();
    }
    let reader = Reader::with_disk(writer.disk().clone()).unwrap();
    assert_eq!((reader.span().map(|s| s.to_ms), reader.newest_ms()), (Some(3_612_000), Some(5_000)));
    let steps: Vec<i64> = reader
        .range(NODE, ALWAYS)
        .filter_map(|item| match item {
            Item::Step(step) => Some(step.by_ms),
            Item::Row(_) | Item::Gap(_) => None,
        })
        .collect();
    assert_eq!(steps, [3_600_000, -3_608_000]);
    let early = reader.column(NODE, "ops", 0..11_000);
    assert_eq!(early.items.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [Value::Int(0), Value::Int(3)]);
}

#[test]
fn texts_from_before_a_range_hold_in_it_and_events_come_once() {
    let writer = small();
    let reader = Reader::with_disk(writer.disk().clone()).unwrap();
    let texts = reader.texts(NODE, at(4).wall_ms..at(5).wall_ms).items;
    let texts: Vec<_> = texts.iter().map(|t| (&*t.name, &*t.value, t.since_ms)).collect();
    assert_eq!(texts, [("role", "master", at(2).wall_ms)]);
    let events = reader.events(None, ALWAYS).items;
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].kind.as_str(), events[0].payload.as_slice()), ("slowlog", &b"KEYS *"[..]));
    assert_eq!(reader.series().iter().map(|s| s.to_string()).collect::<Vec<_>>(), [NODE]);
    assert_eq!(reader.span().map(|s| (s.from_ms, s.to_ms)), Some((at(0).wall_ms, at(5).wall_ms)));
}

#[test]
fn a_log_that_was_not_removed_adds_nothing() {
    let mut writer = small();
    let log = writer.disk().files.iter().find(|(name, _)| name.ends_with(".open")).unwrap();
    let (name, bytes) = (log.0.clone(), log.1.clone());
    let before = rows(writer.disk());
    writer.flush().unwrap();
    // Killed between the segment and the removal of the log.
    writer.disk_mut().files.insert(name, bytes);
    assert_eq!(rows(writer.disk()), before);
    let events = Reader::with_disk(writer.disk().clone()).unwrap().events(Some(NODE), ALWAYS);
    assert_eq!(events.items.len(), 1);
    let next = Writer::with_disk(writer.disk().clone(), Settings::default()).unwrap();
    assert_eq!(rows(next.disk()), before);
}

#[test]
fn what_a_segment_has_of_texts_holds_after_a_kill_before_the_new_log() {
    let mut writer = small();
    let node = writer.series(NODE).unwrap();
    writer.text(node, at(6), "role", "replica").unwrap();
    let is_log = |name: &str| name.ends_with(".open");
    let logs = |disk: &Memory| -> Vec<(String, Vec<u8>)> {
        disk.files.iter().filter(|(name, _)| is_log(name)).map(|(n, b)| (n.clone(), b.clone())).collect()
    };
    let old = logs(writer.disk());
    writer.flush().unwrap();
    writer.disk_mut().files.retain(|name, _| !is_log(name));
    writer.disk_mut().files.extend(old);
    let mut next = Writer::with_disk(writer.disk().clone(), Settings::default()).unwrap();
    let node = next.series(NODE).unwrap();
    assert_eq!(next.texts(node).collect::<Vec<_>>(), [("role", "replica")]);
    assert!(!next.text(node, at(7), "role", "replica").unwrap(), "it is what it was");
    assert!(next.text(node, at(8), "role", "master").unwrap(), "it is something else");
    let field = next.field("ops").unwrap();
    next.sample(node, at(9), &[(field, Value::Int(1))]).unwrap();
    next.flush().unwrap();
    let texts = Reader::with_disk(next.disk().clone()).unwrap().texts(NODE, at(9).wall_ms..at(10).wall_ms).items;
    let texts: Vec<_> = texts.iter().map(|t| (&*t.value, t.since_ms)).collect();
    assert_eq!(texts, [("master", at(8).wall_ms)]);
}

#[test]
fn the_oldest_segments_go_by_bytes_and_by_age() {
    let settings = Settings { segment_bytes: 1, retain_bytes: Some(1500), ..Settings::default() };
    let mut writer = Writer::with_disk(Memory::default(), settings).unwrap();
    let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
    for second in 0..40 {
        writer.sample(node, at(second), &[(field, Value::Int(1))]).unwrap();
        writer.flush().unwrap();
        writer.tick(at(second)).unwrap();
    }
    let left = rows(writer.disk());
    assert!(left.len() > 1 && left.len() < 30, "{} rows", left.len());
    assert_eq!(left.last().map(|row| row.seq), Some(40));

    let settings = Settings { retain_for: Some(Duration::from_secs(3600)), ..Settings::default() };
    let mut writer = Writer::with_disk(writer.disk().clone(), settings).unwrap();
    writer.tick(at(100)).unwrap();
    // Years ahead, by mistake: nothing is deleted for an hour.
    let wrong = Stamp { wall_ms: at(0).wall_ms * 2, mono_ms: 101_000 };
    writer.tick(wrong).unwrap();
    assert_eq!(rows(writer.disk()), left);
    writer.tick(at(102)).unwrap();
    for second in (103..2 * 3600 + 200).step_by(60) {
        writer.tick(at(second)).unwrap();
    }
    assert!(rows(writer.disk()).is_empty());
}

#[test]
fn a_full_disk_costs_the_oldest_segment_and_says_so() {
    let settings = Settings { segment_bytes: 1, ..Settings::default() };
    let disk = Memory { limit: Some(6000), ..Memory::default() };
    let mut writer = Writer::with_disk(disk, settings).unwrap();
    let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
    for second in 0..200 {
        writer.sample(node, at(second), &[(field, Value::Int(second as i64))]).unwrap();
        if second % 3 == 0 {
            writer.flush().unwrap();
        }
        writer.tick(at(second)).unwrap();
    }
    assert!(writer.dropped().segments > 0);
    assert_eq!(rows(writer.disk()).last().map(|row| row.seq), Some(200));
    let events = Reader::with_disk(writer.disk().clone()).unwrap().events(Some(""), ALWAYS).items;
    assert!(events.iter().any(|e| e.kind == "store.disk_full"), "{events:?}");
}

#[test]
fn what_a_full_disk_could_not_take_is_written_when_there_is_room() {
    let mut writer = small();
    writer.disk_mut().limit = Some(0);
    let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
    for second in 6..30 {
        writer.sample(node, at(second), &[(field, Value::Counter(second * 7))]).unwrap();
    }
    writer.disk_mut().limit = None;
    writer.tick(at(60)).unwrap();
    let seqs: Vec<u64> = rows(writer.disk()).iter().map(|row| row.seq).collect();
    assert_eq!(seqs.last(), Some(&30));
    assert!(seqs.ends_with(&(7..=30).collect::<Vec<u64>>()), "{seqs:?}");
}

#[test]
fn a_deleted_middle_is_a_gap() {
    let mut writer =
        Writer::with_disk(Memory::default(), Settings { segment_bytes: 1, ..Settings::default() }).unwrap();
    let node = writer.series(NODE).unwrap();
    for second in 0..3 {
        writer.sample(node, at(second), &[]).unwrap();
        writer.flush().unwrap();
    }
    writer.disk_mut().files.retain(|name, _| !name.ends_with("1.seg"));
    let items: Vec<Item> = Reader::with_disk(writer.disk().clone()).unwrap().range(NODE, ALWAYS).collect();
    let (after_ms, before_ms) = (at(0).wall_ms, at(2).wall_ms);
    assert_eq!(items.get(1), Some(&Item::Gap(Gap { after_seq: 1, before_seq: 3, after_ms, before_ms })), "{items:?}");
}

#[test]
fn a_directory_has_one_writer_and_any_number_of_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("recording");
    let mut writer = Writer::open(&path, Settings::default()).unwrap();
    let (node, field) = (writer.series(NODE).unwrap(), writer.field("ops").unwrap());
    writer.sample(node, at(1), &[(field, Value::Int(5))]).unwrap();
    match Writer::open(&path, Settings::default()).map(drop) {
        Err(Error::Locked { holder, .. }) => assert_eq!(holder, std::process::id().to_string()),
        other => panic!("{other:?}"),
    }
    assert_eq!(Reader::open(&path).unwrap().column(NODE, "ops", ALWAYS).items, [(at(1), Value::Int(5))]);
    writer.close().unwrap();
    let reader = Reader::open(&path).unwrap();
    assert_eq!(reader.column(NODE, "ops", ALWAYS).items, [(at(1), Value::Int(5))]);
    assert!(reader.damage().is_empty());
    drop(Directory::locked(&path).unwrap());
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let writer = small();
    for extension in [".seg", ".open"] {
        let mut disk = writer.disk().clone();
        let file = disk.files.iter_mut().find(|(name, _)| name.ends_with(extension)).unwrap().1;
        file[8] = 4;
        let sum = crc32fast::hash(&file[..18]).to_le_bytes();
        file[18..22].copy_from_slice(&sum);
        let error = Reader::with_disk(disk.clone()).map(drop).unwrap_err();
        assert!(matches!(error, Error::Version { found: 4, newest: 3, .. }), "{error}");
        assert!(Writer::with_disk(disk, Settings::default()).is_err());
    }
}

/// Frames of a log: a whole row of many fields, and thousands of differences that say nothing.
#[test]
fn a_log_whose_few_bytes_stand_for_many_values_is_read_in_time_and_memory() {
    let varint = |mut n: u64| {
        let mut out = Vec::new();
        while n >= 0x80 {
            out.push(n as u8 | 0x80);
            n >>= 7;
        }
        out.push(n as u8);
        out
    };
    let named = |id: u64, name: &str| [varint(id), varint(name.len() as u64), name.as_bytes().to_vec()].concat();
    let mut frames = vec![(1u8, named(0, NODE)), (2, named(0, "field"))];
    // One field, a hundred thousand times: more than a row may have.
    let values = [0, 0, 2].repeat(100_000);
    frames.push((3, [varint(0), varint(1), varint(0), varint(0), varint(100_000), values].concat()));
    let fields: Vec<u8> = (0..16_000u64).flat_map(|field| [varint(field), vec![0, 2]].concat()).collect();
    frames.extend((1..16_000).map(|id| (2, named(id, &format!("f{id}")))));
    frames.push((3, [varint(0), varint(1), varint(0), varint(0), varint(16_000), fields].concat()));
    // Known rows again and again, new ones, and other series of the same number.
    let row = |seq: u64| [varint(0), varint(seq), varint(0), varint(0), varint(1), varint(0), varint(0)].concat();
    frames.extend((0..50_000).map(|_| (6, row(1))));
    frames.extend((2..3_000).map(|seq| (6, row(seq))));
    for other in 0..3_000 {
        frames.push((1, named(0, &format!("other {other}"))));
        frames.push((6, row(5_000 + other)));
    }
    let mut disk = Memory::default();
    let pieces = frames.iter().map(|(kind, body)| (*kind, body.as_slice()));
    disk.files.insert(format!("{:020}.open", 1), unslow_series::framed_pieces(b"UNSLOWop", pieces));
    let reader = Reader::with_disk(disk.clone()).unwrap();
    assert!(!reader.damage().is_empty());
    let rows = rows(&disk).len();
    assert!((1..=300).contains(&rows), "{rows}");
    assert!(Writer::with_disk(disk, Settings::default()).is_ok());
}

/// A segment and a log that a recorder wrote before differences were known; it was killed.
#[test]
fn a_directory_of_the_first_format_is_read_and_carried_on() {
    let mut disk = Memory::default();
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/format-1")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_string();
        disk.files.insert(name, std::fs::read(path).unwrap());
    }
    assert!(disk.files.values().all(|bytes| bytes[8] == 1));
    let all = |disk: &Memory| {
        let reader = Reader::with_disk(disk.clone()).unwrap();
        assert_eq!(reader.damage(), []);
        let series = reader.series().into_iter().find(|name| name.contains(' ')).unwrap();
        let rows = |item| if let Item::Row(row) = item { Some((row.at, row.values().count())) } else { None };
        reader.range(&series, ALWAYS).filter_map(rows).collect::<Vec<_>>()
    };
    let before = all(&disk);
    assert!(before.len() >= 6 && before.iter().all(|(_, fields)| *fields > 250), "{before:?}");
    let mut writer = Writer::with_disk(disk, Settings::default()).unwrap();
    let (other, field) = (writer.series("other").unwrap(), writer.field("f").unwrap());
    writer.sample(other, at(1), &[(field, Value::Int(1))]).unwrap();
    assert_eq!(all(writer.disk()), before, "while it writes");
    assert_eq!(all(&writer.close().unwrap()), before, "and at the end");
}

/// What a server has: fields that stand still, counters, gauges, quotients, clocks, and what comes and goes.
fn second_of_a_server(second: u64, random: &mut impl FnMut(u64) -> u64) -> Vec<(String, Value)> {
    let at_ms = at(second).wall_ms;
    let mut row: Vec<(String, Value)> = (0..60).map(|i| (format!("still_{i}"), Value::Int(i))).collect();
    let calls = 10 * second as i64 + random(7) as i64;
    let usec = 13 * calls + random(500) as i64;
    row.push(("calls".into(), Value::Int(calls)));
    row.push(("usec".into(), Value::Int(usec)));
    let each = if calls == 0 { 0.0 } else { usec as f32 / calls as f32 };
    row.push(("usec_per_call".into(), Value::Int((f64::from(each) * 100.0).round() as i64)));
    row.push(("time_usec".into(), Value::Int(at_ms * 1000 + random(400) as i64)));
    row.push(("output".into(), Value::Counter(second * 8_000 + random(3) * 512)));
    row.push(("output_again".into(), Value::Counter(second * 8_000 + random(3) * 512)));
    for i in 0..40 {
        // Each as the one before it, so that a chain of columns is longer than what is followed.
        let before = row.last().map_or(0, |(_, value)| bits(*value).1);
        row.push((format!("chain_{i}"), Value::Counter(before.wrapping_add(i % 3 * random(2)))));
    }
    row.push(("gauge".into(), Value::Float(random(10_000) as f64 / 100.0)));
    row.push(("bits".into(), Value::Float(1.0 / (1.0 + random(1 << 40) as f64))));
    row.push(("wild".into(), Value::Int((random(u64::MAX) as i64) >> random(64))));
    for i in 0..12 {
        if random(12) > i {
            row.push((format!("ping_{i}"), Value::Int(1 + random(5) as i64)));
        }
    }
    row
}

#[test]
fn an_hour_of_a_server_comes_back_and_takes_few_bytes() {
    let mut state = 1u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    };
    let mut writer = Writer::with_disk(Memory::default(), Settings::default()).unwrap();
    let node = writer.series(NODE).unwrap();
    let mut given = Vec::new();
    for second in 0..3_000 {
        let row = second_of_a_server(second, &mut random);
        let values: Vec<_> = row.iter().map(|(name, value)| (writer.field(name).unwrap(), *value)).collect();
        writer.sample(node, at(second), &values).unwrap();
        given.push(row.into_iter().map(|(name, value)| (name, bits(value))).collect::<BTreeMap<_, _>>());
    }
    writer.flush().unwrap();
    let disk = writer.close().unwrap();
    let segment = disk.files.iter().find(|(name, _)| name.ends_with(".seg")).unwrap().1.len();
    // Nine bytes of chance a second for `wild` and `bits`, and some twenty for all the rest.
    assert!(segment < 3_000 * 32, "{segment} bytes");
    let reader = Reader::with_disk(disk).unwrap();
    assert_eq!(reader.verify(), []);
    let mut read = 0;
    for (item, given) in reader.range(NODE, ALWAYS).zip(&given) {
        let Item::Row(row) = item else { panic!("{item:?}") };
        let all: BTreeMap<_, _> = row.values().map(|(name, value)| (name.to_string(), bits(value))).collect();
        assert!(all == *given, "row {}", row.seq);
        read += 1;
    }
    assert_eq!(read, given.len());
}

#[test]
fn a_log_of_differences_gives_every_row_and_a_damaged_one_costs_at_most_those_behind_it() {
    let mut writer = Writer::with_disk(Memory::default(), Settings::default()).unwrap();
    let node = writer.series(NODE).unwrap();
    let fields: Vec<_> = (0..20).map(|i| writer.field(&format!("field_{i}")).unwrap()).collect();
    let values = |second: u64| {
        // Most stand still, one counts, some come and go.
        let steady = (0..10).map(|i| (i, 7));
        let moving = [(10, second as i64), (11 + (second % 7) as usize, 1)];
        steady.chain(moving).collect::<Vec<(usize, i64)>>()
    };
    for second in 0..200 {
        let row: Vec<_> = values(second).into_iter().map(|(field, n)| (fields[field], Value::Int(n))).collect();
        writer.sample(node, at(second), &row).unwrap();
    }
    let disk = writer.disk().clone();
    let all = rows(&disk);
    assert_eq!(all.len(), 200);
    for (second, row) in (0..).zip(&all) {
        let expected = values(second);
        assert_eq!(row.values().count(), expected.len(), "{second}: {row:?}");
        for (field, n) in expected {
            assert_eq!(row.get(&format!("field_{field}")), Some(Value::Int(n)), "{second}");
        }
    }
    let log = disk.files.iter().find(|(name, _)| name.ends_with(".open")).unwrap().1;
    assert!(log.len() < 200 * 60, "{} bytes", log.len());
    // Behind the names, which all rows need.
    for byte in (1_000..log.len()).step_by(97) {
        let mut damaged = disk.clone();
        damaged.files.iter_mut().find(|(name, _)| name.ends_with(".open")).unwrap().1[byte] ^= 0x55;
        let Ok(reader) = Reader::with_disk(damaged.clone()) else { continue };
        let lost = 200 - rows(&damaged).len();
        assert!(lost <= 64, "byte {byte}: {lost} rows");
        assert!(lost == 0 || !reader.damage().is_empty(), "byte {byte}: without a word");
        assert!(rows(&damaged).iter().all(|row| all.contains(row)), "byte {byte}: another value");
    }
}

#[test]
fn a_damaged_log_leaves_the_segments_and_a_torn_tail_is_named() {
    let mut disk = small().disk().clone();
    let file = disk.files.iter_mut().find(|(name, _)| name.ends_with(".open")).unwrap().1;
    file.truncate(file.len() - 3);
    let reader = Reader::with_disk(disk.clone()).unwrap();
    assert!(matches!(reader.damage(), [Damage { kind: DamageKind::TornTail, .. }]), "{:?}", reader.damage());
    assert_eq!(rows(&disk).len(), 6, "only the event was torn");
}
