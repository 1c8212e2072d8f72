//! The table: from COMMAND's reply, and from a command's arguments to its [`Plan`].

use std::collections::HashMap;

use unslow_resp::Value;

use crate::command::{Command, Divide, Join, SPECIAL, Special, Spread, takes_connection};
use crate::fill::FILL;
use crate::keys::{KeyAt, Word, number_of_keys, specified};

/// What routing needs to know about one request.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub number: u16,
    pub read: bool,
    pub admin: bool,
    pub blocking: bool,
    pub repeatable: bool,
    /// It runs code of users or of modules: any error text may be theirs.
    pub scripted: bool,
    /// It may have keys whose place is not known.
    pub unsure: bool,
    /// One key or none, one reply, no state: the common case.
    pub plain: bool,
    pub spread: Spread,
    pub join: Join,
    pub divide: Option<Divide>,
    pub special: Option<Special>,
    /// The index of its first key among the arguments.
    pub key: Option<usize>,
}

/// The number of the command used for names that are not in the table.
pub const UNKNOWN: u16 = 0;

/// The commands of one server, found by name.
#[derive(Clone, Debug)]
pub struct Table {
    commands: Vec<Command>,
    /// Names of up to 16 bytes, packed: found without allocation.
    packed: Vec<(u128, u16)>,
    long: HashMap<Vec<u8>, u16>,
}

const BUCKETS: usize = 4096;
/// More than ten times what any server has; the buckets never fill up.
const COMMANDS_MAX: usize = 3000;

impl Table {
    /// Parses the reply to COMMAND; `None` if it is something else. Commands named in `idempotent` are repeatable.
    pub fn parse(reply: &Value, idempotent: &[String]) -> Option<Table> {
        let mut table = Table {
            commands: vec![Command::new("(unknown)".into(), -1)],
            packed: vec![(0, UNKNOWN); BUCKETS],
            long: HashMap::new(),
        };
        let Value::Array(rows) = reply else { return None };
        // Servers list commands in any order; sorted, the same commands get the same numbers.
        let mut rows: Vec<&Value> = rows.iter().filter(|r| !r.items().is_empty()).take(COMMANDS_MAX).collect();
        rows.sort_by_key(|r| r.items()[0].text());
        for row in rows {
            table.add(row, None)?;
        }
        // What a proxy answers itself exists whatever the server knows.
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
                        // No response policy means that arrays are concatenated.
                        command.join = Join::Concat;
                    }
                }
                "response_policy:one_succeeded" => command.join = Join::OneSucceeds,
                "response_policy:agg_sum" => command.join = Join::Sum,
                "response_policy:agg_min" => command.join = Join::Min,
                "response_policy:agg_logical_and" => command.join = Join::And,
                // How to merge these is not specified; one node's reply is better than a wrong one.
                "response_policy:special" => command.spread = Spread::Any,
                _ => {}
            }
        }
        let subcommands = rest.get(3).map_or(&[][..], Value::items).to_vec();
        for fill in FILL.iter().filter(|f| f.name == name) {
            // Where the server lists subcommands, the keys are theirs: the command by itself has none.
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
        // A container is routed by its subcommands, if the server lists any.
        let own = self.insert(command);
        if let Some(parent) = parent {
            let short = name.split_once('|').map_or(name.as_str(), |(_, s)| s).to_ascii_lowercase();
            self.commands[usize::from(parent)].subcommands.push((short.into_bytes(), own));
        }
        for sub in subcommands.iter().filter(|s| !s.items().is_empty()) {
            self.add(sub, Some(own))?;
        }
        if subcommands.is_empty() && parent.is_none() {
            // Servers before 7.0 do not list subcommands; those that matter for routing are added.
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
            // Found through its parent: servers do not accept `client|id` as a name.
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

    /// The number of the command with this name, or of its subcommand where `second` names one.
    pub fn look_up(&self, name: &[u8], second: Option<&[u8]>) -> u16 {
        let number = self.find(name);
        let subcommands = &self.commands[usize::from(number)].subcommands;
        if subcommands.is_empty() {
            return number;
        }
        let Some(second) = second else { return number };
        subcommands.iter().find(|(s, _)| s.eq_ignore_ascii_case(second)).map_or(number, |(_, n)| *n)
    }

    /// How to route a command whose arguments are ranges of `bytes`.
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
        // XREAD and XREADGROUP block only with BLOCK.
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

    /// The command with this number.
    pub fn get(&self, number: u16) -> &Command {
        &self.commands[usize::from(number)]
    }

    /// Whether every number means the same command in both tables.
    pub fn same_numbers(&self, other: &Table) -> bool {
        self.commands.len() == other.commands.len()
            && self.commands.iter().zip(&other.commands).all(|(a, b)| a.name == b.name)
    }

    /// The name of the command that was probably meant.
    pub fn near(&self, name: &str) -> Option<&str> {
        let names = self.commands.iter().skip(1).filter(|c| !c.name.contains('|'));
        unslow_units::nearest(name, names.map(|c| c.name.as_str()))
    }

    /// How many commands there are, including [`UNKNOWN`] and subcommands.
    pub fn count(&self) -> usize {
        self.commands.len()
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
