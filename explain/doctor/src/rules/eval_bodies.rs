//! Scripts are sent in full with each call: EVAL where EVALSHA would do.
//!
//! EVAL carries the script's text, which is thousands of bytes for what a rate limiter, a lock or a queue library
//! needs. The server reads the text and hashes it, only to find that it compiled the script long ago. EVALSHA sends the
//! 40 characters of the digest instead.
//!
//! Seen when: EVAL is called over 50 times a second and EVALSHA less than a tenth as often, the scripts that the server
//! keeps are over 200 bytes long on average, and their texts take over 1 % of a core, or of a gigabit link. The
//! estimate never exceeds the bytes that came in over the network, nor the time that EVAL took; from 7.0 on the server
//! hashes the text before it begins to time the command, and the bound is the main thread's user CPU time.
//!
//! Not to be taken for: `long_script`, where a script runs for a long time; a client that sends EVAL once, after
//! NOSCRIPT; scripts whose texts differ from call to call, for which EVALSHA does not help until they take arguments
//! (`script_cache`): half of the calls or more bring a text that the server has not seen.
//!
//! How to confirm: run `INFO commandstats` twice: compare cmdstat_eval with cmdstat_evalsha; `INFO stats`:
//! total_net_input_bytes; `INFO memory`: used_memory_scripts_eval (before 7.0 used_memory_scripts) /
//! number_of_cached_scripts.
//!
//! What to do: EVALSHA with EVAL on NOSCRIPT, which most libraries do on their own; functions (7.0+).
//! Sources: INFO commandstats, memory and stats; eval.c (each EVAL hashes its script); Redis documentation of EVALSHA.

use super::callers;
use super::prelude::*;

pub const TITLE: &str = "Script bodies sent each time";
pub const LEADS_TO: &[&str] = &["main_thread_saturated"];
pub const INJECTED: Injected = Injected::Yes;

const EVAL: &[&str] = &["eval", "eval_ro"];
const BY_DIGEST: &[&str] = &["evalsha", "evalsha_ro"];
/// Calls a second, and how many of them may come by digest.
const LEAST: f64 = 50.0;
const FEW: f64 = 0.1;
/// New scripts to each EVAL: from here on their texts differ, and a digest would not be found.
const DIFFER: f64 = 0.5;
/// Bytes of a script, on average.
const LONG: f64 = 200.0;
/// What the server keeps of a script beside its text, in bytes: some 160 on Valkey 9.1.
const KEPT_BESIDE: f64 = 160.0;
/// What EVALSHA sends in place of the text.
const DIGEST: f64 = 40.0;
/// Hashing a byte with the SHA-1 that the servers bring, which is portable C, and reading it into place, in ns: 2.0
/// to 2.3 together on Redis 6.2 and 8.10 and Valkey 9.1, scripts of 8 and 30 kB
/// (bench/runs/2026-11-28-two-cores/odd-engines.md).
const HASH_NS: f64 = 1.9;
const READ_NS: f64 = 0.3;
/// Shares of a core and of a link, and what the link carries, in bytes a second.
const SHARE: f64 = 0.01;
const GIGABIT: f64 = 125e6;

/// The scripts that one server is sent.
struct Bodies<'a> {
    node: &'a Node,
    /// EVAL a second.
    rate: f64,
    /// EVALSHA a second.
    by_digest: f64,
    /// Bytes of a script's text, on average, of this many scripts.
    body: Option<(f64, f64)>,
    /// Share of a core inside EVAL.
    inside: f64,
    /// Share of a core within which the texts are hashed.
    hashed_within: f64,
    /// Scripts that the server had not known, a second.
    new: f64,
}

