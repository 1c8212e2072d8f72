//! Slow commands hold up all other clients.
//!
//! One thread serves all clients: an O(N) command over many elements (SORT, ZUNIONSTORE, SINTER, LRANGE 0 -1,
//! FLUSHALL) is a stall for every other client, and so is writing a string of several megabytes. The slow log names
//! such commands, but it also names victims: a GET of a few bytes that took 12 ms did nothing slow itself; the host,
//! a fork or a page fault did.
//!
//! Seen when: a command that is not constant-time takes over 10 % of a core at over 0.5 ms a call, or over 10 ms a call
//! with five calls or 1 % of a core. Writing large replies is included in that, so a GET may be the cause as well.
//! KEYS, scripts, CLUSTER, monitoring, commands on one big key and commands of hundreds of keys have their own rules.
//!
//! Not to be taken for: constant-time commands in the slow log, which are victims and are reported as such. MGET, HSET
//! and other commands whose cost grows with their arguments are victims too if the slow log shows few arguments. Nor
//! for a server that was not on a processor at the time: the commands' time is compared with the CPU time it used.
//!
//! What to do: work in smaller steps (the SCAN family, pages, batches), keep results, use a replica for reports.
//! Sources: commandstats, SLOWLOG, CPU time and bytes sent of INFO.

use super::key_patterns;
use super::prelude::*;
use crate::Link;

pub const TITLE: &str = "Slow command";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "expire_starved"];
pub const INJECTED: Injected = Injected::Yes;

/// Replication, forks, what contains other commands, and what other rules judge.
const ELSEWHERE: &[&str] = &[
    "psync",
    "sync",
    "replconf",
    "replicaof",
    "slaveof",
    "bgsave",
    "bgrewriteaof",
    "exec",
    "keys",
    "migrate",
    "eval",
    "eval_ro",
    "evalsha",
    "evalsha_ro",
    "fcall",
    "fcall_ro",
    "function",
    "script",
    "cluster",
    "debug",
    "monitor",
];

/// A command of one node that is slow by itself.
struct Slow<'a> {
    node: &'a Node,
    /// As commandstats names it.
    name: String,
    held: Held,
    /// The whole time of the scripts it runs in.
    scripts: Option<Held>,
}

impl Slow<'_> {
    fn command(&self) -> String {
        upper(&self.name)
    }
}

fn upper(name: &str) -> String {
    name.to_uppercase().replace('|', " ")
}

pub fn check(facts: &Facts) -> Verdict {
    let rows = by_worst(facts.live().flat_map(slow).collect(), |r: &Slow| r.held.share());
    let victims = facts.live().flat_map(|n| slow_entries(n, 0)).filter(|e| is_victim(e)).count();
    match rows.first() {
        None => absent(facts, victims),
        Some(worst) => found(facts, &rows, worst, victims).into(),
    }
}

/// Whether this rule names a command of the node.
pub(super) fn speaks(node: &Node) -> bool {
    !slow(node).is_empty()
}

fn slow(node: &Node) -> Vec<Slow<'_>> {
    let commands = node.foreign_commands();
    let giant = super::giant_commands::of(node);
    let is_ours = |name: &&String| !judged_elsewhere(name) && !giant.contains(name);
    let names = commands.keys().filter(is_ours);
    names
        .filter_map(|name| {
            let held = rest_of(node, name);
            let slow = is_heavy(node, &held) && !is_held_up(node, name, &held);
            slow.then(|| Slow { node, name: name.clone(), held, scripts: in_scripts(node, name) })
        })
        .collect()
}

/// What a command cost without its calls on big keys, which `big_key` reports.
pub(super) fn rest_of(node: &Node, name: &str) -> Held {
    let (calls, inside_us) = super::big_key::part_of(node, name);
    held(node, &[&format!("={name}")]).without(calls, inside_us)
}

fn judged_elsewhere(name: &str) -> bool {
    is_one_of(ELSEWHERE, name) || is_one_of(super::monitoring_storm::COMMANDS, name) || name.starts_with("client")
}

