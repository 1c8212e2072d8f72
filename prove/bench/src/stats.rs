//! What one second of one thread was like, and how seconds and threads add up.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;

/// An hour in nanoseconds: what takes longer counts as this.
pub const MOST_NS: u64 = 3_600_000_000_000;

/// A latency histogram: nanoseconds, three digits, up to an hour.
pub fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, MOST_NS, 3).expect("valid bounds")
}

/// One second of one thread; of several when added.
pub struct Interval {
    /// Number of the second since the start.
    pub second: u32,
    /// From due to answered (or given up without an answer), for each command.
    pub latency: Vec<Histogram<u64>>,
    /// Answers that were null, for each command.
    pub nulls: Vec<u64>,
    /// From due to an error reply.
    pub refused: Histogram<u64>,
    /// From due (and a free caller) to being put on a connection.
    pub wait: Histogram<u64>,
    /// From due to being looked at by the generator: its own fault.
    pub lateness: Histogram<u64>,
    /// Messages delivered to subscribers, from publication.
    pub delivered: Histogram<u64>,
    /// Small numbers.
    pub counts: Counts,
    /// Requests that went wrong, by kind.
    pub errors: Vec<Kind>,
    /// Connections lost: node and why; how many, and the first one's time in ns since the start.
    pub lost: BTreeMap<(String, String), (u64, u64)>,
    /// Anything else worth a mark on the time line: ns since the start and a sentence.
    pub marks: Vec<(u64, String)>,
}

/// Counters of an interval; the gauges among them are what they were at its end.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Requests answered without an error.
    pub answered: u64,
    /// Requests due (open loop) or begun (closed loop).
    pub begun: u64,
    /// Values compared with what was written.
    pub verified: u64,
    /// Of them, those that were something else.
    pub wrong: u64,
    /// MOVED answers followed.
    pub moved: u64,
    /// ASK answers followed.
    pub ask: u64,
    /// Requests given up without an answer.
    pub unanswered: u64,
    /// Bytes received.
    pub received: u64,
    /// Gauge: requests on connections.
    pub in_flight: u64,
    /// Gauge: requests that wait for a connection.
    pub waiting: u64,
    /// Gauge: open connections.
    pub open: u64,
}

/// Errors of one kind.
#[derive(Clone, Debug)]
pub struct Kind {
    /// The reply's code word, or one of our own in lower case.
    pub name: String,
    /// How many.
    pub count: u64,
    /// The first one's text.
    pub example: String,
}

impl Interval {
    /// An empty one.
    pub fn new(commands: usize) -> Interval {
        Interval {
            second: 0,
            latency: (0..commands).map(|_| histogram()).collect(),
            nulls: vec![0; commands],
            refused: histogram(),
            wait: histogram(),
            lateness: histogram(),
            delivered: histogram(),
            counts: Counts::default(),
            errors: Vec::new(),
            lost: BTreeMap::new(),
            marks: Vec::new(),
        }
    }

    /// Empties it, keeping its memory.
    pub fn reset(&mut self) {
        let used = [&mut self.refused, &mut self.wait, &mut self.lateness, &mut self.delivered];
        for histogram in used.into_iter().chain(&mut self.latency).filter(|h| !h.is_empty()) {
            histogram.reset();
        }
        self.nulls.fill(0);
        self.counts = Counts::default();
        self.errors.clear();
        self.lost.clear();
        self.marks.clear();
    }

    /// Counts an error.
    pub fn error(&mut self, name: &str, example: &str) {
        const MOST: usize = 64; // a server that makes up code words does not fill our memory
        let name = if self.errors.len() >= MOST && self.errors.iter().all(|k| k.name != name) { "other" } else { name };
        match self.errors.iter_mut().find(|k| k.name == name) {
            Some(kind) => kind.count += 1,
            None => {
                let example = example.chars().take(200).collect();
                self.errors.push(Kind { name: name.into(), count: 1, example });
            }
        }
    }

