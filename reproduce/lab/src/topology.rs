//! A lab as data: zones and the paths between them, hosts, and what is deployed where.
//!
//! ```toml
//! name = "three-zones"
//!
//! [[zone]]
//! name = "zone-a"            # hosts: as many as the deployment needs, and one client
//! rtt = "0.1ms"
//! [[zone]]
//! name = "zone-b"
//!
//! [between]                  # every pair of zones, unless a [[link]] says otherwise
//! rtt = "1ms"
//! jitter = "0.1ms"
//!
//! [[link]]
//! from = "zone-a"
//! to = "zone-b"
//! loss = "0.1%"
//!
//! [deployment]
//! kind = "cluster"
//! masters = 3
//! replicas = 1
//! server = "valkey-9.1"
//! settings = { maxmemory = "100mb" }
//!
//! [[host]]                   # another server on one host, other settings, a bounded disk
//! name = "zone-b-host-1"
//! server = "redis-7.0"
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::Spanned;
use unslow_engine::Error;
use unslow_units::{Quantity, did_you_mean, parse_bit_rate, parse_bytes, parse_share, parse_time_within};

/// A lab, as the file says.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Name of the lab; `default` when left out.
    #[serde(default = "default_name")]
    pub name: String,
    /// Zones, in order; three when left out.
    #[serde(rename = "zone", default = "three_zones")]
    pub zones: Vec<Zone>,
    /// Between every two zones.
    #[serde(default = "across")]
    pub between: PathSpec,
    /// Exceptions.
    #[serde(default, rename = "link")]
    pub links: Vec<LinkSpec>,
    /// What runs.
    #[serde(default)]
    pub deployment: DeploymentSpec,
    /// Hosts that differ.
    #[serde(default, rename = "host")]
    pub hosts: Vec<HostSpec>,
    /// Seed of jitter and loss.
    #[serde(default)]
    pub seed: u64,
}

/// A zone.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Zone {
    /// Its name; hosts are `NAME-host-1`, clients `NAME-client-1`, and so on.
    pub name: String,
    /// Hosts for servers; as many as its share of the deployment when left out.
    pub hosts: Option<usize>,
    /// Hosts for clients.
    #[serde(default = "one")]
    pub clients: usize,
    /// Between two hosts of the zone.
    #[serde(default = "inside_rtt", deserialize_with = "duration")]
    pub rtt: Duration,
    /// Standard deviation of that round trip.
    #[serde(default, deserialize_with = "duration")]
    pub jitter: Duration,
    /// Each way.
    #[serde(default, deserialize_with = "share")]
    pub loss: f64,
    /// Each way.
    #[serde(default, deserialize_with = "share")]
    pub reorder: f64,
    /// Bits a second, all pairs of the zone together.
    #[serde(default, deserialize_with = "rate")]
    pub bandwidth: Option<u64>,
}

/// A path between zones; [`Zone`] has the same fields for its inside, because serde cannot refuse unknown fields of a
/// flattened struct. Loss, reordering and bandwidth are of each direction.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathSpec {
    /// Round trip.
    #[serde(default, deserialize_with = "duration")]
    pub rtt: Duration,
    /// Standard deviation of the round trip.
    #[serde(default, deserialize_with = "duration")]
    pub jitter: Duration,
    /// Share of packets.
    #[serde(default, deserialize_with = "share")]
    pub loss: f64,
    /// Share of packets that overtake.
    #[serde(default, deserialize_with = "share")]
    pub reorder: f64,
    /// Bits a second.
    #[serde(default, deserialize_with = "rate")]
    pub bandwidth: Option<u64>,
}

/// A path that differs from `between`; what it leaves out stays.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// A zone.
    pub from: Spanned<String>,
    /// Another.
    pub to: Spanned<String>,
    /// From `from` to `to` only.
    #[serde(default)]
    pub one_way: bool,
    /// Round trip.
    #[serde(default, deserialize_with = "optional_duration")]
    pub rtt: Option<Duration>,
    /// Standard deviation of the round trip.
    #[serde(default, deserialize_with = "optional_duration")]
    pub jitter: Option<Duration>,
    /// Share of packets.
    #[serde(default, deserialize_with = "optional_share")]
    pub loss: Option<f64>,
    /// Share of packets that overtake.
    #[serde(default, deserialize_with = "optional_share")]
    pub reorder: Option<f64>,
    /// Bits a second.
    #[serde(default, deserialize_with = "rate")]
    pub bandwidth: Option<u64>,
}

