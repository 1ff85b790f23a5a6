//! Writes and verifies the checksum at the end of a frame, for protocols that want one.
//!
//! ```text
//! 0      frame header, with the flag [`CHECKED`]; its length counts the checksum
//! 8      content
//! n - 4  u32 CRC-32C of all before it, the header included
//! ```
//! A frame with a body has no checksum here: its protocol knows how to check the body.

use thiserror::Error;

use crate::crc::crc32c;
use crate::header::FrameHeader;

/// Size of the checksum that frames without a body end with.
pub const CHECKSUM_BYTES: usize = 4;

/// The flag of a frame that ends with a checksum. It belongs to the layer that carries frames, which
/// does not show it to a [`Protocol`](crate::Protocol) that [has checksums](crate::Protocol::CHECKED).
pub const CHECKED: u16 = 0x8000;

impl FrameHeader {
    /// The header of the frame with a checksum behind its content.
    #[inline]
    #[must_use]
    pub fn with_checksum(self) -> Self {
        Self {
            length: self.length + CHECKSUM_BYTES as u32,
            flags: self.flags | CHECKED,
            ..self
        }
    }

    /// The header of the content alone; `None` unless the frame says that it has a checksum, and has
    /// room for it.
    #[inline]
    #[must_use]
    pub fn without_checksum(self) -> Option<Self> {
        let length = self.length.checked_sub(CHECKSUM_BYTES as u32)?;
        (self.flags & CHECKED != 0).then_some(Self {
            length,
            flags: self.flags & !CHECKED,
            ..self
        })
    }
}

/// Fills in the last bytes of a whole frame whose header is [`FrameHeader::with_checksum`].
///
/// # Panics
/// If there is no room for them.
#[inline]
pub fn write_checksum(frame: &mut [u8]) {
    let (bytes, checksum) = frame
        .split_last_chunk_mut::<CHECKSUM_BYTES>()
        .expect("a frame with room for its checksum");
    *checksum = crc32c(bytes).to_le_bytes();
}

/// Checks the last bytes of a whole frame whose header is [`FrameHeader::with_checksum`].
///
/// # Errors
/// [`ChecksumError`] if some byte is not as it was sent.
#[inline]
pub fn verify_checksum(frame: &[u8]) -> Result<(), ChecksumError> {
    let (bytes, found) = match frame.split_last_chunk::<CHECKSUM_BYTES>() {
        Some((bytes, found)) => (bytes, u32::from_le_bytes(*found)),
        None => (frame, 0),
    };
    let computed = crc32c(bytes);
    if found == computed {
        Ok(())
    } else {
        Err(ChecksumError { found, computed })
    }
}

/// A frame that is not as it was sent. Nothing of it can be trusted, not even where it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "a frame's checksum is {found:#010x}, that of its bytes {computed:#010x}: it was damaged on its way"
)]
pub struct ChecksumError {
    /// What the frame says.
    pub found: u32,
    /// What its bytes give.
    pub computed: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header::FRAME_HEADER_BYTES;

    #[test]
    fn a_flipped_bit_anywhere_is_noticed() {
        let header = FrameHeader::new(7u16, 24).with_checksum();
        assert_eq!((header.length, header.flags), (28, CHECKED));
        let mut frame = vec![7; FRAME_HEADER_BYTES + 28];
        frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes());
        write_checksum(&mut frame);
        assert_eq!(verify_checksum(&frame), Ok(()));
        for bit in 0..frame.len() * 8 {
            frame[bit / 8] ^= 1 << (bit % 8);
            assert!(verify_checksum(&frame).is_err(), "bit {bit}");
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(verify_checksum(&frame[..3]).is_err());
    }

    #[test]
    fn a_header_comes_back_without_its_checksum() {
        let header = FrameHeader::new(8u16, 0);
        assert_eq!(header.without_checksum(), None);
        assert_eq!(header.with_checksum().without_checksum(), Some(header));
        let short = FrameHeader {
            length: 3,
            flags: CHECKED,
            ..header
        };
        assert_eq!(short.without_checksum(), None);
    }
}
