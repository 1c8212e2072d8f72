//! Messages as libraries print them, and any bytes at all.
//!
//! The texts follow the libraries' issues and sources: StackExchange.Redis #481, #1334, #1533, #2066, #2582, #2792 and
//! its page on time-outs; jedis #844, #1874; redis-py #185, #850, #1439 and its connection.py; Lettuce's
//! ExceptionFactory; go-redis' internal/pool; ioredis' Redis.ts and cluster/index.ts; node-redis' errors.ts; Redis'
//! server.c. Addresses and names are made up.

use proptest::prelude::*;
use unslow_facts::{ClientError, ClientErrorKind, ClientLibrary, ThreadPool};
use unslow_given::{MAX_BYTES, client_errors};

use ClientErrorKind::*;
use ClientLibrary::*;

/// The one message of a text.
#[track_caller]
fn one(text: &str) -> ClientError {
    let mut all = client_errors(text);
    assert_eq!(all.len(), 1, "{text}: {all:?}");
    all.remove(0)
}

#[test]
fn every_library_is_known_by_its_messages() {
    for (text, kind, library, server) in [
        (include_str!("messages/lettuce_timeout.txt"), Timeout, Lettuce, None),
        ("io.lettuce.core.RedisCommandTimeoutException: Command timed out after 5 second(s)", Timeout, Lettuce, None),
        (
            "io.lettuce.core.RedisConnectionException: Unable to connect to 10.0.0.1/<unresolved>:6379\n\
             Caused by: io.netty.channel.AbstractChannel$AnnotatedConnectException: Connection refused: /10.0.0.1:6379",
            Refused,
            Lettuce,
            Some("10.0.0.1:6379"),
        ),
        (
            "io.lettuce.core.RedisConnectionException: Unable to connect to [cache:6379]\n\
             Caused by: io.netty.channel.ConnectTimeoutException: connection timed out: cache/10.0.0.1:6379",
            ConnectTimeout,
            Lettuce,
            Some("cache:6379"),
        ),
        ("io.lettuce.core.RedisException: java.io.IOException: Connection reset by peer", Closed, Lettuce, None),
        (include_str!("messages/jedis_pool.txt"), PoolTimeout, Jedis, None),
        (
            "redis.clients.jedis.exceptions.JedisException: Could not get a resource from the pool",
            NoConnection,
            Jedis,
            None,
        ),
        (
            "redis.clients.jedis.exceptions.JedisConnectionException: Could not get a resource from the pool\n\
             Caused by: java.net.ConnectException: Connection refused (Connection refused)",
            Refused,
            Jedis,
            None,
        ),
        (
            "redis.clients.jedis.exceptions.JedisConnectionException: java.net.SocketTimeoutException: Read timed out",
            Timeout,
            Jedis,
            None,
        ),
        ("redis.clients.jedis.exceptions.JedisConnectionException: Unexpected end of stream.", Closed, Jedis, None),
        (include_str!("messages/redis_py_timeout.txt"), Timeout, RedisPy, Some("cache.internal:6379")),
        (
            "redis.exceptions.ConnectionError: Error 104 while writing to socket. Connection reset by peer.",
            Closed,
            RedisPy,
            None,
        ),
        (
            "redis.exceptions.ConnectionError: Error 111 connecting to 127.0.0.1:6379. Connection refused.",
            Refused,
            RedisPy,
            Some("127.0.0.1:6379"),
        ),
        ("redis.exceptions.ConnectionError: Too many connections", PoolTimeout, RedisPy, None),
        ("redis.exceptions.MaxConnectionsError: Too many connections", PoolTimeout, RedisPy, None),
        ("redis.exceptions.BusyLoadingError: Redis is loading the dataset in memory", Loading, RedisPy, None),
        ("redis: connection pool timeout", PoolTimeout, GoRedis, None),
        ("read tcp 10.0.0.9:51234->10.0.0.1:6379: i/o timeout", Timeout, Unknown, Some("10.0.0.1:6379")),
        ("dial tcp 10.0.0.1:6379: i/o timeout", ConnectTimeout, Unknown, Some("10.0.0.1:6379")),
        ("context deadline exceeded", Timeout, Unknown, None),
        ("EOF", Closed, Unknown, None),
        (
            "MaxRetriesPerRequestError: Reached the max retries per request limit (which is 20). Refer to \
             \"maxRetriesPerRequest\" \
             option for details.",
            NoConnection,
            Ioredis,
            None,
        ),
        (
            "Error: Command timed out\n    at Object.<anonymous> (node_modules/ioredis/built/x.js:1:1)",
            Timeout,
            Ioredis,
            None,
        ),
        (
            "[ioredis] Unhandled error event: Error: connect ETIMEDOUT 10.0.0.1:6379",
            ConnectTimeout,
            Ioredis,
            Some("10.0.0.1:6379"),
        ),
        ("ClusterAllFailedError: Failed to refresh slots cache.", NoConnection, Ioredis, None),
        ("SocketClosedUnexpectedlyError: Socket closed unexpectedly", Closed, NodeRedis, None),
        ("ConnectionTimeoutError: Connection timeout", ConnectTimeout, NodeRedis, None),
    ] {
        let error = one(text);
        assert_eq!((error.kind, error.library, error.server.as_deref()), (kind, library, server), "{text}");
    }
}

