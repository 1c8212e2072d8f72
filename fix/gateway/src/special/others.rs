//! CLIENT LIST, KILL, PAUSE and UNPAUSE: what the gateway's own user may do with the gateway's clients. Servers know
//! nothing of them.

use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::commands::{Plan, Special};

use crate::map::NOBODY;
use crate::request;
use crate::session::{Client, Flight, Kind, NO_SLOT, Whom};
use crate::shared::What;
use crate::step::Command;
use crate::worker::{MS, Worker, error};

/// What keeps clients from being served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Halt {
    #[default]
    No,
    /// CLIENT PAUSE ... WRITE.
    Writes,
    /// CLIENT PAUSE.
    Commands,
    /// UNSLOW PAUSE.
    Everything,
}

impl Halt {
    /// Whether such a command waits. `writes` is whether it may change data.
    pub fn stops(self, plan: &Plan, writes: bool) -> bool {
        match self {
            Halt::No => false,
            // What is queued by MULTI was stopped on its way; EXEC of what was queued before runs it.
            Halt::Writes => writes || plan.special == Some(Special::Exec),
            Halt::Commands => !matches!(plan.special, Some(Special::Unslow | Special::Client)),
            Halt::Everything => plan.special != Some(Special::Unslow),
        }
    }
}

/// CLIENT PAUSE and UNSLOW PAUSE together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// UNSLOW PAUSE, until UNSLOW RESUME.
    pub operator: bool,
    clients: Halt,
    until: u64,
}

impl Pauses {
    /// As servers do: a second pause never shortens or weakens the first.
    pub fn pause(&mut self, halt: Halt, until: u64, now: u64) {
        let still = self.until > now;
        self.clients = if still && self.clients == Halt::Commands { Halt::Commands } else { halt };
        self.until = if still { self.until.max(until) } else { until };
    }

    /// CLIENT UNPAUSE.
    pub fn unpause(&mut self) {
        (self.clients, self.until) = (Halt::No, 0);
    }

