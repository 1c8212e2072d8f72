//! Flame graphs: where a process spends its time. `perf` samples by the clock, which works without hardware counters.

use std::io::{BufReader, Cursor};
use std::path::Path;
use std::process::{Command, Stdio};

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options};

use super::Picture;

/// Samples a process for two seconds; the share of samples in the kernel, and the drawing.
pub fn of_process(pid: u32, title: &str, dir: &Path, name: &str) -> Result<(f64, Picture), String> {
    let data = dir.join(format!("perf-{name}.data")).display().to_string();
    let pid = pid.to_string();
    run(&["record", "-q", "-e", "cpu-clock", "-F", "499", "-g", "-p", &pid, "-o", &data, "--", "sleep", "2"])?;
    let script = run(&["script", "-i", &data])?;
    let _ = std::fs::remove_file(&data);
    let mut options = Options::default();
    options.annotate_kernel = true;
    let mut folded = Vec::new();
    Folder::from(options).collapse(Cursor::new(&script), &mut folded).map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&folded).into_owned();
    let (mut all, mut kernel) = (0u64, 0u64);
    for line in text.lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let count: u64 = count.parse().unwrap_or(0);
        all += count;
        kernel += if stack.contains("_[k]") { count } else { 0 };
    }
    if all == 0 {
        return Err("perf saw no samples".into());
    }
    let file = dir.join(format!("flame-{name}.svg"));
    let mut style = inferno::flamegraph::Options::default();
    style.title = title.into();
    style.no_javascript = true;
    style.count_name = "samples".into();
    let mut svg = Vec::new();
    inferno::flamegraph::from_reader(&mut style, BufReader::new(&folded[..]), &mut svg).map_err(|e| e.to_string())?;
    std::fs::write(&file, svg).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok((kernel as f64 / all as f64, Picture { title: title.into(), file: file.display().to_string() }))
}

fn run(arguments: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = Command::new("perf");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = unslow_engine::spawn_bound(command).and_then(std::process::Child::wait_with_output);
    let output = output.map_err(|e| format!("perf does not start ({e}); Debian: apt install linux-perf"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("perf {}: {}", arguments[0], said.lines().last().unwrap_or("no reason given")))
}
