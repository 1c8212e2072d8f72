//! What makes a run's figures doubtful: each doubt with what was seen, as the report prints it.
//!
//! The generator doubts itself first. A doubt that spoils the figures makes the run invalid ([`Doubt::spoils`]); the
//! others say what else to know of them. Nothing here asks or measures: a case is a row in a test.

use std::fmt;
use std::time::Duration;

use hdrhistogram::Histogram;
use unslow_units::{count, percent, time, time_us};

use crate::report::{Latency, Load};
use crate::settings::Settings;
use crate::stats::Interval;
use crate::worker::QUEUE_FULL;
use crate::workload::Workload;

/// Something to know of a run's figures.
#[derive(Clone, Debug, PartialEq)]
pub enum Doubt {
    /// The generator looked at requests too late: its own delay is in the latency.
    Late {
        /// At p99.9.
        us: f64,
        /// At most so much is allowed.
        allowed_us: f64,
    },
    /// It was late by less, and by a good part of the tail.
    LateInTail {
        /// At p99.9.
        us: f64,
    },
    /// A closed loop in which a thread had no time left.
    Bottleneck {
        /// Share of the run that the busiest was on a processor.
        busy: f64,
        /// Threads there were.
        threads: usize,
    },
    /// Requests were dropped, since too many waited.
    QueueFull,
    /// An open loop that was not kept up with.
    Behind {
        /// Requests per second that were asked for and answered; none where a recording gave the pace.
        rates: Option<(f64, f64)>,
        /// Who did not.
        who: Laggard,
        /// From the end of the load to the last answer.
        drain_s: f64,
    },
    /// Most of what `get` asked for is not there.
    NullAnswers {
        /// Share of null answers.
        share: f64,
        /// The command's name in the mix.
        command: String,
    },
    /// `verify` had next to nothing to compare.
    FewCompared(u64),
    /// `verify` found values that this seed does not write.
    WrongValues {
        /// So many.
        wrong: u64,
        /// Of so many.
        verified: u64,
        /// The seed.
        seed: u64,
    },
    /// Requests without an answer.
    Unanswered(u64),
    /// Not one request was answered.
    NothingAnswered {
        /// The text of the most frequent error.
        example: Option<String>,
    },
    /// Messages that no subscriber got.
    Undelivered {
        /// So many should have come.
        expected: u64,
        /// So many came.
        delivered: u64,
    },
    /// A closed loop asked nothing while an answer took this long.
    ClosedLoop(Duration),
}

/// Who did not keep up with an open loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Laggard {
    /// The generator, which was late itself.
    Generator,
    /// The servers, on connections that requests had to wait for.
    Connections,
    /// The servers.
    Servers,
}

impl Doubt {
    /// Whether the figures cannot be believed.
    pub fn spoils(&self) -> bool {
        use Doubt::*;
        matches!(self, Late { .. } | QueueFull | WrongValues { .. } | NothingAnswered { .. })
    }
}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.spoils() {
            f.write_str("invalid: ")?;
        }
        match self {
            Doubt::Late { us, allowed_us } => write!(
                f,
                "the generator itself was late (p99.9 {}, at most {} are allowed); its latency is in these figures. \
                 Give it --threads, a processor of its own, or a lower --rate",
                time_us(*us),
                time_us(*allowed_us)
            ),
            Doubt::LateInTail { us } => write!(
                f,
                "the generator itself was up to {} late at p99.9, which is in the tail above; a busy machine does that",
                time_us(*us)
            ),
            Doubt::Bottleneck { busy, threads } => write!(
                f,
                "the generator was the bottleneck: a thread of it was busy {} of the time; give it --threads {}",
                percent(*busy),
                threads * 2
            ),
            Doubt::QueueFull => {
                f.write_str("more requests waited than could be kept; those that were dropped are in no percentile")
            }
            Doubt::Behind { rates, who, drain_s } => {
                match rates {
                    Some((asked, answered)) => {
                        write!(f, "{} requests/s were asked for and {}/s answered", count(*asked), count(*answered))?;
                    }
                    None => f.write_str("the recording's pace was not kept")?,
                }
                write!(f, ": {who}; the last answer came {} after the end of the load", time_us(drain_s * 1e6))
            }
            Doubt::NullAnswers { share, command } => write!(
                f,
                "{} of {command}'s answers were null: the keys are not there (--preload writes them)",
                percent(*share)
            ),
            Doubt::FewCompared(verified) => {
                write!(f, "only {verified} values could be compared: values of 64 KiB and more mostly cannot")
            }
            Doubt::WrongValues { wrong, verified, seed } => write!(
                f,
                "{wrong} of {verified} values were not the value that this seed writes (--seed {seed}); were the keys \
                 written by another run?"
            ),
            Doubt::Unanswered(n) => {
                write!(f, "{n} requests were never answered; they are in the latency at the age they were given up")
            }
            Doubt::NothingAnswered { example: Some(example) } => {
                write!(f, "no request was answered; most went wrong like this: {example}")
            }
            Doubt::NothingAnswered { example: None } => f.write_str("no request was answered"),
            Doubt::Undelivered { expected, delivered } => {
                write!(f, "of {expected} messages {delivered} reached a subscriber")
            }
            Doubt::ClosedLoop(longest) => write!(
                f,
                "closed loop: while an answer took {} its caller asked nothing else, so these percentiles leave out \
                 what would have waited; --rate does not",
                time(*longest)
            ),
        }
    }
}

