//! What the gateway says of itself: UNSLOW SHOW and the other commands of its operator, and the metrics.

use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use unslow_reactor::Io;
use unslow_resp::write_header;
use unslow_status::{Distribution, Exposition, Labels};
use unslow_topology::{Gateway, Health, slot_of};

use crate::clock::MS;
use crate::filter::Filter;
use crate::ids::LaneId;
use crate::reply::{bulk, error};
use crate::session::*;
use crate::shared::{Message, Question, Shared, What};
use crate::stats::Latency;
use crate::worker::Worker;

const HELP: &str = "UNSLOW SHOW CLIENTS|BACKENDS|POOLS|TOPOLOGY|STATS|TOP|CONFIG; UNSLOW PAUSE; UNSLOW RESUME; UNSLOW \
                    RELOAD; UNSLOW DRAIN";

/// An address as CLIENT LIST shows it, and CLIENT KILL takes it.
pub fn address(at: Option<SocketAddr>) -> String {
    at.map_or("unix:0".into(), |at| at.to_string())
}

/// A client's own word within a line of fields: no byte of it ends the field or the line.
fn field(word: &[u8]) -> String {
    word.iter().map(|b| if b.is_ascii_graphic() { char::from(*b) } else { '_' }).collect()
}

impl Worker {
    /// The answer to INFO UNSLOW: that this is a gateway, and in front of what. Any client that is logged in may know
    /// it; the servers' addresses are for UNSLOW SHOW TOPOLOGY.
    pub fn who_this_is(&self) -> Vec<u8> {
        let gateway = Gateway { version: env!("CARGO_PKG_VERSION").into(), serves: self.map.kind };
        let mut out = Vec::new();
        bulk(&mut out, gateway.to_info().as_bytes());
        out
    }

    /// UNSLOW ...
    pub fn unslow(&mut self, io: &mut Io, whom: Whom, words: &[String]) {
        let upper: Vec<String> = words.iter().map(|w| w.to_ascii_uppercase()).collect();
        let upper: Vec<&str> = upper.iter().map(String::as_str).collect();
        let ok = b"+OK\r\n".to_vec();
        let answer = match upper[..] {
            ["SHOW", "CLIENTS"] => return self.ask_all(whom, What::Clients),
            ["SHOW", "BACKENDS"] => return self.ask_all(whom, What::Backends),
            ["SHOW", "POOLS"] => return self.ask_all(whom, What::Pools),
            ["SHOW", "TOPOLOGY"] => rows(&topology_rows(&self.shared)),
            ["SHOW", "STATS"] => {
                self.publish_stats();
                rows(&stats_rows(&self.shared))
            }
            ["SHOW", "TOP"] => {
                self.publish_stats();
                rows(&top_rows(&self.shared))
            }
            ["SHOW", "CONFIG"] => {
                let mut out = Vec::new();
                let shown = crate::config::Config { target: self.shared.target.url(), ..(*self.config).clone() };
                bulk(&mut out, format!("{shown:#?}").as_bytes());
                out
            }
            ["PAUSE" | "RESUME"] => {
                for worker in 0..self.shared.workers.len() {
                    self.shared.post(worker, Message::Halt(upper[0] == "PAUSE"));
                }
                ok
            }
            ["RELOAD"] => {
                let Some(client) = self.client(whom) else { return };
                client.commands += 1;
                let seq = client.begin();
                return self.shared.ask_reload(Some((self.number, whom, seq)));
            }
            ["DRAIN"] => {
                self.shared.ask_end();
                ok
            }
            _ => error("ERR", &format!("unslow: {HELP}")),
        };
        self.say(io, whom, &answer);
    }

    /// Every worker says its part; the answer comes when all have.
    pub fn ask_all(&mut self, whom: Whom, what: What) {
        self.ask_about(whom, what, Filter::default());
    }

