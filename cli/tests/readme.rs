//! Runs every README line that begins with `$`, in a lab of its own. Every line shown below a command must appear in
//! what the commands print; figures may differ.

mod common;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::engine;
use unslow_testkit::until;

/// A block of the README that has commands, in its section.
struct Block {
    section: usize,
    commands: Vec<String>,
    /// The other lines, without those that are samples: rows of seconds, and what was left out.
    shown: Vec<String>,
}

/// Blocks are indented by four spaces, and sections begin with `## `.
fn blocks(readme: &str) -> Vec<Block> {
    let (mut all, mut section) = (Vec::<Block>::new(), 0);
    let (mut is_open, mut is_table) = (false, false);
    for line in readme.lines() {
        section += usize::from(line.starts_with("## "));
        let Some(text) = line.strip_prefix("    ") else {
            is_open &= line.is_empty();
            is_table = false;
            continue;
        };
        if let Some(command) = text.strip_prefix("$ ") {
            if !is_open {
                all.push(Block { section, commands: Vec::new(), shown: Vec::new() });
                is_open = true;
            }
            all.last_mut().expect("one is open").commands.push(command.to_string());
        } else if is_open && !text.trim_start().starts_with("...") {
            let is_sample = is_table && text.trim_start().starts_with(|c: char| c.is_ascii_digit());
            is_table = text.starts_with("second ") || is_sample;
            all.last_mut().expect("one is open").shown.extend((!is_sample).then(|| text.to_string()));
        }
    }
    all
}

/// A line without its figures and widths. A `...` at its end stands for the rest.
fn plain(line: &str) -> String {
    let line = line.trim_end().trim_end_matches("...");
    let mut out = String::new();
    for word in line.split_whitespace() {
        let word: String = word.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
        let is_unit = matches!(&*word, "ns" | "us" | "ms" | "s" | "min") && out.ends_with("# ");
        let mut last = ' ';
        for c in word.chars().filter(|_| !is_unit) {
            // 1,024, 1.5 and 12:30 are figures like any other, whatever their length.
            let is_inside = last == '#' && matches!(c, ',' | '.' | ':' | '#' | 'k');
            if !is_inside {
                out.push(c);
                last = c;
            }
        }
        if !is_unit {
            out.push(' ');
        }
    }
    out.trim_end().to_string()
}

struct Shell {
    dir: tempfile::TempDir,
    /// Commands that were typed with `&`, in which section, and where they write to.
    behind: Vec<(usize, Child, PathBuf)>,
}

impl Shell {
    fn new() -> Shell {
        let dir = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink(unslow_testkit::binary::path(), dir.path().join("unslow")).expect("a link");
        Shell { dir, behind: Vec::new() }
    }

    /// In the top directory, with unslow and the tools of a Redis.
    fn command(&self, text: &str) -> Command {
        let redis = engine("redis-7.0");
        let tools = redis.server.parent().expect("it is in a directory").to_path_buf();
        let given = std::env::var_os("PATH").unwrap_or_default();
        let path = [self.dir.path().to_path_buf(), tools].into_iter().chain(std::env::split_paths(&given));
        let mut command = Command::new("bash");
        command.args(["-c", text]).stdin(Stdio::null());
        command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
        command.env("PATH", std::env::join_paths(path).expect("paths without colons"));
        command.env("UNSLOW_LABS", self.dir.path().join("labs")).env_remove("UNSLOW_PASSWORD");
        command.envs(redis.libraries.iter().map(|libraries| ("LD_LIBRARY_PATH", libraries)));
        command
    }

