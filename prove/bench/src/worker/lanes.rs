//! Connections: dialled, greeted, lost and dialled again.

use unslow_client::Endpoint;
use unslow_nodes::{Leads, Progress, Unowned};
use unslow_reactor::peers_of;

use super::replies::words_of;
use super::*;

impl Worker {
    /// Dials every node that requests go to.
    pub(super) fn connect_all(&mut self, io: &mut Io) {
        let topology = self.route.topology.clone();
        self.adopt(&topology, io);
        // Spread over the masters: each passes everything on to all.
        let subscribers =
            part(self.shared.shape.subscribers as u64, self.shared.shape.threads, self.demand.seq as usize);
        let masters = self.net.nodes.masters().to_vec();
        for master in masters.into_iter().cycle().take(subscribers as usize) {
            let lane = self.net.lanes.len() as u32;
            self.net.lanes.push(Lane::new(master, true));
            self.dial(lane, io);
        }
    }

    /// Takes over a topology: new nodes are dialled, waiting requests find their new owner.
    pub(super) fn adopt(&mut self, topology: &Arc<Topology>, io: &mut Io) {
        self.route.topology = topology.clone();
        let replicas_too = self.shared.shape.read_from != ReadFrom::Primary;
        let numbers = self.net.nodes.apply(topology, Unowned::Nobody, |_| Node::default());
        let mut wanted = vec![false; self.net.nodes.len()];
        for (node, number) in topology.nodes.iter().zip(numbers) {
            let is_replica = node.role == Role::Replica;
            let was_replica = std::mem::replace(&mut self.net.nodes[number].is_replica, is_replica);
            if is_replica && !replicas_too {
                continue;
            }
            wanted[usize::from(number)] = true;
            self.reach(number, io);
            if is_replica && !was_replica && topology.kind == DeploymentKind::Cluster {
                self.say_readonly(number, io);
            }
        }
        for (node, wanted) in self.net.nodes.iter_mut().zip(wanted) {
            node.wanted = wanted;
            for &lane in &node.lanes {
                let lane = &mut self.net.lanes[lane as usize];
                if matches!(lane.state, State::Waiting(_)) && !node.wanted {
                    lane.state = State::Retired;
                }
            }
        }
        let mut again: Vec<Pending> = self.route.homeless.drain(..).collect();
        for node in self.net.nodes.iter_mut() {
            again.extend(node.waiting.drain(..));
            self.demand.draw_again(&mut node.drawn);
        }
        again.sort_unstable_by_key(|p| p.due);
        for pending in again {
            let draw = self.shared.workload.draw(pending.seq);
            self.place(pending, draw, io);
        }
    }

