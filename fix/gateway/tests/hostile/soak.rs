//! All attacks at once, for minutes, against the released binary, so that its memory can be measured by itself. The
//! latencies of well-behaved clients are printed beside those of direct clients of the same server, which the attacks
//! load as well.

use std::net::TcpStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Target};
use unslow_engine::free_port;
use unslow_testkit::{Running, options, standalone, until};

use crate::ENGINE;
use crate::bystanders::{Bystanders, Record};
use crate::common::wire::{Until, Wire, command};
use crate::common::{descriptors, resident_mb};

/// `client_output_bytes`: the limit for a client that does not read.
const OUTPUT_MB: u64 = 4;
/// Clients that do not read.
const SILENT: u64 = 12;
/// All bytes that are ever sent of unfinished commands at a time.
const UNFINISHED_MB: u64 = 16;
/// The default `hold_bytes`, for one node.
const HOLD_MB: u64 = 16;
/// Buffers of a few hundred connections, and allocator overhead.
const REST_MB: u64 = 64;
/// Output beyond which the gateway stops reading from the server of a client that does not read (DESIGN.md).
const CLOGGED_MB: u64 = 2;

const ALLOWED_MB: u64 = SILENT * (OUTPUT_MB + CLOGGED_MB) + UNFINISHED_MB + HOLD_MB + REST_MB;
/// Connections that the gateway may keep after an attack: pools of 16 for a few users, and eight users that no client
/// is any more.
const KEPT_DESCRIPTORS: usize = 100;
/// Between two rows of the table of memory.
const SAMPLE: Duration = Duration::from_secs(10);

/// The targets of the attacks.
struct Ground {
    gateway: String,
    server: String,
    stop: AtomicBool,
}

type Attack = fn(&Ground);

const ATTACKS: [(&str, Attack); 12] = [
    ("slowloris", slowloris),
    ("drips", drips),
    ("long values that end in the middle", broken_off),
    ("HTTP", http),
    ("malformed lengths", malformed),
    ("unknown commands", unknown),
    ("churn", churn),
    ("subscribers that do not read", silent_subscribers),
    ("clients that do not read", silent_readers),
    ("scripts", scripts),
    ("passwords", passwords),
    ("transactions that are left open", left_open),
];

/// All attacks, or those whose names begin with one of the words in `UNSLOW_SOAK_ATTACKS`, such as "scripts,passwords";
/// an empty variable chooses none.
fn chosen_attacks() -> Vec<(&'static str, Attack)> {
    let Ok(chosen) = std::env::var("UNSLOW_SOAK_ATTACKS") else { return ATTACKS.to_vec() };
    let words: Vec<&str> = chosen.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    for word in &words {
        let known = ATTACKS.iter().any(|(name, _)| name.starts_with(*word));
        assert!(known, "UNSLOW_SOAK_ATTACKS: no attack's name begins with {word:?}");
    }
    ATTACKS.into_iter().filter(|(name, _)| words.iter().any(|word| name.starts_with(*word))).collect()
}

/// What the gateway holds at a time after the attacks began.
#[derive(Clone, Copy)]
struct Sample {
    after: Duration,
    resident_mb: u64,
    descriptors: usize,
}

impl Sample {
    fn take(pid: u32, after: Duration) -> Sample {
        Sample { after, resident_mb: resident_mb(pid), descriptors: descriptors(pid) }
    }
}

