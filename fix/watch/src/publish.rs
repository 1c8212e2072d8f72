//! Who publishes, when several watchers could: the one whose heartbeat has the smallest name. Nothing is written into
//! the deployment for it; a watcher listens for three heartbeats before it believes that it is alone.

use std::time::{SystemTime, UNIX_EPOCH};

use unslow_topology::messages::{DIGEST, Heartbeat};

use crate::Publish;

const MS: u64 = 1_000_000;
const EVERY: u64 = 1000 * MS;
/// Another one that was silent this long is gone.
const GONE: u64 = 2500 * MS;
/// Two that start in the same moment both beat once; so long after that the younger has heard the older.
const CLAIM: u64 = 500 * MS;
/// No watcher started before 2026, in milliseconds of Unix time.
const FIRST_START_MS: u64 = 1_767_225_600_000;
/// How far the clocks of two machines may differ.
const CLOCKS_DIFFER_MS: u64 = 24 * 3600 * 1000;
/// A note about others at most this often, whatever they publish.
const NOTE_EVERY: u64 = 60_000 * MS;

/// Tells clients about changes through the servers' own channels.
pub struct Publisher {
    settings: Publish,
    /// Begins with the time of the start, so that the oldest stays.
    name: String,
    heard_at: u64,
    beat_at: u64,
    /// Since when it beats.
    claimed_at: Option<u64>,
    leads: bool,
    /// The other one that the operator was told of last, and when.
    noted: Option<(String, u64)>,
}

impl Publisher {
    pub fn new(settings: Publish, now: u64) -> Publisher {
        let name = format!("{:013x}-{:08x}", unix_ms(), rand::random::<u32>());
        Publisher { settings, name, heard_at: now, beat_at: 0, claimed_at: None, leads: false, noted: None }
    }

    pub fn leads(&self) -> bool {
        self.leads
    }

    pub fn master_changed(&self) -> bool {
        self.settings.master_changed
    }

    /// A heartbeat on the channel. Returns what the operator should know: everybody who may publish there can send one.
    pub fn heard(&mut self, text: &str, now: u64) -> Option<String> {
        let other = Heartbeat::parse(text)?.watcher;
        if other >= self.name {
            return None;
        }
        let plausible = FIRST_START_MS..=unix_ms() + CLOCKS_DIFFER_MS;
        let started = started_ms(&other).filter(|ms| plausible.contains(ms));
        if started.is_some() {
            (self.heard_at, self.leads) = (now, false);
        }
        let told = self.noted.as_ref().is_some_and(|(name, at)| *name == other || now < at + NOTE_EVERY);
        if told {
            return None;
        }
        let shown: String = other.chars().take(64).collect();
        self.noted = Some((other, now));
        Some(match started {
            Some(ms) => {
                let hours = unix_ms().saturating_sub(ms) / 3_600_000;
                format!(
                    "standing by: watcher {shown} (started {hours} h ago by its own clock) publishes; this one takes \
                     over when it falls silent"
                )
            }
            None => {
                format!(
                    "ignored a heartbeat on {DIGEST} from {shown:?}: not a valid watcher name; check who may PUBLISH \
                     there"
                )
            }
        })
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

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

/// When the watcher of this name started; `None` when no watcher has such a name.
fn started_ms(name: &str) -> Option<u64> {
    let (started, random) = name.split_once('-')?;
    let hex = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    (hex(started, 13) && hex(random, 8)).then(|| u64::from_str_radix(started, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a watcher that started so many milliseconds after the first one could.
    fn name(after_ms: u64, random: u32) -> String {
        format!("{:013x}-{random:08x}", FIRST_START_MS + after_ms)
    }

    #[test]
    fn of_two_that_hear_each_other_the_older_one_publishes_and_the_other_takes_over() {
        let (mut a, mut b) = (Publisher::new(Publish::default(), 0), Publisher::new(Publish::default(), 0));
        (a.name, b.name) = (name(1, 0xa), name(2, 0xb));
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
        (a.name, b.name) = (name(1, 0xa), name(1, 0xb));
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
        publisher.name = name(2, 0xb);
        let mut now = 0;
        while !publisher.leads() {
            now += MS;
            publisher.due(now);
        }
        let beat = |name: String| format!("d 1 {name}");
        for (text, stays) in [
            (beat(name(3, 0xc)), true),
            (beat(name(2, 0xb)), true),
            ("no heartbeat".into(), true),
            (beat(name(1, 0xa)), false),
        ] {
            publisher.heard(&text, now);
            publisher.due(now);
            assert_eq!(publisher.leads(), stays, "{text}");
        }
    }

    #[test]
    fn only_a_name_that_a_watcher_can_have_silences_one() {
        let mut publisher = Publisher::new(Publish::default(), 0);
        let mut now = 0;
        while !publisher.leads() {
            now += MS;
            publisher.due(now);
        }
        for forged in
            ["0", "!", "-", "0000000000000-00000000", "0-0", "019b", "019B76DA5801-0000000A", "000019b76da58-01"]
        {
            publisher.heard(&format!("d 1 {forged}"), now);
            publisher.due(now);
            assert!(publisher.leads(), "{forged}");
        }
        let before = format!("{:013x}-00000000", FIRST_START_MS - 1);
        assert!(
            publisher.heard(&format!("d 1 {before}"), now + NOTE_EVERY).is_some_and(|note| note.contains("ignored"))
        );
        publisher.due(now);
        assert!(publisher.leads());
        // One that has is named to the operator, once.
        let other = format!("d 1 {}", name(1, 0xa));
        let note = publisher.heard(&other, now + 2 * NOTE_EVERY).expect("a note");
        assert!(note.contains(&name(1, 0xa)), "{note}");
        assert!(!publisher.leads());
        assert_eq!(publisher.heard(&other, now + 4 * NOTE_EVERY), None);
    }

    #[test]
    fn many_names_make_few_notes() {
        let mut publisher = Publisher::new(Publish::default(), 0);
        let notes = (0..100).filter_map(|n| publisher.heard(&format!("d 1 {}", name(n, 0)), n * 1000 * MS));
        assert_eq!(notes.count(), 2);
    }
}
