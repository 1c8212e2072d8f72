//! `unslow help TOPIC`: the pages of docs/, for a machine without a network or a checkout.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use anyhow::bail;
use unslow_units::similar;

use crate::{output, table};

/// By name, as `docs/NAME.md`.
const PAGES: &[(&str, &str)] = &[
    ("bench", include_str!("../../docs/bench.md")),
    ("bypass", include_str!("../../docs/bypass.md")),
    ("drills", include_str!("../../docs/drills.md")),
    ("faults", include_str!("../../docs/faults.md")),
    ("fleet", include_str!("../../docs/fleet.md")),
    ("gateway", include_str!("../../docs/gateway.md")),
    ("guide", include_str!("../../docs/guide.md")),
    ("json", include_str!("../../docs/json.md")),
    ("keys", include_str!("../../docs/keys.md")),
    ("lab", include_str!("../../docs/lab.md")),
    ("lettuce", include_str!("../../docs/lettuce.md")),
    ("record", include_str!("../../docs/record.md")),
    ("running", include_str!("../../docs/running.md")),
    ("security", include_str!("../../docs/security.md")),
    ("sink", include_str!("../../docs/sink.md")),
    ("top", include_str!("../../docs/top.md")),
    ("watch", include_str!("../../docs/watch.md")),
];

/// Settings with their defaults, by the names that help gives them.
const FILES: &[(&str, &str)] =
    &[("gateway.toml", include_str!("../../docs/gateway.toml")), ("sink.toml", include_str!("../../docs/sink.toml"))];

/// What a command line asks for.
pub struct Asked {
    pub page: anyhow::Result<&'static str>,
    pub topic: String,
    pub is_json: bool,
}

/// What a command line such as `unslow help docs/record.md` asks for; `None` if it asks for no page. The name of a
/// verb is left to its own help.
pub fn asked(words: &[OsString], is_verb: impl Fn(&str) -> bool) -> Option<Asked> {
    let words: Option<Vec<&str>> = words.iter().map(|word| word.to_str()).collect();
    let mut words = words?;
    let mut is_json = false;
    if let Some(at) = words.iter().position(|word| *word == "--format")
        && let Some(format) = words.get(at + 1)
    {
        // What is none is for the parser to refuse.
        is_json = json_or_text(format)?;
        words.drain(at..at + 2);
    } else if let Some(at) = words.iter().position(|word| word.starts_with("--format=")) {
        is_json = json_or_text(words.remove(at).trim_start_matches("--format="))?;
    }
    let [_, "help", topic] = words[..] else { return None };
    let is_topic = !topic.starts_with('-') && !is_verb(topic);
    is_topic.then(|| Asked { page: page(topic), topic: topic.to_string(), is_json })
}

fn json_or_text(format: &str) -> Option<bool> {
    match format {
        "json" => Some(true),
        "text" => Some(false),
        _ => None,
    }
}

fn page(topic: &str) -> anyhow::Result<&'static str> {
    let name = topic.strip_prefix("docs/").unwrap_or(topic);
    if let Some((_, text)) = FILES.iter().find(|(file, _)| *file == name) {
        return Ok(text);
    }
    let name = name.strip_suffix(".md").unwrap_or(name);
    if let Some((_, text)) = PAGES.iter().find(|(page, _)| *page == name) {
        return Ok(text);
    }
    let names = || PAGES.iter().map(|(page, _)| *page);
    let hint = similar(name, names()).first().map_or_else(String::new, |near| format!("; did you mean {near}?"));
    let names = names().collect::<Vec<&str>>().join(", ");
    bail!("no command and no page is called {topic}{hint}\nPages: {names}. Rules: unslow explain")
}

/// Prints a page: filled to the width of a terminal, elsewhere as it is in the file.
pub fn print(page: &str, topic: &str) -> ExitCode {
    if topic.ends_with(".toml") || !std::io::stdout().is_terminal() {
        return output::print_page(page);
    }
    output::print_page(&readable(page, textwrap::termwidth()))
}

/// What stands in a page.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Prose,
    Table,
    Code,
    /// Between ``` and ```.
    Fenced,
}

