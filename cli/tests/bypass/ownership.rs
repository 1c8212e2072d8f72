//! Whose connection it is: other network namespaces, other users, and clients that offer what is not theirs.

use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use unslow_bypass::channel::{self, Kind};
use unslow_bypass::endpoint::Ends;
use unslow_bypass::local::Local;
use unslow_bypass::pair::{ASKED, DECLINED, Pair, TAKEN};

use super::*;

/// Brings up the loopback interface of the network namespace it runs in.
const LOOPBACK_UP: &str = "import fcntl,socket,struct,sys\n\
                           fcntl.ioctl(socket.socket(),0x8914,struct.pack('16sh14x',b'lo',1))\nprint('up',flush=True)\n\
                           sys.stdin.read()";

/// A network namespace with a loopback interface, for as long as it is held.
struct Namespace(Running);

impl Namespace {
    /// None without the right to make one: the test is skipped with the kernel's words.
    fn new() -> Option<Namespace> {
        let mut held = Command::new("unshare");
        held.args(["--net", "python3", "-c", LOOPBACK_UP]);
        let held = held.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut held = Running(held);
        let mut said = String::new();
        BufReader::new(held.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        if said == "up\n" {
            return Some(Namespace(held));
        }
        let mut why = String::new();
        held.0.stderr.take().unwrap().read_to_string(&mut why).unwrap();
        assert!(why.contains("Operation not permitted"), "{why}");
        skip(why.trim_end());
        None
    }

    /// This command, inside.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside.arg(format!("--net=/proc/{}/ns/net", self.0.0.id()));
        inside.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// The answer of the server at a port inside, over plain TCP.
    fn ask(&self, meeting: &Meeting, port: &str, words: &[&str]) -> String {
        let cli = engine("redis-7.0").server.with_file_name("redis-cli").display().to_string();
        // Its libraries come with the environment of `unslow`.
        let of = meeting.unslow(&[]);
        let mut plain = Command::new("timeout");
        plain.args([LIMIT, &cli, "-p", port]).args(words);
        plain.envs(of.get_envs().filter_map(|(name, value)| Some((name, value?))));
        stdout(&self.inside(&plain).output().unwrap()).trim_end().to_string()
    }
}

#[test]
fn servers_of_two_network_namespaces_never_get_each_others_clients() {
    // Free in both: nothing else is there. Both servers have the same address, and both clients as well.
    const PORT: &str = "7777";
    const SOURCE: &str = "40000";
    let Some(one) = Namespace::new() else { return };
    let two = Namespace::new().expect("the second one as well");
    let meeting = Meeting::new();
    let redis = engine("redis-7.0").server.display().to_string();
    let server = |namespace: &Namespace| {
        let command = meeting.unslow(&["bypass", "--", &redis, "--port", PORT, "--save", ""]);
        let child = namespace.inside(&command).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let server = Running(child);
        until("the server of a namespace to answer", || namespace.ask(&meeting, PORT, &["PING"]) == "PONG");
        server
    };
    let (server_one, server_two) = (server(&one), server(&two));
    let listed = meeting.listed();
    let pids: Vec<&Json> = listed.iter().map(|s| &s["pid"]).collect();
    assert!(pids.len() == 2 && [&server_one, &server_two].iter().all(|s| pids.iter().any(|pid| **pid == s.0.id())));
    assert_ne!(listed[0]["netns"], listed[1]["netns"]);
    let text = stdout(&meeting.unslow(&["bypass", "ls"]).output().unwrap());
    assert_eq!(text.matches("in another network namespace").count(), 2, "{text}");

    // In the second namespace a client that says nothing, so that its connection could still be offered; in the first
    // one a preloaded client with the same addresses, whose own server does not get to it.
    let connects = "import socket,sys\ns=socket.socket()\ns.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1)\n\
                    s.bind(('127.0.0.1',int(sys.argv[2])))\ns.connect(('127.0.0.1',int(sys.argv[1])))\n";
    let silent = format!("{connects}print('good',flush=True)\nsys.stdin.read()");
    let sets =
        format!("{connects}s.sendall(b'SET k v\\r\\n')\nprint('sent',flush=True)\nprint(s.recv(100),flush=True)");
    let mut plain = Command::new("python3");
    while_it_waits(&mut two.inside(plain.args(["-c", &silent, PORT, SOURCE])), || {
        until("the second server to have accepted the silent client", || {
            two.ask(&meeting, PORT, &["CLIENT", "LIST"]).contains(&format!(" addr=127.0.0.1:{SOURCE} "))
        });
        server_one.signal(libc::SIGSTOP);
        let client = meeting.as_delivered(&["bypass", "--client", "--", "python3", "-c", &sets, PORT, SOURCE]);
        let client = one.inside(&client).stdout(Stdio::piped()).spawn().unwrap();
        let mut client = Running(client);
        let mut said = BufReader::new(client.0.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "sent");
        server_one.signal(libc::SIGCONT);
        assert_eq!(said.next().unwrap().unwrap(), "b'+OK\\r\\n'");
    });
    assert_eq!(one.ask(&meeting, PORT, &["GET", "k"]), "v");
    assert_eq!(two.ask(&meeting, PORT, &["GET", "k"]), "", "a SET of the other namespace landed here");

    // Each is carried by the server of its own namespace.
    let stays = "import socket,sys\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])),100)\n\
                 s.sendall(b'PING\\r\\n'); assert s.recv(100)==b'+PONG\\r\\n'\nprint('good',flush=True)\n\
                 sys.stdin.read()";
    let client = meeting.unslow(&["bypass", "--client", "--", "python3", "-c", stays, PORT]);
    for (namespace, server) in [(&one, &server_one), (&two, &server_two)] {
        while_it_waits(&mut namespace.inside(&client), || {
            let listed = meeting.listed();
            let carried = |own: bool| {
                let servers = listed.iter().filter(|s| (s["pid"] == server.0.id()) == own);
                servers.map(|s| s["connections"].as_array().unwrap().len()).sum::<usize>()
            };
            assert_eq!(carried(false), 0, "carried by the other namespace's server");
            assert_eq!(carried(true), 1, "carried by its own server");
        });
        until("the server to see that the client has left", || meeting.carried() == 0);
    }
}

#[test]
fn a_client_that_is_allowed_cannot_take_over_the_connection_of_another() {
    let meeting = Meeting::new();
    let server = meeting.server("redis-7.0", &[]);
    // Over TCP, accepted, and waited for: it could still be offered.
    let fresh = || {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
        let ends = (stream.local_addr().unwrap(), stream.peer_addr().unwrap());
        let word = format!(" addr={} ", ends.0);
        until("the server to have accepted a connection", || {
            server.say(&["CLIENT", "LIST"]).text().unwrap().contains(&word)
        });
        (stream, ends)
    };
    let (mut stranger, ends) = fresh();
    // A client of the server's own user that speaks the protocol by itself, and lies.
    let path = channel::servers_in(meeting.0.path()).pop().unwrap().path;
    let (channel, who) = channel::meet(&path).unwrap();
    let (pair, memory) = Pair::create(channel, (who.pid, who.uid)).unwrap();
    let own = Local::create().unwrap();
    let fds = [memory.as_raw_fd(), own.board_fd.as_raw_fd()];
    channel::say(&pair.channel, Kind::Hello, std::process::id(), 0, &fds).unwrap();
    let offered = |ends: &Ends, socket: RawFd| {
        let (slot, generation) = pair.take_slot().unwrap();
        let words = pair.slot(slot).unwrap();
        until("the server to ask for the socket", || {
            // An offer is answered within a turn of the server's loop, or forgotten.
            channel::offer(&pair.channel, slot, generation, ends).unwrap();
            words.state(generation) == ASKED
        });
        channel::say(&pair.channel, Kind::Proof, slot, generation, &[socket]).unwrap();
        until("the server to decide", || words.state(generation) != ASKED);
        words.state(generation)
    };
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    let other = TcpStream::connect(elsewhere.local_addr().unwrap()).unwrap();
    assert_eq!(offered(&ends, other.as_raw_fd()), DECLINED, "a connection to another server");
    assert_eq!(offered(&ends, elsewhere.as_raw_fd()), DECLINED, "no connection at all");
    let udp = UdpSocket::bind(ends.0).unwrap();
    udp.connect(ends.1).unwrap();
    assert_eq!(offered(&ends, udp.as_raw_fd()), DECLINED, "the same addresses, but UDP");
    match with_the_addresses_of(ends) {
        Some(twin) => assert_eq!(offered(&ends, twin.as_raw_fd()), DECLINED, "the same addresses in another namespace"),
        None => skip("all but a socket of another network namespace was shown: it takes root to make one"),
    }
    assert_eq!(meeting.carried(), 0);
    std::io::Write::write_all(&mut stranger, b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stranger.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n", "over TCP, as before");
    // What is its own is taken: the lies were told in the right way.
    let (mine, ends) = fresh();
    assert_eq!(offered(&ends, mine.as_raw_fd()), TAKEN);
    assert_eq!(meeting.carried(), 1);
}

/// A connected TCP socket with these addresses, of a network namespace that is made for it; None without the right to.
fn with_the_addresses_of(ends: Ends) -> Option<OwnedFd> {
    let thread = std::thread::spawn(move || {
        // SAFETY: it concerns this thread alone, and what it starts.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return None;
        }
        let up = Command::new("python3").args(["-c", LOOPBACK_UP]).stdin(Stdio::null()).status().unwrap();
        assert!(up.success());
        let listener = TcpListener::bind(ends.1).unwrap();
        let socket = connected(ends.0, ends.1);
        // Its other end stays open as long as the test runs.
        std::mem::forget(listener.accept().unwrap());
        Some(socket)
    });
    thread.join().unwrap()
}

/// A TCP connection from one address to another.
pub fn try_connected(from: SocketAddr, to: SocketAddr) -> std::io::Result<OwnedFd> {
    let raw = |address: SocketAddr| {
        let SocketAddr::V4(address) = address else { panic!("{address} is not IPv4") };
        libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: address.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
            sin_zero: [0; 8],
        }
    };
    let (from, to, len) = (raw(from), raw(to), size_of::<libc::sockaddr_in>() as libc::socklen_t);
    // SAFETY: numbers only.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: just opened, and owned by nothing else.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a live address of `len` bytes.
    let bound = unsafe { libc::bind(fd, (&raw const from).cast(), len) };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: a live address of `len` bytes.
    let made = unsafe { libc::connect(fd, (&raw const to).cast(), len) };
    if made == 0 { Ok(socket) } else { Err(std::io::Error::last_os_error()) }
}

