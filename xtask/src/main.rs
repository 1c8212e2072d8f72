//! What keeps the tree honest.
//!
//! `cargo xtask test` runs the tests, as `make test` does.
//! `cargo xtask tidy` checks what no compiler checks; [`tidy`] lists it.
//! `cargo xtask lint` fails on what the compiler and Clippy say.
//! `cargo xtask docs` writes the generated documents: `docs/rules/*.md`, `docs/faults.md`, `docs/schema/*.json`.
//! `cargo xtask score` judges the diagnosis benchmark, `bench/diagnosis`.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

mod cargo;
mod docs;
mod lint;
mod score;
mod test;
mod tidy;

const HELP: &str = "\
cargo xtask tidy    check the tree: arrows and circles, sizes, documents, English, HEAD's message
cargo xtask lint    build everything, and fail on warnings of the compiler and of Clippy
cargo xtask docs    write the generated documents
cargo xtask test    run the tests; cargo xtask test --help
cargo xtask score   judge the diagnosis benchmark";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why:#}"); // not {why:?}, which adds a backtrace where RUST_BACKTRACE is set
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask stands in the workspace")?.to_path_buf();
    let mut arguments = std::env::args().skip(1);
    let verb = arguments.next();
    let rest: Vec<String> = arguments.collect();
    match verb.as_deref() {
        Some("tidy") => tidy::main(&root),
        Some("lint") => lint::main(&root),
        Some("docs") => docs::write(&root),
        Some("test") => test::main(&root, &rest),
        Some("score") => score::main(&root, &rest),
        Some("--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        _ => bail!("what to do was not named; there are:\n{HELP}"),
    }
}
