//! Requests: begun by callers, placed on a connection, or kept waiting for one.

use super::*;

impl Worker {
    /// A caller begins as many requests as it sends at once.
    pub(super) fn go_on(&mut self, caller: u32, now: u64, io: &mut Io) {
        let count = u64::from(self.batch).min(self.demand.budget);
        match (self.choice, self.net.only) {
            (Choice::Own, Some(only)) => {
                let (first, step) = (self.demand.seq, self.demand.seq_step);
                self.demand.seq += count * step;
                self.send((0..count as u32).map(|i| first + u64::from(i) * step), caller, only, now, io);
            }
            (Choice::Own, None) => self.send_to_one(count, caller, now, io),
            _ => {
                for _ in 0..count {
                    self.demand.budget -= 1;
                    self.demand.in_flight[caller as usize] += 1;
                    self.begin(now, caller, io);
                }
            }
        }
    }

    /// Where there are several nodes, a caller sends to one at a time, as many requests at once as to a server that
    /// stands alone. They are drawn for whichever node has their slot, and go to the first that has enough of them.
    fn send_to_one(&mut self, mut count: u64, caller: u32, now: u64, io: &mut Io) {
        while count > 0 {
            let node = if self.demand.drawn < self.demand.budget {
                let seq = self.demand.next_seq();
                let draw = self.shared.workload.draw(seq);
                let Some(node) = self.node_of(seq, draw) else {
                    self.demand.budget -= 1;
                    self.keep_waiting(seq, draw, caller, None, now);
                    count -= 1;
                    continue;
                };
                self.net.nodes[node].drawn.push_back(seq);
                self.demand.drawn += 1;
                node
            } else {
                // No more are to be drawn: the last go out in smaller numbers.
                let drawn = |node: &u16| self.net.nodes[*node].drawn.len();
                let Some(node) = self.net.nodes.numbers().max_by_key(drawn) else { return };
                count = count.min(drawn(&node) as u64);
                node
            };
            let mut drawn = std::mem::take(&mut self.net.nodes[node].drawn);
            let is_enough = drawn.len() as u64 >= count;
            if is_enough {
                self.demand.drawn -= count;
                self.send(drawn.drain(..count as usize), caller, node, now, io);
                count = 0;
            }
            self.net.nodes[node].drawn = drawn;
        }
    }

    /// Begins these requests of a caller on its connection to a node: one look at everything, then only rendering.
    fn send(&mut self, seqs: impl ExactSizeIterator<Item = u64>, caller: u32, node: u16, now: u64, io: &mut Io) {
        let count = seqs.len() as u64;
        self.demand.budget -= count;
        let lanes = &self.net.nodes[node].lanes;
        let lane = &mut self.net.lanes[lanes[caller as usize % lanes.len()] as usize];
        let Some(id) = lane.id.filter(|_| matches!(lane.state, State::Open)) else {
            for seq in seqs {
                let draw = self.shared.workload.draw(seq);
                self.keep_waiting(seq, draw, caller, Some(node), now);
            }
            return;
        };
        if lane.flight.is_empty() {
            lane.progress = now;
        }
        let out = io.output(id);
        for seq in seqs {
            let draw = self.shared.workload.draw(seq);
            let left = self.shared.workload.render(out, seq, draw, now);
            lane.flight.push_back(Pending {
                due: now,
                seq,
                caller,
                command: draw.command,
                left,
                hops: 0,
                asking: false,
            });
        }
        self.demand.in_flight[caller as usize] += count as u32;
        self.demand.outstanding += count;
        self.report.interval.counts.begun += count;
    }

    /// Begins a request of a caller that cannot be sent yet.
    fn keep_waiting(&mut self, seq: u64, draw: Draw, caller: u32, node: Option<u16>, now: u64) {
        self.demand.in_flight[caller as usize] += 1;
        self.demand.outstanding += 1;
        self.report.interval.counts.begun += 1;
        let pending = Pending { due: now, seq, caller, command: draw.command, left: 1, hops: 0, asking: false };
        self.queue(pending, node);
    }

