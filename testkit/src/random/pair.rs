//! A client's two connections: one to what is right by definition, one to what is tested. Both get the same bytes, and
//! their replies are compared.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use unslow_resp::Frame;

use super::differences::{Difference, Exchange, Then, Verdict};
use super::generator::keys;
use super::session::{Multi, Pipeline, Planned, Said, State, Step, Tag, Words, word};
use super::stage::Stage;
use crate::wire::{End, Heard, Until, Wire, command, comparable_pushes, shown};

pub struct Pair {
    pub tag: Tag,
    pub state: State,
    /// All steps since the connections were opened.
    pub steps: Vec<Step>,
    cluster: bool,
    patience: Duration,
    differences: &'static [Difference],
    addresses: [String; 2],
    direct: Wire,
    tested: Wire,
    publishers: Option<[Wire; 2]>,
    messages: Messages,
    tokens: u64,
}

/// What the tested side has pushed. Nodes of a cluster pass messages on: who leaves its last subscription and
/// subscribes again on another node may get there, late, what it has had already.
#[derive(Default)]
struct Messages {
    had: BTreeSet<Vec<u8>>,
    /// Before the client left its last subscription.
    left: BTreeSet<Vec<u8>>,
}

impl Messages {
    /// Whether it has come before the client left its last subscription, and is not what the other side has got now.
    fn again(&self, push: &[u8], expected: &[Vec<u8>]) -> bool {
        self.left.contains(push) && !expected.iter().any(|other| other.as_slice() == push)
    }

    /// `subscribed`: the client has subscriptions after these.
    fn add(&mut self, pushes: Vec<Vec<u8>>, subscribed: bool) {
        self.had.extend(pushes);
        if !subscribed {
            self.left.append(&mut self.had);
        }
    }
}

/// A pipeline in flight.
pub struct Sent {
    planned: Planned,
    said: Vec<Said>,
    pieces: VecDeque<Range<usize>>,
}

/// The result of a step.
#[derive(Default)]
pub struct Outcome {
    /// Names of the documented differences it showed.
    pub known: Vec<&'static str>,
    pub found: Option<Finding>,
    /// The connections are closed or no longer in the same state.
    pub over: bool,
}

/// A difference that is not documented.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The difference without random parts: findings with the same title most likely have the same cause.
    pub title: String,
    pub direct: String,
    pub tested: String,
}

impl Finding {
    /// With the names of the two sides.
    pub fn told(&self, [direct, tested]: [&str; 2]) -> String {
        format!("{}\n  {direct}: {}\n  {tested}: {}", self.title, self.direct, self.tested)
    }
}

impl Pair {
    #[track_caller]
    pub fn open(tag: Tag, stage: &Stage, patience: Duration) -> Pair {
        let addresses = stage.addresses(tag);
        let [direct, tested] = [&addresses[0], &addresses[1]].map(|address| Wire::open(address, patience));
        Pair {
            tag,
            state: State::default(),
            steps: Vec::new(),
            cluster: stage.cluster,
            patience,
            differences: stage.differences,
            addresses,
            direct,
            tested,
            publishers: None,
            messages: Messages::default(),
            tokens: 0,
        }
    }

    /// Closes the connections and deletes the client's keys on both sides: a run of hours needs the memory of one of
    /// minutes.
    pub fn close(self) {
        let Pair { tag, cluster, patience, addresses, direct, tested, publishers, .. } = self;
        drop((direct, tested, publishers));
        // In a cluster nobody gets beyond the first database.
        let databases: &[&str] = if cluster { &["0"] } else { &["0", "1", "2"] };
        let (mut bytes, mut replies) = (Vec::new(), 0);
        for &database in databases {
            bytes.extend(command(&["SELECT", database]));
            for tag in [tag.own(), tag.other()] {
                let words = [vec![b"UNLINK".to_vec()], keys(&tag)].concat();
                bytes.extend(command(&words));
            }
            replies += 3;
        }
        for address in &addresses {
            // A node of a cluster refuses the slot of another one, which has nothing from this side either.
            let mut wire = Wire::open(address, patience);
            wire.write(&bytes);
            wire.hear(&Until::Replies(replies), 0);
        }
    }

