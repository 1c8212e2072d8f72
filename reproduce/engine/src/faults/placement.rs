//! Faults of a cluster: stalls near its timeout, failovers, placement, slots, settings.

use std::time::Duration;

use super::{Active, connect};
use crate::Deployment;
use crate::cluster::{view, wait_for};
use crate::server::Error;

fn id(deployment: &Deployment, node: usize) -> Result<String, Error> {
    Ok(deployment.nodes[node].connect()?.call(&["CLUSTER", "MYID"])?.text().unwrap_or_default())
}

/// Waits until every node agrees that `replica` follows `master`.
fn wait_follows(deployment: &Deployment, replica: &str, master: &str) -> Result<(), Error> {
    for node in &deployment.nodes {
        let mut c = node.connect()?;
        wait_for("every node to see the new placement", Duration::from_secs(20), || {
            Ok(view(&mut c)?.by_id(replica).is_some_and(|n| n.master_id.as_deref() == Some(master)))
        })?;
    }
    Ok(())
}

/// Waits until every node sees `node` as a master with slots.
fn wait_master(deployment: &Deployment, node: &str) -> Result<(), Error> {
    for other in &deployment.nodes {
        let mut c = other.connect()?;
        wait_for("every node to see the new master", Duration::from_secs(30), || {
            Ok(view(&mut c)?.masters().any(|m| m.id == node))
        })?;
    }
    Ok(())
}

pub fn node_timeout_margin(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut c = connect(&deployment.nodes[0].target())?;
    c.call(&["CONFIG", "SET", "latency-monitor-threshold", "100"])?;
    c.call(&["DEBUG", "SLEEP", "1.3"])?;
    Ok(Active::new("a timeout with margin"))
}

pub fn failover_flapping(deployment: &mut Deployment) -> Result<Active, Error> {
    let replica = id(deployment, deployment.masters)?;
    let old = id(deployment, 0)?;
    deployment.nodes[0].signal(libc::SIGSTOP);
    let mut c = deployment.nodes[1].connect()?;
    let promoted = wait_for("the replica's election", Duration::from_secs(30), || {
        Ok(view(&mut c)?.masters().any(|m| m.id == replica))
    });
    deployment.nodes[0].signal(libc::SIGCONT);
    promoted?;
    wait_follows(deployment, &old, &replica)?;
    Ok(Active::new("no stall beyond the timeout"))
}

pub fn masters_share_host(deployment: &mut Deployment) -> Result<Active, Error> {
    // The first master's replica stands beside the second master.
    let replica = id(deployment, deployment.masters)?;
    // Before 6.2 a manual failover waits for ever where nothing was ever written (offset 0).
    let key = super::tag(deployment);
    deployment.nodes[0].connect()?.call(&["SET", &key, "v"])?;
    deployment.nodes[deployment.masters].connect()?.call(&["CLUSTER", "FAILOVER"])?;
    wait_master(deployment, &replica)?;
    Ok(Active::new("CLUSTER FAILOVER back"))
}

pub fn replica_shares_host(deployment: &mut Deployment) -> Result<Active, Error> {
    // Replica r of master m stands beside master m + 1: let the first follow its neighbour, the second the first.
    let (m0, m1) = (id(deployment, 0)?, id(deployment, 1)?);
    let (r0, r1) = (id(deployment, deployment.masters)?, id(deployment, deployment.masters + 1)?);
    deployment.nodes[deployment.masters].connect()?.call(&["CLUSTER", "REPLICATE", &m1])?;
    deployment.nodes[deployment.masters + 1].connect()?.call(&["CLUSTER", "REPLICATE", &m0])?;
    wait_follows(deployment, &r0, &m1)?;
    wait_follows(deployment, &r1, &m0)?;
    Ok(Active::new("CLUSTER REPLICATE back"))
}

pub fn master_without_replica(deployment: &mut Deployment) -> Result<Active, Error> {
    let m2 = id(deployment, 2)?;
    let r0 = id(deployment, deployment.masters)?;
    deployment.nodes[deployment.masters].connect()?.call(&["CLUSTER", "REPLICATE", &m2])?;
    wait_follows(deployment, &r0, &m2)?;
    Ok(Active::new("CLUSTER REPLICATE back"))
}

pub fn slots_uncovered(deployment: &mut Deployment) -> Result<Active, Error> {
    let mut command = vec!["CLUSTER".to_string(), "DELSLOTS".into()];
    command.extend((100..200).map(|s| s.to_string()));
    for node in &deployment.nodes {
        // A replica may not know the slot any more once its master said so.
        let _ = node.connect()?.call(&command);
    }
    let mut c = deployment.nodes[0].connect()?;
    wait_for("cluster_state:fail", Duration::from_secs(20), || {
        Ok(c.call(&["CLUSTER", "INFO"])?.text().unwrap_or_default().contains("cluster_state:fail"))
    })?;
    Ok(Active::new("CLUSTER ADDSLOTS"))
}

pub fn open_slots(deployment: &mut Deployment) -> Result<Active, Error> {
    let (source, destination) = (id(deployment, 0)?, id(deployment, 1)?);
    deployment.nodes[1].connect()?.call(&["CLUSTER", "SETSLOT", "42", "IMPORTING", &source])?;
    deployment.nodes[0].connect()?.call(&["CLUSTER", "SETSLOT", "42", "MIGRATING", &destination])?;
    Ok(Active::new("CLUSTER SETSLOT 42 STABLE"))
}

pub fn config_drift(deployment: &mut Deployment) -> Result<Active, Error> {
    deployment.nodes[4].connect()?.call(&["CONFIG", "SET", "maxmemory", "50mb"])?;
    Ok(Active::new("CONFIG SET maxmemory 0"))
}
