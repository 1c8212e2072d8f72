//! The file system below a server's files. A server changes to `dir` when it starts, so its working directory is the
//! place.

use std::ffi::CString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use unslow_facts::{Storage, StorageState};

/// Of the process's working directory; none without the right to look at another user's process.
pub fn of(pid: u32) -> Option<Storage> {
    // The kernel follows this link into the process's own mounts: a container's directory is found as well.
    let place = format!("/proc/{pid}/cwd");
    let device = fs::metadata(&place).ok().and_then(|m| device(m.dev()));
    let removed = fs::read_link(&place).is_ok_and(|dir| dir.to_string_lossy().ends_with(" (deleted)"));
    let place = CString::new(place).ok()?;
    // SAFETY: an all-zero statvfs is a valid value for the kernel to fill, and the path ends with a zero byte.
    let stat = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        if libc::statvfs(place.as_ptr(), &mut stat) != 0 {
            return None;
        }
        stat
    };
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let (free, size) = (bytes(stat.f_bavail), bytes(stat.f_blocks));
    let state = match stat.f_flag & libc::ST_RDONLY != 0 {
        _ if removed => StorageState::Removed,
        true => StorageState::ReadOnly,
        false => StorageState::Usable,
    };
    Some(Storage { device, free_bytes: free.min(size), size_bytes: size, state })
}

/// The kernel's name of the whole disk with this number; none of file systems without a device of their own.
fn device(number: u64) -> Option<String> {
    let (major, minor) = parts(number);
    let place = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    // Counters of disks are of whole ones.
    let whole = if place.join("partition").exists() { place.parent()? } else { place.as_path() };
    name(whole)
}

fn name(place: &Path) -> Option<String> {
    place.file_name()?.to_str().map(String::from)
}

/// Major and minor number as the C library packs them.
fn parts(number: u64) -> (u64, u64) {
    let major = ((number >> 8) & 0xfff) | ((number >> 32) & 0xffff_f000);
    let minor = (number & 0xff) | ((number >> 12) & 0xffff_ff00);
    (major, minor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_taken_apart_as_the_c_library_packs_them() {
        for (number, expected) in
            [(0x0801, (8, 1)), (0x0031_0305, (259, 773)), (0x0010_082c, (8, 300)), (0x001f, (0, 31))]
        {
            assert_eq!(parts(number), expected, "{number:#x}");
        }
    }

    #[test]
    fn the_file_system_of_a_running_process_has_a_size() {
        let own = of(std::process::id()).expect("the own process can be looked at");
        assert!(own.size_bytes > 0 && own.free_bytes <= own.size_bytes, "{own:?}");
        assert!(of(u32::MAX).is_none());
    }
}
