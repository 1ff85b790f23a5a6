//! The buffers that a user hands to a reactor, to be filled or sent, and gets back.
//!
//! Nothing here copies on its own account: a buffer owns (or pins) its bytes while the kernel may
//! touch them, and remembers how far it got.

mod lent;
mod pieces;

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use embar_memory::{Buffer, FileId, Mapped, Memory, Reservation, Span};

use crate::ring::{RecvSpace, SendSpan};
pub use lent::LentBytes;
pub(crate) use lent::Lessor;
pub(crate) use pieces::Part;
pub use pieces::{PIECE_HEADER_BYTES, PIECES_MAX, Payload, Pieces};

/// Where received bytes go.
pub enum Store<M: Memory = Mapped> {
    /// Private memory; its length, not its capacity, is what can be filled.
    Heap(Vec<u8>),
    /// A reserved range of payload memory.
    Reserved(Reservation<M>),
    /// Room of a receive ring.
    Ring(RecvSpace),
    /// Bytes that lie where the peer lends them, and the private memory that they were not copied to.
    Lent(LentBytes, Vec<u8>),
}

/// Sees bytes as they are received, in their order, while they are in a cache.
pub trait Witness: Send + Sync {
    /// The next bytes came.
    fn see(&self, bytes: &[u8]);
}

/// A range of memory to receive into, and how much of it is filled. It may have a second part,
/// [`RecvBuf::then`], for what arrives with the last bytes of the first.
///
/// A completion seldom fills all of it: submit it again until [`RecvBuf::remaining`] is 0.
pub struct RecvBuf<M: Memory = Mapped> {
    store: Store<M>,
    start: usize,
    cursor: usize,
    end: usize,
    then: Option<RecvSpace>,
    overflow: usize,
    wanted: usize,
    /// What may be added before its owner says more.
    most: usize,
    witness: Option<Arc<dyn Witness>>,
    seen: usize,
    lent_least: Option<usize>,
}

impl<M: Memory> RecvBuf<M> {
    /// Receives into `bytes[range]`.
    ///
    /// # Panics
    /// If `range` is not within the length of `bytes`.
    pub fn heap(bytes: Vec<u8>, range: Range<usize>) -> Self {
        let len = bytes.len();
        Self::new(Store::Heap(bytes), len, range)
    }

    /// Receives into `range` (bytes from its start) of a reservation.
    ///
    /// # Panics
    /// If `range` is not within the reservation.
    pub fn reserved(reservation: Reservation<M>, range: Range<usize>) -> Self {
        let len = reservation.len();
        Self::new(Store::Reserved(reservation), len, range)
    }

    /// Receives into all of `space`.
    pub fn ring(space: RecvSpace) -> Self {
        let len = space.len();
        Self::new(Store::Ring(space), len, 0..len)
    }

    /// Once the range is full, bytes go on into `space`, by the same system call. It replaces a
    /// second part given before.
    pub fn then(mut self, space: RecvSpace) -> Self {
        self.then = Some(space);
        self.overflow = 0;
        self
    }

    /// Asks for `count` bytes of the range at once, or for as many as are left: its owner has no use for
    /// fewer. A reactor that can wait for them without calls of its own fills no second part then, and may
    /// still return earlier. Others take no notice. 0, which is so at first, asks for whatever is there.
    pub fn wanting(mut self, count: usize) -> Self {
        self.wanted = count;
        self
    }

    /// The next receive adds no more than `count` bytes, at least 1, where the reactor copies into the
    /// memory to fill. It is for whoever submits the buffer again to say that again.
    pub fn at_most(mut self, count: usize) -> Self {
        self.most = count.max(1);
        self
    }

    /// How many bytes of the range its owner wants at once, of those that [may be added](Self::at_most); 0: any number.
    pub fn wanted(&self) -> usize {
        self.wanted.min(self.remaining()).min(self.most)
    }

    /// Lets a reactor that copies by itself show `witness` what it copies into the range, and copy that past the caches. Others
    /// take no notice. Who submits the buffer again shows the witness what it [has not seen](Self::seen) before.
    pub fn witnessed(mut self, witness: Arc<dyn Witness>) -> Self {
        self.witness = Some(witness);
        self
    }

    /// As far into the store the witness has seen all that this reactor filled; the start of the range if it saw nothing.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// Who is to see what is filled.
    pub(crate) fn witness(&self) -> Option<Arc<dyn Witness>> {
        self.witness.clone()
    }

    /// The witness saw all that is filled by now.
    pub(crate) fn has_been_seen(&mut self) {
        self.seen = self.cursor;
    }

