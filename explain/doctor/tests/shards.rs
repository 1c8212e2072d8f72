//! Rules about how a cluster's work, slots and lists are spread, over facts that are built by hand.

mod common;
#[path = "common/hand.rs"]
mod hand;

use common::{NOW_MS, answer, deployment, finding, node, seen};
use hand::{before, command, commands, lines, text};
use unslow_doctor::{Answered, Currency, Finding, Severity, diagnose};
use unslow_facts::{Facts, Gap, HotKey, HotKeys, KeysSeen, Lack, LaterView, Node, Seen, SlotStat};
use unslow_topology::{ClusterView, DeploymentKind, Info, Role};

const EVEN: [&str; 3] = ["0-5460", "5461-10922", "10923-16383"];

fn address(n: usize) -> String {
    format!("10.0.0.{n}:6379")
}

fn id(n: usize) -> String {
    format!("{n:040x}")
}

/// CLUSTER NODES of node `me`: masters 1 to 3 with these slots, and 4 to 6 follow them. `more` is added as it stands.
fn nodes_text(me: usize, slots: &[&str; 3], more: &str) -> String {
    let line = |n: usize| {
        let flags = format!("{}{}", if n == me { "myself," } else { "" }, if n <= 3 { "master" } else { "slave" });
        let master = if n <= 3 { "-".into() } else { id(n - 3) };
        let own = slots.get(n - 1).unwrap_or(&"");
        format!("{} {}@16379 {flags} {master} 0 {NOW_MS} {} connected {own}\n", id(n), address(n), (n - 1) % 3 + 1)
    };
    (1..=6).map(line).collect::<String>() + more
}

/// What a master did in ten seconds: a share of a core, reads and writes.
#[derive(Clone, Copy)]
struct Work {
    cpu: f64,
    gets: u64,
    sets: u64,
}

const IDLE: Work = Work { cpu: 0.01, gets: 20, sets: 20 };

fn after(work: Work) -> String {
    lines(&[("used_cpu_user_main_thread", work.cpu * 8.0), ("used_cpu_sys_main_thread", work.cpu * 2.0)])
        + &lines(&[
            ("total_commands_processed", (work.gets + work.sets) as f64),
            ("total_reads_processed", (work.gets + work.sets) as f64 / 10.0),
        ])
        + &command("get", work.gets, work.gets / 2, 0, 0)
        + &command("set", work.sets, work.sets / 2, 0, 0)
}

fn replica_of(n: usize, work: Work) -> Node {
    let link = format!(
        "role:slave\r\nmaster_host:10.0.0.{}\r\nmaster_port:6379\r\nmaster_link_status:up\r\n\
         master_last_io_seconds_ago:1\r\n\
         master_sync_in_progress:0\r\nslave_repl_offset:900\r\nmaster_repl_offset:900\r\n",
        n - 3
    );
    let mut replica = node(&address(n), Role::Replica, &(before("7.2.4") + &link), &after(work));
    replica.master = Some(address(n - 3));
    replica
}

/// Six nodes; the masters did this, and own these slots.
fn cluster(work: [Work; 3], slots: &[&str; 3]) -> Facts {
    let member = |n: usize| {
        let own = before("7.2.4") + "master_repl_offset:1000\r\n";
        let mut node = match work.get(n - 1) {
            Some(work) => node(&address(n), Role::Master, &own, &after(*work)),
            None => replica_of(n, IDLE),
        };
        node.node_id = Some(id(n));
        node.cluster = seen(ClusterView::parse(&nodes_text(n, slots, "")).unwrap());
        node
    };
    deployment(DeploymentKind::Cluster, (1..=6).map(member).collect())
}

fn set(facts: &mut Facts, n: usize, fields: &str) {
    let node = &mut facts.nodes[n - 1];
    for sample in [&mut node.first, &mut node.last].into_iter().flatten() {
        sample.info.0.extend(Info::parse(fields).0);
    }
}

/// Another list on one node.
fn lists(facts: &mut Facts, n: usize, more: &str) {
    facts.nodes[n - 1].cluster = seen(ClusterView::parse(&nodes_text(n, &EVEN, more)).unwrap());
}

fn denied<T>() -> Seen<T> {
    Seen::No(Gap::new(Lack::Rights, "CLUSTER NODES is denied to this user", "ACL SETUSER <user> +cluster|nodes"))
}

