//! Where a process sits: network and mount namespaces of its own, and a disk that is a tmpfs of bounded size.
//!
//! A seat is held by descriptors alone. When the process that holds them ends, by whatever signal, and the servers in
//! it with it, the kernel takes namespaces, devices and mounts away: nothing has a name that could be left behind.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place for processes.
pub struct Seat {
    net: File,
    mount: File,
    /// The disk's directory as the seat's processes see it.
    disk: PathBuf,
    /// The same, held open, as everybody else sees it.
    held: File,
}

impl Seat {
    /// Makes one: namespaces, loopback up by `configure`, and a tmpfs of `bytes` at `disk`, a directory that exists.
    ///
    /// `configure` runs inside, on a thread of its own, before anybody else can be there.
    pub fn make(
        disk: &Path,
        bytes: u64,
        hosts_file: Option<&Path>,
        configure: impl FnOnce() -> io::Result<()> + Send,
    ) -> io::Result<Seat> {
        on_thread(|| {
            unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS)?;
            // Nothing mounted here may show outside.
            mount("none", Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")?;
            mount("unslow", disk, Some("tmpfs"), 0, &format!("size={bytes},mode=0700"))?;
            if let Some(file) = hosts_file
                && Path::new("/etc/hosts").exists()
            {
                mount(&file.display().to_string(), Path::new("/etc/hosts"), None, libc::MS_BIND, "")?;
            }
            configure()?;
            Ok(Seat {
                net: File::open("/proc/thread-self/ns/net")?,
                mount: File::open("/proc/thread-self/ns/mnt")?,
                disk: disk.into(),
                held: File::open(disk)?,
            })
        })
    }

    /// Runs `body` inside its network, on a thread of its own: sockets made there stay there.
    pub fn run<T: Send>(&self, body: impl FnOnce() -> T + Send) -> io::Result<T> {
        on_thread(|| {
            self.enter()?;
            Ok(body())
        })
    }

    /// Moves the calling thread into its network for good.
    pub fn enter(&self) -> io::Result<()> {
        setns(&self.net, libc::CLONE_NEWNET)
    }

    /// Has a command start inside, in `dir`, a path as seen inside; it sees and may do there what we may.
    pub fn place(&self, command: &mut Command, dir: &Path) -> io::Result<()> {
        let (net, mount) = (self.net.as_raw_fd(), self.mount.as_raw_fd());
        let dir = CString::new(dir.as_os_str().as_bytes())?;
        // SAFETY: setns and chdir are async-signal-safe; the descriptors are inherited over fork and closed by exec,
        // and the seat outlives the spawn because the caller holds it.
        unsafe {
            command.pre_exec(move || {
                let entered = libc::setns(net, libc::CLONE_NEWNET) == 0
                    && libc::setns(mount, libc::CLONE_NEWNS) == 0
                    && libc::chdir(dir.as_ptr()) == 0;
                if entered { Ok(()) } else { Err(io::Error::last_os_error()) }
            });
        }
        Ok(())
    }

    /// The same for a server, which listens without a password where others on this machine may reach it: it can write
    /// to its own disk alone, and has no privileges even where we are root. Kernels before 5.12 cannot make a whole
    /// tree read-only; there it stays as it is.
    pub fn place_server(&self, command: &mut Command, dir: &Path) -> io::Result<()> {
        self.place(command, dir)?;
        let disk = CString::new(self.disk.as_os_str().as_bytes())?;
        // SAFETY: system calls only, with strings made before the fork and structs on the stack.
        unsafe {
            command.pre_exec(move || {
                if libc::unshare(libc::CLONE_NEWNS) == 0 {
                    let read_only = MountAttributes { set: MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
                    let writable = MountAttributes { clear: MOUNT_ATTR_RDONLY, ..MountAttributes::default() };
                    for (path, recursive, attributes) in
                        [(c"/".as_ptr(), libc::AT_RECURSIVE, read_only), (disk.as_ptr(), 0, writable)]
                    {
                        libc::syscall(
                            libc::SYS_mount_setattr,
                            libc::AT_FDCWD,
                            path,
                            recursive,
                            std::ptr::from_ref(&attributes),
                            size_of::<MountAttributes>(),
                        );
                    }
                }
                libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NOROOT_LOCKED);
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                Ok(())
            });
        }
        Ok(())
    }

    /// Limits the disk to `bytes`; `None` is what it holds now, so that not one page more fits.
    pub fn limit_disk(&self, bytes: Option<u64>) -> io::Result<()> {
        let bytes = match bytes {
            Some(bytes) => bytes,
            None => self.used()?.max(4096),
        };
        on_thread(|| {
            unshare(libc::CLONE_FS)?;
            setns(&self.mount, libc::CLONE_NEWNS)?;
            mount("unslow", &self.disk, Some("tmpfs"), libc::MS_REMOUNT, &format!("size={bytes}"))
        })
    }

    /// Bytes on the disk.
    pub fn used(&self) -> io::Result<u64> {
        let stat = self.stat()?;
        Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    }

    /// Bytes that fit on it.
    pub fn size(&self) -> io::Result<u64> {
        let stat = self.stat()?;
        Ok(stat.f_blocks * stat.f_frsize)
    }

    fn stat(&self) -> io::Result<libc::statvfs> {
        // SAFETY: an all-zero statvfs is a valid value for the kernel to fill, and the descriptor is open.
        unsafe {
            let mut stat: libc::statvfs = std::mem::zeroed();
            if libc::fstatvfs(self.held.as_raw_fd(), &mut stat) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(stat)
        }
    }

    /// The disk's directory as the seat's processes see it.
    pub fn disk(&self) -> &Path {
        &self.disk
    }

    /// The disk's directory as this process, and others with the rights to look, see it.
    pub fn disk_from_outside(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.held.as_raw_fd()).into()
    }

    /// Paths under which others may enter: network, mounts.
    pub fn doors(&self) -> (PathBuf, PathBuf) {
        let fd = |f: &File| format!("/proc/{}/fd/{}", std::process::id(), f.as_raw_fd()).into();
        (fd(&self.net), fd(&self.mount))
    }
}

/// `struct mount_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MountAttributes {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

const MOUNT_ATTR_RDONLY: u64 = 1;
/// SECBIT_NOROOT and its lock: uid 0 gains no capabilities by exec.
const SECBIT_NOROOT_LOCKED: libc::c_ulong = 0b11;

/// Runs `body` on a thread that ends with it: whatever namespaces it enters, nobody else is moved.
fn on_thread<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| match scope.spawn(body).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: with these flags it changes the calling thread alone.
    if unsafe { libc::unshare(flags) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn setns(file: &File, kind: i32) -> io::Result<()> {
    // SAFETY: an open descriptor; it changes the calling thread alone.
    if unsafe { libc::setns(file.as_raw_fd(), kind) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn mount(source: &str, target: &Path, kind: Option<&str>, flags: libc::c_ulong, data: &str) -> io::Result<()> {
    let source = CString::new(source)?;
    let target_c = CString::new(target.as_os_str().as_bytes())?;
    let kind = kind.map(CString::new).transpose()?;
    let data = CString::new(data)?;
    // SAFETY: NUL-terminated strings that live over the call; a null type is allowed for binds and propagation.
    let done = unsafe {
        libc::mount(
            source.as_ptr(),
            target_c.as_ptr(),
            kind.as_ref().map_or(std::ptr::null(), |k| k.as_ptr()),
            flags,
            data.as_ptr().cast(),
        )
    };
    if done == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    Err(io::Error::new(e.kind(), format!("mount on {}: {e}", target.display())))
}
