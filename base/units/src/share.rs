//! Shares of a whole: `12 %`.

use crate::figure::{NOTHING, signed, with_decimals};
use crate::number::Number;
use crate::{Error, Quantity};

/// A share of 1 as a percentage: `12 %`, `0.4 %`, `0.03 %`.
pub fn percent(share: f64) -> String {
    let p = share * 100.0;
    if !p.is_finite() {
        return NOTHING.to_string();
    }
    let decimals = match p.abs() {
        p if p >= 9.95 => 0,
        p if p >= 0.095 => 1,
        _ => 2,
    };
    signed(p, with_decimals(p.abs(), decimals) + " %")
}

/// `1%`, or `0.01`.
pub fn parse_share(text: &str) -> Result<f64, Error> {
    let (number, unit) = Number::split(text.trim()).ok_or_else(|| Error::number(Quantity::Share, text))?;
    let share = match unit.trim() {
        "" => number.as_f64(),
        "%" => number.as_f64() / 100.0,
        other => return Err(Error::unit(Quantity::Share, text, other)),
    };
    match (0.0..=1.0).contains(&share) {
        true => Ok(share),
        false => Err(Error::range(Quantity::Share, text, "from 0 to 1".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_two_digits() {
        for (share, text) in [
            (0.0, "0 %"),
            (0.0003, "0.03 %"),
            (0.004, "0.4 %"),
            (0.01, "1 %"),
            (0.085, "8.5 %"),
            (0.123, "12 %"),
            (1.0, "100 %"),
            (-0.05, "-5 %"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(percent(share), text, "{share}");
        }
    }

    #[test]
    fn shares_are_typed_as_a_percentage_or_a_part_of_one() {
        for (text, share) in [("1%", 0.01), ("12.5 %", 0.125), ("0.01", 0.01), ("0", 0.0), ("1", 1.0), ("100%", 1.0)] {
            assert_eq!(parse_share(text), Ok(share), "{text}");
        }
        for text in ["", "%", "lots", "7", "101%", "-1%", "1 in 3", "1e-2"] {
            assert!(parse_share(text).is_err(), "{text}");
        }
    }
}
