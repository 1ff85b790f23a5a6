//! The instructions that move one cache line between a CPU's caches and the memory behind them.
//!
//! x86-64: `clwb` where CPUID has it, else `clflushopt`, else `clflush`; ordered by `sfence`
//! (stores) or `mfence` (loads). aarch64: `dc cvac` and `dc civac`, ordered by `dsb sy`.

use std::ops::Range;

/// Bytes of a cache line: the unit that one writer owns and that moves as a whole.
pub const LINE_BYTES: u64 = 64;

/// The line-aligned offsets that `at..at + len` touches.
pub(crate) fn lines(at: u64, len: u64) -> impl Iterator<Item = u64> {
    let touched: Range<u64> = if len == 0 {
        0..0
    } else {
        at / LINE_BYTES..(at + len).div_ceil(LINE_BYTES)
    };
    touched.map(|line| line * LINE_BYTES)
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::asm;
    use std::sync::OnceLock;

    #[derive(Clone, Copy, PartialEq, Eq)]
    struct Features {
        clwb: bool,
        clflushopt: bool,
    }

    fn features() -> Features {
        static FEATURES: OnceLock<Features> = OnceLock::new();
        *FEATURES.get_or_init(|| {
            let leaf = std::arch::x86_64::__cpuid_count(7, 0);
            Features {
                clwb: leaf.ebx & (1 << 24) != 0,
                clflushopt: leaf.ebx & (1 << 23) != 0,
            }
        })
    }

    /// # Safety
    ///
    /// Every address lies in memory mapped by this process.
    pub(crate) unsafe fn write_back(lines: impl Iterator<Item = *mut u8>) {
        let features = features();
        for line in lines {
            // SAFETY: the caller vouches for the address, CPUID for the instruction; none of the
            // three changes what any load returns.
            unsafe {
                if features.clwb {
                    asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags));
                } else if features.clflushopt {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                } else {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
    }

    /// # Safety
    ///
    /// Every address lies in memory mapped by this process.
    pub(crate) unsafe fn invalidate(lines: impl Iterator<Item = *mut u8>) {
        let features = features();
        for line in lines {
            // SAFETY: as in `write_back`; a dirty line is written back before it is dropped.
            unsafe {
                if features.clflushopt {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
                } else {
                    asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags));
                }
            }
        }
        // SAFETY: `mfence` only orders; here it keeps later loads from running before the drops.
        unsafe { asm!("mfence", options(nostack, preserves_flags)) };
    }

    pub(crate) fn store_fence() {
        // SAFETY: `sfence` only orders; without `nomem` it is a barrier to the compiler too.
        unsafe { asm!("sfence", options(nostack, preserves_flags)) };
    }
}

#[cfg(target_arch = "aarch64")]
mod imp {
    use std::arch::asm;

    /// # Safety
    ///
    /// Every address lies in memory mapped by this process.
    pub(crate) unsafe fn write_back(lines: impl Iterator<Item = *mut u8>) {
        for line in lines {
            // SAFETY: the caller vouches for the address; cleaning changes no load's result.
            unsafe { asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    }

    /// # Safety
    ///
    /// Every address lies in memory mapped by this process.
    pub(crate) unsafe fn invalidate(lines: impl Iterator<Item = *mut u8>) {
        for line in lines {
            // SAFETY: as above; clean-and-invalidate writes a dirty line back before it drops it.
            unsafe { asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
        store_fence();
    }

    pub(crate) fn store_fence() {
        // SAFETY: `dsb sy` only orders.
        unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this crate knows the cache-line instructions of x86-64 and aarch64 only");

pub(crate) use imp::{invalidate, store_fence, write_back};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_touched_line_is_named_once() {
        assert_eq!(lines(0, 0).count(), 0);
        assert_eq!(lines(0, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(lines(63, 2).collect::<Vec<_>>(), [0, 64]);
        assert_eq!(lines(64, 64).collect::<Vec<_>>(), [64]);
        assert_eq!(lines(100, 100).collect::<Vec<_>>(), [64, 128, 192]);
    }
}
