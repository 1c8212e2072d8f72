//! What the page shows: a recording as it is now, and what every minute of it is diagnosed as.
//!
//! A thread of its own diagnoses minutes, those first that a page shows, with a bounded share of a core: the recorder
//! itself serves the page, and has its own work to do.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unslow_doctor::{Incident, Joiner, Report, Silence, diagnose_but};
use unslow_record::{Curves, Tape, TapeError};

use crate::silences;

/// A recording is read again after this time, and after this multiple of what reading took.
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_SHARE: u32 = 20;
/// Diagnosing pauses for this multiple of the time it took.
const PAUSE_SHARE: u32 = 2;
/// Minutes that are diagnosed in one go: what begins before them is read once for all of them.
const RUN: i64 = 30;
/// Minutes that are remembered, of all deployments: two weeks of five.
const REMEMBERED_MAX: usize = 100_000;
/// Windows without a finding that do not end an incident, as in `unslow incidents`.
const PATIENCE: u64 = 2;
/// The page asks for what is visible; more than this is looked at in parts.
const RANGE_MAX_MS: i64 = 31 * 86_400_000;

/// A recording, shared by all who look.
pub struct Library {
    dir: PathBuf,
    window_ms: i64,
    silences: Option<PathBuf>,
    opened: Mutex<Option<Opened>>,
    minutes: Mutex<Minutes>,
    /// Told of a new wish.
    wished: Condvar,
    /// Only one of the expensive answers is worked on at a time.
    turn: Mutex<()>,
}

struct Opened {
    tape: Arc<Tape>,
    at: Instant,
    again: Duration,
}

/// What was diagnosed, by deployment and the window's beginning.
#[derive(Default)]
struct Minutes {
    known: HashMap<Arc<str>, BTreeMap<i64, Seen>>,
    wish: Option<(Arc<str>, Range<i64>)>,
    is_over: bool,
}

#[derive(Clone)]
enum Seen {
    /// Nothing was recorded, or nothing that can be.
    Nothing,
    Diagnosed(Arc<Report>),
}

/// The incidents of a range, as far as they are known.
pub struct Told {
    pub incidents: Vec<Incident>,
    /// Windows that are still to be diagnosed.
    pub missing: usize,
    pub windows: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Library {
    pub fn new(dir: &Path, window: Duration, silences: Option<PathBuf>) -> Library {
        Library {
            dir: dir.to_path_buf(),
            window_ms: window.as_millis() as i64,
            silences,
            opened: Mutex::new(None),
            minutes: Mutex::new(Minutes::default()),
            wished: Condvar::new(),
            turn: Mutex::new(()),
        }
    }

    /// The recording, as it was a moment ago at most.
    pub fn tape(&self) -> Result<Arc<Tape>, TapeError> {
        let mut opened = locked(&self.opened);
        if let Some(known) = opened.as_ref().filter(|known| known.at.elapsed() < known.again) {
            return Ok(known.tape.clone());
        }
        let begun = Instant::now();
        let tape = Arc::new(Tape::open(&self.dir)?);
        let again = AGAIN.max(begun.elapsed() * AGAIN_SHARE);
        *opened = Some(Opened { tape: tape.clone(), at: Instant::now(), again });
        Ok(tape)
    }

    /// Length of the windows that incidents are made of.
    pub fn window_ms(&self) -> i64 {
        self.window_ms
    }

    /// Waits until nobody else has an expensive answer made.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        locked(&self.turn)
    }

    /// A range that was asked for, within what is recorded; `None` where that is nothing. The first window of a
    /// recording begins before it: a diagnosis of it is that of the incidents.
    pub fn within(&self, tape: &Tape, range_ms: Range<i64>) -> Option<Range<i64>> {
        let span = tape.span();
        if range_ms.end <= span.from_ms {
            return None;
        }
        let first = span.from_ms.div_euclid(self.window_ms) * self.window_ms;
        let (from, to) = (range_ms.start.max(first), range_ms.end.min(span.to_ms + 1));
        (from < to).then(|| from.max(to.saturating_sub(RANGE_MAX_MS))..to)
    }

    pub fn curves(&self, tape: &Tape, url: &str, range_ms: Range<i64>, buckets: u32) -> Curves {
        let _turn = self.turn();
        tape.curves(url, range_ms, buckets)
    }

    /// Incidents that are known by now; the rest of the range is diagnosed next.
    pub fn incidents(&self, tape: &Tape, url: &Arc<str>, range_ms: Range<i64>) -> Told {
        let windows = self.windows(tape, &range_ms);
        let mut minutes = locked(&self.minutes);
        let known = minutes.known.get(url);
        let (mut joiner, mut missing) = (Joiner::new(url, PATIENCE * self.window_ms as u64), 0);
        for from_ms in windows.clone().step_by(self.window_ms as usize) {
            match known.and_then(|known| known.get(&from_ms)) {
                None => missing += 1,
                Some(Seen::Nothing) => {}
                Some(Seen::Diagnosed(report)) => {
                    joiner.window(from_ms as u64, (from_ms + self.window_ms) as u64, report);
                }
            }
        }
        if missing > 0 {
            minutes.wish = Some((url.clone(), windows.clone()));
            self.wished.notify_one();
        }
        let mut incidents = joiner.finish();
        incidents.sort_by_key(|incident| incident.began_ms);
        // What lasts at the end of the range may be over by now.
        let is_end = windows.end + 2 * self.window_ms > tape.span().to_ms;
        incidents.iter_mut().for_each(|incident| incident.lasts &= is_end);
        for (number, incident) in (1..).zip(&mut incidents) {
            incident.id = number;
        }
        let windows = (windows.end - windows.start).max(0) / self.window_ms;
        Told { incidents, missing, windows: windows as usize }
    }

