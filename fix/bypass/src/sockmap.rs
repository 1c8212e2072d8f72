//! The variant for whoever cannot preload: eBPF hands the bytes of one socket to the other below TCP.
//!
//! `sockmap.bpf.c` has the two programs and their maps. The first sees each TCP connection within this machine as it is
//! established and puts both its sockets into a map under their addresses. The second sees each message such a socket
//! sends, swaps the addresses, and hands the message to the socket it finds there. Sockets that are not in the map,
//! because they are older or belong to another machine, keep using TCP.
//!
//! The object is committed, so that a build needs no clang; `make bpf` rebuilds it.
//!
//! Needs root (CAP_BPF, CAP_NET_ADMIN), CONFIG_CGROUP_BPF, CONFIG_BPF_STREAM_PARSER and Linux 5.15, which knows the
//! network namespace of a socket (`bpf_get_netns_cookie`) in both programs.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use aya::maps::{Array, SockHash};
use aya::programs::{CgroupAttachMode, SkMsg, SockOps};
use aya::{Ebpf, include_bytes_aligned};

/// What clang made of `sockmap.bpf.c`.
const OBJECT: &[u8] = include_bytes_aligned!("sockmap.bpf.o");

/// The size of `struct socket` there, the key of `sockets`.
const KEY_BYTES: usize = 48;

/// The one entry of `ports`: a bit a port, lowest first.
type PortBits = [u8; 65_536 / 8];

/// Attached for as long as it lives. Connections stay in the map until they are closed or this is dropped; they are
/// TCP's then.
pub struct Sockmap {
    _loaded: Ebpf,
}

/// What is missing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// We may not load programs.
    #[error("needs root (CAP_BPF and CAP_NET_ADMIN)")]
    NotRoot,
    /// The kernel refuses a part of it; `why` is the whole chain of causes.
    #[error("the kernel refuses {what}: {why}")]
    Refused { what: &'static str, why: String },
    /// The object we carry has no such part: a defect of unslow.
    #[error("no {0} in the program that unslow carries")]
    Incomplete(&'static str),
    /// A file or directory cannot be had.
    #[error("{}: {why}", path.display())]
    Path { path: PathBuf, why: io::Error },
    /// There is no cgroup v2 to attach to.
    #[error("cgroup v2 is not mounted and cannot be ({0})")]
    NoCgroup(io::Error),
}

impl Sockmap {
    /// Attaches for connections with one end at one of these ports, or for all of this machine's when there are none.
    pub fn attach(ports: &[u16]) -> Result<Sockmap, Error> {
        // SAFETY: no arguments.
        if unsafe { libc::geteuid() } != 0 {
            return Err(Error::NotRoot);
        }
        let mut loaded = Ebpf::load(OBJECT).map_err(|e| refused("the maps", &e))?;
        let map = loaded.map_mut("ports").ok_or(Error::Incomplete("map of ports"))?;
        let mut map: Array<_, PortBits> = Array::try_from(map).map_err(|e| refused("the map of ports", &e))?;
        map.set(0, port_bits(ports), 0).map_err(|e| refused("the ports", &e))?;
        let map = loaded.map("sockets").ok_or(Error::Incomplete("map of sockets"))?;
        let map: SockHash<_, [u8; KEY_BYTES]> =
            SockHash::try_from(map).map_err(|e| refused("the map of sockets", &e))?;
        let map = map.fd().try_clone().map_err(|e| refused("the map of sockets", &e))?;
        let program = loaded.program_mut("redirect_bytes").ok_or(Error::Incomplete("sk_msg program"))?;
        let program: &mut SkMsg = program.try_into().map_err(|e| refused("the sk_msg program", &e))?;
        let needs = "an sk_msg program (CONFIG_BPF_STREAM_PARSER and Linux 5.15 are needed)";
        program.load().map_err(|e| refused(needs, &e))?;
        program.attach(&map).map_err(|e| refused("the sk_msg program", &e))?;
        let program = loaded.program_mut("add_socket").ok_or(Error::Incomplete("sockops program"))?;
        let program: &mut SockOps = program.try_into().map_err(|e| refused("the sockops program", &e))?;
        let needs = "a sockops program (CONFIG_CGROUP_BPF and Linux 5.15 are needed)";
        program.load().map_err(|e| refused(needs, &e))?;
        let root = CgroupRoot::find()?;
        let cgroup = File::open(&root.path).map_err(|why| Error::Path { path: root.path.clone(), why })?;
        // A link: beside others without being asked to, and gone with this process.
        program.attach(cgroup, CgroupAttachMode::Single).map_err(|e| refused("the root cgroup", &e))?;
        Ok(Sockmap { _loaded: loaded })
    }

    /// Takes the programs out of the kernel, as dropping it does.
    pub fn detach(self) {}
}

/// The bits of these ports, or of all if there are none.
fn port_bits(ports: &[u16]) -> PortBits {
    if ports.is_empty() {
        return [0xff; 65_536 / 8];
    }
    let mut bits: PortBits = [0; 65_536 / 8];
    for port in ports {
        bits[usize::from(port / 8)] |= 1 << (port % 8);
    }
    bits
}

fn refused(what: &'static str, e: &dyn std::error::Error) -> Error {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(e) = next {
        text = format!("{text}: {e}");
        next = e.source();
    }
    Error::Refused { what, why: text }
}

