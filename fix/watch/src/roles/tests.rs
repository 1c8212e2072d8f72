//! A table for each situation: what is said at a step, and who is written to then. The lead and the epoch carry over
//! from step to step, as they do in the watcher.

use super::*;

const A: &str = "10.0.0.1:6379";
const B: &str = "10.0.0.2:6379";
const C: &str = "10.0.0.3:6379";
/// Some time after the clock's origin.
const NOW: u64 = 100_000 * MS;

const MASTER: Option<Claim<'static>> = Some(Claim::Master { since: 0 });

const fn follows(master: &str) -> Option<Claim<'_>> {
    Some(Claim::Follows(master))
}

/// What a step expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Writes(&'static str),
    Holds(Reason),
    Nobody,
}

struct Group {
    facts: Facts<'static>,
}

impl Group {
    /// `A` with the replicas `B` and `C`, under this many Sentinels that name `A` with epoch 1.
    fn new(sentinels: usize) -> Group {
        let server = |address, claim| Server { address, claim, asked: NOW, well: true };
        let servers = vec![server(A, MASTER), server(B, follows(A)), server(C, follows(A))];
        let word = Some(Word { epoch: 1, master: A, since: 0 });
        let sentinel = Sentinel { ready: true, well: true, asked: NOW, word, promotes: None };
        Group { facts: Facts { now: NOW, lead: Some(A), epoch: 1, servers, sentinels: vec![sentinel; sentinels] } }
    }

    /// Milliseconds pass.
    fn after(&mut self, ms: u64) -> &mut Group {
        self.facts.now += ms * MS;
        self
    }

    /// A server answers ROLE.
    fn role(&mut self, address: &str, claim: Option<Claim<'static>>) -> &mut Group {
        let now = self.facts.now;
        let server = self.server(address);
        (server.claim, server.asked) = (claim, now);
        self
    }

    /// A server begins to say that it is master.
    fn claims(&mut self, address: &str) -> &mut Group {
        let since = self.facts.now;
        self.role(address, Some(Claim::Master { since }))
    }

    fn server(&mut self, address: &str) -> &mut Server<'static> {
        self.facts.servers.iter_mut().find(|s| s.address == address).unwrap()
    }

    /// Its connection breaks.
    fn breaks(&mut self, address: &str) -> &mut Group {
        self.server(address).claim = None;
        self
    }

    fn silent(&mut self, address: &str) -> &mut Group {
        self.breaks(address);
        self.server(address).well = false;
        self
    }

    /// A Sentinel announces a promotion.
    fn announces(&mut self, sentinel: usize, replica: &str) -> &mut Group {
        let now = self.facts.now;
        let promotion: &'static Promotion =
            Box::leak(Box::new(Promotion { replica: replica.into(), since: now, seen: now, trusted: true }));
        self.facts.sentinels[sentinel].promotes = Some(promotion);
        self
    }

    /// A Sentinel answers: whom it names, and no promotion.
    fn names(&mut self, sentinel: usize, epoch: u64, master: &'static str) -> &mut Group {
        let now = self.facts.now;
        let sentinel = &mut self.facts.sentinels[sentinel];
        let since = sentinel.word.filter(|w| (w.epoch, w.master) == (epoch, master)).map_or(now, |w| w.since);
        (sentinel.word, sentinel.promotes) = (Some(Word { epoch, master, since }), None);
        sentinel.asked = now;
        self
    }

    fn all_name(&mut self, epoch: u64, master: &'static str) -> &mut Group {
        for sentinel in 0..self.facts.sentinels.len() {
            self.names(sentinel, epoch, master);
        }
        self
    }

    /// Decides as the watcher does.
    #[track_caller]
    fn now(&mut self, expected: Now) -> &mut Group {
        let now = match decide(&self.facts) {
            Decision::Nobody => Now::Nobody,
            Decision::Hold(reason) => Now::Holds(reason),
            Decision::Write { to, by } => {
                if let Basis::Word(epoch) = by {
                    self.facts.epoch = self.facts.epoch.max(epoch);
                }
                self.facts.lead = Some(to);
                Now::Writes(to)
            }
        };
        assert_eq!(now, expected, "{:#?}", self.facts);
        self
    }
}

