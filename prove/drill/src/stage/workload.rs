//! Clients that work while something is done to their deployment.

use std::time::{Duration, Instant};

use unslow_interrupt::asked as interrupted;

use crate::error::Error;

/// How long clients may take for their first answers.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Clients at work: threads of ours, programs of others, or refreshes without any data. Dropping it ends them as well,
/// so no client outlives an error or a panic.
pub trait Workload {
    /// What they saw.
    type Seen;

    /// How many of them have had an answer by now. Asked again and again until enough have: one that has to start a
    /// client again does it here.
    fn answered(&mut self) -> Answered;

    /// Ends them.
    fn end(self) -> Self::Seen;
}

/// Clients that have had an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Clients with an answer.
    pub had: usize,
    /// Clients that must have one before anything is done.
    pub wanted: usize,
    /// All clients.
    pub all: usize,
}

impl Answered {
    /// Of clients that each need an answer.
    pub fn each(had: usize, all: usize) -> Answered {
        Answered { had, wanted: all, all }
    }

    /// Whether nobody is waited for.
    pub fn is_enough(self) -> bool {
        self.had >= self.wanted
    }

    /// An error unless [`Answered::is_enough`].
    pub fn enough(self, patience: Duration) -> Result<(), Error> {
        match self.is_enough() {
            true => Ok(()),
            false if interrupted() => Err(Error::Interrupted),
            false => Err(Error::NoAnswer { had: self.had, all: self.all, patience_s: patience.as_secs() }),
        }
    }
}

/// Lets clients work while `scene` goes on, which begins once they have had their answers, or `patience` is over: what
/// it makes of that is its own business. They end whatever becomes of it.
pub fn play<W: Workload, T>(
    mut workload: W,
    patience: Duration,
    scene: impl FnOnce(&mut W, Answered) -> T,
) -> (T, W::Seen) {
    let until = Instant::now() + patience;
    let mut answered = workload.answered();
    while !answered.is_enough() && Instant::now() < until && !interrupted() {
        std::thread::sleep(Duration::from_millis(10));
        answered = workload.answered();
    }
    let done = scene(&mut workload, answered);
    (done, workload.end())
}

/// Sleeps until a moment; `false` when somebody ended the run.
pub fn sleep_until(at: Instant) -> bool {
    while Instant::now() < at {
        if interrupted() {
            return false;
        }
        std::thread::sleep(at.saturating_duration_since(Instant::now()).min(Duration::from_millis(20)));
    }
    !interrupted()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// One more of three clients has had its answer each time that is asked.
    struct Slow<'a> {
        asked: usize,
        ended: &'a RefCell<Vec<&'static str>>,
    }

    impl Workload for Slow<'_> {
        type Seen = usize;

        fn answered(&mut self) -> Answered {
            self.asked += 1;
            Answered::each(self.asked, 3)
        }

        fn end(self) -> usize {
            self.ended.borrow_mut().push("ended");
            self.asked
        }
    }

    impl Drop for Slow<'_> {
        fn drop(&mut self) {
            self.ended.borrow_mut().push("dropped");
        }
    }

    #[test]
    fn a_scene_begins_when_every_client_has_had_an_answer_and_ends_them() {
        let ended = RefCell::new(Vec::new());
        let scene = |_: &mut Slow<'_>, answered: Answered| (answered.enough(Duration::ZERO).is_ok(), answered.had);
        let (done, asked) = play(Slow { asked: 0, ended: &ended }, Duration::from_secs(60), scene);
        assert_eq!((done, asked, ended.take()), ((true, 3), 3, vec!["ended", "dropped"]));
    }

    #[test]
    fn one_that_begins_without_them_is_told_and_a_panic_ends_them_too() {
        let ended = RefCell::new(Vec::new());
        let workload = Slow { asked: 0, ended: &ended };
        let scene = |_: &mut Slow<'_>, answered: Answered| answered.enough(Duration::ZERO).map_err(|e| e.to_string());
        let (done, _) = play(workload, Duration::ZERO, scene);
        assert_eq!(done, Err("1 of 3 clients had an answer within 0 s".to_string()));
        ended.take();
        let workload = std::panic::AssertUnwindSafe(Slow { asked: 2, ended: &ended });
        let played = std::panic::catch_unwind(|| {
            let workload = workload; // the whole of it, not its field
            play(workload.0, Duration::ZERO, |_, _| panic!("a scene that went wrong"))
        });
        assert!(played.is_err());
        assert_eq!(ended.take(), ["dropped"]);
    }
}
