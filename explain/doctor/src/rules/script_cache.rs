//! Every call brings a new script: the server compiles each, and keeps scripts that are never called again.
//!
//! A script is identified by its whole text. If values are written into the text, instead of being passed in KEYS and
//! ARGV, each call is another script. It is compiled, which costs many times what running it costs, and kept: forever
//! before Redis 7.4 and Valkey 8; since then, the newest 500 of EVAL.
//!
//! Seen when: over a thousand scripts are cached, or EVAL's were dropped in the window to make room, and at least half
//! of the EVALs and SCRIPT LOADs in the window brought a new one, at least ten a second. It has a cost if they take a
//! twentieth of a core, or the scripts a twentieth of the memory; otherwise it is a risk.
//!
//! Not to be taken for: EVAL with the same few bodies over and over, which only sends and hashes them; a SCRIPT LOAD
//! once per deployment; a script that runs long (`long_script`).
//!
//! How to confirm: `INFO memory` twice: number_of_cached_scripts, used_memory_scripts; `INFO stats` evicted_scripts
//! (7.4+, Valkey 8); `INFO commandstats` eval.
//!
//! What to do: use one text with KEYS and ARGV, called by EVALSHA. `SCRIPT FLUSH ASYNC` frees what is cached.
//! Sources: INFO number_of_cached_scripts, used_memory_scripts, used_memory_vm_eval, evicted_scripts; MEMORY DOCTOR
//! (1000 scripts).

use super::memory;
use super::prelude::*;

pub const TITLE: &str = "Script cache";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// MEMORY DOCTOR's threshold.
const MANY: f64 = 1000.0;
/// New scripts a second.
const PER_S: f64 = 10.0;
/// Of the EVALs: they bring a new script.
const NEW: f64 = 0.5;
/// Of a core, and of the memory.
const COSTS: f64 = 0.05;

/// The scripts of one server.
struct Cache<'a> {
    node: &'a Node,
    cached: f64,
    /// New ones a second.
    new_per_s: f64,
    /// Dropped in the window to make room.
    dropped: f64,
    evals: Spent,
    bytes: f64,
    share: f64,
}

impl Cache<'_> {
    fn grows(&self) -> bool {
        let known_by_count = self.cached >= MANY || self.dropped > 0.0;
        known_by_count && self.new_per_s >= PER_S && self.new_per_s >= NEW * self.evals.rate
    }

    /// Share of a core that EVALs of new scripts take.
    fn core(&self) -> f64 {
        self.evals.share * (self.new_per_s / self.evals.rate.max(0.001)).min(1.0)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let all: Vec<Cache> = facts.live().filter_map(|node| look(facts, node)).collect();
    let all = by_worst(all, |c| c.core() + c.share);
    let rows: Vec<&Cache> = all.iter().filter(|c| c.grows()).collect();
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|c| c.node.address.as_str())).into();
    }
    let text = all.iter().max_by(|a, b| a.new_per_s.total_cmp(&b.new_per_s)).map(|most| {
        format!(
            "script cache: at most {} scripts, {} new ones a second",
            count(all.iter().map(|c| c.cached).fold(0.0, f64::max)),
            count(most.new_per_s)
        )
    });
    Verdict::absent(facts, "script cache", text)
}

fn look<'a>(facts: &Facts, node: &'a Node) -> Option<Cache<'a>> {
    let cached = node.number("number_of_cached_scripts")?;
    // SCRIPT FLUSH in the window makes it less: what was new then is not known.
    let grown = node.delta("number_of_cached_scripts").unwrap_or(0.0);
    let dropped = node.delta("evicted_scripts").unwrap_or(0.0);
    let number = |field: &str| node.number(field).unwrap_or(0.0);
    let bytes = number("used_memory_scripts") + number("used_memory_lua").max(number("used_memory_vm_eval"));
    let share = memory::room(facts, node).map_or(0.0, |limit| bytes / limit.bytes.max(1.0));
    Some(Cache {
        node,
        cached,
        new_per_s: (grown + dropped) / node.window_s.max(0.001),
        dropped,
        evals: spent(node, &["eval", "eval_ro", "script|load"]),
        bytes,
        share,
    })
}

fn found(c: &Cache) -> Finding {
    let node = c.node;
    let kept = if c.dropped > 0.0 {
        format!("; {} were dropped again to make room", count(c.dropped))
    } else {
        format!("; {} are kept, in {}", count(c.cached), bytes(c.bytes))
    };
    let finding =
        Finding::new(format!("Clients of {} send {} new scripts a second{kept}", node.address, count(c.new_per_s)));
    let core = c.core();
    let finding = if core >= COSTS {
        finding
            .core(
                core,
                format!(
                    "{} of a core for EVALs that are compiled first, {} each",
                    percent(core),
                    time_us(c.evals.mean_us)
                ),
            )
            .gain(
                "with one text and EVALSHA, only running it is left to pay",
                format!("{:.0} EVALs a second x {:.0} us = {core:.3} of a core", c.evals.rate, c.evals.mean_us),
            )
            .likely("new scripts and the time in EVAL were counted in this window; how much of it is compiling was not")
    } else if c.share >= COSTS {
        finding
            .memory(c.share.min(1.0), format!("{} are scripts and their compiled form", bytes(c.bytes)))
            .gain(
                format!("{} freed", bytes(c.bytes)),
                "SCRIPT FLUSH frees all of it; scripts that are called again have to be sent again",
            )
            .proven("counted by the server in this window")
    } else {
        finding
            .risk(if c.dropped > 0.0 {
                "each script is compiled, and dropped before it is called again"
            } else {
                "the cache grows for as long as the server runs, and each script is compiled"
            })
            .likely("counted by the server in this window; so far it takes little of the core and of the memory")
    };
    finding
        .saw(
            node,
            "INFO memory",
            format!("number_of_cached_scripts:{:.0}, {} with the interpreter", c.cached, bytes(c.bytes)),
        )
        .saw(
            node,
            "INFO stats",
            format!("new scripts +{:.0}, evicted_scripts +{:.0}", c.new_per_s * node.window_s, c.dropped),
        )
        .saw(
            node,
            "INFO commandstats",
            format!("eval and script|load +{} calls, {} each", c.evals.calls, time_us(c.evals.mean_us)),
        )
        .fix(
            "Write one script with KEYS and ARGV for the parts that vary, load it once, and call it by its digest",
            &["SCRIPT LOAD \"return redis.call('GET', KEYS[1])\"", "EVALSHA digest 1 key   (in the application)"],
            "after a restart the server answers NOSCRIPT: send EVAL once then",
            "",
        )
        .fix(
            "Free what is cached",
            &[&cli(&node.address, if node.level() >= (6, 2) { "SCRIPT FLUSH ASYNC" } else { "SCRIPT FLUSH" })],
            "scripts in use answer NOSCRIPT until they are sent again",
            "",
        )
}
