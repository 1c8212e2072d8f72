//! Subscriptions beside other clients' messages, compared with a server without a gateway.

use std::time::{Duration, Instant};

use unslow_testkit::slots::owner_of;
use unslow_testkit::{PATIENCE, standalone};
use unslow_topology::slot_of;

use crate::common::gate;
use crate::common::wire::{End, Until, Wire, command, shown};
use crate::{ENGINE, three_masters, wire};

/// A message waits this long for subscriptions, and no longer (`subscriptions.rs`). In a round that takes as long the
/// order is nobody's promise.
const PATIENCE_OF_MESSAGES: Duration = Duration::from_millis(90);

#[test]
fn a_message_behind_an_unconfirmed_subscription_is_heard() {
    const ROUNDS: usize = 50;
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let (mut mouth, mut witness) = (wire(&gateway), wire(&gateway));
    let (mut heard, mut late) = (0, 0);
    while heard < ROUNDS && late < 10 * ROUNDS {
        let begun = Instant::now();
        let channel = format!("channel-{}", heard + late);
        let mut ear = wire(&gateway);
        assert_eq!(ear.call(&["PING"]), b"+PONG\r\n");
        ear.write(&command(&["SUBSCRIBE", &channel]));
        // What was there before this reply was asked for has been read by the gateway.
        assert_eq!(witness.call(&["PING"]), b"+PONG\r\n");
        let receivers = mouth.call(&["PUBLISH", &channel, "x"]);
        if begun.elapsed() >= PATIENCE_OF_MESSAGES {
            late += 1;
            continue;
        }
        assert_eq!(shown(&receivers), ":1\\r\\n", "{channel}");
        assert_eq!(ear.hear(&Until::Replies(0), 2).end, End::Open);
        heard += 1;
    }
}

/// The frames that a client gets for these commands in one write.
#[track_caller]
fn frames(mut wire: Wire, commands: &[&[&str]], count: usize) -> Vec<String> {
    let bytes: Vec<u8> = commands.iter().flat_map(|words| command(words)).collect();
    wire.write(&bytes);
    (0..count).map(|_| shown(&wire.frame().unwrap_or_else(|end| panic!("{end:?} in {commands:?}")))).collect()
}

/// A server names the channels of an UNSUBSCRIBE in any order, and words a refusal as it likes.
fn comparable(frame: String) -> String {
    let alike = ["$11\\r\\nunsubscribe", "-ERR Can't execute"];
    let part = alike.into_iter().find(|part| frame.contains(part));
    part.map_or(frame, String::from)
}

#[test]
fn replies_and_confirmations_of_one_pipeline_come_in_the_order_of_the_server() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let pipelines: [(&[&[&str]], usize); 3] = [
        (&[&["SET", "k", "v"], &["SUBSCRIBE", "a", "b"], &["PING"], &["UNSUBSCRIBE"], &["GET", "k"]], 7),
        (&[&["PSUBSCRIBE", "a*"], &["GET", "k"], &["UNSUBSCRIBE", "x"], &["PUNSUBSCRIBE", "a*"], &["GET", "k"]], 5),
        (&[&["SUBSCRIBE", "a"], &["UNSUBSCRIBE", "a"], &["SUBSCRIBE", "a"], &["PING", "x"]], 4),
    ];
    for proto in ["2", "3"] {
        for (commands, count) in pipelines {
            let open = |address: &str| {
                let mut wire = Wire::open(address, PATIENCE);
                wire.call(&["HELLO", proto]);
                wire
            };
            let heard = |address: &str| -> Vec<String> {
                frames(open(address), commands, count).into_iter().map(comparable).collect()
            };
            assert_eq!(heard(&gateway.addresses[0]), heard(&server.address()), "RESP{proto}");
        }
    }
    // Its own message reaches a client that has subscribed to it in the same pipeline.
    let mut own = wire(&gateway);
    own.call(&["HELLO", "3"]);
    own.write(&[command(&["SUBSCRIBE", "c"]), command(&["PUBLISH", "c", "x"])].concat());
    let heard = own.hear(&Until::Replies(1), 2);
    assert_eq!((heard.end, heard.replies), (End::Open, vec![b":1\r\n".to_vec()]));
    assert!(heard.pushes[0].ends_with(b"c\r\n:1\r\n") && heard.pushes[1].ends_with(b"x\r\n"), "{:?}", heard.pushes);
}

#[test]
fn a_shard_channel_that_is_left_and_joined_again_gets_each_confirmation() {
    let servers = three_masters();
    let gateway = gate(&servers.url(), |_| {});
    let commands: &[&[&str]] =
        &[&["SSUBSCRIBE", "c"], &["SUNSUBSCRIBE", "c"], &["SSUBSCRIBE", "c"], &["SUNSUBSCRIBE", "c"]];
    let owner = owner_of(&servers, slot_of(b"c"));
    let direct = Wire::open(&servers.nodes[owner].address(), PATIENCE);
    let expected = frames(direct, commands, 4);
    for _ in 0..20 {
        assert_eq!(frames(wire(&gateway), commands, 4), expected);
    }
}
