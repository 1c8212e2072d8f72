//! A drill as data: a lab, a load, faults on a time line, what is expected; and variants that change some of it, side
//! by side.
//!
//! ```toml
//! about = "A master dies; its replica must take over."
//!
//! [lab]                              # as of `unslow lab up FILE`
//! zone = [{ name = "zone-a" }, { name = "zone-b" }, { name = "zone-c" }]
//! [lab.deployment]
//! kind = "cluster"
//! settings = { cluster-node-timeout = 2000 }
//!
//! [load]
//! follows = 2                        # clients of each shard that ask for the new master
//! stays = 1                          # clients that stay with the first master's address
//! rate_per_s = 250                   # of each
//!
//! [[fault]]
//! at = "2s"
//! for = "8s"                         # then it is healed; without it, at the end
//! do = ["kill", "hang", "partition"] # several: a run of the drill for each
//! who = "master"
//!
//! [expect]                           # what is left out is measured and told
//! window = "6s"
//!
//! [[variant]]
//! name = "default"
//! [[variant]]
//! name = "WAIT 1"
//! load = { wait = 1 }                # merged over the above; `settings` is short for lab.deployment.settings
//! ```

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use toml::{Table, Value};
use unslow_lab::faults;
use unslow_lab::topology::{Topology, parse_duration};
use unslow_units::did_you_mean;

use crate::error::{BadDrill, BadPlan, Error, TooManyOperations};

/// What a load does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Sets, registers and registers that many write.
    #[default]
    Writes,
    /// Locks: SET NX PX, released by compare-and-delete.
    Locks,
}

/// Who works on the deployment meanwhile.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Load {
    /// What they do.
    pub kind: Kind,
    /// Clients of each shard that ask who is master when theirs fails.
    pub follows: usize,
    /// Clients that stay with the address of the first shard's master.
    pub stays: usize,
    /// Clients of each shard that read from its replicas.
    pub reads_replicas: usize,
    /// Where clients run: names of zones; all when left out.
    pub zones: Vec<String>,
    /// Operations of each client.
    pub rate_per_s: f64,
    /// How long a client waits for an answer.
    #[serde(deserialize_with = "duration")]
    pub timeout: Duration,
    /// A write counts when so many replicas have it (WAIT).
    pub wait: u32,
    /// How many locks there are to fight for.
    pub locks: u32,
    /// Their time to live.
    #[serde(deserialize_with = "duration")]
    pub ttl: Duration,
    /// How long a holder works.
    #[serde(deserialize_with = "duration")]
    pub hold: Duration,
    /// A holder stops for this long in the middle of its work, now and then, as in a collection of garbage.
    #[serde(deserialize_with = "duration")]
    pub pause: Duration,
    /// The lock is taken on more than half of all servers (Redlock).
    pub redlock: bool,
}

