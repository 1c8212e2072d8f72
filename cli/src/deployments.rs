//! `unslow.toml`: deployments by name, with how to reach them and what is known of them.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::ValueEnum;
use jiff::Zoned;
use serde::Deserialize;
use unslow_client::Target;
use unslow_doctor::Silence;
use unslow_units::{did_you_mean, parse_time};

use crate::fail_on::FailOn;
use crate::reach::Reach;
use crate::{silences, toml_text, typed};

/// A file that is meant where none is named.
const NAME: &str = "unslow.toml";
const VARIABLE: &str = "UNSLOW_CONFIG";
/// A flag for ourselves: `--silences` is an `unslow.toml`, and this its deployment.
pub const SILENCES_OF: &str = "--silences-of";
/// In the command lines of these verbs `@NAME` is replaced by the deployment's URL and flags. Other verbs call
/// [`reached`].
pub const VERBS: [&str; 6] = ["doctor", "keys", "top", "record", "bench", "watch"];
/// Names become names of files.
const LONGEST_NAME: usize = 64;

/// One deployment of the file.
pub struct Named {
    pub name: String,
    url: String,
    reach: Way,
    pub window: Option<Duration>,
    pub fail_on: Option<FailOn>,
    /// A report of an earlier day, to compare with.
    pub baseline: Option<PathBuf>,
}

/// The file.
pub struct Deployments {
    pub all: Vec<Named>,
    silences: Vec<silences::Named>,
    /// Silences that are over, as sentences.
    pub over: Vec<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    defaults: Way,
    #[serde(default)]
    deployment: Vec<Entry>,
    #[serde(default)]
    silence: Vec<silences::Entry>,
}

/// How to reach it, and how to judge it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Way {
    user: Option<String>,
    password_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
    timeout: Option<String>,
    window: Option<String>,
    fail_on: Option<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "[[deployment]] with name and url")]
struct Entry {
    name: String,
    url: String,
    baseline: Option<PathBuf>,
    #[serde(flatten)]
    way: toml::Table,
}

impl Way {
    /// What is not set is as in `defaults`. Paths are relative to the file.
    fn over(self, defaults: &Way, beside: &Path) -> Way {
        let path = |path: Option<PathBuf>, default: &Option<PathBuf>| {
            path.or_else(|| default.clone()).map(|path| beside.join(path))
        };
        let text = |text: Option<String>, default: &Option<String>| text.or_else(|| default.clone());
        Way {
            user: text(self.user, &defaults.user),
            password_file: path(self.password_file, &defaults.password_file),
            cacert: path(self.cacert, &defaults.cacert),
            cert: path(self.cert, &defaults.cert),
            key: path(self.key, &defaults.key),
            server_name: text(self.server_name, &defaults.server_name),
            timeout: text(self.timeout, &defaults.timeout),
            window: text(self.window, &defaults.window),
            fail_on: text(self.fail_on, &defaults.fail_on),
        }
    }

    /// As flags; a value that is not set is none.
    fn flags(&self) -> Vec<(&'static str, OsString)> {
        let paths = [
            ("--password-file", &self.password_file),
            ("--cacert", &self.cacert),
            ("--cert", &self.cert),
            ("--key", &self.key),
        ];
        let texts = [("--user", &self.user), ("--server-name", &self.server_name), ("--timeout", &self.timeout)];
        let paths = paths.into_iter().filter_map(|(flag, path)| Some((flag, path.clone()?.into_os_string())));
        paths.chain(texts.into_iter().filter_map(|(flag, text)| Some((flag, text.clone()?.into())))).collect()
    }
}

