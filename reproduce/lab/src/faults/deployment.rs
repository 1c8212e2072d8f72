//! Faults of the deployment: slots that move, failovers, nodes that are remembered but gone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use unslow_engine::{Error, Server, info, view, wait_for};

use super::at::{beside, id_of};
use super::{Active, At};

/// Waits until every node that answers sees `master` as a master with slots.
pub fn wait_master(nodes: &[Arc<Server>], master: &str) -> Result<(), Error> {
    for node in nodes {
        let Ok(mut c) = node.connect() else { continue };
        wait_for("every node to see the new master", Duration::from_secs(30), || {
            Ok(view(&mut c)?.masters().any(|m| m.id == master && !m.slots.is_empty()))
        })?;
    }
    Ok(())
}

/// Makes a running replica the master of its shard; nothing when it is master already.
pub fn fail_over(nodes: &[Arc<Server>], replica: &Arc<Server>) -> Result<(), Error> {
    let mut c = beside(replica)?;
    let section = info(&mut c, "replication")?;
    if section.get("role") == Some("master") {
        return Ok(());
    }
    let id = id_of(replica)?;
    wait_for("the replica's link to its master", Duration::from_secs(20), || {
        Ok(info(&mut c, "replication")?.get("master_link_status") == Some("up"))
    })?;
    // Before 6.2 a manual failover waits for ever where nothing was ever written (offset 0).
    if section.get("slave_repl_offset") == Some("0") {
        let now = view(&mut c)?;
        let master = now.by_id(&id).and_then(|n| n.master_id.clone()).unwrap_or_default();
        if let Some(master) = nodes.iter().find(|n| id_of(n).is_ok_and(|i| i == master)) {
            let slot = now.by_id(&master.connect().and_then(|_| id_of(master))?).map(|n| n.slots.clone());
            let key = (0..)
                .map(|i| format!("{{t{i}}}"))
                .find(|k| slot.as_ref().is_none_or(|s| s.contains(unslow_topology::slot_of(k.as_bytes()))));
            master.connect()?.call(&["SET", &key.unwrap_or_default(), "v"])?;
        }
    }
    c.call(&["CLUSTER", "FAILOVER"])?;
    wait_master(nodes, &id)
}

pub fn failover(at: &At<'_>) -> Result<Active, Error> {
    if !at.lab.deployment.sentinels.is_empty() {
        return sentinel_failover(at);
    }
    let target = at.node()?;
    // A master means: its replica takes over.
    let (master, replica) = if at.masters()?.iter().any(|m| Arc::ptr_eq(m, &target)) {
        let replica = at.replica_of(&target)?;
        (target, replica)
    } else {
        (at.master_of(&target)?, target)
    };
    let nodes = at.lab.deployment.nodes.clone();
    fail_over(&nodes, &replica)?;
    Ok(at.active("CLUSTER FAILOVER back").undo_with(move || fail_over(&nodes, &master)))
}

fn sentinel_failover(at: &At<'_>) -> Result<Active, Error> {
    let sentinel = at.lab.deployment.sentinels[0].clone();
    let old = at.node()?;
    let address = |c: &mut unslow_client::Connection| -> Result<String, Error> {
        let reply = c.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"])?;
        Ok(reply.items().iter().filter_map(|v| v.text()).collect::<Vec<_>>().join(":"))
    };
    let switch = move |wanted: Option<String>| -> Result<(), Error> {
        let mut c = sentinel.connect()?;
        let before = address(&mut c)?;
        if wanted.as_ref() == Some(&before) {
            return Ok(());
        }
        // Right after one failover there is no good replica yet for the next.
        wait_for("a replica that Sentinel would promote", Duration::from_secs(60), || {
            Ok(c.call(&["SENTINEL", "FAILOVER", "mymaster"]).is_ok())
        })?;
        wait_for("Sentinel's new master", Duration::from_secs(60), || Ok(address(&mut c)? != before))
    };
    switch(None)?;
    let (ip, port) = (old.ip.clone(), old.port);
    Ok(at.active("SENTINEL FAILOVER back").undo_with(move || switch(Some(format!("{ip}:{port}")))))
}

