//! A deployment as it is now: what a recorder sees, kept in memory for the length of a window, and as facts.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use unslow_facts::{Facts, Host, Node, Own, Rtt, Sample, Seen, SentinelNode};
use unslow_series::{Error, Stamp};
use unslow_topology::{Info, Role};

use crate::keeper::{OF_TOPOLOGY, Take, Told};
use crate::notes::{NodeNumber, Note, Saw};
use crate::pings::Pings;
use crate::scheme::{Away, Listing, Stall};
use crate::window::{self, Counters, Trail, seconds_between};

/// A node's newest INFO may be this old: of many nodes it is asked every 2.5 s, and it is late where the server, or we,
/// were busy.
const FRESH_MS: i64 = 6_000;

/// The last seconds of a deployment.
pub struct Live {
    url: String,
    window_ms: i64,
    listing: Option<Listing>,
    nodes: BTreeMap<NodeNumber, Watched>,
    sentinels: BTreeMap<String, SentinelNode>,
    host: Option<Host>,
}

/// What is known of one node.
struct Watched {
    address: String,
    seconds: VecDeque<Second>,
    /// The newest answers to the expensive questions.
    asked: Node,
    stalls: VecDeque<(i64, Stall)>,
    away: Option<Away>,
    /// Of the fields that tell of topology.
    topology: Option<u64>,
}

/// One INFO, and what came before it.
struct Second {
    at: Stamp,
    info: Vec<u8>,
    counters: Counters,
    pings: Pings,
    own: Own,
}

/// What the recorder writes to and others read.
#[derive(Clone)]
pub struct Watching(Arc<Mutex<Live>>);

impl Watching {
    /// `window_ms` is the longest window that can be asked for.
    pub fn new(url: &str, window_ms: i64) -> Watching {
        let (url, nodes, sentinels) = (url.to_string(), BTreeMap::new(), BTreeMap::new());
        Watching(Arc::new(Mutex::new(Live { url, window_ms, listing: None, nodes, sentinels, host: None })))
    }

    /// The window that ends now.
    pub fn facts(&self, now_ms: i64) -> Facts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).facts(now_ms)
    }
}

impl Take for Watching {
    fn take(&mut self, note: &Note) -> Result<Told, Error> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).take(note))
    }

    fn tick(&mut self, _: Stamp, _: u64) -> Result<(), Error> {
        Ok(())
    }

    fn close(self) -> Result<(), Error> {
        Ok(())
    }
}

impl Live {
    fn take(&mut self, note: &Note) -> Told {
        match note {
            Note::Node { number, url, address } if *url == self.url => {
                let asked = Node::new(address, Role::Unknown);
                let (seconds, stalls) = (VecDeque::new(), VecDeque::new());
                let watched = Watched { address: address.clone(), seconds, asked, stalls, away: None, topology: None };
                self.nodes.insert(*number, watched);
            }
            Note::Left(number) => drop(self.nodes.remove(number)),
            Note::Listing { url, listing, .. } if *url == self.url => self.listing = Some(listing.clone()),
            Note::Sentinel { url, sentinel, .. } if *url == self.url => {
                self.sentinels.insert(sentinel.address.clone(), sentinel.clone());
            }
            Note::Host(_, host) => self.host = Some((**host).clone()),
            Note::Saw(number, at, saw) => {
                let window_ms = self.window_ms;
                return match self.nodes.get_mut(number) {
                    Some(node) => node.saw(*number, *at, saw, window_ms),
                    None => Told::Nothing,
                };
            }
            Note::Asked(number, _, _, found) => {
                if let Some(node) = self.nodes.get_mut(number) {
                    let sockets = std::mem::replace(&mut node.asked.sockets, found.sockets.clone());
                    node.asked.clone_from(found);
                    node.asked.sockets = sockets;
                }
            }
            Note::Sockets(number, _, found) => {
                if let Some(node) = self.nodes.get_mut(number) {
                    node.asked.sockets = found.sockets.clone();
                }
            }
            Note::Node { .. } | Note::Listing { .. } | Note::Sentinel { .. } | Note::Wake => {}
        }
        Told::Nothing
    }