/// By the CPU time it can have had: what the server waited for a processor, or for a page, is not the command's.
pub(super) fn is_heavy(node: &Node, held: &Held) -> bool {
    let on_cpu = on_cpu(node);
    let (mean, share) = (held.mean_us() * on_cpu, held.share() * on_cpu);
    (share > 0.1 && mean > 500.0) || (mean > 10_000.0 && (held.calls >= 5.0 || share > 0.01))
}

/// Whether it asked for little, and something else held it up.
fn is_held_up(node: &Node, name: &str, held: &Held) -> bool {
    let command = upper(name);
    if held.reply_bytes >= LARGE_REPLY_BYTES {
        return false;
    }
    let entries: Vec<_> = slow_entries(node, 0).into_iter().filter(|e| e.command == command).collect();
    let us = |victims: bool| entries.iter().filter(|e| is_victim(e) == victims).map(|e| e.us).sum::<u64>();
    CONSTANT_TIME.contains(&command.as_str()) || us(true) > us(false)
}

/// Commands inside the scripts of a node that are causes themselves, with their time in us: it is in the scripts' time
/// as well.
pub fn in_scripts_of(node: &Node) -> Vec<(String, f64)> {
    let keys = in_scripts(node, "keys").map(|_| ("KEYS".to_string(), spent(node, &["=keys"]).usec as f64));
    let others = slow(node).into_iter().filter(|s| s.scripts.is_some()).map(|s| (s.command(), s.held.inside_us));
    keys.into_iter().chain(others).collect()
}

fn absent(facts: &Facts, victims: usize) -> Verdict {
    let costs = |node| {
        let commands = Node::foreign_commands(node);
        let giant = super::giant_commands::of(node);
        let names = commands.keys().filter(|name| !judged_elsewhere(name) && !giant.contains(name));
        names.map(|name| (upper(name), rest_of(node, name))).filter(|(_, h)| h.calls > 0.5).collect::<Vec<_>>()
    };
    let most = by_worst(facts.live().flat_map(costs).collect(), |(_, h): &(String, Held)| h.share());
    let mut text = match most.first() {
        Some((name, h)) => format!("slow commands: of those judged here, {name} takes the most, {}", h.figures()),
        None => "slow commands: none of those judged here were called in the window".into(),
    };
    if victims > 0 {
        text += &format!("; {} in the slow log of the window were held up by something else", plural(victims));
    }
    absent_by_commandstats(facts, "slow commands", text)
}

fn plural(victims: usize) -> String {
    if victims == 1 { "1 short command".into() } else { format!("{victims} short commands") }
}

fn found(facts: &Facts, rows: &[Slow], worst: &Slow, victims: usize) -> Finding {
    let (node, command) = (worst.node, worst.command());
    let inside = if worst.scripts.is_some() { " inside scripts" } else { "" };
    let (ms, wait) = worst.scripts.as_ref().map_or(worst.held, |scripts| worst.held.inside(scripts)).others_wait();
    let (calls, mean, share) = (worst.held.calls, worst.held.mean_us(), worst.held.share());
    let mut finding = Finding::new(format!("{command}{inside} on {} takes {}", node.address, worst.held.figures()))
        .on(rows.iter().map(|r| r.node.address.as_str()))
        .latency(ms, wait)
        .gain(
            format!("without it, {} of the main thread is freed", percent(share)),
            format!("{calls:.0} calls x {mean:.0} us / {:.1} s = {share:.3} of the window", node.window_s),
        );
    finding = if worst.held.writing_us > worst.held.inside_us {
        finding.likely("the server counted calls, bytes and CPU time; which reply the writing was for is inferred")
    } else {
        finding.proven("the server's own clock for this command, in this window")
    };
    for row in rows.iter().take(3) {
        let stat = format!("{}: {} calls, {}", row.command(), count(row.held.calls), row.held.figures());
        finding = finding.saw(row.node, "INFO commandstats", stat);
    }
    if worst.held.writing_us > 0.0 {
        let sent = format!("about {} per reply of {command}, by bytes sent", bytes(worst.held.reply_bytes));
        finding = finding.saw(node, "INFO stats", sent);
    }
    if let Some(entry) = slow_entries(node, 0).into_iter().find(|e| e.command == command) {
        let value = format!("{command} {}{}", time_us(entry.us as f64), sender(entry));
        finding = finding.saw_then(node, "SLOWLOG GET 128", value, logged_ms(node, entry.at_s));
    }
    if let Some(scripts) = &worst.scripts {
        finding.chain.push(Link {
            id: "long_script".into(),
            subject: node.address.clone(),
            at_ms: node.at_ms(),
            text: format!(
                "scripts on {} block its main thread: {}, {command} included",
                node.address,
                scripts.figures()
            ),
        });
    }
    if victims > 0 {
        finding = finding.not(format!("{} in the slow log: victims, not causes", plural(victims)));
    }
    let finding = match kind_of(&command) {
        Some(kind) => key_patterns::longest(finding, facts, kind),
        None => finding,
    };
    from_replica(smaller_steps(finding, node, &command, None), facts, node, &command)
}

