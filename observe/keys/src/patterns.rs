//! Learns what keys are called: `user:17:cart` and `user:18:cart` are both `user:*:cart`.
//!
//! A name is cut at `:`, `/`, `|` and `.`; what looks like an id (digits, hex, a long random word, an address) is a `*`
//! from the start, and where one place in a name takes more than [`CHILDREN`] different words, all of them are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Different words in one place of a name before they count as ids.
const CHILDREN: usize = 64;
/// Places in a name; the rest of it is one.
const DEPTH: usize = 6;
/// Branches in all, whatever the names are.
const BRANCHES: usize = 8_192;
/// The longest word that is kept, in bytes.
const WORD: usize = 32;
/// A word of that length with digits in it is an id.
const RANDOM: usize = 8;
/// As long is hex with digits in it that is an id.
const HEX: usize = 4;
const ANY: &str = "*";

/// What is summed up over keys.
pub trait Sum: Default + Clone {
    fn merge(&mut self, other: &Self);
    /// How many keys it is of.
    fn keys(&self) -> u64;
}

/// Sums by pattern.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Patterns<S> {
    root: Branch<S>,
    branches: usize,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Branch<S> {
    /// Of keys whose name ends here.
    sum: S,
    children: BTreeMap<String, Branch<S>>,
    /// All words of this place are one.
    is_any: bool,
}

/// A name in places, each with the separator that ends it; ids are `*`.
pub fn places(name: &[u8]) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let end = rest.iter().position(|b| is_separator(*b)).map_or(rest.len(), |at| at + 1);
        if all.len() + 1 == DEPTH && end < rest.len() {
            all.push(ANY.to_string());
            break;
        }
        let (word, separator) = match rest[..end].split_last() {
            Some((last, word)) if is_separator(*last) => (word, &rest[end - 1..end]),
            _ => (&rest[..end], &rest[..0]),
        };
        let mut place = plain(word);
        place.push_str(std::str::from_utf8(separator).unwrap_or_default());
        all.push(place);
        rest = &rest[end..];
    }
    all
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b':' | b'/' | b'|' | b'.')
}

/// A word without ids. The braces of a hash tag stay.
fn plain(word: &[u8]) -> String {
    let Some(text) = std::str::from_utf8(word).ok().filter(|t| t.chars().all(|c| c.is_ascii_graphic() || c == ' '))
    else {
        return ANY.to_string();
    };
    if text.contains('@') || text.len() > 4 * WORD {
        return ANY.to_string();
    }
    let mut out = String::new();
    let mut part = String::new();
    for c in text.chars().chain([' ']) {
        if c.is_ascii_alphanumeric() {
            part.push(c);
            continue;
        }
        push(&mut out, &part);
        part.clear();
        out.push(c);
    }
    out.pop(); // the blank that ended it
    // 1-2-3 and a UUID are one id.
    while let Some(at) = ["*-*", "*_*", "* *", "**"].iter().find_map(|pair| out.find(pair).map(|at| (at, pair.len()))) {
        out.replace_range(at.0..at.0 + at.1, ANY);
    }
    out
}

/// A part of a word; ids get one `*`.
fn push(out: &mut String, part: &str) {
    let digits = part.bytes().filter(u8::is_ascii_digit).count();
    // cafe is a word, e29b a part of an id.
    let is_hex = part.bytes().all(|b| b.is_ascii_hexdigit()) && part.len() >= if digits > 0 { HEX } else { RANDOM };
    if part.len() > WORD || is_hex || (digits > 0 && (part.len() >= RANDOM || digits == part.len())) {
        out.push_str(ANY);
    } else if digits > 0 {
        // user123, but also 2fa and v1: what ends in digits counts them.
        let name = part.trim_end_matches(|c: char| c.is_ascii_digit());
        out.push_str(name);
        if name.len() < part.len() {
            out.push_str(ANY);
        }
    } else {
        out.push_str(part);
    }
}

/// The place that takes any word: `alice:` and `*:` end alike.
fn wild(place: &str) -> String {
    let separator = place.bytes().last().filter(|b| is_separator(*b));
    separator.map_or(ANY.to_string(), |b| format!("{ANY}{}", b as char))
}

