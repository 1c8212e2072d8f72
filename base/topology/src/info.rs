//! INFO, as every server version writes it: `field:value` lines under `# Section` titles.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Fields;
use crate::fields::MODULE;

/// The fields of one INFO reply. Values stay text: which of them are numbers differs by version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(transparent)]
pub struct Info(#[schemars(with = "BTreeMap<String, String>")] pub Fields);

/// One `cmdstat_*` line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommandStat {
    /// Calls since the last reset.
    pub calls: u64,
    /// Microseconds of main-thread time inside the command.
    pub usec: u64,
    /// Refused before it was executed (6.2+): not among `calls`.
    pub rejected: u64,
    /// Executed, and ended in an error (6.2+): among `calls`.
    pub failed: u64,
}

impl Info {
    /// Never fails: lines that are no field are passed over.
    pub fn parse(text: &str) -> Info {
        Info(Fields::of_lines(text))
    }

    /// The text of a field.
    pub fn get(&self, field: &str) -> Option<&str> {
        self.0.get(field)
    }

    /// A field as a number. Words that only read as one (`inf`, `nan`) are none.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.get(field)?.parse().ok().filter(|n: &f64| n.is_finite())
    }

    /// `master` or `slave`.
    pub fn role(&self) -> Option<&str> {
        self.get("role")
    }

    /// `standalone`, `cluster` or `sentinel`; Valkey calls the field `server_mode`.
    pub fn mode(&self) -> Option<&str> {
        self.get("redis_mode").or_else(|| self.get("server_mode"))
    }

    /// `(6, 2, 14)`; Valkey's own version where there is one, since it says `redis_version:7.2.4` for ever.
    pub fn version(&self) -> Option<(u32, u32, u32)> {
        let text = self.get("valkey_version").or_else(|| self.get("redis_version"))?;
        let mut parts = text.split('.').map(|p| p.parse().unwrap_or(0));
        Some((parts.next()?, parts.next()?, parts.next().unwrap_or(0)))
    }

    /// `Valkey` or `Redis`.
    pub fn product(&self) -> &'static str {
        if self.get("valkey_version").is_some() || self.get("server_name") == Some("valkey") {
            "Valkey"
        } else {
            "Redis"
        }
    }

    /// What the server can do, in Redis' own numbering: Valkey counts as at least 7.2.
    pub fn redis_level(&self) -> (u32, u32) {
        match (self.product(), self.version()) {
            ("Valkey", _) => (7, 2),
            (_, Some((major, minor, _))) => (major, minor),
            _ => (0, 0),
        }
    }

    /// Every `cmdstat_*`, by lower-case command; sub-commands as `cluster|nodes` (since 7.0).
    pub fn command_stats(&self) -> BTreeMap<&str, CommandStat> {
        self.prefixed("cmdstat_").map(|(name, v)| (name, CommandStat::of(v))).collect()
    }

    /// One of [`Info::command_stats`].
    pub fn command_stat(&self, name: &str) -> Option<CommandStat> {
        self.get(&format!("cmdstat_{name}")).map(CommandStat::of)
    }

    /// Whether it has the section: not every user may read it, and INFO of one section has no other.
    pub fn has_command_stats(&self) -> bool {
        self.prefixed("cmdstat_").next().is_some()
    }

    /// Those whose line is another than in an earlier INFO, with what it was then.
    pub fn command_stats_since<'a>(
        &'a self,
        before: &'a Info,
    ) -> impl Iterator<Item = (&'a str, CommandStat, CommandStat)> {
        let pair = |(name, then, after): (&'a str, Option<&str>, &str)| {
            (name, then.map_or_else(Default::default, CommandStat::of), CommandStat::of(after))
        };
        self.changed_since(before, "cmdstat_").map(pair)
    }

    /// Every `errorstat_*` (since 6.2): count by code word.
    pub fn error_stats(&self) -> BTreeMap<&str, u64> {
        self.prefixed("errorstat_").map(|(name, v)| (name, part(v, "count") as u64)).collect()
    }

    /// By how much each `errorstat_*` has grown since an earlier INFO, where it has.
    pub fn error_stats_since<'a>(&'a self, before: &'a Info) -> impl Iterator<Item = (&'a str, u64)> {
        let count = |line: &str| part(line, "count") as u64;
        let grown = move |(name, then, after): (&'a str, Option<&str>, &str)| {
            let grown = count(after).checked_sub(then.map_or(0, count))?;
            (grown > 0).then_some((name, grown))
        };
        self.changed_since(before, "errorstat_").filter_map(grown)
    }

    /// Lines with this prefix that are not the same in an earlier INFO: the rest of the name, what it was then, and
    /// what it is now.
    fn changed_since<'a, 'b>(
        &'a self,
        before: &'b Info,
        prefix: &'static str,
    ) -> impl Iterator<Item = (&'a str, Option<&'b str>, &'a str)> {
        let mut earlier = before.prefixed(prefix).peekable();
        self.prefixed(prefix).filter_map(move |(name, after)| {
            while earlier.next_if(|(other, _)| *other < name).is_some() {}
            let then = earlier.next_if(|(other, _)| *other == name).map(|(_, line)| line);
            (then != Some(after)).then_some((name, then, after))
        })
    }

    /// `slave0:ip=...,port=...` lines of a master, as (ip, port, state, lag in seconds, acknowledged offset).
    pub fn replicas(&self) -> Vec<(String, u16, String, u64, u64)> {
        self.prefixed("slave")
            .filter(|(n, _)| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
            .filter_map(|(_, v)| {
                Some((
                    text_part(v, "ip")?.to_string(),
                    text_part(v, "port")?.parse().ok()?,
                    text_part(v, "state").unwrap_or("").to_string(),
                    part(v, "lag") as u64,
                    part(v, "offset") as u64,
                ))
            })
            .collect()
    }

    /// Keys over all databases.
    pub fn keys(&self) -> u64 {
        let databases = self.prefixed("db").filter(|(n, _)| n.parse::<u32>().is_ok());
        databases.map(|(_, v)| part(v, "keys") as u64).fold(0, u64::saturating_add)
    }

    /// Keys with a time to live over all databases.
    pub fn expiring_keys(&self) -> u64 {
        let databases = self.prefixed("db").filter(|(n, _)| n.parse::<u32>().is_ok());
        databases.map(|(_, v)| part(v, "expires") as u64).fold(0, u64::saturating_add)
    }

    /// Names of its modules, those that come with the server among them. `None` where they are not all known: facts
    /// that an older unslow has saved have the last line alone, under the field's plain name.
    pub fn modules(&self) -> Option<Vec<&str>> {
        self.get(MODULE).is_none().then(|| self.prefixed("module:name=").map(|(name, _)| name).collect())
    }

    /// The fields with this prefix, by the rest of their names.
    pub fn prefixed<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> + 'a {
        self.0.from(prefix).map_while(move |(k, v)| Some((k.strip_prefix(prefix)?, v)))
    }
}

