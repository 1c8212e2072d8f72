//! Why there is no run: a kind for the caller, a sentence for the person that says what was found and what to do.
//!
//! A sentence holds its whole cause and none of these errors has a `source()`, so printing the chain repeats nothing.

use std::io;
use std::path::PathBuf;

/// Why there is no run, or why it ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is out of bounds, or two do not go together. Found before any server is asked.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The workload is wrong in itself. Found before any server is asked.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// The deployment cannot take this workload.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A server could not be reached, or refused to be asked.
    #[error(transparent)]
    Client(#[from] unslow_client::Error),
    /// The generator itself failed.
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    /// A signal came before there was anything to report.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// When the signal came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Interrupted {
    /// While the deployment was looked at.
    #[error("interrupted before the first run; nothing was measured")]
    Preparing,
    /// While keys were written.
    #[error("interrupted while keys were written before the run; nothing was measured, and those keys stay there")]
    Preload,
    /// While the threads connected.
    #[error("interrupted before the run began")]
    Connecting,
}

/// Settings that cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    /// A number is too small or too large.
    #[error("{flag} {found}: it takes {low} to {high}")]
    Range {
        /// The flag.
        flag: &'static str,
        /// Its value.
        found: u64,
        /// The smallest.
        low: u64,
        /// The largest.
        high: u64,
    },
    /// `--pipeline` with a model that shares connections.
    #[error(
        "--pipeline needs connections of their own; with --model, the model decides how many requests are in \
         flight"
    )]
    PipelineOfModel,
    /// `--callers` in a closed loop over connections of their own.
    #[error("--callers needs a model that shares connections: --model pool:8, shared or multiplex:4")]
    CallersWithoutModel,
    /// A rate of nothing, or of far too much.
    #[error("--rate {0}: it takes requests per second, more than 0 and at most 100000000")]
    Rate(f64),
    /// `--rate` and `--speed`.
    #[error("--rate and --speed are two schedules; give one")]
    TwoSchedules,
    /// A length of nothing, or of more than a week.
    #[error("--seconds takes more than 0 and at most a week (604800)")]
    Length,
    /// A timeout of nothing, or of more than an hour.
    #[error("--timeout takes seconds, more than 0 and at most 3600")]
    Timeout,
    /// Subscribers without messages.
    #[error("--subscribers listen to what the built-in publish sends; add it: --mix publish=1")]
    NothingPublished,
    /// What cannot be done without a question to the servers.
    #[error("--plain {0}")]
    Plain(&'static str),
    /// More threads than connections.
    #[error("{threads} threads cannot share {lanes} connection{}; give --threads {lanes}", plural(.lanes))]
    ThreadsWithoutConnection {
        /// Threads of the generator.
        threads: usize,
        /// Connections to each server.
        lanes: usize,
    },
    /// More threads than callers.
    #[error("each thread needs a caller: give --callers at least as many as --threads")]
    ThreadsWithoutCaller,
}

fn plural(n: &usize) -> &'static str {
    if *n == 1 { "" } else { "s" }
}

/// A text that is not `own`, `pool:N`, `shared` or `multiplex:N`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown client model {0:?}; there are own, pool:N, shared and multiplex:N")]
pub struct UnknownModel(pub String);

