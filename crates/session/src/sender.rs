//! Sending from any thread: a message is encoded straight into the ring it leaves from.
//!
//! Invariants
//! - A frame's length in its header is that of its reservation, so what is committed is always a
//!   run of whole frames.
//! - Before a session opens and after it ended, callers get no room for frames. A frame that a
//!   caller commits just as the session ends is behind CLOSE, where the peer reads nothing.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

use buffa::{EncodeSink, Message, SizeCache, ViewEncode};
use embar_frame::{
    CHECKSUM_BYTES, FIRST_RESERVED_ID, FRAME_HEADER_BYTES, FrameHeader, write_checksum,
};
use embar_transport::ring::{Commit, Reservation, ReserveError, SendRing};
use thiserror::Error;

use crate::config::{SendLimits, longest_frame};

mod unasked;

/// The gate of a session that is not open yet. Else it says how long a frame may be.
const NOT_OPEN: u32 = 0;
/// The gate of a session that has ended.
const ENDED: u32 = u32::MAX;

/// Why a frame was not sent. Nothing of it was, and what was sent before is not touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SendError {
    /// The handshake is not over.
    #[error("the session is not open yet: wait for the handshake")]
    NotOpen,
    /// The session has ended or is about to.
    #[error("the session is closed: open another")]
    Closed,
    /// The ring has no room now.
    #[error("the session's send ring is full: wait for room, or send less")]
    Full,
    /// The peer does not accept it, or the ring could never hold it.
    #[error(
        "a frame of {bytes} bytes exceeds the session's limit of {max}: split it, or raise max_frame_bytes and the rings"
    )]
    TooLong {
        /// Bytes after the frame header.
        bytes: usize,
        /// Most bytes after the frame header.
        max: u32,
    },
    /// The id belongs to the session layer.
    #[error("packet id {id:#06x} is reserved: use one below 0xff00")]
    ReservedId {
        /// The id.
        id: u16,
    },
    /// A message wrote more or less than the size it gave before.
    #[error(
        "the message's encoder wrote another length than it announced: do not change it while it is sent"
    )]
    Encoding,
}

/// What threads share about a session's sending.
#[derive(Debug)]
struct Shared {
    /// [`NOT_OPEN`], [`ENDED`], or the longest frame + 1.
    gate: AtomicU32,
    max_body: AtomicU32,
    lanes: AtomicU8,
    /// Bytes of the ring for an answer to each message that comes.
    reply_room: AtomicUsize,
    /// The core waits for the right to send.
    wanted: AtomicBool,
    bytes: AtomicU64,
    writes: AtomicU64,
}

/// Sends on one session from any thread. Cheap to clone.
///
/// Nothing here blocks and nothing here writes to a socket: a message that was committed as
/// [`Commit::First`] waits until its caller takes it out of the ring ([`SendRing::span`]) or has
/// the core polled.
#[derive(Clone)]
pub struct Sender {
    ring: SendRing,
    /// Frames end with a checksum.
    checked: bool,
    shared: Arc<Shared>,
}

impl Sender {
    pub(crate) fn new(ring: SendRing, checked: bool) -> Self {
        Self {
            ring,
            checked,
            shared: Arc::new(Shared {
                gate: AtomicU32::new(NOT_OPEN),
                max_body: AtomicU32::new(0),
                lanes: AtomicU8::new(0),
                reply_room: AtomicUsize::new(0),
                wanted: AtomicBool::new(false),
                bytes: AtomicU64::new(0),
                writes: AtomicU64::new(0),
            }),
        }
    }

    pub(crate) fn open(&self, limits: SendLimits, reply_room: usize) {
        self.shared.reply_room.store(reply_room, Ordering::Relaxed);
        let max_body = limits.max_body_bytes;
        self.shared.max_body.store(max_body, Ordering::Relaxed);
        self.shared
            .lanes
            .store(limits.body_lanes, Ordering::Relaxed);
        // Relaxed, as all of the gate: it is advice, not protection. A frame that slips through
        // after the end is behind CLOSE, where the peer reads nothing.
        let longest = limits.max_frame_bytes.min(ENDED - 2);
        self.shared.gate.store(longest + 1, Ordering::Relaxed);
    }