/// How the servers belong together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// One server.
    Standalone,
    /// One master with replicas.
    MasterReplica,
    /// The same, watched by Sentinels.
    Sentinel,
    /// Masters, each with replicas.
    #[default]
    Cluster,
    /// Hosts and wires alone.
    None,
}

/// What runs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeploymentSpec {
    /// How the servers belong together.
    pub kind: Kind,
    /// Of a cluster.
    pub masters: usize,
    /// Of each master.
    pub replicas: usize,
    /// With `kind = "standalone"`: servers that know nothing of each other, as Redlock wants five.
    pub independent: usize,
    /// Only with `kind = "sentinel"`.
    pub sentinels: usize,
    /// More than half of the Sentinels when left out.
    pub quorum: Option<usize>,
    /// An engine's name, `path`, or `/path/to/redis-server`.
    pub server: String,
    /// Lines of every server's configuration.
    pub settings: BTreeMap<String, Setting>,
    /// A host for each node: masters, then their first replicas, and so on. Otherwise masters go round the zones, and a
    /// replica stands in another zone than its master.
    pub placement: Option<Vec<Spanned<String>>>,
}

impl Default for DeploymentSpec {
    fn default() -> DeploymentSpec {
        DeploymentSpec {
            kind: Kind::Cluster,
            masters: 3,
            replicas: 1,
            independent: 1,
            sentinels: 3,
            quorum: None,
            server: "valkey-9.1".into(),
            settings: BTreeMap::new(),
            placement: None,
        }
    }
}

/// A host that differs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostSpec {
    /// One of the hosts that the zones make.
    pub name: Spanned<String>,
    /// The engine of its servers.
    pub server: Option<String>,
    /// More lines of their configuration.
    #[serde(default)]
    pub settings: BTreeMap<String, Setting>,
    /// Size of its disk, which is memory; 1 GiB when left out.
    #[serde(default, deserialize_with = "bytes")]
    pub disk: Option<u64>,
}

/// A value in the server's configuration.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// As it stands.
    Text(String),
    /// Without a unit.
    Number(i64),
    /// `yes` or `no`.
    Switch(bool),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Setting::Text(text) => f.write_str(text),
            Setting::Number(n) => write!(f, "{n}"),
            Setting::Switch(on) => f.write_str(if *on { "yes" } else { "no" }),
        }
    }
}

fn default_name() -> String {
    "default".into()
}

fn one() -> usize {
    1
}

fn inside_rtt() -> Duration {
    Duration::from_micros(100)
}

fn three_zones() -> Vec<Zone> {
    #[derive(Deserialize)]
    struct Zones {
        zone: Vec<Zone>,
    }
    let zones = ["zone-a", "zone-b", "zone-c"].map(|name| format!("[[zone]]\nname = {name:?}\n")).concat();
    toml::from_str::<Zones>(&zones).expect("our own text").zone
}

fn across() -> PathSpec {
    PathSpec { rtt: Duration::from_millis(1), ..PathSpec::default() }
}

/// Zones, hosts and servers a lab may have: addresses are 198.18.0.0/15 in parts of 4096.
pub const ZONES_MAX: usize = 15;
const HOSTS_MAX: usize = 250;
const SERVERS_MAX: usize = 500;
/// What a lab could not find its servers by if it were changed.
const OWN_SETTINGS: [&str; 6] = ["port", "dir", "logfile", "daemonize", "cluster-config-file", "cluster-announce-ip"];
/// A disk must hold a configuration file, and fit into memory.
const DISK: std::ops::RangeInclusive<u64> = 4096..=1 << 40;

impl Topology {
    /// Three zones, 0.1 ms inside, 1 ms across, a six-node Valkey cluster with replicas in other zones.
    pub fn standard() -> Topology {
        Topology::parse("").expect("our own text")
    }

    /// Reads a file's text; errors have line and column.
    pub fn parse(text: &str) -> Result<Topology, Error> {
        let topology: Topology = toml::from_str(text).map_err(|e| Error::new(e.to_string().trim_end().to_string()))?;
        topology.check(text)?;
        Ok(topology)
    }