#[test]
fn replies_of_servers_are_known_in_any_message() {
    for (text, kind) in [
        ("LOADING Redis is loading the dataset in memory", Loading),
        ("(error) LOADING Valkey is loading the dataset in memory", Loading),
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory),
        (
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            SaveFailed,
        ),
        ("MISCONF Errors writing to the AOF file: No space left on device", SaveFailed),
        ("redis.exceptions.ReadOnlyError: You can't write against a read only replica.", ReadOnly),
        ("READONLY You can't write against a read only slave.", ReadOnly),
        ("CLUSTERDOWN Hash slot not served", ClusterDown),
        ("CLUSTERDOWN The cluster is down", ClusterDown),
        ("io.lettuce.core.RedisCommandExecutionException: MOVED 3999 10.0.0.2:6379", Moved),
        ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", MasterDown),
        ("NOREPLICAS Not enough good replicas to write.", NoReplicas),
        ("NOAUTH Authentication required.", NoAuth),
        ("WRONGPASS invalid username-password pair or user is disabled.", WrongPassword),
        ("NOPERM User app has no permissions to run the 'keys' command", NoPermission),
        ("redis.exceptions.NoPermissionError: No permissions to access a key", NoPermission),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", Busy),
        ("ERR max number of clients reached", MaxClients),
    ] {
        assert_eq!(one(text).kind, kind, "{text}");
        // The same inside an exception of a library.
        let wrapped =
            format!("io.lettuce.core.RedisCommandExecutionException: {text}\n\tat io.lettuce.core.X.y(X.java:1)");
        assert_eq!((one(&wrapped).kind, one(&wrapped).library), (kind, Lettuce), "{wrapped}");
    }
}

#[test]
fn counters_of_stackexchange_redis() {
    let error = one(include_str!("messages/stackexchange_thread_pool.txt"));
    assert_eq!((error.kind, error.library), (Timeout, StackExchangeRedis));
    assert_eq!((error.command.as_deref(), error.server.as_deref()), (Some("GET"), Some("10.0.0.1:6379")));
    assert_eq!(error.timeout_ms, Some(5000));
    let counters = error.multiplexer.unwrap();
    assert_eq!((counters.queued, counters.sent), (Some(0), Some(12)));
    assert_eq!((counters.unread_bytes, counters.partial_bytes), (Some(65_536), Some(0)));
    assert_eq!(counters.worker, Some(ThreadPool { busy: 600, min: 6, max: 32_767 }));
    assert_eq!(counters.iocp, Some(ThreadPool { busy: 0, min: 6, max: 1000 }));
    assert_eq!((counters.queued_items, counters.own_threads), (Some(1431), Some((10, 10))));
    assert_eq!(counters.reader.as_deref(), Some("ReadAsync"));

    // 1.x: the key stands behind the command, and there is no time.
    let old = one(include_str!("messages/stackexchange_1.txt"));
    assert_eq!((old.kind, old.command.as_deref(), old.timeout_ms), (Timeout, Some("GET"), None));
    let counters = old.multiplexer.unwrap();
    assert_eq!((counters.sent, counters.unread_bytes, counters.queued_items), (Some(3062), Some(40_886), None));
    assert_eq!(counters.worker, Some(ThreadPool { busy: 339, min: 2, max: 5000 }));

    let none = one(include_str!("messages/stackexchange_no_connection.txt"));
    assert_eq!((none.kind, none.command.as_deref()), (Closed, Some("SET")));
    assert_eq!(none.server.as_deref(), Some("10.51.128.142:6379"));
}

#[test]
fn no_key_and_no_argument_is_kept() {
    for text in [
        include_str!("messages/stackexchange_thread_pool.txt"),
        include_str!("messages/stackexchange_unread.txt"),
        include_str!("messages/stackexchange_server_slow.txt"),
        include_str!("messages/stackexchange_1.txt"),
        include_str!("messages/stackexchange_no_connection.txt"),
    ] {
        let kept = format!("{:?}", client_errors(text));
        for key in ["session", "7f3a", "ABCD", "MyKey", "commdevice", "test-connect", "web-1", "WIN-1"] {
            assert!(!kept.contains(key), "{key} is in {kept}");
        }
    }
}

