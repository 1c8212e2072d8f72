//! Command templates: `HSET user:{id} {fields...}`, compiled once and rendered for every message.
//!
//! The syntax is that of [`unslow_template`]. In braces is what the message fills in:
//!
//! | written | is |
//! |---|---|
//! | `{id}`, `{user.name}`, `{items.0}` | a member of the message; strings without quotes, numbers as they were written, anything nested as JSON |
//! | `{score\|0}` | the same, or `0` where it is missing or null |
//! | `{fields...}` | every member of the message and its value, as two arguments each; nulls are left out |
//! | `{fields...!id,kind}` | the same without these |
//! | `{user...}`, `{tags...}` | the members of an object, or the elements of an array, inside the message |
//! | `{$key}` `{$value}` `{$topic}` `{$partition}` `{$offset}` `{$time_ms}` `{$header.NAME}` | the message itself |

use unslow_resp::write_header;

use crate::document::{Document, NoMember, Path};
use crate::poison::{Poison, TooLong};
use crate::record::Message;

/// The servers' own limit for one argument (`proto-max-bulk-len`).
pub const ARGUMENT_BYTES_MAX: usize = 512 << 20;

/// Why a template cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A quote is not closed, or something follows it at once.
    #[error("{0}")]
    Words(String),
    /// There are no words.
    #[error("the command is empty")]
    Empty,
    /// The first word is filled in from the message.
    #[error("a command's name stands in the mapping itself, not in the message")]
    Name,
    /// A `}` by itself, in this word.
    #[error("a }} without its {{ in {0:?}; a plain brace is written }}}}")]
    Unopened(String),
    /// A `{` without its `}`, in this word.
    #[error("a {{ is not closed in {0:?}; a plain brace is written {{{{")]
    Unclosed(String),
    /// What stands in braces is not UTF-8.
    #[error("a placeholder is no text")]
    Placeholder,
    /// `...` as a part of a word.
    #[error("{{{0}}} stands alone: it becomes several arguments")]
    NotAlone(String),
    /// Something other than `!names` follows `...`.
    #[error("{{{0}}}: behind ... may stand ! and the names to leave out")]
    Except(String),
    /// Not the path of a member.
    #[error(transparent)]
    Member(#[from] NoMember),
    /// `{$NAME}` with a name that is not known.
    #[error(
        "no {{${0}}}; there are {{$key}}, {{$value}}, {{$topic}}, {{$partition}}, {{$offset}}, {{$time_ms}} and \
         {{$header.NAME}}"
    )]
    Meta(String),
    /// A word that no server takes.
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

impl From<unslow_template::Error> for TemplateError {
    fn from(error: unslow_template::Error) -> TemplateError {
        use unslow_template::Error;
        match error {
            Error::Empty => TemplateError::Empty,
            Error::Words(why) => TemplateError::Words(why.to_string()),
            Error::Unclosed(word) => TemplateError::Unclosed(word),
            Error::Unopened(word) => TemplateError::Unopened(word),
            Error::NotText(_) => TemplateError::Placeholder,
        }
    }
}

/// A compiled command.
#[derive(Clone, Debug)]
pub struct Template {
    words: Vec<Word>,
    /// Index of the first key among the arguments; the name is 0.
    pub key: Option<usize>,
    /// Arguments beside those that `...` brings.
    fixed: usize,
}

#[derive(Clone, Debug)]
enum Word {
    /// The same for every message, with its header.
    Constant {
        encoded: Vec<u8>,
        bare: Vec<u8>,
    },
    Pieces(Vec<Piece>),
    Members {
        path: Option<Path>,
        except: Vec<String>,
    },
}

type Piece = unslow_template::Piece<Placeholder>;

#[derive(Clone, Debug, PartialEq)]
enum Placeholder {
    Member { path: Path, or: Option<Vec<u8>> },
    Meta(Meta),
}

#[derive(Clone, Debug, PartialEq)]
enum Meta {
    Key,
    Value,
    Topic,
    Partition,
    Offset,
    TimeMs,
    Header(String),
}

