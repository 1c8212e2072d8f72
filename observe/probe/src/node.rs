//! One data node through its window: INFO, PINGs, the more expensive questions, INFO.

use std::time::{Duration, Instant};

use unslow_client::{Error, ErrorKind, Options, Target};
use unslow_facts::{Gap, Lack, Node, Own, Rtt, Sample, Seen};
use unslow_topology::{Info, Member, Role};

use crate::ask::{Ask, seen};
use crate::clock::Clock;
use crate::histogram::{self, Counted};
use crate::questions::{self, Questions, is_open};
use crate::salt::Salt;
use crate::timeline::{self, Pace, Plan};
use crate::{Settings, cluster, config, now_ms, rtt, slowlog};

/// PINGs before the window: the baseline.
const BASELINE_PINGS: usize = 20;
/// And the time for them: a slow server is known as one from the first few.
const BASELINE_TIME: Duration = Duration::from_millis(500);
/// A second connection to a server that said nothing on the first is worth at least this long.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// Between two questions to a server that says it is busy.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// How often the questions at the end of a window are asked at most, each time after twice the pause.
const ROUNDS: u32 = 5;
/// Code words of refusals that pass by themselves: a script past its limit, the data set being read.
const BUSY: &str = "BUSY";
const LOADING: &str = "LOADING";

/// A node, and whether its window was cut short.
pub struct Looked {
    pub node: Node,
    pub cut_short: bool,
}

pub fn look(member: &Member, target: &Target, settings: &Settings, salt: &Salt, many: bool) -> Looked {
    let clock = Clock::start(settings);
    let mut node = Node::new(&member.address, member.role);
    node.master = member.master.clone();
    node.node_id = member.node_id.clone();
    let mut ask = match Ask::open(target, &settings.options) {
        Ok(ask) => ask,
        Err(e) => {
            node.silent_ms = silent(&e, target, &settings.options, &clock);
            (node.away, node.unreachable) = (Some(away(&e)), Some(e.message));
            return Looked { node, cut_short: false };
        }
    };
    node.open_door = !ask.connection().authenticated && settings.options.tls.cert_and_key.is_none();
    node.connect_us = Some(ask.connection().connect_time.as_micros() as u64);
    let run = Run { target, settings, clock: &clock, salt, many };
    let cut_short = run.window(&mut ask, &mut node).unwrap_or_else(|gone| {
        // Half a picture is still one: what was seen so far stays.
        node.silent_ms = gone.silent_ms;
        (node.away, node.unreachable) = (Some(away(&gone.error)), Some(gone.error.message));
        false
    });
    node.own = ask.own;
    Looked { node, cut_short }
}

/// How long a node that did not answer in time has said nothing, if it takes a new connection and does not answer a
/// PING on that one either: one long command looks the same for as long as it lasts.
pub fn silent(e: &Error, target: &Target, options: &Options, clock: &Clock) -> Option<u64> {
    if e.kind != ErrorKind::Timeout || clock.ended() {
        return None;
    }
    let begun = Instant::now();
    let again = Ask::open(target, &patience(options, clock.left())).and_then(|mut ask| ask.call(&["PING"]).map(drop));
    let waited = options.connect_timeout.min(options.command_timeout) + begun.elapsed();
    again.is_err_and(|e| e.kind == ErrorKind::Timeout).then_some(waited.as_millis() as u64)
}

/// Whether it refused the login, answered with another refusal, or did not answer.
pub fn away(e: &Error) -> Lack {
    use ErrorKind::*;
    match e.kind {
        AuthRequired | WrongPassword | Denied => Lack::Rights,
        MaxClients | Protected | Loading | Reply | Unknown | TooLarge => Lack::Other,
        _ => Lack::Answer,
    }
}

/// As patient as before, as long as there is time.
pub fn patience(options: &Options, left: Duration) -> Options {
    let most = left.max(SECOND_TRY);
    Options {
        connect_timeout: options.connect_timeout.min(most),
        command_timeout: options.command_timeout.min(most),
        ..options.clone()
    }
}

/// A node that does not answer, and for how long it took connections and said nothing.
#[derive(Debug)]
struct Gone {
    error: Error,
    silent_ms: Option<u64>,
}

