//! Pointers of the program's, as far as they can be judged without asking the kernel.
//!
//! A system call says EFAULT for every address that is not mapped. Here only those are found that no program can have:
//! null and its page, and what lies in the kernel's half. Others end the program, as they do in `memcpy`: to ask the
//! kernel would cost a system call for each read and write.

use libc::{c_int, c_void, iovec};

/// Nothing is mapped below.
const LOWEST: usize = 4096;
/// Programs have no more bits of an address than this; the byte above may be a tag on some processors.
const ADDRESS: usize = (1 << 56) - 1;

/// Whether `n` bytes may be there.
#[inline]
pub fn may_be_buffer(at: *const c_void, n: usize) -> bool {
    let tagged = cfg!(target_arch = "aarch64");
    let from = if tagged { at as usize & ADDRESS } else { at as usize };
    n == 0 || from >= LOWEST && from.checked_add(n).is_some_and(|end| end <= ADDRESS - LOWEST)
}

/// How many parts there are; the kernel's errno where it would not take them.
///
/// # Safety
/// `parts` is an array of `n` if it may be one.
#[inline]
pub unsafe fn check_parts(parts: *const iovec, n: c_int) -> Result<usize, c_int> {
    if !(0..=libc::UIO_MAXIOV).contains(&n) {
        return Err(libc::EINVAL);
    }
    let n = n as usize;
    if !may_be_buffer(parts.cast::<c_void>(), n * size_of::<iovec>()) {
        return Err(libc::EFAULT);
    }
    let mut total = 0usize;
    for i in 0..n {
        // SAFETY: the caller's array of `n`.
        let part = unsafe { *parts.add(i) };
        total = total.saturating_add(part.iov_len);
        if total > isize::MAX as usize {
            return Err(libc::EINVAL);
        }
        if !may_be_buffer(part.iov_base, part.iov_len) {
            return Err(libc::EFAULT);
        }
    }
    Ok(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(bytes: &[u8], len: usize) -> iovec {
        iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len }
    }

    #[test]
    fn only_what_no_program_can_have_is_refused() {
        let bytes = [0u8; 8];
        assert!(may_be_buffer(bytes.as_ptr().cast(), 8));
        assert!(may_be_buffer(std::ptr::null(), 0), "nothing is read from there");
        for (at, n) in [(0, 1), (1, 1), (4095, 8), (usize::MAX, 1), (bytes.as_ptr() as usize, usize::MAX)] {
            assert!(!may_be_buffer(at as *const c_void, n), "{at:#x}, {n} bytes");
        }
    }

    #[test]
    fn parts_are_refused_as_the_kernel_refuses_them() {
        let bytes = [0u8; 8];
        let check = |parts: &[iovec], n: c_int| {
            // SAFETY: `n` of them, or a number that is refused before they are looked at.
            unsafe { check_parts(parts.as_ptr(), n) }
        };
        let many = vec![part(&bytes, 1); 1025];
        assert_eq!(check(&many, 1024), Ok(1024));
        assert_eq!(check(&many, 1025), Err(libc::EINVAL));
        assert_eq!(check(&many, -1), Err(libc::EINVAL));
        assert_eq!(check(&[], 0), Ok(0));
        assert_eq!(check(&[part(&bytes, 8), part(&bytes, usize::MAX)], 2), Err(libc::EINVAL));
        let nowhere = iovec { iov_base: std::ptr::null_mut(), iov_len: 1 };
        assert_eq!(check(&[part(&bytes, 8), nowhere], 2), Err(libc::EFAULT));
        // SAFETY: null is refused before it is looked at.
        assert_eq!(unsafe { check_parts(std::ptr::null(), 1) }, Err(libc::EFAULT));
    }
}
