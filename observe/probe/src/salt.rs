//! Key names as hashes that tell two keys apart and do not tell what they are called.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::now_ms;

const BYTES: usize = 16;

/// Hides key names: the same key has the same hash under one salt, and no other.
pub struct Salt(Option<[u8; BYTES]>);

/// Why a salt's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SaltError {
    #[error("{file}: {source}")]
    File { file: String, source: std::io::Error },
    /// Who has the salt and a recording can guess key names.
    #[error("{file}: others may read it; expected its owner alone: chmod 600 {file}")]
    Open { file: String },
    /// It was edited, or is another file.
    #[error(
        "{file}: found something else than 32 hex digits; delete it and another is made (keys get other hashes from \
         then on)"
    )]
    Damaged { file: String },
}

impl Salt {
    /// A new salt; none when keys are shown.
    pub fn new(show_keys: bool) -> Salt {
        Salt((!show_keys).then(random))
    }

    /// The salt that a file holds, so that recorders which share it hash alike. Made if there is no such file, for its
    /// owner to read alone.
    pub fn of_file(path: &Path) -> Result<Salt, SaltError> {
        let failed = |source| SaltError::File { file: path.display().to_string(), source };
        match File::open(path) {
            Ok(file) => read(path, file),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                make(path).map_err(failed)?;
                // Another recorder may have been quicker: then it is that one's.
                read(path, File::open(path).map_err(failed)?)
            }
            Err(e) => Err(failed(e)),
        }
    }

    /// The key as it may be printed.
    pub fn hide(&self, key: &[u8]) -> String {
        match self.0 {
            None => String::from_utf8_lossy(key).into_owned(),
            Some(salt) => {
                let digest = Sha256::new().chain_update(salt).chain_update(key).finalize();
                digest[..4].iter().fold(String::from("key#"), |s, b| s + &format!("{b:02x}"))
            }
        }
    }
}

fn read(path: &Path, mut file: File) -> Result<Salt, SaltError> {
    let name = || path.display().to_string();
    let failed = |source| SaltError::File { file: name(), source };
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(SaltError::Open { file: name() });
    }
    let mut text = String::new();
    // Another file may be any size.
    (&mut file).take(1024).read_to_string(&mut text).map_err(failed)?;
    parse(text.trim_end()).map(|salt| Salt(Some(salt))).ok_or_else(|| SaltError::Damaged { file: name() })
}

/// Writes a new salt beside its place and links it there, whole or not at all.
fn make(path: &Path) -> std::io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let digits: String = random().iter().map(|byte| format!("{byte:02x}")).collect();
    let _ = fs::remove_file(&beside);
    let mut new = OpenOptions::new();
    let mut file = new.write(true).create_new(true).mode(0o600).open(&beside)?;
    let made = file.write_all(format!("{digits}\n").as_bytes()).and_then(|()| file.sync_all());
    let linked = made.and_then(|()| fs::hard_link(&beside, path));
    fs::remove_file(&beside)?;
    match linked {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// The standard library's hashers are keyed by the system's random numbers.
fn random() -> [u8; BYTES] {
    let half = || RandomState::new().hash_one(now_ms()).to_le_bytes();
    let (a, b) = (half(), half());
    std::array::from_fn(|i| if i < BYTES / 2 { a[i] } else { b[i - BYTES / 2] })
}

fn parse(digits: &str) -> Option<[u8; BYTES]> {
    let is_hex = digits.len() == 2 * BYTES && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let byte = |i: usize| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap_or_default();
    is_hex.then(|| std::array::from_fn(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_hashes_are_stable_within_a_run_only() {
        let (run, next) = (Salt::new(false), Salt::new(false));
        assert_eq!(run.hide(b"user:1"), run.hide(b"user:1"));
        assert_ne!(run.hide(b"user:1"), run.hide(b"user:2"));
        assert_ne!(run.hide(b"user:1"), next.hide(b"user:1"));
        assert_eq!(Salt::new(true).hide(b"user:1"), "user:1");
    }

    #[test]
    fn recorders_that_share_a_file_hash_alike_and_nobody_else_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("salt"), dir.path().join("other"));
        let (first, second, third) =
            (Salt::of_file(&path).unwrap(), Salt::of_file(&path).unwrap(), Salt::of_file(&other).unwrap());
        assert_eq!(first.hide(b"user:1"), second.hide(b"user:1"));
        assert_ne!(first.hide(b"user:1"), third.hide(b"user:1"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_no_salt_is_refused_and_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("salt");
        for text in ["", "0123", "zz23456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef00", "\u{fc}"] {
            fs::write(&path, text).unwrap();
            let told = Salt::of_file(&path).err().expect("anyone may read it").to_string();
            assert!(told.contains("chmod 600"), "{told}");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            let told = Salt::of_file(&path).err().expect("it is none").to_string();
            assert!(told.contains("32 hex digits"), "{told}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
            fs::remove_file(&path).unwrap();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left beside it");
        let told = Salt::of_file(&dir.path().join("no/such/place")).err().expect("no directory").to_string();
        assert!(told.contains("no/such/place"), "{told}");
    }
}
