//! Faults of replication: links that are refused, replicas that fall behind, are written to or leave, votes that are
//! not to be had.

use std::sync::Arc;
use std::time::Duration;

use unslow_client::ErrorKind;
use unslow_engine::{Error, Server, info, wait_for};

use super::at::{beside, id_of};
use super::deployment::answering;
use super::process::turn;
use super::server::writes;
use super::{Active, At, fill, sweep, with, words};
use crate::shim::Knob;
use crate::wire::{Change, Conditions};

/// How long servers may take to see what was done to them.
const SEEN: Duration = Duration::from_secs(60);

/// A master and a server that follows it, without cluster mode.
fn pair(at: &At<'_>) -> Result<(Arc<Server>, Arc<Server>), Error> {
    let master = at.node()?;
    let other = at.lab.deployment.nodes.iter().find(|n| !Arc::ptr_eq(n, &master)).cloned();
    other.filter(|_| at.lab.deployment.masters == 1).map(|replica| (master, replica)).ok_or_else(|| {
        Error::new(
            "a master with a replica, without cluster mode, is needed: kind = \"master-replica\" or \"sentinel\"",
        )
    })
}

/// Whether the replica's own word of its link is this.
fn link_is(replica: &Server, status: &str) -> Result<bool, Error> {
    Ok(info(&mut beside(replica)?, "replication")?.get("master_link_status") == Some(status))
}

fn wait_for_link(replica: &Server) -> Result<(), Error> {
    wait_for("the replica's link", SEEN, || link_is(replica, "up"))
}

/// Makes the server follow that master; retried while it loads.
fn follow(server: &Server, master: &Server) -> Result<(), Error> {
    replicaof(server, &master.ip, &master.port.to_string())
}

/// Makes the server a master; retried while it loads.
fn promote(server: &Server) -> Result<(), Error> {
    replicaof(server, "NO", "ONE")
}

fn replicaof(server: &Server, host: &str, port: &str) -> Result<(), Error> {
    wait_for(&format!("{} to finish loading", server.name()), SEEN, || {
        match beside(server)?.call(&["REPLICAOF", host, port]) {
            Ok(_) => Ok(true),
            Err(e) if e.kind == ErrorKind::Loading => Ok(false),
            Err(e) => Err(e.into()),
        }
    })
}

/// Makes the replica follow its master again, whatever became of it, and waits for its data.
fn rejoin(replica: &Server, master: &Server) -> Result<(), Error> {
    follow(replica, master)?;
    wait_for_link(replica)
}

/// Ends the links of this master's replicas, as a break of the network does.
fn cut_links(master: &Server) -> Result<(), Error> {
    beside(master)?.call(&["CLIENT", "KILL", "TYPE", "slave"])?;
    Ok(())
}

/// A replica keeps an old password for its master, which shows at the next break of its link.
pub fn replica_link_down(at: &At<'_>) -> Result<Active, Error> {
    let master = at.node()?;
    let replica = at.replica_of(&master)?;
    let now = beside(&replica)?.call(&["CONFIG", "GET", "masterauth"])?;
    let before = now.get("masterauth").and_then(|v| v.text()).unwrap_or_default();
    let mut active = at.active("the password that its master takes");
    at.claim(&mut active, &replica, "masterauth")?;
    let active = active.undo_with({
        let replica = replica.clone();
        move || {
            beside(&replica)?.call(&["CONFIG", "SET", "masterauth", &before])?;
            wait_for_link(&replica)
        }
    });
    beside(&replica)?.call(&["CONFIG", "SET", "masterauth", "forgotten"])?;
    cut_links(&master)?;
    wait_for("the replica to have lost its master", SEEN, || link_is(&replica, "down"))?;
    Ok(active)
}

/// The path to the replica carries less than is written.
pub fn replica_lag(at: &At<'_>) -> Result<Active, Error> {
    const FAR_BYTES: f64 = 20e6;
    let (master, replica) = pair(at)?;
    let wire = at.lab.wire()?.clone();
    let add = Conditions { rate_bits_per_s: Some(2_000_000), ..Conditions::default() };
    let (from, to) = (vec![at.lab.host_of(&master)], vec![at.lab.host_of(&replica)]);
    let id = wire.change(Change { from, to, both_ways: false, add });
    let active = at.active("a wider path").on_end(move || wire.undo(id));
    let active = writes(active, at, 1000, 2, 1000)?;
    let mut c = beside(&master)?;
    wait_for("the replica to be far behind", SEEN, || {
        let now = info(&mut c, "replication")?;
        let written = now.number("master_repl_offset").unwrap_or(0.0);
        Ok(now.replicas().iter().any(|r| r.4 > 0 && written - r.4 as f64 >= FAR_BYTES))
    })?;
    Ok(active)
}