    fn facts(&self, now_ms: i64) -> Facts {
        let mut facts = Facts::of_nothing(&self.url);
        let start_ms = now_ms - self.window_ms;
        (facts.at_ms, facts.window_s) = (unix(start_ms), self.window_ms as f64 / 1000.0);
        if let Some(listing) = &self.listing {
            (facts.kind, facts.notes, facts.through) = (listing.kind, listing.notes.clone(), listing.through.clone());
        }
        for watched in self.nodes.values() {
            let listed = self.listing.as_ref().map(|l| l.nodes.iter().find(|n| n.address == watched.address));
            if listed == Some(None) {
                continue; // a Sentinel that was asked before it was known as one
            }
            let mut node = watched.node(start_ms, now_ms);
            if let Some(listed) = listed.flatten() {
                node.node_id.clone_from(&listed.node_id);
                if node.last.is_none() {
                    (node.role, node.master) = (listed.role, listed.master.clone());
                }
            }
            match node.check() {
                Ok(()) => facts.nodes.push(node),
                Err(why) => facts.notes.push(format!("{}: its numbers cannot be: {why}", watched.address)),
            }
        }
        facts.nodes.sort_by(|a, b| a.address.cmp(&b.address));
        facts.sentinels.extend(self.sentinels.values().cloned());
        facts.hosts.extend(self.host.iter().filter(|host| host.check().is_ok()).cloned());
        facts.cost = unslow_probe::cost(&facts.nodes, facts.window_s);
        facts
    }
}

impl Watched {
    fn saw(&mut self, number: NodeNumber, at: Stamp, saw: &Saw, window_ms: i64) -> Told {
        match saw {
            Saw::Stall(stall) => {
                self.stalls.push_back((at.wall_ms, *stall));
                // A window ends now, and a stall may be longer than one.
                while self.stalls.front().is_some_and(|(ended, _)| at.wall_ms - ended > window_ms + FRESH_MS) {
                    self.stalls.pop_front();
                }
                Told::AskSoon(number)
            }
            Saw::Away(away) => {
                self.away.clone_from(away);
                if away.is_none() { Told::AskSoon(number) } else { Told::Nothing }
            }
            Saw::Second { info, pings, sent } => {
                let text = String::from_utf8_lossy(info);
                let mut own = self.asked.own.clone();
                own.add(sent);
                let counters = Counters::of(&text, own.total);
                let mut topology = DefaultHasher::new();
                let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
                fields.filter(|(name, _)| OF_TOPOLOGY.contains(name)).for_each(|field| field.hash(&mut topology));
                self.seconds.push_back(Second { at, info: info.clone(), counters, pings: pings.clone(), own });
                // One from before the window is its beginning.
                let begins = |second: &Second| at.mono_ms.saturating_sub(second.at.mono_ms) as i64 >= window_ms;
                while self.seconds.get(1).is_some_and(begins) {
                    self.seconds.pop_front();
                }
                let before = self.topology.replace(topology.finish());
                if before.is_some() && before != self.topology { Told::Changed(number) } else { Told::Nothing }
            }
        }
    }

    fn node(&self, start_ms: i64, now_ms: i64) -> Node {
        let mut node = Node { address: self.address.clone(), ..self.asked.clone() };
        (node.first, node.last, node.window_s) = (None, None, 0.0);
        (node.unreachable, node.away, node.silent_ms) = (None, None, None);
        let fresh = self.seconds.back().filter(|last| now_ms - last.at.wall_ms <= FRESH_MS);
        if let (Some(first), Some(last)) = (self.seconds.front(), fresh)
            && self.seconds.len() > 1
        {
            let info = |second: &Second| Info::parse(&String::from_utf8_lossy(&second.info));
            let sample = |second: &Second| Sample { at_ms: unix(second.at.wall_ms), info: info(second) };
            let own = last.own.since(&first.own);
            let s = seconds_between(first.at, last.at, true);
            window::measured(&mut node, sample(first), sample(last), s, own);
        }
        let mut trail = Trail::new(start_ms);
        self.seconds.iter().for_each(|second| trail.saw(second.at.wall_ms, second.counters, &second.pings));
        (node.series, node.pings) = (trail.points, trail.pings);
        for (_, stall) in self.stalls.iter().filter(|(ended, _)| *ended >= start_ms) {
            let sent = i64::try_from(stall.sent_ms).unwrap_or(start_ms).max(start_ms);
            node.pings.push(((sent - start_ms) as u32, u32::try_from(stall.us).unwrap_or(u32::MAX)));
        }
        node.pings.sort_unstable();
        let times: Vec<u32> = node.pings.iter().map(|(_, us)| *us).collect();
        let rtt = Rtt::of(&times).map(|value| Seen::Yes { value, source: "PING".into(), at_ms: unix(now_ms) });
        node.rtt = rtt.unwrap_or(node.rtt);
        if let Some(away) = &self.away {
            node.silent_ms = away.silent.then(|| unix(now_ms).saturating_sub(away.since_ms));
            (node.unreachable, node.away) = (Some(format!("{}: {}", self.address, away.why)), Some(away.lack));
        }
        node
    }
}

fn unix(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
