//! What a connection sends before its first command, and whether the server accepted it.
//!
//! All of it is written at once, so a new connection costs one round trip. AUTH goes first: servers that require a
//! password refuse everything before it. RESP3 comes next, so that all later replies have one protocol, then what
//! depends on neither.

use std::collections::VecDeque;

use unslow_resp::{Frame, write_command};

use crate::refusal::{Author, Kind, Refusal};

/// What to agree on with the server. No `Debug`: there is a password inside.
#[derive(Clone, Copy, Default)]
pub struct Plan<'a> {
    /// AUTH as this user, or as `default`.
    pub user: Option<&'a [u8]>,
    /// A user without a password is sent with an empty one, which is right for `nopass`: the connection must never act
    /// for anyone but the user asked for.
    pub password: Option<&'a [u8]>,
    /// HELLO 3.
    pub resp3: bool,
    /// What the connection can do without.
    pub tolerance: Tolerance,
    /// CLIENT SETNAME, so that operators see in CLIENT LIST who is connected.
    pub name: Option<&'a str>,
    /// Whether the CLIENT ID is needed, for CLIENT UNBLOCK or CLIENT KILL. With RESP3 it is in HELLO's reply anyway, so
    /// there is none if an optional HELLO fails.
    pub wants_id: bool,
    /// SELECT, unless 0.
    pub db: u32,
    /// Who selects the database, where the user may not: AUTH as them and SELECT come first, then AUTH as the user,
    /// which keeps the database.
    pub selector: Option<Login<'a>>,
    /// More commands, already encoded. Each must get exactly one reply, and an error in any of them ends the greeting.
    pub setup: &'a [Vec<u8>],
}

/// Which refusals leave a connection fit for its purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tolerance {
    /// None: what users ask for must get the protocol, the database and the setup it was promised.
    #[default]
    Nothing,
    /// Servers and proxies without HELLO 3: the connection then speaks RESP2. See [`Greeting::is_resp3`].
    NoResp3,
    /// HELLO and SELECT may be refused for any reason but a missing password or a full server. For connections that ask
    /// servers about themselves: a Sentinel has one database, and an ACL may forbid HELLO.
    Control,
}

/// A user, as AUTH names them. No `Debug`: there is a password inside.
#[derive(Clone, Copy, Default)]
pub struct Login<'a> {
    pub user: Option<&'a [u8]>,
    pub password: Option<&'a [u8]>,
}

impl Login<'_> {
    /// Appends AUTH if there is a user or a password, and returns whether it did.
    fn say(&self, out: &mut Vec<u8>) -> bool {
        if self.user.is_none() && self.password.is_none() {
            return false;
        }
        let mut auth = vec![b"AUTH".as_slice()];
        auth.extend(self.user);
        auth.push(self.password.unwrap_or_default());
        write_command(out, &auth);
        true
    }
}

/// The replies that are still due. The default has none: it is done.
#[derive(Debug, Default)]
pub struct Greeting {
    steps: VecDeque<Step>,
    tolerance: Tolerance,
    is_resp3: bool,
    id: Option<u64>,
    /// `Some` after a refusal: whether it is passing.
    refused: Option<bool>,
}

/// How far a greeting is after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More replies are due.
    More,
    /// The connection is ready.
    Done {
        /// The connection's CLIENT ID, if a reply had it.
        id: Option<u64>,
    },
    /// The server refused a command. Close the connection, or use it for nothing but signs of life: it may have the
    /// wrong user, protocol or database.
    Refused {
        /// The server will accept the same greeting later, so what waits for the connection can keep waiting. Otherwise
        /// the settings are wrong, and waiting only delays the error.
        passing: bool,
    },
    /// This does not answer the greeting: a push, or a reply after the last one.
    Unasked,
}

/// A command of the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// AUTH, as the selector or as the user.
    Auth,
    /// AUTH on a connection that is already logged in as the selector: if it fails, the connection would keep that
    /// user.
    AuthAnew,
    /// HELLO 3.
    Hello,
    /// CLIENT SETNAME.
    Name,
    /// CLIENT ID.
    Id,
    /// SELECT.
    Select,
    /// A command of [`Plan::setup`].
    Setup,
}