/// What the end of a window needs of its start.
struct Start {
    /// When the first INFO was answered.
    begun: Instant,
    baseline: Option<Rtt>,
    /// The user may run PING.
    pings: bool,
    is_cluster: bool,
    /// What the first INFO took.
    wait: Duration,
    /// What the histograms had counted, if they were seen.
    counted: Option<Counted>,
}

/// One node's window.
struct Run<'a> {
    target: &'a Target,
    settings: &'a Settings,
    clock: &'a Clock,
    salt: &'a Salt,
    many: bool,
}

impl Run<'_> {
    /// Whether it was cut short. One answer that is late, or one connection that is closed (CLIENT KILL; a Sentinel
    /// does it after a failover), does not make a server one that is away: where a second connection is answered, the
    /// window ends with it, and what was slow is asked.
    fn window(&self, ask: &mut Ask, node: &mut Node) -> Result<bool, Gone> {
        let mut start = None;
        let lost = match self.whole(ask, node, &mut start) {
            Err(e) if e.is_fatal() => e,
            other => return other.map_err(|error| Gone { error, silent_ms: None }),
        };
        let is_late = lost.kind == ErrorKind::Timeout;
        if let Err(e) = ask.again(self.target, &patience(&self.settings.options, self.clock.left())) {
            let is_silent = is_late && e.kind == ErrorKind::Timeout;
            let silent_ms = (is_silent && !self.clock.ended()).then(|| ask.waited().as_millis() as u64);
            return Err(Gone { error: if is_silent { lost } else { e }, silent_ms });
        }
        if is_late && start.as_ref().is_none_or(|s| s.pings) {
            let waited = ask.waited();
            let at = start.as_ref().map_or(Duration::ZERO, |s| s.begun.elapsed().saturating_sub(waited));
            let us = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
            node.pings.push((at.as_millis() as u32, us));
        }
        let cut_short = match &start {
            None => self.whole(ask, node, &mut start),
            Some(start) => self.end(ask, node, start, self.clock.ended(), is_late),
        };
        cut_short
            .map_err(|error| Gone { silent_ms: silent(&error, self.target, &self.settings.options, self.clock), error })
    }

    /// `start` is set as soon as the window has begun.
    fn whole(&self, ask: &mut Ask, node: &mut Node, start: &mut Option<Start>) -> Result<bool, Error> {
        let (baseline, pings) = baseline(ask, node, self.clock)?;
        node.first = patiently(self.clock, || {
            ask.begin_window();
            sample(ask)
        })?;
        let (begun, wait) = (Instant::now(), ask.waited());
        let is_cluster = node.first.as_ref().is_none_or(|s| s.info.get("cluster_enabled") != Some("0"));
        let counted = self.counted(ask, node, wait);
        let start = start.insert(Start { begun, baseline, pings, is_cluster, wait, counted });
        // The slow log is worth more than either.
        self.set_up(ask, node, is_cluster, wait, 1);
        let pace = Pace::first(node, ask, self.many);
        let plan = Plan { window: self.settings.window, pace, pings, wait };
        let cut_short = timeline::watch(ask, node, self.clock, begun, &plan)?;
        self.end(ask, node, start, cut_short, false)
    }

    /// The histograms as the window begins: right behind INFO, so that both count the same calls. Why they were not
    /// seen is written down.
    fn counted(&self, ask: &mut Ask, node: &mut Node, wait: Duration) -> Option<Counted> {
        // The slow log, settings and the last INFO are worth more.
        let counted = match self.clock.over_for(4, wait) {
            Some(gap) => Seen::No(gap),
            None => histogram::at_start(ask, node.level()),
        };
        counted.into_result().map_err(|gap| node.histograms = Seen::No(gap)).ok()
    }

    /// How it is set and what it knows of its cluster, unless that was answered before; `kept` answers' time is left
    /// for others.
    fn set_up(&self, ask: &mut Ask, node: &mut Node, is_cluster: bool, wait: Duration, kept: u32) {
        let level = node.level();
        if is_open(&node.config) {
            node.config = self.clock.over_for(kept + 1, wait).map_or_else(|| config::look(ask, level), Seen::No);
        }
        if is_cluster && is_open(&node.cluster) {
            match self.clock.over_for(kept + 2, wait) {
                Some(gap) => (node.cluster, node.cluster_info) = (Seen::No(gap.clone()), Seen::No(gap)),
                None => cluster::look(ask, node, level),
            }
            if node.role == Role::Unknown
                && let Some(me) = node.cluster.value().and_then(|v| v.myself())
            {
                node.role = if me.is("master") { Role::Master } else { Role::Replica };
            }
        }
    }

    /// The questions, unless they were asked on a connection that is lost now, and the last INFO.
    fn end(
        &self,
        ask: &mut Ask,
        node: &mut Node,
        start: &Start,
        cut_short: bool,
        after_silence: bool,
    ) -> Result<bool, Error> {
        let times: Vec<u32> = node.pings.iter().map(|(_, us)| *us).collect();
        let rtt = start.pings.then(|| Rtt::of(&times)).flatten();
        if let Some(rtt) = rtt {
            node.rtt = Seen::yes(rtt, "PING", now_ms());
        }
        if node.slowlog.value().is_none() {
            self.questions(ask, node, start, questions::reference(start.baseline, rtt), after_silence)?;
        } else if after_silence && let (log @ Seen::Yes { .. }, _) = slowlog::look(ask, self.salt) {
            // What held it up after the log was read.
            node.slowlog = log;
        }
        timeline::fill_up(start.begun);
        self.look_again(ask, node, start.wait);
        node.last = patiently(self.clock, || ask.last(sample))?;
        node.window_s = start.begun.elapsed().as_secs_f64();
        Ok(cut_short)
    }

    /// The cluster's view a second time, as far as possible from the first: what is only spreading has settled by then.
    fn look_again(&self, ask: &mut Ask, node: &mut Node, wait: Duration) {
        let Some(before) = node.cluster.value() else { return };
        node.cluster_last = match self.clock.over_for(2, wait) {
            None if !ask.own.stopped_early => cluster::again(ask, before),
            None => {
                Seen::No(Gap::new(Lack::Other, "left out, because the server became slower while it was asked", ""))
            }
            Some(gap) => Seen::No(gap),
        };
    }

    /// All of them; those that were refused again, a few times and as long as there is time, where the server runs a
    /// script past its limit or reads its data set.
    fn questions(
        &self,
        ask: &mut Ask,
        node: &mut Node,
        start: &Start,
        reference: Option<Rtt>,
        after_silence: bool,
    ) -> Result<(), Error> {
        let wait = timeline::wait(node, start.wait);
        let mut questions =
            Questions::new(self.clock, reference, wait).after_silence(after_silence).since(start.counted.as_ref());
        let mut pause = BUSY_PAUSE;
        for round in 1..=ROUNDS {
            let refused = Refused::so_far(&ask.own);
            questions.ask_open(ask, node, self.salt, start.is_cluster)?;
            let stopped_early = questions.stopped_early();
            ask.own.stopped_early |= stopped_early;
            if !stopped_early {
                self.set_up(ask, node, start.is_cluster, wait, 0);
            }
            let now = Refused::so_far(&ask.own);
            // Loading takes minutes: for settings and the cluster's view it is not waited for.
            let waits_for_set_up = now.busy > refused.busy && is_open_set_up(node, start.is_cluster);
            let is_done = match stopped_early {
                true => node.slowlog.value().is_some(),
                false => !questions::is_any_open(node) && !waits_for_set_up,
            };
            if is_done || now == refused || round == ROUNDS || self.clock.ended() || self.clock.over(pause).is_some() {
                break;
            }
            self.clock.sleep(pause);
            pause *= 2;
        }
        Ok(())
    }
}

