//! Wording that readers stumble over, in what the tool prints and in its documents.
//!
//! The list is `xtask/english.toml`. It holds only what is practically never right: a pattern with false alarms would
//! be worked around, not obeyed.

use std::fs;
use std::path::Path;

use anyhow::Context;
use regex::Regex;
use serde::Deserialize;

use super::complaint::Complaint;
use super::source::File;
use super::tokens::Kind;

/// The list, from the root of the tree.
pub const LIST: &str = "xtask/english.toml";

/// Where a pattern is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    /// Strings of product code, the help text of `cli`, documents.
    #[default]
    Text,
    /// Doc comments of product code, line by line.
    DocComment,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    /// A regular expression; a space stands for any white space, ends of lines included.
    pattern: String,
    /// What to write.
    instead: String,
    /// A sentence that the pattern finds; the tests hold it to that.
    #[cfg_attr(not(test), allow(dead_code))]
    example: String,
    #[serde(default)]
    place: Place,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rows {
    pattern: Vec<Row>,
}

/// A row of the list, ready to be looked for.
pub struct Pattern {
    regex: Regex,
    row: Row,
}

impl Pattern {
    pub fn read(path: &Path) -> anyhow::Result<Vec<Pattern>> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Pattern::parse(&text).with_context(|| path.display().to_string())
    }

    fn parse(text: &str) -> anyhow::Result<Vec<Pattern>> {
        let rows: Rows = toml::from_str(text)?;
        rows.pattern
            .into_iter()
            .map(|row| {
                let regex = Regex::new(&row.pattern.replace(' ', r"\s+")).with_context(|| row.pattern.clone())?;
                Ok(Pattern { regex, row })
            })
            .collect()
    }
}

/// Every match in a text whose first line is `line`. The lines of a string are those of its value: one with escapes may
/// end elsewhere.
fn matches(patterns: &[Pattern], place: Place, path: &str, line: usize, text: &str) -> Vec<Complaint> {
    let mut all = Vec::new();
    for pattern in patterns.iter().filter(|p| p.row.place == place) {
        for found in pattern.regex.find_iter(text) {
            let above = text[..found.start()].matches('\n').count();
            let words: Vec<&str> = found.as_str().split_whitespace().collect();
            let text = format!("{:?} is hard to read; write instead: {}", words.join(" "), pattern.row.instead);
            all.push(Complaint::new(path, line + above, text));
        }
    }
    all
}

/// What the strings and doc comments of product code say.
pub fn in_source(patterns: &[Pattern], file: &File) -> Vec<Complaint> {
    let mut all = Vec::new();
    for token in &file.product {
        if let Some(text) = token.string() {
            // An escaped line end is not one; the line of the string itself is near enough.
            let lines = if token.last_line > token.line { text } else { text.replace('\n', " ") };
            all.extend(matches(patterns, Place::Text, &file.path, token.line, &lines));
        } else if let Kind::Doc(text) = &token.kind {
            all.extend(matches(patterns, Place::DocComment, &file.path, token.line, text.trim()));
            // clap prints these.
            if file.path.starts_with("cli/src/") {
                all.extend(matches(patterns, Place::Text, &file.path, token.line, text));
            }
        }
    }
    all
}

/// What a document says.
pub fn in_document(patterns: &[Pattern], path: &str, text: &str) -> Vec<Complaint> {
    matches(patterns, Place::Text, path, 1, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST_OF_TEST: &str = r#"
        [[pattern]]
        pattern = '\bunder way\b'
        instead = "in flight"
        example = "commands under way"

        [[pattern]]
        pattern = '^(Which|What)\.$'
        instead = "when and why"
        example = "Which."
        place = "doc_comment"
    "#;

    fn found(path: &str, text: &str) -> Vec<String> {
        let patterns = Pattern::parse(LIST_OF_TEST).unwrap();
        in_source(&patterns, &File::of(path, text).unwrap()).iter().map(Complaint::to_string).collect()
    }

    #[test]
    fn strings_of_product_code_are_read_inside_macros_too() {
        assert_eq!(
            found("a/src/lib.rs", "fn f() {\n    println!(\"{n} commands under way\");\n}\n"),
            ["a/src/lib.rs:2: \"under way\" is hard to read; write instead: in flight"]
        );
        assert_eq!(found("a/src/lib.rs", "fn f() { g(\"one that is under \\\n    way\"); }\n").len(), 1);
    }

    #[test]
    fn names_tests_bytes_and_comments_are_left_alone() {
        let text = "// under way\nfn under_way() { g(b\"under way\"); }\n\
                    #[cfg(test)]\nmod t { const A: &str = \"under way\"; }\n";
        assert!(found("a/src/lib.rs", text).is_empty());
        assert!(found("a/tests/x.rs", "const A: &str = \"under way\";\n").is_empty());
    }

    #[test]
    fn help_text_is_text_and_other_doc_comments_are_not() {
        let text = "/// Batches under way.\nstruct S;\n";
        assert_eq!(found("cli/src/sink.rs", text).len(), 1);
        assert!(found("fix/sink/src/lib.rs", text).is_empty());
        assert_eq!(found("fix/sink/src/lib.rs", "struct S {\n    /// Which.\n    a: u8,\n}\n").len(), 1);
        assert!(found("fix/sink/src/lib.rs", "/// Which of them is asked first.\nstruct S;\n").is_empty());
    }

    #[test]
    fn documents_are_read_across_the_ends_of_lines() {
        let patterns = Pattern::parse(LIST_OF_TEST).unwrap();
        let found = in_document(&patterns, "README.md", "# Title\n\nWhat is under\n  way. Which.\n");
        assert_eq!(
            found.iter().map(Complaint::to_string).collect::<Vec<_>>(),
            ["README.md:3: \"under way\" is hard to read; write instead: in flight"]
        );
    }

    #[test]
    fn every_pattern_of_the_list_finds_its_example() {
        let patterns = Pattern::parse(include_str!("../../english.toml")).unwrap();
        for Pattern { regex, row } in &patterns {
            assert!(regex.is_match(&row.example), "{:?} does not find {:?}", row.pattern, row.example);
            assert!(!regex.is_match(&row.instead), "{:?} finds what it recommends, {:?}", row.pattern, row.instead);
        }
        assert!(patterns.len() > 10);
    }
}
