//! `cargo xtask test`: every test of the workspace.
//!
//! Pure tests run first, those of one binary in one process, as many processes as there are processors; beside them
//! runs what installs the engines, which the others wait for. Tests on real servers share a fixed number of slots, and
//! those that judge a measurement run alone: `tests.toml` says which is which, and why. Nothing stops at the first
//! failure; the end lists failures, skips, what was tried again on a busy machine, the ten slowest, and the ten that
//! took the most CPU time.
//!
//! Tests inside a crate's sources are compiled without optimization (`.cargo/compile`); those in `tests/` make load,
//! and are optimized as the rest.
//!
//! Not cargo-nextest: it has no notion of a test that skips itself at run time, and building it takes longer than the
//! cold build may grow. `cargo test -p CRATE NAME -- --test-threads=1` works too.

mod find;
mod leftovers;
mod plan;
mod report;
mod run;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};

use self::find::Test;
use self::plan::{Need, Plan};

const HELP: &str = "\
Runs the tests of the workspace, those on real servers in a process each.

Usage: cargo xtask test [--long] [--list] [WORD...]

  WORD      only tests whose name (crate::binary::test) contains one of the words
  --long    the tests that `make test` leaves to `make test-long`, and only these
  --list    names and groups, without running anything

Environment: UNSLOW_TEST_SLOTS, how many tests on real servers run at a time.";

/// What was asked for on the command line.
#[derive(Default)]
struct Order {
    long: bool,
    list: bool,
    words: Vec<String>,
}

/// Runs what `arguments` ask for; an error if any test failed.
pub fn main(root: &Path, arguments: &[String]) -> anyhow::Result<()> {
    let mut order = Order::default();
    for argument in arguments {
        match argument.as_str() {
            "--long" => order.long = true,
            "--list" => order.list = true,
            "--help" | "-h" => {
                println!("{HELP}");
                return Ok(());
            }
            flag if flag.starts_with('-') => bail!("unknown flag {flag}\n\n{HELP}"),
            word => order.words.push(word.to_string()),
        }
    }
    let plan = Plan::read(&root.join("tests.toml"))?;
    let mut all = find::tests(root)?;
    plan.check(&all)?;
    let (preparations, programs): (Vec<Test>, Vec<Test>) =
        plan.programs(root)?.into_iter().partition(|t| plan.need(t) == Need::Preparation);
    all.extend(programs);
    let chosen: Vec<Test> = all
        .into_iter()
        .filter(|t| order.words.is_empty() || order.words.iter().any(|w| t.id.contains(w.as_str())))
        .collect();
    let (chosen, left): (Vec<Test>, Vec<Test>) = chosen.into_iter().partition(|t| t.long == order.long);
    if order.list {
        for test in &chosen {
            println!("{:<8} {}", plan.need(test).name(), test.id);
        }
        return Ok(());
    }
    if chosen.is_empty() {
        bail!("no test matches {:?}; cargo xtask test --list prints their names", order.words);
    }
    // Where the tests are told which engine to use, its name keeps the logs of one engine from those of the next.
    let logs = root.join("target/tests").join(std::env::var("UNSLOW_ENGINE").unwrap_or_default());
    std::fs::create_dir_all(&logs).with_context(|| logs.display().to_string())?;
    let begun = Instant::now();
    let wanted = chosen.len();
    // A test that is named installs what it needs by itself, and no more than that.
    let preparations = if order.words.is_empty() { preparations } else { Vec::new() };
    let outcomes = run::all(&plan, preparations, chosen, &logs)?;
    report::print(&outcomes, if order.long { 0 } else { left.len() }, begun.elapsed());
    if outcomes.iter().any(|o| o.failed() || o.interrupted()) || outcomes.len() < wanted {
        bail!("not every test passed");
    }
    Ok(())
}
