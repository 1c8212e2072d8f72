//! What is looked over every few milliseconds.

use super::*;
use crate::config::Batch;
use crate::session::*;
use crate::shared::{Message, Notice};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use unslow_reactor::{Id, Io};

/// A client that is to go and says nothing for this long has no answer to go behind.
const DRAIN_QUIET: u64 = 500 * MS;

impl Worker {
    pub(super) fn tick(&mut self, io: &mut Io) {
        self.catch_up(io);
        self.halted = self.pauses.halt(self.now);
        // A pause of writes is judged command by command, when they are read again.
        let halted = matches!(self.halted, Halt::Commands | Halt::Everything);
        for whom in std::mem::take(&mut self.crowded) {
            let Some(client) = self.client(whom) else { continue };
            if client.stall != Stall::Room {
                continue;
            }
            let id = client.id;
            let lane = client.rare.stream.as_ref().and_then(|s| s.lane);
            let ahead = lane.and_then(|l| self.lanes[l].connection).map_or(0, |c| io.unsent(c));
            if halted || io.unsent(id) > OUTPUT_HIGH / 2 || ahead > OUTPUT_HIGH {
                self.crowded.push(whom);
            } else {
                self.resume.push(whom);
            }
        }
        self.unclog(io);
        self.house(io);
        self.look_after_spares(io);
        self.unconfirmed.look(self.now);
        self.unconfirmed.stir();
        self.some_wait = self.some_wait && self.everyone().any(|c| !c.rare.waiting.is_empty());
        self.look_after_lanes(io);
        self.keep_pace(io);
        self.look_for_stuck(io);
        if self.now > self.published_at + 1000 * MS {
            self.published_at = self.now;
            self.publish_stats();
            self.close_idle(io);
            self.close_deserted(io);
        }
        if self.now >= self.reap_at {
            self.reap_at = self.now + 1000 * MS;
            self.reap(io);
        }
        if let Some(until) = self.draining {
            self.drain(io, until);
        }
        self.tick_at = self.now + if self.busy() { TICK } else { IDLE_TICK };
    }

    /// Something waits that no event will tell of.
    pub(super) fn busy(&self) -> bool {
        !self.crowded.is_empty()
            || self.unconfirmed.anyone_waits()
            || !self.clogs.is_empty()
            || self.draining.is_some()
            || self.lanes_waiting > 0
    }

    /// Settings, table and map that are newer than ours.
    pub(super) fn catch_up(&mut self, io: &mut Io) {
        let settings = self.shared.settings_version.load(Ordering::Acquire);
        if settings != self.seen_settings {
            let seen = std::mem::replace(&mut self.seen_settings, settings);
            let before = std::mem::replace(&mut self.config, self.shared.config());
            if seen == 0 || before.batch_us != self.config.batch_us {
                self.pace.ns = self.config.batch_us.fixed_ns();
                io.pace(self.pace.ns);
            }
            let table = self.shared.table();
            if !table.same_numbers(&self.table) {
                self.stats.commands_by.clear();
            }
            self.table = table;
            self.sampled = self.config.key_sample;
            self.obey_limits();
        }
        let version = self.shared.map_version.load(Ordering::Acquire);
        if version != self.seen_version {
            self.seen_version = version;
            let old = self.map.clone();
            let mut map = (*self.shared.map()).clone();
            // Ours may have counted on by redirects: versions only grow.
            let routes_changed = map.servers.slots() != old.servers.slots() || map.readers != old.readers;
            map.version = if routes_changed { old.version + 1 } else { old.version };
            self.map = Arc::new(map);
            self.cluster = self.map.is_cluster();
            self.banned.resize(self.map.servers.len(), 0);
            self.remapped(io, &old);
        }
        for message in self.shared.take_messages(self.number) {
            match message {
                Message::Drain(until) => {
                    self.draining = Some(until);
                    for listener in std::mem::take(&mut self.listeners) {
                        io.stop_listening(listener);
                    }
                }
                Message::Halt(halted) => {
                    self.pauses.operator = halted;
                    self.halted = self.pauses.halt(self.now);
                }
                Message::Show(question) => self.contribute(io, &question),
                Message::Answer(whom, seq, bytes) => self.answer(io, whom, seq, &bytes, true),
                Message::KilledNobody(whom, seq, user) => self.killed_nobody(io, whom, seq, &user),
                Message::Listen(listening) => {
                    if let Ok(number) = io.listen(&listening) {
                        self.listeners.push(number);
                    }
                }
                Message::Notify(notice) => self.notify(io, &notice),
            }
        }
    }

