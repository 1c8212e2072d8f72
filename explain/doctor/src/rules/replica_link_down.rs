//! A replica has lost its master: its answers get staler by the second, and after a while it can no longer take over.
//!
//! While the link is down, a replica serves the data it last had (replica-serve-stale-data yes, the default) or refuses
//! most commands with MASTERDOWN (no). In a cluster, a replica that has been cut off for longer than
//! cluster-node-timeout x (cluster-replica-validity-factor + 1) does not stand for election; Sentinel passes it over
//! after down-after-milliseconds x 10.
//!
//! Seen when: a replica reported master_link_status:down at both ends of the window, its master answers, and no copy is
//! in progress.
//!
//! Why it is down shows on its master: NOAUTH or NOPERM together with refused PSYNC or REPLCONF, or WRONGPASS together
//! with failed AUTH, points to the login; refused connections point to maxclients; NOMASTERLINK comes from a master
//! that is itself a replica and has lost its own master. A replica tries again once a second: if its master accepts no
//! new connections at all, the attempts do not get there.
//!
//! Not to be taken for: a master that is down (`node_unreachable`, `node_hangs`), one copy after another
//! (`full_resync_loop`), a new replica whose first copy is in progress, a replica that is loading its own data set, or
//! one that is linked but behind (`replica_lag`).
//!
//! How to confirm: `INFO replication` on the replica, twice: master_link_status, master_link_down_since_seconds; the
//! replica's log shows how each attempt ended. On the master: `INFO errorstats`, `INFO replication`.
//!
//! What to do: while it lasts, send reads elsewhere or let the replica answer from stale data; then, depending on the
//! cause, fix masteruser and masterauth on the replica, maxclients on the master, or the path between the two.
//! Sources: INFO replication; replicationCron() and syncWithMaster() of the servers; redis.conf
//! (replica-serve-stale-data, replica-validity-factor).

use super::peers;
use super::prelude::*;
use super::replica_link::{self, Down, Why};

pub const TITLE: &str = "Replica link down";
pub const LEADS_TO: &[&str] =
    &["no_failover_possible", "min_replicas_refusing", "master_without_replica", "error_flood"];
pub const INJECTED: Injected = Injected::Yes;

/// A refusal that only comes of a link that is down.
const REFUSAL: &str = "MASTERDOWN";

pub fn check(facts: &Facts) -> Verdict {
    let replicas: Vec<&Node> = facts.live().filter(|n| replica_link::shows_link(n)).collect();
    if replicas.is_empty() {
        return match facts.live().any(|n| n.info().and_then(|i| i.role()).is_some()) {
            true => Verdict::NotHere,
            false => Verdict::Unknown(unseen_info(facts, "replicas' links")),
        };
    }
    let all: Vec<Down> = replicas.iter().filter_map(|n| replica_link::down(facts, n)).collect();
    let rows: Vec<&Down> = all.iter().filter(|d| is_ours(&d.why)).collect();
    let rows = by_worst(rows, |d| d.for_s.unwrap_or(f64::MAX));
    if let Some(worst) = rows.first() {
        return found(facts, worst, &rows).into();
    }
    let up = replicas.len() - all.len();
    let rest = all.first().map_or(String::new(), |d| format!("; {}: {}", d.replica.address, elsewhere(&d.why)));
    Verdict::Absent(format!(
        "replicas' links: {up} of {} up at the start or the end of the window{rest}",
        replicas.len()
    ))
}

/// Whether the reason is told here and by no other rule.
fn is_ours(why: &Why) -> bool {
    !matches!(why, Why::ReplicaLoads | Why::MasterAway | Why::Copying | Why::Loops)
}

/// Why a link that is down is no finding here.
fn elsewhere(why: &Why) -> &'static str {
    match why {
        Why::ReplicaLoads => "it is loading its own data set",
        Why::MasterAway => "its master does not answer here either",
        Why::Copying => "its copy is in progress",
        Why::Loops => "one copy after another (full_resync_loop)",
        _ => "its link is down",
    }
}

