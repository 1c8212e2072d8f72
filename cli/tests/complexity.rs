//! What the doctor takes for constant-time commands, held against a server's own documentation: COMMAND DOCS (7.0+).
//!
//! A command that stands in these lists by mistake is a cause the doctor never names: its time is put down to something
//! else.

use unslow_client::{Connection, Value};
use unslow_doctor::measure::{CONSTANT_TIME, PER_ARGUMENT, WITHOUT_COUNT};
use unslow_testkit::standalone;

/// Constant for our purpose, although the documentation does not begin with O(1), and why.
const NEARLY_CONSTANT: &[(&str, &str)] = &[
    ("AUTH", "O(N) over the passwords of one user: a handful"),
    ("ZINCRBY", "O(log N): some 30 steps in the largest sorted set there can be"),
    ("ZRANK", "O(log N), as ZINCRBY"),
    ("ZREVRANK", "O(log N), as ZINCRBY"),
];

/// What the documentation counts where the time grows with the arguments alone.
const ARGUMENTS: &[&str] = &["each ", "every ", "number of "];

/// Commands without a count whose documentation speaks of the count alone.
const ONE_WITHOUT_COUNT: &[&str] =
    &["number of elements returned", "number of fields returned", "number of members returned"];

/// A command's documented complexity.
fn complexity(c: &mut Connection, command: &str) -> String {
    let name = command.to_lowercase().replace(' ', "|");
    let reply = c.call(&["COMMAND", "DOCS", name.as_str()]).unwrap_or_else(|e| panic!("COMMAND DOCS {name}: {e}"));
    let docs = reply.items().get(1).unwrap_or_else(|| panic!("this server has no {command}"));
    docs.get("complexity").and_then(Value::text).unwrap_or_else(|| panic!("{command} has no documented complexity"))
}

#[test]
fn constant_time_commands_are_documented_as_such() {
    let server = standalone("valkey-9.1");
    let mut c = server.connect().unwrap();
    for command in CONSTANT_TIME {
        let documented = complexity(&mut c, command);
        let listed = NEARLY_CONSTANT.iter().any(|(name, _)| name == command);
        // "O(1) for each ..." grows with the arguments, "O(1) ... O(N)" with something else.
        let constant = documented.starts_with("O(1)") && !documented.contains(" each ") && !documented.contains("O(N");
        assert!(constant || listed, "{command}: {documented}");
        assert!(!(constant && listed), "{command} needs no exception any more: {documented}");
    }
    for command in PER_ARGUMENT {
        let documented = complexity(&mut c, command);
        let by_arguments = ARGUMENTS.iter().any(|word| documented.contains(word));
        // What comes back is no argument; the data's own size is none either, but for the log N of sorted sets.
        let by_data =
            documented.contains("returned") || documented.contains("cardinality") || documented.contains("size of the");
        assert!(by_arguments && !by_data, "{command}: {documented}");
    }
    for command in WITHOUT_COUNT {
        let documented = complexity(&mut c, command);
        let one = documented.contains("Without the count argument O(1)")
            || documented.starts_with("O(log(N)*M)")
            || ONE_WITHOUT_COUNT.iter().any(|words| documented.contains(words));
        assert!(one, "{command}: {documented}");
    }
}

#[test]
fn what_grows_with_the_data_stands_in_no_list() {
    for command in
        ["HGETALL", "LINDEX", "PUBLISH", "XREAD", "XREADGROUP", "KEYS", "DEL", "SUNION", "XADD", "SETRANGE", "RENAME"]
    {
        let lists = [CONSTANT_TIME, PER_ARGUMENT, WITHOUT_COUNT].concat();
        assert!(!lists.contains(&command), "{command}");
    }
}
