//! Clients send commands that their user's ACL does not allow, and the server refuses them: NOPERM.
//!
//! The cause is a permission that was revoked, a key prefix that a release changed, or a user who lacks the one command
//! that a new version of a library sends. The request fails immediately, costs the server next to nothing, and shows in
//! no latency graph. Clients that retry fail each time.
//!
//! Seen when: more than 20 commands in the window, and over 1 % of those that clients sent, end in NOPERM. Denied
//! commands of unslow itself and the handshake commands of client libraries, whose refusal does no harm, are not
//! counted.
//!
//! What it weighs: a denial costs only the request that was denied: with up to 10 % of the commands denied, the finding
//! is never critical.
//!
//! Not to be taken for: a replica whose user may not copy (`replica_link_down`): its PSYNC and REPLCONF are not counted
//! here; failed logins (WRONGPASS, NOAUTH): those clients have no permissions because they have no user.
//! `error_flood` reports them, and here they are only mentioned. It reports all other errors too; `error_flood` leaves
//! out what is reported here.
//!
//! How to confirm: run `INFO errorstats` twice: errorstat_NOPERM; `INFO stats` (7.2+): acl_access_denied_cmd, _key,
//! _channel; `ACL LOG 10` names the user, the address, and the command, key or channel.
//!
//! What to do: grant the user what its client needs, or limit the client to what its user may do; then run `ACL SAVE`
//! or change the configuration file, or the change is lost at the next restart.
//! Sources: INFO errorstats, commandstats and stats (6.2+); ACL LOG; Redis documentation of ACLs.

use super::callers;
use super::error_flood::{mostly, worst_commands};
use super::prelude::*;

pub const TITLE: &str = "ACL denials";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// A share of denied commands, and how many there must be of them.
const SHARE: f64 = 0.01;
const LEAST: u64 = 20;

/// What a replica sends its master.
const REPLICATION: [&str; 3] = ["PSYNC", "SYNC", "REPLCONF"];

/// What one server denies.
struct Denials<'a> {
    node: &'a Node,
    denied: u64,
    asked: f64,
    share: f64,
    /// Logins that failed in the window.
    logins: u64,
}

impl Denials<'_> {
    /// `None` where errors are not counted, or the counters were reset in the window.
    fn of(node: &Node) -> Option<Denials<'_>> {
        let outcomes = Outcomes::of(node)?;
        let greetings = outcomes.greetings.get("NOPERM").copied().unwrap_or(0);
        // What a replica's user lacks is told by its link (`replica_link_down`): some try thousands of times a second.
        let of_replicas = worst_commands(node).into_iter().filter(|c| REPLICATION.contains(&c.0.as_str()));
        // Only where they are denied for nothing else.
        let is_denied = outcomes.count(&["NOAUTH", "LOADING", "MISCONF", "MASTERDOWN"]) == 0;
        let of_replicas: u64 = of_replicas.filter(|_| is_denied).map(|c| c.1).fold(0, u64::saturating_add);
        let denied = outcomes.count(&["NOPERM"]).saturating_sub(greetings).saturating_sub(of_replicas);
        let counted = node.delta("acl_access_denied_auth").unwrap_or(0.0) as u64;
        Some(Denials {
            node,
            denied,
            asked: outcomes.asked,
            share: outcomes.share(denied as f64),
            logins: outcomes.count(&["WRONGPASS"]).max(counted),
        })
    }

    fn is_flood(&self) -> bool {
        self.denied > LEAST && self.share > SHARE
    }
}

