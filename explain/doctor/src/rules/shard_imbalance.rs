//! One shard of a cluster does much more than its share, so the whole cluster reaches its limit when that shard does.
//!
//! A cluster spreads slots over its masters, not work. If one master has more slots than the others, a hash tag puts
//! all keys of a tenant into one slot, or every client wants the same key, that main thread is full while the others
//! are idle, and more servers change nothing.
//!
//! Seen when: the busiest master uses over 60 % of a core, 1.5 times the mean of all masters, and executes 1.5 times
//! the mean number of commands. Between 40 and 60 % it is a risk. So is a master that holds 1.5 times the mean memory
//! and has filled 80 % of its maxmemory: the cluster is full when that one is.
//!
//! Not to be taken for: one expensive command (KEYS, a script, a big key): above 0.5 ms of CPU per command, the rules
//! for those report it, and this one stays silent. Slots that are spread unevenly on purpose, over servers of different
//! sizes: without a busy main thread or full memory, they are not a finding.
//!
//! How to confirm: `INFO cpu`, `INFO commandstats` and `INFO memory` of each master, twice; `CLUSTER NODES` for the
//! slots. Which slot: `CLUSTER SLOT-STATS ORDERBY cpu-usec LIMIT 10 DESC` (Valkey 8.0+, Redis 8.2+, with
//! cluster-slot-stats-enabled yes). Which key: `unslow keys URL --hot` (HOTKEYS of Redis 8.6+, or an LFU policy), and
//! `hot_key` judges what it found.
//! Never use MONITOR: it costs the very shard that has nothing left.
//!
//! What to do: if slots explain it, rebalance them. If keys do, rebalancing moves the problem and does not solve it:
//! serve the hot key from a client-side cache, split it, or break up the hash tag.
//! Sources: INFO of each master, CLUSTER NODES; redis-cli --cluster rebalance; CLUSTER SLOT-STATS; HOTKEYS.

use super::peers;
use super::prelude::*;
use super::reads_on_master;
use unslow_topology::ClusterView;

pub const TITLE: &str = "Shard imbalance";
pub const LEADS_TO: &[&str] = &["reads_on_master", "main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

/// Busy shares of the hot main thread: from the first on a request waits about as long as it is served, from the second
/// on it is worth a word.
const HURTS: f64 = 0.6;
const RISK: f64 = 0.4;
/// This many times the mean of all masters is more than a share.
const UNEVEN: f64 = 1.5;
/// Main thread time of a command beyond which the commands are the matter, not how many there are.
pub(super) const EXPENSIVE_US: f64 = 500.0;
/// Work that is at most this many times the share of slots is explained by the slots.
const BY_SLOTS: f64 = 1.3;
/// So full, by maxmemory.
const FULL: f64 = 0.8;

/// A master with slots and what it did in the window.
struct Shard<'a> {
    node: &'a Node,
    slots: usize,
    ops: f64,
    cpu: f64,
    memory: f64,
}

/// All of them, and their means.
struct Shards<'a> {
    all: Vec<Shard<'a>>,
    ops: f64,
    cpu: f64,
    memory: f64,
    slots: usize,
}

impl<'a> Shards<'a> {
    /// None where one of the owners was not measured: what it does is part of the mean.
    fn of(facts: &'a Facts, view: &ClusterView) -> Option<Shards<'a>> {
        let mut all = Vec::new();
        for row in view.masters() {
            let node = peers::node_of(facts, row).filter(|n| n.last.is_some())?;
            let (user, sys) = node.cpu()?;
            let (ops, memory) = (node.application_ops()?, node.number("used_memory")?);
            all.push(Shard { node, slots: row.slots.len(), ops, cpu: user + sys, memory });
        }
        let mean = |figure: fn(&Shard) -> f64| all.iter().map(figure).sum::<f64>() / (all.len() as f64).max(1.0);
        let (ops, cpu, memory) = (mean(|s| s.ops), mean(|s| s.cpu), mean(|s| s.memory));
        let slots = all.iter().map(|s| s.slots).sum();
        Some(Shards { all, ops, cpu, memory, slots })
    }

    fn busiest(&self) -> Option<&Shard<'a>> {
        self.all.iter().max_by(|a, b| a.cpu.total_cmp(&b.cpu))
    }

