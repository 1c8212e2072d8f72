//! Faults of the deployment: slots that move, failovers, nodes that are remembered but gone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use unslow_client::{Connection, Value};
use unslow_engine::{Error, Server, info, migrate_slots, view, wait_for};
use unslow_topology::ClusterView;

use super::at::{beside, id_of};
use super::{Active, At};

/// A connection to a node that answers, and what it says; nothing for one that is dead or hangs.
pub fn answering(node: &Arc<Server>) -> Option<(Connection, ClusterView)> {
    let mut c = node.connect_with(&super::brief()).ok()?;
    let view = view(&mut c).ok()?;
    Some((c, view))
}

/// Waits until every node that answers sees `master` as a master with slots.
pub fn wait_master(nodes: &[Arc<Server>], master: &str) -> Result<(), Error> {
    for node in nodes {
        let Some((mut c, _)) = answering(node) else { continue };
        wait_for("every node to see the new master", Duration::from_secs(30), || {
            Ok(view(&mut c)?.masters().any(|m| m.id == master && !m.slots.is_empty()))
        })?;
    }
    Ok(())
}

/// Makes a running replica the master of its shard; nothing when it is master already.
pub fn fail_over(nodes: &[Arc<Server>], replica: &Arc<Server>) -> Result<(), Error> {
    let mut c = beside(replica)?;
    let id = id_of(replica)?;
    // A master that was just woken up takes itself for one until it hears of the election: the others know.
    let mut agreed = false;
    wait_for("the nodes to agree on who is master", Duration::from_secs(60), || {
        if info(&mut c, "replication")?.get("role") != Some("master") {
            return Ok(true);
        }
        agreed = nodes
            .iter()
            .filter_map(answering)
            .all(|(_, view)| view.masters().any(|m| m.id == id && !m.slots.is_empty()));
        Ok(agreed)
    })?;
    if agreed {
        return Ok(());
    }
    let section = info(&mut c, "replication")?;
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
    // Whoever is promoted with the mark of a failure on it is voted out again by those who still see the mark.
    wait_unmarked(nodes, &id)?;
    c.call(&["CLUSTER", "FAILOVER"])?;
    wait_master(nodes, &id)
}

/// Waits until no node that answers takes this one for failed. A master with slots keeps its mark for twice the node
/// timeout, a replica until it answers the next ping.
pub fn wait_unmarked(nodes: &[Arc<Server>], id: &str) -> Result<(), Error> {
    for node in nodes {
        let Some((mut c, _)) = answering(node) else { continue };
        wait_for("the failure flag to be cleared", Duration::from_secs(40), || {
            Ok(view(&mut c)?.by_id(id).is_none_or(|n| !n.is_down()))
        })?;
    }
    Ok(())
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
    take_over(at, master, &replica)
}

/// A replica takes its master's place, and gives it back at the end.
pub fn take_over(at: &At<'_>, master: Arc<Server>, replica: &Arc<Server>) -> Result<Active, Error> {
    let nodes = at.lab.deployment.nodes.clone();
    let active = at.active("CLUSTER FAILOVER back").undo_with({
        let nodes = nodes.clone();
        move || fail_over(&nodes, &master)
    });
    fail_over(&nodes, replica)?;
    Ok(active)
}

/// Less than the second a Sentinel lets pass between two connections.
pub fn sentinel_down_after(at: &At<'_>) -> Result<Active, Error> {
    let sentinels = at.lab.deployment.sentinels.clone();
    if sentinels.is_empty() {
        return Err(Error::new("a deployment with Sentinels is needed: kind = \"sentinel\""));
    }
    let set = |sentinel: &Arc<Server>, ms: &str| -> Result<(), Error> {
        beside(sentinel)?.call(&["SENTINEL", "SET", "mymaster", "down-after-milliseconds", ms])?;
        Ok(())
    };
    let mut active = at.active("a longer down-after");
    for sentinel in sentinels {
        let says = beside(&sentinel)?.call(&["SENTINEL", "MASTER", "mymaster"])?;
        let before = says.get("down-after-milliseconds").and_then(Value::text).unwrap_or_else(|| "5000".into());
        set(&sentinel, "500")?;
        active = active.undo_with(move || set(&sentinel, &before));
    }
    Ok(active)
}