/// What rendering a command needs beside the message.
#[derive(Default)]
pub struct Scratch {
    word: Vec<u8>,
}

impl Template {
    /// Compiles `text`.
    pub fn parse(text: &str) -> Result<Template, TemplateError> {
        let words = unslow_template::split(text)?;
        let words = words.iter().map(parse_word).collect::<Result<Vec<_>, _>>()?;
        if !matches!(words[0], Word::Constant { .. }) {
            return Err(TemplateError::Name);
        }
        let fixed = words.iter().filter(|w| !matches!(w, Word::Members { .. })).count();
        Ok(Template { words, key: None, fixed })
    }

    /// The words as far as they are the same for every message; what is not is empty. `None` behind the first `...`.
    pub fn constants(&self) -> impl Iterator<Item = Option<&[u8]>> {
        self.words.iter().take_while(|w| !matches!(w, Word::Members { .. })).map(|w| match w {
            Word::Constant { bare, .. } => Some(&bare[..]),
            _ => None,
        })
    }

    /// Fewest arguments it renders, and whether there may be more.
    pub fn arguments(&self) -> (usize, bool) {
        let open = self.words.len() > self.fixed;
        // An expansion that brings nothing is refused when it happens.
        (self.fixed + usize::from(open), open)
    }

    /// Whether it looks into the message, beyond its key and its bytes.
    pub fn needs_document(&self) -> bool {
        self.words.iter().any(|w| match w {
            Word::Constant { .. } => false,
            Word::Members { .. } => true,
            Word::Pieces(pieces) => pieces.iter().any(|p| matches!(p, Piece::Placeholder(Placeholder::Member { .. }))),
        })
    }

    /// Whether it has a message's headers in it.
    pub fn needs_headers(&self) -> bool {
        self.words.iter().any(|w| match w {
            Word::Pieces(pieces) => {
                pieces.iter().any(|p| matches!(p, Piece::Placeholder(Placeholder::Meta(Meta::Header(_)))))
            }
            Word::Constant { .. } | Word::Members { .. } => false,
        })
    }

    /// Appends the command. Returns where in `out` its key stands, if it has one. On an error `out` may have a part of
    /// the command.
    pub fn render(
        &self,
        out: &mut Vec<u8>,
        message: &Message<'_>,
        document: &Document<'_>,
        scratch: &mut Scratch,
    ) -> Result<Option<(usize, usize)>, Poison> {
        let mut count = self.fixed;
        if count < self.words.len() {
            for word in &self.words {
                let Word::Members { path, except } = word else { continue };
                let mut brought = 0;
                document.members(path.as_ref(), |name, _| {
                    brought += match name {
                        Some(name) if except.iter().any(|e| e == name) => 0,
                        Some(_) => 2,
                        None => 1,
                    };
                    Ok(())
                })?;
                if brought == 0 {
                    return Err(match path {
                        Some(path) => Poison::Empty { path: path.to_string() },
                        None => Poison::NoMembers,
                    });
                }
                count += brought;
            }
        }
        write_header(out, b'*', count);
        let mut key = None;
        for (i, word) in self.words.iter().enumerate() {
            let from = out.len();
            match word {
                Word::Constant { encoded, .. } => out.extend_from_slice(encoded),
                Word::Pieces(pieces) => {
                    if let [Piece::Placeholder(Placeholder::Member { path, or: None })] = &pieces[..]
                        && let Some(plain) = document.plain(path)
                    {
                        bulk(out, plain)?;
                    } else {
                        scratch.word.clear();
                        for piece in pieces {
                            match piece {
                                Piece::Text(text) => scratch.word.extend_from_slice(text),
                                Piece::Placeholder(p) => p.render(&mut scratch.word, message, document)?,
                            }
                        }
                        bulk(out, &scratch.word)?;
                    }
                }
                Word::Members { path, except } => document.members(path.as_ref(), |name, field| {
                    if let Some(name) = name {
                        if except.iter().any(|e| e == name) {
                            return Ok(());
                        }
                        bulk(out, name.as_bytes())?;
                    }
                    match field.plain() {
                        Some(plain) => bulk(out, plain)?,
                        None => {
                            scratch.word.clear();
                            field.write(&mut scratch.word)?;
                            bulk(out, &scratch.word)?;
                        }
                    }
                    Ok(())
                })?,
            }
            if self.key == Some(i) {
                // "$N CR LF ... CR LF"
                let head = out[from..].iter().position(|b| *b == b'\n').map_or(0, |n| n + 1);
                key = Some((from + head, out.len() - 2));
            }
        }
        Ok(key)
    }
}