/// Moves one slot with its keys; everybody who answers knows afterwards.
fn move_one(nodes: &[Arc<Server>], slot: u16, from: &Arc<Server>, to: &Arc<Server>) -> Result<(), Error> {
    let slot = slot.to_string();
    let (source, destination) = (id_of(from)?, id_of(to)?);
    let (mut a, mut b) = (beside(from)?, beside(to)?);
    b.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source])?;
    a.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &destination])?;
    let port = to.port.to_string();
    loop {
        let keys = a.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
        let keys: Vec<String> = keys.items().iter().filter_map(|k| k.text()).collect();
        if keys.is_empty() {
            break;
        }
        let mut migrate = ["MIGRATE", &to.ip, &port, "", "0", "10000", "REPLACE", "KEYS"].map(String::from).to_vec();
        migrate.extend(keys);
        a.call(&migrate)?;
    }
    // The new owner first: from then on the slot has one whatever happens.
    b.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &destination])?;
    a.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &destination])?;
    for node in nodes {
        if let Ok(mut c) = node.connect() {
            // Replicas refuse and hear it from their masters.
            let _ = c.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &destination]);
        }
    }
    Ok(())
}

/// The target, and the master that is to give: the target itself means another master receives.
fn giver_and_taker(at: &At<'_>) -> Result<(Arc<Server>, Arc<Server>), Error> {
    let (first, masters) = (at.node()?, at.masters()?);
    if !masters.iter().any(|m| Arc::ptr_eq(m, &first)) {
        return Err(Error::new(format!("{} is no master", first.name())));
    }
    let other = masters.iter().find(|m| !Arc::ptr_eq(m, &first)).cloned();
    other.map(|o| (first, o)).ok_or_else(|| Error::new("a cluster with two masters is needed"))
}

pub fn move_slot(at: &At<'_>) -> Result<Active, Error> {
    let slot = at.slot()?;
    let (target, other) = giver_and_taker(at)?;
    let view = at.view()?;
    let owner = view.masters().find(|m| m.slots.contains(slot)).map(|m| m.id.clone());
    let owner = at.by_id(&owner.ok_or_else(|| Error::new(format!("slot {slot} has no owner")))?)?;
    let to = if Arc::ptr_eq(&owner, &target) { other } else { target };
    let nodes = at.lab.deployment.nodes.clone();
    move_one(&nodes, slot, &owner, &to)?;
    Ok(at.active("the slot moves back").undo_with(move || move_one(&nodes, slot, &to, &owner)))
}

/// Slots of a master, as many as wanted at most.
fn slots_of(at: &At<'_>, master: &Server, most: usize) -> Result<Vec<u16>, Error> {
    let id = id_of(master)?;
    let view = at.view()?;
    let own = view.by_id(&id).map(|n| n.slots.clone());
    let all: Vec<u16> = (0..16_384).filter(|s| own.as_ref().is_some_and(|o| o.contains(*s))).take(most).collect();
    if all.is_empty() { Err(Error::new(format!("{} owns no slots", master.name()))) } else { Ok(all) }
}

pub fn reshard(at: &At<'_>) -> Result<Active, Error> {
    let (from, to) = giver_and_taker(at)?;
    let slots = slots_of(at, &from, at.count(16_384)?)?;
    let nodes = at.lab.deployment.nodes.clone();
    let moved: Arc<Mutex<Vec<u16>>> = Arc::default();
    let active = at.active("the slots move back").undo_with({
        let (nodes, moved, from, to) = (nodes.clone(), moved.clone(), from.clone(), to.clone());
        move || {
            let moved = std::mem::take(&mut *moved.lock().unwrap_or_else(|e| e.into_inner()));
            moved.into_iter().try_for_each(|slot| move_one(&nodes, slot, &to, &from))
        }
    });
    let mut left = slots.into_iter();
    Ok(active.work(move |flags| match left.next() {
        Some(slot) => {
            // Noted before, so that one half moved is moved back too.
            moved.lock().unwrap_or_else(|e| e.into_inner()).push(slot);
            let _ = move_one(&nodes, slot, &from, &to);
        }
        None => flags.pause(Duration::from_secs(60)),
    }))
}

