//! Where a server keeps its files.

use serde::{Deserialize, Serialize};

/// The file system of the directory that a server process writes its snapshots and its append-only file to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Storage {
    /// Kernel name of the block device below it, as in [`Host::disks`](crate::Host::disks); none where no single device
    /// is (tmpfs, overlay, network).
    pub device: Option<String>,
    /// Bytes that a process without root's reserve can still write.
    pub free_bytes: u64,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether files can be made there at all.
    #[serde(default)]
    pub state: StorageState,
}

/// Whether files can be made in a directory, as far as the kernel tells without trying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StorageState {
    /// Nothing speaks against it.
    #[default]
    Usable,
    /// Its file system is mounted for reading alone, as after an error of the disk.
    ReadOnly,
    /// The directory was removed while the server runs in it.
    Removed,
}
