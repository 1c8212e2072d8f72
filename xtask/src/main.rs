//! What keeps the tree honest.
//!
//! `cargo xtask test` runs the tests, as `make test` does.
//! `cargo xtask tidy` checks: the arrows between crates, that every rule has its page, recorded facts and fault (or says
//! why not), that generated documents are fresh, links in documents, and reasons beside dependencies.
//! `cargo xtask docs` writes the generated documents: `docs/rules/*.md`, `docs/faults.md`, `docs/schema/*.json`.
//! `cargo xtask score` judges the diagnosis benchmark, `bench/diagnosis`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use serde::Deserialize;
use unslow_doctor::{ALL, Injected};

mod score;
mod test;

/// Layers from the bottom: a crate may depend on its own layer and those below, `doctor` on `base` alone, and so on.
const ARROWS: &[(&str, &[&str])] = &[
    ("unslow-units", &[]),
    ("unslow-resp", &[]),
    ("unslow-topology", &["unslow-resp", "unslow-units"]),
    ("unslow-nodes", &["unslow-resp"]),
    ("unslow-facts", &["unslow-topology"]),
    ("unslow-client", &["unslow-resp", "unslow-topology"]),
    ("unslow-reactor", &[]),
    ("unslow-status", &["unslow-reactor"]),
    ("unslow-interrupt", &[]),
    ("unslow-process", &[]),
    ("unslow-series", &[]),
    ("unslow-given", &["unslow-facts"]),
    ("unslow-probe", &["unslow-client", "unslow-facts", "unslow-process", "unslow-resp", "unslow-topology"]),
    ("unslow-doctor", &["unslow-facts", "unslow-topology", "unslow-units"]),
    ("unslow-engine", &["unslow-client", "unslow-resp", "unslow-topology"]),
    (
        "unslow-lab",
        &["unslow-client", "unslow-engine", "unslow-interrupt", "unslow-process", "unslow-topology", "unslow-units"],
    ),
    ("unslow-watch", &["unslow-client", "unslow-reactor", "unslow-resp", "unslow-topology"]),
    (
        "unslow-gateway",
        &[
            "unslow-bypass",
            "unslow-client",
            "unslow-nodes",
            "unslow-reactor",
            "unslow-resp",
            "unslow-status",
            "unslow-topology",
            "unslow-watch",
        ],
    ),
    (
        "unslow-sink",
        &[
            "unslow-client",
            "unslow-nodes",
            "unslow-reactor",
            "unslow-resp",
            "unslow-status",
            "unslow-topology",
            "unslow-units",
            "unslow-watch",
        ],
    ),
    ("unslow-bypass", &["unslow-reactor"]),
    (
        "unslow-bench",
        &[
            "unslow-bypass",
            "unslow-client",
            "unslow-interrupt",
            "unslow-nodes",
            "unslow-process",
            "unslow-reactor",
            "unslow-resp",
            "unslow-topology",
            "unslow-units",
        ],
    ),
    (
        "unslow-drill",
        &[
            "unslow-client",
            "unslow-engine",
            "unslow-facts",
            "unslow-interrupt",
            "unslow-lab",
            "unslow-probe",
            "unslow-process",
            "unslow-topology",
            "unslow-units",
        ],
    ),
    (
        "unslow",
        &[
            "unslow-bench",
            "unslow-bypass",
            "unslow-client",
            "unslow-doctor",
            "unslow-drill",
            "unslow-engine",
            "unslow-facts",
            "unslow-gateway",
            "unslow-given",
            "unslow-interrupt",
            "unslow-lab",
            "unslow-probe",
            "unslow-sink",
            "unslow-topology",
            "unslow-units",
            "unslow-watch",
        ],
    ),
    ("unslow-testkit", &["unslow-client", "unslow-engine", "unslow-process", "unslow-resp", "unslow-topology"]),
    (
        "xtask",
        &["unslow-bench", "unslow-doctor", "unslow-drill", "unslow-facts", "unslow-lab", "unslow-sink", "unslow-watch"],
    ),
];

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {why:#}"); // not {why:?}, which adds a backtrace where RUST_BACKTRACE is set
            ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask stands in the workspace")?.to_path_buf();
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy(&root),
        Some("docs") => {
            for (path, text) in generated()? {
                let path = root.join(path);
                fs::create_dir_all(path.parent().context("a file has a directory")?)?;
                fs::write(&path, text).with_context(|| path.display().to_string())?;
            }
            Ok(())
        }
        Some("test") => test::main(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        Some("score") => score::main(&root, &std::env::args().skip(2).collect::<Vec<_>>()),
        _ => bail!("cargo xtask tidy | docs | test | score"),
    }
}

