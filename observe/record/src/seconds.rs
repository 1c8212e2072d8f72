//! The machine's counters around a window, read forwards.

use std::ops::Range;

use unslow_facts::Host;
use unslow_probe::host::{Counts, Crowd};
use unslow_series::{Directory, Item, Picked, Row, Rows};

use crate::window::{int, seconds_between};

/// The counters next to a window's edge are this old at most: of hundreds of servers they are taken every few seconds.
pub const SECONDS_MS: i64 = 15_000;

pub struct Seconds<'a> {
    rows: Rows<'a, Directory>,
    /// Read and not yet used, and whether the clock was set before it.
    next: Option<(Row, bool)>,
    /// The last one so far.
    edge: Option<Row>,
    /// The first one since the clock was set, where it was in this window.
    since_set: Option<Row>,
    /// Who else was busy since the window's first row.
    crowd: Crowd,
    picked: Picked,
}

impl Seconds<'_> {
    pub fn of(rows: Rows<'_, Directory>) -> Seconds<'_> {
        let (crowd, picked) = (Crowd::default(), Picked::new(Crowd::is_of));
        Seconds { rows, next: None, edge: None, since_set: None, crowd, picked }
    }

    /// A look at the machine as one at this window. `None` where the counters cover less than half of the window, are
    /// of another machine or of a boot before, or say what cannot be.
    pub fn narrow(&mut self, window: &Range<i64>, host: &Host) -> Option<Host> {
        let (first, last) = self.of_window(window)?;
        let (before, after) = (counts(&first), counts(&last));
        let mut narrow = Some(host.clone()).filter(|_| before.is_same_boot(&after))?;
        let at_ms = u64::try_from(last.at.wall_ms).unwrap_or(0);
        before.narrow(&after, &self.crowd, seconds_between(first.at, last.at, false), at_ms, &mut narrow);
        narrow.check().is_ok().then_some(narrow)
    }

    /// The rows next to both ends of a window. Between them the clock was not set.
    fn of_window(&mut self, window: &Range<i64>) -> Option<(Row, Row)> {
        self.since_set = None;
        let before = self.up_to(window.start).filter(|row| row.at.wall_ms >= window.start - SECONDS_MS);
        self.since_set = None;
        // A recorder, or its first look, began in the window.
        let first = before.or_else(|| self.row().inspect(|next| self.next = Some(next.clone())).map(|next| next.0))?;
        self.crowd = Crowd::default();
        let last = self.up_to(window.end)?;
        let first = self.since_set.take().unwrap_or(first);
        let covered_ms = last.at.wall_ms - first.at.wall_ms.max(window.start);
        (2 * covered_ms >= window.end - window.start).then_some((first, last))
    }

    /// The last row up to this time.
    fn up_to(&mut self, end_ms: i64) -> Option<Row> {
        while let Some((row, is_set)) = self.row() {
            if row.at.wall_ms > end_ms {
                self.next = Some((row, is_set));
                break;
            }
            if is_set {
                // What lies before a clock that was set is no beginning of a window after it.
                self.since_set = Some(row.clone());
                self.crowd = Crowd::default();
            } else {
                let numbers = self.picked.of(&row);
                self.crowd.add(numbers.filter_map(|(name, value)| Some((&**name, int(value)?))));
            }
            self.edge = Some(row);
        }
        self.edge.clone()
    }

    /// The next row, and whether the clock was set before it.
    fn row(&mut self) -> Option<(Row, bool)> {
        if let Some(next) = self.next.take() {
            return Some(next);
        }
        let mut is_set = false;
        self.rows.by_ref().find_map(|item| match item {
            Item::Row(row) => Some((row, is_set)),
            Item::Step(_) => {
                is_set = true;
                None
            }
            Item::Gap(_) => None,
        })
    }
}

