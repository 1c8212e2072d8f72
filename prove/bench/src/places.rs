//! Where a command has its keys, and which of them it writes.

use unslow_client::Value;

/// What is known of a command's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeysKnown {
    /// Where all of them are that it may write.
    All,
    /// Where some are.
    Some,
    /// Nothing: the server was not asked, and a key is likely to come first.
    Guessed,
}

/// Where the keys of one command are, as the server's COMMAND INFO and the command's own grammar tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    rule: Rule,
    known: KeysKnown,
    written: Written,
}

/// Which of its keys a command writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Every,
    First,
    AllButFirst,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    Nowhere,
    /// From one argument to another, each so far behind the one before; a negative end counts from the last.
    Range {
        first: usize,
        last: i64,
        step: usize,
    },
    /// As many as the third word says, behind it.
    Counted,
    /// Half of what is behind STREAMS.
    Streams,
    /// The first argument, and what follows one of these options.
    Stored(&'static [&'static str]),
}

impl Places {
    /// Of the command of this name (in upper case), by the row that COMMAND INFO has of it.
    pub fn of(name: &str, row: &[Value], is_movable: bool) -> Places {
        let number = |at: usize| row.get(at).and_then(Value::integer).unwrap_or(0);
        let (first, last, step) = (number(3), number(4), number(5).max(1) as usize);
        let places = |rule| Places { rule, known: KeysKnown::All, written: Written::Every };
        match name {
            "EVAL" | "EVALSHA" | "FCALL" | "EVAL_RO" | "EVALSHA_RO" | "FCALL_RO" => places(Rule::Counted),
            "XREAD" | "XREADGROUP" => places(Rule::Streams),
            "SORT" => Places { written: Written::AllButFirst, ..places(Rule::Stored(&["STORE"])) },
            "GEORADIUS" | "GEORADIUSBYMEMBER" => {
                Places { written: Written::AllButFirst, ..places(Rule::Stored(&["STORE", "STOREDIST"])) }
            }
            // Its subcommands have the place (7.0+).
            "XGROUP" => places(Rule::Range { first: 2, last: 2, step: 1 }),
            // The keys that they read are counted behind the one that they write.
            "ZUNIONSTORE" | "ZINTERSTORE" | "ZDIFFSTORE" => places(Rule::Range { first: 1, last: 1, step: 1 }),
            _ => Places {
                rule: match usize::try_from(first) {
                    Ok(first) if first > 0 => Rule::Range { first, last, step },
                    _ => Rule::Nowhere,
                },
                known: if is_movable { KeysKnown::Some } else { KeysKnown::All },
                written: match name {
                    "SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE" | "ZRANGESTORE" | "GEOSEARCHSTORE" | "PFMERGE"
                    | "BITOP" => Written::First,
                    "COPY" => Written::AllButFirst,
                    _ => Written::Every,
                },
            },
        }
    }

    /// The positions of the keys that a command may write, and whether these are all.
    pub fn written<W: AsRef<[u8]>>(&self, words: &[W]) -> (Vec<usize>, KeysKnown) {
        let (mut at, mut known) = self.among(words);
        if self.rule == Rule::Counted && at.is_empty() {
            known = KeysKnown::Some; // a script that writes declares none of its keys
        }
        match self.written {
            Written::Every => {}
            Written::First => at.truncate(1),
            Written::AllButFirst => drop(at.drain(..at.len().min(1))),
        }
        (at, known)
    }

