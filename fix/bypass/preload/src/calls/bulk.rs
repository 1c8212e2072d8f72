//! Calls that carry many messages, files or pipes, and those with flags of files.
//!
//! `vmsplice`, `tee`, `preadv`, `pwritev` and `copy_file_range` take no sockets: the kernel says so without our help.

use libc::{MSG_DONTWAIT, MSG_WAITFORONE, RWF_NOWAIT, SPLICE_F_NONBLOCK, UIO_MAXIOV};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, off_t, off64_t, size_t, ssize_t, timespec};
use unslow_bypass::sockets::copies::{self, Wait};
use unslow_bypass::sockets::streams::{carried, fail, went_over_tcp};
use unslow_bypass::sockets::{flush, handing, now_ns, pointers};

use super::data::{Carried, carried_for, put_array, put_message, take_array, take_message};
use crate::real;

/// How many messages are looked at in one call, as in the kernel; `None` where there can be none.
fn messages_at(messages: *const mmsghdr, n: c_uint) -> Option<usize> {
    let n = n.min(UIO_MAXIOV as c_uint) as usize;
    pointers::may_be_buffer(messages.cast::<c_void>(), n * size_of::<mmsghdr>()).then_some(n)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    if let Some(ours) = carried(fd) {
        // SAFETY: `n` valid message headers, and a time or null: this call asks it of its caller.
        return unsafe { put_messages(ours, messages, n, flags) };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { sendmmsg(fd, messages, n, flags) };
    }
    for i in 0..messages_at(messages, n).unwrap_or(0) {
        // SAFETY: `i` is below what `messages_at` found readable.
        if unsafe { handing::passes_carried(&raw const (*messages.add(i)).msg_hdr) } {
            return fail(libc::EOPNOTSUPP) as c_int;
        }
    }
    // SAFETY: passed on as they came; what `sendmmsg` asks of its caller, this call asks of its own.
    unsafe { real::sendmmsg(fd, messages, n, flags) }
}

