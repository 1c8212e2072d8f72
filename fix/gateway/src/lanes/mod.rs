//! Connections to servers: opened when needed, greeted, read; and what becomes of the commands on them when something
//! breaks, moves or hangs.
//!
//! The rule for commands: what was never written is sent elsewhere. What was written and not answered is sent again
//! only if it reads or was declared idempotent; its client gets one error otherwise, because nobody knows whether it
//! ran.

mod again;
mod breaks;
mod care;
mod open;
mod replies;
mod sets;
mod spares;
#[cfg(test)]
mod tests;
