//! Named texts in one piece of memory: an INFO has hundreds of fields, and thousands of INFOs are held at a time.

use std::cell::Cell;
use std::cmp::Ordering;
use std::fmt::{Debug, Formatter};

use memchr::memchr;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names with their texts, sorted by name, each once. All of them lie in one text, so a copy is two allocations,
/// however many they are.
#[derive(Clone, Default)]
pub struct Fields {
    text: String,
    places: Vec<Place>,
}

/// Where a name and its text lie.
#[derive(Clone, Copy)]
struct Place {
    name: (u32, u32),
    value: (u32, u32),
}

/// Names and their texts in the order of their `name:value` lines; lines that are no field are passed over.
pub fn fields_of(text: &str) -> impl Iterator<Item = (&str, &str)> {
    Lines { text, next: 0 }.map(|(_, name, value)| (name, value))
}

/// Fields with where their lines begin.
struct Lines<'a> {
    text: &'a str,
    next: usize,
}

impl<'a> Iterator for Lines<'a> {
    type Item = (usize, &'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        while self.next < self.text.len() {
            let at = self.next;
            self.next = memchr(b'\n', &self.text.as_bytes()[at..]).map_or(self.text.len(), |end| at + end + 1);
            let line = self.text[at..self.next].trim_end();
            if !line.starts_with('#')
                && let Some(colon) = memchr(b':', line.as_bytes())
            {
                return Some((at, &line[..colon], &line[colon + 1..]));
            }
        }
        None
    }
}

impl Fields {
    /// Of `name:value` lines; lines that are no field are passed over, and of a name that comes twice the last one
    /// counts.
    pub fn of_lines(text: &str) -> Fields {
        if u32::try_from(text.len()).is_err() {
            return Fields::default();
        }
        let mut places = Vec::with_capacity(text.len() / 32);
        places.extend(Lines { text, next: 0 }.map(|(at, name, value)| {
            let (at, length) = (at as u32, name.len() as u32);
            Place { name: (at, length), value: (at + length + 1, value.len() as u32) }
        }));
        let mut fields = Fields { text: text.to_string(), places };
        fields.sort();
        fields
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.find(name).ok().map(|at| self.value(at))
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.find(name).is_ok()
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// What they take in memory.
    pub fn bytes(&self) -> usize {
        self.text.capacity() + self.places.capacity() * size_of::<Place>()
    }

    /// Sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.places.len()).map(|at| (self.name(at), self.value(at)))
    }

    /// Those from a name on.
    pub fn from<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let first = self.find(name).unwrap_or_else(|at| at);
        (first..self.places.len()).map(|at| (self.name(at), self.value(at)))
    }

    /// In place of what the name had. What was there stays in memory until a copy of the fields is made by
    /// [`FromIterator`].
    pub fn insert(&mut self, name: String, value: String) {
        let found = self.find(&name);
        let Some(place) = self.append(&name, &value) else { return };
        match found {
            Ok(at) => self.places[at] = place,
            Err(at) => self.places.insert(at, place),
        }
    }

    /// What the name had.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        let at = self.find(name).ok()?;
        let value = self.value(at).to_string();
        self.places.remove(at);
        Some(value)
    }

    pub fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let text = &self.text;
        self.places.retain(|place| keep(part(text, place.name), part(text, place.value)));
    }

    pub fn clear(&mut self) {
        *self = Fields::default();
    }

    /// Puts a name and its text behind the others; `None` when all of it would be larger than 4 GiB.
    fn append(&mut self, name: &str, value: &str) -> Option<Place> {
        let at = u32::try_from(self.text.len()).ok()?;
        u32::try_from(self.text.len() + name.len() + value.len()).ok()?;
        self.text.push_str(name);
        self.text.push_str(value);
        let name = (at, name.len() as u32);
        Some(Place { name, value: (at + name.1, value.len() as u32) })
    }

    fn sort(&mut self) {
        let text = &self.text;
        let by_name = |a: &Place, b: &Place| bytes(text, a.name).cmp(bytes(text, b.name));
        // Stable: of two with one name the later one is behind.
        self.places.sort_by(by_name);
        let mut kept: Vec<Place> = Vec::with_capacity(self.places.len());
        for place in &self.places {
            match kept.last_mut() {
                Some(last) if by_name(last, place) == Ordering::Equal => *last = *place,
                _ => kept.push(*place),
            }
        }
        // As many as there are: they are kept.
        kept.shrink_to_fit();
        self.places = kept;
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        let place = |at: &usize| self.places.get(*at).is_some_and(|p| bytes(&self.text, p.name) == name.as_bytes());
        LAST.with(|last| {
            let last = &last[mark(name) % LASTS];
            if let Some(at) = Some(usize::from(last.get())).filter(place) {
                return Ok(at);
            }
            let found = self.places.binary_search_by(|place| bytes(&self.text, place.name).cmp(name.as_bytes()));
            if let Ok(at) = found {
                last.set(u16::try_from(at).unwrap_or(0));
            }
            found
        })
    }

    fn name(&self, at: usize) -> &str {
        part(&self.text, self.places[at].name)
    }

    fn value(&self, at: usize) -> &str {
        part(&self.text, self.places[at].value)
    }
}

