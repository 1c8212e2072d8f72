//! The doctor's word, case by case as issue 21 lists them: never a false "proven", never a false all-clear.
//!
//! Each test does to real servers what users did to them, runs the released binary, and reads its JSON and its exit
//! status: the verdict, the ids of the findings, what could not be looked at. No test judges times or throughput; the
//! two that compare a measurement of their own with the doctor's are in `alone` and have the machine to themselves.

mod common;

/// A: "ok" needs a doctor that could look, at servers that were alive and in use.
#[path = "word/alive.rs"]
mod alive;
/// B9 and E25: measurements, without other tests beside them.
#[path = "word/alone.rs"]
mod alone;
/// E15: "not your Redis" is earned.
#[path = "word/earned.rs"]
mod earned;
/// C13, E26, E27: files, signals, and questions that take too long.
#[path = "word/kept.rs"]
mod kept;
/// A1, A12, E18: labs, looked at from outside and from inside.
#[path = "word/lab.rs"]
mod lab;
#[path = "word/load.rs"]
mod load;
/// B: "proven" needs a measurement of this window.
#[path = "word/proven.rs"]
mod proven;
/// E16 to E24: claims of single rules.
#[path = "word/rules.rs"]
mod rules;
#[path = "word/run.rs"]
mod run;
