//! Real deployments in zones, joined by wires of our own; faults are values; everything is undone on drop.
//!
//! [`topology::Topology`] says what there shall be, [`lab::Lab::up`] makes it, [`faults::Fault::inject`] makes it
//! suffer.
//! [`daemon`] keeps a lab running after the command that started it.

mod cgroups;
pub mod daemon;
pub mod faults;
pub mod found;
pub mod lab;
pub mod launch;
pub mod place;
mod processes;
mod shim;
pub mod topology;
pub mod wire;
