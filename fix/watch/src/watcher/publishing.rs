//! What the watcher itself publishes: changes, heartbeats, and notes for the operator.

use super::*;

impl Watcher {
    /// In a cluster through a replica where there is one: a master that was just given a slot has broadcast that, and
    /// its next words wait up to 40 ms for the acknowledgement (cluster links are opened without TCP_NODELAY:
    /// valkey-io/valkey#1758). Heartbeats go through another one than news, which would wait for them.
    pub(super) fn publish(&mut self, io: &mut Io, name: &str, text: &str) {
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

    pub(super) fn heartbeat(&mut self, io: &mut Io, now: u64) {
        let (Some(topology), Some(publisher)) = (&self.topology, &mut self.publisher) else { return };
        let text = publisher.beat(topology.digest(), self.sequence, now);
        self.publish(io, messages::DIGEST, &text);
    }

    pub(super) fn note(&mut self, at: usize, text: &str) {
        if !std::mem::replace(&mut self.links[at].noted, true) {
            let text = format!("{}: {text}", self.links[at].address);
            (self.tell)(News::Note(text));
        }
    }

    pub(super) fn keep_publishing(&mut self, io: &mut Io, now: u64) {
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
