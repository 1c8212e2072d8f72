//! The event loop: PING ten times a second and INFO once, at every node, on one connection each.
//!
//! A question is never sent while the one before it is unanswered, so a server that stands still is asked nothing more,
//! and its first word says for how long it stood.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::ClientConfig;
use unslow_client::{Options, Target};
use unslow_facts::Lack;
use unslow_nodes::{Author, Backoff, Greeting, Kind as Refused, Plan, Progress, Refusal, Step};
use unslow_probe::Tally;
use unslow_reactor::{Closed, Handler, Id, Io, Peer, now_ns, tls_of};
use unslow_resp::{Frame, Kind, Scan, Scanner, write_command};
use unslow_series::Stamp;

use crate::closer::{Begun, Closer, is_deep};
use crate::notes::{NodeNumber, Note, Owing, Saw, Waiting};
use crate::pings::Pings;
use crate::scheme::{Away, LookedFor, STALLS_FROM, Stall, TELL_AGAIN_MS};

const MS: u64 = 1_000_000;
/// How often a node is asked.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// From one PING to the next.
    tick: Duration,
    /// INFO is asked for in every so many ticks.
    ticks_per_info: u64,
    /// Event loops that dial.
    eyes: u64,
    /// An answer that takes at least as long is a stall.
    stall: Duration,
}

impl Pace {
    /// Ten PINGs and one INFO a second.
    pub const RECORDED: Pace =
        Pace { tick: Duration::from_millis(100), ticks_per_info: 10, eyes: 1, stall: STALLS_FROM };
    /// Of many servers that a person looks at: two PINGs a second, and INFO every 2.5 s.
    pub const OF_MANY: Pace = Pace { tick: Duration::from_millis(500), ticks_per_info: 5, eyes: 1, stall: STALLS_FROM };

    /// The same pace, with the dialling split among this many event loops.
    pub fn among(self, eyes: usize) -> Pace {
        Pace { eyes: eyes as u64, ..self }
    }

    /// The same pace, with stalls from this length on.
    pub fn stalls_from(self, stall: Duration) -> Pace {
        Pace { stall, ..self }
    }

    fn tick_ns(self) -> u64 {
        self.tick.as_nanos() as u64
    }

    fn stall_us(self) -> u64 {
        self.stall.as_micros() as u64
    }
}

/// So many moments within a tick.
const GROUPS: u64 = 5;
/// A connection that has owed an answer for this long is given up, once: whether a second one is answered tells a hung
/// process from a lost connection.
const PATIENCE: u64 = 3_000 * MS;
/// The second one is kept for this long.
const PATIENCE_HUNG: u64 = 60_000 * MS;
const FIRST_PAUSE: u64 = 200 * MS;
const LONGEST_PAUSE: u64 = 5_000 * MS;
/// New nodes are dialled this far apart, over all event loops: the first row of a node, with all its texts, costs the
/// one thread that writes as much as ten others.
const NEWCOMER_APART: u64 = 5 * MS;
/// A node that stays away is told again, so that a reader need not look far back.
const TELL_AGAIN: u64 = TELL_AGAIN_MS * MS;
/// Of an error that is kept.
const WHY_MAX: usize = 300;
/// What a connection may send before the end of a reply: INFO ALL of a thousand commands and error codes takes 200 kB.
pub const INPUT_MAX: usize = 4 << 20;

/// What the event loop is told.
pub enum Order {
    /// Asks this node from now on, or at another address than before.
    Ask {
        node: NodeNumber,
        target: Box<Target>,
        peer: Peer,
        /// Shared with everyone else who queries this node.
        tally: Tally,
    },
    /// Looks at it closely for a while, unless it did a moment ago.
    LookCloser(NodeNumber, LookedFor),
    /// Asks it no more.
    Leave(NodeNumber),
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Question {
    Ping,
    Info,
}

impl Question {
    fn name(self) -> &'static str {
        match self {
            Question::Ping => "ping",
            Question::Info => "info",
        }
    }
}

/// What says that a node is away, and so what says that it is back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Teller {
    /// No connection, no word on it, or no welcome.
    Connection,
    /// A question that is refused.
    Answer(Question),
}

