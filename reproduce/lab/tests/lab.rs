//! Labs on real servers: what was asked for is what is there. Delays are held to their lower bounds only, since a
//! shared machine may always be slower; `examples/wire.rs` measures how close they come.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use unslow_lab::faults;
use unslow_lab::lab::{Host, Lab, host};
use unslow_lab::topology::Topology;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, skip, until};

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

/// The same with a socket on each host; without the rights for a wire the test is skipped.
fn wired(text: &str) -> Option<(Lab, UdpSocket, UdpSocket)> {
    let lab = lab(text);
    if let Err(e) = lab.wire() {
        skip(&e.to_string());
        return None;
    }
    let (a, b) = (socket(&lab.hosts[0]), socket(&lab.hosts[1]));
    Some((lab, a, b))
}

fn socket(host: &Host) -> UdpSocket {
    let seat = host.seat.as_ref().expect("a lab with a wire has namespaces");
    let address = (host.ip.clone(), 7000);
    let socket = seat.run(move || UdpSocket::bind(address)).expect("entered").expect("bound");
    socket.set_nonblocking(true).expect("set");
    socket
}

/// Packets that the wire took and will not deliver.
fn dropped(lab: &Lab) -> u64 {
    let stats = lab.wire_stats().expect("a wire");
    stats.packets_lost + stats.packets_cut + stats.packets_overflowed + stats.packets_refused
}

/// What arrived.
struct Came {
    /// Numbers of the packets, in the order of their arrival.
    numbers: Vec<u32>,
    /// The least time one took.
    least: Duration,
    /// How many the kernel threw away, on this side of the wire or the other: it does where a processor has no time for
    /// the packets of all namespaces (`net.core.netdev_max_backlog`), and does not say whose they were.
    missing: u64,
}

/// What the kernel counts as dropped: on this machine, in any namespace, for want of time; and what the devices and
/// sockets of the lab's hosts refused.
fn thrown_away(lab: &Lab) -> u64 {
    let stat = std::fs::read_to_string("/proc/net/softnet_stat").unwrap_or_default();
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    let softnet: u64 = stat.lines().filter_map(dropped).sum();
    let by_host = lab.hosts.iter().filter_map(|host| host.seat.as_ref()?.run(refused_here).ok());
    softnet + by_host.sum::<u64>()
}

/// Errors and drops of this thread's namespace: of its devices (columns 3, 4, 11 and 12 of `/proc/net/dev`), and of IP
/// and UDP.
fn refused_here() -> u64 {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let number = |words: &[&str], at: usize| words.get(at).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
    let device = |line: &str| {
        let words: Vec<&str> = line.split_once(':').map_or(Vec::new(), |(_, rest)| rest.split_whitespace().collect());
        [2, 3, 10, 11].into_iter().map(|at| number(&words, at)).sum::<u64>()
    };
    let protocols = read("snmp");
    let lines: Vec<Vec<&str>> = protocols.lines().map(|line| line.split_whitespace().collect()).collect();
    let refused = |name: &str| name.contains("Discards") || name.ends_with("Errors");
    let protocol = |pair: &[Vec<&str>]| {
        let names = pair[0].iter().enumerate().filter(|(_, name)| refused(name));
        names.map(|(at, _)| number(&pair[1], at)).sum::<u64>()
    };
    let tables = lines.chunks_exact(2).filter(|pair| matches!(pair[0].first(), Some(&"Ip:" | &"Udp:")));
    read("dev").lines().map(device).sum::<u64>() + tables.map(protocol).sum::<u64>()
}

/// [`send`], again where the kernel threw packets away.
fn send_whole(lab: &Lab, from: &UdpSocket, to: &UdpSocket, n: u32) -> Came {
    loop {
        let came = send(lab, from, to, n);
        if came.missing == 0 {
            return came;
        }
        println!("sent again: the kernel threw {} of {n} packets away", came.missing);
    }
}

/// So many packets are on the way at a time: no buffer overflows, however late a busy machine lets the wire run.
const BURST: usize = 50;

