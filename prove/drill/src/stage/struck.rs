//! Whether a fault really happened, and really ended. A partition that leaks gives wrong figures, not small ones: a
//! drill whose fault cannot be shown is `unknown`.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unslow_client::{ErrorKind, Options};
use unslow_engine::Server;
use unslow_lab::faults::{self, Active, Hits};
use unslow_lab::lab::Lab;
use unslow_lab::topology::parse_duration;

use crate::error::Error;

/// A fault in a lab, with what shows that it is at work.
pub struct Struck {
    active: Active,
    proof: Proof,
}

impl Struck {
    /// Looks at the lab, then injects the fault.
    pub(super) fn inject(lab: &Lab, fault: &str, who: Option<&str>, value: Option<&str>) -> Result<Struck, Error> {
        let fault = faults::named(fault)?;
        let before = Before::look(lab, fault.name);
        let active = fault.inject(lab, who, value)?;
        let asked = value.or(fault.value.map(|(_, own)| own)).unwrap_or_default();
        let proof = Proof::new(lab, fault.name, asked, &active.hits, before);
        Ok(Struck { active, proof })
    }

    /// What it is done to, in words.
    pub fn subject(&self) -> &str {
        &self.active.subject
    }

    /// Whether it is at work now; in words what shows it, or what was found instead.
    pub fn holds(&self, lab: &Lab) -> Result<String, Unproven> {
        self.proof.holds(lab, &self.active)
    }

    /// Answers that its own clients have had, where it is one of what clients do.
    pub fn answers(&self) -> u64 {
        self.active.answers()
    }

    /// What the fix is, in words.
    pub fn remedy(&self) -> &'static str {
        self.active.remedy
    }

    /// Applies the remedy: the clients change their ways.
    pub fn fix(&self) {
        self.active.fix();
    }

    /// Ends it. What could not be undone is tried again when this is dropped.
    pub fn heal(&mut self) -> Result<(), Error> {
        Ok(self.active.heal()?)
    }

    /// Whether it is over.
    pub fn is_over(&self, lab: &Lab) -> Result<(), Unproven> {
        self.proof.healed(lab)
    }
}

/// What was before a fault.
struct Before {
    pids: Vec<(String, u32)>,
    owners: Vec<(String, String)>,
    /// How long a connection took from a host's network to a server; only those that were made.
    paths: BTreeMap<(usize, SocketAddr), Duration>,
    /// Of the servers that answer, where the fault is about forks.
    forks: Vec<(String, Forks)>,
}

/// What a server says of its forks: how many, where it counts them (Redis 6.2 and later), and how long the last took.
#[derive(Clone, Copy, PartialEq)]
struct Forks {
    total: Option<f64>,
    last_us: f64,
}

impl Forks {
    fn of(server: &Server) -> Result<Forks, unslow_client::Error> {
        let short = Duration::from_millis(200);
        let options = Options { connect_timeout: short, command_timeout: short, ..Options::default() };
        let section = server.connect_with(&options)?.call(&["INFO", "stats"])?.text().unwrap_or_default();
        let stats = unslow_topology::Info::parse(&section);
        Ok(Forks { total: stats.number("total_forks"), last_us: stats.number("latest_fork_usec").unwrap_or(0.0) })
    }
}

/// Faults that are about forks.
const FORKS: [&str; 2] = ["slow_fork", "fork_stall"];

impl Before {
    /// Every server's process, who owns which slots, who reaches whom, and what else this fault will change.
    fn look(lab: &Lab, fault: &str) -> Before {
        let mut paths = BTreeMap::new();
        for host in (0..lab.hosts.len()).filter(|h| lab.hosts[*h].seat.is_some()) {
            for address in lab.servers().filter_map(|(s, _)| s.address().parse().ok()) {
                if let Ok(Some(took)) = connects(lab, host, address) {
                    paths.insert((host, address), took);
                }
            }
        }
        let pids = lab.servers().map(|(s, _)| (s.name().into(), s.pid())).collect();
        let forks = lab.servers().filter(|_| FORKS.contains(&fault));
        let forks = forks.filter_map(|(s, _)| Some((s.name().into(), Forks::of(s).ok()?))).collect();
        Before { pids, owners: owners(lab), paths, forks }
    }
}