/// The same, where there is nothing that may refuse it.
pub fn connected(from: SocketAddr, to: SocketAddr) -> OwnedFd {
    try_connected(from, to).unwrap()
}

#[test]
fn ls_reports_clients_that_do_not_allow_the_servers_user() {
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        return skip("it takes root to start a server that gives up root");
    }
    let meeting = Meeting::for_all();
    let port = free_port("127.0.0.1").unwrap();
    let text = port.to_string();
    let memcached = ["bypass", "-q", "--", "memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", &text];
    let _memcached = Running(meeting.unslow(&memcached).stderr(Stdio::null()).spawn().unwrap());
    until("memcached to be met", || meeting.listed().len() == 1);
    let script = "import socket,sys\ns=socket.create_connection(('127.0.0.1',int(sys.argv[1])),100)\n\
                  s.sendall(b'version\\r\\n'); assert s.recv(100).startswith(b'VERSION')\nprint('good')";
    let output = meeting.client(&["python3", "-c", script, &text]);
    assert_eq!(stdout(&output), "good\n", "{}", stderr(&output));
    let mut refusals = Json::Null;
    until("the refusal to be listed", || {
        refusals = meeting.listed()[0]["refusals"].clone();
        refusals != serde_json::json!([])
    });
    let expected = serde_json::json!([{"refused_by": "client", "why": "user", "client_uid": 0, "times": 1}]);
    assert_eq!(refusals, expected);
    let listed = stdout(&meeting.unslow(&["bypass", "ls"]).output().unwrap());
    assert!(listed.contains("which do not allow user 65534: start them with --allow uid:65534"), "{listed}");
}
