//! Masters that are replaced while they answer: SENTINEL FAILOVER, and FAILOVER said to the master itself. What was
//! acknowledged is there at the end, but for what the old master had acknowledged and not yet replicated.
//!
//! No test judges a time. That a promotion is followed without a Sentinel's word shows while all Sentinels are stopped.

mod common;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use unslow_client::{Connection, Target, Value};
use unslow_engine::{Deployment, Error, Server};
use unslow_gateway::Gateway;
use unslow_testkit::options;
use unslow_testkit::servers::sentinels;
use unslow_testkit::wait::{until, until_ok};

use common::gate;

const ENGINE: &str = "redis-7.0";
/// Sentinels that were stopped for long finish their failover all the same.
const FAILOVER_TIMEOUT_MS: u32 = 180_000;
/// A write that was in flight to a node which a busy machine made silent.
const UNSURE: &str = "may or may not have run";

fn client(gateway: &Gateway) -> Connection {
    let target = Target::parse(&gateway.addresses[0]).expect("an address");
    Connection::open(&target, &options(2)).expect("the gateway accepts")
}

/// The words of ROLE.
fn role(server: &Server) -> Result<Vec<String>, Error> {
    let reply = server.connect()?.call(&["ROLE"])?;
    Ok(reply.items().iter().map(|word| word.text().unwrap_or_default()).collect())
}

fn is_master(server: &Server) -> Result<bool, Error> {
    Ok(role(server)?.first().is_some_and(|word| word == "master"))
}

/// It has its master's data, and follows what comes.
fn is_replica(server: &Server) -> Result<bool, Error> {
    let role = role(server)?;
    Ok(role.first().is_some_and(|word| word == "slave") && role.get(3).is_some_and(|state| state == "connected"))
}

/// An order that a server refuses until it can be carried out.
#[track_caller]
fn order(server: &Server, words: &[&str]) {
    until_ok("the order to be accepted", || match server.connect()?.call(words) {
        Ok(_) => Ok(true),
        Err(e) if e.is_fatal() => Err(e.into()),
        Err(_) => Ok::<_, Error>(false),
    });
}

/// Between two writes: more of them a second would find no more, and keep a processor busy.
const BETWEEN: Duration = Duration::from_micros(300);

/// One client that writes a key after the other.
struct Writer {
    stop: Arc<AtomicBool>,
    /// Keys whose write was acknowledged, in their order.
    written: Arc<Mutex<Vec<String>>>,
    thread: JoinHandle<Vec<String>>,
}

impl Writer {
    fn start(gateway: &Gateway, prefix: &str) -> Writer {
        let (stop, written) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let (ended, keys, prefix) = (stop.clone(), written.clone(), prefix.to_string());
        let mut connection = client(gateway);
        let thread = std::thread::spawn(move || {
            let mut errors = Vec::new();
            for n in 0.. {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                let key = format!("{prefix}:{n}");
                match connection.call(&["SET", &key, "v"]) {
                    Ok(_) => keys.lock().expect("no thread panicked").push(key),
                    Err(e) => errors.push(e.to_string()),
                }
                std::thread::sleep(BETWEEN);
            }
            errors
        });
        Writer { stop, written, thread }
    }

    fn count(&self) -> usize {
        self.written.lock().expect("no thread panicked").len()
    }

    #[track_caller]
    fn write_more(&self, keys: usize) {
        let enough = self.count() + keys;
        until("more keys to be written", || self.count() >= enough);
    }

    /// The keys in their order, and the errors.
    fn end(self) -> (Vec<String>, Vec<String>) {
        self.stop.store(true, Ordering::Relaxed);
        let errors = self.thread.join().expect("the writer does not panic");
        let keys = self.written.lock().expect("no thread panicked").clone();
        (keys, errors)
    }
}

/// Waits until what is written through the gateway is on this server.
#[track_caller]
fn until_written_to(gateway: &Gateway, server: &Server, prefix: &str) {
    let mut through = client(gateway);
    let mut n = 0;
    until_ok("the gateway to write to the new master", || {
        n += 1;
        let key = format!("{prefix}:probe:{n}");
        through.call(&["SET", &key, "v"])?;
        Ok::<_, Error>(server.connect()?.call(&["EXISTS", &key])?.integer() == Some(1))
    });
}

