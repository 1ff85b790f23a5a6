//! The session layer's own frames (HELLO, WELCOME, PING, PONG, GOODBYE, CLOSE, STATUS and its
//! reply, bodies in chunks): their ids, and how they are written and read.

use buffa::{DecodeError, DecodeOptions, MessageView, ViewEncode};
use embar_frame::{
    CHECKSUM_BYTES, FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, write_checksum,
};

use crate::config::{MAX_CHUNK_BYTES, MAX_OWN_FRAME_BYTES, MAX_REASON_BYTES};
use crate::proto;
use crate::reason::{CloseReason, Closed, Side};
use crate::sender::{Bounded, Sender};

/// Version of these frames, exchanged in HELLO and WELCOME.
pub const SESSION_VERSION: u32 = 1;
/// The first bytes of a greeting.
pub(super) const MAGIC: u32 = u32::from_le_bytes(*b"EMBS");

/// In a chunk's frame, the bytes that say its lane.
pub(super) const CHUNK_FIXED_BYTES: usize = 4;
/// Where the bytes of a body begin in a chunk's frame.
pub(super) const CHUNK_AT: usize = FRAME_HEADER_BYTES + CHUNK_FIXED_BYTES;
/// Longest content of a chunk's frame.
pub(super) const CHUNK_CONTENT_MAX: u32 = (MAX_CHUNK_BYTES + CHUNK_FIXED_BYTES) as u32;

/// An id of the session layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnId {
    Hello,
    Welcome,
    Ping,
    Pong,
    Goodbye,
    Close,
    Status,
    StatusReply,
    BodyBegin,
    BodyChunk,
    BodyTaken,
    BodyRefused,
    BodyCancelled,
}

impl OwnId {
    const ALL: [Self; 13] = [
        Self::Hello,
        Self::Welcome,
        Self::Ping,
        Self::Pong,
        Self::Goodbye,
        Self::Close,
        Self::Status,
        Self::StatusReply,
        Self::BodyBegin,
        Self::BodyChunk,
        Self::BodyTaken,
        Self::BodyRefused,
        Self::BodyCancelled,
    ];

    pub(super) fn number(self) -> u16 {
        FIRST_RESERVED_ID + self as u16
    }

    /// Whether it is about bodies in chunks.
    pub(super) fn is_of_lanes(self) -> bool {
        use OwnId::{BodyBegin, BodyCancelled, BodyChunk, BodyRefused, BodyTaken};
        matches!(
            self,
            BodyBegin | BodyChunk | BodyTaken | BodyRefused | BodyCancelled
        )
    }

    pub(super) fn of(number: u16) -> Option<Self> {
        let index = number.checked_sub(FIRST_RESERVED_ID)?;
        Self::ALL.get(usize::from(index)).copied()
    }
}

/// Puts a frame into the send ring; false if it has no room now.
pub(super) fn put<'v>(sender: &Sender, id: OwnId, view: &impl ViewEncode<'v>) -> bool {
    let len = view.encoded_len() as usize;
    debug_assert!(len <= MAX_OWN_FRAME_BYTES as usize);
    let Ok(mut draft) = sender.draft(id.number(), 0, len) else {
        return false;
    };
    let written = Bounded::fill(&mut draft, |out| view.encode(out));
    assert!(written.is_ok(), "our own messages do not change in between");
    // The core sends it by its next poll, which follows every call that leads here.
    let _ = draft.commit_uncounted();
    true
}

/// CLOSE, as bytes of its own.
pub(super) fn close_frame(closed: &Closed, checked: bool) -> Vec<u8> {
    let view = proto::CloseView {
        reason: closed.reason.number().into(),
        code: closed.code,
        text: &closed.text,
    };
    frame(OwnId::Close, &view, checked)
}

/// A frame as bytes of its own, for what cannot go through the ring.
pub(super) fn frame<'v>(id: OwnId, view: &impl ViewEncode<'v>, checked: bool) -> Vec<u8> {
    let content = view.encode_to_vec();
    let header = FrameHeader {
        length: content.len() as u32,
        id: id.number(),
        flags: 0,
    };
    if !checked {
        return [&header.to_bytes(), &content[..]].concat();
    }
    let header = header.with_checksum();
    let mut frame = [&header.to_bytes(), &content[..], &[0; CHECKSUM_BYTES]].concat();
    write_checksum(&mut frame);
    frame
}

/// A frame without a checksum, as bytes of its own.
pub(super) fn plain_frame<'v>(id: OwnId, view: &impl ViewEncode<'v>) -> Vec<u8> {
    frame(id, view, false)
}

/// What a CLOSE frame says.
pub(super) fn read_close(body: &[u8]) -> Result<Closed, DecodeError> {
    let view: proto::CloseView<'_> = read(body)?;
    Ok(Closed {
        by: Side::Peer,
        reason: CloseReason::from_number(view.reason.to_i32()),
        code: view.code,
        text: cut(view.text).to_owned(),
    })
}

pub(super) fn read<'a, V: MessageView<'a>>(body: &'a [u8]) -> Result<V, DecodeError> {
    read_within(MAX_OWN_FRAME_BYTES as usize, body)
}

pub(super) fn read_within<'a, V: MessageView<'a>>(
    most: usize,
    body: &'a [u8],
) -> Result<V, DecodeError> {
    DecodeOptions::new()
        .with_max_message_size(most)
        .with_element_memory_limit(0)
        .with_recursion_limit(4)
        .decode_view(body)
}

/// At most [`MAX_REASON_BYTES`] of a text, whole characters.
pub(super) fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_REASON_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use embar_frame::verify_checksum;

    #[test]
    fn ids_are_numbered_without_gaps_from_the_first_reserved_one() {
        for (index, id) in OwnId::ALL.into_iter().enumerate() {
            assert_eq!(id.number(), 0xFF00 + index as u16);
            assert_eq!(OwnId::of(id.number()), Some(id));
        }
        assert_eq!(OwnId::of(0xFF0D), None);
        assert_eq!(OwnId::of(0xFEFF), None);
    }

    #[test]
    fn a_close_frame_says_what_it_was_told_to() {
        let closed = Closed {
            by: Side::Peer,
            reason: CloseReason::Refused,
            code: 17,
            text: "é".repeat(MAX_REASON_BYTES),
        };
        let told = Closed {
            text: cut(&closed.text).to_owned(),
            ..closed.clone()
        };
        let frame = close_frame(&told, false);
        let checked = close_frame(&told, true);
        assert_eq!(verify_checksum(&checked), Ok(()));
        let content = FRAME_HEADER_BYTES..checked.len() - CHECKSUM_BYTES;
        assert_eq!(checked[content], frame[FRAME_HEADER_BYTES..]);
        let read = read_close(&frame[FRAME_HEADER_BYTES..]).expect("our own frame");
        assert_eq!(read.text.len(), MAX_REASON_BYTES);
        assert_eq!((read.reason, read.code), (closed.reason, closed.code));
    }
}
