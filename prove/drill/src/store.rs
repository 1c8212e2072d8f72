//! Where the evidence of a run is kept: `STORE/DRILL/DATE/RUN/`, and what is in there.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;
use crate::history::History;
use crate::observe::Event;

/// The folder of one run.
pub struct Folder(PathBuf);

fn failed(path: &Path, why: std::io::Error) -> Error {
    Error::Store { path: path.into(), why }
}

impl Folder {
    /// Makes it; `run` names the fault and the variant.
    pub fn make(store: &Path, drill: &str, run: &str) -> Result<Folder, Error> {
        let clean: String = run.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '-' }).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let base = store.join(drill).join(stamp(now.as_secs()));
        for n in 1..1000 {
            let path = if n == 1 { base.join(&clean) } else { base.join(format!("{clean}-{n}")) };
            if path.exists() {
                continue;
            }
            fs::create_dir_all(&path).map_err(|e| failed(&path, e))?;
            return Ok(Folder(path));
        }
        Err(Error::StoreCrowded(base))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file.
    pub fn keep(&self, name: &str, text: &str) -> Result<(), Error> {
        let path = self.0.join(name);
        fs::write(&path, text).map_err(|e| failed(&path, e))
    }

    /// Writes what the clients saw, `history.jsonl`.
    pub fn history(&self, history: &History) -> Result<(), Error> {
        let path = self.0.join("history.jsonl");
        let mut file = BufWriter::new(File::create(&path).map_err(|e| failed(&path, e))?);
        history.write(&mut file).and_then(|()| file.flush()).map_err(|e| failed(&path, e))
    }

    /// Writes the time line, `events.jsonl`.
    pub fn events(&self, events: &[Event]) -> Result<(), Error> {
        let lines: Vec<String> = events.iter().filter_map(|e| serde_json::to_string(e).ok()).collect();
        self.keep("events.jsonl", &(lines.join("\n") + "\n"))
    }
}

/// `2026-11-21T023152Z`: sorts by time, and is a file name anywhere.
fn stamp(seconds: u64) -> String {
    let (year, month, day) = unslow_facts::civil_date(seconds * 1000);
    let rest = seconds % 86_400;
    format!("{year}-{month:02}-{day:02}T{:02}{:02}{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}
