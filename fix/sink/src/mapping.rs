//! Which messages become which commands: the `[[map]]` parts of the settings, compiled and held against the server's own
//! table of commands.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, Value, ValueKind};
use minijinja::{Environment, Expression, State};
use serde::Deserialize;
use unslow_topology::commands::{KeyAt, Spread, Table, UNKNOWN};
use unslow_topology::slot_of;
use unslow_units::parse_time_within;

use crate::document::{Document, Format, Path};
use crate::record::Message;
use crate::template::Template;

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
    pub known: unslow_topology::commands::Command,
    /// How many keys it has, where it says so itself.
    pub counted: Option<usize>,
}

/// A compiled expression.
pub struct Condition {
    text: String,
    compiled: Expression<'static, 'static>,
    /// Members it asks for.
    names: Vec<(Path, String)>,
    /// It compares by size.
    compares: bool,
}

/// Where members that a message does not have stand in an order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Missing {
    /// Below everything, as Jinja has it.
    Below,
    /// Above everything.
    Above,
}

impl std::fmt::Debug for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl Mapping {
    /// Compiles. `table` is the server's; `cluster` and `once` say what else must hold. The error names the map and the
    /// command, and what to write instead.
    pub fn compile(settings: &[MapSettings], table: &Table, cluster: bool, once: bool) -> Result<Mapping, String> {
        if settings.is_empty() {
            return Err("no [[map]]: which messages become which commands? docs/sink.md has examples".into());
        }
        let mut maps = Vec::new();
        for (i, map) in settings.iter().enumerate() {
            let place = |what: &str| format!("map {}: {what}", i + 1);
            if map.commands.is_empty() && map.tombstone.is_empty() {
                return Err(place("it has no commands"));
            }
            let compile = |list: &[CommandSettings], inside: bool| -> Result<Vec<Command>, String> {
                let compiled = list.iter().map(|c| {
                    Command::compile(c, table, cluster, once).and_then(|command| {
                        if command.looks_inside() && !inside {
                            let text = command.template.text();
                            return Err(format!("{text:?} looks into messages that have nothing inside"));
                        }
                        Ok(command)
                    })
                });
                compiled.collect::<Result<Vec<_>, _>>().map_err(|e| place(&e))
            };
            let fold = map.fold == Fold::Last;
            if fold
                && map
                    .commands
                    .iter()
                    .chain(&map.tombstone)
                    .any(|c| matches!(c, CommandSettings::Full(f) if f.when.is_some()))
            {
                return Err(place("with fold = \"last\" a condition belongs to the map, not to a command"));
            }
            let inside = map.format != Format::Raw;
            let when = map.when.as_deref().map(Condition::compile).transpose();
            maps.push(Map {
                topics: map.topic.list(),
                when: when.map_err(|e| place(&e))?,
                format: map.format,
                commands: compile(&map.commands, inside)?,
                tombstone: compile(&map.tombstone, false)?,
                fold,
            });
        }
        Ok(Mapping { maps })
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
    /// Whether it takes messages of this topic.
    pub fn takes(&self, topic: &str) -> bool {
        self.topics.is_empty() || self.topics.iter().any(|pattern| matches(pattern, topic))
    }

    /// Whether it needs values opened.
    pub fn looks_inside(&self) -> bool {
        self.when.is_some() || self.commands.iter().any(Command::looks_inside)
    }

    /// Whether this message is meant.
    pub fn wants(&self, message: &Message<'_>, document: &Document<'_>) -> Result<bool, String> {
        self.when.as_ref().map_or(Ok(true), |c| c.holds(message, document))
    }
}

impl Command {
    fn looks_inside(&self) -> bool {
        self.when.is_some() || self.template.needs_document()
    }

