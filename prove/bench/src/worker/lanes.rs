//! Connections: dialled, greeted, lost and dialled again.

use unslow_client::Endpoint;
use unslow_nodes::{Address, Named, Progress};
use unslow_reactor::peers_of;

use super::replies::words_of;
use super::*;

impl Worker {
    /// Dials every node of the map.
    pub(super) fn connect_all(&mut self, io: &mut Io) {
        let map = self.route.map.clone();
        self.adopt(&map, io);
        // Spread over the masters: each passes everything on to all.
        let subscribers =
            part(self.shared.shape.subscribers as u64, self.shared.shape.threads, self.demand.seq as usize);
        for i in 0..subscribers as usize {
            let lane = self.net.lanes.len() as u32;
            self.net.lanes.push(Lane::new((i % map.masters.max(1)) as u16, true));
            self.dial(lane, io);
        }
    }

    /// Takes over a map: new nodes are dialled, waiting requests find their new owner.
    pub(super) fn adopt(&mut self, map: &Arc<Map>, io: &mut Io) {
        self.route.map = map.clone();
        let wanted = self.shared.shape.read_from;
        let mut index_of = Vec::with_capacity(map.nodes.len());
        for (i, address) in map.nodes.iter().enumerate() {
            let is_replica = i >= map.masters;
            if is_replica && wanted == ReadFrom::Primary {
                index_of.push(NOBODY);
                continue;
            }
            let node = self.node(address, is_replica, io);
            let demoted =
                is_replica && !std::mem::replace(&mut self.net.nodes[usize::from(node)].is_replica, is_replica);
            if demoted && map.kind == unslow_topology::DeploymentKind::Cluster {
                self.say_readonly(node, io);
            }
            index_of.push(node);
        }
        self.route.slots =
            map.slots.iter().map(|&s| if s == NOBODY { NOBODY } else { index_of[usize::from(s)] }).collect();
        let own = |replica: &u16| Some(index_of[usize::from(*replica)]).filter(|n| *n != NOBODY);
        self.route.readers = map.replicas.iter().map(|all| all.iter().filter_map(own).collect()).collect();
        self.net.several_nodes = self.net.nodes.len() > 1 || map.kind == unslow_topology::DeploymentKind::Cluster;
        for (n, node) in self.net.nodes.iter_mut().enumerate() {
            node.wanted = index_of.contains(&(n as u16));
            for &lane in &node.lanes {
                let lane = &mut self.net.lanes[lane as usize];
                if matches!(lane.state, State::Waiting(_)) && !node.wanted {
                    lane.state = State::Retired;
                }
            }
        }
        let mut again: Vec<Pending> = self.route.homeless.drain(..).collect();
        for node in &mut self.net.nodes {
            again.extend(node.waiting.drain(..));
        }
        again.sort_unstable_by_key(|p| p.due);
        for pending in again {
            let draw = self.shared.workload.draw(pending.seq);
            self.place(pending, draw, io);
        }
    }

    /// A master that became a replica answers reads only to those who say that they know it.
    pub(super) fn say_readonly(&mut self, node: u16, io: &mut Io) {
        for lane in &self.net.nodes[usize::from(node)].lanes {
            let lane = &mut self.net.lanes[*lane as usize];
            if let (State::Open, Some(id)) = (&lane.state, lane.id) {
                write_command(io.output(id), &["READONLY"]);
                let due = now_ns();
                if lane.flight.is_empty() {
                    lane.progress = due;
                }
                lane.flight.push_back(Pending {
                    due,
                    seq: 0,
                    caller: NOBODYS,
                    command: 0,
                    left: 1,
                    hops: 0,
                    asking: false,
                });
            }
        }
    }

