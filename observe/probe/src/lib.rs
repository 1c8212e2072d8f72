//! Looks at a deployment and writes down facts. One file per probe; none of them judges.
//!
//! Each node has a thread, a connection and a window: INFO at its start, PINGs through it, the more expensive questions
//! at its end, INFO again. What a probe may send is the client's read-only list and nothing else. A probe that is
//! denied writes down which grant it lacked.

mod ask;
mod clients;
mod clock;
mod cluster;
mod config;
mod cost;
#[cfg(test)]
mod fake;
mod histogram;
pub mod host;
mod inquiry;
mod key_sizes;
mod latency;
mod node;
mod questions;
mod rtt;
mod salt;
mod sentinel;
mod slot_stats;
mod slowlog;
mod sockets;
mod tally;
mod timeline;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use unslow_client::{Deployment, Endpoint, Error, Options, ReadOnly, Target};
use unslow_facts::{Cost, Facts, Host, Node, SentinelNode};
use unslow_topology::{DeploymentKind, Member, Role};

use clock::Clock;

pub use ask::asked;
pub use cost::Paid;
pub use inquiry::{Inquiry, Round};
pub use node::same_server;
pub use salt::{Salt, SaltError};
pub use tally::Tally;

/// How to look.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the window between the two samples.
    pub window: Duration,
    /// How to connect.
    pub options: Options,
    /// Key names as they are, instead of hashed.
    pub show_keys: bool,
    /// Look into this machine when a server runs on it.
    pub host: bool,
    /// Facts of other machines, from `unslow host`.
    pub hosts: Vec<Host>,
    /// The URL to write down.
    pub url: String,
    /// Set it, from a signal handler for one, and the window ends within a tenth of a second: the facts are those seen
    /// up to then, with [`Facts::cut_short`].
    pub stop: Option<Arc<AtomicBool>>,
}

/// Looks at every member of `deployment`. Never fails as a whole: what does not answer is a fact too.
pub fn run(deployment: &Deployment, settings: &Settings) -> Facts {
    let begun = Instant::now();
    let at_ms = now_ms();
    let salt = Salt::new(settings.show_keys);
    let many = deployment.members.len() > 50;
    let watch = settings.host.then(host::Watch::start);
    let mut nodes: Vec<Node> = Vec::new();
    let mut cut_short = false;
    let mut sentinels = Vec::new();
    std::thread::scope(|scope| {
        let (mut node_threads, mut sentinel_threads) = (Vec::new(), Vec::new());
        for member in &deployment.members {
            let target = deployment.target_of(member);
            let (salt, options) = (&salt, &settings.options);
            let builder = std::thread::Builder::new().stack_size(512 << 10);
            if member.role == Role::Sentinel {
                let looked = move || {
                    let clock = Clock::start(settings);
                    sentinel::look(&member.address, &target, options, member.service.as_deref(), &clock)
                };
                sentinel_threads.push(builder.spawn_scoped(scope, looked));
            } else {
                let looked = move || node::look(member, &target, settings, salt, many);
                node_threads.push((member, builder.spawn_scoped(scope, looked)));
            }
        }
        for (member, thread) in node_threads {
            // A panic in a probe or a thread that could not start is this node's fact, not the end of the run.
            let looked = thread.ok().and_then(|t| t.join().ok());
            cut_short |= looked.as_ref().is_some_and(|l| l.cut_short);
            nodes.push(looked.map_or_else(|| failed(&member.address, member.role), |l| l.node));
        }
        sentinels.extend(sentinel_threads.into_iter().filter_map(|t| t.ok()?.join().ok()));
    });
    let mut notes = deployment.notes.clone();
    same_server(&mut nodes, &mut notes);
    // What the host is asked for longer costs the servers nothing.
    let took = begun.elapsed();
    let local = watch.map(|watch| watch.finish(&mut nodes));
    if settings.host {
        host::look_at_silent(&mut nodes);
    }
    let mut hosts = settings.hosts.clone();
    notes.extend(host::assign(&mut hosts, &nodes, local.as_ref()));
    hosts.extend(local.filter(|host| !host.processes.is_empty()));
    Facts {
        at_ms,
        window_s: watched_s(&nodes, settings.window, took, cut_short),
        kind: deployment.kind,
        cost: cost::of(&nodes, took),
        nodes,
        sentinels,
        hosts,
        notes,
        cut_short,
        through: deployment.through.clone(),
        ..Facts::of_nothing(&settings.url)
    }
}

fn failed(address: &str, role: Role) -> Node {
    Node { unreachable: Some("the probe itself failed".into()), ..Node::new(address, role) }
}

/// What looking for `window_s` seconds cost the server that paid most.
pub fn cost(nodes: &[Node], window_s: f64) -> Cost {
    cost::of(nodes, Duration::from_secs_f64(window_s))
}

/// What a Sentinel knows. Never fails: why it could not be asked is in what is returned.
pub fn sentinel(member: &Member, target: &Target, options: &Options) -> SentinelNode {
    let patience = options.command_timeout + options.connect_timeout;
    sentinel::look(&member.address, target, options, member.service.as_deref(), &Clock::of(patience))
}

/// How long was really watched: as long as was asked for, unless the run was ended before.
fn watched_s(nodes: &[Node], window: Duration, took: Duration, cut_short: bool) -> f64 {
    if !cut_short {
        return window.as_secs_f64();
    }
    let longest = nodes.iter().filter(|n| n.last.is_some()).map(|n| n.window_s).reduce(f64::max);
    longest.unwrap_or(took.as_secs_f64()).max(0.001)
}

