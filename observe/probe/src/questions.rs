//! The more expensive questions at the end of a window, each left out where there is no time for it, or where asking
//! makes the server slower.

use std::time::Duration;

use unslow_client::Error;
use unslow_facts::{Gap, Lack, Node, Rtt, Seen};
use unslow_topology::Role;

use crate::ask::Ask;
use crate::clock::Clock;
use crate::histogram::{self, Counted};
use crate::salt::Salt;
use crate::{clients, key_sizes, latency, rtt, slot_stats, slowlog};

/// PINGs between two questions, and the time for them.
const PINGS: usize = 5;
const PINGS_TIME: Duration = Duration::from_millis(100);

pub struct Questions<'a> {
    clock: &'a Clock,
    guard: Guard,
    /// What an answer takes.
    wait: Duration,
    /// It was silent and answers again: what was slow is asked whatever the time.
    after_silence: bool,
    /// What its histograms had counted when the window began, if they were seen.
    counted: Option<&'a Counted>,
    /// The keys that the slow log names, in the clear for the size probe alone.
    keys: Vec<Vec<u8>>,
}

impl<'a> Questions<'a> {
    pub fn new(clock: &'a Clock, reference: Option<Rtt>, wait: Duration) -> Questions<'a> {
        let guard = Guard { reference, slow: 0 };
        Questions { clock, guard, wait, after_silence: false, counted: None, keys: Vec::new() }
    }

    /// With the histograms of the window's start, which those of its end are compared with.
    pub fn since(self, counted: Option<&'a Counted>) -> Questions<'a> {
        Questions { counted, ..self }
    }

    /// For a server that did not answer in time and answers again: the command that held it up stands in its log now.
    pub fn after_silence(self, after_silence: bool) -> Questions<'a> {
        Questions { after_silence, ..self }
    }

    /// Those that are open: what was answered, or refused for good, is not asked again. What is left out stands in its
    /// place with the reason.
    pub fn ask_open(&mut self, ask: &mut Ask, node: &mut Node, salt: &Salt, is_cluster: bool) -> Result<(), Error> {
        let level = node.level();
        let total = node.number("connected_clients").unwrap_or(0.0) as u64;
        // What was slow is worth most where everything is: it is asked as long as there is any time at all. So are the
        // lengths of its keys, constant-time questions in two pipelines, without which a big key is told as a slow
        // command.
        if is_open(&node.slowlog) {
            match self.clock.over(Duration::ZERO) {
                Some(gap) if !self.after_silence => node.slowlog = Seen::No(gap),
                _ => (node.slowlog, self.keys) = slowlog::look(ask, salt),
            }
        }
        if are_sizes_open(node) {
            let cluster_replica = node.role == Role::Replica && is_cluster;
            node.key_sizes = match self.clock.over(Duration::ZERO) {
                Some(gap) if !self.after_silence => Seen::No(gap),
                _ => key_sizes::look(ask, salt, &self.keys, cluster_replica),
            };
        }
        // As cheap as the slow log.
        if is_open(&node.large) && slowlog::keeps_large(node) {
            node.large = match self.clock.over(Duration::ZERO) {
                Some(gap) if !self.after_silence => Seen::No(gap),
                _ => slowlog::large(ask, salt),
            };
        }
        if is_open(&node.latency) {
            node.latency = match self.left_out(ask)? {
                None => latency::look(ask),
                Some(gap) => Seen::No(gap),
            };
        }
        // Where they were not seen at the start, the reason stays.
        if let Some(before) = self.counted
            && is_open(&node.histograms)
        {
            node.histograms = match self.left_out(ask)? {
                None => histogram::at_end(ask, before),
                Some(gap) => Seen::No(gap),
            };
        }
        if is_open(&node.clients) {
            node.clients = match self.left_out(ask)? {
                None => match &node.first {
                    None => Seen::No(unknown_number()),
                    Some(first) => {
                        let window_ms = crate::now_ms().saturating_sub(first.at_ms);
                        clients::look(ask, level, total, window_ms, || self.clock.over(self.wait).is_none())
                    }
                },
                Some(gap) => Seen::No(gap),
            };
        }
        if is_open(&node.slot_stats) && owns_slots(node) {
            node.slot_stats = match self.left_out(ask)? {
                None => slot_stats::look(ask, node),
                Some(gap) => Seen::No(gap),
            };
        }
        Ok(())
    }

    /// Whether the rest was left out because the server became slower.
    pub fn stopped_early(&self) -> bool {
        self.guard.tripped()
    }

    /// Why the next question is left out; `None` where it may be asked.
    fn left_out(&mut self, ask: &mut Ask) -> Result<Option<Gap>, Error> {
        if let Some(gap) = self.clock.over(self.wait) {
            return Ok(Some(gap));
        }
        if !self.guard.tripped() && self.guard.reference.is_some() {
            match rtt::several(ask, PINGS, PINGS_TIME) {
                Ok(times) => self.guard.see(&times),
                Err(e) if e.is_fatal() => return Err(e),
                Err(_) => {}
            }
        }
        Ok(self.guard.tripped().then(|| {
            let why = "left out, because PING took twice as long while the server was asked";
            Gap::new(Lack::Other, why, "run again at a quieter time")
        }))
    }
}

/// Whether it was not asked yet, or not answered in time.
pub fn is_open<T>(seen: &Seen<T>) -> bool {
    seen.value().is_none() && seen.refused().is_none_or(|gap| matches!(gap.lack, Lack::Time | Lack::Answer))
}

/// Whether a question that is asked of every server is still without an answer.
pub fn is_any_open(node: &Node) -> bool {
    let large = is_open(&node.large) && slowlog::keeps_large(node);
    is_open(&node.slowlog) || are_sizes_open(node) || large || is_open(&node.latency) || is_open(&node.clients)
}

/// Keys are known from the slow log, and a server that reads its data set shows none.
fn are_sizes_open(node: &Node) -> bool {
    let loading = node.info().and_then(|i| i.get("loading")) == Some("1");
    !loading && node.slowlog.value().is_some() && is_open(&node.key_sizes)
}

/// Only masters of a cluster count what is in their slots.
fn owns_slots(node: &Node) -> bool {
    let me = node.cluster.value().and_then(|view| view.myself());
    me.is_some_and(|me| me.is("master") && !me.slots.is_empty())
}

/// CLIENT LIST is harmless for few clients only.
fn unknown_number() -> Gap {
    let why = "CLIENT LIST was not asked for: without INFO the number of clients, and so its cost, is not known";
    Gap::new(Lack::Rights, why, "ACL SETUSER <user> +info")
}

/// Notices that the server's own PING becomes twice as slow while it is asked.
struct Guard {
    reference: Option<Rtt>,
    slow: u32,
}

impl Guard {
    fn see(&mut self, times_us: &[u32]) {
        if let (Some(reference), Some(now)) = (self.reference, Rtt::of(times_us)) {
            self.slow = if slower(now, reference) { self.slow + 1 } else { 0 };
        }
    }

