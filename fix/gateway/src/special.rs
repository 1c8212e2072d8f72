//! Commands with a state: transactions, blocking, pub/sub, MONITOR, tracking, who one is. They get connections to servers of
//! their own, and give them back clean.

use unslow_reactor::Io;
use unslow_resp::{Frame, write_command, write_header};
use unslow_topology::{Health, slot_of};

use crate::config::{ClientAuth, Facade};
use crate::map::NOBODY;
use crate::request::Range;
use crate::session::*;
use crate::shared::{Message, What};
use crate::worker::{Worker, bulk, error, is};
use unslow_topology::commands::{Plan, Special, Spread, UNKNOWN};

/// Bytes of subscriptions that a server has not been told yet.
const UNSENT_SUBSCRIPTIONS_MAX: usize = 1 << 20;
/// MULTI, as it is sent.
const MULTI_BYTES: &[u8] = b"*1\r\n$5\r\nMULTI\r\n";
/// Commands without a key that wait in a transaction for one that has one.
const QUEUED_MAX: usize = 1024;
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
        match client.multi {
            Multi::Open if !matches!(plan.special, Some(Special::Quit | Special::Reset)) => {
                return self.in_transaction(io, whom, bytes, args, plan);
            }
            Multi::Lost if !matches!(plan.special, Some(Special::Quit | Special::Reset)) => {
                self.lost_transaction(io, whom, plan);
                return true;
            }
            Multi::Said if !matches!(plan.special, Some(Special::Quit | Special::Reset)) => {
                return self.first_in_transaction(io, whom, bytes, args, plan);
            }
            _ => {}
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
            Some(Special::Asking | Special::ReadOnly) => {
                self.say(io, whom, b"-ERR This instance has cluster support disabled\r\n");
            }
            Some(Special::Exec) => self.say(io, whom, b"-ERR EXEC without MULTI\r\n"),
            Some(Special::Discard) => self.say(io, whom, b"-ERR DISCARD without MULTI\r\n"),
            Some(Special::Multi) => {
                if args.len() != 1 {
                    self.say(io, whom, b"-ERR wrong number of arguments for 'multi' command\r\n");
                    return true;
                }
                let Some(client) = self.client(whom) else { return true };
                client.queued.clear();
                (client.blind, client.multi_db) = (false, None);
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
                        client.watching = false;
                        client.barrier = true;
                    }
                    self.on_lane(io, whom, pin, bytes, plan, NO_SLOT, Kind::Block);
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
                self.auth(io, whom, &(1..args.len()).map(|i| arg(i).to_vec()).collect::<Vec<_>>(), None)
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

    /// Whether the client is who the gateway is.
    pub fn trusted(&mut self, whom: Whom) -> bool {
        let identity = self.client(whom).map_or(NONE, |c| c.identity);
        self.identities.get(identity as usize).is_some_and(|i| *i == self.identities[0])
    }

    /// No state, but not one key and one answer either; or one of those within WATCH.
    fn ordinary(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
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
    fn master_of(&mut self, io: &mut Io, whom: Whom, slot: u16) -> Option<u16> {
        let node = self.node_for(slot, false, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return None;
        }
        Some(node)
    }

    fn slot(&self, bytes: &[u8], args: &[Range], plan: &Plan) -> u16 {
        match plan.key {
            Some(at) if self.cluster => slot_of(&bytes[args[at].0 as usize..args[at].1 as usize]),
            _ if self.cluster => NO_SLOT,
            _ => 0,
        }
    }

    /// A lane for this client alone, as its pin.
    pub fn dedicate(&mut self, whom: Whom, node: u16) -> u32 {
        let Some(client) = self.client(whom) else { return NONE };
        if client.pin != NONE {
            return client.pin;
        }
        let set = client.set;
        let lane = self.take_lane(set, node, whom);
        if let Some(client) = self.client(whom) {
            client.pin = lane;
            client.barrier = true;
        }
        lane
    }

    #[allow(clippy::too_many_arguments)] // what a flight needs
    fn on_lane(&mut self, io: &mut Io, whom: Whom, lane: u32, bytes: &[u8], plan: &Plan, slot: u16, kind: Kind) {
        let now = self.now;
        let Some(client) = self.client(whom) else { return };
        let seq = match kind {
            Kind::Swallow => u32::from(bytes == MULTI_BYTES) * MULTI_SEQ,
            _ => client.begin(),
        };
        client.commands += 1;
        self.stats.commands += 1;
        let flight = Flight {
            whom,
            seq,
            len: bytes.len() as u32,
            at: now,
            command: plan.number,
            slot,
            node: NOBODY,
            part: 0,
            kind,
            tries: 0,
            repeatable: false,
            read: false,
        };
        self.push(io, lane, flight, bytes);
    }

    /// The dedicated lane has done its work.
    pub fn unpin(&mut self, io: &mut Io, whom: Whom, lane: u32) {
        let Some(client) = self.client(whom) else { return };
        if client.pin == lane && !client.watching && client.multi == Multi::No && !client.monitor {
            client.pin = NONE;
            self.return_lane(io, lane);
        }
    }

    // Blocking.

    fn block(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let Some(client) = self.client(whom) else { return true };
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let slot = self.slot(bytes, args, plan);
        let Some(node) = self.master_of(io, whom, slot) else { return true };
        let lane = self.dedicate(whom, node);
        if let Some(client) = self.client(whom) {
            client.barrier = true;
            client.last_node = node;
        }
        self.on_lane(io, whom, lane, bytes, plan, slot, Kind::Block);
        true
    }

    /// -UNBLOCKED: the server became a replica, and the command did not run.
    pub fn blocked_elsewhere(&mut self, io: &mut Io, lane: u32, flight: &Flight) -> bool {
        let bytes = self.lanes[lane as usize].journal.front(flight.len as usize).to_vec();
        self.lanes[lane as usize].journal.pop(flight.len as usize);
        let whom = flight.whom;
        let watching = self.client(whom).is_some_and(|c| c.watching);
        if watching {
            self.fail_flight(io, flight, b"-UNBLOCKED the server has become a replica\r\n");
            return true;
        }
        match self.client(whom) {
            Some(client) if client.pin == lane => client.pin = NONE,
            _ => return true,
        }
        self.return_lane(io, lane);
        // Where to is only known when the watcher has looked.
        self.later(
            crate::worker::Again { flight: Flight { tries: flight.tries + 1, ..*flight }, bytes, asking: None },
            20 * crate::worker::MS,
        );
        true
    }

    /// MOVED on a dedicated lane: nothing has happened there yet, so it can be another one, as long as it is the first
    /// command. True when that was done.
    pub fn pinned_moved(
        &mut self,
        io: &mut Io,
        lane: u32,
        flight: &Flight,
        to: u16,
        fresh: bool,
        asking: bool,
    ) -> bool {
        let whom = flight.whom;
        let Some(client) = self.client(whom) else { return false };
        let first = client.multi == Multi::No && client.pin == lane && flight.len > 0 && flight.tries < 5 && fresh;
        let alone = self.lanes[lane as usize].flights.is_empty();
        let bytes = self.lanes[lane as usize].journal.front(flight.len as usize).to_vec();
        self.lanes[lane as usize].journal.pop(flight.len as usize);
        self.lanes[lane as usize].dirty = true;
        if !first || !alone || !matches!(flight.kind, Kind::Block | Kind::Reply) {
            let text = b"-TRYAGAIN unslow: the slot has moved to another node; begin again\r\n";
            if flight.kind == Kind::Exec {
                // The server has discarded it.
                self.executed(io, lane, flight, text);
                return true;
            }
            self.answer(io, whom, flight.seq, text, true);
            if flight.kind == Kind::Block {
                self.unpin(io, whom, lane);
            }
            return true;
        }
        client_pin_none(self, whom);
        self.return_lane(io, lane);
        let lane = self.dedicate(whom, to);
        if asking {
            let mut ask = Vec::new();
            write_command(&mut ask, &["ASKING"]);
            self.push(io, lane, Flight { len: ask.len() as u32, kind: Kind::Swallow, ..*flight }, &ask);
        }
        self.push(io, lane, Flight { tries: flight.tries + 1, ..*flight }, &bytes);
        true
    }

    /// The connection that this client had alone is gone, and with it what the server knew of it.
    pub fn lost_own_lane(&mut self, io: &mut Io, lane: u32, whom: Whom) {
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        if let Some(stream) = client.stream.as_mut().filter(|s| s.lane == lane) {
            (stream.lost, stream.lane) = (true, NONE);
        }
        let Some(client) = self.client(whom) else { return };
        if client.subs.contains(&lane) {
            return self.subscribe_anew(io, whom, lane);
        }
        if client.pin == lane {
            let monitor = client.monitor;
            let within = client.multi == Multi::Open;
            client.pin = NONE;
            client.monitor = false;
            // What was queued is gone; EXEC must not pretend otherwise. The next EXEC says so.
            if within || client.watching {
                client.multi = if within { Multi::Lost } else { Multi::No };
                client.watch_lost = client.watching;
                client.watching = false;
            }
            self.close_lane(io, lane);
            if monitor {
                self.drop_client(io, whom);
            }
            return;
        }
        let (tracking, proto) = (client.tracking, client.proto);
        if self.lanes[lane as usize].pooled {
            return self.close_lane(io, lane);
        }
        if tracking && proto == 3 {
            // The server has forgotten what it promised to tell: everything has to be asked for anew.
            self.push_to(io, whom, b">2\r\n$10\r\ninvalidate\r\n_\r\n");
        }
        // A lane of its own set is dialled again when needed, its setup said anew.
    }

    // Transactions.

    fn watch(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let slot = self.slot(bytes, args, plan);
        let pin = self.client(whom).map_or(NONE, |c| c.pin);
        let node = match pin {
            NONE => self.node_for(slot, false, whom),
            pin => self.lanes[pin as usize].node,
        };
        if node == NOBODY {
            let answer = self.nobody(slot);
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        let lane = self.dedicate(whom, node);
        if let Some(client) = self.client(whom) {
            client.watching = true;
            client.barrier = true;
        }
        self.on_lane(io, whom, lane, bytes, plan, slot, Kind::Reply);
        true
    }

    /// Which node a transaction is for shows with its first key.
    fn first_in_transaction(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        match plan.special {
            Some(Special::Exec | Special::Discard)
                if self.client(whom).is_some_and(|c| c.queued.is_empty()) || is(plan, Special::Discard) =>
            {
                if let Some(client) = self.client(whom) {
                    client.multi = Multi::No;
                    client.queued.clear();
                }
                let nothing: &[u8] = if is(plan, Special::Exec) { b"*0\r\n" } else { b"+OK\r\n" };
                self.say(io, whom, nothing);
                return true;
            }
            None | Some(Special::Ping) if self.cluster && plan.key.is_none() && plan.number != UNKNOWN => {
                // It names no node; the next one may. What the server would refuse it has to refuse itself.
                let fits = self.table.get(plan.number).fits(args.len());
                let Some(client) = self.client(whom) else { return true };
                if fits && client.queued.len() < QUEUED_MAX {
                    client.queued.push(bytes.to_vec());
                    self.say(io, whom, b"+QUEUED\r\n");
                    return true;
                }
            }
            _ => {}
        }
        let Some(client) = self.client(whom) else { return true };
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let slot = self.slot(bytes, args, plan);
        let cluster = self.cluster;
        let node = self.node_for(slot, false, whom);
        if node == NOBODY {
            let answer = self.nobody(slot);
            if let Some(client) = self.client(whom) {
                client.multi = Multi::Lost;
            }
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        let lane = self.dedicate(whom, node);
        if let Some(client) = self.client(whom) {
            client.multi = Multi::Open;
            client.multi_db = None;
            client.blind = cluster && plan.key.is_none();
            // Commands may follow at once: all go to the same connection.
            client.barrier = false;
            client.last_node = node;
        }
        let mut multi = Vec::new();
        write_command(&mut multi, &["MULTI"]);
        self.on_lane(io, whom, lane, &multi, plan, slot, Kind::Swallow);
        let queued = self.client(whom).map(|c| c.queued.clone()).unwrap_or_default();
        self.say_again(io, whom, lane, queued, plan);
        self.in_transaction(io, whom, bytes, args, plan)
    }

    /// The connection of the transaction, or the one that watched for it, is gone.
    fn lost_transaction(&mut self, io: &mut Io, whom: Whom, plan: &Plan) {
        let Some(client) = self.client(whom) else { return };
        let changed = client.watch_lost;
        let answer: &[u8] = match plan.special {
            Some(Special::Exec | Special::Discard) => {
                client.multi = Multi::No;
                client.watch_lost = false;
                client.queued.clear();
                match (is(plan, Special::Exec), changed) {
                    (false, _) => b"+OK\r\n",
                    // As if a watched key had changed, which nobody knows.
                    (true, true) if client.proto == 3 => b"_\r\n",
                    (true, true) => b"*-1\r\n",
                    (true, false) => b"-EXECABORT unslow: the server's connection broke before EXEC; nothing of this transaction ran\r\n",
                }
            }
            _ if changed => b"+QUEUED\r\n",
            _ => b"-ERR unslow: the server's connection broke; nothing of this transaction will run\r\n",
        };
        self.say(io, whom, answer);
    }

    fn in_transaction(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        if self.client(whom).is_some_and(|c| c.blind) && !self.sighted(io, whom, bytes, args, plan) {
            return false;
        }
        let Some(client) = self.client(whom) else { return true };
        let pin = client.pin;
        if pin == NONE {
            client.multi = Multi::Lost;
            self.lost_transaction(io, whom, plan);
            return true;
        }
        let kind = match plan.special {
            Some(Special::Exec | Special::Discard) if args.len() == 1 => {
                client.barrier = true;
                Kind::Exec
            }
            Some(Special::Select) => {
                let db = args
                    .get(1)
                    .and_then(|&(a, b)| std::str::from_utf8(&bytes[a as usize..b as usize]).ok()?.parse().ok());
                client.multi_db = db.or(client.multi_db);
                self.lanes[pin as usize].dirty = true;
                Kind::Reply
            }
            Some(Special::Unslow | Special::Replicate) => {
                self.say(io, whom, b"-ERR unslow: not within MULTI\r\n");
                return true;
            }
            Some(
                Special::Client
                | Special::Auth
                | Special::Hello
                | Special::Subscribe
                | Special::Ssubscribe
                | Special::Monitor,
            ) => {
                self.lanes[pin as usize].dirty = true;
                Kind::Reply
            }
            _ => Kind::Reply,
        };
        let slot = self.slot(bytes, args, plan);
        self.on_lane(io, whom, pin, bytes, plan, slot, kind);
        true
    }

    /// What a transaction has said before it had its node; a MULTI among it is the client's own mistake.
    fn say_again(&mut self, io: &mut Io, whom: Whom, lane: u32, queued: Vec<Vec<u8>>, plan: &Plan) {
        for command in queued {
            self.on_lane(io, whom, lane, &command, plan, NO_SLOT, Kind::Swallow);
            if let Some(flight) = self.lanes[lane as usize].flights.back_mut() {
                flight.seq = 0;
            }
        }
    }

    /// A transaction that began on any node, because nothing in it named one, is begun anew on the one its first key
    /// names. False when it has to wait.
    fn sighted(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let Some(client) = self.client(whom) else { return true };
        if plan.key.is_none() {
            if client.queued.len() < QUEUED_MAX {
                client.queued.push(bytes.to_vec());
            }
            return true;
        }
        if !client.pending.is_empty() {
            self.stall(io, whom, Stall::Answers);
            return false;
        }
        let (pin, queued) = (client.pin, std::mem::take(&mut client.queued));
        client.blind = false;
        let slot = self.slot(bytes, args, plan);
        let node = self.node_for(slot, false, whom);
        if node == NOBODY || self.lanes[pin as usize].node == node {
            return true;
        }
        client_pin_none(self, whom);
        self.close_lane(io, pin);
        let lane = self.dedicate(whom, node);
        // What is said again may be AUTH, SELECT or the like.
        self.lanes[lane as usize].dirty = true;
        let mut multi = Vec::new();
        write_command(&mut multi, &["MULTI"]);
        self.on_lane(io, whom, lane, &multi, plan, slot, Kind::Swallow);
        self.say_again(io, whom, lane, queued, plan);
        if let Some(client) = self.client(whom) {
            client.barrier = false;
        }
        true
    }

    /// EXEC or DISCARD was answered.
    pub fn executed(&mut self, io: &mut Io, lane: u32, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        if let Some(client) = self.client(whom) {
            client.multi = Multi::No;
            client.watching = false;
            client.blind = false;
            client.watch_lost = false;
            client.queued.clear();
            let db = client.multi_db.take();
            let ran = bytes.first() == Some(&b'*') && !bytes.starts_with(b"*-1");
            if let (Some(db), true) = (db, ran) {
                let pin = self.client(whom).map(|c| std::mem::replace(&mut c.pin, NONE));
                self.use_db(io, whom, db);
                if let (Some(client), Some(pin)) = (self.client(whom), pin) {
                    client.pin = pin;
                }
            }
        }
        self.answer(io, whom, flight.seq, bytes, true);
        self.unpin(io, whom, lane);
    }

    // Pub/sub.

    /// Bytes for a lane on which answers are not counted.
    pub fn push_raw(&mut self, io: &mut Io, lane: u32, bytes: &[u8]) {
        let l = &mut self.lanes[lane as usize];
        l.raw = true;
        if let (true, Some(connection)) = (l.flows(), l.connection) {
            io.output(connection).extend_from_slice(bytes);
        } else {
            l.journal.push(bytes);
            self.lanes_waiting += 1;
            self.dial_if_needed(io, lane);
        }
    }

    /// The lane of a client's subscriptions to a node; of all that need no certain node for `None`.
    fn sub_lane(&mut self, whom: Whom, node: Option<u16>) -> u32 {
        let Some(client) = self.client(whom) else { return NONE };
        let (subs, set) = (client.subs.clone(), client.set);
        let held = match node {
            None => subs.first(),
            Some(node) => subs.iter().find(|l| self.lanes[**l as usize].node == node),
        };
        if let Some(lane) = held {
            return *lane;
        }
        let node = node.unwrap_or_else(|| self.node_for(NO_SLOT, false, whom));
        if node == NOBODY || set == NONE {
            return NONE;
        }
        let lane = self.take_lane(set, node, whom);
        (self.lanes[lane as usize].raw, self.lanes[lane as usize].dirty) = (true, true);
        if let Some(client) = self.client(whom) {
            client.subs.push(lane);
        }
        lane
    }

    fn wrong_arity(&mut self, io: &mut Io, whom: Whom, plan: &Plan) {
        let name = self.table.get(plan.number).name.to_lowercase();
        self.say(io, whom, &error("ERR", &format!("wrong number of arguments for '{name}' command")));
    }

    fn subscribe(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) {
        if !self.table.get(plan.number).fits(args.len()) {
            return self.wrong_arity(io, whom, plan);
        }
        let arg = |i: usize| &bytes[args[i].0 as usize..args[i].1 as usize];
        let (kind, ends) = match arg(0).to_ascii_uppercase().as_slice() {
            b"SUBSCRIBE" => (b'c', false),
            b"PSUBSCRIBE" => (b'p', false),
            b"UNSUBSCRIBE" => (b'c', true),
            b"PUNSUBSCRIBE" => (b'p', true),
            _ => (b's', true),
        };
        let lane = self.sub_lane(whom, None);
        if lane == NONE {
            let answer = self.nobody(NO_SLOT);
            return self.say(io, whom, answer.as_bytes());
        }
        if self.lanes[lane as usize].journal.len() > UNSENT_SUBSCRIPTIONS_MAX {
            return self.close_slow(io, whom);
        }
        let Some(client) = self.client(whom) else { return };
        if ends {
            // One confirmation for each name; for no name one for each there is, and one at least.
            let held = client.channels.keys().filter(|(k, _)| *k == kind).count().max(1);
            client.unsubscribing += if args.len() > 1 { args.len() - 1 } else { held };
        } else {
            for i in 1..args.len() {
                let subscription = Subscription { lane, confirmed: false, silent: false };
                client.channels.entry((kind, arg(i).to_vec())).or_insert(subscription);
                client.subscribing += 1;
            }
        }
        self.push_raw(io, lane, bytes);
    }

    fn subscribe_sharded(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) {
        if !self.table.get(plan.number).fits(args.len()) {
            return self.wrong_arity(io, whom, plan);
        }
        let arg = |i: usize| &bytes[args[i].0 as usize..args[i].1 as usize];
        let ends = arg(0).eq_ignore_ascii_case(b"SUNSUBSCRIBE");
        let mut names: Vec<Vec<u8>> = (1..args.len()).map(|i| arg(i).to_vec()).collect();
        if ends && names.is_empty() {
            let Some(client) = self.client(whom) else { return };
            names = client.channels.keys().filter(|(kind, _)| *kind == b's').map(|(_, n)| n.clone()).collect();
            if names.is_empty() {
                return self.subscribe(io, whom, bytes, args, plan);
            }
        }
        for name in names {
            let Some(client) = self.client(whom) else { return };
            let channel = (b's', name.clone());
            let held = client.channels.get(&channel).map(|s| s.lane).filter(|l| *l != NONE);
            if ends {
                client.channels.remove(&channel);
                self.homeless.retain(|(w, c)| *w != whom || *c != channel);
            }
            if ends && held.is_none() && !self.client(whom).is_some_and(|c| c.subs.is_empty()) {
                // It was on its way to another node: nobody has it.
                let mut said = if self.client(whom).is_some_and(|c| c.proto == 3) {
                    b">3\r\n".to_vec()
                } else {
                    b"*3\r\n".to_vec()
                };
                bulk(&mut said, b"sunsubscribe");
                bulk(&mut said, &name);
                said.extend_from_slice(b":0\r\n");
                self.push_to(io, whom, &said);
                self.perhaps_unsubscribed(io, whom);
                continue;
            }
            let owner = match self.cluster {
                true => Some(self.map.slots[usize::from(slot_of(&name))]),
                false => None,
            };
            let lane = match (ends, held, owner) {
                (true, Some(lane), _) => lane,
                (_, _, Some(NOBODY)) => {
                    let answer = self.nobody(slot_of(&name));
                    self.say(io, whom, answer.as_bytes());
                    continue;
                }
                (_, _, owner) => self.sub_lane(whom, owner),
            };
            if lane == NONE {
                continue;
            }
            if self.lanes[lane as usize].journal.len() > UNSENT_SUBSCRIPTIONS_MAX {
                return self.close_slow(io, whom);
            }
            let Some(client) = self.client(whom) else { return };
            if ends {
                client.unsubscribing += 1;
            } else {
                client.channels.entry(channel).or_insert(Subscription { lane, confirmed: false, silent: false });
                client.subscribing += 1;
            }
            let mut command = Vec::new();
            write_command(&mut command, &[arg(0), &name]);
            self.push_raw(io, lane, &command);
        }
    }

    /// What comes on a lane without an answer being owed.
    pub fn unasked(&mut self, io: &mut Io, lane: u32, first: u8, bytes: &[u8]) {
        let l = &self.lanes[lane as usize];
        let Some(whom) = l.owner else { return };
        let raw = l.raw;
        let Some(client) = self.client(whom) else { return };
        if client.monitor || !raw {
            return self.push_to(io, whom, bytes);
        }
        if first == b'-' {
            if bytes.starts_with(b"-MOVED") {
                self.shared.doubt();
                return self.subscribe_anew(io, whom, lane);
            }
            // One of its commands was refused: as many confirmations fewer are to come.
            let before = client.channels.len();
            client.channels.retain(|_, s| s.confirmed || s.lane != lane);
            if client.subscribing > 0 {
                let gone = (before - client.channels.len()).max(1);
                client.subscribing = client.subscribing.saturating_sub(gone);
            } else {
                client.unsubscribing = client.unsubscribing.saturating_sub(1);
            }
            self.push_to(io, whom, bytes);
            return self.perhaps_unsubscribed(io, whom);
        }
        let frame = Frame::new(bytes);
        let mut items = frame.items();
        let word = items.next().map(|w| w.text().to_vec()).unwrap_or_default();
        let (kind, begins) = match word.as_slice() {
            b"subscribe" => (b'c', true),
            b"psubscribe" => (b'p', true),
            b"ssubscribe" => (b's', true),
            b"unsubscribe" => (b'c', false),
            b"punsubscribe" => (b'p', false),
            b"sunsubscribe" => (b's', false),
            _ => return self.push_to(io, whom, bytes),
        };
        let channel = (kind, items.next().map(|n| n.text().to_vec()).unwrap_or_default());
        if begins {
            let new = Subscription { lane, confirmed: true, silent: false };
            let held = client.channels.entry(channel).or_insert(new);
            let silent = std::mem::replace(&mut held.silent, false);
            held.confirmed = true;
            if !silent {
                client.subscribing = client.subscribing.saturating_sub(1);
                self.push_to(io, whom, bytes);
            }
            return;
        }
        if kind == b's' && client.channels.get(&channel).is_some_and(|s| s.lane == lane) {
            // The slot has left this node; the client asked for no such thing. It goes on where the slot is now.
            if let Some(held) = client.channels.get_mut(&channel) {
                held.lane = NONE;
            }
            self.shared.doubt();
            self.homeless.push((whom, channel));
            self.lanes_waiting += 1;
            return;
        }
        client.channels.remove(&channel);
        client.unsubscribing = client.unsubscribing.saturating_sub(1);
        self.push_to(io, whom, bytes);
        self.perhaps_unsubscribed(io, whom);
    }

    /// Nothing is subscribed or about to be: the client is as any other again.
    fn perhaps_unsubscribed(&mut self, io: &mut Io, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        if client.channels.is_empty() && client.unsubscribing == 0 && client.subscribing == 0 {
            for lane in std::mem::take(&mut client.subs) {
                self.close_lane(io, lane);
            }
        }
    }

    /// Subscriptions that wait for a node to be on.
    pub fn house(&mut self, io: &mut Io) {
        for (whom, channel) in std::mem::take(&mut self.homeless) {
            let waits = self.client(whom).and_then(|c| c.channels.get(&channel)).is_some_and(|s| s.lane == NONE);
            if !waits {
                continue;
            }
            let (kind, name) = &channel;
            let sharded = *kind == b's' && self.cluster;
            let to = if sharded { Some(self.map.slots[usize::from(slot_of(name))]) } else { None };
            let ill = to.is_some_and(|n| self.map.servers.get(usize::from(n)).is_none_or(|s| s.health != Health::Up));
            let lane = if ill { NONE } else { self.sub_lane(whom, to) };
            if lane == NONE {
                self.homeless.push((whom, channel));
                continue;
            }
            let word = match kind {
                b's' => "SSUBSCRIBE",
                b'p' => "PSUBSCRIBE",
                _ => "SUBSCRIBE",
            };
            let mut command = Vec::new();
            write_command(&mut command, &[word.as_bytes(), name]);
            if let Some(held) = self.client(whom).and_then(|c| c.channels.get_mut(&channel)) {
                // Who has its confirmation gets no second one.
                (held.lane, held.silent) = (lane, held.silent || held.confirmed);
                held.confirmed = false;
            }
            self.push_raw(io, lane, &command);
        }
    }

    /// A lane of subscriptions is gone: all of them again, elsewhere, without the client hearing of it.
    fn subscribe_anew(&mut self, io: &mut Io, whom: Whom, lane: u32) {
        let Some(client) = self.client(whom) else { return self.close_lane(io, lane) };
        client.subs.retain(|l| *l != lane);
        if client.unsubscribing > 0 {
            // Which of its confirmations were lost nobody knows.
            self.close_lane(io, lane);
            return self.drop_client(io, whom);
        }
        let mut moving = Vec::new();
        for (channel, held) in client.channels.iter_mut().filter(|(_, s)| s.lane == lane) {
            held.lane = NONE;
            moving.push((whom, channel.clone()));
        }
        self.lanes_waiting += moving.len();
        self.homeless.extend(moving);
        self.close_lane(io, lane);
    }

    // Who one is.

    /// AUTH, or the part of HELLO; the server judges on a connection that is nobody's.
    fn auth(&mut self, io: &mut Io, whom: Whom, words: &[Vec<u8>], hello: Option<u8>) {
        let (user, password) = match words {
            [password] => (None, password.clone()),
            [user, password] => (Some(user.clone()), password.clone()),
            _ => return self.say(io, whom, b"-ERR wrong number of arguments for 'auth' command\r\n"),
        };
        let Some(node) = self.master_of(io, whom, NO_SLOT) else { return };
        let nobody = Identity { user: None, password: None };
        let at = match self.identities.iter().skip(1).position(|i| *i == nobody) {
            Some(at) => at + 1,
            None => {
                self.identities.push(nobody);
                self.identities.len() - 1
            }
        };
        let set = self.set_of(at as u32, 0, 2);
        let lane = self.take_lane(set, node, whom);
        let mut command = vec![b"AUTH".to_vec()];
        command.extend(user.clone());
        command.push(password.clone());
        let mut bytes = Vec::new();
        write_command(&mut bytes, &command);
        if let Some(client) = self.client(whom) {
            client.claim = Some(Box::new((Identity { user, password: Some(password) }, hello)));
            client.selecting = None;
            client.barrier = true;
        }
        let plan = self.table.plan(&bytes, &[(0, 0)]);
        self.on_lane(io, whom, lane, &bytes, &plan, NO_SLOT, Kind::Auth);
    }

    pub fn authenticated(&mut self, io: &mut Io, lane: u32, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        // Whoever it was, the next AUTH on it says who it is.
        self.return_lane(io, lane);
        let Some(client) = self.client(whom) else { return };
        if client.selecting.is_some() {
            return self.selected(io, whom, flight.seq, bytes);
        }
        let Some(claim) = client.claim.take() else { return };
        if bytes.first() == Some(&b'-') {
            return self.answer(io, whom, flight.seq, bytes, true);
        }
        let (identity, hello) = *claim;
        let at = match self.identities.iter().position(|i| *i == identity) {
            Some(at) => at,
            None => {
                self.identities.push(identity);
                self.identities.len() - 1
            }
        };
        let Some(client) = self.client(whom) else { return };
        client.identity = at as u32;
        client.proto = hello.unwrap_or(client.proto);
        self.settle(io, whom);
        let answer = if hello.is_some() { self.hello_answer(whom) } else { bytes.to_vec() };
        self.answer(io, whom, flight.seq, &answer, true);
    }

    /// A set of lanes for who the client is now.
    fn settle(&mut self, io: &mut Io, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        let (identity, db, proto, old, bulky) = (client.identity, client.db, client.proto, client.set, client.bulky);
        let pin = client.pin;
        if pin != NONE {
            // It watches as somebody else, or elsewhere: the next EXEC fails.
            client.pin = NONE;
            client.watch_lost |= client.watching;
            client.watching = false;
            self.close_lane(io, pin);
        }
        let setup = if old == NONE { Vec::new() } else { self.sets[old as usize].setup.clone() };
        if old != NONE && self.sets[old as usize].owner == Some(whom) {
            for lane in std::mem::take(&mut self.sets[old as usize].lanes) {
                if lane != NONE {
                    self.close_lane(io, lane);
                }
            }
            self.sets[old as usize].identity = NONE;
            self.sets[old as usize].owner = None;
        }
        if identity == NONE {
            if let Some(client) = self.client(whom) {
                client.set = NONE;
            }
            return;
        }
        let set = if bulky || !setup.is_empty() {
            self.add_set(Set { identity, db, proto, owner: Some(whom), lanes: Vec::new(), setup })
        } else {
            self.set_of(identity, db, proto)
        };
        if let Some(client) = self.client(whom) {
            client.set = set;
        }
    }

    fn hello(&mut self, io: &mut Io, whom: Whom, words: &[Vec<u8>]) {
        let resp3 = self.shared.server.lock().expect("no thread panicked").2;
        if !resp3 {
            return self.say(io, whom, b"-ERR unknown command `HELLO`, with args beginning with: \r\n");
        }
        let Some(client) = self.client(whom) else { return };
        let mut proto = client.proto;
        let mut rest = words;
        if let [version, more @ ..] = rest {
            proto = match version.as_slice() {
                b"2" => 2,
                b"3" => 3,
                v if v.iter().all(u8::is_ascii_digit) => {
                    return self.say(io, whom, b"-NOPROTO unsupported protocol version\r\n");
                }
                _ => return self.say(io, whom, b"-ERR Protocol version is not an integer or out of range\r\n"),
            };
            rest = more;
        }
        let mut auth = None;
        while let [word, more @ ..] = rest {
            match (word.to_ascii_uppercase().as_slice(), more) {
                (b"AUTH", [user, password, more @ ..]) => {
                    auth = Some([user.clone(), password.clone()]);
                    rest = more;
                }
                (b"SETNAME", [name, more @ ..]) => {
                    client.name = name.clone();
                    rest = more;
                }
                _ => return self.say(io, whom, b"-ERR Syntax error in HELLO option\r\n"),
            }
        }
        if let Some(words) = auth {
            return self.auth(io, whom, &words, Some(proto));
        }
        if client.identity == NONE {
            return self.say(io, whom, b"-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time\r\n");
        }
        client.proto = proto;
        self.settle(io, whom);
        let answer = self.hello_answer(whom);
        self.say(io, whom, &answer);
    }

    fn hello_answer(&mut self, whom: Whom) -> Vec<u8> {
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

    fn select(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) {
        let db = args
            .get(1)
            .and_then(|&(a, b)| std::str::from_utf8(&bytes[a as usize..b as usize]).ok()?.parse::<u32>().ok());
        let Some(client) = self.client(whom) else { return };
        let Some(db) = db.filter(|_| args.len() == 2) else {
            return self.say(io, whom, b"-ERR invalid DB index\r\n");
        };
        if db == client.db {
            return self.say(io, whom, b"+OK\r\n");
        }
        let (identity, proto, set) = (client.identity, client.proto, client.set);
        let known = self.sets.iter().any(|s| s.identity == identity && s.db == db && s.proto == proto);
        if known || db == 0 {
            self.use_db(io, whom, db);
            return self.say(io, whom, b"+OK\r\n");
        }
        // Whether there is such a database the server knows.
        let slot = if self.cluster { NO_SLOT } else { 0 };
        let Some(node) = self.master_of(io, whom, slot) else { return };
        let lane = self.take_lane(set, node, whom);
        self.lanes[lane as usize].dirty = true;
        if let Some(client) = self.client(whom) {
            (client.selecting, client.claim) = (Some(db), None);
            client.barrier = true;
        }
        self.on_lane(io, whom, lane, bytes, plan, NO_SLOT, Kind::Auth);
    }

    fn selected(&mut self, io: &mut Io, whom: Whom, seq: u32, bytes: &[u8]) {
        let Some(client) = self.client(whom) else { return };
        let db = client.selecting.take();
        if let (Some(db), Some(b'+')) = (db, bytes.first()) {
            self.use_db(io, whom, db);
        }
        self.answer(io, whom, seq, bytes, true);
    }

    fn use_db(&mut self, io: &mut Io, whom: Whom, db: u32) {
        if let Some(client) = self.client(whom) {
            client.db = db;
            self.settle(io, whom);
        }
    }

    fn reset(&mut self, io: &mut Io, whom: Whom) {
        let anonymous = self.config.client_auth == ClientAuth::Server;
        let db = self.shared.target.db;
        let Some(client) = self.client(whom) else { return };
        let lanes: Vec<u32> =
            std::mem::take(&mut client.subs).into_iter().chain([client.pin]).filter(|l| *l != NONE).collect();
        client.pin = NONE;
        client.channels.clear();
        client.queued.clear();
        (client.subscribing, client.unsubscribing) = (0, 0);
        (client.multi, client.watching, client.watch_lost, client.monitor) = (Multi::No, false, false, false);
        (client.proto, client.db, client.bulky) = (2, db, false);
        (client.name, client.replies, client.notified) = (Vec::new(), Replies::On, false);
        (client.claim, client.selecting, client.tracking) = (None, None, false);
        client.identity = if anonymous { NONE } else { 0 };
        let set = client.set;
        if set != NONE && self.sets[set as usize].owner == Some(whom) {
            self.sets[set as usize].setup.clear();
        }
        for lane in lanes {
            self.close_lane(io, lane);
        }
        self.settle(io, whom);
        self.say(io, whom, b"+RESET\r\n");
    }

    // CLIENT.

    fn client_command(&mut self, io: &mut Io, whom: Whom, bytes: &[u8], args: &[Range], plan: &Plan) -> bool {
        let arg = |i: usize| args.get(i).map(|&(a, b)| &bytes[a as usize..b as usize]);
        let sub = arg(1).unwrap_or(b"").to_ascii_uppercase();
        let ok = b"+OK\r\n".to_vec();
        let facade = self.config.facade == Facade::Cluster && self.cluster;
        let trusted = self.trusted(whom);
        let Some(client) = self.client(whom) else { return true };
        let answer = match (sub.as_slice(), args.len()) {
            (b"ID", 2) => format!(":{}\r\n", client.number).into_bytes(),
            (b"GETNAME", 2) => {
                let mut out = Vec::new();
                match client.name.is_empty() {
                    true if client.proto == 3 => out.extend_from_slice(b"_\r\n"),
                    true => out.extend_from_slice(b"$-1\r\n"),
                    false => bulk(&mut out, &client.name),
                }
                out
            }
            (b"SETNAME", 3) => {
                let name = arg(2).unwrap_or(b"");
                if name.iter().any(|b| !(b'!'..=b'~').contains(b)) {
                    error("ERR", "Client names cannot contain spaces, newlines or special characters.")
                } else {
                    client.name = name.to_vec();
                    ok
                }
            }
            (b"SETINFO", 4) => {
                if arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"LIB-NAME")) {
                    client.library = arg(3).unwrap_or(b"").to_vec();
                }
                ok
            }
            (b"INFO", 2) => {
                let line = self.client_line(whom);
                let mut out = Vec::new();
                bulk(&mut out, line.as_bytes());
                out
            }
            (b"REPLY", 3) => {
                let how = arg(2).unwrap_or(b"").to_ascii_uppercase();
                match how.as_slice() {
                    b"ON" => {
                        client.replies = Replies::On;
                        ok
                    }
                    b"OFF" => {
                        client.replies = Replies::Off;
                        return true;
                    }
                    b"SKIP" => {
                        if client.replies == Replies::On {
                            client.replies = Replies::SkipNext;
                        }
                        return true;
                    }
                    _ => error("ERR", "syntax error"),
                }
            }
            (b"KILL" | b"LIST", _) if !trusted => {
                error("NOPERM", "unslow: CLIENT LIST and KILL are for the user the gateway itself logs in as")
            }
            (b"LIST", _) => {
                self.ask_all(whom, What::ClientList);
                return true;
            }
            (b"KILL", 4) if arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ID")) => {
                let number = arg(3).and_then(|n| std::str::from_utf8(n).ok()?.parse::<u64>().ok());
                match number {
                    Some(number) => {
                        for worker in 0..self.shared.workers.len() {
                            self.shared.post(worker, Message::Kill(number));
                        }
                        b":1\r\n".to_vec()
                    }
                    None => error("ERR", "client-id should be greater than 0"),
                }
            }
            (b"UNBLOCK", 3 | 4) => {
                let number = arg(2).and_then(|n| std::str::from_utf8(n).ok()?.parse::<u64>().ok());
                return self.unblock(io, whom, number, arg(3), plan);
            }
            (b"NO-EVICT" | b"CAPA", _) => ok,
            (b"MAINT_NOTIFICATIONS", 3..) if facade => {
                client.notified = arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ON"));
                ok
            }
            (b"TRACKING" | b"NO-TOUCH", 3..) => {
                // The server remembers this for a connection: from now on this client has its own.
                let tracking = sub == b"TRACKING";
                if tracking && client.proto == 2 && arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ON")) {
                    error("ERR", "unslow: client tracking needs RESP3 here: say HELLO 3 first")
                } else {
                    let command = bytes.to_vec();
                    return self.private(io, whom, command, &sub, plan);
                }
            }
            (b"TRACKINGINFO" | b"GETREDIR" | b"CACHING" | b"HELP", _) => {
                let slot = if self.cluster { NO_SLOT } else { 0 };
                return self.send(io, whom, bytes, plan, slot, Kind::Reply);
            }
            (b"PAUSE" | b"UNPAUSE", _) => error(
                "ERR",
                "unslow: servers are not paused through a gateway; UNSLOW PAUSE stops the gateway's clients",
            ),
            _ => error(
                "ERR",
                &format!(
                    "unknown subcommand or wrong number of arguments for '{}'. Try CLIENT HELP.",
                    String::from_utf8_lossy(&sub).chars().filter(|c| !c.is_control()).collect::<String>()
                ),
            ),
        };
        self.say(io, whom, &answer);
        true
    }

    /// Settings that belong to a connection: the client gets its own, and they are said again on each.
    fn private(&mut self, io: &mut Io, whom: Whom, command: Vec<u8>, sub: &[u8], plan: &Plan) -> bool {
        self.own_set(whom);
        let Some(client) = self.client(whom) else { return true };
        let set = client.set as usize;
        // Whatever is there already has not heard it: they are dialled anew.
        for lane in std::mem::take(&mut self.sets[set].lanes) {
            if lane != NONE {
                self.close_lane(io, lane);
            }
        }
        let upper = command.to_ascii_uppercase();
        let off = upper.ends_with(b"\r\nOFF\r\n");
        let has = |c: &[u8], word: &[u8]| c.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
        self.sets[set].setup.retain(|c| !has(c, sub));
        if off {
            if let (Some(client), b"TRACKING") = (self.client(whom), sub) {
                client.tracking = false;
            }
            self.say(io, whom, b"+OK\r\n");
            return true;
        }
        // Its own connection's answer is the client's, and what the server takes is said on all others.
        let slot = if self.cluster { NO_SLOT } else { 0 };
        let sent = self.send(io, whom, &command, plan, slot, Kind::Setup);
        if let Some(client) = self.client(whom) {
            client.barrier = true;
            client.claimed_setup = command;
        }
        sent
    }

    /// The server has taken a setting, or not.
    pub fn set_up(&mut self, io: &mut Io, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        if let Some(client) = self.client(whom) {
            let (command, set) = (std::mem::take(&mut client.claimed_setup), client.set);
            let tracks = command.windows(8).any(|w| w.eq_ignore_ascii_case(b"TRACKING"));
            if bytes.first() == Some(&b'+') && set != NONE {
                client.tracking |= tracks;
                self.sets[set as usize].setup.push(command);
            }
        }
        self.answer(io, whom, flight.seq, bytes, true);
    }

    fn unblock(&mut self, io: &mut Io, whom: Whom, number: Option<u64>, how: Option<&[u8]>, plan: &Plan) -> bool {
        let victim = self.everyone().find(|c| Some(c.number) == number).map(|c| c.pin);
        let lane = victim.filter(|l| *l != NONE);
        let target = lane.and_then(|l| Some((self.lanes[l as usize].node, self.lanes[l as usize].server_number?)));
        let Some((node, server_number)) = target else {
            self.say(io, whom, b":0\r\n");
            return true;
        };
        let server_number = server_number.to_string();
        let mut words: Vec<&[u8]> = vec![b"CLIENT", b"UNBLOCK", server_number.as_bytes()];
        words.extend(how);
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words);
        let Some(client) = self.client(whom) else { return true };
        let set = client.set;
        let lane = self.lane_of(set, node);
        self.on_lane(io, whom, lane, &bytes, plan, NO_SLOT, Kind::Reply);
        true
    }
}

