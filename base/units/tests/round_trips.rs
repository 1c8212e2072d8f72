//! What is printed reads back as the same value, within the digits that are printed; no text makes a parser panic.

use std::time::Duration;

use proptest::prelude::*;
use unslow_units::*;

/// Half of the last digit that is printed, and what a float may lose beside it.
fn close(read: f64, meant: f64, half_a_digit: f64) -> bool {
    (read - meant).abs() <= half_a_digit * 1.000_001 + meant.abs() * 1e-12
}

/// Half of the last of three digits, at most two decimals of `unit`.
fn of_three_digits(x: f64, unit: f64) -> f64 {
    match x / unit {
        x if x >= 99.9 => 0.5 * unit,
        x if x >= 9.99 => 0.05 * unit,
        _ => 0.005 * unit,
    }
}

fn half_a_digit_of_time(us: f64) -> f64 {
    match us {
        us if us < 999.5 => of_three_digits(us, 1.0),
        us if us < 999.5e3 => of_three_digits(us, 1e3),
        us if us < 119.5e6 => of_three_digits(us, 1e6),
        us if us < 7199.5e6 => 0.5e6,
        us if us < 172_770e6 => 30e6,
        _ => 1800e6,
    }
}

/// As many short ones as long ones.
fn durations() -> impl Strategy<Value = Duration> {
    (0_u32..=63, any::<u64>()).prop_map(|(shift, ns)| Duration::from_nanos(ns >> shift))
}

proptest! {
    #[test]
    fn durations_read_back(duration in durations()) {
        let (us, text) = (duration.as_secs_f64() * 1e6, time(duration));
        let read = parse_time(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        prop_assert!(close(read.as_secs_f64() * 1e6, us, half_a_digit_of_time(us)), "{duration:?} {text} {read:?}");
        prop_assert_eq!(time(read), text, "what was read is printed alike");
    }

    #[test]
    fn whole_seconds_and_milliseconds_read_exactly(n in 0_u64..1 << 50) {
        prop_assert_eq!(parse_time(&format!("{n}ms")), Ok(Duration::from_millis(n)));
        prop_assert_eq!(parse_time(&n.to_string()), Ok(Duration::from_secs(n)));
    }

    #[test]
    fn shares_read_back(share in 0.0..=1.0_f64) {
        let (p, text) = (share * 100.0, percent(share));
        let read = parse_share(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))? * 100.0;
        let half = if p >= 9.95 { 0.5 } else if p >= 0.095 { 0.05 } else { 0.005 };
        prop_assert!(close(read, p, half), "{share} {text} {read}");
    }

    #[test]
    fn counts_read_back(n in 0_u64..1 << 53) {
        prop_assert_eq!(parse_count(&count(n as f64)), Ok(n));
    }

    #[test]
    fn rates_read_back(shift in 0_u32..53, bits in 0_u64..1 << 53) {
        let n = (bits >> shift) as f64;
        let text = rate(n);
        let read = parse_rate(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
        let half = match n {
            n if n < 9_999.5 => 0.05,
            n if n < 999.5e3 => of_three_digits(n, 1e3),
            n if n < 999.5e6 => of_three_digits(n, 1e6),
            n => of_three_digits(n, 1e9),
        };
        prop_assert!(close(read, n, half), "{n} {text} {read}");
    }

    /// Reports count in powers of 1000 and settings in powers of 1024: what is copied is never too small.
    #[test]
    fn a_size_copied_from_a_report_is_large_enough(n in 0_u64..1 << 53) {
        let text = bytes(n as f64);
        let read = parse_bytes(&text).map_err(|e| TestCaseError::fail(format!("{text}: {e}")))? as f64;
        prop_assert!(read >= n as f64 * 0.995 && read <= n as f64 * 1.11, "{n} {text} {read}");
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        let _ = (parse_time(&text), parse_bytes(&text), parse_share(&text), parse_count(&text), parse_rate(&text));
        let _ = (parse_bit_rate(&text), did_you_mean(&text, &["kill", "hang"]), similar(&text, ["kill", "hang"]));
    }

    #[test]
    fn what_looks_like_a_quantity_never_overflows(
        text in "[0-9]{0,60}[.,]?[0-9]{0,60} ?(us|µs|ms|s|min|h|d|kb?|[mg]i?b|%|[kmg]bit)?",
    ) {
        for error in [
            parse_time(&text).err(),
            parse_bytes(&text).err(),
            parse_share(&text).err(),
            parse_count(&text).err(),
            parse_rate(&text).err(),
            parse_bit_rate(&text).err(),
        ] {
            prop_assert!(error.is_none_or(|e| e.to_string().contains("expected a value")));
        }
    }

    #[test]
    fn any_number_is_printed(n in any::<f64>()) {
        for text in [time_us(n), time_rough_s(n), bytes(n), percent(n), count(n), rate(n)] {
            prop_assert!(!text.is_empty() && !text.contains("NaN") && !text.contains("inf"), "{n} {text}");
        }
    }
}
