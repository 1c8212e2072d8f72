//! `unslow top` on real servers, on a recording, in a real terminal and in line mode.

mod common;

use std::process::Stdio;

use common::{Running, command, stderr, stdout, unslow};
use unslow_testkit::{Terminal, cluster, standalone, until};

fn binary() -> String {
    unslow_testkit::binary::path().display().to_string()
}

#[test]
fn line_mode_shows_what_servers_do_a_table_each_interval() {
    let server = standalone("valkey-9.1");
    let url = server.url();
    let bench = ["bench", &url, "--rate", "200", "--seconds", "60", "--quiet"];
    let _load = Running(command(&bench).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let table = |view: &str, count: &str| {
        let output = unslow(&["top", &url, "--plain", "--view", view, "--count", count, "--interval", "500ms"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    until("the load is seen", || table("commands", "1").lines().any(|line| line.starts_with("get ")));
    let nodes = table("nodes", "2");
    let rows = nodes.lines().filter(|line| line.starts_with(&server.address())).count();
    assert_eq!(rows, 2, "{nodes}");
    assert!(!nodes.contains('\u{1b}'), "no colours where there is no terminal");
    let is_up = |line: &str| line.starts_with(&server.address()) && line.contains(" up ");
    until("it is up", || table("topology", "1").lines().any(is_up));
}

#[test]
fn a_recording_is_looked_at_like_a_live_deployment() {
    let server = standalone("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("rec");
    let mut record = command(&["record", &server.url(), "--quiet", "--no-host", "--dir"]);
    let _recorder = Running(record.arg(&dir).stdout(Stdio::null()).spawn().unwrap());
    let dir = dir.display().to_string();
    let top = |more: &[&str]| unslow(&[&["top", "--recording", &dir, "--plain", "--window", "2s"], more].concat());
    until("there is a window", || stdout(&top(&[])).lines().any(|line| line.starts_with(&server.address())));
    let late = top(&["--at", "2020-01-01 00:00"]);
    assert_eq!(late.status.code(), Some(2));
    assert!(stderr(&late).contains("this recording is from"), "{}", stderr(&late));
    let terminal = Terminal::open(80, 24, scratch.path());
    terminal.run(&format!("{} top --recording {dir} --window 2s", binary()));
    terminal.sees("recorded");
    let time = |screen: &str| screen.lines().next().unwrap_or_default().to_string();
    let end = time(&terminal.screen());
    until("there is time to step back to", || {
        terminal.press(&["n", "Left"]);
        !matches!(time(&terminal.screen()), now if now == end || now.is_empty())
    });
    terminal.press(&["t"]);
    terminal.run("2020-01-01 00:00");
    terminal.sees("nothing was recorded at");
    terminal.press(&["d"]);
    terminal.sees("┌ diagnosis");
}

#[test]
fn keys_lead_through_a_cluster_and_the_terminal_is_given_back_however_it_ends() {
    let deployment = cluster("valkey-9.1");
    let scratch = tempfile::tempdir().unwrap();
    let terminal = Terminal::open(80, 24, scratch.path());
    let top = format!("{} top {}", binary(), deployment.nodes[0].url());
    terminal.run(&top);
    for node in &deployment.nodes {
        terminal.sees(&node.address());
    }
    terminal.press(&["5"]);
    terminal.sees("epoch");
    terminal.press(&["?"]);
    terminal.sees("a server's commands, a command's clients");
    terminal.press(&["x"]);
    terminal.press(&["1", "Down", "Enter"]);
    terminal.sees("of 127.0.0.");
    terminal.press(&["Escape"]);
    terminal.comes_to("all servers again", |screen| !screen.contains("of 127.0.0."));
    terminal.press(&["s"]);
    terminal.sees("read it with: unslow doctor --from");
    terminal.resize(50, 12);
    terminal.comes_to("its titles fit", |screen| screen.contains("server") && !screen.contains("clients err/s"));
    terminal.resize(80, 24);

    terminal.press(&["C-z"]);
    terminal.sees("Stopped");
    assert!(terminal.shows_cursor());
    terminal.run("fg");
    terminal.sees("1 nodes");
    let children = || std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", terminal.pid())).unwrap();
    // Keys are read by the shell again, and shown.
    let given_back = |how: &str| {
        until(how, || children().trim().is_empty());
        terminal.run("clear; echo it is $((1 + 1))");
        terminal.comes_to(how, |screen| screen.lines().any(|line| line == "it is 2"));
        assert!(!terminal.screen().contains("1 nodes"), "{how}");
    };
    terminal.press(&["q"]);
    given_back("after q");
    terminal.run(&top);
    terminal.sees("1 nodes");
    let child: i32 = children().trim().parse().expect("one process");
    // SAFETY: a process that the terminal above has started and not waited for.
    unsafe { libc::kill(child, libc::SIGTERM) };
    given_back("after SIGTERM");
    // A terminal that is closed, or a connection that is lost, leaves nothing behind.
    terminal.run(&top);
    terminal.sees("1 nodes");
    let child: u32 = children().trim().parse().expect("one process");
    drop(terminal);
    until("it ends with its terminal", || unslow_process::stat(child).is_none_or(|stat| stat.state == 'Z'));
}

#[test]
fn what_cannot_be_looked_at_is_said() {
    let said = |arguments: &[&str]| {
        let output = unslow(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        stderr(&output)
    };
    assert!(said(&["top", "--recording", "/nowhere"]).contains("no recording"));
    assert!(said(&["top", "http://x"]).contains("redis://"));
    assert!(said(&["top", "127.0.0.1:1", "--window", "2m"]).contains("unslow record"));
    assert!(said(&["top", "127.0.0.1:1", "--view", "command"]).contains("did you mean \"commands\"?"));
    assert!(said(&["top", "127.0.0.1:1", "--format", "json"]).contains("--save"));
    let server = unslow_testkit::servers::server("valkey-9.1", &[("requirepass", "right")]);
    let address = server.address();
    assert!(said(&["top", &format!("redis://:wrong@{address}"), "--plain"]).contains("password"));
    // One that does not answer is waited for, and that is said.
    let silent = stdout(&unslow(&["top", "127.0.0.1:1", "--plain", "--count", "1"]));
    assert!(silent.contains("refused"), "{silent}");
}
