//! `unslow help TOPIC`: the pages of docs/, for a machine without a network or a checkout.

use std::ffi::OsString;

use anyhow::bail;
use unslow_units::similar;

/// By name, as `docs/NAME.md`.
const PAGES: &[(&str, &str)] = &[
    ("bench", include_str!("../../docs/bench.md")),
    ("bypass", include_str!("../../docs/bypass.md")),
    ("drills", include_str!("../../docs/drills.md")),
    ("faults", include_str!("../../docs/faults.md")),
    ("fleet", include_str!("../../docs/fleet.md")),
    ("gateway", include_str!("../../docs/gateway.md")),
    ("guide", include_str!("../../docs/guide.md")),
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