/// Writes, so that replicas are no way out.
fn hot(cpu: f64) -> Work {
    Work { cpu, gets: 0, sets: 500_000 }
}

fn on_two(finding: &Finding) -> bool {
    finding.subjects == [address(2)]
}

#[test]
fn a_hot_shard_is_told_with_what_explains_it() {
    let facts = cluster([IDLE, hot(0.9), IDLE], &EVEN);
    let found = finding(&facts, "shard_imbalance");
    assert_eq!(found.impact.currency, Currency::Capacity);
    // 0.9 less the mean of three.
    assert!((found.impact.value - (0.9 - 0.92 / 3.0)).abs() < 1e-6, "{:?}", found.impact);
    assert!(on_two(&found) && found.title.ends_with("some of its keys are hot"), "{}", found.title);
    assert!(!commands(&found).contains("rebalance") && !commands(&found).contains("MONITOR"), "{}", commands(&found));
    // With most of the slots the work follows them.
    let facts = cluster([IDLE, hot(0.9), IDLE], &["0-10", "11-16372", "16373-16383"]);
    let found = finding(&facts, "shard_imbalance");
    assert!(found.title.ends_with("it has more slots"), "{}", found.title);
    assert!(commands(&found).contains("--cluster rebalance 10.0.0.2:6379"), "{}", commands(&found));
}

#[test]
fn a_shard_that_is_uneven_and_hurts_nobody_is_a_risk_or_nothing() {
    let rated = |cpu: f64| cluster([IDLE, hot(cpu), IDLE], &EVEN);
    assert_eq!(finding(&rated(0.5), "shard_imbalance").impact.currency, Currency::Risk);
    assert_eq!(answer(&rated(0.3), "shard_imbalance"), Answered::Absent);
    // All are busy: that is a matter of size.
    let all = cluster([hot(0.8), hot(0.9), hot(0.85)], &EVEN);
    assert_eq!(answer(&all, "shard_imbalance"), Answered::Absent);
    // A few commands of a millisecond each: what they are is the matter.
    let slow = Work { cpu: 0.9, gets: 0, sets: 5000 };
    let few = cluster([IDLE, slow, IDLE], &EVEN);
    assert_eq!(answer(&few, "shard_imbalance"), Answered::Absent);
    assert!(text(&few, "shard_imbalance").contains("and not by their number"), "{}", text(&few, "shard_imbalance"));
}

#[test]
fn a_shard_that_is_full_before_the_others_is_a_risk() {
    let mut facts = cluster([IDLE; 3], &EVEN);
    for n in 1..=3 {
        set(&mut facts, n, "maxmemory:1000000000\nused_memory:200000000\n");
    }
    assert_eq!(answer(&facts, "shard_imbalance"), Answered::Absent);
    set(&mut facts, 2, "used_memory:900000000\n");
    let found = finding(&facts, "shard_imbalance");
    assert!(on_two(&found) && found.impact.currency == Currency::Risk, "{found:?}");
    assert!(commands(&found).contains("--all --memory"), "{}", commands(&found));
}

/// Three masters with a million keys each in a gigabyte; the largest slot of master 2 has this many of its own, in this
/// much.
fn tagged(keys: u64, dataset: u64) -> Facts {
    let mut facts = cluster([IDLE; 3], &EVEN);
    for n in 1..=3 {
        let (data, most) = if n == 2 { (dataset, keys) } else { (1_000_000_000, 250) };
        set(&mut facts, n, &format!("db0:keys=1000000,expires=0\nused_memory_dataset:{data}\n"));
        facts.nodes[n - 1].slot_stats = seen(vec![SlotStat { slot: 6000, keys: most, cpu_us: None }]);
    }
    facts
}

