//! What the sink counts, and its metrics.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use unslow_status::{Distribution, Exposition};

/// Counters since the start.
pub struct Stats {
    pub started: Instant,
    /// Messages read.
    pub read: AtomicU64,
    /// Messages done: acknowledged, left out or set aside.
    pub done: AtomicU64,
    /// Messages no map wants, or a later one made needless.
    pub skipped: AtomicU64,
    /// Messages set aside.
    pub dead: AtomicU64,
    /// Calls that the marks said had run.
    pub repeated: AtomicU64,
    /// Commands sent for the first time.
    pub commands: AtomicU64,
    pub batches: AtomicU64,
    pub round_trips: AtomicU64,
    pub commits: AtomicU64,
    /// Messages that the next batch holds at most.
    pub batch_limit: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    /// Microseconds from a batch's hand-over to its last reply.
    batch_us: Histogram<u64>,
    messages: Histogram<u64>,
    /// Commands sent again, by reason.
    retries: BTreeMap<String, u64>,
    /// Messages behind, by topic and partition.
    lag: BTreeMap<(String, i32), i64>,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub seconds: f64,
    pub read: u64,
    pub done: u64,
    pub skipped: u64,
    pub dead: u64,
    pub repeated: u64,
    pub commands: u64,
    pub batches: u64,
    pub round_trips: u64,
    pub batch_limit: u64,
    pub batch_messages_p50: u64,
    pub batch_us_p50: u64,
    pub batch_us_p99: u64,
    pub batch_us_max: u64,
    pub retries: BTreeMap<String, u64>,
    pub lag: BTreeMap<(String, i32), i64>,
}

impl Default for Stats {
    fn default() -> Self {
        let histogram = |most| Histogram::new_with_bounds(1, most, 3).expect("the bounds are in order");
        Stats {
            started: Instant::now(),
            read: AtomicU64::new(0),
            done: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            dead: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            commands: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            batch_limit: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                batch_us: histogram(3_600_000_000),
                messages: histogram(100_000_000),
                retries: BTreeMap::new(),
                lag: BTreeMap::new(),
            }),
        }
    }
}

/// What `unslow sink --format json` prints at the end.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
pub struct Report {
    /// Version of this format, `unslow.sink/1`.
    pub schema: String,
    /// From the start to the end.
    pub seconds: f64,
    /// Messages read from the source.
    pub messages_read: u64,
    /// Messages acknowledged, left out or set aside.
    pub messages_done: u64,
    /// Messages that no map wants, or that a later one made needless.
    pub messages_skipped: u64,
    /// Messages set aside with a reason.
    pub dead_letters: u64,
    /// Calls that the marks of `exactly_once` said had run in an earlier run.
    pub calls_repeated: u64,
    /// Commands made of messages, each counted once.
    pub commands: u64,
    /// Batches done.
    pub batches: u64,
    /// Round trips of batches; one each in the normal case.
    pub round_trips: u64,
    /// Median size of a batch.
    pub batch_messages_p50: u64,
    /// From a batch's hand-over to its last reply, microseconds.
    pub batch_us_p50: u64,
    /// 99 of 100 took less.
    pub batch_us_p99: u64,
    /// The longest.
    pub batch_us_max: u64,
    /// Calls sent again, by reason.
    pub retries: BTreeMap<String, u64>,
}

impl Snapshot {
    /// The same with units in its names: the JSON that is printed.
    pub fn report(&self) -> Report {
        Report {
            schema: "unslow.sink/1".into(),
            seconds: self.seconds,
            messages_read: self.read,
            messages_done: self.done,
            messages_skipped: self.skipped,
            dead_letters: self.dead,
            calls_repeated: self.repeated,
            commands: self.commands,
            batches: self.batches,
            round_trips: self.round_trips,
            batch_messages_p50: self.batch_messages_p50,
            batch_us_p50: self.batch_us_p50,
            batch_us_p99: self.batch_us_p99,
            batch_us_max: self.batch_us_max,
            retries: self.retries.clone(),
        }
    }
}

impl Stats {
    pub fn skip(&self, n: u64) {
        self.skipped.fetch_add(n, Ordering::Relaxed);
    }

    /// A batch is done.
    pub fn batch(&self, messages: u64, calls: u64, rounds: u64, took: Duration) {
        self.done.fetch_add(messages, Ordering::Relaxed);
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.round_trips.fetch_add(if calls == 0 { 0 } else { rounds }, Ordering::Relaxed);
        let mut inner = self.inner.lock().expect("no thread panicked");
        inner.batch_us.saturating_record(took.as_micros() as u64);
        inner.messages.saturating_record(messages);
    }

    pub fn count_retries(&self, reason: &str, n: u64) {
        let mut inner = self.inner.lock().expect("no thread panicked");
        match inner.retries.get_mut(reason) {
            Some(count) => *count += n,
            None => drop(inner.retries.insert(reason.to_string(), n)),
        }
    }

    /// Messages that a partition is behind.
    #[cfg(feature = "kafka")]
    pub fn set_lag(&self, topic: &str, partition: i32, messages: i64) {
        self.inner.lock().expect("no thread panicked").lag.insert((topic.to_string(), partition), messages);
    }

    /// A partition is somebody else's now.
    #[cfg(feature = "kafka")]
    pub fn forget_lag(&self) {
        self.inner.lock().expect("no thread panicked").lag.clear();
    }

