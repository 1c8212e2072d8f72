//! Flame graphs: where a process spends its time. `perf` samples by the clock, which works without hardware counters.

use std::io::{BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};

use super::Picture;

/// Why there is no flame graph.
#[derive(Debug, thiserror::Error)]
pub enum NoFlames {
    /// It is not installed, or may not run.
    #[error("perf could not be started ({0}); on Debian: apt install linux-perf")]
    NoPerf(std::io::Error),
    /// It gave up.
    #[error("perf {verb}: {why}")]
    Failed { verb: String, why: String },
    /// The process did nothing, or nothing that may be seen.
    #[error("perf saw no samples")]
    NoSamples,
    /// The samples could not be read, or not be drawn.
    #[error("{0}")]
    Drawing(std::io::Error),
    /// The drawing could not be kept.
    #[error("{}: {why}", .file.display())]
    Unwritten { file: PathBuf, why: std::io::Error },
}

/// Samples a process for two seconds; the share of samples in the kernel, and the drawing.
pub fn of_process(pid: u32, title: &str, dir: &Path, name: &str) -> Result<(f64, Picture), NoFlames> {
    let data = dir.join(format!("perf-{name}.data")).display().to_string();
    let pid = pid.to_string();
    run(&["record", "-q", "-e", "cpu-clock", "-F", "499", "-g", "-p", &pid, "-o", &data, "--", "sleep", "2"])?;
    let script = run(&["script", "-i", &data])?;
    let _ = std::fs::remove_file(&data);
    let mut options = Options::default();
    options.annotate_kernel = true;
    let mut folded = Vec::new();
    Folder::from(options).collapse(Cursor::new(&script), &mut folded).map_err(NoFlames::Drawing)?;
    let text = String::from_utf8_lossy(&folded).into_owned();
    let (mut all, mut kernel) = (0u64, 0u64);
    for line in text.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let count: u64 = count.parse().unwrap_or(0);
        all += count;
        kernel += if stack.contains("_[k]") { count } else { 0 };
    }
    if all == 0 {
        return Err(NoFlames::NoSamples);
    }
    let file = dir.join(format!("flame-{name}.svg"));
    let mut style = inferno::flamegraph::Options::default();
    style.title = title.into();
    style.no_javascript = true;
    style.count_name = "samples".into();
    let mut svg = Vec::new();
    let drawn = inferno::flamegraph::from_reader(&mut style, BufReader::new(&folded[..]), &mut svg);
    drawn.map_err(NoFlames::Drawing)?;
    std::fs::write(&file, svg).map_err(|why| NoFlames::Unwritten { file: file.clone(), why })?;
    Ok((kernel as f64 / all as f64, Picture { title: title.into(), file: file.display().to_string() }))
}

fn run(arguments: &[&str]) -> Result<Vec<u8>, NoFlames> {
    let mut command = Command::new("perf");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = unslow_engine::spawn_bound(command).and_then(std::process::Child::wait_with_output);
    let output = output.map_err(NoFlames::NoPerf)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().last().unwrap_or("no reason given").to_string();
    Err(NoFlames::Failed { verb: arguments[0].into(), why })
}
