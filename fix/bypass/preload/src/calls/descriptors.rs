//! Calls about descriptors as numbers: closed in ranges, copied, kept over exec, handed to other processes and to
//! `stdio`.

use libc::{c_char, c_int, c_long, c_uint, c_ulong, c_void, pid_t};
use std::sync::atomic::Ordering;
use unslow_bypass::sockets::streams::{before_close, carried, named};
use unslow_bypass::sockets::{self, fds, handing, set_errno};

use crate::real;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = 4;
    for (fd, _) in fds::known(first as usize, (last as usize).saturating_add(1)) {
        if flags & CLOEXEC == 0 {
            before_close(fd);
        } else {
            handing::asked(fd, false);
        }
    }
    // SAFETY: passed on as they came; what `close_range` asks of its caller, this call asks of its own.
    unsafe { real::close_range(first, last, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: no pointers.
    unsafe { close_range(first.max(0) as c_uint, c_uint::MAX, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    // SAFETY: no pointers.
    let new = unsafe { real::dup(fd) };
    named(fd, new);
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(old: c_int, new: c_int) -> c_int {
    if old != new {
        before_close(new);
    }
    // SAFETY: no pointers.
    let done = unsafe { real::dup2(old, new) };
    named(old, done);
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if old != new {
        before_close(new);
    }
    // SAFETY: no pointers.
    let done = unsafe { real::dup3(old, new, flags) };
    named(old, done);
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int {
    if command == libc::F_SETFD && handing::asked(fd, arg as c_int & libc::FD_CLOEXEC == 0) {
        return 0;
    }
    // SAFETY: passed on as they came; what `fcntl` asks of its caller, this call asks of its own.
    let done = unsafe { real::fcntl(fd, command, arg) };
    if done >= 0 {
        match command {
            libc::F_SETFL => {
                if let Some(stream) = fds::stream(fd) {
                    stream.nonblocking.store(arg as c_int & libc::O_NONBLOCK != 0, Ordering::Relaxed);
                }
            }
            libc::F_GETFD => return handing::as_asked(fd, done),
            libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => named(fd, done),
            _ => {}
        }
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: c_long) -> c_int {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { fcntl(fd, command, arg) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    if request == libc::FIONREAD as c_ulong
        && !arg.is_null()
        && let Some((_, link)) = carried(fd)
    {
        // SAFETY: FIONREAD's argument is an int.
        unsafe { *arg.cast::<c_int>() = link.waiting().min(c_int::MAX as u64) as c_int };
        return 0;
    }
    let keep = request == libc::FIONCLEX as c_ulong;
    if (keep || request == libc::FIOCLEX as c_ulong) && handing::asked(fd, keep) {
        return 0;
    }
    // SAFETY: passed on as they came; what `ioctl` asks of its caller, this call asks of its own.
    let done = unsafe { real::ioctl(fd, request, arg) };
    if done == 0
        && request == libc::FIONBIO as c_ulong
        && !arg.is_null()
        && let Some(stream) = fds::stream(fd)
    {
        // SAFETY: FIONBIO's argument is an int.
        stream.nonblocking.store(unsafe { *arg.cast::<c_int>() } != 0, Ordering::Relaxed);
    }
    done
}

/// The program that is spawned gets a dead socket, where it would have got a connection that is carried here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int {
    let fd = if handing::decide(fd) {
        match handing::stand_in() {
            Some(dead) => dead,
            None => return libc::EMFILE,
        }
    } else {
        fd
    };
    // SAFETY: passed on as they came; this call asks of its caller what the C library's asks.
    unsafe { real::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// What `stdio` reads and writes goes past us: a connection that may still stay with TCP does, another is refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    if handing::decide(fd) {
        set_errno(libc::EOPNOTSUPP);
        return std::ptr::null_mut();
    }
    // SAFETY: passed on as they came; what `fdopen` asks of its caller, this call asks of its own.
    match unsafe { real::fdopen(fd, mode) } {
        -1 => std::ptr::null_mut(),
        file => file as *mut libc::FILE,
    }
}

/// `fork` without the functions that are to run in the child: ours runs all the same.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub unsafe extern "C" fn _Fork() -> pid_t {
    // SAFETY: no arguments.
    let pid = unsafe { real::_Fork() };
    if pid == 0 {
        sockets::in_child();
    }
    pid
}
