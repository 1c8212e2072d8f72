//! Anyone who reaches the port is let in.
//!
//! A server without a password on an address that others can reach is found by scanners within hours; FLUSHALL and a
//! crontab are one command away.
//!
//! Seen when: the server let us in without a password and is bound to more than loopback.
//!
//! Not to be taken for: a server behind loopback or a unix socket.
//!
//! What to do: an ACL user with a password, TLS, a firewall.
//! Sources: CONFIG GET bind, protected-mode; Redis security documentation.

use super::prelude::*;

pub const TITLE: &str = "No authentication";
pub const LEADS_TO: &[&str] = &[];
pub const INJECTED: Injected = Injected::Yes;

pub fn check(facts: &Facts) -> Verdict {
    let open: Vec<&Node> = facts
        .live()
        .filter(|n| {
            let bind = n.setting("bind");
            let outside = bind.map_or(!n.host().starts_with("127.") && n.host() != "localhost" && n.host() != "local", |b| {
                b.is_empty() || b.split_whitespace().any(|a| !a.trim_start_matches('-').starts_with("127.") && !a.ends_with("::1"))
            });
            n.open_door && outside && n.setting("protected-mode") != Some("yes")
        })
        .collect();
    let Some(node) = open.first() else { return Verdict::Absent(Some("open doors: none seen".into())) };
    Finding::new(format!("{} lets anyone in without a password, and listens beyond loopback", node.address))
        .on(open.iter().map(|n| n.address.as_str()))
        .risk("whoever reaches the port can read, delete and run")
        .gain("none in speed", "not a matter of speed")
        .proven("we came in that way")
        .saw(node, "CONFIG GET bind", node.setting("bind").unwrap_or("not seen"))
        .saw(node, "CONFIG GET protected-mode", node.setting("protected-mode").unwrap_or("not seen"))
        .fix("Give it a password, in this order", &["1. on every node: CONFIG SET masterauth LONG-SECRET", "2. at every Sentinel: SENTINEL SET <service> auth-pass LONG-SECRET", "3. to every client and exporter", "4. on every node: CONFIG SET requirepass LONG-SECRET; CONFIG REWRITE"], "whoever was left out is refused: a replica loses its link, a Sentinel takes the master for dead", "CONFIG SET requirepass \"\"")
        .into()
}
