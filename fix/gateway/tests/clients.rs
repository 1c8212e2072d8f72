//! The clients that applications use, through the gateway: what they do when they connect, and what people do with them.
//!
//! Each suite is a program of its own under `clients/`. Its library comes from its registry, once, into the cache. A suite
//! whose language is not on this machine fails: `make test` installs them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use unslow_client::{Options, Target};
use unslow_engine::{Deployment, Server, ServerSpec, Shape, cache_dir, find};
use unslow_gateway::{Config, Gateway, Start};

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn gate(url: &str) -> Gateway {
    let config = Config { listen: vec!["127.0.0.1:0".into()], target: url.into(), ..Config::default() };
    let target = Target::parse(url).unwrap();
    let timeout = Duration::from_secs(10);
    let options = Options { connect_timeout: timeout, command_timeout: timeout, ..Options::default() };
    Gateway::start(Start { config, target, options, reread: None, log: Box::new(|_| {}) }).unwrap()
}

/// The suite's directory in the cache, with a fresh copy of its sources.
fn suite(name: &str) -> PathBuf {
    let dir = cache_dir().join("clients").join(name);
    std::fs::create_dir_all(&dir).unwrap();
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name);
    run(Command::new("cp").args(["-r", &format!("{}/.", from.display()), &dir.display().to_string()]));
    dir
}

fn run(command: &mut Command) {
    let out =
        command.output().unwrap_or_else(|e| panic!("{command:?}: {e}; `make tools` installs what the tests need"));
    assert!(
        out.status.success(),
        "{command:?}:\n{}\n{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

/// On a server alone and on a cluster.
fn everywhere(command: impl Fn(&[&str]) -> Command) {
    let server = Server::start(&find("redis-7.0").unwrap(), &ServerSpec::default()).unwrap();
    let deployment =
        Deployment::start(&find("valkey-9.1").unwrap(), &Shape::six_nodes(), &ServerSpec::default()).unwrap();
    for (url, kind) in [(server.url(), "standalone"), (deployment.url(), "cluster")] {
        let gateway = gate(&url);
        let (host, port) = gateway.addresses[0].rsplit_once(':').unwrap();
        run(&mut command(&[host, port, kind]));
    }
}

#[test]
fn redis_py() {
    let _alone = alone();
    let dir = suite("python");
    let library = dir.join("library");
    if !library.join("redis").exists() {
        let target = library.display().to_string();
        run(Command::new("python3").args(["-m", "pip", "install", "--quiet", "--target", &target, "redis==6.4.0"]));
    }
    everywhere(|args| {
        let mut command = Command::new("python3");
        command.env("PYTHONPATH", &library).arg(dir.join("smoke.py")).args(args);
        command
    });
}

#[test]
fn node_redis() {
    let _alone = alone();
    let dir = suite("node");
    if !dir.join("node_modules/redis").exists() {
        run(Command::new("npm").current_dir(&dir).args(["install", "--silent", "--no-audit", "--no-fund"]));
    }
    everywhere(|args| {
        let mut command = Command::new("node");
        command.current_dir(&dir).arg("smoke.mjs").args(args);
        command
    });
}

#[test]
fn go_redis() {
    let _alone = alone();
    let dir = suite("go");
    let binary = dir.join("smoke");
    if !binary.exists() {
        let go = |args: &[&str]| {
            // No toolchain of its own, and a cache inside ours.
            let caches = [
                ("GOFLAGS", "-mod=mod".into()),
                ("GOTOOLCHAIN", "local".into()),
                ("GOPATH", dir.join("path").display().to_string()),
                ("GOCACHE", dir.join("cache").display().to_string()),
            ];
            run(Command::new("go").current_dir(&dir).args(args).envs(caches));
        };
        go(&["build", "-o", "smoke", "."]);
    }
    everywhere(|args| {
        let mut command = Command::new(&binary);
        command.args(args);
        command
    });
}

#[test]
fn jedis_and_lettuce() {
    let _alone = alone();
    let dir = suite("java");
    if !dir.join("target/dependency").exists() {
        let mut command = Command::new("mvn");
        command.current_dir(&dir).args(["-q", "-B", "compile", "dependency:copy-dependencies"]);
        run(&mut command);
    }
    everywhere(|args| {
        let mut command = Command::new("java");
        command.current_dir(&dir).args(["-cp", "target/classes:target/dependency/*", "Smoke"]).args(args);
        command
    });
}
