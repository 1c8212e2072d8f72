//! Where the store's files live: a directory, or memory that can be full, for tests.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::frame::FileKind;

/// What the store asks of a file system. Names have no directories in them.
pub trait Disk {
    fn names(&self) -> io::Result<Vec<String>>;
    fn size(&self, name: &str) -> io::Result<u64>;
    /// At most `bytes` bytes from `at` on; fewer at the end of the file.
    fn read(&self, name: &str, at: u64, bytes: u64) -> io::Result<Vec<u8>>;
    /// Writes at the end; a file that does not exist is created. After an error any part may have been written.
    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()>;
    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()>;
    /// Returns when the file would survive a loss of power.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    fn remove(&mut self, name: &str) -> io::Result<()>;
}

const LOCK: &str = "lock";

/// A directory of a real file system. It holds the writer's lock, if it was opened for writing.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// `path` is one segment, which stands for a directory with nothing else in it.
    is_file: bool,
    /// Held, not read: the system lets go of the lock when it is dropped.
    _lock: Option<File>,
    /// The file written last: a writer appends to the same one for minutes.
    last: Option<(String, File)>,
}

impl Directory {
    /// For reading: creates nothing and takes no lock. `path` may also be a single segment.
    pub fn open(path: impl AsRef<Path>) -> Directory {
        let path = path.as_ref().to_path_buf();
        Directory { is_file: path.is_file(), path, _lock: None, last: None }
    }

    /// Whether a file of this name holds finished chunks.
    pub fn is_segment(name: &str) -> bool {
        FileKind::Segment.number(name).is_some()
    }

    fn place(&self, name: &str) -> PathBuf {
        if self.is_file { self.path.clone() } else { self.path.join(name) }
    }

    /// To write: created if need be, and this process's alone until it is dropped.
    pub fn locked(path: impl AsRef<Path>) -> Result<Directory, Error> {
        let mut directory = Directory::open(path);
        let failed = |doing| move |source| Error::io(doing, LOCK, source);
        fs::create_dir_all(&directory.path).map_err(failed("create the directory of"))?;
        let lock = directory.path.join(LOCK);
        let opened = private().read(true).write(true).truncate(false).open(&lock);
        let mut file = opened.map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&lock).unwrap_or_default().trim().to_string();
                return Err(Error::Locked { dir: directory.path, holder });
            }
            Err(TryLockError::Error(source)) => return Err(Error::io("lock", LOCK, source)),
        }
        // The lock is what counts. On a full disk the number is missing, and recording starts all the same.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        directory._lock = Some(file);
        Ok(directory)
    }

    fn is_last(&self, name: &str) -> bool {
        self.last.as_ref().is_some_and(|(last, _)| last == name)
    }

    fn file(&mut self, name: &str) -> io::Result<&mut File> {
        if !self.is_last(name) {
            let file = private().append(true).open(self.path.join(name))?;
            self.last = Some((name.to_string(), file));
        }
        self.last.as_mut().map(|(_, file)| file).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

/// Creates what is not there. What a server says of its clients is for the owner and the group.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).mode(0o640);
    options
}

impl Disk for Directory {
    fn names(&self) -> io::Result<Vec<String>> {
        if self.is_file {
            return Ok(vec![FileKind::Segment.name(0)]);
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        Ok(fs::metadata(self.place(name))?.len())
    }

    fn read(&self, name: &str, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.place(name))?;
        file.seek(SeekFrom::Start(at))?;
        let mut out = Vec::new();
        file.take(bytes).read_to_end(&mut out)?;
        Ok(out)
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.file(name)?.write_all(bytes)
    }

    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        self.file(name)?.set_len(bytes)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data()?;
        // A new file's name is in the directory, which is synced like a file.
        File::open(&self.path)?.sync_all()
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        if self.is_last(name) {
            self.last = None;
        }
        fs::remove_file(self.path.join(name))
    }
}

/// Files in memory. A clone is what a kill at that moment would leave behind.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub files: BTreeMap<String, Vec<u8>>,
    /// How many bytes fit; what is over fails as on a full disk, after the part that fits was written.
    pub limit: Option<usize>,
}

impl Memory {
    pub fn used(&self) -> usize {
        self.files.values().map(Vec::len).sum()
    }

    fn file(&self, name: &str) -> io::Result<&Vec<u8>> {
        self.files.get(name).ok_or_else(|| ErrorKind::NotFound.into())
    }
}

impl Disk for Memory {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files.keys().cloned().collect())
    }

    fn size(&self, name: &str) -> io::Result<u64> {
        Ok(self.file(name)?.len() as u64)
    }

    fn read(&self, name: &str, at: u64, bytes: u64) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        let start = usize::try_from(at).unwrap_or(usize::MAX).min(file.len());
        let rest = &file[start..];
        Ok(rest[..usize::try_from(bytes).unwrap_or(usize::MAX).min(rest.len())].to_vec())
    }

    fn append(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let room = self.limit.map_or(usize::MAX, |limit| limit.saturating_sub(self.used()));
        let fits = &bytes[..bytes.len().min(room)];
        self.files.entry(name.to_string()).or_default().extend_from_slice(fits);
        if fits.len() < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn truncate(&mut self, name: &str, bytes: u64) -> io::Result<()> {
        let file = self.files.get_mut(name).ok_or(ErrorKind::NotFound)?;
        file.truncate(usize::try_from(bytes).unwrap_or(usize::MAX));
        Ok(())
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name).map(drop)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.files.remove(name).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }
}
