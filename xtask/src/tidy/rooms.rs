//! Files of more than 700 lines and functions of more than 100, product code and tests alike.
//!
//! Those that already were longer stand in `xtask/rooms.toml`, each with its reason and its length. That list only
//! shrinks: what grows is a complaint, and so is an entry that is longer than need be.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::complaint::Complaint;
use super::source::File;
use super::tokens::{Token, body_of, close_of};

/// The list, from the root of the tree.
pub const LIST: &str = "xtask/rooms.toml";

const FILE_MOST: usize = 700;
const FUNCTION_MOST: usize = 100;
/// An entry may exceed what it is for by so many percent before it must be lowered.
const SLACK_PERCENT: usize = 5;
/// Shorter reasons say nothing.
const REASON_LEAST: usize = 15;

/// What is known to be too long, or to go in circles.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    #[serde(default)]
    pub room: Vec<Room>,
    #[serde(default)]
    pub circle: Vec<Circle>,
}

/// A file, or a function of it, that may have more lines than others.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Room {
    pub path: String,
    pub function: Option<String>,
    /// The most it may have.
    pub lines: usize,
    pub reason: String,
}

/// Modules of a crate that may need each other.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Circle {
    /// The crate's directory of sources.
    pub path: String,
    pub modules: Vec<String>,
    pub reason: String,
}

impl List {
    pub fn read(path: &Path) -> anyhow::Result<List> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }
}

/// A reason that says something, or the complaint that it does not.
pub fn judge_reason(what: &str, reason: &str) -> Option<Complaint> {
    let short = reason.trim().len() < REASON_LEAST;
    short.then(|| Complaint::new(LIST, 0, format!("the entry of {what} gives no reason; say what keeps it so")))
}

/// A file, and the function if it is not about the whole of it.
type Place<'a> = (&'a str, Option<&'a str>);

/// Rooms that are too long and not listed, or listed and not of the listed length.
pub fn check(files: &[File], list: &[Room]) -> Vec<Complaint> {
    let functions: Vec<(&str, Vec<Function>)> =
        files.iter().map(|f| (f.path.as_str(), functions_of(&f.tokens))).collect();
    let mut all = Vec::new();
    let mut listed: BTreeMap<Place<'_>, &Room> = BTreeMap::new();
    for room in list {
        let place: Place<'_> = (room.path.as_str(), room.function.as_deref());
        all.extend(judge_reason(&words_of(place), &room.reason));
        if listed.insert(place, room).is_some() {
            all.push(Complaint::new(LIST, 0, format!("{} is listed twice; remove one", words_of(place))));
        }
    }
    // Of several functions with one name in a file the longest counts.
    let mut longest: BTreeMap<Place<'_>, (usize, usize)> = BTreeMap::new();
    for file in files {
        longest.insert((file.path.as_str(), None), (0, file.text.lines().count()));
    }
    for (path, functions) in &functions {
        for function in functions {
            let entry = longest.entry((*path, Some(function.name.as_str()))).or_default();
            if function.lines > entry.1 {
                *entry = (function.line, function.lines);
            }
        }
    }
    for (place, (line, lines)) in &longest {
        let text = judge(*place, *lines, listed.remove(place));
        all.extend(text.map(|text| Complaint::new(place.0, *line, text)));
    }
    for place in listed.keys() {
        all.push(Complaint::new(
            LIST,
            0,
            format!("{} is not in the tree any more; remove the entry", words_of(*place)),
        ));
    }
    all
}

fn words_of((path, function): Place<'_>) -> String {
    function.map_or(path.to_string(), |function| format!("{path}, fn {function}"))
}

/// What there is to complain of in a room with this many lines.
fn judge(place: Place<'_>, lines: usize, listed: Option<&Room>) -> Option<String> {
    let (what, most) = match place.1 {
        Some(function) => (format!("fn {function}"), FUNCTION_MOST),
        None => ("the file".to_string(), FILE_MOST),
    };
    match listed.map(|room| room.lines) {
        None if lines > most => {
            Some(format!("{what} has {lines} lines, expected at most {most}; cut it where its parts have names"))
        }
        None => None,
        Some(_) if lines <= most => {
            Some(format!("{what} has {lines} lines, which needs no entry in {LIST} any more; remove it"))
        }
        Some(limit) if lines > limit => Some(format!(
            "{what} has {lines} lines, and {LIST} allows {limit}; that list only shrinks: move something out"
        )),
        Some(limit) if lines * 100 < limit * (100 - SLACK_PERCENT) => {
            Some(format!("{what} has {lines} lines, and {LIST} allows {limit}; lower the entry to {lines}"))
        }
        Some(_) => None,
    }
}

