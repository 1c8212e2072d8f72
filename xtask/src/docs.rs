//! The documents that are made from code: `docs/rules/*.md`, `docs/faults.md`, `docs/schema/*.json`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Context;
use unslow_doctor::{ALL, Injected};

/// Writes them all.
pub fn write(root: &Path) -> anyhow::Result<()> {
    for (path, text) in generated()? {
        let path = root.join(path);
        fs::create_dir_all(path.parent().context("a file has a directory")?)?;
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// What the rules do not tell, written by hand: the index of rules ends with it.
const NOT_SHOWN: &str = include_str!("../../docs/rules/not-shown.md");

/// Every document that is made from code, by path.
pub fn generated() -> anyhow::Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let mut index = String::from(
        "# Rules\n\nOne page each, made from the head of the rule's file by `cargo xtask docs`. \
         [What no rule tells](#not-shown-here-and-why) stands at the end.\n\n| rule | what it means |\n|---|---|\n",
    );
    for rule in ALL {
        let page = rule.page();
        let sentence = page.lines().take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
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
    for (name, schema) in [
        ("lab", schemars::schema_for!(unslow_lab::found::Description)),
        ("sink", schemars::schema_for!(unslow_sink::Report)),
        ("watch", schemars::schema_for!(unslow_watch::Line)),
        ("bench", schemars::schema_for!(unslow_bench::Report)),
        ("compare", schemars::schema_for!(unslow_bench::Comparison)),
        ("drill", schemars::schema_for!(unslow_drill::run::Document)),
        ("clients", schemars::schema_for!(unslow_drill::shootout::Document)),
        ("case", schemars::schema_for!(unslow_drill::case::Document)),
        ("doctor", schemars::schema_for!(unslow_doctor::Report)),
        ("incidents", schemars::schema_for!(unslow_doctor::Incidents)),
        ("inventory", schemars::schema_for!(unslow_doctor::Inventory)),
        ("keys", schemars::schema_for!(unslow_keys::Report)),
        ("recording", schemars::schema_for!(unslow_record::Contents)),
    ] {
        all.insert(format!("docs/schema/{name}.json"), serde_json::to_string_pretty(&schema)? + "\n");
    }
    Ok(all)
}

/// The catalogue of faults as a page.
fn faults() -> String {
    let mut text = String::from(
        "# Faults\n\nMade from the catalogue in [`faults/catalogue.rs`](../reproduce/lab/src/faults/catalogue.rs) \
         by `cargo xtask docs`. How to use them: [the lab](lab.md).\n\n\
         | fault | done to | value (default) | what happens | the doctor's rule |\n|---|---|---|---|---|\n",
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