/// Masters with their slots, as the first node of a cluster that answers says; without a cluster, who calls itself
/// master.
fn owners(lab: &Lab) -> Vec<(String, String)> {
    let short = Duration::from_millis(500);
    let options = Options { connect_timeout: short, command_timeout: short, ..Options::default() };
    let ask = |server: &Arc<Server>| {
        let mut connection = server.connect_with(&options).ok()?;
        let view = unslow_engine::view(&mut connection).ok()?;
        let mut all: Vec<_> = view.masters().map(|m| (m.address.clone(), m.slots.to_string())).collect();
        all.sort();
        Some(all)
    };
    let is_master = |server: &&Arc<Server>| {
        let says = |s: &Server| unslow_engine::info(&mut s.connect_with(&options).ok()?, "replication").ok();
        says(server).is_some_and(|section| section.get("role") == Some("master"))
    };
    let nodes = &lab.deployment.nodes;
    nodes.iter().find_map(ask).unwrap_or_else(|| {
        nodes.iter().filter(is_master).map(|s| (s.name().to_string(), "master".to_string())).collect()
    })
}

/// What a fault's effect is looked for in.
struct Proof {
    fault: String,
    /// The value it was given, or its own.
    asked: String,
    servers: Vec<Arc<Server>>,
    before: Before,
    /// Paths that a partition must cut: from a host's network to an address.
    paths: Vec<(usize, SocketAddr)>,
}

