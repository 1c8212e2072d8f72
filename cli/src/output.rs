//! How things are printed: text or a document on stdout, everything else on stderr.

use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anstyle::{AnsiColor, Style};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// What goes to stdout.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    Text,
    Json,
    /// doctor, incidents: JUnit XML, for CI servers
    Junit,
    /// doctor, incidents: SARIF 2.1.0, for code scanning
    Sarif,
    /// doctor, incidents: Prometheus' text format
    Prometheus,
}

/// Formats that other tools read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    Junit,
    Sarif,
    Prometheus,
}

/// What stdout still owes to a program that reads JSON there: a document, or where there is none the reason.
static OWED: Mutex<bool> = Mutex::new(false);

/// Why a verb has failed, on stderr; for a program that reads JSON also on stdout, unless a document is there. Lines of
/// JSON get one more.
pub fn failed(why: &str, is_lines: bool) -> ExitCode {
    eprintln!("unslow: {why}");
    if is_lines {
        *OWED.lock().unwrap_or_else(PoisonError::into_inner) = true;
    }
    print_failed(why);
    ExitCode::from(2)
}

/// The same for a command line that could not be read; clap has said on stderr what is wrong with it.
pub fn refused(e: &clap::Error, words: &[String]) {
    if e.use_stderr() && owe(words) {
        print_failed(&invalid(e));
    }
}

/// What is wrong with a command line, in words of ours: those of the command line may be a password.
pub fn invalid(e: &clap::Error) -> String {
    let what = e.kind().as_str().unwrap_or("a subcommand is required");
    // What is not known was typed by the user; all else is named as help names it.
    let (named, before) = match e.kind() {
        ErrorKind::UnknownArgument => (ContextKind::SuggestedArg, "did you mean "),
        ErrorKind::InvalidSubcommand => (ContextKind::SuggestedSubcommand, "did you mean "),
        _ => (ContextKind::InvalidArg, ""),
    };
    let words = match e.get(named) {
        Some(ContextValue::String(word)) => word.clone(),
        Some(ContextValue::Strings(words)) => words.join(", "),
        _ => return format!("invalid command line: {what}"),
    };
    format!("invalid command line: {what}: {before}{words}")
}

/// Whether a command line asks for JSON; from here on it is owed.
pub fn owe(words: &[String]) -> bool {
    let apart = words.windows(2).any(|pair| pair == ["--format", "json"]);
    let is_json = apart || words.iter().any(|word| word == "--format=json");
    *OWED.lock().unwrap_or_else(PoisonError::into_inner) = is_json;
    is_json
}

/// The reason, where a document is owed; then none is.
pub fn print_failed(why: &str) {
    // Held by one who is printing: the document is there, or will be.
    let Ok(mut owed) = OWED.try_lock() else { return };
    if std::mem::take(&mut *owed) {
        let document = serde_json::json!({ "schema": "unslow.error/1", "error": why });
        let _ = writeln!(std::io::stdout().lock(), "{document}");
    }
}

fn paid() {
    *OWED.lock().unwrap_or_else(PoisonError::into_inner) = false;
}

/// Whether tables have all their columns, however wide the terminal is.
static WIDE: AtomicBool = AtomicBool::new(false);

pub fn is_wide() -> bool {
    WIDE.load(Ordering::Relaxed)
}

/// What help calls the options that every verb has.
const GLOBAL: &str = "Global options";

#[derive(Args)]
pub struct Output {
    /// What to print on stdout
    #[arg(long, global = true, help_heading = GLOBAL, value_enum, default_value = "text")]
    pub format: Format,
    /// No progress, no hints
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub quiet: bool,
    /// Print everything, and all columns of tables
    #[arg(short, long, global = true, help_heading = GLOBAL)]
    pub verbose: bool,
}

/// Colours by meaning.
pub mod style {
    use super::{AnsiColor, Style};
    pub const BAD: Style = AnsiColor::Red.on_default().bold();
    pub const WARN: Style = AnsiColor::Yellow.on_default().bold();
    pub const GOOD: Style = AnsiColor::Green.on_default().bold();
    pub const TITLE: Style = Style::new().bold();
    pub const FAINT: Style = Style::new().dimmed();
    pub const COMMAND: Style = AnsiColor::Cyan.on_default();
}

impl Output {
    /// Settles colours once: `NO_COLOR`, pipes and dumb terminals get none. From here on JSON is owed where it was
    /// asked for.
    pub fn apply(&self) {
        *OWED.lock().unwrap_or_else(PoisonError::into_inner) = self.json();
        WIDE.store(self.verbose, Ordering::Relaxed);
        if self.format != Format::Text {
            anstream::ColorChoice::Never.write_global();
        }
    }