    fn compile(settings: &CommandSettings, table: &Table, cluster: bool, once: bool) -> Result<Command, String> {
        let (text, ttl, when) = match settings {
            CommandSettings::Plain(text) => (text, None, None),
            CommandSettings::Full(full) => (&full.run, full.ttl.as_deref(), full.when.as_deref()),
        };
        let bad = |why: String| format!("{text:?}: {why}");
        let mut template = Template::parse(text).map_err(bad)?;
        let constants: Vec<Option<&[u8]>> = template.constants().collect();
        let name = constants[0].unwrap_or_default();
        let number = table.look_up(name, constants.get(1).copied().flatten());
        let shown = String::from_utf8_lossy(name).to_uppercase();
        if number == UNKNOWN {
            let near = table.near(&shown).map_or(String::new(), |n| format!("; did you mean {n}?"));
            return Err(bad(format!("the server has no command {shown}{near}")));
        }
        let command = table.get(number);
        let (fewest, open) = template.arguments();
        if !(command.fits(fewest) || open && command.arity < 0) {
            let n = command.arity.unsigned_abs();
            let expected = if command.arity < 0 { format!("at least {n}") } else { n.to_string() };
            return Err(bad(format!("{shown} takes {expected} words, itself among them; here are {fewest}")));
        }
        if command.special.is_some() || command.blocking {
            return Err(bad(format!("{shown} changes or blocks the connection that all messages share")));
        }
        if command.admin {
            return Err(bad(format!("{shown} is for operators, not for messages")));
        }
        if command.spread != Spread::Any {
            return Err(bad(format!("{shown} is about a whole server or deployment, not about a key")));
        }
        if once && command.noscript {
            return Err(bad(format!("{shown} cannot be sent with exactly_once: servers refuse it inside scripts")));
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
                None => return Err(bad(format!("the number of keys of {shown} stands in the mapping as a number"))),
            },
            KeyAt::Behind { word, from } => {
                (from..constants.len()).find(|&i| constants[i].is_some_and(|w| word.is(w))).map(|i| i + 1)
            }
        };
        if key.is_none() && command.key != KeyAt::Nowhere && !matches!(command.key, KeyAt::Counted { .. }) {
            return Err(bad(format!("where is the key of {shown}?")));
        }
        if let Some(key) = key
            && key >= constants.len()
            && (open || constants.len() <= key)
        {
            return Err(bad(format!("the key of {shown} stands before what {{...}} brings")));
        }
        if cluster && key.is_none() && command.unsure() {
            return Err(bad(format!("the server does not say where {shown} has its key, and a cluster needs to know")));
        }
        if once && cluster && command.hides_keys() {
            return Err(bad(format!(
                "the server does not say where all keys of {shown} are, and exactly_once has to name them"
            )));
        }
        if once && key.is_none() {
            return Err(bad(format!("{shown} has no key, and exactly_once keeps its mark beside the key")));
        }
        // Keys that are the same for all messages can be held against each other now.
        if cluster {
            let fixed: Vec<u16> =
                keys.iter().filter_map(|&k| constants.get(k).copied().flatten()).map(slot_of).collect();
            if fixed.windows(2).any(|w| w[0] != w[1]) {
                return Err(bad("its keys are in different slots; give them a common {{tag}}".into()));
            }
        }
        let ttl_ms = match ttl {
            None => None,
            Some(_) if key.is_none() => return Err(bad(format!("ttl needs a key, and {shown} has none"))),
            Some(text) => Some(parse_ttl(text).map_err(|e| bad(format!("ttl: {e}")))?.as_millis().to_string()),
        };
        let when = when.map(Condition::compile).transpose().map_err(bad)?;
        template.key = key;
        Ok(Command { template, ttl_ms, when, known: command.clone(), counted })
    }
}

impl Condition {
    fn compile(text: &str) -> Result<Condition, String> {
        let compiled = ENVIRONMENT.compile_expression(String::leak(text.to_string())); // once a condition, for ever
        let compiled = compiled.map_err(|e| format!("when = {text:?}: {}", e.detail().unwrap_or("no expression")))?;
        let names = compiled.undeclared_variables(false).into_iter().filter(|n| n != ABOUT);
        let names = names.map(|name| Ok((Path::parse(&name)?, name))).collect::<Result<Vec<_>, String>>()?;
        Ok(Condition { text: text.into(), compiled, names, compares: text.contains(['<', '>']) })
    }

    /// Whether it is true for this message; an error of its own (`a / 'x'`) is the message's.
    ///
    /// A member that is missing is neither less nor more than anything. Jinja sorts it below everything, which makes
    /// `age < 18` true without an age; so what holds that way has to hold as well with it above everything.
    pub fn holds(&self, message: &Message<'_>, document: &Document<'_>) -> Result<bool, String> {
        let held = self.eval(message, document, Missing::Below)?;
        if !held || !self.compares {
            return Ok(held);
        }
        // What cannot be evaluated so is no comparison: the first word counts.
        Ok(self.eval(message, document, Missing::Above).unwrap_or(true))
    }

