//! A replica's clock differs from its master's, so keys live longer or shorter after a failover.
//!
//! A TTL is kept as a point in time, and that is what is replicated. A replica whose clock is ahead treats keys as
//! expired that its master still serves: reads from it miss them, and once it is master it deletes them. A replica
//! whose clock is behind serves sessions and locks for longer than they were meant to live.
//!
//! Seen when: a replica's clock differed from its master's by over a second at both ends of the window, beyond what the
//! round trips to the two could account for.
//!
//! Not to be taken for: the clock of the machine that the doctor runs on, which cancels out, because servers are only
//! compared with each other; the clocks of two masters, which no key depends on; a clock that was corrected during the
//! window, which differs at one end only.
//!
//! How to confirm: `TIME` on both servers at the same moment; `chronyc tracking` or `timedatectl` on the machines.
//!
//! What to do: have every machine follow the same time service, by slewing and not by steps; correct the wrong clock
//! while no failover is in progress.
//! Sources: INFO server_time_usec (7.0+); Redis documentation of EXPIRE (appendix on the accuracy of clocks).

use super::peers;
use super::prelude::*;

pub const TITLE: &str = "Clocks differ";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// TTLs are mostly of seconds: a difference below this changes none that matters.
const SKEW_MS: f64 = 1000.0;
/// A server tells the time of its last turn, and the answer waits for our thread.
const SLACK_MS: f64 = 100.0;

/// A replica's clock beside its master's.
struct Skew<'a> {
    master: &'a Node,
    replica: &'a Node,
    /// By how much the replica is ahead, at the end of the window where it is closer to the master there than at the
    /// start.
    ahead_ms: f64,
    /// What the round trips to both may account for.
    error_ms: f64,
}

impl Skew<'_> {
    fn hurts(&self) -> bool {
        self.ahead_ms.abs() >= SKEW_MS + self.error_ms
    }
}

/// By how much a server's clock is ahead of ours in both samples; none before 7.0.
fn ahead_of_us(node: &Node) -> Option<[f64; 2]> {
    let of = |s: &unslow_facts::Sample| Some(s.info.number("server_time_usec")? / 1000.0 - s.at_ms as f64);
    Some([of(node.first.as_ref()?)?, of(node.last.as_ref()?)?])
}

fn error_ms(node: &Node) -> Option<f64> {
    Some(2.0 * f64::from(node.rtt.value()?.us_max) / 1000.0 + SLACK_MS)
}

fn master_of<'a>(facts: &'a Facts, replica: &Node) -> Option<&'a Node> {
    let by_info = peers::master_by_info(replica).and_then(|address| facts.node(&address));
    by_info.or_else(|| facts.node(replica.master.as_deref()?))
}

fn skew<'a>(master: &'a Node, replica: &'a Node) -> Option<Skew<'a>> {
    let (of, own) = (ahead_of_us(master)?, ahead_of_us(replica)?);
    let error_ms = error_ms(master)? + error_ms(replica)?;
    let [first, last] = [own[0] - of[0], own[1] - of[1]];
    // What changed its sign was set right in between.
    let ahead_ms = match first * last > 0.0 {
        true if first.abs() < last.abs() => first,
        true => last,
        false => 0.0,
    };
    Some(Skew { master, replica, ahead_ms, error_ms })
}

pub fn check(facts: &Facts) -> Verdict {
    let replicas = || facts.live().filter(|n| !n.is_master());
    let pairs: Vec<(&Node, &Node)> = replicas().filter_map(|r| Some((master_of(facts, r)?, r))).collect();
    if pairs.is_empty() {
        return match facts.live().next() {
            Some(_) => Verdict::NotHere,
            None => Verdict::Unknown(unseen_info(facts, "clocks")),
        };
    }
    let all: Vec<Skew> = pairs.iter().filter_map(|(master, replica)| skew(master, replica)).collect();
    let all = by_worst(all, |s| s.ahead_ms.abs() - s.error_ms);
    let rows: Vec<&Skew> = all.iter().filter(|s| s.hurts()).collect();
    if let Some(worst) = rows.first() {
        let replicas = rows.iter().map(|s| s.replica.address.as_str());
        return found(worst).on(replicas).on(rows.iter().map(|s| s.master.address.as_str())).into();
    }
    let Some(worst) = all.first() else { return unmeasured(facts, &pairs) };
    Verdict::Absent(format!(
        "clocks: {} replicas within {:.0} ms of their masters, give or take {:.0} ms",
        all.len(),
        worst.ahead_ms.abs(),
        worst.error_ms
    ))
}

fn unmeasured(facts: &Facts, pairs: &[(&Node, &Node)]) -> Verdict {
    let tells = pairs.iter().any(|(master, replica)| ahead_of_us(master).is_some() && ahead_of_us(replica).is_some());
    let gap = pairs.iter().flat_map(|(m, r)| [*m, *r]).find_map(|n| n.rtt.missing());
    match gap.filter(|_| tells) {
        Some(gap) => Verdict::Unknown(gap.of("clocks")),
        None => Verdict::Unknown(unseen_info(facts, "clocks")),
    }
}

