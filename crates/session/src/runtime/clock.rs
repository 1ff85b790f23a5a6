//! The only place where the runtime reads a clock.

use std::sync::LazyLock;
use std::time::Instant;

use embar_frame::Now;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time since the process first asked. One clock for all threads, because callers and workers
/// compare their times.
pub(super) fn now() -> Now {
    Now(u64::try_from(START.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
