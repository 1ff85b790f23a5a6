//! Copies between private memory and memory that another process reads or writes meanwhile.
//!
//! A plain copy would promise the compiler that nobody does. Word by word, by atomics, the compiler makes no use of wide
//! registers. So the loop is written in instructions: to the compiler a block that it does not see through, which does
//! what atomic loads and stores of bytes, without an order among them, would do.

/// Bytes that one turn of the loop moves.
#[cfg(target_arch = "x86_64")]
const TURN_BYTES: usize = 64;

/// Copies `len` bytes. Either side may be written by others meanwhile: then what arrives may be any mixture.
///
/// # Safety
///
/// `from` is readable and `to` writable for `len` bytes. They do not overlap. Of the two, the private one is not used by
/// others meanwhile, and the shared one only by atomics, by copies of this kind, or by other mappings.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::asm;

    let turns = len / TURN_BYTES;
    let done = turns * TURN_BYTES;
    if turns > 0 {
        // SAFETY: the caller vouches for `len` bytes at both, of which this moves the first `done`. Every x86-64 processor
        // has these instructions.
        unsafe {
            asm!(
                "2:",
                "movdqu {a}, [{from}]",
                "movdqu {b}, [{from} + 16]",
                "movdqu {c}, [{from} + 32]",
                "movdqu {d}, [{from} + 48]",
                "movdqu [{to}], {a}",
                "movdqu [{to} + 16], {b}",
                "movdqu [{to} + 32], {c}",
                "movdqu [{to} + 48], {d}",
                "add {from}, 64",
                "add {to}, 64",
                "dec {turns}",
                "jnz 2b",
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                turns = inout(reg) turns => _,
                options(nostack),
            );
        }
    }
    if done < len {
        // SAFETY: as above, for the bytes that are left. `rep movsb` goes forward, as the direction flag is clear at every
        // block of this kind.
        unsafe {
            asm!(
                "rep movsb",
                inout("rsi") from.add(done) => _,
                inout("rdi") to.add(done) => _,
                inout("rcx") len - done => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

/// Copies `turns` times 64 bytes to `to`, past the caches, and to `also`, through them. Each byte of `from` is read once, so
/// both get the same bytes, whoever writes `from` meanwhile. A store fence must follow before others learn of `to`.
///
/// # Safety
///
/// As [`copy`], for both `to` and `also`, which are private and do not overlap; `to` is a multiple of 16.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, also: *mut u8, turns: usize) {
    use std::arch::asm;

    if turns == 0 {
        return;
    }
    // SAFETY: the caller vouches for all three ranges and for the alignment that streaming stores need. Every x86-64
    // processor has these instructions.
    unsafe {
        asm!(
            "2:",
            "movdqu {a}, [{from}]",
            "movdqu {b}, [{from} + 16]",
            "movdqu {c}, [{from} + 32]",
            "movdqu {d}, [{from} + 48]",
            "movntdq [{to}], {a}",
            "movntdq [{to} + 16], {b}",
            "movntdq [{to} + 32], {c}",
            "movntdq [{to} + 48], {d}",
            "movdqu [{also}], {a}",
            "movdqu [{also} + 16], {b}",
            "movdqu [{also} + 32], {c}",
            "movdqu [{also} + 48], {d}",
            "add {from}, 64",
            "add {to}, 64",
            "add {also}, 64",
            "dec {turns}",
            "jnz 2b",
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            also = inout(reg) also => _,
            turns = inout(reg) turns => _,
            options(nostack),
        );
    }
}

/// As on x86-64, through the caches.
///
/// # Safety
///
/// As on x86-64.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) unsafe fn copy_past_caches(from: *const u8, to: *mut u8, also: *mut u8, turns: usize) {
    // SAFETY: the caller vouches for the ranges. Only the first copy reads what others write.
    unsafe {
        copy(from, also, turns * 64);
        to.copy_from_nonoverlapping(also, turns * 64);
    }
}

/// As on x86-64.
///
/// # Safety
///
/// As on x86-64.
#[cfg(target_arch = "aarch64")]
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::asm;

    let turns = len / 32;
    let done = turns * 32;
    if turns > 0 {
        // SAFETY: the caller vouches for `len` bytes at both, of which this moves the first `done`.
        unsafe {
            asm!(
                "2:",
                "ldp {a:q}, {b:q}, [{from}], #32",
                "stp {a:q}, {b:q}, [{to}], #32",
                "subs {turns}, {turns}, #1",
                "b.ne 2b",
                a = out(vreg) _,
                b = out(vreg) _,
                from = inout(reg) from => _,
                to = inout(reg) to => _,
                turns = inout(reg) turns => _,
                options(nostack),
            );
        }
    }
    for at in done..len {
        // SAFETY: as above, for the bytes that are left.
        unsafe {
            asm!(
                "ldrb {byte:w}, [{from}]",
                "strb {byte:w}, [{to}]",
                byte = out(reg) _,
                from = in(reg) from.add(at),
                to = in(reg) to.add(at),
                options(nostack, preserves_flags),
            );
        }
    }
}
