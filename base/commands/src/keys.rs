//! Where a command's keys are among its arguments.

use unslow_resp::Value;

/// Where a command's first key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAt {
    /// It has none.
    Nowhere,
    /// This argument; the name of the command is argument 0.
    Arg(usize),
    /// Argument `count` is the number of keys; when it is not 0 the first key is at `first`.
    Counted { count: usize, first: usize },
    /// After this word, searched from argument `from` on.
    Behind { word: Word, from: usize },
}

/// A short word, kept in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word([u8; 16]);

impl Word {
    /// `None` when it is longer than 16 bytes.
    pub(crate) fn new(text: &[u8]) -> Option<Word> {
        let mut word = [0; 16];
        word.get_mut(..text.len())?.copy_from_slice(text);
        Some(Word(word))
    }

    /// Whether it is this text; case does not matter.
    pub fn is(&self, text: &[u8]) -> bool {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(16);
        self.0[..len].eq_ignore_ascii_case(text)
    }
}

/// How many keys an argument announces, as servers read it to find the node: as C's `atoi`, with blanks before the
/// number and anything behind it. Only the command itself, on its node, refuses such a number.
pub fn number_of_keys(text: &[u8]) -> i64 {
    let begin = text.iter().position(|b| !matches!(b, b' ' | b'\t'..=b'\r')).unwrap_or(text.len());
    let (number, negative) = (&text[begin..], text.get(begin) == Some(&b'-'));
    let signed = negative || number.first() == Some(&b'+');
    let digits = number[usize::from(signed)..].iter().take_while(|b| b.is_ascii_digit());
    let number = digits.fold(0i64, |n, b| n.saturating_mul(10).saturating_add(i64::from(b - b'0')));
    if negative { -number } else { number }
}

/// A key specification: `[flags.., begin_search, {type, spec}, find_keys, {type, spec}]`.
pub(crate) fn specified(spec: &Value) -> Option<KeyAt> {
    let begin = spec.get("begin_search")?;
    let find = spec.get("find_keys")?;
    let (begin_spec, find_spec) = (begin.get("spec")?, find.get("spec")?);
    let number = |v: &Value, field: &str| v.get(field).and_then(Value::integer).and_then(|n| usize::try_from(n).ok());
    match (begin.get("type")?.text()?.as_str(), find.get("type")?.text()?.as_str()) {
        ("index", "range") => Some(KeyAt::Arg(number(begin_spec, "index")?)),
        ("index", "keynum") => {
            let at = number(begin_spec, "index")?;
            Some(KeyAt::Counted {
                count: at + number(find_spec, "keynumidx")?,
                first: at + number(find_spec, "firstkey")?,
            })
        }
        ("keyword", _) => Some(KeyAt::Behind {
            word: Word::new(begin_spec.get("keyword")?.text()?.as_bytes())?,
            from: begin_spec.get("startfrom")?.integer().and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
        }),
        _ => None,
    }
}