#[test]
fn a_tag_that_most_keys_share_makes_a_slot_that_cannot_be_spread() {
    let found = finding(&tagged(700_000, 4_000_000_000), "hash_tag_skew");
    assert!(on_two(&found) && found.impact.currency == Currency::Risk, "{found:?}");
    assert!(found.title.contains("Slot 6000 holds 70 %"), "{}", found.title);
    assert!(commands(&found).contains("CLUSTER GETKEYSINSLOT 6000 10"), "{}", commands(&found));
    // A third of the keys, a shard that is no larger than the others, and a slot that is most of very little.
    assert_eq!(answer(&tagged(330_000, 4_000_000_000), "hash_tag_skew"), Answered::Absent);
    assert_eq!(answer(&tagged(700_000, 1_000_000_000), "hash_tag_skew"), Answered::Absent);
    let mut few = tagged(700, 4_000_000_000);
    set(&mut few, 2, "db0:keys=1000,expires=0\n");
    assert_eq!(answer(&few, "hash_tag_skew"), Answered::Absent);
    // One that does not list its slots may have it.
    let mut unseen = tagged(330_000, 4_000_000_000);
    unseen.nodes[0].slot_stats = denied();
    assert_eq!(answer(&unseen, "hash_tag_skew"), Answered::Unknown);
    unseen.kind = DeploymentKind::Standalone;
    assert_eq!(answer(&unseen, "hash_tag_skew"), Answered::NotHere);
}

#[test]
fn the_hot_slot_is_named_where_the_server_counts_its_time() {
    let mut facts = cluster([IDLE, hot(0.9), IDLE], &EVEN);
    let slot = |slot: u16, cpu_us: Option<u64>| SlotStat { slot, keys: 3, cpu_us };
    facts.nodes[1].slot_stats = seen(vec![slot(6000, Some(1000)), slot(6001, Some(8_000_000))]);
    let named =
        |facts: &Facts| finding(facts, "shard_imbalance").evidence.iter().any(|e| e.value.contains("slot 6001: 8 s"));
    assert!(named(&facts));
    facts.nodes[1].slot_stats = seen(vec![slot(6001, None)]);
    assert!(!named(&facts));
}

#[test]
fn how_the_hot_key_is_found_depends_on_the_server() {
    let of = |fields: &str| {
        let mut facts = cluster([IDLE, hot(0.9), IDLE], &EVEN);
        set(&mut facts, 2, fields);
        commands(&finding(&facts, "shard_imbalance"))
    };
    assert!(!of("").contains("SLOT-STATS") && !of("").contains("--hot"));
    let valkey = of("valkey_version:8.1.0\nserver_name:valkey\n");
    assert!(valkey.contains("SLOT-STATS") && !valkey.contains("--hot"), "{valkey}");
    let redis = of("redis_version:8.6.0\n");
    assert!(redis.contains("SLOT-STATS") && redis.contains("unslow keys 10.0.0.2:6379 --hot"), "{redis}");
    let mut facts = cluster([IDLE, hot(0.9), IDLE], &EVEN);
    facts.nodes[1].config = seen([("maxmemory-policy".to_string(), "allkeys-lfu".to_string())].into());
    assert!(commands(&finding(&facts, "shard_imbalance")).contains("--all --hot"));
}

/// A cluster whose second master is this busy, and has counted for one key this share of its time.
fn counted(cpu: f64, share: f64) -> Facts {
    let mut facts = cluster([IDLE, hot(cpu), IDLE], &EVEN);
    let key = |name: &str, share| HotKey {
        key: name.into(),
        pattern: "counter:*".into(),
        cpu_share: Some(share),
        net_share: Some(share),
    };
    let keys = vec![key("key#1", share), key("key#2", 0.01)];
    let hot = vec![HotKeys {
        server: address(2),
        run_id: String::new(),
        started_ms: NOW_MS - 60_000,
        seconds: 10.0,
        is_whole: true,
        counts_cpu: true,
        counts_net: true,
        core_share: 0.03,
        keys,
    }];
    facts.keys_seen = Some(KeysSeen { at_ms: NOW_MS, hot, ..KeysSeen::default() });
    facts
}

#[test]
fn a_key_that_fills_its_master_is_why_the_shard_is_hot() {
    let facts = counted(0.9, 0.5);
    let report = diagnose(&facts, &[]);
    assert_eq!(report.findings[0].id, "hot_key", "{:?}", report.findings.iter().map(|f| &f.id).collect::<Vec<_>>());
    assert!(report.findings[0].chain.iter().any(|link| link.id == "shard_imbalance"));
    let found = finding(&facts, "hot_key");
    assert_eq!((found.impact.value * 100.0).round(), 45.0, "half of 0.9 of a core");
    let said = found.evidence.iter().map(|e| e.value.as_str()).collect::<Vec<_>>().join("; ");
    assert!(
        said.contains("key#1 (counter:*): 50 % of the time of commands and 50 % of the bytes, over 10 s"),
        "{said}"
    );
    assert_eq!(finding(&counted(0.5, 0.5), "hot_key").severity, Severity::Risk);
}

