//! Which messages become which commands: the `[[map]]` parts of the settings, compiled and held against the server's
//! own table of commands.

use std::time::Duration;

use serde::Deserialize;
use unslow_commands::{KeyAt, Spread, Table, UNKNOWN};
use unslow_topology::slot_of;
use unslow_units::parse_time_within;

use crate::condition::{Condition, ConditionError};
use crate::document::{Document, Format};
use crate::poison::Poison;
use crate::record::Message;
use crate::template::{Template, TemplateError};

/// A `[[map]]` as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MapSettings {
    /// Topics, file names or streams; `*` stands for anything. Without it: all.
    pub topic: OneOrMore,
    /// A Jinja expression over the message's members.
    pub when: Option<String>,
    /// How values are written.
    pub format: Format,
    /// What a message becomes.
    pub commands: Vec<CommandSettings>,
    /// What a message without a value becomes; nothing when empty.
    pub tombstone: Vec<CommandSettings>,
    /// Which of several messages of one batch with the same first key are written.
    pub fold: Fold,
}

/// A text or a list of texts.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// `topic = "users"`
    One(String),
    /// `topic = ["users", "orders"]`
    More(Vec<String>),
}

impl Default for OneOrMore {
    fn default() -> Self {
        OneOrMore::More(Vec::new())
    }
}

impl OneOrMore {
    fn list(&self) -> Vec<String> {
        match self {
            OneOrMore::One(text) => vec![text.clone()],
            OneOrMore::More(list) => list.clone(),
        }
    }
}

/// A command: its text, or its text with what belongs to it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum CommandSettings {
    /// `"HSET user:{id} {fields...}"`
    Plain(String),
    /// `{ run = "HSET user:{id} {fields...}", ttl = "36h", when = "age > 17" }`
    Full(FullCommand),
}

impl CommandSettings {
    fn text(&self) -> &str {
        match self {
            CommandSettings::Plain(text) => text,
            CommandSettings::Full(full) => &full.run,
        }
    }
}

/// See [`CommandSettings::Full`].
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullCommand {
    /// The command.
    run: String,
    /// Its key ends so long after it.
    ttl: Option<String>,
    /// A Jinja expression; without it: always.
    when: Option<String>,
}

/// See [`MapSettings::fold`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fold {
    /// All of them.
    #[default]
    Never,
    /// The last: each message says all there is to say of its key.
    Last,
}

/// Why a mapping cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// There is no `[[map]]`.
    #[error("no [[map]]: which messages become which commands? docs/sink.md has examples")]
    NoMaps,
    /// One of them cannot work. They are counted from 1.
    #[error("map {number}: {error}")]
    Map { number: usize, error: MapError },
}

/// Why a `[[map]]` cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Neither commands nor tombstone.
    #[error("it has no commands")]
    NoCommands,
    /// A command has a condition, and the map folds: the last message could leave out what an earlier one writes.
    #[error("with fold = \"last\" a condition belongs to the map, not to a command")]
    FoldedCondition,
    /// Its own condition is wrong.
    #[error(transparent)]
    Condition(#[from] ConditionError),
    /// A command asks for members of raw messages or of tombstones.
    #[error("{command:?} looks into messages that have nothing inside")]
    NothingInside { command: String },
    /// A command cannot be sent.
    #[error("{command:?}: {error}")]
    Command { command: String, error: CommandError },
}

