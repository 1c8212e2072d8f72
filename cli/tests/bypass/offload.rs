//! `--offload`: a stack has the TCP connections of clients that are not of the server's address, so that the server has
//! none of the kernel's work and knows of nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{ChildStderr, Command, Stdio};
use std::time::Duration;

use unslow_testkit::{Running, skip, until};

use super::carried::Family;
use super::ownership::connected;
use super::{Carried, Meeting, kill};

/// Loopback with more addresses, all of one machine: to the bypass those of two of them are different ones.
const ADDRESSES: &str = "import fcntl,socket,struct\n\
                         s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)\n\
                         fcntl.ioctl(s,0x8914,struct.pack('16sh14x',b'lo',1))\n\
                         fcntl.ioctl(s,0x8916,struct.pack('16sHH4s8x',b'lo:1',2,0,bytes([10,9,0,1])))";
pub const SERVER: [u8; 4] = [10, 9, 0, 1];
pub const CLIENT: [u8; 4] = [10, 9, 0, 2];

/// Runs `test` in a new network namespace; skips it without the right to create one.
pub fn in_own_network(test: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || {
        // SAFETY: it concerns this thread alone, and what it starts.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return skip("it takes root to make a network namespace");
        }
        assert!(Command::new("python3").args(["-c", ADDRESSES]).status().unwrap().success());
        test();
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

pub struct Stack {
    process: Running,
    /// Where its status port is.
    figures: Option<String>,
    said: BufReader<ChildStderr>,
}

impl Stack {
    pub fn start(meeting: &Meeting) -> Stack {
        Stack::start_with(meeting, &[]).expect("a stack")
    }

    /// None where this kernel cannot what is asked of it.
    pub fn start_with(meeting: &Meeting, words: &[&str]) -> Option<Stack> {
        let mut command = meeting.unslow(&[&["bypass", "stack"], words].concat());
        let mut stack = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let mut said = BufReader::new(stack.0.stderr.take().unwrap());
        let (mut line, mut figures) = (String::new(), None);
        said.read_line(&mut line).unwrap();
        if let Some((_, at)) = line.split_once("figures at http://") {
            figures = at.trim().strip_suffix("/metrics").map(String::from);
            line.clear();
            said.read_line(&mut line).unwrap();
        }
        if line.contains("this kernel") {
            return None;
        }
        assert!(line.contains("waiting for servers"), "{line}");
        Some(Stack { process: stack, figures, said })
    }

    /// Waits until it has said this, and returns the line.
    pub fn says(&mut self, what: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.said.read_line(&mut line).unwrap(), 0, "it ended before it said {what:?}");
            if line.contains(what) {
                return line;
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.process.0.id() as i32
    }

    pub fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_some()
    }

    /// What its status port says of a server; None while it knows of none at that port.
    pub fn figure(&self, name: &str, port: u16) -> Option<u64> {
        let mut stream = TcpStream::connect(self.figures.as_ref().expect("it has a status port")).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let of = format!("unslow_bypass_stack_{name}{{port=\"{port}\",");
        let line = page.lines().find(|line| line.starts_with(&of))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).unwrap().count()
    }
}

pub fn server(meeting: &Meeting, name: &str) -> Carried {
    server_at(meeting, 7990, name)
}

pub fn server_at(meeting: &Meeting, port: u16, name: &str) -> Carried {
    server_of(meeting, "10.9.0.1", port, name)
}

pub fn server_of(meeting: &Meeting, address: &str, port: u16, name: &str) -> Carried {
    let more = ["--bind", address, "127.0.0.1", "--protected-mode", "no"];
    meeting.server_that(&["--offload"], port, name, &more)
}

/// From another address to the server.
pub fn remote() -> TcpStream {
    remote_to(7990)
}

