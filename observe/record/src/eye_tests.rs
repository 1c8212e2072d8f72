//! The event loop before servers that answer as they are told to.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::time::Duration;

use unslow_client::{Options, Target};
use unslow_facts::{Lack, Own};
use unslow_probe::Tally;
use unslow_reactor::{Waker, peer_of};

use crate::eye::{Eye, Order, Pace, unix_ms};
use crate::notes::{Note, Saw, Waiting};
use crate::recorder::start_eye;

const PATIENCE: Duration = Duration::from_secs(30);
const INFO: &str = "redis_version:7.2.4\r\nrole:master\r\n";

/// An event loop that asks one server.
struct Watch {
    orders: Sender<Order>,
    waker: Waker,
    notes: Receiver<Note>,
}

impl Watch {
    fn of(port: u16) -> Watch {
        let (orders, taken) = channel();
        let (seen, notes) = sync_channel(10_000);
        let options = Options { name: Some("unslow-test"), ..Options::default() };
        let (waker, _) =
            start_eye(Eye::new(Pace::RECORDED, options, None, taken, seen, Arc::new(Waiting::default()), None))
                .unwrap();
        let target = Target::parse(&format!("127.0.0.1:{port}")).unwrap();
        let peer = peer_of(&target).unwrap();
        orders.send(Order::Ask { node: 0, target: Box::new(target), peer, tally: Tally::default() }).unwrap();
        waker.wake();
        Watch { orders, waker, notes }
    }

    /// What is seen up to and with the first that this finds.
    fn until(&self, mut found: impl FnMut(&Saw) -> bool) -> Vec<Saw> {
        let mut all = Vec::new();
        loop {
            let note = self.notes.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("not seen; but {all:?}"));
            if let Note::Saw(_, _, saw) = note {
                all.push(saw);
                if all.last().is_some_and(&mut found) {
                    return all;
                }
            }
        }
    }

    /// What was sent up to the next row.
    fn sent(&self) -> Own {
        let seen = self.until(|saw| matches!(saw, Saw::Second { .. }));
        let Some(Saw::Second { sent, .. }) = seen.into_iter().next_back() else { unreachable!() };
        sent
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Stop);
        self.waker.wake();
    }
}

