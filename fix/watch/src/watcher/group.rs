//! Groups without slots: what Sentinels are asked and announce, and who is master by it. The decision itself is
//! `roles.rs`.

use std::collections::BTreeSet;

use unslow_reactor::{Io, now_ns};
use unslow_resp::Value;
use unslow_topology::{DeploymentKind, Node, Role, RoleReply, SlotSet, Topology};

use super::{TICK_BUSY, Watcher};
use crate::link::{Ask, Kind, Link};
use crate::roles::{Basis, Claim, Decision, Facts, Promotion, Reason, Sentinel, Server, Word, decide};
use crate::{News, Sign};

impl Watcher {
    pub(super) fn ask_sentinels(&mut self, io: &mut Io) {
        let Some(service) = self.service.clone() else { return };
        let asked = |a: &Ask| matches!(a, Ask::Master | Ask::MasterEpoch(_) | Ask::Replicas(_));
        for at in 0..self.links.len() {
            let link = &self.links[at];
            if link.kind == Kind::Sentinel && link.ready && !link.asked(asked) {
                self.ask_sentinel(io, at, &service);
            }
        }
    }

    /// Sent together, so that the three answers belong together.
    pub(super) fn ask_sentinel(&mut self, io: &mut Io, at: usize, service: &str) {
        let now = now_ns();
        self.ask(io, at, Ask::Master, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]);
        self.ask(io, at, Ask::MasterEpoch(now), &["SENTINEL", "MASTER", service]);
        self.ask(io, at, Ask::Replicas(now), &["SENTINEL", "SLAVES", service]);
    }

    /// SENTINEL MASTER was answered. What it means is decided with the replicas that follow.
    pub(super) fn master_described(&mut self, at: usize, value: &Value, asked: u64) {
        let link = &mut self.links[at];
        if let Some(flags) = value.get("flags").and_then(Value::text) {
            link.failing_over = has_flag(&flags, "failover_in_progress");
            if !link.failing_over && link.promotes.as_ref().is_some_and(|p| p.seen < asked) {
                link.promotes = None;
            }
        }
        let epoch = value.get("config-epoch").and_then(Value::integer).and_then(|n| u64::try_from(n).ok());
        let (Some(epoch), Some(address)) = (epoch, link.naming.take()) else { return };
        let word = Some((epoch, address.clone()));
        if link.word != word {
            (link.word, link.word_since) = (word, now_ns());
        }
        if link.trusted {
            self.heard_of(address);
        }
    }

    /// SENTINEL SLAVES was answered, the last of three.
    pub(super) fn replicas_listed(&mut self, io: &mut Io, at: usize, value: &Value, asked: u64) {
        let mut chosen = None;
        let trusted = self.links[at].trusted;
        for replica in value.items() {
            let (Some(host), Some(port)) =
                (replica.get("ip").and_then(Value::text), replica.get("port").and_then(Value::text))
            else {
                continue;
            };
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            let mut address = format!("{host}:{port}");
            if trusted {
                address = self.plain(address);
                self.heard_of(address.clone());
            }
            if replica.get("flags").and_then(Value::text).is_some_and(|flags| has_flag(&flags, "promoted")) {
                chosen = Some(address);
            }
        }
        if let (true, Some(replica)) = (self.links[at].failing_over, chosen) {
            self.promotes(at, replica);
        }
        self.links[at].told_at = asked;
        self.named_master(io);
    }

    /// A Sentinel published something about an instance, heard on the link `ear`.
    pub(super) fn announced(&mut self, ear: usize, event: &str, node: String) {
        let address = &self.links[ear].address;
        let Some(at) = self.links.iter().position(|l| l.kind == Kind::Sentinel && l.address == *address) else {
            return;
        };
        match event {
            "+selected-slave"
            | "+failover-state-send-slaveof-noone"
            | "+failover-state-wait-promotion"
            | "+promoted-slave" => {
                let replica = if self.links[at].trusted { self.plain(node) } else { node };
                self.promotes(at, replica);
            }
            _ if event.starts_with("-failover-abort-") => self.links[at].promotes = None,
            _ => {}
        }
    }

    fn promotes(&mut self, at: usize, replica: String) {
        let now = now_ns();
        let link = &mut self.links[at];
        let trusted = link.trusted;
        match &mut link.promotes {
            Some(promotion) if promotion.replica == replica => promotion.seen = now,
            _ => link.promotes = Some(Promotion { replica, since: now, seen: now, trusted }),
        }
    }

    /// A Sentinel has said who is master; those it may be are asked themselves.
    pub(super) fn named_master(&mut self, io: &mut Io) {
        self.resettle(io);
        let now = now_ns();
        let words = self.links.iter().filter(|l| l.kind == Kind::Sentinel).filter_map(|l| l.word.as_ref());
        let named: BTreeSet<&str> = words.map(|(_, address)| address.as_str()).collect();
        let due = |l: &Link| l.kind == Kind::Node && now >= l.role_at + TICK_BUSY && named.contains(l.address.as_str());
        let due: Vec<usize> = (0..self.links.len()).filter(|at| due(&self.links[*at])).collect();
        for at in due {
            self.want_role(io, at);
        }
    }

    /// Decides anew who is written to, and says so if that is another one.
    pub(super) fn resettle(&mut self, io: &mut Io) {
        let before = (self.master.clone(), self.hold.is_some());
        self.elect();
        if before != (self.master.clone(), self.hold.is_some()) {
            self.rebuild(io, Sign::Sentinel);
        }
    }

    /// Who is master, and whether it may be written to.
    pub(super) fn elect(&mut self) {
        if self.kind == DeploymentKind::Cluster {
            return;
        }
        let now = now_ns();
        let (to, by, hold) = match decide(&self.facts(now)) {
            Decision::Nobody => (None, Basis::Known, None),
            Decision::Hold(reason) => (None, Basis::Known, Some(reason)),
            Decision::Write { to, by } => (Some(to.to_string()), by, None),
        };
        let begins = self.hold != hold && hold == Some(Reason::Promotion);
        self.hold = hold;
        if let (true, Some(master)) = (begins, &self.master) {
            let text = format!("{master}: a Sentinel is replacing it; commands wait for its successor");
            (self.tell)(News::Note(text));
        }
        if let Basis::Word(epoch) = by {
            self.master_epoch = self.master_epoch.max(epoch);
        }
        if to.is_some() && self.master != to {
            if matches!(by, Basis::Word(_) | Basis::Promotion) {
                self.sign.get_or_insert((now, Sign::Sentinel));
            }
            self.master = to;
        }
    }

    fn facts(&self, now: u64) -> Facts<'_> {
        let servers = self.links.iter().filter(|l| l.kind == Kind::Node).map(|l| Server {
            address: l.address.as_str(),
            claim: match &l.role {
                Some(RoleReply::Master { .. }) => Some(Claim::Master { since: l.leads_since }),
                Some(RoleReply::Replica { master, .. }) => Some(Claim::Follows(master.as_str())),
                None => None,
            },
            asked: l.role_asked,
            well: !l.suspected,
        });
        let watched = self.kind == DeploymentKind::Sentinel;
        let sentinels = self.links.iter().filter(|l| watched && l.kind == Kind::Sentinel).map(|l| Sentinel {
            ready: l.ready,
            well: !l.suspected,
            asked: l.told_at,
            word: l.word.as_ref().map(|(epoch, master)| Word {
                epoch: *epoch,
                master: master.as_str(),
                since: l.word_since,
            }),
            promotes: l.promotes.as_ref(),
        });
        Facts {
            now,
            lead: self.master.as_deref(),
            epoch: self.master_epoch,
            servers: servers.collect(),
            sentinels: sentinels.collect(),
        }
    }

    pub(super) fn group(&mut self) -> Option<Topology> {
        self.elect();
        let master = self.master.clone()?;
        let present = |l: &&Link| l.kind == Kind::Node && l.dial_at != u64::MAX;
        let nodes = self.links.iter().filter(present).map(|link| {
            let leads = link.address == master;
            if leads {
                return Node::master(&link.address, SlotSet::all());
            }
            let follows = match &link.role {
                Some(RoleReply::Replica { master, .. }) => master,
                _ => &master,
            };
            let known = link.role.is_some() || self.kind != DeploymentKind::Standalone;
            let role = if known { Role::Replica } else { Role::Unknown };
            Node { role, ..Node::replica(&link.address, follows) }
        });
        Some(Topology::new(self.kind, nodes.collect()))
    }
}

