//! Which keys they are, where a walk through the keys was given (`unslow keys`, `--keys`). Not a rule: rules about
//! memory, and about commands that read whole keys, add it to their evidence.

use unslow_facts::{Facts, KeyPattern, LongKey};
use unslow_units::{bytes, count, percent};

use crate::Finding;

/// Patterns that are named.
const NAMED: usize = 3;
/// Of the whole; less is not worth a word.
const LEAST: f64 = 0.05;

/// What is asked of the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// Which take the memory.
    Memory,
    /// Which have no time to live.
    Lasting,
}

/// Adds the patterns that matter, if a walk was given.
pub fn told(finding: Finding, facts: &Facts, by: By) -> Finding {
    let Some(seen) = facts.keys_seen.as_ref().filter(|seen| seen.scanned > 0) else { return finding };
    let Some(text) = words(&seen.patterns, by) else { return finding };
    let part = if seen.scanned >= seen.keys {
        format!("all {} keys", count(seen.keys as f64))
    } else {
        format!("{} of {} keys seen", count(seen.scanned as f64), count(seen.keys as f64))
    };
    finding.saw_at("unslow keys", format!("{part}: {text}"), seen.at_ms)
}

/// Adds the longest keys of a type, if a walk was given that saw some.
pub fn longest(finding: Finding, facts: &Facts, kind: &str) -> Finding {
    let Some(seen) = facts.keys_seen.as_ref() else { return finding };
    let named = |key: &LongKey| {
        let length = key.length as f64;
        let length = if kind == "string" { bytes(length) } else { format!("{} elements", count(length)) };
        format!("{length} ({}, {}, on {})", key.key, key.pattern, key.server)
    };
    let all: Vec<String> = seen.longest.iter().filter(|key| key.kind == kind).take(NAMED).map(named).collect();
    if all.is_empty() {
        return finding;
    }
    finding.saw_at("unslow keys", format!("the longest of type {kind}: {}", all.join(", ")), seen.at_ms)
}

fn words(patterns: &[KeyPattern], by: By) -> Option<String> {
    let has_memory = patterns.iter().any(|p| p.memory.is_some());
    let weight = |p: &KeyPattern| match by {
        By::Memory if has_memory => p.memory.unwrap_or(0.0),
        By::Memory => p.keys,
        By::Lasting => p.keys * p.lasting_share.unwrap_or(0.0),
    };
    let what = match by {
        By::Memory if has_memory => "of the memory of keys",
        By::Memory => "of the keys",
        By::Lasting => "of the keys without a TTL",
    };
    let all: f64 = patterns.iter().map(weight).sum();
    let mut rows: Vec<&KeyPattern> = patterns.iter().filter(|p| all > 0.0 && weight(p) >= LEAST * all).collect();
    rows.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    let named: Vec<String> =
        rows.iter().take(NAMED).map(|p| format!("{} has {}", p.pattern, percent(weight(p) / all))).collect();
    (!named.is_empty()).then(|| format!("{} {what}", named.join(", ")))
}

#[cfg(test)]
mod tests {
    use unslow_facts::KeysSeen;

    use super::*;

    fn pattern(name: &str, keys: f64, lasting: f64, memory: Option<f64>) -> KeyPattern {
        KeyPattern { pattern: name.into(), keys, lasting_share: Some(lasting), memory }
    }

    fn evidence(patterns: Vec<KeyPattern>, by: By) -> Option<String> {
        let keys_seen = Some(KeysSeen { at_ms: 7, keys: 1000, scanned: 400, patterns, ..KeysSeen::default() });
        let facts = Facts { keys_seen, ..Facts::of_nothing("") };
        told(Finding::new("x"), &facts, by).evidence.first().map(|e| e.value.clone())
    }

    #[test]
    fn the_patterns_that_matter_are_named() {
        let all = vec![
            pattern("user:*", 600.0, 0.5, Some(100.0)),
            pattern("cart:*", 390.0, 1.0, Some(900.0)),
            pattern("x", 10.0, 1.0, Some(1.0)),
        ];
        let said = |by| evidence(all.clone(), by).unwrap();
        assert_eq!(said(By::Memory), "400 of 1,000 keys seen: cart:* has 90 %, user:* has 10 % of the memory of keys");
        assert_eq!(
            said(By::Lasting),
            "400 of 1,000 keys seen: cart:* has 56 %, user:* has 43 % of the keys without a TTL"
        );
        let plain: Vec<KeyPattern> = all.into_iter().map(|p| KeyPattern { memory: None, ..p }).collect();
        assert!(evidence(plain, By::Memory).unwrap().ends_with("user:* has 60 %, cart:* has 39 % of the keys"));
        assert_eq!(evidence(vec![pattern("user:*", 5.0, 0.0, None)], By::Lasting), None);
        assert_eq!(told(Finding::new("x"), &Facts::of_nothing(""), By::Memory).evidence, []);
    }

    #[test]
    fn the_longest_of_the_type_are_named() {
        let key = |kind: &str, length| LongKey {
            server: "10.0.0.1:6379".into(),
            key: "key#1".into(),
            pattern: "user:*".into(),
            kind: kind.into(),
            length,
        };
        let longest = vec![key("string", 2_000_000), key("hash", 70_000), key("hash", 5)];
        let facts = Facts { keys_seen: Some(KeysSeen { longest, ..KeysSeen::default() }), ..Facts::of_nothing("") };
        let said = |kind| super::longest(Finding::new("x"), &facts, kind).evidence.pop().map(|e| e.value);
        assert_eq!(
            said("hash").unwrap(),
            "the longest of type hash: 70,000 elements (key#1, user:*, on 10.0.0.1:6379), 5 elements (key#1, user:*, \
             on 10.0.0.1:6379)"
        );
        assert!(said("string").unwrap().contains("2 MB"));
        assert_eq!(said("list"), None);
    }
}