impl Default for Load {
    fn default() -> Load {
        Load {
            kind: Kind::Writes,
            follows: 2,
            stays: 1,
            reads_replicas: 0,
            zones: Vec::new(),
            rate_per_s: 250.0,
            timeout: Duration::from_millis(200),
            wait: 0,
            locks: 6,
            ttl: Duration::from_secs(8),
            hold: Duration::from_secs(3),
            pause: Duration::ZERO,
            redlock: false,
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a fault's name, or a list of names")]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

/// A fault on the time line.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultSpec {
    /// When it begins; the load has run for that long.
    #[serde(deserialize_with = "duration")]
    pub at: Duration,
    /// How long it lasts; to the end when left out.
    #[serde(default, rename = "for", deserialize_with = "optional_duration")]
    pub lasts: Option<Duration>,
    #[serde(rename = "do")]
    what: OneOrMore,
    /// What it is done to: as of `unslow lab fault`.
    pub who: Option<String>,
    /// Its number, where it takes one.
    pub value: Option<String>,
}

impl FaultSpec {
    /// Its alternatives; one name when there is no choice.
    pub fn names(&self) -> &[String] {
        match &self.what {
            OneOrMore::One(name) => std::slice::from_ref(name),
            OneOrMore::More(names) => names,
        }
    }
}

/// Faults of drills alone, beside those of the lab.
pub const OWN_FAULTS: &[(&str, &str)] = &[(
    "rolling_restart",
    "every server is restarted, one after another; with value = \"failover\" each master's replica takes over before \
     the restart",
)];

/// What must hold. What is left out is measured and told.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Expect {
    /// The longest time a client that follows is without an acknowledged operation.
    #[serde(deserialize_with = "optional_duration")]
    pub window: Option<Duration>,
    /// Acknowledged writes lost, of clients that follow.
    pub lost_writes: Option<u64>,
    /// The same of clients that stay.
    pub lost_writes_stays: Option<u64>,
    /// No write that was acknowledged later than this after the fault began is lost, of any client.
    #[serde(deserialize_with = "optional_duration")]
    pub lost_within: Option<Duration>,
    /// But for so many.
    pub lost_later: Option<u64>,
    /// At least so many are lost: a drill that shows a loss must find it.
    pub lost_writes_at_least: Option<u64>,
    /// Whether registers that many write are linearizable for clients that follow.
    pub linearizable: Option<bool>,
    /// The longest by which a read of a replica may be too late.
    #[serde(deserialize_with = "optional_duration")]
    pub stale: Option<Duration>,
    /// Reads that go back behind an earlier one of the same client.
    pub time_travel: Option<u64>,
    /// Pairs of holders of a lock at the same time.
    pub double_holders: Option<u64>,
    /// Late uses that the resource took all the same.
    pub late_uses_taken: Option<u64>,
    /// From the end of the fault until every shard has its master and its replicas again.
    #[serde(deserialize_with = "optional_duration")]
    pub redundant: Option<Duration>,
}

/// A history of so many takes some gigabytes.
const OPERATIONS_MAX: f64 = 30e6;

impl Expect {
    /// Whether every expectation can be judged with such a load: one that is never looked at would pass.
    fn fits(&self, kind: Kind) -> Result<(), BadPlan> {
        let of_writes = [
            ("window", self.window.is_some()),
            ("lost_writes", self.lost_writes.is_some()),
            ("lost_writes_stays", self.lost_writes_stays.is_some()),
            ("lost_within", self.lost_within.is_some()),
            ("lost_later", self.lost_later.is_some()),
            ("lost_writes_at_least", self.lost_writes_at_least.is_some()),
            ("linearizable", self.linearizable.is_some()),
            ("stale", self.stale.is_some()),
            ("time_travel", self.time_travel.is_some()),
        ];
        let of_locks =
            [("double_holders", self.double_holders.is_some()), ("late_uses_taken", self.late_uses_taken.is_some())];
        let (wrong, load) = match kind {
            Kind::Writes => (&of_locks[..], "writes"),
            Kind::Locks => (&of_writes[..], "locks"),
        };
        if let Some((name, _)) = wrong.iter().find(|(_, is)| *is) {
            return Err(BadPlan::NotShown { name, load });
        }
        if self.lost_later.is_some() && self.lost_within.is_none() {
            return Err(BadPlan::LaterThanWhat);
        }
        if self.linearizable == Some(false) {
            return Err(BadPlan::NotLinearizable);
        }
        Ok(())
    }
}

/// A drill with a variant merged in: what one run needs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// What it shows, as a sentence.
    pub about: String,
    #[serde(default)]
    lab: Table,
    /// Who works meanwhile.
    #[serde(default)]
    pub load: Load,
    /// What happens when.
    #[serde(default, rename = "fault")]
    pub faults: Vec<FaultSpec>,
    /// What must hold.
    #[serde(default)]
    pub expect: Expect,
    /// Settings of the Sentinels (SENTINEL SET), such as `down-after-milliseconds`.
    #[serde(default)]
    pub sentinel: Table,
    /// How long the load goes on once everything is healed.
    #[serde(default = "two_seconds", deserialize_with = "duration")]
    pub after: Duration,
    /// The lab that `lab` describes.
    #[serde(skip)]
    pub topology: Option<Topology>,
    /// Whether its variant changes the servers: then it says nothing of a deployment that runs as it is.
    #[serde(skip)]
    pub changes_servers: bool,
}

fn two_seconds() -> Duration {
    Duration::from_secs(2)
}

/// A drill: its variants, each a whole plan.
#[derive(Clone, Debug)]
pub struct Drill {
    /// Its name: the file's.
    pub name: String,
    /// What it shows.
    pub about: String,
    /// Each with its name.
    pub variants: Vec<(String, Plan)>,
    /// What its variants are merged over: how it is played against a deployment that is what it is.
    pub base: Option<Plan>,
    /// The text it was read from.
    pub text: String,
}

