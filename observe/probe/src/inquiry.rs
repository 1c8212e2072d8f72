//! The expensive questions again and again, on one connection, for a recorder: it has INFO and PINGs by itself.
//!
//! The same questions, limits and redaction as in a diagnosis, and the same end when the server's own PINGs take twice
//! as long.

use std::sync::Arc;
use std::time::Duration;

use unslow_client::{Error, Options, Target};
use unslow_facts::{Gap, Lack, Node, Rtt, Seen};
use unslow_topology::Member;

use crate::ask::Ask;
use crate::clock::Clock;
use crate::histogram::{self, Counted};
use crate::questions::Questions;
use crate::salt::Salt;
use crate::tally::Tally;
use crate::{cluster, config, node, rtt};

/// PINGs before the questions, which those between them are compared with.
const BASELINE_PINGS: usize = 10;
const BASELINE_TIME: Duration = Duration::from_millis(100);
/// For all questions of a round.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Round {
    /// The slow log, the sizes of the keys in it, what was large, the latency monitor.
    Often,
    /// Clients, settings, histograms, the cluster's view and its slots as well.
    Whole,
}

/// One node's.
pub struct Inquiry {
    target: Target,
    options: Options,
    salt: Arc<Salt>,
    ask: Option<Ask>,
    /// What was answered last; shared with whom it was told.
    node: Arc<Node>,
    /// What it and others sent.
    tally: Tally,
    counted: Option<Counted>,
}

impl Inquiry {
    /// Asks nothing yet.
    pub fn new(member: &Member, target: Target, options: Options, salt: Arc<Salt>, tally: Tally) -> Inquiry {
        let mut node = Node::new(&member.address, member.role);
        node.node_id.clone_from(&member.node_id);
        Inquiry { target, options, salt, ask: None, node: Arc::new(node), tally, counted: None }
    }

    /// Asks. What was not asked in this round is as the last one left it; what was sent is in the [`Tally`] alone.
    /// Fails when the server does not answer; the next round dials again.
    pub fn ask(&mut self, round: Round) -> Result<Arc<Node>, Error> {
        let mut ask = match self.ask.take() {
            Some(ask) => ask,
            None => {
                let ask = Ask::open_counted(&self.target, &self.options, &self.tally)?;
                let node = Arc::make_mut(&mut self.node);
                node.open_door = !ask.connection().authenticated && self.options.tls.cert_and_key.is_none();
                node.connect_us = Some(ask.connection().connect_time.as_micros() as u64);
                ask
            }
        };
        let asked = self.round(&mut ask, round);
        let node = Arc::make_mut(&mut self.node);
        node.own.stopped_early = ask.own.stopped_early;
        match asked {
            Ok(()) => self.ask = Some(ask),
            Err(e) => {
                self.counted = None;
                return Err(e);
            }
        }
        // The next whole round compares with `last`.
        node.first = None;
        Ok(self.node.clone())
    }

    /// [`Inquiry::ask`] for those who keep what they are told: settings, clients, views and histograms are in the
    /// answer to a whole round alone, and nothing of them stays here.
    pub fn hand_over(&mut self, round: Round) -> Result<Arc<Node>, Error> {
        let answer = self.ask(round)?;
        if round == Round::Whole {
            let told = || Gap::new(Lack::Other, "told in the last whole round", "");
            self.node = Arc::new(Node {
                node_id: answer.node_id.clone(),
                last: answer.last.clone(),
                own: answer.own.clone(),
                open_door: answer.open_door,
                connect_us: answer.connect_us,
                config: Seen::No(told()),
                clients: Seen::No(told()),
                slot_stats: Seen::No(told()),
                histograms: Seen::No(told()),
                ..Node::new(&answer.address, answer.role)
            });
        }
        Ok(answer)
    }