struct Link {
    target: Target,
    peer: Peer,
    connection: Option<Id>,
    greeting: Greeting,
    ready: bool,
    /// Whether the connection stands: a host that takes none does not hang.
    opened: bool,
    /// Whether a question was answered on it.
    served: bool,
    asked: VecDeque<(Question, u64)>,
    /// Since when an answer is owed, over all connections.
    owes_since: Option<u64>,
    /// When it was last dialled.
    dialled_at: u64,
    /// Connections that were given up because nothing was said on them, since the last word.
    given_up: u32,
    dial_at: u64,
    backoff: Backoff,
    ticks: u64,
    info_due: bool,
    next_tick: u64,
    pings: Pings,
    tally: Tally,
    /// What was last told of it, by what, and when.
    away: Option<(Away, Teller)>,
    told_at: u64,
    deep_at: Begun,
    /// Whether it was told that an answer is owed.
    is_told_owing: bool,
}

/// All nodes of one thread.
pub struct Eye {
    options: Options,
    tls: Option<Arc<ClientConfig>>,
    orders: Receiver<Order>,
    seen: SyncSender<Note>,
    links: HashMap<NodeNumber, Link>,
    by_connection: HashMap<Id, NodeNumber>,
    waiting: Arc<Waiting>,
    pace: Pace,
    closer: Closer,
    /// When the last newcomer is dialled.
    last_dial_at: u64,
    /// Told of nodes that owe an answer, where somebody looks at their processes.
    owing: Option<SyncSender<Owing>>,
}

impl Eye {
    pub fn new(
        pace: Pace,
        options: Options,
        tls: Option<Arc<ClientConfig>>,
        orders: Receiver<Order>,
        seen: SyncSender<Note>,
        waiting: Arc<Waiting>,
        owing: Option<SyncSender<Owing>>,
    ) -> Eye {
        let (links, by_connection, closer) = (HashMap::new(), HashMap::new(), Closer::default());
        Eye { options, tls, orders, seen, links, by_connection, waiting, pace, closer, last_dial_at: 0, owing }
    }

    fn obey(&mut self, io: &mut Io, order: Order) {
        match order {
            Order::Stop => io.stop(),
            Order::LookCloser(node, why) => self.look_closer(node, why),
            Order::Leave(node) => {
                self.hang_up(io, node);
                self.links.remove(&node);
                tell_owing(self.owing.as_ref(), Owing::Over(node));
            }
            Order::Ask { node, target, peer, tally } => match self.links.get_mut(&node) {
                Some(link) => {
                    if link.peer != peer || link.target != *target {
                        (link.peer, link.target, link.dial_at) = (peer, *target, 0);
                        // What it owes was another server's debt.
                        if link.is_told_owing {
                            link.is_told_owing = !tell_owing(self.owing.as_ref(), Owing::Over(node));
                        }
                        self.hang_up(io, node);
                    }
                }
                None => {
                    // Nodes take turns within a tick, in groups: each wake-up costs as much as a question.
                    let tick = self.pace.tick_ns();
                    let next_tick = (now_ns() / tick + 1) * tick + node as u64 % GROUPS * (tick / GROUPS);
                    io.timer(next_tick, node as u64);
                    self.last_dial_at = now_ns().max(self.last_dial_at + NEWCOMER_APART * self.pace.eyes);
                    let ticks = node as u64 / GROUPS % self.pace.ticks_per_info;
                    let mut link = Link::new(*target, peer, tally, next_tick, ticks);
                    link.dial_at = self.last_dial_at;
                    self.links.insert(node, link);
                }
            },
        }
    }

    /// Unless it did a moment ago.
    fn look_closer(&mut self, node: NodeNumber, why: LookedFor) {
        let Some(link) = self.links.get_mut(&node) else { return };
        if self.closer.look(&mut link.deep_at, now_ns()) {
            self.tell(node, Saw::Looked(why));
        }
    }

    /// False if it was lost.
    fn tell(&mut self, node: NodeNumber, saw: Saw) -> bool {
        self.waiting.tell(&self.seen, Note::Saw(node, stamp(), saw))
    }

