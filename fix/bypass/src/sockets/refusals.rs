//! Clients that keep using TCP because one side refused the other: counted for `unslow bypass ls`. The line on standard
//! error is silenced by `-q`, and the standard error of a service is seldom read.

use crate::channel::REFUSED_VERSION;
use crate::endpoint::Endpoint;

/// Different refusals that are remembered.
const MOST: usize = 64;

/// Which side refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    Server,
    Client,
}

#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    endpoint: Endpoint,
    by: By,
    /// Because of the version, not of the user.
    version: bool,
    client_uid: u32,
    times: u64,
}

#[derive(Debug, Default)]
pub struct Refusals(Vec<Refusal>);

impl Refusals {
    /// One more, with the reason that was sent along.
    pub fn count(&mut self, endpoint: Endpoint, by: By, reason: u32, client_uid: u32) {
        let new = Refusal { endpoint, by, version: reason == REFUSED_VERSION, client_uid, times: 1 };
        match self.0.iter().position(|known| Refusal { times: 1, ..*known } == new) {
            Some(at) => self.0[at].times += 1,
            None if self.0.len() < MOST => self.0.push(new),
            None => {}
        }
    }

    /// Those at an endpoint, a JSON object a line.
    pub fn lines(&self, endpoint: Endpoint) -> String {
        let line = |refusal: &Refusal| {
            let by = if refusal.by == By::Server { "server" } else { "client" };
            let why = if refusal.version { "version" } else { "user" };
            let Refusal { client_uid, times, .. } = refusal;
            format!("{{\"refused_by\":\"{by}\",\"why\":\"{why}\",\"client_uid\":{client_uid},\"times\":{times}}}\n")
        };
        self.0.iter().filter(|refusal| refusal.endpoint == endpoint).map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::REFUSED_USER;

    #[test]
    fn refusals_are_counted_by_endpoint_side_reason_and_user() {
        let at = |port| Endpoint { port, netns: 1 };
        let mut refusals = Refusals::default();
        for _ in 0..3 {
            refusals.count(at(1), By::Server, REFUSED_USER, 1000);
        }
        refusals.count(at(1), By::Client, REFUSED_USER, 1000);
        refusals.count(at(2), By::Server, REFUSED_VERSION, 0);
        let lines = refusals.lines(at(1));
        assert_eq!(
            lines,
            "{\"refused_by\":\"server\",\"why\":\"user\",\"client_uid\":1000,\"times\":3}\n\
             {\"refused_by\":\"client\",\"why\":\"user\",\"client_uid\":1000,\"times\":1}\n"
        );
        // A user for each of many namespaces: not without end.
        for uid in 0..1000 {
            refusals.count(at(3), By::Server, REFUSED_USER, uid);
        }
        assert!(refusals.0.len() == MOST && refusals.lines(at(3)).lines().count() == MOST - 3);
        assert_eq!(refusals.lines(at(1)), lines);
    }
}
