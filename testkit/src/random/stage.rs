//! The two sides that are compared.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use unslow_client::{Connection, Target};

use super::differences::Difference;
use super::generator::User;
use super::pair::Pair;
use super::session::Tag;
use crate::servers::options;

/// Where a client with this tag connects: to what is right by definition, and to what is tested.
pub type Addresses = Box<dyn Fn(Tag) -> [String; 2] + Send + Sync>;

pub struct Stage {
    pub cluster: bool,
    /// What reports call the two sides.
    pub sides: [&'static str; 2],
    pub differences: &'static [Difference],
    servers: Vec<String>,
    addresses: Addresses,
    /// How many pairs of connections each client has had.
    generations: Mutex<BTreeMap<usize, u32>>,
}

impl Stage {
    /// `servers` are the addresses of all servers of both sides.
    pub fn new(
        cluster: bool,
        sides: [&'static str; 2],
        differences: &'static [Difference],
        servers: Vec<String>,
        addresses: Addresses,
    ) -> Stage {
        Stage { cluster, sides, differences, servers, addresses, generations: Mutex::default() }
    }

    pub(super) fn addresses(&self, tag: Tag) -> [String; 2] {
        (self.addresses)(tag)
    }

    /// New connections of a client, with new keys.
    #[track_caller]
    pub(super) fn open(&self, client: usize, patience: Duration) -> Pair {
        let generation = {
            let mut generations = self.generations.lock().expect("no session panicked");
            let generation = generations.entry(client).or_default();
            *generation += 1;
            *generation
        };
        Pair::open(Tag { client, generation }, self, patience)
    }

    /// Creates these users on all servers.
    #[track_caller]
    pub(super) fn set_users(&self, users: &[User]) {
        let commands: Vec<Vec<&str>> = users
            .iter()
            .map(|user| {
                ["ACL", "SETUSER", &user.name].into_iter().chain(user.rules.iter().map(String::as_str)).collect()
            })
            .collect();
        for server in &self.servers {
            let target = Target::parse(server).expect("an address");
            let connection = Connection::open(&target, &options(2));
            let replies = connection.and_then(|mut c| c.pipeline(&commands)).expect("the server answers");
            for reply in replies {
                reply.expect("the rules are valid");
            }
        }
    }
}