    /// Adds another's figures to these.
    pub fn add(&mut self, other: &Interval) {
        let pairs = [
            (&mut self.refused, &other.refused),
            (&mut self.wait, &other.wait),
            (&mut self.lateness, &other.lateness),
            (&mut self.delivered, &other.delivered),
        ];
        for (mine, theirs) in pairs.into_iter().chain(self.latency.iter_mut().zip(&other.latency)) {
            if !theirs.is_empty() {
                mine.add(theirs).expect("the same bounds");
            }
        }
        let (a, b) = (&mut self.counts, &other.counts);
        a.answered += b.answered;
        a.begun += b.begun;
        a.verified += b.verified;
        a.wrong += b.wrong;
        a.moved += b.moved;
        a.ask += b.ask;
        a.unanswered += b.unanswered;
        a.received += b.received;
        a.in_flight += b.in_flight;
        a.waiting += b.waiting;
        a.open += b.open;
        self.nulls.iter_mut().zip(&other.nulls).for_each(|(a, b)| *a += b);
        for kind in &other.errors {
            match self.errors.iter_mut().find(|k| k.name == kind.name) {
                Some(mine) => mine.count += kind.count,
                None => self.errors.push(kind.clone()),
            }
        }
        for (what, (count, at)) in &other.lost {
            let mine = self.lost.entry(what.clone()).or_insert((0, *at));
            *mine = (mine.0 + count, mine.1.min(*at));
        }
        self.marks.extend(other.marks.iter().cloned());
    }

    /// Latency of all commands together.
    pub fn all(&self) -> Histogram<u64> {
        let mut all = histogram();
        for one in &self.latency {
            all.add(one).expect("the same bounds");
        }
        all
    }

    /// Errors of all kinds.
    pub fn error_count(&self) -> u64 {
        self.errors.iter().map(|k| k.count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second of one thread: requests of the second of two commands, and a connection lost at that time.
    fn interval(latencies: &[u64], lost_at: u64) -> Interval {
        let mut interval = Interval::new(2);
        latencies.iter().for_each(|ns| interval.latency[1].record(*ns).unwrap());
        interval.nulls[1] = 1;
        let answered = latencies.len() as u64;
        interval.counts = Counts { answered, unanswered: 1, waiting: 30, open: 2, ..Counts::default() };
        interval.error("timeout", "no answer for 1 s");
        interval.lost.insert(("10.0.0.1:6379".into(), "it broke".into()), (1, lost_at));
        interval.wait.record(answered).unwrap();
        interval
    }

    #[test]
    fn what_two_threads_saw_in_a_second_adds_up() {
        let mut sum = interval(&[1000, 2000], 500);
        let mut other = interval(&[4000], 300);
        other.error("OOM", "OOM command not allowed");
        other.marks.push((7, "it came back".into()));
        sum.add(&other);
        assert_eq!((sum.all().len(), sum.latency[0].len(), sum.nulls[1], sum.wait.len()), (3, 0, 2, 2));
        assert!(sum.all().max() >= 4000 && sum.all().min() <= 1000);
        let c = sum.counts;
        assert_eq!((c.answered, c.unanswered, c.waiting, c.open), (3, 2, 60, 4));
        let kinds: Vec<(&str, u64)> = sum.errors.iter().map(|k| (k.name.as_str(), k.count)).collect();
        assert_eq!((kinds, sum.error_count()), (vec![("timeout", 2), ("OOM", 1)], 3));
        assert_eq!(sum.lost.values().collect::<Vec<_>>(), [&(2, 300)], "the first one's time");
        assert_eq!(sum.marks, [(7, "it came back".to_string())]);
        sum.reset();
        assert!(sum.all().is_empty() && sum.errors.is_empty() && sum.lost.is_empty() && sum.counts.answered == 0);
    }

    #[test]
    fn kinds_of_errors_that_a_server_makes_up_do_not_fill_the_memory() {
        let mut interval = Interval::new(1);
        (0..1000).for_each(|i| interval.error(&format!("MADEUP{i}"), "x"));
        assert_eq!((interval.errors.len(), interval.error_count()), (65, 1000));
        let other = interval.errors.last().unwrap();
        assert_eq!((other.name.as_str(), other.count), ("other", 936));
    }
}
