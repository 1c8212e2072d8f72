//! Whether a fault really happened, and really ended. A partition that leaks gives wrong figures, not small ones: a drill
//! whose fault cannot be shown is `unknown`.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use unslow_engine::Server;
use unslow_lab::lab::Lab;

/// A fault whose effect can be looked at.
pub struct Proof {
    fault: String,
    servers: Vec<Arc<Server>>,
    pids: Vec<u32>,
    /// Paths that a partition must cut: from a host's network to an address.
    paths: Vec<(usize, SocketAddr)>,
}

/// How long a packet may take through the lab's wires before a path counts as cut.
const REACH: Duration = Duration::from_millis(400);

fn words(subject: &str) -> impl Iterator<Item = &str> {
    subject.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|w| !w.is_empty())
}

impl Proof {
    /// `subject` is what the lab says it is done to.
    pub fn new(lab: &Lab, fault: &str, subject: &str) -> Proof {
        let cut = fault == "partition";
        // Hosts that a text names: by themselves, by a server of theirs, by their zone.
        let named = |text: &str| -> Vec<usize> {
            let all: Vec<&str> = words(text).collect();
            let is = |h: &usize| {
                let host = &lab.hosts[*h];
                let server = lab.servers().any(|(s, _)| all.contains(&s.name()) && lab.host_of(s) == *h);
                server || all.contains(&host.name.as_str()) || all.contains(&lab.zones[host.zone].as_str())
            };
            (0..lab.hosts.len()).filter(is).collect()
        };
        let ends = ["<->", "->", ":"].iter().find_map(|arrow| subject.split_once(arrow)).filter(|_| cut);
        let (inside, outside) = match ends {
            Some((a, b)) => (named(b), named(a)),
            None => {
                let inside = named(subject);
                let outside = (0..lab.hosts.len()).filter(|h| !inside.contains(h)).collect();
                (inside, outside)
            }
        };
        let all: Vec<&str> = words(subject).collect();
        let servers: Vec<Arc<Server>> = lab
            .servers()
            .filter(|(s, _)| if cut { inside.contains(&lab.host_of(s)) } else { all.contains(&s.name()) })
            .map(|(s, _)| s.clone())
            .collect();
        let mut paths = Vec::new();
        for server in servers.iter().take(if cut { 2 } else { 0 }) {
            let from = outside.iter().filter(|h| lab.hosts[**h].seat.is_some()).take(3);
            if let Ok(address) = server.address().parse() {
                paths.extend(from.map(|h| (*h, address)));
            }
        }
        Proof { fault: fault.into(), pids: servers.iter().map(|s| s.pid()).collect(), servers, paths }
    }

    /// Whether it is at work: an error says what was found instead. A signal takes a moment to arrive.
    pub fn holds(&self, lab: &Lab) -> Result<String, String> {
        let until = Instant::now() + Duration::from_millis(300);
        loop {
            match self.look(lab) {
                Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
                found => return found,
            }
        }
    }

    fn look(&self, lab: &Lab) -> Result<String, String> {
        let names = || self.servers.iter().map(|s| s.name()).collect::<Vec<_>>().join(", ");
        match self.fault.as_str() {
            "kill" => match self.servers.iter().find(|s| s.alive()) {
                Some(alive) => Err(format!("{} was to be killed and runs", alive.name())),
                None if self.servers.is_empty() => Err("nobody was killed".into()),
                None => Ok(format!("{}: no process", names())),
            },
            "hang" => match self.servers.iter().find(|s| state_of(s.pid()) != Some('T')) {
                Some(runs) => Err(format!("{} was to be stopped and its process is not", runs.name())),
                None if self.servers.is_empty() => Err("nobody was stopped".into()),
                None => Ok(format!("{}: state T in /proc", names())),
            },
            "partition" => match self.paths.iter().find(|(host, to)| reaches(lab, *host, *to)) {
                Some((host, to)) => Err(format!("{} still reaches {to}", lab.hosts[*host].name)),
                None if self.paths.is_empty() => Err("no path was cut that could be tried".into()),
                None => Ok(format!("{} paths into {} tried, none connects", self.paths.len(), names())),
            },
            "restart" => match self.servers.iter().zip(&self.pids).find(|(s, pid)| s.pid() == **pid) {
                Some((same, _)) => Err(format!("{} was to be restarted and has its old process", same.name())),
                None => Ok(format!("{}: new processes", names())),
            },
            other => Ok(format!("{other}: as the lab says")),
        }
    }

    /// Whether it is over.
    pub fn healed(&self, lab: &Lab) -> Result<(), String> {
        match self.fault.as_str() {
            "kill" | "restart" => match self.servers.iter().find(|s| !s.alive()) {
                Some(dead) => Err(format!("{} did not come back", dead.name())),
                None => Ok(()),
            },
            "hang" => match self.servers.iter().find(|s| state_of(s.pid()) == Some('T')) {
                Some(stopped) => Err(format!("{} is still stopped", stopped.name())),
                None => Ok(()),
            },
            "partition" => match self.paths.iter().find(|(host, to)| !reaches(lab, *host, *to)) {
                Some((host, to)) => Err(format!("{} still does not reach {to}", lab.hosts[*host].name)),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }
}

/// The state of a process: R, S, T ...
fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

fn reaches(lab: &Lab, host: usize, to: SocketAddr) -> bool {
    let dial = || TcpStream::connect_timeout(&to, REACH).is_ok();
    match &lab.hosts[host].seat {
        Some(seat) => seat.run(dial).unwrap_or(false),
        None => dial(),
    }
}
