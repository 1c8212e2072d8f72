//! The only commands a diagnosis may send: compiled in, checked before every send, and the source of the ACL that
//! `unslow doctor --print-acl` prints. `unslow keys` may send a few more ([`OF_KEYS`], [`OF_HOT_KEYS`]), which no
//! diagnosis does.
//!
//! Never on this list: MONITOR, KEYS, DEBUG, EVAL, CONFIG SET, or any command that reads a whole value.

use std::time::{Duration, Instant};

use unslow_resp::Limits;

use crate::connection::ReplyLimits;
use crate::{Connection, Error, ErrorKind, Options, Target, Value};

/// One permitted command.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// Lower case.
    pub command: &'static str,
    /// Its sub-command, lower case; empty where the command has none. Two words where the first alone would allow more.
    pub sub: &'static str,
    /// First version of each product that has it.
    pub since: Since,
    /// What goes unseen without it.
    pub tells: &'static str,
}

/// Since when a command is there; `None` where a product has none.
#[derive(Clone, Copy, Debug)]
pub struct Since {
    pub redis: Option<(u32, u32)>,
    pub valkey: Option<(u32, u32)>,
}

/// What a server is, and its own version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    Redis(u32, u32),
    Valkey(u32, u32),
}

impl Since {
    fn is_there(self, server: Product) -> bool {
        match server {
            Product::Redis(major, minor) => self.redis.is_some_and(|first| first <= (major, minor)),
            Product::Valkey(major, minor) => self.valkey.is_some_and(|first| first <= (major, minor)),
        }
    }
}

/// A command that both have: Valkey began with what Redis 7.2 could.
const fn allow(command: &'static str, sub: &'static str, since: (u32, u32), tells: &'static str) -> Allowed {
    apart(command, sub, Since { redis: Some(since), valkey: Some((7, 2)) }, tells)
}

const fn apart(command: &'static str, sub: &'static str, since: Since, tells: &'static str) -> Allowed {
    Allowed { command, sub, since, tells }
}

/// The list.
pub const ALLOWED: &[Allowed] = &[
    allow("ping", "", (1, 0), "round-trip time and stalls"),
    allow("hello", "", (6, 0), "RESP3; RESP2 serves as well"),
    allow("info", "", (1, 0), "nearly everything"),
    allow("role", "", (2, 8), "the replication chain where INFO is denied"),
    allow("config", "get", (2, 0), "settings: persistence, memory limits, buffers, timeouts"),
    allow("slowlog", "get", (2, 2), "slow commands and who sent them"),
    apart(
        "commandlog",
        "get",
        Since { redis: None, valkey: Some((8, 1)) },
        "requests and replies of a megabyte and more, and who sent or asked for them",
    ),
    allow("latency", "latest", (2, 8), "stalls by cause: fork, fsync, expiry, eviction"),
    allow("latency", "history", (2, 8), "when the stalls happened"),
    allow(
        "latency",
        "histogram",
        (7, 0),
        "how the length of a command's calls varies, and so what others wait behind them",
    ),
    allow("client", "id", (5, 0), "which clients to sample on a busy server"),
    allow("client", "list", (2, 4), "clients by library, idle time, buffers"),
    allow("client", "setname", (2, 6), "our own name in CLIENT LIST"),
    allow("cluster", "nodes", (3, 0), "slots, epochs, placement, failed nodes"),
    allow("cluster", "info", (3, 0), "cluster state and bus traffic"),
    apart(
        "cluster",
        "slot-stats",
        Since { redis: Some((8, 2)), valkey: Some((8, 0)) },
        "slots with the most keys, and the busiest ones",
    ),
    allow("acl", "whoami", (6, 0), "who we are, for the grant to ask for"),
    allow("readonly", "", (3, 0), "key sizes on cluster replicas"),
    allow("type", "", (1, 0), "the size of keys the slow log names"),
    allow("strlen", "", (2, 2), "the size of keys the slow log names"),
    allow("llen", "", (1, 0), "the size of keys the slow log names"),
    allow("hlen", "", (2, 0), "the size of keys the slow log names"),
    allow("scard", "", (1, 0), "the size of keys the slow log names"),
    allow("zcard", "", (1, 2), "the size of keys the slow log names"),
    allow("xlen", "", (5, 0), "the size of keys the slow log names"),
    allow("pubsub", "numsub", (2, 8), "whether Sentinels watch this server"),
    allow("subscribe", "__sentinel__:hello", (2, 8), "where those Sentinels are"),
    allow("sentinel", "masters", (2, 8), "the groups a Sentinel watches"),
    allow("sentinel", "slaves", (2, 8), "the replicas a Sentinel knows (before 5.0)"),
    allow("sentinel", "replicas", (5, 0), "the replicas a Sentinel knows"),
    allow("sentinel", "sentinels", (2, 8), "the other Sentinels"),
    allow("sentinel", "ckquorum", (2, 8), "whether a failover could be authorised"),
    allow("unslow", "show topology", (1, 0), "which servers stand behind `unslow gateway`"),
];

