//! Words that follow a number.

use crate::count;

/// `1 cause`, `2 causes`, `2 remedies`, `2 events that are over`.
pub fn plural(n: usize, noun: &str) -> String {
    let many = count(n as f64);
    let stem = noun.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match (noun.split_once(' '), stem) {
        _ if n == 1 => format!("1 {noun}"),
        (Some((first, rest)), _) => format!("{many} {first}s {}", rest.replacen("that is", "that are", 1)),
        (None, Some(stem)) => format!("{many} {stem}ies"),
        (None, None) => format!("{many} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_no_plural() {
        for (n, noun, text) in [
            (1, "cause", "1 cause"),
            (0, "cause", "0 causes"),
            (2, "remedy", "2 remedies"),
            (1234, "key", "1,234 keys"),
            (2, "event that is over", "2 events that are over"),
        ] {
            assert_eq!(plural(n, noun), text);
        }
    }
}