/// A copy takes longer than the replica's buffer lasts, so that it is cut off at its end and begins again.
///
/// Nothing of it is a race: the replica has another history, so that no backlog will do; what is copied does not shrink
/// when it is compressed, and takes half a minute on this path, in which even a busy machine writes 1 MB.
pub fn replica_buffer_kill(at: &At<'_>) -> Result<Active, Error> {
    let (master, replica) = pair(at)?;
    let wire = at.lab.wire()?.clone();
    let mut c = beside(&master)?;
    // Undone last, when there is little left to copy.
    let active = at.active("a larger limit").undo_with({
        let (master, replica) = (master.clone(), replica.clone());
        move || rejoin(&replica, &master)
    });
    let active = sweep(active, &master, "page:*".into());
    fill(&mut c, 6_000, |i| words(&["SET", &format!("page:{i}"), &noise(i, 10_000)]))?;
    let add = Conditions { rate_bits_per_s: Some(16_000_000), ..Conditions::default() };
    let (from, to) = (vec![at.lab.host_of(&master)], vec![at.lab.host_of(&replica)]);
    let id = wire.change(Change { from, to, both_ways: false, add });
    let active = writes(active.on_end(move || wire.undo(id)), at, 10_000, 2, 2000)?;
    let mut syncs = || -> Result<f64, Error> { Ok(info(&mut c, "stats")?.number("sync_full").unwrap_or(0.0)) };
    let before = syncs()?;
    follow_with_new_history(&replica, &master)?;
    wait_for("a second full copy", SEEN, || Ok(syncs()? >= before + 2.0))?;
    Ok(active)
}

/// Makes it follow this master with a different history, so that nothing but a full copy will do.
fn follow_with_new_history(replica: &Server, master: &Server) -> Result<(), Error> {
    promote(replica)?;
    beside(replica)?.call(&["SET", "own", "history"])?;
    follow(replica, master)
}

/// The replica loses its data and its history over and over, as a container without a volume does at each restart.
pub fn full_resync_loop(at: &At<'_>) -> Result<Active, Error> {
    let (master, replica) = pair(at)?;
    let (target, mut slot) = (replica.target(), None);
    let (ip, port) = (master.ip.clone(), master.port.to_string());
    let active = at.active("the replica keeps its data over a restart").undo_with({
        let master = master.clone();
        move || rejoin(&replica, &master)
    });
    let active = sweep(active, &master, "page:*".into());
    fill(&mut beside(&master)?, 5_000, |i| words(&["SET", &format!("page:{i}"), &"x".repeat(1000)]))?;
    Ok(active.work(move |flags| {
        with(&mut slot, &target, flags, |c| {
            c.call(&["REPLICAOF", "NO", "ONE"])?;
            c.call(&["FLUSHALL"])?;
            c.call(&["SET", "own", "history"])?;
            c.call(&["REPLICAOF", &ip, &port]).map(drop)
        });
        flags.pause(Duration::from_millis(800));
    }))
}

/// The replicas of a master without cluster mode.
fn followers(at: &At<'_>, master: &Arc<Server>) -> Vec<Arc<Server>> {
    let all = at.lab.deployment.nodes.iter();
    all.filter(|n| at.lab.deployment.masters == 1 && !Arc::ptr_eq(n, master)).cloned().collect()
}

/// Letters and digits that do not shrink when a copy is compressed; others for each number.
fn noise(number: usize, bytes: usize) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut state = number as u64 + 1;
    (0..bytes)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(LETTERS[(state >> 58) as usize])
        })
        .collect()
}

