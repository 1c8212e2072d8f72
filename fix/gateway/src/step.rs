//! What becomes of a command that is not common, by the state of its client: a table, without connections.
//!
//! A common command (one key or none, one answer) of a client in no special state never comes here: [`Client::plain`].

use std::borrow::Cow;

use unslow_commands::{Plan, Special, Spread, UNKNOWN};
use unslow_topology::GATEWAY_SECTION;

use crate::reply::{bulk, error};
use crate::request::Range;
use crate::session::{Client, Mode, Stall, Transaction, Txn, Watch};

/// Commands for the operator of a server that mean no harm on any node of a cluster.
pub const HARMLESS: [&str; 23] = [
    "CONFIG|GET",
    "CONFIG|HELP",
    "SLOWLOG|GET",
    "SLOWLOG|LEN",
    "SLOWLOG|HELP",
    "LATENCY|LATEST",
    "LATENCY|HISTORY",
    "LATENCY|DOCTOR",
    "LATENCY|GRAPH",
    "LATENCY|HISTOGRAM",
    "LATENCY|HELP",
    "ACL|LIST",
    "ACL|USERS",
    "ACL|GETUSER",
    "ACL|LOG",
    "ACL|DRYRUN",
    "ACL|WHOAMI",
    "ACL|CAT",
    "ACL|GENPASS",
    "MODULE|LIST",
    "MODULE|HELP",
    "LASTSAVE",
    "ACL|HELP",
];

/// A whole command, as a client said it.
#[derive(Clone, Copy)]
pub struct Command<'a> {
    pub bytes: &'a [u8],
    pub args: &'a [Range],
    pub plan: Plan,
}

impl<'a> Command<'a> {
    /// An argument, the name being the first; empty where there is none.
    #[inline]
    pub fn arg(&self, i: usize) -> &'a [u8] {
        self.args.get(i).map_or(b"", |&(from, to)| &self.bytes[from as usize..to as usize])
    }

    /// Arguments, the name included.
    #[inline]
    pub fn len(&self) -> usize {
        self.args.len()
    }

    /// Its first key.
    #[inline]
    pub fn key(&self) -> Option<&'a [u8]> {
        self.plan.key.map(|at| self.arg(at))
    }

    /// An argument as text and in upper case, for words of the protocol.
    pub fn word(&self, i: usize) -> Vec<u8> {
        self.arg(i).to_ascii_uppercase()
    }

    /// An argument as a number.
    pub fn number<T: std::str::FromStr>(&self, i: usize) -> Option<T> {
        std::str::from_utf8(self.arg(i)).ok()?.parse().ok()
    }

    pub fn is(&self, special: Special) -> bool {
        self.plan.special == Some(special)
    }

    /// Its name with its second word where that names a subcommand. Servers before 7.0 have no table of subcommands,
    /// but what their CONFIG GET and CONFIG SET may do differs all the same.
    pub fn full_name<'k>(&self, known: &'k unslow_commands::Command) -> Cow<'k, str> {
        let bare = self.plan.admin && !known.name.contains('|') && !known.is_container();
        match bare && self.len() > 1 {
            true => {
                let second = self.arg(1).iter().filter(|b| b.is_ascii_alphabetic());
                let second: String = second.map(|b| char::from(b.to_ascii_uppercase())).collect();
                Cow::Owned(format!("{}|{second}", known.name))
            }
            false => Cow::Borrowed(&known.name),
        }
    }

    /// Whether it is INFO UNSLOW. Servers have no such section, so nothing is lost if it never reaches one.
    pub fn asks_who_this_is(&self) -> bool {
        self.len() == 2
            && self.arg(0).eq_ignore_ascii_case(b"INFO")
            && self.arg(1).eq_ignore_ascii_case(GATEWAY_SECTION.as_bytes())
    }

    /// The script debugger takes the connection for itself, for every script that is said on it later.
    pub fn debugs_scripts(&self, known: &unslow_commands::Command) -> bool {
        known.name.starts_with("SCRIPT") && self.arg(1).eq_ignore_ascii_case(b"DEBUG")
    }

    /// `POST` and `Host:`, the words by which servers tell that a browser was made to talk to them.
    fn crosses_protocols(&self) -> bool {
        let name = self.arg(0);
        self.plan.number == UNKNOWN && (name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:"))
    }
}

/// What a judgement needs to know beside the client and the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct World {
    /// Whether slots decide who answers.
    pub cluster: bool,
    /// Whether the client's commands go on connections that others use too.
    pub shared: bool,
    /// Whether the client is who the gateway is.
    pub trusted: bool,
}