    fn check(&self, text: &str) -> Result<(), Error> {
        let whole = |message: String| Err(Error::new(message));
        self.check_name()?;
        for zone in &self.zones {
            check_name(&zone.name)?;
        }
        if self.zones.is_empty() || self.zones.len() > ZONES_MAX {
            return whole(format!("{} zones: expected 1 to {ZONES_MAX}", self.zones.len()));
        }
        for (i, zone) in self.zones.iter().enumerate() {
            if self.zones[..i].iter().any(|z| z.name == zone.name) {
                return whole(format!("two zones are named {:?}", zone.name));
            }
        }
        let d = &self.deployment;
        if d.kind == Kind::Cluster && d.masters == 0 {
            return whole("a cluster needs at least one master; three are needed for failovers".into());
        }
        if d.kind == Kind::Sentinel && d.sentinels == 0 {
            return whole("kind = \"sentinel\" needs sentinels = 1 or more".into());
        }
        if d.quorum.is_some_and(|q| q == 0 || q > d.sentinels) {
            return whole(format!("quorum: expected between 1 and {} Sentinels", d.sentinels));
        }
        if d.independent == 0 || d.independent > SERVERS_MAX || (d.independent > 1 && d.kind != Kind::Standalone) {
            return whole(format!("independent = {}: kind = \"standalone\" takes 1 to {SERVERS_MAX}", d.independent));
        }
        let servers = d.masters.saturating_mul(d.replicas.saturating_add(1)).saturating_add(d.sentinels);
        if servers > SERVERS_MAX {
            return whole(format!("{servers} servers: at most {SERVERS_MAX} are allowed"));
        }
        for zone in &self.zones {
            for hosts in [zone.hosts.unwrap_or(0), zone.clients] {
                if hosts > HOSTS_MAX {
                    return whole(format!("zone {:?} has {hosts} hosts: at most {HOSTS_MAX} are allowed", zone.name));
                }
            }
        }
        let zones: Vec<&str> = self.zones.iter().map(|z| z.name.as_str()).collect();
        for end in self.links.iter().flat_map(|l| [&l.from, &l.to]) {
            if !zones.contains(&end.get_ref().as_str()) {
                return Err(located(
                    text,
                    end,
                    &format!("no zone {:?}{}", end.get_ref(), did_you_mean(end.get_ref(), &zones)),
                ));
            }
        }
        for link in &self.links {
            if link.from.get_ref() == link.to.get_ref() {
                let message = "a link leads from one zone to another; settings within a zone belong under [[zone]]";
                return Err(located(text, &link.to, message));
            }
        }
        let hosts = self.host_names();
        let names: Vec<&str> = hosts.iter().map(|(name, ..)| name.as_str()).collect();
        let placed = d.placement.iter().flatten();
        for name in self.hosts.iter().map(|h| &h.name).chain(placed) {
            if !names.contains(&name.get_ref().as_str()) {
                let message = format!("no host {:?}{}", name.get_ref(), did_you_mean(name.get_ref(), &names));
                return Err(located(text, name, &message));
            }
        }
        let settings = self.hosts.iter().flat_map(|h| h.settings.keys()).chain(d.settings.keys());
        for key in settings {
            if OWN_SETTINGS.contains(&key.as_str()) {
                return whole(format!(
                    "setting {key:?} is the lab's own: it decides where servers listen and keep their files"
                ));
            }
        }
        for (i, host) in self.hosts.iter().enumerate() {
            let name = host.name.get_ref();
            if self.hosts[..i].iter().any(|h| h.name.get_ref() == name) {
                return Err(located(text, &host.name, &format!("host {name:?} is described twice")));
            }
            if host.disk.is_some_and(|d| !DISK.contains(&d)) {
                return Err(located(text, &host.name, &format!("host {name:?}: expected a disk of 4kb to 1024gb")));
            }
        }
        if let Some(placement) = &d.placement
            && placement.len() != self.nodes()
        {
            return whole(format!("placement names {} hosts for {} nodes", placement.len(), self.nodes()));
        }
        for zone in &self.zones {
            let all = hosts.iter().filter(|(_, z, _)| self.zones[*z].name == zone.name).count();
            if all > HOSTS_MAX {
                return whole(format!("zone {:?} has {all} hosts: at most {HOSTS_MAX} are allowed", zone.name));
            }
        }
        if self.nodes() > 0 && !hosts.iter().any(|(.., client)| !client) {
            return whole("no zone has a host for the servers: hosts = 0 everywhere".into());
        }
        Ok(())
    }