fn found(s: &Skew) -> Finding {
    let (by, ahead) = (time_us(s.ahead_ms.abs() * 1000.0), s.ahead_ms > 0.0);
    let keys = s.master.info().map_or(0, unslow_topology::Info::expiring_keys);
    let harm = if ahead {
        format!(
            "reads from it miss keys {by} before they expire, and a failover to it deletes them that much too early"
        )
    } else {
        format!("a failover to it lets keys live {by} longer: sessions, locks, limits")
    };
    let told = |node: &Node| -> String {
        let time = |s: &Option<unslow_facts::Sample>| {
            s.as_ref().and_then(|s| s.info.get("server_time_usec")).unwrap_or("unknown").to_string()
        };
        let at = node.last.as_ref().map_or(0, |s| s.at_ms);
        format!("server_time_usec:{} when it was {at} ms here", time(&node.last))
    };
    Finding::new(format!(
        "The clock of replica {} is {by} {} that of its master {}",
        s.replica.address,
        if ahead { "ahead of" } else { "behind" },
        s.master.address
    ))
    .risk(format!("{harm}; {} keys have a TTL", count(keys as f64)))
    .proven(format!(
        "both clocks were read at both ends of the window; the round trips account for at most {:.0} ms",
        s.error_ms
    ))
    .saw(s.replica, "INFO server", told(s.replica))
    .saw(s.master, "INFO server", told(s.master))
    .fix(
        "Correct the wrong clock: find out which of the two it is, then check its time service",
        &[
            &cli(&s.replica.address, "TIME"),
            &cli(&s.master.address, "TIME"),
            "chronyc tracking; timedatectl   (on both machines)",
            "systemctl enable --now chronyd",
        ],
        "a step forward expires keys immediately, and puts Sentinels on that machine into TILT for 30 s: slew the \
         clock",
        "",
    )
}

#[cfg(test)]
mod tests {
    use super::super::made::{NOW_MS, answer, node_at, replicated, said};
    use super::*;
    use unslow_facts::{Rtt, Seen};

    /// A server whose clock is ahead of ours by this much at the window's ends.
    fn server(address: &str, more: &str, ahead_ms: [i64; 2], us_max: u32) -> Node {
        let time = |at_ms: u64, ahead: i64| format!("server_time_usec:{}\n", (at_ms as i64 + ahead) * 1000);
        let before = format!("{more}{}", time(NOW_MS - 10_000, ahead_ms[0]));
        let mut node = node_at(address, &before, &time(NOW_MS, ahead_ms[1]));
        let value = Rtt { count: 100, us_min: 100, us_p50: 200, us_p99: 300, us_max };
        node.rtt = Seen::yes(value, "PING", NOW_MS);
        node
    }

    fn pair(master: [i64; 2], replica: [i64; 2], us_max: u32) -> Facts {
        let follows = "role:slave\nmaster_host:10.0.0.1\nmaster_port:6379\n";
        let of = server("10.0.0.1:6379", "role:master\ndb0:keys=9,expires=4\n", master, 300);
        replicated(vec![of, server("10.0.0.2:6379", follows, replica, us_max)])
    }

    #[test]
    fn a_replica_ahead_of_its_master_or_behind_is_a_risk() {
        let found = said(check(&pair([0, 0], [30_000, 30_000], 300)));
        assert!(found.title.contains("30 s ahead of"), "{}", found.title);
        assert!(found.impact.text.contains("4 keys have a TTL"), "{}", found.impact.text);
        assert_eq!(found.severity, Severity::Risk);
        let found = said(check(&pair([5000, 5000], [0, 0], 300)));
        assert!(found.title.contains("5 s behind"), "{}", found.title);
    }

    #[test]
    fn our_own_clock_and_slow_answers_are_no_skew() {
        for (master, replica, us_max) in [
            // Ours is an hour behind, or was set in the window.
            ([3_600_000; 2], [3_600_000; 2], 300),
            ([0, 9000], [0, 9000], 300),
            // Half a second, and two seconds where an answer takes that long.
            ([0; 2], [500; 2], 300),
            ([0; 2], [2000; 2], 1_000_000),
            // Set right in between.
            ([0; 2], [30_000, 0], 300),
            ([0; 2], [-3000, 3000], 300),
        ] {
            assert_eq!(answer(&check(&pair(master, replica, us_max))), "absent", "{master:?} {replica:?}");
        }
    }

    #[test]
    fn what_was_not_measured_is_unknown() {
        let mut facts = pair([0; 2], [30_000; 2], 300);
        facts.nodes[1].rtt = Seen::default();
        assert_eq!(answer(&check(&facts)), "unknown");
        let mut old = pair([0; 2], [30_000; 2], 300);
        old.nodes.iter_mut().for_each(|n| {
            n.last.as_mut().unwrap().info.0.remove("server_time_usec");
        });
        assert_eq!(answer(&check(&old)), "unknown");
        old.nodes.truncate(1);
        assert_eq!(answer(&check(&old)), "not here");
    }
}
