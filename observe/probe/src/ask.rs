//! A connection that counts what it asks, and turns refusals into reasons.

use std::time::{Duration, Instant};

use unslow_client::{Deployment, Error, ErrorKind, Options, ReadOnly, Target, Value};
use unslow_facts::{Gap, Lack, Own, Seen};

use crate::now_ms;
use crate::tally::Tally;

pub struct Ask {
    connection: ReadOnly,
    pub own: Own,
    /// Where the questions of this connection are counted together with those of others, if they are.
    tally: Option<Tally>,
    /// Commands the server executed for us since the connection was opened, by its own way of counting.
    pub executed: u64,
    counting: bool,
    /// When the last question was sent: where the connection was lost, the one that lost it.
    asked: Instant,
    lost: bool,
}

/// Of the greeting: AUTH, HELLO, CLIENT SETNAME and a PING, at most.
const GREETING: u64 = 4;

impl Ask {
    pub fn open(target: &Target, options: &Options) -> Result<Ask, Error> {
        let connection = ReadOnly::open(target, options)?;
        let own = Own { total: GREETING, ..Own::default() };
        Ok(Ask {
            connection,
            own,
            tally: None,
            executed: GREETING,
            counting: false,
            asked: Instant::now(),
            lost: false,
        })
    }

    /// A connection whose commands all count in `tally`, from the greeting on. A greeting that times out counts as
    /// well: the server executes it when it can.
    pub fn open_counted(target: &Target, options: &Options, tally: &Tally) -> Result<Ask, Error> {
        let mut ask = Ask::open(target, options).inspect_err(|e| {
            if e.kind == ErrorKind::Timeout {
                // The PING waits for the answers to the rest, if there is a rest.
                let greeting = greeting(target, options, options.protocol);
                tally.count(|own| greet(own, &greeting[..greeting.len().saturating_sub(1).max(1)]));
            }
        })?;
        (ask.own, ask.tally) = (Own::default(), Some(tally.clone()));
        ask.begin_window();
        ask.greeted(target, options);
        Ok(ask)
    }

    /// Another connection, for the questions that are left. In the window its greeting is ours too.
    pub fn again(&mut self, target: &Target, options: &Options) -> Result<(), Error> {
        self.connection = ReadOnly::open(target, options)?;
        self.lost = false;
        let greeting = greeting(target, options, self.connection().protocol).len() as u64;
        self.executed += greeting;
        if self.counting {
            self.greeted(target, options);
        } else {
            self.own.total += greeting;
        }
        Ok(())
    }

    /// Counts the greeting of this connection as ours: it fell into the window.
    fn greeted(&mut self, target: &Target, options: &Options) {
        let greeting = greeting(target, options, self.connection().protocol);
        self.count(|own| greet(own, &greeting));
    }

    fn count(&mut self, count: impl Fn(&mut Own)) {
        count(&mut self.own);
        self.tally.iter().for_each(|tally| tally.count(&count));
    }

    pub fn connection(&self) -> &unslow_client::Connection {
        self.connection.connection()
    }

    /// What is asked from here on is ours in the window, and nothing that was asked before: the window begins with the
    /// first INFO, which the last one's counters hold.
    pub fn begin_window(&mut self) {
        self.own.commands.clear();
        self.own.errors.clear();
        self.own.reads = 0;
        self.counting = true;
    }

    /// The question that ends the window: an answer does not count itself. One that was refused or came too late
    /// counts. Not for a connection with a [`Tally`], which has no end.
    pub fn last<T>(&mut self, ask: impl FnOnce(&mut Ask) -> Result<T, Error>) -> Result<T, Error> {
        let before = (self.own.commands.clone(), self.own.reads);
        let answer = ask(self);
        if answer.is_ok() {
            (self.own.commands, self.own.reads) = before;
        }
        answer
    }

    /// Since the last question was sent, or the one that lost the connection.
    pub fn waited(&self) -> Duration {
        self.asked.elapsed()
    }

    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, Error> {
        if self.lost {
            return self.connection.call(args); // sends nothing
        }
        self.asked = Instant::now();
        self.asking(&[args]);
        let reply = self.connection.call(args);
        self.lost = reply.as_ref().is_err_and(Error::is_fatal);
        self.answered(args, reply.as_ref().err());
        reply
    }

    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Result<Vec<Result<Value, Error>>, Error> {
        if self.lost {
            return self.connection.pipeline(commands);
        }
        self.asked = Instant::now();
        self.asking(commands);
        let replies = self.connection.pipeline(commands);
        self.lost = replies.as_ref().is_err_and(Error::is_fatal);
        for (i, command) in commands.iter().enumerate() {
            let error = match &replies {
                Ok(replies) => replies.get(i).and_then(|r| r.as_ref().err()),
                Err(e) => Some(e),
            };
            self.answered(command, error);
        }
        replies
    }

