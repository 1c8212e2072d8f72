//! Silence: who owes an answer, who is asked instead, and when everybody is asked again.

use super::*;

/// Between two [`News::Fresh`].
const FRESH_EVERY: u64 = 1_000 * MS;
/// A Sentinel's channel carries a message every two seconds, and our PINGs are answered on it.
const EAR_SILENT: u64 = 3_000 * MS;
const EAR_PING_EVERY: u64 = 1_000 * MS;

impl Watcher {
    pub(super) fn tick(&mut self, io: &mut Io) {
        let now = now_ns();
        self.forgive_absence(now);
        let mut changed = None;
        for at in 0..self.links.len() {
            changed = self.look_at(io, at, now).or(changed);
        }
        if self.kind != DeploymentKind::Cluster && self.forget_unnamed(now) {
            changed = Some(Sign::Poll);
        }
        if let Some(sign) = changed.or(self.rebuild_due) {
            self.rebuild(io, sign);
        }
        if self.hold.is_some() {
            // Holds end by time, too.
            self.resettle(io);
        }
        let busy = self.chase(io, now);
        if self.kind == DeploymentKind::Cluster {
            self.poll(io, now, busy);
        }
        if self.shared.doubt.swap(false, Ordering::AcqRel) {
            self.ask_everybody(io, now, busy);
        }
        self.keep_publishing(io, now);
        if now >= self.fresh_at {
            self.fresh_at = now + FRESH_EVERY;
            self.tell_fresh();
        }
        self.tick_at = now + if busy { TICK_BUSY } else { TICK };
    }

    /// We may have been kept from running ourselves: no node is to blame for the time we were away.
    fn forgive_absence(&mut self, now: u64) {
        let away = now.saturating_sub(self.ticked_at).saturating_sub(2 * TICK);
        self.ticked_at = now;
        if away > 0 {
            self.links.iter_mut().for_each(|l| l.heard_at = (l.heard_at + away).min(now));
        }
    }

    /// Dials, asks and doubts one node. Returns what changed by its silence.
    fn look_at(&mut self, io: &mut Io, at: usize, now: u64) -> Option<Sign> {
        let link = &self.links[at];
        if link.connection.is_none() {
            if now >= link.dial_at {
                self.dial(io, at, now);
            }
        } else if link.ready {
            self.keep_asking(io, at, now);
        }
        let suspect_after = self.settings.suspect_after.as_nanos() as u64;
        let (dead, silent) = overdue(&self.links[at], now, suspect_after);
        if dead {
            // The connection may be dead although the node is well: another one shows.
            self.drop_connection(io, at, now);
            self.links[at].dial_at = now;
            return None;
        }
        let link = &mut self.links[at];
        if !silent || link.kind == Kind::Ear || link.suspected {
            return None;
        }
        link.suspected = true;
        Some(if link.connection.is_some() { Sign::Silence } else { Sign::ConnectionLost })
    }

    fn drop_connection(&mut self, io: &mut Io, at: usize, now: u64) {
        if let Some(connection) = self.links[at].connection {
            self.by_connection.remove(&connection);
            io.close(connection);
        }
        self.links[at].lost(now);
    }

    /// What is due on a connection that is greeted.
    pub(super) fn keep_asking(&mut self, io: &mut Io, at: usize, now: u64) {
        let nodes = self.links.len() as u64;
        let ping_every = (self.settings.ping_every.as_nanos() as u64).max(nodes * MS / 2);
        let link = &self.links[at];
        let pinging = link.asked(|a| matches!(a, Ask::Ping(_) | Ask::Role));
        // ROLE takes the place of a PING: its answer is as good a sign of life.
        let roles_every = ROLES.max(2 * ping_every);
        let role_is_due = link.kind == Kind::Node && now + ping_every / 2 >= link.role_at + roles_every;
        if link.kind == Kind::Ear {
            if now > link.heard_at + EAR_SILENT {
                self.drop_connection(io, at, now);
            } else if now >= link.pinged_at + EAR_PING_EVERY {
                self.links[at].pinged_at = now;
                self.ask(io, at, Ask::Ignore, &["PING"]);
                // A subscribed connection answers with a message, which `overheard` takes: there is no reply to match.
                self.links[at].asks.clear();
            }
        } else if !pinging && now >= link.pinged_at + ping_every {
            self.links[at].pinged_at = now;
            if role_is_due {
                self.want_role(io, at);
                self.links[at].role_at = now;
            } else {
                self.ask(io, at, Ask::Ping(now), &["PING"]);
            }
        }
        if self.links[at].nodes_wanted {
            self.want_nodes(io, at);
        }
        if self.links[at].subscribe_due {
            self.subscribe(io, at);
        }
    }

