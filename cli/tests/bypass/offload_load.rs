//! A stack under a load whose every answer is checked, while clients leave in mid-command, the server forks,
//! connections move between the stack's threads, and the stack is killed or replaced: what is wrong, lost or left open
//! fails it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use unslow_testkit::until;

use super::offload::{CLIENT, SERVER, Stack, carried, had, in_own_network, server, set};
use super::ownership::try_connected;
use super::*;

const CLIENTS: u64 = 12;
/// Answers between two kills at least: enough that each connection was used.
const ANSWERS: u64 = 2000;

/// A client that has a key to itself and knows what the key must hold.
struct Checked {
    key: u64,
    random: StdRng,
    /// What was acknowledged, and what was sent since without an answer.
    holds: Option<Vec<u8>>,
    maybe: Option<Vec<u8>>,
}

impl Checked {
    fn name(&self) -> String {
        format!("k{}", self.key)
    }

    fn value(&mut self) -> Vec<u8> {
        let length = match self.random.random_range(0..20) {
            0 => self.random.random_range(0..300_000),
            _ => self.random.random_range(0..2_000),
        };
        let first: u32 = self.random.random();
        (0..length).map(|n: u32| (first.wrapping_add(n).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Commands over one connection until it breaks, or this client leaves it.
    fn use_up(&mut self, mut stream: TcpStream, answers: &AtomicU64, ended: &AtomicBool) -> std::io::Result<()> {
        let name = self.name();
        while !ended.load(Ordering::Relaxed) {
            let value = self.value();
            let command = set(&name, &value);
            self.maybe = Some(value);
            if self.random.random_ratio(1, 200) {
                let part = self.random.random_range(0..command.len());
                return stream.write_all(&command[..part]);
            }
            stream.write_all(&command)?;
            let mut told = [0; 5];
            stream.read_exact(&mut told)?;
            assert_eq!(&told, b"+OK\r\n");
            self.holds = self.maybe.take();
            stream.write_all(&get(&name))?;
            if self.random.random_ratio(1, 200) {
                return Ok(());
            }
            let found = value_of(&mut stream)?;
            assert!(found == self.holds, "{name}: {} bytes that were not written last", found.map_or(0, |v| v.len()));
            answers.fetch_add(2, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What was sent when the last connection broke was carried out, or was not; anything else is wrong. The server may
    /// read it even now, so the key is not used again.
    fn settle(&mut self, stream: &mut TcpStream) -> std::io::Result<()> {
        stream.write_all(&get(&self.name()))?;
        let found = value_of(stream)?;
        assert!(
            found == self.holds || (found.is_some() && found == self.maybe),
            "{}: {} bytes, neither what was acknowledged nor what was sent last",
            self.name(),
            found.map_or(0, |value| value.len())
        );
        let old = self.name();
        (self.key, self.holds, self.maybe) = (self.key + CLIENTS, None, None);
        stream.write_all(format!("DEL {old}\r\n").as_bytes())?;
        let mut told = [0; 4];
        stream.read_exact(&mut told)?;
        assert!(matches!(&told, b":0\r\n" | b":1\r\n"));
        Ok(())
    }
}

fn get(name: &str) -> Vec<u8> {
    format!("*2\r\n$3\r\nGET\r\n${}\r\n{name}\r\n", name.len()).into_bytes()
}

/// What GET is answered.
fn value_of(stream: &mut TcpStream) -> std::io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).trim_end().to_string();
    match head.strip_prefix('$').map(str::parse::<usize>) {
        Some(Ok(length)) => {
            let mut value = vec![0; length + 2];
            stream.read_exact(&mut value)?;
            value.truncate(length);
            Ok(Some(value))
        }
        _ if head == "$-1" => Ok(None),
        _ => panic!("{head} instead of a value"),
    }
}

fn descriptors_of(pid: i32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

/// What is done to the stack every [`ANSWERS`] answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// It is killed, and another one started: all its connections break.
    Killed,
    /// Another one replaces it: none of them does.
    Replaced,
}

/// Clients whose every answer is checked.
struct Clients {
    threads: Vec<std::thread::JoinHandle<()>>,
    answers: Arc<AtomicU64>,
    /// Connections that broke, or could not be made.
    broken: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

impl Clients {
    fn begin() -> Clients {
        let (answers, broken) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let ended = Arc::<AtomicBool>::default();
        let one = |key| {
            let (answers, broken, ended) = (answers.clone(), broken.clone(), ended.clone());
            std::thread::spawn(move || {
                let random = StdRng::seed_from_u64(key);
                let mut checked = Checked { key, random, holds: None, maybe: None };
                while !ended.load(Ordering::Relaxed) {
                    let (from, to) = (SocketAddr::from((CLIENT, 0)), SocketAddr::from((SERVER, 7990)));
                    let used = try_connected(from, to).map(TcpStream::from).and_then(|mut stream| {
                        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                        checked.settle(&mut stream)?;
                        checked.use_up(stream, &answers, &ended)
                    });
                    broken.fetch_add(u64::from(used.is_err()), Ordering::Relaxed);
                }
            })
        };
        Clients { threads: (0..CLIENTS).map(one).collect(), answers, broken, ended }
    }

    fn have_failed(&self) -> bool {
        self.threads.iter().any(|client| client.is_finished())
    }

    fn end(self) -> (u64, u64) {
        self.ended.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|client| client.join().unwrap());
        (self.answers.load(Ordering::Relaxed), self.broken.load(Ordering::Relaxed))
    }
}

/// Checked load on a stack with that many threads, until `enough` accepts how many stacks have met their fate.
fn verified_load(fate: Fate, threads: usize, enough: impl Fn(u64) -> bool + Send + 'static) {
    in_own_network(move || {
        let meeting = Meeting::new();
        let number = threads.to_string();
        let words = ["--threads", &number, "--spread", "always", "--status", "127.0.0.1:0"];
        let replaces = [&words[..], &["--replace"]].concat();
        let mut stack = Stack::start_with(&meeting, &words).expect("a stack");
        let server = server(&meeting, "valkey-9.1");
        drop(carried(&meeting, &stack));
        until("the connection to be over", || had(&meeting, &stack) == 0);
        let before = descriptors_of(server.pid());
        let clients = Clients::begin();
        let mut control = server.connect().unwrap();
        let (mut times, mut saved, mut former) = (0, Instant::now(), Vec::new());
        loop {
            let from = clients.answers.load(Ordering::Relaxed);
            until("answers", || {
                if saved.elapsed() > Duration::from_secs(1) {
                    // One that is not over yet refuses the next.
                    let _ = control.call(&["BGSAVE"]);
                    saved = Instant::now();
                }
                clients.answers.load(Ordering::Relaxed) >= from + ANSWERS || clients.have_failed()
            });
            assert!(!clients.have_failed(), "a client has failed; {times} stacks had ended");
            until("connections to be the stack's, on each thread", || {
                stack.figure("threads", 7990) == Some(threads as u64) && had(&meeting, &stack) > 0
            });
            if enough(times) {
                break;
            }
            match fate {
                Fate::Killed => {
                    kill(stack.pid(), libc::SIGKILL);
                    drop(stack);
                    stack = Stack::start_with(&meeting, &words).expect("a stack");
                }
                Fate::Replaced => {
                    let mut newer = Stack::start_with(&meeting, &replaces).expect("a stack");
                    newer.says("the other stack serves no server any more");
                    former.push(std::mem::replace(&mut stack, newer));
                }
            }
            times += 1;
        }
        let (answers, broken) = clients.end();
        println!("{answers} answers checked, {times} stacks ended, {broken} connections broke");
        assert!(fate == Fate::Killed || broken == 0, "{broken} connections broke, and no stack was killed");
        until("all of them to be over", || had(&meeting, &stack) == 0);
        until("the stacks that were replaced to have ended", || former.iter_mut().all(Stack::has_ended));
        // The control connection is its own; the channel to the stack is as it was, and so is the first thread's
        // doorbell.
        let may_have = before + 1 + (threads - 1);
        until("the server to have closed what was theirs", || descriptors_of(server.pid()) <= may_have);
    });
}

#[test]
fn no_answer_is_wrong_and_nothing_is_left_while_stacks_and_clients_are_killed() {
    verified_load(Fate::Killed, 1, |times| times >= 5);
}

#[test]
fn no_answer_is_wrong_while_connections_move_between_threads() {
    verified_load(Fate::Killed, 3, |times| times >= 3);
}

#[test]
fn no_answer_is_wrong_and_no_connection_breaks_while_stacks_are_replaced() {
    verified_load(Fate::Replaced, 2, |times| times >= 3);
}

/// UNSLOW_STRESS_S says for how long.
#[test]
#[ignore = "long: ten minutes of kills under load"]
fn no_answer_is_wrong_for_ten_minutes() {
    let seconds = std::env::var("UNSLOW_STRESS_S").ok().map_or(600, |s| s.parse().expect("UNSLOW_STRESS_S: seconds"));
    let parts = [(Fate::Killed, 1), (Fate::Killed, 3), (Fate::Replaced, 3)];
    for (fate, threads) in parts {
        let end = Instant::now() + Duration::from_secs(seconds) / parts.len() as u32;
        verified_load(fate, threads, move |_| Instant::now() >= end);
    }
}