    /// Counts commands before they are sent: another connection's INFO may show them before their replies are read.
    fn asking<A: AsRef<[u8]>, C: AsRef<[A]>>(&mut self, commands: &[C]) {
        if !self.counting {
            self.own.total += commands.len() as u64;
            return;
        }
        let names: Vec<String> = commands.iter().map(|command| name_in_stats(command.as_ref())).collect();
        self.count(|own| {
            own.reads += 1;
            names.iter().for_each(|name| own.executed(name));
        });
    }

    /// Corrects the count if the command was refused.
    fn answered<A: AsRef<[u8]>>(&mut self, args: &[A], error: Option<&Error>) {
        let executed = error.is_none_or(was_executed);
        self.executed += u64::from(executed);
        let code = error.and_then(Error::code);
        if !self.counting || error.is_none() {
            return;
        }
        let name = name_in_stats(args);
        self.count(|own| match (executed, code) {
            (false, code) => own.was_refused(&name, code),
            (true, Some(code)) => own.failed(code),
            (true, None) => {}
        });
    }
}

/// What finding a deployment has cost the server that was asked first, and its address: the greeting of a connection,
/// and the questions on it.
pub fn asked(found: &Deployment, target: &Target, options: &Options) -> (String, Own) {
    let mut own = Own::default();
    let (address, questions) = &found.asked;
    if !questions.is_empty() {
        let greeting = greeting(target, options, options.protocol);
        greeting.into_iter().for_each(|command| own.executed(command));
        questions.iter().for_each(|words| own.executed(&name_in_stats(words)));
        // The first two come in one write, and so does the greeting, but for its PING.
        own.reads = questions.len() as u64 + 1;
    }
    (address.clone(), own)
}

/// All of a greeting but its PING comes in one write.
fn greet(own: &mut Own, greeting: &[&str]) {
    own.reads += greeting.len().min(2) as u64;
    greeting.iter().for_each(|command| own.executed(command));
}

/// What the server executes before a connection is ready, as commandstats names it.
fn greeting(target: &Target, options: &Options, protocol: u8) -> Vec<&'static str> {
    [
        (target.password.is_some() || target.user.is_some(), "auth"),
        (protocol == 3, "hello"),
        (options.name.is_some(), "client|setname"),
        (target.db != 0, "select"),
        (true, "ping"),
    ]
    .into_iter()
    .filter_map(|(sent, name)| sent.then_some(name))
    .collect()
}

/// Whether a command with this error is among `total_commands_processed` and the calls of its `cmdstat` line. What the
/// server refuses before it looks at the arguments is in neither. (processCommand() and call() of server.c, 5.0 to 8.0)
/// What was not answered in time is executed late; what met a closed connection is not.
fn was_executed(e: &Error) -> bool {
    let refused = matches!(
        e.kind,
        ErrorKind::Denied
            | ErrorKind::Unknown
            | ErrorKind::AuthRequired
            | ErrorKind::Loading
            | ErrorKind::NotAllowed
            | ErrorKind::Closed
    );
    !refused && e.code().is_none_or(|code| matches!(code, "ERR" | "WRONGTYPE"))
}

/// As commandstats names commands since 7.0: `config|get`.
fn name_in_stats<A: AsRef<[u8]>>(args: &[A]) -> String {
    const WITH_SUB: &[&str] = &["config", "slowlog", "commandlog", "latency", "client", "cluster", "acl"];
    let word =
        |i: usize| args.get(i).map(|a| String::from_utf8_lossy(a.as_ref()).to_ascii_lowercase()).unwrap_or_default();
    let name = word(0);
    if WITH_SUB.contains(&name.as_str()) { format!("{name}|{}", word(1)) } else { name }
}

/// What was found, or why nothing was.
pub fn seen<T>(result: Result<T, Error>, source: &str) -> Seen<T> {
    match result {
        Ok(value) => Seen::yes(value, source.to_string(), now_ms()),
        Err(e) => unseen(&e, source),
    }
}

