//! A running lab: hosts, wires and servers, from a topology. Dropping it takes everything down.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options};
use unslow_engine::{Deployment, Engine, Error, Member, Plan, Seat, Server, ServerSpec};
use unslow_units::did_you_mean;

use crate::place::Directory;
use crate::topology::{Kind, Topology};
use crate::wire::{self, Conditions, Rules, Wire};
use crate::{processes, shim};

/// Size of a host's disk where the topology does not say: a limit, not a reservation.
const DISK_BYTES: u64 = 1 << 30;

/// A device in this machine's own namespace that leads into a lab, and its address there.
pub type Door = (String, String);

/// Interface numbers of doors, one for each lab: far above those the kernel gives out by itself.
const DOORS: u32 = 600_000;

/// How to bring a lab up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Up {
    /// On loopback addresses, without namespaces: for those who may not make any.
    pub flat: bool,
    /// Give this machine's own namespace a device into the lab, so that any tool here can reach it.
    pub door: bool,
}

/// One host.
pub struct Host {
    /// Unique in the lab.
    pub name: String,
    /// Index into [`Lab::zones`].
    pub zone: usize,
    /// Its address.
    pub ip: String,
    /// For clients, not for servers.
    pub client: bool,
    /// Its namespaces; `None` in a flat lab.
    pub seat: Option<Arc<Seat>>,
}

/// A running lab.
pub struct Lab {
    /// Its name.
    pub name: String,
    /// Names of the zones.
    pub zones: Vec<String>,
    /// Its hosts; the door, if there is one, is a host of the wire but not of this list.
    pub hosts: Vec<Host>,
    /// Its servers.
    pub deployment: Deployment,
    /// Host of each data node, then of each Sentinel.
    pub places: Vec<usize>,
    /// What a flat lab cannot do, as sentences.
    pub missing: Vec<String>,
    /// How long it took to be ready.
    pub up: Duration,
    /// Where the machine itself stands in the lab: device and address.
    pub door: Option<Door>,
    /// What faults have changed and will put back, and which fault: nobody else may meanwhile.
    pub(crate) claims: Arc<Mutex<BTreeMap<String, String>>>,
    wire: Option<Arc<Wire>>,
    _claim: Claim,
    // Last: the mount points must be free of their hosts.
    dir: Directory,
}

/// A part of 198.18.0.0/15 (or 127.64.0.0/10 for a flat lab) that is ours as long as this lives: an abstract socket,
/// which the kernel frees whatever becomes of us, and which is known in the same namespace as the routes would be.
struct Claim {
    number: u32,
    _socket: std::os::unix::net::UnixListener,
}

impl Claim {
    fn take(flat: bool) -> Result<Claim, Error> {
        use std::os::linux::net::SocketAddrExt;
        let routes = fs::read_to_string("/proc/net/route").unwrap_or_default();
        for number in 0..32 {
            if !flat && routed(&routes, network(number)) {
                continue;
            }
            let kind = if flat { "flat" } else { "lab" };
            let bound = std::os::unix::net::SocketAddr::from_abstract_name(format!("unslow-{kind}-{number}"))
                .and_then(|a| std::os::unix::net::UnixListener::bind_addr(&a));
            if let Ok(socket) = bound {
                return Ok(Claim { number, _socket: socket });
            }
        }
        Err(Error::new("all 32 address ranges for labs (198.18.0.0/15 in parts of /20) are in use; try: unslow lab ls"))
    }
}

fn network(number: u32) -> u32 {
    Ipv4Addr::new(198, 18, 0, 0).to_bits() + (number << 12)
}

/// Whether a route other than the default leads into this /20.
fn routed(routes: &str, network: u32) -> bool {
    routes.lines().skip(1).any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Both are hexadecimal in the byte order of the machine.
        let number = |i: usize| words.get(i).and_then(|w| u32::from_str_radix(w, 16).ok()).map(u32::from_be);
        let (Some(destination), Some(mask)) = (number(1), number(7)) else { return false };
        let common = mask & (!0 << 12);
        mask != 0 && destination & common == network & common
    })
}