    pub(crate) fn shut(&self) {
        self.shared.gate.store(ENDED, Ordering::Relaxed);
    }

    /// Whether the handshake is over and the session has not ended.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !matches!(self.shared.gate.load(Ordering::Relaxed), NOT_OPEN | ENDED)
    }

    /// What may be sent; `None` unless open.
    #[must_use]
    pub fn limits(&self) -> Option<SendLimits> {
        Some(SendLimits {
            max_frame_bytes: self.limit().ok()?,
            max_body_bytes: self.shared.max_body.load(Ordering::Relaxed),
            body_lanes: self.shared.lanes.load(Ordering::Relaxed),
        })
    }

    #[inline]
    fn limit(&self) -> Result<u32, SendError> {
        match self.shared.gate.load(Ordering::Relaxed) {
            NOT_OPEN => Err(SendError::NotOpen),
            ENDED => Err(SendError::Closed),
            longest => Ok(longest - 1),
        }
    }

    /// Why there are no [limits](Sender::limits).
    pub(crate) fn not_open(&self) -> SendError {
        if self.ring.is_closed() {
            SendError::Closed
        } else {
            SendError::NotOpen
        }
    }

    /// The ring that all frames leave through.
    #[must_use]
    pub fn ring(&self) -> &SendRing {
        &self.ring
    }

    /// Room for the content of a frame, `len` bytes, to be filled in place.
    ///
    /// # Errors
    /// [`SendError`]; never [`SendError::Encoding`].
    #[inline]
    pub fn reserve(&self, id: u16, len: usize) -> Result<Draft<'_>, SendError> {
        self.reserve_flagged(id, 0, len)
    }

    /// As [`Sender::reserve`], with flags that the protocol defines.
    ///
    /// # Errors
    /// As [`Sender::reserve`].
    #[inline]
    pub fn reserve_flagged(&self, id: u16, flags: u16, len: usize) -> Result<Draft<'_>, SendError> {
        self.check(id, len)?;
        self.draft(id, flags, len)
    }

    /// Whether a frame of a program may be sent.
    #[inline]
    pub(crate) fn check(&self, id: u16, len: usize) -> Result<(), SendError> {
        if id >= FIRST_RESERVED_ID {
            return Err(SendError::ReservedId { id });
        }
        let max = self.limit()?;
        if len > max as usize {
            return Err(SendError::TooLong { bytes: len, max });
        }
        Ok(())
    }

    /// A frame of the session layer, or one that was checked.
    #[inline]
    pub(crate) fn draft(&self, id: u16, flags: u16, len: usize) -> Result<Draft<'_>, SendError> {
        let reserved = self.ring.reserve(self.frame_bytes(len));
        let mut reservation = reserved.map_err(|error| refused(&error, len))?;
        let header = self.header(id, flags, len).to_bytes();
        reservation[..FRAME_HEADER_BYTES].copy_from_slice(&header);
        Ok(Draft {
            reservation,
            end: FRAME_HEADER_BYTES + len,
        })
    }

    #[inline]
    fn header(&self, id: u16, flags: u16, len: usize) -> FrameHeader {
        let header = FrameHeader {
            length: len as u32,
            id,
            flags,
        };
        match self.checked {
            true => header.with_checksum(),
            false => header,
        }
    }

    /// Bytes that a frame with `len` bytes of content takes in the ring.
    #[inline]
    pub(crate) fn frame_bytes(&self, len: usize) -> usize {
        let checksum = if self.checked { CHECKSUM_BYTES } else { 0 };
        len.saturating_add(FRAME_HEADER_BYTES + checksum)
    }

    /// Sends a frame of `len` bytes that `fill` writes in place. It must write all of them: what
    /// it leaves out is whatever this session sent there before.
    ///
    /// # Errors
    /// [`SendError`]; never [`SendError::Encoding`].
    #[inline]
    pub fn send_with(
        &self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Commit, SendError> {
        self.write(id, len, |content| {
            fill(content);
            Ok(())
        })
    }

    /// Sends a frame of `len` bytes that `fill` writes in place; nothing of it if that fails.
    #[inline]
    fn write(
        &self,
        id: u16,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), SendError>,
    ) -> Result<Commit, SendError> {
        self.check(id, len)?;
        let header = self.header(id, 0, len).to_bytes();
        let refused = |error| refused(&error, len);
        self.ring.write(self.frame_bytes(len), refused, |frame| {
            let (to_header, content) = frame.split_at_mut(FRAME_HEADER_BYTES);
            to_header.copy_from_slice(&header);
            fill(&mut content[..len])?;
            if self.checked {
                write_checksum(frame);
            }
            Ok(())
        })
    }

    /// Sends a Protobuf message. Its size is computed once, then it is written to where it leaves
    /// from.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send(&self, id: u16, message: &impl Message) -> Result<Commit, SendError> {
        self.encode(
            id,
            |sizes| message.compute_size(sizes),
            |sizes, out| message.write_to(sizes, out),
        )
    }

    /// As [`Sender::send`], for a message that is a view of borrowed fields.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_view<'v>(
        &self,
        id: u16,
        message: &impl ViewEncode<'v>,
    ) -> Result<Commit, SendError> {
        self.encode(
            id,
            |sizes| message.compute_size(sizes),
            |sizes, out| message.write_to(sizes, out),
        )
    }

    #[inline]
    fn encode(
        &self,
        id: u16,
        size: impl FnOnce(&mut SizeCache) -> u32,
        write: impl FnOnce(&mut SizeCache, &mut Bounded<'_>),
    ) -> Result<Commit, SendError> {
        with_sizes(|sizes| {
            let len = size(sizes) as usize;
            self.write(id, len, |content| {
                Bounded::fill(content, |out| write(sizes, out))
            })
        })
    }

    /// As [`Sender::send`], with the bytes of `prefix` before the message, one part after the other:
    /// for protocols whose frames say more than the message does. Also gives the bytes of the
    /// frame's content.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_prefixed(
        &self,
        id: u16,
        prefix: &[&[u8]],
        message: &impl Message,
    ) -> Result<(Commit, usize), SendError> {
        self.encode_behind(
            id,
            prefix,
            |sizes| message.compute_size(sizes),
            |sizes, out| message.write_to(sizes, out),
        )
    }

    /// As [`Sender::send_prefixed`], for a message that is a view of borrowed fields.
    ///
    /// # Errors
    /// [`SendError`].
    #[inline]
    pub fn send_view_prefixed<'v>(
        &self,
        id: u16,
        prefix: &[&[u8]],
        message: &impl ViewEncode<'v>,
    ) -> Result<(Commit, usize), SendError> {
        self.encode_behind(
            id,
            prefix,
            |sizes| message.compute_size(sizes),
            |sizes, out| message.write_to(sizes, out),
        )
    }

    #[inline]
    fn encode_behind(
        &self,
        id: u16,
        prefix: &[&[u8]],
        size: impl FnOnce(&mut SizeCache) -> u32,
        write: impl FnOnce(&mut SizeCache, &mut Bounded<'_>),
    ) -> Result<(Commit, usize), SendError> {
        with_sizes(|sizes| {
            let before: usize = prefix.iter().map(|part| part.len()).sum();
            let len = before.saturating_add(size(sizes) as usize);
            let commit = self.write(id, len, |content| {
                Bounded::fill(content, |out| {
                    prefix.iter().for_each(|part| out.put(part));
                    write(sizes, out);
                })
            })?;
            Ok((commit, len))
        })
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.checked
    }

    /// Counts bytes that were written to the connection without the core, so that it knows how much
    /// was sent, and that no PING is due.
    pub fn wrote(&self, bytes: usize) {
        if bytes > 0 {
            self.shared.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
            self.shared.writes.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the core needed the right to send while another thread had it. A thread that
    /// finishes a [`SendSpan`](embar_transport::ring::SendSpan) outside of the core asks this
    /// afterwards, and if so has the core polled.
    #[must_use]
    pub fn wants_right(&self) -> bool {
        // Partner: `set_wanted`. Either this load sees the store, or the core's attempt to take
        // the right, which follows it, sees that the span is finished.
        fence(Ordering::SeqCst);
        self.shared.wanted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wanted(&self, wanted: bool) {
        if self.shared.wanted.load(Ordering::Relaxed) != wanted {
            self.shared.wanted.store(wanted, Ordering::Relaxed);
        }
        if wanted {
            fence(Ordering::SeqCst);
        }
    }

    /// Messages committed: frames of the session layer do not count.
    pub(crate) fn messages(&self) -> u64 {
        self.ring.committed()
    }

    /// How often bytes were handed to the connection, by whomever.
    pub(crate) fn writes(&self) -> u64 {
        self.shared.writes.load(Ordering::Relaxed)
    }

    /// Bytes handed to the connection, by whomever.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Sender({} of {} bytes queued, {})",
            self.ring.queued(),
            self.ring.capacity(),
            if self.is_open() { "open" } else { "not open" }
        )
    }
}

/// A frame that is being filled; derefs to its content. Dropped without [`Draft::commit`] it is
/// never sent.
pub struct Draft<'a> {
    reservation: Reservation<'a>,
    /// Of the content; behind it is room for a checksum, or nothing.
    end: usize,
}

