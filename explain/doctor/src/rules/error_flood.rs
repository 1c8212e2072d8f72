//! Many commands fail.
//!
//! Failed commands are lost work that latency graphs do not show: OOM, READONLY, MISCONF, NOAUTH, WRONGTYPE, BUSY,
//! CLUSTERDOWN. Clients that retry immediately double the load.
//!
//! Seen when: more than 20 commands in the window, and over 1 % of those that clients sent, end in an error that costs
//! a request; or OOM, MISCONF, READONLY, LOADING, CLUSTERDOWN, MASTERDOWN or NOREPLICAS occur at least once a second.
//! The share is of all commands sent: executed ones, refused ones (which the server does not count as processed) and
//! unknown ones.
//!
//! What it weighs: OOM and the others named with it are the server's errors, and any request may meet them. WRONGTYPE,
//! ERR, NOPERM, NOAUTH and the like cost only the requests that are wrong: with up to 10 % of the commands failing they
//! are never critical.
//!
//! Not to be taken for: commands that a user's ACL denies (`acl_denials`, which takes precedence: what it reports is
//! left out here); writes refused with MISCONF, which are a consequence of `saves_failing`; redirects
//! (`redirect_storm`), NOSCRIPT before EVAL and BUSYGROUP, which are normal protocol; handshake commands that a server
//! refuses. redis-py, Lettuce, Jedis and go-redis send `CLIENT SETINFO` on each new connection (known from 7.2 on),
//! newer ones `CLIENT MAINT_NOTIFICATIONS`: up to three refusals per new connection do no harm and are not counted as
//! failures.
//!
//! How to confirm: run `INFO errorstats` twice; `INFO commandstats` names the commands (`rejected_calls`: refused
//! before they ran, `failed_calls`: ran and failed); `ACL LOG` for NOPERM, NOAUTH and WRONGPASS.
//!
//! What to do: by kind of error, see the remedies.
//! Sources: INFO errorstats and commandstats (6.2+).

use super::prelude::*;

pub const TITLE: &str = "Error flood";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// The server refuses these to everyone who asks for the like.
const GRAVE: &[&str] = &["OOM", "MISCONF", "READONLY", "LOADING", "CLUSTERDOWN", "NOREPLICAS", "MASTERDOWN"];
/// A share of failed commands, and how many there must be of them.
const SHARE: f64 = 0.01;
const LEAST: u64 = 20;
/// Reported by `acl_denials` where there are many.
const DENIAL: &str = "NOPERM";
/// Kinds of errors that get a remedy of their own.
const KINDS: usize = 3;

/// How the commands of one server ended.
pub(super) struct Failing<'a> {
    node: &'a Node,
    pub outcomes: Outcomes,
    /// By code word, the most frequent first.
    kinds: Vec<(String, u64)>,
    pub total: u64,
    pub share: f64,
    /// The server itself refuses work, at least once a second.
    pub grave: bool,
}

impl Failing<'_> {
    /// `None` where errors are not counted, or the counters were reset in the window.
    pub fn of(node: &Node) -> Option<Failing<'_>> {
        let outcomes = Outcomes::of(node)?;
        let kinds = outcomes.failures();
        let total = kinds.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        let grave = kinds.iter().any(|(k, n)| is_grave(k) && *n as f64 / node.window_s.max(1.0) >= 1.0);
        let share = outcomes.share(total as f64);
        Some(Failing { node, outcomes, kinds, total, share, grave })
    }

    /// Without denied commands, where `acl_denials` reports them.
    fn but_denials(mut self) -> Self {
        if super::acl_denials::reported(self.node).is_none() {
            return self;
        }
        self.kinds.retain(|(kind, _)| kind != DENIAL);
        self.total = self.kinds.iter().fold(0u64, |sum, (_, n)| sum.saturating_add(*n));
        self.share = self.outcomes.share(self.total as f64);
        self
    }

    fn is_flood(&self) -> bool {
        self.grave || (self.total > LEAST && self.share > SHARE)
    }

    fn greetings(&self) -> u64 {
        self.outcomes.greetings.values().fold(0, |sum, n| sum.saturating_add(*n))
    }

    /// Errors the server's version has no command for: neither refused nor executed, and no greeting.
    fn unknown(&self) -> u64 {
        self.outcomes.unknown.saturating_sub(self.outcomes.greetings.get("ERR").copied().unwrap_or(0))
    }
}

