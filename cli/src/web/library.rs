//! What the page shows: a recording as it is now, and what every minute of it is diagnosed as.
//!
//! One thread diagnoses minutes, starting with those on a page, in a bounded share of a core: the process that serves
//! the page is the recorder, which must not be slowed down.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use unslow_doctor::{Incident, Joiner, Report, Severity, Silence, When, diagnose_but};
use unslow_record::{Tape, TapeError};

use crate::silences;

/// A recording is read again after this time, and after this multiple of what reading took.
const AGAIN: Duration = Duration::from_secs(2);
const AGAIN_SHARE: u32 = 20;
/// Diagnosing pauses for this multiple of the time it took.
const PAUSE_SHARE: u32 = 2;
/// Windows that are diagnosed in one go: what begins before them is read once for all of them.
const RUN: i64 = 30;
/// Windows that one range has at most: of a longer one the newest.
const WINDOWS_MAX: i64 = 50_000;
/// Windows that are remembered, of all deployments.
const REMEMBERED_MAX: usize = 100_000;
/// A page asks again as long as it is there; what it wanted is not diagnosed for longer than this without it.
const WISH: Duration = Duration::from_secs(30);
/// Rows of the last second may be on their way when a window is over, in ms.
const SETTLED_MS: i64 = 2_000;
/// A hang is told when it has lasted for a while, and the machine once a minute: a window is diagnosed once more when
/// all of it is there, in ms.
const WHOLE_MS: i64 = 75_000;
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
    wish: Option<Wish>,
    /// When the file of silences was written that all of it was diagnosed with.
    silences_at: Option<SystemTime>,
    is_over: bool,
}

struct Wish {
    url: Arc<str>,
    windows: Range<i64>,
    at: Instant,
}

#[derive(Clone)]
struct Seen {
    /// `None` where nothing was recorded, or nothing that can be.
    report: Option<Arc<Report>>,
    /// Nothing about it can come later.
    is_whole: bool,
}