pub fn reshard_atomic(at: &At<'_>) -> Result<Active, Error> {
    let (from, to) = giver_and_taker(at)?;
    if !from.engine().is_valkey() || from.engine().level() < (9, 0) {
        return Err(Error::new(format!(
            "CLUSTER MIGRATESLOTS needs Valkey 9.0; this is {}; try: unslow lab fault reshard",
            from.engine().version
        )));
    }
    let slots = slots_of(at, &from, at.count(16_384)?)?;
    // The first run of neighbours.
    let run = slots.iter().zip(slots[0]..).take_while(|(s, n)| **s == *n).count();
    let (first, last) = (slots[0].to_string(), slots[run - 1].to_string());
    migrate(&from, &to, &first, &last)?;
    Ok(at.active("the slots move back").undo_with(move || migrate(&to, &from, &first, &last)))
}

fn migrate(from: &Arc<Server>, to: &Arc<Server>, first: &str, last: &str) -> Result<(), Error> {
    let destination = id_of(to)?;
    let mut c = beside(from)?;
    let slot: u16 = last.parse().unwrap_or(0);
    c.call(&["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", first, last, "NODE", &destination])?;
    wait_for("the slots to arrive", Duration::from_secs(120), || {
        Ok(view(&mut c)?.by_id(&destination).is_some_and(|n| n.slots.contains(slot)))
    })
}

pub fn ghost_nodes(at: &At<'_>) -> Result<Active, Error> {
    let undo = haunt(&at.node()?, at.count(5000)?)?;
    Ok(at.active("CLUSTER FORGET").undo_with(undo))
}

/// Restarts a node with this many replicas of its own master in nodes.conf that nobody has heard of: its CLUSTER NODES is
/// as long as a big cluster's. The answer forgets them.
pub fn haunt(node: &Arc<Server>, count: usize) -> Result<impl FnOnce() -> Result<(), Error> + Send + use<>, Error> {
    if info(&mut node.connect()?, "cluster")?.get("cluster_enabled") != Some("1") {
        return Err(Error::new(format!("{} is not part of a cluster", node.name())));
    }
    let own = |i: usize| format!("{:040x}", 0xdead_0000u64 + i as u64);
    rewrite(node, |text| {
        let mine = text.lines().find(|l| l.contains("myself")).unwrap_or_default();
        let words: Vec<&str> = mine.split(' ').collect();
        // A ghost of a replica haunts that replica's master.
        let master = words.get(3).filter(|m| **m != "-").or(words.first()).copied().unwrap_or("-");
        let old = !text.contains("tls-port") && !text.contains("shard-id");
        let address = if old { ":0@0" } else { ":0@0,,tls-port=0" };
        let ghosts: String =
            (0..count).map(|i| format!("{} {address} slave,noaddr {master} 0 0 0 disconnected\n", own(i))).collect();
        text.replacen("vars ", &format!("{ghosts}vars "), 1)
    })?;
    let node = node.clone();
    Ok(move || {
        rewrite(&node, |text| {
            let real = |line: &&str| !line.starts_with("00000000000000000000000000000000dead");
            text.lines().filter(real).map(|l| format!("{l}\n")).collect()
        })
    })
}

/// Stops a node, changes its nodes.conf, and starts it again.
fn rewrite(node: &Arc<Server>, change: impl FnOnce(&str) -> String) -> Result<(), Error> {
    node.kill();
    let path = node.dir().join("nodes.conf");
    let io = |e: std::io::Error| Error::new(format!("nodes.conf: {e}"));
    let text = std::fs::read_to_string(&path).map_err(io)?;
    let written = std::fs::write(&path, change(&text)).map_err(io);
    node.restart()?;
    written?;
    let mut c = node.connect()?;
    wait_for("cluster_state:ok after the restart", Duration::from_secs(30), || {
        Ok(c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:ok"))
    })
}
