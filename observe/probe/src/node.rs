//! One data node through its window: INFO, PINGs, the dearer questions, INFO.

use std::time::{Duration, Instant};

use unslow_client::{Error, ErrorKind, Target};
use unslow_facts::{Node, Point, Rtt, Sample, Seen};
use unslow_topology::{Info, Member, Role};

use crate::ask::{Ask, Salt, seen};
use crate::{Settings, clients, cluster, config, key_sizes, latency, now_ms, rtt, slowlog};

/// PINGs before the window: the baseline.
const BASELINE_PINGS: usize = 50;

pub fn look(member: &Member, target: &Target, settings: &Settings, salt: &Salt, many: bool) -> Node {
    let mut node = Node::new(&member.address, member.role);
    node.master = member.master.clone();
    node.node_id = member.node_id.clone();
    let mut ask = match Ask::open(target, &settings.options) {
        Ok(ask) => ask,
        Err(e) => {
            silent(&mut node, &e, target, settings);
            node.unreachable = Some(e.message);
            return node;
        }
    };
    node.open_door = !ask.connection().authenticated && settings.options.tls.cert_and_key.is_none();
    node.connect_us = Some(ask.connection().connect_time.as_micros() as u64);
    if let Err(e) = window(&mut ask, &mut node, settings, salt, many) {
        // Half a picture is still one: what was seen so far stays.
        silent(&mut node, &e, target, settings);
        node.unreachable = Some(e.message);
    }
    node.own = ask.own;
    node
}

/// Whether a node that did not answer in time answers a PING on a new connection: one long command looks the same for as
/// long as it lasts.
fn silent(node: &mut Node, e: &Error, target: &Target, settings: &Settings) {
    if e.kind != ErrorKind::Timeout {
        return;
    }
    let begun = Instant::now();
    let again = Ask::open(target, &settings.options).and_then(|mut ask| ask.call(&["PING"]).map(drop));
    if again.is_err_and(|e| e.kind == ErrorKind::Timeout) {
        let waited = settings.options.connect_timeout.min(settings.options.command_timeout) + begun.elapsed();
        node.silent_ms = Some(waited.as_millis() as u64);
    }
}

fn window(ask: &mut Ask, node: &mut Node, settings: &Settings, salt: &Salt, many: bool) -> Result<(), Error> {
    let baseline = rtt::several(ask, BASELINE_PINGS);
    let baseline = match baseline {
        Ok(rtt) => rtt,
        Err(e) if e.is_fatal() => return Err(e),
        Err(e) => {
            node.rtt = seen(Err(e), "PING");
            None
        }
    };
    ask.counting = true; // the first INFO itself shows up in the second one's counters
    let first = sample(ask)?;
    let begun = Instant::now();
    let level = first.as_ref().map_or((0, 0), |s| s.info.redis_level());
    let is_cluster = first.as_ref().is_none_or(|s| s.info.get("cluster_enabled") != Some("0"));
    let total = first.as_ref().and_then(|s| s.info.number("connected_clients")).unwrap_or(0.0) as u64;
    let loading = first.as_ref().is_some_and(|s| s.info.get("loading") == Some("1"));
    node.first = first;
    node.config = config::look(ask, level);
    if is_cluster {
        cluster::look(ask, node, level);
        if let Some(Role::Unknown) = Some(node.role)
            && let Some(me) = node.cluster.value().and_then(|v| v.myself())
        {
            node.role = if me.is("master") { Role::Master } else { Role::Replica };
        }
    }

    timeline(ask, node, settings.window, begun, many)?;

    let mut guard = Guard { baseline, slow: 0 };
    let (log, keys) = slowlog::look(ask, salt);
    node.slowlog = log;
    if guard.go_on(ask)? {
        node.latency = latency::look(ask);
    }
    if guard.go_on(ask)? && node.first.is_some() {
        node.clients = clients::look(ask, level, total);
    }
    if guard.go_on(ask)? && !loading {
        let cluster_replica = node.role == Role::Replica && is_cluster;
        node.key_sizes = key_sizes::look(ask, salt, &keys, cluster_replica);
    }
    ask.own.stopped_early = guard.slow > 1;
    node.last = sample(ask)?;
    node.window_s = begun.elapsed().as_secs_f64();
    let times: Vec<u32> = node.pings.iter().map(|(_, us)| *us).collect();
    if let Some(rtt) = Rtt::of(&times) {
        node.rtt = Seen::Yes { value: rtt, source: "PING".into(), at_ms: now_ms() };
    }
    Ok(())
}

/// `None` when the user may not run INFO: the rest is worth asking all the same.
fn sample(ask: &mut Ask) -> Result<Option<Sample>, Error> {
    match ask.call(&["INFO", "ALL"]) {
        Ok(value) => {
            let mut info = Info::parse(&value.text().unwrap_or_default());
            // Paths tell more of a machine than a diagnosis needs.
            info.0.retain(|field, _| !matches!(field.as_str(), "executable" | "config_file"));
            Ok(Some(Sample { at_ms: now_ms(), info }))
        }
        Err(e) if matches!(e.kind, ErrorKind::Denied | ErrorKind::Unknown) => Ok(None),
        // BUSY, for one: told as it is, not as a lack of rights.
        Err(e) => Err(e),
    }
}