/// Whether a Sentinel's comma-separated flags have this one.
fn has_flag(flags: &str, flag: &str) -> bool {
    flags.split(',').any(|f| f == flag)
}

#[cfg(test)]
mod tests {
    use unslow_reactor::Reactor;
    use unslow_topology::{Change, Health};

    use super::super::tests::{A, B, link, master, replica, watcher};
    use super::*;

    const SENTINEL: &str = "127.0.0.1:9";

    fn message(channel: &str, text: &str) -> Value {
        Value::Array(["message", channel, text].map(|t| Value::Text(t.as_bytes().to_vec())).into())
    }

    /// What a Sentinel publishes about the replica at 127.0.0.1:2.
    fn about_b(channel: &str) -> Value {
        message(channel, "slave 127.0.0.1:2 127.0.0.1 2 @ mymaster 127.0.0.1 1")
    }

    #[test]
    fn an_announced_promotion_holds_the_master_until_its_successor_says_it_is_one() {
        let (mut watcher, news) = watcher(DeploymentKind::Sentinel);
        let mut reactor = Reactor::new().unwrap();
        watcher.service = Some("mymaster".into());
        watcher.links = vec![
            Link { role: master(0), ..link(A, Kind::Node) },
            Link { role: replica(A, true, 0), ..link(B, Kind::Node) },
            Link { word: Some((1, A.into())), ..link(SENTINEL, Kind::Sentinel) },
            link(SENTINEL, Kind::Ear),
        ];
        watcher.master = Some(A.into());
        watcher.rebuild(reactor.io(), Sign::Poll);
        // Another group's failover is none of ours.
        let other = message("+selected-slave", "slave 127.0.0.1:2 127.0.0.1 2 @ other 127.0.0.1 1");
        watcher.overheard(reactor.io(), 3, &other);
        assert!(watcher.hold.is_none());
        let health = |watcher: &Watcher, address: &str| watcher.topology.as_ref().unwrap().at(address).unwrap().health;
        for event in ["+selected-slave", "+failover-state-send-slaveof-noone", "+failover-state-wait-promotion"] {
            watcher.overheard(reactor.io(), 3, &about_b(event));
            assert_eq!(watcher.hold, Some(Reason::Promotion), "{event}");
            assert_eq!((health(&watcher, A), watcher.master.as_deref()), (Health::Suspected, Some(A)), "{event}");
        }
        // Asked after the announcement.
        (watcher.links[1].role_at, watcher.links[1].role_asked) = (now_ns(), now_ns());
        watcher.role(reactor.io(), 1, master(0));
        assert_eq!((watcher.hold, watcher.master.as_deref()), (None, Some(B)));
        assert_eq!((health(&watcher, A), health(&watcher, B)), (Health::Up, Health::Up));
        let changes: Vec<Change> = news
            .try_iter()
            .filter_map(|n| if let News::Delta(d, _) = n { Some(d.changes) } else { None })
            .flatten()
            .map(|known| known.what)
            .collect();
        let place = |is: &dyn Fn(&Change) -> bool| changes.iter().position(is);
        let held = place(&|c| *c == Change::Suspected { node: A.into() });
        let promoted = place(&|c| matches!(c, Change::Promoted { node, .. } if node == B));
        assert!(held.is_some() && promoted > held, "{changes:?}");
    }

