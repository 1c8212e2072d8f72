//! Subscriptions without servers: the tests play both sides.

use unslow_testkit::until;

use crate::config::Config;
use crate::map::tests::node;
use crate::session::State;
use crate::worker::tests::{A, Rig};

/// A confirmation in RESP2, or `>` in RESP3.
pub(super) fn confirmation(proto: u8, word: &str, name: &str, count: usize) -> String {
    let kind = if proto == 3 { '>' } else { '*' };
    format!("{kind}3\r\n${}\r\n{word}\r\n${}\r\n{name}\r\n:{count}\r\n", word.len(), name.len())
}

#[test]
fn a_message_goes_behind_the_subscriptions_before_it_and_before_those_after_it() {
    for message in ["PUBLISH c x", "SPUBLISH c x", "EVAL script 1 k"] {
        let mut rig = Rig::alone();
        let [ear, mouth, late, reader] = [(); 4].map(|()| rig.client(None));
        let message = format!("{message}\r\n");
        rig.says(ear, "SUBSCRIBE c d\r\n");
        assert_eq!(rig.asked(0), ["SUBSCRIBE c d"]);
        assert_eq!(rig.offers(mouth, &message), 0, "{message}");
        rig.says(reader, "GET k\r\n");
        assert_eq!(rig.asked(0), ["GET k"], "what publishes nothing waits for nobody");
        rig.says(late, "SUBSCRIBE c\r\n");
        rig.asked(0);
        rig.confirms(ear, &confirmation(2, "subscribe", "c", 1));
        assert_eq!(rig.offers(mouth, &message), 0, "one of two is confirmed");
        rig.confirms(ear, &confirmation(2, "subscribe", "d", 2));
        rig.turn();
        rig.says(mouth, &message);
        assert_eq!(rig.asked(0), [message.trim_end()]);
    }
}

#[test]
fn nobody_waits_for_a_subscription_that_was_refused_or_whose_client_has_gone() {
    for gone in [false, true] {
        let mut rig = Rig::alone();
        let (ear, mouth) = (rig.client(None), rig.client(None));
        rig.says(ear, "SUBSCRIBE c\r\n");
        rig.asked(0);
        assert_eq!(rig.offers(mouth, "PUBLISH c x\r\n"), 0);
        if gone {
            rig.leaves(ear);
        } else {
            rig.confirms(ear, "-NOPERM no such channel\r\n");
        }
        rig.turn();
        rig.says(mouth, "PUBLISH c x\r\n");
        assert_eq!(rig.asked(0), ["PUBLISH c x"]);
    }
}

#[test]
fn a_clients_replies_stand_behind_its_confirmations() {
    for (proto, next) in [(3, "PUBLISH c x"), (3, "GET k"), (2, "PING"), (2, "GET k")] {
        let mut rig = Rig::alone();
        let client = rig.client(None);
        rig.says(client, &format!("HELLO {proto}\r\n"));
        rig.told(client);
        let (first, next) = ("SUBSCRIBE c\r\n", format!("{next}\r\n"));
        assert_eq!(rig.offers(client, &format!("{first}{next}")), first.len(), "{next}");
        assert_eq!((rig.asked(0), rig.told(client)), (vec!["SUBSCRIBE c".to_string()], String::new()));
        let confirmed = confirmation(proto, "subscribe", "c", 1);
        rig.confirms(client, &confirmed);
        rig.turn();
        rig.says(client, &next);
        let told = rig.told(client);
        assert!(told.starts_with(&confirmed), "{next}: {told}");
        let asked = rig.asked(0);
        assert_eq!(asked.len(), usize::from(proto == 3), "{next}: {asked:?}");
    }
}

#[test]
fn a_subscription_takes_a_connection_that_is_open_and_the_next_is_dialled() {
    let mut rig = Rig::alone();
    let first = rig.client(None);
    rig.says(first, "SUBSCRIBE c\r\n");
    assert_eq!(rig.asked(0), ["SUBSCRIBE c"]);
    for opened in 2..5 {
        assert_eq!(rig.worker.stats.lanes_opened, opened);
        let next = rig.client(None);
        rig.says(next, "SUBSCRIBE c\r\n");
        assert!(rig.subscriber_lane(next).is_some_and(|l| l.state == State::Ready), "it is written at once");
        assert_eq!(rig.asked(0), ["SUBSCRIBE c"]);
    }
}

#[test]
fn a_connection_that_is_being_dialled_ahead_is_taken_too_or_given_up() {
    let mut rig = Rig::alone();
    let lanes = |rig: &Rig| rig.worker.lanes.iter().filter(|l| !l.free).count();
    let [first, second, third] = [(); 3].map(|()| rig.client(None));
    rig.says(first, "SUBSCRIBE c\r\n");
    rig.says(second, "SUBSCRIBE c\r\n");
    assert_eq!(lanes(&rig), 3, "two, and the next");
    assert_eq!(rig.asked(0), ["SUBSCRIBE c", "SUBSCRIBE c"]);
    rig.says(third, "SUBSCRIBE c\r\n");
    assert_eq!((rig.asked(0).len(), lanes(&rig)), (1, 4));
    let fourth = rig.client(None);
    rig.says(fourth, "SUBSCRIBE c\r\n");
    assert_eq!(lanes(&rig), 5);
    rig.refuses(0);
    assert_eq!(lanes(&rig), 4, "nobody waits for it");
    assert_eq!(rig.asked(0), ["SUBSCRIBE c"]);
}

