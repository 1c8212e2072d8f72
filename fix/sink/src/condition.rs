//! Conditions of maps and commands: Jinja expressions over a message's members, compiled once.

use std::sync::{Arc, LazyLock};

use minijinja::value::{Enumerator, Object, ObjectRepr, Rest, Value, ValueKind};
use minijinja::{Environment, Expression, State};

use crate::document::{Document, NoMember, Path};
use crate::poison::Poison;
use crate::record::Message;

/// A compiled expression.
pub struct Condition {
    text: String,
    compiled: Expression<'static, 'static>,
    /// Members it asks for.
    names: Vec<(Path, String)>,
    /// It compares by size.
    compares: bool,
}

/// Why a condition cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// Not an expression.
    #[error("when = {text:?}: {why}")]
    Syntax { text: String, why: String },
    /// It asks for something that no message has.
    #[error(transparent)]
    Member(#[from] NoMember),
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

impl Condition {
    pub fn compile(text: &str) -> Result<Condition, ConditionError> {
        let compiled = ENVIRONMENT.compile_expression(String::leak(text.to_string())); // once a condition, for ever
        let compiled = compiled.map_err(|e| {
            let (text, why) = (text.to_string(), e.detail().unwrap_or("no expression").to_string());
            ConditionError::Syntax { text, why }
        })?;
        let names = compiled.undeclared_variables(false).into_iter().filter(|n| n != ABOUT);
        let names = names.map(|name| Ok((Path::parse(&name)?, name))).collect::<Result<Vec<_>, NoMember>>()?;
        Ok(Condition { text: text.into(), compiled, names, compares: text.contains(['<', '>']) })
    }

    /// Whether it is true for this message; an error of its own (`a / 'x'`) is the message's.
    ///
    /// A member that is missing is neither less nor more than anything. Jinja sorts it below everything, which makes
    /// `age < 18` true without an age; so what holds that way has to hold as well with it above everything.
    pub fn holds(&self, message: &Message<'_>, document: &Document<'_>) -> Result<bool, Poison> {
        let held = self.eval(message, document, Missing::Below);
        let held = held.map_err(|e| Poison::Condition { text: self.text.clone(), why: e.to_string() })?;
        if !held || !self.compares {
            return Ok(held);
        }
        // What cannot be evaluated so is no comparison: the first word counts.
        Ok(self.eval(message, document, Missing::Above).unwrap_or(true))
    }

    fn eval(&self, message: &Message<'_>, document: &Document<'_>, missing: Missing) -> Result<bool, minijinja::Error> {
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
        Ok(self.compiled.eval(context)?.is_true())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Format;
    use crate::record::Offset;

    fn message<'a>(topic: &'a str, key: Option<&'a [u8]>) -> Message<'a> {
        Message { topic, partition: 0, offset: Offset(0, 1), time_ms: 0, key, value: None, headers: Vec::new() }
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
        let poison = Condition::compile("age / 'x'").unwrap().holds(&message, &document).unwrap_err();
        assert!(matches!(&poison, Poison::Condition { text, .. } if text == "age / 'x'"), "{poison:?}");
        assert!(poison.to_string().starts_with("when = \"age / 'x'\": "), "{poison}");
    }

    #[test]
    fn a_text_that_is_no_expression_is_refused() {
        let error = Condition::compile("a >").unwrap_err();
        assert!(matches!(&error, ConditionError::Syntax { text, .. } if text == "a >"), "{error:?}");
        assert!(error.to_string().starts_with("when = \"a >\": "), "{error}");
    }
}
