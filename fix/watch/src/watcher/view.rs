//! One topology out of what all nodes say, and what changed in it.

use super::*;

impl Watcher {
    pub(super) fn role(&mut self, io: &mut Io, at: usize, role: Option<RoleReply>) {
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
            // Its view of before that is no view of a master.
            let asked_since = |l: &Link| self.views.get(&l.address).is_some_and(|(at, _)| *at > l.leads_since);
            if promoted && !asked_since(&self.links[at]) {
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

    pub(super) fn viewed(&mut self, io: &mut Io, at: usize, mut view: ClusterView) {
        let address = self.links[at].address.clone();
        view.place_myself(&address);
        self.views.insert(address, (now_ns(), view));
        self.rebuild(io, Sign::Poll);
    }

    /// Rebuilds the topology, or notes that a rebuild is due: with many nodes it takes milliseconds, and every node has
    /// news while all of them connect or come back.
    pub(super) fn rebuild(&mut self, io: &mut Io, sign: Sign) {
        let begun = now_ns();
        if self.kind == DeploymentKind::Cluster && begun < self.rebuild_at {
            self.rebuild_due.get_or_insert(sign);
            return;
        }
        self.rebuild_due = None;
        self.rebuild_at_once(io, sign, begun);
        // A rebuild that took longer was waiting for a processor, which is no reason to delay the next one.
        let took = now_ns().saturating_sub(begun).min(LONGEST_REBUILD);
        self.rebuild_at = if took > LONG_REBUILD { begun + took * REBUILD_SHARE } else { 0 };
    }

    fn rebuild_at_once(&mut self, io: &mut Io, sign: Sign, now: u64) {
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

    pub(super) fn cluster(&mut self, now: u64) -> Option<Topology> {
        // A view is as large as its cluster: none is kept that is not looked at again.
        let newest = self.views.values().map(|(at, _)| *at).max()?;
        self.views.retain(|_, (at, _)| *at + FRESH >= newest);
        let mut fresh: Vec<&(u64, ClusterView)> = self.views.values().collect();
        fresh.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let mut views: Vec<&ClusterView> = fresh.into_iter().map(|(_, view)| view).collect();
        // What is known stands against a single node's word: it loses to higher epochs, and to a node's word on itself.
        // A node that none of several fresh views has is no more; one view is enough where there is nobody else to ask.
        let ready = self.links.iter().filter(|l| l.kind == Kind::Node && l.ready && !l.suspected).count();
        let half = self.merged.nodes.len().div_ceil(2);
        let tellers: BTreeSet<&str> =
            views.iter().filter(|v| v.nodes.len() >= half).filter_map(|v| v.myself()).map(|n| n.id.as_str()).collect();
        let enough = tellers.len() >= 2.min(ready.max(1));
        let mut epochs: HashMap<&str, u64> = HashMap::new();
        for line in views.iter().flat_map(|v| &v.nodes) {
            let highest = epochs.entry(&line.id).or_default();
            *highest = line.config_epoch.max(*highest);
        }
        let stands = |n: &&ClusterNode| match epochs.get(n.id.as_str()) {
            // What it is and whom it follows is for fresh views to say, unless they have not heard of slots it has won.
            Some(highest) => !n.slots.is_empty() && *highest < n.config_epoch,
            None => !enough,
        };
        let known = ClusterView { nodes: self.merged.nodes.iter().filter(stands).cloned().collect() };
        views.push(&known);
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
        self.heard_of_all(&topology);
        Some(topology)
    }

    /// Health, zones, round trips and lags, as the links know them.
    pub(super) fn dress(&self, topology: &mut Topology) {
        let links: HashMap<&str, &Link> =
            self.links.iter().filter(|l| l.kind == Kind::Node).map(|l| (l.address.as_str(), l)).collect();
        let offset_of = |address: &String| match links.get(address.as_str())?.role {
            Some(RoleReply::Master { offset, .. }) => Some(offset),
            _ => None,
        };
        let offsets: HashMap<String, u64> =
            topology.nodes.iter().filter_map(|n| Some((n.id.clone(), offset_of(&n.address)?))).collect();
        for node in &mut topology.nodes {
            let zone = self.zones.get(&node.id).cloned();
            let Some(link) = links.get(node.address.as_str()) else {
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
                let theirs = node.master.as_ref().and_then(|id| offsets.get(id));
                if let Some(RoleReply::Replica { connected, offset, master: follows }) = &link.role {
                    // A cluster's replica names its master by address too, but that may be an alias.
                    let right = self.kind == DeploymentKind::Cluster || node.master.as_ref() == Some(follows);
                    node.in_sync = *connected && !link.loading && right;
                    node.lag_bytes = theirs.map(|theirs| theirs.saturating_sub(*offset));
                } else {
                    node.in_sync = false;
                }
            }
        }
    }

    pub(super) fn publish_view(&mut self, io: &mut Io, mut topology: Topology, sign: Sign, now: u64) {
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
            self.links[at].subscribe_due = true;
            self.subscribe(io, at);
        }
        // Links to nodes that are no more.
        if self.kind == DeploymentKind::Cluster {
            let there: BTreeSet<&str> = topology.nodes.iter().map(|n| n.address.as_str()).collect();
            let gone = |l: &Link| l.kind == Kind::Node && !there.contains(l.address.as_str());
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
        let link = |address: &str| self.links.iter().find(|l| l.kind == Kind::Node && l.address == address);
        let silent = |address: &str| Some(now.saturating_sub(link(address)?.heard_at) / MS).filter(|ms| *ms > 100);
        // A link knows why its node is suspected; the rebuild may have had another reason.
        let doubt = |address: &str| match link(address).filter(|l| l.suspected) {
            Some(link) if link.connection.is_some() => Sign::Silence,
            Some(_) => Sign::ConnectionLost,
            None => sign,
        };
        let known = |what: Change| {
            let (seen, silent_ms) = match &what {
                Change::Moved { slots, .. } => {
                    let left = slots.ranges().iter().flat_map(|&(a, b)| a..=b).map(|s| self.left_at[usize::from(s)]);
                    let first = left.filter(|at| *at + 2000 * MS > now).min();
                    (first.map(|at| (at, Sign::Sunsubscribe)).or(self.sign), None)
                }
                Change::Promoted { instead_of, .. } => (self.sign, instead_of.as_deref().and_then(silent)),
                Change::Suspected { node } => (Some((now, doubt(node))), silent(node)),
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
}