    /// Runs a whole step while the other clients are idle.
    pub fn run(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Publish(words) => self.publish(words),
            Step::Pipeline(pipeline) => {
                let mut sent = self.begin(pipeline);
                while self.write(&mut sent) {}
                self.finish(sent)
            }
        }
    }

    /// Prepares a pipeline without sending it.
    pub fn begin(&mut self, pipeline: &Pipeline) -> Sent {
        self.steps.push(Step::Pipeline(pipeline.clone()));
        self.tokens += 1;
        let planned = Planned::new(&self.state, &pipeline.said, &format!("token-{}", self.tokens));
        let pieces = pieces(planned.bytes.len(), pipeline.cuts);
        Sent { planned, said: pipeline.said.clone(), pieces }
    }

    /// Sends the next piece both ways; false if none was left.
    pub fn write(&mut self, sent: &mut Sent) -> bool {
        let Some(piece) = sent.pieces.pop_front() else { return false };
        let bytes = &sent.planned.bytes[piece];
        self.direct.write(bytes);
        self.tested.write(bytes);
        true
    }

    /// Reads and compares all replies.
    pub fn finish(&mut self, sent: Sent) -> Outcome {
        let Sent { planned, said, .. } = sent;
        let direct = self.direct.hear(&planned.until, 0);
        let mut outcome = Outcome::default();
        let tested = self.hear_tested(&planned.until, direct.pushes.len(), &direct.pushes, &mut outcome);
        let ends = [direct.end, tested.end];
        outcome.over |= ends != [End::Open; 2];
        let aborted = ends == [End::Closed; 2] && said.iter().any(Said::looks_like_http);
        let mut state = self.state.clone();
        for at in 0..direct.replies.len().max(tested.replies.len()) {
            let words = planned.answers.get(at).map_or(&[][..], |said_at| said[*said_at].words.as_slice());
            let exchange = Exchange {
                cluster: self.cluster,
                words,
                queued: &state.queued,
                within: state.multi != Multi::No,
                watch_left: state.watch_left,
                aborted,
                again: false,
                direct: direct.replies.get(at).map(Vec::as_slice),
                tested: tested.replies.get(at).map(Vec::as_slice),
            };
            if !outcome.take(&exchange, ends, self.differences) {
                return outcome;
            }
            if let Some(reply) = direct.replies.get(at) {
                state.learn(words, reply);
            }
        }
        outcome.compare_rest(&direct, &tested);
        self.state = State { channels: planned.after.channels, ..state };
        self.messages.add(tested.pushes, !self.state.channels.is_empty());
        outcome
    }

    /// Reads what the tested side says, as [`Wire::hear`]; messages that come once more are counted where that is
    /// documented, and left out.
    fn hear_tested(&mut self, until: &Until, pushes: usize, expected: &[Vec<u8>], outcome: &mut Outcome) -> Heard {
        let mut heard = self.tested.hear(until, pushes);
        loop {
            let before = heard.pushes.len();
            heard.pushes.retain(|push| {
                let known = self.documented_again(push, expected);
                outcome.over |= known.is_some_and(|known| known.then == Then::StartAfresh);
                outcome.known.extend(known.map(|known| known.name));
                known.is_none()
            });
            let missing = pushes.saturating_sub(heard.pushes.len());
            if heard.pushes.len() == before || missing == 0 || heard.end != End::Open {
                return heard;
            }
            let more = self.tested.hear(&Until::Replies(0), missing);
            heard.pushes.extend(more.pushes);
            heard.replies.extend(more.replies);
            heard.end = more.end;
        }
    }

    fn documented_again(&self, push: &[u8], expected: &[Vec<u8>]) -> Option<&'static Difference> {
        if !self.messages.again(push, expected) {
            return None;
        }
        let exchange = Exchange {
            cluster: self.cluster,
            words: &[],
            queued: &[],
            within: false,
            watch_left: false,
            aborted: false,
            again: true,
            direct: None,
            tested: Some(push),
        };
        match exchange.verdict(self.differences) {
            Verdict::Known(known) => Some(known),
            Verdict::Same | Verdict::Unknown => None,
        }
    }

    /// Publishes the same message both ways, from other connections.
    fn publish(&mut self, words: &Words) -> Outcome {
        self.steps.push(Step::Publish(words.clone()));
        let (addresses, patience) = (&self.addresses, self.patience);
        let open = || [&addresses[0], &addresses[1]].map(|address| Wire::open(address, patience));
        let publishers = self.publishers.get_or_insert_with(open);
        let [direct, tested] = publishers;
        let [direct, tested] = [direct, tested].map(|wire| {
            wire.write(&command(words));
            wire.hear(&Until::Replies(1), 0)
        });
        let exchange = Exchange {
            cluster: self.cluster,
            words,
            queued: &[],
            within: false,
            watch_left: false,
            aborted: false,
            again: false,
            direct: direct.replies.first().map(Vec::as_slice),
            tested: tested.replies.first().map(Vec::as_slice),
        };
        let mut outcome = Outcome::default();
        if !outcome.take(&exchange, [direct.end, tested.end], self.differences) {
            return outcome;
        }
        let count = exchange.direct.and_then(|reply| Frame::new(reply).integer()).unwrap_or(0);
        let count = usize::try_from(count).unwrap_or(0);
        let direct = self.direct.hear(&Until::Replies(0), count);
        let tested = self.hear_tested(&Until::Replies(0), count, &direct.pushes, &mut outcome);
        outcome.over |= [direct.end, tested.end] != [End::Open; 2];
        outcome.compare_rest(&direct, &tested);
        self.messages.add(tested.pushes, !self.state.channels.is_empty());
        outcome
    }
}