/// A workload that is wrong in itself.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    /// No keys, or too many.
    #[error("{0} keys; the key space has 1 to 999,999,999,999")]
    Keys(u64),
    /// A replay together with something that is drawn.
    #[error("a replay sends what was recorded, so {0} has no part in it; leave one of the two out")]
    DrawnInReplay(&'static str),
    /// One that does more than read and write keys.
    #[error("{what} would be sent again and again; if that is meant, add --dangerous")]
    Dangerous {
        /// The command.
        what: String,
    },
    /// The same in a recording.
    #[error("{path}: line {line}: {what}; if it is to be sent, add --dangerous")]
    DangerousLine {
        /// The recording.
        path: String,
        /// Which, from 1.
        line: usize,
        /// The command.
        what: String,
    },
    /// No command calls the script.
    #[error("the script is not used; call it with --command \"EVALSHA {{sha}} 1 {{key}}\"")]
    ScriptUnused,
    /// Two commands of one name.
    #[error("two commands are called {0:?}; name one of them: --command \"{0}2=...\"")]
    SameName(String),
    /// A command that the mix leaves out.
    #[error("the mix gives {0:?} no share, so it would never be sent; add it: --mix ...,{0}=0.1")]
    NoShare(String),
    /// MULTI, SUBSCRIBE and the like.
    #[error(
        "{0} changes what its connection is, and the replies behind it; for blocks there is --multi, for messages \
         --subscribers"
    )]
    ChangesConnection(String),
    /// Shares that add up to nothing, or are no numbers.
    #[error("the shares of the mix are numbers of 0 or more, and one of them is more")]
    Shares,
    /// More kinds of commands than there is room for.
    #[error("{0} kinds of commands; 200 are the most")]
    TooManyKinds(usize),
    /// A MULTI block that is too long.
    #[error("a MULTI block of at most 1000 commands")]
    LongBlock,
    /// `verify` without a plain `get`.
    #[error("verify compares what the built-in `get` brings: it needs get in the mix, and no multi")]
    NothingToVerify,
    /// A name in the mix that stands for no command.
    #[error("the mix names {name:?}, which is not a built-in command (any other: --command \"{name}=...\"){hint}")]
    UnknownCommand {
        /// The name.
        name: String,
        /// What was probably meant.
        hint: String,
    },
    /// A prefix that would not be one word.
    #[error("--key-prefix has no blanks and no quotes")]
    KeyPrefix,
    /// A Zipf exponent that is none.
    #[error("{0:?}: zipf takes an exponent above 0, as zipf:0.99")]
    Zipf(String),
    /// Shares of hot keys that are none.
    #[error("hot takes two shares, as hot:0.2:0.8 (a fifth of the keys, four fifths of the requests)")]
    Hot,
    /// No distribution of this name.
    #[error("unknown key distribution {0:?}; there are uniform, zipf[:EXPONENT], hot[:KEYS:REQUESTS] and sequential")]
    Distribution(String),
    /// A size of values that cannot be read.
    #[error(
        "invalid value size {0:?}; expected a size (64, 10kb), a range (16-1024) or sizes with weights \
         (64:0.7,1kb:0.3), each at most 512 MiB"
    )]
    ValueSize(String),
    /// A command template that cannot be read.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// A recording that cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
}

/// A command template that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// No words.
    #[error("an empty command")]
    Empty,
    /// Its words cannot be told apart: a quote is not closed.
    #[error("{0}")]
    Words(String),
    /// `{key} x`.
    #[error("{0:?}: the command's name cannot be a placeholder")]
    NoName(String),
    /// `{key`.
    #[error("{0:?}: a brace is not closed; a plain brace is written {{{{")]
    OpenBrace(String),
    /// `key}`.
    #[error("{0:?}: a }} without its {{; a plain brace is written }}}}")]
    LoneBrace(String),
    /// `{sha}` without a script.
    #[error("{{sha}} is the digest of the script given with --script FILE")]
    NoScript,
    /// `{kee}`.
    #[error(
        "no placeholder {{{0}}}; there are {{key}}, {{value}}, {{seq}}, {{now}} and {{sha}}, and {{{{ is a plain \
         brace"
    )]
    UnknownPlaceholder(String),
}

impl From<unslow_template::Error> for TemplateError {
    fn from(error: unslow_template::Error) -> TemplateError {
        use unslow_template::Error;
        match error {
            Error::Empty => TemplateError::Empty,
            Error::Words(why) => TemplateError::Words(why.to_string()),
            Error::Unclosed(word) => TemplateError::OpenBrace(word),
            Error::Unopened(word) => TemplateError::LoneBrace(word),
            Error::NotText(name) => TemplateError::UnknownPlaceholder(name),
        }
    }
}

/// A file of recorded commands that cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[error("{}: {why}", .path.display())]
pub struct RecordingError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: BadRecording,
}

