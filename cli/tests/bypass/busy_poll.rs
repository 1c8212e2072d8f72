//! `--busy-poll`: what has a queue is polled, and what has none is told.

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use unslow_testkit::{Running, skip};

use super::Meeting;
use super::offload::{Stack, in_own_network, remote, server, server_of};

/// A stack that polls; none where this kernel cannot.
fn polling(meeting: &Meeting) -> Option<Stack> {
    let stack = Stack::start_with(meeting, &["--busy-poll"]);
    if stack.is_none() {
        skip("it takes Linux 6.9 for epoll sets that poll");
    }
    stack
}

#[test]
fn a_stack_that_has_nothing_to_poll_says_so_and_serves() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let Some(mut stack) = polling(&meeting) else { return };
        let _server = server(&meeting, "valkey-9.1");
        stack.says("handling TCP for 1 server");
        super::offload::ask(&mut remote(), "PING\r\n", "+PONG\r\n");
        stack.says("--busy-poll does not help these connections");
    });
}

#[test]
fn the_queue_of_an_interface_is_polled_and_its_interrupts_rest() {
    in_own_network(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bypass/by_queue.py");
        let mut command = Command::new("python3");
        command.args([script, "7990"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = Running(command.spawn().unwrap());
        let (mut says, mut told) = (client.0.stdin.take().unwrap(), BufReader::new(client.0.stdout.take().unwrap()));
        let mut line = String::new();
        told.read_line(&mut line).unwrap();
        if line != "up\n" {
            return skip("it takes veth devices, and iproute2");
        }
        let meeting = Meeting::new();
        let Some(mut stack) = polling(&meeting) else { return };
        let _server = server_of(&meeting, "10.77.0.1", 7990, "valkey-9.1");
        stack.says("handling TCP for 1 server");
        says.write_all(b"\n").unwrap();
        line.clear();
        told.read_line(&mut line).unwrap();
        assert_eq!(line, "+PONG\n");
        let said = stack.says("polling queue");
        assert!(said.contains("of queue0; its interrupts rest meanwhile"), "{said}");
    });
}

#[test]
fn times_that_are_none_are_refused() {
    for word in ["--busy-poll=0", "--busy-poll=2s", "--busy-poll=soon"] {
        let output = Meeting::new().unslow(&["bypass", "stack", word]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains("--busy-poll"), "{word}: {said}");
    }
}
