//! Users with few rights, and what one client may learn of the others or do to them.

use std::time::Duration;

use unslow_gateway::ClientAuth;
use unslow_testkit::{PATIENCE, standalone};

use crate::common::gate;
use crate::common::wire::{Wire, shown};
use crate::{ENGINE, wire};

/// A connection of its own to the server, as the operator.
#[track_caller]
fn direct(address: &str) -> Wire {
    Wire::open(address, PATIENCE)
}

#[test]
fn a_user_who_may_not_select_works_in_the_database_it_had_before_auth() {
    let server = standalone(ENGINE);
    let mut operator = direct(&server.address());
    let narrow = ["ACL", "SETUSER", "narrow", "on", ">word", "~*", "+@all", "-select"];
    assert_eq!(operator.call(&narrow), b"+OK\r\n");
    let gateway = gate(&server.url(), |_| {});
    let address = server.address();
    let said = |client: &mut Wire| {
        [
            &["SELECT", "5"][..],
            &["SET", "where", "five"],
            &["AUTH", "narrow", "word"],
            &["GET", "where"],
            &["MULTI"],
            &["APPEND", "where", "!"],
            &["EXEC"],
            &["SELECT", "0"],
            &["SELECT", "5"],
            &["GET", "where"],
        ]
        .map(|words| shown(&client.call(words)))
    };
    assert_eq!(said(&mut wire(&gateway)), said(&mut direct(&address)));
}

#[test]
fn a_debugger_session_is_refused_in_and_outside_multi() {
    let server = standalone(ENGINE);
    let gateway = gate(&server.url(), |_| {});
    let mut client = wire(&gateway);
    assert!(client.call(&["SCRIPT", "DEBUG", "YES"]).starts_with(b"-ERR unslow: the script debugger"));
    client.call(&["MULTI"]);
    assert!(client.call(&["SCRIPT", "DEBUG", "YES"]).starts_with(b"-ERR unslow: the script debugger"));
    assert!(client.call(&["EXEC"]).starts_with(b"-EXECABORT"));
    assert_eq!(client.call(&["EVAL", "return 1", "0"]), b":1\r\n");
    assert_eq!(wire(&gateway).call(&["EVAL", "return 2", "0"]), b":2\r\n");
}

#[test]
fn the_operator_pauses_and_kills_clients_of_all_threads_and_others_may_not() {
    let server = standalone(ENGINE);
    let mut operator = direct(&server.address());
    assert_eq!(operator.call(&["ACL", "SETUSER", "some", "on", ">word", "~*", "+@all"]), b"+OK\r\n");
    assert_eq!(operator.call(&["ACL", "SETUSER", "boss", "on", ">word", "~*", "&*", "+@all"]), b"+OK\r\n");
    let url = server.url().replacen("://", "://boss:word@", 1);
    let gateway = gate(&url, |config| {
        config.threads = 2;
        config.client_auth = ClientAuth::Server;
    });
    let mut boss = wire(&gateway);
    assert_eq!(boss.call(&["AUTH", "boss", "word"]), b"+OK\r\n");
    let mut others: Vec<Wire> = (0..8).map(|_| wire(&gateway)).collect();
    for other in &mut others {
        assert_eq!(other.call(&["AUTH", "some", "word"]), b"+OK\r\n");
        assert!(other.call(&["CLIENT", "PAUSE", "1"]).starts_with(b"-NOPERM "));
        assert!(other.call(&["CLIENT", "KILL", "USER", "boss"]).starts_with(b"-NOPERM "));
    }
    // Paused until the operator says otherwise: a pause that ended by itself would answer the SET.
    assert_eq!(boss.call(&["CLIENT", "PAUSE", "100000000", "WRITE"]), b"+OK\r\n");
    for other in &mut others {
        assert_eq!(other.call(&["GET", "k"]), b"$-1\r\n");
        other.write(b"SET k v\r\n");
    }
    // The server has not been written to, however long that was.
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(operator.call(&["EXISTS", "k"]), b":0\r\n");
    assert_eq!(boss.call(&["CLIENT", "UNPAUSE"]), b"+OK\r\n");
    for other in &mut others {
        assert_eq!(other.frame().as_deref(), Ok(&b"+OK\r\n"[..]));
    }
    assert_eq!(boss.call(&["CLIENT", "KILL", "USER", "some"]), b":8\r\n");
    for other in &mut others {
        assert_eq!(other.until_closed(), b"");
    }
    assert_eq!(boss.call(&["PING"]), b"+PONG\r\n");
}
