//! Proxies, played by a listener that answers as they do: each is named, none is taken for a server, and discovery
//! looks behind our own gateway only where it may.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use unslow_client::{Deployment, ErrorKind, Options, Target, discover, discover_as_client};
use unslow_resp::{Frame, Scan, Scanner, Value};
use unslow_topology::{DeploymentKind, Gateway, Role};

/// For what comes on any machine; nothing is judged by it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Something that listens and answers.
struct Peer {
    address: String,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Peer {
    /// Answers each command, its words with blanks between, with these bytes; `None` closes the connection.
    fn new(answer: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Peer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let (answer, log) = (Arc::new(answer), heard.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, answer, log) = (stream.unwrap(), answer.clone(), log.clone());
                std::thread::spawn(move || {
                    let (mut input, mut chunk) = (Vec::new(), [0u8; 4096]);
                    while let Ok(n @ 1..) = stream.read(&mut chunk) {
                        input.extend_from_slice(&chunk[..n]);
                        while let Ok(Scan::Complete(len)) = Scanner::default().scan(&input) {
                            let words = Value::from(Frame::new(&input[..len]));
                            input.drain(..len);
                            let words: Vec<String> = words.items().iter().filter_map(Value::text).collect();
                            log.lock().unwrap().push(words.join(" "));
                            let Some(bytes) = answer(&words.join(" ")) else { return };
                            let _ = stream.write_all(bytes.as_bytes());
                        }
                    }
                });
            }
        });
        Peer { address, heard }
    }

    fn target(&self) -> Target {
        Target::parse(&self.address).unwrap()
    }

    fn found(&self) -> Deployment {
        discover(&self.target(), &options()).unwrap_or_else(|e| panic!("{e}"))
    }

    fn heard(&self, word: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|line| line.starts_with(word))
    }
}

