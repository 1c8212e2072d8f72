//! What was seen of a node around a window, as facts: stalls, absences, and the answers to what is asked in rounds.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use unslow_facts::{Gap, Lack, LargeEntry, LaterView, Node, Seen, Side, SlowEntry, Standing, TimeRange};
use unslow_series::Event;
use unslow_topology::ClusterView;

use crate::scheme::{ASKED, AWAY, Away, Because, Greeted, LARGE, Part, SLOW, STALL, STANDING, Stall, TELL_AGAIN_MS};

/// Parts are written again at least every ten minutes, and asked for every minute.
pub const LOOK_BACK_MS: i64 = 11 * 60_000;
/// From the mark that questions were asked to what was found.
const MARK_MS: i64 = 100;
/// A connection that was closed and opened again is no absence.
const ABSENT_MS: i64 = 3_000;
/// So much of an absence belongs to a window at least: what is less is its neighbour's.
const WITHIN_MS: i64 = 1_000;
/// For so long a node is away without a further word of it.
pub const AWAY_MS: i64 = TELL_AGAIN_MS as i64 + 60_000;
/// From one histogram to the next, unless the recorder was told otherwise.
const MINUTE_MS: i64 = 60_000;
/// A look at the cluster is compared with one that is as close to a short window as that.
const CLOSE_MS: i64 = 15_000;
/// What a minute on the machine was like is known when it is over.
pub const HOST_MS: i64 = 70_000;

/// A recorder began.
pub struct Start {
    pub at_ms: i64,
    /// The last sign of life of the one before.
    pub before_ms: Option<i64>,
}

/// Times in which a node did not answer.
pub struct Absence {
    pub away: Away,
    pub from_ms: i64,
    pub until_ms: i64,
}

/// What was seen of a node around a window.
pub struct Around<'a> {
    window: &'a Range<i64>,
    events: &'a [Event],
}

