//! What most owners never have, in eight bytes until they have it.

use std::ops::{Deref, DerefMut};

/// What has a state that most of its owners leave it in.
pub trait Resting: Sized + 'static {
    /// That state.
    const REST: &'static Self;

    fn is_at_rest(&self) -> bool;
}

/// A `T` that takes memory only once it is changed. Using it as `&mut T` counts as a change.
pub struct Rarely<T>(Option<Box<T>>);

impl<T: Resting + Default> Rarely<T> {
    /// Takes it, and leaves one at rest.
    pub fn take(&mut self) -> T {
        self.0.take().map_or_else(T::default, |changed| *changed)
    }

    /// To change it where it has memory already; `None` where it has none, and so is at rest.
    pub fn changed(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }

    #[cfg(test)]
    pub fn has_memory(&self) -> bool {
        self.0.is_some()
    }

    /// Frees its memory if it is at rest again.
    pub fn settle(&mut self) {
        if self.0.as_ref().is_some_and(|changed| changed.is_at_rest()) {
            self.0 = None;
        }
    }
}

impl<T> Default for Rarely<T> {
    fn default() -> Rarely<T> {
        Rarely(None)
    }
}

impl<T: Resting> Deref for Rarely<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::REST)
    }
}

impl<T: Resting + Default> DerefMut for Rarely<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Words(Vec<u8>);

    impl Resting for Words {
        const REST: &'static Words = &Words(Vec::new());

        fn is_at_rest(&self) -> bool {
            self.0.is_empty()
        }
    }

    #[test]
    fn memory_is_taken_with_the_first_change_and_freed_at_rest() {
        let mut words: Rarely<Words> = Rarely::default();
        assert_eq!(size_of_val(&words), 8);
        assert!(words.deref().0.is_empty() && words.is_at_rest());
        words.settle();
        assert!(words.changed().is_none());
        assert!(!words.has_memory(), "reading and settling change nothing");
        words.deref_mut().0.push(b'x');
        words.settle();
        assert!(words.has_memory() && words.deref().0 == b"x");
        words.deref_mut().0.clear();
        words.settle();
        assert!(!words.has_memory());
        assert!(words.take().0.is_empty());
    }
}