/// The user that Sentinels log in with while [`sentinel_master_down`] lasts.
const WATCHER: &str = "unslow-sentinel";
const WATCHERS_PASSWORD: &str = "watch";

/// Sentinels log in as a user that may do anything but PING. To them every server is down: the replicas first, so that
/// none can be promoted, then the master. All of them are well.
pub fn sentinel_master_down(at: &At<'_>) -> Result<Active, Error> {
    let (sentinels, nodes) = (at.lab.deployment.sentinels.clone(), at.lab.deployment.nodes.clone());
    if sentinels.is_empty() {
        return Err(Error::new("a deployment with Sentinels is needed: kind = \"sentinel\""));
    }
    let master = at.node()?;
    if !master.engine().is_valkey() && master.engine().level() < (6, 2) {
        return Err(Error::new(format!(
            "Sentinels of {} cannot log in as a user; that needs 6.2",
            master.engine().version
        )));
    }
    let mut active = at.active("their user may PING");
    for node in &nodes {
        at.claim(&mut active, node, "Sentinel's user")?;
    }
    let active = active.undo_with({
        let (sentinels, nodes) = (sentinels.clone(), nodes.clone());
        move || {
            let password = nodes[0].target().password.map_or(String::new(), |p| p.reveal().to_string());
            log_in(&sentinels, "", &password)?;
            for node in nodes.iter().filter(|n| n.alive()) {
                // With a user its connections end.
                beside(node)?.call(&["ACL", "DELUSER", WATCHER])?;
            }
            wait_for("the Sentinels to see all of it up", Duration::from_secs(60), || {
                Ok(!each_flags(&sentinels)?.iter().any(|f| has(f, "s_down") || has(f, "o_down")))
            })
        }
    });
    let password = format!(">{WATCHERS_PASSWORD}");
    for node in &nodes {
        let ping = if Arc::ptr_eq(node, &master) { "+ping" } else { "-ping" };
        beside(node)?.call(&["ACL", "SETUSER", WATCHER, "on", &password, "~*", "&*", "+@all", ping])?;
    }
    log_in(&sentinels, WATCHER, WATCHERS_PASSWORD)?;
    nodes.iter().try_for_each(drop_sentinels)?;
    wait_for("the Sentinels to consider every replica down", Duration::from_secs(60), || {
        let flags = each_flags(&sentinels)?;
        Ok(flags.iter().all(|f| has(f, "master") || has(f, "s_down")))
    })?;
    beside(&master)?.call(&["ACL", "SETUSER", WATCHER, "-ping"])?;
    wait_for("the Sentinels to agree that the master is down", Duration::from_secs(60), || {
        Ok(each_flags(&sentinels)?.iter().all(|f| !has(f, "master") || has(f, "o_down")))
    })?;
    Ok(active)
}

/// Has every Sentinel use these at the servers it watches; an empty user is the default one.
fn log_in(sentinels: &[Arc<Server>], user: &str, password: &str) -> Result<(), Error> {
    for sentinel in sentinels {
        beside(sentinel)?.call(&["SENTINEL", "SET", "mymaster", "auth-user", user, "auth-pass", password])?;
    }
    Ok(())
}

/// Ends the connections of Sentinels to a server: they log in again on new ones. Newer ones do so by themselves.
fn drop_sentinels(node: &Arc<Server>) -> Result<(), Error> {
    let mut c = beside(node)?;
    let list = c.call(&["CLIENT", "LIST"])?.text().unwrap_or_default();
    for line in list.lines().filter(|l| l.contains(" name=sentinel-")) {
        if let Some(id) = line.split(' ').find_map(|word| word.strip_prefix("id=")) {
            // It may have left by now.
            let _ = c.call(&["CLIENT", "KILL", "ID", id]);
        }
    }
    Ok(())
}

