//! A few threads that ask what takes longer: discovery, and the expensive questions of each node in turn. One that
//! hangs keeps one thread for as long as the options' timeouts.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::mpsc::{Sender, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use unslow_client::{Deployment, Options, Target, discover};
use unslow_facts::Node;
use unslow_probe::{Inquiry, Round, Salt, Tally};
use unslow_reactor::{Waker, peer_of};
use unslow_topology::{DeploymentKind, Member, Role};

use crate::closer::CALM;
use crate::eye::{Order, stamp};
use crate::notes::{NodeNumber, Note, Questions};
use crate::scheme::{Listed, Listing, LookedFor, TELL_AGAIN_MS};

/// Every so many rounds all of it is asked.
pub const ROUNDS_PER_WHOLE: u32 = 6;
/// It is rare where nothing changes.
const DISCOVER: Duration = Duration::from_secs(600);
/// Not more than one server is asked within this: of hundreds each is asked more rarely.
const PACE: Duration = Duration::from_millis(50);
/// What has changed is noticed so much later at most: from one INFO to the next.
const NOTICED: Duration = Duration::from_millis(1_100);
/// While nothing is to be asked.
const IDLE: Duration = Duration::from_secs(60);
/// A failover changes several servers within moments.
const SOON: Duration = Duration::from_secs(1);
/// A deployment that cannot be discovered is told again as it was.
const LIST_AGAIN: Duration = Duration::from_millis(TELL_AGAIN_MS);
/// While it does not answer.
const DISCOVER_AGAIN: Duration = Duration::from_secs(10);
/// A node whose figures jump again and again has an early round this often at most.
const CALM_AFTER_JUMP: Duration = Duration::from_secs(30);
/// At most this many nodes have one in that time: a few of them show what all have in common.
const JUMPED_AT_ONCE: usize = 16;
/// A node that is not listed any more is asked for this long: a dead replica is not in its master's list either.
const UNLISTED: Duration = Duration::from_secs(600);

/// Readers look back eleven minutes: parts must be written again within them, and are in whole rounds only.
fn rounds_per_whole(every: Duration) -> u32 {
    const WHOLE: Duration = Duration::from_secs(180);
    u32::try_from(WHOLE.as_millis() / every.as_millis().max(1)).unwrap_or(u32::MAX).clamp(1, ROUNDS_PER_WHOLE)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Job {
    Discover(usize),
    Sentinels(usize),
    Ask(NodeNumber),
}

struct Watched {
    target: Target,
    url: String,
    numbers: HashMap<String, Number>,
    /// What was found last, and when that was told.
    listing: Option<(Listing, Instant)>,
    sentinels: Vec<(Member, Target)>,
}

struct Number {
    number: NodeNumber,
    tally: Tally,
    unlisted: Option<Instant>,
}

struct Asked {
    /// With its thread while it is asked.
    inquiry: Option<Inquiry>,
    round: u32,
    /// When a whole round was asked for early, by [`Why`].
    hurried: [Option<Instant>; 2],
    /// Another one is wanted once the one that is in progress is over.
    again: bool,
    /// When what the next round is asked for began.
    because: Option<Instant>,
    /// When it is asked next; jobs of other times are out of date.
    due: Instant,
}

/// Why all questions are asked now, and not when they are due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A node stood still, changed places, or has a grave finding.
    Stood,
    /// Its figures are not what they were.
    Jumped,
}

impl Why {
    /// Not again for the same reason within this.
    fn calm(self, every: Duration) -> Duration {
        match self {
            Why::Stood => CALM,
            // So they double the price of whole rounds at most.
            Why::Jumped => CALM_AFTER_JUMP.max(every * rounds_per_whole(every) / 2),
        }
    }
}

#[derive(Default)]
struct State {
    jobs: BinaryHeap<Reverse<(Instant, Job)>>,
    watched: Vec<Watched>,
    asked: HashMap<NodeNumber, Asked>,
    /// The newest answer of each node, for those who look at its machine.
    nodes: HashMap<NodeNumber, Arc<Node>>,
    next_number: NodeNumber,
    /// When rounds were asked for because of jumps.
    jumped: VecDeque<Instant>,
    ended: bool,
}

