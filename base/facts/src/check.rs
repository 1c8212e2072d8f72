//! Whether numbers of a file can be what a run saw. A file may have been edited, or damaged where its form still holds.

use std::fmt::{Display, Formatter};

use unslow_topology::Info;

use crate::{ClientError, Facts, Host, KeysSeen, LogEvent, Node, Rtt};

/// No machine has more processors than this, so no share of a core is larger.
const CORES: f64 = 1e5;
/// No server has counted more of anything, calls or microseconds: it is 31 years of the latter.
const COUNTED: f64 = 1e15;
/// No machine has more memory: 1 EiB.
const LARGEST_BYTES: f64 = (1u64 << 60) as f64;
/// A year: no window is longer.
const WINDOW_S: f64 = 366.0 * 86400.0;
/// The end of the year 9999, unix time in ms.
const LAST_MS: f64 = 253_402_300_799_999.0;
/// No window is shorter.
const SHORTEST_S: f64 = 0.001;

/// A number that no run can have seen.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Impossible {
    /// It is outside of what can be, both ends included.
    #[error("{field} is {value}; {least} to {most} was expected")]
    Outside { field: String, value: f64, least: f64, most: f64 },
    /// Round trips whose order is none.
    #[error("{field}: its percentiles do not rise, or it counts none")]
    Unordered { field: String },
}

/// Finds the first number that cannot be.
pub fn all(facts: &Facts) -> Result<(), Impossible> {
    // Without a server there was no window.
    let least_s = if facts.of_words_alone() { 0.0 } else { SHORTEST_S };
    within(facts.window_s, least_s, WINDOW_S, "window_s")?;
    facts.client_errors.iter().try_for_each(client_error)?;
    facts.log_events.iter().try_for_each(log_event)?;
    facts.keys_seen.iter().try_for_each(keys_seen)?;
    within(facts.cost.seconds, 0.0, WINDOW_S, "cost.seconds")?;
    within(facts.cost.server_cpu_share, 0.0, CORES, "cost.server_cpu_share")?;
    within(facts.cost.slowest_us, 0.0, 1e12, "cost.slowest_us")?;
    facts.nodes.iter().try_for_each(node)?;
    facts.hosts.iter().try_for_each(host)
}

impl Node {
    /// Finds the first number that no run can have seen.
    pub fn check(&self) -> Result<(), Impossible> {
        node(self)
    }
}

impl Host {
    /// Finds the first number that no run can have seen.
    pub fn check(&self) -> Result<(), Impossible> {
        host(self)
    }
}

/// What a number is of. Only the name of one that cannot be is ever written.
struct Of<F, W>(F, W);

impl<F: Display, W: Display> Display for Of<F, W> {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {}", self.0, self.1)
    }
}

fn node(node: &Node) -> Result<(), Impossible> {
    let of = |field: &'static str| Of(field, &node.address);
    for (sample, which) in [(&node.first, "first"), (&node.last, "last")] {
        sample.iter().try_for_each(|s| counters(&s.info, of(which)))?;
    }
    if let (Some(first), Some(last)) = (&node.first, &node.last) {
        window(node.window_s, of("window_s"))?;
        if last.at_ms < first.at_ms {
            // A clock that was set back in the window; more than a day is no clock's correction.
            let back_ms = (first.at_ms - last.at_ms) as f64;
            within(back_ms, 0.0, 86_400_000.0, of("last.at_ms before first.at_ms, in ms,"))?;
        }
    } else {
        within(node.window_s, 0.0, WINDOW_S, of("window_s"))?;
    }
    for point in &node.series {
        within(point.commands_per_s, 0.0, 1e12, of("series.commands_per_s"))?;
        within(point.cpu_user_share, 0.0, CORES, of("series.cpu_user_share"))?;
        within(point.cpu_sys_share, 0.0, CORES, of("series.cpu_sys_share"))?;
        within(point.connections_per_s.unwrap_or(0.0), 0.0, 1e12, of("series.connections_per_s"))?;
    }
    for (command, ranges) in node.histograms.value().into_iter().flatten() {
        for range in ranges {
            let (end, calls, whose) = (range.up_to_us as f64, range.calls as f64, &node.address);
            within(end, 0.0, COUNTED, format_args!("up_to_us in the histogram of {command} of {whose}"))?;
            within(calls, 0.0, COUNTED, format_args!("calls in the histogram of {command} of {whose}"))?;
        }
    }
    if let Some(rtt) = node.rtt.value() {
        ordered(rtt, of("rtt"))?;
    }
    Ok(())
}