/// Sends `n` packets from one to the other; each has arrived at the end, or the wire has dropped it, or it is missing.
fn send(lab: &Lab, from: &UdpSocket, to: &UdpSocket, n: u32) -> Came {
    let there = to.local_addr().expect("bound");
    let (before, thrown) = (dropped(lab), thrown_away(lab));
    let mut came = Came { numbers: Vec::new(), least: Duration::MAX, missing: 0 };
    let (mut sent, mut buffer) = (Vec::new(), [0u8; 64]);
    for i in 0..n {
        sent.push(Instant::now());
        from.send_to(&i.to_ne_bytes(), there).expect("sent");
        if !sent.len().is_multiple_of(BURST) && i + 1 < n {
            continue;
        }
        let mut heard = Instant::now();
        until_ok("every packet to arrive or to be dropped", || {
            while let Ok(4) = to.recv(&mut buffer) {
                heard = Instant::now();
                let number = u32::from_ne_bytes(buffer[..4].try_into().expect("four bytes"));
                came.least = came.least.min(sent[number as usize].elapsed());
                came.numbers.push(number);
            }
            let known = came.numbers.len() as u64 + dropped(lab) - before + came.missing;
            let open = (sent.len() as u64).saturating_sub(known);
            if open == 0 {
                return Ok(true);
            }
            if heard.elapsed() > Duration::from_secs(2) && thrown_away(lab) > thrown {
                came.missing += open;
                return Ok(true);
            }
            Err(format!("{open} of {} are on the way; {:?}, arrived {:?}", sent.len(), lab.wire_stats(), came.numbers))
        });
    }
    came
}

#[test]
fn the_first_packet_of_a_new_lab_arrives_while_others_are_being_made() {
    if let Err(e) = lab(BARE).wire() {
        return skip(&e.to_string());
    }
    // A lab's own devices wait for the same lock of the kernel as all others that are made or removed meanwhile.
    let rounds = || {
        for round in 0..12 {
            let (_lab, a, b) = wired(BARE).expect("a wire, as above");
            a.send_to(b"first", b.local_addr().expect("bound")).expect("sent");
            until(&format!("the first packet of lab {round} to arrive"), || b.recv(&mut [0; 64]).is_ok());
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(rounds);
        }
    });
}

#[test]
fn a_veth_between_two_hosts_is_not_the_wire() {
    let Some((lab, ..)) = wired(BARE) else { return };
    let [from, to] = lab.veth(&lab.hosts[0], &lab.hosts[1]).expect("laid");
    let bind = |host: usize, address| {
        let seat = lab.hosts[host].seat.as_ref().expect("a lab with a wire has namespaces");
        seat.run(move || UdpSocket::bind((address, 7001))).expect("entered").expect("bound")
    };
    let (a, b) = (bind(0, from), bind(1, to));
    let carried = || lab.wire_stats().expect("a wire").packets_carried;
    let before = carried();
    // The first one may go while the other end's kernel still asks who has the address.
    until("a packet to take the veth, and its answer", || {
        a.send_to(b"there", b.local_addr().expect("bound")).expect("sent");
        let mut buffer = [0; 64];
        b.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
        a.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
        let Ok((_, sender)) = b.recv_from(&mut buffer) else { return false };
        b.send_to(b"and back", sender).expect("sent");
        a.recv(&mut buffer).is_ok_and(|length| &buffer[..length] == b"and back")
    });
    assert_eq!(carried(), before, "none of it was carried by the wire");
    let again = lab.veth(&lab.hosts[0], &lab.hosts[1]).expect_err("there is one at most").to_string();
    assert!(again.contains(&lab.hosts[0].name), "{again}");
}

#[test]
fn a_packet_takes_at_least_half_of_the_round_trip() {
    let Some((lab, a, b)) = wired(BARE) else { return };
    let came = send_whole(&lab, &a, &b, 50);
    assert_eq!(came.numbers.len(), 50);
    assert!(came.least >= Duration::from_micros(4900), "{:?} for half of 10 ms", came.least);
}

#[test]
fn loses_the_share_that_was_asked_for() {
    let Some((lab, a, b)) = wired(&BARE.replace("10ms", "1ms")) else { return };
    let loss = faults::named("loss").expect("a fault");
    let lost = || lab.wire_stats().expect("a wire").packets_lost;
    let mut active = loss.inject(&lab, Some("a->b"), Some("10%")).expect("begun");
    let Came { numbers, missing, .. } = send(&lab, &a, &b, 4000);
    let came = numbers.len() as u64;
    assert!((340..=460).contains(&lost()), "{} of 4000 lost, 400 were asked for", lost());
    assert_eq!(came + lost() + missing, 4000, "what was not lost came");
    let before = lost();
    assert_eq!(
        (send_whole(&lab, &b, &a, 1000).numbers.len(), lost()),
        (1000, before),
        "the other direction loses nothing"
    );
    active.heal().expect("healed");
    assert_eq!((send_whole(&lab, &a, &b, 1000).numbers.len(), lost()), (1000, before), "healed, nothing is lost");
}

