//! The C library's own functions behind our names, found once.

use std::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, off64_t, pid_t, pollfd, sigset_t, size_t, sockaddr,
    socklen_t, ssize_t, timespec,
};

fn find(cache: &AtomicUsize, name: &CStr) -> usize {
    let known = cache.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    // SAFETY: a terminated name; the next object in the search order has it, or nobody.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    cache.store(found, Ordering::Relaxed);
    found
}

macro_rules! real {
    ($($name:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        /// The C library's function of that name.
        ///
        /// # Safety
        /// As that function's.
        #[inline]
        #[allow(non_snake_case)]
        pub unsafe fn $name($($arg: $type),*) -> $result {
            static CACHE: AtomicUsize = AtomicUsize::new(0);
            let name = const { match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name has no zero in it"),
            } };
            let found = find(&CACHE, name);
            if found == 0 {
                unslow_bypass::sockets::set_errno(libc::ENOSYS);
                return -1;
            }
            // SAFETY: the C library's function of that name has this type.
            let function: unsafe extern "C" fn($($type),*) -> $result = unsafe { std::mem::transmute(found) };
            // SAFETY: the caller's.
            unsafe { function($($arg),*) }
        }
    )*};
}

real! {
    socket(family: c_int, kind: c_int, protocol: c_int) -> c_int;
    listen(fd: c_int, backlog: c_int) -> c_int;
    accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    shutdown(fd: c_int, how: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(old: c_int, new: c_int) -> c_int;
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, arg: c_long) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, arg: *mut c_void) -> c_int;
    read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t;
    write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t;
    readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t;
    recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t;
    recvfrom(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> ssize_t;
    sendto(fd: c_int, buf: *const c_void, n: size_t, flags: c_int, addr: *const sockaddr, len: socklen_t) -> ssize_t;
    recvmsg(fd: c_int, header: *mut msghdr, flags: c_int) -> ssize_t;
    sendmsg(fd: c_int, header: *const msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int;
    preadv2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    pwritev2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t;
    splice(from: c_int, from_at: *mut off64_t, to: c_int, to_at: *mut off64_t, n: size_t, flags: c_uint) -> ssize_t;
    sendfile(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t;
    nanosleep(time: *const timespec, left: *mut timespec) -> c_int;
    clock_nanosleep(clock: libc::clockid_t, flags: c_int, time: *const timespec, left: *mut timespec) -> c_int;
    usleep(microseconds: c_uint) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_pwait(epfd: c_int, events: *mut epoll_event, max: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    pselect(n: c_int, r: *mut fd_set, w: *mut fd_set, e: *mut fd_set, t: *const timespec, m: *const sigset_t) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, new: c_int) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> isize;
    _Fork() -> pid_t;
}