/// The type of the keys that a command reads whole.
fn kind_of(command: &str) -> Option<&'static str> {
    Some(match command {
        "HGETALL" | "HKEYS" | "HVALS" => "hash",
        "SMEMBERS" | "SUNION" | "SINTER" | "SDIFF" | "SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE" => "set",
        "LRANGE" | "LINDEX" | "LINSERT" | "LREM" | "LPOS" | "LSET" => "list",
        "ZRANGE" | "ZREVRANGE" | "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE" | "ZRANGEBYLEX" | "ZREVRANGEBYLEX" | "ZUNION"
        | "ZINTER" | "ZDIFF" | "ZUNIONSTORE" | "ZINTERSTORE" | "ZDIFFSTORE" => "zset",
        "XRANGE" | "XREVRANGE" | "XREAD" | "XREADGROUP" => "stream",
        "GET" | "GETEX" | "GETDEL" | "GETSET" => "string",
        _ => return None,
    })
}

/// What to do instead of a command, the commands for it, and what can go wrong.
struct Advice(&'static str, Vec<String>, &'static str);

/// What to do instead of a command on a large collection, by the command, the type where it is known, and the server's
/// version.
pub fn smaller_steps(finding: Finding, node: &Node, command: &str, kind: Option<&str>) -> Finding {
    if command == "DEL" {
        return unlink(finding, node);
    }
    let advice = reading_less(command).or_else(|| keeping_results(command)).or_else(|| working_less(command, node));
    if let Some(Advice(text, commands, risk)) = advice {
        let commands: Vec<&str> = commands.iter().map(String::as_str).collect();
        return finding.fix(text, &commands, risk, "");
    }
    let text = match kind {
        Some(kind) => format!("See its arguments, then work on the {kind} in parts"),
        None => "See its arguments, then ask for less at a time, or less often".into(),
    };
    finding.fix(&text, &[&cli(&node.address, "SLOWLOG GET 10")], "", "")
}

