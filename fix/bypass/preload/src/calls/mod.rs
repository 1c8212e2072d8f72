//! The calls of the C library that we stand in for. Each finds out whether the descriptor is ours and passes on what is
//! not.
//!
//! ```text
//!   data.rs       bytes, one buffer or message a call       lifecycle.rs    sockets: made, connected, closed
//!   bulk.rs       many messages, files, pipes               descriptors.rs  their numbers: copied, kept, handed on
//!   waiting.rs    waits for many descriptors
//! ```

#![allow(clippy::missing_safety_doc)] // the C library's documentation

mod bulk;
mod data;
mod descriptors;
mod lifecycle;
mod waiting;