struct Function {
    name: String,
    /// Where `fn` stands.
    line: usize,
    /// From there to the closing brace.
    lines: usize,
}

/// Every function with a body, those inside others and inside macros too.
fn functions_of(tokens: &[Token]) -> Vec<Function> {
    let mut all = Vec::new();
    for (i, pair) in tokens.windows(2).enumerate() {
        let [keyword, name] = pair else { continue };
        let (true, Some(name)) = (keyword.is_word("fn"), name.word()) else { continue };
        let Some(close) = body_of(tokens, i + 2).and_then(|open| tokens.get(close_of(tokens, open))) else { continue };
        all.push(Function { name: name.into(), line: keyword.line, lines: close.last_line - keyword.line + 1 });
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "a/src/lib.rs";

    /// A file with one function of this many lines.
    fn with_function(lines: usize) -> File {
        let text =
            format!("struct S;\nimpl S {{\n    fn long(&self) -> [u8; 2] {{\n{}    }}\n}}\n", "\n".repeat(lines - 2));
        File::of(PATH, &text).unwrap()
    }

    fn room(function: Option<&str>, lines: usize) -> Room {
        Room { path: PATH.into(), function: function.map(Into::into), lines, reason: "a catalogue of one thing".into() }
    }

    fn found(file: File, list: &[Room]) -> Vec<String> {
        check(&[file], list).iter().map(Complaint::to_string).collect()
    }

    #[test]
    fn functions_of_more_than_a_hundred_lines_are_named() {
        assert!(found(with_function(100), &[]).is_empty());
        assert_eq!(
            found(with_function(101), &[]),
            ["a/src/lib.rs:3: fn long has 101 lines, expected at most 100; cut it where its parts have names"]
        );
    }

    #[test]
    fn functions_inside_macros_count_and_those_without_a_body_do_not() {
        let body = "\n".repeat(120);
        let text = format!(
            "proptest! {{ fn inside(a in 0..2) {{ {body} }} }}\ntrait T {{ fn none(&self); }}{body}fn f() {{}}\n"
        );
        let found = found(File::of(PATH, &text).unwrap(), &[]);
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("fn inside has 121 lines"), "{found:?}");
    }

    #[test]
    fn files_of_more_than_seven_hundred_lines_are_named() {
        let file = |lines| File::of(PATH, &"// A line.\n".repeat(lines)).unwrap();
        assert!(found(file(700), &[]).is_empty());
        assert_eq!(
            found(file(701), &[]),
            ["a/src/lib.rs: the file has 701 lines, expected at most 700; cut it where its parts have names"]
        );
        assert!(found(file(701), &[room(None, 710)]).is_empty());
    }

    #[test]
    fn the_list_only_shrinks() {
        let says = |lines, limit| found(with_function(lines), &[room(Some("long"), limit)]).join("\n");
        assert_eq!(says(150, 150), "");
        assert_eq!(says(143, 150), "");
        assert!(says(151, 150).ends_with("allows 150; that list only shrinks: move something out"));
        assert!(says(142, 150).ends_with("allows 150; lower the entry to 142"));
        assert!(says(100, 150).ends_with("needs no entry in xtask/rooms.toml any more; remove it"));
    }

    #[test]
    fn entries_need_something_to_be_about_and_a_reason() {
        let mut gone = room(Some("gone"), 120);
        gone.reason = "long".into();
        assert_eq!(
            found(with_function(10), &[gone]),
            [
                "xtask/rooms.toml: the entry of a/src/lib.rs, fn gone gives no reason; say what keeps it so",
                "xtask/rooms.toml: a/src/lib.rs, fn gone is not in the tree any more; remove the entry"
            ]
        );
        let twice = found(with_function(120), &[room(Some("long"), 120), room(Some("long"), 120)]);
        assert_eq!(twice, ["xtask/rooms.toml: a/src/lib.rs, fn long is listed twice; remove one"]);
    }
}
