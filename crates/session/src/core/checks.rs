//! Checks what a peer sent: each frame's header before the core asks for more of the frame, and its
//! checksum.

use embar_frame::{
    CHECKSUM_BYTES, FRAME_HEADER_BYTES, FrameError, FrameHeader, Protocol, Shape, verify_checksum,
};
use embar_memory::canary::{Canary, injected};
use embar_transport::Memory;

use super::SessionCore;
use super::frames::{CHUNK_CONTENT_MAX, OwnId};
use crate::config::MAX_OWN_FRAME_BYTES;
use crate::reason::CloseReason;

/// What is wrong with a peer, and the words for it.
pub(super) type Fault = (CloseReason, String);

/// Bytes in which a frame says how long its head is.
const HEAD_LENGTH_BYTES: usize = 4;

/// Bytes behind the content of a frame that the owner gets whole.
pub(super) const fn checksum_bytes<P: Protocol>() -> usize {
    if P::CHECKED { CHECKSUM_BYTES } else { 0 }
}

/// The header of a frame without the checksum that it has to have if the owner gets it whole;
/// `None` if it has none.
#[inline]
pub(super) fn content_of<P: Protocol>(header: FrameHeader) -> Option<FrameHeader> {
    match P::CHECKED {
        true => header.without_checksum(),
        false => Some(header),
    }
}

impl<P: Protocol, M: Memory> SessionCore<P, M> {
    /// Verifies the checksum of the frame that ends at `end`, if its protocol has any.
    #[inline]
    pub(super) fn verify(&self, end: usize) -> Result<(), Fault> {
        match P::CHECKED {
            true => self.verify_checksum(end),
            false => Ok(()),
        }
    }

    #[inline]
    pub(super) fn verify_checksum(&self, end: usize) -> Result<(), Fault> {
        if injected(Canary::FrameChecksum) {
            return Ok(());
        }
        let verified = verify_checksum(&self.recv.readable()[..end]);
        verified.map_err(|error| (CloseReason::Damaged, error.to_string()))
    }

    /// Where the head of the frame is with which `bytes` begin: its start, and its length if that is
    /// known yet. `None` for a frame that the owner gets whole.
    pub(super) fn layout(
        &self,
        header: FrameHeader,
        bytes: &[u8],
    ) -> Result<Option<(usize, Option<usize>)>, Fault> {
        let too_large = |limit: u32| {
            let (bytes, id) = (header.length, header.id);
            let text = format!("a frame with id {id} has {bytes} bytes, the limit is {limit}");
            (CloseReason::TooLarge, text)
        };
        let plain = content_of::<P>(header);
        let shape = self.protocol.shape(plain.unwrap_or(header));
        let (fixed, head) = match shape.map_err(frame_fault)? {
            Shape::Whole => {
                let plain = plain.ok_or_else(|| no_checksum(header))?;
                if plain.length > self.config.max_frame_bytes {
                    return Err(too_large(self.config.max_frame_bytes));
                }
                return Ok(None);
            }
            _ if P::CHECKED && plain.is_some() => {
                let (id, flags) = (header.id, header.flags);
                return Err(frame_fault(FrameError::UnknownFlags { id, flags }));
            }
            Shape::Body { head } => (0, Some(head)),
            Shape::HeadThenBody => {
                let at = FRAME_HEADER_BYTES..FRAME_HEADER_BYTES + HEAD_LENGTH_BYTES;
                let length = bytes.get(at).and_then(|bytes| bytes.first_chunk());
                (HEAD_LENGTH_BYTES, length.copied().map(u32::from_le_bytes))
            }
        };
        if header.length > self.config.max_body_bytes {
            return Err(too_large(self.config.max_body_bytes));
        }
        let shown = fixed as u64 + u64::from(head.unwrap_or(0));
        if shown > u64::from(header.length) {
            let text = format!(
                "a frame with id {} has {} bytes, its head {shown}",
                header.id, header.length
            );
            return Err((CloseReason::BadFrame, text));
        }
        if shown > u64::from(self.config.max_frame_bytes) {
            return Err(too_large(self.config.max_frame_bytes));
        }
        let at = FRAME_HEADER_BYTES + fixed;
        Ok(Some((at, head.map(|head| head as usize))))
    }

    /// The kind of a frame of the session layer.
    pub(super) fn check_own(&self, header: FrameHeader) -> Result<OwnId, Fault> {
        let plain = content_of::<P>(header).ok_or_else(|| no_checksum(header))?;
        let id = self.check_greeting(plain)?;
        if id.is_of_lanes() && self.lanes.is_none() {
            let text = format!(
                "a frame of lanes, of which there are none, id {:#06x}",
                header.id
            );
            return Err((CloseReason::UnknownFrame, text));
        }
        Ok(id)
    }

    /// As [`SessionCore::check_own`], for the header without its checksum, if there is one.
    pub(super) fn check_greeting(&self, header: FrameHeader) -> Result<OwnId, Fault> {
        let bad = |reason, what: &str| Err((reason, format!("{what}, id {:#06x}", header.id)));
        let Some(id) = OwnId::of(header.id) else {
            return bad(CloseReason::UnknownFrame, "an unknown reserved id");
        };
        if header.flags != 0 {
            return bad(
                CloseReason::BadFrame,
                "flags on a frame of the session layer",
            );
        }
        let limit = match id {
            OwnId::StatusReply | OwnId::BodyBegin => self.config.max_frame_bytes,
            OwnId::BodyChunk => CHUNK_CONTENT_MAX,
            _ => MAX_OWN_FRAME_BYTES,
        };
        if header.length > limit {
            return bad(
                CloseReason::TooLarge,
                "a frame of the session layer is too long",
            );
        }
        Ok(id)
    }
}

#[cold]
fn no_checksum(header: FrameHeader) -> Fault {
    let text = format!("a frame with id {:#06x} has no checksum", header.id);
    (CloseReason::Damaged, text)
}

pub(super) fn frame_fault(error: FrameError) -> Fault {
    let reason = match error {
        FrameError::UnknownId { .. } => CloseReason::UnknownFrame,
        FrameError::TooLarge { .. } => CloseReason::TooLarge,
        _ => CloseReason::BadFrame,
    };
    (reason, error.to_string())
}
