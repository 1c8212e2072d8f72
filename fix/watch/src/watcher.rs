//! The watcher: links to every node, what they say, and the one view made of it.

mod group;
mod links;
mod publishing;
mod suspicion;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::ClientConfig;
use unslow_client::{Deployment, Error, Target, address_target};
use unslow_reactor::{Closed, Handler, Id, Io, now_ns, peer_of, tls_of};
use unslow_resp::{Frame, Kind as FrameKind, Scan, Scanner, Value, write_command};
use unslow_topology::{
    Change, ClusterNode, ClusterView, DeploymentKind, Health, Info, Node, Role, RoleReply, SLOTS, SentinelWord,
    SlotSet, Topology, join_host_port, messages, slot_of, zones_of_shards,
};

use self::links::plain_address;
use crate::channels::channel;
use crate::link::{Ask, Kind, Link, push_words};
use crate::publish::Publisher;
use crate::roles::Reason;
use crate::{Delta, Known, News, Settings, Shared, Sign};

const MS: u64 = 1_000_000;
/// How often everything is looked over.
const TICK: u64 = 20 * MS;
/// The same while somebody is suspected; also how often ROLE is asked then.
const TICK_BUSY: u64 = 10 * MS;
/// Without any sign, a view is asked for anyway; pushes can be lost, and some changes have none.
const POLL: u64 = 5_000 * MS;
/// A connection that owes an answer this long is given up, whatever becomes of its node.
const SILENT: u64 = 2_000 * MS;
/// On servers without pushes the epochs are asked for; it costs them some 40 us.
const EPOCHS: u64 = 250 * MS;
const ROLES: u64 = 1_000 * MS;
/// A slot without an owner is told after this.
const UNOWNED: u64 = 1_000 * MS;
/// A node outside clusters that nobody names and that does not answer is forgotten after this.
const FORGOTTEN: u64 = 60_000 * MS;
/// Views of this age may stand beside the newest one.
const FRESH: u64 = 1_000 * MS;
/// With this many recent or pending views, a node that has just connected waits for its turn to be asked: a view is as
/// large as its cluster, and a thousand nodes may connect at once.
const ENOUGH_VIEWS: usize = 32;
/// Its turn comes this much later than that of the link before it.
const VIEW_TURN: u64 = 10 * MS;
/// A node spends at most this share of its time on views: one in 20.
const SHARE: u64 = 20;
/// A topology that takes longer than this to make is made in at most one part in four of the time.
const LONG_REBUILD: u64 = 2 * MS;
const LONGEST_REBUILD: u64 = 50 * MS;
const REBUILD_SHARE: u64 = 4;
/// Subscriptions under way on a link; more would keep the server from its work for milliseconds.
const SUBSCRIBING_MAX: usize = 256;
/// The last four come before a promotion, or instead of it.
const SENTINEL_CHANNELS: [&str; 12] = [
    "+switch-master",
    "+promoted-slave",
    "+sdown",
    "-sdown",
    "+odown",
    "-odown",
    "+slave",
    "+failover-end",
    "+selected-slave",
    "+failover-state-send-slaveof-noone",
    "+failover-state-wait-promotion",
    "-failover-abort-slave-timeout",
];

/// See the crate.
pub struct Watcher {
    settings: Settings,
    tls: Option<Arc<ClientConfig>>,
    kind: DeploymentKind,
    service: Option<String>,
    links: Vec<Link>,
    by_connection: HashMap<Id, usize>,
    /// Last view of each node, and when.
    views: BTreeMap<String, (u64, ClusterView)>,
    /// What was made of them.
    merged: ClusterView,
    /// Since when slots that had an owner have none.
    unowned_since: Option<u64>,
    zones: BTreeMap<String, String>,
    /// Addresses behind host names.
    names: BTreeMap<String, String>,
    /// Address of the master, outside clusters.
    master: Option<String>,
    /// The config epoch a Sentinel named it with.
    master_epoch: u64,
    /// It is to be written nothing for now, because it may just be replaced.
    hold: Option<Reason>,
    topology: Option<Arc<Topology>>,
    sequence: u64,
    /// When the server took back the subscription in a slot; 0 for long ago.
    left_at: Vec<u64>,
    sign: Option<(u64, Sign)>,
    /// Who takes part in the next round of polling.
    turn: usize,
    poll_at: u64,
    epochs_at: u64,
    /// What CLUSTER INFO said last of the cluster as a whole.
    epochs: String,
    fresh_at: u64,
    /// No rebuild before this time, and the first sign of a change that waits for one.
    rebuild_at: u64,
    rebuild_due: Option<Sign>,
    tick_at: u64,
    ticked_at: u64,
    publisher: Option<Publisher>,
    shared: Arc<Shared>,
    tell: Box<dyn FnMut(News) + Send>,
}

