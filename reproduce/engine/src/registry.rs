//! What this process has started and made, for the way out by Ctrl-C: whatever is running, it goes with us.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use crate::error::Error;

/// Every pid and directory of this process's servers, for the way out by Ctrl-C.
static RUNNING: Mutex<BTreeSet<(u32, PathBuf)>> = Mutex::new(BTreeSet::new());

/// Kills every server this process started and removes its directory. For a signal handler's thread: afterwards
/// the process should exit.
pub fn stop_all() {
    STOPPING.store(true, Ordering::SeqCst);
    // Whoever makes something holds the lock: it is on the list, or was refused.
    let all = std::mem::take(&mut *RUNNING.lock().unwrap_or_else(|e| e.into_inner()));
    for (pid, dir) in all {
        if pid != 0 {
            // SAFETY: a pid leaves the registry within a moment of being reaped, so this one is still ours; the server
            // leads a process group, and its saving child goes with it.
            unsafe {
                libc::kill(-(pid as i32), libc::SIGKILL);
            }
        }
        // A child that was just killed may still be creating its last file.
        for _ in 0..20 {
            if fs::remove_dir_all(&dir).is_ok() || !dir.exists() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Set by [`stop_all`]: nothing may be started any more.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Makes something on disk, unless [`stop_all`] has begun: nothing is made behind its back. Fails then, and where
/// `make` does.
pub fn unless_stopping<T>(make: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let _running = RUNNING.lock().unwrap_or_else(|e| e.into_inner());
    if STOPPING.load(Ordering::SeqCst) { Err(Error::interrupted()) } else { make() }
}

/// Makes a directory that [`stop_all`] removes.
pub fn make_registered<T>(make: impl FnOnce() -> Result<(T, PathBuf), Error>) -> Result<T, Error> {
    let mut running = RUNNING.lock().unwrap_or_else(|e| e.into_inner());
    if STOPPING.load(Ordering::SeqCst) {
        return Err(Error::interrupted());
    }
    let (made, dir) = make()?;
    running.insert((0, dir));
    Ok(made)
}

/// A temporary directory that [`stop_all`] removes, should it come first.
pub struct WorkDir(TempDir);

impl WorkDir {
    /// Fails where `make` does, and after [`stop_all`] has begun.
    pub fn make(make: impl FnOnce() -> Result<TempDir, Error>) -> Result<WorkDir, Error> {
        make_registered(|| {
            let dir = make()?;
            let path = dir.path().to_path_buf();
            Ok((WorkDir(dir), path))
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for WorkDir {
    fn drop(&mut self) {
        unregister(0, self.0.path());
    }
}

/// Has `dir` removed by [`stop_all`]; pid 0 is a directory without a server.
pub fn register(pid: u32, dir: &Path) {
    RUNNING.lock().unwrap_or_else(|e| e.into_inner()).insert((pid, dir.into()));
}

/// The opposite.
pub fn unregister(pid: u32, dir: &Path) {
    RUNNING.lock().unwrap_or_else(|e| e.into_inner()).remove(&(pid, dir.into()));
}

/// Starts a server, unless [`stop_all`] has begun: it is on the list, or was never started.
pub fn start(dir: &Path, spawn: impl FnOnce() -> Result<Child, Error>) -> Result<Child, Error> {
    let mut running = RUNNING.lock().unwrap_or_else(|e| e.into_inner());
    if STOPPING.load(Ordering::SeqCst) {
        return Err(Error::interrupted());
    }
    let child = spawn()?;
    running.insert((child.id(), dir.into()));
    Ok(child)
}
