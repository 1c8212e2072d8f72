//! CLIENT PAUSE and UNSLOW PAUSE: what keeps clients from being served, and for how long.

use unslow_commands::{Plan, Special};

use crate::reply::error;
use crate::step::Command;

/// What keeps clients from being served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Halt {
    #[default]
    No,
    /// CLIENT PAUSE ... WRITE.
    Writes,
    /// CLIENT PAUSE.
    Commands,
    /// UNSLOW PAUSE.
    Everything,
}

impl Halt {
    /// Whether such a command waits. `writes` is whether it may change data.
    pub fn stops(self, plan: &Plan, writes: bool) -> bool {
        match self {
            Halt::No => false,
            // What is queued by MULTI was stopped on its way; EXEC of what was queued before runs it.
            Halt::Writes => writes || plan.special == Some(Special::Exec),
            Halt::Commands => !matches!(plan.special, Some(Special::Unslow | Special::Client)),
            Halt::Everything => plan.special != Some(Special::Unslow),
        }
    }
}

/// CLIENT PAUSE and UNSLOW PAUSE together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pauses {
    /// UNSLOW PAUSE, until UNSLOW RESUME.
    pub operator: bool,
    clients: Halt,
    until: u64,
}

impl Pauses {
    /// As servers do: a second pause never shortens or weakens the first.
    pub fn pause(&mut self, halt: Halt, until: u64, now: u64) {
        let still = self.until > now;
        self.clients = if still && self.clients == Halt::Commands { Halt::Commands } else { halt };
        self.until = if still { self.until.max(until) } else { until };
    }

    /// CLIENT UNPAUSE.
    pub fn unpause(&mut self) {
        (self.clients, self.until) = (Halt::No, 0);
    }

    pub fn halt(&self, now: u64) -> Halt {
        match self.operator {
            true => Halt::Everything,
            false if self.until > now => self.clients,
            false => Halt::No,
        }
    }
}

/// `CLIENT PAUSE timeout [WRITE|ALL]`: what it stops, and for how many milliseconds.
pub fn pause_of(command: &Command) -> Result<(Halt, u64), Vec<u8>> {
    let halt = match (command.len(), command.word(3).as_slice()) {
        (3, _) | (4, b"ALL") => Halt::Commands,
        (4, b"WRITE") => Halt::Writes,
        _ => return Err(error("ERR", "syntax error")),
    };
    match command.number::<i64>(2).map(u64::try_from) {
        Some(Ok(ms)) => Ok((halt, ms)),
        Some(Err(_)) => Err(error("ERR", "timeout is negative")),
        None => Err(error("ERR", "timeout is not an integer or out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::tests::{table, with_command as with};

    #[test]
    fn a_second_pause_never_shortens_or_weakens_the_first() {
        let mut pauses = Pauses::default();
        pauses.pause(Halt::Writes, 100, 0);
        assert_eq!((pauses.halt(99), pauses.halt(100)), (Halt::Writes, Halt::No));
        pauses.pause(Halt::Commands, 50, 0);
        assert_eq!((pauses.halt(99), pauses.halt(100)), (Halt::Commands, Halt::No));
        pauses.pause(Halt::Writes, 200, 0);
        assert_eq!(pauses.halt(199), Halt::Commands);
        // What is over counts no more.
        pauses.pause(Halt::Writes, 310, 300);
        assert_eq!(pauses.halt(309), Halt::Writes);
        pauses.operator = true;
        assert_eq!(pauses.halt(1000), Halt::Everything);
        pauses.operator = false;
        pauses.unpause();
        assert_eq!(pauses.halt(0), Halt::No);
    }

    #[test]
    fn a_pause_stops_what_it_says() {
        for (line, writes, commands) in [
            ("SET k v", true, true),
            ("GET k", false, true),
            ("EVAL text 0", true, true),
            ("NOSUCH", true, true),
            ("EXEC", true, true),
            ("PING", false, true),
            ("CLIENT UNPAUSE", false, false),
            ("UNSLOW RESUME", false, false),
        ] {
            let stops = |halt: Halt| {
                with(line, |command| {
                    let table = table();
                    halt.stops(&command.plan, table.get(command.plan.number).writes)
                })
            };
            assert_eq!((stops(Halt::Writes), stops(Halt::Commands)), (writes, commands), "{line}");
            assert!(!stops(Halt::No));
            assert_eq!(stops(Halt::Everything), !line.starts_with("UNSLOW"));
        }
        for (line, expected) in [
            ("CLIENT PAUSE 5", Some((Halt::Commands, 5))),
            ("CLIENT PAUSE 5 all", Some((Halt::Commands, 5))),
            ("CLIENT PAUSE 5 write", Some((Halt::Writes, 5))),
            ("CLIENT PAUSE 5 reads", None),
            ("CLIENT PAUSE -1", None),
            ("CLIENT PAUSE soon", None),
        ] {
            assert_eq!(with(line, pause_of).ok(), expected, "{line}");
        }
    }
}
