//! The proxy: many clients on few pipelined connections to standalone, Sentinel and Cluster deployments.
//!
//! ```text
//!   watcher (unslow-watch) --topology--> map ----------------+      config, command table
//!                                                            v         v
//!   clients --SO_REUSEPORT--> worker 0..n: requests -> slot -> lane -> servers, answers in order
//!                             control thread: SIGHUP, reload, drain, hand-over, HTTP
//! ```
//!
//! A worker is one thread with its own reactor, clients, and connections to servers; workers share nothing while a
//! command goes its common way. See DESIGN.md for why, and `worker/` for how.
#![forbid(unsafe_code)]

mod admin;
mod clock;
mod config;
mod control;
mod ends;
mod error;
mod event;
mod facade;
mod filter;
mod flight;
mod gather;
mod handover;
mod ids;
mod journal;
mod lanes;
mod listeners;
mod map;
mod own;
mod pace;
mod parcel;
mod pauses;
mod rarely;
mod reply;
mod request;
mod server_tls;
mod session;
mod shared;
mod special;
mod spread;
mod stats;
mod step;
mod subscriptions;
mod worker;

pub use config::{Batch, ClientAuth, Config, ConfigError, Facade, Read};
pub use control::{Gateway, Log, Reread, Start};
pub use error::{Error, ListenError, TlsFileError};
pub use handover::HandoverError;

/// For fuzzing: a client's bytes, as far as they are whole commands.
pub fn parse_requests(bytes: &[u8]) -> usize {
    let (mut at, mut args) = (0, Vec::new());
    while at < bytes.len() {
        match request::parse_whole(&bytes[at..], &mut args) {
            request::Request::Whole(n) | request::Request::Nothing(n) => at += n,
            request::Request::Inline(n) => {
                args.iter().for_each(|&(a, b)| drop(request::unquote(&bytes[at + a as usize..at + b as usize])));
                at += n;
            }
            request::Request::Incomplete | request::Request::Long | request::Request::Bad(_) => break,
        }
    }
    at
}

/// For fuzzing: the same of bytes that arrive in pieces. What was read of a command is not read again, and one that is
/// too long to wait for passes as it comes.
pub fn requests_in_pieces<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> usize {
    use request::{Allowed, Passed, Passing, Request};
    let (mut unread, mut args, mut progress) = (Vec::new(), Vec::new(), None);
    let (mut passing, mut passed, mut taken) = (None::<Passing>, 0, 0);
    for piece in pieces {
        unread.extend_from_slice(piece);
        loop {
            let used = match &mut passing {
                Some(long) => match long.pass(&unread) {
                    Passed::More(n) => {
                        unread.drain(..n);
                        passed += n;
                        break;
                    }
                    Passed::Done(n) => {
                        taken += passed + n;
                        (passing, passed) = (None, 0);
                        n
                    }
                    Passed::Bad(_) => return taken,
                },
                None => match request::parse(&unread, &mut args, Allowed::All, &mut progress) {
                    Request::Whole(n) | Request::Nothing(n) | Request::Inline(n) => {
                        taken += n;
                        n
                    }
                    Request::Incomplete => break,
                    Request::Long => {
                        passing = Some(Passing::new(Allowed::All));
                        0
                    }
                    Request::Bad(_) => return taken,
                },
            };
            unread.drain(..used);
        }
    }
    taken
}