    fn eval(&self, message: &Message<'_>, document: &Document<'_>, missing: Missing) -> Result<bool, String> {
        // `x in user` would find every member in an object that has one for each name.
        let inside = !self.text.contains(" in ");
        let member = |(path, name): &(Path, String)| {
            let value = document.find(path).map(|field| field.to_condition());
            let value = match (missing, value) {
                (Missing::Below, value) => value?,
                (Missing::Above, Some(value)) if inside => above(value),
                (Missing::Above, Some(value)) => value,
                (Missing::Above, None) if ENVIRONMENT.globals().any(|(global, _)| global == name) => return None,
                (Missing::Above, None) => Value::from_object(Above { null: false }),
            };
            Some((name.clone(), value))
        };
        let members = self.names.iter().filter_map(member);
        let about = Value::from_object(About {
            topic: message.topic.into(),
            key: message.key.map(|k| String::from_utf8_lossy(k).into_owned()),
        });
        let context = members.chain([(ABOUT.to_string(), about)]).collect::<Value>();
        let held = self.compiled.eval(context).map_err(|e| format!("when = {:?}: {e}", self.text))?;
        Ok(held.is_true())
    }
}

/// The name of [`About`] in conditions.
const ABOUT: &str = "_meta";

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.add_test("defined", is_there);
    environment.add_test("undefined", is_missing);
    environment.add_test("none", is_null);
    environment.add_filter("default", or_default);
    environment.add_filter("d", or_default);
    environment
});

/// A member that is missing, or null inside an object, sorted above everything else; otherwise like what it is.
#[derive(Debug)]
struct Above {
    null: bool,
}

impl Object for Above {
    /// The last kind in minijinja's order of values.
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        false
    }

    fn render(self: &Arc<Self>, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}

/// An object of a message; what is missing inside it is [`Above`].
#[derive(Debug)]
struct Members(Value);

impl Object for Members {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        Some(above(self.0.get_item(name).unwrap_or(Value::UNDEFINED)))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.try_iter().map_or(Enumerator::NonEnumerable, |names| Enumerator::Values(names.collect()))
    }
}

fn above(value: Value) -> Value {
    match value.kind() {
        ValueKind::Undefined => Value::from_object(Above { null: false }),
        ValueKind::None => Value::from_object(Above { null: true }),
        ValueKind::Map => Value::from_object(Members(value)),
        _ => value,
    }
}

fn is_missing(value: &Value) -> bool {
    value.is_undefined() || value.downcast_object_ref::<Above>().is_some_and(|above| !above.null)
}

fn is_null(value: &Value) -> bool {
    value.is_none() || value.downcast_object_ref::<Above>().is_some_and(|above| above.null)
}

fn is_there(value: &Value) -> bool {
    !is_missing(value)
}

fn or_default(state: &State<'_, '_>, value: &Value, other: Rest<Value>) -> Result<Value, minijinja::Error> {
    let undefined = Value::UNDEFINED;
    minijinja::filters::default(state, if is_missing(value) { &undefined } else { value }, other)
}

/// The message itself, in conditions.
#[derive(Debug)]
struct About {
    topic: String,
    key: Option<String>,
}

impl Object for About {
    fn get_value(self: &Arc<Self>, name: &Value) -> Option<Value> {
        match name.as_str()? {
            "topic" => Some(self.topic.clone().into()),
            "key" => self.key.clone().map(Value::from),
            _ => None,
        }
    }
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
    use crate::record::Offset;

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
    pub(crate) fn mapping(toml: &str, cluster: bool, once: bool) -> Result<Mapping, String> {
        Mapping::compile(&Config::parse(toml).expect("settings").map, &table(), cluster, once)
    }

    fn message<'a>(topic: &'a str, key: Option<&'a [u8]>) -> Message<'a> {
        Message { topic, partition: 0, offset: Offset(0, 1), time_ms: 0, key, value: None, headers: Vec::new() }
    }

