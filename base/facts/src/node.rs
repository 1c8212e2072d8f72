//! What was seen of one server.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use unslow_topology::{ClusterView, CommandStat, Info, Role};

use crate::called::{Between, Called, Changed};
use crate::logged::{KeySize, LargeEntry, SlowEntry};
use crate::{LaterView, Seen, SlotStat, Standing};

/// One INFO reply and when it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Sample {
    /// Unix time in ms.
    pub at_ms: u64,
    /// All its fields.
    pub info: Info,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Node {
    /// `host:port` as the deployment names it.
    pub address: String,
    /// What it does.
    pub role: Role,
    /// The master it follows.
    pub master: Option<String>,
    /// Node id in a cluster.
    pub node_id: Option<String>,
    /// Why it could not be asked; `None` when it answered.
    pub unreachable: Option<String>,
    /// What kept it from being asked, where it could not be: `rights` (it refused the login), `other` (it answered with
    /// another refusal: maxclients, a busy script, loading), `answer` (it did not answer). None in facts of before this
    /// was kept.
    #[serde(default)]
    pub away: Option<crate::Lack>,
    /// It took two connections and said nothing on either, for this many ms: its machine is there, its process stands
    /// still or is busy with one thing.
    #[serde(default)]
    pub silent_ms: Option<u64>,
    /// What its process did while it owed an answer, where its machine was looked at meanwhile. None in facts of before
    /// this was kept.
    #[serde(default)]
    pub standing: Option<Standing>,
    /// INFO at the start of the window.
    pub first: Option<Sample>,
    /// INFO at its end.
    pub last: Option<Sample>,
    /// Seconds between the two, by our monotonic clock.
    pub window_s: f64,
    /// Rates in between, for plots.
    pub series: Vec<Point>,
    /// Time to connect and greet, in us.
    pub connect_us: Option<u64>,
    /// PINGs from here.
    pub rtt: Seen<Rtt>,
    /// PINGs through the window: (ms since its start, us). A gap is a stall.
    pub pings: Vec<(u32, u32)>,
    /// Settings that rules use; never a secret.
    pub config: Seen<BTreeMap<String, String>>,
    /// The newest entries, arguments redacted.
    pub slowlog: Seen<Vec<SlowEntry>>,
    /// Requests and replies that the server logged as large (COMMANDLOG, Valkey 8.1+; a megabyte unless set otherwise),
    /// the newest of each. Not asked where the server has no such log; not in facts of before this was kept.
    #[serde(default)]
    pub large: Seen<Vec<LargeEntry>>,
    /// LATENCY LATEST and HISTORY.
    pub latency: Seen<Vec<LatencyEvent>>,
    /// How long the calls of each command took in the window, by command as commandstats names it: LATENCY HISTOGRAM
    /// (7.0+) at its end, less what it was at its start. Calls of ours are among them; the writing of replies is not.
    /// Not in facts of before this was kept.
    #[serde(default)]
    pub histograms: Seen<BTreeMap<String, Vec<TimeRange>>>,
    /// CLIENT LIST, whole or sampled.
    pub clients: Seen<Clients>,
    /// CLUSTER NODES as this node sees it.
    pub cluster: Seen<ClusterView>,
    /// The same at the end of the window, to tell what lasts from what is spreading. Not in facts of before this was
    /// kept.
    #[serde(default)]
    pub cluster_last: Seen<LaterView>,
    /// CLUSTER INFO.
    pub cluster_info: Seen<BTreeMap<String, String>>,
    /// A master's slots with the most keys, then those that took the most time. Not in facts of before this was kept.
    #[serde(default)]
    pub slot_stats: Seen<Vec<SlotStat>>,
    /// Sizes of the keys that the slow log names.
    pub key_sizes: Seen<Vec<KeySize>>,
    /// The kernel's figures for its client sockets, by peer, where its machine is this one.
    pub sockets: Seen<Vec<PeerSockets>>,
    /// It let us in without a password.
    pub open_door: bool,
    /// What we ourselves sent it.
    pub own: Own,
    /// Not something that was seen: caches what rules ask of both samples again and again.
    #[serde(skip)]
    pub called: Called,
}