pub fn run(lasting: Duration) {
    let attacks = chosen_attacks();
    let server = standalone(ENGINE);
    let port = free_port("127.0.0.1").expect("a free port");
    let file = std::env::temp_dir().join(format!("unslow-soak-{}.toml", std::process::id()));
    let text = format!(
        "listen = [\"127.0.0.1:{port}\"]\ntarget = \"{}\"\nclient_output_bytes = {}\n",
        server.url(),
        OUTPUT_MB << 20
    );
    std::fs::write(&file, text).expect("the settings can be written");
    let mut binary = unslow_testkit::command(&["gateway", "--config", &file.display().to_string()]);
    let gateway = Running(binary.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary runs"));
    let address = format!("127.0.0.1:{port}");
    let through = Target::parse(&address).expect("an address");
    until("the gateway to answer", || Connection::open(&through, &options(2)).is_ok());
    std::fs::remove_file(&file).expect("it was written");
    let ground = Ground { gateway: address, server: server.address(), stop: AtomicBool::new(false) };
    let others = Bystanders::start(&through, 8, "through");
    let direct = Bystanders::start(&server.target(), 2, "direct");
    others.do_more(200);
    let pid = gateway.0.id();
    let start = Sample::take(pid, Duration::ZERO);
    let mut samples = vec![start];
    let mut peak = start.resident_mb;
    std::thread::scope(|scope| {
        let ground = &ground;
        for &(name, attack) in &attacks {
            let thread = std::thread::Builder::new().name(name.into());
            thread.spawn_scoped(scope, move || attack(ground)).expect("a thread can be started");
        }
        let begun = Instant::now();
        while begun.elapsed() < lasting {
            peak = peak.max(resident_mb(pid));
            if begun.elapsed() >= SAMPLE * samples.len() as u32 {
                samples.push(Sample::take(pid, begun.elapsed()));
            }
            sleep(Duration::from_millis(200)); // its pace
        }
        ground.stop.store(true, Ordering::Relaxed);
    });
    // The others must also continue after the attackers have left.
    others.do_more(200);
    let end = Sample::take(pid, lasting);
    let (others, direct) = (others.end(), direct.end());
    print_latencies(lasting, &attacks, &others, &direct);
    print_memory(&samples, peak, end);
    assert!(others.wrong.is_empty(), "other clients were affected: {}", others.wrong.join("\n"));
    assert!(direct.wrong.is_empty(), "direct clients were affected: {}", direct.wrong.join("\n"));
    until("the attackers' connections to end", || descriptors(pid) <= start.descriptors + KEPT_DESCRIPTORS);
    let start = start.resident_mb;
    assert!(peak <= start + ALLOWED_MB, "{start} MB became {peak} MB; {ALLOWED_MB} more are allowed");
}

fn print_latencies(lasting: Duration, attacks: &[(&str, Attack)], others: &Record, direct: &Record) {
    let names: Vec<&str> = attacks.iter().map(|(name, _)| *name).collect();
    println!("{} s of {} attacks: {}", lasting.as_secs(), names.len(), names.join(", "));
    println!("A round is fourteen commands.\n");
    println!(
        "| well-behaved clients | rounds | p50, us | p99, us | wrong replies, broken connections |\n\
         |---|---|---|---|---|"
    );
    for (name, record) in [("through the gateway", others), ("direct", direct)] {
        let (rounds, hurt) = (record.took.len(), record.wrong.len());
        println!("| {name} | {rounds} | {} | {} | {hurt} |", record.took_us(0.5), record.took_us(0.99));
    }
}

fn print_memory(samples: &[Sample], peak: u64, end: Sample) {
    println!("\n| the gateway after, s | resident, MB | open descriptors |\n|---|---|---|");
    for Sample { after, resident_mb, descriptors } in samples {
        println!("| {} | {resident_mb} | {descriptors} |", after.as_secs());
    }
    println!("| without the attackers | {} | {} |", end.resident_mb, end.descriptors);
    let allowed = samples.first().map_or(0, |start| start.resident_mb) + ALLOWED_MB;
    println!("\nThe peak was {peak} MB; {allowed} MB are allowed.");
}

impl Ground {
    /// Repeats an attack until the end.
    fn repeat(&self, pace: Duration, mut attack: impl FnMut()) {
        while !self.stop.load(Ordering::Relaxed) {
            attack();
            sleep(pace);
        }
    }

    /// A connection to the gateway that never waits long for a reply.
    fn wire(&self) -> Wire {
        Wire::open(&self.gateway, Duration::from_millis(500))
    }

    fn wires(&self, count: usize) -> Vec<Wire> {
        (0..count).map(|_| self.wire()).collect()
    }

    /// Waits this long, or until the end.
    fn linger(&self, longest: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < longest && !self.stop.load(Ordering::Relaxed) {
            sleep(longest.min(Duration::from_millis(50)));
        }
    }
}

// The attacks. Their own replies do not matter: the other clients are the judges. In total they open fewer than 470
// connections a second, so that ports in TIME_WAIT do not run out.

fn slowloris(ground: &Ground) {
    ground.repeat(Duration::from_millis(50), || {
        let mut wires = ground.wires(100);
        for byte in b"*2\r\n$3\r\nGET\r\n$1\r\n" {
            wires.iter_mut().for_each(|wire| wire.write(&[*byte]));
            ground.linger(Duration::from_millis(300));
        }
    });
}

fn drips(ground: &Ground) {
    const ARGUMENTS: usize = 100_000;
    ground.repeat(Duration::from_millis(50), || {
        let mut wires = ground.wires(10);
        wires.iter_mut().for_each(|wire| wire.write(format!("*{}\r\n$6\r\nEXISTS\r\n", ARGUMENTS + 1).as_bytes()));
        let piece = b"$1\r\nk\r\n".repeat(100);
        for _ in 0..ARGUMENTS / 100 {
            wires.iter_mut().for_each(|wire| wire.write(&piece));
            ground.linger(Duration::from_millis(20));
        }
        wires.iter_mut().for_each(|wire| drop(wire.hear(&Until::Replies(1), 0)));
    });
}

fn broken_off(ground: &Ground) {
    ground.repeat(Duration::from_millis(100), || {
        for wire in &mut ground.wires(4) {
            wire.write(b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$10000000\r\n");
            wire.write(&b"x".repeat(1 << 20));
        }
    });
}

fn http(ground: &Ground) {
    ground.repeat(Duration::from_millis(20), || {
        let mut wire = ground.wire();
        wire.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let _ = wire.hear(&Until::Closed, 0);
        ground.wire().write(b"POST / HTTP/1.1\r\n\r\n");
    });
}

fn malformed(ground: &Ground) {
    ground.repeat(Duration::from_millis(20), || {
        for bytes in [&b"*02\r\n$3\r\nGET\r\n$1\r\nk\r\n"[..], b"*2\r\n$03\r\nGET\r\n$1\r\nk\r\n", b"*1\r\n$-0\r\n\r\n"]
        {
            let mut wire = ground.wire();
            wire.write(bytes);
            let _ = wire.hear(&Until::Closed, 0);
        }
    });
}

fn unknown(ground: &Ground) {
    let mut wire = ground.wire();
    let many = command(&["nosuch", "argument"]).repeat(50);
    ground.repeat(Duration::from_millis(5), || {
        wire.write(&many);
        let _ = wire.hear(&Until::Replies(50), 0);
    });
}

fn churn(ground: &Ground) {
    ground.repeat(Duration::from_millis(10), || {
        ground.wire().write(b"PING\r\nSET churn 1\r\n");
        drop(TcpStream::connect(&ground.gateway));
    });
}

fn silent_subscribers(ground: &Ground) {
    let (mut publisher, text) = (Wire::open(&ground.server, Duration::from_secs(10)), "m".repeat(10_000));
    let message = command(&["PUBLISH", "flood", &text]);
    ground.repeat(Duration::from_millis(100), || {
        let mut wires = ground.wires(8);
        wires.iter_mut().for_each(|wire| wire.write(b"SUBSCRIBE flood\r\n"));
        for _ in 0..3000 {
            publisher.write(&message);
            let _ = publisher.hear(&Until::Replies(1), 0);
            ground.linger(Duration::from_millis(1));
        }
    });
}

fn silent_readers(ground: &Ground) {
    ground.repeat(Duration::from_millis(100), || {
        let mut wires = ground.wires(4);
        for wire in &mut wires {
            wire.write(&command(&["SET", "large", &"x".repeat(100_000)]));
            wire.write(&b"GET large\r\n".repeat(500));
        }
        ground.linger(Duration::from_secs(5));
    });
}

fn scripts(ground: &Ground) {
    const SCRIPT: &str = "redis.call('INCR', KEYS[1]) return redis.error_reply(ARGV[1])";
    const NESTED: &str = "local t = {} for i = 1, 1000 do t = {t} end return t";
    let errors = ["MOVED 1 127.0.0.1:1", "ASK 1 127.0.0.1:1", "TRYAGAIN x", "LOADING x", "CLUSTERDOWN x", "READONLY x"];
    ground.repeat(Duration::from_millis(20), || {
        let mut wire = ground.wire();
        for error in errors {
            wire.write(&command(&["EVAL", SCRIPT, "1", "attacked", error]));
        }
        let _ = wire.hear(&Until::Replies(errors.len()), 0);
        wire.write(&command(&["EVAL", NESTED, "0"]));
        let _ = wire.hear(&Until::Replies(1), 0);
    });
}

fn passwords(ground: &Ground) {
    let mut number = 0u64;
    ground.repeat(Duration::from_millis(20), || {
        number += 1;
        let mut wire = ground.wire();
        wire.write(&command(&["AUTH", "default", &format!("word-{number}")]));
        wire.write(b"GET k\r\n");
        let _ = wire.hear(&Until::Replies(2), 0);
    });
}

fn left_open(ground: &Ground) {
    ground.repeat(Duration::from_millis(20), || {
        let mut wire = ground.wire();
        wire.write(b"WATCH attacked\r\nMULTI\r\nINCR attacked\r\n");
        let _ = wire.hear(&Until::Replies(3), 0);
        let mut blocked = ground.wire();
        blocked.write(b"BLPOP nothing 0\r\n");
    });
}
