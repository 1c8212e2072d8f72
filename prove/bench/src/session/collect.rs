//! A run as it happens: threads are started, their seconds added up, and what happened is told.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hdrhistogram::Histogram;
use unslow_reactor::now_ns;

use super::judge::Ended;
use super::{Progress, Session};
use crate::error::{Error, GeneratorError, Interrupted};
use crate::report::{Event, Run, Second, round};
use crate::route::Routes;
use crate::servers::{between, sample};
use crate::stats::Interval;
use crate::worker::{Said, Shared, Summary, work};

/// What [`Progress`] says, on its way from the thread that collects.
enum News {
    Second(Second, Histogram<u64>),
    Event(Event),
}

/// What was noticed beside the requests, and when.
type Marks = Mutex<Vec<(u64, String)>>;

impl Session {
    pub(super) fn run_once(&self, observer: &mut dyn FnMut(Progress)) -> Result<(Run, Histogram<u64>), Error> {
        let threads = self.settings.threads;
        let shared = Arc::new(Shared {
            workload: self.workload.clone(),
            routes: Routes::new(self.topology.clone()),
            shape: self.settings.shape()?,
            start: AtomicU64::new(0),
            ready: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let events: Marks = Mutex::new(Vec::new());
        let (said, heard) = channel();
        std::thread::scope(|scope| {
            let mut spares = Vec::new();
            for index in 0..threads {
                let (give, take) = channel();
                for _ in 0..2 {
                    let _ = give.send(Box::new(Interval::new(self.workload.commands.len())));
                }
                spares.push(give);
                let said = said.clone();
                let (own, name) = (shared.clone(), format!("load-{index}"));
                let begun =
                    std::thread::Builder::new().name(name).spawn_scoped(scope, move || work(own, index, said, take));
                if let Err(why) = begun {
                    shared.stop.store(true, Ordering::Release);
                    return Err(GeneratorError::NoThread { index, why }.into());
                }
            }
            drop(said);
            let tell = |sentences: Vec<String>| {
                let now = now_ns();
                events.lock().expect("no thread panicked").extend(sentences.into_iter().map(|s| (now, s)));
            };
            let (scouted, target, options) = (&shared, &self.settings.target, &self.settings.options);
            scope.spawn(move || scouted.routes.scout(target, options, &tell));
            // Adding up a second takes a millisecond. On a processor that it shares with a generator's thread that
            // would be a millisecond of lateness, so it is done in what is left over (nice belongs to a thread on
            // Linux).
            let (tell, told) = channel();
            let (collected, marked) = (&shared, &events);
            let collector = scope.spawn(move || {
                let _ = rustix::process::nice(19);
                let run = self.collect(collected, &heard, &spares, marked, &mut |news| {
                    let _ = tell.send(news);
                });
                collected.stop.store(true, Ordering::Release);
                collected.routes.end();
                run
            });
            for news in told {
                observer(match &news {
                    News::Second(second, latency) => Progress::Second(second, latency),
                    News::Event(event) => Progress::Event(event),
                });
            }
            collector.join().unwrap_or_else(|_| Err(GeneratorError::Collector.into()))
        })
    }

    fn collect(
        &self,
        shared: &Shared,
        heard: &Receiver<Said>,
        spares: &[Sender<Box<Interval>>],
        events: &Marks,
        tell: &mut dyn FnMut(News),
    ) -> Result<(Run, Histogram<u64>), Error> {
        self.wait_for_connections(shared, heard)?;
        let before = sample(&self.settings, &self.topology);
        // Late enough that nobody is still busy with getting ready.
        let start = now_ns() + 10_000_000;
        shared.start.store(start, Ordering::Release);
        shared.routes.wake_all();
        let mut sum = Sum::new(self.workload.commands.len(), spares, tell);
        let (summaries, mut interrupted) = self.add_up(shared, heard, events, start, &mut sum)?;
        sum.finish_all();
        let Sum { total, mut timeline, mut marks, .. } = sum;
        let took = summaries.iter().map(|s| s.took_ns).max().unwrap_or(0) as f64 / 1e9;
        interrupted |= self.guard.asked();
        // A schedule lasts as long as it lasts, even where its last request comes before its end.
        let scheduled = self.load.open_loop && self.settings.requests.is_none() && !interrupted;
        let seconds = if scheduled { took.max(self.settings.length.as_secs_f64()) } else { took };
        // A last second in which nothing was left to do is no second of the run.
        timeline.retain(|s| f64::from(s.at_s) < seconds || s.answered + s.errors > 0);
        let after = sample(&self.settings, &self.topology);
        let events = events.lock().expect("no thread panicked");
        marks.extend(events.iter().map(|(at, text)| Event { at_s: since(*at, start), text: text.clone() }));
        drop(events);
        marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let all = total.all();
        let servers = between(&before, &after);
        let run = self.judge(Ended { total, timeline, events: marks, summaries, seconds, interrupted, servers });
        Ok((run, all))
    }

    /// All connections stand before the clock starts.
    fn wait_for_connections(&self, shared: &Shared, heard: &Receiver<Said>) -> Result<(), Error> {
        while shared.ready.load(Ordering::Acquire) < self.settings.threads {
            match heard.recv_timeout(Duration::from_millis(5)) {
                Ok(Said::Ended(Summary { failed: Some(why), .. })) => return Err(why.into()),
                Ok(Said::Ended(_)) => return Err(Interrupted::Connecting.into()),
                Ok(Said::Interval(_)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(GeneratorError::Ended.into()),
            }
            if self.guard.asked() {
                shared.stop.store(true, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Until every thread has ended: what each says of itself, and whether a signal ended the run.
    fn add_up(
        &self,
        shared: &Shared,
        heard: &Receiver<Said>,
        events: &Marks,
        start: u64,
        sum: &mut Sum<'_>,
    ) -> Result<(Vec<Summary>, bool), Error> {
        let mut summaries: Vec<Summary> = Vec::new();
        let (mut interrupted, mut told) = (false, 0);
        while summaries.len() < self.settings.threads {
            match heard.recv_timeout(Duration::from_millis(100)) {
                Ok(Said::Interval(interval)) => sum.add(interval),
                Ok(Said::Ended(Summary { failed: Some(why), .. })) => return Err(why.into()),
                Ok(Said::Ended(summary)) => summaries.push(summary),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let news = events.lock().expect("no thread panicked");
            for (at, text) in &news[told..] {
                (sum.tell)(News::Event(Event { at_s: since(*at, start), text: text.clone() }));
            }
            told = news.len();
            drop(news);
            if self.guard.asked() && !interrupted {
                interrupted = true;
                shared.stop.store(true, Ordering::Release);
                shared.routes.wake_all();
            }
        }
        Ok((summaries, interrupted))
    }
}

/// The seconds of all threads, added up as they come.
struct Sum<'a> {
    /// Back to the threads, one sender each: intervals to fill again.
    spares: &'a [Sender<Box<Interval>>],
    spare: usize,
    tell: &'a mut dyn FnMut(News),
    /// Seconds that not every thread has told yet, with how many have.
    open: BTreeMap<u32, (usize, Box<Interval>)>,
    total: Interval,
    timeline: Vec<Second>,
    marks: Vec<Event>,
}

impl<'a> Sum<'a> {
    fn new(commands: usize, spares: &'a [Sender<Box<Interval>>], tell: &'a mut dyn FnMut(News)) -> Sum<'a> {
        let (open, timeline, marks) = (BTreeMap::new(), Vec::new(), Vec::new());
        Sum { spares, spare: 0, tell, open, total: Interval::new(commands), timeline, marks }
    }

    /// A second of one thread.
    fn add(&mut self, mut interval: Box<Interval>) {
        let second = interval.second;
        match self.open.get_mut(&second) {
            Some((count, sum)) => {
                sum.add(&interval);
                *count += 1;
                interval.reset();
                let _ = self.spares[*count % self.spares.len()].send(interval);
            }
            None => {
                self.open.insert(second, (1, interval));
            }
        }
        while let Some(entry) = self.open.first_entry()
            && entry.get().0 == self.spares.len()
        {
            let (_, interval) = entry.remove();
            self.finish(interval);
        }
    }

    /// The seconds that some thread has not told, and will not.
    fn finish_all(&mut self) {
        for (_, (_, interval)) in std::mem::take(&mut self.open) {
            self.finish(interval);
        }
    }

    fn finish(&mut self, mut interval: Box<Interval>) {
        let latency = interval.all();
        let second = Second::of(&interval, &latency);
        for (at, text) in std::mem::take(&mut interval.marks) {
            let event = Event { at_s: round(at as f64 / 1e9), text };
            // Every thread has noticed it.
            if !self.marks.iter().any(|m| m.text == event.text && (m.at_s - event.at_s).abs() < 1.0) {
                (self.tell)(News::Event(event.clone()));
                self.marks.push(event);
            }
        }
        for ((node, why), (count, at)) in &interval.lost {
            let plural = if *count == 1 { "" } else { "s" };
            let text = format!("{count} connection{plural} to {node} lost: {why}");
            let event = Event { at_s: round(*at as f64 / 1e9), text };
            (self.tell)(News::Event(event.clone()));
            self.marks.push(event);
        }
        (self.tell)(News::Second(second.clone(), latency));
        self.total.add(&interval);
        self.timeline.push(second);
        interval.reset();
        // Whoever needs it next; a thread without one makes it itself.
        let _ = self.spares[self.spare % self.spares.len()].send(interval);
        self.spare += 1;
    }
}

fn since(at: u64, start: u64) -> f64 {
    round((at as f64 - start as f64) / 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second of one thread that answered so many.
    fn interval(second: u32, answered: u64) -> Box<Interval> {
        let mut interval = Box::new(Interval::new(1));
        interval.second = second;
        interval.counts.answered = answered;
        interval.marks = vec![(u64::from(second) * 1_000_000_000, "slots moved".into())];
        interval
    }

    #[test]
    fn a_second_is_told_once_every_thread_has_told_it_and_in_order() {
        let (to_first, first) = channel();
        let (to_second, second) = channel();
        let mut told = Vec::new();
        let mut tell = |news: News| {
            told.push(match news {
                News::Second(second, _) => format!("{}: {}", second.at_s, second.answered),
                News::Event(event) => event.text,
            });
        };
        let spares = [to_first, to_second];
        let mut sum = Sum::new(1, &spares, &mut tell);
        sum.add(interval(0, 10));
        sum.add(interval(1, 1));
        assert!(sum.timeline.is_empty(), "the other thread has told nothing yet");
        sum.add(interval(0, 20));
        assert_eq!((sum.timeline.len(), sum.total.counts.answered), (1, 30));
        sum.finish_all();
        assert_eq!((sum.timeline.len(), sum.total.counts.answered, sum.open.len()), (2, 31, 0));
        // Noticed by both threads, and again a second later.
        assert_eq!(sum.marks.len(), 2);
        drop(sum);
        assert_eq!(told, ["slots moved", "0: 30", "slots moved", "1: 1"]);
        assert_eq!(first.try_iter().chain(second.try_iter()).count(), 3, "intervals to fill again");
    }
}