/// How many denied commands of this server this rule reports, if it does.
pub(super) fn reported(node: &Node) -> Option<u64> {
    Denials::of(node).filter(Denials::is_flood).map(|d| d.denied)
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Denials<'_>> = facts.live().filter_map(Denials::of).collect();
    let floods = by_worst(all.iter().filter(|d| d.is_flood()).collect(), |d| d.share);
    if let Some(worst) = floods.first() {
        return found(worst).on(floods.iter().map(|d| d.node.address.as_str())).into();
    }
    let known = |n: &Node| n.level() > (0, 0);
    if facts.live().next().is_some() && facts.live().all(|n| known(n) && n.level() < (6, 0)) {
        return Verdict::NotHere;
    }
    if let Some(node) = facts.live().find(|n| known(n) && n.level() < (6, 2)) {
        let why = format!("denied commands: {} does not count them ({})", node.version_text(), node.address);
        return Verdict::unknown(Lack::Version, why, "upgrade to 6.2 or later, or look at ACL LOG by hand");
    }
    if let Some(node) = facts.live().find(|n| known(n) && Outcomes::of(n).is_none()) {
        let why = format!("denied commands: the counters of {} went backwards in the window", node.address);
        return Verdict::unknown(Lack::Other, why, "run again");
    }
    let text = by_worst(all.iter().collect(), |d| d.share).first().map(|d| {
        let logins: u64 = all.iter().map(|d| d.logins).fold(0, u64::saturating_add);
        let logins = if logins > 0 { format!("; {} logins failed", count(logins as f64)) } else { String::new() };
        format!(
            "denied commands: {} of {} ({} at most on one server){logins}",
            d.denied,
            count(d.asked),
            percent(d.share)
        )
    });
    Verdict::absent(facts, "denied commands", text)
}

fn found(d: &Denials<'_>) -> Finding {
    let (node, share) = (d.node, d.share);
    let rate = d.denied as f64 / node.window_s.max(0.001);
    let mut finding = Finding::new(format!(
        "{} of {}'s commands are denied by ACL{}: {} x NOPERM in {:.0} s",
        percent(share),
        node.address,
        mostly(node),
        count(d.denied as f64),
        node.window_s
    ))
    .availability(86400.0 * share, format!("{} denied commands a second", count(rate)))
    .gain(
        format!("{} of the commands succeed again", percent(share)),
        format!("{} denied / {:.0} asked for = {}", d.denied, d.asked, percent(share)),
    )
    .proven("counted by the server in this window");
    if share <= 0.1 {
        // They cost the requests that are denied, and no others.
        finding = finding.severity(if share > 0.02 { Severity::High } else { Severity::Medium });
    }
    finding = finding.saw(node, "INFO errorstats", format!("errorstat_NOPERM +{}", d.denied));
    let refused: Vec<(String, u64)> =
        worst_commands(node)
        .into_iter()
        .filter(|c| c.1 > 0 && !REPLICATION.contains(&c.0.as_str()))
        .map(|c| (c.0, c.1))
        .take(3)
        .collect();
    for (name, n) in &refused {
        finding = finding.saw(node, "INFO commandstats", format!("{name}: rejected_calls +{n}"));
    }
    for (kind, n) in kinds(node) {
        finding = finding.saw(node, "INFO stats", format!("acl_access_denied_{kind} +{n}"));
    }
    let asked: Vec<String> = refused.iter().map(|(name, _)| name.to_lowercase().replace(' ', "|")).collect();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    finding = callers::shown(finding, node, &asked);
    finding = match d.logins {
        0 => finding.not("failed logins: none in the window"),
        n => finding.saw(
            node,
            "INFO errorstats",
            format!(
                "{n} logins failed as well: clients with an old password, \
            which no right mends"
            ),
        ),
    };
    mend(finding, node)
}

/// What was denied, by kind (7.2+), the most frequent first: a command, a key, a channel. Ours are taken off the
/// commands.
fn kinds(node: &Node) -> Vec<(&'static str, u64)> {
    let own = node.own.errors.get("NOPERM").copied().unwrap_or(0);
    let all = ["cmd", "key", "channel"].map(|kind| {
        let n = node.delta(&format!("acl_access_denied_{kind}")).unwrap_or(0.0) as u64;
        (kind, if kind == "cmd" { n.saturating_sub(own) } else { n })
    });
    by_worst(all.into_iter().filter(|(_, n)| *n > 0).collect(), |(_, n)| *n as f64)
}

