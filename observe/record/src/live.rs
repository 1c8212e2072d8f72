//! A deployment as it is now: what a recorder sees, kept in memory for the length of a window, and as facts.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use unslow_facts::{Facts, Gap, Host, Lack, Node, Own, PeerSockets, Rtt, Sample, Seen, SentinelNode, Standing};
use unslow_probe::Paid;
use unslow_probe::host::{Counts, Crowd};
use unslow_resp::lossy;
use unslow_series::{Error, Stamp};
use unslow_topology::{Info, Role};

use crate::eye::stamp;
use crate::keeper::{OF_TOPOLOGY, Take, Told};
use crate::notes::{NodeNumber, Note, Saw};
use crate::pings::Pings;
use crate::scheme::{Away, Listed, Listing, Stall};
use crate::window::{self, Counters, Trail, seconds_between};

/// A node's newest INFO may be this old: of many nodes it is asked every 2.5 s, and it is late where the server, or we,
/// were busy.
const FRESH_MS: u64 = 6_000;
/// Less than this between two INFOs says little, and much of that little is what we sent ourselves.
const SPAN_MS: u64 = 900;
/// So many INFOs say enough where the expensive questions are not answered.
const ENOUGH: usize = 4;
/// What a minute on the machine was like is old after that time.
const HOST_MS: u64 = 90_000;
/// INFOs of one node: more than a minute of any real server's.
const INFO_BYTES: usize = 4 << 20;

/// The last seconds of a deployment.
pub struct Live {
    url: String,
    window_ms: i64,
    listing: Option<Listing>,
    nodes: BTreeMap<NodeNumber, Watched>,
    sentinels: BTreeMap<String, SentinelNode>,
    host: Option<(u64, Host)>,
    /// The machine's, of the window and one from before it.
    counts: VecDeque<(Stamp, Counts)>,
    /// The last look with what was counted since; none while there is too little of it.
    narrow: Option<Host>,
    /// What was asked before is not counted, unix time in ms.
    since_ms: i64,
}

/// What is known of one node.
struct Watched {
    address: String,
    seconds: VecDeque<Second>,
    /// The newest answers to the expensive questions.
    asked: Arc<Node>,
    sockets: Seen<Vec<PeerSockets>>,
    /// Each with when it was over, by the clock that is not set.
    stalls: VecDeque<(u64, Stall)>,
    away: Option<Away>,
    /// What its process did when it last owed an answer, and when that was told.
    standing: Option<(u64, Standing)>,
    /// Of the fields that tell of topology.
    topology: Option<u64>,
    /// Whether the expensive questions were answered once: before that, it is not known which clients are ours.
    is_asked: bool,
    /// What we sent from the first INFO to the last.
    own: Own,
    /// `None` where something was seen since: a view asks for facts more often than servers give them.
    drawn: Option<Drawn>,
}

/// What was found out about the samples of a node when facts were made of them.
struct Drawn {
    /// Whether there were any.
    has_samples: bool,
    /// What cannot be among its numbers.
    why: Option<String>,
    paid: Paid,
}

/// The first look at a process may be so much earlier than what is told of its silence: clocks are read at both.
const EARLIER_MS: u64 = 1_000;

