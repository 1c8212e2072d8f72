//! A run that has ended, as the report tells it, with what makes its figures doubtful.

use std::cmp::Reverse;

use super::Session;
use crate::doubts::{Doubt, Evidence};
use crate::report::{CommandRun, Errors, Event, Generator, Latency, PubSub, Run, Second, ServerRun, points, round};
use crate::stats::Interval;
use crate::worker::Summary;

/// A run that has ended.
pub(super) struct Ended {
    /// What came of it, all seconds and threads together.
    pub total: Interval,
    /// The same second by second.
    pub timeline: Vec<Second>,
    /// What happened when.
    pub events: Vec<Event>,
    /// What each thread says of itself.
    pub summaries: Vec<Summary>,
    /// From the start to the last answer, and at least to the end of a schedule.
    pub seconds: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
    /// What each server spent on it.
    pub servers: Vec<ServerRun>,
}

impl Session {
    pub(super) fn judge(&self, ended: Ended) -> Run {
        let Ended { total, timeline, events, summaries, seconds, interrupted, servers } = ended;
        let all = total.all();
        let (counts, refused) = (total.counts, total.refused.len());
        let load_s = summaries.iter().map(|s| s.load_ns).max().unwrap_or(0) as f64 / 1e9;
        let drain_s = round((seconds - load_s).max(0.0));
        let cpu_ns: u64 = summaries.iter().map(|s| s.cpu_ns).sum();
        let busy: Vec<f64> =
            summaries.iter().map(|s| round(s.cpu_ns as f64 / s.took_ns.max(1) as f64)).map(|b| b.min(1.0)).collect();
        let lateness = (self.load.open_loop).then(|| Latency::of(&total.lateness));
        let throughput = if seconds > 0.0 { counts.answered as f64 / seconds } else { 0.0 };
        let evidence = Evidence {
            settings: &self.settings,
            load: &self.load,
            workload: &self.workload,
            total: &total,
            all: &all,
            lateness: lateness.as_ref(),
            busy: &busy,
            throughput,
            load_s,
            drain_s,
            interrupted,
        };
        let (doubts, requests, messages) = (evidence.doubts(), evidence.requests(), evidence.messages());
        let server_cpu_s: Option<f64> = servers.iter().map(|s| s.cpu_s).sum::<Option<f64>>().filter(|s| *s > 0.1);
        Run {
            seconds: round(seconds),
            drain_s,
            requests,
            answered: counts.answered,
            refused,
            unanswered: counts.unanswered,
            throughput_per_s: round(throughput),
            latency: Latency::of(&all),
            percentiles: points(&all),
            commands: self.command_runs(&total),
            pool_wait: (!total.wait.is_empty()).then(|| Latency::of(&total.wait)),
            lateness,
            refused_latency: (refused > 0).then(|| Latency::of(&total.refused)),
            errors: errors_of(&total),
            verified_values: counts.verified,
            wrong_values: counts.wrong,
            moved: counts.moved,
            ask: counts.ask,
            received_bytes_per_s: if seconds > 0.0 { (counts.received as f64 / seconds).round() } else { 0.0 },
            valid: !doubts.iter().any(Doubt::spoils),
            doubts: doubts.iter().map(Doubt::to_string).collect(),
            interrupted,
            generator: Generator {
                cpu_us_per_request: round(cpu_ns as f64 / 1e3 / requests.max(1) as f64),
                thread_busy_share: busy,
            },
            server_cpu_us_per_request: server_cpu_s
                .filter(|_| counts.answered + refused > 0)
                .map(|s| round(s * 1e6 / (counts.answered + refused) as f64)),
            servers,
            timeline,
            events,
            pubsub: (self.settings.subscribers > 0).then(|| PubSub {
                subscribers: self.settings.subscribers,
                delivered: total.delivered.len(),
                expected: messages,
                latency: Latency::of(&total.delivered),
            }),
        }
    }

