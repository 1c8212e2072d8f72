//! What a person hands to the doctor beside a URL, as typed facts: error messages of client libraries, and servers'
//! logs.
//!
//! Pure: text in, facts out. No file is opened here, nothing is judged, and nothing of the text is kept but figures,
//! the name of a command, and the server's address. A text is foreign bytes: any of them give facts, and none a panic.
//!
//! Left out on purpose: the messages of libraries that are not named in [`unslow_facts::ClientLibrary`], beyond the
//! server's replies and the operating system's errors that they quote.
#![forbid(unsafe_code)]

mod address;
mod client;
mod log;
mod multiplexer;
mod phrases;
mod time;

pub use client::{MAX_BYTES, client_errors};
pub use log::{Log, MAX_LOG_BYTES, read_log};
