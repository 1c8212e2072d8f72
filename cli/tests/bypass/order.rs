//! A server sees what one client wrote to several connections in the order in which it was written.

use std::io::Write;

use super::*;

/// Takes connections until a line says "hold". From then on it waits for lines instead, and after each it reads a byte
/// of each connection, in the order in which they are ready, and prints them.
const READS_IN_ORDER: &str = r#"
import os, select, socket, sys

listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=100)
events = select.epoll()
events.register(listener, select.EPOLLIN)
events.register(0, select.EPOLLIN)
connections = {}
print("good", flush=True)
held = False
while not held:
    for fd, _ in events.poll():
        if fd == listener.fileno():
            s = listener.accept()[0]
            connections[s.fileno()] = s
            events.register(s, select.EPOLLIN)
        elif fd == 0:
            held = os.read(0, 100) == b"hold\n"
            if not held:
                sys.exit()
        else:
            word = connections[fd].recv(6)
            if not word:
                connections.pop(fd).close()
            else:
                connections[fd].sendall(word)
events.unregister(0)
print("held", flush=True)
while os.read(0, 100):
    order = b""
    while len(order) < len(connections):
        for fd, _ in events.poll():
            order += connections[fd].recv(1)
    print(*order, flush=True)
"#;

/// Connects as often as it is told to, and then writes to connections in the order of each line that it reads.
const WRITES_IN_ORDER: &str = r#"
import socket, sys

connections = []
for _ in range(int(sys.argv[2])):
    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 100)
    s.sendall(b"hello\n")
    assert s.recv(6) == b"hello\n"
    connections.append(s)
print("good", flush=True)
for line in sys.stdin:
    for i in map(int, line.split()):
        connections[i].sendall(bytes([i]))
    print("written", flush=True)
"#;

/// Numbers below `n` in an order of their own for each round.
fn shuffled(n: usize, round: u64) -> Vec<usize> {
    let mut random = round + 1;
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(i, (random >> 33) as usize % (i + 1));
    }
    order
}

#[test]
fn connections_are_ready_in_the_order_in_which_they_were_written_to() {
    // In more than one word of the bits that say which connection has news.
    const CONNECTIONS: usize = 100;
    let meeting = Meeting::new();
    let port = free_port("127.0.0.1").unwrap().to_string();
    let talking = |program: &mut Command| {
        let mut child = Running(program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
        let input = child.0.stdin.take().unwrap();
        let mut said = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "good");
        (child, input, said)
    };
    let words = ["bypass", "-q", "--", "python3", "-c", READS_IN_ORDER, &port];
    let (_server, mut tell_server, mut server_said) = talking(&mut meeting.unslow(&words));
    let count = CONNECTIONS.to_string();
    let words = ["bypass", "-q", "--client", "--", "timeout", LIMIT, "python3", "-c", WRITES_IN_ORDER, &port, &count];
    let (_client, mut tell_client, mut client_said) = talking(&mut meeting.unslow(&words));
    assert_eq!(meeting.carried(), CONNECTIONS, "connections that are carried");
    tell_server.write_all(b"hold\n").unwrap();
    assert_eq!(server_said.next().unwrap().unwrap(), "held");
    for round in 0..20 {
        let order: Vec<String> = shuffled(CONNECTIONS, round).iter().map(ToString::to_string).collect();
        let order = order.join(" ");
        tell_client.write_all(format!("{order}\n").as_bytes()).unwrap();
        assert_eq!(client_said.next().unwrap().unwrap(), "written");
        tell_server.write_all(b"look\n").unwrap();
        assert_eq!(server_said.next().unwrap().unwrap(), order, "round {round}");
    }
}
