//! What the person who ran the tests reads.

use std::time::Duration;

use super::find::Kind;
use super::run::{End, Outcome};

/// Lines of a failed test's output that are shown; the rest is in its log.
const SHOWN: usize = 60;
const SLOWEST: usize = 10;

/// As each test ends.
pub fn line(outcome: &Outcome, done: usize, total: usize) {
    let (word, why) = match &outcome.end {
        End::Passed => ("pass", String::new()),
        End::Skipped(why) => ("SKIP", format!(": {why}")),
        End::Failed(why) => ("FAIL", format!(": {why}")),
        End::Interrupted => ("stop", String::new()),
    };
    println!("{word} {:>7.1}s {done:>3}/{total} {}{why}", outcome.took.as_secs_f64(), outcome.id);
    for note in &outcome.notes {
        println!("     {note}");
    }
}

/// The end of a run; its last line is what CI counts.
pub fn print(outcomes: &[Outcome], left: usize, took: Duration) {
    for outcome in outcomes.iter().filter(|o| o.failed()) {
        println!("\n---- {} ----", outcome.id);
        print!("{}", tail(&std::fs::read_to_string(&outcome.log).unwrap_or_default()));
        println!("all of it: {}", outcome.log.display());
    }
    section(
        "failed",
        outcomes.iter().filter_map(|o| match &o.end {
            End::Failed(why) => Some(format!("{}: {why}", o.id)),
            _ => None,
        }),
    );
    section(
        "skipped",
        outcomes.iter().filter_map(|o| match &o.end {
            End::Skipped(why) => Some(format!("{}: {why}", o.id)),
            _ => None,
        }),
    );
    section("noted", outcomes.iter().flat_map(|o| o.notes.iter().map(|n| format!("{}: {n}", o.id))));
    let mut slowest: Vec<&Outcome> = outcomes.iter().collect();
    slowest.sort_by_key(|o| std::cmp::Reverse(o.took));
    section("slowest", slowest.iter().take(SLOWEST).map(|o| format!("{:>6.1} s  {}", o.took.as_secs_f64(), o.id)));
    for program in outcomes.iter().filter(|o| o.kind == Kind::Program) {
        let text = std::fs::read_to_string(&program.log).unwrap_or_default();
        section(&program.id, text.lines().filter(|l| l.contains("Tests run: ")).map(String::from));
    }
    if left > 0 {
        println!("\n{left} long tests were left to `make test-long`");
    }
    println!("\n{} s", took.as_secs());
    println!("{}", closing(outcomes));
}

/// `N passed, N failed, N skipped`: a form CI systems know.
fn closing(outcomes: &[Outcome]) -> String {
    let count = |is: fn(&End) -> bool| outcomes.iter().filter(|o| is(&o.end)).count();
    let failed = count(|e| matches!(e, End::Failed(_) | End::Interrupted));
    let (passed, skipped) = (count(|e| *e == End::Passed), count(|e| matches!(e, End::Skipped(_))));
    format!("{passed} passed, {failed} failed, {skipped} skipped")
}

fn section(title: &str, lines: impl Iterator<Item = String>) {
    let lines: Vec<String> = lines.collect();
    if !lines.is_empty() {
        println!("\n{title}:\n  {}", lines.join("\n  "));
    }
}

/// The last lines, where assertions stand.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let from = lines.len().saturating_sub(SHOWN);
    let cut = if from > 0 { format!("[{from} lines before]\n") } else { String::new() };
    // Indented: a runner's closing line in there is not this one's.
    lines[from..].iter().fold(cut, |text, line| text + "  | " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_each_outcome_once() {
        let (kind, took) = (Kind::Unit, Duration::ZERO);
        let outcome = |end| Outcome { id: "a::b".into(), end, took, notes: Vec::new(), log: Default::default(), kind };
        let ends = [End::Passed, End::Passed, End::Skipped("x".into()), End::Failed("y".into()), End::Interrupted];
        assert_eq!(closing(&ends.map(outcome)), "2 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_long_output_is_cut_at_its_beginning() {
        let text: String = (0..100).map(|i| format!("{i}\n")).collect();
        assert!(tail(&text).starts_with("[40 lines before]\n  | 40\n") && tail(&text).ends_with("  | 99\n"));
        assert_eq!(tail("one\n"), "  | one\n");
    }
}
