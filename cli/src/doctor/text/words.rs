//! The report in words: the verdict, the last sentence, how bad, how sure, since when. The terminal and the page share
//! them.

use anstyle::Style;
use unslow_doctor::measure::ago;
use unslow_doctor::{Affected, CannotSee, Conclusion, Confidence, Currency, Finding, Report, Severity, When};
use unslow_facts::Lack;
use unslow_units::{count, plural};

use crate::output::style;

/// How bad, in words.
pub fn severity_words(finding: &Finding) -> &'static str {
    match finding.severity {
        _ if finding.when == When::Past => "over; it costs nothing now",
        Severity::Critical if finding.affected == Affected::NextClient => {
            "the next client to connect would wait or fail"
        }
        Severity::Critical => "requests are being lost",
        // A message is of its own time: nothing of it was measured in the window.
        _ if is_message(finding) => "requests failed when the message was written",
        Severity::High => "it costs a lot now",
        Severity::Medium => "it costs something now",
        Severity::Low => "it costs a little now",
        Severity::Risk => "it costs nothing now and could later",
        Severity::Info => "worth knowing",
    }
}

/// What it is paid in. What is worse than a risk and cannot be counted is none: requests that failed by a client's
/// message, writes that the next client would be refused.
pub fn currency_words(finding: &Finding) -> &'static str {
    match finding.impact.currency {
        Currency::Availability => "availability",
        Currency::Latency => "latency",
        Currency::Capacity => "capacity",
        Currency::Risk if finding.severity > Severity::Risk => "not counted",
        Currency::Risk => "risk",
    }
}

/// Whether it was read from a client's error message.
fn is_message(finding: &Finding) -> bool {
    ["client_thread_pool", "client_unread_replies", "client_pool_exhausted"].contains(&finding.id.as_str())
}

/// How sure, in words. Only what is of now was measured in the window.
pub fn confidence_words(finding: &Finding) -> &'static str {
    match (finding.confidence, finding.when) {
        (Confidence::Proven, When::Now) => "cause and effect were measured in this window",
        (Confidence::Proven, _) => "cause and effect were both measured",
        (Confidence::Likely, _) => "the cause was measured, its effect inferred",
        (Confidence::Possible, _) => "only the precondition was seen",
    }
}

/// Since when, or how long ago; empty for what is of the window alone.
pub fn when_words(finding: &Finding, now_ms: u64) -> String {
    match (finding.when, finding.since) {
        (When::Now, None) => String::new(),
        (When::Now, Some(since)) => format!("began {}", ago(now_ms, since)),
        (When::Past, None) => "over before the window".into(),
        (When::Past, Some(since)) => format!("over, {}", ago(now_ms, since)),
        (When::SinceStart, None) => "counted since the server started".into(),
        (When::SinceStart, Some(since)) => format!("counted since the server started {}", ago(now_ms, since)),
    }
}

/// Findings by what they cost now.
pub struct Sorted<'a> {
    pub causes: Vec<&'a Finding>,
    /// What would be a cause had it not ended before the window.
    pub over: Vec<&'a Finding>,
    /// Risks, and what is worth knowing.
    pub risks: Vec<&'a Finding>,
    /// The servers were measured and are well.
    pub elsewhere: Option<&'a Finding>,
}