    fn tick(&mut self, io: &mut Io, node: NodeNumber) {
        let (now, tick) = (now_ns(), self.pace.tick_ns());
        let Some(link) = self.links.get_mut(&node) else { return };
        link.next_tick += tick;
        if link.next_tick <= now {
            // This process was held up: what was missed is not made up for.
            link.next_tick += (now - link.next_tick) / tick * tick + tick;
        }
        link.ticks += 1;
        link.info_due |= link.ticks % self.pace.ticks_per_info == 0 || is_deep(link.deep_at, now);
        io.timer(link.next_tick, node as u64);
        if link.is_kept_waiting(now, self.pace.stall_us()) {
            link.is_told_owing = true;
            tell_owing(self.owing.as_ref(), Owing::Still(node));
        }
        let Some(connection) = link.connection else {
            if now >= link.dial_at {
                self.dial(io, node, now);
            }
            return;
        };
        let patience = if link.given_up == 0 { PATIENCE } else { PATIENCE_HUNG };
        let owed = link.owes_since.map_or(0, |since| now - since.max(link.dialled_at));
        if link.given_up > 0 && owed > PATIENCE {
            let (why, silent) = match link.opened {
                true => ("it takes connections and answers nothing", true),
                false => ("it takes no connection", false),
            };
            self.is_away(node, why, Lack::Answer, silent, Teller::Connection);
        }
        if owed > patience {
            let Some(link) = self.links.get_mut(&node) else { return };
            link.given_up += 1;
            link.dial_at = 0;
            self.hang_up(io, node);
            return;
        }
        let Some(link) = self.links.get_mut(&node).filter(|l| l.ready && l.asked.is_empty()) else { return };
        let out = io.output(connection);
        write_command(out, &["PING"]);
        link.ask(Question::Ping, now);
        // Both come in one write.
        link.tally.count(|own| own.reads += 1);
        if std::mem::take(&mut link.info_due) {
            write_command(out, &["INFO", "ALL"]);
            link.ask(Question::Info, now);
        }
    }

    fn dial(&mut self, io: &mut Io, node: NodeNumber, now: u64) {
        let Some(link) = self.links.get_mut(&node) else { return };
        let tls = tls_of(&link.target, self.tls.as_ref(), self.options.tls.server_name.as_deref());
        if link.target.tls && tls.is_none() {
            let why = "its name is none that a certificate may have";
            return self.is_away(node, why, Lack::Other, false, Teller::Connection);
        }
        let patience = self.options.connect_timeout.as_nanos() as u64;
        match io.connect(&link.peer, tls.as_ref(), now + patience) {
            Ok(id) => {
                link.connection = Some(id);
                link.dialled_at = now;
                self.by_connection.insert(id, node);
            }
            Err(e) => {
                link.pause(now);
                self.is_away(node, &format!("no connection: {e}"), Lack::Answer, false, Teller::Connection);
            }
        }
    }

    /// Forgets the connection.
    fn hang_up(&mut self, io: &mut Io, node: NodeNumber) {
        let Some(link) = self.links.get_mut(&node) else { return };
        link.is_served_late();
        if let Some(id) = link.lost() {
            self.by_connection.remove(&id);
            io.close(id);
        }
    }

    fn is_away(&mut self, node: NodeNumber, why: &str, lack: Lack, silent: bool, teller: Teller) {
        let Some(link) = self.links.get_mut(&node) else { return };
        let now = now_ns();
        let is_told = link.away.as_ref().is_some_and(|(away, _)| (away.lack, away.silent) == (lack, silent));
        if is_told && now - link.told_at < TELL_AGAIN {
            return;
        }
        let why: String = why.chars().take(WHY_MAX).collect();
        link.told_at = now;
        let owed_ms = link.owes_since.map_or(0, |since| (now - since) / MS);
        let since_ms = link.away.as_ref().map_or_else(|| unix_ms().saturating_sub(owed_ms), |(away, _)| away.since_ms);
        let away = Away { why, lack, silent, since_ms };
        link.away = Some((away.clone(), teller));
        if !self.tell(node, Saw::Away(Some(away)))
            && let Some(link) = self.links.get_mut(&node)
        {
            link.told_at = 0;
        }
    }

    /// It is back, if that is what said that it was away.
    fn is_back(&mut self, node: NodeNumber, teller: Teller) {
        let Some(link) = self.links.get_mut(&node) else { return };
        let Some(was) = link.away.take_if(|(_, told_by)| *told_by == teller) else { return };
        if !self.tell(node, Saw::Away(None))
            && let Some(link) = self.links.get_mut(&node)
        {
            // Its next word tells it again.
            link.away = Some(was);
        }
        self.look_closer(node, LookedFor::Back);
    }