    fn new(store: Store<M>, len: usize, range: Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= len,
            "range {range:?} is not within a store of {len} bytes"
        );
        Self {
            store,
            start: range.start,
            cursor: range.start,
            end: range.end,
            then: None,
            overflow: 0,
            wanted: 0,
            most: usize::MAX,
            witness: None,
            seen: range.start,
            lent_least: None,
        }
    }

    /// Bytes of the second part that are filled.
    pub fn overflow(&self) -> usize {
        self.overflow
    }

    /// Bytes still to fill, the second part not counted.
    pub fn remaining(&self) -> usize {
        self.end - self.cursor
    }

    /// Bytes that one more receive may add, the second part counted.
    fn room(&self) -> usize {
        let behind = self.then.as_ref().map_or(0, RecvSpace::len);
        self.remaining() + behind - self.overflow
    }

    /// What is filled, as a range of the store.
    pub fn filled(&self) -> Range<usize> {
        self.start..self.cursor
    }

    /// Lets `f` see the bytes `range` of the store.
    ///
    /// # Panics
    /// If `range` is not within [`RecvBuf::filled`].
    pub fn with_filled<R>(&self, range: Range<usize>, f: impl FnOnce(&[u8]) -> R) -> R {
        assert!(
            self.start <= range.start && range.start <= range.end && range.end <= self.cursor,
            "range {range:?} is not within the filled {:?}",
            self.filled()
        );
        match &self.store {
            Store::Heap(bytes) => f(&bytes[range]),
            Store::Reserved(reservation) => reservation.with_bytes(range, f),
            Store::Ring(space) => f(space.filled(range)),
            Store::Lent(bytes, _) => f(&bytes[range]),
        }
    }

    /// Copies as much of `bytes` as fits behind what is filled; returns how much. For reactors
    /// that have the bytes already (a simulated network).
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.room());
        let (first, second) = bytes[..count].split_at(count.min(self.remaining()));
        let filled = self.cursor + first.len();
        match &mut self.store {
            Store::Heap(store) => store[self.cursor..filled].copy_from_slice(first),
            Store::Reserved(reservation) => reservation.write(self.cursor, first),
            Store::Ring(space) => space.memory()[self.cursor..filled].copy_from_slice(first),
            // It is full.
            Store::Lent(..) => {}
        }
        if let Some(space) = &mut self.then {
            let at = self.overflow;
            space.memory()[at..at + second.len()].copy_from_slice(second);
        }
        self.advance(count);
        count
    }

    /// Gives the memory back, filled bytes and all; a second part is dropped, and what is in it.
    pub fn into_store(self) -> Store<M> {
        self.store
    }

    /// Gives both parts back, filled bytes and all.
    pub fn into_parts(self) -> (Store<M>, Option<RecvSpace>) {
        (self.store, self.then)
    }

    /// Counts `count` more bytes as filled, of [`RecvBuf::spaces`] in their order. For reactors.
    ///
    /// # Panics
    /// If fewer are left.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.room(), "filled beyond the range");
        self.most = self.most.saturating_sub(count);
        let first = count.min(self.remaining());
        self.cursor += first;
        if let Store::Ring(space) = &mut self.store {
            space.fill_to(self.cursor);
        }
        if let Some(space) = &mut self.then {
            self.overflow += count - first;
            space.fill_to(self.overflow);
        }
    }
}

impl RecvBuf<Mapped> {
    /// The memory to fill next: of the range, and of the second part (empty without one), together
    /// no more than [may be added](RecvBuf::at_most). For reactors, which call [`RecvBuf::advance`] afterwards.
    #[inline]
    pub fn spaces(&mut self) -> (&mut [u8], &mut [u8]) {
        let range = self.cursor..self.end.min(self.cursor.saturating_add(self.most));
        let most = self.most - range.len();
        let first = match &mut self.store {
            Store::Heap(bytes) => &mut bytes[range],
            Store::Reserved(reservation) => &mut reservation.as_mut_slice()[range],
            Store::Ring(space) => &mut space.memory()[range],
            // It is full.
            Store::Lent(..) => &mut [],
        };
        let second = match &mut self.then {
            Some(space) => {
                let behind = &mut space.memory()[self.overflow..];
                let len = behind.len().min(most);
                &mut behind[..len]
            }
            None => &mut [],
        };
        (first, second)
    }
}

impl<M: Memory> fmt::Debug for RecvBuf<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = match self.store {
            Store::Heap(_) => "heap",
            Store::Reserved(_) => "reserved",
            Store::Ring(_) => "ring",
            Store::Lent(..) => "lent",
        };
        write!(
            f,
            "RecvBuf({store} {:?} of {:?})",
            self.filled(),
            self.start..self.end
        )
    }
}

