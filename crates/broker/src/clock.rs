//! The only place where a broker reads a clock.

use std::time::{Instant, SystemTime};

use embar_wire::time::{Now, WallNs};

use crate::shard::At;

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

    pub fn at(self) -> At {
        let nanos = self.start.elapsed().as_nanos();
        At {
            now: Now(u64::try_from(nanos).unwrap_or(u64::MAX)),
            wall: WallNs::from(SystemTime::now()),
        }
    }
}