/// What to do with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// This is its answer.
    Say(Cow<'static, [u8]>),
    /// This is its answer, and the last.
    SayAndClose(Cow<'static, [u8]>),
    /// The connection is closed without a word.
    Close,
    /// It comes again when this is over.
    Wait(Stall),
    /// First the client needs connections of its own; then it comes again.
    OwnConnections,
    /// This is its answer, and EXEC will run nothing.
    Poison(Vec<u8>),
    /// EXEC of a transaction in which something was refused; this is its answer.
    Abort(Cow<'static, [u8]>),
    /// MULTI: by what is watched it is said to the server at once, later, or never.
    Begin,
    /// Kept until a command with a key tells the node of the transaction.
    Queue,
    /// EXEC or DISCARD of what no server has heard of.
    EndUnsaid,
    /// MULTI goes to the node of this command, and the command behind it.
    Open,
    /// On the connection of the transaction.
    Within,
    /// The transaction will not run: answered here, as the server would.
    InLost,
    /// On a connection of its own until it is answered.
    Block,
    /// By the server's table: to one node or several.
    Ordinary,
    /// To any server, or to the only one.
    Anywhere,
    /// WATCH.
    Watch,
    /// What ends a WATCH, to the connection that watches; where that is lost, to another.
    EndWatch,
    /// SCAN over all masters.
    Scan,
    /// WAIT, WAITAOF: behind what was written last.
    Replicas,
    Subscribe,
    SubscribeSharded,
    Monitor,
    Auth,
    Hello,
    Select,
    Reset,
    Client,
    Cluster,
    Unslow,
}

fn say(text: &'static [u8]) -> Step {
    Step::Say(Cow::Borrowed(text))
}

impl Client {
    /// What to do with a command, `known` in the server's table.
    pub fn on_command(&self, command: &Command, known: &unslow_commands::Command, world: World) -> Step {
        let special = command.plan.special;
        let ends = matches!(special, Some(Special::Quit | Special::Reset));
        if command.crosses_protocols() {
            return Step::Close;
        }
        if self.set.is_none() && !ends && !matches!(special, Some(Special::Auth | Special::Hello)) {
            return say(b"-NOAUTH Authentication required.\r\n");
        }
        // How many confirmations an UNSUBSCRIBE of everything has depends on those that are to come.
        let subscribes = matches!(special, Some(Special::Subscribe | Special::Ssubscribe));
        if self.awaits_confirmations() && (!subscribes || self.subscriber.unsubscribing > 0 || command.len() == 1) {
            return Step::Wait(Stall::Confirmations);
        }
        match self.mode() {
            _ if ends => {}
            Mode::Subscriber => {
                if let Some(step) = self.as_subscriber(command, known) {
                    return step;
                }
            }
            Mode::Monitor => return say(b"-ERR unslow: only QUIT and RESET end MONITOR\r\n"),
            Mode::Transaction(at) => return self.in_transaction(at, command, known, world),
            Mode::Blocked | Mode::Streaming => return Step::Wait(Stall::Answers),
            Mode::Plain => {}
        }
        if may_close(command, known) && world.shared {
            return if self.pending.is_empty() { Step::OwnConnections } else { Step::Wait(Stall::Answers) };
        }
        match special {
            None if command.plan.blocking && self.pending.is_empty() => Step::Block,
            None if command.plan.blocking => Step::Wait(Stall::Answers),
            None => Step::Ordinary,
            Some(special) if !known.fits(command.len()) && !ends_watching(special) => {
                Step::Say(wrong_arity(command, known).into())
            }
            Some(special) if waits_for_answers(special) && !self.pending.is_empty() => Step::Wait(Stall::Answers),
            Some(special) => self.special(special, command, world),
        }
    }

    /// In RESP2 a subscriber may say little. None for what it may.
    fn as_subscriber(&self, command: &Command, known: &unslow_commands::Command) -> Option<Step> {
        match command.plan.special {
            Some(Special::Subscribe | Special::Ssubscribe) => None,
            Some(Special::Ping) if command.len() <= 2 => {
                let mut out = b"*2\r\n$4\r\npong\r\n".to_vec();
                bulk(&mut out, command.arg(1));
                Some(Step::Say(out.into()))
            }
            _ => {
                let name = known.name.to_lowercase();
                let why = format!(
                    "Can't execute '{name}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed \
                     in this context"
                );
                Some(Step::Say(error("ERR", &why).into()))
            }
        }
    }

    fn in_transaction(&self, at: Txn, command: &Command, known: &unslow_commands::Command, world: World) -> Step {
        let exec = command.is(Special::Exec);
        let Some(transaction) = self.transaction() else { return Step::InLost };
        if at == Txn::Lost {
            return Step::InLost;
        }
        if let Some(why) = not_in_transactions(command, known, world.cluster) {
            return Step::Poison(error("ERR", &why));
        }
        if exec && transaction.poisoned {
            let ready = self.pending.is_empty();
            return if ready { Step::Abort(aborted(command, known)) } else { Step::Wait(Stall::Answers) };
        }
        match at {
            Txn::Open => Step::Within,
            Txn::Said => self.unsaid(transaction, command, known, world),
            Txn::Lost => Step::InLost,
        }
    }

    /// The server has not heard of the transaction.
    fn unsaid(
        &self,
        transaction: &Transaction,
        command: &Command,
        known: &unslow_commands::Command,
        world: World,
    ) -> Step {
        let ends = matches!(command.plan.special, Some(Special::Exec | Special::Discard));
        let fits = known.fits(command.len());
        if ends && !fits {
            // EXEC with an argument ends it, DISCARD with one fails it, as on a server.
            let answer = wrong_arity(command, known);
            return if command.is(Special::Exec) { Step::EndUnsaid } else { Step::Poison(answer) };
        }
        if ends && (transaction.queued.is_empty() || command.is(Special::Discard)) {
            return Step::EndUnsaid;
        }
        // It names no node; the next one may. What the server would refuse it has to refuse itself.
        let waits = world.cluster
            && matches!(command.plan.special, None | Some(Special::Ping))
            && command.plan.key.is_none()
            && command.plan.number != UNKNOWN
            && !known.is_container()
            && fits
            && transaction.may_queue(command.bytes.len());
        match waits {
            true => Step::Queue,
            false if !self.pending.is_empty() => Step::Wait(Stall::Answers),
            false => Step::Open,
        }
    }

    /// The answer to a command of a transaction that will not run, as the server would have given it.
    pub fn in_lost(&mut self, command: &Command, known: &unslow_commands::Command) -> Cow<'static, [u8]> {
        let changed = self.watch.lost();
        let fits = known.fits(command.len()) || command.plan.number == UNKNOWN;
        let (exec, discard) = (command.is(Special::Exec), command.is(Special::Discard));
        let poisoned = match self.transaction_mut() {
            Some(transaction) => {
                transaction.poisoned |= !fits;
                transaction.poisoned
            }
            None => false,
        };
        if exec || discard && fits {
            self.end_transaction();
        }
        Cow::Borrowed(match () {
            () if !fits => return wrong_arity(command, known).into(),
            () if discard => b"+OK\r\n",
            () if exec && poisoned => b"-EXECABORT Transaction discarded because of previous errors.\r\n",
            // As if a watched key had changed, which nobody knows.
            () if exec && changed && self.proto == 3 => b"_\r\n",
            () if exec && changed => b"*-1\r\n",
            () if exec => {
                b"-EXECABORT unslow: the server's connection broke before EXEC; nothing of this transaction ran\r\n"
            }
            () if changed => b"+QUEUED\r\n",
            () => b"-ERR unslow: the server's connection broke; nothing of this transaction will run\r\n",
        })
    }

    fn special(&self, special: Special, command: &Command, world: World) -> Step {
        match special {
            Special::Ping if command.len() == 1 => say(b"+PONG\r\n"),
            Special::Ping if command.len() == 2 => {
                let mut out = Vec::new();
                bulk(&mut out, command.arg(1));
                Step::Say(out.into())
            }
            Special::Ping => say(b"-ERR wrong number of arguments for 'ping' command\r\n"),
            Special::Quit => Step::SayAndClose(Cow::Borrowed(b"+OK\r\n")),
            Special::Asking | Special::ReadOnly if world.cluster => say(b"+OK\r\n"),
            // A server without slots has no replicas to read from by them: what it says changes nothing.
            Special::Asking | Special::ReadOnly => Step::Anywhere,
            // Outside MULTI they end what is watched, where they are refused; whether they are a server says.
            Special::Exec | Special::Discard | Special::Unwatch if self.watch == Watch::Nothing => Step::Anywhere,
            Special::Exec | Special::Discard | Special::Unwatch => Step::EndWatch,
            Special::Multi => Step::Begin,
            Special::Watch => Step::Watch,
            Special::Scan if world.cluster => Step::Scan,
            Special::Scan => Step::Anywhere,
            Special::Wait => Step::Replicas,
            Special::Subscribe => Step::Subscribe,
            Special::Ssubscribe => Step::SubscribeSharded,
            Special::Monitor => Step::Monitor,
            Special::Auth => Step::Auth,
            Special::Hello => Step::Hello,
            Special::Select => Step::Select,
            Special::Reset => Step::Reset,
            Special::Client => Step::Client,
            Special::Cluster if world.cluster => Step::Cluster,
            Special::Cluster => Step::Anywhere,
            Special::Unslow if world.trusted => Step::Unslow,
            Special::Unslow => say(b"-NOPERM unslow: UNSLOW is for the user the gateway itself logs in as\r\n"),
            Special::Replicate => {
                say(b"-ERR unslow: replication does not go through a gateway; connect to the server itself\r\n")
            }
        }
    }
}

/// EXEC, even a wrong one, ends what is watched.
fn ends_watching(special: Special) -> bool {
    matches!(special, Special::Exec | Special::Discard | Special::Unwatch)
}

/// Commands that change what the connection is: whatever was said before is answered first.
fn waits_for_answers(special: Special) -> bool {
    matches!(
        special,
        Special::Watch
            | Special::Unwatch
            | Special::Exec
            | Special::Discard
            | Special::Multi
            | Special::Subscribe
            | Special::Ssubscribe
            | Special::Monitor
            | Special::Wait
            | Special::Auth
            | Special::Hello
            | Special::Select
            | Special::Reset
            | Special::Client
    )
}

/// Whether the server may close the connection that such a command comes on: a command of another name
/// (`rename-command`) may be QUIT or CLIENT KILL, and operators have SHUTDOWN, DEBUG and REPLICAOF.
fn may_close(command: &Command, known: &unslow_commands::Command) -> bool {
    let plan = &command.plan;
    let admin = || plan.admin && !HARMLESS.contains(&&*command.full_name(known));
    plan.special.is_none() && (plan.number == UNKNOWN || admin())
}

/// Commands that belong to the connection, or to all nodes, mean something else on the connection of a transaction to
/// one node.
fn not_in_transactions(command: &Command, known: &unslow_commands::Command, cluster: bool) -> Option<String> {
    let plan = &command.plan;
    let (name, keyless) = (command.full_name(known), plan.key.is_none());
    match plan.special {
        None if command.debugs_scripts(known) => Some(NO_DEBUGGER.into()),
        Some(
            Special::Client
            | Special::Auth
            | Special::Hello
            | Special::Subscribe
            | Special::Ssubscribe
            | Special::Monitor
            | Special::Unslow
            | Special::Replicate,
        ) => Some(format!("unslow: {} is about the connection, and is not taken within MULTI", known.name)),
        Some(Special::Cluster | Special::Scan) if cluster => {
            Some(format!("unslow: {name} is answered for all nodes, and a transaction is on one"))
        }
        None if cluster && keyless && plan.spread != Spread::Any => {
            Some(format!("unslow: {name} goes to several nodes, and a transaction to one"))
        }
        None if cluster && keyless && plan.admin && !HARMLESS.contains(&&*name) => Some(for_one_node(&name)),
        _ => None,
    }
}

/// See [`Command::debugs_scripts`].
pub const NO_DEBUGGER: &str =
    "unslow: the script debugger takes a connection for itself; connect to the server directly";

/// Why a command is refused whose meaning depends on the node.
pub fn for_one_node(name: &str) -> String {
    format!("unslow: {name} is for one node of a cluster, and a gateway would choose any; connect to the node itself")
}

/// The server's words for EXEC where something was refused before: it says what is wrong with EXEC itself first.
fn aborted(command: &Command, known: &unslow_commands::Command) -> Cow<'static, [u8]> {
    match known.fits(command.len()) {
        true => Cow::Borrowed(b"-EXECABORT Transaction discarded because of previous errors.\r\n"),
        false => Cow::Owned(wrong_arity(command, known)),
    }
}

/// The server's words for a command with too few or too many arguments.
pub fn wrong_arity(command: &Command, known: &unslow_commands::Command) -> Vec<u8> {
    let why = format!("wrong number of arguments for '{}' command", known.name.to_lowercase());
    match command.is(Special::Exec) {
        true => error("EXECABORT", &format!("Transaction discarded because of: {why}")),
        false => error("ERR", &why),
    }
}

#[cfg(test)]
mod tests;
