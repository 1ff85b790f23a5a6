//! The header of every frame.
//!
//! ```text
//! 0  u32  length   bytes that follow these 8
//! 4  u16  id       what the frame carries
//! 6  u16  flags    [`CHECKED`](crate::CHECKED), those of the protocol, else 0
//! ```

/// Size of the header that every frame starts with.
pub const FRAME_HEADER_BYTES: usize = 8;

/// The first 8 bytes of every frame, as they are: not checked yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the frame after this header.
    pub length: u32,
    /// What it carries, as a raw number.
    pub id: u16,
    /// What else the frame says of itself.
    pub flags: u16,
}

impl FrameHeader {
    /// The header of a frame with `length` bytes of body and no flags.
    #[must_use]
    pub fn new(id: impl Into<u16>, length: u32) -> Self {
        Self {
            length,
            id: id.into(),
            flags: 0,
        }
    }

    /// Reads the fields. Any 8 bytes are a header; [`Protocol::shape`](crate::Protocol::shape) says
    /// whether a good one.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; FRAME_HEADER_BYTES]) -> Self {
        let [l0, l1, l2, l3, i0, i1, f0, f1] = *bytes;
        Self {
            length: u32::from_le_bytes([l0, l1, l2, l3]),
            id: u16::from_le_bytes([i0, i1]),
            flags: u16::from_le_bytes([f0, f1]),
        }
    }

    /// The 8 bytes on the wire.
    #[must_use]
    pub fn to_bytes(self) -> [u8; FRAME_HEADER_BYTES] {
        let word = u64::from(self.length) | u64::from(self.id) << 32 | u64::from(self.flags) << 48;
        word.to_le_bytes()
    }

    /// Bytes of the whole frame, this header included.
    #[inline]
    #[must_use]
    pub fn frame_bytes(self) -> usize {
        (self.length as usize).saturating_add(FRAME_HEADER_BYTES)
    }
}
