//! A Rust source as a flat list of tokens with their places.
//!
//! Not a syntax tree: half of the strings and paths that the checks look for are arguments of macros, and a parser such
//! as syn leaves those as tokens anyway.

use proc_macro2::{Delimiter, Group, LineColumn, TokenStream, TokenTree};

/// What a token is, as far as the checks tell them apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword.
    Word(String),
    /// One character of punctuation: `::` is two of them.
    Mark(char),
    /// A string, quotes and escapes as in the source.
    Text(String),
    /// One line of a doc comment, or all of `#[doc = "..."]`.
    Doc(String),
    /// A number, a character, a byte string.
    Value,
    /// `(`, `[` or `{`.
    Open(char),
    /// The bracket that closes an `Open`, by the character that opened it.
    Close(char),
}

/// A token and its place. Lines count from 1, columns from 0, in characters.
#[derive(Clone, Debug)]
pub struct Token {
    pub kind: Kind,
    pub line: usize,
    pub column: usize,
    pub last_line: usize,
    pub last_column: usize,
}

impl Token {
    fn new(kind: Kind, start: LineColumn, end: LineColumn) -> Token {
        let (line, column) = (start.line, start.column);
        Token { kind, line, column, last_line: end.line, last_column: end.column }
    }

    pub fn is_word(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(w) if w == word)
    }

    pub fn is_mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }

    pub fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    /// The characters a string stands for; `None` for everything that is no string of characters.
    pub fn string(&self) -> Option<String> {
        match &self.kind {
            Kind::Text(source) => value_of(source),
            _ => None,
        }
    }
}

/// Reads a source; the error says at which line it stops being Rust.
pub fn read(text: &str) -> Result<Vec<Token>, (usize, String)> {
    let stream = text.parse::<TokenStream>().map_err(|e| (e.span().start().line, e.to_string()))?;
    let mut all = Vec::new();
    flatten(stream, &mut all);
    Ok(all)
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let (start, end) = (tree.span().start(), tree.span().end());
        match tree {
            TokenTree::Punct(p) if p.as_char() == '#' => {
                // An inner attribute has an exclamation mark between `#` and `[`.
                let bang = trees.next_if(|t| matches!(t, TokenTree::Punct(p) if p.as_char() == '!'));
                let doc = trees.peek().and_then(|t| if let TokenTree::Group(g) = t { doc_of(g) } else { None });
                if let Some(doc) = doc {
                    trees.next();
                    out.push(Token::new(Kind::Doc(doc), start, end));
                    continue;
                }
                out.push(Token::new(Kind::Mark('#'), start, end));
                if let Some(bang) = bang {
                    out.push(Token::new(Kind::Mark('!'), bang.span().start(), bang.span().end()));
                }
            }
            TokenTree::Punct(p) => out.push(Token::new(Kind::Mark(p.as_char()), start, end)),
            TokenTree::Ident(word) => out.push(Token::new(Kind::Word(word.to_string()), start, end)),
            TokenTree::Literal(literal) => {
                let source = literal.to_string();
                let kind = if value_of(&source).is_some() { Kind::Text(source) } else { Kind::Value };
                out.push(Token::new(kind, start, end));
            }
            TokenTree::Group(group) => {
                let opening = match group.delimiter() {
                    Delimiter::Parenthesis => '(',
                    Delimiter::Bracket => '[',
                    Delimiter::Brace => '{',
                    Delimiter::None => {
                        flatten(group.stream(), out);
                        continue;
                    }
                };
                let (open, close) = (group.span_open(), group.span_close());
                out.push(Token::new(Kind::Open(opening), open.start(), open.end()));
                flatten(group.stream(), out);
                out.push(Token::new(Kind::Close(opening), close.start(), close.end()));
            }
        }
    }
}

/// The text of `[doc = "text"]`, which is what the lexer makes of a doc comment.
fn doc_of(group: &Group) -> Option<String> {
    let mut trees = group.stream().into_iter();
    match (trees.next(), trees.next(), trees.next(), trees.next()) {
        (Some(TokenTree::Ident(word)), Some(TokenTree::Punct(mark)), Some(TokenTree::Literal(text)), None)
            if word == "doc" && mark.as_char() == '=' =>
        {
            value_of(&text.to_string())
        }
        _ => None,
    }
}

/// What a string literal stands for.
fn value_of(source: &str) -> Option<String> {
    if let Some(inner) = source.strip_prefix('"') {
        return Some(unescaped(inner.strip_suffix('"')?));
    }
    let hashes = source.strip_prefix('r')?;
    let quoted = hashes.trim_start_matches('#');
    let end = hashes.len() - quoted.len();
    let inner = quoted.strip_prefix('"')?;
    Some(inner.get(..inner.len().checked_sub(end + 1)?)?.to_string())
}

fn unescaped(inner: &str) -> String {
    let mut out = String::with_capacity(inner.len());
    let mut rest = inner.chars().peekable();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('\n') => while rest.next_if(|c| c.is_whitespace()).is_some() {},
            Some('n') => out.push('\n'),
            Some('r') => out.push('\r'),
            Some('t') => out.push('\t'),
            Some('x') => {
                let digits: String = rest.by_ref().take(2).collect();
                out.extend(u8::from_str_radix(&digits, 16).ok().map(char::from));
            }
            Some('u') => {
                let digits: String = rest.by_ref().skip(1).take_while(|c| *c != '}').filter(|c| *c != '_').collect();
                out.extend(u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32));
            }
            Some('0') => out.push('\0'),
            other => out.extend(other),
        }
    }
    out
}