impl Step {
    /// Its command, for error messages.
    pub fn command(self) -> &'static str {
        match self {
            Step::Auth | Step::AuthAnew => "AUTH",
            Step::Hello => "HELLO",
            Step::Name | Step::Id => "CLIENT",
            Step::Select => "SELECT",
            Step::Setup => "a command of the greeting",
        }
    }

    /// What an error that answers this command says, for a person. Words that answer AUTH and that no server is known
    /// to use are left out: they may repeat the password.
    pub fn error_text(self, reply: &[u8]) -> String {
        let kind = Refusal::parse(reply, Author::Server).map(|refusal| refusal.kind);
        let known = matches!(kind, Some(Kind::Auth | Kind::Loading)) || is_full(reply);
        match self {
            Step::Auth | Step::AuthAnew if !known => "AUTH failed".into(),
            _ => String::from_utf8_lossy(Frame::new(reply).text()).into_owned(),
        }
    }
}

impl Greeting {
    /// Appends the greeting's commands to `out`. If there are none it is done at once, see [`Greeting::is_done`].
    pub fn begin(plan: &Plan, out: &mut Vec<u8>) -> Greeting {
        let mut steps = VecDeque::new();
        let selector = plan.selector.filter(|_| plan.db != 0);
        if let Some(selector) = selector {
            if selector.say(out) {
                steps.push_back(Step::Auth);
            }
            write_command(out, &["SELECT", &plan.db.to_string()]);
            steps.push_back(Step::Select);
        }
        if (Login { user: plan.user, password: plan.password }).say(out) {
            steps.push_back(if selector.is_some() { Step::AuthAnew } else { Step::Auth });
        }
        if plan.resp3 {
            write_command(out, &["HELLO", "3"]);
            steps.push_back(Step::Hello);
        }
        if let Some(name) = plan.name {
            write_command(out, &["CLIENT", "SETNAME", name]);
            steps.push_back(Step::Name);
        }
        if plan.wants_id && !plan.resp3 {
            write_command(out, &["CLIENT", "ID"]);
            steps.push_back(Step::Id);
        }
        if plan.db != 0 && selector.is_none() {
            write_command(out, &["SELECT", &plan.db.to_string()]);
            steps.push_back(Step::Select);
        }
        for command in plan.setup {
            out.extend_from_slice(command);
            steps.push_back(Step::Setup);
        }
        Greeting { steps, tolerance: plan.tolerance, ..Greeting::default() }
    }

    /// Takes the next whole reply of the connection. After a refusal it stays refused, but still counts the replies.
    pub fn reply(&mut self, reply: &[u8]) -> Progress {
        let answers = !matches!(reply.first(), None | Some(b'>'));
        let step = if answers { self.steps.pop_front() } else { None };
        let refusal = Refusal::parse(reply, Author::Server);
        self.is_resp3 |= step == Some(Step::Hello) && refusal.is_none();
        if let Some(passing) = self.refused {
            return Progress::Refused { passing };
        }
        let Some(step) = step else { return Progress::Unasked };
        match refusal {
            Some(refusal) if !self.tolerates(step, refusal, reply) => {
                let passing = refusal.passes() || is_full(reply);
                self.refused = Some(passing);
                return Progress::Refused { passing };
            }
            Some(_) => {}
            None if step == Step::Hello => self.id = hello_id(reply),
            None if step == Step::Id => self.id = client_id(Frame::new(reply)),
            None => {}
        }
        match self.steps.is_empty() {
            true => Progress::Done { id: self.id },
            false => Progress::More,
        }
    }

    /// The command that the next reply answers. `None` once every reply has come, also after a refusal.
    #[inline]
    pub fn due(&self) -> Option<Step> {
        self.steps.front().copied()
    }

    /// The commands whose replies have not come, in order.
    pub fn all_due(&self) -> impl Iterator<Item = Step> + '_ {
        self.steps.iter().copied()
    }

    /// Whether every reply has come and none was a refusal.
    pub fn is_done(&self) -> bool {
        self.steps.is_empty() && self.refused.is_none()
    }

    /// Whether the server has accepted HELLO 3, be it after it refused something else.
    pub fn is_resp3(&self) -> bool {
        self.is_resp3
    }

    /// Whether the connection is fit for use although the server answered this step with an error.
    fn tolerates(&self, step: Step, refusal: Refusal<'_>, reply: &[u8]) -> bool {
        // Sent in place of the first reply, whatever that answers; the connection is closed right after it.
        if is_full(reply) {
            return false;
        }
        match step {
            // redis-cli only warns. A proxy may not know AUTH: then there is nobody to be, and nothing to refuse.
            Step::Auth => password_is_needless(reply) || refusal.kind == Kind::Other && is_unknown(reply),
            // An ACL may forbid CLIENT altogether; the connection serves commands without it.
            Step::Name | Step::Id => true,
            Step::Hello | Step::Select if self.tolerance == Tolerance::Control => refusal.kind != Kind::Auth,
            // NOAUTH, NOPERM and LOADING are about more than HELLO.
            Step::Hello => self.tolerance == Tolerance::NoResp3 && refusal.kind == Kind::Other,
            Step::AuthAnew | Step::Select | Step::Setup => false,
        }
    }
}