    /// The same about some clients.
    pub fn ask_about(&mut self, whom: Whom, what: What, filter: Filter) {
        let Some(client) = self.client(whom) else { return };
        client.commands += 1;
        let seq = client.begin();
        let workers = self.shared.workers.len();
        let question = Arc::new(Question {
            what,
            filter,
            asker: (self.number, whom, seq),
            parts: Mutex::new(Vec::new()),
            left: AtomicUsize::new(workers),
        });
        for worker in 0..workers {
            self.shared.post(worker, Message::Show(question.clone()));
        }
    }

    /// Our part, and the whole if it is the last.
    pub fn contribute(&mut self, io: &mut Io, question: &Question) {
        let part = match question.what {
            What::Clients | What::ClientList => {
                let all = self.meant(&question.filter);
                all.into_iter().map(|whom| vec![self.client_line(whom)]).collect()
            }
            What::ClientKill | What::ClientKillOne => {
                let (worker, asker, _) = question.asker;
                let asker = (worker == self.number).then_some(asker);
                vec![Vec::new(); self.kill(io, &question.filter, asker)]
            }
            What::Pause(..) | What::Unpause => {
                match question.what {
                    What::Pause(halt, until) => self.pauses.pause(halt, until, self.now),
                    _ => self.pauses.unpause(),
                }
                self.halted = self.pauses.halt(self.now);
                Vec::new()
            }
            What::Backends => self.backend_rows(io),
            What::Pools => self.pool_rows(),
        };
        question.parts.lock().expect("no thread panicked").push(part);
        if question.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let all: Vec<Vec<String>> = question.parts.lock().expect("no thread panicked").drain(..).flatten().collect();
        let (worker, whom, seq) = question.asker;
        if question.what == What::ClientKill
            && all.is_empty()
            && let Some(user) = question.filter.named_user()
        {
            return match worker == self.number {
                true => self.killed_nobody(io, whom, seq, user),
                false => self.shared.post(worker, Message::KilledNobody(whom, seq, user.to_vec())),
            };
        }
        let answer = match question.what {
            What::Clients => {
                rows(&all.into_iter().map(|r| r[0].split(' ').map(str::to_string).collect()).collect::<Vec<_>>())
            }
            What::ClientList => {
                let mut out = Vec::new();
                bulk(&mut out, all.into_iter().map(|r| r[0].clone() + "\n").collect::<String>().as_bytes());
                out
            }
            What::ClientKill => format!(":{}\r\n", all.len()).into_bytes(),
            What::ClientKillOne if all.is_empty() => error("ERR", "No such client"),
            What::ClientKillOne | What::Pause(..) | What::Unpause => b"+OK\r\n".to_vec(),
            What::Backends | What::Pools => rows(&all),
        };
        if worker == self.number {
            self.answer(io, whom, seq, &answer, true);
        } else {
            self.shared.post(worker, Message::Answer(whom, seq, answer));
        }
    }

    /// A client as CLIENT LIST shows it.
    pub fn client_line(&mut self, whom: Whom) -> String {
        let (now, worker) = (self.now, self.number);
        let Some(client) = self.client(whom) else { return String::new() };
        let mode = match () {
            () if matches!(client.rare.doing, Doing::Monitor) => "O",
            () if !client.subscriber.lanes.is_empty() => "P",
            () if client.transaction().is_some() => "x",
            () => "N",
        };
        let identity = client.identity;
        let mut line = format!(
            "id={} addr={} laddr={} name={} age={} idle={} flags={mode} db={} sub={} resp={} pending={} tot-cmds={} \
             own-connections={} worker={worker} lib-name={}",
            client.number,
            address(client.ends.from()),
            address(client.ends.to()),
            field(&client.names.own),
            now.saturating_sub(client.born) / (1000 * MS),
            now.saturating_sub(client.seen) / (1000 * MS),
            client.db,
            client.subscriber.channels.len(),
            client.proto,
            client.pending.len(),
            client.commands,
            u8::from(client.bulky || client.pin.is_some() || client.aside.is_some()),
            field(&client.names.library),
        );
        let user = identity.and_then(|i| self.identities[i].as_ref()?.user.clone());
        let _ = write!(line, " user={}", field(user.as_deref().unwrap_or(b"default")));
        line
    }