fn has(flags: &str, flag: &str) -> bool {
    flags.split(',').any(|f| f == flag)
}

/// The flags of the master and of each replica, as every Sentinel shows them.
fn each_flags(sentinels: &[Arc<Server>]) -> Result<Vec<String>, Error> {
    let mut all = Vec::new();
    for sentinel in sentinels {
        let mut c = beside(sentinel)?;
        let flags = |v: &Value| v.get("flags").and_then(Value::text).unwrap_or_default();
        all.push(flags(&c.call(&["SENTINEL", "MASTER", "mymaster"])?));
        all.extend(c.call(&["SENTINEL", "REPLICAS", "mymaster"])?.items().iter().map(flags));
    }
    Ok(all)
}

fn sentinel_failover(at: &At<'_>) -> Result<Active, Error> {
    let sentinels = at.lab.deployment.sentinels.clone();
    let target = at.node()?.address();
    let ask = move || -> Result<Connection, Error> {
        let mut last = Error::new("no Sentinel runs");
        for sentinel in &sentinels {
            match beside(sentinel).and_then(|mut c| Ok(c.call(&["PING"]).map(|_| c)?)) {
                Ok(c) => return Ok(c),
                Err(e) => last = e,
            }
        }
        Err(last)
    };
    let address = |c: &mut Connection| -> Result<String, Error> {
        let reply = c.call(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "mymaster"])?;
        Ok(reply.items().iter().filter_map(|v| v.text()).collect::<Vec<_>>().join(":"))
    };
    // Sentinel chooses the replica: with several, it may take more than one failover to reach the wanted one.
    let switch = move |reached: &dyn Fn(&str) -> bool| -> Result<(), Error> {
        let mut c = ask()?;
        for _ in 0..5 {
            let before = address(&mut c)?;
            if reached(&before) {
                return Ok(());
            }
            // Right after one failover there is no good replica yet for the next.
            wait_for("a replica that Sentinel would promote", Duration::from_secs(60), || {
                Ok(c.call(&["SENTINEL", "FAILOVER", "mymaster"]).is_ok())
            })?;
            wait_for("Sentinel's new master", Duration::from_secs(60), || Ok(address(&mut c)? != before))?;
        }
        if reached(&address(&mut c)?) {
            Ok(())
        } else {
            Err(Error::new("five failovers did not produce the requested master"))
        }
    };
    let old = at.masters()?.first().map(|m| m.address()).ok_or_else(|| Error::new("no master answers"))?;
    let active = at.active("SENTINEL FAILOVER back").undo_with({
        let (switch, old) = (switch.clone(), old.clone());
        move || switch(&|now| now == old)
    });
    // The master itself as target means: any replica.
    switch(&|now| if target == old { now != old } else { now == target })?;
    Ok(active)
}

