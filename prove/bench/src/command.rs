//! What is known of the commands of a workload.

use crate::built_in::{READS, keys_of};
use crate::places::{KeysKnown, Places};
use crate::template::Template;

/// One kind of request.
#[derive(Clone, Debug)]
pub struct Command {
    /// As in the mix.
    pub name: String,
    /// Its bytes.
    pub template: Template,
    /// Position of its first key; `None` where it has none.
    pub key_at: Option<usize>,
    /// Whether replicas may answer it.
    pub reads: bool,
    /// Whether it writes keys, or may.
    pub writes: bool,
    /// Positions of the keys that it may write.
    pub written_at: Vec<usize>,
    /// What is known of its keys.
    pub keys: KeysKnown,
    /// Where the server says that they are.
    pub places: Option<Places>,
    /// Whether it may wait for others.
    pub blocks: bool,
    /// Whether its reply is the value that `set` wrote.
    pub is_get: bool,
    /// Share of requests up to and with this one.
    pub upto: f64,
}

impl Command {
    /// As far as is known before a server was asked about it.
    pub fn new(name: String, template: Template, is_get: bool, upto: f64) -> Command {
        let written_at = keys_of(&name, &template);
        let keys = if written_at.is_empty() { KeysKnown::Guessed } else { KeysKnown::All };
        let key_at = written_at.first().copied().or((template.arguments() > 1).then_some(1));
        let writes = !READS.contains(&&*template.name());
        Command {
            name,
            template,
            key_at,
            written_at,
            keys,
            places: None,
            reads: false,
            writes,
            blocks: false,
            is_get,
            upto,
        }
    }
}