/// The large part of what is sent.
pub enum Body<M: Memory = Mapped> {
    /// Nothing.
    Empty,
    /// Private memory that others of this process also hold, such as a batch kept for a resend.
    Shared(Arc<Buffer>),
    /// A part of such memory.
    Part(Arc<Buffer>, Range<usize>),
    /// Committed bytes of payload memory; the span keeps them in place.
    Span(Span<M>),
    /// Bytes of several places, some of which may change while they are sent.
    Pieces(Box<Pieces<M>>),
}

impl<M: Memory> Body<M> {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Shared(bytes) => bytes.len(),
            Self::Part(_, range) => range.len(),
            Self::Span(span) => span.len(),
            Self::Pieces(pieces) => pieces.len(),
        }
    }
}

/// The first part of what is sent.
#[derive(Debug)]
pub enum Head {
    /// Private memory.
    Heap(Vec<u8>),
    /// What a send ring has ready. It is counted as sent as far as it was.
    Ring(SendSpan),
}

impl Head {
    /// The private memory, for using it again; a ring's span is finished and leaves nothing.
    pub fn into_heap(self) -> Vec<u8> {
        match self {
            Self::Heap(bytes) => bytes,
            Self::Ring(_) => Vec::new(),
        }
    }

    fn unsent(&self, sent: usize) -> &[u8] {
        match self {
            Self::Heap(bytes) => &bytes[sent.min(bytes.len())..],
            Self::Ring(span) => span.bytes(),
        }
    }
}

/// What a reactor that can name bytes, instead of copying them, does next with a buffer.
pub(crate) enum Step<'a, M: Memory = Mapped> {
    /// It copies so many bytes at most.
    Copy(usize),
    /// It names the bytes from this one on.
    Name(Named<'a, M>, usize),
}

/// Bytes that lie together, which others may read where they are.
#[derive(Clone, Copy)]
pub(crate) enum Named<'a, M: Memory = Mapped> {
    Buffer(&'a Arc<Buffer>),
    Span(&'a Span<M>),
}

impl<M: Memory> Named<'_, M> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Buffer(bytes) => bytes.len(),
            Self::Span(span) => span.len(),
        }
    }

    /// The file in which the first byte lies, and where in it, if there is one.
    pub(crate) fn place(&self) -> Option<(FileId, u64)> {
        match self {
            Self::Buffer(bytes) => bytes.place(),
            Self::Span(span) => Some((span.file()?, span.at())),
        }
    }
}

/// The first bytes of a buffer in memory that others read are copied all the same: the header of a batch, so that nobody
/// takes the bytes behind it for those of another batch. (Of a log the pieces' headers are copied anyway, and what is lent
/// as one span lies in it as one.)
const COPIED_FIRST: usize = 64;

/// Copying fewer bytes than this costs less than naming them, and than keeping them for that.
const NAMED_MIN: usize = 4 << 10;

/// Bytes to send: a head, private or of a send ring, then a [`Body`]; either may be empty.
pub struct SendBuf<M: Memory = Mapped> {
    head: Head,
    /// Bytes of the head at first.
    head_len: usize,
    body: Body<M>,
    sent: usize,
}

impl<M: Memory> SendBuf<M> {
    /// `head`, then `body`. An empty `Vec` allocates nothing.
    pub fn new(head: Vec<u8>, body: Body<M>) -> Self {
        let head_len = head.len();
        Self::with_head(Head::Heap(head), head_len, body)
    }

    /// What a send ring has ready, then `body`. The span holds the ring's right to send until this
    /// buffer is taken apart or dropped.
    pub fn ring(span: SendSpan, body: Body<M>) -> Self {
        let head_len = span.bytes().len();
        Self::with_head(Head::Ring(span), head_len, body)
    }

    fn with_head(head: Head, head_len: usize, body: Body<M>) -> Self {
        Self {
            head,
            head_len,
            body,
            sent: 0,
        }
    }

    /// Private bytes only.
    pub fn heap(bytes: Vec<u8>) -> Self {
        Self::new(bytes, Body::Empty)
    }

    /// Shared bytes only.
    pub fn shared(bytes: Arc<Buffer>) -> Self {
        Self::new(Vec::new(), Body::Shared(bytes))
    }

    /// Committed bytes of payload memory only.
    pub fn span(span: Span<M>) -> Self {
        Self::new(Vec::new(), Body::Span(span))
    }

    /// Bytes in all.
    pub fn total(&self) -> usize {
        self.head_len + self.body.len()
    }