/// Facts of a deployment of which no address that was given could be asked: each of them is a node that did not answer.
/// `error` is why discovery failed; with several addresses it is the last one's, so each is tried for its own. Never
/// fails.
pub fn unreachable(target: &Target, error: &Error, settings: &Settings) -> Facts {
    let begun = Instant::now();
    let at_ms = now_ms();
    let watch = settings.host.then(host::Watch::start);
    let mut nodes: Vec<Node> = Vec::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = target
            .endpoints
            .iter()
            .map(|endpoint| {
                let builder = std::thread::Builder::new().stack_size(512 << 10);
                (endpoint, builder.spawn_scoped(scope, move || unanswered(endpoint, target, error, settings)))
            })
            .collect();
        for (endpoint, thread) in threads {
            let node = thread.ok().and_then(|t| t.join().ok());
            nodes.push(node.unwrap_or_else(|| failed(&endpoint.to_string(), Role::Unknown)));
        }
    });
    if settings.host {
        host::look_at_silent(&mut nodes);
    }
    let mut hosts = settings.hosts.clone();
    hosts.extend(watch.map(|watch| watch.finish(&mut nodes)).filter(|host| !host.processes.is_empty()));
    // Several addresses are those of Sentinels; so is one with a group's name.
    let sentinel = target.service.is_some() || target.endpoints.len() > 1;
    Facts {
        at_ms,
        window_s: settings.window.as_secs_f64(),
        kind: if sentinel { DeploymentKind::Sentinel } else { DeploymentKind::Standalone },
        nodes,
        hosts,
        cost: Cost { seconds: begun.elapsed().as_secs_f64(), ..Cost::default() },
        ..Facts::of_nothing(&settings.url)
    }
}

/// One of the addresses that discovery got no answer from.
fn unanswered(endpoint: &Endpoint, target: &Target, error: &Error, settings: &Settings) -> Node {
    let clock = Clock::start(settings);
    let alone = target.at(endpoint.clone());
    let own = match target.endpoints.len() {
        1 => None,
        // One that answers by now is still one that discovery could not use.
        _ => ReadOnly::open(&alone, &settings.options).err(),
    };
    let e = own.as_ref().unwrap_or(error);
    Node {
        unreachable: Some(e.message.clone()),
        away: Some(node::away(e)),
        silent_ms: node::silent(e, &alone, &settings.options, &clock),
        ..Node::new(&endpoint.to_string(), Role::Unknown)
    }
}

pub(crate) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use unslow_client::ErrorKind;
    use unslow_facts::Sample;
    use unslow_topology::Info;

    use super::*;

    fn settings() -> Settings {
        let patience = Duration::from_millis(200);
        Settings {
            window: Duration::from_secs(5),
            options: Options { connect_timeout: patience, command_timeout: patience, ..Options::default() },
            show_keys: false,
            host: false,
            hosts: Vec::new(),
            url: "redis://127.0.0.1".into(),
            stop: None,
        }
    }

    #[test]
    fn every_address_that_was_given_is_a_node_that_did_not_answer() {
        // One takes connections and says nothing; one refuses them.
        let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let free = "127.0.0.1:1";
        let hung_at = hung.local_addr().unwrap().to_string();
        let target = Target::parse(&format!("redis+sentinel://{hung_at},{free}/main")).unwrap();
        let error = ReadOnly::open(&target, &settings().options).err().unwrap();
        let facts = unreachable(&target, &error, &settings());
        let [silent, refused] = &facts.nodes[..] else { panic!("{:?}", facts.nodes) };
        assert_eq!((silent.address.as_str(), refused.address.as_str()), (hung_at.as_str(), free));
        assert_eq!((silent.role, refused.role, facts.kind), (Role::Unknown, Role::Unknown, DeploymentKind::Sentinel));
        assert!(silent.unreachable.as_ref().is_some_and(|e| e.contains(&hung_at)), "{silent:?}");
        assert!(refused.unreachable.as_ref().is_some_and(|e| e.contains("refused")), "{refused:?}");
        assert!(silent.silent_ms.is_some() && refused.silent_ms.is_none());
        assert_eq!((facts.window_s, facts.cut_short), (5.0, false));
    }

    #[test]
    fn one_address_keeps_discoverys_own_words() {
        let target = Target::parse("redis://ann:secret@127.0.0.1:1").unwrap();
        let error = Error::new(ErrorKind::WrongPassword, "127.0.0.1:1: password refused");
        let facts = unreachable(&target, &error, &settings());
        assert_eq!(facts.nodes.len(), 1);
        assert_eq!(facts.nodes[0].unreachable.as_deref(), Some("127.0.0.1:1: password refused"));
        assert_eq!((facts.nodes[0].silent_ms, facts.kind), (None, DeploymentKind::Standalone));
        assert!(!format!("{facts:?}").contains("secret"));
    }

    #[test]
    fn a_run_that_was_cut_short_says_how_long_it_watched() {
        let node = |window_s: f64, answered: bool| {
            let last = answered.then(|| Sample { at_ms: 0, info: Info::default() });
            Node { window_s, last, ..Node::new("h:1", Role::Master) }
        };
        let (asked, took) = (Duration::from_secs(600), Duration::from_secs(9));
        let nodes = [node(4.0, true), node(4.5, true), node(8.0, false)];
        assert_eq!(watched_s(&nodes, asked, took, true), 4.5);
        assert_eq!(watched_s(&nodes, asked, took, false), 600.0);
        assert_eq!(watched_s(&nodes[2..], asked, took, true), 9.0);
        assert_eq!(watched_s(&[], asked, Duration::ZERO, true), 0.001, "no facts file may hold a window of nothing");
    }
}