/// Moves one slot with its keys, from wherever it is; everybody who answers knows afterwards.
fn move_one(nodes: &[Arc<Server>], slot: u16, to: &Arc<Server>) -> Result<(), Error> {
    let destination = id_of(to)?;
    let mut b = beside(to)?;
    let now = view(&mut b)?;
    let owner = now.masters().find(|m| m.slots.contains(slot)).map(|m| m.id.clone());
    let owner = owner.ok_or_else(|| Error::new(format!("slot {slot} has no owner")))?;
    let from = nodes.iter().find(|n| id_of(n).is_ok_and(|id| id == owner));
    let from = from.ok_or_else(|| Error::new(format!("the owner of slot {slot} does not answer")))?;
    let (slot, port) = (slot.to_string(), to.port.to_string());
    let mut a = beside(from)?;
    // One that was left half way, by whoever.
    for c in [&mut a, &mut b] {
        c.call(&["CLUSTER", "SETSLOT", &slot, "STABLE"])?;
    }
    if owner == destination {
        return Ok(());
    }
    b.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &owner])?;
    a.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &destination])?;
    let password = to.target().password;
    loop {
        let keys = a.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"])?;
        let keys: Vec<String> = keys.items().iter().filter_map(|k| k.text()).collect();
        if keys.is_empty() {
            break;
        }
        let mut migrate = ["MIGRATE", &to.ip, &port, "", "0", "10000", "REPLACE"].map(String::from).to_vec();
        if let Some(password) = &password {
            migrate.extend(["AUTH".into(), password.reveal().to_string()]);
        }
        migrate.push("KEYS".into());
        migrate.extend(keys);
        a.call(&migrate)?;
    }
    // The new owner first: from then on the slot has one whatever happens.
    b.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &destination])?;
    a.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &destination])?;
    for (mut c, _) in nodes.iter().filter_map(answering) {
        // Replicas refuse and hear it from their masters.
        let _ = c.call(&["CLUSTER", "SETSLOT", &slot, "NODE", &destination]);
    }
    Ok(())
}

/// The target, a master, and another one.
fn two_masters_of(at: &At<'_>) -> Result<(Arc<Server>, Arc<Server>), Error> {
    let (first, masters) = (at.node()?, at.masters()?);
    if !masters.iter().any(|m| Arc::ptr_eq(m, &first)) {
        return Err(Error::new(format!("{} is not a master", first.name())));
    }
    let other = masters.iter().find(|m| !Arc::ptr_eq(m, &first)).cloned();
    other.map(|o| (first, o)).ok_or_else(|| Error::new("a cluster with two masters is needed"))
}

pub fn move_slot(at: &At<'_>) -> Result<Active, Error> {
    let slot = at.slot()?;
    let (target, other) = two_masters_of(at)?;
    let owner = at.view()?.masters().find(|m| m.slots.contains(slot)).map(|m| m.id.clone());
    let owner = at.by_id(&owner.ok_or_else(|| Error::new(format!("slot {slot} has no owner")))?)?;
    let to = if Arc::ptr_eq(&owner, &target) { other } else { target };
    let nodes = at.lab.deployment.nodes.clone();
    let mut active = at.active("the slot moves back");
    at.claim_named(&mut active, format!("slot {slot}"))?;
    let active = active.undo_with({
        let nodes = nodes.clone();
        move || move_one(&nodes, slot, &owner)
    });
    move_one(&nodes, slot, &to)?;
    Ok(active)
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
    let (from, to) = two_masters_of(at)?;
    let slots = slots_of(at, &from, at.count(16_384)?)?;
    let nodes = at.lab.deployment.nodes.clone();
    let moved: Arc<Mutex<Vec<u16>>> = Arc::default();
    let mut active = at.active("the slots move back");
    at.claim(&mut active, &from, "slots")?;
    let active = active.undo_with({
        let (nodes, moved) = (nodes.clone(), moved.clone());
        move || {
            // Those that cannot be moved back now stay noted.
            let mut first = Ok(());
            moved.lock().unwrap_or_else(|e| e.into_inner()).retain(|slot| match move_one(&nodes, *slot, &from) {
                Ok(()) => false,
                Err(e) => {
                    first = std::mem::replace(&mut first, Ok(())).and(Err(e));
                    true
                }
            });
            first
        }
    });
    let mut left = slots.into_iter();
    Ok(active.work(move |flags| match left.next() {
        Some(slot) => {
            // Noted before, so that one half moved is moved back too.
            moved.lock().unwrap_or_else(|e| e.into_inner()).push(slot);
            let _ = move_one(&nodes, slot, &to);
        }
        None => flags.pause(Duration::from_secs(60)),
    }))
}

