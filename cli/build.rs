//! Builds the preload that `unslow bypass` puts into other programs, and makes it part of the binary.
//!
//! It is a crate outside the workspace, for its own profile; its target directory is ours, so that nothing is built
//! twice.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
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
    if !matches!(status, Ok(s) if s.success()) || fs::copy(&built, &library).is_err() {
        println!("cargo::warning=the preload of `unslow bypass` does not build here; the verb will say so");
        fs::write(&library, b"").expect("OUT_DIR is writable");
    }
}
