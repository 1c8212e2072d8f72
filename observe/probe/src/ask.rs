//! A connection that counts what it asks, and turns refusals into reasons.

use std::hash::{BuildHasher, RandomState};

use sha2::{Digest, Sha256};
use unslow_client::{Error, ErrorKind, Options, ReadOnly, Target, Value};
use unslow_facts::{Own, Seen};

use crate::now_ms;

/// Hides key names: the same key has the same hash within one run, and no other.
pub struct Salt(Option<u64>);

impl Salt {
    /// A new salt; none when keys are shown.
    pub fn new(show_keys: bool) -> Salt {
        Salt((!show_keys).then(|| RandomState::new().hash_one(now_ms())))
    }

    /// The key as it may be printed.
    pub fn hide(&self, key: &[u8]) -> String {
        match self.0 {
            None => String::from_utf8_lossy(key).into_owned(),
            Some(salt) => {
                let digest = Sha256::new().chain_update(salt.to_le_bytes()).chain_update(key).finalize();
                digest[..4].iter().fold(String::from("key#"), |s, b| s + &format!("{b:02x}"))
            }
        }
    }
}

pub struct Ask {
    connection: ReadOnly,
    pub own: Own,
    /// Commands count as our own in the window only between the two INFO samples.
    pub counting: bool,
}

impl Ask {
    pub fn open(target: &Target, options: &Options) -> Result<Ask, Error> {
        let connection = ReadOnly::open(target, options)?;
        Ok(Ask { connection, own: Own { total: 4, ..Own::default() }, counting: false })
    }

    pub fn connection(&self) -> &unslow_client::Connection {
        self.connection.connection()
    }

    pub fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Result<Value, Error> {
        self.count(args);
        self.connection.call(args)
    }

    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Result<Vec<Result<Value, Error>>, Error> {
        commands.iter().for_each(|c| self.count(c));
        self.connection.pipeline(commands)
    }

    /// As commandstats names commands since 7.0: `config|get`.
    fn count<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        const WITH_SUB: &[&str] = &["config", "slowlog", "latency", "client", "cluster", "acl"];
        self.own.total += 1;
        if !self.counting {
            return;
        }
        let word = |i: usize| {
            args.get(i).map(|a| String::from_utf8_lossy(a.as_ref()).to_ascii_lowercase()).unwrap_or_default()
        };
        let mut name = word(0);
        if WITH_SUB.contains(&name.as_str()) {
            name = format!("{name}|{}", word(1));
        }
        *self.own.commands.entry(name).or_default() += 1;
    }
}

/// What was found, or why nothing was.
pub fn seen<T>(result: Result<T, Error>, source: &str) -> Seen<T> {
    match result {
        Ok(value) => Seen::Yes { value, source: source.to_string(), at_ms: now_ms() },
        Err(e) => unseen(&e, source),
    }
}

pub fn unseen<T>(e: &Error, source: &str) -> Seen<T> {
    let words: Vec<String> = source.split_whitespace().take(2).map(str::to_ascii_lowercase).collect();
    let with_sub =
        ["config", "slowlog", "latency", "client", "cluster", "acl", "sentinel"].contains(&words[0].as_str());
    let rule = if with_sub { words.join("|") } else { words[0].clone() };
    match e.kind {
        ErrorKind::Denied => Seen::No {
            why: format!("{source} is denied to this user"),
            grant: Some(format!("ACL SETUSER <user> +{rule}")),
        },
        ErrorKind::Unknown => Seen::No {
            why: format!("{source} is not there: an older server, or a service that removed it"),
            grant: Some("the provider's console or support, where it is a managed service".into()),
        },
        ErrorKind::Loading => Seen::No {
            why: format!("{source}: the server is loading its data set"),
            grant: Some("run again when INFO says loading:0".into()),
        },
        _ => Seen::No { why: e.message.clone(), grant: None },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_hashes_are_stable_within_a_run_only() {
        let (run, next) = (Salt::new(false), Salt::new(false));
        assert_eq!(run.hide(b"user:1"), run.hide(b"user:1"));
        assert_ne!(run.hide(b"user:1"), run.hide(b"user:2"));
        assert_ne!(run.hide(b"user:1"), next.hide(b"user:1"));
        assert_eq!(Salt::new(true).hide(b"user:1"), "user:1");
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
            let (why, grant) = seen.missing().unwrap();
            assert!(why.starts_with(source) && grant.is_some_and(|g| g.ends_with(&format!(" {rule}"))), "{seen:?}");
        }
        let seen: Seen<()> = unseen(&Error::new(ErrorKind::Reply, "ERR of its own"), "PING");
        assert_eq!(seen.missing(), Some(("ERR of its own", None)));
    }
}
