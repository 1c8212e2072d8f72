//! Waiting for a condition, with the sentence to print if it never comes.

use std::time::Duration;

/// How long a condition may take before its test fails. Nothing is judged by it: on a quiet machine conditions come
/// within seconds, and a busy one is given its time.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `met` says yes; fails the test with this sentence if it never does.
#[track_caller]
pub fn until(what: &str, mut met: impl FnMut() -> bool) {
    if let Err(e) = unslow_engine::wait_for(what, PATIENCE, || Ok(met())) {
        panic!("{e}");
    }
}

/// The same for a condition that asks servers: one that does not answer has not met it, and its last words are told.
#[track_caller]
pub fn until_ok<E: std::fmt::Display>(what: &str, mut met: impl FnMut() -> Result<bool, E>) {
    let mut last = String::new();
    let waited = unslow_engine::wait_for(what, PATIENCE, || {
        Ok(met().unwrap_or_else(|e| {
            last = format!("; the last answer was: {e}");
            false
        }))
    });
    if let Err(e) = waited {
        panic!("{e}{last}");
    }
}
