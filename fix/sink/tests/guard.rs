//! The script of `exactly_once` in real servers' Lua: which errors of the commands inside it are the server's.

use unslow_client::{Connection, Error};
use unslow_testkit::options;
use unslow_testkit::servers::server;

const GUARD: &str = include_str!("../src/guard.lua");
const ENGINES: [&str; 4] = ["valkey-9.1", "redis-7.0", "redis-6.2", "redis-5.0"];

/// What `about_the_server` says of an error.
fn judged(c: &mut Connection, error: &str) -> Option<String> {
    let from = GUARD.find("local function sentence").expect("it is there");
    let to = GUARD.find("local function wait").expect("it is there");
    let script = format!("{}\nreturn about_the_server(ARGV[1])", &GUARD[from..to]);
    c.call(&["EVAL", &script, "0", error]).unwrap().text()
}

#[test]
fn the_servers_sentences_are_known_whatever_stands_before_them() {
    let server = server("valkey-9.1", &[]);
    let mut c = server.connect_with(&options(2)).unwrap();
    for (error, kind) in [
        ("ERR Script attempted to access a non local key in a cluster node", Some("TRYAGAIN")),
        ("@user_script: 12: Script attempted to access a non local key in a cluster node", Some("TRYAGAIN")),
        (
            "ERR Unable to execute command 'mset' in script because undeclared keys were accessed during rehashing of \
             the slot",
            Some("TRYAGAIN"),
        ),
        ("ERR Script attempted to execute a write command while the cluster is down and readonly", Some("CLUSTERDOWN")),
        ("@user_script: 12: The user executing the script can't run this command or subcommand", Some("NOPERM")),
        ("ERR The user executing the script can't run this command or subcommand", Some("NOPERM")),
        ("NOPERM ACL failure in script: User w has no permissions to run the 'set' command", Some("NOPERM")),
        ("NOPERM ACL failure in script: No permissions to access a key", None),
        ("@user_script: 1: -OOM command not allowed when used memory > 'maxmemory'.\r\n", Some("OOM")),
        ("READONLY You can't write against a read only replica.", Some("READONLY")),
        (
            "ERR The user executing the script can't access at least one of the keys mentioned in the command \
             arguments",
            None,
        ),
        ("ERR invalid 'The user executing the script can't run'", None),
        ("ERR unknown subcommand 'rehashing'", None),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", None),
    ] {
        assert_eq!(judged(&mut c, error).as_deref(), kind, "{error}");
    }
}

/// Runs the guard around a module's command that answers this error, as the message at offset 1.
fn around(c: &mut Connection, error: &str) -> Error {
    let script = format!(
        "local real = redis
        local redis = {{
            call = real.call,
            error_reply = real.error_reply,
            pcall = function(...)
                if select(1, ...) == 'FAKE.SET' then return {{ err = ARGV[6] }} end
                return real.pcall(...)
            end,
        }}
        {GUARD}"
    );
    c.call(&["EVAL", &script, "2", "mark", "k", "o", "1", "0", "-2", "FAKE.SET", error]).unwrap_err()
}

#[test]
fn a_modules_refusal_waits_only_if_the_server_refuses_writes_too() {
    const MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";
    const ELSEWHERE: &str = "ERR Script attempted to access a non local key in a cluster node";
    for name in ENGINES {
        let server = server(name, &[("maxmemory-policy", "noeviction")]);
        let mut c = server.connect_with(&options(2)).unwrap();
        for (memory, error, code) in [
            ("0", MEMORY, "UNSLOWREFUSED"),
            ("1", MEMORY, "UNSLOWWAIT"),
            ("1", "MISCONF of a module", "UNSLOWREFUSED"),
            ("1", "WRONGTYPE", "UNSLOWREFUSED"),
            ("0", "NOPERM of a module", "UNSLOWREFUSED"),
            ("0", ELSEWHERE, "UNSLOWWAIT"),
            ("0", "ERR a non local key of a module", "UNSLOWREFUSED"),
        ] {
            c.call(&["CONFIG", "SET", "maxmemory", memory]).unwrap();
            let told = around(&mut c, error);
            assert_eq!(told.code(), Some(code), "{name}, {error}: {told}");
            assert_eq!(c.call(&["HEXISTS", "mark", "o~"]).unwrap().integer(), Some(0), "{name}, {error}");
            c.call(&["DEL", "mark"]).unwrap();
        }
        // And a command that the server does refuse.
        c.call(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let told = c.call(&["EVAL", GUARD, "2", "mark", "k", "o", "1", "0", "-3", "SET", "k", "v"]).unwrap_err();
        assert_eq!(told.code(), Some("UNSLOWWAIT"), "{name}: {told}");
        assert!(told.message.contains("OOM"), "{told}");
    }
}