#[test]
fn a_key_of_an_idle_master_or_among_many_is_none_that_is_hot() {
    assert_eq!(answer(&counted(0.2, 0.9), "hot_key"), Answered::Absent);
    assert_eq!(answer(&counted(0.9, 0.05), "hot_key"), Answered::Absent);
    // Long commands on it, and the rest of the main thread for requests on others.
    let few = counting(|of| of.keys[0].net_share = Some(0.01));
    assert_eq!(answer(&few, "hot_key"), Answered::Absent, "half of little, and 1 % of the rest");
    assert_eq!(answer(&cluster([IDLE, hot(0.9), IDLE], &EVEN), "hot_key"), Answered::NotHere);
    // A large value that is read: little time in commands, and most of the bytes.
    let large = counting(|of| (of.keys[0].cpu_share, of.keys[0].net_share) = (Some(0.04), Some(0.9)));
    assert_eq!(answer(&large, "hot_key"), Answered::Present);
}

/// A hot key on a busy master, but for one thing.
fn counting(change: impl Fn(&mut HotKeys)) -> Facts {
    let mut facts = counted(0.9, 0.9);
    facts.keys_seen.iter_mut().flat_map(|seen| &mut seen.hot).for_each(change);
    facts
}

/// The command that a report gives for it must not read as if the key were cold when its document is forgotten.
#[test]
fn a_hot_key_that_is_asked_for_without_a_count_is_unknown() {
    let found = finding(&counted(0.9, 0.5), "hot_key");
    assert!(found.recheck.contains("--keys FILE --only hot_key"), "{}", found.recheck);
    let report = diagnose(&cluster([IDLE, hot(0.9), IDLE], &EVEN), &["hot_key".to_string()]);
    assert_eq!(report.only[0].answer, Answered::Unknown);
    assert!(report.cannot_see.iter().any(|gap| gap.id == "hot_key"), "{:?}", report.cannot_see);
    assert!(report.only[0].text.contains("--keys FILE"), "{}", report.only[0].text);
}

#[test]
fn a_count_of_something_else_says_nothing_of_now() {
    assert_eq!(answer(&counting(|_| ()), "hot_key"), Answered::Present);
    for (what, facts) in [
        ("another server", counting(|of| of.server = "10.9.9.9:6379".into())),
        ("weeks ago", counting(|of| of.started_ms -= 20 * 86_400_000)),
        ("another load", counting(|of| of.core_share = 0.6)),
        ("some slots", counting(|of| of.is_whole = false)),
        ("bytes alone", counting(|of| of.counts_cpu = false)),
    ] {
        assert_eq!(answer(&facts, "hot_key"), Answered::Unknown, "{what}");
    }
    let mut mute = counted(0.9, 0.9);
    mute.nodes[1].last.as_mut().unwrap().info.0.retain(|name, _| !name.starts_with("used_cpu"));
    assert_eq!(answer(&mute, "hot_key"), Answered::Unknown);
}

#[test]
fn shards_that_were_not_all_measured_are_not_compared() {
    let mut facts = cluster([IDLE, hot(0.9), IDLE], &EVEN);
    facts.nodes[2].last = None;
    assert_eq!(answer(&facts, "shard_imbalance"), Answered::Unknown);
    let mut facts = cluster([IDLE; 3], &EVEN);
    facts.nodes.iter_mut().for_each(|n| n.cluster = denied());
    for rule in ["shard_imbalance", "slot_map_fragmented", "ghost_nodes", "views_disagree"] {
        assert_eq!(answer(&facts, rule), Answered::Unknown, "{rule}");
    }
    facts.kind = DeploymentKind::Standalone;
    for rule in ["shard_imbalance", "slot_map_fragmented", "ghost_nodes", "views_disagree"] {
        assert_eq!(answer(&facts, rule), Answered::NotHere, "{rule}");
    }
}

const READING: Work = Work { cpu: 0.8, gets: 450_000, sets: 50_000 };

