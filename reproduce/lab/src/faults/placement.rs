//! Faults of a cluster: stalls near its timeout, failovers, placement, slots, settings.

use std::sync::Arc;
use std::time::Duration;

use unslow_engine::{Error, Server, view, wait_for};

use super::at::{beside, id_of};
use super::deployment::{answering, fail_over, take_over, wait_master, wait_unmarked};
use super::{Active, At};

/// Waits until every node that answers agrees that `replica` follows `master`.
pub fn wait_follows(nodes: &[Arc<Server>], replica: &str, master: &str) -> Result<(), Error> {
    for node in nodes {
        let Some((mut c, _)) = answering(node) else { continue };
        wait_for("every node to see the new placement", Duration::from_secs(20), || {
            Ok(view(&mut c)?.by_id(replica).is_some_and(|n| n.master_id.as_deref() == Some(master)))
        })?;
    }
    Ok(())
}

/// Has a replica follow another master, and back at the end.
fn follow(at: &At<'_>, active: Active, replica: &Arc<Server>, master: &str) -> Result<Active, Error> {
    let before = at.master_of(replica)?;
    let (id, before) = (id_of(replica)?, id_of(&before)?);
    let nodes = at.lab.deployment.nodes.clone();
    let active = active.undo_with({
        let (replica, nodes, id) = (replica.clone(), nodes.clone(), id.clone());
        move || {
            replica.connect()?.call(&["CLUSTER", "REPLICATE", &before])?;
            wait_follows(&nodes, &id, &before)
        }
    });
    replica.connect()?.call(&["CLUSTER", "REPLICATE", master])?;
    wait_follows(&nodes, &id, master)?;
    Ok(active)
}

/// Stops the server for 1.3 s, below the timeout of 2 s but not by much.
pub fn node_timeout_margin(at: &At<'_>) -> Result<Active, Error> {
    let mut active = at.active("a timeout with margin");
    at.settings(&[("latency-monitor-threshold", "100")], &mut active)?;
    beside(&*at.node()?)?.call(&["DEBUG", "SLEEP", "1.3"])?;
    Ok(active)
}

/// A master hangs until its replica is elected, and returns.
pub fn failover_flapping(at: &At<'_>) -> Result<Active, Error> {
    let master = at.node()?;
    let replica = at.replica_of(&master)?;
    let (old, new) = (id_of(&master)?, id_of(&replica)?);
    let nodes = at.lab.deployment.nodes.clone();
    let active = at.active("no stall beyond the timeout").undo_with({
        let (nodes, master, old, new) = (nodes.clone(), master.clone(), old.clone(), new.clone());
        move || {
            fail_over(&nodes, &master)?;
            // Whoever hung took the others for dead.
            wait_unmarked(&nodes, &old)?;
            wait_unmarked(&nodes, &new)
        }
    });
    let mut c = replica.connect()?;
    master.signal(libc::SIGSTOP);
    let promoted = wait_for("the replica's election", Duration::from_secs(30), || {
        Ok(view(&mut c)?.masters().any(|m| m.id == new))
    });
    master.signal(libc::SIGCONT);
    promoted?;
    wait_follows(&nodes, &old, &new)?;
    Ok(active)
}

/// A failover to a replica that stands beside another master; where there is none, to one that is started there.
pub fn two_masters(at: &At<'_>) -> Result<Active, Error> {
    let masters = at.masters()?;
    let host = |s: &Arc<Server>| at.lab.host_of(s);
    for master in &masters {
        let Ok(replica) = at.replica_of(master) else { continue };
        if masters.iter().any(|m| !Arc::ptr_eq(m, master) && host(m) == host(&replica)) {
            return take_over(at, master.clone(), &replica);
        }
    }
    let (first, second) = match &masters[..] {
        [first, second, ..] => (first.clone(), second),
        _ => return Err(Error::new("a cluster with two masters is needed")),
    };
    let extra = replica_beside(at, &first, second)?;
    let id = id_of(&extra)?;
    let nodes = at.lab.deployment.nodes.clone();
    let active = at.active("CLUSTER FAILOVER back").undo_with({
        let (nodes, first, extra) = (nodes.clone(), first.clone(), extra.clone());
        move || {
            if extra.alive() {
                fail_over(&nodes, &first)?;
            }
            extra.kill();
            // Gossip brings it back to whoever forgets before the others do; for a minute nobody listens to that.
            for (mut c, view) in nodes.iter().filter_map(answering) {
                if view.by_id(&id).is_some() {
                    c.call(&["CLUSTER", "FORGET", &id])?;
                }
            }
            Ok(())
        }
    });
    fail_over(&nodes, &extra)?;
    Ok(active)
}

/// Starts another replica of `master` on the host of `neighbour`.
fn replica_beside(at: &At<'_>, master: &Arc<Server>, neighbour: &Arc<Server>) -> Result<Arc<Server>, Error> {
    let mut spec = master.spec().clone();
    spec.seat = neighbour.spec().seat.clone();
    spec.ip = neighbour.ip.clone();
    spec.name = "extra-1".into();
    let used: Vec<u16> = at.lab.servers().filter(|(s, _)| s.ip == neighbour.ip).map(|(s, _)| s.port).collect();
    spec.port = match spec.seat {
        Some(_) => used.iter().max().map(|p| p + 1),
        None => None,
    };
    for (key, value) in &mut spec.settings {
        if key == "cluster-announce-ip" {
            *value = neighbour.ip.clone();
        }
    }
    let extra = Arc::new(Server::start(master.engine(), &spec)?);
    let (own, wanted) = (id_of(&extra)?, id_of(master)?);
    let mut c = beside(&extra)?;
    c.call(&["CLUSTER", "MEET", &master.ip, &master.port.to_string()])?;
    let everybody = at.lab.deployment.nodes.len() + 1;
    wait_for("the new node to know the cluster", Duration::from_secs(30), || {
        let view = view(&mut c)?;
        Ok(view.nodes.len() >= everybody && view.nodes.iter().all(|n| !n.is("handshake")))
    })?;
    c.call(&["CLUSTER", "REPLICATE", &wanted])?;
    wait_follows(&at.lab.deployment.nodes, &own, &wanted)?;
    Ok(extra)
}

