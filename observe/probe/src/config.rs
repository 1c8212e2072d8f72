//! The settings that rules use. Never `*`: that would read passwords.

use std::collections::BTreeMap;

use unslow_client::Error;
use unslow_facts::Seen;

use crate::ask::{Ask, seen};

const PARAMETERS: &[&str] = &[
    "activedefrag",
    "appendfsync",
    "appendonly",
    "auto-aof-rewrite-min-size",
    "auto-aof-rewrite-percentage",
    "bind",
    "client-output-buffer-limit",
    "cluster-allow-replica-migration",
    "cluster-node-timeout",
    "cluster-port", // the probe's own: peers of the bus are no clients
    "cluster-replica-no-failover",
    "cluster-replica-validity-factor",
    "cluster-require-full-coverage",
    "cluster-slot-stats-enabled", // Valkey 8.0+, Redis 8.2+
    "hz",
    "io-threads",
    "latency-monitor-threshold",
    "latency-tracking",
    "lazyfree-lazy-eviction",
    "lazyfree-lazy-expire",
    "lazyfree-lazy-server-del",
    "lazyfree-lazy-user-del",
    "loglevel",
    "maxclients",
    "maxmemory",
    "maxmemory-clients",
    "maxmemory-policy",
    "min-replicas-max-lag",
    "min-replicas-to-write",
    "no-appendfsync-on-rewrite",
    "notify-keyspace-events",
    "port",
    "protected-mode",
    "repl-backlog-size",
    "repl-disable-tcp-nodelay",
    "repl-diskless-sync",
    "repl-timeout",
    // of replicas; never masterauth, which is a password
    "masteruser",
    "replica-priority",
    "replica-read-only",
    "replica-serve-stale-data",
    "save",
    "slowlog-log-slower-than",
    "slowlog-max-len",
    "stop-writes-on-bgsave-error",
    "tcp-backlog",
    "tcp-keepalive",
    "timeout",
    "tls-port",
    // memory
    "active-defrag-cycle-max",
    "active-defrag-ignore-bytes",
    "tracking-table-max-keys",
];

pub fn look(ask: &mut Ask, level: (u32, u32)) -> Seen<BTreeMap<String, String>> {
    let found: Result<BTreeMap<String, String>, Error> = if level >= (7, 0) {
        let mut command = vec!["CONFIG", "GET"];
        command.extend(PARAMETERS);
        ask.call(&command).map(|v| v.pairs().collect())
    } else {
        // One pattern a call before 7.0; one round trip all the same.
        let commands: Vec<Vec<&str>> = PARAMETERS.iter().map(|p| vec!["CONFIG", "GET", p]).collect();
        ask.pipeline(&commands).and_then(|replies| {
            let mut all = BTreeMap::new();
            for reply in replies {
                all.extend(reply?.pairs());
            }
            Ok(all)
        })
    };
    seen(found, "CONFIG GET")
}
