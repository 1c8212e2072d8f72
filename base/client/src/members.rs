//! The servers of a deployment, as one of them names the others: masters, replicas, shards, Sentinels.
//!
//! A cluster node knows its cluster, a Sentinel its groups, a master its replicas, a replica its master. A plain
//! master does not know its Sentinels, but they all publish on its channel `__sentinel__:hello` every two seconds.
//! A proxy knows none of this; see `through.rs`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use unslow_topology::{ClusterView, DeploymentKind, Info, Member, Role};

use crate::target::host_port;
use crate::{Endpoint, Error, ErrorKind, Options, ReadOnly, Target, Value};

/// What discovery found.
#[derive(Clone, Debug)]
pub struct Deployment {
    /// How the servers belong together.
    pub kind: DeploymentKind,
    /// Every server, Sentinels included, whether or not it answers.
    pub members: Vec<Member>,
    /// What stayed unknown, as sentences.
    pub notes: Vec<String>,
    /// The proxy that answered instead of the servers, such as `unslow gateway 0.1.0 at 127.0.0.1:7001`. The servers
    /// behind it were not seen: the only member, if any, is the proxy. `None` too where discovery could look behind it;
    /// a note says so.
    pub through: Option<String>,
    /// The address of the node that was asked first in a cluster, and the questions that it has answered, word by word.
    /// Questions to others, few and cheap, are not listed.
    pub asked: (String, Vec<Vec<String>>),
    /// Members that must be dialled at another address than their own (the one the user gave).
    dial: BTreeMap<String, Endpoint>,
    /// Addresses that only a pub/sub message named.
    heard: BTreeSet<String>,
    target: Target,
}

impl Deployment {
    /// Of which nothing is known yet.
    pub(crate) fn empty(target: &Target) -> Deployment {
        Deployment {
            kind: DeploymentKind::Standalone,
            members: Vec::new(),
            notes: Vec::new(),
            through: None,
            asked: Default::default(),
            dial: BTreeMap::new(),
            heard: BTreeSet::new(),
            target: Target { service: None, ..target.clone() },
        }
    }

    /// A member that is dialled where it was asked for.
    pub(crate) fn add(&mut self, at: &Endpoint, role: Role) {
        self.dial.insert(at.to_string(), at.clone());
        self.members.push(member(at.to_string(), role));
    }

    /// How to reach a member: the user's own credentials at that member's address. Sentinels that were only heard of
    /// on a channel get none: anyone who may publish there could name an address of his own.
    pub fn target_of(&self, member: &Member) -> Target {
        let endpoint = self.dial.get(&member.address).cloned().or_else(|| host_port(&member.address, 6379));
        let mut target = endpoint.map_or_else(|| self.target.clone(), |e| self.target.at(e));
        if self.heard.contains(&member.address) {
            (target.user, target.password) = (None, None);
        }
        target
    }
}

/// A target for `host:port` as servers write it, with the credentials of `like`.
pub fn address_target(like: &Target, address: &str) -> Option<Target> {
    Some(like.at(host_port(address, 6379)?))
}

/// A deployment larger than any seen; stops servers that lie, or name each other for ever.
const MOST: usize = 1000;

/// Takes addresses as long as there are not too many, and says so where there are.
struct Room {
    seen: BTreeSet<String>,
    most: usize,
    full: bool,
}

impl Room {
    fn new() -> Room {
        Room { seen: BTreeSet::new(), most: MOST, full: false }
    }

    /// Whether this one is among those that are looked at; one that was taken before still is.
    fn takes(&mut self, address: &str) -> bool {
        if self.seen.contains(address) {
            return true;
        }
        let takes = self.seen.len() < self.most;
        if takes {
            self.seen.insert(address.to_string());
        }
        self.full |= !takes;
        takes
    }

    /// Whether it is taken for the first time.
    fn takes_new(&mut self, address: &str) -> bool {
        !self.seen.contains(address) && self.takes(address)
    }

    fn note(&self, seed: &dyn std::fmt::Display, notes: &mut Vec<String>) {
        if self.full {
            let most = self.most;
            notes.push(format!("{seed} led to more than {most} servers: only the first {most} were looked at"));
        }
    }
}

