//! One server on several threads of a stack: its connections move between them, and their bytes and ends are as before.

use std::io::{Read, Write};
use std::net::TcpStream;

use unslow_testkit::until;

use super::offload::{Stack, ask, carried, had, in_own_network, remote, remote_to, server, server_at, set};
use super::{Meeting, kill};

fn spread(meeting: &Meeting, threads: &str) -> Stack {
    let words = ["--threads", threads, "--spread", "always", "--status", "127.0.0.1:0"];
    Stack::start_with(meeting, &words).expect("a stack")
}

/// Clients of the first server, on that many threads.
fn clients_on(meeting: &Meeting, stack: &Stack, threads: u64) -> Vec<TcpStream> {
    let mut clients = vec![carried(meeting, stack)];
    clients.extend((1..8).map(|_| remote()));
    until_on(stack, &mut clients, threads);
    clients
}

/// Waits until the first server's connections are on that many threads; meanwhile these clients are answered.
fn until_on(stack: &Stack, clients: &mut [TcpStream], threads: u64) {
    until("the connections to be on as many threads as expected", || {
        clients.iter_mut().for_each(|client| ask(client, "PING\r\n", "+PONG\r\n"));
        stack.figure("threads", 7990) == Some(threads)
    });
}

#[test]
fn what_waits_in_the_stack_moves_with_its_connection() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = spread(&meeting, "2");
        let _server = server(&meeting, "valkey-9.1");
        let mut large = carried(&meeting, &stack);
        // Far more than the stack and the rings can hold, each way; the reply is not read yet.
        let value: Vec<u8> = (0..6_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        large.write_all(&set("large", &value)).unwrap();
        ask(&mut large, "", "+OK\r\n");
        large.write_all(b"GET large\r\n").unwrap();
        let mut others: Vec<TcpStream> = (0..7).map(|_| remote()).collect();
        until_on(&stack, &mut others, 2);
        // A helping thread gives its connections back when it gets its own server, and helps again afterwards.
        for _ in 0..3 {
            let second = server_at(&meeting, 7991, "valkey-9.1");
            until_on(&stack, &mut others, 1);
            drop(second);
            until_on(&stack, &mut others, 2);
        }
        assert!(stack.figure("moved_total", 7990) >= Some(20), "half of eight, there and back");
        let mut told = vec![0; "$6000000\r\n".len() + value.len() + 2];
        large.read_exact(&mut told).unwrap();
        assert!(told["$6000000\r\n".len()..told.len() - 2] == value, "other bytes than were written");
        ask(&mut large, "PING\r\n", "+PONG\r\n");
    });
}

#[test]
fn a_thread_helps_until_it_has_a_server_of_its_own() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = spread(&meeting, "2");
        let _first = server(&meeting, "valkey-9.1");
        let mut clients = clients_on(&meeting, &stack, 2);
        let _second = server_at(&meeting, 7991, "valkey-9.1");
        until_on(&stack, &mut clients, 1);
        // For longer than it takes a thread to look for others' work ten times.
        let moved = stack.figure("moved_total", 7990);
        std::thread::sleep(std::time::Duration::from_millis(2500));
        assert_eq!((stack.figure("threads", 7990), stack.figure("moved_total", 7990)), (Some(1), moved));
        assert_eq!(stack.figure("connections", 7990), Some(8));
        let mut other = remote_to(7991);
        ask(&mut other, "PING\r\n", "+PONG\r\n");
        assert_ne!(stack.figure("thread", 7990), stack.figure("thread", 7991));
    });
}

#[test]
fn a_server_that_is_killed_ends_its_connections_on_every_thread() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let stack = spread(&meeting, "3");
        let first = server(&meeting, "valkey-9.1");
        drop(clients_on(&meeting, &stack, 3)); // every thread has its doorbell now
        until("the connections to be over", || had(&meeting, &stack) == 0);
        let before = stack.descriptors();
        let mut clients = clients_on(&meeting, &stack, 3);
        kill(first.pid(), libc::SIGKILL);
        for client in &mut clients {
            let ended = client.read(&mut [0; 16]);
            assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
        }
        drop((first, clients));
        let _second = server(&meeting, "valkey-9.1");
        let mut clients = clients_on(&meeting, &stack, 3);
        clients.iter_mut().for_each(|client| ask(client, "PING\r\n", "+PONG\r\n"));
        drop(clients);
        until("nothing of them to be left", || had(&meeting, &stack) == 0 && stack.descriptors() <= before);
    });
}

#[test]
fn a_stack_that_was_replaced_still_counts_what_it_carries() {
    in_own_network(|| {
        let meeting = Meeting::new();
        let older = spread(&meeting, "2");
        let _server = server(&meeting, "valkey-9.1");
        let mut kept = carried(&meeting, &older);
        let mut newer = Stack::start_with(&meeting, &["--replace"]).expect("a stack");
        newer.says("the other stack serves no server any more");
        ask(&mut kept, "PING\r\n", "+PONG\r\n");
        until("the last answer to be counted", || older.figure("sent_bytes_total", 7990) >= Some(14));
        assert_eq!((older.figure("connections", 7990), older.figure("threads", 7990)), (Some(1), Some(1)));
        drop(kept);
    });
}
