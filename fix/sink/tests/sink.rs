//! The sink before real servers: what arrives, in which order, and what becomes of it when servers move, fail and
//! refuse.

/// A test for every server version.
macro_rules! on_every_engine {
    ($($test:ident: $body:ident($engine:literal);)*) => {
        $(
            #[test]
            fn $test() {
                $body($engine);
            }
        )*
    };
}

#[path = "sink/dead_letters.rs"]
mod dead_letters;
#[path = "sink/faults.rs"]
mod faults;
#[path = "sink/maps.rs"]
mod maps;
#[path = "sink/sources.rs"]
mod sources;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{Connection, Target, Value};
use unslow_engine::Server;
use unslow_sink::{Config, Sink, Snapshot, Start};
use unslow_testkit::servers::server;
use unslow_testkit::{options, standalone, until};

/// Connected patiently: disks that others write to let servers hang for seconds.
#[track_caller]
fn connect(server: &Server) -> Connection {
    server.connect_with(&options(2)).unwrap()
}

/// Notes of a sink under test.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn said(&self, word: &str) -> bool {
        self.0.lock().unwrap().iter().any(|n| n.contains(word))
    }
}

/// Why a sink does not start, or has ended.
type Failure = unslow_sink::Error;

fn try_start(map: &str, from: &str, to: &str, change: impl FnOnce(&mut Config)) -> Result<(Sink, Notes), Failure> {
    let mut config = Config::parse(map)?;
    config.from = from.to_string();
    change(&mut config);
    let target = Target::parse(to).unwrap();
    let stream = config.from.starts_with("redis://").then(|| (Target::parse(&config.from).unwrap(), options(2)));
    let notes = Notes::default();
    let heard = notes.clone();
    let note = Arc::new(move |text: &str| heard.0.lock().unwrap().push(text.to_string()));
    let start = Start { config, target, options: options(2), stream, note };
    Ok((Sink::start(start)?, notes))
}

fn run(map: &str, from: &str, to: &str, change: impl FnOnce(&mut Config)) -> Result<Snapshot, Failure> {
    let (sink, _) = try_start(map, from, to, change)?;
    sink.join()
}

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::write(self.0.path().join(name), text).unwrap();
        self.path(name)
    }
}

/// Lines for a sink for as long as the test wants.
struct Feed {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    thread: Option<JoinHandle<u64>>,
}

impl Feed {
    /// At most 4,000 lines a second: what these tests are about does not depend on the pace.
    fn start(dir: &Dir, mut line: impl FnMut(u64, &mut Vec<u8>) + Send + 'static) -> Feed {
        let path = PathBuf::from(dir.path("feed"));
        let name = std::ffi::CString::new(path.display().to_string()).unwrap();
        // SAFETY: the name is a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (theirs, count, to) = (stop.clone(), written.clone(), path.clone());
        let thread = std::thread::spawn(move || {
            let mut pipe = std::fs::OpenOptions::new().write(true).open(to).unwrap();
            let mut n = 0;
            while !theirs.load(Ordering::Acquire) {
                let mut text = Vec::new();
                for _ in 0..100 {
                    line(n, &mut text);
                    n += 1;
                }
                pipe.write_all(&text).unwrap();
                count.store(n, Ordering::Release);
                std::thread::sleep(Duration::from_millis(25)); // the pace of the load, nothing is waited for
            }
            n
        });
        Feed { path, stop, written, thread: Some(thread) }
    }

    fn path(&self) -> String {
        self.path.display().to_string()
    }

    fn wait(&self, more: u64) {
        let from = self.written.load(Ordering::Acquire);
        until("lines to be taken", || self.written.load(Ordering::Acquire) >= from + more);
    }

    fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Release);
        self.thread.take().unwrap().join().unwrap()
    }
}

fn texts(value: &Value) -> Vec<String> {
    value.items().iter().filter_map(Value::text).collect()
}

fn hash(connection: &mut Connection, key: &str) -> BTreeMap<String, String> {
    let reply = texts(&connection.call(&["HGETALL", key]).unwrap());
    reply.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}
