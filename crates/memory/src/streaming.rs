//! Copies past the caches, for bytes that nobody on this processor reads soon.
//!
//! A plain store into a line that is not in a cache reads that line from memory first, and pushes another one out. Copies
//! of batches into memory that is larger than the caches reached 11 to 15 GB/s by plain stores, and 26 by these. Lines
//! that one processor has written are slow to read for another one that shares no cache with it. These stores leave no
//! such lines.

use std::mem::MaybeUninit;

use crate::copy::{copy, copy_past_caches};

/// Bytes of one part: with what is copied, it fits into a first-level cache.
const PART_BYTES: usize = 8 << 10;
/// Bytes that one turn of the loop moves.
const TURN_BYTES: usize = 64;
/// Streaming stores of this size need as much alignment.
const STORE_BYTES: usize = 16;

/// A part, where the cache has it.
#[repr(align(64))]
struct Part(MaybeUninit<[u8; PART_BYTES]>);

/// Fills `into` from its start to its end, as many bytes at a time as `part` has: `fill` writes them into `part`, from where
/// they go past the caches. So a small `part` stays in the first-level cache, and `fill` may read what it has written.
///
/// It is fastest where `into` begins at a cache line, and `part` has whole ones.
///
/// # Panics
/// When `part` is empty.
pub fn fill(into: &mut [u8], part: &mut [u8], mut fill: impl FnMut(&mut [u8])) {
    let _finish = Finish;
    for into in into.chunks_mut(part.len()) {
        let part = &mut part[..into.len()];
        fill(part);
        // SAFETY: both slices have so many bytes, and the exclusive ones do not overlap. Nothing is copied twice.
        unsafe {
            stream::<false>(
                part.as_ptr(),
                into.as_mut_ptr(),
                into.as_mut_ptr(),
                part.len(),
            )
        };
    }
}

/// Copies `from` into `into`, and shows `see` all that was copied, in parts of at most 8 KiB, one after the other, out of the cache.
/// Each byte of `from` is read once, so what `see` finds right is what is in `into`.
///
/// # Panics
/// When the lengths differ.
pub fn copy_seen(from: &[u8], into: &mut [u8], mut see: impl FnMut(&[u8])) {
    assert_eq!(from.len(), into.len(), "a copy has two sides");
    let _finish = Finish;
    let mut part = Part(MaybeUninit::uninit());
    let seen = part.0.as_mut_ptr().cast::<u8>();
    for (from, into) in from.chunks(PART_BYTES).zip(into.chunks_mut(PART_BYTES)) {
        // SAFETY: both chunks have so many bytes, and a part has room for as many. None of the three overlaps another.
        // After the copy the part is initialised as far as the chunk is long.
        let copied = unsafe {
            stream::<true>(from.as_ptr(), into.as_mut_ptr(), seen, from.len());
            std::slice::from_raw_parts(seen, from.len())
        };
        see(copied);
    }
}

/// As [`copy_seen`], of bytes that others may write meanwhile: what `see` is shown is what is in `into`, whatever that is.
///
/// # Safety
///
/// As many bytes as `into` has can be read at `from`. None of them is in `into`, or reached in another way than by atomics, by
/// copies of this kind, or by other mappings.
pub(crate) unsafe fn copy_shared_seen(
    from: *const u8,
    into: &mut [u8],
    see: &mut dyn FnMut(&[u8]),
) {
    let _finish = Finish;
    let lead = into.as_ptr().align_offset(STORE_BYTES).min(into.len());
    let (first, rest) = into.split_at_mut(lead);
    if lead > 0 {
        // SAFETY: the caller vouches for `from`; `first` is exclusive.
        unsafe { copy(from, first.as_mut_ptr(), lead) };
        see(first);
    }
    let mut part = Part(MaybeUninit::uninit());
    let seen = part.0.as_mut_ptr().cast::<u8>();
    for (at, into) in (lead..)
        .step_by(PART_BYTES)
        .zip(rest.chunks_mut(PART_BYTES))
    {
        let turns = into.len() / TURN_BYTES;
        let done = turns * TURN_BYTES;
        // SAFETY: the caller vouches for `from`, of which this is the part for `into`. That is exclusive and aligned, because
        // the first bytes were cut off so. A part has room for as many. After both copies it is initialised as far as `into` is long.
        let copied = unsafe {
            let from = from.add(at);
            copy_past_caches(from, into.as_mut_ptr(), seen, turns);
            copy(from.add(done), seen.add(done), into.len() - done);
            std::slice::from_raw_parts(seen, into.len())
        };
        into[done..].copy_from_slice(&copied[done..]);
        see(copied);
    }
}

