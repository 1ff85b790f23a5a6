//! Whether processes live.

use embar_fabric::region::Region;
use embar_memory::Mapped;

use crate::node::counts_as_alive;

/// Whether a live process holds a row, as far as its lock tells.
pub(super) fn is_alive(region: &Region<Mapped>, row: u16) -> bool {
    counts_as_alive(region.owner_alive(row))
}
