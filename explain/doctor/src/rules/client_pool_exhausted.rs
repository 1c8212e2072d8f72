//! The client waited for a connection from its pool and got none: its requests failed before they were sent.
//!
//! A pool of n connections serves n requests at a time. How many are needed follows from Little's law: requests a
//! second times the time that each holds its connection, which is the round trip plus the server's own time. If that is
//! far less than the number of connections, they are held for something else: never returned, waiting in blocking
//! commands, or kept during work that has nothing to do with Redis.
//!
//! Seen when: a client's message says so (commons-pool's `Timeout waiting for idle object` of Jedis and Lettuce,
//! go-redis' `connection pool timeout`, redis-py's `Too many connections` and `MaxConnectionsError`). It is a finding
//! if the servers were measured, nothing there makes calls slow, and their load needs less than half of the connections
//! that are open; otherwise it is a risk.
//!
//! Not to be taken for: maxclients on the server (`too_many_connections`); a pool that cannot connect, whose message
//! names the refused connection as its cause (`client_error`).
//!
//! How to confirm: the pool's own figures: `pool.getNumActive()`, `getNumWaiters()` (Jedis), `rdb.PoolStats()`
//! (go-redis); `redis-cli CLIENT LIST`: connections of that client with a high idle time were borrowed and are not
//! being used.
//!
//! What to do: return connections to the pool (try-with-resources, `with`), keep blocking commands out of it; then size
//! it by Little's law.
//! Sources: jedis #1874, #2045, #2432; go-redis internal/pool; commons-pool2 GenericObjectPool.

use unslow_facts::{ClientError, ClientErrorKind, ClientLibrary};

use super::messages::{causes, said, where_and_how_often, with_causes};
use super::prelude::*;

pub const TITLE: &str = "Client's connection pool exhausted";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected =
    Injected::No("it is read from the error message of a client's pool, and the lab's clients have no pool");

/// Of the connections that are open, so many are held for something other than the servers' load.
const NEEDED_SHARE: f64 = 0.5;

pub fn check(facts: &Facts) -> Verdict {
    let waits = facts.client_errors.iter().filter(|e| e.kind == ClientErrorKind::PoolTimeout);
    match waits.max_by_key(|e| e.count) {
        Some(error) => found(facts, error).into(),
        None => Verdict::NotHere,
    }
}

/// What the load of the servers asks of connections.
struct Load {
    ops: f64,
    /// Round trip and the server's own time of a command.
    each_us: f64,
    rtt_us: f64,
    connected: f64,
}

impl Load {
    /// Of the server that the message names, or of all.
    fn of(facts: &Facts, server: Option<&str>) -> Option<Load> {
        let named = server.and_then(|s| facts.node(s)).filter(|n| n.last.is_some());
        let nodes: Vec<&Node> = named.map_or_else(|| facts.live().collect(), |node| vec![node]);
        let (mut ops, mut calls, mut usec, mut connected, mut rtt_us) = (0.0, 0.0, 0.0, 0.0, 0.0_f64);
        for node in nodes {
            ops += node.application_ops()?;
            for stat in node.application_commands().values() {
                calls += stat.calls as f64;
                usec += stat.usec as f64;
            }
            connected += node.number("connected_clients")?;
            // The clients' own distance where the server's sockets show it, else the way from here.
            let sockets = node.sockets.value().into_iter().flatten().map(|p| f64::from(p.rtt_us_p50));
            let from_here = node.rtt.value().map(|r| f64::from(r.us_p50));
            rtt_us = rtt_us.max(sockets.reduce(f64::max).or(from_here)?);
        }
        let each_us = rtt_us + usec / f64::max(calls, 1.0);
        (ops >= USED_OPS).then_some(Load { ops, each_us, rtt_us, connected })
    }

    fn needed(&self) -> f64 {
        self.ops * self.each_us / 1e6
    }

    fn formula(&self) -> String {
        format!(
            "{} commands/s x ({} round trip + {} in the server) = {:.1} connections at work at a time",
            count(self.ops),
            time_us(self.rtt_us),
            time_us(self.each_us - self.rtt_us),
            self.needed()
        )
    }
}

fn found(facts: &Facts, error: &ClientError) -> Finding {
    let load = Load::of(facts, error.server.as_deref());
    let causes = causes(facts, error.kind);
    let failed = format!("requests of this client failed before they were sent: {}", where_and_how_often(error));
    let finding = match (&load, causes.first()) {
        (_, Some((rule, _))) => {
            Finding::new(format!("{}; {rule} makes each call hold its connection longer", said(error)))
                .risk(failed)
                .possible(
                    "the message may be from another time; that the servers were slow then is inferred from this \
                       window",
                )
        }
        (Some(load), None) if load.needed() <= NEEDED_SHARE * load.connected => Finding::new(format!(
            "Not your Redis: {}, although all clients together need {:.1} connections at a time and {} are open: they \
             are held for something else",
            said(error),
            load.needed(),
            count(load.connected)
        ))
        .risk(failed)
        .severity(Severity::Medium)
        .likely(
            "the message says that the pool was empty, and the servers' load was measured; what holds the connections \
             was not measured",
        ),
        (Some(load), None) => Finding::new(format!(
            "{}: the load needs {:.1} of the {} open connections",
            said(error),
            load.needed(),
            count(load.connected)
        ))
        .risk(failed)
        .possible("the pool was empty; the message does not say whether it is too small or its connections are held"),
        (None, None) => Finding::new(format!(
            "{}: it is too small, its connections are held, or each call takes a long time",
            said(error)
        ))
        .risk(failed)
        .possible("the pool was empty; the servers' load, which would show which of the three it is, was not seen"),
    };
    let mut finding = finding.on(error.server.iter()).saw_at(
        "the client's message",
        format!("{}, {}", said(error), where_and_how_often(error)),
        facts.at_ms,
    );
    if let Some(load) = &load {
        finding = finding.saw_at("Little's law", load.formula(), facts.at_ms);
    }
    mend(with_causes(finding, facts, &causes), error, load.as_ref())
}

fn mend(finding: Finding, error: &ClientError, load: Option<&Load>) -> Finding {
    let give_back = match error.library {
        ClientLibrary::Jedis | ClientLibrary::Lettuce => {
            "try (var connection = pool.getResource()) { ... }   // Lettuce: pool.borrowObject()"
        }
        ClientLibrary::RedisPy => "with pool_client.pipeline() as pipe: ...   # and one client for the whole process",
        ClientLibrary::GoRedis => "defer conn.Close()   // of rdb.Conn(), and pubsub.Close()",
        _ => "close what was borrowed, in every way out of the code",
    };
    let finding = finding.fix(
        "Return connections on every code path, and keep blocking commands (BLPOP, XREAD BLOCK, SUBSCRIBE) out of the \
         pool",
        &[give_back],
        "",
        "",
    );
    // With room for half as much again.
    let size = load.map_or("N".into(), |load| format!("{:.0}", (load.needed() * 1.5).ceil().max(2.0)));
    let setting = match error.library {
        ClientLibrary::RedisPy => format!("redis.BlockingConnectionPool(max_connections={size}, timeout=1)"),
        ClientLibrary::GoRedis => format!("redis.Options{{PoolSize: {size}, PoolTimeout: time.Second}}"),
        _ => format!("poolConfig.setMaxTotal({size}); poolConfig.setMaxWait(Duration.ofSeconds(1));"),
    };
    finding.fix(
        "If the size is the problem: as many connections as Little's law asks for, across all processes together, and \
         half as many again",
        &[&setting],
        "more connections mean more work for the server when all reconnect at once",
        "",
    )
}
