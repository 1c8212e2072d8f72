//! Faults of how a deployment's work and slots are spread: one shard that all want, replicas that nobody asks, a
//! scattered slot map.

use std::sync::Arc;
use std::time::Duration;

use unslow_engine::{Error, Server, view, wait_for};

use super::at::{beside, id_of};
use super::clients::one_in_flight;
use super::deployment::answering;
use super::{Active, At, fill, sweep};

/// Commands of a client that are in flight at a time.
const PIPELINE: usize = 10;
/// Clients that always have some in flight.
const CLIENTS: usize = 50;

/// Fifty clients want the same lock, which is taken: nothing is written, and nothing replicated.
pub fn hot_key(at: &At<'_>) -> Result<Active, Error> {
    let (node, key) = (at.node()?, format!("hot:{}", at.tag()?));
    node.connect()?.call(&["SET", &key, "taken"])?;
    let one = format!("*4\r\n$3\r\nSET\r\n${}\r\n{key}\r\n$4\r\nmine\r\n$2\r\nNX\r\n", key.len());
    let (target, batch) = (node.target(), one.repeat(PIPELINE));
    let active = sweep(at.active("a copy of the value in the client, or the key split"), &node, key);
    // "$-1\r\n"
    Ok(active.work(move |flags| one_in_flight(&target, CLIENTS, batch.as_bytes(), flags, 5 * PIPELINE)))
}

/// Fifty clients read from a master, and its replicas have nothing to do.
pub fn reads_on_master(at: &At<'_>) -> Result<Active, Error> {
    let (node, key) = (at.node()?, format!("page:{}", at.tag()?));
    node.connect()?.call(&["SET", &key, &"x".repeat(64)])?;
    let one = format!("*2\r\n$3\r\nGET\r\n${}\r\n{key}\r\n", key.len());
    let (target, batch) = (node.target(), one.repeat(PIPELINE));
    let active = sweep(at.active("reads go to the replicas"), &node, key);
    // "$64\r\n" + 64 + "\r\n"
    Ok(active.work(move |flags| one_in_flight(&target, CLIENTS, batch.as_bytes(), flags, 71 * PIPELINE)))
}

/// An application gives all of its keys one hash tag.
pub fn hash_tag_skew(at: &At<'_>) -> Result<Active, Error> {
    const KEYS: usize = 200_000;
    let (node, tag) = (at.node()?, at.tag()?);
    let active = sweep(at.active("a tag for each user"), &node, format!("{tag}:*"));
    fill(&mut beside(&node)?, KEYS, |i| {
        ["SET", &format!("{tag}:user:{i}"), &"x".repeat(100)].map(String::from).to_vec()
    })?;
    Ok(active)
}

/// Slots that change hands, every other one.
const SCATTERED: usize = 300;

/// Every other slot of a stretch of the first master goes to the second, as small reshards do it over the years.
pub fn slot_map_fragmented(at: &At<'_>) -> Result<Active, Error> {
    let masters = at.masters()?;
    let [from, to, ..] = &masters[..] else { return Err(Error::new("a cluster with two masters is needed")) };
    let slots = empty_slots(at, from, SCATTERED)?;
    let nodes = at.lab.deployment.nodes.clone();
    let mut active = at.active("each master has one run of slots");
    at.claim(&mut active, from, "slots")?;
    at.claim(&mut active, to, "slots")?;
    let active = active.undo_with({
        let (nodes, slots, from, to) = (nodes.clone(), slots.clone(), from.clone(), to.clone());
        move || hand_over(&nodes, &slots, &to, &from)
    });
    hand_over(&nodes, &slots, from, to)?;
    Ok(active)
}

