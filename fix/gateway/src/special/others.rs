//! CLIENT LIST, KILL, PAUSE and UNPAUSE: what the gateway's own user may do with the gateway's clients. Servers know
//! nothing of them.

use unslow_commands::Plan;
use unslow_reactor::Io;
use unslow_resp::write_command;

use crate::clock::MS;
use crate::filter::{Filter, Subject};
use crate::pauses::pause_of;
use crate::reply::error;
use crate::request;
use crate::session::{Client, Flight, Kind, NO_SLOT, Whom};
use crate::shared::What;
use crate::step::Command;
use crate::worker::Worker;
use unslow_nodes::NOBODY;

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
            from: crate::admin::address(client.ends.from()),
            to: crate::admin::address(client.ends.to()),
            pubsub: !client.subscriber.lanes.is_empty(),
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
