//! One command: what its server says of it, and how a proxy has to treat it.

use crate::keys::{KeyAt, Word};

/// Which nodes get a command that has no single key to route by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Any node will do.
    Any,
    /// To every master.
    AllMasters,
    /// To every node that answers.
    AllNodes,
}

/// How the replies of several nodes are merged into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The first, or the first error.
    AllSucceed,
    /// The first that is not an error.
    OneSucceeds,
    /// Integers: their sum.
    Sum,
    /// Integers: the smallest.
    Min,
    /// Arrays of 0 and 1: 1 where all have 1.
    And,
    /// Arrays: concatenated.
    Concat,
    /// Any reply that is not null.
    NotNull,
}

/// Commands that are split by slot, one command for each. They never promised to be atomic across slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divide {
    /// `DEL k k`, `EXISTS`, ...: integers are added.
    Count,
    /// `MGET`: values in the order of the keys.
    Values,
    /// `MSET`: pairs.
    Pairs,
}

/// Commands that change the connection they arrive on, or that a proxy has to answer itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Asking,
    Auth,
    Client,
    Cluster,
    Discard,
    Exec,
    Hello,
    Monitor,
    Multi,
    Ping,
    Quit,
    ReadOnly,
    Reset,
    Scan,
    Select,
    /// Classic pub/sub: SUBSCRIBE, PSUBSCRIBE and their opposites.
    Subscribe,
    /// Sharded pub/sub: SSUBSCRIBE, SUNSUBSCRIBE.
    Ssubscribe,
    /// SYNC, PSYNC, REPLCONF: they would turn the proxy into a replica.
    Replicate,
    Unslow,
    Unwatch,
    Wait,
    Watch,
}

/// One command.
#[derive(Clone, Debug)]
pub struct Command {
    /// In upper case; `MEMORY|USAGE` for a subcommand.
    pub name: String,
    /// As the server reports it: negative for "at least".
    pub arity: i64,
    pub read: bool,
    pub admin: bool,
    pub blocking: bool,
    /// It may change data, by itself or by the code that it runs.
    pub writes: bool,
    /// Refused inside scripts.
    pub noscript: bool,
    /// It runs code of users or of modules: any error text may be theirs.
    pub scripted: bool,
    pub key: KeyAt,
    /// The last of its keys, where [`KeyAt::Arg`] is the first: an argument, negative from the end.
    pub(crate) last: i64,
    /// From one of them to the next.
    pub(crate) step: usize,
    /// MIGRATE: where the argument for the key is empty, the keys follow this word.
    pub(crate) key_list: Option<Word>,
    pub spread: Spread,
    pub join: Join,
    pub divide: Option<Divide>,
    pub special: Option<Special>,
    /// It has keys, and the server does not say where they are.
    pub(crate) movable: bool,
    /// May be sent again when the first attempt may or may not have been applied.
    pub repeatable: bool,
    pub(crate) subcommands: Vec<(Vec<u8>, u16)>,
}

pub(crate) const SPECIAL: [(&str, Special); 29] = [
    ("ASKING", Special::Asking),
    ("AUTH", Special::Auth),
    ("CLIENT", Special::Client),
    ("CLUSTER", Special::Cluster),
    ("DISCARD", Special::Discard),
    ("EXEC", Special::Exec),
    ("HELLO", Special::Hello),
    ("MONITOR", Special::Monitor),
    ("MULTI", Special::Multi),
    ("PING", Special::Ping),
    ("PSUBSCRIBE", Special::Subscribe),
    ("PSYNC", Special::Replicate),
    ("PUNSUBSCRIBE", Special::Subscribe),
    ("QUIT", Special::Quit),
    ("READONLY", Special::ReadOnly),
    ("READWRITE", Special::ReadOnly),
    ("REPLCONF", Special::Replicate),
    ("RESET", Special::Reset),
    ("SCAN", Special::Scan),
    ("SELECT", Special::Select),
    ("SSUBSCRIBE", Special::Ssubscribe),
    ("SUBSCRIBE", Special::Subscribe),
    ("SUNSUBSCRIBE", Special::Ssubscribe),
    ("SYNC", Special::Replicate),
    ("UNSLOW", Special::Unslow),
    ("UNSUBSCRIBE", Special::Subscribe),
    ("UNWATCH", Special::Unwatch),
    ("WAIT", Special::Wait),
    ("WATCH", Special::Watch),
];

