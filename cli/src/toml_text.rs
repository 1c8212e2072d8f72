//! Files that people write in TOML.

use anyhow::anyhow;
use serde::de::DeserializeOwned;

/// Reads a text. The error is one line, with the number of the line it is about and without the line: it may hold a
/// password.
pub fn parse<T: DeserializeOwned>(text: &str) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|e| {
        let words = e.message().replace('\n', "; ");
        match e.span() {
            Some(span) => {
                let line = text[..span.start.min(text.len())].matches('\n').count() + 1;
                anyhow!("line {line}: {words}")
            }
            None => anyhow!("{words}"),
        }
    })
}
