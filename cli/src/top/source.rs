//! Where frames come from: servers that are watched, or a recording.

use std::fmt::Write;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::bail;
use unslow_client::{Options, Target};
use unslow_doctor::{Severity, When, diagnose};
use unslow_facts::Facts;
use unslow_record::{Keys, Recorder, Settings, Tape, Watching};
use unslow_units::time_us;
use unslow_views::Head;

use super::app::{Frame, Mood};
use crate::incidents;

/// The slow log is read this often in a live view of up to 100 servers; clients and settings every sixth time.
const ASK: Duration = Duration::from_secs(5);
/// The facts of a frame take well under a millisecond for a few servers, and 6 ms for hundreds; drawing them about as
/// much again. The pause before the next one is this multiple of the facts' time, so both have a bounded share of a
/// core. Running the rules is limited in the same way.
const FRAME_SHARE: u32 = 20;
const VERDICT_SHARE: u32 = 100;
/// Nothing is called well while a PING takes this long.
const SLOW_PING_US: u32 = 1_000_000;
/// An older verdict is shown with its age.
const STALE: Duration = Duration::from_secs(2);
/// Windows before the first one of a recording: what the curves begin with.
const BEFORE: i64 = 20;

pub enum Source {
    Live(Live),
    Recorded(Recorded),
}

/// Servers that are watched.
pub struct Live {
    /// Never ended: it keeps nothing, and a server that hangs must not hold up the person who leaves.
    recorder: ManuallyDrop<Recorder>,
    watching: Watching,
    verdict: (Mood, String),
    /// When the rules ran last, and when they may run again.
    verdict_at: Instant,
    verdict_due: Instant,
    /// When there may be a next frame.
    due: Instant,
}

impl Live {
    pub fn start(target: Target, options: Options, window: Duration, show_keys: bool) -> anyhow::Result<Live> {
        let watching = Watching::new(&target.url(), window.as_millis() as i64);
        let keys = if show_keys { Keys::Shown } else { Keys::Hashed };
        let settings =
            Settings { targets: vec![target], options, every: ASK, keys, host: true, stall: Settings::STALL };
        let recorder = ManuallyDrop::new(Recorder::watch(settings, watching.clone())?);
        let verdict = (Mood::Unknown, "measuring".to_string());
        let now = Instant::now();
        Ok(Live { recorder, watching, verdict, verdict_at: now, verdict_due: now, due: now })
    }

    /// This process was held up on purpose.
    pub fn begin_again(&self) {
        self.watching.begin_again();
    }

    /// The window that ends now; `None` where it is too early for another one.
    pub fn frame(&mut self) -> anyhow::Result<Option<Frame>> {
        if self.recorder.has_failed() {
            bail!("stopped: a measuring thread ended unexpectedly");
        }
        let begun = Instant::now();
        if begun < self.due {
            return Ok(None);
        }
        let facts = self.watching.facts();
        let took = begun.elapsed();
        if !is_measured(&facts) {
            let silent = self.recorder.silent.first().map(|(_, why)| (Mood::Bad, why.message.clone()));
            self.verdict = silent.unwrap_or_else(|| (Mood::Unknown, "measuring".into()));
            self.verdict_at = begun;
        } else if begun >= self.verdict_due {
            let begun = Instant::now();
            self.verdict = verdict(&facts);
            self.verdict_at = begun;
            self.verdict_due = Instant::now() + begun.elapsed() * VERDICT_SHARE;
        }
        self.due = Instant::now() + took * FRAME_SHARE;
        let (mood, mut sentence) = self.verdict.clone();
        let age = self.verdict_at.elapsed();
        if mood != Mood::Unknown && age >= STALE {
            // It is about an earlier window than the figures below it.
            let _ = write!(sentence, " ({} s ago)", age.as_secs());
        }
        Ok(Some(Frame::new(facts, (mood, sentence))))
    }
}

/// A window of a recording.
pub struct Recorded {
    tape: Tape,
    url: Arc<str>,
    window_ms: i64,
    at_ms: i64,
}

