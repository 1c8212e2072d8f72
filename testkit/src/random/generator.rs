//! Random commands, valid and invalid, as arrays and as inline lines, and random bytes that are neither.
//!
//! Left out on purpose: whatever waits forever (a blocking command without a timeout, a count without the bytes it
//! promises), affects other clients (FLUSHALL, SCRIPT FLUSH, CLIENT KILL), or has replies that no server shares (INFO,
//! CLUSTER SLOTS, UNSLOW).

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::session::{Form, Multi, Pipeline, Said, State, Step, Tag, Words, subscription, word};
use super::templates::*;
use crate::wire::command;

/// What keys are for: all commands of a kind use the same ones.
const TYPES: [&str; 9] = ["s", "b", "l", "h", "t", "z", "x", "g", "p"];
/// The ends of their names.
const ENDINGS: [&[u8]; 4] = [b"0", b"1", b"2", b"3"];
const BINARY: &[u8] = b"\x00\xff\r\n$3\r\n";

/// An ACL user with random rights on one client's keys.
pub struct User {
    pub name: String,
    pub password: String,
    /// For ACL SETUSER.
    pub rules: Vec<String>,
}

/// Makes the choices of one client. They are reproducible: they depend only on the seed and on the server's replies.
pub struct Generator {
    rng: StdRng,
    client: usize,
    cluster: bool,
    /// Messages so far: no two are the same.
    messages: u64,
    pub users: Vec<User>,
}

