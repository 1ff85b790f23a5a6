//! A protocol whose frames end with a checksum.

use embar_session::{FrameError, FrameHeader, Plain, Protocol, Shape};

/// As [`Plain`], with checksums.
#[derive(Clone)]
pub struct Sums;

impl Protocol for Sums {
    const NAME: &'static str = "sums";
    const VERSION: u32 = 1;
    const CHECKED: bool = true;

    fn shape(&self, header: FrameHeader) -> Result<Shape, FrameError> {
        Plain.shape(header)
    }
}