    pub fn publish_stats(&mut self) {
        self.stats.clients = self.clients_now as u64;
        self.stats.lanes = self.lanes.iter().filter(|l| !l.free && l.connection.is_some()).count() as u64;
        self.stats.batching = u64::from(self.pace.ns > 0);
        self.shared.publish(self.number, &self.stats);
    }

    pub(super) fn close_idle(&mut self, io: &mut Io) {
        let limit = self.config.client_idle_ms * MS;
        if limit == 0 {
            return;
        }
        let now = self.now;
        let idle = |c: &&Client| {
            c.seen + limit < now && c.pending.is_empty() && c.subscriber.lanes.is_empty() && c.pin.is_none()
        };
        let idle: Vec<Whom> = self.everyone().filter(idle).map(|c| c.whom()).collect();
        idle.into_iter().for_each(|whom| self.drop_client(io, whom));
    }

    /// Clients that block, are not read because of it, and have gone meanwhile.
    pub(super) fn close_deserted(&mut self, io: &mut Io) {
        let stuck = |c: &&Client| {
            (c.pin.is_some() || c.aside.is_some()) && (c.stall != Stall::No || c.leaving == Leaving::SaidAll)
        };
        let stuck: Vec<(Whom, Id)> = self.everyone().filter(stuck).map(|c| (c.whom(), c.id)).collect();
        for (whom, id) in stuck {
            if io.hung_up(id) {
                self.drop_client(io, whom);
            }
        }
    }

    /// SMIGRATING, on which clients are patient, and SMIGRATED, with the addresses by which the client knows us.
    pub(super) fn notify(&mut self, io: &mut Io, notice: &Notice) {
        let all = self.everyone().filter(|c| c.notified && c.proto == 3);
        let all: Vec<(Whom, Option<std::net::SocketAddr>)> = all.map(|c| (c.whom(), c.ends.to())).collect();
        for (whom, to) in all {
            let host = to.map_or("127.0.0.1".into(), |a| a.ip().to_string());
            let Notice { sequence, slots, moved } = notice;
            let push = match moved {
                None => format!(">3\r\n+SMIGRATING\r\n:{sequence}\r\n+{slots}\r\n"),
                Some((from, to)) => format!(
                    ">3\r\n+SMIGRATED\r\n:{sequence}\r\n*1\r\n*3\r\n+{host}:{from}\r\n+{host}:{to}\r\n+{slots}\r\n"
                ),
            };
            self.push_to(io, whom, push.as_bytes());
        }
    }

    /// A client has all its answers while the gateway drains: it goes behind the last of them, so that it never waits
    /// for one that does not come. Not in the middle of anything, not before it has said what it came for, and not if
    /// more of it is there.
    pub(super) fn part_with(&mut self, io: &mut Io, whom: Whom) {
        let Some(client) = self.client(whom) else { return };
        let id = client.id;
        if client.is_between_commands() && client.has_begun() && !io.has_input(id) {
            self.close_when_answered(io, whom);
        }
    }

    /// Updates how long commands wait for each other if `batch_us` is `"auto"`.
    fn keep_pace(&mut self, io: &mut Io) {
        let decided = self.pace.decide(self.now, io.slept_ns(), self.stats.commands);
        if let (Batch::Auto, Some(ns)) = (self.config.batch_us, decided) {
            self.pace.ns = ns;
            io.pace(ns);
        }
    }

    /// Told to end: clients go behind their next answer ([`Worker::part_with`]). Here go those who ask for none, and
    /// when the time is up all others.
    pub(super) fn drain(&mut self, io: &mut Io, until: u64) {
        let late = self.now >= until;
        let now = self.now;
        let going = |c: &&Client| late || c.is_between_commands() && now > c.seen + DRAIN_QUIET;
        let going: Vec<(Whom, Id)> = self.everyone().filter(going).map(|c| (c.whom(), c.id)).collect();
        for (whom, id) in going {
            if late {
                self.drop_client(io, whom);
            } else if !io.has_input(id) {
                self.close_when_answered(io, whom);
            }
        }
        if self.clients_now == 0 {
            self.publish_stats();
            io.stop();
        }
    }
}
