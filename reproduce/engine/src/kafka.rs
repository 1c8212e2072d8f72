//! A Kafka broker: one process that is broker and controller (KRaft), run by Java from Maven Central's own jars.

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::cache::cache_dir;
use crate::error::Error;
use crate::install::run;
use crate::registry::{WorkDir, register, unregister};
use crate::server::{free_port, spawn_bound};

/// The release.
pub const KAFKA_VERSION: &str = "4.1.0";
/// Where its cluster began; any will do, since every broker here is a cluster of its own.
const CLUSTER_ID: &str = "dW5zbG93LWthZmthLXRlc3Q";

const POM: &str = r#"<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>unslow</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>VERSION</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>VERSION</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"#;

/// The directory of its jars, when it is installed.
pub fn kafka_installed() -> Option<PathBuf> {
    let home = cache_dir().join("engines").join(format!("kafka-{KAFKA_VERSION}"));
    home.join("installed").exists().then(|| home.join("lib"))
}

/// Fetches the jars with the user's own Maven; does nothing when they are there.
pub fn install_kafka(say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    if let Some(lib) = kafka_installed() {
        return Ok(lib);
    }
    let engines = cache_dir().join("engines");
    let io =
        |e: std::io::Error| Error::new(format!("{}: {e}; set UNSLOW_CACHE to a writable directory", engines.display()));
    fs::create_dir_all(&engines).map_err(io)?;
    let work = WorkDir::make(|| tempfile::Builder::new().prefix(".install-").tempdir_in(&engines).map_err(io))?;
    say(&format!("fetching Kafka {KAFKA_VERSION} with Maven"));
    let root = work.path().join("root");
    fs::create_dir(&root).map_err(io)?;
    fs::write(work.path().join("pom.xml"), POM.replace("VERSION", KAFKA_VERSION)).map_err(io)?;
    // Maven checks each file against the checksum beside it.
    run(Command::new("mvn")
        .current_dir(work.path())
        .args(["-q", "-B", "-C", "dependency:copy-dependencies"])
        .arg(format!("-DoutputDirectory={}", root.join("lib").display())))?;
    fs::write(root.join("installed"), KAFKA_VERSION).map_err(io)?;
    let home = engines.join(format!("kafka-{KAFKA_VERSION}"));
    let _ = fs::remove_dir_all(&home);
    if let Err(e) = fs::rename(&root, &home)
        && kafka_installed().is_none()
    {
        return Err(io(e));
    }
    kafka_installed().ok_or_else(|| Error::new("Kafka was fetched, but it is not in the cache"))
}

/// A running broker. Dropping it ends it and removes its data.
pub struct Kafka {
    child: Mutex<Option<Child>>,
    dir: WorkDir,
    lib: PathBuf,
    /// Of its listener on 127.0.0.1.
    pub port: u16,
}

impl Kafka {
    /// Starts one; `settings` are further lines of its server.properties, such as `num.partitions=4`. Topics are made
    /// when somebody first writes to them.
    pub fn start(settings: &[&str]) -> Result<Kafka, Error> {
        let lib = install_kafka(&mut |_| {})?;
        let dir = WorkDir::make(|| {
            let dir = tempfile::Builder::new().prefix("unslow-kafka-").tempdir();
            dir.map_err(|e| Error::new(format!("cannot create a directory for Kafka's data: {e}")))
        })?;
        let (port, controller) = (free_port("127.0.0.1")?, free_port("127.0.0.1")?);
        let data = dir.path().join("data");
        let mut text = format!(
            "process.roles=broker,controller\nnode.id=1\ncontroller.quorum.voters=1@127.0.0.1:{controller}\n\
             listeners=CLIENT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}\n\
             advertised.listeners=CLIENT://127.0.0.1:{port}\ncontroller.listener.names=CONTROLLER\n\
             inter.broker.listener.name=CLIENT\n\
             log.dirs={}\noffsets.topic.replication.factor=1\noffsets.topic.num.partitions=1\n\
             transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\n\
             group.initial.rebalance.delay.ms=0\nlog.cleaner.dedupe.buffer.size=16777216\n\
             auto.create.topics.enable=true\n",
            data.display()
        );
        if !settings.iter().any(|s| s.starts_with("listener.security.protocol.map")) {
            text += "listener.security.protocol.map=CONTROLLER:PLAINTEXT,CLIENT:PLAINTEXT\n";
        }
        settings.iter().for_each(|line| text += &format!("{line}\n"));
        let properties = dir.path().join("server.properties");
        fs::write(&properties, text).map_err(|e| Error::new(format!("{}: {e}", properties.display())))?;
        let kafka = Kafka { child: Mutex::new(None), dir, lib, port };
        run(kafka.java().args(["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c"]).arg(&properties))?;
        kafka.restart()?;
        Ok(kafka)
    }

    /// For `bootstrap.servers`.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn java(&self) -> Command {
        let mut java = Command::new("java");
        java.args(["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp"]);
        java.arg(format!("{}/*", self.lib.display())).current_dir(self.dir.path());
        java
    }

    /// Ends it as a crash would; its data stays.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap_or_else(|e| e.into_inner()).take() {
            unregister(child.id(), self.dir.path());
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts it again with the same port and data, and waits until its port is open.
    pub fn restart(&self) -> Result<(), Error> {
        self.kill();
        let log = self.dir.path().join("kafka.log");
        let failed = |e: std::io::Error| {
            Error::new(format!("java: {e}; Kafka needs Java 17 (apt-get install default-jre-headless)"))
        };
        let words = fs::OpenOptions::new().create(true).append(true).open(&log).map_err(failed)?;
        let mut java = self.java();
        java.arg("kafka.Kafka").arg("server.properties").stdin(Stdio::null());
        java.stdout(words.try_clone().map_err(failed)?).stderr(words);
        let child = spawn_bound(java).map_err(failed)?;
        register(child.id(), self.dir.path());
        *self.child.lock().unwrap_or_else(|e| e.into_inner()) = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return Ok(());
            }
            let ended =
                self.child.lock().unwrap_or_else(|e| e.into_inner()).as_mut().and_then(|c| c.try_wait().ok()?);
            if ended.is_some() || Instant::now() > deadline {
                self.kill();
                return Err(Error::new(format!("Kafka is not ready; its log ends: {}", tail(&log))));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn tail(log: &Path) -> String {
    let text = fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

impl Drop for Kafka {
    fn drop(&mut self) {
        self.kill();
    }
}
