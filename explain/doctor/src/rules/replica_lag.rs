//! A linked replica is behind its master and does not catch up.
//!
//! Replication is asynchronous: writes that a replica has not received are missing from the answers it gives, and lost
//! if it takes over now. They wait in the master's memory, up to client-output-buffer-limit; beyond that the link is
//! closed, and if the backlog no longer has what is missing, a full copy follows.
//!
//! Seen when: at both ends of the window the master lists the replica as online, and at its end the replica's
//! acknowledgements are 5 s of writes and 1 MB behind what was written, and at the pace of the window it would take
//! over a minute to catch up; or it has acknowledged nothing for 5 s while writes keep coming.
//!
//! Its lag in seconds is bytes missing / bytes written a second. A replica that spends its core on other things (its
//! readers' commands, a script) shows that in its own counters; one that reads as fast as it can over a slow path
//! leaves its bytes in the master's send queue.
//!
//! Not to be taken for: a replica whose process hangs (`node_hangs`), one whose link is down (`replica_link_down`), a
//! burst that is being worked off, or the second between two acknowledgements.
//!
//! How to confirm: `INFO replication` on the master, twice: master_repl_offset minus the offset in the replica's slaveN
//! line, and lag; `CLIENT LIST TYPE replica` shows what waits for it (omem).
//!
//! What to do: move the replica's heavy readers elsewhere, or give its network path more bandwidth; until then keep
//! failovers from choosing it, and make the backlog as large as what is missing.
//! Sources: INFO replication (slaveN: offset, lag); redis.conf (min-replicas-max-lag, client-output-buffer-limit
//! replica).

use super::peers;
use super::prelude::*;
use super::reads_on_master;
use super::replica_link::replica_limit;

pub const TITLE: &str = "Replica lag";
pub const LEADS_TO: &[&str] = &["replica_buffer_kill", "min_replicas_refusing", "write_throttling"];
pub const INJECTED: Injected = Injected::Yes;

/// Less than this many seconds of writes is on its way.
const SECONDS: f64 = 5.0;
/// And less than this many bytes is on its way too.
const BYTES: f64 = 1e6;
/// One that catches up within this time is no finding.
const CATCH_UP_S: f64 = 60.0;
/// What is missing is told in seconds up to here: where little is written now, it was written faster before.
const TELLING_S: f64 = 3600.0;
/// A share of a core or of a link that leaves no room.
const BUSY: f64 = 0.8;

/// A replica as its master lists it, online at both ends of the window.
struct Behind<'a> {
    master: &'a Node,
    address: String,
    /// Where it was found with the others.
    replica: Option<&'a Node>,
    /// Bytes it had not acknowledged at the start; none where it had acknowledged nothing yet.
    first: Option<f64>,
    last: f64,
    /// Bytes written a second.
    rate: f64,
    /// Since it last acknowledged anything.
    lag_s: f64,
}

impl Behind<'_> {
    fn seconds(&self) -> f64 {
        (self.last / self.rate.max(1.0)).max(self.lag_s)
    }

    /// How far behind it is, in seconds of writes where the pace of the window says that.
    fn distance(&self) -> String {
        match self.seconds() {
            s if s <= TELLING_S => format!("{} behind its master ({})", time_us(s * 1e6), bytes(self.last)),
            _ => format!("{} behind its master", bytes(self.last)),
        }
    }

    /// By how many bytes a second it falls further behind; below 0 it catches up.
    fn growth(&self) -> f64 {
        self.first.map_or(0.0, |first| (self.last - first) / self.master.window_s.max(0.001))
    }

    fn lags(&self) -> bool {
        let hangs = self.replica.is_some_and(|n| n.silent_ms.is_some());
        let Some(first) = self.first.filter(|_| !hangs) else { return false };
        let catches_up = self.growth() < 0.0 && self.last / -self.growth() <= CATCH_UP_S;
        let far = self.last >= BYTES && self.last >= SECONDS * self.rate && !catches_up;
        let deaf = self.lag_s >= SECONDS && self.last > 0.0 && self.last >= first && self.rate > 0.0;
        far || deaf
    }

    /// Whether clients read from it. Hits and misses do not tell: replicated BITOP and ZUNIONSTORE look keys up too.
    fn has_readers(&self) -> bool {
        self.replica.is_some_and(|n| reads_on_master::reads_per_s(n) >= USED_OPS)
    }
}

