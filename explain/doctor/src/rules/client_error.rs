//! What kind of failure a client's error message reports, and which measurements on the servers explain it.
//!
//! A message says what failed, but seldom why: the same `Read timed out` follows a fork, a long script, a lost packet
//! or a client without CPU time. So the message is compared with everything that was measured, and the causes that lead
//! to such a failure are named.
//!
//! Seen when: a message was handed in (`--client-error`) from which no other rule reads a cause. The finding costs
//! nothing itself: it is the complaint, and the causes are separate findings.
//!
//! Not to be taken for: a measurement. A message may be from another time; a window that was opened later may show
//! nothing of it.
//!
//! How to confirm: run the doctor while the errors occur, and on the client's machine, so that it measures the path
//! from there.
//!
//! What to do: what the named causes say; if none is named, what this kind of error calls for.
//! Sources: the libraries' own messages (Lettuce, Jedis, redis-py, go-redis, ioredis, node-redis, StackExchange.Redis);
//! error replies of Redis' server.c and cluster.c.

use unslow_facts::{ClientError, ClientErrorKind};

use super::messages::{causes, said, starved, unread, where_and_how_often, with_causes};
use super::prelude::*;

pub const TITLE: &str = "Client error";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected =
    Injected::No("it is a message that the user hands in; the problems it reports have their own faults and rules");

/// So many kinds of messages are listed.
const LISTED: usize = 8;

pub fn check(facts: &Facts) -> Verdict {
    let all = &facts.client_errors;
    let open: Vec<&ClientError> = all.iter().filter(|e| is_open(e)).collect();
    let Some(first) = open.iter().max_by_key(|e| e.count) else {
        if all.iter().any(|e| e.kind == ClientErrorKind::Unrecognised) {
            return Verdict::unknown(Lack::Other, "a message of --client-error was not understood", EXPECTED);
        }
        return Verdict::NotHere;
    };
    found(facts, first, &open).into()
}

/// What would have been understood.
const EXPECTED: &str = "the error as StackExchange.Redis, Lettuce, Jedis, redis-py, go-redis, ioredis or node-redis \
                        prints it, or a \
                        server's error reply";

/// Whether no other rule reads its cause from the message.
fn is_open(error: &ClientError) -> bool {
    let other = [ClientErrorKind::Unrecognised, ClientErrorKind::PoolTimeout].contains(&error.kind);
    !other && starved(error).is_none() && unread(error).is_none()
}

fn found(facts: &Facts, first: &ClientError, open: &[&ClientError]) -> Finding {
    let causes = causes(facts, first.kind);
    let explained = match &causes[..] {
        [] if facts.nodes.is_empty() => "no server was looked at".to_string(),
        [] => "nothing that was measured in this window explains it".into(),
        all => format!("explained by {}", names(&all.iter().map(|(rule, _)| rule.to_string()).collect::<Vec<_>>())),
    };
    let mut finding = Finding::new(format!("{}, {}: {explained}", said(first), where_and_how_often(first)))
        .on(open.iter().filter_map(|e| e.server.as_ref()))
        .risk(
            "requests of this client failed when the message was written; whatever costs requests now is a separate \
             finding",
        )
        .severity(Severity::Info)
        .possible("a message says what failed, not why, and may be from another time");
    for error in open.iter().take(LISTED) {
        let value = format!("{}, {}", said(error), where_and_how_often(error));
        finding = finding.saw_at("the client's message", value, facts.at_ms);
    }
    if facts.client_errors.iter().any(|e| e.kind == ClientErrorKind::Unrecognised) {
        let value = format!("another text was not understood; expected was {EXPECTED}");
        finding = finding.saw_at("the client's message", value, facts.at_ms);
    }
    mend(with_causes(finding, facts, &causes), facts, first, causes.is_empty())
}

/// What the kind of an error asks for, where nothing better is known.
fn mend(finding: Finding, facts: &Facts, error: &ClientError, unexplained: bool) -> Finding {
    let (what, command) = advice(error.kind);
    let address = error.server.as_deref().unwrap_or("HOST:PORT");
    let finding = finding.fix(what, &[&cli(address, command)], "", "");
    if !unexplained {
        return finding;
    }
    let url = match (facts.url.is_empty(), error.server.as_deref()) {
        (false, _) => facts.url.clone(),
        (true, Some(server)) => format!("redis://{server}"),
        (true, None) => "redis://HOST:PORT".into(),
    };
    let longer = format!("unslow doctor {url} --window 60s --client-error FILE");
    finding.fix("Look at the servers from the client's machine while the errors occur", &[&longer], "", "")
}

