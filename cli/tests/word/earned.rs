//! E15: "not your Redis" is earned. Each of these servers has a problem, answered every PING, and once got "ok Not your
//! Redis". Whether a rule names the problem is not the question here.

use std::thread::sleep;
use std::time::Duration;

use unslow_client::{Secret, Target};
use unslow_engine::{Error, Shape};
use unslow_testkit::servers::deployment;
use unslow_testkit::wait::until_ok;
use unslow_testkit::{options, standalone};

use crate::load::{Load, application, call, fill, until_info};
use crate::run::{Run, doctor, settled};

#[track_caller]
fn assert_not_earned(run: &Run) {
    assert!(!run.reports("not_your_redis"), "{run}");
    assert!(!run.json.to_string().contains("Not your Redis"), "{run}");
}

#[test]
fn writes_are_paused_most_of_the_time() {
    let server = standalone("redis-7.0");
    let writes = application(&server.target());
    let pauses = Load::start(&server.target(), 1, |c| {
        c.call(&["CLIENT", "PAUSE", "1500", "WRITE"])?;
        sleep(Duration::from_millis(1800)); // 1.5 s of pause, 0.3 s without
        Ok(())
    });
    pauses.has_done(1);
    let run = settled(&server.url(), &["--window", "4s"]);
    drop((writes, pauses));
    assert_not_earned(&run);
}

#[test]
fn the_replication_link_is_down() {
    let pair = deployment("redis-7.0", Shape::MasterReplica { replicas: 1 }, &[("requirepass", "pw")]);
    let (master, replica) = (&pair.nodes[0], &pair.nodes[1]);
    let reads = application(&master.target());
    // The replica cannot reconnect: its password is refused.
    call(replica, &["CONFIG", "SET", "masterauth", "another"]);
    call(master, &["CLIENT", "KILL", "TYPE", "replica"]);
    until_info(replica, "replication", "master_link_status", |status| status == "down");
    let run = settled(&format!("redis://:pw@{}", replica.address()), &[]);
    drop(reads);
    assert_not_earned(&run);
}

#[test]
fn most_commands_are_denied_by_acl() {
    let server = standalone("redis-7.0");
    call(&server, &["ACL", "SETUSER", "app", "on", ">pw", "~*", "-@all", "+get", "+ping"]);
    let app = Target { user: Some("app".into()), password: Some(Secret::new("pw")), ..server.target() };
    let denied = Load::start(&app, 1, |c| {
        let command = |n: u32| if n < 6 { vec!["SET", "k", "v"] } else { vec!["GET", "k"] };
        c.pipeline(&(0..10).map(command).collect::<Vec<_>>())?;
        sleep(Duration::from_millis(5)); // its pace
        Ok(())
    });
    denied.has_done(20);
    let run = settled(&server.url(), &["--window", "2s"]);
    drop(denied);
    assert_not_earned(&run);
    // Refusals by ACL are failures like others (E16), and have a finding of their own.
    assert_eq!((run.verdict(), run.reports("acl_denials")), ("causes", true), "{run}");
    assert!(run.json["findings"].to_string().contains("NOPERM"), "{run}");
}

#[test]
fn most_of_its_memory_is_fragmentation() {
    let server = standalone("redis-7.0");
    let keys = 400_000;
    fill(&server, "k", keys, 300);
    // One in sixteen stays, so that few pages become free as a whole.
    let mut c = server.connect_with(&options(2)).expect("it answers");
    for first in (0..keys).step_by(16_000) {
        let doomed = (first..first + 16_000).filter(|i| i % 16 != 0).map(|i| format!("k:{i}"));
        let command: Vec<String> = std::iter::once("DEL".to_string()).chain(doomed).collect();
        c.call(&command).expect("deleted");
    }
    until_info(&server, "memory", "mem_fragmentation_ratio", |ratio| ratio.parse::<f64>().is_ok_and(|r| r > 2.0));
    let reads = application(&server.target());
    let run = settled(&server.url(), &[]);
    drop(reads);
    assert_not_earned(&run);
}

#[test]
fn the_sentinels_lack_their_quorum() {
    // All three would have to agree, and one is dead.
    let group = deployment("valkey-9.1", Shape::Sentinel { replicas: 1, sentinels: 3, quorum: 3 }, &[]);
    for sentinel in &group.sentinels {
        call(sentinel, &["SENTINEL", "SET", "mymaster", "down-after-milliseconds", "1000"]);
    }
    group.sentinels[2].kill();
    until_ok("the Sentinels to lack their quorum", || {
        let mut c = group.sentinels[0].connect_with(&options(2))?;
        Ok::<_, Error>(c.call(&["SENTINEL", "CKQUORUM", "mymaster"]).is_err_and(|e| e.message.contains("NOQUORUM")))
    });
    let reads = application(&group.nodes[0].target());
    for url in [group.url(), format!("redis+sentinel://{}/mymaster", group.sentinels[0].address())] {
        assert_not_earned(&doctor(&url, &[]));
    }
    drop(reads);
}

#[test]
fn no_application_uses_it() {
    assert_not_earned(&doctor(&standalone("valkey-9.1").url(), &[]));
}
