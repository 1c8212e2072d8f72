//! What a server that is up answers when it refuses requests, and what to do about it. Not a rule: several rules use
//! it.
//!
//! A server that refuses is neither dead nor cut off: there is nothing to start, and nothing to promote in its place.

use unslow_facts::{Lack, Node};

use super::peers;
use crate::Finding;
use crate::measure::cli;

/// What it answers, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// It wants another login than ours.
    Login,
    /// Anything else.
    Words,
    /// It takes connections from its own machine only, until it has a password.
    Protected,
    /// It is at maxclients.
    Full,
    /// It reads its data set.
    Loading,
    /// A script does not end.
    Busy,
}

impl Refusal {
    /// `None` where it answered, or gave no answer at all.
    pub fn of(node: &Node) -> Option<Refusal> {
        let why = node.unreachable.as_deref()?;
        match node.away? {
            Lack::Rights => return Some(Refusal::Login),
            Lack::Other => {}
            Lack::Version | Lack::Answer | Lack::Time | Lack::Host => return None,
        }
        let lower = why.to_ascii_lowercase();
        Some(if lower.contains("protected mode") {
            Refusal::Protected
        } else if lower.contains("maxclients") || lower.contains("max number of clients") {
            Refusal::Full
        } else if why.contains("BUSY") {
            Refusal::Busy
        } else if lower.contains("loading") {
            Refusal::Loading
        } else {
            Refusal::Words
        })
    }

    /// As one says it of the server: `it refuses this login`.
    pub fn said(self) -> &'static str {
        match self {
            Refusal::Login => "it refuses this login",
            Refusal::Words => "it refuses commands",
            Refusal::Protected => "it is in protected mode",
            Refusal::Full => "it is at maxclients",
            Refusal::Loading => "it is loading its data set",
            Refusal::Busy => "a script is blocking it (BUSY)",
        }
    }

    /// Until when every command of every client is refused; `None` where some are served, or that is not known.
    pub fn ends(self) -> Option<&'static str> {
        match self {
            Refusal::Busy => Some("until the script ends"),
            Refusal::Loading => Some("until it has loaded"),
            Refusal::Login | Refusal::Words | Refusal::Protected | Refusal::Full => None,
        }
    }

    /// What it means for clients where nothing is known to be refused to all of them.
    pub fn risk(self) -> &'static str {
        match self {
            Refusal::Full => "existing connections are served; new ones are refused, including clients that reconnect",
            Refusal::Protected => "clients on its own machine are served; those on every other machine are refused",
            Refusal::Login => "whether it serves its clients is not known: it refuses this login",
            Refusal::Words | Refusal::Loading | Refusal::Busy => {
                "it refuses requests from this machine; its reply shows whether others are refused as well"
            }
        }
    }
}

/// What to do about one that is there and refuses.
pub fn admit(finding: Finding, node: &Node, refusal: Refusal) -> Finding {
    let host = peers::host_of(&node.address);
    let at = |command: &str| cli(&node.address, command);
    match refusal {
        Refusal::Login => finding.fix(
            "Find the user and password that it accepts, and run the doctor again with them",
            &[
                &at("--user USER --askpass PING   (PONG is expected, not NOAUTH or WRONGPASS)"),
                "UNSLOW_PASSWORD=... unslow doctor URL --user USER",
            ],
            "",
            "",
        ),
        Refusal::Protected => {
            let port = node.address.rsplit_once(':').map_or("6379", |(_, p)| p);
            let cli = format!("redis-cli -h 127.0.0.1 -p {port}");
            let here = |command: &str| format!("{cli} {command}   (on {host})");
            // Each of them is a connection of its own: behind the first one it needs the password.
            finding.fix(
                "Set a password, on its own machine: it then accepts other machines. Without CONFIG REWRITE the \
                 password is lost with a restart",
                &[&here("CONFIG SET requirepass LONG-SECRET"), &here("--askpass CONFIG REWRITE")],
                "its clients, replicas and Sentinels need the password from then on (masterauth, auth-pass)",
                &here(&format!("--askpass CONFIG SET requirepass '' && {cli} CONFIG REWRITE")),
            )
        }
        Refusal::Full => finding.fix(
            "Over an existing connection, or once one is free: see which clients hold them, and raise the limit \
             (unslow explain too_many_connections)",
            &[&at("CLIENT LIST"), &at("CONFIG SET maxclients N")],
            "each connection takes some 20 kB and a file descriptor",
            &at("CONFIG SET maxclients   (with the old value)"),
        ),
        Refusal::Busy => finding.fix(
            "End the script: it can be killed as long as it has written nothing",
            &[&at("SCRIPT KILL"), &at("FUNCTION KILL   (a function, 7.0+)")],
            "its caller gets an error; once it has written (UNKILLABLE), you can only wait for it",
            "",
        ),
        Refusal::Loading => finding.fix(
            "Wait until it has loaded: see loading_eta_seconds",
            &[&at("INFO persistence")],
            "a restart starts the loading over",
            "",
        ),
        Refusal::Words => finding.fix(
            "See what it replies, from here and from its own machine",
            &[&at("PING"), &format!("{}   (on {host})", at("PING"))],
            "",
            "",
        ),
    }
}

/// What to do about one whose process hangs.
pub fn release(finding: Finding, address: &str) -> Finding {
    let port = address.rsplit_once(':').map_or("", |(_, p)| p);
    finding.fix(
        &format!(
            "On the machine of {address}, see what blocks its process: T means stopped, D means waiting for a disk"
        ),
        &[
            &format!("ps -o pid,stat,wchan:30,cmd -C redis-server,valkey-server | grep {port}"),
            "kill -CONT PID   (if the state is T and no debugger is attached)",
        ],
        "",
        "",
    )
}

/// How these come back to serve: those that are gone are started, one that refuses or hangs is not. A node is `None`
/// where nothing is known of it but its address.
pub fn bring_back(finding: Finding, lost: &[(&str, Option<&Node>)], risk: &str) -> Finding {
    let is_there = |node: &Option<&Node>| node.is_some_and(|n| n.silent_ms.is_some() || Refusal::of(n).is_some());
    let gone: Vec<String> = lost.iter().filter(|(_, n)| !is_there(n)).map(|(address, _)| address.to_string()).collect();
    let mut finding = finding;
    if !gone.is_empty() {
        let data = if risk.is_empty() { "" } else { ", with its data" };
        finding = finding.fix(
            &format!("Bring {} back{data}", crate::measure::names(&gone)),
            &["systemctl start valkey   (or redis, redis-server: as it was installed; on its machine)"],
            risk,
            "",
        );
    }
    for node in lost.iter().filter_map(|(_, node)| *node).take(3) {
        finding = match Refusal::of(node) {
            Some(refusal) => admit(finding, node, refusal),
            None if node.silent_ms.is_some() => release(finding, &node.address),
            None => finding,
        };
    }
    finding
}
