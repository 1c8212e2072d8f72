//! A message opened: its members found in place, copied only where an escape or a number must be written anew.
//!
//! JSON is read one level at a time: members are slices of the message, and what is nested is opened when somebody asks
//! for something inside. Numbers keep the digits they were written with; identifiers above 2^53 stay what they are.

use std::borrow::Cow;
use std::fmt;

use rmpv::ValueRef;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::poison::Poison;

/// How values are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// A JSON object.
    #[default]
    Json,
    /// Bytes that mean nothing here.
    Raw,
    /// A MessagePack map.
    Msgpack,
}

/// A text that names no member of a message: `a..b`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no member of a message")]
pub struct NoMember(pub String);

/// Names on the way to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// Reads `a.b.0`.
    pub fn parse(text: &str) -> Result<Path, NoMember> {
        let names: Vec<String> = text.split('.').map(str::to_string).collect();
        if names.iter().any(String::is_empty) {
            return Err(NoMember(text.to_string()));
        }
        Ok(Path(names))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.join("."))
    }
}

/// A member's value.
#[derive(Clone, Copy, Debug)]
pub enum Field<'a> {
    /// As it stands in the message.
    Json(&'a str),
    /// Already read.
    Msgpack(&'a ValueRef<'a>),
}

/// A message that was opened.
#[derive(Debug)]
pub enum Document<'a> {
    /// Nobody needs what is inside.
    Closed,
    /// Members of a JSON object.
    Json(Members<'a>),
    /// A MessagePack map.
    Msgpack(ValueRef<'a>),
}

type Members<'a> = Vec<(Cow<'a, str>, &'a RawValue)>;

impl<'a> Document<'a> {
    /// Opens a value.
    pub fn open(value: &'a [u8], format: Format) -> Result<Document<'a>, Poison> {
        match format {
            Format::Raw => Ok(Document::Closed),
            Format::Json => {
                let mut reader = serde_json::Deserializer::from_slice(value);
                let members = (&mut reader).deserialize_map(ObjectVisitor).and_then(|m| reader.end().map(|()| m));
                members.map(Document::Json).map_err(|e| Poison::Json { why: e.to_string() })
            }
            Format::Msgpack => {
                let mut rest = value;
                let read = rmpv::decode::read_value_ref(&mut rest);
                let read = read.map_err(|e| Poison::Msgpack { why: e.to_string() })?;
                match read {
                    ValueRef::Map(_) if rest.is_empty() => Ok(Document::Msgpack(read)),
                    ValueRef::Map(_) => Err(Poison::MsgpackTail(rest.len())),
                    _ => Err(Poison::MsgpackKind),
                }
            }
        }
    }

    /// The member there; `None` when it is missing or null.
    pub fn find(&self, path: &Path) -> Option<Field<'_>> {
        let (first, rest) = path.0.split_first()?;
        let mut field = match self {
            Document::Closed => return None,
            // The last of several of one name, as nearly every reader of JSON has it.
            Document::Json(members) => Field::Json(members.iter().rev().find(|(name, _)| name == first)?.1.get()),
            Document::Msgpack(value) => Field::Msgpack(inside(value, first)?),
        };
        for name in rest {
            field = match field {
                Field::Json(text) => Field::Json(json_inside(text, name)?),
                Field::Msgpack(value) => Field::Msgpack(inside(value, name)?),
            };
        }
        (!field.is_null()).then_some(field)
    }

    /// The text of a top-level member that can be had without copying.
    pub fn plain(&self, path: &Path) -> Option<&[u8]> {
        self.find(path)?.plain()
    }

    /// Calls `each` for the members of the object there, with their names, or for the elements of the array there;
    /// without a path for those of the message. Nulls are left out.
    pub fn members(
        &self,
        path: Option<&Path>,
        mut each: impl FnMut(Option<&str>, Field<'_>) -> Result<(), Poison>,
    ) -> Result<(), Poison> {
        let Some(path) = path else {
            return match self {
                Document::Closed => Err(Poison::Raw),
                Document::Json(members) => each_json(members, each),
                Document::Msgpack(value) => each_msgpack(value, each),
            };
        };
        let broken = |e: serde_json::Error| Poison::Member { path: path.to_string(), why: e.to_string() };
        match self.find(path).ok_or_else(|| Poison::Missing { path: path.to_string() })? {
            Field::Json(text) if text.starts_with('{') => {
                let members = serde_json::Deserializer::from_str(text).deserialize_map(ObjectVisitor);
                each_json(&members.map_err(broken)?, each)
            }
            Field::Json(text) if text.starts_with('[') => {
                let elements = serde_json::Deserializer::from_str(text).deserialize_seq(ArrayVisitor);
                for element in elements.map_err(broken)? {
                    let field = Field::Json(element.get());
                    if !field.is_null() {
                        each(None, field)?;
                    }
                }
                Ok(())
            }
            Field::Msgpack(value @ (ValueRef::Map(_) | ValueRef::Array(_))) => each_msgpack(value, each),
            _ => Err(Poison::Flat { path: path.to_string() }),
        }
    }
}

fn each_json(
    members: &Members<'_>,
    mut each: impl FnMut(Option<&str>, Field<'_>) -> Result<(), Poison>,
) -> Result<(), Poison> {
    for (name, value) in members {
        let field = Field::Json(value.get());
        if !field.is_null() {
            each(Some(name), field)?;
        }
    }
    Ok(())
}

fn each_msgpack(
    value: &ValueRef<'_>,
    mut each: impl FnMut(Option<&str>, Field<'_>) -> Result<(), Poison>,
) -> Result<(), Poison> {
    match value {
        ValueRef::Map(members) => {
            for (name, value) in members.iter().filter(|(_, v)| *v != ValueRef::Nil) {
                let mut text = Vec::new();
                Field::Msgpack(name).write(&mut text)?;
                let name = String::from_utf8(text).map_err(|_| Poison::MemberName)?;
                each(Some(&name), Field::Msgpack(value))?;
            }
        }
        ValueRef::Array(elements) => {
            for element in elements.iter().filter(|e| **e != ValueRef::Nil) {
                each(None, Field::Msgpack(element))?;
            }
        }
        _ => return Err(Poison::MsgpackKind),
    }
    Ok(())
}

fn inside<'a>(value: &'a ValueRef<'a>, name: &str) -> Option<&'a ValueRef<'a>> {
    match value {
        ValueRef::Map(members) => members
            .iter()
            .rev()
            .find(|(n, _)| matches!(n, ValueRef::String(n) if n.as_str() == Some(name)))
            .map(|(_, v)| v),
        ValueRef::Array(elements) => elements.get(name.parse::<usize>().ok()?),
        _ => None,
    }
}

fn json_inside<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let mut reader = serde_json::Deserializer::from_str(text);
    match text.as_bytes().first()? {
        b'{' => {
            let members = reader.deserialize_map(ObjectVisitor).ok()?;
            members.into_iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.get())
        }
        b'[' => reader.deserialize_seq(ArrayVisitor).ok()?.get(name.parse::<usize>().ok()?).map(|e| e.get()),
        _ => None,
    }
}

impl<'a> Field<'a> {
    fn is_null(&self) -> bool {
        match self {
            Field::Json(text) => *text == "null",
            Field::Msgpack(value) => **value == ValueRef::Nil,
        }
    }

    /// Its text, where no byte of it has to be changed.
    pub fn plain(self) -> Option<&'a [u8]> {
        match self {
            Field::Json(text) => match text.as_bytes() {
                [b'"', inner @ .., b'"'] => (!inner.contains(&b'\\')).then_some(inner),
                other => Some(other),
            },
            Field::Msgpack(ValueRef::String(text)) => Some(text.as_bytes()),
            Field::Msgpack(ValueRef::Binary(bytes)) => Some(bytes),
            Field::Msgpack(_) => None,
        }
    }

    /// Appends its text.
    pub fn write(self, out: &mut Vec<u8>) -> Result<(), Poison> {
        if let Some(plain) = self.plain() {
            out.extend_from_slice(plain);
            return Ok(());
        }
        match self {
            Field::Json(text) => {
                let text: Result<String, serde_json::Error> = serde_json::from_str(text);
                let text = text.map_err(|e| Poison::Text { why: e.to_string() })?;
                out.extend_from_slice(text.as_bytes());
            }
            Field::Msgpack(value) => {
                let written = serde_json::to_writer(&mut *out, &value.to_owned());
                written.map_err(|e| Poison::Unprintable { why: e.to_string() })?;
            }
        }
        Ok(())
    }

    /// For conditions.
    pub fn to_condition(self) -> minijinja::Value {
        match self {
            Field::Json(text) => {
                let value: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
                minijinja::Value::from_serialize(&value)
            }
            Field::Msgpack(value) => minijinja::Value::from_serialize(value.to_owned()),
        }
    }
}

