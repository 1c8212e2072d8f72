//! The server's own table of commands (COMMAND), made fit for routing: where the first key is, who may answer, how
//! several answers become one.
//!
//! Redis 7.0 and Valkey say all of it themselves: key specifications, `request_policy` and `response_policy`. What
//! older servers leave out is filled in from [`FILL`], and only for commands they have. A command the table does not
//! know is forwarded all the same.

use std::collections::HashMap;

use unslow_resp::Value;

/// Where a command's first key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAt {
    /// It has none.
    Nowhere,
    /// This argument; the name of the command is argument 0.
    Arg(usize),
    /// Argument `count` is the number of keys; when it is not 0 the first stands at `first`.
    Counted { count: usize, first: usize },
    /// Behind this word, looked for from argument `from` on.
    Behind { word: Word, from: usize },
}

/// A short word, kept in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word([u8; 16]);

impl Word {
    /// `None` when it is longer than 16 bytes.
    fn new(text: &[u8]) -> Option<Word> {
        let mut word = [0; 16];
        word.get_mut(..text.len())?.copy_from_slice(text);
        Some(Word(word))
    }

    /// Whether it is this text, in any case.
    pub fn is(&self, text: &[u8]) -> bool {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(16);
        self.0[..len].eq_ignore_ascii_case(text)
    }
}

/// How a command without one key to route by is spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Any node will do.
    Any,
    /// To every master.
    AllMasters,
    /// To every node that answers.
    AllNodes,
}

/// How the answers of several nodes become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// The first, or the first error.
    AllSucceed,
    /// The first that is no error.
    OneSucceeds,
    /// Integers: their sum.
    Sum,
    /// Integers: the smallest.
    Min,
    /// Arrays of 0 and 1: 1 where all have 1.
    And,
    /// Arrays: one behind the other.
    Concat,
    /// Any that is not null.
    NotNull,
}

/// Commands that are split by slot although each part is a command of its own: nobody was promised that all of it
/// happens at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divide {
    /// `DEL k k`, `EXISTS`, ...: integers are added.
    Count,
    /// `MGET`: values in the order of the keys.
    Values,
    /// `MSET`: pairs.
    Pairs,
}

/// Commands that change the connection they come on, or that a proxy has to answer itself.
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
    /// SYNC, PSYNC, REPLCONF: they would make a replica of us.
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
    /// As the server says it: negative for "at least".
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
    last: i64,
    /// From one of them to the next.
    step: usize,
    /// MIGRATE: where the argument for the key is empty, the keys follow this word.
    key_list: Option<Word>,
    pub spread: Spread,
    pub join: Join,
    pub divide: Option<Divide>,
    pub special: Option<Special>,
    /// It has keys, and the server does not say where.
    movable: bool,
    /// May be sent again when nobody knows whether it ran.
    pub repeatable: bool,
    subcommands: Vec<(Vec<u8>, u16)>,
}

/// What routing needs of a command with its arguments at hand.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub number: u16,
    pub read: bool,
    pub admin: bool,
    pub blocking: bool,
    pub repeatable: bool,
    /// It runs code of users or of modules: any error text may be theirs.
    pub scripted: bool,
    /// It may have keys that we do not see.
    pub unsure: bool,
    /// One key or none, one answer, no state: the common way.
    pub plain: bool,
    pub spread: Spread,
    pub join: Join,
    pub divide: Option<Divide>,
    pub special: Option<Special>,
    /// Its first key, as an argument's number.
    pub key: Option<usize>,
}

/// Number of the command that stands for those the table does not know.
pub const UNKNOWN: u16 = 0;

/// The table.
#[derive(Clone, Debug)]
pub struct Table {
    commands: Vec<Command>,
    /// Names of up to 16 bytes, packed: found without allocation.
    packed: Vec<(u128, u16)>,
    long: HashMap<Vec<u8>, u16>,
}

const BUCKETS: usize = 4096;
/// More than ten times as many as any server has; the buckets never fill.
const COMMANDS_MAX: usize = 3000;

