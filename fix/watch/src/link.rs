//! One connection to one node: what was asked on it, what it heard, and how its node is.

use std::collections::VecDeque;

use unslow_client::Target;
use unslow_nodes::{Backoff, Greeting};
use unslow_reactor::Id;
use unslow_resp::Value;
use unslow_topology::{RoleReply, SLOTS};

use crate::roles::Promotion;

/// What a link is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A data node.
    Node,
    /// A Sentinel, for questions.
    Sentinel,
    /// A subscription, to a Sentinel or a data node.
    Ear,
}

/// What the next reply answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    Info,
    Ping(u64),
    Nodes(u64),
    /// CLUSTER SLOTS, where CLUSTER NODES is denied.
    Slots(u64),
    Shards,
    Epochs,
    Role,
    Subscribe(u16),
    /// SENTINEL GET-MASTER-ADDR-BY-NAME.
    Master,
    /// SENTINEL MASTER, for its config epoch and its flags, asked at this time.
    MasterEpoch(u64),
    /// SENTINEL REPLICAS, asked at this time.
    Replicas(u64),
    Publish,
    Ignore,
}

/// A set of slots that is asked and changed one by one.
#[derive(Clone)]
pub struct Slots(Box<[u64; 256]>);

impl Default for Slots {
    fn default() -> Self {
        Slots(Box::new([0; 256]))
    }
}

impl Slots {
    pub fn has(&self, slot: u16) -> bool {
        self.0[usize::from(slot / 64)] >> (slot % 64) & 1 == 1
    }

    pub fn set(&mut self, slot: u16, held: bool) {
        let bit = 1u64 << (slot % 64);
        let word = &mut self.0[usize::from(slot / 64)];
        *word = if held { *word | bit } else { *word & !bit };
    }
}

const MILLISECOND: u64 = 1_000_000;

/// A connection to a server or a Sentinel, and what was asked on it.
pub struct Link {
    pub address: String,
    pub kind: Kind,
    pub target: Target,
    pub connection: Option<Id>,
    /// Past its greeting.
    pub ready: bool,
    pub dial_at: u64,
    pub dialled_at: u64,
    pub backoff: Backoff,
    /// Its replies come before those to `asks`.
    pub greeting: Greeting,
    pub asks: VecDeque<Ask>,
    /// Since when the oldest of them is open.
    pub owes_since: u64,
    /// Another node or a Sentinel named it last.
    pub named_at: u64,
    /// It may tell us of nodes that are to be sent the password.
    pub trusted: bool,
    /// A Sentinel's last word: config epoch and master.
    pub word: Option<(u64, String)>,
    /// When it named this master with this epoch first.
    pub word_since: u64,
    /// The same in the making.
    pub naming: Option<String>,
    /// A Sentinel's failover is in progress, it says.
    pub failing_over: bool,
    /// The replica that it makes a master.
    pub promotes: Option<Promotion>,
    /// When the question was asked that it answered last.
    pub told_at: u64,
    /// What the peer said last, pushes included.
    pub heard_at: u64,
    /// Of the shortest and the longest round trip lately, in ns.
    pub rtt_min: u64,
    pub rtt_peak: u64,
    pub suspected: bool,
    /// Redis' own numbering.
    pub level: (u32, u32),
    pub resp3: bool,
    /// It tells when slots leave.
    pub pushes: bool,
    pub held: Slots,
    pub subscribing: usize,
    pub role: Option<RoleReply>,
    /// When ROLE was asked last.
    pub role_at: u64,
    /// When it was asked for the answer that is there.
    pub role_asked: u64,
    /// Since when it says that it is a master.
    pub leads_since: u64,
    pub zone: Option<String>,
    pub loading: bool,
    pub nodes_wanted: bool,
    pub nodes_due: u64,
    /// Whether slots of its shard may have no subscription yet.
    pub subscribe_due: bool,
    pub nodes_denied: bool,
    /// What it said last in CLUSTER INFO; empty before it did.
    pub epochs: String,
    pub pinged_at: u64,
    /// Said once that something is denied here.
    pub noted: bool,
}

impl Link {
    pub fn new(address: String, kind: Kind, target: Target) -> Link {
        Link {
            address,
            kind,
            target,
            connection: None,
            ready: false,
            dial_at: 0,
            dialled_at: 0,
            backoff: Backoff::new(20 * MILLISECOND, 1000 * MILLISECOND),
            greeting: Greeting::default(),
            asks: VecDeque::new(),
            owes_since: 0,
            named_at: 0,
            trusted: true,
            word: None,
            word_since: 0,
            naming: None,
            failing_over: false,
            promotes: None,
            told_at: 0,
            heard_at: 0,
            rtt_min: u64::MAX,
            rtt_peak: 0,
            suspected: false,
            level: (0, 0),
            resp3: false,
            pushes: false,
            held: Slots::default(),
            subscribing: 0,
            role: None,
            role_at: 0,
            role_asked: 0,
            leads_since: 0,
            zone: None,
            loading: false,
            nodes_wanted: false,
            nodes_due: 0,
            subscribe_due: true,
            nodes_denied: false,
            epochs: String::new(),
            pinged_at: 0,
            noted: false,
        }
    }