    fn round(&mut self, ask: &mut Ask, round: Round) -> Result<(), Error> {
        let node = Arc::make_mut(&mut self.node);
        if round == Round::Whole || node.last.is_none() {
            node.first = std::mem::replace(&mut node.last, node::sample(ask)?);
            if node.first.is_none() {
                node.first.clone_from(&node.last);
            }
        }
        let clock = Clock::of(PATIENCE);
        let is_cluster = node.last.as_ref().is_none_or(|s| s.info.get("cluster_enabled") != Some("0"));
        let level = node.level();
        let baseline = match rtt::several(ask, BASELINE_PINGS, BASELINE_TIME) {
            Ok(times) => Rtt::of(&times),
            Err(e) if e.is_fatal() => return Err(e),
            Err(_) => None,
        };
        (node.slowlog, node.key_sizes, node.latency) = (Seen::default(), Seen::default(), Seen::default());
        node.large = Seen::default();
        if round == Round::Whole {
            (node.clients, node.slot_stats, node.histograms) = (Seen::default(), Seen::default(), Seen::default());
            node.config = config::look(ask, level);
            if is_cluster {
                cluster::look(ask, node, level);
            }
        }
        let counted = self.counted.as_ref().filter(|_| round == Round::Whole);
        let mut questions = Questions::new(&clock, baseline, Duration::ZERO).since(counted);
        questions.ask_open(ask, node, &self.salt, is_cluster)?;
        ask.own.stopped_early = questions.stopped_early();
        if round == Round::Whole && !ask.own.stopped_early {
            let counted = histogram::at_start(ask, level).into_result();
            self.counted = counted.map_err(|gap| node.histograms = Seen::No(gap)).ok();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use unslow_topology::Role;

    use super::*;

    #[test]
    fn a_lost_connection_is_dialled_again_in_the_next_round() {
        let target = crate::fake::server(|words| match words[0].as_str() {
            "INFO" => crate::fake::bulk("redis_version:7.0.0\r\nconnected_clients:1\r\ncluster_enabled:0\r\n"),
            "PING" => "+PONG\r\n".into(),
            "LATENCY" if words[1] == "HISTOGRAM" => "*0\r\n".into(),
            "CLIENT" => crate::fake::bulk("id=3 addr=127.0.0.1:1 name= age=9 idle=0 flags=N cmd=get\n"),
            _ => "*0\r\n".into(),
        });
        let member =
            Member { address: target.address(), role: Role::Master, master: None, node_id: None, service: None };
        let (salt, tally) = (Arc::new(Salt::new(false)), Tally::default());
        let mut inquiry = Inquiry::new(&member, target, Options::default(), salt, tally.clone());
        let node = inquiry.ask(Round::Whole).unwrap();
        assert!(node.slowlog.value().is_some() && node.clients.value().is_some_and(|c| c.listed == 1), "{node:?}");
        let before = tally.so_far();
        let node = inquiry.ask(Round::Often).unwrap();
        let after = tally.so_far();
        assert_eq!(after.commands["info"], before.commands["info"], "INFO is the recorder's, but for whole rounds");
        assert!(after.total > before.total && node.clients.value().is_some(), "the last answer stays");
    }

    #[test]
    fn each_connection_s_greeting_is_ours() {
        let mut logs = 0;
        let target = crate::fake::server(move |words| match words[0].as_str() {
            "INFO" => crate::fake::bulk("redis_version:7.0.0\r\nconnected_clients:1\r\ncluster_enabled:0\r\n"),
            "PING" => "+PONG\r\n".into(),
            "CLIENT" if words[1] == "SETNAME" => "+OK\r\n".into(),
            "SLOWLOG" => {
                logs += 1;
                if logs == 1 { "*0\r\n".into() } else { String::new() }
            }
            _ => "*0\r\n".into(),
        });
        let member =
            Member { address: target.address(), role: Role::Master, master: None, node_id: None, service: None };
        let options = Options { name: Some("recorder"), ..Options::default() };
        let (salt, tally) = (Arc::new(Salt::new(false)), Tally::default());
        let mut inquiry = Inquiry::new(&member, target, options, salt, tally.clone());
        let names = || tally.so_far().commands["client|setname"];
        inquiry.ask(Round::Often).unwrap();
        assert_eq!(names(), 1);
        inquiry.ask(Round::Often).unwrap_err();
        let lost = tally.so_far().total;
        inquiry.ask(Round::Often).unwrap_err();
        assert_eq!(names(), 2);
        assert!(tally.so_far().total > lost);
    }

    /// Others who read the server's counters take off what is ours: also what is asked at that moment.
    #[test]
    fn what_a_round_asked_is_known_before_the_round_is_over() {
        let tally = Tally::default();
        let seen = tally.clone();
        let target = crate::fake::server(move |words| match words[0].as_str() {
            "INFO" => crate::fake::bulk("redis_version:7.0.0\r\nconnected_clients:1\r\ncluster_enabled:0\r\n"),
            "PING" => "+PONG\r\n".into(),
            // The last of a round's questions: all before it are answered.
            "SLOWLOG" => {
                let own = seen.so_far().commands;
                assert!(own["ping"] >= BASELINE_PINGS as u64 && own["info"] == 1, "{own:?}");
                "*0\r\n".into()
            }
            _ => "*0\r\n".into(),
        });
        let member =
            Member { address: target.address(), role: Role::Master, master: None, node_id: None, service: None };
        let salt = Arc::new(Salt::new(false));
        let mut inquiry = Inquiry::new(&member, target, Options::default(), salt, tally.clone());
        assert!(inquiry.ask(Round::Often).unwrap().slowlog.value().is_some());
        assert_eq!(tally.so_far().commands["slowlog|get"], 1);
    }

    #[test]
    fn a_greeting_that_is_answered_too_late_is_ours() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::parse(&format!("127.0.0.1:{}", listener.local_addr().unwrap().port())).unwrap();
        let member =
            Member { address: target.address(), role: Role::Master, master: None, node_id: None, service: None };
        let options =
            Options { name: Some("recorder"), command_timeout: Duration::from_millis(50), ..Options::default() };
        let (salt, tally) = (Arc::new(Salt::new(false)), Tally::default());
        let mut inquiry = Inquiry::new(&member, target, options, salt, tally.clone());
        inquiry.ask(Round::Often).unwrap_err();
        let late = tally.so_far();
        assert_eq!((late.commands, late.reads), ([("client|setname".to_string(), 1)].into(), 1), "executed late");
    }
}
