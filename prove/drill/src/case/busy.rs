//! The load generator in the background, beside something that is looked at meanwhile.

use std::sync::Arc;

use unslow_client::{Connection, Options, Target};
use unslow_engine::Seat;
use unslow_lab::lab::{Host, Lab};
use unslow_topology::Info;

use super::{AMONG_OTHERS, Background, Context};
use crate::error::Error;
use crate::stage::{Answered, Workload};

/// A load, and where its server is asked whether it has begun.
pub struct Busy {
    generator: Background,
    ended: bool,
    server: Target,
    /// The network that the server is asked from, if it is not this machine's.
    seat: Option<Arc<Seat>>,
    /// Clients that the server has in addition once all of the load's are connected.
    connections: usize,
    before: Option<Counts>,
}

/// What a server counts.
#[derive(Clone, Copy)]
struct Counts {
    clients: f64,
    commands: f64,
}

/// What is loaded, and from where.
pub struct Load<'a> {
    /// The host of a lab that the generator runs on, if it is not this machine itself.
    pub from: Option<(&'a Lab, &'a Host)>,
    /// What the generator is given.
    pub url: &'a str,
    /// One of its servers, over TCP.
    pub server: &'a Target,
    /// Connections that this server has of it when all of them are there.
    pub connections: usize,
    pub arguments: &'a [&'a str],
    pub environment: &'a [(&'a str, &'a str)],
}

impl Busy {
    /// Starts it.
    pub fn begin(cx: &Context<'_>, load: &Load<'_>) -> Result<Busy, Error> {
        let seat = load.from.and_then(|(_, host)| host.seat.clone());
        let before = counts(load.server, seat.as_deref());
        let arguments = [&["bench", load.url], load.arguments, &["--quiet"], AMONG_OTHERS].concat();
        let generator = cx.background(load.from, &arguments, load.environment)?;
        let (server, connections) = (load.server.clone(), load.connections);
        Ok(Busy { generator, ended: false, server, seat, connections, before })
    }
}

fn counts(server: &Target, seat: Option<&Seat>) -> Option<Counts> {
    let ask = || {
        let mut connection = Connection::open(server, &Options::default()).ok()?;
        let info = Info::parse(&connection.call(&["INFO"]).ok()?.text()?);
        Some(Counts { clients: info.number("connected_clients")?, commands: info.number("total_commands_processed")? })
    };
    match seat {
        Some(seat) => seat.run(ask).ok()?,
        None => ask(),
    }
}

impl Workload for Busy {
    /// Whether it went on to the end.
    type Seen = bool;

    /// Clients that are there, once they send commands. One that has ended is not waited for.
    fn answered(&mut self) -> Answered {
        self.ended = self.ended || self.generator.has_ended();
        let all = self.connections;
        let Some(now) = counts(&self.server, self.seat.as_deref()) else { return Answered::each(0, all) };
        let before = *self.before.get_or_insert(now);
        let more = (now.clients - before.clients).max(0.0) as usize;
        let is_working = now.commands - before.commands > 2.0 * all as f64;
        let had = if is_working { more.min(all) } else { 0 };
        if self.ended { Answered { had, wanted: had, all } } else { Answered::each(had, all) }
    }

    fn end(mut self) -> bool {
        !self.ended && !self.generator.has_ended()
    }
}
