//! KEYS walks the whole keyspace while every other client waits.
//!
//! KEYS looks at every key of the database in one go: 40 to 100 ms for a million keys, and nothing else is served until
//! it is done. It hides in admin pages, cache invalidation, scripts and "just counting".
//!
//! Seen when: KEYS ran in the window and took over 1 ms a call or 1 % of a core. KEYS that is only in the slow log of
//! the last hour is over, and is reported as a risk.
//!
//! KEYS inside a script is one stall, although commandstats counts it twice, under KEYS and in the script's own time:
//! it is reported here, with the script as its consequence. The slow log of some versions leaves out calls from
//! scripts; in others they are right before their script.
//!
//! Not to be taken for: one big key (`big_key`), whose cost depends on the key and not on the keyspace.
//!
//! What to do: SCAN in small steps, an index set, or no access: ACL -keys (6.0+).
//! Sources: Redis documentation of KEYS; commandstats, SLOWLOG.

use unslow_facts::SlowEntry;

use super::prelude::*;
use crate::Link;

pub const TITLE: &str = "KEYS in production";
pub const LEADS_TO: &[&str] = &["main_thread_saturated", "node_timeout_margin", "expire_starved"];
pub const INJECTED: Injected = Injected::Yes;

const HOUR_S: u64 = 3600;

/// What one node shows of KEYS.
struct Keys<'a> {
    node: &'a Node,
    held: Held,
    /// Entries of the last hour, newest first.
    logged: Vec<&'a SlowEntry>,
    /// The scripts that call it, if scripts do.
    scripts: Option<Scripts>,
}

enum Scripts {
    /// In the window, with their whole time.
    Now(Held),
    /// In the slow log only.
    Past,
}

impl Keys<'_> {
    fn costs_now(&self) -> bool {
        self.held.calls > 0.0 && (self.held.mean_us() > 1000.0 || self.held.share() > 0.01)
    }

    fn worst_us(&self) -> f64 {
        self.logged.iter().map(|e| e.us as f64).fold(0.0, f64::max)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Keys> = facts.live().map(look).collect();
    let (calls, share) = all.iter().fold((0.0, 0.0f64), |(c, s), k| (c + k.held.calls, s.max(k.held.share())));
    let rows: Vec<Keys> = all.into_iter().filter(|k| k.costs_now() || !k.logged.is_empty()).collect();
    let rows = by_worst(rows, |k| if k.costs_now() { 1.0 + k.held.share() } else { k.worst_us() / 1e12 });
    match rows.first() {
        None => absent(facts, calls, share),
        Some(k) if k.costs_now() => now(k).on(subjects(&rows, true)).into(),
        Some(k) => past(k).on(subjects(&rows, false)).into(),
    }
}

fn subjects(rows: &[Keys], now: bool) -> Vec<String> {
    rows.iter().filter(|k| k.costs_now() == now).map(|k| k.node.address.clone()).collect()
}

fn look(node: &Node) -> Keys<'_> {
    let mut logged: Vec<&SlowEntry> = slow_entries(node, HOUR_S).into_iter().filter(|e| e.command == "KEYS").collect();
    logged.sort_by_key(|e| std::cmp::Reverse(e.at_s));
    let held = held(node, &["=keys"]);
    let all = slow_entries(node, HOUR_S);
    let scripts = match in_scripts(node, "keys") {
        Some(scripts) => Some(Scripts::Now(scripts)),
        None if held.calls > 0.0 || logged.is_empty() => None,
        None => logged.iter().all(|e| script_around(&all, e).is_some()).then_some(Scripts::Past),
    };
    Keys { node, held, logged, scripts }
}

fn absent(facts: &Facts, calls: f64, share: f64) -> Verdict {
    let log = if facts.live().all(|n| n.slowlog.value().is_some()) {
        "none in the slow log of the last hour"
    } else {
        "the slow log was not seen everywhere"
    };
    let text = if calls > 0.0 {
        format!("KEYS: {} calls in the window, at most {} of it; {log}", count(calls), percent(share))
    } else {
        format!("KEYS: not called in the window; {log}")
    };
    absent_by_commandstats(facts, "KEYS", text)
}

