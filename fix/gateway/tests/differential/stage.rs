//! The two deployments that are compared: one that clients reach directly, and an identical one behind a gateway.

use std::cell::Cell;
use std::time::Duration;

use unslow_client::Connection;
use unslow_engine::{Deployment, Shape};
use unslow_gateway::Gateway;
use unslow_testkit::options;
use unslow_testkit::servers::deployment;
use unslow_testkit::slots::owner_of;
use unslow_topology::slot_of;

use crate::common::gate;
use crate::generator::User;
use crate::pair::Pair;
use crate::session::Tag;

const ENGINE: &str = "valkey-9.1";

pub struct Stage {
    pub cluster: bool,
    direct: Deployment,
    gated: Deployment,
    gateway: Gateway,
    generations: Cell<u32>,
}

impl Stage {
    #[track_caller]
    pub fn start(cluster: bool, threads: usize) -> Stage {
        let shape = match cluster {
            true => Shape::Cluster { masters: 3, replicas: 0, hosts: Vec::new() },
            false => Shape::Standalone,
        };
        // Nothing here is about failovers.
        let settings: &[(&str, &str)] = if cluster { &[("cluster-node-timeout", "15000")] } else { &[] };
        let (direct, gated) = std::thread::scope(|scope| {
            let gated = scope.spawn(|| deployment(ENGINE, shape.clone(), settings));
            (deployment(ENGINE, shape.clone(), settings), gated.join().expect("the servers start"))
        });
        let gateway = gate(&gated.url(), |config| config.threads = threads);
        Stage { cluster, direct, gated, gateway, generations: Cell::new(0) }
    }

    /// New connections of a client, with new keys. The direct one goes to the owner of their slot.
    #[track_caller]
    pub fn open(&self, client: usize, patience: Duration) -> Pair {
        self.generations.set(self.generations.get() + 1);
        let tag = Tag { client, generation: self.generations.get() };
        let node = if self.cluster { owner_of(&self.direct, slot_of(tag.own().as_bytes())) } else { 0 };
        let addresses = [self.direct.nodes[node].address(), self.gateway.addresses[0].clone()];
        Pair::open(tag, self.cluster, addresses, patience)
    }

    /// Creates these users on all servers.
    #[track_caller]
    pub fn set_users(&self, users: &[User]) {
        let commands: Vec<Vec<&str>> = users
            .iter()
            .map(|user| {
                ["ACL", "SETUSER", &user.name].into_iter().chain(user.rules.iter().map(String::as_str)).collect()
            })
            .collect();
        for server in self.direct.nodes.iter().chain(&self.gated.nodes) {
            let connection = server.connect_with(&options(2));
            let replies = connection.and_then(|mut c: Connection| c.pipeline(&commands)).expect("the server answers");
            for reply in replies {
                reply.expect("the rules are valid");
            }
        }
    }
}
