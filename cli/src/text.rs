//! The report on a terminal: the three dearest causes in full, the rest folded.

use std::fmt::Write;

use unslow_doctor::measure::percent;
use unslow_doctor::{Confidence, Currency, Finding, Report, Severity};

use crate::output::style;

/// Causes told in full.
const TOP: usize = 3;
/// Lines of "ruled out" shown without -v.
const RULED_OUT: usize = 10;

pub fn report(report: &Report, verbose: bool) -> String {
    let mut out = String::new();
    let d = &report.deployment;
    let (t, f) = (style::TITLE, style::FAINT);
    let _ = writeln!(out, "{t}{}{t:#} {f}at {}, {:.0} s window{f:#}\n", d.text, d.url, report.window_s);
    let measured: Vec<&Finding> = report.findings.iter().filter(|x| x.severity > Severity::Risk).collect();
    let rest: Vec<&Finding> = report.findings.iter().filter(|x| x.severity <= Severity::Risk).collect();
    if measured.is_empty() {
        let verdict = rest.iter().find(|x| x.id == "not_your_redis");
        let text =
            verdict.map_or("Nothing measured explains slowness in this window.".to_string(), |v| v.title.clone());
        let g = style::GOOD;
        let _ = writeln!(out, "{g}ok{g:#}  {}\n", wrap(&text, 4));
    }
    for (i, finding) in measured.iter().enumerate().take(if verbose { usize::MAX } else { TOP }) {
        full(&mut out, i + 1, finding, verbose || i == 0);
    }
    if measured.len() > TOP && !verbose {
        for finding in &measured[TOP..] {
            let _ = writeln!(out, "{:>2}  {}", "+", wrap(&format!("{}: {}", finding.id, finding.title), 4));
        }
        let _ = writeln!(out, "{f}    -v tells them in full{f:#}\n");
    }
    let risks: Vec<&&Finding> = rest.iter().filter(|x| x.id != "not_your_redis").collect();
    if !risks.is_empty() {
        let _ = writeln!(
            out,
            "{t}risks{t:#} {f}(nothing slow now{}){f:#}",
            if verbose { "" } else { "; -v tells them in full" }
        );
        for (i, finding) in risks.iter().enumerate() {
            // With nothing else to tell, the first risk is the finding.
            if verbose || (measured.is_empty() && i == 0 && serious(finding)) {
                full(&mut out, i + 1, finding, true);
            } else {
                let _ = writeln!(out, "    {}", wrap(&format!("{}: {}", finding.id, finding.title), 6));
            }
        }
        out.push('\n');
    }
    if !report.ruled_out.is_empty() {
        let shown = if verbose { report.ruled_out.len() } else { RULED_OUT.min(report.ruled_out.len()) };
        let more = report.ruled_out.len() - shown;
        let tail = if more > 0 { format!("; and {more} more (-v)") } else { String::new() };
        let all = d.nodes.len();
        let seen = d.nodes.iter().filter(|n| n.commands_per_s.is_some()).count();
        let where_seen = if seen < all {
            format!(" {f}(on the {seen} of {all} nodes that could be measured){f:#}")
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "{t}ruled out{t:#}{where_seen}\n    {}{tail}\n",
            wrap(&report.ruled_out[..shown].join("; "), 4)
        );
    }
    if !report.cannot_see.is_empty() {
        let _ = writeln!(out, "{t}cannot see{t:#}");
        for unseen in &report.cannot_see {
            let grant =
                if unseen.grant.is_empty() { String::new() } else { format!(" (would help: {})", unseen.grant) };
            let _ = writeln!(out, "    {}", wrap(&format!("{}{grant}", unseen.why), 6));
        }
        out.push('\n');
    }
    let cost = &report.cost;
    let _ = writeln!(
        out,
        "{f}{}{f:#}",
        wrap(
            &format!(
                "cost: {:.1} s, {} commands, {} of one core on the server that paid most, slowest {:.2} ms ({})",
                cost.seconds,
                cost.commands,
                percent(cost.server_cpu_share),
                cost.slowest_us / 1000.0,
                cost.slowest_command
            ),
            6
        )
    );
    if let Some(first) = measured.first() {
        let _ = writeln!(out, "\n{}", wrap(&format!("{}: {}.", certainty(first.confidence), first.title), 0));
    }
    out
}

/// Risks that deserve their full text when nothing is measured.
fn serious(finding: &Finding) -> bool {
    !["blind_instruments", "overcommit", "no_auth"].contains(&finding.id.as_str())
}

fn certainty(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Proven => "The cause",
        Confidence::Likely => "The likely cause",
        Confidence::Possible => "A possible cause",
    }
}