    /// Whether this question is under way.
    pub fn asked(&self, which: impl Fn(&Ask) -> bool) -> bool {
        self.asks.iter().any(which)
    }

    /// A ping was answered after this time.
    pub fn answered(&mut self, took: u64) {
        // Forgets slowly, so that one slow second counts for the next ones.
        self.rtt_peak = (self.rtt_peak - self.rtt_peak / 64).max(took);
        self.rtt_min = (self.rtt_min.saturating_add(self.rtt_min / 256)).min(took);
    }

    /// Forgets the connection, and when to dial next.
    pub fn lost(&mut self, now: u64) {
        self.connection = None;
        self.ready = false;
        self.greeting = Greeting::default();
        self.asks.clear();
        self.held = Slots::default();
        self.subscribing = 0;
        self.role = None;
        self.dial_at = now + self.backoff.failed(rand::random_range);
    }

    pub fn slots_missing(&self, wanted: &[(u16, u16)], most: usize) -> Vec<u16> {
        let all = wanted.iter().flat_map(|&(a, b)| a..=b.min(SLOTS - 1));
        all.filter(|&slot| !self.held.has(slot)).take(most).collect()
    }
}

/// The words in front of a push.
pub fn push_words(value: &Value) -> Option<(String, String)> {
    let (Value::Push(items) | Value::Array(items)) = value else { return None };
    Some((items.first()?.text()?, items.get(1)?.text()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn link() -> Link {
        Link::new("127.0.0.1:1".into(), Kind::Node, Target::parse("127.0.0.1:1").unwrap())
    }

    #[test]
    fn missing_slots_are_found_in_order() {
        let mut link = link();
        [0, 63, 64, 16383].into_iter().for_each(|slot| link.held.set(slot, true));
        link.held.set(63, false);
        assert_eq!(
            [0, 1, 62, 63, 64, 65, 16382, 16383].map(|s| link.held.has(s)),
            [true, false, false, false, true, false, false, true]
        );
        let wanted = [(0, 2), (62, 65), (16382, 20_000)];
        assert_eq!(link.slots_missing(&wanted, 100), [1, 2, 62, 63, 65, 16382]);
        assert_eq!(link.slots_missing(&wanted, 4), [1, 2, 62, 63]);
        assert!(link.slots_missing(&[], 4).is_empty());
    }

    #[test]
    fn a_lost_link_backs_off_and_forgets_its_state() {
        let mut link = link();
        for pause in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            link.ready = true;
            link.asks.push_back(Ask::Role);
            (link.subscribing, link.role) = (1, Some(RoleReply::Master { offset: 0, replicas: Vec::new() }));
            link.held.set(7, true);
            link.lost(5 * MS);
            let waits = link.dial_at - 5 * MS;
            assert!((pause * MS / 2..=pause * MS).contains(&waits), "{waits} ns of {pause} ms");
            assert!(!link.ready && link.asks.is_empty() && link.role.is_none() && !link.held.has(7));
            assert_eq!(link.subscribing, 0);
        }
    }

    #[test]
    fn round_trip_extremes_decay_slowly() {
        let mut link = link();
        link.answered(MS);
        link.answered(100 * MS);
        (0..10).for_each(|_| link.answered(10 * MS));
        assert!((80 * MS..90 * MS).contains(&link.rtt_peak), "{} ns", link.rtt_peak);
        assert!((MS..2 * MS).contains(&link.rtt_min), "{} ns", link.rtt_min);
        (0..1000).for_each(|_| link.answered(10 * MS));
        assert_eq!((link.rtt_peak, link.rtt_min), (10 * MS, 10 * MS));
    }

    #[test]
    fn pushes_are_read_by_their_first_two_words() {
        let text = |t: &str| Value::Text(t.as_bytes().to_vec());
        let words = vec![text("sunsubscribe"), text("unslow:1"), Value::Integer(0)];
        let expected = Some(("sunsubscribe".to_string(), "unslow:1".to_string()));
        assert_eq!(push_words(&Value::Push(words.clone())), expected);
        assert_eq!(push_words(&Value::Array(words)), expected);
        assert_eq!(push_words(&Value::Array(vec![text("alone")])), None);
        assert_eq!(push_words(&text("OK")), None);
    }
}
