//! Files that a diagnosis leaves behind: checked before the window, never half written.
//!
//! A file is replaced by a rename only where a regular file of ours, or none, is in its place. Through a link, and over
//! a file of another user, it is written as any program would: what the kernel protects there (fs.protected_symlinks)
//! stays protected.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Result as IoResult, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, bail};

/// Whether a file can be written there, without touching what is in it. After a long window it would be too late to
/// ask.
pub fn check(path: &Path) -> anyhow::Result<()> {
    let what = || format!("{}: cannot be written", path.display());
    match fs::metadata(path) {
        Ok(there) if there.is_dir() => bail!("{}: cannot be written: it is a directory", path.display()),
        // A pipe or a device: opening it could block, or mean something to its reader.
        Ok(there) if !there.is_file() => return Ok(()),
        Ok(_) => return OpenOptions::new().append(true).open(path).map(drop).with_context(what),
        Err(_) => {}
    }
    has_parent(path, path)?;
    if let Ok(to) = fs::read_link(path) {
        // Where the link may be followed there is no file behind it. None is made there to find out more.
        return match OpenOptions::new().append(true).open(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => has_parent(path, &parent(path).join(to)),
            opened => opened.map(drop).with_context(what),
        };
    }
    let made = OpenOptions::new().append(true).create_new(true).open(path).with_context(what)?;
    let same = |there: fs::Metadata| made.metadata().is_ok_and(|m| (m.dev(), m.ino()) == (there.dev(), there.ino()));
    if fs::symlink_metadata(path).is_ok_and(same) {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

fn has_parent(path: &Path, file: &Path) -> anyhow::Result<()> {
    let parent = parent(file);
    if !parent.is_dir() {
        bail!("{}: cannot be written: there is no directory {}", path.display(), parent.display());
    }
    Ok(())
}

/// Writes beside `path` and renames: a full disk leaves what was there before. Where the directory does not allow that,
/// and for links, files of others, pipes and devices, it is written directly.
pub fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let what = || format!("{}: could not be written", path.display());
    let old = match fs::symlink_metadata(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => None,
        Ok(old) if old.is_file() => Some(old),
        _ => return fs::write(path, text).with_context(what),
    };
    // What was for its owner's eyes only stays so, from its first byte on.
    let mode = old.as_ref().map(|old| old.mode() & 0o777);
    let beside = beside(path);
    let Ok(mut file) = begin(&beside, mode.unwrap_or(0o666)) else {
        return fs::write(path, text).with_context(what);
    };
    // What we make is ours: by that another's file is known, or one whose group may read what ours must not.
    let ours = old.is_none_or(|old| file.metadata().is_ok_and(|m| (m.uid(), m.gid()) == (old.uid(), old.gid())));
    if !ours {
        end(&beside);
        return fs::write(path, text).with_context(what);
    }
    let kept = mode.map_or(Ok(()), |mode| file.set_permissions(Permissions::from_mode(mode)));
    let written = kept.and_then(|()| file.write_all(text.as_bytes())).and_then(|()| file.sync_all());
    drop(file);
    let renamed = written.map(|()| fs::rename(&beside, path));
    end(&beside);
    match renamed {
        Ok(Ok(())) => Ok(()),
        // A file that is a mount by itself cannot be replaced.
        Ok(Err(_)) => fs::write(path, text).with_context(what),
        Err(full) => Err(full).with_context(what),
    }
}

/// What is written now, under names that a rename will take away.
static HALF: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn half() -> MutexGuard<'static, Vec<PathBuf>> {
    HALF.lock().unwrap_or_else(PoisonError::into_inner)
}

fn begin(beside: &Path, mode: u32) -> IoResult<File> {
    let mut half = half();
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(beside)?;
    half.push(beside.to_path_buf());
    Ok(file)
}

/// Nothing is left under that name.
fn end(beside: &Path) {
    let mut half = half();
    let _ = fs::remove_file(beside);
    half.retain(|path| path != beside);
}

/// For a run that ends at once: what is half written is not left behind.
pub fn forget_half_written() {
    for beside in half().drain(..) {
        let _ = fs::remove_file(beside);
    }
}

/// The name beside it that is written first.
fn beside(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    parent(path).join(format!(".{name}.unslow-{}", std::process::id()))
}

fn parent(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    parent.map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut all: Vec<String> =
            fs::read_dir(dir).unwrap().flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        all.sort();
        all
    }

    #[test]
    fn a_path_is_checked_without_leaving_a_trace() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("facts.json");
        check(&file).unwrap();
        assert!(names(dir.path()).is_empty());
        fs::write(&file, "kept").unwrap();
        check(&file).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
        let told = |path: &Path| format!("{:#}", check(path).unwrap_err());
        assert!(told(dir.path()).contains("it is a directory"));
        assert!(told(&dir.path().join("missing/facts.json")).contains("there is no directory"));
        assert!(told(&file.join("below")).contains("there is no directory"));
        let link = dir.path().join("link");
        symlink(dir.path().join("nothing"), &link).unwrap();
        check(&link).unwrap();
        assert_eq!(names(dir.path()), ["facts.json", "link"]);
        let (lost, round) = (dir.path().join("lost"), dir.path().join("round"));
        symlink("missing/facts.json", &lost).unwrap();
        symlink(&round, &round).unwrap();
        assert!(told(&lost).contains("there is no directory"));
        assert!(told(&round).contains("cannot be written"));
        assert_eq!(names(dir.path()), ["facts.json", "link", "lost", "round"]);
        check(Path::new("/dev/full")).unwrap();
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_mode_and_its_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("facts.json"), dir.path().join("latest"));
        write(&file, "first").unwrap();
        let number = |path: &Path| fs::metadata(path).unwrap().ino();
        let before = number(&file);
        // A hard link keeps the old file, and its number, from being used again.
        let old = dir.path().join("old");
        fs::hard_link(&file, &old).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o4600)).unwrap();
        write(&file, "second").unwrap();
        assert_ne!(number(&file), before, "it was not replaced");
        assert_eq!(
            (fs::read_to_string(&file).unwrap(), fs::read_to_string(&old).unwrap()),
            ("second".into(), "first".into())
        );
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        // Through a link it is written directly: the kernel decides whether the link may be followed.
        symlink(&file, &link).unwrap();
        let before = number(&file);
        write(&link, "third").unwrap();
        assert_eq!((fs::read_to_string(&file).unwrap(), number(&file)), ("third".into(), before));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(names(dir.path()), ["facts.json", "latest", "old"]);
        let full = format!("{:#}", write(Path::new("/dev/full"), "text").unwrap_err());
        assert!(full.contains("/dev/full") && full.contains("No space left"), "{full}");
    }
}
