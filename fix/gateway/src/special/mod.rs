//! Commands with a state: transactions, blocking, pub/sub, MONITOR, tracking, who one is. They get connections to servers of
//! their own, and give them back clean.

mod blocking;
mod client;
mod identity;
mod pubsub;
#[cfg(test)]
mod tests;
mod transaction;

use unslow_nodes::Author;
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::slot_of;

use crate::map::NOBODY;
use crate::request::Range;
use crate::session::*;
use crate::worker::{Worker, bulk, error, is};
use unslow_topology::commands::{Plan, Special, Spread, UNKNOWN};

/// MULTI, as it is sent.
const MULTI_BYTES: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
/// Commands for the operator of a server that mean no harm on any node of a cluster.
const HARMLESS: [&str; 23] = [
    "CONFIG|GET",
    "CONFIG|HELP",
    "SLOWLOG|GET",
    "SLOWLOG|LEN",
    "SLOWLOG|HELP",
    "LATENCY|LATEST",
    "LATENCY|HISTORY",
    "LATENCY|DOCTOR",
    "LATENCY|GRAPH",
    "LATENCY|HISTOGRAM",
    "LATENCY|HELP",
    "ACL|LIST",
    "ACL|USERS",
    "ACL|GETUSER",
    "ACL|LOG",
    "ACL|DRYRUN",
    "ACL|WHOAMI",
    "ACL|CAT",
    "ACL|GENPASS",
    "MODULE|LIST",
    "MODULE|HELP",
    "LASTSAVE",
    "ACL|HELP",
];