/// What was found instead of a fault, or of its end.
#[derive(Debug, thiserror::Error)]
pub enum Unproven {
    /// A kill, a hang or a restart of no server.
    #[error("no server was {0}")]
    Nobody(&'static str),
    /// A server that was killed.
    #[error("{0} should have been killed, but is running")]
    Runs(String),
    /// A server that was stopped.
    #[error("{0} should have been stopped, but its process is not")]
    NotStopped(String),
    /// A server that was restarted.
    #[error("{0} should have been restarted, but still has its old process")]
    OldProcess(String),
    /// A path that was cut.
    #[error("{host} still reaches {to}")]
    Reaches { host: String, to: SocketAddr },
    /// A path that was made longer.
    #[error("{host} reaches {to} as quickly as before")]
    Quick { host: String, to: SocketAddr },
    /// Nothing that had connected before is on the other side.
    #[error("no path that was {0} could be tried")]
    NoPath(&'static str),
    /// Every server that was asked is silent, before the fault or now.
    #[error("no server reports who is master")]
    MastersUnknown,
    /// Nothing has moved.
    #[error("every master is the same as before")]
    MastersSame,
    /// A server whose clock was changed.
    #[error("the clock of {0} is correct")]
    ClockRight(String),
    /// No server's clock was changed.
    #[error("no server's clock was changed")]
    NoClock,
    /// A node that does not remember as many as it shall.
    #[error("{server} knows {known} nodes, not {wanted}")]
    FewGhosts { server: String, known: usize, wanted: usize },
    /// Clients that do nothing.
    #[error("its clients get no answers")]
    Idle,
    /// A server whose forks are as quick as ever.
    #[error("no fork of {0} has been slow since")]
    QuickFork(String),
    /// A server that does not answer.
    #[error("{0} does not answer")]
    Silent(String),
    /// A fault without a visible trace.
    #[error("whether {0} is active cannot be shown from outside yet")]
    Invisible(String),
    /// A server that should be back.
    #[error("{0} did not come back")]
    Gone(String),
    /// A server that should run again.
    #[error("{0} is still stopped")]
    Stopped(String),
    /// A path that should be whole again.
    #[error("{host} still does not reach {to}")]
    Cut { host: String, to: SocketAddr },
    /// A network that a path begins in could not be entered.
    #[error("the network of {host}: {why}")]
    Network { host: String, why: std::io::Error },
}

/// How long a packet may take through the lab's wires before a path counts as cut.
const REACH: Duration = Duration::from_millis(400);

/// Servers and hosts of each side of a path that are tried.
const SERVERS: usize = 2;
const HOSTS: usize = 3;

/// The paths to try: from some of these hosts to each server, of which the host is known. A path that was none before
/// proves nothing, and a host reaches itself without the wire.
fn paths(
    from: &[usize],
    servers: &[(usize, SocketAddr)],
    was_before: impl Fn((usize, SocketAddr)) -> bool,
) -> Vec<(usize, SocketAddr)> {
    let to = |&(own, address): &(usize, SocketAddr)| {
        let tried = from.iter().filter(|h| **h != own).map(|h| (*h, address)).filter(|path| was_before(*path));
        tried.take(HOSTS).collect::<Vec<_>>()
    };
    servers.iter().flat_map(to).collect()
}

impl Proof {
    /// `hits` is what the lab says it is done to; `before` was looked at before that.
    fn new(lab: &Lab, fault: &str, asked: &str, hits: &Hits, before: Before) -> Proof {
        let (servers, paths) = match hits {
            Hits::Deployment => (Vec::new(), Vec::new()),
            Hits::Servers(servers) => (servers.clone(), Vec::new()),
            Hits::Path { from, to, .. } => {
                let there = lab.servers().map(|(s, _)| s).filter(|s| to.contains(&lab.host_of(s)));
                let servers: Vec<Arc<Server>> = there.cloned().collect();
                let own = |s: &Arc<Server>| Some((lab.host_of(s), s.address().parse().ok()?));
                let reached: Vec<(usize, SocketAddr)> = servers.iter().take(SERVERS).filter_map(own).collect();
                let paths = paths(from, &reached, |path| before.paths.contains_key(&path));
                (servers, paths)
            }
        };
        Proof { fault: fault.into(), asked: asked.into(), servers, before, paths }
    }

    /// Whether it is at work: an error says what was found instead. A signal takes a moment to arrive, the first slot
    /// and the first commands of clients longer.
    fn holds(&self, lab: &Lab, active: &Active) -> Result<String, Unproven> {
        let patience = match self.fault.as_str() {
            "reshard" | "reshard_atomic" | "kernel_bound" | "unpipelined" => 3000,
            _ => 300,
        };
        let until = Instant::now() + Duration::from_millis(patience);
        loop {
            match self.look(lab, active) {
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                found => return found,
            }
        }
    }

    fn look(&self, lab: &Lab, active: &Active) -> Result<String, Unproven> {
        let names = || self.servers.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ");
        let name = |server: &Arc<Server>| server.name().to_string();
        let host = |h: &usize| lab.hosts[*h].name.clone();
        match self.fault.as_str() {
            "kill" => match self.servers.iter().find(|s| s.alive()) {
                Some(alive) => Err(Unproven::Runs(name(alive))),
                None if self.servers.is_empty() => Err(Unproven::Nobody("killed")),
                None => Ok(format!("{}: no process", names())),
            },
            "hang" => match self.servers.iter().find(|s| state_of(s.pid()) != Some('T')) {
                Some(runs) => Err(Unproven::NotStopped(name(runs))),
                None if self.servers.is_empty() => Err(Unproven::Nobody("stopped")),
                None => Ok(format!("{}: state T in /proc", names())),
            },
            "partition" => {
                for (from, to) in &self.paths {
                    if connects(lab, *from, *to)?.is_some() {
                        return Err(Unproven::Reaches { host: host(from), to: *to });
                    }
                }
                match self.paths.is_empty() {
                    true => Err(Unproven::NoPath("cut")),
                    false => Ok(format!("{} paths into {} tried, none connects", self.paths.len(), names())),
                }
            }
            "delay" => {
                for (from, to) in &self.paths {
                    let before = self.before.paths[&(*from, *to)];
                    // The quickest of three: a busy machine only ever adds.
                    let mut now = None;
                    for _ in 0..3 {
                        now = connects(lab, *from, *to)?.or(Some(REACH)).min(now.or(Some(REACH)));
                    }
                    if now.is_none_or(|now| now < before + before / 2 + Duration::from_millis(1)) {
                        return Err(Unproven::Quick { host: host(from), to: *to });
                    }
                }
                match self.paths.is_empty() {
                    true => Err(Unproven::NoPath("made longer")),
                    false => Ok(format!("{} paths into {} take longer", self.paths.len(), names())),
                }
            }
            "restart" => {
                let old = |s: &&Arc<Server>| self.before.pids.iter().any(|(n, pid)| n == s.name() && *pid == s.pid());
                match self.servers.iter().find(old) {
                    Some(same) => Err(Unproven::OldProcess(name(same))),
                    None if self.servers.is_empty() => Err(Unproven::Nobody("restarted")),
                    None => Ok(format!("{}: new processes", names())),
                }
            }
            "reshard" | "reshard_atomic" | "move_slot" | "failover" => match owners(lab) {
                now if now.is_empty() || self.before.owners.is_empty() => Err(Unproven::MastersUnknown),
                now if now == self.before.owners => Err(Unproven::MastersSame),
                _ => Ok("another node is master, or owns the slots".into()),
            },
            "clock_jump" => {
                let here = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as i64;
                let there = |s: &Arc<Server>| s.connect().ok()?.call(&["TIME"]).ok()?.items().first()?.integer();
                match self.servers.iter().find(|s| there(s).is_none_or(|at| (at - here).abs() < 2)) {
                    Some(right) => Err(Unproven::ClockRight(name(right))),
                    None if self.servers.is_empty() => Err(Unproven::NoClock),
                    None => Ok(format!("{}: TIME is wrong", names())),
                }
            }
            "ghost_nodes" => {
                let wanted = lab.deployment.nodes.len() + self.asked.parse::<usize>().unwrap_or(1);
                self.each(|server| ghosts(server, wanted))
            }
            "kernel_bound" | "unpipelined" => at_work(active),
            "slow_fork" | "fork_stall" => self.each(|server| self.forks_slowly(server)),
            other => Err(Unproven::Invisible(other.into())),
        }
    }

    /// What is found at each server that is hit.
    fn each(&self, look: impl Fn(&Server) -> Result<String, Unproven>) -> Result<String, Unproven> {
        let found: Vec<String> = self.servers.iter().map(|s| look(s)).collect::<Result<_, _>>()?;
        if found.is_empty() { Err(Unproven::Nobody("affected")) } else { Ok(found.join("; ")) }
    }

    /// Whether a server's last fork since the fault began took as long as it shall, or holds it up at this moment.
    fn forks_slowly(&self, server: &Server) -> Result<String, Unproven> {
        let name = server.name();
        let shall_us = parse_duration(&self.asked).unwrap_or_default().as_micros() as f64;
        let before = self.before.forks.iter().find(|(of, _)| of == name).map(|(_, forks)| *forks);
        match Forks::of(server) {
            Ok(now) if before.is_some_and(|before| now != before) && now.last_us >= shall_us.max(1.0) => {
                Ok(format!("a fork of {name} took {} us", now.last_us))
            }
            // It takes connections and its process is not stopped: a fork is what keeps it from answering.
            Err(e) if e.kind == ErrorKind::Timeout && server.alive() && state_of(server.pid()) != Some('T') => {
                Ok(format!("{name} runs and does not answer: it forks"))
            }
            _ => Err(Unproven::QuickFork(name.into())),
        }
    }

    /// Whether it is over.
    fn healed(&self, lab: &Lab) -> Result<(), Unproven> {
        match self.fault.as_str() {
            "kill" | "restart" => match self.servers.iter().find(|s| !s.alive()) {
                Some(dead) => Err(Unproven::Gone(dead.name().into())),
                None => Ok(()),
            },
            "hang" => match self.servers.iter().find(|s| state_of(s.pid()) == Some('T')) {
                Some(stopped) => Err(Unproven::Stopped(stopped.name().into())),
                None => Ok(()),
            },
            "partition" => {
                for (from, to) in &self.paths {
                    if connects(lab, *from, *to)?.is_none() {
                        return Err(Unproven::Cut { host: lab.hosts[*from].name.clone(), to: *to });
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Whether a node of a cluster remembers as many nodes as it shall.
fn ghosts(server: &Server, wanted: usize) -> Result<String, Unproven> {
    let ask = || Some(unslow_engine::view(&mut server.connect().ok()?).ok()?.nodes.len());
    let name = server.name();
    match ask() {
        None => Err(Unproven::Silent(name.into())),
        Some(known) if known >= wanted => Ok(format!("{name} knows {known} nodes")),
        Some(known) => Err(Unproven::FewGhosts { server: name.into(), known, wanted }),
    }
}

/// Whether the fault's own clients get answers, one after another.
fn at_work(active: &Active) -> Result<String, Unproven> {
    const LOOK: Duration = Duration::from_millis(50);
    let before = active.answers();
    std::thread::sleep(LOOK);
    match active.answers() - before {
        0 => Err(Unproven::Idle),
        more => Ok(format!("its clients had {more} answers within {} ms", LOOK.as_millis())),
    }
}

/// The state of a process: R, S, T ...
fn state_of(pid: u32) -> Option<char> {
    unslow_process::stat(pid).map(|stat| stat.state)
}

/// How long a connection takes; `None` when there is none. An error is of the network it is tried from.
fn connects(lab: &Lab, from: usize, to: SocketAddr) -> Result<Option<Duration>, Unproven> {
    let dial = || {
        let begun = Instant::now();
        TcpStream::connect_timeout(&to, REACH).ok().map(|_| begun.elapsed())
    };
    let host = &lab.hosts[from];
    match &host.seat {
        Some(seat) => seat.run(dial).map_err(|why| Unproven::Network { host: host.name.clone(), why }),
        None => Ok(dial()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_over_the_wire_that_were_there_before_are_tried() {
        let at = |host: u8| (usize::from(host), SocketAddr::from(([10, 0, 0, host], 6379)));
        let tried = |from: &[usize], servers: &[u8]| -> Vec<(usize, usize)> {
            let servers: Vec<_> = servers.iter().map(|h| at(*h)).collect();
            // Nothing leads from host 4.
            let paths = paths(from, &servers, |(from, _)| from != 4);
            let host = |address| servers.iter().find(|(_, a)| *a == address).map_or(0, |(host, _)| *host);
            paths.into_iter().map(|(from, to)| (from, host(to))).collect()
        };
        assert_eq!(tried(&[0, 1], &[2]), [(0, 2), (1, 2)]);
        // Every path of a lab: a host's own address is no path, cut or not.
        assert_eq!(tried(&[0, 1, 2], &[0, 1]), [(1, 0), (2, 0), (0, 1), (2, 1)]);
        assert_eq!(tried(&[4, 3], &[2]), [(3, 2)]);
        assert_eq!(tried(&[0, 1, 3, 5, 6], &[2]).len(), HOSTS);
        assert!(tried(&[2], &[2]).is_empty());
    }

    /// The servers that this fault is done to, without it.
    fn healthy_lab(fault: &str) -> Lab {
        let topology = faults::named(fault).expect("a fault").topology("valkey-9.1");
        Lab::start_flat(&topology).expect("a lab")
    }

    fn proof_of(lab: &Lab, fault: &str, asked: &str) -> Proof {
        let hits = Hits::Servers(vec![lab.deployment.nodes[0].clone()]);
        Proof::new(lab, fault, asked, &hits, Before::look(lab, fault))
    }

    #[test]
    fn nothing_is_proved_on_servers_without_the_fault() {
        let lab = healthy_lab("ghost_nodes");
        // One that does nothing to servers by itself.
        let slow = faults::named("slow_fork").expect("a fault");
        let mut quick = slow.inject(&lab, Some("node-1"), Some("1ms")).expect("a knob");
        quick.heal().expect("it is turned back");
        for (fault, asked) in [
            ("ghost_nodes", "10"),
            ("kernel_bound", ""),
            ("unpipelined", ""),
            ("slow_fork", "1s"),
            ("fork_stall", "1s"),
        ] {
            let found = proof_of(&lab, fault, asked).look(&lab, &quick);
            assert!(found.is_err(), "{fault}: {found:?}");
        }
    }

    #[test]
    fn a_fork_from_before_the_fault_proves_nothing_and_the_next_one_does() {
        let lab = healthy_lab("fork_stall");
        let node = &lab.deployment.nodes[0];
        let knob =
            faults::named("slow_fork").expect("a fault").inject(&lab, Some(node.name()), Some("50ms")).expect("a knob");
        let save = || {
            let mut connection = node.connect().expect("it answers");
            connection.call(&["BGSAVE"]).expect("it begins");
            unslow_engine::wait_for("the save", Duration::from_secs(60), || {
                let persistence = unslow_engine::info(&mut connection, "persistence")?;
                Ok(persistence.get("rdb_bgsave_in_progress") == Some("0"))
            })
            .expect("it ends");
        };
        save();
        let proof = proof_of(&lab, "slow_fork", "50ms");
        assert!(matches!(proof.look(&lab, &knob), Err(Unproven::QuickFork(_))));
        save();
        let found = proof.look(&lab, &knob).expect("it has just forked");
        assert!(found.contains("a fork of node-1 took"), "{found}");
    }
}
