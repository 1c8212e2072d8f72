//! INFO as columns: what changes every second is numbers, and what stays the same is the text around them.
//!
//! A field's value is cut at `,` and `=`. A piece that is a number, with up to nine decimals and perhaps a unit behind
//! it, becomes a whole number in a column of its own; the rest is the template, kept once for as long as it stays the
//! same. `calls=3,usec=41,usec_per_call=13.67` is the template `calls=_,usec=_,usec_per_call=_` and the columns 3, 41
//! and 1367. What comes back is what the server wrote, byte for byte.

use unslow_topology::Info;

/// Stands for a number in a template; a digit follows: how many decimals it has.
const NUMBER: char = '\u{1}';
/// In front of a template that is to be taken as it is.
const VERBATIM: char = '\u{2}';
/// The template of a field that is not in INFO any more.
pub const GONE: &str = "\u{3}";
/// More digits may not fit into an `i64`.
const DIGITS_MAX: usize = 18;
/// A server's longest field has a dozen; each is a column.
const NUMBERS_MAX: usize = 64;
const DECIMALS_MAX: usize = 9;

/// A field's value, taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    pub template: String,
    pub numbers: Vec<i64>,
}

/// Takes a value apart. [`join`] gives it back.
pub fn split(value: &str) -> Parts {
    let mut parts = Parts::default();
    if !value.contains([NUMBER, VERBATIM, '\u{3}']) {
        for piece in value.split_inclusive([',', '=']) {
            let (word, end) = match piece.chars().last() {
                Some(c @ (',' | '=')) => (&piece[..piece.len() - 1], Some(c)),
                _ => (piece, None),
            };
            let digits = word.trim_end_matches(['%', 'B', 'K', 'M', 'G', 'T', 'P']);
            match number(digits) {
                Some((n, decimals)) => {
                    parts.template.extend([NUMBER, char::from(b'0' + decimals)]);
                    parts.template.push_str(&word[digits.len()..]);
                    parts.numbers.push(n);
                }
                None => parts.template.push_str(word),
            }
            parts.template.extend(end);
        }
        if parts.numbers.len() <= NUMBERS_MAX && join(&parts.template, &parts.numbers).as_deref() == Some(value) {
            return parts;
        }
    }
    Parts { template: format!("{VERBATIM}{value}"), numbers: Vec::new() }
}

/// Puts a value together; `None` if there are fewer numbers than the template has room for, or the field is gone.
pub fn join(template: &str, numbers: &[i64]) -> Option<String> {
    if template == GONE {
        return None;
    }
    if let Some(verbatim) = template.strip_prefix(VERBATIM) {
        return Some(verbatim.to_string());
    }
    let mut numbers = numbers.iter();
    let mut out = String::with_capacity(template.len() + 16);
    let mut rest = template.chars();
    while let Some(c) = rest.next() {
        if c != NUMBER {
            out.push(c);
            continue;
        }
        let decimals = rest.next()?.to_digit(10)? as usize;
        write(&mut out, *numbers.next()?, decimals);
    }
    Some(out)
}

/// How many numbers a template has room for.
pub fn count(template: &str) -> usize {
    if template.starts_with(VERBATIM) { 0 } else { template.matches(NUMBER).count() }
}

/// How many decimals the first number of a template has; 0 where it has none.
pub fn decimals(template: &str) -> i32 {
    let mut rest = template.chars().skip_while(|c| *c != NUMBER).skip(1);
    rest.next().and_then(|digit| digit.to_digit(10)).unwrap_or(0) as i32
}

/// The column of the number at this place of a field.
pub fn column(field: &str, place: usize) -> String {
    if place == 0 { field.to_string() } else { format!("{field}#{place}") }
}

/// INFO, put together from what held at one moment.
pub fn rebuild<'a>(
    templates: impl IntoIterator<Item = (&'a str, &'a str)>,
    column: impl Fn(&str) -> Option<i64>,
) -> Info {
    let field = |(name, template): (&'a str, &'a str)| {
        let numbers: Option<Vec<i64>> = (0..count(template)).map(|place| column(&self::column(name, place))).collect();
        Some((name, join(template, &numbers?)?))
    };
    Info(templates.into_iter().filter_map(field).collect())
}

