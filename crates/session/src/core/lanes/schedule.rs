//! Whose turn it is among lanes: each has twice the share of the one after it, as long as both have
//! something to send.
//!
//! A strict order would starve the later lanes, and a body that does not go on runs into the peer's
//! `frame_timeout`. Of as many chunks as there are shares in all, each lane gets its own.

use crate::config::MAX_BODY_LANES;

/// How far each lane is behind its share.
#[derive(Debug, Default)]
pub(super) struct Schedule {
    behind: [i32; MAX_BODY_LANES as usize],
}

impl Schedule {
    /// The lane of `lanes` whose turn it is, by index, of those that are ready.
    pub(super) fn next(&mut self, lanes: usize, ready: impl Fn(usize) -> bool) -> Option<usize> {
        let mut chosen = None;
        let mut shares = 0;
        for lane in 0..lanes {
            if !ready(lane) {
                self.behind[lane] = 0;
                continue;
            }
            let share = 1 << (lanes - 1 - lane);
            shares += share;
            self.behind[lane] += share;
            if chosen.is_none_or(|chosen: usize| self.behind[lane] > self.behind[chosen]) {
                chosen = Some(lane);
            }
        }
        self.behind[chosen?] -= shares;
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_lane_has_twice_the_share_of_the_next_and_none_starves() {
        let mut schedule = Schedule::default();
        for _ in 0..10 {
            let mut counts = [0; 4];
            for _ in 0..15 {
                counts[schedule.next(4, |_| true).unwrap()] += 1;
            }
            assert_eq!(counts, [8, 4, 2, 1]);
        }
    }

    #[test]
    fn what_is_not_ready_has_no_turn_and_saves_none_up() {
        let mut schedule = Schedule::default();
        assert_eq!(schedule.next(4, |_| false), None);
        for _ in 0..100 {
            assert_eq!(schedule.next(4, |lane| lane == 3), Some(3));
        }
        let turns = (0..15).map(|_| schedule.next(4, |_| true).unwrap());
        assert_eq!(turns.filter(|lane| *lane == 0).count(), 8);
    }
}