/// All masters alike, so that no shard is hot.
fn reading(work: Work) -> Facts {
    cluster([work; 3], &EVEN)
}

#[test]
fn reads_that_idle_replicas_could_answer_are_an_offer() {
    let found = finding(&reading(READING), "reads_on_master");
    assert_eq!((found.impact.currency, found.subjects.len()), (Currency::Capacity, 3));
    assert!((found.impact.value - 0.8 * 0.9).abs() < 1e-6, "{:?}", found.impact);
    // Old answers are what it costs, and how old they are now is measured.
    assert!(found.remedies[0].risk.contains("100 B behind"), "{}", found.remedies[0].risk);
    assert!(commands(&found).contains("ReadOnly: true"), "{}", commands(&found));
}

#[test]
fn reads_stay_where_nothing_is_gained() {
    let absent = |facts: &Facts| assert_eq!(answer(facts, "reads_on_master"), Answered::Absent);
    absent(&reading(Work { cpu: 0.6, ..READING }));
    absent(&reading(Work { gets: 300_000, sets: 200_000, ..READING }));
    // Few and expensive.
    absent(&reading(Work { gets: 4500, sets: 500, ..READING }));
    let change = |change: fn(&mut Facts, usize)| {
        let mut facts = reading(READING);
        (4..=6).for_each(|n| change(&mut facts, n));
        facts
    };
    absent(&change(|facts, n| set(facts, n, "master_link_status:down\n")));
    absent(&change(|facts, n| facts.nodes[n - 1] = replica_of(n, Work { gets: 100_000, ..IDLE })));
    absent(&change(|facts, n| facts.nodes[n - 1] = replica_of(n, Work { cpu: 0.5, ..IDLE })));
    // No replica at all.
    let mut alone = reading(READING);
    alone.nodes.truncate(3);
    assert_eq!(answer(&alone, "reads_on_master"), Answered::NotHere);
    let mut blank = reading(READING);
    blank.nodes.iter_mut().flat_map(|n| [&mut n.first, &mut n.last]).flatten().for_each(|s| s.info = Info::default());
    assert_eq!(answer(&blank, "reads_on_master"), Answered::Unknown);
}

#[test]
fn a_hot_shard_that_is_read_is_one_finding() {
    let facts = cluster([IDLE, Work { cpu: 0.95, ..READING }, IDLE], &EVEN);
    let rules = ["main_thread_saturated", "reads_on_master", "shard_imbalance"].map(String::from);
    let report = diagnose(&facts, &rules);
    assert_eq!(report.findings.len(), 1, "{:?}", report.findings);
    assert_eq!(report.findings[0].id, "shard_imbalance");
    let mut chain: Vec<&str> = report.findings[0].chain.iter().map(|l| l.id.as_str()).collect();
    chain.sort_unstable();
    assert_eq!(chain, ["main_thread_saturated", "reads_on_master"]);
}

/// Slots dealt out in turn: as many ranges as this for each of the first two masters.
fn dealt(ranges: u16) -> [String; 3] {
    let every = |first: u16| (0..ranges).map(|i| (first + 2 * i).to_string()).collect::<Vec<_>>().join(" ");
    [every(0), every(1), format!("{}-16383", 2 * ranges)]
}

#[test]
fn a_map_of_very_many_ranges_has_a_price_where_it_is_asked_for() {
    let of = |ranges: u16| {
        let slots = dealt(ranges);
        cluster([IDLE; 3], &[&slots[0], &slots[1], &slots[2]])
    };
    assert_eq!(answer(&of(200), "slot_map_fragmented"), Answered::Absent);
    let found = finding(&of(1000), "slot_map_fragmented");
    assert_eq!(found.impact.currency, Currency::Risk);
    assert!(found.title.contains("2,001 ranges"), "{}", found.title);
    // The two masters with the most ranges.
    let pair = format!("--cluster-from {} --cluster-to {} --cluster-slots 999 ", id(2), id(1));
    assert!(commands(&found).contains(&pair), "{}", commands(&found));
    // One per cent of a core.
    let mut facts = of(1000);
    let asked = Info::parse(&command("cluster|slots", 100, 100_000, 0, 0));
    facts.nodes[0].last.as_mut().unwrap().info.0.extend(asked.0);
    let found = finding(&facts, "slot_map_fragmented");
    assert_eq!(found.impact.currency, Currency::Capacity);
    assert!((found.impact.value - 0.01 * (1.0 - 3.0 / 2001.0)).abs() < 1e-6, "{:?}", found.impact);
    // Where it is a storm, that rule tells the price.
    let asked = command("cluster|slots", 1000, 1_000_000, 0, 0) + "used_cpu_user_main_thread:9\r\n";
    let asked = Info::parse(&asked);
    facts.nodes[0].last.as_mut().unwrap().info.0.extend(asked.0);
    assert_eq!(finding(&facts, "slot_map_fragmented").impact.currency, Currency::Risk);
}