/// One INFO, and what came before it.
struct Second {
    at: Stamp,
    info: Info,
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
        Watching(Arc::new(Mutex::new(Live::new(url, window_ms))))
    }

    /// The window that ends now. Asked twice a second of hundreds of servers, it looks only at what came in between.
    pub fn facts(&self) -> Facts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).facts(stamp())
    }

    /// This process was held up, on purpose: what was owed meanwhile is not the servers' debt.
    pub fn begin_again(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).begin_again(stamp());
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
    pub fn new(url: &str, window_ms: i64) -> Live {
        let (url, nodes, sentinels) = (url.to_string(), BTreeMap::new(), BTreeMap::new());
        Live {
            url,
            window_ms,
            listing: None,
            nodes,
            sentinels,
            host: None,
            counts: VecDeque::new(),
            narrow: None,
            since_ms: 0,
        }
    }

    pub fn begin_again(&mut self, now: Stamp) {
        self.since_ms = now.wall_ms;
        self.nodes.values_mut().for_each(Watched::begin_again);
        self.counts.clear();
        self.narrow = None;
    }

    pub fn take(&mut self, note: &Note) -> Told {
        match note {
            Note::Node { number, url, address } if *url == self.url => {
                self.nodes.insert(*number, Watched::new(address));
            }
            Note::Left(number) => drop(self.nodes.remove(number)),
            Note::Listing { url, listing, .. } if *url == self.url => self.listing = Some(listing.clone()),
            Note::Sentinel { url, sentinel, .. } if *url == self.url => {
                self.sentinels.insert(sentinel.address.clone(), sentinel.clone());
            }
            Note::Host(at, host) => {
                self.host = Some((at.mono_ms, (**host).clone()));
                self.narrow = self.narrowed();
            }
            Note::Counts(at, counts) => {
                self.counts.push_back((*at, counts.clone()));
                let age = |(then, _): &(Stamp, Counts)| at.mono_ms.saturating_sub(then.mono_ms);
                while self.counts.get(1).is_some_and(|second| age(second) >= self.window_ms as u64) {
                    self.counts.pop_front();
                }
                self.narrow = self.narrowed();
            }
            Note::Saw(number, at, saw) => {
                let (window_ms, since_ms) = (self.window_ms as u64, self.since_ms);
                return match self.nodes.get_mut(number) {
                    // An answer to what was asked before this process was held up.
                    Some(_) if matches!(saw, Saw::Stall(stall) if (stall.sent_ms as i64) < since_ms) => Told::Nothing,
                    Some(node) => node.saw(*number, *at, saw, window_ms),
                    None => Told::Nothing,
                };
            }
            Note::Asked(number, _, _, found) => {
                if let Some(node) = self.nodes.get_mut(number) {
                    node.asked = found.clone();
                    (node.is_asked, node.drawn) = (true, None);
                }
            }
            Note::Sockets(number, _, found) => {
                if let Some(node) = self.nodes.get_mut(number) {
                    node.sockets.clone_from(found);
                }
            }
            Note::Node { .. } | Note::Listing { .. } | Note::Sentinel { .. } | Note::Asking(..) | Note::Wake => {}
        }
        Told::Nothing
    }

    pub fn facts(&mut self, now: Stamp) -> Facts {
        let mut facts = Facts::of_nothing(&self.url);
        let start_ms = now.wall_ms - self.window_ms;
        (facts.at_ms, facts.window_s) = (unix(start_ms), self.window_ms as f64 / 1000.0);
        if let Some(listing) = &self.listing {
            (facts.kind, facts.notes, facts.through) = (listing.kind, listing.notes.clone(), listing.through.clone());
        }
        let listing = self.listing.as_ref();
        let listed: Option<BTreeMap<&str, &Listed>> =
            listing.map(|l| l.nodes.iter().map(|node| (&*node.address, node)).collect());
        let mut paid = Vec::new();
        for watched in self.nodes.values_mut() {
            let listed = listed.as_ref().map(|all| all.get(&*watched.address).copied());
            if listed == Some(None) {
                continue; // a Sentinel that was asked before it was known as one
            }
            let node = watched.node(self.window_ms, now, listed.flatten());
            facts.nodes.push(watched.possible(node));
            paid.extend(watched.drawn.as_ref().map(|drawn| &drawn.paid));
        }
        facts.cost = Paid::all(paid.into_iter(), Duration::from_secs_f64(facts.window_s));
        facts.nodes.sort_by(|a, b| a.address.cmp(&b.address));
        facts.sentinels.extend(self.sentinels.values().cloned());
        facts.hosts.extend(self.host(now));
        facts
    }

    /// The machine as the last look found it, with what was counted in the window.
    fn host(&self, now: Stamp) -> Option<Host> {
        let fresh = self.host.as_ref().filter(|(at, _)| now.mono_ms.saturating_sub(*at) < HOST_MS);
        fresh.and_then(|(_, look)| self.narrow.as_ref().or(Some(look).filter(|look| look.check().is_ok()))).cloned()
    }

    /// The last look with what was counted since: made when one of them has come, for a view asks more often than that.
    fn narrowed(&self) -> Option<Host> {
        let ((begun, first), (ended, last)) = (self.counts.front()?, self.counts.back()?);
        let is_enough = ended.mono_ms.saturating_sub(begun.mono_ms) >= SPAN_MS;
        let mut narrow = self.host.as_ref().filter(|_| is_enough)?.1.clone();
        let mut crowd = Crowd::default();
        self.counts.iter().skip(1).for_each(|(_, counts)| crowd.add(counts.numbers()));
        first.narrow(last, &crowd, seconds_between(*begun, *ended, true), unix(ended.wall_ms), &mut narrow);
        narrow.check().is_ok().then_some(narrow)
    }
}

