//! A clock that is quick to read. It is the only module of this crate that reads one.

use std::sync::LazyLock;

use embar_meter::clock::{Scale, ticks};

static SCALE: LazyLock<Scale> = LazyLock::new(Scale::of_this_machine);

/// Nanoseconds since some time in the past that is the same for all threads. Never 0, which stands
/// for "no time".
#[must_use]
pub fn now() -> u64 {
    SCALE.to_ns(ticks()).max(1)
}
