//! Clients on a host of their own, a network namespace: over the lab's wire, and over a plain veth.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value as Json;
use unslow_client::{Connection, Options, Target};
use unslow_engine::{Engine, Seat, Server, ServerSpec, spawn_bound, wait_for};
use unslow_lab::lab::{Host, Lab};
use unslow_lab::topology::Topology;
use unslow_topology::join_host_port;
use unslow_units::{rate, time_us};

use super::{Background, Busy, CONNECTIONS, Context, Medians, Steps, Way};
use crate::error::{Error, Unfit};
use crate::stage::{self, Answered, Hosts, PATIENCE, Stage};

/// A host for servers and one for clients, as near as the lab's wire can be.
const TWO_HOSTS: &str = r#"
[[zone]]
name = "here"
hosts = 1
clients = 1
rtt = "0us"
[deployment]
kind = "none"
"#;

/// The ports of both servers.
const DIRECT: u16 = 6379;
const OFFLOADED: u16 = 6380;

/// The same server twice on a host of a lab: as it is, and with a stack that has its clients' connections.
pub struct Remote {
    direct: Server,
    offloaded: Background,
    /// The servers' host on the veth.
    veth: Ipv4Addr,
    /// Where servers and clients sit.
    seats: [Arc<Seat>; 2],
    stage: Stage,
}

impl Remote {
    /// None where this user may not make networks.
    pub fn start(cx: &Context<'_>, engine: &Engine) -> Result<Option<Remote>, Error> {
        let stage = cx.raise(Topology::parse(TWO_HOSTS)?, Hosts::Wired)?;
        let lab = &stage.lab;
        if lab.wire().is_err() {
            return Ok(None);
        }
        let [server, client] = ends(lab)?;
        let [veth, _] = lab.veth(server, client)?;
        let (Some(seat), Some(from)) = (server.seat.clone(), client.seat.clone()) else { return Ok(None) };
        // On both paths. It has no password, as all servers of a lab: it can write to its host's disk alone.
        let everywhere = "0.0.0.0";
        let direct = Server::start(
            engine,
            &ServerSpec {
                seat: Some(seat.clone()),
                name: "direct".into(),
                ip: server.ip.clone(),
                port: Some(DIRECT),
                settings: vec![("bind".into(), everywhere.into())],
                ..ServerSpec::default()
            },
        )?;
        let program = engine.server.display().to_string();
        let (port, disk) = (OFFLOADED.to_string(), seat.disk().display().to_string());
        let server_words =
            ["--port", &port, "--bind", everywhere, "--protected-mode", "no", "--save", "", "--dir", &disk];
        let words = [&["bypass", "--offload", "--dir", &disk, "--", &program], &server_words[..]].concat();
        let mut command = cx.command(None, &words)?;
        if let Some(libraries) = &engine.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        seat.place_server(&mut command, seat.disk())
            .map_err(|why| Error::Network { place: server.name.clone(), why })?;
        let offloaded = Background(spawn_bound(command).map_err(|why| Error::unslow(&words, why))?);
        let remote = Remote { direct, offloaded, veth, seats: [seat, from], stage };
        for port in [DIRECT, OFFLOADED] {
            let target = Target::parse(&join_host_port(&veth.to_string(), port))?;
            wait_for("a server for clients on another host", Duration::from_secs(20), || {
                let asked = remote.seats[1].run(|| Connection::open(&target, &Options::default()));
                Ok(asked.is_ok_and(|opened| opened.is_ok_and(|mut c| c.call(&["PING"]).is_ok())))
            })?;
        }
        Ok(Some(remote))
    }

    /// Each path directly, then with the stack.
    pub fn ways(&self) -> Vec<Way<'_>> {
        let lab = &self.stage.lab;
        let Ok([server, client]) = ends(lab) else { return Vec::new() };
        let (veth, wire) = (self.veth.to_string(), &server.ip);
        [
            ("from another host (veth), TCP", &veth, DIRECT, self.direct.pid()),
            ("from another host (veth), --offload", &veth, OFFLOADED, self.offloaded.0.id()),
            ("from another host (lab's wire), TCP", wire, DIRECT, self.direct.pid()),
            ("from another host (lab's wire), --offload", wire, OFFLOADED, self.offloaded.0.id()),
        ]
        .into_iter()
        .filter_map(|(name, address, port, pid)| {
            let url = join_host_port(address, port);
            Some(Way { name, tcp: Target::parse(&url).ok()?, url, more: &[], pid, from: Some((lab, client)) })
        })
        .collect()
    }

    /// Where servers and stacks meet, as seen from this process's own mounts.
    fn meeting(&self) -> String {
        self.seats[0].disk_from_outside().display().to_string()
    }
}

/// The host of the servers, and that of their clients.
fn ends(lab: &Lab) -> Result<[&Host; 2], Error> {
    let of = |client: bool| lab.hosts.iter().find(|h| h.client == client).ok_or(Unfit::NoHost);
    Ok([of(false)?, of(true)?])
}

impl Steps<'_, '_> {
    /// What must hold for clients on another host, and how it was for them.
    pub fn judge_remote(&mut self, remote: &Remote, ways: &[Way<'_>], found: &[Medians]) -> Result<(), Error> {
        let [direct, offload, wired, wired_offload] = found else { return Ok(()) };
        let had = self.had_by_the_stack(remote, &ways[1])?;
        let held = &mut self.played.held;
        let all_had = had >= CONNECTIONS;
        held.push((all_had, format!("the stack had {had} connections from another host, not {CONNECTIONS}")));
        let is_halved = |before: &Medians, after: &Medians| after.server_us < before.server_us / 2.0;
        for (path, before, after) in [("a veth", direct, offload), ("the lab's wire", wired, wired_offload)] {
            let text = format!("over {path} the stack did not halve the server's CPU per request");
            held.push((is_halved(before, after), text));
        }
        self.played.notes.push(format!(
            "the CPU of the stack is not in these figures: it shares {} processors with clients and servers, and over \
             a veth a sender also runs the receiving half of its peer's kernel",
            std::thread::available_parallelism().map_or(1, usize::from)
        ));
        if all_had && is_halved(direct, offload) {
            self.played.closing += &format!(
                " For clients on another host, over a veth, moving TCP into a separate process (unslow bypass \
                 --offload) cuts the server's CPU per request from {} to {}, at {} requests instead of {} on the same \
                 processors.",
                time_us(direct.server_us),
                time_us(offload.server_us),
                rate(offload.per_s),
                rate(direct.per_s)
            );
        }
        Ok(())
    }

    /// Connections that the stack has while the load goes on.
    fn had_by_the_stack(&mut self, remote: &Remote, way: &Way<'_>) -> Result<usize, Error> {
        self.cx.say("counting the stack's connections");
        let meeting = remote.meeting();
        let of_stack = |listed: &Json| {
            let of = |server: &Json| {
                let all = server["connections"].as_array().map_or(&[][..], Vec::as_slice);
                all.iter().filter(|c| c["client_pid"] == server["stack_pid"]).count()
            };
            listed["servers"].as_array().map_or(0, |all| all.iter().map(of).sum())
        };
        let busy = self.load.beside(self.cx, way, &[])?;
        let scene = |_: &mut Busy, answered: Answered| -> Result<usize, Error> {
            answered.enough(PATIENCE)?;
            self.cx.listed(&[("UNSLOW_BYPASS_DIR", &meeting)], of_stack)
        };
        stage::play(busy, PATIENCE, scene).0
    }
}