/// Where cgroup v2 is mounted, or was just now, for the moment of attaching.
struct CgroupRoot {
    path: PathBuf,
    ours: bool,
}

impl CgroupRoot {
    fn find() -> Result<CgroupRoot, Error> {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
        let mounted = mounts.lines().find_map(|line| {
            let mut words = line.split(' ');
            let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(at))
        });
        if let Some(path) = mounted {
            return Ok(CgroupRoot { path, ours: false });
        }
        let path = std::env::temp_dir().join(format!("unslow-cgroup2-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|why| Error::Path { path: path.clone(), why })?;
        let root = CgroupRoot { path, ours: true };
        let at = c_path(&root.path)?;
        // SAFETY: terminated strings, no data.
        if unsafe { libc::mount(c"none".as_ptr(), at.as_ptr(), c"cgroup2".as_ptr(), 0, std::ptr::null()) } != 0 {
            return Err(Error::NoCgroup(io::Error::last_os_error()));
        }
        Ok(root)
    }
}

fn c_path(path: &Path) -> Result<std::ffi::CString, Error> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|zero| Error::Path { path: path.to_path_buf(), why: zero.into() })
}

impl Drop for CgroupRoot {
    fn drop(&mut self) {
        if self.ours {
            if let Ok(at) = c_path(&self.path) {
                // SAFETY: a terminated string.
                unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
            }
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_object_was_built_from_the_source() {
        let recorded = include_str!("sockmap.sum");
        for (name, bytes) in [("sockmap.bpf.c", &include_bytes!("sockmap.bpf.c")[..]), ("sockmap.bpf.o", OBJECT)] {
            let sum: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
            assert!(
                recorded.lines().any(|line| line == format!("{sum}  {name}")),
                "fix/bypass/src/{name} is not the one that sockmap.sum records. After a change to sockmap.bpf.c run \
                 `make bpf`, and commit sockmap.bpf.c, sockmap.bpf.o and sockmap.sum together"
            );
        }
    }

    #[test]
    fn every_named_port_has_its_bit_and_without_names_all_have() {
        let set = |ports: &[u16]| -> Vec<u16> {
            let bits = port_bits(ports);
            (0..=u16::MAX).filter(|port| bits[usize::from(*port) / 8] >> (port % 8) & 1 == 1).collect()
        };
        assert_eq!(set(&[6379]), [6379]);
        assert_eq!(set(&[65_535, 8, 7, 8]), [7, 8, 65_535]);
        assert_eq!(set(&[]).len(), 65_536);
    }
}
