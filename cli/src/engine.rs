//! `unslow engine`: which real servers can be run here.

use anyhow::Context;
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;
use unslow_engine::{
    CATALOG, Holding, KAFKA_VERSION, Purpose, find, holdings, install, install_kafka, installed, kafka_installed,
    on_path,
};
use unslow_units::bytes;

use crate::output::Output;
use crate::table::table;

/// Its name here: not among the servers that `--server` takes.
const KAFKA: &str = "kafka-4.1";

#[derive(Args)]
pub struct EngineArguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// List the engines
    Ls,
    /// Fetch one engine, or all of them, into the cache (UNSLOW_CACHE)
    Install {
        /// valkey-9.1, redis-8.10, redis-7.0, redis-6.2, redis-5.0, kafka-4.1; all servers if omitted
        name: Option<String>,
    },
    /// Remove engines from the cache; what a process runs stays
    Rm {
        /// As `engine ls` names them
        #[arg(required = true)]
        name: Vec<String>,
    },
}

#[derive(Serialize)]
struct Row {
    name: String,
    installed: bool,
    version: Option<String>,
    server: Option<String>,
    about: String,
}

impl EngineArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        match &self.what {
            What::Ls => self.ls(output),
            What::Rm { name } => rm(name, output),
            What::Install { name } => {
                let names: Vec<&str> =
                    name.as_deref().map_or_else(|| CATALOG.iter().map(|e| e.name).collect(), |n| vec![n]);
                let mut all = Vec::new();
                for name in names {
                    let say = |step: &str| output.note(&format!("{name}: {step}"));
                    let (version, server) = if name == KAFKA {
                        (format!("Kafka {KAFKA_VERSION}"), install_kafka(&mut |step| say(step))?)
                    } else {
                        let engine = match CATALOG.iter().find(|e| e.name == name) {
                            Some(entry) => install(entry, &mut |step| say(step))?,
                            None => find(name)?,
                        };
                        (engine.version.to_string(), engine.server)
                    };
                    output.note(&format!("{name}: {version} at {}", server.display()));
                    all.push(json!({ "name": name, "version": version, "server": server }));
                }
                if output.json() {
                    output.print_json(&json!({ "schema": "unslow.engine_install/1", "engines": all }))?;
                }
                Ok(0)
            }
        }
    }

    fn ls(&self, output: &Output) -> anyhow::Result<u8> {
        let mut rows: Vec<Row> = CATALOG
            .iter()
            .map(|entry| {
                let engine = installed(entry);
                Row {
                    name: entry.name.into(),
                    installed: engine.is_some(),
                    version: engine.as_ref().map(|e| e.version.clone()),
                    server: engine.map(|e| e.server.display().to_string()),
                    about: entry.about.into(),
                }
            })
            .collect();
        let kafka = kafka_installed();
        rows.push(Row {
            name: KAFKA.into(),
            installed: kafka.is_some(),
            version: kafka.as_ref().map(|_| format!("Kafka {KAFKA_VERSION}")),
            server: kafka.map(|lib| lib.display().to_string()),
            about: "a broker for trying `unslow sink` (Maven Central, needs Java 17)".into(),
        });
        rows.extend(on_path().into_iter().map(|e| Row {
            name: "path".into(),
            installed: true,
            version: Some(e.version.clone()),
            server: Some(e.server.display().to_string()),
            about: "on PATH".into(),
        }));
        if output.json() {
            #[derive(Serialize)]
            struct Engines {
                schema: &'static str,
                engines: Vec<Row>,
            }
            output.print_json(&Engines { schema: "unslow.engines/1", engines: rows })?;
            return Ok(0);
        }
        let mut lines = vec![["engine", "state", "version", "about"].map(String::from).to_vec()];
        for row in rows {
            let state = if row.installed { "installed" } else { "can be installed" };
            lines.push(vec![row.name, state.into(), row.version.unwrap_or_default(), row.about]);
        }
        output.print(&table(&lines))?;
        Ok(0)
    }
}

/// All names are looked up before the first is removed.
fn rm(names: &[String], output: &Output) -> anyhow::Result<u8> {
    let mut names = names.to_vec();
    names.sort();
    names.dedup();
    let mut all = holdings()?;
    all.retain(|holding| holding.purpose == Purpose::Engine);
    let named = |holding: &&Holding, name: &str| holding.path.file_name().is_some_and(|file| *file == *folder(name));
    let found: Vec<&Holding> = names
        .iter()
        .map(|name| {
            let is_here = all.iter().find(|holding| named(holding, name));
            is_here.with_context(|| format!("{name} is not installed; unslow engine ls lists what is"))
        })
        .collect::<anyhow::Result<_>>()?;
    let mut removed = Vec::new();
    for (name, holding) in names.iter().zip(found) {
        holding.remove()?;
        output.note(&format!("{name}: removed, {}", bytes(holding.bytes as f64)));
        removed.push(json!({ "name": name, "bytes": holding.bytes }));
    }
    if output.json() {
        output.print_json(&json!({ "schema": "unslow.engine_rm/1", "removed": removed }))?;
    }
    Ok(0)
}

/// Kafka's has its whole version.
fn folder(name: &str) -> String {
    if name == KAFKA { format!("kafka-{KAFKA_VERSION}") } else { name.to_string() }
}