impl Watched {
    fn new(address: &str) -> Watched {
        Watched {
            address: address.to_string(),
            seconds: VecDeque::new(),
            asked: Arc::new(Node::new(address, Role::Unknown)),
            sockets: Seen::default(),
            stalls: VecDeque::new(),
            away: None,
            standing: None,
            topology: None,
            is_asked: false,
            own: Own::default(),
            drawn: None,
        }
    }

    fn begin_again(&mut self) {
        self.seconds.clear();
        self.stalls.clear();
        self.standing = None;
    }

    fn saw(&mut self, number: NodeNumber, at: Stamp, saw: &Saw, window_ms: u64) -> Told {
        match saw {
            Saw::Stall(stall) => {
                self.stalls.push_back((at.mono_ms, *stall));
                while self.stalls.front().is_some_and(|(ended, _)| at.mono_ms - ended > window_ms) {
                    self.stalls.pop_front();
                }
                Told::AskSoon(number)
            }
            Saw::Away(away) => {
                self.away.clone_from(away);
                if away.is_none() { Told::AskSoon(number) } else { Told::Nothing }
            }
            Saw::Looked(_) => Told::Nothing,
            Saw::Standing(standing) => {
                self.standing = Some((at.mono_ms, (**standing).clone()));
                Told::Nothing
            }
            Saw::Second { info, pings, sent } => {
                let info = Info::parse(&lossy(info));
                let own = Own { stopped_early: self.asked.own.stopped_early, ..sent.clone() };
                let counters = Counters::of(&info, own.total);
                let mut topology = DefaultHasher::new();
                OF_TOPOLOGY.iter().for_each(|name| info.get(name).hash(&mut topology));
                let age = |second: &Second| at.mono_ms.saturating_sub(second.at.mono_ms);
                // Before a gap is another window, and before a restart another process.
                let is_gone = |last: &Second| age(last) > FRESH_MS || counters.went_back(&last.counters);
                if self.seconds.back().is_some_and(is_gone) {
                    self.begin_again();
                }
                self.seconds.push_back(Second { at, info, counters, pings: pings.clone(), own });
                // One from before the window is its beginning.
                while self.seconds.get(1).is_some_and(|second| age(second) >= window_ms) {
                    self.seconds.pop_front();
                }
                // A close look at a server that says much must not fill the memory.
                let bytes = |seconds: &VecDeque<Second>| seconds.iter().map(|s| s.info.0.bytes()).sum::<usize>();
                while self.seconds.len() > 2 && bytes(&self.seconds) > INFO_BYTES {
                    self.seconds.remove(1);
                }
                if let (Some(first), Some(last)) = (self.seconds.front(), self.seconds.back()) {
                    self.own = last.own.since(&first.own);
                }
                self.drawn = None;
                let before = self.topology.replace(topology.finish());
                if before.is_some() && before != self.topology { Told::Changed(number) } else { Told::Nothing }
            }
        }
    }