/// Of [`ALLOWED`], what a walk through keys has no use for: its user needs none of it.
const NOT_OF_KEYS: &[&str] = &["config", "slowlog", "commandlog", "latency", "acl"];

/// What `unslow keys` may send beside [`ALLOWED`]: it walks through all keys, and asks what each one is.
pub const OF_KEYS: &[Allowed] = &[
    allow("scan", "", (2, 8), "which keys there are"),
    allow("select", "", (1, 0), "keys of databases other than 0"),
    allow("pttl", "", (2, 6), "keys without a time to live"),
    allow("object", "freq", (4, 0), "how often a key is used, where maxmemory-policy is LFU"),
    allow("memory", "usage", (4, 0), "the memory that a key takes"),
    allow("client", "no-touch", (7, 2), "looking at keys without marking them as used"),
];

/// What `unslow keys --hot` may send as well: the server counts for a while which keys it works for. It changes no data
/// and no setting, and a session that is there is left alone.
pub const OF_HOT_KEYS: &[Allowed] = &[
    hot("start", "which keys take most of the main thread and the network"),
    hot("get", "the figures of that"),
    hot("stop", "ending it"),
    hot("reset", "the memory it takes"),
];

const fn hot(sub: &'static str, tells: &'static str) -> Allowed {
    apart("hotkeys", sub, Since { redis: Some((8, 6)), valkey: None }, tells)
}

/// The largest answers to these are CLIENT LIST of some thousand clients (1 MB) and CLUSTER NODES of a thousand nodes
/// (200 kB): what is far beyond that is not an answer, and must not exhaust our memory.
const REPLIES: ReplyLimits = ReplyLimits {
    reply: Limits { frame_bytes_max: 64 << 20, line_bytes_max: 64 << 10, elements_max: 1 << 20, depth_max: 32 },
    exchange_bytes_max: 96 << 20,
};

/// Commands of `unslow gateway`. A server does not know them, and an ACL rule that names one is an error there.
const OF_THE_GATEWAY: &str = "unslow";

/// The line that makes the least user a diagnosis needs, for a server of this version, or `None` before 6.0, which has
/// no ACL. `sentinel` makes the one for Sentinels.
///
/// Sub-command rules work on 6.x too, by first argument; a rule that names a command the server does not have is an
/// error there, so the list is cut by version.
pub fn acl_rule(server: Product, sentinel: bool) -> Option<String> {
    rule(server, sentinel, ALLOWED.iter())
}

/// The same for `unslow keys`, with `--hot` or without.
pub fn acl_rule_of_keys(server: Product, hot: bool) -> Option<String> {
    let is_used = |a: &&Allowed| !NOT_OF_KEYS.contains(&a.command) && !matches!(a.sub, "list" | "slot-stats" | "id");
    let of_hot = if hot { OF_HOT_KEYS } else { &[] };
    rule(server, false, ALLOWED.iter().filter(is_used).chain(OF_KEYS).chain(of_hot))
}

fn rule<'a>(server: Product, sentinel: bool, list: impl Iterator<Item = &'a Allowed>) -> Option<String> {
    let version = match server {
        Product::Redis(major, minor) => (major, minor),
        Product::Valkey(..) => (7, 2),
    };
    if version < (6, 0) {
        return None;
    }
    let mut rule = String::from("ACL SETUSER unslow on >CHANGE-ME resetkeys ");
    // TYPE, STRLEN and the like need the keys; 7.0 can grant them for reading alone.
    rule += match (sentinel, version >= (7, 0)) {
        (true, _) => "",
        (false, true) => "%R~* ",
        (false, false) => "~* ",
    };
    rule += if version >= (6, 2) { "resetchannels &__sentinel__:hello -@all" } else { "-@all" };
    for a in list {
        let at_sentinel = matches!(a.command, "ping" | "hello" | "info" | "role" | "client" | "acl" | "sentinel");
        let on_server = !matches!(a.command, "sentinel" | OF_THE_GATEWAY);
        if !a.since.is_there(server) || (sentinel && !at_sentinel) || (!sentinel && !on_server) {
            continue;
        }
        rule += " +";
        rule += a.command;
        if !a.sub.is_empty() && a.command != "subscribe" {
            rule += "|";
            rule += a.sub;
        }
    }
    Some(rule)
}