impl Watcher {
    pub fn new(
        settings: Settings,
        found: &Deployment,
        shared: Arc<Shared>,
        tell: Box<dyn FnMut(News) + Send>,
    ) -> Result<Watcher, Error> {
        let tls = if settings.target.tls { Some(settings.options.tls.client_config()?) } else { None };
        let service = settings.target.service.clone().or_else(|| found.members.iter().find_map(|m| m.service.clone()));
        let publisher = settings.publish.map(|p| Publisher::new(p, now_ns()));
        let mut watcher = Watcher {
            tls,
            kind: found.kind,
            service,
            links: Vec::new(),
            by_connection: HashMap::new(),
            views: BTreeMap::new(),
            merged: ClusterView::default(),
            unowned_since: None,
            zones: BTreeMap::new(),
            names: BTreeMap::new(),
            master: None,
            master_epoch: 0,
            hold: None,
            topology: None,
            sequence: 0,
            left_at: vec![0; usize::from(SLOTS)],
            sign: None,
            turn: 0,
            poll_at: 0,
            epochs_at: 0,
            epochs: String::new(),
            fresh_at: 0,
            rebuild_at: 0,
            rebuild_due: None,
            tick_at: 0,
            ticked_at: now_ns(),
            publisher,
            shared,
            tell,
            settings,
        };
        for member in &found.members {
            if watcher.service.is_some() && member.service.is_some() && member.service != watcher.service {
                continue;
            }
            let target = found.target_of(member);
            let address = plain_address(&target, found.kind);
            match member.role {
                Role::Sentinel => {
                    watcher.add(address.clone(), Kind::Sentinel, target.clone());
                    watcher.add(address, Kind::Ear, target);
                }
                role => {
                    if role == Role::Master && watcher.kind != DeploymentKind::Cluster && watcher.master.is_none() {
                        watcher.master = Some(address.clone());
                    }
                    watcher.add(address, Kind::Node, target);
                }
            }
        }
        Ok(watcher)
    }
}

impl Handler for Watcher {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        if self.shared.ended.load(Ordering::Acquire) {
            io.stop();
            return None;
        }
        if now_ns() >= self.tick_at || self.shared.doubt.load(Ordering::Acquire) {
            self.tick(io);
        }
        Some(self.tick_at)
    }

    fn opened(&mut self, io: &mut Io, id: Id) {
        if let Some(&at) = self.by_connection.get(&id) {
            self.greet(io, at);
        }
    }

    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        let Some(&at) = self.by_connection.get(&id) else { return bytes.len() };
        let mut used = 0;
        loop {
            match Scanner::default().scan(&bytes[used..]) {
                Ok(Scan::Complete(len)) => {
                    self.reply(io, at, Frame::new(&bytes[used..used + len]));
                    used += len;
                }
                Ok(Scan::Incomplete) => return used,
                Err(why) => {
                    self.note(at, &format!("what it says is not RESP: {why}"));
                    io.close(id);
                    self.closed(io, id, Closed::Peer);
                    return bytes.len();
                }
            }
        }
    }

    fn closed(&mut self, _: &mut Io, id: Id, _: Closed) {
        let Some(at) = self.by_connection.remove(&id) else { return };
        let now = now_ns();
        let was_ready = self.links[at].ready;
        self.links[at].lost(now);
        if self.links[at].kind == Kind::Node && was_ready {
            self.sign.get_or_insert((now, Sign::ConnectionLost));
            // The first try to come back is at once: a node that closed one connection may well take another.
            self.links[at].dial_at = now;
            self.tick_at = now;
        }
    }

    fn timer(&mut self, _: &mut Io, _: u64) {}
}
