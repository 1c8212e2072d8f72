//! The server's own table of commands (COMMAND), prepared for routing: where the first key is, which nodes may answer,
//! how several replies are merged into one, and which commands a proxy answers itself.
//!
//! Redis 7.0 and Valkey report all of it: key specifications, `request_policy` and `response_policy`. What older
//! servers leave out is filled in, and only for commands they have. A command that is not in the table is forwarded
//! all the same.
#![forbid(unsafe_code)]

mod command;
mod fill;
mod keys;
mod table;

pub use command::{Command, Divide, Join, Special, Spread};
pub use keys::{KeyAt, Word, number_of_keys};
pub use table::{Plan, Table, UNKNOWN};
