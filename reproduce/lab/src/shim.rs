//! The preload shim inside every server of a lab: what it can be told, and how.
//!
//! It maps a file of the server's directory; what is written there holds from the next call on. Sixty-four zero bytes
//! mean: as without it.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use unslow_engine::{Error, Server, cache_dir};

const SHIM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libunslow_slow.so"));
const CONTROL: &str = "shim.control";

/// What the shim can do; the number is the field's place in the control file.
#[derive(Clone, Copy, Debug)]
pub enum Knob {
    /// Microseconds before each fork, in the parent.
    ForkUs = 0,
    /// Microseconds before each fsync and fdatasync.
    FsyncUs = 1,
    /// Nanoseconds for each byte written to a file.
    WriteNsPerByte = 2,
    /// Microseconds the wall clock is ahead.
    ClockUs = 3,
}

impl Knob {
    /// For messages: "the fork of node-2".
    pub fn words(self) -> &'static str {
        match self {
            Knob::ForkUs => "fork",
            Knob::FsyncUs => "fsync",
            Knob::WriteNsPerByte => "writing",
            Knob::ClockUs => "clock",
        }
    }
}

/// What a server must be started with. Nothing where the shim could not be built; [`set`] says so when it is wanted.
pub fn environment() -> Result<Vec<(String, String)>, Error> {
    if SHIM.is_empty() {
        return Ok(Vec::new());
    }
    let dir = cache_dir();
    let path = dir.join(format!("libunslow_slow-{}.so", env!("CARGO_PKG_VERSION")));
    let io = |e: std::io::Error| Error::new(format!("{}: {e}", path.display()));
    if fs::read(&path).ok().as_deref() != Some(SHIM) {
        fs::create_dir_all(&dir).map_err(io)?;
        // Written aside and renamed: a server that starts this moment must not map half of it.
        let aside = dir.join(format!(".shim-{}-{:?}", std::process::id(), std::thread::current().id()));
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o755).open(&aside).map_err(io)?;
        file.write_all(SHIM).map_err(io)?;
        fs::rename(&aside, &path).map_err(io)?;
    }
    Ok(vec![("LD_PRELOAD".into(), path.display().to_string()), ("UNSLOW_SHIM".into(), CONTROL.into())])
}

/// The file the shim maps, for [`unslow_engine::ServerSpec::files`].
pub fn control_file() -> (String, String) {
    (CONTROL.into(), "\0".repeat(64))
}

/// Turns a knob of a running server.
pub fn set(server: &Server, knob: Knob, value: i64) -> Result<(), Error> {
    if SHIM.is_empty() {
        return Err(Error::new("the preload shim could not be built for this machine: rustc could not make a cdylib"));
    }
    let maps = fs::read_to_string(format!("/proc/{}/maps", server.pid())).unwrap_or_default();
    if server.pid() != 0 && !maps.contains(CONTROL) {
        return Err(Error::new(format!(
            "{} runs without the preload shim; a static or setuid server cannot use it, nor one under a cache path \
             with a space or colon (UNSLOW_CACHE)",
            server.name()
        )));
    }
    let path = server.dir().join(CONTROL);
    fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|f| f.write_all_at(&value.to_ne_bytes(), knob as u64 * 8))
        .map_err(|e| Error::new(format!("{}: {e}", path.display())))
}
