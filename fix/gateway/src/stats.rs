//! Counts and latencies, kept by each worker alone and published about once a second.

use std::collections::BTreeMap;

/// Latency by powers of two: bucket i counts what took less than 2^i microseconds; the last one everything beyond.
#[derive(Clone, Debug, Default)]
pub struct Latency {
    pub buckets: [u64; 28],
    pub sum_us: u64,
    pub count: u64,
    pub longest_us: u64,
}

impl Latency {
    #[inline]
    pub fn add(&mut self, us: u64) {
        let bucket = (64 - us.leading_zeros() as usize).min(27);
        self.buckets[bucket] += 1;
        self.sum_us += us;
        self.count += 1;
        self.longest_us = self.longest_us.max(us);
    }

    /// The buckets that have an upper end.
    pub fn bounded(&self) -> &[u64] {
        &self.buckets[..self.buckets.len() - 1]
    }

    pub fn merge(&mut self, other: &Latency) {
        for (a, b) in self.buckets.iter_mut().zip(other.buckets) {
            *a += b;
        }
        self.sum_us += other.sum_us;
        self.count += other.count;
        self.longest_us = self.longest_us.max(other.longest_us);
    }

    /// Upper end of the bucket this quantile falls into, in microseconds; of the last bucket, which has none, of all
    /// that came.
    pub fn quantile_us(&self, q: f64) -> u64 {
        let wanted = (self.count as f64 * q).ceil() as u64;
        let mut seen = 0;
        for (i, n) in self.bounded().iter().enumerate() {
            seen += n;
            if seen >= wanted && seen > 0 {
                return 1 << i;
            }
        }
        if self.count > 0 { self.longest_us.saturating_add(1) } else { 0 }
    }
}

/// What one worker has done so far.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub clients: u64,
    pub clients_accepted: u64,
    pub clients_refused: u64,
    pub clients_closed_slow: u64,
    pub commands: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    /// Errors of servers that clients got to see.
    pub errors_passed: u64,
    /// Errors of our own, by reason.
    pub errors: BTreeMap<&'static str, u64>,
    /// Redirects handled inside.
    pub moved: u64,
    pub asked: u64,
    /// Commands sent again for another reason.
    pub again: u64,
    /// Commands that waited for a node.
    pub held: u64,
    pub lanes: u64,
    /// Threads where commands wait for each other.
    pub batching: u64,
    pub lanes_opened: u64,
    pub lanes_failed: u64,
    /// By node's number.
    pub nodes: Vec<Latency>,
    /// By command's number.
    pub commands_by: Vec<Latency>,
    pub top: Top,
}

impl Stats {
    pub fn merge(&mut self, other: &Stats) {
        for (a, b) in [
            (&mut self.clients, other.clients),
            (&mut self.clients_accepted, other.clients_accepted),
            (&mut self.clients_refused, other.clients_refused),
            (&mut self.clients_closed_slow, other.clients_closed_slow),
            (&mut self.commands, other.commands),
            (&mut self.bytes_in, other.bytes_in),
            (&mut self.bytes_out, other.bytes_out),
            (&mut self.errors_passed, other.errors_passed),
            (&mut self.moved, other.moved),
            (&mut self.asked, other.asked),
            (&mut self.again, other.again),
            (&mut self.held, other.held),
            (&mut self.lanes, other.lanes),
            (&mut self.batching, other.batching),
            (&mut self.lanes_opened, other.lanes_opened),
            (&mut self.lanes_failed, other.lanes_failed),
        ] {
            *a += b;
        }
        for (reason, n) in &other.errors {
            *self.errors.entry(reason).or_insert(0) += n;
        }
        for (mine, theirs) in [(&mut self.nodes, &other.nodes), (&mut self.commands_by, &other.commands_by)] {
            if mine.len() < theirs.len() {
                mine.resize_with(theirs.len(), Latency::default);
            }
            mine.iter_mut().zip(theirs).for_each(|(a, b)| a.merge(b));
        }
        for (key, n) in &other.top.counts {
            *self.top.counts.entry(key.clone()).or_insert(0) += n;
        }
        self.top.seen += other.top.seen;
    }

    pub fn error(&mut self, reason: &'static str) {
        *self.errors.entry(reason).or_insert(0) += 1;
    }