impl<'a> Around<'a> {
    pub fn of(events: &'a [Event], window: &'a Range<i64>) -> Around<'a> {
        let from = events.partition_point(|e| e.at.wall_ms < window.start - LOOK_BACK_MS);
        let to = events.partition_point(|e| e.at.wall_ms < window.end + HOST_MS);
        Around { window, events: &events[from..to.max(from)] }
    }

    /// For how much of this time it owed an answer, in one go, in ms.
    pub fn stood_ms(&self, within: Range<i64>) -> i64 {
        let stalls = of_kind::<Stall>(self.events, STALL).map(|(at, stall)| {
            let sent = i64::try_from(stall.sent_ms).unwrap_or(at);
            (at.min(within.end) - sent.max(within.start)).max(0)
        });
        stalls.max().unwrap_or(0)
    }

    /// The longest time in the window in which it did not answer. `answered` are the times of rows in it.
    pub fn absence(&self, starts: &[Start], answered: &[i64]) -> Option<Absence> {
        let window = self.window;
        // A hang is reported only after some seconds, so events after the window may be about it.
        let words: Vec<(i64, Option<Away>)> = of_kind(self.events, AWAY).collect();
        let nexts = words.iter().skip(1).map(|(at, _)| Some(*at)).chain([None]);
        let absences = words.iter().zip(nexts).filter_map(|((at, away), next_ms)| {
            let away = away.clone()?;
            // It holds until the next word, for a while, and for as long as there is a recorder.
            let started = starts.iter().find(|start| start.at_ms > *at);
            let alive_ms = started.map(|start| start.before_ms.unwrap_or(*at).max(*at));
            let row_ms = answered.iter().find(|row| **row > *at && away.lack == Lack::Answer);
            let until_ms = [next_ms, Some(*at + AWAY_MS), alive_ms, row_ms.copied()].into_iter().flatten().min()?;
            let from_ms = (*at).min(i64::try_from(away.since_ms).unwrap_or(*at));
            Some(Absence { away, from_ms, until_ms })
        });
        // An absence is reported again while it lasts, and the later report may know more.
        let joined = absences.fold(Vec::new(), |mut all: Vec<Absence>, next| {
            match all.last_mut().filter(|last| last.until_ms >= next.from_ms) {
                Some(last) => (last.until_ms, last.away) = (last.until_ms.max(next.until_ms), next.away),
                None => all.push(next),
            }
            all
        });
        let long = joined.into_iter().filter(|a| a.until_ms - a.from_ms >= ABSENT_MS);
        let within = long.map(|a| {
            let (from_ms, until_ms) = (a.from_ms.max(window.start), a.until_ms.min(window.end));
            Absence { from_ms, until_ms, ..a }
        });
        within.filter(|a| a.until_ms - a.from_ms >= WITHIN_MS).max_by_key(|a| a.until_ms - a.from_ms)
    }

    pub fn stalls(&self, node: &mut Node) {
        let window = self.window;
        for (at, stall) in of_kind::<Stall>(self.events, STALL) {
            let sent = i64::try_from(stall.sent_ms).unwrap_or(i64::MAX);
            if at >= window.start && sent < window.end {
                let from = sent.max(window.start);
                let us = u32::try_from(stall.us).unwrap_or(u32::MAX);
                node.pings.push(((from - window.start) as u32, us));
            }
        }
        node.pings.sort_unstable();
    }

    /// What was seen of its process in that time, for as long as possible: of a node that is away only what belongs to
    /// its absence, not a stall before it.
    pub fn standing(&self, within: &Range<i64>) -> Option<Standing> {
        let reaches = |(at, seen): &(i64, Standing)| {
            let span_ms = i64::try_from(seen.span_ms).unwrap_or(i64::MAX);
            // In an absence from the first look on; in a window, which is cut out, as far as it reaches in.
            let begins = at.saturating_sub(span_ms);
            let is_in = within == self.window || begins >= within.start - ABSENT_MS;
            is_in && *at >= within.start && begins < within.end
        };
        let all = of_kind::<Standing>(self.events, STANDING).filter(reaches);
        all.map(|(_, seen)| seen).max_by_key(|seen| seen.span_ms)
    }

    /// Answers to what is not asked every second. `look` is when the machine was looked at, for this window.
    pub fn parts(&self, node: &mut Node, look: Option<i64>) {
        let window = self.window;
        let not_asked = Gap::new(Lack::Time, "not asked in this part of the recording", "");
        let rounds = self.rounds();
        let round = rounds.map(|(round, _)| round);
        node.config = self.whole(Part::Config, round, &not_asked);
        node.latency = self.part(Part::Latency, window, &not_asked);
        node.clients = self.whole(Part::Clients, round, &not_asked);
        (node.cluster, node.cluster_last) = self.views(rounds, &not_asked);
        node.cluster_info = self.whole(Part::ClusterInfo, round, &not_asked);
        node.slot_stats = self.whole(Part::SlotStats, round, &not_asked);
        node.key_sizes = self.part(Part::KeySizes, window, &not_asked);
        node.sockets = self.whole(Part::Sockets, look, &not_asked);
        node.histograms = self.histograms(&not_asked);
        node.slowlog = match self.part::<Vec<SlowEntry>>(Part::SlowLog, window, &not_asked) {
            Seen::Yes { source, at_ms, .. } => {
                let value = self.logged(SLOW, |entry: &SlowEntry| (entry.at_s, entry.id, None));
                Seen::yes(value, source, at_ms)
            }
            no => no,
        };
        node.large = match self.part::<Vec<LargeEntry>>(Part::LargeLog, window, &not_asked) {
            Seen::Yes { source, at_ms, .. } => {
                let value = self.logged(LARGE, |entry: &LargeEntry| (entry.at_s, entry.id, Some(entry.side)));
                Seen::yes(value, source, at_ms)
            }
            no => no,
        };
        if let Seen::Yes { value, .. } = self.whole::<Greeted>(Part::Greeted, round, &not_asked) {
            (node.open_door, node.connect_us) = (value.open_door, value.connect_us);
        }
    }

    /// The newest of a kind before the window's end; one that was asked in the minute behind it rather than none.
    fn part<T: DeserializeOwned>(&self, part: Part, window: &Range<i64>, missing: &Gap) -> Seen<T> {
        let mut of_part = self.events.iter().filter(|e| e.kind == part.name());
        let before = of_part.clone().rev().find(|e| e.at.wall_ms < window.end);
        let Some(event) = before.or_else(|| of_part.next()) else { return Seen::No(missing.clone()) };
        match serde_json::from_slice(&event.payload) {
            Ok(Seen::Yes { value, source, .. }) => Seen::Yes { value, source, at_ms: unix(event.at.wall_ms) },
            Ok(no) => no,
            Err(_) => Seen::No(Gap::new(Lack::Other, format!("{}: the recording is damaged there", part.name()), "")),
        }
    }

    /// What is asked in rounds, as the one that was asked for at this time found it.
    fn whole<T: DeserializeOwned>(&self, part: Part, round: Option<i64>, missing: &Gap) -> Seen<T> {
        // What is found is written right behind the mark that says that it was asked for.
        let up_to = round.map_or(self.window.end, |asked| asked + MARK_MS);
        self.part(part, &(self.window.start..up_to), missing)
    }

    /// The whole round that covers this window best, and the one that shows what had changed, or what lasted.
    fn rounds(&self) -> Option<(i64, Option<i64>)> {
        let window = self.window;
        let asked: Vec<Asked> = self.events.iter().filter(|e| e.kind == ASKED).map(Asked::of).collect();
        let place = best(&asked, window)?;
        let round = &asked[place];
        // What one is compared with is never further from the window on the same side of it.
        let mut earlier = asked[..place].iter().filter(|_| round.at_ms > window.start);
        if window.end - window.start >= MINUTE_MS {
            let before = earlier.clone().rev().find(|a| a.at_ms <= window.start).or(earlier.clone().next());
            return Some((round.at_ms, before.map(|a| a.at_ms)));
        }
        // What a short window is about may have begun since the round before; a later one may know that it is over.
        let later = asked.get(place + 1).filter(|a| a.at_ms < window.end + CLOSE_MS && a.knows(window));
        let earlier = earlier.next_back().filter(|a| a.at_ms > window.start - CLOSE_MS);
        Some((round.at_ms, later.or(earlier).map(|a| a.at_ms)))
    }

    /// The cluster as two rounds saw it.
    fn views(&self, rounds: Option<(i64, Option<i64>)>, missing: &Gap) -> (Seen<ClusterView>, Seen<LaterView>) {
        let Some((round, other)) = rounds else {
            return (self.part(Part::Cluster, self.window, missing), Seen::No(missing.clone()));
        };
        let at = |asked: i64| self.whole::<ClusterView>(Part::Cluster, Some(asked), missing);
        let Some(other) = other else { return (at(round), Seen::No(missing.clone())) };
        let (first, last) = (round.min(other), round.max(other));
        let (first_view, last_view) = (at(first), at(last));
        let later = match (&first_view, last_view) {
            (Seen::Yes { value: before, .. }, Seen::Yes { value: now, source, .. }) => {
                Seen::yes(LaterView::of(before, Arc::unwrap_or_clone(now)), source, unix(last))
            }
            (_, Seen::No(gap)) => Seen::No(gap),
            (Seen::No(gap), _) => Seen::No(gap.clone()),
        };
        (first_view, later)
    }

    /// Each event counts the calls of the minute before it: in a shorter window the next one has most of it.
    fn histograms(&self, missing: &Gap) -> Seen<BTreeMap<String, Vec<TimeRange>>> {
        type Counted = BTreeMap<String, Vec<TimeRange>>;
        let window = self.window;
        let after = self.events.partition_point(|e| e.at.wall_ms <= window.start);
        let all = of_kind::<Seen<Counted>>(&self.events[after..], Part::Histograms.name());
        let later = all.filter_map(|(at, seen)| Some((at, seen.value()?.clone())));
        let (mut within, behind): (Vec<(i64, Counted)>, Vec<_>) = later.partition(|(at, _)| *at <= window.end);
        if window.end - window.start < MINUTE_MS {
            within.extend(behind.into_iter().next());
        }
        let Some(at) = within.last().map(|(at, _)| *at) else { return self.part(Part::Histograms, window, missing) };
        let mut sums: BTreeMap<String, BTreeMap<u64, u64>> = BTreeMap::new();
        for (name, range) in
            within.iter().flat_map(|(_, c)| c).flat_map(|(name, all)| all.iter().map(move |r| (name, r)))
        {
            *sums.entry(name.clone()).or_default().entry(range.up_to_us).or_default() += range.calls;
        }
        let ranges = |by_end: BTreeMap<u64, u64>| {
            by_end.into_iter().map(|(up_to_us, calls)| TimeRange { up_to_us, calls }).collect()
        };
        let value = sums.into_iter().map(|(name, by_end)| (name, ranges(by_end))).collect();
        Seen::yes(value, "LATENCY HISTOGRAM", unix(at))
    }

    /// Entries of a log, the newest first, as the server lists them; those of the window and of ten minutes before.
    /// `place` is when an entry was made, and what tells it from others.
    fn logged<T: DeserializeOwned>(&self, kind: &str, place: impl Fn(&T) -> (u64, u64, Option<Side>)) -> Vec<T> {
        let window = self.window;
        let since_s = unix(window.start - LOOK_BACK_MS) / 1000;
        let end_s = unix(window.end).div_ceil(1000);
        let all = of_kind::<T>(self.events, kind).map(|(_, entry)| entry);
        let mut entries: Vec<T> = all.filter(|e| (since_s..=end_s).contains(&place(e).0)).collect();
        entries.sort_by_key(|e| std::cmp::Reverse(place(e)));
        // A recorder that is started again reads all of the log.
        entries.dedup_by_key(|e| place(e));
        entries
    }
}

