//! Fills a batch with messages.
//!
//! The buffer is made once and comes back from [`BatchBuilder::seal`] as the frame to send;
//! handed to the next [`BatchBuilder::new`] it is used again, so a publisher in steady state
//! allocates nothing. Its bytes are zeroed in growing steps and once only, never per message.

use std::ops::{Deref, DerefMut};

use embar_frame::Now;
use embar_memory::Buffer;

use crate::batch::{BatchHeader, SealFields};
use crate::limits::{
    BATCH_HEADER_BYTES, LINE_BYTES, MAX_BATCH_BYTES, MESSAGE_ALIGN_BYTES, MESSAGE_HEADER_BYTES,
    MIN_BATCH_BYTES,
};
use crate::message::PushError;
use crate::message::{Header, Lengths, headers_len, key_len, write_headers};

/// Collects messages until the batch is sealed.
#[derive(Debug)]
pub struct BatchBuilder {
    /// As long as was ever needed, a multiple of a line; what lies behind `cursor` is old bytes.
    buffer: Buffer,
    capacity: usize,
    cursor: usize,
    count: u32,
    first_at: Option<Now>,
}

impl BatchBuilder {
    /// An empty batch in `buffer`, whose content does not matter. The frame will have at most
    /// `capacity` bytes, header included; that is rounded down to whole lines and kept between
    /// [`MIN_BATCH_BYTES`] and [`MAX_BATCH_BYTES`]. Allocates only if the buffer is smaller.
    ///
    /// # Panics
    /// If the buffer is a range of sealed memory, and smaller.
    #[must_use]
    pub fn new(buffer: impl Into<Buffer>, capacity: usize) -> Self {
        let mut buffer = buffer.into();
        let capacity = capacity.clamp(MIN_BATCH_BYTES as usize, MAX_BATCH_BYTES as usize);
        let capacity = capacity - capacity % LINE_BYTES;
        let len = buffer.len().clamp(LINE_BYTES, capacity);
        buffer.truncate(len);
        buffer.reserve_exact(capacity - buffer.len());
        buffer.resize(len - len % LINE_BYTES, 0);
        Self {
            buffer,
            capacity,
            cursor: BATCH_HEADER_BYTES,
            count: 0,
            first_at: None,
        }
    }

    /// Adds a message and returns its position in the batch.
    ///
    /// # Errors
    /// [`PushError::Full`] if it does not fit any more, and other [`PushError`]s if it would not
    /// fit any batch of this capacity. The batch is as before.
    #[inline]
    pub fn try_push(
        &mut self,
        key: Option<&[u8]>,
        headers: &[Header<'_>],
        value: &[u8],
    ) -> Result<u32, PushError> {
        if key.is_none()
            && headers.is_empty()
            && let Some(index) = self.push_value(value)
        {
            return Ok(index);
        }
        let mut reserved = self.reserve_with(key, headers, value.len())?;
        reserved.copy_from_slice(value);
        Ok(reserved.commit())
    }

    /// Adds a value without key and headers, and returns its position in the batch. `None` if the buffer is not long enough
    /// as it is: [`BatchBuilder::try_push`] makes it so, or says why not.
    #[inline]
    pub fn push_value(&mut self, value: &[u8]) -> Option<u32> {
        let bytes = MESSAGE_HEADER_BYTES + value.len();
        let padded = bytes.next_multiple_of(MESSAGE_ALIGN_BYTES);
        let record = self.buffer.get_mut(self.cursor..)?.get_mut(..padded)?;
        let lengths = Lengths {
            value: value.len() as u32,
            key: None,
            headers: 0,
        };
        // At least a header long: the last 8 bytes hold all of the padding.
        *record.last_chunk_mut::<MESSAGE_ALIGN_BYTES>()? = [0; MESSAGE_ALIGN_BYTES];
        let (start, rest) = record.split_at_mut(MESSAGE_HEADER_BYTES);
        start.copy_from_slice(&lengths.to_bytes());
        rest[..value.len()].copy_from_slice(value);
        Some(self.close(padded))
    }

    /// Room for a value of `len` bytes to be written in place, without key and headers. Nothing
    /// is added before [`Reserved::commit`].
    ///
    /// # Errors
    /// As [`BatchBuilder::try_push`].
    pub fn reserve(&mut self, len: usize) -> Result<Reserved<'_>, PushError> {
        self.reserve_with(None, &[], len)
    }