impl<S: Sum> Patterns<S> {
    /// Adds one key, or what is known of several with the same places.
    pub fn add(&mut self, places: &[String], change: impl FnOnce(&mut S)) {
        let mut branch = &mut self.root;
        for place in places {
            let is_new = !branch.children.contains_key(place);
            if is_new && !branch.is_any && (branch.children.len() >= CHILDREN || self.branches >= BRANCHES) {
                let before = branch.size();
                branch.make_any();
                self.branches = self.branches + branch.size() - before;
            }
            let name = if branch.is_any { wild(place) } else { place.clone() };
            if self.branches >= 2 * BRANCHES && !branch.children.contains_key(&name) {
                // Names made to be as different as can be: the rest of them is not told apart.
                self.branches += usize::from(!branch.children.contains_key(ANY));
                branch = branch.children.entry(ANY.to_string()).or_default();
                break;
            }
            branch = match branch.children.entry(name) {
                std::collections::btree_map::Entry::Occupied(there) => there.into_mut(),
                std::collections::btree_map::Entry::Vacant(free) => {
                    self.branches += 1;
                    free.insert(Branch::default())
                }
            };
        }
        change(&mut branch.sum);
    }

    /// Counts them anew, after they were read from a file.
    pub fn count_branches(&mut self) {
        self.branches = self.root.size();
    }

    /// Every sum, to be changed where it is.
    pub fn each(&mut self, mut change: impl FnMut(&mut S)) {
        self.root.each(&mut change);
    }

    /// The same patterns where each place has at least `least` keys; words with fewer are one `*`.
    pub fn without_rare(&self, least: u64) -> Patterns<S> {
        let mut out = self.clone();
        out.root.fold(least);
        out
    }

    /// What a key with these places is called here.
    pub fn pattern(&self, places: &[String]) -> String {
        let (mut branch, mut out) = (Some(&self.root), String::new());
        for place in places {
            let wild = wild(place);
            let known = branch.and_then(|b| {
                [place.as_str(), &wild, ANY]
                    .into_iter()
                    .find_map(|name| b.children.get(name).map(|child| (name.to_string(), child)))
            });
            branch = known.as_ref().map(|(_, child)| *child);
            out += &known.map_or(wild, |(name, _)| name);
        }
        out
    }

    /// Each pattern that keys have, with their sum.
    pub fn rows(&self) -> Vec<(String, &S)> {
        let mut out = Vec::new();
        self.root.rows(&mut String::new(), &mut out);
        out
    }
}

impl<S: Sum> Branch<S> {
    fn size(&self) -> usize {
        self.children.values().map(|child| 1 + child.size()).sum()
    }

    fn keys(&self) -> u64 {
        self.sum.keys() + self.children.values().map(Branch::keys).sum::<u64>()
    }

    fn merge(&mut self, other: Branch<S>) {
        self.sum.merge(&other.sum);
        if other.is_any && !self.is_any {
            self.make_any();
        }
        for (place, child) in other.children {
            let name = if self.is_any { wild(&place) } else { place };
            self.children.entry(name).or_default().merge(child);
        }
        if self.children.len() > CHILDREN {
            self.make_any();
        }
    }

    fn make_any(&mut self) {
        self.is_any = true;
        for (place, child) in std::mem::take(&mut self.children) {
            self.children.entry(wild(&place)).or_default().merge(child);
        }
    }

    fn fold(&mut self, least: u64) {
        for (place, child) in std::mem::take(&mut self.children) {
            let name = if child.keys() < least { wild(&place) } else { place };
            self.children.entry(name).or_default().merge(child);
        }
        self.children.values_mut().for_each(|child| child.fold(least));
    }

    fn each(&mut self, change: &mut impl FnMut(&mut S)) {
        change(&mut self.sum);
        self.children.values_mut().for_each(|child| child.each(change));
    }