/// A whole round.
struct Asked {
    at_ms: i64,
    /// What began then was the reason to ask.
    because_ms: Option<i64>,
}

impl Asked {
    fn of(event: &Event) -> Asked {
        let because = serde_json::from_slice::<Because>(&event.payload).ok();
        Asked { at_ms: event.at.wall_ms, because_ms: because.map(|because| because.because_ms) }
    }

    /// Whether what it was asked for had begun by the end of this window.
    fn knows(&self, window: &Range<i64>) -> bool {
        self.because_ms.is_none_or(|began| began < window.end)
    }
}

/// The place of the round that covers a window best: the last one in it, or else the nearest to its end. One that was
/// asked for something that began after the window knows nothing of it. They are in order.
fn best(rounds: &[Asked], window: &Range<i64>) -> Option<usize> {
    let after = rounds.partition_point(|round| round.at_ms < window.end);
    let before = after.checked_sub(1);
    let next = rounds.get(after).map(|round| (after, round));
    let (last, Some((next, round))) = (before, next) else { return before };
    match last {
        Some(last) if rounds[last].at_ms >= window.start => Some(last),
        Some(last) if !round.knows(window) => Some(last),
        Some(last) if window.end - rounds[last].at_ms <= round.at_ms - window.end => Some(last),
        _ => Some(next),
    }
}

pub fn of_kind<'a, T: DeserializeOwned + 'a>(
    events: &'a [Event],
    kind: &'a str,
) -> impl Iterator<Item = (i64, T)> + 'a {
    let of_kind = events.iter().filter(move |event| event.kind == kind);
    of_kind.filter_map(|event| Some((event.at.wall_ms, serde_json::from_slice(&event.payload).ok()?)))
}

pub fn unix(ms: i64) -> u64 {
    u64::try_from(ms).unwrap_or(0)
}