/// What holds it up.
enum Why {
    /// Its main thread has no time for more: share of a core.
    Busy(f64),
    /// Bytes wait in the kernel of the master's machine, and the replica's end is open.
    Path(u64),
    /// The replica's end is closed: it does not read.
    Closed,
    Unknown,
}

pub fn check(facts: &Facts) -> Verdict {
    let masters: Vec<&Node> = facts.live().filter(|n| n.number("connected_slaves").unwrap_or(0.0) > 0.0).collect();
    if masters.is_empty() {
        return match facts.live().any(|n| n.number("connected_slaves").is_some()) {
            true => Verdict::NotHere,
            false => Verdict::Unknown(unseen_info(facts, "replicas' lag")),
        };
    }
    let all: Vec<Behind> = masters.iter().flat_map(|m| behind(facts, m)).collect();
    let rows: Vec<&Behind> = all.iter().filter(|b| b.lags()).collect();
    let rows = by_worst(rows, |b| b.seconds());
    if let Some(worst) = rows.first() {
        return found(worst, &rows).into();
    }
    if masters.iter().all(|m| m.rate("master_repl_offset").is_none()) {
        return Verdict::unknown(Lack::Time, "replicas' lag: the masters' offsets were only seen once", "run again");
    }
    let most = by_worst(all, |b| b.last);
    Verdict::Absent(match most.first() {
        Some(b) => format!(
            "replicas' lag: at most {} not yet acknowledged ({}), at {}/s of writes",
            bytes(b.last),
            b.address,
            bytes(b.rate)
        ),
        None => "replicas' lag: no replica was online throughout the window".into(),
    })
}

/// The replicas that this master lists as online at both ends.
fn behind<'a>(facts: &'a Facts, master: &'a Node) -> Vec<Behind<'a>> {
    let (Some(first), Some(last)) = (&master.first, &master.last) else { return Vec::new() };
    let Some(rate) = master.rate("master_repl_offset") else { return Vec::new() };
    let lacks = |info: &unslow_topology::Info, acknowledged: u64| {
        (info.number("master_repl_offset").unwrap_or(0.0) - acknowledged as f64).max(0.0)
    };
    let before = first.info.replicas();
    let online = last.info.replicas().into_iter().filter(|r| r.2 == "online");
    online
        .filter_map(|(ip, port, _, lag_s, acknowledged)| {
            let then = before.iter().find(|r| r.0 == ip && r.1 == port && r.2 == "online")?;
            let address = join_host_port(&ip, port);
            Some(Behind {
                master,
                replica: facts.node(&address).or_else(|| facts.node(&format!("{ip}:{port}"))),
                first: (then.4 > 0).then(|| lacks(&first.info, then.4)),
                last: lacks(&last.info, acknowledged),
                rate,
                lag_s: lag_s as f64,
                address,
            })
        })
        .collect()
}

fn why(worst: &Behind) -> Why {
    if let Some(replica) = worst.replica
        && let Some((user, sys)) = replica.cpu()
        && user + sys >= BUSY
    {
        return Why::Busy(user + sys);
    }
    let host = peers::host_of(&worst.address);
    let queues = worst.master.sockets.value().into_iter().flatten().filter(|p| p.host == host);
    match queues.max_by_key(|p| p.send_queue_bytes) {
        Some(p) if p.window_closed > 0 => Why::Closed,
        Some(p) if p.send_queue_bytes as f64 >= 0.01 * worst.last => Why::Path(p.send_queue_bytes),
        _ => Why::Unknown,
    }
}

