//! Digits of a figure: how many are worth reading.

/// What is printed where there is no number.
pub(crate) const NOTHING: &str = "-";

/// Three significant digits of a number from 0 to 999.5, at most two of them after the point: `12`, `1.5`, `0.03`.
pub(crate) fn three_digits(x: f64) -> String {
    let decimals = match x {
        x if x >= 99.95 => 0,
        x if x >= 9.995 => 1,
        _ => 2,
    };
    with_decimals(x, decimals)
}

/// At most this many decimals, without trailing zeros.
pub(crate) fn with_decimals(x: f64, decimals: usize) -> String {
    let text = format!("{x:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

/// The size of a number with its sign; what was rounded to zero has none.
pub(crate) fn signed(x: f64, size: String) -> String {
    let has_sign = x < 0.0 && size.contains(|c: char| ('1'..='9').contains(&c));
    if has_sign { format!("-{size}") } else { size }
}
