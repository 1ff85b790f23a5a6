//! The protocol of order 2: the core places batches in the order in which they arrive, each once.

use std::collections::BTreeSet;

use embar_memory::canary::{Canary, injected};

use super::{Admission, Progress, Protocol};

/// Order 2: batches are placed as they arrive, each once; those of one session in any order.
///
/// Bit `i` of [`Progress::detail`], lowest first, says that number `mark + 1 + i` is placed.
#[derive(Debug, Clone, Copy)]
pub struct Arrive;

/// Numbers above the mark that can be remembered.
const BITS: u32 = 128;

impl Protocol for Arrive {
    fn order(&self) -> u8 {
        2
    }

    fn window(&self, most: u32) -> u32 {
        most.min(BITS)
    }

    fn admit(&self, progress: &Progress, number: u64, window: u32) -> Admission {
        if self.is_placed(progress, number) {
            if injected(Canary::Dedupe) {
                return Admission::Place;
            }
            return Admission::Duplicate;
        }
        if number - progress.mark < self.window(window).into() {
            return Admission::Place;
        }
        Admission::BeyondWindow
    }

    fn place(&self, progress: &mut Progress, number: u64) {
        let bits = bits(progress);
        match number.checked_sub(progress.mark) {
            Some(0) => {
                let run = bits.trailing_ones() + 1;
                progress.mark = number.saturating_add(run.into());
                set_bits(progress, bits.checked_shr(run).unwrap_or(0));
            }
            Some(above) if above <= BITS.into() => set_bits(progress, bits | 1 << (above - 1)),
            _ => {}
        }
    }

    fn unplace(&self, progress: &mut Progress, numbers: &BTreeSet<u64>) {
        let after = *progress;
        let Some(first) = numbers.first() else { return };
        progress.mark = after.mark.min(*first);
        let mut bits = 0;
        for bit in 0..BITS {
            let number = progress.mark.saturating_add(1 + u64::from(bit));
            if self.is_placed(&after, number) && !numbers.contains(&number) {
                bits |= 1 << bit;
            }
        }
        set_bits(progress, bits);
    }

    fn is_placed(&self, progress: &Progress, number: u64) -> bool {
        match number.checked_sub(progress.mark) {
            None => true,
            Some(0) => false,
            Some(above) => above <= BITS.into() && bits(progress) >> (above - 1) & 1 == 1,
        }
    }

    fn begin_epoch(&self, progress: &mut Progress) {
        progress.detail = [0; 2];
    }

    /// Never certain: what an epoch placed above its mark is forgotten with it.
    fn was_placed(&self, _: &Progress, _: u64) -> bool {
        false
    }
}

fn bits(progress: &Progress) -> u128 {
    let [low, high] = progress.detail;
    u128::from(low) | u128::from(high) << 64
}

fn set_bits(progress: &mut Progress, bits: u128) {
    progress.detail = [bits as u64, (bits >> 64) as u64];
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(numbers: impl IntoIterator<Item = u64>) -> Progress {
        let mut progress = Progress::default();
        for number in numbers {
            assert_eq!(Arrive.admit(&progress, number, 128), Admission::Place);
            Arrive.place(&mut progress, number);
        }
        progress
    }

    #[test]
    fn any_order_within_the_window_is_taken_once() {
        let progress = placed([3, 1, 127, 64, 65]);
        assert_eq!(progress.mark, 0);
        for number in [1, 3, 64, 65, 127] {
            assert_eq!(
                Arrive.admit(&progress, number, 128),
                Admission::Duplicate,
                "{number}"
            );
        }
        for number in [0, 2, 4, 63, 66, 126] {
            assert_eq!(
                Arrive.admit(&progress, number, 128),
                Admission::Place,
                "{number}"
            );
        }
        for number in [128, 129, 1 << 40, u64::MAX] {
            assert_eq!(
                Arrive.admit(&progress, number, 1024),
                Admission::BeyondWindow,
                "{number}"
            );
        }
        assert_eq!(Arrive.admit(&progress, 8, 8), Admission::BeyondWindow);
    }

    #[test]
    fn what_came_before_some_batches_is_found_from_what_came_after_them() {
        let numbers: Vec<u64> = vec![3, 0, 1, 5, 129, 2, 4, 7, 6, 131, 8, 133];
        for before in 0..=numbers.len() {
            let mut progress = placed(numbers.iter().copied());
            let later = numbers[before..].iter().copied().collect();
            Arrive.unplace(&mut progress, &later);
            let expected = placed(numbers[..before].iter().copied());
            assert_eq!(progress, expected, "the first {before}");
        }
    }

    #[test]
    fn the_mark_moves_over_all_that_is_placed() {
        let mut progress = placed((1..128).rev());
        Arrive.place(&mut progress, 0);
        assert_eq!(progress.mark, 128);
        assert_eq!(progress.detail, [0; 2]);
        let progress = placed([2, 1, 4, 0]);
        assert_eq!(progress.mark, 3);
        assert!(Arrive.is_placed(&progress, 4) && !Arrive.is_placed(&progress, 3));
    }

    #[test]
    fn any_memory_is_read_without_harm() {
        let mut progress = Progress {
            mark: u64::MAX - 1,
            detail: [u64::MAX; 2],
        };
        assert!(!Arrive.is_placed(&progress, u64::MAX - 1));
        Arrive.place(&mut progress, u64::MAX - 1);
        assert_eq!(progress.mark, u64::MAX);
        Arrive.place(&mut progress, 5);
        assert_eq!(progress.mark, u64::MAX);
    }
}
