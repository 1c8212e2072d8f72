//! Labs that processes hold: where they are, what they can be asked, and what a killed one left.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unslow_engine::Error;
use unslow_units::did_you_mean;

use crate::place::{self, Owner, forget_empty_dir};
use crate::wire::WireStats;
use crate::{cgroups, processes};

pub(crate) const SOCKET: &str = "control.sock";
/// A request or reply longer than this is none of ours.
pub(crate) const LONGEST: u64 = 4 << 20;

/// What can be asked of a running lab.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Everything about it.
    Describe,
    /// Begins a fault.
    Fault {
        /// As in the catalogue of faults.
        name: String,
        /// Done to what.
        target: Option<String>,
        /// Its number.
        value: Option<String>,
        /// Healed by itself after this.
        for_ms: Option<u64>,
    },
    /// Ends faults: by number or name, or all of them.
    Heal(Vec<String>),
    /// A server's log.
    Logs {
        /// By its name in the lab.
        server: String,
        /// Its last lines; without `from`.
        lines: usize,
        /// From this byte on.
        from: Option<u64>,
    },
    /// Takes everything down.
    Down,
}

/// A lab as `lab ls` shows it.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Description {
    /// Versioned.
    pub schema: String,
    /// Its name.
    pub name: String,
    /// The process that holds it.
    pub pid: u32,
    /// How long it took to be ready.
    pub ready_ms: u64,
    /// On loopback addresses.
    pub flat: bool,
    /// What it cannot do.
    pub missing: Vec<String>,
    /// Leads to the deployment; empty when there is none.
    pub url: String,
    /// This machine's device into the lab, and its address.
    pub door: Option<(String, String)>,
    /// Hosts.
    pub hosts: Vec<HostRow>,
    /// Servers.
    pub servers: Vec<ServerRow>,
    /// Faults at work.
    pub faults: Vec<FaultRow>,
    /// What the wire did so far.
    pub wire: Option<WireStats>,
}

/// A host.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct HostRow {
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its address.
    pub ip: String,
    /// For clients.
    pub client: bool,
    /// Ways in: network and mount namespace.
    pub doors: Option<(PathBuf, PathBuf)>,
}

/// A server.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ServerRow {
    /// `node-1`, `sentinel-1`.
    pub name: String,
    /// Address.
    pub address: String,
    /// `master`, `replica`, `sentinel`, or `unknown` when it does not answer.
    pub role: String,
    /// Of a replica.
    pub master: Option<String>,
    /// `running`, `stopped` (SIGSTOP) or `dead`.
    pub state: String,
    /// Where it runs.
    pub host: String,
    /// Of that host.
    pub zone: String,
    /// Process id; 0 when dead.
    pub pid: u32,
    /// What runs.
    pub version: String,
}

/// A fault at work.
#[derive(Clone, Debug, Serialize, Deserialize, schemars::JsonSchema)]
pub struct FaultRow {
    /// For `heal`.
    pub id: u64,
    /// As in the catalogue of faults.
    pub name: String,
    /// Done to what.
    pub subject: String,
    /// How long already.
    pub age_ms: u64,
    /// Until it heals by itself.
    pub left_ms: Option<u64>,
    /// What the doctor must name.
    pub rule: Option<String>,
    /// Why it could not be undone; `heal` tries again.
    pub error: Option<String>,
}

/// A lab's directory, and whether somebody holds it.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its name.
    pub name: String,
    /// The process that holds it, if that still lives.
    pub holder: Option<u32>,
    /// Whether it can be talked to: labs of tests cannot.
    pub socket: bool,
    owner: Owner,
    dir: PathBuf,
}

