//! Well-behaved clients. Whatever other clients do, each of their replies must be right, and their connections must
//! stay open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unslow_client::{Connection, Error, Target, Value};
use unslow_testkit::{options, until};

/// Several well-behaved clients, each on its own thread.
pub struct Bystanders {
    stop: Arc<AtomicBool>,
    hurt: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    threads: Vec<JoinHandle<Record>>,
}

/// The rounds of these clients.
#[derive(Default)]
pub struct Record {
    /// Wrong replies and broken connections.
    pub wrong: Vec<String>,
    /// The duration of each round.
    pub took: Vec<Duration>,
}

impl Record {
    /// A quantile of the durations.
    pub fn took_us(&self, quantile: f64) -> u128 {
        let mut all = self.took.clone();
        all.sort_unstable();
        let at = (all.len() as f64 * quantile) as usize;
        all.get(at.min(all.len().saturating_sub(1))).map_or(0, Duration::as_micros)
    }
}

impl Bystanders {
    /// Their keys contain `name`, so that two sets of clients can share a server.
    #[track_caller]
    pub fn start(target: &Target, count: usize, name: &str) -> Bystanders {
        let (stop, hurt) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let rounds = Arc::new(AtomicU64::new(0));
        let threads = (0..count)
            .map(|number| {
                let (stop, hurt, rounds) = (stop.clone(), hurt.clone(), rounds.clone());
                let connection = Connection::open(target, &options(2)).expect("a connection");
                let tag = tag(name, number);
                std::thread::spawn(move || {
                    let record = live(connection, &tag, &stop, &rounds);
                    if !record.wrong.is_empty() {
                        hurt.store(true, Ordering::Relaxed);
                    }
                    record
                })
            })
            .collect();
        Bystanders { stop, hurt, rounds, threads }
    }

    /// Waits until they have finished this many more rounds in total, or one of them was affected.
    #[track_caller]
    pub fn do_more(&self, rounds: u64) {
        let wanted = self.rounds.load(Ordering::Relaxed) + rounds;
        until("other clients to continue", || {
            self.rounds.load(Ordering::Relaxed) >= wanted || self.hurt.load(Ordering::Relaxed)
        });
    }

    pub fn end(self) -> Record {
        self.stop.store(true, Ordering::Relaxed);
        let mut all = Record::default();
        for thread in self.threads {
            let record = thread.join().expect("it does not panic");
            all.wrong.extend(record.wrong);
            all.took.extend(record.took);
        }
        all
    }
}

/// The hash tag of one client's keys.
pub fn tag(name: &str, number: usize) -> String {
    format!("{{{name}-{number}}}")
}

fn live(mut connection: Connection, tag: &str, stop: &AtomicBool, rounds: &AtomicU64) -> Record {
    let mut record = Record::default();
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) && record.wrong.is_empty() {
        number += 1;
        let begun = Instant::now();
        let round = round(tag, number);
        let (commands, expected): (Vec<Vec<String>>, Vec<Value>) = round.into_iter().unzip();
        match connection.pipeline(&commands) {
            Ok(replies) => record.wrong = wrong(&commands, &expected, replies),
            Err(e) => record.wrong.push(format!("{tag}, round {number}: the connection: {e}")),
        }
        record.took.push(begun.elapsed());
        rounds.fetch_add(1, Ordering::Relaxed);
    }
    record
}

/// The commands of a round with the replies expected, on shared and on dedicated server connections. They reveal a
/// MULTI or WATCH left over from another client, a command that was lost or repeated, and a reply meant for another
/// client.
fn round(tag: &str, number: i64) -> Vec<(Vec<String>, Value)> {
    let text = |text: &str| Value::Text(text.as_bytes().to_vec());
    let (ok, queued, value) = (text("OK"), text("QUEUED"), text(&number.to_string()));
    let (counter, list) = (Value::Integer(number), format!("{tag}list"));
    let command = |line: String| line.split(' ').map(String::from).collect();
    let rows = [
        (format!("SET {tag}value {number}"), ok.clone()),
        (format!("GET {tag}value"), value.clone()),
        (format!("INCR {tag}counter"), counter.clone()),
        (format!("PING {number}"), value.clone()),
        ("MULTI".into(), ok.clone()),
        (format!("INCR {tag}within"), queued.clone()),
        (format!("GET {tag}value"), queued.clone()),
        ("EXEC".into(), Value::Array(vec![counter, value.clone()])),
        (format!("WATCH {tag}watched"), ok.clone()),
        ("MULTI".into(), ok.clone()),
        (format!("SET {tag}watched {number}"), queued),
        ("EXEC".into(), Value::Array(vec![ok])),
        (format!("RPUSH {list} {number}"), Value::Integer(1)),
        (format!("BLPOP {list} 50"), Value::Array(vec![text(&list), value])),
    ];
    rows.map(|(line, reply)| (command(line), reply)).into()
}

fn wrong(commands: &[Vec<String>], expected: &[Value], replies: Vec<Result<Value, Error>>) -> Vec<String> {
    let all = commands.iter().zip(expected).zip(replies);
    let wrong = all.filter(|((_, expected), reply)| !reply.as_ref().is_ok_and(|reply| reply == *expected));
    wrong.map(|((command, expected), reply)| format!("{command:?}: {reply:?} is not {expected:?}")).collect()
}