    fn backend_rows(&mut self, io: &mut Io) -> Vec<Vec<String>> {
        let mut out = Vec::new();
        for lane in self.lanes.iter().filter(|l| !l.free) {
            let server = &self.map.servers[lane.node];
            let set = &self.sets[lane.set];
            let state = match lane.state {
                State::Ready if lane.held => "held",
                State::Ready => "ready",
                State::Closed(_) if lane.waits_since.is_some() => "waiting",
                State::Closed(_) if lane.down_since.is_some() => "down",
                State::Closed(_) => "closed",
                State::Opening | State::Greeting => "opening",
            };
            out.push(vec![
                format!("worker={}", self.number),
                format!("node={}", self.map.servers.address(lane.node)),
                format!("role={}", server.role.word()),
                format!("state={state}"),
                format!(
                    "use={}",
                    if lane.owner.is_some() {
                        "dedicated"
                    } else if lane.pooled {
                        "pooled"
                    } else {
                        "shared"
                    }
                ),
                format!("db={}", set.db),
                format!("resp={}", set.proto),
                format!("in_flight={}", lane.sent),
                format!("waiting={}", lane.flights.len() - lane.sent),
                format!("kept_bytes={}", lane.journal.len()),
                format!("unsent_bytes={}", lane.connection.map_or(0, |c| io.unsent(c))),
            ]);
        }
        out
    }

    fn pool_rows(&self) -> Vec<Vec<String>> {
        let row = |(PoolKey { db, proto, node, .. }, lanes): (&PoolKey, &Vec<LaneId>)| {
            vec![
                format!("worker={}", self.number),
                format!("node={}", self.map.servers.address(*node)),
                format!("db={db}"),
                format!("resp={proto}"),
                format!("idle={}", lanes.len()),
                format!("max={}", self.config.pool),
            ]
        };
        self.pool.iter().map(row).collect()
    }
}

/// An array of lines: a person reads them in redis-cli, a program splits them at blanks and `=`.
fn rows(rows: &[Vec<String>]) -> Vec<u8> {
    let mut out = Vec::new();
    write_header(&mut out, b'*', rows.len());
    for row in rows {
        bulk(&mut out, row.join(" ").as_bytes());
    }
    out
}

fn topology_rows(shared: &Shared) -> Vec<Vec<String>> {
    let map = shared.map();
    let node = |n: &unslow_topology::Node| {
        let number = |n: Option<u64>| n.map_or("-".to_string(), |n| n.to_string());
        vec![
            format!("node={}", n.address),
            format!("role={}", n.role.word()),
            format!(
                "health={}",
                match n.health {
                    Health::Up => "up",
                    Health::Suspected => "suspected",
                    Health::Failed => "failed",
                }
            ),
            format!("master={}", n.master.as_deref().and_then(|id| map.topology.by_id(id)).map_or("-", |m| &m.address)),
            format!("slots={}", if n.slots.is_empty() { "-".into() } else { n.slots.to_string().replace(' ', ",") }),
            format!("epoch={}", n.config_epoch),
            format!("zone={}", n.zone.as_deref().unwrap_or("-")),
            format!("rtt_us={}", number(n.rtt_us)),
            format!("lag_bytes={}", number(n.lag_bytes)),
            // By which errors name it to clients that may not see this.
            format!("number={}", number(map.servers.called(&n.address).map(u64::from))),
        ]
    };
    map.topology.nodes.iter().map(node).collect()
}