impl fmt::Display for Laggard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Laggard::Generator => "the generator did not keep up",
            Laggard::Connections => {
                "the servers did not keep up on these connections (requests waited for one: --connections)"
            }
            Laggard::Servers => "the servers did not keep up",
        })
    }
}

/// How busy the busiest thread was, where that decided how much a closed loop could ask.
pub fn bottleneck(load: &Load, busy: &[f64]) -> Option<f64> {
    let most = busy.iter().copied().fold(0.0, f64::max);
    (!load.open_loop && most > 0.95).then_some(most)
}

/// What a run is judged by.
pub struct Evidence<'a> {
    /// As it was asked for.
    pub settings: &'a Settings,
    /// As the report tells it.
    pub load: &'a Load,
    /// What was asked.
    pub workload: &'a Workload,
    /// What came of it, all seconds and threads together.
    pub total: &'a Interval,
    /// Latency of all commands together.
    pub all: &'a Histogram<u64>,
    /// How late the generator was, in an open loop.
    pub lateness: Option<&'a Latency>,
    /// Share of the run that each thread was on a processor.
    pub busy: &'a [f64],
    /// Answers per second.
    pub throughput: f64,
    /// From the start to the end of the load.
    pub load_s: f64,
    /// From there to the last answer.
    pub drain_s: f64,
    /// Whether it was ended before its time.
    pub interrupted: bool,
}

