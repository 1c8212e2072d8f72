//! `unslow bypass --sockmap`: the kernel hands bytes from socket to socket, below TCP.

use super::*;

/// Asks again and again over five connections, and prints what TCP itself carried of them, there and back.
const OVER_TCP: &str = r#"
import socket, struct, sys

host, port, asked = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
connections = [socket.create_connection((host, port), 100) for _ in range(5)]
for _ in range(asked // 5):
    for s in connections:
        s.sendall(b"PING\r\n")
        got = b""
        while not got.endswith(b"\r\n"):
            part = s.recv(99)
            assert part, "it closed the connection"
            got += part
        assert got == b"+PONG\r\n", got
# struct tcp_info: tcpi_bytes_acked, tcpi_bytes_received
told = [struct.unpack_from("QQ", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), 120) for s in connections]
print(sum(t[0] for t in told), sum(t[1] for t in told))
"#;

/// A server of IPv6 in place of Redis.
const PONG: &str = r#"
import socket, sys, threading

def serve(s):
    while part := s.recv(99):
        assert part == b"PING\r\n", part
        s.sendall(b"+PONG\r\n")

l = socket.create_server(("::", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("good", flush=True)
while True:
    s, peer = l.accept()
    assert peer[0] in ("::1", "::ffff:127.0.0.1"), peer
    threading.Thread(target=serve, args=(s,), daemon=True).start()
"#;

const ASKED: u64 = 5000;
/// Of "PING" and "+PONG" with their line ends.
const ASKED_BYTES: u64 = ASKED * 13;

/// How many bytes TCP itself carried of [`ASKED_BYTES`]: the kernel's own counters of these connections.
fn over_tcp(host: &str, port: u16) -> u64 {
    let words = [LIMIT, "python3", "-c", OVER_TCP, host, &port.to_string(), &ASKED.to_string()];
    let ended = Command::new("timeout").args(words).output().unwrap();
    assert!(ended.status.success(), "{}", stderr(&ended));
    stdout(&ended).split_whitespace().map(|n| n.parse::<u64>().unwrap()).sum()
}

/// `--sockmap` for a port, at work. None where the kernel, or this machine's owner, does not let us: the test is
/// skipped with its words.
fn sockmap(port: u16) -> Option<Running> {
    let args = ["bypass", "--sockmap", "--port", &port.to_string()];
    let mut attached = Running(command(&args).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = BufReader::new(attached.0.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let refused = line.contains("needs root") || line.contains("Operation not permitted");
    if refused && !may_load_programs() || line.contains("the kernel does not take") && !kernel_has_sockmap() {
        skip(line.trim_end());
        return None;
    }
    assert!(line.contains("bypass TCP from now on"), "{line}");
    attached.0.stderr = Some(said.into_inner());
    Some(attached)
}

/// Whether this process has the capabilities that loading programs and attaching them to a cgroup take: with them, a
/// refusal is a failure and no reason to skip. A container's seccomp filter may refuse all the same; `Seccomp` of the
/// status says that it filters.
fn may_load_programs() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default().trim();
    let capabilities = u64::from_str_radix(field("CapEff:"), 16).unwrap();
    let has = |bit: u32| capabilities & 1 << bit != 0;
    let (net_admin, sys_admin, bpf) = (12, 21, 39);
    (has(sys_admin) || has(bpf) && has(net_admin)) && field("Seccomp:") == "0"
}

/// Whether it has what the programs call; then it refuses them for what they are.
fn kernel_has_sockmap() -> bool {
    let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
    let has = |name: &str| symbols.lines().any(|l| l.split_whitespace().nth(2) == Some(name));
    has("bpf_msg_redirect_hash") && has("bpf_get_netns_cookie_sk_msg")
}

#[test]
fn sockets_hand_their_bytes_over_below_tcp() {
    let server = standalone("redis-7.0");
    let (host, port) = (server.ip.as_str(), server.port);
    let mut old = server.connect_with(&options(2)).unwrap();
    let plain = over_tcp(host, port);
    assert!(plain >= ASKED_BYTES, "{plain} of {ASKED_BYTES} bytes went over TCP without it");
    let Some(mut attached) = sockmap(port) else { return };
    let handed = over_tcp(host, port);
    assert!(handed < ASKED_BYTES / 10, "{handed} of {ASKED_BYTES} bytes went over TCP");
    // A connection that was there before stays with TCP; and large values go both ways.
    let mut new = server.connect_with(&options(2)).unwrap();
    for client in [&mut old, &mut new] {
        let value = "0123456789".repeat(3_000_000);
        client.call(&["SET", "large", &value]).unwrap();
        assert!(client.call(&["GET", "large"]).unwrap().text().unwrap() == value);
    }
    attached.signal(libc::SIGTERM);
    assert_eq!(attached.ended(), Some(0));
    for client in [&mut old, &mut new] {
        assert_eq!(client.call(&["PING"]).unwrap().text().unwrap(), "PONG", "after the end");
    }
    let plain = over_tcp(host, port);
    assert!(plain >= ASKED_BYTES, "{plain} of {ASKED_BYTES} bytes went over TCP after the end");
    // An ordinary user may not.
    let (_dir, binary) = for_everybody();
    let refused = as_nobody(&binary).args(["bypass", "--sockmap"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("needs root"), "{}", stderr(&refused));
}

#[test]
fn a_server_on_ipv6_is_handed_the_bytes_of_ipv6_clients_and_of_ipv4_clients() {
    if let Err(e) = std::net::TcpListener::bind("[::1]:0") {
        return skip(&format!("no IPv6: {e}"));
    }
    let port = free_port("127.0.0.1").unwrap();
    let mut server = Command::new("python3");
    while_it_waits(server.args(["-c", PONG, &port.to_string()]), || {
        // The server sees the IPv4 client as ::ffff:127.0.0.1.
        for host in ["::1", "127.0.0.1"] {
            let plain = over_tcp(host, port);
            assert!(plain >= ASKED_BYTES, "{host}: {plain} of {ASKED_BYTES} bytes went over TCP without it");
        }
        let Some(_attached) = sockmap(port) else { return };
        for host in ["::1", "127.0.0.1"] {
            let handed = over_tcp(host, port);
            assert!(handed < ASKED_BYTES / 10, "{host}: {handed} of {ASKED_BYTES} bytes went over TCP");
        }
    });
}
