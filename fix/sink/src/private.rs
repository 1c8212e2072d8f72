//! Files with messages in them: for this user alone, and never behind another user's link.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;

const MODE: u32 = 0o600;

/// Opens a file to append to. A new one has mode 0600; one that exists keeps its own. A symbolic link is refused,
/// except the names of the process's own descriptors.
pub fn append(path: &Path) -> std::io::Result<File> {
    let follow = if is_descriptor(path) { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = follow.bits() as i32;
    let opened = OpenOptions::new().create(true).append(true).mode(MODE).custom_flags(flags).open(path);
    opened.map_err(|e| match e.raw_os_error() {
        Some(code) if code == Errno::LOOP.raw_os_error() => Error::new(
            ErrorKind::InvalidInput,
            "it is a symbolic link, which another user could have created; give the path of the file itself (only the \
             links /dev/stdout, /dev/stderr and /dev/fd/N are followed)",
        ),
        _ => e,
    })
}

/// `/dev/stdout`, `/dev/stderr` and `/dev/fd/N`, in exactly this form: only root can change these links.
fn is_descriptor(path: &Path) -> bool {
    let Some(path) = path.to_str() else { return false };
    let number = |n: &str| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit());
    matches!(path, "/dev/stdout" | "/dev/stderr") || path.strip_prefix("/dev/fd/").is_some_and(number)
}

/// Puts a file with this text in place of `path`: whole or not at all.
pub fn replace(path: &Path, text: &str) -> std::io::Result<()> {
    let mut new = path.to_path_buf().into_os_string();
    new.push(".new");
    // A run that died may have left one. What stands there is not written to, whatever it is.
    if let Err(e) = std::fs::remove_file(&new)
        && e.kind() != ErrorKind::NotFound
    {
        return Err(e);
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_data()?;
    std::fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn only_the_links_to_own_descriptors_are_followed() {
        for path in ["/dev/stdout", "/dev/stderr", "/dev/fd/0", "/dev/fd/17"] {
            assert!(is_descriptor(Path::new(path)), "{path}");
        }
        for path in
            ["/dev/stdin", "/dev/fd/", "/dev/fd/1/x", "/dev/fd/../x", "/dev/fd/-1", "/dev//stdout", "dev/stdout"]
        {
            assert!(!is_descriptor(Path::new(path)), "{path}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("letters")).unwrap();
        let path = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        append(Path::new(&path)).unwrap().write_all(b"a").unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("letters")).unwrap(), "a");
        symlink(&path, dir.path().join("link")).unwrap();
        let why = append(&dir.path().join("link")).unwrap_err().to_string();
        assert!(why.contains("give the path of the file itself") && why.contains("/dev/stdout"), "{why}");
    }

    #[test]
    fn new_files_are_for_this_user_alone_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        append(&at("letters")).unwrap().write_all(b"a").unwrap();
        append(&at("letters")).unwrap().write_all(b"b").unwrap();
        assert_eq!((std::fs::read_to_string(at("letters")).unwrap().as_str(), mode(&at("letters"))), ("ab", 0o600));

        std::fs::write(at("theirs"), "kept").unwrap();
        symlink(at("theirs"), at("link")).unwrap();
        let why = append(&at("link")).unwrap_err().to_string();
        assert!(why.contains("symbolic link"), "{why}");
        symlink(at("theirs"), at("place.new")).unwrap();
        for text in ["1", "2"] {
            replace(&at("place"), text).unwrap();
            assert_eq!((std::fs::read_to_string(at("place")).unwrap().as_str(), mode(&at("place"))), (text, 0o600));
        }
        assert_eq!(std::fs::read_to_string(at("theirs")).unwrap(), "kept");
        assert!(!at("place.new").exists());
    }
}
