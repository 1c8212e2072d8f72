//! Faults of machines and the paths between them. The lab is only the carrier here: zones and wires, none of its
//! faults.

use std::rc::Rc;
use std::time::Duration;

use unslow_client::Options;
use unslow_engine::info;
use unslow_lab::lab::Lab;
use unslow_lab::topology::{Kind, Topology};
use unslow_lab::wire::{Change, Conditions};
use unslow_testkit::until;

use crate::Ill;
use crate::means::{Group, pin};
use crate::stage::{Client, Made, Stage, ms, open, tool, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "quota_of_a_container",
        how: "a quarter of a core in periods of 20 ms, pipelines of writes",
        first: "cpu_throttled",
        make: quota_of_a_container,
    },
    Ill {
        name: "neighbour_on_its_core",
        how: "the server and two busy loops pinned to one core, pipelines of writes",
        first: "noisy_neighbour",
        make: neighbour_on_its_core,
    },
    Ill {
        name: "batches_from_another_zone",
        how: "redis-benchmark -P 16 from 2 ms away beside near clients",
        first: "far_client",
        make: batches_from_another_zone,
    },
    Ill {
        name: "loss_on_the_way_back",
        how: "3 % of the packets from server to client are lost, none the other way",
        first: "packet_loss",
        make: loss_on_the_way_back,
    },
];

fn quota_of_a_container(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let group = Group::with_quota(server.pid(), 5_000, 20_000)?;
    stage.at_end(move || drop(group));
    let mut c = Client::of(&server);
    let batch = vec![words(&["SET", "{t2}", "v"]); 100];
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(0));
    });
    Ok(())
}

fn neighbour_on_its_core(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    pin(server.pid(), 0)?;
    for _ in 0..2 {
        let mut spin = std::process::Command::new("sh");
        // Ends with the stage, and after five minutes of processor time in any case.
        spin.args(["-c", "ulimit -t 300; while :; do :; done"]);
        let pid = stage.program(spin);
        pin(pid, 0)?;
    }
    let mut c = Client::of(&server);
    let batch = vec![words(&["SET", "{t2}", "v"]); 100];
    stage.work(move |on| {
        let _ = c.pipeline(&batch);
        on.pause(ms(1));
    });
    Ok(())
}

/// One server in the first of two zones, on wires that take 2 ms across.
pub fn two_zones(stage: &mut Stage) -> Result<Rc<Lab>, &'static str> {
    let text =
        "[[zone]]\nname = \"here\"\nhosts = 1\n[[zone]]\nname = \"there\"\nhosts = 1\n[between]\nrtt = \"2ms\"\n";
    let mut topology = Topology::parse(text).expect("our own text");
    topology.deployment.kind = Kind::Standalone;
    topology.deployment.server = stage.engine.name.clone();
    let lab = Rc::new(Lab::start(&topology).unwrap_or_else(|e| panic!("{e}")));
    if lab.wire().is_err() {
        return Err("needs network namespaces");
    }
    stage.url = lab.url();
    stage.keep(lab.clone());
    // As a person who is logged in on the server's host.
    let beside = lab.clone();
    stage.place_doctor(move |command| {
        beside.place(&beside.hosts[beside.places[0]], command).unwrap_or_else(|e| panic!("{e}"));
    });
    Ok(lab)
}

/// Clients on the zone's host for clients, in pipelines of ten; returns when the server has executed `enough` commands.
fn clients_in(stage: &mut Stage, lab: &Lab, zone: usize, count: usize, enough: f64) {
    let seat = lab.client_in(zone).and_then(|h| h.seat.clone()).expect("a client's host");
    for _ in 0..count {
        let (seat, target) = (seat.clone(), lab.deployment.nodes[0].target());
        let batch = vec![words(&["SET", "{t2}", &"x".repeat(100)]); 10];
        let mut there = None;
        stage.work(move |on| {
            // The thread stays there, as a client's does.
            let c = there.get_or_insert_with(|| {
                seat.enter().expect("the client's host");
                Client::at(target.clone())
            });
            let _ = c.pipeline(&batch);
            on.pause(ms(2));
        });
    }
    let mut c = open(&lab.deployment.nodes[0]);
    until("the clients to be at work", || {
        info(&mut c, "stats").is_ok_and(|i| i.number("total_commands_processed") > Some(enough))
    });
}

fn batches_from_another_zone(stage: &mut Stage) -> Made {
    let lab = two_zones(stage)?;
    let server = lab.deployment.nodes[0].clone();
    let mut far = tool("redis-benchmark");
    far.args(["-h", &server.ip, "-p", &server.port.to_string()]);
    far.args(["-c", "4", "-P", "16", "-n", "100000000", "-t", "get", "-q"]);
    lab.place(lab.client_in(1).expect("a client's host"), &mut far).unwrap_or_else(|e| panic!("{e}"));
    stage.program(far);
    clients_in(stage, &lab, 0, 4, 20_000.0);
    Ok(())
}

fn loss_on_the_way_back(stage: &mut Stage) -> Made {
    let lab = two_zones(stage)?;
    let host = |name: &str| lab.hosts.iter().position(|h| h.name == name).expect("a host");
    let client = lab.client_in(0).expect("a client's host").name.clone();
    let add = Conditions { loss: 0.03, ..Conditions::default() };
    let change = Change { from: vec![lab.places[0]], to: vec![host(&client)], both_ways: false, add };
    let wire = lab.wire().map_err(|_| "needs network namespaces")?;
    clients_in(stage, &lab, 0, 8, 20_000.0);
    wire.change(change);
    // The kernel's counters need some thousand segments.
    let options = Options { command_timeout: Duration::from_secs(10), ..Options::default() };
    let mut c = lab.deployment.nodes[0].connect_with(&options).expect("a connection");
    let processed = |c: &mut _| info(c, "stats").ok().and_then(|i| i.number("total_commands_processed")).unwrap_or(0.0);
    let before = processed(&mut c);
    until("some thousand replies", || processed(&mut c) > before + 20_000.0);
    Ok(())
}