impl Worker {
    /// Whatever is not common. False when it has to wait.
    pub fn special(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let Some(client) = self.client(whom) else { return true };
        let idle = client.pending.is_empty();
        if plan.number == UNKNOWN && crosses_protocols(bytes, args) {
            // Servers close at once: it is HTTP, written by a browser whose user knows nothing of it.
            self.stats.error("protocol");
            self.close_when_answered(io, whom);
            return true;
        }
        if client.set == NONE
            && !matches!(plan.special, Some(Special::Auth | Special::Hello | Special::Quit | Special::Reset))
        {
            self.say(io, whom, b"-NOAUTH Authentication required.\r\n");
            return true;
        }
        if matches!(plan.special, Some(Special::Subscribe | Special::Ssubscribe)) && client.unsubscribing > 0 {
            // How many confirmations the next one has depends on those that are to come.
            self.stall(io, whom, Stall::Room);
            return false;
        }
        if client.proto == 2 && !client.subs.is_empty() {
            match plan.special {
                Some(Special::Subscribe | Special::Ssubscribe | Special::Quit | Special::Reset) => {}
                _ if client.unsubscribing > 0 => {
                    // Whether it still is a subscriber shows with the next confirmation.
                    self.stall(io, whom, Stall::Room);
                    return false;
                }
                Some(Special::Ping) if args.len() <= 2 => {
                    let mut out = b"*2\r\n$4\r\npong\r\n".to_vec();
                    bulk(&mut out, args.get(1).map_or(b"", |&(a, b)| &bytes[a as usize..b as usize]));
                    self.say(io, whom, &out);
                    return true;
                }
                _ => {
                    let name = self.table.get(plan.number).name.to_lowercase();
                    let why = format!(
                        "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context"
                    );
                    self.say(io, whom, &error("ERR", &why));
                    return true;
                }
            }
        }
        let Some(client) = self.client(whom) else { return true };
        if client.monitor && !matches!(plan.special, Some(Special::Quit | Special::Reset)) {
            self.say(io, whom, b"-ERR unslow: only QUIT and RESET end MONITOR\r\n");
            return true;
        }
        if matches!(client.multi, Multi::Said | Multi::Open) {
            if let Some(why) = self.not_in_transactions(plan) {
                if let Some(client) = self.client(whom) {
                    client.poisoned = true;
                }
                self.say(io, whom, &error("ERR", &why));
                return true;
            }
            if is(plan, Special::Exec) && self.client(whom).is_some_and(|c| c.poisoned) {
                return self.abort(io, whom);
            }
        }
        let Some(client) = self.client(whom) else { return true };
        match client.multi {
            Multi::Open if !matches!(plan.special, Some(Special::Quit | Special::Reset)) => {
                return self.in_transaction(io, whom, bytes, args, plan);
            }
            Multi::Lost if !matches!(plan.special, Some(Special::Quit | Special::Reset)) => {
                self.lost_transaction(io, whom, args.len(), plan);
                return true;
            }
            Multi::Said if !matches!(plan.special, Some(Special::Quit | Special::Reset)) => {
                return self.first_in_transaction(io, whom, bytes, args, plan);
            }
            _ => {}
        }
        if self.may_close(plan) && self.shares_connections(whom) {
            if !idle {
                self.stall(io, whom, Stall::Answers);
                return false;
            }
            self.own_set(whom);
        }
        if plan.special.is_some() && !self.table.get(plan.number).fits(args.len()) {
            self.wrong_arity(io, whom, plan);
            return true;
        }
        let arg = |i: usize| &bytes[args[i].0 as usize..args[i].1 as usize];
        match plan.special {
            None if plan.blocking => return self.block(io, whom, bytes, args, plan),
            None => return self.ordinary(io, whom, bytes, args, plan),
            Some(
                Special::Watch
                | Special::Unwatch
                | Special::Multi
                | Special::Subscribe
                | Special::Ssubscribe
                | Special::Monitor
                | Special::Wait
                | Special::Auth
                | Special::Hello
                | Special::Select
                | Special::Reset
                | Special::Client,
            ) if !idle => {
                self.stall(io, whom, Stall::Answers);
                return false;
            }
            Some(Special::Ping) if args.len() == 1 => self.say(io, whom, b"+PONG\r\n"),
            Some(Special::Ping) if args.len() == 2 => {
                let mut out = Vec::new();
                bulk(&mut out, arg(1));
                self.say(io, whom, &out);
            }
            Some(Special::Ping) => self.say(io, whom, b"-ERR wrong number of arguments for 'ping' command\r\n"),
            Some(Special::Quit) => {
                self.say(io, whom, b"+OK\r\n");
                self.close_when_answered(io, whom);
            }
            Some(Special::Asking | Special::ReadOnly) if self.cluster => self.say(io, whom, b"+OK\r\n"),
            // A server without slots has no replicas to read from by them: what it says changes nothing.
            Some(Special::Asking | Special::ReadOnly) => return self.send(io, whom, bytes, plan, 0, Kind::Reply),
            Some(Special::Exec) => self.say(io, whom, b"-ERR EXEC without MULTI\r\n"),
            Some(Special::Discard) => self.say(io, whom, b"-ERR DISCARD without MULTI\r\n"),
            Some(Special::Multi) => {
                if args.len() != 1 {
                    self.say(io, whom, b"-ERR wrong number of arguments for 'multi' command\r\n");
                    return true;
                }
                let Some(client) = self.client(whom) else { return true };
                client.queued.clear();
                (client.blind, client.multi_db, client.poisoned) = (false, None, false);
                if client.watch_lost && client.pin != NONE {
                    // Something it watched was lost: what it watches since does not make up for it.
                    let pin = std::mem::replace(&mut client.pin, NONE);
                    client.watching = false;
                    self.close_lane(io, pin);
                }
                let Some(client) = self.client(whom) else { return true };
                if client.pin == NONE {
                    client.multi = if client.watch_lost { Multi::Lost } else { Multi::Said };
                    self.say(io, whom, b"+OK\r\n");
                } else {
                    client.multi = Multi::Open;
                    let pin = client.pin;
                    self.on_lane(io, whom, pin, bytes, plan, NO_SLOT, Kind::Reply);
                }
            }
            Some(Special::Watch) => return self.watch(io, whom, bytes, args, plan),
            Some(Special::Unwatch) => match self.client(whom).map_or(NONE, |c| c.pin) {
                NONE => {
                    if let Some(client) = self.client(whom) {
                        client.watch_lost = false;
                    }
                    self.say(io, whom, b"+OK\r\n");
                }
                pin => {
                    if let Some(client) = self.client(whom) {
                        client.barrier = true;
                    }
                    self.on_lane(io, whom, pin, bytes, plan, NO_SLOT, Kind::Exec);
                }
            },
            Some(Special::Scan) if self.cluster => return self.scan(io, whom, bytes, args, plan),
            Some(Special::Scan) => return self.send(io, whom, bytes, plan, 0, Kind::Reply),
            Some(Special::Wait) => {
                let Some(client) = self.client(whom) else { return true };
                let node = client.last_node;
                let node = if node == NOBODY { self.node_for(NO_SLOT, false, whom) } else { node };
                if node == NOBODY {
                    let answer = self.nobody(NO_SLOT);
                    self.say(io, whom, answer.as_bytes());
                    return true;
                }
                let lane = self.dedicate(whom, node);
                // The server counts from the connection's last command: a PING makes that now, behind every write of ours.
                let mut ping = Vec::new();
                write_command(&mut ping, &["PING"]);
                self.on_lane(io, whom, lane, &ping, plan, NO_SLOT, Kind::Swallow);
                self.on_lane(io, whom, lane, bytes, plan, NO_SLOT, Kind::Block);
            }
            Some(Special::Subscribe) => self.subscribe(io, whom, bytes, args, plan),
            Some(Special::Ssubscribe) => self.subscribe_sharded(io, whom, bytes, args, plan),
            Some(Special::Monitor) => {
                let Some(node) = self.master_of(io, whom, NO_SLOT) else { return true };
                let lane = self.dedicate(whom, node);
                self.lanes[lane as usize].raw = true;
                self.lanes[lane as usize].dirty = true;
                if let Some(client) = self.client(whom) {
                    client.monitor = true;
                }
                self.push_raw(io, lane, bytes);
            }
            Some(Special::Auth) => {
                self.auth(io, whom, &(1..args.len()).map(|i| arg(i).to_vec()).collect::<Vec<_>>(), None, None)
            }
            Some(Special::Hello) => self.hello(io, whom, &(1..args.len()).map(|i| arg(i).to_vec()).collect::<Vec<_>>()),
            Some(Special::Select) => self.select(io, whom, bytes, args, plan),
            Some(Special::Reset) => self.reset(io, whom),
            Some(Special::Client) => return self.client_command(io, whom, bytes, args, plan),
            Some(Special::Cluster) if self.cluster => return self.cluster_command(io, whom, bytes, args, plan),
            Some(Special::Cluster) => return self.send(io, whom, bytes, plan, 0, Kind::Reply),
            Some(Special::Unslow) if !self.trusted(whom) => {
                self.say(io, whom, b"-NOPERM unslow: UNSLOW is for the user the gateway itself logs in as\r\n");
            }
            Some(Special::Unslow) => {
                let words: Vec<String> =
                    (1..args.len()).map(|i| String::from_utf8_lossy(arg(i)).into_owned()).collect();
                self.unslow(io, whom, &words);
            }
            Some(Special::Replicate) => {
                self.say(
                    io,
                    whom,
                    b"-ERR unslow: replication does not go through a gateway; connect to the server itself\r\n",
                );
            }
        }
        true
    }