const HELLO_CHANNEL: &str = "__sentinel__:hello";
/// Sentinels publish every 2 s; half a second for the slow ones.
const HELLO_WAIT: Duration = Duration::from_millis(2500);

/// The deployment of the server at the other end.
pub(crate) fn servers(mut connection: ReadOnly, target: &Target, options: &Options) -> Result<Deployment, Error> {
    let mut found = Deployment::empty(target);
    // The endpoint that answered, not the list.
    let seed = connection.endpoint(target);
    let (server, refused) = match connection.call(&["INFO", "server"]) {
        Ok(value) => (Some(Info::parse(&value.text().unwrap_or_default())), "INFO gives no mode"),
        Err(e) if e.kind == ErrorKind::Denied => (None, "INFO is denied to this user"),
        Err(e) if e.kind == ErrorKind::Unknown => (None, "INFO is not known there"),
        Err(e) => return Err(e),
    };
    let mode = server.as_ref().and_then(|i| i.mode().map(str::to_string));
    match mode.as_deref() {
        Some("sentinel") => from_sentinel(&mut connection, &seed, target, &mut found)?,
        Some("cluster") => {
            from_cluster(&mut connection, &seed, &mut found)?;
            found.asked.1 = connection.questions_answered();
        }
        Some(_) => from_replication(connection, &seed, options, &mut found)?,
        // Whatever still answers tells what this is.
        None => match from_cluster(&mut connection, &seed, &mut found) {
            Ok(()) => {}
            Err(e) if e.is_fatal() => return Err(e),
            Err(_) => {
                found.notes.push(format!("{refused}, so replicas and Sentinels could not be looked for"));
                found.members.push(member(seed.to_string(), Role::Unknown));
            }
        },
    }
    let mut seen: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut several = BTreeSet::new();
    found.members.retain(|m| match seen.get(&m.address) {
        None => {
            seen.insert(m.address.clone(), m.service.clone());
            true
        }
        Some(service) => {
            if *service != m.service {
                several.insert(m.address.clone());
            }
            false
        }
    });
    // A Sentinel of several groups is asked about all of them.
    found.members.iter_mut().filter(|m| several.contains(&m.address)).for_each(|m| m.service = None);
    Ok(found)
}

fn member(address: String, role: Role) -> Member {
    Member { address, role, master: None, node_id: None, service: None }
}

/// `None` when the user may not run it.
fn info(connection: &mut ReadOnly, section: &str) -> Result<Option<Info>, Error> {
    match connection.call(&["INFO", section]) {
        Ok(value) => Ok(Some(Info::parse(&value.text().unwrap_or_default()))),
        Err(e) if matches!(e.kind, ErrorKind::Denied | ErrorKind::Unknown) => Ok(None),
        Err(e) => Err(e),
    }
}

fn from_cluster(connection: &mut ReadOnly, seed: &Endpoint, found: &mut Deployment) -> Result<(), Error> {
    let text = match connection.call(&["CLUSTER", "NODES"]) {
        Ok(value) => value.text().unwrap_or_default(),
        Err(e) if e.kind == ErrorKind::Denied => {
            found.kind = DeploymentKind::Cluster;
            found
                .notes
                .push(format!("{seed} is a cluster node, but CLUSTER NODES is denied: only this node was looked at"));
            found.members.push(member(seed.to_string(), Role::Unknown));
            return Ok(());
        }
        Err(e) => return Err(e),
    };
    let mut view = ClusterView::parse(&text).map_err(|e| Error::new(ErrorKind::NotRedis, e.to_string()))?;
    view.place_myself(&seed.to_string());
    found.kind = DeploymentKind::Cluster;
    let mut room = Room::new();
    for node in &view.nodes {
        if node.is("handshake") || node.is("noaddr") {
            continue;
        }
        let address = node.address.clone();
        if !room.takes(&address) {
            continue;
        }
        if node.is("myself") {
            found.asked.0.clone_from(&address);
            found.dial.insert(address.clone(), seed.clone());
        } else if let (true, Some(name), Some(Endpoint::Tcp(_, port))) =
            (found.target.tls, &node.hostname, host_port(&address, 6379))
        {
            // Certificates are made for names.
            found.dial.insert(address.clone(), Endpoint::Tcp(name.clone(), port));
        }
        found.members.push(Member {
            address,
            role: if node.is("master") { Role::Master } else { Role::Replica },
            master: node.master_id.as_deref().and_then(|id| view.by_id(id)).map(|m| m.address.clone()),
            node_id: Some(node.id.clone()),
            service: None,
        });
    }
    room.note(seed, &mut found.notes);
    Ok(())
}