    #[inline]
    pub(super) fn begin(&mut self, due: u64, caller: u32, io: &mut Io) {
        let seq = self.demand.next_seq();
        self.demand.outstanding += 1;
        self.report.interval.counts.begun += 1;
        let draw = self.shared.workload.draw(seq);
        let pending = Pending { due, seq, caller, command: draw.command, left: 1, hops: 0, asking: false };
        match self.net.only {
            Some(only) => self.place_on(pending, draw, only, io),
            None => self.place(pending, draw, io),
        }
    }

    /// Finds the node by the request's slot.
    pub(super) fn place(&mut self, pending: Pending, draw: Draw, io: &mut Io) {
        match self.node_of(pending.seq, draw) {
            Some(node) => self.place_on(pending, draw, node, io),
            None => self.queue(pending, None),
        }
    }

    /// The node that answers a request, by its slot. `None` where nobody owns that.
    fn node_of(&mut self, seq: u64, draw: Draw) -> Option<u16> {
        // What has no key may go anywhere; it stays with one node for as long as that one owns the slot.
        let slot = self.shared.workload.slot(seq, draw, &mut self.scratch);
        let slot = slot.unwrap_or((seq.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 50) as u16);
        let owner = self.net.nodes.owner(slot);
        if owner == NOBODY {
            self.shared.routes.want();
            return None;
        }
        let from_replicas =
            self.shared.shape.read_from != ReadFrom::Primary && self.shared.workload.reads(draw.command);
        Some(if from_replicas { self.reader(owner) } else { owner })
    }

    /// One of the nodes that may answer reads of the owner's slots.
    pub(super) fn reader(&mut self, owner: u16) -> u16 {
        let replicas = self.net.nodes.replicas(owner);
        self.route.read_turn = self.route.read_turn.wrapping_add(1);
        let primary_too = usize::from(self.shared.shape.read_from == ReadFrom::Any);
        let choices = replicas.len() + primary_too;
        for i in 0..choices {
            let pick = (self.route.read_turn + i) % choices;
            let Some(&replica) = replicas.get(pick) else { return owner };
            if self.net.nodes[replica].open > 0 {
                return replica;
            }
        }
        owner
    }

    #[inline]
    pub(super) fn place_on(&mut self, pending: Pending, draw: Draw, node_index: u16, io: &mut Io) {
        let node = &mut self.net.nodes[node_index];
        let lane = match self.choice {
            Choice::Own => {
                let lane = node.lanes[pending.caller as usize % node.lanes.len()];
                matches!(self.net.lanes[lane as usize].state, State::Open).then_some(lane)
            }
            Choice::Free => loop {
                let Some(lane) = node.free.pop_front() else { break None };
                let it = &mut self.net.lanes[lane as usize];
                it.listed = false;
                if matches!(it.state, State::Open) && it.flight.len() < self.window {
                    break Some(lane);
                }
            },
            Choice::Shared => {
                let from =
                    if self.demand.unbounded { pending.seq / self.demand.seq_step } else { u64::from(pending.caller) }
                        as usize;
                let lanes = &node.lanes;
                (0..lanes.len())
                    .map(|i| &lanes[(from + i) % lanes.len()])
                    .find(|l| {
                        let it = &self.net.lanes[**l as usize];
                        let full = it.flight.len() > 1000 && it.id.is_some_and(|id| io.unsent(id) > UNSENT_MAX);
                        matches!(it.state, State::Open) && !full
                    })
                    .copied()
            }
        };
        match lane {
            Some(lane) => self.put(pending, draw, lane, io),
            None => self.queue(pending, Some(node_index)),
        }
    }