/// A replica follows the master that stands on its own host, and that master's replica takes its place.
pub fn replica_shares_host(at: &At<'_>) -> Result<Active, Error> {
    let masters = at.masters()?;
    for neighbour in &masters {
        for master in &masters {
            let Ok(replica) = at.replica_of(master) else { continue };
            if Arc::ptr_eq(master, neighbour) || at.lab.host_of(&replica) != at.lab.host_of(neighbour) {
                continue;
            }
            let other = at.replica_of(neighbour)?;
            let active = follow(at, at.active("CLUSTER REPLICATE back"), &replica, &id_of(neighbour)?)?;
            return follow(at, active, &other, &id_of(master)?);
        }
    }
    Err(Error::new("no replica shares a host with another master here; give each zone one host (hosts = 1)"))
}

/// A master's only replica follows another master.
pub fn master_without_replica(at: &At<'_>) -> Result<Active, Error> {
    let masters = at.masters()?;
    let (first, last) = masters
        .first()
        .zip(masters.last())
        .filter(|(a, b)| !Arc::ptr_eq(a, b))
        .ok_or_else(|| Error::new("a cluster with two masters is needed"))?;
    let replica = at.replica_of(first)?;
    follow(at, at.active("CLUSTER REPLICATE back"), &replica, &id_of(last)?)
}

/// A hundred slots of the first master belong to nobody.
pub fn slots_uncovered(at: &At<'_>) -> Result<Active, Error> {
    let master = at.node()?;
    let id = id_of(&master)?;
    let now = at.view()?;
    let own = now.by_id(&id).ok_or_else(|| Error::new("the master does not know itself"))?;
    let slots: Vec<String> =
        (0..16_384u16).filter(|s| own.slots.contains(*s)).skip(100).take(100).map(|s| s.to_string()).collect();
    let command = |verb: &str| {
        let mut command = vec!["CLUSTER".to_string(), verb.to_string()];
        command.extend(slots.iter().cloned());
        command
    };
    let (delete, add) = (command("DELSLOTS"), command("ADDSLOTS"));
    let nodes = at.lab.deployment.nodes.clone();
    let active = at.active("CLUSTER ADDSLOTS").undo_with({
        let (master, id, slots) = (master.clone(), id.clone(), slots.clone());
        move || {
            let mut c = master.connect()?;
            let lost = |c: &mut unslow_client::Connection| -> Result<bool, Error> {
                let slot = slots[0].parse().unwrap_or(0);
                Ok(!view(c)?.myself().is_some_and(|n| n.slots.contains(slot)))
            };
            if lost(&mut c)? {
                c.call(&add)?;
            }
            wait_master(&nodes, &id)?;
            wait_for("cluster_state:ok", Duration::from_secs(20), || {
                Ok(c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:ok"))
            })
        }
    });
    for node in &at.lab.deployment.nodes {
        // A replica may not know the slot any more once its master said so.
        if let Some((mut c, _)) = answering(node) {
            let _ = c.call(&delete);
        }
    }
    let mut c = master.connect()?;
    wait_for("the slots to have no owner", Duration::from_secs(20), || {
        let slot = slots[0].parse().unwrap_or(0);
        Ok(view(&mut c)?.unassigned().contains(slot))
    })?;
    if c.call(&["CONFIG", "GET", "cluster-require-full-coverage"])?
        .get("cluster-require-full-coverage")
        .and_then(|v| v.text())
        .as_deref()
        == Some("yes")
    {
        wait_for("cluster_state:fail", Duration::from_secs(20), || {
            Ok(c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:fail"))
        })?;
    }
    Ok(active)
}

/// A slot of the first master is on its way to the second, for ever.
pub fn open_slot(at: &At<'_>) -> Result<Active, Error> {
    let source = at.node()?;
    let masters = at.masters()?;
    let destination = masters
        .iter()
        .find(|m| !Arc::ptr_eq(m, &source))
        .cloned()
        .ok_or_else(|| Error::new("a cluster with two masters is needed"))?;
    let (from, to) = (id_of(&source)?, id_of(&destination)?);
    let own = at.view()?.by_id(&from).map(|n| n.slots.clone());
    let slot = (42..16_384u16)
        .chain(0..42)
        .find(|s| own.as_ref().is_some_and(|o| o.contains(*s)))
        .ok_or_else(|| Error::new(format!("{} owns no slots", source.name())))?
        .to_string();
    let active = at.active("CLUSTER SETSLOT STABLE on both").undo_with({
        let (both, slot) = ([destination.clone(), source.clone()], slot.clone());
        move || {
            both.iter().try_for_each(|n| Ok(n.connect()?.call(&["CLUSTER", "SETSLOT", &slot, "STABLE"]).map(drop)?))
        }
    });
    destination.connect()?.call(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from])?;
    source.connect()?.call(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to])?;
    Ok(active)
}

/// Another memory limit on the target.
pub fn config_drift(at: &At<'_>) -> Result<Active, Error> {
    let mut active = at.active("CONFIG SET maxmemory as on the others");
    at.settings(&[("maxmemory", "50mb")], &mut active)?;
    Ok(active)
}