unsafe fn put_messages(ours: Carried, messages: *mut mmsghdr, n: c_uint, flags: c_int) -> c_int {
    let Some(n) = messages_at(messages, n) else { return fail(libc::EFAULT) as c_int };
    for i in 0..n {
        // SAFETY: `i` is below `n`, and the caller has `n` messages there that nobody else touches during the call.
        let message = unsafe { &mut *messages.add(i) };
        // SAFETY: a message header whose parts and control bytes are valid: this call asks it of its caller.
        let sent = unsafe { put_message(ours, &raw const message.msg_hdr, flags) };
        if sent < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
        message.msg_len = sent as c_uint;
        // SAFETY: as many parts as it says, which were looked at just now.
        let parts = (0..message.msg_hdr.msg_iovlen).map(|part| unsafe { (*message.msg_hdr.msg_iov.add(part)).iov_len });
        // A message that was sent in part is the last one.
        if (sent as usize) < parts.sum::<usize>() {
            return i as c_int + 1;
        }
    }
    n as c_int
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if let Some(ours) = carried_for(fd, flags) {
        // SAFETY: `n` valid message headers, and a time or null: this call asks it of its caller.
        return unsafe { take_messages(ours, messages, n, flags, timeout) };
    }
    flush();
    // SAFETY: passed on as they came; what `recvmmsg` asks of its caller, this call asks of its own.
    let got = unsafe { real::recvmmsg(fd, messages, n, flags, timeout) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

unsafe fn take_messages(
    ours: Carried,
    messages: *mut mmsghdr,
    n: c_uint,
    mut flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let Some(n) = messages_at(messages, n) else { return fail(libc::EFAULT) as c_int };
    // SAFETY: not null, and this call asks for a readable time there.
    let time = (!timeout.is_null()).then(|| unsafe { *timeout });
    let until = time.map(|t| {
        let ns = (t.tv_sec.max(0) as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec.max(0) as u64);
        now_ns().saturating_add(ns)
    });
    for i in 0..n {
        // SAFETY: `i` is below `n`, and the caller has `n` messages there that nobody else touches during the call.
        let message = unsafe { &mut *messages.add(i) };
        // SAFETY: a message header whose parts and control bytes are valid: this call asks it of its caller.
        let got = unsafe { take_message(ours, &raw mut message.msg_hdr, flags & !MSG_WAITFORONE) };
        if got < 0 {
            return if i > 0 { i as c_int } else { -1 };
        }
        message.msg_len = got as c_uint;
        if flags & MSG_WAITFORONE != 0 {
            flags |= MSG_DONTWAIT;
        }
        // As in the kernel the time is looked at between messages only.
        if let Some(until) = until {
            let left = until.saturating_sub(now_ns());
            // SAFETY: not null, and this call asks for a writable time there; Linux writes what is left of it.
            unsafe {
                *timeout = timespec { tv_sec: (left / 1_000_000_000) as _, tv_nsec: (left % 1_000_000_000) as _ };
            }
            if left == 0 {
                return i as c_int + 1;
            }
        }
    }
    n as c_int
}

/// Flags of `recvmsg` and `sendmsg` for those of `preadv2` and `pwritev2`, at the place -1: where a socket is. Others
/// are files'.
fn flags_of(flags: c_int) -> Result<c_int, c_int> {
    match flags {
        0 => Ok(0),
        RWF_NOWAIT => Ok(MSG_DONTWAIT),
        _ => Err(libc::EOPNOTSUPP),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
    if at == -1
        && let Some(ours) = carried(fd)
    {
        return match flags_of(flags) {
            // SAFETY: the parts are as many as is said, and each may be written: this call asks it of its caller.
            Ok(flags) => unsafe { take_array(ours, parts, n, flags) },
            Err(errno) => fail(errno),
        };
    }
    flush();
    // SAFETY: passed on as they came; what `preadv2` asks of its caller, this call asks of its own.
    let got = unsafe { real::preadv2(fd, parts, n, at, flags) };
    if got > 0 {
        went_over_tcp(fd);
    }
    got
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn preadv64v2(fd: c_int, parts: *const iovec, n: c_int, at: off64_t, flags: c_int) -> ssize_t {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { preadv2(fd, parts, n, at, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev2(fd: c_int, parts: *const iovec, n: c_int, at: off_t, flags: c_int) -> ssize_t {
    if at == -1
        && let Some(ours) = carried(fd)
    {
        return match flags_of(flags) {
            // SAFETY: the parts are as many as is said, and each may be read: this call asks it of its caller.
            Ok(flags) => unsafe { put_array(ours, parts, n, flags) },
            Err(errno) => fail(errno),
        };
    }
    if went_over_tcp(fd) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { pwritev2(fd, parts, n, at, flags) };
    }
    // SAFETY: passed on as they came; what `pwritev2` asks of its caller, this call asks of its own.
    unsafe { real::pwritev2(fd, parts, n, at, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwritev64v2(fd: c_int, parts: *const iovec, n: c_int, at: off64_t, flags: c_int) -> ssize_t {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { pwritev2(fd, parts, n, at, flags) }
}

/// Neither a pipe nor a socket has places; the kernel has a word for each.
fn no_places(of_pipe: *const off64_t, of_socket: *const off64_t) -> Result<(), c_int> {
    match (of_pipe.is_null(), of_socket.is_null()) {
        (true, true) => Ok(()),
        (false, _) => Err(libc::ESPIPE),
        (true, false) => Err(libc::EINVAL),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn splice(
    from: c_int,
    from_at: *mut off64_t,
    to: c_int,
    to_at: *mut off64_t,
    n: size_t,
    flags: c_uint,
) -> ssize_t {
    let wait = if flags & SPLICE_F_NONBLOCK != 0 { Wait::No } else { Wait::Yes };
    if let Some((stream, link)) = carried(from) {
        return match no_places(to_at, from_at) {
            Ok(()) => copies::to_pipe(stream, link, to, n, wait),
            Err(errno) => fail(errno),
        };
    }
    if let Some((stream, link)) = carried(to) {
        return match no_places(from_at, to_at) {
            Ok(()) => copies::from_pipe(stream, link, from, n, wait),
            Err(errno) => fail(errno),
        };
    }
    flush();
    if went_over_tcp(to) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { splice(from, from_at, to, to_at, n, flags) };
    }
    // SAFETY: passed on as they came; what `splice` asks of its caller, this call asks of its own.
    let moved = unsafe { real::splice(from, from_at, to, to_at, n, flags) };
    if moved > 0 {
        went_over_tcp(from);
    }
    moved
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    if carried(from).is_some() {
        return fail(libc::EINVAL); // as the kernel says of a socket; into a pipe too, where newer kernels take it
    }
    if let Some((stream, link)) = carried(out) {
        // SAFETY: null, or an offset that this call asks to be writable.
        return copies::from_file(stream, link, from, unsafe { offset.as_mut() }, n);
    }
    if went_over_tcp(out) {
        // SAFETY: the same arguments, of which that call asks the same.
        return unsafe { sendfile(out, from, offset, n) };
    }
    // SAFETY: passed on as they came; what `sendfile` asks of its caller, this call asks of its own.
    let moved = unsafe { real::sendfile(out, from, offset, n) };
    if moved > 0 {
        went_over_tcp(from);
    }
    moved
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile64(out: c_int, from: c_int, offset: *mut off_t, n: size_t) -> ssize_t {
    // SAFETY: the same arguments, of which that call asks the same.
    unsafe { sendfile(out, from, offset, n) }
}
