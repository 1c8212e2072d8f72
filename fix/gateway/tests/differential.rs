//! Differential fuzzing: random clients send the same bytes to a server directly and to an identical one through the
//! gateway. Replies, messages and closed connections must be the same (`unslow_testkit::random`). The differences that
//! are allowed are in `differential/differences.rs`.
//!
//! The long tests send 200,000 commands each. For hours of them, with the result as a page:
//!
//! ```text
//! UNSLOW_DIFFERENTIAL=10000000 UNSLOW_DIFFERENTIAL_RESULT=$PWD/differential.md \
//!     cargo test --release --package unslow-gateway --test differential -- --ignored --nocapture --test-threads 1
//! ```

mod common;
#[path = "differential/differences.rs"]
mod differences;

use unslow_engine::{Deployment, Shape, view};
use unslow_gateway::Gateway;
use unslow_testkit::random::{Addresses, Order, Stage, Tag, compare};
use unslow_testkit::servers::deployment;
use unslow_testkit::{PATIENCE, options};
use unslow_topology::slot_of;

use common::gate;
use common::wire::{Wire, shown};
use differences::DIFFERENCES;

const ENGINE: &str = "valkey-9.1";

/// A deployment that clients reach directly, and an identical one behind a gateway.
struct Sides {
    gateway: Gateway, // ends before its servers
    cluster: bool,
    direct: Deployment,
    gated: Deployment,
}

impl Sides {
    #[track_caller]
    fn start(shape: &Shape, threads: usize) -> Sides {
        let cluster = matches!(shape, Shape::Cluster { .. });
        // Nothing here is about failovers.
        let settings: &[(&str, &str)] = if cluster { &[("cluster-node-timeout", "15000")] } else { &[] };
        let (direct, gated) = std::thread::scope(|scope| {
            let gated = scope.spawn(|| deployment(ENGINE, shape.clone(), settings));
            (deployment(ENGINE, shape.clone(), settings), gated.join().expect("the servers start"))
        });
        let gateway = gate(&gated.url(), |config| config.threads = threads);
        Sides { gateway, cluster, direct, gated }
    }

    /// Of all servers.
    fn servers(&self) -> Vec<String> {
        self.direct.nodes.iter().chain(&self.gated.nodes).map(|node| node.address()).collect()
    }

    /// A direct client goes to the owner of its keys' slot, all others to the gateway.
    #[track_caller]
    fn addresses(&self) -> Addresses {
        let first = &self.direct.nodes[0];
        let gateway = self.gateway.addresses[0].clone();
        if !self.cluster {
            let direct = first.address();
            return Box::new(move |_| [direct.clone(), gateway.clone()]);
        }
        let mut connection = first.connect_with(&options(2)).expect("the first node answers");
        let view = view(&mut connection).expect("a view");
        Box::new(move |tag: Tag| {
            let slot = slot_of(tag.own().as_bytes());
            let owner = view.masters().find(|node| node.slots.contains(slot)).expect("somebody owns it");
            [owner.address.clone(), gateway.clone()]
        })
    }
}

fn compare_with_gateway(shape: &Shape, order: &Order) {
    let sides = Sides::start(shape, 1 + (order.seed % 2) as usize);
    let names = ["the server", "the gateway"];
    let stage = Stage::new(sides.cluster, names, DIFFERENCES, sides.servers(), sides.addresses());
    compare(&stage, order);
}

