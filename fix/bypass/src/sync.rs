//! The atomics: loom's own under `--cfg loom`, so that the models in `tests/loom.rs` run the code that ships.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
