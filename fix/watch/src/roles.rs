//! Which server of a group without slots takes writes, decided from what its servers and Sentinels said. A function of
//! facts: no connections, no clock.
//!
//! A Sentinel announces a promotion before it makes it, and reports the new master up to a second after. In between the
//! old master still takes writes, and loses them when it becomes a replica. So writes are held from the announcement
//! until the replica says that it is master. A word that the named server itself contradicts is not followed, whoever
//! says it.

use std::cmp::Reverse;

const MS: u64 = 1_000_000;
/// Writes are held this long for a promotion that was announced.
const PROMOTING_MAX: u64 = 5_000 * MS;
/// An announced promotion is believed this long after it was last seen.
const PROMOTION_MAX: u64 = 60_000 * MS;
/// Writes are held this long for the ROLE of a server that a Sentinel names while another one still takes writes.
const ANSWER_MAX: u64 = 3_000 * MS;
/// Writes are held this long for the Sentinels' answers about a second master.
const CLAIM_MAX: u64 = 1_000 * MS;

/// What a server says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// It takes writes, and has said so without a break since this time.
    Master { since: u64 },
    /// It follows the server at this address.
    Follows(&'a str),
}

/// A data node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server<'a> {
    pub address: &'a str,
    /// Its last ROLE; none since its connection broke.
    pub claim: Option<Claim<'a>>,
    /// When it was asked for that.
    pub asked: u64,
    /// It answers in time.
    pub well: bool,
}

impl Server<'_> {
    fn leads(&self) -> bool {
        self.well && matches!(self.claim, Some(Claim::Master { .. }))
    }

    fn follows(&self) -> bool {
        matches!(self.claim, Some(Claim::Follows(_)))
    }
}

/// Which master a Sentinel names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word<'a> {
    /// Config epoch: every failover has a higher one.
    pub epoch: u64,
    pub master: &'a str,
    /// When it named this one first.
    pub since: u64,
}

/// A Sentinel makes a replica a master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// Address of the replica.
    pub replica: String,
    /// When the Sentinel said so first, and last.
    pub since: u64,
    pub seen: u64,
    /// The Sentinel is one that may hold writes: not only a message on a channel named it.
    pub trusted: bool,
}

/// A Sentinel.
#[derive(Clone, Copy, Debug)]
pub struct Sentinel<'a> {
    /// It is connected.
    pub ready: bool,
    /// It answers in time.
    pub well: bool,
    /// When it was asked what it answered last.
    pub asked: u64,
    pub word: Option<Word<'a>>,
    pub promotes: Option<&'a Promotion>,
}

/// What is known of a group.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub now: u64,
    /// Who was written to until now.
    pub lead: Option<&'a str>,
    /// Epoch of the last word that was followed.
    pub epoch: u64,
    pub servers: Vec<Server<'a>>,
    /// None where no Sentinel watches the group.
    pub sentinels: Vec<Sentinel<'a>>,
}

/// Why a server is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    /// Sentinels name it, with this epoch.
    Word(u64),
    /// A Sentinel announced its promotion, and it says that it is master.
    Promotion,
    /// The servers say so themselves.
    Role,
    /// It was written to before, and nothing says otherwise.
    Known,
}

/// Why writes are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A Sentinel is making a replica the master.
    Promotion,
    /// A second server has begun to say that it is master; the Sentinels are asked whether that is a failover.
    Claim,
    /// A Sentinel names another master, which has not said yet that it is one.
    Word,
}

/// Who is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    /// No server is known to be a master.
    Nobody,
    Write {
        to: &'a str,
        by: Basis,
    },
    /// Nobody for now; until then it was the lead.
    Hold(Reason),
}

/// Who is master by what is known now, or why that cannot be said yet.
pub fn decide<'a>(facts: &Facts<'a>) -> Decision<'a> {
    let lead = facts.lead.and_then(|address| facts.server(address));
    let governed = facts.sentinels.iter().any(|s| s.ready);
    let by_sentinels = if governed {
        facts.promoted(lead).or_else(|| facts.claimed(lead)).or_else(|| facts.named(lead))
    } else {
        None
    };
    by_sentinels.unwrap_or_else(|| facts.by_roles(lead, governed))
}