fn advice(kind: ClientErrorKind) -> (&'static str, &'static str) {
    use ClientErrorKind::*;
    match kind {
        Timeout | PoolTimeout | Unrecognised => (
            "Find out what held the server up, and how long a reply takes as seen from the client's machine",
            "SLOWLOG GET 10",
        ),
        ConnectTimeout => (
            "Check whether something on the path to the server drops the connection: firewall, security group, accept \
             queue",
            "PING",
        ),
        Refused => ("Check whether the server is running and listening on this address and port", "PING"),
        Unresolved => {
            ("Check whether the name resolves on the client's machine, and whether this address answers", "PING")
        }
        Closed => (
            "Find out what closed it: the server's timeout or output buffer limits, an idle limit on the path, a \
             restart",
            "CONFIG GET timeout",
        ),
        NoConnection => (
            "Look at the cause inside the message (Caused by, InnerException, lastNodeError), and whether the server \
             answers",
            "PING",
        ),
        Loading => (
            "Wait until the data set is loaded; until then clients should retry, and read from replicas",
            "INFO persistence",
        ),
        OutOfMemory => ("Find out what fills the memory, and check the eviction policy", "INFO memory"),
        SaveFailed => {
            ("Find out why saving fails: a full disk, missing permissions, no memory for the fork", "INFO persistence")
        }
        ReadOnly => {
            ("Let the client look up the current master: it still writes to a server that became a replica", "ROLE")
        }
        ClusterDown => ("Find out which slots are not served, and which master is down", "CLUSTER INFO"),
        Moved => ("Use the library's cluster client: this one does not follow redirects", "CLUSTER NODES"),
        MasterDown => ("Find out why the replica has lost its master", "INFO replication"),
        NoReplicas => ("Find out which replicas lag or are disconnected", "INFO replication"),
        NoAuth => ("Give the client the user and password that the server requires", "PING"),
        WrongPassword | NoPermission => ("Find out what the server refused, and to which user", "ACL LOG 10"),
        Busy => (
            "Find out which script ran that long; while one runs, FUNCTION STATS (7.0+) names it, and SCRIPT KILL ends \
             it unless it has written",
            "SLOWLOG GET 10",
        ),
        MaxClients => ("Find out which clients hold the connections", "CLIENT LIST"),
    }
}

#[cfg(test)]
mod tests {
    use unslow_facts::{ClientLibrary, Multiplexer, ThreadPool};

    use super::*;
    use crate::{Answered, Conclusion, Report, diagnose};

    const WORKERS: ThreadPool = ThreadPool { busy: 600, min: 6, max: 32_767 };

    fn error(kind: ClientErrorKind) -> ClientError {
        ClientError {
            kind,
            library: ClientLibrary::StackExchangeRedis,
            count: 3,
            command: Some("GET".into()),
            server: Some("10.0.0.1:6379".into()),
            timeout_ms: Some(5000),
            multiplexer: None,
        }
    }

    fn timeout(counters: Multiplexer) -> ClientError {
        ClientError { multiplexer: Some(counters), ..error(ClientErrorKind::Timeout) }
    }

    /// A diagnosis of messages alone.
    fn alone(errors: Vec<ClientError>) -> Report {
        diagnose(&Facts { client_errors: errors, ..Facts::of_nothing("") }, &[])
    }

    #[track_caller]
    fn assert_found(report: &Report, expected: &[(&str, Severity)]) {
        let found: Vec<(&str, Severity)> = report.findings.iter().map(|f| (f.id.as_str(), f.severity)).collect();
        assert_eq!(found, expected, "{report:#?}");
    }

