//! Signal handlers that use the connection they have interrupted the use of, handlers that never come back, and threads
//! that are cancelled.

use std::io::Write;

use super::*;

/// Sends back what it gets.
const ECHO: &str = r#"
import select, socket, sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
events = select.epoll()
events.register(listener, select.EPOLLIN)
connections, waiting, ended = {}, {}, set()
print("good", flush=True)

def attend(fd):
    s = connections[fd]
    try:
        if fd not in ended and len(waiting[fd]) < 1 << 20:
            part = s.recv(1 << 18)
            waiting[fd] += part
            if not part:
                ended.add(fd)
    except BlockingIOError:
        pass
    try:
        while waiting[fd]:
            del waiting[fd][: s.send(waiting[fd])]
    except BlockingIOError:
        pass
    if fd in ended and not waiting[fd]:
        raise ConnectionError
    reads = fd not in ended and len(waiting[fd]) < 1 << 20
    events.modify(fd, (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if waiting[fd] else 0))

while True:
    for fd, _ in events.poll():
        if fd == listener.fileno():
            s = listener.accept()[0]
            s.setblocking(False)
            connections[s.fileno()], waiting[s.fileno()] = s, bytearray()
            events.register(s, select.EPOLLIN)
            continue
        try:
            attend(fd)
        except ConnectionError:
            ended.discard(fd)
            connections.pop(fd).close()
"#;

/// Runs `handlers.c` in one of its ways, over TCP and carried.
fn works_as_over_tcp(way: &str) {
    let meeting = Meeting::new();
    let program = meeting.0.path().join("handlers").display().to_string();
    let made = Command::new("gcc").args(["-O1", "-pthread", "-o", &program, &here("bypass/handlers.c")]).status();
    assert!(made.unwrap().success());
    for carried in [false, true] {
        let port = free_port("127.0.0.1").unwrap().to_string();
        let run = |role: &[&str], words: &[&str]| {
            if carried {
                return meeting.unslow(&[&["bypass", "-q"][..], role, &["--"], words].concat());
            }
            let mut plain = Command::new(words[0]);
            plain.args(&words[1..]);
            plain
        };
        let mut server = run(&[], &["python3", "-c", ECHO, &port]);
        while_it_waits(&mut server, || {
            let mut client = run(&["--client"], &["timeout", LIMIT, &program, way, &port]);
            let client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut client = Running(client.spawn().unwrap());
            let mut said = BufReader::new(client.0.stdout.take().unwrap()).lines();
            assert_eq!(said.next().unwrap().unwrap(), "good");
            assert_eq!(meeting.carried(), usize::from(carried), "connections that are carried");
            client.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
            let last = said.next().map(Result::unwrap);
            let mut complained = String::new();
            client.0.stderr.take().unwrap().read_to_string(&mut complained).unwrap();
            assert_eq!(last.as_deref(), Some("done"), "carried: {carried}; it hangs, or: {complained}");
        });
    }
}

#[test]
fn a_handler_may_use_the_connection_that_it_has_interrupted_the_use_of() {
    works_as_over_tcp("handler");
}

#[test]
fn a_handler_that_leaves_with_longjmp_leaves_nothing_that_others_wait_for() {
    works_as_over_tcp("jump");
}

#[test]
fn a_wait_that_a_handler_left_with_longjmp_is_over() {
    works_as_over_tcp("alarm");
}

#[test]
fn a_thread_that_waits_for_a_connection_can_be_cancelled() {
    works_as_over_tcp("cancel");
}

#[test]
fn a_thread_that_is_cancelled_in_a_splice_leaves_no_descriptors() {
    works_as_over_tcp("splice");
}
