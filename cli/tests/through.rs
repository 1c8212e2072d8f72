//! The doctor at the address of a gateway: it looks at the servers behind it where it may, and claims nothing of them
//! where not.

mod common;

use std::process::Stdio;

use common::{Running, command, ids, report, stdout, unseen, unslow};
use unslow_client::{Connection, ErrorKind, Target};
use unslow_engine::{Deployment, Shape, free_port};
use unslow_testkit::options;
use unslow_testkit::servers::deployment;
use unslow_testkit::wait::until_ok;

/// A gateway and its port.
fn gateway(target: &str, more: &[&str]) -> (Running, u16) {
    let port = free_port("127.0.0.1").unwrap();
    let listen = format!("127.0.0.1:{port}");
    let arguments = [&["gateway", "--listen", &listen, "--target", target][..], more].concat();
    let child = command(&arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let running = Running(child);
    until_ok("the gateway to answer", || {
        match Connection::open(&Target::parse(&listen).unwrap(), &options(2))?.call(&["PING"]) {
            Err(e) if e.kind != ErrorKind::AuthRequired => Err(e),
            _ => Ok(true),
        }
    });
    (running, port)
}

fn addresses(report: &serde_json::Value) -> Vec<String> {
    let nodes = report["deployment"]["nodes"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<String> = nodes.iter().filter_map(|n| n["address"].as_str().map(str::to_string)).collect();
    all.sort();
    all
}

fn nodes(deployment: &Deployment) -> Vec<String> {
    let mut all: Vec<String> = deployment.nodes.iter().map(|n| n.address()).collect();
    all.sort();
    all
}

#[test]
fn the_doctor_looks_at_the_servers_behind_a_gateway() {
    for (shape, kind) in [
        (Shape::six_nodes(), "cluster"),
        (Shape::MasterReplica { replicas: 1 }, "master_replica"),
        (Shape::Standalone, "standalone"),
    ] {
        let deployment = deployment("valkey-9.1", shape, &[("cluster-node-timeout", "15000")]);
        for facade in ["node", "cluster"] {
            let (_gateway, port) = gateway(&deployment.url(), &["--facade", facade]);
            let seen = report(&format!("127.0.0.1:{port}"), &["--no-host"]);
            assert_eq!(seen["deployment"]["kind"], kind, "{facade}");
            assert_eq!(addresses(&seen), nodes(&deployment), "{kind} {facade}");
            let notes = unseen(&seen);
            let note = format!("looked at the servers behind unslow gateway {}", env!("CARGO_PKG_VERSION"));
            assert!(notes.iter().any(|n| n.starts_with(&note)), "{kind} {facade}: {notes:?}");
            assert!(!ids(&seen).contains(&"master_without_replica".to_string()), "{kind} {facade}: {:?}", ids(&seen));
        }
    }
}

#[test]
fn of_servers_behind_a_gateway_that_does_not_let_it_look_the_doctor_claims_nothing() {
    let deployment = deployment("valkey-9.1", Shape::six_nodes(), &[("cluster-node-timeout", "15000")]);
    for node in &deployment.nodes {
        let mut c = node.connect().unwrap();
        c.call(&["ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all"]).unwrap();
    }
    // A user of the servers, and not the one the gateway logs in as.
    let (_gateway, port) = gateway(&deployment.url(), &["--client-auth", "server"]);
    let seen = report(&format!("redis://ann:pw@127.0.0.1:{port}"), &["--no-host"]);
    assert_eq!(seen["deployment"]["kind"], "standalone");
    assert_eq!(addresses(&seen), [format!("127.0.0.1:{port}")]);
    let notes = unseen(&seen);
    let said = |n: &String| n.contains("in front of a cluster") && n.contains("UNSLOW SHOW TOPOLOGY");
    assert!(notes.iter().any(said), "{notes:?}");
    let found = ids(&seen);
    for claim in ["master_without_replica", "masters_share_host", "slots_uncovered", "not_your_redis"] {
        assert!(!found.contains(&claim.to_string()), "{claim}: {found:?}");
    }
    assert!(!seen.to_string().contains(":pw@"), "a password in a report");
}

#[test]
fn the_least_user_printed_through_a_gateway_is_one_the_servers_take() {
    let deployment = deployment("valkey-9.1", Shape::Standalone, &[]);
    let (_gateway, port) = gateway(&deployment.url(), &[]);
    let printed = |url: &str| stdout(&unslow(&["doctor", url, "--print-acl"]));
    let rule = printed(&format!("127.0.0.1:{port}"));
    assert_eq!(rule, printed(&deployment.url()));
    let rule = rule.trim().replace("CHANGE-ME", "pw");
    let words: Vec<&str> = rule.split(' ').collect();
    deployment.nodes[0].connect().unwrap().call(&words).unwrap_or_else(|e| panic!("{rule}: {e}"));
}