    pub fn halt(&self, now: u64) -> Halt {
        match self.operator {
            true => Halt::Everything,
            false if self.until > now => self.clients,
            false => Halt::No,
        }
    }
}

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
    fn address(text: &[u8]) -> Filter {
        Filter { from: Some(String::from_utf8_lossy(text).into_owned()), ..Filter::default() }
    }

    /// Words and their values from the third argument on. `asker` is not meant unless SKIPME says so, if it is given.
    fn parse(command: &Command, asker: u64, skip: bool) -> Result<Filter, Vec<u8>> {
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
                            let other = super::client::printable(other).to_lowercase();
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

/// `CLIENT PAUSE timeout [WRITE|ALL]`: what it stops, and for how many milliseconds.
fn pause_of(command: &Command) -> Result<(Halt, u64), Vec<u8>> {
    let halt = match (command.len(), command.word(3).as_slice()) {
        (3, _) | (4, b"ALL") => Halt::Commands,
        (4, b"WRITE") => Halt::Writes,
        _ => return Err(error("ERR", "syntax error")),
    };
    match command.number::<i64>(2).map(u64::try_from) {
        Some(Ok(ms)) => Ok((halt, ms)),
        Some(Err(_)) => Err(error("ERR", "timeout is negative")),
        None => Err(error("ERR", "timeout is not an integer or out of range")),
    }
}

impl Worker {
    /// CLIENT LIST, KILL, PAUSE, UNPAUSE. Every thread does its part, and the answer comes when all have.
    pub(super) fn about_others(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        if !self.trusted(whom) {
            let why = "unslow: CLIENT LIST, KILL, PAUSE and UNPAUSE are for the user the gateway itself logs in as";
            return self.say(io, whom, &error("NOPERM", why));
        }
        let Some(number) = self.client(whom).map(|c| c.number) else { return };
        let now = self.now;
        let question = match (command.word(1).as_slice(), command.len()) {
            (b"LIST", _) => Filter::parse(command, number, false).map(|filter| (What::ClientList, filter)),
            (b"KILL", 3) => Ok((What::ClientKillOne, Filter::address(command.arg(2)))),
            (b"KILL", 4..) => Filter::parse(command, number, true).map(|filter| (What::ClientKill, filter)),
            (b"PAUSE", 3..) => pause_of(command).map(|(halt, ms)| {
                let until = now.saturating_add(ms.saturating_mul(MS));
                (What::Pause(halt, until), Filter::default())
            }),
            (b"UNPAUSE", 2) => Ok((What::Unpause, Filter::default())),
            _ => Err(error("ERR", "syntax error")),
        };
        match question {
            Ok((what, filter)) => self.ask_about(whom, what, filter),
            Err(answer) => self.say(io, whom, &answer),
        }
    }

    /// Our clients that are meant.
    pub fn meant(&self, filter: &Filter) -> Vec<Whom> {
        self.everyone().filter(|client| filter.takes(&self.subject(client))).map(Client::whom).collect()
    }

    fn subject<'a>(&'a self, client: &Client) -> Subject<'a> {
        let identity = client.identity.and_then(|i| self.identities[i].as_ref());
        Subject {
            number: client.number,
            from: crate::admin::address(client.from),
            to: crate::admin::address(client.to),
            pubsub: !client.subs.is_empty(),
            user: identity.and_then(|i| i.user.as_deref()).unwrap_or(b"default"),
            age_s: self.now.saturating_sub(client.born) / (1000 * MS),
        }
    }

    /// Closes those that are meant; `asker`, if it is ours and meant too, when it has its answer. Returns how many they
    /// are.
    pub fn kill(&mut self, io: &mut Io, filter: &Filter, asker: Option<Whom>) -> usize {
        let meant = self.meant(filter);
        for whom in &meant {
            if Some(*whom) == asker {
                self.close_when_answered(io, *whom);
            } else {
                self.drop_client(io, *whom);
            }
        }
        meant.len()
    }

    /// CLIENT KILL of a user's clients meant nobody. Whether there is such a user, and what is said where there is
    /// none, differs by version: a server is asked to close those at an address that no client has.
    pub fn killed_nobody(&mut self, io: &mut Io, whom: Whom, seq: u32, user: &[u8]) {
        let node = self.node_for(self.anywhere(), false, whom);
        let set = self.client(whom).and_then(|client| client.set);
        let Some(set) = set.filter(|_| node != NOBODY) else { return self.answer(io, whom, seq, b":0\r\n", true) };
        let (mut bytes, mut args) = (Vec::new(), Vec::new());
        let words: [&[u8]; 6] = [b"CLIENT", b"KILL", b"USER", user, b"ADDR", b"0.0.0.0:0"];
        write_command(&mut bytes, &words);
        request::parse_whole(&bytes, &mut args);
        let plan = self.table.plan(&bytes, &args);
        let lane = self.lane_of(set, node);
        let flight = Flight::new(whom, seq, &plan, &bytes, self.now, NO_SLOT, Kind::Reply);
        self.push(io, lane, flight, &bytes);
    }

    /// Whether a command waits for the end of a pause.
    #[cold]
    pub fn waits_out(&self, plan: &Plan) -> bool {
        self.halted.stops(plan, self.table.get(plan.number).writes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(line: &str, judge: impl FnOnce(&Command) -> T) -> T {
        let (mut whole, mut args) = (Vec::new(), Vec::new());
        unslow_resp::write_command(&mut whole, &line.split(' ').collect::<Vec<_>>());
        request::parse_whole(&whole, &mut args);
        let table = crate::worker::tests::table();
        judge(&Command { bytes: &whole, args: &args, plan: table.plan(&whole, &args) })
    }

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

    #[test]
    fn a_second_pause_never_shortens_or_weakens_the_first() {
        let mut pauses = Pauses::default();
        pauses.pause(Halt::Writes, 100, 0);
        assert_eq!((pauses.halt(99), pauses.halt(100)), (Halt::Writes, Halt::No));
        pauses.pause(Halt::Commands, 50, 0);
        assert_eq!((pauses.halt(99), pauses.halt(100)), (Halt::Commands, Halt::No));
        pauses.pause(Halt::Writes, 200, 0);
        assert_eq!(pauses.halt(199), Halt::Commands);
        // What is over counts no more.
        pauses.pause(Halt::Writes, 310, 300);
        assert_eq!(pauses.halt(309), Halt::Writes);
        pauses.operator = true;
        assert_eq!(pauses.halt(1000), Halt::Everything);
        pauses.operator = false;
        pauses.unpause();
        assert_eq!(pauses.halt(0), Halt::No);
    }

    #[test]
    fn a_pause_stops_what_it_says() {
        for (line, writes, commands) in [
            ("SET k v", true, true),
            ("GET k", false, true),
            ("EVAL text 0", true, true),
            ("NOSUCH", true, true),
            ("EXEC", true, true),
            ("PING", false, true),
            ("CLIENT UNPAUSE", false, false),
            ("UNSLOW RESUME", false, false),
        ] {
            let stops = |halt: Halt| {
                with(line, |command| {
                    let table = crate::worker::tests::table();
                    halt.stops(&command.plan, table.get(command.plan.number).writes)
                })
            };
            assert_eq!((stops(Halt::Writes), stops(Halt::Commands)), (writes, commands), "{line}");
            assert!(!stops(Halt::No));
            assert_eq!(stops(Halt::Everything), !line.starts_with("UNSLOW"));
        }
        for (line, expected) in [
            ("CLIENT PAUSE 5", Some((Halt::Commands, 5))),
            ("CLIENT PAUSE 5 all", Some((Halt::Commands, 5))),
            ("CLIENT PAUSE 5 write", Some((Halt::Writes, 5))),
            ("CLIENT PAUSE 5 reads", None),
            ("CLIENT PAUSE -1", None),
            ("CLIENT PAUSE soon", None),
        ] {
            assert_eq!(with(line, pause_of).ok(), expected, "{line}");
        }
    }
}
