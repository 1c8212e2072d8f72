//! Command templates: `HSET user:{key} f {value}`, compiled once and rendered millions of times.
//!
//! The syntax is that of [`unslow_template`]. `{key}` is the drawn key's number in twelve digits, `{value}` a drawn
//! value, `{seq}` the request's own number, `{now}` the monotonic clock in nanoseconds, `{sha}` the script's digest.

use unslow_resp::write_header;

use crate::error::TemplateError;

/// Digits of a key's number, of a sequence number and of the clock: fixed, so that lengths are known beforehand.
const KEY_DIGITS: usize = 12;
const LONG_DIGITS: usize = 20;

/// What stands in for the holes of one request.
#[derive(Clone, Copy)]
pub struct Fill<'a> {
    /// The key's number.
    pub key: u64,
    /// The value.
    pub value: &'a [u8],
    /// The request's number.
    pub seq: u64,
    /// Nanoseconds of the monotonic clock.
    pub now: u64,
}

/// A compiled command.
#[derive(Clone, Debug)]
pub struct Template {
    ops: Vec<Op>,
    words: Vec<Vec<Piece>>,
}

#[derive(Clone, Debug)]
enum Op {
    Bytes(Vec<u8>),
    Key,
    Value,
    Seq,
    Now,
    /// `$N\r\n` of an argument with a value in it: N is this and the value's length, so many times.
    Length {
        fixed: usize,
        values: usize,
    },
}

type Piece = unslow_template::Piece<Placeholder>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Placeholder {
    Key,
    Value,
    Seq,
    Now,
}

impl Template {
    /// Compiles `text`; `sha` stands for `{sha}`.
    pub fn parse(text: &str, sha: Option<&str>) -> Result<Template, TemplateError> {
        let words = unslow_template::split(text)?;
        let pieces = |word: &unslow_template::Word| word.pieces(|name| placeholder(name, sha));
        let words = words.iter().map(pieces).collect::<Result<Vec<_>, TemplateError>>()?;
        if !matches!(&words[0][..], [Piece::Text(_)]) {
            return Err(TemplateError::NoName(text.into()));
        }
        Ok(Template::of(words))
    }

    fn of(words: Vec<Vec<Piece>>) -> Template {
        let mut ops = Vec::new();
        push_bytes(&mut ops, format!("*{}\r\n", words.len()).as_bytes());
        for word in &words {
            let fixed: usize = word.iter().map(fixed_len).sum();
            let values = word.iter().filter(|p| **p == Piece::Placeholder(Placeholder::Value)).count();
            if values == 0 {
                push_bytes(&mut ops, format!("${fixed}\r\n").as_bytes());
            } else {
                ops.push(Op::Length { fixed, values });
            }
            for piece in word {
                match piece {
                    Piece::Text(text) => push_bytes(&mut ops, text),
                    Piece::Placeholder(Placeholder::Key) => ops.push(Op::Key),
                    Piece::Placeholder(Placeholder::Value) => ops.push(Op::Value),
                    Piece::Placeholder(Placeholder::Seq) => ops.push(Op::Seq),
                    Piece::Placeholder(Placeholder::Now) => ops.push(Op::Now),
                }
            }
            push_bytes(&mut ops, b"\r\n");
        }
        Template { ops, words }
    }

    /// The command that removes the key which is this argument; `None` where its name does not follow from the key's
    /// number alone.
    pub fn unlink(&self, at: usize) -> Option<Template> {
        let key = self.words.get(at)?;
        let is_known = |piece: &Piece| matches!(piece, Piece::Text(_) | Piece::Placeholder(Placeholder::Key));
        key.iter().all(is_known).then(|| Template::of(vec![vec![Piece::Text(b"UNLINK".to_vec())], key.clone()]))
    }

    /// Whether an argument always begins with these bytes.
    pub fn begins(&self, at: usize, with: &[u8]) -> bool {
        matches!(self.words.get(at).and_then(|word| word.first()), Some(Piece::Text(text)) if text.starts_with(with))
    }

    /// Whether there is a `{key}` in it.
    pub fn has_key(&self) -> bool {
        self.words.iter().flatten().any(|piece| *piece == Piece::Placeholder(Placeholder::Key))
    }

    /// Appends the command's bytes.
    #[inline]
    pub fn render(&self, out: &mut Vec<u8>, fill: &Fill) {
        for op in &self.ops {
            match op {
                Op::Bytes(bytes) => out.extend_from_slice(bytes),
                Op::Key => digits::<KEY_DIGITS>(out, fill.key),
                Op::Value => out.extend_from_slice(fill.value),
                Op::Seq => digits::<LONG_DIGITS>(out, fill.seq),
                Op::Now => digits::<LONG_DIGITS>(out, fill.now),
                Op::Length { fixed, values } => {
                    write_header(out, b'$', fixed + values * fill.value.len());
                }
            }
        }
    }