pub fn remote_to(port: u16) -> TcpStream {
    let stream = TcpStream::from(connected(SocketAddr::from((CLIENT, 0)), SocketAddr::from((SERVER, port))));
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

pub fn ask(stream: &mut TcpStream, words: &str, answer: &str) {
    stream.write_all(words.as_bytes()).unwrap();
    let mut told = vec![0; answer.len()];
    stream.read_exact(&mut told).unwrap();
    assert_eq!(String::from_utf8_lossy(&told), answer);
}

/// Connections that the stack has.
pub fn had(meeting: &Meeting, stack: &Stack) -> usize {
    let of_stack = |c: &&serde_json::Value| c["client_pid"] == stack.pid();
    let rows = |server: &serde_json::Value| {
        server["connections"].as_array().map_or(0, |all| all.iter().filter(of_stack).count())
    };
    meeting.listed().iter().map(rows).sum()
}

/// A connection of a remote client that the stack has.
pub fn carried(meeting: &Meeting, stack: &Stack) -> TcpStream {
    let mut found = None;
    until("a remote client's connection to be the stack's", || {
        let mut stream = remote();
        ask(&mut stream, "PING\r\n", "+PONG\r\n");
        let is = had(meeting, stack) > 0;
        found = is.then_some(stream);
        is
    });
    found.unwrap()
}

/// `*3 SET KEY VALUE`.
pub fn set(key: &str, value: &[u8]) -> Vec<u8> {
    let head = format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${}\r\n", key.len(), value.len());
    [head.as_bytes(), value, b"\r\n"].concat()
}

#[test]
fn a_server_that_lends_its_listener_sees_its_clients_as_they_are() {
    in_own_network(|| {
        for name in ["redis-7.0", "valkey-9.1"] {
            let meeting = Meeting::new();
            let stack = Stack::start(&meeting);
            let server = server(&meeting, name);
            let mut client = carried(&meeting, &stack);
            // The address is the client's own.
            let own = client.local_addr().unwrap();
            client.write_all(b"CLIENT LIST\r\n").unwrap();
            let mut row = vec![0; 4096];
            let n = client.read(&mut row).unwrap();
            let row = String::from_utf8_lossy(&row[..n]).into_owned();
            assert!(row.contains(&format!("addr={own} laddr=10.9.0.1:7990 ")), "{name}: {row}");
            // More than every buffer on the way, in both directions; and what was asked before the end is answered.
            let value: Vec<u8> = (0..5_000_000u32).map(|n| (n % 251) as u8).collect();
            client.write_all(&set("big", &value)).unwrap();
            ask(&mut client, "", "+OK\r\n");
            client.write_all(b"GET big\r\nGET big\r\nQUIT\r\n").unwrap();
            let mut told = Vec::new();
            client.read_to_end(&mut told).unwrap();
            let one = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            let all = [&one[..], &one, b"+OK\r\n"].concat();
            assert!(told == all, "{name}: {} bytes instead of {}", told.len(), all.len());
            // A local client of the same server is not the stack's.
            let mut local = server.connect().unwrap();
            local.call(&["PING"]).unwrap();
            let listed = meeting.listed();
            assert_eq!((had(&meeting, &stack), &listed[0]["stack_pid"]), (0, &stack.pid().into()), "{listed:?}");
        }
    });
}

#[test]
fn servers_with_threads_and_with_workers_are_served_to_the_byte() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let large: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        std::fs::write(dir.path().join("large"), &large).unwrap();
        let conf = format!(
            "user root; worker_processes 2; daemon off; pid {at}/pid; error_log {at}/error.log;\n\
             events {{ worker_connections 64; }}\nhttp {{ access_log off; sendfile on; \
             server {{ listen 10.9.0.1:7991; root {at}; }} }}\n"
        );
        std::fs::write(dir.path().join("nginx.conf"), conf).unwrap();
        let conf = dir.path().join("nginx.conf").display().to_string();
        let nginx = ["bypass", "--offload", "--", "nginx", "-p", &at.to_string(), "-c", &conf];
        let mut nginx = meeting.unslow(&nginx);
        let _nginx = Family(nginx.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0).spawn().unwrap());
        let memcached =
            ["bypass", "--offload", "--", "memcached", "-u", "root", "-l", "10.9.0.1", "-t", "4", "-p", "7990"];
        let _memcached = Running(meeting.unslow(&memcached).stderr(Stdio::null()).spawn().unwrap());
        until("all of them to be the stack's", || {
            meeting.listed().iter().filter(|server| server["stack_pid"] == stack.pid()).count() == 3
        });
        let mut clients: Vec<TcpStream> = (0..20).map(|_| remote()).collect();
        for turn in 0..20 {
            for (i, client) in clients.iter_mut().enumerate() {
                let value = format!("v{i}.{turn}").repeat(50);
                ask(client, &format!("set k{i} 0 0 {}\r\n{value}\r\n", value.len()), "STORED\r\n");
                let got = format!("VALUE k{i} 0 {}\r\n{value}\r\nEND\r\n", value.len());
                ask(client, &format!("get k{i}\r\n"), &got);
            }
        }
        assert_eq!(had(&meeting, &stack), 20);
        let counted = |what: &str| {
            let listed = meeting.listed();
            let memcached = listed.iter().find(|server| server["port"] == 7990).map(|server| server["stack"].clone());
            memcached.and_then(|stack| stack[what].as_u64()).unwrap_or(0)
        };
        // 400 values of 200 bytes and more, each sent there and back.
        let is_all = |what| counted(what) > 400 * 200;
        until("the stack's figures in the list", || is_all("received_bytes") && is_all("sent_bytes"));
        assert_eq!(["connections", "accepted", "passed"].map(counted), [20, 20, 0]);
        for _ in 0..4 {
            let mut client = remote_to(7991);
            for _ in 0..3 {
                client.write_all(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    client.read_exact(&mut byte).unwrap();
                    head.push(byte[0]);
                }
                let mut body = vec![0; large.len()];
                client.read_exact(&mut body).unwrap();
                assert!(head.starts_with(b"HTTP/1.1 200") && body == large);
            }
        }
    });
}

