//! SLOWLOG GET: what was slow, and who sent it; COMMANDLOG GET: what was large. Arguments stay on the server's side of
//! the facts file: only the command's name and the first key, hashed, are kept.

use unslow_client::Value;
use unslow_facts::{LargeEntry, Node, Seen, Side, SlowEntry};
use unslow_topology::Info;

use crate::ask::{Ask, seen, unseen};
use crate::salt::Salt;

/// Entries asked for: the default length of the log.
const ENTRIES: &str = "128";
/// Words of a command that the server keeps (SLOWLOG_ENTRY_MAX_ARGC).
const WORDS_KEPT: u32 = 32;

/// The entries, and the keys in the clear for the size probe alone.
pub fn look(ask: &mut Ask, salt: &Salt) -> (Seen<Vec<SlowEntry>>, Vec<Vec<u8>>) {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let reply = ask
        .call(&["SLOWLOG", "GET", ENTRIES])
        .map(|value| value.items().iter().filter_map(|entry| self::entry(entry, salt, &mut keys)).collect::<Vec<_>>());
    keys.sort();
    keys.dedup();
    (seen(reply, "SLOWLOG GET 128"), keys)
}

/// Entries of each kind of large ones that are asked for.
const LARGE_ENTRIES: &str = "32";
const LARGE_SOURCE: &str = "COMMANDLOG GET 32 large-request, large-reply";

/// Whether the server keeps such a log.
pub fn keeps_large(node: &Node) -> bool {
    node.info().is_some_and(|info: &Info| info.product() == "Valkey" && info.version() >= Some((8, 1, 0)))
}

/// Requests and replies that were large.
pub fn large(ask: &mut Ask, salt: &Salt) -> Seen<Vec<LargeEntry>> {
    let mut all = Vec::new();
    for (side, log) in [(Side::Request, "large-request"), (Side::Reply, "large-reply")] {
        let of = |entry: &Value| {
            // Shaped as those of the slow log, with bytes where that has its time.
            let SlowEntry { id, at_s, us: bytes, command, key, client, client_name, .. } =
                self::entry(entry, salt, &mut Vec::new())?;
            Some(LargeEntry { id, at_s, side, bytes, command, key, client, client_name })
        };
        match ask.call(&["COMMANDLOG", "GET", LARGE_ENTRIES, log]) {
            Ok(reply) => all.extend(reply.items().iter().filter_map(of)),
            Err(e) => return unseen(&e, LARGE_SOURCE),
        }
    }
    seen(Ok(all), LARGE_SOURCE)
}

fn entry(value: &Value, salt: &Salt, keys: &mut Vec<Vec<u8>>) -> Option<SlowEntry> {
    let [id, at, us, args, rest @ ..] = value.items() else { return None };
    let word = |i: usize| args.items().get(i).and_then(Value::text).unwrap_or_default().to_uppercase();
    let mut command = word(0);
    let container = [
        "CLUSTER",
        "CLIENT",
        "CONFIG",
        "SLOWLOG",
        "COMMANDLOG",
        "LATENCY",
        "MEMORY",
        "OBJECT",
        "XINFO",
        "SCRIPT",
        "DEBUG",
        "FUNCTION",
    ];
    if container.contains(&command.as_str()) {
        command = format!("{command} {}", word(1));
    }
    // Whether the second word is a key is known for data commands only; KEYS has a pattern there, EVAL a script.
    let no_key = [
        "KEYS",
        "SCAN",
        "EVAL",
        "EVALSHA",
        "EVAL_RO",
        "EVALSHA_RO",
        "FCALL",
        "FCALL_RO",
        "INFO",
        "PING",
        "AUTH",
        "HELLO",
        "PUBLISH",
        "FLUSHALL",
        "FLUSHDB",
        "SCRIPT",
        "BGSAVE",
        "SAVE",
        "PSYNC",
        "REPLCONF",
        "EXEC",
        "MULTI",
        "DBSIZE",
        "RANDOMKEY",
        "SWAPDB",
        "SELECT",
        "MONITOR",
        "ROLE",
        "REPLICAOF",
        "SLAVEOF",
        "COMMAND",
        "ACL",
    ];
    let key = match args.items().get(1) {
        Some(Value::Text(key)) if !no_key.contains(&command.as_str()) && !command.contains(' ') => Some(key.clone()),
        _ => None,
    };
    if let Some(key) = &key {
        keys.push(key.clone());
    }
    Some(SlowEntry {
        id: id.integer()? as u64,
        at_s: at.integer()? as u64,
        us: us.integer()? as u64,
        command,
        args: words(args, rest),
        key: key.map(|k| salt.hide(&k)),
        client: rest.first().and_then(Value::text).unwrap_or_default(),
        client_name: rest.get(1).and_then(Value::text).unwrap_or_default(),
    })
}

