//! From connecting to the end: what is due at a time, whatever arrives.

use super::*;

impl Worker {
    pub(super) fn summary(&mut self) -> Summary {
        Summary {
            cpu_ns: thread_cpu_ns().saturating_sub(self.clock.cpu_at_start),
            took_ns: self.clock.last_answer.max(now_ns().min(self.clock.end)).max(self.clock.start) - self.clock.start,
            load_ns: self.clock.load_end.saturating_sub(self.clock.start),
            failed: self.failed.take(),
        }
    }

    /// Something for the time line.
    pub(super) fn mark(&mut self, text: String) {
        if self.phase == Phase::Running || self.phase == Phase::Draining {
            self.report.interval.marks.push((now_ns().saturating_sub(self.clock.start), text));
        }
    }

    pub(super) fn housekeeping(&mut self, now: u64, io: &mut Io) {
        self.clock.next_housekeeping = now + HOUSEKEEPING;
        let timeout = self.shared.shape.timeout_ns;
        for lane_index in 0..self.net.lanes.len() as u32 {
            let lane = &self.net.lanes[lane_index as usize];
            match lane.state {
                State::Waiting(at) if at <= now && self.phase != Phase::Over => self.dial(lane_index, io),
                State::Open if !lane.flight.is_empty() => {
                    let silent = now.saturating_sub(lane.progress);
                    if silent > timeout {
                        let text = format!("no answer for {}", time(Duration::from_nanos(silent)));
                        self.lose(lane_index, "timeout", &text, now, io);
                    } else if silent > timeout.min(SECOND) / 2 {
                        self.shared.routes.want(); // a hung master says nothing: others may have replaced it
                    }
                }
                State::Connecting if lane.is_greeting() && now.saturating_sub(lane.progress) > timeout => {
                    self.lose(lane_index, "timeout", "no answer to the greeting", now, io);
                }
                _ => {}
            }
        }
        for node in self.net.nodes.numbers() {
            let cut_off = self.net.nodes[node].open == 0;
            if cut_off && !self.net.nodes[node].waiting.is_empty() {
                self.shared.routes.want();
            }
            // A busy node may take its time; one without any connection has it only until the timeout, and so has a
            // caller whose own connection does not come to stand.
            if !cut_off && self.choice != Choice::Own {
                continue;
            }
            let late = |p: &Pending| now.saturating_sub(p.due) > timeout;
            if !self.net.nodes[node].waiting.iter().any(late) {
                continue;
            }
            let (gone, kept): (VecDeque<Pending>, _) = self.net.nodes[node].waiting.drain(..).partition(late);
            self.net.nodes[node].waiting = kept;
            let text = format!("{}: no connection within the timeout", self.net.nodes.address(node));
            for pending in gone {
                self.give_up(pending, "no_connection", &text, now, io);
            }
        }
        while let Some(first) = self.route.homeless.front().copied()
            && now.saturating_sub(first.due) > timeout
        {
            self.route.homeless.pop_front();
            self.give_up(first, "no_owner", "no node owns the slot", now, io);
        }
    }

    /// Sends the second that is over, takes an empty one.
    pub(super) fn tick(&mut self, now: u64) {
        self.gauges();
        let fresh = self
            .report
            .spares
            .try_recv()
            .unwrap_or_else(|_| Box::new(Interval::new(self.shared.workload.commands.len())));
        let full = std::mem::replace(&mut self.report.interval, fresh);
        let second = full.second;
        let _ = self.report.to_collector.send(Said::Interval(full));
        self.report.interval.second = second + 1;
        self.clock.next_second += SECOND;
        // We were not run for a second: nothing happened in it, and who collects waits for it.
        while now > self.clock.next_second {
            let mut empty = Box::new(Interval::new(self.shared.workload.commands.len()));
            empty.second = self.report.interval.second;
            let _ = self.report.to_collector.send(Said::Interval(empty));
            self.report.interval.second += 1;
            self.clock.next_second += SECOND;
        }
    }

    pub(super) fn gauges(&mut self) {
        let counts = &mut self.report.interval.counts;
        counts.waiting = self.net.nodes.iter().map(|n| n.waiting.len() as u64).sum::<u64>()
            + self.route.homeless.len() as u64
            + self.demand.unclaimed.len() as u64;
        counts.in_flight = self.net.lanes.iter().map(|l| l.flight.len() as u64).sum();
        counts.open = self.net.nodes.iter().map(|n| n.open as u64).sum();
    }