/// How often the server has refused us with what passes by itself, since the window began.
#[derive(PartialEq)]
struct Refused {
    busy: u64,
    loading: u64,
}

impl Refused {
    fn so_far(own: &Own) -> Refused {
        let times = |code: &str| own.errors.get(code).copied().unwrap_or(0);
        Refused { busy: times(BUSY), loading: times(LOADING) }
    }
}

/// Whether settings, or the cluster's view, are still without an answer.
fn is_open_set_up(node: &Node, is_cluster: bool) -> bool {
    is_open(&node.config) || (is_cluster && is_open(&node.cluster))
}

/// Again and again, as long as there is time, where the server runs a script past its limit or reads its data set.
fn patiently<T>(clock: &Clock, mut ask: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match ask() {
            Err(e) if passes(&e) && !clock.ended() && clock.over(BUSY_PAUSE).is_none() => clock.sleep(BUSY_PAUSE),
            other => return other,
        }
    }
}

fn passes(e: &Error) -> bool {
    e.kind == ErrorKind::Loading || e.code().is_some_and(|code| [BUSY, LOADING].contains(&code))
}

/// PINGs before anything else is asked, and whether the user may PING at all.
fn baseline(ask: &mut Ask, node: &mut Node, clock: &Clock) -> Result<(Option<Rtt>, bool), Error> {
    // What the greeting took is taken off: where that was long enough a first INFO is worth more.
    match rtt::several(ask, BASELINE_PINGS, BASELINE_TIME.saturating_sub(clock.elapsed())) {
        Ok(times) => Ok((Rtt::of(&times), true)),
        Err(e) if e.is_fatal() => Err(e),
        Err(e) => {
            let refused = matches!(e.kind, ErrorKind::Denied | ErrorKind::Unknown);
            node.rtt = seen(Err(e), "PING");
            Ok((None, !refused))
        }
    }
}

