//! How much may be under way at once: batches and bytes. The source waits here when the writer has enough.

use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Counts batches and bytes in flight, and lets the source wait for room.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn open(window: &Window, batches: usize, bytes: usize) -> bool {
        window.open(batches, bytes, Duration::ZERO)
    }

    #[test]
    fn the_window_closes_on_batches_or_bytes_and_reopens_when_they_are_done() {
        let window = Window::default();
        assert!(!open(&window, 0, 100), "a limit of zero never opens");
        window.took(60);
        window.took(30);
        assert_eq!([open(&window, 2, 100), open(&window, 3, 100), open(&window, 3, 90)], [false, true, false]);
        window.grew(10);
        assert!(!open(&window, 3, 100));
        window.done(70);
        assert_eq!((window.bytes(), open(&window, 2, 100)), (30, true));
    }

    #[test]
    fn parked_batches_do_not_close_the_window_but_their_bytes_do() {
        let window = Window::default();
        window.took(50);
        window.took(50);
        window.parked(1);
        assert_eq!([open(&window, 2, 1000), open(&window, 2, 100), open(&window, 1, 1000)], [true, false, false]);
        // The parked one is done; the other still counts.
        window.done(50);
        window.parked(0);
        assert_eq!([open(&window, 1, 1000), open(&window, 2, 1000)], [false, true]);
        // The writer may report more parked batches than there are.
        window.parked(5);
        assert!(open(&window, 1, 1000));
        window.done(50);
        window.took(1);
        assert!(!open(&window, 1, 1000));
    }
}
