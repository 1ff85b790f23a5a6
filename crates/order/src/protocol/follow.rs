//! The protocol of order 5: the core places each batch of a session behind the one before it.

use std::collections::BTreeSet;

use embar_memory::canary::{Canary, injected};

use super::{Admission, Progress, Protocol};

/// Order 5: each batch of a session comes behind its predecessor, and those that come too early wait.
///
/// The first word of [`Progress::detail`] is the number that the epoch began with. All below it were
/// placed in earlier epochs; what of the epoch before is at or above it never was.
#[derive(Debug, Clone, Copy)]
pub struct Follow;

impl Protocol for Follow {
    fn order(&self) -> u8 {
        5
    }

    fn admit(&self, progress: &Progress, number: u64, window: u32) -> Admission {
        match number.checked_sub(progress.mark) {
            None if injected(Canary::Dedupe) => Admission::Place,
            None => Admission::Duplicate,
            Some(0) => Admission::Place,
            Some(ahead) if ahead < window.into() => Admission::Hold,
            Some(_) => Admission::BeyondWindow,
        }
    }

    fn place(&self, progress: &mut Progress, number: u64) {
        progress.mark = number.saturating_add(1);
    }

    fn unplace(&self, progress: &mut Progress, numbers: &BTreeSet<u64>) {
        let first = numbers.first().copied();
        progress.mark = progress.mark.min(first.unwrap_or(u64::MAX));
    }

    fn is_placed(&self, progress: &Progress, number: u64) -> bool {
        number < progress.mark
    }

    fn begin_epoch(&self, progress: &mut Progress) {
        progress.detail = [progress.mark, 0];
    }

    fn was_placed(&self, progress: &Progress, number: u64) -> bool {
        number < progress.detail[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_batch_behind_the_last_one_is_placed() {
        let mut progress = Progress::default();
        for number in 0..10 {
            assert_eq!(Follow.admit(&progress, number, 4), Admission::Place);
            Follow.place(&mut progress, number);
        }
        for (number, admission) in [
            (0, Admission::Duplicate),
            (9, Admission::Duplicate),
            (10, Admission::Place),
            (11, Admission::Hold),
            (13, Admission::Hold),
            (14, Admission::BeyondWindow),
            (u64::MAX, Admission::BeyondWindow),
        ] {
            assert_eq!(Follow.admit(&progress, number, 4), admission, "{number}");
            let placed = admission == Admission::Duplicate;
            assert_eq!(Follow.is_placed(&progress, number), placed, "{number}");
        }
    }

    #[test]
    fn of_the_epoch_before_only_what_is_below_the_beginning_was_placed() {
        let mut progress = Progress::default();
        (0..5).for_each(|number| Follow.place(&mut progress, number));
        Follow.begin_epoch(&mut progress);
        (5..9).for_each(|number| Follow.place(&mut progress, number));
        assert!(Follow.was_placed(&progress, 4));
        assert!(!Follow.was_placed(&progress, 5), "another batch has it now");
    }
}