/// A point of the node's time series.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Point {
    /// Since the start of the window.
    pub at_ms: u32,
    /// Commands per second since the point before.
    pub commands_per_s: f64,
    /// Share of a core in user mode.
    pub cpu_user_share: f64,
    /// Share of a core in the kernel.
    pub cpu_sys_share: f64,
    /// Connections accepted per second since the point before. None where they are not counted, and in facts of before
    /// this was kept.
    #[serde(default)]
    pub connections_per_s: Option<f64>,
}

/// Round-trip times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Rtt {
    /// How many.
    pub count: u32,
    /// Smallest, in us.
    pub us_min: u32,
    /// Median, in us.
    pub us_p50: u32,
    /// 99th percentile, in us.
    pub us_p99: u32,
    /// Largest, in us.
    pub us_max: u32,
}

impl Rtt {
    /// Of these times; `None` of none.
    pub fn of(times_us: &[u32]) -> Option<Rtt> {
        let mut sorted = times_us.to_vec();
        sorted.sort_unstable();
        let at = |q: f64| sorted[((sorted.len() as f64 * q).ceil() as usize).clamp(1, sorted.len()) - 1];
        (!sorted.is_empty()).then(|| Rtt {
            count: sorted.len() as u32,
            us_min: sorted[0],
            us_p50: at(0.5),
            us_p99: at(0.99),
            us_max: sorted[sorted.len() - 1],
        })
    }
}

/// One event class of the latency monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct LatencyEvent {
    /// `fork`, `aof-write-pending-fsync`, `command`, ...
    pub name: String,
    /// Unix time in seconds of the last spike.
    pub last_at_s: u64,
    /// Its length in ms.
    pub last_ms: u64,
    /// The longest since the last reset, in ms.
    pub max_ms: u64,
    /// (unix time in s, ms), newest last; at most 160 by the server.
    pub history: Vec<(u64, u64)>,
}

/// Calls of one command whose time inside it fell into one range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TimeRange {
    /// The upper end of the range, in us. The lower end is half of it; the server's last range, from 0.5 s on, has no
    /// upper end.
    pub up_to_us: u64,
    /// How many calls.
    pub calls: u64,
}

/// Who is connected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Clients {
    /// `connected_clients`.
    pub total: u64,
    /// Rows read.
    pub listed: u64,
    /// Rows that wait in a blocking command. None in facts of before this was kept.
    #[serde(default)]
    pub blocked: Option<u64>,
    /// Rows of ours, a recorder's included, by the name that all of us have; they are not among those read. None where
    /// not all rows were read, and in facts of before this was kept.
    #[serde(default)]
    pub ours: Option<u64>,
    /// Whether the rows are a sample by windows of ids.
    pub sampled: bool,
    /// Rows by library, name and host, largest first.
    pub groups: Vec<ClientGroup>,
    /// Rows worth a line of their own: MONITOR, large buffers, commands that wait behind a blocking one.
    pub notable: Vec<ClientRow>,
}

/// Clients that look alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClientGroup {
    /// Address without port.
    pub host: String,
    /// CLIENT SETNAME's name, digits at its end cut off.
    pub name: String,
    /// `lib-name` and `lib-ver` (7.2+).
    pub library: String,
    /// How many rows.
    pub count: u64,
    /// Rows younger than 2 s.
    pub young: u64,
    /// Rows idle for over an hour.
    pub idle_hour: u64,
    /// Rows that connected since the window began. 0 in facts of before this was kept.
    #[serde(default)]
    pub opened: u64,
    /// Seconds since the last command of the row that has been idle for longest, of rows that `timeout` applies to: no
    /// subscribers, replicas or blocked clients. None where there are none, and in facts of before this was kept.
    #[serde(default)]
    pub idle_s_max: Option<u64>,
    /// Last commands and how many rows show each.
    pub commands: BTreeMap<String, u64>,
}