/// The index of the bracket that closes the one at `open`.
pub fn close_of(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (i, token) in tokens.iter().enumerate().skip(open) {
        match token.kind {
            Kind::Open(_) => depth += 1,
            Kind::Close(_) => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The body of an item that begins at `from`: its opening brace. `None` if it ends with a semicolon or has none.
pub fn body_of(tokens: &[Token], from: usize) -> Option<usize> {
    let mut i = from;
    while let Some(token) = tokens.get(i) {
        match token.kind {
            Kind::Open('{') => return Some(i),
            Kind::Open(_) => i = close_of(tokens, i),
            Kind::Mark(';') | Kind::Close(_) => return None,
            _ => {}
        }
        i += 1;
    }
    None
}

/// The index behind an item that begins at `from`.
fn end_of(tokens: &[Token], from: usize) -> usize {
    let mut i = from;
    while let Some(token) = tokens.get(i) {
        match token.kind {
            Kind::Open('{') => return close_of(tokens, i) + 1,
            Kind::Open(_) => i = close_of(tokens, i),
            Kind::Mark(';') => return i + 1,
            // The item was the last field of what ends here.
            Kind::Close(_) => return i,
            _ => {}
        }
        i += 1;
    }
    tokens.len()
}

/// The attribute at `at`, if it compiles its item for tests only: the index behind it.
fn test_only(tokens: &[Token], at: usize) -> Option<usize> {
    if !tokens[at].is_mark('#') || tokens.get(at + 1)?.kind != Kind::Open('[') || !tokens.get(at + 2)?.is_word("cfg") {
        return None;
    }
    let close = close_of(tokens, at + 1);
    let inside = tokens.get(at + 3..close)?;
    let has = |word| inside.iter().any(|t: &Token| t.is_word(word));
    (has("test") && !has("not")).then_some(close + 1)
}

/// The tokens of what is built for users: without items marked `#[cfg(test)]`.
pub fn without_tests(tokens: &[Token]) -> Vec<Token> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut i = 0;
    while i < tokens.len() {
        let Some(item) = test_only(tokens, i) else {
            kept.push(tokens[i].clone());
            i += 1;
            continue;
        };
        i = end_of(tokens, item);
    }
    kept
}

/// Modules in files of their own that are compiled for tests only: `#[cfg(test)] mod NAME;`.
pub fn test_modules(tokens: &[Token]) -> Vec<String> {
    let mut names = Vec::new();
    for at in 0..tokens.len() {
        let Some(item) = test_only(tokens, at) else { continue };
        let Some(module) = tokens[item..].iter().position(|t| t.is_word("mod")).filter(|n| *n < 6) else { continue };
        if let [name, end, ..] = &tokens[item + module + 1..]
            && end.is_mark(';')
        {
            names.extend(name.word().map(String::from));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        read(text).unwrap()
    }

    fn strings(tokens: &[Token]) -> Vec<String> {
        tokens.iter().filter_map(Token::string).collect()
    }

    #[test]
    fn strings_are_read_in_every_form_and_bytes_are_not() {
        let source =
            "f(\"a\\n\\\"b\\\" \\\n      c\", r\"d\\e\", r#\"f\"g\"#, b\"bytes\", '\\u{41}', \"\\x41\\u{1F4A9}\", 7)";
        assert_eq!(strings(&tokens(source)), ["a\n\"b\" c", "d\\e", "f\"g", "A\u{1F4A9}"]);
    }

    #[test]
    fn strings_inside_macros_have_their_lines() {
        let all = tokens("fn f() {\n    m!(a,\n       \"here\");\n}\n");
        let text = all.iter().find(|t| t.string().is_some()).unwrap();
        assert_eq!((text.line, text.column), (3, 7));
        assert_eq!(all.last().map(|t| t.line), Some(4));
    }

    #[test]
    fn doc_comments_are_no_strings() {
        let all = tokens("//! Head \"x\".\n\n/// Item.\nfn f() {}\n");
        let docs: Vec<(usize, &Kind)> =
            all.iter().filter(|t| matches!(t.kind, Kind::Doc(_))).map(|t| (t.line, &t.kind)).collect();
        assert_eq!(docs, [(1, &Kind::Doc(" Head \"x\".".into())), (3, &Kind::Doc(" Item.".into()))]);
        assert!(strings(&all).is_empty());
    }

    #[test]
    fn what_is_for_tests_is_left_out() {
        let source = "\
            const A: &str = \"a\";\n\
            #[cfg(test)]\nmod tests { const B: &str = \"b\"; }\n\
            #[cfg(test)]\nuse x::y;\n\
            #[cfg(test)]\nconst Z: [u8; 1] = [\"z\"];\n\
            #[cfg(not(test))]\nconst C: &str = \"c\";\n\
            #[cfg(all(test, feature = \"loom\"))]\n#[allow(dead_code)]\npub fn d() -> [u8; 2] { \"d\" }\n\
            struct S { #[cfg(test)] e: u8 }\n\
            const F: &str = \"f\";\n";
        assert_eq!(strings(&without_tests(&tokens(source))), ["a", "c", "f"]);
    }

    #[test]
    fn test_modules_in_files_are_found() {
        let source =
            "#[cfg(test)]\nmod checks;\nmod product;\n#[cfg(test)]\npub(super) mod kit;\n#[cfg(test)] mod inline {}";
        assert_eq!(test_modules(&tokens(source)), ["checks", "kit"]);
    }

    #[test]
    fn what_is_not_rust_is_refused_with_its_line() {
        assert_eq!(read("fn f() {\n    )\n}\n").map(|t| t.len()).map_err(|e| e.0), Err(2));
    }
}