    #[test]
    fn an_exhausted_thread_pool_is_named_where_replies_had_arrived_and_a_risk_where_none_had() {
        let counters = Multiplexer { worker: Some(WORKERS), unread_bytes: Some(2256), ..Multiplexer::default() };
        let report = alone(vec![timeout(counters.clone())]);
        assert_found(&report, &[("client_thread_pool", Severity::Medium)]);
        assert_eq!(report.verdict, Conclusion::Causes);
        assert!(report.findings[0].title.contains("600 of its threads were busy, 6 is its minimum"), "{report:#?}");

        let waiting = Multiplexer { unread_bytes: Some(0), ..counters.clone() };
        assert_found(&alone(vec![timeout(waiting)]), &[("client_thread_pool", Severity::Risk)]);
        // Threads above the minimum and no work that waits for one; or fewer than the minimum.
        for fine in [
            Multiplexer { queued_items: Some(0), ..counters.clone() },
            Multiplexer { worker: Some(ThreadPool { busy: 7, min: 1000, max: 32_767 }), ..counters },
        ] {
            let report = alone(vec![timeout(fine)]);
            assert_found(&report, &[("client_error", Severity::Info)]);
            assert!(report.ruled_out.iter().any(|r| r.starts_with("the client's thread pool")), "{report:#?}");
        }
    }

    #[test]
    fn unread_replies_are_a_consequence_of_the_thread_pool_and_a_cause_without_it() {
        let unread = Multiplexer { unread_bytes: Some(22_649), ..Multiplexer::default() };
        assert_found(&alone(vec![timeout(unread.clone())]), &[("client_unread_replies", Severity::Medium)]);
        let both = alone(vec![timeout(Multiplexer { worker: Some(WORKERS), ..unread })]);
        assert_found(&both, &[("client_thread_pool", Severity::Medium)]);
        assert_eq!(both.findings[0].chain[0].id, "client_unread_replies");
        let part = Multiplexer { partial_bytes: Some(200_000), ..Multiplexer::default() };
        assert_found(&alone(vec![timeout(part)]), &[("client_unread_replies", Severity::Risk)]);
        let few = Multiplexer { unread_bytes: Some(20), ..Multiplexer::default() };
        assert_found(&alone(vec![timeout(few)]), &[("client_error", Severity::Info)]);
    }

    #[test]
    fn every_kind_alone_says_what_failed_and_that_no_server_was_looked_at() {
        use ClientErrorKind::*;
        for kind in [
            Timeout,
            ConnectTimeout,
            Refused,
            Unresolved,
            Closed,
            NoConnection,
            Loading,
            OutOfMemory,
            SaveFailed,
            ReadOnly,
            ClusterDown,
            Moved,
            MasterDown,
            NoReplicas,
            NoAuth,
            WrongPassword,
            NoPermission,
            Busy,
            MaxClients,
        ] {
            let report = alone(vec![error(kind)]);
            assert_found(&report, &[("client_error", Severity::Info)]);
            let found = &report.findings[0];
            assert!(found.title.ends_with("3 times at 10.0.0.1:6379: no server was looked at"), "{}", found.title);
            assert!(found.remedies.iter().all(|r| !r.text.is_empty() && r.commands.iter().all(|c| !c.is_empty())));
            assert_eq!((report.verdict, report.cannot_see.len()), (Conclusion::NoServer, 0), "{report:#?}");
        }
        assert_found(&alone(vec![error(PoolTimeout)]), &[("client_pool_exhausted", Severity::Risk)]);
    }

    #[test]
    fn what_is_not_understood_is_said_so_and_is_no_finding() {
        let unknown = || ClientError { count: 1, ..ClientError::default() };
        let report = alone(vec![unknown()]);
        assert_found(&report, &[]);
        assert_eq!(report.verdict, Conclusion::NoServer);
        assert!(report.cannot_see.iter().any(|c| c.id == "client_error" && c.grant.contains("Lettuce")), "{report:#?}");
        // Beside one that was, it is not lost.
        let both = alone(vec![error(ClientErrorKind::Closed), unknown()]);
        assert!(both.findings[0].evidence.iter().any(|e| e.value.contains("not understood")), "{both:#?}");
    }

    #[test]
    fn without_a_message_these_rules_are_about_nothing() {
        for id in crate::rules::OF_CLIENTS {
            let report = diagnose(&Facts::of_nothing("redis://10.0.0.1:6379"), &[id.to_string()]);
            assert_eq!(report.only[0].answer, Answered::NotHere, "{id}");
        }
    }
}
