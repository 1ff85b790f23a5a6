//! Acknowledgements: which batches of this connection are where.
//!
//! ```text
//!  0 frame header
//!  8 u64 first    number of the first batch acknowledged, counted from 0 as they arrived here
//! 16 u32 count    batches acknowledged by this frame
//! 20 u32 status   0, or the [`ErrorCode`] with which all of them were refused
//! 24 count x u64  base offsets
//!    u32 checksum  [`write_checksum`]
//! ```
//! With [`ErrorCode::Fenced`] each offset is the session's mark, with other refusals 0.

use embar_frame::{FRAME_HEADER_BYTES, FrameHeader, write_checksum};
use thiserror::Error;
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;

use crate::control::ErrorCode;
use crate::frame::FrameId;
use crate::limits::MAX_ACK_BATCHES;

/// In place of a base offset: the batch is stored, once, and where is not known any more.
pub const POSITION_UNKNOWN: u64 = u64::MAX;

const FIXED_BYTES: usize = 16;

/// An ack over borrowed bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ack<'a> {
    first: u64,
    status: u32,
    offsets: &'a [U64],
}

impl<'a> Ack<'a> {
    /// Reads the body of an ack frame.
    ///
    /// # Errors
    /// [`AckError::Length`] if the body is not exactly as long as its count says, or beyond
    /// [`MAX_ACK_BATCHES`].
    pub fn parse(body: &'a [u8]) -> Result<Self, AckError> {
        let bytes = body.len();
        let Some((fixed, list)) = body.split_first_chunk::<FIXED_BYTES>() else {
            return Err(AckError::Length { bytes, count: 0 });
        };
        let [
            f0,
            f1,
            f2,
            f3,
            f4,
            f5,
            f6,
            f7,
            c0,
            c1,
            c2,
            c3,
            s0,
            s1,
            s2,
            s3,
        ] = *fixed;
        let count = u32::from_le_bytes([c0, c1, c2, c3]);
        let offsets = <[U64]>::ref_from_bytes(list).unwrap_or_default();
        let exact = offsets.len() == count as usize && size_of_val(offsets) == list.len();
        if !exact || offsets.len() > MAX_ACK_BATCHES {
            return Err(AckError::Length { bytes, count });
        }
        Ok(Self {
            first: u64::from_le_bytes([f0, f1, f2, f3, f4, f5, f6, f7]),
            status: u32::from_le_bytes([s0, s1, s2, s3]),
            offsets,
        })
    }

    /// Number of the first batch acknowledged, counted from 0 in the order of arrival.
    #[must_use]
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Batches acknowledged.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.offsets.len() as u32
    }

    /// Why the batches were refused; `None` if they were accepted.
    #[must_use]
    pub fn refused(&self) -> Option<ErrorCode> {
        (self.status != 0).then(|| ErrorCode::from_number(self.status))
    }

    /// Base offset of each batch, in order; [`POSITION_UNKNOWN`] if it is stored and its place is not
    /// known any more. Of batches that were refused as [`ErrorCode::Fenced`]: the number that their
    /// session expects next; of others that were refused without meaning.
    pub fn base_offsets(&self) -> impl ExactSizeIterator<Item = u64> + use<'a> {
        self.offsets.iter().map(|offset| offset.get())
    }
}

/// Bytes of the body of an ack for `batches` batches.
#[must_use]
pub const fn ack_len(batches: usize) -> usize {
    FIXED_BYTES + batches * size_of::<u64>()
}

/// Writes the body of an ack, without a frame header, for the batches from number `first` on.
///
/// # Panics
/// If there are more than [`MAX_ACK_BATCHES`] offsets (send several frames), or `out` is not of
/// [`ack_len`] bytes.
pub fn write_ack(first: u64, refused: Option<ErrorCode>, base_offsets: &[u64], out: &mut [u8]) {
    assert!(
        base_offsets.len() <= MAX_ACK_BATCHES,
        "too many for one ack frame"
    );
    let status = refused.map_or(0, ErrorCode::number);
    let (fixed, list) = out.split_at_mut(FIXED_BYTES);
    fixed[..8].copy_from_slice(&first.to_le_bytes());
    fixed[8..12].copy_from_slice(&(base_offsets.len() as u32).to_le_bytes());
    fixed[12..].copy_from_slice(&status.to_le_bytes());
    let list = <[U64]>::mut_from_bytes(list).unwrap_or_default();
    assert_eq!(list.len(), base_offsets.len(), "not the length of the ack");
    for (place, offset) in list.iter_mut().zip(base_offsets) {
        place.set(*offset);
    }
}

/// Appends an ack frame, header and checksum included, for the batches from number `first` on.
///
/// # Panics
/// If there are more than [`MAX_ACK_BATCHES`] offsets: send several frames.
pub fn encode_ack(first: u64, refused: Option<ErrorCode>, base_offsets: &[u64], out: &mut Vec<u8>) {
    let length = ack_len(base_offsets.len());
    let header = FrameHeader::new(FrameId::Ack, length as u32).with_checksum();
    let at = out.len();
    out.resize(at + header.frame_bytes(), 0);
    let frame = &mut out[at..];
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.to_bytes());
    let content = &mut frame[FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + length];
    write_ack(first, refused, base_offsets, content);
    write_checksum(frame);
}

/// An ack frame that cannot be accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AckError {
    /// The length does not match the count, or is beyond the limit.
    #[error("an ack of {bytes} bytes does not hold {count} batches")]
    Length {
        /// Bytes of the body.
        bytes: usize,
        /// Batches it claims to acknowledge.
        count: u32,
    },
}