/// How many words the command had. The server keeps 32 of them: the last one kept of a longer command says how many
/// more there were, and Redis 8.10 and newer give the number in a field.
fn words(args: &Value, rest: &[Value]) -> u32 {
    let kept = args.items().len() as u32;
    if let Some(all) = rest.get(2).and_then(Value::integer) {
        return u32::try_from(all).unwrap_or(kept).max(kept);
    }
    let last = args.items().last().and_then(Value::text).unwrap_or_default();
    let more = last.strip_prefix("... (").and_then(|t| t.strip_suffix(" more arguments)"));
    let more = more.filter(|_| kept == WORDS_KEPT).and_then(|n| n.parse::<u32>().ok());
    more.map_or(kept, |more| (kept - 1).saturating_add(more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowlog_entries_keep_the_command_and_first_key_and_no_other_argument() {
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        for (words, command, key) in [
            (&["set", "k", "secret"][..], "SET", Some("k")),
            (&["get"][..], "GET", None),
            (&["config", "get", "requirepass"][..], "CONFIG GET", None),
            (&["auth", "secret"][..], "AUTH", None),
            (&["eval", "return 1", "0"][..], "EVAL", None),
            (&["keys", "*"][..], "KEYS", None),
        ] {
            let args = Value::Array(words.iter().map(|w| text(w)).collect());
            let row = [Value::Integer(7), Value::Integer(1_700_000_000), Value::Integer(12_000), args];
            let mut keys = Vec::new();
            let new = Value::Array(row.clone().into_iter().chain([text("10.0.0.1:5"), text("app")]).collect());
            let entry = super::entry(&new, &Salt::new(true), &mut keys).unwrap();
            assert_eq!((entry.command.as_str(), entry.key.as_deref()), (command, key), "{words:?}");
            assert_eq!((entry.id, entry.us, entry.args as usize), (7, 12_000, words.len()));
            assert_eq!((entry.client.as_str(), entry.client_name.as_str()), ("10.0.0.1:5", "app"));
            assert_eq!(keys, key.map(|k| k.as_bytes().to_vec()).into_iter().collect::<Vec<_>>());
            // Before 4.0 entries name no client. The key is hashed unless it may be shown.
            let old = super::entry(&Value::Array(row.into()), &Salt::new(false), &mut keys).unwrap();
            assert_eq!((old.client.as_str(), old.client_name.as_str()), ("", ""));
            assert_eq!(old.key.is_some_and(|k| k.starts_with("key#") && k.len() == 12), key.is_some());
        }
    }

    #[test]
    fn only_a_server_that_has_the_log_is_asked_what_was_large() {
        use unslow_facts::Sample;
        use unslow_topology::Role;
        let keeps = |info: &str| {
            let last = Some(Sample { at_ms: 0, info: Info::parse(info) });
            keeps_large(&Node { last, ..Node::new("h:1", Role::Master) })
        };
        let valkey =
            |version: &str| format!("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:{version}\r\n");
        assert!(keeps(&valkey("8.1.0")) && keeps(&valkey("9.1.2")));
        assert!(!keeps(&valkey("8.0.9")) && !keeps("redis_version:8.6.0\r\n") && !keeps(""));
    }

    #[test]
    fn a_command_that_was_cut_short_in_the_log_still_tells_how_long_it_was() {
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        let mget = |words: usize, last: &str| {
            let keys = (1..words - 1).map(|i| text(&format!("k{i}")));
            let args = std::iter::once(text("MGET")).chain(keys).chain([text(last)]).collect();
            vec![Value::Integer(7), Value::Integer(1_700_000_000), Value::Integer(12_000), Value::Array(args)]
        };
        let count = |row: Vec<Value>| entry(&Value::Array(row), &Salt::new(false), &mut Vec::new()).unwrap().args;
        assert_eq!(count(mget(32, "... (9970 more arguments)")), 10_001);
        assert_eq!(count(mget(32, "k31")), 32);
        // A key that only looks like it, in a command that is logged whole.
        assert_eq!(count(mget(5, "... (9970 more arguments)")), 5);
        // The seventh field of newer servers.
        let newer = [text("10.0.0.1:5"), text("app"), Value::Integer(10_001)];
        assert_eq!(count(mget(32, "k31").into_iter().chain(newer).collect()), 10_001);
    }
}
