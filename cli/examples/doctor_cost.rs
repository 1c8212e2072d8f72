//! What a diagnosis with default settings costs: six nodes, and 300 of which 294 are ghosts in nodes.conf. Runs the
//! released binary and prints a table; `make bench` keeps it.
//!
//! It can show the price on this machine over loopback. It cannot show a network's: add a round trip per question.

use std::process::Command;
use std::time::Instant;

use unslow_engine::{Deployment, ServerSpec, Shape, find};

fn main() {
    println!(
        "{:<12} {:>6} {:>9} {:>9} {:>22} {:>34}",
        "engine", "nodes", "seconds", "commands", "server CPU share, most", "dearest command (server's clock)"
    );
    for name in ["valkey-9.1", "redis-8.10", "redis-7.0", "redis-6.2", "redis-5.0"] {
        let engine = find(name).expect("the engine installs");
        let mut deployment =
            Deployment::start(&engine, &Shape::six_nodes(), &ServerSpec::default()).expect("the cluster starts");
        measure(name, &deployment);
        ghosts(&mut deployment);
        measure(name, &deployment);
    }
}

fn measure(name: &str, deployment: &Deployment) {
    let begun = Instant::now();
    let output = Command::new("target/release/unslow")
        .args(["doctor", &deployment.url(), "--format", "json", "--quiet"])
        .output()
        .expect("build it first: make bench");
    let took = begun.elapsed().as_secs_f64();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a report");
    let cost = &report["cost"];
    let nodes = report["deployment"]["nodes"].as_array().map_or(0, Vec::len);
    let dearest = format!(
        "{} {:.2} ms",
        cost["slowest_command"].as_str().unwrap_or(""),
        cost["slowest_us"].as_f64().unwrap_or(0.0) / 1000.0
    );
    println!(
        "{name:<12} {nodes:>6} {took:>9.1} {:>9} {:>20.3} % {dearest:>34}",
        cost["commands"],
        cost["server_cpu_share"].as_f64().unwrap_or(0.0) * 100.0
    );
}

/// 294 replicas that nobody runs, at addresses where nobody listens; gossip tells the other nodes.
fn ghosts(deployment: &mut Deployment) {
    let node = &mut deployment.nodes[0];
    node.kill();
    let path = node.dir().join("nodes.conf");
    let text = std::fs::read_to_string(&path).expect("a cluster node keeps nodes.conf");
    let master = text
        .lines()
        .find(|l| l.contains("myself"))
        .and_then(|l| l.split(' ').next())
        .expect("its own line")
        .to_string();
    let ghosts: String = (0..294)
        .map(|i| {
            format!(
                "{:040x} 127.77.{}.{}:7000@17000 slave {master} 0 0 1 connected\n",
                0xdead_0000u64 + i,
                i / 250,
                i % 250 + 1
            )
        })
        .collect();
    std::fs::write(&path, text.replacen("vars ", &format!("{ghosts}vars "), 1)).expect("written");
    node.restart().expect("it starts with them");
}
