//! The time by which the writer of a disk judges ages.
//!
//! The date may jump: somebody sets it, or a machine starts without knowing it. When it goes back, all seems younger, and nothing
//! is lost by that. When it goes ahead, all would seem old, and be thrown away. So this time follows the date back at once, and ahead
//! at most twice as fast as a clock that does not jump. Whatever the date does, a batch stays for half of its age while a writer
//! of the disk is running. In return, what came of age while nobody was running stays for half of its age at most.

use crate::clock::Timestamp;
use embar_frame::Now;

/// How much faster than a clock that does not jump it is at most.
const SPEED_MAX: u64 = 2;

/// The time by which ages are judged.
#[derive(Debug)]
pub(super) struct AgeClock {
    /// In nanoseconds since the Unix epoch.
    judged: u64,
    /// When the newest batch was written that was found: so late it is, unless the date says otherwise.
    newest: u64,
    last: Option<Now>,
}

impl AgeClock {
    /// On a disk whose newest batch was written then, in nanoseconds since the Unix epoch; 0 if it has none.
    pub fn new(newest: u64) -> Self {
        Self {
            judged: 0,
            newest,
            last: None,
        }
    }

    /// The time by which ages were judged last, in nanoseconds since the Unix epoch.
    pub fn judged(&self) -> u64 {
        self.judged
    }

    /// The time by which ages are judged now, in nanoseconds since the Unix epoch.
    pub fn advance(&mut self, time: Timestamp) -> u64 {
        let date = time.wall.0;
        let judged = match self.last {
            Some(last) => {
                let passed = time.now.0.saturating_sub(last.0);
                self.judged.saturating_add(passed.saturating_mul(SPEED_MAX))
            }
            None if self.newest == 0 => date,
            None => self.newest,
        };
        self.last = Some(time.now);
        self.judged = judged.max(self.newest).min(date);
        self.judged
    }
}

#[cfg(test)]
mod tests {
    use embar_wire::time::WallNs;

    use super::*;

    const DAY: u64 = 1_000_000;

    fn at(now: u64, date: u64) -> Timestamp {
        Timestamp {
            now: Now(now),
            wall: WallNs(date),
        }
    }

    #[test]
    fn it_is_the_date_where_nothing_jumps() {
        let mut clock = AgeClock::new(0);
        for passed in [0, 1, DAY, 9 * DAY] {
            assert_eq!(
                clock.advance(at(5 + passed, 70 * DAY + passed)),
                70 * DAY + passed
            );
        }
    }

    #[test]
    fn it_follows_the_date_back_at_once_and_ahead_slowly() {
        let mut clock = AgeClock::new(0);
        clock.advance(at(0, 70 * DAY));
        assert_eq!(clock.advance(at(DAY, 400 * DAY)), 72 * DAY, "a year ahead");
        assert_eq!(
            clock.advance(at(2 * DAY, 72 * DAY)),
            72 * DAY,
            "and set right"
        );
        assert_eq!(clock.advance(at(3 * DAY, 13 * DAY)), 13 * DAY, "back");
        assert_eq!(clock.advance(at(4 * DAY, 74 * DAY)), 15 * DAY);
        assert_eq!(
            clock.advance(at(90 * DAY, 160 * DAY)),
            160 * DAY,
            "it caught up"
        );
    }

    #[test]
    fn what_was_found_gets_half_of_its_age_at_least() {
        let mut clock = AgeClock::new(70 * DAY);
        assert_eq!(
            clock.advance(at(0, 400 * DAY)),
            70 * DAY,
            "stopped, or a jump?"
        );
        assert_eq!(clock.advance(at(DAY, 401 * DAY)), 72 * DAY);
    }

    #[test]
    fn a_date_that_was_unknown_at_first_is_believed_up_to_what_was_found() {
        let mut clock = AgeClock::new(70 * DAY);
        assert_eq!(
            clock.advance(at(0, 0)),
            0,
            "as after a start without a date"
        );
        assert_eq!(clock.advance(at(1, 71 * DAY)), 70 * DAY, "it is known now");
    }
}
