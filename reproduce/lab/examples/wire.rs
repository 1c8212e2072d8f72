//! Measures the wire itself: round trips, jitter and loss as asked and as seen, packets a second, CPU per packet.
//!
//! `cargo run --release --example wire [PACKETS]`; needs root. The tables in `bench/runs` are its output.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use unslow_engine::Seat;
use unslow_lab::wire::{Conditions, Rules, Wire, link};

type Failure = Box<dyn std::error::Error>;

struct Pair {
    wire: Wire,
    seats: Vec<Seat>,
    addresses: Vec<Ipv4Addr>,
}

/// Two hosts and a wire with these conditions each way.
fn pair(conditions: Conditions) -> Result<Pair, Failure> {
    let addresses: Vec<Ipv4Addr> = (1..=2).map(|i| Ipv4Addr::new(198, 18, 240, i)).collect();
    let rules = Rules { zones: vec![vec![conditions]], host_zone: vec![0, 0], changes: Default::default() };
    let wire = Wire::new(addresses.clone(), rules, 7)?;
    let dir = std::env::temp_dir().join(format!("unslow-wire-{}", std::process::id()));
    let mut seats = Vec::new();
    for (i, address) in addresses.iter().enumerate() {
        std::fs::create_dir_all(&dir)?;
        seats.push(Seat::make(&dir, 1 << 20, None, || {
            link::loopback_up()?;
            wire.attach(i, "eth0", 2, *address)
        })?);
        std::fs::remove_dir(&dir)?;
    }
    Ok(Pair { wire, seats, addresses })
}

impl Pair {
    fn socket(&self, i: usize) -> Result<UdpSocket, Failure> {
        let address = self.addresses[i];
        Ok(self.seats[i].run(move || UdpSocket::bind((address, 7000)))??)
    }
}

/// Sends `packets` pings, `gap` apart, each answered by the other host; the round trips of those that came back, in us.
fn pings(pair: &Pair, packets: usize, gap: Duration) -> Result<Vec<f64>, Failure> {
    let (here, there) = (pair.socket(0)?, pair.socket(1)?);
    let stop = AtomicBool::new(false);
    there.set_read_timeout(Some(Duration::from_millis(100)))?;
    here.set_read_timeout(Some(Duration::from_millis(100)))?;
    here.connect((pair.addresses[1], 7000))?;
    let mut times = vec![f64::NAN; packets];
    let begun = Instant::now();
    std::thread::scope(|scope| -> Result<(), Failure> {
        scope.spawn(|| {
            let mut buffer = [0u8; 64];
            while !stop.load(Ordering::Relaxed) {
                if let Ok((n, from)) = there.recv_from(&mut buffer) {
                    let _ = there.send_to(&buffer[..n], from);
                }
            }
        });
        let reader = scope.spawn(|| {
            let (mut buffer, mut seen) = ([0u8; 64], Vec::new());
            while !stop.load(Ordering::Relaxed) {
                if let Ok(16) = here.recv(&mut buffer) {
                    let now = begun.elapsed().as_nanos() as u64;
                    let number = u64::from_ne_bytes(buffer[..8].try_into().unwrap_or_default());
                    let sent = u64::from_ne_bytes(buffer[8..16].try_into().unwrap_or_default());
                    seen.push((number as usize, (now - sent) as f64 / 1000.0));
                }
            }
            seen
        });
        for i in 0..packets {
            std::thread::sleep((begun + gap * i as u32).saturating_duration_since(Instant::now()));
            let mut packet = (i as u64).to_ne_bytes().to_vec();
            packet.extend((begun.elapsed().as_nanos() as u64).to_ne_bytes());
            here.send(&packet)?;
        }
        std::thread::sleep(Duration::from_millis(300));
        stop.store(true, Ordering::Relaxed);
        for (number, us) in reader.join().map_err(|_| "the reader died")? {
            times[number] = us;
        }
        Ok(())
    })?;
    Ok(times.into_iter().filter(|t| !t.is_nan()).collect())
}