/// What servers before 7.0 do not say.
struct Fill {
    name: &'static str,
    key: Option<KeyAt>,
    spread: Option<(Spread, Join)>,
    blocking: bool,
}

const fn fill(name: &'static str) -> Fill {
    Fill { name, key: None, spread: None, blocking: false }
}

const fn counted(name: &'static str, count: usize) -> Fill {
    Fill { key: Some(KeyAt::Counted { count, first: count + 1 }), ..fill(name) }
}

const fn all(name: &'static str, join: Join) -> Fill {
    Fill { spread: Some((Spread::AllMasters, join)), ..fill(name) }
}

const fn blocks(name: &'static str) -> Fill {
    Fill { blocking: true, ..fill(name) }
}

const FILL: [Fill; 38] = [
    counted("EVAL", 2),
    counted("EVALSHA", 2),
    counted("EVAL_RO", 2),
    counted("EVALSHA_RO", 2),
    counted("ZUNION", 1),
    counted("ZINTER", 1),
    counted("ZDIFF", 1),
    Fill { key: Some(KeyAt::Arg(2)), ..fill("MEMORY|USAGE") },
    Fill { key: Some(KeyAt::Arg(1)), ..fill("ZUNIONSTORE") },
    Fill { key: Some(KeyAt::Arg(1)), ..fill("ZINTERSTORE") },
    Fill { key: Some(KeyAt::Arg(3)), ..fill("MIGRATE") },
    Fill { key: Some(KeyAt::Arg(2)), ..fill("OBJECT") },
    Fill { key: Some(KeyAt::Arg(2)), ..fill("XINFO") },
    Fill { key: Some(KeyAt::Arg(2)), ..fill("XGROUP") },
    // Servers before 7.2 do not say so of it, as they do of SLOWLOG RESET.
    Fill { spread: Some((Spread::AllNodes, Join::AllSucceed)), ..fill("CONFIG|RESETSTAT") },
    all("DBSIZE", Join::Sum),
    all("FLUSHALL", Join::AllSucceed),
    all("FLUSHDB", Join::AllSucceed),
    all("KEYS", Join::Concat),
    all("RANDOMKEY", Join::NotNull),
    all("SCRIPT|LOAD", Join::AllSucceed),
    all("SCRIPT|FLUSH", Join::AllSucceed),
    all("SCRIPT|EXISTS", Join::And),
    all("SCRIPT|KILL", Join::OneSucceeds),
    fill("SCRIPT|DEBUG"),
    all("FUNCTION|LOAD", Join::AllSucceed),
    all("FUNCTION|DELETE", Join::AllSucceed),
    all("FUNCTION|FLUSH", Join::AllSucceed),
    all("FUNCTION|RESTORE", Join::AllSucceed),
    all("FUNCTION|KILL", Join::OneSucceeds),
    blocks("BLPOP"),
    blocks("BRPOP"),
    blocks("BRPOPLPUSH"),
    blocks("BLMOVE"),
    blocks("BZPOPMIN"),
    blocks("BZPOPMAX"),
    blocks("XREAD"),
    blocks("XREADGROUP"),
];

