//! Modules of a crate that need each other.
//!
//! A module is what stands directly under `src`: a file, or a folder with all that is in it. It needs another if its
//! product code names that one by `crate::` or `super::`, in a `use` or in any path, by itself or through what the root
//! of the crate re-exports. The root itself is left out: it declares the others. Circles that already were stand in
//! `xtask/rooms.toml`.

use std::collections::{BTreeMap, BTreeSet};

use super::complaint::Complaint;
use super::rooms::{Circle, LIST, judge_reason};
use super::source::File;
use super::tokens::{Kind, Token, close_of};

/// Who needs whom in one crate, each with the first place that says so.
type Graph = BTreeMap<String, BTreeMap<String, (String, usize)>>;

/// Circles that are not listed, and entries that are larger than need be.
pub fn check(files: &[File], list: &[Circle]) -> Vec<Complaint> {
    let mut crates: BTreeMap<&str, Vec<&File>> = BTreeMap::new();
    for file in files.iter().filter(|f| !f.product.is_empty()) {
        if let Some((sources, _)) = split(&file.path) {
            crates.entry(sources).or_default().push(file);
        }
    }
    let mut all: Vec<Complaint> = list.iter().filter_map(|c| judge_reason(&words_of(c), &c.reason)).collect();
    let mut found: Vec<(&str, BTreeSet<String>)> = Vec::new();
    for (sources, files) in &crates {
        let graph = graph_of(files);
        for circle in circles_of(&graph) {
            if !list.iter().any(|c| c.path == *sources && circle.iter().all(|m| c.modules.contains(m))) {
                all.push(Complaint::new(sources, 0, told(&circle, &graph)));
            }
            found.push((*sources, circle));
        }
    }
    for entry in list {
        let within: BTreeSet<&String> = found
            .iter()
            .filter(|(sources, circle)| *sources == entry.path && circle.iter().all(|m| entry.modules.contains(m)))
            .flat_map(|(_, circle)| circle)
            .collect();
        if within.is_empty() {
            let text = format!("the circle {} is not there any more; remove the entry", words_of(entry));
            all.push(Complaint::new(LIST, 0, text));
        } else if within.len() < entry.modules.len() {
            let text = format!("the circle {} is smaller now; lower the entry to {within:?}", words_of(entry));
            all.push(Complaint::new(LIST, 0, text));
        }
    }
    all
}

fn words_of(circle: &Circle) -> String {
    format!("{} in {}", circle.modules.join(", "), circle.path)
}

/// How many arrows of a circle are named.
const ARROWS_TOLD: usize = 12;

/// What to say of a circle: its modules, and the arrows between them.
fn told(circle: &BTreeSet<String>, graph: &Graph) -> String {
    let mut arrows = Vec::new();
    for module in circle {
        for (to, (path, line)) in graph.get(module).into_iter().flatten().filter(|(to, _)| circle.contains(*to)) {
            arrows.push(format!("{module} -> {to} ({path}:{line})"));
        }
    }
    if arrows.len() > ARROWS_TOLD {
        let more = arrows.len() - ARROWS_TOLD;
        arrows.truncate(ARROWS_TOLD);
        arrows.push(format!("and {more} more"));
    }
    let names: Vec<&str> = circle.iter().map(String::as_str).collect();
    format!(
        "the modules {} go in a circle: {}; move what both sides need into a module below them",
        names.join(", "),
        arrows.join(", ")
    )
}

/// `a/src/b/c.rs` into `a/src` and `b/c.rs`; programs beside the library are crates of their own.
fn split(path: &str) -> Option<(&str, &str)> {
    let end = path.find("/src/")? + "/src".len();
    let rest = &path[end + 1..];
    (!rest.starts_with("bin/")).then(|| (&path[..end], rest))
}

/// The module that a file belongs to, and how many `super` lead from it to the root. `None` for the root.
fn module_of(rest: &str) -> Option<(&str, usize)> {
    let parts: Vec<&str> = rest.trim_end_matches(".rs").split('/').collect();
    match parts[..] {
        [] | ["lib" | "main" | "build"] => None,
        [first] => Some((first, 1)),
        [first, .., last] => Some((first, if last == "mod" { parts.len() - 1 } else { parts.len() })),
    }
}

