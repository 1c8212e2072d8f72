//! Faults of what a machine allows a server: its accept queue, its processors; and of machines that go away. The lab is
//! only the carrier: zones and wires, none of its faults.

use std::io::Write;
use std::net::TcpStream;

use unslow_engine::info;
use unslow_lab::wire::{Change, Conditions};
use unslow_testkit::until;

use crate::Ill;
use crate::ill_machine::two_zones;
use crate::stage::{Client, Made, Stage, at_work, fill, ms, open, words};

pub const CASES: &[Ill] = &[
    Ill {
        name: "benchmark_at_a_short_queue",
        how: "redis-benchmark -k 0 -c 200 against tcp-backlog 4",
        first: "accept_overflow",
        make: benchmark_at_a_short_queue,
    },
    Ill {
        name: "one_processor_by_settings",
        how: "server_cpulist 0 and bio_cpulist 0, FLUSHALL ASYNC of 20,000 keys over and over",
        first: "pinned",
        make: one_processor_by_settings,
    },
    Ill {
        name: "twelve_threads_for_sockets",
        how: "io-threads 12 on fewer processors, redis-benchmark -c 50 -P 16",
        first: "io_threads",
        make: twelve_threads_for_sockets,
    },
    Ill {
        name: "workers_whose_machine_is_gone",
        how: "BLPOP by five workers in another zone that is cut off, tcp-keepalive 0",
        first: "dead_peers",
        make: workers_whose_machine_is_gone,
    },
    Ill {
        name: "whole_lists_under_a_limit",
        how: "LRANGE of 5 MB by clients that may have 2 MB waiting",
        first: "normal_buffer_kill",
        make: whole_lists_under_a_limit,
    },
];

fn benchmark_at_a_short_queue(stage: &mut Stage) -> Made {
    let server = stage.server(&[("tcp-backlog", "4")]);
    stage.tool("redis-benchmark", &server, &["-k", "0", "-c", "200", "-n", "100000000", "-t", "get", "-q"]);
    let mut c = open(&server);
    until("the clients to come and go", || {
        info(&mut c, "stats").is_ok_and(|i| i.number("total_connections_received") > Some(1000.0))
    });
    Ok(())
}

fn one_processor_by_settings(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("servers do not bind themselves to processors before 6.0");
    }
    // As it is spelt before 7.2, and understood ever since.
    let server = stage.server(&[("server_cpulist", "0"), ("bio_cpulist", "0")]);
    for client in 0..2 {
        let mut c = Client::of(&server);
        let mut batch: Vec<Vec<String>> =
            (0..20_000).map(|i| words(&["SET", &format!("page:{client}:{i}"), &"x".repeat(100)])).collect();
        batch.push(words(&["FLUSHALL", "ASYNC"]));
        stage.work(move |on| {
            let _ = c.pipeline(&batch);
            on.pause(ms(0));
        });
    }
    Ok(())
}

fn twelve_threads_for_sockets(stage: &mut Stage) -> Made {
    if !stage.since((6, 0)) {
        return Err("there are no io-threads before 6.0");
    }
    if std::thread::available_parallelism().is_ok_and(|n| n.get() >= 12) {
        return Err("this machine has a processor for each of them");
    }
    let server = stage.server(&[("io-threads", "12")]);
    stage.tool("redis-benchmark", &server, &["-c", "50", "-P", "16", "-n", "1000000000", "-t", "get", "-q"]);
    at_work(&server, "get");
    Ok(())
}

fn workers_whose_machine_is_gone(stage: &mut Stage) -> Made {
    let lab = two_zones(stage)?;
    let server = lab.deployment.nodes[0].clone();
    let mut c = open(&server);
    c.call(&["CONFIG", "SET", "tcp-keepalive", "0"]).expect("a setting");
    let there = lab.client_in(1).expect("a client's host");
    let mut workers = Vec::new();
    for i in 0..5 {
        let mut worker = lab.connect(there, &server, &unslow_testkit::options(2)).expect("a connection");
        worker.send(&["BLPOP", &format!("jobs:{i}"), "0"]).expect("the server takes it");
        workers.push(worker);
    }
    until("the workers to wait", || info(&mut c, "clients").is_ok_and(|i| i.number("blocked_clients") == Some(5.0)));
    let host = lab.hosts.iter().position(|h| h.name == there.name).expect("a host");
    let wire = lab.wire().map_err(|_| "needs network namespaces")?;
    let add = Conditions { cut: true, ..Conditions::default() };
    wire.change(Change { from: vec![host], to: vec![lab.places[0]], both_ways: true, add });
    for i in 0..5 {
        c.call(&["RPUSH", &format!("jobs:{i}"), "a job that no one does"]).expect("written");
    }
    stage.keep(workers);
    // The kernel sends the jobs again after 0.2 s, 0.6 s, 1.4 s and 3 s.
    std::thread::sleep(ms(4000));
    Ok(())
}

fn whole_lists_under_a_limit(stage: &mut Stage) -> Made {
    if !stage.since((7, 4)) {
        return Err("connections closed at a buffer limit are not counted before 7.4");
    }
    let server = stage.server(&[("client-output-buffer-limit", "normal 2mb 0 0")]);
    fill(&server, 500, |i| {
        let mut command = words(&["RPUSH", "orders"]);
        command.extend((0..100).map(|j| format!("order-{:0>94}", i * 100 + j)));
        command
    });
    stage.application(&server, 500);
    let (ip, port) = (server.ip.clone(), server.port);
    stage.work(move |on| {
        let mut client = TcpStream::connect((ip.as_str(), port)).ok();
        if let Some(client) = &mut client {
            let _ = client.write_all(b"LRANGE orders 0 -1\r\n");
        }
        on.pause(ms(50));
        drop(client);
    });
    at_work(&server, "lrange");
    Ok(())
}