    /// The one that does too much, if it does so by the number of its commands.
    fn hot(&self) -> Option<&Shard<'a>> {
        self.busiest().filter(|hot| {
            let uneven = hot.cpu > UNEVEN * self.cpu && hot.ops > UNEVEN * self.ops;
            hot.cpu >= RISK && hot.ops >= USED_OPS && uneven && us_of_a_command(hot) < EXPENSIVE_US
        })
    }

    /// The one that is full while the others are not.
    fn full(&self) -> Option<&Shard<'a>> {
        let full = |s: &&Shard| filled(s.node) >= FULL && s.memory > UNEVEN * self.memory;
        self.all.iter().filter(full).max_by(|a, b| filled(a.node).total_cmp(&filled(b.node)))
    }

    /// Whether its slots explain that it does this share of the work.
    fn by_slots(&self, shard: &Shard, share: f64) -> bool {
        let slots = self.slot_share(shard);
        slots * self.all.len() as f64 > BY_SLOTS && share <= BY_SLOTS * slots
    }

    fn slot_share(&self, shard: &Shard) -> f64 {
        shard.slots as f64 / self.slots.max(1) as f64
    }
}

fn us_of_a_command(shard: &Shard) -> f64 {
    shard.cpu * 1e6 / shard.ops.max(0.001)
}

/// Share of maxmemory that is used; 0 without a limit.
fn filled(node: &Node) -> f64 {
    let limit = node.number("maxmemory").filter(|limit| *limit > 0.0);
    limit.map_or(0.0, |limit| node.number("used_memory").unwrap_or(0.0) / limit)
}

pub fn check(facts: &Facts) -> Verdict {
    if facts.kind != DeploymentKind::Cluster || facts.through.is_some() {
        return Verdict::NotHere;
    }
    let Some((_, view)) = peers::cluster(facts) else {
        let gap = facts.nodes.iter().find_map(|n| n.cluster.refused());
        return match gap {
            Some(gap) => Verdict::Unknown(gap.of("shards")),
            None => Verdict::unknown(Lack::Answer, "shards are listed in CLUSTER NODES, which no node returned", ""),
        };
    };
    if view.masters().count() < 2 {
        return Verdict::NotHere;
    }
    let Some(shards) = Shards::of(facts, &view) else { return unmeasured(facts, &view) };
    if let Some(hot) = shards.hot() {
        return busy(facts, &shards, hot).into();
    }
    if let Some(full) = shards.full() {
        return filled_first(&shards, full).into();
    }
    Verdict::Absent(none(&shards))
}

/// What kept a master from being compared.
fn unmeasured(facts: &Facts, view: &ClusterView) -> Verdict {
    let away = view.masters().find(|row| peers::node_of(facts, row).is_none_or(|n| n.last.is_none()));
    match away {
        Some(row) if facts.live().next().is_some() => {
            Verdict::unknown(Lack::Answer, format!("shards: the load of {} was not seen", row.address), "")
        }
        _ => Verdict::Unknown(unseen_info(facts, "shards")),
    }
}

fn none(shards: &Shards) -> String {
    let Some(busiest) = shards.busiest() else { return "shards: none".into() };
    let times = busiest.cpu / shards.cpu.max(1e-6);
    let why = if us_of_a_command(busiest) >= EXPENSIVE_US && busiest.cpu >= RISK {
        format!(", caused by commands of {} each and not by their number", time_us(us_of_a_command(busiest)))
    } else {
        String::new()
    };
    format!(
        "shards: the busiest of {} masters uses {} of a core, {times:.1} times their mean{why}",
        shards.all.len(),
        percent(busiest.cpu)
    )
}

