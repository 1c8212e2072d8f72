//! Who one is, in which protocol and database.

use super::Said;
use crate::config::{ClientAuth, Facade};
use crate::ids::LaneId;
use crate::reply::bulk;
use crate::session::*;
use crate::step::Command;
use crate::worker::Worker;
use unslow_reactor::Io;
use unslow_resp::{write_command, write_header};

/// With more sets of connections than this, those that nobody uses are looked for at each AUTH.
const SETS_MANY: usize = 32;

/// Where the database of a client is from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Database {
    /// It was there before AUTH, HELLO or RESET.
    Kept,
    /// The server has just let the client select it.
    Selected,
}

impl Worker {
    /// Whether the client is who the gateway is.
    pub fn trusted(&mut self, whom: Whom) -> bool {
        let identity = self.client(whom).and_then(|c| c.identity);
        identity.is_some_and(|i| self.identities[i].is_some() && self.identities[i] == self.identities[OWN])
    }

    /// AUTH, or the part of HELLO; the server judges on a connection that is nobody's.
    pub(super) fn auth_command(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let (user, password) = match command.len() {
            2 => (None, command.arg(1).to_vec()),
            3 => (Some(command.arg(1).to_vec()), command.arg(2).to_vec()),
            _ => return self.say(io, whom, b"-ERR wrong number of arguments for 'auth' command\r\n"),
        };
        let identity = Identity { user, password: Some(password) };
        self.auth(io, whom, Claim { identity, hello: None, named: None });
    }

    pub(super) fn auth(&mut self, io: &mut Io, whom: Whom, claim: Claim) {
        let Some(node) = self.master_of(io, whom, NO_SLOT) else { return };
        let set = self.set_of(JUDGED, 0, 2);
        let lane = self.take_lane(set, node, whom);
        let mut bytes = Vec::new();
        write_command(&mut bytes, &claim.identity.auth());
        if let Some(client) = self.client(whom) {
            client.asked = Some(Box::new(Asked::Auth(claim)));
            client.barrier = true;
        }
        let plan = self.table.plan(&bytes, &[(0, 0)]);
        self.on_lane(io, whom, lane, Said { bytes: &bytes, plan: &plan, slot: NO_SLOT, kind: Kind::Auth });
    }

    pub fn authenticated(&mut self, io: &mut Io, lane: LaneId, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        // Whoever was let in, the next AUTH on it says who it is. What a server refused may have changed anything about
        // it.
        if bytes != b"+OK\r\n" {
            self.lanes[lane].dirty = true;
        }
        self.return_lane(io, lane);
        let asked = self.client(whom).and_then(|c| c.asked.take()).map(|asked| *asked);
        let claim = match asked {
            Some(Asked::Auth(claim)) => claim,
            Some(Asked::Db(db)) => {
                let moves = self.client(whom).is_some_and(|c| c.db != db);
                if moves && bytes.first() == Some(&b'+') {
                    self.use_db(io, whom, db);
                }
                return self.answer(io, whom, flight.seq, bytes, true);
            }
            Some(Asked::Setup(_)) | None => return,
        };
        if bytes.first() == Some(&b'-') {
            return self.answer(io, whom, flight.seq, bytes, true);
        }
        let Claim { identity, hello, named } = claim;
        let at = self.identity_of(identity);
        let Some(client) = self.client(whom) else { return };
        client.identity = Some(at);
        client.proto = hello.unwrap_or(client.proto);
        if let Some(name) = named {
            client.rename(name);
        }
        self.settle(io, whom, Database::Kept);
        if self.sets.len() > SETS_MANY {
            (self.reap_at, self.tick_at) = (0, 0);
        }
        let answer = if hello.is_some() { self.hello_answer(whom) } else { bytes.to_vec() };
        self.answer(io, whom, flight.seq, &answer, true);
    }

    /// A set of lanes for who the client is now.
    pub(super) fn settle(&mut self, io: &mut Io, whom: Whom, database: Database) {
        let Some(client) = self.client(whom) else { return };
        let (identity, db, proto, old, bulky) = (client.identity, client.db, client.proto, client.set, client.bulky);
        if let Some(pin) = client.pin.take() {
            // It watches as somebody else, or elsewhere: the next EXEC fails.
            client.watch = client.watch.broken();
            self.close_lane(io, pin);
        }
        let setup = old.map_or(Vec::new(), |old| self.sets[old].setup.clone());
        let before = old.filter(|old| self.sets[*old].db == db).map(|old| self.sets[old].selector);
        if let Some(old) = old {
            self.disown_set(io, old, whom);
        }
        let set = identity.map(|identity| {
            let selector = match database {
                Database::Selected => identity,
                // The gateway's own user can select what the gateway is configured for.
                Database::Kept if identity == OWN => OWN,
                Database::Kept => before.unwrap_or(OWN),
            };
            if bulky || !setup.is_empty() {
                self.add_set(Set { setup, selector, ..Set::of(identity, db, proto, Some(whom)) })
            } else {
                self.set_selected_by(selector, identity, db, proto)
            }
        });
        if let Some(client) = self.client(whom) {
            client.set = set;
        }
    }