/// Why a command cannot stand in a mapping; with its name, and what the server says of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// Its text cannot be compiled.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Its condition is wrong.
    #[error(transparent)]
    Condition(#[from] ConditionError),
    /// The server's table does not list it.
    #[error("the server has no command {name}{}", meant(.near.as_deref()))]
    Unknown { name: String, near: Option<String> },
    /// It takes another number of words.
    #[error("{name} takes {words} words, itself among them; here are {found}")]
    Words { name: String, words: u64, found: usize },
    /// It takes more words.
    #[error("{name} takes at least {least} words, itself among them; here are {found}")]
    FewWords { name: String, least: u64, found: usize },
    /// SUBSCRIBE, MULTI, BLPOP and the like.
    #[error("{0} changes or blocks the connection that all messages share")]
    Connection(String),
    /// An admin command.
    #[error("{0} is for operators, not for messages")]
    Operators(String),
    /// It concerns more than a key: FLUSHALL, DBSIZE.
    #[error("{0} is about a whole server or deployment, not about a key")]
    Deployment(String),
    /// Marks are kept by a script, in which it is refused.
    #[error("{0} cannot be sent with exactly_once: servers refuse it inside scripts")]
    NoScript(String),
    /// EVAL and the like, with a number of keys that comes from the message.
    #[error("the number of keys of {0} stands in the mapping as a number")]
    KeyCount(String),
    /// The word in front of its key is missing.
    #[error("where is the key of {0}?")]
    NoKey(String),
    /// Where its key is depends on the message.
    #[error("the key of {0} stands before what {{...}} brings")]
    LateKey(String),
    /// The server does not say where its key is, and in a cluster the key decides who runs it.
    #[error("the server does not say where {0} has its key, and a cluster needs to know")]
    UnknownKey(String),
    /// The same for some of its keys, which a script has to declare.
    #[error("the server does not say where all keys of {0} are, and exactly_once has to name them")]
    HiddenKeys(String),
    /// Without a key there is no slot for a mark.
    #[error("{0} has no key, and exactly_once keeps its mark beside the key")]
    NoMark(String),
    /// Its keys are the same for all messages, and no node has all of them.
    #[error("its keys are in different slots; give them a common {{{{tag}}}}")]
    Slots,
    /// There is nothing to expire.
    #[error("ttl needs a key, and {0} has none")]
    TtlWithoutKey(String),
    /// Not a duration, or none that servers take.
    #[error("ttl: {0}")]
    Ttl(unslow_units::Error),
}

fn meant(near: Option<&str>) -> String {
    near.map_or(String::new(), |name| format!("; did you mean {name}?"))
}

/// The whole mapping, compiled.
pub struct Mapping {
    pub maps: Vec<Map>,
}

/// A compiled `[[map]]`.
pub struct Map {
    topics: Vec<String>,
    when: Option<Condition>,
    pub format: Format,
    pub commands: Vec<Command>,
    pub tombstone: Vec<Command>,
    pub fold: bool,
}

/// A compiled command.
pub struct Command {
    pub template: Template,
    /// Milliseconds, as PEXPIRE wants them.
    pub ttl_ms: Option<String>,
    pub when: Option<Condition>,
    /// As the server's table has it: where its keys stand.
    pub known: unslow_commands::Command,
    /// How many keys it has, where it says so itself.
    pub counted: Option<usize>,
}

impl Mapping {
    /// Compiles. `table` is the server's; `cluster` and `once` say what else must hold.
    pub fn compile(
        settings: &[MapSettings],
        table: &Table,
        cluster: bool,
        once: bool,
    ) -> Result<Mapping, MappingError> {
        if settings.is_empty() {
            return Err(MappingError::NoMaps);
        }
        let maps = (1..).zip(settings).map(|(number, map)| {
            Map::compile(map, table, cluster, once).map_err(|error| MappingError::Map { number, error })
        });
        Ok(Mapping { maps: maps.collect::<Result<_, _>>()? })
    }

    /// Whether any map folds.
    pub fn folds(&self) -> bool {
        self.maps.iter().any(|m| m.fold)
    }

    /// Whether any command has a message's headers in it.
    pub fn needs_headers(&self) -> bool {
        self.maps.iter().flat_map(|m| m.commands.iter().chain(&m.tombstone)).any(|c| c.template.needs_headers())
    }

    /// Whether any command runs a script, a function or a module.
    pub fn scripted(&self) -> bool {
        self.maps.iter().flat_map(|m| m.commands.iter().chain(&m.tombstone)).any(|c| c.known.scripted)
    }
}

impl Map {
    fn compile(settings: &MapSettings, table: &Table, cluster: bool, once: bool) -> Result<Map, MapError> {
        let (commands, tombstone) = (&settings.commands, &settings.tombstone);
        if commands.is_empty() && tombstone.is_empty() {
            return Err(MapError::NoCommands);
        }
        let fold = settings.fold == Fold::Last;
        let conditional = |c: &CommandSettings| matches!(c, CommandSettings::Full(f) if f.when.is_some());
        if fold && commands.iter().chain(tombstone).any(conditional) {
            return Err(MapError::FoldedCondition);
        }
        let compile = |list: &[CommandSettings], inside: bool| -> Result<Vec<Command>, MapError> {
            let compiled = list.iter().map(|settings| {
                let command = || settings.text().to_string();
                match Command::compile(settings, table, cluster, once) {
                    Ok(compiled) if compiled.looks_inside() && !inside => {
                        Err(MapError::NothingInside { command: command() })
                    }
                    Ok(compiled) => Ok(compiled),
                    Err(error) => Err(MapError::Command { command: command(), error }),
                }
            });
            compiled.collect()
        };
        Ok(Map {
            topics: settings.topic.list(),
            when: settings.when.as_deref().map(Condition::compile).transpose()?,
            format: settings.format,
            commands: compile(commands, settings.format != Format::Raw)?,
            tombstone: compile(tombstone, false)?,
            fold,
        })
    }

