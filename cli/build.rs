//! Builds the preload that `unslow bypass` puts into other programs, and makes it part of the binary; and the text of
//! `--version`.
//!
//! The preload is a crate outside the workspace, for its own profile; its target directory is ours, so that nothing is
//! built twice.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    preload();
    version();
}

/// `--version` names the commit in UNSLOW_COMMIT, such as "1a2b3c4 2026-11-27", which `make dist` sets. A build by hand
/// names none: whether the tree is that of a commit changes without a word to cargo.
fn version() {
    println!("cargo::rerun-if-env-changed=UNSLOW_COMMIT");
    let commit = env::var("UNSLOW_COMMIT").ok().filter(|commit| !commit.is_empty());
    let version = env::var("CARGO_PKG_VERSION").expect("set by cargo");
    println!("cargo::rustc-env=UNSLOW_VERSION={version} ({})", commit.as_deref().unwrap_or("built from source"));
}

fn preload() {
    let bypass = Path::new(&env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo")).join("../fix/bypass");
    for part in ["src", "Cargo.toml", "preload/src", "preload/Cargo.toml", "preload/Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", bypass.join(part).display());
    }
    let out = Path::new(&env::var_os("OUT_DIR").expect("set by cargo")).to_path_buf();
    let target = out.join("preload");
    let status = Command::new(env::var_os("CARGO").expect("set by cargo"))
        .args(["build", "--release", "--locked", "--quiet", "--manifest-path"])
        .arg(bypass.join("preload/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        // Clippy's own compiler and sanitizers' flags are for us, not for what is loaded into others.
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .status();
    let built = target.join("release/libunslow_preload.so");
    let library = out.join("libunslow_preload.so");
    let bytes = fs::read(&built).ok().filter(|_| matches!(status, Ok(s) if s.success()));
    // One that stays as it was does not have what includes it compiled again.
    let is_there = bytes.as_ref().is_some_and(|bytes| fs::read(&library).is_ok_and(|known| known == *bytes));
    if !is_there && bytes.is_none_or(|bytes| fs::write(&library, bytes).is_err()) {
        println!("cargo::warning=the preload of `unslow bypass` does not build here; the verb will say so");
        fs::write(&library, b"").expect("OUT_DIR is writable");
    }
}
