//! Two clocks: one that only says which of two things came first, on any processor of the machine, in a few
//! nanoseconds, and one in nanoseconds.

/// Now, in ticks of the machine's counter. Processors agree on it as far as the kernel's own clocks rely on it.
#[cfg(target_arch = "x86_64")]
#[inline]
pub fn now() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: reads a counter; it changes nothing but these registers.
    unsafe { std::arch::asm!("rdtsc", out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags)) };
    (u64::from(high) << 32) | u64::from(low)
}

/// Now, in ticks of the machine's counter.
#[cfg(target_arch = "aarch64")]
#[inline]
pub fn now() -> u64 {
    let ticks: u64;
    // SAFETY: reads a counter; it changes nothing but this register.
    unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack, preserves_flags)) };
    ticks
}

/// Now, in nanoseconds.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
#[inline]
pub fn now() -> u64 {
    now_ns()
}

/// Nanoseconds of the monotonic clock.
#[inline]
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_comes_later_has_no_lower_number() {
        let mut last = super::now();
        for _ in 0..1000 {
            let next = super::now();
            assert!(next >= last, "{next} after {last}");
            last = next;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(super::now() > last, "it stands still");
    }
}