/// What to do about NOPERM.
pub(super) fn mend(finding: Finding, node: &Node) -> Finding {
    let here = |command: &str| cli(&node.address, command);
    let finding = finding.fix(
        &format!(
            "NOPERM: a user's ACL denies what its client asks for{}; the ACL log names the user, the address, and the \
             command or key",
            mostly(node)
        ),
        &[&here("ACL LOG 10"), &here("ACL GETUSER USER")],
        "",
        "",
    );
    let refused = worst_commands(node).into_iter().find(|c| c.1 > 0);
    let command = refused.map_or("COMMAND".to_string(), |c| c.0.to_lowercase().replace(' ', "|"));
    // A shell would take the bar of a sub-command for a pipe.
    let right = |sign: char| match command.contains('|') {
        true => format!("'{sign}{command}'"),
        false => format!("{sign}{command}"),
    };
    let back = here(&format!("ACL SETUSER USER {}", right('-')));
    // 7.2 and later count which of these it was; before, only the log has it.
    let (grant, back) = match kinds(node).first() {
        Some(("key", _)) => ("~PATTERN".to_string(), String::new()),
        Some(("channel", _)) => ("'&PATTERN'".to_string(), String::new()),
        Some(_) => (right('+'), back),
        None => (format!("{}   (or ~PATTERN for a denied key)", right('+')), back),
    };
    finding.fix(
        "NOPERM, if the client is right: grant its user what it needs, and save that in the configuration (ACL SAVE \
         with an aclfile)",
        &[&here(&format!("ACL SETUSER USER {grant}"))],
        "the user is allowed to do more than before",
        &back,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use unslow_facts::Sample;
    use unslow_topology::{Info, Role};

    /// A server of this version after ten seconds: 10,000 commands less those denied, and more.
    fn facts(version: &str, denied: u64, more: &str) -> Facts {
        let first = Info::parse(&format!("redis_version:{version}\r\nrole:master\r\ntotal_commands_processed:0\r\n"));
        let mut last = first.clone();
        let done = 10_000 - denied;
        let after = format!(
            "total_commands_processed:{done}\r\n\
             cmdstat_get:calls={done},usec={done},usec_per_call=1,rejected_calls=0,failed_calls=0\r\n\
             cmdstat_set:calls=0,usec=0,usec_per_call=0,rejected_calls={denied},failed_calls=0\r\n\
             errorstat_NOPERM:count={denied}\r\n"
        );
        last.0.extend(Info::parse(&(after + more)).0);
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        node.first = Some(Sample { at_ms: 0, info: first });
        node.last = Some(Sample { at_ms: 10_000, info: last });
        node.window_s = 10.0;
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    fn found(facts: &Facts) -> Finding {
        match check(facts) {
            Verdict::Present(found) => *found,
            other => panic!("not found: {other:?}"),
        }
    }

    #[test]
    fn denied_commands_are_named_with_the_right_they_lack() {
        let found = found(&facts("7.0.15", 6000, ""));
        assert!(found.title.starts_with("60 %") && found.title.contains("(mostly SET)"), "{}", found.title);
        assert_eq!(found.severity, Severity::Critical);
        let all: Vec<&String> = found.remedies.iter().flat_map(|r| &r.commands).collect();
        assert!(all.iter().any(|c| c.contains("ACL SETUSER USER +set")), "{all:?}");
    }

    #[test]
    fn what_was_denied_is_counted_by_kind_where_it_is() {
        let kinds = "acl_access_denied_cmd:0\r\nacl_access_denied_key:500\r\nacl_access_denied_channel:0\r\n\
                     acl_access_denied_auth:30\r\n";
        let mut facts = facts("7.2.4", 500, kinds);
        let zeros = kinds.replace("500", "0").replace("30", "0");
        facts.nodes[0].first.as_mut().unwrap().info.0.extend(Info::parse(&zeros).0);
        let found = found(&facts);
        assert_eq!(found.severity, Severity::High);
        let all: Vec<&String> = found.remedies.iter().flat_map(|r| &r.commands).collect();
        assert!(all.iter().any(|c| c.ends_with("ACL SETUSER USER ~PATTERN")), "{all:?}");
        assert!(found.evidence.iter().any(|e| e.value.starts_with("30 logins failed")), "{:?}", found.evidence);
    }

    #[test]
    fn a_few_ours_and_other_errors_are_no_denials() {
        assert!(matches!(check(&facts("7.0.15", 90, "")), Verdict::Absent(_)));
        let other = facts("7.0.15", 0, "errorstat_WRONGPASS:count=900\r\n");
        assert!(matches!(check(&other), Verdict::Absent(text) if text.contains("900 logins failed")));
        let mut ours = facts("7.0.15", 500, "");
        ours.nodes[0].own.errors.insert("NOPERM".into(), 500);
        assert!(matches!(check(&ours), Verdict::Absent(_)));
    }

    #[test]
    fn old_versions_count_none_or_have_no_users() {
        assert!(matches!(check(&facts("6.0.16", 5000, "")), Verdict::Unknown(_)));
        assert!(matches!(check(&facts("5.0.14", 0, "")), Verdict::NotHere));
    }
}