/// For commands that return much.
fn reading_less(command: &str) -> Option<Advice> {
    let twice = "a scan may return an element twice, and sees changes made while it runs";
    let shift = "elements may shift between pages while others write";
    let words = |all: &[&str]| all.iter().map(|w| w.to_string()).collect::<Vec<_>>();
    Some(match command {
        "HGETALL" | "HKEYS" | "HVALS" => Advice(
            "Ask for the fields that are needed, or walk the hash in pages",
            words(&["HMGET key field1 field2", "HSCAN key 0 COUNT 100"]),
            twice,
        ),
        "SMEMBERS" => Advice(
            "Ask whether a member is there, or walk the set in pages",
            words(&["SISMEMBER key member", "SSCAN key 0 COUNT 100"]),
            twice,
        ),
        "LRANGE" | "ZRANGE" | "ZREVRANGE" => {
            Advice("Read it in pages", vec![format!("{command} key 0 99"), format!("{command} key 100 199")], shift)
        }
        "ZRANGEBYSCORE" | "ZREVRANGEBYSCORE" | "ZRANGEBYLEX" | "ZREVRANGEBYLEX" => {
            Advice("Limit what comes back", vec![format!("{command} key from to LIMIT 0 100")], shift)
        }
        "XRANGE" | "XREVRANGE" => Advice("Limit what comes back", vec![format!("{command} key from to COUNT 100")], ""),
        "XREAD" | "XREADGROUP" => Advice(
            "Limit what comes back",
            vec![format!("{command} with COUNT 100")],
            "more round trips while there is a backlog",
        ),
        "SCAN" | "HSCAN" | "SSCAN" | "ZSCAN" => {
            Advice("Use a smaller COUNT", vec![format!("{command} with COUNT 100")], "more round trips")
        }
        "GET" | "GETEX" | "GETRANGE" | "SUBSTR" | "GETDEL" | "GETSET" => Advice(
            "Use smaller values: read the part that is needed, store it compressed, or split it",
            words(&["GETRANGE key 0 4095"]),
            "the data model has to change",
        ),
        "HGET" => Advice(
            "Use smaller values: store them compressed, or in more fields",
            words(&["HSET key field:1 part1 field:2 part2"]),
            "the data model has to change",
        ),
        _ if WITHOUT_COUNT.contains(&command) => {
            Advice("Use a smaller count per call", vec![format!("{command} key 100")], "more round trips")
        }
        _ => return None,
    })
}

/// For commands that compute something.
fn keeping_results(command: &str) -> Option<Advice> {
    let old = "the result is as old as its last computation";
    Some(match command {
        "SUNION" | "SINTER" | "SDIFF" | "ZUNION" | "ZINTER" | "ZDIFF" => Advice(
            "Store the result once, and read it from there",
            vec![format!("{command}STORE result and the arguments of {command}"), "EXPIRE result 60".into()],
            old,
        ),
        "SUNIONSTORE" | "SINTERSTORE" | "SDIFFSTORE" | "ZUNIONSTORE" | "ZINTERSTORE" | "ZDIFFSTORE" | "ZRANGESTORE" => {
            Advice(
                "Keep the stored result for a while instead of computing it each time",
                vec!["EXPIRE result 60   and compute it again when it has expired".into()],
                old,
            )
        }
        "SORT" | "SORT_RO" => Advice(
            "Keep the order in a sorted set instead of sorting each time",
            vec!["ZADD order score member   with each write".into(), "ZRANGE order 0 99".into()],
            "the order must be kept up to date with the data",
        ),
        "LINDEX" | "LSET" | "LINSERT" | "LREM" | "LPOS" => Advice(
            "A list is walked from one end to the element: use another type to look up by position or value",
            vec!["HGET key field".into(), "ZRANGE key 500 500".into()],
            "the data model has to change",
        ),
        _ => return None,
    })
}

/// For commands that change much or reach many.
fn working_less(command: &str, node: &Node) -> Option<Advice> {
    Some(match command {
        "FLUSHALL" | "FLUSHDB" if node.level() >= (4, 0) => Advice(
            "Free the memory in the background",
            vec![format!("{command} ASYNC")],
            "memory is freed a little later",
        ),
        "SAVE" => Advice("Save in a child process", vec![cli(&node.address, "BGSAVE")], "it costs a fork"),
        "PUBLISH" | "SPUBLISH" => Advice(
            "Each message is written to every subscriber: have fewer of them per channel, or use a stream",
            vec![cli(&node.address, "PUBSUB NUMSUB channel"), cli(&node.address, "PUBSUB NUMPAT")],
            "",
        ),
        _ if PER_ARGUMENT.contains(&command) => Advice(
            "Use batches of at most 100, several of them in one pipeline",
            vec![format!("{command} with at most 100 keys, fields or members a call")],
            "the operation as a whole is no longer atomic",
        ),
        _ => return None,
    })
}