    /// Whether it takes messages of this topic.
    pub fn takes(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| matches(pattern, topic))
    }

    /// Whether it needs values opened.
    pub fn looks_inside(&self) -> bool {
        self.when.is_some() || self.commands.iter().any(Command::looks_inside)
    }

    /// Whether this message is meant.
    pub fn wants(&self, message: &Message<'_>, document: &Document<'_>) -> Result<bool, Poison> {
        self.when.as_ref().map_or(Ok(true), |c| c.holds(message, document))
    }
}

impl Command {
    fn looks_inside(&self) -> bool {
        self.when.is_some() || self.template.needs_document()
    }

    fn compile(settings: &CommandSettings, table: &Table, cluster: bool, once: bool) -> Result<Command, CommandError> {
        let (ttl, when) = match settings {
            CommandSettings::Plain(_) => (None, None),
            CommandSettings::Full(full) => (full.ttl.as_deref(), full.when.as_deref()),
        };
        let mut template = Template::parse(settings.text())?;
        let constants: Vec<Option<&[u8]>> = template.constants().collect();
        let first = constants[0].unwrap_or_default();
        let number = table.look_up(first, constants.get(1).copied().flatten());
        let name = String::from_utf8_lossy(first).to_uppercase();
        if number == UNKNOWN {
            let near = table.near(&name).map(str::to_string);
            return Err(CommandError::Unknown { name, near });
        }
        let command = table.get(number);
        let (found, open) = template.arguments();
        let words = command.arity.unsigned_abs();
        if !command.fits(found) && command.arity >= 0 {
            return Err(CommandError::Words { name, words, found });
        }
        if !(command.fits(found) || open) {
            return Err(CommandError::FewWords { name, least: words, found });
        }
        if let Some(refused) = refused(command, &name, once) {
            return Err(refused);
        }
        let numeric = |at: usize| {
            let text = constants.get(at).copied().flatten().and_then(|n| std::str::from_utf8(n).ok());
            text.and_then(|n| n.parse::<usize>().ok())
        };
        let (mut keys, mut counted) = (Vec::new(), None);
        let key = match command.key {
            KeyAt::Nowhere => None,
            KeyAt::Arg(at) => Some(at),
            KeyAt::Counted { count, first } => match numeric(count) {
                Some(0) => None,
                Some(n) => {
                    keys.extend(first..first + n);
                    counted = Some(n);
                    Some(first)
                }
                None => return Err(CommandError::KeyCount(name)),
            },
            KeyAt::Behind { word, from } => {
                (from..constants.len()).find(|&i| constants[i].is_some_and(|w| word.is(w))).map(|i| i + 1)
            }
        };
        if key.is_none() && command.key != KeyAt::Nowhere && !matches!(command.key, KeyAt::Counted { .. }) {
            return Err(CommandError::NoKey(name));
        }
        if key.is_some_and(|key| key >= constants.len()) {
            return Err(CommandError::LateKey(name));
        }
        if cluster && key.is_none() && command.unsure() {
            return Err(CommandError::UnknownKey(name));
        }
        if once && cluster && command.hides_keys() {
            return Err(CommandError::HiddenKeys(name));
        }
        if once && key.is_none() {
            return Err(CommandError::NoMark(name));
        }
        // Keys that are the same for all messages can be held against each other now.
        if cluster {
            let fixed: Vec<u16> =
                keys.iter().filter_map(|&k| constants.get(k).copied().flatten()).map(slot_of).collect();
            if fixed.windows(2).any(|w| w[0] != w[1]) {
                return Err(CommandError::Slots);
            }
        }
        let ttl_ms = match ttl {
            None => None,
            Some(_) if key.is_none() => return Err(CommandError::TtlWithoutKey(name)),
            Some(text) => Some(parse_ttl(text).map_err(CommandError::Ttl)?.as_millis().to_string()),
        };
        let when = when.map(Condition::compile).transpose()?;
        template.key = key;
        Ok(Command { template, ttl_ms, when, known: command.clone(), counted })
    }
}

/// Why a command cannot stand in any mapping, whatever its arguments are.
fn refused(command: &unslow_commands::Command, name: &str, once: bool) -> Option<CommandError> {
    let name = || name.to_string();
    if command.special.is_some() || command.blocking {
        return Some(CommandError::Connection(name()));
    }
    if command.admin {
        return Some(CommandError::Operators(name()));
    }
    if command.spread != Spread::Any {
        return Some(CommandError::Deployment(name()));
    }
    (once && command.noscript).then(|| CommandError::NoScript(name()))
}

