//! The watcher: links to every node, what they say, and the one view made of it.

mod group;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::ClientConfig;
use unslow_client::{Deployment, Error, Target, address_target};
use unslow_reactor::{Closed, Handler, Id, Io, now_ns};
use unslow_resp::{Frame, Kind as FrameKind, Scan, Scanner, Value, write_command};
use unslow_topology::{
    Change, ClusterNode, ClusterView, DeploymentKind, Health, Info, Node, Role, RoleReply, SLOTS, SentinelWord,
    SlotSet, Topology, join_host_port, messages, slot_of, zones_of_shards,
};

use crate::channels::channel;
use crate::link::{Ask, Kind, Link, peer_of, push_words, tls_of};
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
/// A node spends at most this share of its time on views: one in 20.
const SHARE: u64 = 20;
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
    fresh_at: u64,
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
            fresh_at: 0,
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

    fn add(&mut self, address: String, kind: Kind, target: Target) {
        if self.links.iter().all(|l| l.address != address || l.kind != kind) {
            let own = &self.settings.target;
            let mut link = Link::new(address, kind, target);
            link.trusted = own.password.is_none() || link.target.password == own.password;
            (link.heard_at, link.named_at) = (now_ns(), now_ns());
            self.links.push(link);
        }
    }

    // What goes out.

    fn ask<A: AsRef<[u8]>>(&mut self, io: &mut Io, at: usize, what: Ask, command: &[A]) {
        let link = &mut self.links[at];
        if let Some(connection) = link.connection {
            write_command(io.output(connection), command);
            if link.asks.is_empty() {
                link.owes_since = now_ns();
            }
            link.asks.push_back(what);
        }
    }

    fn dial(&mut self, io: &mut Io, at: usize, now: u64) {
        let link = &mut self.links[at];
        let patience = self.settings.options.connect_timeout.as_nanos() as u64;
        let Some(peer) = peer_of(&link.target) else { return link.lost(now) };
        let tls = tls_of(&link.target, self.tls.as_ref(), self.settings.options.tls.server_name.as_deref());
        if link.target.tls && tls.is_none() {
            // Not a name that a certificate may have: never in the clear where TLS was asked for.
            return link.lost(now);
        }
        match io.connect(&peer, tls.as_ref(), now + patience) {
            Ok(id) => {
                (link.connection, link.dialled_at) = (Some(id), now);
                self.by_connection.insert(id, at);
            }
            Err(_) => link.lost(now),
        }
    }

    fn greet(&mut self, io: &mut Io, at: usize) {
        let target = self.links[at].target.clone();
        let kind = self.links[at].kind;
        if target.password.is_some() || target.user.is_some() {
            let mut auth = vec!["AUTH".to_string()];
            auth.extend(target.user.clone());
            auth.push(target.password.as_ref().map_or("", |p| p.reveal()).to_string());
            self.ask(io, at, Ask::Auth, &auth);
        }
        if kind == Kind::Ear {
            if self.links.iter().any(|l| l.kind == Kind::Sentinel && l.address == self.links[at].address) {
                for name in SENTINEL_CHANNELS {
                    self.ask(io, at, Ask::Ignore, &["SUBSCRIBE", name]);
                }
            } else {
                self.ask(io, at, Ask::Ignore, &["SUBSCRIBE", messages::DIGEST]);
            }
        } else {
            self.ask(io, at, Ask::Hello, &["HELLO", "3"]);
            self.ask(io, at, Ask::Ignore, &["CLIENT", "SETNAME", "unslow-watch"]);
            self.ask(io, at, Ask::Info, &["INFO", "server"]);
        }
    }

    /// CLUSTER NODES, now or when the node has spent little enough of its time on them.
    fn want_nodes(&mut self, io: &mut Io, at: usize) {
        let now = now_ns();
        let link = &mut self.links[at];
        let under_way = link.asked(|a| matches!(a, Ask::Nodes(_) | Ask::Slots(_)));
        if !link.ready || under_way || now < link.nodes_due {
            link.nodes_wanted = true;
            return;
        }
        link.nodes_wanted = false;
        if link.nodes_denied {
            self.ask(io, at, Ask::Slots(now), &["CLUSTER", "SLOTS"]);
        } else {
            self.ask(io, at, Ask::Nodes(now), &["CLUSTER", "NODES"]);
        }
    }

    fn want_role(&mut self, io: &mut Io, at: usize) {
        if self.links[at].ready && !self.links[at].asked(|a| *a == Ask::Role) {
            self.links[at].role_at = now_ns();
            self.ask(io, at, Ask::Role, &["ROLE"]);
        }
    }

    /// Subscribes in the slots of the link's shard, some at a time.
    fn subscribe(&mut self, io: &mut Io, at: usize) {
        let link = &self.links[at];
        let (true, Some(topology)) = (link.pushes && link.subscribing < SUBSCRIBING_MAX / 2, self.topology.clone())
        else {
            return;
        };
        let Some(node) = topology.at(&link.address) else { return };
        let owner = match node.role {
            Role::Master => Some(node),
            _ => node.master.as_deref().and_then(|id| topology.by_id(id)),
        };
        let Some(owner) = owner else { return };
        for slot in link.slots_missing(owner.slots.ranges(), SUBSCRIBING_MAX - link.subscribing) {
            self.links[at].held.set(slot, true);
            self.links[at].subscribing += 1;
            self.ask(io, at, Ask::Subscribe(slot), &["SSUBSCRIBE", channel(slot)]);
        }
    }

    // What comes in.

    fn reply(&mut self, io: &mut Io, at: usize, frame: Frame<'_>) {
        let now = now_ns();
        let value = Value::from(frame);
        self.links[at].heard_at = now;
        self.links[at].owes_since = now;
        if self.links[at].suspected {
            self.links[at].suspected = false;
            self.rebuild(io, Sign::Silence);
        }
        if self.links[at].kind == Kind::Ear {
            return self.overheard(io, at, &value);
        }
        if let Some((word, name)) = push_words(&value).filter(|_| frame.kind() == FrameKind::Push) {
            let confirmed = word == "ssubscribe";
            if confirmed && matches!(self.links[at].asks.front(), Some(Ask::Subscribe(_))) {
                self.links[at].asks.pop_front();
                self.links[at].subscribing -= 1;
                self.subscribe(io, at);
            } else if word == "sunsubscribe" {
                let slot = slot_of(name.as_bytes());
                self.links[at].held.set(slot, false);
                let left = &mut self.left_at[usize::from(slot)];
                if *left + 1000 * MS < now {
                    *left = now;
                }
                self.sign.get_or_insert((now, Sign::Sunsubscribe));
                self.want_nodes(io, at);
            }
            return;
        }
        let Some(asked) = self.links[at].asks.pop_front() else { return };
        let error = match &value {
            Value::Error(text) => Some(text.clone()),
            _ => None,
        };
        if error.as_deref().is_some_and(|e| e.starts_with("LOADING")) {
            self.links[at].loading = true;
        } else if !matches!(asked, Ask::Auth | Ask::Hello | Ask::Ignore | Ask::Ping(_)) {
            self.links[at].loading = false;
        }
        match asked {
            Ask::Auth | Ask::Ignore => {}
            Ask::Hello => {
                self.links[at].resp3 = error.is_none();
                // NOAUTH and the like: nothing that follows will work, and the reason is this.
                if let Some(why) = error.filter(|e| e.starts_with("NOAUTH") || e.starts_with("NOPERM")) {
                    self.note(at, &format!("it refuses us: {why}"));
                }
            }
            Ask::Info => self.greeted(io, at, &value),
            Ask::Ping(sent) => self.links[at].answered(now.saturating_sub(sent)),
            Ask::Nodes(sent) => {
                self.links[at].nodes_due = now + (now.saturating_sub(sent) * SHARE / 2).min(1000 * MS);
                if let Some(why) = error {
                    if why.starts_with("NOPERM") {
                        self.links[at].nodes_denied = true;
                        self.note(at, "CLUSTER NODES is denied, so epochs are unknown; grant +cluster|nodes");
                        self.want_nodes(io, at);
                    }
                } else if let Some(view) = value.text().and_then(|t| ClusterView::parse(&t).ok()) {
                    self.viewed(io, at, view);
                }
            }
            Ask::Slots(sent) => {
                self.links[at].nodes_due = now + (now.saturating_sub(sent) * SHARE / 2).min(1000 * MS);
                if let Some(view) = ClusterView::from_slots(&value) {
                    self.viewed(io, at, view);
                }
            }
            Ask::Shards => self.zones.extend(zones_of_shards(&value)),
            Ask::Epochs => {
                // Everything that changes with the topology and with nothing else; message counts do not.
                let text = value.text().unwrap_or_default();
                let told = text.lines().filter(|l| l.starts_with("cluster_") && !l.starts_with("cluster_stats"));
                let epochs: String = told.collect();
                if std::mem::replace(&mut self.links[at].epochs, epochs.clone()) != epochs {
                    self.sign.get_or_insert((now, Sign::Poll));
                    self.want_nodes(io, at);
                }
            }
            Ask::Role => {
                // One at a time is under way.
                self.links[at].role_asked = self.links[at].role_at;
                self.role(io, at, RoleReply::parse(&value));
            }
            Ask::Subscribe(slot) => {
                self.links[at].subscribing -= 1;
                self.links[at].held.set(slot, false);
                match error {
                    // It left meanwhile, or never was here.
                    Some(why) if why.starts_with("MOVED") || why.starts_with("CLUSTERDOWN") => {
                        self.sign.get_or_insert((now, Sign::Poll));
                        self.want_nodes(io, at);
                    }
                    Some(why) => {
                        self.links[at].pushes = false;
                        self.note(
                            at,
                            &format!(
                                "subscriptions are denied, so it is asked instead; grant +ssubscribe &unslow:* ({why})"
                            ),
                        );
                    }
                    None => {}
                }
            }
            Ask::Master => {
                if let [host, port] = value.items()
                    && let (Some(host), Some(port)) = (host.text(), port.text())
                {
                    let host = if host.contains(':') { format!("[{host}]") } else { host };
                    let address = self.plain(format!("{host}:{port}"));
                    self.links[at].naming = Some(address);
                }
            }
            Ask::MasterEpoch(sent) => self.master_described(at, &value, sent),
            Ask::Replicas(sent) => self.replicas_listed(io, at, &value, sent),
            Ask::Publish => {
                if let Some(why) = error {
                    self.note(at, &format!("nothing can be published there: {why}"));
                }
            }
        }
    }

    /// Version and zone are known: the link can be used.
    fn greeted(&mut self, io: &mut Io, at: usize, info: &Value) {
        let info = Info::parse(&info.text().unwrap_or_default());
        let cluster = self.kind == DeploymentKind::Cluster;
        let link = &mut self.links[at];
        link.level = info.redis_level();
        link.zone = info.get("availability_zone").filter(|z| !z.is_empty()).map(str::to_string);
        link.ready = true;
        link.backoff = 0;
        link.pushes = cluster && link.kind == Kind::Node && link.resp3 && link.level >= (7, 0);
        match link.kind {
            Kind::Sentinel => {
                if let Some(service) = self.service.clone() {
                    self.ask_sentinel(io, at, &service);
                }
            }
            _ => {
                if cluster {
                    if self.links[at].level >= (7, 0) && self.zones.is_empty() {
                        self.ask(io, at, Ask::Shards, &["CLUSTER", "SHARDS"]);
                    }
                    self.links[at].nodes_due = 0;
                    self.want_nodes(io, at);
                }
                self.want_role(io, at);
                self.subscribe(io, at);
            }
        }
        if self.topology.is_some() {
            self.rebuild(io, Sign::Poll);
        }
    }

    fn overheard(&mut self, io: &mut Io, at: usize, value: &Value) {
        let [word, name, text] = value.items() else { return };
        let (Some(word), Some(name), Some(text)) = (word.text(), name.text(), text.text()) else { return };
        if word != "message" {
            self.links[at].ready = true;
            self.links[at].backoff = 0;
            return;
        }
        let now = now_ns();
        if name == messages::DIGEST {
            if let Some(publisher) = &mut self.publisher
                && let Some(note) = publisher.heard(&text, now)
            {
                (self.tell)(News::Note(note));
            }
            return;
        }
        let Some(service) = self.service.clone() else { return };
        match SentinelWord::parse(&name, &text) {
            Some(SentinelWord::Switched { service: about, .. }) if about == service => {}
            Some(SentinelWord::About { service: about, event, node }) if about == service => {
                self.announced(at, &event, node);
            }
            _ => return,
        }
        self.sign.get_or_insert((now, Sign::Sentinel));
        // First what is to be held: what comes of it is asked then.
        self.resettle(io);
        self.ask_sentinels(io);
    }

    /// A data node somebody named.
    fn heard_of(&mut self, address: String) {
        let now = now_ns();
        match self.links.iter_mut().find(|l| l.kind == Kind::Node && l.address == address) {
            Some(link) => {
                link.named_at = now;
                // It was gone, and is there again.
                if link.dial_at == u64::MAX {
                    (link.dial_at, link.heard_at, link.suspected) = (now, now, false);
                }
            }
            None => {
                if let Some(target) = address_target(&self.settings.target, &address) {
                    self.add(address, Kind::Node, target);
                }
            }
        }
    }

    /// Servers may name each other by host names; nodes go by their addresses here, so that one is not taken for two.
    fn plain(&mut self, address: String) -> String {
        let host = address.rsplit_once(':').map_or("", |(h, _)| h).trim_matches(['[', ']']);
        if self.settings.target.tls || host.parse::<std::net::IpAddr>().is_ok() {
            return address;
        }
        if let Some(known) = self.names.get(&address) {
            return known.clone();
        }
        let resolved = address_target(&self.settings.target, &address).and_then(|t| peer_of(&t));
        let plain = match resolved {
            Some(unslow_reactor::Peer::Tcp(ip)) => ip.to_string(),
            _ => return address,
        };
        self.names.insert(address, plain.clone());
        plain
    }

    fn role(&mut self, io: &mut Io, at: usize, role: Option<RoleReply>) {
        let changed = match (&self.links[at].role, &role) {
            (Some(RoleReply::Master { .. }), Some(RoleReply::Master { .. })) => false,
            (Some(RoleReply::Replica { master: a, .. }), Some(RoleReply::Replica { master: b, .. })) => a != b,
            (None, None) => false,
            _ => true,
        };
        if matches!(role, Some(RoleReply::Master { .. }))
            && !matches!(self.links[at].role, Some(RoleReply::Master { .. }))
        {
            self.links[at].leads_since = now_ns();
        }
        self.links[at].role = role.clone();
        if self.kind == DeploymentKind::Cluster {
            let known = self.topology.as_ref().and_then(|t| t.at(&self.links[at].address)).map(|n| n.role);
            let promoted = matches!(role, Some(RoleReply::Master { .. })) && known == Some(Role::Replica);
            if promoted {
                self.sign.get_or_insert((now_ns(), Sign::Role));
                self.links[at].nodes_due = 0;
                self.want_nodes(io, at);
            }
            return;
        }
        if let Some(RoleReply::Master { replicas, .. }) = &role {
            for (address, _) in replicas.clone() {
                let address = self.plain(address);
                self.heard_of(address);
            }
        }
        if let Some(RoleReply::Replica { master, .. }) = &role {
            let master = self.plain(master.clone());
            self.heard_of(master.clone());
            if let Some(RoleReply::Replica { master: named, .. }) = &mut self.links[at].role {
                *named = master;
            }
        }
        if changed || self.topology.is_none() {
            if changed {
                self.sign.get_or_insert((now_ns(), Sign::Role));
            }
            if self.kind == DeploymentKind::Sentinel {
                self.ask_sentinels(io);
            }
            self.rebuild(io, Sign::Role);
            // What the one that is written to said of itself may be a second old.
            let lead = self.links.iter().position(|l| l.kind == Kind::Node && Some(&l.address) == self.master.as_ref());
            if let Some(lead) = lead.filter(|lead| changed && *lead != at) {
                self.want_role(io, lead);
            }
        }
    }

    fn viewed(&mut self, io: &mut Io, at: usize, mut view: ClusterView) {
        let address = self.links[at].address.clone();
        for node in &mut view.nodes {
            // Who was never told its own address is the one that was asked.
            if let Some(port) = node.address.strip_prefix(':').filter(|_| node.is("myself")) {
                let host = address.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host);
                node.address = if port == "0" { address.clone() } else { join_host_port(host, port) };
            }
        }
        self.views.insert(address, (now_ns(), view));
        self.rebuild(io, Sign::Poll);
    }

    // What is made of it.

    fn rebuild(&mut self, io: &mut Io, sign: Sign) {
        let now = now_ns();
        let topology = match self.kind {
            DeploymentKind::Cluster => match self.cluster(now) {
                Some(topology) => topology,
                None => return,
            },
            _ => match self.group() {
                Some(topology) => topology,
                None => return,
            },
        };
        self.publish_view(io, topology, sign, now);
    }

    fn cluster(&mut self, now: u64) -> Option<Topology> {
        let newest = self.views.values().map(|(at, _)| *at).max()?;
        let mut fresh: Vec<(u64, ClusterView)> =
            self.views.values().filter(|(at, _)| at + FRESH >= newest).cloned().collect();
        fresh.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let mut views: Vec<ClusterView> = fresh.into_iter().map(|(_, v)| v).collect();
        // What is known stands against a single node's word: it loses to higher epochs, and to a node's word on itself.
        // A node that none of several fresh views has is no more; one view is enough where there is nobody else to ask.
        let ready = self.links.iter().filter(|l| l.kind == Kind::Node && l.ready && !l.suspected).count();
        let half = self.merged.nodes.len().div_ceil(2);
        let tellers: BTreeSet<&str> =
            views.iter().filter(|v| v.nodes.len() >= half).filter_map(|v| v.myself()).map(|n| n.id.as_str()).collect();
        let enough = tellers.len() >= 2.min(ready.max(1));
        let mut known = self.merged.clone();
        known.nodes.retain(|n| {
            let lines: Vec<_> = views.iter().filter_map(|v| v.by_id(&n.id)).collect();
            // What it is and whom it follows is for fresh views to say, unless they have not heard of slots it has won.
            let won = !n.slots.is_empty() && lines.iter().all(|l| l.config_epoch < n.config_epoch);
            if lines.is_empty() { !enough } else { won }
        });
        views.push(known);
        let mut merged = ClusterView::merge(&views);
        // Between two owners a slot may have none for a moment, by the views that are there: that is no news yet.
        let lost = merged.unassigned();
        let given = |n: &ClusterNode| -> Vec<(u16, u16)> {
            let slots = lost.ranges().iter().flat_map(|&(a, b)| a..=b).filter(|s| n.slots.contains(*s));
            slots.map(|s| (s, s)).collect()
        };
        let held: Vec<(String, Vec<(u16, u16)>)> =
            self.merged.nodes.iter().map(|n| (n.id.clone(), given(n))).filter(|(_, s)| !s.is_empty()).collect();
        if held.is_empty() {
            self.unowned_since = None;
        } else if now < *self.unowned_since.get_or_insert(now) + UNOWNED {
            for (id, slots) in held {
                if let Some(node) = merged.nodes.iter_mut().find(|n| n.id == id) {
                    node.slots = SlotSet::from_ranges(node.slots.ranges().iter().copied().chain(slots));
                }
            }
            self.poll_at = self.poll_at.min(now + 20 * MS);
        }
        self.merged = merged;
        let topology = Topology::of_cluster(&self.merged, self.settings.target.tls);
        let addresses: BTreeSet<String> = topology.nodes.iter().map(|n| n.address.clone()).collect();
        for address in &addresses {
            self.heard_of(address.clone());
        }
        // The seed may be known to the others under another address: it goes when they do not name it.
        self.views.retain(|address, (at, _)| addresses.contains(address) || *at + FRESH > now);
        Some(topology)
    }

    /// Health, zones, round trips and lags, as the links know them.
    fn dress(&self, topology: &mut Topology) {
        let offsets: BTreeMap<String, u64> = self
            .links
            .iter()
            .filter_map(|l| match &l.role {
                Some(RoleReply::Master { offset, .. }) => Some((l.address.clone(), *offset)),
                _ => None,
            })
            .collect();
        let addresses: BTreeMap<String, String> =
            topology.nodes.iter().map(|n| (n.id.clone(), n.address.clone())).collect();
        for node in &mut topology.nodes {
            let zone = self.zones.get(&node.id).cloned();
            let Some(link) = self.links.iter().find(|l| l.kind == Kind::Node && l.address == node.address) else {
                node.zone = zone;
                continue;
            };
            node.zone = link.zone.clone().or(zone);
            node.rtt_us = (link.rtt_min != u64::MAX).then_some(link.rtt_min / 1000);
            let held = self.hold.is_some() && self.master.as_ref() == Some(&node.address);
            if (link.suspected || held) && node.health == Health::Up {
                node.health = Health::Suspected;
            } else if node.health == Health::Failed && link.ready && !link.suspected && node.role != Role::Master {
                node.health = Health::Up; // it answers us; the others will find out
            }
            if node.role != Role::Master {
                let master = node.master.as_ref().and_then(|id| addresses.get(id));
                if let Some(RoleReply::Replica { connected, offset, master: follows }) = &link.role {
                    // A cluster's replica names its master by address too, but that may be an alias.
                    let right = self.kind == DeploymentKind::Cluster || node.master.as_ref() == Some(follows);
                    node.in_sync = *connected && !link.loading && right;
                    node.lag_bytes = master.and_then(|m| offsets.get(m)).map(|theirs| theirs.saturating_sub(*offset));
                } else {
                    node.in_sync = false;
                }
            }
        }
    }

    fn publish_view(&mut self, io: &mut Io, mut topology: Topology, sign: Sign, now: u64) {
        self.dress(&mut topology);
        let old = self.topology.clone();
        let changes = old.as_ref().map(|old| old.changes(&topology)).unwrap_or_default();
        let topology = Arc::new(topology);
        if old.is_some() && changes.is_empty() {
            if self.sign.is_some_and(|(at, _)| at + 2000 * MS < now) {
                self.sign = None;
            }
            return;
        }
        self.topology = Some(topology.clone());
        *self.shared.topology.lock().expect("no thread panicked") = Some(topology.clone());
        self.shared.first.notify_all();
        for at in 0..self.links.len() {
            self.subscribe(io, at);
        }
        // Links to nodes that are no more.
        if self.kind == DeploymentKind::Cluster {
            let gone = |l: &Link| l.kind == Kind::Node && topology.at(&l.address).is_none();
            for at in 0..self.links.len() {
                if gone(&self.links[at]) && !self.views.contains_key(&self.links[at].address) {
                    if let Some(connection) = self.links[at].connection {
                        self.by_connection.remove(&connection);
                        io.close(connection);
                    }
                    self.links[at].lost(now);
                    self.links[at].dial_at = u64::MAX;
                }
            }
        }
        if changes.is_empty() {
            return;
        }
        let silent = |address: &str| {
            let link = self.links.iter().find(|l| l.kind == Kind::Node && l.address == address)?;
            Some(now.saturating_sub(link.heard_at) / MS).filter(|ms| *ms > 100)
        };
        let known = |what: Change| {
            let (seen, silent_ms) = match &what {
                Change::Moved { slots, .. } => {
                    let left = slots.ranges().iter().flat_map(|&(a, b)| a..=b).map(|s| self.left_at[usize::from(s)]);
                    let first = left.filter(|at| *at + 2000 * MS > now).min();
                    (first.map(|at| (at, Sign::Sunsubscribe)).or(self.sign), None)
                }
                Change::Promoted { instead_of, .. } => (self.sign, instead_of.as_deref().and_then(silent)),
                Change::Suspected { node } => (Some((now, sign)), silent(node)),
                Change::Failed { node } => (self.sign, silent(node)),
                _ => (self.sign, None),
            };
            let (at, sign) = seen.unwrap_or((now, sign));
            Known { what, sign, known_us: now.saturating_sub(at) / 1000, silent_ms }
        };
        let delta = Delta {
            sequence: self.sequence + 1,
            digest: topology.digest(),
            at_unix_ms: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64),
            changes: changes.into_iter().map(known).collect(),
        };
        self.sequence += 1;
        self.sign = None;
        if self.publisher.as_ref().is_some_and(Publisher::leads) {
            let all: Vec<(&str, String)> = delta.changes.iter().flat_map(|k| messages::messages(&k.what)).collect();
            let told = !all.is_empty();
            for (name, text) in all {
                self.publish(io, name, &text);
            }
            if told && self.publisher.as_ref().is_some_and(|p| p.master_changed()) {
                self.publish(io, messages::MASTER_CHANGED, "*");
            }
            if told {
                self.heartbeat(io, now);
            }
        }
        (self.tell)(News::Delta(delta, topology));
    }

    /// In a cluster through a replica where there is one: a master that was just given a slot has broadcast that, and
    /// its next words wait up to 40 ms for the acknowledgement (cluster links are opened without TCP_NODELAY:
    /// valkey-io/valkey#1758). Heartbeats go through another one than news, which would wait for them.
    fn publish(&mut self, io: &mut Io, name: &str, text: &str) {
        let Some(topology) = self.topology.clone() else { return };
        let ways = |role: Role| -> Vec<usize> {
            let nodes = topology.nodes.iter().filter(|n| n.role == role && n.health == Health::Up);
            let ready = |l: &Link| l.kind == Kind::Node && l.ready && !l.suspected;
            nodes.filter_map(|n| self.links.iter().position(|l| ready(l) && l.address == n.address)).collect()
        };
        let mut all = if self.kind == DeploymentKind::Cluster { ways(Role::Replica) } else { Vec::new() };
        if all.is_empty() {
            all = ways(Role::Master);
        }
        let way = if name == messages::DIGEST { all.last() } else { all.first() };
        if let Some(at) = way {
            self.ask(io, *at, Ask::Publish, &["PUBLISH", name, text]);
        }
    }

    fn heartbeat(&mut self, io: &mut Io, now: u64) {
        let (Some(topology), Some(publisher)) = (&self.topology, &mut self.publisher) else { return };
        let text = publisher.beat(topology.digest(), self.sequence, now);
        self.publish(io, messages::DIGEST, &text);
    }

    fn note(&mut self, at: usize, text: &str) {
        if !std::mem::replace(&mut self.links[at].noted, true) {
            let text = format!("{}: {text}", self.links[at].address);
            (self.tell)(News::Note(text));
        }
    }

    // What is done without being told.

    fn tick(&mut self, io: &mut Io) {
        let now = now_ns();
        // We may have been kept from running ourselves: nobody is to blame for the time we were away.
        let away = now.saturating_sub(self.ticked_at).saturating_sub(2 * TICK);
        self.ticked_at = now;
        if away > 0 {
            self.links.iter_mut().for_each(|l| l.heard_at = (l.heard_at + away).min(now));
        }
        let nodes = self.links.len() as u64;
        let ping_every = (self.settings.ping_every.as_nanos() as u64).max(nodes * MS / 2);
        let suspect_after = self.settings.suspect_after.as_nanos() as u64;
        let mut changed = None;
        for at in 0..self.links.len() {
            let link = &self.links[at];
            if link.connection.is_none() {
                if now >= link.dial_at {
                    self.dial(io, at, now);
                }
            } else if link.ready {
                let pinging = link.asked(|a| matches!(a, Ask::Ping(_)));
                if link.kind == Kind::Ear {
                    if now > link.heard_at + 3000 * MS {
                        if let Some(connection) = self.links[at].connection {
                            self.by_connection.remove(&connection);
                            io.close(connection);
                        }
                        self.links[at].lost(now);
                    } else if now >= link.pinged_at + 1000 * MS {
                        self.links[at].pinged_at = now;
                        self.ask(io, at, Ask::Ignore, &["PING"]);
                        self.links[at].asks.clear();
                    }
                } else if !pinging && now >= link.pinged_at + ping_every {
                    self.links[at].pinged_at = now;
                    self.ask(io, at, Ask::Ping(now), &["PING"]);
                }
                if self.links[at].nodes_wanted {
                    self.want_nodes(io, at);
                }
                self.subscribe(io, at);
                if self.links[at].kind == Kind::Node && now >= self.links[at].role_at + ROLES {
                    self.want_role(io, at);
                }
            }
            let (dead, silent) = overdue(&self.links[at], now, suspect_after);
            if dead {
                // The connection may be dead although the node is well: another one shows.
                if let Some(connection) = self.links[at].connection {
                    self.by_connection.remove(&connection);
                    io.close(connection);
                }
                self.links[at].lost(now);
                self.links[at].dial_at = now;
                continue;
            }
            let link = &mut self.links[at];
            if silent && link.kind != Kind::Ear && !link.suspected {
                link.suspected = true;
                changed = Some(if link.connection.is_some() { Sign::Silence } else { Sign::ConnectionLost });
            }
        }
        if self.kind != DeploymentKind::Cluster {
            // Nobody names it any more, and it does not answer: it is no more.
            let master = self.master.clone();
            let gone = |l: &Link| {
                l.kind == Kind::Node
                    && !l.ready
                    && now > l.heard_at.max(l.named_at) + FORGOTTEN
                    && Some(&l.address) != master.as_ref()
                    && l.dial_at != u64::MAX
            };
            for link in self.links.iter_mut().filter(|l| gone(l)) {
                link.dial_at = u64::MAX;
                changed = Some(Sign::Poll);
            }
        }
        if let Some(sign) = changed {
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
            self.sign.get_or_insert((now, Sign::Doubt));
            self.poll_at = 0;
            if self.kind == DeploymentKind::Cluster {
                self.poll(io, now, busy);
            } else {
                (0..self.links.len())
                    .filter(|at| self.links[*at].kind == Kind::Node)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|at| self.want_role(io, at));
            }
            self.ask_sentinels(io);
        }
        self.keep_publishing(io, now);
        if now >= self.fresh_at {
            self.fresh_at = now + 1000 * MS;
            if let Some(old) = &self.topology {
                let mut topology = (**old).clone();
                self.dress(&mut topology);
                // Whoever became well or ill meanwhile is told as a change, not in passing.
                for node in &mut topology.nodes {
                    node.health = old.at(&node.address).map_or(node.health, |n| n.health);
                }
                let topology = Arc::new(topology);
                self.topology = Some(topology.clone());
                *self.shared.topology.lock().expect("no thread panicked") = Some(topology.clone());
                (self.tell)(News::Fresh(topology));
            }
        }
        self.tick_at = now + if busy { TICK_BUSY } else { TICK };
    }

    /// Asks around while masters do not answer. True while there is one.
    fn chase(&mut self, io: &mut Io, now: u64) -> bool {
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
    fn poll(&mut self, io: &mut Io, now: u64, busy: bool) {
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
        if !busy && now >= self.epochs_at + EPOCHS {
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

    fn keep_publishing(&mut self, io: &mut Io, now: u64) {
        let Some(publisher) = &mut self.publisher else { return };
        if publisher.due(now) {
            self.heartbeat(io, now);
        }
        // One ear on a node that is up; another one when that is gone.
        let sentinels: Vec<&String> =
            self.links.iter().filter(|l| l.kind == Kind::Sentinel).map(|l| &l.address).collect();
        let listening = self
            .links
            .iter()
            .any(|l| l.kind == Kind::Ear && !sentinels.contains(&&l.address) && (l.ready || l.connection.is_some()));
        if !listening
            && let Some(topology) = self.topology.clone()
            && let Some(link) = topology
                .masters()
                .filter(|n| n.health == Health::Up)
                .find_map(|n| self.links.iter().find(|l| l.kind == Kind::Node && l.ready && l.address == n.address))
        {
            let (address, target) = (link.address.clone(), link.target.clone());
            match self.links.iter_mut().find(|l| l.kind == Kind::Ear && l.address == address) {
                Some(ear) => ear.dial_at = ear.dial_at.min(now + 100 * MS),
                None => self.add(address, Kind::Ear, target),
            }
        }
        let hears = self.links.iter().any(|l| l.kind == Kind::Ear && l.ready);
        if let (false, Some(publisher)) = (hears, &mut self.publisher) {
            publisher.deaf(now);
        }
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

/// Whether a link's connection has owed an answer for so long that it is given up, and whether its node is silent for
/// so long that it is suspected: longer where answers have lately taken longer.
fn overdue(link: &Link, now: u64, suspect_after: u64) -> (bool, bool) {
    let patience = suspect_after.max(link.rtt_peak * 4).min(suspect_after * 8);
    let owes = link.connection.is_none() || !link.ready || !link.asks.is_empty();
    if !owes || link.dial_at == u64::MAX {
        return (false, false);
    }
    let since = if link.ready { link.heard_at.max(link.owes_since) } else { link.heard_at };
    let open_since = if link.ready { since } else { link.dialled_at };
    (link.connection.is_some() && now > open_since + patience.max(SILENT), now > since + patience)
}

/// The address others use: names of plain connections are resolved, since servers name each other by address.
fn plain_address(target: &Target, kind: DeploymentKind) -> String {
    match (target.tls || kind == DeploymentKind::Standalone, peer_of(target)) {
        (false, Some(unslow_reactor::Peer::Tcp(address))) => address.to_string(),
        _ => target.address(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc::{self, Receiver};
    use std::sync::{Condvar, Mutex};

    use unslow_client::Options;
    use unslow_reactor::{Peer, Reactor};

    use super::*;

    pub(super) const A: &str = "127.0.0.1:1";
    pub(super) const B: &str = "127.0.0.1:2";
    const C: &str = "127.0.0.1:3";
    /// Some time after the clock's origin.
    const NOW: u64 = 100_000 * MS;

    /// A watcher without links, and its news.
    pub(super) fn watcher(kind: DeploymentKind) -> (Watcher, Receiver<News>) {
        let (send, news) = mpsc::channel();
        let shared = Shared {
            topology: Mutex::new(None),
            first: Condvar::new(),
            doubt: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waker: Mutex::new(None),
            failure: Mutex::new(None),
        };
        let watcher = Watcher {
            settings: Settings::new(Target::parse(A).unwrap(), Options::default()),
            tls: None,
            kind,
            service: None,
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
            fresh_at: 0,
            tick_at: 0,
            ticked_at: 0,
            publisher: None,
            shared: Arc::new(shared),
            tell: Box::new(move |news| drop(send.send(news))),
        };
        (watcher, news)
    }

    /// A link that is ready.
    pub(super) fn link(address: &str, kind: Kind) -> Link {
        Link { ready: true, ..Link::new(address.into(), kind, Target::parse(address).unwrap()) }
    }

    pub(super) fn master(offset: u64) -> Option<RoleReply> {
        Some(RoleReply::Master { offset, replicas: Vec::new() })
    }

    pub(super) fn replica(master: &str, connected: bool, offset: u64) -> Option<RoleReply> {
        Some(RoleReply::Replica { master: master.into(), connected, offset })
    }

    /// A connection that leads nowhere.
    fn connection(reactor: &mut Reactor) -> Option<Id> {
        Some(reactor.io().connect(&Peer::Tcp(A.parse().unwrap()), None, u64::MAX).unwrap())
    }

    /// A line of CLUSTER NODES: node `a`, `b` or `c`, flags, master, epoch, slots.
    type Row = (&'static str, &'static str, &'static str, u64, &'static str);

    fn view(rows: &[Row]) -> ClusterView {
        let line = |(name, flags, master, epoch, slots): &Row| {
            let (id, port) = (name.repeat(40), name.as_bytes()[0] - b'a' + 1);
            let master = if master.is_empty() { "-".to_string() } else { master.repeat(40) };
            format!("{id} 127.0.0.1:{port}@1 {flags} {master} 0 0 {epoch} connected {slots}\n")
        };
        ClusterView::parse(&rows.iter().map(line).collect::<String>()).unwrap()
    }

    const THREE: [Row; 3] =
        [("a", "master", "", 1, "0-8191"), ("b", "master", "", 2, "8192-16383"), ("c", "slave", "a", 1, "")];

    /// The view of `a` or `b`, without `c`.
    fn without_c(myself: &str) -> ClusterView {
        let mut view = view(&THREE[..2]);
        let own = view.nodes.iter_mut().find(|n| n.id == myself.repeat(40)).unwrap();
        own.flags.push("myself".into());
        view
    }

    #[test]
    fn a_node_is_removed_when_two_views_or_the_only_available_one_lack_it() {
        // Whether the others answer, whether there is a second view, and whether `c` stays.
        for (answers, both, there) in [(true, false, true), (true, true, false), (false, false, false)] {
            let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
            watcher.links = [A, B, C].map(|address| link(address, Kind::Node)).into();
            watcher.links[1].suspected = !answers;
            watcher.links[2].suspected = !answers;
            watcher.merged = view(&THREE);
            watcher.views.insert(A.into(), (NOW, without_c("a")));
            if both {
                watcher.views.insert(B.into(), (NOW, without_c("b")));
            }
            let topology = watcher.cluster(NOW).unwrap();
            assert_eq!(topology.at(C).is_some(), there, "{answers} {both}");
            assert_eq!(topology.owner(0).map(|n| n.address.as_str()), Some(A));
        }
    }

    #[test]
    fn views_older_than_a_second_are_ignored() {
        for (age, counts) in [(FRESH, true), (FRESH + 1, false)] {
            let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
            watcher.links = vec![link(B, Kind::Node)];
            watcher.views.insert(A.into(), (NOW - age, view(&THREE)));
            watcher.views.insert(B.into(), (NOW, without_c("b")));
            assert_eq!(watcher.cluster(NOW).unwrap().at(C).is_some(), counts, "{age} ns");
        }
    }

    #[test]
    fn an_unowned_slot_keeps_its_last_owner_for_a_second() {
        let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
        watcher.links = vec![link(A, Kind::Node), link(B, Kind::Node)];
        watcher.merged = view(&THREE);
        let rows = [("a", "myself,master", "", 1, "0-8190"), THREE[1], THREE[2]];
        watcher.poll_at = u64::MAX;
        for (now, owner) in [(NOW, Some(A)), (NOW + UNOWNED - 1, Some(A)), (NOW + UNOWNED, None)] {
            watcher.views.insert(A.into(), (now, view(&rows)));
            let topology = watcher.cluster(now).unwrap();
            assert_eq!(topology.owner(8191).map(|n| n.address.as_str()), owner, "{} ms later", (now - NOW) / MS);
            assert_eq!(topology.owner(8190).map(|n| n.address.as_str()), Some(A));
        }
        assert!(watcher.poll_at <= NOW + UNOWNED, "the next poll is soon");
    }

    #[test]
    fn a_stale_view_does_not_undo_an_election() {
        let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
        watcher.links = vec![link(A, Kind::Node), link(B, Kind::Node)];
        watcher.merged = view(&[("a", "slave", "b", 1, ""), ("b", "master", "", 9, "0-16383")]);
        let behind = view(&[("a", "myself,master", "", 1, "0-16383"), ("b", "slave", "a", 1, "")]);
        watcher.views.insert(A.into(), (NOW, behind));
        assert_eq!(watcher.cluster(NOW).unwrap().owner(0).map(|n| n.address.as_str()), Some(B));
    }

    #[test]
    fn the_master_changes_only_when_it_is_demoted_or_suspected_and_another_claims_the_role() {
        let sentinel = DeploymentKind::Sentinel;
        let alone = DeploymentKind::MasterReplica;
        // ROLE of the known master and of another node, whether the known one is suspected, and the master that
        // results.
        for (kind, known, other, suspected, expected) in [
            (alone, master(0), master(0), false, A),
            (alone, replica(B, true, 0), master(0), false, B),
            (alone, replica(B, true, 0), replica(A, true, 0), false, A),
            (alone, None, master(0), false, A),
            (alone, master(0), master(0), true, B),
            (alone, master(0), replica(A, true, 0), true, A),
            (sentinel, replica(B, true, 0), master(0), false, B),
            (sentinel, replica(C, true, 0), master(0), false, A),
            (sentinel, master(0), master(0), true, A),
        ] {
            let (mut watcher, _news) = watcher(kind);
            let case = format!("{kind:?} {known:?} {other:?} {suspected}");
            watcher.links = vec![
                Link { role: known, suspected, ..link(A, Kind::Node) },
                Link { role: other, ..link(B, Kind::Node) },
                link(C, Kind::Sentinel),
            ];
            watcher.master = Some(A.into());
            watcher.elect();
            assert_eq!(watcher.master.as_deref(), Some(expected), "{case}");
        }
    }

    #[test]
    fn a_sentinel_with_an_old_epoch_does_not_change_the_master() {
        let (mut watcher, news) = watcher(DeploymentKind::Sentinel);
        let mut reactor = Reactor::new().unwrap();
        watcher.links = [A, B].map(|address| link(address, Kind::Node)).into();
        watcher.links.extend(["127.0.0.1:8", "127.0.0.1:9"].map(|address| link(address, Kind::Sentinel)));
        // The word of each Sentinel, and the master that results. There is no link to 127.0.0.1:7.
        for (first, second, expected) in [
            (Some((1, A)), None, A),
            (Some((1, A)), Some((2, B)), B),
            (Some((1, A)), None, B),
            (Some((2, B)), Some((3, "127.0.0.1:7")), B),
            (Some((4, A)), Some((3, B)), A),
        ] {
            let word = |said: Option<(u64, &str)>| said.map(|(epoch, address)| (epoch, address.to_string()));
            (watcher.links[2].word, watcher.links[3].word) = (word(first), word(second));
            watcher.named_master(reactor.io());
            assert_eq!(watcher.master.as_deref(), Some(expected), "{first:?} {second:?}");
        }
        let told: Vec<Sign> = news
            .try_iter()
            .filter_map(|n| if let News::Delta(d, _) = n { Some(d) } else { None })
            .flat_map(|d| d.changes)
            .map(|known| known.sign)
            .collect();
        assert!(!told.is_empty() && told.iter().all(|sign| *sign == Sign::Sentinel), "{told:?}");
    }

    #[test]
    fn a_replica_is_in_sync_only_when_linked_to_its_master_and_loaded() {
        let (mut watcher, _news) = watcher(DeploymentKind::MasterReplica);
        watcher.master = Some(A.into());
        for (role, loading, in_sync, lag) in [
            (replica(A, true, 90), false, true, Some(10)),
            (replica(A, true, 110), false, true, Some(0)),
            (replica(A, false, 90), false, false, Some(10)),
            (replica(A, true, 90), true, false, Some(10)),
            (None, false, false, None),
        ] {
            let case = format!("{role:?} {loading}");
            watcher.links = vec![
                Link { role: master(100), rtt_min: 7000, ..link(A, Kind::Node) },
                Link { role, loading, zone: Some("z".into()), ..link(B, Kind::Node) },
            ];
            let mut topology = watcher.group().unwrap();
            watcher.dress(&mut topology);
            let (leader, follower) = (topology.at(A).unwrap(), topology.at(B).unwrap());
            assert_eq!((leader.in_sync, leader.lag_bytes, leader.rtt_us), (true, None, Some(7)), "{case}");
            assert_eq!((follower.in_sync, follower.lag_bytes), (in_sync, lag), "{case}");
            assert_eq!((follower.master.as_deref(), follower.zone.as_deref()), (Some(A), Some("z")), "{case}");
            // It follows another master by now.
            watcher.links[1].role = replica(C, true, 90);
            watcher.dress(&mut topology);
            assert!(!topology.at(B).unwrap().in_sync, "{case}");
        }
    }

    #[test]
    fn a_replica_that_answers_is_up_even_if_the_cluster_calls_it_failed() {
        let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
        for (flags, suspected, health) in [
            ("slave", false, Health::Up),
            ("slave", true, Health::Suspected),
            ("slave,fail", false, Health::Up),
            ("slave,fail", true, Health::Failed),
            ("master,fail", false, Health::Failed),
            ("master", true, Health::Suspected),
        ] {
            watcher.links = vec![Link { suspected, ..link(A, Kind::Node) }];
            let mut topology = Topology::of_cluster(&view(&[("a", flags, "", 1, "")]), false);
            watcher.dress(&mut topology);
            assert_eq!(topology.nodes[0].health, health, "{flags} {suspected}");
        }
    }

    #[test]
    fn a_move_is_timed_from_its_sunsubscribe_and_told_once() {
        let (mut watcher, news) = watcher(DeploymentKind::Cluster);
        let mut reactor = Reactor::new().unwrap();
        let before = Topology::of_cluster(&view(&THREE), false);
        let rows = [("a", "master", "", 1, "0-8190"), ("b", "master", "", 3, "8191-16383"), THREE[2]];
        let after = Topology::of_cluster(&view(&rows), false);
        watcher.topology = Some(Arc::new(before.clone()));
        watcher.left_at[8191] = NOW - 3 * MS;
        watcher.sign = Some((NOW - 50 * MS, Sign::Poll));
        // The second time there is no recent sunsubscribe.
        let later = NOW + 2000 * MS;
        for (topology, now, sequence, sign, known_us) in
            [(&after, NOW, 1, Sign::Sunsubscribe, 3_000), (&before, later, 2, Sign::Doubt, 20_000)]
        {
            watcher.publish_view(reactor.io(), topology.clone(), Sign::Role, now);
            let Ok(News::Delta(delta, told)) = news.try_recv() else { panic!("no delta") };
            assert_eq!((delta.sequence, delta.digest, delta.changes.len()), (sequence, topology.digest(), 1));
            assert_eq!(told.digest(), topology.digest());
            let known = &delta.changes[0];
            assert_eq!((known.sign, known.known_us, known.silent_ms), (sign, known_us, None));
            watcher.publish_view(reactor.io(), topology.clone(), Sign::Role, now);
            assert!(news.try_recv().is_err(), "nothing changed");
            watcher.sign = Some((later - 20 * MS, Sign::Doubt));
        }
    }

    #[test]
    fn a_failover_reports_how_long_the_old_master_was_silent() {
        let (mut watcher, news) = watcher(DeploymentKind::Cluster);
        let mut reactor = Reactor::new().unwrap();
        let before = view(&[("a", "master", "", 1, "0-16383"), ("b", "slave", "a", 1, "")]);
        let after = view(&[("a", "slave,fail", "b", 1, ""), ("b", "master", "", 2, "0-16383")]);
        watcher.topology = Some(Arc::new(Topology::of_cluster(&before, false)));
        watcher.links = vec![Link { suspected: true, heard_at: NOW - 400 * MS, ..link(A, Kind::Node) }];
        watcher.sign = Some((NOW - 150 * MS, Sign::Silence));
        watcher.publish_view(reactor.io(), Topology::of_cluster(&after, false), Sign::Poll, NOW);
        let Ok(News::Delta(delta, _)) = news.try_recv() else { panic!("no delta") };
        let promoted = delta.changes.iter().find(|k| matches!(&k.what, Change::Promoted { .. })).unwrap();
        assert_eq!((promoted.sign, promoted.known_us, promoted.silent_ms), (Sign::Silence, 150_000, Some(400)));
        let failed = delta.changes.iter().find(|k| matches!(&k.what, Change::Failed { .. })).unwrap();
        assert_eq!((failed.sign, failed.silent_ms), (Sign::Silence, Some(400)));
        assert!(watcher.sign.is_none(), "the sign is used up");
    }

    #[test]
    fn overdue_replies_raise_suspicion_first_and_drop_the_connection_later() {
        let mut reactor = Reactor::new().unwrap();
        let suspect = 250 * MS;
        let mut owing = Link { heard_at: 900 * MS, owes_since: 1000 * MS, ..link(A, Kind::Node) };
        owing.connection = connection(&mut reactor);
        owing.asks.push_back(Ask::Role);
        let at = |link: &Link, ms: u64, ns: u64| overdue(link, ms * MS + ns, suspect);
        assert_eq!([at(&owing, 1250, 0), at(&owing, 1250, 1)], [(false, false), (false, true)]);
        assert_eq!([at(&owing, 3000, 0), at(&owing, 3000, 1)], [(false, true), (true, true)]);
        // Slow round trips extend the patience, up to eight times.
        for (peak, patience) in [(62, 250), (100, 400), (499, 1996), (60_000, 2000)] {
            owing.rtt_peak = peak * MS;
            let ends = 1000 + patience;
            assert_eq!([at(&owing, ends, 0).1, at(&owing, ends, 1).1], [false, true], "{peak} ms");
        }
        // It spoke after it was asked.
        owing.rtt_peak = 0;
        owing.heard_at = 5000 * MS;
        assert_eq!([at(&owing, 5250, 0), at(&owing, 5250, 1)], [(false, false), (false, true)]);
        owing.asks.clear();
        assert_eq!(at(&owing, 60_000, 0), (false, false), "a link without questions owes nothing");

        // Before the greeting a connection's time counts from its dial, its node's from its last word.
        let mut dialled = Link { ready: false, heard_at: 1000 * MS, dialled_at: 5000 * MS, ..link(A, Kind::Node) };
        dialled.connection = connection(&mut reactor);
        assert_eq!(
            [at(&dialled, 1250, 1), at(&dialled, 7000, 0), at(&dialled, 7000, 1)],
            [(false, true), (false, true), (true, true)]
        );
        dialled.connection = None;
        assert_eq!(at(&dialled, 60_000, 0), (false, true));
        dialled.dial_at = u64::MAX;
        assert_eq!(at(&dialled, 60_000, 0), (false, false), "a forgotten node is not suspected");
    }

    #[test]
    fn a_sunsubscribe_marks_its_slot_and_asks_for_a_new_view() {
        let (mut watcher, _news) = watcher(DeploymentKind::Cluster);
        let mut reactor = Reactor::new().unwrap();
        let id = connection(&mut reactor);
        watcher.links = vec![Link { connection: id, pushes: true, ..link(A, Kind::Node) }];
        watcher.links[0].held.set(5, true);
        let name = channel(5);
        let push = format!(">3\r\n$12\r\nsunsubscribe\r\n${}\r\n{name}\r\n:0\r\n", name.len());
        watcher.reply(reactor.io(), 0, Frame::new(push.as_bytes()));
        assert!(watcher.left_at[5] > 0 && watcher.left_at[4] == 0 && !watcher.links[0].held.has(5));
        assert_eq!(watcher.sign, Some((watcher.left_at[5], Sign::Sunsubscribe)));
        let mut expected = Vec::new();
        write_command(&mut expected, &["CLUSTER", "NODES"]);
        assert_eq!(*reactor.io().output(id.unwrap()), expected);
    }

    #[test]
    fn denied_subscriptions_are_noted_once_and_replaced_by_polling() {
        let (mut watcher, news) = watcher(DeploymentKind::Cluster);
        let mut reactor = Reactor::new().unwrap();
        watcher.links = vec![Link { pushes: true, subscribing: 3, ..link(A, Kind::Node) }];
        watcher.links[0].asks.extend([Ask::Subscribe(5), Ask::Subscribe(6), Ask::Subscribe(7)]);
        // The first slot merely moved; the others are denied.
        for (reply, pushes) in
            [("-MOVED 5 127.0.0.1:2\r\n", true), ("-NOPERM no\r\n", false), ("-NOPERM no\r\n", false)]
        {
            watcher.reply(reactor.io(), 0, Frame::new(reply.as_bytes()));
            assert_eq!(watcher.links[0].pushes, pushes, "{reply}");
        }
        assert_eq!(watcher.links[0].subscribing, 0);
        let notes: Vec<News> = news.try_iter().collect();
        assert!(matches!(&notes[..], [News::Note(text)] if text.contains("grant +ssubscribe")), "{notes:?}");
    }
}