/// A decimal number as a whole one and its decimals.
fn number(text: &str) -> Option<(i64, u8)> {
    let (sign, plain) = text.strip_prefix('-').map_or((1, text), |plain| (-1, plain));
    let (whole, fraction) = plain.split_once('.').unwrap_or((plain, ""));
    let is_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let fits = whole.len() + fraction.len() <= DIGITS_MAX && fraction.len() <= DECIMALS_MAX;
    if whole.is_empty() || !fits || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let n = whole.bytes().chain(fraction.bytes()).fold(0i64, |n, digit| n * 10 + i64::from(digit - b'0'));
    Some((sign * n, fraction.len() as u8))
}

fn write(out: &mut String, n: i64, decimals: usize) {
    if decimals == 0 {
        out.push_str(&n.to_string());
        return;
    }
    let digits = format!("{:0width$}", n.unsigned_abs(), width = decimals + 1);
    let (whole, fraction) = digits.split_at(digits.len() - decimals);
    if n < 0 {
        out.push('-');
    }
    out.push_str(whole);
    out.push('.');
    out.push_str(fraction);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_become_columns_and_the_rest_a_template() {
        for (value, template, numbers) in [
            ("12", "_0", &[12][..]),
            ("0.25", "_2", &[25]),
            ("-0.05", "_2", &[-5]),
            ("1.05M", "_2M", &[105]),
            ("95.21%", "_2%", &[9521]),
            ("calls=3,usec=41,usec_per_call=13.67", "calls=_0,usec=_0,usec_per_call=_2", &[3, 41, 1367]),
            ("ip=127.0.0.1,port=7001,state=online", "ip=127.0.0.1,port=_0,state=online", &[7001]),
            ("7.0.15", "!7.0.15", &[]),
            ("", "", &[]),
        ] {
            let parts = split(value);
            let readable = parts.template.replace(NUMBER, "_").replace(VERBATIM, "!");
            let expected = template.strip_prefix('!').unwrap_or(template);
            assert_eq!((readable.trim_start_matches('!'), &parts.numbers[..]), (expected, numbers), "{value}");
        }
    }

    #[test]
    fn whatever_a_server_writes_comes_back() {
        for value in [
            "",
            "0",
            "-0",
            "-0.00",
            "007",
            "1.",
            ".5",
            "1e5",
            "inf",
            "nan",
            "+5",
            "0.1234567890",
            "123456789012345678",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551615",
            "a=1,b=2,,=3=",
            "1,2,3",
            "\u{1}0",
            "\u{2}x",
            "\u{3}",
            "3.4K/s",
            "12:34",
            "M",
            "%",
            "5%%",
            "ümlaut=3",
            "0.0",
            "100.00%",
            "p50=1.003,p99=2.007,p99.9=2.007",
            "keys=1,expires=0,avg_ttl=0",
            "v=7.0.15,x=1",
        ] {
            let parts = split(value);
            assert_eq!(join(&parts.template, &parts.numbers).as_deref(), Some(value), "{parts:?}");
            assert_eq!(count(&parts.template), parts.numbers.len(), "{value}");
        }
    }

    #[test]
    fn a_field_without_its_numbers_was_not_there() {
        let templates = [("role", "master"), ("clients", "\u{1}0"), ("old", GONE), ("stat", "a=\u{1}0,b=\u{1}1")];
        let info = rebuild(templates, |column| match column {
            "clients" => Some(7),
            "stat" => Some(1),
            _ => None,
        });
        assert_eq!(info, Info::parse("clients:7\nrole:master\n"));
        let whole = rebuild([templates[3]], |column| Some(if column == "stat" { 1 } else { 25 }));
        assert_eq!(whole.get("stat"), Some("a=1,b=2.5"));
        assert_eq!(join(GONE, &[]), None);
    }
}