impl Bodies<'_> {
    /// `None` where commands were not counted, or the counters were reset.
    fn of(node: &Node) -> Option<Bodies<'_>> {
        node.application_ops()?;
        let (eval, by_digest) = (spent(node, EVAL), spent(node, BY_DIGEST));
        let grown = |field: &str| node.rate(field).unwrap_or(0.0);
        let new = grown("number_of_cached_scripts") + grown("evicted_scripts");
        Some(Bodies {
            node,
            rate: eval.rate,
            by_digest: by_digest.rate,
            body: body(node, eval.rate),
            inside: eval.share,
            hashed_within: match node.cpu() {
                Some((user, _)) if node.level() >= (7, 0) => user.max(eval.share),
                _ => eval.share,
            },
            new,
        })
    }

    /// EVAL a second with a text that the server knew.
    fn again(&self) -> f64 {
        (self.rate - self.new).max(0.0)
    }

    /// Bytes a second that EVALSHA would not send.
    fn wasted(&self) -> f64 {
        self.body.map_or(0.0, |(body, _)| self.again() * (body - DIGEST).max(0.0))
    }

    /// Share of a core.
    fn core(&self) -> f64 {
        (self.wasted() * HASH_NS / 1e9).min(self.hashed_within) + self.wasted() * READ_NS / 1e9
    }

    /// Whether scripts come by text, and often.
    fn is_habit(&self) -> bool {
        self.rate > LEAST && self.by_digest < FEW * self.rate && self.new < DIFFER * self.rate && self.node.is_master()
    }

    fn hurts(&self) -> bool {
        let long = self.body.is_some_and(|(body, _)| body > LONG);
        self.is_habit() && long && (self.core() > SHARE || self.wasted() > SHARE * GIGABIT)
    }
}

/// Bytes of the texts of the scripts that the server keeps, on average, and how many there are; not more than came in
/// for each EVAL.
fn body(node: &Node, rate: f64) -> Option<(f64, f64)> {
    let scripts = node.number("number_of_cached_scripts").filter(|n| *n >= 1.0)?;
    let kept = node.number("used_memory_scripts_eval").or_else(|| node.number("used_memory_scripts"))?;
    let came = node.rate("total_net_input_bytes")? / rate.max(0.001);
    Some(((kept / scripts - KEPT_BESIDE).max(0.0).min(came), scripts))
}

pub fn check(facts: &Facts) -> Verdict {
    const WHAT: &str = "texts of scripts";
    let all: Vec<Bodies<'_>> = facts.live().filter_map(Bodies::of).collect();
    let rows = by_worst(all.iter().filter(|b| b.hurts()).collect(), |b| b.wasted());
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|b| b.node.address.as_str())).into();
    }
    if let Some(b) = all.iter().find(|b| b.is_habit() && b.body.is_none()) {
        let why = format!(
            "{WHAT}: {} does not show how long the scripts it keeps are ({})",
            b.node.version_text(),
            b.node.address
        );
        return Verdict::unknown(Lack::Version, why, "look at the client's code: EVAL or EVALSHA");
    }
    match by_worst(all.iter().collect(), |b| b.rate).first() {
        None => Verdict::absent(facts, WHAT, None),
        Some(b) if b.rate <= 0.0 => absent_by_commandstats(facts, WHAT, format!("{WHAT}: no EVAL in the window")),
        Some(b) => {
            let length = b.body.map_or(String::new(), |(body, _)| format!(", at most {} each on average", bytes(body)));
            let new = if b.new >= DIFFER * b.rate {
                format!(
                    ", {} new scripts a \
                second",
                    count(b.new)
                )
            } else {
                String::new()
            };
            let text =
                format!("{WHAT}: EVAL {} times a second, EVALSHA {}{length}{new}", count(b.rate), count(b.by_digest));
            absent_by_commandstats(facts, WHAT, text)
        }
    }
}