fn found(worst: &Behind, rows: &[&Behind]) -> Finding {
    let (master, why) = (worst.master, why(worst));
    let pace = match worst.growth() {
        g if g > 0.05 * worst.rate => format!(", and {} more each second", bytes(g)),
        _ => ", and does not catch up".into(),
    };
    let more = if rows.len() > 1 { format!("; {} more replicas lag", rows.len() - 1) } else { String::new() };
    let cause = match why {
        Why::Busy(share) => format!("; its main thread is at {} of a core", percent(share)),
        Why::Path(_) => "; the path to it is too slow".into(),
        Why::Closed => "; it does not read what is sent to it".into(),
        Why::Unknown => String::new(),
    };
    let lost =
        format!("if {} dies now, the last {} of writes are not on this replica", master.address, bytes(worst.last));
    let severity = if worst.has_readers() { Severity::High } else { Severity::Medium };
    let readers = if worst.has_readers() { "; clients that read from it do not see them" } else { "" };
    let finding = Finding::new(format!("Replica {} is {}{pace}{cause}{more}", worst.address, worst.distance()))
        .on(rows.iter().map(|b| b.address.as_str()))
        .risk(format!("{lost}{readers}{}", runs_out(worst)))
        .severity(severity)
        .saw(
            master,
            "INFO replication",
            format!(
                "{}: {} not acknowledged at the start of the window, {} at its end; lag={:.0}",
                worst.address,
                worst.first.map_or("not known".to_string(), bytes),
                bytes(worst.last),
                worst.lag_s
            ),
        )
        .saw(master, "INFO replication", format!("master_repl_offset +{}/s", bytes(worst.rate)));
    let finding = match why {
        Why::Busy(_) => finding.proven("what is missing and the replica's CPU time were both measured in this window"),
        Why::Path(n) => finding
            .likely(
                "what is missing was measured at both ends; that the path holds it up is inferred from the send queue",
            )
            .saw(master, "ss -tn", format!("{} wait in the send queue to {}", bytes(n as f64), worst.address)),
        Why::Closed | Why::Unknown => {
            finding.likely("what is missing was measured at both ends of the window; what holds it up was not seen")
        }
    };
    let finding = match worst.replica.filter(|n| peers::answers(n)) {
        Some(replica) => finding
            .saw(
                replica,
                "INFO replication",
                format!("slave_repl_offset:{:.0}", replica.number("slave_repl_offset").unwrap_or(0.0)),
            )
            .not("a process that hangs: the replica answers here"),
        None => finding,
    };
    mend(finding, worst, &why)
}

/// What becomes of it if it goes on: the master's limit for what waits, and the backlog.
fn runs_out(worst: &Behind) -> String {
    let limit = replica_limit(worst.master).map(|l| l.hard).filter(|hard| *hard > 0.0);
    let backlog = worst.master.number("repl_backlog_size").unwrap_or(0.0);
    match limit {
        Some(hard) if worst.growth() > 0.0 && hard > worst.last => {
            let left_s = (hard - worst.last) / worst.growth();
            format!(
                "; at this pace the master closes the link in {} (client-output-buffer-limit {})",
                time_us(left_s.min(86400.0) * 1e6),
                bytes(hard)
            )
        }
        _ if backlog > 0.0 && worst.last > backlog => {
            format!("; if its link breaks now, it needs a full copy: the backlog holds {}", bytes(backlog))
        }
        _ => String::new(),
    }
}