fn client_pin_none(worker: &mut Worker, whom: Whom) {
    if let Some(client) = worker.client(whom) {
        client.pin = NONE;
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::worker::tests::Rig;

    #[test]
    fn a_transaction_uses_a_pooled_dedicated_connection() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(1);
        let client = rig.client(None);
        for _ in 0..2 {
            rig.says(client, "MULTI\r\n");
            rig.says(client, &format!("SET {key} v\r\n"));
            assert_eq!(rig.asked(1), ["MULTI".to_string(), format!("SET {key} v")]);
            rig.answers(1, "+OK\r\n+QUEUED\r\n");
            rig.says(client, "EXEC\r\n");
            assert_eq!(rig.asked(1), ["EXEC"]);
            rig.answers(1, "*1\r\n+OK\r\n");
            assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
        }
        assert_eq!(rig.worker.stats.lanes_opened, 1);
        // An ordinary command uses the shared connection.
        rig.says(client, &format!("GET {key}\r\n"));
        rig.asked(1);
        assert_eq!(rig.worker.stats.lanes_opened, 2);
    }

    #[test]
    fn a_transaction_is_aborted_when_its_connection_breaks_and_is_never_resent() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let client = rig.client(None);
        rig.says(client, "MULTI\r\n");
        rig.says(client, &format!("SET {key} v\r\n"));
        rig.asked(0);
        rig.answers(0, "+OK\r\n+QUEUED\r\n");
        assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n");
        rig.breaks(0);
        rig.says(client, &format!("SET {key} w\r\nEXEC\r\nPING\r\n"));
        let told = rig.told(client);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines[0].starts_with("-ERR unslow: ") && lines[1].starts_with("-EXECABORT "), "{told}");
        assert_eq!(lines[2..], ["+PONG"]);
        assert_eq!((rig.asked(0), rig.worker.again.len()), (vec![], 0));
    }

    #[test]
    fn losing_a_watch_fails_the_next_exec_as_a_changed_key_would() {
        let mut rig = Rig::halves(Config::default());
        let [key, ..] = rig.keys(0);
        let client = rig.client(None);
        rig.says(client, &format!("WATCH {key}\r\n"));
        assert_eq!(rig.asked(0), [format!("WATCH {key}")]);
        rig.answers(0, "+OK\r\n");
        rig.breaks(0);
        rig.says(client, &format!("MULTI\r\nSET {key} v\r\nEXEC\r\n"));
        assert_eq!(rig.told(client), "+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
        // The one after that succeeds.
        rig.says(client, "MULTI\r\nEXEC\r\n");
        assert_eq!(rig.told(client), "+OK\r\n*0\r\n");
    }
}