    /// Waits for a connection of a node, or for somebody to own its slot.
    pub(super) fn queue(&mut self, pending: Pending, node: Option<u16>) {
        let queue = match node {
            Some(node) => &mut self.net.nodes[node].waiting,
            None => &mut self.route.homeless,
        };
        if queue.len() < WAITING_MAX {
            queue.push_back(pending);
        } else {
            // Its caller is not told to go on: it would only fill the queue faster.
            self.report.interval.error(QUEUE_FULL, "two million requests wait for one node already");
            self.report.interval.counts.unanswered += 1;
            self.demand.outstanding -= 1;
        }
    }

    #[inline]
    pub(super) fn put(&mut self, mut pending: Pending, draw: Draw, lane_index: u32, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        let Some(id) = lane.id else { return };
        let now = now_ns();
        if self.report.waits && pending.hops == 0 {
            self.report.interval.wait.saturating_record(now.saturating_sub(pending.due));
        }
        let out = io.output(id);
        let asking = pending.asking;
        if asking {
            out.extend_from_slice(b"*1\r\n$6\r\nASKING\r\n");
        }
        pending.left = self.shared.workload.render(out, pending.seq, draw, now) + u16::from(asking);
        if lane.flight.is_empty() {
            lane.progress = now;
        }
        lane.flight.push_back(pending);
        if self.choice == Choice::Free && lane.flight.len() < self.window && !lane.listed {
            lane.listed = true;
            self.net.nodes[lane.node].free.push_back(lane_index);
        }
    }

    /// An answer, good or not, has come, or never will: the connection serves who waits, the caller goes on.
    #[inline]
    pub(super) fn finished(&mut self, pending: Pending, lane_index: Option<u32>, now: u64, io: &mut Io) {
        self.demand.outstanding -= 1;
        if let Some(lane_index) = lane_index {
            match self.choice {
                Choice::Free => self.serve_waiting(lane_index, io),
                Choice::Shared => self.serve_overflow(lane_index, io),
                Choice::Own => {}
            }
        }
        if self.demand.unbounded {
            return;
        }
        if self.demand.schedule.is_some() {
            if let Some(due) = self.demand.unclaimed.pop_front() {
                self.begin(due, pending.caller, io);
            } else {
                self.demand.idle.push(pending.caller);
            }
            return;
        }
        let left = &mut self.demand.in_flight[pending.caller as usize];
        *left -= 1;
        if *left == 0 && self.phase == Phase::Running {
            self.go_on(pending.caller, now, io);
        }
    }

    /// A connection with room takes the first that waits for its node.
    pub(super) fn serve_waiting(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        if !matches!(lane.state, State::Open) || lane.flight.len() >= self.window {
            return;
        }
        let node = &mut self.net.nodes[lane.node];
        if let Some(next) = node.waiting.pop_front() {
            let draw = self.shared.workload.draw(next.seq);
            self.put(next, draw, lane_index, io);
        } else if !lane.listed {
            lane.listed = true;
            node.free.push_back(lane_index);
        }
    }

    /// A shared connection that was full takes what waited.
    pub(super) fn serve_overflow(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &self.net.lanes[lane_index as usize];
        let node = lane.node;
        while !self.net.nodes[node].waiting.is_empty()
            && let Some(id) = self.net.lanes[lane_index as usize].id
            && io.unsent(id) <= UNSENT_MAX / 2
        {
            let Some(next) = self.net.nodes[node].waiting.pop_front() else { return };
            let draw = self.shared.workload.draw(next.seq);
            self.put(next, draw, lane_index, io);
        }
    }

    /// No answer will come: counted at the age it has reached, so that it is missing from no percentile.
    pub(super) fn give_up(&mut self, pending: Pending, why: &str, text: &str, now: u64, io: &mut Io) {
        self.report.interval.error(why, text);
        self.report.interval.counts.unanswered += 1;
        let age = now.saturating_sub(pending.due).min(MOST_NS);
        self.report.interval.latency[usize::from(pending.command)].saturating_record(age.max(1));
        self.finished(pending, None, now, io);
    }
}
