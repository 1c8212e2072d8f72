//! `unslow explain`: the page of a rule, offline. What it is, how to confirm it, what to do.

use std::fmt::Write;

use clap::Args;
use serde_json::json;
use unslow_doctor::{ALL, Rule};
use unslow_units::similar;

use crate::output::{Output, style};

/// Version of the JSON.
const SCHEMA: &str = "unslow.explain/1";

#[derive(Args)]
#[command(after_help = "Examples:\n  unslow explain\n  unslow explain keys_command")]
pub struct Explain {
    /// Rule, as a report names it; without one, all rules are listed
    #[arg(value_name = "RULE")]
    rule: Option<String>,
}

impl Explain {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        match self.rule.as_ref().filter(|name| *name != "ls") {
            None => list(output)?,
            Some(name) => page(rule(name)?, output)?,
        }
        Ok(0)
    }
}

fn list(output: &Output) -> anyhow::Result<()> {
    if output.json() {
        let rules: Vec<_> = ALL.iter().map(|r| json!({ "id": r.id, "title": r.title })).collect();
        return output.print_json(&json!({ "schema": SCHEMA, "rules": rules }));
    }
    let wide = ALL.iter().map(|r| r.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for rule in ALL {
        let _ = writeln!(text, "{:<wide$}  {}", rule.id, rule.title);
    }
    output.print(&text)
}

fn page(rule: &Rule, output: &Output) -> anyhow::Result<()> {
    let page = rule.page();
    if output.json() {
        let document =
            json!({ "schema": SCHEMA, "id": rule.id, "title": rule.title, "leads_to": rule.leads_to, "page": page });
        return output.print_json(&document);
    }
    let (title, faint) = (style::TITLE, style::FAINT);
    let width = textwrap::termwidth().clamp(60, 100);
    let mut text = format!("{title}{}{title:#} {faint}{}{faint:#}\n\n{}", rule.title, rule.id, flow(&page, width));
    if !rule.leads_to.is_empty() {
        let leads = format!("Leads to: {}.", rule.leads_to.join(", "));
        let _ = writeln!(text, "\n{}", crate::output::fill(&leads, width));
    }
    let _ = writeln!(text, "\n{faint}Check this rule only: unslow doctor URL --only {}{faint:#}", rule.id);
    output.print(&text)
}

/// The text in lines of at most `width`; commands, tables and headings keep theirs, so that they can be copied.
fn flow(page: &str, width: usize) -> String {
    let (mut out, mut paragraph, mut fenced) = (String::new(), String::new(), false);
    for line in page.lines() {
        // What is indented a little under an item belongs to it.
        let continues = is_item(&paragraph) && line.starts_with("  ") && !line.starts_with("    ");
        fenced ^= line.starts_with("```");
        let verbatim = fenced || line.is_empty() || line.starts_with("```") || line.starts_with(['|', '#', ' ']);
        if verbatim && !continues {
            end(&mut paragraph, &mut out, width);
            out += line;
            out.push('\n');
            continue;
        }
        if is_item(line) || is_labelled(line) {
            end(&mut paragraph, &mut out, width);
        }
        if !paragraph.is_empty() {
            paragraph.push(' ');
        }
        paragraph += line.trim();
    }
    end(&mut paragraph, &mut out, width);
    out
}

fn end(paragraph: &mut String, out: &mut String, width: usize) {
    if paragraph.is_empty() {
        return;
    }
    let options = textwrap::Options::new(width)
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .subsequent_indent(if is_item(paragraph) { "  " } else { "" });
    let _ = writeln!(out, "{}", textwrap::fill(paragraph, options));
    paragraph.clear();
}

fn is_item(line: &str) -> bool {
    line.starts_with("- ") || line.split_once(". ").is_some_and(|(n, _)| n.len() < 3 && n.parse::<u8>().is_ok())
}

/// `Seen when: ...`, `Sources: ...`: each begins a line.
fn is_labelled(line: &str) -> bool {
    line.starts_with(|c: char| c.is_ascii_uppercase())
        && line
            .split_once(": ")
            .is_some_and(|(label, _)| label.len() < 40 && label.chars().all(|c| c.is_alphabetic() || c == ' '))
}

/// A name that no rule has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rule {name:?};{} `unslow explain` lists all {}", did_you_mean(.near), ALL.len())]
pub struct UnknownRule {
    name: String,
    /// What was probably meant, the most likely first.
    near: Vec<&'static str>,
}

fn did_you_mean(near: &[&str]) -> String {
    if near.is_empty() { String::new() } else { format!(" did you mean {}?", near.join(" or ")) }
}

/// The rule of this name; else what was probably meant.
pub fn rule(name: &str) -> Result<&'static Rule, UnknownRule> {
    let wanted = name.trim().to_ascii_lowercase().replace(['-', ' '], "_");
    if let Some(rule) = ALL.iter().find(|r| r.id == wanted) {
        return Ok(rule);
    }
    let mut near = similar(&wanted, ALL.iter().map(|rule| rule.id));
    near.truncate(3);
    Err(UnknownRule { name: name.into(), near })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_rule_gets_the_one_that_was_meant() {
        assert_eq!(rule("keys_command").map(|r| r.id), Ok("keys_command"));
        assert_eq!(rule("Keys-Command").map(|r| r.id), Ok("keys_command"));
        for (typed, meant) in
            [("key_comand", "keys_command"), ("keys", "keys_command"), ("failover_flaping", "failover_flapping")]
        {
            let unknown = rule(typed).unwrap_err();
            assert_eq!(unknown.near.first(), Some(&meant), "{unknown}");
            assert!(unknown.to_string().contains(&format!("did you mean {meant}")), "{unknown}");
        }
        let told = rule("zzzzzzzzzz").unwrap_err().to_string();
        assert!(!told.contains("did you mean") && told.contains("unslow explain"), "{told}");
        // Whatever is typed is answered.
        for odd in ["", "é\u{301}漢字", &"x".repeat(10_000)] {
            assert!(rule(odd).is_err());
        }
    }

    #[test]
    fn a_page_keeps_its_commands_and_wraps_its_prose() {
        let page = "One sentence that is long enough to be wrapped\nacross lines of thirty.\n\n- an item that is \
                    longer than a line is\n  and continues\n- another\n\n    redis-cli -h a -p 1 A COMMAND THAT IS \
                    LONGER THAN THIRTY\n| a | table |\n";
        let text = flow(page, 30);
        assert!(
            text.contains("    redis-cli -h a -p 1 A COMMAND THAT IS LONGER THAN THIRTY\n| a | table |\n"),
            "{text}"
        );
        assert!(
            text.contains("- an item that is longer than a\n") || text.contains("- an item that is longer than\n"),
            "{text}"
        );
        assert!(text.contains("\n- another\n"), "{text}");
        let prose = text.lines().filter(|l| !l.contains("redis-cli"));
        assert!(prose.clone().all(|l| l.chars().count() <= 30), "{text}");
        // Every rule has a page, and no word of it is lost.
        for rule in ALL {
            let words = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
            assert!(!rule.page().trim().is_empty(), "{}", rule.id);
            assert_eq!(words(&flow(&rule.page(), 80)), words(&rule.page()), "{}", rule.id);
        }
    }
}