impl<'a> Facts<'a> {
    fn server(&self, address: &str) -> Option<Server<'a>> {
        self.servers.iter().find(|s| s.address == address).copied()
    }

    /// Follows a promotion that a Sentinel announced, as soon as the replica says that it is master.
    fn promoted(&self, lead: Option<Server<'a>>) -> Option<Decision<'a>> {
        let announced = self.sentinels.iter().filter_map(|s| s.promotes);
        let fresh: Vec<&Promotion> = announced.filter(|p| self.now < p.seen + PROMOTION_MAX).collect();
        for promotion in &fresh {
            let Some(chosen) = self.server(&promotion.replica) else { continue };
            // Once followed, it stays until the Sentinel's own word is there: that still names the old master.
            let followed = lead.is_some_and(|l| l.address == chosen.address) && !chosen.follows();
            if followed || chosen.leads() && chosen.asked >= promotion.since {
                return Some(Decision::Write { to: chosen.address, by: Basis::Promotion });
            }
        }
        let due = |p: &&Promotion| p.trusted && self.now < p.since + PROMOTING_MAX && self.server(&p.replica).is_some();
        // A lead that follows another server refuses writes itself, and reads need not wait.
        let writable = lead.is_some_and(|l| l.well && !l.follows());
        (writable && fresh.iter().any(due)).then_some(Decision::Hold(Reason::Promotion))
    }

    /// A second master: the announcement of a failover may have been missed. Sentinels that were asked since then know.
    fn claimed(&self, lead: Option<Server<'a>>) -> Option<Decision<'a>> {
        let lead = lead.filter(|l| l.leads())?;
        let unasked = |since: u64| self.sentinels.iter().any(|s| s.ready && s.well && s.asked < since);
        let begun = |s: &Server<'a>| match s.claim {
            Some(Claim::Master { since }) => {
                s.well && s.address != lead.address && self.now < since + CLAIM_MAX && unasked(since)
            }
            _ => false,
        };
        self.servers.iter().any(begun).then_some(Decision::Hold(Reason::Claim))
    }

    /// The Sentinels' word: that of the highest epoch which the named server does not contradict.
    fn named(&self, lead: Option<Server<'a>>) -> Option<Decision<'a>> {
        let said = self.sentinels.iter().filter_map(|s| s.word.filter(|w| w.epoch >= self.epoch));
        let mut words: Vec<Word<'a>> = said.collect();
        let same = |w: &Word<'a>, s: &Sentinel<'a>| s.word.filter(|o| (o.epoch, o.master) == (w.epoch, w.master));
        let votes = |w: &Word<'a>| self.sentinels.iter().filter(|s| s.ready && same(w, s).is_some()).count();
        let since = |w: &Word<'a>| self.sentinels.iter().filter_map(|s| same(w, s)).map(|o| o.since).min();
        let leads = |w: &Word<'a>| lead.is_some_and(|l| l.address == w.master);
        words.sort_by_key(|w| Reverse((w.epoch, votes(w), leads(w))));
        let ready = self.sentinels.iter().filter(|s| s.ready).count();
        // Its writes would be lost if it were replaced.
        let taking = lead.is_some_and(|l| l.leads());
        for word in words {
            let Some(server) = self.server(word.master) else { continue };
            let since = since(&word).unwrap_or(word.since);
            let write = Some(Decision::Write { to: server.address, by: Basis::Word(word.epoch) });
            match server.claim {
                Some(Claim::Master { .. }) => return write,
                // Another server was promoted by hand, the Sentinel is behind, or it lies.
                Some(Claim::Follows(_)) if server.asked >= since => {}
                _ if !taking => return write,
                _ if self.now < since + ANSWER_MAX => return Some(Decision::Hold(Reason::Word)),
                // It does not answer us. All Sentinels hear of a failover within two seconds.
                _ if votes(&word) * 2 > ready => return write,
                _ => {}
            }
        }
        None
    }

    /// By the servers' own word: the one that is known as long as it does not follow another, or its successor.
    fn by_roles(&self, lead: Option<Server<'a>>, governed: bool) -> Decision<'a> {
        let first = || self.servers.iter().find(|s| s.leads()).map(|s| s.address);
        let by = Basis::Role;
        let Some(lead) = lead else {
            return first().map_or(Decision::Nobody, |to| Decision::Write { to, by });
        };
        let successor = match lead.claim {
            // Under Sentinels a master that the old one does not follow may be one that was promoted by hand.
            Some(Claim::Follows(_)) if governed => self.end_of(lead),
            Some(Claim::Follows(_)) => self.end_of(lead).or_else(first),
            _ if lead.well || governed => None,
            _ => first(),
        };
        let known = Decision::Write { to: lead.address, by: Basis::Known };
        successor.map_or(known, |to| Decision::Write { to, by })
    }

    /// The master at the end of a chain of replicas.
    fn end_of(&self, from: Server<'a>) -> Option<&'a str> {
        let mut at = from;
        // A chain may be a circle for a moment.
        for _ in 0..self.servers.len() {
            match at.claim {
                Some(Claim::Follows(master)) => at = self.server(master)?,
                _ => return at.leads().then_some(at.address),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