/// A client of a server that says nothing before it was asked, when the stack has it; with the guard of the server.
fn carried_of(meeting: &Meeting, stack: &Stack, mode: &str) -> (Running, TcpStream) {
    let script = super::here("bypass/ends_behind.py");
    let mut command = meeting.unslow(&["bypass", "--offload", "--", "python3", &script, mode]);
    let server = Running(command.spawn().unwrap());
    until("the server to be the stack's", || meeting.listed().iter().any(|server| server["stack_pid"] == stack.pid()));
    let client = remote();
    until("a client to be the stack's", || had(meeting, stack) > 0);
    (server, client)
}

#[test]
fn an_end_of_one_direction_is_passed_on_behind_what_came_before_it() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let (_server, mut client) = carried_of(&meeting, &stack, "echo");
        let said: Vec<u8> = (0..3_000_000u32).map(|n| (n % 249) as u8).collect();
        client.write_all(&said).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        assert!(told == said, "{} bytes of {}", told.len(), said.len());
    });
}

#[test]
fn nothing_is_left_of_a_connection_whose_server_ends_its_direction_first() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let (server, client) = carried_of(&meeting, &stack, "linger");
        drop(client);
        until("the connection to be over", || had(&meeting, &stack) == 0);
        let descriptors =
            || (stack.descriptors(), std::fs::read_dir(format!("/proc/{}/fd", server.0.id())).unwrap().count());
        let before = descriptors();
        for _ in 0..50 {
            let mut client = remote();
            ask(&mut client, "!", "!");
            assert_eq!(client.read(&mut [0; 16]).unwrap(), 0, "its direction is ended");
        }
        until("all of them to be over", || descriptors() <= before);
    });
}

#[test]
fn what_a_server_has_written_before_it_ended_is_read_to_the_end() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let (mut server, mut client) = carried_of(&meeting, &stack, "leave");
        client.write_all(b"!").unwrap();
        // It reads when the server has been gone for a while.
        until("the server to be gone", || server.0.try_wait().unwrap().is_some());
        let mut told = Vec::new();
        client.read_to_end(&mut told).unwrap();
        assert_eq!(told.len(), 1 << 20);
        assert!(told.iter().enumerate().all(|(n, byte)| usize::from(*byte) == n % 247));
    });
}

#[test]
fn clients_that_are_gone_before_their_server_took_them_leave_nothing() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let server = server(&meeting, "valkey-9.1");
        drop(carried(&meeting, &stack));
        until("the connection to be over", || had(&meeting, &stack) == 0);
        let before = stack.descriptors();
        kill(server.pid(), libc::SIGSTOP);
        // More than a stack keeps for a server that takes none: the others wait in the kernel's queue.
        for turn in 0..300 {
            let client = remote();
            if turn % 2 == 0 {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let (at, len) = ((&raw const linger).cast(), size_of::<libc::linger>() as libc::socklen_t);
                // SAFETY: a live `linger` of `len` bytes.
                let set = unsafe { libc::setsockopt(client.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len) };
                assert_eq!(set, 0);
            }
        }
        kill(server.pid(), libc::SIGCONT);
        until("all of them to be over", || had(&meeting, &stack) == 0 && stack.descriptors() == before);
        ask(&mut carried(&meeting, &stack), "PING\r\n", "+PONG\r\n");
    });
}

#[test]
fn no_local_client_is_lost_when_more_come_than_a_stopped_server_has_room_to_be_told_of() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let server = server(&meeting, "valkey-9.1");
        drop(carried(&meeting, &stack));
        kill(server.pid(), libc::SIGSTOP);
        // A unix socket holds some 280 messages; the others wait in the stack and in the kernel's queue.
        let local = || connected(SocketAddr::from((SERVER, 0)), SocketAddr::from((SERVER, 7990)));
        let mut clients: Vec<TcpStream> = (0..500).map(|_| TcpStream::from(local())).collect();
        kill(server.pid(), libc::SIGCONT);
        for client in &mut clients {
            client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            ask(client, "PING\r\n", "+PONG\r\n");
        }
    });
}

