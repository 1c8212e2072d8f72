//! Commands as people write them: what redis-cli reads, and MONITOR prints.

/// Why a line cannot be split; with its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WordsError {
    /// A quote is opened and not closed.
    OpenQuote(String),
    /// A closing quote is not followed by a blank.
    NoBlank(String),
}

impl std::fmt::Display for WordsError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            WordsError::OpenQuote(line) => write!(f, "a quote is not closed in {line:?}"),
            WordsError::NoBlank(line) => write!(f, "a blank is missing behind a closing quote in {line:?}"),
        }
    }
}

impl std::error::Error for WordsError {}

/// Splits a line as redis-cli and MONITOR write it: blanks between words, `"..."` with escapes, `'...'` without.
pub fn split_words(line: &str) -> Result<Vec<Vec<u8>>, WordsError> {
    let mut words = Vec::new();
    let mut bytes = line.bytes().peekable();
    loop {
        while bytes.next_if(|b| b.is_ascii_whitespace()).is_some() {}
        let Some(&first) = bytes.peek() else { return Ok(words) };
        let mut word = Vec::new();
        match first {
            quote @ (b'"' | b'\'') => {
                bytes.next();
                loop {
                    match bytes.next() {
                        None => return Err(WordsError::OpenQuote(shorten(line))),
                        Some(b) if b == quote => break,
                        Some(b'\\') if quote == b'"' => word.push(escape(&mut bytes)),
                        Some(b'\\') if bytes.peek() == Some(&b'\'') => {
                            bytes.next();
                            word.push(b'\'');
                        }
                        Some(b) => word.push(b),
                    }
                }
                if bytes.peek().is_some_and(|b| !b.is_ascii_whitespace()) {
                    return Err(WordsError::NoBlank(shorten(line)));
                }
            }
            _ => {
                while let Some(b) = bytes.next_if(|b| !b.is_ascii_whitespace()) {
                    word.push(b);
                }
            }
        }
        words.push(word);
    }
}

fn shorten(line: &str) -> String {
    line.chars().take(60).collect()
}

fn escape(bytes: &mut std::iter::Peekable<std::str::Bytes<'_>>) -> u8 {
    match bytes.next() {
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'a') => 7,
        Some(b'b') => 8,
        Some(b'x') => {
            let mut n = 0u8;
            for _ in 0..2 {
                if let Some(digit) = bytes.next_if(u8::is_ascii_hexdigit) {
                    n = n << 4 | (digit as char).to_digit(16).unwrap_or(0) as u8;
                }
            }
            n
        }
        Some(other) => other,
        None => b'\\',
    }
}

/// Writes arguments so that redis-cli, and [`split_words`], read the same again.
///
/// ```
/// assert_eq!(unslow_resp::quote_words([&b"SET"[..], b"a key", b"\x00"]), r#"SET "a key" "\x00""#);
/// ```
pub fn quote_words<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut line = String::new();
    for word in words {
        if !line.is_empty() {
            line.push(' ');
        }
        let plain = |c: &char| c.is_alphanumeric() || "-_.:/{}@+*=,%#!?$()[]<>|~^&;".contains(*c);
        match std::str::from_utf8(word) {
            Ok(text) if !text.is_empty() && text.chars().all(|c| plain(&c)) => line.push_str(text),
            _ => {
                line.push('"');
                for &b in word {
                    match b {
                        b'"' | b'\\' => line.extend(['\\', b as char]),
                        b'\n' => line.push_str("\\n"),
                        b'\r' => line.push_str("\\r"),
                        b'\t' => line.push_str("\\t"),
                        b' '..=b'~' => line.push(b as char),
                        _ => line.push_str(&format!("\\x{b:02x}")),
                    }
                }
                line.push('"');
            }
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_quoted_is_read_again() {
        for words in [&[&b"SET"[..], b"k", b""][..], &[b"a b", b"\"\\'", b"\0\xff\n\t", "\u{e9}".as_bytes()]] {
            let line = quote_words(words.iter().copied());
            assert_eq!(split_words(&line).unwrap(), words.iter().map(|w| w.to_vec()).collect::<Vec<_>>(), "{line}");
        }
    }
}