    pub(super) fn hello(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let resp3 = self.shared.server.lock().expect("no thread panicked").2;
        if !resp3 {
            return self.say(io, whom, b"-ERR unknown command `HELLO`, with args beginning with: \r\n");
        }
        let Some(client) = self.client(whom) else { return };
        let mut proto = client.proto;
        let words: Vec<&[u8]> = (1..command.len()).map(|i| command.arg(i)).collect();
        let mut rest = &words[..];
        if let [version, more @ ..] = rest {
            proto = match *version {
                b"2" => 2,
                b"3" => 3,
                v if v.iter().all(u8::is_ascii_digit) => {
                    return self.say(io, whom, b"-NOPROTO unsupported protocol version\r\n");
                }
                _ => return self.say(io, whom, b"-ERR Protocol version is not an integer or out of range\r\n"),
            };
            rest = more;
        }
        let (mut auth, mut named) = (None, None);
        while let [word, more @ ..] = rest {
            match (word.to_ascii_uppercase().as_slice(), more) {
                (b"AUTH", [user, password, more @ ..]) => {
                    auth = Some(Identity { user: Some(user.to_vec()), password: Some(password.to_vec()) });
                    rest = more;
                }
                (b"SETNAME", [name, more @ ..]) => {
                    if name.iter().any(|b| !(b'!'..=b'~').contains(b)) {
                        return self.say(
                            io,
                            whom,
                            b"-ERR Client names cannot contain spaces, newlines or special characters.\r\n",
                        );
                    }
                    named = Some(name.to_vec());
                    rest = more;
                }
                _ => return self.say(io, whom, b"-ERR Syntax error in HELLO option\r\n"),
            }
        }
        if let Some(identity) = auth {
            return self.auth(io, whom, Claim { identity, hello: Some(proto), named });
        }
        if client.identity.is_none() {
            return self.say(
                io,
                whom,
                b"-NOAUTH HELLO must be called with the client already authenticated, otherwise \
                                        the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the \
                                        client and select the RESP protocol version at the same time\r\n",
            );
        }
        client.proto = proto;
        if let Some(name) = named {
            client.rename(name);
        }
        self.settle(io, whom, Database::Kept);
        let answer = self.hello_answer(whom);
        self.say(io, whom, &answer);
    }

    pub(super) fn hello_answer(&mut self, whom: Whom) -> Vec<u8> {
        let (name, version, _) = self.shared.server.lock().expect("no thread panicked").clone();
        let mode = if self.cluster && self.config.facade == Facade::Cluster { "cluster" } else { "standalone" };
        let Some(client) = self.client(whom) else { return Vec::new() };
        let mut out = Vec::new();
        if client.proto == 3 {
            write_header(&mut out, b'%', 7);
        } else {
            write_header(&mut out, b'*', 14);
        }
        let mut pair = |key: &str, value: &str| {
            bulk(&mut out, key.as_bytes());
            bulk(&mut out, value.as_bytes());
        };
        pair("server", &name);
        pair("version", &version);
        bulk(&mut out, b"proto");
        write_header(&mut out, b':', usize::from(client.proto));
        bulk(&mut out, b"id");
        write_header(&mut out, b':', client.number as usize);
        let mut pair = |key: &str, value: &str| {
            bulk(&mut out, key.as_bytes());
            bulk(&mut out, value.as_bytes());
        };
        pair("mode", mode);
        pair("role", "master");
        bulk(&mut out, b"modules");
        out.extend_from_slice(b"*0\r\n");
        out
    }

    pub(super) fn select(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let text = std::str::from_utf8(command.arg(1)).ok();
        // As servers read it: no sign, no zero in front.
        let db = text.and_then(|text| text.parse::<u32>().ok().filter(|n| n.to_string() == text));
        let Some(client) = self.client(whom) else { return };
        let Some(db) = db else {
            return self.say(io, whom, b"-ERR value is not an integer or out of range\r\n");
        };
        let (identity, proto, set, same) = (client.identity, client.proto, client.set, db == client.db);
        let known = self.sets.iter().any(|s| {
            let selected = s.db != 0 && s.identity == Some(s.selector);
            selected && s.identity == identity && s.db == db && s.proto == proto
        });
        // Whether a user may say SELECT the server knows, also where it changes nothing.
        if known || identity == Some(OWN) && (same || db == 0) {
            if !same {
                self.use_db(io, whom, db);
            }
            return self.say(io, whom, b"+OK\r\n");
        }
        // Whether there is such a database the server knows.
        let slot = self.anywhere();
        let (Some(node), Some(set)) = (self.master_of(io, whom, slot), set) else { return };
        let lane = self.take_lane(set, node, whom);
        self.lanes[lane].dirty |= !same;
        if let Some(client) = self.client(whom) {
            client.asked = Some(Box::new(Asked::Db(db)));
            client.barrier = true;
        }
        let said = Said { bytes: command.bytes, plan: &command.plan, slot: NO_SLOT, kind: Kind::Auth };
        self.on_lane(io, whom, lane, said);
    }

    pub(super) fn use_db(&mut self, io: &mut Io, whom: Whom, db: u32) {
        if let Some(client) = self.client(whom) {
            client.db = db;
            self.settle(io, whom, Database::Selected);
        }
    }

    pub(super) fn reset(&mut self, io: &mut Io, whom: Whom) {
        let anonymous = self.config.client_auth == ClientAuth::Server;
        let db = self.shared.target.db;
        let Some(client) = self.client(whom) else { return };
        let dedicated = [client.pin.take(), client.aside.take()].into_iter().flatten();
        let lanes: Vec<LaneId> = client.subscriber.take().lanes.into_iter().chain(dedicated).collect();
        client.watch = Watch::Nothing;
        client.end_doing();
        client.rename(Vec::new());
        (client.proto, client.db, client.bulky) = (2, db, false);
        (client.replies, client.notified) = (Replies::On, false);
        (client.asked, client.tracking) = (None, false);
        client.identity = (!anonymous).then_some(OWN);
        if let Some(set) = client.set.filter(|set| self.sets[*set].owner == Some(whom)) {
            self.sets[set].setup.clear();
        }
        for lane in lanes {
            self.close_lane(io, lane);
        }
        self.settle(io, whom, Database::Kept);
        self.say(io, whom, b"+RESET\r\n");
    }
}