    fn node(&self, window_ms: i64, now: Stamp, listed: Option<&Listed>) -> Node {
        let mut node = Node { address: self.address.clone(), sockets: self.sockets.clone(), ..(*self.asked).clone() };
        (node.first, node.last, node.window_s) = (None, None, 0.0);
        (node.unreachable, node.away, node.silent_ms) = (None, None, None);
        if let Some(listed) = listed {
            (node.role, node.master, node.node_id) = (listed.role, listed.master.clone(), listed.node_id.clone());
        }
        // The wall clock may have been set meanwhile: everything is placed by the other one.
        let age_ms = |mono_ms: u64| now.mono_ms.saturating_sub(mono_ms);
        let place = |mono_ms: u64| now.wall_ms - age_ms(mono_ms) as i64;
        let start_ms = now.wall_ms - window_ms;
        let fresh = self
            .seconds
            .back()
            .filter(|last| age_ms(last.at.mono_ms) <= FRESH_MS && (self.is_asked || self.seconds.len() > ENOUGH));
        if let (Some(first), Some(last)) = (self.seconds.front(), fresh)
            && last.at.mono_ms.saturating_sub(first.at.mono_ms) >= SPAN_MS
        {
            let sample = |second: &Second| Sample { at_ms: unix(place(second.at.mono_ms)), info: second.info.clone() };
            let s = seconds_between(first.at, last.at, true);
            window::measured(&mut node, sample(first), sample(last), s, self.own.clone());
        }
        let mut trail = Trail::new(start_ms);
        self.seconds.iter().for_each(|second| trail.saw(place(second.at.mono_ms), second.counters, &second.pings));
        (node.series, node.pings) = (trail.points, trail.pings);
        for (ended, stall) in self.stalls.iter().filter(|(ended, _)| age_ms(*ended) <= window_ms as u64) {
            let began = (place(*ended) - (stall.us / 1000) as i64).max(start_ms);
            node.pings.push(((began - start_ms) as u32, u32::try_from(stall.us).unwrap_or(u32::MAX)));
        }
        let is_recent = |told: &u64| age_ms(*told) <= window_ms as u64;
        node.standing = self.standing.as_ref().filter(|(told, _)| is_recent(told)).map(|(_, seen)| seen.clone());
        // One that owes an answer: it takes at least that long.
        let owed_ms = self.seconds.back().map_or(0, |last| age_ms(last.at.mono_ms));
        if owed_ms > self.usual_ms() * 2 {
            let us = u32::try_from((owed_ms - self.usual_ms()) * 1000).unwrap_or(u32::MAX);
            node.pings.push((window_ms as u32, us));
        }
        node.pings.sort_unstable();
        let times: Vec<u32> = node.pings.iter().map(|(_, us)| *us).collect();
        let rtt = Rtt::of(&times).map(|value| Seen::yes(value, "PING", unix(now.wall_ms)));
        node.rtt = rtt.unwrap_or_default();
        if let Some(away) = &self.away {
            node.silent_ms = away.silent.then(|| unix(now.wall_ms).saturating_sub(away.since_ms));
            // What was seen of its process belongs to this silence, for as long as it lasts; not a stall before it.
            let begins = |seen: &Standing| seen.at_ms.saturating_sub(seen.span_ms);
            let of_it = |seen: &&Standing| away.silent && begins(seen) + EARLIER_MS >= away.since_ms;
            node.standing = self.standing.as_ref().map(|(_, seen)| seen).filter(of_it).cloned();
            (node.unreachable, node.away) = (Some(format!("{}: {}", self.address, away.why)), Some(away.lack));
            // Who was connected then is not known to be connected now.
            node.clients = Seen::No(Gap::new(away.lack, "the server does not answer", ""));
        }
        node
    }

    /// The node, or that its numbers cannot be: what one server makes up must neither hide the others nor itself.
    fn possible(&mut self, node: Node) -> Node {
        let has_samples = node.last.is_some();
        self.drawn.take_if(|drawn| drawn.has_samples != has_samples);
        let drawn = self.drawn.get_or_insert_with(|| match node.check() {
            Ok(()) => Drawn { has_samples, why: None, paid: Paid::by(&node) },
            Err(why) => {
                let why = Some(format!("{}: its numbers cannot be: {why}", self.address));
                Drawn { has_samples, why, paid: Paid::default() }
            }
        });
        match &drawn.why {
            None => node,
            Some(why) => {
                let (unreachable, away) = (Some(why.clone()), Some(Lack::Other));
                Node { unreachable, away, ..Node::new(&self.address, Role::Unknown) }
            }
        }
    }

    /// From one INFO to the next.
    fn usual_ms(&self) -> u64 {
        let between = |(a, b): (&Second, &Second)| b.at.mono_ms.saturating_sub(a.at.mono_ms);
        self.seconds.iter().zip(self.seconds.iter().skip(1)).map(between).max().unwrap_or(1_000).max(1_000)
    }
}

fn unix(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