    /// A word of a node, whatever it says. `is_short` where it was a short question that it answers: what it takes to
    /// write an INFO is no stall.
    fn heard(&mut self, node: NodeNumber, now: u64, is_short: bool) {
        let Some(link) = self.links.get_mut(&node) else { return };
        link.given_up = 0;
        let owed_us = link.owes_since.map_or(0, |since| (now - since) / 1000);
        if link.is_told_owing {
            link.is_told_owing = !tell_owing(self.owing.as_ref(), Owing::Over(node));
        }
        // What was sent behind it is served from now on.
        link.owes_since = (!link.asked.is_empty()).then_some(now);
        // A host that took no connection did not keep anybody waiting on one.
        let waited = link.away.as_ref().is_none_or(|(away, _)| away.silent);
        if owed_us >= self.pace.stall_us() && is_short && waited {
            self.look_closer(node, LookedFor::Stall);
            self.tell(node, Saw::Stall(Stall { sent_ms: unix_ms().saturating_sub(owed_us / 1000), us: owed_us }));
        }
    }

    fn is_ready(&mut self, node: NodeNumber) {
        let Some(link) = self.links.get_mut(&node) else { return };
        link.ready = true;
        link.backoff.succeeded();
        // The first INFO is not waited for.
        link.info_due = true;
        self.is_back(node, Teller::Connection);
    }

    fn refused(&mut self, io: &mut Io, node: NodeNumber, why: &str, lack: Lack) {
        if let Some(link) = self.links.get_mut(&node) {
            link.pause(now_ns());
        }
        self.hang_up(io, node);
        self.is_away(node, why, lack, false, Teller::Connection);
    }

    fn reply(&mut self, io: &mut Io, node: NodeNumber, bytes: &[u8]) {
        let now = now_ns();
        let frame = Frame::new(bytes);
        let refusal = Refusal::parse(bytes, Author::Server);
        let Some(link) = self.links.get_mut(&node) else { return };
        if let Some(step) = link.greeting.due() {
            let progress = link.greeting.reply(bytes);
            if progress != Progress::Unasked {
                link.answered(name_of(step), refusal.is_some().then(|| frame.text()));
            }
            self.heard(node, now, true);
            match progress {
                Progress::Done { .. } => self.is_ready(node),
                Progress::Refused { passing } => {
                    self.refused(io, node, &step.error_text(bytes), if passing { Lack::Other } else { Lack::Rights });
                }
                Progress::More | Progress::Unasked => {}
            }
            return;
        }
        if frame.kind() == Kind::Push {
            return;
        }
        let Some((question, at)) = link.asked.pop_front() else { return };
        link.served = true;
        link.answered(question.name(), refusal.is_some().then(|| frame.text()));
        self.heard(node, now, question == Question::Ping);
        if let Some(refusal) = refusal {
            return self.no_answer(node, question, refusal, frame.text());
        }
        self.is_back(node, Teller::Answer(question));
        let Some(link) = self.links.get_mut(&node) else { return };
        match question {
            Question::Ping => {
                let us = u32::try_from((now - at) / 1000).unwrap_or(u32::MAX);
                if u64::from(us) < self.pace.stall_us() {
                    link.pings.add(us);
                }
            }
            Question::Info => {
                let (pings, sent) = (std::mem::take(&mut link.pings), link.tally.so_far());
                self.tell(node, Saw::Second { info: frame.text().to_vec(), pings, sent });
            }
        }
    }

    /// A question was refused. Without a PING the rest may be well: an ACL may allow INFO alone.
    fn no_answer(&mut self, node: NodeNumber, question: Question, refusal: Refusal<'_>, text: &[u8]) {
        let lack = match refusal.kind {
            Refused::Auth => Lack::Rights,
            Refused::Denied if question == Question::Ping => return,
            Refused::Denied => Lack::Rights,
            _ if question == Question::Ping && !refusal.passes() => return,
            _ => Lack::Other,
        };
        self.is_away(node, &String::from_utf8_lossy(text), lack, false, Teller::Answer(question));
    }
}

impl Link {
    fn new(target: Target, peer: Peer, tally: Tally, next_tick: u64, ticks: u64) -> Link {
        Link {
            target,
            peer,
            connection: None,
            greeting: Greeting::default(),
            ready: false,
            opened: false,
            served: false,
            asked: VecDeque::new(),
            owes_since: None,
            dialled_at: 0,
            given_up: 0,
            dial_at: 0,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            ticks,
            info_due: false,
            next_tick,
            pings: Pings::default(),
            tally,
            away: None,
            told_at: 0,
            deep_at: None,
            is_told_owing: false,
        }
    }

