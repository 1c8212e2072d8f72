//! Without servers: the tests play both sides.

use crate::config::Config;
use crate::worker::tests::{B, Rig};
use unslow_topology::slot_of;

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
fn what_is_over_takes_no_memory_any_more() {
    let mut rig = Rig::alone();
    let client = rig.client(None);
    let memory = |rig: &Rig| {
        let client = rig.worker.everyone().next().expect("it is there");
        (client.rare.has_memory(), client.subscriber.has_memory(), client.names.has_memory())
    };
    assert_eq!(memory(&rig), (false, false, false));
    rig.says(client, "MULTI\r\nSET k v\r\n");
    rig.asked(0);
    assert_eq!(memory(&rig), (true, false, false));
    rig.answers(0, "+OK\r\n+QUEUED\r\n");
    rig.says(client, "EXEC\r\n");
    rig.answers(0, "*1\r\n+OK\r\n");
    assert_eq!(memory(&rig), (false, false, false), "after a transaction");
    rig.says(client, "CLIENT SETNAME me\r\n");
    assert_eq!(memory(&rig), (false, false, true));
    rig.says(client, "CLIENT SETNAME \"\"\r\n");
    assert_eq!(memory(&rig), (false, false, false), "without a name");
    rig.says(client, "MULTI\r\nCLIENT SETNAME me\r\n");
    rig.says(client, "RESET\r\n");
    assert_eq!(memory(&rig), (false, false, false), "after RESET");
    rig.says(client, "SUBSCRIBE c\r\n");
    rig.asked(0);
    assert_eq!(memory(&rig), (false, true, false));
    rig.confirms(client, &super::pubsub_tests::confirmation(2, "subscribe", "c", 1));
    rig.says(client, "UNSUBSCRIBE c\r\n");
    rig.confirms(client, &super::pubsub_tests::confirmation(2, "unsubscribe", "c", 0));
    assert_eq!(memory(&rig), (false, false, false), "without subscriptions");
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
fn only_a_connection_that_has_let_somebody_in_judges_again() {
    for (reply, kept) in [("+OK\r\n", 1), ("-WRONGPASS invalid username-password pair\r\n", 0), ("-LOADING\r\n", 0)] {
        let mut rig = Rig::halves(Config::default());
        let client = rig.client(None);
        rig.says(client, "AUTH somebody secret\r\n");
        let node = (0..2).find(|n| rig.asked(*n) == ["AUTH somebody secret"]).expect("a node judges");
        rig.answers(node, reply);
        assert_eq!(rig.told(client), reply);
        let judges = rig.worker.lanes.iter().filter(|l| !l.free && l.pooled).count();
        assert_eq!(judges, kept, "after {reply}");
    }
}

#[test]
fn a_client_that_goes_while_it_is_judged_takes_the_connection_with_it() {
    let mut rig = Rig::halves(Config::default());
    let client = rig.client(None);
    rig.says(client, "AUTH somebody secret\r\n");
    (0..2).find(|n| !rig.asked(*n).is_empty()).expect("a node judges");
    rig.close(client);
    assert_eq!(rig.worker.lanes.iter().filter(|l| !l.free).count(), 0);
    assert!(rig.worker.pool.values().all(Vec::is_empty));
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

#[test]
fn what_comes_after_a_refused_multi_is_in_no_transaction() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    rig.told(client);
    // Nothing is sent behind it, where it would run at once.
    rig.says(client, "MULTI\r\n");
    rig.waits(client, &format!("SET {key} v\r\n"));
    assert_eq!(rig.asked(0), ["MULTI"]);
    rig.answers(0, "-NOPERM no right to MULTI\r\n");
    assert!(rig.worker.everyone().all(|c| c.transaction().is_none() && c.watch.held()));
    rig.says(client, &format!("SET {key} v\r\n"));
    assert_eq!(rig.asked(0), [format!("SET {key} v")]);
    rig.answers(0, "+OK\r\n");
    assert_eq!(rig.told(client), "-NOPERM no right to MULTI\r\n+OK\r\n");
}

#[test]
fn a_refused_watch_watches_nothing() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let client = rig.client(None);
    rig.says(client, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "-NOPERM no right to WATCH\r\n");
    assert_eq!(rig.told(client), "-NOPERM no right to WATCH\r\n");
    assert!(rig.worker.everyone().all(|c| c.pin.is_none() && !c.watch.held()));
    // So nothing is left by what leaves the connection that watched.
    rig.says(client, "HELLO 3\r\n");
    rig.told(client);
    rig.says(client, &format!("MULTI\r\nSET {key} v\r\nEXEC\r\n"));
    assert_eq!(rig.asked(0), ["MULTI".to_string(), format!("SET {key} v"), "EXEC".into()]);
    rig.answers(0, "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    // One that was refused takes nothing from those before it.
    rig.says(client, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    rig.says(client, &format!("WATCH {key}\r\n"));
    rig.asked(0);
    rig.answers(0, "-NOPERM no right to this key\r\n");
    assert!(rig.worker.everyone().all(|c| c.pin.is_some() && c.watch.held()));
}

#[test]
fn what_blocks_while_keys_are_watched_has_a_connection_of_its_own() {
    let mut rig = Rig::halves(Config::default());
    let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
    let client = rig.client(None);
    rig.says(client, &format!("WATCH {here}\r\n"));
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    rig.says(client, &format!("BLPOP {there} 0\r\n"));
    assert_eq!((rig.asked(0), rig.asked(1)), (vec![], vec![format!("BLPOP {there} 0")]));
    rig.answers(1, "*-1\r\n");
    // The loss of that connection is no loss of what is watched.
    rig.says(client, &format!("BLPOP {there} 0\r\n"));
    assert_eq!(rig.asked(1), [format!("BLPOP {there} 0")]);
    rig.breaks(1);
    let told = rig.told(client);
    assert!(told.starts_with("+OK\r\n*-1\r\n-ERR unslow: "), "{told}");
    assert!(rig.worker.everyone().all(|c| c.watch.held() && c.aside.is_none()));
    rig.says(client, "MULTI\r\n");
    assert_eq!(rig.asked(0), ["MULTI"]);
    rig.answers(0, "+OK\r\n");
    rig.says(client, &format!("SET {here} v\r\nEXEC\r\n"));
    assert_eq!(rig.asked(0), [format!("SET {here} v"), "EXEC".into()]);
    rig.answers(0, "+QUEUED\r\n*1\r\n+OK\r\n");
    assert_eq!(rig.told(client), "+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
    assert!(rig.worker.everyone().all(|c| c.pin.is_none()));
}

#[test]
fn a_transaction_over_two_nodes_is_not_told_to_try_again() {
    let mut rig = Rig::halves(Config::default());
    let ([here, ..], [there, ..]) = (rig.keys(0), rig.keys(1));
    let moved = |key: &str| format!("-MOVED {} {B}\r\n", slot_of(key.as_bytes()));
    for (key, expected) in [(&there, "-CROSSSLOT unslow: "), (&here, "-TRYAGAIN unslow: ")] {
        let client = rig.client(None);
        rig.says(client, &format!("WATCH {here}\r\n"));
        rig.asked(0);
        rig.answers(0, "+OK\r\n");
        rig.says(client, "MULTI\r\n");
        rig.asked(0);
        rig.answers(0, "+OK\r\n");
        rig.says(client, &format!("SET {key} v\r\n"));
        assert_eq!(rig.asked(0), [format!("SET {key} v")]);
        rig.answers(0, &moved(key));
        let told = rig.told(client);
        let last = told.lines().last().expect("an answer");
        assert!(last.starts_with(expected), "{key}: {told}");
        rig.says(client, "DISCARD\r\n");
        rig.asked(0);
        rig.answers(0, "+OK\r\n");
    }
}

#[test]
fn a_user_who_may_not_select_keeps_the_database_over_auth() {
    const NAMED: &str = "CLIENT SETNAME unslow-gateway";
    let mut rig = Rig::alone();
    let client = rig.client(None);
    for command in ["SELECT 5", "AUTH limited secret"] {
        rig.says(client, &format!("{command}\r\n"));
        assert_eq!(rig.asked(0), [command]);
        rig.answers(0, "+OK\r\n");
    }
    assert_eq!(rig.told(client), "+OK\r\n+OK\r\n");
    rig.says(client, "GET k\r\n");
    assert_eq!(rig.greeting(0), ["SELECT 5", "AUTH limited secret", NAMED]);
    assert_eq!(rig.asked(0), ["GET k"]);
    rig.answers(0, "$-1\r\n");
    rig.told(client);
    // Whether it may say SELECT the server says, also for the database it is in, and for the first one.
    for command in ["SELECT 5", "SELECT 0"] {
        rig.says(client, &format!("{command}\r\n"));
        assert_eq!(rig.asked(0), [command]);
        rig.answers(0, "-NOPERM not for you\r\n");
        assert_eq!(rig.told(client), "-NOPERM not for you\r\n");
    }
    // Where it may, it needs nobody else.
    rig.says(client, "SELECT 7\r\n");
    assert_eq!(rig.asked(0), ["SELECT 7"]);
    rig.answers(0, "+OK\r\n");
    rig.says(client, "GET k\r\n");
    assert_eq!(rig.greeting(0), ["AUTH limited secret", NAMED, "SELECT 7"]);
}

#[test]
fn a_select_within_a_transaction_counts_if_the_server_takes_it() {
    for (selects, reply, db) in [
        (&["SELECT 5"][..], "*2\r\n$-1\r\n+OK\r\n", 5),
        (&["SELECT 99"], "*2\r\n$-1\r\n-ERR DB index is out of range\r\n", 0),
        (&["SELECT 5", "SELECT 99"], "*3\r\n*2\r\n+OK\r\n+OK\r\n+OK\r\n-ERR DB index is out of range\r\n", 5),
        (&["SELECT 5", "SELECT 6"], "*3\r\n$-1\r\n+OK\r\n+OK\r\n", 6),
        (&["SELECT 99", "SELECT 6"], "*3\r\n$-1\r\n-ERR DB index is out of range\r\n+OK\r\n", 6),
        (&["MULTI", "SELECT 5"], "*2\r\n$-1\r\n+OK\r\n", 5),
        (&["SELECT 5"], "*-1\r\n", 0),
        (&["SELECT 5"], "-EXECABORT Transaction discarded because of previous errors.\r\n", 0),
    ] {
        let mut rig = Rig::alone();
        let client = rig.client(None);
        rig.says(client, "MULTI\r\nGET k\r\n");
        for select in selects {
            rig.says(client, &format!("{select}\r\n"));
        }
        rig.says(client, "EXEC\r\n");
        assert_eq!(rig.asked(0).len(), 3 + selects.len());
        let queued = selects.iter().map(|s| if *s == "MULTI" { "-ERR nested\r\n" } else { "+QUEUED\r\n" });
        let queued: String = queued.collect();
        rig.answers(0, &format!("+OK\r\n+QUEUED\r\n{queued}{reply}"));
        assert!(rig.told(client).ends_with(reply), "{selects:?}");
        assert_eq!(rig.worker.everyone().next().map(|c| c.db), Some(db), "{selects:?} {reply}");
    }
}

#[test]
fn tracking_is_ended_by_off_and_not_by_a_prefix_of_that_name() {
    let mut rig = Rig::alone();
    let client = rig.client(None);
    rig.says(client, "HELLO 3\r\n");
    let prefixes = ["CLIENT TRACKING ON BCAST PREFIX off", "CLIENT TRACKING ON BCAST PREFIX NO-TOUCH"];
    let rejected = "CLIENT TRACKING ON NOSUCH";
    for command in [prefixes[0], prefixes[1], rejected, "CLIENT NO-TOUCH OFF"] {
        rig.says(client, &format!("{command}\r\n"));
        assert_eq!(rig.asked(0), [command]);
        rig.answers(0, if command == rejected { "-ERR syntax error\r\n" } else { "+OK\r\n" });
    }
    assert!(rig.worker.everyone().all(|c| c.tracking));
    // The next connection has all that the server took.
    rig.breaks(0);
    rig.says(client, "GET k\r\n");
    assert_eq!(rig.greeting(0)[2..], prefixes);
    rig.asked(0);
    rig.answers(0, "$-1\r\n");
    rig.says(client, "CLIENT TRACKING OFF\r\n");
    rig.asked(0);
    rig.answers(0, "+OK\r\n");
    assert!(rig.worker.everyone().all(|c| !c.tracking));
    assert!(rig.worker.sets.iter().all(|s| s.setup.is_empty()));
}

#[test]
fn tracking_that_would_not_do_what_it_says_is_refused() {
    let mut rig = Rig::halves(Config::default());
    let client = rig.client(None);
    rig.says(client, "HELLO 3\r\n");
    rig.told(client);
    for command in ["CLIENT TRACKING ON REDIRECT 7", "CLIENT TRACKING ON OPTIN", "CLIENT CACHING YES"] {
        rig.says(client, &format!("{command}\r\n"));
        let told = rig.told(client);
        assert!(told.starts_with("-ERR unslow: CLIENT "), "{command}: {told}");
    }
    // Settings are said on each new connection: they are bounded.
    let mut refused = false;
    for n in 0..100 {
        rig.says(client, &format!("CLIENT TRACKING ON BCAST PREFIX {n}-{}\r\n", "p".repeat(1000)));
        let node = (0..2).find(|node| !rig.asked(*node).is_empty());
        match node {
            Some(node) => rig.answers(node, "+OK\r\n"),
            None => refused = true,
        }
    }
    assert!(refused && rig.told(client).contains("-ERR unslow: too many prefixes"));
}

#[test]
fn the_operator_lists_pauses_and_kills_clients() {
    let mut rig = Rig::halves(Config::default());
    let [key, ..] = rig.keys(0);
    let (operator, other) = (rig.client(None), rig.client(None));
    let order = |rig: &mut Rig, command: &str| {
        rig.says(operator, &format!("{command}\r\n"));
        rig.turn();
        rig.told(operator)
    };
    rig.says(other, "CLIENT SETNAME worker\r\n");
    rig.told(other);
    let list = order(&mut rig, "CLIENT LIST ID 2");
    assert!(list.contains("id=2 ") && list.contains(" name=worker ") && !list.contains("id=1 "), "{list}");
    let (get, set) = (format!("GET {key}"), format!("SET {key} v"));
    assert_eq!(order(&mut rig, "CLIENT PAUSE 1000000 WRITE"), "+OK\r\n");
    rig.says(other, &format!("{get}\r\n"));
    assert_eq!(rig.asked(0), [get.as_str()]);
    rig.answers(0, "$-1\r\n");
    rig.waits(other, &format!("{set}\r\n"));
    assert_eq!(order(&mut rig, "CLIENT UNPAUSE"), "+OK\r\n");
    rig.says(other, &format!("{set}\r\n"));
    assert_eq!(rig.asked(0), [set.as_str()]);
    rig.answers(0, "+OK\r\n");
    assert_eq!(order(&mut rig, "CLIENT PAUSE 1000000"), "+OK\r\n");
    rig.waits(other, &format!("{get}\r\n"));
    assert_eq!(order(&mut rig, "CLIENT KILL 127.0.0.1:9"), "-ERR No such client\r\n");
    assert_eq!(order(&mut rig, "CLIENT KILL ID 1"), ":0\r\n");
    assert_eq!(order(&mut rig, "CLIENT KILL TYPE normal"), ":1\r\n");
    assert_eq!(rig.worker.everyone().map(|c| c.number).collect::<Vec<_>>(), [1]);
}

#[test]
fn whether_there_is_a_user_whose_clients_are_killed_a_server_says() {
    let mut rig = Rig::alone();
    let operator = rig.client(None);
    for reply in ["-ERR No such user 'nobody'\r\n", ":0\r\n"] {
        rig.says(operator, "CLIENT KILL USER nobody\r\n");
        rig.turn();
        assert_eq!(rig.asked(0), ["CLIENT KILL USER nobody ADDR 0.0.0.0:0"]);
        rig.answers(0, reply);
        assert_eq!(rig.told(operator), reply);
    }
    // Where clients are meant, there is.
    rig.says(operator, "CLIENT KILL USER default SKIPME no\r\n");
    rig.turn();
    assert!(rig.asked(0).is_empty());
    assert_eq!(rig.told(operator), ":1\r\n");
}

#[test]
fn commands_about_other_clients_are_for_the_gateways_own_user() {
    let mut rig = Rig::halves(Config::default());
    let client = rig.client(None);
    // A user name with everything that could end a field or a line.
    let user = "a b\nid=9";
    rig.says(client, &format!("*3\r\n$4\r\nAUTH\r\n${}\r\n{user}\r\n$1\r\np\r\n", user.len()));
    let node = (0..2).find(|n| !rig.asked(*n).is_empty()).expect("a node judges");
    rig.answers(node, "+OK\r\n");
    rig.told(client);
    for command in ["CLIENT LIST", "CLIENT KILL ID 1", "CLIENT PAUSE 1", "CLIENT UNPAUSE"] {
        rig.says(client, &format!("{command}\r\n"));
        let told = rig.told(client);
        assert!(told.starts_with("-NOPERM unslow: "), "{command}: {told}");
    }
    rig.says(client, "CLIENT INFO\r\n");
    let info = rig.told(client);
    assert!(info.contains(" user=a_b_id=9\r\n"), "{info}");
    for command in ["CLIENT SETNAME \"two\\nlines\"", "CLIENT SETINFO LIB-NAME \"a b\"", "HELLO 2 SETNAME \"a\\nb\""] {
        rig.says(client, &format!("{command}\r\n"));
        let told = rig.told(client);
        assert!(told.starts_with("-ERR ") && told.contains("cannot contain spaces"), "{command}: {told}");
    }
}