fn from_sentinel(
    connection: &mut ReadOnly,
    seed: &Endpoint,
    target: &Target,
    found: &mut Deployment,
) -> Result<(), Error> {
    found.kind = DeploymentKind::Sentinel;
    found.dial.insert(seed.to_string(), seed.clone());
    let masters = connection.call(&["SENTINEL", "MASTERS"])?;
    let names: Vec<String> = masters.items().iter().filter_map(|m| m.get("name")?.text()).collect();
    if let Some(service) = &target.service
        && !names.contains(service)
    {
        let known = if names.is_empty() { "no group at all".to_string() } else { names.join(", ") };
        return Err(Error::new(
            ErrorKind::Reply,
            format!("{seed}: this Sentinel knows no group {service:?}; it knows {known}"),
        ));
    }
    let mut room = Room::new();
    for master in masters.items() {
        if room.full {
            break; // each group is two more questions
        }
        let (Some(name), Some(address)) = (master.get("name").and_then(Value::text), address_of(master)) else {
            continue;
        };
        if target.service.as_ref().is_some_and(|s| *s != name) {
            continue;
        }
        let own = Member { service: Some(name.clone()), ..member(seed.to_string(), Role::Sentinel) };
        if room.takes(&own.address) {
            found.members.push(own);
        }
        if !room.takes(&address) {
            break;
        }
        found.members.push(Member { service: Some(name.clone()), ..member(address.clone(), Role::Master) });
        let replicas = match connection.call(&["SENTINEL", "REPLICAS", &name]) {
            Err(e) if !e.is_fatal() => connection.call(&["SENTINEL", "SLAVES", &name]),
            other => other,
        };
        if replicas.is_err() {
            found.notes.push(format!("{seed}: SENTINEL REPLICAS is denied, so replicas are missing here"));
        }
        for replica in replicas.iter().flat_map(|r| r.items()) {
            if let Some(at) = address_of(replica).filter(|at| room.takes(at)) {
                let master = Some(address.clone());
                found.members.push(Member { master, service: Some(name.clone()), ..member(at, Role::Replica) });
            }
        }
        let sentinels = connection.call(&["SENTINEL", "SENTINELS", &name]);
        if sentinels.is_err() {
            found.notes.push(format!("{seed}: SENTINEL SENTINELS is denied, so the other Sentinels are missing here"));
        }
        for sentinel in sentinels.iter().flat_map(|s| s.items()) {
            if let Some(at) = address_of(sentinel).filter(|at| room.takes(at)) {
                found.members.push(Member { service: Some(name.clone()), ..member(at, Role::Sentinel) });
            }
        }
    }
    room.note(seed, &mut found.notes);
    if found.members.is_empty() {
        found.members.push(member(seed.to_string(), Role::Sentinel));
        found.notes.push(format!("{seed} is a Sentinel that watches nothing"));
    }
    Ok(())
}

fn address_of(fields: &Value) -> Option<String> {
    let host = fields.get("ip")?.text()?;
    let port = fields.get("port")?.integer()?;
    Some(Endpoint::Tcp(host, u16::try_from(port).ok()?).to_string())
}

