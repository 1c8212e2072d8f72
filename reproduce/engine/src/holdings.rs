//! What the cache holds, and its removal. Only what unslow itself puts there is ever removed.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cache::cache_dir;
use crate::kafka::KAFKA_VERSION;
use crate::{CATALOG, Error};

/// The evidence of drills and cases, in the cache.
const EVIDENCE: &str = "evidence";

/// Where drills and cases keep their evidence, unless they are told otherwise.
pub fn evidence_dir() -> PathBuf {
    cache_dir().join(EVIDENCE)
}

/// What a part of the cache is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Real servers, and Kafka: fetched, and a source built for minutes.
    Engine,
    /// Client libraries that drills and tests run.
    Clients,
    /// What drills and cases found.
    Evidence,
    /// Libraries that servers and clients are preloaded with.
    Library,
    /// An installation that was broken off.
    Unfinished,
}

/// A file or a directory in the cache.
#[derive(Clone, Debug)]
pub struct Holding {
    pub purpose: Purpose,
    pub path: PathBuf,
    /// On disk, as the file system counts.
    pub bytes: u64,
    /// A process that runs it, has it open, or was started with it.
    pub used_by: Option<u32>,
}

/// Everything in the cache. Fails if the directory also holds anything that is not unslow's: it is then shared with
/// other uses, and a folder with one of our names may belong to the user.
pub fn holdings() -> Result<Vec<Holding>, Error> {
    let (cache, mut found, mut foreign) = (cache_dir(), Vec::new(), Vec::new());
    let is_installing = is_installing(&cache.join("engines"));
    for path in entries(&cache) {
        let name = name_of(&path);
        match name.as_str() {
            "engines" => found.extend(entries(&path).into_iter().filter_map(|path| engine(&path))),
            "drivers" | "clients" => found.push((Purpose::Clients, path)),
            EVIDENCE => found.push((Purpose::Evidence, path)),
            name if name.starts_with("libunslow_") => found.push((Purpose::Library, path)),
            name if name.starts_with(".shim-") => found.push((Purpose::Unfinished, path)),
            _ => foreign.push(name),
        }
    }
    if let Some(name) = foreign.first() {
        return Err(Error::new(format!(
            "{}: it also holds {name}, which is not unslow's, so nothing was removed; give unslow a directory of its \
             own (UNSLOW_CACHE)",
            cache.display()
        )));
    }
    found.retain(|(purpose, _)| *purpose != Purpose::Unfinished || !is_installing);
    let used = in_use(&cache);
    let holding = |(purpose, path): (Purpose, PathBuf)| {
        let user = used.iter().find(|(_, text)| contains(text, path.as_os_str().as_bytes()));
        Holding { purpose, bytes: bytes_of(&path), used_by: user.map(|(pid, _)| *pid), path }
    };
    Ok(found.into_iter().map(holding).collect())
}

/// Of the directory of engines; files such as locks are none.
fn engine(path: &Path) -> Option<(Purpose, PathBuf)> {
    let name = name_of(path);
    let is_known = CATALOG.iter().any(|entry| entry.name == name) || name == format!("kafka-{KAFKA_VERSION}");
    let purpose = match name.starts_with(".install-") {
        true => Purpose::Unfinished,
        false if is_known => Purpose::Engine,
        false => return None,
    };
    Some((purpose, path.to_path_buf()))
}

/// Whether an installation is in progress.
fn is_installing(engines: &Path) -> bool {
    let locks = entries(engines).into_iter().filter(|path| path.extension().is_some_and(|end| end == "lock"));
    locks.filter_map(|path| fs::File::open(path).ok()).any(|lock| lock.try_lock().is_err())
}

impl Holding {
    /// Removes it from the disk. What a process uses stays.
    pub fn remove(&self) -> Result<(), Error> {
        if let Some(pid) = self.used_by {
            return Err(Error::new(format!("{} is used by process {pid}; end that first", self.path.display())));
        }
        let is_dir = fs::symlink_metadata(&self.path).is_ok_and(|at| at.is_dir());
        let removed = if is_dir { fs::remove_dir_all(&self.path) } else { fs::remove_file(&self.path) };
        removed.map_err(|e| Error::new(format!("{}: {e}", self.path.display())))
    }
}

fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort();
    all
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Links are not followed.
fn bytes_of(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(at) = fs::symlink_metadata(path) else { return 0 };
    let inside = if at.is_dir() { entries(path).iter().map(|path| bytes_of(path)).sum() } else { 0 };
    at.blocks() * 512 + inside
}

/// For each process that uses the cache, as far as this user may look at it: what it has mapped and open, and what it
/// was started with. Our own process is left out.
fn in_use(cache: &Path) -> Vec<(u32, Vec<u8>)> {
    let ours = std::process::id();
    let pids = entries(Path::new("/proc")).into_iter().filter_map(|path| name_of(&path).parse::<u32>().ok());
    let text = |pid: u32| {
        let read = |what: &str| fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let open = entries(Path::new(&format!("/proc/{pid}/fd")));
        let links = open.into_iter().chain([format!("/proc/{pid}/cwd").into()]);
        let places =
            links.filter_map(|link| fs::read_link(link).ok()).map(|place| place.as_os_str().as_bytes().to_vec());
        [read("maps"), read("environ"), read("cmdline")].into_iter().chain(places).collect::<Vec<_>>().join(&b'\n')
    };
    let texts = pids.filter(|pid| *pid != ours).map(|pid| (pid, text(pid)));
    texts.filter(|(_, text)| contains(text, cache.as_os_str().as_bytes())).collect()
}

/// Whether the text names this path, or something beneath it.
fn contains(text: &[u8], path: &[u8]) -> bool {
    let ends = |at: usize| text.get(at + path.len()).is_none_or(|next| matches!(next, b'/' | b'\n' | 0 | b':' | b' '));
    text.windows(path.len().max(1)).enumerate().any(|(at, part)| part == path && ends(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_named_whole() {
        let text = b"7f00-7f01 r-xp 0 08:01 9 /c/engines/valkey-9.1/bin\0LD_PRELOAD=/c/libunslow_a.so:/x\n/c/clients";
        for (path, is_named) in [
            ("/c/engines/valkey-9.1", true),
            ("/c/engines/valkey-9", false),
            ("/c/libunslow_a.so", true),
            ("/c/clients", true),
            ("/c/client", false),
            ("/c/evidence", false),
        ] {
            assert_eq!(contains(text, path.as_bytes()), is_named, "{path}");
        }
    }
}
