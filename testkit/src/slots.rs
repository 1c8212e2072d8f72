//! Slots: who owns one, and moving it as redis-cli does.

use std::time::{Duration, Instant};

use unslow_client::{Connection, Value};
use unslow_engine::{Deployment, Server, view};

use crate::servers::options;
use crate::wait::until_ok;

/// A node's id in its cluster.
#[track_caller]
pub fn id(server: &Server) -> String {
    let reply = server.connect_with(&options(2)).and_then(|mut c| c.call(&["CLUSTER", "MYID"]));
    reply.unwrap_or_else(|e| panic!("{}: {e}", server.address())).text().expect("an id")
}

/// The node that owns a slot, as the first node sees it.
#[track_caller]
pub fn owner_of(deployment: &Deployment, slot: u16) -> usize {
    let view =
        view(&mut deployment.nodes[0].connect_with(&options(2)).expect("the first node answers")).expect("a view");
    let owner = view.masters().find(|n| n.slots.contains(slot)).expect("somebody owns it").address.clone();
    deployment.nodes.iter().position(|n| n.address() == owner).expect("a node of ours")
}

/// CLUSTER SETSLOT. Valkey refuses it (NOREPLICAS) while a replica is not connected, as one may not be for a moment.
#[track_caller]
pub fn set_slot(c: &mut Connection, words: &[&str]) {
    let command = [&["CLUSTER", "SETSLOT"], words].concat();
    until_ok("CLUSTER SETSLOT to be taken", || c.call(&command).map(|_| true));
}

/// Moves a slot with its keys; waits `pause` before the first key, and again after every ten, so that clients meet it
/// half way. Returns when the new owner was told, which is the moment it changed hands.
#[track_caller]
pub fn move_slot(deployment: &Deployment, slot: u16, from: usize, to: usize, pause: Duration) -> Instant {
    let (source, target) = (&deployment.nodes[from], &deployment.nodes[to]);
    let (a, b, slot) = (id(source), id(target), slot.to_string());
    let done = "the servers take it";
    let open = |server: &Server| server.connect_with(&options(2)).expect(done);
    let (mut old, mut new) = (open(source), open(target));
    set_slot(&mut new, &[&slot, "IMPORTING", &a]);
    set_slot(&mut old, &[&slot, "MIGRATING", &b]);
    let (host, port) = (target.ip.clone(), target.port.to_string());
    std::thread::sleep(pause);
    loop {
        let keys = old.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]).expect(done);
        let keys: Vec<String> = keys.items().iter().filter_map(Value::text).collect();
        if keys.is_empty() {
            break;
        }
        let mut migrate = vec!["MIGRATE", &host, &port, "", "0", "60000", "KEYS"];
        migrate.extend(keys.iter().map(String::as_str));
        old.call(&migrate).expect(done);
        std::thread::sleep(pause);
    }
    // The new owner first, as redis-cli: otherwise both send clients to each other until the second one hears of it.
    let at = Instant::now();
    set_slot(&mut new, &[&slot, "NODE", &b]);
    set_slot(&mut old, &[&slot, "NODE", &b]);
    at
}
