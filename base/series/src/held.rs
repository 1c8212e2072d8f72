//! Texts that hold, by name: a series' own, and those that held when a chunk of it began.

use std::sync::Arc;

/// A text and since when it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub name: Arc<str>,
    pub value: Arc<str>,
    pub since_ms: i64,
}

/// One of each name, in the order of names. A copy is the same memory until either changes: of hundreds that a server
/// has, few ever do.
#[derive(Clone, Debug, Default)]
pub struct Texts(Arc<Vec<Held>>);

impl Texts {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, Held> {
        self.0.iter()
    }

    pub fn get(&self, name: &str) -> Option<&Held> {
        Some(&self.0[self.place(name).ok()?])
    }

    /// Instead of the one of its name, if there is one.
    pub fn put(&mut self, held: Held) {
        let place = self.place(&held.name);
        let all = Arc::make_mut(&mut self.0);
        match place {
            Ok(at) => all[at] = held,
            Err(at) => {
                if all.len() == all.capacity() {
                    // A thousand servers have as many of these: room for twice as many would be much.
                    all.reserve_exact((all.len() / 8).max(32));
                }
                all.insert(at, held);
            }
        }
    }

    fn place(&self, name: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|held| (*held.name).cmp(name))
    }
}
