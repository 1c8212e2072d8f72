//! Numbers of what a worker has: places in its tables, one type for each, so that none is taken for another.

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A place in a [`Places`].
pub trait Place: Copy {
    fn of(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! place {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(NonZeroU32);

        impl $name {
            /// The place with this index, counted from 0.
            pub const fn at(index: u32) -> $name {
                match NonZeroU32::new(index + 1) {
                    Some(number) => $name(number),
                    None => panic!("a table of four billion rows"),
                }
            }
        }

        impl Place for $name {
            fn of(index: usize) -> $name {
                $name::at(index as u32)
            }

            #[inline]
            fn index(self) -> usize {
                self.0.get() as usize - 1
            }
        }
    };
}

place! {
    /// A [`Lane`](crate::session::Lane).
    LaneId
}
place! {
    /// A [`Set`](crate::session::Set) of lanes.
    SetId
}
place! {
    /// An [`Identity`](crate::session::Identity).
    IdentityId
}

/// A table whose rows are named by places of their own type.
pub struct Places<I, T> {
    all: Vec<T>,
    of: PhantomData<I>,
}

impl<I: Place, T> Places<I, T> {
    pub fn new(all: Vec<T>) -> Places<I, T> {
        Places { all, of: PhantomData }
    }

    pub fn push(&mut self, row: T) -> I {
        self.all.push(row);
        I::of(self.all.len() - 1)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.all.iter()
    }

    #[cfg(test)]
    pub fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.all.iter_mut()
    }

    /// All places, in order; of the moment of the call.
    pub fn places(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.all.len()).map(I::of)
    }

    /// The first whose row is so.
    pub fn find(&self, is: impl FnMut(&T) -> bool) -> Option<I> {
        self.all.iter().position(is).map(I::of)
    }
}

impl<I: Place, T> Index<I> for Places<I, T> {
    type Output = T;

    #[inline]
    fn index(&self, place: I) -> &T {
        &self.all[place.index()]
    }
}

impl<I: Place, T> IndexMut<I> for Places<I, T> {
    #[inline]
    fn index_mut(&mut self, place: I) -> &mut T {
        &mut self.all[place.index()]
    }
}

/// A client, as long as it is there: indices are used again, serial numbers are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Whom {
    pub index: u32,
    pub serial: u32,
}

impl Whom {
    #[inline]
    pub fn place(self) -> usize {
        self.index as usize
    }
}