    #[test]
    fn an_aborted_failover_releases_the_master() {
        let (mut watcher, _news) = watcher(DeploymentKind::Sentinel);
        let mut reactor = Reactor::new().unwrap();
        watcher.service = Some("mymaster".into());
        watcher.links = vec![
            Link { role: master(0), ..link(A, Kind::Node) },
            Link { role: replica(A, true, 0), ..link(B, Kind::Node) },
            link(SENTINEL, Kind::Sentinel),
            link(SENTINEL, Kind::Ear),
        ];
        watcher.master = Some(A.into());
        watcher.overheard(reactor.io(), 3, &about_b("+selected-slave"));
        assert_eq!(watcher.hold, Some(Reason::Promotion));
        watcher.overheard(reactor.io(), 3, &message("-failover-abort-slave-timeout", "master mymaster 127.0.0.1 1"));
        assert_eq!((watcher.hold, watcher.master.as_deref()), (None, Some(A)));
        // A Sentinel that was only heard of on a channel holds nothing.
        watcher.links[2].trusted = false;
        watcher.overheard(reactor.io(), 3, &about_b("+selected-slave"));
        assert_eq!(watcher.hold, None);
    }

    #[test]
    fn a_sentinels_flags_show_a_promotion_whose_announcement_was_missed() {
        let (mut watcher, _news) = watcher(DeploymentKind::Sentinel);
        let mut reactor = Reactor::new().unwrap();
        watcher.links = vec![link(A, Kind::Node), link(B, Kind::Node), link(SENTINEL, Kind::Sentinel)];
        watcher.master = Some(A.into());
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        let row = |port: &str, flags: &str| {
            Value::Array(["ip", "127.0.0.1", "port", port, "flags", flags, "config-epoch", "1"].map(text).into())
        };
        for (at, of_master, of_replica, promotes) in [
            (10, "master", "slave", false),
            (20, "master,failover_in_progress", "slave", false),
            (30, "master,failover_in_progress", "slave,promoted", true),
            (u64::MAX, "master", "slave", false),
        ] {
            watcher.master_described(2, &row("1", of_master), at);
            watcher.replicas_listed(reactor.io(), 2, &Value::Array(vec![row("2", of_replica)]), at);
            let promotion = watcher.links[2].promotes.as_ref().map(|p| p.replica.as_str());
            assert_eq!(promotion, promotes.then_some(B), "{of_master} {of_replica}");
            assert_eq!((watcher.links[2].told_at, watcher.hold.is_some()), (at, promotes));
        }
    }
}
