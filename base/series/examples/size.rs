//! How many bytes a day of samples takes: 400 fields each second, idle and varied, beside text through zstd.
//!
//!     cargo run --release -p unslow-series --example size [SEED]
//!     cargo run --release -p unslow-series --example size DIR
//!
//! Of a recording it prints what each of its series takes when this version writes it. The fields of the made-up days
//! are as INFO's are: constants, clocks, counters and gauges. They show the order of magnitude and whether a change of
//! the format pays; they say nothing about one particular server.

use std::fmt::Write;

use unslow_series::{Error, FieldId, Item, Memory, Reader, Settings, Stamp, Value, Writer};

const FIELDS: usize = 400;
const DAY_S: u64 = 86_400;

/// splitmix64: the same seed gives the same day on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound.max(1)
    }
}

/// The next second of a node: two thirds of the fields hardly ever change.
fn next(values: &mut [Value], second: u64, load: u64, random: &mut Random) {
    // Load comes and goes over minutes.
    let load = load * (second / 300 % 7);
    for (i, value) in values.iter_mut().enumerate() {
        *value = match (i, *value) {
            (0..270, Value::Int(n)) if load > 0 && random.below(20_000) == 0 => Value::Int(n + 1),
            (0..270, same) => same,
            (270..274, Value::Int(n)) => Value::Int(n + 1),
            (274..290, Value::Counter(n)) => Value::Counter(n + 1 + random.below(2 + load * 50)),
            (290..350, Value::Counter(n)) if load > 0 && i as u64 % 4 < load => {
                Value::Counter(n + random.below(load * 20))
            }
            (350..380, Value::Int(n)) if load > 0 => Value::Int(n + random.below(9) as i64 - 4),
            (380..384, Value::Float(n)) => Value::Float(((n * 1e6).round() + random.below(900) as f64) / 1e6),
            (384..400, Value::Float(_)) if load > 0 => Value::Float((random.below(100 * load) as f64).round() / 100.0),
            (_, same) => same,
        };
    }
}

fn first(i: usize) -> Value {
    match i {
        274..350 => Value::Counter(i as u64 * 1_000),
        380..400 => Value::Float(1.0),
        _ => Value::Int(i as i64 * 1_000),
    }
}

fn day(load: u64, seed: u64) -> Result<(usize, usize), Error> {
    let mut random = Random(seed);
    let mut writer = Writer::with_disk(Memory::default(), Settings::default())?;
    let node = writer.series("10.0.0.1:6379")?;
    let fields: Vec<FieldId> = (0..FIELDS).map(|i| writer.field(&format!("field_{i}"))).collect::<Result<_, _>>()?;
    let mut values: Vec<Value> = (0..FIELDS).map(first).collect();
    let (mut text, mut text_bytes) = (String::new(), 0);
    for second in 0..DAY_S {
        next(&mut values, second, load, &mut random);
        let at = Stamp { wall_ms: 1_795_460_000_000 + second as i64 * 1_000, mono_ms: second * 1_000 };
        let sample: Vec<(FieldId, Value)> = fields.iter().copied().zip(values.iter().copied()).collect();
        writer.sample(node, at, &sample)?;
        writer.tick(at)?;
        for (i, value) in values.iter().enumerate() {
            let _ = match value {
                Value::Int(n) => writeln!(text, "field_{i}:{n}"),
                Value::Counter(n) => writeln!(text, "field_{i}:{n}"),
                Value::Float(n) => writeln!(text, "field_{i}:{n}"),
            };
        }
        // An hour at a time, as the chunks are.
        if second % 3600 == 3599 {
            text_bytes += zstd::bulk::compress(text.as_bytes(), 9).map_or(0, |packed| packed.len());
            text.clear();
        }
    }
    Ok((writer.close()?.used(), text_bytes))
}

/// Re-encodes a recording, series by series.
fn again(dir: &str) -> Result<(), Error> {
    let reader = Reader::open(dir)?;
    let always = i64::MIN..i64::MAX;
    for name in reader.series() {
        let mut writer = Writer::with_disk(Memory::default(), Settings::default())?;
        let series = writer.series(&name)?;
        let (events, texts) = reader.notes(&name, always.clone(), always.clone());
        let (mut events, mut texts) = (events.into_iter().peekable(), texts.into_iter().peekable());
        let (mut rows, mut first, mut last) = (0u64, i64::MAX, i64::MIN);
        for item in reader.range(&name, always.clone()) {
            let Item::Row(row) = item else { continue };
            while let Some(text) = texts.next_if(|text| text.since_ms <= row.at.wall_ms) {
                writer.text(series, row.at, &text.name, &text.value)?;
            }
            while let Some(event) = events.next_if(|event| event.at.wall_ms <= row.at.wall_ms) {
                writer.event(series, event.at, &event.kind, &event.payload)?;
            }
            let values: Vec<_> =
                row.values().map(|(name, value)| Ok((writer.field(name)?, value))).collect::<Result<_, Error>>()?;
            writer.sample(series, row.at, &values)?;
            writer.tick(row.at)?;
            (rows, first, last) = (rows + 1, first.min(row.at.wall_ms), last.max(row.at.wall_ms));
        }
        if rows > 1 {
            let (disk, days) = (writer.close()?, (last - first) as f64 / 86_400e3);
            // Without the log, whose size does not grow with the recording.
            let bytes: usize = disk.files.iter().filter(|(name, _)| name.ends_with(".seg")).map(|(_, f)| f.len()).sum();
            println!("{name:?}: {rows} rows, {bytes} bytes, {:.2} MB a day", bytes as f64 / days / 1e6);
        }
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    if let Some(dir) = std::env::args().nth(1).filter(|argument| argument.parse::<u64>().is_err()) {
        return again(&dir);
    }
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(1);
    for (name, load, aim) in [("idle", 0, 2_000_000), ("varied", 3, 5_000_000)] {
        let (bytes, text_bytes) = day(load, seed)?;
        let verdict = if bytes <= aim { "within" } else { "over" };
        println!(
            "{name}: {bytes} bytes a day, {verdict} the aim of {aim}; as text through zstd {text_bytes} (seed {seed})"
        );
    }
    Ok(())
}
