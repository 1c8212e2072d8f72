//! The gateway beside other proxies and the direct way: CPU per GET of proxy and server, in turn, in one run.
//!
//! ```sh
//! cargo run --release -p unslow-bench --example proxies -- target/release/unslow 5 before=old/unslow
//! ```
//!
//! Arguments: the binary, rounds, and other builds of it by name. nutcracker is Debian's (0.5.0); predixy is in no
//! registry and taken from `PREDIXY`, the path of its binary; without one of them the table has fewer rows. One server
//! of Valkey 9.1, GET of 64 B; every round runs every way at every setting, and the table has medians. CPU is what the
//! kernel charged to each process while the load ran; ratios are between medians of the same run. What it cannot show:
//! a network, and more than two processors. Prints Markdown.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use unslow_engine::{Deployment, Server, ServerSpec, Shape, find, info};
use unslow_process::{schedstat, seconds, stat, status, threads};

/// Ends with us.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Processor time of a process so far, in nanoseconds, all threads together.
fn cpu_ns(pid: u32) -> u64 {
    threads(pid).filter_map(|thread| schedstat(pid, thread)).map(|s| s.sum_exec_runtime).sum()
}

/// User time alone, in nanoseconds, by the kernel's ticks.
fn user_ns(pid: u32) -> u64 {
    (seconds(stat(pid).expect("it runs").utime) * 1e9) as u64
}

fn anonymous_kb(pid: u32) -> u64 {
    status(pid).expect("it runs").rssanon.expect("a resident size")
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

struct Way {
    name: String,
    url: String,
    /// The proxy, if there is one.
    proxy: Option<Running>,
}

impl Way {
    fn pid(&self) -> Option<u32> {
        self.proxy.as_ref().map(|proxy| proxy.0.id())
    }

    fn cpu_ns(&self) -> u64 {
        self.pid().map_or(0, cpu_ns)
    }

    fn user_ns(&self) -> u64 {
        self.pid().map_or(0, user_ns)
    }

    /// Runs a proxy and waits until it listens; `None` where there is no such program.
    fn through(name: &str, port: u16, program: &mut Command) -> Option<Way> {
        let child = program.stdout(Stdio::null()).stderr(Stdio::null()).spawn().ok()?;
        let proxy = Some(Running(child));
        until(name, || port_open(port));
        Some(Way { name: name.into(), url: format!("127.0.0.1:{port}"), proxy })
    }
}

fn free_port() -> u16 {
    unslow_engine::free_port("127.0.0.1").expect("a port")
}

fn gateway(name: &str, unslow: &Path, dir: &Path, server: &Server, settings: &str) -> Option<Way> {
    let port = free_port();
    let file = dir.join(format!("gateway-{port}.toml"));
    fs::write(&file, settings).expect("settings");
    let listen = format!("127.0.0.1:{port}");
    let words = ["gateway", "--listen", &listen, "--target", &server.url(), "--quiet", "--config"];
    Way::through(name, port, Command::new(unslow).args(words).arg(file))
}

fn nutcracker(dir: &Path, server: &Server) -> Option<Way> {
    let port = free_port();
    let file = dir.join("nutcracker.yml");
    let text = format!(
        "pool:\n  listen: 127.0.0.1:{port}\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  \
         auto_eject_hosts: false\n  server_connections: 1\n  servers:\n   - {}:1\n",
        server.address()
    );
    fs::write(&file, text).expect("a configuration");
    let stats = free_port().to_string();
    let mut program = Command::new("nutcracker");
    Way::through("nutcracker", port, program.arg("-c").arg(file).args(["-s", &stats, "-m", "16384"]))
}

fn predixy(name: &str, dir: &Path, server: &Server, threads: u32) -> Option<Way> {
    let port = free_port();
    let file = dir.join(format!("predixy-{threads}.conf"));
    let text = format!(
        "Bind 127.0.0.1:{port}\nWorkerThreads {threads}\nAuthority {{\n Auth {{\n  Mode write\n }}\n}}\n\
         StandaloneServerPool {{\n Databases 1\n Hash crc16\n HashTag \"{{}}\"\n Distribution modula\n \
         RefreshMethod fixed\n Group one {{\n  + {}\n }}\n}}\n",
        server.address()
    );
    fs::write(&file, text).expect("a configuration");
    Way::through(name, port, Command::new(std::env::var_os("PREDIXY")?).arg(file))
}

/// The same load on every way, by Debian's redis-benchmark: nutcracker closes connections that ask INFO or CLIENT,
/// which this project's own generator does.
fn load(program: &Path, way: &Way, server: u32, clients: usize, depth: usize) -> Told {
    let (host, port) = way.url.rsplit_once(':').expect("an address");
    let requests = if depth > 1 { 3_000_000 } else { 400_000 };
    let before = (way.cpu_ns(), way.user_ns(), cpu_ns(server));
    let out = Command::new(program)
        .args(["-h", host, "-p", port, "-t", "get", "-r", "10000", "--csv"])
        .args(["-n", &requests.to_string(), "-c", &clients.to_string(), "-P", &depth.to_string()])
        .output()
        .expect("redis-benchmark runs");
    let after = (way.cpu_ns(), way.user_ns(), cpu_ns(server));
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let line = text.lines().find(|l| l.starts_with("\"GET")).unwrap_or_else(|| panic!("{}: {text}", way.name));
    let fields: Vec<f64> = line.split(',').skip(1).filter_map(|f| f.trim_matches('"').parse().ok()).collect();
    let us = |a: u64, b: u64| (b - a) as f64 / 1000.0 / requests as f64;
    Told {
        per_s: fields[0],
        proxy_us: us(before.0, after.0),
        proxy_user_us: us(before.1, after.1),
        server_us: us(before.2, after.2),
        p50_us: fields[3] * 1000.0,
        p99_us: fields[5] * 1000.0,
    }
}

/// What one run told.
#[derive(Clone, Copy)]
struct Told {
    per_s: f64,
    proxy_us: f64,
    proxy_user_us: f64,
    server_us: f64,
    p50_us: f64,
    p99_us: f64,
}

fn run(unslow: &Path, way: &Way, server: u32, args: &[&str]) -> Told {
    let before = (way.cpu_ns(), way.user_ns(), cpu_ns(server));
    let out = Command::new(unslow)
        .args([
            "bench",
            &way.url,
            "--mix",
            "get=1",
            "--keys",
            "10000",
            "--no-preload",
            "--quiet",
            "--format",
            "json",
            "--resp",
            "2",
        ])
        .args(["--lateness-max", "1s", "--yes"])
        .args(args)
        .output()
        .expect("the binary runs");
    let after = (way.cpu_ns(), way.user_ns(), cpu_ns(server));
    let text = String::from_utf8_lossy(&out.stdout);
    let report: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)));
    let run = &report["runs"][0];
    assert_eq!(run["errors"].as_object().map_or(0, serde_json::Map::len), 0, "{}: {}", way.name, run["errors"]);
    let n = run["answered"].as_f64().expect("answers");
    let us = |a: u64, b: u64| (b - a) as f64 / 1000.0 / n;
    Told {
        per_s: run["throughput_per_s"].as_f64().expect("a rate"),
        proxy_us: us(before.0, after.0),
        proxy_user_us: us(before.1, after.1),
        server_us: us(before.2, after.2),
        p50_us: run["latency"]["us_p50"].as_f64().expect("p50"),
        p99_us: run["latency"]["us_p99"].as_f64().expect("p99"),
    }
}