impl Named {
    /// With what the command line says where the file says nothing.
    pub fn reach(&self, given: &Reach) -> anyhow::Result<Reach> {
        let way = self.reach.clone();
        Ok(Reach {
            user: way.user.or_else(|| given.user.clone()),
            password_file: way.password_file.or_else(|| given.password_file.clone()),
            cacert: way.cacert.or_else(|| given.cacert.clone()),
            cert: way.cert.or_else(|| given.cert.clone()),
            key: way.key.or_else(|| given.key.clone()),
            server_name: way.server_name.or_else(|| given.server_name.clone()),
            timeout: way.timeout.map(|text| typed::seconds(&text)).transpose()?.or(given.timeout),
            ..given.clone()
        })
    }

    /// With what the file says where the command line says nothing.
    fn reach_unless_typed(&self, typed: &Reach) -> anyhow::Result<Reach> {
        let mut reach = self.reach(typed)?;
        reach.user = typed.user.clone().or(reach.user);
        reach.password_file = typed.password_file.clone().or(reach.password_file);
        reach.cacert = typed.cacert.clone().or(reach.cacert);
        if typed.cert.is_some() {
            (reach.cert, reach.key) = (typed.cert.clone(), typed.key.clone());
        }
        reach.server_name = typed.server_name.clone().or(reach.server_name);
        reach.timeout = typed.timeout.or(reach.timeout);
        Ok(reach)
    }

    /// How the doctor judges it, as flags.
    fn judgement(&self, file: &Path) -> Vec<(&'static str, OsString)> {
        let mut flags: Vec<(&'static str, OsString)> =
            vec![("--silences", file.into()), (SILENCES_OF, self.name.clone().into())];
        flags.extend(self.reach.window.as_ref().map(|window| ("--window", window.into())));
        flags.extend(self.reach.fail_on.as_ref().map(|severity| ("--fail-on", severity.into())));
        let baseline = self.baseline.as_ref().filter(|path| path.exists());
        flags.extend(baseline.map(|path| ("--diff", path.into())));
        flags
    }

    pub fn target(&self, reach: &Reach) -> anyhow::Result<Target> {
        reach.target(&self.url)
    }
}

/// The file that is named, or the first there is: `UNSLOW_CONFIG`, the user's, the machine's. None lies in the current
/// directory: whose directory that is, and so which server would get the password, is not known.
pub fn path(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path.to_path_buf());
    }
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = set(VARIABLE) {
        return Ok(path);
    }
    let user = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let places = user.into_iter().chain([PathBuf::from("/etc")]).map(|dir| dir.join("unslow").join(NAME));
    let places: Vec<PathBuf> = places.collect();
    match places.iter().find(|path| path.exists()) {
        Some(path) => Ok(path.clone()),
        None => {
            let places: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
            bail!("there is no {NAME}: expected it at {}, or where {VARIABLE} says", places.join(" or "))
        }
    }
}

/// A URL, or that of `@NAME` in the file, and how to reach it. What is typed wins over the file.
pub fn reached(url: &str, typed: &Reach) -> anyhow::Result<(String, Reach)> {
    let Some(name) = url.strip_prefix('@') else { return Ok((url.to_string(), typed.clone())) };
    let path = path(None)?;
    let all = read(&path)?;
    let of = all.find(name).with_context(|| path.display().to_string())?;
    Ok((of.url.clone(), of.reach_unless_typed(typed)?))
}

/// Reads it. Who can change the file could have passwords sent to a server of theirs.
pub fn read(path: &Path) -> anyhow::Result<Deployments> {
    let named = || path.display().to_string();
    let mut file = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).with_context(named)?;
    let there = file.metadata().with_context(named)?;
    if !there.is_file() {
        bail!("{}: expected a file", named());
    }
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let around = fs::metadata(dir).with_context(|| dir.display().to_string())?;
    // In a sticky directory others cannot replace the file.
    let is_open = is_for_others(&around) && around.mode() & 0o1000 == 0;
    if !is_ours(&there) || is_for_others(&there) || !is_ours(&around) || is_open {
        let user = std::env::var("USER").unwrap_or_else(|_| "root".into());
        bail!("{}: other users can change it; make it and its directory your own: chown {user}, chmod go-w", named());
    }
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(named)?;
    parse(&text, dir, &Zoned::now()).with_context(named)
}