    /// Whether the server may close the connection that such a command comes on: a command of another name (`rename-command`) may be
    /// QUIT or CLIENT KILL, and operators have SHUTDOWN, DEBUG and REPLICAOF.
    pub(super) fn may_close(&self, plan: &Plan) -> bool {
        let admin = || plan.admin && !HARMLESS.contains(&self.table.get(plan.number).name.as_str());
        plan.special.is_none() && (plan.number == UNKNOWN || admin())
    }

    /// Whether the client's next command goes on connections that others use too.
    pub(super) fn shares_connections(&mut self, whom: Whom) -> bool {
        let set = self.client(whom).map_or(NONE, |c| c.set);
        set != NONE && self.sets[set as usize].owner.is_none()
    }

    /// No state, but not one key and one answer either; or one of those within WATCH.
    pub(super) fn ordinary(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let second = args.get(1).map_or(&b""[..], |&(a, b)| &bytes[a as usize..b as usize]);
        let name = &self.table.get(plan.number).name;
        if name.starts_with("SCRIPT") && second.eq_ignore_ascii_case(b"DEBUG") {
            self.say(
                io,
                whom,
                b"-ERR unslow: the script debugger takes a connection for itself; connect to the server directly\r\n",
            );
            return true;
        }
        if name.ends_with("|KILL") && plan.key.is_none() && !self.map.masters.is_empty() {
            return self.spread(io, whom, bytes, plan);
        }
        if !self.cluster {
            let slot = if plan.key.is_some() || !self.map.masters.is_empty() { 0 } else { NO_SLOT };
            return self.send(io, whom, bytes, plan, slot, Kind::Reply);
        }
        if let Some(how) = plan.divide {
            return self.divide(io, whom, bytes, args, plan, how);
        }
        if plan.spread != Spread::Any && plan.key.is_none() {
            return self.spread(io, whom, bytes, plan);
        }
        if plan.key.is_none() && plan.admin {
            let mut name = self.table.get(plan.number).name.clone();
            if let (false, Some(&(a, b))) = (name.contains('|'), args.get(1)) {
                // Servers before 7.0 have no table of subcommands.
                let second = String::from_utf8_lossy(&bytes[a as usize..b as usize]).to_ascii_uppercase();
                name += &format!("|{}", second.chars().filter(char::is_ascii_alphabetic).collect::<String>());
            }
            if !HARMLESS.contains(&name.as_str()) {
                self.stats.error("for_one_node");
                let why = format!(
                    "unslow: {name} is for one node of a cluster, and a gateway would choose any; connect to the node itself"
                );
                self.say(io, whom, &error("ERR", &why));
                return true;
            }
        }
        if plan.unsure && plan.key.is_none() {
            // The node that is asked may send it elsewhere: nothing of this client may be under way then.
            let Some(client) = self.client(whom) else { return true };
            if !client.pending.is_empty() {
                self.stall(io, whom, Stall::Answers);
                return false;
            }
            client.barrier = true;
        }
        let slot = plan.key.map_or(NO_SLOT, |at| slot_of(&bytes[args[at].0 as usize..args[at].1 as usize]));
        self.send(io, whom, bytes, plan, slot, Kind::Reply)
    }

