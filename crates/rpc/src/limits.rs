//! Every limit of the protocol, with its unit.

/// Most bytes of metadata with one call, keys, values and their lengths together.
pub const MAX_METADATA_BYTES: usize = 2048;
/// Longest text of a [`Status`](crate::Status); what is longer is cut.
pub const MAX_STATUS_TEXT_BYTES: usize = 1024;
/// Longest details of a [`Status`](crate::Status); longer ones are left out.
pub const MAX_DETAILS_BYTES: usize = 1024;
/// Most calls that one session may have in flight, whatever the settings say.
pub const MAX_IN_FLIGHT: u32 = 1 << 16;

// So that each status fits into the smallest ring, with room for its header.
const _: () = assert!(
    MAX_STATUS_TEXT_BYTES + MAX_DETAILS_BYTES + 64 <= embar_session::MIN_RING_BYTES
        && MAX_METADATA_BYTES <= u16::MAX as usize
);
