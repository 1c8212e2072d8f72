//! The owned reply, for control planes where comfort counts.

use std::borrow::Cow;

use crate::{Frame, Kind};

/// A reply that owns its bytes.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// No value.
    Null,
    /// An integer.
    Integer(i64),
    /// RESP3 double; "inf" and "nan" as the type has them.
    Double(f64),
    /// RESP3 boolean.
    Boolean(bool),
    /// Simple or bulk string, or a big number in digits.
    Text(Vec<u8>),
    /// An error, with its code word first (`NOAUTH ...`).
    Error(String),
    /// Array or set; a RESP3 map is an array of keys and values in turn, as RESP2 sends it.
    Array(Vec<Value>),
    /// RESP3 push.
    Push(Vec<Value>),
}

/// A text, lossy where it is not UTF-8. Nearly all are, which is sooner checked than converted.
pub fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    std::str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

impl From<Frame<'_>> for Value {
    fn from(frame: Frame<'_>) -> Value {
        match frame.kind() {
            Kind::Null => Value::Null,
            Kind::Integer => frame.integer().map_or(Value::Null, Value::Integer),
            Kind::Double => {
                std::str::from_utf8(frame.text()).ok().and_then(|t| t.parse().ok()).map_or(Value::Null, Value::Double)
            }
            Kind::Boolean => Value::Boolean(frame.text() == b"t"),
            Kind::Simple | Kind::Bulk | Kind::BigNumber => Value::Text(frame.text().to_vec()),
            Kind::Error => Value::Error(lossy(frame.text()).into_owned()),
            Kind::Array | Kind::Map => Value::Array(frame.items().map(Value::from).collect()),
            Kind::Push => Value::Push(frame.items().map(Value::from).collect()),
        }
    }
}

impl Value {
    /// The text of a string, or the digits of a number; lossy where it is not UTF-8.
    pub fn text(&self) -> Option<String> {
        match self {
            Value::Text(bytes) => Some(lossy(bytes).into_owned()),
            Value::Integer(n) => Some(n.to_string()),
            Value::Double(x) => Some(x.to_string()),
            Value::Boolean(b) => Some(b.to_string()),
            _ => None,
        }
    }

    /// An integer, or a string of digits.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Value::Integer(n) => Some(*n),
            Value::Text(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
            _ => None,
        }
    }

    /// The elements; none for scalars.
    pub fn items(&self) -> &[Value] {
        match self {
            Value::Array(items) | Value::Push(items) => items,
            _ => &[],
        }
    }

    /// An array of keys and values in turn as pairs of texts; pairs that are not texts are left out.
    pub fn pairs(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.items().chunks_exact(2).filter_map(|kv| Some((kv[0].text()?, kv[1].text()?)))
    }

    /// The value beside `key` in an array of keys and values in turn.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.items().chunks_exact(2).find(|kv| matches!(&kv[0], Value::Text(t) if t == key.as_bytes())).map(|kv| &kv[1])
    }
}
