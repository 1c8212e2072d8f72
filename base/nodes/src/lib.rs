//! What every client of a server must agree on: addresses, greetings, refusals and backoff.
//!
//! The gateway, the sink, the watcher and the load generator all connect to nodes. If each judges the same reply in its
//! own way, one of them resends a command that has already run. The judgment lives here, once:
//!
//! - [`Refusal`]: which error replies prove that a command has not run, and which will pass;
//! - [`Address`]: `host:port` as users and servers write it;
//! - [`Greeting`]: what a connection sends before its first command, and whether the server accepted it;
//! - [`Backoff`]: how long to wait before the next attempt;
//! - [`NodeTable`]: nodes by number, their names, and who owns which slot.
//!
//! Left out on purpose: sockets, the clock and random numbers. Callers pass them in, so every case is a row in a table
//! test.
#![forbid(unsafe_code)]

mod address;
mod backoff;
mod greeting;
mod refusal;
mod table;

pub use address::{Address, Named};
pub use backoff::Backoff;
pub use greeting::{Greeting, Login, Plan, Progress, Step, Tolerance, password_is_needless};
pub use refusal::{Author, Kind, Redirect, Refusal};
pub use table::{Leads, NOBODY, NodeTable, Unowned};

/// A number as servers print it: digits only, no sign, no leading zeros. Rust's own parser also accepts `+5` and `005`.
fn decimal<T: std::str::FromStr>(digits: &str) -> Option<T> {
    let canonical = digits == "0" || !digits.starts_with('0');
    (canonical && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok())?
}