/// Places in `keys` of those that are not on the server.
fn lost(keys: &[String], server: &Server) -> Vec<usize> {
    let mut connection = server.connect().expect("it answers");
    let mut lost = Vec::new();
    for (at, part) in keys.chunks(1000).enumerate() {
        let questions: Vec<Vec<&str>> = part.iter().map(|key| vec!["EXISTS", key.as_str()]).collect();
        let replies = connection.pipeline(&questions).expect("it answers");
        let missing =
            replies.into_iter().enumerate().filter(|(_, r)| r.as_ref().ok().and_then(Value::integer) != Some(1));
        lost.extend(missing.map(|(i, _)| at * 1000 + i));
    }
    lost
}

fn all_sentinels(deployment: &Deployment, signal: i32) {
    deployment.sentinels.iter().for_each(|sentinel| sentinel.signal(signal));
}

#[test]
fn a_failover_that_sentinel_is_told_to_make_is_followed_before_any_sentinel_names_the_new_master() {
    let deployment = sentinels(ENGINE, 1, FAILOVER_TIMEOUT_MS);
    let gateway = gate(&deployment.url(), |_| {});
    for round in 0..3 {
        let (old, new) = (&deployment.nodes[round % 2], &deployment.nodes[1 - round % 2]);
        until_ok("the replica to be in sync", || is_replica(new));
        let prefix = format!("r{round}");
        let writer = Writer::start(&gateway, &prefix);
        writer.write_more(200);
        order(&deployment.sentinels[round], &["SENTINEL", "FAILOVER", "mymaster"]);
        until_ok("the replica to be promoted", || is_master(new));
        // The Sentinel asks once a second whether its promotion took place: now it does not.
        all_sentinels(&deployment, libc::SIGSTOP);
        until_written_to(&gateway, new, &prefix);
        let followed = writer.count();
        all_sentinels(&deployment, libc::SIGCONT);
        writer.write_more(200);
        // About ten seconds later they make the old one its replica, which discards what it alone has.
        until_ok("the old master to be a replica", || is_replica(old));
        writer.write_more(200);
        let (keys, errors) = writer.end();
        assert!(errors.iter().all(|e| e.contains(UNSURE)), "{errors:?}");
        let lost = lost(&keys, new);
        println!("round {round}: {} of {} acknowledged writes lost", lost.len(), keys.len());
        // One more may have been in flight.
        assert!(lost.iter().all(|at| *at <= followed), "{lost:?} of {}, followed after {followed}", keys.len());
        // What the old master had not replicated is the end of what it was sent: nothing was written there later.
        let run = lost.first().zip(lost.last()).map_or(0, |(first, last)| last - first + 1);
        assert_eq!(run, lost.len(), "{lost:?}");
    }
}

#[test]
fn failover_said_to_a_master_under_sentinels_is_followed_without_them_and_loses_nothing() {
    let deployment = sentinels(ENGINE, 1, FAILOVER_TIMEOUT_MS);
    for sentinel in &deployment.sentinels {
        // They would replace a master that says it is a replica, after this time: in this test they never do.
        order(sentinel, &["SENTINEL", "SET", "mymaster", "down-after-milliseconds", "600000"]);
    }
    let gateway = gate(&deployment.url(), |_| {});
    for round in 0..3 {
        let (old, new) = (&deployment.nodes[round % 2], &deployment.nodes[1 - round % 2]);
        until_ok("the replica to be in sync", || is_replica(new));
        let prefix = format!("f{round}");
        let writer = Writer::start(&gateway, &prefix);
        writer.write_more(200);
        order(old, &["FAILOVER"]);
        until_ok("the replica to be promoted", || is_master(new));
        until_written_to(&gateway, new, &prefix);
        writer.write_more(200);
        let (keys, errors) = writer.end();
        assert!(errors.iter().all(|e| e.contains(UNSURE)), "{errors:?}");
        assert_eq!(lost(&keys, new), Vec::<usize>::new(), "of {} acknowledged writes", keys.len());
    }
}
