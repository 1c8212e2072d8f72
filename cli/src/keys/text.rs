//! The report of a walk, for a terminal.

use std::fmt::Write;
use std::time::Duration;

use anstyle::Style;
use unslow_keys::estimate::Estimate;
use unslow_keys::{HotServer, KeyRow, PatternRow, Report};
use unslow_topology::{DeploymentKind, Role};
use unslow_units::{bytes, count, percent, plural, time, time_rough_s};

use crate::output::style;
use crate::table::table;

/// What the report itself does not know.
pub struct Head {
    pub url: String,
    pub kind: DeploymentKind,
    pub took: Duration,
}

pub fn report(report: &Report, head: &Head, top: usize) -> String {
    let mut out = summary(report, head);
    report.hot.iter().for_each(|server| hot(server, top, &mut out));
    if report.scanned > 0 {
        kinds(report, &mut out);
        patterns(report, top, &mut out);
        largest(report, top, &mut out);
    }
    for note in &report.notes {
        let _ = writeln!(out, "\n{}", fill(&format!("note: {note}")));
    }
    out
}

fn fill(text: &str) -> String {
    crate::output::fill(text, textwrap::termwidth())
}

fn line(out: &mut String, style: Style, text: &str) {
    let _ = writeln!(out, "{style}{}{style:#}", fill(text));
}

fn summary(report: &Report, head: &Head) -> String {
    let kind = match head.kind {
        DeploymentKind::Cluster => "cluster",
        DeploymentKind::Sentinel => "Sentinel deployment",
        DeploymentKind::MasterReplica => "master with replicas",
        DeploymentKind::Standalone => "single server",
    };
    let keys = |n: u64| count(n as f64);
    let mut out = String::new();
    let seen = match report.is_complete {
        true if report.keys == 0 => "no keys".to_string(),
        true => format!("all {} keys seen", keys(report.keys)),
        false if report.scanned == 0 => "no keys seen".to_string(),
        false => {
            let share = report.scanned as f64 / report.keys.max(1) as f64;
            format!("{} of {} keys seen ({})", keys(report.scanned), keys(report.keys), percent(share))
        }
    };
    line(&mut out, style::TITLE, &format!("{seen} in {}: {kind} at {}", time(head.took), head.url));
    let replicas = report.costs.iter().filter(|cost| cost.role == Role::Replica).count();
    let masters = report.costs.len() - replicas;
    let most = report.costs.iter().filter_map(|cost| cost.core_share_in_commands).reduce(f64::max);
    let commands: u64 = report.costs.iter().map(|cost| cost.commands).sum();
    if !report.costs.is_empty() {
        let at = match (replicas, masters) {
            (0, n) => plural(n, "master"),
            (n, 0) => plural(n, "replica"),
            (r, m) => format!("{} and {}", plural(r, "replica"), plural(m, "master")),
        };
        let ran = match most {
            Some(share) => format!("which ran for {} of a core on the busiest server", percent(share)),
            None => "whose running time is unknown: no server answered at the end".into(),
        };
        let cost = format!("read on {at}; cost: {} commands, {ran}", keys(commands));
        line(&mut out, style::FAINT, &cost);
    }
    if !report.is_complete && report.scanned > 0 {
        let bound = match report.larger_unseen_at_most {
            Some(1) => "at 95 % confidence at most 1 unseen key is larger than the largest listed".into(),
            Some(n) => {
                format!("at 95 % confidence at most {} unseen keys are larger than the largest listed", count(n as f64))
            }
            None => "how many larger keys are unseen is not known, as a shard was not looked at".into(),
        };
        line(&mut out, style::FAINT, &format!("{bound}; ± is the 95 % margin"));
    }
    out
}

fn estimate(of: Estimate, shown: impl Fn(f64) -> String) -> String {
    if of.margin > 0.0 { format!("{} ±{}", shown(of.value), shown(of.margin)) } else { shown(of.value) }
}

/// There is no half of a key.
fn whole(keys: f64) -> String {
    count(keys.round())
}

fn title(out: &mut String, text: &str) {
    let style = style::TITLE;
    let _ = writeln!(out, "\n{style}{text}{style:#}");
}

fn kinds(report: &Report, out: &mut String) {
    let mut titles = vec!["type", "keys"];
    titles.extend(report.questions.memory.then_some("memory"));
    titles.extend(["no TTL", "longest"]);
    let mut rows = vec![titles.iter().map(|t| t.to_string()).collect::<Vec<_>>()];
    for kind in &report.kinds {
        let mut row = vec![kind.kind.clone(), estimate(kind.keys, whole)];
        row.extend(report.questions.memory.then(|| memory(kind.memory)));
        row.extend([share(kind.lasting_share), length(kind.longest, &kind.kind)]);
        rows.push(row);
    }
    title(out, "Types");
    *out += &table(&rows);
    for kind in &report.kinds {
        let largest = kind.sizes.iter().flatten().max_by_key(|class| class.from);
        let Some((unseen, class)) = kind.larger_unseen_at_least.filter(|n| *n > 0).zip(largest) else { continue };
        let longer = if kind.longest.is_some() { ", longer than any that was" } else { "" };
        let (has, what) = (if unseen == 1 { "it has" } else { "the longest has" }, unit(&kind.kind));
        let text = format!(
            "not seen: {} of type {}{longer}; {has} at least {} {what}s (INFO keysizes)",
            plural(unseen as usize, "key"),
            kind.kind,
            count(class.from as f64)
        );
        let _ = writeln!(out, "{}", fill(&text));
    }
}

