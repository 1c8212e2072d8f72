//! I5: a nightly save forks, the fork outlasts the node timeout, and two masters live on one host from then on.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;
use unslow_client::{Connection, Options, Target};
use unslow_engine::{Error as EngineError, view, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_lab::topology::Setting;
use unslow_units::time_us;

use super::{Context, Diagnosis, Played, Row};
use crate::caller::Run;
use crate::check::availability::windows;
use crate::error::{CaseError, Error};
use crate::load::Clients;
use crate::places::Places;
use crate::spec::Load;
use crate::stage::{self, Answered, Hosts, PATIENCE, Stage};

/// Masters now: number of the node, and its host.
fn masters(lab: &Lab) -> Result<Vec<(usize, String)>, EngineError> {
    let nodes = &lab.deployment.nodes;
    let mut last = EngineError::new("no node answers");
    for node in nodes {
        let short = Options { command_timeout: Duration::from_secs(1), ..Options::default() };
        match node.connect_with(&short).map_err(EngineError::from).and_then(|mut c| view(&mut c)) {
            Ok(view) => {
                let of = |m: &unslow_topology::ClusterNode| {
                    let at = nodes.iter().position(|n| n.address() == m.address)?;
                    Some((at, lab.hosts[lab.places[at]].name.clone()))
                };
                return Ok(view.masters().filter(|m| !m.slots.is_empty() && !m.is_down()).filter_map(of).collect());
            }
            Err(e) => last = e,
        }
    }
    Err(last)
}

/// The most masters that share a host.
fn crowd(lab: &Lab) -> Result<usize, EngineError> {
    let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
    for (_, host) in masters(lab)? {
        *hosts.entry(host).or_default() += 1;
    }
    Ok(hosts.values().copied().max().unwrap_or(0))
}

/// Writers of every shard work while `body` runs; the longest time one of them had to wait, in microseconds.
fn under_load<T>(seed: u64, lab: &Lab, body: impl FnOnce() -> Result<T, Error>) -> Result<(T, f64), Error> {
    let places = Places::of_lab(lab)?;
    let shards = places.shards(seed)?;
    let load = Load { follows: 1, stays: 0, rate_per_s: 200.0, ..Load::default() };
    let stop = AtomicBool::new(false);
    let (run, clients) = Run::new(&places, &shards, &load, &stop);
    std::thread::scope(|scope| {
        let scene = |_: &mut Clients<'_>, answered: Answered| -> Result<(T, u64, u64), Error> {
            answered.enough(PATIENCE)?;
            let begun_us = run.now_us();
            let done = body()?;
            std::thread::sleep(Duration::from_millis(500)); // writers that were blocked get their answers
            Ok((done, begun_us, run.now_us()))
        };
        let (played, (history, _)) = stage::play(Clients::begin(&run, scope, &clients), PATIENCE, scene);
        let (done, begun_us, ended_us) = played?;
        let longest = windows(&history, begun_us, ended_us).iter().map(|w| w.length_us).max().unwrap_or(0);
        Ok((done, longest as f64))
    })
}

/// A command line of the plan, `redis-cli -h HOST -p PORT WORDS...`, done with a connection of ours.
fn apply(line: &str) -> Result<(), Error> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let ["redis-cli", "-h", host, "-p", port, command @ ..] = &words[..] else {
        return Err(CaseError::NotRedisCli(line.into()).into());
    };
    let command: Vec<String> = command.iter().map(|w| w.trim_matches('"').to_string()).collect();
    let patient = Options { command_timeout: Duration::from_secs(10), ..Options::default() };
    Connection::open(&Target::parse(&unslow_topology::join_host_port(host, port))?, &patient)?.call(&command)?;
    Ok(())
}

/// The fault: a save whose fork is slow. And what is slow in it, without the save.
const SAVE: &str = "fork_stall";
const FORK: &str = "slow_fork";