pub fn reshard_atomic(at: &At<'_>) -> Result<Active, Error> {
    let (from, to) = two_masters_of(at)?;
    if !from.engine().is_valkey() || from.engine().level() < (9, 0) {
        return Err(Error::new(format!(
            "CLUSTER MIGRATESLOTS needs Valkey 9.0; this is {}; try: unslow lab fault reshard",
            from.engine().version
        )));
    }
    let slots = slots_of(at, &from, at.count(16_384)?)?;
    // The first run of neighbours.
    let run = slots.iter().zip(slots[0]..).take_while(|(s, n)| **s == *n).count();
    let (first, last) = (slots[0], slots[run - 1]);
    let mut active = at.active("the slots move back");
    at.claim(&mut active, &from, "slots")?;
    let active = active.undo_with({
        let (from, to) = (from.clone(), to.clone());
        move || migrate_slots(&mut beside(&to)?, first, last, &id_of(&from)?)
    });
    migrate_slots(&mut beside(&from)?, first, last, &id_of(&to)?)?;
    Ok(active)
}

pub fn ghost_nodes(at: &At<'_>) -> Result<Active, Error> {
    haunt(at, at.active("CLUSTER FORGET"), at.count(5000)?)
}

/// Restarts the node with this many replicas of its own master in nodes.conf that nobody has heard of: its CLUSTER
/// NODES is as long as a big cluster's. The end of the fault forgets them.
pub fn haunt(at: &At<'_>, active: Active, count: usize) -> Result<Active, Error> {
    let node = at.node()?;
    if info(&mut node.connect()?, "cluster")?.get("cluster_enabled") != Some("1") {
        return Err(Error::new(format!("{} is not part of a cluster", node.name())));
    }
    let mut active = active;
    at.claim(&mut active, &node, "nodes.conf")?;
    at.claim(&mut active, &node, "process")?;
    let active = active.undo_with({
        let node = node.clone();
        move || {
            rewrite(&node, |text| {
                let real = |line: &&str| !line.starts_with("00000000000000000000000000000000dead");
                text.lines().filter(real).map(|l| format!("{l}\n")).collect()
            })
        }
    });
    rewrite(&node, |text| {
        let mine = text.lines().find(|l| l.contains("myself")).unwrap_or_default();
        let words: Vec<&str> = mine.split(' ').collect();
        // A ghost of a replica haunts that replica's master.
        let master = words.get(3).filter(|m| **m != "-").or(words.first()).copied().unwrap_or("-");
        let old = !text.contains("tls-port") && !text.contains("shard-id");
        let address = if old { ":0@0" } else { ":0@0,,tls-port=0" };
        let ghosts: String = (0..count)
            .map(|i| format!("{:040x} {address} slave,noaddr {master} 0 0 0 disconnected\n", 0xdead_0000u64 + i as u64))
            .collect();
        text.replacen("vars ", &format!("{ghosts}vars "), 1)
    })?;
    Ok(active)
}

/// Stops a node, changes its nodes.conf, and starts it again with its data.
fn rewrite(node: &Arc<Server>, change: impl FnOnce(&str) -> String) -> Result<(), Error> {
    // Without a snapshot a master that comes back within the node timeout would empty its replicas.
    let dump = node.dir().join("dump.rdb");
    let had_one = dump.exists();
    if node.alive() {
        beside(node)?.call(&["SAVE"])?;
    }
    node.kill();
    let path = node.dir().join("nodes.conf");
    let written = std::fs::read_to_string(&path).and_then(|text| std::fs::write(&path, change(&text)));
    node.restart()?;
    written.map_err(|e| Error::new(format!("nodes.conf of {}: {e}", node.name())))?;
    if !had_one {
        let _ = std::fs::remove_file(&dump);
    }
    let mut c = node.connect()?;
    wait_for("cluster_state:ok after the restart", Duration::from_secs(30), || {
        Ok(c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:ok"))
    })
}
