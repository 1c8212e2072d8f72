//! Compiles the preload shim with bare rustc: it must not bring Rust's runtime into the servers it is loaded into.

use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=shim/slow.rs");
    let out = Path::new(&env::var_os("OUT_DIR").expect("set by cargo")).join("libunslow_slow.so");
    let status = Command::new(env::var_os("RUSTC").expect("set by cargo"))
        .args(["--edition=2024", "--crate-type=cdylib", "-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "-o"])
        .arg(&out)
        .arg("shim/slow.rs")
        .status();
    if !matches!(status, Ok(s) if s.success()) {
        println!("cargo::warning=the slow-fork shim does not build here; faults that need it will say so");
        fs::write(&out, b"").expect("OUT_DIR is writable");
    }
}
