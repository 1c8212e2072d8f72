//! Named texts in one piece of memory: an INFO has hundreds of fields, and thousands of INFOs are held at a time.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::fmt::{Debug, Formatter};
use std::sync::Arc;

use memchr::memchr;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Names with their texts, sorted by name, each once. All of them lie in one text, and copies share it until one of
/// them is changed.
#[derive(Clone, Default)]
pub struct Fields(Arc<Inner>);

#[derive(Clone, Default)]
struct Inner {
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

/// The field that INFO repeats, once for each module.
pub(crate) const MODULE: &str = "module";

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
                // `module:name=search,ver=1`: INFO prints one such line per module.
                let end = if &line[..colon] == MODULE { memchr(b',', line.as_bytes()).unwrap_or(colon) } else { colon };
                return Some((at, &line[..end], &line[end + 1..]));
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
        let mut inner = Inner { text: text.to_string(), places };
        inner.sort();
        Fields(Arc::new(inner))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.find(name).ok().map(|at| self.0.value(at))
    }

    pub fn contains_key(&self, name: &str) -> bool {
        self.0.find(name).is_ok()
    }

    pub fn len(&self) -> usize {
        self.0.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.places.is_empty()
    }

    /// What they take in memory; copies that share it count it each.
    pub fn bytes(&self) -> usize {
        self.0.text.capacity() + self.0.places.capacity() * size_of::<Place>()
    }

    /// Whether one is a copy of the other, and shares its memory.
    pub fn shares(&self, other: &Fields) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        (0..self.0.places.len()).map(|at| (self.0.name(at), self.0.value(at)))
    }

    /// Those from a name on.
    pub fn from<'a>(&'a self, name: &str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        let first = self.0.find(name).unwrap_or_else(|at| at);
        (first..self.0.places.len()).map(|at| (self.0.name(at), self.0.value(at)))
    }

    /// In place of what the name had. What was there stays in memory until a copy of the fields is made by
    /// [`FromIterator`].
    pub fn insert(&mut self, name: String, value: String) {
        let inner = Arc::make_mut(&mut self.0);
        let found = inner.find(&name);
        let Some(place) = inner.append(&name, &value) else { return };
        match found {
            Ok(at) => inner.places[at] = place,
            Err(at) => inner.places.insert(at, place),
        }
    }

    /// What the name had.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        let inner = Arc::make_mut(&mut self.0);
        let at = inner.find(name).ok()?;
        let value = inner.value(at).to_string();
        inner.places.remove(at);
        Some(value)
    }

    pub fn retain(&mut self, keep: impl Fn(&str, &str) -> bool) {
        let Inner { text, places } = Arc::make_mut(&mut self.0);
        places.retain(|place| keep(part(text, place.name), part(text, place.value)));
    }

    pub fn clear(&mut self) {
        *self = Fields::default();
    }
}

impl Inner {
    /// Puts a name and its text behind the others; `None` when all of it would be larger than 4 GiB.
    fn append(&mut self, name: &str, value: &str) -> Option<Place> {
        let at = u32::try_from(self.text.len()).ok()?;
        u32::try_from(self.text.len() + name.len() + value.len()).ok()?;
        self.text.push_str(name);
        self.text.push_str(value);
        let name = (at, name.len() as u32);
        Some(Place { name, value: (at + name.1, value.len() as u32) })
    }

    /// By name. Of two with one name the later one stays.
    fn sort(&mut self) {
        let text = &self.text;
        let by_name = |a: &Place, b: &Place| bytes(text, a.name).cmp(bytes(text, b.name));
        let rises = |places: &[Place]| places.is_sorted_by(|a, b| by_name(a, b) == Ordering::Less);
        ORDER.with_borrow_mut(|order| {
            if order.len() == self.places.len() {
                let as_before: Vec<Place> = order.iter().map(|at| self.places[*at as usize]).collect();
                if rises(&as_before) {
                    self.places = as_before;
                    return;
                }
            }
            *order = (0..self.places.len() as u32).collect();
            order.sort_by(|a, b| by_name(&self.places[*a as usize], &self.places[*b as usize]));
            let mut kept: Vec<Place> = Vec::with_capacity(self.places.len());
            for place in order.iter().map(|at| &self.places[*at as usize]) {
                match kept.last_mut() {
                    Some(last) if by_name(last, place) == Ordering::Equal => *last = *place,
                    _ => kept.push(*place),
                }
            }
            // As many as there are: they are kept.
            kept.shrink_to_fit();
            self.places = kept;
        });
    }

    fn find(&self, name: &str) -> Result<usize, usize> {
        let order = |place: &Place| bytes(&self.text, place.name).cmp(name.as_bytes());
        LAST.with(|last| {
            let last = &last[mark(name) % LASTS];
            let at = usize::from(last.get());
            match self.places.get(at).map(order) {
                Some(Ordering::Equal) => return Ok(at),
                // Where it would be: what begins with a name is looked for as well.
                Some(Ordering::Greater) if at == 0 || order(&self.places[at - 1]) == Ordering::Less => return Err(at),
                _ => {}
            }
            let found = self.places.binary_search_by(order);
            let (Ok(at) | Err(at)) = found;
            last.set(u16::try_from(at).unwrap_or(0));
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
    /// The places of the lines that were sorted last, by name. Most of the time the next INFO has the same fields in
    /// the same places, so looking whether it has takes the place of sorting it.
    static ORDER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
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
        let inner = Arc::make_mut(&mut self.0);
        for (name, value) in fields {
            let place = inner.append(name.as_ref(), &value);
            inner.places.extend(place);
        }
        inner.sort();
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
                let mut inner = Inner::default();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    let place = inner.append(&name, &value);
                    inner.places.extend(place);
                }
                inner.sort();
                Ok(Fields(Arc::new(inner)))
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

    #[test]
    fn lines_in_another_order_or_with_other_names_are_sorted_anew() {
        let names = |text: &str| Fields::of_lines(text).iter().map(|(n, v)| format!("{n}{v}")).collect::<String>();
        for _ in 0..2 {
            assert_eq!(names("c:1\na:2\nb:3\n"), "a2b3c1");
            assert_eq!(names("c:4\na:5\nb:6\n"), "a5b6c4");
            assert_eq!(names("a:1\nb:2\nc:3\n"), "a1b2c3");
            assert_eq!(names("c:1\nb:2\nb:3\n"), "b3c1");
            assert_eq!(names("d:1\na:2\na:3\n"), "a3d1");
        }
    }

    #[test]
    fn a_copy_shares_its_memory_until_it_is_changed() {
        let fields = Fields::of_lines("a:1\nb:2\n");
        let mut copy = fields.clone();
        assert!(copy.shares(&fields));
        assert!(!Fields::of_lines("a:1\nb:2\n").shares(&fields));
        copy.insert("a".into(), "3".into());
        assert!(!copy.shares(&fields));
        assert_eq!((fields.get("a"), copy.get("a"), copy.get("b")), (Some("1"), Some("3"), Some("2")));
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