pub fn unseen<T>(e: &Error, source: &str) -> Seen<T> {
    let words: Vec<String> = source.split_whitespace().take(2).map(str::to_ascii_lowercase).collect();
    let with_sub = ["config", "slowlog", "commandlog", "latency", "client", "cluster", "acl", "sentinel"]
        .contains(&words[0].as_str());
    let rule = if with_sub { words.join("|") } else { words[0].clone() };
    let gap = match e.kind {
        ErrorKind::Denied => {
            Gap::new(Lack::Rights, format!("{source} is denied to this user"), format!("ACL SETUSER <user> +{rule}"))
        }
        ErrorKind::Unknown => Gap::new(
            Lack::Version,
            format!("{source} is not there: an older server, or a service that removed it"),
            "the provider's console or support, where it is a managed service",
        ),
        ErrorKind::Loading => Gap::new(
            Lack::Answer,
            format!("{source}: the server is loading its data set"),
            "run again when INFO says loading:0",
        ),
        _ if e.code() == Some("BUSY") => Gap::new(
            Lack::Answer,
            format!("{source}: the server is running a script past its time limit and refuses everything else"),
            "run again when the script has ended",
        ),
        _ if e.is_fatal() => Gap::new(Lack::Answer, e.message.as_str(), ""),
        _ => Gap::new(Lack::Other, e.message.as_str(), ""),
    };
    Seen::No(gap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_commands_reads_and_errors_are_counted_as_the_server_counts_them() {
        let mut replies = [
            "+PONG",                                           // the greeting
            "+PONG",                                           // before the window
            "$0\r\n",                                          // the first INFO
            "-NOPERM this user has no permissions",            // CONFIG GET: refused, not executed
            "-ERR This instance has cluster support disabled", // CLUSTER INFO: executed, and failed
            "+string",                                         // TYPE, in a pipeline
            "-MOVED 1 10.0.0.1:6379",                          // TYPE, refused
            "$0\r\n",                                          // the last INFO
        ]
        .into_iter();
        let target = crate::fake::server(move |_| format!("{}\r\n", replies.next().unwrap_or("-ERR no more")));
        let mut ask = Ask::open(&target, &Options::default()).unwrap();
        ask.call(&["PING"]).unwrap();
        ask.begin_window();
        ask.call(&["INFO", "ALL"]).unwrap();
        ask.call(&["CONFIG", "GET", "save"]).unwrap_err();
        ask.call(&["CLUSTER", "INFO"]).unwrap_err();
        ask.pipeline(&[vec!["TYPE", "a"], vec!["TYPE", "b"]]).unwrap();
        ask.last(|ask| ask.call(&["INFO", "ALL"])).unwrap();
        let commands: Vec<(&str, u64)> = ask.own.commands.iter().map(|(k, n)| (k.as_str(), *n)).collect();
        assert_eq!(
            commands,
            [("cluster|info", 1), ("info", 1), ("type", 1)],
            "the last INFO is not in its own counters"
        );
        let errors: Vec<(&str, u64)> = ask.own.errors.iter().map(|(k, n)| (k.as_str(), *n)).collect();
        assert_eq!(errors, [("ERR", 1), ("MOVED", 1), ("NOPERM", 1)]);
        assert_eq!(ask.own.reads, 4, "a pipeline is read at once");
        assert_eq!((ask.own.total, ask.executed), (GREETING + 7, GREETING + 5));
    }

    #[test]
    fn the_greeting_of_a_second_connection_is_ours() {
        let plain = Target::parse("h:1").unwrap();
        let full = Target::parse("redis://ann:secret@h:1/2").unwrap();
        let named = Options { name: Some("unslow"), ..Options::default() };
        assert_eq!(greeting(&plain, &Options::default(), 2), ["ping"]);
        assert_eq!(greeting(&full, &named, 3), ["auth", "hello", "client|setname", "select", "ping"]);
    }

    #[test]
    fn a_denied_command_names_the_acl_rule_that_grants_it() {
        for (source, rule) in [
            ("CLIENT LIST ID (windows of ids)", "+client|list"),
            ("SLOWLOG GET 128", "+slowlog|get"),
            ("CLUSTER NODES", "+cluster|nodes"),
            ("PING", "+ping"),
            ("TYPE and STRLEN", "+type"),
        ] {
            let seen: Seen<()> = unseen(&Error::new(ErrorKind::Denied, "NOPERM"), source);
            let gap = seen.missing().unwrap();
            assert!(gap.why.starts_with(source) && gap.lack == Lack::Rights, "{gap:?}");
            assert!(gap.grant.as_ref().is_some_and(|g| g.ends_with(&format!(" {rule}"))), "{gap:?}");
        }
        let seen: Seen<()> = unseen(&Error::new(ErrorKind::Reply, "ERR of its own"), "PING");
        assert_eq!(seen.missing(), Some(&Gap::new(Lack::Other, "ERR of its own", "")));
    }
}
