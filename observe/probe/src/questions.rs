//! The more expensive questions at the end of a window, each left out where there is no time for it, or where asking makes the
//! server slower.

use std::time::Duration;

use unslow_client::Error;
use unslow_facts::{Gap, Lack, Node, Rtt, Seen};
use unslow_topology::Role;

use crate::ask::{Ask, Salt};
use crate::clock::Clock;
use crate::{clients, key_sizes, latency, rtt, slowlog};

/// PINGs between two questions, and the time for them.
const PINGS: usize = 5;
const PINGS_TIME: Duration = Duration::from_millis(100);

pub struct Questions<'a> {
    ask: &'a mut Ask,
    clock: &'a Clock,
    guard: Guard,
    /// What an answer takes.
    wait: Duration,
    /// It was silent and answers again: what was slow is asked whatever the time.
    after_silence: bool,
}

impl<'a> Questions<'a> {
    pub fn new(ask: &'a mut Ask, clock: &'a Clock, reference: Option<Rtt>, wait: Duration) -> Questions<'a> {
        Questions { ask, clock, guard: Guard { reference, slow: 0 }, wait, after_silence: false }
    }

    /// For a server that did not answer in time and answers again: the command that held it up stands in its log now.
    pub fn after_silence(self, after_silence: bool) -> Questions<'a> {
        Questions { after_silence, ..self }
    }

    /// What is left out stands in its place with the reason.
    pub fn ask_all(&mut self, node: &mut Node, salt: &Salt, is_cluster: bool) -> Result<(), Error> {
        let level = node.level();
        let total = node.number("connected_clients").unwrap_or(0.0) as u64;
        // What was slow is worth most where everything is: it is asked as long as there is any time at all. So are the lengths
        // of its keys, constant-time questions in two pipelines, without which a big key is told as a slow command.
        let keys = match self.clock.over(Duration::ZERO) {
            Some(gap) if !self.after_silence => {
                node.slowlog = Seen::No(gap);
                Vec::new()
            }
            _ => {
                let (log, keys) = slowlog::look(self.ask, salt);
                node.slowlog = log;
                keys
            }
        };
        let loading = node.info().and_then(|i| i.get("loading")) == Some("1");
        if !loading && node.slowlog.value().is_some() {
            let cluster_replica = node.role == Role::Replica && is_cluster;
            node.key_sizes = match self.clock.over(Duration::ZERO) {
                Some(gap) if !self.after_silence => Seen::No(gap),
                _ => key_sizes::look(self.ask, salt, &keys, cluster_replica),
            };
        }
        node.latency = match self.left_out()? {
            None => latency::look(self.ask),
            Some(gap) => Seen::No(gap),
        };
        node.clients = match self.left_out()? {
            None if node.first.is_none() => Seen::No(unknown_number()),
            None => clients::look(self.ask, level, total, || self.clock.over(self.wait).is_none()),
            Some(gap) => Seen::No(gap),
        };
        Ok(())
    }

    /// Whether the rest was left out because the server became slower.
    pub fn stopped_early(&self) -> bool {
        self.guard.tripped()
    }

    /// Why the next question is left out; `None` where it may be asked.
    fn left_out(&mut self) -> Result<Option<Gap>, Error> {
        if let Some(gap) = self.clock.over(self.wait) {
            return Ok(Some(gap));
        }
        if !self.guard.tripped() && self.guard.reference.is_some() {
            match rtt::several(self.ask, PINGS, PINGS_TIME) {
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

/// What PINGs between questions are compared with: those before the window, or, where the server was slower than that through
/// all of the window, those in it.
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
        let mut questions = Questions::new(&mut ask, &clock, Rtt::of(&[100]), Duration::ZERO);
        questions.ask_all(&mut node, &Salt::new(true), false).unwrap();
        assert!(questions.stopped_early());
        let sizes: Vec<u64> = node.key_sizes.value().unwrap().iter().map(|s| s.length).collect();
        assert_eq!((sizes, node.clients.value().is_none()), (vec![200_000], true));
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