fn stats_rows(shared: &Shared) -> Vec<Vec<String>> {
    let stats = shared.stats();
    let mut out: Vec<Vec<String>> = plain(&stats, shared)
        .into_iter()
        .map(|(kind, name, _, n)| vec![format!("{name}{}={n}", total(kind))])
        .collect();
    out.extend(stats.errors.iter().map(|(reason, n)| vec![format!("errors_{reason}={n}")]));
    let latency = |l: &Latency| {
        vec![
            format!("count={}", l.count),
            format!("mean_us={}", l.sum_us.checked_div(l.count).unwrap_or(0)),
            format!("p50_us_below={}", l.quantile_us(0.5)),
            format!("p99_us_below={}", l.quantile_us(0.99)),
        ]
    };
    let map = shared.map();
    for (l, address) in stats.nodes.iter().zip(map.servers.addresses()).filter(|(l, _)| l.count > 0) {
        out.push([vec![format!("node={address}")], latency(l)].concat());
    }
    let table = shared.table();
    for (i, l) in stats.commands_by.iter().enumerate().filter(|(i, l)| l.count > 0 && *i < table.count()) {
        out.push([vec![format!("command={}", table.get(i as u16).name)], latency(l)].concat());
    }
    out
}

/// The hottest keys of those sampled: share of all keys, and the key or what hides it.
fn top_rows(shared: &Shared) -> Vec<Vec<String>> {
    let (stats, config) = (shared.stats(), shared.config());
    let mut all: Vec<(&Vec<u8>, u64)> = stats.top.counts.iter().map(|(k, n)| (k, *n)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all.truncate(32);
    let row = |(key, n): (&Vec<u8>, u64)| {
        let digest =
            key.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3));
        let name = if config.show_keys { key.escape_ascii().to_string() } else { format!("{digest:016x}") };
        vec![
            format!("key={name}"),
            format!("slot={}", slot_of(key)),
            format!("share={:.4}", n as f64 / stats.top.seen.max(1) as f64),
            format!("sampled={n}"),
        ]
    };
    all.into_iter().map(row).collect()
}

/// Whether a value can fall.
#[derive(Clone, Copy, PartialEq)]
enum MetricKind {
    Counter,
    Gauge,
}

/// Kind, name, help and value of everything that has no labels.
fn plain(stats: &crate::stats::Stats, shared: &Shared) -> Vec<(MetricKind, &'static str, &'static str, u64)> {
    use MetricKind::{Counter, Gauge};
    vec![
        (Gauge, "uptime_seconds", "Seconds since the start", shared.started.elapsed().as_secs()),
        (Gauge, "clients", "Clients connected", stats.clients),
        (Counter, "clients_accepted", "Clients that came", stats.clients_accepted),
        (Counter, "clients_refused", "Clients refused: max_clients, or draining", stats.clients_refused),
        (Counter, "clients_closed_slow", "Clients closed because they did not read", stats.clients_closed_slow),
        (Counter, "commands", "Commands of clients", stats.commands),
        (Counter, "received_bytes", "Bytes of clients' commands", stats.bytes_in),
        (Counter, "sent_bytes", "Bytes of answers", stats.bytes_out),
        (Counter, "server_errors", "Error replies of servers that clients saw", stats.errors_passed),
        (Counter, "moved", "MOVED handled inside", stats.moved),
        (Counter, "ask", "ASK handled inside", stats.asked),
        (Counter, "retries", "Commands sent again for another reason", stats.again),
        (Counter, "held", "Commands that waited for a connection or a node", stats.held),
        (Gauge, "server_connections", "Connections to servers", stats.lanes),
        (Gauge, "batching_threads", "Threads where commands wait for each other (batch_us)", stats.batching),
        (Counter, "server_connections_opened", "Connections to servers opened", stats.lanes_opened),
        (Counter, "server_connections_failed", "Connections to servers that could not be opened", stats.lanes_failed),
    ]
}

/// How the name of a counter ends.
fn total(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Counter => "_total",
        MetricKind::Gauge => "",
    }
}