impl Command {
    pub(crate) fn new(name: String, arity: i64) -> Command {
        let divide = match name.as_str() {
            "DEL" | "UNLINK" | "EXISTS" | "TOUCH" => Some(Divide::Count),
            "MGET" => Some(Divide::Values),
            "MSET" => Some(Divide::Pairs),
            _ => None,
        };
        let special = SPECIAL.iter().find(|(n, _)| *n == name).map(|(_, s)| *s);
        // WAITAOF came with 7.2 and is the same question.
        let special = if name == "WAITAOF" { Some(Special::Wait) } else { special };
        let scripted = runs_code(&name);
        let admin = takes_connection(&name);
        let key_list = if name == "MIGRATE" { Word::new(b"KEYS") } else { None };
        Command {
            name,
            arity,
            read: false,
            admin,
            blocking: false,
            writes: scripted,
            noscript: false,
            scripted,
            key: KeyAt::Nowhere,
            last: 0,
            step: 1,
            key_list,
            spread: Spread::Any,
            join: Join::AllSucceed,
            divide,
            special,
            movable: false,
            repeatable: false,
            subcommands: Vec::new(),
        }
    }

    /// Whether it has keys of which the server does not say where they are.
    pub fn unsure(&self) -> bool {
        self.key == KeyAt::Nowhere && self.movable
    }

    /// Whether it may have keys beside those of [`Command::keys`].
    pub fn hides_keys(&self) -> bool {
        self.movable && !matches!(self.key, KeyAt::Counted { .. })
    }

    /// Which of this many arguments are keys, as far as the server gives them as one range; `counted` is the number
    /// that precedes counted keys.
    pub fn keys(&self, arguments: usize, counted: Option<usize>) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = match self.key {
            KeyAt::Arg(first) if self.last < 0 => {
                (first, arguments.saturating_sub(self.last.unsigned_abs() as usize), self.step)
            }
            KeyAt::Arg(first) => (first, (self.last as usize).max(first), self.step),
            KeyAt::Counted { first, .. } => (first, first + counted.unwrap_or(1).max(1) - 1, 1),
            KeyAt::Nowhere | KeyAt::Behind { .. } => (1, 0, 1),
        };
        (first..=last.min(arguments.saturating_sub(1))).step_by(step)
    }

    /// Whether it only groups subcommands (7.0+): it is not a command unless its second word is one of them.
    pub fn is_container(&self) -> bool {
        !self.subcommands.is_empty()
    }

    /// Whether this many arguments (including the name) satisfy the arity.
    pub fn fits(&self, args: usize) -> bool {
        if self.arity >= 0 { args as i64 == self.arity } else { args as i64 >= -self.arity }
    }
}

/// Whether a command may answer with an error that a script, a function or a module has written. By its name: servers
/// before 7.0 do not flag what modules add, but by custom it has a dot or a space in its name; a renamed command has a
/// name no table knows; DEBUG ERROR returns any text it is given.
fn runs_code(name: &str) -> bool {
    matches!(name, "EVAL" | "EVALSHA" | "EVAL_RO" | "EVALSHA_RO" | "FCALL" | "FCALL_RO" | "DEBUG" | "(unknown)")
        || name.starts_with("DEBUG|")
        || name.contains(['.', ' '])
}

/// Whether a command changes what later commands on its connection do, and is not among those of [`SPECIAL`]. The
/// script debugger runs every script that comes after it. Servers do not flag it; it is for operators.
pub(crate) fn takes_connection(name: &str) -> bool {
    name == "SCRIPT|DEBUG"
}
