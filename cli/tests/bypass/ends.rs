//! How a connection ends: what TCP says with a FIN and with a RST is said the same way when it is carried. A part of an
//! answer must not look like all of it.

use std::io::{Lines, Write};
use std::process::{ChildStdin, ChildStdout};

use super::*;

/// Answers the first word of each connection with the word, and the second with a part of an answer; then it ends the
/// connection as the word says. What it sees of others that end is printed.
const SERVER: &str = r#"
import os, select, socket, struct, sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
events = select.epoll()
events.register(listener, select.EPOLLIN)
connections = {}
print("good", flush=True)
while True:
    for fd, _ in events.poll():
        if fd == listener.fileno():
            s = listener.accept()[0]
            connections[s.fileno()] = s
            events.register(s, select.EPOLLIN)
            continue
        s = connections[fd]
        try:
            word = s.recv(6)
        except ConnectionResetError:
            word = b"reset"
        if word == b"hello\n":
            s.sendall(word)
            continue
        if word in (b"", b"reset"):
            print(word.decode() or "end", flush=True)
        else:
            s.sendall(b"a part of it")
            if word == b"stay \n":
                continue
            if word == b"half \n":
                s.shutdown(socket.SHUT_WR)
            if word in (b"half \n", b"abort\n"):
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if word == b"kill \n":
                os.kill(os.getpid(), 9)
        del connections[fd]
        s.close()
"#;

/// Connects, and waits for a line. Then it sends a word and more, and prints what it gets until the end, how that
/// looked, and what comes after it.
const LISTENS: &str = r#"
import socket, sys

s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"hello\n")
assert s.recv(6) == b"hello\n"
print("good", flush=True)
sys.stdin.readline()
s.sendall(sys.argv[2].encode() + b"\n" + sys.argv[3].encode())
got, how = b"", "end"
try:
    while part := s.recv(100):
        got += part
except ConnectionResetError:
    how = "reset"
    assert s.recv(100) == b"", "a reset is told once"
    try:
        s.sendall(b"x")
        how = "written to after a reset"
    except BrokenPipeError:
        pass
print(got.decode(), how, flush=True)
"#;

/// Connects, waits for a line, gets an answer that it reads or leaves unread, and ends as it is told to.
const LEAVES: &str = r#"
import os, socket, struct, sys

s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
s.sendall(b"hello\n")
assert s.recv(6) == b"hello\n"
print("good", flush=True)
sys.stdin.readline()
s.sendall(b"stay \n")
flags = socket.MSG_WAITALL | (0 if sys.argv[3] == "read" else socket.MSG_PEEK)
assert s.recv(12, flags).startswith(b"a")
if sys.argv[2] == "abort":
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
if sys.argv[2] == "kill":
    os.kill(os.getpid(), 9)
s.close()
"#;

/// A program that has said "good", its input, and what else it says.
struct Talking {
    _child: Running,
    input: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Talking {
    fn start(program: &mut Command) -> Talking {
        let mut child = Running(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let input = child.0.stdin.take().unwrap();
        let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "good");
        Talking { _child: child, input, said }
    }

    fn line(&mut self) -> Option<String> {
        self.said.next().map(Result::unwrap)
    }
}

/// A server and a client, over TCP and then carried; `last` takes what there is to see from them.
fn over_both(client: [&str; 3], last: impl Fn(&mut Talking, &mut Talking) -> String) -> [String; 2] {
    let talk = |meeting: Option<&Meeting>| {
        let port = free_port("127.0.0.1").unwrap().to_string();
        let program = |role: &[&str], words: &[&str]| match meeting {
            Some(meeting) => meeting.unslow(&[&["bypass", "-q"][..], role, &["--"], words].concat()),
            None => {
                let mut plain = Command::new(words[0]);
                plain.args(&words[1..]);
                plain
            }
        };
        let mut server = Talking::start(&mut program(&[], &["python3", "-c", SERVER, &port]));
        let [script, how, more] = client;
        let words = ["timeout", LIMIT, "python3", "-c", script, &port, how, more];
        let mut client = Talking::start(&mut program(&["--client"], &words));
        assert_eq!(meeting.map_or(1, Meeting::carried), 1, "connections that are carried");
        client.input.write_all(b"go\n").unwrap();
        last(&mut client, &mut server)
    };
    [talk(None), talk(Some(&Meeting::new()))]
}

#[test]
fn a_client_sees_how_a_server_ended_the_connection() {
    for (how, more, expected) in [
        ("clean", "", "end"),
        ("clean", "more than it reads", "reset"),
        ("abort", "", "reset"),
        ("kill ", "", "end"),
        ("kill ", "more than it reads", "reset"),
        // What it has ended it has said whole, whatever happens after that.
        ("half ", "", "end"),
    ] {
        let seen = over_both([LISTENS, how, more], |client, _| client.line().unwrap_or_default());
        let expected = format!("a part of it {expected}");
        assert_eq!(seen, [expected.clone(), expected], "over TCP and carried: {how} {more}");
    }
}

#[test]
fn a_server_sees_how_a_client_ended_the_connection() {
    for (how, answer, expected) in [
        ("clean", "read", "end"),
        ("clean", "left", "reset"),
        ("abort", "read", "reset"),
        ("kill", "read", "end"),
        ("kill", "left", "reset"),
    ] {
        let seen = over_both([LEAVES, how, answer], |_, server| server.line().unwrap());
        assert_eq!(seen, [expected; 2], "over TCP and carried: {how}, its answer {answer}");
    }
}