fn found(facts: &Facts, down: &Down, rows: &[&Down]) -> Finding {
    let replica = down.replica;
    let since =
        down.for_s.map_or("and has not been up since it started".to_string(), |s| format!("for {}", time_us(s * 1e6)));
    let more = match rows.len() {
        1 => String::new(),
        n => format!("; {} more replicas have lost theirs", n - 1),
    };
    let mut finding = Finding::new(format!(
        "The link of replica {} to its master {} is down {since}: {}{more}",
        replica.address,
        down.master,
        because(&down.why)
    ))
    .on(rows.iter().map(|d| d.replica.address.as_str()))
    .on(rows.iter().filter(|d| !fails_otherwise(d)).map(|d| d.of.map_or(d.master.as_str(), |m| m.address.as_str())));
    finding = sure(cost(finding, facts, down), &down.why);
    if let Some(s) = down.for_s {
        finding = finding.since(replica.at_ms().saturating_sub((s * 1000.0) as u64));
    }
    finding = evidence(finding, down);
    mend(serve(finding, facts, replica), down)
}

/// Whether its master has a flood of errors that do not come of this link: they are a finding of their own
/// (`error_flood`), which must not be told as a consequence.
fn fails_otherwise(down: &Down) -> bool {
    let Some((master, outcomes)) = down.of.and_then(|m| Some((m, Outcomes::of(m)?))) else { return false };
    let refused = match &down.why {
        Why::Login { word, .. } => *word,
        _ => "",
    };
    let others = outcomes.failures().into_iter().filter(|(kind, _)| kind != refused && kind != "NOREPLICAS");
    others.map(|(_, n)| n as f64).sum::<f64>() >= master.window_s.max(1.0)
}

/// Whether an application asks it for anything: Sentinels' greetings are commands too.
fn has_clients(facts: &Facts, replica: &Node) -> bool {
    replica.application_ops().is_some_and(|ops| ops - sentinel_greetings(facts, replica) >= USED_OPS)
}

fn because(why: &Why) -> String {
    match why {
        Why::Login { word: "NOPERM", .. } => "the master denies its user what replication needs (NOPERM)".into(),
        Why::Login { word, .. } => format!("the master refuses its login ({word})"),
        Why::Full { refused } => format!("the master is at maxclients and refused {} connections", count(*refused)),
        Why::MasterLoads => "the master is loading its data set".into(),
        Why::MasterUnlinked => "that server is itself a replica and has lost its own master".into(),
        Why::NeverArrives => "the master answers here, but no connection from the replica reaches it".into(),
        Why::CopyStands { silent_s } => {
            format!("a copy has begun, but nothing has come for {}", time_us(silent_s * 1e6))
        }
        Why::MasterUnasked => "that server was not found with the others, and was not asked".into(),
        _ => "why its attempts fail was not seen from here".into(),
    }
}

/// What its readers get, and what is lost with the master meanwhile.
fn cost(finding: Finding, facts: &Facts, down: &Down) -> Finding {
    let replica = down.replica;
    let refused = Outcomes::of(replica).map_or(0, |o| o.count(&[REFUSAL]));
    let asked: f64 = facts.live().filter_map(Outcomes::of).map(|o| o.asked).sum();
    let others = facts
        .live()
        .filter(|n| n.address != replica.address && replica_link::shows_link(n))
        .filter(|n| peers::master_by_info(n).as_deref() == Some(&down.master))
        .filter(|n| n.info().and_then(|i| i.get("master_link_status")) == Some("up"))
        .count();
    let spare = match others {
        0 => "its master has no other copy that is up to date".to_string(),
        1 => "1 other replica is up to date".into(),
        n => format!("{n} other replicas are up to date"),
    };
    if refused > 0 {
        let share = refused as f64 / asked.max(refused as f64);
        return finding
            .availability(
                86400.0 * share,
                format!("{} of all commands fail with {REFUSAL} on the replica; {spare}", percent(share)),
            )
            .gain(
                "reads from the replica are answered again",
                format!("{refused} refused / {:.0} commands sent = {}", asked.max(refused as f64), percent(share)),
            );
    }
    let age = down.for_s.map_or("writes since it last had a copy".to_string(), |s| time_us(s * 1e6));
    if has_clients(facts, replica) {
        return finding
            .risk(format!("its clients read data that is missing the last {age}; {spare}"))
            .severity(Severity::High);
    }
    let severity = if others == 0 { Severity::High } else { Severity::Medium };
    finding.risk(format!("if the master dies now, the replica is missing the last {age}; {spare}")).severity(severity)
}