/// Both replicas come back with another history at the same time, over paths on which a copy takes minutes.
pub fn resync_storm(at: &At<'_>) -> Result<Active, Error> {
    let master = at.node()?;
    let replicas = followers(at, &master);
    if replicas.len() < 2 {
        return Err(Error::new("a master with two replicas, without cluster mode, is needed: replicas = 2"));
    }
    let wire = at.lab.wire()?.clone();
    let mut c = beside(&master)?;
    // Undone last, when there is little left to copy.
    let active = at.active("one replica after the other").undo_with({
        let (master, replicas) = (master.clone(), replicas.clone());
        move || replicas.iter().try_for_each(|replica| rejoin(replica, &master))
    });
    let active = sweep(active, &master, "page:*".into());
    fill(&mut c, 4_000, |i| words(&["SET", &format!("page:{i}"), &noise(i, 10_000)]))?;
    let add = Conditions { rate_bits_per_s: Some(2_000_000), ..Conditions::default() };
    let (from, to) = (vec![at.lab.host_of(&master)], replicas.iter().map(|r| at.lab.host_of(r)).collect());
    let id = wire.change(Change { from, to, both_ways: false, add });
    let active = active.on_end(move || wire.undo(id));
    for replica in &replicas {
        follow_with_new_history(replica, &master)?;
    }
    wait_for("both replicas to be copied", SEEN, || {
        let rows = info(&mut c, "replication")?.replicas();
        Ok(rows.iter().filter(|row| row.2 != "online").count() >= 2)
    })?;
    Ok(active)
}

/// In the middle of an upgrade the newer replica takes over, and the older server must follow it.
pub fn version_mix(at: &At<'_>) -> Result<Active, Error> {
    let (old, new) = pair(at)?;
    if old.engine().version == new.engine().version {
        return Err(Error::new(
            "an older master with a newer replica is needed: server = \"redis-7.0\" under [[host]] of the master",
        ));
    }
    let active = at.active("the older server is upgraded").undo_with({
        let (old, new) = (old.clone(), new.clone());
        move || {
            promote(&old)?;
            rejoin(&new, &old)
        }
    });
    promote(&new)?;
    // What it still took as a master is not in the other's history: a full copy it must be.
    beside(&old)?.call(&["SET", "own", "history"])?;
    follow(&old, &new)?;
    wait_for("a second full copy that fails", SEEN, || {
        let copies = info(&mut beside(&new)?, "stats")?.number("sync_full").unwrap_or(0.0);
        Ok(copies >= 2.0 && link_is(&old, "down")?)
    })?;
    Ok(active)
}

/// The clock of the replica's machine is half a minute ahead.
pub fn clock_skew(at: &At<'_>) -> Result<Active, Error> {
    const AHEAD_US: i64 = 30_000_000;
    let (_, replica) = pair(at)?;
    turn(at, at.active("one time service for all machines"), &replica, Knob::ClockUs, AHEAD_US)
}

/// A job keeps its results on the replica, which takes writes for it.
pub fn writable_replica(at: &At<'_>) -> Result<Active, Error> {
    const KEYS: u64 = 100;
    let (_, replica) = pair(at)?;
    let key = |i: u64| format!("job:{}", i % KEYS);
    let mut active = at.active("the job writes to the master");
    at.claim(&mut active, &replica, "replica-read-only")?;
    let set = {
        let replica = replica.clone();
        move |to: &str| -> Result<(), Error> {
            beside(&replica)?.call(&["CONFIG", "SET", "replica-read-only", to])?;
            Ok(())
        }
    };
    set("no")?;
    let active = active.undo_with(move || set("yes")).undo_with({
        let replica = replica.clone();
        move || {
            let command: Vec<String> = std::iter::once("DEL".to_string()).chain((0..KEYS).map(key)).collect();
            beside(&replica)?.call(&command)?;
            Ok(())
        }
    });
    let (target, mut slot, mut i) = (replica.target(), None, 0u64);
    Ok(active.work(move |flags| {
        i += 1;
        let command = words(&["SET", &key(i), "result"]);
        with(&mut slot, &target, flags, |c| c.call(&command).map(drop));
        flags.pause(Duration::from_millis(2));
    }))
}