/// Whether others can write it. A group that is called like its user (their numbers are the same) has no one else in
/// it.
fn is_for_others(there: &fs::Metadata) -> bool {
    let is_private = there.gid() != 0 && there.gid() == there.uid();
    there.mode() & if is_private { 0o002 } else { 0o022 } != 0
}

/// Whether it belongs to root or to the user.
pub fn is_ours(there: &fs::Metadata) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&there.uid())
}

fn parse(text: &str, beside: &Path, now: &Zoned) -> anyhow::Result<Deployments> {
    let file: File = toml_text::parse(text)?;
    if file.deployment.is_empty() {
        bail!("no deployment: add [[deployment]] with name = \"...\" and url = \"redis://...\"");
    }
    let mut all: Vec<Named> = Vec::new();
    for entry in file.deployment {
        let name = entry.name.clone();
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_word = name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(is_plain);
        if !is_word || name.len() > LONGEST_NAME {
            bail!("deployment {name:?}: expected a name of letters, digits, - _ and ., at most {LONGEST_NAME} long");
        }
        if all.iter().any(|other| other.name.eq_ignore_ascii_case(&name)) {
            bail!("two deployments are called {name}");
        }
        all.push(named(entry, &file.defaults, beside).with_context(|| format!("deployment {name}"))?);
    }
    let names: Vec<&str> = all.iter().map(|of| of.name.as_str()).collect();
    let (silences, over) = silences::of(file.silence, &names, now)?;
    Ok(Deployments { all, silences, over })
}

fn named(entry: Entry, defaults: &Way, beside: &Path) -> anyhow::Result<Named> {
    let way: Way = entry.way.try_into().map_err(|e: toml::de::Error| anyhow::anyhow!("{}", e.message()))?;
    let way = way.over(defaults, beside);
    Target::parse(&entry.url)?;
    if entry.url.starts_with(['-', '@']) {
        bail!("url: expected redis://host:port, or another address");
    }
    if way.cert.is_some() != way.key.is_some() {
        bail!("cert and key belong together");
    }
    way.timeout.as_deref().map(parse_time).transpose().context("timeout")?;
    let window = way.window.as_deref().map(typed::lasting).transpose().context("window")?;
    let fail_on = way.fail_on.as_deref().map(|text| FailOn::from_str(text, false)).transpose();
    let fail_on = fail_on.map_err(|_| anyhow::anyhow!("fail_on: expected {}", severities()))?;
    let baseline = entry.baseline.map(|path| beside.join(path));
    Ok(Named { name: entry.name, url: entry.url, reach: way, window, fail_on, baseline })
}

fn severities() -> String {
    let names = FailOn::value_variants().iter().filter_map(|of| Some(of.to_possible_value()?.get_name().to_string()));
    names.collect::<Vec<_>>().join(", ")
}

impl Deployments {
    /// Silences of a deployment: its own, and those that name none or a URL.
    pub fn silences_of(&self, name: &str) -> Vec<Silence> {
        let is_its = |of: &Option<String>| of.as_ref().is_none_or(|of| of == name);
        self.silences.iter().filter(|(of, _)| is_its(of)).map(|(_, silence)| silence.clone()).collect()
    }

    pub fn find(&self, name: &str) -> anyhow::Result<&Named> {
        if let Some(of) = self.all.iter().find(|of| of.name == name) {
            return Ok(of);
        }
        let names: Vec<&str> = self.all.iter().map(|of| of.name.as_str()).collect();
        bail!("no deployment is called {name}{}", did_you_mean(name, &names))
    }
}