    /// Whether its name can be one.
    pub fn check_name(&self) -> Result<(), Error> {
        check_name(&self.name)
    }

    /// Data nodes.
    pub fn nodes(&self) -> usize {
        let d = &self.deployment;
        match d.kind {
            Kind::None => 0,
            Kind::Standalone => d.independent,
            Kind::MasterReplica | Kind::Sentinel => 1 + d.replicas,
            Kind::Cluster => d.masters * (1 + d.replicas),
        }
    }

    /// Masters.
    pub fn masters(&self) -> usize {
        match self.deployment.kind {
            Kind::None => 0,
            Kind::Cluster => self.deployment.masters,
            Kind::Standalone => self.deployment.independent,
            _ => 1,
        }
    }

    /// Sentinels.
    pub fn sentinels(&self) -> usize {
        if self.deployment.kind == Kind::Sentinel { self.deployment.sentinels } else { 0 }
    }

    /// Zone of a node by its number: masters go round the zones, each replica one zone further than the one before it.
    fn zone_of(&self, node: usize) -> usize {
        let masters = self.masters().max(1);
        (node % masters + node / masters) % self.zones.len()
    }

    /// Name, zone and whether it is for clients, of every host.
    pub fn host_names(&self) -> Vec<(String, usize, bool)> {
        let mut all = Vec::new();
        for (z, zone) in self.zones.iter().enumerate() {
            let share = (0..self.nodes()).filter(|n| self.zone_of(*n) == z).count().max(1);
            let hosts = zone.hosts.unwrap_or(share);
            all.extend((1..=hosts).map(|i| (format!("{}-host-{i}", zone.name), z, false)));
            all.extend((1..=zone.clients).map(|i| (format!("{}-client-{i}", zone.name), z, true)));
        }
        all
    }

    /// Index into [`Topology::host_names`] for each node.
    pub fn placement(&self) -> Vec<usize> {
        let hosts = self.host_names();
        if let Some(names) = &self.deployment.placement {
            return names.iter().filter_map(|n| hosts.iter().position(|(h, ..)| h == n.get_ref())).collect();
        }
        let mut used = vec![0usize; hosts.len()];
        let place = |node: usize| {
            // The least used host of its zone; of any zone where that has none.
            let best = |zone: Option<usize>, used: &[usize]| {
                (0..hosts.len())
                    .filter(|h| !hosts[*h].2 && zone.is_none_or(|z| hosts[*h].1 == z))
                    .min_by_key(|h| (used[*h], *h))
            };
            let host = best(Some(self.zone_of(node)), &used).or_else(|| best(None, &used)).unwrap_or(0);
            used[host] += 1;
            host
        };
        (0..self.nodes()).map(place).collect()
    }

    /// Host of each Sentinel: one zone after another.
    pub fn sentinel_placement(&self) -> Vec<usize> {
        let hosts = self.host_names();
        (0..self.sentinels())
            .map(|s| {
                let zone = s % self.zones.len();
                let of = |z: Option<usize>| {
                    let all: Vec<usize> =
                        (0..hosts.len()).filter(|h| !hosts[*h].2 && z.is_none_or(|z| hosts[*h].1 == z)).collect();
                    all.get((s / self.zones.len()) % all.len().max(1)).copied()
                };
                of(Some(zone)).or_else(|| of(None)).unwrap_or(0)
            })
            .collect()
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let valid = (1..=32).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !name.starts_with('-');
    if valid {
        Ok(())
    } else {
        Err(Error::new(format!("invalid name {name:?}; expected a-z, 0-9 and -, at most 32 characters")))
    }
}

/// An error at a place in the text.
fn located(text: &str, at: &Spanned<String>, message: &str) -> Error {
    let before = &text[..at.span().start.min(text.len())];
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    Error::new(format!("line {line}, column {column}: {message}"))
}

/// No wire, fault or wait of a lab is longer.
const LONGEST: Duration = Duration::from_secs(86_400);

/// A duration up to a day.
pub fn parse_duration(text: &str) -> Result<Duration, unslow_units::Error> {
    parse_time_within(text, Duration::ZERO..=LONGEST)
}

/// Bits a second: a wire that carried less than a thousand would hold a single packet for seconds.
pub fn parse_rate(text: &str) -> Result<u64, unslow_units::Error> {
    match parse_bit_rate(text)? {
        bits if bits >= 1000 => Ok(bits),
        _ => Err(unslow_units::Error::Range {
            quantity: Quantity::BitRate,
            found: text.to_string(),
            allowed: "from 1 kbit on".into(),
        }),
    }
}

fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(d)?).map_err(D::Error::custom)
}