impl Drill {
    /// Reads a file's text.
    pub fn parse(name: &str, text: &str) -> Result<Drill, BadDrill> {
        let failed = |why: BadPlan| BadDrill { drill: name.into(), variant: None, why: Box::new(why) };
        let mut base: Table = toml::from_str(text).map_err(|e| failed(syntax(&e)))?;
        let variants = match base.remove("variant") {
            None => vec![Table::from_iter([("name".to_string(), Value::from("as it is"))])],
            Some(Value::Array(all)) => all
                .into_iter()
                .map(|v| match v {
                    Value::Table(t) => Ok(t),
                    _ => Err(failed(BadPlan::VariantNoTable)),
                })
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(failed(BadPlan::VariantNoList)),
        };
        let whole = Plan::read(base.clone()).ok();
        let mut plans = Vec::new();
        for mut variant in variants {
            let Some(Value::String(label)) = variant.remove("name") else {
                return Err(failed(BadPlan::VariantNameless));
            };
            if let Some(settings) = variant.remove("settings") {
                let under = Table::from_iter([("settings".to_string(), settings)]);
                let lab = Table::from_iter([("deployment".to_string(), Value::Table(under))]);
                merge(&mut variant, Table::from_iter([("lab".to_string(), Value::Table(lab))]));
            }
            let changes_servers = ["lab", "sentinel"].iter().any(|key| variant.contains_key(*key));
            let mut whole = base.clone();
            merge(&mut whole, variant);
            let within = |why| BadDrill { variant: Some(label.clone()), ..failed(why) };
            let mut plan = Plan::read(whole).map_err(within)?;
            plan.changes_servers = changes_servers;
            if plans.iter().any(|(l, _)| *l == label) {
                return Err(failed(BadPlan::VariantTwice(label)));
            }
            plans.push((label, plan));
        }
        let about = plans.first().map_or(String::new(), |(_, p): &(String, Plan)| p.about.clone());
        Ok(Drill { name: name.into(), about, variants: plans, base: whole, text: text.into() })
    }

    /// The alternatives of its faults over all variants: `kill`, `hang`, and so on.
    pub fn alternatives(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for name in self.variants.iter().flat_map(|(_, p)| p.alternatives()) {
            if !all.contains(&name) {
                all.push(name);
            }
        }
        all
    }
}

impl Plan {
    /// How long a hang of this drill lasts; eight seconds where it has none with an end.
    pub fn hang(&self) -> Duration {
        let hangs = |f: &&FaultSpec| f.names().iter().any(|n| n == "hang");
        self.faults.iter().filter(hangs).find_map(|f| f.lasts).unwrap_or(Duration::from_secs(8))
    }

    fn read(table: Table) -> Result<Plan, BadPlan> {
        let mut plan: Plan = table.try_into().map_err(|e: toml::de::Error| syntax(&e))?;
        for fault in &plan.faults {
            for name in fault.names() {
                if !OWN_FAULTS.iter().any(|(own, _)| own == name) {
                    faults::named(name)?;
                }
            }
            if fault.names().is_empty() {
                return Err(BadPlan::FaultEmpty);
            }
        }
        if plan.faults.iter().filter(|f| f.names().len() > 1).count() > 1 {
            return Err(BadPlan::AlternativesTwice);
        }
        let load = &plan.load;
        if !(0.1..=10_000.0).contains(&load.rate_per_s) {
            return Err(BadPlan::Rate(load.rate_per_s));
        }
        let shortest = Duration::from_millis(100);
        if load.kind == Kind::Locks && (!(1..=1000).contains(&load.locks) || load.ttl < shortest) {
            return Err(BadPlan::Locks);
        }
        let clients = [load.follows, load.stays, load.reads_replicas];
        if clients.iter().all(|n| *n == 0) || clients.iter().any(|n| *n > 64) {
            return Err(BadPlan::Clients);
        }
        plan.expect.fits(load.kind)?;
        let unknown = |f: &&FaultSpec| f.names().iter().any(|n| n == "rolling_restart");
        if let Some(value) =
            plan.faults.iter().filter(unknown).filter_map(|f| f.value.as_deref()).find(|v| *v != "failover")
        {
            return Err(BadPlan::RestartValue(value.into()));
        }
        let zones = load.zones.clone();
        let mut lab = plan.lab.clone();
        lab.entry("zone").or_insert_with(|| {
            let zones = ["zone-a", "zone-b", "zone-c"];
            zones
                .iter()
                .map(|z| Value::Table(Table::from_iter([("name".to_string(), Value::from(*z))])))
                .collect::<Vec<_>>()
                .into()
        });
        let text = toml::to_string(&lab).map_err(|e| BadPlan::Syntax(e.to_string()))?;
        let topology = Topology::parse(&text).map_err(|e| BadPlan::Lab(e.to_string().trim_end().into()))?;
        let names: Vec<&str> = topology.zones.iter().map(|z| z.name.as_str()).collect();
        if let Some(zone) = zones.iter().find(|z| !names.contains(&z.as_str())) {
            return Err(BadPlan::UnknownZone { zone: zone.clone(), hint: did_you_mean(zone, &names) });
        }
        plan.fits(topology.deployment.masters.max(1) as usize)?;
        plan.topology = Some(topology);
        Ok(plan)
    }