/// A line of a node that is no more.
fn gone(n: usize, address: &str, flags: &str, pong_ms: u64) -> String {
    format!("{:040x} {address} {flags} - 0 {pong_ms} 0 disconnected\n", 0xdead + n)
}

const HOUR_MS: u64 = 3_600_000;

#[test]
fn nodes_that_are_gone_are_forgotten() {
    let mut facts = cluster([IDLE; 3], &EVEN);
    assert_eq!(answer(&facts, "ghost_nodes"), Answered::Absent);
    // Without a port for this kind of connection, and there all the same.
    let linked = gone(0, "10.0.0.9:0@16379", "slave", NOW_MS).replace("disconnected", "connected");
    lists(&mut facts, 5, &linked);
    assert_eq!(answer(&facts, "ghost_nodes"), Answered::Absent);
    lists(&mut facts, 5, &gone(0, ":0@0", "slave,noaddr", 0));
    let found = finding(&facts, "ghost_nodes");
    assert_eq!((found.subjects.clone(), found.impact.currency), (vec![address(5)], Currency::Risk));
    let forget = format!("--cluster call 10.0.0.5:6379 CLUSTER FORGET {:040x}", 0xdead);
    assert!(commands(&found).contains(&forget), "{}", commands(&found));
    // Many of them are read from the list.
    let many: String = (0..300).map(|n| gone(n, ":0@0", "slave,noaddr", 0)).collect();
    lists(&mut facts, 5, &many);
    let found = finding(&facts, "ghost_nodes");
    assert!(found.title.contains("lists 300 nodes") && commands(&found).contains("awk"), "{}", found.title);
}

#[test]
fn what_may_come_back_is_no_ghost() {
    let on_all = |line: &str| {
        let mut facts = cluster([IDLE; 3], &EVEN);
        (1..=6).for_each(|n| lists(&mut facts, n, line));
        answer(&facts, "ghost_nodes")
    };
    let failed = |age_ms: u64| gone(0, "10.0.0.9:6379@16379", "slave,fail", NOW_MS - age_ms);
    assert_eq!(on_all(&failed(2 * HOUR_MS)), Answered::Absent, "a replica that died two hours ago");
    assert_eq!(on_all(&failed(25 * HOUR_MS)), Answered::Present);
    assert_eq!(on_all(&gone(0, "10.0.0.9:6379@16379", "handshake", 0)), Answered::Absent, "one that is being added");
    // Forgotten by all but one.
    let mut facts = cluster([IDLE; 3], &EVEN);
    lists(&mut facts, 2, &failed(2 * HOUR_MS));
    let found = finding(&facts, "ghost_nodes");
    assert!(found.remedies[0].rollback.contains("CLUSTER MEET"), "{found:?}");
    // It is back and answers: the others have not noticed yet.
    facts.nodes.push(node("10.0.0.9:6379", Role::Replica, &before("7.2.4"), ""));
    facts.nodes[6].cluster = seen(ClusterView::parse(&nodes_text(6, &EVEN, "")).unwrap());
    assert_eq!(answer(&facts, "ghost_nodes"), Answered::Absent);
    // A list that was not seen may have some.
    facts.nodes[2].cluster = denied();
    assert_eq!(answer(&facts, "ghost_nodes"), Answered::Unknown);
}

/// What each node says of the slots, at both ends of the window.
fn views(said: [&[&str; 3]; 6]) -> Facts {
    let mut facts = cluster([IDLE; 3], &EVEN);
    for (i, slots) in said.iter().enumerate() {
        facts.nodes[i].cluster = seen(ClusterView::parse(&nodes_text(i + 1, slots, "")).unwrap());
        facts.nodes[i].cluster_last = seen(LaterView::Unchanged);
    }
    facts
}

