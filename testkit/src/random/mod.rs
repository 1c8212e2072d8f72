//! Random clients that send the same bytes to two sides and compare what comes back: replies, messages and closed
//! connections must be the same. One side is right by definition: a server that is reached directly.
//!
//! Six clients of a session run at a time, each with its own keys, so the order in which a server sees their commands
//! does not matter, although they may share connections behind what is tested. The differences that are allowed are
//! data with reasons; a run counts how often it saw each. Any other difference fails the test, which prints the
//! shortest history found that shows it.
//!
//! `UNSLOW_SEED=N` repeats a run; see [`Order`] for the other variables.

mod differences;
mod generator;
mod pair;
mod run;
mod session;
mod shrink;
mod stage;
mod templates;

pub use differences::{
    Difference, Exchange, Then, Verdict, chance, client_id, clock, difference, hello, replies_before_http,
};
pub use run::{Order, compare};
pub use session::Tag;
pub use stage::{Addresses, Stage};