fn full(out: &mut String, number: usize, finding: &Finding, remedies: bool) {
    let (t, f, c) = (style::TITLE, style::FAINT, style::COMMAND);
    let mark = match finding.severity {
        Severity::Critical | Severity::High => style::BAD,
        Severity::Medium | Severity::Low => style::WARN,
        Severity::Risk | Severity::Info => style::FAINT,
    };
    let word = format!("{:?}", finding.severity).to_uppercase();
    let _ = writeln!(
        out,
        "{number:>2}  {mark}{word}{mark:#} {t}{}{t:#} {f}({:?}: {}){f:#}",
        finding.id, finding.confidence, finding.confidence_why
    );
    let _ = writeln!(out, "    {t}{}{t:#}", wrap(&finding.title, 4));
    let field = |out: &mut String, name: &str, text: &str| {
        let _ = writeln!(out, "    {f}{name:<9}{f:#} {}", wrap(text, 14));
    };
    let currency = match finding.impact.currency {
        Currency::Availability => "availability",
        Currency::Latency => "latency",
        Currency::Capacity => "capacity",
        Currency::Risk => "risk",
    };
    field(out, "impact", &format!("{} [{currency}]", finding.impact.text));
    field(out, "gain", &format!("{} = {}", finding.gain.text, finding.gain.formula));
    for (i, link) in finding.chain.iter().enumerate() {
        field(out, if i == 0 { "leads to" } else { "" }, &format!("{}{}: {}", "> ".repeat(i + 1), link.id, link.text));
    }
    for (i, evidence) in finding.evidence.iter().enumerate() {
        field(
            out,
            if i == 0 { "evidence" } else { "" },
            &format!("{} -> {} @{}", evidence.source, evidence.value, clock(evidence.at_ms)),
        );
    }
    for (i, text) in finding.ruled_out.iter().enumerate() {
        field(out, if i == 0 { "not" } else { "" }, text);
    }
    for remedy in finding.remedies.iter().take(if remedies { usize::MAX } else { 1 }) {
        field(out, "fix", &remedy.text);
        for command in &remedy.commands {
            let _ = writeln!(out, "              {c}{command}{c:#}");
        }
        field(out, "", &format!("risk: {}; way back: {}", remedy.risk, remedy.rollback));
    }
    field(out, "recheck", &finding.recheck);
    out.push('\n');
}

/// `14:03:59` UTC, the way evidence is stamped.
pub fn clock(at_ms: u64) -> String {
    let s = at_ms / 1000 % 86400;
    format!("{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Fits the terminal; following lines are indented.
fn wrap(text: &str, indent: usize) -> String {
    let width = textwrap::termwidth().clamp(60, 140).saturating_sub(indent);
    textwrap::wrap(text, textwrap::Options::new(width).break_words(false)).join(&format!("\n{}", " ".repeat(indent)))
}

/// The remedies as a script for `sh`: what needs no choice is run, everything else is a comment. Words of servers stand in it:
/// none may end a comment, and a line that is run has nothing but plain words.
pub fn fix_plan(report: &Report) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let said = |text: &str| text.chars().map(plain).collect::<String>();
    let url = &report.deployment.url;
    let mut out = format!("# unslow doctor {}: read it before you run it\n", said(url));
    out +=
        "# REDISCLI_AUTH=... in the environment where there is a password; redis-cli's --user where there are users\n";
    let tls = if url.starts_with("rediss:") || url.starts_with("valkeys:") { " --tls" } else { "" };
    let mut seen = std::collections::BTreeSet::new();
    for (i, finding) in report.findings.iter().enumerate() {
        let _ = writeln!(out, "\n# {}. {} ({})", i + 1, said(&finding.title), said(&finding.id));
        for remedy in &finding.remedies {
            let (text, risk, rollback) = (said(&remedy.text), said(&remedy.risk), said(&remedy.rollback));
            let _ = writeln!(out, "#    {text}; risk: {risk}; way back: {rollback}");
            for command in &remedy.commands {
                let word = |c: char| c.is_ascii_alphanumeric() || " ._:-".contains(c);
                let rest = command.strip_prefix("redis-cli -h ").filter(|_| remedy.exact && command.chars().all(word));
                match rest {
                    Some(rest) if seen.insert(command.clone()) => {
                        let _ = writeln!(out, "redis-cli{tls} -h {rest}");
                    }
                    Some(_) => {}
                    None => {
                        let _ = writeln!(out, "#      {}", said(command));
                    }
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_server_cannot_leave_their_comment() {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../explain/doctor/tests/facts/big_key.json"))
                .unwrap();
        let facts = unslow_facts::Facts::from_json(&text).unwrap();
        let mut report = unslow_doctor::diagnose(&facts, &[]);
        assert!(!report.findings.is_empty());
        report.deployment.url = "redis://a\ntouch /tmp/url".into();
        for finding in &mut report.findings {
            finding.title = "x\ntouch /tmp/title".into();
            for remedy in &mut finding.remedies {
                remedy.rollback = "y\r\ntouch /tmp/way-back".into();
                remedy.exact = true;
                remedy.commands = [
                    "h; touch /tmp/a",
                    "h\ntouch /tmp/b",
                    "h `touch /tmp/c`",
                    "h $(touch /tmp/d)",
                    "h 'x' PING",
                    "good -p 1 PING",
                ]
                .map(|rest| format!("redis-cli -h {rest}"))
                .to_vec();
            }
        }
        let plan = fix_plan(&report);
        let run: Vec<&str> = plan.lines().filter(|l| !l.is_empty() && !l.starts_with('#')).collect();
        assert_eq!(run, ["redis-cli -h good -p 1 PING"], "{plan}");
    }
}
