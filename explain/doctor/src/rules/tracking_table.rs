//! The client-side caching table is full: the server tells clients to drop keys that have not changed.
//!
//! For clients that cache, the server remembers which of them read which key. At `tracking-table-max-keys` (a million
//! by default) it forgets one key for each new one, and has to send an invalidation for it: caches lose entries that
//! are still valid, and read them again.
//!
//! Seen when: clients use tracking, and the table holds nine tenths of its limit or more; or it remembers ten million
//! readers, a hundred for each key, and twice as many as the connected clients could be: most of those connections are
//! long gone.
//!
//! Not to be taken for: invalidations caused by writes, which are the feature doing its job; broadcasting clients
//! (BCAST), which are notified by prefix and do not fill the table.
//!
//! How to confirm: `INFO stats` tracking_total_keys, tracking_total_items; `INFO clients` tracking_clients;
//! `CONFIG GET tracking-table-max-keys`.
//!
//! What to do: use a larger table if there is memory (a few hundred bytes a key), OPTIN for what is worth caching, or
//! BCAST with prefixes.
//! Sources: INFO tracking_total_keys; Redis documentation on client-side caching; redis/redis#9231, #13867.

use super::prelude::*;

pub const TITLE: &str = "Tracking table";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

/// Of the limit.
const NEAR: f64 = 0.9;
/// `tracking-table-max-keys` as servers come with it.
const DEFAULT_MAX: f64 = 1_000_000.0;
/// From here on new keys push out others.
const FULL: f64 = 0.99;
/// Remembered clients, in all and for each key.
const MANY_ITEMS: f64 = 10_000_000.0;
const ITEMS_A_KEY: f64 = 100.0;
/// What a key in the table takes: its name and a node of the tree.
const KEY_BYTES: f64 = 200.0;

/// The table of one server.
struct Table<'a> {
    node: &'a Node,
    keys: f64,
    items: f64,
    /// Clients that track now.
    clients: f64,
    /// 0 is no limit.
    max: f64,
}

impl Table<'_> {
    fn share(&self) -> f64 {
        if self.max > 0.0 { self.keys / self.max } else { 0.0 }
    }

    fn is_full(&self) -> bool {
        self.share() >= NEAR
    }

    fn remembers_the_gone(&self) -> bool {
        // Each client that is there is remembered once for a key.
        let of_those_there = self.clients * self.keys;
        self.items >= MANY_ITEMS && self.items >= (ITEMS_A_KEY * self.keys.max(1.0)).max(2.0 * of_those_there)
    }
}

pub fn check(facts: &Facts) -> Verdict {
    let told = |n: &&Node| n.number("tracking_total_keys").is_some();
    if facts.live().next().is_some() && !facts.live().any(|n| told(&n)) {
        let old = facts.live().all(|n| (1, 0) < n.level() && n.level() < (6, 0));
        return if old { Verdict::NotHere } else { Verdict::absent(facts, "the tracking table", None) };
    }
    let all: Vec<Table> = facts.live().filter_map(look).collect();
    let all = by_worst(all, |t| t.share() + t.items / 1e12);
    let rows: Vec<&Table> = all.iter().filter(|t| t.is_full() || t.remembers_the_gone()).collect();
    if let Some(worst) = rows.first() {
        return found(worst).on(rows.iter().map(|t| t.node.address.as_str())).into();
    }
    match all.first() {
        Some(most) => Verdict::Absent(format!(
            "the tracking table: at most {} keys; its limit: {}",
            count(most.keys),
            if most.max > 0.0 { count(most.max) } else { "none".into() }
        )),
        None if facts.live().next().is_some() => Verdict::NotHere,
        None => Verdict::absent(facts, "the tracking table", None),
    }
}

fn look(node: &Node) -> Option<Table<'_>> {
    let keys = node.number("tracking_total_keys")?;
    let clients = node.number("tracking_clients").filter(|n| *n > 0.0)?;
    let items = node.number("tracking_total_items").unwrap_or(0.0);
    let max = node.setting_number("tracking-table-max-keys").unwrap_or(DEFAULT_MAX);
    Some(Table { node, keys, items, clients, max })
}

fn found(t: &Table) -> Finding {
    let (node, address) = (t.node, t.node.address.as_str());
    let seen = node.setting_number("tracking-table-max-keys").is_some();
    let finding = if t.is_full() {
        let (keys, max) = (count(t.keys), count(t.max));
        Finding::new(if t.share() >= FULL {
            format!(
                "The tracking table of {address} is full: {keys} keys of {max}; clients must drop keys that did \
                     not change"
            )
        } else {
            format!("The tracking table of {address} is nearly full: {keys} keys of {max}")
        })
        .risk(
            "once it is full, each new key a caching client reads evicts another, and every client that has cached \
             that one drops it",
        )
    } else {
        Finding::new(format!(
            "The tracking table of {address} remembers {} readers for {} keys, most of them gone",
            count(t.items),
            count(t.keys)
        ))
        .risk("its memory grows with every reconnecting client, until the keys are written")
    };
    let finding = finding
        .likely(if seen {
            "the table and its limit were read; the server does not count invalidations for lack of room"
        } else {
            "the table was read; its limit was not, and is assumed to be the default of a million"
        })
        .saw(node, "INFO stats", format!("tracking_total_keys:{:.0}, tracking_total_items:{:.0}", t.keys, t.items))
        .saw(node, "INFO clients", format!("tracking_clients:{:.0}", node.number("tracking_clients").unwrap_or(0.0)));
    let larger = (t.keys.max(t.max) * 2.0).min(node.info().map_or(f64::MAX, |i| i.keys() as f64).max(t.max * 1.2));
    let room = node.number("maxmemory").filter(|m| *m > 0.0).or_else(|| node.number("total_system_memory"));
    let needs = (larger - t.max) * KEY_BYTES;
    let finding = if t.is_full() && room.is_none_or(|room| needs < 0.05 * room) {
        finding.fix(
            &format!("Use a larger table: about {} more memory", bytes(needs)),
            &[&cli(address, &format!("CONFIG SET tracking-table-max-keys {larger:.0}"))],
            "the memory counts against maxmemory",
            &cli(address, &format!("CONFIG SET tracking-table-max-keys {:.0}", t.max)),
        )
    } else {
        finding
    };
    finding.fix(
        "Track only what is worth caching: use OPTIN with CLIENT CACHING YES before such reads, or BCAST with prefixes",
        &[
            "CLIENT TRACKING ON OPTIN   (in the application)",
            "CLIENT TRACKING ON BCAST PREFIX user:   (in the application)",
        ],
        "keys that are not tracked must not be cached",
        "CLIENT TRACKING ON   (in the application)",
    )
}
