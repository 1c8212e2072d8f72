//! Replies: matched to requests and recorded; redirects and errors followed or counted.

use unslow_nodes::{Author, Refusal};

use super::*;

impl Worker {
    /// Splits what came into replies. Returns how much of it is done with.
    pub(super) fn replies(&mut self, lane_index: u32, id: Id, bytes: &[u8], now: u64, io: &mut Io) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let lane = &mut self.net.lanes[lane_index as usize];
            if lane.id != Some(id) {
                return bytes.len(); // lost by what it said
            }
            match lane.splitter.split(&bytes[at..]) {
                Ok(Split::Done(done)) => {
                    let frame = &bytes[at..at + done.end];
                    at += done.end;
                    self.reply(lane_index, frame, done, now, io);
                }
                Ok(Split::More { consumed }) => {
                    lane.progress = now;
                    return at + consumed;
                }
                Err(e) => {
                    self.lose(lane_index, "not_resp", &format!("the reply is not RESP: {e}"), now, io);
                    return bytes.len();
                }
            }
        }
        at
    }

    #[inline]
    pub(super) fn reply(&mut self, lane_index: u32, frame: &[u8], done: Done, now: u64, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        if done.kind == b'>' {
            return;
        }
        if lane.greeting.due().is_some() {
            // What comes in parts is no error.
            let reply = if done.whole { Frame::new(frame) } else { Frame::new(b"+OK\r\n") };
            self.greeted(lane_index, reply, now, io);
            return;
        }
        let Some(front) = lane.flight.front_mut() else {
            // A server that takes no one else says so unasked.
            let text =
                if done.whole { String::from_utf8_lossy(Frame::new(frame).text()).into_owned() } else { String::new() };
            self.lose(lane_index, "unasked", &format!("the server said without being asked: {text:?}"), now, io);
            return;
        };
        front.left -= 1;
        if matches!(done.kind, b'-' | b'!') {
            let trouble = Trouble::of(Frame::new(frame));
            if lane.trouble.is_none() || !matches!(trouble, Trouble::Error { .. }) {
                lane.trouble = Some(trouble);
            }
        } else if done.error_inside && lane.trouble.is_none() {
            // EXEC answers with an array even where a command in it failed.
            let first = Frame::new(frame).items().find(|f| f.kind() == Kind::Error).filter(|_| done.whole);
            lane.trouble = Some(Trouble::of(first.unwrap_or(Frame::new(b"-ERR an error inside the reply\r\n"))));
        }
        if front.left > 0 {
            return;
        }
        let Some(pending) = lane.flight.pop_front() else { return };
        lane.progress = now;
        lane.backoff.succeeded();
        if pending.caller == NOBODYS {
            lane.trouble = None;
            match self.choice {
                Choice::Free => self.serve_waiting(lane_index, io),
                Choice::Shared => self.serve_overflow(lane_index, io),
                Choice::Own => {}
            }
            return;
        }
        self.clock.last_answer = now;
        if let Some(trouble) = lane.trouble.take() {
            self.troubled(lane_index, pending, trouble, now, io);
            return;
        }
        let latency = now.saturating_sub(pending.due);
        if (latency, pending.command) == self.report.alike {
            self.report.alike_count += 1;
        } else {
            self.record_alike();
            self.report.alike = (latency, pending.command);
            self.report.alike_count = 1;
        }
        if done.null {
            self.report.interval.nulls[usize::from(pending.command)] += 1;
        } else if self.shared.workload.verify && done.whole && done.kind == b'$' {
            let draw = self.shared.workload.draw(pending.seq);
            if let Some(right) = self.shared.workload.right(draw, Frame::new(frame).text()) {
                self.report.interval.counts.verified += 1;
                self.report.interval.counts.wrong += u64::from(!right);
            }
        }
        self.finished(pending, Some(lane_index), now, io);
    }

    /// What a subscriber hears: the confirmation, then messages that begin with the time they were sent.
    pub(super) fn messages(&mut self, lane_index: u32, bytes: &[u8], now: u64, io: &mut Io) -> usize {
        let mut at = 0;
        loop {
            let len = match self.net.lanes[lane_index as usize].scanner.scan(&bytes[at..]) {
                Ok(Scan::Complete(len)) => len,
                Ok(Scan::Incomplete) => return at,
                Err(e) => {
                    self.lose(lane_index, "not_resp", &format!("the message is not RESP: {e}"), now, io);
                    return bytes.len();
                }
            };
            let frame = Frame::new(&bytes[at..at + len]);
            at += len;
            let lane = &mut self.net.lanes[lane_index as usize];
            if lane.greeting.due().is_some() {
                self.greeted(lane_index, frame, now, io);
                if self.net.lanes[lane_index as usize].id.is_none() {
                    return bytes.len(); // lost by what it said
                }
                continue;
            }
            if frame.kind() == Kind::Error {
                let text = String::from_utf8_lossy(frame.text()).into_owned();
                self.lose(lane_index, "subscribe", &text, now, io);
                return bytes.len();
            }
            if std::mem::take(&mut lane.subscribing) {
                self.ready(lane_index, io);
                continue;
            }
            let sent =
                frame.items().last().and_then(|m| std::str::from_utf8(m.text().get(..20)?).ok()?.parse::<u64>().ok());
            // Messages of another run are no news.
            if let Some(sent) = sent.filter(|s| *s >= self.clock.start && self.clock.start > 0) {
                self.report.interval.delivered.saturating_record(now.saturating_sub(sent).max(1));
            }
        }
    }

    /// Requests sent together and answered together took equally long: they are recorded at once.
    #[inline]
    pub(super) fn record_alike(&mut self) {
        let count = std::mem::take(&mut self.report.alike_count);
        if count > 0 {
            let (latency, command) = self.report.alike;
            self.report.interval.latency[usize::from(command)].saturating_record_n(latency, count);
            self.report.interval.counts.answered += count;
        }
    }

    /// An error reply: redirections are followed, the rest is counted.
    pub(super) fn troubled(&mut self, lane_index: u32, mut pending: Pending, trouble: Trouble, now: u64, io: &mut Io) {
        let to = match trouble {
            Trouble::Error { name, text } => {
                // A demoted or resyncing master, a shard without one: somebody else may be it now.
                if matches!(name.as_str(), "READONLY" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" | "MOVED" | "ASK") {
                    self.shared.routes.want();
                }
                self.report.interval.error(&name, &text);
                self.report.interval.refused.saturating_record(now.saturating_sub(pending.due));
                self.finished(pending, Some(lane_index), now, io);
                return;
            }
            Trouble::Moved { slot, to } => {
                self.report.interval.counts.moved += 1;
                self.shared.routes.want();
                let node = self.led_to(&to, lane_index, io);
                self.net.nodes.set_owner(slot, node);
                pending.asking = false;
                node
            }
            Trouble::Ask { to } => {
                self.report.interval.counts.ask += 1;
                pending.asking = true;
                self.led_to(&to, lane_index, io)
            }
        };
        pending.hops += 1;
        if self.choice == Choice::Free {
            self.serve_waiting(lane_index, io);
        }
        if pending.hops > HOPS_MAX {
            self.give_up(pending, "redirections", "sixteen redirections of one request", now, io);
            return;
        }
        let draw = self.shared.workload.draw(pending.seq);
        self.place_on(pending, draw, to, io);
    }
}

