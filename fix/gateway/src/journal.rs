//! The bytes of the commands that wait for their answers on a server connection, oldest first: what is sent again when a
//! slot has moved or a connection broke.

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