/// A page for a terminal of this width: paragraphs are filled, tables lined up. Code stays as it is.
pub fn readable(text: &str, width: usize) -> String {
    let (mut out, mut block, mut lines) = (String::new(), Block::Prose, Vec::new());
    let mut end = |block: Block, lines: &mut Vec<&str>| {
        out += &match block {
            _ if lines.is_empty() => String::new(),
            Block::Prose => filled(lines, width),
            Block::Table => columns(lines, width),
            Block::Code | Block::Fenced => lines.join("\n") + "\n",
        };
        lines.clear();
    };
    for line in text.lines() {
        let next = match (block, line) {
            (Block::Fenced, line) if line.trim_start().starts_with("```") => {
                lines.push(line);
                end(block, &mut lines);
                block = Block::Prose;
                continue;
            }
            (Block::Fenced, _) => Block::Fenced,
            (_, line) if line.trim_start().starts_with("```") => Block::Fenced,
            (_, line) if line.starts_with('|') => Block::Table,
            // A paragraph of a list is indented as well; a blank line is before code.
            (Block::Prose, line) if !lines.is_empty() && !line.is_empty() => Block::Prose,
            (_, line) if line.starts_with("    ") => Block::Code,
            _ => Block::Prose,
        };
        if next != block || (next == Block::Prose && line.is_empty()) {
            end(block, &mut lines);
        }
        block = next;
        if line.is_empty() && block == Block::Prose {
            end(Block::Code, &mut vec![""]);
        } else {
            lines.push(line);
        }
    }
    end(block, &mut lines);
    out
}

/// A table of Markdown.
fn columns(lines: &[&str], width: usize) -> String {
    const BAR: char = '\u{1}';
    let row = |line: &&str| {
        let line = line.replace("\\|", &BAR.to_string());
        let cells = line.trim().trim_start_matches('|').trim_end_matches('|').split('|');
        cells.map(|cell| cell.trim().replace(BAR, "|")).collect::<Vec<String>>()
    };
    let is_rule = |line: &&str| line.chars().all(|c| matches!(c, '|' | '-' | ':' | ' '));
    let rows: Vec<Vec<String>> = lines.iter().filter(|line| !is_rule(line)).map(row).collect();
    if table::fits(&rows, width) {
        return anstream::adapter::strip_str(&table::within(&rows, Some(width))).to_string();
    }
    // Too wide with all its columns: a list, a row each.
    let Some((titles, rows)) = rows.split_first() else { return String::new() };
    let named = |(title, cell): (&String, &String)| {
        let text = if title.is_empty() { cell.clone() } else { format!("{title}: {cell}") };
        let indented = textwrap::Options::new(width).break_words(false).initial_indent("  ").subsequent_indent("    ");
        textwrap::fill(&text, indented.word_splitter(textwrap::WordSplitter::NoHyphenation)) + "\n"
    };
    let shown = |row: &Vec<String>| {
        let mut cells = titles.iter().zip(row).filter(|(_, cell)| !cell.is_empty());
        // This row continues the one before.
        if row.first().is_some_and(String::is_empty) {
            return cells.map(named).collect::<String>();
        }
        let head = cells.next().map_or(String::new(), |(title, cell)| match title.as_str() {
            "" => cell.clone(),
            title => format!("{title}: {cell}"),
        });
        output::fill(&head, width) + "\n" + &cells.map(named).collect::<String>()
    };
    rows.iter().map(shown).collect()
}

