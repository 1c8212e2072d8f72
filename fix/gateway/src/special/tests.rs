//! Without servers: the tests play both sides.

use crate::config::Config;
use crate::worker::tests::Rig;

#[test]
fn a_transaction_uses_a_pooled_dedicated_connection() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(1);
    let client = rig.client(None);
    for _ in 0..2 {
        rig.says(client, "MULTI\r\n");
        rig.says(client, &format!("SET {key} v\r\n"));
        assert_eq!(rig.asked(1), ["MULTI".to_string(), format!("SET {key} v")]);
        rig.answers(1, "+OK\r\n+QUEUED\r\n");
        rig.says(client, "EXEC\r\n");
        assert_eq!(rig.asked(1), ["EXEC"]);
        rig.answers(1, "*1\r\n+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    }
    assert_eq!(rig.worker.stats.lanes_opened, 1);
    // An ordinary command uses the shared connection.
    rig.says(client, &format!("GET {key}\r\n"));
    rig.asked(1);
    assert_eq!(rig.worker.stats.lanes_opened, 2);
}

#[test]
fn a_transaction_is_aborted_when_its_connection_breaks_and_is_never_resent() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, "MULTI\r\n");
    rig.says(client, &format!("SET {key} v\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n+QUEUED\r\n");
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n");
    rig.breaks(0);
    rig.says(client, &format!("SET {key} w\r\nEXEC\r\nPING\r\n"));
    let told = rig.told(client);
    let lines: Vec<&str> = told.lines().collect();
    assert!(lines[0].starts_with("-ERR unslow: ") && lines[1].starts_with("-EXECABORT "), "{told}");
    assert_eq!(lines[2..], ["+PONG"]);
    assert_eq!((rig.asked(0), rig.worker.again.len()), (vec![], 0));
}

#[test]
fn connections_on_which_auth_is_judged_are_used_for_nothing_else() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (one, other) = (rig.client(None), rig.client(None));
    rig.says(one, "AUTH somebody secret\r\n");
    let node = (0..2).find(|n| !rig.asked(*n).is_empty()).expect("a node judges");
    rig.answers(node, "+OK\r\n");
    assert_eq!(rig.told(one), "+OK\r\n");
    // A connection of its own for somebody who has not said who it is: not the one that is somebody now.
    let opened = rig.worker.stats.lanes_opened;
    rig.says(other, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    assert_eq!(rig.worker.stats.lanes_opened, opened + 1);
    let pin = rig.worker.everyone().find_map(|c| c.pin).expect("a pin");
    let set = rig.worker.lanes[pin].set;
    assert_eq!(rig.worker.sets[set].identity, Some(crate::session::OWN));
}

#[test]
fn identities_that_nobody_is_any_more_end_with_their_connections() {
    let mut rig = Rig::halves(Config::default());
    let client = rig.client(None);
    for n in 0..100 {
        rig.says(client, &format!("AUTH default word{n}\r\n"));
        let node = (0..2).find(|n| !rig.asked(*n).is_empty()).expect("a node judges");
        rig.answers(node, "+OK\r\n");
        assert_eq!(rig.told(client), "+OK\r\n");
        let [key, ..] = rig.keys(0);
        rig.says(client, &format!("GET {key}\r\n"));
        rig.asked(0);
        rig.answers(0, "$-1\r\n");
        assert_eq!(rig.told(client), "$-1\r\n");
        rig.turn();
    }
    let open = rig.worker.lanes.iter().filter(|l| !l.free).count();
    assert!(open < 50, "{open} connections");
    assert!(rig.worker.identities.iter().flatten().count() < 50);
}

/// A transaction with this command in it, up to its EXEC.
fn refused_within_multi(command: &str, why: &str) {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    for queue in [false, true] {
        let client = rig.client(None);
        rig.says(client, "MULTI\r\n");
        if queue {
            rig.says(client, &format!("SET {key} v\r\n"));
            rig.asked(0);
            rig.answers(0, "+OK\r\n+QUEUED\r\n");
        }
        rig.told(client);
        rig.says(client, &format!("{command}\r\n"));
        let told = rig.told(client);
        assert!(told.starts_with("-ERR unslow: ") && told.contains(why), "{command}: {told}");
        rig.says(client, "EXEC\r\n");
        let told = rig.told(client);
        assert!(told.starts_with("-EXECABORT "), "{command}: {told}");
        rig.says(client, &format!("GET {key}\r\n"));
        assert_eq!(rig.asked(0).last(), Some(&format!("GET {key}")), "{command}: back to normal");
        rig.answers(0, "$-1\r\n");
        rig.told(client);
    }
}

#[test]
fn commands_about_the_connection_or_for_all_nodes_spoil_a_transaction() {
    for (command, why) in [
        ("CLIENT REPLY OFF", "about the connection"),
        ("CLIENT SETNAME me", "about the connection"),
        ("AUTH word", "about the connection"),
        ("HELLO 3", "about the connection"),
        ("SUBSCRIBE channel", "about the connection"),
        ("SSUBSCRIBE channel", "about the connection"),
        ("MONITOR", "about the connection"),
        ("UNSLOW SHOW CLIENTS", "about the connection"),
        ("PSYNC ? -1", "about the connection"),
        ("CLUSTER RESET", "answered for all nodes"),
        ("SCAN 0", "answered for all nodes"),
        ("FLUSHALL", "to several nodes"),
        ("BGSAVE", "for one node"),
    ] {
        refused_within_multi(command, why);
    }
}

#[test]
fn what_ends_a_transaction_is_what_the_server_says() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    for (command, reply, within) in [
        ("DISCARD", "-NOPERM no right to DISCARD\r\n", true),
        ("EXEC more", "-ERR wrong number of arguments\r\n", true),
        ("DISCARD", "+OK\r\n", false),
        ("EXEC", "-EXECABORT Transaction discarded\r\n", false),
        ("EXEC", "*1\r\n+OK\r\n", false),
    ] {
        if rig.worker.everyone().all(|c| c.pin.is_none()) {
            rig.says(client, &format!("MULTI\r\nSET {key} v\r\n"));
            rig.asked(0);
            rig.answers(0, "+OK\r\n+QUEUED\r\n");
        }
        rig.says(client, &format!("{command}\r\n"));
        assert_eq!(rig.asked(0), [command]);
        rig.answers(0, reply);
        let still = rig.worker.everyone().any(|c| c.pin.is_some());
        assert_eq!(still, within, "{command}: {reply}");
        rig.told(client);
    }
    // UNWATCH likewise: refused, it goes on watching on the connection it has.
    rig.says(client, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    for (reply, still) in [("-NOPERM no right to UNWATCH\r\n", true), ("+OK\r\n", false)] {
        rig.says(client, "UNWATCH\r\n");
        assert_eq!(rig.asked(0), ["UNWATCH"]);
        rig.answers(0, reply);
        assert_eq!(rig.worker.everyone().any(|c| c.watch.held()), still, "{reply}");
    }
}

#[test]
fn losing_a_watch_fails_the_next_exec_as_a_changed_key_would() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("WATCH {key}\r\n"));
    assert_eq!(rig.asked(0), [format!("WATCH {key}")]);
    rig.answers(0, "+OK\r\n");
    rig.breaks(0);
    rig.says(client, &format!("MULTI\r\nSET {key} v\r\nEXEC\r\n"));
    assert_eq!(rig.told(client), "+OK\r\n+OK\r\n+QUEUED\r\n*-1\r\n");
    // The one after that succeeds.
    rig.says(client, "MULTI\r\nEXEC\r\n");
    assert_eq!(rig.told(client), "+OK\r\n*0\r\n");
}
