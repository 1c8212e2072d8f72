//! Where labs keep their files, and who holds one.
//!
//! A lab's directory is one that this user owns, that nobody else may write to, and that holds an owner file of ours;
//! nothing else in the directory of labs is ever touched. The owner file says which process holds the lab: its number,
//! when it started and in which boot, so that neither a number used again nor a reboot makes a stranger the holder.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use unslow_engine::Error;

const MAGIC: &str = "unslow-lab";

/// Where labs keep their files: `UNSLOW_LABS`, or a directory of this user's in the temporary directory. Absolute: a
/// holder has another working directory than the command that started it.
pub fn labs_dir() -> PathBuf {
    let dir = std::env::var_os("UNSLOW_LABS").map_or_else(
        || {
            // Inside a user namespace we are root; the directory is that of the user outside.
            let uid = outer_uid().unwrap_or_else(own_uid);
            std::env::temp_dir().join(format!("unslow-labs-{uid}"))
        },
        PathBuf::from,
    );
    std::path::absolute(&dir).unwrap_or(dir)
}

fn own_uid() -> u32 {
    // SAFETY: takes nothing, cannot fail.
    unsafe { libc::geteuid() }
}

fn outer_uid() -> Option<u32> {
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    let mut words = map.split_whitespace();
    let (inside, outside, count) = (words.next()?, words.next()?, words.next()?);
    (inside == "0" && count == "1").then(|| outside.parse().ok())?
}

/// Whether a path is a directory of our own that nobody else may write to.
fn is_ours(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| m.is_dir() && m.uid() == own_uid() && m.mode() & 0o022 == 0)
}

/// Who holds a lab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Process id.
    pub pid: u32,
    started: String,
    boot: String,
    /// Where the number means this process: containers share directories, and count their own processes.
    namespace: String,
}

impl Owner {
    fn own() -> Owner {
        let pid = std::process::id();
        Owner { pid, started: started_at(pid).unwrap_or_default(), boot: boot(), namespace: namespace() }
    }

    /// Whether it still lives; one that cannot be seen from here may.
    pub fn lives(&self) -> bool {
        self.boot == boot() && (self.namespace != namespace() || started_at(self.pid).as_ref() == Some(&self.started))
    }

    /// Whether the machine has not been started again since.
    pub fn of_this_boot(&self) -> bool {
        self.boot == boot()
    }

    fn read(dir: &Path) -> Option<Owner> {
        if !is_ours(dir) {
            return None;
        }
        let text = fs::read_to_string(dir.join("owner")).ok()?;
        let words: Vec<&str> = text.split_whitespace().collect();
        match words[..] {
            [MAGIC, pid, started, boot, namespace] => Some(Owner {
                pid: pid.parse().ok()?,
                started: started.into(),
                boot: boot.into(),
                namespace: namespace.into(),
            }),
            _ => None,
        }
    }
}

fn namespace() -> String {
    fs::read_link("/proc/self/ns/pid").map_or("unknown".into(), |link| link.display().to_string())
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_string()
}

/// Start time of a process in clock ticks since boot; none of a dead one.
pub fn started_at(pid: u32) -> Option<String> {
    let stat = unslow_process::stat(pid)?;
    // A zombie holds nothing any more.
    (!matches!(stat.state, 'Z' | 'X')).then(|| stat.starttime.to_string())
}

/// Every lab's directory with its owner.
pub fn all() -> Vec<(PathBuf, Owner)> {
    let base = labs_dir();
    if !is_ours(&base) {
        return Vec::new();
    }
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    // One that begins with a dot is still being made.
    let made = entries.filter(|e| !e.file_name().to_string_lossy().starts_with('.'));
    made.filter_map(|e| Some((e.path(), Owner::read(&e.path())?))).collect()
}

/// A lab's directory, removed on drop and by Ctrl-C.
pub struct Directory(pub PathBuf);

impl Directory {
    /// Makes one, with its owner file in it from the start.
    pub fn make(name: &str) -> Result<Directory, Error> {
        unslow_engine::make_registered(|| {
            let dir = Directory::put_in_place(name)?;
            Ok((Directory(dir.clone()), dir))
        })
    }

    fn put_in_place(name: &str) -> Result<PathBuf, Error> {
        let base = labs_dir();
        let io = |e: io::Error| {
            Error::new(format!(
                "{}: {e}; the lab keeps its files there; set UNSLOW_LABS to another directory",
                base.display()
            ))
        };
        let private = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path);
        // Another lab on its way down may remove the empty base between two steps.
        let mut tries = 0;
        let aside = loop {
            tries += 1;
            match private(&base) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io(e)),
                _ => {}
            }
            // Somebody else's directory under our name in /tmp is no place for sockets and data.
            if base.exists() && !is_ours(&base) {
                return Err(Error::new(format!(
                    "{} belongs to another user, or others may write to it; set UNSLOW_LABS to another directory",
                    base.display()
                )));
            }
            let aside = base.join(format!(".{name}-{}", std::process::id()));
            match private(&aside) {
                Ok(()) => break aside,
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < 10 => {}
                Err(e) => return Err(io(e)),
            }
        };
        let own = Owner::own();
        let text = format!("{MAGIC} {} {} {} {}\n", own.pid, own.started, own.boot, own.namespace);
        let dir = base.join(name);
        let taken = || {
            Error::new(format!(
                "there is a lab named {name:?} already; try: unslow lab ls, unslow lab down {name}, or another --name"
            ))
        };
        // rename replaces an empty directory, and refuses one that holds anything.
        let made = if dir.exists() {
            Err(taken())
        } else {
            fs::write(aside.join("owner"), text)
                .and_then(|()| fs::rename(&aside, &dir))
                .map_err(|e| if dir.exists() { taken() } else { io(e) })
        };
        if let Err(e) = made {
            let _ = fs::remove_dir_all(&aside);
            forget_empty_dir();
            return Err(e);
        }
        Ok(dir)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
        unslow_engine::unregister(0, &self.0);
        forget_empty_dir();
    }
}

/// Removes the directory of all labs where the last one has gone, unless the user named it.
pub fn forget_empty_dir() {
    if std::env::var_os("UNSLOW_LABS").is_none() {
        let _ = fs::remove_dir(labs_dir()); // refused while anything is in it
    }
}
