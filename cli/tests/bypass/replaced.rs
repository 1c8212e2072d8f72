//! A stack that another one replaces while clients come and go: none of them is refused, and no connection ends for it.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use unslow_testkit::until;

use super::offload::{SERVER, Stack, ask, carried, had, in_own_network, remote, server};
use super::ownership::connected;
use super::*;

/// From the server's own address: the stack passes it on, and its bytes stay with TCP.
fn local() -> TcpStream {
    let stream = TcpStream::from(connected(SocketAddr::from((SERVER, 0)), SocketAddr::from((SERVER, 7990))));
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream
}

/// Clients that come, ask once and go, until they are told to stop: how many did. One that is refused fails the test.
struct Passing {
    stop: Arc<AtomicBool>,
    served: Arc<AtomicU64>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Passing {
    fn begin() -> Passing {
        let (stop, served) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let one = |come: fn() -> TcpStream| {
            let (stop, served) = (stop.clone(), served.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    ask(&mut come(), "PING\r\n", "+PONG\r\n");
                    served.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(1)); // each takes a port for a minute
                }
            })
        };
        let threads = vec![one(remote), one(remote), one(local)];
        Passing { stop, served, threads }
    }

    /// Waits until this many more have been served.
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
        newer.says("the other stack serves no server any more");
        until("the passing clients of the older stack to be gone", || had(&meeting, &older) == 1);
        let mut new = carried(&meeting, &newer);
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
        ask(&mut new, "PING\r\n", "+PONG\r\n");
        passing.go_on(100);
        assert!(!older.has_ended(), "it has a connection yet");
        drop(kept);
        until("the older stack to have ended", || older.has_ended());
        passing.go_on(100);
        passing.end();
        ask(&mut new, "PING\r\n", "+PONG\r\n");
    });
}

#[test]
fn a_stack_hears_that_it_was_replaced_whatever_else_it_hears_it_with() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let mut older = Stack::start(&meeting);
        let server = server(&meeting, "valkey-9.1");
        drop(carried(&meeting, &older));
        until("the connection to be over", || had(&meeting, &older) == 0);
        // SAFETY: processes that we started and have not waited for.
        let signal = |pid, signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        // The older stack has accepted these, and the server takes them while the stack stands still.
        signal(server.pid(), libc::SIGSTOP);
        let descriptors = older.descriptors();
        let mut kept: Vec<TcpStream> = (0..20).map(|_| remote()).collect();
        until("them to be accepted", || older.descriptors() >= descriptors + 2 * kept.len());
        signal(older.pid(), libc::SIGSTOP);
        signal(server.pid(), libc::SIGCONT);
        let mut newer = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        newer.says("handling TCP for 1 server");
        until("the server to have taken them", || had(&meeting, &older) == kept.len());
        signal(older.pid(), libc::SIGCONT);
        older.says("another stack has taken over");
        kept.iter_mut().for_each(|client| ask(client, "PING\r\n", "+PONG\r\n"));
        drop(kept);
        until("the older stack to have ended", || older.has_ended());
    });
}

#[test]
fn a_successor_that_ends_before_its_server_has_heard_of_it_takes_nothing() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let older = Stack::start(&meeting);
        let server = server(&meeting, "valkey-9.1");
        let mut kept = carried(&meeting, &older);
        // SAFETY: a process that we started and have not waited for.
        let signal = |signal| assert_eq!(unsafe { libc::kill(server.pid(), signal) }, 0);
        signal(libc::SIGSTOP);
        let mut newer = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        newer.says("taking over its servers");
        // It looks for servers four times a second, and has met this one by then.
        std::thread::sleep(Duration::from_millis(600));
        kill(newer.pid(), libc::SIGKILL);
        drop(newer);
        signal(libc::SIGCONT);
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
        ask(&mut carried(&meeting, &older), "PING\r\n", "+PONG\r\n");
    });
}

#[test]
fn a_successor_that_is_killed_leaves_everything_to_its_predecessor() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let mut older = Stack::start(&meeting);
        let _server = server(&meeting, "redis-7.0");
        let mut kept = carried(&meeting, &older);
        let newer = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        let new = carried(&meeting, &newer);
        older.says("another stack has taken over"); // it looks four times a second
        kill(newer.pid(), libc::SIGKILL);
        drop((newer, new));
        older.says("the other stack has ended; accepting again");
        ask(&mut carried(&meeting, &older), "PING\r\n", "+PONG\r\n");
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
        let third = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        ask(&mut carried(&meeting, &third), "PING\r\n", "+PONG\r\n");
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
    });
}