/// What random clients have found, one client's commands a line; `@` is a key of its own. The first word is the user.
const FOUND: &[&str] = &[
    // Refused for its arguments DISCARD ends nothing; EXEC ends the transaction and the watching, within MULTI and
    // without.
    "default: MULTI; DISCARD more; SET @ v; EXEC; EXEC",
    "default: MULTI; DISCARD more; DISCARD; DISCARD",
    "default: MULTI; EXEC more; EXEC",
    "default: MULTI; SET @ v; EXEC more; EXEC; GET @",
    "default: WATCH @; EXEC more; SET @ v; MULTI; GET @; EXEC",
    "default: WATCH @; DISCARD more; SET @ v; MULTI; GET @; EXEC",
    "default: WATCH @; EXEC; SET @ v; MULTI; GET @; EXEC",
    // There is no such subcommand, which a server says at once.
    "default: MULTI; OBJECT nosuch @; SET @ v; EXEC; GET @",
    "default: MULTI; XINFO nosuch @; EXEC",
    "default: MULTI; SET @ v; OBJECT nosuch @; EXEC; GET @",
    // Where there is no such subcommand, the word behind it is no key: it names no node. One of these groups would name
    // another.
    "default: MULTI; XGROUP @ a; SET @ v; EXEC; GET @",
    "default: MULTI; XGROUP @ b; SET @ v; EXEC; GET @",
    "default: MULTI; XGROUP @ c; SET @ v; EXEC; GET @",
    // Servers look for keys with C's atoi; the number itself is refused by the node of the first.
    "default: ZDIFF 1x @ @; EVAL text +1 @; MULTI; ZUNION 2x @ @; EXEC",
    "default: CLIENT UNBLOCK word; CLIENT UNBLOCK -1; CLIENT UNBLOCK 1 word; CLIENT UNBLOCK 99999999999999999999",
    "default: OBJECT nosuch @; OBJECT; CLUSTER KEYSLOT; CLUSTER KEYSLOT @ more",
    // What the gateway answers by itself the user may have no right to. Arguments are judged first.
    "few: UNWATCH; UNWATCH more",
    "few: WATCH @; UNWATCH; SET @ v; MULTI; GET @; EXEC",
    "few: MULTI; UNWATCH; SET @ v; EXEC; GET @",
    "few: CLUSTER KEYSLOT @; CLUSTER KEYSLOT",
    // A WATCH that was refused leaves nothing behind that a new user could lose.
    "blind: WATCH @; AUTH blind word; MULTI; SET @ v; EXEC; GET @",
    // Where MULTI is refused, what comes after it runs at once: SELECT too.
    "single: SET @ v; WATCH @; MULTI; SELECT 1; EXEC; GET @",
    // A server looks at the keys before it counts the values.
    "default: MSET @ v @; MSET @ v @",
];

/// The replies of both sides are equal; of errors the code words are.
fn found_before(shape: &Shape) {
    let sides = Sides::start(shape, 1);
    for server in sides.direct.nodes.iter().chain(&sides.gated.nodes) {
        for (user, denied) in
            [("few", &["-unwatch", "-cluster|keyslot"][..]), ("blind", &["-watch"]), ("single", &["-multi", "-exec"])]
        {
            let rules = [&["ACL", "SETUSER", user, "reset", "on", ">word", "~*", "&*", "+@all"][..], denied].concat();
            let connection = server.connect_with(&options(2));
            connection.and_then(|mut c| c.call(&rules)).expect("the rules are valid");
        }
    }
    let addresses = sides.addresses();
    for (number, found) in (1..).zip(FOUND) {
        let tag = Tag { client: 0, generation: number };
        let (user, commands) = found.split_once(": ").expect("a user");
        let key = format!("{}k", tag.own());
        let [direct, gateway] = addresses(tag).map(|address| {
            let mut wire = Wire::open(&address, PATIENCE);
            wire.call(&["AUTH", user, "word"]);
            let commands = commands.split("; ");
            commands.map(|line| wire.call(&line.replace('@', &key).split(' ').collect::<Vec<_>>())).collect::<Vec<_>>()
        });
        for ((line, direct), gateway) in commands.split("; ").zip(&direct).zip(&gateway) {
            let of_error =
                |reply: &[u8]| reply.starts_with(b"-").then(|| reply.split(|b| *b == b' ').next().map(<[u8]>::to_vec));
            let same = direct == gateway || of_error(direct).is_some() && of_error(direct) == of_error(gateway);
            assert!(same, "{found}\n{line}: {} from the server, {} from the gateway", shown(direct), shown(gateway));
        }
    }
}

fn cluster() -> Shape {
    Shape::Cluster { masters: 3, replicas: 0, hosts: Vec::new() }
}

#[test]
fn what_was_found_before_gets_the_replies_of_a_server() {
    found_before(&Shape::Standalone);
}

#[test]
fn what_was_found_before_gets_the_replies_of_a_cluster() {
    found_before(&cluster());
}

#[test]
fn random_commands_get_the_replies_of_a_server() {
    compare_with_gateway(&Shape::Standalone, &Order::short("a server and the gateway", 1));
}

#[test]
fn random_commands_get_the_replies_of_a_cluster() {
    compare_with_gateway(&cluster(), &Order::short("a cluster and the gateway", 2));
}

#[test]
#[ignore = "long: 200,000 commands"]
fn many_random_commands_get_the_replies_of_a_server() {
    compare_with_gateway(&Shape::Standalone, &Order::long("a server and the gateway"));
}

#[test]
#[ignore = "long: 200,000 commands"]
fn many_random_commands_get_the_replies_of_a_cluster() {
    compare_with_gateway(&cluster(), &Order::long("a cluster and the gateway"));
}