/// What the steps of this case share.
struct Steps<'c, 'a> {
    cx: &'c mut Context<'a>,
    stage: &'c Stage,
    /// How long a fork takes: the fault's parameter, and the same as a duration.
    fork: String,
    stall: Duration,
    played: Played,
}

/// The commands of the doctor's plan.
struct FixPlan {
    /// Those that move masters.
    failover: Vec<String>,
    /// Those that set the node timeout.
    timeouts: Vec<String>,
}

/// The first save: what it did, and what the doctor found afterwards.
struct Incident {
    /// The longest time without a write.
    longest_us: f64,
    /// The most masters on one host, before and after.
    crowds: (usize, usize),
    diagnosis: Diagnosis,
    /// Whether the chain is as expected, and what to print if not.
    chain: (bool, String),
}

/// What a recorder had seen by the morning.
struct Morning {
    nights: usize,
    /// Nights of which the list of incidents names the fork.
    named: usize,
    /// What the doctor finds when it opens the first of them.
    opened: String,
}

/// Between two nights: so much that their incidents are two.
const DAY: Duration = Duration::from_secs(15);
/// Length of the windows that the list is made of.
const NIGHT_WINDOW: &str = "3s";
/// A window may begin before the fork, and the server speaks after it only.
const NIGHT_MARGIN_MS: u64 = 8_000;

/// A save on the master, with the plan's node timeout.
struct SaveOnMaster {
    /// The master of the shard.
    node: usize,
    longest_us: f64,
    stayed: bool,
}

/// A save on the replica.
struct SaveOnReplica {
    longest_us: f64,
    /// How long the fork took, as the server reports it.
    forked_us: f64,
    /// Whether the master stayed where it was.
    stayed: bool,
}

/// The node that is master of the first shard now: the plan may have moved it.
fn master_of_first_shard(lab: &Lab) -> Result<usize, Error> {
    let now = masters(lab)?;
    Ok(now.iter().map(|(n, _)| *n).find(|n| [0, 3].contains(n)).ok_or(CaseError::NoMaster)?)
}

/// Applies a command line of the plan, from a client's network where the lab has one.
fn reach(lab: &Lab, line: &str) -> Result<(), Error> {
    match &lab.client_in(0).and_then(|h| h.seat.clone()) {
        Some(seat) => {
            let place = || lab.client_in(0).map_or(String::new(), |host| host.name.clone());
            seat.run(|| apply(line)).map_err(|why| Error::Network { place: place(), why })?
        }
        None => apply(line),
    }
}

impl Steps<'_, '_> {
    fn add_row(&mut self, name: &str, longest_us: f64, failover: bool, crowd: usize) {
        let cells = vec![time_us(longest_us), if failover { "yes" } else { "no" }.into(), crowd.to_string()];
        self.played.rows.push(Row { name: name.into(), cells });
    }

    fn nightly_save(&mut self) -> Result<Incident, Error> {
        let (stage, lab, nodes) = (self.stage, &self.stage.lab, &self.stage.lab.deployment.nodes);
        let id = |n: usize| -> Result<String, Error> {
            Ok(nodes[n].connect()?.call(&["CLUSTER", "MYID"])?.text().unwrap_or_default())
        };
        let (old, replica) = (id(0)?, id(3)?);
        let crowd_before = crowd(lab)?;

        self.cx.say("the nightly save");
        let (struck, longest_us) = under_load(self.cx.seed, lab, || {
            let struck = self.cx.strike(stage, SAVE, Some("node-1"), Some(&self.fork))?;
            let mut other = nodes[1].connect()?;
            wait_for("the failover, and the old master's return", Duration::from_secs(60), || {
                let view = view(&mut other)?;
                let returned =
                    view.by_id(&old).is_some_and(|n| n.master_id.as_deref() == Some(&replica) && !n.is_down());
                Ok(view.masters().any(|m| m.id == replica) && returned)
            })?;
            Ok(struck)
        })?;
        self.cx.heal(stage, SAVE, struck)?;
        let crowd_after = crowd(lab)?;
        let diagnosis = self.cx.diagnose(lab, 0)?;
        let chain = diagnosis.chain.iter().any(|l| l == "masters_share_host")
            && diagnosis.chain.iter().any(|l| l == "failover_flapping");
        let chain = (
            chain,
            format!(
                "the chain was {}; expected a failover and two masters on one host in it",
                diagnosis.chain.join(", ")
            ),
        );
        Ok(Incident { longest_us, crowds: (crowd_before, crowd_after), diagnosis, chain })
    }