impl Recorded {
    pub fn open(dir: &Path, url: Option<&str>, at: Option<&str>, window: Duration) -> anyhow::Result<Recorded> {
        let tape = Tape::open(dir)?;
        let url = tape.deployment(url)?;
        let Range { start, .. } = incidents::window(&tape, at, window)?;
        Ok(Recorded { tape, url, window_ms: window.as_millis() as i64, at_ms: start })
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The window, and those before it, the oldest first.
    pub fn frames(&self) -> Vec<Frame> {
        let span = self.tape.span();
        let from_ms = (self.at_ms - BEFORE * self.window_ms).max(span.from_ms);
        // Whole windows up to this one.
        let from_ms = self.at_ms - (self.at_ms - from_ms) / self.window_ms * self.window_ms;
        let windows = self.tape.windows(&self.url, from_ms..self.at_ms + self.window_ms, self.window_ms);
        windows.map(frame).collect()
    }

    /// Moves by whole windows and gives the new one; `None` at either end of what is recorded by now.
    pub fn step(&mut self, dir: &Path, windows: i64) -> anyhow::Result<Option<Frame>> {
        let at_ms = self.at_ms + windows * self.window_ms;
        if at_ms + self.window_ms > self.tape.span().to_ms + 1 {
            self.tape = Tape::open(dir)?;
        }
        let span = self.tape.span();
        if at_ms + self.window_ms <= span.from_ms || at_ms + self.window_ms > span.to_ms + 1 {
            return Ok(None);
        }
        self.at_ms = at_ms;
        Ok(self.tape.windows(&self.url, at_ms..at_ms + self.window_ms, self.window_ms).next().map(frame))
    }

    /// To a time as it was typed; without one to the end, of what is recorded by now.
    pub fn jump(&mut self, dir: &Path, at: Option<&str>) -> anyhow::Result<()> {
        if at.is_none() {
            self.tape = Tape::open(dir)?;
        }
        let window = Duration::from_millis(self.window_ms.unsigned_abs());
        self.at_ms = incidents::window(&self.tape, at, window)?.start;
        Ok(())
    }
}

/// Whether something is known of every server: figures, or why there are none.
fn is_measured(facts: &Facts) -> bool {
    !facts.nodes.is_empty() && facts.nodes.iter().all(|node| node.last.is_some() || node.unreachable.is_some())
}

fn frame(facts: Facts) -> Frame {
    let verdict = match facts.nodes.is_empty() {
        true => (Mood::Unknown, "nothing was recorded in this window".into()),
        false => verdict(&facts),
    };
    Frame::new(facts, verdict)
}

/// What the doctor would put first, in a line.
fn verdict(facts: &Facts) -> (Mood, String) {
    if facts.check().is_err() {
        return (Mood::Unknown, "a server reported impossible numbers: no diagnosis".into());
    }
    let report = diagnose(facts, &[]);
    let now = report.findings.iter().filter(|f| f.severity > Severity::Risk && f.when != When::Past);
    let (first, more) = (now.clone().next(), now.count().saturating_sub(1));
    let (could, all) = (report.looked.could, report.looked.rules);
    match first {
        Some(first) if more > 0 => (Mood::Bad, format!("{} (and {more} more: d)", first.title)),
        Some(first) => (Mood::Bad, first.title.clone()),
        None => {
            // A server that has just stopped answering: rules name it once it has been silent for some seconds.
            if let Some((us, server)) = Head::of(facts).worst_ping.filter(|(us, _)| *us >= SLOW_PING_US) {
                let took = time_us(f64::from(us));
                return (Mood::Bad, format!("a PING of {server} takes {took}; no rule names the cause yet"));
            }
            // With half of the rules blind, well would say too much.
            let mood = if could * 2 > all { Mood::Well } else { Mood::Unknown };
            (mood, format!("no problem found in this window; {could} of {all} rules could look"))
        }
    }
}

#[cfg(test)]
mod tests {
    use unslow_facts::{Node, Rtt, Seen};
    use unslow_topology::Role;

    use super::*;

    #[test]
    fn nothing_is_called_well_while_a_server_owes_an_answer() {
        let said = |us: u32| {
            let mut facts = Facts { window_s: 5.0, ..Facts::of_nothing("redis://a:1") };
            let mut node = Node::new("a:1", Role::Master);
            let value = Rtt::of(&[100, us]).unwrap();
            node.rtt = Seen::yes(value, "PING", 1);
            facts.nodes.push(node);
            assert!(facts.check().is_ok(), "{:?}", facts.check());
            verdict(&facts)
        };
        assert_ne!(said(200).0, Mood::Bad);
        let (mood, sentence) = said(2_000_000);
        assert_eq!(mood, Mood::Bad);
        assert!(sentence.contains("a:1") && sentence.contains("2 s"), "{sentence}");
    }
}