/// `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((front, rest)) => {
            let Some(text) = text.strip_prefix(front) else { return false };
            rest.is_empty() || (0..=text.len()).any(|i| text.is_char_boundary(i) && matches(rest, &text[i..]))
        }
    }
}

/// The servers take no shorter one.
const TTL_LEAST: Duration = Duration::from_millis(1);
/// The servers' own limit for a time to live is the year 2^63 ms; this is safely below.
const TTL_MOST: Duration = Duration::from_millis(1 << 50);

/// A time to live, as `30s`, `36h` or `7d`.
pub fn parse_ttl(text: &str) -> Result<Duration, unslow_units::Error> {
    parse_time_within(text, TTL_LEAST..=TTL_MOST)
}

#[cfg(test)]
pub(crate) mod tests {
    use unslow_resp::Value as Reply;

    use super::*;
    use crate::config::Config;

    /// Rows of COMMAND: name, arity, flags, first key, last key, step.
    pub(crate) fn table() -> Table {
        let text = |t: &str| Reply::Text(t.as_bytes().to_vec());
        let row = |(name, arity, flags, first, last, step): (&str, i64, &str, i64, i64, i64)| {
            let flags = Reply::Array(flags.split(' ').map(text).collect());
            let [arity, first, last, step] = [arity, first, last, step].map(Reply::Integer);
            Reply::Array(vec![text(name), arity, flags, first, last, step])
        };
        let rows = [
            ("get", 2, "readonly", 1, 1, 1),
            ("set", -3, "write", 1, 1, 1),
            ("hset", -4, "write", 1, 1, 1),
            ("del", -2, "write", 1, -1, 1),
            ("mset", -3, "write", 1, -1, 2),
            ("sort", -2, "write movablekeys", 1, 1, 1),
            ("eval", -3, "noscript movablekeys", 0, 0, 0),
            ("blpop", -3, "write blocking", 1, -2, 1),
            ("echo", 2, "fast", 0, 0, 0),
            ("config", -2, "admin", 0, 0, 0),
            ("dbsize", 1, "readonly", 0, 0, 0),
        ];
        Table::parse(&Reply::Array(rows.map(row).into()), &[]).expect("a table of commands")
    }

    /// The compiled `[[map]]`s of these settings.
    pub(crate) fn mapping(toml: &str, cluster: bool, once: bool) -> Result<Mapping, MappingError> {
        Mapping::compile(&Config::parse(toml).expect("settings").map, &table(), cluster, once)
    }

    /// What is wrong with the first `[[map]]`.
    fn refused(map: &str, cluster: bool, once: bool) -> Option<MapError> {
        mapping(&format!("[[map]]\n{map}"), cluster, once).err().map(|error| {
            assert!(error.to_string().starts_with("map 1: "), "{error}");
            match error {
                MappingError::Map { number: 1, error } => error,
                error => panic!("{error:?}"),
            }
        })
    }

    /// What is wrong with one of its commands.
    fn command_refused(commands: &str, cluster: bool, once: bool) -> Option<CommandError> {
        refused(&format!("commands = [{commands}]"), cluster, once).map(|error| match error {
            MapError::Command { error, .. } => error,
            error => panic!("{error:?}"),
        })
    }