/// Median, p99, standard deviation, and half the width from p16 to p84, which is the deviation of a normal distribution
/// and does not feel the machine's own rare stalls.
fn summary(mut times: Vec<f64>) -> (f64, f64, f64, f64) {
    times.sort_by(f64::total_cmp);
    let at = |q: f64| times.get((times.len() as f64 * q) as usize).copied().unwrap_or(f64::NAN);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let deviation = (times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / times.len() as f64).sqrt();
    (at(0.5), at(0.99), deviation, (at(0.8413) - at(0.1587)) / 2.0)
}

fn main() -> Result<(), Failure> {
    let packets: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(10_000);
    let gap = Duration::from_micros(1000);
    println!("{packets} pings each, 1 ms apart (4 ms with jitter); us unless said otherwise\n");
    println!(
        "| asked rtt | asked jitter | asked loss each way | median | p99 | deviation | (p84 - p16) / 2 | lost | CPU \
         per packet |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let ms = |n: f64| Duration::from_secs_f64(n / 1000.0);
    for (rtt, jitter, loss) in [
        (0.0, 0.0, 0.0),
        (0.1, 0.0, 0.0),
        (0.5, 0.0, 0.0),
        (1.0, 0.0, 0.0),
        (5.0, 0.0, 0.0),
        (50.0, 0.0, 0.0),
        (1.0, 0.2, 0.0),
        (5.0, 1.0, 0.0),
        (1.0, 0.0, 0.01),
        (1.0, 0.0, 0.05),
    ] {
        let mut conditions = Conditions::round_trip(ms(rtt), ms(jitter));
        conditions.loss = loss;
        let pair = pair(conditions)?;
        // With jitter, pings must be further apart than they vary, or the order they keep shifts them.
        let times = pings(&pair, packets, if jitter > 0.0 { gap * 4 } else { gap })?;
        let back = times.len();
        let (median, p99, deviation, width) = summary(times);
        let stats = pair.wire.stats();
        println!(
            "| {:.0} | {:.0} | {:.1} % | {median:.0} | {p99:.0} | {deviation:.0} | {width:.0} | {} ({:.2} %) | {:.1} |",
            rtt * 1000.0,
            jitter * 1000.0,
            loss * 100.0,
            stats.packets_lost,
            100.0 * stats.packets_lost as f64 / (packets + back) as f64,
            stats.cpu_us as f64 / stats.packets_carried as f64,
        );
    }
    for (what, rate) in [("10,000 packets/s", Some(10_000u32)), ("as fast as it can", None)] {
        let pair = pair(Conditions::round_trip(ms(1.0), Duration::ZERO))?;
        let (begun, cpu, sent, seen) = flood(&pair, rate)?;
        let stats = pair.wire.stats();
        println!(
            "\n{what}, 64 bytes one way: {seen} of {sent} arrived in {:.2} s = {:.0}/s; carrier {:.1} us of CPU each, \
             {:.0} % of a core, \
             {:.0}/s per core; refused {}, queued over {}",
            begun.as_secs_f64(),
            seen as f64 / begun.as_secs_f64(),
            cpu.as_secs_f64() * 1e6 / stats.packets_carried as f64,
            100.0 * cpu.as_secs_f64() / begun.as_secs_f64(),
            stats.packets_carried as f64 / cpu.as_secs_f64(),
            stats.packets_refused,
            stats.packets_overflowed
        );
    }
    Ok(())
}

/// One way for three seconds; time, the carrier's CPU, packets sent and packets carried.
fn flood(pair: &Pair, rate: Option<u32>) -> Result<(Duration, Duration, u32, u64), Failure> {
    // Held and not read: what is counted is what the carrier carried.
    let (here, _there) = (pair.socket(0)?, pair.socket(1)?);
    here.connect((pair.addresses[1], 7000))?;
    let begun = Instant::now();
    let before = pair.wire.stats();
    let mut sent = 0u32;
    while begun.elapsed() < Duration::from_secs(3) {
        if let Some(rate) = rate {
            std::thread::sleep(
                (begun + Duration::from_secs(1) / rate * sent).saturating_duration_since(Instant::now()),
            );
        }
        here.send(&[0u8; 64])?;
        sent += 1;
    }
    let took = begun.elapsed();
    let after = pair.wire.stats();
    let cpu = Duration::from_micros(after.cpu_us - before.cpu_us);
    Ok((took, cpu, sent, after.packets_carried - before.packets_carried))
}