/// Whether the server has as many connections as `maxclients` allows (`acceptCommonHandler()`).
fn is_full(reply: &[u8]) -> bool {
    contains(reply, b"max number of clients")
}

/// Whether the server or proxy does not have the command.
fn is_unknown(reply: &[u8]) -> bool {
    const WORDS: [&[u8]; 3] = [b"unknown command", b"unknown or disabled", b"unsupported command"];
    WORDS.iter().any(|words| contains(&reply.to_ascii_lowercase(), words))
}

fn contains(reply: &[u8], words: &[u8]) -> bool {
    reply.windows(words.len()).any(|w| w == words)
}

/// Whether the error that answers an AUTH says that the server has no password. That error has no code word of its
/// own, so this goes by the words of `authCommand()`, in Redis 6 and later and in older versions. The reply may be
/// given with or without its type and length.
pub fn password_is_needless(reply: &[u8]) -> bool {
    const WORDS: [&[u8]; 2] = [b"without any password", b"no password is set"];
    WORDS.iter().any(|words| contains(reply, words))
}

/// `id` in HELLO's map. Modules are listed in a nested array, so one named `id` is not confused with it.
fn hello_id(reply: &[u8]) -> Option<u64> {
    let mut items = Frame::new(reply).items();
    while let (Some(key), Some(value)) = (items.next(), items.next()) {
        if key.text() == b"id" {
            return client_id(value);
        }
    }
    None
}

