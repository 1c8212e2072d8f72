//! Files that people write in TOML.

use anyhow::anyhow;
use serde::de::DeserializeOwned;

/// Reads a text. The error is one line, with the number of the line it is about and without the line: it may hold a
/// password.
pub fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|e| {
        let words = without_values(&e.message().replace('\n', "; "));
        match e.span() {
            Some(span) => {
                let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
                anyhow!("line {line}: {words}")
            }
            None => anyhow!("{words}"),
        }
    })
}

/// Whether a text sets this at its top.
pub fn sets(text: &str, name: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key(name))
}

/// The message without the text that was found where something else was expected.
fn without_values(message: &str) -> String {
    match (message.find("string \""), message.rfind("\", expected")) {
        (Some(from), Some(to)) if from < to => format!("{}a text{}", &message[..from], &message[to + 1..]),
        _ => message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct One {
        #[serde(rename = "n")]
        _n: u8,
    }

    #[test]
    fn a_mistake_is_named_with_its_line_and_without_its_value() {
        for text in ["\nn = \"redis://:s3cret@h\"", "\nn = [\"s3cret\"]", "\nn = s3cret"] {
            let why = parse::<One>(text).unwrap_err().to_string();
            assert!(why.starts_with("line 2: ") && !why.contains("s3cret") && why.lines().count() == 1, "{why}");
        }
    }
}