/// For `/metrics`.
pub fn metrics(shared: &Shared) -> String {
    let stats = shared.stats();
    let mut all = Exposition::new("unslow_gateway");
    for (kind, name, help, n) in plain(&stats, shared) {
        match kind {
            MetricKind::Counter => all.counter(name, help, n),
            MetricKind::Gauge => all.gauge(name, help, n.try_into().unwrap_or(i64::MAX)),
        }
    }
    let errors = stats.errors.iter().map(|(reason, n)| (vec![("reason", reason.to_string())], *n));
    all.counters("errors", "The gateway's own errors", errors);
    let map = shared.map();
    let up = map.topology.nodes.iter().map(|node| {
        let labels = vec![("node", node.address.clone()), ("role", node.role.word().to_string())];
        (labels, i64::from(node.health == Health::Up))
    });
    all.gauges("node_up", "Whether a node answers", up);
    let table = shared.table();
    let by_node = stats.nodes.iter().zip(map.servers.addresses()).map(|(l, address)| ("node", address.to_string(), l));
    let by_command = stats.commands_by.iter().take(table.count()).enumerate();
    let by_command = by_command.map(|(i, l)| ("command", table.get(i as u16).name.to_string(), l));
    all.histograms("node_latency_seconds", "From a command's arrival to its answer, by node", series(by_node));
    all.histograms("command_latency_seconds", "From a command's arrival to its answer, by command", series(by_command));
    all.text()
}

/// Without those that nothing was counted in.
fn series<'a>(
    all: impl Iterator<Item = (&'static str, String, &'a Latency)>,
) -> impl Iterator<Item = (Labels, Distribution)> {
    all.filter(|(.., latency)| latency.count > 0).map(|(label, value, latency)| {
        let buckets = latency.bounded().iter().enumerate().map(|(i, n)| ((1u64 << i) as f64 / 1e6, *n));
        let sum = latency.sum_us as f64 / 1e6;
        (vec![(label, value)], Distribution { buckets: buckets.collect(), count: latency.count, sum })
    })
}

#[cfg(test)]
mod tests {
    use unslow_resp::{Frame, Value};

    use super::*;
    use crate::config::Config;
    use crate::map::tests::node;
    use crate::stats::Stats;
    use crate::worker::tests::{A, B, C, Rig};

    #[test]
    fn info_unslow_says_what_this_is_and_other_sections_are_the_servers() {
        let mut rig = Rig::halves(Config::default());
        let client = rig.client(None);
        rig.says(client, "info Unslow\r\n");
        let told = Value::from(Frame::new(rig.told(client).as_bytes())).text().unwrap();
        let gateway = Gateway::parse(&unslow_topology::Info::parse(&told)).unwrap();
        assert_eq!(gateway.serves, unslow_topology::DeploymentKind::Cluster);
        assert_eq!(gateway.version, env!("CARGO_PKG_VERSION"));
        assert_eq!(rig.asked(0).len() + rig.asked(1).len(), 0, "no server was asked");
        rig.says(client, "INFO server\r\n");
        assert_eq!([rig.asked(0), rig.asked(1)].concat(), ["INFO server"]);
    }

    #[test]
    fn info_unslow_needs_a_login_where_clients_log_in() {
        let config = Config { client_auth: crate::config::ClientAuth::Server, ..Config::default() };
        let mut rig = Rig::halves(config);
        let client = rig.client(None);
        rig.says(client, "INFO UNSLOW\r\n");
        assert!(rig.told(client).starts_with("-NOAUTH"));
    }

