//! The catalogue of faults, by what they are done to.

use super::Takes::{Deployment, Node, Path, Processes};
use super::*;

/// Every fault.
pub const ALL: &[Fault] = &[
    // Processes, hosts and paths.
    fault(
        "kill",
        "servers are killed and lose whatever they had not saved; healing starts them again",
        Processes,
        six_nodes,
        process::kill,
    )
    .rule("node_unreachable"),
    fault("restart", "servers are killed and started again at once", Processes, six_nodes, process::restart),
    fault("hang", "processes are stopped (SIGSTOP) without any notice", Processes, six_nodes, process::hang)
        .rule("node_hangs"),
    fault("partition", "no packets get through any more", Path, six_nodes, path::partition).wired(),
    fault("delay", "packets take longer, each way", Path, two_zones, path::delay).value("TIME", "5ms").wired(),
    fault("loss", "packets are lost", Path, standalone, path::loss).value("SHARE", "1%").rule("packet_loss").wired(),
    fault("rate", "a path carries no more than this", Path, two_zones, path::rate).value("RATE", "10mbit").wired(),
    fault(
        "cpu_throttle",
        "a CPU quota, as a share of one core, under steady writes",
        Processes,
        standalone,
        host::cpu_throttle,
    )
    .value("SHARE", "10%")
    .rule("cpu_throttled")
    .root(),
    fault(
        "cpu_neighbour",
        "other processes compete for the same cores, under steady writes",
        Deployment,
        standalone,
        host::cpu_neighbour,
    )
    .value("PER_CORE", "3")
    .rule("noisy_neighbour")
    .near(),
    fault("memory_limit", "no more memory than this from now on", Processes, standalone, host::memory_limit)
        .value("SIZE", "100mb")
        .root(),
    fault("slow_fork", "every fork takes this long", Processes, standalone, process::slow_fork).value("TIME", "1s"),
    fault("slow_fsync", "every fsync takes this long", Processes, standalone, process::slow_fsync).value("TIME", "1s"),
    fault("slow_disk", "files are written no faster than this", Processes, standalone, process::slow_disk)
        .value("BYTES_PER_S", "1mb"),
    fault("full_disk", "the host's disk is completely full", Processes, standalone, process::full_disk).wired(),
    fault("clock_jump", "the wall clock jumps, forwards or back", Processes, standalone, process::clock_jump)
        .value("TIME", "+60s"),
    // The deployment.
    fault(
        "move_slot",
        "a slot and its keys move to a node, or away from it if it owns the slot",
        Node,
        six_nodes,
        deployment::move_slot,
    )
    .value("SLOT", "42"),
    fault("reshard", "slots of a node move away one by one, key by key", Node, six_nodes, deployment::reshard)
        .value("SLOTS", "100"),
    fault(
        "reshard_atomic",
        "slots of a node move away all at once (CLUSTER MIGRATESLOTS)",
        Node,
        six_nodes,
        deployment::reshard_atomic,
    )
    .value("SLOTS", "100"),
    fault("failover", "a replica takes its master's place", Node, six_nodes, deployment::failover),
    fault("open_slot", "a reshard stops halfway", Deployment, six_nodes, placement::open_slot).rule("open_slots"),
    fault("config_drift", "one node has a different memory limit", Node, six_nodes, placement::config_drift)
        .rule("config_drift"),
    fault(
        "ghost_nodes",
        "a node restarts with nodes in its nodes.conf that no longer exist",
        Node,
        six_nodes,
        deployment::ghost_nodes,
    )
    .value("NODES", "300")
    .rule("ghost_nodes"),
    fault(
        "two_masters_on_one_host",
        "a failover puts two masters on one host",
        Deployment,
        six_nodes,
        placement::two_masters,
    )
    .rule("masters_share_host"),
    // Shards.
    fault("hot_key", "every client wants the same key", Node, six_nodes, shards::hot_key)
        .rule("shard_imbalance")
        .near(),
    fault("hash_tag_skew", "all keys of an application share one hash tag", Node, six_nodes, shards::hash_tag_skew)
        .rule("hash_tag_skew"),
    fault(
        "reads_on_master",
        "clients read from the master, and its replica is idle",
        Node,
        pair,
        shards::reads_on_master,
    )
    .rule("reads_on_master")
    .near(),
    fault(
        "slot_map_fragmented",
        "every other one of 600 slots moves to another master",
        Deployment,
        six_nodes,
        shards::slot_map_fragmented,
    )
    .rule("slot_map_fragmented"),
    fault(
        "views_disagree",
        "a master gives ten slots away, and their new owner is not notified",
        Deployment,
        six_nodes,
        shards::views_disagree,
    )
    .rule("views_disagree"),
    // Clients.
    fault(
        "topology_storm",
        "the first master restarts with 300 ghosts, and Lettuce clients keep refreshing the topology from every \
         node",
        Deployment,
        six_nodes,
        clients::topology_storm,
    )
    .value("CLIENTS", "20")
    .rule("topology_storm")
    .demo(),
    fault("connection_churn", "clients reconnect for every command", Node, standalone, clients::connection_churn)
        .rule("connection_churn")
        .near()
        .demo(),
    fault(
        "unpipelined",
        "a client in another zone sends one command per round trip",
        Node,
        two_zones,
        clients::unpipelined,
    )
    .rule("far_client")
    .wired(),
    fault("monitor", "a MONITOR was left running", Node, standalone, clients::monitor).rule("monitor_attached"),
    fault("keys", "KEYS on 300,000 keys, five times a second", Node, standalone, clients::keys)
        .rule("keys_command")
        .demo(),
    fault("big_key", "HGETALL on a hash of 200,000 fields", Node, standalone, clients::big_key).rule("big_key").demo(),
    fault("slow_subscriber", "a subscriber stops reading", Node, standalone, clients::slow_subscriber)
        .settings(&[("client-output-buffer-limit", "pubsub 64mb 64mb 60")])
        .rule("slow_subscriber"),
    fault("lua_loop", "a script loops for tens of milliseconds", Node, standalone, clients::lua_loop)
        .rule("long_script")
        .demo(),
    fault("save_storm", "a snapshot every second", Node, standalone, server::save_storm).rule("save_too_often"),
    fault(
        "monitoring_storm",
        "scrapers ask INFO and CLIENT LIST as fast as they can",
        Node,
        standalone,
        clients::monitoring_storm,
    )
    .rule("monitoring_storm"),
    fault("no_pipelining", "one client sends one command per round trip", Node, standalone, clients::no_pipelining)
        .rule("no_pipelining"),
    fault("kernel_bound", "fifty connections with one command in flight each", Node, standalone, clients::kernel_bound)
        .rule("kernel_bound")
        .near(),
    fault(
        "too_many_connections",
        "pools grow to maxclients, and more clients connect",
        Node,
        standalone,
        clients::too_many_connections,
    )
    .settings(&[("maxclients", "100")])
    .rule("too_many_connections"),
    fault("slow_command", "SUNION of fifty sets", Node, standalone, clients::slow_command).rule("slow_command"),
    fault("error_flood", "clients use strings as lists", Node, standalone, clients::error_flood)
        .rule("error_flood")
        .demo(),
    fault(
        "redirect_storm",
        "a client without cluster mode asks one node for everything",
        Node,
        six_nodes,
        clients::redirect_storm,
    )
    .rule("redirect_storm"),
    fault(
        "main_thread_saturated",
        "pipelines of BITCOUNT fill the main thread",
        Node,
        standalone,
        clients::main_thread_saturated,
    )
    .rule("main_thread_saturated")
    .near(),
    fault("not_your_redis", "a client does not read its replies", Node, standalone, clients::not_your_redis)
        .rule("not_your_redis"),
    // Memory.
    fault(
        "fragmentation",
        "half of the keys are deleted, and keys of another size are added",
        Node,
        standalone,
        memory::fragmentation,
    )
    .settings(&[("maxmemory", "100mb"), ("maxmemory-policy", "noeviction")])
    .rule("fragmentation"),
    fault(
        "container_memory",
        "a container of this size, and data up to its limit",
        Node,
        standalone,
        memory::container_memory,
    )
    .value("SIZE", "200mb")
    .settings(&[("maxmemory", "300mb"), ("maxmemory-policy", "noeviction")])
    .rule("container_memory")
    .root(),
    fault(
        "no_memory_limit",
        "a container of this size, no maxmemory, and data that grows",
        Node,
        standalone,
        memory::no_memory_limit,
    )
    .value("SIZE", "400mb")
    .settings(&[("maxmemory", "0")])
    .rule("no_memory_limit")
    .root(),
    fault("growth_without_ttl", "keys without a TTL keep being added", Node, standalone, memory::growth_without_ttl)
        .settings(&[("maxmemory", "200mb"), ("maxmemory-policy", "noeviction")])
        .rule("growth_without_ttl"),
    fault("client_memory", "forty clients stop halfway through a request", Node, standalone, memory::client_memory)
        .settings(&[("maxmemory", "200mb"), ("maxmemory-policy", "noeviction")])
        .rule("client_memory"),
    fault(
        "script_cache",
        "each EVAL has its values written into the script's text",
        Node,
        standalone,
        memory::script_cache,
    )
    .rule("script_cache"),
    fault(
        "tracking_table",
        "a caching client reads more keys than the server may remember",
        Node,
        standalone,
        memory::tracking_table,
    )
    .settings(&[("tracking-table-max-keys", "1000")])
    .rule("tracking_table"),
    // Habits of clients.
    fault("chatter", "a pool tests its connections before and after each command", Node, standalone, habits::chatter)
        .rule("chatter"),
    fault("busy_polling", "workers ask an empty queue for jobs in a loop", Node, standalone, habits::busy_polling)
        .rule("busy_polling"),
    fault(
        "low_hit_ratio",
        "the keys of a cache expire before they are read again",
        Node,
        standalone,
        habits::low_hit_ratio,
    )
    .rule("low_hit_ratio"),
    fault(
        "acl_denials",
        "a user loses the right to write, and its clients keep writing",
        Node,
        standalone,
        habits::acl_denials,
    )
    .rule("acl_denials"),
    fault("eval_bodies", "clients send a script of 4 kB with each call", Node, standalone, habits::eval_bodies)
        .rule("eval_bodies"),
    fault(
        "watch_conflicts",
        "clients WATCH one key, compute, and find it changed",
        Node,
        standalone,
        habits::watch_conflicts,
    )
    .rule("watch_conflicts"),
    fault(
        "giant_transactions",
        "an import sends 100,000 commands at a time in MULTI and EXEC",
        Node,
        standalone,
        habits::giant_transactions,
    )
    .rule("giant_transactions"),
    fault("giant_commands", "a report reads 100,000 small keys in one MGET", Node, standalone, habits::giant_commands)
        .rule("giant_commands"),
    fault("big_values", "clients read pages of 100 kB as fast as they can", Node, standalone, habits::big_values)
        .rule("big_values")
        .near(),
    fault(
        "bandwidth",
        "the path to the clients carries 20 Mbit/s, and they read pages of 100 kB",
        Node,
        standalone,
        habits::bandwidth,
    )
    .rule("bandwidth")
    .wired(),
    fault(
        "publish_in_cluster",
        "thousands of PUBLISH a second, with one subscriber in the whole cluster",
        Node,
        six_nodes,
        habits::publish_in_cluster,
    )
    .rule("publish_in_cluster"),
    // Many clients at once, and clients that wait for each other.
    fault(
        "reconnect_stampede",
        "two hundred clients repeatedly lose their connections at the same moment and reconnect at once",
        Node,
        standalone,
        crowd::reconnect_stampede,
    )
    .rule("reconnect_stampede"),
    fault(
        "idle_reaper",
        "the server closes connections idle for a second, and a pool uses each one every four seconds",
        Node,
        standalone,
        crowd::idle_reaper,
    )
    .settings(&[("timeout", "1")])
    .rule("idle_reaper"),
    fault("lock_spinning", "eight clients retry the same lock without a pause", Node, standalone, crowd::lock_spinning)
        .rule("lock_spinning"),
    fault(
        "tracking_storm",
        "thirty caching clients are notified of every change on a busy server",
        Node,
        standalone,
        crowd::tracking_storm,
    )
    .rule("tracking_storm")
    .near(),
    fault(
        "blocking_on_shared_connection",
        "one thread waits in BLPOP on the connection that others read over",
        Node,
        standalone,
        crowd::blocking_on_shared_connection,
    )
    .rule("blocking_on_shared_connection"),
    // The server.
    fault("fork_stall", "fork takes a second, and a save begins", Node, standalone, server::fork_stall)
        .value("TIME", "1s")
        .rule("fork_stall"),
    fault("aof_fsync_stall", "fsync takes three seconds", Node, standalone, server::aof_fsync_stall)
        .settings(&[("appendonly", "yes")])
        .rule("aof_fsync_stall"),
    fault("eviction_pressure", "a cache of 20 MB keeps getting new keys", Node, standalone, server::eviction_pressure)
        .settings(&[("maxmemory", "20mb"), ("maxmemory-policy", "allkeys-lru")])
        .rule("eviction_pressure"),
    fault("out_of_memory", "maxmemory of 10 MB with noeviction", Node, standalone, server::out_of_memory)
        .settings(&[("maxmemory", "10mb"), ("maxmemory-policy", "noeviction")])
        .rule("out_of_memory"),
    fault("expire_storm", "hundreds of thousands of keys expire together", Node, standalone, server::expire_storm)
        .rule("expire_storm"),
    fault("backlog_too_small", "a backlog of 16 kB under megabytes of writes", Node, pair, server::backlog_too_small)
        .settings(&[("repl-backlog-size", "16kb")])
        .rule("backlog_too_small"),
    fault(
        "full_resync_loop",
        "a replica comes back without its data, again and again",
        Deployment,
        pair,
        replication::full_resync_loop,
    )
    .rule("full_resync_loop"),
    // Replication.
    fault(
        "replica_link_down",
        "a replica keeps an old password for its master",
        Deployment,
        six_nodes,
        replication::replica_link_down,
    )
    .rule("replica_link_down"),
    fault(
        "replica_lag",
        "the path to the replica carries 2 Mbit/s, and the master writes more",
        Deployment,
        pair,
        replication::replica_lag,
    )
    .rule("replica_lag")
    .wired(),
    fault(
        "replica_buffer_kill",
        "60 MB to copy over a path of 16 Mbit/s under writes, and a buffer of 1 MB for what has to wait",
        Node,
        pair,
        replication::replica_buffer_kill,
    )
    .settings(&[("client-output-buffer-limit", "replica 1mb 1mb 1"), ("repl-backlog-size", "1mb")])
    .rule("replica_buffer_kill")
    .wired(),
    fault(
        "resync_storm",
        "both replicas come back with a different history, over paths of 2 Mbit/s",
        Deployment,
        two_replicas,
        replication::resync_storm,
    )
    .rule("resync_storm")
    .wired(),
    fault(
        "version_mix",
        "in the middle of an upgrade the newer replica takes over, and the older server must follow it",
        Deployment,
        two_versions,
        replication::version_mix,
    )
    .rule("version_mix"),
    fault(
        "clock_skew",
        "the clock of the replica's machine is half a minute ahead",
        Deployment,
        pair,
        replication::clock_skew,
    )
    .rule("clock_skew"),
    fault(
        "writable_replica",
        "a job writes its results to the replica",
        Deployment,
        pair,
        replication::writable_replica,
    )
    .rule("writable_replica"),
    fault(
        "min_replicas_refusing",
        "the only replica leaves a master that needs one to write",
        Deployment,
        pair,
        replication::min_replicas_refusing,
    )
    .settings(&[("min-replicas-to-write", "1")])
    .rule("min_replicas_refusing"),
    fault(
        "no_failover_possible",
        "a master's only replica is for backups and must not take over",
        Deployment,
        six_nodes,
        replication::no_failover_possible,
    )
    .rule("no_failover_possible"),
    fault("no_majority", "two of three masters are killed at once", Deployment, six_nodes, replication::no_majority)
        .rule("no_majority"),
    fault("sentinel_quorum", "all Sentinels but one are killed", Deployment, sentinel, replication::sentinel_quorum)
        .rule("sentinel_quorum"),
    fault("sentinel_tilt", "the clocks of all Sentinels jump", Deployment, sentinel, replication::sentinel_tilt)
        .rule("sentinel_tilt"),
    fault(
        "sentinels_share_host",
        "three Sentinels are placed on two hosts",
        Deployment,
        two_hosts_of_sentinels,
        server::nothing,
    )
    .rule("sentinels_share_host"),
    // The deployment's settings and places.
    fault(
        "node_timeout_margin",
        "a stall of 1.3 s under a node timeout of 2 s",
        Node,
        six_nodes,
        placement::node_timeout_margin,
    )
    .settings(&[("cluster-node-timeout", "2000"), (DEBUG, "yes")])
    .rule("node_timeout_margin"),
    fault(
        "sentinel_down_after",
        "every Sentinel considers a master dead after half a second",
        Deployment,
        sentinel,
        deployment::sentinel_down_after,
    )
    .rule("sentinel_down_after"),
    fault(
        "sentinel_master_down",
        "Sentinels log in as a user that may not PING, and consider a healthy master dead",
        Deployment,
        sentinel,
        deployment::sentinel_master_down,
    )
    .rule("sentinel_master_down"),
    fault(
        "failover_flapping",
        "a master hangs for longer than the node timeout and comes back",
        Deployment,
        six_nodes,
        placement::failover_flapping,
    )
    .settings(&[("cluster-node-timeout", "1500")])
    .rule("failover_flapping"),
    fault(
        "replica_shares_host",
        "a replica follows the master on its own host",
        Deployment,
        six_nodes,
        placement::replica_shares_host,
    )
    .rule("replica_shares_host"),
    fault(
        "master_without_replica",
        "a master's only replica follows another",
        Deployment,
        six_nodes,
        placement::master_without_replica,
    )
    .settings(&[("cluster-migration-barrier", "5")])
    .rule("master_without_replica"),
    fault("slots_uncovered", "a hundred slots lose their owner", Deployment, six_nodes, placement::slots_uncovered)
        .rule("slots_uncovered"),
    // The disk.
    fault("fsync_always", "appendfsync always on a disk that syncs in 20 ms", Node, standalone, disk::fsync_always)
        .settings(&[("appendonly", "yes"), ("appendfsync", "always")])
        .rule("fsync_always"),
    fault(
        "saves_failing",
        "the disk is full when the server saves, and writes are refused",
        Node,
        standalone,
        disk::saves_failing,
    )
    .settings(&[("save", "3600 1")])
    .rule("saves_failing")
    .wired(),
    fault(
        "disk_full_soon",
        "the volume has no room for another copy of the data",
        Node,
        standalone,
        disk::disk_full_soon,
    )
    .settings(&[("save", "3600 1")])
    .rule("disk_full_soon")
    .wired(),
    fault(
        "aof_rewrite_storm",
        "the AOF is rewritten whenever it grows by a tenth",
        Node,
        standalone,
        disk::aof_rewrite_storm,
    )
    .settings(&[("appendonly", "yes"), ("auto-aof-rewrite-percentage", "10"), ("auto-aof-rewrite-min-size", "1mb")])
    .rule("aof_rewrite_storm"),
    fault(
        "saves_collide",
        "a job saves both servers of a host at once, on a slow disk",
        Deployment,
        six_nodes,
        disk::saves_collide,
    )
    .settings(&[("rdbcompression", "no")])
    .rule("saves_collide"),
    fault("log_level", "loglevel debug, left on after troubleshooting", Node, standalone, server::nothing)
        .settings(&[("loglevel", "debug")])
        .rule("log_level")
        .near(),
    fault(
        "notifications_for_nobody",
        "keyspace notifications of every class, and no client listens",
        Node,
        standalone,
        disk::notifications_for_nobody,
    )
    .settings(&[("notify-keyspace-events", "KEA")])
    .rule("notifications_for_nobody")
    .near(),
    fault("paused", "a job pauses writes for ten minutes and disconnects", Node, standalone, disk::paused)
        .rule("paused"),
    fault("no_auth", "bound to every address, no password", Node, standalone, server::nothing)
        .settings(&[("bind", "0.0.0.0"), ("protected-mode", "no")])
        .rule("no_auth"),
    fault("blind_instruments", "the server's defaults: no latency monitor", Node, standalone, server::nothing)
        .rule("blind_instruments")
        .near(),
    // What the machine allows.
    fault(
        "accept_overflow",
        "clients repeatedly reconnect all at once, to an accept queue of two",
        Node,
        standalone,
        machine::accept_overflow,
    )
    .settings(&[("tcp-backlog", "2")])
    .rule("accept_overflow"),
    fault(
        "pinned",
        "all threads of a server run on one processor, and large sets are freed in the background",
        Node,
        standalone,
        machine::pinned,
    )
    .rule("pinned")
    .near(),
    fault(
        "io_threads",
        "sixteen io-threads on few processors, and clients that keep them awake",
        Node,
        standalone,
        machine::io_threads,
    )
    .settings(&[("io-threads", "16")])
    .rule("io_threads")
    .near(),
    fault(
        "dead_peers",
        "a client's machine is cut off while its connections are open, and no keepalive notices",
        Node,
        standalone,
        machine::dead_peers,
    )
    .settings(&[("tcp-keepalive", "0")])
    .rule("dead_peers")
    .wired(),
    fault(
        "normal_buffer_kill",
        "clients do not read large replies, under an output limit of 1 MB for ordinary clients",
        Node,
        standalone,
        machine::normal_buffer_kill,
    )
    .settings(&[("client-output-buffer-limit", "normal 1mb 1mb 10")])
    .rule("normal_buffer_kill"),
];