use Now::{Holds, Writes};

#[test]
fn a_quiet_group_is_written_to_where_it_was() {
    for sentinels in [0, 1, 3] {
        Group::new(sentinels).now(Writes(A)).after(1000).breaks(A).now(Writes(A)).role(A, MASTER).now(Writes(A));
        // Nothing is known yet.
        let mut group = Group::new(sentinels);
        group.facts.lead = None;
        group.now(Writes(A));
    }
    let mut group = Group::new(0);
    group.facts.lead = None;
    group.breaks(A).now(Now::Nobody);
}

#[test]
fn a_failover_of_a_sentinel_is_followed_in_the_order_of_its_messages() {
    let mut group = Group::new(3);
    // +selected-slave: nothing has happened to the servers yet.
    group.announces(0, B).now(Holds(Reason::Promotion)).after(50).now(Holds(Reason::Promotion));
    // REPLICAOF NO ONE closes the replica's connections; it is asked on the next one.
    group.breaks(B).now(Holds(Reason::Promotion));
    group.after(2).claims(B).now(Writes(B));
    // The Sentinels still name the old master, which still says that it is one.
    group.after(10).role(A, MASTER).now(Writes(B)).breaks(B).now(Writes(B)).claims(B);
    // +promoted-slave, the next INFO of that Sentinel; the others hear of it within two seconds.
    group.after(900).names(0, 2, B).now(Writes(B));
    group.after(1500).names(1, 1, A).now(Writes(B)).names(1, 2, B).names(2, 2, B).now(Writes(B));
    // Ten seconds later the old master becomes a replica.
    group.after(8000).role(A, follows(B)).now(Writes(B));
}

#[test]
fn a_promotion_whose_announcement_was_missed_is_recognised_by_the_sentinels_answers() {
    let mut group = Group::new(2);
    group.after(5).claims(B).now(Holds(Reason::Claim));
    // Answers to earlier questions say nothing about it.
    group.facts.sentinels[0].asked = group.facts.now - 1;
    group.now(Holds(Reason::Claim)).after(1).announces(0, B).now(Holds(Reason::Promotion));
    group.role(B, Some(Claim::Master { since: NOW + 5 * MS })).now(Writes(B));
}

#[test]
fn a_replica_promoted_by_hand_is_not_followed_under_sentinels() {
    let mut group = Group::new(3);
    group.after(5).claims(B).now(Holds(Reason::Claim)).after(1).all_name(1, A).now(Writes(A));
    // The same while a Sentinel gives no answer: not for long.
    let mut group = Group::new(3);
    group.after(5).claims(B).names(0, 1, A).now(Holds(Reason::Claim)).after(1000).now(Writes(A));
    // Without Sentinels the old one counts as long as it says that it is master.
    Group::new(0).after(5).claims(B).now(Writes(A)).role(A, follows(B)).now(Writes(B));
}

#[test]
fn failover_said_to_the_master_is_followed_without_a_sentinels_word() {
    for sentinels in [0, 1, 3] {
        let mut group = Group::new(sentinels);
        // The old master is asked first, or the new one.
        group.after(1).role(A, follows(B)).now(Writes(A)).claims(B).now(Writes(B));
        group.after(1000).all_name(1, A).now(Writes(B));
        // Long after, the Sentinels take the old master for down, and make the one that is there already.
        group.after(30_000).all_name(2, B).now(Writes(B));
    }
    let mut group = Group::new(3);
    group.after(1).claims(B).now(Holds(Reason::Claim)).role(A, follows(B)).now(Writes(B));
    // And back.
    group.after(100).role(B, follows(A)).now(Writes(B)).claims(A).now(Writes(A));
}