fn graph_of(files: &[&File]) -> Graph {
    let places: Vec<(&File, Option<(&str, usize)>)> =
        files.iter().map(|f| (*f, split(&f.path).and_then(|(_, rest)| module_of(rest)))).collect();
    let modules: BTreeSet<&str> = places.iter().filter_map(|(_, place)| place.map(|(module, _)| module)).collect();
    let mut owners: BTreeMap<String, String> = modules.iter().map(|m| (m.to_string(), m.to_string())).collect();
    for (file, _) in places.iter().filter(|(_, place)| place.is_none()) {
        for (name, module) in reexports(&file.product, &modules) {
            owners.entry(name).or_insert(module);
        }
    }
    let mut graph = Graph::new();
    for (file, place) in &places {
        let Some((module, depth)) = place else { continue };
        let needs = graph.entry(module.to_string()).or_default();
        for (name, line) in names_at_root(&file.product, *depth) {
            if let Some(owner) = owners.get(&name).filter(|owner| owner.as_str() != *module) {
                needs.entry(owner.clone()).or_insert_with(|| (file.path.clone(), line));
            }
        }
    }
    graph
}

/// What the root imports from its modules, by the name that it has there.
fn reexports(tokens: &[Token], modules: &BTreeSet<&str>) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for start in (0..tokens.len()).filter(|i| tokens[*i].is_word("use")) {
        let end = tokens[start..].iter().position(|t| t.is_mark(';')).map_or(tokens.len(), |n| start + n);
        let statement = &tokens[start + 1..end];
        let mut words = statement.iter().filter_map(Token::word).filter(|w| !matches!(*w, "crate" | "self"));
        let Some(module) = words.next().filter(|w| modules.contains(w)) else { continue };
        for (i, word) in statement.iter().enumerate().filter_map(|(i, t)| Some((i, t.word()?))) {
            // A name is imported where nothing but the end of its place follows.
            let ends = statement.get(i + 1).is_none_or(|t| t.is_mark(',') || matches!(t.kind, Kind::Close(_)));
            if ends && word != "self" && word != module {
                all.push((word.to_string(), module.to_string()));
            }
        }
    }
    all
}

/// The names that paths from here look for at the root of the crate, with their lines.
fn names_at_root(tokens: &[Token], depth: usize) -> Vec<(String, usize)> {
    let mut all = Vec::new();
    // Where the modules inside the file that are open here end.
    let mut inner: Vec<usize> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        inner.retain(|end| *end > i);
        if tokens[i].is_word("mod") && tokens.get(i + 2).is_some_and(|t| t.kind == Kind::Open('{')) {
            inner.push(close_of(tokens, i + 2));
        }
        if tokens[i].is_word("crate") && is_path(tokens, i) {
            all.extend(heads(tokens, i + 3));
        } else if tokens[i].is_word("super") && is_path(tokens, i) {
            let mut ups = 1;
            while tokens.get(i + 3).is_some_and(|t| t.is_word("super")) && is_path(tokens, i + 3) {
                (i, ups) = (i + 3, ups + 1);
            }
            if ups == depth + inner.len() {
                all.extend(heads(tokens, i + 3));
            }
        }
        i += 1;
    }
    all
}

/// Whether `::` follows the word at `at`.
fn is_path(tokens: &[Token], at: usize) -> bool {
    tokens.get(at + 1..at + 3).is_some_and(|next| next.iter().all(|t| t.is_mark(':')))
}

/// The names at `at`: one, or the first of each element of a group.
fn heads(tokens: &[Token], at: usize) -> Vec<(String, usize)> {
    let named = |i: usize| Some((tokens.get(i)?.word().filter(|w| *w != "self")?.to_string(), tokens[i].line));
    if tokens.get(at).is_none_or(|t| t.kind != Kind::Open('{')) {
        return named(at).into_iter().collect();
    }
    let close = close_of(tokens, at);
    let (mut all, mut i) = (Vec::new(), at + 1);
    let mut begins = true;
    while i < close {
        if begins {
            all.extend(named(i));
        }
        begins = tokens[i].is_mark(',');
        i = if matches!(tokens[i].kind, Kind::Open(_)) { close_of(tokens, i) + 1 } else { i + 1 };
    }
    all
}

/// Sets of two or more modules that all need each other, be it through third ones.
fn circles_of(graph: &Graph) -> Vec<BTreeSet<String>> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|from| (from.as_str(), reached(graph, from))).collect();
    let mut all: Vec<BTreeSet<String>> = Vec::new();
    for (from, to) in &reach {
        if all.iter().any(|circle| circle.contains(*from)) {
            continue;
        }
        let back = to.iter().filter(|to| reach.get(**to).is_some_and(|further| further.contains(from)));
        let circle: BTreeSet<String> = back.map(|name| name.to_string()).collect();
        if circle.len() > 1 {
            all.push(circle);
        }
    }
    all
}

