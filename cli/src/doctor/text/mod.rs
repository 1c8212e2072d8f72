//! The report on a terminal: the verdict in words, the first cause in full, the rest a line each, and last the sentence
//! to repeat.
//!
//! It fits a screen of 80x24. What does not fit is counted, and -v prints everything.

mod words;

use std::fmt::Write;

use anstyle::Style;
use textwrap::core::display_width;
use unslow_doctor::measure::{ago, names};
use unslow_doctor::{Answer, Answered, CannotSee, Finding, LogLine, Report, Severity, When};
use unslow_facts::Lack;
use unslow_units::{count, percent, plural, time_us};

use crate::output::style;
use crate::silences;
pub use words::{
    Sorted, closing, confidence_words, currency_words, head, severity_words, through, verdict, when_words,
};

/// Lines of a report: the prompt takes the 24th.
const SCREEN: usize = 23;
/// Findings that are silenced.
const SILENCED_LINES: usize = 2;
/// Before the text of a field.
const INDENT: usize = 15;

/// How many lines everything may take.
#[derive(Clone, Copy)]
struct Room {
    title: usize,
    impact: usize,
    gain: usize,
    chain: usize,
    evidence: usize,
    certainty: usize,
    fix: usize,
    commands: usize,
    caution: usize,
    /// One-line causes below the first.
    causes: usize,
    over: usize,
    logs: usize,
    risks: usize,
    notes: usize,
    unseen: usize,
}

const WIDE: Room = Room {
    title: 3,
    impact: 2,
    gain: 2,
    chain: 2,
    evidence: 2,
    certainty: 2,
    fix: 2,
    commands: 3,
    caution: 2,
    causes: 5,
    over: 3,
    logs: 3,
    risks: 5,
    notes: 3,
    unseen: 3,
};
const SHORT: Room = Room {
    title: 2,
    gain: 1,
    chain: 1,
    certainty: 1,
    caution: 1,
    causes: 2,
    over: 1,
    logs: 1,
    risks: 2,
    notes: 2,
    unseen: 1,
    ..WIDE
};
const LINES: Room = Room { impact: 1, gain: 0, fix: 1, causes: 1, risks: 1, notes: 1, unseen: 0, ..SHORT };
/// The sentence at the end has the title in full.
const CLIPPED: Room = Room { title: 1, ..LINES };
const SPARSE: Room = Room { chain: 0, evidence: 1, ..CLIPPED };
const COUNTS: Room = Room { commands: 2, causes: 0, logs: 0, risks: 0, ..SPARSE };
const NARROW: Room = Room { commands: 1, over: 0, notes: 0, ..COUNTS };
const LEAST: Room = Room { evidence: 0, caution: 0, ..NARROW };
/// From generous to narrow: the first that fits the screen is taken.
const ROOMS: [Room; 8] = [WIDE, SHORT, LINES, CLIPPED, SPARSE, COUNTS, NARROW, LEAST];

pub fn report(report: &Report, verbose: bool) -> String {
    on_screen(report, verbose, textwrap::termwidth().clamp(60, 140))
}

fn on_screen(report: &Report, verbose: bool, width: usize) -> String {
    if !report.only.is_empty() {
        return answers(report, verbose, width);
    }
    if verbose {
        return Page::new(report, width, None).whole();
    }
    let mut text = String::new();
    for room in ROOMS {
        text = Page::new(report, width, Some(room)).whole();
        if rows(&text, width) <= SCREEN {
            break;
        }
    }
    text
}

/// Lines that a text takes on a terminal of this width.
fn rows(text: &str, width: usize) -> usize {
    text.lines().map(|line| display_width(line).div_ceil(width).max(1)).sum()
}

/// What became of the rules that were asked for, a line each.
fn answers(report: &Report, verbose: bool, width: usize) -> String {
    let mut page = Page::new(report, width, None);
    if report.cut_short {
        page.styled(style::FAINT, &words::window(report));
    }
    for answer in &report.only {
        let (mark, text) = answered(report, answer);
        let _ = writeln!(page.out, "{mark}{}{mark:#}: {}", answer.id, clean(&text));
    }
    if verbose {
        page.out.push('\n');
        for (i, finding) in report.findings.iter().enumerate() {
            page.finding(i + 1, finding);
        }
    }
    page.out
}