/// The only replica leaves, and its master needs one to write.
pub fn min_replicas_refusing(at: &At<'_>) -> Result<Active, Error> {
    let (master, replica) = pair(at)?;
    let good = |master: &Server| -> Result<bool, Error> {
        Ok(info(&mut beside(master)?, "replication")?.number("min_slaves_good_slaves") > Some(0.0))
    };
    // Undone first: what was written can only be swept while there is a replica.
    let active = writes(at.active("the replica comes back"), at, 100, 1, 1000)?.undo_with({
        let (master, replica) = (master.clone(), replica.clone());
        move || {
            rejoin(&replica, &master)?;
            wait_for("a replica that keeps up", SEEN, || good(&master))
        }
    });
    promote(&replica)?;
    wait_for("the master to miss its replica", SEEN, || Ok(!good(&master)?))?;
    Ok(active)
}

/// The only replica of the first master is one for backups, which must not take over.
pub fn no_failover_possible(at: &At<'_>) -> Result<Active, Error> {
    let master = at.node()?;
    let replica = at.replica_of(&master)?;
    let (nodes, id) = (at.lab.deployment.nodes.clone(), id_of(&replica)?);
    let mut active = at.active("it may take over");
    at.claim(&mut active, &replica, "cluster-replica-no-failover")?;
    let set = move |to: &str| -> Result<(), Error> {
        beside(&replica)?.call(&["CONFIG", "SET", "cluster-replica-no-failover", to])?;
        wait_for("every node to see what the replica may do", SEEN, || {
            let barred = |view: &unslow_topology::ClusterView| view.by_id(&id).is_some_and(|n| n.is("nofailover"));
            Ok(nodes.iter().filter_map(answering).all(|(_, view)| barred(&view) == (to == "yes")))
        })
    };
    let active = active.undo_with({
        let set = set.clone();
        move || set("no")
    });
    set("yes")?;
    Ok(active)
}

/// All masters but the first are killed at once.
pub fn no_majority(at: &At<'_>) -> Result<Active, Error> {
    let first = at.node()?;
    let lost: Vec<Arc<Server>> = at.masters()?.into_iter().filter(|m| !Arc::ptr_eq(m, &first)).collect();
    if lost.len() < 2 {
        return Err(Error::new("a cluster with three masters is needed"));
    }
    let mut active = at.active("they start again");
    for node in &lost {
        at.claim(&mut active, node, "process")?;
    }
    for node in &lost {
        node.kill();
    }
    Ok(active.undo_with(move || lost.iter().filter(|n| !n.alive()).try_for_each(|n| n.restart())))
}

/// The Sentinels, of which there must be three at least.
fn sentinels(at: &At<'_>) -> Result<Vec<Arc<Server>>, Error> {
    let all = at.lab.deployment.sentinels.clone();
    if all.len() < 3 {
        return Err(Error::new("a deployment with three Sentinels is needed: kind = \"sentinel\""));
    }
    Ok(all)
}

/// Whether this Sentinel could authorise a failover.
fn has_quorum(sentinel: &Server) -> Result<bool, Error> {
    Ok(beside(sentinel)?.call(&["SENTINEL", "CKQUORUM", "mymaster"]).is_ok())
}

/// All Sentinels but one are killed.
pub fn sentinel_quorum(at: &At<'_>) -> Result<Active, Error> {
    let mut all = sentinels(at)?;
    let left = all.remove(0);
    let mut active = at.active("they start again");
    for sentinel in &all {
        at.claim(&mut active, sentinel, "process")?;
    }
    for sentinel in &all {
        sentinel.kill();
    }
    let active = active.undo_with({
        let left = left.clone();
        move || {
            all.iter().filter(|s| !s.alive()).try_for_each(|s| s.restart())?;
            wait_for("a quorum of Sentinels", SEEN, || has_quorum(&left))
        }
    });
    wait_for("the last Sentinel to miss the others", SEEN, || Ok(!has_quorum(&left)?))?;
    Ok(active)
}

/// The clocks of all Sentinels jump, as after a step by NTP or a VM that was moved.
pub fn sentinel_tilt(at: &At<'_>) -> Result<Active, Error> {
    const JUMP_US: i64 = 60_000_000;
    let all = sentinels(at)?;
    let mut active = at.active("clocks that are corrected by slewing");
    for sentinel in &all {
        active = turn(at, active, sentinel, Knob::ClockUs, JUMP_US)?;
    }
    wait_for("every Sentinel to distrust its clock", SEEN, || {
        for sentinel in &all {
            if info(&mut beside(sentinel)?, "sentinel")?.number("sentinel_tilt") != Some(1.0) {
                return Ok(false);
            }
        }
        Ok(true)
    })?;
    Ok(active)
}
