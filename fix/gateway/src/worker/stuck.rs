//! Servers that are busy with a script. Past its `busy-reply-threshold` a server answers -BUSY to whoever asks, except
//! on the connection that the script came on, which it does not read until the script ends. Clients that share this
//! connection would wait, where each would get an error at once on one of its own.
//!
//! So when a shared connection stands still for longer than the threshold, its node is asked PING on another one. If it
//! says that it is busy, clients get its words at once, until the connection moves again.

use std::collections::BTreeMap;

use unslow_commands::{Plan, Special};
use unslow_nodes::{Author, Kind as Says, Refusal};
use unslow_reactor::Io;
use unslow_resp::write_command;

use super::{MS, Worker};
use crate::ids::{LaneId, SetId};
use crate::request;
use crate::session::*;

/// The servers' own threshold, for those that may not be asked.
const THRESHOLD_MS: u64 = 5000;
/// So long after the threshold a server certainly says that it is busy.
const GRACE: u64 = 100 * MS;
/// Between two questions to a node.
const PAUSE: u64 = 1000 * MS;
/// What a server said counts for so long: one that died in silence is not busy, and must not be said to be.
const LAPSE: u64 = 5000 * MS;

/// A node whose shared connection stood still when it was last looked at.
struct Still {
    lane: LaneId,
    /// The oldest command on it.
    first: Flight,
    /// The client whose script it is, if the server is busy.
    runs: Whom,
    asked_at: u64,
    /// What the server says to others, if it is busy.
    words: Option<Vec<u8>>,
    /// When it last said anything.
    said_at: u64,
}

/// See the module. By default nobody is looked for.
#[derive(Default)]
pub struct Stuck {
    /// How long a connection may stand still; none where servers never say that they are busy.
    patience: Option<u64>,
    nodes: BTreeMap<u16, Still>,
    /// A node of them has said that it is busy.
    some: bool,
}

impl Stuck {
    /// By the servers' `busy-reply-threshold` in milliseconds, where it is known; 0 turns it off.
    pub fn obey(&mut self, threshold_ms: Option<u64>) {
        let ms = threshold_ms.unwrap_or(THRESHOLD_MS);
        self.patience = (ms > 0).then(|| ms.saturating_mul(MS).saturating_add(GRACE));
    }

    /// Whether a command may be for a server that is busy.
    #[inline]
    pub fn some(&self) -> bool {
        self.some
    }

    fn count(&mut self) {
        self.some = self.nodes.values().any(|still| still.words.is_some());
    }
}

impl Worker {
    /// Shared connections that stand still for too long are looked into.
    pub(super) fn look_for_stuck(&mut self, io: &mut Io) {
        self.forget_moving();
        let Some(patience) = self.stuck.patience else { return };
        let old = |first: &Flight| self.now > first.at.saturating_add(patience);
        let places = self.lanes.places();
        let still: Vec<(LaneId, Flight)> =
            places.filter_map(|lane| Some((lane, self.oldest(lane).filter(old)?))).collect();
        for (lane, first) in still {
            self.ask_if_busy(io, lane, first);
        }
    }

    /// The command that a shared connection owes the next reply to; none where that reply has begun.
    fn oldest(&self, lane: LaneId) -> Option<Flight> {
        let l = &self.lanes[lane];
        let shared = !l.free && l.is_shared();
        let silent = l.state == State::Ready && l.sent > 0 && l.first == 0;
        if shared && silent { l.flights.front().copied() } else { None }
    }

    /// The client whose script keeps a connection. A server keeps the replies to what came right before the script
    /// until it ends, so the script need not be the oldest command.
    fn runs(&self, lane: LaneId, first: &Flight) -> Whom {
        let l = &self.lanes[lane];
        let script = l.flights.iter().take(l.sent).find(|flight| flight.author == Author::Script);
        script.map_or(first.whom, |flight| flight.whom)
    }

    /// What moves again is no longer stuck. When it was asked counts for a while: a script may follow a script.
    fn forget_moving(&mut self) {
        if self.stuck.nodes.is_empty() {
            return;
        }
        let mut nodes = std::mem::take(&mut self.stuck.nodes);
        nodes.retain(|_, still| {
            let stands = self.oldest(still.lane) == Some(still.first);
            if !stands {
                still.words = None;
            }
            stands || self.now < still.asked_at + PAUSE
        });
        self.stuck.nodes = nodes;
        self.stuck.count();
    }

