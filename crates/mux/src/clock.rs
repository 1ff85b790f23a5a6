//! The only module of this crate that reads a clock.

use std::sync::LazyLock;

use embar_meter::clock::{Scale, ticks};

static SCALE: LazyLock<Scale> = LazyLock::new(Scale::of_this_machine);

/// Nanoseconds since some time in the past that is the same for all threads. Never 0, which stands
/// for "no time".
pub(crate) fn now() -> u64 {
    SCALE.to_ns(ticks()).max(1)
}
