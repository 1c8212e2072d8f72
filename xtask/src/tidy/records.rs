//! What must stand beside something else: a rule's facts and fault, a link's target, a dependency's reason, a file's
//! head, a generated document's newest text.

use std::fs;
use std::path::Path;

use unslow_doctor::{ALL, Injected};

use super::source;

/// Documents that are not what the code would generate.
pub fn generated(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for (path, text) in crate::docs::generated()? {
        if fs::read_to_string(root.join(&path)).ok().as_deref() != Some(&text) {
            wrong.push(format!("{path} is not what the code says; run: cargo xtask docs"));
        }
    }
    Ok(())
}

/// Rules without recorded facts, without a fault, or without a reason for having none.
pub fn rules(root: &Path, wrong: &mut Vec<String>) {
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

/// Relative links of Markdown files that lead nowhere.
pub fn links(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for path in source::files(root, "md")? {
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

/// Dependencies without a reason on their line.
pub fn reasons(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    let text = fs::read_to_string(root.join("Cargo.toml"))?;
    let dependencies = text.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    for line in dependencies.lines().filter(|l| l.contains(" = ") && !l.starts_with("unslow-")) {
        if !line.contains('#') {
            wrong.push(format!("Cargo.toml: {} has no reason on its line", line.split(' ').next().unwrap_or_default()));
        }
    }
    Ok(())
}

/// Sources whose first line does not say what they are for.
pub fn heads(root: &Path, wrong: &mut Vec<String>) -> anyhow::Result<()> {
    for path in source::files(root, "rs")? {
        if !fs::read_to_string(&path)?.trim_start_matches("#![no_main]\n").starts_with("//!") {
            wrong.push(format!("{}: the file's head does not say what it is for", path.strip_prefix(root)?.display()));
        }
    }
    Ok(())
}
