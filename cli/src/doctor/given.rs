//! What a person hands in beside a URL: files of error messages and logs, or standard input.

use std::fs::File;
use std::io::{IsTerminal, Read, Seek, SeekFrom, stdin};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use unslow_facts::{ClientError, Facts, LogEvent};
use unslow_given::{MAX_BYTES, MAX_LOG_BYTES};

/// What was read of them.
#[derive(Default)]
pub struct Words {
    client_errors: Vec<ClientError>,
    log_events: Vec<LogEvent>,
    /// What is to be known of the reading.
    notes: Vec<String>,
}

/// Reads them all, before any server is looked at. `-` is standard input, once.
pub fn read(client_errors: &[PathBuf], logs: &[PathBuf], now_ms: u64) -> anyhow::Result<Words> {
    if client_errors.iter().chain(logs).filter(|path| is_stdin(path)).count() > 1 {
        bail!("`-` was given twice, but standard input can be read only once: put the rest into files");
    }
    let mut words = Words::default();
    for path in client_errors {
        let name = name(path);
        let (text, whole) = beginning(path).with_context(|| name.clone())?;
        let errors = unslow_given::client_errors(&text);
        if errors.is_empty() {
            bail!("{name}: empty; expected the text of a client library's error");
        }
        words.client_errors.extend(errors);
        if !whole {
            words.notes.push(format!("--client-error: only the first {} MiB of the text were read", MAX_BYTES >> 20));
        }
    }
    logs.iter().try_for_each(|path| words.log(path, now_ms))?;
    words.log_events.sort_by_key(|event| std::cmp::Reverse(event.at_ms));
    Ok(words)
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn name(path: &Path) -> String {
    if is_stdin(path) { "standard input".to_string() } else { path.display().to_string() }
}

/// Which part of a long file is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Beginning,
    End,
}

/// A reader of a file, or of standard input, and when the file was last written.
fn open(path: &Path, part: Part) -> anyhow::Result<(Box<dyn Read>, Option<SystemTime>)> {
    if is_stdin(path) {
        if stdin().is_terminal() {
            bail!("it is a terminal; pipe the text in, or name a file");
        }
        return Ok((Box::new(stdin().lock()), None));
    }
    let mut file = File::open(path)?;
    let there = file.metadata()?;
    if part == Part::End && there.is_file() && there.len() > MAX_LOG_BYTES as u64 {
        file.seek(SeekFrom::End(-(MAX_LOG_BYTES as i64)))?;
    }
    Ok((Box::new(file), there.modified().ok().filter(|_| there.is_file())))
}

/// As much of a text as is read, and whether that is all of it. What is no UTF-8 is replaced: messages are found beside
/// it.
fn beginning(path: &Path) -> anyhow::Result<(String, bool)> {
    let mut bytes = Vec::new();
    open(path, Part::Beginning)?.0.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    let whole = bytes.len() <= MAX_BYTES;
    bytes.truncate(MAX_BYTES);
    Ok((String::from_utf8_lossy(&bytes).into_owned(), whole))
}

impl Words {
    fn log(&mut self, path: &Path, now_ms: u64) -> anyhow::Result<()> {
        let name = name(path);
        let mut bytes = Vec::new();
        let (reader, written) = open(path, Part::End).with_context(|| name.clone())?;
        reader.take(MAX_LOG_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(|| name.clone())?;
        if bytes.len() >= MAX_LOG_BYTES {
            let most = MAX_LOG_BYTES >> 20;
            // A pipe has no end to begin at.
            let part = if written.is_some() { "last" } else { "first" };
            self.notes.push(format!("--log: only the {part} {most} MiB of the log were read"));
        }
        bytes.truncate(MAX_LOG_BYTES);
        let written_ms = written.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|d| d.as_millis() as u64);
        let log = unslow_given::read_log(&String::from_utf8_lossy(&bytes), written_ms, now_ms);
        if log.lines == 0 {
            let expected = "12345:M 23 Nov 2026 19:03:59.123 * message";
            bail!("{name}: no line looks like a server's log; expected lines such as `{expected}`, logfmt or syslog");
        }
        if log.events.is_empty() {
            self.notes.push(format!("--log: {} lines, none of them an event that the doctor recognises", log.lines));
        }
        if let Some(offset_ms) = log.offset_ms {
            self.notes.push(clock(offset_ms, log.offset_known));
        }
        self.log_events.extend(log.events);
        Ok(())
    }

    /// Whether nothing was said that a diagnosis could be made of.
    pub fn is_empty(&self) -> bool {
        self.client_errors.is_empty() && self.log_events.is_empty()
    }

    /// Puts them beside what was seen of the servers.
    pub fn add_to(self, facts: &mut Facts) {
        facts.client_errors.extend(self.client_errors);
        facts.log_events.extend(self.log_events);
        // Two logs say the same of their clocks.
        for note in self.notes {
            if !facts.notes.contains(&note) {
                facts.notes.push(note);
            }
        }
    }
}

/// What the times of a log were taken for.
fn clock(offset_ms: i64, known: bool) -> String {
    if !known {
        return "--log: its times have no time zone; they were taken as UTC".into();
    }
    let (sign, minutes) = (if offset_ms < 0 { '-' } else { '+' }, offset_ms.abs() / 60_000);
    let zone = format!("UTC{sign}{:02}:{:02}", minutes / 60, minutes % 60);
    format!("--log: its times have no time zone; they were taken as {zone}, judging by when the file was last written")
}