fn mend(finding: Finding, worst: &Behind, why: &Why) -> Finding {
    let (master, replica) = (worst.master, worst.address.as_str());
    let class = if master.level() >= (5, 0) || master.level() == (0, 0) { "replica" } else { "slave" };
    let waiting = format!("{}   (omem: what waits for it)", cli(&master.address, &format!("CLIENT LIST TYPE {class}")));
    let finding = match why {
        Why::Busy(_) => finding.fix(
            "See what else the replica does, and have it done elsewhere: readers' expensive commands, scripts, \
             persistence",
            &[
                &cli(replica, "INFO commandstats   (twice: which usec grow)"),
                &cli(replica, "SLOWLOG GET 10"),
                &cli(replica, "CLIENT LIST"),
            ],
            "",
            "",
        ),
        Why::Path(_) => finding.fix(
            "Give the path between the two more bandwidth, or write less over it: measure what it carries",
            &[
                &waiting,
                &format!("ss -tin dst {}   (on the master's machine: delivery_rate, retrans)", peers::host_of(replica)),
            ],
            "",
            "",
        ),
        Why::Closed | Why::Unknown => finding.fix(
            "See whether the replica or the path holds it up: a closed window at the replica's end means the replica",
            &[
                &waiting,
                &cli(replica, "INFO cpu"),
                &cli(replica, "SLOWLOG GET 10"),
                &format!("ss -tinm dst {}   (on the master's machine)", peers::host_of(replica)),
            ],
            "",
            "",
        ),
    };
    let backlog = master.number("repl_backlog_size").unwrap_or(0.0);
    if worst.last > backlog && super::backlog_too_small::wanted(master) > backlog {
        return super::backlog_too_small::enlarge(finding, &[master]);
    }
    finding
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::made::{answer, node_at, replicated, said};

    const MASTER: &str = "10.0.0.1:6379";
    const REPLICA: &str = "10.0.0.2:6379";

    /// A master that has written 20 MB in ten seconds; the replica lacked and lacks so many bytes.
    fn pair(lacked: u64, lacks: u64, lag_s: u64) -> Facts {
        let line = |offset: u64, lacks: u64| {
            format!(
                "master_repl_offset:{offset}\nslave0:ip=10.0.0.2,port=6379,state=online,offset={},lag={lag_s}\n",
                offset - lacks
            )
        };
        let before = format!(
            "role:master\nredis_version:7.2.4\nconnected_slaves:1\nrepl_backlog_size:1048576\nused_memory:90000000\n\
             total_system_memory:8000000000\n{}",
            line(500_000_000, lacked)
        );
        let replica = "role:slave\nmaster_link_status:up\nused_cpu_user_main_thread:0\nused_cpu_sys_main_thread:0\n";
        replicated(vec![node_at(MASTER, &before, &line(520_000_000, lacks)), node_at(REPLICA, replica, "")])
    }

    #[test]
    fn only_what_is_far_behind_and_stays_there_is_named() {
        for (what, lacked, lacks, lag_s, named) in [
            ("in step", 2_000_000, 2_000_000, 1, false),
            ("five seconds and growing", 5_000_000, 12_000_000, 1, true),
            ("far, and it stays so", 50_000_000, 50_000_000, 1, true),
            ("it catches up within a minute", 60_000_000, 30_000_000, 1, false),
            ("it would take minutes", 60_000_000, 55_000_000, 1, true),
            ("deaf for eight seconds", 1_000_000, 2_000_000, 8, true),
        ] {
            let verdict = check(&pair(lacked, lacks, lag_s));
            assert_eq!(answer(&verdict), if named { "present" } else { "absent" }, "{what}: {verdict:?}");
        }
    }

    #[test]
    fn a_replica_that_has_acknowledged_nothing_yet_or_hangs_is_not_judged() {
        let mut fresh = pair(5_000_000, 50_000_000, 1);
        let first = fresh.nodes[0].first.as_mut().unwrap();
        first.info.0.insert("slave0".into(), "ip=10.0.0.2,port=6379,state=online,offset=0,lag=0".into());
        assert_eq!(answer(&check(&fresh)), "absent");
        let mut hung = pair(50_000_000, 60_000_000, 9);
        hung.nodes[1] = Node { silent_ms: Some(3000), ..Node::new(REPLICA, unslow_topology::Role::Replica) };
        assert_eq!(answer(&check(&hung)), "absent");
        let mute = replicated(vec![node_at(MASTER, "", ""), node_at(REPLICA, "", "")]);
        assert_eq!(answer(&check(&mute)), "unknown");
        let alone = replicated(vec![node_at(MASTER, "role:master\nconnected_slaves:0\n", "")]);
        assert_eq!(answer(&check(&alone)), "not here");
    }

    #[test]
    fn where_nothing_is_written_now_it_is_told_in_bytes() {
        let still = "role:master\nconnected_slaves:1\nmaster_repl_offset:500000000\n\
                     slave0:ip=10.0.0.2,port=6379,state=online,offset=460000000,lag=1\n";
        let found = said(check(&replicated(vec![node_at(MASTER, still, ""), node_at(REPLICA, "role:slave\n", "")])));
        assert!(found.title.contains("is 40 MB behind its master, and does not"), "{}", found.title);
    }

    #[test]
    fn what_it_costs_and_what_holds_it_up_are_measured() {
        let mut facts = pair(40_000_000, 60_000_000, 1);
        let quiet = said(check(&facts));
        assert!(
            quiet.title.contains("30 s behind") && quiet.title.contains("2 MB more each second"),
            "{}",
            quiet.title
        );
        assert_eq!((quiet.severity, quiet.subjects.as_slice()), (Severity::Medium, &[REPLICA.to_string()][..]));
        let busy = "used_cpu_user_main_thread:9.5\ncmdstat_get:calls=5000,usec=5000,usec_per_call=1.00\n";
        facts.nodes[1].last.as_mut().unwrap().info.0.extend(unslow_topology::Info::parse(busy).0);
        let busy = said(check(&facts));
        assert!(busy.title.contains("its main thread is at 95 % of a core"), "{}", busy.title);
        assert_eq!(busy.severity, Severity::High);
    }
}
