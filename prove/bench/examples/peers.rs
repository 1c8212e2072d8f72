//! This generator beside its peers: CPU per request of the whole process, in turn, against one server.
//!
//! ```sh
//! cargo run --release -p unslow-bench --example peers -- target/release/unslow 5
//! ```
//!
//! Arguments: the binary, rounds, and optionally the path of resp-benchmark (PyPI). redis-benchmark is Debian's, of the
//! Redis 7.0 that `unslow engine install` brings. The server is pinned to processor 0, the generators to processor 1;
//! every round runs each of them at depth 1, 16 and 64 with 50 connections and GET of 64 bytes. Prints Markdown.
//!
//! Then what each says of a server that stands still for 2 of 10 seconds, and how late this generator is at 100,000/s.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use unslow_engine::{Server, ServerSpec, cli_dirs, find};

const DEPTHS: [(usize, u64); 3] = [(1, 400_000), (16, 4_000_000), (64, 8_000_000)];

/// The next tool finds the keys of the one before.
const KEEP: [&str; 2] = ["--yes", "--keep-keys"];

fn main() {
    let mut arguments = std::env::args().skip(1);
    if std::env::args().nth(1).as_deref() == Some("gaps") {
        return gaps();
    }
    let unslow = arguments.next().map(PathBuf::from).expect("the path of the binary");
    let rounds: usize = arguments.next().map_or(5, |n| n.parse().expect("a number of rounds"));
    let resp_benchmark = arguments.next().map(PathBuf::from).filter(|p| p.exists());
    let server = Server::start(&find("valkey-9.1").expect("installed"), &ServerSpec::default()).expect("a server");
    pin("0", server.pid());
    let (host, port) =
        server.address().rsplit_once(':').map(|(h, p)| (h.to_string(), p.to_string())).expect("an address");
    let redis_benchmark = cli_dirs().into_iter().map(|d| d.join("redis-benchmark")).find(|p| p.exists());

    let pinned = |program: &PathBuf| {
        let mut command = Command::new("taskset");
        command.arg("-c").arg("1").arg(program);
        command
    };
    let resp = |program: &PathBuf| {
        let mut command = Command::new(program); // pins its threads itself
        command.args(["-h", &host, "-p", &port, "--cores", "1", "-c", "50"]);
        command
    };
    let ours = |more: &[&str]| {
        let mut command = pinned(&unslow);
        command.args(["bench", &server.url(), "--mix", "get=1", "--value-size", "64", "--quiet"]).args(KEEP).args(more);
        command
    };
    // Every key is there before anyone asks.
    quiet(ours(&["--preload", "--requests", "1"]));
    if let Some(program) = &redis_benchmark {
        let mut command = pinned(program);
        quiet_in(command.args([
            "-h", &host, "-p", &port, "-t", "set", "-d", "64", "-r", "100000", "-n", "3000000", "-P", "64", "-q",
        ]));
    }
    if let Some(program) = &resp_benchmark {
        let mut command = Command::new(program);
        quiet_in(command.args([
            "-h",
            &host,
            "-p",
            &port,
            "--load",
            "-P",
            "32",
            "-c",
            "10",
            "-n",
            "100000",
            "SET {key sequence 100000} {value 64}",
        ]));
    }

    println!(
        "| depth | tool | CPU us a request, median (least to most) | to unslow | requests/s |\n|---|---|---|---|---|"
    );
    for (depth, requests) in DEPTHS {
        let (p, n) = (depth.to_string(), requests.to_string());
        let mut seen: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for _ in 0..rounds {
            let mut run = |name: &'static str, mut command: Command| {
                let (cpu, seconds) = spent(&mut command);
                seen.entry(name).or_default().push((cpu * 1e6 / requests as f64, requests as f64 / seconds));
            };
            run("unslow", ours(&["--no-preload", "-c", "50", "-P", &p, "--requests", &n, "--seconds", "600"]));
            if let Some(program) = &redis_benchmark {
                let mut command = pinned(program);
                command.args([
                    "-h", &host, "-p", &port, "-t", "get", "-r", "100000", "-c", "50", "-n", &n, "-P", &p, "-q",
                ]);
                run("redis-benchmark", command);
            }
            if let Some(program) = &resp_benchmark {
                let mut command = resp(program);
                command.args(["-n", &n, "-P", &p, "GET {key uniform 100000}"]);
                run("resp-benchmark", command);
            }
        }
        let median = |v: &[(f64, f64)], f: fn(&(f64, f64)) -> f64| {
            let mut v: Vec<f64> = v.iter().map(f).collect();
            v.sort_by(f64::total_cmp);
            (v[0], v[v.len() / 2], v[v.len() - 1])
        };
        let own = median(&seen["unslow"], |s| s.0).1;
        for (name, runs) in &seen {
            let ((low, mid, high), (_, rate, _)) = (median(runs, |s| s.0), median(runs, |s| s.1));
            println!("| {depth} | {name} | {mid:.3} ({low:.3} to {high:.3}) | {:.2} | {rate:.0} |", own / mid);
        }
    }

    println!("\nA server that stands still for 2 s of 10 (the truth at 20,000/s: p90 1.1 s, p99 1.9 s):\n\n```");
    let frozen = |mut command: Command| {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it starts");
        std::thread::sleep(Duration::from_secs(4));
        server.signal(19); // SIGSTOP
        std::thread::sleep(Duration::from_secs(2));
        server.signal(18); // SIGCONT
        let output = child.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
        // Progress that a terminal would write over is left out.
        let shown = |l: &&str| !l.trim().is_empty() && !l.contains("rps=") && !l.contains("(overall");
        let lines: Vec<&str> = text.lines().map(|l| l.trim_start_matches("\u{1b}[F\u{1b}[2K")).filter(shown).collect();
        println!("{}\n", lines.join("\n"));
    };
    println!("$ unslow bench URL --rate 20000 --seconds 10 --connections 50 --mix get=1 --value-size 64");
    frozen(ours(&["--no-preload", "--rate", "20000", "--seconds", "10", "-c", "50"]));
    if let Some(program) = &resp_benchmark {
        println!("$ resp-benchmark -c 50 -t 20000 -s 10 'GET {{key uniform 100000}}'");
        let mut command = resp(program);
        command.args(["-t", "20000", "-s", "10", "GET {key uniform 100000}"]);
        frozen(command);
    }
    if let Some(program) = &redis_benchmark {
        println!("$ redis-benchmark -t get -c 50 -n 1500000 --csv (has no rate)");
        let mut command = pinned(program);
        command.args(["-h", &host, "-p", &port, "-t", "get", "-r", "100000", "-c", "50", "-n", "1500000", "--csv"]);
        frozen(command);
    }
    println!("```\n\nOpen loop at 100,000/s on one processor, {rounds} runs of 5 s:\n\n```");
    for _ in 0..rounds {
        let output = ours(&["--no-preload", "--rate", "100000", "--seconds", "5"]).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter(|l| l.contains("lateness ") || l.contains("busy)")).for_each(|l| println!("{l}"));
    }
    // What the machine itself does to anyone on processor 1 while processor 0 is busy: without it, nobody can tell
    // whose lateness that is.
    let mut busy = Command::new("taskset").args(["-c", "0", "sh", "-c", "while :; do :; done"]).spawn().expect("sh");
    let own = std::env::current_exe().expect("a path");
    let output = Command::new("taskset").args(["-c", "1"]).arg(own).arg("gaps").output().expect("it runs");
    let _ = busy.kill();
    let _ = busy.wait();
    println!("{}```", String::from_utf8_lossy(&output.stdout));
}