fn answered(report: &Report, answer: &Answer) -> (Style, String) {
    let finding = report.findings.iter().find(|f| f.id == answer.id);
    match answer.answer {
        Answered::NotHere => (style::FAINT, "does not apply here".into()),
        Answered::Absent => (style::GOOD, format!("not there now (measured: {})", answer.text)),
        Answered::Unknown => {
            let gap = report.cannot_see.iter().find(|c| c.id == answer.id).filter(|c| !c.grant.is_empty());
            let grant = gap.map_or(String::new(), |c| format!(" (would help: {})", c.grant));
            (style::WARN, format!("could not look: {}{grant}", answer.text))
        }
        Answered::Present => match finding {
            Some(past) if past.when == When::Past => {
                (style::WARN, format!("{}: {}", when_words(past, report.at_ms), answer.text))
            }
            // No fault, so nothing that could be gone.
            Some(known) if known.severity_now() == Severity::Info => (style::FAINT, format!("holds: {}", answer.text)),
            // The report does not claim it beside a finding that costs something, unless it is that one's effect.
            None if answer.id == "not_your_redis" && !is_effect(report, &answer.id) => {
                (style::FAINT, "does not hold: something else that was asked for costs something now".into())
            }
            _ => (style::BAD, format!("still there: {}", answer.text)),
        },
    }
}

fn is_effect(report: &Report, id: &str) -> bool {
    report.findings.iter().any(|f| f.chain.iter().any(|link| link.id == id))
}

/// A report on its way to the terminal.
struct Page<'a> {
    report: &'a Report,
    width: usize,
    /// `None` prints everything.
    room: Option<Room>,
    out: String,
    /// What there was no room for.
    hidden: Vec<String>,
}

