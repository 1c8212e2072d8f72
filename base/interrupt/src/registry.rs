//! Which signal means what: guards and signals in, actions out. No signals, no threads, no clock.
//!
//! ```text
//!            stop, something guarded           stop
//!   running -------------------------> asked ---------> ending
//!      |                                                  ^
//!      +---------------- stop, nothing guarded -----------+
//! ```
//!
//! There is no way back: after the first signal nothing further should begin, and what begins all the same is asked
//! to end at once. A patient guard takes away the arrow from asked to ending.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What reaches the process from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C or SIGTERM: end.
    Stop,
    /// SIGHUP: read the settings again. To a process that has none to read, the same as [`Signal::Stop`].
    HangUp,
}

/// What the process has to do about a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing: whoever needs to know has been asked.
    Nothing,
    /// Print this sentence: what has been asked to end says what it does now.
    Say(&'static str),
    /// End everything that was started, and then the process. Returned once.
    End,
}

/// How a guard takes the signals that ask it to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// The first signal prints this; the second ends the process.
    Says(&'static str),
    /// The same without a word.
    Quiet,
    /// It cannot be hurried: no signal ends the process as long as it is guarded.
    Patient,
}

/// What a guard keeps of itself.
#[derive(Clone, Debug)]
pub(crate) struct Ticket {
    /// Finds it again.
    pub number: u64,
    /// Tells it that it was asked.
    pub asked: Arc<AtomicBool>,
}

/// Everything that wants to hear of signals.
#[derive(Debug)]
pub(crate) struct Registry {
    guards: Vec<(Manner, Ticket)>,
    readers: Vec<Ticket>,
    tickets: u64,
    asked: bool,
    ending: bool,
}

impl Registry {
    pub const fn new() -> Registry {
        Registry { guards: Vec::new(), readers: Vec::new(), tickets: 0, asked: false, ending: false }
    }

    /// From now on a signal asks this guard to end. One that comes after the signal has been asked already.
    pub fn guard(&mut self, manner: Manner) -> Ticket {
        let ticket = self.ticket(self.asked);
        self.guards.push((manner, ticket.clone()));
        ticket
    }

    /// From now on SIGHUP asks to read settings again.
    pub fn reader(&mut self) -> Ticket {
        let ticket = self.ticket(false);
        self.readers.push(ticket.clone());
        ticket
    }

    fn ticket(&mut self, asked: bool) -> Ticket {
        self.tickets += 1;
        Ticket { number: self.tickets, asked: Arc::new(AtomicBool::new(asked)) }
    }

    /// The guard or reader with this number has left.
    pub fn remove(&mut self, number: u64) {
        self.guards.retain(|(_, ticket)| ticket.number != number);
        self.readers.retain(|ticket| ticket.number != number);
    }

    /// Whether anything was asked to end.
    pub fn asked(&self) -> bool {
        self.asked
    }

    /// Whether [`Action::End`] was returned.
    pub fn ending(&self) -> bool {
        self.ending
    }

    /// Asks everything that is guarded to end in order; the newest guard says what happens. `None` when that is not
    /// possible any more: nothing is guarded, or it was asked before.
    fn ask(&mut self) -> Option<Action> {
        let newest = self.guards.last()?.0;
        let patient = self.guards.iter().any(|(manner, _)| *manner == Manner::Patient);
        if self.asked {
            return patient.then_some(Action::Nothing);
        }
        self.asked = true;
        self.guards.iter().for_each(|(_, ticket)| ticket.asked.store(true, Ordering::SeqCst));
        match newest {
            Manner::Says(sentence) => Some(Action::Say(sentence)),
            Manner::Quiet | Manner::Patient => Some(Action::Nothing),
        }
    }