/// Walks the replication tree from the seed: up to masters, down to replicas.
fn from_replication(
    connection: ReadOnly,
    seed: &Endpoint,
    options: &Options,
    found: &mut Deployment,
) -> Result<(), Error> {
    found.dial.insert(seed.to_string(), seed.clone());
    let mut queue = VecDeque::from([(seed.to_string(), Some(connection))]);
    let mut room = Room::new();
    room.takes(&seed.to_string());
    let mut hello_at = None;
    while let Some((address, connection)) = queue.pop_front() {
        let opened = match connection {
            Some(c) => Ok(c),
            None => host_port(&address, 6379)
                .ok_or_else(|| Error::new(ErrorKind::BadUrl, address.clone()))
                .and_then(|e| ReadOnly::open(&found.target.at(e), options)),
        };
        let replication = opened.and_then(|mut c| Ok((info(&mut c, "replication")?, c)));
        let (replication, mut connection) = match replication {
            Ok((Some(replication), connection)) => (replication, connection),
            // Its own probe will say why it does not answer.
            _ => {
                if found.members.iter().all(|m| m.address != address) {
                    found.members.push(member(address, Role::Unknown));
                }
                continue;
            }
        };
        let mut own = member(address.clone(), Role::Master);
        if replication.role() == Some("slave") {
            own.role = Role::Replica;
            if let (Some(host), Some(port)) = (replication.get("master_host"), replication.number("master_port")) {
                let master = Endpoint::Tcp(host.to_string(), port as u16).to_string();
                own.master = Some(master.clone());
                if room.takes_new(&master) {
                    queue.push_back((master, None));
                }
            }
        }
        for (ip, port, ..) in replication.replicas() {
            let replica = Endpoint::Tcp(ip, port).to_string();
            if room.takes_new(&replica) {
                queue.push_back((replica, None));
            }
        }
        let watched = connection.call(&["PUBSUB", "NUMSUB", HELLO_CHANNEL]);
        if hello_at.is_none() && watched.is_ok_and(|v| v.items().get(1).and_then(Value::integer).unwrap_or(0) > 0) {
            hello_at = Some(address.clone());
        }
        found.members.retain(|m| m.address != address);
        found.members.push(own);
    }
    if found.members.len() > 1 {
        found.kind = DeploymentKind::MasterReplica;
    }
    if let Some(address) = hello_at {
        found.kind = DeploymentKind::Sentinel;
        let target =
            found.dial.get(&address).cloned().or_else(|| host_port(&address, 6379)).map(|e| found.target.at(e));
        let sentinels = target.map(|t| sentinels_by_hello(&t, options));
        match sentinels {
            Some(Ok(heard)) if !heard.is_empty() => {
                for (address, service) in heard {
                    if !room.takes(&address) {
                        continue;
                    }
                    found.heard.insert(address.clone());
                    found.members.iter_mut().for_each(|m| m.service = Some(service.clone()));
                    found.members.push(Member { service: Some(service), ..member(address, Role::Sentinel) });
                }
            }
            _ => found.notes.push(format!("Sentinels watch {address}, but none was heard on {HELLO_CHANNEL}")),
        }
    }
    room.note(seed, &mut found.notes);
    Ok(())
}

/// Listens for one round of Sentinel greetings: `ip,port,runid,epoch,service,master-ip,master-port,config-epoch`.
fn sentinels_by_hello(target: &Target, options: &Options) -> Result<BTreeSet<(String, String)>, Error> {
    let mut connection = ReadOnly::open(target, options)?;
    let mut heard = BTreeSet::new();
    let until = Instant::now() + HELLO_WAIT;
    connection.listen(HELLO_CHANNEL, until, |message| {
        let mut parts = message.split(',');
        if let (Some(ip), Some(port), Some(service)) = (parts.next(), parts.next(), parts.nth(2))
            && let Ok(port) = port.parse()
            // One more than are taken tells that there are more.
            && heard.len() <= MOST
        {
            heard.insert((Endpoint::Tcp(ip.to_string(), port).to_string(), service.to_string()));
        }
    })?;
    Ok(heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_servers_are_taken_than_there_is_room_for_and_a_note_says_so() {
        let mut room = Room { most: 2, ..Room::new() };
        let mut notes = Vec::new();
        assert!(room.takes("h:1") && room.takes_new("h:2") && !room.takes_new("h:1"));
        room.note(&"h:1", &mut notes);
        assert!(notes.is_empty(), "full, but nothing is left out");
        assert!(!room.takes("h:3") && room.takes("h:2"));
        room.note(&"h:1", &mut notes);
        assert_eq!(notes, ["h:1 led to more than 2 servers: only the first 2 were looked at"]);
    }
}
