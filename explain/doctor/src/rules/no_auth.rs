//! Anyone who reaches the port is let in.
//!
//! A server without a password on an address that others can reach is found by scanners within hours; FLUSHALL or an
//! entry in the crontab is one command away.
//!
//! Seen when: the server let unslow in without a password and listens on more than loopback. Unknown if the connection
//! was made over loopback and `bind` cannot be read: the server may listen on other addresses too.
//!
//! Not to be taken for: a server that listens only on loopback or a unix socket.
//!
//! What to do: set up an ACL user with a password, TLS and a firewall.
//! Sources: CONFIG GET bind, protected-mode; Redis security documentation.

use super::peers;
use super::prelude::*;
use std::collections::BTreeSet;

pub const TITLE: &str = "No authentication";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    // Behind a proxy stand servers whose doors were not tried.
    if facts.through.is_some() {
        return Verdict::NotHere;
    }
    let (mut open, mut unseen, mut asked, mut near) = (Vec::new(), None, 0, 0);
    for node in facts.live() {
        if !node.open_door {
            asked += 1;
            continue;
        }
        match listens_outside(node) {
            _ if node.setting("protected-mode") == Some("yes") => near += 1,
            Some(true) => open.push(node),
            Some(false) => near += 1,
            None => unseen = unseen.or(Some(node)),
        }
    }
    let Some(node) = open.first() else {
        if let Some(node) = unseen {
            let gap = node.config.missing().cloned().unwrap_or_default();
            let why = format!(
                "open doors: {} let unslow in without a password over loopback, and its bind setting could not be read",
                node.address
            );
            return Verdict::unknown(gap.lack, why, gap.grant.unwrap_or_default());
        }
        let text = || {
            format!(
                "open doors: none of {} servers ({asked} accepted our password or certificate, {near} without one \
                 listen on loopback only or are in protected mode)",
                asked + near
            )
        };
        return Verdict::absent(facts, "open doors", (asked + near > 0).then(text));
    };
    let finding = Finding::new(format!(
        "{} lets anyone in without a password, and listens on more than loopback",
        names(&open.iter().map(|n| n.address.clone()).collect::<Vec<_>>())
    ))
    .on(open.iter().map(|n| n.address.as_str()))
    .risk("any client that reaches the port can read and delete all data and run any command")
    .proven("confirmed: unslow connected without a password")
    .saw(node, "CONFIG GET bind", node.setting("bind").unwrap_or("not seen"))
    .saw(node, "CONFIG GET protected-mode", node.setting("protected-mode").unwrap_or("not seen"));
    remedy(finding, facts, &open).into()
}

/// None where only loopback was tried, and its other addresses are not known.
fn listens_outside(node: &Node) -> Option<bool> {
    let Some(bind) = node.setting("bind") else {
        return (!peers::is_loopback(peers::host_of(&node.address))).then_some(true);
    };
    Some(bind.is_empty() || bind.split_whitespace().any(|a| !peers::is_loopback(a.trim_start_matches('-'))))
}

/// Who else must know the password first depends on who is there.
fn remedy(finding: Finding, facts: &Facts, open: &[&Node]) -> Finding {
    let all = |command: &str| open.iter().map(|n| cli(&n.address, command)).collect::<Vec<_>>();
    let mut lines = Vec::new();
    let mut left_out = Vec::new();
    if facts.nodes.len() > 1 {
        lines.extend(all("CONFIG SET masterauth LONG-SECRET"));
        left_out.push("a replica without it loses its link");
    }
    // Without addresses: a Sentinel may only have been heard of, and a secret goes to those that are known.
    let services: BTreeSet<&str> = facts.sentinels.iter().flat_map(|s| &s.groups).map(|g| g.service.as_str()).collect();
    lines.extend(services.iter().map(|service| {
        format!(
            "SENTINEL SET {service} auth-pass LONG-SECRET   (on each Sentinel that you run yourself, on its own \
                 machine)"
        )
    }));
    if !facts.sentinels.is_empty() {
        left_out.push("a Sentinel without it considers the master dead");
    }
    lines.push("then give it to every client and exporter, and last of all:".into());
    lines.extend(all("CONFIG SET requirepass LONG-SECRET"));
    lines.extend(open.iter().map(|n| cli(&n.address, "-a LONG-SECRET CONFIG REWRITE")));
    left_out.push("a client without it is refused");
    let mut undo = all("-a LONG-SECRET CONFIG SET requirepass \"\"");
    undo.extend(all("CONFIG REWRITE"));
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    finding.fix("Set a password, in this order", &lines, &left_out.join("; "), &undo.join("; "))
}