fn until(what: &str, mut met: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !met() {
        assert!(Instant::now() < deadline, "waited 20 s for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn port_open(port: u16) -> bool {
    std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    if std::env::args().nth(1).as_deref() == Some("storm") {
        return storm(&std::env::args().nth(2).map(PathBuf::from).expect("the path of the binary"));
    }
    let unslow = arguments.next().map(PathBuf::from).expect("the path of the binary");
    let rounds: usize = arguments.next().map_or(5, |n| n.parse().expect("a number of rounds"));
    let server = Server::start(&find("valkey-9.1").expect("installed"), &ServerSpec::default()).expect("a server");
    let dir = std::env::temp_dir().join(format!("unslow-proxies-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory");
    let mut ways = vec![Way { name: "direct".into(), url: server.address(), proxy: None }];
    ways.extend(gateway("unslow", &unslow, &dir, &server, ""));
    for other in arguments {
        let (name, binary) = other.split_once('=').expect("NAME=BINARY");
        ways.extend(gateway(name, Path::new(binary), &dir, &server, ""));
    }
    ways.extend(gateway("unslow, batch_us = auto", &unslow, &dir, &server, "batch_us = \"auto\""));
    ways.extend(gateway("unslow, batch_us = 200", &unslow, &dir, &server, "batch_us = 200"));
    ways.extend(nutcracker(&dir, &server));
    ways.extend(predixy("predixy", &dir, &server, 1));
    ways.extend(gateway("unslow, 2 threads", &unslow, &dir, &server, "threads = 2"));
    ways.extend(predixy("predixy, 2 threads", &dir, &server, 2));
    // Before any load, whose buffers would hide what clients take.
    idle(&ways);
    fill(&unslow, &server);
    costs(&ways, &server, rounds);
    latency(&unslow, &ways, &server, rounds);
    let _ = fs::remove_dir_all(&dir);
}

fn redis_benchmark() -> PathBuf {
    let dirs = unslow_engine::cli_dirs();
    dirs.into_iter().map(|d| d.join("redis-benchmark")).find(|p| p.exists()).expect("redis-tools")
}

/// The keys of both generators.
fn fill(unslow: &Path, server: &Server) {
    let filled = Command::new(unslow)
        .args(["bench", &server.url(), "--keys", "10000", "--preload", "-n", "1", "--quiet", "--keep-keys"])
        .stdout(Stdio::null())
        .status();
    assert!(filled.is_ok_and(|s| s.success()), "the keys are there");

    let address = server.address();
    let (host, port) = address.rsplit_once(':').expect("an address");
    let filled = Command::new(redis_benchmark())
        .args(["-h", host, "-p", port, "-t", "set", "-d", "64", "-r", "10000", "-n", "300000", "-P", "32", "-q"])
        .stdout(Stdio::null())
        .status();
    assert!(filled.is_ok_and(|s| s.success()), "the keys are there");
}

/// What a GET costs each way, by clients and depth.
fn costs(ways: &[Way], server: &Server, rounds: usize) {
    let redis_benchmark = redis_benchmark();
    println!(
        "| clients | depth | way | proxy CPU us a GET (user) | server CPU us | server to direct | requests/s | p50 us |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (clients, depth) in [(50, 1), (500, 1), (2000, 1), (50, 16)] {
        let mut told: Vec<Vec<Told>> = ways.iter().map(|_| Vec::new()).collect();
        for round in 0..rounds {
            for i in 0..ways.len() {
                let i = (i + round) % ways.len();
                told[i].push(load(&redis_benchmark, &ways[i], server.pid(), clients, depth));
            }
        }
        let of = |i: usize, f: fn(&Told) -> f64| median(&mut told[i].iter().map(f).collect::<Vec<_>>());
        for (i, way) in ways.iter().enumerate() {
            let proxy = match way.pid() {
                Some(_) => format!("{:.2} ({:.2})", of(i, |t| t.proxy_us), of(i, |t| t.proxy_user_us)),
                None => "0".into(),
            };
            println!(
                "| {clients} | {depth} | {} | {proxy} | {:.2} | {:.2} | {:.0} | {:.0} |",
                way.name,
                of(i, |t| t.server_us),
                of(i, |t| t.server_us) / of(0, |t| t.server_us),
                of(i, |t| t.per_s),
                of(i, |t| t.p50_us),
            );
        }
    }
}

/// Of those on one thread.
fn latency(unslow: &Path, ways: &[Way], server: &Server, rounds: usize) {
    println!("\nLatency in an open loop, and what a GET costs the server:\n");
    println!("| requests/s | connections | way | p50 us | p99 us | server CPU us |\n|---|---|---|---|---|---|");
    for (rate, connections) in [("50000", "50"), ("80000", "500")] {
        let ways: Vec<&Way> = ways.iter().filter(|w| !w.name.contains("threads") && w.name != "nutcracker").collect();
        let mut told: Vec<Vec<Told>> = ways.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (way, told) in ways.iter().zip(&mut told) {
                let args = ["--rate", rate, "--seconds", "2", "--connections", connections];
                told.push(run(unslow, way, server.pid(), &args));
            }
        }
        for (way, told) in ways.iter().zip(&told) {
            let of = |f: fn(&Told) -> f64| median(&mut told.iter().map(f).collect::<Vec<_>>());
            let (p50, p99, cpu) = (of(|t| t.p50_us), of(|t| t.p99_us), of(|t| t.server_us));
            println!("| {rate} | {connections} | {} | {p50:.0} | {p99:.0} | {cpu:.2} |", way.name);
        }
    }
}

/// Memory of clients that stay: of those that have said nothing, and of those that have asked once.
fn idle(ways: &[Way]) {
    const CLIENTS: u64 = 9000;
    println!("\nMemory of a client that stays, of {CLIENTS} on one thread, in bytes (anonymous pages):\n");
    println!("| way | has said nothing | has asked once |\n|---|---|---|");
    for way in ways.iter().filter(|way| way.proxy.is_some() && !way.name.contains(',')) {
        let pid = way.pid().expect("a proxy");
        // What the first have given back serves the second: both are counted from the same beginning.
        let before = anonymous_kb(pid);
        let each = [false, true].map(|asks| {
            let mut idle = Vec::new();
            while idle.len() < CLIENTS as usize {
                let mut stream = std::net::TcpStream::connect(&way.url).expect("a connection; is `ulimit -n` 20000?");
                if asks {
                    use std::io::{Read, Write};
                    stream.write_all(b"*2\r\n$3\r\nGET\r\n$8\r\nunslow:1\r\n").expect("written");
                    let _ = stream.read(&mut [0; 256]);
                }
                idle.push(stream);
            }
            std::thread::sleep(Duration::from_secs(1));
            let grown = anonymous_kb(pid).saturating_sub(before);
            drop(idle);
            std::thread::sleep(Duration::from_secs(1));
            grown * 1024 / CLIENTS
        });
        println!("| {} | {} | {} |", way.name, each[0], each[1]);
    }
}

/// `proxies storm BINARY`: 4,000 clients that each ask CLUSTER NODES and CLUSTER SLOTS once in ten seconds, as many
/// client libraries do, at the servers themselves and at a gateway before them; what the servers spend on topology.
fn storm(unslow: &Path) {
    const CLIENTS: usize = 4000;
    const SECONDS: u64 = 20;
    println!(
        "| servers | way | topology commands/s, all nodes | of a core, on the node that spends most |\n\
         |---|---|---|---|"
    );
    for name in ["valkey-9.1", "redis-5.0"] {
        let deployment =
            Deployment::start(&find(name).expect("installed"), &Shape::six_nodes(), &ServerSpec::default())
                .expect("a cluster");
        let port = unslow_engine::free_port("127.0.0.1").expect("a port");
        let gateway = Command::new(unslow)
            .args(["gateway", "--listen", &format!("127.0.0.1:{port}"), "--target", &deployment.url(), "--quiet"])
            .spawn()
            .expect("the gateway");
        let gateway = Running(gateway);
        until("the gateway", || port_open(port));
        for through in [false, true] {
            // Calls and microseconds of what is about topology, by node.
            let spent = || -> Vec<(u64, u64)> {
                let of = |server: &std::sync::Arc<Server>| {
                    let info = info(&mut server.connect().expect("it is up"), "commandstats").expect("INFO");
                    let topology =
                        |n: &str| n.starts_with("cluster") || matches!(n, "ping" | "role" | "ssubscribe" | "hello");
                    let stats = info.command_stats();
                    stats.iter().filter(|(n, _)| topology(n)).fold((0, 0), |(c, us), (_, s)| (c + s.calls, us + s.usec))
                };
                deployment.nodes.iter().map(of).collect()
            };
            let addresses: Vec<String> = match through {
                true => vec![format!("127.0.0.1:{port}")],
                false => deployment.nodes.iter().map(|n| n.address()).collect(),
            };
            let mut clients: Vec<std::net::TcpStream> = (0..CLIENTS)
                .map(|i| {
                    let stream = std::net::TcpStream::connect(&addresses[i % addresses.len()]).expect("a connection");
                    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
                    stream
                })
                .collect();
            let before = spent();
            let begun = Instant::now();
            let mut buffer = vec![0; 1 << 16];
            for round in 0..SECONDS / 10 {
                for (i, client) in clients.iter_mut().enumerate() {
                    use std::io::{Read, Write};
                    let due = Duration::from_secs(10 * round) + Duration::from_secs(10) * i as u32 / CLIENTS as u32;
                    std::thread::sleep(due.saturating_sub(begun.elapsed()));
                    client.write_all(b"CLUSTER NODES\r\nCLUSTER SLOTS\r\n").expect("written");
                    let _ = client.read(&mut buffer);
                }
            }
            let seconds = begun.elapsed().as_secs_f64();
            let each: Vec<(u64, u64)> = spent().iter().zip(&before).map(|(a, b)| (a.0 - b.0, a.1 - b.1)).collect();
            println!(
                "| {name} | {} | {:.0} | {:.3} % |",
                if through { "unslow gateway" } else { "direct" },
                each.iter().map(|e| e.0).sum::<u64>() as f64 / seconds,
                each.iter().map(|e| e.1).max().unwrap_or(0) as f64 / seconds / 1e4,
            );
        }
        drop(gateway);
    }
}
