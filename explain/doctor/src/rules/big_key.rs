//! One key is so large that commands on it stop everyone.
//!
//! HGETALL, SMEMBERS, LRANGE 0 -1, ZRANGE, SORT or DEL on a collection of a hundred thousand elements takes tens of
//! milliseconds on the one thread that serves everybody, and its reply fills the network.
//!
//! Seen when: a key that the slow log names has over 5,000 elements, or over 1 MB as a string, and its commands were slow
//! in the last hour. Judged by effect: a large key that nobody reads whole is no finding.
//!
//! Not to be taken for: a slow host, where constant-time commands are slow too.
//!
//! What to do: read in parts (HSCAN, LRANGE of a page), split the key, UNLINK in place of DEL.
//! Sources: SLOWLOG, TYPE and HLEN/LLEN/SCARD/ZCARD/STRLEN of the keys it names; no value is read.

use super::prelude::*;

pub const TITLE: &str = "Big key";
pub const LEADS_TO: &[&str] = &["slow_command", "main_thread_saturated", "node_timeout_margin"];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let mut best: Option<(f64, Finding)> = None;
    let mut unknown = None;
    for node in facts.live() {
        let Some(sizes) = node.key_sizes.value().filter(|_| node.slowlog.value().is_some()) else {
            let slow = node.slowlog.value().is_none_or(|l| l.iter().any(|e| e.key.is_some()));
            if let (true, Some((why, grant))) = (slow, node.slowlog.missing().or(node.key_sizes.missing())) {
                unknown = Some((format!("{}: {why}", node.address), grant.unwrap_or("").to_string()));
            }
            continue;
        };
        for size in sizes {
            let large = if size.kind == "string" { size.length > 1_000_000 } else { size.length > 5_000 };
            let entries: Vec<_> = slow_entries(node, 3600).into_iter().filter(|e| e.key.as_deref() == Some(&size.key) && !is_victim(e)).collect();
            let Some(worst) = entries.iter().max_by_key(|e| e.us).filter(|_| large && entries.len() >= 3) else { continue };
            let in_window: Vec<_> = slow_entries(node, 0).into_iter().filter(|e| e.key.as_deref() == Some(&size.key)).collect();
            let busy = in_window.iter().map(|e| e.us as f64).sum::<f64>() / 1e6 / node.window_s.max(0.001);
            let mean_us = entries.iter().map(|e| e.us as f64).sum::<f64>() / entries.len() as f64;
            let what = if size.kind == "string" { bytes(size.length as f64) } else { format!("{} elements", count(size.length as f64)) };
            let mut finding = Finding::new(format!(
                "One {} of {what} stops {} for up to {}: {} is slow on it",
                size.kind, node.address, time_us(worst.us as f64), worst.command
            ))
            .on([node.address.as_str()]);
            finding = if in_window.is_empty() {
                finding.risk(format!("{} slow commands on it in the last hour, none in the window", entries.len())).likely("seen in the slow log, not in the window")
            } else {
                finding
                    .latency(busy.min(1.0) * mean_us / 2000.0 + busy * 0.001, format!("{} of all requests wait, {} on average", percent(busy.min(1.0)), time_us(mean_us / 2.0)))
                    .proven("the slow log timed the commands, the key's own length explains them")
            };
            finding = finding
                .gain(format!("pages of 100 elements: {} a command", time_us(worst.us as f64 * 100.0 / size.length.max(1) as f64)), format!("{} us x 100 / {} elements", worst.us, size.length))
                .saw_then(node, "SLOWLOG GET 128", format!("{} {}: {} entries in the last hour, the longest {}, by {} {}", worst.command, size.key, entries.len(), time_us(worst.us as f64), worst.client, worst.client_name), worst.at_s * 1000)
                .saw(node, "TYPE key; HLEN, LLEN, SCARD, ZCARD or STRLEN key", format!("{}: {} of {what} (run with --show-keys to see its name)", size.key, size.kind))
                .fix("Read and write it in parts", &["HSCAN key 0 COUNT 100   in place of HGETALL", "LRANGE key 0 99   in place of LRANGE key 0 -1", "UNLINK key   in place of DEL key"], "the application must cope with pages", "whole reads again")
                .fix("Split it: one key per part, hashed by field", &["key:{id % 64}"], "a change of the data model", "merge the parts");
            let worth = if in_window.is_empty() { 0.0 } else { busy } + worst.us as f64 / 1e12;
            if best.as_ref().is_none_or(|(w, _)| worth > *w) {
                best = Some((worth, finding));
            }
        }
    }
    match (best, unknown) {
        (Some((_, finding)), _) => finding.into(),
        (None, Some((why, grant))) => Verdict::Unknown { why, grant },
        (None, None) => Verdict::Absent(Some("big keys: none that the slow log names".into())),
    }
}