/// One row of CLIENT LIST.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ClientRow {
    /// The server's number for it.
    pub id: u64,
    /// `ip:port`.
    pub address: String,
    /// Its name.
    pub name: String,
    /// `lib-name` (7.2+).
    pub library: String,
    /// Letters, as CLIENT LIST documents them: `O` monitor, `P` pub/sub, `S` replica.
    pub flags: String,
    /// Last command.
    pub command: String,
    /// Seconds since it connected.
    pub age_s: u64,
    /// Seconds since its last command.
    pub idle_s: u64,
    /// Bytes waiting for it to read.
    pub output_bytes: u64,
    /// Bytes of requests that it has begun and the server holds: its query buffer with what is free in it, arguments
    /// read so far, and what is queued in its transaction.
    /// 0 in facts of before this was kept.
    #[serde(default)]
    pub query_bytes: u64,
    /// Of these, what was read and not yet parsed (`qbuf`). 0 in facts of before this was kept.
    #[serde(default)]
    pub unparsed_bytes: u64,
}

/// The kernel's figures for the server's sockets towards one peer address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PeerSockets {
    /// Peer address without port.
    pub host: String,
    /// Established sockets.
    pub sockets: u32,
    /// Smallest round trip the kernel ever saw on any of them, in us: the distance.
    pub min_rtt_us: u32,
    /// Median of the sockets' own minima, in us.
    pub min_rtt_us_p50: u32,
    /// Median smoothed round trip now, in us: distance and queueing.
    pub rtt_us_p50: u32,
    /// Segments sent again in the window.
    pub retransmits: u64,
    /// Segments sent in the window.
    pub segments_out: u64,
    /// Bytes the server has written and the peer not acknowledged.
    pub send_queue_bytes: u64,
    /// The smaller one of that and of what it was as the window began: what comes and goes with single replies is not
    /// in it. `None` in facts of before this was kept.
    #[serde(default)]
    pub standing_bytes: Option<u64>,
    /// Bytes that are on their way to the peer: sent and not acknowledged. `None` in facts of before this was kept.
    #[serde(default)]
    pub in_flight_bytes: Option<u64>,
    /// On how many of the sockets, on average over the window, something waited to be sent or acknowledged. `None`
    /// before Linux 4.10, where most of what waits is on connections that were opened in the window, and in facts of
    /// before this was kept.
    #[serde(default)]
    pub busy: Option<f64>,
    /// Bytes the peer has sent and the server not read.
    pub receive_queue_bytes: u64,
    /// Sockets that are held up because the peer's window is closed: it does not read.
    pub window_closed: u32,
    /// Sockets whose peer answers nothing: what the server sent, or a probe, was sent again at least three times, and
    /// nothing was heard for seconds.
    #[serde(default)]
    pub unanswered: u32,
    /// For how long the quietest of these has been silent, in ms.
    #[serde(default)]
    pub unanswered_ms: u64,
}

/// One Sentinel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SentinelNode {
    /// `host:port`.
    pub address: String,
    /// Why it could not be asked.
    pub unreachable: Option<String>,
    /// Its version.
    pub version: String,
    /// Whether it trusts its clock. None where it does not say, and in facts of before this was kept.
    #[serde(default)]
    pub tilt: Option<crate::Tilt>,
    /// The groups it watches.
    pub groups: Vec<SentinelGroup>,
}

/// One group as a Sentinel sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct SentinelGroup {
    /// Its name.
    pub service: String,
    /// The master's address.
    pub master: String,
    /// Flags, as `master,s_down`.
    pub flags: String,
    /// Sentinels that must agree it is down.
    pub quorum: u64,
    /// Other Sentinels it knows.
    pub other_sentinels: u64,
    /// `down-after-milliseconds`.
    pub down_after_ms: u64,
    /// `failover-timeout`, in ms.
    pub failover_timeout_ms: u64,
    /// Config epoch.
    pub epoch: u64,
    /// SENTINEL CKQUORUM's own words.
    pub ckquorum: String,
    /// When the master last gave it a valid answer to a PING, unix time in ms. None where it does not say, and in facts
    /// of before this was kept.
    #[serde(default)]
    pub answered_at_ms: Option<u64>,
    /// The other Sentinels it knows (SENTINEL SENTINELS). None where there was no time to ask, and in facts of before
    /// this was kept.
    #[serde(default)]
    pub others: Option<Vec<crate::Listed>>,
    /// The replicas it knows (SENTINEL REPLICAS); none as above.
    #[serde(default)]
    pub replicas: Option<Vec<crate::Listed>>,
}

