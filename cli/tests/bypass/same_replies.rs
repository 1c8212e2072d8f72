//! Random clients (`unslow_testkit::random`) send the same bytes to a server over TCP and to an identical one over
//! shared memory: replies, messages and closed connections must be the same.
//!
//! Only a preloaded process is carried, and this one is not. So the test starts its own program anew under
//! `unslow bypass --client`, as the client, for this very test.

use std::time::Duration;

use unslow_testkit::random::{
    Difference, Exchange, Order, Stage, Then, chance, client_id, clock, compare, difference, hello, replies_before_http,
};

use super::*;

const ENGINE: &str = "valkey-9.1";
/// Tells the client the addresses of the plain server and of the carried one.
const ADDRESSES: &str = "UNSLOW_RANDOM_CLIENT";

/// Both are the same servers: everything else must be the same to the byte.
const DIFFERENCES: &[Difference] = &[
    difference("CLIENT ID", Then::Continue, client_id, "each server numbers its own clients"),
    difference("HELLO", Then::Continue, all_but_id, "the client's number again"),
    difference(
        "replies before HTTP",
        Then::Continue,
        replies_before_http,
        "a server drops the replies it has not yet written to a browser; how many depends on when it reads",
    ),
    difference("clock", Then::Continue, clock, "the two servers are asked one after the other"),
    difference("chance", Then::Continue, chance, "the server picks any element; only how many there are is compared"),
];

fn all_but_id(exchange: &Exchange<'_>) -> bool {
    hello(exchange, &["server", "version", "proto", "mode", "role", "modules"])
}

#[test]
fn random_commands_get_the_same_replies_over_shared_memory() {
    let name = "same_replies::random_commands_get_the_same_replies_over_shared_memory";
    both_ways(name, || Order::short("TCP and shared memory", 3));
}

#[test]
#[ignore = "long: 200,000 commands"]
fn many_random_commands_get_the_same_replies_over_shared_memory() {
    let name = "same_replies::many_random_commands_get_the_same_replies_over_shared_memory";
    both_ways(name, || Order::long("TCP and shared memory"));
}

/// `name` is the test's own.
fn both_ways(name: &str, order: impl FnOnce() -> Order) {
    match std::env::var(ADDRESSES) {
        Ok(addresses) => be_the_client(&addresses, &order()),
        Err(_) => start_the_client(name),
    }
}

fn be_the_client(addresses: &str, order: &Order) {
    let (plain, carried) = addresses.split_once(' ').expect("two addresses");
    let sides = [plain.to_string(), carried.to_string()];
    let servers = sides.to_vec();
    let stage =
        Stage::new(false, ["over TCP", "over shared memory"], DIFFERENCES, servers, Box::new(move |_| sides.clone()));
    compare(&stage, order);
}

fn start_the_client(name: &str) {
    let meeting = Meeting::new();
    let plain = standalone(ENGINE);
    let server = meeting.server(ENGINE, &[]);
    let program = std::env::current_exe().unwrap().display().to_string();
    let bypass = ["bypass", "--client", "--", &program, "--exact", name, "--include-ignored", "--nocapture"];
    let mut client = meeting.unslow(&bypass);
    client.env(ADDRESSES, format!("{} 127.0.0.1:{}", plain.address(), server.port));
    let mut client = Running(client.spawn().unwrap());
    // It ends after so many commands, however long that takes.
    let mut carried = false;
    let ended = loop {
        if let Some(status) = client.0.try_wait().unwrap() {
            break status;
        }
        match carried {
            true => std::thread::sleep(Duration::from_millis(100)),
            false => carried = meeting.carried() > 0,
        }
    };
    assert!(ended.success(), "the client's own test failed: {ended}");
    assert!(carried, "no connection of it was seen to be carried");
}
