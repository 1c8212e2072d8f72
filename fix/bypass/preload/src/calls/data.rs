//! Calls that carry bytes: one buffer, one array of parts, or one message.

use libc::{MSG_ERRQUEUE, MSG_OOB, UIO_MAXIOV};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use unslow_bypass::link::Link;
use unslow_bypass::sockets::fds::Stream;
use unslow_bypass::sockets::streams::{bytes, carried, fail, put, put_all, room, take, take_parts, went_over_tcp};
use unslow_bypass::sockets::{flush, handing, pointers};

use crate::real;

/// A connection that is carried.
pub type Carried = (&'static Stream, &'static Link);

/// A connection whose bytes are read from its ring; `None` also for what the kernel alone has of it (the queue of
/// errors).
#[inline]
pub fn carried_for(fd: c_int, flags: c_int) -> Option<Carried> {
    if flags & MSG_ERRQUEUE != 0 { None } else { carried(fd) }
}

#[inline]
unsafe fn take_into((stream, link): Carried, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    if flags & MSG_OOB != 0 {
        return fail(libc::EINVAL); // as TCP says where nothing urgent is there
    }
    if !pointers::may_be_buffer(buf, n) {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's buffer, which may be written for as many bytes as it says.
    take(stream, link, unsafe { room(buf, n) }, flags)
}

#[inline]
unsafe fn put_from((stream, link): Carried, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    if flags & MSG_OOB != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    if !pointers::may_be_buffer(buf, n) {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's buffer, which may be read for as many bytes as it says.
    put(stream, link, unsafe { bytes(buf, n) }, flags)
}

/// `readv`, with flags as of `recvmsg`.
pub unsafe fn take_array((stream, link): Carried, parts: *const iovec, n: c_int, flags: c_int) -> ssize_t {
    // SAFETY: `parts` has `n` entries where it is not null: the caller's condition.
    match unsafe { pointers::check_parts(parts, n) } {
        // SAFETY: the parts are as many as is said, and each may be written: this call asks it of its caller.
        Ok(n) => unsafe { take_parts(stream, link, parts, n, flags) },
        Err(errno) => fail(errno),
    }
}

/// `writev`, with flags as of `sendmsg`.
pub unsafe fn put_array((stream, link): Carried, parts: *const iovec, n: c_int, flags: c_int) -> ssize_t {
    // SAFETY: `parts` has `n` entries where it is not null: the caller's condition.
    match unsafe { pointers::check_parts(parts, n) } {
        Ok(0) => 0,
        // SAFETY: the parts are as many as is said, and each may be read: this call asks it of its caller.
        Ok(n) => unsafe { put_all(stream, link, parts, n, flags) },
        Err(errno) => fail(errno),
    }
}

/// How many parts a message says it has, for the calls above, which find too many of them for themselves.
fn parts_of(header: &msghdr) -> Result<c_int, c_int> {
    if header.msg_iovlen > UIO_MAXIOV as usize { Err(libc::EMSGSIZE) } else { Ok(header.msg_iovlen as c_int) }
}

/// `recvmsg`.
pub unsafe fn take_message(ours: Carried, header: *mut msghdr, flags: c_int) -> ssize_t {
    if !pointers::may_be_buffer(header.cast::<c_void>(), size_of::<msghdr>()) {
        return fail(libc::EFAULT);
    }
    if flags & MSG_OOB != 0 {
        return fail(libc::EINVAL);
    }
    // SAFETY: the caller has a message header there that nobody else touches during the call.
    let header = unsafe { &mut *header };
    match parts_of(header) {
        Ok(n) => {
            (header.msg_flags, header.msg_namelen, header.msg_controllen) = (0, 0, 0);
            // SAFETY: the parts are as many as is said, and each may be written: this call asks it of its caller.
            unsafe { take_array(ours, header.msg_iov, n, flags) }
        }
        Err(errno) => fail(errno),
    }
}

/// `sendmsg`.
pub unsafe fn put_message(ours: Carried, header: *const msghdr, flags: c_int) -> ssize_t {
    if !pointers::may_be_buffer(header.cast::<c_void>(), size_of::<msghdr>()) {
        return fail(libc::EFAULT);
    }
    if flags & MSG_OOB != 0 {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: the caller has a message header there that nobody writes during the call.
    let header = unsafe { &*header };
    match parts_of(header) {
        // SAFETY: the parts are as many as is said, and each may be read: this call asks it of its caller.
        Ok(n) => unsafe { put_array(ours, header.msg_iov, n, flags) },
        Err(errno) => fail(errno),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn read(fd: c_int, buf: *mut c_void, n: size_t) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: `buf` may be written for `n` bytes: this call asks it of its caller.
        return unsafe { take_into(ours, buf, n, 0) };
    }
    flush();
    // SAFETY: passed on as they came; what `read` asks of its caller, this call asks of its own.
    let got = unsafe { real::read(fd, buf, n) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __read_chk(fd: c_int, buf: *mut c_void, n: size_t, _room: size_t) -> ssize_t {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { read(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, n: size_t) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: `buf` may be read for `n` bytes: this call asks it of its caller.
        return unsafe { put_from(ours, buf, n, 0) };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { write(fd, buf, n) };
    }
    // SAFETY: passed on as they came; what `write` asks of its caller, this call asks of its own.
    unsafe { real::write(fd, buf, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readv(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: the parts are as many as is said, and each may be written: this call asks it of its caller.
        return unsafe { take_array(ours, parts, n, 0) };
    }
    flush();
    // SAFETY: passed on as they came; what `readv` asks of its caller, this call asks of its own.
    let got = unsafe { real::readv(fd, parts, n) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn writev(fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: the parts are as many as is said, and each may be read: this call asks it of its caller.
        return unsafe { put_array(ours, parts, n, 0) };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { writev(fd, parts, n) };
    }
    // SAFETY: passed on as they came; what `writev` asks of its caller, this call asks of its own.
    unsafe { real::writev(fd, parts, n) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recv(fd: c_int, buf: *mut c_void, n: size_t, flags: c_int) -> ssize_t {
    if let Some(ours) = carried_for(fd, flags) {
        // SAFETY: `buf` may be written for `n` bytes: this call asks it of its caller.
        return unsafe { take_into(ours, buf, n, flags) };
    }
    flush();
    // SAFETY: passed on as they came; what `recv` asks of its caller, this call asks of its own.
    let got = unsafe { real::recv(fd, buf, n, flags) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recv_chk(fd: c_int, buf: *mut c_void, n: size_t, _r: size_t, flags: c_int) -> ssize_t {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { recv(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn send(fd: c_int, buf: *const c_void, n: size_t, flags: c_int) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: `buf` may be read for `n` bytes: this call asks it of its caller.
        return unsafe { put_from(ours, buf, n, flags) };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { send(fd, buf, n, flags) };
    }
    // SAFETY: passed on as they came; what `send` asks of its caller, this call asks of its own.
    unsafe { real::send(fd, buf, n, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    if let Some(ours) = carried_for(fd, flags) {
        if !len.is_null() {
            // SAFETY: not null, and this call asks for a writable length there; a stream names nobody.
            unsafe { *len = 0 };
        }
        // SAFETY: `buf` may be written for `n` bytes: this call asks it of its caller.
        return unsafe { take_into(ours, buf, n, flags) };
    }
    flush();
    // SAFETY: passed on as they came; what `recvfrom` asks of its caller, this call asks of its own.
    let got = unsafe { real::recvfrom(fd, buf, n, flags, addr, len) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    n: size_t,
    _room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> ssize_t {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { recvfrom(fd, buf, n, flags, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendto(
    fd: c_int,
    buf: *const c_void,
    n: size_t,
    flags: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: `buf` may be read for `n` bytes: this call asks it of its caller.
        return unsafe { put_from(ours, buf, n, flags) };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { sendto(fd, buf, n, flags, addr, len) };
    }
    // SAFETY: passed on as they came; what `sendto` asks of its caller, this call asks of its own.
    unsafe { real::sendto(fd, buf, n, flags, addr, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmsg(fd: c_int, header: *mut msghdr, flags: c_int) -> ssize_t {
    if let Some(ours) = carried_for(fd, flags) {
        // SAFETY: a message header whose parts and control bytes are valid: this call asks it of its caller.
        return unsafe { take_message(ours, header, flags) };
    }
    flush();
    // SAFETY: passed on as they came; what `recvmsg` asks of its caller, this call asks of its own.
    let got = unsafe { real::recvmsg(fd, header, flags) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmsg(fd: c_int, header: *const msghdr, flags: c_int) -> ssize_t {
    if let Some(ours) = carried(fd) {
        // SAFETY: a message header whose parts and control bytes are valid: this call asks it of its caller.
        return unsafe { put_message(ours, header, flags) };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { sendmsg(fd, header, flags) };
    }
    // SAFETY: a message header whose parts and control bytes are valid: this call asks it of its caller.
    if unsafe { handing::passes_carried(header) } {
        return fail(libc::EOPNOTSUPP);
    }
    // SAFETY: passed on as they came; what `sendmsg` asks of its caller, this call asks of its own.
    unsafe { real::sendmsg(fd, header, flags) }
}