fn optional_duration<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    duration(d).map(Some)
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Share {
    Text(String),
    Number(f64),
}

fn share<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
    let text = match Share::deserialize(d)? {
        Share::Text(text) => text,
        Share::Number(n) => n.to_string(),
    };
    parse_share(&text).map_err(D::Error::custom)
}

fn optional_share<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
    share(d).map(Some)
}

fn rate<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    parse_rate(&String::deserialize(d)?).map(Some).map_err(D::Error::custom)
}

fn bytes<'de, D: Deserializer<'de>>(d: D) -> Result<Option<u64>, D::Error> {
    parse_bytes(&String::deserialize(d)?).map(Some).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_replicas_in_other_zones_than_their_masters() {
        let topology = Topology::standard();
        let hosts = topology.host_names();
        let placement = topology.placement();
        assert_eq!(placement.len(), 6);
        for master in 0..3 {
            assert_ne!(hosts[placement[master]].1, hosts[placement[master + 3]].1);
        }
        let mut alone = placement.clone();
        alone.dedup();
        assert_eq!(alone.len(), 6, "one host each");
    }

    #[test]
    fn tells_line_and_column_of_what_it_does_not_understand() {
        let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
        let unit = error("[[zone]]\nname = \"a\"\nrtt = \"1 parsec\"\n");
        assert!(unit.contains("line 3, column 7") && unit.contains("invalid duration \"1 parsec\""), "{unit}");
        let field = error("[[zone]]\nname = \"a\"\nrrt = \"1ms\"\n");
        assert!(field.contains("line 3, column 1") && field.contains("rrt"), "{field}");
        let zone = error("[[zone]]\nname = \"zone-a\"\n[[link]]\nfrom = \"zone-a\"\nto = \"zoen-a\"\n");
        assert!(zone.contains("line 5, column 6") && zone.contains("did you mean \"zone-a\""), "{zone}");
        let host = error("[[zone]]\nname = \"a\"\n[deployment]\nkind = \"standalone\"\nplacement = [\"a-host-7\"]\n");
        assert!(host.contains("line 5, column 14"), "{host}");
        let syntax = error("[[zone]\n");
        assert!(syntax.contains("line 1"), "{syntax}");
    }

    #[test]
    fn refuses_what_cannot_be() {
        let error = |text: &str| Topology::parse(text).unwrap_err().to_string();
        assert!(error("zone = []\n").contains("0 zones"));
        assert!(error("[[zone]]\nname = \"A b\"\n").contains("a-z"));
        assert!(error("[[zone]]\nname = \"a\"\nloss = 7\n").contains("invalid share \"7\""));
        assert!(error("[[zone]]\nname = \"a\"\nhosts = 0\n").contains("no zone has a host"));
        let port = "[[zone]]\nname = \"a\"\n[deployment]\nsettings = { port = 7000 }\n";
        assert!(error(port).contains("the lab's own"));
        let sentinels = "[[zone]]\nname = \"a\"\n[deployment]\nkind = \"sentinel\"\nquorum = 9\n";
        assert!(error(sentinels).contains("between 1 and 3"));
    }

    #[test]
    fn reads_the_example_of_its_own_page() {
        let source = include_str!("topology.rs");
        let example: String = source
            .lines()
            .skip_while(|l| !l.contains("```toml"))
            .skip(1)
            .take_while(|l| !l.contains("```"))
            .map(|l| l.trim_start_matches("//!").to_string() + "\n")
            .collect();
        let topology = Topology::parse(&example).unwrap();
        assert_eq!(topology.links[0].loss, Some(0.001));
        assert_eq!(topology.hosts[0].server.as_deref(), Some("redis-7.0"));
    }
}
