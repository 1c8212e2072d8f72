//! Commands that do more than read and write keys: they empty a server, stop it, or change what it is. Sent by a load
//! generator they are seldom meant.

/// A command, and the subcommands that are dangerous; all of them where none is named.
const DANGEROUS: &[(&str, &[&str])] = &[
    ("ACL", &["SETUSER", "DELUSER", "LOAD", "SAVE"]),
    ("BGREWRITEAOF", &[]),
    ("BGSAVE", &[]),
    ("CLIENT", &["KILL", "PAUSE"]),
    (
        "CLUSTER",
        &[
            "ADDSLOTS",
            "ADDSLOTSRANGE",
            "BUMPEPOCH",
            "DELSLOTS",
            "DELSLOTSRANGE",
            "FAILOVER",
            "FLUSHSLOTS",
            "FORGET",
            "MEET",
            "MIGRATESLOTS",
            "REPLICATE",
            "RESET",
            "SET-CONFIG-EPOCH",
            "SETSLOT",
        ],
    ),
    ("CONFIG", &["SET", "REWRITE", "RESETSTAT"]),
    ("DEBUG", &[]),
    ("FAILOVER", &[]),
    ("FLUSHALL", &[]),
    ("FLUSHDB", &[]),
    ("FUNCTION", &["DELETE", "FLUSH", "KILL", "RESTORE"]),
    ("LATENCY", &["RESET"]),
    ("MIGRATE", &[]),
    ("MODULE", &["LOAD", "LOADEX", "UNLOAD"]),
    ("REPLICAOF", &[]),
    ("SAVE", &[]),
    ("SCRIPT", &["FLUSH", "KILL"]),
    ("SHUTDOWN", &[]),
    ("SLAVEOF", &[]),
    ("SLOWLOG", &["RESET"]),
    ("SWAPDB", &[]),
];

/// The name of a dangerous command, with its subcommand; `None` for all others.
pub fn dangerous<W: AsRef<[u8]>>(words: &[W]) -> Option<String> {
    let word = |at: usize| words.get(at).map(|word| String::from_utf8_lossy(word.as_ref()).to_uppercase());
    let name = word(0)?;
    if matches!(name.as_str(), "EVAL" | "EVAL_RO" | "SCRIPT" | "FUNCTION")
        && let Some(inside) = words.iter().skip(1).find_map(|word| in_script(&String::from_utf8_lossy(word.as_ref())))
    {
        return Some(format!("{name} with {inside}"));
    }
    let (_, below) = DANGEROUS.iter().find(|(known, _)| *known == name)?;
    if below.is_empty() {
        return Some(name);
    }
    let second = word(1)?;
    below.contains(&second.as_str()).then(|| format!("{name} {second}"))
}

/// The name of a dangerous command that a script calls: in quotes, as redis.call takes it. One that is put together
/// while the script runs is not found.
pub fn in_script(text: &str) -> Option<String> {
    let text = text.to_uppercase();
    let quoted = |name: &str| ["'", "\""].iter().any(|quote| text.contains(&format!("{quote}{name}{quote}")));
    let found = DANGEROUS
        .iter()
        .find(|(name, below)| quoted(name) && (below.is_empty() || below.iter().any(|second| quoted(second))));
    found.map(|(name, _)| (*name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_empties_stops_or_changes_a_server_is_told_from_what_reads_and_writes() {
        for (words, expected) in [
            (&["flushall", "ASYNC"][..], Some("FLUSHALL")),
            (&["Config", "set", "maxmemory", "1"], Some("CONFIG SET")),
            (&["CONFIG", "GET", "*"], None),
            (&["CONFIG"], None),
            (&["DEBUG", "SLEEP", "1"], Some("DEBUG")),
            (&["SCRIPT", "FLUSH"], Some("SCRIPT FLUSH")),
            (&["SCRIPT", "LOAD", "return 1"], None),
            (&["SET", "FLUSHALL", "x"], None),
            (&["cluster", "reset", "hard"], Some("CLUSTER RESET")),
            (&["CLUSTER", "NODES"], None),
        ] {
            assert_eq!(dangerous(words).as_deref(), expected, "{words:?}");
        }
        assert_eq!(dangerous::<&str>(&[]), None);
        for (script, expected) in [
            ("return redis.call('flushall')", Some("EVAL with FLUSHALL")),
            ("redis.pcall(\"Config\", \"SET\", 'x', 1)", Some("EVAL with CONFIG")),
            ("return redis.call('CONFIG', 'GET', 'x')", None),
            ("return redis.call('GET', KEYS[1]) -- no flushall here", None),
        ] {
            assert_eq!(dangerous(&["eval", script, "0"]).as_deref(), expected, "{script}");
        }
        assert_eq!(dangerous(&["SCRIPT", "LOAD", "redis.call('save')"]).as_deref(), Some("SCRIPT with SAVE"));
    }
}
