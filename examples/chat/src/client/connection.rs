//! When to connect again, and for how long.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use embar_session::{CloseReason, Closed, Side};

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// A server that is away for longer does not come back.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time without a connection.
#[derive(Default)]
pub struct Outage {
    began: Option<Instant>,
    tries: u32,
}

impl Outage {
    /// Whether this is the first thing that went wrong.
    pub fn begins(&self) -> bool {
        self.began.is_none()
    }

    /// How long to wait before the next try; none if there is no hope.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        let began = *self.began.get_or_insert(now);
        if now.duration_since(began) > PATIENCE {
            return None;
        }
        let pause = FIRST_PAUSE * 2_u32.pow(self.tries.min(10));
        self.tries += 1;
        // Differs from client to client, so that not all come back at once.
        let share = RandomState::new().hash_one(()) % 1000;
        Some(pause.min(LONGEST_PAUSE) * (500 + share as u32 / 2) / 1000)
    }
}

/// Whether it may be better next time.
pub fn may_pass(why: &Closed) -> bool {
    match why.reason {
        // The server closes the room. This end has not said so where it did not want to leave.
        CloseReason::Finished => why.by != Side::Peer,
        CloseReason::Shutdown
        | CloseReason::Disconnected
        | CloseReason::CutFrame
        | CloseReason::Io(_)
        | CloseReason::Idle
        | CloseReason::Full
        | CloseReason::HelloTimeout
        | CloseReason::FrameTimeout
        | CloseReason::TooManySessions
        | CloseReason::OutOfMemory => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_end() {
        let now = Instant::now();
        let mut outage = Outage::default();
        assert!(outage.begins());
        let pauses: Vec<_> = (0..9).map(|_| outage.pause(now).unwrap()).collect();
        assert!(!outage.begins());
        assert!((FIRST_PAUSE / 2..=FIRST_PAUSE).contains(&pauses[0]));
        assert!(pauses[2] > pauses[0]);
        assert!((LONGEST_PAUSE / 2..=LONGEST_PAUSE).contains(&pauses[8]));
        assert!(outage.pause(now + PATIENCE).is_some());
        assert!(outage.pause(now + PATIENCE * 2).is_none());
    }
}
