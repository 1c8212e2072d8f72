//! Common uses of Redis, from its documentation and its client libraries.

use unslow_client::Value;
use unslow_testkit::slots::owner_of;
use unslow_topology::slot_of;

use crate::Healthy;
use crate::healthy_together::six;
use crate::stage::{Client, Made, Stage, fill, ms, open, words};

pub const CASES: &[Healthy] = &[
    Healthy::at_work("rate_limiter", "INCR on a key per caller and second, 500 calls a second", rate_limiter),
    Healthy::at_work("sessions", "hashes of twenty fields: HGETALL, HSET, EXPIRE", sessions),
    Healthy::at_work("delayed_jobs", "three workers ask ZRANGEBYSCORE for due jobs, ten times a second", delayed_jobs),
    Healthy::at_work("locks_held_briefly", "SET NX PX, and a script that releases the lock", locks_held_briefly),
    Healthy::at_work("places_nearby", "GEORADIUS within 1 km, 1,000 places", places_nearby),
    Healthy::at_work("visitors", "one day's visitors: PFADD, PFCOUNT, SETBIT, BITCOUNT", visitors),
    Healthy::at_work("feeds", "LPUSH, LTRIM and LRANGE of the last fifty entries", feeds),
    Healthy::at_work("gets_of_twenty", "MGET of twenty keys, by four clients, 400 a second", gets_of_twenty),
    Healthy::at_work(
        "scores_set_aside",
        "RENAME of a sorted set once a second, UNLINK of the one before",
        scores_set_aside,
    ),
    Healthy::at_work("thirty_named_connections", "thirty named connections used in turn", thirty_named_connections),
    Healthy::at_work("tags_by_user", "a cluster, hash tags by user, MGET within one of them", tags_by_user),
];

fn rate_limiter(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut c = Client::of(&server);
    stage.work(move |on| {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let keys: Vec<String> = (0..10).map(|caller| format!("limit:{caller}:{now}")).collect();
        let counts = c.pipeline(&keys.iter().map(|key| words(&["INCR", key])).collect::<Vec<_>>());
        let is_first = |count: &Option<Value>| count.as_ref().and_then(|n| n.integer()) == Some(1);
        for (key, _) in keys.iter().zip(counts.iter().flatten()).filter(|(_, count)| is_first(count)) {
            let _ = c.call(&["EXPIRE", key, "10"]);
        }
        on.pause(ms(20));
    });
    Ok(())
}

fn sessions(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 1000, |i| {
        let mut command = words(&["HSET", &format!("session:{i}")]);
        command.extend((0..20).flat_map(|field| [format!("field:{field}"), "x".repeat(40)]));
        command
    });
    stage.rounds(&server, ms(20), |round| {
        let keys = (round * 5..round * 5 + 5).map(|n| format!("session:{}", n % 1000));
        let of = |key: String| {
            [&["HGETALL", &key][..], &["HSET", &key, "seen", "now"], &["EXPIRE", &key, "1800"]].map(words)
        };
        keys.flat_map(of).collect()
    });
    Ok(())
}

fn delayed_jobs(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    for _ in 0..3 {
        let mut c = Client::of(&server);
        stage.work(move |on| {
            let due = c.call(&["ZRANGEBYSCORE", "delayed", "-inf", "1000", "LIMIT", "0", "20"]);
            let mut done = words(&["ZREM", "delayed"]);
            done.extend(due.iter().flat_map(|due| due.items().iter().filter_map(|job| job.text())));
            if done.len() > 2 {
                let _ = c.call(&done);
            }
            on.pause(ms(100));
        });
    }
    stage.rounds(&server, ms(5), |i| vec![words(&["ZADD", "delayed", &(i % 1000).to_string(), &format!("job:{i}")])]);
    Ok(())
}

