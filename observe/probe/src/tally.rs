//! How many commands this process has sent to a server so far, over all of its connections.
//!
//! Several threads query a server, each over its own connection. The server's counters include all of these commands,
//! so subtracting ours requires an up-to-date count, not the one taken after the last round of queries.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unslow_facts::Own;

/// The count for one server. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Own>>);

impl Tally {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the count under its lock.
    pub fn count(&self, count: impl FnOnce(&mut Own)) {
        count(&mut self.own());
    }

    /// The count so far.
    pub fn so_far(&self) -> Own {
        self.own().clone()
    }
}
