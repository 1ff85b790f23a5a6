//! Buffers that travel into a reactor and back.
//!
//! Nothing here copies on its own account: a buffer owns (or pins) its bytes while the kernel may
//! touch them, and remembers how far it got.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use embar_fabric::{Mapped, Memory, Reservation, Span};

/// Where received bytes go.
pub enum Store<M: Memory = Mapped> {
    /// Private memory; its length, not its capacity, is what can be filled.
    Heap(Vec<u8>),
    /// A reserved place in the log.
    Log(Reservation<M>),
}

/// A range of memory to receive into, and how much of it is filled.
///
/// A completion seldom fills all of it: submit it again until [`RecvBuf::remaining`] is 0.
pub struct RecvBuf<M: Memory = Mapped> {
    store: Store<M>,
    start: usize,
    cursor: usize,
    end: usize,
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
    pub fn log(reservation: Reservation<M>, range: Range<usize>) -> Self {
        let len = reservation.len();
        Self::new(Store::Log(reservation), len, range)
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
        }
    }

    /// Bytes still to fill.
    pub fn remaining(&self) -> usize {
        self.end - self.cursor
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
            Store::Log(reservation) => reservation.with_bytes(range, f),
        }
    }

    /// Copies as much of `bytes` as fits behind what is filled; returns how much. For reactors
    /// that have the bytes already (a simulated network).
    pub fn fill(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.remaining());
        match &mut self.store {
            Store::Heap(store) => {
                store[self.cursor..self.cursor + count].copy_from_slice(&bytes[..count]);
            }
            Store::Log(reservation) => reservation.write(self.cursor, &bytes[..count]),
        }
        self.cursor += count;
        count
    }

    /// Gives the memory back, filled bytes and all.
    pub fn into_store(self) -> Store<M> {
        self.store
    }

    /// Counts `count` bytes of [`RecvBuf::space`] as filled. For reactors.
    ///
    /// # Panics
    /// If fewer are left.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "filled beyond the range");
        self.cursor += count;
    }
}

impl RecvBuf<Mapped> {
    /// The memory still to fill. For reactors, which call [`RecvBuf::advance`] afterwards.
    pub fn space(&mut self) -> &mut [u8] {
        let range = self.cursor..self.end;
        match &mut self.store {
            Store::Heap(bytes) => &mut bytes[range],
            Store::Log(reservation) => &mut reservation.as_mut_slice()[range],
        }
    }
}

impl<M: Memory> fmt::Debug for RecvBuf<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = match self.store {
            Store::Heap(_) => "heap",
            Store::Log(_) => "log",
        };
        write!(
            f,
            "RecvBuf({store} {:?} of {:?})",
            self.filled(),
            self.start..self.end
        )
    }
}

/// The large part of what is sent, which is shared with others and never changes.
pub enum Body<M: Memory = Mapped> {
    /// Nothing.
    Empty,
    /// Private memory that others of this process also hold, such as a batch kept for a resend.
    Shared(Arc<Vec<u8>>),
    /// Committed bytes of the log; the span keeps them in place.
    Log(Span<M>),
}

// By hand, because a derive would ask for `M: Clone`, and no memory is copied.
impl<M: Memory> Clone for Body<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Shared(bytes) => Self::Shared(Arc::clone(bytes)),
            Self::Log(span) => Self::Log(span.clone()),
        }
    }
}

impl<M: Memory> Body<M> {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Shared(bytes) => bytes.len(),
            Self::Log(span) => span.len(),
        }
    }
}

/// Bytes to send: a small private part, then a [`Body`]; either may be empty.
pub struct SendBuf<M: Memory = Mapped> {
    head: Vec<u8>,
    body: Body<M>,
    sent: usize,
}

impl<M: Memory> SendBuf<M> {
    /// `head`, then `body`. An empty `Vec` allocates nothing.
    pub fn new(head: Vec<u8>, body: Body<M>) -> Self {
        Self {
            head,
            body,
            sent: 0,
        }
    }

