//! Time as the reactor has it: nanoseconds of a clock that never goes back.

/// A microsecond.
pub const US: u64 = 1_000;
/// A millisecond.
pub const MS: u64 = 1_000_000;
