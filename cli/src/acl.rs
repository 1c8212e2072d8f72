//! `--print-acl`: the least user that a diagnosis, or a walk through keys, needs.

use anyhow::Context;
use serde_json::json;
use unslow_client::{Product, ReadOnly, Target};
use unslow_topology::Info;

use crate::output::Output;
use crate::reach::Reach;

/// What `--print-acl` without a value stands for.
pub const ASK: &str = "ask";

/// What the rule is for: the version that was typed, or the server that is named, and whether that is a Sentinel.
/// `--print-acl URL` reads as naturally as `URL --print-acl`.
pub fn server(version: &str, named: Option<Target>, reach: &Reach) -> anyhow::Result<(Product, bool)> {
    if let Some(typed) = typed(version) {
        return Ok((typed, false));
    }
    let url = Some(version).filter(|version| *version != ASK).map(|url| reach.target(url)).transpose()?;
    let target = named.or(url);
    let target = target.context("give the URL of a server to ask, or a version: --print-acl 7.0")?;
    let mut connection = ReadOnly::open(&target, &reach.options()?)?;
    let info = Info::parse(&connection.call(&["INFO", "server"])?.text().unwrap_or_default());
    Ok((product(&info), info.mode() == Some("sentinel")))
}

/// The document for a program.
pub fn document(rule: Option<&str>) -> serde_json::Value {
    json!({ "schema": "unslow.acl/1", "rule": rule })
}

/// The rule for a person, and the exit status.
pub fn print(rule: Option<&str>, output: &Output) -> anyhow::Result<u8> {
    match rule {
        Some(rule) if !output.json() => output.print(&format!("{rule}\n"))?,
        Some(_) => {}
        None => {
            output.note(
                "before 6.0 there are no ACLs: every client with the password may do everything; unslow only reads",
            );
            return Ok(1);
        }
    }
    Ok(0)
}

/// A version as it is typed: `7.0` and `6` are Redis', `valkey-8.1` is Valkey's. `None` for what is an address.
fn typed(version: &str) -> Option<Product> {
    // A server may be called valkey-0.
    let (product, number): (fn(u32, u32) -> Product, &str) = match version.split_once('-') {
        Some(("valkey", number)) if number.contains('.') => (Product::Valkey, number),
        Some(("redis", number)) if number.contains('.') => (Product::Redis, number),
        _ => (Product::Redis, version),
    };
    let parts: Vec<u32> = number.split('.').map(str::parse).collect::<Result<_, _>>().ok()?;
    match parts[..] {
        [major] => Some(product(major, 0)),
        [major, minor] | [major, minor, _] => Some(product(major, minor)),
        _ => None,
    }
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
    fn a_version_is_not_an_address() {
        assert_eq!(typed("6"), Some(Product::Redis(6, 0)));
        assert_eq!((typed("7.0.15"), typed("redis-7.0")), (Some(Product::Redis(7, 0)), Some(Product::Redis(7, 0))));
        assert_eq!(typed("valkey-8.1"), Some(Product::Valkey(8, 1)));
        for address in ["10.0.0.1", "localhost:6379", "redis://h", "valkey-0", "valkey-0.internal", "", ASK] {
            assert_eq!(typed(address), None, "{address}");
        }
    }

    #[test]
    fn a_server_is_known_by_its_own_version() {
        let of = |text: &str| product(&Info::parse(text));
        let valkey = "redis_version:7.2.4\nserver_name:valkey\nvalkey_version:8.1.3\n";
        assert_eq!((of(valkey), of("redis_version:8.2.0\n")), (Product::Valkey(8, 1), Product::Redis(8, 2)));
        assert_eq!(of(""), Product::Redis(0, 0));
    }
}
