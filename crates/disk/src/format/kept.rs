//! The fact that says which segment is the oldest that is kept.

use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::layout::Layout;

crate::layout! {
    /// A fact: which segments are kept.
    Raw, "first kept", 8 {
        /// Number of the oldest segment that is kept: those below it may be gone.
        0 segment: U64,
    }
}

/// What lies where in the fact about [`ABOUT_SEGMENTS`](super::ABOUT_SEGMENTS).
pub const FIRST_KEPT_LAYOUT: Layout = Raw::LAYOUT;

/// The bytes of the fact.
pub(crate) fn encode_first_kept(segment: u64) -> Vec<u8> {
    let segment = segment.into();
    Raw { segment }.as_bytes().to_vec()
}

/// What they say.
pub(crate) fn decode_first_kept(bytes: &[u8]) -> Option<u64> {
    let raw = Raw::read_from_bytes(bytes).ok()?;
    Some(raw.segment.get())
}
