//! When requests are due. In an open loop that is decided before the first one is sent, and no answer changes it.

use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use rand_distr::Exp1;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::workload::Workload;

/// How requests arrive at a given rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Arrivals {
    /// Evenly spaced.
    Constant,
    /// Independent of each other, as the requests of many users are.
    Poisson,
    /// At the times of the recording.
    Recorded,
}

/// The due times of one of `threads` generators, in order.
pub struct Schedule {
    arrivals: Arrivals,
    /// Rate of this thread, and the end of it in ns since the start.
    steps: Vec<(f64, f64)>,
    step: usize,
    /// Where the step began, and how many have been due since.
    from: f64,
    count: u64,
    /// Share of an interval this thread comes behind the first.
    phase: f64,
    random: SmallRng,
    recording: Option<(Arc<Workload>, u64, u64, f64)>,
}

impl Schedule {
    /// `steps`: rate of all threads in requests per second, each for an equal part of `length_ns`.
    pub fn new(
        arrivals: Arrivals,
        steps: &[f64],
        length_ns: u64,
        thread: usize,
        threads: usize,
        seed: u64,
    ) -> Schedule {
        let part = length_ns as f64 / steps.len() as f64;
        Schedule {
            arrivals,
            steps: steps.iter().enumerate().map(|(i, r)| (r / threads as f64, part * (i + 1) as f64)).collect(),
            step: 0,
            from: 0.0,
            count: 0,
            phase: thread as f64 / threads as f64,
            random: SmallRng::seed_from_u64(seed ^ (thread as u64) << 32),
            recording: None,
        }
    }

    /// At the recorded times, `speed` times as fast.
    pub fn recorded(workload: Arc<Workload>, length_ns: u64, thread: usize, threads: usize, speed: f64) -> Schedule {
        let mut schedule = Schedule::new(Arrivals::Recorded, &[1.0], length_ns, thread, threads, 0);
        schedule.recording = Some((workload, thread as u64, threads as u64, speed));
        schedule
    }

    /// When the next request is due, in ns since the start; `None` behind the end.
    #[inline]
    pub fn next(&mut self) -> Option<u64> {
        if let Some((workload, at, threads, speed)) = &mut self.recording {
            let recording = workload.recording.as_ref()?;
            let due = recording.due_ns(*at) as f64 / *speed;
            *at += *threads;
            return (due < self.steps[0].1).then_some(due as u64);
        }
        loop {
            let (rate, until) = *self.steps.get(self.step)?;
            let interval = 1e9 / rate;
            let due = match self.arrivals {
                Arrivals::Poisson => {
                    let gap: f64 = self.random.sample(Exp1);
                    self.from + gap * interval
                }
                _ => self.from + (self.count as f64 + self.phase) * interval,
            };
            if due >= until {
                self.step += 1;
                (self.from, self.count) = (until, 0);
                continue;
            }
            match self.arrivals {
                Arrivals::Poisson => self.from = due,
                _ => self.count += 1,
            }
            return Some(due as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn all(mut schedule: Schedule) -> Vec<u64> {
        std::iter::from_fn(move || schedule.next()).collect()
    }

    #[test]
    fn constant_arrivals_are_even_over_all_threads_together() {
        let mut due: Vec<u64> =
            (0..3).flat_map(|t| all(Schedule::new(Arrivals::Constant, &[3000.0], SECOND, t, 3, 0))).collect();
        due.sort_unstable();
        assert_eq!(due.len(), 3000);
        assert!(due.windows(2).all(|w| (333_000..=334_000).contains(&(w[1] - w[0]))));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread() {
        let due = all(Schedule::new(Arrivals::Poisson, &[10_000.0], 10 * SECOND, 0, 1, 7));
        assert!((98_500..101_500).contains(&due.len()), "{}", due.len());
        let gaps: Vec<f64> = due.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let sd = (gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((sd / mean - 1.0).abs() < 0.03, "an exponential's deviation is its mean: {sd} {mean}");
    }

    #[test]
    fn steps_change_the_rate_at_their_time() {
        let due = all(Schedule::new(Arrivals::Constant, &[1000.0, 4000.0], 2 * SECOND, 0, 1, 0));
        assert_eq!((due.iter().filter(|d| **d < SECOND).count(), due.len()), (1000, 5000));
    }
}
