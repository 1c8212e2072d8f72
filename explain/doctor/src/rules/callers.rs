//! Which clients make these calls, as far as CLIENT LIST shows it. Not a rule: several rules ask the same question.
//!
//! CLIENT LIST has the last command of each connection: a client that sends one command over and over shows it most of
//! the time.

use unslow_facts::{ClientGroup, Node};

use crate::Finding;
use crate::measure::is_one_of;

/// Adds the clients whose last command was one of `names`, as commandstats names them, to the evidence: those with the
/// most connections, two at most.
pub fn shown(mut finding: Finding, node: &Node, names: &[&str]) -> Finding {
    let mut rows: Vec<(u64, &ClientGroup)> = groups(node).map(|g| (last_commands(g, names), g)).collect();
    rows.retain(|(n, _)| *n > 0);
    rows.sort_by_key(|(n, _)| std::cmp::Reverse(*n));
    for (n, group) in rows.into_iter().take(2) {
        let told = format!("{n} of {} connections from {} sent one of these last", group.count, who(group));
        finding = finding.saw(node, "CLIENT LIST", told);
    }
    finding
}

/// Advice for the libraries that are connected, by a part of the library's name; all of it where none is known (before
/// 7.2).
pub fn advice(node: &Node, all: &[(&str, &'static str)]) -> Vec<&'static str> {
    let seen = |library: &str| groups(node).any(|g| g.library.to_lowercase().contains(library));
    let known: Vec<&'static str> = all.iter().filter(|(library, _)| seen(library)).map(|(_, text)| *text).collect();
    if known.is_empty() { all.iter().map(|(_, text)| *text).collect() } else { known }
}

fn groups(node: &Node) -> impl Iterator<Item = &ClientGroup> {
    node.clients.value().into_iter().flat_map(|c| &c.groups)
}

/// How many connections of the group show one of these as their last command.
fn last_commands(group: &ClientGroup, names: &[&str]) -> u64 {
    group.commands.iter().filter(|(command, _)| is_one_of(names, command)).map(|(_, n)| *n).sum()
}

/// `10.0.0.7 orders jedis 5.1.0`
fn who(group: &ClientGroup) -> String {
    let words = [group.host.as_str(), group.name.as_str(), group.library.as_str()];
    words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}