impl<'a> Sorted<'a> {
    pub fn of(report: &'a Report) -> Sorted<'a> {
        let mut all = Sorted { causes: Vec::new(), over: Vec::new(), risks: Vec::new(), elsewhere: None };
        for finding in &report.findings {
            match finding.severity_now() {
                severity if severity > Severity::Risk => all.causes.push(finding),
                _ if finding.when == When::Past => all.over.push(finding),
                _ if finding.id == "not_your_redis" => all.elsewhere = Some(finding),
                _ => all.risks.push(finding),
            }
        }
        all
    }
}

/// The verdict in a word and a sentence, with how many rules could look.
pub fn verdict(report: &Report) -> (Style, &'static str, String) {
    let sorted = Sorted::of(report);
    let (could, blind) = (report.looked.could, missing(report));
    match report.verdict {
        Conclusion::Causes => {
            let order = if sorted.causes.len() > 1 { ", the most expensive first" } else { "" };
            (
                style::BAD,
                "causes",
                format!(
                    "{}{order}; {} could look{blind}",
                    plural(sorted.causes.len(), "cause"),
                    plural(could as usize, "rule")
                ),
            )
        }
        Conclusion::NoServer => {
            let help = "add a URL to have the servers checked too";
            (style::WARN, "no server", format!("this report is based on the supplied messages and logs alone; {help}"))
        }
        Conclusion::Unreachable => {
            let nodes = &report.deployment.nodes;
            let why = report.error.as_ref().or_else(|| nodes.iter().find_map(|n| n.unreachable.as_ref()));
            (
                style::BAD,
                "unreachable",
                format!("no server answered{}", why.map_or(String::new(), |why| format!(": {why}"))),
            )
        }
        Conclusion::Blind => {
            let why = if lacks_rights(report) {
                format!("this user lacks rights: {}", print_acl(report))
            } else {
                "-v says why".into()
            };
            let text =
                format!("{} of {} rules could not look: {why}", report.looked.could_not.len(), report.looked.rules);
            (style::WARN, "blind", text)
        }
        Conclusion::Idle => {
            let rate: f64 = report.deployment.nodes.iter().filter_map(|n| n.commands_per_s).sum();
            let what = if rate < 1.0 { "" } else { ", nearly all of them housekeeping (PING, INFO, REPLCONF)" };
            let text =
                format!("no application is using it: {} commands/s without the doctor's own{what}{blind}", count(rate));
            (style::WARN, "idle", text)
        }
        Conclusion::Risks => {
            let mut there = Vec::new();
            for (n, noun) in [(sorted.risks.len(), "risk"), (sorted.over.len(), "event that is over")] {
                there.extend((n > 0).then(|| plural(n, noun)));
            }
            let text = format!(
                "{} found nothing that costs anything now; {}{blind}",
                plural(could as usize, "rule"),
                there.join(", ")
            );
            (style::WARN, "risks", text)
        }
        Conclusion::NoneFound if !report.silenced.is_empty() => {
            let text = format!("{} found nothing but what is silenced{blind}", plural(could as usize, "rule"));
            (style::WARN, "silenced", text)
        }
        Conclusion::NoneFound => {
            (style::GOOD, "ok", format!("{} found nothing{blind}", plural(could as usize, "rule")))
        }
    }
}

/// `; 3 could not look (big_key, ...)`, and the command that would let them.
fn missing(report: &Report) -> String {
    let blind = &report.looked.could_not;
    let named = match &blind[..] {
        [] => return String::new(),
        [one] => one.clone(),
        [one, two] => format!("{one}, {two}"),
        [one, ..] => format!("{one}, ..."),
    };
    let help = if lacks_rights(report) { format!(": {}", print_acl(report)) } else { String::new() };
    format!("; {} could not look ({named}){help}", blind.len())
}

fn lacks_rights(report: &Report) -> bool {
    report.cannot_see.iter().any(|gap| gap.lack == Lack::Rights)
}

fn print_acl(report: &Report) -> String {
    format!("unslow doctor {} --print-acl", report.deployment.url)
}

/// The last line: what a person can repeat.
pub fn closing(report: &Report) -> String {
    let sorted = Sorted::of(report);
    if let Some(first) = sorted.causes.first() {
        let certainty = match first.confidence {
            Confidence::Proven => "The cause",
            Confidence::Likely => "The likely cause",
            Confidence::Possible => "A possible cause",
        };
        let rest = sorted.causes.len() - 1;
        let more = if rest > 0 { format!(" (the first of {})", rest + 1) } else { String::new() };
        return format!("{certainty}{more}: {}.", first.title.trim_end_matches('.'));
    }
    match report.verdict {
        Conclusion::NoServer => "Nothing can be concluded about the servers: none was looked at.".into(),
        Conclusion::Unreachable => "Could not look: no server answered.".into(),
        Conclusion::Blind => "Nothing can be concluded: what was not found may still be there.".into(),
        Conclusion::Idle => "Nothing can be concluded: look again while it is slow.".into(),
        _ => match sorted.elsewhere {
            Some(elsewhere) => format!("{}.", elsewhere.title.trim_end_matches('.')),
            None => "Nothing that was looked for explains slowness in this window.".into(),
        },
    }
}

/// What was looked at; where, and for how long.
pub fn head(report: &Report) -> (String, String) {
    let d = &report.deployment;
    if d.url.is_empty() && d.nodes.is_empty() {
        return (d.text.clone(), String::new());
    }
    (d.text.clone(), format!("at {}, {}", d.url, window(report)))
}

/// How long it was watched.
pub fn window(report: &Report) -> String {
    let seconds = count(report.window_s);
    if report.cut_short { format!("cut short after {seconds} s") } else { format!("{seconds} s window") }
}

/// The proxy that is all there was to see. Where the servers behind one were looked at, a note says so.
pub fn through(report: &Report) -> Option<String> {
    report.through.as_ref().map(|proxy| format!("{proxy}: the servers behind it were not seen"))
}

/// What is to be known of the whole run, the servers behind a gateway above all.
pub fn notes(report: &Report) -> Vec<&str> {
    report.cannot_see.iter().filter(|gap| is_note(gap)).map(|gap| gap.why.as_str()).collect()
}

pub fn is_note(gap: &CannotSee) -> bool {
    gap.id == "deployment" && gap.lack == Lack::Other
}