    #[inline]
    pub fn took(&mut self, node: u16, command: u16, us: u64) {
        let (node, command) = (usize::from(node), usize::from(command));
        if self.nodes.len() <= node {
            self.nodes.resize_with(node + 1, Latency::default);
        }
        if self.commands_by.len() <= command {
            self.commands_by.resize_with(command + 1, Latency::default);
        }
        self.nodes[node].add(us);
        self.commands_by[command].add(us);
    }
}

/// The hottest keys, by the space-saving sketch: at most so many counters; a key that is not among them takes the place
/// of the coldest and inherits its count, so counts are never too low.
#[derive(Clone, Debug, Default)]
pub struct Top {
    pub counts: BTreeMap<Vec<u8>, u64>,
    /// Keys counted.
    pub seen: u64,
}

impl Top {
    const COUNTERS: usize = 128;
    /// Longer keys are cut: they share a counter with others that begin alike.
    const KEY_MAX: usize = 128;

    pub fn count(&mut self, key: &[u8]) {
        let key = &key[..key.len().min(Self::KEY_MAX)];
        self.seen += 1;
        if let Some(n) = self.counts.get_mut(key) {
            *n += 1;
            return;
        }
        let mut n = 1;
        if self.counts.len() >= Self::COUNTERS
            && let Some((coldest, least)) = self.counts.iter().min_by_key(|(_, n)| **n).map(|(k, n)| (k.clone(), *n))
        {
            self.counts.remove(&coldest);
            n = least + 1;
        }
        self.counts.insert(key.to_vec(), n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_first_bucket_above_it() {
        let largest = u64::MAX >> 1;
        for (us, bucket) in [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (1023, 10), (1024, 11), (largest, 27)] {
            let mut latency = Latency::default();
            latency.add(us);
            assert_eq!(latency.buckets.iter().position(|n| *n == 1), Some(bucket), "{us} us");
            assert!(bucket == 27 || us < 1 << bucket, "{us} us");
        }
    }

    #[test]
    fn quantiles_of_merged_latencies_are_upper_bucket_bounds() {
        let (mut one, mut other) = (Latency::default(), Latency::default());
        assert_eq!(one.quantile_us(0.99), 0);
        (0..98).for_each(|_| one.add(1));
        (0..2).for_each(|_| other.add(1000));
        one.merge(&other);
        assert_eq!((one.count, one.sum_us), (100, 2098));
        assert_eq!((one.quantile_us(0.5), one.quantile_us(0.99), one.quantile_us(1.0)), (2, 1024, 1024));
    }

    #[test]
    fn a_quantile_beyond_the_last_bounded_bucket_is_the_longest_latency() {
        let (hour, mut latency) = (3_600_000_000, Latency::default());
        latency.add(hour);
        let mut all = Latency::default();
        all.merge(&latency);
        assert_eq!((all.quantile_us(0.5), all.quantile_us(1.0)), (hour + 1, hour + 1));
        assert!(all.bounded().iter().all(|n| *n == 0));
    }

    #[test]
    fn stats_of_workers_with_different_node_counts_are_added_up() {
        let (mut one, mut other) = (Stats::default(), Stats::default());
        one.took(0, 1, 10);
        other.took(2, 1, 10);
        (one.held, other.held) = (1, 2);
        one.error("no_owner");
        other.error("no_owner");
        other.top.count(b"k");
        one.merge(&other);
        let counts: Vec<u64> = one.nodes.iter().map(|l| l.count).collect();
        assert_eq!((counts, one.commands_by[1].count), (vec![1, 0, 1], 2));
        assert_eq!((one.held, one.errors["no_owner"], one.top.seen), (3, 2, 1));
    }

    #[test]
    fn a_hot_key_survives_eviction_and_is_never_undercounted() {
        let mut top = Top::default();
        for n in 0..3000u32 {
            top.count(format!("cold {n}").as_bytes());
            if n % 10 == 0 {
                top.count(b"hot");
            }
        }
        assert_eq!((top.counts.len(), top.seen), (Top::COUNTERS, 3300));
        assert!(top.counts[&b"hot"[..]] >= 300, "{:?}", top.counts.get(&b"hot"[..]));
        // An evicted key hands its count to its successor.
        assert_eq!(top.counts.values().sum::<u64>(), top.seen);
    }
}
