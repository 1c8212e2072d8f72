//! Durations, sizes, shares, counts and rates as people read and type them; names that were probably meant.
//!
//! Every verb prints through these functions and reads through them, so the same time looks the same in a diagnosis, a
//! benchmark and a drill, and every flag and every file takes the same forms.
//!
//! | quantity | printed | typed |
//! |---|---|---|
//! | duration | `250 us`, `12 ms`, `1.5 s`, `3 min 20 s` | `250us`, `500ms`, `1.5s`, `2m`, `36h`, `7d`, bare seconds |
//! | size | `12 B`, `1.5 kB`, `64 MB` | `4096`, `64mb`, `64 MiB`, `1.5g` |
//! | share | `12 %`, `0.4 %` | `12%`, `0.12` |
//! | count | `1,234,567` | `1234567`, `1,234,567`, `100k`, `1.5m` |
//! | rate | `9,500/s`, `288k/s` | `9500`, `288k`, `288k/s` |
//! | bit rate | | `100mbit`, `1gbit/s` |
//!
//! Durations and rates have three significant digits: two would hide the difference between 1.04 ms and 1.13 ms, and a
//! fourth is noise. Trailing zeros are left out. A figure that is not a number is printed as `-`. Parts of a duration
//! may be typed one after the other (`1h30m`), as they are printed.
//!
//! Sizes are typed as in the servers' configuration files, where `mb` is 1024 x 1024 bytes and `m` is a million.
//! Reports count in powers of 1000, as disks and networks do; a size that is copied from a report into a setting is
//! therefore never too small.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod figure;
mod number;
mod rate;
mod share;
mod suggest;
mod time;
mod words;

pub use bytes::{bytes, parse_bytes};
pub use error::{Error, Quantity};
pub use rate::{count, parse_bit_rate, parse_count, parse_rate, rate};
pub use share::{parse_share, percent};
pub use suggest::{did_you_mean, nearest, similar};
pub use time::{parse_time, parse_time_within, time, time_rough_s, time_us};
pub use words::plural;