    pub(super) fn connecting(&mut self, now: u64, io: &mut Io) -> Option<u64> {
        let nodes = &self.net.nodes;
        let settled = |l: &Lane| {
            matches!(l.state, State::Open | State::Retired) || l.attempts >= nodes[l.node].peers.len().max(1)
        };
        if !self.report.said_ready && self.net.lanes.iter().all(settled) {
            if self.net.nodes.iter().all(|n| n.open == 0) {
                let why =
                    self.report.interval.errors.first().map_or("no connection".to_string(), |k| k.example.clone());
                self.failed = Some(GeneratorError::NotConnected(why));
                io.stop();
                return None;
            }
            self.report.said_ready = true;
            self.shared.ready.fetch_add(1, Ordering::AcqRel);
        }
        let start = self.shared.start.load(Ordering::Acquire);
        if start == 0 {
            if self.shared.stop.load(Ordering::Acquire) {
                io.stop();
            }
            if now >= self.clock.next_housekeeping {
                self.housekeeping(now, io);
            }
            return Some(now + SECOND / 50);
        }
        if now < start {
            return Some(start);
        }
        // Off we go.
        self.phase = Phase::Running;
        self.clock.start = start;
        self.clock.end = start.saturating_add(self.shared.shape.length_ns);
        self.clock.next_second = start + SECOND;
        self.clock.next_housekeeping = start + HOUSEKEEPING;
        self.clock.cpu_at_start = thread_cpu_ns();
        let missing = self.net.lanes.iter().filter(|l| !matches!(l.state, State::Open)).count();
        let why = self.report.interval.errors.first().map_or(String::new(), |k| format!(": {}", k.example));
        self.report.interval.reset();
        if missing > 0 {
            self.report
                .interval
                .marks
                .push((0, format!("{missing} of {} connections do not stand{why}", self.net.lanes.len())));
        }
        match &mut self.demand.schedule {
            Some(schedule) => self.demand.next_due = schedule.next().map(|d| start + d),
            None => {
                for caller in 0..self.demand.in_flight.len() as u32 {
                    self.go_on(caller, now, io);
                }
            }
        }
        Some(now)
    }

    pub(super) fn arrive(&mut self, now: u64, io: &mut Io) {
        while let Some(due) = self.demand.next_due
            && due <= now
        {
            self.demand.next_due = self.demand.schedule.as_mut().and_then(Schedule::next).map(|d| self.clock.start + d);
            if self.demand.budget == 0 {
                self.demand.next_due = None;
                return;
            }
            self.demand.budget -= 1;
            self.report.interval.lateness.saturating_record(now - due);
            if self.demand.unbounded {
                self.begin(due, 0, io);
            } else if let Some(caller) = self.demand.idle.pop() {
                self.begin(due, caller, io);
            } else if self.demand.unclaimed.len() < WAITING_MAX {
                self.demand.unclaimed.push_back(due);
            } else {
                self.report.interval.error(QUEUE_FULL, "two million requests wait for a caller already");
                self.report.interval.counts.unanswered += 1;
            }
        }
    }

    pub(super) fn end_of_load(&mut self, now: u64) {
        self.phase = Phase::Draining;
        self.clock.load_end = now;
        self.clock.drain_until = now + self.shared.shape.timeout_ns;
        self.demand.next_due = None;
    }

    pub(super) fn over(&mut self, now: u64, io: &mut Io) {
        // What is still open is given up at its age.
        let mut rest: Vec<Pending> =
            self.net.lanes.iter_mut().flat_map(|l| l.flight.drain(..)).filter(|p| p.caller != NOBODYS).collect();
        rest.extend(self.net.nodes.iter_mut().flat_map(|n| n.waiting.drain(..)));
        rest.extend(self.route.homeless.drain(..));
        rest.extend(self.demand.unclaimed.drain(..).map(|due| Pending {
            due,
            seq: 0,
            caller: 0,
            command: 0,
            left: 0,
            hops: 0,
            asking: false,
        }));
        self.phase = Phase::Over;
        for pending in rest {
            self.report.interval.error("unfinished", "no answer until the end of the run");
            self.report.interval.counts.unanswered += 1;
            self.report.interval.latency[usize::from(pending.command)]
                .saturating_record(now.saturating_sub(pending.due).max(1));
        }
        self.gauges();
        let full = std::mem::replace(&mut self.report.interval, Box::new(Interval::new(0)));
        let _ = self.report.to_collector.send(Said::Interval(full));
        io.stop();
    }
}