/// PINGs and a light INFO each second until the window closes.
fn timeline(ask: &mut Ask, node: &mut Node, window: Duration, begun: Instant, many: bool) -> Result<(), Error> {
    let pause = Duration::from_millis(if many { 200 } else { 20 });
    // The questions at the end take about this long; they belong into the window.
    let end = window.saturating_sub(Duration::from_millis(100)).max(Duration::from_millis(100));
    let mut next_point = Duration::from_secs(1);
    let mut before: Option<(Duration, f64, f64, f64)> = None;
    let counters = |ask: &mut Ask| -> Result<Option<(f64, f64, f64)>, Error> {
        let commands = [vec!["INFO", "stats"], vec!["INFO", "cpu"]];
        let text: String = ask.pipeline(&commands)?.into_iter().flatten().filter_map(|v| v.text()).collect();
        let info = Info::parse(&text);
        let cpu = |main: &str, all: &str| info.number(main).or_else(|| info.number(all));
        Ok(Some((
            info.number("total_commands_processed").unwrap_or(0.0),
            cpu("used_cpu_user_main_thread", "used_cpu_user").unwrap_or(0.0),
            cpu("used_cpu_sys_main_thread", "used_cpu_sys").unwrap_or(0.0),
        )))
    };
    let plots = node.first.is_some() && !many;
    if plots && let Some((c, u, s)) = counters(ask)? {
        before = Some((begun.elapsed(), c, u, s));
    }
    while begun.elapsed() < end {
        std::thread::sleep(pause.min(end.saturating_sub(begun.elapsed())));
        let at = begun.elapsed();
        match rtt::once(ask) {
            Ok(us) => node.pings.push((at.as_millis() as u32, us)),
            Err(e) if e.is_fatal() => return Err(e),
            Err(_) => {}
        }
        if plots && at >= next_point {
            next_point += Duration::from_secs(1);
            if let (Some((t0, c0, u0, s0)), Some((c, u, s))) = (before, counters(ask)?) {
                let dt = (begun.elapsed() - t0).as_secs_f64();
                node.series.push(Point {
                    at_ms: begun.elapsed().as_millis() as u32,
                    commands_per_s: ((c - c0) / dt).max(0.0),
                    cpu_user_share: ((u - u0) / dt).max(0.0),
                    cpu_sys_share: ((s - s0) / dt).max(0.0),
                });
                before = Some((begun.elapsed(), c, u, s));
            }
        }
    }
    Ok(())
}

/// Stops the dearer questions when the server's own PING becomes twice as slow while we ask.
struct Guard {
    baseline: Option<Rtt>,
    slow: u32,
}

impl Guard {
    fn go_on(&mut self, ask: &mut Ask) -> Result<bool, Error> {
        let Some(baseline) = self.baseline else { return Ok(true) };
        if self.slow < 2 {
            let now = match rtt::several(ask, 5) {
                Ok(Some(rtt)) => rtt,
                Ok(None) => return Ok(true),
                Err(e) if e.is_fatal() => return Err(e),
                Err(_) => return Ok(true),
            };
            self.slow = if slower(now, baseline) { self.slow + 1 } else { 0 };
        }
        Ok(self.slow < 2)
    }
}

/// Whether PINGs take twice as long as before. Half a millisecond on top: on a quiet network twice nothing is still
/// nothing.
fn slower(now: Rtt, baseline: Rtt) -> bool {
    now.us_p50 > (2 * baseline.us_p99).max(baseline.us_p99 + 500)
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

    use unslow_facts::Own;

    use super::*;

    fn node(address: &str, run_id: &str, master: Option<&str>) -> Node {
        let info = Info::parse(&format!("run_id:{run_id}\r\n"));
        let own = Own { commands: BTreeMap::from([("info".to_string(), 2)]), total: 5, stopped_early: false };
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
        assert_eq!((nodes[0].own.total, nodes[0].own.commands["info"]), (10, 4));
        assert_eq!(nodes[1].master.as_deref(), Some("h:1"));
        assert_eq!(notes, ["10.0.0.1:1 and h:1 are the same server"]);
    }

    #[test]
    fn a_server_is_slower_only_beyond_twice_its_baseline_plus_a_floor() {
        for (p99, p50, slow) in [
            (100, 600, false),
            (100, 601, true),
            (500, 1000, false),
            (500, 1001, true),
            (2000, 4000, false),
            (2000, 4001, true),
        ] {
            let baseline = Rtt { us_p99: p99, ..Rtt::default() };
            assert_eq!(slower(Rtt { us_p50: p50, ..Rtt::default() }, baseline), slow, "{p50} us after {p99} us");
        }
    }
}
