//! Which of the gateway's clients CLIENT LIST and CLIENT KILL mean.

use crate::reply::{error, printable};
use crate::step::Command;

/// TYPE of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Normal,
    Pubsub,
    /// Masters and replicas are clients of servers only.
    Replication,
}

/// Which clients are meant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Any when empty.
    ids: Vec<u64>,
    from: Option<String>,
    to: Option<String>,
    kind: Option<Type>,
    user: Option<Vec<u8>>,
    age_s_min: Option<u64>,
    /// The number of the client that asks, where it does not mean itself.
    not: Option<u64>,
}

/// What a filter looks at.
pub struct Subject<'a> {
    pub number: u64,
    pub from: String,
    pub to: String,
    pub pubsub: bool,
    pub user: &'a [u8],
    pub age_s: u64,
}

impl Filter {
    /// `CLIENT KILL address`.
    pub fn address(text: &[u8]) -> Filter {
        Filter { from: Some(String::from_utf8_lossy(text).into_owned()), ..Filter::default() }
    }

    /// Words and their values from the third argument on. `asker` is not meant unless SKIPME says so, if it is given.
    pub fn parse(command: &Command, asker: u64, skip: bool) -> Result<Filter, Vec<u8>> {
        let syntax = || error("ERR", "syntax error");
        let mut filter = Filter { not: skip.then_some(asker), ..Filter::default() };
        let text = |i: usize| Some(String::from_utf8_lossy(command.arg(i)).into_owned());
        let mut at = 2;
        while at < command.len() {
            if at + 1 >= command.len() {
                return Err(syntax());
            }
            match command.word(at).as_slice() {
                b"ID" => {
                    // As many as there are.
                    let ids: Vec<u64> = (at + 1..command.len()).map_while(|i| command.number(i)).collect();
                    if ids.is_empty() || ids.contains(&0) {
                        return Err(error("ERR", "client-id should be greater than 0"));
                    }
                    at += ids.len() - 1;
                    filter.ids.extend(ids);
                }
                b"ADDR" => filter.from = text(at + 1),
                b"LADDR" => filter.to = text(at + 1),
                b"USER" => filter.user = Some(command.arg(at + 1).to_vec()),
                b"TYPE" => {
                    filter.kind = Some(match command.word(at + 1).as_slice() {
                        b"NORMAL" => Type::Normal,
                        b"PUBSUB" => Type::Pubsub,
                        b"MASTER" | b"PRIMARY" | b"REPLICA" | b"SLAVE" => Type::Replication,
                        other => {
                            let other = printable(other).to_lowercase();
                            return Err(error("ERR", &format!("Unknown client type '{other}'")));
                        }
                    });
                }
                b"SKIPME" => {
                    filter.not = match command.word(at + 1).as_slice() {
                        b"YES" => Some(asker),
                        b"NO" => None,
                        _ => return Err(syntax()),
                    }
                }
                b"MAXAGE" => {
                    let Some(age) = command.number(at + 1) else {
                        return Err(error("ERR", "maxage is not an integer or out of range"));
                    };
                    filter.age_s_min = Some(age);
                }
                _ => return Err(syntax()),
            }
            at += 2;
        }
        Ok(filter)
    }

    /// The user whose clients are meant, where one is named.
    pub fn named_user(&self) -> Option<&[u8]> {
        self.user.as_deref()
    }

    pub fn takes(&self, subject: &Subject) -> bool {
        let kind = if subject.pubsub { Type::Pubsub } else { Type::Normal };
        (self.ids.is_empty() || self.ids.contains(&subject.number))
            && self.from.as_ref().is_none_or(|from| *from == subject.from)
            && self.to.as_ref().is_none_or(|to| *to == subject.to)
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.user.as_ref().is_none_or(|user| user == subject.user)
            && self.age_s_min.is_none_or(|age| subject.age_s >= age)
            && self.not != Some(subject.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::with_command as with;

    #[test]
    fn filters_mean_the_clients_that_all_their_words_fit() {
        let subject = |number: u64, pubsub: bool, user: &'static [u8], age_s: u64| Subject {
            number,
            from: format!("127.0.0.1:{number}"),
            to: "127.0.0.1:6400".into(),
            pubsub,
            user,
            age_s,
        };
        let all =
            [subject(1, false, b"default", 100), subject(2, true, b"default", 10), subject(3, false, b"reader", 10)];
        for (line, skip, expected) in [
            ("CLIENT LIST", false, &[1, 2, 3][..]),
            ("CLIENT LIST ID 1 3", false, &[1, 3]),
            ("CLIENT LIST ID 1 2 TYPE pubsub", false, &[2]),
            ("CLIENT LIST TYPE normal", false, &[1, 3]),
            ("CLIENT LIST TYPE replica", false, &[]),
            ("CLIENT KILL ID 1", true, &[]),
            ("CLIENT KILL ID 1 SKIPME no", true, &[1]),
            ("CLIENT KILL SKIPME yes", true, &[2, 3]),
            ("CLIENT KILL USER reader", true, &[3]),
            ("CLIENT KILL ADDR 127.0.0.1:2", true, &[2]),
            ("CLIENT KILL LADDR 127.0.0.1:6400", true, &[2, 3]),
            ("CLIENT KILL LADDR 127.0.0.1:1", true, &[]),
            ("CLIENT KILL MAXAGE 50 SKIPME no", true, &[1]),
        ] {
            let filter = with(line, |command| Filter::parse(command, 1, skip)).expect(line);
            let meant: Vec<u64> = all.iter().filter(|s| filter.takes(s)).map(|s| s.number).collect();
            assert_eq!(meant, expected, "{line}");
        }
        for line in [
            "CLIENT LIST ID",
            "CLIENT LIST ID x",
            "CLIENT KILL ID 0",
            "CLIENT KILL TYPE nobody",
            "CLIENT KILL SKIPME perhaps",
            "CLIENT KILL MAXAGE old",
            "CLIENT KILL NOSUCH word",
        ] {
            assert!(with(line, |command| Filter::parse(command, 1, true)).is_err(), "{line}");
        }
    }
}
