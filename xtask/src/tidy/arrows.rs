//! Which crate may depend on which, and that no crate is built twice with different features.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::bail;

use crate::cargo::{Metadata, cargo};

/// Layers from the bottom: a crate may depend on its own layer and those below, `doctor` on `base` alone, and so on.
pub const ARROWS: &[(&str, &[&str])] = &[
    ("unslow-units", &[]),
    ("unslow-resp", &[]),
    ("unslow-topology", &["unslow-resp"]),
    ("unslow-commands", &["unslow-resp", "unslow-units"]),
    ("unslow-template", &["unslow-resp"]),
    ("unslow-nodes", &["unslow-resp", "unslow-topology"]),
    ("unslow-facts", &["unslow-topology"]),
    ("unslow-client", &["unslow-nodes", "unslow-resp", "unslow-topology"]),
    ("unslow-reactor", &["unslow-client"]),
    ("unslow-status", &["unslow-reactor"]),
    ("unslow-interrupt", &[]),
    ("unslow-process", &[]),
    ("unslow-series", &[]),
    ("unslow-given", &["unslow-facts"]),
    ("unslow-probe", &["unslow-client", "unslow-facts", "unslow-process", "unslow-resp", "unslow-topology"]),
    ("unslow-keys", &["unslow-client", "unslow-probe", "unslow-topology", "unslow-units"]),
    (
        "unslow-record",
        &[
            "unslow-client",
            "unslow-facts",
            "unslow-nodes",
            "unslow-probe",
            "unslow-record",
            "unslow-reactor",
            "unslow-resp",
            "unslow-series",
            "unslow-topology",
        ],
    ),
    ("unslow-views", &["unslow-facts", "unslow-topology", "unslow-units"]),
    ("unslow-doctor", &["unslow-facts", "unslow-topology", "unslow-units"]),
    ("unslow-engine", &["unslow-client", "unslow-resp", "unslow-topology"]),
    (
        "unslow-lab",
        &["unslow-client", "unslow-engine", "unslow-interrupt", "unslow-process", "unslow-topology", "unslow-units"],
    ),
    ("unslow-watch", &["unslow-client", "unslow-nodes", "unslow-reactor", "unslow-resp", "unslow-topology"]),
    (
        "unslow-gateway",
        &[
            "unslow-bypass",
            "unslow-client",
            "unslow-commands",
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
            "unslow-commands",
            "unslow-nodes",
            "unslow-reactor",
            "unslow-resp",
            "unslow-status",
            "unslow-template",
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
            "unslow-template",
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
            "unslow-nodes",
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
            "unslow-keys",
            "unslow-lab",
            "unslow-probe",
            "unslow-record",
            "unslow-sink",
            "unslow-status",
            "unslow-topology",
            "unslow-units",
            "unslow-views",
            "unslow-watch",
        ],
    ),
    ("unslow-testkit", &["unslow-client", "unslow-engine", "unslow-process", "unslow-resp", "unslow-topology"]),
    (
        "xtask",
        &[
            "unslow-bench",
            "unslow-doctor",
            "unslow-drill",
            "unslow-facts",
            "unslow-keys",
            "unslow-lab",
            "unslow-record",
            "unslow-sink",
            "unslow-watch",
        ],
    ),
];

/// Crates are built once: with the same features for the program alone (`make demo`) and for everything (`make test`).
pub fn features(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let tree = |which: &[&str]| -> anyhow::Result<BTreeMap<String, BTreeSet<String>>> {
        let shape = ["--prefix", "none", "--format", "{p} {f}"];
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
        let more = together.get(&package).into_iter().flatten().filter(|f| !features.contains(*f));
        let more: Vec<&String> = more.filter(|f| !is_for_xtask_alone(&package, f)).collect();
        if !more.is_empty() {
            wrong.push(format!(
                "{package} is built twice: tests want {more:?} of it; name these features in Cargo.toml, and the crate \
                 in cli/Cargo.toml"
            ));
        }
    }
    Ok(())
}

/// Positions of tokens, for `tidy`. Procedural macros use a proc-macro2 that is built for the compiler, at another
/// level of optimization; that one is neither asked for this feature nor built again because of it.
fn is_for_xtask_alone(package: &str, feature: &str) -> bool {
    package.starts_with("proc-macro2 ") && feature == "span-locations"
}

/// Dependencies that point up.
pub fn check(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
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