const SPECIAL: [(&str, Special); 29] = [
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
    fn new(name: String, arity: i64) -> Command {
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

    /// Which of so many arguments are keys, as far as the server says it in one range; `counted` is the number that
    /// stands in front of counted keys.
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

    /// Whether it only groups subcommands (7.0+): without a known one as its second word it is not a command.
    pub fn is_container(&self) -> bool {
        !self.subcommands.is_empty()
    }

    /// Whether so many arguments (the name included) can be right.
    pub fn fits(&self, args: usize) -> bool {
        if self.arity >= 0 { args as i64 == self.arity } else { args as i64 >= -self.arity }
    }
}

impl Table {
    /// From the reply of COMMAND. `None` when it is something else. Commands named in `idempotent` may be repeated.
    pub fn parse(reply: &Value, idempotent: &[String]) -> Option<Table> {
        let mut table = Table {
            commands: vec![Command::new("(unknown)".into(), -1)],
            packed: vec![(0, UNKNOWN); BUCKETS],
            long: HashMap::new(),
        };
        let Value::Array(rows) = reply else { return None };
        // Servers list them in an order of their own; ours is the same for the same commands.
        let mut rows: Vec<&Value> = rows.iter().filter(|r| !r.items().is_empty()).take(COMMANDS_MAX).collect();
        rows.sort_by_key(|r| r.items()[0].text());
        for row in rows {
            table.add(row, None)?;
        }
        // What the gateway answers itself exists whatever the server knows.
        for (name, _) in SPECIAL {
            if table.find(name.as_bytes()) == UNKNOWN {
                table.insert(Command::new(name.into(), -1));
            }
        }
        for command in &mut table.commands {
            let named = |n: &String| command.name.eq_ignore_ascii_case(n);
            command.repeatable = command.read || idempotent.iter().any(named);
        }
        (table.commands.len() > SPECIAL.len() + 1).then_some(table)
    }

    fn add(&mut self, row: &Value, parent: Option<u16>) -> Option<()> {
        let [name, arity, flags, first, last, step, rest @ ..] = row.items() else { return None };
        let name = name.text()?.to_ascii_uppercase();
        let mut command = Command::new(name.clone(), arity.integer()?);
        for flag in flags.items().iter().filter_map(Value::text) {
            match flag.as_str() {
                "readonly" => command.read = true,
                "admin" => command.admin = true,
                "blocking" => command.blocking = true,
                "write" | "may_replicate" => command.writes = true,
                "noscript" => command.noscript = true,
                "movablekeys" => command.movable = true,
                "module" => command.scripted = true,
                _ => {}
            }
        }
        let tips: Vec<String> = rest.get(1).map_or(&[][..], Value::items).iter().filter_map(Value::text).collect();
        let specs = rest.get(2).map_or(&[][..], Value::items);
        // EVAL_RO and the like run code, but no code that writes.
        command.writes &= !command.read;
        let first = usize::try_from(first.integer()?).unwrap_or(0);
        command.last = last.integer()?;
        command.step = usize::try_from(step.integer()?).unwrap_or(1).max(1);
        command.key = match specs.first().and_then(specified) {
            Some(key) => key,
            None if first > 0 => KeyAt::Arg(first),
            None => KeyAt::Nowhere,
        };
        if specs.is_empty()
            && matches!(name.as_str(), "XREAD" | "XREADGROUP")
            && let Some(word) = Word::new(b"STREAMS")
        {
            command.key = KeyAt::Behind { word, from: 1 };
        }
        for tip in &tips {
            match tip.as_str() {
                "request_policy:all_shards" | "request_policy:all_nodes" => {
                    let nodes = tip.ends_with("all_nodes");
                    command.spread = if nodes { Spread::AllNodes } else { Spread::AllMasters };
                    if !tips.iter().any(|t| t.starts_with("response_policy:")) {
                        // "Nothing said" means: one behind the other for arrays.
                        command.join = Join::Concat;
                    }
                }
                "response_policy:one_succeeded" => command.join = Join::OneSucceeds,
                "response_policy:agg_sum" => command.join = Join::Sum,
                "response_policy:agg_min" => command.join = Join::Min,
                "response_policy:agg_logical_and" => command.join = Join::And,
                // How to join is ours to invent; one node's own answer is better than a wrong one.
                "response_policy:special" => command.spread = Spread::Any,
                _ => {}
            }
        }
        let subcommands = rest.get(3).map_or(&[][..], Value::items).to_vec();
        for fill in FILL.iter().filter(|f| f.name == name) {
            // Where the server lists subcommands, these have the keys: what names none of them has none.
            if let (Some(key), KeyAt::Nowhere, true) = (fill.key, command.key, subcommands.is_empty()) {
                command.key = key;
            }
            if let Some((spread, join)) = fill.spread {
                (command.spread, command.join) = (spread, join);
            }
            command.blocking |= fill.blocking;
        }
        if let Some(parent) = parent {
            command.special = self.commands[usize::from(parent)].special;
        }
        // A container answers by itself only when it has no subcommands of which to route.
        let own = self.insert(command);
        if let Some(parent) = parent {
            let short = name.split_once('|').map_or(name.as_str(), |(_, s)| s).to_ascii_lowercase();
            self.commands[usize::from(parent)].subcommands.push((short.into_bytes(), own));
        }
        for sub in subcommands.iter().filter(|s| !s.items().is_empty()) {
            self.add(sub, Some(own))?;
        }
        if subcommands.is_empty() && parent.is_none() {
            // Servers before 7.0 know no subcommands; those that matter for routing are added.
            let prefix = format!("{name}|");
            for fill in FILL.iter().filter(|f| f.name.starts_with(&prefix)) {
                let mut sub = self.commands[usize::from(own)].clone();
                sub.name = fill.name.into();
                sub.admin |= takes_connection(fill.name);
                sub.key = fill.key.unwrap_or(sub.key);
                if let Some((spread, join)) = fill.spread {
                    (sub.spread, sub.join) = (spread, join);
                }
                let short = fill.name[prefix.len()..].to_ascii_lowercase().into_bytes();
                let number = self.insert(sub);
                self.commands[usize::from(own)].subcommands.push((short, number));
            }
        }
        Some(())
    }

    fn insert(&mut self, command: Command) -> u16 {
        let number = self.commands.len() as u16;
        if command.name.contains('|') {
            // Found through its command: servers know no `client|id`.
            self.commands.push(command);
            return number;
        }
        let name = command.name.to_ascii_lowercase().into_bytes();
        match pack(&name).filter(|_| usize::from(number) < COMMANDS_MAX) {
            Some(packed) => {
                let mut at = bucket(packed);
                while self.packed[at].0 != 0 && self.packed[at].0 != packed {
                    at = (at + 1) % BUCKETS;
                }
                self.packed[at] = (packed, number);
            }
            None => {
                self.long.insert(name, number);
            }
        }
        self.commands.push(command);
        number
    }

    fn find(&self, name: &[u8]) -> u16 {
        match pack(name) {
            Some(packed) => {
                let mut at = bucket(packed);
                loop {
                    match self.packed[at] {
                        (0, _) => return UNKNOWN,
                        (held, number) if held == packed => return number,
                        _ => at = (at + 1) % BUCKETS,
                    }
                }
            }
            None => self.long.get(&name.to_ascii_lowercase()).copied().unwrap_or(UNKNOWN),
        }
    }

    /// The command of this name; with its second word where it is a subcommand.
    pub fn look_up(&self, name: &[u8], second: Option<&[u8]>) -> u16 {
        let number = self.find(name);
        let subcommands = &self.commands[usize::from(number)].subcommands;
        if subcommands.is_empty() {
            return number;
        }
        let Some(second) = second else { return number };
        subcommands.iter().find(|(s, _)| s.eq_ignore_ascii_case(second)).map_or(number, |(_, n)| *n)
    }

    /// What to do with a command whose arguments are ranges of `bytes`.
    #[inline]
    pub fn plan(&self, bytes: &[u8], args: &[(u32, u32)]) -> Plan {
        let arg = |i: usize| args.get(i).map(|&(a, b)| &bytes[a as usize..b as usize]);
        let number = self.look_up(arg(0).unwrap_or(b""), arg(1));
        let command = &self.commands[usize::from(number)];
        let key = match &command.key {
            KeyAt::Nowhere => None,
            KeyAt::Arg(at) => match command.key_list {
                Some(word) if arg(*at).is_some_and(<[u8]>::is_empty) => {
                    let list = (*at + 1..args.len()).find(|&i| arg(i).is_some_and(|a| word.is(a)));
                    Some(list.map_or(*at, |i| i + 1))
                }
                _ => Some(*at),
            },
            KeyAt::Counted { count, first } => arg(*count).filter(|text| number_of_keys(text) > 0).map(|_| *first),
            KeyAt::Behind { word, from } => {
                (*from..args.len()).find(|&i| arg(i).is_some_and(|a| word.is(a))).map(|i| i + 1)
            }
        };
        // XREAD and XREADGROUP block only when told to.
        let blocking = command.blocking
            && (!matches!(command.key, KeyAt::Behind { .. })
                || (1..args.len()).any(|i| arg(i).is_some_and(|a| a.eq_ignore_ascii_case(b"BLOCK"))));
        let unsure = command.unsure() || command.key == KeyAt::Nowhere && number == UNKNOWN;
        Plan {
            number,
            read: command.read,
            admin: command.admin,
            blocking,
            repeatable: command.repeatable,
            scripted: command.scripted,
            unsure,
            plain: command.special.is_none()
                && !unsure
                && !command.admin
                && !blocking
                && command.spread == Spread::Any
                && command.divide.is_none(),
            spread: command.spread,
            join: command.join,
            divide: command.divide,
            special: command.special,
            key: key.filter(|k| *k < args.len()),
        }
    }

    /// By number.
    pub fn get(&self, number: u16) -> &Command {
        &self.commands[usize::from(number)]
    }

    /// Whether numbers mean the same in another table.
    pub fn same_numbers(&self, other: &Table) -> bool {
        self.commands.len() == other.commands.len()
            && self.commands.iter().zip(&other.commands).all(|(a, b)| a.name == b.name)
    }

    /// The name of the command that is spelled most like this.
    pub fn near(&self, name: &str) -> Option<&str> {
        let names = self.commands.iter().skip(1).filter(|c| !c.name.contains('|'));
        unslow_units::nearest(name, names.map(|c| c.name.as_str()))
    }

    /// How many numbers there are.
    pub fn count(&self) -> usize {
        self.commands.len()
    }
}

/// How many keys an argument announces, as servers read it to find the node: as C's `atoi`, with blanks before the
/// number and anything behind it. Only the command itself, on its node, refuses such a number.
pub fn number_of_keys(text: &[u8]) -> i64 {
    let begin = text.iter().position(|b| !matches!(b, b' ' | b'\t'..=b'\r')).unwrap_or(text.len());
    let (number, negative) = (&text[begin..], text.get(begin) == Some(&b'-'));
    let signed = negative || number.first() == Some(&b'+');
    let digits = number[usize::from(signed)..].iter().take_while(|b| b.is_ascii_digit());
    let number = digits.fold(0i64, |n, b| n.saturating_mul(10).saturating_add(i64::from(b - b'0')));
    if negative { -number } else { number }
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
fn takes_connection(name: &str) -> bool {
    name == "SCRIPT|DEBUG"
}

/// A key specification: `[flags.., begin_search, {type, spec}, find_keys, {type, spec}]`.
fn specified(spec: &Value) -> Option<KeyAt> {
    let begin = spec.get("begin_search")?;
    let find = spec.get("find_keys")?;
    let (begin_spec, find_spec) = (begin.get("spec")?, find.get("spec")?);
    let number = |v: &Value, field: &str| v.get(field).and_then(Value::integer).and_then(|n| usize::try_from(n).ok());
    match (begin.get("type")?.text()?.as_str(), find.get("type")?.text()?.as_str()) {
        ("index", "range") => Some(KeyAt::Arg(number(begin_spec, "index")?)),
        ("index", "keynum") => {
            let at = number(begin_spec, "index")?;
            Some(KeyAt::Counted {
                count: at + number(find_spec, "keynumidx")?,
                first: at + number(find_spec, "firstkey")?,
            })
        }
        ("keyword", _) => Some(KeyAt::Behind {
            word: Word::new(begin_spec.get("keyword")?.text()?.as_bytes())?,
            from: begin_spec.get("startfrom")?.integer().and_then(|n| usize::try_from(n).ok()).unwrap_or(1),
        }),
        _ => None,
    }
}

/// Up to 16 bytes in lower case, as a number that is not 0.
#[inline]
fn pack(name: &[u8]) -> Option<u128> {
    if name.is_empty() || name.len() > 16 {
        return None;
    }
    let mut packed = [0u8; 16];
    for (to, from) in packed.iter_mut().zip(name) {
        *to = from | 0x20;
    }
    Some(u128::from_le_bytes(packed))
}

fn bucket(packed: u128) -> usize {
    let folded = (packed as u64 ^ (packed >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (folded >> 52) as usize % BUCKETS
}