#[test]
fn messages_that_say_the_same_are_counted() {
    let line = include_str!("messages/stackexchange_server_slow.txt");
    let worse = include_str!("messages/stackexchange_unread.txt");
    let all =
        client_errors(&format!("{line}{line}{worse}an ordinary line of the log\nredis: connection pool timeout\n"));
    assert_eq!(all.iter().map(|e| (e.kind, e.count)).collect::<Vec<_>>(), [(Timeout, 3), (PoolTimeout, 1)]);
    assert_eq!(all[0].multiplexer.as_ref().unwrap().unread_bytes, Some(22_649), "the worst counters are kept");
    // However many servers are named: those beyond a bound are counted together.
    let many: String =
        (1..=1000).map(|n| format!("dial tcp 10.0.0.1:{n}: connect: connection refused (redis)\n")).collect();
    let all = client_errors(&many);
    assert!(all.len() < 40, "{}", all.len());
    assert_eq!(all.iter().map(|e| e.count).sum::<u64>(), 1000);
}

#[test]
fn what_any_program_says_counts_beside_a_word_about_redis() {
    let log = "java.net.SocketTimeoutException: Read timed out\njava.net.SocketTimeoutException: Connect timed out\n";
    assert_eq!(one(log).kind, Unrecognised, "a log of an HTTP client");
    assert_eq!(
        one("java.net.SocketTimeoutException: Read timed out\n").kind,
        Timeout,
        "it was handed over as an error of Redis"
    );
    let mixed = format!("{log}redis.clients.jedis.exceptions.JedisConnectionException: Read timed out\n");
    assert_eq!((one(&mixed).kind, one(&mixed).count), (Timeout, 1));
}

#[test]
fn other_programs_words_are_not_taken_for_those_of_a_client() {
    // Each in a log of two lines: alone it would be taken at its word.
    for line in [
        "java.io.IOException: unexpected end of stream on http://10.0.0.9:8080/...",
        "WebSocketClosed: 1006",
        "user bob has no permissions to open this document",
    ] {
        assert_eq!(one(&format!("{line}\nanother line\n")).kind, Unrecognised, "{line}");
    }
    // Nor is a key that looks like an address or a command.
    for line in ["redis: read timed out: session:4711", "redis: i/o timeout, command=SECRET"] {
        let error = one(line);
        assert_eq!((error.kind, error.server, error.command), (Timeout, None, None), "{line}");
    }
}

#[test]
fn what_is_not_understood_is_said_so_and_an_empty_text_is_nothing() {
    for text in ["hello", "\u{0}\u{1}\u{fffd}\u{fffd}", "{\"schema\": 1}"] {
        assert_eq!((one(text).kind, one(text).count), (Unrecognised, 1), "{text:?}");
    }
    for text in ["", "\n\n", "  \t \r\n"] {
        assert!(client_errors(text).is_empty(), "{text:?}");
    }
    // A character on the bound is not cut in half.
    let long = format!("redis: connection pool timeout\n{}", "\u{20ac}".repeat(MAX_BYTES / 3));
    assert_eq!(client_errors(&long)[0].kind, PoolTimeout);
}

/// Pieces of real messages, so that random texts reach the parsers behind the phrases.
const PIECES: &[&str] = &[
    "Timeout performing ",
    "GET",
    " (5000ms)",
    ", in: ",
    "in=",
    "qs: ",
    "18446744073709551616",
    "-1",
    "WORKER: (Busy=",
    ",Min=",
    ",Max=",
    ")",
    "(",
    "mgr: ",
    " of ",
    "serverEndpoint: ",
    "->",
    "[::1]:6379",
    ":",
    "/",
    "<unresolved>",
    "\n",
    "\n\t",
    "Caused by: ",
    "MOVED ",
    "16384",
    "EOF",
    "redis",
    "Traceback (most recent call last)",
    "timed out after ",
    "1e308",
    ".",
    " minute(s)",
    "\u{20ac}",
    "borrowMaxWaitDuration=PT",
    "borrowMaxWaitMillis=",
];

proptest! {
    #[test]
    fn any_text_gives_facts_and_no_panic(text in "\\PC{0,400}", lines in proptest::collection::vec(".{0,60}", 0..20)) {
        let _ = (client_errors(&text), client_errors(&lines.join("\n")));
    }

    #[test]
    fn any_order_of_the_pieces_gives_figures_that_can_be_saved(
        pieces in proptest::collection::vec(0..PIECES.len(), 0..60),
    ) {
        let text: String = pieces.iter().map(|i| PIECES[*i]).collect();
        let all = client_errors(&text);
        prop_assert_eq!(all.is_empty(), text.trim().is_empty());
        prop_assert!(all.len() <= 240 && all.iter().all(|e| e.count > 0));
        prop_assert_eq!(&client_errors(&text), &all);
    }
}
