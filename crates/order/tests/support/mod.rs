//! A small region, as one host sees it.

mod devices;

use embar_fabric::{Geometry, Region, Simulated};

pub use devices::small;

/// Formatted.
pub fn region(geometry: &Geometry) -> Region<Simulated> {
    devices::Devices::formatted(geometry).host(1)
}
