//! The syntax of command templates such as `HSET user:{key} f {value}`, shared by the load generator and the sink.
//!
//! A line is split into words as redis-cli does (quotes, `\xHH`), and each word into text and placeholders in braces.
//! `{{` and `}}` are plain braces, so `{{{key}}}` is a hash tag. Which placeholders there are, and how they are
//! rendered, is up to the caller: rendering is on the path of every request, and each product has its own renderer.
#![forbid(unsafe_code)]

use unslow_resp::{WordsError, split_words};

/// Why a template cannot be read. It has no `Display`: the caller prints it together with its own placeholders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// There are no words.
    Empty,
    /// The line cannot be split into words.
    Words(WordsError),
    /// A `{` without its `}`, in this word.
    Unclosed(String),
    /// A `}` without its `{`, in this word.
    Unopened(String),
    /// A placeholder's name is not UTF-8; this is as much of it as can be shown.
    NotText(String),
}

/// A part of a word; `P` is the caller's kind of placeholder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece<P> {
    Text(Vec<u8>),
    Placeholder(P),
}

/// A word of a template, after its quotes are removed and before its braces are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word(Vec<u8>);

/// Splits a template into its words. There is at least one.
pub fn split(line: &str) -> Result<Vec<Word>, Error> {
    let words = split_words(line).map_err(Error::Words)?;
    if words.is_empty() {
        return Err(Error::Empty);
    }
    Ok(words.into_iter().map(Word).collect())
}

impl Word {
    /// The name of the placeholder, if the word is one placeholder and nothing else.
    pub fn placeholder(&self) -> Option<&str> {
        let name = self.0.strip_prefix(b"{")?.strip_suffix(b"}")?;
        let plain = name.starts_with(b"{") || name.contains(&b'}');
        if plain { None } else { std::str::from_utf8(name).ok() }
    }

    /// Cuts the word into text and placeholders. `placeholder` gets each name, and returns what it means; text that it
    /// returns becomes a part of the text around it. A word without placeholders is exactly one text, even if empty.
    pub fn pieces<P, E: From<Error>>(
        &self,
        mut placeholder: impl FnMut(&str) -> Result<Piece<P>, E>,
    ) -> Result<Vec<Piece<P>>, E> {
        let mut pieces = Vec::new();
        let mut text = Vec::new();
        let mut rest = &self.0[..];
        while let Some((&byte, after)) = rest.split_first() {
            match byte {
                b'{' | b'}' if after.first() == Some(&byte) => {
                    text.push(byte);
                    rest = &after[1..];
                }
                b'}' => return Err(Error::Unopened(shown(&self.0)).into()),
                b'{' => {
                    let end = after.iter().position(|b| *b == b'}');
                    let end = end.ok_or_else(|| Error::Unclosed(shown(&self.0)))?;
                    let (name, closed) = after.split_at(end);
                    let name = std::str::from_utf8(name).map_err(|_| Error::NotText(shown(name)))?;
                    match placeholder(name)? {
                        Piece::Text(more) => text.extend_from_slice(&more),
                        piece => {
                            if !text.is_empty() {
                                pieces.push(Piece::Text(std::mem::take(&mut text)));
                            }
                            pieces.push(piece);
                        }
                    }
                    rest = &closed[1..];
                }
                _ => {
                    text.push(byte);
                    rest = after;
                }
            }
        }
        if !text.is_empty() || pieces.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Ok(pieces)
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The pieces of a line's words, each word as one string: placeholders in angle brackets, `{up}` as the text "UP".
    fn read(line: &str) -> Result<Vec<String>, Error> {
        let piece = |name: &str| match name {
            "up" => Ok(Piece::Text(b"UP".into())),
            name => Ok(Piece::Placeholder(name.to_string())),
        };
        let written = |pieces: Vec<Piece<String>>| {
            let one = |piece| match piece {
                Piece::Text(text) => format!("{:?}", String::from_utf8_lossy(&text)),
                Piece::Placeholder(name) => format!("<{name}>"),
            };
            pieces.into_iter().map(one).collect::<String>()
        };
        split(line)?.iter().map(|word| word.pieces::<_, Error>(piece).map(written)).collect()
    }

    #[test]
    fn words_are_cut_into_text_and_placeholders() {
        for (line, words) in [
            ("GET k", &[r#""GET""#, r#""k""#][..]),
            ("SET a{b}c{d}{e} ''", &[r#""SET""#, r#""a"<b>"c"<d><e>"#, r#""""#]),
            ("{{{k}}}:{{}} {}", &[r#""{"<k>"}:{}""#, "<>"]),
            ("{a{b}", &["<a{b>"]),
            ("a{up}b{up}{c}{up}", &[r#""aUPbUP"<c>"UP""#]),
            (r#""{a b}\x7b\x7b\"" '{{'"#, &[r#"<a b>"{\"""#, r#""{""#]),
        ] {
            assert_eq!(read(line).unwrap(), words, "{line}");
        }
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_word() {
        for (line, error) in [
            ("  ", Error::Empty),
            ("GET 'k", Error::Words(WordsError::OpenQuote("GET 'k".into()))),
            ("GET x{k", Error::Unclosed("x{k".into())),
            ("GET {{{k", Error::Unclosed("{{{k".into())),
            ("GET {k}}", Error::Unopened("{k}}".into())),
            ("GET k}", Error::Unopened("k}".into())),
            (r#"GET "{\xff}""#, Error::NotText("\u{fffd}".into())),
        ] {
            assert_eq!(read(line).unwrap_err(), error, "{line}");
        }
    }

    #[test]
    fn a_word_is_one_placeholder_only_if_nothing_else_is_in_it() {
        for (line, name) in [
            ("{k}", Some("k")),
            ("{}", Some("")),
            ("{a{b}", Some("a{b")),
            ("x{k}", None),
            ("{k}x", None),
            ("{k}{l}", None),
            ("{{k}}", None),
            ("{{{k}}}", None),
            ("{k", None),
            ("{", None),
            ("''", None),
            (r#""{\xff}""#, None),
        ] {
            assert_eq!(split(line).unwrap()[0].placeholder(), name, "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_text_with_its_braces_doubled_is_plain(text in "(\\PC|[{}]){0,20}") {
            let line = unslow_resp::quote_words([text.replace('{', "{{").replace('}', "}}").as_bytes()]);
            let words = split(&line).unwrap();
            let pieces = words[0].pieces(|_| Err::<Piece<()>, _>(Error::Empty));
            prop_assert_eq!(pieces, Ok(vec![Piece::Text(text.into_bytes())]));
        }

        #[test]
        fn a_word_that_is_one_placeholder_has_one_piece(line in "[a{}]{1,8}") {
            let word = &split(&line).unwrap()[0];
            let pieces = word.pieces(|name| Ok::<_, Error>(Piece::Placeholder(name.to_string())));
            let alone = match &pieces {
                Ok(pieces) => match &pieces[..] {
                    [Piece::Placeholder(name)] => Some(name.as_str()),
                    _ => None,
                },
                Err(_) => None,
            };
            prop_assert_eq!(word.placeholder(), alone);
        }
    }
}
