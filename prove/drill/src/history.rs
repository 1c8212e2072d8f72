//! What the clients did and saw: every operation with when it was asked and when it was answered.
//!
//! Three outcomes, never two: a write that timed out is neither done nor failed.

use std::io::{BufRead, Write};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What became of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The server said so (with WAIT: and so many replicas too).
    Acknowledged,
    /// The server refused it: it did not happen.
    Refused,
    /// No answer, or not from enough replicas: it may have happened, or may happen yet.
    Unknown,
}

/// How a client finds its master.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Model {
    /// Asks the cluster or the Sentinels when its connection fails or it is sent elsewhere.
    Follows,
    /// Stays with the address it began with, as one that caches the master's address.
    Stays,
    /// Follows, and reads from replicas.
    ReadsReplicas,
}

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum What {
    /// SADD of an element nobody else adds, to the client's own set.
    Add {
        /// The element.
        element: u64,
    },
    /// SET of the client's own register to a larger number than before.
    Write {
        /// The number.
        value: u64,
    },
    /// GET of a client's own register; 0 where there is nothing.
    Read {
        /// Whose.
        of: u32,
        /// What was there.
        value: u64,
    },
    /// SET of a register that many write, to a number nobody else writes.
    SharedWrite {
        /// Its shard.
        register: u32,
        /// The number.
        value: u64,
    },
    /// GET of it; 0 where there is nothing.
    SharedRead {
        /// Its shard.
        register: u32,
        /// What was there.
        value: u64,
    },
    /// A lock was taken (SET NX PX); held until `until_us` as its holder believes.
    Hold {
        /// Which lock.
        lock: u32,
        /// The fencing token that came with it.
        token: u64,
        /// When the holder let go of it, or believed it expired.
        until_us: u64,
    },
    /// The resource behind a lock was used; with a token below an earlier one it is turned away.
    Use {
        /// Which lock.
        lock: u32,
        /// The token shown.
        token: u64,
        /// Whether the resource took it.
        taken: bool,
    },
}

/// An operation of a client. Times are microseconds since the run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// Which client.
    pub client: u32,
    /// When it was asked.
    pub begun_us: u64,
    /// When it was answered, or given up.
    pub ended_us: u64,
    /// What became of it.
    pub outcome: Outcome,
    /// Which node answered, or should have; by number.
    pub node: u16,
    /// What it was.
    #[serde(flatten)]
    pub what: What,
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Its number.
    pub client: u32,
    /// How it finds its master.
    pub model: Model,
    /// Whose keys it uses: number of the master when the run began.
    pub shard: u32,
    /// The zone it runs in.
    pub zone: String,
}

/// A whole run.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Who there was.
    pub clients: Vec<Client>,
    /// What they did, by the time it began.
    pub ops: Vec<Op>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Op(Op),
    Client(Client),
}

impl History {
    /// One JSON object a line: the clients, then the operations.
    pub fn write(&self, to: &mut impl Write) -> std::io::Result<()> {
        for client in &self.clients {
            writeln!(to, "{}", serde_json::to_string(client)?)?;
        }
        for op in &self.ops {
            writeln!(to, "{}", serde_json::to_string(op)?)?;
        }
        Ok(())
    }

    /// Reads what [`History::write`] wrote.
    pub fn read(from: &mut impl BufRead) -> std::io::Result<History> {
        let mut history = History::default();
        for line in from.lines() {
            match serde_json::from_str(&line?)? {
                Line::Op(op) => history.ops.push(op),
                Line::Client(client) => history.clients.push(client),
            }
        }
        Ok(history)
    }

    /// Operations of one client.
    pub fn of(&self, client: u32) -> impl Iterator<Item = &Op> {
        self.ops.iter().filter(move |op| op.client == client)
    }

    /// Clients of a model.
    pub fn with(&self, model: Model) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(move |c| c.model == model)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_as_it_was_written() {
        let client = Client { client: 3, model: Model::Stays, shard: 1, zone: "zone-a".into() };
        let all = [
            What::Add { element: 7 },
            What::Read { of: 2, value: 9 },
            What::Hold { lock: 0, token: 5, until_us: 99 },
            What::Use { lock: 0, token: 5, taken: false },
        ];
        let ops = all
            .into_iter()
            .map(|what| Op { client: 3, begun_us: 1, ended_us: 2, outcome: Outcome::Unknown, node: 4, what })
            .collect();
        let history = History { clients: vec![client], ops };
        let mut text = Vec::new();
        history.write(&mut text).unwrap();
        let again = History::read(&mut &text[..]).unwrap();
        assert_eq!((again.clients, again.ops), (history.clients, history.ops));
    }
}