    /// As [`BatchBuilder::reserve`], for a message with a key and headers.
    ///
    /// # Errors
    /// As [`BatchBuilder::try_push`].
    pub fn reserve_with(
        &mut self,
        key: Option<&[u8]>,
        headers: &[Header<'_>],
        len: usize,
    ) -> Result<Reserved<'_>, PushError> {
        let lengths = Lengths {
            value: u32::try_from(len).unwrap_or(u32::MAX),
            key: key_len(key)?,
            headers: headers_len(headers)?,
        };
        let key = key.unwrap_or_default();
        let key_at = MESSAGE_HEADER_BYTES + usize::from(lengths.headers);
        let value_at = key_at + key.len();
        let record = self.open(value_at.saturating_add(len))?;
        write_headers(&mut record[MESSAGE_HEADER_BYTES..key_at], headers);
        record[key_at..value_at].copy_from_slice(key);
        Ok(Reserved {
            value_at: self.cursor + value_at,
            lengths,
            builder: self,
        })
    }

    /// The next `bytes` bytes and their padding, which is zeroed.
    #[inline]
    fn open(&mut self, bytes: usize) -> Result<&mut [u8], PushError> {
        let end = self.cursor.saturating_add(bytes);
        if end > self.buffer.len() {
            self.grow(bytes)?;
        }
        // The cursor is aligned and the buffer is whole lines long, so the padding is inside.
        let end = end.next_multiple_of(MESSAGE_ALIGN_BYTES);
        let record = &mut self.buffer[self.cursor..end];
        // At least a header long: the last 8 bytes hold all of the padding.
        if let Some(last) = record.last_chunk_mut::<MESSAGE_ALIGN_BYTES>() {
            *last = [0; MESSAGE_ALIGN_BYTES];
        }
        Ok(record)
    }

    #[inline]
    fn close(&mut self, padded: usize) -> u32 {
        let index = self.count;
        self.cursor += padded;
        self.count += 1;
        index
    }

    /// Makes the buffer long enough for `bytes` more, within the capacity.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, bytes: usize) -> Result<(), PushError> {
        if bytes > self.capacity - self.cursor {
            let limit = self.capacity - BATCH_HEADER_BYTES;
            return Err(if bytes > limit {
                PushError::TooLarge { bytes, limit }
            } else {
                PushError::Full
            });
        }
        // Doubling: a batch that is sealed early never paid for zeroing the whole capacity.
        let len = (self.cursor + bytes).max(2 * self.buffer.len());
        let len = len.next_multiple_of(LINE_BYTES).min(self.capacity);
        self.buffer.resize(len, 0);
        Ok(())
    }

    /// Whether no message was added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Bytes that the frame would have if it were sealed now, header and padding included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cursor.next_multiple_of(LINE_BYTES)
    }

    /// Most bytes that the frame can have.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Messages added so far.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Notes when the first message came, for a linger time; later calls change nothing. Separate
    /// from pushing, because reading a clock costs more than that.
    pub fn mark_first(&mut self, now: Now) {
        self.first_at.get_or_insert(now);
    }

    /// When the first message came, if it was noted.
    #[must_use]
    pub fn first_at(&self) -> Option<Now> {
        self.first_at
    }

    /// Pads the batch, fills in its header and checksums, and returns the frame.
    ///
    /// # Panics
    /// If the batch is empty: there is nothing to send, which the caller knows.
    #[must_use]
    pub fn seal(mut self, fields: SealFields) -> Buffer {
        assert!(self.count > 0, "an empty batch cannot be sealed");
        let len = self.len();
        self.buffer.truncate(len);
        self.buffer[self.cursor..].fill(0);
        let (start, payload) = self.buffer.split_at_mut(BATCH_HEADER_BYTES);
        let header = BatchHeader::new(&fields, self.count, payload);
        start.copy_from_slice(header.as_bytes());
        self.buffer
    }

    /// Gives the message buffer back without a batch.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

/// A value being written in place. It derefs to its bytes, which hold old content at first: write
/// all of them, or [`Reserved::shrink`]. Dropped without [`Reserved::commit`], nothing was added.
#[derive(Debug)]
#[must_use = "nothing is added before commit"]
pub struct Reserved<'a> {
    builder: &'a mut BatchBuilder,
    value_at: usize,
    lengths: Lengths,
}

impl Reserved<'_> {
    /// Keeps only the first `len` bytes of the value; a longer `len` changes nothing.
    pub fn shrink(&mut self, len: usize) {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.lengths.value = self.lengths.value.min(len);
    }

    /// Adds the message and returns its position in the batch.
    pub fn commit(self) -> u32 {
        let Self {
            builder,
            value_at,
            lengths,
        } = self;
        let start = builder.cursor;
        let end = value_at + lengths.value as usize;
        let padded_end = end.next_multiple_of(MESSAGE_ALIGN_BYTES);
        builder.buffer[start..start + MESSAGE_HEADER_BYTES].copy_from_slice(&lengths.to_bytes());
        builder.buffer[end..padded_end].fill(0);
        builder.close(padded_end - start)
    }
}

impl Deref for Reserved<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.builder.buffer[self.value_at..][..self.lengths.value as usize]
    }
}

impl DerefMut for Reserved<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.builder.buffer[self.value_at..][..self.lengths.value as usize]
    }
}
