//! The gateway before real servers: the bugs that proxies have, each as a test.

#[path = "gateway/answers.rs"]
mod answers;
#[path = "gateway/behind.rs"]
mod behind;
#[path = "gateway/busy.rs"]
mod busy;
#[path = "gateway/identities.rs"]
mod identities;
#[path = "gateway/operations.rs"]
mod operations;

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use unslow_client::{Connection, Options, Target, Value};
use unslow_engine::{Deployment, Error, Server};
use unslow_gateway::{Batch, ClientAuth, Config, Facade, Gateway, Log, Read, Start};
use unslow_resp::{Scan, Scanner, write_command};
use unslow_testkit::servers::{everywhere, promote, sentinels, server, steady};
use unslow_testkit::slots::{id, move_slot, owner_of};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{PATIENCE, cluster, options, standalone, until};
use unslow_topology::{ClusterView, Info, slot_of};

fn gate(url: &str, change: impl FnOnce(&mut Config)) -> Gateway {
    // Nearly as patient as its clients: how long a busy machine takes to elect a master is not judged here.
    let mut config =
        Config { listen: vec!["127.0.0.1:0".into()], target: url.into(), hold_ms: 50_000, ..Config::default() };
    change(&mut config);
    let target = Target::parse(&config.target).unwrap();
    Gateway::start(Start { config, target, options: options(3), reread: None, log: Box::new(|_| {}) }).unwrap()
}

fn reread(file: std::path::PathBuf) -> unslow_gateway::Reread {
    Box::new(move || Ok(Config::parse(&std::fs::read_to_string(&file)?)?))
}

fn target(gateway: &Gateway) -> Target {
    Target::parse(&gateway.addresses[0]).unwrap()
}

fn client(gateway: &Gateway) -> Connection {
    Connection::open(&target(gateway), &options(2)).unwrap()
}

fn raw(gateway: &Gateway) -> TcpStream {
    let stream = TcpStream::connect(&gateway.addresses[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads until so many frames are there; returns each frame's bytes.
fn frames(stream: &mut TcpStream, count: usize) -> Vec<Vec<u8>> {
    let (mut bytes, mut out, mut at, mut chunk) = (Vec::new(), Vec::new(), 0, vec![0; 1 << 16]);
    let mut scanner = Scanner::default();
    loop {
        while let Scan::Complete(len) = scanner.scan(&bytes[at..]).expect("RESP") {
            out.push(bytes[at..at + len].to_vec());
            at += len;
            if out.len() == count {
                assert_eq!(at, bytes.len(), "more came than was asked for: {}", bytes[at..].escape_ascii());
                return out;
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) => panic!("closed after {} of {count} frames", out.len()),
            Ok(n) => bytes.extend_from_slice(&chunk[..n]),
            Err(e) => panic!("{e} after {} of {count} frames", out.len()),
        }
    }
}

fn text(frame: &[u8]) -> String {
    frame.escape_ascii().to_string()
}

/// The next frame, as text; `rest` is what came behind the last one.
fn next_frame(stream: &mut TcpStream, rest: &mut Vec<u8>) -> String {
    let mut chunk = [0; 1 << 12];
    loop {
        if let Scan::Complete(len) = Scanner::default().scan(&rest[..]).expect("RESP") {
            return text(&rest.drain(..len).collect::<Vec<u8>>());
        }
        let n = stream.read(&mut chunk).expect("something to read");
        assert!(n > 0, "closed after {}", text(rest));
        rest.extend_from_slice(&chunk[..n]);
    }
}

/// One of the gateway's counters, as its operator sees it at this moment.
fn counter(operator: &mut Connection, name: &str) -> u64 {
    let reply = operator.call(&["UNSLOW", "SHOW", "STATS"]).unwrap();
    let value = |row: String| row.strip_prefix(name)?.strip_prefix('=')?.parse::<u64>().ok();
    let found = reply.items().iter().filter_map(Value::text).find_map(value);
    found.unwrap_or_else(|| panic!("no {name} in {reply:?}"))
}

/// One of the gateway's counters, as its metrics have it: at most a second old.
fn metric(gateway: &Gateway, name: &str) -> u64 {
    let (text, start) = (gateway.metrics(), format!("unslow_gateway_{name} "));
    let found = text.lines().find_map(|l| l.strip_prefix(start.as_str())?.parse::<u64>().ok());
    found.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// The gateway's connections to servers, a line each.
fn backends(operator: &mut Connection) -> Vec<String> {
    let reply = operator.call(&["UNSLOW", "SHOW", "BACKENDS"]).unwrap();
    reply.items().iter().filter_map(Value::text).collect()
}