fn tidy(root: &Path) -> anyhow::Result<()> {
    let mut wrong = Vec::new();
    arrows(root, &mut wrong)?;
    features(root, &mut wrong)?;
    rules(root, &mut wrong);
    for (path, text) in generated()? {
        if fs::read_to_string(root.join(&path)).ok().as_deref() != Some(&text) {
            wrong.push(format!("{path} is not what the code says; run: cargo xtask docs"));
        }
    }
    links(root, &mut wrong)?;
    reasons(root, &mut wrong)?;
    heads(root, &mut wrong)?;
    if wrong.is_empty() {
        println!("tidy: {} rules, {} crates, all in order", ALL.len(), ARROWS.len());
        return Ok(());
    }
    bail!("{} things are not tidy:\n  {}", wrong.len(), wrong.join("\n  "))
}

/// What `cargo metadata` says of the workspace, as far as it is looked at here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    /// None for those of the library or program itself.
    kind: Option<String>,
}

impl Metadata {
    fn read(root: &Path) -> anyhow::Result<Metadata> {
        let output = cargo(root).args(["metadata", "--format-version", "1", "--no-deps"]).output()?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The cargo that runs this.
fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Crates are built once: with the same features for the program alone (`make demo`) and for everything (`make test`).
fn features(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let tree = |which: &[&str]| -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
        let shape = ["--prefix", "none", "--no-dedupe", "--format", "{p} {f}"];
        let output = cargo(root).arg("tree").args(which).args(shape).output()?;
        if !output.status.success() {
            bail!("cargo tree {}: {}", which.join(" "), String::from_utf8_lossy(&output.stderr));
        }
        let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            // "name v1.2.3 (where it lies or what it is) a,b": nothing is said in brackets of most.
            let mut words = line.split(' ').filter(|w| !w.starts_with('('));
            let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
            let features = words.next_back().unwrap_or("").split(',').filter(|f| !f.is_empty());
            all.entry(format!("{name} {version}")).or_default().extend(features.map(String::from));
        }
        Ok(all)
    };
    let alone = tree(&["--package", "unslow", "--edges", "normal,build"])?;
    let together = tree(&["--workspace", "--edges", "all"])?;
    for (package, features) in alone {
        let more: Vec<&String> =
            together.get(&package).into_iter().flatten().filter(|f| !features.contains(*f)).collect();
        if !more.is_empty() {
            wrong.push(format!(
                "{package} is built twice: tests want {more:?} of it; name these features in Cargo.toml, and the crate in cli/Cargo.toml"
            ));
        }
    }
    Ok(())
}

fn arrows(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for package in Metadata::read(root)?.packages {
        let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == package.name.as_str()) else {
            wrong.push(format!("crate {} has no place among the arrows in xtask", package.name));
            continue;
        };
        for dependency in &package.dependencies {
            let ours = ARROWS.iter().any(|(name, _)| *name == dependency.name);
            // Tests may look at anything.
            if ours && dependency.kind.as_deref() != Some("dev") && !allowed.contains(&dependency.name.as_str()) {
                wrong.push(format!("{} must not depend on {}", package.name, dependency.name));
            }
        }
    }
    Ok(())
}

fn rules(root: &Path, wrong: &mut Vec<String>) {
    for rule in ALL {
        let facts = format!("explain/doctor/tests/facts/{}.json", rule.id);
        if !root.join(&facts).exists() {
            wrong.push(format!("rule {} has no recorded facts in {facts}", rule.id));
        }
        match rule.injected {
            Injected::Yes if !unslow_lab::faults::ALL.iter().any(|f| f.rule == Some(rule.id)) => {
                wrong.push(format!("rule {} has no fault of its name", rule.id))
            }
            Injected::No(why) if why.len() < 20 => {
                wrong.push(format!("rule {} does not say why it has no fault", rule.id))
            }
            _ => {}
        }
    }
}

/// What the rules do not tell, written by hand: the index of rules ends with it.
const NOT_SHOWN: &str = include_str!("../../docs/rules/not-shown.md");