    pub fn snapshot(&self) -> Snapshot {
        let inner = self.inner.lock().expect("no thread panicked");
        let get = |a: &AtomicU64| a.load(Ordering::Relaxed);
        Snapshot {
            seconds: self.started.elapsed().as_secs_f64(),
            read: get(&self.read),
            done: get(&self.done),
            skipped: get(&self.skipped),
            dead: get(&self.dead),
            repeated: get(&self.repeated),
            commands: get(&self.commands),
            batches: get(&self.batches),
            round_trips: get(&self.round_trips),
            batch_limit: get(&self.batch_limit),
            batch_messages_p50: inner.messages.value_at_quantile(0.5),
            batch_us_p50: inner.batch_us.value_at_quantile(0.5),
            batch_us_p99: inner.batch_us.value_at_quantile(0.99),
            batch_us_max: inner.batch_us.max(),
            retries: inner.retries.clone(),
            lag: inner.lag.clone(),
        }
    }

    /// For `/metrics`.
    pub fn metrics(&self, bytes_kept: usize) -> String {
        let now = self.snapshot();
        let mut all = Exposition::new("unslow_sink");
        for (name, help, n) in [
            ("messages_read", "Messages read from the source", now.read),
            ("messages_done", "Messages acknowledged, left out or set aside", now.done),
            ("messages_skipped", "Messages that no map wants or that were folded", now.skipped),
            ("dead_letters", "Messages set aside with a reason", now.dead),
            ("calls_repeated", "Calls that had already run, by their marks", now.repeated),
            ("commands", "Commands made of messages, each counted once", now.commands),
            ("batches", "Batches done", now.batches),
            ("round_trips", "Round trips of batches; one each in the normal case", now.round_trips),
            ("commits", "Times offsets were committed", self.commits.load(Ordering::Relaxed)),
        ] {
            all.counter(name, help, n);
        }
        let gauge = |n: u64| n.try_into().unwrap_or(i64::MAX);
        all.gauge("batch_messages_max", "Messages the next batch holds at most", gauge(now.batch_limit));
        all.gauge("kept_bytes", "Bytes of batches in flight", gauge(bytes_kept as u64));
        let retries = now.retries.iter().map(|(reason, n)| (vec![("reason", reason.clone())], *n));
        all.counters("retries", "Calls sent again, by reason", retries);
        let lag = now
            .lag
            .iter()
            .map(|((topic, partition), n)| (vec![("topic", topic.clone()), ("partition", partition.to_string())], *n));
        all.gauges("lag_messages", "Messages behind the end of the partition", lag);
        all.histograms("batch_seconds", "From a batch's hand-over to its last reply", [(vec![], self.batch_seconds())]);
        all.text()
    }

    fn batch_seconds(&self) -> Distribution {
        const UP_TO_MS: [u64; 14] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000];
        let batch_us = &self.inner.lock().expect("no thread panicked").batch_us;
        let mut below = 0;
        let buckets = UP_TO_MS.map(|ms| {
            let so_far = batch_us.count_between(0, ms * 1000);
            let own = so_far - std::mem::replace(&mut below, so_far);
            (ms as f64 / 1000.0, own)
        });
        let count = batch_us.len();
        Distribution { buckets: buckets.into(), count, sum: batch_us.mean() * count as f64 / 1e6 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshot_and_metrics_agree() {
        let stats = Stats::default();
        for n in 1..=100 {
            // The last one has no calls, so it made no round trip.
            stats.batch(10, if n == 100 { 0 } else { 5 }, 2, Duration::from_millis(n));
        }
        stats.count_retries("moved", 2);
        stats.count_retries("moved", 1);
        stats.skip(4);
        let now = stats.snapshot();
        assert_eq!((now.done, now.batches, now.round_trips, now.skipped), (1000, 100, 198, 4));
        assert_eq!((now.batch_messages_p50, &now.retries), (10, &BTreeMap::from([("moved".to_string(), 3)])));
        // The histogram keeps three significant digits.
        for (us, expected) in [(now.batch_us_p50, 50_000), (now.batch_us_p99, 99_000), (now.batch_us_max, 100_000)] {
            assert!(us.abs_diff(expected) <= expected / 1000, "{us} of {expected}");
        }
        let metrics = stats.metrics(77);
        for line in [
            "unslow_sink_messages_done_total 1000",
            "unslow_sink_round_trips_total 198",
            "unslow_sink_kept_bytes 77",
            "unslow_sink_retries_total{reason=\"moved\"} 3",
            "unslow_sink_batch_seconds_bucket{le=\"+Inf\"} 100",
            "unslow_sink_batch_seconds_count 100",
        ] {
            assert!(metrics.lines().any(|l| l == line), "{line} is missing in\n{metrics}");
        }
        let bucket = |le: &str| -> u64 {
            let start = format!("unslow_sink_batch_seconds_bucket{{le=\"{le}\"}} ");
            metrics.lines().find_map(|l| l.strip_prefix(&start)?.parse().ok()).expect("a bucket")
        };
        let buckets = ["0.001", "0.01", "0.05", "0.2", "30"].map(bucket);
        assert!(buckets.is_sorted() && buckets[3..] == [100, 100], "{buckets:?}");
        assert!((9..=11).contains(&buckets[1]), "{buckets:?}");
        assert_eq!(now.report().batch_us_max, now.batch_us_max);
    }

    #[cfg(feature = "kafka")]
    #[test]
    fn lag_labels_are_escaped_and_revoked_partitions_disappear() {
        let stats = Stats::default();
        stats.set_lag("a\"b", 3, 7);
        assert!(stats.metrics(0).contains("unslow_sink_lag_messages{topic=\"a\\\"b\",partition=\"3\"} 7\n"));
        stats.forget_lag();
        assert!(!stats.metrics(0).contains("partition="));
    }
}
