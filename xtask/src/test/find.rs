//! Which tests there are: cargo builds the test binaries, and each lists its own.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::cargo::{Metadata, cargo};

/// One test function, or a program of `tests.toml`.
#[derive(Clone, Debug)]
pub struct Test {
    /// `crate::binary::path::of::test`; the crate without its `unslow-`, and no binary for tests inside a library.
    pub id: String,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// The package's directory, where cargo runs tests too.
    pub dir: PathBuf,
    pub kind: Kind,
    /// Marked `#[ignore = "long: ..."]`: left to `make test-long`.
    pub long: bool,
}

/// Where a test stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Inside the library or program it tests: it starts no servers.
    Unit,
    /// In a binary of its own.
    Integration,
    /// Another test runner, with closing lines of its own.
    Program,
}

/// What cargo says of one thing it has built.
#[derive(Deserialize)]
struct Artifact {
    package_id: String,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds every test and lists them.
pub fn tests(root: &Path) -> anyhow::Result<Vec<Test>> {
    let metadata = Metadata::read(root)?;
    let mut build = cargo(root);
    build.args(["test", "--release", "--workspace", "--no-run", "--quiet"]);
    build.arg("--message-format=json-render-diagnostics").stdout(Stdio::piped());
    let mut child = build.spawn().context("cargo runs")?;
    let mut all = Vec::new();
    for line in BufReader::new(child.stdout.take().context("its output is piped")?).lines() {
        // Other messages are not about something built.
        let Ok(artifact) = serde_json::from_str::<Artifact>(&line?) else { continue };
        let (true, Some(binary)) = (artifact.profile.test, artifact.executable) else { continue };
        let package = metadata.packages.iter().find(|p| p.id == artifact.package_id).context("a package of ours")?;
        let dir = package.manifest_path.parent().context("a manifest lies in a directory")?;
        let short = package.name.trim_start_matches("unslow-").to_string();
        let (kind, prefix) = match artifact.target.kind.iter().any(|k| k == "test") {
            true => (Kind::Integration, format!("{short}::{}", artifact.target.name)),
            false => (Kind::Unit, short),
        };
        listed(&prefix, &binary, dir, kind, &mut all)?;
    }
    if !child.wait()?.success() {
        bail!("the tests do not build");
    }
    all.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(all)
}

/// Asks one binary for its tests.
fn listed(prefix: &str, binary: &Path, dir: &Path, kind: Kind, all: &mut Vec<Test>) -> anyhow::Result<()> {
    let names = |more: &[&str]| -> anyhow::Result<Vec<String>> {
        let output = Command::new(binary).current_dir(dir).args(["--list", "--format", "terse"]).args(more).output();
        let output = output.with_context(|| format!("{} --list", binary.display()))?;
        if !output.status.success() {
            bail!("{} --list: {}", binary.display(), String::from_utf8_lossy(&output.stderr));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.lines().filter_map(|l| l.strip_suffix(": test").map(String::from)).collect())
    };
    let long = names(&["--ignored"])?;
    for name in names(&[])? {
        all.push(Test {
            id: format!("{prefix}::{name}"),
            program: binary.to_path_buf(),
            arguments: ["--exact", &name, "--nocapture", "--include-ignored"].map(String::from).to_vec(),
            dir: dir.to_path_buf(),
            kind,
            long: long.contains(&name),
        });
    }
    Ok(())
}