    /// A master that became a replica answers reads only to those who say that they know it.
    pub(super) fn say_readonly(&mut self, node: u16, io: &mut Io) {
        for lane in &self.net.nodes[node].lanes {
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

    /// Requests go to a node from now on: it is dialled when it is new.
    fn reach(&mut self, number: u16, io: &mut Io) {
        let node = &mut self.net.nodes[number];
        let was_wanted = std::mem::replace(&mut node.wanted, true);
        if !node.lanes.is_empty() {
            if !was_wanted {
                for lane in &node.lanes {
                    let lane = &mut self.net.lanes[*lane as usize];
                    if matches!(lane.state, State::Retired) {
                        lane.state = State::Waiting(0);
                    }
                }
                self.clock.next_housekeeping = 0;
            }
            return;
        }
        let first = self.net.lanes.len() as u32;
        let lanes: Vec<u32> = (first..first + self.net.per_node as u32).collect();
        node.free = VecDeque::with_capacity(lanes.len());
        node.lanes.clone_from(&lanes);
        self.net.lanes.extend(lanes.iter().map(|_| Lane::new(number, false)));
        let alone = first == 0 && self.route.topology.kind != DeploymentKind::Cluster;
        self.net.only = Some(number).filter(|_| alone);
        for lane in lanes {
            self.dial(lane, io);
        }
    }

    pub(super) fn dial(&mut self, lane_index: u32, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        let (number, now) = (lane.node, now_ns());
        let address = self.net.nodes.address(number).to_string();
        let node = &mut self.net.nodes[number];
        // Asked again when all of its addresses failed, since a name may be given to another server; not more often
        // than once a second, since asking may take long.
        let tried_all = lane.attempts.is_multiple_of(node.peers.len().max(1));
        if tried_all && now >= node.resolve_at {
            node.peers = Endpoint::parse(&address).map_or(Vec::new(), |e| peers_of(&e));
            node.resolve_at = now_ns() + SECOND;
        }
        if node.peers.is_empty() {
            self.report.interval.error("unresolved", &format!("{address}: the name does not resolve"));
            self.put_off(lane_index);
            return;
        }
        let peer = node.peers[lane.attempts % node.peers.len()].clone();
        let tls = match &self.hello.tls {
            Some((config, name)) => {
                let own = || match Endpoint::parse(&address) {
                    Some(Endpoint::Tcp(host, _)) => host,
                    _ => address.clone(),
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
                    self.failed =
                        Some(GeneratorError::NoSocket { address, why: e, connections: self.shared.shape.connections });
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
        let node = &mut self.net.nodes[node_index];
        node.open += 1;
        if std::mem::take(&mut node.down) {
            let text = format!("{} takes connections again", self.net.nodes.address(node_index));
            self.mark(text);
        }
        if self.choice == Choice::Free {
            for _ in 0..self.window.min(1024) {
                self.serve_waiting(lane_index, io);
            }
        } else {
            let waiting = std::mem::take(&mut self.net.nodes[node_index].waiting);
            for pending in waiting {
                let draw = self.shared.workload.draw(pending.seq);
                self.place_on(pending, draw, node_index, io);
            }
        }
    }

    /// The node that a redirect leads to which came over this connection. One that the topology does not have is added:
    /// the generator goes wherever the servers send it, as their clients do.
    pub(super) fn led_to(&mut self, to: &str, lane_index: u32, io: &mut Io) -> u16 {
        let from = self.net.lanes[lane_index as usize].node;
        let number = match self.net.nodes.redirected(from, to) {
            Leads::To(number) => number,
            Leads::Stranger(address) => {
                let address = address.to_string();
                let known = self.net.nodes.called(&address);
                known.unwrap_or_else(|| self.net.nodes.add(&address, Node::default()))
            }
            // To the sender again, until a newer topology tells, or sixteen redirects are enough.
            Leads::Nowhere => from,
        };
        self.reach(number, io);
        number
    }

    /// Closes a connection: what was under way on it has no answer.
    pub(super) fn lose(&mut self, lane_index: u32, why: &str, text: &str, now: u64, io: &mut Io) {
        let lane = &mut self.net.lanes[lane_index as usize];
        if let Some(id) = lane.id.take() {
            io.close(id);
        }
        let was_open = matches!(lane.state, State::Open) && !lane.subscriber;
        let retired = !lane.subscriber && !self.net.nodes[lane.node].wanted;
        lane.greeting = Greeting::default();
        lane.subscribing = false;
        lane.trouble = None;
        let flight = std::mem::take(&mut lane.flight);
        let number = lane.node;
        self.net.nodes[number].open -= usize::from(was_open);
        let address = self.net.nodes.address(number).to_string();
        if retired {
            self.net.lanes[lane_index as usize].state = State::Retired;
        } else {
            self.put_off(lane_index);
        }
        if self.phase == Phase::Running || self.phase == Phase::Draining {
            let node = &mut self.net.nodes[number];
            let cut_off = node.open == 0 && !node.down;
            node.down |= cut_off;
            if cut_off {
                self.demand.draw_again(&mut node.drawn); // another replica may answer them
            }
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
