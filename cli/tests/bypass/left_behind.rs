//! What must not stay behind when a client or a server has left: open connections, descriptors, memory.

use super::*;

/// A server that takes its connections without epoll and serves each in a thread of its own. It answers every line with
/// the number of connections that are open.
const THREADED: &str = r#"
import socket, socketserver, sys, threading

def serve(s):
    with s, s.makefile("rb") as lines:
        for _ in lines:
            s.sendall(b"%d\n" % (threading.active_count() - 1))

class Handler(socketserver.BaseRequestHandler):
    def handle(self):
        serve(self.request)

class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

port, how = int(sys.argv[1]), sys.argv[2]
if how == "socketserver": # it waits with poll
    server = Server(("127.0.0.1", port), Handler)
    print("good", flush=True)
    server.serve_forever()
listener = socket.create_server(("127.0.0.1", port))
print("good", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"#;

/// Asks once, prints its port, and leaves as it is told to.
const ASKS_AND_LEAVES: &str = r#"
import os, socket, sys

s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 100)
s.sendall(b"PING\r\n")
if "answered" in sys.argv:
    assert s.recv(100)
print(s.getsockname()[1], flush=True)
if "killed" in sys.argv:
    os.kill(os.getpid(), 9)
s.close()
if "stays" in sys.argv:
    sys.stdin.read()
"#;

#[test]
fn a_server_without_epoll_sees_its_clients_leave() {
    for how in ["socketserver", "accept"] {
        let meeting = Meeting::new();
        let port = free_port("127.0.0.1").unwrap();
        let text = port.to_string();
        while_it_waits(&mut meeting.unslow(&["bypass", "--", "python3", "-c", THREADED, &text, how]), || {
            for end in ["closed", "killed", "closed", "killed", "closed"] {
                let output = meeting.client(&["python3", "-c", ASKS_AND_LEAVES, &text, "answered", end]);
                assert!(!output.stdout.is_empty(), "{how}, {end}: {}", stderr(&output));
            }
            until(&format!("the server ({how}) to see that all of them have left"), || open(port) == 1);
            assert!(meeting.listed().is_empty(), "{how}: a server that cannot take an offer was met");
        });
    }
}

/// How many connections the server says are open, this one among them.
fn open(port: u16) -> u32 {
    let mut s = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    std::io::Write::write_all(&mut s, b"how many?\n").unwrap();
    let mut said = String::new();
    BufReader::new(s).read_line(&mut said).unwrap();
    said.trim_end().parse().unwrap()
}

#[test]
fn an_offer_that_a_server_does_not_read_keeps_no_connection_open() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let port = server.port.to_string();
    // It stands still: the kernel makes connections for it, and it reads neither offers nor bytes.
    kill(server.pid(), libc::SIGSTOP);
    let plain = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    assert!(is_established(plain.local_addr().unwrap().port(), server.port), "an open connection is seen to be open");
    drop(plain);
    for end in ["closed", "killed"] {
        let words = ["bypass", "--client", "--", "timeout", LIMIT, "python3", "-c", ASKS_AND_LEAVES, &port, end];
        let output = meeting.as_delivered(&words).output().unwrap();
        let source: u16 = stdout(&output).trim_end().parse().unwrap_or_else(|e| panic!("{e}: {}", stderr(&output)));
        until(&format!("the connection of a client to end ({end})"), || !is_established(source, server.port));
    }
    // A client that lives on after it has closed the connection.
    let mut stays =
        meeting.as_delivered(&["bypass", "--client", "--", "python3", "-c", ASKS_AND_LEAVES, &port, "stays"]);
    let mut stays = Running(stays.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(stays.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let source: u16 = said.trim_end().parse().unwrap();
    until("the connection that a living client has closed to end", || !is_established(source, server.port));
    kill(server.pid(), libc::SIGCONT);
    assert_eq!(server.say(&["PING"]).text().unwrap(), "PONG");
    until("the server to see that all of them have left", || server.clients() == 0);
}

/// Whether the client's end of a connection within 127.0.0.1 is open on both sides, as the kernel sees it.
fn is_established(source: u16, port: u16) -> bool {
    let ends = format!(": 0100007F:{source:04X} 0100007F:{port:04X} 01 ");
    std::fs::read_to_string("/proc/net/tcp").unwrap().contains(&ends)
}

/// Of a process: its descriptors, and how often it has mapped the memory that a client and a server share.
fn held(pid: u32) -> (usize, usize) {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    (descriptors, maps.matches("memfd:unslow-bypass-rings").count())
}

#[test]
fn a_server_keeps_nothing_of_clients_that_have_ended() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    let port = server.port.to_string();
    let script = "import socket,sys\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])),100)\n\
                  s.sendall(b'PING\\r\\n'); assert s.recv(100)==b'+PONG\\r\\n'\nprint('good',flush=True)\n\
                  sys.stdin.read()";
    let come_and_are_killed = |count: usize| {
        let clients = (0..count).map(|_| {
            let mut client = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &port]);
            let mut client = Running(client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
            let mut said = String::new();
            BufReader::new(client.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
            assert_eq!(said, "good\n");
            client
        });
        let clients: Vec<Running> = clients.collect();
        assert_eq!(meeting.carried(), count, "clients that are carried");
        assert!(held(server.child.0.id()).1 >= count, "each client has brought its memory");
        drop(clients);
        until("the server to let go of what it held of them", || held(server.child.0.id()).1 == 0);
    };
    // With the first one the server makes what it needs for itself.
    come_and_are_killed(1);
    let before = held(server.child.0.id());
    come_and_are_killed(6);
    until(&format!("the server to have as few descriptors as before ({})", before.0), || {
        held(server.child.0.id()) == before
    });
}

#[test]
fn a_client_keeps_nothing_of_servers_that_have_ended() {
    let meeting = Meeting::new();
    let port = free_port("127.0.0.1").unwrap();
    let text = port.to_string();
    let script = "import socket,sys\nfor line in sys.stdin:\n    with \
                  socket.create_connection(('127.0.0.1',int(sys.argv[1])),100) as s:\n        \
                  s.sendall(b'PING\\r\\n'); print(s.recv(100),flush=True)";
    let mut client = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", script, &text]);
    let mut client = Running(client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    let (mut ask, pid) = (client.0.stdin.take().unwrap(), client.0.id());
    let mut said = BufReader::new(client.0.stdout.take().unwrap()).lines();
    let mut connects = || {
        std::io::Write::write_all(&mut ask, b"go\n").unwrap();
        assert_eq!(said.next().unwrap().unwrap(), "b'+PONG\\r\\n'");
    };
    for _ in 0..4 {
        let _server = meeting.server_at(port, "redis-7.0", &[]);
        connects();
    }
    let _server = meeting.server_at(port, "redis-7.0", &[]);
    until("the client to hold on to the last server only", || {
        connects();
        held(pid).1 == 1
    });
}