impl Evidence<'_> {
    /// Every doubt there is, the generator's own first.
    pub fn doubts(&self) -> Vec<Doubt> {
        let late = self.late();
        let is_late = matches!(late, Some(Doubt::Late { .. }));
        let load = [late, self.bottleneck(), self.queue_full(), self.behind(is_late)];
        let answers = [
            self.few_compared(),
            self.wrong_values(),
            self.unanswered(),
            self.nothing_answered(),
            self.undelivered(),
            self.closed_loop(),
        ];
        load.into_iter().flatten().chain(self.null_answers()).chain(answers.into_iter().flatten()).collect()
    }

    /// Requests that were answered, refused or never answered.
    pub fn requests(&self) -> u64 {
        self.total.counts.answered + self.total.refused.len() + self.total.counts.unanswered
    }

    /// Messages that should have reached subscribers: answered PUBLISH, times subscribers.
    pub fn messages(&self) -> u64 {
        let published: u64 = (self.workload.commands.iter().zip(&self.total.latency))
            .filter(|(c, _)| c.template.name() == "PUBLISH")
            .map(|(_, h)| h.len())
            .sum();
        published.saturating_sub(self.total.counts.unanswered) * self.settings.subscribers as u64
    }

    fn late(&self) -> Option<Doubt> {
        let (us, allowed_us) = (self.lateness?.us_p99_9, self.load.lateness_us_allowed);
        if us > allowed_us {
            return Some(Doubt::Late { us, allowed_us });
        }
        (us > 200.0 && us > 0.2 * Latency::of(self.all).us_p99_9).then_some(Doubt::LateInTail { us })
    }

    fn bottleneck(&self) -> Option<Doubt> {
        let threads = self.settings.threads;
        bottleneck(self.load, self.busy).map(|busy| Doubt::Bottleneck { busy, threads })
    }

    fn queue_full(&self) -> Option<Doubt> {
        self.total.errors.iter().any(|k| k.name == QUEUE_FULL).then_some(Doubt::QueueFull)
    }

    fn behind(&self, is_late: bool) -> Option<Doubt> {
        let queue_full = self.queue_full().is_some();
        // Who keeps up has answered all but the last ones when the load ends.
        let slow = self.drain_s > (self.load_s * 0.02).max(0.1);
        let behind = queue_full || slow || self.total.counts.unanswered * 100 > self.requests();
        if !self.load.open_loop || self.interrupted || !behind {
            return None;
        }
        let wait = &self.total.wait;
        let who = match !wait.is_empty() && wait.mean() > 0.5 * self.all.mean() {
            _ if is_late && !queue_full => Laggard::Generator,
            true => Laggard::Connections,
            false => Laggard::Servers,
        };
        let rates = &self.load.rate_per_s;
        let asked = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
        let rates = (asked > 0.0).then_some((asked, self.throughput));
        Some(Doubt::Behind { rates, who, drain_s: self.drain_s })
    }

    fn null_answers(&self) -> Vec<Doubt> {
        let seen = self.total.latency.iter().zip(&self.total.nulls);
        let shares = self.workload.commands.iter().zip(seen).map(|(command, (latency, nulls))| {
            let share = *nulls as f64 / latency.len().max(1) as f64;
            (command, share)
        });
        shares
            .filter(|(command, share)| command.template.name() == "GET" && *share > 0.5)
            .map(|(command, share)| Doubt::NullAnswers { share, command: command.name.clone() })
            .collect()
    }

    fn few_compared(&self) -> Option<Doubt> {
        let counts = &self.total.counts;
        let few = self.workload.verify && counts.verified < counts.answered / 1000;
        few.then_some(Doubt::FewCompared(counts.verified))
    }

    fn wrong_values(&self) -> Option<Doubt> {
        let counts = &self.total.counts;
        let (wrong, verified, seed) = (counts.wrong, counts.verified, self.settings.spec.seed);
        (wrong > 0).then_some(Doubt::WrongValues { wrong, verified, seed })
    }

    fn unanswered(&self) -> Option<Doubt> {
        let unanswered = self.total.counts.unanswered;
        (unanswered > 0).then_some(Doubt::Unanswered(unanswered))
    }

    fn nothing_answered(&self) -> Option<Doubt> {
        let most = || self.total.errors.iter().max_by_key(|k| k.count).map(|k| k.example.clone());
        (self.total.counts.answered == 0).then(|| Doubt::NothingAnswered { example: most() })
    }

    fn undelivered(&self) -> Option<Doubt> {
        let (expected, delivered) = (self.messages(), self.total.delivered.len());
        (delivered < expected).then_some(Doubt::Undelivered { expected, delivered })
    }

    fn closed_loop(&self) -> Option<Doubt> {
        let longest = self.all.max();
        let stood_still = longest > 100_000_000 && longest > 20 * self.all.value_at_quantile(0.5);
        (!self.load.open_loop && stood_still).then_some(Doubt::ClosedLoop(Duration::from_nanos(longest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Spec;

    const RATE: Option<f64> = Some(1000.0);
    const NONE: [Doubt; 0] = [];

    /// A load of a second, and what it is judged by; nothing is wrong with it.
    struct Case {
        settings: Settings,
        workload: Workload,
        total: Interval,
        busy: Vec<f64>,
        drain_s: f64,
        interrupted: bool,
    }

    /// 1,000 answers, each within a millisecond, which nobody was late for.
    fn plain(rate: Option<f64>) -> Case {
        let settings = crate::settings::tests::settings(rate);
        let workload = Workload::compile(&settings.spec, None).unwrap();
        let mut total = Interval::new(workload.commands.len());
        total.latency[0].record_n(1_000_000, 1000).unwrap();
        total.lateness.record_n(10_000, 1000).unwrap();
        total.counts.answered = 1000;
        Case { settings, workload, total, busy: vec![0.2], drain_s: 0.0, interrupted: false }
    }

    impl Case {
        fn doubts(&self) -> Vec<Doubt> {
            let load = crate::report::tests::load(self.settings.rate.as_ref().map(|r| r[0]));
            let lateness = load.open_loop.then(|| Latency::of(&self.total.lateness));
            let evidence = Evidence {
                settings: &self.settings,
                load: &load,
                workload: &self.workload,
                total: &self.total,
                all: &self.total.all(),
                lateness: lateness.as_ref(),
                busy: &self.busy,
                throughput: self.total.counts.answered as f64 / (1.0 + self.drain_s),
                load_s: 1.0,
                drain_s: self.drain_s,
                interrupted: self.interrupted,
            };
            evidence.doubts()
        }

        /// The only doubt there is.
        fn doubt(&self) -> Doubt {
            let mut all = self.doubts();
            assert_eq!(all.len(), 1, "{all:?}");
            all.remove(0)
        }
    }

    /// This many of 1,000 requests were looked at so late.
    fn late(of_1000: u64, ns: u64) -> Case {
        let mut case = plain(RATE);
        case.total.lateness.reset();
        case.total.lateness.record_n(10_000, 1000 - of_1000).unwrap();
        case.total.lateness.record_n(ns, of_1000).unwrap();
        case
    }

    #[test]
    fn nothing_is_doubted_in_a_plain_run() {
        assert_eq!((plain(RATE).doubts(), plain(None).doubts()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn a_generator_that_was_late_for_a_thousandth_of_the_requests_spoils_its_run() {
        assert_eq!(late(1, 6_000_000).doubts(), NONE, "only the very last one");
        let spoilt = late(2, 6_000_000).doubt();
        assert!(matches!(spoilt, Doubt::Late { us, allowed_us: 5000.0 } if us >= 6000.0), "{spoilt:?}");
        assert!(spoilt.spoils() && spoilt.to_string().starts_with("invalid: the generator itself was late (p99.9 6"));
    }

    #[test]
    fn a_generator_that_was_late_in_the_tail_is_told() {
        let told = late(2, 4_000_000).doubt();
        assert!(matches!(told, Doubt::LateInTail { .. }) && !told.spoils(), "{told:?}");
        assert!(told.to_string().starts_with("the generator itself was up to 4 ms late at p99.9"), "{told}");
    }

    #[test]
    fn a_thread_without_time_left_is_the_bottleneck_of_a_closed_loop_alone() {
        let busy = |rate| Case { busy: vec![0.3, 0.96], ..plain(rate) };
        assert_eq!(busy(RATE).doubts(), NONE);
        let told = busy(None).doubt();
        assert_eq!(told, Doubt::Bottleneck { busy: 0.96, threads: 1 });
        let text = "the generator was the bottleneck: a thread of it was busy 96 % of the time; give it --threads 2";
        assert_eq!(told.to_string(), text);
    }

    #[test]
    fn requests_that_were_dropped_spoil_a_run() {
        let mut dropped = plain(RATE);
        dropped.total.error(QUEUE_FULL, "two million requests wait for one node already");
        let all = dropped.doubts();
        assert!(matches!(all[..], [Doubt::QueueFull, Doubt::Behind { who: Laggard::Servers, .. }]), "{all:?}");
        assert!(all[0].to_string().starts_with("invalid: more requests waited than could be kept"), "{}", all[0]);
    }

    #[test]
    fn a_load_that_was_not_kept_up_with_names_who_did_not() {
        let behind = |drain_s: f64, unanswered: u64| {
            let mut case = Case { drain_s, ..plain(RATE) };
            case.total.counts.unanswered = unanswered;
            case
        };
        assert_eq!(behind(0.09, 0).doubts(), NONE);
        assert!(matches!(behind(0.0, 11).doubts()[..], [Doubt::Behind { .. }, Doubt::Unanswered(11)]));
        let text = behind(1.0, 0).doubt().to_string();
        assert_eq!(
            text,
            "1,000 requests/s were asked for and 500/s answered: the servers did not keep up; the last answer came 1 s \
             after the end of the load"
        );
        let mut waited = behind(1.0, 0);
        waited.total.wait.record_n(900_000, 1000).unwrap();
        assert!(waited.doubt().to_string().contains("requests waited for one: --connections"));
        let late = Case { drain_s: 1.0, ..late(2, 6_000_000) }.doubts();
        assert!(matches!(late[..], [Doubt::Late { .. }, Doubt::Behind { who: Laggard::Generator, .. }]), "{late:?}");
        assert_eq!(Case { interrupted: true, ..behind(1.0, 0) }.doubts(), NONE);
        let recorded = Doubt::Behind { rates: None, who: Laggard::Servers, drain_s: 1.0 }.to_string();
        assert!(recorded.starts_with("the recording's pace was not kept: the servers"), "{recorded}");
    }

    #[test]
    fn keys_that_are_not_there_are_told_for_each_get() {
        let mut empty = plain(None);
        empty.total.nulls[0] = 500;
        assert_eq!(empty.doubts(), NONE);
        empty.total.nulls[0] = 600;
        let told = empty.doubt();
        assert_eq!(told, Doubt::NullAnswers { share: 0.6, command: "get".into() });
        assert!(told.to_string().starts_with("60 % of get's answers were null"), "{told}");
    }

    #[test]
    fn a_verify_that_could_compare_next_to_nothing_is_told() {
        let mut unseen = plain(None);
        unseen.workload = Workload::compile(&Spec { verify: true, ..Spec::default() }, None).unwrap();
        unseen.total.counts.verified = 1;
        assert_eq!(unseen.doubts(), NONE);
        unseen.total.counts.verified = 0;
        assert_eq!(unseen.doubt(), Doubt::FewCompared(0));
        assert!(Doubt::FewCompared(7).to_string().starts_with("only 7 values could be compared"));
    }

    #[test]
    fn wrong_values_spoil_a_run() {
        let mut wrong = plain(None);
        (wrong.total.counts.verified, wrong.total.counts.wrong) = (900, 1);
        let told = wrong.doubt();
        assert_eq!((&told, told.spoils()), (&Doubt::WrongValues { wrong: 1, verified: 900, seed: 1 }, true));
        assert!(told.to_string().starts_with("invalid: 1 of 900 values were not the value that this seed writes"));
    }

    #[test]
    fn requests_without_an_answer_are_told() {
        let mut silent = plain(None);
        silent.total.counts.unanswered = 3;
        assert_eq!(silent.doubt(), Doubt::Unanswered(3));
        assert!(Doubt::Unanswered(3).to_string().starts_with("3 requests were never answered"));
    }

    #[test]
    fn a_run_of_errors_is_spoilt_and_shows_the_most_frequent_one() {
        let mut refused = plain(None);
        refused.total = Interval::new(refused.workload.commands.len());
        assert_eq!(refused.doubt().to_string(), "invalid: no request was answered");
        refused.total.error("ERR", "ERR syntax error");
        (0..7).for_each(|_| refused.total.error("OOM", "OOM command not allowed"));
        let told = refused.doubt();
        assert_eq!(told, Doubt::NothingAnswered { example: Some("OOM command not allowed".into()) });
        assert!(told.spoils() && told.to_string().ends_with("most went wrong like this: OOM command not allowed"));
    }

    #[test]
    fn messages_that_reached_no_subscriber_are_counted() {
        let mut lost = plain(None);
        lost.settings.subscribers = 2;
        lost.settings.spec.mix.insert("publish".into(), 1.0);
        lost.workload = Workload::compile(&lost.settings.spec, None).unwrap();
        lost.total = Interval::new(lost.workload.commands.len());
        lost.total.latency[0].record_n(1_000_000, 10).unwrap();
        lost.total.counts.answered = 10;
        lost.total.delivered.record_n(1_000_000, 19).unwrap();
        let told = lost.doubt();
        assert_eq!(told, Doubt::Undelivered { expected: 20, delivered: 19 });
        assert_eq!(told.to_string(), "of 20 messages 19 reached a subscriber");
        lost.total.delivered.record_n(1_000_000, 1).unwrap();
        assert_eq!(lost.doubts(), NONE);
    }

    #[test]
    fn a_closed_loop_that_stood_still_is_told_what_it_leaves_out() {
        let stood_still = |rate| {
            let mut case = plain(rate);
            case.total.latency[0].record(2_000_000_000).unwrap();
            case
        };
        assert_eq!(stood_still(RATE).doubts(), NONE);
        let told = stood_still(None).doubt();
        assert!(matches!(told, Doubt::ClosedLoop(_)), "{told:?}");
        assert!(told.to_string().starts_with("closed loop: while an answer took 2 s its caller asked nothing else"));
    }
}
