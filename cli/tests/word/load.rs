//! What clients do to a server while the doctor looks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use unslow_client::{Connection, Error, Target, Value};
use unslow_engine::{Server, info};
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, until};

/// Connections that repeat the same commands until this is dropped.
pub struct Load {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Each connection has a thread and a copy of `round`. Error replies count as rounds, since some loads consist of
    /// them; a broken connection is reopened.
    pub fn start<R>(target: &Target, connections: usize, round: R) -> Load
    where
        R: FnMut(&mut Connection) -> Result<(), Error> + Clone + Send + 'static,
    {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..connections)
            .map(|_| {
                let (stop, rounds, target, mut round) = (stop.clone(), rounds.clone(), target.clone(), round.clone());
                std::thread::spawn(move || {
                    let mut open: Option<Connection> = None;
                    while !stop.load(Ordering::Relaxed) {
                        let result = match &mut open {
                            Some(connection) => round(connection).map(|()| 1),
                            None => Connection::open(&target, &options(2)).map(|c| {
                                open = Some(c);
                                0
                            }),
                        };
                        match result {
                            Ok(done) => {
                                rounds.fetch_add(done, Ordering::Relaxed);
                            }
                            Err(e) if e.is_fatal() => {
                                open = None;
                                sleep(Duration::from_millis(20));
                            }
                            Err(_) => {
                                rounds.fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                })
            })
            .collect();
        Load { stop, rounds, threads }
    }

    /// Waits until all connections together have done this many rounds.
    #[track_caller]
    pub fn has_done(&self, rounds: u64) {
        until("the load to be at work", || self.rounds.load(Ordering::Relaxed) >= rounds);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// An ordinary application: about a thousand reads and writes a second.
pub fn application(target: &Target) -> Load {
    let load = Load::start(target, 1, |c| {
        let command = |n: u32| if n.is_multiple_of(3) { vec!["SET", "{t2}", "v"] } else { vec!["GET", "{t2}"] };
        c.pipeline(&(0..10).map(command).collect::<Vec<_>>())?;
        sleep(Duration::from_millis(10)); // its pace
        Ok(())
    });
    load.has_done(20);
    load
}

/// Writes `NAME:0` and so on, this many keys with values of this size.
#[track_caller]
pub fn fill(server: &Server, name: &str, keys: usize, value_bytes: usize) {
    let mut c = server.connect_with(&options(2)).expect("it answers");
    let value = "x".repeat(value_bytes);
    for first in (0..keys).step_by(1000) {
        let set = |i: usize| vec!["SET".to_string(), format!("{name}:{i}"), value.clone()];
        let batch: Vec<Vec<String>> = (first..keys.min(first + 1000)).map(set).collect();
        for reply in c.pipeline(&batch).expect("it answers") {
            reply.expect("it is written");
        }
    }
}

/// KEYS over 200,000 keys, dozens of times a second. It matches none of them, so walking them is all it costs. The keys
/// are in a slot of a cluster's first node.
pub fn keys(server: &Server) -> Load {
    fill(server, "{t2}", 200_000, 8);
    let load = Load::start(&server.target(), 1, |c| {
        c.call(&["KEYS", "none:*"])?;
        sleep(Duration::from_millis(20)); // its pace
        Ok(())
    });
    load.has_done(5);
    load
}

/// A script that holds the main thread for the number of microseconds in its argument.
pub const SPIN: &str = "local function now() local t = redis.call('TIME') return t[1] * 1000000 + t[2] end \
     local stop = now() + tonumber(ARGV[1]) while now() < stop do for i = 1, 20000 do end end return 1";

/// Two connections that send pipelines of such scripts: one's are always waiting while the other's run, so the server
/// is never idle.
pub fn scripts(server: &Server, each: Duration, pipeline: usize) -> Load {
    let us = each.as_micros().to_string();
    let load = Load::start(&server.target(), 2, move |c| {
        c.pipeline(&vec![vec!["EVAL", SPIN, "0", &us]; pipeline])?.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(())
    });
    load.has_done(2);
    load
}

/// Waits until a field of INFO meets a condition.
#[track_caller]
pub fn until_info(server: &Server, section: &str, field: &str, is: impl Fn(&str) -> bool) {
    until_ok(&format!("{field} of {} to change", server.address()), || {
        let info = info(&mut server.connect_with(&options(2))?, section)?;
        Ok::<_, unslow_engine::Error>(is(info.get(field).unwrap_or_default()))
    });
}

/// Runs a command that must succeed.
#[track_caller]
pub fn call(server: &Server, command: &[&str]) -> Value {
    let mut c = server.connect_with(&options(2)).expect("it answers");
    c.call(command).unwrap_or_else(|e| panic!("{}: {e}", server.address()))
}
