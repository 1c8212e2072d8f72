//! `cargo xtask lint`: an error if the compiler or Clippy said anything about the workspace.
//!
//! Its tests are compiled by Clippy's driver (`.cargo/compile`), and Cargo repeats the warnings of what is built already:
//! after a build this takes seconds. `cargo clippy` would check every dependency, two hundred seconds, for nothing else.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::{cargo, clippy_driver};

/// Everything, and what `make demo` builds: the program without its optional features. That is compiled as its tests are,
/// beside the dependencies of the whole, which are there.
const BUILDS: &[&[&str]] = &[
    &["build", "--release", "--workspace", "--all-targets"],
    &["test", "--no-run", "--release", "--workspace", "--no-default-features", "--bin", "unslow"],
];

/// Crates that the second of these compiles again. Nobody runs them: without optimization it takes a third of the time.
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
    let mut said = BTreeSet::new();
    for arguments in BUILDS {
        let mut build = cargo(root);
        build.args(*arguments).args(["--quiet", "--message-format=json"]).stdout(Stdio::piped());
        if arguments.contains(&"--no-default-features") {
            let plain = |name: &&str| format!("--config=profile.release.package.unslow-{name}.opt-level=0");
            build.args(AGAIN.iter().map(plain));
        }
        let mut child = build.spawn().context("cargo runs")?;
        for line in BufReader::new(child.stdout.take().context("its output is piped")?).lines() {
            said.extend(told(&line?));
        }
        if !child.wait()?.success() {
            said.iter().for_each(|text| eprint!("{text}"));
            bail!("cargo {} failed", arguments.join(" "));
        }
    }
    if said.is_empty() {
        return Ok(());
    }
    said.iter().for_each(|text| eprintln!("{text}"));
    bail!("{} warnings and errors of the compiler or Clippy, see above", said.len())
}

/// The warning or error that this line of Cargo's holds. The sum at the end of a crate, of no lint and no place, is none.
fn told(line: &str) -> Option<String> {
    let message = serde_json::from_str::<Line>(line).ok()?.message?;
    let is_sum = message.code.is_none() && message.spans.is_empty();
    (["warning", "error"].contains(&message.level.as_str()) && !is_sum).then_some(message.rendered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_told_and_what_was_built_is_not() {
        let line = |level: &str, code: &str, spans: &str| {
            format!(r#"{{"message":{{"level":"{level}","rendered":"it\n","code":{code},"spans":{spans}}}}}"#)
        };
        let lint = r#"{"code":"unused_variables","explanation":null}"#;
        assert_eq!(told(&line("warning", lint, r#"[{"file_name":"a.rs"}]"#)).as_deref(), Some("it\n"));
        assert!(told(&line("warning", lint, "[]")).is_some(), "of a whole crate");
        assert!(told(&line("error", "null", r#"[{"file_name":"a.rs"}]"#)).is_some(), "of no code");
        assert_eq!(told(&line("note", lint, r#"[{"file_name":"a.rs"}]"#)), None);
        assert_eq!(told(&line("warning", "null", "[]")), None, "2 warnings emitted");
        assert_eq!(told(r#"{"reason":"compiler-artifact","package_id":"x"}"#), None);
        assert_eq!(told("not JSON"), None);
    }
}
