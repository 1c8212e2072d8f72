//! Replies: what each means for its call, and where the call goes then.

use super::*;
use crate::encode::GUARD;
use crate::trouble::{Voice, classify, may_have_ended, proof};

impl Writer {
    /// A reply that answers something under way. `error` is its text when it is one.
    pub(super) fn reply(&mut self, io: &mut Io, number: u16, error: Option<&str>, integer: Option<i64>) {
        let node = &mut self.nodes[number];
        match node.flying.front_mut() {
            None => self.lose(io, number, "it answered what nobody asked"),
            Some(Flying::Other) => {
                node.flying.pop_front();
            }
            Some(Flying::Wrote) => {
                node.flying.pop_front();
                node.wrote = error.is_none();
            }
            Some(Flying::Wait) => {
                node.flying.pop_front();
                self.waited(io, number, error.map(str::to_string), integer);
            }
            Some(Flying::Call { work, call, left, asking, trouble }) => {
                if integer == Some(0) && self.encoder.script().is_some() {
                    self.shared.stats.repeated.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(text) = error {
                    let encoded = &self.works[(*work - self.first) as usize].encoded;
                    let new = classify(text, encoded.calls[*call as usize].voice);
                    // What passes weighs more than what does not: the call is sent again, and then it shows.
                    let heavier = match (&trouble, &new) {
                        (None, _) | (_, Trouble::Fatal(_)) => true,
                        (Some(Trouble::Poison(_)), new) => !matches!(new, Trouble::Poison(_)),
                        _ => false,
                    };
                    if heavier {
                        *trouble = Some(new);
                    }
                }
                *left -= 1;
                if *left == 0 {
                    let answered = Answered { at: (*work, *call), asking: *asking, trouble: trouble.take() };
                    node.flying.pop_front();
                    self.answered(io, number, answered);
                }
            }
            Some(Flying::Check { work, call, left, words, refused, .. }) => {
                if let Some(text) = error {
                    *refused = Some(classify(text, Voice::Server));
                }
                *left -= 1;
                if *left == 0 {
                    let (at, words, refused) = ((*work, *call), std::mem::take(words), refused.take());
                    node.flying.pop_front();
                    self.checked(io, number, at, words, refused);
                }
            }
        }
    }

    /// The reply to a ROLE that was asked to confirm a READONLY.
    pub(super) fn role(&mut self, io: &mut Io, number: u16, role: &Value) {
        if let Value::Error(text) = role {
            return self.reply(io, number, Some(text), None);
        }
        let replica = role.items().first().and_then(Value::text).as_deref() == Some("slave");
        if let Some(Flying::Check { refused, .. }) = self.nodes[number].flying.front_mut() {
            *refused = replica.then(|| Trouble::Passing("READONLY".into()));
        }
        self.reply(io, number, None, None);
    }

    /// All replies of a call are there.
    fn answered(&mut self, io: &mut Io, number: u16, answer: Answered) {
        let Answered { at, asking, .. } = answer;
        if !self.suspects.is_empty() {
            self.suspects.remove(&at);
            let node = &mut self.nodes[number];
            node.alone = node.alone.filter(|suspect| *suspect != at);
            self.look = true; // another one may wait until nothing else is in flight
        }
        let slot = self.call(at.0, at.1).slot;
        if let Some(behind) = self.checking.get_mut(&slot) {
            return behind.push_back(answer);
        }
        match answer.trouble {
            Some(Trouble::Unproven(words)) => self.check(io, number, at, asking, words),
            None if self.settings.wait.is_some() => self.nodes[number].unconfirmed.push_back(at),
            trouble => self.settle(io, at.0, at.1, trouble),
        }
    }

    /// Asks the server that sent a script's refusal to confirm it.
    fn check(&mut self, io: &mut Io, number: u16, at: (u64, u32), asking: bool, words: String) {
        let it = self.call(at.0, at.1);
        let checks = &self.works[(at.0 - self.first) as usize].encoded.checks;
        let keys = &checks[it.check.0 as usize..it.check.1 as usize];
        let proof = proof(&words);
        if proof == Proof::Keys && keys.is_empty() {
            let trouble = self.not_repeated(at, words);
            return self.settle(io, at.0, at.1, Some(trouble));
        }
        let node = &mut self.nodes[number];
        let Some(id) = node.connection else {
            self.slots[usize::from(it.slot)].flying -= 1;
            return self.hold(it.slot, at, now_ns());
        };
        let out = io.output(id);
        // A role has no slot.
        let asking = asking && proof == Proof::Keys;
        if asking {
            out.extend_from_slice(ASKING);
        }
        match proof {
            Proof::Keys => out.extend_from_slice(keys),
            Proof::Role => write_command(out, &["ROLE"]),
        }
        let (work, call, left) = (at.0, at.1, 1 + u16::from(asking));
        node.flying.push_back(Flying::Check { work, call, left, proof, words, refused: None });
        self.checking.insert(it.slot, VecDeque::new());
    }

    /// What becomes of a call whose refusal the server does not repeat. What ends by itself may have ended in between,
    /// and then the call has not run: it is sent again, but only a few times, because a script may say so each time.
    fn not_repeated(&mut self, at: (u64, u32), words: String) -> Trouble {
        let Some(trouble) = may_have_ended(&words) else { return Trouble::Poison(words) };
        let tries = self.unrepeated.entry(at).or_default();
        *tries = tries.saturating_add(1);
        if *tries <= UNREPEATED_MAX { trouble } else { Trouble::Poison(words) }
    }

    /// The server has confirmed a refusal, or not: then the words are the script's and the call has run, unless the
    /// cause has ended.
    fn checked(&mut self, io: &mut Io, number: u16, at: (u64, u32), words: String, refused: Option<Trouble>) {
        let slot = self.call(at.0, at.1).slot;
        let behind = self.checking.remove(&slot).unwrap_or_default();
        let refused = refused
            .filter(|t| matches!(t, Trouble::Moved(..) | Trouble::Ask(_) | Trouble::TryAgain | Trouble::Passing(_)));
        let trouble = match refused {
            Some(refused) => refused,
            None => self.not_repeated(at, words),
        };
        self.settle(io, at.0, at.1, Some(trouble));
        for answer in behind {
            self.answered(io, number, answer);
        }
        // The replicas are asked again, for what was answered behind it.
        self.nodes[number].wait_due = true;
        self.look |= !self.suspects.is_empty();
    }

    fn waited(&mut self, io: &mut Io, number: u16, error: Option<String>, integer: Option<i64>) {
        let Some((replicas, _)) = self.settings.wait else { return };
        if let Some(error) = error {
            return match classify(&error, Voice::Server) {
                Trouble::Fatal(reply) => self.fail(io, WriteError::Wait { reply }),
                _ => self.lose(io, number, &error),
            };
        }
        let owns = self.owns[usize::from(number)];
        let node = &mut self.nodes[number];
        if !node.wrote && owns {
            node.wait_due = true; // the write before it was refused: it counted from nothing
            return;
        }
        let enough = integer.is_some_and(|n| n >= i64::from(replicas));
        if !enough {
            node.wait_due = true;
            let address = self.nodes.address(number).to_string();
            self.shared.stats.count_retries("wait", 1);
            self.note(format!(
                "{address}: {} of {replicas} replicas have acknowledged; offsets wait for them",
                integer.unwrap_or(0)
            ));
            return;
        }
        // Replies come in order, so all that were answered before this one were sent before it as well.
        let confirmed: Vec<_> = node.unconfirmed.drain(..).collect();
        for (work, call) in confirmed {
            self.settle(io, work, call, None);
        }
    }

    /// A call has its answer.
    fn settle(&mut self, io: &mut Io, work: u64, call: u32, trouble: Option<Trouble>) {
        let it = self.call(work, call);
        let slot = &mut self.slots[usize::from(it.slot)];
        slot.flying -= 1;
        self.look |= slot.held && slot.flying == 0;
        let at = (work, call);
        // It was answered, but one before it did not run: again, behind that one.
        let early = slot.held && self.held.get(&it.slot).and_then(|h| h.queue.front()).is_some_and(|first| *first < at);
        if early && matches!(trouble, None | Some(Trouble::Poison(_))) {
            return self.hold(it.slot, at, 0);
        }
        let settled = matches!(trouble, None | Some(Trouble::Poison(_) | Trouble::Unproven(_)));
        if settled && !self.unrepeated.is_empty() {
            self.unrepeated.remove(&at);
        }
        match trouble {
            None => {
                slot.tries = 0;
                self.done(work);
            }
            Some(Trouble::Fatal(reply)) => {
                let place = self.place(work, call);
                self.fail(io, WriteError::Refused { reply, place });
            }
            Some(Trouble::Poison(reason) | Trouble::Unproven(reason)) => {
                self.bury(work, it.record, reason);
                self.done(work);
            }
            Some(trouble) => self.again(io, at, trouble),
        }
    }

    /// A call that has not run is held until it may be sent again.
    fn again(&mut self, io: &mut Io, at: (u64, u32), trouble: Trouble) {
        let it = self.call(at.0, at.1);
        let from = self.slots[usize::from(it.slot)].node;
        let to = match &trouble {
            Trouble::Moved(_, address) | Trouble::Ask(address) => self.followed(from, address),
            _ => None,
        };
        // The topology has to name the node first.
        let redirected = if to.is_some() { 0 } else { BACKOFF_MIN };
        let (name, delay) = match &trouble {
            Trouble::Moved(..) => ("moved", redirected),
            Trouble::Ask(_) => ("ask", redirected),
            Trouble::TryAgain => ("tryagain", 10 * MILLISECOND),
            Trouble::NoScript => ("noscript", 0),
            Trouble::Gap => ("gap", 0),
            Trouble::Passing(word) => (word.as_str(), BACKOFF_MIN),
            Trouble::Unproven(_) | Trouble::Poison(_) | Trouble::Fatal(_) => {
                unreachable!("settled without another try")
            }
        };
        let slot = &mut self.slots[usize::from(it.slot)];
        if !matches!(trouble, Trouble::Gap) {
            slot.tries = slot.tries.saturating_add(1);
        }
        let tries = u32::from(slot.tries);
        self.shared.stats.count_retries(&name.to_lowercase(), 1);
        // The first redirect costs nothing; a call that is sent in circles waits longer and longer.
        let delay = match delay {
            0 if tries <= 3 => 0,
            delay => jittered((delay.max(MILLISECOND) << tries.saturating_sub(1).min(8)).min(BACKOFF_MAX)),
        };
        let rounds = &mut self.work(at.0).rounds;
        *rounds = (*rounds).max(u64::from(tries) + 1);
        self.hold(it.slot, at, now_ns() + delay);
        let held = self.held.get_mut(&it.slot).expect("just held");
        match trouble {
            Trouble::Moved(slot, address) => {
                match to {
                    Some(owner) => {
                        self.nodes.set_owner(slot, owner);
                        self.count_owners();
                    }
                    None => self.lead_astray(from, it.slot, address),
                }
                (self.doubt)();
            }
            Trouble::Ask(address) => {
                held.migrating = true;
                match to {
                    // Only the first may follow: those behind it are asked about when it is their turn.
                    Some(number) if held.queue.front() == Some(&at) => held.asking = Some(number),
                    Some(_) => {}
                    None => {
                        self.lead_astray(from, it.slot, address);
                        (self.doubt)();
                    }
                }
            }
            Trouble::TryAgain => held.migrating = true,
            Trouble::NoScript => {
                let node = &mut self.nodes[from];
                if let Some(id) = node.connection
                    && !matches!(node.flying.back(), Some(Flying::Other))
                {
                    write_command(io.output(id), &["SCRIPT", "LOAD", GUARD]);
                    node.flying.push_back(Flying::Other);
                }
            }
            Trouble::Passing(word) => {
                (self.doubt)();
                let address = self.nodes.address(from).to_string();
                self.note(format!("{address} says {word}; waiting until that has passed"));
            }
            Trouble::Gap | Trouble::Unproven(_) | Trouble::Poison(_) | Trouble::Fatal(_) => {}
        }
        self.look = true;
    }

    /// A redirect to a node that is not to be followed: the slot waits for a topology that has the node.
    fn lead_astray(&mut self, from: u16, slot: u16, to: String) {
        let sender = self.nodes.address(from).to_string();
        self.note(format!(
            "{sender}: a redirect to {to} is not followed: the topology has no such node; looking again"
        ));
        if let Some(held) = self.held.get_mut(&slot) {
            held.stranger = Some(to);
        }
    }

    fn place(&self, work: u64, call: u32) -> String {
        let batch = &self.works[(work - self.first) as usize].batch;
        let record = &batch.records[self.call(work, call).record as usize];
        let origin = &batch.origins[record.origin as usize];
        format!("{} [{}] at {}", origin.topic, origin.partition, record.offset)
    }

    /// Sets a message aside, with the reason.
    pub(super) fn bury(&mut self, work: u64, record: u32, reason: String) {
        let it = self.work(work);
        let record = it.batch.records[record as usize];
        if it
            .dead
            .iter()
            .all(|l| (l.origin.as_ref(), l.offset) != (&*it.batch.origins[record.origin as usize], record.offset))
        {
            let letter = Letter::new(&it.batch, &record, reason);
            it.dead.push(letter);
        }
    }

    pub(super) fn done(&mut self, work: u64) {
        let it = self.work(work);
        it.left -= 1;
        if it.left == 0 && it.next == it.batch.records.len() {
            self.acknowledge(work);
        }
    }
}
