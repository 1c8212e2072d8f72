//! The servers of a drill, how to find the master among them, and where clients run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Redirect, Target, TlsOptions};
use unslow_engine::{Seat, Server, info, view};
use unslow_lab::lab::Lab;
use unslow_nodes::{Address, Named};
use unslow_topology::{ClusterView, DeploymentKind, Member, Role, slot_of};

use crate::error::{Error, Unfit};

/// How a client learns who is master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// CLUSTER NODES of any node.
    Cluster,
    /// SENTINEL GET-MASTER-ADDR-BY-NAME.
    Sentinel,
    /// It does not: the first server.
    Alone,
}

/// A server.
pub struct Place {
    /// What it is called in reports.
    pub name: String,
    /// How to dial it.
    pub target: Target,
    /// Its address, as cluster and Sentinels say it.
    pub address: String,
    /// Where an observer sits beside it; `None` where there is no wire.
    beside: Option<Arc<Seat>>,
}

impl Place {
    fn of(server: &Arc<Server>) -> Place {
        Place {
            name: server.name().into(),
            target: server.target(),
            address: server.address(),
            beside: server.seat().cloned(),
        }
    }

    /// A connection made beside it: whatever is cut, this is not.
    pub fn beside(&self, options: &Options) -> Result<Connection, Error> {
        let open = || Connection::open(&self.target, options);
        Ok(match &self.beside {
            Some(seat) => seat.run(open).map_err(|why| Error::Network { place: self.name.clone(), why })??,
            None => open()?,
        })
    }
}

/// Where clients run.
pub struct Home {
    /// Name of the zone.
    pub zone: String,
    /// Its network; `None` is this machine's.
    pub seat: Option<Arc<Seat>>,
}

/// The servers and the clients' homes.
pub struct Places {
    /// How a client learns who is master.
    pub way: Way,
    /// Data nodes.
    pub nodes: Vec<Place>,
    /// Sentinels.
    pub sentinels: Vec<Place>,
    /// The Sentinels' name for the master.
    pub service: String,
    /// Where clients run, a zone each.
    pub homes: Vec<Home>,
    /// Zone of each node.
    pub zones: Vec<usize>,
    /// How servers of the user's own are reached.
    pub tls: TlsOptions,
    /// Masters there shall be: of independent servers all.
    pub masters: usize,
}

/// A key's home: the shard by number, and a hash tag that belongs to it.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Number of the node that is its master now.
    pub master: usize,
    /// A slot of it, among its lowest: those move first when it is resharded.
    pub slot: u16,
    /// A hash tag with that slot.
    pub tag: String,
}

impl Places {
    fn brief(&self) -> Options {
        let short = Duration::from_millis(500);
        Options { connect_timeout: short, command_timeout: short, tls: self.tls.clone(), ..Options::default() }
    }

    /// Of a lab.
    pub fn of_lab(lab: &Lab) -> Result<Places, Error> {
        let nodes: Vec<Place> = lab.deployment.nodes.iter().map(Place::of).collect();
        let sentinels: Vec<Place> = lab.deployment.sentinels.iter().map(Place::of).collect();
        let first = nodes.first().ok_or(Unfit::NoServers)?;
        let cluster = info(&mut first.beside(&Options::default())?, "cluster")?.get("cluster_enabled") == Some("1");
        let way = match (cluster, sentinels.is_empty()) {
            (true, _) => Way::Cluster,
            (false, false) => Way::Sentinel,
            _ => Way::Alone,
        };
        let homes = (0..lab.zones.len())
            .filter_map(|z| {
                let host = lab.hosts.iter().find(|h| h.client && h.zone == z)?;
                Some(Home { zone: lab.zones[z].clone(), seat: host.seat.clone() })
            })
            .collect::<Vec<_>>();
        if homes.is_empty() {
            return Err(Unfit::NoHosts.into());
        }
        let zones = lab.places.iter().map(|p| lab.hosts[*p].zone).collect();
        Ok(Places {
            way,
            nodes,
            sentinels,
            service: "mymaster".into(),
            homes,
            zones,
            tls: TlsOptions::default(),
            masters: lab.deployment.masters,
        })
    }

