//! Commands that several nodes answer: split by slot or sent to every master, and their answers made one.

use unslow_commands::{Divide, Join, Plan, Spread};
use unslow_reactor::Io;
use unslow_resp::{Frame, Kind as FrameKind, write_command};
use unslow_topology::{Health, Role, slot_of};

use crate::gather::{Gather, Parts, Whole, elements, joined, values};
use crate::ids::{LaneId, SetId};
use crate::parcel::Parcel;
use crate::reply::bulk;
use crate::session::*;
use crate::step::Command;
use crate::worker::Worker;
use unslow_nodes::NOBODY;

/// Nodes a cursor can name. The node's own cursor has the other bits; a server would need 2^54 buckets to run out of
/// them.
const NODE_BITS: u32 = 10;

impl Worker {
    /// DEL, MGET, MSET and the like in a cluster. False when it has to wait.
    pub fn divide(&mut self, io: &mut Io, whom: Whom, command: &Command, how: Divide) -> bool {
        let step = if how == Divide::Pairs { 2 } else { 1 };
        if command.len() < 1 + step || !(command.len() - 1).is_multiple_of(step) {
            // The server says what is wrong with it, after it has looked at the keys.
            let first = if command.len() > 1 { slot_of(command.arg(1)) } else { NO_SLOT };
            return self.send(io, whom, command, first, Kind::Reply);
        }
        if let Some(slot) = self.parcel.look(command, step) {
            self.parcel.give_back();
            return self.send(io, whom, command, slot, Kind::Reply);
        }
        if how == Divide::Pairs && self.config.strict {
            let why = "-CROSSSLOT unslow: MSET over several slots is not one command any more, and strict = true; use \
                       a hash tag, as {user1}:a\r\n";
            self.say(io, whom, why.as_bytes());
            return true;
        }
        let order = self.parcel.cut(command, step);
        let whole = match how {
            Divide::Count => Whole::Join(Join::Sum),
            Divide::Pairs => Whole::Join(Join::AllSucceed),
            Divide::Values => Whole::Values(order),
        };
        self.gather(io, whom, &command.plan, whole)
    }

    /// To every master, or every node.
    pub fn spread(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let plan = &command.plan;
        let mut nodes = self.map.servers.masters().to_vec();
        if plan.spread == Spread::AllNodes {
            let well = |n: &u16| {
                let server = &self.map.servers[*n];
                server.role == Role::Replica && server.health == Health::Up
            };
            nodes.extend(self.map.servers.numbers().filter(well));
        }
        self.parcel.clear();
        nodes.into_iter().for_each(|node| self.parcel.add(node, command.bytes));
        self.gather(io, whom, plan, Whole::Join(plan.join))
    }

