//! Stands where `sockmap.rs` would in a build without the `sockmap` feature: the same names, and an error that says so.

use std::convert::Infallible;
use std::fmt;

/// Never made.
pub struct Sockmap(Infallible);

/// What is missing: the feature.
#[derive(Debug)]
pub struct Error;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this unslow was built without eBPF; cargo build --release builds one with it")
    }
}

impl std::error::Error for Error {}

impl Sockmap {
    /// Always the error.
    pub fn attach(_ports: &[u16]) -> Result<Sockmap, Error> {
        Err(Error)
    }

    /// Takes the programs out of the kernel.
    pub fn detach(self) {
        match self.0 {}
    }
}
