//! Operations: drain, reload, pause, hand-over, the facade.

use super::*;

#[test]
fn drains_reloads_pauses_and_hands_over_without_losing_a_command() {
    let server = standalone("valkey-9.1");
    let dir = std::env::temp_dir().join(format!("unslow-gateway-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (socket, file) = (dir.join("handover"), dir.join("gateway.toml"));
    let said = Arc::new(Mutex::new(Vec::<String>::new()));
    let start = |listen: &str| {
        let text =
            format!("listen = [{listen:?}]\ntarget = {:?}\nhandover = {:?}\ndrain_ms = 60000\n", server.url(), socket);
        std::fs::write(&file, &text).unwrap();
        let config = Config::parse(&text).unwrap();
        let target = Target::parse(&config.target).unwrap();
        let (reread, said) = (reread(file.clone()), said.clone());
        let log = move |(event, fields): Log<'_>| said.lock().unwrap().push(format!("{event} {fields:?}"));
        Gateway::start(Start { config, target, options: options(3), reread: Some(reread), log: Box::new(log) }).unwrap()
    };
    let old = start("127.0.0.1:0");
    let address = old.addresses[0].clone();
    let mut stays = raw(&old);
    stays.write_all(b"MULTI\r\nSET k 1\r\n").unwrap();
    frames(&mut stays, 2);
    // Clients come and go all the time; each does one thing.
    let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let visitors: Vec<_> = (0..4)
        .map(|_| {
            let (stop, lost, address) = (stop.clone(), lost.clone(), address.clone());
            std::thread::spawn(move || {
                let target = Target::parse(&address).unwrap();
                let mut visits = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let done = Connection::open(&target, &options(2)).and_then(|mut c| c.call(&["INCR", "visits"]));
                    match done {
                        Ok(_) => visits += 1,
                        Err(e) => {
                            println!("lost: {e}");
                            lost.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
                visits
            })
        })
        .collect();
    let mut direct = server.connect_with(&options(2)).unwrap();
    let mut visits = || direct.call(&["GET", "visits"]).unwrap().integer().unwrap_or(0) as u64;
    until("visits through the first gateway", || visits() >= 20);
    let new = start(&address);
    assert_eq!(new.addresses[0], address, "the same socket");
    until("visits through the second gateway", || metric(&new, "clients_accepted_total") >= 20);
    until("all clients but the one in a transaction to leave the first", || metric(&old, "clients") == 1);
    stays.write_all(b"EXEC\r\n").unwrap();
    assert_eq!(text(&frames(&mut stays, 1)[0]), "*1\\r\\n+OK\\r\\n", "the first ends what was begun with it");
    until("the first to end", || old.ended());
    stop.store(true, Ordering::Relaxed);
    let visited: u64 = visitors.into_iter().map(|v| v.join().unwrap()).sum();
    let mut c = client(&new);
    assert_eq!(c.call(&["GET", "visits"]).unwrap().integer(), Some(visited as i64));
    assert_eq!(lost.load(Ordering::Relaxed), 0, "of {visited} visits");
    // Settings are read again; what is wrong changes nothing.
    let text_of = |c: &mut Connection| c.call(&["UNSLOW", "SHOW", "CONFIG"]).unwrap().text().unwrap();
    std::fs::write(&file, format!("listen = [{address:?}]\ntarget = {:?}\nhold_ms = 1234\n", server.url())).unwrap();
    c.call(&["UNSLOW", "RELOAD"]).unwrap();
    assert!(text_of(&mut c).contains("hold_ms: 1234"), "it is answered when it is done");
    std::fs::write(&file, "hold_ms = \"soon\"").unwrap();
    let why = c.call(&["UNSLOW", "RELOAD"]).unwrap_err().to_string();
    assert!(why.contains("near line 1") && why.contains("the old settings stay"), "{why}");
    until("the reload to be refused", || {
        said.lock().unwrap().iter().any(|line| line.starts_with("reload") && line.contains("refused"))
    });
    assert!(text_of(&mut c).contains("hold_ms: 1234"));
    // A paused gateway holds commands and loses none. This one arrives in one segment with a question to the gateway
    // itself: once that is answered the command is in the gateway, and is not counted as forwarded.
    c.call(&["UNSLOW", "PAUSE"]).unwrap();
    let mut paused = raw(&new);
    paused.write_all(b"UNSLOW SHOW TOPOLOGY\r\nINCR visits\r\n").unwrap();
    frames(&mut paused, 1);
    let address = format!(" addr={} ", paused.local_addr().unwrap());
    let clients = c.call(&["UNSLOW", "SHOW", "CLIENTS"]).unwrap();
    let client = clients.items().iter().filter_map(Value::text).find(|row| row.contains(&address)).unwrap();
    assert!(client.contains(" pending=0 tot-cmds=1 "), "{client}");
    assert_eq!(visits(), visited, "a paused command has run");
    c.call(&["UNSLOW", "RESUME"]).unwrap();
    assert_eq!(text(&frames(&mut paused, 1)[0]), format!(":{}\\r\\n", visited + 1));
    new.drain();
    until("it to end", || new.ended());
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Twenty clients, fifty commands each, one at a time; whether the server read from the gateway's shared connection no
/// more often than every ten milliseconds.
fn reads_are_rare(gateway: &Gateway, server: &Server) -> bool {
    let mut direct = server.connect_with(&options(2)).unwrap();
    let mut reads = || {
        let info = direct.call(&["INFO", "stats"]).unwrap().text().unwrap();
        let line = info.lines().find_map(|l| l.strip_prefix("total_reads_processed:")).unwrap();
        line.parse::<u64>().unwrap()
    };
    let clients: Vec<Connection> = (0..20).map(|_| client(gateway)).collect();
    let (begun, before) = (Instant::now(), reads());
    let at_work = clients.into_iter().enumerate().map(|(n, mut c)| {
        std::thread::spawn(move || {
            let key = format!("counter{n}");
            for expected in 1..=50 {
                assert_eq!(c.call(&["INCR", &key]).unwrap().integer(), Some(expected));
            }
            c.call(&["DEL", &key]).unwrap();
        })
    });
    at_work.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
    let (seen, ms) = (reads() - before, begun.elapsed().as_millis() as u64);
    // The gateway's watching connections are read as well, some times a second.
    println!("{seen} reads in {ms} ms");
    seen <= ms / 10 + 20 + ms / 50
}

#[test]
fn commands_of_many_clients_are_written_together_where_they_may_wait() {
    let server = standalone("valkey-9.1");
    assert!(reads_are_rare(&gate(&server.url(), |config| config.batch_us = Batch::Us(10_000)), &server));
    // Of a connection that is there already.
    let dir = std::env::temp_dir().join(format!("unslow-gateway-batch-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("gateway.toml");
    let text = format!("listen = [\"127.0.0.1:0\"]\ntarget = {:?}\n", server.url());
    std::fs::write(&file, &text).unwrap();
    let config = Config::parse(&text).unwrap();
    let target = Target::parse(&config.target).unwrap();
    let (reread, log) = (Some(reread(file.clone())), Box::new(|_: Log<'_>| {}));
    let gateway = Gateway::start(Start { config, target, options: options(3), reread, log }).unwrap();
    let mut operator = client(&gateway);
    operator.call(&["SET", "k", "v"]).unwrap();
    for (setting, rare) in [("10000", true), ("\"auto\"", false), ("10000", true), ("0", false)] {
        std::fs::write(&file, format!("{text}batch_us = {setting}\n")).unwrap();
        operator.call(&["UNSLOW", "RELOAD"]).unwrap();
        until(&format!("the thread to have {setting}"), || reads_are_rare(&gateway, &server) == rare);
        let shown = operator.call(&["UNSLOW", "SHOW", "CONFIG"]).unwrap().text().unwrap();
        assert!(shown.contains(&format!("batch_us: {setting},")), "{shown}");
    }
    drop(gateway);
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn many_clients_come_and_go_without_anything_growing() {
    let deployment = steady("valkey-9.1");
    let gateway = gate(&deployment.url(), |config| config.threads = 2);
    let memory = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4 / 1024
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let visit = |i: usize| {
        let mut stream = raw(&gateway);
        let how: &[u8] = match i % 5 {
            0 => b"SET k 1\r\nGET k\r\n",
            1 => b"MULTI\r\nINCR n\r\n",
            2 => b"SUBSCRIBE a\r\nPING\r\n",
            3 => b"WATCH k\r\nGET k\r\n",
            _ => b"SELECT 0\r\nHELLO 3\r\n",
        };
        stream.write_all(how).unwrap();
        frames(&mut stream, 2);
    };
    (0..2000).for_each(visit);
    let settled = |visits: u64| {
        until("all clients to have come and gone", || {
            metric(&gateway, "clients_accepted_total") == visits && metric(&gateway, "clients") == 0
        });
    };
    settled(2000);
    let (before, fds) = (memory(), descriptors());
    (0..10_000).for_each(visit);
    settled(12_000);
    let (after, fds_after) = (memory(), descriptors());
    println!("{before} -> {after} MB, {fds} -> {fds_after} descriptors");
    assert!(after <= before + 16, "{before} MB became {after} MB");
    assert!(fds_after <= fds + 10, "{fds} descriptors became {fds_after}");
}

#[test]
fn cluster_clients_see_a_cluster_of_ports_and_hear_of_moves() {
    let deployment = cluster("valkey-9.1");
    let gateway = gate(&deployment.url(), |config| config.facade = Facade::Cluster);
    let mut c = Connection::open(&target(&gateway), &options(3)).unwrap();
    let view = unslow_engine::view(&mut c).unwrap();
    assert_eq!(view.masters().count(), 3);
    assert_eq!(view.nodes.len(), 6);
    let own: Vec<String> = view.nodes.iter().map(|n| n.address.clone()).collect();
    for address in &own {
        let mut node = Connection::open(&Target::parse(address).unwrap(), &options(2)).unwrap();
        assert_eq!(node.call(&["SET", "k", "v"]).unwrap().text().as_deref(), Some("OK"), "any port takes any key");
    }
    let (mut listener, mut rest) = (raw(&gateway), Vec::new());
    listener.write_all(b"HELLO 3\r\nCLIENT MAINT_NOTIFICATIONS ON\r\n").unwrap();
    next_frame(&mut listener, &mut rest);
    assert_eq!(next_frame(&mut listener, &mut rest), "+OK\\r\\n");
    // On a busy machine any node may be suspected for a moment: what is said of other slots is passed over.
    let mut told = |kind: &str, slots: &str| {
        let (begin, end) = (format!(">3\\r\\n+{kind}\\r\\n:"), format!("+{slots}\\r\\n"));
        loop {
            let push = next_frame(&mut listener, &mut rest);
            assert!(push.starts_with(">3\\r\\n+SMIGRAT"), "{push}");
            if push.starts_with(&begin) && push.ends_with(&end) {
                return;
            }
        }
    };
    let slot = slot_of(b"k");
    let from = owner_of(&deployment, slot);
    let owner = &deployment.nodes[(from + 1) % 3];
    let owner_id = id(owner);
    move_slot(&deployment, slot, from, (from + 1) % 3, Duration::ZERO);
    told("SMIGRATED", &slot.to_string());
    until_ok("the facade to show it", || {
        let view = unslow_engine::view(&mut c)?;
        Ok::<_, Error>(view.by_id(&owner_id).is_some_and(|n| n.slots.contains(slot)))
    });
    let known = |view: &ClusterView| view.by_id(&owner_id).is_some_and(|n| n.slots.contains(slot));
    everywhere(&deployment, "every node to know of it", known);
    // A master that hangs: be patient, and then where to go.
    let view = unslow_engine::view(&mut owner.connect().unwrap()).unwrap();
    let slots = view.by_id(&owner_id).unwrap().slots.to_string().replace(' ', ",");
    owner.signal(libc::SIGSTOP);
    told("SMIGRATING", &slots);
    told("SMIGRATED", &slots);
    owner.signal(libc::SIGCONT);
    // Without the facade it is one node.
    drop(c);
    let one = gate(&deployment.url(), |_| {});
    let view = unslow_engine::view(&mut client(&one)).unwrap();
    assert_eq!((view.nodes.len(), view.nodes[0].address.clone()), (1, one.addresses[0].clone()));
    assert!(client(&one).call(&["CLIENT", "MAINT_NOTIFICATIONS", "ON"]).is_err());
}

#[test]
fn a_panic_of_the_control_thread_lets_clients_finish_and_ends_the_gateway_as_broken() {
    let server = standalone("valkey-9.1");
    let config = Config { listen: vec!["127.0.0.1:0".into()], target: server.url(), ..Config::default() };
    let target = Target::parse(&config.target).unwrap();
    // As it is where the log cannot be written: stderr is closed.
    let log = |(event, _): Log<'_>| assert_ne!(event, "reload");
    let start = Start { config, target, options: options(3), reread: None, log: Box::new(log) };
    let gateway = Gateway::start(start).unwrap();
    client(&gateway).call(&["PING"]).unwrap();
    assert!(!gateway.broken());
    gateway.reload();
    until("the workers to end", || gateway.ended());
    assert!(gateway.broken());
}

/// How often the thread of this name has gone to sleep; `None` until it has its name.
fn sleeps(name: &str) -> Option<u64> {
    let mut tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
    let task = tasks.find(|task| std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    let status = std::fs::read_to_string(task?.join("status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")?.trim().parse().ok())
}

#[test]
fn the_control_thread_wakes_up_for_events_only_and_drains_at_once() {
    let server = standalone("valkey-9.1");
    let mut gateway = gate(&server.url(), |_| {});
    until("the control thread", || sleeps("gateway-control").is_some());
    let (before, begun) = (sleeps("gateway-control").unwrap(), Instant::now());
    std::thread::sleep(Duration::from_secs(3)); // nothing happens but the watcher's news, about once a second
    let (slept, seconds) = (sleeps("gateway-control").unwrap() - before, begun.elapsed().as_secs());
    assert!(slept <= 2 * seconds + 6, "it slept {slept} times in {seconds} s, and nothing happened");
    // Nothing else would wake it before the news.
    let handle = gateway.handle();
    handle.drain();
    gateway.wait();
    assert!(gateway.ended() && !gateway.broken());
    assert!(TcpStream::connect(&gateway.addresses[0]).is_err(), "it listens no longer");
}
