//! What the person who ran the tests reads.

use std::time::Duration;

use super::find::Kind;
use super::run::{End, Outcome};

/// Lines of a failed test's output that are shown; the rest is in its log.
const SHOWN: usize = 60;
/// Of these, from where it panicked, if that is before the last ones: an assertion may print pages behind its reason.
const REASON: usize = 12;
/// Characters of a reason on one line.
const REASON_LINE: usize = 300;
/// How many tests each list shows.
const LISTED: usize = 10;

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
        print!("{}", tail(&String::from_utf8_lossy(&std::fs::read(&outcome.log).unwrap_or_default())));
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
    longest("slowest", outcomes, |o| o.took);
    longest("most CPU time", outcomes, |o| o.cpu);
    for program in outcomes.iter().filter(|o| o.kind == Kind::Program) {
        let text = std::fs::read_to_string(&program.log).unwrap_or_default();
        section(&program.id, text.lines().filter(|l| l.contains("Tests run: ")).map(String::from));
    }
    let cpu: Duration = outcomes.iter().map(|o| o.cpu).sum();
    if left > 0 {
        println!("\n{left} long tests were left to `make test-long`");
    }
    println!("\n{} s, at least {} s of CPU", took.as_secs(), cpu.as_secs());
    println!("{}", closing(outcomes));
}

/// The tests with the largest value.
fn longest(title: &str, outcomes: &[Outcome], of: fn(&Outcome) -> Duration) {
    let mut sorted: Vec<&Outcome> = outcomes.iter().collect();
    sorted.sort_by_key(|o| std::cmp::Reverse(of(o)));
    section(title, sorted.iter().take(LISTED).map(|o| format!("{:>6.1} s  {}", of(o).as_secs_f64(), o.id)));
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

/// The line on which the first panic of an output begins.
fn panic_at(lines: &[&str]) -> Option<usize> {
    lines.iter().position(|l| l.starts_with("thread '") && l.contains(" panicked at "))
}

/// Why a test panicked, on one line.
pub fn reason(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let said = lines[panic_at(&lines)? + 1..].iter().map(|l| l.trim()).take_while(|l| !l.starts_with("note: "));
    // "assertion `left == right` failed" alone says nothing.
    let said = said.take(3).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ");
    Some(said.chars().take(REASON_LINE).collect()).filter(|said: &String| !said.is_empty())
}

/// The last lines, where assertions stand, and before them those of a panic that is further up.
fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let last = lines.len().saturating_sub(SHOWN);
    // Indented: a runner's closing line in there is not this one's.
    let indented = |lines: &[&str]| lines.iter().fold(String::new(), |text, line| text + "  | " + line + "\n");
    let cut = |n: usize| if n > 0 { format!("[{n} lines]\n") } else { String::new() };
    match panic_at(&lines).filter(|at| *at < last) {
        Some(at) => {
            let (until, from) = (at + REASON, last + REASON);
            let until = until.min(from);
            cut(at) + &indented(&lines[at..until]) + &cut(from - until) + &indented(&lines[from..])
        }
        None => cut(last) + &indented(&lines[last..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_counts_each_outcome_once() {
        let (kind, took, cpu) = (Kind::Unit, Duration::ZERO, Duration::ZERO);
        let (notes, log) = (Vec::new(), std::path::PathBuf::new());
        let outcome = |end| Outcome { id: "a::b".into(), end, took, cpu, notes: notes.clone(), log: log.clone(), kind };
        let ends = [End::Passed, End::Passed, End::Skipped("x".into()), End::Failed("y".into()), End::Interrupted];
        assert_eq!(closing(&ends.map(outcome)), "2 passed, 2 failed, 1 skipped");
    }

    #[test]
    fn a_long_output_is_cut_at_its_beginning() {
        let text: String = (0..100).map(|i| format!("{i}\n")).collect();
        assert!(tail(&text).starts_with("[40 lines]\n  | 40\n") && tail(&text).ends_with("  | 99\n"));
        assert_eq!(tail("one\n"), "  | one\n");
    }

    #[test]
    fn the_reason_of_a_panic_is_kept_though_pages_follow_it() {
        let panic = "x\nthread 'a' (7) panicked at a.rs:1:2:\nthe list names 4 nights of 5\n";
        let pages: String = (0..100).map(|i| format!("{i}\n")).collect();
        assert_eq!(reason(&format!("{panic}{pages}")).unwrap(), "the list names 4 nights of 5; 0; 1");
        let shown = tail(&format!("{panic}{pages}"));
        assert!(shown.starts_with("[1 lines]\n  | thread 'a' (7) panicked at a.rs:1:2:\n  | the list"), "{shown}");
        assert!(shown.contains("\n  | 9\n[42 lines]\n  | 52\n") && shown.ends_with("  | 99\n"), "{shown}");
        assert_eq!(shown.lines().count(), SHOWN + 2);
        // One that ends among the last lines is shown once.
        let near = tail(&format!("{pages}{panic}note: run with\n"));
        assert_eq!(near.matches("panicked").count(), 1);
        let equal =
            "thread 'a' panicked at b.rs:1:2:\nassertion `left == right` failed\n  left: 1\n right: 2\nnote: run";
        assert_eq!(reason(equal).unwrap(), "assertion `left == right` failed; left: 1; right: 2");
        assert_eq!((reason("ended"), reason("thread 'a' panicked at b.rs:1:2:\n")), (None, None));
    }
}