    /// SCAN over all masters: the cursor's lowest bits are the node.
    pub fn scan(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let arg = |i: usize| command.arg(i);
        let Some(cursor) = command.number::<u64>(1) else {
            return self.send(io, whom, command, NO_SLOT, Kind::Reply);
        };
        let places = self.places();
        let (mut at, mut node) = (cursor >> NODE_BITS, (cursor & ((1 << NODE_BITS) - 1)) as u16);
        if cursor == 0 {
            let Some(first) = places.first() else {
                let answer = self.nobody(NO_SLOT);
                self.say(io, whom, answer.as_bytes());
                return true;
            };
            node = *first;
        }
        if self.map.servers.get(node).is_none() {
            self.say(io, whom, b"-ERR invalid cursor\r\n");
            return true;
        }
        // Cursors are a server's own: where another one does the work of the one that was asked, its part begins anew,
        // and some keys come twice.
        let asked = self.map.servers.heir(node);
        let place = places.iter().copied().find(|p| self.map.servers.heir(*p) == asked);
        if asked != node {
            at = 0;
        }
        let Some(place) = place else {
            self.say(io, whom, b"-ERR invalid cursor\r\n");
            return true;
        };
        node = asked;
        let at = at.to_string();
        let mut words = vec![arg(0), at.as_bytes()];
        words.extend((2..command.len()).map(arg));
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words);
        self.parcel.clear();
        self.parcel.add(node, &bytes);
        self.gather(io, whom, &command.plan, Whole::Scan(node, place))
    }

    /// Sends what is in the parcel. False when it has to wait: then the client's command comes again.
    fn gather(&mut self, io: &mut Io, whom: Whom, plan: &Plan, whole: Whole) -> bool {
        let parcel = std::mem::take(&mut self.parcel);
        let done = self.gather_of(io, whom, plan, whole, &parcel);
        self.parcel = parcel;
        self.parcel.give_back();
        done
    }

    fn gather_of(&mut self, io: &mut Io, whom: Whom, plan: &Plan, whole: Whole, parcel: &Parcel) -> bool {
        let Some(set) = self.client(whom).and_then(|c| c.set) else { return true };
        let mut lanes = Vec::with_capacity(parcel.commands().len());
        for (slot, node, _) in parcel.commands() {
            let node = if slot == NO_SLOT { node } else { self.node_for(slot, plan.read, whom) };
            if node == NOBODY {
                let answer = self.nobody(slot);
                self.say(io, whom, answer.as_bytes());
                return true;
            }
            // All of it, since nothing of it has been sent yet.
            if self.stuck.some() && self.refused_as_busy(io, whom, node, plan) {
                return true;
            }
            // A script that is to be killed keeps the connection of its own busy.
            let kills = self.table.get(plan.number).name.ends_with("|KILL");
            let lane = if kills { self.killer(set, node, whom) } else { self.lane_of(set, node) };
            if self.lanes[lane].journal.len() > self.config.hold_bytes {
                self.stall(io, whom, Stall::Room);
                return false;
            }
            lanes.push(lane);
        }
        if lanes.is_empty() {
            let answer = self.nobody(NO_SLOT);
            self.say(io, whom, answer.as_bytes());
            return true;
        }
        let Some(client) = self.client(whom) else { return true };
        let seq = client.begin();
        client.commands += 1;
        self.stats.commands += 1;
        self.gather_number = self.gather_number.wrapping_add(1);
        let number = self.gather_number;
        self.gathers.insert(whom, number, Gather { seq, whole, parts: Parts::new(lanes.len()) });
        for (part, ((slot, node, bytes), lane)) in parcel.commands().zip(lanes).enumerate() {
            let first = Flight::new(whom, number, plan, bytes, self.now, slot, Kind::Gather);
            let flight = Flight { node, part: part as u16, ..first };
            self.push(io, lane, flight, bytes);
        }
        true
    }

    /// A connection of its own for a command that ends a script, in the first database: a server that is busy takes no
    /// SELECT.
    fn killer(&mut self, set: SetId, node: u16, whom: Whom) -> LaneId {
        let proto = self.sets[set].proto;
        let first = self.sets[set].identity.map_or(set, |identity| self.set_of(identity, 0, proto));
        self.take_despite_silence(first, node, whom)
    }

    /// So many bytes of a part are there. They wait in memory until the last part has come: a client that asks for more
    /// than may wait for it is closed. False where nobody waits for them any more.
    pub fn count_part(&mut self, io: &mut Io, whom: Whom, number: u32, part: u16, bytes: usize) -> bool {
        let Some(gather) = self.gathers.get_mut(whom, number) else { return false };
        let Some(before) = gather.parts.count(part, bytes) else { return false };
        let Some(client) = self.client(whom) else { return false };
        client.parked = client.parked + bytes - before;
        let held = client.parked;
        self.parked = self.parked + bytes - before;
        if held > self.config.client_output_bytes {
            self.close_slow(io, whom);
            return false;
        }
        true
    }

    /// A part has come.
    pub fn gathered(&mut self, io: &mut Io, whom: Whom, number: u32, part: u16, bytes: &[u8]) {
        if !self.count_part(io, whom, number, part, bytes.len()) {
            return;
        }
        let Some(gather) = self.gathers.get_mut(whom, number) else { return };
        if !gather.parts.put(part, bytes) || !gather.parts.are_all_there() {
            return;
        }
        let Some(gather) = self.gathers.remove(whom, number) else { return };
        if let Some(client) = self.client(whom) {
            let counted = gather.parts.counted();
            client.parked -= counted;
            self.parked -= counted;
        }
        let answer = match &gather.whole {
            Whole::Join(join) => joined(*join, &gather.parts),
            Whole::Values(order) => values(order, &gather.parts),
            Whole::Scan(node, place) => self.scanned(*node, *place, gather.parts.get(0)),
        };
        self.answer(io, whom, gather.seq, &answer, true);
    }

    /// The order in which masters are scanned: each by the smallest number of all whose work it does, so that a
    /// failover changes nobody's place.
    fn places(&self) -> Vec<u16> {
        let first = |master: &u16| self.map.servers.numbers().find(|n| self.map.servers.heir(*n) == *master);
        let mut places: Vec<u16> = self.map.servers.masters().iter().filter_map(first).collect();
        places.sort_unstable();
        places
    }

    /// The reply of one node's SCAN, its cursor made one of ours.
    fn scanned(&self, node: u16, place: u16, reply: &[u8]) -> Vec<u8> {
        let frame = Frame::new(reply);
        let mut items = frame.items();
        let cursor = items.next().and_then(|c| std::str::from_utf8(c.text()).ok()?.parse::<u64>().ok());
        let (Some(cursor), FrameKind::Array) = (cursor, frame.kind()) else { return reply.to_vec() };
        if cursor >> (64 - NODE_BITS) != 0 {
            return b"-ERR unslow: this server's cursor leaves no room for the node; scan it directly\r\n".to_vec();
        }
        let next = match cursor {
            // The number of a place is never 0 but for the first, to which nobody goes on.
            0 => self.places().into_iter().find(|p| *p > place).map_or(0, u64::from),
            c => c << NODE_BITS | u64::from(node),
        };
        // `*2`, the old cursor, and everything behind it as it is.
        let mut rest = elements(reply);
        rest.next();
        let mut out = b"*2\r\n".to_vec();
        bulk(&mut out, next.to_string().as_bytes());
        rest.for_each(|r| out.extend_from_slice(r));
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use crate::worker::tests::Rig;

    #[test]
    fn a_multi_key_command_is_split_by_slot_and_answered_in_key_order() {
        let mut rig = Rig::halves(Config::default());
        let ([a, c, _], [b, ..]) = (rig.keys(0), rig.keys(1));
        let client = rig.client(None);
        rig.says(client, &format!("MGET {a} {b} {c} {a}\r\n"));
        assert_eq!(rig.asked(0), [format!("MGET {a} {a}"), format!("MGET {c}")]);
        assert_eq!(rig.asked(1), [format!("MGET {b}")]);
        rig.answers(1, "*1\r\n$1\r\nb\r\n");
        rig.answers(0, "*2\r\n$1\r\na\r\n$1\r\na\r\n");
        assert_eq!(rig.told(client), "");
        rig.answers(0, "*1\r\n$-1\r\n");
        assert_eq!(rig.told(client), "*4\r\n$1\r\na\r\n$1\r\nb\r\n$-1\r\n$1\r\na\r\n");

        rig.says(client, &format!("DEL {a} {b}\r\n"));
        assert_eq!((rig.asked(0), rig.asked(1)), (vec![format!("DEL {a}")], vec![format!("DEL {b}")]));
        rig.answers(0, ":1\r\n");
        rig.answers(1, ":1\r\n");
        assert_eq!(rig.told(client), ":2\r\n");
        // A pair stays together, and of two values for a key the later one is the later one.
        rig.says(client, &format!("MSET {c} 0 {a} 1 {b} 2 {a} 3\r\n"));
        assert_eq!(rig.asked(0), [format!("MSET {c} 0"), format!("MSET {a} 1 {a} 3")]);
        assert_eq!(rig.asked(1), [format!("MSET {b} 2")]);
        (0..2).for_each(|_| rig.answers(0, "+OK\r\n"));
        rig.answers(1, "+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n");
        // All keys in one slot: the command stays whole.
        rig.says(client, &format!("MSET {a} 1 {a} 2\r\n"));
        assert_eq!(rig.asked(0), [format!("MSET {a} 1 {a} 2")]);
        // As does one that is none: the node that has its keys says why, another would redirect.
        let other = rig.client(None);
        rig.says(other, &format!("MSET {b} 1 {b}\r\n"));
        assert_eq!(rig.asked(1), [format!("MSET {b} 1 {b}")]);
    }

    #[test]
    fn parts_that_wait_for_the_others_count_as_bytes_that_wait_for_the_client() {
        const LIMIT: usize = 1 << 20;
        let value = |len: usize| format!("*1\r\n${len}\r\n{}\r\n", "x".repeat(len));
        // Whole parts; and one that has not even come to its end.
        for (parts, unfinished) in [(3, false), (1, true)] {
            let mut rig = Rig::halves(Config { client_output_bytes: LIMIT, ..Config::default() });
            let ([a, c, d], [b, ..]) = (rig.keys(0), rig.keys(1));
            let (client, other) = (rig.client(None), rig.client(None));
            rig.says(client, &format!("MGET {a} {b} {c} {d}\r\n"));
            assert_eq!((rig.asked(0).len(), rig.asked(1).len()), (3, 1));
            rig.says(other, &format!("GET {a}\r\n"));
            rig.asked(0);
            let whole = value(if unfinished { 2 * LIMIT } else { LIMIT / 2 });
            let first = if unfinished { whole.len() - 10 } else { whole.len() };
            for _ in 0..parts {
                rig.answers(0, &whole[..first]);
            }
            assert_eq!(rig.worker.stats.clients_closed_slow, 1, "{parts} parts");
            assert_eq!((rig.worker.gathers.len(), rig.worker.everyone().count()), (0, 1));
            let kept: usize = rig.worker.lanes.iter().map(|l| l.part.len()).sum();
            assert!(kept <= LIMIT / 4, "{kept} bytes for nobody");
            // The rest goes nowhere, and those behind get their own.
            rig.answers(0, &whole[first..]);
            for _ in parts..3 {
                rig.answers(0, &value(1));
            }
            rig.answers(0, "$2\r\nok\r\n");
            assert_eq!(rig.told(other), "$2\r\nok\r\n");
        }
    }

    #[test]
    fn a_joined_answer_leaves_nothing_parked() {
        let mut rig = Rig::halves(Config::default());
        let ([a, ..], [b, ..]) = (rig.keys(0), rig.keys(1));
        let client = rig.client(None);
        rig.says(client, &format!("MGET {a} {b}\r\n"));
        rig.asked(0);
        rig.asked(1);
        rig.answers(0, "*1\r\n$1\r\na\r\n");
        assert_eq!(rig.worker.everyone().map(|c| c.parked).sum::<usize>(), 11);
        assert_eq!(rig.worker.parked, 11);
        rig.answers(1, "*1\r\n$1\r\nb\r\n");
        assert_eq!(rig.told(client), "*2\r\n$1\r\na\r\n$1\r\nb\r\n");
        assert_eq!(rig.worker.everyone().map(|c| c.parked).sum::<usize>(), 0);
        assert_eq!(rig.worker.parked, 0);
    }

    #[test]
    fn a_strict_gateway_refuses_a_cross_slot_mset_and_sends_nothing() {
        for strict in [false, true] {
            let mut rig = Rig::halves(Config { strict, ..Config::default() });
            let ([a, ..], [b, ..]) = (rig.keys(0), rig.keys(1));
            let client = rig.client(None);
            rig.says(client, &format!("MSET {a} 1 {b} 2\r\n"));
            assert_eq!(rig.told(client).starts_with("-CROSSSLOT "), strict);
            let sent =
                if strict { [vec![], vec![]] } else { [vec![format!("MSET {a} 1")], vec![format!("MSET {b} 2")]] };
            assert_eq!([rig.asked(0), rig.asked(1)], sent);
        }
    }

    #[test]
    fn scan_walks_all_masters_and_ends_after_the_last() {
        let mut rig = Rig::halves(Config::default());
        let client = rig.client(None);
        // The client's command, the node and what it is sent, the cursor it replies, and the cursor the client gets.
        for (says, node, asked, cursor, told) in [
            ("SCAN 0 COUNT 7", 0, "SCAN 0 COUNT 7", "5", "5120"),
            ("SCAN 5120 COUNT 7", 0, "SCAN 5 COUNT 7", "0", "1"),
            ("SCAN 1", 1, "SCAN 0", "5", "5121"),
            ("SCAN 5121", 1, "SCAN 5", "0", "0"),
        ] {
            rig.says(client, &format!("{says}\r\n"));
            assert_eq!(rig.asked(node), [asked]);
            rig.answers(node, &format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n", cursor.len()));
            assert_eq!(rig.told(client), format!("*2\r\n${}\r\n{told}\r\n*1\r\n$1\r\nk\r\n", told.len()), "{says}");
        }
        rig.says(client, "SCAN 77\r\n");
        assert_eq!(rig.told(client), "-ERR invalid cursor\r\n");
        // This cursor leaves no room for the node's number; a wrong one would skip keys.
        rig.says(client, "SCAN 0\r\n");
        rig.asked(0);
        rig.answers(0, "*2\r\n$17\r\n18014398509481984\r\n*0\r\n");
        assert!(rig.told(client).starts_with("-ERR unslow: this server's cursor"));
    }
}