/// Every lab of this user's.
pub fn all() -> Vec<Found> {
    let mut found: Vec<Found> = place::all()
        .into_iter()
        .map(|(dir, owner)| Found {
            name: dir.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            holder: owner.lives().then_some(owner.pid),
            socket: dir.join(SOCKET).exists(),
            owner,
            dir,
        })
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The lab a person means: of this name, or the only one.
pub fn find(name: Option<&str>) -> Result<Found, Error> {
    let mut all = all();
    all.retain(|f| f.socket);
    match name {
        Some(name) => match all.iter().find(|f| f.name == name) {
            Some(found) => Ok(found.clone()),
            None => {
                let names: Vec<&str> = all.iter().map(|f| f.name.as_str()).collect();
                Err(Error::new(format!("there is no lab {name:?}{}; try: unslow lab ls", did_you_mean(name, &names))))
            }
        },
        None if all.is_empty() => Err(Error::new("there is no lab; try: unslow lab up")),
        None if all.len() == 1 => Ok(all.remove(0)),
        None => {
            let names: Vec<&str> = all.iter().map(|f| f.name.as_str()).collect();
            Err(Error::new(format!("there are {} labs; say which with --lab: {}", all.len(), names.join(", "))))
        }
    }
}

impl Found {
    /// Asks the lab's holder.
    pub fn ask(&self, request: &Request, patience: Duration) -> Result<Value, Error> {
        let gone = |e: &dyn std::fmt::Display| {
            Error::new(format!(
                "the lab {:?} does not answer ({e}); try: unslow lab down {} --force",
                self.name, self.name
            ))
        };
        if self.holder.is_none() {
            return Err(Error::new(format!(
                "the process that held the lab {:?} no longer exists; unslow lab down {} removes what it left",
                self.name, self.name
            )));
        }
        let mut stream = UnixStream::connect(self.dir.join(SOCKET)).map_err(|e| gone(&e))?;
        stream.set_read_timeout(Some(patience)).map_err(|e| gone(&e))?;
        let line = serde_json::to_string(request).map_err(|e| gone(&e))? + "\n";
        stream.write_all(line.as_bytes()).map_err(|e| gone(&e))?;
        let mut reply = String::new();
        BufReader::new(stream.take(LONGEST)).read_line(&mut reply).map_err(|e| gone(&e))?;
        let reply: Value = serde_json::from_str(&reply).map_err(|e| gone(&e))?;
        match reply.get("ok") {
            Some(value) => Ok(value.clone()),
            None => Err(Error::new(
                reply["error"].as_str().unwrap_or("the lab sent an answer that cannot be understood").to_string(),
            )),
        }
    }

    /// Everything about it.
    pub fn describe(&self) -> Result<Description, Error> {
        let value = self.ask(&Request::Describe, Duration::from_secs(60))?;
        serde_json::from_value(value).map_err(|e| Error::new(format!("the lab runs another version of unslow: {e}")))
    }

    /// Takes it down; `force` does not wait for its holder's consent.
    pub fn down(&self, force: bool) -> Result<(), Error> {
        if let Some(pid) = self.holder {
            let asked = if self.socket && !force {
                self.ask(&Request::Down, Duration::from_secs(30)).map(drop)
            } else {
                Err(Error::new("not asked"))
            };
            if asked.is_err() {
                if !self.socket && !force {
                    return Err(Error::new(format!(
                        "the lab {:?} belongs to process {pid}, a test or a demo, which takes it down itself; --force \
                         kills that process",
                        self.name
                    )));
                }
                end(pid);
            }
            let until = Instant::now() + Duration::from_secs(10);
            while self.owner.lives() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if self.owner.lives() {
                return Err(Error::new(format!("process {pid} of the lab {:?} did not exit", self.name)));
            }
        }
        self.clean()
    }

    /// Removes what a lab left whose holder is gone: programs in its namespaces, cgroups, its directory.
    pub fn clean(&self) -> Result<(), Error> {
        // Somebody else's of the same name by now?
        if place::all().iter().any(|(dir, owner)| *dir == self.dir && *owner != self.owner) || self.owner.lives() {
            return Ok(());
        }
        // Cookies and processes are of one boot; after another they would be strangers'.
        if self.owner.of_this_boot() {
            let cookies: Vec<u64> = fs::read_to_string(self.dir.join("namespaces"))
                .unwrap_or_default()
                .lines()
                .filter_map(|l| l.parse().ok())
                .collect();
            for pid in processes::of_lab(&processes::mark(&self.dir), &cookies) {
                end(pid);
            }
            cgroups::remove_leftovers(&self.name, self.owner.pid);
        }
        // A process that was just killed may still be creating its last file.
        let until = Instant::now() + Duration::from_secs(2);
        while self.dir.exists() {
            if let Err(e) = fs::remove_dir_all(&self.dir)
                && Instant::now() > until
            {
                return Err(Error::new(format!("{}: {e}; it is all that is left of the lab", self.dir.display())));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        forget_empty_dir();
        Ok(())
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

fn end(pid: u32) {
    // SAFETY: a plain system call; the caller has made sure whose pid it is.
    unsafe {
        libc::kill(pid as i32, libc::SIGKILL);
    }
}