    /// Private bytes only.
    pub fn heap(bytes: Vec<u8>) -> Self {
        Self::new(bytes, Body::Empty)
    }

    /// Shared bytes only.
    pub fn shared(bytes: Arc<Vec<u8>>) -> Self {
        Self::new(Vec::new(), Body::Shared(bytes))
    }

    /// Bytes of the log only.
    pub fn log(span: Span<M>) -> Self {
        Self::new(Vec::new(), Body::Log(span))
    }

    /// Bytes in all.
    pub fn total(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Bytes handed to the kernel so far. After a failed send: how much the peer may have got.
    pub fn sent(&self) -> usize {
        self.sent
    }

    /// Bytes not yet handed to the kernel.
    pub fn remaining(&self) -> usize {
        self.total() - self.sent
    }

    /// Lets `f` see the unsent bytes, in order, as two parts of which either may be empty.
    pub fn with_unsent<R>(&self, f: impl FnOnce(&[u8], &[u8]) -> R) -> R {
        let head = &self.head[self.sent.min(self.head.len())..];
        let skip = self.sent.saturating_sub(self.head.len());
        match &self.body {
            Body::Empty => f(head, &[]),
            Body::Shared(bytes) => f(head, &bytes[skip..]),
            Body::Log(span) => span.with_bytes(|bytes| f(head, &bytes[skip..])),
        }
    }

    /// Counts `count` bytes as sent. For reactors.
    ///
    /// # Panics
    /// If fewer are unsent.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.remaining(), "sent more than there is");
        self.sent += count;
    }

    /// Gives both parts back, for instance to use the `Vec` again.
    pub fn into_parts(self) -> (Vec<u8>, Body<M>) {
        (self.head, self.body)
    }
}

impl<M: Memory> fmt::Debug for SendBuf<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBuf({} of {} bytes sent)", self.sent, self.total())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receive_buffer_fills_its_range_and_nothing_else() {
        let mut buf = RecvBuf::<Mapped>::heap(vec![9; 8], 2..6);
        assert_eq!(buf.fill(b"ab"), 2);
        assert_eq!((buf.filled(), buf.remaining()), (2..4, 2));
        buf.space()[0] = b'c';
        buf.advance(1);
        assert_eq!(buf.fill(b"de"), 1, "only one byte was left");
        assert_eq!(buf.remaining(), 0);
        buf.with_filled(3..6, |bytes| assert_eq!(bytes, b"bcd"));
        let Store::Heap(bytes) = buf.into_store() else {
            panic!("the store changed its kind");
        };
        assert_eq!(bytes, b"\x09\x09abcd\x09\x09");
    }

    #[test]
    #[should_panic(expected = "not within the filled")]
    fn unfilled_bytes_are_not_shown() {
        let mut buf = RecvBuf::<Mapped>::heap(vec![0; 8], 0..8);
        buf.fill(b"abc");
        buf.with_filled(0..4, |_| ());
    }

    #[test]
    #[should_panic(expected = "not within a store")]
    fn a_range_beyond_the_store_is_a_bug() {
        let _ = RecvBuf::<Mapped>::heap(vec![0; 8], 4..9);
    }

    #[test]
    fn unsent_bytes_come_in_order_across_both_parts() {
        let body = Body::<Mapped>::Shared(Arc::new(b"defgh".to_vec()));
        let mut buf = SendBuf::new(b"abc".to_vec(), body);
        let mut seen = Vec::new();
        while buf.remaining() > 0 {
            buf.with_unsent(|head, body| {
                seen.push([head, body].concat());
            });
            buf.advance(2);
        }
        assert_eq!(
            seen,
            [&b"abcdefgh"[..], b"cdefgh", b"efgh", b"gh"].map(<[u8]>::to_vec)
        );
        assert_eq!((buf.sent(), buf.total()), (8, 8));
        buf.with_unsent(|head, body| assert!(head.is_empty() && body.is_empty()));
    }
}