impl Lab {
    /// Brings it up; `progress` hears what is waited for. On an error nothing is left.
    pub fn up(topology: &Topology, how: Up, progress: &mut dyn FnMut(&str)) -> Result<Lab, Error> {
        let begun = Instant::now();
        let engines = engines(topology)?;
        if !how.flat {
            wire::allowed().map_err(|e| no_rights(&e))?;
        }
        let dir = Directory::make(&topology.name)?;
        let claim = Claim::take(how.flat)?;
        let names = topology.host_names();
        let mut hosts = Vec::new();
        let mut in_zone = vec![0u32; topology.zones.len()];
        for (name, zone, client) in names {
            in_zone[zone] += 1;
            let low = ((zone as u32 + 1) << 8) + in_zone[zone];
            let ip = if how.flat {
                Ipv4Addr::from_bits(Ipv4Addr::new(127, 64 + claim.number as u8, 0, 0).to_bits() + low)
            } else {
                Ipv4Addr::from_bits(network(claim.number) + low)
            };
            hosts.push(Host { name, zone, ip: ip.to_string(), client, seat: None });
        }
        let mut missing = Vec::new();
        let (mut wire, mut door) = (None, None);
        if how.flat {
            missing.push(
                "round trips, jitter, loss and bandwidth: every host is an address of this machine's loopback".into(),
            );
            missing.push("path and disk faults: partition, delay, loss, rate, full_disk".into());
        } else {
            progress(&format!("wiring {} hosts in {} zones", hosts.len(), topology.zones.len()));
            let (made, device) = wire_up(topology, how, claim.number, &mut hosts, &dir.0)?;
            wire = Some(made);
            door = device;
        }
        let placement = topology.placement();
        let sentinel_places = topology.sentinel_placement();
        let mut environment = shim::environment()?;
        // Children of a killed server are found by it.
        environment.push((processes::MARK.into(), processes::mark(&dir.0)));
        let base = how.flat.then(|| dir.0.clone());
        let plan = plan(topology, &engines, &hosts, &placement, &sentinel_places, base, &environment)?;
        let deployment = if plan.nodes.is_empty() {
            Deployment { nodes: Vec::new(), sentinels: Vec::new(), masters: 0 }
        } else {
            Deployment::build(&plan, progress)?
        };
        Ok(Lab {
            name: topology.name.clone(),
            zones: topology.zones.iter().map(|z| z.name.clone()).collect(),
            hosts,
            deployment,
            places: placement.into_iter().chain(sentinel_places).collect(),
            missing,
            up: begun.elapsed(),
            door,
            claims: Arc::default(),
            wire,
            _claim: claim,
            dir,
        })
    }

    /// Brings up a lab of a name nobody else has, with zones if that is allowed here and flat if not. For tests.
    pub fn start(topology: &Topology) -> Result<Lab, Error> {
        let flat = wire::allowed().is_err();
        Lab::unnamed(topology, Up { flat, door: !flat })
    }

    /// The same on loopback addresses, whatever is allowed.
    pub fn start_flat(topology: &Topology) -> Result<Lab, Error> {
        Lab::unnamed(topology, Up { flat: true, door: false })
    }