    /// Outside a cluster a node that no other names, and that does not answer, has left. True when there was one.
    fn forget_unnamed(&mut self, now: u64) -> bool {
        let master = self.master.clone();
        let gone = |l: &Link| {
            l.kind == Kind::Node
                && !l.ready
                && now > l.heard_at.max(l.named_at) + FORGOTTEN
                && Some(&l.address) != master.as_ref()
                && l.dial_at != u64::MAX
        };
        let mut any = false;
        for link in self.links.iter_mut().filter(|l| gone(l)) {
            link.dial_at = u64::MAX;
            any = true;
        }
        any
    }

    /// A client of ours doubts the view.
    fn ask_everybody(&mut self, io: &mut Io, now: u64, busy: bool) {
        self.sign.get_or_insert((now, Sign::Doubt));
        self.poll_at = 0;
        if self.kind == DeploymentKind::Cluster {
            self.poll(io, now, busy);
        } else {
            for at in 0..self.links.len() {
                if self.links[at].kind == Kind::Node {
                    self.want_role(io, at);
                }
            }
        }
        self.ask_sentinels(io);
    }

    /// Round trips and lags of this moment, in a topology that is otherwise the last one.
    fn tell_fresh(&mut self) {
        let Some(old) = &self.topology else { return };
        let mut topology = (**old).clone();
        self.dress(&mut topology);
        // A node that became well or ill since is told as a change, not in passing.
        for (node, old) in topology.nodes.iter_mut().zip(&old.nodes) {
            node.health = old.health;
        }
        let topology = Arc::new(topology);
        self.topology = Some(topology.clone());
        *self.shared.topology.lock().expect("no thread panicked") = Some(topology.clone());
        (self.tell)(News::Fresh(topology));
    }

    /// Asks around while masters do not answer. True while there is one.
    pub(super) fn chase(&mut self, io: &mut Io, now: u64) -> bool {
        let Some(topology) = self.topology.clone() else { return false };
        let ill: Vec<&Node> = topology.masters().filter(|n| n.health != Health::Up).collect();
        for master in &ill {
            for replica in topology.replicas_of(&master.id) {
                let at = self.links.iter().position(|l| l.kind == Kind::Node && l.address == replica.address);
                if let Some(at) = at.filter(|at| now >= self.links[*at].role_at + TICK_BUSY) {
                    self.want_role(io, at);
                }
            }
        }
        if !ill.is_empty() && now >= self.epochs_at + 50 * MS {
            self.epochs_at = now;
            self.ask_sentinels(io);
        }
        !ill.is_empty()
    }

    /// The next node in turn is asked for its view, replicas first: they are to be promoted, and have the least to do.
    pub(super) fn poll(&mut self, io: &mut Io, now: u64, busy: bool) {
        let epochs_are_due = !busy && now >= self.epochs_at + EPOCHS;
        if now < self.poll_at && !epochs_are_due {
            return;
        }
        let mut order: Vec<usize> =
            (0..self.links.len()).filter(|&i| self.links[i].kind == Kind::Node && self.links[i].ready).collect();
        order.retain(|&i| !self.links[i].suspected);
        if order.is_empty() {
            return;
        }
        let replica = |l: &Link| matches!(l.role, Some(RoleReply::Replica { .. }));
        order.sort_by_key(|&i| !replica(&self.links[i]));
        // Without pushes a move that no epoch tells of shows in views alone.
        let pushed = order.iter().all(|&i| self.links[i].pushes);
        let every = match (busy, pushed) {
            (true, _) => 100 * MS,
            (false, true) => POLL,
            (false, false) => 1000 * MS,
        };
        if now >= self.poll_at {
            // Two at a time, so that one view never stands alone.
            self.poll_at = now + every;
            for _ in 0..2.min(order.len()) {
                self.turn += 1;
                self.want_nodes(io, order[self.turn % order.len()]);
            }
        }
        if epochs_are_due {
            self.epochs_at = now;
            order.retain(|&i| !self.links[i].pushes);
            if !order.is_empty() {
                self.turn += 1;
                let at = order[self.turn % order.len()];
                if !self.links[at].asked(|a| *a == Ask::Epochs) {
                    self.ask(io, at, Ask::Epochs, &["CLUSTER", "INFO"]);
                }
            }
        }
    }
}

/// Whether a link's connection has owed an answer for so long that it is given up, and whether its node is silent for
/// so long that it is suspected: longer where answers have lately taken longer.
pub(super) fn overdue(link: &Link, now: u64, suspect_after: u64) -> (bool, bool) {
    let patience = suspect_after.max(link.rtt_peak * 4).min(suspect_after * 8);
    let owes = link.connection.is_none() || !link.ready || !link.asks.is_empty();
    if !owes || link.dial_at == u64::MAX {
        return (false, false);
    }
    let since = if link.ready { link.heard_at.max(link.owes_since) } else { link.heard_at };
    let open_since = if link.ready { since } else { link.dialled_at };
    (link.connection.is_some() && now > open_since + patience.max(SILENT), now > since + patience)
}
