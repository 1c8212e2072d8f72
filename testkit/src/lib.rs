//! What the tests of all crates share, so that a server is started, a slot moved and a condition waited for in one way.
//!
//! - [`servers`]: real servers, alone and together.
//! - [`slots`]: who owns a slot, and moving one as redis-cli does.
//! - [`binary`]: the released `unslow`, run as a person runs it.
//! - [`browser`]: what a real browser makes of a page.
//! - [`clients`]: the clients that applications use, installed.
//! - [`terminal`]: a real terminal, driven by keys.
//! - [`wait`]: conditions, never times.
//! - [`wire`]: raw connections, frames as the bytes that arrived.
//! - [`random`]: random clients that compare two sides.
//! - [`noise`]: what the rest of the machine did meanwhile; the only ground for trying again.
//! - [`notes`]: what a test says beside its outcome, such as that it was skipped.

pub mod binary;
pub mod browser;
pub mod clients;
pub mod noise;
pub mod notes;
pub mod random;
pub mod servers;
pub mod slots;
pub mod terminal;
pub mod wait;
pub mod wire;

pub use binary::{Running, command, stderr, stdout, unslow};
pub use noise::{Load, Noise, tried_while_busy};
pub use notes::skip;
pub use servers::{cluster, engine, options, settings, spec, standalone};
pub use terminal::Terminal;
pub use wait::{PATIENCE, until};
