//! Where commands have their keys, by rows of COMMAND as servers send them.

use unslow_commands::{Table, number_of_keys};
use unslow_resp::{Value, write_command};

fn text(text: &str) -> Value {
    Value::Text(text.as_bytes().to_vec())
}

/// A row without key specifications, as 7.0 and later have it.
fn row(name: &str, arity: i64, key: i64, subcommands: Vec<Value>) -> Value {
    let keys = [key, key, i64::from(key > 0)].map(Value::Integer);
    let head = vec![text(name), Value::Integer(arity), Value::Array(Vec::new())];
    let rest =
        vec![Value::Array(Vec::new()), Value::Array(Vec::new()), Value::Array(Vec::new()), Value::Array(subcommands)];
    Value::Array([head, keys.to_vec(), rest].concat())
}

/// The first key that a table of these rows finds in a command.
fn key(rows: &[Value], words: &[&str]) -> Option<usize> {
    let get = row("get", 2, 1, Vec::new());
    let table = Table::parse(&Value::Array([rows, &[get]].concat()), &[]).expect("a table of commands");
    let (mut bytes, mut args) = (Vec::new(), Vec::new());
    write_command(&mut bytes, words);
    let mut at = 0;
    for word in words {
        let found = bytes[at..].windows(word.len()).position(|w| w == word.as_bytes()).expect("it was written");
        args.push(((at + found) as u32, (at + found + word.len()) as u32));
        at += found + word.len();
    }
    table.plan(&bytes, &args).key
}

#[test]
fn a_group_of_subcommands_has_no_key_where_the_server_lists_them() {
    let listed = [row("xgroup", -2, 0, vec![row("xgroup|create", -5, 2, Vec::new())])];
    assert_eq!(key(&listed, &["XGROUP", "CREATE", "stream", "group", "0"]), Some(2));
    // A server says that there is no such subcommand; the group is no key.
    assert_eq!(key(&listed, &["XGROUP", "stream", "group"]), None);
    // Before 7.0 the command is the only thing that can have a key.
    let alone = [row("xgroup", -2, 0, Vec::new())];
    assert_eq!(key(&alone, &["XGROUP", "CREATE", "stream", "group", "0"]), Some(2));
}

#[test]
fn keys_are_counted_as_servers_count_them_to_find_the_node() {
    for (count, found) in [
        ("1", true),
        ("2", true),
        ("+1", true),
        ("1 ", true),
        (" 1", true),
        ("\r\n1", true),
        ("1e400", true),
        ("99999999999999999999", true),
        ("0", false),
        ("-1", false),
        ("0x10", false),
        ("garbage", false),
        ("- 1", false),
        ("+-1", false),
    ] {
        let rows = [row("zdiff", -3, 0, Vec::new())];
        assert_eq!(key(&rows, &["ZDIFF", count, "one", "two"]), found.then_some(2), "{count:?}");
        assert_eq!(number_of_keys(count.as_bytes()) > 0, found, "{count:?}");
    }
    assert_eq!(number_of_keys(b""), 0);
}