    fn rows<'a>(&'a self, path: &mut String, out: &mut Vec<(String, &'a S)>) {
        if self.sum.keys() > 0 {
            out.push((path.clone(), &self.sum));
        }
        for (place, child) in &self.children {
            path.push_str(place);
            child.rows(path, out);
            path.truncate(path.len() - place.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    impl Sum for u64 {
        fn merge(&mut self, other: &u64) {
            *self += other;
        }
        fn keys(&self) -> u64 {
            *self
        }
    }

    fn of(name: &str) -> String {
        places(name.as_bytes()).concat()
    }

    fn learnt(names: impl IntoIterator<Item = String>) -> Patterns<u64> {
        let mut all = Patterns::default();
        for name in names {
            all.add(&places(name.as_bytes()), |n| *n += 1);
        }
        all
    }

    fn rows(all: &Patterns<u64>) -> Vec<(String, u64)> {
        all.rows().into_iter().map(|(pattern, n)| (pattern, *n)).collect()
    }

    #[test]
    fn ids_are_known_by_their_look() {
        for (name, pattern) in [
            ("user:17:cart", "user:*:cart"),
            ("{user:17}:cart", "{user:*}:cart"),
            ("user123", "user*"),
            ("session-550e8400-e29b-41d4-a716-446655440000", "session-*"),
            ("s:aB3dE9xQz1", "s:*"),
            ("cache:/api/v1/items/42", "cache:/api/v*/items/*"),
            ("mail:alice@example.org", "mail:*.org"),
            ("2026-11-27", "*"),
            ("2fa:enabled", "2fa:enabled"),
            ("deadbeefcafe", "*"),
            ("leaderboard", "leaderboard"),
            ("a:b:c:d:e:f:g:h", "a:b:c:d:e:*"),
            ("a::b", "a::b"),
            (":", ":"),
            ("", ""),
        ] {
            assert_eq!(of(name), pattern, "{name}");
        }
        assert_eq!(places(b"bin\xff\x00:x").concat(), "*:x");
        assert_eq!(places(&[b'x'; 100_000]).concat(), "*");
    }

    #[test]
    fn many_words_in_one_place_are_ids_too() {
        let word = |n: usize| -> String { (0..4).map(|at| (b'a' + (n >> (at * 3) & 7) as u8) as char).collect() };
        let all = learnt((0..1000).map(|n| format!("user:{}:cart", word(n))));
        assert_eq!(rows(&all), [("user:*:cart".to_string(), 1000)]);
        assert_eq!(all.pattern(&places(b"user:zoe:cart")), "user:*:cart");
        // What one word has below it stays below the `*`.
        let mixed = learnt((0..1000).map(|n| format!("{}:{}", word(n), ["a", "b"][n % 2])));
        assert_eq!(rows(&mixed), [("*:a".to_string(), 500), ("*:b".to_string(), 500)]);
    }

    #[test]
    fn words_of_few_keys_are_not_told() {
        let names = (0..50).map(|n| format!("user:{n}")).chain(["user:bob".to_string(), "config".to_string()]);
        let all = learnt(names);
        assert_eq!(rows(&all.without_rare(10)), [("*".to_string(), 1), ("user:*".to_string(), 51)]);
        assert_eq!(all.without_rare(10).pattern(&places(b"user:bob")), "user:*");
        assert_eq!(all.without_rare(10).pattern(&places(b"config")), "*");
    }

    proptest! {
        #[test]
        fn no_key_is_lost_and_branches_are_bounded(names in prop::collection::vec("[a-c0-9:./|{}@ -]{0,12}", 0..600)) {
            let all = learnt(names.clone());
            prop_assert_eq!(rows(&all).iter().map(|(_, n)| n).sum::<u64>(), names.len() as u64);
            prop_assert_eq!(rows(&all.without_rare(10)).iter().map(|(_, n)| n).sum::<u64>(), names.len() as u64);
            prop_assert_eq!(all.branches, all.root.size());
            for name in &names {
                let pattern = all.pattern(&places(name.as_bytes()));
                prop_assert!(rows(&all).iter().any(|(row, _)| *row == pattern), "{} as {}", name, pattern);
            }
        }

        #[test]
        fn any_bytes_are_cut(name in prop::collection::vec(any::<u8>(), 0..200)) {
            let places = places(&name);
            prop_assert!(places.len() <= DEPTH);
        }
    }

    #[test]
    fn hostile_names_take_no_more_than_the_branches_there_are() {
        let mut all = Patterns::<u64>::default();
        let word = |n: usize| -> String { (0..5).map(|at| (b'a' + (n >> (at * 4) & 15) as u8) as char).collect() };
        for n in 0..200_000 {
            let name = format!("{}:{}:{}", word(n % 60), word(n / 60 % 60), word(n / 3600));
            all.add(&places(name.as_bytes()), |sum| *sum += 1);
        }
        assert!(all.root.size() <= BRANCHES + 6, "{}", all.root.size());
        assert_eq!(all.root.keys(), 200_000);
    }
}