    /// Bytes handed to the kernel so far. After a failed send: how much the peer may have got.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Bytes not yet handed to the kernel.
    pub fn remaining(&self) -> usize {
        self.total() - self.sent
    }

    /// Whether bytes of the body may change meanwhile. Such a buffer comes back from its reactor
    /// each time that some of it was sent, and not only at the end: its owner finds out whether what
    /// was sent was still there, and submits it again or closes the connection.
    pub fn goes_in_steps(&self) -> bool {
        matches!(&self.body, Body::Pieces(pieces) if pieces.has_foreign())
    }

    /// Lets `f` see the unsent bytes, in order, as two parts of which either may be empty. Of
    /// [`Body::Pieces`] it sees a copy: use [`SendBuf::with_next`] where that matters.
    pub fn with_unsent<R>(&self, f: impl FnOnce(&[u8], &[u8]) -> R) -> R {
        let head = self.head.unsent(self.sent);
        let skip = self.sent.saturating_sub(self.head_len);
        match &self.body {
            Body::Empty => f(head, &[]),
            Body::Shared(bytes) => f(head, &bytes[skip..]),
            Body::Part(bytes, range) => f(head, &bytes[range.clone()][skip..]),
            Body::Span(span) => span.with_bytes(|bytes| f(head, &bytes[skip..])),
            Body::Pieces(pieces) => f(head, &pieces.copied(skip)),
        }
    }

    /// Lets `f` see at most `most` of the next unsent bytes, as many as are at hand in one slice: none
    /// at the end only.
    pub fn with_next<R>(&self, most: usize, f: impl FnOnce(&[u8]) -> R) -> R {
        let f = |bytes: &[u8]| f(&bytes[..most.min(bytes.len())]);
        let head = self.head.unsent(self.sent);
        if !head.is_empty() {
            return f(head);
        }
        let skip = self.sent - self.head_len;
        match &self.body {
            Body::Empty => f(&[]),
            Body::Shared(bytes) => f(&bytes[skip..]),
            Body::Part(bytes, range) => f(&bytes[range.clone()][skip..]),
            Body::Span(span) => span.with_bytes(|bytes| f(&bytes[skip..])),
            Body::Pieces(pieces) => pieces.with_next(skip, most, f),
        }
    }

    /// How the next unsent bytes go to a peer that reads this process's sealed memory.
    pub(crate) fn next_step(&self) -> Step<'_, M> {
        let Some(skip) = self.sent.checked_sub(self.head_len) else {
            return Step::Copy(usize::MAX);
        };
        let next = match &self.body {
            Body::Shared(bytes) => Some((Named::Buffer(bytes), skip)),
            Body::Span(span) => Some((Named::Span(span), skip)),
            Body::Pieces(pieces) => pieces.named(skip),
            // Nobody who names its memory sends parts of it.
            Body::Part(..) | Body::Empty => None,
        };
        match next {
            Some((bytes, from)) if bytes.place().is_none() || bytes.len() < from + NAMED_MIN => {
                Step::Copy(usize::MAX)
            }
            Some((Named::Buffer(_), from)) if from < COPIED_FIRST => {
                Step::Copy(COPIED_FIRST - from)
            }
            Some((bytes, from)) => Step::Name(bytes, from),
            None => Step::Copy(usize::MAX),
        }
    }

    /// Bytes of the head not yet handed to the kernel.
    pub fn unsent_head(&self) -> usize {
        self.head_len.saturating_sub(self.sent)
    }

    /// The unsent head, and the parts of a body of pieces; `None` with any other body.
    pub(crate) fn gathered(&self) -> Option<(&[u8], impl Iterator<Item = Part<'_, M>>)> {
        let Body::Pieces(pieces) = &self.body else {
            return None;
        };
        let skip = self.sent.saturating_sub(self.head_len);
        Some((self.head.unsent(self.sent), pieces.parts(skip)))
    }

    /// Counts `count` bytes as sent. For reactors.
    ///
    /// # Panics
    /// If fewer are unsent.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "sent more than there is");
        if let Head::Ring(span) = &mut self.head {
            let left = self.head_len.saturating_sub(self.sent);
            span.advance(count.min(left));
            if left > 0 && count >= left && self.head_len + self.body.len() > self.sent + count {
                // The rest of the body may take long.
                span.free_sent();
            }
        }
        self.sent += count;
    }

    /// Gives both parts back, for instance to use the `Vec` again or to finish the span.
    pub fn into_parts(self) -> (Head, Body<M>) {
        (self.head, self.body)
    }
}

impl<M: Memory> fmt::Debug for SendBuf<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBuf({} of {} bytes sent)", self.sent, self.total())
    }
}

#[cfg(test)]
mod tests;