    #[test]
    fn unusable_commands_are_refused_with_a_reason() {
        for (commands, reason) in [
            (r#""HSTE k f v""#, "no command HSTE; did you mean HSET?"),
            (r#""GET""#, "GET takes 2 words"),
            (r#""SET k""#, "SET takes at least 3 words, itself among them; here are 2"),
            (r#""SUBSCRIBE c""#, "changes or blocks the connection"),
            (r#""BLPOP k 0""#, "changes or blocks the connection"),
            (r#""CONFIG SET a b""#, "CONFIG is for operators"),
            (r#""DBSIZE""#, "DBSIZE is about a whole server"),
            (r#""EVAL s {n} k""#, "the number of keys of EVAL"),
            (r#""SET {fields...} x""#, "the key of SET stands before"),
            (r#"{ run = "ECHO x", ttl = "1s" }"#, "ttl needs a key, and ECHO has none"),
            (r#"{ run = "SET k v", ttl = "1y" }"#, "invalid duration"),
            (r#"{ run = "SET k v", when = "a >" }"#, "when = \"a >\""),
        ] {
            let why = mapping(&format!("[[map]]\ncommands = [{commands}]"), false, false).err().unwrap_or_default();
            assert!(why.starts_with("map 1: ") && why.contains(reason), "{commands}: {why:?}");
        }
        assert!(Mapping::compile(&[], &table(), false, false).is_err_and(|why| why.starts_with("no [[map]]")));
    }

    #[test]
    fn cluster_and_exactly_once_refuse_commands_they_cannot_keep_their_promise_for() {
        // The commands, and who refuses them: one server, a cluster, exactly_once, exactly_once in a cluster.
        for (commands, refused) in [
            (r#""SET k v", "DEL a b""#, [false, false, false, false]),
            (r#""EVAL s 2 a b""#, [false, true, true, true]),
            (r#""EVAL s 2 {{t}}a {{t}}b""#, [false, false, true, true]),
            (r#""ECHO x""#, [false, false, true, true]),
            (r#""SORT k""#, [false, false, false, true]),
        ] {
            let toml = format!("[[map]]\ncommands = [{commands}]");
            let why = [(false, false), (true, false), (false, true), (true, true)]
                .map(|(cluster, once)| mapping(&toml, cluster, once).err());
            assert_eq!(why.clone().map(|w| w.is_some()), refused, "{commands}: {why:?}");
        }
    }

    #[test]
    fn placeholders_are_refused_where_messages_have_no_members() {
        for (map, refused) in [
            ("commands = [\"SET {id} 1\"]", false),
            ("format = \"raw\"\ncommands = [\"SET {id} 1\"]", true),
            ("format = \"raw\"\ncommands = [\"SET {$key} {$value}\"]", false),
            ("commands = [\"SET k {id}\"]\ntombstone = [\"DEL {$key}\"]", false),
            ("commands = [\"SET k {id}\"]\ntombstone = [\"DEL {id}\"]", true),
            ("tombstone = [\"DEL {$key}\"]", false),
            ("when = \"a\"", true),
            ("fold = \"last\"\nwhen = \"a\"\ncommands = [\"SET {id} 1\"]", false),
            ("fold = \"last\"\ncommands = [{ run = \"SET {id} 1\", when = \"a\" }]", true),
        ] {
            let why = mapping(&format!("[[map]]\n{map}"), false, false).err();
            assert_eq!(why.is_some(), refused, "{map}: {why:?}");
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

    #[test]
    fn conditions_see_members_topic_and_key() {
        let document =
            Document::open(br#"{"age": 18, "user": {"name": "ann", "end": null}, "gone": null}"#, Format::Json)
                .unwrap();
        let message = message("people", Some(b"k1"));
        for (text, holds) in [
            ("age > 17", true),
            ("age > 18", false),
            ("user.name == 'ann'", true),
            ("missing", false),
            ("gone is defined", false),
            ("_meta.topic == 'people' and _meta.key == 'k1'", true),
        ] {
            assert_eq!(Condition::compile(text).unwrap().holds(&message, &document), Ok(holds), "{text}");
        }
        // What is missing or null is neither less nor more than anything.
        for (text, holds) in [
            ("years < 18", false),
            ("years > 18", false),
            ("years <= 18", false),
            ("18 >= years", false),
            ("gone < 18", false),
            ("user.years < 18", false),
            ("user.end < 18", false),
            ("user.end is none and age < 19", true),
            ("user.end is defined and age < 19", true),
            ("user.name < 'b'", true),
            ("not (years < 18)", false),
            ("years < 18 or age == 18", true),
            ("age < 19 and years is not defined", true),
            ("age < 19 and years is undefined", true),
            ("age < 19 and not years", true),
            ("age < 19 and years != 3", true),
            ("age < 19 and years == 3", false),
            ("years is defined and years < 18", false),
            ("years is not defined or years < 18", true),
            ("years|default(17) < 18", true),
            ("age < 19 and 'x' not in tags", true),
            ("age < 19 and 'x' not in user", true),
            ("age < 19 and 'name' in user", true),
        ] {
            assert_eq!(Condition::compile(text).unwrap().holds(&message, &document), Ok(holds), "{text}");
        }
        assert!(Condition::compile("age / 'x'").unwrap().holds(&message, &document).is_err());
    }
}