    /// The node at `address`, dialled when it is new.
    pub(super) fn node(&mut self, address: &str, is_replica: bool, io: &mut Io) -> u16 {
        if let Some(i) = self.net.nodes.iter().position(|n| n.address == address) {
            if !std::mem::replace(&mut self.net.nodes[i].wanted, true) {
                for lane in &self.net.nodes[i].lanes {
                    let lane = &mut self.net.lanes[*lane as usize];
                    if matches!(lane.state, State::Retired) {
                        lane.state = State::Waiting(0);
                    }
                }
                self.clock.next_housekeeping = 0;
            }
            return i as u16;
        }
        let index = self.net.nodes.len() as u16;
        let first = self.net.lanes.len() as u32;
        let lanes: Vec<u32> = (first..first + self.net.per_node as u32).collect();
        let free = VecDeque::with_capacity(lanes.len());
        self.net.nodes.push(Node {
            address: address.to_string(),
            peers: Vec::new(),
            resolve_at: 0,
            wanted: true,
            lanes: lanes.clone(),
            free,
            waiting: VecDeque::new(),
            open: 0,
            is_replica,
            down: false,
        });
        self.net.lanes.extend(lanes.iter().map(|_| Lane::new(index, false)));
        self.net.several_nodes = self.net.nodes.len() > 1;
        for lane in lanes {
            self.dial(lane, io);
        }
        index
    }

    pub(super) fn dial(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        let node = &mut self.net.nodes[usize::from(lane.node)];
        let now = now_ns();
        // Asked again when all of its addresses failed, since a name may be given to another server; not more often
        // than once a second, since asking may take long.
        let tried_all = lane.attempts.is_multiple_of(node.peers.len().max(1));
        if tried_all && now >= node.resolve_at {
            node.peers = Endpoint::parse(&node.address).map_or(Vec::new(), |e| peers_of(&e));
            node.resolve_at = now_ns() + SECOND;
        }
        if node.peers.is_empty() {
            let address = node.address.clone();
            self.report.interval.error("unresolved", &format!("{address}: the name does not resolve"));
            self.put_off(lane_index);
            return;
        }
        let peer = node.peers[lane.attempts % node.peers.len()].clone();
        let tls = match &self.hello.tls {
            Some((config, name)) => {
                let own = || match Endpoint::parse(&node.address) {
                    Some(Endpoint::Tcp(host, _)) => host,
                    _ => node.address.clone(),
                };
                let host = name.clone().unwrap_or_else(own);
                match rustls::pki_types::ServerName::try_from(host.clone()) {
                    Ok(name) => Some(Tls { config: config.clone(), name }),
                    Err(_) => {
                        let text = format!("no certificate can have the name {host:?}; give one with --server-name");
                        self.report.interval.error("tls", &text);
                        self.put_off(lane_index);
                        return;
                    }
                }
            }
            None => None,
        };
        let deadline = now_ns() + self.shared.shape.timeout_ns;
        match io.connect(&peer, tls.as_ref(), deadline) {
            Ok(id) => {
                if self.net.lane_of.len() <= id.index() {
                    self.net.lane_of.resize(id.index() + 1, 0);
                }
                self.net.lane_of[id.index()] = lane_index;
                let lane = &mut self.net.lanes[lane_index as usize];
                lane.id = Some(id);
                lane.state = State::Connecting;
                lane.splitter = Splitter::new(LIMITS);
                lane.scanner = Scanner::default();
                lane.trouble = None;
            }
            Err(e) => {
                if self.phase == Phase::Connecting {
                    self.failed = Some(GeneratorError::NoSocket {
                        address: self.net.nodes[usize::from(self.net.lanes[lane_index as usize].node)].address.clone(),
                        why: e,
                        connections: self.shared.shape.connections,
                    });
                    io.stop();
                } else {
                    self.report.interval.error("no_connection", &e.to_string());
                    self.put_off(lane_index);
                }
            }
        }
    }