#[test]
fn each_server_has_a_thread_and_figures_of_its_own() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start_with(&meeting, &["--threads", "2", "--status", "127.0.0.1:0"]).expect("a stack");
        let servers = [7990, 7991].map(|port| (port, server_at(&meeting, port, "valkey-9.1")));
        let figure = |name: &str, port: u16| stack.figure(name, port);
        until("both servers to be the stack's", || {
            servers.iter().all(|(port, _)| figure("connections", *port).is_some())
        });
        let threads = servers.each_ref().map(|(port, _)| figure("thread", *port).unwrap());
        assert!(threads == [0, 1] || threads == [1, 0], "{threads:?}");
        let mut clients: Vec<TcpStream> = [7990, 7990, 7991].map(remote_to).into_iter().collect();
        clients.iter_mut().for_each(|client| ask(client, "PING\r\n", "+PONG\r\n"));
        let figures = |name: &str| [7990, 7991].map(|port| figure(name, port));
        // Counted when the client may have its answer already.
        until("all of it to be counted", || figures("sent_bytes_total") == [Some(14), Some(7)]);
        assert_eq!(figures("connections"), [Some(2), Some(1)]);
        assert_eq!(figures("received_bytes_total"), [Some(12), Some(6)]);
        drop(clients);
        until("connections to be over", || figure("connections", 7990) == Some(0));
        assert_eq!(figure("accepted_total", 7990), Some(2));
    });
}

#[test]
fn a_server_that_moves_to_another_port_and_back_is_served_at_both() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start_with(&meeting, &["--threads", "4"]).expect("a stack");
        let server = server(&meeting, "valkey-9.1");
        drop(carried(&meeting, &stack));
        let mut control = server.connect().unwrap();
        for port in [7995, 7990, 7995, 7990] {
            // The stack has the old listener until it hears that it is closed.
            until("the server to move", || control.call(&["CONFIG", "SET", "port", &port.to_string()]).is_ok());
            until("a client there to be the stack's", || {
                let mut client = remote_to(port);
                ask(&mut client, "PING\r\n", "+PONG\r\n");
                had(&meeting, &stack) > 0
            });
        }
    });
}

#[test]
fn a_slow_reader_holds_up_itself_alone_and_costs_no_more_than_its_buffers() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let _server = server(&meeting, "valkey-9.1");
        let mut other = carried(&meeting, &stack);
        let memory = || -> u64 {
            let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", stack.pid())).unwrap();
            let line = text.lines().find(|line| line.starts_with("Private_Dirty:")).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        other.write_all(&set("big", &vec![b'x'; 1_000_000])).unwrap();
        ask(&mut other, "", "+OK\r\n");
        let before = memory();
        let mut slow = remote();
        slow.write_all(&b"GET big\r\n".repeat(100)).unwrap();
        // All of it is on its way; it reads a byte of it.
        slow.read_exact(&mut [0]).unwrap();
        for _ in 0..1000 {
            ask(&mut other, "PING\r\n", "+PONG\r\n");
        }
        let grown = memory().saturating_sub(before);
        assert!(grown < 8_000, "{grown} kB for one that does not read 100 MB");
        let all = 100 * (1_000_000 + "$1000000\r\n\r\n".len());
        slow.read_exact(&mut vec![0; all - 1]).unwrap();
    });
}

#[test]
fn without_its_stack_a_server_takes_its_clients_itself_and_with_the_next_one_no_more() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let _server = server(&meeting, "valkey-9.1");
        let mut client = carried(&meeting, &stack);
        kill(stack.pid(), libc::SIGKILL);
        // Its own connections end, at once; the next one is the server's.
        let ended = client.read(&mut [0; 16]);
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        drop(stack);
        ask(&mut remote(), "PING\r\n", "+PONG\r\n");
        let stack = Stack::start(&meeting);
        let mut client = carried(&meeting, &stack);
        ask(&mut client, "PING\r\n", "+PONG\r\n");
    });
}

#[test]
fn of_a_server_that_is_killed_nothing_is_left_and_its_successor_is_served() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = Stack::start(&meeting);
        let first = server(&meeting, "valkey-9.1");
        drop(carried(&meeting, &stack));
        until("the connection to be over", || had(&meeting, &stack) == 0);
        let before = stack.descriptors();
        // They come and go, some without a word, some with a reset of what they were told.
        for turn in 0..300 {
            let mut client = remote();
            if turn % 3 > 0 {
                client.write_all(b"PING\r\nPING\r\n").unwrap();
            }
            if turn % 3 == 1 {
                client.read_exact(&mut [0; 14]).unwrap();
            }
        }
        until("all of them to be over", || had(&meeting, &stack) == 0 && stack.descriptors() == before);
        let mut client = carried(&meeting, &stack);
        kill(first.pid(), libc::SIGKILL);
        let ended = client.read(&mut [0; 16]);
        assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        drop((first, client));
        let _second = server(&meeting, "valkey-9.1");
        ask(&mut carried(&meeting, &stack), "PING\r\n", "+PONG\r\n");
    });
}
