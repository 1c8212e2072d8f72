//! A stack that another one replaces while clients come and go: none of them is refused, and no connection ends for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use unslow_testkit::until;

use super::offload::{Stack, ask, carried, had, in_own_network, remote, server};
use super::*;

/// Clients that come, ask once and go, until they are told to stop: how many did. One that is refused fails the test.
struct Passing {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Passing {
    fn begin() -> Passing {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let one = || {
            let (stop, served) = (stop.clone(), served.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    ask(&mut remote(), "PING\r\n", "+PONG\r\n");
                    served.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads = vec![one(), one(), one()];
        Passing { stop, served, threads }
    }

    /// Waits for so many more.
    fn go_on(&self, more: u64) {
        let wanted = self.served.load(Ordering::Relaxed) + more;
        until("clients to be served", || {
            self.served.load(Ordering::Relaxed) >= wanted || self.threads.iter().any(|thread| thread.is_finished())
        });
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("every client was served"));
    }
}

#[test]
fn a_newer_stack_takes_over_unnoticed_and_the_older_ends_with_its_last_connection() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let mut older = Stack::start(&meeting);
        let _server = server(&meeting, "valkey-9.1");
        let mut kept = carried(&meeting, &older);
        let passing = Passing::begin();
        passing.go_on(100);
        // Without being told to, it makes way for none, and says how.
        let refused = meeting.unslow(&["bypass", "stack"]).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("use --replace to have this one take its place"), "{said}");
        let mut newer = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        newer.says("taking over its servers");
        newer.says("handling TCP for 1 server");
        older.says("another stack has taken over");
        passing.go_on(100);
        until("the passing clients of the older stack to be gone", || had(&meeting, &older) == 1);
        let mut new = carried(&meeting, &newer);
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
        ask(&mut new, "PING\r\n", "+PONG\r\n");
        passing.go_on(100);
        assert!(!older.has_ended(), "it has a connection yet");
        drop(kept);
        until("the older stack to have ended", || older.has_ended());
        newer.says("the other stack has ended");
        passing.go_on(100);
        passing.end();
        ask(&mut new, "PING\r\n", "+PONG\r\n");
    });
}

#[test]
fn a_successor_that_is_killed_leaves_its_predecessor_its_connections_and_the_server_its_clients() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let older = Stack::start(&meeting);
        let _server = server(&meeting, "redis-7.0");
        let mut kept = carried(&meeting, &older);
        let newer = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        let new = carried(&meeting, &newer);
        kill(newer.pid(), libc::SIGKILL);
        drop((newer, new));
        until("the server to take a client itself", || {
            let mut client = remote();
            ask(&mut client, "PING\r\n", "+PONG\r\n");
            had(&meeting, &older) == 1
        });
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
        let third = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        ask(&mut carried(&meeting, &third), "PING\r\n", "+PONG\r\n");
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
    });
}
