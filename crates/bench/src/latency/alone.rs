//! Times one call after the other. Each call sends a message and waits for its answer, so there is never more than one
//! message in flight.

use std::time::Instant;

use anyhow::Result;
use embar_supervise::work::Abort;
use hdrhistogram::Histogram;

/// Of each trial the first messages are not counted: connections, buffers and branches are cold.
const COLD: u64 = 100;
/// Messages between two looks at whether to stop.
const LOOK_EVERY: u64 = 64;

/// Times each call.
pub fn measure(
    iterations: u64,
    times: &mut Histogram<u64>,
    abort: &Abort,
    mut once: impl FnMut() -> Result<()>,
) -> Result<()> {
    for iteration in 0..COLD + iterations {
        if iteration.is_multiple_of(LOOK_EVERY) {
            abort.check()?;
        }
        let began = Instant::now();
        once()?;
        if iteration >= COLD {
            times.saturating_record(began.elapsed().as_nanos() as u64);
        }
    }
    Ok(())
}