fn client_id(frame: Frame<'_>) -> Option<u64> {
    frame.integer().and_then(|id| u64::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use unslow_resp::{Scan, Scanner};

    use super::*;

    const MORE: Progress = Progress::More;
    const DONE: Progress = Progress::Done { id: None };
    const HELLO: &str = "%3\r\n$6\r\nserver\r\n$5\r\nredis\r\n$2\r\nid\r\n:42\r\n$7\r\nmodules\r\n*0\r\n";

    /// Commands as words.
    fn commands(mut bytes: &[u8]) -> Vec<String> {
        let mut all = Vec::new();
        while let Ok(Scan::Complete(length)) = Scanner::default().scan(bytes) {
            let words = Frame::new(&bytes[..length]).items().map(|f| String::from_utf8_lossy(f.text()).into_owned());
            all.push(words.collect::<Vec<_>>().join(" "));
            bytes = &bytes[length..];
        }
        assert!(bytes.is_empty(), "{}", bytes.escape_ascii());
        all
    }

    fn encoded(words: &[&str]) -> Vec<u8> {
        let mut out = Vec::new();
        write_command(&mut out, words);
        out
    }

    fn full(setup: &[Vec<u8>]) -> Plan<'_> {
        Plan {
            user: Some(b"app"),
            password: Some(b"s3cret"),
            resp3: true,
            tolerance: Tolerance::Nothing,
            name: Some("t"),
            wants_id: true,
            db: 7,
            selector: None,
            setup,
        }
    }

    #[test]
    fn commands_are_sent_in_order_and_only_if_planned() {
        let none = Plan::default();
        let admin = Login { user: Some(b"admin"), password: Some(b"a") };
        let app = Plan { user: Some(b"app"), password: Some(b"s"), ..none };
        let setup = [encoded(&["CLIENT", "TRACKING", "ON"]), encoded(&["READONLY"])];
        for (plan, expected) in [
            (none, vec![]),
            (Plan { password: Some(b"p"), ..none }, vec!["AUTH p"]),
            (Plan { user: Some(b"u"), password: Some(b"p"), ..none }, vec!["AUTH u p"]),
            (Plan { user: Some(b"u"), ..none }, vec!["AUTH u "]),
            (Plan { password: Some(b""), ..none }, vec!["AUTH "]),
            (Plan { password: Some(b"p\r\nq"), ..none }, vec!["AUTH p\r\nq"]),
            (Plan { resp3: true, ..none }, vec!["HELLO 3"]),
            (Plan { name: Some("t"), ..none }, vec!["CLIENT SETNAME t"]),
            (Plan { wants_id: true, ..none }, vec!["CLIENT ID"]),
            (Plan { wants_id: true, resp3: true, ..none }, vec!["HELLO 3"]),
            (Plan { db: u32::MAX, ..none }, vec!["SELECT 4294967295"]),
            (Plan { setup: &setup, ..none }, vec!["CLIENT TRACKING ON", "READONLY"]),
            (Plan { db: 7, selector: Some(admin), ..app }, vec!["AUTH admin a", "SELECT 7", "AUTH app s"]),
            (Plan { db: 7, selector: Some(Login::default()), ..app }, vec!["SELECT 7", "AUTH app s"]),
            (Plan { selector: Some(admin), ..app }, vec!["AUTH app s"]),
            (
                Plan { resp3: false, ..full(&setup) },
                vec!["AUTH app s3cret", "CLIENT SETNAME t", "CLIENT ID", "SELECT 7", "CLIENT TRACKING ON", "READONLY"],
            ),
            (
                full(&setup),
                vec!["AUTH app s3cret", "HELLO 3", "CLIENT SETNAME t", "SELECT 7", "CLIENT TRACKING ON", "READONLY"],
            ),
        ] {
            let mut out = b"+earlier\r\n".to_vec();
            let mut greeting = Greeting::begin(&plan, &mut out);
            assert_eq!(commands(out.strip_prefix(b"+earlier\r\n").expect("output is appended to")), expected);
            assert_eq!(greeting.is_done(), expected.is_empty(), "{expected:?}");
            // As many replies are due as commands were sent.
            for due in (0..expected.len()).rev() {
                assert_eq!(greeting.reply(b"+OK\r\n"), if due == 0 { DONE } else { MORE }, "{expected:?}");
                assert_eq!(greeting.is_done(), due == 0, "{expected:?}");
            }
            assert_eq!((greeting.reply(b"+OK\r\n"), greeting.is_done()), (Progress::Unasked, true), "{expected:?}");
        }
        assert!(Greeting::default().is_done());
    }

    #[test]
    fn each_refusal_is_judged_by_the_command_it_answers() {
        const REFUSED: Progress = Progress::Refused { passing: false };
        const PASSING: Progress = Progress::Refused { passing: true };
        const FULL: &str = "-ERR max number of clients reached";
        let setup = [encoded(&["READONLY"])];
        let none = Plan::default();
        let auth = Plan { password: Some(b"p"), ..none };
        let hello = Plan { resp3: true, ..none };
        let optional = Plan { tolerance: Tolerance::NoResp3, ..hello };
        let control = Plan { resp3: true, db: 1, tolerance: Tolerance::Control, ..none };
        let name = Plan { name: Some("t"), ..none };
        let id = Plan { wants_id: true, ..none };
        let select = Plan { db: 1, ..none };
        let setup = Plan { setup: &setup, ..none };
        for (plan, reply, expected) in [
            (auth, "-WRONGPASS invalid username-password pair or user is disabled.", REFUSED),
            (auth, "-ERR invalid password", REFUSED),
            (auth, "-ERR wrong number of arguments for 'auth' command", REFUSED),
            (auth, "-ERR Client sent AUTH, but no password is set", DONE),
            (auth, "-ERR AUTH <password> called without any password configured for the default user.", DONE),
            (auth, "!44\r\nERR Client sent AUTH, but no password is set", DONE),
            (auth, "!22\r\nWRONGPASS not this one", REFUSED),
            (auth, "-ERR unknown command 'AUTH', with args beginning with: 'p'", DONE),
            (auth, "-unsupported command 'auth'", DONE),
            (auth, "-ERR the directory of users cannot be reached", REFUSED),
            (auth, FULL, PASSING),
            (auth, "-LOADING Redis is loading the dataset in memory", PASSING),
            (hello, "-NOPROTO unsupported protocol version", REFUSED),
            (hello, "-ERR unknown command 'HELLO'", REFUSED),
            (hello, "-NOAUTH HELLO must be called with the client already authenticated", REFUSED),
            (hello, "-ERR no password is set", REFUSED),
            (hello, FULL, PASSING),
            (optional, "-NOPROTO unsupported protocol version", DONE),
            (optional, "-ERR unknown command 'HELLO'", DONE),
            (optional, "-no such command here", DONE),
            (optional, "-NOAUTH HELLO must be called with the client already authenticated", REFUSED),
            (optional, "-NOPERM this user has no permissions to run the 'hello' command", REFUSED),
            (optional, "-LOADING Redis is loading the dataset in memory", PASSING),
            (optional, FULL, PASSING),
            (control, "-NOPERM this user has no permissions to run the 'hello' command", MORE),
            (control, "-ERR unknown command 'HELLO'", MORE),
            (control, "-LOADING Redis is loading the dataset in memory", MORE),
            (control, "-NOAUTH HELLO must be called with the client already authenticated", REFUSED),
            (control, FULL, PASSING),
            (Plan { resp3: false, ..control }, "-ERR DB index is out of range", DONE),
            (Plan { resp3: false, ..control }, "-ERR unknown command 'SELECT'", DONE),
            (Plan { resp3: false, ..control }, "-NOAUTH Authentication required.", REFUSED),
            (name, "-NOPERM this user has no permissions to run the 'client|setname' command", DONE),
            (name, "-NOAUTH Authentication required.", DONE),
            (name, FULL, PASSING),
            (name, "-ERR max number of clients + cluster connections reached", PASSING),
            (id, "-ERR Unknown subcommand or wrong number of arguments for 'ID'.", DONE),
            (id, "-LOADING Redis is loading the dataset in memory", DONE),
            (select, "-ERR DB index is out of range", REFUSED),
            (select, "-NOAUTH Authentication required.", REFUSED),
            (select, "-LOADING Redis is loading the dataset in memory", PASSING),
            (select, "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", PASSING),
            (select, "-BUSY Redis is busy running a script. You can only call SCRIPT KILL.", PASSING),
            (select, "-loading", REFUSED),
            (setup, "-ERR This instance has cluster support disabled", REFUSED),
            (setup, "-LOADING Redis is loading the dataset in memory", PASSING),
        ] {
            let mut greeting = Greeting::begin(&plan, &mut Vec::new());
            assert_eq!(greeting.reply(format!("{reply}\r\n").as_bytes()), expected, "{reply}");
            assert_eq!(greeting.is_done(), expected == DONE, "{reply}");
        }
    }

    /// If it failed, the connection would act as the user who selected the database.
    #[test]
    fn the_second_auth_must_be_good() {
        let admin = Login { user: Some(b"admin"), password: Some(b"a") };
        let plan = Plan { password: Some(b"p"), db: 1, selector: Some(admin), ..Plan::default() };
        for (last, expected) in [
            ("+OK\r\n", DONE),
            ("-ERR Client sent AUTH, but no password is set\r\n", Progress::Refused { passing: false }),
            ("-WRONGPASS no\r\n", Progress::Refused { passing: false }),
        ] {
            let mut greeting = Greeting::begin(&plan, &mut Vec::new());
            assert_eq!([greeting.reply(b"+OK\r\n"), greeting.reply(b"+OK\r\n")], [MORE, MORE]);
            assert_eq!(greeting.reply(last.as_bytes()), expected, "{last}");
        }
    }

    #[test]
    fn a_refused_greeting_stays_refused() {
        let mut greeting = Greeting::begin(&full(&[]), &mut Vec::new());
        for reply in ["-WRONGPASS no\r\n", HELLO, "+OK\r\n", "+OK\r\n", "+OK\r\n", ">1\r\n+x\r\n", "-LOADING\r\n"] {
            assert_eq!(greeting.reply(reply.as_bytes()), Progress::Refused { passing: false }, "{reply:?}");
            assert!(!greeting.is_done(), "{reply:?}");
        }
    }

    /// A caller that keeps a refused connection has to tell the greeting's replies from those behind it.
    #[test]
    fn replies_are_counted_to_the_last_also_after_a_refusal() {
        let setup = [encoded(&["READONLY"])];
        for first in ["+OK\r\n", "-WRONGPASS no\r\n"] {
            let mut greeting = Greeting::begin(&full(&setup), &mut Vec::new());
            for (step, reply) in [
                (Step::Auth, first),
                (Step::Hello, ">1\r\n+x\r\n"),
                (Step::Hello, HELLO),
                (Step::Name, "+OK\r\n"),
                (Step::Select, "+OK\r\n"),
                (Step::Setup, "+OK\r\n"),
            ] {
                assert_eq!(greeting.due(), Some(step), "{first:?}");
                greeting.reply(reply.as_bytes());
            }
            assert_eq!((greeting.due(), greeting.is_done()), (None, first == "+OK\r\n"), "{first:?}");
        }
    }

    #[test]
    fn the_protocol_is_resp3_only_if_hello_was_accepted() {
        let optional = Plan { resp3: true, tolerance: Tolerance::NoResp3, ..Plan::default() };
        let auth = Plan { password: Some(b"p"), ..optional };
        for (plan, replies, resp3) in [
            (optional, vec![HELLO], true),
            (optional, vec!["-ERR unknown command 'HELLO'\r\n"], false),
            (optional, vec!["-NOAUTH\r\n"], false),
            (auth, vec!["-WRONGPASS no\r\n", HELLO], true),
            (auth, vec!["+OK\r\n"], false),
            (Plan { name: Some("t"), ..Plan::default() }, vec!["+OK\r\n"], false),
        ] {
            let mut greeting = Greeting::begin(&plan, &mut Vec::new());
            for reply in &replies {
                greeting.reply(reply.as_bytes());
            }
            assert_eq!(greeting.is_resp3(), resp3, "{replies:?}");
        }
    }

    #[test]
    fn pushes_between_the_replies_answer_nothing() {
        let mut greeting = Greeting::begin(&full(&[]), &mut Vec::new());
        for (reply, expected) in [
            ("+OK\r\n", MORE),
            (">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", Progress::Unasked),
            ("", Progress::Unasked),
            (HELLO, MORE),
            ("+OK\r\n", MORE),
            (">1\r\n-ERR\r\n", Progress::Unasked),
            ("+OK\r\n", Progress::Done { id: Some(42) }),
            ("-LOADING\r\n", Progress::Unasked),
        ] {
            assert_eq!(greeting.reply(reply.as_bytes()), expected, "{reply:?}");
        }
        assert!(greeting.is_done());
    }

    #[test]
    fn the_client_id_is_read_from_hello_or_client_id() {
        let (hello, ask) = (Plan { resp3: true, ..Plan::default() }, Plan { wants_id: true, ..Plan::default() });
        for (plan, reply, id) in [
            (hello, HELLO, Some(42)),
            (hello, "*2\r\n$2\r\nid\r\n:9223372036854775807\r\n", Some(i64::MAX as u64)),
            (hello, "%1\r\n+id\r\n:7\r\n", Some(7)),
            // A module named id, a mode named id, no id, invalid ids.
            (hello, "%2\r\n$7\r\nmodules\r\n*1\r\n%1\r\n$2\r\nid\r\n:1\r\n$2\r\nid\r\n:2\r\n", Some(2)),
            (hello, "%2\r\n$4\r\nmode\r\n$2\r\nid\r\n$2\r\nid\r\n:3\r\n", Some(3)),
            (hello, "%1\r\n$4\r\nkind\r\n:42\r\n", None),
            (hello, "%1\r\n$2\r\nid\r\n:-1\r\n", None),
            (hello, "%1\r\n$2\r\nid\r\n$2\r\n42\r\n", None),
            (hello, "%1\r\n$2\r\nid\r\n", None),
            (hello, "+OK\r\n", None),
            (ask, ":42\r\n", Some(42)),
            (ask, ":-42\r\n", None),
            (ask, "$2\r\n42\r\n", None),
            (ask, "-ERR unknown\r\n", None),
        ] {
            let mut greeting = Greeting::begin(&plan, &mut Vec::new());
            assert_eq!(greeting.reply(reply.as_bytes()), Progress::Done { id }, "{reply:?}");
        }
    }

    #[test]
    fn unknown_words_that_answer_auth_are_not_repeated() {
        for (step, text, told) in [
            (Step::Auth, "WRONGPASS no", "WRONGPASS no"),
            (Step::Auth, "ERR invalid password", "ERR invalid password"),
            (Step::Auth, "ERR max number of clients reached", "ERR max number of clients reached"),
            (Step::Auth, "ERR nobody is called s3cret", "AUTH failed"),
            (Step::AuthAnew, "ERR nobody is called s3cret", "AUTH failed"),
            (Step::Select, "ERR DB index is out of range", "ERR DB index is out of range"),
        ] {
            assert_eq!(step.error_text(format!("-{text}\r\n").as_bytes()), told);
            assert_eq!(step.error_text(format!("!{}\r\n{text}\r\n", text.len()).as_bytes()), told);
        }
    }

    #[test]
    fn no_secret_is_kept_after_the_commands_are_written() {
        let greeting = Greeting::begin(&full(&[encoded(&["AUTH", "s3cret"])]), &mut Vec::new());
        assert!(!format!("{greeting:?}").contains("s3cret"), "{greeting:?}");
    }
}