/// Figures of a message: sums and quotients of them must hold, even of a forged one.
fn client_error(error: &ClientError) -> Result<(), Impossible> {
    let shown = error.multiplexer.as_ref();
    let pools = shown.into_iter().flat_map(|m| [m.worker, m.iocp]).flatten();
    let figures = shown.into_iter().flat_map(|m| [m.queued, m.sent, m.unread_bytes, m.partial_bytes, m.queued_items]);
    let all = figures.flatten().chain(pools.flat_map(|p| [p.busy, p.min, p.max]));
    let all = all.chain([error.count]).chain(error.timeout_ms);
    all.into_iter().try_for_each(|n| within(n as f64, 0.0, COUNTED, "a figure of client_errors"))
}

fn keys_seen(seen: &KeysSeen) -> Result<(), Impossible> {
    within(seen.at_ms as f64, 0.0, LAST_MS, "a time of keys_seen")?;
    within(seen.keys as f64, 0.0, COUNTED, "keys of keys_seen")?;
    within(seen.scanned as f64, 0.0, COUNTED, "scanned of keys_seen")?;
    seen.patterns.iter().try_for_each(|pattern| {
        within(pattern.keys, 0.0, COUNTED, "keys of a pattern")?;
        within(pattern.lasting_share.unwrap_or(0.0), 0.0, 1.0, "lasting_share of a pattern")?;
        within(pattern.memory.unwrap_or(0.0), 0.0, LARGEST_BYTES, "memory of a pattern")
    })?;
    seen.longest.iter().try_for_each(|key| within(key.length as f64, 0.0, LARGEST_BYTES, "length of a key"))?;
    seen.hot.iter().try_for_each(|of| {
        within(of.seconds, 0.0, WINDOW_S, "seconds of hot keys")?;
        within(of.started_ms as f64, 0.0, LAST_MS, "a time of hot keys")?;
        within(of.core_share, 0.0, CORES, "core_share of hot keys")?;
        let shares = of.keys.iter().flat_map(|key| [key.cpu_share, key.net_share]).flatten();
        shares.into_iter().try_for_each(|share| within(share, 0.0, 1.0, "a share of a hot key"))
    })
}

fn log_event(event: &LogEvent) -> Result<(), Impossible> {
    within(event.count as f64, 1.0, COUNTED, "a count of log_events")?;
    within(event.at_ms as f64, event.since_ms as f64, LAST_MS, "a time of log_events")
}

/// Counters of an INFO: of commands, errors and databases. Sums are made of them.
fn counters(info: &Info, of: impl Display) -> Result<(), Impossible> {
    const OF: &[&str] = &["calls", "usec", "rejected_calls", "failed_calls", "count", "keys"];
    for prefix in ["cmdstat_", "errorstat_", "db"] {
        for (field, value) in info.prefixed(prefix) {
            for (name, number) in value.split(',').filter_map(|part| part.split_once('=')) {
                if let (true, Ok(number)) = (OF.contains(&name), number.parse::<f64>()) {
                    // A clock that is set back can make a sum negative.
                    within(number, -COUNTED, COUNTED, format_args!("{name} of {prefix}{field} in {of}"))?;
                }
            }
        }
    }
    Ok(())
}

fn host(host: &Host) -> Result<(), Impossible> {
    let machine = format!("the machine {}", host.hostname);
    within(host.window_s, 0.0, WINDOW_S, Of("window_s", &machine))?;
    // Two readings of a counter are never taken at one moment: a share may be a little over all.
    for (share, field) in [(host.steal_share, "steal_share"), (host.busy_share, "busy_share")] {
        within(share.unwrap_or(0.0), -0.5, 1.5, Of(field, &machine))?;
    }
    within(host.clock_read_ns.unwrap_or(0.0), 0.0, 1e9, Of("clock_read_ns", &machine))?;
    for (what, share) in &host.pressure {
        within(*share, 0.0, 2.0, Of(format_args!("pressure.{what}"), &machine))?;
    }
    for core in &host.cores {
        for (share, field) in [(core.busy_share, "busy_share"), (core.softirq_share, "softirq_share")] {
            within(share, -0.5, 1.5, Of(format_args!("{field} of processor {}", core.number), &machine))?;
        }
        let speed = core.speed.iter().flat_map(|s| [s.first_khz, s.last_khz, Some(s.allowed_khz), Some(s.max_khz)]);
        for count in speed.chain([core.device_interrupts]).flatten() {
            within(count as f64, 0.0, COUNTED, Of(format_args!("a figure of processor {}", core.number), &machine))?;
        }
    }
    let reclaims = host.reclaims.iter().flat_map(|r| [r.direct, r.compactions]);
    let nodes = host.memory_nodes.iter().filter_map(|n| n.memory_bytes);
    let held = host.processes.iter().flat_map(|p| &p.anon_by_node).map(|(_, bytes)| *bytes);
    for figure in reclaims.chain(nodes).chain(held) {
        // Sums are made of them.
        within(figure as f64, 0.0, LARGEST_BYTES, Of("reclaims, memory_nodes or anon_by_node", &machine))?;
    }
    for disk in &host.disks {
        within(disk.write_await_ms, 0.0, 1e9, Of("disks.write_await_ms", &machine))?;
        within(disk.busy_share, 0.0, 1e3, Of("disks.busy_share", &machine))?;
    }
    for process in &host.processes {
        let shares = [
            (process.cpu_share, "cpu_share"),
            (process.main_cpu_share, "main_cpu_share"),
            (process.run_delay_share, "run_delay_share"),
            (process.throttled_share, "throttled_share"),
            (process.quota_cores, "quota_cores"),
            (process.memory_group.as_ref().and_then(|g| g.stalled_share), "memory_group.stalled_share"),
        ];
        for (share, field) in shares {
            within(share.unwrap_or(0.0), 0.0, CORES, Of(format_args!("{field} of process {}", process.pid), &machine))?;
        }
        if let Some(storage) = &process.storage {
            let free = Of(format_args!("storage.free_bytes of process {}", process.pid), &machine);
            within(storage.free_bytes as f64, 0.0, storage.size_bytes as f64, free)?;
        }
    }
    host.neighbours.iter().try_for_each(|n| within(n.cpu_share, 0.0, CORES, Of("neighbours.cpu_share", &machine)))
}

