//! The clients that applications use, through the gateway: what they do when they connect, and what people do with
//! them.
//!
//! Each suite is a program under `clients/`.

use std::process::Command;

use unslow_client::Target;
use unslow_engine::Shape;
use unslow_gateway::{Config, Gateway, Start};
use unslow_testkit::servers::deployment;
use unslow_testkit::{clients, options, standalone};

fn gate(url: &str) -> Gateway {
    let config = Config { listen: vec!["127.0.0.1:0".into()], target: url.into(), ..Config::default() };
    let target = Target::parse(url).unwrap();
    Gateway::start(Start { config, target, options: options(2), reread: None, log: Box::new(|_| {}) }).unwrap()
}

/// On a server alone and on a cluster.
fn everywhere(command: impl Fn(&[&str]) -> Command) {
    // The servers' own node timeout, 15 s: nothing here is about failovers.
    let (server, cluster) = (standalone("redis-7.0"), deployment("valkey-9.1", Shape::six_nodes(), &[]));
    for (url, kind) in [(server.url(), "standalone"), (cluster.url(), "cluster")] {
        let gateway = gate(&url);
        let (host, port) = gateway.addresses[0].rsplit_once(':').unwrap();
        clients::run(&mut command(&[host, port, kind]));
    }
}

#[test]
fn redis_py() {
    let dir = clients::python();
    everywhere(|args| {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", dir.join("library")).arg(dir.join("smoke.py")).args(args);
        command
    });
}

#[test]
fn node_redis() {
    let dir = clients::node();
    everywhere(|args| {
        let mut command = Command::new("node");
        command.current_dir(&dir).arg("smoke.mjs").args(args);
        command
    });
}

#[test]
fn go_redis() {
    let binary = clients::go().join("smoke");
    everywhere(|args| {
        let mut command = Command::new(&binary);
        command.args(args);
        command
    });
}

#[test]
fn jedis_and_lettuce() {
    let dir = clients::java();
    everywhere(|args| {
        let mut command = Command::new("java");
        command.current_dir(&dir).args(["-cp", "target/classes:target/dependency/*", "Smoke"]).args(args);
        command
    });
}
