//! What is sent as one buffer although it lies in many places: up to 64 headers, each with a
//! payload that may be in another process's memory, or up to 64 whole frames of this one's.

use std::fmt;
use std::sync::Arc;

use super::Named;
use embar_memory::{Buffer, Foreign, Mapped, Memory, Span};

/// Most pieces of one body: with a header and a payload each, they still go by one system call.
pub const PIECES_MAX: usize = 64;

/// Bytes of a piece's header.
pub const PIECE_HEADER_BYTES: usize = 64;

/// Foreign bytes copied at once where a slice of them is needed.
const COPY_BYTES: usize = 16 << 10;

/// What follows a piece's header.
pub enum Payload<M: Memory = Mapped> {
    /// Committed bytes of the own log; the span keeps them in place.
    Own(Span<M>),
    /// Bytes of another process's log, which nothing keeps still.
    Foreign(Foreign<M>),
    /// What follows the header in private memory that others of this process also hold, such as a
    /// batch kept for a resend: all but its first [`PIECE_HEADER_BYTES`].
    Shared(Arc<Buffer>),
}

impl<M: Memory> Payload<M> {
    fn len(&self) -> usize {
        match self {
            Self::Shared(frame) => frame.len() - PIECE_HEADER_BYTES,
            Self::Own(span) => span.len(),
            Self::Foreign(foreign) => foreign.len(),
        }
    }
}

struct Piece<M: Memory> {
    header: [u8; PIECE_HEADER_BYTES],
    payload: Payload<M>,
    /// Where it begins in the body.
    start: usize,
}

impl<M: Memory> Piece<M> {
    fn end(&self) -> usize {
        self.start + PIECE_HEADER_BYTES + self.payload.len()
    }
}

/// Bytes of one piece that lie together.
pub(crate) enum Part<'a, M: Memory> {
    /// Private memory: of its header, or of a frame that holds both.
    Private(&'a [u8]),
    /// Of its payload, from this byte on.
    Own(&'a Span<M>, usize),
    /// Of its payload, from this byte on.
    Foreign(&'a Foreign<M>, usize),
}

impl<M: Memory> Part<'_, M> {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Private(bytes) => bytes.is_empty(),
            Self::Own(span, from) => *from == span.len(),
            Self::Foreign(foreign, from) => *from == foreign.len(),
        }
    }
}

/// Up to [`PIECES_MAX`] pieces, sent one behind the other: each a header that belongs to this value,
/// then a payload that stays where it is.
pub struct Pieces<M: Memory = Mapped> {
    pieces: Vec<Piece<M>>,
    has_foreign: bool,
}

impl<M: Memory> Pieces<M> {
    /// Without pieces, and without an allocation before the first.
    pub fn new() -> Self {
        Self {
            pieces: Vec::new(),
            has_foreign: false,
        }
    }

    /// Adds a piece. Foreign bytes are [invalidated](Foreign::invalidate) here, so the record that
    /// points to them was observed before.
    ///
    /// # Panics
    /// If there are [`PIECES_MAX`] already.
    pub fn push(&mut self, header: [u8; PIECE_HEADER_BYTES], payload: Payload<M>) {
        assert!(!self.is_full(), "more than {PIECES_MAX} pieces");
        if let Payload::Foreign(foreign) = &payload {
            foreign.invalidate();
            self.has_foreign = true;
        }
        let start = self.len();
        self.pieces.push(Piece {
            header,
            payload,
            start,
        });
    }

    /// Adds a frame of private memory, its header included.
    ///
    /// # Panics
    /// If there are [`PIECES_MAX`] already, or if the frame is shorter than a header.
    pub fn push_frame(&mut self, frame: Arc<Buffer>) {
        let header = frame.first_chunk().copied();
        self.push(header.expect("a header"), Payload::Shared(frame));
    }

    /// Bytes of all pieces, headers and payloads.
    pub fn len(&self) -> usize {
        self.pieces.last().map_or(0, Piece::end)
    }

    /// Whether there is no piece.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Whether there is no room for another piece.
    pub fn is_full(&self) -> bool {
        self.count() == PIECES_MAX
    }

    /// Whether some of the bytes are not kept still.
    pub fn has_foreign(&self) -> bool {
        self.has_foreign
    }

    /// Lets go of all pieces and keeps the room for others.
    pub fn clear(&mut self) {
        self.pieces.clear();
        self.has_foreign = false;
    }

    /// All parts but the first `skip` bytes, none of them empty.
    pub(crate) fn parts(&self, skip: usize) -> impl Iterator<Item = Part<'_, M>> {
        let first = self.pieces.partition_point(|piece| piece.end() <= skip);
        self.pieces[first..]
            .iter()
            .flat_map(move |piece| {
                let skip = skip.saturating_sub(piece.start);
                let from = skip.saturating_sub(PIECE_HEADER_BYTES);
                let header = &piece.header[skip.min(PIECE_HEADER_BYTES)..];
                match &piece.payload {
                    Payload::Own(span) => [Part::Private(header), Part::Own(span, from)],
                    Payload::Foreign(foreign) => {
                        [Part::Private(header), Part::Foreign(foreign, from)]
                    }
                    // Both lie together.
                    Payload::Shared(frame) => [Part::Private(&frame[skip..]), Part::Private(&[])],
                }
            })
            .filter(|part| !part.is_empty())
    }

    /// Lets `f` see bytes behind the first `skip`: as many as lie together, of foreign ones a copy
    /// of at most `most`; none at the end.
    pub(super) fn with_next<R>(&self, skip: usize, most: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        match self.parts(skip).next() {
            None => f(&[]),
            Some(Part::Private(bytes)) => f(bytes),
            Some(Part::Own(span, from)) => span.with_bytes(|bytes| f(&bytes[from..])),
            Some(Part::Foreign(foreign, from)) => {
                let mut copy = [0; COPY_BYTES];
                let count = most.min(COPY_BYTES).min(foreign.len() - from);
                let copy = &mut copy[..count];
                foreign.copy_to(from, copy);
                f(copy)
            }
        }
    }

    /// What the next byte behind the first `skip` is of, and where in it, if that is kept still: a frame of memory that others of
    /// this process hold, or a payload of the own log.
    pub(super) fn named(&self, skip: usize) -> Option<(Named<'_, M>, usize)> {
        let next = self.pieces.partition_point(|piece| piece.end() <= skip);
        let piece = self.pieces.get(next)?;
        let from = skip - piece.start;
        match &piece.payload {
            Payload::Shared(frame) => Some((Named::Buffer(frame), from)),
            Payload::Own(span) => {
                let from = from.checked_sub(PIECE_HEADER_BYTES)?;
                Some((Named::Span(span), from))
            }
            Payload::Foreign(_) => None,
        }
    }

    /// A copy of all but the first `skip` bytes.
    pub(super) fn copied(&self, skip: usize) -> Vec<u8> {
        let mut copy = Vec::with_capacity(self.len() - skip);
        for part in self.parts(skip) {
            match part {
                Part::Private(bytes) => copy.extend_from_slice(bytes),
                Part::Own(span, from) => {
                    span.with_bytes(|bytes| copy.extend_from_slice(&bytes[from..]));
                }
                Part::Foreign(foreign, from) => {
                    let start = copy.len();
                    copy.resize(start + foreign.len() - from, 0);
                    foreign.copy_to(from, &mut copy[start..]);
                }
            }
        }
        copy
    }
}

impl<M: Memory> Default for Pieces<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Memory> fmt::Debug for Pieces<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pieces({} of {} bytes)", self.count(), self.len())
    }
}