fn is_grave(kind: &str) -> bool {
    GRAVE.contains(&kind)
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Failing<'_>> = facts.live().filter_map(Failing::of).map(Failing::but_denials).collect();
    let floods = by_worst(all.iter().filter(|f| f.is_flood()).collect(), |f| f.share);
    let Some(worst) = floods.first() else { return absent(facts, &all) };
    let node = worst.node;
    let told: Vec<String> =
        worst.kinds.iter().take(2).map(|(kind, n)| format!("{} x {kind}", count(*n as f64))).collect();
    let rate = worst.total as f64 / node.window_s.max(0.001);
    let mut finding = Finding::new(format!(
        "{} of {}'s commands fail: {} in {:.0} s",
        percent(worst.share),
        node.address,
        told.join(", "),
        node.window_s
    ))
    .on(floods.iter().map(|f| f.node.address.as_str()))
    .availability(86400.0 * worst.share, format!("{} failed commands a second", count(rate)))
    .gain(
        format!("{} of the commands succeed again", percent(worst.share)),
        format!("{} failed / {:.0} asked for = {}", worst.total, worst.outcomes.asked, percent(worst.share)),
    )
    .proven("counted by the server in this window");
    if !worst.grave && worst.share <= 0.1 {
        // These cost the requests that are wrong, and no others.
        finding = finding.severity(if worst.share > 0.02 { Severity::High } else { Severity::Medium });
    }
    for (kind, n) in worst.kinds.iter().take(4) {
        finding = finding.saw(node, "INFO errorstats", format!("errorstat_{kind} +{n}"));
    }
    for (name, refused, failed) in worst_commands(node).into_iter().take(2) {
        finding = finding.saw(
            node,
            "INFO commandstats",
            format!("{name}: rejected_calls +{refused}, failed_calls +{failed}"),
        );
    }
    if worst.greetings() > 0 {
        finding = finding.not(format!(
            "client libraries' greetings: {} refused, and nothing was lost",
            count(worst.greetings() as f64)
        ));
    }
    let shown = |(kind, n): &&(String, u64)| is_grave(kind) || *n as f64 >= 0.1 * worst.total as f64;
    for (kind, _) in worst.kinds.iter().filter(shown).take(KINDS) {
        finding = remedy(finding, facts, worst, kind);
    }
    finding.into()
}

