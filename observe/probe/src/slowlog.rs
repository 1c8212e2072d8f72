//! SLOWLOG GET: what was slow, and who sent it. Arguments stay on the server's side of the facts file: only the
//! command's name and the first key, hashed, are kept.

use unslow_client::Value;
use unslow_facts::{Seen, SlowEntry};

use crate::ask::{Ask, Salt, seen};

/// Entries asked for: the default length of the log.
const ENTRIES: &str = "128";

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

fn entry(value: &Value, salt: &Salt, keys: &mut Vec<Vec<u8>>) -> Option<SlowEntry> {
    let [id, at, us, args, rest @ ..] = value.items() else { return None };
    let word = |i: usize| args.items().get(i).and_then(Value::text).unwrap_or_default().to_uppercase();
    let mut command = word(0);
    let container = [
        "CLUSTER", "CLIENT", "CONFIG", "SLOWLOG", "LATENCY", "MEMORY", "OBJECT", "XINFO", "SCRIPT", "DEBUG", "FUNCTION",
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
        args: args.items().len() as u32,
        key: key.map(|k| salt.hide(&k)),
        client: rest.first().and_then(Value::text).unwrap_or_default(),
        client_name: rest.get(1).and_then(Value::text).unwrap_or_default(),
    })
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
}