    /// The same in other nights, while nobody watches but the recorder. Returns when each began, unix time in ms.
    fn other_nights(&mut self, nights: usize) -> Result<Vec<u64>, Error> {
        let (stage, lab, nodes) = (self.stage, &self.stage.lab, &self.stage.lab.deployment.nodes);
        let mut begun = Vec::new();
        for night in 2..=nights {
            std::thread::sleep(DAY); // what is waited for is that nothing happens
            self.cx.say(&format!("night {night} of {nights}; nobody is watching"));
            begun.push(unix_ms());
            let master = master_of_first_shard(lab)?;
            let struck = self.cx.strike(stage, SAVE, Some(nodes[master].name()), Some(&self.fork))?;
            wait_for("the failover, and the old master's return", Duration::from_secs(60), || {
                let now = masters(lab)?;
                let moved = !now.is_empty() && now.iter().all(|(n, _)| *n != master);
                let mut other = nodes[1].connect()?;
                let returned =
                    view(&mut other)?.nodes.iter().any(|n| n.address == nodes[master].address() && !n.is_down());
                Ok(moved && returned)
            })?;
            self.cx.heal(stage, SAVE, struck)?;
        }
        Ok(begun)
    }

    /// The list of incidents, and the doctor's diagnosis of the first night.
    fn morning(&mut self, recording: &str, nights: &[u64]) -> Result<Morning, Error> {
        self.cx.say("in the morning: unslow incidents");
        let list = self.cx.json(None, &["incidents", recording, "--window", NIGHT_WINDOW])?;
        self.cx.folder.keep("incidents.json", &list.to_string())?;
        let rule = self.cx.story.finding.clone();
        let all = list["incidents"].as_array().map_or(&[][..], Vec::as_slice);
        let of_the_fork: Vec<&Json> = all.iter().filter(|i| i["rule"] == rule.as_str()).collect();
        let time = |incident: &Json, name: &str| incident[name].as_u64().unwrap_or(0);
        // Each night has an incident of its own.
        let mut left = of_the_fork.clone();
        let mut named = |night: &u64| {
            let covers = |i: &&Json| {
                time(i, "began_ms") <= night + self.stall.as_millis() as u64 + NIGHT_MARGIN_MS
                    && time(i, "ended_ms") + NIGHT_MARGIN_MS >= *night
            };
            left.iter().position(covers).map(|at| left.remove(at)).is_some()
        };
        let opened = match of_the_fork.first() {
            Some(first) => {
                let report = self
                    .cx
                    .json(None, &["doctor", "--recording", recording, "--incident", &first["id"].to_string()])?;
                report["findings"][0]["id"].as_str().unwrap_or("nothing").to_string()
            }
            None => "nothing".to_string(),
        };
        let named = nights.iter().filter(|night| named(night)).count();
        Ok(Morning { nights: nights.len(), named, opened })
    }

    fn fix_plan(&mut self) -> Result<FixPlan, Error> {
        self.cx.say("doctor --fix-plan");
        let lab = &self.stage.lab;
        let host = &lab.hosts[lab.places[0]];
        let arguments = ["doctor", &lab.url(), "--window", "1s", "--fix-plan", "--quiet"];
        let plan = self.cx.text(Some((lab, host)), &arguments, &[])?;
        self.cx.folder.keep("fix-plan.sh", &plan)?;
        let lines: Vec<String> = plan.lines().filter(|l| l.starts_with("redis-cli ")).map(String::from).collect();
        let failover: Vec<String> = lines.iter().filter(|l| l.ends_with("CLUSTER FAILOVER")).cloned().collect();
        let timeouts: Vec<String> = lines.iter().filter(|l| l.contains("cluster-node-timeout")).cloned().collect();
        Ok(FixPlan { failover, timeouts })
    }

