//! Connections to nodes and Sentinels: what they are asked, and what their answers and messages mean.

use unslow_nodes::{Author, Greeting, Kind as Refused, Plan, Progress, Refusal, Tolerance};

use super::*;

impl Watcher {
    pub(super) fn add(&mut self, address: String, kind: Kind, target: Target) {
        if self.links.iter().all(|l| l.address != address || l.kind != kind) {
            let own = &self.settings.target;
            let mut link = Link::new(address, kind, target);
            link.trusted = own.password.is_none() || link.target.password == own.password;
            (link.heard_at, link.named_at) = (now_ns(), now_ns());
            self.links.push(link);
        }
    }

    pub(super) fn ask<A: AsRef<[u8]>>(&mut self, io: &mut Io, at: usize, what: Ask, command: &[A]) {
        let link = &mut self.links[at];
        if let Some(connection) = link.connection {
            write_command(io.output(connection), command);
            if link.asks.is_empty() {
                link.owes_since = now_ns();
            }
            link.asks.push_back(what);
        }
    }

    pub(super) fn dial(&mut self, io: &mut Io, at: usize, now: u64) {
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

    pub(super) fn greet(&mut self, io: &mut Io, at: usize) {
        let link = &mut self.links[at];
        let Some(connection) = link.connection else { return };
        let (kind, own) = (link.kind, link.kind != Kind::Ear);
        // A subscription is heard in RESP2 as well. Nothing here is about the keys of a database.
        let plan = Plan {
            resp3: own,
            tolerance: Tolerance::NoResp3,
            name: own.then_some("unslow-watch"),
            db: 0,
            ..link.target.plan()
        };
        link.greeting = Greeting::begin(&plan, io.output(connection));
        if kind == Kind::Ear {
            if self.links.iter().any(|l| l.kind == Kind::Sentinel && l.address == self.links[at].address) {
                for name in SENTINEL_CHANNELS {
                    self.ask(io, at, Ask::Ignore, &["SUBSCRIBE", name]);
                }
            } else {
                self.ask(io, at, Ask::Ignore, &["SUBSCRIBE", messages::DIGEST]);
            }
        } else {
            self.ask(io, at, Ask::Info, &["INFO", "server"]);
        }
    }

    /// CLUSTER NODES, now or when the node has spent little enough of its time on them.
    pub(super) fn want_nodes(&mut self, io: &mut Io, at: usize) {
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

    pub(super) fn want_role(&mut self, io: &mut Io, at: usize) {
        if self.links[at].ready && !self.links[at].asked(|a| *a == Ask::Role) {
            self.links[at].role_at = now_ns();
            self.ask(io, at, Ask::Role, &["ROLE"]);
        }
    }

    /// Subscribes in the slots of the link's shard, some at a time.
    pub(super) fn subscribe(&mut self, io: &mut Io, at: usize) {
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
        let room = SUBSCRIBING_MAX - link.subscribing;
        let missing: Vec<u16> = link.slots_missing(owner.slots.ranges(), room).into_iter().collect();
        self.links[at].subscribe_due = missing.len() == room;
        for slot in missing {
            self.links[at].held.set(slot, true);
            self.links[at].subscribing += 1;
            self.ask(io, at, Ask::Subscribe(slot), &["SSUBSCRIBE", channel(slot)]);
        }
    }

    pub(super) fn reply(&mut self, io: &mut Io, at: usize, frame: Frame<'_>) {
        let now = now_ns();
        let value = Value::from(frame);
        self.links[at].heard_at = now;
        self.links[at].owes_since = now;
        if self.links[at].suspected {
            self.links[at].suspected = false;
            self.rebuild(io, Sign::Silence);
        }
        if self.links[at].greeting.due().is_some() && frame.kind() != FrameKind::Push {
            return self.greeting_reply(at, frame);
        }
        if self.links[at].kind == Kind::Ear {
            return self.overheard(io, at, &value);
        }
        if let Some((word, name)) = push_words(&value).filter(|_| frame.kind() == FrameKind::Push) {
            return self.pushed(io, at, &word, &name, now);
        }
        let Some(asked) = self.links[at].asks.pop_front() else { return };
        // Everything asked is built in, so what an error says is the server's word.
        let refusal = Refusal::parse(frame.bytes(), Author::Server).map(|refusal| refusal.kind);
        if refusal == Some(Refused::Loading) {
            self.links[at].loading = true;
        } else if !matches!(asked, Ask::Ignore | Ask::Ping(_)) {
            self.links[at].loading = false;
        }
        match asked {
            Ask::Ignore => {}
            Ask::Info => self.greeted(io, at, &value),
            Ask::Ping(sent) => self.links[at].answered(now.saturating_sub(sent)),
            Ask::Nodes(sent) => {
                self.rest_from_views(at, sent, now);
                if refusal == Some(Refused::Denied) {
                    self.links[at].nodes_denied = true;
                    self.note(at, "CLUSTER NODES is denied, so epochs are unknown; grant +cluster|nodes");
                    self.want_nodes(io, at);
                } else if let Some(view) = value.text().and_then(|t| ClusterView::parse(&t).ok()) {
                    self.viewed(io, at, view);
                }
            }
            Ask::Slots(sent) => {
                self.rest_from_views(at, sent, now);
                if let Some(view) = ClusterView::from_slots(&value) {
                    self.viewed(io, at, view);
                }
            }
            Ask::Shards => self.zones.extend(zones_of_shards(&value)),
            Ask::Epochs => self.epochs_told(io, at, &value.text().unwrap_or_default(), now),
            Ask::Role => {
                // One at a time is in flight.
                let sent = self.links[at].role_at;
                self.links[at].role_asked = sent;
                if sent == self.links[at].pinged_at {
                    self.links[at].answered(now.saturating_sub(sent)); // it took the place of a PING
                }
                self.role(io, at, RoleReply::parse(&value));
            }
            Ask::Subscribe(slot) => {
                self.links[at].subscribing -= 1;
                self.links[at].held.set(slot, false);
                self.links[at].subscribe_due = true;
                match refusal {
                    // The slot has left since, or never was here.
                    Some(Refused::Moved(_) | Refused::ClusterDown) => {
                        self.sign.get_or_insert((now, Sign::Poll));
                        self.want_nodes(io, at);
                    }
                    Some(_) => self.subscriptions_denied(at, &words_of(frame)),
                    None => {}
                }
            }
            Ask::Master => {
                if let [host, port] = value.items()
                    && let (Some(host), Some(port)) = (host.text(), port.text())
                {
                    let address = self.plain(join_host_port(&host, &port));
                    self.links[at].naming = Some(address);
                }
            }
            Ask::MasterEpoch(sent) => self.master_described(at, &value, sent),
            Ask::Replicas(sent) => self.replicas_listed(io, at, &value, sent),
            Ask::Publish => {
                if refusal.is_some() {
                    self.note(at, &format!("nothing can be published there: {}", words_of(frame)));
                }
            }
        }
    }

    /// The connection is kept after a refusal: that its node answers at all is worth knowing.
    fn greeting_reply(&mut self, at: usize, reply: Frame<'_>) {
        let link = &mut self.links[at];
        let Some(step) = link.greeting.due() else { return };
        let progress = link.greeting.reply(reply.bytes());
        link.resp3 = link.greeting.is_resp3();
        let refusal = Refusal::parse(reply.bytes(), Author::Server).map(|refusal| refusal.kind);
        link.loading |= refusal == Some(Refused::Loading);
        // A subscription's node has another link, which tells the same.
        if progress == (Progress::Refused { passing: false }) && link.kind != Kind::Ear {
            self.note(at, &format!("it refuses us: {}", step.error_text(reply.bytes())));
        }
    }

    /// A slot's subscription was confirmed, or taken back because the slot has left.
    fn pushed(&mut self, io: &mut Io, at: usize, word: &str, name: &str, now: u64) {
        if word == "ssubscribe" && matches!(self.links[at].asks.front(), Some(Ask::Subscribe(_))) {
            self.links[at].asks.pop_front();
            self.links[at].subscribing -= 1;
            self.subscribe(io, at);
        } else if word == "sunsubscribe" {
            let slot = slot_of(name.as_bytes());
            self.links[at].held.set(slot, false);
            self.links[at].subscribe_due = true;
            let left = &mut self.left_at[usize::from(slot)];
            if *left + 1000 * MS < now {
                *left = now;
            }
            self.sign.get_or_insert((now, Sign::Sunsubscribe));
            self.want_nodes(io, at);
        }
    }

    /// A node spends a bounded share of its time on describing the cluster.
    fn rest_from_views(&mut self, at: usize, sent: u64, now: u64) {
        self.links[at].nodes_due = now + (now.saturating_sub(sent) * SHARE / 2).min(1000 * MS);
    }

    /// Of CLUSTER INFO everything that changes with the topology and with nothing else; message counts do not. What a
    /// node says for the first time is news if it is not what the last one said of the cluster.
    pub(super) fn epochs_told(&mut self, io: &mut Io, at: usize, text: &str, now: u64) {
        let told = || text.lines().filter(|l| l.starts_with("cluster_") && !l.starts_with("cluster_stats"));
        let of_all: String = told().filter(|l| !l.starts_with("cluster_my_epoch")).collect();
        let own: String = told().collect();
        let link = &mut self.links[at];
        let changed = if link.epochs.is_empty() { of_all != self.epochs } else { own != link.epochs };
        (link.epochs, self.epochs) = (own, of_all);
        if changed {
            self.sign.get_or_insert((now, Sign::Poll));
            self.want_nodes(io, at);
        }
    }

    fn subscriptions_denied(&mut self, at: usize, why: &str) {
        self.links[at].pushes = false;
        self.note(
            at,
            &format!("subscriptions are denied, so it is asked instead; grant +ssubscribe &unslow:* ({why})"),
        );
    }

    /// Version and zone are known: the link can be used.
    pub(super) fn greeted(&mut self, io: &mut Io, at: usize, info: &Value) {
        let info = Info::parse(&info.text().unwrap_or_default());
        let cluster = self.kind == DeploymentKind::Cluster;
        let link = &mut self.links[at];
        link.level = info.redis_level();
        link.zone = info.get("availability_zone").filter(|z| !z.is_empty()).map(str::to_string);
        link.ready = true;
        link.backoff.succeeded();
        link.pushes = cluster && link.kind == Kind::Node && link.resp3 && link.level >= (7, 0);
        match link.kind {
            Kind::Sentinel => {
                if let Some(service) = self.service.clone() {
                    self.ask_sentinel(io, at, &service);
                }
            }
            _ => {
                if cluster {
                    if self.views_at_hand() < ENOUGH_VIEWS {
                        if self.links[at].level >= (7, 0) && self.zones.is_empty() {
                            self.ask(io, at, Ask::Shards, &["CLUSTER", "SHARDS"]);
                        }
                        self.links[at].nodes_due = 0;
                        self.want_nodes(io, at);
                    } else {
                        // In its turn: some things a node alone says of itself.
                        self.links[at].nodes_wanted = true;
                        self.links[at].nodes_due = now_ns() + VIEW_TURN * (1 + at as u64);
                    }
                }
                self.want_role(io, at);
                self.subscribe(io, at);
            }
        }
        if self.topology.is_some() {
            self.rebuild(io, Sign::Poll);
        }
    }

    pub(super) fn overheard(&mut self, io: &mut Io, at: usize, value: &Value) {
        let [word, name, text] = value.items() else { return };
        let (Some(word), Some(name), Some(text)) = (word.text(), name.text(), text.text()) else { return };
        if word != "message" {
            self.links[at].ready = true;
            self.links[at].backoff.succeeded();
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

    /// Nodes with a recent or a pending view.
    pub(super) fn views_at_hand(&self) -> usize {
        let now = now_ns();
        let is_asked = |l: &Link| l.asked(|a| matches!(a, Ask::Nodes(at) | Ask::Slots(at) if *at + FRESH >= now));
        let has_told = |l: &Link| self.views.get(&l.address).is_some_and(|(at, _)| *at + FRESH >= now);
        self.links.iter().filter(|l| is_asked(l) || has_told(l)).count()
    }

    /// The data nodes of a topology.
    pub(super) fn heard_of_all(&mut self, topology: &Topology) {
        let nodes = self.links.iter().enumerate().filter(|(_, l)| l.kind == Kind::Node);
        let known: HashMap<&str, usize> = nodes.map(|(at, l)| (l.address.as_str(), at)).collect();
        let places: Vec<Option<usize>> =
            topology.nodes.iter().map(|n| known.get(n.address.as_str()).copied()).collect();
        for (node, place) in topology.nodes.iter().zip(places) {
            match place {
                Some(at) => named(&mut self.links[at]),
                None => self.heard_of(node.address.clone()),
            }
        }
    }

    /// A data node somebody named.
    pub(super) fn heard_of(&mut self, address: String) {
        match self.links.iter_mut().find(|l| l.kind == Kind::Node && l.address == address) {
            Some(link) => named(link),
            None => {
                if let Some(target) = address_target(&self.settings.target, &address) {
                    self.add(address, Kind::Node, target);
                }
            }
        }
    }

    /// Servers may name each other by host names; nodes go by their addresses here, so that one is not taken for two.
    pub(super) fn plain(&mut self, address: String) -> String {
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
}

/// Notes that another server has just named this node.
fn named(link: &mut Link) {
    let now = now_ns();
    link.named_at = now;
    // It was gone, and is there again.
    if link.dial_at == u64::MAX {
        (link.dial_at, link.heard_at, link.suspected) = (now, now, false);
    }
}

/// The address others use: names of plain connections are resolved, since servers name each other by address.
pub(super) fn plain_address(target: &Target, kind: DeploymentKind) -> String {
    match (target.tls || kind == DeploymentKind::Standalone, peer_of(target)) {
        (false, Some(unslow_reactor::Peer::Tcp(address))) => address.to_string(),
        _ => target.address(),
    }
}

/// What an error says, for a person.
fn words_of(reply: Frame<'_>) -> String {
    String::from_utf8_lossy(reply.text()).into_owned()
}