#[test]
fn a_client_that_leaves_a_shard_channel_and_comes_back_gets_each_confirmation() {
    let mut rig = Rig::halves(Config::default());
    let [name, ..] = rig.keys(0);
    let client = rig.client(None);
    let (join, leave) = (format!("SSUBSCRIBE {name}"), format!("SUNSUBSCRIBE {name}"));
    let before = format!("{join}\r\n{leave}\r\n");
    assert_eq!(rig.offers(client, &format!("{before}{join}\r\n")), before.len());
    assert_eq!(rig.asked(0), [join.clone(), leave]);
    let (joined, left) = (confirmation(2, "ssubscribe", &name, 1), confirmation(2, "sunsubscribe", &name, 0));
    rig.confirms(client, &format!("{joined}{left}"));
    assert_eq!(rig.told(client), format!("{joined}{left}"));
    rig.turn();
    rig.says(client, &format!("{join}\r\n"));
    assert_eq!(rig.asked(0), std::slice::from_ref(&join));
    rig.confirms(client, &joined);
    assert_eq!(rig.told(client), joined);
    // The same word, which it did not ask for: the slot has moved.
    rig.confirms(client, &left);
    assert_eq!(rig.told(client), "");
    until("it to be subscribed again", || {
        rig.turn();
        rig.asked(0) == [join.clone()]
    });
    rig.confirms(client, &joined);
    assert_eq!(rig.told(client), "", "it has that confirmation");
}

#[test]
fn a_refusal_ends_all_confirmations_of_its_command() {
    let mut rig = Rig::alone();
    let client = rig.client(None);
    let refusal = "-NOPERM this channel is not yours\r\n";
    rig.says(client, "SUBSCRIBE a a b\r\n");
    rig.asked(0);
    rig.confirms(client, refusal);
    rig.says(client, "PING\r\n");
    assert_eq!(rig.told(client), format!("{refusal}+PONG\r\n"), "it is no subscriber");
    rig.says(client, "SUBSCRIBE a\r\nUNSUBSCRIBE a b\r\n");
    rig.asked(0);
    rig.confirms(client, &format!("{}{refusal}", confirmation(2, "subscribe", "a", 1)));
    rig.told(client);
    rig.says(client, "PING\r\n");
    assert_eq!(rig.told(client), "*2\r\n$4\r\npong\r\n$0\r\n\r\n", "it is one still");
}

#[test]
fn confirmations_that_are_owed_survive_their_connection() {
    let mut rig = Rig::alone();
    let client = rig.client(None);
    rig.says(client, "SUBSCRIBE a b\r\n");
    rig.asked(0);
    let a = confirmation(2, "subscribe", "a", 1);
    rig.confirms(client, &a);
    assert_eq!(rig.told(client), a);
    rig.loses(client);
    let mut asked = Vec::new();
    until("both to be subscribed again", || {
        rig.turn();
        asked.extend(rig.asked(0));
        asked.len() == 2
    });
    assert_eq!(asked, ["SUBSCRIBE a", "SUBSCRIBE b"]);
    assert_eq!(rig.offers(client, "PING\r\n"), 0);
    let b = confirmation(2, "subscribe", "b", 2);
    rig.confirms(client, &format!("{a}{b}"));
    assert_eq!(rig.told(client), b, "it had the first");
    rig.turn();
    rig.says(client, "PING\r\n");
    assert!(rig.told(client).contains("pong"));
}

#[test]
fn names_of_channels_are_held_up_to_a_limit() {
    let config = Config { client_input_bytes: 1000, ..Config::default() };
    let mut rig = Rig::new(config, vec![node(A, None, &[(0, 16383)])]);
    let client = rig.client(None);
    for (word, many) in [("SUBSCRIBE", "0123456789 ".repeat(20)), ("SSUBSCRIBE", "0123456789 ".repeat(20))] {
        rig.says(client, &format!("{word} {}\r\n", many.trim_end()));
        let told = rig.told(client);
        assert!(told.starts_with("-ERR unslow: the names ") && told.contains("client_input_bytes = 1000"), "{told}");
        assert!(rig.asked(0).is_empty());
    }
    let name = "x".repeat(500);
    rig.says(client, &format!("SUBSCRIBE {name}\r\n"));
    assert_eq!(rig.asked(0).len(), 1);
    rig.says(client, &format!("SUBSCRIBE {name}-2\r\n"));
    assert!(rig.told(client).starts_with("-ERR unslow: the names ") && rig.asked(0).is_empty());
}