/// Times in which a loop that does nothing but read the clock was not run.
fn gaps() {
    let (begun, mut last, mut gaps) = (Instant::now(), Instant::now(), Vec::new());
    while begun.elapsed() < Duration::from_secs(5) {
        let now = Instant::now();
        if now - last > Duration::from_micros(200) {
            gaps.push((now - last).as_micros());
        }
        last = now;
    }
    gaps.sort_unstable();
    println!(
        "control: a loop on processor 1 that only reads the clock, processor 0 busy, 5 s: {} gaps above 200 us, {} us \
         in all, the longest {:?}",
        gaps.len(),
        gaps.iter().sum::<u128>(),
        gaps.last().copied().unwrap_or(0)
    );
}

/// Binds a process to processors.
fn pin(processors: &str, pid: u32) {
    let done = Command::new("taskset").args(["-acp", processors, &pid.to_string()]).output();
    assert!(done.is_ok_and(|d| d.status.success()), "taskset (util-linux) is missing, or there is one processor");
}

fn quiet(mut command: Command) {
    quiet_in(&mut command);
}

fn quiet_in(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// CPU seconds of a command and all its threads, user and kernel, and how long it took.
fn spent(command: &mut Command) -> (f64, f64) {
    let children = || {
        // SAFETY: getrusage writes the whole of what it is given.
        let usage = unsafe {
            let mut usage = std::mem::zeroed::<libc::rusage>();
            libc::getrusage(libc::RUSAGE_CHILDREN, &mut usage);
            usage
        };
        let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        seconds(usage.ru_utime) + seconds(usage.ru_stime)
    };
    let (before, begun) = (children(), Instant::now());
    quiet_in(command.stdin(Stdio::null()));
    (children() - before, begun.elapsed().as_secs_f64())
}
