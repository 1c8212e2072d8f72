//! CLIENT.

use crate::config::Facade;
use crate::request::Range;
use crate::session::*;
use crate::shared::{Message, What};
use crate::worker::{Worker, bulk, error};
use unslow_reactor::Io;
use unslow_resp::write_command;
use unslow_topology::commands::Plan;

impl Worker {
    pub(super) fn client_command(
        &mut self,
        io: &mut Io,
        whom: Whom,
        bytes: &[u8],
        args: &[Range],
        plan: &Plan,
    ) -> bool {
        let arg = |i: usize| args.get(i).map(|&(a, b)| &bytes[a as usize..b as usize]);
        let sub = arg(1).unwrap_or(b"").to_ascii_uppercase();
        let ok = b"+OK\r\n".to_vec();
        let facade = self.config.facade == Facade::Cluster && self.cluster;
        let trusted = self.trusted(whom);
        let Some(client) = self.client(whom) else { return true };
        let answer = match (sub.as_slice(), args.len()) {
            (b"ID", 2) => format!(":{}\r\n", client.number).into_bytes(),
            (b"GETNAME", 2) => {
                let mut out = Vec::new();
                match client.name.is_empty() {
                    true if client.proto == 3 => out.extend_from_slice(b"_\r\n"),
                    true => out.extend_from_slice(b"$-1\r\n"),
                    false => bulk(&mut out, &client.name),
                }
                out
            }
            (b"SETNAME", 3) => {
                let name = arg(2).unwrap_or(b"");
                if name.iter().any(|b| !(b'!'..=b'~').contains(b)) {
                    error("ERR", "Client names cannot contain spaces, newlines or special characters.")
                } else {
                    client.name = name.to_vec();
                    ok
                }
            }
            (b"SETINFO", 4) => {
                let what = arg(2).unwrap_or(b"").to_ascii_uppercase();
                let text = arg(3).unwrap_or(b"");
                match what.as_slice() {
                    b"LIB-NAME" | b"LIB-VER" if text.iter().any(|b| !(b'!'..=b'~').contains(b)) => error(
                        "ERR",
                        &format!(
                            "{} cannot contain spaces, newlines or special characters.",
                            printable(&what).to_lowercase()
                        ),
                    ),
                    b"LIB-NAME" => {
                        client.library = text.to_vec();
                        ok
                    }
                    b"LIB-VER" => ok,
                    _ => error("ERR", &format!("Unrecognized option '{}'", printable(arg(2).unwrap_or(b"")))),
                }
            }
            (b"INFO", 2) => {
                let line = self.client_line(whom);
                let mut out = Vec::new();
                bulk(&mut out, line.as_bytes());
                out
            }
            (b"REPLY", 3) => {
                let how = arg(2).unwrap_or(b"").to_ascii_uppercase();
                match how.as_slice() {
                    b"ON" => {
                        client.replies = Replies::On;
                        ok
                    }
                    b"OFF" => {
                        client.replies = Replies::Off;
                        return true;
                    }
                    b"SKIP" => {
                        if client.replies == Replies::On {
                            client.replies = Replies::SkipNext;
                        }
                        return true;
                    }
                    _ => error("ERR", "syntax error"),
                }
            }
            (b"KILL" | b"LIST", _) if !trusted => {
                error("NOPERM", "unslow: CLIENT LIST and KILL are for the user the gateway itself logs in as")
            }
            (b"LIST", _) => {
                self.ask_all(whom, What::ClientList);
                return true;
            }
            (b"KILL", 4) if arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ID")) => {
                let number = arg(3).and_then(|n| std::str::from_utf8(n).ok()?.parse::<u64>().ok());
                match number {
                    Some(number) => {
                        for worker in 0..self.shared.workers.len() {
                            self.shared.post(worker, Message::Kill(number));
                        }
                        b":1\r\n".to_vec()
                    }
                    None => error("ERR", "client-id should be greater than 0"),
                }
            }
            (b"UNBLOCK", 3 | 4) => {
                let number = arg(2).and_then(|n| std::str::from_utf8(n).ok()?.parse::<u64>().ok());
                return self.unblock(io, whom, number, arg(3), plan);
            }
            (b"NO-EVICT", 3)
                if arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ON") || a.eq_ignore_ascii_case(b"OFF")) =>
            {
                ok
            }
            (b"NO-EVICT", 3) => error("ERR", "syntax error"),
            (b"CAPA", 3..) => ok,
            (b"MAINT_NOTIFICATIONS", 3..) if facade => {
                client.notified = arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ON"));
                ok
            }
            (b"TRACKING" | b"NO-TOUCH", 3..) => {
                // The server remembers this for a connection: from now on this client has its own.
                let tracking = sub == b"TRACKING";
                if tracking && client.proto == 2 && arg(2).is_some_and(|a| a.eq_ignore_ascii_case(b"ON")) {
                    error("ERR", "unslow: client tracking needs RESP3 here: say HELLO 3 first")
                } else {
                    let command = bytes.to_vec();
                    return self.private(io, whom, command, &sub, plan);
                }
            }
            (b"TRACKINGINFO" | b"GETREDIR" | b"CACHING" | b"HELP", _) => {
                let slot = if self.cluster { NO_SLOT } else { 0 };
                return self.send(io, whom, bytes, plan, slot, Kind::Reply);
            }
            (b"PAUSE" | b"UNPAUSE", _) => error(
                "ERR",
                "unslow: servers are not paused through a gateway; UNSLOW PAUSE stops the gateway's clients",
            ),
            _ => error(
                "ERR",
                &format!("unknown subcommand or wrong number of arguments for '{}'. Try CLIENT HELP.", printable(&sub)),
            ),
        };
        self.say(io, whom, &answer);
        true
    }

    /// Settings that belong to a connection: the client gets its own, and they are said again on each.
    pub(super) fn private(&mut self, io: &mut Io, whom: Whom, command: Vec<u8>, sub: &[u8], plan: &Plan) -> bool {
        self.own_set(whom);
        let Some(client) = self.client(whom) else { return true };
        let set = client.set as usize;
        // Whatever is there already has not heard it: they are dialled anew.
        for lane in std::mem::take(&mut self.sets[set].lanes) {
            if lane != NONE {
                self.close_lane(io, lane);
            }
        }
        let upper = command.to_ascii_uppercase();
        let off = upper.ends_with(b"\r\nOFF\r\n");
        let has = |c: &[u8], word: &[u8]| c.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word));
        self.sets[set].setup.retain(|c| !has(c, sub));
        if off {
            if let (Some(client), b"TRACKING") = (self.client(whom), sub) {
                client.tracking = false;
            }
            self.say(io, whom, b"+OK\r\n");
            return true;
        }
        // Its own connection's answer is the client's, and what the server takes is said on all others.
        let slot = if self.cluster { NO_SLOT } else { 0 };
        let sent = self.send(io, whom, &command, plan, slot, Kind::Setup);
        if let Some(client) = self.client(whom) {
            client.barrier = true;
            client.claimed_setup = command;
        }
        sent
    }

    /// The server has taken a setting, or not.
    pub fn set_up(&mut self, io: &mut Io, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        if let Some(client) = self.client(whom) {
            let (command, set) = (std::mem::take(&mut client.claimed_setup), client.set);
            let tracks = command.windows(8).any(|w| w.eq_ignore_ascii_case(b"TRACKING"));
            if bytes.first() == Some(&b'+') && set != NONE {
                client.tracking |= tracks;
                self.sets[set as usize].setup.push(command);
            }
        }
        self.answer(io, whom, flight.seq, bytes, true);
    }

    pub(super) fn unblock(
        &mut self,
        io: &mut Io,
        whom: Whom,
        number: Option<u64>,
        how: Option<&[u8]>,
        plan: &Plan,
    ) -> bool {
        let victim = self.everyone().find(|c| Some(c.number) == number).map(|c| c.pin);
        let lane = victim.filter(|l| *l != NONE);
        let target = lane.and_then(|l| Some((self.lanes[l as usize].node, self.lanes[l as usize].server_number?)));
        let Some((node, server_number)) = target else {
            self.say(io, whom, b":0\r\n");
            return true;
        };
        let server_number = server_number.to_string();
        let mut words: Vec<&[u8]> = vec![b"CLIENT", b"UNBLOCK", server_number.as_bytes()];
        words.extend(how);
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words);
        let Some(client) = self.client(whom) else { return true };
        let set = client.set;
        let lane = self.lane_of(set, node);
        self.on_lane(io, whom, lane, &bytes, plan, NO_SLOT, Kind::Reply);
        true
    }
}

/// A client's own word as it may stand in an error: a line.
pub(super) fn printable(word: &[u8]) -> String {
    String::from_utf8_lossy(word).chars().filter(|c| !c.is_control()).collect()
}
