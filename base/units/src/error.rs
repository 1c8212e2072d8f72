//! Why a text could not be read: what was found, what is expected, and an example.

use std::fmt;

/// What a text was read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A duration.
    Time,
    /// A number of bytes.
    Bytes,
    /// A part of a whole, from 0 to 1.
    Share,
    /// How many.
    Count,
    /// How many a second.
    Rate,
    /// Bits a second.
    BitRate,
}

impl Quantity {
    fn name(self) -> &'static str {
        match self {
            Quantity::Time => "duration",
            Quantity::Bytes => "size",
            Quantity::Share => "share",
            Quantity::Count => "count",
            Quantity::Rate => "rate",
            Quantity::BitRate => "bit rate",
        }
    }

    fn examples(self) -> &'static str {
        match self {
            Quantity::Time => "500ms, 10s, 2m or 36h",
            Quantity::Bytes => "4096, 64mb or 1.5gb",
            Quantity::Share => "1% or 0.01",
            Quantity::Count => "1000 or 10k",
            Quantity::Rate => "5000 or 50k",
            Quantity::BitRate => "100mbit or 1gbit",
        }
    }
}

/// A text that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There is no number where one is expected: `fast`, `-5s`, an empty text.
    Number {
        /// What it was read as.
        quantity: Quantity,
        /// The text.
        found: String,
    },
    /// The unit is unknown, is missing, or comes after one that is not larger (`30s 1m`).
    Unit {
        /// What it was read as.
        quantity: Quantity,
        /// The text.
        found: String,
        /// The part of it that stands where a unit is expected; empty if nothing does.
        unit: String,
    },
    /// A fraction of something that comes whole: `1.5` requests.
    Fraction {
        /// What it was read as.
        quantity: Quantity,
        /// The text.
        found: String,
    },
    /// A value outside of what is allowed here.
    Range {
        /// What it was read as.
        quantity: Quantity,
        /// The text.
        found: String,
        /// What is allowed, for example `from 500 ms to 24 h`.
        allowed: String,
    },
}

/// Of a longer text this many characters are repeated in the message.
const SHOWN: usize = 60;

impl Error {
    pub(crate) fn number(quantity: Quantity, found: &str) -> Error {
        Error::Number { quantity, found: clipped(found) }
    }

    pub(crate) fn unit(quantity: Quantity, found: &str, unit: &str) -> Error {
        Error::Unit { quantity, found: clipped(found), unit: clipped(unit) }
    }

    pub(crate) fn fraction(quantity: Quantity, found: &str) -> Error {
        Error::Fraction { quantity, found: clipped(found) }
    }

    pub(crate) fn range(quantity: Quantity, found: &str, allowed: String) -> Error {
        Error::Range { quantity, found: clipped(found), allowed }
    }
}

fn clipped(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_string(),
    }
}

fn invalid(f: &mut fmt::Formatter<'_>, quantity: Quantity, found: &str) -> fmt::Result {
    write!(f, "invalid {} {found:?}: ", quantity.name())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Number { quantity, found } => {
                invalid(f, *quantity, found)?;
                write!(f, "a number is missing; expected a value such as {}", quantity.examples())
            }
            Error::Unit { quantity, found, unit } => {
                invalid(f, *quantity, found)?;
                match unit.is_empty() {
                    true => f.write_str("a unit is missing")?,
                    false => write!(f, "{unit:?} is not a unit that can stand there")?,
                }
                write!(f, "; expected a value such as {}", quantity.examples())
            }
            Error::Fraction { quantity, found } => {
                invalid(f, *quantity, found)?;
                write!(f, "not a whole number; expected a value such as {}", quantity.examples())
            }
            Error::Range { quantity, found, allowed } => {
                invalid(f, *quantity, found)?;
                write!(f, "expected a value {allowed}, written as {}", quantity.examples())
            }
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::{parse_bit_rate, parse_bytes, parse_count, parse_share, parse_time, parse_time_within};

    #[test]
    fn a_message_names_what_was_found_and_gives_an_example() {
        let within = |text| parse_time_within(text, Duration::from_millis(500)..=Duration::from_secs(86_400));
        let said = [
            parse_time("fast").unwrap_err(),
            parse_time("5 parsec").unwrap_err(),
            parse_time("1m 30").unwrap_err(),
            within("5ms").unwrap_err(),
            parse_bytes("1 mile").unwrap_err(),
            parse_share("7").unwrap_err(),
            parse_bit_rate("10").unwrap_err(),
            parse_count("1.5").unwrap_err(),
        ]
        .map(|error| error.to_string());
        assert_eq!(
            said,
            [
                "invalid duration \"fast\": a number is missing; expected a value such as 500ms, 10s, 2m or 36h",
                "invalid duration \"5 parsec\": \"parsec\" is not a unit that can stand there; expected a value such \
                 as 500ms, 10s, 2m or 36h",
                "invalid duration \"1m 30\": a unit is missing; expected a value such as 500ms, 10s, 2m or 36h",
                "invalid duration \"5ms\": expected a value from 500 ms to 24 h, written as 500ms, 10s, 2m or 36h",
                "invalid size \"1 mile\": \"mile\" is not a unit that can stand there; expected a value such as 4096, \
                 64mb or 1.5gb",
                "invalid share \"7\": expected a value from 0 to 1, written as 1% or 0.01",
                "invalid bit rate \"10\": a unit is missing; expected a value such as 100mbit or 1gbit",
                "invalid count \"1.5\": not a whole number; expected a value such as 1000 or 10k",
            ]
        );
    }

    #[test]
    fn a_long_text_is_not_repeated_whole() {
        let error = parse_time(&"µ".repeat(100_000)).unwrap_err().to_string();
        assert!(error.len() < 300 && error.contains("..."), "{error}");
    }
}