    /// Appends one argument alone, as for the slot of a key.
    pub fn argument(&self, at: usize, out: &mut Vec<u8>, fill: &Fill) {
        for piece in self.words.get(at).into_iter().flatten() {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Placeholder(Placeholder::Key) => digits::<KEY_DIGITS>(out, fill.key),
                Piece::Placeholder(Placeholder::Value) => out.extend_from_slice(fill.value),
                Piece::Placeholder(Placeholder::Seq) => digits::<LONG_DIGITS>(out, fill.seq),
                Piece::Placeholder(Placeholder::Now) => digits::<LONG_DIGITS>(out, fill.now),
            }
        }
    }

    /// The command's name, in upper case.
    pub fn name(&self) -> String {
        match &self.words[0][..] {
            [Piece::Text(text)] => String::from_utf8_lossy(text).to_uppercase(),
            _ => String::new(),
        }
    }

    /// Number of arguments, the name included.
    pub fn arguments(&self) -> usize {
        self.words.len()
    }

    /// The whole as plain words, for asking the server about it.
    pub fn sample(&self, fill: &Fill) -> Vec<Vec<u8>> {
        (0..self.words.len())
            .map(|i| {
                let mut word = Vec::new();
                self.argument(i, &mut word, fill);
                word
            })
            .collect()
    }
}

/// Bytes that a piece always has; a value adds its own.
fn fixed_len(piece: &Piece) -> usize {
    match piece {
        Piece::Text(text) => text.len(),
        Piece::Placeholder(Placeholder::Key) => KEY_DIGITS,
        Piece::Placeholder(Placeholder::Seq | Placeholder::Now) => LONG_DIGITS,
        Piece::Placeholder(Placeholder::Value) => 0,
    }
}

fn push_bytes(ops: &mut Vec<Op>, bytes: &[u8]) {
    match ops.last_mut() {
        Some(Op::Bytes(last)) => last.extend_from_slice(bytes),
        _ => ops.push(Op::Bytes(bytes.to_vec())),
    }
}

/// A fixed number of digits, zeros in front; two at a time, since this is on the path of every request.
#[inline]
fn digits<const N: usize>(out: &mut Vec<u8>, mut n: u64) {
    const PAIRS: [[u8; 2]; 100] = {
        let mut pairs = [[0u8; 2]; 100];
        let mut i = 0;
        while i < 100 {
            pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
            i += 1;
        }
        pairs
    };
    let mut text = [b'0'; N];
    let mut at = N;
    while at >= 2 && n > 0 {
        at -= 2;
        text[at..at + 2].copy_from_slice(&PAIRS[(n % 100) as usize]);
        n /= 100;
    }
    out.extend_from_slice(&text);
}

fn placeholder(name: &str, sha: Option<&str>) -> Result<Piece, TemplateError> {
    Ok(Piece::Placeholder(match name {
        "key" => Placeholder::Key,
        "value" => Placeholder::Value,
        "seq" => Placeholder::Seq,
        "now" => Placeholder::Now,
        "sha" => return Ok(Piece::Text(sha.ok_or(TemplateError::NoScript)?.into())),
        other => return Err(TemplateError::UnknownPlaceholder(other.into())),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(template: &str) -> String {
        let mut out = Vec::new();
        let fill = Fill { key: 42, value: b"abc", seq: 7, now: 9 };
        Template::parse(template, Some("5ha")).unwrap().render(&mut out, &fill);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn renders_what_a_client_would_write() {
        assert_eq!(
            rendered("HSET user:{key} f '{value}'"),
            "*4\r\n$4\r\nHSET\r\n$17\r\nuser:000000000042\r\n$1\r\nf\r\n$3\r\nabc\r\n"
        );
        assert_eq!(rendered("GET {{{key}}}:x"), "*2\r\n$3\r\nGET\r\n$16\r\n{000000000042}:x\r\n");
        assert_eq!(rendered("SET k <{value}{value}>"), "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$8\r\n<abcabc>\r\n");
        assert_eq!(
            rendered(r#"EVALSHA {sha} 0 "a\x41\n\"" ''"#),
            "*5\r\n$7\r\nEVALSHA\r\n$3\r\n5ha\r\n$1\r\n0\r\n$4\r\naA\n\"\r\n$0\r\n\r\n"
        );
        assert_eq!(rendered("ECHO {seq}"), "*2\r\n$4\r\nECHO\r\n$20\r\n00000000000000000007\r\n");
    }

    #[test]
    fn says_what_is_wrong_with_a_template() {
        let refused = |template: &str| Template::parse(template, None).unwrap_err();
        for (template, error) in [
            ("", TemplateError::Empty),
            ("GET {kee}", TemplateError::UnknownPlaceholder("kee".into())),
            ("GET {key", TemplateError::OpenBrace("{key".into())),
            ("GET {key}}", TemplateError::LoneBrace("{key}}".into())),
            ("{key} a", TemplateError::NoName("{key} a".into())),
            ("EVALSHA {sha} 0", TemplateError::NoScript),
        ] {
            assert_eq!(refused(template), error, "{template}");
        }
        let open = refused("GET 'a");
        assert!(matches!(open, TemplateError::Words(_)) && open.to_string().contains("quote"), "{open}");
    }
}
