//! `unslow doctor --print-acl`: the least user a diagnosis needs.

use anyhow::{Context, bail};
use serde_json::json;
use unslow_client::{ReadOnly, Target, acl_rule};
use unslow_topology::Info;

use crate::output::Output;
use crate::reach::Reach;

/// What `--print-acl` without a value stands for.
pub const ASK: &str = "ask";

/// Prints the rule for `version`, or for the server that is named. `--print-acl URL` reads as naturally as
/// `URL --print-acl`.
pub fn print(version: &str, named: Option<Target>, reach: &Reach, output: &Output) -> anyhow::Result<u8> {
    let is_version = version.starts_with(|c: char| c.is_ascii_digit())
        && version.split('.').all(|p| p.parse::<u32>().is_ok())
        && version.split('.').count() < 4;
    let (level, sentinel) = if is_version {
        let mut parts = version.split('.').map(str::parse);
        let (Some(Ok(major)), minor) = (parts.next(), parts.next()) else {
            bail!("invalid version {version:?}; expected a value such as 7.0 or 6.2")
        };
        ((major, minor.and_then(Result::ok).unwrap_or(0)), false)
    } else {
        let typed = Some(version).filter(|version| *version != ASK).map(|url| reach.target(url)).transpose()?;
        let target = named.or(typed);
        let target = target.context("give the URL of a server to ask, or a version: unslow doctor --print-acl 7.0")?;
        let mut connection = ReadOnly::open(&target, &reach.options()?)?;
        let info = Info::parse(&connection.call(&["INFO", "server"])?.text().unwrap_or_default());
        (level(&info), info.mode() == Some("sentinel"))
    };
    let rule = acl_rule(level, sentinel);
    if output.json() {
        super::print_owed(output, &json!({ "schema": "unslow.acl/1", "rule": rule }))?;
    } else if let Some(rule) = &rule {
        output.print(&format!("{rule}\n"))?;
    }
    if rule.is_none() {
        output
            .note("before 6.0 there are no ACLs: every client with the password may do everything; unslow only reads");
        return Ok(1);
    }
    Ok(0)
}

/// What the server has of the list, in Redis' numbering. CLUSTER SLOT-STATS is the only command on it that is younger
/// than 7.2: Valkey has it from 8.0 on, Redis from 8.2 on.
fn level(info: &Info) -> (u32, u32) {
    match info.version() {
        Some((8.., _, _)) if info.product() == "Valkey" => (8, 2),
        _ => info.redis_level(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valkey_is_granted_what_it_has() {
        let grants = |text: &str| acl_rule(level(&Info::parse(text)), false).unwrap().contains("+cluster|slot-stats");
        let valkey = |version: &str| format!("redis_version:7.2.4\nserver_name:valkey\nvalkey_version:{version}\n");
        assert!(grants(&valkey("8.0.1")) && grants(&valkey("9.1.2")) && !grants(&valkey("7.2.9")));
        assert!(grants("redis_version:8.2.0\n") && !grants("redis_version:8.0.3\n"));
    }
}