const LASTS: usize = 1024;

thread_local! {
    /// Where a name of this mark was found last. INFOs of one version have the same fields, so it is there again: of a
    /// day that is diagnosed minute by minute, a quarter of the time was searches for the same few hundred names.
    static LAST: [Cell<u16>; LASTS] = const { [const { Cell::new(0) }; LASTS] };
}

/// Names are alike at the beginning (`used_memory_`), and differ at the end and in length.
fn mark(name: &str) -> usize {
    let bytes = name.as_bytes();
    let end = &bytes[bytes.len().saturating_sub(8)..];
    let end = end.iter().fold(0_u64, |all, byte| (all << 8) | u64::from(*byte));
    let mixed = (end ^ ((bytes.len() as u64) << 56)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 48) as usize
}

/// Names are in the same order as texts and as bytes, and these have no letters that could be cut.
fn bytes(text: &str, (at, length): (u32, u32)) -> &[u8] {
    &text.as_bytes()[at as usize..(at + length) as usize]
}

fn part(text: &str, (at, length): (u32, u32)) -> &str {
    &text[at as usize..(at + length) as usize]
}

impl<N: AsRef<str>> Extend<(N, String)> for Fields {
    fn extend<I: IntoIterator<Item = (N, String)>>(&mut self, fields: I) {
        for (name, value) in fields {
            if let Some(place) = self.append(name.as_ref(), &value) {
                self.places.push(place);
            }
        }
        self.sort();
    }
}

impl<N: AsRef<str>> FromIterator<(N, String)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, String)>>(fields: I) -> Fields {
        let mut all = Fields::default();
        all.extend(fields);
        all
    }
}

impl IntoIterator for Fields {
    type Item = (String, String);
    type IntoIter = std::vec::IntoIter<(String, String)>;

    fn into_iter(self) -> Self::IntoIter {
        let all: Vec<(String, String)> = self.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        all.into_iter()
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Fields) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Debug for Fields {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Fields;

            fn expecting(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
                f.write_str("names with texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Fields::default();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    let place = fields.append(&name, &value);
                    fields.places.extend(place);
                }
                fields.sort();
                Ok(fields)
            }
        }
        deserializer.deserialize_map(Map)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn map(fields: &Fields) -> BTreeMap<String, String> {
        fields.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect()
    }

    #[test]
    fn lines_are_fields_and_the_last_of_a_name_counts() {
        let fields = Fields::of_lines("# Server\r\nb:1\r\nnothing\na:x:y\r\n\r\nb:2  \nempty:\n:bare");
        let all: Vec<_> = fields.iter().collect();
        assert_eq!(all, [("", "bare"), ("a", "x:y"), ("b", "2"), ("empty", "")]);
        assert_eq!((fields.get("b"), fields.get("c"), fields.len()), (Some("2"), None, 4));
        assert_eq!(fields.from("b").next(), Some(("b", "2")));
        assert_eq!(fields.from("aa").count(), 2);
    }

    proptest! {
        #[test]
        fn they_are_a_map(
            first in proptest::collection::vec(("[a-c]{0,2}", "[a-z:é]{0,3}"), 0..12),
            then in proptest::collection::vec((0..3u8, "[a-c]{0,2}", "[a-z]{0,3}"), 0..12),
        ) {
            let mut fields: Fields = first.iter().cloned().collect();
            let mut expected: BTreeMap<String, String> = first.into_iter().collect();
            for (what, name, value) in then {
                match what {
                    0 => {
                        fields.insert(name.clone(), value.clone());
                        expected.insert(name, value);
                    }
                    1 => prop_assert_eq!(fields.remove(&name), expected.remove(&name)),
                    _ => {
                        fields.retain(|n, _| n != name);
                        expected.retain(|n, _| *n != name);
                    }
                }
                prop_assert_eq!(&map(&fields), &expected);
            }
            let json = serde_json::to_string(&fields).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&expected).unwrap());
            prop_assert_eq!(serde_json::from_str::<Fields>(&json).unwrap(), fields);
        }

        #[test]
        fn any_text_is_read_as_a_map_of_its_lines(text in "([a-c#]{0,2}:?[ -~é]{0,3}[\r\n]{0,2}){0,8}") {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            let split = lines.filter_map(|line| line.trim_end().split_once(':'));
            let expected: BTreeMap<String, String> = split.map(|(k, v)| (k.into(), v.into())).collect();
            prop_assert_eq!(map(&Fields::of_lines(&text)), expected);
        }
    }
}
