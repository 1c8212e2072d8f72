//! How much may be under way at once: batches and bytes. The source waits here when the writer has enough.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// See the module.
#[derive(Default)]
pub struct Window {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    batches: usize,
    /// Of these, all that is left waits for nodes that cannot be written to now: they keep nobody else back.
    parked: usize,
    bytes: usize,
}

impl Window {
    /// A batch of so many bytes was handed on.
    pub fn took(&self, bytes: usize) {
        let mut state = self.state.lock().expect("no thread panicked");
        state.batches += 1;
        state.bytes += bytes;
    }

    /// It needs so many bytes more.
    pub fn grew(&self, bytes: usize) {
        self.state.lock().expect("no thread panicked").bytes += bytes;
    }

    /// A batch with so many bytes in all is done.
    pub fn done(&self, bytes: usize) {
        let mut state = self.state.lock().expect("no thread panicked");
        state.batches -= 1;
        state.parked = state.parked.min(state.batches);
        state.bytes -= bytes;
        self.changed.notify_all();
    }

    /// So many batches are parked.
    pub fn parked(&self, batches: usize) {
        let mut state = self.state.lock().expect("no thread panicked");
        if state.parked != batches {
            state.parked = batches;
            self.changed.notify_all();
        }
    }

    /// Waits until another batch may go. False when `patience` is over first.
    pub fn open(&self, batches: usize, bytes: usize, patience: Duration) -> bool {
        let state = self.state.lock().expect("no thread panicked");
        let closed = |s: &mut State| s.batches - s.parked.min(s.batches) >= batches || s.bytes >= bytes;
        let (_state, waited) = self.changed.wait_timeout_while(state, patience, closed).expect("no thread panicked");
        !waited.timed_out()
    }

    /// Bytes kept.
    pub fn bytes(&self) -> usize {
        self.state.lock().expect("no thread panicked").bytes
    }
}