    fn command_runs(&self, total: &Interval) -> Vec<CommandRun> {
        let seen = total.latency.iter().zip(&total.nulls);
        let commands = self.workload.commands.iter().zip(seen);
        let runs = commands.map(|(command, (latency, nulls))| CommandRun {
            name: command.name.clone(),
            latency: Latency::of(latency),
            null_share: round(*nulls as f64 / latency.len().max(1) as f64),
        });
        runs.collect()
    }
}

/// Errors by kind, the most frequent first.
fn errors_of(total: &Interval) -> Vec<Errors> {
    let kinds = total.errors.iter();
    let mut errors: Vec<Errors> =
        kinds.map(|k| Errors { kind: k.name.clone(), count: k.count, example: k.example.clone() }).collect();
    errors.sort_by_key(|e| Reverse(e.count));
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Workload;

    /// A session that has not asked anybody anything, and never will.
    fn session(rate: Option<f64>) -> Session {
        let settings = crate::settings::tests::settings(rate);
        let kind = unslow_topology::DeploymentKind::Standalone;
        let topology = crate::route::group(kind, "10.0.0.1:6379".into(), Vec::new());
        let workload = Workload::compile(&settings.spec, None).unwrap();
        let load = settings.load();
        Session::new(settings, workload, topology, load)
    }

    /// 1,000 answers, each within a millisecond, which nobody was late for.
    fn total() -> Interval {
        let mut total = Interval::new(2);
        total.latency[0].record_n(1_000_000, 1000).unwrap();
        total.lateness.record_n(10_000, 1000).unwrap();
        total.counts.answered = 1000;
        total
    }

    /// Judged after a load of a second; the last answer came so much later, and the thread ran for so long.
    fn judged(rate: Option<f64>, total: Interval, drain_s: f64, busy_s: f64) -> Run {
        let seconds = 1.0 + drain_s;
        let ns = |s: f64| (s * 1e9) as u64;
        let summary = Summary { cpu_ns: ns(busy_s), took_ns: ns(seconds), load_ns: ns(1.0), failed: None };
        let (timeline, events, servers) = (Vec::new(), Vec::new(), Vec::new());
        let summaries = vec![summary];
        session(rate).judge(Ended { total, timeline, events, summaries, seconds, interrupted: false, servers })
    }

    const RATE: Option<f64> = Some(1000.0);

    #[test]
    fn a_plain_run_has_no_doubts_and_its_figures_add_up() {
        let run = judged(RATE, total(), 0.0, 0.2);
        assert!(run.valid && run.doubts.is_empty(), "{:?}", run.doubts);
        assert_eq!((run.requests, run.answered, run.refused, run.unanswered), (1000, 1000, 0, 0));
        assert_eq!((run.throughput_per_s, run.seconds, run.drain_s), (1000.0, 1.0, 0.0));
        assert_eq!((run.generator.cpu_us_per_request, &run.generator.thread_busy_share[..]), (200.0, &[0.2][..]));
        assert_eq!((run.latency.count, run.commands[0].latency.count, run.commands[1].latency.count), (1000, 1000, 0));
        assert!(run.lateness.is_some() && judged(None, total(), 0.0, 0.2).lateness.is_none());
    }

    #[test]
    fn a_doubt_that_spoils_the_figures_makes_a_run_invalid_and_another_does_not() {
        let behind = judged(RATE, total(), 1.0, 0.2);
        assert!(behind.valid && behind.doubts[0].starts_with("1,000 requests/s were asked for"), "{behind:?}");
        let busy = judged(None, total(), 0.0, 0.96);
        assert!(busy.valid && busy.doubts[0].contains("busy 96 % of the time; give it --threads 2"), "{busy:?}");
        let mut refused = Interval::new(2);
        refused.refused.record_n(1_000_000, 7).unwrap();
        (0..7).for_each(|_| refused.error("OOM", "OOM command not allowed"));
        let run = judged(None, refused, 0.0, 0.2);
        assert_eq!((run.valid, run.requests, run.refused, run.throughput_per_s), (false, 7, 7, 0.0));
        assert!(run.doubts[0].contains("no request was answered") && run.doubts[0].contains("OOM command"), "{run:?}");
    }
}