impl<'a> Page<'a> {
    fn new(report: &'a Report, width: usize, room: Option<Room>) -> Page<'a> {
        Page { report, width, room, out: String::new(), hidden: Vec::new() }
    }

    /// What there is room for.
    fn limit(&self, of: fn(&Room) -> usize) -> usize {
        self.room.as_ref().map_or(usize::MAX, of)
    }

    fn whole(mut self) -> String {
        let sorted = Sorted::of(self.report);
        self.top();
        let mut causes = sorted.causes.iter();
        let shown = if self.room.is_some() { 1 } else { usize::MAX };
        for (i, finding) in causes.by_ref().take(shown).enumerate() {
            self.finding(i + 1, finding);
        }
        let mut risks = &sorted.risks[..];
        // With nothing that costs, the first risk worth it is the finding.
        if let ([first, rest @ ..], true, true) = (risks, sorted.causes.is_empty(), self.room.is_some())
            && is_serious(first)
        {
            self.finding(1, first);
            risks = rest;
        }
        match self.room {
            Some(_) => self.rest(causes.as_slice(), &sorted.over, risks),
            None => self.everything(&sorted),
        }
        self.tail();
        let closing = clean(&closing(self.report));
        let _ = writeln!(self.out, "\n{}", wrap(&closing, self.width, usize::MAX).join("\n"));
        self.out
    }

    /// What was looked at, and the verdict.
    fn top(&mut self) {
        let (t, f) = (style::TITLE, style::FAINT);
        let (what, place) = head(self.report);
        let what = format!("{t}{}{t:#}", clean(&what));
        let text = if place.is_empty() { what } else { format!("{what} {f}{}{f:#}", clean(&place)) };
        let _ = writeln!(self.out, "{}", wrap(&text, self.width, usize::MAX).join("\n"));
        if let Some(through) = through(self.report) {
            self.worded(style::WARN, "through", &through);
        }
        let (mark, word, text) = verdict(self.report);
        self.worded(mark, word, &text);
        if !self.report.silenced.is_empty() {
            let limit = if self.room.is_some() { SILENCED_LINES } else { usize::MAX };
            for silenced in self.report.silenced.iter().take(limit) {
                self.worded(style::FAINT, "silenced", &silences::line(silenced));
            }
            let more = self.report.silenced.len().saturating_sub(limit);
            if more > 0 {
                self.hidden.push(format!("{more} silenced"));
            }
        }
        self.out.push('\n');
    }

    fn worded(&mut self, mark: Style, word: &str, text: &str) {
        let text = format!("{mark}{word}{mark:#}  {}", clean(text));
        let _ = writeln!(self.out, "{}", wrap(&text, self.width, usize::MAX).join("\n"));
    }

    fn styled(&mut self, mark: Style, text: &str) {
        for line in wrap(&clean(text), self.width, usize::MAX) {
            let _ = writeln!(self.out, "{mark}{line}{mark:#}");
        }
    }

    /// A labelled text of at most `limit` lines.
    fn field(&mut self, name: &str, text: &str, limit: usize) {
        let f = style::FAINT;
        for (i, line) in wrap(&clean(text), self.width - INDENT, limit).into_iter().enumerate() {
            let _ = writeln!(self.out, "    {f}{:<10}{f:#} {line}", if i == 0 { name } else { "" });
        }
    }

    fn finding(&mut self, number: usize, finding: &Finding) {
        let t = style::TITLE;
        let mark = mark(finding.severity_now());
        let word = format!("{:?}", finding.severity).to_uppercase();
        let _ = writeln!(
            self.out,
            "{number:>2}  {t}{}{t:#}  {mark}{word}{mark:#}: {}",
            finding.id,
            severity_words(finding)
        );
        for line in wrap(&clean(&finding.title), self.width - 4, self.limit(|r| r.title)) {
            let _ = writeln!(self.out, "    {t}{line}{t:#}");
        }
        self.price(finding);
        self.proof(finding);
        let shown = if self.room.is_some() { 1 } else { usize::MAX };
        for remedy in finding.remedies.iter().take(shown) {
            self.remedy(remedy);
        }
        let more = finding.remedies.len().saturating_sub(shown);
        self.hidden.extend((more > 0).then(|| plural(more, "remedy")));
        self.field("recheck", &finding.recheck, usize::MAX);
        self.out.push('\n');
    }

    fn price(&mut self, finding: &Finding) {
        let currency = currency_words(finding);
        let when = when_words(finding, self.report.at_ms);
        let when = if when.is_empty() { when } else { format!("; {when}") };
        self.field("impact", &format!("{}{when} [{currency}]", finding.impact.text), self.limit(|r| r.impact));
        let gain = &finding.gain;
        if self.room.is_none() && !gain.formula.is_empty() {
            let words = if gain.text.is_empty() { String::new() } else { format!("{} = ", gain.text) };
            self.field("gain", &format!("{words}{}", gain.formula), usize::MAX);
        } else if !gain.text.is_empty() {
            self.field("gain", &gain.text, self.limit(|r| r.gain));
        }
    }

    fn proof(&mut self, finding: &Finding) {
        if self.room.is_some() {
            let chain: Vec<String> = finding.chain.iter().map(|link| link.id.clone()).collect();
            if !chain.is_empty() {
                self.field("leads to", &names(&chain), self.limit(|r| r.chain));
            }
            let mut left = self.limit(|r| r.evidence);
            for (i, evidence) in finding.evidence.iter().enumerate() {
                let before = self.out.len();
                self.field(
                    if i == 0 { "evidence" } else { "" },
                    &format!("{} ({})", evidence.value, evidence.source),
                    left,
                );
                left = left.saturating_sub(self.out[before..].lines().count());
            }
        } else {
            for (i, link) in finding.chain.iter().enumerate() {
                self.field(
                    if i == 0 { "leads to" } else { "" },
                    &format!("{}{}: {}", "> ".repeat(i + 1), link.id, link.text),
                    usize::MAX,
                );
            }
            for (i, evidence) in finding.evidence.iter().enumerate() {
                let text = format!("{} -> {} @{}", evidence.source, evidence.value, clock(evidence.at_ms));
                self.field(if i == 0 { "evidence" } else { "" }, &text, usize::MAX);
            }
            for (i, text) in finding.ruled_out.iter().enumerate() {
                self.field(if i == 0 { "not" } else { "" }, text, usize::MAX);
            }
        }
        let word = format!("{:?}", finding.confidence).to_lowercase();
        let why =
            if finding.confidence_why.is_empty() { String::new() } else { format!(": {}", finding.confidence_why) };
        self.field("certainty", &format!("{word} ({}){why}", confidence_words(finding)), self.limit(|r| r.certainty));
    }

    fn remedy(&mut self, remedy: &unslow_doctor::Remedy) {
        let c = style::COMMAND;
        self.field("fix", &remedy.text, self.limit(|r| r.fix));
        let shown = self.limit(|r| r.commands);
        let more = remedy.commands.len().saturating_sub(shown);
        // A command is copied: it is never cut.
        for command in remedy.commands.iter().take(shown) {
            let indent = if display_width(command) + INDENT > self.width { 6 } else { INDENT };
            let _ = writeln!(self.out, "{:indent$}{c}{}{c:#}", "", clean(command));
        }
        self.hidden.extend((more > 0).then(|| plural(more, "command")));
        let mut caution = Vec::new();
        for (name, text) in [("risk", &remedy.risk), ("way back", &remedy.rollback)] {
            if !text.is_empty() {
                caution.push(format!("{name}: {text}"));
            }
        }
        if !caution.is_empty() {
            self.field("", &caution.join("; "), self.limit(|r| r.caution));
        }
    }

    /// A line each as far as there is room, and how many more there are.
    fn rest(&mut self, causes: &[&Finding], over: &[&Finding], risks: &[&Finding]) {
        let now = self.report.at_ms;
        let cause = |f: &Finding| format!("{} ({}): {}", f.id, format!("{:?}", f.severity).to_lowercase(), f.title);
        let past = |f: &Finding| match f.since {
            Some(since) => format!("{}: {}: {}", ago(now, since), f.id, f.title),
            None => format!("{}: {}", f.id, f.title),
        };
        let one = |f: &Finding| format!("{}: {}", f.id, f.title);
        self.items("also", causes.iter().map(|f| cause(f)), self.limit(|r| r.causes), "cause");
        self.items("over", over.iter().map(|f| past(f)), self.limit(|r| r.over), "event that is over");
        let report = self.report;
        let logged = |line: &LogLine| format!("{}: {}", log_time(report, line.at_ms), line.text);
        self.items("log", self.report.logs.iter().map(logged), self.limit(|r| r.logs), "log event");
        self.items("risk", risks.iter().map(|f| one(f)), self.limit(|r| r.risks), "risk");
        let notes = words::notes(self.report);
        self.items("note", notes.iter().map(ToString::to_string), self.limit(|r| r.notes), "note");
        let unseen = gaps(self.report);
        self.items("cannot see", unseen.iter().map(|gap| gap_text(gap)), self.limit(|r| r.unseen), "gap");
    }

    /// Lines with a label, one each; what there is no room for is counted.
    fn items(&mut self, label: &str, texts: impl ExactSizeIterator<Item = String>, limit: usize, noun: &str) {
        let more = texts.len().saturating_sub(limit);
        for text in texts.take(limit) {
            self.field(label, &text, 1);
        }
        self.hidden.extend((more > 0).then(|| plural(more, noun)));
    }

    /// The folded parts of a report, unfolded.
    fn everything(&mut self, sorted: &Sorted) {
        let (t, f) = (style::TITLE, style::FAINT);
        for (title, note, findings) in [
            ("over", "(before the window)", &sorted.over),
            ("risks", "(none of these costs anything now)", &sorted.risks),
        ] {
            if !findings.is_empty() {
                let _ = writeln!(self.out, "{t}{title}{t:#} {f}{note}{f:#}");
                findings.iter().enumerate().for_each(|(i, finding)| self.finding(i + 1, finding));
            }
        }
        if let Some(elsewhere) = sorted.elsewhere {
            self.finding(1, elsewhere);
        }
        if !self.report.logs.is_empty() {
            let _ = writeln!(self.out, "{t}what the logs say{t:#} {f}(newest first){f:#}");
            for line in &self.report.logs {
                let text = format!("{} {}: {}", log_time(self.report, line.at_ms), clock(line.at_ms), line.text);
                self.block(&clean(&text));
            }
            self.out.push('\n');
        }
        if !self.report.ruled_out.is_empty() {
            let _ = writeln!(self.out, "{t}ruled out{t:#}{f}{}{f:#}", self.partly());
            let text = clean(&self.report.ruled_out.join("; "));
            self.block(&text);
            self.out.push('\n');
        }
        let unseen = &self.report.cannot_see;
        if !unseen.is_empty() {
            let _ = writeln!(self.out, "{t}cannot see{t:#}");
            let mut said = std::collections::BTreeSet::new();
            for text in unseen.iter().map(gap_text).filter(|text| said.insert(text.clone())) {
                self.block(&clean(&text));
            }
            self.out.push('\n');
        }
    }

    fn block(&mut self, text: &str) {
        for (i, line) in wrap(text, self.width - 6, usize::MAX).into_iter().enumerate() {
            let _ = writeln!(self.out, "{:1$}{line}", "", if i == 0 { 4 } else { 6 });
        }
    }

    /// Of which nodes the claims are, where some could not be measured.
    fn partly(&self) -> String {
        let nodes = &self.report.deployment.nodes;
        let seen = nodes.iter().filter(|n| n.commands_per_s.is_some()).count();
        if seen < nodes.len() {
            format!(" on the {seen} of {} nodes that could be measured", nodes.len())
        } else {
            String::new()
        }
    }

    /// What was counted only, and what looking cost.
    fn tail(&mut self) {
        let mut said = Vec::new();
        if self.room.is_some() {
            let mut counted = Vec::new();
            if !self.report.ruled_out.is_empty() {
                counted.push(format!("ruled out: {}{}", plural(self.report.ruled_out.len(), "cause"), self.partly()));
            }
            if !self.hidden.is_empty() {
                counted.push(format!("not shown: {}", self.hidden.join(", ")));
            }
            if !counted.is_empty() {
                said.push(format!("{} (-v lists them)", counted.join("; ")));
            }
        }
        let cost = &self.report.cost;
        if cost.commands > 0 {
            let (commands, share) = (count(cost.commands as f64), percent(cost.server_cpu_share));
            said.push(format!("cost: {}, {commands} commands, {share} of one core", time_us(cost.seconds * 1e6)));
        }
        let mut text = said.join("; ");
        if self.room.is_none() && cost.commands > 0 {
            let (slowest, command) = (time_us(cost.slowest_us), &cost.slowest_command);
            let _ = write!(text, " on the most affected server, slowest {slowest} ({command})");
        }
        if !text.is_empty() {
            self.styled(style::FAINT, &text);
        }
    }
}

fn mark(severity: Severity) -> Style {
    match severity {
        Severity::Critical | Severity::High => style::BAD,
        Severity::Medium | Severity::Low => style::WARN,
        Severity::Risk | Severity::Info => style::FAINT,
    }
}

/// Risks that deserve their full text when nothing is measured, and the complaint that was handed in.
fn is_serious(finding: &Finding) -> bool {
    let is_asked = finding.severity == Severity::Risk || finding.id == "client_error";
    is_asked && !["blind_instruments", "overcommit", "no_auth"].contains(&finding.id.as_str())
}

/// What could not be seen: what would help most first, and each help once.
fn gaps(report: &Report) -> Vec<&CannotSee> {
    let rank = |gap: &CannotSee| match gap.lack {
        Lack::Rights => 0,
        Lack::Answer => 1,
        Lack::Time => 2,
        Lack::Version => 3,
        Lack::Host => 4,
        Lack::Other => 5,
    };
    let mut all: Vec<&CannotSee> = report.cannot_see.iter().filter(|gap| !words::is_note(gap)).collect();
    all.sort_by_key(|gap| (rank(gap), gap.id != "deployment"));
    let mut said = std::collections::BTreeSet::new();
    all.retain(|gap| said.insert(if gap.grant.is_empty() { &gap.why } else { &gap.grant }));
    all
}

fn gap_text(gap: &CannotSee) -> String {
    if gap.grant.is_empty() { gap.why.clone() } else { format!("{} (would help: {})", gap.why, gap.grant) }
}

/// How long before the report a log line was written. Logs and samples have clocks of their own, and one without its
/// zone may be hours ahead.
fn log_time(report: &Report, at_ms: u64) -> String {
    const APART_MS: u64 = 60_000;
    let window_ms = (report.window_s.max(0.0) * 1000.0) as u64;
    let ends = report.at_ms.saturating_add(window_ms).saturating_add(APART_MS);
    match () {
        () if at_ms <= report.at_ms => ago(report.at_ms, at_ms),
        () if at_ms > ends => "later than this report, by its own clock".into(),
        () if window_ms == 0 => "just now".into(),
        () => "in the window".into(),
    }
}

/// `14:03:59` UTC, the way evidence is stamped.
pub fn clock(at_ms: u64) -> String {
    let s = at_ms / 1000 % 86400;
    format!("{:02}:{:02}:{:02}Z", s / 3600, s / 60 % 60, s % 60)
}

/// Words of servers and clients stand in texts: none may move the cursor or change colours.
fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The same for a text of several lines.
pub fn clean_lines(text: &str) -> String {
    text.split('\n').map(clean).collect::<Vec<_>>().join("\n")
}

/// At most `limit` lines of this width; what is cut off ends in dots. Words with hyphens, commands above all, stay
/// whole.
fn wrap(text: &str, width: usize, limit: usize) -> Vec<String> {
    let options = textwrap::Options::new(width).break_words(false).word_splitter(textwrap::WordSplitter::NoHyphenation);
    let mut lines: Vec<String> = textwrap::wrap(text, options).into_iter().map(|line| line.into_owned()).collect();
    if lines.len() > limit {
        lines.truncate(limit);
        if let Some(last) = lines.last_mut() {
            while display_width(last) + 4 > width && last.contains(' ') {
                last.truncate(last.rfind(' ').unwrap_or(0));
            }
            last.push_str(" ...");
        }
    }
    lines
}

#[cfg(test)]
mod tests;