    /// Whole windows that are over: from the first that begins to the end of the last.
    fn windows(&self, tape: &Tape, range_ms: &Range<i64>) -> Range<i64> {
        let step = self.window_ms;
        let last = range_ms.end.min(tape.span().to_ms).div_euclid(step) * step;
        let first = range_ms.start.max(tape.span().from_ms).div_euclid(step) * step;
        first..last.max(first)
    }

    /// Diagnoses what pages show, until the end.
    pub fn work(&self) {
        loop {
            let Some((url, windows)) = self.next_wish() else { return };
            let begun = Instant::now();
            let done = self.diagnose(&url, windows);
            let mut minutes = locked(&self.minutes);
            let forgotten: usize = minutes.known.values().map(BTreeMap::len).sum();
            if forgotten > REMEMBERED_MAX {
                minutes.known.clear();
            }
            minutes.known.entry(url).or_default().extend(done);
            // Looked at as a whole: who looks asks again.
            let pause = begun.elapsed() * PAUSE_SHARE;
            let (minutes, _) = self
                .wished
                .wait_timeout_while(minutes, pause, |minutes| !minutes.is_over)
                .unwrap_or_else(PoisonError::into_inner);
            if minutes.is_over {
                return;
            }
        }
    }

    /// The newest windows that are missing of what is wished for; `None` at the end.
    fn next_wish(&self) -> Option<(Arc<str>, Range<i64>)> {
        let mut minutes = locked(&self.minutes);
        loop {
            if minutes.is_over {
                return None;
            }
            if let Some((url, windows)) = minutes.wish.clone() {
                let known = minutes.known.get(&url);
                let is_missing = |from_ms: &i64| known.is_none_or(|known| !known.contains_key(from_ms));
                match missing_run(windows, self.window_ms, is_missing) {
                    Some(run) => return Some((url, run)),
                    None => minutes.wish = None,
                }
            }
            minutes = self.wished.wait(minutes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn diagnose(&self, url: &str, windows: Range<i64>) -> BTreeMap<i64, Seen> {
        let nothing = |from_ms: i64| (from_ms, Seen::Nothing);
        let all = windows.clone().step_by(self.window_ms as usize);
        let mut done: BTreeMap<i64, Seen> = all.map(nothing).collect();
        let Ok(tape) = self.tape() else { return done };
        let silences: Vec<Silence> = match self.silences.as_deref().map(silences::read) {
            Some(Ok((silences, _))) => silences,
            // What cannot be read silences nothing.
            Some(Err(_)) | None => Vec::new(),
        };
        let mut last: Option<Arc<Report>> = None;
        for facts in tape.windows(url, windows, self.window_ms) {
            if facts.nodes.is_empty() || facts.check().is_err() {
                continue;
            }
            let report = diagnose_but(&facts, &silences);
            // Minutes in which nothing happens are many, and alike.
            let is_like = |last: &Arc<Report>| {
                last.findings.is_empty()
                    && report.findings.is_empty()
                    && last.silenced == report.silenced
                    && last.looked == report.looked
                    && away(last).eq(away(&report))
            };
            let kept = last.take().filter(is_like).unwrap_or_else(|| Arc::new(report));
            done.insert(facts.at_ms as i64, Seen::Diagnosed(kept.clone()));
            last = Some(kept);
        }
        done
    }

    /// Ends [`Library::work`].
    pub fn end(&self) {
        locked(&self.minutes).is_over = true;
        self.wished.notify_all();
    }
}

/// Servers that did not answer.
fn away(report: &Report) -> impl Iterator<Item = &String> {
    report.deployment.nodes.iter().filter(|node| node.unreachable.is_some()).map(|node| &node.address)
}

/// The newest windows of a range that are missing, up to a run of them.
fn missing_run(windows: Range<i64>, step_ms: i64, is_missing: impl Fn(&i64) -> bool) -> Option<Range<i64>> {
    let begins = |back: i64| windows.end - (back + 1) * step_ms;
    let all = (windows.end - windows.start) / step_ms;
    let newest = (0..all).find(|back| is_missing(&begins(*back)))?;
    let oldest = (newest..all).take(RUN as usize).take_while(|back| is_missing(&begins(*back))).last()?;
    Some(begins(oldest)..begins(newest) + step_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_windows_that_are_missing_come_first_and_run_by_run() {
        let run = |known: &[i64]| missing_run(0..100, 10, |at| !known.contains(at));
        assert_eq!(run(&[]), Some(0..100));
        assert_eq!(run(&[90, 80]), Some(0..80));
        assert_eq!(run(&[50]), Some(60..100), "up to what is known");
        let all: Vec<i64> = (0..10).map(|i| i * 10).collect();
        assert_eq!(run(&all), None);
        assert_eq!(missing_run(0..10_000, 10, |_| true), Some(9_700..10_000), "thirty at a time");
        assert_eq!(missing_run(5..5, 10, |_| true), None);
    }
}