fn found(b: &Bodies<'_>) -> Finding {
    let node = b.node;
    let (core, wasted) = (b.core(), b.wasted());
    let (body, scripts) = b.body.unwrap_or_default();
    let mut finding = Finding::new(format!(
        "Clients of {} send the text of their scripts with each call: {} EVAL a second of about {} each",
        node.address,
        count(b.rate),
        bytes(body)
    ))
    .core(core, format!("about {} of a core goes into reading and hashing {} a second", percent(core), bytes(wasted)))
    .gain(
        format!(
            "with EVALSHA, {} a second less on the network, and about {} of a core free again",
            bytes(wasted),
            percent(core)
        ),
        format!(
            "{:.0} calls/s x ({body:.0} - {DIGEST:.0}) bytes = {wasted:.0} bytes/s, at {HASH_NS} + {READ_NS} ns a byte",
            b.again()
        ),
    )
    .likely(
        "the server counted the calls; the length is the mean of the scripts it keeps, and the cost of a byte is an \
         estimate",
    )
    .saw(
        node,
        "INFO commandstats",
        format!(
            "EVAL {} and EVALSHA {} a second, {} of a core inside \
                 EVAL",
            count(b.rate),
            count(b.by_digest),
            percent(b.inside)
        ),
    )
    .saw(node, "INFO memory", format!("{} scripts kept, {} of text each on average", count(scripts), bytes(body)));
    if let Some(input) = node.rate("total_net_input_bytes") {
        finding = finding.saw(node, "INFO stats", format!("total_net_input_bytes +{} a second in all", bytes(input)));
    }
    finding = callers::shown(finding, node, EVAL);
    let mean = spent(node, EVAL).mean_us;
    finding = finding.not(format!("long scripts: {} each", time_us(mean)));
    let ways = callers::advice(
        node,
        &[
            (
                "jedis",
                "Jedis: sha = jedis.scriptLoad(text) once; jedis.evalsha(sha, keys, args); eval on \
                       JedisNoScriptException",
            ),
            (
                "lettuce",
                "Lettuce: commands.evalsha(commands.digest(text), ...); Spring: DefaultRedisScript, one \
                         instance kept",
            ),
            ("redis-py", "redis-py: script = r.register_script(text) once; script(keys=.., args=..)"),
            ("go-redis", "go-redis: script := redis.NewScript(text) once; script.Run(ctx, rdb, keys, args...)"),
            ("ioredis", "ioredis: redis.defineCommand(name, { numberOfKeys: 1, lua: text })"),
            (
                "php",
                "phpredis: $redis->evalSha($sha, $args, $keys); eval() when it returns false and the error is \
                     NOSCRIPT",
            ),
        ],
    );
    finding = finding.fix(
        "Use EVALSHA, and EVAL only when the server answers NOSCRIPT",
        &ways,
        "after a restart, a failover or SCRIPT FLUSH the first call gets NOSCRIPT: in a pipeline or MULTI, SCRIPT LOAD \
         must go first",
        "",
    );
    if node.level() < (7, 0) {
        return finding;
    }
    finding.fix(
        "Or use functions: they are loaded once, and saved and replicated with the data",
        &[&cli(&node.address, "-x FUNCTION LOAD REPLACE < library.lua"), "FCALL name 1 key ARGUMENT"],
        "library names are shared by the whole server: choose one that is not taken",
        &cli(&node.address, "FUNCTION DELETE LIBRARY"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use unslow_facts::Sample;
    use unslow_topology::{Info, Role};

    /// Ten seconds with this many calls by text and by digest, of scripts of this many bytes.
    fn facts(eval: u64, evalsha: u64, length: u64, more: &str) -> Facts {
        let first = Info::parse(
            "redis_version:7.2.4\r\nrole:master\r\ntotal_commands_processed:0\r\ntotal_net_input_bytes:0\r\n",
        );
        let mut last = first.clone();
        let after = format!(
            "total_commands_processed:{}\r\ntotal_net_input_bytes:{}\r\n\
             cmdstat_eval:calls={eval},usec={},usec_per_call=30\r\n\
             cmdstat_evalsha:calls={evalsha},usec={evalsha},usec_per_call=1\r\nnumber_of_cached_scripts:2\r\n\
             used_memory_scripts_eval:{}\r\n",
            eval + evalsha,
            eval * (length + 100) + evalsha * 140,
            eval * 30,
            2 * (length + 160)
        );
        last.0.extend(Info::parse(&(after + more)).0);
        let mut node = Node::new("10.0.0.1:6379", Role::Master);
        node.first = Some(Sample { at_ms: 0, info: first });
        node.last = Some(Sample { at_ms: 10_000, info: last });
        node.window_s = 10.0;
        Facts { nodes: vec![node], ..Facts::of_nothing("redis://10.0.0.1:6379") }
    }

    #[test]
    fn long_texts_sent_often_cost_bytes_and_hashing() {
        let Verdict::Present(found) = check(&facts(50_000, 10, 3000, "")) else { panic!("not found") };
        // 5,000 times 2,960 bytes a second, at 2.2 ns.
        assert!((found.impact.value - 0.0326).abs() < 0.001, "{}", found.impact.value);
        assert!(found.title.contains("5,000 EVAL a second of about 3 kB"), "{}", found.title);
        assert!(found.remedies.iter().any(|r| r.commands.iter().any(|c| c.contains("FUNCTION LOAD"))));
    }

    #[test]
    fn the_text_is_hashed_outside_the_time_of_the_command_from_7_0_on() {
        let cost = |version: &str, user: f64| {
            let mut facts = facts(50_000, 10, 3000, "");
            let node = &mut facts.nodes[0];
            for (sample, user) in [(&mut node.first, 0.0), (&mut node.last, user * 10.0)] {
                let info = &mut sample.as_mut().unwrap().info.0;
                info.insert("redis_version".into(), version.into());
                info.insert("used_cpu_user_main_thread".into(), user.to_string());
                info.insert("used_cpu_sys_main_thread".into(), "0".into());
            }
            let last = &mut node.last.as_mut().unwrap().info.0;
            last.insert("cmdstat_eval".into(), "calls=50000,usec=80000,usec_per_call=1.6".into());
            let Verdict::Present(found) = check(&facts) else { panic!("not found on {version}") };
            found.impact.value
        };
        // Eight milliseconds a second inside EVAL, and 4.4 to read the texts.
        assert!((cost("6.2.14", 0.5) - 0.0124).abs() < 0.001, "{}", cost("6.2.14", 0.5));
        assert!((cost("7.2.4", 0.5) - 0.0326).abs() < 0.001, "{}", cost("7.2.4", 0.5));
        assert!((cost("7.2.4", 0.02) - 0.0244).abs() < 0.001, "{}: no more than it ran", cost("7.2.4", 0.02));
    }

    #[test]
    fn no_more_is_put_down_to_texts_than_came_in() {
        // What is called is short; another script that is kept is long.
        let facts = facts(50_000, 0, 100, "used_memory_scripts_eval:20000\r\ntotal_net_input_bytes:8000000\r\n");
        assert!(matches!(check(&facts), Verdict::Absent(_)));
    }

    #[test]
    fn look_alikes_are_left_alone() {
        for (what, facts) in [
            ("by digest", facts(10, 50_000, 3000, "")),
            ("short texts", facts(50_000, 0, 60, "")),
            ("now and then", facts(80, 0, 3000, "")),
            ("half by digest", facts(50_000, 40_000, 3000, "")),
            ("none", facts(0, 0, 3000, "")),
        ] {
            assert!(matches!(check(&facts), Verdict::Absent(_)), "{what}");
        }
    }

    #[test]
    fn texts_that_differ_are_another_trouble() {
        let mut facts = facts(
            50_000,
            0,
            3000,
            "number_of_cached_scripts:40000\r\n\
                                                used_memory_scripts_eval:126400000\r\n",
        );
        assert!(matches!(check(&facts), Verdict::Present(_)), "kept from before the window");
        facts.nodes[0].first.as_mut().unwrap().info.0.insert("number_of_cached_scripts".into(), "0".into());
        assert!(matches!(check(&facts), Verdict::Absent(text) if text.contains("4,000 new scripts a second")));
    }

    #[test]
    fn where_scripts_are_not_shown_nothing_is_claimed() {
        let mut facts = facts(50_000, 0, 3000, "");
        let last = facts.nodes[0].last.as_mut().unwrap();
        last.info.0.remove("number_of_cached_scripts");
        assert!(matches!(check(&facts), Verdict::Unknown(_)));
    }
}