/// Master 1 has given slot 100 to master 2.
const GIVEN: [&str; 3] = ["0-99 101-5460", "100 5461-10922", "10923-16383"];

#[test]
fn a_slot_that_all_give_to_another_node_is_not_served() {
    assert_eq!(answer(&views([&EVEN; 6]), "views_disagree"), Answered::Absent);
    // Nobody told master 2.
    let facts = views([&GIVEN, &EVEN, &EVEN, &EVEN, &EVEN, &EVEN]);
    let found = finding(&facts, "views_disagree");
    assert_eq!(found.impact.currency, Currency::Availability);
    assert!((found.impact.value - 86400.0 / 16384.0).abs() < 1e-6, "{:?}", found.impact);
    assert_eq!(found.subjects, [address(1), address(2)]);
    let told = format!("redis-cli -h 10.0.0.1 -p 6379 CLUSTER SETSLOT 100 NODE {}", id(1));
    assert!(commands(&found).starts_with(&told), "{}", commands(&found));
    // No server takes it for uncovered, and so the cluster serves the others.
    assert_eq!(answer(&facts, "slots_uncovered"), Answered::Absent);
}

#[test]
fn what_settles_or_is_being_moved_is_no_disagreement() {
    let disputed = || views([&GIVEN, &EVEN, &EVEN, &EVEN, &EVEN, &EVEN]);
    let told = |facts: &Facts| answer(facts, "views_disagree");
    // Settled by the end.
    let mut facts = disputed();
    let now = ClusterView::parse(&nodes_text(1, &EVEN, "")).unwrap();
    facts.nodes[0].cluster_last = seen(LaterView::Changed(now));
    assert_eq!(told(&facts), Answered::Absent);
    // A reshard that is at work.
    let mut facts = disputed();
    let moves = Info::parse(&command("cluster|setslot", 3, 30, 0, 0));
    facts.nodes[0].last.as_mut().unwrap().info.0.extend(moves.0);
    assert_eq!(told(&facts), Answered::Absent);
    // A slot that stands open is another finding.
    let open = GIVEN[0].to_string() + &format!(" [100->-{}]", id(2));
    let facts = views([&[&open, GIVEN[1], GIVEN[2]], &EVEN, &EVEN, &EVEN, &EVEN, &EVEN]);
    assert_eq!(told(&facts), Answered::Absent);
    // A node that is away, and one that was not asked again.
    let mut facts = disputed();
    facts.nodes[5] = Node { unreachable: Some("timed out".into()), ..Node::new(&address(6), Role::Replica) };
    assert_eq!(told(&facts), Answered::Unknown);
    let mut facts = disputed();
    facts.nodes[3].cluster_last = Seen::default();
    assert_eq!(told(&facts), Answered::Unknown);
}

#[test]
fn an_epoch_that_is_spreading_has_the_node_timeout_to_arrive() {
    // Master 2 claims it, and only node 3 has not heard.
    let mut facts = views([&GIVEN, &GIVEN, &EVEN, &GIVEN, &GIVEN, &GIVEN]);
    assert_eq!(answer(&facts, "views_disagree"), Answered::Unknown);
    facts.nodes.iter_mut().for_each(|n| n.window_s = 16.0);
    let found = finding(&facts, "views_disagree");
    assert_eq!((found.impact.currency, found.severity), (Currency::Risk, Severity::Medium));
    // That nobody owns it is what another rule is about.
    let open = ["0-99 101-5460", "5461-10922", "10923-16383"];
    let mut facts = views([&open, &open, &open, &EVEN, &open, &open]);
    facts.nodes.iter_mut().for_each(|n| n.window_s = 16.0);
    assert_eq!(answer(&facts, "views_disagree"), Answered::Absent);
    assert_eq!(answer(&facts, "slots_uncovered"), Answered::Present);
    // Two that claim it themselves take writes of which some are lost.
    let mut facts = views([&EVEN, &GIVEN, &EVEN, &GIVEN, &GIVEN, &GIVEN]);
    facts.nodes.iter_mut().for_each(|n| n.window_s = 16.0);
    assert_eq!(finding(&facts, "views_disagree").severity, Severity::High);
}
