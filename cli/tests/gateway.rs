//! `unslow watch` and `unslow gateway` as a person starts them: errors, signals, endpoints, TLS on both sides, JSON.

mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use common::{Running, command, openssl, schema, stderr, tls_server, unslow};
use unslow_client::{Connection, ErrorKind, Options, Target, TlsOptions};
use unslow_engine::{Error, Shape, free_port};
use unslow_testkit::servers::{deployment, promote};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, standalone};

fn start(arguments: &[&str]) -> Running {
    let child = command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Running(child)
}

fn client(port: u16) -> Result<Connection, unslow_client::Error> {
    Connection::open(&Target::parse(&format!("127.0.0.1:{port}")).unwrap(), &options(2))
}

fn http(port: u16, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Waits until a page is answered with this status.
fn until_status(port: u16, path: &str, status: u16) {
    let start = format!("HTTP/1.1 {status}");
    until_ok(&format!("{path} to answer {status}"), || http(port, path).map(|text| text.starts_with(&start)));
}

#[test]
fn what_cannot_work_is_said_in_one_line() {
    let server = standalone("valkey-9.1");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let file = |text: &str| {
        let path = dir.path().join(format!("{}.toml", text.len()));
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let url = server.url();
    let with_password = format!("redis://:hunter2@{}", server.address());
    for (arguments, expected) in [
        (vec!["gateway"], "which deployment?"),
        (vec!["gateway", "--target", "127.0.0.1:1"], "connection refused"),
        (vec!["gateway", "--target", &url, "--listen", &taken], "address already in use"),
        (vec!["gateway", "--target", &url, "--listen", "nonsense"], "host:port or unix:/path"),
        (vec!["gateway", "--target", &url, "--read", "zone"], "zone = "),
        (vec!["gateway", "--target", &with_password, "--listen", "0.0.0.0:0"], "--client-auth server"),
        (vec!["gateway", "--target", &url, "--listen", "0.0.0.0:0"], "--open"),
        (vec!["gateway", "--config", &file("hold_ms = \"x\"\ntarget = \"redis://:hunter2@h\"")], "near line 1"),
        (vec!["gateway", "--config", &file("holdms = 1")], "unknown field"),
        (vec!["gateway", "--config", &file("target = redis://:hunter2@h")], "near line 1"),
        (vec!["watch", "127.0.0.1:1"], "connection refused"),
    ] {
        let output = unslow(&arguments);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        assert!(text.contains(expected) && !text.contains("hunter2"), "{arguments:?}: {text}");
    }
}

#[test]
fn serves_reloads_and_ends_by_signals_and_says_how_it_is() {
    let server = standalone("valkey-9.1");
    let (port, metrics) = (free_port("127.0.0.1").unwrap(), free_port("127.0.0.1").unwrap());
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    let settings = |more: &str| {
        let text = format!("target = {:?}\nmetrics = \"127.0.0.1:{metrics}\"\ndrain_ms = 3000\n{more}", server.url());
        std::fs::write(&file, text).unwrap();
    };
    settings("");
    let listen = format!("127.0.0.1:{port}");
    let mut gateway = start(&[
        "gateway",
        "--config",
        &file.display().to_string(),
        "--listen",
        &listen,
        "--strict",
        "--format",
        "json",
    ]);
    until_ok("the gateway to answer", || client(port)?.call(&["PING"]).map(|_| true));
    let mut c = client(port).unwrap();
    c.call(&["SET", "k", "v"]).unwrap();
    until_status(metrics, "/healthz", 200);
    until_status(metrics, "/readyz", 200);
    assert!(http(metrics, "/nothing").unwrap().starts_with("HTTP/1.1 404"));
    until_ok("its metrics", || {
        let text = http(metrics, "/metrics")?;
        Ok::<_, std::io::Error>(
            text.contains("unslow_gateway_command_latency_seconds_count{command=\"SET\"} 1\n")
                && text.contains("unslow_gateway_node_up{node="),
        )
    });
    settings("hold_ms = 4321\n");
    gateway.signal(libc::SIGHUP);
    until_ok("the new setting", || {
        let shown = c.call(&["UNSLOW", "SHOW", "CONFIG"])?.text().unwrap_or_default();
        // Flags still win over the file.
        Ok::<_, Error>(shown.contains("hold_ms: 4321") && shown.contains("strict: true"))
    });
    server.signal(libc::SIGSTOP);
    until_status(metrics, "/readyz", 503);
    server.signal(libc::SIGCONT);
    until_status(metrics, "/readyz", 200);
    assert_eq!(c.call(&["GET", "k"]).unwrap().text().as_deref(), Some("v"));
    gateway.signal(libc::SIGTERM);
    assert_eq!(gateway.ended(), Some(0));
    let mut log = String::new();
    gateway.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    let events: Vec<serde_json::Value> = log.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    for event in ["topology", "reload", "drain"] {
        assert!(events.iter().any(|e| e["event"] == event), "{event}: {log}");
    }
}

#[test]
fn the_first_ctrl_c_lets_clients_finish_and_the_second_one_does_not_wait() {
    let server = standalone("valkey-9.1");
    let port = free_port("127.0.0.1").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("gateway.toml");
    std::fs::write(&file, format!("target = {:?}\ndrain_ms = 600000\n", server.url())).unwrap();
    let listen = format!("127.0.0.1:{port}");
    let mut gateway = start(&["gateway", "--config", &file.display().to_string(), "--listen", &listen]);
    until_ok("the gateway to answer", || client(port)?.call(&["PING"]).map(|_| true));
    // A client in a transaction may finish it.
    let mut c = client(port).unwrap();
    c.call(&["MULTI"]).unwrap();
    let mut said = BufReader::new(gateway.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    gateway.signal(libc::SIGINT);
    assert!(said.any(|line| line.contains("letting clients finish (Ctrl-C again: at once)")));
    gateway.signal(libc::SIGINT);
    assert_eq!(gateway.ended(), Some(2));
    assert!(said.any(|line| line.contains("interrupted; everything it had started was stopped")));
}

#[test]
fn speaks_tls_on_both_sides() {
    let dir = tempfile::tempdir().unwrap();
    let (server, tls_port) = tls_server(dir.path());
    openssl(dir.path(), "req -newkey rsa:2048 -nodes -keyout client.key -out client.csr -subj /CN=client");
    openssl(
        dir.path(),
        "x509 -req -in client.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out client.crt",
    );
    let file = |n: &str| dir.path().join(n).display().to_string();
    let port = free_port("127.0.0.1").unwrap();
    let (listen, target) = (format!("127.0.0.1:{port}"), format!("rediss://127.0.0.1:{tls_port}"));
    let (ca, cert, key) = (file("ca.crt"), file("server.crt"), file("server.key"));
    let (config, settings) = (file("gateway.toml"), format!("target = {target:?}\n"));
    std::fs::write(&config, &settings).unwrap();
    let arguments = [
        "gateway",
        "--config",
        &config,
        "--listen",
        &listen,
        "--cacert",
        &ca,
        "--cert",
        &file("client.crt"),
        "--key",
        &file("client.key"),
        "--tls-cert",
        &cert,
        "--tls-key",
        &key,
        "--tls-client-ca",
        &ca,
    ];
    let child = command(&arguments).env("UNSLOW_PASSWORD", "s3cret").stderr(Stdio::piped()).spawn().unwrap();
    let mut gateway = Running(child);
    let tls = |with_cert: bool| TlsOptions {
        ca: Some(file("ca.crt").into()),
        cert_and_key: with_cert.then(|| (file("client.crt").into(), file("client.key").into())),
        ..TlsOptions::default()
    };
    let open = |with_cert: bool| {
        let options = Options { tls: tls(with_cert), ..options(2) };
        Connection::open(&Target::parse(&format!("rediss://127.0.0.1:{port}")).unwrap(), &options)
            .and_then(|mut c| c.call(&["PING"]).map(|_| c))
    };
    until_ok("the gateway to answer", || open(true).map(|_| true));
    let mut c = open(true).unwrap();
    let value = "x".repeat(1 << 20);
    for i in 0..20 {
        c.call(&["SET", &format!("k{i}"), &value]).unwrap();
        assert_eq!(c.call(&["GET", &format!("k{i}")]).unwrap().text().as_deref(), Some(value.as_str()));
    }
    // The same where commands of many clients wait for each other, in parts of a batch and in more than one.
    std::fs::write(&config, settings + "batch_us = 2000\n").unwrap();
    c.call(&["UNSLOW", "RELOAD"]).unwrap();
    std::thread::scope(|scope| {
        for n in 0..8 {
            let mut c = open(true).unwrap();
            scope.spawn(move || {
                for i in 0..50 {
                    let (key, value) = (format!("batch{n}"), format!("{i}-{}", "y".repeat(i * 1000)));
                    c.call(&["SET", &key, &value]).unwrap();
                    assert_eq!(c.call(&["GET", &key]).unwrap().text(), Some(value));
                }
            });
        }
    });
    // Turned away, and not left to wait.
    let refused = open(false).err().expect("a client without a certificate was let in");
    assert_ne!(refused.kind, ErrorKind::Timeout, "{refused}");
    let refused = client(port).and_then(|mut c| c.call(&["PING"])).expect_err("a client without TLS was let in");
    assert_ne!(refused.kind, ErrorKind::Timeout, "{refused}");
    assert_eq!(c.call(&["GET", "k1"]).unwrap().text().map(|t| t.len()), Some(1 << 20));
    drop(server);
    gateway.signal(libc::SIGTERM);
    assert!(gateway.ended().is_some(), "a signal ended it");
}

#[test]
fn watch_prints_lines_that_fit_the_schema_and_ends_when_it_was_told_to() {
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &[("cluster-node-timeout", "15000")]);
    let url = deployment.url();
    // Only what the servers do counts as a change here: suspicions on a busy machine would use up the two.
    let until_two = ["--format", "json", "--changes", "2", "--for", "120s", "--suspect-after", "60s"];
    let mut watch = start(&[&["watch", url.as_str()][..], &until_two].concat());
    let mut lines = BufReader::new(watch.0.stdout.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!((first["event"].as_str(), first["schema"].as_str()), (Some("topology"), Some("unslow.watch/1")));
    promote(&deployment.nodes[3]);
    let rest: Vec<serde_json::Value> = lines.map(|l| serde_json::from_str(&l.unwrap()).unwrap()).collect();
    assert_eq!(watch.ended(), Some(0));
    let validator = schema("watch");
    for line in [&first].into_iter().chain(&rest) {
        let errors: Vec<String> = validator.iter_errors(line).map(|e| e.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}: {line}");
    }
    let changes: Vec<&serde_json::Value> = rest.iter().flat_map(|l| l["changes"].as_array().unwrap()).collect();
    assert!(
        changes.iter().any(|c| c["change"] == "promoted" && c["node"] == deployment.nodes[3].address()),
        "{changes:?}"
    );
    // Text, and a reader that has had enough.
    let mut watch = start(&["watch", &url]);
    let mut out = BufReader::new(watch.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("cluster, 6 nodes"), "{line}");
    watch.signal(libc::SIGINT);
    assert_eq!(watch.ended(), Some(2));
    let quick = unslow(&["watch", &url, "--for", "300ms", "--quiet"]);
    assert_eq!(quick.status.code(), Some(0));
}
