//! `cargo xtask lint`: an error if the compiler or Clippy warns about anything in the workspace.
//!
//! Its tests are compiled by Clippy's driver (`.cargo/compile`), and Cargo repeats the warnings of what is built
//! already: after a build this takes seconds. `cargo clippy` would check every dependency, two hundred seconds, for
//! nothing else.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::{cargo, clippy_driver};

/// Everything, and what `make demo` builds: the program without its optional features. That is compiled as its tests
/// are, beside the dependencies of the whole, which are built already.
const BUILDS: &[&[&str]] = &[
    &["build", "--release", "--workspace", "--all-targets"],
    &["test", "--no-run", "--release", "--workspace", "--no-default-features", "--bin", "unslow"],
];

/// Crates that the second of these compiles again. They are never run, so they are not optimized: that takes a third of
/// the time, and Clippy's driver compiles what is not optimized.
const AGAIN: &[&str] = &["bench", "bypass", "gateway", "sink"];

/// A line of Cargo's JSON that is about a message of the compiler.
#[derive(Deserialize)]
struct Line {
    message: Option<Message>,
}

#[derive(Deserialize)]
struct Message {
    level: String,
    rendered: String,
    code: Option<serde::de::IgnoredAny>,
    spans: Vec<serde::de::IgnoredAny>,
}

pub fn main(root: &Path) -> anyhow::Result<()> {
    if !clippy_driver(root)?.exists() {
        bail!("Clippy is not installed: rustup component add clippy, then remove target/release and build again");
    }
    let mut warnings = BTreeSet::new();
    for arguments in BUILDS {
        let mut build = cargo(root);
        build.args(*arguments).args(["--quiet", "--message-format=json"]).stdout(Stdio::piped());
        if arguments.contains(&"--no-default-features") {
            let plain = |name: &&str| format!("--config=profile.release.package.unslow-{name}.opt-level=0");
            build.args(AGAIN.iter().map(plain));
        }
        let mut child = build.spawn().context("cargo runs")?;
        for line in BufReader::new(child.stdout.take().context("its output is piped")?).lines() {
            warnings.extend(warning_of(&line?));
        }
        if !child.wait()?.success() {
            warnings.iter().for_each(|text| eprint!("{text}"));
            bail!("cargo {} failed", arguments.join(" "));
        }
    }
    if warnings.is_empty() {
        return Ok(());
    }
    warnings.iter().for_each(|text| eprintln!("{text}"));
    bail!("{} warnings of the compiler or Clippy, see above", warnings.len())
}

/// The warning or error on this line of Cargo's. "2 warnings emitted", at the end of a crate, is skipped: it is of no
/// lint and no place.
fn warning_of(line: &str) -> Option<String> {
    let message = serde_json::from_str::<Line>(line).ok()?.message?;
    let is_summary = message.code.is_none() && message.spans.is_empty();
    (["warning", "error"].contains(&message.level.as_str()) && !is_summary).then_some(message.rendered)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A warning where these tests were compiled by rustc: what Cargo keeps in target/ has no lints then. Remove
    /// target/release and build again.
    #[cfg(not(clippy))]
    fn compiled_without_clippy() {}

    #[test]
    fn warnings_are_reported_and_summaries_and_artifacts_are_skipped() {
        let line = |level: &str, code: &str, spans: &str| {
            format!(r#"{{"message":{{"level":"{level}","rendered":"it\n","code":{code},"spans":{spans}}}}}"#)
        };
        let lint = r#"{"code":"unused_variables","explanation":null}"#;
        assert_eq!(warning_of(&line("warning", lint, r#"[{"file_name":"a.rs"}]"#)).as_deref(), Some("it\n"));
        assert!(warning_of(&line("warning", lint, "[]")).is_some(), "of a whole crate");
        assert!(warning_of(&line("error", "null", r#"[{"file_name":"a.rs"}]"#)).is_some(), "of no code");
        assert_eq!(warning_of(&line("note", lint, r#"[{"file_name":"a.rs"}]"#)), None);
        assert_eq!(warning_of(&line("warning", "null", "[]")), None, "2 warnings emitted");
        assert_eq!(warning_of(r#"{"reason":"compiler-artifact","package_id":"x"}"#), None);
        assert_eq!(warning_of("not JSON"), None);
    }
}