    /// PING, on a connection that is not the one that stands still.
    fn ask_if_busy(&mut self, io: &mut Io, lane: LaneId, first: Flight) {
        let node = self.lanes[lane].node;
        let (mut words, mut said_at) = (None, 0);
        if let Some(known) = self.stuck.nodes.get(&node) {
            let same = known.lane == lane && known.first == first;
            if self.now < known.asked_at + PAUSE || known.words.is_some() && !same {
                return;
            }
            if same {
                (words, said_at) = (known.words.clone(), known.said_at);
            }
        }
        let asks = |l: &Lane| !l.free && l.node == node && l.flights.front().is_some_and(|f| f.kind == Kind::Probe);
        if self.lanes.iter().any(asks) {
            return;
        }
        let runs = self.runs(lane, &first);
        self.stuck.nodes.insert(node, Still { lane, first, runs, asked_at: self.now, words, said_at });
        let (mut ping, mut args) = (Vec::new(), Vec::new());
        write_command(&mut ping, &["PING"]);
        request::parse_whole(&ping, &mut args);
        let plan = self.table.plan(&ping, &args);
        // In the first database: a server that is busy takes no SELECT.
        let set = self.set_of(OWN, 0, 2);
        let other = self.take_despite_silence(set, node, first.whom);
        let flight = Flight::new(first.whom, 0, &plan, &ping, self.now, NO_SLOT, Kind::Probe);
        self.push(io, other, Flight { repeatable: false, author: Author::Server, ..flight }, &ping);
    }

    /// The answer to that PING. Only the server can have written it: PING runs nobody's code.
    pub fn probed(&mut self, io: &mut Io, lane: LaneId, reply: &[u8]) {
        let node = self.lanes[lane].node;
        self.return_lane(io, lane);
        let busy = Refusal::parse(reply, Author::Server).is_some_and(|refusal| refusal.kind == Says::Busy);
        let Some(still) = self.stuck.nodes.get_mut(&node) else { return };
        (still.words, still.said_at) = (busy.then(|| reply.to_vec()), self.now);
        let (stuck, first, runs) = (still.lane, still.first, still.runs);
        self.stuck.count();
        if busy && self.oldest(stuck) == Some(first) {
            self.refuse_unsent(io, stuck, runs, reply);
        }
    }

    /// A node that was silent is suspected, and commands wait for it that were not sent: a server would refuse them
    /// now. `runs` is the client whose script it is.
    fn refuse_unsent(&mut self, io: &mut Io, lane: LaneId, runs: Whom, words: &[u8]) {
        for (flight, bytes) in self.lanes[lane].take_unsent() {
            if flight.whom == runs {
                self.lanes[lane].put_back(flight, &bytes);
            } else {
                self.stats.error("busy");
                self.fail_flight(io, &flight, words);
            }
        }
    }

    /// A connection of its own that is written even where the node is suspected: its silence is why. Given back, it is
    /// closed then.
    pub fn take_despite_silence(&mut self, set: SetId, node: u16, whom: Whom) -> LaneId {
        let lane = self.take_lane(set, node, whom);
        let l = &mut self.lanes[lane];
        l.dirty |= std::mem::replace(&mut l.held, false);
        lane
    }

    /// What a node that is busy says to this client; none where it is not, or where the script is the client's own: who
    /// waits for a script is not read either.
    fn words_of_busy(&self, node: u16, whom: Whom) -> Option<&[u8]> {
        let still = self.stuck.nodes.get(&node)?;
        let stands = self.oldest(still.lane) == Some(still.first);
        let holds = stands && self.now < still.said_at.saturating_add(LAPSE);
        still.words.as_deref().filter(|_| holds && still.runs != whom)
    }

    /// The answer to PING where every master is busy, which the gateway's own PONG would hide.
    pub fn all_busy(&self, whom: Whom) -> Option<Vec<u8>> {
        if !self.stuck.some {
            return None;
        }
        let mut all = self.map.servers.masters().iter().map(|node| self.words_of_busy(*node, whom));
        let first = all.next()??.to_vec();
        all.all(|words| words.is_some()).then_some(first)
    }

    /// A command that its server would refuse for being busy gets the server's words, and is not sent; as on a server
    /// it spoils the transaction that it is in. False where it may be sent.
    #[cold]
    pub fn refused_as_busy(&mut self, io: &mut Io, whom: Whom, node: u16, plan: &Plan) -> bool {
        if !self.stuck.some || is_taken_while_busy(plan, &self.table.get(plan.number).name) {
            return false;
        }
        let Some(words) = self.words_of_busy(node, whom).map(<[u8]>::to_vec) else { return false };
        self.stats.error("busy");
        if let Some(transaction) = self.client(whom).and_then(Client::transaction_mut) {
            transaction.poisoned = true;
        }
        self.say(io, whom, &words);
        true
    }
}

/// What servers take while a script runs, of that which comes this way.
fn is_taken_while_busy(plan: &Plan, name: &str) -> bool {
    let ends = matches!(plan.special, Some(Special::Exec | Special::Discard | Special::Unwatch));
    ends || name.ends_with("|KILL") || matches!(name, "SHUTDOWN" | "FUNCTION|STATS")
}

#[cfg(test)]
mod tests;