/// As the doctor connects.
fn options() -> Options {
    Options {
        connect_timeout: PATIENCE,
        command_timeout: PATIENCE,
        name: Some("unslow"),
        protocol: 3,
        ..Options::default()
    }
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn addresses(found: &Deployment) -> Vec<&str> {
    found.members.iter().map(|m| m.address.as_str()).collect()
}

/// A master without replicas, as Valkey answers.
fn server(command: &str, run_id: &str) -> String {
    match command {
        "PING" => "+PONG\r\n".into(),
        "CLIENT SETNAME unslow" => "+OK\r\n".into(),
        "HELLO 3" => "%1\r\n$6\r\nserver\r\n$6\r\nvalkey\r\n".into(),
        "INFO server" => bulk(&format!(
            "redis_version:7.2.4\r\nserver_mode:standalone\r\nprocess_id:9\r\nrun_id:{run_id}\r\ntcp_port:6379\r\n"
        )),
        "INFO replication" => bulk("# Replication\r\nrole:master\r\nconnected_slaves:0\r\n"),
        "INFO unslow" => bulk(""),
        "PUBSUB NUMSUB __sentinel__:hello" => "*2\r\n$18\r\n__sentinel__:hello\r\n:0\r\n".into(),
        _ => {
            let (name, arguments) = command.split_once(' ').unwrap_or((command, ""));
            let arguments: String = arguments.split_whitespace().map(|a| format!("'{a}' ")).collect();
            format!("-ERR unknown command '{name}', with args beginning with: {arguments}\r\n")
        }
    }
}

fn valkey(run_id: &'static str) -> Peer {
    Peer::new(move |command| Some(server(command, run_id)))
}

/// A gateway that names these rows, or refuses to, in front of a server with this run id.
fn gateway(rows: Option<Vec<String>>, run_id: &'static str) -> Peer {
    Peer::new(move |command| {
        let gateway = Gateway { version: "0.1.0".into(), serves: DeploymentKind::Cluster };
        Some(match (command, &rows) {
            ("INFO unslow", _) => bulk(&gateway.to_info()),
            ("UNSLOW SHOW TOPOLOGY", Some(rows)) => {
                format!("*{}\r\n{}", rows.len(), rows.iter().map(|r| bulk(r)).collect::<String>())
            }
            ("UNSLOW SHOW TOPOLOGY", None) => "-NOPERM unslow: UNSLOW is for another user\r\n".into(),
            _ => server(command, run_id),
        })
    })
}

fn row(address: &str) -> String {
    format!("node={address} role=master health=up master=- slots=0-16383 epoch=0 zone=- rtt_us=90 lag_bytes=-")
}

/// The proxy is all that was found, and it is said what was not.
fn check_alone(found: &Deployment, peer: &Peer, name: &str) {
    assert_eq!(found.through.as_deref(), Some(format!("{name} at {}", peer.address).as_str()));
    assert_eq!(found.kind, DeploymentKind::Standalone, "{name}");
    assert!(found.members.iter().all(|m| m.role == Role::Unknown && m.address == peer.address), "{:?}", found.members);
    assert!(found.notes.iter().any(|n| n.contains("were not seen")), "{:?}", found.notes);
}

#[test]
fn proxies_are_named_by_what_they_answer() {
    // Old versions; those that refuse as servers do, but for the quotes; those that add INFO up over the shards.
    let envoy_old = |command: &str| match command {
        "PING" => "+PONG\r\n".into(),
        _ => format!("-unsupported command '{}'\r\n", command.split(' ').next().unwrap()),
    };
    let envoy_later = |command: &str| {
        let mut words = command.split(' ');
        match (words.next().unwrap(), words.next().unwrap_or("")) {
            ("PING", _) => "+PONG\r\n".into(),
            (name, first) => format!("-ERR unknown command '{name}', with args beginning with: {first}\r\n"),
        }
    };
    let envoy_info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:cluster\r\nrun_id:abc\r\nuptime_in_seconds:9\r\n";
    let envoy_new = move |command: &str| match command {
        "INFO server" => bulk(envoy_info),
        "INFO unslow" => bulk(""),
        "HELLO" => "%2\r\n$6\r\nserver\r\n$17\r\nenvoy-redis-proxy\r\n$2\r\nid\r\n:0\r\n".into(),
        "HELLO 3" => "-NOPROTO unsupported protocol version\r\n".into(),
        _ => envoy_later(command),
    };
    let predixy = |command: &str| match command {
        "PING" => "+PONG\r\n".into(),
        "INFO server" => {
            bulk("# Proxy\nVersion:1.0.5\nName:Example\nBind:0.0.0.0:7617\nRedisMode:proxy\nWorkerThreads:1\n")
        }
        "INFO unslow" => bulk("\r\n"),
        _ => "-ERR unknown command\r\n".into(),
    };
    let elasticache = |command: &str| match command {
        "INFO server" => {
            bulk("redis_version:7.2.4\r\nredis_mode:cluster\r\nos:Amazon ElastiCache\r\ntcp_port:6379\r\n")
        }
        "LATENCY LATEST" => "-ERR unknown command 'latency', with args beginning with: LATEST\r\n".into(),
        _ => server(command, "abc"),
    };
    type Answers = Box<dyn Fn(&str) -> String + Send + Sync>;
    let cases: [(&str, Answers); 5] = [
        ("Envoy", Box::new(envoy_old)),
        ("Envoy", Box::new(envoy_later)),
        ("Envoy", Box::new(envoy_new)),
        ("predixy 1.0.5", Box::new(predixy)),
        ("ElastiCache Serverless", Box::new(elasticache)),
    ];
    for (name, answers) in cases {
        let peer = Peer::new(move |command| Some(answers(command)));
        let found = peer.found();
        check_alone(&found, &peer, name);
        assert_eq!(addresses(&found), [peer.address.as_str()], "{name}");
        assert!(!peer.heard("UNSLOW"), "{name}");
    }
}

#[test]
fn a_peer_that_answers_ping_and_closes_at_info_is_twemproxy() {
    let peer = Peer::new(|command| (command == "PING").then(|| "+PONG\r\n".into()));
    let found = peer.found();
    check_alone(&found, &peer, "twemproxy");
    // A probe would take it for dead.
    assert_eq!(addresses(&found), [""; 0]);
    // One that closes whatever is said is no proxy.
    let shut = Peer::new(|_| None);
    assert_eq!(discover(&shut.target(), &options()).unwrap_err().kind, ErrorKind::Closed);
}

#[test]
fn servers_are_not_taken_for_proxies() {
    type Changed = (&'static str, &'static str);
    let cases: [Changed; 5] = [
        ("", ""),
        // INFO denied, renamed (Redis 7.0, 6.2), and a node of ElastiCache.
        ("INFO server", "-NOPERM this user has no permissions to run the 'info' command\r\n"),
        ("INFO server", "-ERR unknown command 'INFO', with args beginning with: 'server' \r\n"),
        ("INFO server", "-ERR unknown command `INFO`, with args beginning with: `server`, \r\n"),
        (
            "INFO server",
            "$80\r\nredis_version:7.1.0\r\nredis_mode:standalone\r\nos:Amazon ElastiCache\r\ntcp_port:6379\r\n",
        ),
    ];
    for (command, answer) in cases {
        let peer = Peer::new(move |asked| match asked {
            "LATENCY LATEST" => Some("*0\r\n".into()),
            _ if asked == command => Some(answer.into()),
            _ => Some(server(asked, "abc")),
        });
        let found = peer.found();
        assert_eq!((found.through.as_deref(), addresses(&found)), (None, vec![peer.address.as_str()]), "{answer}");
        assert!(!peer.heard("UNSLOW"), "{answer}");
    }
}

#[test]
fn discovery_looks_behind_a_gateway_that_names_its_servers() {
    let behind = valkey("one");
    let gate = gateway(Some(vec![row(&behind.address)]), "one");
    let found = gate.found();
    assert_eq!((found.through.as_deref(), addresses(&found)), (None, vec![behind.address.as_str()]));
    assert_eq!(found.members[0].role, Role::Master);
    let note = format!("looked at the servers behind unslow gateway 0.1.0 at {}", gate.address);
    assert!(found.notes.iter().any(|n| n.starts_with(&note)), "{:?}", found.notes);
    // A client that was given the gateway's address stays there.
    let as_client = discover_as_client(&gate.target(), &options()).unwrap();
    assert_eq!(addresses(&as_client), [gate.address.as_str()]);
}

#[test]
fn a_gateway_that_does_not_let_us_look_is_all_there_is() {
    let nothing = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let another = gateway(None, "one");
    // The gateway logs in by itself, and we have no password.
    let locked = Peer::new(|_| Some("-NOAUTH Authentication required.\r\n".into()));
    for (rows, why) in [
        (None, "UNSLOW SHOW TOPOLOGY is for the user"),
        (Some(vec![]), "no list of servers"),
        (Some(vec![row(&nothing), "shutdown".into()]), "no list of servers"),
        (Some(vec!["node=a/b role=master health=up".into()]), "none that can be reached"),
        (Some(vec![row(&nothing)]), "connection refused"),
        (Some(vec![row(&another.address)]), "behind it stands unslow gateway"),
        (Some(vec![row(&locked.address)]), "wants a password"),
    ] {
        let gate = gateway(rows, "one");
        let found = gate.found();
        check_alone(&found, &gate, "unslow gateway 0.1.0");
        assert_eq!(addresses(&found), [gate.address.as_str()]);
        assert!(found.notes[0].contains(why), "{why}: {:?}", found.notes);
    }
}

#[test]
fn another_server_at_a_loopback_address_is_not_the_one_behind_the_gateway() {
    // As through `ssh -L`: the gateway's 127.0.0.1 is another machine's.
    let (wrong, right) = (valkey("two"), valkey("one"));
    let gate = gateway(Some(vec![row(&wrong.address)]), "one");
    let found = gate.found();
    check_alone(&found, &gate, "unslow gateway 0.1.0");
    assert!(found.notes[0].contains("a tunnel?"), "{:?}", found.notes);
    let gate = gateway(Some(vec![row(&wrong.address), row(&right.address)]), "one");
    assert_eq!(addresses(&gate.found()), [right.address.as_str()]);
}

#[test]
fn a_refused_password_is_not_tried_on_the_next_server() {
    let refuses = || {
        Peer::new(|command| match command {
            c if c.starts_with("AUTH") => {
                Some("-WRONGPASS invalid username-password pair or user is disabled.\r\n".into())
            }
            _ => Some("-NOAUTH Authentication required.\r\n".into()),
        })
    };
    let (first, second) = (refuses(), refuses());
    let rows = [row(&first.address), row(&second.address)];
    let gate = Peer::new(move |command| match command {
        c if c.starts_with("AUTH") => Some("+OK\r\n".into()),
        "INFO unslow" => Some(bulk("unslow_gateway_version:0.1.0\r\nunslow_gateway_serves:cluster\r\n")),
        "UNSLOW SHOW TOPOLOGY" => Some(format!("*2\r\n{}{}", bulk(&rows[0]), bulk(&rows[1]))),
        _ => Some(server(command, "one")),
    });
    let target = Target::parse(&format!("redis://:hunter2@{}", gate.address)).unwrap();
    let found = discover(&target, &options()).unwrap();
    check_alone(&found, &gate, "unslow gateway 0.1.0");
    assert!(!found.notes.concat().contains("hunter2"), "{:?}", found.notes);
    assert!(first.heard("AUTH") && !second.heard("AUTH"));
}