/// Paragraphs and lists.
fn filled(lines: &[&str], width: usize) -> String {
    let begins = |line: &str| {
        let line = line.trim_start();
        let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
        let is_heading = line.trim_start_matches('#').starts_with(' ') && line.starts_with('#');
        is_heading
            || line.starts_with("- ")
            || line.starts_with("* ")
            || (number.len() < line.len() && number.starts_with(". "))
    };
    let mut paragraphs: Vec<String> = Vec::new();
    for line in lines {
        match paragraphs.last_mut() {
            Some(last) if !begins(line) => *last += &format!(" {}", line.trim_start()),
            _ => paragraphs.push(line.to_string()),
        }
    }
    paragraphs.iter().map(|text| output::fill(text, width) + "\n").collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn asked_of(words: &str) -> Option<Asked> {
        let words: Vec<OsString> = words.split(' ').map(Into::into).collect();
        asked(&words, |verb| verb == "record")
    }

    fn asked_for(words: &str) -> Option<anyhow::Result<&'static str>> {
        asked_of(words).map(|asked| asked.page)
    }

    #[test]
    fn a_page_may_be_asked_for_as_json() {
        for (words, is_json) in [
            ("unslow help guide", false),
            ("unslow help guide --format json", true),
            ("unslow --format=json help guide", true),
            ("unslow help --format text guide", false),
        ] {
            let asked = asked_of(words).unwrap();
            assert_eq!((asked.is_json, asked.topic.as_str(), asked.page.is_ok()), (is_json, "guide", true), "{words}");
        }
        assert!(asked_of("unslow help guide --format yaml").is_none());
    }

    #[test]
    fn a_page_fits_the_terminal_and_loses_no_word() {
        let text = "# Title\n\nOne two\nthree four.\n\n    code stays as wide as it is\n\n- a b c d\n- e\n";
        let expected = "# Title\n\nOne two\nthree\nfour.\n\n    code stays as wide as it is\n\n- a b c d\n- e\n";
        assert_eq!(readable(text, 9), expected);
        let fenced = "a\n\n```toml\nx = 1 # one\n\ny = 2\n```\n\nb c\n";
        assert_eq!(readable(fenced, 3), fenced);
        for (name, page) in PAGES {
            let shown = readable(page, 80);
            let words = |text: &str| {
                let of_table = |c: char| c == '|' || c.is_whitespace();
                let words = text.split(of_table).filter(|word| !word.trim_matches(['-', ':', '\\']).is_empty());
                words.map(|word| word.trim_end_matches(['\\', ':']).to_string()).collect::<BTreeSet<String>>()
            };
            let (all, kept) = (words(page), words(&shown));
            assert_eq!(all.difference(&kept).collect::<Vec<_>>(), [] as [&String; 0], "{name}");
            let is_code = |line: &&str| line.starts_with("    ") && !line.trim_start().starts_with(['-', '*']);
            let code = page.lines().filter(is_code).filter(|line| !shown.lines().any(|there| there == *line));
            let code: Vec<&str> = code.filter(|line| page.contains(&format!("\n\n{line}\n"))).collect();
            assert_eq!(code, [] as [&str; 0], "{name}");
            for fenced in page.split("\n```").skip(1).step_by(2) {
                assert!(shown.contains(fenced), "{name}: {fenced}");
            }
            let is_code: BTreeSet<&str> = page.lines().collect();
            let is_wide = |line: &&str| {
                !is_code.contains(line) && textwrap::core::display_width(line) > 80 && line.trim().contains(' ')
            };
            assert_eq!(shown.lines().find(is_wide), None, "{name}");
        }
        assert_eq!(readable("| a | b |\n|---|---|\n| 1 \\| 2 | 3 |\n", 80).lines().last(), Some("1 | 2  3"));
    }

    #[test]
    fn every_page_is_in_the_binary() {
        let docs = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
        let names = docs.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let pages: BTreeSet<String> = names.filter_map(|name| Some(name.strip_suffix(".md")?.to_string())).collect();
        assert_eq!(PAGES.iter().map(|(name, _)| name.to_string()).collect::<BTreeSet<String>>(), pages);
    }

    #[test]
    fn a_page_is_asked_for_by_the_name_that_errors_give() {
        for words in ["unslow help docs/record.md", "unslow help record.md", "unslow help faults"] {
            assert!(asked_for(words).unwrap().unwrap().starts_with("# "), "{words}");
        }
        assert!(asked_for("unslow help docs/sink.toml").unwrap().unwrap().contains("[[map]]"));
        for words in ["unslow help record", "unslow help", "unslow record docs/record.md", "unslow help --help"] {
            assert!(asked_for(words).is_none(), "{words}");
        }
        let error = asked_for("unslow help fault").unwrap().unwrap_err().to_string();
        assert!(error.contains("did you mean faults?"), "{error}");
    }
}