fn sure(finding: Finding, why: &Why) -> Finding {
    let seen = "the replica itself reported the link as down at both ends of the window";
    match why {
        Why::Login { certain: true, .. } => {
            finding.proven(format!("{seen}, and the master counted refused replication commands"))
        }
        Why::MasterUnlinked | Why::MasterLoads => {
            finding.proven(format!("{seen}, and the master's own state confirms the cause"))
        }
        Why::CopyStands { .. } => finding.proven(format!("{seen}, and the time since the copy last moved")),
        Why::Login { .. } | Why::Full { .. } => finding.likely(format!(
            "{seen}, and the master counted refusals; that they were the replica's is inferred from their rate"
        )),
        Why::NeverArrives => finding.likely(format!(
            "{seen}; a replica tries again once a second, and the master counted fewer new connections than that"
        )),
        _ => finding.likely(format!("{seen}; why the attempts fail is in the replica's log")),
    }
}

fn evidence(finding: Finding, down: &Down) -> Finding {
    let replica = down.replica;
    let field = |name: &str| replica.info().and_then(|i| i.get(name)).unwrap_or("not said").to_string();
    let mut finding = finding.saw(
        replica,
        "INFO replication",
        format!(
            "master_link_status:down at both ends of the window, master_link_down_since_seconds:{}, \
             master_sync_in_progress:{}",
            field("master_link_down_since_seconds"),
            field("master_sync_in_progress")
        ),
    );
    let Some(master) = down.of.filter(|m| m.last.is_some()) else { return finding };
    let listed = master.info().map_or(0, |i| i.replicas().len());
    let connections = master.delta("total_connections_received").map_or("not said".to_string(), |n| format!("+{n:.0}"));
    finding = finding.saw(master, "INFO replication", format!("connected_slaves:{listed}")).saw(
        master,
        "INFO stats",
        format!("total_connections_received {connections} in {:.0} s", master.window_s),
    );
    match &down.why {
        Why::Login { word, times, .. } => finding.saw(master, "INFO errorstats", format!("errorstat_{word} +{times}")),
        Why::Full { refused } => finding.saw(master, "INFO stats", format!("rejected_connections +{refused:.0}")),
        _ => finding.not(format!("a master that is down: {} answers here", master.address)),
    }
}

/// What its readers get meanwhile is a setting; which of the two is better only they know.
fn serve(finding: Finding, facts: &Facts, replica: &Node) -> Finding {
    let set = |to: &str| cli(&replica.address, &format!("CONFIG SET replica-serve-stale-data {to}"));
    match replica.setting("replica-serve-stale-data") {
        Some("no") => finding.fix(
            "Until the link is fixed, let it answer from the data it last had",
            &[&set("yes")],
            "reads are stale since the link broke",
            &set("no"),
        ),
        Some("yes") if has_clients(facts, replica) => finding.fix(
            "Until the link is fixed, send its reads to the master, or refuse them instead of answering from stale \
             data",
            &[&set("no")],
            "its clients get MASTERDOWN instead of stale data",
            &set("yes"),
        ),
        _ => finding,
    }
}

