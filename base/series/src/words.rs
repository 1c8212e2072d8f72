//! A column's numbers in memory: as differences while they grow, plain when they are read.

use std::borrow::Cow;

use crate::wire::{Cursor, put_varint, unzigzag, zigzag};

/// Words in the order of rows. Of those that are still being collected only the differences are kept, as bytes: of some
/// 400 fields a second few change, and thousands of chunks are open at a time.
#[derive(Clone, Debug)]
pub enum Words {
    Growing(Growing),
    Plain(Vec<u64>),
    /// So many of one: most fields of a server never change within a chunk, and readers hold chunks of hundreds of
    /// servers.
    Constant(u64, usize),
}

#[derive(Clone, Debug, Default)]
pub struct Growing {
    tokens: Tokens,
    /// The last one that is among the tokens, and the one behind it, which may still be replaced.
    before: u64,
    newest: u64,
    count: u32,
}

impl Default for Words {
    fn default() -> Words {
        Words::Growing(Growing::default())
    }
}

impl Words {
    pub fn len(&self) -> usize {
        match self {
            Words::Growing(growing) => growing.count as usize,
            Words::Plain(words) => words.len(),
            Words::Constant(_, count) => *count,
        }
    }

    /// Those of a chunk that was read.
    pub fn of(words: Vec<u64>) -> Words {
        match words.split_first() {
            Some((first, rest)) if rest.iter().all(|word| word == first) => Words::Constant(*first, words.len()),
            _ => Words::Plain(words),
        }
    }

    /// Returns how many bytes of memory it took.
    pub fn push(&mut self, word: u64) -> usize {
        match self {
            Words::Growing(growing) => growing.push(word),
            // Readers add none.
            Words::Plain(_) | Words::Constant(..) => {
                let mut words = self.all().into_owned();
                words.push(word);
                *self = Words::Plain(words);
                size_of::<u64>()
            }
        }
    }

    /// The newest one was another.
    pub fn replace_newest(&mut self, word: u64) {
        match self {
            Words::Growing(growing) => growing.newest = word,
            Words::Plain(words) => words.last_mut().into_iter().for_each(|last| *last = word),
            Words::Constant(_, count) => {
                let before = count.saturating_sub(1);
                let mut words = self.all()[..before].to_vec();
                words.push(word);
                *self = Words::Plain(words);
            }
        }
    }

    pub fn last(&self) -> Option<u64> {
        match self {
            Words::Growing(growing) => (growing.count > 0).then_some(growing.newest),
            Words::Plain(words) => words.last().copied(),
            Words::Constant(word, count) => (*count > 0).then_some(*word),
        }
    }

    /// All of them.
    pub fn all(&self) -> Cow<'_, [u64]> {
        match self {
            Words::Growing(growing) => Cow::Owned(growing.all()),
            Words::Plain(words) => Cow::Borrowed(words),
            Words::Constant(word, count) => Cow::Owned(vec![*word; *count]),
        }
    }

    /// Makes [`Words::get`] quick.
    pub fn thaw(&mut self) {
        if let Words::Growing(growing) = self {
            *self = Words::of(growing.all());
        }
    }

    /// One of them. While they grow it takes as long as all of them.
    pub fn get(&self, place: usize) -> Option<u64> {
        match self {
            Words::Growing(growing) => growing.all().get(place).copied(),
            Words::Plain(words) => words.get(place).copied(),
            Words::Constant(word, count) => (place < *count).then_some(*word),
        }
    }
}

impl Growing {
    fn push(&mut self, word: u64) -> usize {
        let bytes = self.tokens.out.len();
        if self.count > 0 {
            self.tokens.put(zigzag(self.newest.wrapping_sub(self.before) as i64));
            self.before = self.newest;
        }
        (self.newest, self.count) = (word, self.count + 1);
        self.tokens.out.len() - bytes
    }

    fn all(&self) -> Vec<u64> {
        if self.count == 0 {
            return Vec::new();
        }
        let tokens = self.tokens.clone().end();
        let (mut bytes, mut zeros, mut last) = (Cursor::new(&tokens), 0, 0u64);
        let mut words = Vec::with_capacity(self.count as usize);
        while words.len() + 1 < self.count as usize
            && let Some(difference) = token(&mut bytes, &mut zeros)
        {
            last = last.wrapping_add(unzigzag(difference) as u64);
            words.push(last);
        }
        words.push(self.newest);
        words
    }
}

/// Varints, with a run of zeros as a zero and its length less one.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    out: Vec<u8>,
    zeros: u32,
}

impl Tokens {
    pub fn put(&mut self, value: u64) {
        if value == 0 {
            self.zeros += 1;
            return;
        }
        self.end_run();
        put_varint(&mut self.out, value);
    }

    fn end_run(&mut self) {
        if self.zeros > 0 {
            self.out.push(0);
            put_varint(&mut self.out, u64::from(self.zeros - 1));
            self.zeros = 0;
        }
    }

    pub fn end(mut self) -> Vec<u8> {
        self.end_run();
        self.out
    }
}

/// The next value; `zeros` is how many more of them the run has.
pub fn token(bytes: &mut Cursor<'_>, zeros: &mut u64) -> Option<u64> {
    if *zeros > 0 {
        *zeros -= 1;
        return Some(0);
    }
    let value = bytes.varint()?;
    if value == 0 {
        *zeros = bytes.varint()?;
    }
    Some(value)
}
