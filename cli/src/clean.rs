//! `unslow clean`: what unslow has left on this machine, and its removal.

use clap::Args;
use serde::Serialize;
use unslow_engine::{Holding, Purpose, cache_dir, holdings};
use unslow_units::bytes;

use crate::output::Output;
use crate::table::table;

const ENGINE: &str = "engine";

#[derive(Args)]
#[command(
    after_help = "What a running process uses stays, as far as this user may see it, and is named. Labs that run are \
                  ended by `unslow lab down`; recordings and reports are where you put them.\n\nExamples:\n  unslow \
                  clean --dry-run\n  unslow clean --engines"
)]
pub struct CleanArguments {
    /// Remove the engines as well: they are fetched again when they are needed
    #[arg(long)]
    engines: bool,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Removed,
    /// With --dry-run.
    WouldBeRemoved,
    /// An engine, without --engines.
    Kept,
    InUse,
    Failed,
}

impl Outcome {
    fn words(self) -> &'static str {
        match self {
            Outcome::Removed => "removed",
            Outcome::WouldBeRemoved => "would be removed",
            Outcome::Kept => "kept (--engines)",
            Outcome::InUse => "in use",
            Outcome::Failed => "failed",
        }
    }
}

#[derive(Serialize)]
struct Row {
    what: &'static str,
    path: String,
    bytes: u64,
    outcome: Outcome,
    /// The process that uses it, or why it could not be removed.
    why: Option<String>,
}

impl CleanArguments {
    pub fn run(&self, output: &Output) -> anyhow::Result<u8> {
        let rows: Vec<Row> = holdings()?.iter().map(|holding| self.row(holding)).collect();
        let has_failed = rows.iter().any(|row| row.outcome == Outcome::Failed);
        let is_freed = |row: &&Row| matches!(row.outcome, Outcome::Removed | Outcome::WouldBeRemoved);
        let freed: u64 = rows.iter().filter(is_freed).map(|row| row.bytes).sum();
        if output.json() {
            #[derive(Serialize)]
            struct Clean {
                schema: &'static str,
                cache: String,
                freed_bytes: u64,
                holdings: Vec<Row>,
            }
            let cache = cache_dir().display().to_string();
            output.print_json(&Clean { schema: "unslow.clean/1", cache, freed_bytes: freed, holdings: rows })?;
            return Ok(u8::from(has_failed));
        }
        if rows.is_empty() {
            output.print(&format!("nothing in {}\n", cache_dir().display()))?;
            return Ok(0);
        }
        let mut lines = vec![["what", "size", "", "path"].map(String::from).to_vec()];
        for row in rows {
            let why = row.why.map_or_else(String::new, |why| format!(": {why}"));
            let outcome = format!("{}{why}", row.outcome.words());
            // Which one it is, where the path does not fit.
            let name = std::path::Path::new(&row.path).file_name().unwrap_or_default().to_string_lossy();
            let what = if row.what == ENGINE { format!("{ENGINE} {name}") } else { row.what.to_string() };
            lines.push(vec![what, bytes(row.bytes as f64), outcome, row.path]);
        }
        output.print(&table(&lines))?;
        let verb = if self.dry_run { "would be freed" } else { "freed" };
        output.print(&format!("{} {verb}\n", bytes(freed as f64)))?;
        Ok(u8::from(has_failed))
    }

    fn row(&self, holding: &Holding) -> Row {
        let (outcome, why) = self.outcome(holding);
        let what = match holding.purpose {
            Purpose::Engine => ENGINE,
            Purpose::Clients => "client libraries",
            Purpose::Evidence => "evidence of drills",
            Purpose::Library => "preloaded library",
            Purpose::Unfinished => "broken installation",
        };
        Row { what, path: holding.path.display().to_string(), bytes: holding.bytes, outcome, why }
    }

    fn outcome(&self, holding: &Holding) -> (Outcome, Option<String>) {
        if holding.purpose == Purpose::Engine && !self.engines {
            return (Outcome::Kept, None);
        }
        if let Some(pid) = holding.used_by {
            return (Outcome::InUse, Some(format!("process {pid}")));
        }
        if self.dry_run {
            return (Outcome::WouldBeRemoved, None);
        }
        match holding.remove() {
            Ok(()) => (Outcome::Removed, None),
            Err(e) => (Outcome::Failed, Some(e.to_string())),
        }
    }
}
