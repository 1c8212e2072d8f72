//! CLIENT.

use super::Said;
use crate::config::Facade;
use crate::session::*;
use crate::shared::{Message, What};
use crate::step::Command;
use crate::worker::{Worker, bulk, error};
use unslow_reactor::Io;
use unslow_resp::write_command;

impl Worker {
    pub(super) fn client_command(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let arg = |i: usize| command.arg(i);
        let sub = command.word(1);
        let ok = b"+OK\r\n".to_vec();
        let facade = self.config.facade == Facade::Cluster && self.cluster;
        let trusted = self.trusted(whom);
        let Some(client) = self.client(whom) else { return true };
        let answer = match (sub.as_slice(), command.len()) {
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
                let name = arg(2);
                if name.iter().any(|b| !(b'!'..=b'~').contains(b)) {
                    error("ERR", "Client names cannot contain spaces, newlines or special characters.")
                } else {
                    client.name = name.to_vec();
                    ok
                }
            }
            (b"SETINFO", 4) => {
                let what = command.word(2);
                let text = arg(3);
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
                    _ => error("ERR", &format!("Unrecognized option '{}'", printable(arg(2)))),
                }
            }
            (b"INFO", 2) => {
                let line = self.client_line(whom);
                let mut out = Vec::new();
                bulk(&mut out, line.as_bytes());
                out
            }
            (b"REPLY", 3) => {
                let how = command.word(2);
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
            (b"KILL", 4) if arg(2).eq_ignore_ascii_case(b"ID") => match command.number(3) {
                Some(number) => {
                    for worker in 0..self.shared.workers.len() {
                        self.shared.post(worker, Message::Kill(number));
                    }
                    b":1\r\n".to_vec()
                }
                None => error("ERR", "client-id should be greater than 0"),
            },
            (b"UNBLOCK", 3 | 4) => {
                self.unblock(io, whom, command);
                return true;
            }
            (b"NO-EVICT", 3) if arg(2).eq_ignore_ascii_case(b"ON") || arg(2).eq_ignore_ascii_case(b"OFF") => ok,
            (b"NO-EVICT", 3) => error("ERR", "syntax error"),
            (b"CAPA", 3..) => ok,
            (b"MAINT_NOTIFICATIONS", 3..) if facade => {
                client.notified = arg(2).eq_ignore_ascii_case(b"ON");
                ok
            }
            (b"TRACKING" | b"NO-TOUCH", 3..) => {
                // The server remembers this for a connection: from now on this client has its own.
                let tracking = sub == b"TRACKING";
                if tracking && client.proto == 2 && arg(2).eq_ignore_ascii_case(b"ON") {
                    error("ERR", "unslow: client tracking needs RESP3 here: say HELLO 3 first")
                } else {
                    return self.private(io, whom, command, &sub);
                }
            }
            (b"TRACKINGINFO" | b"GETREDIR" | b"CACHING" | b"HELP", _) => {
                let slot = self.anywhere();
                return self.send(io, whom, command, slot, Kind::Reply);
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
    pub(super) fn private(&mut self, io: &mut Io, whom: Whom, command: &Command, sub: &[u8]) -> bool {
        self.own_set(whom);
        let Some(set) = self.client(whom).and_then(|c| c.set) else { return true };
        // Whatever is there already has not heard it: they are dialled anew.
        for lane in std::mem::take(&mut self.sets[set].lanes).into_iter().flatten() {
            self.close_lane(io, lane);
        }
        let off = command.arg(command.len() - 1).eq_ignore_ascii_case(b"OFF");
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
        let slot = self.anywhere();
        let sent = self.send(io, whom, command, slot, Kind::Setup);
        if let Some(client) = self.client(whom) {
            client.barrier = true;
            client.asked = Some(Box::new(Asked::Setup(command.bytes.to_vec())));
        }
        sent
    }

    /// The server has taken a setting, or not.
    pub fn set_up(&mut self, io: &mut Io, flight: &Flight, bytes: &[u8]) {
        let whom = flight.whom;
        if let Some(client) = self.client(whom)
            && let Some(Asked::Setup(command)) = client.asked.take().map(|asked| *asked)
            && let (Some(b'+'), Some(set)) = (bytes.first(), client.set)
        {
            client.tracking |= command.windows(8).any(|w| w.eq_ignore_ascii_case(b"TRACKING"));
            self.sets[set].setup.push(command);
        }
        self.answer(io, whom, flight.seq, bytes, true);
    }

    pub(super) fn unblock(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let number: Option<u64> = command.number(2);
        let lane = self.everyone().find(|c| Some(c.number) == number).and_then(|c| c.pin);
        let target = lane.and_then(|l| Some((self.lanes[l].node, self.lanes[l].server_number?)));
        let set = self.client(whom).and_then(|c| c.set);
        let (Some((node, server_number)), Some(set)) = (target, set) else { return self.say(io, whom, b":0\r\n") };
        let server_number = server_number.to_string();
        let mut words: Vec<&[u8]> = vec![b"CLIENT", b"UNBLOCK", server_number.as_bytes()];
        words.extend((3..command.len()).map(|i| command.arg(i)));
        let mut bytes = Vec::new();
        write_command(&mut bytes, &words);
        let lane = self.lane_of(set, node);
        let said = Said { bytes: &bytes, plan: &command.plan, slot: NO_SLOT, kind: Kind::Reply };
        self.on_lane(io, whom, lane, said);
    }
}

/// A client's own word as it may stand in an error: a line.
pub(super) fn printable(word: &[u8]) -> String {
    String::from_utf8_lossy(word).chars().filter(|c| !c.is_control()).collect()
}