impl Generator {
    pub fn new(seed: u64, client: usize, cluster: bool) -> Generator {
        let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1000).wrapping_add(client as u64));
        let users = (0..3).map(|number| user(&mut rng, client, number)).collect();
        Generator { rng, client, cluster, messages: 0, users }
    }

    /// How many steps the next pair of connections lasts.
    pub fn steps(&mut self) -> usize {
        self.rng.random_range(5..60)
    }

    fn chance(&mut self, of_thousand: u32) -> bool {
        self.rng.random_range(0..1000) < of_thousand
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        *all.choose(&mut self.rng).expect("a choice")
    }

    /// The next step of a client in this state.
    pub fn step(&mut self, tag: Tag, state: &State) -> Step {
        if !state.channels.is_empty() && self.chance(400) {
            return Step::Publish(self.message(tag, state));
        }
        let mut said = Vec::new();
        if state.multi == Multi::No && !state.is_subscriber() && self.chance(8) {
            // Longer than the arguments that the gateway buffers.
            let (key, value) = (self.fill("s", tag, state), vec![b'x'; 300_000]);
            said.push(self.array(vec![b"SET".to_vec(), key.clone(), value]));
            said.push(self.array(vec![b"GET".to_vec(), key]));
        }
        let count = if self.chance(500) { self.rng.random_range(1..4) } else { self.rng.random_range(1..24) };
        let mut ahead = state.clone();
        for said in &said {
            ahead.expect(said);
        }
        while said.len() < count {
            for one in self.group(tag, &ahead) {
                ahead.expect(&one);
                said.push(one);
            }
            let last = said.last().map(|said| (said.form, word(&said.words, 0)));
            match last {
                Some((Form::Closing, _)) => {
                    // None of these may run.
                    let more = if self.chance(300) { self.rng.random_range(1..3) } else { 0 };
                    said.extend((0..more).map(|_| self.data(tag, state)));
                    break;
                }
                // Only the replies to these tell the state after them.
                Some((_, name)) if subscription(&name).is_some() || name == "HELLO" || name == "AUTH" => break,
                _ => {}
            }
        }
        let cuts = self.chance(700).then(|| self.rng.random());
        Step::Pipeline(Pipeline { said, cuts })
    }

    /// One command, or a few that belong together.
    fn group(&mut self, tag: Tag, state: &State) -> Vec<Said> {
        if state.is_subscriber() {
            return vec![self.subscriber(tag, state)];
        }
        let within = state.multi != Multi::No;
        let free = !within && !state.restricted;
        // Not generated: a new user, protocol or database while keys are watched. Through the gateway EXEC answers nil
        // then.
        let settled = !within && !state.watching && state.channels.is_empty();
        let one = match self.rng.random_range(0..1000) {
            0..4 => self.closing(),
            4..12 => self.bytes(NOTHING, Form::Nothing),
            12..72 => self.transaction(tag, state),
            72..250 if within => self.transaction(tag, state),
            72..132 if settled => self.connection(tag, state),
            132..147 if free && state.channels.is_empty() => return self.muted(tag, state),
            147..182 if free => self.pubsub(tag, state),
            182..289 => self.script(tag, state),
            // Few: a server looks at what has waited long enough ten times a second.
            289..292 => self.template(BLOCKING, tag, state),
            292..312 => self.unknown(tag, state),
            312..327 if !within || !self.cluster => self.template(TWO_SLOTS, tag, state),
            327..342 if free => self.template(SPLIT, tag, state),
            342..400 => self.fixed(tag, state),
            400..402 => self.quit(),
            _ => self.data(tag, state),
        };
        vec![one]
    }

    // Kinds of commands.

    fn data(&mut self, tag: Tag, state: &State) -> Said {
        let template = self.pick(DATA);
        let mut words = self.expand(template, tag, state);
        if self.chance(70) {
            self.spoil(&mut words, tag);
        }
        self.said(words)
    }

    fn fixed(&mut self, tag: Tag, state: &State) -> Said {
        if !self.cluster && self.chance(50) {
            // In a cluster its cursor is the gateway's.
            return self.template(&["SCAN 0 MATCH a COUNT 10000000"], tag, state);
        }
        self.template(FIXED, tag, state)
    }

    fn template(&mut self, all: &[&str], tag: Tag, state: &State) -> Said {
        let template = self.pick(all);
        let words = self.expand(template, tag, state);
        self.said(words)
    }

    fn transaction(&mut self, tag: Tag, state: &State) -> Said {
        let within = state.multi != Multi::No;
        let words = match self.rng.random_range(0..100) {
            0..60 => self.expand(if within { "EXEC" } else { "MULTI" }, tag, state),
            60..75 => self.expand("DISCARD", tag, state),
            75..85 => self.expand("WATCH s k", tag, state),
            85..90 => self.expand("UNWATCH", tag, state),
            90..94 => self.expand("MULTI", tag, state),
            94..96 if within && !self.cluster => self.expand("SELECT y", tag, state),
            96 if within => self.expand("RESET", tag, state),
            94..97 => self.expand("EXEC", tag, state),
            97 => self.expand("EXEC more", tag, state),
            98 => self.expand("DISCARD more", tag, state),
            _ => self.expand("MULTI more", tag, state),
        };
        self.said(words)
    }

    fn connection(&mut self, tag: Tag, state: &State) -> Said {
        let template = self.pick(CONNECTION);
        let user = self.rng.random_range(0..self.users.len());
        let (name, password) = (self.users[user].name.clone(), self.users[user].password.clone());
        let mut words = self.expand(template, tag, state);
        for word in &mut words {
            match word.as_slice() {
                b"{user}" => *word = name.clone().into_bytes(),
                b"{password}" => *word = password.clone().into_bytes(),
                _ => {}
            }
        }
        self.said(words)
    }

    /// Commands without replies.
    fn muted(&mut self, tag: Tag, state: &State) -> Vec<Said> {
        let reply = |how: &str| vec![b"CLIENT".to_vec(), b"REPLY".to_vec(), how.as_bytes().to_vec()];
        if self.chance(500) {
            return vec![self.said(reply("SKIP")), self.data(tag, state), self.data(tag, state)];
        }
        let mut group = vec![self.said(reply("OFF"))];
        group.extend((0..self.rng.random_range(0..4)).map(|_| self.data(tag, state)).collect::<Vec<_>>());
        group.push(self.said(reply("ON")));
        group
    }

    fn pubsub(&mut self, tag: Tag, state: &State) -> Said {
        let (own, number) = (tag.own(), self.rng.random_range(0..3));
        let (channel, shard) = (format!("{own}ch{number}"), format!("{own}sh{number}"));
        let line = match self.rng.random_range(0..12) {
            0 | 1 => format!("SUBSCRIBE {channel}"),
            2 => format!("SUBSCRIBE {own}ch0 {own}ch2 {own}ch0"),
            3 => format!("PSUBSCRIBE {own}ch*"),
            4 | 5 => format!("SSUBSCRIBE {shard}"),
            6 => format!("UNSUBSCRIBE {channel}"),
            7 => "UNSUBSCRIBE".into(),
            8 => "PUNSUBSCRIBE".into(),
            9 => format!("SUNSUBSCRIBE {shard}"),
            10 => "SUNSUBSCRIBE".into(),
            _ if state.channels.is_empty() => "SUBSCRIBE".into(), // an error
            _ => format!("PUBLISH {channel} own"),
        };
        self.said(line.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }

    /// A command of a RESP2 subscriber, for whom most are refused.
    fn subscriber(&mut self, tag: Tag, state: &State) -> Said {
        match self.rng.random_range(0..20) {
            0..9 => self.pubsub(tag, &State { channels: Default::default(), ..state.clone() }),
            9..13 => self.template(&["PING", "PING v"], tag, state),
            13..16 => self.template(&["GET s", "SET s v", "MULTI", "ECHO v"], tag, state),
            16 => self.template(&["RESET"], tag, state),
            17 if self.chance(200) => self.quit(),
            _ => self.template(&["UNSUBSCRIBE", "PUNSUBSCRIBE", "SUNSUBSCRIBE"], tag, state),
        }
    }

    /// A message for one of the client's channels.
    fn message(&mut self, tag: Tag, state: &State) -> Words {
        let at = self.rng.random_range(0..state.channels.len());
        let (kind, name) = state.channels.iter().nth(at).cloned().expect("a channel");
        self.messages += 1;
        let text = format!("message {} {}", self.messages, self.rng.random_range(0..1000)).into_bytes();
        match kind {
            b'p' => vec![b"PUBLISH".to_vec(), format!("{}ch1", tag.own()).into_bytes(), text],
            b's' => vec![b"SPUBLISH".to_vec(), name, text],
            _ => vec![b"PUBLISH".to_vec(), name, text],
        }
    }

    fn script(&mut self, tag: Tag, state: &State) -> Said {
        let text = format!("{} -- {}", self.pick(SCRIPTS), self.client).into_bytes();
        let (key, error) = (self.fill("s", tag, state), self.pick(ERRORS).as_bytes().to_vec());
        let (name, number) = (|name: &str| name.as_bytes().to_vec(), b"1".to_vec());
        // Only what this pair has loaded is called: the gateway loads it on every master, a direct client on one.
        let words = match self.rng.random_range(0..12) {
            0..6 => vec![name("EVAL"), text, number, key, error],
            6 | 7 => vec![name("EVALSHA"), self.fill("ids", tag, state), number, key, error],
            8 => vec![name("SCRIPT"), name("LOAD"), text],
            9 => {
                let counts = self.pick(&["0", "-1", "2", "garbage", "+1", "99999999999999999999"]);
                vec![name("EVAL"), name("return 1"), name(counts), key]
            }
            10 => {
                let function = "redis.call('INCR', keys[1]) return redis.error_reply(args[1])";
                let text = format!(
                    "#!lua name=library{0}\nredis.register_function('function{0}', function(keys, args) {function} \
                     end)",
                    self.client
                );
                vec![name("FUNCTION"), name("LOAD"), name("REPLACE"), text.into_bytes()]
            }
            _ if state.has_functions => {
                vec![name("FCALL"), format!("function{}", self.client).into_bytes(), number, key, error]
            }
            _ => vec![name("FCALL"), name("nosuch"), number, key, error],
        };
        self.said(words)
    }

    fn unknown(&mut self, tag: Tag, state: &State) -> Said {
        let mut words = vec![self.pick(UNKNOWN).as_bytes().to_vec()];
        for _ in 0..self.rng.random_range(0..4) {
            let word = if self.chance(500) { self.odd() } else { self.fill("s", tag, state) };
            words.push(word);
        }
        self.array(words)
    }

    fn quit(&mut self) -> Said {
        Said { form: Form::Closing, ..self.said(vec![b"QUIT".to_vec()]) }
    }

    fn closing(&mut self) -> Said {
        if self.chance(650) {
            return self.bytes(BROKEN, Form::Closing);
        }
        let line = self.pick(HTTP);
        let words: Words = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        let bytes = if self.chance(500) { format!("{line}\r\n").into_bytes() } else { command(&words) };
        Said { bytes, words, form: Form::Closing }
    }

    fn bytes(&mut self, all: &[&[u8]], form: Form) -> Said {
        Said { bytes: self.pick(all).to_vec(), words: Vec::new(), form }
    }

    // Words.

    fn expand(&mut self, template: &str, tag: Tag, state: &State) -> Words {
        template.split(' ').map(|word| self.fill(word, tag, state)).collect()
    }

    fn fill(&mut self, place: &str, tag: Tag, state: &State) -> Vec<u8> {
        let text: String = match place {
            "s" | "b" | "l" | "h" | "t" | "z" | "x" | "g" | "p" => {
                let kind = if self.chance(40) { self.pick(&TYPES) } else { place };
                return self.key(&tag.own(), kind);
            }
            "k" => {
                let kind = self.pick(&TYPES);
                return self.key(&tag.own(), kind);
            }
            "j" => return self.key(&tag.other(), "s"),
            "u" => split(&tag.own()),
            "U" => split(&tag.other()),
            "a" => format!("{}*", tag.own()),
            "v" => return self.value(),
            "n" => self.rng.random_range(-3i64..12).to_string(),
            "i" => self.rng.random_range(-5i64..8).to_string(),
            "c" => self.rng.random_range(0..4u32).to_string(),
            "o" => self.rng.random_range(0..40u32).to_string(),
            "y" => self.rng.random_range(0..2u32).to_string(),
            "f" => format!("f{}", self.rng.random_range(0..6)),
            "q" => format!("{}-{}", self.rng.random_range(0..9), self.rng.random_range(0..9)),
            "d" => self.pick(&["0", "1", "-2.5", "3e2", "inf", "-inf", "nan", "7"]).into(),
            "r" => self.pick(&["-inf", "+inf", "0", "(1", "5", "300", "garbage"]).into(),
            // Nothing expires while the test runs.
            "e" => self.pick(&["1000", "5000", "100000"]).into(),
            "ms" => self.pick(&["1000000", "50000000"]).into(),
            "w" => self.pick(&["0.01", "0.02", "0.001"]).into(),
            "ids" if !state.scripts.is_empty() && self.chance(800) => {
                let at = self.rng.random_range(0..state.scripts.len());
                return state.scripts[at].clone();
            }
            "ids" => "f".repeat(40),
            literal => literal.into(),
        };
        text.into_bytes()
    }

    /// One key in thirty contains binary bytes.
    fn key(&mut self, tag: &str, kind: &str) -> Vec<u8> {
        let name = format!("{tag}{kind}").into_bytes();
        match self.rng.random_range(0..30) {
            0 => [&name[..], BINARY].concat(),
            n => [&name[..], ENDINGS[n % ENDINGS.len()]].concat(),
        }
    }

    fn value(&mut self) -> Vec<u8> {
        match self.rng.random_range(0..16) {
            0 => Vec::new(),
            1..6 => self.rng.random_range(-20i64..100).to_string().into_bytes(),
            6 => b"3.5".to_vec(),
            7 => b"hello world".to_vec(),
            8 => b"*1\r\n$4\r\nPING\r\n".to_vec(),
            9 => vec![b'y'; self.rng.random_range(50..3000)],
            10 => (0..self.rng.random_range(1..40)).map(|_| self.rng.random()).collect(),
            _ => self.pick(&["a", "b", "c", "d", "abc"]).as_bytes().to_vec(),
        }
    }

    /// An argument that rarely fits.
    fn odd(&mut self) -> Vec<u8> {
        const ODD: [&str; 22] = [
            "",
            "0",
            "-1",
            "+1",
            "01",
            " 1",
            "1 ",
            "0x10",
            "1e400",
            "nan",
            "-inf",
            "4294967296",
            "9223372036854775807",
            "-9223372036854775808",
            "18446744073709551616",
            "\r\n",
            "\0",
            "(",
            "[a",
            "NX",
            "WITHSCORES",
            "-ERR no\r\n",
        ];
        if self.chance(50) { vec![b'z'; 2000] } else { self.pick(&ODD).as_bytes().to_vec() }
    }

    /// Adds a mistake. Keys are kept, so that no client touches the keys of another.
    fn spoil(&mut self, words: &mut Words, tag: Tag) {
        let (own, other) = (tag.own(), tag.other());
        let is_key = |word: &Vec<u8>| word.starts_with(own.as_bytes()) || word.starts_with(other.as_bytes());
        let loose: Vec<usize> = (1..words.len()).filter(|at| !is_key(&words[*at])).collect();
        match self.rng.random_range(0..3) {
            0 if !loose.is_empty() => drop(words.remove(self.pick(&loose))),
            1 if !loose.is_empty() => words[self.pick(&loose)] = self.odd(),
            _ => words.extend(words.last().cloned()),
        }
    }

    // Bytes.

    /// A command as an array or inline, with its name in mixed case.
    fn said(&mut self, mut words: Words) -> Said {
        match self.rng.random_range(0..6) {
            0 => words[0].make_ascii_lowercase(),
            1 => words[0].iter_mut().step_by(2).for_each(u8::make_ascii_lowercase),
            _ => {}
        }
        let long = words.iter().map(Vec::len).sum::<usize>() > 4000;
        if !long && self.chance(120) {
            return Said { bytes: self.inline(&words), words, form: Form::Command };
        }
        self.array(words)
    }

    fn array(&self, words: Words) -> Said {
        Said { bytes: command(&words), words, form: Form::Command }
    }

    /// An inline command: words are quoted where necessary, and sometimes where not.
    fn inline(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let mut line = Vec::new();
        for (at, word) in words.iter().enumerate() {
            if at > 0 {
                line.extend_from_slice(self.pick(&[" ", " ", " ", "  ", "\t"]).as_bytes());
            }
            let plain = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'');
            let bare = !word.is_empty() && word.iter().all(plain) && !word.starts_with(b"*");
            let simple = word.iter().all(|b| (b' '..=b'~').contains(b) && !matches!(b, b'\'' | b'\\'));
            if bare && self.chance(700) {
                line.extend_from_slice(word);
            } else if simple && self.chance(500) {
                line.extend([&b"'"[..], word, b"'"].concat());
            } else {
                line.push(b'"');
                for b in word {
                    match b {
                        b'"' | b'\\' => line.extend([b'\\', *b]),
                        b'\n' => line.extend(b"\\n"),
                        b' '..=b'~' => line.push(*b),
                        _ => line.extend(format!("\\x{b:02x}").bytes()),
                    }
                }
                line.push(b'"');
            }
        }
        let end: &[u8] = if self.chance(500) { b"\r\n" } else { b"\n" };
        line.extend_from_slice(end);
        line
    }
}

