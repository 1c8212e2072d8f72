//! What a recording takes: `day DIR NODES HOURS INFO INFO`. The two files are INFO ALL of one server, a second apart;
//! what moved between them moves on at that pace, give or take a half, in every second of the hours.
//!
//! It shows bytes on disk and CPU time of writing, and makes a recording to time `unslow incidents` with. It does not
//! show what sockets cost, nor the parts that are asked for once a minute.

use std::collections::BTreeMap;
use std::path::Path;

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, nodes, hours, first, second] = &arguments[..] else {
        return Err("usage: day DIR NODES HOURS INFO INFO".into());
    };
    let (nodes, seconds): (usize, u64) = (nodes.parse().expect("nodes"), hours.parse::<u64>().expect("hours") * 3600);
    let read = |path: &str| std::fs::read_to_string(path).expect("INFO ALL in a file");
    let (before, after) = (fields(&read(first)), fields(&read(second)));
    let infos = |node: usize, at: u64| {
        let mut text = String::with_capacity(16 << 10);
        for (name, value) in &after {
            let moved = before.get(name).filter(|then| *then != value).map(|then| moved(then, value, node, at));
            text += &format!("{name}:{}\r\n", moved.as_deref().unwrap_or(value));
        }
        text.into_bytes()
    };
    let begun = std::time::Instant::now();
    unslow_record::rehearse(Path::new(dir), nodes, seconds, infos).expect("a directory to write");
    let took = begun.elapsed().as_secs_f64();
    let files = std::fs::read_dir(dir).expect("the recording").flatten();
    let bytes: u64 = files.filter_map(|file| Some(file.metadata().ok()?.len())).sum();
    let node_seconds = nodes as f64 * seconds as f64;
    println!(
        "{} fields, {} of them move",
        after.len(),
        after.iter().filter(|(n, v)| before.get(*n) != Some(v)).count()
    );
    println!("{:.2} MB per node and day", bytes as f64 / node_seconds * 86_400.0 / 1e6);
    println!("{:.3} ms per node and second, the making of INFO included", took * 1e3 / node_seconds);
    Ok(())
}

fn fields(info: &str) -> BTreeMap<String, String> {
    let lines = info.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.trim_end().split_once(':')).map(|(k, v)| (k.to_string(), v.to_string())).collect()
}

/// A value after so many seconds at the pace that these two show.
fn moved(then: &str, now: &str, node: usize, at: u64) -> String {
    // A small generator: the same run gives the same bytes.
    let mut seed = (node as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xd134_2543_de82_ef95);
    let mut share = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        0.5 + (seed % 1000) as f64 / 1000.0
    };
    let pieces = then.split([',', '=']).zip(now.split([',', '=']));
    let mut out = now.to_string();
    for (then, now) in pieces {
        let decimals = now.split_once('.').map_or(0, |(_, d)| d.len());
        if let (Ok(a), Ok(b)) = (then.parse::<f64>(), now.parse::<f64>())
            && a != b
        {
            let grown = if b > a { b + (b - a) * (at as f64 + share() - 0.5) } else { a + (b - a) * share() };
            out = out.replacen(now, &format!("{grown:.decimals$}"), 1);
        }
    }
    out
}