    /// Who takes writes for a slot; where nobody does the client has its answer.
    pub(super) fn master_of(&mut self, io: &mut Io, whom: Whom, slot: u16) -> Option<u16> {
        let node = self.node_for(slot, false, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return None;
        }
        Some(node)
    }

    pub(super) fn slot(&self, bytes: &[u8], args: &[Range], plan: &Plan) -> u16 {
        match plan.key {
            Some(at) if self.cluster => slot_of(&bytes[args[at].0 as usize..args[at].1 as usize]),
            _ if self.cluster => NO_SLOT,
            _ => 0,
        }
    }

    #[allow(clippy::too_many_arguments)] // what a flight needs
    pub(super) fn on_lane(
        &mut self,
        io: &mut Io,
        whom: Whom,
        lane: u32,
        bytes: &[u8],
        plan: &Plan,
        slot: u16,
        kind: Kind,
    ) {
        let now = self.now;
        let Some(client) = self.client(whom) else { return };
        let seq = match kind {
            Kind::Swallow => u32::from(bytes == MULTI_BYTES) * MULTI_SEQ,
            _ => client.begin(),
        };
        client.commands += 1;
        let queued = client.multi == Multi::Open;
        self.stats.commands += 1;
        let mut flight = Flight::new(whom, seq, plan, bytes, now, slot, kind);
        (flight.repeatable, flight.read) = (false, false);
        if queued {
            // It is queued or refused; scripts run with EXEC, and what they say stands within its array.
            flight.author = Author::Server;
        }
        self.push(io, lane, flight, bytes);
    }

    pub(super) fn wrong_arity(&mut self, io: &mut Io, whom: Whom, plan: &Plan) {
        let name = self.table.get(plan.number).name.to_lowercase();
        let why = format!("wrong number of arguments for '{name}' command");
        let answer = match is(plan, Special::Exec) {
            true => error("EXECABORT", &format!("Transaction discarded because of: {why}")),
            false => error("ERR", &why),
        };
        self.say(io, whom, &answer);
    }
}

/// `POST` and `Host:`, the words by which servers tell that a browser was made to talk to them.
fn crosses_protocols(bytes: &[u8], args: &[Range]) -> bool {
    let name = args.first().map_or(&b""[..], |&(a, b)| &bytes[a as usize..b as usize]);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}