/// The incidents of a range, as far as they are known.
pub struct Told {
    pub incidents: Vec<Incident>,
    /// Windows that are still to be diagnosed.
    pub missing: usize,
    /// Windows in which nothing was recorded.
    pub unseen: usize,
    /// Windows of which more may be recorded yet, such as that a server hung: no incident so far is none yet.
    pub unsettled: usize,
    pub windows: usize,
    /// Length of a window.
    pub window_ms: i64,
    /// Where the first window begins: a range can have more than are diagnosed.
    pub from_ms: i64,
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
        let newest_ms = tape.newest_ms();
        if opened.as_ref().is_some_and(|known| newest_ms < known.tape.newest_ms()) {
            // The clock was set back: these times come again, with more rows.
            let mut minutes = locked(&self.minutes);
            for seen in minutes.known.values_mut().flat_map(|known| known.iter_mut()) {
                seen.1.is_whole &= is_whole(*seen.0 + self.window_ms, newest_ms);
            }
        }
        let again = AGAIN.max(begun.elapsed() * AGAIN_SHARE);
        *opened = Some(Opened { tape: tape.clone(), at: Instant::now(), again });
        Ok(tape)
    }

    /// Expensive answers are computed one at a time; waits for the others.
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

    /// Incidents that are known by now; the rest of the range is diagnosed next.
    pub fn incidents(&self, tape: &Tape, url: &Arc<str>, range_ms: Range<i64>) -> Told {
        let (windows, newest_ms) = (self.windows(tape, &range_ms), tape.newest_ms());
        let mut minutes = locked(&self.minutes);
        let known = minutes.known.get(url);
        let mut joiner = Joiner::new(url, PATIENCE * self.window_ms as u64);
        let (mut missing, mut unseen, mut unsettled, mut is_wished) = (0, 0, 0, false);
        for from_ms in windows.clone().step_by(self.window_ms as usize) {
            let seen = known.and_then(|known| known.get(&from_ms));
            is_wished |= is_due(seen, from_ms + self.window_ms, newest_ms);
            unsettled += usize::from(seen.is_some_and(|seen| !seen.is_whole));
            match seen {
                None => missing += 1,
                Some(Seen { report: None, .. }) => unseen += 1,
                Some(Seen { report: Some(report), .. }) => {
                    joiner.window(from_ms as u64, (from_ms + self.window_ms) as u64, report);
                }
            }
        }
        if is_wished {
            minutes.wish = Some(Wish { url: url.clone(), windows: windows.clone(), at: Instant::now() });
            self.wished.notify_one();
        }
        let mut incidents = joiner.finish();
        incidents.sort_by_key(|incident| incident.began_ms);
        // What lasts at the end of the range may be over by now.
        let is_end = windows.end + 2 * self.window_ms > newest_ms;
        incidents.iter_mut().for_each(|incident| incident.lasts &= is_end);
        for (number, incident) in (1..).zip(&mut incidents) {
            incident.id = number;
        }
        let from_ms = windows.start;
        let windows = (windows.end - windows.start).max(0) / self.window_ms;
        Told { incidents, missing, unseen, unsettled, windows: windows as usize, window_ms: self.window_ms, from_ms }
    }

    /// Whole windows that are over: from the first that begins to the end of the last.
    fn windows(&self, tape: &Tape, range_ms: &Range<i64>) -> Range<i64> {
        let (step, span) = (self.window_ms, tape.span());
        let last = range_ms.end.min(span.to_ms - SETTLED_MS).div_euclid(step) * step;
        let first = range_ms.start.max(span.from_ms).div_euclid(step) * step;
        first.max(last - WINDOWS_MAX * step)..last.max(first)
    }

    /// Diagnoses what pages show, until the end.
    pub fn work(&self) {
        while let Some((url, windows)) = self.next_wish() {
            let begun = Instant::now();
            let done = self.diagnose(&url, windows);
            let pause = if done.is_some() { begun.elapsed() * PAUSE_SHARE } else { AGAIN };
            let mut minutes = locked(&self.minutes);
            minutes.known.entry(url).or_default().extend(done.into_iter().flatten());
            if minutes.known.values().map(BTreeMap::len).sum::<usize>() > REMEMBERED_MAX {
                // What is wished for fits.
                let kept = minutes.wish.as_ref().map(|wish| (wish.url.clone(), wish.windows.clone()));
                minutes.known.retain(|url, _| kept.as_ref().is_some_and(|(kept, _)| kept == url));
                let inside = |at: &i64| kept.as_ref().is_some_and(|(_, windows)| windows.contains(at));
                minutes.known.values_mut().for_each(|known| known.retain(|at, _| inside(at)));
            }
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
            let wish = minutes.wish.take().filter(|wish| wish.at.elapsed() < WISH);
            if let Some((wish, newest_ms)) = wish.zip(self.tape().ok().map(|tape| tape.newest_ms())) {
                let known = minutes.known.get(&wish.url);
                let is_missing = |from_ms: &i64| {
                    is_due(known.and_then(|known| known.get(from_ms)), from_ms + self.window_ms, newest_ms)
                };
                let run = missing_run(wish.windows.clone(), self.window_ms, is_missing);
                if let Some(run) = run {
                    let url = wish.url.clone();
                    minutes.wish = Some(wish);
                    return Some((url, run));
                }
            }
            minutes = self.wished.wait(minutes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// `None` where the recording cannot be read at the moment.
    fn diagnose(&self, url: &str, windows: Range<i64>) -> Option<BTreeMap<i64, Seen>> {
        let tape = self.tape().ok()?;
        let newest_ms = tape.newest_ms();
        let is_whole = |from_ms: i64| is_whole(from_ms + self.window_ms, newest_ms);
        let nothing = |from_ms: i64| (from_ms, Seen { report: None, is_whole: is_whole(from_ms) });
        let all = windows.clone().step_by(self.window_ms as usize);
        let mut done: BTreeMap<i64, Seen> = all.map(nothing).collect();
        let silences = self.silences();
        let mut last: Option<Arc<Report>> = None;
        for facts in tape.windows(url, windows, self.window_ms) {
            if facts.nodes.is_empty() || facts.check().is_err() {
                continue;
            }
            let report = slim(diagnose_but(&facts, &silences));
            // Minutes in which nothing happens are many, and alike.
            let is_like = |last: &Arc<Report>| {
                last.findings.is_empty()
                    && report.findings.is_empty()
                    && last.silenced == report.silenced
                    && last.looked == report.looked
                    && last.deployment.nodes == report.deployment.nodes
            };
            let kept = last.take().filter(is_like).unwrap_or_else(|| Arc::new(report));
            let from_ms = facts.at_ms as i64;
            done.insert(from_ms, Seen { report: Some(kept.clone()), is_whole: is_whole(from_ms) });
            last = Some(kept);
        }
        Some(done)
    }

    /// Those of now; with others than before all that is known is diagnosed again. What cannot be read silences
    /// nothing.
    pub fn silences(&self) -> Vec<Silence> {
        let Some(path) = &self.silences else { return Vec::new() };
        let written = std::fs::metadata(path).and_then(|about| about.modified()).ok();
        let mut minutes = locked(&self.minutes);
        if std::mem::replace(&mut minutes.silences_at, written) != written {
            minutes.known.clear();
        }
        drop(minutes);
        silences::read(path).map(|(silences, _)| silences).unwrap_or_default()
    }

    /// Ends [`Library::work`].
    pub fn end(&self) {
        locked(&self.minutes).is_over = true;
        self.wished.notify_all();
    }
}

/// Whether nothing about a window that ends then can come later.
fn is_whole(end_ms: i64, newest_ms: i64) -> bool {
    end_ms + WHOLE_MS <= newest_ms
}

/// Whether a window is to be diagnosed: it never was, or not when all of it was there.
fn is_due(seen: Option<&Seen>, end_ms: i64, newest_ms: i64) -> bool {
    seen.is_none_or(|seen| !seen.is_whole && is_whole(end_ms, newest_ms))
}

/// What incidents are made of.
fn slim(mut report: Report) -> Report {
    report.findings.retain(|finding| finding.when != When::Past && finding.severity_now() >= Severity::Low);
    report.deployment.nodes.retain(|node| node.unreachable.is_some());
    report.ruled_out.clear();
    report.cannot_see.clear();
    report.logs.clear();
    report
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
    fn a_window_is_diagnosed_again_when_all_of_it_is_there() {
        let seen = |is_whole| Seen { report: None, is_whole };
        assert!(is_due(None, 60_000, 62_000));
        assert!(!is_due(Some(&seen(false)), 60_000, 62_000), "a moment ago");
        assert!(is_due(Some(&seen(false)), 60_000, 135_000), "what came later is there now");
        assert!(!is_due(Some(&seen(true)), 60_000, 135_000));
    }

    #[test]
    fn times_that_come_again_are_diagnosed_again() {
        use unslow_series::{Settings, Stamp, Value, Writer};
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open(dir.path(), Settings::default()).unwrap();
        let (node, field) = (writer.series("redis://a a:1").unwrap(), writer.field("ops").unwrap());
        let mut record = |wall_ms, mono_ms| {
            writer.sample(node, Stamp { wall_ms, mono_ms }, &[(field, Value::Int(1))]).unwrap();
            writer.flush().unwrap();
        };
        let library = Library::new(dir.path(), Duration::from_secs(60), None);
        let read_again = || {
            if let Some(opened) = locked(&library.opened).as_mut() {
                opened.again = Duration::ZERO;
            }
            library.tape().unwrap().newest_ms()
        };
        record(3_600_000, 0);
        assert_eq!(read_again(), 3_600_000);
        let whole = |from_ms| (from_ms, Seen { report: None, is_whole: true });
        locked(&library.minutes).known.insert("redis://a".into(), [whole(0), whole(1_200_000)].into());
        record(1_200_000, 1_000);
        assert_eq!(read_again(), 1_200_000, "the clock was set back");
        assert_eq!(library.tape().unwrap().span().to_ms, 3_600_000);
        let minutes = locked(&library.minutes);
        let known = &minutes.known["redis://a"];
        assert_eq!([0, 1_200_000].map(|from_ms| known[&from_ms].is_whole), [true, false]);
        assert!(!is_due(known.get(&1_200_000), 1_260_000, 1_200_000), "not before it has come again");
        assert!(is_due(known.get(&1_200_000), 1_260_000, 1_400_000));
    }

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
