//! Sizes: printed as `64 MB`, typed as `64mb`.

use crate::figure::{NOTHING, signed, three_digits};
use crate::number::{Number, saturated};
use crate::{Error, Quantity};

/// Bytes in the unit that reads best, in powers of 1000.
pub fn bytes(n: f64) -> String {
    if !n.is_finite() {
        return NOTHING.to_string();
    }
    let size = match n.abs() {
        n if n < 999.5 => format!("{n:.0} B"),
        n if n < 999.5e3 => format!("{} kB", three_digits(n / 1e3)),
        n if n < 999.5e6 => format!("{} MB", three_digits(n / 1e6)),
        n if n < 999.5e9 => format!("{} GB", three_digits(n / 1e9)),
        n if n < 999.5e12 => format!("{} TB", three_digits(n / 1e12)),
        n => format!("{:.0} TB", n / 1e12),
    };
    signed(n, size)
}

/// `4096`, `64mb`, `64 MiB`, `1.5g`: `k`, `m` and `g` are powers of 1000, with a `b` or `ib` powers of 1024, as in the
/// servers' configuration files. Upper and lower case are the same.
pub fn parse_bytes(text: &str) -> Result<u64, Error> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = Number::split(&lower).ok_or_else(|| Error::number(Quantity::Bytes, text))?;
    let unit = match unit.trim() {
        "" | "b" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        "kb" | "kib" => 1 << 10,
        "mb" | "mib" => 1 << 20,
        "gb" | "gib" => 1 << 30,
        "tb" | "tib" => 1 << 40,
        other => return Err(Error::unit(Quantity::Bytes, text, other)),
    };
    Ok(saturated(number.times(unit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_best() {
        for (n, text) in [
            (0.0, "0 B"),
            (12.0, "12 B"),
            (999.6, "1 kB"),
            (1_500.0, "1.5 kB"),
            (64e6, "64 MB"),
            (1_234_567_890.0, "1.23 GB"),
            (5e15, "5000 TB"),
            (-4e6, "-4 MB"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(bytes(n), text, "{n}");
        }
    }

    #[test]
    fn sizes_are_typed_as_in_the_servers_configuration() {
        for (text, n) in [
            ("0", 0),
            ("4096", 4096),
            ("64mb", 64 << 20),
            ("64 MiB", 64 << 20),
            ("64MB", 64 << 20),
            ("1.5g", 1_500_000_000),
            ("1.5gb", 3 << 29),
            ("1k", 1000),
            ("1kb", 1024),
            ("512 B", 512),
            ("99999999999tb", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text), Ok(n), "{text}");
        }
        for text in ["", "mb", "-1", "1 mile", "1mbit", "1e9", "1 mb 2 kb"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