/// What the length of a key is counted in.
fn unit(kind: &str) -> &'static str {
    match kind {
        "string" => "byte",
        "hash" => "field",
        "stream" => "entry",
        _ => "element",
    }
}

fn hot(server: &HotServer, top: usize, out: &mut String) {
    let shown = |share: Option<f64>| share.map_or_else(|| "-".into(), percent);
    let mut rows = vec![["CPU", "network", "key", "pattern"].map(String::from).to_vec()];
    for row in server.keys.iter().take(top) {
        rows.push(vec![shown(row.cpu_share), shown(row.net_share), clean(&row.key), clean(&row.pattern)]);
    }
    let name = format!(
        "Hot keys of {} over {} (its commands took {} of a core; traffic {}/s)",
        server.server,
        time_rough_s(server.seconds),
        percent(server.core_share),
        bytes(server.net_bytes_s)
    );
    title(out, &fill(&name));
    *out += &if server.keys.is_empty() { "no command that was counted used a key\n".to_string() } else { table(&rows) };
}

fn length(of: Option<u64>, kind: &str) -> String {
    match (of, kind) {
        (None, _) => "-".into(),
        (Some(n), "string") => bytes(n as f64),
        (Some(n), kind) => plural(n as usize, unit(kind)),
    }
}

fn patterns(report: &Report, top: usize, out: &mut String) {
    let memory = report.questions.memory;
    let mut titles = vec!["pattern"];
    titles.extend(memory.then_some("memory"));
    titles.extend(["keys", "share", "no TTL", "types"]);
    let mut rows = vec![titles.iter().map(|t| t.to_string()).collect::<Vec<_>>()];
    let all: f64 = report.kinds.iter().filter_map(|kind| kind.memory).map(|memory| memory.value).sum();
    for row in report.patterns.iter().take(top) {
        rows.push(pattern(row, memory, all));
    }
    title(out, if memory { "Patterns, by memory" } else { "Patterns, by keys" });
    *out += &table(&rows);
    let more = report.patterns.len().saturating_sub(top);
    if more > 0 {
        let _ = writeln!(out, "{more} more (--top {} shows them)", report.patterns.len());
    }
    if report.patterns_left_out > 0 {
        let _ = writeln!(out, "{} small ones are left out", report.patterns_left_out);
    }
}

fn pattern(row: &PatternRow, has_memory: bool, all_bytes: f64) -> Vec<String> {
    let mut cells = vec![clean(&row.pattern)];
    cells.extend(has_memory.then(|| memory(row.memory)));
    cells.push(estimate(row.keys, whole));
    let of_all = row.memory.filter(|_| all_bytes > 0.0).map_or(row.share_of_keys, |memory| memory.value / all_bytes);
    cells.extend([percent(of_all), share(row.lasting_share), row.kinds.join(" ")]);
    cells
}

fn memory(of: Option<Estimate>) -> String {
    of.map_or_else(|| "-".into(), |memory| estimate(memory, bytes))
}

fn share(of: Option<f64>) -> String {
    of.map_or_else(|| "-".into(), percent)
}

fn largest(report: &Report, top: usize, out: &mut String) {
    let mut list = |what: &str, keys: Vec<&KeyRow>, figure: &dyn Fn(&KeyRow) -> String| {
        if keys.is_empty() {
            return;
        }
        let titles = [what, "key", "pattern", "type", "TTL", "server"];
        let mut rows = vec![titles.iter().map(|t| t.to_string()).collect::<Vec<_>>()];
        for key in keys {
            let ttl = match key.ttl_s {
                Some(s) => time_rough_s(s),
                None if key.ttl_known => "none".into(),
                None => "-".into(),
            };
            let server =
                if key.database == 0 { key.server.clone() } else { format!("{} -n {}", key.server, key.database) };
            rows.push(vec![figure(key), clean(&key.key), clean(&key.pattern), key.kind.clone(), ttl, server]);
        }
        title(out, &format!("Largest by {what}"));
        *out += &table(&rows);
    };
    let number = |n: Option<u64>| n.map_or_else(|| "-".into(), |n| count(n as f64));
    list("uses", report.hottest.iter().take(top).collect(), &|key| number(key.uses));
    list("memory", report.heaviest.iter().take(top).collect(), &|key| {
        key.memory.map_or_else(|| "-".into(), |n| bytes(n as f64))
    });
    // The largest of each type, then the next ones.
    let mut longest: Vec<(usize, &KeyRow)> = Vec::new();
    for key in &report.longest {
        let nth = longest.iter().filter(|(_, other)| other.kind == key.kind).count();
        longest.push((nth, key));
    }
    longest.sort_by_key(|(nth, _)| *nth);
    let mut longest: Vec<&KeyRow> = longest.into_iter().take(top).map(|(_, key)| key).collect();
    longest.sort_by(|a, b| (&a.kind, b.length).cmp(&(&b.kind, a.length)));
    list("length", longest, &|key| length(key.length, &key.kind));
}

/// A name on one line, and not endless.
fn clean(name: &str) -> String {
    const LONGEST: usize = 60;
    let mut text: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).take(LONGEST).collect();
    if name.chars().count() > LONGEST {
        text += "...";
    }
    if text.is_empty() { "(empty)".into() } else { text }
}