    /// What is seen of every operation stays in memory until it is judged.
    pub fn fits(&self, shards: usize) -> Result<(), TooManyOperations> {
        let clients = self.load.follows + self.load.stays + self.load.reads_replicas;
        let seconds = (self.end() + self.after).as_secs_f64() + 60.0;
        let operations = (shards * clients) as f64 * self.load.rate_per_s * seconds;
        if operations > OPERATIONS_MAX { Err(TooManyOperations { operations, most: OPERATIONS_MAX }) } else { Ok(()) }
    }

    /// The names of the fault that has several.
    pub fn alternatives(&self) -> Vec<&str> {
        let several = self.faults.iter().max_by_key(|f| f.names().len());
        several.map_or(Vec::new(), |f| f.names().iter().map(String::as_str).collect())
    }

    /// When the last fault ends.
    pub fn end(&self) -> Duration {
        self.faults.iter().map(|f| f.at + f.lasts.unwrap_or_default()).max().unwrap_or_default()
    }
}

/// Merges tables into each other; anything else replaces what was there.
fn merge(into: &mut Table, from: Table) {
    for (key, value) in from {
        match (into.get_mut(&key), value) {
            (Some(Value::Table(old)), Value::Table(new)) => merge(old, new),
            (_, value) => drop(into.insert(key, value)),
        }
    }
}

/// What TOML says of a text, without the line break behind it.
fn syntax(e: &toml::de::Error) -> BadPlan {
    BadPlan::Syntax(e.to_string().trim_end().into())
}

fn duration<'de, D: Deserializer<'de>>(d: D) -> Result<Duration, D::Error> {
    parse_duration(&String::deserialize(d)?).map_err(D::Error::custom)
}

fn optional_duration<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Duration>, D::Error> {
    duration(d).map(Some)
}

/// The drill of real clients: [`crate::shootout`] runs it.
pub const CLIENT_RECOVERY: &str = "client_recovery";

/// Drills that come with unslow: those of the folder `drills/`.
pub const BUILT_IN: &[(&str, &str)] = &[
    ("cluster_failover", include_str!("../../../drills/cluster_failover.toml")),
    ("sentinel_failover", include_str!("../../../drills/sentinel_failover.toml")),
    ("split_brain", include_str!("../../../drills/split_brain.toml")),
    ("reshard_under_load", include_str!("../../../drills/reshard_under_load.toml")),
    ("rolling_restart", include_str!("../../../drills/rolling_restart.toml")),
    ("zone_loss", include_str!("../../../drills/zone_loss.toml")),
    ("lock_safety", include_str!("../../../drills/lock_safety.toml")),
    ("replica_reads", include_str!("../../../drills/replica_reads.toml")),
    (CLIENT_RECOVERY, include_str!("../../../drills/client_recovery.toml")),
];

/// No drill is longer.
const FILE_MAX: u64 = 1 << 20;

