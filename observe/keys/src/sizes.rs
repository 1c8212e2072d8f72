//! How many keys of each size there are, by the server's own count: INFO keysizes, since Redis 8.0.
//!
//! It counts the lengths of strings, and the elements of lists, sets, sorted sets and hashes, in classes that double.
//! Source: <https://redis.io/docs/latest/commands/info/>.

use std::collections::BTreeMap;

use serde::Serialize;
use unslow_topology::Info;

/// Keys of one type and database, class by class.
pub type Classes = BTreeMap<u64, u64>;

/// Keys whose size is at least `from`, and less than twice that; of the class 0, those that are empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, schemars::JsonSchema)]
pub struct SizeClass {
    /// Bytes of a string, elements of anything else.
    pub from: u64,
    pub keys: u64,
}

/// What INFO names the types it counts, and what TYPE does.
const TYPES: [(&str, &str); 5] = [
    ("strings_sizes", "string"),
    ("lists_items", "list"),
    ("sets_items", "set"),
    ("zsets_items", "zset"),
    ("hashes_items", "hash"),
];
/// No server has more keys than this, so sums of some thousand such numbers hold.
const MOST: u64 = 1 << 50;
/// 0, and every power of two.
const CLASSES: usize = 65;

/// By type, of one database; `None` where the server does not count.
pub fn sizes(info: &Info, database: u32) -> Option<BTreeMap<String, Classes>> {
    let prefix = format!("db{database}_distrib_");
    let mut all = BTreeMap::new();
    for (name, text) in info.prefixed(&prefix) {
        if let Some((_, kind)) = TYPES.iter().find(|(field, _)| *field == name) {
            all.insert(kind.to_string(), text.split(',').filter_map(class).take(CLASSES).collect());
        }
    }
    (!all.is_empty()).then_some(all)
}

/// `2K=17`: 17 keys of 2048 or more.
fn class(text: &str) -> Option<(u64, u64)> {
    let (label, keys) = text.split_once('=')?;
    let (digits, unit) = label.split_at(label.find(|c: char| !c.is_ascii_digit()).unwrap_or(label.len()));
    let power = match unit {
        "" => 0,
        "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        "P" => 5,
        "E" => 6,
        _ => return None,
    };
    Some((digits.parse::<u64>().ok()?.checked_mul(1 << (10 * power))?, keys.parse::<u64>().ok()?.min(MOST)))
}

/// How many keys that were not seen are larger than the largest that was, at least and at most. `listed` are the
/// lengths of the largest keys seen, the largest first.
pub fn larger_unseen(classes: &Classes, listed: &[u64]) -> (u64, u64) {
    let Some(largest) = listed.first() else {
        let all = sum(classes.values());
        return (all, all);
    };
    // The class of the largest one holds smaller keys as well.
    let own = classes.range(..=largest).next_back().map(|(from, keys)| (*from, *keys));
    let above = sum(classes.iter().filter(|(from, _)| **from > *largest).map(|(_, keys)| keys));
    let beside = own
        .map_or(0, |(from, keys)| keys.saturating_sub(listed.iter().filter(|length| **length >= from).count() as u64));
    (above, above.saturating_add(beside))
}

/// Of the keys in some classes.
pub fn sum<'a>(keys: impl Iterator<Item = &'a u64>) -> u64 {
    keys.fold(0, |all, n| all.saturating_add(*n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_read_by_type_and_database() {
        // As Redis 8.10.2 prints it, and with what no server prints.
        let text = "# Keyspace\r\ndb0:keys=2,expires=0,avg_ttl=0,subexpiry=0\r\n# Keysizes\r\n\
                    db0_distrib_strings_sizes:0=1,512=7,1K=5,4E=1,9E=1,99E=1\r\ndb0_distrib_hashes_items:2=3\r\n\
                    db0_distrib_hashes_sizes:64=3\r\ndb1_distrib_zsets_items:x=1,1X=2,=3,4=-1,8=99999999999999999\r\n";
        let info = Info::parse(text);
        let zero = sizes(&info, 0).unwrap();
        assert_eq!(zero.keys().collect::<Vec<_>>(), ["hash", "string"]);
        let string: Vec<(u64, u64)> = zero["string"].iter().map(|(from, keys)| (*from, *keys)).collect();
        assert_eq!(string, [(0, 1), (512, 7), (1024, 5), (4 << 60, 1), (9 << 60, 1)]);
        assert_eq!(sizes(&info, 1).unwrap()["zset"], BTreeMap::from([(8, MOST)]));
        assert_eq!(sizes(&info, 2), None);
        assert_eq!(sizes(&Info::parse("db0:keys=1\r\n"), 0), None);
    }

    #[test]
    fn keys_above_the_largest_that_was_seen_are_counted() {
        let classes = Classes::from([(64, 100), (1024, 3), (4096, 2)]);
        // One of 1500 and one of 1100 were seen: the two of 4096 are larger, the third of 1024 may be.
        assert_eq!(larger_unseen(&classes, &[1500, 1100, 80]), (2, 3));
        assert_eq!(larger_unseen(&classes, &[5000, 4500, 1100]), (0, 0));
        assert_eq!(larger_unseen(&classes, &[5000]), (0, 1));
        assert_eq!(larger_unseen(&classes, &[]), (105, 105));
        // It grew after it was counted.
        assert_eq!(larger_unseen(&classes, &[9000]), (0, 1));
        assert_eq!(larger_unseen(&Classes::new(), &[7]), (0, 0));
    }
}
