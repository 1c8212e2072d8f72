//! CLIENT.

use super::Said;
use crate::config::{Facade, Read};
use crate::ids::{LaneId, SetId};
use crate::reply::{bulk, error, printable};
use crate::session::*;
use crate::step::Command;
use crate::worker::Worker;
use unslow_reactor::Io;
use unslow_resp::write_command;

impl Worker {
    pub(super) fn client_command(&mut self, io: &mut Io, whom: Whom, command: &Command) -> bool {
        let arg = |i: usize| command.arg(i);
        let sub = command.word(1);
        let ok = b"+OK\r\n".to_vec();
        let facade = self.config.facade == Facade::Cluster && self.cluster;
        // Whether the client's next command may go to another node than this one.
        let split = self.cluster || self.config.read != Read::Primary;
        let Some(client) = self.client(whom) else { return true };
        let answer = match (sub.as_slice(), command.len()) {
            (b"ID", 2) => format!(":{}\r\n", client.number).into_bytes(),
            (b"GETNAME", 2) => {
                let mut out = Vec::new();
                match client.names.own.is_empty() {
                    true if client.proto == 3 => out.extend_from_slice(b"_\r\n"),
                    true => out.extend_from_slice(b"$-1\r\n"),
                    false => bulk(&mut out, &client.names.own),
                }
                out
            }
            (b"SETNAME", 3) => {
                let name = arg(2);
                if name.iter().any(|b| !(b'!'..=b'~').contains(b)) {
                    error("ERR", "Client names cannot contain spaces, newlines or special characters.")
                } else {
                    client.rename(name.to_vec());
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
                        client.names.library = text.to_vec();
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
            (b"LIST" | b"KILL" | b"PAUSE" | b"UNPAUSE", _) => {
                self.about_others(io, whom, command);
                return true;
            }
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
                let resp3 = client.proto == 3;
                match setting(command, resp3, split) {
                    Ok(setting) => return self.private(io, whom, command, setting),
                    Err(why) => error("ERR", why),
                }
            }
            (b"CACHING", _) if split => error("ERR", NO_CACHING),
            (b"TRACKINGINFO" | b"GETREDIR" | b"CACHING" | b"HELP", _) => {
                let slot = self.anywhere();
                return self.send(io, whom, command, slot, Kind::Reply);
            }
            _ => error(
                "ERR",
                &format!("unknown subcommand or wrong number of arguments for '{}'. Try CLIENT HELP.", printable(&sub)),
            ),
        };
        self.say(io, whom, &answer);
        true
    }

    /// Settings that belong to a connection: the client gets its own, and they are said again on each. The server
    /// judges first.
    fn private(&mut self, io: &mut Io, whom: Whom, command: &Command, setting: Setting) -> bool {
        self.own_set(whom);
        let Some(set) = self.client(whom).and_then(|c| c.set) else { return true };
        let kept = self.sets[set].setup.iter().filter(|s| s.bytes != setting.bytes).map(|s| s.bytes.len());
        if setting.on && kept.sum::<usize>() + setting.bytes.len() > SETUP_BYTES_MAX {
            let why =
                "unslow: too many prefixes; say CLIENT TRACKING OFF and begin again with fewer, or with shorter ones";
            self.say(io, whom, &error("ERR", why));
            return true;
        }
        // Its own connection's answer is the client's, and what the server takes is said on all others.
        let slot = self.anywhere();
        let sent = self.send(io, whom, command, slot, Kind::Setup);
        if let Some(client) = self.client(whom).filter(|_| sent) {
            client.barrier = true;
            client.asked = Some(Box::new(Asked::Setup(setting)));
        }
        sent
    }

    /// The server has taken a setting, or not. `told` is the lane on which it was said.
    pub fn set_up(&mut self, io: &mut Io, flight: &Flight, bytes: &[u8], told: Option<LaneId>) {
        let whom = flight.whom;
        if let Some(client) = self.client(whom)
            && let Some(Asked::Setup(setting)) = client.asked.take().map(|asked| *asked)
            && let (Some(b'+'), Some(set)) = (bytes.first(), client.set)
        {
            if setting.what == Sticky::Tracking {
                client.tracking = setting.on;
            }
            let setup = &mut self.sets[set].setup;
            // In the mode BCAST each command adds its prefixes to those before it, so all of them are said again.
            let adds = setting.on && setting.what == Sticky::Tracking;
            setup.retain(|s| s.what != setting.what || adds && s.bytes != setting.bytes);
            if setting.on {
                setup.push(setting);
            }
            // The others have not heard it: they are dialled again when needed.
            let lanes = std::mem::take(&mut self.sets[set].lanes).into_iter().flatten();
            for lane in lanes.filter(|lane| Some(*lane) != told) {
                self.close_lane(io, lane);
            }
            if let Some(lane) = told.filter(|lane| self.lanes[*lane].set == set) {
                self.keep_lane(set, lane);
            }
        }
        self.answer(io, whom, flight.seq, bytes, true);
    }

    /// A lane is the one of its set to its node.
    fn keep_lane(&mut self, set: SetId, lane: LaneId) {
        let node = usize::from(self.lanes[lane].node);
        let lanes = &mut self.sets[set].lanes;
        if lanes.len() <= node {
            lanes.resize(node + 1, None);
        }
        lanes[node] = Some(lane);
    }

    pub(super) fn unblock(&mut self, io: &mut Io, whom: Whom, command: &Command) {
        let reason = command.arg(3);
        if command.len() > 3 && ![&b"TIMEOUT"[..], b"ERROR"].iter().any(|known| reason.eq_ignore_ascii_case(known)) {
            return self.say(io, whom, b"-ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR\r\n");
        }
        // As servers read it: no plus sign, no zero in front.
        let number = command.number::<i64>(2).filter(|number| number.to_string().as_bytes() == command.arg(2));
        let Some(number) = number else {
            return self.say(io, whom, b"-ERR value is not an integer or out of range\r\n");
        };
        let lane = self.everyone().find(|c| i64::try_from(c.number) == Ok(number)).and_then(|c| c.aside.or(c.pin));
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

/// Bytes of the settings that are said on each new connection of a client.
const SETUP_BYTES_MAX: usize = 64 << 10;

const NO_CACHING: &str = "unslow: CLIENT CACHING is about the next command on a connection, and here the next command \
                          may go to \
     another node; use CLIENT TRACKING with BCAST, or without OPTIN";

/// CLIENT TRACKING and NO-TOUCH: `ON` or `OFF` is the first word; any word behind it may be a prefix. What is wrong
/// with the rest the server says.
fn setting(command: &Command, resp3: bool, split: bool) -> Result<Setting, &'static str> {
    let tracking = command.word(1) == b"TRACKING";
    let on = !command.arg(2).eq_ignore_ascii_case(b"OFF");
    let of = |what| Setting { what, on, bytes: command.bytes.to_vec() };
    if !tracking {
        return Ok(of(Sticky::NoTouch));
    }
    if on && !resp3 {
        return Err("unslow: client tracking needs RESP3 here: say HELLO 3 first");
    }
    let mut at = 3;
    while at < command.len() {
        match command.word(at).as_slice() {
            b"REDIRECT" => {
                return Err(
                    "unslow: CLIENT TRACKING has no REDIRECT here: invalidations come on the client's own connection \
                     (RESP3)",
                );
            }
            b"OPTIN" if on && split => return Err(NO_CACHING),
            b"PREFIX" => at += 2,
            _ => at += 1,
        }
    }
    Ok(of(Sticky::Tracking))
}