/// So many of a master's slots that hold no key, every other one of what it owns. One with keys would have to be moved
/// key by key.
fn empty_slots(at: &At<'_>, master: &Server, wanted: usize) -> Result<Vec<u16>, Error> {
    let id = id_of(master)?;
    let own = at.view()?.by_id(&id).map(|n| n.slots.clone()).unwrap_or_default();
    let all: Vec<u16> = (0..16_384u16).filter(|slot| own.contains(*slot)).step_by(2).collect();
    let count: Vec<Vec<String>> =
        all.iter().map(|slot| vec!["CLUSTER".into(), "COUNTKEYSINSLOT".into(), slot.to_string()]).collect();
    let mut slots = Vec::new();
    for (slot, reply) in all.iter().zip(beside(master)?.pipeline(&count)?) {
        if slots.len() < wanted && reply?.integer() == Some(0) {
            slots.push(*slot);
        }
    }
    if slots.len() < wanted {
        return Err(Error::new(format!("{} has fewer than {wanted} slots without keys", master.name())));
    }
    Ok(slots)
}

/// Slots that nobody owns while it lasts.
const DISPUTED: usize = 10;

/// A reshard that died between two commands: a master gave slots away, and who should have them was never told.
pub fn views_disagree(at: &At<'_>) -> Result<Active, Error> {
    let masters = at.masters()?;
    let [from, to, ..] = &masters[..] else { return Err(Error::new("a cluster with two masters is needed")) };
    let slots = empty_slots(at, from, DISPUTED)?;
    let mut active = at.active("CLUSTER SETSLOT NODE on every master");
    at.claim(&mut active, from, "slots")?;
    let (own, other) = (id_of(from)?, id_of(to)?);
    let active = active.undo_with({
        let (from, slots) = (from.clone(), slots.clone());
        move || name_owner(&from, &slots, &own)
    });
    name_owner(from, &slots, &other)?;
    Ok(active)
}

/// Tells one server, and no other, who owns these slots.
fn name_owner(server: &Server, slots: &[u16], owner: &str) -> Result<(), Error> {
    let commands: Vec<Vec<String>> = slots
        .iter()
        .map(|slot| ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", owner].map(String::from).to_vec())
        .collect();
    for reply in beside(server)?.pipeline(&commands)? {
        reply?;
    }
    Ok(())
}

/// Slots without keys get another owner, and every node that answers knows.
fn hand_over(nodes: &[Arc<Server>], slots: &[u16], from: &Arc<Server>, to: &Arc<Server>) -> Result<(), Error> {
    let (old, new) = (id_of(from)?, id_of(to)?);
    // Undone a second time, where the first one failed half way: what it owns already it does not import.
    let own = view(&mut beside(to)?)?.by_id(&new).map(|n| n.slots.clone()).unwrap_or_default();
    let set = |slot: &u16, how: &str, id: &str| -> Vec<String> {
        ["CLUSTER", "SETSLOT", &slot.to_string(), how, id].map(String::from).to_vec()
    };
    for some in slots.chunks(50) {
        // The new owner first, with an epoch that the others accept.
        let take: Vec<Vec<String>> = some
            .iter()
            .filter(|slot| !own.contains(**slot))
            .flat_map(|slot| [set(slot, "IMPORTING", &old), set(slot, "NODE", &new)])
            .collect();
        let give: Vec<Vec<String>> = some.iter().map(|slot| set(slot, "NODE", &new)).collect();
        for (node, commands) in [(to, take), (from, give.clone())] {
            for reply in beside(node)?.pipeline(&commands)? {
                reply?;
            }
        }
        for (mut c, _) in nodes.iter().filter_map(answering) {
            // Replicas refuse and hear it from their masters.
            let _ = c.pipeline(&give);
        }
    }
    for node in nodes {
        let Some((mut c, _)) = answering(node) else { continue };
        wait_for("every node to see the new owner", Duration::from_secs(60), || {
            let now = view(&mut c)?;
            Ok(now.by_id(&new).is_some_and(|n| slots.iter().all(|slot| n.slots.contains(*slot))))
        })?;
    }
    Ok(())
}