/// Code words of errors that are told apart, and the bytes of one.
const CODES_MAX: usize = 32;
const CODE_MAX: usize = 32;

/// What we sent to a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Own {
    /// By command, as commandstats names it (`config|get`), inside the window.
    pub commands: BTreeMap<String, u64>,
    /// All of them, greeting included.
    pub total: u64,
    /// How often the server had to read for them, inside the window: commands of a pipeline come together.
    #[serde(default)]
    pub reads: u64,
    /// Errors it answered, by code word, inside the window.
    #[serde(default)]
    pub errors: BTreeMap<String, u64>,
    /// The PING p99 doubled while we looked, so the rest was left out.
    pub stopped_early: bool,
}

impl Own {
    /// Counts a command that the server executed, as commandstats names it.
    pub fn executed(&mut self, name: &str) {
        self.total += 1;
        count(&mut self.commands, name, 1);
    }

    /// Counts a command that the server refused, by the error's code word. Servers have some dozen of these, and who
    /// speaks for one may make up any number: past 32 of them, or 32 bytes, they are one.
    pub fn refused(&mut self, code: &str) {
        self.total += 1;
        self.failed(code);
    }

    /// Counts the error of a command that was counted as executed.
    pub fn failed(&mut self, code: &str) {
        let is_kept = self.errors.len() < CODES_MAX || self.errors.contains_key(code);
        count(&mut self.errors, if is_kept && code.len() <= CODE_MAX { code } else { "OTHER" }, 1);
    }

    /// Takes back one that was counted as executed: the server refused it.
    pub fn was_refused(&mut self, name: &str, code: Option<&str>) {
        self.total = self.total.saturating_sub(1);
        if let Some(calls) = self.commands.get_mut(name) {
            *calls = calls.saturating_sub(1);
        }
        self.commands.retain(|_, calls| *calls > 0);
        match code {
            Some(code) => self.refused(code),
            None => self.total += 1,
        }
    }

    /// Adds what was sent in another way.
    pub fn add(&mut self, other: &Own) {
        other.commands.iter().for_each(|(name, n)| count(&mut self.commands, name, *n));
        other.errors.iter().for_each(|(code, n)| count(&mut self.errors, code, *n));
        self.total += other.total;
        self.reads += other.reads;
        self.stopped_early |= other.stopped_early;
    }

    /// What was sent since then.
    pub fn since(&self, then: &Own) -> Own {
        let grown = |now: &BTreeMap<String, u64>, then: &BTreeMap<String, u64>| {
            let each =
                now.iter().map(|(name, n)| (name.clone(), n.saturating_sub(then.get(name).copied().unwrap_or(0))));
            each.filter(|(_, n)| *n > 0).collect()
        };
        Own {
            commands: grown(&self.commands, &then.commands),
            errors: grown(&self.errors, &then.errors),
            total: self.total.saturating_sub(then.total),
            reads: self.reads.saturating_sub(then.reads),
            stopped_early: self.stopped_early,
        }
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &str, n: u64) {
    match counts.get_mut(name) {
        Some(count) => *count += n,
        None => drop(counts.insert(name.to_string(), n)),
    }
}

impl Node {
    /// A node nothing is known of yet.
    pub fn new(address: &str, role: Role) -> Node {
        Node {
            address: address.to_string(),
            role,
            master: None,
            node_id: None,
            unreachable: None,
            away: None,
            silent_ms: None,
            standing: None,
            first: None,
            last: None,
            window_s: 0.0,
            series: Vec::new(),
            connect_us: None,
            rtt: Seen::default(),
            pings: Vec::new(),
            config: Seen::default(),
            slowlog: Seen::default(),
            large: Seen::default(),
            latency: Seen::default(),
            histograms: Seen::default(),
            clients: Seen::default(),
            cluster: Seen::default(),
            cluster_last: Seen::default(),
            cluster_info: Seen::default(),
            slot_stats: Seen::default(),
            key_sizes: Seen::default(),
            sockets: Seen::default(),
            open_door: false,
            own: Own::default(),
            called: Called::default(),
        }
    }

