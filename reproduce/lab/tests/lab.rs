//! Labs on real servers: what was asked for is what is there. Delays are held to their lower bounds only, since a shared
//! machine may always be slower; `examples/wire.rs` measures how close they come.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use unslow_client::Options;
use unslow_lab::faults;
use unslow_lab::lab::{Host, Lab, host};
use unslow_lab::topology::Topology;

fn lab(text: &str) -> Lab {
    Lab::start(&Topology::parse(text).unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"))
}

/// No servers: two zones with a host each.
const BARE: &str = r#"
[[zone]]
name = "a"
clients = 0
[[zone]]
name = "b"
clients = 0
[between]
rtt = "10ms"
[deployment]
kind = "none"
"#;

fn socket(host: &Host) -> UdpSocket {
    let seat = host.seat.as_ref().expect("these tests need root, or a user namespace");
    let address = (host.ip.clone(), 7000);
    let socket = seat.run(move || UdpSocket::bind(address)).expect("entered").expect("bound");
    socket.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
    socket
}

/// Sends `n` packets from one to the other; how many came, and the least time one took.
fn send(from: &UdpSocket, to: &UdpSocket, n: u32) -> (usize, Duration) {
    to.set_nonblocking(true).expect("set");
    let there = to.local_addr().expect("bound");
    let (mut came, mut least, mut buffer) = (0, Duration::MAX, [0u8; 64]);
    let mut sent = Vec::new();
    let mut take = |sent: &[Instant], came: &mut usize| {
        while let Ok(4) = to.recv(&mut buffer) {
            let number = u32::from_ne_bytes(buffer[..4].try_into().expect("four bytes"));
            least = least.min(sent[number as usize].elapsed());
            *came += 1;
        }
    };
    for i in 0..n {
        sent.push(Instant::now());
        from.send_to(&i.to_ne_bytes(), there).expect("sent");
        if i % 20 == 19 {
            std::thread::sleep(Duration::from_millis(1)); // receive buffers are finite
            take(&sent, &mut came);
        }
    }
    let until = Instant::now() + Duration::from_millis(200);
    while Instant::now() < until && came < n as usize {
        take(&sent, &mut came);
        std::thread::sleep(Duration::from_millis(1));
    }
    to.set_nonblocking(false).expect("set");
    (came, least)
}

#[test]
fn a_packet_takes_at_least_half_of_the_round_trip() {
    let lab = lab(BARE);
    let (a, b) = (socket(&lab.hosts[0]), socket(&lab.hosts[1]));
    let (came, least) = send(&a, &b, 50);
    assert_eq!(came, 50);
    assert!(least >= Duration::from_micros(4900), "{least:?} for half of 10 ms");
}

#[test]
fn loses_the_share_that_was_asked_for() {
    let lab = lab(&BARE.replace("10ms", "1ms"));
    let (a, b) = (socket(&lab.hosts[0]), socket(&lab.hosts[1]));
    let loss = faults::named("loss").expect("a fault");
    // By the wire's own count: a busy machine may lose packets at the sockets besides.
    let lost = || lab.wire_stats().expect("a wire").packets_lost;
    let mut active = loss.inject(&lab, Some("a->b"), Some("10%")).expect("begun");
    let (came, _) = send(&a, &b, 10_000);
    assert!((900..=1100).contains(&lost()), "{} of 10000 lost, 1000 were asked for", lost());
    assert!(came as u64 <= 10_000 - lost(), "{came} came");
    let before = lost();
    assert!(send(&b, &a, 1000).0 > 0 && lost() == before, "the other direction loses nothing");
    active.heal().expect("healed");
    assert!(send(&a, &b, 1000).0 > 0 && lost() == before, "healed, nothing is lost");
}

#[test]
fn lets_packets_overtake_only_where_asked_to() {
    for (reorder, wanted) in [("0%", 0..=0), ("20%", 100..=300)] {
        let lab =
            lab(&BARE.replace("rtt = \"10ms\"", &format!("rtt = \"10ms\"\njitter = \"2ms\"\nreorder = \"{reorder}\"")));
        let (a, b) = (socket(&lab.hosts[0]), socket(&lab.hosts[1]));
        let there = b.local_addr().expect("bound");
        let reader = std::thread::spawn(move || {
            let mut buffer = [0u8; 4];
            let numbers = std::iter::from_fn(|| b.recv(&mut buffer).ok().map(|_| u32::from_ne_bytes(buffer)));
            numbers.collect::<Vec<u32>>()
        });
        for i in 0..1000u32 {
            a.send_to(&i.to_ne_bytes(), there).expect("sent");
            std::thread::sleep(Duration::from_micros(500));
        }
        let came = reader.join().expect("read");
        // One that arrives before an earlier one has overtaken it.
        let overtaking = (0..came.len()).filter(|i| came[i + 1..].iter().any(|later| *later < came[*i])).count();
        assert!(came.len() > 900 && wanted.contains(&overtaking), "{reorder}: {overtaking} of {} overtook", came.len());
    }
}

#[test]
fn cuts_one_direction_both_or_a_whole_zone() {
    let lab = lab(BARE);
    let (a, b) = (socket(&lab.hosts[0]), socket(&lab.hosts[1]));
    let partition = faults::named("partition").expect("a fault");
    for (target, there, back) in [("a->b", 0, 20), ("b->a", 20, 0), ("a:b", 0, 0), ("a-host-1:b", 0, 0), ("b", 0, 0)] {
        let active = partition.inject(&lab, Some(target), None).expect(target);
        assert_eq!(send(&a, &b, 20).0, there, "{target}: a to b");
        assert_eq!(send(&b, &a, 20).0, back, "{target}: b to a");
        drop(active);
        assert_eq!((send(&a, &b, 20).0, send(&b, &a, 20).0), (20, 20), "{target}: undone on drop");
    }
}

#[test]
fn a_rate_is_not_exceeded() {
    let lab = lab(&BARE.replace("10ms", "1ms"));
    let (a, b) = (socket(&lab.hosts[0]), socket(&lab.hosts[1]));
    let active = faults::named("rate").expect("a fault").inject(&lab, Some("a->b"), Some("1mbit")).expect("begun");
    // 80 packets of 1042 bytes on the wire are 0.667 s at 1 Mbit/s; a queue holds 200 ms.
    let there = b.local_addr().expect("bound");
    let begun = Instant::now();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0u8; 2048];
        (0..80).map_while(|_| b.recv(&mut buffer).ok()).count()
    });
    for _ in 0..80 {
        a.send_to(&[0u8; 1000], there).expect("sent");
        std::thread::sleep(Duration::from_millis(5));
    }
    let came = reader.join().expect("read");
    assert!(came >= 60, "{came} of 80 came");
    let least = Duration::from_secs_f64((came - 1) as f64 * 1042.0 * 8.0 / 1e6);
    assert!(begun.elapsed() >= least, "{came} packets in {:?}, {least:?} at the least", begun.elapsed());
    drop(active);
}

