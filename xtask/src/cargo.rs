//! The cargo that runs this, and what it knows about the workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde::Deserialize;

/// What `cargo metadata` prints about the workspace, as far as it is used here.
#[derive(Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
}

#[derive(Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub manifest_path: PathBuf,
    pub dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
pub struct Dependency {
    pub name: String,
    /// None for those of the library or program itself.
    pub kind: Option<String>,
}

impl Metadata {
    pub fn read(root: &Path) -> anyhow::Result<Metadata> {
        let output = cargo(root).args(["metadata", "--format-version", "1", "--no-deps"]).output()?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

/// The cargo that runs this.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Where Clippy's driver is, if it is installed.
pub fn clippy_driver(root: &Path) -> anyhow::Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).current_dir(root).args(["--print", "sysroot"]).output().context("rustc runs")?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("bin/clippy-driver"))
}