/// Where the arrows lead from here; here itself only if they lead back.
fn reached<'a>(graph: &'a Graph, from: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in graph.get(module).into_iter().flat_map(|needs| needs.keys()) {
            if seen.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)], list: &[Circle]) -> Vec<String> {
        let files: Vec<File> = files.iter().map(|(path, text)| File::of(path, text).unwrap()).collect();
        check(&files, list).iter().map(Complaint::to_string).collect()
    }

    fn listed(modules: &[&str]) -> Circle {
        let modules = modules.iter().map(|m| m.to_string()).collect();
        Circle { path: "a/src".into(), modules, reason: "one knot, to be untied".into() }
    }

    const ROOT: (&str, &str) = ("a/src/lib.rs", "mod one; mod two; mod three; pub use two::Two;");

    #[test]
    fn modules_that_need_each_other_are_named_with_the_arrows() {
        let files = [
            ROOT,
            ("a/src/one.rs", "use std::fmt;\nuse crate::two::Two;\n"),
            ("a/src/two.rs", "fn f() { g(vec![crate::one::h()]); }\n"),
            ("a/src/three.rs", "use crate::{one, two};\n"),
        ];
        assert_eq!(
            found(&files, &[]),
            ["a/src: the modules one, two go in a circle: one -> two (a/src/one.rs:2), two -> one (a/src/two.rs:1); \
              move what both sides need into a module below them"]
        );
    }

    #[test]
    fn arrows_in_one_direction_are_fine() {
        let files = [
            ROOT,
            ("a/src/one.rs", "use crate::{three::{X, one}, two::Two};\n"),
            ("a/src/two.rs", "use super::three;\nuse b::crate_like::one;\n"),
            ("a/src/three.rs", "pub(crate) struct X;\npub fn one() {}\n"),
            ("b/src/lib.rs", "mod one;\nmod two;\n"),
            ("b/src/two.rs", "use crate::one;\n"),
        ];
        assert!(found(&files, &[]).is_empty());
    }

    #[test]
    fn super_leads_to_the_root_only_from_the_top() {
        let inside = [ROOT, ("a/src/one/mod.rs", "mod deep;\n"), ("a/src/one/deep.rs", "use super::two;\n")];
        let two = ("a/src/two.rs", "use crate::one::X;\n");
        assert!(found(&[&inside[..], &[two]].concat(), &[]).is_empty(), "this `two` is inside one");
        let out = [ROOT, ("a/src/one/deep.rs", "mod m { use super::super::super::{three, two::Two}; }\n"), two];
        assert_eq!(found(&out, &[]).len(), 1);
        let folder = [ROOT, ("a/src/one/mod.rs", "use super::two;\n"), two];
        assert_eq!(found(&folder, &[]).len(), 1);
    }

    #[test]
    fn names_that_the_root_reexports_belong_to_their_module() {
        let files = [ROOT, ("a/src/one.rs", "use crate::Two;\n"), ("a/src/two.rs", "use super::one::X;\n")];
        assert_eq!(found(&files, &[]).len(), 1);
    }

    #[test]
    fn tests_may_look_at_anything() {
        let files = [
            ROOT,
            ("a/src/one.rs", "#[cfg(test)]\nmod tests { use crate::two::Two; }\n"),
            ("a/src/two.rs", "use crate::one::X;\n"),
            ("a/tests/one.rs", "use crate::two;\n"),
        ];
        assert!(found(&files, &[]).is_empty());
    }

    #[test]
    fn longer_circles_are_found_whole() {
        let files = [
            ROOT,
            ("a/src/one.rs", "use crate::two;\n"),
            ("a/src/two.rs", "use crate::three;\n"),
            ("a/src/three.rs", "use crate::one;\n"),
        ];
        assert!(found(&files, &[])[0].contains("the modules one, three, two go in a circle"));
        assert!(found(&files, &[listed(&["one", "two", "three"])]).is_empty());
    }

    #[test]
    fn the_list_only_shrinks() {
        let files = [ROOT, ("a/src/one.rs", "use crate::two;\n"), ("a/src/two.rs", "use crate::one;\n")];
        assert!(found(&files, &[listed(&["one", "two"])]).is_empty());
        assert_eq!(
            found(&files, &[listed(&["one", "three", "two"])]),
            ["xtask/rooms.toml: the circle one, three, two in a/src is smaller now; \
              lower the entry to {\"one\", \"two\"}"]
        );
        assert_eq!(
            found(&files[..2], &[listed(&["one", "two"])]),
            ["xtask/rooms.toml: the circle one, two in a/src is not there any more; remove the entry"]
        );
    }
}