/// What is wrong with a recording.
#[derive(Debug, thiserror::Error)]
pub enum BadRecording {
    /// It cannot be opened.
    #[error("{0}")]
    Unopened(io::Error),
    /// It cannot be read to its end.
    #[error("line {line}: {why}")]
    Unreadable {
        /// Where, from 1.
        line: usize,
        /// As the system says it.
        why: io::Error,
    },
    /// The words of a line cannot be told apart.
    #[error("line {line}: {why}")]
    Words {
        /// Which, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
    /// A line that begins with something else than a command.
    #[error("line {line}: invalid command name {name:?}")]
    Name {
        /// Which, from 1.
        line: usize,
        /// Its first word.
        name: String,
    },
    /// More kinds of commands than there is room for.
    #[error("line {0}: more than 200 kinds of commands")]
    TooManyKinds(usize),
    /// There is nothing to send.
    #[error("no command in it; expected MONITOR's output or one command a line")]
    Empty,
}

/// A deployment that cannot take this workload.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// A text that should name a server.
    #[error("invalid address {0:?}")]
    Address(String),
    /// Nothing owns the data.
    #[error("no master is known")]
    NoMaster,
    /// It has only just been started.
    #[error("{0}: the server is reading its data set; wait until it has (INFO persistence)")]
    Loading(String),
    /// The script's file.
    #[error("{}: {why}", .path.display())]
    ScriptUnreadable {
        /// The file.
        path: PathBuf,
        /// As the system says it.
        why: io::Error,
    },
    /// SCRIPT LOAD failed.
    #[error("{}: the server does not take the script: {why}", .path.display())]
    ScriptRefused {
        /// The file.
        path: PathBuf,
        /// What the server says.
        why: unslow_client::Error,
    },
    /// Writes would go to a replica.
    #[error(
        "{address} is a replica, and {write} writes; give its master's address, or a mix that only reads with \
         --no-preload"
    )]
    Replica {
        /// The server.
        address: String,
        /// The command.
        write: String,
    },
    /// Reads should go to replicas, and there are none.
    #[error("no replica is known there that reads could be sent to")]
    NoReplica,
    /// Reads should go to replicas, and nothing is a read.
    #[error(
        "nothing in the mix is a read that replicas may answer (by COMMAND INFO; a block is as much as its worst \
         command)"
    )]
    NoReads,
    /// `--speed` and a recording without times, or none.
    #[error("--speed needs a recording with times (--replay of MONITOR's output); use --rate")]
    Untimed,
    /// COMMAND INFO does not know it.
    #[error("the server knows no command {0}; is it a module's, or misspelt?")]
    UnknownCommand(String),
    /// Too many arguments, or too few.
    #[error(
        "{name} takes {}{takes} argument(s) and the command {command:?} gives it {gives}; look at its template",
        at_least(.or_more)
    )]
    Arguments {
        /// The server's command.
        name: String,
        /// How many it takes.
        takes: i64,
        /// Whether more are fine.
        or_more: bool,
        /// The template's name in the mix.
        command: String,
        /// How many that gives.
        gives: i64,
    },
    /// A read was tried once and refused.
    #[error("the server refuses {command:?}: {why}{}", other_type(.why))]
    Refused {
        /// Its name in the mix.
        command: String,
        /// What the server says.
        why: unslow_client::Error,
    },
    /// The preload got stuck.
    #[error("{missing} of {total} keys could not be written before the run{}; --no-preload measures without them",
        because(.example))]
    Unwritten {
        /// Keys that are not there.
        missing: u64,
        /// Keys there should be.
        total: u64,
        /// One of the errors, if there were any.
        example: Option<String>,
    },
}

fn at_least(or_more: &bool) -> &'static str {
    if *or_more { "at least " } else { "" }
}

fn other_type(why: &unslow_client::Error) -> &'static str {
    match why.code() {
        Some("WRONGTYPE") => "; keys of another type stand there: give another --key-prefix",
        _ => "",
    }
}

fn because(example: &Option<String>) -> String {
    example.as_ref().map_or(String::new(), |e| format!(": {e}"))
}

