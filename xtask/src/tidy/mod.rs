//! `cargo xtask tidy`: what no compiler checks.
//!
//! - [`arrows`]: which crate may depend on which; features that would build a crate twice;
//! - [`circles`]: modules of a crate that need each other;
//! - [`rooms`]: files and functions that are too long, and `xtask/rooms.toml`, the list of those that already were;
//! - [`columns`]: lines that do not fit;
//! - [`english`]: wording that readers stumble over, listed in `xtask/english.toml`;
//! - [`addresses`]: `host:port` that loses the brackets of IPv6;
//! - [`commits`]: the message of the newest commit (a note);
//! - [`records`]: rules without facts or fault, stale documents, dead links, dependencies without a reason.
//!
//! Checks of sources are pure: they take text or tokens and return complaints. A complaint says where, what was found
//! and what to do about it.

mod addresses;
mod arrows;
mod circles;
mod columns;
mod commits;
mod complaint;
mod english;
mod records;
mod rooms;
mod source;
mod tokens;

use std::path::Path;

use anyhow::{Context, bail};
use unslow_doctor::ALL;

use complaint::Complaint;

/// Fails with the list of what is not tidy.
pub fn main(root: &Path) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    arrows::check(root, &mut wrong)?;
    arrows::features(root, &mut wrong)?;
    records::rules(root, &mut wrong);
    records::generated(root, &mut wrong)?;
    records::links(root, &mut wrong)?;
    records::reasons(root, &mut wrong)?;
    records::heads(root, &mut wrong)?;
    wrong.extend(sources(root)?.iter().map(Complaint::to_string));
    // Work in progress may say little: a note, and no failure.
    for complaint in commits::head(root).iter().flat_map(commits::check) {
        println!("note: {complaint}");
    }
    if wrong.is_empty() {
        println!("tidy: {} rules, {} crates, all in order", ALL.len(), arrows::ARROWS.len());
        return Ok(());
    }
    bail!("{} things are not tidy:\n  {}", wrong.len(), wrong.join("\n  "))
}

/// What the sources and the documents give reason to complain of.
fn sources(root: &Path) -> anyhow::Result<Vec<Complaint>> {
    let (files, mut all) = source::read(root)?;
    let list = rooms::List::read(&root.join(rooms::LIST))?;
    all.extend(rooms::check(&files, &list.room));
    all.extend(circles::check(&files, &list.circle));
    let patterns = english::Pattern::read(&root.join(english::LIST))?;
    for file in &files {
        all.extend(columns::check(file));
        all.extend(english::in_source(&patterns, file));
        all.extend(addresses::check(file));
    }
    all.extend(addresses::stale(&files));
    for path in source::documents(root)? {
        let text = std::fs::read_to_string(root.join(&path)).with_context(|| path.clone())?;
        all.extend(english::in_document(&patterns, &path, &text));
    }
    Ok(all)
}