fn now(k: &Keys) -> Finding {
    let (node, keys) = (k.node, keys_of(k.node));
    let whole = if keys > 0.0 { format!("all {} keys", count(keys)) } else { "the keyspace".to_string() };
    let inside = if k.scripts.is_some() { " inside scripts" } else { "" };
    let (ms, wait) = match &k.scripts {
        Some(Scripts::Now(scripts)) => k.held.inside(scripts).others_wait(),
        _ => k.held.others_wait(),
    };
    let mut finding = Finding::new(format!(
        "KEYS{inside} walks {whole} of {}: {} calls in {:.1} s, {}",
        node.address,
        count(k.held.calls),
        node.window_s,
        k.held.figures()
    ))
    .latency(ms, wait)
    .proven("timed by the server's own clock for KEYS, in this window")
    .saw(node, "INFO commandstats", commandstats("KEYS", &k.held));
    // Steps of 100 keys, each of them served between other commands.
    if keys > 100.0 {
        let mean = k.held.mean_us();
        finding = finding.gain(
            format!(
                "with SCAN, other clients wait for a step of {} instead of {}",
                time_us(mean * 100.0 / keys),
                time_us(mean)
            ),
            format!("{mean:.0} us a call x 100 keys a step / {keys:.0} keys = {:.1} us", mean * 100.0 / keys),
        );
    }
    if let Some(oldest) =
        k.logged.last().map(|e| logged_ms(node, e.at_s)).filter(|at| first_ms(node).is_some_and(|f| *at < f))
    {
        finding = finding.since(oldest);
    }
    if let Some(Scripts::Now(scripts)) = &k.scripts {
        finding = inside_scripts(finding, node, &k.held, scripts);
    }
    mend(logged(finding, k), k)
}

fn first_ms(node: &Node) -> Option<u64> {
    node.first.as_ref().map(|s| s.at_ms)
}

/// The script is the consequence: its time is that of KEYS, counted once more.
fn inside_scripts(mut finding: Finding, node: &Node, keys: &Held, scripts: &Held) -> Finding {
    let part = percent((keys.inside_us / scripts.inside_us.max(1.0)).min(1.0));
    finding.chain.push(Link {
        id: "long_script".into(),
        subject: node.address.clone(),
        at_ms: node.at_ms(),
        text: format!(
            "scripts on {} hold its main thread: {}; {part} of that is KEYS",
            node.address,
            scripts.figures()
        ),
    });
    finding.saw(
        node,
        "INFO commandstats",
        format!("{}; KEYS is {part} of their time", commandstats("scripts", scripts)),
    )
}

fn past(k: &Keys) -> Finding {
    let node = k.node;
    let last = k.logged.first().map_or(0, |e| logged_ms(node, e.at_s));
    let inside = if k.scripts.is_some() { " inside scripts" } else { "" };
    let finding = Finding::new(format!(
        "KEYS{inside} held up {} in the last hour: {} slow calls, {} at most, the last one {}",
        node.address,
        count(k.logged.len() as f64),
        time_us(k.worst_us()),
        ago(node.at_ms(), last)
    ))
    .risk(format!(
        "{} in the window; such a call stops every other client for up to {}",
        in_window(&k.held),
        time_us(k.worst_us())
    ))
    .past(last)
    .likely("the server timed these calls; in this window there was none like them");
    mend(logged(finding, k), k)
}

fn in_window(held: &Held) -> String {
    if held.calls > 0.0 { format!("only {} short calls", count(held.calls)) } else { "none".into() }
}

fn logged(mut finding: Finding, k: &Keys) -> Finding {
    for entry in k.logged.iter().take(2) {
        let value = format!("KEYS {}{}", time_us(entry.us as f64), sender(entry));
        finding = finding.saw_then(k.node, "SLOWLOG GET 128", value, logged_ms(k.node, entry.at_s));
    }
    finding
}

fn commandstats(what: &str, held: &Held) -> String {
    format!("{what}: {} calls, {} each", count(held.calls), time_us(held.inside_us / held.calls.max(1.0)))
}

fn mend(finding: Finding, k: &Keys) -> Finding {
    let scan_twice = "SCAN may return a key twice, and it sees changes made while it runs";
    let finding = if k.scripts.is_some() {
        finding.fix(
            "Do not use KEYS in scripts: find the names beforehand, and pass them to the script",
            &["SCAN 0 MATCH pattern COUNT 100   in the client", "EVALSHA sha 2 name1 name2   with what was found"],
            "the script no longer sees keys that are written in between",
            "",
        )
    } else {
        finding.fix(
            "In the client: SCAN in steps, or keep the names in a set",
            &["SCAN 0 MATCH pattern COUNT 100   until the cursor is 0 again", "SSCAN names 0 COUNT 100"],
            scan_twice,
            "",
        )
    };
    let address = &k.node.address;
    match k.node.level() {
        (0, 0) => finding,
        level if level >= (6, 0) => finding.fix(
            "Take the command away from the application's user",
            &[&cli(address, "ACL SETUSER <user> -keys")],
            "a client that still sends KEYS gets NOPERM",
            &cli(address, "ACL SETUSER <user> +keys"),
        ),
        _ => finding.fix(
            "Take the command away from applications: there are no ACLs before 6.0, so rename it and restart",
            &["rename-command KEYS \"\"   in redis.conf"],
            "a client that still sends KEYS gets an error; the server restarts",
            "remove the line and restart",
        ),
    }
}

fn keys_of(node: &Node) -> f64 {
    node.info().map_or(0.0, |i| i.keys() as f64)
}