    /// Connections that are not ours. Where the clients were listed within some seconds of the last INFO, both counts
    /// are the list's: a diagnosis beside a recorder comes and goes.
    pub fn other_clients(&self) -> Option<f64> {
        const CLOSE_MS: u64 = 3_000;
        let listed = match &self.clients {
            Seen::Yes { value, at_ms, .. } if at_ms.abs_diff(self.at_ms()) <= CLOSE_MS => {
                value.ours.map(|ours| value.total.saturating_sub(ours) as f64)
            }
            _ => None,
        };
        let ours = self.clients.value().and_then(|c| c.ours).unwrap_or(1);
        listed.or_else(|| Some((self.number("connected_clients")? - ours as f64).max(0.0)))
    }

    /// CLUSTER NODES at the end of the window.
    pub fn last_view(&self) -> Option<&ClusterView> {
        match self.cluster_last.value()? {
            LaterView::Unchanged => self.cluster.value(),
            LaterView::Changed(view) => Some(view),
        }
    }

    /// The newest INFO.
    pub fn info(&self) -> Option<&Info> {
        self.last.as_ref().or(self.first.as_ref()).map(|s| &s.info)
    }

    /// Unix time in ms of the newest INFO.
    pub fn at_ms(&self) -> u64 {
        self.last.as_ref().or(self.first.as_ref()).map_or(0, |s| s.at_ms)
    }

    /// A field of the newest INFO as a number.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.info()?.number(field)
    }

    /// By how much a counter grew in the window. `None` when it is not there, or went backwards (a restart, or
    /// CONFIG RESETSTAT).
    pub fn delta(&self, field: &str) -> Option<f64> {
        let (first, last) = (self.first.as_ref()?, self.last.as_ref()?);
        Some(last.info.number(field)? - first.info.number(field)?).filter(|d| *d >= 0.0)
    }

    /// [`Node::delta`] per second.
    pub fn rate(&self, field: &str) -> Option<f64> {
        (self.window_s > 0.0).then(|| self.delta(field))?.map(|d| d / self.window_s)
    }

    /// Calls and microseconds of every command in the window, our own calls included.
    pub fn commands(&self) -> BTreeMap<String, CommandStat> {
        self.between().map_or_else(BTreeMap::new, |between| between.commands())
    }

    fn between(&self) -> Option<Arc<Between>> {
        Some(self.called.between(&self.first.as_ref()?.info, &self.last.as_ref()?.info))
    }

    /// Calls that were refused before they were executed, and calls that were executed and failed, in the window (6.2+;
    /// `None` before). Ours are among them.
    pub fn refused_and_failed(&self) -> Option<(u64, u64)> {
        let between = self.between()?;
        (self.level() >= (6, 2)).then_some(())?;
        Some(between.changed.iter().fold((0, 0), |(rejected, failed): (u64, u64), row| {
            let refused = row.after.rejected.saturating_sub(row.before.rejected);
            let ended = row.after.failed.saturating_sub(row.before.failed);
            (rejected.saturating_add(refused), failed.saturating_add(ended))
        }))
    }

    /// [`Node::commands`] without what we sent ourselves: our calls are taken off at the mean cost.
    pub fn foreign_commands(&self) -> Arc<BTreeMap<String, CommandStat>> {
        let between = self.between();
        between.map_or_else(Arc::default, |between| self.called.foreign(&between, &self.own.commands))
    }

    /// [`Node::foreign_commands`] without those that keep a deployment going or monitor it: what an application asks
    /// for. The rest is what replicas, Sentinels, exporters and health checks send even to a server that nobody uses.
    pub fn application_commands(&self) -> BTreeMap<String, CommandStat> {
        let all = self.foreign_commands();
        let foreign = all.iter().filter(|(name, _)| !is_housekeeping(name));
        foreign.map(|(name, stat)| (name.clone(), *stat)).collect()
    }

    /// Commands of an application per second; none where they were not counted, or the counters were reset.
    pub fn application_ops(&self) -> Option<f64> {
        self.between().filter(|between| self.window_s > 0.0 && !between.is_reset)?;
        Some(self.application_commands().values().map(|s| s.calls as f64).sum::<f64>() / self.window_s)
    }