/// Answers each command's first word; an empty answer closes the connection.
pub fn serve(listener: TcpListener, answer: impl Fn(&str) -> String + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                let mut stream = stream;
                while let Some(words) = lines.next().and_then(|n| n.strip_prefix('*')?.parse::<usize>().ok()) {
                    let words: Vec<String> = (0..words).filter_map(|_| lines.nth(1)).collect();
                    let text = answer(&words[0]);
                    if text.is_empty() || stream.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

pub fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

pub fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A server that refuses PING, or both questions, while it is told to.
fn refusing(word: &'static str, also_info: bool) -> (Watch, Arc<AtomicU8>) {
    let ((listener, port), refuses) = (listener(), Arc::new(AtomicU8::new(1)));
    let on = refuses.clone();
    serve(listener, move |command| match (command, on.load(Ordering::Relaxed)) {
        ("PING", 1) => format!("-{word} not now\r\n"),
        ("INFO", 1) if also_info => format!("-{word} not now\r\n"),
        ("PING", _) => "+PONG\r\n".into(),
        ("INFO", _) => bulk(INFO),
        _ => "+OK\r\n".into(),
    });
    (Watch::of(port), refuses)
}

fn is_row(saw: &Saw) -> bool {
    matches!(saw, Saw::Second { .. })
}

#[test]
fn a_server_that_loads_is_away_until_it_answers_ping() {
    let (watch, refuses) = refusing("LOADING", false);
    let mut rows = 0;
    let seen = watch.until(|saw| {
        rows += u32::from(is_row(saw));
        rows == 3
    });
    let told = seen.iter().filter_map(|saw| if let Saw::Away(away) = saw { Some(away) } else { None });
    let told: Vec<Option<Lack>> = told.map(|away| away.as_ref().map(|away| away.lack)).collect();
    assert_eq!(told, [Some(Lack::Other)], "{seen:?}");
    let sent = watch.sent();
    assert_eq!(sent.commands.get("ping"), None, "what is refused is not executed");
    assert!(sent.errors["LOADING"] >= 3 && sent.commands["info"] >= 3 && sent.total > 6, "{sent:?}");
    refuses.store(0, Ordering::Relaxed);
    watch.until(|saw| *saw == Saw::Away(None));
    let before = watch.sent();
    let after = watch.sent();
    assert!(after.commands["ping"] > before.commands["ping"] && after.errors == before.errors);
}

#[test]
fn a_busy_server_lacks_no_rights_and_a_denied_info_does() {
    for (word, lack) in [("BUSY", Lack::Other), ("NOPERM", Lack::Rights), ("NOAUTH", Lack::Rights)] {
        let (watch, refuses) = refusing(word, true);
        let seen = watch.until(|saw| matches!(saw, Saw::Away(Some(_))));
        let Some(Saw::Away(Some(away))) = seen.last() else { unreachable!() };
        assert_eq!((away.lack, away.silent), (lack, false), "{word}");
        refuses.store(0, Ordering::Relaxed);
        watch.until(|saw| *saw == Saw::Away(None));
        watch.until(is_row);
    }
}

#[test]
fn a_slow_ping_is_one_stall_and_a_slow_info_none() {
    let ((listener, port), slow) = (listener(), Arc::new(AtomicU8::new(0)));
    let told = slow.clone();
    serve(listener, move |command| {
        let sleeps = match command {
            "PING" => told.compare_exchange(2, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
            "INFO" => told.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok(),
            _ => false,
        };
        if sleeps {
            std::thread::sleep(Duration::from_secs(2));
        }
        match command {
            "PING" => "+PONG\r\n".into(),
            "INFO" => bulk(INFO),
            _ => "+OK\r\n".into(),
        }
    });
    let watch = Watch::of(port);
    watch.until(is_row);
    let is_long = |saw: &&Saw| matches!(saw, Saw::Stall(stall) if stall.us >= 2_000_000);
    slow.store(1, Ordering::Relaxed);
    let seen = [watch.until(is_row), watch.until(is_row)].concat();
    assert_eq!((seen.iter().filter(is_long).count(), slow.load(Ordering::Relaxed)), (0, 0), "{seen:?}");
    slow.store(2, Ordering::Relaxed);
    let mut seen = watch.until(|saw| is_long(&saw));
    seen.extend([watch.until(is_row), watch.until(is_row)].concat());
    assert_eq!(seen.iter().filter(is_long).count(), 1, "{seen:?}");
}

#[test]
fn what_a_server_was_sent_while_it_hung_is_ours() {
    let ((listener, port), counted) = (listener(), Arc::new([const { AtomicU64::new(0) }; 4]));
    let at_server = counted.clone();
    serve(listener, move |command| {
        let [pings, infos, names, hangs] = &*at_server;
        let count = match command {
            "PING" => pings,
            "INFO" => infos,
            _ => names,
        };
        // It resumes after we have given up the connection, and executes the commands that it received on it.
        if command == "PING" && hangs.compare_exchange(1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            std::thread::sleep(Duration::from_secs(6));
        }
        count.fetch_add(1, Ordering::Relaxed);
        let told = |of: &AtomicU64| of.load(Ordering::Relaxed);
        match command {
            "PING" => "+PONG\r\n".into(),
            "INFO" => bulk(&format!("{INFO}executed:{}/{}/{}\r\n", told(pings), told(infos), told(names))),
            _ => "+OK\r\n".into(),
        }
    });
    let watch = Watch::of(port);
    watch.until(is_row);
    counted[3].store(1, Ordering::Relaxed);
    watch.until(|saw| matches!(saw, Saw::Stall(_)));
    // Nothing is missing at once, and nothing is too much once the server has gone on.
    let counts = |saw: &Saw| {
        let Saw::Second { info, sent, .. } = saw else { return None };
        let info = String::from_utf8_lossy(info).into_owned();
        let told = info.lines().find_map(|line| line.strip_prefix("executed:"))?;
        let executed: Vec<u64> = told.split('/').filter_map(|n| n.parse().ok()).collect();
        let ours: Vec<u64> = ["ping", "info", "client|setname"].iter().map(|name| sent.commands[*name]).collect();
        Some((executed, ours))
    };
    let mut all = Vec::new();
    watch.until(|saw| {
        all.extend(counts(saw));
        all.last().is_some_and(|(executed, ours)| executed == ours)
    });
    assert!(all.iter().all(|(executed, ours)| executed.iter().zip(ours).all(|(e, o)| e <= o)), "{all:?}");
}

#[test]
fn an_outage_is_told_from_its_first_refused_connection_on_and_is_no_stall() {
    let (held, port) = listener();
    drop(held);
    let watch = Watch::of(port);
    watch.until(|saw| matches!(saw, Saw::Away(Some(away)) if away.lack == Lack::Answer && !away.silent));
    std::thread::sleep(Duration::from_millis(300));
    let served_ms = unix_ms();
    serve(TcpListener::bind(("127.0.0.1", port)).unwrap(), |command| match command {
        "PING" => "+PONG\r\n".into(),
        "INFO" => bulk(INFO),
        _ => "+OK\r\n".into(),
    });
    let seen = watch.until(is_row);
    let is_outage = |saw: &Saw| matches!(saw, Saw::Stall(stall) if stall.sent_ms < served_ms);
    assert!(seen.contains(&Saw::Away(None)) && !seen.iter().any(is_outage), "{seen:?}");
}

#[test]
fn a_server_that_closes_each_connection_before_it_answers_is_away() {
    let (listener, port) = listener();
    serve(listener, |command| if command == "CLIENT" { "-DENIED protected mode\r\n".into() } else { String::new() });
    Watch::of(port).until(|saw| matches!(saw, Saw::Away(Some(away)) if away.lack == Lack::Answer));
}