#[test]
fn lets_packets_overtake_only_where_asked_to() {
    for (reorder, wanted) in [("0%", 0..=0), ("20%", 100..=300)] {
        let text =
            BARE.replace("rtt = \"10ms\"", &format!("rtt = \"10ms\"\njitter = \"2ms\"\nreorder = \"{reorder}\""));
        let Some((lab, a, b)) = wired(&text) else { return };
        let came = send_whole(&lab, &a, &b, 1000).numbers;
        // One that arrives before an earlier one has overtaken it.
        let overtaking = (0..came.len()).filter(|i| came[i + 1..].iter().any(|later| *later < came[*i])).count();
        assert_eq!(came.len(), 1000, "{reorder}: nothing is lost");
        assert!(wanted.contains(&overtaking), "{reorder}: {overtaking} of 1000 overtook");
    }
}

#[test]
fn cuts_one_direction_both_or_a_whole_zone() {
    let Some((lab, a, b)) = wired(BARE) else { return };
    let partition = faults::named("partition").expect("a fault");
    let both = || (send_whole(&lab, &a, &b, 20).numbers.len(), send_whole(&lab, &b, &a, 20).numbers.len());
    for (target, there, back) in [("a->b", 0, 20), ("b->a", 20, 0), ("a:b", 0, 0), ("a-host-1:b", 0, 0), ("b", 0, 0)] {
        let active = partition.inject(&lab, Some(target), None).expect(target);
        assert_eq!(both(), (there, back), "{target}: a to b, b to a");
        drop(active);
        assert_eq!(both(), (20, 20), "{target}: undone on drop");
    }
}

#[test]
fn a_rate_is_not_exceeded() {
    let Some((lab, a, b)) = wired(&BARE.replace("10ms", "1ms")) else { return };
    let active = faults::named("rate").expect("a fault").inject(&lab, Some("a->b"), Some("1mbit")).expect("begun");
    // 80 packets of 1042 bytes on the wire are 0.667 s at 1 Mbit/s; a queue holds 200 ms, which are 24 of them.
    let there = b.local_addr().expect("bound");
    let before = dropped(&lab);
    let begun = Instant::now();
    let (mut came, mut last, mut buffer) = (0u32, Duration::ZERO, [0u8; 2048]);
    let mut take = || {
        while b.recv(&mut buffer).is_ok() {
            came += 1;
            last = begun.elapsed();
        }
        came
    };
    for _ in 0..80 {
        a.send_to(&[0u8; 1000], there).expect("sent");
        std::thread::sleep(Duration::from_millis(5)); // the pace of the load: 1.6 Mbit/s at most
        take();
    }
    until("every packet to arrive or to be dropped", || u64::from(take()) + dropped(&lab) - before >= 80);
    assert!(came >= 24, "{came} of 80 came");
    let least = Duration::from_secs_f64(f64::from(came - 1) * 1042.0 * 8.0 / 1e6);
    assert!(last >= least, "{came} packets in {last:?}, {least:?} at the least");
    drop(active);
}

#[test]
fn the_standard_lab_is_a_cluster_over_three_zones() {
    let lab = Lab::start(&Topology::standard()).unwrap_or_else(|e| panic!("{e}"));
    if let Err(e) = lab.wire() {
        skip(&e.to_string());
        return;
    }
    let client = host(&lab, "zone-b-client-1").expect("there");
    for (server, at) in lab.servers() {
        let mut c = lab.connect(client, server, &options(2)).expect("connected");
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
        let outside = unslow_client::Connection::open(&lab.deployment.nodes[0].target(), &options(2));
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
    let dir = lab.dir().to_path_buf();
    // Another test's lab may take the device's name as soon as it is free, but not its number.
    let door = lab.door.as_ref().map(|(device, _)| format!("/sys/class/net/{device}/ifindex"));
    let number = |file: &String| std::fs::read_to_string(file).ok();
    let before = door.as_ref().and_then(number);
    // A program of the user's own, which nobody told to end.
    let mut own = std::process::Command::new("sleep");
    own.arg("300");
    lab.place(&lab.hosts[0], &mut own).expect("placed");
    let mut own = own.spawn().expect("started");
    drop(lab);
    assert!(own.wait().expect("ended").code().is_none(), "ended by a signal");
    assert!(pids.iter().all(|p| !std::path::Path::new(&format!("/proc/{p}")).exists()), "a server is left");
    assert!(!dir.exists(), "{} is left", dir.display());
    assert!(before.is_none() || door.as_ref().and_then(number) != before, "the door is left");
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