/// Nothing above the thresholds: what was counted, or why it could not be.
fn absent(facts: &Facts, all: &[Failing<'_>]) -> Verdict {
    if let Some(node) = facts.live().find(|n| n.level() < (6, 2)) {
        let why = format!("errors: {} does not count them by kind ({})", node.version_text(), node.address);
        return Verdict::unknown(Lack::Version, why, "upgrade to 6.2 or later, or count errors in the client");
    }
    let Some(worst) = all.iter().max_by(|a, b| a.share.total_cmp(&b.share)) else {
        return Verdict::Unknown(unseen_info(facts, "errors"));
    };
    if let Some(node) = facts.live().find(|n| Outcomes::of(n).is_none()) {
        return Verdict::unknown(
            Lack::Other,
            format!("errors: the counters of {} went backwards in the window", node.address),
            "run again",
        );
    }
    let greetings: f64 = all.iter().map(|f| f.greetings() as f64).sum();
    let besides = match greetings > 0.0 {
        true => format!("; {} greetings of client libraries refused, which does no harm", count(greetings)),
        false => String::new(),
    };
    let denied = facts.live().filter_map(super::acl_denials::reported).fold(0u64, u64::saturating_add);
    let besides = match denied {
        0 => besides,
        n => format!("{besides}; {} denied by ACL, see acl_denials", count(n as f64)),
    };
    let asked = count(worst.outcomes.asked);
    Verdict::Absent(format!(
        "errors: {} of {asked} commands failed ({} at most on one server){besides}",
        worst.total,
        percent(worst.share)
    ))
}

/// The commands that were refused or failed most often, as a person writes them, with both counts.
pub(super) fn worst_commands(node: &Node) -> Vec<(String, u64, u64)> {
    let (Some(first), Some(last)) = (&node.first, &node.last) else { return Vec::new() };
    let rows = last.info.command_stats_since(&first.info).filter_map(|(name, then, after)| {
        let refused = after.rejected.saturating_sub(then.rejected);
        let failed = after.failed.saturating_sub(then.failed);
        (refused > 0 || failed > 0).then(|| (name.to_uppercase().replace('|', " "), refused, failed))
    });
    by_worst(rows.collect(), |(_, refused, failed)| *refused as f64 + *failed as f64)
}

/// Says what to do about one kind of error, and how to confirm it, from what is true here.
fn remedy<'a>(finding: Finding, facts: &'a Facts, at: &Failing<'a>, kind: &str) -> Finding {
    let (node, here) = (at.node, |command: &str| cli(&at.node.address, command));
    match kind {
        "OOM" => memory_limit(finding, facts, node),
        "READONLY" => read_only(finding, facts, node),
        "MISCONF" => cannot_save(finding, node),
        "NOREPLICAS" => too_few_replicas(finding, node),
        "NOPERM" => super::acl_denials::mend(finding, node),
        "ERR" => unknown_or_wrong(finding, at),
        "CLUSTERDOWN" => ask(
            finding,
            "CLUSTERDOWN: some slots have no live owner; bring that master back, or promote its replica with CLUSTER \
             FAILOVER TAKEOVER",
            &[&here("CLUSTER INFO"), &here("CLUSTER NODES")],
        ),
        "MASTERDOWN" => ask(
            finding,
            "MASTERDOWN: this replica has lost its master and does not serve stale data; fix the link",
            &[&here("INFO replication   (master_link_status, master_link_down_since_seconds)")],
        ),
        "LOADING" => ask(
            finding,
            "LOADING: the server is loading its data set; let clients read elsewhere until it is done",
            &[&here("INFO persistence   (loading_eta_seconds)")],
        ),
        "NOAUTH" | "WRONGPASS" => ask(
            finding,
            &format!(
                "{kind}: clients connect without a password, or with an old one; the ACL log names their user and \
                 address"
            ),
            &[&here("ACL LOG 10")],
        ),
        "WRONGTYPE" => ask(
            finding,
            &format!(
                "WRONGTYPE: two programs use one key with different types{}; find the one that changed",
                mostly(node)
            ),
            &[&here("TYPE KEY   (a key that the client's log names)")],
        ),
        "BUSY" => busy_script(finding, node),
        _ => of_the_client(finding, node, kind),
    }
}

/// What the client's requests meet, or how they are made.
fn of_the_client(finding: Finding, node: &Node, kind: &str) -> Finding {
    let here = |command: &str| cli(&node.address, command);
    match kind {
        "UNKILLABLE" => ask(
            finding,
            "UNKILLABLE: the running script has already written and cannot be stopped; wait for it, or fail over to a \
             replica",
            &[&here("INFO replication   (is there a replica in step?)")],
        ),
        "NOTBUSY" => ask(
            finding,
            "NOTBUSY: something sends SCRIPT KILL or FUNCTION KILL while no script is running: a watchdog that fires \
             too early",
            &[&here("CLIENT LIST   (cmd=script|kill or cmd=function|kill)")],
        ),
        "EXECABORT" => ask(
            finding,
            &format!(
                "EXECABORT: a command was refused while queued, and its whole transaction was dropped{}; fix that \
                 command",
                mostly(node)
            ),
            &[&here("INFO commandstats   (rejected_calls)")],
        ),
        "CROSSSLOT" => ask(
            finding,
            &format!(
                "CROSSSLOT: keys of one command lie in different slots{}; give them the same hash tag, or split the \
                 command",
                mostly(node)
            ),
            &["user:{42}:name user:{42}:cart   (only what stands in braces is hashed)", &here("CLUSTER KEYSLOT KEY")],
        ),
        "TRYAGAIN" => ask(
            finding,
            "TRYAGAIN: multi-key commands hit a slot that is being moved; finish the move, and let the client retry",
            &[
                &here("CLUSTER NODES   (open slots stand in brackets)"),
                &format!("redis-cli --cluster check {}", node.address),
            ],
        ),
        "NOGROUP" => ask(
            finding,
            "NOGROUP: consumers read from a group that their stream does not have",
            &[&here("XGROUP CREATE STREAM GROUP $ MKSTREAM")],
        ),
        "NOGOODSLAVE" | "INPROG" => ask(
            finding,
            &format!(
                "{kind}: a failover was requested that cannot begin: no replica is fit for it, or one is already in \
                 progress"
            ),
            &[&here("INFO replication"), "SENTINEL REPLICAS NAME   (at a Sentinel: flags, priority, link)"],
        ),
        "NOPROTO" => ask(
            finding,
            "NOPROTO: clients request a protocol that this server does not speak; let them use RESP2",
            &["Lettuce: ClientOptions.builder().protocolVersion(ProtocolVersion.RESP2)", "redis-py: protocol=2"],
        ),
        _ => ask(
            finding,
            &format!("{kind}: the server refuses these commands{}; the client's log has the error text", mostly(node)),
            &[&here("INFO commandstats   (rejected_calls, failed_calls)")],
        ),
    }
}

