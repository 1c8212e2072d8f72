//! Why a drill or a case did not come to a verdict: a kind for the caller, a sentence for the person.
//!
//! A sentence holds its whole cause, and none of these errors adds a `source()`, so printing the chain repeats nothing.

use std::io;
use std::path::PathBuf;

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No drill, case or fault has this name.
    #[error("no {what} {name:?}{hint}")]
    UnknownName {
        /// `drill`, `case` or `fault`.
        what: &'static str,
        /// As it was typed.
        name: String,
        /// What was probably meant, or what there is.
        hint: String,
    },
    /// A drill's file has something else in it.
    #[error(transparent)]
    BadDrill(#[from] BadDrill),
    /// A run would not fit into memory.
    #[error(transparent)]
    TooManyOperations(#[from] TooManyOperations),
    /// The servers, or the lab, are not what the drill needs.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A case cannot be played, or its figures mean nothing.
    #[error(transparent)]
    Case(#[from] CaseError),
    /// The lab could not start its servers, or a server in it does not do what it was asked.
    #[error(transparent)]
    Server(#[from] unslow_engine::Error),
    /// A connection failed, or a command was refused.
    #[error(transparent)]
    Client(#[from] unslow_client::Error),
    /// A network of the lab could not be entered.
    #[error("{place}: {why}")]
    Network {
        /// Which server's or host's.
        place: String,
        /// As the system says it.
        why: io::Error,
    },
    /// A program did not start, or failed.
    #[error("{command}: {why}")]
    Program {
        /// As it would be typed.
        command: String,
        /// As it says it, or the system.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {why}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// As the system says it.
        why: io::Error,
    },
    /// A file that is too long for a drill.
    #[error("{}: longer than {most} bytes; this is not a drill", .path.display())]
    NoDrill {
        /// The file.
        path: PathBuf,
        /// No drill is longer.
        most: u64,
    },
    /// The evidence cannot be kept.
    #[error("{}: {why}; choose another place with --store DIRECTORY", .path.display())]
    Store {
        /// The file or directory.
        path: PathBuf,
        /// As the system says it.
        why: io::Error,
    },
    /// The store has too many folders of this second.
    #[error("{}: there are already a thousand runs of this second", .0.display())]
    StoreCrowded(PathBuf),
    /// A report is no JSON, or cannot become it.
    #[error("{0}")]
    Json(serde_json::Error),
    /// A restart left the process as it was.
    #[error("{0} should have been restarted, but still has its old process")]
    NotRestarted(String),
    /// What a client wrote could not be read at the end.
    #[error("the set of client {0} could not be read")]
    SetUnread(u32),
    /// Not enough clients got an answer.
    #[error("{had} of {all} clients had an answer within {patience_s} s")]
    NoAnswer {
        /// Clients that had one.
        had: usize,
        /// All of them.
        all: usize,
        /// How long was waited, in seconds.
        patience_s: u64,
    },
    /// A run that ended, and before that had something that explains it.
    #[error("{ended} ({})", .why.join("; "))]
    Beside {
        /// What ended it.
        ended: Box<Error>,
        /// What was found before.
        why: Vec<String>,
    },
    /// A signal.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    /// `unslow` with these arguments failed.
    pub(crate) fn unslow(arguments: &[&str], why: impl std::fmt::Display) -> Error {
        Error::Program { command: format!("unslow {}", arguments.join(" ")), why: why.to_string() }
    }

    /// With what was found before and may explain it.
    pub(crate) fn beside(self, why: &[String]) -> Error {
        match why {
            [] => self,
            why => Error::Beside { ended: Box::new(self), why: why.to_vec() },
        }
    }

    /// No fault is called so.
    pub(crate) fn unknown_fault(name: &str, all: &[&str]) -> Error {
        Error::UnknownName { what: "fault", name: name.into(), hint: format!("; there are {}", all.join(", ")) }
    }
}

/// A drill's file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("drill {drill}: {}{why}", within(.variant))]
pub struct BadDrill {
    /// Its name.
    pub drill: String,
    /// The variant that cannot be used, if it is not the whole.
    pub variant: Option<String>,
    /// What is wrong with it.
    pub why: Box<BadPlan>,
}

fn within(variant: &Option<String>) -> String {
    variant.as_ref().map_or(String::new(), |label| format!("variant {label:?}: "))
}

/// What is wrong with a drill.
#[derive(Debug, thiserror::Error)]
pub enum BadPlan {
    /// It is no TOML, or has names and values that a drill has not.
    #[error("{0}")]
    Syntax(String),
    /// `variant = [1]`.
    #[error("a [[variant]] must be a table")]
    VariantNoTable,
    /// `[variant]`.
    #[error("a variant is written as [[variant]]")]
    VariantNoList,
    /// Nobody could ask for it.
    #[error("a [[variant]] needs a name")]
    VariantNameless,
    /// Nobody could tell them apart.
    #[error("two variants are named {0:?}")]
    VariantTwice(String),
    /// `do = "kil"`.
    #[error(transparent)]
    UnknownFault(#[from] unslow_engine::Error),
    /// `do = []`.
    #[error("a [[fault]] with do = []: expected at least one fault")]
    FaultEmpty,
    /// Two faults with several names.
    #[error("two faults with alternatives: only one may have several names under `do`")]
    AlternativesTwice,
    /// A restart that is none.
    #[error("rolling_restart with value = {0:?}: expected \"failover\", or no value")]
    RestartValue(String),
    /// Commands per second.
    #[error("rate_per_s = {0}: expected 0.1 to 10000")]
    Rate(f64),
    /// Locks, and how long they are held.
    #[error("expected locks = 1 to 1000 and a ttl of 100ms or more")]
    Locks,
    /// Clients of each kind.
    #[error("expected a load of 1 to 64 clients of each kind")]
    Clients,
    /// A zone that the lab has not.
    #[error("load.zones: no zone {zone:?}{hint}")]
    UnknownZone {
        /// Its name.
        zone: String,
        /// What was probably meant, or what there is.
        hint: String,
    },
    /// The lab it describes is none.
    #[error("[lab]: {0}")]
    Lab(String),
    /// An expectation that this load says nothing about.
    #[error("expect.{name}: a load of kind {load:?} cannot test it")]
    NotShown {
        /// The expectation.
        name: &'static str,
        /// The load's kind.
        load: &'static str,
    },
    /// `lost_later` alone.
    #[error("expect.lost_later without lost_within: later than what?")]
    LaterThanWhat,
    /// `linearizable = false`.
    #[error("expect.linearizable = false: set it to true, or leave it out (it is reported either way)")]
    NotLinearizable,
    /// A run would not fit into memory.
    #[error(transparent)]
    TooManyOperations(#[from] TooManyOperations),
}

/// More operations than there is memory for: what is seen of each stays there until it is judged.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "up to {operations:.0} operations: use fewer clients, a lower rate_per_s or a shorter drill; the limit is \
     {most:.0}"
)]
pub struct TooManyOperations {
    /// So many it could be.
    pub operations: f64,
    /// So many there may be.
    pub most: f64,
}

/// Servers, or a lab, that are not what a drill needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// The drill describes none.
    #[error("this drill has no lab")]
    NoLab,
    /// The drill of clients has none.
    #[error("client_recovery has no fault")]
    NoFault,
    /// Nothing to break.
    #[error("this lab has no servers")]
    NoServers,
    /// Nowhere to look from.
    #[error("this lab has no hosts for clients (clients = 0 in every zone)")]
    NoHosts,
    /// None in this zone.
    #[error("the lab has no host for clients")]
    NoHost,
    /// One server alone.
    #[error("expected a cluster")]
    NoCluster,
    /// Sentinels of several groups, and none was named.
    #[error("these Sentinels watch {}; say which: redis+sentinel://HOST:PORT/{}", .0.join(", "), first(.0))]
    SeveralGroups(Vec<String>),
    /// Every one that was asked is silent.
    #[error("no node answers")]
    NobodyAnswers,
    /// Every one says that it is a replica.
    #[error("no server reports that it is master")]
    NoMaster,
    /// Masters without slots.
    #[error("no master of this cluster owns slots")]
    NoSlots,
    /// Nothing to hang.
    #[error("no shard is known")]
    NoShard,
    /// Nobody who could order a failover.
    #[error("no Sentinel is known")]
    NoSentinel,
    /// Nobody who could take over.
    #[error("the first shard has no replica that could take over")]
    NoReplica,
    /// A failover of a server that is alone.
    #[error("a failover needs a cluster, or a redis+sentinel:// URL; here, use --fault hang or none")]
    NoFailover,
    /// DEBUG is switched off.
    #[error(
        "{node} refuses DEBUG SLEEP ({said}); put enable-debug-command yes into its configuration and restart it, or \
         use --fault none and stop it yourself"
    )]
    NoDebugSleep {
        /// The server.
        node: String,
        /// Its answer.
        said: String,
    },
    /// A fault that only a lab can have.
    #[error("{fault} is not possible here; there are {}", .others.join(", "))]
    LabOnly {
        /// Its name.
        fault: String,
        /// Those that can be done.
        others: &'static [&'static str],
    },
}

