//! Faults that clients make.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use unslow_client::Connection;

use super::{Active, Flags, connect, connect_as, fill, tag, with, words};
use crate::Deployment;
use crate::server::Error;

/// As Lettuce before 6.x does by default: a new named connection to every node, CLUSTER NODES and INFO, for each client.
pub fn topology_storm(deployment: &mut Deployment) -> Result<Active, Error> {
    // Ghosts without an address make the answer as long as that of a big cluster, and cost nothing else.
    let node = &mut deployment.nodes[0];
    node.kill();
    let path = node.dir().join("nodes.conf");
    let io = |e: std::io::Error| Error::new(format!("nodes.conf: {e}"));
    let text = std::fs::read_to_string(&path).map_err(io)?;
    let master =
        text.lines().find(|l| l.contains("myself")).and_then(|l| l.split(' ').next()).unwrap_or("-").to_string();
    let ghosts: String = (0..300)
        .map(|i| format!("{:040x} :0@0,,tls-port=0 slave,noaddr {master} 0 0 0 disconnected\n", 0xdead_0000u64 + i))
        .collect();
    let ghosts = if text.contains("tls-port") || text.contains("shard-id") {
        ghosts
    } else {
        ghosts.replace(",,tls-port=0", "")
    };
    std::fs::write(&path, text.replacen("vars ", &format!("{ghosts}vars "), 1)).map_err(io)?;
    node.restart()?;
    let target = node.target();
    let mut c = node.connect()?;
    crate::cluster::wait_for("cluster_state:ok after the restart", Duration::from_secs(20), || {
        Ok(c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:ok"))
    })?;
    let mut active = Active::new("each client asks one node, every 60 s, over the connection it has");
    for _ in 0..2 {
        let target = target.clone();
        active = active.work(move |flags| {
            if flags.fixed() {
                flags.pause(Duration::from_secs(60));
                return;
            }
            // Ten clients ask at once and leave together, so that CLIENT LIST shows them at any time.
            let mut clients: Vec<Connection> =
                (0..10).filter_map(|_| connect_as(&target, "lettuce#ClusterTopologyRefresh").ok()).collect();
            for client in &mut clients {
                let _ = client.call(&["CLUSTER", "NODES"]);
                let _ = client.call(&["INFO"]);
            }
            for client in &mut clients {
                let _ = client.call(&["CLUSTER", "NODES"]);
            }
            flags.pause(Duration::from_millis(5));
        });
    }
    Ok(active)
}

pub fn monitoring_storm(deployment: &mut Deployment) -> Result<Active, Error> {
    let target = deployment.nodes[0].target();
    let idle: Vec<Connection> = (0..200).map(|_| connect(&target)).collect::<Result<_, _>>()?;
    let mut active = Active::new("one scrape every 15 s").on_end(move || drop(idle));
    for _ in 0..2 {
        let (target, mut slot) = (target.clone(), None);
        active = active.work(move |flags| {
            with(&mut slot, &target, flags, |c| {
                c.call(&["INFO", "ALL"])?;
                c.call(&["CLIENT", "LIST"]).map(drop)
            });
            flags.pause(Duration::from_millis(1));
        });
    }
    Ok(active)
}

pub fn no_pipelining(deployment: &mut Deployment) -> Result<Active, Error> {
    let (target, mut slot, mut i) = (deployment.nodes[0].target(), None, 0u32);
    Ok(Active::new("batches of 20 in one write").work(move |flags| {
        i = (i + 1) % 1000;
        with(&mut slot, &target, flags, |c| c.call(&["SET", &format!("k:{i}"), "v"]).map(drop));
    }))
}

/// Connections that always have one command in flight: write to all, then read from all.
fn one_in_flight(address: &str, connections: usize, command: &[u8], flags: &Flags, reply_ends: usize) {
    let streams: Vec<TcpStream> = (0..connections)
        .filter_map(|_| {
            let s = TcpStream::connect(address).ok()?;
            s.set_nodelay(true).ok()?;
            s.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
            Some(s)
        })
        .collect();
    let mut buffer = [0u8; 64 * 1024];
    while !flags.stopped() && !streams.is_empty() {
        for mut stream in &streams {
            if stream.write_all(command).is_err() {
                return;
            }
        }
        for mut stream in &streams {
            let mut got = 0;
            while got < reply_ends {
                match stream.read(&mut buffer) {
                    Ok(0) | Err(_) => return,
                    Ok(n) => got += n,
                }
            }
        }
    }
}

pub fn kernel_bound(deployment: &mut Deployment) -> Result<Active, Error> {
    let address = deployment.nodes[0].address();
    deployment.nodes[0].connect()?.call(&["SET", "k", &"x".repeat(64)])?;
    // "$64\r\n" + 64 + "\r\n"
    Ok(Active::new("pipelines of 16")
        .work(move |flags| one_in_flight(&address, 50, b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n", flags, 71)))
}

pub fn main_thread_saturated(deployment: &mut Deployment) -> Result<Active, Error> {
    let address = deployment.nodes[0].address();
    let mut c = deployment.nodes[0].connect()?;
    fill(&mut c, 500, |i| words(&["RPUSH", "list", &i.to_string()]))?;
    let one = b"*4\r\n$6\r\nLRANGE\r\n$4\r\nlist\r\n$1\r\n0\r\n$3\r\n399\r\n";
    // 400 elements: "*400\r\n", 10 of one digit, 90 of two, 300 of three, each with "$n\r\n" and "\r\n".
    let reply = 6 + 10 * 7 + 90 * 8 + 300 * 9;
    let batch = one.repeat(16);
    Ok(Active::new("fewer elements a page").work(move |flags| one_in_flight(&address, 4, &batch, flags, reply * 16)))
}

pub fn connection_churn(deployment: &mut Deployment) -> Result<Active, Error> {
    let target = deployment.nodes[0].target();
    let tag = tag(deployment);
    let mut active = Active::new("one standing connection per thread");
    for _ in 0..2 {
        let (target, tag, mut slot) = (target.clone(), tag.clone(), None);
        active = active.work(move |flags| {
            if !flags.fixed() {
                slot = None;
            }
            with(&mut slot, &target, flags, |c| c.call(&["SET", &tag, "v"]).map(drop));
            flags.pause(Duration::from_micros(if flags.fixed() { 500 } else { 50 }));
        });
    }
    Ok(active)
}

pub fn too_many_connections(deployment: &mut Deployment) -> Result<Active, Error> {
    let target = deployment.nodes[0].target();
    let idle: Vec<Connection> = (0..85).map(|_| connect(&target)).collect::<Result<_, _>>()?;
    Ok(Active::new("smaller pools").on_end(move || drop(idle)).work(move |flags| {
        let burst: Vec<Option<Connection>> = (0..30)
            .map(|_| {
                let mut c = connect(&target).ok()?;
                c.call(&["PING"]).ok().map(|_| c)
            })
            .collect();
        drop(burst);
        flags.pause(Duration::from_millis(150));
    }))
}

pub fn keys_command(deployment: &mut Deployment) -> Result<Active, Error> {
    let tag = tag(deployment);
    let node = &deployment.nodes[0];
    let mut c = connect(&node.target())?;
    fill(&mut c, 300_000, |i| vec!["SET".into(), format!("session:{tag}:{i}"), "x".into()])?;
    let (target, mut slot, mut cursor) = (node.target(), None, "0".to_string());
    Ok(Active::new("SCAN with COUNT 100 in place of KEYS").work(move |flags| {
        let fixed = flags.fixed();
        let cursor = &mut cursor;
        with(&mut slot, &target, flags, |c| {
            if fixed {
                let page = c.call(&["SCAN", cursor, "MATCH", "session:*:1234*", "COUNT", "100"])?;
                *cursor = page.items().first().and_then(|v| v.text()).unwrap_or_else(|| "0".into());
                Ok(())
            } else {
                c.call(&["KEYS", "session:*:1234*"]).map(drop)
            }
        });
        flags.pause(Duration::from_millis(if fixed { 2 } else { 200 }));
    }))
}

pub fn monitor_attached(deployment: &mut Deployment) -> Result<Active, Error> {
    let (address, target) = (deployment.nodes[0].address(), deployment.nodes[0].target());
    let mut slot = None;
    Ok(Active::new("that connection is closed")
        .work(move |flags| {
            let Ok(mut stream) = TcpStream::connect(&address) else { return };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(b"MONITOR\r\n");
            let mut buffer = [0u8; 64 * 1024];
            while !flags.stopped() {
                if let Ok(0) = stream.read(&mut buffer) {
                    return;
                }
            }
        })
        .work(move |flags| {
            with(&mut slot, &target, flags, |c| c.pipeline(&vec![words(&["SET", "k", "v"]); 20]).map(drop));
            flags.pause(Duration::from_millis(2));
        }))
}

pub fn big_key(deployment: &mut Deployment) -> Result<Active, Error> {
    let key = format!("profile:{}", tag(deployment));
    let node = &deployment.nodes[0];
    let mut c = connect(&node.target())?;
    fill(&mut c, 2000, |i| {
        let mut command = vec!["HSET".to_string(), key.clone()];
        for j in 0..100 {
            command.extend([format!("field:{}", i * 100 + j), "value".into()]);
        }
        command
    })?;
    let (target, mut slot, mut cursor) = (node.target(), None, "0".to_string());
    Ok(Active::new("HSCAN in pages of 100 in place of HGETALL").work(move |flags| {
        let (fixed, cursor) = (flags.fixed(), &mut cursor);
        with(&mut slot, &target, flags, |c| {
            if fixed {
                let page = c.call(&["HSCAN", &key, cursor, "COUNT", "100"])?;
                *cursor = page.items().first().and_then(|v| v.text()).unwrap_or_else(|| "0".into());
                Ok(())
            } else {
                c.call(&["HGETALL", &key]).map(drop)
            }
        });
        flags.pause(Duration::from_millis(if fixed { 2 } else { 150 }));
    }))
}

pub fn long_script(deployment: &mut Deployment) -> Result<Active, Error> {
    let tag = tag(deployment);
    let (target, mut slot) = (deployment.nodes[0].target(), None);
    Ok(Active::new("a tenth of the loop per call").work(move |flags| {
        let script =
            "local n = 0; for i = 1, tonumber(ARGV[1]) do n = n + i % 7 end; redis.call('SET', KEYS[1], n); return n";
        let fixed = flags.fixed();
        let loops = if fixed { "20000" } else { "4000000" };
        with(&mut slot, &target, flags, |c| c.call(&["EVAL", script, "1", &tag, loops]).map(drop));
        flags.pause(Duration::from_millis(if fixed { 5 } else { 120 }));
    }))
}

pub fn slow_command(deployment: &mut Deployment) -> Result<Active, Error> {
    let node = &deployment.nodes[0];
    let mut c = connect(&node.target())?;
    fill(&mut c, 50 * 10, |i| {
        let mut command = vec!["SADD".to_string(), format!("set:{}", i / 10)];
        command.extend((0..100).map(|j| format!("member:{}", i * 100 + j)));
        command
    })?;
    let mut command = vec!["SUNION".to_string()];
    command.extend((0..50).map(|i| format!("set:{i}")));
    let (target, mut slot) = (node.target(), None);
    Ok(Active::new("the union is stored once").work(move |flags| {
        with(&mut slot, &target, flags, |c| c.call(&command).map(drop));
        flags.pause(Duration::from_millis(50));
    }))
}

pub fn error_flood(deployment: &mut Deployment) -> Result<Active, Error> {
    let tag = tag(deployment);
    let (target, mut slot) = (deployment.nodes[0].target(), None);
    connect(&target)?.call(&["SET", &tag, "a string"])?;
    Ok(Active::new("the string is read as a string").work(move |flags| {
        let command = if flags.fixed() { ["GET", &tag] } else { ["LLEN", &tag] };
        with(&mut slot, &target, flags, |c| c.call(&command).map(drop));
        flags.pause(Duration::from_millis(1));
    }))
}

pub fn redirect_storm(deployment: &mut Deployment) -> Result<Active, Error> {
    let (target, mut slot, mut i) = (deployment.nodes[0].target(), None, 0u32);
    Ok(Active::new("the client's cluster mode").work(move |flags| {
        i += 1;
        with(&mut slot, &target, flags, |c| c.call(&["GET", &format!("k:{i}")]).map(drop));
        flags.pause(Duration::from_millis(1));
    }))
}

pub fn slow_subscriber(deployment: &mut Deployment) -> Result<Active, Error> {
    let address = deployment.nodes[0].address();
    let mut subscriber = TcpStream::connect(&address).map_err(|e| Error::new(e.to_string()))?;
    subscriber.write_all(b"SUBSCRIBE news\r\n").map_err(|e| Error::new(e.to_string()))?;
    let mut publisher = deployment.nodes[0].connect()?;
    let message = "x".repeat(10_000);
    // Past what the two sockets' buffers swallow, and 8 MB more; still below the hard limit of 32 MB.
    let mut waiting = 0;
    while waiting < 12_000_000 {
        publisher.pipeline(&vec![words(&["PUBLISH", "news", &message]); 100])?;
        let list = publisher.call(&["CLIENT", "LIST"])?.text().unwrap_or_default();
        waiting =
            list.split(" omem=").skip(1).filter_map(|t| t.split(' ').next()?.parse::<u64>().ok()).max().unwrap_or(0);
    }
    Ok(Active::new("it reads").on_end(move || drop(subscriber)))
}

pub fn not_your_redis(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut c = deployment.nodes[0].connect()?;
    c.call(&["SET", "page", &"x".repeat(500_000)])?;
    let mut lazy = TcpStream::connect(deployment.nodes[0].address()).map_err(|e| Error::new(e.to_string()))?;
    lazy.write_all(&b"GET page\r\n".repeat(40)).map_err(|e| Error::new(e.to_string()))?;
    Ok(Active::new("it reads").on_end(move || drop(lazy)))
}