/// DEL frees all elements at once; UNLINK leaves that to a background thread.
fn unlink(finding: Finding, node: &Node) -> Finding {
    let finding = match node.level() >= (4, 0) || node.level() == (0, 0) {
        true => finding.fix(
            "Delete in the background",
            &["UNLINK key   instead of DEL key"],
            "memory is freed a little later",
            "",
        ),
        false => finding.fix(
            "Delete in parts: there is no UNLINK before 4.0",
            &["LTRIM key 100 -1", "HDEL, SREM or ZREM of 100 elements at a time"],
            "the key exists until the last part is deleted",
            "",
        ),
    };
    if node.level() < (6, 0) || node.setting("lazyfree-lazy-user-del") != Some("no") {
        return finding;
    }
    finding.fix_at(
        &node.address,
        "Or let the server treat every DEL as UNLINK",
        &["CONFIG SET lazyfree-lazy-user-del yes"],
        "memory is freed a little later",
        "CONFIG SET lazyfree-lazy-user-del no",
    )
}

/// Commands a replica can answer as well.
const READS: &[&str] = &[
    "BITCOUNT",
    "BITPOS",
    "DUMP",
    "GET",
    "GETRANGE",
    "HGET",
    "HGETALL",
    "HKEYS",
    "HMGET",
    "HVALS",
    "LINDEX",
    "LPOS",
    "LRANGE",
    "MGET",
    "PFCOUNT",
    "SDIFF",
    "SINTER",
    "SMEMBERS",
    "SMISMEMBER",
    "SORT_RO",
    "SUNION",
    "XRANGE",
    "XREVRANGE",
    "ZCOUNT",
    "ZDIFF",
    "ZINTER",
    "ZMSCORE",
    "ZRANGE",
    "ZRANGEBYLEX",
    "ZRANGEBYSCORE",
    "ZREVRANGE",
    "ZREVRANGEBYLEX",
    "ZREVRANGEBYSCORE",
    "ZUNION",
];

/// Reads may go to a replica, where there is one that is up.
pub fn from_replica(finding: Finding, facts: &Facts, node: &Node, command: &str) -> Finding {
    let linked = |r: &Node| r.info().and_then(|i| i.get("master_link_status")) != Some("down");
    let up = |r: &&Node| r.master.as_deref() == Some(node.address.as_str()) && linked(r);
    let Some(replica) = facts.live().find(up).filter(|_| READS.contains(&command)) else { return finding };
    let seen = |library: &str| {
        let groups = node.clients.value().map_or(&[][..], |c| &c.groups);
        groups.iter().any(|g| format!("{} {}", g.library, g.name).to_lowercase().contains(library))
    };
    let cluster = facts.kind == DeploymentKind::Cluster;
    let mut how: Vec<String> = Vec::new();
    for (library, in_cluster, alone) in [
        (
            "lettuce",
            "Lettuce: connection.setReadFrom(ReadFrom.REPLICA_PREFERRED)",
            "Lettuce: connection.setReadFrom(ReadFrom.REPLICA_PREFERRED)",
        ),
        ("redis-py", "redis-py: RedisCluster(read_from_replicas=True)", ""),
        ("go-redis", "go-redis: ClusterOptions{ReadOnly: true}", ""),
    ] {
        let setting = if cluster { in_cluster } else { alone };
        if seen(library) && !setting.is_empty() {
            how.push(setting.into());
        }
    }
    if how.is_empty() {
        let first = if cluster { "READONLY first, then " } else { "" };
        how.push(format!("a connection to {}: {first}{command}", replica.address));
    }
    let how: Vec<&str> = how.iter().map(String::as_str).collect();
    finding.fix(
        &format!("Send these reads to a replica ({})", replica.address),
        &how,
        "a replica's data is slightly stale, and its own readers wait while the command runs there",
        "",
    )
}