/// An error's code word, `ERR` if it has none, and its whole text.
pub(super) fn words_of(reply: Frame<'_>) -> (String, String) {
    let text = String::from_utf8_lossy(reply.text()).into_owned();
    let first = text.split(' ').next().unwrap_or("");
    let code = !first.is_empty() && first.len() <= 24 && first.bytes().all(|b| b.is_ascii_uppercase() || b == b'_');
    let name = if code { first.to_string() } else { "ERR".into() };
    (name, text)
}

impl Trouble {
    /// Sorts an error reply. Of a redirect that does not say where to, only its name is left: the map has to tell.
    pub(super) fn of(reply: Frame<'_>) -> Trouble {
        // Who wrote it decides whether a command may be repeated; a generator follows every redirect.
        let redirect = Refusal::parse(reply.bytes(), Author::Script).map(|refusal| refusal.kind);
        match redirect {
            Some(unslow_nodes::Kind::Moved(to)) if !to.address.starts_with('?') => {
                return Trouble::Moved { slot: to.slot, to: to.address.into() };
            }
            Some(unslow_nodes::Kind::Ask(to)) if !to.address.starts_with('?') => {
                return Trouble::Ask { to: to.address.into() };
            }
            _ => {}
        }
        let (name, text) = words_of(reply);
        Trouble::Error { name, text }
    }
}