fn busy(facts: &Facts, shards: &Shards, hot: &Shard) -> Finding {
    let total: f64 = shards.all.iter().map(|s| s.ops).sum();
    let (share, slots) = (hot.ops / total.max(1e-9), shards.slot_share(hot));
    let by_slots = shards.by_slots(hot, share);
    let why = if by_slots { "it has more slots" } else { "some of its keys are hot" };
    let what = format!(
        "{} executes {} of the cluster's commands with {} of the slots, and its main thread is {} busy",
        hot.node.address,
        percent(share),
        percent(slots),
        percent(hot.cpu)
    );
    let finding = Finding::new(format!("{what}: {why}")).on([hot.node.address.as_str()]);
    let finding = if hot.cpu >= HURTS {
        let text = format!(
            "{} of a core on {} above the mean of {} masters ({}): it is the bottleneck of the whole cluster",
            percent(hot.cpu - shards.cpu),
            hot.node.address,
            shards.all.len(),
            percent(shards.cpu)
        );
        finding.core(hot.cpu - shards.cpu, text)
    } else {
        finding.risk("nothing waits for it yet; when the load grows, it is full first, while the others stay idle")
    };
    let finding = finding
        .gain(
            format!(
                "room for about {} commands/s instead of {}",
                count(total / shards.cpu.max(0.001)),
                count(total / hot.cpu)
            ),
            format!(
                "{total:.0}/s / {:.2} of a core on the hot master = {:.0}/s; {total:.0}/s / {:.2}, the mean = {:.0}/s",
                hot.cpu,
                total / hot.cpu,
                shards.cpu,
                total / shards.cpu.max(0.001)
            ),
        )
        .proven("commands and CPU of every master were measured in this window, and their slots read");
    let finding = figures(finding, shards, hot).not(format!(
        "an expensive command: {} of CPU per command on {}",
        time_us(us_of_a_command(hot)),
        hot.node.address
    ));
    if by_slots { rebalance(finding, facts, hot.node) } else { keys(finding, hot.node) }
}

/// What the hot one and the others did, the busiest first.
fn figures(finding: Finding, shards: &Shards, hot: &Shard) -> Finding {
    let mut finding = finding;
    let others = by_worst(shards.all.iter().filter(|s| s.node.address != hot.node.address).collect(), |s| s.cpu);
    for shard in std::iter::once(hot).chain(others.into_iter().take(3)) {
        finding = finding.saw(
            shard.node,
            "INFO ALL",
            format!(
                "{} commands/s, {} of a core, {} used, {} slots",
                count(shard.ops),
                percent(shard.cpu),
                bytes(shard.memory),
                shard.slots
            ),
        );
    }
    finding
}

fn filled_first(shards: &Shards, full: &Shard) -> Finding {
    let total: f64 = shards.all.iter().map(|s| s.memory).sum();
    let share = full.memory / total.max(1.0);
    let by_slots = shards.by_slots(full, share);
    let why = if by_slots { "it has more slots" } else { "its slots hold more" };
    let finding = Finding::new(format!(
        "{} holds {} of the cluster's memory and has filled {} of its limit: {why}",
        full.node.address,
        percent(share),
        percent(filled(full.node))
    ))
    .on([full.node.address.as_str()])
    .risk("the cluster is full when this master is: it evicts, or refuses writes, while the others have room")
    .proven("memory and limit of every master, read in this window");
    let finding = figures(finding, shards, full);
    if by_slots {
        return even_out(finding, full.node);
    }
    let keys = finding.fix(
        "Find the keys that fill it",
        &[&format!("unslow keys {} --all --memory", full.node.address)],
        "it walks the whole key space of every shard with SCAN, on replicas where there are some, and in at most a \
         fifth of a server's time",
        "",
    );
    give_away(keys, full.node)
}

/// Where slots explain it.
fn rebalance(finding: Finding, facts: &Facts, hot: &Node) -> Finding {
    let is_empty = |n: &Node| n.cluster.value().and_then(ClusterView::myself).is_some_and(|me| me.slots.is_empty());
    if facts.live().any(|n| n.is_master() && is_empty(n)) {
        return finding.fix(
            "Spread the slots over all masters, including those without slots",
            &[&format!("{} --cluster rebalance {} --cluster-use-empty-masters", peers::tool(hot), hot.address)],
            MOVING,
            "",
        );
    }
    even_out(finding, hot)
}

/// What can go wrong while slots move.
const MOVING: &str =
    "keys move while clients use them: this causes some redirects, and a large key blocks both servers while it moves";

fn even_out(finding: Finding, node: &Node) -> Finding {
    finding.fix(
        "Spread the slots evenly; look at the plan first",
        &[
            &format!("{} --cluster rebalance {} --cluster-simulate", peers::tool(node), node.address),
            &format!("{} --cluster rebalance {}", peers::tool(node), node.address),
        ],
        MOVING,
        "",
    )
}

/// Other slots of the shard go elsewhere; what is hot stays and has it to itself.
fn give_away(finding: Finding, node: &Node) -> Finding {
    let Some(id) = &node.node_id else { return finding };
    let weigh = |weight: &str| {
        format!("{} --cluster rebalance {} --cluster-weight {id}={weight}", peers::tool(node), node.address)
    };
    finding.fix("Until then, move half of its other slots to the other masters", &[&weigh("0.5")], MOVING, &weigh("1"))
}