/// A way out that changes nothing on the server, or that only a person can complete.
fn ask(finding: Finding, text: &str, commands: &[&str]) -> Finding {
    finding.fix(text, commands, "", "")
}

/// ` (mostly SET and INCR)`; nothing where the counters do not say.
pub(super) fn mostly(node: &Node) -> String {
    let names: Vec<String> = worst_commands(node).into_iter().take(2).map(|c| c.0).collect();
    if names.is_empty() { String::new() } else { format!(" (mostly {})", names.join(" and ")) }
}

fn memory_limit(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let used = node.number("used_memory").unwrap_or(0.0);
    let limit = node.number("maxmemory").filter(|m| *m > 0.0);
    let policy =
        node.setting("maxmemory-policy").or_else(|| node.info()?.get("maxmemory_policy")).unwrap_or("unknown policy");
    let known = limit.map_or(String::new(), |m| format!(" ({} of {} used, {policy})", bytes(used), bytes(m)));
    let spare = facts.process(node).and_then(|(host, _)| host.memory_available_bytes);
    let machine = spare.map_or(String::new(), |b| format!("; its machine has {} to spare", bytes(b as f64)));
    finding.fix(
        &format!(
            "OOM: the memory limit is reached and nothing may be evicted{known}{machine}: raise it, or let a \
                  cache evict"
        ),
        &[
            &cli(&node.address, "INFO memory"),
            &cli(&node.address, "CONFIG SET maxmemory BYTES"),
            &cli(&node.address, "CONFIG SET maxmemory-policy allkeys-lru   (only if every key can be computed again)"),
        ],
        "a limit above what the machine has leads to swapping or the OOM killer",
        &limit.map_or(String::new(), |m| cli(&node.address, &format!("CONFIG SET maxmemory {m:.0}"))),
    )
}

fn read_only(finding: Finding, facts: &Facts, node: &Node) -> Finding {
    let role = cli(&node.address, "ROLE");
    let master = node.master.as_deref().filter(|_| !node.is_master());
    match (facts.kind, master) {
        (DeploymentKind::Cluster, _) => ask(
            finding,
            "READONLY: clients write to a replica: their map of the cluster is out of date",
            &[&role, "use the client's cluster mode, with a refresh on MOVED"],
        ),
        (DeploymentKind::Sentinel, _) => ask(
            finding,
            "READONLY: clients write to a replica: they have a fixed address, or did not notice a failover",
            &[&role, "SENTINEL GET-MASTER-ADDR-BY-NAME NAME   (what clients should ask, at a Sentinel)"],
        ),
        (_, Some(master)) => {
            let text = format!("READONLY: clients write to a replica; its master is {master}");
            ask(finding, &text, &[&role, &cli(master, "ROLE")])
        }
        _ => ask(finding, "READONLY: clients wrote while this server was a replica", &[&role]),
    }
}

