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

/// The cargo that runs this. What it tells a program about the program's own package is left out: some build scripts
/// ask for it (ring's for CARGO_MANIFEST_DIR), and what needs them would be compiled again.
pub fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    std::env::vars_os().filter(|(name, _)| is_of_a_package(&name.to_string_lossy())).for_each(|(name, _)| {
        command.env_remove(name);
    });
    command
}

fn is_of_a_package(variable: &str) -> bool {
    ["CARGO_MANIFEST_", "CARGO_PKG_"].iter().any(|begin| variable.starts_with(begin)) || variable == "OUT_DIR"
}

/// Where Clippy's driver is, if it is installed.
pub fn clippy_driver(root: &Path) -> anyhow::Result<PathBuf> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).current_dir(root).args(["--print", "sysroot"]).output().context("rustc runs")?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("bin/clippy-driver"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cargo_inherits_nothing_of_the_package_that_calls_it() {
        let of_ring =
            ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_LINKS", "CARGO_PKG_NAME", "CARGO_PKG_VERSION_PRE", "OUT_DIR"];
        assert!(of_ring.iter().all(|name| is_of_a_package(name)));
        assert!(!["CARGO", "CARGO_HOME", "CARGO_TARGET_DIR", "RUSTFLAGS"].iter().any(|name| is_of_a_package(name)));
        let called = cargo(Path::new("/"));
        let kept = |name: &str| !called.get_envs().any(|(removed, value)| removed == name && value.is_none());
        assert!(!kept("CARGO_MANIFEST_DIR") || std::env::var_os("CARGO_MANIFEST_DIR").is_none());
    }
}
