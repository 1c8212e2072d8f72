//! Where engines and what else was fetched or built lies.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// `UNSLOW_CACHE`, or `unslow` in the user's cache directory.
pub fn cache_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("UNSLOW_CACHE").filter(|d| !d.is_empty()) {
        return std::path::absolute(&dir).unwrap_or_else(|_| dir.into());
    }
    let base = std::env::var_os("XDG_CACHE_HOME")
        .filter(|d| !d.is_empty())
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")));
    static OWN: OnceLock<PathBuf> = OnceLock::new();
    // SAFETY: geteuid has no preconditions.
    let own = || OWN.get_or_init(|| own_directory(&std::env::temp_dir(), unsafe { libc::geteuid() })).clone();
    base.unwrap_or_else(own).join("unslow")
}

/// A directory in one that all users may write to, for a user without a home. Programs and libraries are run from it:
/// one that somebody else has made or may write to is passed over for one with a name that nobody could know.
fn own_directory(shared: &Path, user: u32) -> PathBuf {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path).is_ok();
    let path = shared.join(format!("unslow-{user}"));
    let ours = || fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir() && m.uid() == user && m.mode() & 0o022 == 0);
    if make(&path) || ours() {
        return path;
    }
    let made = tempfile::Builder::new().prefix(&format!("unslow-{user}-")).tempdir_in(shared);
    made.map_or(path, tempfile::TempDir::keep)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_run_from_a_directory_that_another_user_made_or_may_write_to() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let shared = tempfile::tempdir().unwrap();
        // SAFETY: geteuid has no preconditions.
        let user = unsafe { libc::geteuid() };
        let path = shared.path().join(format!("unslow-{user}"));
        assert_eq!(own_directory(shared.path(), user), path);
        assert_eq!(own_directory(shared.path(), user), path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
        assert_ne!(own_directory(shared.path(), user), path);
        // A link, whoever made it.
        fs::remove_dir(&path).unwrap();
        symlink(shared.path(), &path).unwrap();
        assert_ne!(own_directory(shared.path(), user), path);
        // Another user's.
        let other = shared.path().join("unslow-4242");
        fs::create_dir(&other).unwrap();
        assert_ne!(own_directory(shared.path(), 4242), other);
    }
}