/// Every document that is made from code, by path.
fn generated() -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let mut index = String::from(
        "# Rules\n\nOne page each, made from the head of the rule's file by `cargo xtask docs`. \
         [What no rule tells](#not-shown-here-and-why) stands at the end.\n\n| rule | what it means |\n|---|---|\n",
    );
    for rule in ALL {
        let page = rule.page();
        let sentence = page.lines().next().unwrap_or_default();
        index += &format!("| [{}]({}.md) | {sentence} |\n", rule.id, rule.id);
        let mut text = format!("# {}: `{}`\n\n{page}\n", rule.title, rule.id);
        if !rule.leads_to.is_empty() {
            let links: Vec<String> = rule.leads_to.iter().map(|id| format!("[{id}]({id}.md)")).collect();
            text += &format!("Leads to: {}.\n\n", links.join(", "));
        }
        text += &match rule.injected {
            Injected::Yes => {
                format!("Tested on real servers with the fault injected: `cargo xtask test injected::{}`.\n", rule.id)
            }
            Injected::No(why) => format!("Not injected: {why}.\n"),
        };
        text += &format!("Source: [`{0}.rs`](../../explain/doctor/src/rules/{0}.rs)\n", rule.id);
        all.insert(format!("docs/rules/{}.md", rule.id), text);
    }
    index += &format!("\n## Not shown here, and why\n\n{NOT_SHOWN}");
    all.insert("docs/rules/README.md".into(), index);
    all.insert("docs/faults.md".into(), faults());
    let schema = schemars::schema_for!(unslow_lab::daemon::Description);
    all.insert("docs/schema/lab.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_watch::Line);
    let sink = schemars::schema_for!(unslow_sink::Report);
    all.insert("docs/schema/sink.json".into(), serde_json::to_string_pretty(&sink)? + "\n");
    all.insert("docs/schema/watch.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_bench::Report);
    all.insert("docs/schema/bench.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_bench::Comparison);
    all.insert("docs/schema/compare.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_drill::run::Document);
    all.insert("docs/schema/drill.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_drill::shootout::Document);
    all.insert("docs/schema/clients.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_drill::case::Document);
    all.insert("docs/schema/case.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    let schema = schemars::schema_for!(unslow_doctor::Report);
    all.insert("docs/schema/doctor.json".into(), serde_json::to_string_pretty(&schema)? + "\n");
    Ok(all)
}

/// The catalogue of faults as a page.
fn faults() -> String {
    let mut text = String::from(
        "# Faults\n\nMade from the catalogue in [`faults/catalogue.rs`](../reproduce/lab/src/faults/catalogue.rs) by `cargo xtask docs`. \
         How to use them: [the lab](lab.md).\n\n| fault | done to | value (default) | what happens | the doctor's rule |\n|---|---|---|---|---|\n",
    );
    for fault in unslow_lab::faults::ALL {
        let value = fault.value.map(|(what, default)| format!("{what} ({default})")).unwrap_or_default();
        let rule = fault.rule.map(|r| format!("[{r}](rules/{r}.md)")).unwrap_or_default();
        let needs = match (fault.wired, fault.root) {
            (true, _) => "; not in a flat lab",
            (_, true) => "; root alone",
            _ => "",
        };
        text +=
            &format!("| `{}` | {} | {value} | {}{needs} | {rule} |\n", fault.name, fault.takes.words(), fault.about);
    }
    text
}

/// Relative links of Markdown files that lead nowhere.
fn links(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for path in files(root, "md")? {
        let text = fs::read_to_string(&path)?;
        for link in text.split("](").skip(1).filter_map(|t| t.split(')').next()) {
            let target = link.split('#').next().unwrap_or("");
            if target.is_empty() || target.contains("://") {
                continue;
            }
            if !path.parent().is_some_and(|d| d.join(target).exists()) {
                wrong.push(format!("{}: link to {target} leads nowhere", path.strip_prefix(root)?.display()));
            }
        }
    }
    Ok(())
}

fn reasons(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(root.join("Cargo.toml"))?;
    let dependencies = text.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    for line in dependencies.lines().filter(|l| l.contains(" = ") && !l.starts_with("unslow-")) {
        if !line.contains('#') {
            wrong.push(format!("Cargo.toml: {} has no reason on its line", line.split(' ').next().unwrap_or_default()));
        }
    }
    Ok(())
}

fn heads(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for path in files(root, "rs")? {
        if !fs::read_to_string(&path)?.trim_start_matches("#![no_main]\n").starts_with("//!") {
            wrong.push(format!("{}: the file's head does not say what it is for", path.strip_prefix(root)?.display()));
        }
    }
    Ok(())
}

fn files(dir: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "store" {
            found.extend(files(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
