//! Who publishes, when several watchers could: the one whose heartbeat has the smallest name. Nothing is written into the
//! deployment for it; a watcher listens for three heartbeats before it believes that it is alone.

use std::time::{SystemTime, UNIX_EPOCH};

use unslow_topology::messages::Heartbeat;

use crate::Publish;

const MS: u64 = 1_000_000;
const EVERY: u64 = 1000 * MS;
/// Another one that was silent this long is gone.
const GONE: u64 = 2500 * MS;
/// Two that start in the same moment both beat once; so long after that the younger has heard the older.
const CLAIM: u64 = 500 * MS;

/// See the module.
pub struct Publisher {
    settings: Publish,
    /// Begins with the time of the start, so that the oldest stays.
    name: String,
    heard_at: u64,
    beat_at: u64,
    /// Since when it beats.
    claimed_at: Option<u64>,
    leads: bool,
}

impl Publisher {
    pub fn new(settings: Publish, now: u64) -> Publisher {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis());
        let name = format!("{started:013x}-{:08x}", rand::random::<u32>());
        Publisher { settings, name, heard_at: now, beat_at: 0, claimed_at: None, leads: false }
    }

    pub fn leads(&self) -> bool {
        self.leads
    }

    pub fn master_changed(&self) -> bool {
        self.settings.master_changed
    }

    /// A heartbeat of somebody.
    pub fn heard(&mut self, text: &str, now: u64) {
        if let Some(other) = Heartbeat::parse(text)
            && other.watcher < self.name
        {
            self.heard_at = now;
            self.leads = false;
        }
    }

    /// Nobody can be heard just now: who says that nobody speaks?
    pub fn deaf(&mut self, now: u64) {
        self.heard_at = now;
    }

    /// Whether a heartbeat is due; who hears no other one, before and behind the first of its own, leads from there on.
    pub fn due(&mut self, now: u64) -> bool {
        if now <= self.heard_at + GONE {
            (self.claimed_at, self.leads) = (None, false);
            return false;
        }
        let claimed_at = *self.claimed_at.get_or_insert(now);
        self.leads = now >= claimed_at + CLAIM;
        now >= self.beat_at + EVERY
    }

    pub fn beat(&mut self, digest: String, sequence: u64, now: u64) -> String {
        self.beat_at = now;
        Heartbeat { digest, sequence, watcher: self.name.clone() }.text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_that_hear_each_other_the_older_one_publishes_and_the_other_takes_over() {
        let (mut a, mut b) = (Publisher::new(Publish::default(), 0), Publisher::new(Publish::default(), 0));
        (a.name, b.name) = ("1-a".into(), "2-b".into());
        let mut beats = (0, 0);
        for now in (0..20_000).map(|ms| ms * MS) {
            // a is gone from the tenth second on.
            if now < 10_000 * MS && a.due(now) {
                let text = a.beat("d".into(), 1, now);
                b.heard(&text, now);
                beats.0 += 1;
            }
            if b.due(now) {
                let text = b.beat("d".into(), 1, now);
                a.heard(&text, now);
                beats.1 += 1;
                assert!(now > 10_000 * MS, "two published at {} ms", now / MS);
            }
        }
        assert!((7..=8).contains(&beats.0) && (7..=9).contains(&beats.1), "{beats:?}");
    }

    #[test]
    fn of_two_that_start_in_the_same_moment_the_younger_never_leads() {
        let (mut a, mut b) = (Publisher::new(Publish::default(), 0), Publisher::new(Publish::default(), 0));
        (a.name, b.name) = ("1-a".into(), "1-b".into());
        for now in (0..10_000).map(|ms| ms * MS) {
            // Neither has heard the other when both say their first word.
            let (first, second) = (a.due(now), b.due(now));
            if second {
                a.heard(&b.beat("d".into(), 1, now), now);
            }
            if first {
                b.heard(&a.beat("d".into(), 1, now), now);
            }
            assert!(!b.leads(), "at {} ms", now / MS);
        }
        assert!(a.leads());
    }

    #[test]
    fn a_deaf_watcher_never_leads() {
        let mut publisher = Publisher::new(Publish::default(), 0);
        for now in (0..10_000).map(|ms| ms * MS) {
            publisher.deaf(now);
            assert!(!publisher.due(now) && !publisher.leads(), "at {} ms", now / MS);
        }
        // 2.5 s of silence after it was last deaf, then half a second for its claim.
        let led = (10_000..20_000u64).find(|&ms| {
            publisher.due(ms * MS);
            publisher.leads()
        });
        assert_eq!(led, Some(13_000));
        publisher.deaf(13_001 * MS);
        publisher.due(13_001 * MS);
        assert!(!publisher.leads());
    }

    #[test]
    fn a_leader_steps_down_only_for_an_older_watcher() {
        let mut publisher = Publisher::new(Publish::default(), 0);
        publisher.name = "2-b".into();
        let mut now = 0;
        while !publisher.leads() {
            now += MS;
            publisher.due(now);
        }
        for (text, stays) in [("d 1 3-c", true), ("d 1 2-b", true), ("no heartbeat", true), ("d 1 1-a", false)] {
            publisher.heard(text, now);
            publisher.due(now);
            assert_eq!(publisher.leads(), stays, "{text}");
        }
    }
}