    /// What to do about a signal.
    pub fn signal(&mut self, signal: Signal) -> Action {
        if signal == Signal::HangUp && !self.readers.is_empty() {
            self.readers.iter().for_each(|ticket| ticket.asked.store(true, Ordering::SeqCst));
            return Action::Nothing;
        }
        if self.ending {
            return Action::Nothing;
        }
        self.ask().unwrap_or_else(|| {
            self.ending = true;
            Action::End
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Action::{End, Nothing, Say};
    use super::Signal::{HangUp, Stop};
    use super::*;

    const A: Manner = Manner::Says("a");
    const B: Manner = Manner::Says("b");

    fn was_asked(ticket: &Ticket) -> bool {
        ticket.asked.load(Ordering::SeqCst)
    }

    /// The guards at that moment, and what each signal then does.
    type Case = (&'static [Manner], &'static [(Signal, Action)]);

    #[test]
    fn each_signal_does_what_the_guards_at_that_moment_want() {
        let cases: &[Case] = &[
            (&[], &[(Stop, End), (Stop, Nothing)]),
            (&[], &[(HangUp, End)]),
            (&[A], &[(Stop, Say("a")), (Stop, End), (Stop, Nothing)]),
            (&[A], &[(HangUp, Say("a")), (HangUp, End)]),
            // One signal asks all of them, and the innermost knows best what happens now.
            (&[A, B], &[(Stop, Say("b")), (Stop, End)]),
            (&[Manner::Quiet], &[(Stop, Nothing), (Stop, End)]),
            (&[Manner::Patient], &[(Stop, Nothing), (Stop, Nothing), (HangUp, Nothing), (Stop, Nothing)]),
            (&[Manner::Patient, A], &[(Stop, Say("a")), (Stop, Nothing)]),
        ];
        for (guards, signals) in cases {
            let mut registry = Registry::new();
            let tickets: Vec<Ticket> = guards.iter().map(|manner| registry.guard(*manner)).collect();
            assert!(!registry.asked() && !tickets.iter().any(was_asked), "{guards:?}");
            for (n, (signal, action)) in signals.iter().enumerate() {
                assert_eq!(registry.signal(*signal), *action, "{guards:?}: signal {n}");
                assert!(tickets.iter().all(was_asked), "{guards:?}: signal {n}");
            }
            assert_eq!(registry.asked(), !guards.is_empty());
            assert_eq!(registry.ending(), signals.iter().any(|(_, action)| *action == End), "{guards:?}");
        }
    }

    #[test]
    fn a_guard_that_has_left_is_not_asked_and_keeps_no_process_alive() {
        let mut registry = Registry::new();
        let (outer, inner) = (registry.guard(A), registry.guard(B));
        registry.remove(inner.number);
        assert_eq!(registry.signal(Stop), Say("a"));
        assert!(was_asked(&outer) && !was_asked(&inner));
        registry.remove(outer.number);
        assert!(registry.asked(), "that it was asked is still known: nothing further should begin");
        assert_eq!(registry.signal(Stop), End);
    }

    #[test]
    fn what_begins_after_the_first_signal_has_been_asked_to_end() {
        let mut registry = Registry::new();
        let first = registry.guard(A);
        assert_eq!(registry.signal(Stop), Say("a"));
        // Beside what was asked, and after it has left.
        assert!(was_asked(&registry.guard(B)));
        registry.remove(first.number);
        assert!(was_asked(&registry.guard(B)));
        assert_eq!(registry.signal(Stop), End);
    }

    #[test]
    fn a_hang_up_asks_readers_alone_and_as_often_as_it_comes() {
        let mut registry = Registry::new();
        let (guard, reader) = (registry.guard(A), registry.reader());
        for _ in 0..3 {
            assert_eq!(registry.signal(HangUp), Nothing);
            assert!(reader.asked.swap(false, Ordering::SeqCst) && !was_asked(&guard));
        }
        // Also while it ends: the settings say how long that may take.
        assert_eq!(registry.signal(Stop), Say("a"));
        assert_eq!(registry.signal(HangUp), Nothing);
        assert!(was_asked(&reader));
        registry.remove(reader.number);
        assert_eq!(registry.signal(HangUp), End);
    }
}
