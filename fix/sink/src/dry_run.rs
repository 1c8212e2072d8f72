//! What a sink would send, without sending it.

use std::time::Duration;

use unslow_client::{Options, Target};
use unslow_commands::Table;
use unslow_resp::{Frame, Scan, Scanner, Value, quote_words};
use unslow_watch::{Settings, Watch};

use crate::config::Config;
use crate::encode::{Became, Encoder};
use crate::error::Error;
use crate::mapping::Mapping;
use crate::record::Batch;
use crate::run::{Note, encoder};
use crate::source::lines::Lines;
use crate::source::{Limit, Read, Source};

/// What a server says of its commands, for a dry run without one.
const COMMANDS: &str = include_str!("commands.txt");

/// What would be sent for the first `messages` messages, a command a line as redis-cli reads it, given to `print`,
/// which says whether to go on. Returns how many messages there were and how many cannot be written.
///
/// The commands are checked against those of `server`; without one, against those of Valkey 9.1, as of a single server.
pub fn dry_run(
    config: &Config,
    server: Option<(&Target, &Options)>,
    note: Note,
    messages: usize,
    mut print: impl FnMut(&str) -> bool,
) -> Result<(usize, usize), Error> {
    config.check()?;
    if config.from.starts_with("kafka://") {
        return Err(Error::DryRun);
    }
    // The commands themselves, whatever stands around them on the wire.
    let plain = Config { exactly_once: false, ..config.clone() };
    let mut encoder = match server {
        Some((target, options)) => {
            let watch = Watch::start(Settings::new(target.clone(), options.clone()), |_| {})?;
            encoder(&plain, target, options, &watch.topology())?
        }
        None => Encoder::new(Mapping::compile(&config.map, &table(), false, false)?, false, None),
    };
    let mut source = Lines::open(&config.from, config.envelope, None, note)?;
    let (mut seen, mut bad) = (0, 0);
    while seen < messages {
        let mut batch = Batch::default();
        let limit = Limit {
            messages: config.batch_messages_max.min(messages - seen),
            bytes: config.batch_bytes_max,
            patience: Duration::from_millis(100),
            linger: Duration::from_millis(config.linger_ms),
        };
        let read = source.read(&mut batch, limit)?;
        let mut encoded = encoder.begin(&batch);
        for number in 0..batch.records.len() as u32 {
            seen += 1;
            let record = &batch.records[number as usize];
            let text = match encoder.encode(&batch, number, &mut encoded) {
                Became::Nothing => format!("# {}: no map wants it", record.offset),
                Became::Poison(why) => {
                    bad += 1;
                    format!("# {}: {why}", record.offset)
                }
                Became::Calls(n) => {
                    let calls = &encoded.calls[encoded.calls.len() - n..];
                    let lines: Vec<String> =
                        calls.iter().flat_map(|c| commands(&encoded.bytes[c.from..c.to])).collect();
                    lines.join("\n")
                }
            };
            if !print(&text) {
                return Ok((seen, bad));
            }
        }
        if read == Read::End {
            break;
        }
    }
    Ok((seen, bad))
}

fn commands(mut bytes: &[u8]) -> Vec<String> {
    let mut lines = Vec::new();
    while let Ok(Scan::Complete(len)) = Scanner::default().scan(bytes) {
        lines.push(quote_words(Frame::new(&bytes[..len]).items().map(|f| f.text())));
        bytes = &bytes[len..];
    }
    lines
}

/// Lines of [`COMMANDS`] as a reply to COMMAND.
fn table() -> Table {
    let row = |line: &str| {
        let text = |word: &str| Value::Text(word.as_bytes().to_vec());
        let number = |word: &str| Value::Integer(word.parse().unwrap_or(0));
        let words: Vec<&str> = line.split(' ').collect();
        let [name, arity, flags, first, last, step] = words[..] else { return Value::Array(Vec::new()) };
        let flags = Value::Array(flags.split(',').map(text).collect());
        Value::Array(vec![text(name), number(arity), flags, number(first), number(last), number(step)])
    };
    let rows = COMMANDS.lines().filter(|line| !line.starts_with('#')).map(row).collect();
    Table::parse(&Value::Array(rows), &[]).expect("the file has commands")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_every_command_with_its_keys() {
        let table = table();
        assert_eq!(COMMANDS.lines().filter(|line| !line.starts_with('#')).count(), 257);
        for (name, keys) in [("SET", true), ("hset", true), ("XADD", true), ("PUBLISH", false), ("json.set", false)] {
            let command = table.get(table.look_up(name.as_bytes(), None));
            assert_eq!(command.keys(4, None).next().is_some(), keys, "{name}");
        }
    }
}