/// The generator failed, not the servers.
#[derive(Debug, thiserror::Error)]
pub enum GeneratorError {
    /// The system gives no thread.
    #[error("thread {index} of the generator could not be started: {why}")]
    NoThread {
        /// Counted from 0.
        index: usize,
        /// As the system says it.
        why: io::Error,
    },
    /// A thread has no descriptors for its event loop.
    #[error("no event loop: {0}; raise the limit of open files (ulimit -n)")]
    NoEventLoop(io::Error),
    /// The event loop of a thread failed during the run.
    #[error("the event loop failed: {0}")]
    EventLoop(io::Error),
    /// This user may not have as many files open, and a connection is one.
    #[error(
        "{connections} connections to each of {servers} server{} need {needed} open files, and this user may have \
         {limit}: raise the limit (ulimit -n {needed}), or ask for fewer connections",
        if *servers == 1 { "" } else { "s" }
    )]
    TooFewFiles {
        /// Files, those beside connections included.
        needed: u64,
        /// `ulimit -Hn`.
        limit: u64,
        /// Servers that are connected to.
        servers: usize,
        /// To each server.
        connections: usize,
    },
    /// Each connection to one address needs a port of its own on this machine.
    #[error(
        "{connections} connections to one address need as many local ports, and this machine gives {ports}: widen \
         net.ipv4.ip_local_port_range, or ask for fewer connections"
    )]
    TooFewPorts {
        /// To each server.
        connections: usize,
        /// `net.ipv4.ip_local_port_range`.
        ports: usize,
    },
    /// There are no descriptors for the connections that were asked for.
    #[error("{address}: {why}; {connections} connections were asked for: raise `ulimit -n`")]
    NoSocket {
        /// The server.
        address: String,
        /// As the system says it.
        why: io::Error,
        /// To each server.
        connections: usize,
    },
    /// None of a thread's connections could be opened: what the first said.
    #[error("{0}")]
    NotConnected(String),
    /// The threads are gone, and none said why.
    #[error("the generator's threads ended")]
    Ended,
    /// The thread that adds up panicked.
    #[error("the generator's collector died; this is a defect of unslow")]
    Collector,
}

/// The interval log could not be written. The run's results are not touched by it.
#[derive(Debug, thiserror::Error)]
#[error("{}: the log could not be written: {why}", .path.display())]
pub struct LogError {
    /// The file.
    pub path: PathBuf,
    /// What failed.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_says_its_cause_once_and_has_no_source_to_repeat_it() {
        let path = PathBuf::from("orders.txt");
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let why = BadRecording::Unreadable { line: 3, why: denied() };
        let all: [(Error, &str); 4] = [
            (Error::from(WorkloadError::from(RecordingError { path: path.clone(), why })), "orders.txt: line 3: "),
            (Unfit::ScriptUnreadable { path, why: denied() }.into(), "orders.txt: "),
            (GeneratorError::NoThread { index: 2, why: denied() }.into(), "thread 2 of the generator"),
            (Interrupted::Preload.into(), "interrupted while keys were written"),
        ];
        for (error, begins) in all {
            let text = error.to_string();
            assert!(text.starts_with(begins) && std::error::Error::source(&error).is_none(), "{text}");
        }
    }

    #[test]
    fn braces_and_plurals_come_out_as_a_person_types_them() {
        let said = [
            TemplateError::OpenBrace("a{key".into()).to_string(),
            TemplateError::LoneBrace("key}".into()).to_string(),
            TemplateError::NoScript.to_string(),
            TemplateError::UnknownPlaceholder("kee".into()).to_string(),
            SettingsError::ThreadsWithoutConnection { threads: 4, lanes: 1 }.to_string(),
            SettingsError::ThreadsWithoutConnection { threads: 4, lanes: 2 }.to_string(),
        ];
        assert_eq!(
            said,
            [
                "\"a{key\": a brace is not closed; a plain brace is written {{",
                "\"key}\": a } without its {; a plain brace is written }}",
                "{sha} is the digest of the script given with --script FILE",
                "no placeholder {kee}; there are {key}, {value}, {seq}, {now} and {sha}, and {{ is a plain brace",
                "4 threads cannot share 1 connection; give --threads 1",
                "4 threads cannot share 2 connections; give --threads 2",
            ]
        );
    }

    #[test]
    fn a_refused_command_says_what_else_to_try_by_the_code_of_the_reply() {
        let unfit = |arguments: (i64, bool)| Unfit::Arguments {
            name: "GET".into(),
            takes: arguments.0,
            or_more: arguments.1,
            command: "get".into(),
            gives: 3,
        };
        let text = unfit((1, false)).to_string();
        assert_eq!(text, "GET takes 1 argument(s) and the command \"get\" gives it 3; look at its template");
        assert!(unfit((2, true)).to_string().starts_with("GET takes at least 2 argument(s)"));
        let unwritten = |example: Option<&str>| {
            Unfit::Unwritten { missing: 1, total: 2, example: example.map(str::to_string) }.to_string()
        };
        assert!(unwritten(Some("OOM")).starts_with("1 of 2 keys could not be written before the run: OOM; --no"));
        assert!(unwritten(None).contains("before the run; --no-preload"));
    }
}