/// `None` when the user may not run INFO: the rest is worth asking all the same.
pub fn sample(ask: &mut Ask) -> Result<Option<Sample>, Error> {
    match ask.call(&["INFO", "ALL"]) {
        Ok(value) => {
            let mut info = Info::parse(&value.text().unwrap_or_default());
            // Paths tell more of a machine than a diagnosis needs.
            info.0.retain(|field, _| !matches!(field, "executable" | "config_file"));
            Ok(Some(Sample { at_ms: now_ms(), info }))
        }
        Err(e) if matches!(e.kind, ErrorKind::Denied | ErrorKind::Unknown) => Ok(None),
        // BUSY past its time, for one: told as it is, not as a lack of rights.
        Err(e) => Err(e),
    }
}

/// The same server under two addresses (a unix socket and a port, a host name and an announced IP) counts once: the
/// first that answered stays.
pub fn same_server(nodes: &mut Vec<Node>, notes: &mut Vec<String>) {
    let mut kept: Vec<Node> = Vec::new();
    let mut aliases: Vec<(String, String)> = Vec::new();
    for node in nodes.drain(..) {
        let run_id = node.info().and_then(|i| i.get("run_id")).map(str::to_string);
        let same =
            kept.iter_mut().find(|k| run_id.is_some() && k.info().and_then(|i| i.get("run_id")) == run_id.as_deref());
        match same {
            Some(first) => {
                notes.push(format!("{} and {} are the same server", node.address, first.address));
                // What we sent it under its other name is ours too.
                for (command, calls) in node.own.commands {
                    *first.own.commands.entry(command).or_default() += calls;
                }
                for (code, errors) in node.own.errors {
                    *first.own.errors.entry(code).or_default() += errors;
                }
                first.own.reads += node.own.reads;
                first.own.total += node.own.total;
                aliases.push((node.address, first.address.clone()));
            }
            None => kept.push(node),
        }
    }
    for node in &mut kept {
        if let Some((_, real)) = aliases.iter().find(|(alias, _)| node.master.as_deref() == Some(alias)) {
            node.master = Some(real.clone());
        }
    }
    *nodes = kept;
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::fake::{bulk, server};

    fn node(address: &str, run_id: &str, master: Option<&str>) -> Node {
        let info = Info::parse(&format!("run_id:{run_id}\r\n"));
        let one = |name: &str, n: u64| BTreeMap::from([(name.to_string(), n)]);
        let own = Own { commands: one("info", 2), total: 5, reads: 2, errors: one("NOPERM", 1), stopped_early: false };
        let first = (!run_id.is_empty()).then_some(Sample { at_ms: 0, info });
        Node { first, own, master: master.map(str::to_string), ..Node::new(address, Role::Replica) }
    }

    #[test]
    fn a_server_with_two_addresses_counts_once() {
        let mut nodes = vec![
            node("h:1", "a", None),
            node("10.0.0.1:1", "a", None),
            node("h:2", "b", Some("10.0.0.1:1")),
            node("h:3", "", None),
            node("h:4", "", None),
        ];
        let mut notes = Vec::new();
        same_server(&mut nodes, &mut notes);
        let addresses: Vec<&str> = nodes.iter().map(|n| n.address.as_str()).collect();
        assert_eq!(addresses, ["h:1", "h:2", "h:3", "h:4"], "nodes without a run id are kept");
        let own = &nodes[0].own;
        assert_eq!((own.total, own.reads, own.commands["info"], own.errors["NOPERM"]), (10, 4, 4, 2));
        assert_eq!(nodes[1].master.as_deref(), Some("h:1"));
        assert_eq!(notes, ["10.0.0.1:1 and h:1 are the same server"]);
    }

    /// A server of 7.0 without a cluster, and what it was asked.
    fn answers(words: &[String]) -> String {
        let info = "redis_version:7.0.0\r\ncluster_enabled:0\r\nconnected_clients:1\r\ntotal_commands_processed:9\r\n";
        match words[0].as_str() {
            "PING" => "+PONG\r\n".into(),
            "INFO" => bulk(info),
            "CLIENT" => bulk("id=3 addr=10.0.0.1:5 name=app age=1 idle=0 flags=N omem=0 cmd=get\n"),
            _ => "*0\r\n".into(),
        }
    }

    /// The clock's own deadline is far away: the machine that runs this may be busy.
    fn looked(target: &Target, stop: bool) -> (Node, bool) {
        let (node, ended) = tried(target, stop, Options::default());
        (node, ended.unwrap())
    }

    fn tried(target: &Target, stop: bool, options: Options) -> (Node, Result<bool, Gone>) {
        let day = Settings {
            window: Duration::from_secs(86_400),
            options,
            show_keys: false,
            host: false,
            hosts: Vec::new(),
            url: target.url(),
            stop: Some(Arc::new(AtomicBool::new(stop))),
        };
        let clock = Clock::start(&day);
        let settings = Settings { window: Duration::from_millis(if stop { 86_400_000 } else { 500 }), ..day };
        let mut ask = Ask::open(target, &settings.options).unwrap();
        let mut node = Node::new(&target.address(), Role::Unknown);
        let run = Run { target, settings: &settings, clock: &clock, salt: &Salt::new(false), many: false };
        let ended = run.window(&mut ask, &mut node);
        node.own = ask.own;
        (node, ended)
    }

    #[test]
    fn a_run_that_is_ended_still_has_its_last_info() {
        let (node, cut_short) = looked(&server(answers), true);
        assert!(cut_short && node.first.is_some() && node.last.is_some() && node.window_s > 0.0, "{node:?}");
    }

    #[test]
    fn a_whole_window_asks_everything_and_counts_one_of_its_two_whole_infos() {
        let (node, cut_short) = looked(&server(answers), false);
        assert!(!cut_short);
        assert!(node.config.value().is_some() && node.slowlog.value().is_some() && node.latency.value().is_some());
        // A machine that is busy just then is left alone.
        let clients = node.clients.value().is_some_and(|c| c.listed == 1);
        assert!(clients || node.own.stopped_early, "{:?}", node.clients);
        // INFO ALL at the start, and a pair for each point of the series, which is read at once.
        let (info, all) = (node.own.commands["info"], node.own.commands.values().sum::<u64>());
        assert_eq!((info % 2, node.own.reads), (1, all - info / 2), "{:?}", node.own);
    }

    #[test]
    fn a_user_who_may_not_ping_is_not_made_to_try_through_the_whole_window() {
        let denied = |words: &[String]| match words[0].as_str() {
            "PING" => "-NOPERM this user has no permissions to run the 'ping' command\r\n".into(),
            _ => answers(words),
        };
        let (node, _) = looked(&server(denied), false);
        assert_eq!(node.rtt.missing().map(|gap| gap.lack), Some(unslow_facts::Lack::Rights));
        assert!(node.last.is_some() && node.own.errors.is_empty(), "{:?}", node.own);
    }

    /// Two connections greet as the doctor's own do; an answer may take a second.
    fn a_second() -> Options {
        Options { name: Some("unslow"), protocol: 3, command_timeout: Duration::from_secs(1), ..Options::default() }
    }

    /// A server that does not answer the first PING of the window as it should, and how many commands it had executed
    /// at each whole INFO.
    fn fails_once(stall: Option<Duration>) -> (Target, Arc<Mutex<Vec<u64>>>) {
        let at_info = Arc::new(Mutex::new(Vec::new()));
        let (seen, mut executed, mut failed) = (at_info.clone(), 0, false);
        let target = server(move |words| {
            if words[0] == "INFO" && words[1] == "ALL" {
                seen.lock().unwrap().push(executed);
            }
            if words[0] == "PING" && !failed && !seen.lock().unwrap().is_empty() {
                failed = true;
                match stall {
                    Some(time) => std::thread::sleep(time),
                    None => return String::new(),
                }
            }
            executed += 1;
            answers(words)
        });
        (target, at_info)
    }

    #[test]
    fn one_late_answer_or_closed_connection_is_not_a_server_that_is_away() {
        for stall in [Some(Duration::from_millis(1300)), None] {
            let (target, at_info) = fails_once(stall);
            let (node, ended) = tried(&target, false, a_second());
            assert!(!ended.unwrap() && node.slowlog.value().is_some() && node.latency.value().is_some(), "{node:?}");
            let longest = node.pings.iter().map(|(_, us)| *us).max();
            assert_eq!(longest.is_some_and(|us| us >= 1_000_000), stall.is_some(), "{:?}", node.pings);
            assert!(node.last.is_some() && node.window_s >= stall.map_or(0.0, |s| s.as_secs_f64()), "{node:?}");
            let at_info = at_info.lock().unwrap();
            assert_eq!(at_info.len(), 2);
            assert_eq!(node.own.commands.values().sum::<u64>(), at_info[1] - at_info[0], "{stall:?} {:?}", node.own);
            assert_eq!((node.own.commands["hello"], node.own.commands["client|setname"]), (1, 1));
        }
    }

    #[test]
    fn a_server_that_closes_every_connection_is_away() {
        let mut infos = 0;
        let target = server(move |words| {
            infos += usize::from(words[0] == "INFO" && words[1] == "ALL");
            if infos > 0 && words[0] == "PING" { String::new() } else { answers(words) }
        });
        let (node, ended) = tried(&target, false, Options::default());
        let gone = ended.unwrap_err();
        assert_eq!((away(&gone.error), gone.silent_ms), (Lack::Answer, None));
        assert!(node.first.is_some() && node.last.is_none(), "{node:?}");
    }

    #[test]
    fn a_server_that_is_busy_for_a_while_is_asked_again() {
        let mut infos = 0;
        let target = server(move |words| {
            infos += usize::from(words[0] == "INFO" && words[1] == "ALL");
            match (words[0].as_str(), infos) {
                ("INFO", 1 | 2 | 4) if words[1] == "ALL" => "-BUSY Redis is busy running a script.\r\n".into(),
                _ => answers(words),
            }
        });
        let (node, _) = looked(&target, false);
        assert!(node.first.is_some() && node.last.is_some(), "{node:?}");
        // What it refused before the first INFO is not in the window.
        assert_eq!(node.own.errors, BTreeMap::from([("BUSY".to_string(), 1)]));
    }

    #[test]
    fn a_question_that_a_script_kept_from_being_answered_is_asked_again() {
        for busy in ["SLOWLOG", "LATENCY", "CLIENT", "CONFIG"] {
            let (mut refused, mut asked) = (0, 0);
            let target = server(move |words| {
                asked += usize::from(words[0] == "SLOWLOG");
                if words[0] == busy && refused < 3 {
                    refused += 1;
                    return "-BUSY Redis is busy running a script.\r\n".into();
                }
                // What was answered once is not lost when it is refused later.
                if busy == "LATENCY" && words[0] == "SLOWLOG" && asked > 1 {
                    return "-BUSY Redis is busy running a script.\r\n".into();
                }
                answers(words)
            });
            let (node, _) = looked(&target, false);
            assert!(node.slowlog.value().is_some() && node.last.is_some(), "{busy}: {node:?}");
            // A machine that is busy just then is left alone.
            let rest =
                node.latency.value().is_some() && node.clients.value().is_some() && node.config.value().is_some();
            assert!(rest || node.own.stopped_early, "{busy}: {node:?}");
            let refusals = node.own.errors.get("BUSY").copied().unwrap_or(0);
            assert!(refusals >= 3 || node.own.stopped_early, "{busy}: {:?}", node.own.errors);
        }
    }

    #[test]
    fn a_server_that_stays_busy_is_asked_what_is_open_and_a_few_times() {
        let asked = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
        let counted = asked.clone();
        let target = server(move |words| {
            *counted.lock().unwrap().entry(words[0].clone()).or_insert(0) += 1;
            match words[0].as_str() {
                "CONFIG" => "-BUSY Redis is busy running a script.\r\n".into(),
                _ => answers(words),
            }
        });
        let (node, _) = looked(&target, false);
        let asked = asked.lock().unwrap();
        // LATENCY HISTOGRAM at the start and the end, LATEST once.
        assert_eq!(asked["SLOWLOG"], 1, "{asked:?}");
        assert!(asked["LATENCY"] <= 3 && asked.get("CLIENT").is_none_or(|n| *n == 1), "{asked:?}");
        // Once as the window begins.
        assert!(asked["CONFIG"] <= 1 + ROUNDS, "{asked:?}");
        assert!(asked["CONFIG"] == 1 + ROUNDS || node.own.stopped_early, "{asked:?}");
        assert_eq!(node.config.refused().map(|gap| gap.lack), Some(Lack::Answer));
    }

    #[test]
    fn the_view_of_a_cluster_is_not_waited_for_while_the_data_set_is_read() {
        let asked = Arc::new(Mutex::new(BTreeMap::<String, u32>::new()));
        let counted = asked.clone();
        let info = "redis_version:7.0.0\r\ncluster_enabled:1\r\nconnected_clients:1\r\nloading:1\r\n";
        let target = server(move |words| {
            *counted.lock().unwrap().entry(words[0].clone()).or_insert(0) += 1;
            match words[0].as_str() {
                "CLUSTER" => "-LOADING Redis is loading the dataset in memory\r\n".into(),
                "INFO" => bulk(info),
                _ => answers(words),
            }
        });
        let (node, _) = looked(&target, false);
        let asked = asked.lock().unwrap();
        assert_eq!(asked["SLOWLOG"], 1, "{asked:?}");
        // INFO and NODES, as the window begins and as it ends.
        assert!(asked["CLUSTER"] <= 4, "{asked:?}");
        assert!(node.cluster.value().is_none() && node.last.is_some(), "{node:?}");
    }

    #[test]
    fn why_the_histograms_were_not_seen_is_still_known_at_the_end() {
        let target = server(|words| match words.get(1).map(String::as_str) {
            Some("HISTOGRAM") => {
                "-NOPERM this user has no permissions to run the 'latency|histogram' command\r\n".into()
            }
            _ => answers(words),
        });
        let (node, _) = looked(&target, false);
        let gap = node.histograms.refused().expect("it was looked for");
        assert_eq!((gap.lack, gap.grant.as_deref()), (Lack::Rights, Some("ACL SETUSER <user> +latency|histogram")));
    }

    #[test]
    fn a_server_that_stays_busy_is_told_by_its_own_words() {
        let busy = || -> Result<(), Error> {
            let target = server(|words| match words[0].as_str() {
                "INFO" => "-BUSY Redis is busy running a script.\r\n".into(),
                _ => answers(words),
            });
            Ask::open(&target, &Options::default())?.call(&["INFO", "ALL"]).map(drop)
        };
        let e = patiently(&Clock::of(Duration::ZERO), busy).unwrap_err();
        assert_eq!((away(&e), e.code()), (Lack::Other, Some("BUSY")));
    }

    #[test]
    fn a_second_connection_waits_no_longer_than_there_is_time() {
        let options = Options::default();
        for (left, connect, command) in [(60, 3, 5), (4, 3, 4), (2, 2, 2), (0, 1, 1)] {
            let second = patience(&options, Duration::from_secs(left));
            assert_eq!(
                (second.connect_timeout.as_secs(), second.command_timeout.as_secs()),
                (connect, command),
                "{left}"
            );
        }
    }
}
