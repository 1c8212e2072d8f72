//! KEYS walks the whole keyspace while everyone waits.
//!
//! KEYS looks at every key of the database in one go: 40 to 100 ms for a million keys, and nothing else is served
//! meanwhile. It hides in admin pages, cache invalidation and "just counting".
//!
//! Seen when: KEYS ran in the window and took over 1 ms a call or 1 % of a core; or stands in the slow log of the last hour.
//!
//! Not to be taken for: one big key (`big_key`), whose cost follows the key and not the keyspace.
//!
//! What to do: SCAN in small steps, an index set, or no access: ACL -keys.
//! Sources: Redis documentation of KEYS; commandstats, SLOWLOG.

use super::prelude::*;

pub const TITLE: &str = "KEYS in production";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let rows: Vec<_> = facts
        .live()
        .filter_map(|node| {
            let s = spent(node, &["keys"]);
            let logged: Vec<_> = slow_entries(node, 3600).into_iter().filter(|e| e.command == "KEYS").collect();
            let now = s.calls > 0 && (s.mean_us > 1000.0 || s.share > 0.01);
            (now || !logged.is_empty()).then_some((node, s, logged, now))
        })
        .collect();
    let rows = by_worst(rows, |r| r.1.share + r.2.len() as f64 / 1e6);
    let Some((node, s, logged, now)) = rows.first() else { return Verdict::Absent(Some("KEYS: not seen".into())) };
    let keys = node.info().map_or(0, |i| i.keys());
    let worst = logged.iter().map(|e| e.us as f64).fold(s.mean_us, f64::max);
    let finding = Finding::new(format!(
        "KEYS walks all {} keys of {}: {} a call, {} calls in {:.0} s",
        count(keys as f64), node.address, time_us(worst), s.calls, node.window_s
    ))
    .on(rows.iter().map(|r| r.0.address.as_str()));
    let finding = if *now {
        finding.latency(s.share * s.mean_us / 2000.0 + s.share * 0.001, format!("{} of all requests wait, {} on average", percent(s.share), time_us(s.mean_us / 2.0))).proven("the server's own clock for KEYS, in this window")
    } else {
        finding.risk(format!("none in the window; {} in the slow log of the last hour, each stopping everyone for up to {}", logged.len(), time_us(worst))).likely("seen in the slow log, not in the window")
    };
    let mut finding = finding
        .gain(format!("with SCAN no stall is longer than a step: {} in place of {}", time_us(worst / (keys as f64 / 100.0).max(1.0)), time_us(worst)), format!("{worst:.0} us x 100 keys a step / {keys} keys"))
        .saw(node, "INFO commandstats", format!("KEYS: {} calls, {} each", s.calls, time_us(s.mean_us)));
    for entry in logged.iter().take(2) {
        finding = finding.saw_then(node, "SLOWLOG GET 128", format!("KEYS {} by {} {}", time_us(entry.us as f64), entry.client, entry.client_name), entry.at_s * 1000);
    }
    finding
        .fix("In the client: SCAN with COUNT 100, or keep the names in a set", &["SCAN cursor MATCH pattern COUNT 100"], "SCAN may return a key twice, and sees changes half way", "KEYS again")
        .fix("Take the command away from applications", &["ACL SETUSER app -keys"], "whoever used it gets NOPERM", "ACL SETUSER app +keys")
        .into()
}