fn mend(finding: Finding, down: &Down) -> Finding {
    let (replica, master) = (down.replica.address.as_str(), down.master.as_str());
    let host = peers::host_of(replica);
    let ping = format!("{}   (on {host}: PONG or NOAUTH is expected)", cli(master, "PING"));
    let log = format!("{}   (then its last lines: each attempt says how it ended)", cli(replica, "CONFIG GET logfile"));
    match &down.why {
        Why::Login { word: "NOPERM", .. } => finding.fix(
            "On the master, give the replica's user the rights that replication needs",
            &[
                &cli(replica, "CONFIG GET masteruser"),
                &cli(master, "ACL SETUSER MASTERUSER +psync +replconf +ping"),
                &cli(master, "ACL SAVE   (or CONFIG REWRITE, where users are in the configuration file)"),
            ],
            "that user can copy the whole data set",
            &cli(master, "ACL SETUSER MASTERUSER -psync -replconf"),
        ),
        Why::Login { .. } => finding.fix(
            "Give the replica the login that its master accepts now, and make it survive a restart",
            &[
                &cli(replica, "CONFIG GET masteruser"),
                &cli(replica, "CONFIG SET masterauth PASSWORD   (or '' where the master has none)"),
                &cli(replica, "CONFIG REWRITE"),
            ],
            "the next attempt may be a full copy: the master forks once",
            "",
        ),
        Why::Full { .. } => finding.fix(
            "Make room on the master: see which clients hold its connections, and raise the limit (unslow explain \
             too_many_connections)",
            &[&cli(master, "CLIENT LIST"), &cli(master, "CONFIG SET maxclients N")],
            "each connection takes some 20 kB and a file descriptor",
            &cli(master, "CONFIG SET maxclients   (with the old value)"),
        ),
        Why::MasterLoads => finding.fix(
            "Wait until the master has loaded: see loading_eta_seconds",
            &[&cli(master, "INFO persistence")],
            "a restart starts the loading over",
            "",
        ),
        Why::MasterUnlinked => finding.fix(
            "Fix the link of the server above it first; this one then recovers on its own",
            &[&cli(master, "INFO replication   (master_host, master_link_down_since_seconds)")],
            "",
            "",
        ),
        Why::NeverArrives | Why::MasterUnasked | Why::CopyStands { .. } => finding.fix(
            "On the replica's machine, see whether the master's address and port can be reached: look for a firewall, \
             a renamed host, TLS on one side only (tls-replication)",
            &[&ping, &cli(replica, "INFO replication   (master_host, master_port)"), &log],
            "",
            "",
        ),
        _ => finding.fix("See how each attempt ends", &[&log, &cli(master, "CONFIG GET logfile"), &ping], "", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{answer, node_at, replicated, said};

    const MASTER: &str = "10.0.0.1:6379";
    const DOWN: &str = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\nmaster_link_status:down\n\
                        master_link_down_since_seconds:40\nmaster_sync_in_progress:0\nloading:0\nredis_version:7.2.4\n";

    fn pair(master_after: &str, replica: &str, replica_after: &str) -> Facts {
        let before = "role:master\nredis_version:7.2.4\nconnected_slaves:0\ntotal_connections_received:10\n\
                      rejected_connections:0\n\
                      loading:0\nsync_full:1\n";
        let mut copy = node_at("10.0.0.2:6379", replica, replica_after);
        copy.master = Some(MASTER.into());
        replicated(vec![node_at(MASTER, before, master_after), copy])
    }

    #[test]
    fn a_link_that_is_up_at_one_end_or_never_was_a_link_is_none() {
        let up = DOWN.replace("status:down", "status:up");
        assert!(matches!(check(&pair("", &up, "")), Verdict::Absent(_)));
        assert!(matches!(check(&pair("", DOWN, "master_link_status:up\n")), Verdict::Absent(_)), "it has come back");
        assert!(matches!(check(&pair("", &up, "master_link_status:down\n")), Verdict::Absent(_)), "it broke just now");
        let alone = replicated(vec![node_at(MASTER, "role:master\n", "")]);
        assert!(matches!(check(&alone), Verdict::NotHere));
        let mute = replicated(vec![node_at(MASTER, "", ""), node_at("10.0.0.2:6379", "", "")]);
        assert!(matches!(check(&mute), Verdict::Unknown(_)));
    }

    #[test]
    fn what_keeps_it_down_is_read_from_its_master() {
        for (what, after, title) in [
            ("nothing arrives", "", "no connection from the replica reaches it"),
            ("something arrives", "total_connections_received:20\n", "not seen from here"),
            ("at maxclients", "rejected_connections:9\n", "at maxclients"),
            (
                "no password",
                "total_connections_received:20\nerrorstat_NOAUTH:count=40\n\
                 cmdstat_psync:calls=0,usec=0,usec_per_call=0,rejected_calls=10,failed_calls=0\n",
                "refuses its login (NOAUTH)",
            ),
            (
                "an old password",
                "total_connections_received:20\nerrorstat_WRONGPASS:count=10\n\
                 cmdstat_auth:calls=10,usec=9,usec_per_call=1,rejected_calls=0,failed_calls=10\n",
                "refuses its login (WRONGPASS)",
            ),
            (
                "rights of replication withdrawn, and a copy that is said to be in progress",
                "total_connections_received:20\nerrorstat_NOPERM:count=20\n\
                 cmdstat_psync:calls=0,usec=0,usec_per_call=0,rejected_calls=10,failed_calls=0\n",
                "denies its user what replication needs (NOPERM)",
            ),
            (
                "another client's login",
                "total_connections_received:20\nerrorstat_NOAUTH:count=40\n",
                "not seen from here",
            ),
        ] {
            // While it is turned down a replica says that a copy is in progress, of which nothing comes.
            let trying = "master_sync_in_progress:1\nmaster_sync_total_bytes:-1\nmaster_sync_read_bytes:0\n";
            let replica = if what.contains("in progress") { trying } else { "" };
            let found = said(check(&pair(after, DOWN, replica)));
            assert!(found.title.contains(title), "{what}: {}", found.title);
            assert_eq!(found.severity, Severity::High, "{what}: no other copy is in step");
            assert!(found.since.is_some() && !found.remedies.is_empty(), "{what}");
        }
    }

    #[test]
    fn one_that_waits_for_its_copy_to_begin_is_no_finding() {
        let listed = "connected_slaves:1\nslave0:ip=10.0.0.2,port=6379,state=wait_bgsave,offset=0,lag=0\n";
        assert_eq!(answer(&check(&pair(listed, DOWN, ""))), "absent");
        let another = listed.replace("10.0.0.2", "10.0.0.3");
        assert_eq!(answer(&check(&pair(&another, DOWN, ""))), "present");
    }

    #[test]
    fn errors_of_its_masters_clients_are_another_finding() {
        let own = said(check(&pair("total_connections_received:20\n", DOWN, "")));
        assert_eq!(own.subjects, ["10.0.0.2:6379", MASTER]);
        let flood = "total_connections_received:20\ntotal_commands_processed:900\nerrorstat_WRONGTYPE:count=100\n\
                     cmdstat_lpush:calls=100,usec=9,usec_per_call=1,rejected_calls=0,failed_calls=100\n";
        let mut facts = pair(flood, DOWN, "");
        facts.nodes[0].first.as_mut().unwrap().info.0.insert("total_commands_processed".into(), "0".into());
        assert_eq!(said(check(&facts)).subjects, ["10.0.0.2:6379"]);
    }

    #[test]
    fn a_copy_on_its_way_a_loop_and_a_dead_master_are_told_elsewhere() {
        let copying = DOWN.replace("in_progress:0", "in_progress:1") + "master_sync_last_io_seconds_ago:0\n";
        assert_eq!(answer(&check(&pair("", &copying, ""))), "absent");
        let stands = copying.replace("ago:0", "ago:30");
        assert!(said(check(&pair("", &stands, ""))).title.contains("nothing has come for 30 s"));
        let looping = "sync_full:4\nsync_partial_err:3\n";
        assert_eq!(answer(&check(&pair(looping, DOWN, ""))), "absent");
        assert_eq!(answer(&check(&pair("", DOWN, "loading:1\n"))), "absent");
        let mut dead = pair("", DOWN, "");
        let gone =
            Node { unreachable: Some("connection refused".into()), ..Node::new(MASTER, unslow_topology::Role::Master) };
        dead.nodes[0] = gone;
        assert_eq!(answer(&check(&dead)), "absent");
    }

    #[test]
    fn readers_that_are_refused_are_what_it_costs() {
        let served = "total_commands_processed:1000\nerrorstat_MASTERDOWN:count=500\n\
                      cmdstat_get:calls=0,usec=0,usec_per_call=0,rejected_calls=500,failed_calls=0\n";
        let before = DOWN.to_string() + "total_commands_processed:0\n";
        let found = said(check(&pair("", &before, served)));
        assert_eq!(found.impact.currency, crate::Currency::Availability);
        assert!((found.impact.value / 86400.0 - 500.0 / 1500.0).abs() < 0.01, "{}", found.impact.text);
    }
}