fn counts(row: &Row) -> Counts {
    Counts::of_numbers(row.values().filter_map(|(name, value)| Some((name.to_string(), int(value)?))))
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Own, Process};
    use unslow_series::{Stamp, Writer};

    use super::*;
    use crate::keeper::{Keeper, Take};
    use crate::notes::{Note, Saw};
    use crate::pings::Pings;
    use crate::{Store, Tape};

    const BEGAN_MS: i64 = 1_800_000_000_000;
    const ADDRESS: &str = "10.0.0.1:6379";

    fn at(second: i64) -> Stamp {
        Stamp { wall_ms: BEGAN_MS + second * 1000, mono_ms: (second * 1000) as u64 }
    }

    /// Two minutes of a machine whose processors are stolen from the 40th to the 45th second alone; the look at the
    /// minute knows the mean.
    fn recorded(seconds: impl Iterator<Item = i64>) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::new(Writer::open(dir.path(), Store::default()).unwrap(), at(0)).unwrap();
        for second in seconds {
            let steal = 200 * second.clamp(40, 45);
            let numbers = [("cpu/all", 200 * second), ("cpu/idle", 0), ("cpu/steal", steal)];
            let server = (format!("server/{ADDRESS}/ticks"), 50 * second);
            let numbers = numbers.map(|(name, n)| (name.to_string(), n)).into_iter().chain([server]);
            keeper.take(&Note::Counts(at(second), Counts::of_numbers(numbers))).unwrap();
        }
        for minute in 1..=2 {
            let process = Process { addresses: vec![ADDRESS.into()], cpu_share: Some(0.9), ..Process::default() };
            let host = Host { window_s: 60.0, steal_share: Some(0.08), processes: vec![process], ..Host::default() };
            keeper.take(&Note::Host(at(60 * minute), Box::new(host))).unwrap();
        }
        keeper.close().unwrap();
        dir
    }

    /// Two machines, or two boots of one, and a clock that is set back by 50 s after a minute.
    fn disturbed(boots: [i64; 2], back_s: i64) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::new(Writer::open(dir.path(), Store::default()).unwrap(), at(0)).unwrap();
        for second in 0..=100 {
            let after = second > 60;
            let wall_ms = at(second).wall_ms - if after { back_s * 1000 } else { 0 };
            let steal = if after { 0 } else { 200 * second };
            let numbers = [
                ("machine/boot", boots[usize::from(after)]),
                ("cpu/all", 200 * second),
                ("cpu/idle", 0),
                ("cpu/steal", steal),
            ];
            let counts = Counts::of_numbers(numbers.map(|(name, n)| (name.to_string(), n)));
            keeper.take(&Note::Counts(Stamp { wall_ms, ..at(second) }, counts)).unwrap();
        }
        keeper.close().unwrap();
        dir
    }

    /// What was stolen, and of how many seconds, window by window.
    fn stolen(dir: &tempfile::TempDir, windows: &[(i64, i64)]) -> Vec<Option<(f64, f64)>> {
        let tape = Tape::open(dir.path()).unwrap();
        let (from, to) = (at(windows[0].0).wall_ms, at(windows[windows.len() - 1].1).wall_ms);
        let rows = tape.reader.range(crate::scheme::SECONDS, from - SECONDS_MS..to + SECONDS_MS);
        let mut seconds = Seconds::of(rows);
        let share = |(from, to): &(i64, i64)| {
            let host = seconds.narrow(&(at(*from).wall_ms..at(*to).wall_ms), &Host::default())?;
            Some((host.steal_share?, host.window_s))
        };
        windows.iter().map(share).collect()
    }

    #[test]
    fn a_window_within_a_minute_has_its_own_figures() {
        let dir = recorded(0..=120);
        let windows = [(20, 30), (30, 40), (40, 45), (45, 50)];
        assert_eq!(stolen(&dir, &windows), [(0.0, 10.0), (0.0, 10.0), (1.0, 5.0), (0.0, 5.0)].map(Some));
    }

    #[test]
    fn facts_of_a_window_have_the_machine_of_that_window() {
        let dir = recorded(0..=150);
        let mut keeper = Keeper::new(Writer::open(dir.path(), Store::default()).unwrap(), at(151)).unwrap();
        let (url, address) = ("redis://10.0.0.1:6379".to_string(), ADDRESS.to_string());
        keeper.take(&Note::Node { number: 0, url: url.clone(), address }).unwrap();
        for second in 0..=150 {
            let info = b"redis_version:7.2.4\r\nrole:master\r\n".to_vec();
            let saw = Saw::Second { info, pings: Pings::default(), sent: Own::default() };
            keeper.take(&Note::Saw(0, at(second), saw)).unwrap();
        }
        keeper.close().unwrap();
        let tape = Tape::open(dir.path()).unwrap();
        let host = |from: i64, to: i64| {
            let facts = tape.facts(&url, at(from).wall_ms..at(to).wall_ms).unwrap();
            let host = facts.hosts.into_iter().next().unwrap();
            (host.steal_share, host.window_s, host.processes[0].cpu_share)
        };
        assert_eq!(host(40, 45), (Some(1.0), 5.0, Some(0.5)));
        assert_eq!(host(46, 56), (Some(0.0), 10.0, Some(0.5)));
        // The recorder ended before the minute did.
        assert_eq!(host(130, 145), (Some(0.0), 15.0, Some(0.5)));
    }

    #[test]
    fn a_job_of_some_seconds_is_in_their_window_alone() {
        let dir = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::new(Writer::open(dir.path(), Store::default()).unwrap(), at(0)).unwrap();
        for second in 0..=60 {
            // Two processors; one is taken by a job from the 20th to the 30th second.
            let job = second.clamp(20, 30) - 20;
            let mut numbers = vec![("cpu/all", 200 * second), ("cpu/idle", 200 * second - 100 * job), ("cpu/steal", 0)];
            if (21..=30).contains(&second) {
                let name = i64::from_be_bytes(*b"restic\0\0");
                numbers.extend([("other/0/pid", 77), ("other/0/parent", 1), ("other/0/client", 0)]);
                numbers.extend([("other/0/ms", 1000), ("other/0/name", name), ("other/0/name_end", 0)]);
            }
            let numbers = numbers.into_iter().map(|(name, n)| (name.to_string(), n));
            keeper.take(&Note::Counts(at(second), Counts::of_numbers(numbers))).unwrap();
        }
        keeper.close().unwrap();
        let tape = Tape::open(dir.path()).unwrap();
        let rows = tape.reader.range(crate::scheme::SECONDS, at(0).wall_ms - SECONDS_MS..at(60).wall_ms + SECONDS_MS);
        let mut seconds = Seconds::of(rows);
        let minute = Host { cpus: 2, ..Host::default() };
        let mut named = |from: i64, to: i64| {
            let host = seconds.narrow(&(at(from).wall_ms..at(to).wall_ms), &minute).unwrap();
            host.neighbours.into_iter().map(|n| (n.name, n.cpu_share)).collect::<Vec<_>>()
        };
        assert_eq!(named(10, 20), []);
        assert_eq!(named(20, 30), [("restic".to_string(), 1.0)]);
        assert_eq!(named(30, 40), []);
    }

    #[test]
    fn no_difference_is_formed_across_a_boot_or_a_clock_that_was_set() {
        let dir = disturbed([1, 2], 0);
        assert_eq!(stolen(&dir, &[(50, 60), (60, 70), (70, 80)]), [Some((1.0, 10.0)), None, Some((0.0, 10.0))]);
        // The 61st second is the 11th again: what came before it is no beginning.
        let dir = disturbed([1, 1], 50);
        assert_eq!(stolen(&dir, &[(5, 30)]), [Some((1.0, 25.0))]);
        assert_eq!(stolen(&dir, &[(50, 70)]), [None]);
        // Or the 111th: ten seconds are not sixty.
        let dir = disturbed([1, 1], -50);
        assert_eq!(stolen(&dir, &[(50, 70), (100, 130)]), [Some((1.0, 10.0)), Some((0.0, 19.0))]);
    }

    #[test]
    fn what_covers_less_than_half_of_a_window_says_nothing_of_it() {
        // A recorder began at the 50th second.
        let dir = recorded(50..=120);
        assert_eq!(stolen(&dir, &[(0, 60)]), [None]);
        assert_eq!(stolen(&dir, &[(40, 62)]), [Some((0.0, 12.0))]);
        // Of many servers they are taken every few seconds; after a minute without any, what was before is no edge.
        let dir = recorded((0..=20).step_by(7).chain(80..=120));
        assert_eq!(stolen(&dir, &[(3, 15)]), [Some((0.0, 14.0))]);
        assert_eq!(stolen(&dir, &[(70, 100)]), [Some((0.0, 20.0))]);
    }
}