    #[test]
    fn show_topology_is_what_discovery_reads() {
        let nodes = vec![node(A, None, &[(0, 8191)]), node(B, None, &[(8192, 16383)]), node(C, Some(B), &[])];
        let mut rig = Rig::new(Config::default(), nodes);
        let client = rig.client(None);
        rig.says(client, "UNSLOW SHOW TOPOLOGY\r\n");
        let told = Value::from(Frame::new(rig.told(client).as_bytes()));
        let rows: Vec<String> = told.items().iter().filter_map(Value::text).collect();
        let nodes = unslow_topology::NodeBehind::parse_all(rows.iter().map(String::as_str)).unwrap();
        let told: Vec<(&str, unslow_topology::Role)> = nodes.iter().map(|n| (n.address.as_str(), n.role)).collect();
        let (master, replica) = (unslow_topology::Role::Master, unslow_topology::Role::Replica);
        assert_eq!(told, [(A, master), (B, master), (C, replica)]);
        // And the numbers by which errors name them.
        assert!((0..3).zip(&rows).all(|(n, row)| row.ends_with(&format!(" number={n}"))), "{rows:?}");
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_empty_series_are_left_out() {
        let (mut busy, idle) = (Latency::default(), Latency::default());
        [3, 5, 5, 200_000_000].into_iter().for_each(|us| busy.add(us));
        let mut all = Exposition::new("unslow_gateway");
        let both = [("node", "a".to_string(), &busy), ("node", "idle".to_string(), &idle)];
        all.histograms("x_seconds", "Help", series(both.into_iter()));
        let out = all.text();
        for line in [
            "# TYPE unslow_gateway_x_seconds histogram",
            "unslow_gateway_x_seconds_bucket{node=\"a\",le=\"2e-06\"} 0",
            "unslow_gateway_x_seconds_bucket{node=\"a\",le=\"4e-06\"} 1",
            "unslow_gateway_x_seconds_bucket{node=\"a\",le=\"8e-06\"} 3",
            "unslow_gateway_x_seconds_bucket{node=\"a\",le=\"67.108864\"} 3",
            "unslow_gateway_x_seconds_bucket{node=\"a\",le=\"+Inf\"} 4",
            "unslow_gateway_x_seconds_sum{node=\"a\"} 200.000013",
            "unslow_gateway_x_seconds_count{node=\"a\"} 4",
        ] {
            assert!(out.lines().any(|l| l == line), "{line} is missing in\n{out}");
        }
        assert!(!out.contains("idle"), "{out}");
        assert!(!out.contains("134.217728"), "the last bucket has no upper end: {out}");
    }

    #[test]
    fn hottest_keys_come_first_and_are_hashed_unless_show_keys_is_set() {
        for (show_keys, shown) in [(false, None), (true, Some("key=hot"))] {
            let rig = Rig::halves(Config { show_keys, ..Config::default() });
            let mut stats = Stats::default();
            [&b"hot"[..], b"cold", b"hot", b"hot"].into_iter().for_each(|key| stats.top.count(key));
            rig.worker.shared.publish(0, &stats);
            let rows = top_rows(&rig.worker.shared);
            assert_eq!(rows[0][2..], ["share=0.7500", "sampled=3"]);
            assert_eq!(rows[0][1], format!("slot={}", slot_of(b"hot")));
            assert_eq!(rows[0][0].contains("hot"), show_keys, "{rows:?}");
            assert!(shown.is_none_or(|name| rows[0][0] == name), "{rows:?}");
        }
    }

    #[test]
    fn show_backends_counts_in_flight_and_waiting_commands() {
        let mut rig = Rig::halves(Config::default());
        let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
        let (client, operator) = (rig.client(None), rig.client(None));
        rig.says(client, &format!("GET {here}\r\nGET {here}\r\n"));
        rig.asked(0);
        rig.says(client, &format!("GET {there}\r\n"));
        rig.says(operator, "UNSLOW SHOW BACKENDS\r\n");
        rig.turn();
        let told = rig.told(operator);
        let row = |node: &str| told.lines().find(|l| l.contains(&format!("node={node} "))).unwrap_or_default();
        for (row, expected) in [
            (row(A), "state=ready use=shared db=0 resp=2 in_flight=2 waiting=0 "),
            (row(B), "state=opening use=shared db=0 resp=2 in_flight=0 waiting=1 "),
        ] {
            assert!(row.contains(expected), "{row}");
        }
    }
}