    /// Tries again later, each time a little later, and not at the same moment as all others that lost this node.
    pub(super) fn put_off(&mut self, lane: u32) {
        let lane = &mut self.net.lanes[lane as usize];
        lane.id = None;
        lane.attempts += 1;
        lane.state = State::Waiting(now_ns() + lane.backoff.failed(rand::random_range));
    }

    /// A reply to the greeting.
    pub(super) fn greeted(&mut self, lane_index: u32, reply: Frame<'_>, now: u64, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        let Some(step) = lane.greeting.due() else { return };
        match lane.greeting.reply(reply.bytes()) {
            Progress::More | Progress::Unasked => {}
            Progress::Done { .. } if lane.subscribing => {}
            Progress::Done { .. } => self.ready(lane_index, io),
            Progress::Refused { .. } => {
                let (name, _) = words_of(reply);
                self.lose(lane_index, &name, &step.error_text(reply.bytes()), now, io);
            }
        }
    }

    /// The connection may be used.
    pub(super) fn ready(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        lane.state = State::Open;
        lane.attempts = 0;
        if lane.subscriber {
            return;
        }
        let node_index = lane.node;
        let node = &mut self.net.nodes[usize::from(node_index)];
        node.open += 1;
        if std::mem::take(&mut node.down) {
            let text = format!("{} takes connections again", node.address);
            self.mark(text);
        }
        if self.choice == Choice::Free {
            for _ in 0..self.window.min(1024) {
                self.serve_waiting(lane_index, io);
            }
        } else {
            let waiting = std::mem::take(&mut self.net.nodes[usize::from(node_index)].waiting);
            for pending in waiting {
                let draw = self.shared.workload.draw(pending.seq);
                self.place_on(pending, draw, node_index, io);
            }
        }
    }

    /// The address in a redirect that came over this connection, as the map writes it. Its host may be missing: then it
    /// is the sender's.
    pub(super) fn named(&self, to: &str, lane_index: u32) -> String {
        let sender = &self.net.nodes[usize::from(self.net.lanes[lane_index as usize].node)].address;
        let sender = Address::parse(sender);
        match sender.map(|sender| Address::named(to, &sender)) {
            Some(Named::Is(address)) => address.to_string(),
            Some(Named::Unknown) | None => to.to_string(),
        }
    }

    /// Closes a connection: what was under way on it has no answer.
    pub(super) fn lose(&mut self, lane_index: u32, why: &str, text: &str, now: u64, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        if let Some(id) = lane.id.take() {
            io.close(id);
        }
        let was_open = matches!(lane.state, State::Open) && !lane.subscriber;
        let retired = !lane.subscriber && !self.net.nodes[usize::from(lane.node)].wanted;
        lane.greeting = Greeting::default();
        lane.subscribing = false;
        lane.trouble = None;
        let flight = std::mem::take(&mut lane.flight);
        let node = &mut self.net.nodes[usize::from(lane.node)];
        node.open -= usize::from(was_open);
        let address = node.address.clone();
        if retired {
            self.net.lanes[lane_index as usize].state = State::Retired;
        } else {
            self.put_off(lane_index);
        }
        if self.phase == Phase::Running || self.phase == Phase::Draining {
            let node = &mut self.net.nodes[usize::from(self.net.lanes[lane_index as usize].node)];
            let cut_off = node.open == 0 && !node.down;
            node.down |= cut_off;
            if was_open {
                let at = now_ns().saturating_sub(self.clock.start);
                self.report.interval.lost.entry((address.clone(), text.to_string())).or_insert((0, at)).0 += 1;
            }
            if cut_off {
                self.mark(format!("{address} has no connection left: {text}"));
            }
            self.shared.routes.want();
        } else if self.failed.is_none() && self.phase == Phase::Connecting {
            // Told if no connection comes to stand at all.
            self.report.interval.error(why, &format!("{address}: {text}"));
        }
        for pending in flight.into_iter().filter(|p| p.caller != NOBODYS) {
            self.give_up(pending, why, &format!("{address}: {text}"), now, io);
        }
    }
}
