//! What everyone in this process who asks a server has sent it up to now.
//!
//! A server is asked over several connections, by several threads. Whoever reads its counters takes off what is ours,
//! so what one of them sent must be known to the others at once, not when its round of questions is over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unslow_facts::Own;

/// One server's; clones count together.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<Mutex<Own>>);

impl Tally {
    fn own(&self) -> MutexGuard<'_, Own> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts what was sent, in one step.
    pub fn count(&self, count: impl FnOnce(&mut Own)) {
        count(&mut self.own());
    }

    /// All of it up to now.
    pub fn so_far(&self) -> Own {
        self.own().clone()
    }
}
