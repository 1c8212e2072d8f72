//! Lines that do not fit into the 120 columns of `rustfmt.toml`.
//!
//! rustfmt leaves an expression alone if one string in it is too long, without a word: `cargo fmt --check` passes.

use super::complaint::Complaint;
use super::source::File;
use super::tokens::{Kind, Token};

const MOST: usize = 120;

/// Lines with more characters than fit. What stands in raw strings does not count.
pub fn check(file: &File) -> Vec<Complaint> {
    let raw: Vec<&Token> =
        file.tokens.iter().filter(|t| matches!(&t.kind, Kind::Text(source) if source.starts_with('r'))).collect();
    let mut all = Vec::new();
    for (i, line) in file.text.lines().enumerate().filter(|(_, line)| line.len() > MOST) {
        let columns = line.chars().count();
        let inside: usize = raw.iter().map(|token| covered(token, i + 1, columns)).sum();
        if columns.saturating_sub(inside) > MOST && !is_unbreakable(line) {
            all.push(Complaint::new(
                &file.path,
                i + 1,
                format!("{columns} columns, and {MOST} fit; break the line, a string with `\\` at its end"),
            ));
        }
    }
    all
}

/// How many characters of a line are this token's.
fn covered(token: &Token, line: usize, columns: usize) -> usize {
    if !(token.line..=token.last_line).contains(&line) {
        return 0;
    }
    let from = if token.line == line { token.column } else { 0 };
    let to = if token.last_line == line { token.last_column } else { columns };
    to.saturating_sub(from)
}

/// Nothing can be done about a long address, the path of an included file, or a row of a table in a comment.
fn is_unbreakable(line: &str) -> bool {
    let line = line.trim_start();
    let words = line.trim_start_matches(['/', '!']).trim_start();
    let is_comment = line.starts_with("//");
    let mut each = words.split_whitespace();
    let single = match (each.next(), each.next(), each.next()) {
        (_, None, _) => true,
        (_, Some(address), None) => is_comment && address.contains("://"),
        _ => false,
    };
    let includes = ["include!(", "include_str!(", "include_bytes!("].iter().any(|macro_| line.contains(macro_));
    single || includes || (is_comment && words.starts_with('|'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines_of(text: &str) -> Vec<String> {
        check(&File::of("a/src/lib.rs", text).unwrap()).iter().map(Complaint::to_string).collect()
    }

    #[test]
    fn long_lines_are_named_with_their_columns() {
        let text = format!("fn f() {{\n    g({}1);\n}}\n", "1, ".repeat(40));
        assert_eq!(
            lines_of(&text),
            ["a/src/lib.rs:2: 129 columns, and 120 fit; break the line, a string with `\\` at its end"]
        );
    }

    #[test]
    fn columns_are_characters_not_bytes() {
        assert!(lines_of(&format!("// {} {}\n", "\u{e4}".repeat(58), "\u{e4}".repeat(58))).is_empty());
        assert_eq!(lines_of(&format!("// {} {}\n", "\u{e4}".repeat(58), "\u{e4}".repeat(59))).len(), 1);
    }

    #[test]
    fn what_cannot_be_broken_is_left_alone() {
        let long = "x".repeat(130);
        for line in [
            format!("/// https://example.com/{long}"),
            format!("//! [text]: https://example.com/{long}"),
            format!("/// | a table | {long} |"),
            format!("const A: &str = include_str!(\"{long}.md\");"),
            format!("const B: &str = r\"a raw string {long}\";"),
            format!("const C: &str = r#\"\nin the middle of one {long}\n\"#;"),
        ] {
            assert!(lines_of(&format!("{line}\n")).is_empty(), "{line}");
        }
    }

    #[test]
    fn code_beside_a_raw_string_counts() {
        let text = format!("fn f() {{ g(r\"raw\", {}1); }}\n", "1, ".repeat(40));
        assert_eq!(lines_of(&text).len(), 1);
    }
}