fn locks_held_briefly(stage: &mut Stage) -> Made {
    const RELEASE: &str =
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) else return 0 end";
    let server = stage.server(&[]);
    let sha = open(&server).call(&["SCRIPT", "LOAD", RELEASE]).expect("it compiles").text().expect("a digest");
    for holder in 0..8 {
        let (mut c, sha, mut i) = (Client::of(&server), sha.clone(), holder * 25);
        stage.work(move |on| {
            i += 1;
            let (key, token) = (format!("lock:{}", i % 200), format!("{holder}:{i}"));
            if c.call(&["SET", &key, &token, "NX", "PX", "5000"]).is_some_and(|reply| reply.text().is_some()) {
                on.pause(ms(5)); // what it guards
                let _ = c.call(&["EVALSHA", &sha, "1", &key, &token]);
            }
            on.pause(ms(10));
        });
    }
    Ok(())
}

fn places_nearby(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let at = |i: usize| [(i % 40) as f64 * 0.01, 50.0 + (i / 40) as f64 * 0.01].map(|degrees| degrees.to_string());
    fill(&server, 1000, |i| {
        let [longitude, latitude] = at(i);
        words(&["GEOADD", "places", &longitude, &latitude, &format!("place:{i}")])
    });
    stage.rounds(&server, ms(10), move |i| {
        let [longitude, latitude] = at(i * 7 % 1000);
        vec![words(&["GEORADIUS", "places", &longitude, &latitude, "1", "km"])]
    });
    Ok(())
}

fn visitors(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.rounds(&server, ms(10), |i| {
        let number = (i * 31 % 20_000).to_string();
        vec![
            words(&["PFADD", "day", &number]),
            words(&["SETBIT", "day:bits", &number, "1"]),
            words(&["PFCOUNT", "day"]),
            words(&["BITCOUNT", "day:bits"]),
        ]
    });
    Ok(())
}

fn feeds(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.rounds(&server, ms(10), |i| {
        let key = format!("feed:{}", i % 200);
        [&["LPUSH", &key, "it has happened"][..], &["LTRIM", &key, "0", "999"], &["LRANGE", &key, "0", "49"]]
            .map(words)
            .to_vec()
    });
    Ok(())
}

fn gets_of_twenty(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    fill(&server, 5000, |i| words(&["SET", &format!("item:{i}"), &"x".repeat(100)]));
    for _ in 0..4 {
        stage.rounds(&server, ms(10), |round| {
            let mut command = words(&["MGET"]);
            command.extend((round * 20..round * 20 + 20).map(|n| format!("item:{}", n * 17 % 5000)));
            vec![command]
        });
    }
    Ok(())
}

fn scores_set_aside(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    stage.rounds(&server, ms(10), |i| {
        let mut commands = vec![
            words(&["ZADD", "scores", &i.to_string(), &format!("player:{}", i % 500)]),
            words(&["ZCARD", "scores"]),
        ];
        if i % 100 == 99 {
            commands.push(words(&["UNLINK", "scores:before"]));
            commands.push(words(&["RENAME", "scores", "scores:before"]));
        }
        commands
    });
    Ok(())
}

fn thirty_named_connections(stage: &mut Stage) -> Made {
    let server = stage.server(&[]);
    let mut pool: Vec<Client> = (0..30).map(|_| Client::of(&server)).collect();
    for (i, c) in pool.iter_mut().enumerate() {
        let _ = c.call(&["CLIENT", "SETNAME", &format!("shop-{i}")]);
    }
    let (mut turn, batch) = (0, vec![words(&["GET", "{t2}"]), words(&["SET", "{t2}", "v"])]);
    stage.work(move |on| {
        turn += 1;
        let at = turn % pool.len();
        let _ = pool[at].pipeline(&batch);
        on.pause(ms(3));
    });
    Ok(())
}

fn tags_by_user(stage: &mut Stage) -> Made {
    let cluster = six(stage);
    let users: Vec<String> = (0..60).map(|i| format!("user:{i}")).collect();
    for master in 0..cluster.masters {
        let is_mine = |user: &&String| owner_of(&cluster, slot_of(user.as_bytes())) == master;
        let mine: Vec<String> = users.iter().filter(is_mine).cloned().collect();
        stage.rounds(&cluster.nodes[master], ms(10), move |i| {
            let key = |part: &str| format!("{{{}}}:{part}", mine[i % mine.len()]);
            let [name, mail, plan] = ["name", "mail", "plan"].map(key);
            vec![words(&["MSET", &name, "x", &mail, "y", &plan, "z"]), words(&["MGET", &name, &mail, &plan])]
        });
    }
    Ok(())
}