impl CommandStat {
    /// Reads `calls=3,usec=41,...`.
    fn of(line: &str) -> CommandStat {
        let mut stat = CommandStat::default();
        for (name, text) in line.split(',').filter_map(|part| part.split_once('=')) {
            let number = || text.parse().unwrap_or_else(|_| finite(text) as u64);
            match name {
                "calls" => stat.calls = number(),
                "usec" => stat.usec = number(),
                "rejected_calls" => stat.rejected = number(),
                "failed_calls" => stat.failed = number(),
                _ => {}
            }
        }
        stat
    }
}

fn finite(text: &str) -> f64 {
    text.parse().ok().filter(|n: &f64| n.is_finite()).unwrap_or(0.0)
}

fn text_part<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    value.split(',').find_map(|p| p.split_once('=').filter(|(k, _)| *k == name).map(|(_, v)| v))
}

fn part(value: &str, name: &str) -> f64 {
    text_part(value, name).map_or(0.0, finite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_changed_is_told_with_what_it_was() {
        let before =
            Info::parse("cmdstat_a:calls=1\ncmdstat_get:calls=5,usec=9\ncmdstat_z:calls=2\nerrorstat_OOM:count=3\n");
        let after = Info::parse(
            "cmdstat_get:calls=7,usec=9\ncmdstat_hget:calls=1\ncmdstat_z:calls=2\nerrorstat_ASK:count=1\nerrorstat_OOM:count=5\nerrorstat_X:count=0\n",
        );
        let changed = after.command_stats_since(&before);
        let calls = changed.map(|(name, then, now)| (name, then.calls, now.calls));
        assert_eq!(calls.collect::<Vec<_>>(), [("get", 5, 7), ("hget", 0, 1)]);
        assert_eq!(after.error_stats_since(&before).collect::<Vec<_>>(), [("ASK", 1), ("OOM", 2)]);
        assert_eq!(before.error_stats_since(&after).count(), 0, "a counter that was reset tells nothing");
    }

    #[test]
    fn every_module_is_named() {
        let text =
            "# Modules\r\nmodule:name=vectorset,ver=1,api=1\r\nmodule:name=my,ver=2\r\nmodule:odd\r\nmodules:3\r\n";
        assert_eq!(Info::parse(text).modules(), None);
        let text = text.replace("module:odd\r\n", "");
        assert_eq!(Info::parse(&text).modules().unwrap(), ["my", "vectorset"]);
        assert_eq!(Info::parse("a:1\r\n").modules(), Some(Vec::new()));
        let saved: Info = serde_json::from_str(r#"{"module":"name=search,ver=1"}"#).unwrap();
        assert_eq!(saved.modules(), None);
    }

    #[test]
    fn what_is_no_finite_number_is_none() {
        let info =
            Info::parse("a:inf\nb:-nan\nc:1e999\nd:1.5\ncmdstat_get:calls=inf,usec=7\ndb0:keys=1e30\ndb1:keys=1e30\n");
        assert_eq!((info.number("a"), info.number("b"), info.number("c")), (None, None, None));
        assert_eq!(info.number("d"), Some(1.5));
        let get = info.command_stats()["get"];
        assert_eq!((get.calls, get.usec), (0, 7));
        assert_eq!(info.keys(), u64::MAX);
        let info = Info::parse("db0:keys=5,expires=3,avg_ttl=9\ndb7:keys=5,expires=1\ndb_name:expires=9\n");
        assert_eq!((info.keys(), info.expiring_keys()), (10, 4));
    }
}
