//! A small region, as one host sees it.

mod devices;

use embar_fabric::{Geometry, Region};
use embar_memory::Simulated;

pub use devices::small;

/// Formatted.
pub fn region(geometry: &Geometry) -> Region<Simulated> {
    devices::Devices::formatted(geometry).host(1)
}