impl Draft<'_> {
    /// Lets it leave, in the order of the reservations. [`Commit::First`]: nothing is
    /// being sent, so the caller sends it or has the core polled.
    #[inline]
    pub fn commit(mut self) -> Commit {
        self.finish();
        self.reservation.commit()
    }

    /// As [`Draft::commit`], of a frame that is no message.
    pub(crate) fn commit_uncounted(mut self) -> Commit {
        self.finish();
        self.reservation.commit_uncounted()
    }

    #[inline]
    fn finish(&mut self) {
        if self.end < self.reservation.len() {
            write_checksum(&mut self.reservation);
        }
    }
}

impl Deref for Draft<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.reservation[FRAME_HEADER_BYTES..self.end]
    }
}

impl DerefMut for Draft<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.reservation[FRAME_HEADER_BYTES..self.end]
    }
}

/// Where an encoder writes: a fixed range, beyond which nothing goes.
pub(crate) struct Bounded<'a> {
    rest: &'a mut [u8],
    over: bool,
}

impl<'a> Bounded<'a> {
    /// Lets `write` fill `content`, which it must do to the last byte.
    #[inline]
    pub(crate) fn fill(
        content: &'a mut [u8],
        write: impl FnOnce(&mut Bounded<'a>),
    ) -> Result<(), SendError> {
        let mut out = Bounded {
            rest: content,
            over: false,
        };
        write(&mut out);
        if out.over || !out.rest.is_empty() {
            return Err(SendError::Encoding);
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        let rest = std::mem::take(&mut self.rest);
        match rest.split_at_mut_checked(bytes.len()) {
            Some((to, rest)) => {
                to.copy_from_slice(bytes);
                self.rest = rest;
            }
            None => self.over = true,
        }
    }
}

impl EncodeSink for Bounded<'_> {
    #[inline]
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    #[inline]
    fn put_slice(&mut self, src: &[u8]) {
        self.put(src);
    }

    #[inline]
    fn put_u32_le(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    #[inline]
    fn put_u64_le(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

thread_local! {
    /// Sizes of nested messages beyond those that the cache has room for itself, kept from one
    /// message to the next so that even deep ones are sent without an allocation.
    static SPILL: Cell<Vec<u32>> = const { Cell::new(Vec::new()) };
}

#[inline]
pub(crate) fn with_sizes<R>(f: impl FnOnce(&mut SizeCache) -> R) -> R {
    let spill = SPILL.try_with(Cell::take).unwrap_or_default();
    let mut sizes = SizeCache::with_spill_buffer(spill);
    let result = f(&mut sizes);
    let spill = sizes.into_spill_buffer();
    if spill.capacity() > 0 {
        // A thread that is ending has no use for it any more.
        let _ = SPILL.try_with(|kept| kept.set(spill));
    }
    result
}

#[cold]
fn refused(error: &ReserveError, bytes: usize) -> SendError {
    match error {
        ReserveError::Full => SendError::Full,
        ReserveError::Closed => SendError::Closed,
        ReserveError::TooLong { max } => SendError::TooLong {
            bytes,
            max: longest_frame(*max),
        },
    }
}
