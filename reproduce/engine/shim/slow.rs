//! Preloaded into a server under test: makes fork() and fsync() slow, as an old hypervisor or a busy disk would.
//!
//! The delays are read from the file that UNSLOW_SLOW names at every call, so a fault starts and heals while the
//! server runs: two decimal numbers, microseconds for fork and for fsync/fdatasync. No file, no delay.
//! Built by `build.rs` with bare rustc and `no_std`: nothing of Rust's runtime enters the host process.
#![no_std]

use core::ffi::{c_char, c_int, c_long, c_void};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {}
}

#[repr(C)]
struct Timespec {
    seconds: c_long,
    nanoseconds: c_long,
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, symbol: *const c_char) -> *mut c_void;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn read(fd: c_int, buffer: *mut c_void, n: usize) -> isize;
    fn close(fd: c_int) -> c_int;
    fn nanosleep(wanted: *const Timespec, left: *mut Timespec) -> c_int;
}

const RTLD_NEXT: *mut c_void = -1isize as *mut c_void;
const O_CLOEXEC: c_int = 0o2000000;

/// The `index`-th number in the file, in microseconds.
fn delay_us(index: usize) -> i64 {
    let mut text = [0u8; 64];
    // SAFETY: libc calls with valid NUL-terminated strings and a buffer of the length given.
    let n = unsafe {
        let path = getenv(c"UNSLOW_SLOW".as_ptr());
        if path.is_null() {
            return 0;
        }
        let fd = open(path, O_CLOEXEC);
        if fd < 0 {
            return 0;
        }
        let n = read(fd, text.as_mut_ptr().cast(), text.len());
        close(fd);
        n
    };
    let (mut word, mut value) = (0, 0i64);
    for &b in text.iter().take(if n > 0 { n as usize } else { 0 }) {
        match b {
            b'0'..=b'9' if word == index => value = value.saturating_mul(10).saturating_add((b - b'0') as i64),
            b' ' | b'\n' => word += 1,
            _ => {}
        }
    }
    value
}

fn sleep(us: i64) {
    if us <= 0 {
        return;
    }
    let wanted = Timespec { seconds: us / 1_000_000, nanoseconds: us % 1_000_000 * 1000 };
    // SAFETY: a valid timespec; the remainder is not asked for.
    unsafe {
        nanosleep(&wanted, core::ptr::null_mut());
    }
}

fn next(name: *const c_char) -> *mut c_void {
    // SAFETY: `name` is NUL-terminated; libc is always loaded behind a preload, so the symbol is there.
    unsafe { dlsym(RTLD_NEXT, name) }
}

/// The parent alone waits: that is who a slow page-table copy stalls.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> c_int {
    // SAFETY: the next `fork` in the link order is libc's, with this signature.
    let real: extern "C" fn() -> c_int = unsafe { core::mem::transmute(next(c"fork".as_ptr())) };
    sleep(delay_us(0));
    real()
}

/// As libc's, later.
#[unsafe(no_mangle)]
pub extern "C" fn fsync(fd: c_int) -> c_int {
    // SAFETY: as above.
    let real: extern "C" fn(c_int) -> c_int = unsafe { core::mem::transmute(next(c"fsync".as_ptr())) };
    sleep(delay_us(1));
    real(fd)
}

/// As libc's, later.
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    // SAFETY: as above.
    let real: extern "C" fn(c_int) -> c_int = unsafe { core::mem::transmute(next(c"fdatasync".as_ptr())) };
    sleep(delay_us(1));
    real(fd)
}