fn cannot_save(finding: Finding, node: &Node) -> Finding {
    let bad = |field: &str| node.info().and_then(|i| i.get(field)).is_some_and(|v| v != "ok");
    let (rdb, aof) = (bad("rdb_last_bgsave_status"), bad("aof_last_write_status"));
    let what = match (rdb, aof) {
        (_, true) => "writing the append-only file fails",
        (true, _) => "the last background save failed",
        _ => "saving failed",
    };
    let here = |command: &str| cli(&node.address, command);
    let finding = ask(
        finding,
        &format!(
            "MISCONF: {what}, and the server refuses writes until it works: make room on its disk, then save once"
        ),
        &[&here("INFO persistence"), &here("CONFIG GET dir   (then df -h there)"), &here("BGSAVE")],
    );
    if node.setting("stop-writes-on-bgsave-error") != Some("yes") || aof {
        return finding;
    }
    // Durability is given up by choice only: no exact line.
    finding.fix(
        "MISCONF, until then: accept writes without saving them",
        &[&here("CONFIG SET stop-writes-on-bgsave-error no")],
        "everything written since the last good save is lost if the server stops",
        &here("CONFIG SET stop-writes-on-bgsave-error yes"),
    )
}

fn too_few_replicas(finding: Finding, node: &Node) -> Finding {
    let need = node.setting_number("min-replicas-to-write").filter(|n| *n > 0.0);
    let good = node.number("min_slaves_good_slaves").or_else(|| node.number("connected_slaves")).unwrap_or(0.0);
    let numbers = need.map_or(String::new(), |n| format!(": {n:.0} are required, {good:.0} keep up"));
    let finding = ask(
        finding,
        &format!("NOREPLICAS: too few replicas, and the master refuses writes{numbers}; bring the missing one back"),
        &[&cli(&node.address, "INFO replication   (state, lag and offset of each replica)")],
    );
    let Some(need) = need.filter(|n| good < *n) else { return finding };
    let set = |n: f64| cli(&node.address, &format!("CONFIG SET min-replicas-to-write {n:.0}"));
    // Durability is given up by choice only: no exact line.
    finding.fix(
        "NOREPLICAS, until then: accept writes with the replicas that are left",
        &[&set(good)],
        "writes can be lost in a failover",
        &set(need),
    )
}

fn unknown_or_wrong(finding: Finding, at: &Failing<'_>) -> Finding {
    let node = at.node;
    let unknown = at.unknown();
    if (unknown as f64) * 2.0 < at.outcomes.count(&["ERR"]) as f64 {
        return ask(
            finding,
            &format!(
                "ERR: commands with wrong arguments or values{}; the client's log has the error text",
                mostly(node)
            ),
            &[&cli(
                &node.address,
                "INFO commandstats   (rejected_calls: wrong number of arguments; failed_calls: wrong values)",
            )],
        );
    }
    // Redis 8 has this one built in.
    let is_loaded = |all: Vec<&str>| all.iter().any(|name| *name != "vectorset");
    let modules = match node.info().is_some_and(|i| i.modules().is_none_or(is_loaded)) {
        true => "",
        false => "; no module is loaded, and JSON.*, FT.*, BF.* and TS.* each need one",
    };
    let (n, version) = (count(unknown as f64), node.version_text());
    ask(
        finding,
        &format!("ERR: {n} of them are commands that {version} does not have{modules}; the client's log names them"),
        &[&cli(&node.address, "COMMAND INFO THE-COMMAND   (empty: not there)"), &cli(&node.address, "MODULE LIST")],
    )
}

fn busy_script(finding: Finding, node: &Node) -> Finding {
    let mut kill = vec![cli(&node.address, "SCRIPT KILL")];
    if node.level() >= (7, 0) {
        kill.push(cli(&node.address, "FUNCTION KILL"));
    }
    let kill: Vec<&str> = kill.iter().map(String::as_str).collect();
    let text = "BUSY: a script has run past its time limit, and everything else is refused until it ends";
    finding.fix(text, &kill, "the script's work is lost; the kill is refused if it has written", "")
}
