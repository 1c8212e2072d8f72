//! What a fault is done to, and with which number: words resolved against a running lab.

use std::sync::Arc;
use std::time::Duration;

use unslow_client::Connection;
use unslow_engine::{Error, Seat, Server, info, view};
use unslow_topology::{ClusterView, slot_of};
use unslow_units::{did_you_mean, parse_bytes, parse_share};

use super::{Active, Claim, Client, Fault, Hits, Takes, brief, patient};
use crate::lab::{Host, Lab};
use crate::topology::{parse_duration, parse_rate};
use crate::wire::{Change, Conditions};

/// A fault's place and number.
pub struct At<'a> {
    /// The lab.
    pub lab: &'a Lab,
    fault: &'static str,
    value: &'a str,
    hits: Hits,
    /// The same in words.
    subject: String,
}

/// What a word names, and the same in words.
type Found = (Hits, String);

impl<'a> At<'a> {
    pub(super) fn new(lab: &'a Lab, fault: &Fault, target: Option<&str>, value: &'a str) -> Result<At<'a>, Error> {
        let (hits, subject) = match fault.takes {
            Takes::Deployment => (Hits::Deployment, "the deployment".into()),
            Takes::Node | Takes::Processes => nodes(lab, fault, target.unwrap_or("master"))?,
            Takes::Path => path(lab, target)?,
        };
        Ok(At { lab, fault: fault.name, value, hits, subject })
    }

    /// What it is done to, in words.
    pub(super) fn subject(&self) -> &str {
        &self.subject
    }

    /// What it is done to.
    pub(super) fn hits(&self) -> &Hits {
        &self.hits
    }

    /// The server it is done to; the first master when it is done to the deployment.
    pub fn node(&self) -> Result<Arc<Server>, Error> {
        match &self.hits {
            Hits::Servers(nodes) => nodes.first().cloned(),
            _ => Some(role(self.lab, "master", 1)?),
        }
        .ok_or_else(|| Error::new("no server there"))
    }

    /// Every server it is done to.
    pub fn nodes(&self) -> Result<Vec<Arc<Server>>, Error> {
        match &self.hits {
            Hits::Servers(nodes) => Ok(nodes.clone()),
            _ => Ok(vec![self.node()?]),
        }
    }

    /// The paths it is done to, with this added to them.
    pub fn change(&self, add: Conditions) -> Result<Change, Error> {
        match &self.hits {
            Hits::Path { from, to, both_ways } => {
                Ok(Change { from: from.clone(), to: to.clone(), both_ways: *both_ways, add })
            }
            _ => Err(Error::new("no path there")),
        }
    }

    /// Clients in the zone of the server.
    pub(super) fn client(&self) -> Result<Client, Error> {
        let zone = self.lab.hosts.get(self.lab.host_of(&self.node()?)).map_or(0, |h| h.zone);
        Ok(Client { seat: self.seat_in(zone)? })
    }

    /// Clients in the next zone.
    pub(super) fn far_client(&self) -> Result<Client, Error> {
        let zone = self.lab.hosts.get(self.lab.host_of(&self.node()?)).map_or(0, |h| h.zone);
        let other = (zone + 1) % self.lab.zones.len();
        if other == zone {
            return Err(Error::new("a far-away client needs a second zone; this lab has only one"));
        }
        Ok(Client { seat: self.seat_in(other)? })
    }

    fn seat_in(&self, zone: usize) -> Result<Option<Arc<Seat>>, Error> {
        let host = self.lab.client_in(zone).or_else(|| self.lab.hosts.iter().find(|h| h.zone == zone));
        host.map(|h: &Host| h.seat.clone()).ok_or_else(|| Error::new("the lab has no host for clients"))
    }

    /// A fault whose workers run where clients do.
    pub(super) fn active(&self, remedy: &'static str) -> Active {
        let seat = self.client().ok().and_then(|c| c.seat);
        Active {
            stop: Arc::default(),
            fixed: Arc::default(),
            answers: Arc::default(),
            threads: Vec::new(),
            local: Vec::new(),
            undo: Vec::new(),
            seat,
            _claims: Vec::new(),
            remedy,
            subject: String::new(),
            hits: Hits::default(),
        }
    }

    /// Makes sure that nobody else has changed this and will put it back: two faults would undo each other.
    pub(super) fn claim(&self, active: &mut Active, server: &Server, what: &str) -> Result<(), Error> {
        self.claim_named(active, format!("{what} of {}", server.name()))
    }

    pub(super) fn claim_named(&self, active: &mut Active, what: String) -> Result<(), Error> {
        let held = self.lab.claims.clone();
        let mut all = held.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(by) = all.get(&what) {
            return Err(Error::new(format!("the {what} is already held by {by}; try: unslow lab heal {by}")));
        }
        all.insert(what.clone(), self.fault.into());
        drop(all);
        active._claims.push(Claim { held, what });
        Ok(())
    }

    /// A hash tag whose keys live on the server: `{t17}`.
    pub fn tag(&self) -> Result<String, Error> {
        let node = self.node()?;
        let mut all = (0..).map(|i| format!("{{t{i}}}"));
        let mut connection = node.connect()?;
        if info(&mut connection, "cluster")?.get("cluster_enabled") != Some("1") {
            return Ok("{t0}".into());
        }
        let view = view(&mut connection)?;
        let own = view.nodes.iter().find(|n| n.is("myself"));
        let mine = own.map(|n| n.master_id.as_deref().unwrap_or(&n.id).to_string()).unwrap_or_default();
        let owner = view.by_id(&mine).ok_or_else(|| Error::new(format!("{} owns no slots", node.name())))?;
        if owner.slots.is_empty() {
            return Err(Error::new(format!("{} owns no slots", node.name())));
        }
        Ok(all.find(|t| owner.slots.contains(slot_of(t.as_bytes()))).unwrap_or_default())
    }

    /// Sets what a fault needs set; what was set before comes back with the undo.
    pub(super) fn settings(&self, wanted: &[(&'static str, &'static str)], active: &mut Active) -> Result<(), Error> {
        if wanted.is_empty() {
            return Ok(());
        }
        let nodes = match &self.hits {
            Hits::Servers(nodes) => nodes.clone(),
            _ => self.lab.deployment.nodes.clone(),
        };
        for node in nodes {
            for (key, _) in wanted {
                self.claim(active, &node, key)?;
            }
            let mut connection = node.connect()?;
            for &(key, value) in wanted {
                let now = connection.call(&["CONFIG", "GET", key])?.get(key).and_then(|v| v.text()).unwrap_or_default();
                // A server too old for the setting does not need it.
                if same(&now, value) || now.is_empty() && *key == *super::DEBUG {
                    continue;
                }
                connection.call(&["CONFIG", "SET", key, value]).map_err(|e| {
                    Error::new(format!(
                        "for this, {} must be started with {key} {value} ({e}); put it under [deployment.settings]",
                        node.name()
                    ))
                })?;
                let node = node.clone();
                active
                    .undo
                    .push(Box::new(move || Ok(node.connect()?.call(&["CONFIG", "SET", key, &now]).map(drop)?)));
            }
        }
        Ok(())
    }

    /// The number as a time.
    pub fn duration(&self) -> Result<Duration, Error> {
        parse_duration(self.value).map_err(unreadable)
    }

    /// The number as a time that may be negative, in us.
    pub fn signed_us(&self) -> Result<i64, Error> {
        let (sign, rest) = match self.value.strip_prefix('-') {
            Some(rest) => (-1, rest),
            None => (1, self.value.strip_prefix('+').unwrap_or(self.value)),
        };
        Ok(sign * parse_duration(rest).map_err(unreadable)?.as_micros() as i64)
    }

    /// The number as a share.
    pub fn share(&self) -> Result<f64, Error> {
        parse_share(self.value).map_err(unreadable)
    }

    /// The number as bits a second.
    pub fn rate(&self) -> Result<u64, Error> {
        parse_rate(self.value).map_err(unreadable)
    }

    /// The number as bytes.
    pub fn bytes(&self) -> Result<u64, Error> {
        parse_bytes(self.value).map_err(unreadable)
    }

    /// The number as a count from 1 to `most`.
    pub fn count(&self, most: usize) -> Result<usize, Error> {
        match self.value.parse() {
            Ok(n) if (1..=most).contains(&n) => Ok(n),
            _ => Err(Error::new(format!("{:?}: expected a number from 1 to {most}", self.value))),
        }
    }

    /// The number as a slot.
    pub fn slot(&self) -> Result<u16, Error> {
        match self.value.parse() {
            Ok(n) if n < 16_384 => Ok(n),
            _ => Err(Error::new(format!("{:?}: expected a slot from 0 to 16383", self.value))),
        }
    }

    /// The number as it was typed.
    pub fn value(&self) -> &str {
        self.value
    }

    /// The cluster as its first reachable node sees it.
    pub fn view(&self) -> Result<ClusterView, Error> {
        let mut last = Error::new("the deployment has no servers");
        for node in &self.lab.deployment.nodes {
            match node.connect().and_then(|mut c| view(&mut c)) {
                Ok(view) => return Ok(view),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// The server with this node id.
    pub fn by_id(&self, id: &str) -> Result<Arc<Server>, Error> {
        let known = self.lab.deployment.nodes.iter().find(|n| id_of(n).is_ok_and(|own| own == id));
        known.cloned().ok_or_else(|| Error::new(format!("no running node has the id {id}")))
    }

    /// A running replica of this master.
    pub fn replica_of(&self, master: &Server) -> Result<Arc<Server>, Error> {
        let id = id_of(master)?;
        let view = self.view()?;
        let replica = view.nodes.iter().find(|n| n.master_id.as_deref() == Some(&id) && !n.is_down());
        match replica {
            Some(replica) => self.by_id(&replica.id),
            None => Err(Error::new(format!("{} has no running replica", master.name()))),
        }
    }

    /// The master this replica follows.
    pub fn master_of(&self, replica: &Server) -> Result<Arc<Server>, Error> {
        let id = id_of(replica)?;
        let master = self.view()?.by_id(&id).and_then(|n| n.master_id.clone());
        self.by_id(&master.ok_or_else(|| Error::new(format!("{} is not a replica; name one", replica.name())))?)
    }

    /// Every master, in the order of the nodes.
    pub fn masters(&self) -> Result<Vec<Arc<Server>>, Error> {
        let mut all = Vec::new();
        for node in &self.lab.deployment.nodes {
            if node
                .connect()
                .and_then(|mut c| info(&mut c, "replication"))
                .is_ok_and(|i| i.get("role") == Some("master"))
            {
                all.push(node.clone());
            }
        }
        Ok(all)
    }
}

/// A server's own cluster id.
pub fn id_of(server: &Server) -> Result<String, Error> {
    Ok(server.connect()?.call(&["CLUSTER", "MYID"])?.text().unwrap_or_default())
}

/// A patient connection beside the server.
pub fn beside(server: &Server) -> Result<Connection, Error> {
    Ok(server.connect_with(&patient())?)
}

fn unreadable(why: unslow_units::Error) -> Error {
    Error::new(why.to_string())
}

/// Whether two spellings of a setting mean the same: `20mb` and `20971520`.
fn same(a: &str, b: &str) -> bool {
    a == b || matches!((parse_bytes(a), parse_bytes(b)), (Ok(x), Ok(y)) if x == y)
}

/// `master` or `slave`; nothing of a server that does not answer at once.
fn role_of(node: &Server) -> Option<String> {
    info(&mut node.connect_with(&brief()).ok()?, "replication").ok()?.get("role").map(String::from)
}

/// The n-th server of this role, by what the servers say now.
fn role(lab: &Lab, wanted: &str, number: usize) -> Result<Arc<Server>, Error> {
    let role = if wanted == "replica" { "slave" } else { "master" };
    let mut left = number;
    for node in &lab.deployment.nodes {
        if role_of(node).as_deref() == Some(role) {
            left -= 1;
            if left == 0 {
                return Ok(node.clone());
            }
        }
    }
    Err(Error::new(format!("no {wanted} number {number} answers")))
}

fn nodes(lab: &Lab, fault: &Fault, target: &str) -> Result<Found, Error> {
    let text = |s: &Arc<Server>| format!("{} ({})", s.name(), s.address());
    if let Some((server, _)) = lab.servers().find(|(s, _)| s.name() == target || s.address() == target) {
        if fault.takes == Takes::Node && lab.deployment.sentinels.iter().any(|s| Arc::ptr_eq(s, server)) {
            return Err(Error::new(format!("{} needs a data node; {target} is a Sentinel", fault.name)));
        }
        return Ok((Hits::Servers(vec![server.clone()]), text(server)));
    }
    if let Some(zone) = lab.zones.iter().position(|z| z == target && fault.takes == Takes::Processes) {
        let all: Vec<Arc<Server>> = lab.servers().filter(|(_, h)| h.zone == zone).map(|(s, _)| s.clone()).collect();
        if all.is_empty() {
            return Err(Error::new(format!("no server runs in {target}")));
        }
        let text = format!("{target}: {}", all.iter().map(|s| s.name()).collect::<Vec<_>>().join(", "));
        return Ok((Hits::Servers(all), text));
    }
    let (word, number) = match target.rsplit_once('-') {
        Some((word, n)) if n.parse::<usize>().is_ok_and(|n| n > 0) => (word, n.parse().unwrap_or(1)),
        _ => (target, 1),
    };
    if word == "master" || word == "replica" {
        let server = role(lab, word, number)?;
        let text = text(&server);
        return Ok((Hits::Servers(vec![server]), text));
    }
    if let Some(host) = lab.hosts.iter().find(|h| h.name == target || h.ip == target) {
        let all: Vec<Arc<Server>> =
            lab.servers().filter(|(_, h)| h.name == host.name).map(|(s, _)| s.clone()).collect();
        if all.is_empty() {
            return Err(Error::new(format!("no server runs on {target}")));
        }
        if fault.takes == Takes::Node && all.len() > 1 {
            let names: Vec<&str> = all.iter().map(|s| s.name()).collect();
            return Err(Error::new(format!("{} needs a single server; {target} has {}", fault.name, names.join(", "))));
        }
        let text = format!("{target}: {}", all.iter().map(|s| s.name()).collect::<Vec<_>>().join(", "));
        return Ok((Hits::Servers(all), text));
    }
    let mut names: Vec<&str> = lab.servers().map(|(s, _)| s.name()).collect();
    names.extend(["master", "replica"]);
    names.extend(lab.hosts.iter().filter(|h| !h.client).map(|h| h.name.as_str()));
    Err(Error::new(format!("no server or host {target:?} in lab {}{}", lab.name, did_you_mean(target, &names))))
}

/// `A:B` as its two ends, each of which may be an address with a port.
pub fn two_ends(path: &str) -> Option<(&str, &str)> {
    let is_port = |word: &str| word.split(':').next().is_some_and(|first| first.parse::<u16>().is_ok());
    let colons = path.match_indices(':').map(|(at, _)| (&path[..at], &path[at + 1..]));
    colons.into_iter().find(|(from, to)| !from.is_empty() && !to.is_empty() && !is_port(to))
}

fn path(lab: &Lab, target: Option<&str>) -> Result<Found, Error> {
    lab.wire()?;
    let all: Vec<usize> = (0..lab.hosts.len() + usize::from(lab.door.is_some())).collect();
    let text = target.ok_or_else(|| Error::new("expected a path: a host, a zone, A:B, or all; try: unslow lab ls"))?;
    if text == "all" {
        return Ok((Hits::Path { from: all.clone(), to: all, both_ways: false }, "every path".into()));
    }
    let ends = [("->", false), ("<->", true)]
        .iter()
        .rev()
        .find_map(|(arrow, both)| text.split_once(arrow).map(|(a, b)| (a, b, *both)))
        .or_else(|| two_ends(text).map(|(a, b)| (a, b, true)));
    match ends {
        Some((a, b, both_ways)) => {
            let (from, to) = (hosts(lab, a)?, hosts(lab, b)?);
            Ok((Hits::Path { from, to, both_ways }, text.into()))
        }
        None => {
            let named = hosts(lab, text)?;
            let others: Vec<usize> = all.iter().filter(|h| !named.contains(h)).copied().collect();
            let from = if others.is_empty() { all } else { others };
            let names: Vec<&str> = named.iter().filter_map(|h| Some(lab.hosts.get(*h)?.name.as_str())).collect();
            let who = if names.len() == 1 { names[0].to_string() } else { text.to_string() };
            Ok((Hits::Path { from, to: named, both_ways: true }, format!("{who} and all other hosts")))
        }
    }
}

/// Hosts of a word: a zone (the door stands in the first), a host, a server, `door`.
fn hosts(lab: &Lab, word: &str) -> Result<Vec<usize>, Error> {
    let door = lab.door.as_ref().map(|_| lab.hosts.len());
    if let Some(zone) = lab.zones.iter().position(|z| z == word) {
        let mut all: Vec<usize> = (0..lab.hosts.len()).filter(|h| lab.hosts[*h].zone == zone).collect();
        all.extend(door.filter(|_| zone == 0));
        return Ok(all);
    }
    if let Some(host) = lab.hosts.iter().position(|h| h.name == word || h.ip == word) {
        return Ok(vec![host]);
    }
    if let Some((server, _)) = lab.servers().find(|(s, _)| s.name() == word || s.address() == word) {
        return Ok(vec![lab.host_of(server)]);
    }
    if word == "door" {
        return door.map(|d| vec![d]).ok_or_else(|| Error::new("this lab has no door"));
    }
    if word == "master" || word == "replica" {
        return Ok(vec![lab.host_of(&role(lab, word, 1)?)]);
    }
    let mut names: Vec<&str> = lab.zones.iter().map(String::as_str).collect();
    names.extend(lab.hosts.iter().map(|h| h.name.as_str()));
    names.extend(lab.servers().map(|(s, _)| s.name()));
    Err(Error::new(format!("no zone, host or server {word:?} in lab {}{}", lab.name, did_you_mean(word, &names))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_two_ends_which_may_be_addresses() {
        assert_eq!(two_ends("zone-a:zone-b"), Some(("zone-a", "zone-b")));
        assert_eq!(two_ends("198.18.1.1:6379:198.18.2.1:6379"), Some(("198.18.1.1:6379", "198.18.2.1:6379")));
        assert_eq!(two_ends("node-1:198.18.2.1:6379"), Some(("node-1", "198.18.2.1:6379")));
        for one in ["zone-a", "198.18.1.1:6379", "zone-a:", ":zone-b", "", ":"] {
            assert_eq!(two_ends(one), None, "{one}");
        }
    }
}
