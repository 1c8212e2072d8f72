//! `--silences FILE`: known findings that must not alert, each with a reason and an end.

use std::fs;
use std::path::Path;

use anyhow::{Context, bail};
use jiff::Zoned;
use serde::Deserialize;
use unslow_client::Target;
use unslow_doctor::{Silence, Silenced};

use crate::when::{self, local_time};
use crate::{explain, toml_text};

/// What is silenced for longer is forgotten.
const LONGEST_MS: i64 = 366 * 86_400_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    silence: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "[[silence]] with rule, reason and until")]
pub struct Entry {
    rule: Option<String>,
    deployment: Option<String>,
    #[serde(default)]
    servers: Vec<String>,
    reason: String,
    from: Option<toml::Value>,
    until: toml::Value,
}

/// Reads a file; the silences in it that are over, as sentences, come with it.
pub fn read(path: &Path) -> anyhow::Result<(Vec<Silence>, Vec<String>)> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("{}: cannot read the silences", path.display()))?;
    parse(&text, &Zoned::now()).with_context(|| path.display().to_string())
}

fn parse(text: &str, now: &Zoned) -> anyhow::Result<(Vec<Silence>, Vec<String>)> {
    let file: File = toml_text::parse(text)?;
    let (all, over) = of(file.silence, &[], now)?;
    Ok((all.into_iter().map(|(_, silence)| silence).collect(), over))
}

/// A silence, and the name of the deployment that it is of, if it is of one.
pub type Named = (Option<String>, Silence);

/// The silences of a file that has deployments too. One whose deployment is called by one of these `names` comes with
/// the name and says of no other URL that it holds there.
pub fn of(entries: Vec<Entry>, names: &[&str], now: &Zoned) -> anyhow::Result<(Vec<Named>, Vec<String>)> {
    let now_ms = now.timestamp().as_millisecond();
    let (mut silences, mut over) = (Vec::new(), Vec::new());
    for (number, mut entry) in (1..).zip(entries) {
        let named = entry.deployment.take_if(|name| names.contains(&name.as_str()));
        let entry = silence(entry, named.is_some(), now).with_context(|| format!("silence {number}"))?;
        if entry.until_ms as i64 <= now_ms {
            over.push(format!("silence {number} ended on {}: {}", local_time(entry.until_ms), entry.reason));
        }
        // One that is over still holds for what a recording has of its time.
        silences.push((named, entry));
    }
    Ok((silences, over))
}

fn silence(entry: Entry, is_named: bool, now: &Zoned) -> anyhow::Result<Silence> {
    if entry.rule.is_none() && entry.servers.is_empty() && entry.deployment.is_none() && !is_named {
        bail!("it has no rule, servers or deployment: what is silenced?");
    }
    if let Some(rule) = &entry.rule {
        explain::rule(rule)?;
    }
    if entry.reason.trim().is_empty() {
        bail!("its reason is empty: readers of the report will ask for it");
    }
    let from_ms = entry.from.map_or(Ok(0), |from| time(&from, now)).context("from")?;
    let until_ms = time(&entry.until, now).context("until")?;
    if until_ms <= from_ms {
        bail!("until is not after from");
    }
    if until_ms > now.timestamp().as_millisecond() + LONGEST_MS {
        bail!("until is more than a year away; what holds for longer is a --fail-on or a rule to argue about");
    }
    let deployment = entry.deployment.map(|url| Target::parse(&url).map(|target| target.url())).transpose()?;
    Ok(Silence {
        rule: entry.rule,
        deployment,
        servers: entry.servers,
        reason: entry.reason.trim().to_string(),
        from_ms: from_ms.max(0) as u64,
        until_ms: until_ms.max(0) as u64,
    })
}

fn time(value: &toml::Value, now: &Zoned) -> anyhow::Result<i64> {
    match value {
        toml::Value::String(text) => Ok(when::dated(text, now)?),
        toml::Value::Datetime(at) => Ok(when::dated(&at.to_string(), now)?),
        other => bail!("expected a date such as 2026-11-20T01:00:00Z, found {}", other.type_str()),
    }
}

/// One line of what was found and is not told.
pub fn line(silenced: &Silenced) -> String {
    let until = local_time(silenced.until_ms);
    format!("{} until {until}: {}", silenced.id, silenced.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Zoned {
        "2026-11-20T12:00:00+00:00[UTC]".parse().unwrap()
    }

    #[test]
    fn a_silence_has_a_reason_and_an_end() {
        let (all, over) = parse(
            "[[silence]]\nrule = \"swap\"\nservers = [\"10.0.0.1:6379\"]\nreason = \"moves on Friday\"\nuntil = \
             2026-11-27\n[[silence]]\nrule = \"hypervisor_steal\"\nreason = \"x\"\nuntil = \"2026-11-20T11:00Z\"\n",
            &now(),
        )
        .unwrap();
        assert_eq!(
            (all.len(), all[0].rule.as_deref(), &all[0].servers[..]),
            (2, Some("swap"), &["10.0.0.1:6379".to_string()][..])
        );
        assert_eq!((all[0].from_ms, all[0].until_ms, all[1].until_ms), (0, 1_795_737_600_000, 1_795_172_400_000));
        assert!(over.len() == 1 && over[0].contains("silence 2 ended"), "{over:?}");
        assert_eq!(parse("", &now()).unwrap().0, []);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_in_one_line() {
        for (text, expected) in [
            ("[[silence]]\nrule = \"swap\"\nuntil = 2026-12-01\n", "missing field `reason`"),
            ("[[silence]]\nrule = \"swap\"\nreason = \" \"\nuntil = 2026-12-01\n", "reason is empty"),
            ("[[silence]]\nrule = \"swapp\"\nreason = \"x\"\nuntil = 2026-12-01\n", "swapp"),
            ("[[silence]]\nreason = \"x\"\nuntil = 2026-12-01\n", "what is silenced?"),
            ("[[silence]]\nrule = \"swap\"\nreason = \"x\"\nuntil = \"soon\"\n", "expected a date"),
            ("[[silence]]\nrule = \"swap\"\nreason = \"x\"\nuntil = 5\n", "found integer"),
            ("[[silence]]\nrule = \"swap\"\nreason = \"x\"\nuntil = 2028-12-01\n", "more than a year"),
            ("[[silence]]\nrule = \"swap\"\nreason = \"x\"\nuntil = 2026-12-01\nfrom = 2026-12-02\n", "not after from"),
            ("[[silences]]\n", "unknown field `silences`"),
            ("\n\nrule = ", "line 3"),
        ] {
            let why = format!("{:#}", parse(text, &now()).unwrap_err());
            assert!(why.contains(expected) && why.lines().count() == 1, "{text}: {why}");
        }
    }
}