    /// The positions of the keys among a command's words, and whether these are all.
    pub fn among<W: AsRef<[u8]>>(&self, words: &[W]) -> (Vec<usize>, KeysKnown) {
        let is = |at: usize, option: &str| {
            words.get(at).is_some_and(|word| word.as_ref().eq_ignore_ascii_case(option.as_bytes()))
        };
        let at = match self.rule {
            Rule::Nowhere => Vec::new(),
            Rule::Range { first, last, step } => {
                let end = if last < 0 { words.len() as i64 + last } else { last };
                (first..words.len()).step_by(step).take_while(|at| *at as i64 <= end).collect()
            }
            Rule::Counted => {
                let count = words.get(2).and_then(|count| std::str::from_utf8(count.as_ref()).ok()?.parse().ok());
                let end = 3usize.saturating_add(count.unwrap_or(1)).min(words.len());
                let known = if count.is_some() { self.known } else { KeysKnown::Some };
                return ((3..end).collect(), known);
            }
            // A group and a consumer may be called like the option.
            Rule::Streams => match (if is(1, "GROUP") { 4 } else { 1 }..words.len()).find(|at| is(*at, "STREAMS")) {
                Some(at) => (at + 1..at + 1 + (words.len() - at - 1) / 2).collect(),
                None => Vec::new(),
            },
            Rule::Stored(options) => {
                let stored = (3..words.len()).filter(|at| options.iter().any(|option| is(at - 1, option)));
                (1..words.len().min(2)).chain(stored).collect()
            }
        };
        (at, self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_where_the_server_and_the_grammar_say() {
        // The command, its first and last key and the step between them, whether they move; and the keys.
        for (command, row, is_movable, expected) in [
            ("SET a b", [1, 1, 1], false, "a"),
            ("MSET a 1 b 2", [1, -1, 2], false, "a b"),
            ("DEL a b c", [1, -1, 1], false, "a b c"),
            ("BLPOP a b 0", [1, -2, 1], false, "a b"),
            ("LMOVE a b LEFT RIGHT", [1, 2, 1], false, "a b"),
            ("RENAME a", [1, 2, 1], false, "a"),
            ("PING", [0, 0, 0], false, ""),
            ("EVAL script 2 a b c", [0, 0, 0], true, "a b"),
            ("FCALL name 0 a", [0, 0, 0], true, ""),
            ("EVAL script 18446744073709551615 a b", [0, 0, 0], true, "a b"),
            ("XREADGROUP GROUP g c COUNT 1 streams a b > >", [0, 0, 0], true, "a b"),
            ("XREADGROUP GROUP streams c STREAMS a >", [0, 0, 0], true, "a"),
            ("XREADGROUP GROUP g c", [0, 0, 0], true, ""),
            ("XREAD", [0, 0, 0], true, ""),
            ("XGROUP CREATE a g $", [0, 0, 0], false, "a"),
            ("SORT a BY nosort STORE b", [1, 1, 1], true, "a b"),
            ("SORT a STORE", [1, 1, 1], true, "a"),
            ("SORT store DESC", [1, 1, 1], true, "store"),
            ("GEORADIUS a 1 1 1 m STOREDIST b", [1, 1, 1], true, "a b"),
            ("ZUNIONSTORE a 2 b c", [1, 1, 1], true, "a"),
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            let mut fields = vec![Value::Null; 3];
            fields.extend(row.map(Value::Integer));
            let (at, known) = Places::of(words[0], &fields, is_movable).among(&words);
            let keys: Vec<&str> = at.iter().map(|at| words[*at]).collect();
            assert_eq!((keys.join(" ").as_str(), known), (expected, KeysKnown::All), "{command}");
        }
        for (command, row, expected) in [
            ("SUNIONSTORE a b c", [1, -1, 1], "a"),
            ("BITOP AND a b c", [2, -1, 1], "a"),
            ("COPY a b", [1, 2, 1], "b"),
            ("SORT a STORE b", [1, 1, 1], "b"),
            ("SORT a", [1, 1, 1], ""),
            ("SMOVE a b c", [1, 2, 1], "a b"),
        ] {
            let words: Vec<&str> = command.split(' ').collect();
            let mut fields = vec![Value::Null; 3];
            fields.extend(row.map(Value::Integer));
            let (at, _) = Places::of(words[0], &fields, false).written(&words);
            let keys: Vec<&str> = at.iter().map(|at| words[*at]).collect();
            assert_eq!(keys.join(" "), expected, "{command}");
        }
        let script = Places::of("EVAL", &[], true).written(&["EVAL", "script", "0"]);
        assert_eq!(script, (vec![], KeysKnown::Some), "it may write what it does not declare");
        let row = |name| Places::of(name, &[], true).among(&[name, "a", "many", "b"]);
        assert_eq!(row("EVAL"), (vec![3], KeysKnown::Some), "a count that is no number");
        assert_eq!(row("MODULE.CALL"), (vec![], KeysKnown::Some), "keys that move where nobody says");
    }
}