    pub fn json(&self) -> bool {
        self.format == Format::Json
    }

    /// The format of another tool, where one was asked for.
    pub fn exchange(&self) -> Option<Exchange> {
        match self.format {
            Format::Text | Format::Json => None,
            Format::Junit => Some(Exchange::Junit),
            Format::Sarif => Some(Exchange::Sarif),
            Format::Prometheus => Some(Exchange::Prometheus),
        }
    }

    /// A whole document, as it is.
    pub fn print_document(&self, text: &str) -> anyhow::Result<()> {
        paid();
        written(std::io::stdout().lock().write_all(text.as_bytes()))
    }

    /// One JSON document and a new line.
    pub fn print_json(&self, value: &impl Serialize) -> anyhow::Result<()> {
        self.print_document(&(serde_json::to_string_pretty(value)? + "\n"))
    }

    /// Text, with colours where they are wanted.
    pub fn print(&self, text: &str) -> anyhow::Result<()> {
        written(anstream::stdout().lock().write_all(self.shown(text).as_bytes()))
    }

    /// The same for text that goes on; `false` when nobody reads any more.
    pub fn print_while_read(&self, text: &str) -> anyhow::Result<bool> {
        paid();
        let mut out = anstream::stdout().lock();
        match out.write_all(self.shown(text).as_bytes()).and_then(|()| out.flush()) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
            other => Ok(other.map(|()| true)?),
        }
    }

    /// Text for people is tamed, and fits the terminal. Lines of JSON escape what moves a cursor themselves, and stay
    /// what they are.
    fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.json() {
            return Cow::Borrowed(text);
        }
        let text = tame(text);
        Cow::Owned(if std::io::stdout().is_terminal() { fitted(&text, textwrap::termwidth()) } else { text })
    }

    /// A line for the person at the terminal; never in the way of a pipe.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            let text = tame(text);
            let is_wide = std::io::stderr().is_terminal();
            let text = if is_wide { fitted(&text, textwrap::termwidth()) } else { text };
            let _ = writeln!(anstream::stderr(), "{text}");
        }
    }

    /// Says what is being waited for: in place on a terminal, line by line elsewhere.
    pub fn spinner(&self) -> Spinner {
        if self.quiet || !std::io::stderr().is_terminal() {
            return Spinner { bar: None, quiet: self.quiet };
        }
        let bar = ProgressBar::new_spinner();
        bar.enable_steady_tick(Duration::from_millis(100));
        Spinner { bar: Some(bar), quiet: false }
    }

    /// A bar that fills within `length`, on a terminal only.
    pub fn countdown(&self, what: &str, length: Duration) -> Countdown {
        let show = !self.quiet && std::io::stderr().is_terminal() && length > Duration::from_secs(2);
        if !show {
            return Countdown(None);
        }
        let bar = ProgressBar::new(length.as_millis() as u64);
        let template = ProgressStyle::with_template("{msg} {bar:30} {percent:>3} %").expect("a valid template");
        bar.set_style(template.progress_chars("=> "));
        bar.set_message(what.to_string());
        let (tick, begun) = (bar.clone(), Instant::now());
        std::thread::spawn(move || {
            while !tick.is_finished() {
                tick.set_position((begun.elapsed().as_millis() as u64).min(length.as_millis() as u64));
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Countdown(Some(bar))
    }
}

/// Whether a file can be written, without touching what is in it.
pub fn writable(path: &Path) -> anyhow::Result<()> {
    crate::files::check(path)
}

/// See [`Output::spinner`].
pub struct Spinner {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Spinner {
    pub fn say(&self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(tame(what)),
            None if self.quiet => {}
            None => {
                let _ = writeln!(anstream::stderr(), "{}", tame(what));
            }
        }
    }
}

impl Spinner {
    /// The same where it changes too often for lines: on a terminal only.
    pub fn update(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(tame(what));
        }
    }

    /// A line that stays above it, on a terminal only.
    pub fn keep(&self, what: &str) {
        if let Some(bar) = &self.bar {
            bar.println(fitted(&tame(what), textwrap::termwidth()));
        }
    }

    /// A note while it turns: in the same place, so that nothing of it is left in between.
    pub fn note(&self, output: &Output, what: &str) {
        match &self.bar {
            Some(_) => self.keep(what),
            None => output.note(what),
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A paragraph in lines of this width: broken at spaces alone, as an option or a URL is one word.
pub fn fill(text: &str, width: usize) -> String {
    let options = textwrap::Options::new(width).break_words(false);
    textwrap::fill(text, options.word_splitter(textwrap::WordSplitter::NoHyphenation))
}

/// Wraps sentences that are wider than the terminal, which would break them inside a word. What is indented is a
/// command to copy, or fits already.
fn fitted(text: &str, width: usize) -> String {
    let line = |line: &str| {
        let is_prose = !line.starts_with([' ', '\t']) && textwrap::core::display_width(line) > width;
        if is_prose { fill(line, width) } else { line.to_string() }
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Words of servers stand in texts and notes: none may move the cursor. Ends of lines, tabs and colours stay.
fn tame(text: &str) -> String {
    let is_colour = |rest: &str| {
        let rest = rest.strip_prefix('[').map(|r| r.trim_start_matches(|c: char| c.is_ascii_digit() || c == ';'));
        rest.is_some_and(|r| r.starts_with('m'))
    };
    text.char_indices()
        .map(|(i, c)| match c {
            '\n' | '\t' => c,
            '\u{1b}' if is_colour(&text[i + 1..]) => c,
            _ if c.is_control() => ' ',
            _ => c,
        })
        .collect()
}

/// Prints a page as it is.
pub fn print_page(text: &str) -> ExitCode {
    match written(std::io::stdout().lock().write_all(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(2),
    }
}

/// The same as a document.
pub fn print_page_as_json(topic: &str, text: &str) -> ExitCode {
    let document = serde_json::json!({ "schema": "unslow.manual/1", "topic": topic, "text": text });
    print_page(&format!("{document:#}\n"))
}

/// A reader that has had enough (`| head`) is no error, and changes no exit status.
fn written(result: std::io::Result<()>) -> anyhow::Result<()> {
    match result {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Ends its bar when dropped.
pub struct Countdown(Option<ProgressBar>);

impl Drop for Countdown {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_wrapped_between_words_and_commands_are_left() {
        let text = "one two three\n  unslow doctor redis://10.0.0.1:6379\n\nredis://10.0.0.1:6379 here\n";
        let fits = "one two\nthree\n  unslow doctor redis://10.0.0.1:6379\n\nredis://10.0.0.1:6379\nhere\n";
        assert_eq!(fitted(text, 8), fits);
        assert_eq!(fitted("\u{1b}[1mone two\u{1b}[0m\n", 8), "\u{1b}[1mone two\u{1b}[0m\n");
        assert_eq!(fitted(text, 80), text);
        assert_eq!(fitted("say --no-preload\n", 8), "say\n--no-preload\n");
    }

    #[test]
    fn a_command_line_is_refused_without_its_words() {
        use clap::Parser;
        #[derive(Parser)]
        struct One {
            #[arg(long = "count", value_name = "N")]
            _count: Option<u8>,
            #[arg(long = "name")]
            _name: bool,
        }
        let said = |words: &[&str]| invalid(&One::try_parse_from([&["x"], words].concat()).err().unwrap());
        for (words, expected) in [
            (&["--count", "s3cret"][..], "--count <N>"),
            (&["--nam=s3cret"], "unexpected argument found: did you mean --name"),
            (&["s3cret"], "unexpected argument found"),
            (&["--s3cret"], "unexpected argument found"),
            (&["--count", "--s3cret"], "argument"),
            (&["-s3cret"], "unexpected argument found"),
            (&["--name=s3cret"], "--name"),
        ] {
            let said = said(words);
            assert!(said.contains(expected) && !said.contains("s3cret"), "{words:?}: {said}");
        }
    }

    #[test]
    fn what_is_printed_for_people_moves_no_cursor_and_json_stays_what_it_is() {
        let output = |format| Output { format, quiet: false, verbose: false };
        let text = "a\u{1b}[2J\tb\r\u{85}\n";
        assert_eq!(output(Format::Text).shown(text), "a [2J\tb  \n");
        assert_eq!(output(Format::Json).shown(text), text);
    }

    #[test]
    fn a_note_keeps_its_colours_and_lines_and_nothing_that_moves_the_cursor() {
        let bad = style::BAD;
        let own = format!("{bad}new{bad:#}: a\nb");
        assert_eq!(tame(&own), own);
        assert_eq!(tame("\u{1b}[2J\u{1b}]0;t\u{7}\u{9b}1A\r\u{1b}"), " [2J ]0;t  1A  ");
    }
}