#[test]
fn the_standard_lab_is_a_cluster_over_three_zones() {
    let lab = Lab::start(&Topology::standard()).unwrap_or_else(|e| panic!("{e}"));
    let client = host(&lab, "zone-b-client-1").expect("there");
    for (server, at) in lab.servers() {
        let mut c = lab.connect(client, server, &Options::default()).expect("connected");
        let mut least = Duration::MAX;
        for _ in 0..20 {
            let begun = Instant::now();
            c.call(&["PING"]).expect("answered");
            least = least.min(begun.elapsed());
        }
        let wanted = if at.zone == client.zone { 100 } else { 1000 };
        assert!(least >= Duration::from_micros(wanted - 10), "{}: {least:?}, {wanted} us were asked for", at.name);
    }
    let (master, replica) = (&lab.hosts[lab.places[0]], &lab.hosts[lab.places[3]]);
    assert_ne!(master.zone, replica.zone, "a replica stands in another zone");
    // Any tool on this machine reaches it too.
    if lab.door.is_some() {
        let mut c = lab.deployment.nodes[0].connect().expect("beside it");
        c.call(&["SET", "{t2}", "v"]).expect("written");
        let outside = unslow_client::Connection::open(&lab.deployment.nodes[0].target(), &Options::default());
        outside.expect("through the door").call(&["PING"]).expect("answered");
    }
}

#[test]
fn servers_of_several_versions_make_one_deployment() {
    let text = r#"
[[zone]]
name = "a"
[[zone]]
name = "b"
[deployment]
kind = "sentinel"
replicas = 1
sentinels = 3
server = "redis-6.2"
[[host]]
name = "b-host-1"
server = "redis-7.0"
settings = { maxmemory = "50mb" }
"#;
    let lab = lab(text);
    let versions: Vec<&str> = lab.deployment.nodes.iter().map(|n| n.engine().name.as_str()).collect();
    assert_eq!(versions, ["redis-6.2", "redis-7.0"]);
    let mut c = lab.deployment.nodes[1].connect().expect("connected");
    let limit = c.call(&["CONFIG", "GET", "maxmemory"]).expect("read").get("maxmemory").and_then(|v| v.text());
    assert_eq!(limit.as_deref(), Some("52428800"));
    assert_eq!(lab.deployment.sentinels.len(), 3);
}

#[test]
fn nothing_is_left_of_a_lab_that_was_dropped() {
    let lab = Lab::start(&Topology::standard()).unwrap_or_else(|e| panic!("{e}"));
    let pids: Vec<u32> = lab.servers().map(|(s, _)| s.pid()).collect();
    let (dir, door) = (lab.dir().to_path_buf(), lab.door.clone());
    // A program of the user's own, which nobody told to end.
    let mut own = std::process::Command::new("sleep");
    own.arg("300");
    lab.place(&lab.hosts[0], &mut own).expect("placed");
    let mut own = own.spawn().expect("started");
    drop(lab);
    assert!(own.wait().expect("ended").code().is_none(), "ended by a signal");
    assert!(pids.iter().all(|p| !std::path::Path::new(&format!("/proc/{p}")).exists()), "a server is left");
    assert!(!dir.exists(), "{} is left", dir.display());
    if let Some((device, _)) = door {
        assert!(!std::path::Path::new(&format!("/sys/class/net/{device}")).exists(), "{device} is left");
    }
}

#[test]
fn a_flat_lab_says_what_is_missing() {
    let lab = Lab::start_flat(&Topology::standard()).unwrap_or_else(|e| panic!("{e}"));
    assert!(lab.missing.iter().any(|m| m.contains("round trips")), "{:?}", lab.missing);
    let refused = faults::named("partition").expect("a fault").inject(&lab, Some("zone-a"), None);
    let refused = refused.err().expect("there is no wire").to_string();
    assert!(refused.contains("flat"), "{refused}");
    // What needs no wire works.
    let mut active = faults::named("hang").expect("a fault").inject(&lab, Some("node-4"), None).expect("begun");
    active.heal().expect("healed");
}