    /// Of a deployment that is not ours.
    pub fn discover(target: &Target, tls: &TlsOptions) -> Result<Places, Error> {
        let options = Options { tls: tls.clone(), ..Options::default() };
        let found = unslow_client::discover_as_client(target, &options)?;
        let place = |m: &Member| Place {
            name: m.address.clone(),
            target: found.target_of(m),
            address: m.address.clone(),
            beside: None,
        };
        let (sentinels, all): (Vec<&Member>, Vec<&Member>) =
            found.members.iter().partition(|m| m.role == Role::Sentinel);
        // The address that was typed, and the one that others call the same server by: the later one is kept.
        let mut nodes: Vec<(String, &Member)> = Vec::new();
        for member in all {
            let connection = Connection::open(&found.target_of(member), &options).ok();
            let section = connection.and_then(|mut c| info(&mut c, "server").ok());
            let run_id = section.and_then(|s| s.get("run_id").map(String::from));
            // One that does not answer is itself.
            let run_id = run_id.unwrap_or_else(|| member.address.clone());
            nodes.retain(|(known, _)| *known != run_id);
            nodes.push((run_id, member));
        }
        let nodes: Vec<&Member> = nodes.into_iter().map(|(_, member)| member).collect();
        let masters = nodes.iter().filter(|m| m.role == Role::Master).count();
        let way = match found.kind {
            DeploymentKind::Cluster => Way::Cluster,
            _ if !sentinels.is_empty() => Way::Sentinel,
            _ => Way::Alone,
        };
        let mut services: Vec<&String> = found.members.iter().filter_map(|m| m.service.as_ref()).collect();
        services.sort();
        services.dedup();
        let service = match (&target.service, &services[..]) {
            (Some(service), _) => service.clone(),
            (None, [one]) => one.to_string(),
            (None, []) => "mymaster".into(),
            (None, several) => {
                return Err(Unfit::SeveralGroups(several.iter().map(|s| s.to_string()).collect()).into());
            }
        };
        Ok(Places {
            way,
            zones: vec![0; nodes.len()],
            nodes: nodes.into_iter().map(place).collect(),
            sentinels: sentinels.into_iter().map(place).collect(),
            service,
            homes: vec![Home { zone: "here".into(), seat: None }],
            tls: tls.clone(),
            masters: masters.max(1),
        })
    }

