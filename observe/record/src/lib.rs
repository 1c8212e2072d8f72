//! The flight recorder: every second of a deployment, for weeks, at next to no cost, and the facts of any window of it.
//!
//! ```text
//!   record:  eye (event loop: PING, INFO) --+
//!            inquirers (slow log, clients) -+--> keeper --> base/series
//!            machine (/proc, once a minute)-+
//!            standing (/proc of a server that owes an answer)
//!   read:    base/series --> Tape --> Facts --> the same rules as live
//! ```
//!
//! What is asked is what a diagnosis asks: the client's read-only list, with the probe's limits and redaction. How a
//! recording looks is in `scheme.rs`, why it is so in `DESIGN.md`.
#![forbid(unsafe_code)]

mod around;
mod closer;
mod curves;
mod export;
mod eye;
#[cfg(test)]
mod eye_tests;
mod figures;
mod info;
mod inquirers;
mod jumps;
mod keeper;
mod live;
#[cfg(test)]
mod live_tests;
mod notes;
mod pings;
mod recorder;
mod scheme;
mod seconds;
mod standing;
mod tape;
#[cfg(test)]
mod tests;
mod window;

pub use curves::{Curve, Curves, Point};
pub use figures::{Figure, Figures};
pub use live::Watching;
pub use recorder::{Ended, Keys, Progress, Recorder, Settings, StartError};
pub use scheme::LookedFor;
pub use tape::{CloserLook, Contents, Recorded, Tape, TapeError, Windows};
pub use unslow_series::Settings as Store;

/// Deletes the oldest part of a recording: what is older than `keep`, and what is too much for `bytes_max`. Returns how
/// many bytes are gone. Fails while a recorder writes there.
pub fn prune(
    dir: &std::path::Path,
    keep: Option<std::time::Duration>,
    bytes_max: Option<u64>,
) -> Result<u64, unslow_series::Error> {
    let store = Store { retain_for: keep, retain_bytes: bytes_max, ..Store::default() };
    let mut writer = unslow_series::Writer::open(dir, store)?;
    let gone = writer.prune(eye::stamp())?;
    writer.close()?;
    Ok(gone)
}

/// For measurements: writes what a recorder would have written of `nodes` nodes, second by second up to now, without
/// any server. `info` gives the INFO of a node in a second.
#[doc(hidden)]
pub fn rehearse(
    dir: &std::path::Path,
    nodes: usize,
    seconds: u64,
    mut info: impl FnMut(usize, u64) -> Vec<u8>,
) -> Result<(), unslow_series::Error> {
    use keeper::Take;
    use notes::{Note, Saw};
    let url = "redis://rehearsal:6379";
    let address = |node: usize| format!("10.0.0.{node}:6379");
    let now = eye::stamp();
    let at = |second: u64| unslow_series::Stamp {
        wall_ms: now.wall_ms - ((seconds - second) * 1000) as i64,
        mono_ms: second * 1000,
    };
    let mut keeper = keeper::Keeper::new(unslow_series::Writer::open(dir, Store::default())?, at(0))?;
    let listed = |node: usize| scheme::Listed {
        address: address(node),
        role: unslow_topology::Role::Master,
        master: None,
        node_id: None,
    };
    let listing = scheme::Listing {
        kind: unslow_topology::DeploymentKind::MasterReplica,
        nodes: (0..nodes).map(listed).collect(),
        notes: Vec::new(),
        through: None,
    };
    for number in 0..nodes {
        keeper.take(&Note::Node { number, url: url.into(), address: address(number) })?;
    }
    for second in 0..seconds {
        if second % 600 == 0 {
            keeper.take(&Note::Listing { url: url.into(), at: at(second), listing: listing.clone() })?;
        }
        for number in 0..nodes {
            let mut pings = pings::Pings::default();
            (0..10).for_each(|i| pings.add(60 + (second as u32 * 31 + i * 17 + number as u32 * 7) % 60));
            let commands = [("ping", second * 10), ("info", second)].map(|(name, n)| (name.to_string(), n));
            let (total, reads) = (second * 11, second * 10);
            let sent = unslow_facts::Own { commands: commands.into(), total, reads, ..Default::default() };
            let info = info(number, second);
            keeper.take(&Note::Saw(number, at(second), Saw::Second { info, pings, sent }))?;
        }
        keeper.tick(at(second), 0)?;
    }
    keeper.close()
}