    fn unnamed(topology: &Topology, how: Up) -> Result<Lab, Error> {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        // Nobody will ever start a lab of such a name again: what a killed process left goes here or never.
        for dead in crate::found::all().into_iter().filter(|f| f.holder.is_none() && is_unnamed(&f.name)) {
            let _ = dead.clean(); // what stays is nothing to this one
        }
        let mut topology = topology.clone();
        topology.name = format!("t{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        Lab::up(&topology, how, &mut |_| {})
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir.0
    }

    /// The wire, where there is one.
    pub fn wire(&self) -> Result<&Arc<Wire>, Error> {
        self.wire.as_ref().ok_or_else(|| {
            Error::new("this lab is flat: there is no wire between its hosts; wires need root or a user namespace")
        })
    }

    /// Every server with its name and host.
    pub fn servers(&self) -> impl Iterator<Item = (&Arc<Server>, &Host)> {
        let all = self.deployment.nodes.iter().chain(&self.deployment.sentinels);
        all.zip(self.places.iter().map(|p| &self.hosts[*p]))
    }

    /// A URL that leads to all of it, from a host of the lab or through the door.
    pub fn url(&self) -> String {
        self.deployment.url()
    }

    /// Host number of a server.
    pub fn host_of(&self, server: &Arc<Server>) -> usize {
        self.servers().position(|(s, _)| Arc::ptr_eq(s, server)).map_or(0, |i| self.places[i])
    }

    /// A client host in this zone, or the next one that has one.
    pub fn client_in(&self, zone: usize) -> Option<&Host> {
        let zones = self.zones.len();
        (0..zones).find_map(|z| self.hosts.iter().find(|h| h.client && h.zone == (zone + z) % zones))
    }

    /// Opens a connection to a server from a host, over the wire.
    pub fn connect(&self, from: &Host, to: &Server, options: &Options) -> Result<Connection, Error> {
        let open = || Connection::open(&to.target(), options);
        Ok(match &from.seat {
            Some(seat) => seat.run(open).map_err(|e| Error::new(format!("{}: {e}", from.name)))??,
            None => open()?,
        })
    }

    /// Has a command run on a host of the lab, in this process's working directory.
    pub fn place(&self, host: &Host, command: &mut std::process::Command) -> Result<(), Error> {
        let here = std::env::current_dir().unwrap_or_else(|_| "/".into());
        match &host.seat {
            Some(seat) => seat.place(command, &here).map_err(|e| Error::new(format!("{}: {e}", host.name))),
            None => Ok(()),
        }
    }

    /// Lays a plain veth pair between two hosts, beside the wire: no process of ours carries what takes it. Returns
    /// their addresses on it. A host can have one.
    pub fn veth(&self, from: &Host, to: &Host) -> Result<[Ipv4Addr; 2], Error> {
        const DEVICE: &str = "veth0";
        const ENDS: [Ipv4Addr; 2] = [Ipv4Addr::new(169, 254, 77, 1), Ipv4Addr::new(169, 254, 77, 2)];
        self.wire()?;
        let failed = |host: &Host, e: io::Error| Error::new(format!("a veth device of {}: {e}", host.name));
        let inside = |host: &Host, body: &(dyn Fn() -> io::Result<()> + Sync)| {
            let seat = host.seat.as_ref().ok_or_else(|| Error::new(format!("{} has no network", host.name)))?;
            seat.run(body).and_then(|done| done).map_err(|e| failed(host, e))
        };
        let door = to.seat.as_ref().map(|seat| fs::File::open(seat.doors().0)).transpose();
        let door = door.map_err(|e| failed(to, e))?;
        let other = door.as_ref().ok_or_else(|| Error::new(format!("{} has no network", to.name)))?.as_raw_fd();
        inside(from, &|| wire::link::pair(DEVICE, other))?;
        inside(from, &|| wire::link::address(DEVICE, ENDS[0], 30))?;
        inside(to, &|| wire::link::address(DEVICE, ENDS[1], 30))?;
        Ok(ENDS)
    }

    /// What packets between two hosts meet.
    pub fn between(&self, from: usize, to: usize) -> Option<Conditions> {
        self.wire.as_ref().map(|w| w.between(from, to))
    }

    /// What the wire did so far.
    pub fn wire_stats(&self) -> Option<wire::WireStats> {
        self.wire.as_ref().map(|w| w.stats())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for (server, _) in self.servers() {
            server.kill();
        }
        // Programs of the user's own, and children of the servers.
        let namespaces: BTreeSet<PathBuf> =
            self.hosts.iter().filter_map(|h| fs::read_link(h.seat.as_ref()?.doors().0).ok()).collect();
        for pid in processes::inside(&namespaces, &processes::mark(&self.dir.0)) {
            // SAFETY: a plain system call; the namespaces are held by us and the mark is ours, so who has either is of
            // this lab.
            unsafe {
                libc::kill(pid as i32, libc::SIGKILL);
            }
        }
        if let Some((device, _)) = &self.door {
            let _ = wire::link::remove(device);
        }
    }
}

fn no_rights(e: &io::Error) -> Error {
    Error::new(format!(
        "network namespaces and packet sockets are not allowed here ({e}); run it as root, or as a user who may \
         create user namespaces, or with --flat for a lab on loopback addresses without round trips"
    ))
}

/// Every engine the topology names, found or installed.
fn engines(topology: &Topology) -> Result<BTreeMap<String, Engine>, Error> {
    let mut all = BTreeMap::new();
    if topology.nodes() == 0 {
        return Ok(all);
    }
    let names = topology.hosts.iter().filter_map(|h| h.server.as_ref());
    for name in std::iter::once(&topology.deployment.server).chain(names) {
        if !all.contains_key(name) {
            all.insert(name.clone(), unslow_engine::find(name)?);
        }
    }
    Ok(all)
}

/// Makes the wire and every host's seat; the door last.
fn wire_up(
    topology: &Topology,
    how: Up,
    number: u32,
    hosts: &mut [Host],
    dir: &Path,
) -> Result<(Arc<Wire>, Option<Door>), Error> {
    let mut addresses: Vec<Ipv4Addr> = hosts.iter().filter_map(|h| h.ip.parse().ok()).collect();
    let mut host_zone: Vec<usize> = hosts.iter().map(|h| h.zone).collect();
    let door_ip = Ipv4Addr::from_bits(network(number) + 1);
    addresses.push(door_ip);
    host_zone.push(0);
    let rules = Rules { zones: conditions(topology), host_zone, changes: BTreeMap::new() };
    let failed = |what: &str, e: io::Error| Error::new(format!("{what}: {e}"));
    let wire = Arc::new(Wire::new(addresses.clone(), rules, topology.seed).map_err(|e| failed("the wire", e))?);
    let hosts_file = dir.join("hosts");
    fs::write(&hosts_file, hosts_text(hosts, topology)).map_err(|e| failed(&hosts_file.display().to_string(), e))?;
    for (i, host) in hosts.iter_mut().enumerate() {
        let disk = dir.join(&host.name);
        fs::create_dir(&disk).map_err(|e| failed(&disk.display().to_string(), e))?;
        let bytes = topology.hosts.iter().find(|h| *h.name.get_ref() == host.name).and_then(|h| h.disk);
        let seat = Seat::make(&disk, bytes.unwrap_or(DISK_BYTES), Some(&hosts_file), || {
            wire::link::loopback_up()?;
            wire.attach(i, "eth0", 2, addresses[i])
        });
        host.seat = Some(Arc::new(seat.map_err(|e| failed(&host.name, e))?));
    }
    let mut cookies = String::new();
    for seat in hosts.iter().filter_map(|h| h.seat.as_ref()) {
        // Kernels before 5.14 have none; then leftovers are found by their mark alone.
        if let Ok(Ok(cookie)) = seat.run(processes::cookie) {
            cookies += &format!("{cookie}\n");
        }
    }
    fs::write(dir.join("namespaces"), cookies).map_err(|e| failed("the list of namespaces", e))?;
    let mut door = None;
    if how.door {
        let device = format!("unslow{number}");
        wire.attach(addresses.len() - 1, &device, DOORS + number, door_ip)
            .map_err(|e| failed(&format!("device {device}, this machine's door into the lab"), e))?;
        door = Some((device, door_ip.to_string()));
    }
    Ok((wire, door))
}

/// Every host and node by name, for /etc/hosts inside.
fn hosts_text(hosts: &[Host], topology: &Topology) -> String {
    let mut text = "127.0.0.1 localhost\n".to_string();
    let placement = topology.placement();
    for (i, host) in hosts.iter().enumerate() {
        text += &format!("{} {}", host.ip, host.name);
        for node in placement.iter().enumerate().filter(|(_, p)| **p == i).map(|(n, _)| n + 1) {
            text += &format!(" node-{node}");
        }
        text += "\n";
    }
    text
}

/// Of each zone towards each zone.
fn conditions(topology: &Topology) -> Vec<Vec<Conditions>> {
    let n = topology.zones.len();
    let between = &topology.between;
    let mut all = vec![vec![Conditions::default(); n]; n];
    for (a, row) in all.iter_mut().enumerate() {
        for (b, place) in row.iter_mut().enumerate() {
            let zone = &topology.zones[a];
            let (rtt, jitter, loss, reorder, bandwidth) = if a == b {
                (zone.rtt, zone.jitter, zone.loss, zone.reorder, zone.bandwidth)
            } else {
                (between.rtt, between.jitter, between.loss, between.reorder, between.bandwidth)
            };
            *place = Conditions { loss, reorder, rate_bits_per_s: bandwidth, ..Conditions::round_trip(rtt, jitter) };
        }
    }
    for link in &topology.links {
        let index = |name: &str| topology.zones.iter().position(|z| z.name == name).unwrap_or(0);
        let (a, b) = (index(link.from.get_ref()), index(link.to.get_ref()));
        let mut set = |a: usize, b: usize| {
            let place = &mut all[a][b];
            if let Some(rtt) = link.rtt {
                place.delay = rtt / 2;
            }
            if let Some(jitter) = link.jitter {
                place.jitter = Conditions::round_trip(Duration::ZERO, jitter).jitter;
            }
            place.loss = link.loss.unwrap_or(place.loss);
            place.reorder = link.reorder.unwrap_or(place.reorder);
            place.rate_bits_per_s = link.bandwidth.or(place.rate_bits_per_s);
        };
        set(a, b);
        if !link.one_way {
            set(b, a);
        }
    }
    all
}

/// What to start where.
fn plan(
    topology: &Topology,
    engines: &BTreeMap<String, Engine>,
    hosts: &[Host],
    placement: &[usize],
    sentinel_places: &[usize],
    base: Option<PathBuf>,
    environment: &[(String, String)],
) -> Result<Plan, Error> {
    let flat = base.is_some();
    let d = &topology.deployment;
    let mut on_host: BTreeMap<(usize, bool), u16> = BTreeMap::new();
    let mut member = |name: String, place: usize, sentinel: bool| -> Result<Member, Error> {
        let host = &hosts[place];
        let own = topology.hosts.iter().find(|h| *h.name.get_ref() == host.name);
        let engine = own.and_then(|h| h.server.as_ref()).unwrap_or(&d.server);
        let engine = engines.get(engine).ok_or_else(|| Error::new(format!("no engine {engine:?}")))?.clone();
        let used = on_host.entry((place, sentinel)).or_default();
        let port = if flat {
            unslow_engine::free_port(&host.ip)?
        } else if sentinel {
            26379 + *used
        } else {
            6379 + *used
        };
        *used += 1;
        if flat && let Err(e) = TcpListener::bind((host.ip.as_str(), port)) {
            let address = unslow_topology::join_host_port(&host.ip, port);
            return Err(Error::new(format!("{address} is not free: {e}")));
        }
        let mut settings = Vec::new();
        if !sentinel {
            let lines = d.settings.iter().chain(own.iter().flat_map(|h| &h.settings));
            settings.extend(lines.map(|(k, v)| (k.clone(), v.to_string())));
        }
        let spec = ServerSpec {
            seat: host.seat.clone(),
            base: base.clone(),
            name,
            ip: host.ip.clone(),
            port: Some(port),
            settings,
            sentinel,
            env: environment.to_vec(),
            files: vec![shim::control_file()],
        };
        Ok(Member { engine, spec })
    };
    let nodes: Vec<Member> = placement
        .iter()
        .enumerate()
        .map(|(i, place)| member(format!("node-{}", i + 1), *place, false))
        .collect::<Result<_, _>>()?;
    let sentinels: Vec<Member> = sentinel_places
        .iter()
        .enumerate()
        .map(|(i, place)| member(format!("sentinel-{}", i + 1), *place, true))
        .collect::<Result<_, _>>()?;
    let quorum = d.quorum.unwrap_or(topology.sentinels() / 2 + 1);
    Ok(Plan { nodes, masters: topology.masters(), cluster: d.kind == Kind::Cluster, sentinels, quorum })
}

/// The host of this name.
pub fn host<'a>(lab: &'a Lab, name: &str) -> Result<&'a Host, Error> {
    lab.hosts.iter().find(|h| h.name == name).ok_or_else(|| {
        let names: Vec<&str> = lab.hosts.iter().map(|h| h.name.as_str()).collect();
        Error::new(format!("no host {name:?} in lab {}{}", lab.name, did_you_mean(name, &names)))
    })
}

/// Whether it is a name that [`Lab::start`] gave: `tPID-NUMBER`.
fn is_unnamed(name: &str) -> bool {
    let parts = name.strip_prefix('t').and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(pid, n)| pid.parse::<u32>().is_ok() && n.parse::<u32>().is_ok())
}