    #[test]
    fn unusable_commands_are_refused_with_a_reason() {
        use CommandError::*;
        let (set, get) = (|| "SET".to_string(), || "GET".to_string());
        let year = parse_ttl("1y").unwrap_err();
        for (commands, error, words) in [
            (
                r#""HSTE k f v""#,
                Unknown { name: "HSTE".into(), near: Some("HSET".into()) },
                "no command HSTE; did you mean HSET?",
            ),
            (r#""GET""#, Words { name: get(), words: 2, found: 1 }, "GET takes 2 words, itself among them; here are 1"),
            (r#""SET k""#, FewWords { name: set(), least: 3, found: 2 }, "SET takes at least 3 words, itself"),
            (r#""SUBSCRIBE c""#, Connection("SUBSCRIBE".into()), "changes or blocks the connection"),
            (r#""BLPOP k 0""#, Connection("BLPOP".into()), "changes or blocks the connection"),
            (r#""CONFIG SET a b""#, Operators("CONFIG".into()), "CONFIG is for operators"),
            (r#""DBSIZE""#, Deployment("DBSIZE".into()), "DBSIZE is about a whole server"),
            (r#""EVAL s {n} k""#, KeyCount("EVAL".into()), "the number of keys of EVAL"),
            (r#""SET {fields...} x""#, LateKey(set()), "the key of SET stands before what {...} brings"),
            (r#"{ run = "ECHO x", ttl = "1s" }"#, TtlWithoutKey("ECHO".into()), "ttl needs a key, and ECHO has none"),
            (r#"{ run = "SET k v", ttl = "1y" }"#, Ttl(year), "ttl: invalid duration"),
            (r#""SET k {v""#, Template(TemplateError::Unclosed("{v".into())), "is not closed"),
        ] {
            let refused = command_refused(commands, false, false).unwrap_or_else(|| panic!("{commands} was taken"));
            assert_eq!(refused, error, "{commands}");
            assert!(refused.to_string().contains(words), "{commands}: {refused}");
        }
        let condition = command_refused(r#"{ run = "SET k v", when = "a >" }"#, false, false);
        assert!(matches!(condition, Some(Condition(ConditionError::Syntax { .. }))), "{condition:?}");
        assert_eq!(Mapping::compile(&[], &table(), false, false).err(), Some(MappingError::NoMaps));
    }

    #[test]
    fn cluster_and_exactly_once_refuse_commands_they_cannot_keep_their_promise_for() {
        use CommandError::*;
        let script = || Some(NoScript("EVAL".into()));
        let unmarked = || Some(NoMark("ECHO".into()));
        // The commands, and who refuses them: one server, a cluster, exactly_once, exactly_once in a cluster.
        for (commands, refused) in [
            (r#""SET k v", "DEL a b""#, [None, None, None, None]),
            (r#""EVAL s 2 a b""#, [None, Some(Slots), script(), script()]),
            (r#""EVAL s 2 {{t}}a {{t}}b""#, [None, None, script(), script()]),
            (r#""ECHO x""#, [None, None, unmarked(), unmarked()]),
            (r#""SORT k""#, [None, None, None, Some(HiddenKeys("SORT".into()))]),
        ] {
            let found = [(false, false), (true, false), (false, true), (true, true)]
                .map(|(cluster, once)| command_refused(commands, cluster, once));
            assert_eq!(found, refused, "{commands}");
        }
        assert!(Slots.to_string().ends_with("give them a common {{tag}}"), "as it is written in a template");
    }

    #[test]
    fn placeholders_are_refused_where_messages_have_no_members() {
        let nothing_inside = |command: &str| Some(MapError::NothingInside { command: command.into() });
        for (map, error) in [
            ("commands = [\"SET {id} 1\"]", None),
            ("format = \"raw\"\ncommands = [\"SET {id} 1\"]", nothing_inside("SET {id} 1")),
            ("format = \"raw\"\ncommands = [\"SET {$key} {$value}\"]", None),
            ("commands = [\"SET k {id}\"]\ntombstone = [\"DEL {$key}\"]", None),
            ("commands = [\"SET k {id}\"]\ntombstone = [\"DEL {id}\"]", nothing_inside("DEL {id}")),
            ("tombstone = [\"DEL {$key}\"]", None),
            ("when = \"a\"", Some(MapError::NoCommands)),
            ("fold = \"last\"\nwhen = \"a\"\ncommands = [\"SET {id} 1\"]", None),
            ("fold = \"last\"\ncommands = [{ run = \"SET {id} 1\", when = \"a\" }]", Some(MapError::FoldedCondition)),
        ] {
            assert_eq!(refused(map, false, false), error, "{map}");
        }
    }

    #[test]
    fn topic_patterns_match_with_stars() {
        for (pattern, topic, matched) in [
            ("users", "users", true),
            ("users", "users2", false),
            ("users*", "users", true),
            ("*.users", "eu.users", true),
            ("*.users", "users", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*\u{e9}", "caf\u{e9}", true),
            ("*", "", true),
        ] {
            assert_eq!(matches(pattern, topic), matched, "{pattern} {topic}");
        }
        let map = "[[map]]\ntopic = [\"a\", \"b*\"]\ncommands = [\"DEL {$key}\"]";
        let map = mapping(map, false, false).expect("a mapping").maps.remove(0);
        assert_eq!(["a", "b2", "c"].map(|topic| map.takes(topic)), [true, true, false]);
    }

    #[test]
    fn ttls_have_the_forms_of_every_duration_and_a_sane_range() {
        for (text, ms) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5", 5_000),
            ("1.5h", 5_400_000),
            ("36h", 129_600_000),
            ("7d", 604_800_000),
        ] {
            assert_eq!(parse_ttl(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "s", "0s", "900us", "-1s", "99999999999999d", "18446744073709551616ms"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }
}