impl Outcome {
    /// Adds one comparison; false if nothing after it can be compared.
    fn take(&mut self, exchange: &Exchange<'_>, ends: [End; 2], differences: &'static [Difference]) -> bool {
        match exchange.verdict(differences) {
            Verdict::Same => true,
            Verdict::Known(difference) => {
                self.known.push(difference.name);
                self.over |= difference.then == Then::StartAfresh;
                difference.then == Then::Continue
            }
            Verdict::Unknown => {
                let name = word(exchange.words, 0);
                let name = if name.is_empty() { "bytes that are no command".into() } else { name };
                let [a, b] = [(exchange.direct, ends[0]), (exchange.tested, ends[1])];
                let within = if exchange.within { " within MULTI" } else { "" };
                let title = format!("{name}{within}: {} is not {}", kind(b.0, b.1), kind(a.0, a.1));
                self.find(title, text(a.0, a.1), text(b.0, b.1));
                false
            }
        }
    }

    /// Compares the ends of the connections and the pushes. A connection that is closed may miss the last pushes.
    fn compare_rest(&mut self, direct: &Heard, tested: &Heard) {
        if direct.end != tested.end {
            let title = format!("the connection: {:?} is not {:?}", tested.end, direct.end);
            self.find(title, format!("{:?}", direct.end), format!("{:?}", tested.end));
        } else if matches!(direct.end, End::Silent | End::Garbled) {
            let title = format!("{:?} on both sides: the test expects a reply that servers do not send", direct.end);
            self.find(title, format!("{:?}", direct.replies.len()), format!("{:?}", tested.replies.len()));
        } else if direct.end == End::Open && comparable_pushes(&direct.pushes) != comparable_pushes(&tested.pushes) {
            self.find("messages".into(), shown(&direct.pushes.concat()), shown(&tested.pushes.concat()));
        }
    }

    fn find(&mut self, title: String, direct: String, tested: String) {
        self.over = true;
        self.found = Some(Finding { title, direct, tested });
    }
}

/// A reply without random parts.
fn kind(reply: Option<&[u8]>, end: End) -> String {
    let Some(reply) = reply else { return format!("{end:?}") };
    let line = reply.split(|b| *b == b'\r').next().unwrap_or_default();
    match line.first() {
        Some(b'-') => line.split(|b| *b == b' ').next().unwrap_or_default().escape_ascii().to_string(),
        Some(b'+') => line.escape_ascii().to_string(),
        Some(_) if matches!(line, b"$-1" | b"*-1" | b"_") => "a null".into(),
        Some(b':') => "a number".into(),
        Some(b'$') => "a string".into(),
        Some(b'*' | b'~') => "an array".into(),
        Some(b'%') => "a map".into(),
        _ => "another value".into(),
    }
}

fn text(reply: Option<&[u8]>, end: End) -> String {
    reply.map_or_else(|| format!("{end:?}"), shown)
}

/// Cuts `len` bytes at up to six random places.
fn pieces(len: usize, cuts: Option<u64>) -> VecDeque<Range<usize>> {
    let mut ends: Vec<usize> = match cuts {
        None => Vec::new(),
        Some(seed) => {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..rng.random_range(1..=6)).map(|_| rng.random_range(0..=len)).collect()
        }
    };
    ends.push(len);
    ends.sort_unstable();
    let begins = std::iter::once(0).chain(ends.iter().copied());
    begins.zip(ends.iter().copied()).map(|(from, to)| from..to).filter(|piece| !piece.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_again_only_once_all_subscriptions_were_left() {
        let push = |text: &str| text.as_bytes().to_vec();
        let mut messages = Messages::default();
        messages.add(vec![push("one")], true);
        assert!(!messages.again(&push("one"), &[]), "a second time to the same subscription");
        messages.add(vec![push("two")], false);
        messages.add(vec![push("three")], true);
        assert!(messages.again(&push("one"), &[push("four")]));
        assert!(messages.again(&push("two"), &[]));
        assert!(!messages.again(&push("one"), &[push("one")]), "the other side has it too");
        assert!(!messages.again(&push("three"), &[]) && !messages.again(&push("four"), &[]));
    }
}