    /// Runs it, and gives what it printed.
    fn types(&mut self, section: usize, text: &str) -> String {
        if let Some(text) = text.strip_suffix('&') {
            let path = self.dir.path().join(format!("{}.out", self.behind.len()));
            let file = File::create(&path).expect("a file");
            let is_ours = text.starts_with("unslow ");
            let mut command = self.command(&if is_ours { format!("exec {text}") } else { text.to_string() });
            command.stdout(file.try_clone().expect("a file")).stderr(file);
            let child = command.spawn().expect("bash is there");
            self.behind.push((section, child, path.clone()));
            until(&format!("{text} to say that it is there"), || {
                !is_ours || path.metadata().is_ok_and(|of| of.len() > 0)
            });
            return String::new();
        }
        let output = self.command(&format!("timeout 120 {text}")).output().expect("bash is there");
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(matches!(output.status.code(), Some(0 | 1)), "$ {text}\n{:?}: {said}", output.status);
        said
    }

    /// Ends what still runs of a section, and gives what it printed.
    fn ends(&mut self, section: usize) -> String {
        let mut said = String::new();
        for (_, child, path) in self.behind.iter_mut().filter(|(of, _, _)| *of == section) {
            // SAFETY: kill takes numbers only, and the child is ours and not yet waited for.
            unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
            child.wait().expect("it is our child");
            said += &std::fs::read_to_string(path).expect("it was written");
        }
        self.behind.retain(|(of, _, _)| *of != section);
        said
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        for (_, child, _) in &mut self.behind {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = self.command("unslow lab down --all --force").output();
    }
}

/// Gives this thread, and what it starts, a network of its own: the README's addresses are free there, whatever other
/// labs this machine has.
fn alone() {
    // SAFETY: unshare takes a number only, and changes this thread alone.
    let is_done = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
    assert!(is_done, "no network namespace of its own: {}", std::io::Error::last_os_error());
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().expect("iproute2 is installed");
    assert!(up.success(), "the loopback device stays down");
}

#[test]
fn every_command_of_the_readme_runs_and_prints_what_stands_there() {
    let readme = include_str!("../../README.md");
    let all = blocks(readme);
    assert!(all.len() >= 5, "the README has {} blocks with commands", all.len());
    // SAFETY: geteuid takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return unslow_testkit::notes::skip("a network of its own takes root");
    }
    alone();
    let mut shell = Shell::new();
    let mut missing = Vec::new();
    for block in &all {
        let mut said = String::new();
        for command in &block.commands {
            println!("$ {command}");
            let printed = shell.types(block.section, command);
            println!("{printed}");
            said += &printed;
        }
        said += &shell.ends(block.section);
        // As one flow of words: where a line wraps depends on how wide the figures before it are.
        let flow = format!(" {} ", plain(&said));
        // How much of a sentence fits a screen depends on what else is found: what is cut in the README need not be
        // here.
        let is_there = |shown: &&String| {
            let shown = plain(shown);
            flow.contains(&format!(" {}", shown.trim_end().trim_end_matches("...").trim_end()))
        };
        let not_there = block.shown.iter().filter(|shown| !is_there(shown));
        missing.extend(not_there.map(|line| format!("{}: {line}", block.commands.join("; "))));
    }
    assert_eq!(missing, Vec::<String>::new(), "the README shows lines that did not come");
}

#[test]
fn lines_are_compared_without_their_figures() {
    assert_eq!(plain("  default is up: 6 servers, ready after 2.2 s"), "default is up: # servers, ready after #");
    assert_eq!(plain("ready after 950 ms"), plain("ready after 2.2 s"));
    assert_eq!(plain("198.18.1.1:6379  node-1"), "# node-#");
    assert!(plain("within 12 s (redis-cli\n     -p 6379 PING)").contains(&plain("6.1 s (redis-cli -p 6379")));
    assert_eq!(plain("12,345 rows of ..."), "# rows of");
    let text =
        "## One\n\n    $ a\n    b\n    second  n\n    1  2\n    ...\n    c\n\ntext\n\n    d\n\n    $ e &\n    $ f\n";
    let all = blocks(text);
    let of: Vec<_> = all.iter().map(|b| (b.section, b.commands.len(), b.shown.join("|"))).collect();
    assert_eq!(of, [(1, 1, "b|second  n|c".to_string()), (1, 2, String::new())]);
}