    /// Errors by code word in the window (6.2+), without those that were answers to us.
    pub fn errors(&self) -> BTreeMap<String, u64> {
        let (Some(first), Some(last)) = (&self.first, &self.last) else { return BTreeMap::new() };
        let others = |(name, grown): (&str, u64)| {
            let ours = self.own.errors.get(name).copied().unwrap_or(0);
            Some((name.to_string(), grown.checked_sub(ours).filter(|n| *n > 0)?))
        };
        last.info.error_stats_since(&first.info).filter_map(others).collect()
    }

    /// Share of one core that the main thread used in the window, as (user, sys). Before 6.2 the figures hold the
    /// process's other threads too.
    pub fn cpu(&self) -> Option<(f64, f64)> {
        let share = |main: &str, all: &str| {
            let field = if self.number(main).is_some() { main } else { all };
            self.rate(field)
        };
        Some((share("used_cpu_user_main_thread", "used_cpu_user")?, share("used_cpu_sys_main_thread", "used_cpu_sys")?))
    }

    /// Share of one core inside commands, ours included, by the server's own clock.
    pub fn inside_share(&self) -> Option<f64> {
        self.last.as_ref().filter(|_| self.window_s > 0.0)?;
        let between = self.between();
        let grown = between.iter().flat_map(|between| &between.changed).filter_map(Changed::grown);
        Some(grown.map(|stat| stat.usec as f64).sum::<f64>() / 1e6 / self.window_s)
    }

    /// Commands processed in the window, ours taken off.
    pub fn processed(&self) -> Option<f64> {
        let own: u64 = self.own.commands.values().sum();
        Some((self.delta("total_commands_processed")? - own as f64).max(0.0))
    }

    /// [`Node::processed`] per second.
    pub fn ops(&self) -> Option<f64> {
        (self.window_s > 0.0).then(|| self.processed())?.map(|n| n / self.window_s)
    }

    /// Mean number of commands per read, ours taken off: the pipeline depth (6.0+).
    pub fn depth(&self) -> Option<f64> {
        // Facts of before 0.2 did not count our reads; each of our commands was one, but for the pairs of each second.
        let own = if self.own.reads > 0 { self.own.reads } else { self.own.commands.values().sum() };
        let reads = self.delta("total_reads_processed")? - own as f64;
        (reads > 0.0).then(|| self.processed()).flatten().map(|c| c / reads)
    }

    /// A setting.
    pub fn setting(&self, name: &str) -> Option<&str> {
        self.config.value()?.get(name).map(String::as_str)
    }

    /// A setting as a number.
    pub fn setting_number(&self, name: &str) -> Option<f64> {
        self.setting(name)?.parse().ok()
    }

    /// Redis' numbering of what it can do, (0, 0) when unknown.
    pub fn level(&self) -> (u32, u32) {
        self.info().map_or((0, 0), Info::redis_level)
    }

    /// `Valkey 9.1.2`.
    pub fn version_text(&self) -> String {
        let Some(info) = self.info() else { return "unknown version".into() };
        info.version().map_or(info.product().to_string(), |(a, b, c)| format!("{} {a}.{b}.{c}", info.product()))
    }

    /// The address without the port.
    pub fn host(&self) -> &str {
        if self.address.starts_with("unix:") {
            return "local";
        }
        self.address.rsplit_once(':').map_or(self.address.as_str(), |(h, _)| h)
    }

    /// Whether it is a master by its own last word.
    pub fn is_master(&self) -> bool {
        self.info().and_then(Info::role).map_or(self.role == Role::Master, |r| r == "master")
    }
}

/// Whether a command, as commandstats names it, keeps a deployment going or looks at it, and does nothing for an
/// application.
pub fn is_housekeeping(name: &str) -> bool {
    const ALL: &[&str] = &[
        "acl",
        "asking",
        "auth",
        "client",
        "cluster",
        "command",
        "commandlog",
        "config",
        "debug",
        "function",
        "hello",
        "info",
        "lastsave",
        "latency",
        "memory",
        "module",
        "ping",
        "psync",
        "quit",
        "readonly",
        "readwrite",
        "replconf",
        "role",
        "select",
        "slowlog",
        "sync",
        "time",
    ];
    ALL.contains(&name.split('|').next().unwrap_or(name))
}