fn ordered(rtt: &Rtt, name: impl Display) -> Result<(), Impossible> {
    let rising = [rtt.us_min, rtt.us_p50, rtt.us_p99, rtt.us_max].is_sorted();
    if rising && rtt.count > 0 { Ok(()) } else { Err(Impossible::Unordered { field: name.to_string() }) }
}

fn window(seconds: f64, name: impl Display) -> Result<(), Impossible> {
    within(seconds, SHORTEST_S, WINDOW_S, name)
}

fn within(value: f64, least: f64, most: f64, name: impl Display) -> Result<(), Impossible> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Impossible::Outside { field: name.to_string(), value, least, most })
}

#[cfg(test)]
mod tests {
    use unslow_topology::{ClusterView, Role};

    use super::*;
    use crate::{Facts, Sample, Seen, TimeRange};

    /// A saved look gives the same diagnosis only if its figures are read to the last bit.
    #[test]
    fn figures_are_read_as_they_were_saved() {
        let mut bits = 0x3f71_2345_6789_abcd_u64;
        for _ in 0..10_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let figure = f64::from_bits(bits >> 2 | 0x2000_0000_0000_0000);
            let saved = serde_json::to_string(&figure).unwrap();
            assert_eq!(serde_json::from_str::<f64>(&saved).unwrap().to_bits(), figure.to_bits(), "{saved}");
        }
    }

    fn facts() -> Facts {
        let mut facts = Facts::of_nothing("redis://a:1");
        facts.window_s = 10.0;
        facts.nodes.push(Node { window_s: 10.0, ..Node::new("a:1", Role::Master) });
        facts.hosts.push(Host { window_s: 10.0, ..Host::default() });
        facts
    }

    fn histogram(up_to_us: u64, calls: u64) -> Seen<std::collections::BTreeMap<String, Vec<TimeRange>>> {
        let value = [("get".to_string(), vec![TimeRange { up_to_us, calls }])].into();
        Seen::yes(value, "LATENCY HISTOGRAM", 1)
    }

    #[test]
    fn numbers_that_cannot_be_are_refused_by_their_name() {
        assert_eq!(all(&facts()), Ok(()));
        type Damage = fn(&mut Facts);
        let cases: &[(Damage, &str)] = &[
            (|f| f.window_s = 0.0, "window_s is 0"),
            (|f| f.window_s = -3.0, "window_s is -3"),
            (|f| f.cost.server_cpu_share = -1.0, "cost.server_cpu_share"),
            (|f| f.nodes[0].window_s = 1e300, "window_s of a:1"),
            (
                |f| {
                    f.nodes[0].series.push(crate::Point {
                        at_ms: 1000,
                        commands_per_s: 1.0,
                        cpu_user_share: 0.1,
                        cpu_sys_share: 0.1,
                        connections_per_s: Some(f64::NAN),
                    });
                },
                "series.connections_per_s of a:1",
            ),
            (|f| f.nodes[0].histograms = histogram(1, u64::MAX), "calls in the histogram of get of a:1"),
            (|f| f.nodes[0].histograms = histogram(u64::MAX, 1), "up_to_us in the histogram of get of a:1"),
            (|f| f.hosts[0].steal_share = Some(17.0), "steal_share of the machine"),
            (
                |f| f.client_errors = vec![ClientError { timeout_ms: Some(u64::MAX), ..ClientError::default() }],
                "a figure of client_errors",
            ),
            (|f| f.hosts[0].busy_share = Some(f64::NAN), "busy_share of the machine"),
            (
                |f| f.hosts[0].cores = vec![crate::Core { softirq_share: 7.0, ..crate::Core::default() }],
                "softirq_share of processor 0 of the machine",
            ),
            (
                |f| {
                    let anon_by_node = vec![(0, u64::MAX)];
                    f.hosts[0].processes.push(crate::Process { anon_by_node, ..crate::Process::default() });
                },
                "anon_by_node of the machine",
            ),
            (|f| f.hosts[0].clock_read_ns = Some(-1.0), "clock_read_ns of the machine"),
            (
                |f| {
                    let storage = crate::Storage { free_bytes: 2, size_bytes: 1, ..crate::Storage::default() };
                    f.hosts[0].processes.push(crate::Process { storage: Some(storage), ..crate::Process::default() });
                },
                "storage.free_bytes of process 0",
            ),
        ];
        for (break_it, expected) in cases {
            let mut facts = facts();
            break_it(&mut facts);
            assert!(all(&facts).is_err_and(|e| e.to_string().contains(expected)), "{expected}: {:?}", all(&facts));
        }
    }

    #[test]
    fn a_message_alone_has_no_window_and_a_deployment_has_one() {
        let mut alone = Facts::of_nothing("");
        assert!(all(&alone).is_err(), "nothing at all");
        alone.client_errors = vec![ClientError { count: 1, ..ClientError::default() }];
        assert_eq!(all(&alone), Ok(()));
        let saved = serde_json::to_string(&alone).unwrap();
        assert_eq!(Facts::from_json(&saved).unwrap(), alone);
    }

    #[test]
    fn counters_that_cannot_be_are_refused_in_both_samples() {
        let sample = |text: &str| Some(Sample { at_ms: 1, info: Info::parse(text) });
        let good = "cmdstat_get:calls=9,usec=1e9,usec_per_call=inf\nallocator_frag_ratio:-nan\ndb0:keys=5,expires=0\n";
        for bad in [
            "cmdstat_get:calls=1e300,usec=1",
            "cmdstat_get:calls=1,usec=inf",
            "errorstat_ERR:count=nan",
            "db0:keys=1e18",
        ] {
            for (first, last) in [(good, good), (bad, good), (good, bad)] {
                let mut facts = facts();
                (facts.nodes[0].first, facts.nodes[0].last) = (sample(first), sample(last));
                let said = all(&facts);
                if (first, last) == (good, good) {
                    assert_eq!(said, Ok(()));
                } else {
                    let which = if first == bad { "first of a:1" } else { "last of a:1" };
                    assert!(said.as_ref().is_err_and(|e| e.to_string().contains(which)), "{bad}: {said:?}");
                }
            }
        }
    }

    #[test]
    fn slots_that_cannot_be_are_refused() {
        let mut facts = facts();
        let line = format!("{} h:1@2 myself,master - 0 0 1 connected 0-16383", "a".repeat(40));
        let value = ClusterView::parse(&line).unwrap();
        facts.nodes[0].cluster = Seen::yes(value, "CLUSTER NODES", 1);
        let whole = serde_json::to_string(&facts).unwrap();
        assert_eq!(Facts::from_json(&whole).unwrap(), facts);
        let edited = whole.replace("[[0,16383]]", "[[0,65535]]");
        assert_ne!(edited, whole);
        assert!(Facts::from_json(&edited).unwrap_err().to_string().contains("0-65535 are no slots"));
    }

    #[test]
    fn a_cut_off_file_a_newer_one_and_other_text_are_told_apart() {
        let whole = serde_json::to_string(&facts()).unwrap();
        assert!(Facts::from_json(&whole).is_ok());
        for length in [whole.len() - 1, whole.len() / 2, 20] {
            let error = Facts::from_json(&whole[..length]).unwrap_err();
            assert!(matches!(error, crate::ReadError::CutOff { .. }), "{length}: {error}");
        }
        assert!(Facts::from_json("hello").unwrap_err().to_string().contains("not a facts file"));
        assert!(Facts::from_json(&format!("{whole} {{}}")).is_err());
        let newer = whole.replacen("\"url\"", "\"colour\":1,\"url\"", 1);
        let facts = Facts::from_json(&newer).unwrap();
        assert!(facts.notes.iter().any(|n| n.contains("colour")), "{:?}", facts.notes);
    }
}
