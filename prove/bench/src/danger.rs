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
    let (_, below) = DANGEROUS.iter().find(|(known, _)| *known == name)?;
    if below.is_empty() {
        return Some(name);
    }
    let second = word(1)?;
    below.contains(&second.as_str()).then(|| format!("{name} {second}"))
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
    }
}
