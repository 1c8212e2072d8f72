//! I1: every client asks every node who owns what, and in Redis 5 the answer is dear.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Options, Target};
use unslow_engine::{Server, free_port, info, wait_for};
use unslow_lab::faults;
use unslow_lab::lab::Lab;
use unslow_lab::launch::raise_descriptors;
use unslow_units::{percent, rate, time_us};

use super::{Background, Context, Diagnosis, Played, Row, believed, cpu_of, number};
use crate::error::{CaseError, Error};
use crate::stage::{self, Answered, Hosts, PATIENCE, Stage, Struck, Workload};

/// Clients that refresh: so many a second to each node, each on a connection of its own, as Lettuce does.
struct Storm {
    stop: Arc<AtomicBool>,
    /// Refreshes that each node has answered.
    asked: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Storm {
    fn begin(targets: Vec<Target>, per_s: f64) -> Storm {
        let mut storm = Storm { stop: Arc::default(), asked: Vec::new(), threads: Vec::new() };
        for target in targets {
            let (stop, asked) = (storm.stop.clone(), Arc::<AtomicU64>::default());
            storm.asked.push(asked.clone());
            storm.threads.push(std::thread::spawn(move || refresh(&target, per_s, &stop, &asked)));
        }
        storm
    }

    /// Refreshes that were answered.
    fn answers(&self) -> u64 {
        self.asked.iter().map(|asked| asked.load(Ordering::Relaxed)).sum()
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Workload for Storm {
    type Seen = ();

    fn answered(&mut self) -> Answered {
        let had = self.asked.iter().filter(|asked| asked.load(Ordering::Relaxed) > 0).count();
        Answered::each(had, self.asked.len())
    }

    fn end(mut self) {
        self.stop();
    }
}

impl Drop for Storm {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Refreshes from one node until told to stop.
fn refresh(target: &Target, per_s: f64, stop: &AtomicBool, asked: &AtomicU64) {
    let patience = Duration::from_secs(2);
    let options = Options {
        connect_timeout: patience,
        command_timeout: patience,
        name: Some("lettuce#ClusterTopologyRefresh"),
        ..Options::default()
    };
    // A few at a time stay for a moment, so that CLIENT LIST shows them.
    let mut open = std::collections::VecDeque::new();
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        // In short steps, so that the end is not waited for.
        let left = due.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(left.min(Duration::from_millis(20)));
            continue;
        }
        due += Duration::from_secs_f64(1.0 / per_s);
        if let Ok(mut client) = Connection::open(target, &options) {
            let answered = client.call(&["CLUSTER", "NODES"]).is_ok() && client.call(&["INFO"]).is_ok();
            asked.fetch_add(u64::from(answered), Ordering::Relaxed);
            open.push_back(client);
        }
        if open.len() > 8 {
            open.pop_front();
        }
    }
}

/// A cluster whose nodes each remember nodes that there are not. The faults end before the lab does: in this order.
struct Haunted {
    _ghosts: Vec<Struck>,
    stage: Stage,
}

impl Haunted {
    /// Starts it, with this many ghosts at each node.
    fn raise(cx: &mut Context<'_>, engine: &str, ghosts: u64) -> Result<Haunted, Error> {
        let fault = faults::named("ghost_nodes")?;
        let mut haunted = Haunted { _ghosts: Vec::new(), stage: cx.raise(fault.topology(engine), Hosts::Flat)? };
        let ghosts = ghosts.to_string();
        for node in &haunted.stage.lab.deployment.nodes {
            haunted._ghosts.push(cx.strike(&haunted.stage, fault.name, Some(node.name()), Some(&ghosts))?);
        }
        Ok(haunted)
    }
}

/// Time spent on CLUSTER subcommands so far, and calls: before 7.0 they are counted together.
fn spent(server: &Server) -> Result<(f64, f64), Error> {
    let section = info(&mut server.connect()?, "commandstats")?;
    let (mut us, mut calls) = (0.0, 0.0);
    for (name, stat) in section.command_stats() {
        if name == "cluster|nodes" || name == "cluster" {
            us += stat.usec as f64;
            calls += stat.calls as f64;
        }
    }
    Ok((us, calls))
}

fn targets(nodes: &[Arc<Server>]) -> Vec<Target> {
    nodes.iter().map(|n| n.target()).collect()
}

struct Seen {
    each_us: f64,
    masters: f64,
    replicas: f64,
    p50: f64,
    p999: f64,
    asked_per_s: f64,
}

/// The application's latency and the nodes' time on CLUSTER NODES, for some seconds.
fn measure(cx: &Context<'_>, lab: &Lab, url: &str, storm: &Storm, notes: &mut Vec<String>) -> Result<Seen, Error> {
    let (rate, seconds) = (cx.story.number("rate_per_s")?.to_string(), cx.story.number("seconds")?.to_string());
    let nodes = &lab.deployment.nodes;
    let masters = lab.deployment.masters;
    let before = nodes.iter().map(|n| Ok((spent(n)?, cpu_of(n)?))).collect::<Result<Vec<_>, Error>>()?;
    let asked = storm.answers();
    let begun = Instant::now();
    let run = cx.bench(
        None,
        url,
        &["--rate", &rate, "--seconds", &seconds, "--connections", "4", "--mix", "get=0.9,set=0.1", "--keys", "10000"],
    )?;
    believed(&run, notes)?;
    let length = begun.elapsed().as_secs_f64();
    let asked = storm.answers() - asked;
    let (mut us, mut calls, mut shares) = (0.0, 0.0, [0.0f64; 2]);
    for (i, (node, ((us_before, calls_before), _))) in nodes.iter().zip(&before).enumerate() {
        let (us_now, calls_now) = spent(node)?;
        us += us_now - us_before;
        calls += calls_now - calls_before;
        let share = (us_now - us_before) / 1e6 / length;
        let place = &mut shares[usize::from(i >= masters)];
        *place = place.max(share);
    }
    Ok(Seen {
        each_us: us / calls,
        masters: shares[0],
        replicas: shares[1],
        p50: number(&run["latency"]["us_p50"]),
        p999: number(&run["latency"]["us_p99_9"]),
        asked_per_s: asked as f64 / length,
    })
}

fn row(name: &str, seen: &Seen) -> Row {
    let cells = vec![
        rate(seen.asked_per_s),
        time_us(seen.each_us),
        percent(seen.masters),
        percent(seen.replicas),
        time_us(seen.p50),
        time_us(seen.p999),
    ];
    Row { name: name.into(), cells }
}

/// What the steps of this case share.
struct Steps<'c, 'a> {
    cx: &'c mut Context<'a>,
    clients: u64,
    ghosts: u64,
    /// Refreshes a second on each node.
    per_s: f64,
    played: Played,
}

/// One measurement for each way to refresh.
struct Figures {
    /// Every client asks every node of Redis 5.0.
    before: Seen,
    /// Clients ask replicas only.
    replicas: Seen,
    /// `unslow watch` notifies the clients.
    notified: Seen,
    /// Clients ask the gateway.
    behind: Seen,
    /// Every client asks every node of Redis 7.0.
    upgraded: Seen,
}

impl<'c, 'a> Steps<'c, 'a> {
    fn new(cx: &'c mut Context<'a>) -> Result<Self, Error> {
        let (clients, ghosts) = (cx.story.number("clients")?, cx.story.number("ghosts")?);
        let per_s = clients as f64 / 60.0;
        let played = Played {
            columns: vec![
                "what",
                "refreshes",
                "CLUSTER NODES each",
                "of a master's core",
                "of a replica's core",
                "p50",
                "p99.9",
            ],
            ..Played::default()
        };
        Ok(Steps { cx, clients, ghosts, per_s, played })
    }

    /// Measures at `url` during the storm, and adds the row.
    fn measure(&mut self, name: &str, lab: &Lab, url: &str, storm: Storm) -> Result<Seen, Error> {
        let scene = |storm: &mut Storm, answered: Answered| {
            answered.enough(PATIENCE)?;
            measure(self.cx, lab, url, storm, &mut self.played.notes)
        };
        let (seen, ()) = stage::play(storm, PATIENCE, scene);
        let seen = seen?;
        self.played.rows.push(row(name, &seen));
        Ok(seen)
    }

    /// Every client asks every node: what the doctor says of it, and what it costs, unless the diagnosis is all that is
    /// wanted.
    fn every_node(&mut self, lab: &Lab) -> Result<(Diagnosis, Option<Seen>), Error> {
        let storm = Storm::begin(targets(&lab.deployment.nodes), self.per_s);
        let scene = |storm: &mut Storm, answered: Answered| -> Result<(Diagnosis, Option<Seen>), Error> {
            answered.enough(PATIENCE)?;
            let diagnosis = self.cx.diagnose(lab, 0)?;
            if self.cx.diagnosis_only {
                return Ok((diagnosis, None));
            }
            self.cx.say("Redis 5.0: measuring");
            Ok((diagnosis, Some(measure(self.cx, lab, &lab.url(), storm, &mut self.played.notes)?)))
        };
        let (found, ()) = stage::play(storm, PATIENCE, scene);
        let (diagnosis, seen) = found?;
        self.played.rows.extend(seen.iter().map(|seen| row("Redis 5.0, every client asks every node", seen)));
        Ok((diagnosis, seen))
    }

    fn replicas_only(&mut self, lab: &Lab) -> Result<Seen, Error> {
        self.cx.say("Redis 5.0: refresh from replicas only");
        let storm = Storm::begin(targets(&lab.deployment.nodes[lab.deployment.masters..]), self.per_s);
        self.measure("Redis 5.0, clients ask replicas only", lab, &lab.url(), storm)
    }

    fn notified_by_watch(&mut self, lab: &Lab) -> Result<Seen, Error> {
        self.cx.say("Redis 5.0: unslow watch notifies the clients");
        let watch: Background = self.cx.background(None, &["watch", &lab.url(), "--publish", "--quiet"], &[])?;
        raise_descriptors();
        // Like the Lettuce extension: each client listens on one connection, and asks one replica every ten minutes to
        // be sure.
        let spared = &targets(&lab.deployment.nodes)[lab.deployment.masters..];
        let patience = Duration::from_secs(10);
        let mut listening = Vec::new();
        for target in spared.iter().cycle().take(self.clients as usize) {
            let mut client = Connection::open(target, &Options::default())?;
            client.send(&["SUBSCRIBE", "__cluster__:moved", "__cluster__:failover"])?;
            listening.push(client);
        }
        let mut ear = Connection::open(&spared[0], &Options::default())?;
        ear.send(&["SUBSCRIBE", "__cluster__:digest"])?;
        ear.receive(patience)?; // the subscription itself
        ear.receive(patience)?; // a heartbeat: the watcher publishes
        let storm = Storm::begin(vec![spared[0].clone()], self.per_s / 10.0);
        let seen = self.measure("Redis 5.0, clients notified by unslow watch", lab, &lab.url(), storm);
        drop((listening, ear, watch));
        seen
    }

    fn behind_gateway(&mut self, lab: &Lab) -> Result<Seen, Error> {
        self.cx.say("Redis 5.0: behind unslow gateway, clients ask the gateway");
        let listen = format!("127.0.0.1:{}", free_port("127.0.0.1")?);
        let gateway: Background =
            self.cx.background(None, &["gateway", "--listen", &listen, "--target", &lab.url()], &[])?;
        let target = Target::parse(&listen)?;
        wait_for("the gateway", Duration::from_secs(20), || {
            Ok(Connection::open(&target, &Options::default()).is_ok_and(|mut c| c.call(&["GET", "k"]).is_ok()))
        })?;
        // The same clients still refresh: from the one address they know.
        let storm = Storm::begin(vec![target], self.per_s);
        let seen = self.measure("Redis 5.0, clients ask unslow gateway", lab, &listen, storm);
        drop(gateway);
        seen
    }

    /// The same storm on newer servers; the figures are those of the first of them.
    fn newer_engines(&mut self) -> Result<Seen, Error> {
        let mut first = None;
        for (engine, name) in [("redis-7.0", "Redis 7.0"), ("valkey-9.1", "Valkey 9.1")] {
            self.cx.say(&format!("{name}: the same storm"));
            let haunted = Haunted::raise(self.cx, engine, self.ghosts)?;
            let lab = &haunted.stage.lab;
            let storm = Storm::begin(targets(&lab.deployment.nodes), self.per_s);
            let seen = self.measure(&format!("{name}, every client asks every node"), lab, &lab.url(), storm)?;
            first = first.or(Some(seen));
        }
        Ok(first.ok_or(CaseError::NoNewerEngine)?)
    }

    /// What must hold.
    fn judge(&mut self, figures: &Figures) {
        let Figures { before, replicas, notified, behind, upgraded } = figures;
        let held = &mut self.played.held;
        held.push((
            upgraded.each_us * 3.0 < before.each_us,
            "CLUSTER NODES on Redis 7.0 was not three times cheaper than on 5.0".into(),
        ));
        // A remedy that only stops the refreshes is no remedy.
        let nodes = 6.0;
        for (what, seen, asked) in [
            ("every node", before, nodes),
            ("replicas", replicas, nodes / 2.0),
            ("the gateway", behind, 1.0),
            ("one replica", notified, 0.1),
        ] {
            let expected = asked * self.per_s;
            let text = format!("{what}: {:.0} refreshes a second were answered, not {expected:.0}", seen.asked_per_s);
            held.push((seen.asked_per_s >= 0.8 * asked * self.per_s, text));
        }
        held.push((
            replicas.masters < before.masters / 10.0,
            "masters still answer CLUSTER NODES when clients ask replicas".into(),
        ));
        held.push((
            behind.masters < before.masters / 10.0,
            "behind the gateway masters still answer CLUSTER NODES".into(),
        ));
        held.push((
            notified.masters < before.masters / 2.0,
            "masters still answer CLUSTER NODES with unslow watch".into(),
        ));
    }

    /// How to read the figures, and the sentence to repeat.
    fn conclude(&mut self, figures: &Figures) {
        let Figures { before, replicas, notified, behind, upgraded } = figures;
        let Steps { clients, ghosts, per_s, played, .. } = self;
        played.notes.push(format!(
            "{clients} clients that refresh every 60 s are {per_s:.0} refreshes a second on each node; {ghosts} ghosts \
             make each answer as long as in a cluster of {} nodes",
            *ghosts + 6
        ));
        played.notes.push(
            "p99.9 is from one window: five of its requests were slower; compare the time on CLUSTER NODES".into(),
        );
        played.closing = format!(
            "CLUSTER NODES took {} of each Redis 5.0 master's core at {} per call; {} when clients ask replicas only, \
             {} when unslow watch notifies them (its own queries), {} behind the gateway; Redis 7.0 answers in {}.",
            percent(before.masters),
            time_us(before.each_us),
            percent(replicas.masters),
            percent(notified.masters),
            percent(behind.masters),
            time_us(upgraded.each_us)
        );
    }
}

pub fn play(cx: &mut Context<'_>) -> Result<Played, Error> {
    let mut steps = Steps::new(cx)?;
    steps.cx.say("Redis 5.0: six nodes that each remember a big cluster");
    let haunted = Haunted::raise(steps.cx, "redis-5.0", steps.ghosts)?;
    let lab = &haunted.stage.lab;
    let (diagnosis, before) = steps.every_node(lab)?;
    let Some(before) = before else { return Ok(Played::diagnosed(diagnosis)) };
    let replicas = steps.replicas_only(lab)?;
    let notified = steps.notified_by_watch(lab)?;
    let behind = steps.behind_gateway(lab)?;
    drop(haunted);
    let upgraded = steps.newer_engines()?;
    let figures = Figures { before, replicas, notified, behind, upgraded };
    steps.judge(&figures);
    steps.conclude(&figures);
    steps.played.diagnosis = Some(diagnosis);
    Ok(steps.played)
}
