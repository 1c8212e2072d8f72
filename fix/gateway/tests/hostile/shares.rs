//! What servers have for all: their connections, and what they take before they close one.

use std::sync::atomic::{AtomicBool, Ordering};

use unslow_client::Connection;
use unslow_testkit::servers::server;
use unslow_testkit::{PATIENCE, options, standalone, until};
use unslow_topology::Info;

use crate::common::gate;
use crate::common::wire::{Wire, command, shown};
use crate::{ENGINE, target, wire};

#[test]
fn clients_that_block_never_use_up_the_connections_of_a_server() {
    const CLIENTS: usize = 60;
    let server = server(ENGINE, &[("maxclients", "40")]);
    let gateway = gate(&server.url(), |config| config.hold_ms = 1000);
    let mut blocked: Vec<Wire> = (0..CLIENTS).map(|_| wire(&gateway)).collect();
    blocked.iter_mut().for_each(|client| client.write(&command(&["BLPOP", "list", "0"])));
    until("a client beyond the limit to hear of it", || {
        gateway.metrics().contains("unslow_gateway_errors_total{reason=\"own_connections\"}")
    });
    // Others have theirs, through the gateway and without it.
    assert_eq!(wire(&gateway).call(&["SET", "k", "v"]), b"+OK\r\n");
    let mut direct = server.connect_with(&options(2)).expect("the server takes one more");
    let info = direct.call(&["INFO", "stats"]).expect("an answer").text().expect("text");
    assert_eq!(Info::parse(&info).get("rejected_connections"), Some("0"));
}

#[test]
fn protocol_errors_are_in_the_servers_own_words() {
    let server = server(ENGINE, &[("proto-max-bulk-len", "1mb")]);
    let gateway = gate(&server.url(), |_| {});
    let line = [b'x'; 70_000];
    for bytes in [
        &b"*x\r\n"[..],
        b"*1\r\n$x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\nGET\r\n",
        b"*1\r\n$600000000\r\n",
        b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1048577\r\n",
        b"GET \"open\r\n",
        b"GET 'open\r\n",
        &line,
    ] {
        let [direct, through] = [server.address(), gateway.addresses[0].clone()].map(|address| {
            let mut client = Wire::open(&address, PATIENCE);
            client.write(bytes);
            client.until_closed()
        });
        assert_eq!(shown(&through), shown(&direct), "{}", shown(bytes));
    }
    // What the server takes, the gateway takes too.
    let value = "x".repeat(1 << 20);
    assert_eq!(wire(&gateway).call(&["SET", "k", &value]), b"+OK\r\n");
}

#[test]
fn a_client_that_is_never_silent_does_not_keep_a_gateway_from_ending() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |config| config.drain_ms = 600_000);
    let mut client = Connection::open(&target(&gateway), &options(2)).expect("a connection");
    let busy = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while client.call(&["INCR", "answers"]).is_ok() {
                busy.store(true, Ordering::Relaxed);
            }
        });
        until("the client to be busy", || busy.load(Ordering::Relaxed));
        gateway.drain();
        until("the gateway to end long before its clients have to", || gateway.ended());
    });
}