fn bulk(out: &mut Vec<u8>, text: &[u8]) -> Result<(), TooLong> {
    if text.len() > ARGUMENT_BYTES_MAX {
        return Err(TooLong(text.len()));
    }
    write_header(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
    Ok(())
}

impl Placeholder {
    fn render(&self, out: &mut Vec<u8>, message: &Message<'_>, document: &Document<'_>) -> Result<(), Poison> {
        match self {
            Placeholder::Member { path, or } => match (document.find(path), or) {
                (Some(field), _) => field.write(out)?,
                (None, Some(or)) => out.extend_from_slice(or),
                (None, None) => return Err(Poison::Missing { path: path.to_string() }),
            },
            Placeholder::Meta(meta) => match meta {
                Meta::Key => out.extend_from_slice(message.key.ok_or(Poison::NoKey)?),
                Meta::Value => out.extend_from_slice(message.value.ok_or(Poison::NoValue)?),
                Meta::Topic => out.extend_from_slice(message.topic.as_bytes()),
                Meta::Partition => out.extend_from_slice(message.partition.to_string().as_bytes()),
                Meta::Offset => out.extend_from_slice(message.offset.to_string().as_bytes()),
                Meta::TimeMs => out.extend_from_slice(message.time_ms.to_string().as_bytes()),
                Meta::Header(name) => {
                    let header = message.headers.iter().rev().find(|(n, _)| n == name);
                    out.extend_from_slice(header.ok_or_else(|| Poison::NoHeader(name.clone()))?.1);
                }
            },
        }
        Ok(())
    }
}

fn parse_word(word: &unslow_template::Word) -> Result<Word, TemplateError> {
    if let Some(inside) = word.placeholder()
        && let Some((path, except)) = inside.split_once("...")
    {
        let path = match path {
            "fields" => None,
            path => Some(Path::parse(path)?),
        };
        let except = match except.strip_prefix('!') {
            Some(names) => names.split(',').map(str::to_string).collect(),
            None if except.is_empty() => Vec::new(),
            None => return Err(TemplateError::Except(inside.to_string())),
        };
        return Ok(Word::Members { path, except });
    }
    let mut pieces = word.pieces(placeholder)?;
    if let [Piece::Text(text)] = &mut pieces[..] {
        let bare = std::mem::take(text);
        let mut encoded = Vec::new();
        bulk(&mut encoded, &bare)?;
        return Ok(Word::Constant { encoded, bare });
    }
    Ok(Word::Pieces(pieces))
}

fn placeholder(name: &str) -> Result<Piece, TemplateError> {
    if name.contains("...") {
        return Err(TemplateError::NotAlone(name.to_string()));
    }
    Ok(Piece::Placeholder(match name.strip_prefix('$') {
        Some(meta) => Placeholder::Meta(parse_meta(meta)?),
        None => {
            let (path, or) = name.split_once('|').map_or((name, None), |(p, or)| (p, Some(or)));
            Placeholder::Member { path: Path::parse(path)?, or: or.map(|or| or.as_bytes().to_vec()) }
        }
    }))
}

fn parse_meta(name: &str) -> Result<Meta, TemplateError> {
    Ok(match name {
        "key" => Meta::Key,
        "value" => Meta::Value,
        "topic" => Meta::Topic,
        "partition" => Meta::Partition,
        "offset" => Meta::Offset,
        "time_ms" => Meta::TimeMs,
        _ => match name.strip_prefix("header.") {
            Some(header) if !header.is_empty() => Meta::Header(header.into()),
            _ => return Err(TemplateError::Meta(name.to_string())),
        },
    })
}

#[cfg(test)]
mod tests {
    use std::mem::discriminant;

    use proptest::prelude::*;
    use unslow_resp::{Frame, Scan, Scanner, quote_words};

    use super::*;
    use crate::document::Format;
    use crate::record::Offset;

    fn render(template: &str, value: &str, format: Format) -> Result<String, Poison> {
        let message = Message {
            topic: "t",
            partition: 3,
            offset: Offset(0, 9),
            time_ms: 5,
            key: Some(b"key"),
            value: Some(value.as_bytes()),
            headers: vec![("h", b"1"), ("h", b"2")],
        };
        let document = Document::open(value.as_bytes(), format)?;
        let mut template = Template::parse(template).unwrap();
        template.key = Some(1);
        let mut out = b"before".to_vec();
        let key = template.render(&mut out, &message, &document, &mut Scratch::default())?;
        let Ok(Scan::Complete(len)) = Scanner::default().scan(&out[6..]) else { panic!("no whole command: {out:?}") };
        assert_eq!(len, out.len() - 6, "one command and nothing else");
        let words: Vec<&[u8]> = Frame::new(&out[6..]).items().map(|f| f.text()).collect();
        if let (Some((a, b)), Some(word)) = (key, words.get(1)) {
            assert_eq!(&out[a..b], *word, "the key is where it was said to be");
        }
        Ok(quote_words(words))
    }

    #[test]
    fn headers_are_needed_where_they_are_rendered_and_not_where_the_text_looks_like_one() {
        for (template, needed) in [
            ("SET {$key} {$header.h}", true),
            ("SET {$key} a{$header.h}b", true),
            ("SET {$key} {{$header.h}}", false),
            ("SET $header.h {$value}", false),
        ] {
            assert_eq!(Template::parse(template).unwrap().needs_headers(), needed, "{template}");
        }
    }

    #[test]
    fn fills_in_what_the_message_has() {
        let value = r#"{"id": 7, "s": "a\"b\u00e9", "f": 1.50, "big": 18446744073709551616, "t": true, "n": null,
            "o": {"x": 1, "y": {"z": "deep"}}, "l": ["p", 2, null], "id": 8}"#;
        for (template, expected) in [
            ("SET k:{id} {s}", r#"SET k:8 "a\"b\xc3\xa9""#),
            ("SET {f}{big}{t} {n|none}", "SET 1.5018446744073709551616true none"),
            ("SET {o.y.z} {o}", r#"SET deep "{\"x\": 1, \"y\": {\"z\": \"deep\"}}""#),
            ("SADD {l.0} {l...}", "SADD p p 2"),
            ("HSET {{a}} {o...!y}", "HSET {a} x 1"),
            ("HSET k {fields...!s,o,l,big}", "HSET k id 7 f 1.50 t true id 8"),
            ("SET {$key}/{$topic}/{$partition}/{$offset}/{$time_ms} {$header.h}", "SET key/t/3/9/5 2"),
            ("ECHO ''", "ECHO \"\""),
        ] {
            assert_eq!(render(template, value, Format::Json).unwrap(), expected, "{template}");
        }
        assert_eq!(render("SET k {$value}", "\u{1}x", Format::Raw).unwrap(), r#"SET k "\x01x""#);
    }

    #[test]
    fn says_what_a_message_lacks() {
        let (path, why) = (String::new, String::new);
        for (template, value, kind, words) in [
            ("SET {a} 1", "{}", Poison::Missing { path: path() }, "there is no \"a\" in it, or it is null"),
            ("SET {a.b} 1", r#"{"a": 3}"#, Poison::Missing { path: path() }, "no \"a.b\""),
            ("HSET k {fields...!a}", r#"{"a": 3}"#, Poison::NoMembers, "the message has no members"),
            ("HSET k {a...}", r#"{"a": {}}"#, Poison::Empty { path: path() }, "\"a\" has no members"),
            ("HSET k {a...}", r#"{"a": 3}"#, Poison::Flat { path: path() }, "\"a\" is neither an object nor an array"),
            ("SET k 1", "[1]", Poison::Json { why: why() }, "no JSON object: "),
            ("SET {a} 1", r#"{"a": "\ud800"}"#, Poison::Text { why: why() }, "a string: "),
            ("SET k {$header.x}", "{}", Poison::NoHeader(String::new()), "the message has no header \"x\""),
        ] {
            let error = render(template, value, Format::Json).unwrap_err();
            assert_eq!(discriminant(&error), discriminant(&kind), "{template} {value}: {error:?}");
            assert!(error.to_string().contains(words), "{template} {value}: {error}");
        }
        assert!(render("SET k 1", r#"{"a": "\ud800"}"#, Format::Json).is_ok(), "nobody looks at it");
    }

    #[test]
    fn says_what_is_wrong_with_a_template() {
        use TemplateError::*;
        let text = str::to_string;
        for (template, kind, words) in [
            (" ", Empty, "the command is empty"),
            ("{name} k", Name, "a command's name stands in the mapping itself"),
            ("SET k a}", Unopened(text("a}")), "a } without its { in \"a}\""),
            ("SET k {a", Unclosed(text("{a")), "a { is not closed in \"{a\""),
            (r#"SET k "{\xff}""#, Placeholder, "a placeholder is no text"),
            ("SET x{fields...} v", NotAlone(text("fields...")), "{fields...} stands alone"),
            ("SET {fields...x} v", Except(text("fields...x")), "{fields...x}: behind ... may stand !"),
            ("SET k {}", Member(NoMember(text(""))), "\"\" names no member of a message"),
            ("SET {$nokey} v", Meta(text("nokey")), "no {$nokey}; there are {$key}, {$value}, "),
        ] {
            let error = Template::parse(template).unwrap_err();
            assert_eq!(error, kind, "{template}");
            assert!(error.to_string().contains(words), "{template}: {error}");
        }
        let open = Template::parse("SET 'k").unwrap_err();
        assert!(matches!(open, Words(_)), "{open:?}");
    }

    #[test]
    fn an_argument_longer_than_servers_take_is_refused() {
        let long = vec![0; ARGUMENT_BYTES_MAX + 1]; // zeroed pages, never written
        let mut out = Vec::new();
        assert_eq!(bulk(&mut out, &long), Err(TooLong(ARGUMENT_BYTES_MAX + 1)));
        assert!(out.is_empty());
        assert_eq!(Poison::from(TooLong(7)).to_string(), "an argument of 7 bytes; servers take 512 MB");
    }

    proptest! {
        #[test]
        fn whatever_a_message_is_the_command_is_whole_or_refused(value in "\\PC*", name in "[a-z]{1,3}") {
            let object = serde_json::json!({ "id": value, &name: [value.clone(), 1], "o": { &name: value } });
            let object = object.to_string();
            for template in ["SET k:{id} {id}x", "HSET k {fields...}", "HSET k {o...}"] {
                let line = render(template, &object, Format::Json).unwrap();
                prop_assert!(line.starts_with(&template[..3]));
            }
            let _ = render("SET {id} {a.b.c}", &value, Format::Json);
            let _ = render("SET {id} {a...}", &value, Format::Msgpack);
        }

        #[test]
        fn any_bytes_as_messagepack_or_json_do_not_panic(value in proptest::collection::vec(any::<u8>(), 0..64)) {
            for format in [Format::Json, Format::Msgpack] {
                if let Ok(document) = Document::open(&value, format) {
                    let _ = document.members(None, |_, field| field.write(&mut Vec::new()));
                }
            }
        }

        #[test]
        fn any_text_as_a_template_is_taken_or_refused_with_a_sentence(text in "\\PC{0,40}") {
            if let Err(why) = Template::parse(&text) {
                prop_assert!(!why.to_string().is_empty());
            }
        }
    }
}
