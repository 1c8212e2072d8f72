//! The bytes of the commands that wait for their answers on a server connection, oldest first: what is sent again when
//! a slot has moved or a connection broke.

/// A queue of bytes that is read at the front.
#[derive(Default)]
pub struct Journal {
    bytes: Vec<u8>,
    head: usize,
}

impl Journal {
    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.head
    }

    /// All of them.
    pub fn all(&self) -> &[u8] {
        &self.bytes[self.head..]
    }

    /// The first `n`.
    pub fn front(&self, n: usize) -> &[u8] {
        &self.bytes[self.head..self.head + n]
    }

    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Drops the first `n`.
    #[inline]
    pub fn pop(&mut self, n: usize) {
        self.head += n;
        if self.head == self.bytes.len() {
            self.bytes.clear();
            self.head = 0;
            if self.bytes.capacity() > 1 << 20 {
                self.bytes.shrink_to(64 * 1024);
            }
        } else if self.head > 64 * 1024 && self.head > self.bytes.len() / 2 {
            self.bytes.drain(..self.head);
            self.head = 0;
        }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.head = 0;
    }
}

impl Journal {
    /// Keeps the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.bytes.truncate(self.head + n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_keeps_its_content_when_its_memory_is_compacted() {
        let model: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let mut journal = Journal::default();
        journal.push(&model);
        // The second and third steps compact its memory.
        for (drop, left) in [(60_000, &model[60_000..]), (45_000, &model[105_000..]), (94_990, &model[199_990..])] {
            journal.pop(drop);
            assert!(journal.all() == left, "{drop} bytes dropped");
            assert_eq!((journal.len(), journal.front(3)), (left.len(), &left[..3]));
        }
        journal.push(b"tail");
        journal.truncate(12);
        assert_eq!(journal.all(), [&model[199_990..], b"ta"].concat());
        journal.pop(12);
        assert_eq!(journal.len(), 0);
        journal.push(b"next");
        assert_eq!(journal.all(), b"next");
    }
}
