//! Preloaded into a server under test: makes fork, fsync and writing slow and the clock wrong, as an old hypervisor, a
//! busy disk and a bad time server would.
//!
//! What to do stands in a file of 64 bytes that UNSLOW_SHIM names, mapped once at the start: microseconds for fork, for
//! fsync/fdatasync, nanoseconds for each byte written to a file, microseconds that the wall clock is ahead. A fault
//! starts and heals while the server runs; reading a zero is all that a healthy call costs. No file, no effect.
//! Built by `build.rs` with bare rustc and `no_std`: nothing of Rust's runtime enters the host process.
#![no_std]

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

#[repr(C)]
struct Timeval {
    seconds: c_long,
    microseconds: c_long,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn close(fd: c_int) -> c_int;
    fn mmap(address: *mut c_void, n: usize, protection: c_int, flags: c_int, fd: c_int, offset: c_long) -> *mut c_void;
    fn nanosleep(wanted: *const Timespec, left: *mut Timespec) -> c_int;
    fn lseek(fd: c_int, offset: c_long, whence: c_int) -> c_long;
    fn __errno_location() -> *mut c_int;
}

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
const O_CLOEXEC: c_int = 0o2000000;
const CLOCK_REALTIME: c_int = 0;
const CLOCK_REALTIME_COARSE: c_int = 5;

/// The mapped file; null when there is none.
static CONTROL: AtomicPtr<AtomicI64> = AtomicPtr::new(null_mut());

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

extern "C" fn start() {
    // SAFETY: libc calls with NUL-terminated strings; the mapping is checked before it is published, and stays.
    unsafe {
        let path = getenv(c"UNSLOW_SHIM".as_ptr());
        if path.is_null() {
            return;
        }
        let fd = open(path, O_CLOEXEC);
        if fd < 0 {
            return;
        }
        // Only if the file is as long as what will be read: beyond its end is SIGBUS.
        if lseek(fd, 0, 2) >= 64 {
            let map = mmap(null_mut(), 64, 1, 1, fd, 0); // PROT_READ, MAP_SHARED
            if map as isize != -1 {
                CONTROL.store(map.cast(), Ordering::Release);
            }
        }
        close(fd);
    }
}

fn knob(index: usize) -> i64 {
    let control = CONTROL.load(Ordering::Relaxed);
    if control.is_null() {
        return 0;
    }
    // SAFETY: eight numbers are mapped, and index is a constant below eight.
    unsafe { (*control.add(index)).load(Ordering::Relaxed) }
}

fn sleep_ns(ns: i64) {
    if ns <= 0 {
        return;
    }
    let wanted = Timespec { seconds: ns / 1_000_000_000, nanoseconds: ns % 1_000_000_000 };
    // SAFETY: a valid timespec, the remainder is not asked for; errno is the caller's and is put back.
    unsafe {
        let errno = *__errno_location();
        nanosleep(&wanted, null_mut());
        *__errno_location() = errno;
    }
}

/// libc's own function, found once.
macro_rules! next {
    ($name:literal, $kind:ty) => {{
        static FOUND: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
        let mut found = FOUND.load(Ordering::Relaxed);
        if found.is_null() {
            // SAFETY: libc is always loaded behind a preload, so the symbol is there.
            found = unsafe { dlsym(RTLD_NEXT, $name.as_ptr()) };
            FOUND.store(found, Ordering::Relaxed);
        }
        // SAFETY: the next definition in the link order is libc's, with this signature.
        unsafe { core::mem::transmute::<*mut c_void, $kind>(found) }
    }};
}

/// The parent alone waits: that is who a slow page-table copy stalls.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> c_int {
    sleep_ns(knob(0) * 1000);
    next!(c"fork", extern "C" fn() -> c_int)()
}

/// As libc's, later.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    sleep_ns(knob(1) * 1000);
    next!(c"fsync", extern "C" fn(c_int) -> c_int)(fd)
}

/// As libc's, later.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    sleep_ns(knob(1) * 1000);
    next!(c"fdatasync", extern "C" fn(c_int) -> c_int)(fd)
}

/// A slow disk: files wait for each byte; sockets and pipes, which cannot seek, do not.
#[unsafe(no_mangle)]
pub extern "C" fn write(fd: c_int, bytes: *const c_void, n: usize) -> isize {
    let per_byte = knob(2);
    if per_byte > 0 {
        // SAFETY: asks for the position and changes nothing; errno is put back.
        let file = unsafe {
            let errno = *__errno_location();
            let seekable = lseek(fd, 0, 1) >= 0;
            *__errno_location() = errno;
            seekable
        };
        if file {
            sleep_ns(per_byte.saturating_mul(n as i64));
        }
    }
    next!(c"write", extern "C" fn(c_int, *const c_void, usize) -> isize)(fd, bytes, n)
}

/// Snapshots are written through stdio; in the child this wait stalls nobody else.
#[unsafe(no_mangle)]
pub extern "C" fn fwrite(bytes: *const c_void, size: usize, n: usize, stream: *mut c_void) -> usize {
    let per_byte = knob(2);
    if per_byte > 0 {
        sleep_ns(per_byte.saturating_mul(size.saturating_mul(n) as i64));
    }
    next!(c"fwrite", extern "C" fn(*const c_void, usize, usize, *mut c_void) -> usize)(bytes, size, n, stream)
}

/// As libc's, ahead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn gettimeofday(time: *mut Timeval, zone: *mut c_void) -> c_int {
    let result = next!(c"gettimeofday", extern "C" fn(*mut Timeval, *mut c_void) -> c_int)(time, zone);
    let ahead = knob(3);
    if ahead != 0 && result == 0 && !time.is_null() {
        // SAFETY: libc has just filled it.
        unsafe {
            let us = (*time).seconds * 1_000_000 + (*time).microseconds + ahead;
            (*time).seconds = us.div_euclid(1_000_000);
            (*time).microseconds = us.rem_euclid(1_000_000);
        }
    }
    result
}

/// As libc's, ahead for the wall clock; the monotonic one never jumps.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    let result = next!(c"clock_gettime", extern "C" fn(c_int, *mut Timespec) -> c_int)(clock, time);
    let ahead = knob(3);
    if ahead != 0 && result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) && !time.is_null() {
        // SAFETY: libc has just filled it.
        unsafe {
            let ns = (*time).nanoseconds + ahead % 1_000_000 * 1000;
            (*time).seconds += ahead / 1_000_000 + ns.div_euclid(1_000_000_000);
            (*time).nanoseconds = ns.rem_euclid(1_000_000_000);
        }
    }
    result
}

/// As libc's, ahead.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn time(out: *mut c_long) -> c_long {
    let seconds = next!(c"time", extern "C" fn(*mut c_long) -> c_long)(null_mut()) + knob(3) / 1_000_000;
    if !out.is_null() {
        // SAFETY: the caller's own place for the result.
        unsafe { *out = seconds };
    }
    seconds
}