/// A command line where the deployment is named, as `@sessions`, with its URL and its flags instead. Flags that are
/// typed stay as they are. `file` is where it was found: the doctor reads its silences there.
pub fn expanded(words: &[OsString], verb: &str, of: &Named, file: &Path) -> anyhow::Result<Vec<OsString>> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    // The word itself, or the value of -u in one word with it.
    let at = format!("@{}", of.name);
    let before = |(place, word): (usize, &OsString)| {
        let flag = word.to_str()?.strip_suffix(&at)?;
        (flag.is_empty() || place < end && ["-u", "-u=", "--uri="].contains(&flag)).then(|| (place, flag.to_string()))
    };
    let places: Vec<(usize, String)> = words.iter().enumerate().filter_map(before).collect();
    let [(place, flag)] = &places[..] else {
        match places.is_empty() {
            true => bail!("write {at} as a word by itself"),
            false => bail!("{at} stands there more than once"),
        }
    };
    let typed = |flag: &str| {
        let with_value = format!("{flag}=");
        words[..end].iter().any(|word| word == flag || word.to_string_lossy().starts_with(&with_value))
    };
    let mut flags = of.reach.flags();
    // With --only the question is another one.
    if verb == "doctor" && !["--only", "--print-acl"].into_iter().any(typed) {
        flags.extend(of.judgement(file));
        let is_other = ["--fix-plan", "--recording"].into_iter().any(typed);
        let own = typed("--silences");
        flags.retain(|(flag, _)| !(*flag == "--diff" && is_other || *flag == SILENCES_OF && own));
    }
    flags.retain(|(flag, _)| !typed(flag));
    let mut out = words.to_vec();
    out[*place] = format!("{flag}{}", of.url).into();
    // In one word: a value that begins with a dash is no flag. Before the verb's own words: behind -- they were URLs.
    let verb_at = out.iter().position(|word| word == verb).unwrap_or(0);
    let joined = flags.into_iter().map(|(flag, value)| {
        let mut word: OsString = format!("{flag}=").into();
        word.push(value);
        word
    });
    out.splice(verb_at + 1..verb_at + 1, joined);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        [defaults]
        user = "ops"
        password_file = "ops.password"
        window = "5s"

        [[deployment]]
        name = "sessions"
        url = "redis://10.0.0.1:7000"
        fail_on = "medium"
        baseline = "sessions.json"

        [[deployment]]
        name = "carts"
        url = "rediss://10.0.1.1:7000"
        user = "carts"
        cacert = "/etc/ca.pem"
        timeout = "10s"

        [[silence]]
        rule = "swap"
        deployment = "carts"
        reason = "moves on Friday"
        until = 2026-12-05
    "#;

    fn now() -> Zoned {
        "2026-11-27T12:00:00+00:00[UTC]".parse().unwrap()
    }

    fn given() -> Reach {
        use clap::Parser;
        #[derive(Parser)]
        struct One {
            #[command(flatten)]
            reach: Reach,
        }
        One::parse_from(["x", "--insecure", "--user", "me"]).reach
    }

    #[test]
    fn deployments_have_defaults_and_their_own() {
        let file = parse(TEXT, Path::new("/etc/unslow"), &now()).unwrap();
        let [sessions, carts] = &file.all[..] else { panic!("two") };
        let reach = sessions.reach(&given()).unwrap();
        assert_eq!((reach.user.as_deref(), reach.timeout, reach.insecure), (Some("ops"), None, true));
        assert_eq!(reach.password_file.as_deref(), Some(Path::new("/etc/unslow/ops.password")));
        assert_eq!((sessions.window, sessions.fail_on.is_some()), (Some(Duration::from_secs(5)), true));
        assert_eq!(sessions.baseline.as_deref(), Some(Path::new("/etc/unslow/sessions.json")));
        let reach = carts.reach(&given()).unwrap();
        assert_eq!((reach.user.as_deref(), reach.timeout), (Some("carts"), Some(10.0)));
        let reach = carts.reach_unless_typed(&given()).unwrap();
        assert_eq!((reach.user.as_deref(), reach.timeout), (Some("me"), Some(10.0)));
        assert_eq!(reach.cacert.as_deref(), Some(Path::new("/etc/ca.pem")));
        let silences = |name: &str| file.silences_of(name).len();
        assert_eq!((silences("carts"), silences("sessions")), (1, 0));
        assert_eq!(file.silences_of("carts")[0].deployment, None, "whatever its URL and its user are");
        assert!(file.find("cart").err().unwrap().to_string().contains("did you mean \"carts\""));
    }

    #[test]
    fn a_name_stands_for_a_url_and_flags() {
        let file = parse(TEXT, Path::new("/c"), &now()).unwrap();
        let after = |line: &str, name: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            let verb = ["doctor", "top"].into_iter().find(|verb| words.iter().any(|word| word == verb)).unwrap();
            let out = expanded(&words, verb, file.find(name).unwrap(), Path::new("/c/unslow.toml"))?;
            Ok::<_, anyhow::Error>(out.join(std::ffi::OsStr::new(" ")).into_string().unwrap())
        };
        let judged = "--silences=/c/unslow.toml --silences-of=sessions";
        for (line, name, expected) in [
            (
                "unslow doctor @sessions --only swap",
                "sessions",
                "unslow doctor --password-file=/c/ops.password --user=ops redis://10.0.0.1:7000 --only swap"
                    .to_string(),
            ),
            (
                "unslow -q doctor --window 1s @sessions",
                "sessions",
                format!(
                    "unslow -q doctor --password-file=/c/ops.password --user=ops {judged} --fail-on=medium --window 1s \
                     redis://10.0.0.1:7000"
                ),
            ),
            (
                "unslow doctor @sessions --silences mine",
                "sessions",
                "unslow doctor --password-file=/c/ops.password --user=ops --window=5s --fail-on=medium \
                 redis://10.0.0.1:7000 --silences mine"
                    .into(),
            ),
            (
                "unslow top --uri=@carts --user=me",
                "carts",
                "unslow top --password-file=/c/ops.password --cacert=/etc/ca.pem --timeout=10s \
                 --uri=rediss://10.0.1.1:7000 --user=me"
                    .into(),
            ),
            (
                "unslow top --user=me -- @carts",
                "carts",
                "unslow top --password-file=/c/ops.password --cacert=/etc/ca.pem --timeout=10s --user=me -- \
                 rediss://10.0.1.1:7000"
                    .into(),
            ),
        ] {
            assert_eq!(after(line, name).unwrap(), expected, "{line}");
        }
        assert!(after("unslow doctor -qu@carts", "carts").unwrap_err().to_string().contains("a word by itself"));
        assert!(after("unslow doctor -a @carts @carts", "carts").unwrap_err().to_string().contains("more than once"));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_said_in_one_line() {
        let one = |more: &str| format!("[[deployment]]\nname = \"a\"\nurl = \"redis://h\"\n{more}");
        for (text, expected) in [
            (String::new(), "no deployment"),
            ("[[deployment]]\nname = \"a\"\n".into(), "missing field `url`"),
            (one("colour = \"red\"\n"), "unknown field `colour`"),
            (one("fail_on = \"much\"\n"), "expected info, risk, low"),
            (one("window = \"x\"\n"), "window"),
            (one("timeout = \"x\"\n"), "timeout"),
            (one("cert = \"x\"\n"), "belong together"),
            (one(&one("")), "two deployments are called a"),
            ("[[deployment]]\nname = \"../a\"\nurl = \"redis://h\"\n".into(), "expected a name of letters"),
            ("[[deployment]]\nname = \"a\"\nurl = \"redis:h\"\n".into(), "deployment a"),
            ("[[deployment]]\nname = \"a\"\nurl = \"-h\"\n".into(), "deployment a"),
            (one("[[silence]]\nrule = \"swap\"\nuntil = 2026-12-01\n"), "missing field `reason`"),
        ] {
            let said = parse(&text, Path::new(""), &now()).err().map(|e| format!("{e:#}"));
            assert!(said.as_ref().is_some_and(|s| s.contains(expected) && !s.contains('\n')), "{text}: {said:?}");
        }
    }
}