/// Shared by the threads.
pub struct Inquirers {
    /// From one round to the next, unless there are more servers than [`PACE`] allows for.
    every: Duration,
    options: Options,
    salt: Arc<Salt>,
    notes: SyncSender<Note>,
    eyes: Vec<(Sender<Order>, Waker)>,
    /// Whether answers are kept, and told whole in every round: for one who looks at the nodes' machine, or shows them.
    keeps_answers: bool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Inquirers {
    pub fn new(
        every: Duration,
        options: Options,
        salt: Salt,
        notes: SyncSender<Note>,
        eyes: Vec<(Sender<Order>, Waker)>,
        keeps_answers: bool,
    ) -> Inquirers {
        let (salt, state) = (Arc::new(salt), Mutex::default());
        Inquirers { every, options, salt, notes, eyes, keeps_answers, state, changed: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to watch a deployment. One that was not found yet is a server that does not answer.
    pub fn watch(&self, target: Target, found: Option<&Deployment>) {
        let place = {
            let mut state = self.state();
            state.watched.push(Watched {
                url: target.url(),
                target: target.clone(),
                numbers: HashMap::new(),
                listing: None,
                sentinels: Vec::new(),
            });
            state.watched.len() - 1
        };
        match found {
            Some(found) => self.found(place, found),
            None => self.not_found(place, &target),
        }
        let pause = if found.is_some() { DISCOVER } else { DISCOVER_AGAIN };
        self.later(Job::Discover(place), pause);
        self.later(Job::Sentinels(place), self.every * ROUNDS_PER_WHOLE);
    }

    /// What a node says of itself has changed.
    pub fn discover_soon(&self, number: NodeNumber) {
        let mut state = self.state();
        let has = |w: &Watched| w.numbers.values().any(|n| n.number == number);
        let Some(place) = state.watched.iter().position(has) else { return };
        let soon = Instant::now() + SOON;
        let is_planned = |job: &Reverse<(Instant, Job)>| job.0.1 == Job::Discover(place) && job.0.0 <= soon;
        if !state.jobs.iter().any(is_planned) {
            state.jobs.retain(|job| job.0.1 != Job::Discover(place));
            state.jobs.push(Reverse((soon, Job::Discover(place))));
            drop(state);
            self.changed.notify_one();
        }
    }

    /// The number of a server that is watched.
    pub fn number(&self, url: &str, address: &str) -> Option<NodeNumber> {
        let state = self.state();
        let watched = state.watched.iter().find(|watched| watched.url == url)?;
        watched.numbers.get(address).map(|number| number.number)
    }

    /// Something happens there that is worth every question.
    pub fn look_closer(&self, number: NodeNumber, why: LookedFor) {
        self.order(number, Order::LookCloser(number, why));
        let (reason, is_change) = match why {
            LookedFor::Errors => (Why::Jumped, true),
            LookedFor::Topology => (Why::Stood, true),
            _ => (Why::Stood, false),
        };
        self.ask_soon(number, reason, is_change);
    }

    /// All questions to a node, at once, unless that was asked for a moment ago. `is_change` where something is
    /// different since the INFO before this one.
    pub fn ask_soon(&self, number: NodeNumber, why: Why, is_change: bool) {
        let mut state = self.state();
        let calm = why.calm(self.pace(&state));
        while state.jumped.front().is_some_and(|at| at.elapsed() > CALM_AFTER_JUMP) {
            state.jumped.pop_front();
        }
        if why == Why::Jumped && state.jumped.len() >= JUMPED_AT_ONCE {
            return;
        }
        let is_calm = |asked: &&mut Asked| asked.hurried[why as usize].is_none_or(|at| at.elapsed() > calm);
        let Some(asked) = state.asked.get_mut(&number).filter(is_calm) else { return };
        (asked.round, asked.hurried[why as usize]) = (0, Some(Instant::now()));
        asked.because = is_change.then(|| Instant::now().checked_sub(NOTICED)).flatten();
        asked.again = asked.inquiry.is_none(); // its thread sees to it
        let is_asked_now = asked.again;
        asked.due = Instant::now();
        let due = asked.due;
        if why == Why::Jumped {
            state.jumped.push_back(Instant::now());
        }
        if is_asked_now {
            return;
        }
        state.jobs.retain(|job| job.0.1 != Job::Ask(number));
        state.jobs.push(Reverse((due, Job::Ask(number))));
        drop(state);
        self.changed.notify_one();
    }

    /// The nodes that were asked: of their last answers what finds their processes.
    pub fn nodes(&self) -> Vec<(NodeNumber, Node)> {
        let of = |node: &Node| Node {
            last: node.last.clone(),
            config: node.config.clone(),
            ..Node::new(&node.address, node.role)
        };
        self.state().nodes.iter().map(|(number, node)| (*number, of(node))).collect()
    }

    /// From one round of a node to the next.
    fn pace(&self, state: &State) -> Duration {
        self.every.max(PACE * u32::try_from(state.asked.len()).unwrap_or(u32::MAX))
    }

    pub fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// One thread.
    pub fn run(&self) {
        while let Some((at, job)) = self.next() {
            match job {
                Job::Discover(place) => self.discover(place),
                Job::Sentinels(place) => {
                    self.sentinels(place);
                    self.later(Job::Sentinels(place), self.every * ROUNDS_PER_WHOLE);
                }
                Job::Ask(number) => self.ask(number, at),
            }
        }
    }

    /// The next job, and when it was due.
    fn next(&self) -> Option<(Instant, Job)> {
        let mut state = self.state();
        loop {
            if state.ended {
                return None;
            }
            let now = Instant::now();
            let wait = match state.jobs.peek() {
                Some(Reverse((at, _))) if *at <= now => return state.jobs.pop().map(|Reverse(due)| due),
                Some(Reverse((at, _))) => *at - now,
                None => IDLE,
            };
            state = self.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn later(&self, job: Job, pause: Duration) {
        self.state().jobs.push(Reverse((Instant::now() + pause, job)));
        self.changed.notify_one();
    }

    fn tell(&self, note: Note) {
        // The writer is gone only while all of it ends.
        let _ = self.notes.send(note);
    }

    fn order(&self, number: NodeNumber, order: Order) {
        let (orders, waker) = &self.eyes[number % self.eyes.len()];
        let _ = orders.send(order);
        waker.wake();
    }

    /// What a discovery asked is ours as well: of a large cluster it costs milliseconds.
    fn discovered(&self, place: usize, found: &Deployment) {
        let target = self.state().watched[place].target.clone();
        let (address, own) = unslow_probe::asked(found, &target, &self.options);
        let tally = self.state().watched[place].numbers.get(&address).map(|number| number.tally.clone());
        tally.into_iter().for_each(|tally| tally.count(|all| all.add(&own)));
    }

    fn discover(&self, place: usize) {
        let Some(target) = self.state().watched.get(place).map(|w| w.target.clone()) else { return };
        let pause = match discover(&target, &self.options) {
            Ok(found) => {
                self.discovered(place, &found);
                self.found(place, &found);
                DISCOVER
            }
            // What was known of it stays: servers that are away are still its servers.
            Err(_) => {
                self.list_again(place);
                DISCOVER_AGAIN
            }
        };
        self.later(Job::Discover(place), pause);
    }

    /// Nothing is known of a deployment but its addresses.
    fn not_found(&self, place: usize, target: &Target) {
        let kind = if target.service.is_some() { DeploymentKind::Sentinel } else { DeploymentKind::Standalone };
        let members: Vec<(Member, Target)> = target
            .endpoints
            .iter()
            .map(|endpoint| {
                let address = endpoint.to_string();
                (Member { address, role: Role::Unknown, master: None, node_id: None, service: None }, endpoint)
            })
            .map(|(member, endpoint)| (member, target.at(endpoint.clone())))
            .collect();
        self.list(place, members, |nodes| Listing { kind, nodes, notes: Vec::new(), through: None });
    }

    fn found(&self, place: usize, found: &Deployment) {
        let (sentinels, nodes): (Vec<&Member>, Vec<&Member>) =
            found.members.iter().partition(|member| member.role == Role::Sentinel);
        let members = nodes.into_iter().map(|member| (member.clone(), found.target_of(member))).collect();
        self.list(place, members, |nodes| Listing {
            kind: found.kind,
            nodes,
            notes: found.notes.clone(),
            through: found.through.clone(),
        });
        let sentinels = sentinels.into_iter().map(|member| (member.clone(), found.target_of(member))).collect();
        self.state().watched[place].sentinels = sentinels;
        self.sentinels(place);
    }

    fn sentinels(&self, place: usize) {
        let (url, all) = {
            let state = self.state();
            let watched = &state.watched[place];
            (watched.url.clone(), watched.sentinels.clone())
        };
        for (member, target) in all {
            let sentinel = unslow_probe::sentinel(&member, &target, &self.options);
            self.tell(Note::Sentinel { url: url.clone(), at: stamp(), sentinel });
        }
    }

    /// A reader looks back for some minutes only.
    fn list_again(&self, place: usize) {
        let again = {
            let watched = &mut self.state().watched[place];
            let url = watched.url.clone();
            let due = watched.listing.as_mut().filter(|(_, told)| told.elapsed() >= LIST_AGAIN);
            due.map(|(listing, told)| {
                *told = Instant::now();
                Note::Listing { url, at: stamp(), listing: listing.clone() }
            })
        };
        if let Some(note) = again {
            self.tell(note);
        }
    }

    fn list(&self, place: usize, members: Vec<(Member, Target)>, listing: impl FnOnce(Vec<Listed>) -> Listing) {
        let nodes: Vec<Listed> = members.iter().map(|(member, _)| listed(member)).collect();
        let listing = listing(nodes);
        let url = {
            let watched = &mut self.state().watched[place];
            watched.listing = Some((listing.clone(), Instant::now()));
            watched.url.clone()
        };
        self.tell(Note::Listing { url, at: stamp(), listing });
        let addresses: Vec<String> = members.iter().map(|(member, _)| member.address.clone()).collect();
        for (member, target) in members {
            self.is_listed(place, &member, target);
        }
        let mut left = Vec::new();
        {
            let mut state = self.state();
            state.watched[place].numbers.retain(|address, number| {
                if addresses.contains(address) {
                    number.unlisted = None;
                    return true;
                }
                let stays = number.unlisted.get_or_insert_with(Instant::now).elapsed() < UNLISTED;
                left.extend((!stays).then_some(number.number));
                stays
            });
            for number in &left {
                state.asked.remove(number);
                state.nodes.remove(number);
            }
        }
        for number in left {
            self.order(number, Order::Leave(number));
            self.tell(Note::Left(number));
        }
    }

    fn is_listed(&self, place: usize, member: &Member, target: Target) {
        // A name that cannot be resolved now is tried at the next discovery.
        let Some(peer) = peer_of(&target) else { return };
        let mut state = self.state();
        let known = state.watched[place].numbers.get(&member.address);
        let is_new = known.is_none();
        let (number, tally) =
            known.map_or((state.next_number, Tally::default()), |known| (known.number, known.tally.clone()));
        if is_new {
            state.next_number += 1;
            let numbered = Number { number, tally: tally.clone(), unlisted: None };
            state.watched[place].numbers.insert(member.address.clone(), numbered);
            let (options, salt) = (self.options.clone(), self.salt.clone());
            let inquiry = Inquiry::new(member, target.clone(), options, salt, tally.clone());
            // Nodes take turns.
            let due = Instant::now() + Duration::from_millis(number as u64 * 37 % 1000);
            let inquiry = Some(inquiry);
            let asked = Asked { inquiry, round: 0, hurried: [None; 2], again: false, because: None, due };
            state.asked.insert(number, asked);
            state.jobs.push(Reverse((due, Job::Ask(number))));
            let url = state.watched[place].url.clone();
            drop(state);
            self.tell(Note::Node { number, url, address: member.address.clone() });
            self.changed.notify_one();
        } else {
            drop(state);
        }
        self.order(number, Order::Ask { node: number, target: Box::new(target), peer, tally });
    }

    fn ask(&self, number: NodeNumber, due: Instant) {
        let (taken, every) = {
            let mut state = self.state();
            let every = self.pace(&state);
            // A node that has left is not asked again, and a job at another time than the node's own is out of date.
            let asked = state.asked.get_mut(&number).filter(|asked| asked.due == due);
            let taken = asked.and_then(|asked| Some((asked.inquiry.take()?, asked.round, asked.because.take())));
            (taken, every)
        };
        let Some((mut inquiry, round, because)) = taken else { return };
        let kind = if round.is_multiple_of(rounds_per_whole(every)) { Round::Whole } else { Round::Often };
        if kind == Round::Whole {
            self.tell(Note::Asking(number, true));
        }
        let answer = if self.keeps_answers { inquiry.ask(kind) } else { inquiry.hand_over(kind) }.ok();
        let at = stamp();
        let mut state = self.state();
        let Some(asked) = state.asked.get_mut(&number) else { return };
        asked.inquiry = Some(inquiry);
        // Something happened meanwhile, so that all of it is to be asked.
        let is_hurried = std::mem::take(&mut asked.again);
        let because_ms = because.map(|began| at.wall_ms - began.elapsed().as_millis() as i64);
        match &answer {
            Some(_) if is_hurried => {}
            Some(_) => asked.round += 1,
            // The event loop tells that it is away. When it is back, all of it is worth asking.
            None => asked.round = 0,
        }
        if let Some(node) = answer.as_ref().filter(|_| self.keeps_answers) {
            state.nodes.insert(number, node.clone());
        }
        // In one turn with the round above: what hurries it next finds it in the queue, and takes it out.
        let pause = if is_hurried { Duration::ZERO } else { every };
        let due = Instant::now() + pause;
        state.asked.get_mut(&number).into_iter().for_each(|asked| asked.due = due);
        state.jobs.push(Reverse((due, Job::Ask(number))));
        drop(state);
        self.changed.notify_one();
        if let Some(node) = answer {
            self.tell(Note::Asked(number, at, Questions { round: kind, because_ms }, node));
        }
        if kind == Round::Whole {
            self.tell(Note::Asking(number, false));
        }
    }
}

fn listed(member: &Member) -> Listed {
    Listed {
        address: member.address.clone(),
        role: member.role,
        master: member.master.clone(),
        node_id: member.node_id.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{channel, sync_channel};

    use unslow_reactor::Reactor;

    use super::*;
    use crate::eye_tests::{bulk, listener, serve};

    #[test]
    fn what_a_discovery_asked_is_ours() {
        let (listener, port) = listener();
        let nodes = format!("{} 127.0.0.1:{port}@{port} myself,master - 0 0 1 connected 0-16383\n", "a".repeat(40));
        serve(listener, move |command| match command {
            "PING" => "+PONG\r\n".into(),
            "INFO" => bulk("redis_version:7.2.4\r\nredis_mode:cluster\r\nrole:master\r\n"),
            "CLUSTER" => bulk(&nodes),
            _ => "+OK\r\n".into(),
        });
        let target = Target::parse(&format!("127.0.0.1:{port}")).unwrap();
        let options = Options::default();
        let found = discover(&target, &options).unwrap();
        let ((orders, given), (notes, _told)) = (channel(), sync_channel(100));
        let waker = Reactor::new().unwrap().io().waker();
        let inquirers =
            Inquirers::new(Duration::from_secs(60), options, Salt::new(false), notes, vec![(orders, waker)], false);
        inquirers.watch(target, Some(&found));
        let Ok(Order::Ask { tally, .. }) = given.recv() else { panic!("the node is not asked") };
        assert_eq!(tally.so_far().total, 0, "what was asked before it was watched is in no window");
        inquirers.discovered(0, &found);
        assert_eq!(tally.so_far().commands.get("cluster|nodes"), Some(&1), "{:?}", tally.so_far());
    }
}