    fn ask(&mut self, question: Question, now: u64) {
        self.owes_since.get_or_insert(now);
        self.asked.push_back((question, now));
    }

    /// The server counts what it executes and what it refuses, and so do we.
    fn answered(&mut self, name: &str, error: Option<&[u8]>) {
        let Some(text) = error else { return self.tally.count(|own| own.executed(name)) };
        let word = text.split(|b| *b == b' ').next().unwrap_or_default();
        self.tally.count(|own| own.refused(std::str::from_utf8(word).unwrap_or("OTHER")));
    }

    /// Counts commands without a reply on a connection that we close: a hung server executes them when it resumes.
    fn is_served_late(&mut self) {
        let questions = self.asked.iter().map(|(question, _)| question.name());
        let late: Vec<&str> = questions.chain(self.greeting.all_due().map(name_of)).collect();
        self.tally.count(|own| late.iter().for_each(|name| own.executed(name)));
    }

    /// Whether it took a connection and has owed a short answer for as long as makes a stall.
    fn is_kept_waiting(&self, now: u64, stall_us: u64) -> bool {
        if matches!(self.asked.front(), Some((Question::Info, _))) {
            return false; // the PING before it was answered
        }
        let is_reached = self.opened || self.away.as_ref().is_some_and(|(away, _)| away.silent);
        is_reached && self.owes_since.is_some_and(|since| now - since >= stall_us * 1000)
    }

    fn pause(&mut self, now: u64) {
        self.dial_at = now + self.backoff.failed(rand::random_range);
    }

    fn lost(&mut self) -> Option<Id> {
        (self.ready, self.opened, self.served) = (false, false, false);
        self.asked.clear();
        self.greeting = Greeting::default();
        self.connection.take()
    }
}

impl Handler for Eye {
    fn turn(&mut self, io: &mut Io) -> Option<u64> {
        while let Ok(order) = self.orders.try_recv() {
            self.obey(io, order);
        }
        None
    }

    fn opened(&mut self, io: &mut Io, id: Id) {
        let Some(&node) = self.by_connection.get(&id) else { return };
        let Some(link) = self.links.get_mut(&node) else { return };
        let plan = Plan { name: self.options.name, db: 0, ..link.target.plan() };
        link.greeting = Greeting::begin(&plan, io.output(id));
        link.opened = true;
        link.tally.count(|own| own.reads += u64::from(!link.greeting.is_done()));
        if link.greeting.is_done() {
            self.is_ready(node);
        } else {
            link.owes_since.get_or_insert(now_ns());
        }
    }

    fn data(&mut self, io: &mut Io, id: Id, bytes: &[u8]) -> usize {
        let mut used = 0;
        loop {
            // Looked up for each: a reply may end the connection.
            let Some(&node) = self.by_connection.get(&id) else { return bytes.len() };
            match Scanner::default().scan(&bytes[used..]) {
                Ok(Scan::Complete(length)) => {
                    self.reply(io, node, &bytes[used..used + length]);
                    used += length;
                }
                Ok(Scan::Incomplete) => return used,
                Err(why) => {
                    self.refused(io, node, &format!("what it says is not RESP: {why}"), Lack::Other);
                    return bytes.len();
                }
            }
        }
    }

    fn closed(&mut self, _: &mut Io, id: Id, why: Closed) {
        let Some(node) = self.by_connection.remove(&id) else { return };
        let Some(link) = self.links.get_mut(&node) else { return };
        let (has_served, now) = (link.served, now_ns());
        link.lost();
        if has_served {
            // The first attempt to come back is at once: CLIENT KILL closes connections of healthy servers.
            link.dial_at = now;
            return;
        }
        link.pause(now);
        self.is_away(node, &why.to_string(), Lack::Answer, false, Teller::Connection);
    }

    fn timer(&mut self, io: &mut Io, key: u64) {
        self.tick(io, key as NodeNumber);
    }
}

/// As commandstats names it.
fn name_of(step: Step) -> &'static str {
    if matches!(step, Step::Auth | Step::AuthAnew) { "auth" } else { "client|setname" }
}

/// False where there is no room: a look is left out, or the end is told with the next answer.
fn tell_owing(told: Option<&SyncSender<Owing>>, word: Owing) -> bool {
    told.is_none_or(|told| told.try_send(word).is_ok())
}

/// Both clocks, now.
pub fn stamp() -> Stamp {
    Stamp { wall_ms: unix_ms() as i64, mono_ms: now_ns() / MS }
}

pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64
}