#[test]
fn a_chain_of_replicas_leads_to_its_master() {
    let mut group = Group::new(3);
    group.after(1).role(A, follows(B)).role(B, follows(C)).now(Writes(A)).claims(C).now(Writes(C));
    let mut circle = Group::new(3);
    circle.after(1).role(A, follows(B)).role(B, follows(A)).now(Writes(A));
}

#[test]
fn of_two_masters_the_one_that_the_sentinels_elected_counts() {
    // A partition ends: the old master was never told.
    let mut group = Group::new(3);
    group.silent(A).now(Writes(A)).claims(B).now(Writes(A));
    group.after(500).names(0, 2, B).now(Writes(B));
    group.server(A).well = true;
    group.after(500).claims(A).now(Holds(Reason::Claim)).after(1).all_name(2, B).now(Writes(B));
    // Sentinels that are behind do not turn it back.
    group.after(500).names(1, 1, A).now(Writes(B));
    // Without Sentinels, and with a lead that does not answer, any master counts.
    Group::new(0).silent(A).now(Writes(A)).claims(B).now(Writes(B)).role(A, MASTER).now(Writes(B));
}

#[test]
fn one_lying_sentinel_is_not_followed() {
    // It names a replica that says it is one.
    let mut group = Group::new(3);
    group.after(1).names(2, 99, B).now(Holds(Reason::Word)).after(1).role(B, follows(A)).now(Writes(A));
    // Its epoch does not hide a failover.
    group.after(1).announces(0, C).after(50).claims(C).now(Writes(C)).names(0, 2, C).now(Writes(C));
    group.after(2000).names(1, 2, C).now(Writes(C));
    // It names a server that does not answer, or none at all.
    let mut group = Group::new(3);
    group.after(1).silent(B).names(2, 99, B).now(Holds(Reason::Word)).after(3000).now(Writes(A));
    group.names(2, 100, "10.9.9.9:6379").now(Writes(A));
    // The same from two of three is their word.
    group.names(1, 99, B).names(2, 99, B).now(Holds(Reason::Word)).after(3000).now(Writes(B));
    // It announces a promotion that never comes.
    let mut group = Group::new(3);
    group.announces(2, B).now(Holds(Reason::Promotion)).after(5000).role(B, follows(A)).now(Writes(A));
}

#[test]
fn a_promotion_that_is_aborted_gives_the_writes_back() {
    let mut group = Group::new(3);
    group.announces(0, B).now(Holds(Reason::Promotion));
    group.facts.sentinels[0].promotes = None;
    group.now(Writes(A));
    // Aborted after the replica was promoted: the Sentinels turn it into a replica again.
    group.after(10).announces(0, B).after(50).claims(B).now(Writes(B)).after(10).names(0, 1, A).now(Writes(A));
}

#[test]
fn a_promotion_that_comes_late_is_followed_late() {
    let mut group = Group::new(3);
    group.announces(0, B).now(Holds(Reason::Promotion)).after(6000).now(Writes(A)).claims(B).now(Writes(B));
    // An announcement of a minute ago says nothing about a promotion by hand.
    let mut group = Group::new(3);
    group.announces(0, B).after(60_000).claims(B).now(Holds(Reason::Claim));
    for sentinel in &mut group.facts.sentinels {
        sentinel.asked = NOW + 60_001 * MS;
    }
    group.now(Writes(A));
}

#[test]
fn a_dead_master_is_replaced_by_the_word_of_the_first_sentinel_that_knows() {
    let mut group = Group::new(3);
    group.silent(A).announces(1, C).now(Writes(A)).after(50).breaks(C).now(Writes(A)).claims(C).now(Writes(C));
    let mut group = Group::new(3);
    group.silent(A).breaks(C).after(1000).names(1, 2, C).now(Writes(C));
    // The old one is back, as a master, before a Sentinel has told it.
    group.server(A).well = true;
    group.after(100).claims(A).now(Writes(C));
    group.claims(C).now(Holds(Reason::Claim)).after(1).names(0, 1, A).names(1, 2, C).names(2, 1, A).now(Writes(C));
}