    fn planned_failover(&mut self, plan: &FixPlan) -> Result<(), Error> {
        self.cx.say("applying the failover it names");
        let lab = &self.stage.lab;
        let (_, longest_us) = under_load(self.cx.seed, lab, || {
            for line in &plan.failover {
                reach(lab, line)?;
            }
            Ok(wait_for("masters apart from each other", Duration::from_secs(30), || Ok(crowd(lab)? == 1))?)
        })?;
        self.add_row("the failover of --fix-plan, applied", longest_us, true, crowd(lab)?);
        Ok(())
    }

    fn save_with_longer_timeout(&mut self, plan: &FixPlan) -> Result<SaveOnMaster, Error> {
        let (stage, lab) = (self.stage, &self.stage.lab);
        let node = master_of_first_shard(lab)?;
        self.cx.say("the same save, with the plan's longer node timeout");
        for line in &plan.timeouts {
            reach(lab, line)?;
        }
        let (stalled, longest_us) = under_load(self.cx.seed, lab, || {
            let struck = self.cx.strike(stage, SAVE, Some(lab.deployment.nodes[node].name()), Some(&self.fork))?;
            std::thread::sleep(self.stall + Duration::from_secs(1)); // what is waited for is that nothing happens
            Ok(struck)
        })?;
        self.cx.heal(stage, SAVE, stalled)?;
        let stayed = master_of_first_shard(lab)? == node;
        self.add_row("the same save, node timeout as the plan says", longest_us, !stayed, crowd(lab)?);
        Ok(SaveOnMaster { node, longest_us, stayed })
    }

    fn save_on_replica(&mut self, master: usize) -> Result<SaveOnReplica, Error> {
        self.cx.say("the same save, on the replica");
        let (stage, lab, stall) = (self.stage, &self.stage.lab, self.stall);
        let node = &lab.deployment.nodes[if master == 0 { 3 } else { 0 }];
        let (on_replica, longest_us) = under_load(self.cx.seed, lab, || {
            // Its host is as slow, but a fork there blocks no client.
            let struck = stage.strike(FORK, Some(node.name()), Some(&self.fork))?;
            let patient = Options { command_timeout: stall * 2, ..Options::default() };
            let mut c = node.connect_with(&patient)?;
            c.call(&["BGSAVE"])?;
            std::thread::sleep(Duration::from_secs(1));
            let us = unslow_engine::info(&mut c, "stats")?.number("latest_fork_usec").unwrap_or(0.0);
            Ok((struck, us))
        })?;
        let (on_replica, forked_us) = on_replica;
        self.cx.heal(stage, FORK, on_replica)?;
        let stayed = master_of_first_shard(lab)? == master;
        self.add_row("the same save, made by the replica", longest_us, !stayed, crowd(lab)?);
        Ok(SaveOnReplica { longest_us, forked_us, stayed })
    }