/// Every key that commands with this hash tag make.
pub fn keys(tag: &str) -> Vec<Vec<u8>> {
    let mut all = vec![split(tag).into_bytes()];
    for kind in TYPES {
        let name = format!("{tag}{kind}").into_bytes();
        all.extend([BINARY].into_iter().chain(ENDINGS).map(|ending| [&name[..], ending].concat()));
    }
    all
}

/// The key of commands that are split. KEYS and SCAN, which look for what begins with the tag, do not find it.
fn split(tag: &str) -> String {
    format!("split{tag}")
}

/// Random rights on this client's keys. Every user may run ECHO, which ends each pipeline.
fn user(rng: &mut StdRng, client: usize, number: usize) -> User {
    const RIGHTS: [&[&str]; 5] = [
        &["+@all", "-@dangerous"],
        &["+@all", "-@scripting", "-@keyspace"],
        &["+@read", "+@write", "-@string"],
        &["+@read"],
        &["+@write", "+eval", "+publish", "-set"],
    ];
    const DENIED: [&str; 8] = ["-multi", "-exec", "-discard", "-watch", "-unwatch", "-get", "-incr", "-mget"];
    let (name, password) = (format!("u{client:02}-{number}"), format!("word-of-u{client:02}-{number}"));
    let keys: &[String] = &match rng.random_range(0..3) {
        0 => vec![format!("~{{c{client:02}-*"), format!("~{{d{client:02}-*")],
        1 => vec![format!("%R~{{c{client:02}-*"), format!("~{{c{client:02}-*}}s*")],
        _ => vec![format!("~{{c{client:02}-*}}s*"), format!("~{{c{client:02}-*}}l*")],
    };
    let mut rules = vec!["reset".to_string(), "on".into(), format!(">{password}"), "&*".into()];
    rules.extend_from_slice(keys);
    rules.extend(RIGHTS[rng.random_range(0..RIGHTS.len())].iter().map(ToString::to_string));
    rules.extend(["+@connection", "+@transaction"].map(String::from));
    rules.extend(DENIED.iter().filter(|_| rng.random_bool(0.15)).map(ToString::to_string));
    User { name, password, rules }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAG: Tag = Tag { client: 7, generation: 3 };

    #[test]
    fn every_key_is_among_those_that_are_deleted() {
        let mut generator = Generator::new(1, TAG.client, true);
        let all = [keys(&TAG.own()), keys(&TAG.other())].concat();
        for place in ["s", "b", "l", "h", "t", "z", "x", "g", "p", "k", "j", "u", "U"] {
            for _ in 0..200 {
                let key = generator.fill(place, TAG, &State::default());
                assert!(all.contains(&key), "{place}: {}", key.escape_ascii());
            }
        }
    }

    #[test]
    fn no_pattern_finds_the_keys_of_commands_that_are_split() {
        let mut generator = Generator::new(1, TAG.client, true);
        let mut fill = |place| generator.fill(place, TAG, &State::default());
        let pattern = fill("a");
        let begins = pattern.strip_suffix(b"*").expect("it ends so");
        assert!(fill("s").starts_with(begins));
        assert!(!fill("u").starts_with(begins) && !fill("U").starts_with(begins));
    }

    #[test]
    fn a_seed_makes_the_same_choices_again() {
        let steps = |seed| {
            let mut generator = Generator::new(seed, TAG.client, false);
            (0..100).map(|_| format!("{:?}", generator.step(TAG, &State::default()))).collect::<Vec<_>>()
        };
        assert_eq!(steps(5), steps(5));
        assert_ne!(steps(5), steps(6));
    }
}