fn first(names: &[String]) -> &str {
    names.first().map_or("", String::as_str)
}

/// A case that cannot be played, or whose figures mean nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// The load beside the diagnosis was not there to its end.
    #[error("the other clients, `unslow bench`, ended while the doctor was looking")]
    NoOthers,
    /// Its file.
    #[error("cases/{case}.toml: {why}")]
    Story {
        /// Its name.
        case: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A figure of the experiment is missing.
    #[error("{0}: expected a number under [numbers]")]
    NoNumber(String),
    /// A figure was set that no case has.
    #[error("none of the selected cases has a number named {name}; {known}")]
    UnknownNumber {
        /// Its name.
        name: String,
        /// Those there are, as a sentence.
        known: String,
    },
    /// A figure was set to what cannot be run, or not on one machine.
    #[error("{name}={given}: expected a whole number from 1 to {most}, ten times the case's own")]
    OutOfRange {
        /// Its name.
        name: String,
        /// What was given.
        given: u64,
        /// The most there may be.
        most: u64,
    },
    /// The case comes to its end with odd numbers only; its file says why.
    #[error("{name}={given}: expected an odd number, like the case's own {own}")]
    Even {
        /// Its name.
        name: String,
        /// What was given.
        given: u64,
        /// The case's own.
        own: u64,
    },
    /// There is no diagnosis in it to stop at.
    #[error("this case does not use the doctor: its drills are the answer")]
    AsksNothing,
    /// A drill it plays has changed.
    #[error("drill {drill} has no variant {variant:?}")]
    NoVariant {
        /// The drill.
        drill: String,
        /// The variant.
        variant: String,
    },
    /// Zones need rights that this user has not.
    #[error("this case needs zones with a round trip between them, which take root or user namespaces")]
    NoZones,
    /// The lab has too few clients.
    #[error("the lab does not have a client in each zone")]
    NoClients,
    /// The shard that is looked at lost its master.
    #[error("that shard has no master")]
    NoMaster,
    /// Nothing to compare with.
    #[error("no newer engine was measured")]
    NoNewerEngine,
    /// A plan with other lines than can be applied here.
    #[error("not a redis-cli -h HOST -p PORT line: {0}")]
    NotRedisCli(String),
    /// Answers were wrong: their speed means nothing.
    #[error("{0} values were not what had been written")]
    WrongValues(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_says_its_cause_once_and_has_no_source_to_repeat_it() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let path = PathBuf::from("store/kill");
        let bad = BadDrill { drill: "d".into(), variant: Some("a".into()), why: Box::new(BadPlan::Clients) };
        let fault = unslow_engine::Error::new("no fault \"kil\"");
        let whole = BadDrill { drill: "d".into(), variant: None, why: Box::new(fault.into()) };
        let lab_only = Unfit::LabOnly { fault: "kill".into(), others: &["hang", "none"] };
        let groups = Unfit::SeveralGroups(vec!["a".into(), "b".into()]);
        let all: [(Error, &str); 6] = [
            (Error::Store { path, why: full() }, "store/kill: "),
            (bad.into(), "drill d: variant \"a\": expected a load of 1 to 64 clients of each kind"),
            (whole.into(), "drill d: no fault \"kil\""),
            (groups.into(), "these Sentinels watch a, b; say which: redis+sentinel://HOST:PORT/a"),
            (lab_only.into(), "kill is not possible here; there are hang, none"),
            (Error::unslow(&["doctor", "url"], "it ended"), "unslow doctor url: it ended"),
        ];
        for (error, begins) in all {
            let text = error.to_string();
            assert!(text.starts_with(begins) && std::error::Error::source(&error).is_none(), "{text}");
        }
    }

    #[test]
    fn an_expected_number_of_operations_is_told_with_the_most_there_may_be() {
        let text = TooManyOperations { operations: 31e6, most: 30e6 }.to_string();
        assert!(text.starts_with("up to 31000000 operations: ") && text.ends_with(" the limit is 30000000"), "{text}");
    }
}