    /// What must hold.
    fn judge(
        &mut self,
        incident: &Incident,
        morning: &Morning,
        plan: &FixPlan,
        second: &SaveOnMaster,
        third: &SaveOnReplica,
    ) {
        let stall = self.stall;
        let outlasts = |line: &String| {
            let ms: Option<u64> = line.rsplit(' ').next().and_then(|n| n.parse().ok());
            ms.is_some_and(|ms| u128::from(ms) > stall.as_millis())
        };
        let (crowd_before, crowd_after) = incident.crowds;
        self.played.held = vec![
            incident.chain.clone(),
            (
                morning.named == morning.nights,
                format!("the morning's list names the fork of {} nights of {}", morning.named, morning.nights),
            ),
            (
                morning.opened == self.cx.story.finding,
                format!("of the first night's incident the doctor finds {}", morning.opened),
            ),
            (
                crowd_before == 1 && crowd_after == 2,
                format!("masters on one host went from {crowd_before} to {crowd_after}, not from 1 to 2"),
            ),
            (!plan.failover.is_empty(), "the plan contained no failover".into()),
            (
                plan.timeouts.len() == self.stage.lab.deployment.nodes.len() && plan.timeouts.iter().all(outlasts),
                "the plan did not make every node's timeout outlast the fork".into(),
            ),
            (second.stayed && third.stayed, "the master left again".into()),
            (second.longest_us > 0.8 * stall.as_secs_f64() * 1e6, "the second save did not fork on the master".into()),
            (
                third.forked_us > 0.8 * stall.as_secs_f64() * 1e6,
                "the save on the replica did not fork as slowly".into(),
            ),
            (third.longest_us < incident.longest_us / 4.0, "a save on the replica still held writers up".into()),
        ];
    }

    /// The sentence to repeat.
    fn conclude(&mut self, morning: &Morning, plan: &FixPlan, second: &SaveOnMaster, third: &SaveOnReplica) {
        self.played.closing = format!(
            "A fork of {} made the master leave {} nights in a row, and put two masters on one host; unslow incidents \
             named it for {} of them in the morning. {} restored the placement, and the same save then blocked no \
             writer for longer than {} when the replica made it. On the master, the plan's longer node timeout \
             keeps it in place, at the price of the whole stall: {}.",
            time_us(self.stall.as_secs_f64() * 1e6),
            morning.nights,
            morning.named,
            plan.failover.first().map_or("nothing", |l| l.as_str()),
            time_us(third.longest_us),
            time_us(second.longest_us)
        );
    }
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

pub fn play(cx: &mut Context<'_>) -> Result<Played, Error> {
    let nights = cx.story.number("nights")? as usize;
    let fork = format!("{}ms", cx.story.number("fork_ms")?);
    let stall = Duration::from_millis(cx.story.number("fork_ms")?);
    let mut topology = faults::named(SAVE)?.topology_of_six("valkey-9.1");
    let timeout = Setting::Number(cx.story.number("node_timeout_ms")? as i64);
    topology.deployment.settings.insert("cluster-node-timeout".into(), timeout);
    cx.say("three hosts, a master and a replica of another shard on each");
    let stage = cx.raise(topology, Hosts::Wired)?;
    let lab = &stage.lab;
    let played = Played {
        columns: vec!["what", "longest without a write", "failover", "masters on one host"],
        ..Played::default()
    };
    let recording = cx.folder.path().join("recording").display().to_string();
    let beside = &lab.hosts[lab.places[0]];
    let record = ["record", &lab.url(), "--dir", &recording, "--no-host", "--quiet"];
    let recorder = cx.background(Some((lab, beside)), &record, &[])?;
    let mut steps = Steps { cx, stage: &stage, fork, stall, played };
    if !steps.cx.diagnosis_only {
        std::thread::sleep(DAY); // a day before the first night
    }
    let first_ms = unix_ms();
    let incident = steps.nightly_save()?;
    if steps.cx.diagnosis_only {
        return Ok(Played { held: vec![incident.chain], ..Played::diagnosed(incident.diagnosis) });
    }
    steps.add_row("the save, as it was", incident.longest_us, true, incident.crowds.1);
    let mut begun = vec![first_ms];
    begun.extend(steps.other_nights(nights)?);
    std::thread::sleep(DAY); // the last night is over when the day has begun
    drop(recorder);
    let morning = steps.morning(&recording, &begun)?;
    let plan = steps.fix_plan()?;
    steps.planned_failover(&plan)?;
    let second = steps.save_with_longer_timeout(&plan)?;
    let third = steps.save_on_replica(second.node)?;
    steps.judge(&incident, &morning, &plan, &second, &third);
    steps.conclude(&morning, &plan, &second, &third);
    steps.played.diagnosis = Some(incident.diagnosis);
    Ok(steps.played)
}