/// A connection that sends nothing but what [`ALLOWED`] lists (and [`OF_KEYS`] or [`OF_HOT_KEYS`], if it was opened for
/// that), and keeps count.
pub struct ReadOnly {
    connection: Connection,
    lists: &'static [&'static [Allowed]],
    /// Commands sent.
    pub commands: u64,
    /// Those that were answered, word by word, where they are to be remembered.
    answered: Option<Vec<Vec<String>>>,
}

impl ReadOnly {
    /// As [`Connection::open`], but with patience where the server is at `maxclients`: a place may become free.
    pub fn open(target: &Target, options: &Options) -> Result<ReadOnly, Error> {
        Self::open_with(target, options, &[ALLOWED])
    }

    /// The same for a scan of keys.
    pub fn open_for_keys(target: &Target, options: &Options) -> Result<ReadOnly, Error> {
        Self::open_with(target, options, &[ALLOWED, OF_KEYS])
    }

    /// The same for a session of HOTKEYS.
    pub fn open_for_hot_keys(target: &Target, options: &Options) -> Result<ReadOnly, Error> {
        Self::open_with(target, options, &[ALLOWED, OF_HOT_KEYS])
    }

    fn open_with(target: &Target, options: &Options, lists: &'static [&'static [Allowed]]) -> Result<ReadOnly, Error> {
        let mut tries = 0;
        loop {
            let opened = Connection::open_within(target, options, REPLIES).and_then(|mut c| {
                // At the limit the server accepts, says so, and closes: only an answer is a connection.
                match c.call(&["PING"]) {
                    Err(e) if e.is_fatal() => Err(e),
                    _ => Ok(c),
                }
            });
            match opened {
                Ok(connection) => return Ok(ReadOnly { connection, lists, commands: 0, answered: None }),
                Err(e) if e.kind == ErrorKind::MaxClients && tries < 10 => {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// The connection's addresses and times.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Remembers what is asked from here on: for a connection that asks little.
    pub(crate) fn remember(&mut self) {
        self.answered = Some(Vec::new());
    }

    /// Questions that were answered since.
    pub(crate) fn questions_answered(&mut self) -> Vec<Vec<String>> {
        self.answered.take().unwrap_or_default()
    }

    fn note_answered<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        if let Some(all) = &mut self.answered {
            all.push(args.iter().map(|word| String::from_utf8_lossy(word.as_ref()).into_owned()).collect());
        }
    }

    /// One command, if it is on the list.
    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, Error> {
        check(self.lists, args)?;
        self.commands += 1;
        let answer = self.connection.call(args);
        if answer.is_ok() {
            self.note_answered(args);
        }
        answer
    }

    /// Subscribes to a permitted channel and hands on its messages until `until`. The connection is of no other use
    /// afterwards.
    pub fn listen(&mut self, channel: &str, until: Instant, mut heard: impl FnMut(&str)) -> Result<(), Error> {
        check(self.lists, &["SUBSCRIBE", channel])?;
        self.commands += 1;
        self.connection.send(&["SUBSCRIBE", channel])?;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            match self.connection.receive(left) {
                Ok(Value::Error(text)) => return Err(Error::reply(&text, "SUBSCRIBE")),
                Ok(message) => {
                    if let [kind, _, payload] = message.items()
                        && kind.text().as_deref() == Some("message")
                    {
                        heard(&payload.text().unwrap_or_default());
                    }
                }
                Err(e) if e.kind == ErrorKind::Timeout => return Ok(()),
                Err(e) => return Err(e),
            }
        }
    }

    /// Many commands in one round trip, if all are on the list.
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Result<Vec<Result<Value, Error>>, Error> {
        commands.iter().try_for_each(|c| check(self.lists, c))?;
        self.commands += commands.len() as u64;
        let answers = self.connection.pipeline(commands)?;
        let answered = commands.iter().zip(&answers).filter(|(_, answer)| answer.is_ok());
        answered.for_each(|(args, _)| self.note_answered(args));
        Ok(answers)
    }
}

fn check<A: AsRef<[u8]>>(lists: &[&[Allowed]], args: &[A]) -> Result<(), Error> {
    let word =
        |i: usize| args.get(i).map(|a| String::from_utf8_lossy(a.as_ref()).to_ascii_lowercase()).unwrap_or_default();
    let command = word(0);
    let permits = |a: &Allowed| {
        a.command == command && a.sub.split(' ').zip(1..).all(|(sub, i)| sub.is_empty() || sub == word(i))
    };
    if lists.iter().copied().flatten().any(permits) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::NotAllowed,
        format!("{} is not on the read-only list; this is a defect in unslow", command.to_uppercase()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lets_nothing_through_that_writes_or_blocks() {
        for words in [
            &["SET", "k", "v"][..],
            &["CONFIG", "SET", "x", "y"],
            &["MONITOR"],
            &["KEYS", "*"],
            &["DEBUG", "SLEEP", "1"],
            &["CLIENT", "KILL", "x"],
            &["GET", "k"],
            &["LATENCY", "RESET"],
            &["CLUSTER", "FAILOVER"],
            &["UNSLOW", "DRAIN"],
            &["UNSLOW", "SHOW", "CONFIG"],
            &["UNSLOW", "SHOW"],
            &[],
        ] {
            for lists in [&[ALLOWED][..], &[ALLOWED, OF_KEYS], &[ALLOWED, OF_HOT_KEYS]] {
                assert_eq!(check(lists, words).unwrap_err().kind, ErrorKind::NotAllowed, "{words:?}");
            }
        }
        for words in [
            &["INFO", "all"][..],
            &["config", "get", "save"],
            &["LATENCY", "HISTOGRAM"],
            &["UNSLOW", "SHOW", "TOPOLOGY"],
        ] {
            check(&[ALLOWED], words).unwrap();
        }
        for words in [&["SCAN", "0"][..], &["OBJECT", "FREQ", "k"], &["MEMORY", "USAGE", "k"]] {
            check(&[ALLOWED], words).unwrap_err();
            check(&[ALLOWED, OF_KEYS], words).unwrap();
        }
        check(&[ALLOWED, OF_KEYS], &["MEMORY", "PURGE"]).unwrap_err();
        for lists in [&[ALLOWED][..], &[ALLOWED, OF_KEYS]] {
            check(lists, &["HOTKEYS", "START"]).unwrap_err();
        }
        check(&[ALLOWED, OF_HOT_KEYS], &["HOTKEYS", "START", "METRICS", "1", "CPU"]).unwrap();
    }

    #[test]
    fn cuts_the_acl_by_version() {
        use Product::{Redis, Valkey};
        assert_eq!(acl_rule(Redis(5, 0), false), None);
        let six = acl_rule(Redis(6, 2), false).unwrap();
        assert!(six.contains(" ~* ") && six.contains("+config|get") && !six.contains("+sentinel"), "{six}");
        assert!(acl_rule(Redis(7, 0), false).unwrap().contains("%R~*"));
        assert!(acl_rule(Redis(7, 0), true).unwrap().contains("+sentinel|ckquorum"));
        let grants = |server, rule| acl_rule(server, false).unwrap().contains(rule);
        // A server takes no rule that names a command it does not have.
        for (rule, there, not_there) in [
            (" +latency|histogram", &[Redis(7, 0), Valkey(7, 2)][..], &[Redis(6, 2)][..]),
            (" +cluster|slot-stats", &[Redis(8, 2), Valkey(8, 0)], &[Redis(8, 0), Redis(7, 2), Valkey(7, 2)]),
            (" +commandlog|get", &[Valkey(8, 1), Valkey(9, 1)], &[Valkey(8, 0), Redis(8, 6), Redis(9, 0)]),
            (" +info", &[Redis(6, 0), Valkey(8, 0)], &[]),
            (" +unslow", &[], &[Redis(6, 0), Redis(7, 2), Valkey(9, 1)]),
        ] {
            assert!(there.iter().all(|server| grants(*server, rule)), "{rule}");
            assert!(!not_there.iter().any(|server| grants(*server, rule)), "{rule}");
        }
        let hot = |server, hot| acl_rule_of_keys(server, hot).unwrap().contains("+hotkeys|start");
        assert!(hot(Redis(8, 6), true) && !hot(Redis(8, 6), false));
        assert!(!hot(Redis(8, 4), true) && !hot(Valkey(9, 1), true));
        let sentinel = acl_rule(Valkey(9, 1), true).unwrap();
        assert!(!sentinel.contains("+commandlog") && !sentinel.contains("+unslow"), "{sentinel}");
    }
}
