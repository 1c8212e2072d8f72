//! Counts and rates: `1,234,567` and `288k/s`.

use crate::figure::{NOTHING, signed, three_digits, with_decimals};
use crate::number::{Number, saturated};
use crate::{Error, Quantity};

/// `1,234,567`; a decimal only below 10.
pub fn count(n: f64) -> String {
    if !n.is_finite() {
        return NOTHING.to_string();
    }
    let size = n.abs();
    let decimals = usize::from(size < 9.95 && size.fract() > 0.05);
    signed(n, grouped(with_decimals(size, decimals)))
}

/// Digits in groups of three.
fn grouped(digits: String) -> String {
    if digits.contains('.') || digits.len() <= 3 {
        return digits;
    }
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// How many a second: `9,500/s`, from 10,000 on three digits of thousands or millions.
pub fn rate(per_s: f64) -> String {
    if !per_s.is_finite() {
        return NOTHING.to_string();
    }
    let size = match per_s.abs() {
        n if n < 9_999.5 => count(n),
        n if n < 999.5e3 => three_digits(n / 1e3) + "k",
        n if n < 999.5e6 => three_digits(n / 1e6) + "M",
        n if n < 999.5e9 => three_digits(n / 1e9) + "G",
        n => format!("{:.0}G", n / 1e9),
    };
    signed(per_s, size + "/s")
}

/// `1000`, `1,000`, `10k`, `1.5m`: powers of 1000.
pub fn parse_count(text: &str) -> Result<u64, Error> {
    let (number, unit) = counted(text, text.trim(), Quantity::Count)?;
    match number.is_whole(unit) {
        true => Ok(saturated(number.times(unit))),
        false => Err(Error::fraction(Quantity::Count, text)),
    }
}

/// The same a second, with or without `/s`; fractions are rates too.
pub fn parse_rate(text: &str) -> Result<f64, Error> {
    let per_s = text.trim();
    let (number, unit) = counted(text, per_s.strip_suffix("/s").unwrap_or(per_s), Quantity::Rate)?;
    Ok(number.as_f64() * unit as f64)
}

fn counted(text: &str, of_it: &str, quantity: Quantity) -> Result<(Number, u128), Error> {
    let (number, unit) = Number::split(of_it).ok_or_else(|| Error::number(quantity, text))?;
    let unit = match unit.trim() {
        "" => 1,
        "k" | "K" => 1000,
        "m" | "M" => 1_000_000,
        "g" | "G" => 1_000_000_000,
        other => return Err(Error::unit(quantity, text, other)),
    };
    Ok((number, unit))
}

/// `100mbit`, `1gbit/s`, `64 kbitps`: bits a second.
pub fn parse_bit_rate(text: &str) -> Result<u64, Error> {
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = Number::split(&lower).ok_or_else(|| Error::number(Quantity::BitRate, text))?;
    let unit = unit.trim();
    let per_s = unit.strip_suffix("/s").or_else(|| unit.strip_suffix("ps")).unwrap_or(unit);
    let bits = match per_s {
        "bit" => 1,
        "kbit" => 1000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        _ => return Err(Error::unit(Quantity::BitRate, text, unit)),
    };
    Ok(saturated(number.times(bits)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_grouped() {
        for (n, text) in [
            (0.0, "0"),
            (3.0, "3"),
            (3.4, "3.4"),
            (3.97, "4"),
            (9.97, "10"),
            (42.6, "43"),
            (999.0, "999"),
            (1_234.0, "1,234"),
            (1_234_567.0, "1,234,567"),
            (-123_456.0, "-123,456"),
            (-0.01, "0"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(count(n), text, "{n}");
        }
    }

    #[test]
    fn rates_have_three_digits_from_ten_thousand_on() {
        for (n, text) in [
            (0.0, "0/s"),
            (2.5, "2.5/s"),
            (9_500.0, "9,500/s"),
            (9_999.7, "10k/s"),
            (288_123.0, "288k/s"),
            (52_341.0, "52.3k/s"),
            (1_531_000.0, "1.53M/s"),
            (-20_000.0, "-20k/s"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(rate(n), text, "{n}");
        }
    }

    #[test]
    fn counts_and_rates_are_typed_with_or_without_thousands() {
        for (text, n) in [("1000", 1000), ("1,000", 1000), ("10k", 10_000), ("1.5m", 1_500_000), ("2G", 2_000_000_000)]
        {
            assert_eq!(parse_count(text), Ok(n), "{text}");
            assert_eq!(parse_rate(text), Ok(n as f64), "{text}");
            assert_eq!(parse_rate(&format!("{text}/s")), Ok(n as f64), "{text}");
        }
        assert_eq!(parse_rate("0.5"), Ok(0.5));
        for text in ["", "k", "-1", "1.0005k", "1.5", "10,20", "1 mile"] {
            assert!(parse_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bit_rates_need_their_unit() {
        for (text, bits) in [("100mbit", 100_000_000), ("1gbit/s", 1_000_000_000), ("64 Kbitps", 64_000), ("0bit", 0)] {
            assert_eq!(parse_bit_rate(text), Ok(bits), "{text}");
        }
        for text in ["", "100", "100mb", "mbit", "1 mbit/h"] {
            assert!(parse_bit_rate(text).is_err(), "{text}");
        }
    }
}
