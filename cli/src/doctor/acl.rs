//! `unslow doctor --print-acl`: the least user a diagnosis needs.

use anyhow::{Context, bail};
use serde_json::json;
use unslow_client::{Product, ReadOnly, Target, acl_rule};
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
    let (server, sentinel) = if is_version {
        let mut parts = version.split('.').map(str::parse);
        let (Some(Ok(major)), minor) = (parts.next(), parts.next()) else {
            bail!("invalid version {version:?}; expected a value such as 7.0 or 6.2")
        };
        (Product::Redis(major, minor.and_then(Result::ok).unwrap_or(0)), false)
    } else {
        let typed = Some(version).filter(|version| *version != ASK).map(|url| reach.target(url)).transpose()?;
        let target = named.or(typed);
        let target = target.context("give the URL of a server to ask, or a version: unslow doctor --print-acl 7.0")?;
        let mut connection = ReadOnly::open(&target, &reach.options()?)?;
        let info = Info::parse(&connection.call(&["INFO", "server"])?.text().unwrap_or_default());
        (product(&info), info.mode() == Some("sentinel"))
    };
    let rule = acl_rule(server, sentinel);
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

/// What the server is. One that hides its version gets the rule of none.
fn product(info: &Info) -> Product {
    let (major, minor, _) = info.version().unwrap_or_default();
    match info.product() {
        "Valkey" => Product::Valkey(major, minor),
        _ => Product::Redis(major, minor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_own_version() {
        let of = |text: &str| product(&Info::parse(text));
        let valkey = "redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.3\n";
        assert_eq!((of(valkey), of("redis_version:8.2.0\n")), (Product::Valkey(8, 1), Product::Redis(8, 2)));
        assert_eq!(of(""), Product::Redis(0, 0));
    }
}