/// Where keys explain it: find them, then do less with them.
fn keys(finding: Finding, node: &Node) -> Finding {
    let finding = which(slots_seen(finding, node), node);
    let finding = less_of_a_key(finding, node);
    finding.fix(
        "If a hash tag puts too much into one slot: use a narrower tag",
        &["{tenant42}:user:7  ->  {tenant42:7}:user   (only keys that one command needs together share a tag)"],
        "commands on keys with different tags fail with CROSSSLOT; the old keys must be copied",
        "",
    )
}

/// What relieves a server of a key that all clients want, by what they do most there.
pub(super) fn less_of_a_key(finding: Finding, node: &Node) -> Finding {
    let reads = reads_on_master::read_share(node).unwrap_or(0.0);
    if reads > 0.5 {
        finding.fix(
            "Serve the hot keys from a client-side cache",
            &[
                "CLIENT TRACKING ON   (6.0+; the server tells the clients when a cached key changes)",
                "Lettuce: CacheFrontend over ClientSideCaching; Jedis: CacheConfig; redis-py: \
                 cache_config=CacheConfig()",
            ],
            "clients may see slightly stale values; the cache takes memory in each of them",
            "remove the cache's setting",
        )
    } else {
        finding.fix(
            "Split a hot key that is written: use one sub-key per part, in different slots",
            &["INCR counter:{0} ... INCR counter:{15}   (a random one for each write; reads add them up)"],
            "one read becomes several, and their sum is not taken at a single moment",
            "add the parts up into one key",
        )
    }
}

/// The slot that has taken the most time since the server counts it, where it does.
fn slots_seen(finding: Finding, node: &Node) -> Finding {
    let counted =
        node.slot_stats.value().into_iter().flatten().filter_map(|s| Some((s, s.cpu_us.filter(|us| *us > 0)?)));
    match counted.max_by_key(|(_, us)| *us) {
        Some((stat, us)) => finding.saw(
            node,
            "CLUSTER SLOT-STATS ORDERBY CPU-USEC LIMIT 5 DESC",
            format!("slot {}: {} in all, {} keys", stat.slot, time_us(us as f64), count(stat.keys as f64)),
        ),
        None => finding,
    }
}

/// How the hot slot and the hot key are found on a server of this version.
fn which(finding: Finding, node: &Node) -> Finding {
    let run = |command: &str| cli(&node.address, command);
    let mut finding = finding;
    if is_since(node, (8, 0), (8, 2)) {
        finding = finding.fix(
            "Find the hot slot, then its keys",
            &[
                &run("CONFIG SET cluster-slot-stats-enabled yes"),
                &run("CLUSTER SLOT-STATS ORDERBY cpu-usec LIMIT 10 DESC   (after a minute)"),
                &run("CLUSTER GETKEYSINSLOT SLOT 10"),
            ],
            "counting per slot costs the main thread a little as long as it is on",
            &run("CONFIG SET cluster-slot-stats-enabled no"),
        );
    }
    if is_since(node, NEVER, (8, 6)) {
        finding = finding.fix(
            "Find the hot keys",
            &[&format!("unslow keys {} --hot --show-keys", node.address)],
            "every master counts for ten seconds (HOTKEYS), which costs its main thread a little, and is then scanned \
             for ten more, in at most a fifth of its time",
            "",
        );
    }
    if node.setting("maxmemory-policy").is_some_and(|policy| policy.ends_with("-lfu")) {
        finding = finding.fix(
            "Find the hot keys: the LFU policy counts them",
            &[&format!("unslow keys {} --all --hot --show-keys", node.address)],
            "it walks the whole key space of every master with SCAN, in at most a fifth of its time",
            "",
        );
    }
    if finding.remedies.is_empty() {
        finding = finding.fix(
            "Find the hot keys in the clients: this server does not count them, and MONITOR would take what it has \
             left",
            &["in the application: count the keys it sends by name for a minute, and log the ten most frequent"],
            "",
            "",
        );
    }
    finding
}

/// No Valkey has it.
const NEVER: (u32, u32) = (u32::MAX, 0);

/// Whether it is at least this Valkey, or this Redis.
fn is_since(node: &Node, valkey: (u32, u32), redis: (u32, u32)) -> bool {
    let Some(info) = node.info() else { return false };
    let least = if info.product() == "Valkey" { valkey } else { redis };
    info.version().is_some_and(|(major, minor, _)| (major, minor) >= least)
}