/// The drill of this name, or in this file.
pub fn find(name: &str) -> Result<Drill, Error> {
    if let Some((name, text)) = BUILT_IN.iter().find(|(n, _)| *n == name) {
        return Ok(Drill::parse(name, text)?);
    }
    let path = std::path::Path::new(name);
    if name.ends_with(".toml") || path.is_file() {
        if std::fs::metadata(path).is_ok_and(|m| m.len() > FILE_MAX) {
            return Err(Error::NoDrill { path: path.into(), most: FILE_MAX });
        }
        let text = std::fs::read_to_string(path).map_err(|why| Error::File { path: path.into(), why })?;
        let stem = path.file_stem().map_or(name.to_string(), |s| s.to_string_lossy().into_owned());
        return Ok(Drill::parse(&stem, &text)?);
    }
    let names: Vec<&str> = BUILT_IN.iter().map(|(n, _)| *n).collect();
    let meant = did_you_mean(&name.to_lowercase(), &names);
    let hint = format!("{meant}; your own drill is a file that ends in .toml");
    Err(Error::UnknownName { what: "drill", name: name.into(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drill_that_comes_with_it_can_be_read() {
        for (name, text) in BUILT_IN {
            let drill = Drill::parse(name, text).unwrap();
            assert!(!drill.about.is_empty() && !drill.variants.is_empty(), "{name}");
            assert!(drill.variants.iter().all(|(_, p)| p.topology.is_some()), "{name}");
        }
    }

    #[test]
    fn the_example_of_its_own_page_can_be_read() {
        let example: String = include_str!("spec.rs")
            .lines()
            .skip_while(|l| !l.contains("```toml"))
            .skip(1)
            .take_while(|l| !l.contains("```"))
            .map(|l| l.trim_start_matches("//!").to_string() + "\n")
            .collect();
        let drill = Drill::parse("example", &example).unwrap();
        assert_eq!(drill.alternatives(), ["kill", "hang", "partition"]);
        assert_eq!((drill.variants[0].1.load.wait, drill.variants[1].1.load.wait), (0, 1));
    }

    #[test]
    fn says_what_it_does_not_know() {
        let refused = |text: &str| *Drill::parse("d", text).unwrap_err().why;
        let error = |text: &str| Drill::parse("d", text).unwrap_err().to_string();
        let fault = error("about = \"x\"\n[[fault]]\nat = \"1s\"\ndo = \"kil\"\n");
        assert!(fault.contains("no fault \"kil\"") && fault.contains("did you mean \"kill\""), "{fault}");
        let check = error("about = \"x\"\n[expect]\nlost_wirtes = 0\n");
        assert!(check.contains("lost_wirtes") && check.contains("lost_writes"), "{check}");
        let time = error("about = \"x\"\n[[fault]]\nat = \"soon\"\ndo = \"kill\"\n");
        assert!(time.contains("invalid duration \"soon\""), "{time}");
        let lab = error("about = \"x\"\n[lab.deployment]\nkind = \"cluser\"\n");
        assert!(lab.contains("[lab]") && lab.contains("cluser"), "{lab}");
        let unfit = refused("about = \"x\"\n[load]\nkind = \"locks\"\n[expect]\nlost_writes = 0\n");
        assert!(matches!(unfit, BadPlan::NotShown { name: "lost_writes", load: "locks" }), "{unfit}");
        let many = refused("about = \"x\"\n[load]\nreads_replicas = 100000000\n");
        assert!(matches!(many, BadPlan::Clients), "{many}");
        let locks = refused("about = \"x\"\n[load]\nkind = \"locks\"\nlocks = 4294967295\n");
        assert!(matches!(locks, BadPlan::Locks), "{locks}");
        let long = "about = \"x\"\n[load]\nfollows = 64\nrate_per_s = 10000\n[[fault]]\nat = \"1h\"\ndo = \"kill\"\n";
        let memory = refused(long);
        assert!(matches!(memory, BadPlan::TooManyOperations(_)), "{memory}");
        let twice = "about = \"x\"\n[[variant]]\nname = \"a\"\n[[variant]]\nname = \"a\"\n";
        assert_eq!(error(twice), "drill d: two variants are named \"a\"");
        let rate = "about = \"x\"\n[[variant]]\nname = \"a\"\nload = { rate_per_s = 0 }\n";
        assert_eq!(error(rate), "drill d: variant \"a\": rate_per_s = 0: expected 0.1 to 10000");
        let name = find("cluster_failovr").unwrap_err();
        let Error::UnknownName { what: "drill", hint, .. } = &name else { panic!("{name}") };
        assert!(hint.starts_with("; did you mean \"cluster_failover\"?; your own drill"), "{hint}");
    }

    #[test]
    fn a_variant_changes_what_it_names_and_nothing_else() {
        let text = "about = \"x\"\n[lab.deployment]\nsettings = { maxmemory = \"1gb\" }\n[[variant]]\nname = \"a\"\n\
                    [[variant]]\nname = \"b\"\nsettings = { min-replicas-to-write = 1 }\n[variant.expect]\nlost_writes \
                    = 0\n";
        let drill = Drill::parse("d", text).unwrap();
        let settings = |i: usize| drill.variants[i].1.topology.as_ref().unwrap().deployment.settings.len();
        assert_eq!((settings(0), settings(1)), (1, 2));
        assert_eq!((drill.variants[0].1.expect.lost_writes, drill.variants[1].1.expect.lost_writes), (None, Some(0)));
    }
}
