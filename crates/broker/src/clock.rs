//! A broker's two clocks: one counts from the broker's start, the other is the date. The broker's threads read them and
//! hand each event's time to the state machines, which read no clock.

use std::time::{Instant, SystemTime};

use embar_frame::Now;
use embar_wire::time::WallNs;

/// When an event came, on both clocks. The driver reads them; state machines are handed the result.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// Counts from the start of the broker and never goes back.
    pub now: Now,
    /// The date, which may jump.
    pub wall: WallNs,
}

/// Both clocks of one broker, counted from its start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }

    pub fn read(self) -> Timestamp {
        let nanos = self.start.elapsed().as_nanos();
        Timestamp {
            now: Now(u64::try_from(nanos).unwrap_or(u64::MAX)),
            wall: WallNs::from(SystemTime::now()),
        }
    }
}
