//! Connections to a node that single clients have alone, counted for the whole gateway. They come out of the server's
//! `maxclients`: were there no limit, a gateway's worth of clients that block or subscribe could use all of it up, and
//! nobody would get a new connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::clock::MS;

/// What there may be where the server's `maxclients` is not known.
const UNKNOWN_MAX: usize = 1000;
/// AUTH is judged on a sixteenth of that beside it, and on this many at least.
const LOGINS_MIN: usize = 4;
/// After a refusal, those who wait come first for this long.
const CROWDED: u64 = 100 * MS;

/// Whose connections are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Of clients that block, watch, subscribe and the like, and those in the pool for them.
    Clients,
    /// AUTH is judged on them: it needs no login, so it must not use up what those who are logged in need.
    Logins,
}

/// How many connections of either share a node may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    pub clients: usize,
}

impl Most {
    /// `own_connections` as it was set, 0 for what follows from the server's `maxclients`.
    pub fn of(set: usize, maxclients: Option<u64>) -> Most {
        let half = |all: u64| usize::try_from(all / 2).unwrap_or(UNKNOWN_MAX).max(1);
        Most { clients: if set > 0 { set } else { maxclients.map_or(UNKNOWN_MAX, half) } }
    }

    pub fn share(self, share: Share) -> usize {
        match share {
            Share::Clients => self.clients,
            Share::Logins => (self.clients / 16).max(LOGINS_MIN),
        }
    }
}

#[derive(Debug, Default)]
struct Count {
    taken: AtomicUsize,
    refused_at: AtomicU64,
}

/// The connections to one node. All threads have the same one.
#[derive(Debug, Default)]
pub struct Own {
    clients: Count,
    logins: Count,
}

impl Own {
    fn count(&self, share: Share) -> &Count {
        match share {
            Share::Clients => &self.clients,
            Share::Logins => &self.logins,
        }
    }

    /// One more. None where there are as many as may be.
    pub fn take(self: &Arc<Own>, share: Share, most: Most, now: u64) -> Option<Permit> {
        let count = self.count(share);
        let permit = Permit { of: self.clone(), share };
        if count.taken.fetch_add(1, Ordering::AcqRel) < most.share(share) {
            return Some(permit);
        }
        count.refused_at.store(now, Ordering::Release);
        None // the permit is given back
    }

    /// Whether somebody waits: whoever comes now comes behind, and what is not used is closed.
    pub fn crowded(&self, share: Share, now: u64) -> bool {
        let refused_at = self.count(share).refused_at.load(Ordering::Acquire);
        refused_at > 0 && now < refused_at + CROWDED
    }
}

/// A place among a node's own connections, given back when dropped.
#[derive(Debug)]
pub struct Permit {
    of: Arc<Own>,
    share: Share,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.of.count(self.share).taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_follows_the_servers_unless_it_is_set() {
        for (set, maxclients, clients, logins) in
            [(0, None, 1000, 62), (0, Some(10_000), 5000, 312), (0, Some(1), 1, 4), (7, Some(10_000), 7, 4)]
        {
            let most = Most::of(set, maxclients);
            assert_eq!(
                (most.share(Share::Clients), most.share(Share::Logins)),
                (clients, logins),
                "{set} {maxclients:?}"
            );
        }
    }

    #[test]
    fn a_permit_that_is_dropped_is_free_again_and_shares_are_counted_apart() {
        let (own, most) = (Arc::new(Own::default()), Most { clients: 1 });
        let first = own.take(Share::Clients, most, 5).expect("the first");
        assert!(!own.crowded(Share::Clients, 5));
        assert!(own.take(Share::Clients, most, 6).is_none());
        assert!(own.crowded(Share::Clients, 6) && !own.crowded(Share::Clients, 6 + CROWDED));
        let logins: Vec<Option<Permit>> = (0..=LOGINS_MIN).map(|_| own.take(Share::Logins, most, 7)).collect();
        assert_eq!(logins.iter().flatten().count(), LOGINS_MIN);
        drop(first);
        assert!(own.take(Share::Clients, most, 8).is_some());
        assert!(own.take(Share::Clients, most, 9).is_some(), "a refusal takes no place");
    }
}
