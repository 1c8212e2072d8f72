//! Sockets: made, connected, closed; and what goes to the kernel by number.

use std::os::fd::RawFd;

use libc::{c_int, c_long, sockaddr, socklen_t};
use unslow_bypass::endpoint;
use unslow_bypass::sockets::fds::{self, Entry};
use unslow_bypass::sockets::streams::{before_close, carried, ring};
use unslow_bypass::sockets::world::Arrived;
use unslow_bypass::sockets::{epoll, errno, handing, set_errno, wanted, world};

use crate::real;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(family: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { real::socket(family, kind, protocol) };
    if fd >= 0 && matches!(family, libc::AF_INET | libc::AF_INET6) {
        handing::made(fd);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: passed on as they came; what `listen` asks of its caller, this call asks of its own.
    let done = unsafe { real::listen(fd, backlog) };
    if done == 0 {
        world::listening(fd);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { accept4(fd, addr, len, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int {
    let (nonblocking, on_exec) = (flags & libc::SOCK_NONBLOCK != 0, flags & libc::SOCK_CLOEXEC != 0);
    let lent = matches!(fds::get(fd), Some(Entry::Listener(_))).then(|| world::accept_lent(fd, nonblocking, on_exec));
    let new = match lent.flatten() {
        // SAFETY: passed on as they came; what `accept4` asks of its caller, this call asks of its own.
        None => unsafe { real::accept4(fd, addr, len, flags) },
        Some(arrived) => {
            let new = match arrived {
                Arrived::Carried(new) | Arrived::Tcp(new) => new,
                Arrived::None => {
                    set_errno(libc::EAGAIN);
                    return -1;
                }
            };
            if !addr.is_null() && !len.is_null() {
                // SAFETY: room for an address of that length, as for `accept4`.
                let named = unsafe { libc::syscall(libc::SYS_getpeername, new, addr, len) } == 0;
                if !named {
                    // Reset just now: no address rather than an old one.
                    // SAFETY: the caller's, as above.
                    unsafe { *len = 0 };
                }
            }
            if matches!(arrived, Arrived::Carried(_)) {
                return new;
            }
            new
        }
    };
    if new >= 0 && fds::get(new).is_some() {
        before_close(new); // it was closed behind our back
    }
    if new >= 0 && matches!(fds::get(fd), Some(Entry::Listener(_))) {
        world::accepted(new, nonblocking);
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: passed on as they came; what `connect` asks of its caller, this call asks of its own.
    let done = unsafe { real::connect(fd, addr, len) };
    let errno = errno();
    let under_way = done != 0 && errno == libc::EINPROGRESS;
    if !world::settings().client || !(done == 0 || under_way) || addr.is_null() {
        return done;
    }
    // SAFETY: the kernel has just read it.
    let family = c_int::from(unsafe { (*addr).sa_family });
    if matches!(family, libc::AF_INET | libc::AF_INET6) && !fds::is_in_set(fd) && endpoint::is_tcp(fd) {
        // Asked again while the first one was under way; else it was closed behind our back and is another one.
        if fds::stream(fd).is_some_and(|s| world::is_still(s, fd)) {
            set_errno(errno);
            return done;
        }
        // Whoever else has this socket would be left with a silent one.
        let alone = handing::is_alone(fd);
        before_close(fd);
        // Over loopback the handshake is over before connect says that it has begun.
        if alone {
            world::connected(fd);
        }
    }
    set_errno(errno);
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    before_close(fd);
    // SAFETY: passed on as they came; what `close` asks of its caller, this call asks of its own.
    unsafe { real::close(fd) }
}

/// libuv closes descriptors so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    match number {
        libc::SYS_close => before_close(a as RawFd),
        // Programs that can do without it do; what goes past the C library could not be followed.
        libc::SYS_io_uring_setup if wanted() => {
            set_errno(libc::ENOSYS);
            return -1;
        }
        _ => {}
    }
    // SAFETY: the system call asks of these words what `syscall` asks of its caller.
    let result = unsafe { raw_syscall(number, [a, b, c, d, e, f]) };
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

#[cfg(target_arch = "x86_64")]
unsafe fn raw_syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: the caller's; the kernel keeps all registers but these.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d,
            in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _, options(nostack)
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn raw_syscall(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let result;
    // SAFETY: the caller's; the kernel keeps all registers but the first.
    unsafe {
        std::arch::asm!(
            "svc 0", inlateout("x0") a => result, in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            in("x8") number, options(nostack)
        );
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    if let Some((stream, link)) = carried(fd) {
        if matches!(how, libc::SHUT_RD | libc::SHUT_RDWR) {
            link.shut_read();
        }
        if matches!(how, libc::SHUT_WR | libc::SHUT_RDWR) {
            ring(stream, link.shut_write());
        }
        epoll::look_again(stream);
        if stream.is_of_stack() {
            return 0; // the stack has bytes to send yet
        }
    }
    // SAFETY: passed on as they came; what `shutdown` asks of its caller, this call asks of its own.
    unsafe { real::shutdown(fd, how) }
}