    fn tripped(&self) -> bool {
        self.slow > 1
    }
}

/// What PINGs between questions are compared with: those before the window, or, where the server was slower than that
/// through all of the window, those in it.
pub fn reference(before: Option<Rtt>, window: Option<Rtt>) -> Option<Rtt> {
    match (before, window) {
        (Some(before), Some(window)) if window.us_p50 > before.us_p99 => Some(window),
        (before, window) => before.or(window),
    }
}

/// Whether PINGs take twice as long as before. Half a millisecond on top: on a quiet network twice nothing is still
/// nothing.
fn slower(now: Rtt, reference: Rtt) -> bool {
    now.us_p50 > (2 * reference.us_p99).max(reference.us_p99 + 500)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_slower_only_beyond_twice_its_reference_plus_a_floor() {
        for (p99, p50, slow) in [
            (100, 600, false),
            (100, 601, true),
            (500, 1000, false),
            (500, 1001, true),
            (2000, 4000, false),
            (2000, 4001, true),
        ] {
            let reference = Rtt { us_p99: p99, ..Rtt::default() };
            assert_eq!(slower(Rtt { us_p50: p50, ..Rtt::default() }, reference), slow, "{p50} us after {p99} us");
        }
    }

    /// A server that became slow in the middle of the questions: a big key must be known all the same.
    #[test]
    fn the_keys_of_the_slow_log_are_measured_however_slow_the_server_became() {
        let entry = "*1\r\n*4\r\n:1\r\n:1700000000\r\n:60000\r\n*2\r\n$7\r\nHGETALL\r\n$1\r\nk\r\n";
        let mut slow = false;
        let target = crate::fake::server(move |words| match words[0].as_str() {
            "SLOWLOG" => {
                slow = true;
                entry.into()
            }
            "PING" => {
                std::thread::sleep(Duration::from_millis(if slow { 5 } else { 0 }));
                "+PONG\r\n".into()
            }
            "TYPE" => "+hash\r\n".into(),
            "HLEN" => ":200000\r\n".into(),
            _ => "*0\r\n".into(),
        });
        let mut ask = Ask::open(&target, &unslow_client::Options::default()).unwrap();
        let clock = Clock::of(Duration::from_secs(86_400));
        let mut node = Node::new(&target.address(), Role::Master);
        let mut questions = Questions::new(&clock, Rtt::of(&[100]), Duration::ZERO);
        questions.ask_open(&mut ask, &mut node, &Salt::new(true), false).unwrap();
        assert!(questions.stopped_early());
        let sizes: Vec<u64> = node.key_sizes.value().unwrap().iter().map(|s| s.length).collect();
        assert_eq!((sizes, node.clients.value().is_none()), (vec![200_000], true));
    }

    #[test]
    fn histograms_are_asked_for_again_only_where_they_were_seen_at_the_start() {
        let target = crate::fake::server(|words| match words.get(1).map(String::as_str) {
            Some("HISTOGRAM") => {
                "*2\r\n$4\r\nkeys\r\n*4\r\n$5\r\ncalls\r\n:3\r\n$14\r\nhistogram_usec\r\n*2\r\n:8454\r\n:3\r\n".into()
            }
            _ if words[0] == "PING" => "+PONG\r\n".into(),
            _ => "*0\r\n".into(),
        });
        let clock = Clock::of(Duration::from_secs(86_400));
        let before = Counted::from([("keys".to_string(), [(8454, 1)].into())]);
        for (counted, expected) in [(None, None), (Some(&before), Some(2))] {
            let mut ask = Ask::open(&target, &unslow_client::Options::default()).unwrap();
            let mut node = Node::new(&target.address(), Role::Master);
            let mut questions = Questions::new(&clock, None, Duration::ZERO).since(counted);
            questions.ask_open(&mut ask, &mut node, &Salt::new(true), false).unwrap();
            assert_eq!(node.histograms.value().map(|all| all["keys"][0].calls), expected);
        }
    }

    #[test]
    fn one_slow_moment_stops_nothing() {
        let mut guard = Guard { reference: Rtt::of(&[100]), slow: 0 };
        for (times, tripped) in
            [(&[9000, 9000][..], false), (&[100, 120], false), (&[9000], false), (&[], false), (&[9000], true)]
        {
            guard.see(times);
            assert_eq!(guard.tripped(), tripped, "{times:?}");
        }
    }

    #[test]
    fn a_server_that_was_slow_in_the_whole_window_is_compared_with_that() {
        let rtt = |us: u32| Rtt::of(&[us, us, us]);
        assert_eq!(reference(rtt(100), rtt(150)), rtt(150));
        assert_eq!(reference(rtt(200), rtt(150)), rtt(200));
        assert_eq!(reference(None, rtt(150)), rtt(150));
        assert_eq!(reference(rtt(100), None), rtt(100));
        assert_eq!(reference(None, None), None);
    }
}