    /// Number of the node with this address.
    pub fn at(&self, address: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.address == address)
    }

    /// Number of the node that a redirect from node `sender` names.
    pub fn redirected(&self, redirect: &Redirect, sender: usize) -> Option<usize> {
        match redirect.to(&Address::parse(&self.nodes[sender].address)?) {
            Named::Is(node) => self.at(&node.to_string()),
            Named::Unknown => None,
        }
    }

    /// The first node that answers, asked beside it.
    fn view(&self) -> Result<ClusterView, Error> {
        let mut last = Error::from(Unfit::NobodyAnswers);
        for node in &self.nodes {
            match node.beside(&self.brief()).and_then(|mut c| Ok(view(&mut c)?)) {
                Ok(view) => return Ok(view),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// The shards as they are now, in the order of their masters' numbers. Tags differ by `seed`.
    pub fn shards(&self, seed: u64) -> Result<Vec<Shard>, Error> {
        if self.way != Way::Cluster {
            let master = self
                .nodes
                .iter()
                .position(|n| {
                    let role = n.beside(&self.brief()).and_then(|mut c| Ok(info(&mut c, "replication")?));
                    role.is_ok_and(|i| i.get("role") == Some("master"))
                })
                .ok_or(Unfit::NoMaster)?;
            return Ok(vec![Shard { master, slot: 0, tag: format!("{{{seed:x}}}") }]);
        }
        let view = self.view()?;
        let mut shards: Vec<Shard> = view
            .masters()
            .filter_map(|m| {
                let lowest: Vec<u16> = (0..16_384u16).filter(|s| m.slots.contains(*s)).take(50).collect();
                let tag =
                    (0u64..).map(|i| format!("{{{seed:x}{i:x}}}")).find(|t| lowest.contains(&slot_of(t.as_bytes())));
                let tag = tag.filter(|_| !lowest.is_empty())?;
                Some(Shard { master: self.at(&m.address)?, slot: slot_of(tag.as_bytes()), tag })
            })
            .collect();
        if shards.is_empty() {
            return Err(Unfit::NoSlots.into());
        }
        shards.sort_by_key(|s| s.master);
        Ok(shards)
    }
}

/// Finds the master of a slot for one client, from where the client is.
pub struct Finder<'a> {
    places: &'a Places,
    slot: u16,
    /// The master when the run began: where nobody can be asked it stays so.
    first: usize,
    options: Options,
    /// Those it asks: nodes of a cluster, or Sentinels.
    sources: Vec<Option<Connection>>,
    /// When each last failed to answer.
    silent: Vec<Option<Instant>>,
    turn: usize,
    dialled: Vec<Option<Instant>>,
}

/// A source that did not answer is left alone for this long.
const REST: Duration = Duration::from_millis(300);
/// The master that failed is tried again as often.
const AGAIN: Duration = Duration::from_millis(100);

impl<'a> Finder<'a> {
    /// For a client of this shard; `turn` says whom it asks first.
    pub fn new(places: &'a Places, shard: &Shard, turn: usize) -> Finder<'a> {
        // In a lab an answer takes two milliseconds; somewhere else nobody knows.
        let short = Duration::from_millis(if places.nodes.iter().any(|n| n.beside.is_some()) { 60 } else { 500 });
        let sources = if places.way == Way::Sentinel { places.sentinels.len() } else { places.nodes.len() };
        Finder {
            places,
            slot: shard.slot,
            first: shard.master,
            options: Options {
                connect_timeout: short,
                command_timeout: short,
                tls: places.tls.clone(),
                ..Options::default()
            },
            sources: (0..sources).map(|_| None).collect(),
            silent: vec![None; sources],
            turn,
            dialled: vec![None; places.nodes.len()],
        }
    }

    /// Asks one source; the node it names as master, and its replicas.
    fn ask(&mut self) -> Option<(usize, Vec<usize>)> {
        if self.places.way == Way::Alone {
            return Some((self.first, (0..self.places.nodes.len()).filter(|n| *n != self.first).collect()));
        }
        let n = self.sources.len();
        let source = (0..n)
            .map(|i| (self.turn + i) % n)
            .find(|s| self.silent[*s].is_none_or(|at| at.elapsed() > REST))
            .unwrap_or(self.turn % n);
        self.turn = source + 1;
        let asked = if self.places.way == Way::Sentinel { &self.places.sentinels } else { &self.places.nodes };
        if self.sources[source].is_none() {
            self.sources[source] = Connection::open(&asked[source].target, &self.options).ok();
        }
        let answer = self.sources[source].as_mut().and_then(|c| match self.places.way {
            Way::Sentinel => {
                let reply = c.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.places.service]).ok()?;
                let address: Vec<String> = reply.items().iter().filter_map(|v| v.text()).collect();
                let [host, port] = &address[..] else { return None };
                let master = self.places.at(&unslow_topology::join_host_port(host, port))?;
                Some((master, (0..self.places.nodes.len()).filter(|i| *i != master).collect()))
            }
            _ => {
                let view = view(c).ok()?;
                let owner = view.masters().find(|m| m.slots.contains(self.slot))?;
                let replicas = view.replicas_of(&owner.id).filter(|r| !r.is_down());
                let replicas = replicas.filter_map(|r| self.places.at(&r.address)).collect();
                Some((self.places.at(&owner.address)?, replicas))
            }
        });
        if answer.is_none() {
            self.sources[source] = None;
            self.silent[source] = Some(Instant::now());
        }
        answer
    }

    /// A connection to the master, or `None` when this attempt found none. `failed` is left alone for a while.
    pub fn master(&mut self, failed: Option<usize>, options: &Options) -> Option<(usize, Connection)> {
        let (master, _) = self.ask()?;
        if failed == Some(master) && self.dialled[master].is_some_and(|at| at.elapsed() < AGAIN) {
            return None;
        }
        self.dialled[master] = Some(Instant::now());
        let mut connection = self.dial(master, options)?;
        if self.places.way == Way::Sentinel {
            // As Sentinel's own documentation asks of clients.
            let role = connection.call(&["ROLE"]).ok()?;
            if role.items().first().and_then(|v| v.text()).as_deref() != Some("master") {
                return None;
            }
        }
        Some((master, connection))
    }

    /// A connection to one of the master's replicas.
    pub fn replica(&mut self, turn: usize, options: &Options) -> Option<(usize, Connection)> {
        let (_, replicas) = self.ask()?;
        let replica = *replicas.get(turn % replicas.len().max(1))?;
        let mut connection = self.dial(replica, options)?;
        if self.places.way == Way::Cluster {
            connection.call(&["READONLY"]).ok()?;
        }
        Some((replica, connection))
    }

    fn dial(&self, node: usize, options: &Options) -> Option<Connection> {
        let first = Options { connect_timeout: self.options.connect_timeout, ..options.clone() };
        Connection::open(&self.places.nodes[node].target, &first).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unslow_engine::{Deployment, ServerSpec, Shape, find};

    #[test]
    fn a_redirect_without_a_host_means_the_senders() {
        let place = |address: &str| Place {
            name: address.into(),
            target: Target::parse(address).unwrap(),
            address: address.into(),
            beside: None,
        };
        let places = Places {
            way: Way::Cluster,
            nodes: ["10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"].map(place).into(),
            sentinels: Vec::new(),
            service: String::new(),
            homes: Vec::new(),
            zones: vec![0; 3],
            tls: TlsOptions::default(),
            masters: 3,
        };
        let of = |text: &str| {
            let frame = format!("-{text}\r\n");
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap().to_string();
            let server = std::thread::spawn(move || {
                use std::io::{Read, Write};
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.read(&mut [0; 1024]);
                stream.write_all(frame.as_bytes()).unwrap();
            });
            let mut connection = Connection::open(&Target::parse(&address).unwrap(), &Options::default()).unwrap();
            let error = connection.call(&["GET", "k"]).unwrap_err();
            server.join().unwrap();
            error
        };
        for (text, expected) in [
            ("MOVED 3999 10.0.0.2:1", Some(2)),
            ("MOVED 3999 :2", Some(1)),
            ("ASK 3999 :2", Some(1)),
            ("MOVED 3999 ?:2", None),
            ("MOVED 3999 10.0.0.9:1", None),
        ] {
            let error = of(text);
            let node = error.redirect().and_then(|redirect| places.redirected(redirect, 0));
            assert_eq!(node, expected, "{text}");
        }
    }

    #[test]
    fn a_server_under_two_names_is_one() {
        let engine = find("valkey-9.1").unwrap();
        let pair = Deployment::start(&engine, &Shape::MasterReplica { replicas: 1 }, &ServerSpec::default()).unwrap();
        let typed = Target::parse(&format!("localhost:{}", pair.nodes[0].port)).unwrap();
        let places = Places::discover(&typed, &TlsOptions::default()).unwrap();
        let names: Vec<&str> = places.nodes.iter().map(|n| n.address.as_str()).collect();
        assert_eq!((names.len(), places.masters), (2, 1), "{names:?}");
    }
}