/// Copies `len` bytes to `to` past the caches and, if `TWICE`, to `also` through them.
///
/// # Safety
///
/// `from` is readable, `to` writable, and if `TWICE` also `also`, for `len` bytes. None of them overlaps another.
#[inline]
unsafe fn stream<const TWICE: bool>(from: *const u8, to: *mut u8, also: *mut u8, len: usize) {
    let lead = to.align_offset(STORE_BYTES).min(len);
    let turns = (len - lead) / TURN_BYTES;
    let (begin, end) = (lead, lead + turns * TURN_BYTES);
    // SAFETY: the three ranges are those of the caller, cut in three: `..begin`, `begin..end`, `end..len`. `to + begin` is
    // aligned as the stores need, unless there are no turns.
    unsafe {
        plain::<TWICE>(from, to, also, lead);
        turned::<TWICE>(from.add(begin), to.add(begin), also.add(begin), turns);
        plain::<TWICE>(from.add(end), to.add(end), also.add(end), len - end);
    }
}

/// # Safety
///
/// As [`stream`].
#[inline]
unsafe fn plain<const TWICE: bool>(from: *const u8, to: *mut u8, also: *mut u8, len: usize) {
    // SAFETY: the caller vouches for the ranges.
    unsafe {
        to.copy_from_nonoverlapping(from, len);
        if TWICE {
            also.copy_from_nonoverlapping(from, len);
        }
    }
}

/// Moves `turns` times [`TURN_BYTES`].
///
/// # Safety
///
/// As [`stream`]; `to` is aligned to [`STORE_BYTES`] unless `turns` is 0.
#[cfg(target_arch = "x86_64")]
#[inline]
unsafe fn turned<const TWICE: bool>(from: *const u8, to: *mut u8, also: *mut u8, turns: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128};

    for turn in 0..turns {
        let at = turn * TURN_BYTES;
        // SAFETY: within the ranges and aligned, for which the caller vouches. Every x86-64 processor has these
        // instructions. Both callers have a `Finish` for the time after.
        unsafe {
            let from = from.add(at).cast::<__m128i>();
            let four: [__m128i; TURN_BYTES / STORE_BYTES] =
                std::array::from_fn(|i| _mm_loadu_si128(from.add(i)));
            for (i, value) in four.into_iter().enumerate() {
                _mm_stream_si128(to.add(at).cast::<__m128i>().add(i), value);
            }
            if TWICE {
                for (i, value) in four.into_iter().enumerate() {
                    _mm_storeu_si128(also.add(at).cast::<__m128i>().add(i), value);
                }
            }
        }
    }
}

/// As on x86-64, through the caches.
///
/// # Safety
///
/// As on x86-64.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
unsafe fn turned<const TWICE: bool>(from: *const u8, to: *mut u8, also: *mut u8, turns: usize) {
    // SAFETY: the caller vouches for the ranges.
    unsafe { plain::<TWICE>(from, to, also, turns * TURN_BYTES) }
}

/// Has streaming stores leave the processor before anything that follows, also a panic.
struct Finish;

impl Drop for Finish {
    #[inline]
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 processor has this instruction; it changes nothing but the order of stores.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 % 251) as u8 | 1).collect()
    }

    #[test]
    fn any_length_is_copied_to_any_place_and_nothing_beside_it() {
        for len in [
            0,
            1,
            15,
            16,
            63,
            64,
            65,
            200,
            1000,
            PART_BYTES,
            2 * PART_BYTES + 77,
        ] {
            for place in 0..20 {
                let from = pattern(len + 3);
                let mut into = vec![0; place + len + 8];
                let (mut rest, mut part) = (&from[3..], [0; 192]);
                fill(&mut into[place..place + len], &mut part, |part| {
                    let (now, later) = rest.split_at(part.len());
                    part.copy_from_slice(now);
                    rest = later;
                });
                assert_eq!(into[place..place + len], from[3..]);
                assert!(
                    into[..place]
                        .iter()
                        .chain(&into[place + len..])
                        .all(|b| *b == 0)
                );
                let (mut again, mut seen) = (vec![0; place + len + 8], Vec::new());
                copy_seen(&from[3..], &mut again[place..place + len], |part| {
                    assert!(part.len() <= PART_BYTES);
                    seen.extend_from_slice(part);
                });
                assert_eq!((&again, &seen[..]), (&into, &from[3..]));
                let (mut shared, mut seen) = (vec![0; place + len + 8], Vec::new());
                // SAFETY: `from` is private, and has so many bytes behind its third.
                unsafe {
                    copy_shared_seen(
                        from[3..].as_ptr(),
                        &mut shared[place..place + len],
                        &mut |part| seen.extend_from_slice(part),
                    );
                }
                assert_eq!((&shared, &seen[..]), (&into, &from[3..]));
            }
        }
    }

    #[test]
    #[should_panic(expected = "two sides")]
    fn lengths_must_be_equal() {
        copy_seen(&[1, 2], &mut [0], |_| {});
    }
}