struct ObjectVisitor;

impl<'de> Visitor<'de> for ObjectVisitor {
    type Value = Members<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members = Vec::with_capacity(16);
        while let Some((Name(name), value)) = map.next_entry::<Name<'de>, &'de RawValue>()? {
            members.push((name, value));
        }
        Ok(members)
    }
}

struct ArrayVisitor;

impl<'de> Visitor<'de> for ArrayVisitor {
    type Value = Vec<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut elements = Vec::new();
        while let Some(element) = seq.next_element()? {
            elements.push(element);
        }
        Ok(elements)
    }
}

/// A name that is borrowed where it has no escapes; serde's own `Cow` always copies.
struct Name<'a>(Cow<'a, str>);

impl<'de> serde::Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
        struct NameVisitor;
        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }
            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(text)))
            }
            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(text.into())))
            }
        }
        reader.deserialize_str(NameVisitor)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use super::*;

    #[test]
    fn json_and_messagepack_members_render_alike() {
        let json = r#"{"id":7,"name":"a b","tags":["p",2],"o":{"x":true},"gone":null,"big":18446744073709551615}"#;
        use rmpv::Value;
        let object = Value::Map(vec![
            ("id".into(), 7.into()),
            ("name".into(), "a b".into()),
            ("tags".into(), Value::Array(vec!["p".into(), 2.into()])),
            ("o".into(), Value::Map(vec![("x".into(), true.into())])),
            ("gone".into(), Value::Nil),
            ("big".into(), u64::MAX.into()),
        ]);
        let mut packed = Vec::new();
        rmpv::encode::write_value(&mut packed, &object).unwrap();
        let documents =
            [Document::open(json.as_bytes(), Format::Json).unwrap(), Document::open(&packed, Format::Msgpack).unwrap()];
        for document in &documents {
            for (path, expected) in [
                ("id", Some("7")),
                ("name", Some("a b")),
                ("tags", Some(r#"["p",2]"#)),
                ("tags.1", Some("2")),
                ("tags.2", None),
                ("o", Some(r#"{"x":true}"#)),
                ("o.x", Some("true")),
                ("o.x.y", None),
                ("gone", None),
                ("missing", None),
                ("big", Some("18446744073709551615")),
            ] {
                let text = document.find(&Path::parse(path).unwrap()).map(|field| {
                    let mut out = Vec::new();
                    field.write(&mut out).unwrap();
                    String::from_utf8(out).unwrap()
                });
                assert_eq!(text.as_deref(), expected, "{path} in {document:?}");
            }
            let mut names = Vec::new();
            let each = document.members(None, |name, _| {
                names.push(name.unwrap_or_default().to_string());
                Ok(())
            });
            each.unwrap();
            assert_eq!(names, ["id", "name", "tags", "o", "big"]);
        }
    }

    #[test]
    fn values_that_are_not_exactly_one_object_are_refused() {
        let why = String::new;
        for (value, format, kind) in [
            (&b"[1]"[..], Format::Json, Poison::Json { why: why() }),
            (b"{} {}", Format::Json, Poison::Json { why: why() }),
            (b"{\"a\": tru}", Format::Json, Poison::Json { why: why() }),
            (b"\x91\x01", Format::Msgpack, Poison::MsgpackKind),
            (b"\x80\x80", Format::Msgpack, Poison::MsgpackTail(1)),
            (b"\x81\xa1", Format::Msgpack, Poison::Msgpack { why: why() }),
        ] {
            let error = Document::open(value, format).unwrap_err();
            assert_eq!(discriminant(&error), discriminant(&kind), "{}: {error:?}", value.escape_ascii());
        }
        assert_eq!(Document::open(b"\x80\x80", Format::Msgpack).unwrap_err(), Poison::MsgpackTail(1));
        let json = Document::open(b"[1]", Format::Json).unwrap_err().to_string();
        assert!(json.starts_with("no JSON object: invalid type"), "{json}");
    }

    #[test]
    fn members_that_are_missing_flat_or_broken_are_told_apart() {
        let document = Document::open(br#"{"a": 1, "gone": null, "o": {"\ud800": 1}}"#, Format::Json).unwrap();
        let quoted = |path: &str| format!("{path:?}");
        for (path, kind) in [
            ("b", Poison::Missing { path: quoted("b") }),
            ("gone", Poison::Missing { path: quoted("gone") }),
            ("a", Poison::Flat { path: quoted("a") }),
            ("o", Poison::Member { path: quoted("o"), why: String::new() }),
        ] {
            let error = document.members(Some(&Path::parse(path).unwrap()), |_, _| Ok(())).unwrap_err();
            assert_eq!(discriminant(&error), discriminant(&kind), "{path}: {error:?}");
            assert!(error.to_string().contains(&quoted(path)), "{error}");
        }
        assert_eq!(Document::Closed.members(None, |_, _| Ok(())), Err(Poison::Raw));
        assert_eq!(Path::parse("a..b"), Err(NoMember("a..b".into())));
    }
}
